//! Where reads spend their time: network, queue, waiting for garbage collection, device, and the predicted way back.

use base::{Duration, Instant};
use hdrhistogram::Histogram;
use wire::rack::Header;

/// The names of the stages, in order.
pub const STAGES: [&str; 5] = ["net", "queue", "gc_wait", "device", "return"];

/// A histogram of nanoseconds per stage.
#[derive(Clone, Debug)]
pub struct Stages {
    each: [Histogram<u64>; 5],
    storage: Histogram<u64>,
}

/// Longest time told apart: one minute.
const NANOS_MAX: u64 = 60_000_000_000;

impl Default for Stages {
    fn default() -> Self {
        Self::new()
    }
}

impl Stages {
    /// Empty histograms.
    pub fn new() -> Self {
        let empty = || Histogram::new_with_bounds(1, NANOS_MAX, 2).expect("valid bounds");
        Self {
            each: core::array::from_fn(|_| empty()),
            storage: empty(),
        }
    }

    /// Adds a read that went to the flash. While the vSSD collects, its time there is waiting for collection.
    pub fn record(
        &mut self,
        header: &Header,
        arrived: Instant,
        issued: Instant,
        done: Instant,
        predicted_ns: u64,
        collecting: bool,
    ) {
        let device = done.nanos_since(issued);
        let stages = [
            u64::from(header.lat_ns),
            issued.nanos_since(arrived),
            if collecting { device } else { 0 },
            if collecting { 0 } else { device },
            predicted_ns,
        ];
        for (histogram, nanos) in self.each.iter_mut().zip(stages) {
            histogram.saturating_record(nanos);
        }
        self.storage.saturating_record(done.nanos_since(arrived));
    }

    /// Adds a read that the write cache answered.
    pub fn record_hit(&mut self, header: &Header, waited: Duration) {
        self.each[0].saturating_record(u64::from(header.lat_ns));
        self.each[1].saturating_record(waited.as_nanos() as u64);
        self.storage.saturating_record(waited.as_nanos() as u64);
    }

    /// The stages with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Histogram<u64>)> {
        STAGES.into_iter().zip(&self.each)
    }

    /// Time between a read's arrival here and its answer.
    pub fn storage(&self) -> &Histogram<u64> {
        &self.storage
    }

    /// Adds another vSSD's.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.each.iter_mut().zip(&other.each) {
            mine.add(theirs).expect("equal bounds");
        }
        self.storage.add(&other.storage).expect("equal bounds");
    }
}
