//! The machine: operations in, writes out, completions in.

use crate::checkpoint::Checkpoints;
use crate::clean::Cleaning;
use crate::entry::{Durability, Kind, Op, StructureId, entry_bytes};
use crate::fetch::Fetch;
use crate::index::{Body, Frozen, Structure, Usage};
use crate::layers::fetched;
use crate::layout::Layout;
use crate::log::{Access, CleanStep, Log, Receipt, Stats, SubmitError, Ticket, TicketState, Write};
use crate::older::Older;
use crate::range::RangePart;
use crate::snapshot::Snapshot;
use crate::spill::Spill;
use crate::table::Way;
use crate::table::job::{Job, JobError};
use crate::table::scan::{Scan, Search};
use base::MediaError;
use std::ops::Bound;
use std::sync::Arc;

/// An open area. See the crate's documentation.
pub struct Engine {
    pub(crate) log: Log,
    cleaning: Cleaning,
    checkpoints: Checkpoints,
    spill: Spill,
}

/// Memory that was given up. Dropping it may take a while.
#[expect(dead_code, reason = "they are there to be dropped")]
pub struct Trash(Vec<Arc<Frozen>>, Vec<Snapshot>);

impl Engine {
    pub(crate) fn new(log: Log, checkpoints: Checkpoints) -> Self {
        Self {
            log,
            cleaning: Cleaning::default(),
            checkpoints,
            spill: Spill::default(),
        }
    }

    /// For a repair, which fills a new area.
    pub(crate) fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }

    /// The sizes of the area.
    pub fn layout(&self) -> &Layout {
        &self.log.layout
    }

    /// Everything up to this ticket is durable.
    pub fn durable(&self) -> Ticket {
        self.log.durable()
    }

    /// The newest ticket given out.
    pub fn newest(&self) -> Ticket {
        self.log.newest()
    }

    /// State of a ticket.
    pub fn state(&self, ticket: Ticket) -> TicketState {
        self.log.state(ticket)
    }

    /// Somebody waits for `ticket`: its record, if it is lazy, is to be written now.
    pub fn want(&mut self, ticket: Ticket) {
        self.log.want(ticket);
    }

    /// The record that [`Engine::next_write`] would write, if it has one.
    pub fn next_ticket(&self) -> Option<Ticket> {
        self.log.next_ticket()
    }

    /// The structure called `name`.
    pub fn lookup(&self, name: &str) -> Option<(StructureId, Kind)> {
        self.structures()
            .find(|(found, ..)| *found == name)
            .map(|(_, id, kind, ..)| (id, kind))
    }

    /// Makes a structure, or finds it if it is there and of this kind. It is there for good when the ticket is durable.
    pub fn create(
        &mut self,
        name: &str,
        kind: Kind,
        durability: Durability,
    ) -> Result<(StructureId, Ticket), SubmitError> {
        match self.lookup(name) {
            Some((id, found)) if found == kind => return Ok((id, self.newest())),
            Some(_) => return Err(SubmitError::NameTaken),
            None => {}
        }
        let bytes = self.log.admit_structure(name)?;
        self.insist_on_room(bytes, Access::User)?;
        Ok(self.log.create(name, kind, durability))
    }

    /// Drops a structure with all that is in it. It is gone at once, and for good when the ticket is durable.
    pub fn drop_structure(&mut self, id: StructureId) -> Result<Ticket, SubmitError> {
        if !self.log.structures.contains_key(&id) {
            return Err(SubmitError::NoStructure);
        }
        self.log.admit_any()?;
        self.insist_on_room(entry_bytes(0, 0), Access::Relief)?;
        Ok(self.log.drop_structure(id))
    }

    /// Takes a batch in: all of it becomes durable at once, or nothing. Then [`Engine::next_write`] has work.
    #[inline]
    pub fn submit(&mut self, ops: &[Op<'_>]) -> Result<Receipt, SubmitError> {
        let result = self.try_submit(ops);
        match &result {
            Err(SubmitError::NoSpace | SubmitError::IndexFull) if self.give_up_snapshot() => self.submit(ops),
            _ => result,
        }
    }

    /// Space is missing: ends the oldest snapshot that keeps tables which do not count any more. Readers may keep some, too.
    #[cold]
    fn give_up_snapshot(&mut self) -> bool {
        let gives_up = self.spill.has_retired() && self.log.snapshots.end_keeper(&self.spill.retired());
        if gives_up {
            self.reclaim();
        }
        gives_up
    }

    fn try_submit(&mut self, ops: &[Op<'_>]) -> Result<Receipt, SubmitError> {
        if self.spill.is_behind(&self.log) {
            self.log.admit_any()?;
            return Err(SubmitError::Busy);
        }
        if self.spill.is_full(&self.log) && self.log.net_adds(ops) != Usage::default() {
            self.log.admit_any()?;
            return Err(match self.spill.make_room(&mut self.log) {
                true => SubmitError::Busy,
                false => SubmitError::NoSpace,
            });
        }
        let bytes = match self.log.admit(ops) {
            Err(SubmitError::NoSpace | SubmitError::IndexFull) if self.spill.make_room(&mut self.log) => {
                return Err(SubmitError::Busy);
            }
            bytes => bytes?,
        };
        match self.make_room(bytes) {
            // It need not wait until there is room for what adds.
            Err(SubmitError::Busy | SubmitError::NoSpace | SubmitError::Damaged { .. })
                if self.log.gives_room(ops, self.cleaning.pinned(&self.log)) =>
            {
                let room = self.make_room_by(bytes, Access::Relief);
                if room == Err(SubmitError::NoSpace)
                    && self.cleaning.insist()
                    && self.cleaning.can_gain_space(&self.log, &self.checkpoints)
                {
                    return Err(SubmitError::Busy);
                }
                room?;
            }
            room => room?,
        }
        Ok(self.log.submit(ops))
    }

    /// Facts that [`Engine::submit_over`] needs about a batch that was refused with [`SubmitError::NoSpace`]. `None` if it would not help.
    pub fn older(&self, ops: &[Op<'_>]) -> Option<Older> {
        Older::new(&self.log, ops, self.freezes())
    }

    /// Takes a batch in as [`Engine::submit`]. A full area takes it also if its values are no longer than those that they replace in
    /// tables, which `older` knows.
    ///
    /// # Errors
    /// [`SubmitError::NoSpace`] also if memory was frozen since the look.
    pub fn submit_over(&mut self, ops: &[Op<'_>], older: Option<&Older>) -> Result<Receipt, SubmitError> {
        let result = self.submit(ops);
        let known = older.filter(|older| older.freezes() == self.freezes());
        let (Err(SubmitError::NoSpace), Some(older)) = (&result, known) else {
            return result;
        };
        if self.spill.is_full(&self.log) {
            return Err(SubmitError::NoSpace);
        }
        if !self.log.may_overwrite() {
            self.spill.give_up_in_vain(&mut self.log);
            let cleans = self.cleaning.can_gain_space(&self.log, &self.checkpoints);
            return Err(match self.spill.make_room(&mut self.log) || cleans {
                true => SubmitError::Busy,
                false => SubmitError::NoSpace,
            });
        }
        let index = older.memory_of(&self.log, ops).ok_or(SubmitError::NoSpace)?;
        let bytes = self.log.admit_over(ops, index)?;
        self.make_room_by(bytes, Access::Relief)?;
        Ok(self.log.submit(ops))
    }

    /// Sees to it that there is a draft with room for `bytes` of entries, if need be at the cost of snapshots.
    fn insist_on_room(&mut self, bytes: usize, access: Access) -> Result<(), SubmitError> {
        loop {
            match self.make_room_by(bytes, access) {
                Err(SubmitError::NoSpace) if self.give_up_snapshot() => {}
                room => return room,
            }
        }
    }

    /// Sees to it that there is a draft with room for `bytes` of entries.
    #[inline]
    pub(crate) fn make_room(&mut self, bytes: usize) -> Result<(), SubmitError> {
        self.make_room_by(bytes, Access::User)
    }

    #[inline]
    fn make_room_by(&mut self, bytes: usize, access: Access) -> Result<(), SubmitError> {
        if self.log.has_room(bytes) && !self.log.is_reserved(access) {
            self.cleaning.served();
            return Ok(());
        }
        let Self {
            log,
            cleaning,
            checkpoints,
            spill,
        } = self;
        spill.give_up_in_vain(log);
        match cleaning.make_room(log, checkpoints, bytes, access) {
            Err(SubmitError::NoSpace) if spill.make_room(log) => Err(SubmitError::Busy),
            room => room,
        }
    }

    /// Bytes of entries that a record takes at most.
    pub fn batch_bytes_max(&self) -> usize {
        self.log.batch_bytes_max()
    }

    /// The next write to make, if there is one now. Writes may be done in any order.
    pub fn next_write(&mut self) -> Option<Write> {
        self.log.next_write()
    }

    /// A write has ended: durable, or failed.
    pub fn written(&mut self, write: Write, result: Result<(), MediaError>) {
        if self.log.written(write, result) {
            self.checkpoints.written(&mut self.log);
        }
        self.spill.settle(&mut self.log);
    }

    /// Writes under way may never end: nothing more becomes durable that somebody is told of.
    pub fn latch(&mut self) {
        self.log.latch();
    }

    /// True if [`Engine::clean_step`] would do something now, or after the next completion.
    pub fn wants_cleaning(&self) -> bool {
        let held = self.spill.holds(&self.log);
        self.spill.has_unlisted()
            || self.has_trash()
            || self.cleaning.is_wanted(&self.log, &self.checkpoints, held)
            || self.checkpoints.are_wanted(&self.log, held)
    }

    /// A follower in another process keeps to a moment from now on, or none does: more segments are kept free for it.
    pub fn set_followed(&mut self, is_followed: bool) {
        self.log.space.set_followed(is_followed);
    }

    /// Grows with each segment that is taken into use: a driver looks for followers then.
    pub fn segments_taken(&self) -> u64 {
        self.log.space.taken()
    }

    /// True if memory has so much that it is to become tables, or on the way there.
    pub(crate) fn is_behind(&self) -> bool {
        self.spill.is_behind(&self.log) || self.wants_job()
    }

    /// True if maps and trees may ever leave memory: else there are no jobs.
    pub fn may_spill(&self) -> bool {
        self.log.limits.spill_bytes.is_some()
    }

    /// True if [`Engine::take_job`] would have a job now.
    pub fn wants_job(&self) -> bool {
        self.spill.wants_job(&self.log)
    }

    /// True if no work on tables is under way or to be done.
    pub fn are_tables_settled(&self) -> bool {
        !self.spill.is_busy() && !self.wants_job()
    }

    /// Work on tables, if there is any: run it beside everything else, and give it back to [`Engine::end_job`]. One is under way
    /// at a time. `None` also while cleaning or a checkpoint has to come to an end before; ask again after its next step.
    pub fn take_job(&mut self) -> Option<Job> {
        self.spill.take(&mut self.log, &self.cleaning, &self.checkpoints)
    }

    /// A job has been run. After that [`Engine::next_write`] may have work.
    pub fn end_job(&mut self, job: Job, result: Result<(), JobError>) {
        let Self {
            log,
            cleaning,
            checkpoints,
            spill,
        } = self;
        spill.end(log, cleaning, checkpoints, job, result);
    }

    /// True if somebody reads tables that merges have replaced: their segments are free afterwards.
    pub fn has_retired(&self) -> bool {
        self.spill.has_retired()
    }

    /// True if snapshots have ended: their driver should drop what they kept ([`Engine::take_trash`]).
    pub fn has_trash(&self) -> bool {
        self.log.snapshots.has_trash()
    }

    /// Memory that is not needed any more, to be dropped outside of any lock.
    pub fn take_trash(&mut self) -> Trash {
        Trash(self.spill.trash(), self.log.snapshots.trash())
    }

    /// Somebody gives segments up: those that nobody reads any more are free, and cleaning may gain some where it gained none.
    pub(crate) fn reclaim(&mut self) {
        self.spill.reclaim(&mut self.log);
        self.cleaning.served();
    }

    /// Does a bounded piece of cleaning, or of a checkpoint, if the area needs any.
    pub fn clean_step(&mut self) -> CleanStep {
        if self.is_latched() {
            return CleanStep::Idle;
        }
        let Self {
            log,
            cleaning,
            checkpoints,
            spill,
        } = self;
        spill.step(log, cleaning, checkpoints);
        let held = spill.holds(log);
        match cleaning.step(log, checkpoints, held) {
            step @ CleanStep::Read { .. } => step,
            CleanStep::Idle => checkpoints.step(log, held),
            step => match checkpoints.step(log, held) {
                write @ CleanStep::Write(_) => write,
                _ => step,
            },
        }
    }

    /// The data that [`CleanStep::Read`] asked for.
    pub fn clean_read(&mut self, bytes: Vec<u8>, result: Result<(), MediaError>) {
        self.cleaning.read(&mut self.log, bytes, result);
    }

    /// True when a write has failed.
    pub fn is_latched(&self) -> bool {
        self.log.is_latched()
    }

    /// The first ticket whose write failed: nothing from it on becomes durable.
    pub fn failed(&self) -> Option<Ticket> {
        self.log.failed().map(Ticket)
    }

    /// True if the record of `ticket` is to be written, or is.
    pub fn is_wanted(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.log.wanted()
    }

    /// True if [`Engine::next_write`] has a write.
    pub fn has_write(&self) -> bool {
        self.next_ticket().is_some()
    }

    /// Counters and state.
    pub fn stats(&self) -> Stats {
        let (snapshots, snapshots_ended) = self.log.snapshots.counts();
        Stats {
            snapshots,
            snapshot_bytes: self.log.snapshots.bytes(),
            snapshots_ended,
            live_bytes: self.log.usage.all.live,
            live_bytes_max: self.log.live_bytes_max(),
            tables: self.log.levels.count(),
            index_bytes: self.log.usage.all.index,
            free_segments: self.log.space.free_count(),
            ..self.log.stats
        }
    }

    /// All structures: name, number, kind, durability and how many entries they have.
    pub fn structures(&self) -> impl Iterator<Item = (&str, StructureId, Kind, Durability, u64)> {
        self.log
            .structures
            .iter()
            .map(|(&id, it)| (&*it.name, id, it.kind, it.durability, self.len(id)))
    }

    /// Place of the log: offset and length of each segment's part, oldest first, in bytes of the area.
    pub fn log_ranges(&self) -> Vec<(u64, u64)> {
        let ranges = self.log.space.chain();
        let range =
            |used: &crate::space::Used| (self.log.layout.segment_offset(used.slot), u64::from(used.end));
        ranges.map(range).collect()
    }

    /// True until the structure is dropped.
    pub fn has(&self, structure: StructureId) -> bool {
        self.log.structures.contains_key(&structure)
    }

    /// The value of a key of a map or tree. [`Fetch::Search`] if tables may have it.
    pub fn get(&self, map: StructureId, key: &[u8]) -> Option<Fetch> {
        let structure = self.log.structures.get(&map)?;
        if !structure.kind.has_keys() {
            return None;
        }
        let Log { ref levels, .. } = self.log;
        let search = || Search::new(levels, map, key, self.freezes());
        fetched(
            self.log.slot_of(map, key),
            levels,
            |slot| self.log.fetch_slot(slot),
            search,
        )
    }

    /// How often memory was frozen. While it stays the same, what a [`Search`] finds is right for each key that is not in memory.
    pub fn freezes(&self) -> u64 {
        self.spill.freezes()
    }

    /// The entry at a position of a log or queue.
    pub fn read(&self, structure: StructureId, position: u64) -> Option<Fetch> {
        let location = self.log.structures.get(&structure)?.find_position(position)?;
        Some(self.log.fetch(location))
    }

    /// Entries of a tree in order: about `wanted` of them, though a visit goes on as long as there are more in tables. `tables` are those
    /// of the part before, if there was one ([`crate::RangeEnd::More`]).
    pub fn range(
        &mut self,
        way: Way,
        tree: StructureId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        wanted: usize,
        tables: Option<Scan>,
    ) -> RangePart {
        if tables.is_none() {
            self.spill.note_scan(&self.log);
        }
        let layers = self.log.layers(tree);
        self.log.part(layers.as_ref(), (bounds, way), wanted, tables)
    }

    /// True if ranges have looked into so many tables that they are to be merged ([`Engine::wants_job`]).
    pub fn is_merge_asked_for(&self) -> bool {
        self.spill.is_merge_asked_for()
    }

    /// The keys of a map or tree that are in memory, in order, and the tables below them. Sorts: not for the data path.
    pub fn keys(&self, map: StructureId) -> RangePart {
        self.log.keys(self.log.layers(map).as_ref())
    }

    /// Hands out the next entry of a queue. It comes again after a crash, or [`Engine::give_up`], until it is
    /// acknowledged.
    pub fn pop(&mut self, queue: StructureId) -> Option<(u64, Fetch)> {
        let (position, location) = self.log.structures.get_mut(&queue)?.pop()?;
        Some((position, self.log.fetch(location)))
    }

    /// Gives an entry that was handed out back to its queue; false if it is not there any more.
    pub fn give_up(&mut self, queue: StructureId, position: u64) -> bool {
        let structure = self.log.structures.get_mut(&queue);
        structure.is_some_and(|structure| structure.give_up(position))
    }

    /// The first and the next position of a log or queue.
    pub fn positions(&self, structure: StructureId) -> Option<core::ops::Range<u64>> {
        let it = self.log.structures.get(&structure)?;
        Some(it.floor()..it.next)
    }

    /// Entries of a structure. Of a map or tree that has left memory an estimate: a key that is in memory and in tables counts twice.
    pub fn len(&self, structure: StructureId) -> u64 {
        let own = self.log.structures.get(&structure).map_or(0, Structure::len);
        let frozen = self
            .log
            .frozen
            .as_ref()
            .and_then(|frozen| frozen.bodies.get(&structure));
        own + frozen.map_or(0, Body::len) + self.log.levels.entries_of(structure)
    }
}
