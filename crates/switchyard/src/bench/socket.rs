//! What both clients' sockets have: how they connect, and how payload of large writes is sent from where it lies, since
//! clients that copied it would load themselves rather than the server. (Pages of a file in memory could be spliced, but
//! on the loopback that makes receivers drop segments.)

use anyhow::Context;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Who does not take a connection this long is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that does not answer this long is given up.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Writes at least as long go this way; for shorter ones a copy is cheaper than a system call more.
pub const APART_BYTES_MIN: usize = 32 << 10;
/// The first bytes of a payload, which alone differ between the writes of a connection.
pub const STAMP_BYTES: usize = 8;
/// Places for writes; one that comes later than this many before it may share the place of one under way.
const PLACES: usize = 128;

/// A client that polls asks for this long before it sleeps.
const POLLS_FOR: Duration = Duration::from_millis(2);

/// Where a connection's answers come from.
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

/// The payload of a connection's large writes.
pub struct Outbox {
    places: Vec<Vec<u8>>,
}

impl Outbox {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            places: vec![Vec::new(); PLACES],
        }
    }

    /// Keeps the payload of write `number`: all of it the first time, then its stamp.
    pub fn put(&mut self, number: usize, data: &[u8]) {
        let place = &mut self.places[number % PLACES];
        if place.len() == data.len() {
            place[..STAMP_BYTES].copy_from_slice(&data[..STAMP_BYTES]);
        } else {
            *place = data.to_vec();
        }
    }

    /// Sends payload of write `number` from `offset` on, at most `length` bytes; returns how many.
    pub fn send(
        &self,
        mut stream: &TcpStream,
        number: usize,
        offset: usize,
        length: usize,
    ) -> io::Result<usize> {
        stream.write(&self.places[number % PLACES][offset..][..length])
    }
}

/// Sends some of `bytes`; with `more`, payload follows and the kernel may wait for it.
pub fn send(stream: &TcpStream, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
    Ok(rustix::net::send(stream, bytes, flags | SendFlags::NOSIGNAL)?)
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
