//! NBD connections end to end: foreign clients where they are installed, and a small client of our own for what
//! those do not do (hold back, overrun, vanish).
#![allow(clippy::disallowed_methods, reason = "clients are threads of their own")]

use crate::common::nbd::{Client, DISC, READ, TRIM, WRITE, WRITE_ZEROES};
use crate::common::{ANY_TCP, MemoryGateway, cast, small, spec};
use base::limits::PAGE_BYTES;
use base::{BlockOp, BlockRequest, Machine, Pages, VolumeId};
use host::Input;
use host::target::{Config, HOLD_TIME, PROOF_BYTES};
use runtime::{CoreConfig, CoreHandle, NOBODY, start_core};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const VOLUME_BYTES: usize = 16 << 20;

fn start(config: CoreConfig) -> (CoreHandle, SocketAddr) {
    start_with(config, VOLUME_BYTES)
}

fn start_with(config: CoreConfig, volume_bytes: usize) -> (CoreHandle, SocketAddr) {
    let gateway = spec(None, &[ANY_TCP], move |site| {
        MemoryGateway::new(site.pool, volume_bytes)
    });
    let core = start_core(config, vec![gateway]).expect("loopback is there");
    let address = core.listening(0, wire::nbd::NAME)[0];
    (core, address)
}

/// Runs a foreign client, or says that it is not installed.
fn client(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn text(output: &Output) -> String {
    format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn nbdinfo_sees_the_exports() {
    let (_core, address) = start(small());
    let Some(output) = client("nbdinfo", &["--list", &format!("nbd://{address}")]) else {
        return;
    };
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("export=\"data\"") && text.contains("export=\"frozen\""),
        "{text}"
    );
    assert!(text.contains(&VOLUME_BYTES.to_string()), "{text}");
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    let (core, address) = start(small());
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (to, from) = (directory.path().join("to"), directory.path().join("from"));
    let bytes: Vec<u8> = (0..VOLUME_BYTES)
        .map(|i| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    std::fs::write(&to, &bytes).expect("room for a file");
    let uri = format!("nbd://{address}/data");
    let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
    let Some(output) = client("nbdcopy", &[&path(&to), &uri]) else {
        return;
    };
    assert!(output.status.success(), "{}", text(&output));
    let output = client("nbdcopy", &[&uri, &path(&from)]).expect("it was there before");
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        std::fs::read(&from).expect("nbdcopy made it") == bytes,
        "the copy differs"
    );
    all_pages_come_back(&core);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let (core, address) = start(small());
    let uri = format!("--uri=nbd://{address}/data");
    let common = [
        "--name=verify",
        "--ioengine=nbd",
        "--thread",
        "--rw=randrw",
        "--bsrange=512-256k",
    ];
    let more = [
        "--bs_unaligned",
        "--verify=crc32c",
        "--iodepth=32",
        "--size=16m",
        "--randrepeat=1",
        "--fsync=64",
    ];
    let arguments: Vec<&str> = common
        .iter()
        .chain(&more)
        .copied()
        .chain([uri.as_str()])
        .collect();
    let arguments: Vec<&str> = arguments
        .into_iter()
        .filter(|argument| *argument != "--bs_unaligned")
        .collect();
    let Some(output) = client("fio", &arguments) else {
        return;
    };
    let text = text(&output);
    if text.contains("engine nbd not loadable") {
        return eprintln!("skipped: fio has no nbd engine");
    }
    assert!(output.status.success(), "{text}");
    all_pages_come_back(&core);
}

/// Waits until every page is back in the pool (no datagram has come, so the socket has posted none).
fn all_pages_come_back(core: &CoreHandle) {
    pages(core, |available, capacity| available == capacity);
}

fn pages(core: &CoreHandle, until: impl Fn(usize, usize) -> bool) {
    loop {
        let (available, capacity) = core
            .call(0, |host, _| {
                let pool = &cast::<MemoryGateway>(host).pool;
                (pool.available(), pool.capacity())
            })
            .expect("a healthy core");
        if until(available, capacity) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_does_not_read_is_held_back_and_loses_nothing() {
    const READS: u64 = 3000;
    const BYTES: u32 = 64 << 10;
    let (core, address) = start(small());
    let mut client = Client::new(address);
    let mut sender = Client(client.0.try_clone().expect("a second handle"));
    let asking = std::thread::spawn(move || {
        for cookie in 0..READS {
            sender.request(READ, cookie, cookie % 100 * u64::from(BYTES), BYTES);
        }
    });
    // The session's limits are reached long before everything is asked for.
    while core.stats().requests < 16 {
        std::thread::yield_now();
    }
    for _ in 0..10 {
        core.call(0, |_, _| ()).expect("a healthy core");
        assert!(core.stats().requests < READS);
    }
    let mut payload = vec![0; BYTES as usize];
    // In any order: what is over the connection's share of the first class waits.
    let mut unanswered: std::collections::BTreeSet<u64> = (0..READS).collect();
    while !unanswered.is_empty() {
        let (error, cookie) = client.reply();
        assert!(error == 0 && unanswered.remove(&cookie), "{cookie}");
        client.0.read_exact(&mut payload).expect("the data follows");
    }
    asking.join().expect("every request was taken");
    // What is beyond its share is done in parts.
    assert!(core.stats().requests >= READS);
    client.request(DISC, 0, 0, 0);
    all_pages_come_back(&core);
}

// Bug: nbdcopy of an image with holes hung. Cause: a volume is asked about long zeroes part by part; the next part was
// there when the one before was answered, but a connection was attended to only if it had something to read or to send.
// Fix: a connection whose session has requests stands in line.
#[test]
fn trims_and_zeroes_in_several_parts_end() {
    const LONG: usize = 100 << 20;
    let (core, address) = start_with(small(), LONG);
    let mut client = Client::new(address);
    for command in [TRIM, WRITE_ZEROES] {
        client.request(WRITE, 1, LONG as u64 - 4096, 4096);
        client.give(&[7; 4096]);
        assert_eq!(client.reply(), (0, 1));
        client.request(command, 2, 4096, LONG as u32 - 4096);
        assert_eq!(client.reply(), (0, 2), "command {command}");
        client.request(READ, 3, LONG as u64 - 4096, 4096);
        assert_eq!(client.reply(), (0, 3));
        assert_eq!(client.take::<4096>(), [0; 4096]);
    }
    assert_eq!(
        core.stats().requests,
        2 * (1 + 4 + 1),
        "the range touches four times 32 MiB"
    );
}

// Bug: no client was served, new ones included, while sixteen asked for 8 MiB each and did not read. Cause: one bound for
// the payload of all, first come, first served. Fix: half of it is reserved, in equal parts.
#[test]
fn clients_that_never_read_do_not_keep_others_from_being_served() {
    let (core, address) = start(CoreConfig {
        target: Config {
            pool_pages: 4096,
            connections_max: 50,
            ..small().target
        },
        ..small()
    });
    let deaf: Vec<Client> = (0..40)
        .map(|_| {
            let mut client = Client::new(address);
            for cookie in 0..100 {
                client.request(READ, cookie, 0, 64 << 10);
            }
            client
        })
        .collect();
    let mut good = Client::new(address);
    for round in 0..100u64 {
        let data = [round as u8; 8192];
        good.request(WRITE, round, round * 8192, 8192);
        good.give(&data);
        assert_eq!(good.reply(), (0, round));
        good.request(READ, round, round * 8192, 8192);
        assert_eq!(good.reply(), (0, round));
        assert_eq!(good.take::<8192>(), data);
    }
    drop(deaf);
    while core.stats().clients_closed < 40 {
        std::thread::yield_now();
    }
    good.request(READ, 1, 0, 4 << 20);
    assert_eq!(good.reply(), (0, 1), "what was shared is free again");
}

// Bug: two clients that sent the header of a long write and no more, or did not read, kept everybody's large requests
// waiting for ever. Cause: the memory of both was theirs until they went. Fix: who stands still while others wait is cut.
#[test]
fn clients_that_stand_still_lose_what_others_wait_for() {
    let (core, address) = start(CoreConfig {
        target: Config {
            pool_pages: 4096,
            connections_max: 50,
            ..small().target
        },
        ..small()
    });
    for is_writer in [true, false] {
        let idle: Vec<Client> = (0..2)
            .map(|_| {
                let mut client = Client::new(address);
                if is_writer {
                    client.request(WRITE, 1, 0, 4 << 20);
                    client.give(&[1; 4096]);
                }
                for cookie in 0..100 {
                    client.request(READ, cookie, 0, 1 << 20);
                }
                client
            })
            .collect();
        let (closed, cut) = (core.stats().clients_closed, core.stats().clients_cut);
        let mut good = Client::new(address);
        let data: Vec<u8> = (0..4 << 20).map(|at: u32| (at / 512 * 7 + at) as u8).collect();
        let mut read = vec![0; data.len()];
        // In parts at first, and then with what the idle ones had.
        while core.stats().clients_cut == cut {
            good.request(WRITE, 1, 0, data.len() as u32);
            good.give(&data);
            assert_eq!(good.reply(), (0, 1));
            good.request(READ, 2, 0, data.len() as u32);
            assert_eq!(good.reply(), (0, 2));
            good.0.read_exact(&mut read).expect("the data follows");
            assert!(read == data);
        }
        drop(idle);
        drop(good);
        while core.stats().clients_closed < closed + 3 {
            std::thread::yield_now();
        }
        all_pages_come_back(&core);
    }
    assert!(
        core.stats().clients_cut >= 2,
        "somebody was in the way in both rounds"
    );
}

// Bug: a client that read a little now and then kept its memory for ever. Cause: whenever its socket took something again,
// the client was no holder for a moment, and its time began anew. Fix: its time goes on while it has answers to read.
#[test]
fn clients_that_read_too_little_lose_what_others_wait_for() {
    const LONG: usize = 32 << 20;
    let config = CoreConfig {
        target: Config {
            pool_pages: 1 << 16,
            connections_max: 50,
            ..small().target
        },
        ..small()
    };
    let (core, address) = start_with(config, LONG);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut client = Client::new(address);
            for cookie in 0..100 {
                client.request(READ, cookie, 0, 1 << 20);
            }
            // Before that it may not hold all that is shared.
            let mut proof = vec![0; 2 * PROOF_BYTES as usize];
            client.0.read_exact(&mut proof).expect("it is answered");
            let is_over = &is_over;
            // A quarter of the 64 MiB that it holds is 3.2 MiB a second.
            scope.spawn(move || {
                let mut some = vec![0; 256 << 10];
                while !is_over.load(Relaxed) && client.0.read_exact(&mut some).is_ok() {
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
        }
        let mut good = Client::new(address);
        // More than the others ever leave it.
        let mut read = vec![0; LONG];
        let began = os::now();
        while core.stats().clients_cut == 0 && os::now().since(began) < 3 * HOLD_TIME {
            good.request(READ, 1, 0, read.len() as u32);
            assert_eq!(good.reply(), (0, 1));
            good.0.read_exact(&mut read).expect("the data follows");
        }
        is_over.store(true, Relaxed);
    });
    assert!(core.stats().clients_cut > 0);
}

#[test]
fn more_clients_than_pages_all_get_their_turn() {
    // Twenty requests of 512 KiB at once do not fit 1000 pages: each waits until there is room.
    let (core, address) = start(CoreConfig {
        target: Config {
            pool_pages: 1000,
            ..small().target
        },
        ..small()
    });
    std::thread::scope(|scope| {
        for number in 0..20u64 {
            scope.spawn(move || {
                let mut client = Client::new(address);
                let data = vec![number as u8; 512 << 10];
                for round in 0..8 {
                    client.request(WRITE, round, number * (512 << 10), data.len() as u32);
                    client.give(&data);
                    assert_eq!(client.reply(), (0, round));
                }
                client.request(READ, 9, number * (512 << 10), data.len() as u32);
                assert_eq!(client.reply(), (0, 9));
                let mut read = vec![0; data.len()];
                client.0.read_exact(&mut read).expect("the data follows");
                assert!(read == data);
            });
        }
    });
    all_pages_come_back(&core);
    assert_eq!(core.stats().clients_accepted, 20);
}

#[test]
fn one_connection_too_many_is_closed_and_a_closed_one_makes_room() {
    let (core, address) = start(CoreConfig {
        target: Config {
            connections_max: 2,
            ..small().target
        },
        ..small()
    });
    let (first, _second) = (Client::new(address), Client::new(address));
    let mut third = TcpStream::connect(address).expect("the backlog takes it");
    assert!(matches!(third.read(&mut [0; 1]), Ok(0) | Err(_)));
    while core.stats().clients_refused < 1 {
        std::thread::yield_now();
    }
    drop(first);
    while core.stats().clients_closed < 1 {
        std::thread::yield_now();
    }
    Client::new(address);
}

// Bug: silent clients of one listener kept new clients of every listener out. Cause: one limit, first come, first served.
// Fix: each listener has a part of it for itself.
#[test]
fn silent_clients_of_one_listener_leave_the_other_its_part() {
    let gateway = spec(None, &[ANY_TCP, ANY_TCP], |site| {
        MemoryGateway::new(site.pool, VOLUME_BYTES)
    });
    let config = CoreConfig {
        target: Config {
            connections_max: 32,
            ..small().target
        },
        ..small()
    };
    let core = start_core(config, vec![gateway]).expect("loopback is there");
    let [crowded, other] = core.listening(0, wire::nbd::NAME)[..] else {
        panic!("two listeners were asked for");
    };
    let silent: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(crowded).expect("the backlog takes it"))
        .collect();
    while core.stats().clients_accepted + core.stats().clients_refused < 40 {
        std::thread::yield_now();
    }
    let mut client = Client::new(other);
    client.request(READ, 7, 0, 512);
    assert_eq!(client.reply(), (0, 7));
    drop(silent);
}

#[test]
fn a_client_that_vanishes_gives_back_every_page() {
    // A client that stands still, as on a busy machine, gets no more than its reserve: 1 MiB here.
    let mut config = small();
    config.target.connections_max = 4;
    let (core, address) = start(config);
    core.call(0, |host, _| cast::<MemoryGateway>(host).holds = true)
        .expect("a healthy core");
    let mut client = Client::new(address);
    for cookie in 0..6 {
        client.request(WRITE, cookie, 0, 128 << 10);
        client.give(&vec![1; 64 << 10]);
        if cookie == 2 {
            std::thread::sleep(Duration::from_millis(150));
        }
        client.give(&vec![1; 64 << 10]);
    }
    // And half a write on top.
    client.request(WRITE, 6, 0, 128 << 10);
    client.give(&vec![1; 50_000]);
    while core.call(0, |host, _| cast::<MemoryGateway>(host).held()) != Ok(6) {}
    pages(&core, |available, capacity| available + 7 * 32 == capacity);
    drop(client);
    while core.stats().clients_closed < 1 {
        std::thread::yield_now();
    }
    // The requests are the host's now; their answers find nobody.
    core.call(0, |host, _| cast::<MemoryGateway>(host).release())
        .expect("a healthy core");
    all_pages_come_back(&core);
    assert_eq!(core.stats().replies_late, 6);
}

// Bug: a rack that was told to stop did not stop cleanly. Cause: the flush that it asks its gateway for itself was looked
// up among the clients' requests when it was answered. Fix: answers to nobody are dropped.
#[test]
fn the_answer_to_a_request_of_a_job_is_dropped() {
    let (core, address) = start(small());
    let mut client = Client::new(address);
    core.call(0, |host, now| {
        cast::<MemoryGateway>(host).handle(
            now,
            Input::Request(BlockRequest {
                client: NOBODY,
                tag: 0,
                volume: VolumeId(1),
                op: BlockOp::Flush,
                range: base::SectorRange::EMPTY,
                fua: false,
                bulk: false,
                pages: Pages::new(),
            }),
        );
    })
    .expect("a healthy core");
    client.request(WRITE, 1, 0, PAGE_BYTES as u32);
    client.give(&[7; PAGE_BYTES]);
    assert_eq!(client.reply(), (0, 1));
    assert_eq!((core.stats().requests, core.stats().replies), (1, 1));
}

#[test]
fn a_stopping_core_answers_what_it_took_and_refuses_the_rest() {
    let (core, address) = start(CoreConfig {
        drain: base::Duration::from_secs(60),
        ..small()
    });
    core.call(0, |host, _| cast::<MemoryGateway>(host).holds = true)
        .expect("a healthy core");
    let mut client = Client::new(address);
    client.request(READ, 1, 0, PAGE_BYTES as u32);
    while core.call(0, |host, _| cast::<MemoryGateway>(host).held()) != Ok(1) {}
    let stopping = std::thread::spawn(move || {
        // Its answers come only after the stop was asked for: the release below is in the same queue before it.
        core.call(0, |host, _| cast::<MemoryGateway>(host).release())
            .expect("a healthy core");
        core.stop()
    });
    assert_eq!(client.reply(), (0, 1));
    client.take::<PAGE_BYTES>();
    assert_eq!(stopping.join().expect("no panic"), Ok(()));
    assert_eq!(
        client.0.read(&mut [0; 1]).ok(),
        Some(0),
        "the connection is closed"
    );
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_stream_out_of_step_is_cut_and_others_go_on() {
    let (core, address) = start(small());
    let (mut good, mut bad) = (Client::new(address), Client::new(address));
    bad.give(&[0xff; 28]);
    assert!(matches!(bad.0.read(&mut [0; 1]), Ok(0) | Err(_)));
    good.request(READ, 5, 512, 512);
    assert_eq!(good.reply(), (0, 5));
    assert_eq!(good.take::<512>(), [0; 512]);
    core.call(0, |_, _| ()).expect("a healthy core");
    assert_eq!(core.stats().clients_closed, 1);
}
