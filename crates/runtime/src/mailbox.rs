//! Commands from other threads to a core, and the wake that tells the core of them.
//!
//! # Why no command is lost
//! A sender leaves its command first and wakes the core then. The core clears the wake first and takes commands then, until
//! there is none. So a command that the core does not find is followed by a wake that it has not cleared, and its poller
//! returns at once. A core that ends drops its mailbox: later commands come back to their senders, and what lies in the
//! mailbox is dropped.

use super::sync::mpsc::{Receiver, SendError, Sender, TryRecvError, channel};
use super::sync::{Arc, Wake};
use std::{fmt, io};

/// Where other threads leave commands for a core.
pub(crate) struct Address<T> {
    commands: Sender<T>,
    wake: Arc<Wake>,
}

/// The core's end.
pub(crate) struct Mailbox<T> {
    commands: Receiver<T>,
    wake: Arc<Wake>,
}

impl<T> Address<T> {
    /// Tells the core something. The command comes back if the core has ended.
    pub fn tell(&self, command: T) -> Result<(), SendError<T>> {
        self.commands.send(command)?;
        self.wake.wake();
        Ok(())
    }
}

impl<T> Mailbox<T> {
    pub fn new() -> io::Result<(Self, Address<T>)> {
        let (sender, receiver) = channel();
        let wake = Arc::new(Wake::new()?);
        let address = Address {
            commands: sender,
            wake: Arc::clone(&wake),
        };
        let commands = receiver;
        Ok((Self { commands, wake }, address))
    }

    /// Wakes the core, also for other reasons than commands.
    pub fn wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// The core is awake. It now takes commands until there is none.
    pub fn open(&self) {
        self.wake.clear();
    }

    /// The next command; `Disconnected` if nobody can leave one any more.
    pub fn next(&self) -> Result<T, TryRecvError> {
        self.commands.try_recv()
    }
}

impl<T> Clone for Address<T> {
    fn clone(&self) -> Self {
        Self {
            commands: self.commands.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}

impl<T> fmt::Debug for Address<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}
