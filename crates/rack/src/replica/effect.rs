//! Requests of a replica to its host.

use base::event::Kind;
use base::{Instant, Lpn, Version};
use wire::rack::{Code, Header, Packet};

/// Data to be made durable, and the step that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Persist {
    /// The coordinator's own copy of a write.
    Own {
        /// The page.
        lpn: Lpn,
        /// Its version.
        version: Version,
    },
    /// A follower's copy: the acknowledgement waits for it.
    Acknowledge {
        /// The page.
        lpn: Lpn,
        /// Index of the coordinator.
        peer: usize,
        /// The invalidation to acknowledge.
        header: Header,
    },
}

/// A request of a replica to its host.
#[derive(Debug)]
pub enum Effect {
    /// Send this to a peer; the host fills in source and session.
    Send(Packet),
    /// A client's write is complete (or failed) everywhere.
    Complete {
        /// The request.
        header: Header,
        /// How it ended.
        code: Code,
        /// When it began here.
        since: Instant,
    },
    /// A request that waited for a page may be processed again.
    Resume(Packet),
    /// Make a page durable, then call [`Replica::persisted`].
    Persist(Persist),
    /// Read a page's newest data, then call [`Replica::fetched`].
    Fetch(Lpn, Fetch),
    /// Tell of this.
    Event(Kind),
}

/// Why a page is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fetch {
    /// To replay it to all peers.
    Replay,
    /// To send it to the peer of this index, which asked for it.
    Push(usize),
    /// To give it a later version than this one, which the peer of this index has and which does not count.
    Overrule(usize, Version),
    /// As [`Fetch::Overrule`], of a page that the peer has otherwise in the same version.
    Resolve(usize, Version),
}
