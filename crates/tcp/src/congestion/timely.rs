//! TIMELY (SIGCOMM'15, Algorithm 1): the rate follows the gradient of round trips. Thresholds are those of TAS.
//!
//! It takes whatever delays an acknowledgement for a queue, so peers must not put acknowledgements off for longer than the
//! lower threshold (`Config::ack_delay`).

use super::sample::{Congestion, INITIAL_SEGMENTS, Loss, Pace, RATE_MIN, STEP, Sample};
use base::Instant;

/// Shorter round trips have no queue.
const LOW_NS: f64 = 30_000.0;
/// Longer round trips have too long a queue.
const HIGH_NS: f64 = 150_000.0;
/// Weight of the newest difference (TIMELY §5: 1 - 0.875).
const GAIN: f64 = 0.125;
/// How much a gradient of 1 takes of the rate.
const BETA: f64 = 0.8;
/// Round trips with a falling gradient after which steps are five times as long (TIMELY §4.3.2).
const HYPERACTIVE_AFTER: u32 = 5;

/// The state of one flow.
#[derive(Clone, Debug)]
pub struct Timely {
    rate: u32,
    rtt_ns: f64,
    /// The shortest round trip: by it the gradient is normalised.
    rtt_min_ns: f64,
    difference_ns: f64,
    falling: u32,
    is_slow_start: bool,
}

impl Default for Timely {
    fn default() -> Self {
        Self {
            rate: RATE_MIN,
            rtt_ns: 0.0,
            rtt_min_ns: f64::MAX,
            difference_ns: 0.0,
            falling: 0,
            is_slow_start: true,
        }
    }
}

impl Timely {
    fn pace(&mut self, rate: f64) -> Pace {
        let pace = Pace::of_rate(rate);
        self.rate = pace.rate;
        pace
    }

    fn grow(&mut self, sample: &Sample, steps: u32) -> Pace {
        let rate = f64::from(self.rate);
        match (sample.is_limited, self.is_slow_start) {
            (false, _) => self.pace(rate),
            (true, true) => self.pace(rate * 2.0),
            (true, false) => self.pace(rate + f64::from(steps * STEP)),
        }
    }
}

impl Congestion for Timely {
    fn start(&mut self, sample: &Sample) -> Pace {
        let rate = sample.rate_of(INITIAL_SEGMENTS * sample.mss);
        self.pace(f64::from(rate))
    }

    fn control(&mut self, sample: &Sample) -> Pace {
        let rate = f64::from(self.rate);
        let Some(rtt) = sample.rtt else {
            return self.pace(rate);
        };
        let rtt_ns = rtt.as_nanos() as f64;
        if self.rtt_ns > 0.0 {
            self.difference_ns += GAIN * (rtt_ns - self.rtt_ns - self.difference_ns);
        }
        self.rtt_ns = rtt_ns;
        self.rtt_min_ns = self.rtt_min_ns.min(rtt_ns);
        let gradient = self.difference_ns / self.rtt_min_ns.max(1.0);
        if rtt_ns < LOW_NS {
            return self.grow(sample, 1);
        }
        if rtt_ns > HIGH_NS {
            (self.is_slow_start, self.falling) = (false, 0);
            return self.pace(rate * (1.0 - BETA * (1.0 - HIGH_NS / rtt_ns)));
        }
        if gradient > 0.0 {
            (self.is_slow_start, self.falling) = (false, 0);
            return self.pace(rate * (1.0 - BETA * gradient.min(1.0)));
        }
        self.falling += 1;
        self.grow(sample, if self.falling >= HYPERACTIVE_AFTER { 5 } else { 1 })
    }

    fn lost(&mut self, _: Instant, loss: Loss, _: &Sample) -> Pace {
        (self.is_slow_start, self.falling) = (false, 0);
        match loss {
            Loss::Fast => self.pace(f64::from(self.rate) / 2.0),
            Loss::Timeout => self.pace(f64::from(self.rate) / 4.0),
        }
    }
}
