//! Writing a run: pages from entries in order.

use super::page::{Draft, MANIFEST, PAGE_HEADER_BYTES, emit, put_varint};
use super::{Address, filter, page_bytes};
use crate::layout::Layout;
use std::collections::VecDeque;

/// A page that is to be written.
pub(crate) struct Finished {
    /// Which of the run's segments.
    pub part: u32,
    /// In bytes of the segment.
    pub at: u32,
    pub payload: Vec<u8>,
}

/// Takes entries in order, and gives pages.
pub(crate) struct Builder {
    layout: Layout,
    target: usize,
    /// The leaf, then the pages above.
    levels: Vec<Draft>,
    /// Of the leaf's keys.
    hashes: Vec<u32>,
    /// Place of the next page.
    part: u32,
    at: u32,
    finished: VecDeque<Finished>,
    finished_bytes: u32,
    pub entries: u64,
}

impl Builder {
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            layout,
            target: layout.stream_of(page_bytes(&layout)) as usize,
            levels: vec![Draft::default()],
            hashes: Vec::new(),
            part: 0,
            at: layout.block_bytes,
            finished: VecDeque::new(),
            finished_bytes: 0,
            entries: 0,
        }
    }

    /// Adds an entry. Its key is above all that were added.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        let leaf = &self.levels[0];
        if leaf.entries > 0 && leaf.bytes_with(key, value) > self.target {
            self.close(0);
        }
        self.levels[0].push(key, value);
        self.hashes.push(filter::hash(key));
        self.entries += 1;
    }

    /// Ends the page of a level, and puts it into the one above.
    fn close(&mut self, level: usize) {
        let (first, address) = self.place(level);
        let mut value = Vec::new();
        for word in [address.part, address.block, address.blocks] {
            put_varint(&mut value, u64::from(word));
        }
        if level == 0 {
            value.extend(filter::build(&core::mem::take(&mut self.hashes)));
        }
        let above = level + 1;
        if above == self.levels.len() {
            self.levels.push(Draft::default());
        }
        // A page with one child would lead nowhere.
        if self.levels[above].entries > 1 && self.levels[above].bytes_with(&first, &value) > self.target {
            self.close(above);
        }
        self.levels[above].push(&first, &value);
    }

    fn place(&mut self, level: usize) -> (Vec<u8>, Address) {
        let draft = core::mem::take(&mut self.levels[level]);
        let (first, payload) = draft.finish(&self.layout, level as u8);
        (first, self.queue(payload))
    }

    fn queue(&mut self, payload: Vec<u8>) -> Address {
        let bytes = self.layout.extent_of(payload.len() as u32);
        if self.at + bytes > self.layout.segment_bytes {
            self.part += 1;
            self.at = self.layout.block_bytes;
        }
        let address = Address {
            part: self.part,
            block: self.at / self.layout.block_bytes,
            blocks: bytes / self.layout.block_bytes,
        };
        self.finished.push_back(Finished {
            part: self.part,
            at: self.at,
            payload,
        });
        self.at += bytes;
        self.finished_bytes += bytes;
        address
    }

    /// Ends the run: its root, if it has any entry.
    pub(crate) fn finish(&mut self) -> Option<Address> {
        let mut level = 0;
        while level + 1 < self.levels.len() {
            if self.levels[level].entries > 0 {
                self.close(level);
            }
            level += 1;
        }
        (self.levels[level].entries > 0).then(|| self.place(level).1)
    }

    /// The part that a manifest of so many bytes will be in: no page comes between.
    pub(crate) fn part_of_manifest(&self, bytes: usize) -> u32 {
        let bytes = self.layout.extent_of((PAGE_HEADER_BYTES + bytes) as u32);
        self.part + u32::from(self.at + bytes > self.layout.segment_bytes)
    }

    /// Adds the manifest, the last page.
    pub(crate) fn add_manifest(&mut self, bytes: &[u8]) {
        let payload = emit(&self.layout, MANIFEST, &[], bytes);
        self.queue(payload);
    }

    /// Bytes of pages that wait to be written.
    pub(crate) fn finished_bytes(&self) -> u32 {
        self.finished_bytes
    }

    /// The pages of the next write: one after the other in one segment, and no more than `bytes`, if not one alone is.
    pub(crate) fn take(&mut self, bytes: u32) -> Vec<Finished> {
        let mut taken: Vec<Finished> = Vec::new();
        let mut sum = 0;
        while let Some(next) = self.finished.front() {
            let size = self.layout.extent_of(next.payload.len() as u32);
            let goes_on = taken.last().is_none_or(|last| last.part == next.part);
            if !goes_on || (sum > 0 && sum + size > bytes) {
                break;
            }
            sum += size;
            taken.extend(self.finished.pop_front());
        }
        self.finished_bytes -= sum;
        taken
    }
}
