//! Lookups and ranges over all tables, as of a moment: whoever has one of these keeps the tables that it needs.

use super::levels::{Levels, View};
use super::reader::{Aim, Cursor, Pages, Piece};
use super::{Way, table_key};
use crate::entry::{KEY_BYTES_MAX, StructureId};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// A lookup that goes on in the tables. It needs the engine no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    levels: Arc<Levels>,
    key: SmallVec<[u8; 36]>,
    freezes: u64,
    is_past: bool,
}

impl Search {
    pub(crate) fn new(levels: &Arc<Levels>, structure: StructureId, key: &[u8], freezes: u64) -> Self {
        let mut whole = SmallVec::new();
        whole.extend_from_slice(&structure.0.to_be_bytes());
        whole.extend_from_slice(key);
        Self {
            levels: Arc::clone(levels),
            key: whole,
            freezes,
            is_past: false,
        }
    }

    /// In the tables of a snapshot.
    pub(crate) fn of_past(levels: &Arc<Levels>, structure: StructureId, key: &[u8]) -> Self {
        Self {
            is_past: true,
            ..Self::new(levels, structure, key, 0)
        }
    }

    /// True if it is for a snapshot: what is known of the present value is nothing to it.
    pub fn is_past(&self) -> bool {
        self.is_past
    }

    /// The key in tables: its structure comes before it.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// [`crate::Engine::freezes`] when it was looked up.
    pub fn freezes(&self) -> u64 {
        self.freezes
    }

    /// The newest entry of the key; `None` if it has none, or was removed.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn run<P: Pages>(&self, pages: &mut P) -> Result<Option<Piece<P::Page>>, P::Error> {
        let piece = self.levels.get(pages, &self.key)?;
        Ok(piece.filter(|piece| piece.value().is_some()))
    }
}

/// Entries of the tables in order, from a key of a structure on, or down from one. Removals are among them.
pub struct Scan {
    levels: Arc<Levels>,
    structure: StructureId,
    way: Way,
    /// Its beginning; `None` when it has begun.
    from: Option<Aim>,
    /// Entries that are wanted, about.
    wanted: usize,
    /// The present entry is that of the last run. Those without an entry are dropped.
    runs: Vec<Run>,
}

/// Tables whose keys follow each other: those of a level, or one of level 0.
struct Run {
    level: usize,
    way: Way,
    /// The tables of the level that come next, as [`Way::take`] has it, and where they end.
    next: usize,
    end: usize,
    cursor: Cursor,
    /// Entries of the present table below this key do not count any more.
    least: Option<Arc<[u8]>>,
    /// Of two entries with one key that of the lower age counts.
    age: usize,
}

impl Run {
    fn order(&self, other: &Self) -> Ordering {
        let keys = self.way.cmp(self.cursor.key(), other.cursor.key());
        keys.then(self.age.cmp(&other.age))
    }

    /// Goes to the next entry of the present table; false at the end.
    fn advance_within<P: Pages>(&mut self, pages: &mut P) -> Result<bool, P::Error> {
        let has_entry = self.cursor.advance(pages)?;
        Ok(has_entry
            && self
                .least
                .as_ref()
                .is_none_or(|least| **least <= *self.cursor.key()))
    }

    /// Goes to the next entry; false at the end.
    fn advance<P: Pages>(&mut self, levels: &Levels, pages: &mut P) -> Result<bool, P::Error> {
        while !self.advance_within(pages)? {
            if self.next == self.end {
                return Ok(false);
            }
            let views = &levels.levels[self.level];
            let Some(nth) = self.way.take(&mut self.next, views.len()) else {
                return Ok(false);
            };
            let view = &views[nth];
            let from = match self.way {
                Way::Up => view.first(),
                Way::Down => view.last(),
            };
            let few = self.cursor.ahead();
            self.cursor = Cursor::aim(&view.table, pages, (Aim::at(from), self.way), few)?;
            self.least.clone_from(&view.from);
        }
        Ok(true)
    }
}

impl Scan {
    /// The entries of a structure from the first bound on, or down from the last. Pages with about `wanted` entries are read at once.
    /// `None` if nothing has ever left memory for tables.
    pub(crate) fn over(
        levels: &Arc<Levels>,
        structure: StructureId,
        way: Way,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        wanted: usize,
    ) -> Option<Self> {
        let key = |bound| match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        (!levels.is_unused()).then(|| match way {
            Way::Up => Self::up(levels, structure, key(bounds.0).unwrap_or_default(), wanted),
            Way::Down => Self::down(levels, structure, key(bounds.1), wanted),
        })
    }

    /// Begins with the first key that is not below `from`.
    fn up(levels: &Arc<Levels>, structure: StructureId, from: &[u8], wanted: usize) -> Self {
        Self {
            levels: Arc::clone(levels),
            structure,
            way: Way::Up,
            from: Some(Aim::at(&table_key(structure, from))),
            wanted,
            runs: Vec::new(),
        }
    }

    /// The same downwards: it begins with the last key that is not above `to`, or with the last one of the structure.
    fn down(levels: &Arc<Levels>, structure: StructureId, to: Option<&[u8]>, wanted: usize) -> Self {
        // The last key comes before all keys of the next structure.
        let next = || match structure.0.checked_add(1) {
            Some(next) => table_key(StructureId(next), &[]),
            None => vec![u8::MAX; size_of::<StructureId>() + KEY_BYTES_MAX + 1],
        };
        let from = match to {
            Some(to) => Aim::at(&table_key(structure, to)),
            None => Aim {
                key: next().into(),
                is_included: false,
            },
        };
        Self {
            way: Way::Down,
            from: Some(from),
            ..Self::up(levels, structure, &[], wanted)
        }
    }

    /// True if these are the tables that it goes through.
    pub(crate) fn is_of(&self, levels: &Arc<Levels>) -> bool {
        Arc::ptr_eq(&self.levels, levels)
    }

    /// The first table of each run: level, index, where the run ends, and how many tables it has.
    fn firsts(&self, from: &Aim) -> Vec<(usize, usize, usize, usize)> {
        let mut firsts = Vec::new();
        for (level, views) in self.levels.levels.iter().enumerate() {
            let reaches = |view: &View| match self.way {
                Way::Up => *view.last() >= *from.key,
                Way::Down => *view.first() <= *from.key,
            };
            match (level, self.way) {
                (0, way) => {
                    let reached = (0..views.len()).filter(|&nth| reaches(&views[nth]));
                    let end = |nth| if way == Way::Up { nth + 1 } else { nth };
                    firsts.extend(reached.map(|nth| (level, nth, end(nth), 1)));
                }
                (_, Way::Up) => {
                    let nth = views.partition_point(|view| !reaches(view));
                    if nth < views.len() {
                        firsts.push((level, nth, views.len(), views.len()));
                    }
                }
                (_, Way::Down) => {
                    let last = views.partition_point(reaches).checked_sub(1);
                    firsts.extend(last.map(|nth| (level, nth, 0, views.len())));
                }
            }
        }
        firsts
    }

    /// Finds the first page of each run, and has them read together.
    fn begin<P: Pages>(&mut self, from: &Aim, pages: &mut P) -> Result<(), P::Error> {
        let levels = Arc::clone(&self.levels);
        let count = levels.count() as usize;
        let way = self.way;
        for (age, (level, nth, end, share)) in self.firsts(from).into_iter().enumerate() {
            let view = &levels.levels[level][nth];
            let entries = self.wanted.saturating_mul(share) / count.max(1);
            let from = match way {
                Way::Up if *view.first() > *from.key => Aim::at(view.first()),
                Way::Down if *view.last() < *from.key => Aim::at(view.last()),
                _ => from.clone(),
            };
            let ahead = view.table.pages_of(entries);
            let cursor = Cursor::aim(&view.table, pages, (from, way), ahead)?;
            self.runs.push(Run {
                level,
                way,
                next: if way == Way::Up { nth + 1 } else { nth },
                end,
                cursor,
                least: view.from.clone(),
                age,
            });
        }
        let wanted: Vec<_> = self.runs.iter().flat_map(|run| run.cursor.wanted()).collect();
        pages.ahead(&wanted);
        let mut runs = core::mem::take(&mut self.runs);
        let mut result = Ok(());
        runs.retain_mut(|run| match &result {
            Ok(()) => match run.advance(&levels, pages) {
                Ok(has_entry) => has_entry,
                Err(error) => {
                    result = Err(error);
                    false
                }
            },
            Err(_) => false,
        });
        runs.sort_unstable_by(|a, b| b.order(a));
        self.runs = runs;
        result
    }

    /// Moves the run at `nth`, which was advanced, to its place; drops it if it `is_over`.
    fn place(&mut self, nth: usize, is_over: bool) {
        if is_over {
            self.runs.remove(nth);
            return;
        }
        let mut nth = nth;
        while nth > 0 && self.runs[nth].order(&self.runs[nth - 1]) == Ordering::Greater {
            self.runs.swap(nth, nth - 1);
            nth -= 1;
        }
    }

    fn advance<P: Pages>(&mut self, nth: usize, pages: &mut P) -> Result<(), P::Error> {
        let has_entry = self.runs[nth].advance(&self.levels, pages)?;
        self.place(nth, !has_entry);
        Ok(())
    }

    /// Goes to the next key and its newest entry, which may be a removal. False at the end.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn next<P: Pages>(&mut self, pages: &mut P) -> Result<bool, P::Error> {
        if let Some(from) = self.from.take() {
            self.begin(&from, pages)?;
        } else {
            while let [.., older, present] = &self.runs[..]
                && older.cursor.key() == present.cursor.key()
            {
                self.advance(self.runs.len() - 2, pages)?;
            }
            if let Some(last) = self.runs.len().checked_sub(1) {
                self.advance(last, pages)?;
            }
        }
        let is_over = self.present().is_none();
        if is_over {
            self.runs.clear();
        }
        Ok(!is_over)
    }

    /// The present key, and its value, or `None` if it was removed.
    pub(crate) fn present(&self) -> Option<(&[u8], Option<&[u8]>)> {
        let cursor = &self.runs.last()?.cursor;
        let (id, key) = cursor.key().split_first_chunk()?;
        (u32::from_be_bytes(*id) == self.structure.0).then(|| (key, cursor.value()))
    }

    /// True if [`Scan::next`] was never called.
    pub(crate) fn is_fresh(&self) -> bool {
        self.from.is_some()
    }
}
