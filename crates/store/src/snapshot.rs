//! Snapshots: maps and trees as they were at a moment, while others go on.
//!
//! To take one costs nothing: it begins as what memory has, what is frozen, and the tables. While memory changes, each snapshot keeps what
//! the changed keys were before. When memory is frozen the snapshot keeps the frozen part and needs to follow no more, as
//! nothing frozen changes, and no table does.
//!
//! Memory of an area without tables has places of values, and no values. A value that a snapshot keeps is read by whoever asks for it,
//! like any other. Before the cleaner gives its segment away, it hands the value to the snapshot.
//!
//! Snapshots have a limit of memory, [`Snapshots::bytes_max`]. Beyond, the oldest one ends; so it does when the area lacks space that tables have
//! which only snapshots keep. Readers of it are told.

use crate::entry::{Kind, StructureId};
use crate::fetch::Found;
use crate::index::{Frozen, Key, Slot, Structure, held_bytes, index_bytes};
use crate::layers::{Changed, Layers};
use crate::layout::Layout;
use crate::space::Used;
use crate::table::levels::Levels;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// Snapshots at a time, at most: each change looks at all that follow.
const SNAPSHOTS_MAX: usize = 64;

/// A snapshot of an open area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotId(u64);

/// The snapshot is no more: what it would have kept was too much, or was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the snapshot has ended: it would have kept more memory or space than there is for snapshots")]
pub struct SnapshotEnded;

/// A key of `changed`.
type Kept = (StructureId, Box<[u8]>);

pub(crate) struct Snapshot {
    /// The structures that there were, and the positions of logs and queues.
    structures: BTreeMap<StructureId, (Kind, Range<u64>)>,
    changed: BTreeMap<StructureId, Changed>,
    changed_bytes: u64,
    /// Keys in `changed` whose values memory does not have, by the slot of the log where the values are.
    unheld: BTreeMap<u32, Vec<Kept>>,
    /// A structure was dropped since: tables lack it from then on.
    has_dropped: bool,
    /// Memory as it was when it was frozen; `None`: it is what there is now.
    own: Option<Arc<Frozen>>,
    below: Option<Arc<Frozen>>,
    levels: Arc<Levels>,
}

impl Snapshot {
    /// The layers of a map or tree that there was, which is `now`.
    pub(crate) fn layers<'a>(&'a self, id: StructureId, now: Option<&'a Structure>) -> Option<Layers<'a>> {
        let kind = self.structures.get(&id)?.0;
        let own = match &self.own {
            Some(frozen) => frozen.bodies.get(&id),
            None => now.map(|it| &it.body),
        };
        kind.has_keys().then(|| Layers {
            id,
            kind,
            changed: self.changed.get(&id),
            own,
            below: self.below.as_ref().and_then(|frozen| frozen.bodies.get(&id)),
            levels: &self.levels,
        })
    }

    pub(crate) fn positions(&self, id: StructureId) -> Option<Range<u64>> {
        self.structures.get(&id).map(|(_, positions)| positions.clone())
    }

    /// Keeps what a key is before it changes; bytes that it takes.
    fn keep(&mut self, id: StructureId, kind: Kind, key: &[u8], slot: Option<&Slot>) -> u64 {
        let changed = self.changed.entry(id).or_default();
        if changed.contains_key(key) {
            return 0;
        }
        changed.insert(key.into(), slot.cloned());
        let mut bytes = index_bytes(kind, key.len());
        match slot {
            Some(Slot {
                value: Some(value), ..
            }) => bytes += held_bytes(value.len()),
            Some(Slot { at, value: None }) if at.length > 0 => {
                self.unheld.entry(at.slot).or_default().push((id, key.into()));
                bytes += index_bytes(kind, key.len());
            }
            _ => {}
        }
        self.changed_bytes += bytes;
        bytes
    }

    /// Takes the values that lie in a segment out of its bytes; bytes of memory that they take. `Err` if one is damaged.
    fn rescue(&mut self, layout: &Layout, used: &Used, bytes: &[u8]) -> Result<u64, SnapshotEnded> {
        let mut taken = 0;
        for (id, key) in self.unheld.remove(&used.slot).into_iter().flatten() {
            let kept = self
                .changed
                .get_mut(&id)
                .and_then(|changed| changed.get_mut(&key));
            let Some(Some(slot)) = kept else { continue };
            let found = Found::new(*layout, slot.at, used.generation);
            let blocks = bytes
                .get(found.start as usize..)
                .and_then(|rest| rest.get(..found.length()));
            let value = found
                .extract(blocks.ok_or(SnapshotEnded)?)
                .map_err(|_| SnapshotEnded)?;
            slot.value = Some(value.into());
            taken += slot.value.as_ref().map_or(0, |value| held_bytes(value.len()));
        }
        self.changed_bytes += taken;
        Ok(taken)
    }

    fn frozen(&self) -> impl Iterator<Item = &Arc<Frozen>> {
        self.own.iter().chain(&self.below)
    }

    fn has(&self, frozen: &Arc<Frozen>) -> bool {
        self.frozen().any(|it| Arc::ptr_eq(it, frozen))
    }
}

/// All snapshots of an area.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// `None`: it has ended, and its owner does not know yet.
    all: BTreeMap<SnapshotId, Option<Snapshot>>,
    taken: u64,
    /// Snapshots that are what memory is now, less what has changed.
    following: usize,
    changed_bytes: u64,
    /// The part on its way to tables; others keep it, too.
    present: Option<Arc<Frozen>>,
    /// Of frozen memory that nobody else keeps.
    frozen_bytes: u64,
    bytes_max: u64,
    ended: u64,
    /// Those that have ended, to be dropped where nobody waits.
    trash: Vec<Snapshot>,
}

impl Snapshots {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    /// Takes one, if there are not too many: of these structures, with what is frozen and the tables.
    pub(crate) fn take(
        &mut self,
        structures: &BTreeMap<StructureId, Structure>,
        below: Option<Arc<Frozen>>,
        levels: Arc<Levels>,
    ) -> Option<SnapshotId> {
        if self.all.len() >= SNAPSHOTS_MAX {
            return None;
        }
        let structures = structures.iter();
        let snapshot = Snapshot {
            structures: structures
                .map(|(&id, it)| (id, (it.kind, it.floor()..it.next)))
                .collect(),
            changed: BTreeMap::new(),
            changed_bytes: 0,
            unheld: BTreeMap::new(),
            has_dropped: false,
            own: None,
            below,
            levels,
        };
        let id = SnapshotId(self.taken);
        self.taken += 1;
        self.following += 1;
        self.all.insert(id, Some(snapshot));
        Some(id)
    }

    /// Its owner needs it no more.
    pub(crate) fn release(&mut self, id: SnapshotId) {
        self.end(id);
        self.all.remove(&id);
    }

    pub(crate) fn get(&self, id: SnapshotId) -> Result<&Snapshot, SnapshotEnded> {
        self.all.get(&id).and_then(Option::as_ref).ok_or(SnapshotEnded)
    }

    /// How many there are, and how many have ended before their owners let go.
    pub(crate) fn counts(&self) -> (u32, u64) {
        (self.all.values().flatten().count() as u32, self.ended)
    }

    /// Memory that only snapshots keep, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.changed_bytes + self.frozen_bytes
    }

    fn following(&mut self) -> impl Iterator<Item = &mut Snapshot> {
        self.all.values_mut().flatten().filter(|it| it.own.is_none())
    }

    /// A key of a structure is about to change.
    #[inline]
    pub(crate) fn keep(&mut self, id: StructureId, structure: &Structure, key: &Key) {
        if self.following > 0
            && let Key::Bytes(key) = key
        {
            self.keep_entry(id, structure.kind, key, structure.body.slot_of(key));
        }
    }

    fn keep_entry(&mut self, id: StructureId, kind: Kind, key: &[u8], slot: Option<&Slot>) {
        let had = |it: &&mut Snapshot| it.structures.contains_key(&id);
        let kept = self
            .following()
            .filter(had)
            .map(|it| it.keep(id, kind, key, slot));
        self.changed_bytes += kept.sum::<u64>();
        self.limit();
    }

    /// A structure is about to be dropped.
    pub(crate) fn dropped(&mut self, id: StructureId, structure: &Structure) {
        for snapshot in self.all.values_mut().flatten() {
            snapshot.has_dropped |= snapshot.structures.contains_key(&id);
        }
        for (key, slot) in structure.body.entries() {
            if self.following == 0 {
                return;
            }
            self.keep_entry(id, structure.kind, key, Some(slot));
        }
    }

    /// Memory was frozen.
    pub(crate) fn froze(&mut self, frozen: &Arc<Frozen>) {
        self.following().for_each(|it| it.own = Some(Arc::clone(frozen)));
        self.following = 0;
        self.present = Some(Arc::clone(frozen));
    }

    /// The frozen part is in tables, which are `levels` now.
    pub(crate) fn flushed(&mut self, frozen: &Arc<Frozen>, levels: &Arc<Levels>) {
        for snapshot in self.all.values_mut().flatten() {
            let is_below = snapshot.below.as_ref().is_some_and(|it| Arc::ptr_eq(it, frozen));
            if is_below && !snapshot.has_dropped {
                // Since the snapshot nothing else has gone to tables.
                snapshot.below = None;
                snapshot.levels = Arc::clone(levels);
            }
        }
        self.let_go(frozen);
    }

    /// The log does not keep the places of what was frozen any more.
    pub(crate) fn let_go(&mut self, frozen: &Arc<Frozen>) {
        if frozen.lacks_values {
            self.end_all(|it| it.has(frozen));
        }
        self.present = None;
        self.recount();
        self.limit();
    }

    /// Counts the frozen memory that only snapshots have.
    fn recount(&mut self) {
        let mut met: Vec<&Arc<Frozen>> = Vec::new();
        for frozen in self.all.values().flatten().flat_map(Snapshot::frozen) {
            let is_known = |other: &&Arc<Frozen>| Arc::ptr_eq(frozen, other);
            if !met.iter().copied().chain(&self.present).any(|it| is_known(&it)) {
                met.push(frozen);
            }
        }
        self.frozen_bytes = met.iter().map(|frozen| frozen.usage.index).sum();
    }

    fn limit(&mut self) {
        while self.bytes() > self.bytes_max && self.end_oldest() {}
    }

    /// Ends the oldest one; false if there is none.
    fn end_oldest(&mut self) -> bool {
        self.end_first(|_| true)
    }

    /// Ends the oldest one that keeps a table of one of these generations; false if none does.
    pub(crate) fn end_keeper(&mut self, tables: &BTreeSet<u64>) -> bool {
        self.end_first(|it| {
            let mut generations = it.levels.all().map(|(_, view)| view.table.place.generation);
            generations.any(|generation| tables.contains(&generation))
        })
    }

    fn end_first(&mut self, is_it: impl Fn(&Snapshot) -> bool) -> bool {
        let mut all = self.all.iter();
        let first = all.find(|(_, it)| it.as_ref().is_some_and(&is_it));
        first.map(|(id, _)| *id).is_some_and(|id| {
            self.give_up(id);
            true
        })
    }

    fn end_all(&mut self, is_lost: impl Fn(&Snapshot) -> bool) {
        while self.end_first(&is_lost) {}
    }

    /// Ends one that its owner still has.
    fn give_up(&mut self, id: SnapshotId) {
        self.end(id);
        self.ended += 1;
    }

    fn end(&mut self, id: SnapshotId) {
        if let Some(mut snapshot) = self.all.get_mut(&id).and_then(Option::take) {
            // Segments of tables are free at once.
            snapshot.levels = Arc::default();
            self.following -= usize::from(snapshot.own.is_none());
            self.changed_bytes -= snapshot.changed_bytes;
            self.trash.push(snapshot);
            self.recount();
        }
    }

    pub(crate) fn has_trash(&self) -> bool {
        !self.trash.is_empty()
    }

    /// Memory that was kept for those that have ended.
    pub(crate) fn trash(&mut self) -> Vec<Snapshot> {
        core::mem::take(&mut self.trash)
    }

    /// True if a segment of the log has values that only snapshots need.
    pub(crate) fn need(&self, slot: u32) -> bool {
        let mut all = self.all.values().flatten();
        all.any(|it| it.unheld.contains_key(&slot))
    }

    /// A segment of the log is about to be given away: its bytes.
    pub(crate) fn rescue(&mut self, layout: &Layout, used: &Used, bytes: &[u8]) {
        let mut lost = Vec::new();
        for (&id, snapshot) in &mut self.all {
            match snapshot
                .as_mut()
                .map_or(Ok(0), |it| it.rescue(layout, used, bytes))
            {
                Ok(taken) => self.changed_bytes += taken,
                Err(SnapshotEnded) => lost.push(id),
            }
        }
        for id in lost {
            self.give_up(id);
        }
        self.limit();
    }
}
