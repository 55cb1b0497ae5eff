//! Reclaiming space: the oldest segment's live entries are written again at the log's end, a little at a time.
//!
//! Rule 2 of the format is kept here: an entry is moved only while nothing that concerns it waits to become durable.

use crate::checkpoint::Checkpoints;
use crate::draft::{Effect, gather};
use crate::entry::{Entry, EntryKind, StructureId};
use crate::index::{Key, Location};
use crate::log::{Access, CleanStep, Log, SubmitError, Ticket, TicketState, entry_of};
use crate::scan::{Next, Piece, Segment};
use crate::space::Used;
use base::MediaError;
use std::collections::{BTreeSet, VecDeque};

/// Bytes of entries that are moved by one record: what users' records may wait behind.
const MOVE_BYTES: usize = 64 << 10;

/// Records after which a segment that could not be read is tried again, at most.
const READ_AGAIN_MAX: u64 = 1024;

/// Rounds for a batch that gives room, at most. Where an entry takes a small part of a segment, as in real areas, the first one finds the
/// place.
const ROUNDS_MAX: u32 = 4;

/// An entry of the segment that is being cleaned.
struct Candidate {
    kind: EntryKind,
    structure: StructureId,
    key: Key,
    location: Location,
}

/// The cleaner's state.
#[derive(Default)]
pub(crate) struct Cleaning {
    phase: Phase,
    trouble: Option<Trouble>,
    /// Segments cleaned since a user last had room. After a whole round there is none to gain: entries lie in segments with
    /// gaps, where they leave no room for each other.
    fruitless: u32,
    /// Rounds that it goes more, for a batch that gives room.
    insisted: u32,
}

/// Why the oldest segment is left for now.
enum Trouble {
    /// It could not be read. It is tried again when this record is durable, or somebody lacks room; the next time after twice as
    /// many records.
    Unread { until: u64, records: u64 },
    /// The segment of this generation gave something else than was written. It is read once more at once.
    Wrong(u64),
    /// It was so again. Live entries of it are damaged: nothing is gained by moving the others. It had so many live bytes then.
    Damaged {
        generation: u64,
        live: u64,
        offset: u64,
        /// As of one that could not be read.
        until: u64,
        records: u64,
    },
}

#[derive(Default)]
enum Phase {
    #[default]
    Idle,
    Reading(Used),
    Moving {
        bytes: Vec<u8>,
        left: VecDeque<Candidate>,
        /// Of the moves so far.
        ticket: Ticket,
    },
    /// The segment is retired; its slot is free when a record that says so is durable.
    Publishing(Option<Ticket>),
}

impl Cleaning {
    /// Sees to it that there is a draft with room for `bytes` of entries.
    pub(crate) fn make_room(
        &mut self,
        log: &mut Log,
        checkpoints: &mut Checkpoints,
        bytes: usize,
        access: Access,
    ) -> Result<(), SubmitError> {
        loop {
            if !log.is_reserved(access) {
                if log.has_room(bytes) {
                    if access != Access::Cleaner {
                        self.served();
                    }
                    return Ok(());
                }
                log.end_draft()?;
                if log.open_draft(bytes, access) {
                    continue;
                }
            }
            if self.can_gain_space(log, checkpoints) {
                return Err(SubmitError::Busy);
            }
            if !checkpoints.release(log) {
                // A checkpoint whose piece is under way gives its segments back when the piece is written.
                return Err(match &mut self.trouble {
                    _ if checkpoints.is_releasing() => SubmitError::Busy,
                    // Where nothing is taken, refusals count as records do.
                    Some(Trouble::Damaged { offset, until, .. }) => {
                        *until = until.saturating_sub(1);
                        SubmitError::Damaged { offset: *offset }
                    }
                    Some(Trouble::Unread { until, .. }) => {
                        *until = 0;
                        SubmitError::NoSpace
                    }
                    Some(Trouble::Wrong(_)) | None => SubmitError::NoSpace,
                });
            }
        }
    }

    /// True if cleaning is under way, or would free segments.
    pub(crate) fn can_gain_space(&self, log: &Log, checkpoints: &Checkpoints) -> bool {
        let is_under_way = !matches!(self.phase, Phase::Idle) || log.space.is_awaiting();
        is_under_way || checkpoints.is_releasing() || (!self.is_stuck(log) && is_worthwhile(log))
    }

    /// The slot of the oldest segment, if damaged entries in it keep all space.
    pub(crate) fn pinned(&self, log: &Log) -> Option<u32> {
        let is_damaged = matches!(self.trouble, Some(Trouble::Damaged { .. })) && self.is_stuck(log);
        log.space.oldest().filter(|_| is_damaged).map(|used| used.slot)
    }

    /// A user had room.
    #[inline]
    pub(crate) fn served(&mut self) {
        self.fruitless = 0;
        self.insisted = 0;
    }

    /// A batch that gives room has none. True if the cleaner goes round once more before the batch is refused. The rounds before were for
    /// batches that need more, and each round puts the entries together in another way.
    pub(crate) fn insist(&mut self) -> bool {
        self.fruitless = 0;
        self.insisted = (self.insisted + 1) % (ROUNDS_MAX + 1);
        self.insisted > 0
    }

    /// True if the oldest segment is left as it is.
    fn is_stuck(&self, log: &Log) -> bool {
        if self.fruitless > log.layout.segments {
            return true;
        }
        match self.trouble {
            None => false,
            Some(Trouble::Wrong(_)) => false,
            Some(Trouble::Unread { until, .. }) => log.durable().0 < until,
            Some(Trouble::Damaged {
                generation,
                live,
                until,
                ..
            }) => {
                let is_same =
                    |used: Used| used.generation == generation && log.usage.live_in(used.slot) == live;
                log.durable().0 < until && log.space.oldest().is_some_and(is_same)
            }
        }
    }

    /// True between two segments.
    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// True if a step would do something now, or after the next completion. None begins while it is `held`.
    pub(crate) fn is_wanted(&self, log: &Log, checkpoints: &Checkpoints, held: bool) -> bool {
        !self.is_at_rest() || (!held && !self.is_stuck(log) && should_clean(log, checkpoints))
    }

    /// Does a bounded piece of cleaning, if the area needs any.
    pub(crate) fn step(&mut self, log: &mut Log, checkpoints: &mut Checkpoints, held: bool) -> CleanStep {
        match core::mem::take(&mut self.phase) {
            Phase::Idle => self.begin(log, checkpoints, held),
            Phase::Reading(used) => {
                self.phase = Phase::Reading(used);
                CleanStep::Wait
            }
            Phase::Moving { bytes, left, ticket } => {
                if log.state(ticket) != TicketState::Durable {
                    self.phase = Phase::Moving { bytes, left, ticket };
                    return CleanStep::Wait;
                }
                self.move_some(log, checkpoints, bytes, left)
            }
            Phase::Publishing(None) => self.publish(log, checkpoints),
            Phase::Publishing(Some(ticket)) if log.state(ticket) == TicketState::Durable => {
                self.begin(log, checkpoints, held)
            }
            Phase::Publishing(ticket) => {
                self.phase = Phase::Publishing(ticket);
                CleanStep::Wait
            }
        }
    }

    fn begin(&mut self, log: &mut Log, checkpoints: &mut Checkpoints, held: bool) -> CleanStep {
        let is_wanted = !held && !self.is_stuck(log) && should_clean(log, checkpoints);
        let Some(used) = log.space.oldest().filter(|_| is_wanted) else {
            return CleanStep::Idle;
        };
        if log.durable().0 < used.last {
            log.want(Ticket(used.last));
            return CleanStep::Wait;
        }
        if log.usage.live_in(used.slot) == 0 && !log.snapshots.need(used.slot) {
            log.stats.cleaned_unread += 1;
            return self.retire(log, checkpoints);
        }
        self.phase = Phase::Reading(used);
        CleanStep::Read {
            offset: log.layout.segment_offset(used.slot),
            length: used.end as usize,
        }
    }

    /// The data that [`CleanStep::Read`] asked for.
    pub(crate) fn read(&mut self, log: &mut Log, bytes: Vec<u8>, result: Result<(), MediaError>) {
        let Phase::Reading(used) = core::mem::take(&mut self.phase) else {
            panic!("nothing was to be read");
        };
        if result.is_err() {
            let records = match self.trouble {
                Some(Trouble::Unread { records, .. }) => (2 * records).min(READ_AGAIN_MAX),
                _ => 1,
            };
            let until = log.durable().0 + records;
            self.trouble = Some(Trouble::Unread { until, records });
            log.stats.read_errors += 1;
            return;
        }
        let found = candidates(log, &used, &bytes);
        let live = log.usage.live_in(used.slot);
        if found.live_bytes != live {
            let within = found.damage.expect("what is intact was counted");
            let offset = log.layout.segment_offset(used.slot) + u64::from(within);
            let records = match self.trouble {
                Some(Trouble::Wrong(generation)) if generation == used.generation => 1,
                Some(Trouble::Damaged {
                    generation, records, ..
                }) if generation == used.generation => (2 * records).min(READ_AGAIN_MAX),
                _ => {
                    self.trouble = Some(Trouble::Wrong(used.generation));
                    return;
                }
            };
            self.trouble = Some(Trouble::Damaged {
                generation: used.generation,
                live,
                offset,
                until: log.durable().0 + records,
                records,
            });
            log.stats.damaged_at = Some(offset);
            return;
        }
        if let Some(Trouble::Damaged { .. }) = self.trouble.take() {
            log.stats.damaged_at = None;
        }
        self.phase = Phase::Moving {
            bytes,
            left: found.candidates,
            ticket: Ticket::default(),
        };
    }

    /// Moves up to [`MOVE_BYTES`]; when nothing is left the segment is retired.
    fn move_some(
        &mut self,
        log: &mut Log,
        checkpoints: &mut Checkpoints,
        bytes: Vec<u8>,
        mut left: VecDeque<Candidate>,
    ) -> CleanStep {
        let waiting = concerned(log);
        let mut ticket = Ticket::default();
        let mut moved = 0;
        for _ in 0..left.len() {
            if moved >= MOVE_BYTES {
                break;
            }
            let candidate = left.pop_front().expect("counted");
            if waiting.contains(&(candidate.structure, None))
                || waiting.contains(&(candidate.structure, Some(candidate.key.clone())))
            {
                left.push_back(candidate);
                continue;
            }
            let live = log.structures.get(&candidate.structure);
            let live = live.and_then(|it| match &candidate.key {
                Key::Position(position) => it.find_position(*position),
                Key::Bytes(key) => it.entry_of(key),
            });
            if live != Some(candidate.location) {
                continue;
            }
            let value = gather(&log.layout, &bytes, 0, candidate.location);
            let mut scratch = [0; 8];
            let key = candidate.key.clone();
            let entry = entry_of(candidate.kind, candidate.structure, &key, &value, &mut scratch);
            if self
                .make_room(log, checkpoints, entry.bytes(), Access::Cleaner)
                .is_err()
            {
                left.push_front(candidate);
                break;
            }
            ticket = log.move_entry(&entry, candidate.key, candidate.location);
            moved += entry.bytes();
        }
        if left.is_empty() && moved == 0 {
            if let Some(used) = log.space.oldest() {
                log.snapshots.rescue(&log.layout, &used, &bytes);
            }
            return self.retire(log, checkpoints);
        }
        self.phase = Phase::Moving { bytes, left, ticket };
        CleanStep::Wait
    }

    /// The oldest segment has nothing that is live.
    fn retire(&mut self, log: &mut Log, checkpoints: &mut Checkpoints) -> CleanStep {
        log.space.retire();
        log.stats.cleaned += 1;
        self.fruitless += 1;
        log.stats.damaged_at = None;
        self.trouble = None;
        self.publish(log, checkpoints)
    }

    fn publish(&mut self, log: &mut Log, checkpoints: &mut Checkpoints) -> CleanStep {
        // An empty record, if no other one is about to be written: it tells the tail.
        let room = self.make_room(log, checkpoints, 0, Access::Cleaner);
        self.phase = Phase::Publishing(room.ok().map(|()| log.force_record()));
        CleanStep::Wait
    }
}

/// True if a sixteenth of the segments in use is dead, and one of them is not the newest.
fn is_worthwhile(log: &Log) -> bool {
    if log.space.oldest().is_none() {
        return false;
    }
    let used = log.space.used_bytes();
    used - used / 16 > log.usage.all.live
}

fn should_clean(log: &Log, checkpoints: &Checkpoints) -> bool {
    let followed = log.space.kept_for_followers(log.usage.all.live);
    let low = log.reserve(Access::User) + (log.layout.segments / 16).max(2) + followed;
    log.space.free_count() < low + checkpoints.segments_wanted(log) && is_worthwhile(log)
}

/// Live entries of a segment.
#[derive(Default)]
struct Candidates {
    candidates: VecDeque<Candidate>,
    live_bytes: u64,
    /// The first damaged place, in the segment.
    damage: Option<u32>,
}

impl Candidates {
    fn take(&mut self, log: &Log, entry: &Entry<'_>, location: Location) {
        let live = log.structures.get(&entry.structure);
        // A removal is live while tables may have an older value.
        let may_live = entry.kind.adds() || entry.kind == EntryKind::Remove;
        if may_live && live.and_then(|it| it.entry_of(entry.key)) == Some(location) {
            self.live_bytes += entry.bytes() as u64;
            self.candidates.push_back(Candidate {
                kind: entry.kind,
                structure: entry.structure,
                key: Key::of(entry),
                location,
            });
        }
    }
}

/// The live entries of a segment that can be read.
fn candidates(log: &Log, used: &Used, bytes: &[u8]) -> Candidates {
    let segment = Segment {
        layout: &log.layout,
        slot: used.slot,
        generation: used.generation,
        bytes,
    };
    let mut found = Candidates::default();
    let mut at = log.layout.block_bytes;
    while at < used.end {
        let place = match segment.next(at) {
            Next::Record { header, end } => {
                if !segment.entries(at, &header, |entry, location| found.take(log, entry, location)) {
                    found.damage = found.damage.or(Some(at));
                }
                at = end;
                continue;
            }
            Next::Damaged(within) => within,
            Next::Torn | Next::End => at,
        };
        found.damage = found.damage.or(Some(place));
        at = match Piece::at(&segment, at) {
            Some(piece) => {
                segment.readable_entries(&piece, |entry, location, is_damaged| {
                    if !is_damaged {
                        found.take(log, entry, location);
                    }
                });
                piece.end
            }
            None => at + log.layout.block_bytes,
        };
    }
    found
}

/// Subjects of the waiting operations: a key or position of a structure, or, of a trim, all of it.
fn concerned(log: &Log) -> BTreeSet<(StructureId, Option<Key>)> {
    let mut concerned = BTreeSet::new();
    for pending in log.unapplied() {
        let key = match pending.effect {
            Effect::Apply(EntryKind::Trim, _) => None,
            _ => Some(pending.key.clone()),
        };
        concerned.insert((pending.structure, key));
    }
    concerned
}
