//! What applications ask of a stack, and what it tells them.

use crate::addr::{Endpoint, Tuple};
use crate::config::KeepAlive;
use crate::seq::Seq;
use base::Duration;

/// A flow of a stack. Its rings belong to the id, not to the slot: an application may read a flow's last bytes when the slot
/// has the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    /// The slot.
    pub index: u32,
    /// Which flow of the slot; an id of an earlier one is refused.
    pub generation: u32,
}

/// The sizes of a flow's rings, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// The receive ring; from [`RING_MIN`] to [`RING_MAX`].
    pub receive: u8,
    /// The transmit ring; the same.
    pub transmit: u8,
}

/// 1 KiB: less than a segment is of no use.
pub const RING_MIN: u8 = 10;
/// 1 GiB: what window scaling can tell (RFC 7323 §2.3).
pub const RING_MAX: u8 = 30;

/// What an application asks. Whoever carries it has made sure of `app`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The application.
    pub app: u16,
    /// The application's own word for it, which the answer has.
    pub opaque: u64,
    /// What it wants.
    pub call: Call,
}

/// What an application wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// To take connections.
    Listen {
        /// The address, or [`crate::addr::Ip::ANY`] for all of them, and the port.
        local: Endpoint,
        /// Handshakes that may be under way; from then on there are SYN cookies.
        backlog: u32,
        /// Rings of its connections.
        rings: Rings,
    },
    /// To take no more. Connections stay.
    Unlisten {
        /// As it was listened to.
        local: Endpoint,
    },
    /// To connect.
    Connect {
        /// The peer.
        remote: Endpoint,
        /// The port of this host, or 0 for any.
        port: u16,
        /// Rings of the connection.
        rings: Rings,
    },
    /// To send no more: a FIN follows what was written.
    Shutdown(FlowId),
    /// To send no more, and to read no more.
    Close(FlowId),
    /// To end at once: the peer gets a reset.
    Abort(FlowId),
    /// To set an option.
    Set(FlowId, Setting),
    /// To end: its listeners, and its connections at once.
    Leave,
}

/// An option of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// TCP_NODELAY.
    NoDelay(bool),
    /// SO_KEEPALIVE with its times.
    KeepAlive(Option<KeepAlive>),
    /// TCP_USER_TIMEOUT.
    UserTimeout(Duration),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such flow, or it is another application's.
    #[error("the application has no such flow")]
    Flow,
    /// More bytes than there are to read, or than there is room to write.
    #[error("the rings do not have so many bytes")]
    Bytes,
    /// The stream was ended by the application.
    #[error("the application has ended the stream")]
    Ended,
    /// A ring is shorter or longer than rings may be.
    #[error("a ring has 2^10 to 2^30 bytes")]
    Ring,
    /// The address is taken, or no port is free.
    #[error("the address is in use")]
    InUse,
    /// The address is none of this host.
    #[error("the address is not of this host")]
    Address,
    /// No way leads to the peer.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// Access control forbids it.
    #[error("access control forbids it")]
    Denied,
    /// The application has as many flows as it may, or sets them up too fast.
    #[error("the application is at its limit")]
    Limit,
    /// The stack is full.
    #[error("the stack is full")]
    Full,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides have sent and acknowledged everything.
    Done,
    /// The peer has reset it.
    Reset,
    /// This side has reset it.
    Aborted,
    /// The peer does not answer.
    TimedOut,
    /// The peer takes no connections there.
    Refused,
    /// No way leads there.
    Unreachable,
}

/// What an application is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The application.
    pub app: u16,
    /// The word of the request: of the flow's connect, or of its listen.
    pub opaque: u64,
    /// What happened.
    pub news: News,
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The flow.
    pub flow: FlowId,
    /// Behind the last byte that can be read.
    pub readable_to: Seq,
    /// Behind the last byte whose room in the transmit ring is free again.
    pub freed_to: Seq,
    /// Whether the peer sends no more.
    pub is_ended: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A connection is being opened: the flow can be aborted from now on.
    Connecting {
        /// The flow.
        flow: FlowId,
    },
    /// A request that is not about a flow was carried out.
    Done,
    /// A request was refused.
    Refused(Refused),
    /// A connection is open: one that was asked for, or one of a listener.
    Open {
        /// The flow.
        flow: FlowId,
        /// Both ends.
        tuple: Tuple,
        /// Whether the peer has opened it.
        is_accepted: bool,
        /// Place of the first byte that will be read.
        read_from: Seq,
        /// Place of the first byte that will be written.
        write_from: Seq,
    },
    /// Bytes were received or acknowledged. Several of these may be told as one.
    Moved(Moved),
    /// The stack has done with the flow and its rings. What was received can still be read from the receive ring; the
    /// transmit ring is free.
    Closed {
        /// The flow.
        flow: FlowId,
        /// How.
        end: End,
    },
}
