//! Connections that move between the cores of a target, over NBD and NVMe/TCP: by themselves when one core is busy and
//! another is not, and again and again while everything else goes on.
#![allow(clippy::disallowed_methods, reason = "clients are threads of their own")]

use crate::common::nbd::{self, Client};
use crate::common::nvme::{Queue, Work, connect, connect_as};
use crate::common::{ANY_TCP, memory_and_file, small};
use base::{Rng, VolumeId};
use blockswitch::Policy;
use host::target::Config;
use os::now;
use runtime::{
    CoreConfig, CoreHandle, ImageOpen, Listen, LocalVolume, NvmeTarget, Stats, TargetSpec, start_target,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, yield_now};
use std::time::Duration;
use wire::nbd::Nbd;
use wire::nvme::proto::{Sqe, Status, admin as admin_command, event, feature, io as io_command};
use wire::nvme::{Access, Nvme, Subsystem, Target, TargetOptions};

const BYTES: u64 = 16 << 20;
/// What one client writes in.
const REGION: u64 = 2 << 20;

struct Rig {
    cores: Vec<CoreHandle>,
    nbd: SocketAddr,
    nvme: SocketAddr,
    target: Arc<NvmeTarget>,
}

impl Rig {
    fn start(volumes: Vec<LocalVolume>, cores: usize) -> Self {
        Self::with(Policy::Switchyard, volumes, cores)
    }

    fn with(policy: Policy, volumes: Vec<LocalVolume>, cores: usize) -> Self {
        let mut target = Target::new(TargetOptions::default());
        for (volume, id) in volumes.iter().zip(0..) {
            let export = volume.export();
            let subsystem = Subsystem {
                reservable: true,
                ..Subsystem::new(&export.name, VolumeId(id), export.size_bytes, [id as u8 + 1; 16])
            };
            target.add(subsystem).expect("a good name");
        }
        let target = NvmeTarget::new(target);
        let spec = TargetSpec {
            volumes,
            listen: vec![
                Listen::tcp(ANY_TCP, Nbd::beside(target.clone())),
                Listen::tcp(ANY_TCP, Nvme::new(target.clone())),
            ],
        };
        let config = CoreConfig {
            target: Config {
                connections_max: 32,
                pool_pages: 4096,
                ..Config::of(policy)
            },
            ..small()
        };
        let cores = start_target(vec![config; cores], spec).expect("a target");
        Self {
            nbd: cores[0].target_listening(wire::nbd::NAME)[0],
            nvme: cores[0].target_listening(wire::nvme::NAME)[0],
            cores,
            target,
        }
    }

    fn memory(cores: usize) -> Self {
        Self::start(vec![LocalVolume::memory("data", BYTES).expect("memory")], cores)
    }

    fn sum(&self, of: impl Fn(&Stats) -> u64) -> u64 {
        self.cores.iter().map(|core| of(&core.stats())).sum()
    }

    /// Connections on a core, those on their way aside.
    fn connections(&self, core: usize) -> i64 {
        let stats = self.cores[core].stats();
        let came = stats.clients_accepted + stats.clients_moved_in;
        came as i64 - (stats.clients_moved_out + stats.clients_closed) as i64
    }

    /// Brings every connection to the first core.
    fn gather(&self, connections: i64) {
        while self.connections(0) < connections {
            for core in &self.cores[1..] {
                core.move_connections(0).expect("a healthy core");
            }
            yield_now();
        }
    }

    /// When all clients have gone, nothing of them is left.
    fn leaves_nothing(self) {
        wait(|| self.sum(|stats| stats.clients_closed) == self.sum(|stats| stats.clients_accepted));
        wait(|| self.sum(|stats| stats.pages_held) == 0);
        assert_eq!(
            self.sum(|stats| stats.clients_moved_out),
            self.sum(|stats| stats.clients_moved_in)
        );
        for core in self.cores {
            core.stop().expect("a healthy core");
        }
    }
}

/// A test that comes to nothing fails after this time. A medium that answers nothing for its limit is given up, and then a client that
/// others wait for may be gone.
const PATIENCE: Duration = Duration::from_secs(240);

fn wait(mut until: impl FnMut() -> bool) {
    let since = now();
    while !until() {
        assert!(now().since(since) < PATIENCE, "it does not come");
        yield_now();
    }
}

enum Op {
    Read(u64, u32),
    Write(u64, Vec<u8>),
    Flush,
    Trim(u64, u32),
    Zeroes(u64, u32),
}

/// A connection over which several requests run together.
trait Disk: Send {
    /// Gives back the data of each. An error when the target ends the connection, or refuses because it stops.
    fn run(&mut self, batch: Vec<Op>) -> io::Result<Vec<Vec<u8>>>;
}

impl Disk for Client {
    fn run(&mut self, batch: Vec<Op>) -> io::Result<Vec<Vec<u8>>> {
        let mut to = Client(self.0.try_clone()?);
        thread::scope(|scope| {
            let batch = &batch;
            scope.spawn(move || {
                for (op, cookie) in batch.iter().zip(0..) {
                    let (command, offset, length) = match op {
                        Op::Read(offset, length) => (nbd::READ, *offset, *length),
                        Op::Write(offset, data) => (nbd::WRITE, *offset, data.len() as u32),
                        Op::Flush => (nbd::FLUSH, 0, 0),
                        Op::Trim(offset, length) => (nbd::TRIM, *offset, *length),
                        Op::Zeroes(offset, length) => (nbd::WRITE_ZEROES, *offset, *length),
                    };
                    let mut bytes = nbd::header(command, cookie, offset, length);
                    if let Op::Write(_, data) = op {
                        bytes.extend(data);
                    }
                    // A target that has stopped does not read: the other side sees it.
                    if to.0.write_all(&bytes).is_err() {
                        return;
                    }
                }
            });
            let mut answers = vec![None; batch.len()];
            for _ in batch {
                let mut head = [0; 16];
                self.0.read_exact(&mut head)?;
                let (error, cookie) = nbd::parse(&head);
                if error == 108 {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
                assert_eq!(error, 0);
                let mut data = match batch[cookie as usize] {
                    Op::Read(_, length) => vec![0; length as usize],
                    _ => Vec::new(),
                };
                self.0.read_exact(&mut data)?;
                let answer = answers[cookie as usize].replace(data);
                assert!(answer.is_none(), "one answer to each request");
            }
            Ok(answers.into_iter().flatten().collect())
        })
    }
}

impl Disk for (Queue, Queue) {
    fn run(&mut self, batch: Vec<Op>) -> io::Result<Vec<Vec<u8>>> {
        let commands = batch.into_iter().map(|op| {
            let ((sqe, data), payload) = match op {
                Op::Read(offset, length) => (Sqe::read(offset, length), Vec::new()),
                Op::Write(offset, data) => (Sqe::write(offset, data.len() as u32, false), data),
                Op::Flush => (Sqe::flush(), Vec::new()),
                Op::Trim(offset, length) => (Sqe::write_zeroes(offset, length, true), Vec::new()),
                Op::Zeroes(offset, length) => (Sqe::write_zeroes(offset, length, false), Vec::new()),
            };
            (sqe, data, payload)
        });
        let commands: Vec<_> = commands.collect();
        let sent: Vec<_> = commands.iter().map(|command| command.2.len()).collect();
        let answers = self.1.try_run(commands)?;
        // What was sent is no answer.
        let answers = answers.into_iter().zip(sent).map(|(data, sent)| match sent {
            0 => data,
            _ => Vec::new(),
        });
        Ok(answers.collect())
    }
}

/// A connection of a kind: NBD, NVMe, NVMe with digests.
fn open(rig: &Rig, name: &str, kind: usize) -> Box<dyn Disk> {
    let patience = Some(Duration::from_secs(60));
    if kind == 0 {
        let client = Client::of(rig.nbd, name);
        client.0.set_read_timeout(patience).expect("a socket");
        return Box::new(client);
    }
    let (admin, mut queues) = connect(rig.nvme, name, 1, kind == 2);
    let queue = queues.remove(0);
    queue.stream.set_read_timeout(patience).expect("a socket");
    Box::new((admin, queue))
}

/// A client with a region of its own, and what that holds.
struct Worker {
    disk: Box<dyn Disk>,
    base: u64,
    model: Vec<u8>,
    random: Rng,
}

impl Worker {
    fn new(disk: Box<dyn Disk>, number: u64) -> Self {
        Self {
            disk,
            base: number * REGION,
            model: vec![0; REGION as usize],
            random: Rng::new(number),
        }
    }

    /// A dozen requests at once, of every kind, beside each other.
    fn round(&mut self) {
        let mut batch = vec![];
        let mut expected = vec![];
        let mut at = self.random.below(64) * 512;
        while batch.len() < 12 {
            let length = self.random.between(1, 400) * 512;
            if at + length > REGION {
                break;
            }
            let held = &mut self.model[at as usize..][..length as usize];
            let (offset, bytes) = (self.base + at, length as u32);
            let mut data = Vec::new();
            batch.push(match self.random.below(10) {
                0..4 => {
                    let fill = self.random.next_u64();
                    let stamp = |i: usize| (fill.wrapping_mul(i as u64 / 512 + 1) >> 32) as u8;
                    held.iter_mut().enumerate().for_each(|(i, byte)| *byte = stamp(i));
                    Op::Write(offset, held.to_vec())
                }
                4..8 => {
                    data = held.to_vec();
                    Op::Read(offset, bytes)
                }
                8 => {
                    held.fill(0);
                    Op::Trim(offset, bytes)
                }
                _ => {
                    held.fill(0);
                    Op::Zeroes(offset, bytes)
                }
            });
            expected.push(data);
            at += length + self.random.below(16) * 512;
        }
        batch.push(Op::Flush);
        expected.push(Vec::new());
        let answers = self.disk.run(batch).expect("an open connection");
        assert!(answers == expected, "what was written is read");
    }

    fn verify(&mut self) {
        for at in (0..REGION).step_by(128 << 10) {
            let read = self.disk.run(vec![Op::Read(self.base + at, 128 << 10)]);
            let read = read.expect("an open connection").remove(0);
            assert!(read == self.model[at as usize..][..128 << 10], "at {at}");
        }
    }

    /// Bulk: sixteen large reads or writes at once.
    fn bulk(&mut self) {
        const PIECE: usize = 128 << 10;
        let pieces = (0..16u64).map(|i| (i * PIECE as u64, i as usize * PIECE));
        let writes = self.random.chance(0.3);
        let fill = self.random.next_u64() as u8;
        let batch = pieces.clone().map(|(at, from)| {
            let offset = self.base + at;
            if writes {
                let held = &mut self.model[from..][..PIECE];
                held.fill(fill.wrapping_add(at as u8));
                Op::Write(offset, held.to_vec())
            } else {
                Op::Read(offset, PIECE as u32)
            }
        });
        let batch = batch.collect();
        let answers = self.disk.run(batch).expect("an open connection");
        for ((_, from), answer) in pieces.zip(answers) {
            assert!(writes || answer == self.model[from..][..PIECE]);
        }
    }
}

#[test]
fn busy_bulk_connections_of_one_core_end_up_on_two() {
    for kind in [0, 1] {
        let rig = Rig::memory(2);
        let mut workers: Vec<_> = (0..2).map(|i| Worker::new(open(&rig, "data", kind), i)).collect();
        // Admin queues stay where they are: nobody asks them for anything.
        let idle = if kind == 0 { 0 } else { 2 };
        rig.gather(2 + idle);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        worker.bulk();
                    }
                    worker.verify();
                });
            }
            let apart = || [rig.connections(0), rig.connections(1)] == [1 + idle, 1];
            let requests = || rig.sum(|stats| stats.requests);
            let mut since = requests();
            wait(|| {
                // And there they stay.
                if !apart() {
                    since = requests();
                }
                requests() >= since + 4000
            });
            done.store(true, Relaxed);
        });
        assert!(rig.sum(|stats| stats.moves_given_up) < 10);
        drop(workers);
        rig.leaves_nothing();
    }
}

#[test]
fn bulk_leaves_the_core_of_small_requests_where_the_policy_says_so() {
    for policy in Policy::ALL {
        let moves = matches!(policy, Policy::BlkSwitch | Policy::Switchyard);
        let volume = LocalVolume::memory("data", BYTES).expect("memory");
        let rig = Rig::with(policy, vec![volume], 2);
        let mut bulk = Worker::new(open(&rig, "data", 0), 0);
        let mut small = open(&rig, "data", 0);
        rig.gather(2);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    bulk.bulk();
                }
            });
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    small
                        .run(vec![Op::Read(REGION, 4096)])
                        .expect("an open connection");
                }
            });
            let requests = || rig.sum(|stats| stats.requests);
            let before = requests();
            if moves {
                wait(|| rig.connections(0) == 1 && rig.connections(1) == 1);
            } else {
                wait(|| requests() >= before + 5000);
                assert_eq!(rig.cores[0].stats().clients_moved_out, 0, "{policy}");
            }
            done.store(true, Relaxed);
        });
        drop((bulk, small));
        rig.leaves_nothing();
    }
}

/// Moves everything from core to core, until told not to.
fn stir(rig: &Rig, done: &AtomicBool) {
    let mut random = Rng::new(7);
    while !done.load(Relaxed) {
        let count = rig.cores.len() as u64;
        let (from, to) = (random.below(count), random.below(count));
        rig.cores[from as usize]
            .move_connections(to as usize)
            .expect("a healthy core");
        thread::sleep(Duration::from_micros(random.below(1000)));
    }
}

#[test]
fn nothing_is_lost_or_done_twice_while_everything_moves_all_the_time() {
    const ROUNDS: u64 = 60;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let rig = Rig::start(memory_and_file(directory.path(), BYTES), 3);
    // The page of zeros that each core keeps for files.
    wait(|| rig.sum(|stats| stats.pages_held) == 3);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| stir(&rig, &done));
        let worker = |number: usize| {
            let rig = &rig;
            scope.spawn(move || {
                let name = ["memory", "file"][number / 3];
                let kind = number % 3;
                let mut worker = Worker::new(open(rig, name, kind), number as u64);
                let mut rounds = 0;
                while rounds < ROUNDS || rig.sum(|stats| stats.clients_moved_in) < 500 {
                    worker.round();
                    rounds += 1;
                    if rounds % 16 == 0 {
                        worker.disk = open(rig, name, kind);
                    }
                }
                worker.verify();
            })
        };
        let workers: Vec<_> = (0..6).map(worker).collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Relaxed);
        assert!(ends.iter().all(Result::is_ok), "no panic");
    });
    wait(|| rig.sum(|stats| stats.clients_closed) == rig.sum(|stats| stats.clients_accepted));
    wait(|| rig.sum(|stats| stats.pages_held) == 3);
    assert_eq!(
        rig.sum(|stats| stats.requests),
        rig.sum(|stats| stats.replies),
        "every request is answered, where it was taken"
    );
    assert_eq!(rig.sum(|stats| stats.replies_late), 0);
    for core in rig.cores {
        core.stop().expect("a healthy core");
    }
}

/// Reservation Register, Acquire or Release with its keys.
fn reserve(queue: &mut Queue, opcode: u8, fields: u32, keys: [u64; 2]) -> Status {
    let mut bytes = keys.map(u64::to_le_bytes).concat();
    bytes.truncate(if opcode == io_command::RESERVATION_RELEASE {
        8
    } else {
        16
    });
    queue.try_one(Sqe::reservation(opcode, fields), bytes).0
}

/// Key of the host that preempts, and of the one that is preempted.
const TAKER: u64 = 1;
const OTHER: u64 = 2;
const WRITE_EXCLUSIVE: u32 = 1 << 8;
/// What both write.
const CONTESTED: u32 = 256 << 10;

/// Registers, reserves and writes, as far as it may, several writes at once.
fn contend(queue: &mut Queue, random: &mut Rng) {
    use io_command::{RESERVATION_ACQUIRE, RESERVATION_REGISTER};
    let known = |status: Status| {
        let statuses = [Status::SUCCESS, Status::RESERVATION_CONFLICT, Status::PREEMPTED];
        assert!(statuses.contains(&status.code()), "{status:?}");
    };
    known(reserve(queue, RESERVATION_REGISTER, 0, [0, OTHER]));
    known(reserve(queue, RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [OTHER, 0]));
    let mut work = Work::default();
    let count = random.between(8, 24) as usize;
    for _ in 0..count {
        let bytes = 32 << 10 << random.below(3) as u32;
        let offset = random.below(u64::from((CONTESTED - bytes) / 512)) * 512;
        let (sqe, data) = Sqe::write(offset, bytes, false);
        work.next = vec![0xbb; bytes as usize];
        let cid = queue.host.submit(sqe, data, &mut work);
        work.data
            .insert(cid.expect("the queue has room"), vec![0xbb; bytes as usize]);
    }
    while work.done.len() < count {
        queue.turn(&mut work);
    }
    work.done.values().for_each(|&status| known(Status(status)));
}

/// Preempts the other host; true if the reservation is its own then. Until it gives it back nobody else writes: nothing
/// that was under way, nothing that comes later, whatever core they are on.
fn preempt(queue: &mut Queue, others: &mut Queue, nbd: &mut Client, round: u8) -> bool {
    use io_command::{RESERVATION_ACQUIRE, RESERVATION_REGISTER, RESERVATION_RELEASE};
    reserve(queue, RESERVATION_REGISTER, 0, [0, TAKER]);
    let taken = reserve(queue, RESERVATION_ACQUIRE, 2 | WRITE_EXCLUSIVE, [TAKER, OTHER]);
    let ours = vec![round | 1; CONTESTED as usize];
    queue.try_one(Sqe::write(0, CONTESTED, false), ours.clone());
    let report = queue.one(Sqe::reservation_report(192), Vec::new());
    let holders = report[64..].chunks(64).filter(|entry| entry[2] == 1);
    let mine = holders.into_iter().any(|entry| entry[8] == TAKER as u8);
    if taken == Status::SUCCESS && mine {
        let (sqe, data) = Sqe::write(0, 4096, false);
        let refused = others.try_one((sqe, data), vec![0xcc; 4096]).0;
        assert_eq!(refused, Status::RESERVATION_CONFLICT.dnr());
        nbd.request(nbd::WRITE, 1, 0, 512);
        nbd.give(&[0xdd; 512]);
        assert_eq!(nbd.reply(), (1, 1), "EPERM");
        for _ in 0..3 {
            assert!(queue.one(Sqe::read(0, CONTESTED), Vec::new()) == ours);
        }
    }
    assert_eq!(
        reserve(queue, RESERVATION_RELEASE, 1, [TAKER, 0]),
        Status::SUCCESS
    );
    taken == Status::SUCCESS && mine
}

#[test]
fn a_reservation_holds_on_every_core_while_everything_moves() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let rig = Rig::start(memory_and_file(directory.path(), BYTES), 3);
    let (done, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| stir(&rig, &done));
        for name in ["memory", "file"] {
            let (rig, ended) = (&rig, &ended);
            for seed in 0..2 {
                scope.spawn(move || {
                    let (_admin, mut queues) =
                        connect_as("nqn.2026-11.io.switchyard:b", rig.nvme, name, 1, false);
                    let mut random = Rng::new(seed);
                    while !ended.load(Relaxed) {
                        contend(&mut queues[0], &mut random);
                    }
                });
            }
        }
        let takers = ["memory", "file"].map(|name| {
            let rig = &rig;
            scope.spawn(move || {
                let (_admin, mut queues) =
                    connect_as("nqn.2026-11.io.switchyard:a", rig.nvme, name, 1, false);
                let (_others, mut others) =
                    connect_as("nqn.2026-11.io.switchyard:b", rig.nvme, name, 1, false);
                let mut nbd = Client::of(rig.nbd, name);
                let (mut rounds, mut held) = (0u8, 0);
                let since = now();
                while held < 60 || rig.sum(|stats| stats.clients_moved_in) < 500 {
                    assert!(now().since(since) < PATIENCE, "{held} reservations were held");
                    rounds = rounds.wrapping_add(2) & 0x7f;
                    held += u64::from(preempt(&mut queues[0], &mut others[0], &mut nbd, rounds));
                }
            })
        });
        let ends = takers.map(|taker| taker.join());
        ended.store(true, Relaxed);
        done.store(true, Relaxed);
        assert!(ends.iter().all(Result::is_ok), "no panic");
    });
    wait(|| rig.sum(|stats| stats.clients_closed) == rig.sum(|stats| stats.clients_accepted));
    for core in rig.cores {
        core.stop().expect("a healthy core");
    }
}

#[test]
fn fio_verifies_what_it_wrote_while_it_moves() {
    let rig = Rig::memory(3);
    let done = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| stir(&rig, &done));
        let output = Command::new("fio")
            .args(["--name=verify", "--ioengine=nbd", "--thread", "--rw=randrw"])
            .args([
                "--bsrange=4k-256k",
                "--verify=crc32c",
                "--iodepth=32",
                "--fsync=64",
            ])
            .args(["--size=8m", "--loops=8", "--numjobs=2", "--offset_increment=8m"])
            .arg(format!("--uri=nbd://{}/data", rig.nbd))
            .output();
        done.store(true, Relaxed);
        output
    });
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return eprintln!("skipped: fio is not installed");
        }
        Err(error) => panic!("fio: {error}"),
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    if text.contains("engine nbd not loadable") {
        return eprintln!("skipped: fio has no nbd engine");
    }
    assert!(output.status.success(), "{text}");
    assert!(rig.sum(|stats| stats.clients_moved_in) > 0);
    rig.leaves_nothing();
}

#[test]
fn a_client_that_vanishes_while_it_moves_leaves_nothing_behind() {
    let rig = Rig::memory(2);
    let mut random = Rng::new(3);
    for round in 0..200 {
        let moved = || rig.sum(|stats| stats.clients_moved_out + stats.moves_given_up);
        let before = moved();
        let mut client = Client::new(rig.nbd);
        let (admin, mut queues) = connect(rig.nvme, "data", 1, round % 2 == 0);
        for cookie in 0..4 {
            client.request(nbd::READ, cookie, cookie << 20, 1 << 20);
            client.request(nbd::WRITE, cookie, 0, 4096);
            client.give(&[1; 4096]);
            let (sqe, data) = Sqe::read(cookie << 20, 256 << 10);
            let host = &mut queues[0].host;
            host.submit(sqe, data, &mut Work::default())
                .expect("there is room");
        }
        let Queue { stream, host } = &mut queues[0];
        stream.write_all(host.outgoing()).expect("an open connection");
        // Half a write, half the time.
        if random.chance(0.5) {
            client.request(nbd::WRITE, 9, 0, 128 << 10);
            client.give(&[1; 50_000]);
        }
        for (from, to) in [(0, 1), (1, 0)] {
            rig.cores[from].move_connections(to).expect("a healthy core");
        }
        match random.below(3) {
            0 => {}
            1 => yield_now(),
            _ => wait(|| moved() > before),
        }
        drop((client, queues));
        drop(admin);
    }
    assert!(rig.sum(|stats| stats.clients_moved_in) > 0);
    let mut client = open(&rig, "data", 0);
    client.run(vec![Op::Read(0, 4096)]).expect("it goes on");
    drop(client);
    rig.leaves_nothing();
}

#[test]
fn a_move_that_cannot_end_in_time_is_given_up_and_the_client_goes_on() {
    let rig = Rig::memory(2);
    let mut client = Client::new(rig.nbd);
    client.request(nbd::WRITE, 1, 4096, 64 << 10);
    client.give(&[7; 1000]);
    wait(|| rig.cores[0].stats().client_bytes_in > 1000);
    rig.cores[0].move_connections(1).expect("a healthy core");
    wait(|| rig.cores[0].stats().moves_given_up == 1);
    client.give(&vec![7; (64 << 10) - 1000]);
    assert_eq!(client.reply(), (0, 1));
    // Between two requests, and in the middle of a header, it moves.
    let header = nbd::header(nbd::READ, 2, 4096, 512);
    client.give(&header[..20]);
    rig.cores[0].move_connections(1).expect("a healthy core");
    wait(|| rig.cores[1].stats().clients_moved_in == 1);
    client.give(&header[20..]);
    assert_eq!(client.reply(), (0, 2));
    assert_eq!(client.take::<512>(), [7; 512]);
    assert_eq!([rig.connections(0), rig.connections(1)], [0, 1]);
    // A core that does not exist takes nobody.
    rig.cores[1].move_connections(9).expect("a healthy core");
    client.request(nbd::READ, 3, 4096, 512);
    assert_eq!(client.reply(), (0, 3));
    drop(client);
    rig.leaves_nothing();
}

#[test]
fn an_admin_queue_that_moved_keeps_its_controller_and_its_event_requests() {
    let rig = Rig::memory(2);
    let (mut admin, mut queues) = connect(rig.nvme, "data", 1, true);
    let (configure, data) = Sqe::set_feature(feature::ASYNC_EVENTS, event::MASK_NAMESPACE);
    admin.one((configure, data), Vec::new());
    let mut work = Work::default();
    let request = Sqe::new(admin_command::ASYNC_EVENT);
    let event = admin
        .host
        .submit(request, wire::nvme::host::Data::None, &mut work)
        .expect("there is room");
    let (identify, data) = Sqe::identify(1, 0);
    admin
        .host
        .submit(identify, data, &mut work)
        .expect("there is room");
    wait(|| {
        admin.turn(&mut work);
        work.done.len() == 1
    });
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        rig.cores[from].move_connections(to).expect("a healthy core");
        wait(|| rig.connections(to) == 2);
    }
    assert!(!work.done.contains_key(&event), "nothing has happened yet");
    rig.target.with(&mut |target| {
        let nqn = "nqn.2026-11.io.switchyard:data";
        target.set_read_only(nqn, true).expect("it is there");
    });
    wait(|| {
        admin.turn(&mut work);
        work.done.contains_key(&event)
    });
    assert_eq!(work.done[&event], 0);
    queues[0].one(Sqe::read(0, 4096), Vec::new());
    drop((admin, queues));
    rig.leaves_nothing();
}

#[test]
fn a_stop_in_the_middle_of_moves_loses_nothing_that_was_answered() {
    for round in 0..12 {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("v");
        let volume =
            LocalVolume::image("data", &path, ImageOpen::Create { bytes: BYTES }).expect("a new file");
        let rig = Rig::start(vec![volume], 3);
        let done = AtomicBool::new(false);
        let answered = [const { AtomicU64::new(0) }; 4];
        let counts = thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|number| {
                    let answered = &answered[number];
                    let mut disk = open(&rig, "data", number % 3);
                    scope.spawn(move || {
                        let mut count = 0u64;
                        loop {
                            let stamp = (count + 1).to_le_bytes().repeat(2048);
                            let write = Op::Write(number as u64 * REGION, stamp);
                            match disk.run(vec![write, Op::Flush]) {
                                Ok(_) => count = answered.fetch_add(1, Relaxed) + 1,
                                Err(_) => return count,
                            }
                        }
                    })
                })
                .collect();
            thread::scope(|scope| {
                scope.spawn(|| stir(&rig, &done));
                wait(|| {
                    let moves = rig.sum(|stats| stats.clients_moved_in);
                    moves >= 20 + round && answered.iter().all(|count| count.load(Relaxed) > 0)
                });
                done.store(true, Relaxed);
            });
            // The moves that were asked for last are still to come when the stop does.
            for (core, to) in [(0, 1), (1, 0), (2, 0)] {
                rig.cores[core].move_connections(to).expect("a healthy core");
            }
            for core in rig.cores {
                core.stop().expect("a healthy core");
            }
            let counts = clients.into_iter().map(|client| client.join().expect("no panic"));
            counts.collect::<Vec<_>>()
        });
        let held = std::fs::read(&path).expect("the file is there");
        for (number, answered) in counts.into_iter().enumerate() {
            let block = &held[number * REGION as usize..][..16 << 10];
            let stamp = u64::from_le_bytes(*block.first_chunk().expect("8 bytes"));
            assert!(
                answered > 0 && (answered..=answered + 1).contains(&stamp),
                "{answered}, {stamp}"
            );
        }
    }
}
