//! A token bucket: what keeps a software-isolated vSSD to its share of its channels (RackBlox §3.2).

use base::{Duration, Instant};

/// A rate and how far it may be exceeded for a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens a second; above 0.
    pub per_second: f64,
    /// Tokens that gather while none is taken; at least 1.
    pub burst: f64,
}

/// Tokens that come at a steady rate. One is taken for each unit of work.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    ///
    /// # Panics
    /// If the rate is not above 0, or the burst below 1.
    pub fn new(now: Instant, rate: Rate) -> Self {
        assert!(
            rate.per_second > 0.0 && rate.burst >= 1.0,
            "a bucket lets something through"
        );
        Self {
            rate,
            tokens: rate.burst,
            at: now,
        }
    }

    /// From now on tokens come at this rate.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        self.refill(now);
        (self.rate, self.tokens) = (rate, self.tokens.min(rate.burst));
    }

    fn refill(&mut self, now: Instant) {
        let gathered = now.nanos_since(self.at) as f64 / 1e9 * self.rate.per_second;
        self.tokens = (self.tokens + gathered).min(self.rate.burst);
        self.at = self.at.max(now);
    }

    /// True if there is a token.
    pub fn has_token(&mut self, now: Instant) -> bool {
        self.refill(now);
        !self.is_empty()
    }

    /// True if there was none when it was last looked at.
    pub fn is_empty(&self) -> bool {
        self.tokens < 1.0
    }

    /// Takes a token.
    ///
    /// # Panics
    /// If there is none.
    pub fn take(&mut self) {
        assert!(!self.is_empty(), "a token that is there is taken");
        self.tokens -= 1.0;
    }

    /// When there is a token again: now, if there is one.
    pub fn ready_at(&self) -> Instant {
        let missing = (1.0 - self.tokens).max(0.0);
        // Rounded up, so that it is there then.
        let nanos = (missing / self.rate.per_second * 1e9).ceil() as u64 + u64::from(missing > 0.0);
        self.at + Duration::from_nanos(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(bucket: &mut Bucket, now: Instant) -> bool {
        let there = bucket.has_token(now);
        if there {
            bucket.take();
        }
        there
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let rate = Rate {
            per_second: 10_000.0,
            burst: 5.0,
        };
        let mut bucket = Bucket::new(at(0), rate);
        let first = (0..20).filter(|_| take(&mut bucket, at(0))).count();
        assert_eq!(first, 5);
        let taken = (0..10_000).filter(|us| take(&mut bucket, at(*us))).count();
        assert!((99..=100).contains(&taken), "{taken} in 10 ms");
        assert!(take(&mut bucket, at(1_000_000)), "and it fills again");
    }

    #[test]
    fn it_is_ready_when_it_says_so() {
        for per_second in [3.0, 777.0, 19_083.97] {
            let mut bucket = Bucket::new(
                at(0),
                Rate {
                    per_second,
                    burst: 1.0,
                },
            );
            for _ in 0..100 {
                while !bucket.is_empty() {
                    bucket.take();
                }
                let ready = bucket.ready_at();
                assert!(ready > bucket.at);
                assert!(take(&mut bucket, ready), "at {per_second} a second");
            }
        }
    }
}
