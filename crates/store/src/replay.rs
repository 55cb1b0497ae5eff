//! The structures that a log makes, entry by entry.

use crate::entry::{Description, Entry, EntryKind, StructureId};
use crate::format::{Superblock, u64_at};
use crate::index::{Key, Location, Slot, Structure, Tally};
use std::collections::BTreeMap;

/// The structures, while the log is replayed.
pub(crate) struct Replayed {
    pub structures: BTreeMap<StructureId, Structure>,
    pub usage: Tally,
    pub entries: u64,
    pub next_structure: u32,
    pub seed: u64,
    /// Operations on keys in records up to this one are in tables.
    pub flushed: u64,
    /// There are tables: removals are kept.
    pub has_tables: bool,
    positions_max: u64,
    /// Memory with which no more values are held.
    pub held_bytes_max: u64,
}

impl Replayed {
    /// Nothing yet; what was `flushed` is left out.
    pub(crate) fn new(superblock: &Superblock, flushed: u64, has_tables: bool) -> Self {
        let layout = &superblock.layout;
        let uuid = &superblock.uuid;
        Self {
            structures: BTreeMap::new(),
            usage: Tally::new(layout.segments),
            entries: 0,
            next_structure: 1,
            seed: u64_at(uuid, 0) ^ u64_at(uuid, 8),
            flushed,
            has_tables: has_tables || flushed > 0,
            // No area holds more entries than it has bytes.
            positions_max: layout.capacity_bytes(),
            held_bytes_max: 0,
        }
    }

    /// Applies one entry of a record; false if it contradicts what came before.
    pub(crate) fn take(&mut self, record: u64, entry: &Entry<'_>, location: Location) -> bool {
        self.entries += 1;
        match entry.kind {
            EntryKind::Describe => {
                let description = Description::parse(entry.value);
                let name = core::str::from_utf8(entry.key);
                return match (description, name) {
                    (Some(description), Ok(name)) => self.describe(entry.structure, name, &description),
                    _ => false,
                };
            }
            EntryKind::Drop => {
                if let Some(structure) = self.structures.remove(&entry.structure) {
                    structure.give_back(&mut self.usage);
                }
                return true;
            }
            // The last one was read before.
            EntryKind::Tables => return true,
            EntryKind::Put | EntryKind::Remove if record <= self.flushed => return true,
            _ => {}
        }
        let holds = entry.kind == EntryKind::Put && self.usage.keyed.index < self.held_bytes_max;
        let slot = Slot {
            at: location,
            value: (holds && !entry.value.is_empty()).then(|| entry.value.into()),
        };
        self.place(entry.kind, entry.structure, Key::of(entry), slot)
    }

    /// Applies an entry of a structure; false if it makes no sense there.
    pub(crate) fn place(
        &mut self,
        kind: EntryKind,
        id: StructureId,
        key: Key,
        slot: impl Into<Slot>,
    ) -> bool {
        let Some(structure) = self.structures.get_mut(&id) else {
            return false;
        };
        let is_near = match key {
            Key::Position(position) => structure.span_with(position) < self.positions_max,
            Key::Bytes(_) => true,
        };
        if !kind.suits(structure.kind) || !is_near {
            return false;
        }
        structure.apply(kind, key, slot, self.has_tables, &mut self.usage);
        true
    }

    /// Takes a description in; false if the structure is of another kind.
    pub(crate) fn describe(&mut self, id: StructureId, name: &str, description: &Description) -> bool {
        self.next_structure = self.next_structure.max(id.0.saturating_add(1));
        match self.structures.get_mut(&id) {
            Some(structure) if structure.kind != description.kind => return false,
            Some(structure) => structure.describe_again(description, &mut self.usage),
            None => {
                let seed = self.seed ^ u64::from(id.0);
                let structure = Structure::new(name, description, seed);
                self.structures.insert(id, structure);
            }
        }
        true
    }

    /// A log that lacks a position, and the position.
    pub(crate) fn hole(&self) -> Option<(StructureId, u64)> {
        let mut all = self.structures.iter();
        all.find_map(|(&id, it)| Some((id, it.hole()?)))
    }
}
