//! Changes of one file's blocks, gathered in memory and then made in the tree at once.
//!
//! A block that a root needs is never written: changed blocks get new places, and the old ones are freed with the commit. A part of a block that
//! is written takes the rest of the block from where it is.

use crate::content::{touched_blocks, whole_blocks};
use crate::edit::Room;
use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, Block, Key, Kind, Place};
use crate::grants::{Fault, Grants, Reason};
use crate::media::Error;
use crate::op::{Action, Allocation, OFFSET_MAX};
use crate::ranges::Ranges;
use crate::spans::{Cut, Spans};
use crate::tree::View;
use crate::value::{ExtentRecord, Run};
use crate::work::{Work, extents_of};
use core::ops::Range;
use std::collections::BTreeMap;

const BYTES: u64 = BLOCK_BYTES as u64;
/// Behind all blocks of a file.
const BLOCKS_END: u64 = OFFSET_MAX / BYTES + 1;

/// What becomes of blocks.
#[derive(Debug)]
enum State<'a> {
    Hole,
    /// They get places, and read as zeros.
    Unwritten,
    /// One block that gets a place.
    Data(Box<Block>),
    /// Blocks that get places, as a record has them.
    Whole(&'a [u8]),
    /// They are in granted blocks that follow each other, with these checksums.
    Placed(Place, Vec<u32>),
}

impl Cut for State<'_> {
    fn cut(&mut self, at: u64) -> Self {
        match self {
            Self::Hole => Self::Hole,
            Self::Unwritten => Self::Unwritten,
            Self::Data(_) => unreachable!("a block of data is one block"),
            Self::Whole(bytes) => {
                let (before, behind) = bytes.split_at(at as usize * BLOCK_BYTES);
                *bytes = before;
                Self::Whole(behind)
            }
            Self::Placed(place, sums) => Self::Placed(place.plus(at), sums.split_off(at as usize)),
        }
    }
}

/// What is at a block now.
enum Found {
    Hole,
    Unwritten,
    Data(Box<Block>),
}

/// Changes of a file's blocks.
#[derive(Debug)]
pub(crate) struct Patch<'a> {
    inode: u64,
    /// What becomes of blocks.
    parts: Spans<State<'a>>,
    /// Granted blocks that a later change has replaced.
    dropped: Vec<Run>,
    pub(crate) size: u64,
    /// The tree has nothing of its content.
    is_empty: bool,
}

/// What a patch has changed.
pub(crate) struct Patched {
    pub(crate) size: u64,
    /// Blocks that the file has more, and less.
    pub(crate) added: u64,
    pub(crate) removed: u64,
}

impl<'a> Patch<'a> {
    /// Of a file of `size` bytes that has so many blocks.
    pub(crate) fn new(inode: u64, size: u64, blocks: u64) -> Self {
        Self {
            inode,
            parts: Spans::default(),
            dropped: Vec::new(),
            size,
            is_empty: blocks == 0,
        }
    }

    /// The extents of the tree that have blocks of a range. A file without blocks has none: most that a digest finds were made just before.
    fn extents(&self, work: &mut Work<'_>, blocks: Range<u64>) -> Result<Vec<(u64, ExtentRecord)>, Error> {
        match self.is_empty {
            true => Ok(Vec::new()),
            false => extents_of(work.tree, work.media, View::Pending, (self.inode, blocks)),
        }
    }

    fn end_of(offset: u64, bytes: u64) -> Result<u64, Errno> {
        match offset.checked_add(bytes) {
            _ if bytes == 0 => Err(Errno::Invalid),
            Some(end) if end <= OFFSET_MAX => Ok(end),
            _ => Err(Errno::FileTooBig),
        }
    }

    /// Notes what an action on the file's content does. If it is refused, nothing is noted.
    pub(crate) fn add(
        &mut self,
        work: &mut Work<'_>,
        action: &'a Action<'_>,
        grants: &mut Grants,
    ) -> Result<(), Fault> {
        match action {
            Action::Truncate { size } => {
                if *size > OFFSET_MAX {
                    return Err(Errno::FileTooBig.into());
                }
                self.punch(work, *size..u64::MAX)?;
                self.size = *size;
            }
            Action::Write { offset, data } => {
                let end = Self::end_of(*offset, data.len() as u64)?;
                self.write(work, *offset, data)?;
                self.size = self.size.max(end);
            }
            Action::Place {
                offset,
                bytes,
                place,
                sums,
            } => {
                let end = Self::end_of(*offset, u64::from(*bytes))?;
                let is_whole = end.is_multiple_of(BYTES) || end >= self.size;
                let run = Run {
                    place: *place,
                    blocks: sums.len() as u64,
                };
                if !is_whole
                    || !offset.is_multiple_of(BYTES)
                    || run.blocks != end.div_ceil(BYTES) - offset / BYTES
                {
                    return Err(Errno::Invalid.into());
                }
                if !grants.take(run) {
                    return Err(Reason::Ungranted(*place).into());
                }
                let first = offset / BYTES;
                self.set(first..first + run.blocks, State::Placed(*place, sums.to_vec()));
                self.size = self.size.max(end);
            }
            Action::Allocate {
                offset,
                bytes,
                what,
                keeps_size,
            } => {
                let end = Self::end_of(*offset, *bytes)?;
                match what {
                    Allocation::Hole if !keeps_size => return Err(Errno::NotSupported.into()),
                    Allocation::Reserve => self.reserve(work, touched_blocks(&(*offset..end)))?,
                    Allocation::Hole => self.punch(work, *offset..end)?,
                    Allocation::Zeros => {
                        self.punch(work, *offset..end)?;
                        self.reserve(work, touched_blocks(&(*offset..end)))?;
                    }
                }
                if !keeps_size {
                    self.size = self.size.max(end);
                }
            }
            _ => unreachable!("the caller passes actions on content"),
        }
        Ok(())
    }

    /// Says what becomes of blocks.
    fn set(&mut self, blocks: Range<u64>, state: State<'a>) {
        let dropped = &mut self.dropped;
        self.parts.set(blocks, state, |gone| {
            if let State::Placed(place, sums) = gone {
                let blocks = sums.len() as u64;
                dropped.push(Run { place, blocks });
            }
        });
    }

    /// What is at a block, with its content.
    fn at(&self, work: &mut Work<'_>, block: u64) -> Result<Found, Fault> {
        if let Some((blocks, state)) = self.parts.at(block) {
            return Ok(match state {
                State::Hole => Found::Hole,
                State::Unwritten => Found::Unwritten,
                State::Data(data) => Found::Data(data.clone()),
                State::Whole(bytes) => {
                    let (all, _) = bytes.as_chunks::<BLOCK_BYTES>();
                    Found::Data(Box::new(all[(block - blocks.start) as usize]))
                }
                State::Placed(place, sums) => {
                    let index = block - blocks.start;
                    Found::Data(work.read(place.plus(index), sums[index as usize])?)
                }
            });
        }
        let extents = self.extents(work, block..block + 1)?;
        Ok(match extents.last() {
            None => Found::Hole,
            Some((_, extent)) if extent.is_unwritten() => Found::Unwritten,
            Some((first, extent)) => {
                let index = block - first;
                let (place, crc) = (extent.run.place.plus(index), extent.crcs[index as usize]);
                Found::Data(work.read(place, crc)?)
            }
        })
    }

    fn write(&mut self, work: &mut Work<'_>, offset: u64, data: &'a [u8]) -> Result<(), Fault> {
        let range = offset..offset + data.len() as u64;
        let (touched, whole) = (touched_blocks(&range), whole_blocks(&range));
        let mut edges = vec![touched.start, touched.end - 1];
        edges.dedup();
        let mut blocks = Vec::with_capacity(edges.len());
        for number in edges.into_iter().filter(|number| !whole.contains(number)) {
            let start = number * BYTES;
            let (from, to) = (range.start.max(start), range.end.min(start + BYTES));
            let mut block = match self.at(work, number)? {
                Found::Data(block) => block,
                Found::Hole | Found::Unwritten => Box::new([0; BLOCK_BYTES]),
            };
            block[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            blocks.push((number, block));
        }
        for (number, block) in blocks {
            self.set(number..number + 1, State::Data(block));
        }
        if !whole.is_empty() {
            let from = (whole.start * BYTES - offset) as usize;
            let bytes = (whole.end - whole.start) as usize * BLOCK_BYTES;
            self.set(whole, State::Whole(&data[from..from + bytes]));
        }
        Ok(())
    }

    /// Takes the whole blocks of a range, and zeros what it has of others.
    fn punch(&mut self, work: &mut Work<'_>, range: Range<u64>) -> Result<(), Fault> {
        let whole = whole_blocks(&range);
        let (first, last) = (range.start / BYTES, range.end / BYTES);
        let mut edges = vec![first, last];
        edges.dedup();
        let mut zeroed = Vec::new();
        for number in edges {
            let start = number * BYTES;
            let (from, to) = (range.start.max(start), range.end.min(start.saturating_add(BYTES)));
            let is_part = from < to && !whole.contains(&number) && number < BLOCKS_END;
            if is_part && let Found::Data(mut block) = self.at(work, number)? {
                block[(from - start) as usize..(to - start) as usize].fill(0);
                zeroed.push((number, block));
            }
        }
        self.set(whole.start..whole.end.min(BLOCKS_END), State::Hole);
        for (number, block) in zeroed {
            self.set(number..number + 1, State::Data(block));
        }
        Ok(())
    }

    /// Gives places to blocks that have none.
    fn reserve(&mut self, work: &mut Work<'_>, blocks: Range<u64>) -> Result<(), Fault> {
        let mut there = Ranges::default();
        for (first, extent) in self.extents(work, blocks.clone())? {
            there.insert(first..first + extent.run.blocks);
        }
        for (part, state) in self.parts.of(blocks.clone()) {
            match state {
                State::Hole => there.remove(part),
                _ => there.insert(part),
            }
        }
        for gap in there.gaps(blocks) {
            self.set(gap, State::Unwritten);
        }
        Ok(())
    }

    /// Gives what was taken of the grants back: the patch is not made.
    pub(crate) fn abandon(self, grants: &mut Grants) {
        for (_, state) in self.parts.into_iter() {
            if let State::Placed(place, sums) = state {
                let blocks = sums.len() as u64;
                grants.grant(Run { place, blocks });
            }
        }
        self.dropped.into_iter().for_each(|run| grants.grant(run));
    }

    /// Makes the changes in the tree. `devices` are where new blocks may be, in the order of preference.
    ///
    /// A refusal leaves all as it was.
    pub(crate) fn flush(
        self,
        work: &mut Work<'_>,
        devices: &[u8],
        grants: &mut Grants,
    ) -> Result<Patched, Fault> {
        let old = self.overlapped(work)?;
        let wanted = self.wanted();
        let places = match self.allocate(work, devices, wanted) {
            Ok(places) => places,
            Err(fault) => {
                self.abandon(grants);
                return Err(fault);
            }
        };
        let is_growing = wanted > 0 || self.parts.iter().any(|(_, state)| !matches!(state, State::Hole));
        let room = if is_growing { Room::Normal } else { Room::Reserve };
        // Each extent that is cut leaves two, and records of extents fill half of a node at least. Those that go whole take nothing: nodes
        // that they leave thin are joined.
        let records = 2 * self.cut(&old) + self.extents_max() + wanted.div_ceil(ExtentRecord::BLOCKS_MAX);
        let nodes = 2 * work.tree.places_max() as u64;
        let needed = match room {
            Room::Normal => nodes + records,
            Room::Reserve => nodes,
        };
        if let Err(fault) = work.admit_blocks(room, needed) {
            for run in places {
                work.tree.give_back(work.media, run)?;
            }
            self.abandon(grants);
            return Err(fault);
        }
        self.make(work, old, places)
    }

    /// The extents of the tree of which blocks change, by their first block.
    fn overlapped(&self, work: &mut Work<'_>) -> Result<BTreeMap<u64, ExtentRecord>, Error> {
        let mut old = BTreeMap::new();
        for (blocks, _) in self.parts.iter() {
            old.extend(self.extents(work, blocks)?);
        }
        Ok(old)
    }

    /// Extents of which something stays.
    fn cut(&self, old: &BTreeMap<u64, ExtentRecord>) -> u64 {
        let stays = |(first, extent): &(&u64, &ExtentRecord)| {
            let whole = **first..**first + extent.run.blocks;
            let changed = self.parts.of(whole.clone());
            let changed = changed.map(|(part, _)| part.end.min(whole.end) - part.start.max(whole.start));
            changed.sum::<u64>() < extent.run.blocks
        };
        old.iter().filter(stays).count() as u64
    }

    /// Extents that the parts become, at most, beside those that are cut: the places may be anywhere.
    fn extents_max(&self) -> u64 {
        let extents = self.parts.iter().map(|(blocks, state)| match state {
            State::Whole(_) => blocks.end - blocks.start,
            _ => 1,
        });
        extents.sum()
    }

    /// Blocks that need places.
    fn wanted(&self) -> u64 {
        let wanted = self.parts.iter().map(|(blocks, state)| match state {
            State::Data(_) | State::Whole(_) | State::Unwritten => blocks.end - blocks.start,
            State::Hole | State::Placed(..) => 0,
        });
        wanted.sum()
    }

    /// Reserves so many blocks on the first devices that have room.
    fn allocate(&self, work: &mut Work<'_>, devices: &[u8], wanted: u64) -> Result<Vec<Run>, Fault> {
        let known = |device: &&u8| usize::from(**device) < work.tree.devices();
        let devices: Vec<u8> = devices.iter().filter(known).copied().collect();
        let full = Reason::Full(devices.first().copied().unwrap_or(0));
        let free: u64 = devices.iter().map(|device| work.tree.free(*device)).sum();
        if wanted > free {
            return Err(full.into());
        }
        let mut near = self.place_before(work)?;
        let (mut runs, mut left) = (Vec::new(), wanted);
        // The rest is others'.
        let mut of_others = work.tree.room_of_others().saturating_sub(work.tree.kept.others);
        for device in devices {
            while left > 0 {
                let want = if device == 0 { left } else { left.min(of_others) };
                if want == 0 {
                    break;
                }
                match work.tree.reserve(work.media, device, want, near) {
                    Ok(run) => {
                        of_others -= if device == 0 { 0 } else { run.blocks };
                        (near, left) = (Some(run.end()), left - run.blocks);
                        runs.push(run);
                    }
                    Err(Error::Full(_)) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if left == 0 {
            return Ok(runs);
        }
        for run in runs {
            work.tree.give_back(work.media, run)?;
        }
        Err(full.into())
    }

    /// The place behind the block in front of the first one that changes.
    fn place_before(&self, work: &mut Work<'_>) -> Result<Option<Place>, Error> {
        let first = self.parts.iter().next();
        let Some(block) = first.and_then(|(blocks, _)| blocks.start.checked_sub(1)) else {
            return Ok(None);
        };
        let before = self.extents(work, block..block + 1)?;
        let before = before.last();
        Ok(before.map(|(first, extent)| extent.run.place.plus(block + 1 - first)))
    }

    fn make(
        self,
        work: &mut Work<'_>,
        old: BTreeMap<u64, ExtentRecord>,
        places: Vec<Run>,
    ) -> Result<Patched, Fault> {
        let inode = self.inode;
        let removed = self.make_old(work, old)?;
        let (mut extents, mut added) = (Extents::default(), 0);
        let mut places = Places(places);
        for (blocks, state) in self.parts.into_iter() {
            let (first, end) = (blocks.start, blocks.end);
            match state {
                State::Hole => continue,
                State::Data(block) => {
                    let place = places.take(1).place;
                    let written = work.media.write(place, &block[..]);
                    written.map_err(|error| Error::Media { place, error })?;
                    extents.push(first, Run::one(place), &[crc32c::crc32c(&block[..])]);
                }
                State::Whole(bytes) => {
                    let (mut at, mut rest) = (first, bytes);
                    while at < end {
                        let run = places.take((end - at).min(ExtentRecord::BLOCKS_MAX));
                        let (part, behind) = rest.split_at(run.blocks as usize * BLOCK_BYTES);
                        let (place, written) = (run.place, work.media.write(run.place, part));
                        written.map_err(|error| Error::Media { place, error })?;
                        let sums: Vec<u32> = part.chunks_exact(BLOCK_BYTES).map(crc32c::crc32c).collect();
                        extents.push(at, run, &sums);
                        (at, rest) = (at + run.blocks, behind);
                    }
                }
                State::Unwritten => {
                    let mut at = first;
                    while at < end {
                        let run = places.take((end - at).min(ExtentRecord::BLOCKS_MAX));
                        extents.push(at, run, &[]);
                        at += run.blocks;
                    }
                }
                State::Placed(place, sums) => {
                    let mut at = 0;
                    for sums in sums.chunks(ExtentRecord::BLOCKS_MAX as usize) {
                        let blocks = sums.len() as u64;
                        let place = place.plus(at);
                        extents.push(first + at, Run { place, blocks }, sums);
                        at += blocks;
                    }
                }
            }
            added += end - first;
        }
        for (_, extent) in &extents.0 {
            work.tree.keep(work.media, extent.run)?;
        }
        if !self.is_empty {
            extents.join_before(work, inode)?;
        }
        for (first, extent) in extents.0 {
            work.put(Key::new(inode, Kind::Extent, first), &extent.emit())?;
        }
        for run in self.dropped {
            work.tree.retire(work.media, run)?;
        }
        let size = self.size;
        Ok(Patched { size, added, removed })
    }

    /// Takes the changed blocks out of the extents that have them, and frees these blocks. How many they are.
    fn make_old(&self, work: &mut Work<'_>, old: BTreeMap<u64, ExtentRecord>) -> Result<u64, Error> {
        let mut removed = 0;
        for (first, extent) in old {
            let whole = first..first + extent.run.blocks;
            let mut kept = Ranges::default();
            kept.insert(whole.clone());
            for (blocks, _) in self.parts.of(whole.clone()) {
                kept.remove(blocks);
            }
            let part = |blocks: &Range<u64>| Run {
                place: extent.run.place.plus(blocks.start - first),
                blocks: blocks.end - blocks.start,
            };
            work.remove(Key::new(self.inode, Kind::Extent, first))?;
            for blocks in kept.iter() {
                let sums = (blocks.start - first) as usize..(blocks.end - first) as usize;
                let left = ExtentRecord {
                    run: part(&blocks),
                    crcs: extent.crcs.get(sums).unwrap_or_default().to_vec(),
                };
                work.put(Key::new(self.inode, Kind::Extent, blocks.start), &left.emit())?;
            }
            for blocks in kept.gaps(whole) {
                removed += blocks.end - blocks.start;
                work.tree.release(work.media, part(&blocks))?;
            }
        }
        Ok(removed)
    }
}

/// Reserved blocks, of which parts are taken in order.
pub(crate) struct Places(pub(crate) Vec<Run>);

impl Places {
    /// So many blocks, which are there.
    pub(crate) fn take_all(&mut self, blocks: u64) -> Vec<Run> {
        let (mut runs, mut left) = (Vec::new(), blocks);
        while left > 0 {
            let run = self.take(left);
            left -= run.blocks;
            runs.push(run);
        }
        runs
    }

    /// Up to so many blocks one behind the other.
    fn take(&mut self, blocks: u64) -> Run {
        let run = self.0.first_mut().expect("as many were reserved as are needed");
        let taken = Run {
            place: run.place,
            blocks: run.blocks.min(blocks),
        };
        run.place = run.place.plus(taken.blocks);
        run.blocks -= taken.blocks;
        if run.blocks == 0 {
            self.0.remove(0);
        }
        taken
    }
}

/// New extents, in order. What goes on where another one ends is joined with it.
#[derive(Default)]
pub(crate) struct Extents(pub(crate) Vec<(u64, ExtentRecord)>);

impl Extents {
    pub(crate) fn push(&mut self, first: u64, run: Run, sums: &[u32]) {
        match self.0.last_mut() {
            Some((before, extent)) if goes_on((*before, extent), first, (run, sums)) => {
                extent.run.blocks += run.blocks;
                extent.crcs.extend(sums);
            }
            _ => self.0.push((
                first,
                ExtentRecord {
                    run,
                    crcs: sums.to_vec(),
                },
            )),
        }
    }

    /// Joins the first one with what the tree has in front of it.
    fn join_before(&mut self, work: &mut Work<'_>, inode: u64) -> Result<(), Error> {
        let Some((first, extent)) = self.0.first_mut() else {
            return Ok(());
        };
        let Some(block) = first.checked_sub(1) else {
            return Ok(());
        };
        let before = extents_of(work.tree, work.media, View::Pending, (inode, block..block + 1))?;
        let Some((start, before)) = before.into_iter().next_back() else {
            return Ok(());
        };
        if goes_on((start, &before), *first, (extent.run, &extent.crcs)) {
            work.remove(Key::new(inode, Kind::Extent, start))?;
            let blocks = before.run.blocks + extent.run.blocks;
            let place = before.run.place;
            let crcs = [&before.crcs[..], &extent.crcs].concat();
            (*first, extent.run, extent.crcs) = (start, Run { place, blocks }, crcs);
        }
        Ok(())
    }
}

/// Whether blocks go on where an extent ends, in the file and on the device, and fit into it.
fn goes_on((first, extent): (u64, &ExtentRecord), next: u64, (run, sums): (Run, &[u32])) -> bool {
    let is_next = first + extent.run.blocks == next && extent.run.end() == run.place;
    let fits = extent.run.blocks + run.blocks <= ExtentRecord::BLOCKS_MAX;
    is_next && fits && extent.is_unwritten() == sums.is_empty()
}
