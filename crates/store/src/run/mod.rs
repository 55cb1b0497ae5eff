//! Sorted runs: the index on the medium (docs/format/store.md, "Runs").
//!
//! A run has entries of all structures, in order. [`Builder`] makes its pages, [`Run`] is one that was written,
//! [`Lookup`] finds a key in several, and [`manifest`] says which there are.

mod builder;
mod filter;
mod key;
mod lookup;
pub(crate) mod manifest;
mod page;

pub(crate) use builder::Builder;
pub(crate) use key::{RunKey, Spot};
pub(crate) use lookup::{Lookup, Step};
pub(crate) use page::{MANIFEST, Page};

use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::scan::read_segment;
use crate::sector::{self, Role, State};
use base::Device;
use page::{PAGE_HEADER_BYTES, blocks_of};

/// Place of a page in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Which of the run's segments.
    pub part: u32,
    /// In blocks of the segment.
    pub block: u32,
    pub blocks: u32,
}

/// A run on the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Generation that those of locations count from.
    pub base: u64,
    pub entries: u64,
    /// `None` if the run is empty.
    pub root: Option<Address>,
    /// Slot and generation of each segment.
    pub parts: Vec<(u32, u64)>,
}

/// Bytes of a page, unless one entry needs more.
pub(crate) fn page_bytes(layout: &Layout) -> u32 {
    const PAGE_BYTES: u32 = 4096;
    let bytes = PAGE_BYTES.min(layout.segment_bytes / 16);
    bytes.next_multiple_of(layout.block_bytes)
}

/// Calls `f` with the payload of each page of a segment, in order, up to the first one that is not whole. `None` if the
/// segment cannot be read.
pub(crate) fn read_part(
    medium: &dyn Device,
    layout: &Layout,
    (slot, generation): (u32, u64),
    mut f: impl FnMut(&[u8]),
) -> Option<()> {
    let bytes = read_segment(medium, layout, slot, layout.segment_bytes).ok()?;
    let sector_bytes = layout.sector_bytes as usize;
    let payload_of = |at: u32| {
        let sector = bytes.get(at as usize..)?.get(..sector_bytes)?;
        let number = layout.sector_number(slot, at);
        let state = sector::judge(sector, Role::Checkpoint, generation as u32, number);
        (state == State::New).then(|| &sector[SECTOR_HEADER_BYTES as usize..])
    };
    let mut at = layout.block_bytes;
    while let Some(first) = payload_of(at) {
        debug_assert!(first.len() > PAGE_HEADER_BYTES);
        let length = blocks_of(first).saturating_mul(layout.block_bytes);
        let end = at.saturating_add(length).min(layout.segment_bytes);
        let mut payload = Vec::with_capacity(length.min(layout.segment_bytes) as usize);
        for at in (at..end).step_by(sector_bytes) {
            let Some(part) = payload_of(at) else {
                return Some(());
            };
            payload.extend(part);
        }
        if length == 0 {
            break;
        }
        f(&payload);
        at = end;
    }
    Some(())
}
