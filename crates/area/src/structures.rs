//! Log, queue, map and tree as programs use them.

use crate::area::{Area, Pending};
use crate::error::AreaError;
use crate::read::{Value, found};
use crate::view::View;
use std::ops::{ControlFlow, Range, RangeBounds};
use store::{
    Durability, Engine, Expected, Fetch, Kind, Op, OwnedOp, Receipt, StructureId, SubmitError, Version, Way,
};

macro_rules! structure {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            area: Area,
            id: StructureId,
        }

        impl $name {
            pub(super) const KIND: Kind = $kind;
            const HAS_KEYS: bool = matches!($kind, Kind::Map | Kind::Tree);

            pub(super) fn new(area: Area, id: StructureId) -> Self {
                Self { area, id }
            }

            /// Its number, for batches of [`Op`]s.
            pub fn id(&self) -> StructureId {
                self.id
            }

            /// Its area.
            pub fn area(&self) -> &Area {
                &self.area
            }

            /// How many entries it has.
            ///
            /// # Errors
            /// It was dropped.
            pub fn len(&self) -> Result<u64, AreaError> {
                let guard = self.area.shared()?.lock();
                found(&guard.engine, self.id, None::<()>)?;
                Ok(guard.engine.len(self.id))
            }

            /// True without entries. An entry that cannot be read counts as one.
            ///
            /// # Errors
            /// It was dropped.
            pub fn is_empty(&self) -> Result<bool, AreaError> {
                let guard = self.area.shared()?.lock();
                found(&guard.engine, self.id, None::<()>)?;
                if guard.engine.stats().tables == 0 || !Self::HAS_KEYS {
                    return Ok(guard.engine.len(self.id) == 0);
                }
                let keys = guard.engine.keys(self.id);
                drop(guard);
                let mut is_empty = true;
                let visited = self.area.reading().and_then(|mut reading| {
                    keys.visit(&mut reading, |_, _| {
                        is_empty = false;
                        ControlFlow::Break(())
                    })
                });
                Ok(visited.is_ok() && is_empty)
            }
        }
    };
}

structure!(
    /// A log: append, read by position, trim from the front.
    Log, Kind::Log
);
structure!(
    /// A queue: each entry is handed out until it is acknowledged; after a crash, again.
    Queue, Kind::Queue
);
structure!(
    /// A map: keys in no order.
    Map, Kind::Map
);
structure!(
    /// A tree: keys in order.
    Tree, Kind::Tree
);

/// The position of a batch's only append or push.
fn position(receipt: &Receipt) -> u64 {
    receipt.positions[0]
}

impl Area {
    /// The log called `name`; it is made, durably, if it is not there.
    pub fn log(&self, name: &str) -> Result<Log, AreaError> {
        Ok(Log::new(
            self.clone(),
            self.create(name, Log::KIND, Durability::Sync)?,
        ))
    }

    /// The queue called `name`, as [`Area::log`].
    pub fn queue(&self, name: &str) -> Result<Queue, AreaError> {
        let id = self.create(name, Queue::KIND, Durability::Sync)?;
        Ok(Queue::new(self.clone(), id))
    }

    /// The map called `name`, as [`Area::log`].
    pub fn map(&self, name: &str) -> Result<Map, AreaError> {
        Ok(Map::new(
            self.clone(),
            self.create(name, Map::KIND, Durability::Sync)?,
        ))
    }

    /// The tree called `name`, as [`Area::log`].
    pub fn tree(&self, name: &str) -> Result<Tree, AreaError> {
        Ok(Tree::new(
            self.clone(),
            self.create(name, Tree::KIND, Durability::Sync)?,
        ))
    }
}

/// The value of each of `count` things that `find` finds.
fn values(
    area: &Area,
    count: usize,
    find: impl FnMut(&Engine, usize) -> Result<Option<Fetch>, AreaError>,
) -> Result<Vec<Option<Vec<u8>>>, AreaError> {
    let values = area.reading()?.values(count, find)?;
    let own = values.into_iter().map(|value| value.map(Value::into_vec));
    Ok(own.collect())
}

impl Log {
    /// Adds to the end; the entry's position. Durable on return, unless the log is lazy.
    pub fn append(&self, data: &[u8]) -> Result<u64, AreaError> {
        let op = Op::Append { log: self.id, data };
        Ok(position(&self.area.commit(&[op])?))
    }

    /// The same without waiting: the position, and what to wait for.
    pub fn append_async(&self, data: &[u8]) -> Result<(u64, Pending), AreaError> {
        let op = Op::Append { log: self.id, data };
        let (receipt, pending) = self.area.submit(&[op])?;
        Ok((position(&receipt), pending))
    }

    /// The entry at a position; `None` if it was trimmed or is not there yet.
    pub fn read(&self, position: u64) -> Result<Option<Vec<u8>>, AreaError> {
        let value = self
            .area
            .reading()?
            .value(|engine| found(engine, self.id, engine.read(self.id, position)))?;
        Ok(value.map(Value::into_vec))
    }

    /// The entries at some positions, in their order, as [`Log::read`] has each. All that is not in memory is read at once.
    pub fn read_many(&self, positions: Range<u64>) -> Result<Vec<Option<Vec<u8>>>, AreaError> {
        let count = positions.end.saturating_sub(positions.start) as usize;
        values(&self.area, count, |engine, nth| {
            let position = positions.start + nth as u64;
            found(engine, self.id, engine.read(self.id, position))
        })
    }

    /// Forgets all positions below `floor`.
    pub fn trim(&self, floor: u64) -> Result<(), AreaError> {
        let op = Op::Trim { log: self.id, floor };
        self.area.commit(&[op]).map(drop)
    }

    /// The first position, and the one that comes next.
    ///
    /// # Errors
    /// It was dropped.
    pub fn positions(&self) -> Result<Range<u64>, AreaError> {
        let positions = self.area.shared()?.lock().engine.positions(self.id);
        positions.ok_or_else(|| SubmitError::NoStructure.into())
    }

    /// The entries from `position` on, with their positions, as far as there are any when it gets there.
    pub fn iter(&self, position: u64) -> impl Iterator<Item = Result<(u64, Vec<u8>), AreaError>> + '_ {
        let first = self.positions().map_or(position, |all| position.max(all.start));
        let (mut next, mut is_over) = (first, false);
        std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            let entry = self.read(next).transpose()?;
            // Entries that cannot be read are told one after the other; a log that was dropped has no end.
            is_over = entry.is_err() && self.positions().is_err();
            next += 1;
            Some(entry.map(|data| (next - 1, data)))
        })
    }
}

impl Queue {
    /// Adds to the end; the entry's position. Durable on return, unless the queue is lazy.
    pub fn push(&self, data: &[u8]) -> Result<u64, AreaError> {
        let op = Op::Push { queue: self.id, data };
        Ok(position(&self.area.commit(&[op])?))
    }

    /// The next entry and its position; nobody else gets it before [`Queue::give_up`] or a restart.
    pub fn pop(&self) -> Result<Option<(u64, Vec<u8>)>, AreaError> {
        let shared = self.area.shared()?;
        let mut guard = shared.lock();
        let popped = guard.engine.pop(self.id).map(|(position, _)| position);
        let Some(position) = found(&guard.engine, self.id, popped)? else {
            return Ok(None);
        };
        drop(guard);
        let data = self
            .area
            .reading()?
            .value(|engine| found(engine, self.id, engine.read(self.id, position)));
        match data {
            Ok(data) => Ok(data.map(|data| (position, data.into_vec()))),
            Err(error) => {
                self.give_up(position);
                Err(error)
            }
        }
    }

    /// The entry was dealt with: it is never handed out again.
    pub fn acknowledge(&self, position: u64) -> Result<(), AreaError> {
        let op = Op::Acknowledge {
            queue: self.id,
            position,
        };
        self.area.commit(&[op]).map(drop)
    }

    /// Gives an entry back, to be handed out again; false if it is not there any more.
    pub fn give_up(&self, position: u64) -> bool {
        self.area.own().lock().engine.give_up(self.id, position)
    }
}

macro_rules! keyed {
    ($name:ident) => {
        impl $name {
            /// Sets the value of a key. Durable on return, unless it is lazy.
            pub fn put(&self, key: &[u8], data: &[u8]) -> Result<(), AreaError> {
                let map = self.id;
                self.area.commit(&[Op::Put { map, key, data }]).map(drop)
            }

            /// The same without waiting.
            pub fn put_async(&self, key: &[u8], data: &[u8]) -> Result<Pending, AreaError> {
                let map = self.id;
                let submitted = self.area.submit(&[Op::Put { map, key, data }]);
                submitted.map(|(_, pending)| pending)
            }

            /// The value of a key.
            pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, AreaError> {
                Ok(self.get_ref(key)?.map(Value::into_vec))
            }

            /// The value of a key, without a copy if it lies in memory in one piece.
            pub fn get_ref(&self, key: &[u8]) -> Result<Option<Value>, AreaError> {
                self.area
                    .reading()?
                    .value(|engine| found(engine, self.id, engine.get(self.id, key)))
            }

            /// The values of some keys, in their order. All that is not in memory is read at once. Each value is one that its key had
            /// while the call ran; together they are no snapshot.
            pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, AreaError> {
                values(&self.area, keys.len(), |engine, nth| {
                    found(engine, self.id, engine.get(self.id, keys[nth]))
                })
            }

            /// The map or tree as it is now.
            pub(crate) fn view(&self) -> View<'_> {
                View {
                    area: &self.area,
                    structure: self.id,
                    at: None,
                }
            }

            /// Removes a key, if it is there.
            pub fn remove(&self, key: &[u8]) -> Result<(), AreaError> {
                let map = self.id;
                self.area.commit(&[Op::Remove { map, key }]).map(drop)
            }
        }
    };
}

keyed!(Map);
keyed!(Tree);

impl Map {
    /// All keys, in order. Copies and sorts them.
    pub fn keys(&self) -> Result<Vec<Box<[u8]>>, AreaError> {
        self.view().keys()
    }
}

impl Tree {
    /// Keys of a range and their values, in order. Keys that come and go meanwhile may be there or not.
    pub fn range<'a>(
        &'a self,
        range: impl RangeBounds<[u8]>,
    ) -> impl Iterator<Item = Result<(Box<[u8]>, Vec<u8>), AreaError>> + 'a {
        self.view().entries(range, Way::Up)
    }

    /// The same in reverse order: the last key comes first.
    pub fn range_rev<'a>(
        &'a self,
        range: impl RangeBounds<[u8]>,
    ) -> impl Iterator<Item = Result<(Box<[u8]>, Vec<u8>), AreaError>> + 'a {
        self.view().entries(range, Way::Down)
    }

    /// Calls `f` with the entries of a range, in order, `limit` of them at most, until it wants no more. Values in tables are not copied.
    /// With a small `limit` everything is read at once.
    ///
    /// # Errors
    /// As of [`Tree::range`]; the first ends the visit.
    pub fn visit(
        &self,
        range: impl RangeBounds<[u8]>,
        limit: usize,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), AreaError> {
        self.view().visit((range, Way::Up), limit, f)
    }

    /// The same in reverse order.
    ///
    /// # Errors
    /// As of [`Tree::visit`].
    pub fn visit_rev(
        &self,
        range: impl RangeBounds<[u8]>,
        limit: usize,
        f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), AreaError> {
        self.view().visit((range, Way::Down), limit, f)
    }
}

/// Operations over several structures that become durable together, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    ops: Vec<OwnedOp>,
    expected: Vec<(StructureId, Box<[u8]>, Option<Version>)>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds to the end of a log.
    pub fn append(mut self, log: &Log, data: &[u8]) -> Self {
        self.ops.push(OwnedOp::Append(log.id, data.into()));
        self
    }
    /// Forgets positions of a log.
    pub fn trim(mut self, log: &Log, floor: u64) -> Self {
        self.ops.push(OwnedOp::Trim(log.id, floor));
        self
    }
    /// Adds to the end of a queue.
    pub fn push(mut self, queue: &Queue, data: &[u8]) -> Self {
        self.ops.push(OwnedOp::Push(queue.id, data.into()));
        self
    }
    /// Takes an entry out of a queue.
    pub fn acknowledge(mut self, queue: &Queue, position: u64) -> Self {
        self.ops.push(OwnedOp::Acknowledge(queue.id, position));
        self
    }
    /// Sets the value of a key of a map or tree.
    pub fn put(mut self, map: &impl Keyed, key: &[u8], data: &[u8]) -> Self {
        self.ops.push(OwnedOp::Put(map.number(), key.into(), data.into()));
        self
    }
    /// Removes a key of a map or tree.
    pub fn remove(mut self, map: &impl Keyed, key: &[u8]) -> Self {
        self.ops.push(OwnedOp::Remove(map.number(), key.into()));
        self
    }

    /// Carries the batch out only if the key's value is that of this write, or if the key is absent. It is what was before the batch
    /// that counts. Each key that a decision rests on is to be expected; then nobody can have changed any of them meanwhile.
    pub fn expect(mut self, map: &impl Keyed, key: &[u8], version: Option<Version>) -> Self {
        self.expected.push((map.number(), key.into(), version));
        self
    }

    /// Makes it durable; the positions of its appends and pushes, in order. [`AreaError::Conflict`] if something is not as expected.
    pub fn commit(&self, area: &Area) -> Result<Vec<u64>, AreaError> {
        let receipt = area.commit_if(&self.ops(), &self.expected())?;
        Ok(receipt.positions.to_vec())
    }

    /// The same without waiting.
    pub fn submit(&self, area: &Area) -> Result<(Vec<u64>, Pending), AreaError> {
        let (receipt, pending) = area.submit_if(&self.ops(), &self.expected())?;
        Ok((receipt.positions.to_vec(), pending))
    }

    fn ops(&self) -> Vec<Op<'_>> {
        self.ops.iter().map(OwnedOp::op).collect()
    }

    fn expected(&self) -> Vec<Expected<'_>> {
        let all = self.expected.iter();
        all.map(|&(map, ref key, version)| Expected { map, key, version })
            .collect()
    }
}

/// Structures with keys.
pub trait Keyed {
    /// The structure's number.
    fn number(&self) -> StructureId;
}

impl Keyed for Map {
    fn number(&self) -> StructureId {
        self.id
    }
}

impl Keyed for Tree {
    fn number(&self) -> StructureId {
        self.id
    }
}
