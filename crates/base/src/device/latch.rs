//! After a failed write or flush nothing more is written: nobody can tell what the device has dropped.

use super::sync::{AtomicBool, Ordering::Relaxed};
use super::{Device, MediaDone, MediaError, MediaOp, Queue, pass_on};
use crate::time::Instant;
use std::collections::VecDeque;
use std::sync::Arc;

/// Refuses changes after a failed one, or after any operation that did not come back. Reads go on.
///
/// A write that met a full medium ([`MediaError::NoSpace`]) took nothing, so nothing is lost and nothing is latched.
#[derive(Debug)]
pub struct Latch<D> {
    inner: D,
    /// Shared by all queues of one medium.
    failed: Arc<AtomicBool>,
    refused: VecDeque<MediaDone>,
}

impl<D> Latch<D> {
    /// Latches `inner` together with every other holder of `failed`.
    pub fn new(inner: D, failed: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            failed,
            refused: VecDeque::new(),
        }
    }

    /// True after a failed change.
    pub fn is_latched(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// What is latched.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    fn note(&self, changes: bool, result: Result<(), MediaError>) {
        let fails = match result {
            Ok(()) | Err(MediaError::NoSpace | MediaError::OutOfRange | MediaError::Latched) => false,
            Err(MediaError::TimedOut) => true,
            Err(MediaError::Io) => changes,
        };
        if fails {
            self.failed.store(true, Relaxed);
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut D) -> Result<(), MediaError>) -> Result<(), MediaError> {
        if self.is_latched() {
            return Err(MediaError::Latched);
        }
        let result = change(&mut self.inner);
        self.note(true, result);
        result
    }
}

impl<D: Queue> Queue for Latch<D> {
    fn submit(&mut self, now: Instant, op: MediaOp) {
        if op.kind.changes() && self.is_latched() {
            return self.refused.push_back(op.done(Err(MediaError::Latched)));
        }
        self.inner.submit(now, op);
    }

    fn poll(&mut self, now: Instant) -> Option<MediaDone> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        let done = self.inner.poll(now)?;
        if done.result.is_err() {
            self.note(done.kind.changes(), done.result);
        }
        Some(done)
    }

    fn deadline(&self) -> Option<Instant> {
        match self.refused.is_empty() {
            true => self.inner.deadline(),
            false => Some(Instant::ZERO),
        }
    }
}

impl<D: Device> Device for Latch<D> {
    pass_on!();
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.change(|inner| inner.write_at(offset, bytes))
    }
    fn flush(&mut self) -> Result<(), MediaError> {
        self.change(D::flush)
    }
    fn write_through(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.change(|inner| inner.write_through(offset, bytes))
    }
    fn discard(&mut self, offset: u64, length: u64) -> Result<(), MediaError> {
        self.change(|inner| inner.discard(offset, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Faults, Inline, suite};
    use crate::{Pool, Rng};

    const NOW: Instant = Instant::ZERO;

    fn latch(failed: &Arc<AtomicBool>) -> Latch<Faults<Inline<Vec<u8>>>> {
        let faults = Faults::new(Inline::new(vec![0; 1 << 13]), Rng::new(1));
        Latch::new(faults, Arc::clone(failed))
    }

    #[test]
    fn a_sound_medium_is_not_latched() {
        let mut latch = latch(&Arc::default());
        suite::queue(&mut latch, 16, |_| NOW);
        suite::device(&mut latch);
        assert!(!latch.is_latched());
    }

    #[test]
    fn write_after_a_failed_flush_is_refused_by_every_queue_of_the_medium() {
        let failed = Arc::default();
        let (mut latch, mut other) = (self::latch(&failed), self::latch(&failed));
        let pool = Pool::new(8, 16);
        let page = || pool.alloc_zeroed().expect("a page is left");
        let run = |latch: &mut Latch<_>, op| {
            latch.submit(NOW, op);
            latch.poll(NOW).expect("it answers at once").result
        };
        latch.inner_mut().fail_flushes(1);
        assert_eq!(run(&mut latch, MediaOp::flush(1)), Err(MediaError::Io));
        for latch in [&mut latch, &mut other] {
            assert_eq!(run(latch, MediaOp::write(2, 0, page())), Err(MediaError::Latched));
            assert_eq!(run(latch, MediaOp::flush(3)), Err(MediaError::Latched));
            assert_eq!(run(latch, MediaOp::read(4, 0, page())), Ok(()));
            assert_eq!(latch.write_at(0, &[1]), Err(MediaError::Latched));
            assert_eq!(latch.flush(), Err(MediaError::Latched));
        }
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn a_failed_read_latches_nothing() {
        let mut latch = latch(&Arc::default());
        let pool = Pool::new(1, 16);
        let op = MediaOp::read(1, 1 << 13, pool.alloc().expect("one page"));
        latch.submit(NOW, op);
        assert_eq!(
            latch.poll(NOW).map(|done| done.result),
            Some(Err(MediaError::OutOfRange))
        );
        assert!(!latch.is_latched());
    }
}
