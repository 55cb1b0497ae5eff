//! The log: entries are gathered in a draft, sealed to a record, written, and applied when the record is durable.

use crate::buffer::Buffer;
use crate::draft::{Draft, Effect, Pending, Place, Sealed, read_written};
use crate::entry::{
    DESCRIPTION_BYTES, Description, Durability, Entry, EntryKind, Kind, NAME_BYTES_MAX, Op, StructureId,
    describe, entry_bytes, tables_entry,
};
use crate::fetch::{Fetch, Found};
use crate::format::{RECORD_HEADER_BYTES, SegmentHeader};
use crate::index::{Frozen, Key, Location, Slot, Structure, Tally, Usage};
use crate::layout::{CLEANER_SEGMENTS, Layout};
use crate::limits::{Limits, Options};
use crate::snapshot::Snapshots;
use crate::space::{Space, Start};
use crate::table::filter::{self, Present};
use crate::table::levels::{Levels, List};
use crate::version::Moves;
use base::MediaError;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use thiserror::Error;

/// Segments at most whose headers a cut may undo: those of writes under way.
pub(crate) const GENERATIONS_LOST_MAX: u64 = 128;
/// Segments that a job has at most, whose headers a cut may undo, too.
pub(crate) const JOB_SEGMENTS_MAX: usize = 64;
/// Records that wait for a write at most; beyond, submitters do.
const SEALED_MAX: usize = 4;

/// The record of an operation: it is durable when [`crate::Engine::durable`] has reached it.
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
    /// The area is full, and cleaning cannot go on: the oldest segment has live entries that are damaged. The area takes changes
    /// that remove, trim or overwrite them, and then goes on.
    #[error(
        "the area is full, and damage at byte {offset} keeps its space: remove, trim or overwrite the entries there, which \
         `switchyard store repair` names"
    )]
    Damaged {
        /// Of the first damaged sector, in the area.
        offset: u64,
    },
    /// The area has no room for more live data.
    #[error("the area is full: 80 % of it are live")]
    NoSpace,
    /// The index has reached its limit.
    #[error("the index has reached its limit of memory")]
    IndexFull,
    /// A batch must fit one record.
    #[error("a batch of this area has {bytes_max} bytes at most, with its keys")]
    TooLong {
        /// [`crate::Engine::batch_bytes_max`].
        bytes_max: usize,
    },
    /// A key is longer than [`KEY_BYTES_MAX`], or a name than [`NAME_BYTES_MAX`].
    #[error("the key is too long")]
    KeyTooLong,
    /// No such structure, or it is of another kind.
    #[error("the structure was dropped, or is of another kind")]
    NoStructure,
    /// Each snapshot costs something with each change.
    #[error("an area has 64 snapshots at most: end one first")]
    TooManySnapshots,
    /// A structure of this name is there, and it is another one.
    #[error("the name belongs to another structure")]
    NameTaken,
    /// All descriptions together must fit a record.
    #[error("no more structures fit an area of this layout")]
    TooManyStructures,
}

/// A write to be made: durable, the whole of it, before [`crate::Engine::written`] is told of success.
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

/// The cleaner's next need. After each step [`crate::Engine::next_write`] may have work.
#[derive(Debug)]
pub enum CleanStep {
    /// Nothing, until more is written.
    Idle,
    /// Read this and call [`crate::Engine::clean_read`].
    Read {
        /// In bytes of the area.
        offset: u64,
        /// Bytes.
        length: usize,
    },
    /// A completion: call again after it.
    Wait,
    /// Make this write of a checkpoint, which nobody waits for, and call [`crate::Engine::written`].
    Write(Write),
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
    /// Times that maps and trees left memory.
    pub flushes: u64,
    /// Merges of tables.
    pub merges: u64,
    /// Jobs of either kind that failed: a medium fails, or a table is damaged.
    pub jobs_failed: u64,
    /// Tables, each of a segment.
    pub tables: u32,
    /// Those of them that merges have found damaged: they stay, and take no part in merges.
    pub tables_damaged: u32,
    /// Place of the first damage in these, in bytes of the area.
    pub table_damaged_at: Option<u64>,
    /// Snapshots that are kept.
    pub snapshots: u32,
    /// Memory that they alone keep, estimated.
    pub snapshot_bytes: u64,
    /// Snapshots that have ended because they would have kept too much.
    pub snapshots_ended: u64,
    /// Reads of the cleaner that failed.
    pub read_errors: u64,
    /// Damage that keeps the space of the oldest segment, and so all space, from being reclaimed: its byte in the area. It
    /// ends when the damaged entries are overwritten, removed or trimmed.
    pub damaged_at: Option<u64>,
}

/// Purpose of the room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    User,
    /// Of a user whose changes add nothing: by them a full area gets room.
    Relief,
    Cleaner,
}

/// The log of an open area, with the structures that it makes.
pub(crate) struct Log {
    pub(crate) layout: Layout,
    epoch: u64,
    options: Options,
    seed: u64,
    pub(crate) space: Space,
    pub(crate) structures: BTreeMap<StructureId, Structure>,
    pub(crate) next_structure: u32,
    /// The tables, below what is in memory.
    pub(crate) levels: Arc<Levels>,
    /// The list of tables that records have from now on; nothing before the first table.
    list: Vec<u8>,
    /// Entries on their way to tables, above them.
    pub(crate) frozen: Option<Arc<Frozen>>,
    /// Keys that are in memory, and not frozen.
    pub(crate) present: Present,
    pub(crate) limits: Limits,
    pub(crate) usage: Tally,
    /// For versions that were told.
    pub(crate) moves: Moves,
    pub(crate) snapshots: Snapshots,
    /// Values of some keys in memory are in the log alone, though memory should have them.
    pub(crate) lacks_values: bool,
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
    /// Bytes of records since the newest checkpoint began.
    pub(crate) since: u64,
    /// Behind the last durable record.
    pub(crate) tip: Start,
    pub(crate) stats: Stats,
}

/// Result of recovery: the parts of a log.
pub(crate) struct Parts {
    pub layout: Layout,
    pub epoch: u64,
    pub seed: u64,
    pub space: Space,
    pub structures: BTreeMap<StructureId, Structure>,
    pub next_structure: u32,
    pub levels: Levels,
    pub usage: Tally,
    pub last: u64,
    pub since: u64,
    pub tip: Start,
}

impl Log {
    pub(crate) fn new(parts: Parts, options: Options) -> Self {
        let limits = Limits::new(&parts.layout, options.spill_bytes());
        let lost_max = options.writes_in_flight_max + SEALED_MAX + 1 + JOB_SEGMENTS_MAX;
        assert!(options.writes_in_flight_max > 0 && lost_max as u64 <= GENERATIONS_LOST_MAX);
        Self {
            layout: parts.layout,
            epoch: parts.epoch,
            options,
            seed: parts.seed,
            space: parts.space,
            structures: parts.structures,
            next_structure: parts.next_structure,
            list: match parts.levels.is_unused() {
                true => Vec::new(),
                false => parts.levels.emit(),
            },
            levels: Arc::new(parts.levels),
            frozen: None,
            present: Present::new(limits.keys()),
            limits,
            usage: parts.usage,
            moves: Moves::default(),
            snapshots: Snapshots::new(options.snapshot_bytes_max()),
            lacks_values: false,
            pending_usage: Usage::default(),
            draft: None,
            sealed: VecDeque::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            next_number: parts.last + 1,
            durable: parts.last,
            wanted: 0,
            failed: None,
            since: parts.since,
            tip: parts.tip,
            stats: Stats::default(),
        }
    }

    /// State of a ticket.
    pub(crate) fn state(&self, ticket: Ticket) -> TicketState {
        match self.failed {
            _ if ticket.0 <= self.durable => TicketState::Durable,
            Some(failed) if ticket.0 >= failed => TicketState::Failed,
            _ => TicketState::Waiting,
        }
    }

    pub(crate) fn index_bytes_max(&self) -> u64 {
        self.options.index_bytes_max
    }

    /// True when a write has failed.
    pub(crate) fn is_latched(&self) -> bool {
        self.failed.is_some()
    }

    /// The first record whose write failed.
    pub(crate) fn failed(&self) -> Option<u64> {
        self.failed
    }

    /// The records up to this one are to be written.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Everything up to this ticket is durable.
    pub(crate) fn durable(&self) -> Ticket {
        Ticket(self.durable)
    }

    /// The newest ticket given out.
    pub(crate) fn newest(&self) -> Ticket {
        Ticket(self.next_number - 1)
    }

    /// Somebody waits for `ticket`: its record, if it is lazy, is to be written now.
    pub(crate) fn want(&mut self, ticket: Ticket) {
        self.wanted = self.wanted.max(ticket.0);
    }

    /// The record that [`crate::Engine::next_write`] would write, if it has one.
    pub(crate) fn next_ticket(&self) -> Option<Ticket> {
        if self.failed.is_some() || self.in_flight.len() >= self.options.writes_in_flight_max {
            return None;
        }
        let sealed = self.sealed.front().map(|sealed| sealed.number);
        let draft = self.draft.as_ref().map(|draft| draft.number);
        sealed
            .or(draft.filter(|&number| number <= self.wanted))
            .map(Ticket)
    }

    /// The bytes that a new structure takes in a record.
    pub(crate) fn admit_structure(&self, name: &str) -> Result<usize, SubmitError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(SubmitError::KeyTooLong);
        }
        let bytes = entry_bytes(name.len(), DESCRIPTION_BYTES);
        if self.prologue_bytes() + bytes > self.batch_bytes_max() {
            return Err(SubmitError::TooManyStructures);
        }
        self.admit_any()?;
        Ok(bytes)
    }

    /// Makes a structure that was admitted and has room.
    pub(crate) fn create(&mut self, name: &str, kind: Kind, durability: Durability) -> (StructureId, Ticket) {
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
        (id, ticket)
    }

    /// Makes a structure as it was in another area, for which there is room.
    pub(crate) fn restore_structure(&mut self, id: StructureId, structure: &Structure) {
        let description = structure.describe();
        let seed = self.seed ^ u64::from(id.0);
        let fresh = Structure::new(&structure.name, &description, seed);
        self.structures.insert(id, fresh);
        self.next_structure = self.next_structure.max(id.0.saturating_add(1));
        let draft = self.draft.as_mut().expect("room was made");
        draft.push(&describe(id, &structure.name, &description.emit()));
    }

    /// Writes an entry down as it was in another area. There is room for it.
    pub(crate) fn restore(&mut self, entry: &Entry<'_>, key: Key) {
        let structure = &self.structures[&entry.structure];
        let draft = self.draft.as_mut().expect("room was made");
        let slot = draft.push(entry).into();
        let mut cost = Usage::default();
        cost.add(structure.kind, key.bytes(), &slot);
        self.pending_usage += cost;
        draft.pending.push(Pending {
            effect: Effect::Apply(entry.kind, cost),
            structure: entry.structure,
            key,
            slot,
        });
    }

    /// Drops a structure, for which there is room.
    pub(crate) fn drop_structure(&mut self, id: StructureId) -> Ticket {
        let structure = self.structures.remove(&id).expect("the caller has seen it");
        self.snapshots.dropped(id, &structure);
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
        ticket
    }

    /// Takes a batch in that was admitted and has room.
    #[inline]
    pub(crate) fn submit(&mut self, ops: &[Op<'_>]) -> Receipt {
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
        Receipt { ticket, positions }
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
        let at = draft.push(&entry_of(kind, id, &key, value, &mut [0; 8]));
        let holds = self.limits.holds_values() && kind == EntryKind::Put;
        let slot = Slot {
            at,
            value: (holds && !value.is_empty()).then(|| value.into()),
        };
        let durability = structure.durability;
        if durability == Durability::Lazy {
            let has_older = self.frozen.is_some() || !self.levels.is_unused();
            if let Key::Bytes(key) = &key {
                self.present.add_key(id, key);
            }
            self.snapshots.keep(id, structure, &key);
            structure.apply(kind, key, slot, has_older, &mut self.usage);
        } else {
            let mut cost = Usage::default();
            if kind.adds() {
                cost.add(structure.kind, key.bytes(), &slot);
            }
            self.pending_usage += cost;
            draft.pending.push(Pending {
                effect: Effect::Apply(kind, cost),
                structure: id,
                key,
                slot,
            });
        }
        durability
    }

    /// True if a list of tables of so many bytes, and the descriptions before it, fit a record.
    pub(crate) fn fits_list(&self, bytes: usize) -> bool {
        let described = self.prologue_bytes() - self.list_bytes();
        described + entry_bytes(0, bytes) <= self.batch_bytes_max()
    }

    /// Tables that a list can have, with some bounds of usual length.
    pub(crate) fn tables_listed_max(&self) -> u32 {
        let described = self.prologue_bytes() - self.list_bytes();
        List::tables_max(self.batch_bytes_max(), described)
    }

    /// Writes a list of tables down, for which there is room.
    pub(crate) fn list(&mut self, list: Vec<u8>) -> Ticket {
        let draft = self.draft.as_mut().expect("room was made");
        draft.push(&tables_entry(&list));
        self.list = list;
        let ticket = Ticket(draft.number);
        self.want(ticket);
        ticket
    }

    fn list_bytes(&self) -> usize {
        if self.list.is_empty() {
            0
        } else {
            entry_bytes(0, self.list.len())
        }
    }

    /// Bytes of live entries that the log may have.
    pub(crate) fn live_bytes_max(&self) -> u64 {
        let taken = self.levels.count() + self.limits.working;
        self.layout.live_bytes_max_without(taken)
    }

    /// Writes a live entry of `from` down again, for the cleaner.
    pub(crate) fn move_entry(&mut self, entry: &Entry<'_>, key: Key, from: Location) -> Ticket {
        let draft = self.draft.as_mut().expect("room was made");
        let slot = draft.push(entry).into();
        draft.pending.push(Pending {
            effect: Effect::Move(from),
            structure: entry.structure,
            key,
            slot,
        });
        self.stats.moved_bytes += entry.bytes() as u64;
        let ticket = Ticket(draft.number);
        self.want(ticket);
        ticket
    }

    /// Has the draft written, also if it is empty: it tells the tail.
    pub(crate) fn force_record(&mut self) -> Ticket {
        let ticket = Ticket(self.draft.as_ref().expect("room was made").number);
        self.want(ticket);
        ticket
    }

    /// Bytes of entries that a record takes at most.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        (self.layout.stream_of(self.layout.record_bytes_max) - RECORD_HEADER_BYTES) as usize
    }

    pub(crate) fn admit_any(&self) -> Result<(), SubmitError> {
        match self.failed {
            Some(_) => Err(SubmitError::Latched),
            None => Ok(()),
        }
    }

    /// Present usage with `adds`, and with what waits to become durable.
    pub(crate) fn with(&self, mut adds: Usage, has_pending: bool) -> Usage {
        adds += self.usage.all;
        if has_pending {
            adds += self.pending_usage;
        }
        adds
    }

    /// Place of the newest entry in memory of a key, or of a position: of its value, or of its removal.
    pub(crate) fn entry_of(&self, id: StructureId, key: &[u8]) -> Option<Location> {
        let own = self.structures.get(&id)?.entry_of(key);
        own.or_else(|| Some(self.frozen.as_ref()?.slot_of(id, key)?.at))
    }

    /// The newest entry in memory of a key.
    pub(crate) fn slot_of(&self, id: StructureId, key: &[u8]) -> Option<&Slot> {
        if self.present.knows_nothing() {
            return self.structures.get(&id)?.body.slot_of(key);
        }
        let hash = filter::hash_of(id, key);
        let own = match self.present.may_have(hash) {
            true => self.structures.get(&id)?.body.slot_of(key),
            false => None,
        };
        own.or_else(|| {
            let frozen = self.frozen.as_ref()?;
            frozen.present.may_have(hash).then(|| frozen.slot_of(id, key))?
        })
    }

    /// True if the draft has room for `bytes` of entries.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.room() >= bytes)
    }

    /// True while the cleaner has segments in use that users leave free: the rest of them is the cleaner's, too. Else users
    /// could fill them, and the cleaner would not end the segment that it cleans.
    #[inline]
    pub(crate) fn is_reserved(&self, access: Access) -> bool {
        self.space.free_count() < self.reserve(access)
    }

    /// Segments that are left free.
    #[inline]
    pub(crate) fn reserve(&self, access: Access) -> u32 {
        match access {
            Access::User => self.layout.reserve_segments() + self.limits.working,
            Access::Relief => CLEANER_SEGMENTS + self.limits.kept,
            Access::Cleaner => 0,
        }
    }

    /// Ends the draft, if there is one.
    pub(crate) fn end_draft(&mut self) -> Result<(), SubmitError> {
        if self.sealed.len() >= SEALED_MAX {
            return Err(SubmitError::Busy);
        }
        if self.draft.is_some() {
            self.seal();
        }
        Ok(())
    }

    /// Begins a record at the log's end, or in a new segment where it does not fit. False if there is no segment.
    pub(crate) fn open_draft(&mut self, bytes: usize, access: Access) -> bool {
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
            return true;
        }
        let reserve = self.reserve(access);
        let Some(taken) = self.space.take(reserve, number - 1) else {
            return false;
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
        if !self.list.is_empty() {
            draft.push(&tables_entry(&self.list));
        }
        self.draft = Some(draft);
        self.next_number += 1;
        true
    }

    fn prologue_bytes(&self) -> usize {
        let all = self.structures.values();
        let described: usize = all.map(|it| entry_bytes(it.name.len(), DESCRIPTION_BYTES)).sum();
        described + self.list_bytes()
    }

    /// Ends the draft: it waits for its write.
    fn seal(&mut self) {
        let draft = self.draft.take().expect("the caller has seen it");
        let sealed = draft.seal(self.durable, self.space.tail(), self.epoch);
        self.space.extend(sealed.end, sealed.number);
        self.sealed.push_back(sealed);
    }

    /// The next write to make, if there is one now. Writes may be done in any order.
    pub(crate) fn next_write(&mut self) -> Option<Write> {
        self.next_ticket()?;
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

    /// A write has ended: durable, or failed. True if it was a piece of a checkpoint.
    pub(crate) fn written(&mut self, write: Write, result: Result<(), MediaError>) -> bool {
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
            return true;
        }
        let mut all = self.in_flight.iter_mut();
        let written = all.find(|it| it.record.number == number);
        written.expect("a write ends once").done = result.is_ok();
        while self.in_flight.front().is_some_and(|front| front.done) {
            let front = self.in_flight.pop_front().expect("just seen");
            self.settle(front);
        }
        false
    }

    /// Writes under way may never end: nothing more becomes durable that somebody is told of.
    pub(crate) fn latch(&mut self) {
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
        self.since += u64::from(end - start);
        self.tip = Start {
            record: record.record.number,
            generation: self.space.generation_of(slot),
            end,
        };
        self.durable = record.record.number;
        self.stats.records += 1;
        self.stats.record_bytes += u64::from(end - start);
        let has_older = self.frozen.is_some() || !self.levels.is_unused();
        for pending in record.pending {
            let structure = self.structures.get_mut(&pending.structure);
            match pending.effect {
                Effect::Move(from) => {
                    let (to, usage) = (pending.slot.at, &mut self.usage);
                    let has_moved = structure.is_some_and(|it| it.relocate(&pending.key, from, to, usage));
                    if has_moved && matches!(pending.key, Key::Bytes(_)) {
                        let place = |at| self.space.place_of(at);
                        self.moves.note(place(from), place(to));
                    }
                }
                Effect::Apply(kind, cost) => {
                    self.pending_usage -= cost;
                    if let Some(structure) = structure {
                        if let Key::Bytes(key) = &pending.key {
                            self.present.add_key(pending.structure, key);
                        }
                        self.snapshots.keep(pending.structure, structure, &pending.key);
                        structure.apply(kind, pending.key, pending.slot, has_older, &mut self.usage);
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

    pub(crate) fn fetch(&self, location: Location) -> Fetch {
        if location.is_lost() {
            return Fetch::Lost;
        }
        if location.length == 0 {
            return Fetch::Ready(Arc::default());
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
            |value| Fetch::Ready(value.into()),
        )
    }
}

/// The key of an operation.
pub(crate) enum OpKey<'a> {
    New,
    Position(u64),
    Bytes(&'a [u8]),
}

impl OpKey<'_> {
    /// Bytes of it in an entry.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::New | Self::Position(_) => size_of::<u64>(),
            Self::Bytes(key) => key.len(),
        }
    }
}

pub(crate) fn parts_of<'a>(op: &Op<'a>) -> (EntryKind, StructureId, OpKey<'a>, &'a [u8]) {
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
