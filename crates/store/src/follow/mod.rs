//! Following an area that another process writes: read-only, and without its lock.
//!
//! A [`Follower`] has the state of the area at one moment: after one record, whole. [`Follower::refresh`] brings it to what the
//! medium has since. The owner uses segments anew while they are read. Three things keep it right:
//!
//! - Each sector tells the generation of its segment, and no generation is given out twice. So nothing that was read is ever
//!   taken for what was there before, or will be there.
//! - A generation has each sector once, within an epoch. So a moment is taken in only if the epoch was the same after all of it was
//!   read.
//! - The log's segments are used anew in the order in which they were freed. So if the newest segment that was found is still there
//!   when everything has been read, there was no newer one at the beginning.
//!
//! A write under way may look like damage. So damage is looked at again, and told only if it stays the same.

mod medium;
mod view;

use crate::damage::FetchError;
use crate::entry::{Durability, Kind, StructureId};
use crate::fetch::Fetch;
use crate::layout::Layout;
use crate::range::RangePart;
use crate::recover::OpenError;
use crate::table::Way;
use crate::table::scan::Scan;
use base::{Device, MediaError};
use core::ops::{Bound, Range};
pub use medium::{FollowStats, Followed, Moment};
use thiserror::Error;
use view::{News, View};

/// Looks at an area that changes, before it is told that it changes too fast.
const LOOKS_MAX: u32 = 200;
/// The same damage so many times in a row is damage.
const SAME_MAX: u32 = 12;

/// Why an area cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FollowError {
    /// It is not there, or damaged.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its owner writes faster than it can be read.
    #[error("the area changes faster than it can be read")]
    TooFast,
}

/// A state that a follower may show next.
pub struct Later {
    found: Kept,
    /// In vain, before it was found.
    looks: u32,
}

enum Kept {
    News(Box<News>),
    View(Box<View>),
}

/// Does `f` until it has a result, or the same error again and again; how many times it was in vain.
fn insist<R>(
    medium: &dyn Followed,
    mut f: impl FnMut() -> Result<Option<R>, OpenError>,
) -> Result<(R, u32), FollowError> {
    let (mut last, mut same) = (None, 0);
    for looks in 0..LOOKS_MAX {
        match f() {
            Ok(Some(found)) => return Ok((found, looks)),
            Ok(None) => (last, same) = (None, 0),
            Err(error) => {
                same = if last == Some(error) { same + 1 } else { 1 };
                last = Some(error);
                if same == SAME_MAX {
                    return Err(error.into());
                }
            }
        }
        medium.pause(looks);
    }
    Err(FollowError::TooFast)
}

/// Checks an area while its owner writes it, by [`crate::verify`], [`crate::dump`] or the like: what looks damaged is looked at again.
///
/// # Errors
/// It is damaged, or changes faster than it can be read.
pub fn while_written<R>(
    medium: &dyn Followed,
    mut f: impl FnMut(&dyn Device) -> Result<R, OpenError>,
) -> Result<R, FollowError> {
    let found = insist(medium, || f(medium.device()).map(Some))?;
    Ok(found.0)
}

/// An area that somebody else has. See the module.
#[derive(Default)]
pub struct Follower {
    /// `None` before the first refresh, and after one that ended in contradictions.
    view: Option<View>,
    stats: FollowStats,
    /// Times that tables were changed.
    tables: u64,
}

impl Follower {
    /// Nothing yet: [`Follower::refresh`] it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Brings it to a moment that is no older than what was durable when the call began.
    ///
    /// # Errors
    /// It shows the moment before then, or nothing.
    pub fn refresh(&mut self, medium: &dyn Followed) -> Result<Moment, FollowError> {
        loop {
            let later = self.find(medium)?;
            if self.adopt(later) {
                return Ok(self.moment());
            }
        }
    }

    /// Looks for what [`Follower::refresh`] would show, and changes nothing: others may read meanwhile.
    ///
    /// # Errors
    /// The area cannot be read.
    pub fn find(&self, medium: &dyn Followed) -> Result<Later, FollowError> {
        let (found, looks) = insist(medium, || self.look(medium))?;
        Ok(Later { found, looks })
    }

    /// `None` if the area has changed too much meanwhile.
    fn look(&self, medium: &dyn Followed) -> Result<Option<Kept>, OpenError> {
        if let Some(view) = &self.view
            && let Some(news) = view.news(medium)?
        {
            return Ok(Some(Kept::News(Box::new(news))));
        }
        Ok(View::build(medium)?.map(|view| Kept::View(Box::new(view))))
    }

    /// Shows what was found, if nothing else was adopted since. False if it contradicts what was here: the next look reads everything.
    pub fn adopt(&mut self, later: Later) -> bool {
        self.stats.looks += u64::from(later.looks);
        match later.found {
            Kept::News(news) => {
                self.tables += u64::from(news.has_tables());
                self.view = self.view.take().and_then(|view| view.with(*news));
                self.stats.refreshes += 1;
            }
            Kept::View(view) => {
                self.view = Some(*view);
                self.stats.rebuilds += 1;
                self.tables += 1;
            }
        }
        self.view.is_some()
    }

    /// The moment that it shows.
    pub fn moment(&self) -> Moment {
        self.view.as_ref().map_or_else(Moment::default, View::moment)
    }

    /// The sizes of the area; `None` before the first refresh.
    pub fn layout(&self) -> Option<&Layout> {
        Some(self.view.as_ref()?.layout())
    }

    /// Which area it is; zeros before the first refresh.
    pub fn uuid(&self) -> [u8; 16] {
        self.view.as_ref().map_or([0; 16], View::uuid)
    }

    /// Counters and state.
    pub fn stats(&self) -> FollowStats {
        let mut stats = self.stats;
        if let Some(view) = &self.view {
            view.count(&mut stats);
        }
        stats
    }

    /// The structure called `name`.
    pub fn lookup(&self, name: &str) -> Option<(StructureId, Kind)> {
        let mut all = self.structures();
        all.find(|(found, ..)| *found == name)
            .map(|(_, id, kind, ..)| (id, kind))
    }

    /// All structures: name, number, kind, durability and how many entries they have, as [`crate::Engine::structures`].
    pub fn structures(&self) -> impl Iterator<Item = (&str, StructureId, Kind, Durability, u64)> {
        self.view.iter().flat_map(View::structures)
    }

    /// Entries of a structure, as [`crate::Engine::len`].
    pub fn len(&self, structure: StructureId) -> u64 {
        self.view.as_ref().map_or(0, |view| view.len(structure))
    }

    /// The value of a key of a map or tree. [`Fetch::Search`] if tables may have it.
    pub fn get(&self, map: StructureId, key: &[u8]) -> Option<Fetch> {
        self.view.as_ref()?.get(map, key, self.tables)
    }

    /// The entry at a position of a log or queue.
    pub fn read(&self, structure: StructureId, position: u64) -> Option<Fetch> {
        self.view.as_ref()?.read(structure, position)
    }

    /// The first and the next position of a log or queue.
    pub fn positions(&self, structure: StructureId) -> Option<Range<u64>> {
        self.view.as_ref()?.positions(structure)
    }

    /// Entries of a tree in order, as [`crate::Engine::range`].
    pub fn range(
        &self,
        way: Way,
        tree: StructureId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        wanted: usize,
        tables: Option<Scan>,
    ) -> RangePart {
        match &self.view {
            Some(view) => view.range(tree, (bounds, way), wanted, tables),
            None => RangePart::new(bounds, way),
        }
    }

    /// The keys of a map or tree, in order, as [`crate::Engine::keys`].
    pub fn keys(&self, map: StructureId) -> RangePart {
        match &self.view {
            Some(view) => view.keys(map),
            None => RangePart::new((Bound::Unbounded, Bound::Unbounded), Way::Up),
        }
    }

    /// Bytes that are not what this moment has there, at `offset` in the area: used anew meanwhile, or damaged? Damage may also be
    /// a write under way: it is damage only if it stays.
    ///
    /// # Errors
    /// The medium cannot be read.
    pub fn explain(&self, medium: &dyn Device, offset: u64) -> Result<FetchError, MediaError> {
        match &self.view {
            Some(view) => view.explain(medium, offset),
            None => Ok(FetchError::Moved),
        }
    }
}
