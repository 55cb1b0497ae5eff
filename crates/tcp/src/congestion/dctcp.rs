//! DCTCP by rate (TAS §3.2; DCTCP, SIGCOMM'10; RFC 8257): the rate falls by the share of bytes that were marked.

use super::sample::{Congestion, INITIAL_SEGMENTS, Loss, Pace, RATE_MIN, STEP, Sample};
use base::Instant;

/// Weight of the newest share (RFC 8257 §4.2: 1/16).
const GAIN: f64 = 1.0 / 16.0;
/// A flow that sends all it may gets at most so much more than has arrived (TAS).
const HEADROOM: f64 = 1.2;

/// The state of one flow.
#[derive(Clone, Debug)]
pub struct Dctcp {
    rate: u32,
    /// The smoothed share of marked bytes.
    alpha: f64,
    is_slow_start: bool,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self {
            rate: RATE_MIN,
            alpha: 1.0,
            is_slow_start: true,
        }
    }
}

impl Dctcp {
    fn pace(&mut self, rate: f64) -> Pace {
        let pace = Pace::of_rate(rate);
        self.rate = pace.rate;
        pace
    }
}

impl Congestion for Dctcp {
    fn start(&mut self, sample: &Sample) -> Pace {
        let rate = sample.rate_of(INITIAL_SEGMENTS * sample.mss);
        self.pace(f64::from(rate))
    }

    fn control(&mut self, sample: &Sample) -> Pace {
        if sample.acked_bytes == 0 {
            return self.pace(f64::from(self.rate));
        }
        let marked = f64::from(sample.marked_bytes) / f64::from(sample.acked_bytes);
        self.alpha += GAIN * (marked - self.alpha);
        let rate = f64::from(self.rate);
        if sample.marked_bytes > 0 {
            self.is_slow_start = false;
            return self.pace(rate * (1.0 - self.alpha / 2.0));
        }
        // What an application does not use tells nothing about the network.
        if !sample.is_limited {
            return self.pace(rate);
        }
        if self.is_slow_start {
            return self.pace((rate * 2.0).min(f64::from(sample.achieved()) * 2.0 * HEADROOM));
        }
        self.pace((rate + f64::from(STEP)).min(f64::from(sample.achieved()) * HEADROOM + f64::from(STEP)))
    }

    fn lost(&mut self, _: Instant, loss: Loss, _: &Sample) -> Pace {
        self.is_slow_start = false;
        match loss {
            Loss::Fast => self.pace(f64::from(self.rate) / 2.0),
            Loss::Timeout => self.pace(f64::from(self.rate) / 4.0),
        }
    }
}
