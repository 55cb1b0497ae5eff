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

use crate::api::{Data, Event, Request, VssdConfig, VssdError, VssdStats};
use crate::blocks::{Loan, State, Stream};
use crate::bus::Model;
use crate::check::Check;
use crate::checkpoint::Checkpoints;
use crate::flush::Rounds;
use crate::gc::{Collection, Need};
use crate::geometry::{Isolation, RESERVE_BLOCKS};
use crate::group::ChannelGroup;
use crate::mapping::{Mapped, NONE};
use crate::oob::Kind;
use crate::ops::{Op, OpKind};
use crate::pages::Pages;
use crate::trim::Trims;
use base::{Instant, Lpn, MediaDone, MediaError, Page, Pool, Version};
use core::ops::RangeInclusive;
use std::collections::VecDeque;

/// One vSSD: flash translation, garbage collection, timing. Drive it like a [`base::Machine`].
#[derive(Debug)]
pub struct Vssd {
    pages: Pages,
    trims: Trims,
    checkpoints: Checkpoints,
    check: Check,
    rounds: Rounds,
    collection: Collection,
    /// [`Event::Borrow`] is not answered yet.
    asked_to_borrow: bool,
    write_wait: VecDeque<u32>,
    read_wait: VecDeque<(u64, u32)>,
    /// Pages read and programmed for users, and blocks borrowed, since the start.
    reads: u64,
    user_programs: u64,
    blocks_borrowed: u64,
}

impl Vssd {
    /// The machine of an entry just created, whose channels hold nothing of it. The entry must be durable in the
    /// superblock before anything is written here.
    ///
    /// # Panics
    /// If the configuration contradicts itself or the pool's page size.
    pub fn create(config: VssdConfig, pool: Pool) -> Vssd {
        let nand = Model::own(&config);
        let mut pages = Pages::new(config, pool, nand, 1);
        pages.blocks.start();
        Self::new(pages, Trims::default())
    }

    /// As [`Vssd::create`], for a software-isolated vSSD; `members` are the others of its group.
    ///
    /// # Panics
    /// If the configuration contradicts itself, the pool's page size, or the members'.
    pub fn create_in<'a>(
        config: VssdConfig,
        pool: Pool,
        group: &ChannelGroup,
        members: impl Iterator<Item = &'a Vssd>,
    ) -> Vssd {
        assert_ne!(
            config.isolation,
            Isolation::Hardware,
            "a vSSD with channels of its own is in no group"
        );
        let mut pages = Pages::new(config, pool, group.model(), 1);
        for id in 0..pages.blocks.count() {
            if !pages.blocks.is_home(id) {
                pages.blocks.get_mut(id).state = State::Foreign;
            }
        }
        for other in members {
            assert_eq!(
                other.pages.config.channels, pages.config.channels,
                "a group has one set of channels"
            );
            for id in 0..pages.blocks.count() {
                let theirs = *other.pages.blocks.get(id);
                let block = pages.blocks.get_mut(id);
                // A generation is used once, also when the block's last owner is another.
                block.erases = block.erases.max(theirs.erases);
                if theirs.state != State::Foreign {
                    block.state = State::Foreign;
                }
            }
        }
        pages.blocks.start();
        Self::new(pages, Trims::default())
    }

    /// The machine of pages whose blocks are started.
    fn new(pages: Pages, trims: Trims) -> Self {
        let depth = pages.config.queue_depth as usize;
        Self {
            checkpoints: Checkpoints::new(pages.share.units(), pages.sequence.last()),
            pages,
            trims,
            check: Check::default(),
            rounds: Rounds::new(depth),
            collection: Collection::default(),
            asked_to_borrow: false,
            write_wait: VecDeque::with_capacity(depth),
            read_wait: VecDeque::with_capacity(depth),
            reads: 0,
            user_programs: 0,
            blocks_borrowed: 0,
        }
    }

    /// The machine of pages with a history. The newest checkpoint covers programs up to `covered`, and is damaged if
    /// recovery `fell_back` to the one before. Media operations may follow at once.
    pub(crate) fn resume(pages: Pages, trims: Trims, covered: u64, fell_back: bool) -> Self {
        let mut vssd = Self::new(pages, trims);
        let newest = vssd.pages.checkpoint();
        vssd.checkpoints.resume(newest, covered, fell_back);
        if !vssd.pages.settled() {
            vssd.checkpoints.want();
        }
        vssd.pump();
        vssd
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
            Request::Flush { tag } => self.rounds.submit(&mut self.pages, &self.trims, tag),
        }
        self.pump();
    }

    /// The medium is done with an operation of [`Event::Media`].
    ///
    /// # Panics
    /// If it was not asked.
    pub fn media_done(&mut self, now: Instant, done: MediaDone) {
        self.advance(now);
        let hung = done.result == Err(MediaError::TimedOut);
        let finished = self.pages.ops.media_done(done);
        if hung {
            // What hung may hang again, and what a collection cannot read it must not take for damage.
            self.refuse_changes();
        }
        if let Some(id) = finished {
            self.finish(id);
        }
        self.pump();
    }

    /// True if [`poll`](Vssd::poll) has an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.pages.ops.has_event()
    }

    /// The next event, `None` when there is nothing more.
    pub fn poll(&mut self) -> Option<Event> {
        self.pages.ops.poll()
    }

    /// When it wants to be ticked, if at all.
    pub fn deadline(&self) -> Option<Instant> {
        self.pages.ops.deadline()
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        if !self.advance(now) {
            self.pump();
        }
    }

    /// The newest version accepted, [`Version::NONE`] if never written or not a page of this vSSD.
    pub fn version(&self, lpn: Lpn) -> Version {
        let Pages { mapping, ops, .. } = &self.pages;
        if lpn.0 >= mapping.len() {
            return Version::NONE;
        }
        let mapped = mapping.get(lpn.0).version;
        let buffered = mapping.buffered(lpn.0);
        buffered.map_or(mapped, |op| mapped.max(ops[op].version))
    }

    /// The CRC32C of the newest data accepted, 0 for zeros.
    ///
    /// # Panics
    /// If it is not a page of this vSSD.
    pub fn crc(&self, lpn: Lpn) -> u32 {
        let Pages { mapping, ops, .. } = &self.pages;
        let Mapped { version, ppn, crc } = mapping.get(lpn.0);
        let buffered = mapping.buffered(lpn.0).map(|op| &ops[op]);
        match buffered.filter(|op| op.version >= version) {
            Some(op) => op.crc,
            None if ppn == NONE => 0,
            None => crc,
        }
    }

    /// True if a page has no data on the medium, nor on its way there: it was never written, or zeroed last.
    ///
    /// # Panics
    /// If it is not a page of this vSSD.
    pub fn is_hole(&self, lpn: Lpn) -> bool {
        let mapping = &self.pages.mapping;
        mapping.get(lpn.0).ppn == NONE && mapping.buffered(lpn.0).is_none()
    }

    /// Pages users see that hold data on the medium.
    pub fn live_pages(&self) -> u32 {
        self.pages.mapping.mapped_count()
    }

    /// Pages users see.
    pub fn logical_pages(&self) -> u32 {
        self.pages.mapping.len()
    }

    /// Free blocks over all blocks.
    pub fn free_ratio(&self) -> f64 {
        let (free, owned) = self.free_blocks();
        f64::from(free) / f64::from(owned.max(1))
    }

    /// What it is made of.
    pub fn config(&self) -> &VssdConfig {
        &self.pages.config
    }

    /// Free blocks, and all that no other member of its group has.
    pub fn free_blocks(&self) -> (u32, u32) {
        (self.pages.blocks.free_count(), self.pages.blocks.owned())
    }

    /// The timing model's estimate of when the work now queued is finished; never earlier than the last call's `now`.
    pub fn busy_until(&self) -> Instant {
        self.pages.ops.busy_until()
    }

    /// Counters and state. Looks at every block: not for the data path.
    pub fn stats(&self) -> VssdStats {
        let Pages { blocks, mapping, .. } = &self.pages;
        VssdStats {
            user_programs: self.user_programs,
            gc_programs: self.collection.moved(),
            record_programs: self.trims.programs(),
            erases: self.pages.erases(),
            reads: self.reads,
            flushes: self.rounds.count(),
            checkpoints: self.checkpoints.count(),
            erase_count_mean: blocks.erases_mean(),
            blocks: blocks.owned(),
            free_blocks: blocks.free_count(),
            blocks_borrowed: self.blocks_borrowed,
            borrowed_blocks: blocks.borrowed(),
            lent_blocks: blocks.lent(),
            live_pages: mapping.mapped_count(),
            damaged_pages: mapping.damaged_count(),
        }
    }

    /// The lowest and the highest number of erases of its blocks. It looks at all of them.
    pub fn erase_counts(&self) -> RangeInclusive<u32> {
        self.pages.blocks.erases()
    }

    /// Pages that collection has moved, and blocks that were erased, since the start.
    pub fn collected(&self) -> (u64, u64) {
        (self.collection.moved(), self.pages.erases())
    }

    /// True after a failed media write or flush: writes and flushes are refused, reads go on.
    pub fn latched(&self) -> bool {
        self.pages.ops.latched()
    }

    /// Begins a checkpoint, for a clean shutdown: flush first, so that no trim is left to log. [`Event::Done`] with the
    /// tag follows when it is durable.
    pub fn checkpoint(&mut self, now: Instant, tag: u64) {
        self.advance(now);
        if self.latched() {
            return self.done(tag, Err(VssdError::Latched));
        }
        self.checkpoints.submit(tag);
        self.pump();
    }

    /// A pass over its metadata begins.
    pub fn begin_check(&mut self, now: Instant) {
        self.advance(now);
        self.checkpoints.want_fresh(&self.pages, &self.trims);
        self.check.restart(&self.pages);
        self.pump();
    }

    /// True if one more page of its metadata can be read now.
    pub fn can_check(&self) -> bool {
        !self.latched() && self.check.can_read(&self.checkpoints)
    }

    /// True if no page of its metadata is left to read in this pass.
    pub fn is_checked(&self) -> bool {
        self.check.is_over()
    }

    /// Reads the next page of its metadata. [`Event::Checked`] follows, if there is one.
    pub fn check(&mut self, now: Instant) {
        self.advance(now);
        self.check.read(&mut self.pages, &self.checkpoints);
        self.pump();
    }

    /// Begins collecting until the share of free blocks is `until_free_ratio`. [`Event::GcDone`] follows, once, when
    /// the share is reached or nothing more can be gained. A higher aim replaces a lower one.
    pub fn start_gc(&mut self, now: Instant, until_free_ratio: f64) {
        assert!(
            (0.0..=1.0).contains(&until_free_ratio),
            "a ratio is between 0 and 1"
        );
        self.advance(now);
        self.collection.start(&mut self.pages, until_free_ratio);
        self.pump();
    }

    /// True while collecting; false once the medium has failed.
    pub fn gc_active(&self) -> bool {
        !self.latched() && (self.collection.is_active() || self.collection.has_victim())
    }

    /// Free blocks that it can spare, none while it collects, owes blocks itself or has failed.
    pub fn lendable_blocks(&self) -> u32 {
        let blocks = &self.pages.blocks;
        let needy = self.collection.is_active() || blocks.borrowed() > 0 || self.asked_to_borrow;
        if needy || self.latched() {
            return 0;
        }
        blocks.free_at_home().saturating_sub(self.kept_when_lending())
    }

    /// Enough to go on writing for a while, and to collect.
    fn kept_when_lending(&self) -> u32 {
        let share = &self.pages.share;
        RESERVE_BLOCKS + 2 * (share.rows().end - share.rows().start) * share.channels()
    }

    /// Gives at most `count` free blocks to a collocated vSSD, which [`accept`](Vssd::accept)s them.
    pub fn lend(&mut self, count: u32) -> Vec<Loan> {
        let count = count.min(self.lendable_blocks());
        let kept = self.kept_when_lending();
        self.pages.blocks.lend(count, kept)
    }

    /// Takes blocks over: the answer to [`Event::Borrow`], or what was lent comes back. Without any it collects.
    ///
    /// # Panics
    /// If it has such a block already.
    pub fn accept(&mut self, now: Instant, loans: Vec<Loan>) {
        self.advance(now);
        let asked = core::mem::take(&mut self.asked_to_borrow);
        if asked && loans.is_empty() {
            self.collection.force(&mut self.pages);
        }
        for loan in loans {
            self.blocks_borrowed += u64::from(!self.pages.blocks.is_home(loan.block));
            self.pages.blocks.accept(loan);
        }
        if self.collection.is_active() {
            self.pages.call_in_borrowed();
        }
        self.pump();
    }

    /// The borrowed blocks that are erased and not needed: the answer to [`Event::Return`].
    pub fn take_returns(&mut self) -> Vec<Loan> {
        self.pages.blocks.take_returns()
    }

    /// Which of `loans` are of its own units.
    pub fn own_of(&self, loans: &[Loan]) -> Vec<Loan> {
        let own = loans.iter().filter(|loan| self.pages.blocks.is_home(loan.block));
        own.copied().collect()
    }

    /// The borrowed blocks of a vSSD that is being deleted, erased. Hand them out when its deletion is durable.
    pub fn surrender(&self) -> Vec<Loan> {
        self.pages.blocks.surrender()
    }

    /// A borrower's medium failed: what it has will not come back.
    pub fn write_off(&mut self, now: Instant) {
        self.advance(now);
        self.pages.blocks.write_off();
        self.pump();
    }

    fn done(&mut self, tag: u64, result: Result<Data, VssdError>) {
        self.pages.ops.done(tag, result);
    }

    /// Plays the timing model up to `now`; true if something was completed, and everything carried on since.
    fn advance(&mut self, now: Instant) -> bool {
        let mut pumped = false;
        while let Some(id) = self.pages.ops.advance(now) {
            self.finish(id);
            self.pump();
            pumped = true;
        }
        pumped
    }

    /// Carries everything on that an event may have made possible.
    fn pump(&mut self) {
        self.pages.ops.retry();
        self.pages.entries.retry(&mut self.pages.ops);
        self.retry_reads();
        if !self.rounds.is_writing() && !self.trims.step(&mut self.pages) {
            self.checkpoints.want();
        }
        self.drain_writes(false);
        match self.collection.step(&mut self.pages, &self.trims) {
            Need::Nothing => {}
            Need::Space => self.drain_writes(true),
            Need::Checkpoint => self.checkpoints.want(),
            Need::Flush => {
                let loggable = self.trims.loggable(&self.pages);
                let programmed = self.pages.sequence.programmed();
                if self.pages.blocks.release_possible(programmed, loggable) {
                    self.rounds.want();
                } else if loggable < self.trims.accepted() {
                    // There is no room to log the trims that the blocks wait for: only a checkpoint makes them durable.
                    self.checkpoints.want();
                }
            }
        }
        self.step_durability();
        if self.checkpoints.is_wanted() {
            // The round found out that it needs one.
            self.step_durability();
        }
    }

    fn step_durability(&mut self) {
        if self.checkpoints.step(&mut self.pages, &self.trims) && self.rounds.is_idle() {
            self.rounds.want();
        }
        self.rounds
            .step(&mut self.pages, &mut self.trims, &mut self.checkpoints);
    }

    fn submit_read(&mut self, tag: u64, lpn: Lpn) {
        if lpn.0 >= self.pages.mapping.len() {
            return self.done(tag, Err(VssdError::OutOfRange));
        }
        self.reads += 1;
        self.start_read(tag, lpn.0);
    }

    fn start_read(&mut self, tag: u64, lpn: u32) {
        if let Some(op) = self.pages.mapping.buffered(lpn) {
            let op = &self.pages.ops[op];
            let page = op.page.clone().expect("a buffered operation keeps its page");
            let data = Data::Page {
                page,
                crc: op.crc,
                version: op.version,
            };
            return self.done(tag, Ok(data));
        }
        let Mapped { version, ppn, crc } = self.pages.mapping.get(lpn);
        if ppn == NONE {
            return self.done(tag, Ok(Data::Zero { version }));
        }
        let op = Op {
            tag,
            lpn,
            ppn,
            version,
            crc,
            ..Op::new(OpKind::Read)
        };
        if !self.pages.read(op, false) {
            self.read_wait.push_back((tag, lpn));
        }
    }

    fn retry_reads(&mut self) {
        for _ in 0..self.read_wait.len() {
            if !self.pages.ops.has_page() {
                return;
            }
            let (tag, lpn) = self.read_wait.pop_front().expect("counted");
            self.start_read(tag, lpn);
        }
    }

    fn submit_write(&mut self, tag: u64, lpn: Lpn, version: Version, crc: u32, page: Page) {
        assert_ne!(version, Version::NONE, "a write has a version");
        assert_eq!(page.len(), self.pages.config.page_bytes, "a page of the pool");
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
        let op = self.pages.ops.insert(op);
        self.pages.mapping.set_buffered(lpn.0, Some(op));
        self.write_wait.push_back(op);
    }

    /// The answer to a write or zero that is not to be carried out.
    fn refusal(&self, lpn: Lpn, version: Version) -> Option<Result<Data, VssdError>> {
        if lpn.0 >= self.pages.mapping.len() {
            return Some(Err(VssdError::OutOfRange));
        }
        if self.latched() {
            return Some(Err(VssdError::Latched));
        }
        (version < self.version(lpn)).then_some(Ok(Data::None))
    }

    fn submit_zero(&mut self, tag: u64, lpn: Lpn, version: Version) {
        assert_ne!(version, Version::NONE, "a zero has a version");
        if let Some(answer) = self.refusal(lpn, version) {
            return self.done(tag, answer);
        }
        let buffered = self.pages.mapping.buffered(lpn.0).is_some();
        let mapped = Mapped {
            version,
            ..Mapped::EMPTY
        };
        if buffered || self.pages.mapping.get(lpn.0) != mapped {
            let trim = self.trims.accept(lpn.0, version);
            self.pages.mapping.set_buffered(lpn.0, None);
            self.pages.mapping.set_damaged(lpn.0, false);
            if let Some(dead) = self.pages.mapping.set(lpn.0, mapped) {
                self.pages.blocks.kill(dead, 0, trim);
            }
        }
        self.done(tag, Ok(Data::None));
    }

    /// Programs waiting writes while there are pages for them. At a dead end of collection the others fail.
    fn drain_writes(&mut self, dead_end: bool) {
        while let Some(&id) = self.write_wait.front() {
            if self.latched() {
                return;
            }
            let op = &self.pages.ops[id];
            if op.version < self.pages.mapping.get(op.lpn).version {
                // Zeroed while it waited.
                self.write_wait.pop_front();
                self.end_write(id, Ok(Data::None));
                continue;
            }
            if let Some(ppn) = self.pages.blocks.allocate(Stream::User) {
                self.write_wait.pop_front();
                self.pages.program(id, Kind::User, ppn, false);
                self.user_programs += 1;
            } else if dead_end {
                self.write_wait.pop_front();
                self.end_write(id, Err(VssdError::NoSpace));
            } else {
                return self.no_free_block();
            }
        }
    }

    /// Users found no free block: ask for one, or collect.
    fn no_free_block(&mut self) {
        let may_borrow =
            self.pages.is_shared() && !self.collection.is_active() && self.pages.blocks.lent() == 0;
        if !may_borrow {
            return self.collection.force(&mut self.pages);
        }
        if !core::mem::replace(&mut self.asked_to_borrow, true) {
            self.pages.ops.event(Event::Borrow);
        }
    }

    fn end_write(&mut self, id: u32, result: Result<Data, VssdError>) {
        let op = self.pages.ops.remove(id);
        self.pages.forget_buffered(op.lpn, id);
        self.done(op.tag, result);
    }

    /// Both the medium and the model are done with an operation.
    fn finish(&mut self, id: u32) {
        let op = &self.pages.ops[id];
        let (kind, failed) = (op.kind, op.failed);
        match kind {
            OpKind::Read => return self.finish_read(id),
            OpKind::Check => {
                return self.check.finish(&mut self.pages, &mut self.checkpoints, id);
            }
            OpKind::MoveRead => {
                let need = self.collection.move_read(&mut self.pages, &mut self.trims, id);
                if need == Need::Checkpoint {
                    self.checkpoints.want();
                }
                return;
            }
            _ => {}
        }
        if failed {
            return self.latch(id);
        }
        match kind {
            OpKind::Write | OpKind::MoveWrite | OpKind::MoveRecord | OpKind::Record => {
                self.finish_program(id, kind);
            }
            OpKind::Oob => {
                let buffer = self.pages.ops.remove(id).lpn;
                self.pages.entries.written(&mut self.pages.ops, buffer);
            }
            OpKind::Piece => {
                self.pages.ops.remove(id);
                self.checkpoints.piece_written();
            }
            OpKind::Header => {
                self.pages.ops.remove(id);
                self.checkpoints.header_written();
            }
            OpKind::Flush => {
                self.pages.ops.remove(id);
                self.rounds
                    .done(&mut self.pages, &mut self.trims, &mut self.checkpoints);
            }
            OpKind::Erase => {
                self.pages.ops.remove(id);
                self.collection.erased(&mut self.pages, &self.trims);
            }
            OpKind::Read | OpKind::MoveRead | OpKind::Check => unreachable!("handled above"),
        }
    }

    fn finish_program(&mut self, id: u32, kind: OpKind) {
        let op = self.pages.program_ended(id);
        match kind {
            OpKind::Write => {
                self.pages.forget_buffered(op.lpn, id);
                self.done(op.tag, Ok(Data::None));
            }
            OpKind::MoveWrite => {
                self.pages.forget_buffered(op.lpn, id);
                self.collection.move_ended();
            }
            OpKind::MoveRecord => self.collection.move_ended(),
            _ => self.trims.record_programmed(),
        }
    }

    fn finish_read(&mut self, id: u32) {
        let op = self.pages.ops.remove(id);
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
        let now = self.pages.mapping.get(op.lpn);
        if (now.ppn, now.version) != (op.ppn, op.version) {
            // The page moved meanwhile and its old place was programmed anew.
            return self.start_read(op.tag, op.lpn);
        }
        self.pages.mapping.set_damaged(op.lpn, true);
        self.done(op.tag, Err(VssdError::Damaged));
    }

    /// A write or flush of the medium failed: refuse all that is not a read. Nothing is known of what the medium
    /// has, and asking again may wrongly succeed.
    #[cold]
    fn latch(&mut self, id: u32) {
        let op = &self.pages.ops[id];
        let (kind, tag) = (op.kind, op.tag);
        if kind == OpKind::Write {
            // The operation stays: reads go on returning the data from memory.
            self.done(tag, Err(VssdError::Latched));
        }
        self.refuse_changes();
    }

    #[cold]
    fn refuse_changes(&mut self) {
        if !self.pages.ops.latch() {
            return;
        }
        while let Some(id) = self.write_wait.pop_front() {
            let tag = self.pages.ops[id].tag;
            self.done(tag, Err(VssdError::Latched));
        }
        self.rounds.refuse(&mut self.pages.ops);
        self.checkpoints.refuse(&mut self.pages.ops);
        self.collection.abandon(&mut self.pages);
    }
}
