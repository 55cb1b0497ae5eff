//! When an idle core polls and when it sleeps.
//!
//! Waking a sleeping virtual core costs about 20 µs each way, so a core that slept after every request could not
//! answer in less than 50 µs; one that always polled would burn a processor while idle. After work the core polls
//! for a *window* before it sleeps. The window follows what polling earned, as KVM's halt polling does: it grows
//! when work came soon after the core went to sleep (a full window would have caught it), and shrinks when polling
//! was in vain, down to nothing. A heartbeat every 100 ms therefore costs no polling, and a client that asks again
//! within the limit is met by a polling core from its fourth request on.

use base::{Duration, Instant};

/// A sleeping core learns of work this much after it came: the cost of the wake-up itself. Work that is seen within
/// the limit plus this came within the limit.
const WAKE_COST: Duration = Duration::from_micros(40);
/// The first window after none, as a part of the limit.
const FIRST_PART: u32 = 4;

/// The polling window of one core.
#[derive(Debug)]
pub struct Spin {
    limit: Duration,
    window: Duration,
    last_work: Instant,
    slept: bool,
}

impl Spin {
    /// Polls at most `limit` after work; zero never polls.
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            window: limit,
            last_work: now,
            slept: false,
        }
    }

    /// Work was found at `now`.
    pub fn worked(&mut self, now: Instant) {
        if self.slept {
            self.slept = false;
            let gap = now.since(self.last_work);
            if gap <= self.limit + WAKE_COST {
                self.window = (self.window * 2).max(self.limit / FIRST_PART).min(self.limit);
            } else {
                self.window /= 2;
                if self.window < self.limit / 16 {
                    self.window = Duration::ZERO;
                }
            }
        }
        self.last_work = now;
    }

    /// Until when to poll at `now`; `None` means that the core goes to sleep.
    pub fn polls_until(&mut self, now: Instant) -> Option<Instant> {
        let until = self.last_work + self.window;
        let polls = now < until;
        self.slept |= !polls;
        polls.then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn the_core_polls_for_the_window_and_then_sleeps() {
        let mut spin = Spin::new(LIMIT, at(0));
        spin.worked(at(100));
        assert_eq!(spin.polls_until(at(149)), Some(at(150)));
        assert_eq!(spin.polls_until(at(151)), None);
    }

    #[test]
    fn rare_work_ends_polling() {
        let mut spin = Spin::new(LIMIT, at(0));
        for beat in 1..10 {
            spin.worked(at(beat * 1000));
            spin.polls_until(at(beat * 1000 + 60));
        }
        spin.worked(at(20_000));
        assert_eq!(spin.polls_until(at(20_000)), None);
    }

    #[test]
    fn frequent_work_brings_polling_back() {
        let mut spin = Spin::new(LIMIT, at(0));
        spin.window = Duration::ZERO;
        let mut now = 1000;
        for _ in 0..4 {
            spin.worked(at(now));
            while spin.polls_until(at(now)).is_some() {
                now += 1;
            }
            now += 60;
        }
        assert_eq!(spin.window, LIMIT);
    }

    #[test]
    fn a_limit_of_zero_never_polls() {
        let mut spin = Spin::new(Duration::ZERO, at(0));
        for now in 0..100 {
            spin.worked(at(now));
            assert_eq!(spin.polls_until(at(now)), None);
        }
    }
}
