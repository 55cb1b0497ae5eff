//! Errors of calls on sockets.

use tcp::api::{End, Refused};

/// Errors of calls on sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// It would have to wait.
    #[error("the call would have to wait")]
    WouldBlock,
    /// The time that the caller gave is over.
    #[error("the time given is over")]
    Late,
    /// There is no such socket, or it is of another kind.
    #[error("there is no such socket")]
    Handle,
    /// This side has ended the stream.
    #[error("this side has ended the stream")]
    Ended,
    /// The peer has reset the connection.
    #[error("the peer has reset the connection")]
    Reset,
    /// The peer takes no connections there.
    #[error("the peer takes no connections there")]
    Refused,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    Silent,
    /// No way leads to the peer.
    #[error("no way leads to the peer")]
    Unreachable,
    /// The address is in use, or no port is free.
    #[error("the address is in use")]
    InUse,
    /// The address is none of this host, or none that can be connected to.
    #[error("the address cannot be used")]
    Address,
    /// Access control forbids it.
    #[error("access control forbids it")]
    Denied,
    /// There are as many connections or listeners as there may be.
    #[error("there are as many sockets as there may be")]
    Full,
    /// The link is down for good.
    #[error("the link is down")]
    Link,
}

impl From<Refused> for SocketError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Flow => Self::Handle,
            Refused::Bytes | Refused::Ended => Self::Ended,
            Refused::InUse => Self::InUse,
            Refused::Ring | Refused::Address => Self::Address,
            Refused::Unreachable => Self::Unreachable,
            Refused::Denied => Self::Denied,
            Refused::Limit | Refused::Full => Self::Full,
        }
    }
}

/// The error that a caller gets for a connection's end; none if the peer has sent everything.
pub fn of_end(end: End) -> Option<SocketError> {
    match end {
        End::Done => None,
        End::Reset => Some(SocketError::Reset),
        End::Aborted => Some(SocketError::Ended),
        End::TimedOut => Some(SocketError::Silent),
        End::Refused => Some(SocketError::Refused),
        End::Unreachable => Some(SocketError::Unreachable),
    }
}
