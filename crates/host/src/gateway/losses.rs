//! Acknowledged writes of a volume that were lost before a flush, and the clients that know of it.
//!
//! A loss shows when a set tells another continuity than that of its unflushed writes
//! ([`check_continuity`](super::set::Set::check_continuity)). From then on the next flush of each client fails, once for each client: the
//! data may be those of any of them, and one client's answer says nothing to another one.

use base::{Duration, Instant, Map};

/// A client that comes so soon after a loss may be one that was cut off: its next flush tells of that loss, too.
const RECONNECTS_WITHIN: Duration = Duration::from_secs(60);

/// Of one volume.
#[derive(Debug, Default)]
pub(super) struct Losses {
    count: u64,
    /// When the last one showed.
    shown_at: Option<Instant>,
    /// So many losses some client has been told of.
    told: u64,
    /// Mutations acknowledged, and how many of them when the last loss showed.
    acked: u64,
    acked_at_last: u64,
    /// The losses that each client need not be told of.
    known: Map<u32, u64>,
}

impl Losses {
    /// A client asks for something that a loss may concern.
    pub fn meet(&mut self, now: Instant, client: u32) {
        let (count, told) = (self.count, self.told);
        let is_recent = self.shown_at.is_some_and(|at| now.since(at) < RECONNECTS_WITHIN);
        self.known.or_insert_with(client, || match is_recent {
            true => told.min(count - 1),
            false => told,
        });
    }

    /// A client is gone.
    pub fn leave(&mut self, client: u32) {
        self.known.remove(&client);
    }

    /// A mutation was acknowledged.
    pub fn acknowledge(&mut self) {
        self.acked += 1;
    }

    /// Mutations acknowledged so far.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Losses that have shown so far.
    pub fn shown(&self) -> u64 {
        self.count
    }

    /// Acknowledged mutations are lost.
    pub fn note(&mut self, now: Instant) {
        self.count += 1;
        self.shown_at = Some(now);
        self.acked_at_last = self.acked;
    }

    /// A flush that began when `acked` mutations were acknowledged is done. True if it has to tell its client of a loss. It tells of all only if
    /// it is for all that may be lost; else the next one does. One that was under way when a loss showed (`shown` of them had before) fails
    /// in any case: what was written before it may be lost.
    pub fn tell(&mut self, client: u32, acked: u64, shown: u64) -> bool {
        // One that has left hears nothing.
        let Some(known) = self.known.get_mut(&client) else {
            return false;
        };
        let is_untold = *known < self.count;
        if is_untold && acked >= self.acked_at_last {
            *known = self.count;
            self.told = self.count;
        }
        is_untold || shown < self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// A flush that nothing happens to. True if it fails.
    fn flush(losses: &mut Losses, client: u32) -> bool {
        losses.tell(client, losses.acked(), losses.shown())
    }

    /// bug: a loss was told to the first client that flushed, and the flush of the one whose data were lost succeeded.
    /// fix: each client is told.
    #[test]
    fn each_client_is_told_once() {
        let mut losses = Losses::default();
        losses.meet(at(0), 1);
        losses.meet(at(0), 2);
        losses.acknowledge();
        losses.note(at(1));
        for client in [1, 2] {
            assert!(flush(&mut losses, client));
            assert!(!flush(&mut losses, client));
        }
        losses.note(at(2));
        assert!(flush(&mut losses, 2) && flush(&mut losses, 1));
    }

    #[test]
    fn a_flush_from_before_a_write_does_not_tell_of_its_loss() {
        let mut losses = Losses::default();
        losses.meet(at(0), 1);
        losses.acknowledge();
        let early = losses.acked();
        losses.acknowledge();
        losses.note(at(1));
        assert!(losses.tell(1, early, 0), "its write was lost");
        assert!(flush(&mut losses, 1), "so was the later one");
        assert!(!flush(&mut losses, 1));
    }

    #[test]
    fn who_comes_later_is_told_if_nobody_was_or_if_it_may_have_been_cut_off() {
        let mut losses = Losses::default();
        losses.note(at(1));
        losses.meet(at(100), 1);
        assert!(flush(&mut losses, 1), "nobody was told before");
        losses.meet(at(101), 2);
        assert!(!flush(&mut losses, 2));
        losses.note(at(200));
        assert!(flush(&mut losses, 1));
        losses.meet(at(201), 3);
        assert!(flush(&mut losses, 3), "it may be a client of before");
        losses.leave(3);
        losses.meet(at(300), 3);
        assert!(!flush(&mut losses, 3));
    }
}
