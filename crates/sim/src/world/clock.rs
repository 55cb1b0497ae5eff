//! Clocks of hosts, each of which may run at its own rate.

use base::Instant;

const MILLION: i128 = 1_000_000;

/// What a host's clock shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// So much faster than time, in millionths, since this instant, when it showed the other.
    ppm: i32,
    since_ns: u64,
    shown_ns: u64,
}

impl Clock {
    /// From now on it runs at this rate.
    pub(super) fn set_rate(&mut self, now: Instant, ppm: i32) {
        self.shown_ns = self.show(now).as_nanos();
        (self.ppm, self.since_ns) = (ppm, now.as_nanos());
    }

    /// What it shows.
    #[inline(always)]
    pub(super) fn show(&self, now: Instant) -> Instant {
        match (self.ppm, self.since_ns) {
            (0, 0) => now,
            _ => self.show_other(now),
        }
    }

    #[cold]
    fn show_other(&self, now: Instant) -> Instant {
        let passed = i128::from(now.as_nanos() - self.since_ns);
        let shown = i128::from(self.shown_ns) + passed * (MILLION + i128::from(self.ppm)) / MILLION;
        Instant::from_nanos(shown as u64)
    }

    /// The first time at which it shows this, or later.
    pub(super) fn when(&self, shown: Instant) -> Instant {
        if (self.ppm, self.since_ns) == (0, 0) || shown == Instant::FAR_FUTURE {
            return shown;
        }
        let passed = i128::from(shown.as_nanos()) - i128::from(self.shown_ns);
        let rate = MILLION + i128::from(self.ppm);
        let after = (passed * MILLION).div_euclid(rate) + i128::from((passed * MILLION).rem_euclid(rate) > 0);
        let at = i128::from(self.since_ns) + after;
        Instant::from_nanos(at.clamp(0, i128::from(u64::MAX)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_a_time_when_it_is_said_to() {
        for ppm in [-100_000, -1, 1, 49_000] {
            let mut clock = Clock::default();
            clock.set_rate(Instant::from_nanos(1_000), ppm);
            assert_eq!(clock.show(Instant::from_nanos(1_000)), Instant::from_nanos(1_000));
            for shown in (1_001..3_000_000).step_by(997).map(Instant::from_nanos) {
                let at = clock.when(shown);
                assert!(clock.show(at) >= shown);
                let before = Instant::from_nanos(at.as_nanos() - 1);
                assert!(clock.show(before) < shown);
            }
        }
    }
}
