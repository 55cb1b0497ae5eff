//! What other threads tell a core.

use crate::frontend::{Client, Traveller};
use crate::hosts::RackHost;
use crate::poller::Wake;
use base::Instant;
use host::target::{Moving, Relocation};
use std::sync::Arc;
use std::sync::mpsc::{SendError, Sender};

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

/// A core of the same target.
#[derive(Clone)]
pub(crate) struct Sibling {
    pub commands: Sender<Command>,
    pub wake: Arc<Wake>,
}

impl Sibling {
    /// Tells the core something; one that has died of a bug does not hear it.
    pub fn tell(&self, command: Command) -> Result<(), SendError<Command>> {
        self.commands.send(command)?;
        self.wake.wake();
        Ok(())
    }
}
