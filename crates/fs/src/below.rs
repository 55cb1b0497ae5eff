//! What is below an overlay: the tree itself, or what a process without devices knows of it.

use crate::errno::Errno;
use crate::format::{Damage, Key, Kind, Place};
use crate::inode::Inode;
use crate::known::Known;
use crate::media::{Error, Media};
use crate::pieces::{Pieces, ReadError, Spot};
use crate::ranges::Ranges;
use crate::tree::{self, Tree, Value, View};
use crate::walks::Walk;
use crate::work;
use core::ops::{Deref, Range, RangeInclusive};
use std::sync::Arc;

/// The state of the files that an overlay is above.
pub struct Below<'t>(Base<'t>);

enum Base<'t> {
    Tree {
        tree: &'t mut Tree,
        media: &'t dyn Media,
        view: View,
    },
    Known(&'t mut Known),
}

/// A value of a key.
pub(crate) enum Found {
    Tree(Value),
    Known(Arc<[u8]>),
}

impl Deref for Found {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Tree(value) => value,
            Self::Known(value) => value,
        }
    }
}

/// The entries of a range of keys, one after the other.
pub(crate) struct Entries {
    /// Those of the tree, if it is read.
    of_tree: Option<tree::Entries>,
    /// Of what is known: the next key, if there may be one, and the last one.
    next: Option<Key>,
    last: Key,
}

impl Entries {
    pub(crate) fn next(&mut self, below: &mut Below<'_>) -> Result<Option<(Key, Found)>, Error> {
        match (&mut self.of_tree, &mut below.0) {
            (Some(entries), Base::Tree { tree, media, .. }) => {
                let next = entries.next(tree, *media)?;
                Ok(next.map(|(key, value)| (key, Found::Tree(value))))
            }
            (None, Base::Known(known)) => {
                let Some(from) = self.next else {
                    return Ok(None);
                };
                let found = known.next(from, self.last)?;
                self.next = found.as_ref().and_then(|(key, _)| {
                    let number = key.number.checked_add(1)?;
                    (number <= self.last.number).then(|| Key::new(key.inode, key.kind, number))
                });
                Ok(found.map(|(key, value)| (key, Found::Known(value))))
            }
            _ => unreachable!("entries are read of where they were asked for"),
        }
    }
}

impl<'t> Below<'t> {
    /// A state of the tree: of a root, or with all changes.
    pub fn new(tree: &'t mut Tree, media: &'t dyn Media, view: View) -> Self {
        Self(Base::Tree { tree, media, view })
    }

    /// What a process knows. What it does not know is [`Error::Missing`]: [`Known::missing`] says what that is.
    pub fn known(known: &'t mut Known) -> Self {
        Self(Base::Known(known))
    }

    /// Whether reading may find something missing.
    pub(crate) fn may_miss(&self) -> bool {
        matches!(self.0, Base::Known(_))
    }

    /// Where a path has led before, if nothing has changed since: in a process.
    pub fn walked(&self, base: u64, follows: bool, path: &[u8]) -> Option<&Walk> {
        match &self.0 {
            Base::Tree { .. } => None,
            Base::Known(known) => known.walked(base, follows, path),
        }
    }

    /// Notes where a path has led.
    pub fn note_walk(&mut self, walk: impl FnOnce() -> Walk) {
        if let Base::Known(known) = &mut self.0 {
            known.walks.keep(walk);
        }
    }

    /// A call has changed something.
    pub(crate) fn changed(&mut self) {
        if let Base::Known(known) = &mut self.0 {
            known.walks.forget();
        }
    }

    /// Whether an inode may be read: in a process the lease of what it has logged may have gone, and others have changed it.
    pub(crate) fn admit(&mut self, inode: u64) -> Result<(), Error> {
        match &mut self.0 {
            Base::Tree { .. } => Ok(()),
            Base::Known(known) => known.admit(inode),
        }
    }

    pub(crate) fn get(&mut self, key: Key) -> Result<Option<Found>, Error> {
        match &mut self.0 {
            Base::Tree { tree, media, view } => Ok(tree.get(*media, *view, key)?.map(Found::Tree)),
            Base::Known(known) => Ok(known.get(key)?.map(Found::Known)),
        }
    }

    /// Entries of keys that are of one inode and one kind.
    pub(crate) fn range(&self, keys: RangeInclusive<Key>) -> Entries {
        let of_tree = match &self.0 {
            Base::Tree { tree, view, .. } => Some(tree.range(*view, keys.clone())),
            Base::Known(_) => None,
        };
        let (first, last) = keys.into_inner();
        Entries {
            of_tree,
            next: Some(first),
            last,
        }
    }

    /// What is wrong with a value that was read whole.
    pub(crate) fn senseless(&self) -> impl Fn(Damage) -> Error + use<> {
        let place = match &self.0 {
            Base::Tree { tree, .. } => tree.committed().tree.place,
            Base::Known(_) => Place::NONE,
        };
        move |damage| Error::Damaged { place, damage }
    }

    pub(crate) fn inode(&mut self, inode: u64) -> Result<Option<Inode>, Error> {
        let value = self.get(Key::new(inode, Kind::Inode, 0))?;
        let parsed = value.map(|value| Inode::parse(&value)).transpose();
        parsed.map_err(self.senseless())
    }

    /// Which blocks of a file are there, of a range and around it.
    pub(crate) fn there(&mut self, inode: u64, blocks: &Range<u64>) -> Result<Ranges, Error> {
        match &mut self.0 {
            Base::Tree { tree, media, view } => {
                let mut there = Ranges::default();
                for (first, extent) in work::extents_of(tree, *media, *view, (inode, blocks.clone()))? {
                    there.insert(first..first + extent.run.blocks);
                }
                Ok(there)
            }
            Base::Known(known) => known.there(inode, blocks),
        }
    }

    /// Adds what is there of a range of a file that is read from `start` on.
    pub(crate) fn add_pieces(
        &mut self,
        inode: u64,
        (start, range): (u64, Range<u64>),
        pieces: &mut Pieces,
    ) -> Result<(), ReadError> {
        const BYTES: u64 = crate::format::BLOCK_BYTES as u64;
        if range.is_empty() {
            return Ok(());
        }
        let blocks = crate::content::touched_blocks(&range);
        let extents = match &mut self.0 {
            Base::Tree { tree, media, view } => work::extents_of(tree, *media, *view, (inode, blocks))?,
            Base::Known(known) => {
                for (block, data) in known.blocks(inode, blocks)? {
                    let whole = block * BYTES..(block + 1) * BYTES;
                    let (from, to) = (whole.start.max(range.start), whole.end.min(range.end));
                    let spot = Spot::Memory(data, (from - whole.start) as usize);
                    pieces.add((from - start) as usize, (to - from) as usize, spot);
                }
                return Ok(());
            }
        };
        for (first, extent) in extents {
            if extent.is_unwritten() {
                continue;
            }
            let whole = first * BYTES..(first + extent.run.blocks) * BYTES;
            let (from, to) = (whole.start.max(range.start), whole.end.min(range.end));
            let blocks = Spot::Blocks(extent.run.place, extent.crcs.into(), from - whole.start);
            pieces.add((from - start) as usize, (to - from) as usize, blocks);
        }
        Ok(())
    }

    /// Reads pieces.
    pub(crate) fn read(&self, pieces: &Pieces, bytes: &mut [u8]) -> Result<(), ReadError> {
        match &self.0 {
            Base::Tree { media, .. } => pieces.read(*media, bytes),
            Base::Known(_) => match pieces.read_memory(bytes) {
                true => Ok(()),
                false => Err(Errno::Io.into()),
            },
        }
    }

    /// Blocks of all devices, and those of them that are free.
    pub(crate) fn room(&self) -> (u64, u64) {
        match &self.0 {
            Base::Tree { tree, media, .. } => {
                let devices = 0..tree.devices() as u8;
                let all = devices.clone().map(|device| media.capacity_bytes(device));
                let blocks = all.map(|bytes| bytes / crate::format::BLOCK_BYTES as u64);
                (blocks.sum(), devices.map(|device| tree.free(device)).sum())
            }
            Base::Known(known) => known.room,
        }
    }
}
