//! Where things are in an area, and how bytes of payload lie in checked sectors.

use thiserror::Error;

/// Bytes of one superblock slot; there are two.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Bytes of a sector that check it.
pub(crate) const SECTOR_HEADER_BYTES: u32 = 8;
/// Segments of an area at least: fewer leave nothing to clean into.
const SEGMENTS_MIN: u32 = 8;
/// Segments of an area at most: every one's header is read at the start.
pub(crate) const SEGMENTS_MAX: u32 = 1 << 20;
/// Segments that only the cleaner may take: its writes never take more than they free by more than these.
pub(crate) const CLEANER_SEGMENTS: u32 = 2;
/// Largest segment: one is held in memory while it is cleaned.
const SEGMENT_BYTES_MAX: u32 = 64 << 20;
/// Segments of a new area at most, as long as they can be larger: opening reads a sector of each.
const SEGMENTS_WANTED: u64 = 1 << 15;
/// Longest record of a new area, if a list of its tables needs no more.
const RECORD_BYTES: u64 = 1 << 20;

/// Bytes of a list of tables before the tables and bounds, and of each table in it.
pub(crate) const LIST_BYTES: usize = 16;
pub(crate) const LISTED_BYTES: usize = 16;

/// Bytes of a list of so many tables, without bounds.
pub(crate) fn list_bytes(tables: u32) -> usize {
    LIST_BYTES + tables as usize * LISTED_BYTES
}

/// The sizes of an area, chosen when it is made (docs/format/store.md, "Layout").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes that the medium writes as a whole or not at all: 512; less in the simulator.
    pub sector_bytes: u32,
    /// Writes are of whole blocks: at least a sector.
    pub block_bytes: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segments: u32,
    /// Bytes that a cut leaves old or new: the sector, or 8 on persistent memory.
    pub atomic_bytes: u32,
    /// Longest record in bytes: bounds a batch, and the writes that small operations wait behind.
    pub record_bytes_max: u32,
}

/// Why sizes make no area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// A size is not what docs/format/store.md asks for.
    #[error("the sizes of the area contradict each other")]
    Sizes,
    /// The medium has no room for the least number of segments.
    #[error("the medium is too small for an area: 8 MiB are the least")]
    TooSmall,
}

impl Layout {
    /// Sizes for a medium of `capacity_bytes` that is written in blocks of `block_bytes`. There are about 256 segments, of 1 to 16 MiB. A
    /// medium of more than 512 GiB has larger ones. A record takes at most a quarter of a segment, and at most 1 MiB. If a list
    /// of as many tables as segments takes more, a record may take as much: up to 32 TiB an area may consist of tables.
    pub fn for_capacity(capacity_bytes: u64, block_bytes: u32) -> Result<Self, LayoutError> {
        let room = capacity_bytes.saturating_sub(2 * SUPERBLOCK_BYTES);
        let usual = (room / 256).next_power_of_two().clamp(1 << 20, 16 << 20);
        let large = (room / SEGMENTS_WANTED).next_power_of_two();
        let segment_bytes = usual.max(large.min(SEGMENT_BYTES_MAX.into())) as u32;
        let segment_bytes = if room / u64::from(segment_bytes) < u64::from(SEGMENTS_MIN) {
            1 << 19
        } else {
            segment_bytes
        };
        let segments = (room / u64::from(segment_bytes)).min(u64::from(SEGMENTS_MAX)) as u32;
        // A third more for bounds, descriptions, and what sectors take.
        let list = (list_bytes(segments) as u64 / 3 * 4).next_power_of_two();
        let layout = Self {
            sector_bytes: 512,
            block_bytes,
            segment_bytes,
            segments,
            atomic_bytes: 512,
            record_bytes_max: u64::from(segment_bytes / 4).min(RECORD_BYTES.max(list)) as u32,
        };
        if layout.segments < SEGMENTS_MIN {
            return Err(LayoutError::TooSmall);
        }
        layout.checked()
    }

    /// The layout, if its sizes fit each other.
    pub fn checked(self) -> Result<Self, LayoutError> {
        let fits = self.sector_bytes.is_power_of_two()
            && (64..=4096).contains(&self.sector_bytes)
            && (self.atomic_bytes == self.sector_bytes || self.atomic_bytes == SECTOR_HEADER_BYTES)
            && self.block_bytes >= self.sector_bytes
            && self.block_bytes.is_multiple_of(self.sector_bytes)
            && self.block_bytes <= 1 << 16
            && self.segment_bytes <= SEGMENT_BYTES_MAX
            && self.segment_bytes.is_multiple_of(self.block_bytes)
            && self.record_bytes_max.is_multiple_of(self.block_bytes)
            && self.record_bytes_max >= self.block_bytes
            && self.record_bytes_max <= self.segment_bytes / 4
            && (SEGMENTS_MIN..=SEGMENTS_MAX).contains(&self.segments);
        if fits { Ok(self) } else { Err(LayoutError::Sizes) }
    }

    /// Bytes of the whole area.
    pub fn capacity_bytes(&self) -> u64 {
        self.segment_offset(self.segments)
    }

    /// Bytes of the largest area that this one can grow to.
    pub fn grown_bytes_max(&self) -> u64 {
        self.segment_offset(SEGMENTS_MAX)
    }

    /// Where segment slot `slot` begins, in bytes of the area.
    pub fn segment_offset(&self, slot: u32) -> u64 {
        2 * SUPERBLOCK_BYTES + u64::from(slot) * u64::from(self.segment_bytes)
    }

    /// The segment slot that has this byte of the area.
    pub(crate) fn slot_at(&self, offset: u64) -> u32 {
        let within = offset.saturating_sub(2 * SUPERBLOCK_BYTES);
        (within / u64::from(self.segment_bytes)) as u32
    }

    /// Payload bytes of a sector.
    pub(crate) fn payload_bytes(&self) -> u32 {
        self.sector_bytes - SECTOR_HEADER_BYTES
    }

    /// Payload bytes of a segment.
    pub(crate) fn segment_payload_bytes(&self) -> u64 {
        u64::from(self.segment_bytes / self.sector_bytes) * u64::from(self.payload_bytes())
    }

    /// Payload that `bytes` of whole sectors hold.
    pub(crate) fn stream_of(&self, bytes: u32) -> u32 {
        bytes / self.sector_bytes * self.payload_bytes()
    }

    /// Number in the area of the sector `within` bytes into slot `slot`: what its checksum covers.
    pub(crate) fn sector_number(&self, slot: u32, within: u32) -> u64 {
        (self.segment_offset(slot) + u64::from(within)) / u64::from(self.sector_bytes)
    }

    /// Bytes of whole blocks that a record of `stream` payload bytes takes.
    pub(crate) fn extent_of(&self, stream: u32) -> u32 {
        let sectors = stream.div_ceil(self.payload_bytes());
        (sectors * self.sector_bytes).next_multiple_of(self.block_bytes)
    }

    /// Segments that additions leave free.
    pub(crate) fn reserve_segments(&self) -> u32 {
        CLEANER_SEGMENTS + (self.segments / 32).max(u32::from(self.segments >= 16))
    }

    /// Payload bytes of live entries at most: beyond, cleaning would cost more than it gains.
    pub(crate) fn live_bytes_max(&self) -> u64 {
        self.live_bytes_max_without(0)
    }

    /// The same, if so many segments hold something else.
    pub(crate) fn live_bytes_max_without(&self, taken: u32) -> u64 {
        let left = self.segments.saturating_sub(self.reserve_segments() + taken);
        u64::from(left) * self.segment_payload_bytes() / 5 * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capacity_above_the_least_makes_an_area_that_fits_it() {
        assert_eq!(Layout::for_capacity(4 << 20, 4096), Err(LayoutError::TooSmall));
        for capacity in [8 << 20, 64 << 20, 1 << 30, (1 << 40) + 12_345] {
            let layout = Layout::for_capacity(capacity, 4096).expect("large enough");
            assert!(layout.capacity_bytes() <= capacity);
            assert!(layout.capacity_bytes() + u64::from(layout.segment_bytes) > capacity);
        }
    }
}
