//! The part of maps and trees in memory, frozen or not, and the changes that batches make to it.

use crate::entry::{EntryKind, Op};
use crate::fetch::Fetch;
use crate::index::{Slot, Usage};
use crate::log::{Log, OpKey, parts_of};
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
        let frozen = Arc::into_inner(frozen).expect("nobody but the job had it");
        self.present.add_all(&frozen.present);
        for (id, body) in frozen.bodies {
            match self.structures.get_mut(&id) {
                Some(structure) => structure.thaw(body, &mut self.usage),
                None => self.usage.forget_all(&body),
            }
        }
    }

    /// True if a batch helps an area without room: it removes or trims. If damage in `pinned` keeps all space, it has to be the
    /// damaged segment's entries that it removes or overwrites.
    pub(crate) fn gives_room(&self, ops: &[Op<'_>], pinned: Option<u32>) -> bool {
        let helps = |op: &Op<'_>| {
            let (kind, id, key, _) = parts_of(op);
            let place = match key {
                OpKey::New => None,
                OpKey::Position(position) => self.entry_of(id, &position.to_le_bytes()),
                OpKey::Bytes(key) => self.entry_of(id, key),
            };
            let is_pinned = pinned.is_some() && place.map(|it| it.slot) == pinned;
            kind == EntryKind::Trim || is_pinned || (pinned.is_none() && !kind.adds())
        };
        ops.iter().all(helps) && self.net_adds(ops) == Usage::default()
    }
}
