//! Batches that there is room for, in a record, on the medium and in memory.

use crate::entry::{EntryKind, KEY_BYTES_MAX, Op, entry_bytes};
use crate::format::RECORD_HEADER_BYTES;
use crate::index::{Usage, held_bytes, index_bytes};
use crate::layout::list_bytes;
use crate::limits::{FLUSH_SEGMENTS_MIN, MERGED_MAX};
use crate::log::{Access, Log, OpKey, SubmitError, parts_of};

impl Log {
    /// Checks a batch; the bytes that it takes in a record.
    pub(crate) fn admit(&self, ops: &[Op<'_>]) -> Result<usize, SubmitError> {
        self.admit_any()?;
        let (mut bytes, mut removals) = (0, 0);
        let mut adds = Usage::default();
        let has_older = self.frozen.is_some() || !self.levels.is_unused();
        for op in ops {
            let (kind, id, key, value) = parts_of(op);
            let structure = self.structures.get(&id).ok_or(SubmitError::NoStructure)?;
            if !kind.suits(structure.kind) {
                return Err(SubmitError::NoStructure);
            }
            let key_bytes = key.length();
            if key_bytes > KEY_BYTES_MAX {
                return Err(SubmitError::KeyTooLong);
            }
            let entry = entry_bytes(key_bytes, value.len());
            bytes += entry;
            if kind.adds() {
                adds.live += entry as u64;
                adds.index += index_bytes(structure.kind, key_bytes) + self.held_bytes(kind, value);
            } else if kind == EntryKind::Remove && has_older {
                // A removal that is kept takes memory. It is refused for nothing else: it gives room.
                removals += index_bytes(structure.kind, key_bytes);
            }
        }
        if self.with(Usage::default(), true).index + removals > self.index_bytes_max() && removals > 0 {
            return Err(SubmitError::IndexFull);
        }
        if bytes > self.batch_bytes_max() {
            return Err(self.too_long());
        }
        if adds.live > 0 {
            let gross = self.with(adds, true);
            if gross.live > self.live_bytes_max() || gross.index > self.index_bytes_max() {
                self.admit_net(ops)?;
            }
        }
        Ok(bytes)
    }

    /// Admits a batch that would be too much if its values replaced none.
    fn admit_net(&self, ops: &[Op<'_>]) -> Result<(), SubmitError> {
        let adds = self.net_adds(ops);
        if adds == Usage::default() {
            return Ok(());
        }
        let (limit, now) = (self.live_bytes_max(), self.with(adds, false));
        if now.live > limit {
            return Err(SubmitError::NoSpace);
        }
        if now.index > self.index_bytes_max() {
            return Err(SubmitError::IndexFull);
        }
        // Waiting entries may replace others, too: that shows when they are durable. Somebody waits for each.
        let soon = self.with(adds, true);
        match soon.live > limit || soon.index > self.index_bytes_max() {
            true => Err(SubmitError::Busy),
            false => Ok(()),
        }
    }

    /// True if what memory has can leave and be merged with all tables, also after one more batch. The log is not cleaned meanwhile, and
    /// gets a list of the tables for each few that are made.
    pub(crate) fn may_overwrite(&self) -> bool {
        let tables = self.levels.count();
        let list = entry_bytes(0, list_bytes(tables)) as u32 + RECORD_HEADER_BYTES;
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
            entry_bytes(key.length(), value.len())
        };
        match ops.iter().map(bytes).sum() {
            bytes if bytes > self.batch_bytes_max() => Err(self.too_long()),
            bytes => Ok(bytes),
        }
    }

    fn too_long(&self) -> SubmitError {
        let bytes_max = self.batch_bytes_max();
        SubmitError::TooLong { bytes_max }
    }

    /// Growth by a batch, given what its values replace.
    pub(crate) fn net_adds(&self, ops: &[Op<'_>]) -> Usage {
        let mut adds = Usage::default();
        for op in ops {
            let (kind, id, key, value) = parts_of(op);
            let Some(structure) = self.structures.get(&id).filter(|_| kind.adds()) else {
                continue;
            };
            let key_bytes = key.length();
            let old = match key {
                OpKey::New | OpKey::Position(_) => None,
                OpKey::Bytes(key) => self.entry_of(id, key),
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

    /// Memory that the value of an entry takes, if it stays there.
    pub(crate) fn held_bytes(&self, kind: EntryKind, value: &[u8]) -> u64 {
        match self.limits.holds_values() && kind == EntryKind::Put {
            true => held_bytes(value.len()),
            false => 0,
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
