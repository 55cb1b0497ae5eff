//! The way of events out of the cores. A core never waits for whoever keeps them: what finds no room is counted.

use super::sync::mpsc::{Receiver, SyncSender, sync_channel};
use super::sync::{Arc, AtomicU64, Ordering::Relaxed, now};
use base::Instant;
use base::event::{Kind, Source};

/// An event on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// When it happened, by [`crate::now`].
    pub at: Instant,
    /// The source of the event.
    pub source: Source,
    /// What happened.
    pub kind: Kind,
}

/// Where cores, and other threads of the process, tell of events.
#[derive(Clone, Debug)]
pub struct Teller {
    sender: SyncSender<Option<Told>>,
    lost: Arc<AtomicU64>,
}

impl Teller {
    /// A way with room for `capacity` events, reserved now, and its end. Nothing comes after `None`.
    pub fn new(capacity: usize) -> (Self, Receiver<Option<Told>>) {
        let (sender, receiver) = sync_channel(capacity);
        let lost = Arc::default();
        (Self { sender, lost }, receiver)
    }

    /// Tells of an event that happens now.
    #[cold]
    pub fn tell(&self, source: Source, kind: Kind) {
        let at = now();
        if self.sender.try_send(Some(Told { at, source, kind })).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Nobody tells of anything any more; waits for room.
    pub fn end(&self) {
        // An end that is gone needs not to be told.
        let _ = self.sender.send(None);
    }

    /// Events that found no room, or nobody at the end.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}
