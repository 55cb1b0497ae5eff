//! Linux' own sockets: `recv` that does not wait, or `epoll`.

use super::ends::{Ends, RPC_BYTES};
use super::network::Network;
use anyhow::{Context, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The congestion control of both ends; the system's may pace small requests.
const CONGESTION: &str = "cubic";

/// Clients and servers.
struct Linux {
    ends: [Vec<OwnedFd>; 2],
    /// One for each end, unless its sockets are read in turn.
    epolls: Option<[OwnedFd; 2]>,
    events: Vec<epoll::Event>,
}

/// A place at which Linux' own TCP has both ends.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// Two namespaces.
    Veth(&'a Network),
    /// One namespace.
    Loopback,
}

/// Clients, and their servers. Reads of them wait.
pub fn connections(count: usize, place: Place<'_>) -> anyhow::Result<[Vec<TcpStream>; 2]> {
    let listener = match place {
        Place::Veth(network) => network.within(1, || Ok(TcpListener::bind("10.9.0.2:0")?))?,
        Place::Loopback => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
    };
    let connect = || connect(count, &listener);
    match place {
        Place::Veth(network) => network.within(0, connect),
        Place::Loopback => connect(),
    }
}

fn connect(count: usize, listener: &TcpListener) -> anyhow::Result<[Vec<TcpStream>; 2]> {
    let address = listener.local_addr()?;
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let client = TcpStream::connect(address).context("cannot connect")?;
        let (server, _) = listener.accept()?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            // A kernel without it has another one.
            let _ = sockopt::set_tcp_congestion(stream, CONGESTION);
        }
        clients.push(client);
        servers.push(server);
    }
    Ok([clients, servers])
}

/// TCP at a place.
pub fn tcp(count: usize, place: Place<'_>, polls: bool) -> anyhow::Result<Box<dyn Ends>> {
    let ends = connections(count, place)?;
    make(
        ends.map(|sockets| sockets.into_iter().map(Into::into).collect()),
        polls,
    )
}

/// Unix sockets.
pub fn unix(count: usize, polls: bool) -> anyhow::Result<Box<dyn Ends>> {
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (client, server) = UnixStream::pair()?;
        clients.push(client.into());
        servers.push(server.into());
    }
    make([clients, servers], polls)
}

/// Both ends of sockets, which are read in turn if it `polls`, or else by epoll.
pub fn make(ends: [Vec<OwnedFd>; 2], polls: bool) -> anyhow::Result<Box<dyn Ends>> {
    for socket in ends.iter().flatten() {
        rustix::io::ioctl_fionbio(socket, true)?;
    }
    let count = ends[0].len();
    let mut epolls = None;
    if !polls {
        epolls = Some([epoll_of(&ends[0])?, epoll_of(&ends[1])?]);
    }
    Ok(Box::new(Linux {
        ends,
        epolls,
        events: Vec::with_capacity(count),
    }))
}

fn epoll_of(sockets: &[OwnedFd]) -> anyhow::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, socket) in sockets.iter().enumerate() {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&epoll, socket, data, epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

impl Linux {
    /// Reads a message at each socket of an end, and has it answered if the end is a server.
    fn read_all(&mut self, end: usize, answers: bool) -> anyhow::Result<()> {
        let Some(epolls) = &self.epolls else {
            return self.ends[end].iter().try_for_each(|socket| read(socket, answers));
        };
        let mut left = self.ends[end].len();
        while left > 0 {
            self.events.clear();
            epoll::wait(&epolls[end], spare_capacity(&mut self.events), None)?;
            for event in &self.events {
                read(&self.ends[end][event.data.u64() as usize], answers)?;
                left -= 1;
            }
        }
        Ok(())
    }
}

fn read(socket: &OwnedFd, answers: bool) -> anyhow::Result<()> {
    let mut bytes = [0; RPC_BYTES];
    let mut got = 0;
    while got < RPC_BYTES {
        match rustix::io::read(socket, &mut bytes[got..]) {
            Ok(0) => anyhow::bail!("the other end has gone"),
            Ok(count) => got += count,
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    if answers { write(socket) } else { Ok(()) }
}

fn write(socket: &OwnedFd) -> anyhow::Result<()> {
    let count = rustix::io::write(socket, &[7; RPC_BYTES])?;
    ensure!(count == RPC_BYTES, "a small message does not fit");
    Ok(())
}

impl Ends for Linux {
    fn turn(&mut self) -> anyhow::Result<()> {
        self.ends[0].iter().try_for_each(write)?;
        self.read_all(1, true)?;
        self.read_all(0, false)
    }
}
