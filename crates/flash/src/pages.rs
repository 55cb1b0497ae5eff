//! Pages on flash: which are whose, how they are programmed, and how far all this is durable.
//!
//! [`Pages`] is the ground on which writes, trims, checkpoints, flush rounds and collection stand. It knows none of them.

use crate::api::{Event, VssdConfig};
use crate::blocks::Blocks;
use crate::bus::Model;
use crate::entries::Entries;
use crate::geometry::Isolation;
use crate::layout::Share;
use crate::mapping::{Mapped, Mapping};
use crate::nand::NandKind;
use crate::oob::{Entry, Kind};
use crate::ops::{Op, OpKind, Ops};
use crate::sequence::Sequence;
use base::{MediaOp, Page, Pool, Version};

/// All pages of a vSSD.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) config: VssdConfig,
    pub(crate) share: Share,
    pub(crate) ops: Ops,
    pub(crate) mapping: Mapping,
    pub(crate) blocks: Blocks,
    pub(crate) sequence: Sequence,
    pub(crate) entries: Entries,
    /// Every program up to this is durable.
    flushed: u64,
    /// The same by the entries: it lags after a recovery, until a checkpoint has settled which programs of the time
    /// before were cut.
    claimed: u64,
    settled: bool,
    /// The newest durable checkpoint, 0 for none.
    checkpoint: u32,
    /// Marks the entries of this life.
    salt: u32,
    erases: u64,
}

impl Pages {
    /// The pages of a vSSD whose blocks are not yet started; programs are numbered from `next`.
    pub(crate) fn new(config: VssdConfig, pool: Pool, nand: Model, next: u64) -> Self {
        assert_eq!(
            pool.page_bytes(),
            config.page_bytes,
            "the pool has the medium's page size"
        );
        let share = config.share();
        let home = share.rows().start * share.channels()..share.rows().end * share.channels();
        assert!(
            config.logical_pages <= config.geometry.logical_pages_max_of_units(home.end - home.start),
            "more logical pages than collection can serve"
        );
        let ops = Ops::new(&config, &share, pool, nand);
        let units = share.units();
        Self {
            mapping: Mapping::new(config.logical_pages, share.blocks(), share.pages_per_block()),
            blocks: Blocks::new(
                units,
                home,
                share.channels(),
                share.blocks_per_unit(),
                share.pages_per_block(),
                config.gc_frontier_separate,
                config.wear_gap_max,
            ),
            sequence: Sequence::new(next, config.operations(units)),
            entries: Entries::new(3 * units as usize + 64),
            flushed: next - 1,
            claimed: next - 1,
            settled: true,
            checkpoint: 0,
            salt: config.instance,
            erases: 0,
            ops,
            config,
            share,
        }
    }

    /// Goes on after a recovery. `checkpoint` is the newest that was durable. Programs up to `unsettled` were, if some may
    /// have been cut.
    pub(crate) fn resume(&mut self, salt: u32, checkpoint: u32, unsettled: Option<u64>) {
        self.salt = salt;
        self.checkpoint = checkpoint;
        if let Some(durable) = unsettled {
            self.settled = false;
            self.flushed = durable;
            self.claimed = durable;
        }
    }

    /// Every program up to this is durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// False after a recovery, until a checkpoint has covered the programs that may have been cut.
    pub(crate) fn settled(&self) -> bool {
        self.settled
    }

    /// The newest durable checkpoint, 0 for none.
    pub(crate) fn checkpoint(&self) -> u32 {
        self.checkpoint
    }

    /// Blocks erased.
    pub(crate) fn erases(&self) -> u64 {
        self.erases
    }

    /// Every program up to `durable` is durable.
    pub(crate) fn flush_done(&mut self, durable: u64) {
        self.flushed = self.flushed.max(durable);
        if self.settled {
            self.claimed = self.flushed;
        }
    }

    /// Checkpoint `number` is durable.
    pub(crate) fn checkpoint_done(&mut self, number: u32) {
        self.checkpoint = number;
        self.settled = true;
        self.claimed = self.flushed;
    }

    /// Reads `ppn` into a page of the pool; false if the pool has none.
    pub(crate) fn read(&mut self, op: Op, collection: bool) -> bool {
        let page = match collection {
            true => self.ops.own_page(),
            false => self.ops.page(),
        };
        let Some(page) = page else { return false };
        let ppn = op.ppn;
        let id = self.ops.insert(op);
        self.ops.model(id, NandKind::Read, ppn, collection);
        let offset = self.share.data_offset(ppn);
        self.ops.media(MediaOp::read(u64::from(id), offset, page));
        true
    }

    /// Programs the page of `id` at `ppn`, just allocated: map, entry, medium, model. Returns its sequence.
    pub(crate) fn program(&mut self, id: u32, kind: Kind, ppn: u32, collection: bool) -> u64 {
        let sequence = self.sequence.begin();
        let block_id = self.blocks.block_of(ppn);
        let block = self.blocks.get_mut(block_id);
        if block.first_sequence == 0 {
            block.first_sequence = sequence;
        }
        let generation = block.erases;
        let op = &mut self.ops[id];
        op.ppn = ppn;
        op.sequence = sequence;
        op.failed = false;
        if kind == Kind::Record && op.version == Version::NONE {
            // A record is named by its first program.
            op.version = Version(sequence);
        }
        let (lpn, version, crc) = (op.lpn, op.version, op.crc);
        let page = op.page.clone().expect("a program has a page");
        self.blocks.revive(ppn);
        if kind == Kind::Record {
            self.mapping.set_record(ppn, true);
        } else {
            if kind == Kind::User {
                self.mapping.set_damaged(lpn, false);
            }
            if let Some(dead) = self.mapping.set(lpn, Mapped { version, ppn, crc }) {
                self.blocks.kill(dead, sequence, 0);
            }
        }
        let entry = Entry {
            kind,
            lpn,
            instance: self.config.instance,
            version,
            sequence,
            durable: self.claimed,
            generation,
            data_crc: crc,
            checkpoint: self.checkpoint,
            salt: self.salt,
            ppn,
        };
        let block = self.blocks.get_mut(block_id);
        self.entries.add(&mut self.ops, &self.share, block, &entry);
        self.ops.model(id, NandKind::Program, ppn, collection);
        let offset = self.share.data_offset(ppn);
        self.ops.media(MediaOp::write(u64::from(id), offset, page));
        sequence
    }

    /// A program ended: takes its operation out.
    pub(crate) fn program_ended(&mut self, id: u32) -> Op {
        let op = self.ops.remove(id);
        self.sequence.end(op.sequence);
        self.blocks.programmed(self.blocks.block_of(op.ppn));
        op
    }

    /// Reads of the page go to the medium again, unless another operation has newer data.
    pub(crate) fn forget_buffered(&mut self, lpn: u32, id: u32) {
        if self.mapping.buffered(lpn) == Some(id) {
            self.mapping.set_buffered(lpn, None);
        }
    }

    /// Writes a page of metadata.
    pub(crate) fn write(&mut self, kind: OpKind, offset: u64, page: Page) {
        let op = self.ops.insert(Op::new(kind));
        self.ops.media(MediaOp::write(u64::from(op), offset, page));
    }

    /// Frees what the erase barrier no longer holds.
    ///
    /// After a recovery nothing is freed before a checkpoint is durable: a program over one that was cut, itself cut, could
    /// complete what the former left.
    pub(crate) fn release_blocks(&mut self, trims_durable: u64) {
        if !self.settled {
            return;
        }
        let released = self.blocks.release(self.flushed, trims_durable);
        self.erases += u64::from(released);
        if self.blocks.returning {
            self.offer_returns();
        }
    }

    /// True if the vSSD is one of a channel group.
    pub(crate) fn is_shared(&self) -> bool {
        self.config.isolation != Isolation::Hardware
    }

    /// Collection begins: what is borrowed goes back. Blocks that it is filling are closed.
    pub(crate) fn call_in_borrowed(&mut self) {
        if !self.is_shared() || self.blocks.borrowed() == 0 {
            return;
        }
        self.blocks.returning = true;
        for id in self.blocks.close_borrowed() {
            self.entries.close_block(&mut self.ops, self.blocks.get_mut(id));
        }
        self.offer_returns();
    }

    fn offer_returns(&mut self) {
        if self.blocks.has_returns() {
            self.ops.event(Event::Return);
        }
    }
}
