//! What memory has of maps and trees, frozen or not.

use crate::entry::StructureId;
use crate::fetch::Fetch;
use crate::index::{Location, Slot};
use crate::log::Log;
use crate::table::filter;
use std::sync::Arc;

impl Log {
    /// Place of the newest entry in memory of a key, or of a position: of its value, or of its removal.
    pub(crate) fn entry_of(&self, id: StructureId, key: &[u8]) -> Option<Location> {
        let own = self.structures.get(&id)?.entry_of(key);
        own.or_else(|| Some(self.frozen.as_ref()?.slot_of(id, key)?.at))
    }

    /// The newest entry in memory of a key.
    pub(crate) fn slot_of(&self, id: StructureId, key: &[u8]) -> Option<&Slot> {
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

    /// Notes all keys in memory.
    pub(crate) fn note_all(&mut self) {
        let Self {
            structures, present, ..
        } = self;
        for (&id, structure) in structures {
            structure.each_key(|key| present.add(filter::hash_of(id, key)));
        }
    }

    /// The value of an entry in memory.
    pub(crate) fn fetch_slot(&self, slot: &Slot) -> Fetch {
        match &slot.value {
            Some(value) => Fetch::Ready(Arc::clone(value)),
            None => self.fetch(slot.at),
        }
    }

    /// Puts what was frozen back.
    pub(crate) fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        let frozen = Arc::into_inner(frozen).expect("nobody but the job had it");
        self.present.add_all(&frozen.present);
        for (id, body) in frozen.bodies {
            match self.structures.get_mut(&id) {
                Some(structure) => structure.thaw(body, &mut self.usage),
                None => self.usage.forget_all(&body),
            }
        }
    }
}
