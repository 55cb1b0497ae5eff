//! The part of maps and trees in memory, frozen or not, and the changes that batches make to it.

use crate::entry::StructureId;
use crate::fetch::Fetch;
use crate::index::Slot;
use crate::layers::{ALL, Bounds, Layers};
use crate::log::Log;
use crate::range::RangePart;
use crate::table::Way;
use crate::table::scan::Scan;
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
    pub(crate) fn part<'a>(
        &self,
        layers: Option<&Layers<'a>>,
        (bounds, way): (Bounds<'a>, Way),
        wanted: usize,
        tables: Option<Scan>,
    ) -> RangePart {
        match layers {
            None => RangePart::new(bounds, way),
            Some(layers) => {
                let limit = self.memory_share(wanted);
                layers.part((bounds, way), limit, wanted, tables, |slot| self.fetch_slot(slot))
            }
        }
    }

    /// All keys of a map or tree: see [`crate::Engine::keys`].
    pub(crate) fn keys(&self, layers: Option<&Layers<'_>>) -> RangePart {
        match layers {
            None => RangePart::new(ALL, Way::Up),
            Some(layers) => layers.keys(|slot| self.fetch_slot(slot)),
        }
    }

    /// How many of `wanted` entries of a tree are in memory, about, if the rest is in tables: half as many more.
    fn memory_share(&self, wanted: usize) -> usize {
        let tables = u64::from(self.levels.count()) * self.layout.segment_payload_bytes();
        let memory = self.usage.all.live.max(1);
        let share = u128::from(memory) * wanted as u128 * 3 / 2 / u128::from(memory + tables);
        (share as usize + 4).min(wanted)
    }
}
