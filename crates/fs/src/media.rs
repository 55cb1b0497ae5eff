//! The devices of a file system: what the crate asks of them, and why it may refuse.

use crate::format::{BLOCK_BYTES, Block, Damage, Place, Superblock, mark_of};
use base::{Device, MediaError};
use thiserror::Error;

/// Blocks of device 0, at least: with fewer there is no room for files beside the reserve that deletions need.
pub const FIRST_BLOCKS_MIN: u64 = 256;
/// Blocks of another device, at least.
pub const OTHER_BLOCKS_MIN: u64 = 16;

/// Devices, by number.
pub trait Media {
    /// How many they are.
    fn devices(&self) -> usize;
    /// Bytes of one.
    fn capacity_bytes(&self, device: u8) -> u64;
    /// Fills `bytes` from the place on.
    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), MediaError>;
    /// Writes `bytes` from the place on.
    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), MediaError>;
    /// Makes all writes to a device durable.
    fn flush(&mut self, device: u8) -> Result<(), MediaError>;
}

impl<D: Device> Media for Vec<D> {
    fn devices(&self) -> usize {
        self.len()
    }

    fn capacity_bytes(&self, device: u8) -> u64 {
        self[usize::from(device)].capacity_bytes()
    }

    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), MediaError> {
        let device = self
            .get(usize::from(place.device()))
            .ok_or(MediaError::OutOfRange)?;
        device.read_at(place.offset(), bytes)
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), MediaError> {
        let device = self
            .get_mut(usize::from(place.device()))
            .ok_or(MediaError::OutOfRange)?;
        device.write_at(place.offset(), bytes)
    }

    fn flush(&mut self, device: u8) -> Result<(), MediaError> {
        self[usize::from(device)].flush()
    }
}

/// Why the file system cannot do what it was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The medium failed.
    #[error("{place}: {error}; look at the device, then open the file system again")]
    Media {
        /// Where.
        place: Place,
        /// How.
        error: MediaError,
    },
    /// A block is not what it should be.
    #[error("{place} is damaged, {damage}: run the check")]
    Damaged {
        /// The block.
        place: Place,
        /// What is wrong.
        damage: Damage,
    },
    /// No room. Nothing was changed.
    #[error("device {0} is full: delete files, or commit what was deleted and try again")]
    Full(u8),
    /// A place is to be freed that is free, or kept that was never reserved.
    #[error("{0} is not what its owner says: run the check")]
    NotOwned(Place),
    /// It is not known yet: ask for what [`Known`](crate::known::Known) misses, and try again.
    #[error("it is not known yet: ask for it, and try again")]
    Missing,
    /// An earlier commit failed. What it wrote may be on the medium or not.
    #[error("an earlier commit failed: open the file system again")]
    Latched,
    /// A commit is under way.
    #[error("a commit is under way: finish it before the next")]
    Busy,
    /// Both superblocks of a device are damaged, or it has none.
    #[error(
        "device {device} has no superblock ({damage}): give the devices in their order, or make a file system"
    )]
    NoSuperblock {
        /// The device.
        device: u8,
        /// What is wrong with the first.
        damage: Damage,
    },
    /// A device is another one than its place in the list says.
    #[error("device {0} is not the file system's: give all of its devices, in their order")]
    Foreign(u8),
    /// A device is smaller than it was.
    #[error("device {0} is smaller than its superblock says: give it its size again")]
    Shrunk(u8),
    /// A device is too small for a file system.
    #[error("device {device} has {blocks} blocks of 4096 bytes, and needs {least}")]
    TooSmall {
        /// The device.
        device: u8,
        /// What it has.
        blocks: u64,
        /// What it needs.
        least: u64,
    },
    /// There are no devices, or too many.
    #[error("a file system has 1 to 8 devices, not {0}")]
    Devices(usize),
    /// Neither root can be read.
    #[error("no root can be read: run the check")]
    NoRoot,
}

/// Reads a block.
pub(crate) fn read_block(media: &dyn Media, place: Place) -> Result<Box<Block>, Error> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    media
        .read(place, &mut block[..])
        .map_err(|error| Error::Media { place, error })?;
    Ok(block)
}

/// What the superblocks say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The file system's mark.
    pub mark: u64,
    /// A superblock of each device.
    pub devices: Vec<Superblock>,
}

impl Volume {
    /// Reads the superblocks of all devices, of each the first that is whole.
    ///
    /// # Errors
    /// A device has none, or is not the one that is to be there.
    pub fn read(media: &dyn Media) -> Result<Self, Error> {
        let mut devices: Vec<Superblock> = Vec::new();
        for device in 0..media.devices() as u8 {
            let superblock = superblock_of(media, device)?;
            let first = devices.first().unwrap_or(&superblock);
            let is_ours = superblock.uuid == first.uuid && superblock.devices == first.devices;
            if !is_ours || superblock.device != device || usize::from(first.devices) != media.devices() {
                return Err(Error::Foreign(device));
            }
            let bytes = superblock.blocks.checked_mul(BLOCK_BYTES as u64);
            if bytes.is_none_or(|bytes| bytes > media.capacity_bytes(device)) {
                return Err(Error::Shrunk(device));
            }
            devices.push(superblock);
        }
        let first = devices.first().ok_or(Error::Devices(0))?;
        let mark = mark_of(first.uuid);
        Ok(Self { mark, devices })
    }

    /// Blocks of each device.
    pub fn blocks(&self) -> Vec<u64> {
        self.devices.iter().map(|device| device.blocks).collect()
    }
}

fn superblock_of(media: &dyn Media, device: u8) -> Result<Superblock, Error> {
    let mut first = None;
    for slot in [0, 1] {
        let block = read_block(media, Place::new(device, slot))?;
        match Superblock::parse(&block, slot) {
            Ok(superblock) => {
                let blocks = superblock.blocks;
                let least = blocks_min(device);
                return match blocks >= least {
                    true => Ok(superblock),
                    false => Err(Error::TooSmall {
                        device,
                        blocks,
                        least,
                    }),
                };
            }
            Err(damage) => first = first.or(Some(damage)),
        }
    }
    let damage = first.expect("two slots were read");
    Err(Error::NoSuperblock { device, damage })
}

/// Blocks that a device needs.
pub const fn blocks_min(device: u8) -> u64 {
    match device {
        0 => FIRST_BLOCKS_MIN,
        _ => OTHER_BLOCKS_MIN,
    }
}
