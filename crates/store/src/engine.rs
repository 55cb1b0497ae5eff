//! The machine: operations in, writes out, completions in.

use crate::checkpoint::Checkpoints;
use crate::clean::Cleaning;
use crate::entry::{Durability, Kind, Op, StructureId, entry_bytes};
use crate::fetch::Fetch;
use crate::index::{Body, Structure};
use crate::layout::Layout;
use crate::log::{Access, CleanStep, Log, Receipt, Stats, SubmitError, Ticket, TicketState, Write};
use base::MediaError;
use std::ops::Bound;

/// An open area. See the crate's documentation.
pub struct Engine {
    log: Log,
    cleaning: Cleaning,
    checkpoints: Checkpoints,
}

impl Engine {
    pub(crate) fn new(log: Log, checkpoints: Checkpoints) -> Self {
        Self {
            log,
            cleaning: Cleaning::default(),
            checkpoints,
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
        self.make_room(bytes)?;
        Ok(self.log.create(name, kind, durability))
    }

    /// Drops a structure with all that is in it. It is gone at once, and for good when the ticket is durable.
    pub fn drop_structure(&mut self, id: StructureId) -> Result<Ticket, SubmitError> {
        if !self.log.structures.contains_key(&id) {
            return Err(SubmitError::NoStructure);
        }
        self.log.admit_any()?;
        self.make_room_by(entry_bytes(0, 0), Access::Relief)?;
        Ok(self.log.drop_structure(id))
    }

    /// Takes a batch in: all of it becomes durable at once, or nothing. Then [`Engine::next_write`] has work.
    pub fn submit(&mut self, ops: &[Op<'_>]) -> Result<Receipt, SubmitError> {
        let bytes = self.log.admit(ops)?;
        match self.make_room(bytes) {
            Err(SubmitError::NoSpace | SubmitError::Damaged { .. })
                if self.log.gives_room(ops, self.cleaning.pinned(&self.log)) =>
            {
                self.make_room_by(bytes, Access::Relief)?;
            }
            room => room?,
        }
        Ok(self.log.submit(ops))
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
        self.cleaning
            .make_room(&mut self.log, &mut self.checkpoints, bytes, access)
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
    }

    /// Writes under way may never end: nothing more becomes durable that somebody is told of.
    pub fn latch(&mut self) {
        self.log.latch();
    }

    /// True if [`Engine::clean_step`] would do something now, or after the next completion.
    pub fn wants_cleaning(&self) -> bool {
        self.cleaning.is_wanted(&self.log, &self.checkpoints) || self.checkpoints.are_wanted(&self.log)
    }

    /// Does a bounded piece of cleaning, or of a checkpoint, if the area needs any.
    pub fn clean_step(&mut self) -> CleanStep {
        if self.is_latched() {
            return CleanStep::Idle;
        }
        match self.cleaning.step(&mut self.log, &mut self.checkpoints) {
            step @ CleanStep::Read { .. } => step,
            CleanStep::Idle => self.checkpoints.step(&mut self.log),
            step => match self.checkpoints.step(&mut self.log) {
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
        Stats {
            live_bytes: self.log.usage.all.live,
            live_bytes_max: self.log.layout.live_bytes_max(),
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
            .map(|(&id, it)| (&*it.name, id, it.kind, it.durability, it.len()))
    }

    /// Place of the log: offset and length of each segment's part, oldest first, in bytes of the area.
    pub fn log_ranges(&self) -> Vec<(u64, u64)> {
        let ranges = self.log.space.chain();
        let range =
            |used: &crate::space::Used| (self.log.layout.segment_offset(used.slot), u64::from(used.end));
        ranges.map(range).collect()
    }

    /// The value of a key of a map or tree.
    pub fn get(&self, map: StructureId, key: &[u8]) -> Option<Fetch> {
        let structure = self.log.structures.get(&map)?;
        matches!(structure.kind, Kind::Map | Kind::Tree)
            .then(|| structure.find(key))
            .flatten()
            .map(|location| self.log.fetch(location))
    }

    /// The entry at a position of a log or queue.
    pub fn read(&self, structure: StructureId, position: u64) -> Option<Fetch> {
        let location = self.log.structures.get(&structure)?.find_position(position)?;
        Some(self.log.fetch(location))
    }

    /// Entries of a tree in order, at most `limit`.
    pub fn range(
        &self,
        tree: StructureId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
    ) -> Vec<(Box<[u8]>, Fetch)> {
        let Some(Body::Tree(entries)) = self.log.structures.get(&tree).map(|it| &it.body) else {
            return Vec::new();
        };
        let empty = match bounds {
            (Bound::Included(a), Bound::Included(b)) => a > b,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Excluded(b))
            | (Bound::Excluded(a), Bound::Included(b)) => a >= b,
            _ => false,
        };
        if empty {
            return Vec::new();
        }
        let found = entries.range::<[u8], _>(bounds).take(limit);
        found
            .map(|(key, &location)| (key.clone(), self.log.fetch(location)))
            .collect()
    }

    /// The keys of a map in order. Sorts: not for the data path.
    pub fn keys(&self, map: StructureId) -> Vec<Box<[u8]>> {
        match self.log.structures.get(&map).map(|it| &it.body) {
            Some(Body::Map(map)) => map.sorted_keys().into_iter().map(Into::into).collect(),
            Some(Body::Tree(tree)) => tree.keys().cloned().collect(),
            _ => Vec::new(),
        }
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

    /// Entries of a structure.
    pub fn len(&self, structure: StructureId) -> u64 {
        self.log.structures.get(&structure).map_or(0, Structure::len)
    }
}
