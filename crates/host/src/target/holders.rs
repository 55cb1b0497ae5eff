//! Connections that hold payload beyond their reserve and wait for their own client: for the rest of a write, or until the
//! client reads its answers. Such a client may be stopped, and what its connection holds would never come back. While
//! others wait for a share, a client that moves less than a quarter of it in [`HOLD_TIME`] is cut off.
//!
//! A connection that waits for its medium waits for nobody's sake but its own client's: it is no holder.

use base::time::earliest;
use base::{Duration, Instant};

/// A client has so long to move a quarter of what its connection holds beyond its reserve.
pub const HOLD_TIME: Duration = Duration::from_secs(5);

/// Since when a connection holds what it holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    since: Instant,
    /// Bytes that the client had sent and received until then.
    moved_bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Holders {
    holds: Vec<Option<Hold>>,
    count: usize,
    /// No hold is due before.
    check_at: Option<Instant>,
}

impl Holders {
    pub fn new(connections_max: usize) -> Self {
        Self {
            holds: vec![None; connections_max],
            count: 0,
            check_at: None,
        }
    }

    /// A connection, whose client has moved so many bytes in all, holds something, or holds nothing any more.
    pub fn note(&mut self, now: Instant, slot: usize, holds: bool, moved_bytes: u64) {
        let hold = &mut self.holds[slot];
        match (hold.is_some(), holds) {
            (false, true) => {
                let since = now;
                *hold = Some(Hold { since, moved_bytes });
                self.count += 1;
                self.check_at = earliest(self.check_at, Some(now + HOLD_TIME));
            }
            (true, false) => self.forget(slot),
            _ => {}
        }
    }

    /// A connection has ended.
    pub fn forget(&mut self, slot: usize) {
        self.count -= usize::from(self.holds[slot].take().is_some());
    }

    /// When a hold is looked at next, if there is one.
    pub fn deadline(&self) -> Option<Instant> {
        self.check_at.filter(|_| self.count > 0)
    }

    /// The first holder whose time is over and whose client did too little. `of` tells what a connection holds beyond its
    /// reserve now, and how many bytes its client has moved in all. Holders whose clients did enough begin anew.
    pub fn next_idle(&mut self, now: Instant, of: impl Fn(usize) -> (u64, u64)) -> Option<usize> {
        if self.deadline().is_none_or(|at| now < at) {
            return None;
        }
        self.check_at = None;
        for slot in 0..self.holds.len() {
            let Some(hold) = &mut self.holds[slot] else {
                continue;
            };
            if now >= hold.since + HOLD_TIME {
                let (held_bytes, moved_bytes) = of(slot);
                if moved_bytes - hold.moved_bytes < held_bytes / 4 {
                    self.check_at = Some(now);
                    self.forget(slot);
                    return Some(slot);
                }
                (hold.since, hold.moved_bytes) = (now, moved_bytes);
            }
            self.check_at = earliest(self.check_at, Some(hold.since + HOLD_TIME));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: u64 = 4000;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn who_does_nothing_is_found_and_who_moves_begins_anew() {
        let mut holders = Holders::new(3);
        for slot in 0..3 {
            holders.note(at(0), slot, true, 100);
        }
        assert_eq!(holders.next_idle(at(4), |_| (HELD, 100)), None, "not yet");
        let moved = |slot| (HELD, if slot == 1 { 1100 } else { 1099 });
        assert_eq!(holders.next_idle(at(5), moved), Some(0));
        assert_eq!(holders.next_idle(at(5), moved), Some(2));
        assert_eq!(holders.next_idle(at(5), moved), None);
        assert_eq!(
            holders.deadline(),
            Some(at(10)),
            "a quarter is enough for five seconds more"
        );
        assert_eq!(holders.next_idle(at(10), moved), Some(1));
        assert_eq!(holders.deadline(), None);
    }

    #[test]
    fn who_let_go_begins_anew() {
        let mut holders = Holders::new(1);
        holders.note(at(0), 0, true, 0);
        holders.note(at(4), 0, false, 0);
        assert_eq!(holders.deadline(), None);
        holders.note(at(4), 0, true, 0);
        assert_eq!(holders.next_idle(at(5), |_| (HELD, 0)), None);
        assert_eq!(holders.next_idle(at(9), |_| (HELD, 0)), Some(0));
    }
}
