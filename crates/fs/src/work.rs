//! The tree as files: what the digest reads and changes of it, one key at a time. Nothing here decides whether a change may be made.

use crate::edit::Room;
use crate::errno::Errno;
use crate::format::{Damage, Key, Kind, Place, hash_of};
use crate::grants::{Fault, Reason};
use crate::inode::Inode;
use crate::media::{Error, Media};
use crate::names::{Attribute, Dirent};
use crate::node::VALUE_BYTES_MAX;
use crate::tree::{Tree, Value, View};
use crate::value::ExtentRecord;
use core::ops::{Range, RangeInclusive};
use std::collections::BTreeMap;

/// Inodes that wait to be written, at most. Most are written again soon: a directory with its next name, and a file with its data.
const INODES_MAX: usize = 64;

/// A tree and its media. Changes take from the reserve: who makes them has asked for room before ([`Work::admit`]).
pub(crate) struct Work<'t> {
    pub(crate) tree: &'t mut Tree,
    pub(crate) media: &'t mut dyn Media,
    /// Inodes that the tree gets later ([`Work::write_inodes`]). There is room for them.
    inodes: BTreeMap<u64, Inode>,
}

/// Where a name is to be in the tree, and what is there already: other names of its hash.
pub(crate) struct Slot {
    key: Key,
    value: Vec<u8>,
}

/// What is wrong with a value of a key that was read whole.
pub(crate) fn senseless(tree: &Tree) -> impl Fn(Damage) -> Error {
    let place = tree.committed().tree.place;
    move |damage| Error::Damaged { place, damage }
}

/// The inode of a number, if there is such a one.
pub(crate) fn inode_of(
    tree: &mut Tree,
    media: &dyn Media,
    view: View,
    inode: u64,
) -> Result<Option<Inode>, Error> {
    let value = tree.get(media, view, Key::new(inode, Kind::Inode, 0))?;
    let parsed = value.map(|value| Inode::parse(&value)).transpose();
    parsed.map_err(senseless(tree))
}

/// Where the extents are that have blocks of a range; nowhere, if it is empty.
pub(crate) fn keys_of_extents(inode: u64, blocks: &Range<u64>) -> Option<RangeInclusive<Key>> {
    let last = blocks.end.checked_sub(1).filter(|last| *last >= blocks.start)?;
    // An extent that begins before may reach into the range.
    let first = blocks.start.saturating_sub(ExtentRecord::BLOCKS_MAX - 1);
    Some(Key::new(inode, Kind::Extent, first)..=Key::new(inode, Kind::Extent, last))
}

/// The extents of a file that have blocks of a range, in order.
pub(crate) fn extents_of(
    tree: &mut Tree,
    media: &dyn Media,
    view: View,
    (inode, blocks): (u64, Range<u64>),
) -> Result<Vec<(u64, ExtentRecord)>, Error> {
    let Some(keys) = keys_of_extents(inode, &blocks) else {
        return Ok(Vec::new());
    };
    // Extents do not overlap: of those that begin before the range, only the last one reaches into it.
    let (first, last) = keys.into_inner();
    let inside = Key::new(inode, Kind::Extent, blocks.start);
    let first = tree
        .last_up_to(media, view, inside)?
        .map_or(first, |key| key.max(first));
    let mut entries = tree.range(view, first..=last);
    let mut found = Vec::new();
    while let Some((key, value)) = entries.next(tree, media)? {
        let extent = ExtentRecord::parse(&value).map_err(senseless(tree))?;
        if key.number.saturating_add(extent.run.blocks) > blocks.start {
            found.push((key.number, extent));
        }
    }
    Ok(found)
}

impl<'t> Work<'t> {
    pub(crate) fn new(tree: &'t mut Tree, media: &'t mut dyn Media) -> Self {
        Self {
            tree,
            media,
            inodes: BTreeMap::new(),
        }
    }
}

impl Work<'_> {
    /// Refuses a change of a few keys for which there is no room. What only deletes may take from the reserve.
    pub(crate) fn admit(&mut self, room: Room) -> Result<(), Fault> {
        // A rename that replaces changes nine keys.
        self.admit_blocks(room, 9 * self.tree.places_max() as u64)
    }

    /// The same of so many blocks of the tree.
    pub(crate) fn admit_blocks(&mut self, room: Room, blocks: u64) -> Result<(), Fault> {
        let reserve = match room {
            Room::Normal => self.tree.reserve_blocks().max(self.tree.kept.growth),
            Room::Reserve => self.tree.kept.deletion,
        };
        let waiting = self.inodes.len() * self.tree.places_max();
        if self.tree.room() < reserve + blocks + waiting as u64 {
            // They may take less than that.
            self.write_inodes()?;
        }
        match self.tree.room() >= reserve + blocks {
            true => Ok(()),
            false => Err(Reason::Full(0).into()),
        }
    }

    /// Writes the inodes that wait.
    pub(crate) fn write_inodes(&mut self) -> Result<(), Error> {
        while let Some((number, inode)) = self.inodes.pop_first() {
            self.put(Key::new(number, Kind::Inode, 0), &inode.emit())?;
        }
        Ok(())
    }

    pub(crate) fn get(&mut self, key: Key) -> Result<Option<Value>, Error> {
        self.tree.get(self.media, View::Pending, key)
    }

    pub(crate) fn put(&mut self, key: Key, value: &[u8]) -> Result<(), Error> {
        self.tree.insert(self.media, key, value, Room::Reserve)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Result<bool, Error> {
        self.tree.remove(self.media, key)
    }

    pub(crate) fn find(&mut self, inode: u64) -> Result<Option<Inode>, Error> {
        if let Some(waiting) = self.inodes.get(&inode) {
            return Ok(Some(*waiting));
        }
        inode_of(self.tree, self.media, View::Pending, inode)
    }

    /// An inode that is to be there.
    pub(crate) fn inode(&mut self, inode: u64) -> Result<Inode, Fault> {
        Ok(self.find(inode)?.ok_or(Errno::NoEntry)?)
    }

    /// Sets an inode: the tree gets it by [`Self::write_inodes`].
    pub(crate) fn put_inode(&mut self, number: u64, inode: Inode) -> Result<(), Error> {
        self.inodes.insert(number, inode);
        match self.inodes.len() > INODES_MAX {
            true => self.write_inodes(),
            false => Ok(()),
        }
    }

    fn entry_key(&self, parent: u64, name: &[u8]) -> Key {
        Key::new(parent, Kind::Entry, hash_of(name, self.tree.mark))
    }

    /// The inode of a name.
    pub(crate) fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<Option<u64>, Error> {
        let key = self.entry_key(parent, name);
        let Some(value) = self.get(key)? else {
            return Ok(None);
        };
        let entries = Dirent::parse_all(&value).map_err(senseless(self.tree))?;
        let found = entries.iter().find(|entry| entry.name == name);
        Ok(found.map(|entry| entry.inode))
    }

    /// Where a new name is to be; nothing if it is there. It is refused if too many of its hash are there.
    pub(crate) fn slot(&mut self, parent: u64, name: &[u8]) -> Result<Option<Slot>, Fault> {
        let key = self.entry_key(parent, name);
        let value = self.get(key)?.map_or_else(Vec::new, |value| value.to_vec());
        let entries = Dirent::parse_all(&value).map_err(senseless(self.tree))?;
        if entries.iter().any(|entry| entry.name == name) {
            return Ok(None);
        }
        match value.len() + Dirent::bytes(name.len()) <= VALUE_BYTES_MAX {
            true => Ok(Some(Slot { key, value })),
            false => Err(Errno::NoSpace.into()),
        }
    }

    /// Adds a name that is not there.
    pub(crate) fn add_entry(&mut self, mut slot: Slot, entry: &Dirent<'_>) -> Result<(), Error> {
        entry.emit(&mut slot.value);
        self.put(slot.key, &slot.value)
    }

    /// Where a name is to be that is not there, and has room.
    pub(crate) fn free_slot(&mut self, parent: u64, name: &[u8]) -> Result<Slot, Error> {
        let key = self.entry_key(parent, name);
        let value = self.get(key)?.map_or_else(Vec::new, |value| value.to_vec());
        Ok(Slot { key, value })
    }

    /// Takes a name out that is there.
    pub(crate) fn remove_entry(&mut self, parent: u64, name: &[u8]) -> Result<(), Error> {
        let key = self.entry_key(parent, name);
        let Some(value) = self.get(key)? else {
            return Ok(());
        };
        let entries = Dirent::parse_all(&value).map_err(senseless(self.tree))?;
        let mut left = Vec::new();
        for entry in entries.iter().filter(|entry| entry.name != name) {
            entry.emit(&mut left);
        }
        self.put_or_remove(key, &left)
    }

    fn put_or_remove(&mut self, key: Key, value: &[u8]) -> Result<(), Error> {
        match value {
            [] => self.remove(key).map(drop),
            _ => self.put(key, value),
        }
    }

    /// Sets an extended attribute, or removes it if there is no value.
    pub(crate) fn set_attribute(
        &mut self,
        inode: u64,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), Fault> {
        let key = Key::new(inode, Kind::Attribute, hash_of(name, self.tree.mark));
        let old = self.get(key)?.map_or_else(Vec::new, |value| value.to_vec());
        let attributes = Attribute::parse_all(&old).map_err(senseless(self.tree))?;
        if value.is_none() && !attributes.iter().any(|attribute| attribute.name == name) {
            return Err(Errno::NoData.into());
        }
        let mut new = Vec::new();
        for attribute in attributes.iter().filter(|attribute| attribute.name != name) {
            attribute.emit(&mut new);
        }
        if let Some(value) = value {
            Attribute { name, value }.emit(&mut new);
        }
        match new.len() <= VALUE_BYTES_MAX {
            true => Ok(self.put_or_remove(key, &new)?),
            false => Err(Errno::NoSpace.into()),
        }
    }

    /// Removes an extended attribute if it is there.
    pub(crate) fn drop_attribute(&mut self, inode: u64, name: &[u8]) -> Result<(), Error> {
        match self.set_attribute(inode, name, None) {
            Err(Fault::Failed(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes an inode that has no names, with its blocks.
    pub(crate) fn delete(&mut self, inode: u64) -> Result<(), Error> {
        self.inodes.remove(&inode);
        let keys = Key::new(inode, Kind::Extent, 0)..=Key::new(inode, Kind::Extent, u64::MAX);
        let mut entries = self.tree.range(View::Pending, keys);
        let mut runs = Vec::new();
        while let Some((_, value)) = entries.next(self.tree, self.media)? {
            let extent = ExtentRecord::parse(&value).map_err(senseless(self.tree))?;
            runs.push(extent.run);
        }
        let keys = Key::new(inode, Kind::Inode, 0)..=Key::new(inode, Kind::Extent, u64::MAX);
        self.tree.remove_range(self.media, keys)?;
        runs.into_iter()
            .try_for_each(|run| self.tree.release(self.media, run))
    }

    /// Reads a block of data and checks it.
    pub(crate) fn read(&self, place: Place, crc: u32) -> Result<Box<crate::format::Block>, Fault> {
        let block = crate::media::read_block(self.media, place)?;
        match crc32c::crc32c(&block[..]) == crc {
            true => Ok(block),
            false => Err(Errno::Io.into()),
        }
    }
}
