//! The part of a structure in memory: the places of its live entries. Positions and keys, no data.

use crate::entry::{Description, Durability, Entry, EntryKind, Kind, StructureId, entry_bytes};
use crate::table::Way;
use crate::table::filter::Present;
use base::ByteMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Place of an entry's value: slot, byte of the segment's payload, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    pub slot: u32,
    pub at: u32,
    pub length: u32,
}

impl Location {
    /// A position whose entry has not been met yet while the log is replayed.
    pub(crate) const NOWHERE: Self = Self {
        slot: u32::MAX,
        at: u32::MAX,
        length: u32::MAX,
    };
    /// The slot of an entry that a checkpoint has in a segment that is no more, until it is met again.
    pub(crate) const MOVED: u32 = u32::MAX - 1;
    /// A bit of `at`: the data of this position are lost ([`EntryKind::Lost`]). No segment has so many bytes.
    const LOST: u32 = 1 << 31;
    /// A bit of `at`: the key was removed, and tables may have an older value of it.
    const REMOVED: u32 = 1 << 30;
    /// Bits of `at` that are a place.
    const PLACE: u32 = Self::REMOVED - 1;
    /// Bits of a place: a segment has at most 64 MiB.
    const PLACE_BITS: u32 = 26;

    /// The value of an entry, from byte `at` of the segment's payload on.
    pub(crate) fn of(entry: &Entry<'_>, slot: u32, at: u32) -> Self {
        let mark = match entry.kind {
            EntryKind::Lost => Self::LOST,
            EntryKind::Remove => Self::REMOVED,
            _ => 0,
        };
        Self {
            slot,
            at: at | mark,
            length: entry.value.len() as u32,
        }
    }

    /// True if the data are lost.
    pub(crate) fn is_lost(&self) -> bool {
        *self != Self::NOWHERE && self.at & Self::LOST != 0
    }

    /// The removal of the key, where the value would be.
    fn removed(self) -> Self {
        Self {
            at: self.at | Self::REMOVED,
            length: 0,
            ..self
        }
    }

    /// True if the key was removed.
    pub(crate) fn is_removed(&self) -> bool {
        *self != Self::NOWHERE && self.at & Self::REMOVED != 0
    }

    /// The end of the value, in bytes of the segment's payload.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.at & Self::PLACE) + u64::from(self.length)
    }

    /// Bytes that its entry takes in a record.
    pub(crate) fn entry_bytes(&self, key_bytes: usize) -> u64 {
        entry_bytes(key_bytes, self.length as usize) as u64
    }

    /// The place in the order of the log, given the segment's generation.
    pub(crate) fn version(&self, generation: u64) -> u64 {
        generation << Self::PLACE_BITS | u64::from(self.at & Self::PLACE)
    }
}

/// An entry of a key that is in memory: its place in the log, and its value if memory has that, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub at: Location,
    pub value: Option<Arc<[u8]>>,
}

impl From<Location> for Slot {
    fn from(at: Location) -> Self {
        Self { at, value: None }
    }
}

impl Slot {
    fn held_bytes(&self) -> u64 {
        self.value.as_ref().map_or(0, |value| held_bytes(value.len()))
    }
}

/// Parts of a map: one is walked at a time, and grows alone.
pub(crate) const SHARDS: usize = 256;

/// A map in parts.
pub(crate) struct Shards(Box<[ByteMap<Slot>]>);

impl Shards {
    fn new(seed: u64) -> Self {
        Self((0..SHARDS).map(|_| ByteMap::with_seed(seed)).collect())
    }

    fn of(key: &[u8]) -> usize {
        crc32c::crc32c(key) as usize % SHARDS
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&Slot> {
        self.0[Self::of(key)].get(key)
    }

    fn get_mut(&mut self, key: &[u8]) -> Option<&mut Slot> {
        self.0[Self::of(key)].get_mut(key)
    }

    fn insert(&mut self, key: Box<[u8]>, slot: Slot) -> Option<Slot> {
        self.0[Self::of(&key)].insert(key, slot)
    }

    fn remove(&mut self, key: &[u8]) -> Option<Slot> {
        self.0[Self::of(key)].remove(key)
    }

    fn len(&self) -> usize {
        self.0.iter().map(ByteMap::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(ByteMap::is_empty)
    }

    /// The entries of a part, in order.
    pub(crate) fn shard(&self, index: usize) -> impl Iterator<Item = (&[u8], &Slot)> {
        let shard = &self.0[index];
        let keys = shard.sorted_keys().into_iter();
        keys.map(|key| (key, shard.get(key).expect("its own key")))
    }

    /// All entries, by part.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &Slot)> {
        (0..SHARDS).flat_map(|index| self.shard(index))
    }
}

/// A key or position, owned: what waits to be applied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Position(u64),
    Bytes(Box<[u8]>),
}

impl Key {
    /// That of an entry.
    pub(crate) fn of(entry: &Entry<'_>) -> Self {
        match entry.kind.is_positional() {
            true => Self::Position(entry.position()),
            false => Self::Bytes(entry.key.into()),
        }
    }

    fn position(&self) -> u64 {
        match self {
            Self::Position(position) => *position,
            Self::Bytes(_) => unreachable!("the entry's kind suits the structure"),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Position(_) => 8,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Memory of all structures together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes of live entries on the medium.
    pub live: u64,
    /// Bytes of memory, estimated.
    pub index: u64,
}

impl core::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.live += other.live;
        self.index += other.index;
    }
}

impl core::ops::SubAssign for Usage {
    fn sub_assign(&mut self, other: Self) {
        self.live -= other.live;
        self.index -= other.index;
    }
}

impl Usage {
    pub(crate) fn add(&mut self, kind: Kind, key: usize, slot: &Slot) {
        self.live += slot.at.entry_bytes(key);
        self.index += index_bytes(kind, key) + slot.held_bytes();
    }

    fn remove(&mut self, kind: Kind, key: usize, slot: &Slot) {
        self.live -= slot.at.entry_bytes(key);
        self.index -= index_bytes(kind, key) + slot.held_bytes();
    }
}

/// Usage, and which segments the live bytes are in: one that has none is retired without being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub all: Usage,
    /// The part of maps and trees that is in memory and not frozen.
    pub keyed: Usage,
    /// By slot. Places that are no slot ([`Location::MOVED`]) are not counted: they are met again.
    slots: Vec<u64>,
}

impl Tally {
    /// Nothing, of so many segments.
    pub(crate) fn new(segments: u32) -> Self {
        Self {
            all: Usage::default(),
            keyed: Usage::default(),
            slots: vec![0; segments as usize],
        }
    }

    /// There are so many segments more.
    pub(crate) fn grow(&mut self, segments: u32) {
        self.slots.resize(self.slots.len() + segments as usize, 0);
    }

    /// Bytes of live entries in a segment.
    pub(crate) fn live_in(&self, slot: u32) -> u64 {
        self.slots[slot as usize]
    }

    fn add(&mut self, kind: Kind, key: usize, slot: &Slot) {
        self.all.add(kind, key, slot);
        if kind.has_keys() {
            self.keyed.add(kind, key, slot);
        }
        if let Some(live) = self.slots.get_mut(slot.at.slot as usize) {
            *live += slot.at.entry_bytes(key);
        }
    }

    /// Tables have what was frozen: `freed` bytes of each slot.
    pub(crate) fn give_back(&mut self, usage: Usage, freed: &[u64]) {
        self.all -= usage;
        for (slot, freed) in self.slots.iter_mut().zip(freed) {
            *slot -= freed;
        }
    }

    /// Entries that were frozen are counted no more, as their structure was dropped.
    pub(crate) fn forget_all(&mut self, body: &Body) {
        let kind = body.kind();
        match body {
            Body::Map(map) => map
                .iter()
                .for_each(|(key, slot)| self.forget(kind, key.len(), slot)),
            Body::Tree(tree) => tree
                .iter()
                .for_each(|(key, slot)| self.forget(kind, key.len(), slot)),
            Body::Log { .. } | Body::Queue { .. } => {}
        }
    }

    /// An entry that was frozen is counted no more.
    fn forget(&mut self, kind: Kind, key: usize, slot: &Slot) {
        self.all.remove(kind, key, slot);
        if let Some(live) = self.slots.get_mut(slot.at.slot as usize) {
            *live -= slot.at.entry_bytes(key);
        }
    }

    fn remove(&mut self, kind: Kind, key: usize, slot: &Slot) {
        self.forget(kind, key, slot);
        if kind.has_keys() {
            self.keyed.remove(kind, key, slot);
        }
    }
}

/// Bytes of memory that an entry takes, with the share of its container: measured with the allocator's figures for
/// containers that are three quarters full.
pub(crate) fn index_bytes(kind: Kind, key_bytes: usize) -> u64 {
    match kind {
        Kind::Log => 16,
        Kind::Queue => 32,
        Kind::Map | Kind::Tree => 64 + key_bytes as u64,
    }
}

/// Bytes of memory that the value of such an entry takes, where memory has it: with its counts, and the allocator's.
pub(crate) fn held_bytes(value_bytes: usize) -> u64 {
    32 + value_bytes as u64
}

pub(crate) enum Body {
    Log {
        floor: u64,
        entries: VecDeque<Location>,
    },
    Queue {
        entries: BTreeMap<u64, Location>,
        /// Positions below were handed out.
        cursor: u64,
        /// Those of them to hand out again.
        returned: BTreeSet<u64>,
    },
    Map(Shards),
    Tree(BTreeMap<Box<[u8]>, Slot>),
}

impl Body {
    fn new(description: &Description, seed: u64) -> Self {
        match description.kind {
            Kind::Log => Self::Log {
                floor: description.floor,
                entries: VecDeque::new(),
            },
            Kind::Queue => Self::Queue {
                entries: BTreeMap::new(),
                cursor: 0,
                returned: BTreeSet::new(),
            },
            Kind::Map => Self::Map(Shards::new(seed)),
            Kind::Tree => Self::Tree(BTreeMap::new()),
        }
    }

    /// Entries, removals among them.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Log { entries, .. } => entries.len() as u64,
            Self::Queue { entries, .. } => entries.len() as u64,
            Self::Map(map) => map.len() as u64,
            Self::Tree(tree) => tree.len() as u64,
        }
    }

    /// The kind of structure that it is of.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Log { .. } => Kind::Log,
            Self::Queue { .. } => Kind::Queue,
            Self::Map(_) => Kind::Map,
            Self::Tree(_) => Kind::Tree,
        }
    }

    /// The newest entry of a key: its value, or its removal.
    pub(crate) fn slot_of(&self, key: &[u8]) -> Option<&Slot> {
        match self {
            Self::Map(map) => map.get(key),
            Self::Tree(tree) => tree.get(key),
            Self::Log { .. } | Self::Queue { .. } => None,
        }
    }

    /// Entries with keys within the bounds, in order: of a tree.
    pub(crate) fn range<'a>(
        &'a self,
        bounds: (Bound<&'a [u8]>, Bound<&'a [u8]>),
        way: Way,
    ) -> Box<dyn Iterator<Item = (&'a [u8], &'a Slot)> + 'a> {
        let Self::Tree(tree) = self else {
            return Box::new(core::iter::empty());
        };
        way.iter(tree.range::<[u8], _>(bounds).map(|(key, slot)| (&**key, slot)))
    }

    /// All entries of a map or tree.
    pub(crate) fn entries<'a>(&'a self) -> Box<dyn Iterator<Item = (&'a [u8], &'a Slot)> + 'a> {
        match self {
            Self::Map(map) => Box::new(map.iter()),
            Self::Tree(tree) => Box::new(tree.iter().map(|(key, slot)| (&**key, slot))),
            Self::Log { .. } | Self::Queue { .. } => Box::new(core::iter::empty()),
        }
    }
}

/// Maps and trees as they were at a moment, on their way to tables. They count until the tables do.
pub(crate) struct Frozen {
    pub bodies: BTreeMap<StructureId, Body>,
    /// By slot, at that moment.
    pub generations: Vec<u64>,
    /// Operations in records up to this one are in here, or in tables.
    pub record: u64,
    /// The keys.
    pub present: Present,
    pub usage: Usage,
    /// Some values are in the log alone.
    pub lacks_values: bool,
}

impl Frozen {
    /// The newest entry of a key.
    pub(crate) fn slot_of(&self, id: StructureId, key: &[u8]) -> Option<&Slot> {
        self.bodies.get(&id)?.slot_of(key)
    }
}

/// One structure.
pub(crate) struct Structure {
    pub name: Box<str>,
    pub kind: Kind,
    pub durability: Durability,
    /// The next position to show.
    pub next: u64,
    /// The next position to give out: not below `next`.
    pub assigned: u64,
    pub body: Body,
    seed: u64,
    /// Entries of `body` that are removals.
    removed: u64,
}

impl Structure {
    pub(crate) fn new(name: &str, description: &Description, seed: u64) -> Self {
        Self {
            name: name.into(),
            kind: description.kind,
            durability: description.durability,
            next: description.next,
            assigned: description.next,
            body: Body::new(description, seed),
            seed,
            removed: 0,
        }
    }

    /// Takes all entries of a map or tree out. `None` if there are none.
    pub(crate) fn freeze(&mut self) -> Option<Body> {
        let is_empty = match &self.body {
            Body::Map(map) => map.is_empty(),
            Body::Tree(tree) => tree.is_empty(),
            Body::Log { .. } | Body::Queue { .. } => true,
        };
        if is_empty {
            return None;
        }
        self.removed = 0;
        let empty = Body::new(&self.describe(), self.seed);
        Some(core::mem::replace(&mut self.body, empty))
    }

    /// Puts entries that were frozen back, below those that came since. How much less there is to count.
    pub(crate) fn thaw(&mut self, frozen: &Body, usage: &mut Tally) {
        for (key, slot) in frozen.entries() {
            usage.forget(self.kind, key.len(), slot);
            if self.body.slot_of(key).is_none() {
                self.removed += u64::from(slot.at.is_removed());
                self.put(Key::Bytes(key.into()), slot.clone(), usage);
            }
        }
    }

    pub(crate) fn describe(&self) -> Description {
        Description {
            kind: self.kind,
            durability: self.durability,
            next: self.next,
            floor: match &self.body {
                Body::Log { floor, .. } => *floor,
                _ => 0,
            },
        }
    }

    /// Takes in a description met again while the log is replayed: what is known stands.
    pub(crate) fn describe_again(&mut self, description: &Description, usage: &mut Tally) {
        self.next = self.next.max(description.next);
        self.assigned = self.assigned.max(self.next);
        if self.kind == Kind::Log {
            self.trim(description.floor, usage);
        }
    }

    /// Applies an entry that is durable, or that is replayed. `has_older` if an older value of a key may be in tables, or on the
    /// way to them: then its removal is kept.
    pub(crate) fn apply(
        &mut self,
        kind: EntryKind,
        key: Key,
        slot: impl Into<Slot>,
        has_older: bool,
        usage: &mut Tally,
    ) {
        let slot: Slot = slot.into();
        let location = slot.at;
        match kind {
            EntryKind::Append | EntryKind::Lost => self.append(key.position(), location, usage),
            EntryKind::Push => {
                let position = key.position();
                self.shown(position);
                if let Body::Queue { entries, .. } = &mut self.body {
                    usage.add(Kind::Queue, 8, &slot);
                    if let Some(old) = entries.insert(position, location) {
                        usage.remove(Kind::Queue, 8, &old.into());
                    }
                }
            }
            EntryKind::Trim => self.trim(key.position(), usage),
            EntryKind::Acknowledge => {
                let position = key.position();
                if let Body::Queue {
                    entries, returned, ..
                } = &mut self.body
                {
                    returned.remove(&position);
                    if let Some(old) = entries.remove(&position) {
                        usage.remove(Kind::Queue, 8, &old.into());
                    }
                }
            }
            EntryKind::Put => drop(self.put(key, slot, usage)),
            EntryKind::Remove if has_older => {
                let was_removed = self
                    .put(key, location.removed().into(), usage)
                    .is_some_and(|old| old.at.is_removed());
                self.removed += u64::from(!was_removed);
            }
            EntryKind::Remove => {
                let Key::Bytes(key) = key else { return };
                let old = match &mut self.body {
                    Body::Map(map) => map.remove(&key),
                    Body::Tree(tree) => tree.remove(&key),
                    _ => None,
                };
                if let Some(old) = old {
                    self.removed -= u64::from(old.at.is_removed());
                    usage.remove(self.kind, key.len(), &old);
                }
            }
            EntryKind::Describe | EntryKind::Drop | EntryKind::Tables => {}
        }
    }

    /// Sets the entry of a key; the one before.
    fn put(&mut self, key: Key, slot: Slot, usage: &mut Tally) -> Option<Slot> {
        let Key::Bytes(key) = key else { return None };
        let (length, is_removed) = (key.len(), slot.at.is_removed());
        usage.add(self.kind, length, &slot);
        let old = match &mut self.body {
            Body::Map(map) => map.insert(key, slot),
            Body::Tree(tree) => tree.insert(key, slot),
            _ => None,
        };
        if let Some(old) = &old {
            usage.remove(self.kind, length, old);
            if old.at.is_removed() && !is_removed {
                self.removed -= 1;
            }
        }
        old
    }

    /// The position was given out.
    pub(crate) fn shown(&mut self, position: u64) {
        self.next = self.next.max(position + 1);
        self.assigned = self.assigned.max(self.next);
    }

    fn append(&mut self, position: u64, location: Location, usage: &mut Tally) {
        self.shown(position);
        let Body::Log { floor, entries } = &mut self.body else {
            return;
        };
        let Some(index) = position.checked_sub(*floor) else {
            return;
        };
        while entries.len() as u64 <= index {
            entries.push_back(Location::NOWHERE);
        }
        let old = core::mem::replace(&mut entries[index as usize], location);
        usage.add(Kind::Log, 8, &location.into());
        if old != Location::NOWHERE {
            usage.remove(Kind::Log, 8, &old.into());
        }
    }

    fn trim(&mut self, to: u64, usage: &mut Tally) {
        let Body::Log { floor, entries } = &mut self.body else {
            return;
        };
        while *floor < to {
            match entries.pop_front() {
                Some(old) if old != Location::NOWHERE => usage.remove(Kind::Log, 8, &old.into()),
                Some(_) => {}
                None => {
                    *floor = to;
                    break;
                }
            }
            *floor += 1;
        }
        self.next = self.next.max(to);
        self.assigned = self.assigned.max(self.next);
    }

    /// A position of a log counts as never met.
    pub(crate) fn miss(&mut self, position: u64, usage: &mut Tally) {
        let Body::Log { floor, entries } = &mut self.body else {
            return;
        };
        let index = position.checked_sub(*floor);
        if let Some(entry) = index.and_then(|index| entries.get_mut(index as usize)) {
            let old = core::mem::replace(entry, Location::NOWHERE);
            usage.remove(Kind::Log, 8, &old.into());
        }
    }

    /// How far a log would grow to hold `position`: refused in replay when no area could hold it.
    pub(crate) fn span_with(&self, position: u64) -> u64 {
        match &self.body {
            Body::Log { floor, .. } => position.saturating_sub(*floor),
            _ => 0,
        }
    }

    /// The first position of a log that replay has not met: the log is damaged.
    pub(crate) fn hole(&self) -> Option<u64> {
        let Body::Log { floor, entries } = &self.body else {
            return None;
        };
        let met = entries.iter().position(|&entry| entry == Location::NOWHERE);
        let short = (*floor + entries.len() as u64) < self.next;
        met.or(short.then_some(entries.len()))
            .map(|index| floor + index as u64)
    }

    /// All positions of a log that were not met.
    pub(crate) fn holes(&self) -> impl Iterator<Item = u64> {
        let (floor, entries) = match &self.body {
            Body::Log { floor, entries } => (*floor, Some(entries)),
            _ => (self.next, None),
        };
        let end = floor + entries.map_or(0, |all| all.len() as u64);
        let inside = entries.into_iter().flatten().zip(floor..);
        let unmet = inside.filter(|(entry, _)| **entry == Location::NOWHERE);
        unmet.map(|(_, position)| position).chain(end..self.next.max(end))
    }

    /// Calls `f` with each key of a map or tree.
    pub(crate) fn each_key(&self, mut f: impl FnMut(&[u8])) {
        match &self.body {
            Body::Map(map) => map.iter().for_each(|(key, _)| f(key)),
            Body::Tree(tree) => tree.keys().for_each(|key| f(key)),
            Body::Log { .. } | Body::Queue { .. } => {}
        }
    }

    /// Calls `f` with each entry that was met.
    pub(crate) fn each(&self, mut f: impl FnMut(Key, Location)) {
        match &self.body {
            Body::Log { floor, entries } => {
                let all = entries.iter().zip(*floor..);
                let met = all.filter(|(entry, _)| **entry != Location::NOWHERE);
                met.for_each(|(&location, position)| f(Key::Position(position), location));
            }
            Body::Queue { entries, .. } => {
                let all = entries.iter();
                all.for_each(|(&position, &location)| f(Key::Position(position), location));
            }
            Body::Map(map) => map
                .iter()
                .for_each(|(key, slot)| f(Key::Bytes(key.into()), slot.at)),
            Body::Tree(tree) => {
                let all = tree.iter();
                all.for_each(|(key, slot)| f(Key::Bytes(key.clone()), slot.at));
            }
        }
    }

    /// Entries that were met.
    pub(crate) fn met(&self) -> u64 {
        match &self.body {
            Body::Log { entries, .. } => {
                let is_met = |entry: &&Location| **entry != Location::NOWHERE;
                entries.iter().filter(is_met).count() as u64
            }
            _ => self.len(),
        }
    }

    /// Ends a log before a position; how many entries were met behind.
    pub(crate) fn cut(&mut self, position: u64, usage: &mut Tally) -> u64 {
        let Body::Log { floor, entries } = &mut self.body else {
            return 0;
        };
        let behind = entries.split_off((position.saturating_sub(*floor) as usize).min(entries.len()));
        (self.next, self.assigned) = (position, position);
        let met = behind.into_iter().filter(|entry| *entry != Location::NOWHERE);
        met.map(|entry| usage.remove(Kind::Log, 8, &entry.into())).count() as u64
    }

    /// True if an entry of a checkpoint was not met again, though its segment is no more.
    pub(crate) fn has_moved(&self) -> bool {
        let is_moved = |at: &Location| at.slot == Location::MOVED;
        match &self.body {
            Body::Log { entries, .. } => entries.iter().any(is_moved),
            Body::Queue { entries, .. } => entries.values().any(is_moved),
            Body::Map(map) => map.iter().any(|(_, slot)| is_moved(&slot.at)),
            Body::Tree(tree) => tree.values().any(|slot| is_moved(&slot.at)),
        }
    }

    /// Place of the newest entry of a key, or of a position: of its value, or of its removal.
    pub(crate) fn entry_of(&self, key: &[u8]) -> Option<Location> {
        match &self.body {
            Body::Map(_) | Body::Tree(_) => self.body.slot_of(key).map(|slot| slot.at),
            _ => self.find_position(u64::from_le_bytes(key.try_into().ok()?)),
        }
    }

    pub(crate) fn find_position(&self, position: u64) -> Option<Location> {
        match &self.body {
            Body::Log { floor, entries } => {
                let index = position.checked_sub(*floor)?;
                entries.get(usize::try_from(index).ok()?).copied()
            }
            Body::Queue { entries, .. } => entries.get(&position).copied(),
            _ => None,
        }
    }

    /// The entry of `key` was at `from` and is at `to` now. It is not moved, and this is false, if it has changed.
    pub(crate) fn relocate(&mut self, key: &Key, from: Location, to: Location, usage: &mut Tally) -> bool {
        let kind = self.kind;
        let place = match (&mut self.body, key) {
            (Body::Log { floor, entries }, Key::Position(position)) => position
                .checked_sub(*floor)
                .and_then(|index| entries.get_mut(index as usize)),
            (Body::Queue { entries, .. }, Key::Position(position)) => entries.get_mut(position),
            (Body::Map(map), Key::Bytes(key)) => map.get_mut(key).map(|slot| &mut slot.at),
            (Body::Tree(tree), Key::Bytes(key)) => tree.get_mut(&**key).map(|slot| &mut slot.at),
            _ => None,
        };
        let Some(place) = place.filter(|place| **place == from) else {
            return false;
        };
        *place = to;
        // A value in memory stays there.
        usage.remove(kind, key.bytes(), &from.into());
        usage.add(kind, key.bytes(), &to.into());
        true
    }

    /// Keys whose values memory does not have.
    pub(crate) fn unheld(&self) -> Vec<(Location, Box<[u8]>)> {
        let is_unheld = |slot: &Slot| slot.value.is_none() && slot.at.length > 0;
        match &self.body {
            Body::Map(map) => {
                let all = map.iter().filter(|(_, slot)| is_unheld(slot));
                all.map(|(key, slot)| (slot.at, key.into())).collect()
            }
            Body::Tree(tree) => {
                let all = tree.iter().filter(|(_, slot)| is_unheld(slot));
                all.map(|(key, slot)| (slot.at, key.clone())).collect()
            }
            Body::Log { .. } | Body::Queue { .. } => Vec::new(),
        }
    }

    /// Memory has the value of an entry from now on.
    pub(crate) fn hold(&mut self, key: Box<[u8]>, slot: Slot, usage: &mut Tally) {
        self.put(Key::Bytes(key), slot, usage);
    }

    /// Keeps the keys of a map or tree for whose places `keeps` says so; tables have the others.
    pub(crate) fn keep(&mut self, keeps: impl Fn(&Location) -> bool, usage: &mut Tally) {
        let Some(body) = self.freeze() else { return };
        let kind = self.kind;
        let mut sort = |key: Box<[u8]>, slot: Slot| {
            usage.remove(kind, key.len(), &slot);
            if keeps(&slot.at) {
                self.removed += u64::from(slot.at.is_removed());
                self.put(Key::Bytes(key), slot, usage);
            }
        };
        match body {
            Body::Map(map) => map.iter().for_each(|(key, slot)| sort(key.into(), slot.clone())),
            Body::Tree(tree) => tree.into_iter().for_each(|(key, slot)| sort(key, slot)),
            Body::Log { .. } | Body::Queue { .. } => {}
        }
    }

    /// Memory of the structure, which a drop gives back.
    pub(crate) fn give_back(&self, usage: &mut Tally) {
        match &self.body {
            Body::Log { entries, .. } => entries
                .iter()
                .filter(|&&entry| entry != Location::NOWHERE)
                .for_each(|&entry| usage.remove(Kind::Log, 8, &entry.into())),
            Body::Queue { entries, .. } => {
                entries
                    .values()
                    .for_each(|&entry| usage.remove(Kind::Queue, 8, &entry.into()));
            }
            Body::Map(map) => {
                for (key, entry) in map.iter() {
                    usage.remove(Kind::Map, key.len(), entry);
                }
            }
            Body::Tree(tree) => {
                for (key, entry) in tree {
                    usage.remove(Kind::Tree, key.len(), entry);
                }
            }
        }
    }

    /// Entries that are in memory, without removals.
    pub(crate) fn len(&self) -> u64 {
        self.body.len() - self.removed
    }

    /// The first position of a log.
    pub(crate) fn floor(&self) -> u64 {
        match &self.body {
            Body::Log { floor, .. } => *floor,
            Body::Queue { entries, .. } => entries.keys().next().copied().unwrap_or(self.next),
            _ => 0,
        }
    }

    /// Hands out the next position of a queue.
    pub(crate) fn pop(&mut self) -> Option<(u64, Location)> {
        let Body::Queue {
            entries,
            cursor,
            returned,
        } = &mut self.body
        else {
            return None;
        };
        if let Some(position) = returned.pop_first() {
            return entries.get(&position).map(|&location| (position, location));
        }
        let (&position, &location) = entries.range(*cursor..).next()?;
        *cursor = position + 1;
        Some((position, location))
    }

    /// Gives a position that was handed out back to the queue; false if it is not there.
    pub(crate) fn give_up(&mut self, position: u64) -> bool {
        match &mut self.body {
            Body::Queue {
                entries,
                cursor,
                returned,
            } if position < *cursor && entries.contains_key(&position) => returned.insert(position),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u32) -> Location {
        Location {
            slot: 0,
            at,
            length: 10,
        }
    }

    fn structure(kind: Kind) -> Structure {
        let description = Description {
            kind,
            durability: Durability::Sync,
            next: 0,
            floor: 0,
        };
        Structure::new("it", &description, 1)
    }

    #[test]
    fn a_log_replayed_out_of_order_has_no_holes_once_everything_was_met() {
        let mut log = structure(Kind::Log);
        let mut usage = Tally::new(1);
        for position in [3, 1, 2] {
            log.apply(
                EntryKind::Append,
                Key::Position(position),
                at(position as u32),
                false,
                &mut usage,
            );
        }
        assert_eq!(log.hole(), Some(0));
        log.apply(EntryKind::Append, Key::Position(0), at(0), false, &mut usage);
        assert_eq!((log.hole(), log.len(), log.next), (None, 4, 4));
        log.apply(EntryKind::Trim, Key::Position(3), at(0), false, &mut usage);
        assert_eq!(
            (log.len(), log.floor(), log.find_position(3)),
            (1, 3, Some(at(3)))
        );
        assert_eq!(usage.all.live, entry_bytes(8, 10) as u64);
        log.apply(EntryKind::Trim, Key::Position(9), at(0), false, &mut usage);
        assert_eq!((log.len(), log.next, usage), (0, 9, Tally::new(1)));
    }

    #[test]
    fn a_queue_hands_out_each_position_once_unless_it_is_given_up() {
        let mut queue = structure(Kind::Queue);
        let mut usage = Tally::new(1);
        for position in 0..3 {
            queue.apply(
                EntryKind::Push,
                Key::Position(position),
                at(position as u32),
                false,
                &mut usage,
            );
        }
        assert_eq!(queue.pop(), Some((0, at(0))));
        assert_eq!(queue.pop(), Some((1, at(1))));
        assert!(queue.give_up(0) && !queue.give_up(2));
        queue.apply(EntryKind::Acknowledge, Key::Position(1), at(0), false, &mut usage);
        assert!(!queue.give_up(1));
        assert_eq!(queue.pop(), Some((0, at(0))));
        assert_eq!(queue.pop(), Some((2, at(2))));
        assert_eq!((queue.pop(), queue.len()), (None, 2));
    }

    #[test]
    fn usage_returns_to_nothing_when_everything_is_gone() {
        for kind in [Kind::Map, Kind::Tree] {
            let mut map = structure(kind);
            let mut usage = Tally::new(1);
            let key = || Key::Bytes(b"key"[..].into());
            map.apply(EntryKind::Put, key(), at(1), false, &mut usage);
            map.apply(EntryKind::Put, key(), at(2), false, &mut usage);
            assert!(!map.relocate(&key(), at(1), at(3), &mut usage));
            assert_eq!(map.entry_of(b"key"), Some(at(2)), "it has changed since");
            assert!(map.relocate(&key(), at(2), at(3), &mut usage));
            assert_eq!(map.entry_of(b"key"), Some(at(3)));
            let mut dropped = usage.clone();
            map.give_back(&mut dropped);
            assert_eq!(dropped, Tally::new(1));
            map.apply(EntryKind::Remove, key(), at(0), false, &mut usage);
            assert_eq!((map.len(), usage), (0, Tally::new(1)));
        }
    }
}
