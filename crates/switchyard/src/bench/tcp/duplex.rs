//! One end of one stream, with a thread of its own: what latency and throughput are measured on.

use super::linux::{self, Place};
use super::network::Network;
use super::ours::{self, Ours};
use anyhow::Context;
use rustix::io::Errno;
use sockets::{Handle, SocketError, Sockets};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use tcp::api::Rings;

/// An end. Bytes come out as they went in.
pub trait Duplex: Send {
    /// Sends as much as there is room for; perhaps nothing.
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<usize>;
    /// Receives what there is; perhaps nothing.
    fn receive(&mut self, bytes: &mut [u8]) -> anyhow::Result<usize>;
}

/// Both ends of a stream.
pub type Pair = [Box<dyn Duplex>; 2];

/// A way to make a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Our sockets over shared memory.
    Shared,
    /// Our sockets over AF_XDP in the driver.
    Xdp,
    /// Linux' TCP between namespaces.
    Veth,
    /// Linux' TCP in one.
    Loopback,
    /// Unix sockets.
    Unix,
}

/// The rings of our streams: the size of Linux' buffers when a bulk stream has gone on for a while.
const RINGS: Rings = Rings {
    receive: 20,
    transmit: 20,
};

/// Makes a stream. A Linux end that does not `spin` sleeps in its calls.
pub fn open(way: Way, network: Option<&Network>, spins: bool) -> anyhow::Result<Pair> {
    let needed = || network.context("there is no veth");
    match way {
        Way::Shared => Ok(of_ours(ours::shared(1, RINGS)?)),
        Way::Xdp => Ok(of_ours(ours::xdp(1, needed()?, true, RINGS)?)),
        Way::Veth => of_tcp(Place::Veth(needed()?), spins),
        Way::Loopback => of_tcp(Place::Loopback, spins),
        Way::Unix => {
            let (one, other) = UnixStream::pair()?;
            of_linux([one.into(), other.into()], spins)
        }
    }
}

fn of_tcp(place: Place<'_>, spins: bool) -> anyhow::Result<Pair> {
    let [one, other] = linux::connections(1, place)?.map(|mut sockets| sockets.remove(0));
    of_linux([one.into(), other.into()], spins)
}

fn of_linux(ends: [OwnedFd; 2], spins: bool) -> anyhow::Result<Pair> {
    for end in &ends {
        rustix::io::ioctl_fionbio(end, spins)?;
    }
    Ok(ends.map(|socket| Box::new(Linux { socket }) as Box<dyn Duplex>))
}

fn of_ours(ours: Ours) -> Pair {
    ours.into_ends()
        .map(|(sockets, stream)| Box::new(Own { sockets, stream }) as Box<dyn Duplex>)
}

/// Linux' end.
struct Linux {
    socket: OwnedFd,
}

impl Duplex for Linux {
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        match rustix::io::write(&self.socket, bytes) {
            Err(Errno::AGAIN) => Ok(0),
            result => Ok(result?),
        }
    }

    fn receive(&mut self, bytes: &mut [u8]) -> anyhow::Result<usize> {
        match rustix::io::read(&self.socket, bytes) {
            Ok(0) => anyhow::bail!("the other end has gone"),
            Err(Errno::AGAIN) => Ok(0),
            result => Ok(result?),
        }
    }
}

/// Our end.
struct Own {
    sockets: Sockets,
    stream: Handle,
}

impl Duplex for Own {
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        match self.sockets.send(self.stream, bytes) {
            Ok(count) => {
                self.sockets.push()?;
                Ok(count)
            }
            Err(SocketError::WouldBlock) => {
                self.sockets.poll()?;
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&mut self, bytes: &mut [u8]) -> anyhow::Result<usize> {
        self.sockets.poll()?;
        while self.sockets.next_ready().is_some() {}
        match self.sockets.receive(self.stream, bytes) {
            Ok(0) => anyhow::bail!("the other end has gone"),
            Err(SocketError::WouldBlock) => Ok(0),
            result => Ok(result?),
        }
    }
}
