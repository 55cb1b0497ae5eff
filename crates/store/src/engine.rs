//! The machine: operations in, writes out, completions in.

use crate::buffer::Buffer;
use crate::checkpoint::{Checkpoints, Start};
use crate::clean::Cleaning;
use crate::draft::{Draft, Effect, Pending, Place, Sealed, read_written};
use crate::entry::{
    DESCRIPTION_BYTES, Description, Durability, Entry, EntryKind, KEY_BYTES_MAX, Kind, NAME_BYTES_MAX, Op,
    StructureId, entry_bytes,
};
use crate::fetch::{Fetch, Found};
use crate::format::{RECORD_HEADER_BYTES, SegmentHeader};
use crate::index::{Body, Key, Location, Structure, Tally, Usage, index_bytes};
use crate::layout::Layout;
use crate::recover::GENERATIONS_LOST_MAX;
use crate::space::Space;
use base::MediaError;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use thiserror::Error;

/// Records that wait for a write at most; beyond, submitters do.
const SEALED_MAX: usize = 4;

/// How an engine behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Writes under way at once, 1 to 32. With one, what comes meanwhile shares the next record.
    pub writes_in_flight_max: usize,
    /// Memory that the index may take, estimated; operations that would add to it beyond are refused.
    pub index_bytes_max: u64,
}

impl Default for Options {
    /// One write under way, 1 GiB of index. On a virtual disk whose cache has to be flushed, eight writers are a tenth
    /// faster with one than with two: flushes wait for each other, and records are larger.
    fn default() -> Self {
        Self {
            writes_in_flight_max: 1,
            index_bytes_max: 1 << 30,
        }
    }
}

/// The record of an operation: it is durable when [`Engine::durable`] has reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// State of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketState {
    /// Durable, with everything before it.
    Durable,
    /// Not yet.
    Waiting,
    /// A write failed: it may be there after the area is opened anew, or not.
    Failed,
}

/// Receipt of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its record.
    pub ticket: Ticket,
    /// The positions of its appends and pushes, in order.
    pub positions: SmallVec<[u64; 1]>,
}

/// Why a batch is refused. Nothing of it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// A write failed; the area takes nothing until it is opened anew.
    #[error("a write failed: the area is closed to writers until it is opened anew")]
    Latched,
    /// Too much is under way, or segments are being cleaned: try again after the next completion.
    #[error("busy: try again after the next completion")]
    Busy,
    /// The area has no room for more live data.
    #[error("the area is full: 80 % of it are live")]
    NoSpace,
    /// The index has reached its limit.
    #[error("the index has reached its limit of memory")]
    IndexFull,
    /// A batch must fit one record.
    #[error("the batch does not fit a record")]
    TooLong,
    /// A key is longer than [`KEY_BYTES_MAX`], or a name than [`NAME_BYTES_MAX`].
    #[error("the key is too long")]
    KeyTooLong,
    /// No such structure, or it is of another kind.
    #[error("no structure of this kind has this number")]
    NoStructure,
    /// A structure of this name is there, and it is another one.
    #[error("the name belongs to another structure")]
    NameTaken,
    /// All descriptions together must fit a record.
    #[error("no more structures fit an area of this layout")]
    TooManyStructures,
}

/// A write to be made: durable, the whole of it, before [`Engine::written`] is told of success.
#[derive(Debug)]
pub struct Write {
    /// Of its record; 0 for a piece of a checkpoint.
    number: u64,
    offset: u64,
    length: usize,
    buffer: Arc<Buffer>,
}

impl Write {
    pub(crate) fn new(number: u64, offset: u64, length: usize, buffer: Arc<Buffer>) -> Self {
        Self {
            number,
            offset,
            length,
            buffer,
        }
    }

    /// Where, in bytes of the area: a multiple of the block.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes: whole blocks, aligned to 4096 bytes of memory.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[..self.length]
    }
}

/// A record that is being written.
struct InFlight {
    record: Record,
    buffer: Arc<Buffer>,
    pending: Vec<Pending>,
    done: bool,
}

#[derive(Clone, Copy)]
struct Record {
    number: u64,
    tail: u64,
    /// Slot, and from where to where in it.
    place: (u32, u32, u32),
}

/// Counters since the area was opened, and the present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records made durable.
    pub records: u64,
    /// Bytes of them, with padding.
    pub record_bytes: u64,
    /// Entries that users submitted.
    pub entries: u64,
    /// Bytes of entries that cleaning wrote again.
    pub moved_bytes: u64,
    /// Segments cleaned.
    pub cleaned: u64,
    /// Segments of these without live data, which were not read.
    pub cleaned_unread: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Bytes of live entries.
    pub live_bytes: u64,
    /// Limit of these.
    pub live_bytes_max: u64,
    /// Memory of the index, estimated.
    pub index_bytes: u64,
    /// Free segments.
    pub free_segments: u32,
}

/// Purpose of the room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    User,
    Cleaner,
}

/// An open area. See the crate's documentation.
pub struct Engine {
    pub(crate) layout: Layout,
    epoch: u64,
    options: Options,
    seed: u64,
    pub(crate) space: Space,
    pub(crate) structures: BTreeMap<StructureId, Structure>,
    pub(crate) next_structure: u32,
    pub(crate) usage: Tally,
    /// Bytes that the waiting entries will add.
    pending_usage: Usage,
    draft: Option<Draft>,
    sealed: VecDeque<Sealed>,
    in_flight: VecDeque<InFlight>,
    spare: Vec<Buffer>,
    next_number: u64,
    durable: u64,
    /// Somebody waits for the records up to this one.
    wanted: u64,
    /// The first record whose write failed.
    failed: Option<u64>,
    pub(crate) cleaning: Cleaning,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) stats: Stats,
}

/// Result of recovery: the parts of an engine.
pub(crate) struct Parts {
    pub layout: Layout,
    pub epoch: u64,
    pub seed: u64,
    pub space: Space,
    pub structures: BTreeMap<StructureId, Structure>,
    pub next_structure: u32,
    pub usage: Tally,
    pub last: u64,
    pub checkpoints: Checkpoints,
}

impl Engine {
    pub(crate) fn assemble(parts: Parts, options: Options) -> Self {
        let lost_max = options.writes_in_flight_max + SEALED_MAX + 1;
        assert!(options.writes_in_flight_max > 0 && lost_max as u64 <= GENERATIONS_LOST_MAX);
        Self {
            layout: parts.layout,
            epoch: parts.epoch,
            options,
            seed: parts.seed,
            space: parts.space,
            structures: parts.structures,
            next_structure: parts.next_structure,
            usage: parts.usage,
            pending_usage: Usage::default(),
            draft: None,
            sealed: VecDeque::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            next_number: parts.last + 1,
            durable: parts.last,
            wanted: 0,
            failed: None,
            cleaning: Cleaning::default(),
            checkpoints: parts.checkpoints,
            stats: Stats::default(),
        }
    }

    /// The sizes of the area.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Everything up to this ticket is durable.
    pub fn durable(&self) -> Ticket {
        Ticket(self.durable)
    }

    /// The newest ticket given out.
    pub fn newest(&self) -> Ticket {
        Ticket(self.next_number - 1)
    }

    /// State of a ticket.
    pub fn state(&self, ticket: Ticket) -> TicketState {
        match self.failed {
            _ if ticket.0 <= self.durable => TicketState::Durable,
            Some(failed) if ticket.0 >= failed => TicketState::Failed,
            _ => TicketState::Waiting,
        }
    }

    /// True when a write has failed.
    pub fn is_latched(&self) -> bool {
        self.failed.is_some()
    }

    /// The first ticket whose write failed: nothing from it on becomes durable.
    pub fn failed(&self) -> Option<Ticket> {
        self.failed.map(Ticket)
    }

    /// Somebody waits for `ticket`: its record, if it is lazy, is to be written now.
    pub fn want(&mut self, ticket: Ticket) {
        self.wanted = self.wanted.max(ticket.0);
    }

    /// True if the record of `ticket` is to be written, or is.
    pub fn is_wanted(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.wanted
    }

    /// True if [`Engine::next_write`] has a write.
    pub fn has_write(&self) -> bool {
        self.next_ticket().is_some()
    }

    /// The record that [`Engine::next_write`] would write, if it has one.
    pub fn next_ticket(&self) -> Option<Ticket> {
        if self.failed.is_some() || self.in_flight.len() >= self.options.writes_in_flight_max {
            return None;
        }
        let sealed = self.sealed.front().map(|sealed| sealed.number);
        let draft = self.draft.as_ref().map(|draft| draft.number);
        sealed
            .or(draft.filter(|&number| number <= self.wanted))
            .map(Ticket)
    }

    /// Counters and state.
    pub fn stats(&self) -> Stats {
        Stats {
            live_bytes: self.usage.all.live,
            live_bytes_max: self.layout.live_bytes_max(),
            index_bytes: self.usage.all.index,
            free_segments: self.space.free_count(),
            ..self.stats
        }
    }

    /// All structures: name, number, kind, durability and how many entries they have.
    pub fn structures(&self) -> impl Iterator<Item = (&str, StructureId, Kind, Durability, u64)> {
        self.structures
            .iter()
            .map(|(&id, it)| (&*it.name, id, it.kind, it.durability, it.len()))
    }

    /// The structure called `name`.
    pub fn lookup(&self, name: &str) -> Option<(StructureId, Kind)> {
        let mut all = self.structures.iter();
        all.find(|(_, it)| &*it.name == name)
            .map(|(&id, it)| (id, it.kind))
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
        if name.len() > NAME_BYTES_MAX {
            return Err(SubmitError::KeyTooLong);
        }
        let bytes = entry_bytes(name.len(), DESCRIPTION_BYTES);
        if self.prologue_bytes() + bytes > self.batch_bytes_max() {
            return Err(SubmitError::TooManyStructures);
        }
        self.admit_any()?;
        self.make_room(bytes, Access::User)?;
        let id = StructureId(self.next_structure);
        self.next_structure += 1;
        let description = Description {
            kind,
            durability,
            next: 0,
            floor: 0,
        };
        let seed = self.seed ^ u64::from(id.0);
        self.structures
            .insert(id, Structure::new(name, &description, seed));
        let draft = self.draft.as_mut().expect("room was made");
        draft.push(&describe(id, name, &description.emit()));
        let ticket = Ticket(draft.number);
        self.want(ticket);
        Ok((id, ticket))
    }

    /// Drops a structure with all that is in it. It is gone at once, and for good when the ticket is durable.
    pub fn drop_structure(&mut self, id: StructureId) -> Result<Ticket, SubmitError> {
        if !self.structures.contains_key(&id) {
            return Err(SubmitError::NoStructure);
        }
        self.admit_any()?;
        self.make_room(entry_bytes(0, 0), Access::User)?;
        let structure = self.structures.remove(&id).expect("just seen");
        structure.give_back(&mut self.usage);
        let draft = self.draft.as_mut().expect("room was made");
        draft.push(&Entry {
            kind: EntryKind::Drop,
            structure: id,
            key: &[],
            value: &[],
        });
        let ticket = Ticket(draft.number);
        self.want(ticket);
        Ok(ticket)
    }

    /// Takes a batch in: all of it becomes durable at once, or nothing. Then [`Engine::next_write`] has work.
    pub fn submit(&mut self, ops: &[Op<'_>]) -> Result<Receipt, SubmitError> {
        let bytes = self.admit(ops)?;
        self.make_room(bytes, Access::User)?;
        let mut positions = SmallVec::new();
        let mut is_wanted = false;
        for op in ops {
            let durability = self.write_down(op, &mut positions);
            is_wanted |= durability == Durability::Sync;
        }
        self.stats.entries += ops.len() as u64;
        let ticket = Ticket(self.draft.as_ref().expect("room was made").number);
        if is_wanted {
            self.want(ticket);
        }
        Ok(Receipt { ticket, positions })
    }

    fn write_down(&mut self, op: &Op<'_>, positions: &mut SmallVec<[u64; 1]>) -> Durability {
        let (kind, id, key, value) = parts_of(op);
        let structure = self.structures.get_mut(&id).expect("admitted");
        let key = match key {
            OpKey::New => {
                let position = structure.assigned;
                structure.assigned += 1;
                positions.push(position);
                Key::Position(position)
            }
            // Positions that were not given out yet are not trimmed.
            OpKey::Position(position) => Key::Position(position.min(structure.assigned)),
            OpKey::Bytes(bytes) => Key::Bytes(bytes.into()),
        };
        let draft = self.draft.as_mut().expect("room was made");
        let location = draft.push(&entry_of(kind, id, &key, value, &mut [0; 8]));
        let durability = structure.durability;
        if durability == Durability::Lazy {
            structure.apply(kind, key, location, &mut self.usage);
        } else {
            let mut cost = Usage::default();
            if kind.adds() {
                cost.add(structure.kind, key.bytes(), location);
            }
            self.pending_usage += cost;
            draft.pending.push(Pending {
                effect: Effect::Apply(kind, cost),
                structure: id,
                key,
                location,
            });
        }
        durability
    }

    /// Writes a live entry of `from` down again, for the cleaner.
    pub(crate) fn move_entry(&mut self, entry: &Entry<'_>, key: Key, from: Location) -> Ticket {
        let draft = self.draft.as_mut().expect("room was made");
        let location = draft.push(entry);
        draft.pending.push(Pending {
            effect: Effect::Move(from),
            structure: entry.structure,
            key,
            location,
        });
        self.stats.moved_bytes += entry.bytes() as u64;
        let ticket = Ticket(draft.number);
        self.want(ticket);
        ticket
    }

    /// An empty record, if no other one is about to be written: it tells the tail.
    pub(crate) fn force_record(&mut self) -> Result<Ticket, SubmitError> {
        self.make_room(0, Access::Cleaner)?;
        let ticket = Ticket(self.draft.as_ref().expect("room was made").number);
        self.want(ticket);
        Ok(ticket)
    }

    /// Place of the log: offset and length of each segment's part, oldest first, in bytes of the area.
    pub fn log_ranges(&self) -> Vec<(u64, u64)> {
        let ranges = self.space.chain();
        let range = |used: &crate::space::Used| (self.layout.segment_offset(used.slot), u64::from(used.end));
        ranges.map(range).collect()
    }

    /// Bytes of entries that a record takes at most.
    pub fn batch_bytes_max(&self) -> usize {
        (self.layout.stream_of(self.layout.record_bytes_max) - RECORD_HEADER_BYTES) as usize
    }

    /// Longest value that fits a record with a key of `key_bytes` (8 for logs and queues).
    pub fn value_bytes_max(&self, key_bytes: usize) -> usize {
        self.batch_bytes_max().saturating_sub(entry_bytes(key_bytes, 0))
    }

    fn admit_any(&self) -> Result<(), SubmitError> {
        match self.failed {
            Some(_) => Err(SubmitError::Latched),
            None => Ok(()),
        }
    }

    /// Checks a batch; the bytes that it takes in a record.
    fn admit(&self, ops: &[Op<'_>]) -> Result<usize, SubmitError> {
        self.admit_any()?;
        let mut bytes = 0;
        let mut adds = Usage::default();
        for op in ops {
            let (kind, id, key, value) = parts_of(op);
            let structure = self.structures.get(&id).ok_or(SubmitError::NoStructure)?;
            if !kind.suits(structure.kind) {
                return Err(SubmitError::NoStructure);
            }
            let key_bytes = match key {
                OpKey::New | OpKey::Position(_) => 8,
                OpKey::Bytes(key) if key.len() > KEY_BYTES_MAX => return Err(SubmitError::KeyTooLong),
                OpKey::Bytes(key) => key.len(),
            };
            let entry = entry_bytes(key_bytes, value.len());
            bytes += entry;
            if kind.adds() {
                adds.live += entry as u64;
                adds.index += index_bytes(structure.kind, key_bytes);
            }
        }
        if bytes > self.batch_bytes_max() {
            return Err(SubmitError::TooLong);
        }
        if adds.live > 0 {
            adds += self.usage.all;
            adds += self.pending_usage;
            if adds.live > self.layout.live_bytes_max() {
                return Err(SubmitError::NoSpace);
            }
            if adds.index > self.options.index_bytes_max {
                return Err(SubmitError::IndexFull);
            }
        }
        Ok(bytes)
    }

    /// Sees to it that there is a draft with room for `bytes` of entries.
    pub(crate) fn make_room(&mut self, bytes: usize, access: Access) -> Result<(), SubmitError> {
        loop {
            if self.draft.as_ref().is_some_and(|draft| draft.room() >= bytes) {
                return Ok(());
            }
            if self.sealed.len() >= SEALED_MAX {
                return Err(SubmitError::Busy);
            }
            if self.draft.is_some() {
                self.seal();
            }
            self.open_draft(bytes, access)?;
        }
    }

    /// Begins a record at the log's end, or in a new segment where it does not fit.
    fn open_draft(&mut self, bytes: usize, access: Access) -> Result<(), SubmitError> {
        let layout = self.layout;
        let needed = layout.extent_of(bytes as u32 + RECORD_HEADER_BYTES);
        let head = self.space.head().copied();
        let fits = head.filter(|head| head.end + needed <= layout.segment_bytes);
        let buffer = |spare: &mut Vec<Buffer>| {
            let fresh = || Buffer::new((layout.record_bytes_max + layout.block_bytes) as usize);
            spare.pop().unwrap_or_else(fresh)
        };
        let number = self.next_number;
        if let Some(head) = fits {
            let place = Place {
                slot: head.slot,
                generation: head.generation,
                number,
                segment: None,
                start: head.end,
            };
            self.draft = Some(Draft::new(layout, buffer(&mut self.spare), place));
            self.next_number += 1;
            return Ok(());
        }
        let reserve = match access {
            Access::User => layout.reserve_segments(),
            Access::Cleaner => 0,
        };
        let mut taken = self.space.take(reserve, number - 1);
        while taken.is_none() && !self.can_gain_space() && self.release_checkpoint() {
            taken = self.space.take(reserve, number - 1);
        }
        let Some(taken) = taken else {
            return Err(if self.can_gain_space() {
                SubmitError::Busy
            } else {
                SubmitError::NoSpace
            });
        };
        let segment = SegmentHeader {
            generation: taken.generation,
            first: number,
            previous: head.map_or(0, |head| head.generation),
            previous_end: head.map_or(0, |head| head.end),
            tail: self.space.tail(),
            durable: self.durable,
            epoch: self.epoch,
        };
        let place = Place {
            slot: taken.slot,
            generation: taken.generation,
            number,
            segment: Some(segment),
            start: taken.end,
        };
        let mut draft = Draft::new(layout, buffer(&mut self.spare), place);
        for (&id, structure) in &self.structures {
            draft.push(&describe(id, &structure.name, &structure.describe().emit()));
        }
        self.draft = Some(draft);
        self.next_number += 1;
        Ok(())
    }

    fn prologue_bytes(&self) -> usize {
        let all = self.structures.values();
        all.map(|it| entry_bytes(it.name.len(), DESCRIPTION_BYTES)).sum()
    }

    /// Ends the draft: it waits for its write.
    fn seal(&mut self) {
        let draft = self.draft.take().expect("the caller has seen it");
        let sealed = draft.seal(self.durable, self.space.tail(), self.epoch);
        self.space.extend(sealed.end, sealed.number);
        self.sealed.push_back(sealed);
    }

    /// The next write to make, if there is one now. Writes may be done in any order.
    pub fn next_write(&mut self) -> Option<Write> {
        if !self.has_write() {
            return None;
        }
        if self.sealed.is_empty() {
            self.seal();
        }
        let sealed = self.sealed.pop_front()?;
        let buffer = Arc::new(sealed.buffer);
        let offset = self.layout.segment_offset(sealed.slot) + u64::from(sealed.start);
        let length = (sealed.end - sealed.start) as usize;
        let write = Write::new(sealed.number, offset, length, Arc::clone(&buffer));
        self.in_flight.push_back(InFlight {
            record: Record {
                number: sealed.number,
                tail: sealed.tail,
                place: (sealed.slot, sealed.start, sealed.end),
            },
            buffer,
            pending: sealed.pending,
            done: false,
        });
        Some(write)
    }

    /// A write has ended: durable, or failed.
    pub fn written(&mut self, write: Write, result: Result<(), MediaError>) {
        let is_checkpoint = write.number == 0;
        let number = match is_checkpoint {
            true => self.first_unwritten(),
            false => write.number,
        };
        drop(write);
        if result.is_err() {
            self.failed = Some(self.failed.map_or(number, |failed| failed.min(number)));
        }
        if is_checkpoint {
            return self.checkpoint_written();
        }
        let mut all = self.in_flight.iter_mut();
        let written = all.find(|it| it.record.number == number);
        written.expect("a write ends once").done = result.is_ok();
        while self.in_flight.front().is_some_and(|front| front.done) {
            let front = self.in_flight.pop_front().expect("just seen");
            self.settle(front);
        }
    }

    /// Writes under way may never end: nothing more becomes durable that somebody is told of.
    pub fn latch(&mut self) {
        let first = self.durable + 1;
        self.failed = Some(self.failed.map_or(first, |failed| failed.min(first)));
    }

    /// The first record that is not being written yet.
    fn first_unwritten(&self) -> u64 {
        let sealed = self.sealed.front().map(|sealed| sealed.number);
        let draft = self.draft.as_ref().map(|draft| draft.number);
        sealed.or(draft).unwrap_or(self.next_number)
    }

    /// The oldest record under way is durable.
    fn settle(&mut self, record: InFlight) {
        let (slot, start, end) = record.record.place;
        self.checkpoints.since += u64::from(end - start);
        self.checkpoints.start = Start {
            record: record.record.number,
            generation: self.space.generation_of(slot),
            end,
        };
        self.durable = record.record.number;
        self.stats.records += 1;
        self.stats.record_bytes += u64::from(end - start);
        for pending in record.pending {
            let structure = self.structures.get_mut(&pending.structure);
            match pending.effect {
                Effect::Move(from) => {
                    if let Some(structure) = structure {
                        structure.relocate(&pending.key, from, pending.location, &mut self.usage);
                    }
                }
                Effect::Apply(kind, cost) => {
                    self.pending_usage -= cost;
                    if let Some(structure) = structure {
                        structure.apply(kind, pending.key, pending.location, &mut self.usage);
                    }
                }
            }
        }
        self.space.published(record.record.tail);
        // A driver that still holds the buffer keeps it from being used again, no more.
        if let Ok(buffer) = Arc::try_unwrap(record.buffer) {
            self.spare.push(buffer);
        }
    }

    /// Everything that waits to be applied, for the cleaner.
    pub(crate) fn unapplied(&self) -> impl Iterator<Item = &Pending> {
        let drafts = self.draft.iter().flat_map(|draft| &draft.pending);
        let sealed = self.sealed.iter().flat_map(|sealed| &sealed.pending);
        let in_flight = self.in_flight.iter().flat_map(|it| &it.pending);
        drafts.chain(sealed).chain(in_flight)
    }

    /// The value of a key of a map or tree.
    pub fn get(&self, map: StructureId, key: &[u8]) -> Option<Fetch> {
        let structure = self.structures.get(&map)?;
        matches!(structure.kind, Kind::Map | Kind::Tree)
            .then(|| structure.find(key))
            .flatten()
            .map(|location| self.fetch(location))
    }

    /// The entry at a position of a log or queue.
    pub fn read(&self, structure: StructureId, position: u64) -> Option<Fetch> {
        let location = self.structures.get(&structure)?.find_position(position)?;
        Some(self.fetch(location))
    }

    /// Entries of a tree in order, at most `limit`.
    pub fn range(
        &self,
        tree: StructureId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
    ) -> Vec<(Box<[u8]>, Fetch)> {
        let Some(Body::Tree(entries)) = self.structures.get(&tree).map(|it| &it.body) else {
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
            .map(|(key, &location)| (key.clone(), self.fetch(location)))
            .collect()
    }

    /// The keys of a map in order. Sorts: not for the data path.
    pub fn keys(&self, map: StructureId) -> Vec<Box<[u8]>> {
        match self.structures.get(&map).map(|it| &it.body) {
            Some(Body::Map(map)) => map.sorted_keys().into_iter().map(Into::into).collect(),
            Some(Body::Tree(tree)) => tree.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Hands out the next entry of a queue. It comes again after a crash, or [`Engine::give_up`], until it is
    /// acknowledged.
    pub fn pop(&mut self, queue: StructureId) -> Option<(u64, Fetch)> {
        let (position, location) = self.structures.get_mut(&queue)?.pop()?;
        Some((position, self.fetch(location)))
    }

    /// Gives an entry that was handed out back to its queue; false if it is not there any more.
    pub fn give_up(&mut self, queue: StructureId, position: u64) -> bool {
        let structure = self.structures.get_mut(&queue);
        structure.is_some_and(|structure| structure.give_up(position))
    }

    /// The first and the next position of a log or queue.
    pub fn positions(&self, structure: StructureId) -> Option<core::ops::Range<u64>> {
        let it = self.structures.get(&structure)?;
        Some(it.floor()..it.next)
    }

    /// Entries of a structure.
    pub fn len(&self, structure: StructureId) -> u64 {
        self.structures.get(&structure).map_or(0, Structure::len)
    }

    fn fetch(&self, location: Location) -> Fetch {
        if location.length == 0 {
            return Fetch::Ready(Vec::new());
        }
        let on_its_way = self.draft.iter().find_map(|draft| draft.read(location));
        let on_its_way = on_its_way.or_else(|| {
            let sealed = self
                .sealed
                .iter()
                .map(|it| ((it.slot, it.start, it.end), &it.buffer));
            let written = self.in_flight.iter().map(|it| (it.record.place, &*it.buffer));
            let mut all = sealed.chain(written);
            all.find_map(|(place, buffer)| read_written(&self.layout, place, buffer.bytes(), location))
        });
        let generation = self.space.generation_of(location.slot);
        on_its_way.map_or_else(
            || Fetch::Read(Found::new(self.layout, location, generation)),
            Fetch::Ready,
        )
    }
}

/// The key of an operation.
enum OpKey<'a> {
    New,
    Position(u64),
    Bytes(&'a [u8]),
}

fn parts_of<'a>(op: &Op<'a>) -> (EntryKind, StructureId, OpKey<'a>, &'a [u8]) {
    match *op {
        Op::Append { log, data } => (EntryKind::Append, log, OpKey::New, data),
        Op::Trim { log, floor } => (EntryKind::Trim, log, OpKey::Position(floor), &[]),
        Op::Push { queue, data } => (EntryKind::Push, queue, OpKey::New, data),
        Op::Acknowledge { queue, position } => {
            (EntryKind::Acknowledge, queue, OpKey::Position(position), &[])
        }
        Op::Put { map, key, data } => (EntryKind::Put, map, OpKey::Bytes(key), data),
        Op::Remove { map, key } => (EntryKind::Remove, map, OpKey::Bytes(key), &[]),
    }
}

pub(crate) fn entry_of<'a>(
    kind: EntryKind,
    structure: StructureId,
    key: &'a Key,
    value: &'a [u8],
    scratch: &'a mut [u8; 8],
) -> Entry<'a> {
    let key = match key {
        Key::Position(position) => {
            *scratch = position.to_le_bytes();
            &scratch[..]
        }
        Key::Bytes(bytes) => bytes,
    };
    Entry {
        kind,
        structure,
        key,
        value,
    }
}

fn describe<'a>(id: StructureId, name: &'a str, description: &'a [u8; DESCRIPTION_BYTES]) -> Entry<'a> {
    Entry {
        kind: EntryKind::Describe,
        structure: id,
        key: name.as_bytes(),
        value: description,
    }
}
