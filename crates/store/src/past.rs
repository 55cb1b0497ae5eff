//! Taking snapshots of an open area, and reading them.

use crate::engine::Engine;
use crate::entry::StructureId;
use crate::fetch::Fetch;
use crate::layers::{Bounds, Layers};
use crate::log::{SubmitError, Ticket};
use crate::range::RangePart;
use crate::snapshot::{SnapshotEnded, SnapshotId};
use crate::table::Way;
use crate::table::scan::{Scan, Search};
use std::ops::Range;
use std::sync::Arc;

impl Engine {
    /// Takes a snapshot of all maps and trees, and of the positions of logs and queues. All of it is durable when the ticket is; a
    /// batch over lazy and other structures may be in it in part. It is kept until [`Engine::end_snapshot`].
    pub fn snapshot(&mut self) -> Result<(SnapshotId, Ticket), SubmitError> {
        let log = &mut self.log;
        log.admit_any()?;
        let (below, levels) = (log.frozen.clone(), Arc::clone(&log.levels));
        let id = log.snapshots.take(&log.structures, below, levels);
        let id = id.ok_or(SubmitError::TooManySnapshots)?;
        let newest = log.newest();
        log.want(newest);
        Ok((id, newest))
    }

    /// Nobody reads the snapshot any more. [`Engine::take_trash`] may have what it kept.
    pub fn end_snapshot(&mut self, id: SnapshotId) {
        self.log.snapshots.release(id);
        self.reclaim();
    }

    /// The value of a key as [`Engine::get`] has it, at the time of the snapshot.
    pub fn snapshot_get(
        &self,
        id: SnapshotId,
        map: StructureId,
        key: &[u8],
    ) -> Result<Option<Fetch>, SnapshotEnded> {
        let layers = self.layers_at(id, map)?;
        Ok(layers.and_then(|layers| {
            let search = || Search::of_past(layers.levels, map, key);
            layers.get(key, |slot| self.log.fetch_slot(slot), search)
        }))
    }

    /// Entries of a tree as [`Engine::range`] has them, at the time of the snapshot.
    pub fn snapshot_range(
        &self,
        (id, way): (SnapshotId, Way),
        tree: StructureId,
        bounds: Bounds<'_>,
        wanted: usize,
        tables: Option<Scan>,
    ) -> Result<RangePart, SnapshotEnded> {
        let layers = self.layers_at(id, tree)?;
        Ok(self.log.part(layers.as_ref(), (bounds, way), wanted, tables))
    }

    /// The keys of a map or tree as [`Engine::keys`] has them, at the time of the snapshot.
    pub fn snapshot_keys(&self, id: SnapshotId, map: StructureId) -> Result<RangePart, SnapshotEnded> {
        let layers = self.layers_at(id, map)?;
        Ok(self.log.keys(layers.as_ref()))
    }

    /// The first and the next position of a log or queue at the time of the snapshot. Its entries are not kept.
    pub fn snapshot_positions(
        &self,
        id: SnapshotId,
        structure: StructureId,
    ) -> Result<Option<Range<u64>>, SnapshotEnded> {
        Ok(self.log.snapshots.get(id)?.positions(structure))
    }

    fn layers_at(&self, id: SnapshotId, structure: StructureId) -> Result<Option<Layers<'_>>, SnapshotEnded> {
        let now = self.log.structures.get(&structure);
        Ok(self.log.snapshots.get(id)?.layers(structure, now))
    }
}
