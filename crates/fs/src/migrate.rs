//! Moves data of files from one device to another one (Strata §3.5).
//!
//! A [`Move`] has extents, and reserved blocks of the other device for them. It copies ([`Move::copy`]), comparing what it reads with the
//! checksums of the tree, and then changes the tree ([`Move::finish`]). One commit makes all of that durable: a cut leaves the old
//! extents, or the new ones. The old blocks are reused when neither root needs them any more.
//!
//! Files may change meanwhile. An extent that is then not what it was stays what it has become. No lease is needed, as no
//! content changes. A damaged block stays where it is, with its extent, and is told: a copy would pass for whole.

use crate::edit::Room;
use crate::format::{BLOCK_BYTES, Key, Kind, Place};
use crate::media::{Error, Media};
use crate::patch::{Extents, Places};
use crate::tree::{Tree, View};
use crate::value::{ExtentRecord, Run};
use crate::work::{Work, extents_of};
use core::ops::Range;
use std::collections::BTreeMap;

/// Where data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The device.
    pub device: u8,
    /// Blocks one behind the other, at least, unless less is to be moved: on a disk a unit of 4 MiB.
    pub run_blocks_min: u64,
    /// Blocks in all, at most.
    pub blocks_max: u64,
}

/// A damaged block that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The file.
    pub inode: u64,
    /// Its block.
    pub block: u64,
    /// Where it is.
    pub place: Place,
}

/// What came of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Blocks that are at their new place when the tree is committed.
    pub blocks: u64,
    /// Blocks of extents that have changed meanwhile, or for whose records there was no room. Move again what is still there.
    pub dropped: u64,
    /// Blocks that stay where they are, as they cannot be read as they were written.
    pub damaged: Vec<Damaged>,
}

/// An extent that is to move.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    inode: u64,
    first: u64,
    extent: ExtentRecord,
    /// Where it goes: of several runs, if the device has no longer ones.
    to: Vec<Run>,
    /// The first damaged block of it.
    damage: Option<Damaged>,
}

impl Piece {
    /// Its old record goes, and each run becomes one.
    fn keys(&self) -> u64 {
        1 + self.to.len() as u64
    }

    /// Reads its blocks. The first one that is not what the tree says, if there is one.
    fn read(&self, media: &dyn Media, bytes: &mut [u8]) -> Option<Damaged> {
        let is_read = media.read(self.extent.run.place, bytes).is_ok();
        let blocks = bytes.chunks_mut(BLOCK_BYTES).zip(&self.extent.crcs);
        for ((bytes, crc), index) in blocks.zip(0..) {
            let place = self.extent.run.place.plus(index);
            // One block that does not read fails all of them.
            let is_read = is_read || media.read(place, bytes).is_ok();
            if !is_read || crc32c::crc32c(bytes) != *crc {
                let (inode, block) = (self.inode, self.first + index);
                return Some(Damaged { inode, block, place });
            }
        }
        None
    }
}

/// A move that is under way.
#[derive(Debug)]
#[must_use = "a move that is not finished or given up keeps its blocks"]
pub struct Move {
    pieces: Vec<Piece>,
}

impl Move {
    /// Reserves blocks for what files have in ranges of blocks on some devices. Nothing if they have nothing there, or if there is no room for a
    /// run that is long enough.
    ///
    /// # Errors
    /// The tree cannot be read, or takes no changes.
    pub fn plan(
        tree: &mut Tree,
        media: &dyn Media,
        (from, ranges): (&[u8], &[(u64, Range<u64>)]),
        target: Target,
    ) -> Result<Option<Self>, Error> {
        let mut found = BTreeMap::new();
        for (inode, blocks) in ranges {
            let extents = extents_of(tree, media, View::Pending, (*inode, blocks.clone()))?;
            let there = extents.into_iter().filter(|(_, extent)| {
                let device = extent.run.place.device();
                device != target.device && from.contains(&device)
            });
            found.extend(there.map(|(first, extent)| ((*inode, first), extent)));
        }
        let wanted: u64 = found.values().map(|extent| extent.run.blocks).sum();
        let wanted = wanted.min(target.blocks_max);
        let runs = reserve(tree, media, wanted, target)?;
        let mut left: u64 = runs.iter().map(|run| run.blocks).sum();
        let mut places = Places(runs);
        let mut pieces = Vec::new();
        for ((inode, first), extent) in found {
            let blocks = extent.run.blocks;
            if blocks > left {
                break;
            }
            left -= blocks;
            let to = places.take_all(blocks);
            let damage = None;
            pieces.push(Piece {
                inode,
                first,
                extent,
                to,
                damage,
            });
        }
        places
            .0
            .into_iter()
            .try_for_each(|run| tree.give_back(media, run))?;
        Ok((!pieces.is_empty()).then_some(Self { pieces }))
    }

    /// Blocks of it.
    pub fn blocks(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.extent.run.blocks).sum()
    }

    /// Keys of the tree that its end changes, at most.
    pub fn keys(&self) -> u64 {
        self.pieces.iter().map(Piece::keys).sum()
    }

    /// Leaves what would change more keys than so many.
    ///
    /// # Errors
    /// The tree takes no changes.
    pub fn limit_keys(&mut self, tree: &mut Tree, media: &dyn Media, keys_max: u64) -> Result<(), Error> {
        let mut keys = 0;
        let fit = self.pieces.iter().take_while(|piece| {
            keys += piece.keys();
            keys <= keys_max
        });
        let count = fit.count();
        let left = self.pieces.split_off(count);
        let runs = left.into_iter().flat_map(|piece| piece.to);
        runs.into_iter().try_for_each(|run| tree.give_back(media, run))
    }

    /// Copies the data. Damaged ones are noted, and left alone. A commit flushes what was written here before its root.
    ///
    /// # Errors
    /// The other device does not write: [give the move up](Self::give_up).
    pub fn copy(&mut self, media: &mut dyn Media) -> Result<(), Error> {
        let mut bytes = vec![0; ExtentRecord::BLOCKS_MAX as usize * BLOCK_BYTES];
        for piece in self
            .pieces
            .iter_mut()
            .filter(|piece| !piece.extent.is_unwritten())
        {
            let bytes = &mut bytes[..piece.extent.run.blocks as usize * BLOCK_BYTES];
            piece.damage = piece.read(media, bytes);
            if piece.damage.is_some() {
                continue;
            }
            let mut rest = &bytes[..];
            for run in &piece.to {
                let (part, behind) = rest.split_at(run.blocks as usize * BLOCK_BYTES);
                let place = run.place;
                let written = media.write(place, part);
                written.map_err(|error| Error::Media { place, error })?;
                rest = behind;
            }
        }
        Ok(())
    }

    /// Changes the tree: what was copied is at its new place, if its extent is still what it was. Commit the tree to make that durable.
    ///
    /// # Errors
    /// The media fail: the tree is to be opened again. What is not committed is as if it had not been.
    pub fn finish(self, tree: &mut Tree, media: &mut dyn Media) -> Result<Moved, Error> {
        tree.admit_changes()?;
        let result = self.make(tree, media);
        if result.is_err() {
            // What has changed up to here is a part of the move, and is never to be committed.
            tree.fail();
        }
        result
    }

    fn make(self, tree: &mut Tree, media: &mut dyn Media) -> Result<Moved, Error> {
        let mut moved = Moved::default();
        let mut files: BTreeMap<u64, Extents> = BTreeMap::new();
        // A move off device 0 makes room there, as a deletion does. It takes no more of the reserve than one.
        let reserve = tree.reserve_blocks();
        let floor = match self.pieces.iter().all(|piece| is_first(piece.extent.run)) {
            true => tree.room().min(reserve).saturating_sub(tree.deleting()),
            false => reserve,
        };
        let mut work = Work::new(tree, media);
        let mut records = 0;
        for piece in self.pieces {
            let key = Key::new(piece.inode, Kind::Extent, piece.first);
            let is_same = work
                .get(key)?
                .is_some_and(|value| value[..] == piece.extent.emit());
            records += 2 * piece.to.len() as u64;
            let has_room = work.tree.room() >= floor + records + 9 * work.tree.places_max() as u64;
            let blocks = piece.extent.run.blocks;
            // Blocks of an extent that has changed may have something else since.
            let damage = piece.damage.filter(|_| is_same);
            if !is_same || !has_room || damage.is_some() {
                moved.dropped += if damage.is_none() { blocks } else { 0 };
                moved.damaged.extend(damage);
                for run in piece.to {
                    work.tree.give_back(work.media, run)?;
                }
                continue;
            }
            moved.blocks += blocks;
            work.remove(key)?;
            work.tree.release(work.media, piece.extent.run)?;
            let extents = files.entry(piece.inode).or_default();
            let (mut first, mut sums) = (piece.first, &piece.extent.crcs[..]);
            for run in piece.to {
                work.tree.keep(work.media, run)?;
                let (of_run, rest) = sums.split_at(sums.len().min(run.blocks as usize));
                extents.push(first, run, of_run);
                (first, sums) = (first + run.blocks, rest);
            }
        }
        for (inode, extents) in files {
            for (first, extent) in extents.0 {
                work.tree.insert(
                    work.media,
                    Key::new(inode, Kind::Extent, first),
                    &extent.emit(),
                    Room::Reserve,
                )?;
            }
        }
        Ok(moved)
    }

    /// Gives the reserved blocks back: nothing moves.
    ///
    /// # Errors
    /// The tree takes no changes.
    pub fn give_up(self, tree: &mut Tree, media: &dyn Media) -> Result<(), Error> {
        let runs = self.pieces.into_iter().flat_map(|piece| piece.to);
        runs.into_iter().try_for_each(|run| tree.give_back(media, run))
    }
}

fn is_first(run: Run) -> bool {
    run.place.device() == 0
}

/// Reserves up to so many blocks, in runs that are long enough.
fn reserve(tree: &mut Tree, media: &dyn Media, wanted: u64, target: Target) -> Result<Vec<Run>, Error> {
    let (mut runs, mut left): (Vec<Run>, u64) = (Vec::new(), wanted);
    while left > 0 {
        let near = runs.last().map(|run| run.end());
        let run = match tree.reserve(media, target.device, left, near) {
            Ok(run) => run,
            Err(Error::Full(_)) => break,
            Err(error) => return Err(error),
        };
        if run.blocks < target.run_blocks_min.min(left) {
            tree.give_back(media, run)?;
            break;
        }
        left -= run.blocks;
        runs.push(run);
    }
    Ok(runs)
}
