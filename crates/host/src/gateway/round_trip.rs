//! How long to wait for an answer before asking again (RFC 6298): by the times that answers took, and, while none comes in time, ever longer.
//!
//! Only the answer to what was sent once is measured, as another one may be for either sending (Karn's rule). Where every answer comes
//! late nothing would be measured, and each operation would begin with too short a wait. So the time that one operation has waited
//! is the next one's first wait, until an answer is in time again.

use base::{Duration, Instant};

const WAIT_MIN: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The wait doubles so often at most: from the least to more than the most.
const DOUBLINGS_MAX: u32 = 7;

/// The answers to one kind of operation of a set.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    smoothed_ns: u64,
    variance_ns: u64,
    doublings: u32,
    doubled_at: Option<Instant>,
}

impl RoundTrip {
    /// An answer took so long, to an operation that was sent once (§2).
    pub fn observe(&mut self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.doublings = 0;
        if self.smoothed_ns == 0 {
            self.smoothed_ns = nanos;
            self.variance_ns = nanos / 2;
        } else {
            self.variance_ns = (3 * self.variance_ns + self.smoothed_ns.abs_diff(nanos)) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + nanos) / 8;
        }
    }

    /// An operation that was sent so many times has no answer in time (§5.5). Of operations that are late together one counts.
    pub fn missed(&mut self, now: Instant, attempts: u32) {
        let waited = self.wait(0);
        if self.doubled_at.is_none_or(|at| now.since(at) >= waited) {
            self.doublings = DOUBLINGS_MAX.min(self.doublings.max(attempts.saturating_sub(1)) + 1);
            self.doubled_at = Some(now);
        }
    }

    /// How long to wait for the answer to what was sent `attempts` times before.
    pub fn wait(&self, attempts: u32) -> Duration {
        let once = Duration::from_nanos(self.smoothed_ns + 4 * self.variance_ns).max(WAIT_MIN);
        let doublings = attempts.max(self.doublings).min(DOUBLINGS_MAX);
        once.saturating_mul(1 << doublings).min(WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(at: u64) -> Instant {
        Instant::ZERO + ms(at)
    }

    #[test]
    fn the_wait_follows_the_answers_and_doubles_with_each_sending() {
        let mut times = RoundTrip::default();
        assert_eq!(
            [0, 1, 2, 20].map(|attempts| times.wait(attempts)),
            [20, 40, 80, 2_000].map(ms)
        );
        for _ in 0..100 {
            times.observe(ms(50));
        }
        assert_eq!((times.wait(0).as_millis(), times.wait(1).as_millis()), (50, 100));
    }

    /// bug: on a machine without time to spare every write was late, none was measured, and each was sent five times and more.
    #[test]
    fn where_every_answer_is_late_the_next_operation_waits_as_long_as_the_last_one_has() {
        let mut times = RoundTrip::default();
        // Each operation takes 300 ms. Others begin and are late at the same time.
        times.missed(at(20), 1);
        times.missed(at(20), 1);
        assert_eq!(times.wait(0), ms(40), "those that are late together count once");
        times.missed(at(60), 2);
        times.missed(at(140), 3);
        times.missed(at(300), 4);
        assert_eq!(times.wait(0), ms(320));
        times.observe(ms(300));
        assert_eq!(times.wait(0), ms(900), "from here on it is measured");
    }
}
