//! Sockets of the program, which Linux calls open file descriptions. Descriptors that are duplicates of each other share one.

use super::address::Family;
use base::Duration;
use libc::c_int;
use sockets::{Handle, SocketError};
use tcp::addr::{Endpoint, Tuple};
use tcp::config::KeepAlive;

/// A silent peer is asked after so long whether it is there, unless the program says otherwise: a process that is killed sends nothing, as no
/// kernel does it for its stack.
pub(crate) const LIVENESS: KeepAlive = KeepAlive {
    idle: Duration::from_secs(10),
    interval: Duration::from_secs(5),
    probes: 4,
};

/// How far a socket is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// The kernel has it, as long as it is not said where it connects to or listens.
    Fresh,
    /// It is to have this address, which the kernel lacks.
    Bound(Endpoint),
    /// A listener. If `is_dual`, the kernel listens, too, at the addresses that it has.
    Listener {
        handle: Handle,
        local: Endpoint,
        is_dual: bool,
    },
    /// One end of a connection, which is perhaps under way.
    Stream { handle: Handle, tuple: Tuple },
    /// A connection or a listener that has ended with the hub.
    Lost,
    /// The parent's, in a forked child that has not asked for it yet.
    Inherited,
}

/// A socket.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub kind: Kind,
    pub family: Family,
    /// Descriptors of it.
    pub numbers: u32,
    pub is_nonblocking: bool,
    /// SO_RCVTIMEO and SO_SNDTIMEO.
    pub receive_limit: Option<Duration>,
    pub send_limit: Option<Duration>,
    pub is_no_delay: bool,
    pub keep_alive: KeepAlive,
    pub user_timeout: Option<Duration>,
    /// SO_LINGER with a time of 0: closing resets the connection.
    pub resets: bool,
    /// The failure of the connection was told, which is done once.
    pub is_told: bool,
    /// A call of connect(2) has said that the connection is there.
    pub is_connect_told: bool,
    /// The program reads no more.
    pub is_deaf: bool,
    /// The program writes no more.
    pub is_mute: bool,
    /// A write has found too little room: a set with edges tells of room.
    pub is_starved: bool,
    /// The options are those of the stack's flow.
    pub is_settled: bool,
    /// Sets that the socket is in, and by which descriptor.
    pub watchers: Vec<(c_int, c_int)>,
}

impl File {
    pub fn new(family: Family, is_nonblocking: bool) -> Self {
        Self {
            kind: Kind::Fresh,
            family,
            numbers: 0,
            is_nonblocking,
            receive_limit: None,
            send_limit: None,
            is_no_delay: false,
            keep_alive: LIVENESS,
            user_timeout: None,
            resets: false,
            is_told: false,
            is_connect_told: false,
            is_deaf: false,
            is_mute: false,
            is_starved: true,
            is_settled: false,
            watchers: Vec::new(),
        }
    }

    /// The connection of a listener, which has the listener's options.
    pub fn accepted(&self, kind: Kind, is_nonblocking: bool) -> Self {
        Self {
            kind,
            numbers: 0,
            is_nonblocking,
            watchers: Vec::new(),
            is_told: false,
            is_connect_told: true,
            is_starved: true,
            is_settled: false,
            ..self.clone()
        }
    }

    /// The stack's socket.
    pub fn handle(&self) -> Option<Handle> {
        match self.kind {
            Kind::Listener { handle, .. } | Kind::Stream { handle, .. } => Some(handle),
            Kind::Fresh | Kind::Bound(_) | Kind::Lost | Kind::Inherited => None,
        }
    }

    /// Whether the kernel's socket of the descriptor has to be asked, too.
    pub fn is_kernels_too(&self) -> bool {
        matches!(self.kind, Kind::Fresh | Kind::Listener { is_dual: true, .. })
    }
}

/// The error number that a program knows.
pub(crate) fn code_of(error: SocketError) -> c_int {
    match error {
        SocketError::WouldBlock | SocketError::Late => libc::EAGAIN,
        SocketError::Handle => libc::EBADF,
        SocketError::Ended => libc::EPIPE,
        SocketError::Reset => libc::ECONNRESET,
        SocketError::Refused => libc::ECONNREFUSED,
        SocketError::Silent => libc::ETIMEDOUT,
        SocketError::Unreachable => libc::EHOSTUNREACH,
        SocketError::InUse => libc::EADDRINUSE,
        SocketError::Address => libc::EADDRNOTAVAIL,
        SocketError::Denied => libc::EPERM,
        SocketError::Full => libc::ENOBUFS,
        SocketError::Link => libc::ENETDOWN,
    }
}
