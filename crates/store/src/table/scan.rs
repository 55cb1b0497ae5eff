//! Lookups and ranges over all tables, as of a moment: whoever has one of these keeps the tables that it needs.

use super::levels::{Levels, View};
use super::reader::{Cursor, Pages, Piece};
use super::table_key;
use crate::entry::StructureId;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::sync::Arc;

/// A lookup that goes on in the tables. It needs the engine no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    levels: Arc<Levels>,
    key: SmallVec<[u8; 36]>,
    freezes: u64,
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
        }
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
    pub fn run<P: Pages>(&self, pages: &mut P) -> Result<Option<Piece>, P::Error> {
        let piece = self.levels.get(pages, &self.key)?;
        Ok(piece.filter(|piece| piece.value().is_some()))
    }
}

/// Entries of the tables in order, from a key of a structure on. Removals are among them.
pub struct Scan {
    levels: Arc<Levels>,
    structure: StructureId,
    /// Where it begins; `None` when it has begun.
    from: Option<Vec<u8>>,
    /// Entries that are wanted, about.
    wanted: usize,
    /// The present entry is that of the last run. Those without an entry are dropped.
    runs: Vec<Run>,
}

/// Tables whose keys follow each other: those of a level, or one of level 0.
struct Run {
    level: usize,
    /// The tables of the level that come next.
    next: usize,
    end: usize,
    cursor: Cursor,
    /// Of two entries with one key that of the lower age counts.
    age: usize,
}

impl Run {
    fn order(&self, other: &Self) -> Ordering {
        let keys = self.cursor.key().cmp(other.cursor.key());
        keys.then(self.age.cmp(&other.age))
    }

    /// Goes to the next entry; false at the end.
    fn advance<P: Pages>(&mut self, levels: &Levels, pages: &mut P) -> Result<bool, P::Error> {
        while !self.cursor.advance(pages)? {
            if self.next == self.end {
                return Ok(false);
            }
            let view = &levels.levels[self.level][self.next];
            self.next += 1;
            let (from, few) = (view.first(), self.cursor.ahead());
            self.cursor = Cursor::aim(&view.table, pages, from, few)?;
        }
        Ok(true)
    }
}

impl Scan {
    /// Begins with the first key that is not below `from`. Pages with about `wanted` entries are read at once.
    pub(crate) fn new(levels: &Arc<Levels>, structure: StructureId, from: &[u8], wanted: usize) -> Self {
        Self {
            levels: Arc::clone(levels),
            structure,
            from: Some(table_key(structure, from)),
            wanted,
            runs: Vec::new(),
        }
    }

    /// True if these are the tables that it goes through.
    pub(crate) fn is_of(&self, levels: &Arc<Levels>) -> bool {
        Arc::ptr_eq(&self.levels, levels)
    }

    /// Finds the first page of each run, and has them read together.
    fn begin<P: Pages>(&mut self, from: &[u8], pages: &mut P) -> Result<(), P::Error> {
        let levels = Arc::clone(&self.levels);
        let count = levels.count() as usize;
        let mut first = Vec::new();
        for (level, views) in levels.levels.iter().enumerate() {
            let reaches = |view: &View| *view.last() >= *from;
            match level {
                0 => {
                    let reached = (0..views.len()).filter(|&nth| reaches(&views[nth]));
                    first.extend(reached.map(|nth| (level, nth, nth + 1, 1)));
                }
                _ => {
                    let nth = views.partition_point(|view| !reaches(view));
                    first.push((level, nth, views.len(), views.len()));
                }
            }
        }
        let first = first.into_iter().filter(|(_, nth, end, _)| nth < end);
        for (age, (level, nth, end, share)) in first.enumerate() {
            let view = &levels.levels[level][nth];
            let entries = self.wanted.saturating_mul(share) / count.max(1);
            let from = view.first().max(from);
            let cursor = Cursor::aim(&view.table, pages, from, view.table.pages_of(entries))?;
            self.runs.push(Run {
                level,
                next: nth + 1,
                end,
                cursor,
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
