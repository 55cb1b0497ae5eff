//! Streams over shared memory, between threads that sleep and wake each other, and a peer that does harm.

mod echo;

use base::{Duration, Rng};
use echo::echo;
use nic::shared::{Shape, Vnic, pair};
use nic::{Frames, Written};
use rustix::time::{ClockId, clock_gettime};
use sockets::{Handle, Options, SocketError, Sockets};
use std::thread;
use tcp::addr::{Endpoint, Ip, Mac};
use tcp::config::Config;

const PORT: u16 = 700;
/// Longer than anything takes.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn ip(host: u8) -> Ip {
    Ip::v4([10, 9, 0, host])
}

fn sockets(vnic: Vnic, host: u8, spin: Duration) -> Sockets {
    let config = Config {
        time_wait: Duration::from_millis(1),
        ..Config::new(Mac([2, 0, 0, 0, 9, host]), ip(host), 24)
    };
    let options = Options {
        spin,
        ..Options::default()
    };
    Sockets::new(Box::new(vnic), config, options)
}

fn link() -> (Vnic, Vnic) {
    let (mut one, mut other) = pair(Shape::default(), 1500).expect("there is memory");
    (one.remove(0), other.remove(0))
}

fn at(host: u8) -> Endpoint {
    Endpoint {
        ip: ip(host),
        port: PORT,
    }
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().spawn(work).expect("a thread")
}

/// Each wake counts: nobody spins, and a wake that is lost is a hang.
#[test]
fn threads_that_sleep_after_each_frame_lose_no_wake_and_no_byte() {
    let (one, other) = link();
    let server = spawn(move || {
        let mut sockets = sockets(other, 2, Duration::ZERO);
        let listener = sockets.listen(at(2), 8).expect("the port is free");
        let stream = sockets.wait_accept(listener, LIMIT).expect("somebody connects");
        sockets.set_no_delay(stream, true).expect("it is open");
        echo(&mut sockets, stream);
    });
    let mut sockets = sockets(one, 1, Duration::ZERO);
    let stream = sockets.wait_connect(at(2), LIMIT).expect("somebody listens");
    sockets.set_no_delay(stream, true).expect("it is open");
    let mut rng = Rng::new(7);
    let mut answer = vec![0; 300_000];
    for round in 0..2000u32 {
        let longest = if round % 100 == 0 { 200_000 } else { 200 };
        let length = rng.between(1, longest) as usize;
        let bytes: Vec<u8> = (0..length).map(|at| (at as u32 ^ round) as u8).collect();
        sockets.wait_send(stream, &bytes, LIMIT).expect("the peer reads");
        let mut got = 0;
        while got < length {
            let room = &mut answer[got..];
            got += sockets
                .wait_receive(stream, room, LIMIT)
                .expect("the peer answers");
        }
        assert_eq!(answer[..got], bytes, "round {round}");
    }
    sockets.shutdown(stream).expect("it is open");
    assert_eq!(sockets.wait_receive(stream, &mut answer, LIMIT), Ok(0));
    sockets.close(stream).expect("it is a socket");
    sockets.finish(LIMIT).expect("everything ends");
    server.join().expect("the server has served");
}

#[test]
fn a_wait_without_anything_to_do_takes_no_processor() {
    let (one, _other) = link();
    let mut sockets = sockets(one, 1, Duration::from_micros(30));
    sockets.listen(at(1), 8).expect("the port is free");
    let time = || clock_gettime(ClockId::ThreadCPUTime);
    let before = time();
    let is_ready = sockets.wait(Some(Duration::from_millis(500)));
    assert!(!is_ready.expect("the link is up"));
    let after = time();
    let took_ns = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
    assert!(took_ns < 10_000_000, "{took_ns} ns of 500 ms");
}

#[test]
fn a_peer_that_has_gone_ends_all_waits() {
    let (one, other) = link();
    let server = spawn(move || {
        let mut sockets = sockets(other, 2, Duration::ZERO);
        let listener = sockets.listen(at(2), 8).expect("the port is free");
        sockets.wait_accept(listener, LIMIT).expect("somebody connects");
    });
    let mut sockets = sockets(one, 1, Duration::ZERO);
    let stream = sockets.wait_connect(at(2), LIMIT).expect("somebody listens");
    let end = sockets.wait_receive(stream, &mut [0; 10], None);
    assert_eq!(end, Err(SocketError::Link));
    assert_eq!(sockets.connect(at(2)), Err(SocketError::Link));
    assert!(sockets.poll().is_err());
    server.join().expect("the server has served");
}

/// Bytes that were written before a close arrive, also if the reader comes late.
#[test]
fn a_closed_socket_still_sends_and_a_late_reader_still_reads() {
    let (one, other) = link();
    let (mut one, mut other) = (sockets(one, 1, Duration::ZERO), sockets(other, 2, Duration::ZERO));
    let listener = other.listen(at(2), 8).expect("the port is free");
    let stream = one.connect(at(2)).expect("there is a way");
    let turn = |one: &mut Sockets, other: &mut Sockets| {
        for _ in 0..20 {
            one.poll().expect("the link is up");
            other.poll().expect("the link is up");
        }
    };
    turn(&mut one, &mut other);
    let accepted = other.accept(listener).expect("a connection");
    let sent = vec![9; 100_000];
    assert_eq!(one.send(stream, &sent), Ok(sent.len()));
    one.close(stream).expect("it is a socket");
    assert_eq!(one.send(stream, b"x"), Err(SocketError::Handle));
    turn(&mut one, &mut other);
    other.shutdown(accepted).expect("it is open");
    turn(&mut one, &mut other);
    assert_eq!((one.live(), other.live()), (0, 0), "both ends are done");
    let mut bytes = vec![0; 200_000];
    assert_eq!(other.receive(accepted, &mut bytes), Ok(sent.len()));
    assert_eq!(bytes[..sent.len()], sent);
    assert_eq!(other.receive(accepted, &mut bytes), Ok(0));
}

#[test]
fn a_full_backlog_and_a_closed_listener_reset_connections() {
    let (one, other) = link();
    let (mut one, mut other) = (sockets(one, 1, Duration::ZERO), sockets(other, 2, Duration::ZERO));
    let listener = other.listen(at(2), 2).expect("the port is free");
    assert_eq!(other.listen(at(2), 2), Err(SocketError::InUse));
    let streams: Vec<Handle> = (0..5).map(|_| one.connect(at(2)).expect("a way")).collect();
    for _ in 0..30 {
        one.poll().expect("the link is up");
        other.poll().expect("the link is up");
    }
    let state = |one: &mut Sockets, stream| one.receive(stream, &mut [0; 1]);
    let states: Vec<_> = streams.iter().map(|stream| state(&mut one, *stream)).collect();
    let open = states
        .iter()
        .filter(|state| **state == Err(SocketError::WouldBlock));
    let reset = states.iter().filter(|state| **state == Err(SocketError::Reset));
    assert_eq!((open.count(), reset.count()), (2, 3), "{states:?}");
    other.close(listener).expect("it is a socket");
    for _ in 0..30 {
        one.poll().expect("the link is up");
        other.poll().expect("the link is up");
    }
    assert!(
        streams
            .iter()
            .all(|stream| state(&mut one, *stream) == Err(SocketError::Reset))
    );
    assert_eq!((one.live(), other.live()), (0, 0));
}

/// Frames that nearly are right, from a peer that knows the addresses and copies what it gets.
#[test]
fn garbage_from_the_peer_neither_panics_nor_leaks() {
    for seed in 0..30 {
        let (mut raw, other) = link();
        let mut victim = sockets(other, 2, Duration::ZERO);
        let listener = victim.listen(at(2), 4).expect("the port is free");
        let connecting = victim.connect(at(1)).expect("there is a way");
        let (victim_frames, mut sample) = (&mut Vec::new(), 0usize);
        let mut rng = Rng::new(seed);
        for _ in 0..3000 {
            victim.poll().expect("garbage in frames does not break a link");
            raw.receive(64, &mut |frame| victim_frames.push(frame.bytes.to_vec()))
                .expect("the link is up");
            sample = (sample + 1) % victim_frames.len();
            let mut bytes = victim_frames[sample].clone();
            // To the victim, as if it were the answer: addresses and ports change places.
            let (target, source) = bytes.split_at_mut(6);
            target.swap_with_slice(&mut source[..6]);
            if bytes.len() >= 54 {
                let (left, right) = bytes[26..38].split_at_mut(4);
                left.swap_with_slice(&mut right[..4]);
                bytes[34..38].rotate_left(2);
            }
            for _ in 0..rng.below(3) {
                let at = rng.between(12, bytes.len() as u64 - 1) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            let mut once = Some(bytes);
            raw.send(&mut |frame| {
                let bytes = once.take()?;
                frame[..bytes.len()].copy_from_slice(&bytes);
                Some(Written {
                    bytes: bytes.len(),
                    segment_bytes: 0,
                })
            })
            .expect("the link is up");
            if let Ok(stream) = victim.accept(listener) {
                victim.close(stream).expect("it is a socket");
            }
        }
        victim.close(connecting).expect("it is a socket");
        victim.close(listener).expect("it is a socket");
        victim_frames.truncate(64);
    }
}

/// Looks change nothing, a port can be chosen, and whoever leaves resets what is left.
#[test]
fn looks_leave_bytes_where_they_are_and_leaving_resets_the_rest() {
    let (one, other) = link();
    let (mut one, mut other) = (sockets(one, 1, Duration::ZERO), sockets(other, 2, Duration::ZERO));
    let listener = other.listen(at(2), 8).expect("the port is free");
    let stream = one.connect_from(at(2), 4321).expect("there is a way");
    assert_eq!(one.is_connecting(stream), Ok(true));
    let turn = |one: &mut Sockets, other: &mut Sockets| {
        for _ in 0..20 {
            one.poll().expect("the link is up");
            other.poll().expect("the link is up");
        }
    };
    turn(&mut one, &mut other);
    assert_eq!(one.is_connecting(stream), Ok(false));
    let accepted = other.accept(listener).expect("a connection");
    let tuple = other
        .tuple(accepted)
        .expect("it is a stream")
        .expect("it is open");
    assert_eq!(tuple.remote.port, 4321);
    one.send(stream, b"abcdef").expect("it is open");
    turn(&mut one, &mut other);
    let mut bytes = [0; 4];
    assert_eq!(other.peek(accepted, 0, &mut bytes), Ok(4));
    assert_eq!(&bytes, b"abcd");
    assert_eq!(other.peek(accepted, 4, &mut bytes), Ok(2));
    assert_eq!(&bytes[..2], b"ef");
    assert_eq!(other.peek(accepted, 6, &mut bytes), Ok(0));
    assert_eq!(other.readable_bytes(accepted), Ok(6));
    assert_eq!(other.failure(accepted), Ok(None));
    one.leave();
    turn(&mut one, &mut other);
    assert_eq!(other.failure(accepted), Ok(Some(SocketError::Reset)));
    // What was received before can still be looked at and read.
    assert_eq!(other.peek(accepted, 2, &mut bytes), Ok(4));
    assert_eq!(&bytes, b"cdef");
    assert_eq!(other.readable_bytes(accepted), Ok(6));
    assert_eq!(other.receive(accepted, &mut bytes), Ok(4));
    assert_eq!(&bytes, b"abcd");
    assert!(!other.has_ended());
}
