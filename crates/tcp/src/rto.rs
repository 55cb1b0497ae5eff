//! The retransmission timeout (RFC 6298).

use base::Duration;

/// Smoothed round trips of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed: Option<Duration>,
    last: Option<Duration>,
    variance: Duration,
}

impl Rtt {
    /// Takes a round trip of a segment that was sent once (§2.2, §2.3: weights of 1/8 and 1/4).
    pub fn sample(&mut self, rtt: Duration) {
        self.last = Some(rtt);
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.variance = rtt / 2;
            return;
        };
        self.variance = (self.variance * 3 + smoothed.abs_diff(rtt)) / 4;
        self.smoothed = Some((smoothed * 7 + rtt) / 8);
    }

    /// The last round trip.
    pub fn last(&self) -> Option<Duration> {
        self.last
    }

    /// The smoothed round trip.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The timeout: the smoothed round trip and four variances (§2.3), not less than `min`; `initial` before a sample.
    pub fn timeout(&self, initial: Duration, min: Duration) -> Duration {
        self.smoothed
            .map_or(initial, |smoothed| (smoothed + self.variance * 4).max(min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_that_of_rfc_6298() {
        let ms = Duration::from_millis;
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(ms(1000), ms(50)), ms(1000));
        rtt.sample(ms(100));
        assert_eq!(rtt.timeout(ms(1000), ms(50)), ms(300));
        // Variance (3 × 50 + 60) / 4, smoothed (7 × 100 + 160) / 8.
        rtt.sample(ms(160));
        assert_eq!(
            rtt.timeout(ms(1000), ms(50)),
            Duration::from_micros(107_500 + 4 * 52_500)
        );
        (0..100).for_each(|_| rtt.sample(ms(8)));
        assert_eq!(rtt.timeout(ms(1000), ms(50)), ms(50), "not below the least");
    }
}
