//! The layers of a map or tree at a moment: the part in memory, the frozen part, and the tables below.

use crate::entry::{Kind, StructureId};
use crate::fetch::Fetch;
use crate::index::{Body, Slot};
use crate::range::{RangePart, is_empty};
use crate::table::Way;
use crate::table::levels::Levels;
use crate::table::scan::{Scan, Search};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Entries of keys before they changed; `None`: memory had none.
pub(crate) type Changed = BTreeMap<Box<[u8]>, Option<Slot>>;

pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

pub(crate) const ALL: Bounds<'_> = (Bound::Unbounded, Bound::Unbounded);
/// Entries that a part of a range makes room for at once; whoever reads a range asks for no more at a time.
const RESERVED_MAX: usize = 256;
/// Keys that a part of a snapshot's range passes at most, as they have come since: others wait for it.
const PASSED_MAX: usize = 1024;

/// The layers of one structure. An entry of a layer hides those of its key below.
pub(crate) struct Layers<'a> {
    pub id: StructureId,
    pub kind: Kind,
    /// Of a snapshot: what keys of the next layer were that have changed since. It hides that layer alone: `None` for a key that the
    /// layer did not have.
    pub changed: Option<&'a Changed>,
    /// Memory.
    pub own: Option<&'a Body>,
    /// Memory on its way to tables.
    pub below: Option<&'a Body>,
    pub levels: &'a Arc<Levels>,
}

impl<'a> Layers<'a> {
    /// The newest entry of a key above the tables.
    fn slot_of(&self, key: &[u8]) -> Option<&'a Slot> {
        let below = || self.below.and_then(|body| body.slot_of(key));
        match self.changed.and_then(|changed| changed.get(key)) {
            Some(Some(slot)) => Some(slot),
            Some(None) => below(),
            None => self.own.and_then(|body| body.slot_of(key)).or_else(below),
        }
    }

    /// Hands over the entries of a range above the tables, in order, `limit` of them at most. The key that it looked at last, if there are
    /// more: of a snapshot it passes a number of keys that have come since, and no more at once.
    fn each(
        &self,
        bounds: Bounds<'a>,
        way: Way,
        limit: usize,
        mut take: impl FnMut(&[u8], &Slot),
    ) -> Option<&'a [u8]> {
        let changed = self.changed.into_iter().flat_map(|changed| {
            let all = changed.range::<[u8], _>(bounds);
            let all = all.map(|(key, slot)| (&**key, slot.as_ref()));
            way.iter(all)
        });
        let range = |body: Option<&'a Body>| body.into_iter().flat_map(move |body| body.range(bounds, way));
        let mut changed = changed.peekable();
        let (mut own, mut below) = (range(self.own).peekable(), range(self.below).peekable());
        let (mut taken, mut passed) = (0, 0);
        let mut last = None;
        loop {
            let first = |a: Option<&'a [u8]>, b: Option<&'a [u8]>| match (a, b) {
                (Some(a), Some(b)) => Some(if way.cmp(a, b).is_le() { a } else { b }),
                (a, b) => a.or(b),
            };
            let key = first(own.peek().map(|it| it.0), below.peek().map(|it| it.0));
            let key = first(key, changed.peek().map(|it| it.0))?;
            if taken == limit || passed == PASSED_MAX {
                return last;
            }
            last = Some(key);
            let changed = changed.next_if(|it| it.0 == key).map(|it| it.1);
            let own = own.next_if(|it| it.0 == key).map(|it| it.1);
            let below = below.next_if(|it| it.0 == key).map(|it| it.1);
            let slot = match changed {
                Some(before) => before.or(below),
                None => own.or(below),
            };
            match slot {
                Some(slot) => {
                    take(key, slot);
                    taken += 1;
                }
                None => passed += 1,
            }
        }
    }

    /// All entries above the tables, in order.
    fn all(&self) -> BTreeMap<Box<[u8]>, &'a Slot> {
        let mut entries: BTreeMap<Box<[u8]>, &Slot> = BTreeMap::new();
        let has_changed = |key: &[u8]| self.changed.is_some_and(|changed| changed.contains_key(key));
        if let Some(below) = self.below {
            entries.extend(below.entries().map(|(key, slot)| (key.into(), slot)));
        }
        if let Some(own) = self.own {
            let same = own.entries().filter(|(key, _)| !has_changed(key));
            entries.extend(same.map(|(key, slot)| (key.into(), slot)));
        }
        let before = self.changed.into_iter().flatten();
        entries.extend(before.filter_map(|(key, slot)| Some((key.clone(), slot.as_ref()?))));
        entries
    }

    /// The value of a key: `fetch` has one of memory, `search` looks it up in tables.
    pub(crate) fn get(
        &self,
        key: &[u8],
        fetch: impl FnOnce(&Slot) -> Fetch,
        search: impl FnOnce() -> Search,
    ) -> Option<Fetch> {
        fetched(self.slot_of(key), self.levels, fetch, search)
    }

    /// A part of a range of a tree, with `limit` entries of memory at most: see [`crate::Engine::range`].
    pub(crate) fn part(
        &self,
        (bounds, way): (Bounds<'a>, Way),
        limit: usize,
        wanted: usize,
        tables: Option<Scan>,
        fetch: impl Fn(&Slot) -> Fetch,
    ) -> RangePart {
        let mut part = RangePart::new(bounds, way);
        if self.kind != Kind::Tree || is_empty(bounds) {
            return part;
        }
        part.memory.reserve(limit.min(RESERVED_MAX));
        let stop = self.each(bounds, way, limit, |key, slot| {
            part.memory.push((key.into(), unless_removed(slot, &fetch)));
        });
        part.stop = stop.map(Box::from);
        // While the tables are the same, nothing has left memory for them: they still go with it.
        let same = tables.filter(|scan| scan.is_of(self.levels));
        part.tables = same.or_else(|| Scan::over(self.levels, self.id, way, bounds, wanted));
        part
    }

    /// All keys of a map or tree: see [`crate::Engine::keys`].
    pub(crate) fn keys(&self, fetch: impl Fn(&Slot) -> Fetch) -> RangePart {
        let mut part = RangePart::new(ALL, Way::Up);
        let all = self.all().into_iter();
        part.memory = all
            .map(|(key, slot)| (key, unless_removed(slot, &fetch)))
            .collect();
        part.tables = Scan::over(self.levels, self.id, Way::Up, ALL, usize::MAX);
        part
    }
}

/// The value of a key of which memory has this entry, or none.
#[inline]
pub(crate) fn fetched(
    slot: Option<&Slot>,
    levels: &Levels,
    fetch: impl FnOnce(&Slot) -> Fetch,
    search: impl FnOnce() -> Search,
) -> Option<Fetch> {
    match slot {
        Some(slot) => unless_removed(slot, fetch),
        None if levels.is_unused() => None,
        None => Some(Fetch::Search(search())),
    }
}

fn unless_removed(slot: &Slot, fetch: impl FnOnce(&Slot) -> Fetch) -> Option<Fetch> {
    (!slot.at.is_removed()).then(|| fetch(slot))
}
