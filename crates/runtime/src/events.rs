//! The way of events out of the cores. A core never waits for whoever keeps them: what finds no room is counted.

use base::Instant;
use base::event::{Kind, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

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
        let at = crate::now();
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::NodeId;

    #[test]
    fn events_arrive_in_order_and_a_full_way_holds_nobody_up() {
        let (teller, end) = Teller::new(2);
        let event = |node| Kind::NodeStopping { node: NodeId(node) };
        for node in 1..=3 {
            teller.tell(Source::Gateway(0), event(node));
        }
        assert_eq!(teller.lost(), 1);
        let kinds: Vec<Kind> = end.try_iter().flatten().map(|told| told.kind).collect();
        assert_eq!(kinds, [event(1), event(2)]);
    }
}
