//! A queue over a device that answers at once: an operation has its effect when it is submitted, and is done later.

use super::{Device, MediaDone, MediaError, MediaKind, MediaOp, Queue, pass_on};
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

/// Carries an operation out at once.
pub fn execute<D: Device + ?Sized>(device: &mut D, op: MediaOp) -> MediaDone {
    let result = effect(device, &op);
    op.done(result)
}

fn effect<D: Device + ?Sized>(device: &mut D, op: &MediaOp) -> Result<(), MediaError> {
    match op.kind {
        MediaKind::Read => op
            .parts()
            .try_for_each(|(at, page, part)| page.with_mut(|bytes| device.read_at(at, &mut bytes[part]))),
        MediaKind::Write | MediaKind::WriteThrough => op.parts().try_for_each(|(at, page, part)| {
            page.with(|bytes| match op.kind {
                MediaKind::WriteThrough => device.write_through(at, &bytes[part]),
                _ => device.write_at(at, &bytes[part]),
            })
        }),
        MediaKind::Flush => device.flush(),
        MediaKind::Discard | MediaKind::Zero => device.discard(op.offset, u64::from(op.length)),
    }
}

type Ends = VecDeque<(Instant, MediaDone)>;

/// A device as a queue: operations take constant times.
#[derive(Debug)]
pub struct Latency<D> {
    inner: D,
    model: LatencyModel,
    /// Completions by time: a class keeps the order of submission.
    io: Ends,
    flushes: Ends,
}

impl<D> Latency<D> {
    /// `inner`, made as slow as `model`.
    pub fn new(inner: D, model: LatencyModel) -> Self {
        Self {
            inner,
            model,
            io: Ends::new(),
            flushes: Ends::new(),
        }
    }

    /// `inner`: an operation is done when it is submitted.
    pub fn none(inner: D) -> Self {
        Self::new(inner, LatencyModel::default())
    }

    /// The device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// From now on operations take these times; none is done before an earlier one of its class.
    pub fn set_model(&mut self, model: LatencyModel) {
        self.model = model;
    }

    /// Forgets what is in flight.
    pub fn reset(&mut self) {
        self.io.clear();
        self.flushes.clear();
    }
}

impl<D: Device> Queue for Latency<D> {
    #[inline(always)]
    fn submit(&mut self, now: Instant, op: MediaOp) {
        let result = effect(&mut self.inner, &op);
        let (ends, takes_ns) = match op.kind {
            MediaKind::Flush => (&mut self.flushes, self.model.flush_ns),
            _ => (&mut self.io, self.model.io_ns),
        };
        let at = now + Duration::from_nanos(takes_ns);
        let at = ends.back().map_or(at, |(before, _)| at.max(*before));
        ends.push_back((at, op.done(result)));
    }

    #[inline(always)]
    fn poll(&mut self, now: Instant) -> Option<MediaDone> {
        let at = |ends: &Ends| ends.front().map(|(at, _)| *at);
        let (io, flush) = (at(&self.io), at(&self.flushes));
        let first = earliest(io, flush).filter(|&at| at <= now)?;
        let ends = if io == Some(first) {
            &mut self.io
        } else {
            &mut self.flushes
        };
        ends.pop_front().map(|(_, done)| done)
    }

    fn deadline(&self) -> Option<Instant> {
        let at = |ends: &Ends| ends.front().map(|(at, _)| *at);
        earliest(at(&self.io), at(&self.flushes))
    }
}

impl<D: Device> Device for Latency<D> {
    pass_on!(device Self { inner, .. } => inner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::device::suite;

    const MODEL: LatencyModel = LatencyModel {
        io_ns: 10,
        flush_ns: 25,
    };

    #[test]
    fn memory_is_a_medium() {
        suite::device(&mut vec![0; 1 << 16]);
        suite::queue(&mut Latency::none(vec![0; 1 << 18]), 512, |_| Instant::ZERO);
        suite::queue(&mut Latency::none(vec![0; 1 << 13]), 16, |_| Instant::ZERO);
    }

    #[test]
    fn a_slow_medium_is_a_medium() {
        let mut latency = Latency::new(vec![0; 1 << 13], MODEL);
        let at = |latency: &mut Latency<_>| latency.deadline().unwrap_or_default();
        suite::queue(&mut latency, 16, at);
    }

    #[test]
    fn operations_end_in_their_time_and_not_before() {
        let pool = Pool::new(4, 16);
        let mut latency = Latency::new(vec![0; 1 << 10], MODEL);
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
