//! Which segments the log consists of, and which are free.

use crate::index::Location;
use crate::layout::Layout;
use std::collections::{BTreeSet, VecDeque};

/// Where replay goes on after a checkpoint: behind a record, in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    pub record: u64,
    pub generation: u64,
    pub end: u32,
}

/// A segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub slot: u32,
    pub generation: u64,
    /// Number of its last record; of the newest segment, of the last one so far.
    pub last: u64,
    /// End of the log in the segment; of the newest segment, so far.
    pub end: u32,
}

/// The segments of an area.
pub(crate) struct Space {
    layout: Layout,
    /// Generation by slot; 0 where there is none.
    generations: Vec<u64>,
    /// The log's segments, oldest first. Never empty once something was written.
    chain: VecDeque<Used>,
    /// Cleaned; free as soon as a tail beyond them is durable.
    awaiting: VecDeque<(u32, u64)>,
    /// The segment freed first is used first, so that writes go round the medium.
    free: VecDeque<u32>,
    next_generation: u64,
    /// A follower keeps to a moment: more segments are kept free, as those of the moment are used anew after them.
    is_followed: bool,
}

/// While an area is followed, so much of it is kept free beside what always is, at most,
const FOLLOWED_SHARE: u32 = 8;
/// and no more than one in so many segments that live data does not need: cleaning would cost more.
const FOLLOWED_SPARE: u32 = 4;

impl Space {
    /// The log is in `chain`; `aside` hold something else.
    pub(crate) fn new(
        layout: Layout,
        chain: VecDeque<Used>,
        aside: &BTreeSet<u32>,
        next_generation: u64,
    ) -> Self {
        let mut generations = vec![0; layout.segments as usize];
        for used in &chain {
            generations[used.slot as usize] = used.generation;
        }
        let free =
            (0..layout.segments).filter(|slot| generations[*slot as usize] == 0 && !aside.contains(slot));
        Self {
            layout,
            free: free.collect(),
            generations,
            chain,
            awaiting: VecDeque::new(),
            next_generation,
            is_followed: false,
        }
    }

    /// There are so many segments more, which were never used.
    pub(crate) fn grow(&mut self, segments: u32) {
        let old = self.layout.segments;
        self.layout.segments += segments;
        self.generations.resize(self.layout.segments as usize, 0);
        self.free.extend(old..self.layout.segments);
    }

    /// A follower keeps to a moment from now on, or none does.
    pub(crate) fn set_followed(&mut self, is_followed: bool) {
        self.is_followed = is_followed;
    }

    /// Segments that are kept free for the moments of followers, if `live_bytes` are live.
    pub(crate) fn kept_for_followers(&self, live_bytes: u64) -> u32 {
        if !self.is_followed {
            return 0;
        }
        let live = live_bytes.div_ceil(self.layout.segment_payload_bytes());
        let taken = self.layout.reserve_segments() + u32::try_from(live).unwrap_or(u32::MAX / 2);
        let spare = self.layout.segments.saturating_sub(taken);
        (self.layout.segments / FOLLOWED_SHARE).min(spare / FOLLOWED_SPARE)
    }

    /// How often a segment was taken into use, and those before this opening.
    pub(crate) fn taken(&self) -> u64 {
        self.next_generation
    }

    /// The place of an entry in the order of the log.
    pub(crate) fn place_of(&self, at: Location) -> u64 {
        at.version(self.generation_of(at.slot))
    }

    pub(crate) fn generation_of(&self, slot: u32) -> u64 {
        self.generations[slot as usize]
    }

    /// The log's segments, oldest first.
    pub(crate) fn chain(&self) -> impl Iterator<Item = &Used> {
        self.chain.iter()
    }

    /// The newest segment.
    pub(crate) fn head(&self) -> Option<&Used> {
        self.chain.back()
    }

    /// The newest segment now ends at `end`, with record `last`.
    pub(crate) fn extend(&mut self, end: u32, last: u64) {
        let head = self.chain.back_mut().expect("records are in segments");
        head.end = end;
        head.last = last;
    }

    /// Takes a free segment into use as the newest, unless only `reserve` are left.
    pub(crate) fn take(&mut self, reserve: u32, last: u64) -> Option<Used> {
        if self.free.len() as u64 <= u64::from(reserve) {
            return None;
        }
        let slot = self.free.pop_front()?;
        // The tag is the low half and must not be 0.
        let skip = self.next_generation as u32 == 0;
        let generation = self.next_generation + u64::from(skip);
        self.next_generation = generation + 1;
        self.generations[slot as usize] = generation;
        let end = self.layout.block_bytes;
        let used = Used {
            slot,
            generation,
            last,
            end,
        };
        self.chain.push_back(used);
        Some(used)
    }

    /// Takes a free segment for something else than the log, unless only `reserve` are left: slot and generation.
    pub(crate) fn take_aside(&mut self, reserve: u32) -> Option<(u32, u64)> {
        let used = self.take(reserve, 0)?;
        self.chain.pop_back();
        Some((used.slot, used.generation))
    }

    /// The same for a table.
    pub(crate) fn take_place(&mut self, reserve: u32) -> Option<crate::table::Place> {
        let (slot, generation) = self.take_aside(reserve)?;
        Some(crate::table::Place { slot, generation })
    }

    /// Segments that were taken aside are free again.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.generations[slot as usize] = 0;
        self.free.push_back(slot);
    }

    /// The oldest segment, if it is not the newest, too.
    pub(crate) fn oldest(&self) -> Option<Used> {
        (self.chain.len() > 1).then(|| self.chain[0])
    }

    /// The oldest segment has nothing any more that is needed.
    pub(crate) fn retire(&mut self) {
        let used = self.chain.pop_front().expect("the oldest was cleaned");
        self.awaiting.push_back((used.slot, used.generation));
    }

    /// Generations below this one are not needed.
    pub(crate) fn tail(&self) -> u64 {
        self.chain.front().map_or(0, |used| used.generation)
    }

    /// A record that says `tail` is durable.
    pub(crate) fn published(&mut self, tail: u64) {
        while let Some(&(slot, generation)) = self.awaiting.front() {
            if generation >= tail {
                break;
            }
            self.awaiting.pop_front();
            self.generations[slot as usize] = 0;
            self.free.push_back(slot);
        }
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn is_awaiting(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// Payload bytes of the segments in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.chain.len() as u64 * self.layout.segment_payload_bytes()
    }
}
