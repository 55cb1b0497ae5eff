//! Operations of users, and their form in records (docs/format/store.md, "Record").

use crate::format::u32_at;

/// Longest key of a map or tree, in bytes: its length is 16 bits.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Longest name of a structure, in bytes: each segment repeats all names.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of an entry before its key.
pub(crate) const ENTRY_HEADER_BYTES: usize = 12;
/// Bytes of the value of a description.
pub(crate) const DESCRIPTION_BYTES: usize = 18;

/// A structure of an area. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StructureId(pub u32);

/// The kind of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Append, read by position, trim from the front.
    Log = 1,
    /// Push, pop, acknowledge.
    Queue = 2,
    /// Keys without order.
    Map = 3,
    /// Keys in order.
    Tree = 4,
}

impl Kind {
    /// True if its entries have keys, and not positions.
    pub(crate) fn has_keys(self) -> bool {
        matches!(self, Self::Map | Self::Tree)
    }

    fn from_u8(byte: u8) -> Option<Self> {
        [Self::Log, Self::Queue, Self::Map, Self::Tree]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// When an operation counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is shown, and acknowledged, when it is durable.
    #[default]
    Sync = 0,
    /// It is shown at once, and durable with the next record that somebody waits for.
    Lazy = 1,
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Adds to the end of a log.
    Append {
        /// A log.
        log: StructureId,
        /// The value.
        data: &'a [u8],
    },
    /// Forgets the positions of a log below `floor`.
    Trim {
        /// A log.
        log: StructureId,
        /// The first position that stays.
        floor: u64,
    },
    /// Adds to the end of a queue.
    Push {
        /// A queue.
        queue: StructureId,
        /// The value.
        data: &'a [u8],
    },
    /// Takes a position out of a queue for good.
    Acknowledge {
        /// A queue.
        queue: StructureId,
        /// Which.
        position: u64,
    },
    /// Sets the value of a key.
    Put {
        /// A map or tree.
        map: StructureId,
        /// At most [`KEY_BYTES_MAX`].
        key: &'a [u8],
        /// The value.
        data: &'a [u8],
    },
    /// Removes a key, if it is there.
    Remove {
        /// A map or tree.
        map: StructureId,
        /// Which.
        key: &'a [u8],
    },
}

impl Op<'_> {
    /// Bytes that it takes in a record.
    pub fn bytes(&self) -> usize {
        match *self {
            Self::Append { data, .. } | Self::Push { data, .. } => entry_bytes(8, data.len()),
            Self::Trim { .. } | Self::Acknowledge { .. } => entry_bytes(8, 0),
            Self::Put { key, data, .. } => entry_bytes(key.len(), data.len()),
            Self::Remove { key, .. } => entry_bytes(key.len(), 0),
        }
    }
}

/// An operation that owns what it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of Op, in its order")]
pub enum OwnedOp {
    Append(StructureId, Vec<u8>),
    Trim(StructureId, u64),
    Push(StructureId, Vec<u8>),
    Acknowledge(StructureId, u64),
    Put(StructureId, Vec<u8>, Vec<u8>),
    Remove(StructureId, Vec<u8>),
}

impl OwnedOp {
    /// The operation, borrowed.
    pub fn op(&self) -> Op<'_> {
        match *self {
            Self::Append(log, ref data) => Op::Append { log, data },
            Self::Trim(log, floor) => Op::Trim { log, floor },
            Self::Push(queue, ref data) => Op::Push { queue, data },
            Self::Acknowledge(queue, position) => Op::Acknowledge { queue, position },
            Self::Put(map, ref key, ref data) => Op::Put { map, key, data },
            Self::Remove(map, ref key) => Op::Remove { map, key },
        }
    }
}

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Describe = 1,
    Drop = 2,
    Append = 3,
    Trim = 4,
    Push = 5,
    Acknowledge = 6,
    Put = 7,
    Remove = 8,
    /// Of a repaired copy: the data of this position of a log are lost.
    Lost = 9,
    /// The list of tables.
    Tables = 10,
}

impl EntryKind {
    pub(crate) fn from_u8(byte: u8) -> Option<Self> {
        use EntryKind::{Acknowledge, Append, Describe, Drop, Lost, Push, Put, Remove, Tables, Trim};
        [
            Describe,
            Drop,
            Append,
            Trim,
            Push,
            Acknowledge,
            Put,
            Remove,
            Lost,
            Tables,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }

    /// True if the structure's kind has such entries.
    pub(crate) fn suits(self, kind: Kind) -> bool {
        match self {
            Self::Describe | Self::Drop | Self::Tables => true,
            Self::Append | Self::Trim | Self::Lost => kind == Kind::Log,
            Self::Push | Self::Acknowledge => kind == Kind::Queue,
            Self::Put | Self::Remove => kind.has_keys(),
        }
    }

    /// True if its key is a position.
    pub(crate) fn is_positional(self) -> bool {
        matches!(
            self,
            Self::Append | Self::Trim | Self::Push | Self::Acknowledge | Self::Lost
        )
    }

    /// True if it adds live data.
    pub(crate) fn adds(self) -> bool {
        matches!(self, Self::Append | Self::Push | Self::Put | Self::Lost)
    }
}

/// An entry, as it is in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub kind: EntryKind,
    pub structure: StructureId,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Bytes that it takes in a record.
    pub(crate) fn bytes(&self) -> usize {
        entry_bytes(self.key.len(), self.value.len())
    }

    pub(crate) fn header(&self) -> [u8; ENTRY_HEADER_BYTES] {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[2..4].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.structure.0.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.value.len() as u32).to_le_bytes());
        bytes
    }

    /// The entry at the start of `bytes`; `None` if there is none that makes sense.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.get(..ENTRY_HEADER_BYTES)?;
        let key_bytes = usize::from(u16::from_le_bytes([header[2], header[3]]));
        let value_bytes = u32_at(header, 8) as usize;
        let rest = &bytes[ENTRY_HEADER_BYTES..];
        let entry = Self {
            kind: EntryKind::from_u8(header[0])?,
            structure: StructureId(u32_at(header, 4)),
            key: rest.get(..key_bytes)?,
            value: rest.get(key_bytes..key_bytes.checked_add(value_bytes)?)?,
        };
        let key_fits = !entry.kind.is_positional() || key_bytes == 8;
        (key_fits && header[1] == 0).then_some(entry)
    }

    /// The position that its key is.
    pub(crate) fn position(&self) -> u64 {
        u64::from_le_bytes(self.key.try_into().expect("positional keys have eight bytes"))
    }
}

/// Bytes of an entry in a record.
pub(crate) fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    ENTRY_HEADER_BYTES + key_bytes + value_bytes
}

/// The value of a `describe` entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub kind: Kind,
    pub durability: Durability,
    /// The next position of a log or queue.
    pub next: u64,
    /// The first position of a log.
    pub floor: u64,
}

impl Description {
    pub(crate) fn emit(&self) -> [u8; DESCRIPTION_BYTES] {
        let mut bytes = [0; DESCRIPTION_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.durability as u8;
        bytes[2..10].copy_from_slice(&self.next.to_le_bytes());
        bytes[10..].copy_from_slice(&self.floor.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DESCRIPTION_BYTES] = bytes.try_into().ok()?;
        Some(Self {
            kind: Kind::from_u8(bytes[0])?,
            durability: match bytes[1] {
                0 => Durability::Sync,
                1 => Durability::Lazy,
                _ => return None,
            },
            next: crate::format::u64_at(bytes, 2),
            floor: crate::format::u64_at(bytes, 10),
        })
    }
}

/// The entry of a list of tables.
pub(crate) fn tables_entry(list: &[u8]) -> Entry<'_> {
    Entry {
        kind: EntryKind::Tables,
        structure: StructureId(0),
        key: &[],
        value: list,
    }
}

/// The entry of a structure's description.
pub(crate) fn describe<'a>(
    id: StructureId,
    name: &'a str,
    description: &'a [u8; DESCRIPTION_BYTES],
) -> Entry<'a> {
    Entry {
        kind: EntryKind::Describe,
        structure: id,
        key: name.as_bytes(),
        value: description,
    }
}
