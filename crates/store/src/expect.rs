//! Batches that expect something: that keys have the versions that earlier reads told, or that they are absent.
//!
//! A version is the place in the log where an entry was written first. No other entry ever has it. It goes to tables with its entry. When
//! the cleaner moves an entry that is in memory, its place becomes another one. The engine remembers the latest moves
//! ([`crate::version`]), so that the version stays. Beyond that, and after the area was opened anew, a moved entry has a version that no
//! read has told. A batch that expects the one before is refused then, though nobody wrote the key. It is never the other way round.
//!
//! Tables are read without the engine. A lookup there is valid while memory has not been frozen since, and the key is not in
//! memory: see [`Engine::freezes`].

use crate::draft::Effect;
use crate::engine::Engine;
use crate::entry::{KEY_BYTES_MAX, Op, StructureId};
use crate::fetch::Fetch;
use crate::index::Key;
use crate::log::{Log, Receipt, SubmitError};
use crate::older::Older;
use crate::table::reader::{Pages, Piece};
use crate::table::scan::Search;
use crate::version::Version;
use core::ops::Deref;
use smallvec::SmallVec;

/// Something that a batch expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected<'a> {
    /// A map or tree.
    pub map: StructureId,
    /// Its key.
    pub key: &'a [u8],
    /// The key was written last by this write; `None`: it is absent.
    pub version: Option<Version>,
}

/// The finding of a lookup in tables.
#[derive(Clone, Debug)]
pub struct Known {
    search: Search,
    /// Place of the write; `None` if the key is absent.
    place: Option<u64>,
}

impl Search {
    /// The version that tables have of the key, for [`Engine::submit_if`].
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn known<P: Pages>(self, pages: &mut P) -> Result<Known, P::Error> {
        let place = self.run(pages)?.map(|piece| piece.version());
        Ok(Known { search: self, place })
    }
}

/// Outcome of a batch that expects something.
#[derive(Debug)]
pub enum Conditional {
    /// Everything was as expected, and the batch is taken in.
    Done(Receipt),
    /// Nothing was done: this of the expected things is not so, counted from 0.
    Conflict(usize),
    /// Nothing was done yet: look these up ([`Search::known`]), and submit again with what is known.
    Look(SmallVec<[Search; 1]>),
}

impl Log {
    /// True if a write of the key, or its removal, waits to become durable.
    fn is_changing(&self, map: StructureId, key: &[u8]) -> bool {
        self.unapplied().any(|pending| {
            let is_it =
                pending.structure == map && matches!(&pending.key, Key::Bytes(other) if **other == *key);
            is_it && matches!(pending.effect, Effect::Apply(..))
        })
    }
}

impl Engine {
    /// The value of a key as [`Engine::get`] has it, with its version. In tables the version comes with the value
    /// ([`Engine::version_of`]).
    pub fn get_versioned(&mut self, map: StructureId, key: &[u8]) -> Option<(Fetch, Option<Version>)> {
        let fetch = self.get(map, key)?;
        let place = self
            .log
            .slot_of(map, key)
            .map(|slot| self.log.space.place_of(slot.at));
        Some((fetch, place.map(|place| self.log.moves.version(place))))
    }

    /// The version of an entry of a table.
    pub fn version_of<B: Deref<Target = [u8]>>(&mut self, piece: &Piece<B>) -> Version {
        self.log.moves.version(piece.version())
    }

    /// Takes a batch in if all that it expects is so: decided at this moment, for all of it at once. `known` has the findings of
    /// lookups in tables for that. [`SubmitError::Busy`] while a write of an expected key waits to become durable. A full area needs
    /// `older` ([`Engine::submit_over`]).
    pub fn submit_if(
        &mut self,
        ops: &[Op<'_>],
        expected: &[Expected<'_>],
        known: &[Known],
        older: Option<&Older>,
    ) -> Result<Conditional, SubmitError> {
        self.log.admit_any()?;
        let mut look = SmallVec::new();
        let mut is_waiting = false;
        for (nth, it) in expected.iter().enumerate() {
            let structure = self.log.structures.get(&it.map).ok_or(SubmitError::NoStructure)?;
            if !structure.kind.has_keys() {
                return Err(SubmitError::NoStructure);
            }
            if it.key.len() > KEY_BYTES_MAX {
                return Err(SubmitError::KeyTooLong);
            }
            // Who else waits, and for what, is told when all are seen: a conflict is known at once.
            if self.log.is_changing(it.map, it.key) {
                is_waiting = true;
                continue;
            }
            match self.present_version(it, known) {
                Ok(version) if version == it.version => {}
                Ok(_) => return Ok(Conditional::Conflict(nth)),
                Err(search) => look.push(search),
            }
        }
        match (is_waiting, look.is_empty()) {
            (true, _) => Err(SubmitError::Busy),
            (false, false) => Ok(Conditional::Look(look)),
            (false, true) => self.submit_over(ops, older).map(Conditional::Done),
        }
    }

    /// The version of a key, if it is known without a look into tables.
    fn present_version(&mut self, it: &Expected<'_>, known: &[Known]) -> Result<Option<Version>, Search> {
        let place = match self.log.slot_of(it.map, it.key) {
            Some(slot) if slot.at.is_removed() => None,
            Some(slot) => Some(self.log.space.place_of(slot.at)),
            None if self.log.levels.is_unused() => None,
            None => {
                let search = Search::new(&self.log.levels, it.map, it.key, self.freezes());
                let is_of_it = |known: &&Known| {
                    known.search.freezes() == search.freezes() && known.search.key() == search.key()
                };
                match known.iter().find(is_of_it) {
                    Some(known) => known.place,
                    None => return Err(search),
                }
            }
        };
        Ok(place.map(|place| self.log.moves.version(place)))
    }
}
