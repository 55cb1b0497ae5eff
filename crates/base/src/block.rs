//! Block requests as frontends hand them to a volume. A frontend checks a range once, when it makes it: nothing behind
//! the frontend can hold a range of another kind.

use core::ops::Range;

use thiserror::Error;

use crate::id::VolumeId;
use crate::limits::{PAGE_BYTES, REQUEST_BYTES_MAX, SECTOR_BYTES};
use crate::page::Pages;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    /// Read the range.
    Read,
    /// Write the range.
    Write,
    /// Make everything acknowledged so far durable on every replica.
    Flush,
    /// Forget the range: it reads as zeros afterwards.
    Trim,
    /// Zero the range.
    WriteZeroes,
    /// Tell which parts of the range are holes. A write that was acknowledged before is in none.
    Status,
}

/// A range of a volume in whole sectors. Volumes never shrink, so a range stays inside the volume it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRange {
    offset: u64,
    length: u64,
}

/// Why there is no such range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRange {
    /// It is empty, or its ends are not those of sectors.
    Unaligned,
    /// It ends behind the volume.
    Outside,
}

impl SectorRange {
    /// No sector at all: the range of a flush.
    pub const EMPTY: Self = Self { offset: 0, length: 0 };

    /// The range of `length` bytes from `offset` on, in a volume of `size_bytes`.
    ///
    /// # Errors
    /// The range is empty, unaligned, or ends behind the volume.
    pub fn new(offset: u64, length: u64, size_bytes: u64) -> Result<Self, BadRange> {
        let sector = SECTOR_BYTES as u64;
        if length == 0 || !offset.is_multiple_of(sector) || !length.is_multiple_of(sector) {
            return Err(BadRange::Unaligned);
        }
        match offset.checked_add(length) {
            Some(end) if end <= size_bytes => Ok(Self { offset, length }),
            _ => Err(BadRange::Outside),
        }
    }

    /// First byte.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// True if no sector is in it.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// First byte behind it.
    pub const fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// First byte within the first page it touches.
    pub const fn skip(&self) -> usize {
        self.offset as usize % PAGE_BYTES
    }

    /// Numbers of the pages it touches.
    pub const fn pages(&self) -> Range<u64> {
        self.offset / PAGE_BYTES as u64..self.end().div_ceil(PAGE_BYTES as u64)
    }

    /// Bytes of the pages it touches: the memory that its data take.
    pub const fn footprint_bytes(&self) -> u64 {
        let pages = self.pages();
        (pages.end - pages.start) * PAGE_BYTES as u64
    }

    /// Bytes of a page it touches that are in it.
    pub fn bytes_of(&self, page: u64) -> Range<usize> {
        let start = page * PAGE_BYTES as u64;
        let end = self.end().min(start + PAGE_BYTES as u64);
        self.offset.saturating_sub(start) as usize..(end - start) as usize
    }

    /// Sectors of a page it touches that are in it.
    pub fn sectors_of(&self, page: u64) -> Range<usize> {
        let bytes = self.bytes_of(page);
        bytes.start / SECTOR_BYTES..bytes.end / SECTOR_BYTES
    }

    /// Takes the next part off its front: all of it, or up to a multiple of the largest request.
    pub fn take_part(&mut self) -> Self {
        self.take_front(u64::from(REQUEST_BYTES_MAX))
    }

    /// The range with the one behind it.
    ///
    /// # Panics
    /// If that is not the next one.
    pub fn joined(self, next: Self) -> Self {
        assert_eq!(self.end(), next.offset, "parts follow each other");
        let length = self.length + next.length;
        Self { length, ..self }
    }

    /// Takes a part of so many bytes at most off its front: all of it, or up to a multiple of `largest`.
    pub fn take_front(&mut self, largest: u64) -> Self {
        let length = self.length.min(largest - self.offset % largest);
        let part = Self { length, ..*self };
        self.offset += length;
        self.length -= length;
        part
    }
}

/// One request of a client.
#[derive(Debug)]
pub struct BlockRequest {
    /// The client's connection; replies carry it back.
    pub client: u32,
    /// The client's own mark; replies carry it back.
    pub tag: u64,
    /// Which volume.
    pub volume: VolumeId,
    /// What to do.
    pub op: BlockOp,
    /// Where. Empty for a flush only.
    pub range: SectorRange,
    /// Durable on every replica before it is acknowledged (writes, trims and zeroes).
    pub fua: bool,
    /// Throughput-bound: requests that are not go before it. The world decides it, not the session.
    pub bulk: bool,
    /// Data of a write, laid out on the volume's page grid: `pages[i]` is the i-th page of the range, and only
    /// the sectors of the range count. One unshared page for the answer to a status. Empty for everything else.
    pub pages: Pages,
}

/// The answer to a [`BlockRequest`].
#[derive(Debug)]
pub struct BlockReply {
    /// Of the request.
    pub client: u32,
    /// Of the request.
    pub tag: u64,
    /// How it ended. Data of a read, on the page grid as in [`BlockRequest::pages`]. The page of a status, filled
    /// ([`Extent::fill`](crate::Extent::fill)) with at least one extent.
    pub result: Result<Pages, BlockError>,
}

/// Why a block request failed. Frontends translate it to their protocol's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum BlockError {
    /// Unaligned, outside the volume, or too long (EINVAL).
    #[error("the request is unaligned, too long or outside the volume")]
    Invalid,
    /// No such volume (ENODEV).
    #[error("no such volume")]
    NoVolume,
    /// The volume or the export is read-only (EPERM).
    #[error("the volume is read-only")]
    ReadOnly,
    /// Another host has reserved the volume (EPERM).
    #[error("the volume is reserved")]
    Reserved,
    /// No free flash is left (ENOSPC).
    #[error("no free flash is left")]
    NoSpace,
    /// The medium is damaged on every replica, or acknowledged writes were lost before a flush (EIO).
    #[error("the data could not be read, or not be kept")]
    Io,
    /// The server stops (ESHUTDOWN).
    #[error("the server is shutting down")]
    Shutdown,
    /// Another gateway serves the volume, or may do so in a moment. Whether this was executed is not known.
    #[error("another gateway serves the volume")]
    Elsewhere,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sectors_of_the_volume_are_a_range() {
        let size = 4096;
        for (offset, length, expected) in [
            (0, 4096, None),
            (3584, 512, None),
            (0, 0, Some(BadRange::Unaligned)),
            (7, 512, Some(BadRange::Unaligned)),
            (0, 100, Some(BadRange::Unaligned)),
            (4096, 512, Some(BadRange::Outside)),
            (512, 4096, Some(BadRange::Outside)),
            (u64::MAX - 511, 512, Some(BadRange::Outside)),
        ] {
            let range = SectorRange::new(offset, length, size);
            assert_eq!(range.err(), expected, "{length} bytes from {offset} on");
        }
    }

    #[test]
    fn a_range_is_cut_along_pages() {
        let range = SectorRange::new(3584, 5120, 1 << 20).expect("whole sectors");
        assert_eq!((range.skip(), range.pages()), (3584, 0..3));
        assert_eq!(range.footprint_bytes(), 3 * 4096);
        let bytes: Vec<_> = range.pages().map(|page| range.bytes_of(page)).collect();
        assert_eq!(bytes, [3584..4096, 0..4096, 0..512]);
        assert_eq!(range.sectors_of(0), 7..8);
        assert!(SectorRange::EMPTY.pages().is_empty() && SectorRange::EMPTY.footprint_bytes() == 0);
    }

    #[test]
    fn parts_cover_a_range_and_end_on_multiples_of_the_largest_request() {
        let largest = u64::from(REQUEST_BYTES_MAX);
        let (offset, length) = (largest - 512, 2 * largest);
        let mut left = SectorRange::new(offset, length, 4 * largest).expect("whole sectors");
        let lengths: Vec<_> =
            core::iter::from_fn(|| (!left.is_empty()).then(|| left.take_part().length())).collect();
        assert_eq!(lengths, [512, largest, largest - 512]);
    }
}
