//! Calls that the bindings of other languages need beside the structures: tickets as numbers, looks at queues, ranges either way and at
//! either time, and the process.

use crate::area::Area;
use crate::error::AreaError;
use crate::follow::Follower;
use crate::fork;
use crate::read::{Value, found};
use crate::snapshot::Snapshot;
use crate::structures::{Queue, Tree};
use crate::view::{Entry, View, Walk};
use std::ops::{ControlFlow, Range, RangeBounds};
use store::{StructureId, SubmitError, Ticket, Way};

/// The number of this process among those that its memory was copied from: a forked child has another one than its parent.
pub fn process_generation() -> u32 {
    fork::generation()
}

impl Area {
    /// The newest ticket given out.
    pub fn newest(&self) -> Ticket {
        self.own().lock().engine.newest()
    }

    /// Waits until `ticket` is durable. The ticket was given out: no other ever becomes durable.
    pub fn wait(&self, ticket: Ticket) -> Result<(), AreaError> {
        let shared = self.shared()?;
        shared.wait(shared.lock(), ticket)
    }
}

impl Queue {
    /// The first position that was not acknowledged, and the one that comes next.
    ///
    /// # Errors
    /// It was dropped.
    pub fn positions(&self) -> Result<Range<u64>, AreaError> {
        let positions = self.area().shared()?.lock().engine.positions(self.id());
        positions.ok_or_else(|| SubmitError::NoStructure.into())
    }

    /// The entry at a position, handed out or not; `None` if it was acknowledged or is not there yet.
    pub fn read(&self, position: u64) -> Result<Option<Vec<u8>>, AreaError> {
        let reading = self.area().reading()?;
        let value = reading.value(|engine| found(engine, self.id(), engine.read(self.id(), position)))?;
        Ok(value.map(Value::into_vec))
    }
}

/// A tree as it is now, or as a snapshot of its area has it.
impl Tree {
    fn view_at(&self, at: Option<&Snapshot>) -> View<'_> {
        View {
            area: self.area(),
            structure: self.id(),
            at: at.map(Snapshot::id),
        }
    }

    /// Entries of a range, as [`Tree::range`] and [`Snapshot::range`] have them.
    pub fn entries_at(
        &self,
        at: Option<&Snapshot>,
        range: impl RangeBounds<[u8]>,
        way: Way,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + '_ {
        self.view_at(at).entries(range, way)
    }

    /// Keys of a range in their order, at most `limit`. Reads no values.
    pub fn keys_at(
        &self,
        at: Option<&Snapshot>,
        range: impl RangeBounds<[u8]>,
        way: Way,
        limit: usize,
    ) -> Result<Vec<Box<[u8]>>, AreaError> {
        let mut walk = Walk::new(range, way, limit);
        let mut keys = Vec::new();
        while keys.len() < limit && !walk.is_over() {
            walk.part(self.view_at(at), false, &mut |key, _| {
                keys.push(key.into());
                match keys.len() < limit {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
        }
        Ok(keys)
    }
}

impl Follower {
    /// Entries of a range, as [`Follower::range`] and [`Follower::range_rev`] have them.
    pub fn entries_at(
        &self,
        tree: StructureId,
        range: impl RangeBounds<[u8]>,
        way: Way,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + '_ {
        self.entries(tree, range, way)
    }
}
