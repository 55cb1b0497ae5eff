//! Entries of a range: what memory has of it, and the tables below.

use crate::fetch::Fetch;
use crate::table::Way;
use crate::table::reader::Pages;
use crate::table::scan::Scan;
use std::cmp::Ordering;
use std::ops::{Bound, ControlFlow};

/// Entries of a part of a range, as of a moment. [`RangePart::visit`] needs the engine no more.
pub struct RangePart {
    way: Way,
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// In order. `None` for a key that was removed: tables may have an older value of it.
    pub(crate) memory: Vec<(Box<[u8]>, Option<Fetch>)>,
    /// The key up to which `memory` was looked through, if a limit ended that: what is behind belongs to the next part.
    pub(crate) stop: Option<Box<[u8]>>,
    /// The tables, if there are any.
    pub(crate) tables: Option<Scan>,
}

/// The value of a range's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeValue<'a> {
    /// Memory has its place, or it.
    Memory(&'a Fetch),
    /// It lies in a table.
    Table(&'a [u8]),
}

impl RangeValue<'_> {
    /// The same with memory of its own.
    pub fn to_owned(self) -> OwnedValue {
        match self {
            Self::Memory(fetch) => OwnedValue::Memory(fetch.clone()),
            Self::Table(bytes) => OwnedValue::Table(bytes.to_vec()),
        }
    }
}

/// How the visit of a part ended.
pub enum RangeEnd {
    /// The range has no more entries.
    Over,
    /// The visitor wanted no more.
    Stopped,
    /// The range goes on behind `after`, in its order. `tables` are for [`crate::Engine::range`], which goes on with them.
    More {
        /// A key.
        after: Box<[u8]>,
        /// The scan of the tables, as far as it has come.
        tables: Option<Scan>,
    },
}

/// Key and value of [`RangePart::merge`].
pub type OwnedEntry = (Box<[u8]>, OwnedValue);

/// A value that is its owner's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedValue {
    /// Memory has its place, or it.
    Memory(Fetch),
    /// It lay in a table.
    Table(Vec<u8>),
}

impl RangePart {
    pub(crate) fn new(bounds: (Bound<&[u8]>, Bound<&[u8]>), way: Way) -> Self {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        Self {
            way,
            bounds: (owned(bounds.0), owned(bounds.1)),
            memory: Vec::new(),
            stop: None,
            tables: None,
        }
    }

    /// The entries that memory has, without removals: the visitor meets them in this order.
    pub fn memory(&self) -> impl Iterator<Item = (&[u8], &Fetch)> {
        let all = self.memory.iter();
        all.filter_map(|(key, fetch)| Some((&**key, fetch.as_ref()?)))
    }

    /// All entries, in order.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn merge<P: Pages>(self, pages: &mut P) -> Result<Vec<OwnedEntry>, P::Error> {
        let mut entries: Vec<OwnedEntry> = Vec::new();
        self.visit(pages, |key, value| {
            entries.push((key.into(), value.to_owned()));
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    /// Calls `f` with each entry, in order, until it wants no more.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn visit<P: Pages>(
        self,
        pages: &mut P,
        mut f: impl FnMut(&[u8], RangeValue<'_>) -> ControlFlow<()>,
    ) -> Result<RangeEnd, P::Error> {
        let Self {
            way,
            bounds,
            memory,
            stop,
            mut tables,
        } = self;
        let (first, last) = match way {
            Way::Up => (&bounds.0, &bounds.1),
            Way::Down => (&bounds.1, &bounds.0),
        };
        let is_behind = |key: &[u8]| match last {
            Bound::Included(to) => way.cmp(key, to).is_gt(),
            Bound::Excluded(to) => way.cmp(key, to).is_ge(),
            Bound::Unbounded => false,
        };
        if let Some(scan) = &mut tables {
            let is_before = |key: &[u8]| matches!(first, Bound::Excluded(from) if way.cmp(key, from).is_le());
            let mut has_entry = !scan.is_fresh() || scan.next(pages)?;
            while has_entry && scan.present().is_some_and(|(key, _)| is_before(key)) {
                has_entry = scan.next(pages)?;
            }
        }
        let mut newer = memory.iter().peekable();
        loop {
            let older = tables.as_ref().and_then(Scan::present);
            let order = match (newer.peek(), older) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                // What is behind belongs to the next part.
                (None, Some((key, _))) if stop.as_ref().is_some_and(|stop| way.cmp(key, stop).is_gt()) => {
                    break;
                }
                (None, Some(_)) => Ordering::Greater,
                (Some((above, _)), Some((below, _))) => way.cmp(above, below),
            };
            let flow = match (order, older) {
                // Memory has nothing more then: all its entries are in the range.
                (Ordering::Greater, Some((key, _))) if is_behind(key) => break,
                (Ordering::Greater, Some((key, Some(value)))) => f(key, RangeValue::Table(value)),
                (Ordering::Greater, _) => ControlFlow::Continue(()),
                _ => match newer.next() {
                    Some((key, Some(fetch))) => f(key, RangeValue::Memory(fetch)),
                    _ => ControlFlow::Continue(()),
                },
            };
            if let (true, Some(scan)) = (order.is_ge(), &mut tables) {
                scan.next(pages)?;
            }
            if flow.is_break() {
                return Ok(RangeEnd::Stopped);
            }
        }
        Ok(stop.map_or(RangeEnd::Over, |after| RangeEnd::More { after, tables }))
    }
}

/// True if no key lies within the bounds.
pub(crate) fn is_empty(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Excluded(b))
        | (Bound::Excluded(a), Bound::Included(b)) => a >= b,
        _ => false,
    }
}
