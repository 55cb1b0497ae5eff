//! A vSSD reads its own checkpoints, to find damage before a start needs them.
//!
//! A pass begins with a new checkpoint, if something was programmed since the last one: the spare areas of what a checkpoint
//! covers are not needed any more, so damage there does no harm. Then each page of both checkpoints is read. One that is
//! damaged is replaced by a new checkpoint, whose data are in memory.

use crate::api::Event;
use crate::checkpoint::{Checkpoints, Piece};
use crate::ops::{Op, OpKind};
use crate::pages::Pages;
use base::MediaOp;

const SLOTS: u32 = 2;

/// How far it is.
#[derive(Debug, Default)]
pub(crate) struct Check {
    /// The next page of both slots, and how many these have.
    next: u32,
    count: u32,
    reads: bool,
}

impl Check {
    /// A pass begins.
    pub(crate) fn restart(&mut self, pages: &Pages) {
        (self.next, self.count) = (0, SLOTS * Self::pieces(pages));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.next == self.count && !self.reads
    }

    pub(crate) fn can_read(&self, checkpoints: &Checkpoints) -> bool {
        self.next < self.count && !self.reads && checkpoints.is_idle()
    }

    /// Reads the next page that holds something that is known.
    pub(crate) fn read(&mut self, pages: &mut Pages, checkpoints: &Checkpoints) {
        let per_slot = Self::pieces(pages);
        while self.next < self.count {
            let (slot, index) = (self.next / per_slot, self.next % per_slot);
            let Some(number) = checkpoints.in_slot(slot) else {
                self.next = (slot + 1) * per_slot;
                continue;
            };
            let Some(page) = pages.ops.page() else { return };
            self.next += 1;
            self.reads = true;
            let op = Op {
                lpn: number,
                ppn: index,
                ..Op::new(OpKind::Check)
            };
            let id = pages.ops.insert(op);
            let offset = pages.share.piece_offset(slot, index);
            pages.ops.media(MediaOp::read(u64::from(id), offset, page));
            return;
        }
    }

    /// A page was read.
    pub(crate) fn finish(&mut self, pages: &mut Pages, checkpoints: &mut Checkpoints, id: u32) {
        self.reads = false;
        let op = pages.ops.remove(id);
        let (number, index) = (op.lpn, op.ppn);
        let slot = number % SLOTS;
        let wanted = Piece {
            instance: pages.config.instance,
            number,
            index,
        };
        let page = op.page.filter(|_| !op.failed);
        let is_intact = page.is_some_and(|page| page.with(|bytes| Piece::of(bytes) == Some(wanted)));
        // Else it was written over meanwhile. A medium that hangs says nothing of what it holds.
        let is_known = checkpoints.in_slot(slot) == Some(number) && !pages.ops.latched();
        let is_damaged = !is_intact && is_known;
        if is_damaged {
            checkpoints.replace(slot, pages.checkpoint());
        }
        let offset = pages.share.piece_offset(slot, index);
        let damaged = is_damaged.then_some(offset);
        pages.ops.event(Event::Checked { damaged });
    }

    fn pieces(pages: &Pages) -> u32 {
        let (map, blocks) = pages.share.pieces(pages.mapping.len());
        1 + map + blocks
    }
}
