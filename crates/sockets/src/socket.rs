//! A socket: a listener, or one end of a stream.

use crate::error::{SocketError, of_end};
use crate::handle::Handle;
use crate::rings::Pair;
use std::collections::VecDeque;
use tcp::addr::{Endpoint, Tuple};
use tcp::api::{End, FlowId};
use tcp::seq::Seq;

/// Things that a socket can do without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A connection to accept, bytes to read, the end of the stream, or an error.
    pub readable: bool,
    /// Room to write, or an error.
    pub writable: bool,
    /// The peer sends no more.
    pub is_ended: bool,
    /// The connection is over; a call tells how.
    pub is_over: bool,
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The handshake is under way.
    Connecting,
    /// Bytes can go both ways, until a side ends them.
    Open,
    /// The stack has done with it.
    Over(End),
    /// The stack has not begun with it.
    Refused(SocketError),
}

/// One end of a stream.
#[derive(Debug)]
pub struct Stream {
    /// The stack's flow, until it is over.
    pub flow: Option<FlowId>,
    /// Both ends, once it is open.
    pub tuple: Option<Tuple>,
    /// How far it is.
    pub phase: Phase,
    /// The next byte to read.
    pub read_at: Seq,
    /// Behind the last byte to read.
    pub readable_to: Seq,
    /// The place of the next byte to write.
    pub write_at: Seq,
    /// Before it, the ring is free again.
    pub freed_to: Seq,
    /// The peer sends no more.
    pub is_ended: bool,
    /// This side writes no more.
    pub is_shut: bool,
    /// The rings of a flow that is over.
    pub left: Option<Pair>,
}

impl Stream {
    /// A stream whose handshake is to begin.
    pub fn new() -> Self {
        Self {
            flow: None,
            tuple: None,
            phase: Phase::Connecting,
            read_at: Seq(0),
            readable_to: Seq(0),
            write_at: Seq(0),
            freed_to: Seq(0),
            is_ended: false,
            is_shut: false,
            left: None,
        }
    }

    /// Bytes that can be read.
    #[inline]
    pub fn readable(&self) -> u32 {
        self.readable_to.since(self.read_at)
    }

    /// Bytes that can be written into a ring of `ring_bytes`.
    #[inline]
    pub fn writable(&self, ring_bytes: u32) -> u32 {
        match self.phase {
            Phase::Open if !self.is_shut => ring_bytes - self.write_at.since(self.freed_to),
            _ => 0,
        }
    }

    /// The answer to a caller who finds nothing to read: `Ok` is the end of the stream.
    pub fn nothing(&self) -> Result<(), SocketError> {
        match self.phase {
            _ if self.is_ended => Ok(()),
            Phase::Connecting | Phase::Open => Err(SocketError::WouldBlock),
            Phase::Over(end) => of_end(end).map_or(Ok(()), Err),
            Phase::Refused(error) => Err(error),
        }
    }

    /// The answer to a caller who finds no room to write.
    pub fn no_room(&self) -> SocketError {
        match self.phase {
            Phase::Connecting => SocketError::WouldBlock,
            Phase::Open if !self.is_shut => SocketError::WouldBlock,
            Phase::Open => SocketError::Ended,
            Phase::Over(end) => of_end(end).unwrap_or(SocketError::Ended),
            Phase::Refused(error) => error,
        }
    }

    #[inline]
    fn readiness(&self, ring_bytes: u32) -> Readiness {
        let is_over = matches!(self.phase, Phase::Over(_) | Phase::Refused(_));
        Readiness {
            readable: self.readable() > 0 || self.is_ended || is_over,
            writable: self.writable(ring_bytes) > 0 || is_over,
            is_ended: self.is_ended,
            is_over,
        }
    }
}

/// A listener.
#[derive(Debug)]
pub struct Listener {
    /// Its address and port.
    pub local: Endpoint,
    /// Connections that nobody has accepted.
    pub waiting: VecDeque<Handle>,
    /// How many of these there may be.
    pub backlog: usize,
    /// Why the stack does not have it.
    pub refused: Option<SocketError>,
}

/// The kinds of sockets.
#[derive(Debug)]
pub enum Kind {
    /// A listener.
    Listener(Listener),
    /// One end of a stream.
    Stream(Stream),
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    /// Which socket of its place.
    pub generation: u32,
    /// It is in the queue of sockets with news.
    pub is_queued: bool,
    /// Its kind.
    pub kind: Kind,
}

impl Socket {
    /// Tells what it can do without waiting.
    #[inline]
    pub fn readiness(&self, ring_bytes: u32) -> Readiness {
        match &self.kind {
            Kind::Stream(stream) => stream.readiness(ring_bytes),
            Kind::Listener(listener) => Readiness {
                readable: !listener.waiting.is_empty(),
                ..Readiness::default()
            },
        }
    }
}
