//! Transports: what carries the bytes of connections. A [`Listener`] brings [`Stream`]s; TCP is here.
//!
//! A stream never blocks, and its descriptor is watched for edges: it tells once that it can be read or written anew.

use crate::udp::set_option;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use wire::Protocol;

/// A silent peer is asked after this long, and again, whether it is still there.
const KEEPALIVE_SECONDS: libc::c_int = 30;
/// A peer that acknowledges nothing for this long is gone; also one that does not read for so long.
const UNANSWERED_MILLIS_MAX: libc::c_int = 120_000;
/// Bytes that the kernel takes of us and has not sent. If a peer reads nothing, more would fill its send buffer, which grows to
/// megabytes. The kernel has memory for a few hundred such buffers (`tcp_mem`); then every connection of the machine is slow.
const UNSENT_BYTES_MAX: libc::c_int = 256 << 10;

/// The bytes of a connection, both ways.
pub trait Stream: Send {
    /// The descriptor to watch.
    fn fd(&self) -> RawFd;

    /// Sets the stream up, on the core that has taken it.
    fn set_up(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Reads what is there into `into`; 0 if the peer sends nothing more, `WouldBlock` if nothing is there. Fewer bytes than
    /// asked for mean that no more are there.
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sends as much of `from` as there is room for, `WouldBlock` if there is none.
    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize>;

    /// The address of this machine by which the peer came, if the transport has one.
    fn via(&self) -> Option<IpAddr> {
        None
    }
}

/// Where clients connect.
pub trait Listener: Send {
    /// The descriptor to watch.
    fn fd(&self) -> RawFd;

    /// The next connection that waits, and whose it is; `WouldBlock` if there is none.
    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, IpAddr)>;

    /// Where exactly clients connect.
    fn address(&self) -> io::Result<SocketAddr>;
}

/// Parts of a listener.
pub enum Door {
    /// TCP at this address; port 0 takes any free one.
    Tcp(SocketAddr),
    /// Another transport.
    Open(Box<dyn Listener>),
}

/// A listener, and what its clients speak.
pub struct Listen {
    /// Address where clients connect.
    pub door: Door,
    /// Protocol of these clients.
    pub protocol: Arc<dyn Protocol>,
}

impl Listen {
    /// Clients connect by TCP.
    pub fn tcp(address: SocketAddr, protocol: Arc<dyn Protocol>) -> Self {
        Self {
            door: Door::Tcp(address),
            protocol,
        }
    }
}

/// Protocols of these listeners.
pub(crate) fn protocols(listen: &[Listen]) -> Vec<Arc<dyn Protocol>> {
    listen.iter().map(|listen| Arc::clone(&listen.protocol)).collect()
}

impl Door {
    /// Opens the door.
    pub(crate) fn open(self) -> io::Result<Box<dyn Listener>> {
        match self {
            Self::Tcp(address) => {
                let socket = TcpListener::bind(address)?;
                socket.set_nonblocking(true)?;
                Ok(Box::new(socket))
            }
            Self::Open(listener) => Ok(listener),
        }
    }

    /// The address that was asked for.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Tcp(address) => *address,
            Self::Open(listener) => listener.address().unwrap_or(SocketAddr::from(([0; 4], 0))),
        }
    }
}

impl std::fmt::Debug for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.protocol.name(), self.door.address())
    }
}

impl Listener for TcpListener {
    fn fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, IpAddr)> {
        let (stream, peer) = Self::accept(self)?;
        let peer = peer.ip();
        Ok((
            Box::new(Tcp {
                stream,
                is_loopback: peer.is_loopback(),
            }),
            peer,
        ))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}

struct Tcp {
    stream: TcpStream,
    is_loopback: bool,
}

impl Stream for Tcp {
    fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn set_up(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        self.stream.set_nodelay(true)?;
        give_up_on_the_dead(self.fd())?;
        set_option(
            self.fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            UNSENT_BYTES_MAX,
        )?;
        if self.is_loopback {
            choose_congestion_control(self.fd());
        }
        Ok(())
    }

    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.stream.read_vectored(into)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: a `msghdr` of zeros is valid; its fields are set below.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = from.as_ptr().cast_mut().cast();
        message.msg_iovlen = from.len() as _;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: an `IoSlice` is an `iovec`, and `from` borrows what each points at. The kernel only reads.
        let result = unsafe { libc::sendmsg(self.fd(), &message, flags) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    fn via(&self) -> Option<IpAddr> {
        let local = self.stream.local_addr().ok()?;
        Some(local.ip().to_canonical())
    }
}

/// Ends connections whose peer has gone without a word: what they hold would never come back.
fn give_up_on_the_dead(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_SECONDS)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_SECONDS)?;
    set_option(
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_USER_TIMEOUT,
        UNANSWERED_MILLIS_MAX,
    )
}

/// On the loopback there is no path to probe: BBR, where it is the default, costs 20–40 % of the bandwidth there.
/// Reno is in every kernel and open to everybody; a refusal leaves the default.
fn choose_congestion_control(fd: RawFd) {
    let name = b"reno";
    // SAFETY: `name` is valid for reads of its length.
    unsafe {
        let size = name.len() as libc::socklen_t;
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            size,
        );
    }
}
