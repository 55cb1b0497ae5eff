//! Durability: program order, out-of-band buffers, and flush rounds.
//!
//! Out-of-band entries gather in a buffer per page of them. A buffer is written when it is full, or when a round
//! needs it. A round serves all flushes that wait: log the pending trims, write the dirty buffers, then one media
//! flush. Rounds do not overlap, so flushes that arrive meanwhile share the next (group commit), and a lone one
//! starts at once.

use crate::api::{Data, Event, VssdError};
use crate::layout::ENTRY_BYTES;
use crate::mapping::NONE;
use crate::oob::Entry;
use crate::ops::{Op, OpKind};
use crate::trim::Logged;
use crate::vssd::Vssd;
use base::{MediaOp, Slab};
use std::collections::VecDeque;

/// Numbers programs and knows up to which one all are done.
#[derive(Debug)]
pub(crate) struct Sequence {
    next: u64,
    base: u64,
    done: VecDeque<bool>,
}

impl Sequence {
    pub(crate) fn new(next: u64, capacity: usize) -> Self {
        Self {
            next,
            base: next,
            done: VecDeque::with_capacity(capacity),
        }
    }

    pub(crate) fn begin(&mut self) -> u64 {
        self.done.push_back(false);
        self.next += 1;
        self.next - 1
    }

    pub(crate) fn end(&mut self, sequence: u64) {
        self.done[(sequence - self.base) as usize] = true;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.base += 1;
        }
    }

    /// The newest number handed out, 0 for none.
    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Every program up to this is done.
    pub(crate) fn programmed(&self) -> u64 {
        self.base - 1
    }
}

/// One page of out-of-band entries being filled or written.
#[derive(Debug)]
struct Buffer {
    offset: u64,
    bytes: Box<[u8]>,
    /// Has entries that no write carries.
    dirty: bool,
    /// No entry will be added.
    full: bool,
    in_flight: bool,
    /// The present round waits for it.
    in_round: bool,
    /// The write in flight is the one the round waits for.
    round_write: bool,
}

/// All buffers.
#[derive(Debug)]
pub(crate) struct Buffers {
    open: Slab<Buffer>,
    /// Memory of buffers that were closed.
    spare: Vec<Box<[u8]>>,
    /// A write was put off because the pool was empty.
    starved: bool,
}

impl Buffers {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            open: Slab::with_capacity(capacity),
            spare: Vec::with_capacity(capacity),
            starved: false,
        }
    }

    /// A clean buffer for the page at `offset`.
    pub(crate) fn open(&mut self, offset: u64, page_bytes: usize) -> u32 {
        let mut bytes = self.spare.pop().unwrap_or_else(|| vec![0; page_bytes].into());
        bytes.fill(0);
        self.open.insert(Buffer {
            offset,
            bytes,
            dirty: false,
            full: false,
            in_flight: false,
            in_round: false,
            round_write: false,
        })
    }

    fn close(&mut self, id: u32) {
        self.spare.push(self.open.remove(id).bytes);
    }

    /// The bytes of a buffer, for recovery to fill.
    pub(crate) fn bytes_mut(&mut self, id: u32) -> &mut [u8] {
        &mut self.open[id].bytes
    }
}

/// Progress of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Writing,
    Flushing,
}

/// The flush rounds.
#[derive(Debug)]
pub(crate) struct Rounds {
    pub(crate) stage: Stage,
    /// Flushes that wait for the next round.
    next: Vec<u64>,
    /// Flushes that the present round serves.
    current: Vec<u64>,
    /// Collection or a checkpoint wants a round.
    pub(crate) internal: bool,
    buffers_left: u32,
    target: u64,
    trims: u64,
    durable: u64,
    /// The round began after a checkpoint's pieces, or its header, were written.
    for_checkpoint: bool,
}

impl Rounds {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            stage: Stage::Idle,
            next: Vec::with_capacity(capacity),
            current: Vec::with_capacity(capacity),
            internal: false,
            buffers_left: 0,
            target: 0,
            trims: 0,
            durable: 0,
            for_checkpoint: false,
        }
    }
}

impl Vssd {
    /// Adds the entry of a page just handed out.
    pub(crate) fn add_entry(&mut self, entry: &Entry) {
        let per_page = self.share.entries_per_page();
        let per_block = self.share.pages_per_block();
        let (block, page) = (entry.ppn / per_block, entry.ppn % per_block);
        let mut id = self.blocks.get(block).buffer;
        if id == NONE {
            assert_eq!(page % per_page, 0, "a page of entries is filled from its start");
            id = self.buffers.open(
                self.share.oob_offset(block, page / per_page),
                self.share.page_bytes(),
            );
        }
        let buffer = &mut self.buffers.open[id];
        let at = (page % per_page) as usize * ENTRY_BYTES;
        entry.emit(&mut buffer.bytes[at..at + ENTRY_BYTES]);
        buffer.dirty = true;
        buffer.full = (page + 1).is_multiple_of(per_page) || page + 1 == per_block;
        let full = buffer.full;
        self.blocks.get_mut(block).buffer = if full { NONE } else { id };
        if full {
            self.write_buffer(id);
        }
    }

    /// No entry will be added to those of a block that is closed before it is full.
    pub(crate) fn close_entries(&mut self, block: u32) {
        let id = core::mem::replace(&mut self.blocks.get_mut(block).buffer, NONE);
        if id == NONE {
            return;
        }
        let buffer = &mut self.buffers.open[id];
        buffer.full = true;
        if buffer.dirty {
            self.write_buffer(id);
        } else if !buffer.in_flight {
            self.buffers.close(id);
        }
    }

    /// Writes a buffer unless it is being written; that write's end looks again.
    fn write_buffer(&mut self, id: u32) {
        let buffer = &mut self.buffers.open[id];
        if buffer.in_flight || !buffer.dirty || self.latched {
            return;
        }
        let Some(page) = self.pool.alloc() else {
            self.buffers.starved = true;
            self.starved = true;
            return;
        };
        page.with_mut(|bytes| bytes.copy_from_slice(&buffer.bytes));
        buffer.in_flight = true;
        buffer.dirty = false;
        buffer.round_write = buffer.in_round;
        let offset = buffer.offset;
        let op = self.ops.insert(Op {
            lpn: id,
            ..Op::new(OpKind::Oob)
        });
        self.media(MediaOp::write(u64::from(op), offset, page));
    }

    /// Writes what an empty pool held up.
    pub(crate) fn retry_buffers(&mut self) {
        if !self.buffers.starved {
            return;
        }
        self.buffers.starved = false;
        for id in 0..self.buffers.open.bound() {
            let waits = |buffer: &Buffer| buffer.full || buffer.in_round;
            if self.buffers.open.get(id).is_some_and(waits) {
                self.write_buffer(id);
            }
        }
    }

    pub(crate) fn buffer_written(&mut self, id: u32) {
        let buffer = &mut self.buffers.open[id];
        buffer.in_flight = false;
        if buffer.round_write {
            buffer.round_write = false;
            buffer.in_round = false;
            self.rounds.buffers_left -= 1;
        }
        if buffer.dirty {
            if buffer.full || buffer.in_round {
                self.write_buffer(id);
            }
        } else if buffer.full {
            self.buffers.close(id);
        }
    }

    /// A user's flush.
    pub(crate) fn submit_flush(&mut self, tag: u64) {
        if self.latched {
            return self.done(tag, Err(VssdError::Latched));
        }
        let nothing_new = self.sequence.last() == self.flushed && self.trims.accepted == self.trims.durable;
        if nothing_new {
            return self.done(tag, Ok(Data::None));
        }
        self.rounds.next.push(tag);
    }

    /// Starts a round if one is wanted, and carries the present one on.
    pub(crate) fn step_round(&mut self) {
        if self.latched {
            return;
        }
        if self.rounds.stage == Stage::Idle && (self.rounds.internal || !self.rounds.next.is_empty()) {
            self.start_round();
        }
        if self.rounds.stage == Stage::Writing
            && self.rounds.buffers_left == 0
            && self.trims.records_in_flight == 0
        {
            self.rounds.stage = Stage::Flushing;
            self.rounds.durable = self.rounds.target.min(self.sequence.programmed());
            let op = self.ops.insert(Op::new(OpKind::Flush));
            self.media(MediaOp::flush(u64::from(op)));
        }
    }

    fn start_round(&mut self) {
        match self.log_trims() {
            Logged::All => core::mem::swap(&mut self.rounds.next, &mut self.rounds.current),
            Logged::NoPage => return,
            Logged::NoRoom => {
                // Only a checkpoint can make the trims durable now; its own rounds go on without users.
                self.checkpoints.wanted = true;
                if !self.rounds.internal {
                    return;
                }
            }
        }
        self.rounds.stage = Stage::Writing;
        self.rounds.internal = false;
        self.rounds.for_checkpoint = self.checkpoint_waits();
        self.rounds.target = self.sequence.last();
        self.rounds.trims = self.trims.logged;
        for id in 0..self.buffers.open.bound() {
            let buffer = self.buffers.open.get_mut(id);
            let Some(buffer) = buffer.filter(|buffer| buffer.dirty || buffer.in_flight) else {
                continue;
            };
            buffer.in_round = true;
            self.rounds.buffers_left += 1;
            if buffer.dirty {
                self.write_buffer(id);
            } else {
                buffer.round_write = true;
            }
        }
    }

    /// The media flush of the round is done.
    pub(crate) fn round_done(&mut self) {
        self.rounds.stage = Stage::Idle;
        self.counters.flushes += 1;
        self.flushed = self.flushed.max(self.rounds.durable);
        if self.settled {
            self.claimed = self.flushed;
        }
        self.trims.durable = self.trims.durable.max(self.rounds.trims);
        let mut tags = core::mem::take(&mut self.rounds.current);
        for tag in tags.drain(..) {
            self.done(tag, Ok(Data::None));
        }
        self.rounds.current = tags;
        if core::mem::take(&mut self.rounds.for_checkpoint) {
            self.checkpoint_round_done(self.rounds.durable);
        }
        self.release_blocks();
    }

    /// Refuses every flush that waits.
    pub(crate) fn refuse_flushes(&mut self) {
        let mut tags = core::mem::take(&mut self.rounds.current);
        tags.append(&mut self.rounds.next);
        for tag in tags {
            self.events.push_back(Event::Done {
                tag,
                result: Err(VssdError::Latched),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programmed_stops_before_the_oldest_unfinished_program() {
        let mut sequence = Sequence::new(1, 4);
        assert_eq!((sequence.last(), sequence.programmed()), (0, 0));
        let [a, b, c] = core::array::from_fn(|_| sequence.begin());
        sequence.end(b);
        assert_eq!(sequence.programmed(), 0);
        sequence.end(a);
        assert_eq!(sequence.programmed(), 2);
        sequence.end(c);
        assert_eq!(sequence.programmed(), sequence.last());
    }
}
