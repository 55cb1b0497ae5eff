//! A queue over a device that answers at once.

use super::{Device, MediaDone, MediaKind, MediaOp, Queue, pass_on};
use crate::time::Instant;
use std::collections::VecDeque;

/// Carries an operation out at once.
pub fn execute<D: Device + ?Sized>(device: &mut D, op: MediaOp) -> MediaDone {
    let result = match op.kind {
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
    };
    op.done(result)
}

/// A device as a queue: an operation is done when it is submitted.
#[derive(Debug)]
pub struct Inline<D> {
    inner: D,
    done: VecDeque<MediaDone>,
}

impl<D> Inline<D> {
    /// A queue over `inner`.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            done: VecDeque::new(),
        }
    }
}

impl<D: Device> Queue for Inline<D> {
    #[inline(always)]
    fn submit(&mut self, _now: Instant, op: MediaOp) {
        let done = execute(&mut self.inner, op);
        self.done.push_back(done);
    }

    #[inline(always)]
    fn poll(&mut self, _now: Instant) -> Option<MediaDone> {
        self.done.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.done.is_empty()).then_some(Instant::ZERO)
    }
}

impl<D: Device> Device for Inline<D> {
    pass_on!(device Self { inner, .. } => inner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::suite;

    #[test]
    fn memory_is_a_medium() {
        suite::device(&mut vec![0; 1 << 16]);
        suite::queue(&mut Inline::new(vec![0; 1 << 18]), 512, |_| Instant::ZERO);
        suite::queue(&mut Inline::new(vec![0; 1 << 13]), 16, |_| Instant::ZERO);
    }
}
