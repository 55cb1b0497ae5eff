//! Snapshots of an open area: what maps and trees have at a moment stays readable while the program goes on.

use crate::area::Area;
use crate::error::AreaError;
use crate::read::Value;
use crate::structures::{Keyed, Tree};
use crate::view::{Entry, View};
use std::ops::{ControlFlow, Range, RangeBounds};
use store::{SnapshotId, StructureId, Way};

/// All maps and trees of an area as they were at one moment, until it is dropped.
///
/// To take one costs no copy. Values that are overwritten or removed later stay in memory or in tables for it: [`crate::Stats`] tells
/// how much. An area that has no room for them ends its oldest snapshot, and reads of that fail with [`AreaError::SnapshotEnded`].
pub struct Snapshot {
    area: Area,
    id: SnapshotId,
}

impl Area {
    /// Takes a snapshot. All that it has is durable when the call returns.
    ///
    /// # Errors
    /// There are 64 already; or the area has failed.
    pub fn snapshot(&self) -> Result<Snapshot, AreaError> {
        let shared = self.shared()?;
        let ((id, ticket), guard) = shared.submit(store::Engine::snapshot)?;
        // It ends with this value, whatever happens.
        let area = self.clone();
        let snapshot = Snapshot { area, id };
        shared.wait(guard, ticket)?;
        Ok(snapshot)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // A forked child has no part in its parent's area.
        if let Ok(shared) = self.area.shared() {
            shared.end_snapshot(self.id);
        }
    }
}

impl Snapshot {
    pub(crate) fn id(&self) -> SnapshotId {
        self.id
    }

    fn view(&self, structure: StructureId) -> View<'_> {
        View {
            area: &self.area,
            structure,
            at: Some(self.id),
        }
    }

    /// The value that a key had.
    ///
    /// # Errors
    /// It is damaged, or cannot be read; or [`AreaError::SnapshotEnded`].
    pub fn get(&self, map: &impl Keyed, key: &[u8]) -> Result<Option<Vec<u8>>, AreaError> {
        Ok(self.get_ref(map, key)?.map(Value::into_vec))
    }

    /// The same without a copy if it lies in memory in one piece.
    ///
    /// # Errors
    /// As of [`Snapshot::get`].
    pub fn get_ref(&self, map: &impl Keyed, key: &[u8]) -> Result<Option<Value>, AreaError> {
        self.view(map.number()).value(key)
    }

    /// The values that some keys had, in their order. All that is not in memory is read at once.
    ///
    /// # Errors
    /// As of [`Snapshot::get`].
    pub fn get_many(&self, map: &impl Keyed, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, AreaError> {
        self.view(map.number()).values(keys)
    }

    /// All keys that there were, in order.
    ///
    /// # Errors
    /// As of [`Snapshot::get`].
    pub fn keys(&self, map: &impl Keyed) -> Result<Vec<Box<[u8]>>, AreaError> {
        self.view(map.number()).keys()
    }

    /// Keys of a range that there were and their values, in order.
    pub fn range<'a>(
        &'a self,
        tree: &Tree,
        range: impl RangeBounds<[u8]>,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + 'a {
        self.view(tree.id()).entries(range, Way::Up)
    }

    /// The same in reverse order.
    pub fn range_rev<'a>(
        &'a self,
        tree: &Tree,
        range: impl RangeBounds<[u8]>,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + 'a {
        self.view(tree.id()).entries(range, Way::Down)
    }

    /// Calls `f` with the entries of a range, as [`Tree::visit`].
    ///
    /// # Errors
    /// As of [`Snapshot::get`].
    pub fn visit(
        &self,
        tree: &Tree,
        range: impl RangeBounds<[u8]>,
        limit: usize,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), AreaError> {
        self.view(tree.id()).visit((range, Way::Up), limit, f)
    }

    /// The same in reverse order.
    ///
    /// # Errors
    /// As of [`Snapshot::get`].
    pub fn visit_rev(
        &self,
        tree: &Tree,
        range: impl RangeBounds<[u8]>,
        limit: usize,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), AreaError> {
        self.view(tree.id()).visit((range, Way::Down), limit, f)
    }

    /// The first position of a log or queue and the one that came next; nothing of what was not there. Its entries are not kept.
    ///
    /// # Errors
    /// [`AreaError::SnapshotEnded`].
    pub fn positions(&self, structure: StructureId) -> Result<Range<u64>, AreaError> {
        let guard = self.area.shared()?.lock();
        let positions = guard.engine.snapshot_positions(self.id, structure)?;
        Ok(positions.unwrap_or(0..0))
    }
}
