//! What both clients' sockets have: how they connect, and how payload of large writes is sent from where it lies, since
//! clients that copied it would load themselves rather than the server. (Pages of a file in memory could be spliced, but
//! on the loopback that makes receivers drop segments.)

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A pipelined client: many requests under way on one connection.
pub trait Client: Send {
    /// True if the server understands flushes.
    fn can_flush(&self) -> bool;
    /// Queues a read.
    fn push_read(&mut self, cookie: u64, offset: u64, length: u32);
    /// Queues a write. The data of writes of one length differ in their first [`STAMP_BYTES`] only.
    fn push_write(&mut self, cookie: u64, offset: u64, data: &[u8]);
    /// Queues a flush.
    fn push_flush(&mut self, cookie: u64);
    /// Sends what is queued.
    fn send(&mut self) -> std::io::Result<()>;
    /// Waits for one reply and returns its cookie; `data_bytes` tells of a cookie how much data comes with it, which is
    /// received and passed over.
    fn receive(&mut self, data_bytes: &dyn Fn(u64) -> usize) -> anyhow::Result<u64>;
    /// True if another reply is here already.
    fn has_reply(&self) -> bool;
    /// The socket that replies come from.
    fn socket(&self) -> &TcpStream;
}

/// Sleeps until a socket can be read, or until `until`. Returns true if it can be read.
pub fn sleep_until(stream: &TcpStream, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("no pause is as long as a clock runs");
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A server that takes no connection for this long is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that does not answer this long is given up.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Writes at least as long go this way; shorter ones are copied, so that many go by one call.
pub const APART_BYTES_MIN: usize = 32 << 10;
/// The first bytes of a payload, which alone differ between the writes of a connection.
pub const STAMP_BYTES: usize = 8;
/// Places for writes; one that comes later than this many before it may share the place of one under way.
const PLACES: usize = 128;

/// A client that polls asks for this long before it sleeps.
const POLLS_FOR: Duration = Duration::from_millis(2);

/// Source of a connection's answers.
pub struct Inbox {
    stream: TcpStream,
    polls: bool,
}

impl Inbox {
    /// One that sleeps until there is something or, if it `polls`, asks again and again: who sends to one that sleeps
    /// has to wake it up, which on a virtual machine takes as long as copying tens of kilobytes.
    pub fn new(stream: TcpStream, polls: bool) -> Self {
        Self { stream, polls }
    }
}

impl Read for Inbox {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let since = Instant::now();
        while self.polls && since.elapsed() < POLLS_FOR {
            match rustix::net::recv(&self.stream, &mut *target, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Ok(count),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
        self.stream.read(target)
    }
}

/// The payload of a connection's large writes. What is the same in all of one length lies there once, so that a client
/// reads it from its cache and not from memory.
pub struct Outbox {
    bodies: Vec<Vec<u8>>,
    places: [Place; PLACES],
}

#[derive(Clone, Copy, Default)]
struct Place {
    body: usize,
    stamp: [u8; STAMP_BYTES],
}

impl Outbox {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            bodies: Vec::new(),
            places: [Place::default(); PLACES],
        }
    }

    /// Keeps the payload of write `number`, of at least [`STAMP_BYTES`].
    pub fn put(&mut self, number: usize, data: &[u8]) {
        let (stamp, rest) = data.split_first_chunk().expect("a large write");
        let known = self.bodies.iter().position(|body| body.len() == data.len());
        let body = known.unwrap_or_else(|| {
            self.bodies.push(data.to_vec());
            self.bodies.len() - 1
        });
        debug_assert!(
            &self.bodies[body][STAMP_BYTES..] == rest,
            "writes of one length differ in their stamps only"
        );
        self.places[number % PLACES] = Place { body, stamp: *stamp };
    }

    /// Sends `head`, then payload of write `number` from `offset` on, at most `length` bytes; returns how many in all.
    pub fn send(
        &self,
        stream: &TcpStream,
        head: &[u8],
        number: usize,
        offset: usize,
        length: usize,
    ) -> io::Result<usize> {
        let place = &self.places[number % PLACES];
        let end = offset + length;
        let stamp = &place.stamp[offset.min(STAMP_BYTES)..end.min(STAMP_BYTES)];
        let body = &self.bodies[place.body][offset.max(STAMP_BYTES)..end.max(STAMP_BYTES)];
        let parts = [IoSlice::new(head), IoSlice::new(stamp), IoSlice::new(body)];
        let (flags, mut control) = (SendFlags::NOSIGNAL, SendAncillaryBuffer::default());
        Ok(rustix::net::sendmsg(stream, &parts, &mut control, flags)?)
    }
}

/// Connects to a server that speaks `protocol`. The socket has no delays, and on the loopback, where there is no path to
/// probe, Reno instead of BBR, which costs bandwidth there. A refusal of that leaves the default.
pub fn connect(server: &str, protocol: &str) -> anyhow::Result<TcpStream> {
    let mut resolved = server
        .to_socket_addrs()
        .with_context(|| format!("{server} is not an address"))?;
    let stream = resolved
        .find_map(|candidate| TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT).ok())
        .with_context(|| format!("no {protocol} answers at {server}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    if stream.peer_addr()?.ip().is_loopback() {
        let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "reno");
    }
    Ok(stream)
}
