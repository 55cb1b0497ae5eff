//! The one trait of a medium, and the operations that the data path asks of it.
//!
//! A medium is whatever holds a host's bytes: memory, a file, a block device, a simulated drive. It is a [`Device`]:
//! bytes are read and written at once, for formatting, recovery and verification. The data path does not wait. It
//! gives a [`Queue`] operations ([`MediaOp`]) and takes their completions ([`MediaDone`]) later.
//!
//! [`Latency`] makes a queue of a device that answers at once, with the time that operations take. Wrappers stack on it:
//! each is a [`Queue`] over a [`Queue`], and a [`Device`] over a [`Device`].
//! - [`Latch`] refuses writes after a failed one.
//! - [`Deadline`] gives up operations that do not come back.
//! - [`Faults`] injects failures.
//!
//! `docs/media.md` tells how to add a medium, and `suite` tests it.
//!
//! # What a medium promises
//! - A read sees every write that was done before the read was submitted.
//! - A write is durable once a flush is done that was submitted after the write was done, or once the write itself is
//!   done if it was written through.
//! - A power cut leaves each [`Device::atomic_bytes`] of an unfinished write old or new, never a mixture.
//! - Operations in flight at the same time have no order. Each is answered exactly once.

mod deadline;
mod faults;
mod latch;
#[cfg(test)]
mod latch_tests;
mod latency;
pub mod suite;

pub use deadline::{Deadline, LIMIT, Silence};
pub use faults::Faults;
pub use latch::Latch;
pub use latency::{Latency, LatencyModel, execute};

use crate::extent::Extent;
use crate::limits::SECTOR_BYTES;
use crate::page::{Page, Pages};
use crate::sync;
use crate::time::Instant;
use core::ops::Range;
use thiserror::Error;

/// Effect of an operation on its range of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// Fill the operation's pages. If it has none, the medium brings its own.
    Read,
    /// Write the pages. Not durable before a later [`MediaKind::Flush`] is done.
    Write,
    /// Write the pages, durable when done.
    WriteThrough,
    /// Make every write durable that was *done* before the flush was submitted.
    Flush,
    /// Forget the range, which reads as zeros from then on. Durable as a write is.
    Discard,
    /// Zero the range, and keep its space. Durable as a write is.
    Zero,
}

impl MediaKind {
    /// True unless the operation only reads.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// One operation on a medium.
///
/// Pages lie on the medium's grid of pages: the first page holds the byte `offset` at `offset` modulo its length. So a
/// range of whole sectors, which begins and ends anywhere, needs no copy.
#[derive(Debug)]
pub struct MediaOp {
    /// Echoed in [`MediaDone`]. No two operations in flight have the same.
    pub id: u64,
    /// What to do.
    pub kind: MediaKind,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u32,
    /// The data: unshared pages for a read, pages that nobody changes until the operation is done for a write.
    pub pages: Pages,
}

impl MediaOp {
    /// A read of a page.
    pub fn read(id: u64, offset: u64, page: Page) -> Self {
        Self::page(id, MediaKind::Read, offset, page)
    }

    /// A write of a page.
    pub fn write(id: u64, offset: u64, page: Page) -> Self {
        Self::page(id, MediaKind::Write, offset, page)
    }

    /// An operation on one page.
    pub fn page(id: u64, kind: MediaKind, offset: u64, page: Page) -> Self {
        let (length, pages) = (page.len() as u32, Pages::from_buf([page]));
        Self {
            id,
            kind,
            offset,
            length,
            pages,
        }
    }

    /// A flush.
    pub fn flush(id: u64) -> Self {
        Self::range(id, MediaKind::Flush, 0, 0)
    }

    /// An operation on a range, without pages.
    pub fn range(id: u64, kind: MediaKind, offset: u64, length: u32) -> Self {
        Self {
            id,
            kind,
            offset,
            length,
            pages: Pages::new(),
        }
    }

    /// The operation's end.
    pub fn done(self, result: Result<(), MediaError>) -> MediaDone {
        MediaDone {
            id: self.id,
            kind: self.kind,
            pages: self.pages,
            result,
        }
    }

    /// For each page: where its part of the range begins on the medium, and which bytes of the page it is.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &Page, Range<usize>)> {
        let end = self.offset + u64::from(self.length);
        let mut at = self.offset;
        self.pages.iter().map(move |page| {
            let first = (at % page.len() as u64) as usize;
            let count = (end - at).min((page.len() - first) as u64);
            let part = (at, page, first..first + count as usize);
            at += count;
            part
        })
    }
}

/// Completion of a [`MediaOp`].
#[derive(Debug)]
pub struct MediaDone {
    /// Of the operation.
    pub id: u64,
    /// Of the operation.
    pub kind: MediaKind,
    /// The operation's pages, returned. None of an operation that was given up ([`MediaError::TimedOut`]): the medium
    /// still has them.
    pub pages: Pages,
    /// How it ended.
    pub result: Result<(), MediaError>,
}

/// Why the medium refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MediaError {
    /// The device reported an error.
    #[error("the medium reported an I/O error")]
    Io,
    /// The range is outside the medium.
    #[error("the offset is outside the medium")]
    OutOfRange,
    /// The medium has no space for the write, and took nothing of it.
    #[error("the medium has no space left")]
    NoSpace,
    /// The device did not answer in time. A write may still take effect.
    #[error("the medium does not answer")]
    TimedOut,
    /// An earlier write or flush failed, so the medium takes no more of them.
    #[error("an earlier write to the medium failed")]
    Latched,
}

/// A medium whose operations are done on return.
pub trait Device {
    /// Fills `bytes` from `offset`.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError>;

    /// Writes `bytes` at `offset`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError>;

    /// Makes all writes durable.
    fn flush(&mut self) -> Result<(), MediaError>;

    /// Bytes of the medium.
    fn capacity_bytes(&self) -> u64;

    /// Writes `bytes` at `offset`, durable on return (FUA).
    fn write_through(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.write_at(offset, bytes)?;
        self.flush()
    }

    /// Forgets a range, which reads as zeros from then on.
    fn discard(&mut self, offset: u64, length: u64) -> Result<(), MediaError> {
        const ZEROS: [u8; 1 << 12] = [0; 1 << 12];
        let end = offset.checked_add(length).ok_or(MediaError::OutOfRange)?;
        let mut at = offset;
        while at < end {
            let count = (end - at).min(ZEROS.len() as u64);
            self.write_at(at, &ZEROS[..count as usize])?;
            at += count;
        }
        Ok(())
    }

    /// The extent that begins at `offset`, of at most `length` bytes; both are whole sectors of the medium. Data unless the
    /// medium knows better. A write that is done is in no hole.
    fn extent_at(&self, _offset: u64, length: u64) -> Extent {
        Extent::data(length)
    }

    /// Bytes of it that take space: all, unless it knows better. A range that is reserved and not written takes space,
    /// although it is a hole ([`Device::extent_at`]).
    fn data_bytes(&self) -> u64 {
        self.capacity_bytes()
    }

    /// Bytes, aligned to their number, of which a power cut leaves all old or all new.
    fn atomic_bytes(&self) -> u32 {
        SECTOR_BYTES as u32
    }

    /// True if a write that is done can be lost in a power cut until it is flushed.
    fn has_cache(&self) -> bool {
        true
    }
}

/// A medium as the data path uses it. Like a [`Machine`](crate::Machine): after each `submit`, and no later than
/// `deadline`, `poll` is drained to `None`.
pub trait Queue {
    /// Takes an operation. It is never refused for lack of room.
    fn submit(&mut self, now: Instant, op: MediaOp);

    /// The next operation that has ended.
    fn poll(&mut self, now: Instant) -> Option<MediaDone>;

    /// When to poll although nothing was heard of the medium.
    fn deadline(&self) -> Option<Instant>;
}

/// Passes the calls of a wrapper, or of an enum of media, on to the medium inside. The calls are those of a [`Queue`], those
/// of a [`Device`], or only those of a device that change nothing (`reads`).
#[macro_export]
macro_rules! pass_on {
    (queue $($of:pat => $inner:ident),+) => {
        #[inline(always)]
        fn submit(&mut self, now: $crate::Instant, op: $crate::MediaOp) {
            match self { $($of => $inner.submit(now, op)),+ }
        }
        #[inline(always)]
        fn poll(&mut self, now: $crate::Instant) -> Option<$crate::MediaDone> {
            match self { $($of => $inner.poll(now)),+ }
        }
        fn deadline(&self) -> Option<$crate::Instant> {
            match self { $($of => $inner.deadline()),+ }
        }
    };
    (reads $($of:pat => $inner:ident),+) => {
        fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), $crate::MediaError> {
            match self { $($of => $inner.read_at(offset, bytes)),+ }
        }
        fn capacity_bytes(&self) -> u64 {
            match self { $($of => $inner.capacity_bytes()),+ }
        }
        fn extent_at(&self, offset: u64, length: u64) -> $crate::Extent {
            match self { $($of => $inner.extent_at(offset, length)),+ }
        }
        fn data_bytes(&self) -> u64 {
            match self { $($of => $inner.data_bytes()),+ }
        }
        fn atomic_bytes(&self) -> u32 {
            match self { $($of => $inner.atomic_bytes()),+ }
        }
        fn has_cache(&self) -> bool {
            match self { $($of => $inner.has_cache()),+ }
        }
    };
    (device $($of:pat => $inner:ident),+) => {
        $crate::pass_on!(reads $($of => $inner),+);
        fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), $crate::MediaError> {
            match self { $($of => $inner.write_at(offset, bytes)),+ }
        }
        fn flush(&mut self) -> Result<(), $crate::MediaError> {
            match self { $($of => $inner.flush()),+ }
        }
        fn write_through(&mut self, offset: u64, bytes: &[u8]) -> Result<(), $crate::MediaError> {
            match self { $($of => $inner.write_through(offset, bytes)),+ }
        }
        fn discard(&mut self, offset: u64, length: u64) -> Result<(), $crate::MediaError> {
            match self { $($of => $inner.discard(offset, length)),+ }
        }
    };
}
pub use pass_on;

/// Memory, for tests and as the store under a simulated medium.
impl Device for Vec<u8> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        bytes.copy_from_slice(
            self.get(range(offset, bytes.len())?)
                .ok_or(MediaError::OutOfRange)?,
        );
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let target = self.get_mut(range(offset, bytes.len())?);
        target.ok_or(MediaError::OutOfRange)?.copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        Ok(())
    }

    fn capacity_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn has_cache(&self) -> bool {
        false
    }
}

fn range(offset: u64, length: usize) -> Result<Range<usize>, MediaError> {
    let start = usize::try_from(offset).map_err(|_| MediaError::OutOfRange)?;
    let end = start.checked_add(length).ok_or(MediaError::OutOfRange)?;
    Ok(start..end)
}
