//! Connections that hold payload and wait for their own client: for the rest of a write, or until the client reads its
//! answers. If the client is stopped, that payload never comes back.
//!
//! - A connection whose client has moved nothing for [`STILL_TIME`] gets no more than its reserve.
//! - While clients that do not stand still are short of memory, the target cuts off clients that move less than a quarter of
//!   what their connections hold in [`HOLD_TIME`]. It spares those that keep to their reserve.
//! - A client's time begins when its connection comes to hold more than its reserve. It goes on until the client has sent and
//!   read everything: room in the socket is no end of it.
//!
//! A connection that waits for its medium waits for nobody's sake but its own client's: it is no holder.

use base::{Duration, Instant};

/// A client has so long to move a quarter of what its connection holds.
pub const HOLD_TIME: Duration = Duration::from_secs(5);
/// A client that moves nothing for so long stands still.
pub const STILL_TIME: Duration = Duration::from_millis(100);
/// While memory is short, holders are looked at so often.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Since when a connection holds what it holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Its time begins anew when it comes to hold more than its reserve.
    since: Instant,
    is_beyond: bool,
    /// Bytes that the client had sent and received until then.
    moved_bytes: u64,
    /// The same of the last time that it moved any.
    last: (Instant, u64),
}

/// Payload of a connection whose client is to send the rest of it, or to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Nothing,
    /// No more than its reserve.
    Reserve,
    /// More than its reserve.
    Beyond,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Holders {
    holds: Vec<Option<Hold>>,
    count: usize,
    check_at: Instant,
}

impl Holders {
    pub fn new(connections_max: usize) -> Self {
        Self {
            holds: vec![None; connections_max],
            count: 0,
            check_at: Instant::ZERO,
        }
    }

    /// A connection, whose client has moved so many bytes in all, holds something, perhaps more than its reserve, or holds
    /// nothing any more. While a holder does not wait for its client, it is the target's turn. True if the client had stood
    /// still, and has moved something now.
    pub fn note(
        &mut self,
        now: Instant,
        slot: usize,
        held: Held,
        awaits_client: bool,
        moved_bytes: u64,
    ) -> bool {
        let is_beyond = held == Held::Beyond;
        match &mut self.holds[slot] {
            Some(hold) => {
                let has_moved = hold.last.1 != moved_bytes;
                let stood_still = has_moved && now.since(hold.last.0) >= STILL_TIME;
                if held == Held::Nothing {
                    self.forget(slot);
                    return stood_still;
                }
                if has_moved || !awaits_client {
                    hold.last = (now, moved_bytes);
                }
                if is_beyond && !hold.is_beyond {
                    (hold.since, hold.moved_bytes) = (now, moved_bytes);
                }
                hold.is_beyond = is_beyond;
                stood_still
            }
            None if held == Held::Nothing || !awaits_client => false,
            hold @ None => {
                *hold = Some(Hold {
                    since: now,
                    is_beyond,
                    moved_bytes,
                    last: (now, moved_bytes),
                });
                self.count += 1;
                false
            }
        }
    }

    /// A connection has ended.
    pub fn forget(&mut self, slot: usize) {
        self.count -= usize::from(self.holds[slot].take().is_some());
    }

    /// True if a connection's client stands still.
    pub fn is_still(&self, now: Instant, slot: usize) -> bool {
        self.holds[slot].is_some_and(|hold| now.since(hold.last.0) >= STILL_TIME)
    }

    /// When holders are looked at next, if there is one.
    pub fn deadline(&self) -> Option<Instant> {
        (self.count > 0).then_some(self.check_at)
    }

    /// True if it is time to look at holders.
    pub fn is_due(&self, now: Instant) -> bool {
        self.count > 0 && now >= self.check_at
    }

    /// Nobody wants what holders have: they are looked at a little later.
    pub fn defer(&mut self, now: Instant) {
        self.check_at = now + STILL_TIME;
    }

    /// The next holder whose time is over and whose client did too little. `of` tells what a connection holds now, and how
    /// many bytes its client has moved in all, if others want what it holds. For a client that did enough the time begins anew.
    pub fn next_idle(&mut self, now: Instant, of: impl Fn(usize) -> Option<(u64, u64)>) -> Option<usize> {
        if !self.is_due(now) {
            return None;
        }
        for slot in 0..self.holds.len() {
            let Some(hold) = &mut self.holds[slot] else {
                continue;
            };
            if now.since(hold.since) < HOLD_TIME {
                continue;
            }
            let Some((held_bytes, moved_bytes)) = of(slot) else {
                continue;
            };
            if moved_bytes - hold.moved_bytes < held_bytes / 4 {
                self.forget(slot);
                return Some(slot);
            }
            (hold.since, hold.moved_bytes) = (now, moved_bytes);
        }
        self.check_at = now + CHECK_INTERVAL;
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
        let mut holders = Holders::new(4);
        for slot in 0..4 {
            holders.note(at(0), slot, Held::Beyond, true, 100);
        }
        let moved = |slot| (slot != 3).then_some((HELD, if slot == 1 { 1100 } else { 1099 }));
        assert_eq!(holders.next_idle(at(4), moved), None, "not yet");
        assert_eq!(holders.next_idle(at(5), moved), Some(0));
        assert_eq!(holders.next_idle(at(5), moved), Some(2));
        assert_eq!(
            holders.next_idle(at(5), moved),
            None,
            "nobody wants what the fourth has"
        );
        assert_eq!(
            holders.next_idle(at(9), moved),
            None,
            "a quarter is enough for five seconds more"
        );
        assert_eq!(holders.next_idle(at(10), moved), Some(1));
        assert_eq!(holders.next_idle(at(11), |_| Some((HELD, 100))), Some(3));
        assert_eq!(holders.deadline(), None);
    }

    #[test]
    fn who_let_go_begins_anew() {
        let mut holders = Holders::new(1);
        holders.note(at(0), 0, Held::Beyond, true, 0);
        holders.note(at(4), 0, Held::Nothing, false, 0);
        assert_eq!(holders.deadline(), None);
        holders.note(at(4), 0, Held::Beyond, true, 0);
        assert_eq!(holders.next_idle(at(5), |_| Some((HELD, 0))), None);
        assert_eq!(holders.next_idle(at(9), |_| Some((HELD, 0))), Some(0));
    }

    // Bug: a client that read a little now and then kept its memory for ever. Cause: whenever its socket took something
    // again, the client was no holder for a moment, and its time began anew. Fix: its time goes on while it has answers to
    // read.
    #[test]
    fn who_reads_too_little_is_found() {
        let mut holders = Holders::new(1);
        for second in 0..5 {
            holders.note(at(second), 0, Held::Beyond, true, second);
            holders.note(at(second), 0, Held::Beyond, false, second);
            assert!(!holders.is_still(at(second), 0), "it is the target's turn");
            holders.note(at(second), 0, Held::Beyond, true, second + 1);
        }
        assert_eq!(holders.next_idle(at(5), |_| Some((HELD, 5))), Some(0));
    }

    // Bug: a client that had kept to its reserve for long, and then asked for much, was cut at once. Cause: its time ran
    // from the first byte that it held. Fix: its time begins when it holds more than its reserve.
    #[test]
    fn time_begins_with_what_is_beyond_the_reserve() {
        let mut holders = Holders::new(1);
        holders.note(at(0), 0, Held::Reserve, true, 0);
        holders.note(at(60), 0, Held::Beyond, true, 0);
        assert_eq!(holders.next_idle(at(61), |_| Some((HELD, 0))), None);
        holders.note(at(62), 0, Held::Beyond, true, 0);
        assert_eq!(holders.next_idle(at(65), |_| Some((HELD, 0))), Some(0));
    }

    #[test]
    fn who_moves_nothing_stands_still() {
        let mut holders = Holders::new(1);
        holders.note(at(0), 0, Held::Reserve, true, 5);
        assert!(!holders.is_still(at(0), 0));
        assert!(holders.is_still(at(1), 0));
        holders.note(at(1), 0, Held::Reserve, true, 5);
        assert!(
            holders.is_still(at(1), 0),
            "it is looked at, and has moved nothing"
        );
        holders.note(at(1), 0, Held::Reserve, true, 6);
        assert!(!holders.is_still(at(1), 0));
    }
}
