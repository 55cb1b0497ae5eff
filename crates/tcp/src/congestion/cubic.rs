//! CUBIC (RFC 9438), asked once per round trip: the window is a cubic function of the time since the last loss.

use super::sample::{Congestion, INITIAL_SEGMENTS, Loss, Pace, Sample, WINDOW_MAX};
use base::Instant;

/// RFC 9438 §5: segments per second cubed.
const C: f64 = 0.4;
/// What a loss leaves of the window (§4.6).
const BETA: f64 = 0.7;
/// Growth of the window that is fair to Reno (§4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The least window, in segments, after a loss (§4.6).
const SEGMENTS_MIN: f64 = 2.0;

/// The state of one flow. Windows are in segments.
#[derive(Clone, Debug)]
pub struct Cubic {
    window: f64,
    threshold: f64,
    window_max: f64,
    /// Since when the window follows the cubic function, and where that began.
    epoch: Option<(Instant, f64)>,
    /// What Reno would have.
    reno: f64,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: f64::from(INITIAL_SEGMENTS),
            threshold: f64::MAX,
            window_max: 0.0,
            epoch: None,
            reno: 0.0,
        }
    }
}

impl Cubic {
    fn pace(&self, mss: u32) -> Pace {
        let window = (self.window * f64::from(mss)).min(f64::from(WINDOW_MAX));
        Pace {
            window: window as u32,
            rate: 0,
        }
    }

    fn reduce(&mut self) {
        // Fast convergence (§4.7): leave room to others when the window did not come back.
        self.window_max = match self.window < self.window_max {
            true => self.window * (1.0 + BETA) / 2.0,
            false => self.window,
        };
        self.window = (self.window * BETA).max(SEGMENTS_MIN);
        self.threshold = self.window;
        self.epoch = None;
    }

    /// Congestion avoidance (§4.2–§4.5).
    fn avoid(&mut self, sample: &Sample, acked: f64) {
        let (epoch, start) = *self.epoch.get_or_insert((sample.now, self.window));
        if epoch == sample.now {
            self.reno = start;
            self.window_max = self.window_max.max(start);
        }
        let k = ((self.window_max - start) / C).cbrt();
        let time = (sample.now.since(epoch) + sample.srtt).as_secs_f64();
        let target = C * (time - k).powi(3) + self.window_max;
        self.reno += ALPHA * acked / self.window;
        // §4.2: at most half as much again in one round trip.
        self.window = target.clamp(self.window, self.window * 1.5).max(self.reno);
    }
}

impl Congestion for Cubic {
    fn start(&mut self, sample: &Sample) -> Pace {
        self.pace(sample.mss)
    }

    fn control(&mut self, sample: &Sample) -> Pace {
        let acked = f64::from(sample.acked_bytes) / f64::from(sample.mss);
        if sample.marked_bytes > 0 {
            self.reduce();
        } else if !sample.is_limited {
            // §5.8: time in which the application did not use the window does not count.
            self.epoch = None;
        } else if self.window < self.threshold {
            self.window = (self.window + acked).min(self.threshold.max(self.window));
        } else if acked > 0.0 {
            self.avoid(sample, acked);
        }
        self.pace(sample.mss)
    }

    fn lost(&mut self, _: Instant, loss: Loss, sample: &Sample) -> Pace {
        self.reduce();
        if loss == Loss::Timeout {
            // §4.8, RFC 5681 §3.1: slow start from one segment.
            self.window = 1.0;
        }
        self.pace(sample.mss)
    }
}
