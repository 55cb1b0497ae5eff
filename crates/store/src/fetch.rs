//! Reading a value: from a record on its way, or from the medium.

use crate::damage::FetchError;
use crate::draft::gather;
use crate::index::Location;
use crate::layout::Layout;
use crate::sector::{self, Role};
use crate::table::scan::Search;
use std::sync::Arc;

/// Place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Here.
    Ready(Arc<[u8]>),
    /// On the medium.
    Read(Found),
    /// In tables, if anywhere.
    Search(Search),
    /// Nowhere: a repair found the data of this position damaged.
    Lost,
}

/// A value on the medium: read [`Found::length`] bytes at [`Found::offset`] and [`Found::extract`] it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub(crate) layout: Layout,
    pub(crate) location: Location,
    pub(crate) generation: u64,
    /// Of the first block that holds it, in its segment.
    pub(crate) start: u32,
    pub(crate) length: u32,
}

impl Found {
    pub(crate) fn new(layout: Layout, location: Location, generation: u64) -> Self {
        let payload = layout.payload_bytes();
        let last = location.at + location.length.max(1) - 1;
        let start = location.at / payload * layout.sector_bytes / layout.block_bytes * layout.block_bytes;
        let end = ((last / payload + 1) * layout.sector_bytes).next_multiple_of(layout.block_bytes);
        Self {
            layout,
            location,
            generation,
            start,
            length: end - start,
        }
    }

    /// Where to read, in bytes of the area: a multiple of the block.
    pub fn offset(&self) -> u64 {
        self.layout.segment_offset(self.location.slot) + u64::from(self.start)
    }

    /// How much to read: whole blocks.
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// The value in the bytes read.
    pub fn extract(&self, bytes: &[u8]) -> Result<Vec<u8>, FetchError> {
        let layout = &self.layout;
        let payload = layout.payload_bytes();
        let first = self.location.at / payload;
        let last = (self.location.at + self.location.length.max(1) - 1) / payload;
        for index in first..=last {
            let within = index * layout.sector_bytes;
            let sector = &bytes[(within - self.start) as usize..][..layout.sector_bytes as usize];
            let number = layout.sector_number(self.location.slot, within);
            // A value may begin in the first sector of its record.
            let roles = [Role::Inner, Role::Record];
            let states = roles.map(|role| sector::judge(sector, role, self.generation as u32, number));
            if states.contains(&sector::State::New) {
                continue;
            }
            let offset = number * u64::from(layout.sector_bytes);
            return Err(match states[0] {
                sector::State::Old if !sector::is_blank(sector) => FetchError::Moved,
                _ => FetchError::Damaged { offset },
            });
        }
        Ok(gather(layout, bytes, self.start, self.location))
    }
}
