//! The changes of one file's data, less what later ones undo.

use crate::content::{touched_blocks, whole_blocks};
use crate::format::{BLOCK_BYTES, Place};
use crate::op::{Action, Allocation, Bytes, OFFSET_MAX, blocks_of};
use crate::ranges::Ranges;
use crate::value::Run;
use core::ops::Range;
use std::borrow::Cow;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of writes that are put together, at most, so that no copy is long. Longer ones stay as they are.
const MERGED_BYTES_MAX: usize = 1 << 20;
/// Behind everything that a file has.
const END: u64 = u64::MAX;

/// What is known, going backwards, of what comes later.
struct Later<'a> {
    /// Bytes whose content and blocks do not depend on what comes before.
    covered: Ranges,
    /// The least size that a file is cut to: from there on, content does not depend on what comes before.
    cut: u64,
    /// A place that is kept ends inside of a block, so the file may not be longer there than it was.
    needs_cuts: bool,
    /// What is kept, the last one first.
    kept: Vec<Action<'a>>,
}

/// What is left of changes of one file's data, in order: to every file they do the same as all. Blocks that nothing refers to go to `unused`.
pub(crate) fn merge<'a>(changes: Vec<Action<'a>>, unused: &mut Vec<Run>) -> Vec<Action<'a>> {
    let mut later = Later {
        covered: Ranges::default(),
        cut: END,
        needs_cuts: false,
        kept: Vec::new(),
    };
    for change in changes.into_iter().rev() {
        later.add(change, unused);
    }
    later.kept.reverse();
    put_together(later.kept)
}

impl<'a> Later<'a> {
    fn add(&mut self, change: Action<'a>, unused: &mut Vec<Run>) {
        match change {
            Action::Write { offset, data } => self.write(offset, &data),
            Action::Truncate { size } => self.truncate(size),
            Action::Place {
                offset,
                bytes,
                place,
                sums,
            } => self.place((offset, bytes), place, &sums, unused),
            Action::Allocate {
                offset,
                bytes,
                what,
                keeps_size,
            } => {
                let range = offset..offset + bytes;
                let blocks = bytes_of(touched_blocks(&range));
                if self.covered.contains(blocks) {
                    return;
                }
                self.kept.push(change);
                // What keeps the size does not stand for a write that does not.
                if what == Allocation::Zeros && !keeps_size {
                    self.covered.insert(bytes_of(whole_blocks(&range)));
                }
            }
            other => self.kept.push(other),
        }
    }

    fn write(&mut self, offset: u64, data: &Bytes<'a>) {
        let range = offset..offset + data.len() as u64;
        for gap in self.covered.gaps(range.clone()).into_iter().rev() {
            let data = part(data, (gap.start - offset) as usize..(gap.end - offset) as usize);
            self.kept.push(Action::Write {
                offset: gap.start,
                data,
            });
        }
        self.covered.insert(range);
    }

    fn truncate(&mut self, size: u64) {
        let is_undone = size >= self.cut || (self.cut < END && self.covered.contains(size..self.cut));
        if !is_undone || self.needs_cuts {
            self.kept.push(Action::Truncate { size });
        }
        self.cut = self.cut.min(size);
        // Whether the block at the end is there depends on what comes before.
        self.covered.insert(size.next_multiple_of(BLOCK)..END);
    }

    fn place(&mut self, (offset, bytes): (u64, u32), place: Place, sums: &[u32], unused: &mut Vec<Run>) {
        let end = offset + u64::from(bytes);
        let of_block = |index: u64| offset + index * BLOCK..(offset + (index + 1) * BLOCK).min(end);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for index in 0..blocks_of(u64::from(bytes)) {
            match runs.last_mut() {
                _ if self.covered.contains(of_block(index)) => unused.push(Run::one(place.plus(index))),
                Some(run) if run.end == index => run.end += 1,
                _ => runs.push(index..index + 1),
            }
        }
        for run in runs.into_iter().rev() {
            let (start, stop) = (of_block(run.start).start, of_block(run.end - 1).end);
            self.needs_cuts |= !stop.is_multiple_of(BLOCK);
            self.kept.push(Action::Place {
                offset: start,
                bytes: (stop - start) as u32,
                place: place.plus(run.start),
                sums: Cow::Owned(sums[run.start as usize..run.end as usize].to_vec()),
            });
        }
        self.covered.insert(offset..end);
    }
}

fn bytes_of(blocks: Range<u64>) -> Range<u64> {
    blocks.start * BLOCK..blocks.end * BLOCK
}

fn part<'a>(data: &Bytes<'a>, range: Range<usize>) -> Bytes<'a> {
    match data {
        Cow::Borrowed(data) => Cow::Borrowed(&data[range]),
        Cow::Owned(data) => Cow::Owned(data[range].to_vec()),
    }
}

/// Joins writes that touch. Between others they may come in any order, as they do not overlap.
fn put_together(changes: Vec<Action<'_>>) -> Vec<Action<'_>> {
    let mut out: Vec<Action<'_>> = Vec::with_capacity(changes.len());
    let mut run = Vec::new();
    for change in changes {
        match change {
            Action::Write { offset, data } => run.push((offset, data)),
            other => {
                join(&mut run, &mut out);
                out.push(other);
            }
        }
    }
    join(&mut run, &mut out);
    out
}

fn join<'a>(run: &mut Vec<(u64, Bytes<'a>)>, out: &mut Vec<Action<'a>>) {
    run.sort_by_key(|(offset, _)| *offset);
    let mut last: Option<(u64, Bytes<'a>)> = None;
    for (offset, data) in run.drain(..) {
        match &mut last {
            Some((start, before))
                if *start + before.len() as u64 == offset
                    && before.len() + data.len() <= MERGED_BYTES_MAX =>
            {
                before.to_mut().extend_from_slice(&data);
            }
            _ => {
                let done = last.replace((offset, data));
                out.extend(done.map(|(offset, data)| Action::Write { offset, data }));
            }
        }
    }
    out.extend(last.map(|(offset, data)| Action::Write { offset, data }));
}

const _: () = assert!(OFFSET_MAX < END, "no file reaches the end of all numbers");
