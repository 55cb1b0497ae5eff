//! Failures on demand: of writes, of flushes, and of the whole device, which then does not answer.

use super::{Device, MediaDone, MediaError, MediaKind, MediaOp, Queue, pass_on};
use crate::rng::Rng;
use crate::time::Instant;
use std::collections::VecDeque;

/// Injects failures into the operations of a queue. The synchronous view is not touched.
#[derive(Debug)]
pub struct Faults<D> {
    inner: D,
    rng: Rng,
    writes: u32,
    flushes: u32,
    hangs: bool,
    /// Operations that the device does not answer.
    held: VecDeque<MediaOp>,
    failed: VecDeque<MediaDone>,
    /// Writes that take effect although they fail.
    lied: Vec<u64>,
}

impl<D> Faults<D> {
    /// No failures yet. `rng` draws whether a failing write takes effect.
    pub fn new(inner: D, rng: Rng) -> Self {
        Self {
            inner,
            rng,
            writes: 0,
            flushes: 0,
            hangs: false,
            held: VecDeque::new(),
            failed: VecDeque::new(),
            lied: Vec::new(),
        }
    }

    /// Makes the next `count` writes, discards and zeroings fail; each has taken effect or not.
    pub fn fail_writes(&mut self, count: u32) {
        self.writes = count;
    }

    /// Makes the next `count` flushes fail; none has an effect.
    pub fn fail_flushes(&mut self, count: u32) {
        self.flushes = count;
    }

    /// From now on nothing is answered that is submitted, and nothing takes effect.
    pub fn hang(&mut self) {
        self.hangs = true;
    }

    /// True while nothing is answered.
    pub fn hangs(&self) -> bool {
        self.hangs
    }

    /// Operations that are not answered.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The device starts anew: what was in flight is gone, and it answers again.
    pub fn restart(&mut self) {
        self.hangs = false;
        self.held.clear();
        self.failed.clear();
        self.lied.clear();
    }

    /// What fails.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What fails.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }
}

impl<D: Queue> Faults<D> {
    /// The device answers again, first what it was given while it did not, in any order.
    pub fn resume(&mut self, now: Instant) {
        self.hangs = false;
        while !self.held.is_empty() {
            let at = self.rng.below(self.held.len() as u64) as usize;
            let op = self.held.swap_remove_back(at).expect("it is inside");
            self.submit(now, op);
        }
    }

    /// Takes an operation while failures are due.
    #[cold]
    fn interfere(&mut self, now: Instant, op: MediaOp) {
        if self.hangs {
            return self.held.push_back(op);
        }
        if !self.fails(op.kind) {
            return self.inner.submit(now, op);
        }
        if op.kind != MediaKind::Flush && self.rng.chance(0.5) {
            self.lied.push(op.id);
            return self.inner.submit(now, op);
        }
        self.failed.push_back(op.done(Err(MediaError::Io)));
    }

    /// Calls a write failed that took effect.
    #[cold]
    fn belie(&mut self, id: u64, result: Result<(), MediaError>) -> Result<(), MediaError> {
        let Some(at) = self.lied.iter().position(|&lied| lied == id) else {
            return result;
        };
        self.lied.swap_remove(at);
        Err(MediaError::Io)
    }

    fn fails(&mut self, kind: MediaKind) -> bool {
        let left = match kind {
            MediaKind::Read => return false,
            MediaKind::Flush => &mut self.flushes,
            _ => &mut self.writes,
        };
        let fails = *left > 0;
        *left -= u32::from(fails);
        fails
    }
}

impl<D: Queue> Queue for Faults<D> {
    #[inline(always)]
    fn submit(&mut self, now: Instant, op: MediaOp) {
        if self.hangs || self.writes + self.flushes > 0 {
            self.interfere(now, op);
        } else {
            self.inner.submit(now, op);
        }
    }

    #[inline(always)]
    fn poll(&mut self, now: Instant) -> Option<MediaDone> {
        if !self.failed.is_empty() {
            return self.failed.pop_front();
        }
        let mut done = self.inner.poll(now)?;
        if !self.lied.is_empty() {
            done.result = self.belie(done.id, done.result);
        }
        Some(done)
    }

    fn deadline(&self) -> Option<Instant> {
        match self.failed.is_empty() {
            true => self.inner.deadline(),
            false => Some(Instant::ZERO),
        }
    }
}

impl<D: Device> Device for Faults<D> {
    pass_on!(device Self { inner, .. } => inner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::device::{Latency, suite};

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn without_a_fault_nothing_is_changed() {
        let mut faults = Faults::new(Latency::none(vec![0; 1 << 13]), Rng::new(3));
        suite::queue(&mut faults, 16, |_| NOW);
        suite::device(&mut faults);
    }

    #[test]
    fn a_failing_write_has_taken_effect_or_not() {
        let pool = Pool::new(4, 16);
        let mut seen = [false; 2];
        for seed in 0..32 {
            let mut faults = Faults::new(Latency::none(vec![0; 1 << 10]), Rng::new(seed));
            faults.fail_writes(1);
            let page = pool.alloc().expect("a page is left");
            page.with_mut(|bytes| bytes.fill(7));
            faults.submit(NOW, MediaOp::write(1, 0, page));
            assert_eq!(
                faults.poll(NOW).map(|done| done.result),
                Some(Err(MediaError::Io))
            );
            let mut byte = [0];
            faults.read_at(0, &mut byte).expect("inside");
            seen[usize::from(byte[0] == 7)] = true;
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn a_device_that_hangs_answers_when_it_resumes() {
        let pool = Pool::new(4, 16);
        let mut faults = Faults::new(Latency::none(vec![0; 1 << 10]), Rng::new(0));
        faults.hang();
        faults.submit(NOW, MediaOp::read(1, 0, pool.alloc().expect("a page is left")));
        faults.submit(NOW, MediaOp::flush(2));
        assert!(faults.poll(NOW).is_none() && pool.available() == 3);
        faults.resume(NOW);
        let mut ids: [_; 3] = core::array::from_fn(|_| faults.poll(NOW).map(|done| done.id));
        ids.sort_unstable();
        assert_eq!(ids, [None, Some(1), Some(2)]);
    }
}
