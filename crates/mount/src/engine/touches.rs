//! What was read and written, noted under the lock that the call has anyway, and taken by the thread that moves data between tiers.

use fs::format::{BLOCK_BYTES, Tier};
use fs::pieces::Pieces;
use fs::tier::{Options, Unit};
use std::collections::BTreeSet;

/// Notes between two looks of the thread, at most: more are not counted.
const NOTES_MAX: usize = 8192;

/// A unit, and the device that has its data; none of a write: its data go where new data go.
pub(crate) type Touch = (Unit, Option<u8>);

#[derive(Debug)]
pub(crate) struct Touches {
    /// The tiers that there are. Nothing is noted if there is one.
    pub tiers: BTreeSet<Tier>,
    unit_bytes: u64,
    notes: Vec<Touch>,
    pins: Vec<(u64, Option<Tier>)>,
}

impl Default for Touches {
    fn default() -> Self {
        Self {
            tiers: BTreeSet::new(),
            unit_bytes: Options::default().unit_blocks * BLOCK_BYTES as u64,
            notes: Vec::new(),
            pins: Vec::new(),
        }
    }
}

impl Touches {
    /// A read, and where its blocks are: each unit counts once.
    pub fn read(&mut self, (inode, offset): (u64, u64), pieces: &Pieces) {
        if self.tiers.len() < 2 {
            return;
        }
        let mut last = None;
        for (at, place) in pieces.places() {
            let unit = (offset + at as u64) / self.unit_bytes;
            if last != Some(unit) && self.notes.len() < NOTES_MAX {
                self.notes.push(((inode, unit), Some(place.device())));
            }
            last = Some(unit);
        }
    }

    /// A write.
    pub fn written(&mut self, inode: u64, offset: u64) {
        if self.tiers.len() > 1 && self.notes.len() < NOTES_MAX {
            self.notes.push(((inode, offset / self.unit_bytes), None));
        }
    }

    /// A file is pinned, or not any more.
    pub fn pinned(&mut self, inode: u64, tier: Option<Tier>) {
        if self.tiers.len() > 1 {
            self.pins.push((inode, tier));
        }
    }

    /// All notes since the last time. `notes` has room for as many again.
    pub fn take(&mut self, notes: &mut Vec<Touch>) -> Vec<(u64, Option<Tier>)> {
        notes.clear();
        std::mem::swap(&mut self.notes, notes);
        std::mem::take(&mut self.pins)
    }
}
