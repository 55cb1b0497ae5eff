//! Which tables count, in which level, and what of them is to become one.

use super::filter;
use super::reader::{Pages, Piece, ReadError, Table, header_of};
use super::{Header, Place};
use crate::entry::entry_bytes;
use crate::format::{u32_at, u64_at};
use crate::layout::{LIST_BYTES, LISTED_BYTES, Layout, list_bytes};
use crate::suspects::Suspects;
use base::Device;
use core::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Levels at most: level 1 has as many tables as level 0, and each deeper one eight times as many. No medium has so many. Damaged
/// tables take some for themselves.
pub(crate) const LEVELS_MAX: usize = 32;
/// How many times the tables of a level the next one has.
const RATIO: u64 = 8;
/// Times that memory was emptied, before level 0 is merged into level 1: each is a table more for every lookup.
pub(crate) const RUNS_MAX: u64 = 4;
/// Part of a list's record that bounds may take.
const BOUNDS_PART: usize = 16;
/// A table without a bound.
const UNBOUND: u16 = u16::MAX;

/// A table, less the keys in front that a job has moved out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub table: Arc<Table>,
    /// Entries below this key do not count any more.
    pub from: Option<Arc<[u8]>>,
}

impl View {
    /// The first key that it may have.
    pub(crate) fn first(&self) -> &[u8] {
        match &self.from {
            Some(from) if **from > *self.table.meta.first => from,
            _ => &self.table.meta.first,
        }
    }

    pub(crate) fn last(&self) -> &[u8] {
        &self.table.meta.last
    }

    /// True if an entry of this key counts.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.from.as_ref().is_none_or(|from| **from <= *key)
    }

    /// True if it has keys from `first` to `last`.
    pub(crate) fn overlaps(&self, first: &[u8], last: &[u8]) -> bool {
        self.first() <= last && first <= self.last()
    }
}

/// All tables that count, at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    /// Operations on keys in records up to this one are in tables.
    pub flushed: u64,
    /// Level 0 has the newest table first; the others go by their keys.
    pub levels: Vec<Vec<View>>,
}

/// What the log says of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub flushed: u64,
    pub tables: Vec<Listed>,
    bounds: Vec<Arc<[u8]>>,
}

/// A table in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub place: Place,
    level: u8,
    bound: u16,
}

impl Listed {
    fn is_replaced(&self, places: &BTreeMap<u32, u64>) -> bool {
        let now = places.get(&self.place.slot);
        now.is_some_and(|generation| *generation != self.place.generation)
    }
}

impl List {
    /// Tables that a list can have, with some bounds of usual length, in a record of so many bytes, of which descriptions take some.
    pub(crate) fn tables_max(record_bytes: usize, described_bytes: usize) -> u32 {
        let taken = described_bytes + entry_bytes(0, list_bytes(0)) + record_bytes / BOUNDS_PART;
        (record_bytes.saturating_sub(taken) / LISTED_BYTES) as u32
    }

    /// `None` if it makes no sense.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(LIST_BYTES)?;
        let count = (u32_at(fixed, 8) as usize).checked_mul(LISTED_BYTES)?;
        let (tables, mut rest) = rest.split_at_checked(count)?;
        let mut bounds = Vec::new();
        for _ in 0..u32_at(fixed, 12) {
            let (length, more) = rest.split_at_checked(4)?;
            let (bound, more) = more.split_at_checked(u32_at(length, 0) as usize)?;
            bounds.push(bound.into());
            rest = more;
        }
        let listed = |bytes: &[u8]| Listed {
            place: Place {
                slot: u32_at(bytes, 0),
                generation: u64_at(bytes, 4),
            },
            level: bytes[12],
            bound: u16::from_le_bytes([bytes[14], bytes[15]]),
        };
        let tables: Vec<Listed> = tables.chunks(LISTED_BYTES).map(listed).collect();
        let is_sound = |it: &Listed| {
            usize::from(it.level) < LEVELS_MAX
                && (it.bound == UNBOUND || usize::from(it.bound) < bounds.len())
        };
        tables.iter().all(is_sound).then_some(Self {
            flushed: u64_at(fixed, 0),
            tables,
            bounds,
        })
    }

    /// Adds tables that a newer list may have had: the newest ones of all. Listed tables are left out if their places, by slot, have
    /// something else by now.
    pub(crate) fn renew(&mut self, newer: &[Place], places: &BTreeMap<u32, u64>) {
        self.tables.retain(|it| !it.is_replaced(places));
        let listed = |place: &Place| Listed {
            place: *place,
            level: 0,
            bound: UNBOUND,
        };
        self.tables.extend(newer.iter().map(listed));
    }

    /// True if some of its tables' places, by slot, have something else by now.
    pub(crate) fn is_outdated(&self, places: &BTreeMap<u32, u64>) -> bool {
        self.tables.iter().any(|it| it.is_replaced(places))
    }

    /// The highest generation of its tables.
    pub(crate) fn newest(&self) -> u64 {
        let generations = self.tables.iter().map(|it| it.place.generation);
        generations.max().unwrap_or(0)
    }

    /// Opens the tables of the list. `Err` has the place in the area of what is damaged.
    pub(crate) fn open(&self, medium: &dyn Device, layout: &Layout) -> Result<Levels, ReadError> {
        let mut levels = Levels {
            flushed: self.flushed,
            levels: Vec::new(),
        };
        for listed in &self.tables {
            let table = self.open_one(medium, layout, listed)?;
            levels.insert(usize::from(listed.level), self.view(listed, Arc::new(table)));
        }
        Ok(levels)
    }

    /// The same with the tables that are open already.
    pub(crate) fn open_beside(
        &self,
        medium: &dyn Device,
        layout: &Layout,
        known: &Levels,
    ) -> Result<Levels, ReadError> {
        let mut levels = Levels {
            flushed: self.flushed,
            levels: Vec::new(),
        };
        for listed in &self.tables {
            let open = known.all().find(|(_, view)| view.table.place == listed.place);
            let table = match open {
                Some((_, view)) => Arc::clone(&view.table),
                None => Arc::new(self.open_one(medium, layout, listed)?),
            };
            levels.insert(usize::from(listed.level), self.view(listed, table));
        }
        Ok(levels)
    }

    /// All tables, with what is damaged: of a table that does not tell what is in it, everything that can be read.
    pub(crate) fn open_damaged(&self, medium: &dyn Device, layout: &Layout) -> (Levels, u64) {
        let mut damaged = 0;
        let mut levels = Levels::default();
        for listed in self.tables.iter().filter(|it| it.place.slot < layout.segments) {
            let table = self.open_one(medium, layout, listed).unwrap_or_else(|_| {
                damaged += 1;
                Table::without_meta(*layout, listed.place)
            });
            levels.insert(usize::from(listed.level), self.view(listed, Arc::new(table)));
        }
        (levels, damaged)
    }

    /// A table of the list, less what is below its bound.
    fn view(&self, listed: &Listed, table: Arc<Table>) -> View {
        let bound = self.bounds.get(usize::from(listed.bound));
        View {
            table,
            from: bound.filter(|_| listed.bound != UNBOUND).cloned(),
        }
    }

    /// Reads one of the tables.
    pub(crate) fn open_one(
        &self,
        medium: &dyn Device,
        layout: &Layout,
        listed: &Listed,
    ) -> Result<Table, ReadError> {
        let Place { slot, generation } = listed.place;
        let damaged = crate::damage::FetchError::Damaged {
            offset: layout.segment_offset(slot.min(layout.segments - 1)),
        };
        if slot >= layout.segments {
            return Err(damaged.into());
        }
        let mut sector = vec![0; layout.sector_bytes as usize];
        medium.read_at(layout.segment_offset(slot), &mut sector)?;
        let header = header_of(layout, slot, &sector);
        let header: Header = header.filter(|it| it.generation == generation).ok_or(damaged)?;
        Table::open(medium, *layout, slot, &header)
    }
}

impl Levels {
    /// The list, as the log has it.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bounds: Vec<Arc<[u8]>> = Vec::new();
        let mut tables = Vec::new();
        for (level, view) in self.all() {
            let bound = match &view.from {
                None => UNBOUND,
                Some(from) => {
                    let known = bounds.iter().position(|bound| bound == from);
                    known.unwrap_or_else(|| {
                        bounds.push(Arc::clone(from));
                        bounds.len() - 1
                    }) as u16
                }
            };
            let place = view.table.place;
            tables.extend(place.slot.to_le_bytes());
            tables.extend(place.generation.to_le_bytes());
            tables.extend([level as u8, 0]);
            tables.extend(bound.to_le_bytes());
        }
        let mut bytes = self.flushed.to_le_bytes().to_vec();
        bytes.extend(((tables.len() / LISTED_BYTES) as u32).to_le_bytes());
        bytes.extend((bounds.len() as u32).to_le_bytes());
        bytes.extend(tables);
        for bound in bounds {
            bytes.extend((bound.len() as u32).to_le_bytes());
            bytes.extend(&*bound);
        }
        bytes
    }

    /// True if nothing has ever left memory.
    pub(crate) fn is_unused(&self) -> bool {
        self.flushed == 0 && self.count() == 0
    }

    /// All tables, by level.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &View)> {
        let levels = self.levels.iter().enumerate();
        levels.flat_map(|(level, views)| views.iter().map(move |view| (level, view)))
    }

    /// Tables that a range looks into at least: those of level 0, and one of each other level.
    pub(crate) fn runs(&self) -> usize {
        let mut levels = self.levels.iter();
        let newest = levels.next().map_or(0, Vec::len);
        newest + levels.filter(|views| !views.is_empty()).count()
    }

    pub(crate) fn count(&self) -> u32 {
        self.levels.iter().map(Vec::len).sum::<usize>() as u32
    }

    /// Bytes of entries of a structure cannot be told from those of others; their number can, if none is there twice.
    pub(crate) fn entries_of(&self, id: crate::entry::StructureId) -> u64 {
        let counts = self.all().flat_map(|(_, view)| &view.table.meta.structures);
        let of_it = counts.filter(|count| count.id == id);
        let (values, removals) = of_it.fold((0, 0), |sum, it| (sum.0 + it.values, sum.1 + it.removals));
        u64::saturating_sub(values, removals)
    }

    /// The highest number of a structure in any table.
    pub(crate) fn structure_max(&self) -> Option<crate::entry::StructureId> {
        let counts = self.all().flat_map(|(_, view)| &view.table.meta.structures);
        counts.map(|count| count.id).max()
    }

    /// Puts a table into its place.
    pub(crate) fn insert(&mut self, level: usize, view: View) {
        while self.levels.len() <= level {
            self.levels.push(Vec::new());
        }
        let views = &mut self.levels[level];
        let at = match level {
            0 => views.partition_point(|it| it.table.place.generation > view.table.place.generation),
            _ => views.partition_point(|it| it.first() < view.first()),
        };
        views.insert(at, view);
    }

    /// The newest entry of a key.
    pub(crate) fn get<P: Pages>(
        &self,
        pages: &mut P,
        key: &[u8],
    ) -> Result<Option<Piece<P::Page>>, P::Error> {
        let hash = filter::hash(key);
        for (level, views) in self.levels.iter().enumerate() {
            let views = match level {
                0 => &views[..],
                _ => at_key(views, key),
            };
            for view in views.iter().filter(|view| view.has(key)) {
                if let Some(piece) = view.table.get(pages, key, hash)? {
                    return Ok(Some(piece));
                }
            }
        }
        Ok(None)
    }

    /// True if no two tables of a level below the first overlap.
    pub(crate) fn are_apart(&self) -> bool {
        let below = self.levels.iter().skip(1);
        below
            .into_iter()
            .all(|views| views.is_sorted_by(|a, b| a.last() < b.first()))
    }

    /// Tables that a level should have at most, if memory becomes so many at a time.
    pub(crate) fn tables_max(level: usize, run_tables: u64) -> u64 {
        let first = RUNS_MAX * run_tables.max(1);
        match level {
            0 => first,
            _ => first.saturating_mul(RATIO.saturating_pow(level as u32 - 1)),
        }
    }

    /// The deepest level that has tables.
    fn deepest(&self) -> usize {
        self.levels
            .iter()
            .rposition(|views| !views.is_empty())
            .unwrap_or(0)
    }

    /// The next step. `urgent` if space is needed, so that all duplicates should go. Tables that are `suspects` are not
    /// merged, and what overlaps them goes around.
    pub(crate) fn pick(
        &self,
        run_tables: u64,
        cursors: &[Vec<u8>; LEVELS_MAX],
        urgent: bool,
        suspects: &Suspects,
    ) -> Option<Step> {
        let above = self.levels.iter().enumerate().take(LEVELS_MAX - 1);
        // The level that is the most times over its limit first. Parts of 1024, as the numbers are small.
        let excess = above.map(|(level, views)| {
            let limit = Self::tables_max(level, run_tables);
            (views.len() as u64 * 1024 / limit, core::cmp::Reverse(level))
        });
        let mut full: Vec<_> = excess.filter(|(excess, _)| *excess > 1024).collect();
        full.sort_unstable_by(|a, b| b.cmp(a));
        let full = full.into_iter().map(|(_, core::cmp::Reverse(level))| level);
        // From the top: what is above the deepest level may hide what lies there.
        let above = (0..self.deepest()).filter(|&level| !self.levels[level].is_empty());
        let alone = self.levels.first().filter(|views| views.len() > 1).map(|_| 0);
        let rest = above.chain(alone).filter(|_| urgent);
        full.chain(rest)
            .find_map(|level| self.pick_in(level, run_tables, cursors, suspects))
    }

    /// The step that a level can take.
    fn pick_in(
        &self,
        level: usize,
        run_tables: u64,
        cursors: &[Vec<u8>; LEVELS_MAX],
        suspects: &Suspects,
    ) -> Option<Step> {
        let views = &self.levels[level];
        let is_damaged = |view: &View| suspects.has(view.table.place.generation);
        let damaged_below = |sources: &[View]| {
            let first = sources.iter().map(View::first).min()?;
            let last = sources.iter().map(View::last).max()?;
            let below = self.overlapping(level + 1, first, last);
            below.into_iter().find(is_damaged)
        };
        if level > 0 {
            let next = views.partition_point(|view| view.first() <= &cursors[level][..]);
            let around = views[next..].iter().chain(&views[..next]);
            let mut free = around
                .filter(|view| !is_damaged(view))
                .map(|view| vec![view.clone()]);
            let sources = free.find(|sources| damaged_below(sources).is_none())?;
            return Some(Step::Merge(Pick { level, sources }));
        }
        // The oldest ones: so many at a time that there is room for what they become. What is newer than a damaged one has to stay
        // above it.
        let oldest = views.iter().rposition(is_damaged);
        let most = Self::tables_max(0, run_tables) as usize;
        let from = oldest
            .map_or(0, |at| at + 1)
            .max(views.len().saturating_sub(most));
        let sources = views[from..].to_vec();
        let sunk = match sources.is_empty() {
            true => oldest.map(|at| (0, views[at].clone())),
            false => damaged_below(&sources).map(|view| (1, view)),
        };
        match sunk {
            // It may be read before long.
            Some((_, view)) if !suspects.stays(view.table.place.generation) => None,
            Some((level, view)) if self.sunk(level, &view).is_some() => Some(Step::Sink(level, view)),
            Some(_) => None,
            None => Some(Step::Merge(Pick { level, sources })),
        }
    }

    /// The same with a table one level deeper, so that the level is free of it. If the next one has tables that overlap it, and so are
    /// older, there is a level more between. `None` if there are too many.
    pub(crate) fn sunk(&self, level: usize, view: &View) -> Option<Self> {
        let mut new = self.clone();
        new.levels[level].retain(|it| it.table.place != view.table.place);
        if !self.overlapping(level + 1, view.first(), view.last()).is_empty() {
            if new.levels.len() == LEVELS_MAX {
                return None;
            }
            new.levels.insert(level + 1, Vec::new());
        }
        new.insert(level + 1, view.clone());
        (new.levels.len() <= LEVELS_MAX).then_some(new)
    }

    /// Tables of a level that have keys from `first` to `last`.
    pub(crate) fn overlapping(&self, level: usize, first: &[u8], last: &[u8]) -> Vec<View> {
        let views = self.levels.get(level).into_iter().flatten();
        views.filter(|view| view.overlaps(first, last)).cloned().collect()
    }

    /// True if no table below `level` has keys from `first` to `last`: removals need not be kept there.
    pub(crate) fn is_bottom(&self, level: usize, first: &[u8], last: &[u8]) -> bool {
        let below = self.levels.iter().skip(level + 1).flatten();
        below.into_iter().all(|view| !view.overlaps(first, last))
    }
}

/// The next change of the tables.
pub(crate) enum Step {
    Merge(Pick),
    /// A damaged table of this level goes one level deeper, out of the way of what is newer.
    Sink(usize, View),
}

/// Tables to be merged into the level below theirs.
pub(crate) struct Pick {
    pub level: usize,
    pub sources: Vec<View>,
}

/// The table of a level without overlaps that may have `key`.
fn at_key<'a>(views: &'a [View], key: &[u8]) -> &'a [View] {
    let found = views.binary_search_by(|view| match () {
        () if view.last() < key => Ordering::Less,
        () if view.first() > key => Ordering::Greater,
        () => Ordering::Equal,
    });
    found.map_or(&[], |index| &views[index..=index])
}
