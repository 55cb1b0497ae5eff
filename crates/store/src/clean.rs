//! Reclaiming space: the oldest segment's live entries are written again at the log's end, a little at a time.
//!
//! Rule 2 of the format is kept here: an entry is moved only while nothing that concerns it waits to become durable.

use crate::checkpoint::Checkpoints;
use crate::draft::{Effect, gather};
use crate::entry::{EntryKind, StructureId};
use crate::index::{Key, Location};
use crate::log::{Access, CleanStep, Log, SubmitError, Ticket, TicketState, entry_of};
use crate::scan::{Next, Segment};
use crate::space::Used;
use base::MediaError;
use std::collections::{BTreeSet, VecDeque};

/// Bytes of entries that are moved by one record: what users' records may wait behind.
const MOVE_BYTES: usize = 64 << 10;

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
    /// A segment could not be read: cleaning has ended.
    is_stuck: bool,
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
        &self,
        log: &mut Log,
        checkpoints: &mut Checkpoints,
        bytes: usize,
        access: Access,
    ) -> Result<(), SubmitError> {
        while !log.has_room(bytes) {
            log.end_draft()?;
            while !log.open_draft(bytes, access) {
                if self.can_gain_space(log, checkpoints) {
                    return Err(SubmitError::Busy);
                }
                if !checkpoints.release(log) {
                    // A checkpoint whose piece is under way gives its segments back when the piece is written.
                    return Err(if checkpoints.is_releasing() {
                        SubmitError::Busy
                    } else {
                        SubmitError::NoSpace
                    });
                }
            }
        }
        Ok(())
    }

    /// True if cleaning is under way, or would free segments.
    fn can_gain_space(&self, log: &Log, checkpoints: &Checkpoints) -> bool {
        let is_under_way = !matches!(self.phase, Phase::Idle) || log.space.is_awaiting();
        is_under_way || checkpoints.is_releasing() || (!self.is_stuck && is_worthwhile(log))
    }

    /// True if a step would do something now, or after the next completion.
    pub(crate) fn is_wanted(&self, log: &Log, checkpoints: &Checkpoints) -> bool {
        let is_idle = matches!(self.phase, Phase::Idle);
        !self.is_stuck && (!is_idle || should_clean(log, checkpoints))
    }

    /// Does a bounded piece of cleaning, if the area needs any.
    pub(crate) fn step(&mut self, log: &mut Log, checkpoints: &mut Checkpoints) -> CleanStep {
        if self.is_stuck {
            return CleanStep::Idle;
        }
        match core::mem::take(&mut self.phase) {
            Phase::Idle => self.begin(log, checkpoints),
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
                self.begin(log, checkpoints)
            }
            Phase::Publishing(ticket) => {
                self.phase = Phase::Publishing(ticket);
                CleanStep::Wait
            }
        }
    }

    fn begin(&mut self, log: &mut Log, checkpoints: &mut Checkpoints) -> CleanStep {
        let Some(used) = log.space.oldest().filter(|_| should_clean(log, checkpoints)) else {
            return CleanStep::Idle;
        };
        if log.durable().0 < used.last {
            log.want(Ticket(used.last));
            return CleanStep::Wait;
        }
        if log.usage.live_in(used.slot) == 0 {
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
    pub(crate) fn read(&mut self, log: &Log, bytes: Vec<u8>, result: Result<(), MediaError>) {
        let Phase::Reading(used) = core::mem::take(&mut self.phase) else {
            panic!("nothing was to be read");
        };
        match result.ok().and_then(|()| candidates(log, &used, &bytes)) {
            Some(left) => {
                let ticket = Ticket::default();
                self.phase = Phase::Moving { bytes, left, ticket };
            }
            None => self.is_stuck = true,
        }
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
                Key::Bytes(key) => it.find(key),
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
            return self.retire(log, checkpoints);
        }
        self.phase = Phase::Moving { bytes, left, ticket };
        CleanStep::Wait
    }

    /// The oldest segment has nothing that is live.
    fn retire(&mut self, log: &mut Log, checkpoints: &mut Checkpoints) -> CleanStep {
        log.space.retire();
        log.stats.cleaned += 1;
        self.publish(log, checkpoints)
    }

    fn publish(&mut self, log: &mut Log, checkpoints: &mut Checkpoints) -> CleanStep {
        // An empty record, if no other one is about to be written: it tells the tail.
        let room = self.make_room(log, checkpoints, 0, Access::Cleaner);
        self.phase = Phase::Publishing(room.ok().map(|()| log.force_record()));
        CleanStep::Wait
    }
}

/// True if a sixteenth of the segments in use is dead.
fn is_worthwhile(log: &Log) -> bool {
    let used = log.space.used_bytes();
    used - used / 16 > log.usage.all.live
}

fn should_clean(log: &Log, checkpoints: &Checkpoints) -> bool {
    let low = log.layout.reserve_segments() + (log.layout.segments / 16).max(2);
    log.space.free_count() < low + checkpoints.segments_wanted(log) && is_worthwhile(log)
}

/// The entries of a segment that may be live; `None` if the segment is damaged.
fn candidates(log: &Log, used: &Used, bytes: &[u8]) -> Option<VecDeque<Candidate>> {
    let segment = Segment {
        layout: &log.layout,
        slot: used.slot,
        generation: used.generation,
        bytes,
    };
    let mut found = VecDeque::new();
    let mut live_bytes = 0;
    let mut at = log.layout.block_bytes;
    while at < used.end {
        let Next::Record { header, end } = segment.next(at) else {
            return None;
        };
        let makes_sense = segment.entries(at, &header, |entry, location| {
            if !entry.kind.adds() {
                return;
            }
            let live = log.structures.get(&entry.structure);
            if live.and_then(|it| it.find(entry.key)) == Some(location) {
                live_bytes += entry.bytes() as u64;
                found.push_back(Candidate {
                    kind: entry.kind,
                    structure: entry.structure,
                    key: entry.owned_key(),
                    location,
                });
            }
        });
        if !makes_sense {
            return None;
        }
        at = end;
    }
    debug_assert_eq!(live_bytes, log.usage.live_in(used.slot), "as it was counted");
    Some(found)
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
