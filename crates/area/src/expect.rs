//! Batches that expect versions of keys, and the reads that tell them.

use crate::area::{Area, Pending};
use crate::error::AreaError;
use crate::read::{Reading, Value, found};
use crate::shared::Guard;
use crate::structures::{Map, Tree};
use store::{Conditional, Expected, Fetch, Op, Receipt, StructureId, Version};

/// The value of a key, and which write of it that was.
pub type Versioned<V> = Option<(V, Version)>;

impl Area {
    /// Carries a batch out as [`Area::commit`] does, if all that it expects is so at that moment. Else nothing of it is done.
    ///
    /// # Errors
    /// [`AreaError::Conflict`] names the first key that is not as expected.
    pub fn commit_if(&self, ops: &[Op<'_>], expected: &[Expected<'_>]) -> Result<Receipt, AreaError> {
        if expected.is_empty() {
            return self.commit(ops);
        }
        let (receipt, guard) = self.admit_if(ops, expected)?;
        if guard.engine.is_wanted(receipt.ticket) {
            self.shared()?.wait(guard, receipt.ticket)?;
        }
        Ok(receipt)
    }

    /// The same without waiting until the batch is durable. It waits for writes of the expected keys that are under way.
    ///
    /// # Errors
    /// As of [`Area::commit_if`].
    pub fn submit_if(
        &self,
        ops: &[Op<'_>],
        expected: &[Expected<'_>],
    ) -> Result<(Receipt, Pending), AreaError> {
        if expected.is_empty() {
            return self.submit(ops);
        }
        let (receipt, guard) = self.admit_if(ops, expected)?;
        let ticket = receipt.ticket;
        if guard.engine.is_wanted(ticket) {
            self.shared()?.start(guard, ticket);
        }
        Ok((receipt, Pending::new(self.clone(), ticket)))
    }

    /// Takes the batch in. Tables are looked up without the lock, and again if memory has left for tables meanwhile.
    fn admit_if(&self, ops: &[Op<'_>], expected: &[Expected<'_>]) -> Result<(Receipt, Guard<'_>), AreaError> {
        let reading = self.reading()?;
        let mut known = Vec::new();
        loop {
            let (outcome, guard) = self.take_in(reading.shared, ops, |engine, older| {
                engine.submit_if(ops, expected, &known, older)
            })?;
            let searches = match outcome {
                Conditional::Done(receipt) => return Ok((receipt, guard)),
                Conditional::Conflict(nth) => {
                    let Expected { map, key, .. } = expected[nth];
                    let mut all = guard.engine.structures();
                    let name = all.find(|(_, id, ..)| *id == map).map(|(name, ..)| name);
                    return Err(AreaError::Conflict {
                        structure: name.unwrap_or_default().into(),
                        key: key.into(),
                    });
                }
                Conditional::Look(searches) => searches,
            };
            drop(guard);
            known.clear();
            for search in searches {
                known.push(search.known(&mut { reading })?);
            }
        }
    }
}

impl Reading<'_> {
    /// The value of a key with its version.
    pub(crate) fn versioned(&self, map: StructureId, key: &[u8]) -> Result<Versioned<Value>, AreaError> {
        loop {
            let mut guard = self.shared.lock();
            let first = guard.engine.get_versioned(map, key);
            let first = found(&guard.engine, map, first)?;
            drop(guard);
            let (fetch, version) = match first {
                None => return Ok(None),
                // Rows of the cache have no versions.
                Some((Fetch::Search(search), _)) => {
                    let Some(piece) = search.run(&mut { *self })? else {
                        return Ok(None);
                    };
                    let version = self.shared.lock().engine.version_of(&piece);
                    return Ok(Some((piece.into(), version)));
                }
                Some((fetch, version)) => (fetch, version),
            };
            let mut first = Some(fetch);
            // A value that is not where it was may be another one: then the version is looked up again, too.
            if let (Some(value), Some(version)) = (self.value(|_| Ok(first.take()))?, version) {
                return Ok(Some((value, version)));
            }
        }
    }
}

macro_rules! versioned {
    ($name:ident) => {
        impl $name {
            /// The value of a key, with the version that a batch may expect ([`crate::Batch::expect`]).
            pub fn get_versioned(&self, key: &[u8]) -> Result<Versioned<Vec<u8>>, AreaError> {
                let found = self.area().reading()?.versioned(self.id(), key)?;
                Ok(found.map(|(value, version)| (value.into_vec(), version)))
            }
        }
    };
}

versioned!(Map);
versioned!(Tree);
