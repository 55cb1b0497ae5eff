//! The part of maps and trees in memory, frozen or not, and the changes that batches make to it.

use crate::entry::{Kind, StructureId};
use crate::fetch::Fetch;
use crate::index::Slot;
use crate::layers::{Bounds, Layers};
use crate::log::Log;
use crate::range::{RangePart, is_empty};
use crate::table::Way;
use crate::table::scan::Scan;
use std::ops::Bound;
use std::sync::Arc;

impl Log {
    /// The value of an entry in memory.
    pub(crate) fn fetch_slot(&self, slot: &Slot) -> Fetch {
        match &slot.value {
            Some(value) => Fetch::Ready(Arc::clone(value)),
            None => self.fetch(slot.at),
        }
    }

    /// Notes all keys in memory.
    pub(crate) fn note_all(&mut self) {
        let Self {
            structures, present, ..
        } = self;
        if present.knows_nothing() {
            return;
        }
        for (&id, structure) in structures {
            structure.each_key(|key| present.add_key(id, key));
        }
    }

    /// Puts what was frozen back.
    pub(crate) fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        self.present.add_all(&frozen.present);
        self.lacks_values |= frozen.lacks_values;
        for (id, body) in &frozen.bodies {
            match self.structures.get_mut(id) {
                Some(structure) => structure.thaw(body, &mut self.usage),
                None => self.usage.forget_all(body),
            }
        }
        self.snapshots.let_go(&frozen);
    }

    /// The layers of a map or tree as it is now.
    pub(crate) fn layers(&self, id: StructureId) -> Option<Layers<'_>> {
        let structure = self.structures.get(&id).filter(|it| it.kind.has_keys())?;
        let frozen = self.frozen.as_ref();
        Some(Layers {
            id,
            kind: structure.kind,
            changed: None,
            own: Some(&structure.body),
            below: frozen.and_then(|frozen| frozen.bodies.get(&id)),
            levels: &self.levels,
        })
    }

    /// A part of a range of a tree: see [`crate::Engine::range`].
    pub(crate) fn part(
        &self,
        layers: Option<&Layers<'_>>,
        (bounds, way): (Bounds<'_>, Way),
        wanted: usize,
        tables: Option<Scan>,
    ) -> RangePart {
        let mut part = RangePart::new(bounds, way);
        let Some(layers) = layers.filter(|it| it.kind == Kind::Tree && !is_empty(bounds)) else {
            return part;
        };
        let limit = self.memory_share(wanted);
        part.memory.reserve(limit);
        part.has_more = layers.each(bounds, way, limit, |key, slot| {
            let fetch = (!slot.at.is_removed()).then(|| self.fetch_slot(slot));
            part.memory.push((key.into(), fetch));
        });
        // While the tables are the same, nothing has left memory for them: they still go with it.
        let same = tables.filter(|scan| scan.is_of(layers.levels));
        part.tables = same.or_else(|| layers.scan(way, bounds, wanted));
        part
    }

    /// All keys of a map or tree: see [`crate::Engine::keys`].
    pub(crate) fn keys(&self, layers: Option<&Layers<'_>>) -> RangePart {
        const ALL: Bounds<'_> = (Bound::Unbounded, Bound::Unbounded);
        let mut part = RangePart::new(ALL, Way::Up);
        let Some(layers) = layers else { return part };
        let fetch = |slot: &Slot| (!slot.at.is_removed()).then(|| self.fetch_slot(slot));
        let all = layers.all().into_iter();
        part.memory = all.map(|(key, slot)| (key, fetch(slot))).collect();
        part.tables = layers.scan(Way::Up, ALL, usize::MAX);
        part
    }

    /// How many of `wanted` entries of a tree are in memory, about, if the rest is in tables: half as many more.
    fn memory_share(&self, wanted: usize) -> usize {
        let tables = u64::from(self.levels.count()) * self.layout.segment_payload_bytes();
        let memory = self.usage.all.live.max(1);
        let share = u128::from(memory) * wanted as u128 * 3 / 2 / u128::from(memory + tables);
        (share as usize + 4).min(wanted)
    }
}
