//! The values that tables have of the keys of a batch. A full area takes a batch that adds nothing in the end: the merge of a new value
//! drops the older one. The engine does no reads, so whoever has the medium looks the older values up.

use crate::entry::{EntryKind, Op};
use crate::index::Usage;
use crate::log::{Log, OpKey, parts_of};
use crate::table::reader::Pages;
use crate::table::scan::Search;

/// The older values of a batch's keys: [`Older::look_up`] them, then [`crate::Engine::submit_over`].
pub struct Older {
    freezes: u64,
    /// By operation; `None` where memory knows.
    searches: Vec<Option<Search>>,
    /// Bytes of the values that were found.
    lengths: Vec<Option<usize>>,
}

impl Older {
    /// `None` if tables have nothing that would help.
    pub(crate) fn new(log: &Log, ops: &[Op<'_>], freezes: u64) -> Option<Self> {
        if log.levels.count() == 0 {
            return None;
        }
        let search = |op: &Op<'_>| match parts_of(op) {
            (EntryKind::Put, id, OpKey::Bytes(key), _) if log.entry_of(id, key).is_none() => {
                Some(Search::new(&log.levels, id, key, freezes))
            }
            _ => None,
        };
        let searches: Vec<Option<Search>> = ops.iter().map(search).collect();
        // A batch that replaces values of memory alone adds nothing, which is known without a look.
        let may_help = searches.iter().any(Option::is_some) || log.net_adds(ops) == Usage::default();
        may_help.then(|| Self {
            freezes,
            searches,
            lengths: vec![None; ops.len()],
        })
    }

    /// Looks the values up. The tables are let go with that: merges need their segments.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn look_up<P: Pages>(&mut self, pages: &mut P) -> Result<(), P::Error> {
        let searches = core::mem::take(&mut self.searches);
        for (search, length) in searches.into_iter().zip(&mut self.lengths) {
            if let Some(search) = search {
                let found = search.run(pages)?;
                *length = found.and_then(|piece| piece.value().map(<[u8]>::len));
            }
        }
        Ok(())
    }

    /// [`crate::Engine::freezes`] when it was made: what was found is right while that stays the same.
    pub fn freezes(&self) -> u64 {
        self.freezes
    }

    /// Memory that the batch takes, if its values take no more room than those that they replace. The length of a value of memory is
    /// known there.
    pub(crate) fn memory_of(&self, log: &Log, ops: &[Op<'_>]) -> Option<u64> {
        let mut index = 0;
        for (op, &length) in ops.iter().zip(&self.lengths) {
            let adds = log.net_adds(&[*op]);
            index += adds.index;
            let is_known = match (parts_of(op), length) {
                ((_, id, OpKey::Bytes(key), value), Some(length)) => {
                    log.entry_of(id, key).is_none() && value.len() <= length
                }
                _ => false,
            };
            if adds != Usage::default() && !is_known {
                return None;
            }
        }
        Some(index)
    }
}
