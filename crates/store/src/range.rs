//! Entries of a range: what memory has of it, and the tables below.

use crate::fetch::Fetch;
use crate::table::reader::{Pages, Piece};
use crate::table::scan::{KeyedPiece, Scan};
use std::ops::Bound;

/// Entries of a part of a range, as of a moment. [`RangePart::merge`] needs the engine no more.
pub struct RangePart {
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    limit: usize,
    /// In order. `None` for a key that was removed: tables may have an older value of it.
    pub(crate) memory: Vec<(Box<[u8]>, Option<Fetch>)>,
    /// `memory` ends where it does because of the limit: what tables have behind belongs to the next part.
    pub(crate) has_more: bool,
    /// The tables, if there are any.
    pub(crate) tables: Option<Scan>,
}

/// The place of the value of a range's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeValue {
    /// In the log.
    Log(Fetch),
    /// Here.
    Table(Piece),
}

/// Entries of a range, in order.
#[derive(Debug, Default)]
pub struct RangeEntries {
    /// Key and value.
    pub entries: Vec<(Box<[u8]>, RangeValue)>,
    /// The range goes on behind this key; `None` at its end.
    pub next: Option<Box<[u8]>>,
}

impl RangePart {
    pub(crate) fn new(bounds: (Bound<&[u8]>, Bound<&[u8]>), limit: usize) -> Self {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        Self {
            bounds: (owned(bounds.0), owned(bounds.1)),
            limit,
            memory: Vec::new(),
            has_more: false,
            tables: None,
        }
    }

    /// Reads what tables have, and puts both together.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn merge<P: Pages>(self, pages: &mut P) -> Result<RangeEntries, P::Error> {
        let mut entries = Vec::new();
        let next = self.each(pages, |key, value| entries.push((key, value)))?;
        Ok(RangeEntries { entries, next })
    }

    /// The same, an entry at a time: nothing of it is kept. The key behind which the range goes on, if it does.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn each<P: Pages>(
        self,
        pages: &mut P,
        mut f: impl FnMut(Box<[u8]>, RangeValue),
    ) -> Result<Option<Box<[u8]>>, P::Error> {
        let (mut count, mut last) = (0, None);
        let is_limited = self.limit < usize::MAX;
        let mut f = |key: Box<[u8]>, value| {
            count += 1;
            if is_limited && count == self.limit {
                last = Some(key.clone());
            }
            f(key, value);
            count == self.limit
        };
        let end = self
            .memory
            .last()
            .filter(|_| self.has_more)
            .map(|(key, _)| key.clone());
        let is_before = |key: &[u8]| match &self.bounds.0 {
            Bound::Excluded(from) => key <= &from[..],
            _ => false,
        };
        let is_behind = |key: &[u8]| {
            let is_over = match &self.bounds.1 {
                Bound::Included(to) => key > &to[..],
                Bound::Excluded(to) => key >= &to[..],
                Bound::Unbounded => false,
            };
            is_over || end.as_ref().is_some_and(|end| *key > **end)
        };
        let mut tables = self.tables;
        let mut below = |pages: &mut P| -> Result<Option<KeyedPiece>, P::Error> {
            loop {
                let Some(scan) = &mut tables else { return Ok(None) };
                match scan.next(pages)? {
                    Some((key, _)) if is_before(&key) => {}
                    Some((key, _)) if is_behind(&key) => return Ok(None),
                    next => return Ok(next),
                }
            }
        };
        let mut older = below(pages)?;
        let mut newer = self.memory.into_iter().peekable();
        loop {
            let is_newer = match (newer.peek(), &older) {
                (None, None) => return Ok(end),
                (Some((above, _)), Some((below, _))) => above <= below,
                (above, _) => above.is_some(),
            };
            let is_full = if is_newer {
                let (key, fetch) = newer.next().expect("just seen");
                if older.as_ref().is_some_and(|(below, _)| *below == key) {
                    older = below(pages)?;
                }
                fetch.is_some_and(|fetch| f(key, RangeValue::Log(fetch)))
            } else {
                let (key, piece) = older.take().expect("just seen");
                older = below(pages)?;
                piece.value().is_some() && f(key, RangeValue::Table(piece))
            };
            if is_full {
                return Ok(last);
            }
        }
    }
}
