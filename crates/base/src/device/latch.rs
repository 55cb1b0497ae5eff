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
    pass_on!(reads Self { inner, .. } => inner);
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
