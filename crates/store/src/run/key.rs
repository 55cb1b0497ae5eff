//! Keys and values of a run's leaves.

use super::page::{put_varint, take_varint};
use crate::entry::{Kind, StructureId};
use crate::index::{Key, Location, shard_of};

/// The key of an entry in a run: structure, shard if it is a map, then its key, or its position big-endian.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunKey(pub Vec<u8>);

impl RunKey {
    pub(crate) fn new(structure: StructureId, kind: Kind, key: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(5 + key.len());
        bytes.extend(structure.0.to_be_bytes());
        if kind == Kind::Map {
            bytes.push(shard_of(key) as u8);
        }
        bytes.extend(key);
        Self(bytes)
    }

    pub(crate) fn of_position(structure: StructureId, position: u64) -> Self {
        let mut bytes = structure.0.to_be_bytes().to_vec();
        bytes.extend(position.to_be_bytes());
        Self(bytes)
    }

    /// The structure of a run's key.
    pub(crate) fn structure(bytes: &[u8]) -> Option<StructureId> {
        let id = bytes.first_chunk()?;
        Some(StructureId(u32::from_be_bytes(*id)))
    }

    /// The key in a structure of this kind.
    pub(crate) fn key(bytes: &[u8], kind: Kind) -> Option<Key> {
        let rest = bytes.get(4..)?;
        Some(match kind {
            Kind::Log | Kind::Queue => Key::Position(u64::from_be_bytes(rest.try_into().ok()?)),
            Kind::Map => Key::Bytes(rest.get(1..)?.into()),
            Kind::Tree => Key::Bytes(rest.into()),
        })
    }
}

/// Place of the value of a run's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Of the segment that [`Location::slot`] had then.
    pub generation: u64,
    pub location: Location,
}

impl Spot {
    pub(crate) fn emit(&self, base: u64, bytes: &mut Vec<u8>) {
        let generation = self.generation - base;
        let location = &self.location;
        for word in [
            u64::from(location.slot),
            generation,
            u64::from(location.at),
            u64::from(location.length),
        ] {
            put_varint(bytes, word);
        }
    }

    pub(crate) fn parse(mut bytes: &[u8], base: u64) -> Option<Self> {
        let mut word = || take_varint(&mut bytes);
        let slot = u32::try_from(word()?).ok()?;
        let generation = base.checked_add(word()?)?;
        let location = Location {
            slot,
            at: u32::try_from(word()?).ok()?,
            length: u32::try_from(word()?).ok()?,
        };
        Some(Self { generation, location })
    }
}
