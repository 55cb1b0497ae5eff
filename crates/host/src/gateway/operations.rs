//! The operations of a gateway, waiting or in flight: reads and mutations of one page, and flushes of one replica.

use super::merge::Part;
use super::refusal::Refusals;
use base::{Instant, Page, Slab, VssdId};
use core::ops::{Deref, DerefMut};

/// An operation slot's generation starts at this bit of a read's or flush's number.
const GENERATION_SHIFT: u32 = 24;
/// Numbers of reads and flushes have this bit; those of mutations do not.
const SLOT_BIT: u64 = 1 << 63;

/// The action of an operation.
#[derive(Debug)]
pub(super) enum Kind {
    Read {
        request: u32,
        place: usize,
        bulk: bool,
    },
    /// The page as it was, for parts that are laid over it.
    ReadForMerge {
        page: u64,
        parts: Vec<Part>,
    },
    Mutate {
        page: u64,
        parts: Vec<Part>,
        data: Option<Page>,
        crc: u32,
        durable: bool,
        /// Where the parts were laid over what the page held: the epoch in which that was read. In another one it may
        /// hold something else.
        base_epoch: Option<u32>,
    },
    Flush {
        request: u32,
        replica: usize,
        acked: u64,
    },
}

impl Kind {
    /// True if a page is read.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::ReadForMerge { .. })
    }

    /// True if others go before it.
    pub fn is_bulk(&self) -> bool {
        match self {
            Self::Read { bulk, .. } => *bulk,
            Self::ReadForMerge { parts, .. } | Self::Mutate { parts, .. } => {
                parts.iter().all(|part| part.bulk)
            }
            Self::Flush { .. } => false,
        }
    }
}

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub volume: u32,
    pub set: usize,
    pub lpn: u32,
    pub kind: Kind,
    /// 0 until it is sent.
    pub number: u64,
    pub vssd: VssdId,
    /// Of a read under way: the replica that was chosen for it.
    pub reader: Option<VssdId>,
    pub pinned: bool,
    pub damaged: u8,
    /// How often it was sent, or asked about.
    pub attempts: u32,
    /// How often it was asked about since its page was sent.
    pub asked: u8,
    /// Of a mutation: the epoch it was sent in last.
    pub epoch: u32,
    /// Of a mutation: the epoch in which it got its number.
    pub numbered_in: u32,
    pub refusals: Refusals,
    pub sent_at: Instant,
    pub again_at: Instant,
}

impl Operation {
    /// Nobody waits for its end, but what follows it must know it.
    pub fn is_given_up(&self) -> bool {
        matches!(&self.kind, Kind::Mutate { parts, .. } if parts.is_empty())
    }

    /// True if any replica may answer it. What is to be changed is read where changes are ordered.
    pub fn turns(&self) -> bool {
        matches!(self.kind, Kind::Read { .. }) && self.damaged == 0
    }

    /// True if it is of the other one's set and kind, and was refused.
    pub fn is_refused_with(&self, other: &Self) -> bool {
        let is_alike = core::mem::discriminant(&self.kind) == core::mem::discriminant(&other.kind);
        let is_of_set = (self.volume, self.set) == (other.volume, other.set);
        is_alike && is_of_set && self.number != 0 && self.refusals.count > 0
    }

    /// True if it was refused, and need not wait any more where this replica serves.
    pub fn goes_to(&self, vssd: VssdId) -> bool {
        // Where it was sent after a refusal it may wait for nothing.
        let is_elsewhere = self.vssd != vssd && self.turns();
        is_elsewhere || self.vssd == vssd && self.refusals.pauses && !self.is_given_up()
    }
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kinds(u8);

impl Kinds {
    fn bit(kind: &Kind) -> u8 {
        match kind {
            Kind::Read { .. } => 1,
            Kind::ReadForMerge { .. } => 2,
            Kind::Mutate { .. } => 4,
            Kind::Flush { .. } => 8,
        }
    }

    pub fn insert(&mut self, kind: &Kind) {
        self.0 |= Self::bit(kind);
    }

    pub fn remove(&mut self, kind: &Kind) {
        self.0 &= !Self::bit(kind);
    }

    pub fn contains(self, kind: &Kind) -> bool {
        self.0 & Self::bit(kind) != 0
    }
}

/// All operations, by slot.
#[derive(Default)]
pub(super) struct Operations {
    slots: Slab<Operation>,
    /// How often each slot was numbered anew.
    generations: Vec<u32>,
}

impl Operations {
    pub fn insert(&mut self, operation: Operation) -> u32 {
        let slot = self.slots.insert(operation);
        self.generations.resize(self.slots.bound() as usize, 0);
        slot
    }

    /// Takes an operation out. The next one in its slot has another number.
    pub fn remove(&mut self, slot: u32) -> Operation {
        self.renumber(slot);
        self.slots.remove(slot)
    }

    /// Answers to the number that the slot had are for nobody from now on.
    pub fn renumber(&mut self, slot: u32) {
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1);
    }

    /// The number of a read or flush in a slot. A mutation has a number of its set.
    pub fn number(&self, slot: u32) -> u64 {
        let generation = self.generations[slot as usize];
        SLOT_BIT | u64::from(generation) << GENERATION_SHIFT | u64::from(slot)
    }
}

impl Deref for Operations {
    type Target = Slab<Operation>;

    fn deref(&self) -> &Slab<Operation> {
        &self.slots
    }
}

impl DerefMut for Operations {
    fn deref_mut(&mut self) -> &mut Slab<Operation> {
        &mut self.slots
    }
}

/// True for the number of a read or flush.
pub(super) fn names_slot(number: u64) -> bool {
    number & SLOT_BIT != 0
}

/// The slot that the number of a read or flush names.
pub(super) fn slot_of(number: u64) -> u32 {
    (number & ((1 << GENERATION_SHIFT) - 1)) as u32
}
