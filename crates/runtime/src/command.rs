//! What other threads tell a core.

use super::frontend::{Client, Traveller};
use super::hosts::RackHost;
use base::Instant;
use host::target::{Moving, Relocation};

/// A closure for one host.
pub(crate) type Job = Box<dyn FnOnce(&mut dyn RackHost, Instant) + Send>;

/// What other threads tell a core.
pub(crate) enum Command {
    Call {
        host: usize,
        job: Job,
    },
    /// A client that another core of the target has accepted.
    Adopt(Client),
    /// A connection of this core is to move.
    Move(Relocation),
    /// All connections of this core are to move to another.
    MoveAll {
        to: usize,
    },
    /// A connection that moves here.
    Arrive(Box<Arrival>),
    Stop,
}

/// A connection between two cores, and what the dispatcher knows of it.
pub(crate) struct Arrival {
    pub traveller: Traveller,
    pub moving: Moving,
}
