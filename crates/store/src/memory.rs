//! The part of maps and trees in memory, frozen or not, and the changes that batches make to it.

use crate::entry::{EntryKind, Op, entry_bytes};
use crate::fetch::Fetch;
use crate::format::RECORD_HEADER_BYTES;
use crate::index::{Slot, Usage, index_bytes};
use crate::limits::FLUSH_SEGMENTS_MIN;
use crate::log::{Access, Log, OpKey, SubmitError, parts_of};
use crate::spill::MERGED_MAX;
use crate::table::levels::List;
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

    /// True if what memory has can leave and be merged with all tables, also after one more batch. The log is not cleaned meanwhile, and
    /// gets a list of the tables for each few that are made.
    pub(crate) fn may_overwrite(&self) -> bool {
        let tables = self.levels.count();
        let list = entry_bytes(0, List::bytes(tables)) as u32 + RECORD_HEADER_BYTES;
        let lists =
            u64::from(tables / MERGED_MAX + FLUSH_SEGMENTS_MIN) * u64::from(self.layout.extent_of(list));
        let segments = lists.div_ceil(u64::from(self.layout.segment_bytes)) as u32 + 1;
        self.space.free_count() >= self.reserve(Access::Relief) + segments
    }

    /// Admits a batch that live data alone keep out, and that adds nothing to them in the end: the bytes that it takes in a record.
    pub(crate) fn admit_over(&self, ops: &[Op<'_>], index: u64) -> Result<usize, SubmitError> {
        if self.with(Usage::default(), true).index + index > self.index_bytes_max() {
            return Err(SubmitError::IndexFull);
        }
        let bytes = |op: &Op<'_>| {
            let (_, _, key, value) = parts_of(op);
            let key_bytes = match key {
                OpKey::New | OpKey::Position(_) => 8,
                OpKey::Bytes(key) => key.len(),
            };
            entry_bytes(key_bytes, value.len())
        };
        match ops.iter().map(bytes).sum() {
            bytes if bytes > self.batch_bytes_max() => Err(SubmitError::TooLong),
            bytes => Ok(bytes),
        }
    }

    /// Growth by a batch, given what its values replace.
    pub(crate) fn net_adds(&self, ops: &[Op<'_>]) -> Usage {
        let mut adds = Usage::default();
        for op in ops {
            let (kind, id, key, value) = parts_of(op);
            let Some(structure) = self.structures.get(&id).filter(|_| kind.adds()) else {
                continue;
            };
            let (key_bytes, old) = match key {
                OpKey::New | OpKey::Position(_) => (8, None),
                OpKey::Bytes(key) => (key.len(), self.entry_of(id, key)),
            };
            let bytes = entry_bytes(key_bytes, value.len()) as u64;
            match old {
                Some(old) => {
                    adds.live += bytes.saturating_sub(old.entry_bytes(key_bytes));
                    let longer = value.len().saturating_sub(old.length as usize) as u64;
                    adds.index += longer.min(self.held_bytes(kind, value));
                }
                None => {
                    adds.live += bytes;
                    adds.index += index_bytes(structure.kind, key_bytes) + self.held_bytes(kind, value);
                }
            }
        }
        adds
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
