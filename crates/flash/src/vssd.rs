//! The run-time machine of one vSSD.
//!
//! Invariants:
//! - A request is answered once. A write is answered when the medium has it and its modelled time is over.
//! - Of a logical page the newest accepted version is what reads return, from memory until it is programmed.
//! - A block is erased only when everything that replaced its pages is durable, so that a crash never leaves less than
//!   the last flush promised.
//! - After a failed write or flush of the medium nothing is written any more; reads go on.
//!
//! Assumptions about the medium: a completed flush makes completed writes durable, writes that were not flushed may be
//! there or not, sector by sector, and reads see completed writes.

use crate::api::{
    Data, Event, GcMode, RecoverError, RecoveryReport, Request, VssdConfig, VssdError, VssdStats,
};
use crate::blocks::{Blocks, Stream};
use crate::bus::Model;
use crate::checkpoint::Checkpoints;
use crate::flush::{Buffers, Rounds, Sequence};
use crate::gc::Collection;
use crate::geometry::Isolation;
use crate::group::{ChannelGroup, Members};
use crate::layout::Share;
use crate::mapping::{Mapped, Mapping, NONE};
use crate::nand::{Nand, NandKind};
use crate::oob::{Entry, Kind};
use crate::ops::{Op, OpKind};
use crate::recover;
use crate::trim::Trims;
use base::{
    Device, Duration, Instant, Lpn, MediaDone, MediaError, MediaOp, Page, Pool, Slab, Version, VssdId,
};
use std::collections::VecDeque;

/// When to look again for a page after the pool was empty. Ends of other operations are looked at anyway.
const STARVED_RETRY: Duration = Duration::from_micros(100);

/// Counters since start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) user_programs: u64,
    pub(crate) gc_programs: u64,
    pub(crate) record_programs: u64,
    pub(crate) erases: u64,
    pub(crate) reads: u64,
    pub(crate) flushes: u64,
    pub(crate) checkpoints: u64,
    pub(crate) blocks_borrowed: u64,
}

/// Operations for which memory is reserved.
pub(crate) fn operations(config: &VssdConfig, units: u32) -> usize {
    config.queue_depth as usize + 3 * units as usize + 64
}

/// One vSSD: flash translation, garbage collection, timing. Drive it like a [`base::Machine`].
#[derive(Debug)]
pub struct Vssd {
    pub(crate) config: VssdConfig,
    pub(crate) share: Share,
    pub(crate) pool: Pool,
    pub(crate) now: Instant,
    /// Operations take modelled time.
    pub(crate) timed: bool,
    pub(crate) nand: Model,
    pub(crate) ops: Slab<Op>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) mapping: Mapping,
    pub(crate) blocks: Blocks,
    pub(crate) sequence: Sequence,
    /// Every program up to this is durable.
    pub(crate) flushed: u64,
    /// The same by the entries: it lags after a recovery, until a checkpoint has settled which programs of the time
    /// before were cut.
    pub(crate) claimed: u64,
    pub(crate) settled: bool,
    /// Marks the entries of this life.
    pub(crate) salt: u32,
    pub(crate) latched: bool,
    pub(crate) buffers: Buffers,
    pub(crate) rounds: Rounds,
    pub(crate) trims: Trims,
    pub(crate) collection: Collection,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) counters: Counters,
    /// The pool was empty when something needed a page.
    pub(crate) starved: bool,
    /// [`Event::Borrow`] is not answered yet.
    pub(crate) asked_to_borrow: bool,
    write_wait: VecDeque<u32>,
    read_wait: VecDeque<(u64, u32)>,
}

impl Vssd {
    /// The machine of an entry just created, whose channels hold nothing of it. The entry must be durable in the
    /// superblock before anything is written here.
    ///
    /// # Panics
    /// If the configuration contradicts itself or the pool's page size.
    pub fn create(config: VssdConfig, pool: Pool) -> Vssd {
        let nand = Self::own_model(&config);
        let mut vssd = Self::empty(config, pool, nand, 1);
        vssd.blocks.start();
        vssd
    }

    /// A machine whose blocks are not yet started; programs are numbered from `next`.
    pub(crate) fn empty(config: VssdConfig, pool: Pool, nand: Model, next: u64) -> Vssd {
        assert_eq!(
            pool.page_bytes(),
            config.page_bytes,
            "the pool has the medium's page size"
        );
        let share = Share::new(
            &config.geometry,
            config.page_bytes,
            config.channels,
            config.isolation,
        );
        let home = share.rows().start * share.channels()..share.rows().end * share.channels();
        assert!(
            config.logical_pages <= config.geometry.logical_pages_max_of_units(home.end - home.start),
            "more logical pages than collection can serve"
        );
        let depth = config.queue_depth as usize;
        let units = share.units();
        let ops = operations(&config, units);
        Self {
            now: Instant::ZERO,
            timed: !config.timing.is_none(),
            nand,
            ops: Slab::with_capacity(ops),
            events: VecDeque::with_capacity(2 * ops),
            mapping: Mapping::new(config.logical_pages, share.blocks() * share.pages_per_block()),
            blocks: Blocks::new(
                units,
                home,
                share.channels(),
                share.blocks_per_unit(),
                share.pages_per_block(),
                config.gc_frontier_separate,
                config.wear_gap_max,
            ),
            sequence: Sequence::new(next, ops),
            flushed: next - 1,
            claimed: next - 1,
            settled: true,
            salt: config.instance,
            latched: false,
            buffers: Buffers::new(3 * units as usize + 64),
            rounds: Rounds::new(depth),
            trims: Trims::default(),
            collection: Collection::default(),
            checkpoints: Checkpoints::new(units),
            counters: Counters::default(),
            starved: false,
            asked_to_borrow: false,
            write_wait: VecDeque::with_capacity(depth),
            read_wait: VecDeque::with_capacity(depth),
            config,
            share,
            pool,
        }
    }

    pub(crate) fn own_model(config: &VssdConfig) -> Model {
        assert_eq!(
            config.isolation,
            Isolation::Hardware,
            "a software-isolated vSSD is created in its group"
        );
        let channels = config.channels.count_ones();
        let units = channels * config.geometry.units_per_channel();
        let ops = operations(config, units) as u32;
        Model::Own(Nand::new(config.timing.clone(), channels, units, ops))
    }

    /// The machine of an entry with a history: the newest checkpoint, and what was programmed after it. Media operations
    /// may follow at once: poll.
    ///
    /// # Errors
    /// The medium fails, or metadata is damaged so that stale data might be returned.
    pub fn recover(
        config: VssdConfig,
        pool: Pool,
        medium: &dyn Device,
    ) -> Result<(Vssd, RecoveryReport), RecoverError> {
        recover::recover(config, pool, medium)
    }

    /// As [`Vssd::recover`], for all software-isolated vSSDs of one channel group.
    ///
    /// # Errors
    /// The vSSD that cannot be recovered. The others cannot be without it, as it may have blocks of theirs.
    ///
    /// # Panics
    /// If there is none, or they are not of one group.
    pub fn recover_group(
        configs: Vec<VssdConfig>,
        pool: &Pool,
        medium: &dyn Device,
    ) -> Result<(ChannelGroup, Members), (VssdId, RecoverError)> {
        let of_one_group =
            |c: &VssdConfig| c.channels == configs[0].channels && c.isolation != Isolation::Hardware;
        assert!(
            configs.iter().all(of_one_group),
            "a group has one set of channels"
        );
        recover::recover_group(configs, pool, medium)
    }

    /// Takes a request; [`Event::Done`] with its tag follows.
    ///
    /// # Panics
    /// If a write or zero carries [`Version::NONE`], or a page of another pool's size.
    pub fn submit(&mut self, now: Instant, request: Request) {
        self.advance(now);
        match request {
            Request::Read { tag, lpn } => self.submit_read(tag, lpn),
            Request::Write {
                tag,
                lpn,
                version,
                crc,
                page,
            } => self.submit_write(tag, lpn, version, crc, page),
            Request::Zero { tag, lpn, version } => self.submit_zero(tag, lpn, version),
            Request::Flush { tag } => self.submit_flush(tag),
        }
        self.pump();
    }

    /// The medium is done with an operation of [`Event::Media`].
    ///
    /// # Panics
    /// If it was not asked.
    pub fn media_done(&mut self, now: Instant, mut done: MediaDone) {
        self.advance(now);
        let id = u32::try_from(done.id).expect("an id of this vSSD");
        let op = &mut self.ops[id];
        assert!(op.media, "the medium was asked");
        op.media = false;
        op.failed = done.result.is_err();
        if matches!(op.kind, OpKind::Read | OpKind::MoveRead) {
            op.page = done.pages.pop();
        }
        let is_finished = !op.model;
        if done.result == Err(MediaError::TimedOut) {
            // What hung may hang again, and what a collection cannot read it must not take for damage.
            self.refuse_changes();
        }
        if is_finished {
            self.finish(id);
        }
        self.pump();
    }

    /// True if [`poll`](Vssd::poll) has an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event, `None` when there is nothing more.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When it wants to be ticked, if at all.
    pub fn deadline(&self) -> Option<Instant> {
        let model = self.nand.next_ns().map(Instant::from_nanos);
        let retry = self.starved.then(|| self.now + STARVED_RETRY);
        base::time::earliest(model, retry)
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        if !self.advance(now) {
            self.pump();
        }
    }

    /// The newest version accepted, [`Version::NONE`] if never written or not a page of this vSSD.
    pub fn version(&self, lpn: Lpn) -> Version {
        if lpn.0 >= self.mapping.len() {
            return Version::NONE;
        }
        let mapped = self.mapping.get(lpn.0).version;
        self.mapping
            .buffered(lpn.0)
            .map_or(mapped, |op| mapped.max(self.ops[op].version))
    }

    /// Pages users see.
    pub fn logical_pages(&self) -> u32 {
        self.mapping.len()
    }

    /// Free blocks over all blocks.
    pub fn free_ratio(&self) -> f64 {
        f64::from(self.blocks.free_count()) / f64::from(self.blocks.owned().max(1))
    }

    /// What it is made of.
    pub fn config(&self) -> &VssdConfig {
        &self.config
    }

    /// Free blocks, and all that no other member of its group has.
    pub fn free_blocks(&self) -> (u32, u32) {
        (self.blocks.free_count(), self.blocks.owned())
    }

    /// The timing model's estimate of when the work now queued is finished; never earlier than the last call's `now`.
    pub fn busy_until(&self) -> Instant {
        Instant::from_nanos(self.nand.busy_until_ns()).max(self.now)
    }

    /// Counters and state. Looks at every block: not for the data path.
    pub fn stats(&self) -> VssdStats {
        let c = &self.counters;
        VssdStats {
            user_programs: c.user_programs,
            gc_programs: c.gc_programs,
            record_programs: c.record_programs,
            erases: c.erases,
            reads: c.reads,
            flushes: c.flushes,
            checkpoints: c.checkpoints,
            erase_count_min: self.blocks.present().map(|b| b.erases).min().unwrap_or(0),
            erase_count_max: self.blocks.present().map(|b| b.erases).max().unwrap_or(0),
            erase_count_mean: self.blocks.erases_mean(),
            blocks: self.blocks.owned(),
            free_blocks: self.blocks.free_count(),
            blocks_borrowed: c.blocks_borrowed,
            borrowed_blocks: self.blocks.borrowed(),
            lent_blocks: self.blocks.lent(),
            live_pages: self.mapping.mapped_count(),
            damaged_pages: self.mapping.damaged_count(),
        }
    }

    /// Pages that collection has moved, and blocks that were erased, since the start.
    pub fn collected(&self) -> (u64, u64) {
        (self.counters.gc_programs, self.counters.erases)
    }

    /// True after a failed media write or flush: writes and flushes are refused, reads go on.
    pub fn latched(&self) -> bool {
        self.latched
    }

    pub(crate) fn done(&mut self, tag: u64, result: Result<Data, VssdError>) {
        self.events.push_back(Event::Done { tag, result });
    }

    pub(crate) fn media(&mut self, op: MediaOp) {
        self.ops[op.id as u32].media = true;
        self.events.push_back(Event::Media(op));
    }

    /// Gives an operation on `ppn` to the timing model.
    pub(crate) fn model(&mut self, op: u32, kind: NandKind, ppn: u32, collection: bool) {
        if !self.timed || (collection && self.config.gc == GcMode::Free) {
            return;
        }
        self.ops[op].model = true;
        let unit = self.blocks.unit_of_block(self.blocks.block_of(ppn));
        let page = ppn % self.share.pages_per_block();
        self.nand
            .submit(self.now.as_nanos(), op, kind, unit, page, collection);
    }

    /// Plays the timing model up to `now`; true if something was completed, and everything carried on since.
    pub(crate) fn advance(&mut self, now: Instant) -> bool {
        let mut pumped = false;
        while let Some((op, at)) = self.nand.advance(now.as_nanos()) {
            self.now = self.now.max(Instant::from_nanos(at));
            let record = &mut self.ops[op];
            record.model = false;
            if !record.media {
                self.finish(op);
                self.pump();
                pumped = true;
            }
        }
        self.now = self.now.max(now);
        pumped
    }

    /// Carries everything on that an event may have made possible.
    pub(crate) fn pump(&mut self) {
        self.starved = false;
        self.retry_buffers();
        self.retry_reads();
        self.step_trims();
        self.drain_writes();
        self.step_collection();
        if self.collection.dead_end {
            self.drain_writes();
            self.collection.dead_end = false;
        }
        if self.collection.wants_flush {
            let (programmed, loggable) = (self.sequence.programmed(), self.trims_loggable());
            if self.blocks.release_possible(programmed, loggable) {
                self.rounds.internal = true;
            } else if loggable < self.trims.accepted {
                // There is no room to log the trims that the blocks wait for: only a checkpoint makes them durable.
                self.checkpoints.wanted = true;
            }
        }
        self.step_checkpoint();
        self.step_round();
        if self.checkpoints.wanted {
            // The round found out that it needs one.
            self.step_checkpoint();
            self.step_round();
        }
    }

    /// Frees what the erase barrier no longer holds.
    ///
    /// After a recovery nothing is freed before a checkpoint is durable: a program over one that was cut, itself cut, could
    /// complete what the former left.
    pub(crate) fn release_blocks(&mut self) {
        if !self.settled {
            return;
        }
        let released = self.blocks.release(self.flushed, self.trims.durable);
        self.counters.erases += u64::from(released);
        if self.blocks.returning {
            self.offer_returns();
        }
    }

    fn submit_read(&mut self, tag: u64, lpn: Lpn) {
        if lpn.0 >= self.mapping.len() {
            return self.done(tag, Err(VssdError::OutOfRange));
        }
        self.counters.reads += 1;
        self.start_read(tag, lpn.0);
    }

    fn start_read(&mut self, tag: u64, lpn: u32) {
        if let Some(op) = self.mapping.buffered(lpn) {
            let op = &self.ops[op];
            let page = op.page.clone().expect("a buffered operation keeps its page");
            let data = Data::Page {
                page,
                crc: op.crc,
                version: op.version,
            };
            return self.done(tag, Ok(data));
        }
        let Mapped { version, ppn, crc } = self.mapping.get(lpn);
        if ppn == NONE {
            return self.done(tag, Ok(Data::Zero { version }));
        }
        let Some(page) = self.pool.alloc() else {
            self.starved = true;
            self.read_wait.push_back((tag, lpn));
            return;
        };
        let op = self.ops.insert(Op {
            tag,
            lpn,
            ppn,
            version,
            crc,
            ..Op::new(OpKind::Read)
        });
        self.model(op, NandKind::Read, ppn, false);
        self.media(MediaOp::read(u64::from(op), self.share.data_offset(ppn), page));
    }

    fn retry_reads(&mut self) {
        for _ in 0..self.read_wait.len() {
            if self.pool.available() == 0 {
                self.starved = true;
                return;
            }
            let (tag, lpn) = self.read_wait.pop_front().expect("counted");
            self.start_read(tag, lpn);
        }
    }

    fn submit_write(&mut self, tag: u64, lpn: Lpn, version: Version, crc: u32, page: Page) {
        assert_ne!(version, Version::NONE, "a write has a version");
        assert_eq!(page.len(), self.config.page_bytes, "a page of the pool");
        if let Some(answer) = self.refusal(lpn, version) {
            return self.done(tag, answer);
        }
        let op = Op {
            tag,
            lpn: lpn.0,
            version,
            crc,
            page: Some(page),
            ..Op::new(OpKind::Write)
        };
        let op = self.ops.insert(op);
        self.mapping.set_buffered(lpn.0, Some(op));
        self.write_wait.push_back(op);
    }

    /// The answer to a write or zero that is not to be carried out.
    fn refusal(&self, lpn: Lpn, version: Version) -> Option<Result<Data, VssdError>> {
        if lpn.0 >= self.mapping.len() {
            return Some(Err(VssdError::OutOfRange));
        }
        if self.latched {
            return Some(Err(VssdError::Latched));
        }
        (version < self.version(lpn)).then_some(Ok(Data::None))
    }

    fn submit_zero(&mut self, tag: u64, lpn: Lpn, version: Version) {
        assert_ne!(version, Version::NONE, "a zero has a version");
        if let Some(answer) = self.refusal(lpn, version) {
            return self.done(tag, answer);
        }
        let buffered = self.mapping.buffered(lpn.0).is_some();
        let mapped = Mapped {
            version,
            ..Mapped::EMPTY
        };
        if buffered || self.mapping.get(lpn.0) != mapped {
            let trim = self.accept_trim(lpn.0, version);
            self.mapping.set_buffered(lpn.0, None);
            self.mapping.set_damaged(lpn.0, false);
            if let Some(dead) = self.mapping.set(lpn.0, mapped) {
                self.blocks.kill(dead, 0, trim);
            }
        }
        self.done(tag, Ok(Data::None));
    }

    /// Programs waiting writes while there are pages for them.
    fn drain_writes(&mut self) {
        while let Some(&id) = self.write_wait.front() {
            if self.latched {
                return;
            }
            let op = &self.ops[id];
            if op.version < self.mapping.get(op.lpn).version {
                // Zeroed while it waited.
                self.write_wait.pop_front();
                self.end_write(id, Ok(Data::None));
                continue;
            }
            if let Some(ppn) = self.blocks.allocate(Stream::User) {
                self.write_wait.pop_front();
                self.program(id, Kind::User, ppn, false);
                self.counters.user_programs += 1;
            } else if self.collection.dead_end {
                self.write_wait.pop_front();
                self.end_write(id, Err(VssdError::NoSpace));
            } else {
                return self.no_free_block();
            }
        }
    }

    fn end_write(&mut self, id: u32, result: Result<Data, VssdError>) {
        let op = self.ops.remove(id);
        if self.mapping.buffered(op.lpn) == Some(id) {
            self.mapping.set_buffered(op.lpn, None);
        }
        self.done(op.tag, result);
    }

    /// Programs the page of `id` at `ppn`, just allocated: map, entry, medium, model. Returns its sequence.
    pub(crate) fn program(&mut self, id: u32, kind: Kind, ppn: u32, collection: bool) -> u64 {
        let sequence = self.sequence.begin();
        self.checkpoints.programs += 1;
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
        self.add_entry(&Entry {
            kind,
            lpn,
            instance: self.config.instance,
            version,
            sequence,
            durable: self.claimed,
            generation,
            data_crc: crc,
            checkpoint: self.checkpoints.number,
            salt: self.salt,
            ppn,
        });
        self.model(id, NandKind::Program, ppn, collection);
        self.media(MediaOp::write(u64::from(id), self.share.data_offset(ppn), page));
        sequence
    }

    /// Both the medium and the model are done with an operation.
    fn finish(&mut self, id: u32) {
        let op = &self.ops[id];
        let (kind, failed) = (op.kind, op.failed);
        match kind {
            OpKind::Read => return self.finish_read(id),
            OpKind::MoveRead => return self.move_read(id),
            _ => {}
        }
        if failed {
            return self.latch(id);
        }
        match kind {
            OpKind::Write => {
                self.program_ended(id);
                self.end_write(id, Ok(Data::None));
            }
            OpKind::MoveWrite => {
                self.program_ended(id);
                let op = self.ops.remove(id);
                if self.mapping.buffered(op.lpn) == Some(id) {
                    self.mapping.set_buffered(op.lpn, None);
                }
                self.move_ended();
            }
            OpKind::MoveRecord => {
                self.program_ended(id);
                self.ops.remove(id);
                self.move_ended();
            }
            OpKind::Record => {
                self.program_ended(id);
                self.ops.remove(id);
                self.trims.records_in_flight -= 1;
            }
            OpKind::Oob => {
                let buffer = self.ops.remove(id).lpn;
                self.buffer_written(buffer);
            }
            OpKind::Piece => {
                self.ops.remove(id);
                self.piece_written();
            }
            OpKind::Header => {
                self.ops.remove(id);
                self.header_written();
            }
            OpKind::Flush => {
                self.ops.remove(id);
                self.round_done();
            }
            OpKind::Erase => {
                self.ops.remove(id);
                self.erased();
            }
            OpKind::Read | OpKind::MoveRead => unreachable!("handled above"),
        }
    }

    fn program_ended(&mut self, id: u32) {
        let (sequence, ppn) = (self.ops[id].sequence, self.ops[id].ppn);
        self.sequence.end(sequence);
        self.blocks.programmed(self.blocks.block_of(ppn));
    }

    fn finish_read(&mut self, id: u32) {
        let op = self.ops.remove(id);
        let page = op.page.filter(|_| !op.failed);
        if let Some(page) = page
            && page.crc() == op.crc
        {
            let data = Data::Page {
                page,
                crc: op.crc,
                version: op.version,
            };
            return self.done(op.tag, Ok(data));
        }
        let now = self.mapping.get(op.lpn);
        if (now.ppn, now.version) != (op.ppn, op.version) {
            // The page moved meanwhile and its old place was programmed anew.
            return self.start_read(op.tag, op.lpn);
        }
        self.mapping.set_damaged(op.lpn, true);
        self.done(op.tag, Err(VssdError::Damaged));
    }

    /// A write or flush of the medium failed: refuse all that is not a read. Nothing is known of what the medium
    /// has, and asking again may wrongly succeed.
    #[cold]
    fn latch(&mut self, id: u32) {
        let op = &self.ops[id];
        let (kind, tag) = (op.kind, op.tag);
        if kind == OpKind::Write {
            // The operation stays: reads go on returning the data from memory.
            self.done(tag, Err(VssdError::Latched));
        }
        self.refuse_changes();
    }

    #[cold]
    fn refuse_changes(&mut self) {
        if core::mem::replace(&mut self.latched, true) {
            return;
        }
        while let Some(id) = self.write_wait.pop_front() {
            let tag = self.ops[id].tag;
            self.done(tag, Err(VssdError::Latched));
        }
        self.refuse_flushes();
        self.refuse_checkpoints();
        self.abandon_collection();
    }
}
