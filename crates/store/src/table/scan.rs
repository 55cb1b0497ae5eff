//! Lookups and ranges over all tables, as of a moment: whoever has one of these keeps the tables that it needs.

use super::levels::{Levels, View};
use super::reader::{Cursor, Pages, Piece};
use super::table_key;
use crate::entry::StructureId;
use std::sync::Arc;

/// A key, and its newest entry in tables.
pub type KeyedPiece = (Box<[u8]>, Piece);

/// A lookup that goes on in the tables. It needs the engine no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    levels: Arc<Levels>,
    key: Vec<u8>,
    freezes: u64,
}

impl Search {
    pub(crate) fn new(levels: &Arc<Levels>, structure: StructureId, key: &[u8], freezes: u64) -> Self {
        Self {
            levels: Arc::clone(levels),
            key: table_key(structure, key),
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
    from: Vec<u8>,
    /// The next entry is that of the last run; empty before the first.
    runs: Vec<Run>,
    is_begun: bool,
}

/// Tables whose keys follow each other.
struct Run {
    /// The tables that come later, in reverse.
    left: Vec<View>,
    cursor: Option<Cursor>,
    next: Option<Piece>,
    /// Of two entries with one key that of the lower age counts.
    age: usize,
}

impl Run {
    /// Goes to the next entry that is not below `from`; false at the end.
    fn advance<P: Pages>(&mut self, pages: &mut P, from: &[u8]) -> Result<bool, P::Error> {
        loop {
            if let Some(cursor) = &mut self.cursor {
                self.next = cursor.next(pages)?;
                if self.next.is_some() {
                    return Ok(true);
                }
            }
            let Some(view) = self.left.pop() else {
                return Ok(false);
            };
            let from = view.first().max(from);
            self.cursor = Some(Cursor::new(&view.table, pages, from)?);
        }
    }

    fn order(&self) -> (&[u8], usize) {
        let key = self.next.as_ref().map_or(&[][..], Piece::table_key);
        (key, self.age)
    }
}

impl Scan {
    /// Begins with the first key that is not below `from`.
    pub(crate) fn new(levels: &Arc<Levels>, structure: StructureId, from: &[u8]) -> Self {
        Self {
            levels: Arc::clone(levels),
            structure,
            from: table_key(structure, from),
            runs: Vec::new(),
            is_begun: false,
        }
    }

    fn begin<P: Pages>(&mut self, pages: &mut P) -> Result<(), P::Error> {
        self.is_begun = true;
        let levels = Arc::clone(&self.levels);
        for (level, views) in levels.levels.iter().enumerate() {
            let reaches = |view: &&View| *view.last() >= self.from[..];
            let views: Vec<View> = views.iter().filter(reaches).cloned().rev().collect();
            match level {
                0 => {
                    for view in views.into_iter().rev() {
                        self.add(pages, vec![view])?;
                    }
                }
                _ => self.add(pages, views)?,
            }
        }
        Ok(())
    }

    fn add<P: Pages>(&mut self, pages: &mut P, left: Vec<View>) -> Result<(), P::Error> {
        let age = self.runs.iter().map(|run| run.age + 1).max().unwrap_or(0);
        let run = Run {
            left,
            cursor: None,
            next: None,
            age,
        };
        self.place(pages, run)
    }

    fn place<P: Pages>(&mut self, pages: &mut P, mut run: Run) -> Result<(), P::Error> {
        if run.advance(pages, &self.from)? {
            let at = self.runs.partition_point(|it| it.order() > run.order());
            self.runs.insert(at, run);
        }
        Ok(())
    }

    /// The next key and its newest entry, which may be a removal.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn next<P: Pages>(&mut self, pages: &mut P) -> Result<Option<KeyedPiece>, P::Error> {
        if !self.is_begun {
            self.begin(pages)?;
        }
        let Some(mut run) = self.runs.pop() else {
            return Ok(None);
        };
        let piece = run.next.take().expect("runs without an entry are dropped");
        self.place(pages, run)?;
        while self
            .runs
            .last()
            .is_some_and(|run| run.order().0 == piece.table_key())
        {
            let older = self.runs.pop().expect("just seen");
            self.place(pages, older)?;
        }
        match super::structure_of(piece.table_key()) {
            Some(id) if id == self.structure => Ok(Some((piece.table_key()[4..].into(), piece))),
            _ => {
                self.runs.clear();
                Ok(None)
            }
        }
    }
}
