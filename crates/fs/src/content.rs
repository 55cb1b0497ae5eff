//! The content of a file of the reference model: blocks that are written, reserved, or holes. It has no size; what is behind the size is
//! for [`crate::files`] to keep zero.

use crate::format::{BLOCK_BYTES, Block};
use crate::ranges::Ranges;
use core::ops::Range;
use std::collections::BTreeMap;

const BYTES: u64 = BLOCK_BYTES as u64;

/// Blocks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    written: BTreeMap<u64, Box<Block>>,
    /// Blocks that are there and read as zeros.
    reserved: Ranges,
}

/// The blocks that lie in a range of bytes wholly.
pub(crate) fn whole_blocks(range: &Range<u64>) -> Range<u64> {
    let (first, end) = (range.start.div_ceil(BYTES), range.end / BYTES);
    first..end.max(first)
}

/// The blocks that have bytes of a range.
pub(crate) fn touched_blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BYTES..range.end.div_ceil(BYTES)
}

impl Content {
    /// Blocks that take space.
    pub fn blocks(&self) -> u64 {
        self.written.len() as u64 + self.reserved.count()
    }

    /// Blocks that are written, and those that are there and read as zeros.
    pub fn map(&self) -> (Vec<u64>, Vec<Range<u64>>) {
        (
            self.written.keys().copied().collect(),
            self.reserved.iter().collect(),
        )
    }

    /// What is at an offset.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        let range = offset..offset + bytes.len() as u64;
        for (number, block) in self.written.range(touched_blocks(&range)) {
            let (inside, outside) = overlap(*number, &range);
            bytes[outside].copy_from_slice(&block[inside]);
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        for number in touched_blocks(&range) {
            let block = self
                .written
                .entry(number)
                .or_insert_with(|| Box::new([0; BLOCK_BYTES]));
            let (inside, outside) = overlap(number, &range);
            block[inside].copy_from_slice(&bytes[outside]);
        }
        self.reserved.remove(touched_blocks(&range));
    }

    /// Gives blocks to what has none.
    pub(crate) fn reserve(&mut self, range: Range<u64>) {
        let touched = touched_blocks(&range);
        self.reserved.insert(touched.clone());
        for (number, _) in self.written.range(touched) {
            self.reserved.remove(*number..*number + 1);
        }
    }

    /// Takes the blocks of a range, and zeros what it has of others.
    pub(crate) fn punch(&mut self, range: Range<u64>) {
        self.zero(&range);
        let whole = whole_blocks(&range);
        self.reserved.remove(whole.clone());
        // Not number by number: a range may have more blocks than anything counts.
        let gone: Vec<u64> = self.written.range(whole).map(|(number, _)| *number).collect();
        gone.iter().for_each(|number| drop(self.written.remove(number)));
    }

    /// Zeros a range, the whole blocks of which become reserved ones.
    pub(crate) fn zeros(&mut self, range: Range<u64>) {
        self.punch(range.clone());
        self.reserve(range);
    }

    fn zero(&mut self, range: &Range<u64>) {
        for (number, block) in self.written.range_mut(touched_blocks(range)) {
            block[overlap(*number, range).0].fill(0);
        }
    }
}

/// The part of a block that is in a range: in the block, and from the range's start on.
fn overlap(number: u64, range: &Range<u64>) -> (Range<usize>, Range<usize>) {
    let block = number * BYTES..(number + 1) * BYTES;
    let (start, end) = (range.start.max(block.start), range.end.min(block.end));
    let inside = (start - block.start) as usize..(end - block.start) as usize;
    (
        inside,
        (start - range.start) as usize..(end - range.start) as usize,
    )
}
