//! Tables: what has left memory, in order (docs/format/store.md, "Tables").
//!
//! The log's index in memory is bounded. When it has grown to its limit, its keys and values go to *tables*, one segment
//! each, and the log is free of them. Tables lie in levels. Those of level 0 are as they left memory, the newest first, and
//! overlap; those of a deeper level do not overlap, and are older than what is above. A *job* makes tables out of what leaves
//! memory, or out of tables; it runs beside everything else, and holds nobody up.
//!
//! # Invariants
//! - Which tables count is said by the log, in each of its segments and each time that it changes. A table counts only after
//!   it is durable, and its segment is used anew only when a record without it is durable and no reader has it.
//! - A table never changes. What a job has moved out of the front of one is hidden by the bound of its [`View`].
//! - A key's newest value is in memory, else in the first table that has the key, from level 0 downwards.

pub(crate) mod filter;
pub(crate) mod job;
pub(crate) mod levels;
pub(crate) mod merged;
pub(crate) mod page;
pub(crate) mod reader;
pub(crate) mod scan;
pub(crate) mod writer;

use crate::entry::StructureId;
use crate::format::{u32_at, u64_at};
use page::Extent;
use std::cmp::Ordering;
use std::sync::Arc;

/// Bytes of a header that mean something.
pub(crate) const HEADER_BYTES: usize = 20;
const MAGIC: &[u8; 4] = b"SEGT";

/// The order in which a range goes through keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the first key on.
    Up,
    /// From the last key on.
    Down,
}

impl Way {
    /// Before the first of so many things. Places are between them, counted from the lowest.
    pub(crate) fn start(self, count: usize) -> usize {
        match self {
            Self::Up => 0,
            Self::Down => count,
        }
    }

    /// Behind the last of so many things.
    pub(crate) fn end(self, count: usize) -> usize {
        count - self.start(count)
    }

    /// Goes past the next of so many things; its index, if there is one.
    pub(crate) fn take(self, next: &mut usize, count: usize) -> Option<usize> {
        match self {
            Self::Up => {
                let index = *next;
                *next = (index + 1).min(count);
                (index < count).then_some(index)
            }
            Self::Down => {
                *next = next.checked_sub(1)?;
                Some(*next)
            }
        }
    }

    /// Goes through what is in order.
    pub(crate) fn iter<'a, T: 'a>(
        self,
        entries: impl DoubleEndedIterator<Item = T> + 'a,
    ) -> Box<dyn Iterator<Item = T> + 'a> {
        match self {
            Self::Up => Box::new(entries),
            Self::Down => Box::new(entries.rev()),
        }
    }

    /// The order of two keys.
    pub(crate) fn cmp(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Up => a.cmp(b),
            Self::Down => b.cmp(a),
        }
    }
}

/// A segment that is a table, or becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub slot: u32,
    pub generation: u64,
}

/// The header of a table's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub generation: u64,
    /// Where the rest is told.
    pub meta: Extent,
}

impl Header {
    pub(crate) fn emit(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.meta.block.to_le_bytes());
        bytes[16..].copy_from_slice(&self.meta.blocks.to_le_bytes());
        bytes
    }

    /// `None` if this is no header.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        (&payload[..4] == MAGIC).then(|| Self {
            generation: u64_at(payload, 4),
            meta: Extent {
                block: u32_at(payload, 12),
                blocks: u32_at(payload, 16),
            },
        })
    }
}

/// Entries of a structure in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StructureCount {
    pub id: StructureId,
    pub values: u64,
    pub removals: u64,
}

/// What a table says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The leaves are the blocks from 1 up to this one.
    pub leaves_end: u32,
    /// The first block of the filter, and its pages.
    pub filter: Extent,
    pub root: Extent,
    pub entries: u64,
    pub first: Arc<[u8]>,
    pub last: Arc<[u8]>,
    pub structures: Vec<StructureCount>,
    /// All of it, in blocks. Not stored.
    pub blocks: u32,
}

impl Meta {
    const FIXED_BYTES: usize = 4 + 8 + 8 + 8 + 4 + 4 + 4;
    const COUNT_BYTES: usize = 20;

    fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::FIXED_BYTES + self.first.len() + self.last.len());
        for word in [
            self.leaves_end,
            self.filter.block,
            self.filter.blocks,
            self.root.block,
            self.root.blocks,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.entries.to_le_bytes());
        for count in [self.first.len(), self.last.len(), self.structures.len()] {
            bytes.extend((count as u32).to_le_bytes());
        }
        bytes.extend(&*self.first);
        bytes.extend(&*self.last);
        for count in &self.structures {
            bytes.extend(count.id.0.to_le_bytes());
            bytes.extend(count.values.to_le_bytes());
            bytes.extend(count.removals.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(Self::FIXED_BYTES)?;
        let word = |index: usize| u32_at(fixed, 4 * index);
        let (first, rest) = rest.split_at_checked(word(7) as usize)?;
        let (last, rest) = rest.split_at_checked(word(8) as usize)?;
        let counts = rest.get(..(word(9) as usize).checked_mul(Self::COUNT_BYTES)?)?;
        let count = |bytes: &[u8]| StructureCount {
            id: StructureId(u32_at(bytes, 0)),
            values: u64_at(bytes, 4),
            removals: u64_at(bytes, 12),
        };
        let extent = |index| Extent {
            block: word(index),
            blocks: word(index + 1),
        };
        Some(Self {
            leaves_end: word(0),
            filter: extent(1),
            root: extent(3),
            entries: u64_at(fixed, 20),
            first: first.into(),
            last: last.into(),
            structures: counts.chunks(Self::COUNT_BYTES).map(count).collect(),
            blocks: 0,
        })
    }
}

/// The key of an entry in a table: its structure, then its key.
pub(crate) fn table_key(structure: StructureId, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + key.len());
    bytes.extend(structure.0.to_be_bytes());
    bytes.extend(key);
    bytes
}

/// The structure of a table's key.
pub(crate) fn structure_of(key: &[u8]) -> Option<StructureId> {
    key.first_chunk()
        .map(|bytes| StructureId(u32::from_be_bytes(*bytes)))
}
