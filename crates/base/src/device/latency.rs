//! A device that takes time: an operation has its effect when it is submitted, and is done later.

use super::{Device, MediaDone, MediaKind, MediaOp, Queue, pass_on};
use crate::time::{Duration, Instant, earliest};
use std::collections::VecDeque;

/// How long operations take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyModel {
    /// Everything but a flush, in ns.
    pub io_ns: u64,
    /// A flush, in ns.
    pub flush_ns: u64,
}

/// Delays the completions of a queue by constant times.
#[derive(Debug)]
pub struct Latency<D> {
    inner: D,
    model: LatencyModel,
    /// Completions by time: a class of constant latency keeps the order of submission.
    io: VecDeque<(Instant, MediaDone)>,
    flushes: VecDeque<(Instant, MediaDone)>,
}

impl<D> Latency<D> {
    /// `inner`, made as slow as `model`.
    pub fn new(inner: D, model: LatencyModel) -> Self {
        Self {
            inner,
            model,
            io: VecDeque::new(),
            flushes: VecDeque::new(),
        }
    }

    /// Forgets what is in flight.
    pub fn reset(&mut self) {
        self.io.clear();
        self.flushes.clear();
    }

    /// What is delayed.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What is delayed.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }
}

impl<D: Queue> Latency<D> {
    #[inline(always)]
    fn take_in(&mut self, now: Instant) {
        while let Some(done) = self.inner.poll(now) {
            if done.kind == MediaKind::Flush {
                self.flushes
                    .push_back((now + Duration::from_nanos(self.model.flush_ns), done));
            } else {
                self.io
                    .push_back((now + Duration::from_nanos(self.model.io_ns), done));
            }
        }
    }
}

impl<D: Queue> Queue for Latency<D> {
    #[inline(always)]
    fn submit(&mut self, now: Instant, op: MediaOp) {
        self.inner.submit(now, op);
        self.take_in(now);
    }

    #[inline(always)]
    fn poll(&mut self, now: Instant) -> Option<MediaDone> {
        self.take_in(now);
        let at = |queue: &VecDeque<(Instant, MediaDone)>| queue.front().map(|(at, _)| *at);
        let (io, flush) = (at(&self.io), at(&self.flushes));
        let first = earliest(io, flush).filter(|&at| at <= now)?;
        let queue = if io == Some(first) {
            &mut self.io
        } else {
            &mut self.flushes
        };
        queue.pop_front().map(|(_, done)| done)
    }

    fn deadline(&self) -> Option<Instant> {
        let at = |queue: &VecDeque<(Instant, MediaDone)>| queue.front().map(|(at, _)| *at);
        earliest(earliest(at(&self.io), at(&self.flushes)), self.inner.deadline())
    }
}

impl<D: Device> Device for Latency<D> {
    pass_on!(device Self { inner, .. } => inner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::device::{Inline, suite};

    const MODEL: LatencyModel = LatencyModel {
        io_ns: 10,
        flush_ns: 25,
    };

    #[test]
    fn a_slow_medium_is_a_medium() {
        let mut latency = Latency::new(Inline::new(vec![0; 1 << 13]), MODEL);
        let at = |latency: &mut Latency<_>| latency.deadline().unwrap_or_default();
        suite::queue(&mut latency, 16, at);
    }

    #[test]
    fn operations_end_in_their_time_and_not_before() {
        let pool = Pool::new(4, 16);
        let mut latency = Latency::new(Inline::new(vec![0; 1 << 10]), MODEL);
        let at = Instant::from_nanos;
        latency.submit(at(0), MediaOp::flush(1));
        latency.submit(at(5), MediaOp::read(2, 0, pool.alloc().expect("a page is left")));
        assert_eq!(latency.deadline(), Some(at(15)));
        assert!(latency.poll(at(14)).is_none());
        assert_eq!(latency.poll(at(15)).map(|done| done.id), Some(2));
        assert!(latency.poll(at(24)).is_none());
        assert_eq!(latency.poll(at(25)).map(|done| done.id), Some(1));
        assert_eq!(latency.deadline(), None);
    }
}
