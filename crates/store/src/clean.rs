//! Reclaiming space: the oldest segment's live entries are written again at the log's end, a little at a time.
//!
//! Rule 2 of the format is kept here: an entry is moved only while nothing that concerns it waits to become durable.

use crate::draft::{Effect, gather};
use crate::engine::{Access, Engine, Ticket, TicketState, Write, entry_of};
use crate::entry::{EntryKind, StructureId};
use crate::index::{Key, Location};
use crate::scan::{Next, Segment};
use crate::space::Used;
use base::MediaError;
use std::collections::{BTreeSet, VecDeque};

/// Bytes of entries that are moved by one record: what users' records may wait behind.
const MOVE_BYTES: usize = 64 << 10;

/// The cleaner's next need. After each step [`Engine::next_write`] may have work.
#[derive(Debug)]
pub enum CleanStep {
    /// Nothing, until more is written.
    Idle,
    /// Read this and call [`Engine::clean_read`].
    Read {
        /// In bytes of the area.
        offset: u64,
        /// Bytes.
        length: usize,
    },
    /// A completion: call again after it.
    Wait,
    /// Make this write of a checkpoint, which nobody waits for, and call [`Engine::written`].
    Write(Write),
}

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
    pub stuck: Option<u64>,
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

impl Engine {
    /// True if cleaning is under way, or would free segments.
    pub(crate) fn can_gain_space(&self) -> bool {
        let is_under_way = !matches!(self.cleaning.phase, Phase::Idle) || self.space.is_awaiting();
        is_under_way || self.is_releasing() || (self.cleaning.stuck.is_none() && self.is_worthwhile())
    }

    /// True if a sixteenth of the segments in use is dead.
    fn is_worthwhile(&self) -> bool {
        let used = self.space.used_bytes();
        used - used / 16 > self.usage.all.live
    }

    fn should_clean(&self) -> bool {
        let low = self.layout.reserve_segments() + (self.layout.segments / 16).max(2);
        self.space.free_count() < low + self.checkpoint_wants() && self.is_worthwhile()
    }

    /// True if [`Engine::clean_step`] would do something now, or after the next completion.
    pub fn wants_cleaning(&self) -> bool {
        let is_idle = matches!(self.cleaning.phase, Phase::Idle);
        let is_cleaning = self.cleaning.stuck.is_none() && (!is_idle || self.should_clean());
        is_cleaning || self.wants_checkpoint()
    }

    /// The offset of the damage that keeps the cleaner from its work, if there is any.
    pub fn clean_damage(&self) -> Option<u64> {
        self.cleaning.stuck
    }

    /// Does a bounded piece of cleaning, or of a checkpoint, if the area needs any.
    pub fn clean_step(&mut self) -> CleanStep {
        if self.is_latched() {
            return CleanStep::Idle;
        }
        match self.reclaim() {
            step @ CleanStep::Read { .. } => step,
            CleanStep::Idle => self.checkpoint_step(),
            step => match self.checkpoint_step() {
                write @ CleanStep::Write(_) => write,
                _ => step,
            },
        }
    }

    fn reclaim(&mut self) -> CleanStep {
        if self.cleaning.stuck.is_some() {
            return CleanStep::Idle;
        }
        match core::mem::take(&mut self.cleaning.phase) {
            Phase::Idle => self.begin_cleaning(),
            Phase::Reading(used) => {
                self.cleaning.phase = Phase::Reading(used);
                CleanStep::Wait
            }
            Phase::Moving { bytes, left, ticket } => {
                if self.state(ticket) != TicketState::Durable {
                    self.cleaning.phase = Phase::Moving { bytes, left, ticket };
                    return CleanStep::Wait;
                }
                self.move_some(bytes, left)
            }
            Phase::Publishing(None) => self.publish(),
            Phase::Publishing(Some(ticket)) if self.state(ticket) == TicketState::Durable => {
                self.begin_cleaning()
            }
            Phase::Publishing(ticket) => {
                self.cleaning.phase = Phase::Publishing(ticket);
                CleanStep::Wait
            }
        }
    }

    fn begin_cleaning(&mut self) -> CleanStep {
        let Some(used) = self.space.oldest().filter(|_| self.should_clean()) else {
            return CleanStep::Idle;
        };
        if self.durable().0 < used.last {
            self.want(Ticket(used.last));
            return CleanStep::Wait;
        }
        if self.usage.live_in(used.slot) == 0 {
            self.stats.cleaned_unread += 1;
            return self.retire();
        }
        self.cleaning.phase = Phase::Reading(used);
        CleanStep::Read {
            offset: self.layout.segment_offset(used.slot),
            length: used.end as usize,
        }
    }

    /// The data that [`CleanStep::Read`] asked for.
    pub fn clean_read(&mut self, bytes: Vec<u8>, result: Result<(), MediaError>) {
        let Phase::Reading(used) = core::mem::take(&mut self.cleaning.phase) else {
            panic!("nothing was to be read");
        };
        let found = match result {
            Ok(()) => self.candidates(&used, &bytes),
            Err(_) => Err(0),
        };
        match found {
            Ok(left) => {
                let ticket = Ticket::default();
                self.cleaning.phase = Phase::Moving { bytes, left, ticket };
            }
            Err(within) => {
                self.cleaning.stuck = Some(self.layout.segment_offset(used.slot) + u64::from(within));
            }
        }
    }

    /// The entries of a segment that may be live; the place of the first damage otherwise.
    fn candidates(&self, used: &Used, bytes: &[u8]) -> Result<VecDeque<Candidate>, u32> {
        let segment = Segment {
            layout: &self.layout,
            slot: used.slot,
            generation: used.generation,
            bytes,
        };
        let mut found = VecDeque::new();
        let mut live_bytes = 0;
        let mut at = self.layout.block_bytes;
        while at < used.end {
            let Next::Record { header, end } = segment.next(at) else {
                return Err(at);
            };
            let makes_sense = segment.entries(at, &header, |entry, location| {
                if !entry.kind.adds() {
                    return;
                }
                let live = self.structures.get(&entry.structure);
                if live.and_then(|it| it.find(entry.key)) == Some(location) {
                    live_bytes += entry.bytes() as u64;
                    let key = if entry.kind.is_positional() {
                        Key::Position(entry.position())
                    } else {
                        Key::Bytes(entry.key.into())
                    };
                    found.push_back(Candidate {
                        kind: entry.kind,
                        structure: entry.structure,
                        key,
                        location,
                    });
                }
            });
            if !makes_sense {
                return Err(at);
            }
            at = end;
        }
        debug_assert_eq!(live_bytes, self.usage.live_in(used.slot), "as it was counted");
        Ok(found)
    }

    /// Moves up to [`MOVE_BYTES`]; when nothing is left the segment is retired.
    fn move_some(&mut self, bytes: Vec<u8>, mut left: VecDeque<Candidate>) -> CleanStep {
        let waiting = self.concerned();
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
            let live = self.structures.get(&candidate.structure);
            let live = live.and_then(|it| match &candidate.key {
                Key::Position(position) => it.find_position(*position),
                Key::Bytes(key) => it.find(key),
            });
            if live != Some(candidate.location) {
                continue;
            }
            let value = gather(&self.layout, &bytes, 0, candidate.location);
            let mut scratch = [0; 8];
            let key = candidate.key.clone();
            let entry = entry_of(candidate.kind, candidate.structure, &key, &value, &mut scratch);
            if self.make_room(entry.bytes(), Access::Cleaner).is_err() {
                left.push_front(candidate);
                break;
            }
            ticket = self.move_entry(&entry, candidate.key, candidate.location);
            moved += entry.bytes();
        }
        if left.is_empty() && moved == 0 {
            return self.retire();
        }
        self.cleaning.phase = Phase::Moving { bytes, left, ticket };
        CleanStep::Wait
    }

    /// The oldest segment has nothing that is live.
    fn retire(&mut self) -> CleanStep {
        self.space.retire();
        self.stats.cleaned += 1;
        self.publish()
    }

    fn publish(&mut self) -> CleanStep {
        self.cleaning.phase = Phase::Publishing(self.force_record().ok());
        CleanStep::Wait
    }

    /// Subjects of the waiting operations: a key or position of a structure, or, of a trim, all of it.
    fn concerned(&self) -> BTreeSet<(StructureId, Option<Key>)> {
        let mut concerned = BTreeSet::new();
        for pending in self.unapplied() {
            let key = match pending.effect {
                Effect::Apply(EntryKind::Trim, _) => None,
                _ => Some(pending.key.clone()),
            };
            concerned.insert((pending.structure, key));
        }
        concerned
    }
}
