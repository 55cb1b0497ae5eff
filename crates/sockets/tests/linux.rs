//! Streams between these sockets and Linux' own, both ways, over every link and through bad networks. Each side checks each byte
//! of the other.

#[path = "../../nic/tests/common/mod.rs"]
mod common;

use base::Duration;
use common::{enter, ip, veth};
use nic::faults::{Faults, Network};
use nic::{Frames, packet, tap, xdp};
use sockets::{Handle, Options, SocketError, Sockets};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use tcp::addr::{Endpoint, Ip, Mac};
use tcp::api::Rings;
use tcp::config::Config;

const OURS: Ip = Ip::v4([10, 9, 0, 2]);
const LINUX: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PORT: u16 = 700;
/// Longer than anything takes.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// The byte at a place of the stream of a side.
fn byte(side: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8 ^ side as u8
}

fn bytes(side: u64, from: u64, count: usize) -> Vec<u8> {
    (from..from + count as u64).map(|at| byte(side, at)).collect()
}

/// Linux' side of a stream: sends and checks `total` bytes each way at once, and ends its own.
fn linux_side(stream: TcpStream, total: u64) {
    let limit = Some(std::time::Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a limit");
    stream.set_write_timeout(limit).expect("a limit");
    let mut writer = stream.try_clone().expect("a descriptor");
    let sends = thread::Builder::new().spawn(move || {
        let mut at = 0;
        while at < total {
            let part = bytes(1, at, (total - at).min(10_000) as usize);
            writer.write_all(&part).expect("the stream is open");
            at += part.len() as u64;
        }
        writer.shutdown(Shutdown::Write).expect("the stream is open");
    });
    let sends = sends.expect("a thread");
    let (mut reader, mut at, mut part) = (stream, 0, vec![0; 50_000]);
    loop {
        let count = reader.read(&mut part).expect("the stream is open");
        if count == 0 {
            break;
        }
        assert_eq!(part[..count], bytes(2, at, count), "Linux reads what was sent");
        at += count as u64;
    }
    assert_eq!(at, total);
    sends.join().expect("it has sent");
}

/// Our side of streams, all at once.
fn our_side(sockets: &mut Sockets, handles: &[Handle], total: u64) {
    let mut places = vec![(0, 0, false); handles.len()];
    let mut part = vec![0; 50_000];
    loop {
        for (handle, (sent, received, is_ended)) in handles.iter().zip(&mut places) {
            if *sent < total {
                let count = (total - *sent).min(20_000) as usize;
                match sockets.send(*handle, &bytes(2, *sent, count)) {
                    Ok(count) => *sent += count as u64,
                    Err(error) => assert_eq!(error, SocketError::WouldBlock),
                }
                if *sent == total {
                    sockets.shutdown(*handle).expect("it is open");
                }
            }
            while !*is_ended {
                match sockets.receive(*handle, &mut part) {
                    Ok(0) => {
                        *is_ended = true;
                    }
                    Ok(count) => {
                        assert_eq!(part[..count], bytes(1, *received, count), "we read what was sent");
                        *received += count as u64;
                    }
                    Err(error) => {
                        assert_eq!(error, SocketError::WouldBlock);
                        break;
                    }
                }
            }
        }
        if places
            .iter()
            .all(|(sent, _, is_ended)| *sent == total && *is_ended)
        {
            break;
        }
        assert!(sockets.wait(LIMIT).expect("the link is up"), "something comes");
        while sockets.next_ready().is_some() {}
    }
    assert!(
        places
            .iter()
            .all(|(sent, received, _)| (*sent, *received) == (total, total))
    );
}

fn sockets(frames: Box<dyn Frames>, ring: u8) -> Sockets {
    let config = Config {
        time_wait: Duration::from_millis(1),
        ..Config::new(Mac([2, 0, 0, 0, 9, 2]), OURS, 24)
    };
    let options = Options {
        rings: Rings {
            receive: ring,
            transmit: ring,
        },
        ..Options::default()
    };
    Sockets::new(frames, config, options)
}

/// A thread for Linux' side of the next connection.
fn serve(listener: &TcpListener, total: u64) -> JoinHandle<()> {
    let listener = listener.try_clone().expect("a descriptor");
    let serve = move || linux_side(listener.accept().expect("a connection").0, total);
    thread::Builder::new().spawn(serve).expect("a thread")
}

/// Connections both ways, several at once.
fn streams(frames: Box<dyn Frames>, ring: u8, count: usize, total: u64) {
    let mut sockets = sockets(frames, ring);
    let listener = TcpListener::bind((LINUX, PORT)).expect("the port is free");
    let remote = Endpoint {
        ip: Ip::v4(LINUX.octets()),
        port: PORT,
    };
    let threads: Vec<_> = (0..count).map(|_| serve(&listener, total)).collect();
    let handles: Vec<Handle> = (0..count)
        .map(|_| sockets.wait_connect(remote, LIMIT).expect("Linux listens"))
        .collect();
    our_side(&mut sockets, &handles, total);
    finish(&mut sockets, handles, threads);

    let local = Endpoint {
        ip: Ip::ANY,
        port: PORT,
    };
    let listener = sockets.listen(local, 16).expect("the port is free");
    let connect = move || {
        let address = (Ipv4Addr::from(OURS.octets4()), PORT);
        linux_side(TcpStream::connect(address).expect("we listen"), total);
    };
    let threads: Vec<_> = (0..count)
        .map(|_| thread::Builder::new().spawn(connect).expect("a thread"))
        .collect();
    let handles: Vec<Handle> = (0..count)
        .map(|_| sockets.wait_accept(listener, LIMIT).expect("Linux connects"))
        .collect();
    our_side(&mut sockets, &handles, total);
    finish(&mut sockets, handles, threads);
}

fn finish(sockets: &mut Sockets, handles: Vec<Handle>, threads: Vec<JoinHandle<()>>) {
    for handle in handles {
        sockets.close(handle).expect("it is a socket");
    }
    sockets.finish(LIMIT).expect("everything ends");
    for thread in threads {
        thread.join().expect("Linux has read everything");
    }
}

const BAD: Network = Network {
    loss: 0.01,
    duplicate: 0.01,
    delay: Duration::from_micros(300),
    jitter: Duration::from_micros(200),
    cuts: false,
};

fn open_tap() -> Option<Box<dyn Frames>> {
    let frames = match tap::open("tap9", 1) {
        Ok(mut frames) => frames.remove(0),
        Err(error) => {
            eprintln!("skipped: this kernel has no TAP: {error}");
            return None;
        }
    };
    ip("addr add 10.9.0.1/24 dev tap9");
    Some(Box::new(frames))
}

fn open_packet() -> Box<dyn Frames> {
    veth();
    Box::new(packet::open("va", 1).expect("a socket").remove(0))
}

#[test]
fn streams_pass_between_linux_and_tap() {
    if enter()
        && let Some(frames) = open_tap()
    {
        streams(frames, 18, 4, 20 << 20);
    }
}

#[test]
fn streams_pass_between_linux_and_packet() {
    if enter() {
        streams(open_packet(), 18, 4, 20 << 20);
    }
}

#[test]
fn streams_with_small_rings_pass_between_linux_and_packet() {
    if enter() {
        streams(open_packet(), 12, 2, 1 << 20);
    }
}

fn streams_pass_xdp(mode: xdp::Mode) {
    if !enter() {
        return;
    }
    veth();
    // Linux leaves the checksums of a veth out, and cuts no segments for a program behind the driver.
    ip("link set vb gso_max_segs 1");
    let options = xdp::Options {
        mode,
        peer_sends_no_checksums: true,
        ..xdp::Options::default()
    };
    match xdp::open("va", 1, options) {
        Ok(mut frames) => streams(Box::new(frames.remove(0)), 16, 2, 4 << 20),
        Err(error) => eprintln!("skipped: this kernel has no AF_XDP in mode {mode:?}: {error}"),
    }
}

#[test]
fn streams_pass_between_linux_and_xdp_behind_the_driver() {
    streams_pass_xdp(xdp::Mode::Skb);
}

#[test]
fn streams_pass_between_linux_and_xdp_in_the_driver() {
    streams_pass_xdp(xdp::Mode::Native);
}

#[test]
fn streams_pass_a_bad_network_between_linux_and_tap() {
    for seed in 0..2 {
        if enter()
            && let Some(frames) = open_tap()
        {
            streams(Box::new(Faults::new(frames, BAD, seed)), 16, 3, 1 << 20);
        }
    }
}

#[test]
fn streams_pass_a_bad_network_between_linux_and_packet() {
    for seed in 0..2 {
        if enter() {
            let network = Network {
                cuts: seed == 1,
                ..BAD
            };
            streams(
                Box::new(Faults::new(open_packet(), network, seed)),
                17,
                3,
                1 << 20,
            );
        }
    }
}

#[test]
fn nobody_listens_and_nobody_answers() {
    if !enter() {
        return;
    }
    let mut sockets = sockets(open_packet(), 14);
    let at = |ip, port| Endpoint { ip, port };
    let linux = Ip::v4(LINUX.octets());
    let refused = sockets.wait_connect(at(linux, 9), LIMIT);
    assert_eq!(refused, Err(SocketError::Refused));
    let nobody = sockets.wait_connect(at(Ip::v4([10, 9, 0, 77]), 9), LIMIT);
    assert_eq!(nobody, Err(SocketError::Unreachable));
    let elsewhere = sockets.wait_connect(at(Ip::v4([192, 0, 2, 1]), 9), LIMIT);
    assert_eq!(elsewhere, Err(SocketError::Unreachable));
    assert_eq!(sockets.live(), 0);
}
