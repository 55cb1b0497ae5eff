//! Bytes on the media (docs/format/fs.md): places, sealed blocks, superblocks, roots and keys.

use core::fmt;
use thiserror::Error;
use twox_hash::XxHash3_64;
use uuid::Uuid;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Where the content of a sealed block begins.
pub const SEAL_BYTES: usize = 32;
/// Devices of a file system, at most.
pub const DEVICES_MAX: usize = 8;
/// Blocks of a zone, all of which have a bit in its bitmap.
pub const ZONE_BLOCKS: u64 = ((BLOCK_BYTES - SEAL_BYTES) * 8) as u64;
/// Blocks of a device in front of its first zone.
pub const RESERVED_BLOCKS: u64 = 4;
/// The version of the format.
pub const VERSION: u32 = 1;
/// The inode of the root directory.
pub const ROOT_INODE: u64 = 1;

/// A block's bytes.
pub type Block = [u8; BLOCK_BYTES];

/// A device and a block of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// No place.
    pub const NONE: Self = Self(0);
    const NUMBER_BITS: u32 = 48;

    /// Block `number` of a device.
    pub const fn new(device: u8, number: u64) -> Self {
        Self((device as u64) << Self::NUMBER_BITS | number)
    }

    /// As it is stored.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// As it is stored.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The device.
    pub const fn device(self) -> u8 {
        (self.0 >> Self::NUMBER_BITS) as u8
    }

    /// The block's number on the device.
    pub const fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }

    /// Its first byte on the device.
    pub const fn offset(self) -> u64 {
        self.number() * BLOCK_BYTES as u64
    }

    /// The place so many blocks behind it.
    #[must_use]
    pub const fn plus(self, blocks: u64) -> Self {
        Self(self.0 + blocks)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} of device {}", self.number(), self.device())
    }
}

/// What a sealed block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// The facts of a device.
    Superblock,
    /// Where the tree is.
    Root,
    /// A part of the tree.
    Node,
    /// The used blocks of a zone.
    Bitmap,
}

impl Sort {
    const fn magic(self) -> [u8; 4] {
        match self {
            Self::Superblock => *b"FSSB",
            Self::Root => *b"FSRT",
            Self::Node => *b"FSND",
            Self::Bitmap => *b"FSBM",
        }
    }
}

/// A sealed block, as what points to it knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pointer {
    /// Where it is.
    pub place: Place,
    /// The root that it was written for.
    pub generation: u64,
}

/// Why a block is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// Bits have changed, or it was never written.
    #[error("its checksum does not fit")]
    Checksum,
    /// It is something else.
    #[error("it is something else")]
    Sort,
    /// It was written for another place.
    #[error("it belongs to another place")]
    Place,
    /// It is older or newer than what points to it.
    #[error("it is of another generation")]
    Generation,
    /// It is another file system's.
    #[error("it is another file system's")]
    Mark,
    /// What it holds makes no sense.
    #[error("what it holds makes no sense")]
    Content,
}

/// The number that names a file system in its blocks.
pub fn mark_of(uuid: Uuid) -> u64 {
    u64_at(uuid.as_bytes(), 0)
}

/// Seals a block: its content is there from [`SEAL_BYTES`] on.
pub fn seal(block: &mut Block, sort: Sort, pointer: Pointer, mark: u64) {
    block[4..8].copy_from_slice(&sort.magic());
    put_u64(block, 8, pointer.place.raw());
    put_u64(block, 16, pointer.generation);
    put_u64(block, 24, mark);
    let crc = crc32c::crc32c(&block[4..]);
    put_u32(block, 0, crc);
}

/// Checks a block against what points to it.
pub fn unseal(block: &Block, sort: Sort, pointer: Pointer, mark: u64) -> Result<(), Damage> {
    let generation = unseal_any(block, sort, pointer.place, mark)?;
    match generation == pointer.generation {
        true => Ok(()),
        false => Err(Damage::Generation),
    }
}

/// Checks a block of which the generation is not known: a root. Its generation.
pub fn unseal_any(block: &Block, sort: Sort, place: Place, mark: u64) -> Result<u64, Damage> {
    if u32_at(block, 0) != crc32c::crc32c(&block[4..]) {
        return Err(Damage::Checksum);
    }
    if block[4..8] != sort.magic() {
        return Err(Damage::Sort);
    }
    if u64_at(block, 8) != place.raw() {
        return Err(Damage::Place);
    }
    if u64_at(block, 24) != mark {
        return Err(Damage::Mark);
    }
    Ok(u64_at(block, 16))
}

/// A kind of tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    /// Memory that keeps its content.
    Memory = 1,
    /// Flash.
    Flash = 2,
    /// Disks.
    Disk = 3,
}

impl Tier {
    /// The one that has this number, as an inode and a superblock have it.
    pub fn from_u8(byte: u8) -> Option<Self> {
        [Self::Memory, Self::Flash, Self::Disk]
            .into_iter()
            .find(|tier| *tier as u8 == byte)
    }
}

/// The facts of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The file system.
    pub uuid: Uuid,
    /// Blocks of the device.
    pub blocks: u64,
    /// The device's number.
    pub device: u8,
    /// Its tier.
    pub tier: Tier,
    /// Devices of the file system.
    pub devices: u8,
    /// The device.
    pub device_uuid: Uuid,
}

impl Superblock {
    /// As slot 0 or 1 of its device has it.
    pub fn emit(&self, slot: u64) -> Box<Block> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        put_u32(&mut block[..], 32, VERSION);
        put_u32(&mut block[..], 36, BLOCK_BYTES as u32);
        block[40..56].copy_from_slice(self.uuid.as_bytes());
        put_u64(&mut block[..], 56, self.blocks);
        (block[64], block[65], block[66]) = (self.device, self.tier as u8, self.devices);
        block[72..88].copy_from_slice(self.device_uuid.as_bytes());
        let pointer = Pointer {
            place: Place::new(self.device, slot),
            generation: 0,
        };
        seal(&mut block, Sort::Superblock, pointer, mark_of(self.uuid));
        block
    }

    /// Reads slot 0 or 1 of a device, whichever it is.
    pub fn parse(block: &Block, slot: u64) -> Result<Self, Damage> {
        let uuid = Uuid::from_bytes(block[40..56].try_into().expect("16 bytes"));
        let device = block[64];
        unseal_any(block, Sort::Superblock, Place::new(device, slot), mark_of(uuid))?;
        let is_known = u32_at(block, 32) == VERSION && u32_at(block, 36) == BLOCK_BYTES as u32;
        let tier = Tier::from_u8(block[65]).filter(|_| is_known && device < block[66]);
        Ok(Self {
            uuid,
            blocks: u64_at(block, 56),
            device,
            tier: tier.ok_or(Damage::Content)?,
            devices: block[66],
            device_uuid: Uuid::from_bytes(block[72..88].try_into().expect("16 bytes")),
        })
    }
}

/// Where the tree is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Its number: each root has the next one.
    pub generation: u64,
    /// The tree's uppermost node; nowhere if the tree is empty.
    pub tree: Pointer,
    /// Its level.
    pub level: u8,
    /// The next new inode.
    pub next_inode: u64,
    /// The next new log.
    pub next_log: u64,
    /// Free blocks of each device.
    pub free: [u64; DEVICES_MAX],
}

impl Root {
    /// Where the root of a generation is.
    pub const fn place_of(generation: u64) -> Place {
        Place::new(0, 2 + generation % 2)
    }

    /// Its block.
    pub fn emit(&self, mark: u64) -> Box<Block> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        put_u64(&mut block[..], 32, self.tree.place.raw());
        put_u64(&mut block[..], 40, self.tree.generation);
        block[48] = self.level;
        put_u64(&mut block[..], 56, self.next_inode);
        put_u64(&mut block[..], 64, self.next_log);
        for (at, free) in (72..).step_by(8).zip(self.free) {
            put_u64(&mut block[..], at, free);
        }
        let pointer = Pointer {
            place: Self::place_of(self.generation),
            generation: self.generation,
        };
        seal(&mut block, Sort::Root, pointer, mark);
        block
    }

    /// Reads root slot 0 or 1.
    pub fn parse(block: &Block, slot: u64, mark: u64) -> Result<Self, Damage> {
        let place = Place::new(0, 2 + slot);
        let generation = unseal_any(block, Sort::Root, place, mark)?;
        if Self::place_of(generation) != place {
            return Err(Damage::Generation);
        }
        Ok(Self {
            generation,
            tree: Pointer {
                place: Place::from_raw(u64_at(block, 32)),
                generation: u64_at(block, 40),
            },
            level: block[48],
            next_inode: u64_at(block, 56),
            next_log: u64_at(block, 64),
            free: core::array::from_fn(|device| u64_at(block, 72 + 8 * device)),
        })
    }
}

/// What a key is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The bitmap of a zone.
    Zone = 1,
    /// An operation log.
    Log = 2,
    /// An inode without a name.
    Orphan = 3,
    /// An inode.
    Inode = 16,
    /// Entries of a directory.
    Entry = 17,
    /// The target of a symbolic link.
    Target = 18,
    /// Extended attributes.
    Attribute = 19,
    /// Blocks of a file.
    Extent = 20,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Zone,
        Self::Log,
        Self::Orphan,
        Self::Inode,
        Self::Entry,
        Self::Target,
        Self::Attribute,
        Self::Extent,
    ];

    fn from_u8(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Bytes of a key.
pub const KEY_BYTES: usize = 17;

/// A key of the tree. Keys compare as their bytes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The inode, 0 for the file system itself.
    pub inode: u64,
    /// What it is about.
    pub kind: Kind,
    /// Which of these.
    pub number: u64,
}

impl Key {
    /// Of these parts.
    pub const fn new(inode: u64, kind: Kind, number: u64) -> Self {
        Self { inode, kind, number }
    }

    /// As it is stored.
    pub fn to_bytes(self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        bytes[..8].copy_from_slice(&self.inode.to_be_bytes());
        bytes[8] = self.kind as u8;
        bytes[9..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Key::to_bytes) wrote.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Option<Self> {
        let [inode @ .., _, _, _, _, _, _, _, _, _] = *bytes;
        let [_, _, _, _, _, _, _, _, kind, number @ ..] = *bytes;
        Some(Self {
            inode: u64::from_be_bytes(inode),
            kind: Kind::from_u8(kind)?,
            number: u64::from_be_bytes(number),
        })
    }
}

/// The number of a name's key: names of one hash share an entry.
pub fn hash_of(name: &[u8], mark: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(mark, name) & !0xff
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);

    fn superblock() -> Superblock {
        Superblock {
            uuid: UUID,
            blocks: 1000,
            device: 1,
            tier: Tier::Flash,
            devices: 2,
            device_uuid: Uuid::from_u128(7),
        }
    }

    #[test]
    fn a_superblock_and_a_root_are_read_as_they_were_written() {
        for slot in [0, 1] {
            assert_eq!(
                Superblock::parse(&superblock().emit(slot), slot),
                Ok(superblock())
            );
        }
        assert_eq!(Superblock::parse(&superblock().emit(0), 1), Err(Damage::Place));
        let root = Root {
            generation: 5,
            tree: Pointer {
                place: Place::new(0, 77),
                generation: 4,
            },
            level: 2,
            next_inode: 9,
            next_log: 3,
            free: [1, 2, 3, 4, 5, 6, 7, 8],
        };
        let mark = mark_of(UUID);
        assert_eq!(Root::parse(&root.emit(mark), 1, mark), Ok(root));
        assert_eq!(Root::parse(&root.emit(mark), 0, mark), Err(Damage::Place));
        assert_eq!(Root::parse(&root.emit(mark), 1, 0), Err(Damage::Mark));
    }

    #[test]
    fn every_flipped_bit_of_a_sealed_block_is_found() {
        let block = superblock().emit(0);
        for bit in 0..BLOCK_BYTES * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::parse(&flipped, 0).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn keys_compare_as_their_bytes_do() {
        let mut keys = Vec::new();
        for inode in [0, 1, 255, 256, u64::MAX] {
            for kind in Kind::ALL {
                for number in [0, 1, 255, 1 << 40, u64::MAX] {
                    keys.push(Key::new(inode, kind, number));
                }
            }
        }
        assert!(keys.is_sorted() && keys.is_sorted_by_key(|key| key.to_bytes()));
        for key in keys {
            assert_eq!(Key::from_bytes(&key.to_bytes()), Some(key));
        }
    }

    #[test]
    fn the_hash_of_a_name_stays_what_it_is() {
        assert_eq!(hash_of(b"name", 1) & 0xff, 0);
        assert_ne!(hash_of(b"name", 1), hash_of(b"name", 2));
        assert_eq!(hash_of(b"name", 0), XxHash3_64::oneshot(b"name") & !0xff);
    }
}
