//! What a control sees and says.

use base::{Duration, Instant};

/// What happened to a flow since its control was asked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Now.
    pub now: Instant,
    /// Time since then.
    pub elapsed: Duration,
    /// Bytes that were acknowledged.
    pub acked_bytes: u32,
    /// Those of them that came with a mark of congestion.
    pub marked_bytes: u32,
    /// The last round trip that was timed.
    pub rtt: Option<Duration>,
    /// The smoothed round trip; not zero.
    pub srtt: Duration,
    /// Payload of the longest segment.
    pub mss: u32,
    /// Bytes in flight.
    pub in_flight: u32,
    /// Whether the application has more to send than window and rate let it.
    pub is_limited: bool,
}

impl Sample {
    /// Bytes a millisecond that have arrived.
    pub fn achieved(&self) -> u32 {
        let nanos = self.elapsed.as_nanos().max(1) as u64;
        (u64::from(self.acked_bytes) * 1_000_000 / nanos).min(u64::from(u32::MAX)) as u32
    }

    /// The rate that sends `window` bytes each round trip.
    pub fn rate_of(&self, window: u32) -> u32 {
        let nanos = self.srtt.as_nanos().max(1) as u64;
        (u64::from(window) * 1_000_000 / nanos).clamp(1, u64::from(u32::MAX)) as u32
    }
}

/// What a flow may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes in flight.
    pub window: u32,
    /// Bytes a millisecond; 0 if only the window counts.
    pub rate: u32,
}

impl Pace {
    /// A rate in bytes a millisecond within the bounds, and no window.
    pub fn of_rate(rate: f64) -> Self {
        Self {
            window: WINDOW_MAX,
            rate: rate.clamp(f64::from(RATE_MIN), f64::from(u32::MAX)) as u32,
        }
    }
}

/// How a loss was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// By duplicate acknowledgements: others arrive.
    Fast,
    /// Nothing arrives.
    Timeout,
}

/// Segments that a flow may send before it knows anything (RFC 6928).
pub const INITIAL_SEGMENTS: u32 = 10;

/// What a control by rate adds each round trip: 10 Mbit/s (TAS).
pub const STEP: u32 = 1250;

/// The least rate: the step, so that a flow always finds out what is free.
pub const RATE_MIN: u32 = STEP;

/// No limit by window: the rings are the limit.
pub const WINDOW_MAX: u32 = 1 << 30;

/// A congestion control.
pub trait Congestion {
    /// The pace of a new flow, after the round trip of its handshake.
    fn start(&mut self, sample: &Sample) -> Pace;
    /// Once per round trip while something is in flight.
    fn control(&mut self, sample: &Sample) -> Pace;
    /// At once when something was lost, at most once per window.
    fn lost(&mut self, now: Instant, loss: Loss, sample: &Sample) -> Pace;
}
