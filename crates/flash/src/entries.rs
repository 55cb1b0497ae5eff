//! Out-of-band entries gather in a buffer per page of them. A buffer is written when it is full, or if a flush round needs
//! it.

use crate::blocks::Block;
use crate::layout::{ENTRY_BYTES, Share};
use crate::mapping::NONE;
use crate::oob::Entry;
use crate::ops::{Op, OpKind, Ops};
use base::{MediaOp, Slab};

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

/// The entries that are not written yet.
#[derive(Debug)]
pub(crate) struct Entries {
    open: Slab<Buffer>,
    /// Memory of buffers that were closed.
    spare: Vec<Box<[u8]>>,
    /// A write was put off because the pool was empty.
    starved: bool,
    /// Buffers that the present round waits for.
    in_round: u32,
}

impl Entries {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            open: Slab::with_capacity(capacity),
            spare: Vec::with_capacity(capacity),
            starved: false,
            in_round: 0,
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

    /// Adds the entry of a page just handed out of `block`.
    pub(crate) fn add(&mut self, ops: &mut Ops, share: &Share, block: &mut Block, entry: &Entry) {
        let per_page = share.entries_per_page();
        let per_block = share.pages_per_block();
        let (number, page) = (entry.ppn / per_block, entry.ppn % per_block);
        if block.buffer == NONE {
            assert_eq!(page % per_page, 0, "a page of entries is filled from its start");
            block.buffer = self.open(share.oob_offset(number, page / per_page), share.page_bytes());
        }
        let id = block.buffer;
        let buffer = &mut self.open[id];
        let at = (page % per_page) as usize * ENTRY_BYTES;
        entry.emit(&mut buffer.bytes[at..at + ENTRY_BYTES]);
        buffer.dirty = true;
        buffer.full = (page + 1).is_multiple_of(per_page) || page + 1 == per_block;
        if buffer.full {
            block.buffer = NONE;
            self.write(ops, id);
        }
    }

    /// No entry will be added to those of a block that is closed before it is full.
    pub(crate) fn close_block(&mut self, ops: &mut Ops, block: &mut Block) {
        let id = core::mem::replace(&mut block.buffer, NONE);
        if id == NONE {
            return;
        }
        let buffer = &mut self.open[id];
        buffer.full = true;
        if buffer.dirty {
            self.write(ops, id);
        } else if !buffer.in_flight {
            self.close(id);
        }
    }

    /// Writes a buffer unless it is being written; that write's end looks again.
    fn write(&mut self, ops: &mut Ops, id: u32) {
        let buffer = &mut self.open[id];
        if buffer.in_flight || !buffer.dirty || ops.latched() {
            return;
        }
        let Some(page) = ops.own_page() else {
            self.starved = true;
            return;
        };
        page.with_mut(|bytes| bytes.copy_from_slice(&buffer.bytes));
        buffer.in_flight = true;
        buffer.dirty = false;
        buffer.round_write = buffer.in_round;
        let op = ops.insert(Op {
            lpn: id,
            ..Op::new(OpKind::Oob)
        });
        ops.media(MediaOp::write(u64::from(op), buffer.offset, page));
    }

    /// Writes what an empty pool held up.
    pub(crate) fn retry(&mut self, ops: &mut Ops) {
        if !core::mem::take(&mut self.starved) {
            return;
        }
        for id in 0..self.open.bound() {
            let waits = |buffer: &Buffer| buffer.full || buffer.in_round;
            if self.open.get(id).is_some_and(waits) {
                self.write(ops, id);
            }
        }
    }

    /// The medium has a buffer.
    pub(crate) fn written(&mut self, ops: &mut Ops, id: u32) {
        let buffer = &mut self.open[id];
        buffer.in_flight = false;
        if buffer.round_write {
            buffer.round_write = false;
            buffer.in_round = false;
            self.in_round -= 1;
        }
        if buffer.dirty {
            if buffer.full || buffer.in_round {
                self.write(ops, id);
            }
        } else if buffer.full {
            self.close(id);
        }
    }

    /// A round begins: writes all entries that no write carries.
    pub(crate) fn begin_round(&mut self, ops: &mut Ops) {
        for id in 0..self.open.bound() {
            let buffer = self.open.get_mut(id);
            let Some(buffer) = buffer.filter(|buffer| buffer.dirty || buffer.in_flight) else {
                continue;
            };
            buffer.in_round = true;
            self.in_round += 1;
            if buffer.dirty {
                self.write(ops, id);
            } else {
                buffer.round_write = true;
            }
        }
    }

    /// True if the medium has all entries that the round began with.
    pub(crate) fn round_is_written(&self) -> bool {
        self.in_round == 0
    }
}
