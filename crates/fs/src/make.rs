//! Makes a file system on devices, whatever they had before.

use crate::edit::Room;
use crate::format::{
    BLOCK_BYTES, Block, DEVICES_MAX, Key, Kind, Place, RESERVED_BLOCKS, ROOT_INODE, Superblock, Tier,
};
use crate::inode::{Inode, TYPE_DIRECTORY, Time};
use crate::media::{Error, Media, Volume, blocks_min};
use crate::tree::Tree;
use base::MediaError;
use uuid::Uuid;

/// What a new file system is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Make {
    /// Its name among all.
    pub uuid: Uuid,
    /// Tier and name of each device. The first one is to be the fastest.
    pub devices: Vec<(Tier, Uuid)>,
    /// Now.
    pub time: Time,
    /// The user and group that the root directory belongs to.
    pub owner: (u32, u32),
}

impl Make {
    /// Makes a file system with an empty root directory. The superblocks are written last, so a cut leaves none, or the whole.
    ///
    /// # Errors
    /// A device is too small, there are too few or too many, or one failed.
    pub fn make(&self, media: &mut dyn Media) -> Result<Volume, Error> {
        let volume = self.volume(media)?;
        self.wipe(media)?;
        let mut tree = Tree::blank(&volume, 0);
        let (uid, gid) = self.owner;
        let root = Inode {
            mode: TYPE_DIRECTORY | 0o755,
            links: 2,
            uid,
            gid,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            btime: self.time,
            parent: ROOT_INODE,
            ..Inode::default()
        };
        let key = Key::new(ROOT_INODE, Kind::Inode, 0);
        tree.insert(media, key, &root.emit(), Room::Normal)?;
        tree.commit(media)?;
        for superblock in &volume.devices {
            for slot in [0, 1] {
                write(media, Place::new(superblock.device, slot), &superblock.emit(slot))?;
            }
        }
        flush(media)?;
        Ok(volume)
    }

    fn volume(&self, media: &dyn Media) -> Result<Volume, Error> {
        let count = self.devices.len();
        if !(1..=DEVICES_MAX).contains(&count) || count != media.devices() {
            return Err(Error::Devices(media.devices()));
        }
        let mut devices = Vec::new();
        for (device, (tier, device_uuid)) in (0..).zip(&self.devices) {
            let blocks = media.capacity_bytes(device) / BLOCK_BYTES as u64;
            let least = blocks_min(device);
            if blocks < least {
                return Err(Error::TooSmall {
                    device,
                    blocks,
                    least,
                });
            }
            devices.push(Superblock {
                uuid: self.uuid,
                blocks,
                device,
                tier: *tier,
                devices: count as u8,
                device_uuid: *device_uuid,
            });
        }
        let mark = crate::format::mark_of(self.uuid);
        Ok(Volume { mark, devices })
    }

    /// Takes away what an older file system could be opened by.
    fn wipe(&self, media: &mut dyn Media) -> Result<(), Error> {
        for device in 0..self.devices.len() as u8 {
            for number in 0..RESERVED_BLOCKS {
                write(media, Place::new(device, number), &[0; BLOCK_BYTES])?;
            }
        }
        flush(media)
    }
}

fn write(media: &mut dyn Media, place: Place, block: &Block) -> Result<(), Error> {
    let result: Result<(), MediaError> = media.write(place, block);
    result.map_err(|error| Error::Media { place, error })
}

fn flush(media: &mut dyn Media) -> Result<(), Error> {
    for device in 0..media.devices() as u8 {
        let place = Place::new(device, 0);
        media
            .flush(device)
            .map_err(|error| Error::Media { place, error })?;
    }
    Ok(())
}
