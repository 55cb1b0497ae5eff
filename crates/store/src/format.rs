//! Superblocks and the headers of segments and records (docs/format/store.md), and making an area.

use crate::layout::{Layout, LayoutError, SUPERBLOCK_BYTES};
use base::{Device, MediaError};

const MAGIC: &[u8; 8] = b"SWYAREA1";
const SEGMENT_MAGIC: &[u8; 4] = b"SEGM";
/// Version 1 had no tables.
pub(crate) const VERSION: u32 = 2;
const VERSIONS: core::ops::RangeInclusive<u32> = 1..=VERSION;
/// Bytes of a superblock that mean something.
const SUPERBLOCK_USED: usize = 72;
/// Payload bytes of a segment's header.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 56;
/// Payload bytes of a record's header.
pub(crate) const RECORD_HEADER_BYTES: u32 = 32;
/// Bytes that making an area writes at once.
const ZEROS: usize = 1 << 20;

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// 1 as long as the area cannot have tables.
    pub version: u32,
    pub layout: Layout,
    pub uuid: [u8; 16],
    /// How often the area was opened.
    pub epoch: u64,
    /// Segments taken into use in this epoch have generations above it.
    pub generation: u64,
}

impl Superblock {
    fn emit(&self) -> [u8; SUPERBLOCK_BYTES as usize] {
        let mut bytes = [0; SUPERBLOCK_BYTES as usize];
        let layout = &self.layout;
        let words = [
            self.version,
            layout.sector_bytes,
            layout.block_bytes,
            layout.segment_bytes,
            layout.record_bytes_max,
            layout.segments,
        ];
        bytes[..8].copy_from_slice(MAGIC);
        for (index, word) in words.iter().enumerate() {
            bytes[8 + 4 * index..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..48].copy_from_slice(&self.uuid);
        bytes[48..56].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.generation.to_le_bytes());
        bytes[64..68].copy_from_slice(&layout.atomic_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..68]);
        bytes[68..72].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> SlotState {
        let bytes = &bytes[..SUPERBLOCK_USED];
        if bytes.iter().all(|&byte| byte == 0) {
            return SlotState::Blank;
        }
        if &bytes[..8] != MAGIC {
            return SlotState::Foreign;
        }
        if u32_at(bytes, 68) != crc32c::crc32c(&bytes[..68]) {
            return SlotState::Damaged;
        }
        if !VERSIONS.contains(&u32_at(bytes, 8)) {
            return SlotState::OtherVersion(u32_at(bytes, 8));
        }
        let layout = Layout {
            sector_bytes: u32_at(bytes, 12),
            block_bytes: u32_at(bytes, 16),
            segment_bytes: u32_at(bytes, 20),
            record_bytes_max: u32_at(bytes, 24),
            segments: u32_at(bytes, 28),
            atomic_bytes: u32_at(bytes, 64),
        };
        match layout.checked() {
            Ok(layout) => SlotState::Valid(Self {
                version: u32_at(bytes, 8),
                layout,
                uuid: bytes[32..48].try_into().expect("sixteen bytes"),
                epoch: u64_at(bytes, 48),
                generation: u64_at(bytes, 56),
            }),
            Err(_) => SlotState::Damaged,
        }
    }

    /// Writes this superblock to the slot of its epoch; durable after a flush.
    pub(crate) fn write(&self, medium: &mut dyn Device) -> Result<(), MediaError> {
        medium.write_at(self.epoch % 2 * SUPERBLOCK_BYTES, &self.emit())
    }
}

enum SlotState {
    Valid(Superblock),
    OtherVersion(u32),
    Foreign,
    Damaged,
    Blank,
}

/// Content of the superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Superblocks {
    /// The newest valid one, and how many of the two slots are damaged.
    Found(Superblock, u32),
    /// Of another version of the format.
    OtherVersion(u32),
    /// Neither is valid.
    None,
}

/// Reads both superblocks.
pub(crate) fn superblocks(medium: &dyn Device) -> Result<Superblocks, MediaError> {
    let mut best: Option<Superblock> = None;
    let mut version = None;
    let mut damaged = 0;
    if medium.capacity_bytes() < 2 * SUPERBLOCK_BYTES {
        return Ok(Superblocks::None);
    }
    for slot in 0..2 {
        let mut bytes = [0; SUPERBLOCK_BYTES as usize];
        medium.read_at(slot * SUPERBLOCK_BYTES, &mut bytes)?;
        match Superblock::parse(&bytes) {
            SlotState::Valid(found) if best.is_none_or(|best| found.epoch > best.epoch) => best = Some(found),
            SlotState::Valid(_) => {}
            SlotState::OtherVersion(found) => version = Some(found),
            SlotState::Foreign | SlotState::Damaged | SlotState::Blank => damaged += 1,
        }
    }
    Ok(match (best, version) {
        (_, Some(version)) => Superblocks::OtherVersion(version),
        (Some(best), _) => Superblocks::Found(best, damaged),
        (None, _) => Superblocks::None,
    })
}

/// Makes an empty area: zeros everywhere, so that later writes change no metadata of a file system, then superblocks.
/// Earlier content is lost. Durable on return.
pub fn create(medium: &mut dyn Device, layout: Layout, uuid: [u8; 16]) -> Result<(), CreateError> {
    let layout = layout.checked()?;
    if layout.capacity_bytes() > medium.capacity_bytes() {
        return Err(LayoutError::TooSmall.into());
    }
    medium.write_at(0, &[0; 2 * SUPERBLOCK_BYTES as usize])?;
    medium.flush()?;
    let zeros = vec![0; ZEROS];
    let mut at = 2 * SUPERBLOCK_BYTES;
    while at < layout.capacity_bytes() {
        let length = (layout.capacity_bytes() - at).min(ZEROS as u64);
        medium.write_at(at, &zeros[..length as usize])?;
        at += length;
    }
    medium.flush()?;
    for epoch in 0..2 {
        let superblock = Superblock {
            version: 1,
            layout,
            uuid,
            epoch,
            generation: 0,
        };
        superblock.write(medium)?;
    }
    medium.flush()?;
    Ok(())
}

/// Why an area cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The sizes.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The medium.
    #[error(transparent)]
    Medium(#[from] MediaError),
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub generation: u64,
    /// Number of its first record.
    pub first: u64,
    /// Generation of the segment before, 0 for none, and where the log ends in it.
    pub previous: u64,
    pub previous_end: u32,
    pub tail: u64,
    pub durable: u64,
    pub epoch: u64,
}

impl SegmentHeader {
    pub(crate) fn emit(&self, payload: &mut [u8]) {
        payload[..4].copy_from_slice(SEGMENT_MAGIC);
        payload[28..32].copy_from_slice(&self.previous_end.to_le_bytes());
        let words = [
            (4, self.generation),
            (12, self.first),
            (20, self.previous),
            (32, self.tail),
            (40, self.durable),
            (48, self.epoch),
        ];
        for (at, word) in words {
            payload[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// `None` if this is no header.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        (&payload[..4] == SEGMENT_MAGIC).then(|| Self {
            generation: u64_at(payload, 4),
            first: u64_at(payload, 12),
            previous: u64_at(payload, 20),
            previous_end: u32_at(payload, 28),
            tail: u64_at(payload, 32),
            durable: u64_at(payload, 40),
            epoch: u64_at(payload, 48),
        })
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub number: u64,
    pub durable: u64,
    pub tail: u64,
    pub epoch: u32,
    /// Of the entries, in bytes.
    pub length: u32,
}

impl RecordHeader {
    pub(crate) fn emit(&self) -> [u8; RECORD_HEADER_BYTES as usize] {
        let mut bytes = [0; RECORD_HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.durable.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tail.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[28..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        Self {
            number: u64_at(bytes, 0),
            durable: u64_at(bytes, 8),
            tail: u64_at(bytes, 16),
            epoch: u32_at(bytes, 24),
            length: u32_at(bytes, 28),
        }
    }
}

/// By generation: slot and header.
pub(crate) type Headers<T> = std::collections::BTreeMap<u64, (u32, T)>;

/// Payload bytes of the header of a segment of a checkpoint.
pub(crate) const PART_HEADER_BYTES: usize = 24;
const PART_MAGIC: &[u8; 4] = b"SEGC";

/// The header of a segment of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartHeader {
    pub generation: u64,
    /// Generation of the checkpoint's first segment.
    pub first: u64,
    /// Which of its segments this is.
    pub index: u32,
}

impl PartHeader {
    pub(crate) fn emit(&self) -> [u8; PART_HEADER_BYTES] {
        let mut bytes = [0; PART_HEADER_BYTES];
        bytes[..4].copy_from_slice(PART_MAGIC);
        bytes[4..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.first.to_le_bytes());
        bytes[20..].copy_from_slice(&self.index.to_le_bytes());
        bytes
    }

    /// `None` if this is no header.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        (&payload[..4] == PART_MAGIC).then(|| Self {
            generation: u64_at(payload, 4),
            first: u64_at(payload, 12),
            index: u32_at(payload, 20),
        })
    }
}
