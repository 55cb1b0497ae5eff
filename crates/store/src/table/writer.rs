//! Writing a table into the segment that it was given.

use super::filter;
use super::page::{self, Draft, Extent, Held, Kind, payload_bytes};
use super::{Meta, Place, StructureCount};
use crate::entry::StructureId;
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::sector::{self, Role};
use base::{Device, MediaError};

/// Bytes that are written at once.
const PIECE_BYTES: usize = 256 << 10;

/// A table while entries are added to it, in order.
pub(crate) struct Writer {
    layout: Layout,
    place: Place,
    target: usize,
    leaf: Draft,
    /// The first level above the leaves: its page, and the pages that are full, which come behind the leaves.
    inner: Draft,
    inner_full: Vec<u8>,
    /// Separators of these pages, and where each is in `inner_full`.
    inner_pages: Vec<(Vec<u8>, Extent)>,
    /// Separator of the page `inner`, and of the leaf.
    inner_first: Vec<u8>,
    leaf_first: Vec<u8>,
    /// Bytes that the levels above may take.
    above_bytes: usize,
    hashes: Vec<u64>,
    /// Bytes that are not written yet, and where they begin in the segment.
    bytes: Vec<u8>,
    at: u32,
    first: Vec<u8>,
    last: Vec<u8>,
    meta: Meta,
}

impl Writer {
    pub(crate) fn new(layout: Layout, place: Place) -> Self {
        Self {
            layout,
            place,
            target: payload_bytes(&layout),
            leaf: Draft::new(Kind::Leaf),
            inner: Draft::new(Kind::Inner),
            inner_full: Vec::new(),
            inner_pages: Vec::new(),
            inner_first: Vec::new(),
            leaf_first: Vec::new(),
            above_bytes: 0,
            hashes: Vec::new(),
            bytes: Vec::new(),
            at: layout.block_bytes,
            first: Vec::new(),
            last: Vec::new(),
            meta: Meta::default(),
        }
    }

    /// The segment.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// True without entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// True if an entry more leaves room for everything that comes behind the leaves.
    pub(crate) fn has_room(&self, key: &[u8], value_bytes: usize) -> bool {
        let layout = &self.layout;
        let whole = |payload: usize| layout.extent_of(payload as u32) as usize;
        let leaf = whole(self.leaf.bytes_with(key.len() + value_bytes));
        // The leaf may be closed before this entry, and its separator be as long as its key.
        let closed = whole(self.leaf.bytes_with(0));
        let separators = key.len() + self.leaf_first.len();
        let inner = self.inner_full.len() + 2 * whole(self.inner.bytes_with(separators) + separators);
        let above = 4 * whole(self.above_bytes + 2 * separators) + 4 * whole(self.target);
        let filter =
            filter::pages(layout, self.hashes.len() + 1) * filter::page_blocks(layout) * layout.block_bytes;
        let meta = whole(self.meta_bytes(key));
        let sum =
            self.at as usize + self.bytes.len() + leaf + closed + inner + above + filter as usize + meta;
        sum <= layout.segment_bytes as usize
    }

    fn meta_bytes(&self, key: &[u8]) -> usize {
        let keys = self.first.len().max(key.len()) + self.last.len().max(key.len());
        page::PAGE_HEADER_BYTES
            + Meta::FIXED_BYTES
            + keys
            + (self.meta.structures.len() + 1) * Meta::COUNT_BYTES
    }

    /// Adds an entry, for which there is room. Its key is above all that were added.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        held: Held<'_>,
        medium: &mut dyn Device,
    ) -> Result<(), MediaError> {
        debug_assert!(self.is_empty() || *key > *self.last, "a table is in order");
        let content = key.len() + held.value.map_or(0, <[u8]>::len);
        if !self.leaf.has_room(&self.layout, content) {
            self.close_leaf();
            self.write_pieces(medium)?;
        }
        if self.leaf.is_empty() {
            self.leaf_first = separator(&self.last, key);
        }
        self.leaf.push_leaf(key, held);
        self.hashes.push(filter::hash(key));
        if self.hashes.len() == 1 {
            self.first = key.to_vec();
        }
        self.last.clear();
        self.last.extend(key);
        self.count(key, held);
        Ok(())
    }

    fn count(&mut self, key: &[u8], held: Held<'_>) {
        let id = super::structure_of(key).expect("keys of tables begin with their structure");
        let counts = &mut self.meta.structures;
        if counts.last().is_none_or(|last| last.id != id) {
            counts.push(StructureCount::new(id));
        }
        let count = counts.last_mut().expect("just added");
        match held.value {
            Some(_) => count.values += 1,
            None => count.removals += 1,
        }
    }

    fn close_leaf(&mut self) {
        let first = core::mem::take(&mut self.leaf_first);
        let extent = finish_page(&self.layout, &mut self.leaf, self.at, &mut self.bytes);
        if !self.inner.has_room(&self.layout, first.len()) {
            self.close_inner();
        }
        if self.inner.is_empty() {
            self.inner_first = first.clone();
        }
        self.inner.push_inner(&first, extent);
    }

    fn close_inner(&mut self) {
        let first = core::mem::take(&mut self.inner_first);
        self.above_bytes += first.len() + page::LEAF_ENTRY_BYTES + 4;
        let extent = finish_page(&self.layout, &mut self.inner, 0, &mut self.inner_full);
        self.inner_pages.push((first, extent));
    }

    /// Writes whole pieces.
    fn write_pieces(&mut self, medium: &mut dyn Device) -> Result<(), MediaError> {
        if self.bytes.len() < PIECE_BYTES {
            return Ok(());
        }
        self.write_all(medium)
    }

    fn write_all(&mut self, medium: &mut dyn Device) -> Result<(), MediaError> {
        let layout = &self.layout;
        let mut start = 0;
        while start < self.bytes.len() {
            let rest = &mut self.bytes[start..];
            let payload = &rest[SECTOR_HEADER_BYTES as usize..][..layout.payload_bytes() as usize];
            let blocks = page::blocks_of(layout, payload).expect("pages lie one after the other");
            let length = (blocks * layout.block_bytes) as usize;
            seal(
                layout,
                self.place,
                self.at + start as u32,
                Role::Page,
                &mut rest[..length],
            );
            start += length;
        }
        let offset = layout.segment_offset(self.place.slot) + u64::from(self.at);
        medium.write_at(offset, &self.bytes)?;
        self.at += self.bytes.len() as u32;
        self.bytes.clear();
        Ok(())
    }

    /// Writes what is left, and the header. The table is there when the medium is flushed; its content is the result.
    pub(crate) fn finish(mut self, medium: &mut dyn Device) -> Result<(Place, Meta), MediaError> {
        self.close_leaf();
        let leaves_end = self.at + self.bytes.len() as u32;
        self.meta.leaves_end = leaves_end / self.layout.block_bytes;
        self.meta.filter = self.put_filter();
        self.meta.root = self.put_inner();
        self.meta.entries = self.hashes.len() as u64;
        self.meta.first = core::mem::take(&mut self.first).into();
        self.meta.last = core::mem::take(&mut self.last).into();
        let mut draft = Draft::new(Kind::Meta);
        draft.set(&self.meta.emit());
        let meta = finish_page(&self.layout, &mut draft, self.at, &mut self.bytes);
        self.write_all(medium)?;
        assert!(
            self.at <= self.layout.segment_bytes,
            "room was kept for all of it"
        );
        self.meta.blocks = self.at / self.layout.block_bytes;
        self.write_header(meta, medium)?;
        Ok((self.place, self.meta))
    }

    /// Where the filter's pages are: one after the other.
    fn put_filter(&mut self) -> Extent {
        let contents = filter::build(&self.layout, &self.hashes);
        let block = (self.at + self.bytes.len() as u32) / self.layout.block_bytes;
        let mut draft = Draft::new(Kind::Filter);
        for content in &contents {
            draft.set(content);
            let blocks = draft.finish(&self.layout, &mut self.bytes);
            debug_assert_eq!(blocks, filter::page_blocks(&self.layout));
        }
        let blocks = contents.len() as u32;
        Extent { block, blocks }
    }

    /// Puts all levels above the leaves; the topmost page.
    fn put_inner(&mut self) -> Extent {
        self.close_inner();
        let base = (self.at + self.bytes.len() as u32) / self.layout.block_bytes;
        self.bytes.append(&mut self.inner_full);
        let mut level: Vec<(Vec<u8>, Extent)> = core::mem::take(&mut self.inner_pages);
        level.iter_mut().for_each(|(_, extent)| extent.block += base);
        while level.len() > 1 {
            let mut above = Vec::new();
            let mut draft = Draft::new(Kind::Inner);
            let mut first = Vec::new();
            for (key, extent) in level {
                if !draft.has_room(&self.layout, key.len()) {
                    let page = finish_page(&self.layout, &mut draft, self.at, &mut self.bytes);
                    above.push((core::mem::take(&mut first), page));
                }
                if draft.is_empty() {
                    first = key.clone();
                }
                draft.push_inner(&key, extent);
            }
            let page = finish_page(&self.layout, &mut draft, self.at, &mut self.bytes);
            above.push((first, page));
            level = above;
        }
        level[0].1
    }

    fn write_header(&self, meta: Extent, medium: &mut dyn Device) -> Result<(), MediaError> {
        let layout = &self.layout;
        let mut block = vec![0; layout.block_bytes as usize];
        let header = super::Header {
            generation: self.place.generation,
            meta,
        };
        let skip = SECTOR_HEADER_BYTES as usize;
        block[skip..skip + super::HEADER_BYTES].copy_from_slice(&header.emit());
        seal(layout, self.place, 0, Role::Checkpoint, &mut block);
        let offset = layout.segment_offset(self.place.slot);
        if layout.atomic_bytes == layout.sector_bytes {
            return medium.write_at(offset, &block);
        }
        // A cut leaves eight bytes old or new: the header is there when its first eight are.
        medium.write_at(offset, &[0; SECTOR_HEADER_BYTES as usize])?;
        medium.flush()?;
        medium.write_at(offset + skip as u64, &block[skip..])?;
        medium.flush()?;
        medium.write_at(offset, &block[..skip])
    }
}

/// Seals the sectors that begin `at` bytes into the segment; the first one has a role of its own.
fn seal(layout: &Layout, place: Place, at: u32, first: Role, bytes: &mut [u8]) {
    for (index, part) in bytes.chunks_mut(layout.sector_bytes as usize).enumerate() {
        let number = layout.sector_number(place.slot, at + index as u32 * layout.sector_bytes);
        let role = if index == 0 { first } else { Role::Checkpoint };
        sector::seal(part, role, place.generation as u32, number);
    }
}

/// Ends a page behind `bytes`, which begin at byte `at` of the segment.
fn finish_page(layout: &Layout, draft: &mut Draft, at: u32, bytes: &mut Vec<u8>) -> Extent {
    let block = (at + bytes.len() as u32) / layout.block_bytes;
    let blocks = draft.finish(layout, bytes);
    Extent { block, blocks }
}

/// The shortest key that is above `last` and not above `first`, which is above `last`.
pub(crate) fn separator(last: &[u8], first: &[u8]) -> Vec<u8> {
    let shared = last.iter().zip(first).take_while(|(a, b)| a == b).count();
    first[..(shared + 1).min(first.len())].to_vec()
}

impl StructureCount {
    fn new(id: StructureId) -> Self {
        Self {
            id,
            values: 0,
            removals: 0,
        }
    }
}
