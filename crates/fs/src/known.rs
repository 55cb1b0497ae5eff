//! What a process without devices knows of the tree: records and blocks that the daemon has told, of inodes of which the process has a lease.
//!
//! A reader that asks for something else gets [`Error::Missing`], and [`Known::missing`] says what is to be asked for. The numbers for new inodes
//! that the process was given need no question: the tree has nothing of them until the process's own log is digested.
//!
//! When the tree has got a part of the log, the overlay hands over what it drops ([`Known::digested`]), which is known then. A process has no places of
//! data: of extents it keeps which blocks are there.

use crate::content::{touched_blocks, whole_blocks};
use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, Key, Kind, hash_of};
use crate::inode::Inode;
use crate::media::Error;
use crate::names::{Attribute, Dirent};
use crate::ranges::Ranges;
use crate::value::ExtentRecord;
use crate::walks::{Walk, Walks};
use crate::work::keys_of_extents;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of blocks that are kept, at most; more are dropped, all of them.
const BLOCKS_BYTES_MAX: usize = 64 << 20;
/// Records that are kept, at most; more are dropped, all of them.
const RECORDS_MAX: usize = 1 << 20;
/// Behind all numbers of keys but the last one, which no record has.
const NUMBERS_END: u64 = u64::MAX;

/// Bytes that are kept once.
type Bytes = Arc<[u8]>;

/// What is to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A lease of an inode, to read.
    Lease(u64),
    /// Records of an inode: a kind of key, and numbers.
    Records(u64, Kind, Range<u64>),
    /// Blocks of a file.
    Blocks(u64, Range<u64>),
}

/// What an overlay lets go, as the tree has it.
#[derive(Clone, Debug)]
pub enum Gone<'a> {
    /// An inode; none if it was deleted.
    Inode(u64, Option<&'a Inode>),
    /// Bytes of a file.
    Bytes {
        /// The file.
        inode: u64,
        /// Where they are.
        range: Range<u64>,
        /// What they are.
        data: Data<'a>,
    },
    /// Blocks of a file are there, or not.
    Blocks {
        /// The file.
        inode: u64,
        /// Which ones.
        blocks: Range<u64>,
        /// Whether they are there.
        is_there: bool,
    },
    /// The target of a symbolic link.
    Target(u64, &'a [u8]),
    /// A name of a directory, and what it leads to; nothing if it was removed.
    Name {
        /// The directory.
        parent: u64,
        /// The name.
        name: &'a [u8],
        /// The inode, and its type.
        leads: Option<(u64, u8)>,
    },
    /// An attribute, and its value; none if it was removed.
    Attribute {
        /// The inode.
        inode: u64,
        /// The name.
        name: &'a [u8],
        /// The value.
        value: Option<&'a [u8]>,
    },
}

/// What bytes of a file are.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// These ones.
    Bytes(&'a [u8]),
    /// Zeros.
    Zeros,
    /// On a device, where the log does not have them.
    Elsewhere,
}

/// What is known of an inode.
#[derive(Clone, Debug, Default)]
struct Of {
    records: BTreeMap<(Kind, u64), Arc<[u8]>>,
    /// Numbers of each kind of which all records are known.
    known: BTreeMap<Kind, Ranges>,
    /// Blocks that are there. What is known of the keys of extents says of which it is known.
    there: Ranges,
    blocks: BTreeMap<u64, Arc<[u8]>>,
    known_blocks: Ranges,
    /// The tree has nothing of it.
    is_unborn: bool,
}

impl Of {
    fn unborn() -> Self {
        let mut of = Self {
            is_unborn: true,
            ..Self::default()
        };
        of.known_blocks.insert(0..NUMBERS_END);
        for kind in [
            Kind::Inode,
            Kind::Entry,
            Kind::Target,
            Kind::Attribute,
            Kind::Extent,
        ] {
            of.known.entry(kind).or_default().insert(0..NUMBERS_END);
        }
        of
    }

    fn knows(&self, kind: Kind, number: u64) -> bool {
        let known = self.known.get(&kind);
        known.is_some_and(|known| known.contains(number..number + 1))
    }

    /// The first of some numbers that is not known.
    fn gap(&self, kind: Kind, numbers: Range<u64>) -> Option<u64> {
        match self.known.get(&kind) {
            Some(known) => known.gap(numbers).map(|gap| gap.start),
            None => (!numbers.is_empty()).then_some(numbers.start),
        }
    }

    fn forget_content(&mut self) {
        self.blocks.clear();
        self.known_blocks = Ranges::default();
        self.known.remove(&Kind::Extent);
        self.there = Ranges::default();
    }
}

/// What is known of the tree.
#[derive(Clone, Debug)]
pub struct Known {
    mark: u64,
    /// Inodes of which the process has a lease, or had none but their numbers.
    inodes: BTreeMap<u64, Of>,
    /// Numbers for new inodes.
    numbers: Range<u64>,
    /// Those of them that were given back.
    given: BTreeSet<u64>,
    /// Inodes that were read since [`Self::begin`].
    touched: Vec<u64>,
    missing: Option<Missing>,
    bytes: usize,
    records: usize,
    /// Where paths have led.
    pub(crate) walks: Walks,
    /// Blocks of all devices, and free ones.
    pub(crate) room: (u64, u64),
}

impl Known {
    /// Nothing, of a file system with this mark, by a process with numbers for new inodes.
    pub fn new(mark: u64, numbers: Range<u64>) -> Self {
        Self {
            mark,
            inodes: BTreeMap::new(),
            numbers,
            given: BTreeSet::new(),
            touched: Vec::new(),
            missing: None,
            bytes: 0,
            records: 0,
            walks: Walks::default(),
            room: (0, 0),
        }
    }

    /// A call begins, or is tried again.
    pub fn begin(&mut self) {
        self.touched.clear();
        self.missing = None;
    }

    /// Inodes that the call has read.
    pub fn touched(&self) -> &[u64] {
        &self.touched
    }

    /// What the call has found missing first.
    pub fn missing(&mut self) -> Option<Missing> {
        self.missing.take()
    }

    /// Says how many blocks all devices have, and how many of them are free.
    pub fn set_room(&mut self, blocks: u64, free: u64) {
        self.room = (blocks, free);
    }

    /// The process has got a lease of an inode.
    pub fn lease(&mut self, inode: u64) {
        if !self.is_own(inode) {
            self.inodes.entry(inode).or_default();
        }
    }

    /// Whether the process may read an inode.
    pub fn is_leased(&self, inode: u64) -> bool {
        self.is_own(inode) || self.inodes.contains_key(&inode)
    }

    /// Whether a number is the process's own, and was never given back.
    pub fn is_own(&self, inode: u64) -> bool {
        self.numbers.contains(&inode) && !self.given.contains(&inode)
    }

    /// Where a path has led before, if nothing has changed since.
    pub fn walked(&self, base: u64, follows: bool, path: &[u8]) -> Option<&Walk> {
        self.walks.find(base, follows, path)
    }

    /// The process gives the lease back.
    pub fn give(&mut self, inode: u64) {
        self.walks.forget();
        self.disown(inode);
        if let Some(of) = self.inodes.remove(&inode) {
            self.count_out(&of);
        }
    }

    /// A number of the process's own becomes a lease like others.
    pub fn disown(&mut self, inode: u64) {
        if self.is_own(inode) {
            self.inodes.entry(inode).or_insert_with(Of::unborn);
            self.given.insert(inode);
        }
    }

    /// All that the tree has is to be asked for anew.
    pub fn forget(&mut self) {
        self.walks.forget();
        for of in self.inodes.values_mut().filter(|of| !of.is_unborn) {
            *of = Of::default();
        }
        (self.bytes, self.records) = (0, 0);
    }

    /// Records of an inode were told: all that there are of a kind, of numbers from one up to another.
    pub fn tell<'v>(
        &mut self,
        inode: u64,
        kind: Kind,
        numbers: Range<u64>,
        records: impl Iterator<Item = (u64, &'v [u8])>,
    ) {
        if self.records > RECORDS_MAX {
            self.forget();
        }
        let Some(of) = self.inodes.get_mut(&inode).filter(|of| !of.is_unborn) else {
            return;
        };
        for (number, value) in records {
            match kind {
                Kind::Extent => {
                    // What makes no sense stays unknown.
                    let Ok(extent) = ExtentRecord::parse(value) else {
                        return;
                    };
                    of.there.insert(number..number + extent.run.blocks);
                }
                _ => {
                    let before = of.records.insert((kind, number), value.into());
                    self.records += usize::from(before.is_none());
                }
            }
        }
        of.known.entry(kind).or_default().insert(numbers);
    }

    /// Blocks of a file were told, from one on.
    pub fn tell_blocks(&mut self, inode: u64, first: u64, data: &[u8]) {
        self.limit_blocks();
        let Some(of) = self.inodes.get_mut(&inode).filter(|of| !of.is_unborn) else {
            return;
        };
        let mut end = first;
        for block in data.chunks_exact(BLOCK_BYTES) {
            of.blocks.insert(end, block.into());
            self.bytes += BLOCK_BYTES;
            end += 1;
        }
        of.known_blocks.insert(first..end);
    }

    fn limit_blocks(&mut self) {
        if self.bytes > BLOCKS_BYTES_MAX {
            for of in self.inodes.values_mut().filter(|of| !of.is_unborn) {
                of.blocks.clear();
                of.known_blocks = Ranges::default();
            }
            self.bytes = 0;
        }
    }

    fn count_out(&mut self, of: &Of) {
        self.bytes = self.bytes.saturating_sub(of.blocks.len() * BLOCK_BYTES);
        self.records = self.records.saturating_sub(of.records.len());
    }

    /// Whether the process may read an inode, whatever it knows of it.
    pub(crate) fn admit(&mut self, inode: u64) -> Result<(), Error> {
        if self.is_own(inode) {
            return Ok(());
        }
        self.of(inode).map(|_| ())
    }

    /// What is known of an inode.
    fn of(&mut self, inode: u64) -> Result<&mut Of, Error> {
        if !self.touched.contains(&inode) {
            self.touched.push(inode);
        }
        if self.is_own(inode) {
            return Ok(self.inodes.entry(inode).or_insert_with(Of::unborn));
        }
        match self.inodes.get_mut(&inode) {
            Some(of) => Ok(of),
            None => {
                self.missing.get_or_insert(Missing::Lease(inode));
                Err(Error::Missing)
            }
        }
    }

    fn miss<T>(&mut self, missing: Missing) -> Result<T, Error> {
        self.missing.get_or_insert(missing);
        Err(Error::Missing)
    }

    pub(crate) fn get(&mut self, key: Key) -> Result<Option<Arc<[u8]>>, Error> {
        let of = self.of(key.inode)?;
        if of.knows(key.kind, key.number) {
            return Ok(of.records.get(&(key.kind, key.number)).cloned());
        }
        // The permission to search a directory is not the one to list it; of all else the whole comes at once.
        let numbers = match key.kind {
            Kind::Entry => key.number..key.number + 1,
            _ => 0..NUMBERS_END,
        };
        self.miss(Missing::Records(key.inode, key.kind, numbers))
    }

    /// The first record from a key on, up to another one.
    pub(crate) fn next(&mut self, from: Key, last: Key) -> Result<Option<(Key, Bytes)>, Error> {
        let of = self.of(from.inode)?;
        let gap = of.gap(from.kind, from.number..last.number.saturating_add(1));
        let mut records = of.records.range((from.kind, from.number)..);
        let found = records.next().filter(|((kind, number), _)| {
            *kind == from.kind && *number <= last.number && gap.is_none_or(|gap| *number < gap)
        });
        if let Some(((kind, number), value)) = found {
            return Ok(Some((Key::new(from.inode, *kind, *number), Arc::clone(value))));
        }
        match gap {
            None => Ok(None),
            Some(gap) => self.miss(Missing::Records(from.inode, from.kind, gap..NUMBERS_END)),
        }
    }

    /// Which blocks of a file are there, of a range.
    pub(crate) fn there(&mut self, inode: u64, blocks: &Range<u64>) -> Result<Ranges, Error> {
        let of = self.of(inode)?;
        let Some(keys) = keys_of_extents(inode, blocks) else {
            return Ok(Ranges::default());
        };
        let numbers = keys.start().number..keys.end().number.saturating_add(1);
        if let Some(gap) = of.gap(Kind::Extent, numbers) {
            return self.miss(Missing::Records(inode, Kind::Extent, gap..NUMBERS_END));
        }
        let mut there = Ranges::default();
        of.there.of(blocks.clone()).for_each(|range| there.insert(range));
        Ok(there)
    }

    /// Blocks of a range that are not zeros.
    pub(crate) fn blocks(&mut self, inode: u64, blocks: Range<u64>) -> Result<Vec<(u64, Bytes)>, Error> {
        let of = self.of(inode)?;
        if let Some(gap) = of.known_blocks.gap(blocks.clone()) {
            return self.miss(Missing::Blocks(inode, gap));
        }
        let found = of.blocks.range(blocks).map(|(at, data)| (*at, Arc::clone(data)));
        Ok(found.collect())
    }

    /// The tree has got what the overlay lets go.
    pub fn digested(&mut self, gone: Gone<'_>) {
        let number = match gone {
            Gone::Inode(inode, _) | Gone::Target(inode, _) => inode,
            Gone::Name { parent, .. } => parent,
            Gone::Attribute { inode, .. } | Gone::Bytes { inode, .. } | Gone::Blocks { inode, .. } => inode,
        };
        self.limit_blocks();
        match (self.is_own(number), &gone) {
            // The tree has nothing of it, as before.
            (true, Gone::Inode(_, None)) => {
                if let Some(of) = self.inodes.remove(&number) {
                    self.count_out(&of);
                }
                return;
            }
            // It may never have been read.
            (true, _) => drop(self.inodes.entry(number).or_insert_with(Of::unborn)),
            (false, _) => {}
        }
        let (mark, of) = (self.mark, self.inodes.get_mut(&number));
        let Some(of) = of else {
            return;
        };
        of.is_unborn = false;
        // At most one record more: counting too many costs questions, and no memory.
        self.records += 1;
        match gone {
            Gone::Bytes { range, data, .. } => {
                let before = of.blocks.len();
                of.set_bytes(&range, data);
                self.bytes =
                    (self.bytes + of.blocks.len() * BLOCK_BYTES).saturating_sub(before * BLOCK_BYTES);
            }
            Gone::Blocks { blocks, is_there, .. } => match is_there {
                true => of.there.insert(blocks),
                false => of.there.remove(blocks),
            },
            Gone::Inode(_, Some(inode)) => {
                of.records.insert((Kind::Inode, 0), inode.emit()[..].into());
                of.known.entry(Kind::Inode).or_default().insert(0..NUMBERS_END);
            }
            // Nothing of a deleted inode is in the tree.
            Gone::Inode(_, None) => {
                let records = of.records.len();
                *of = Of {
                    is_unborn: false,
                    ..Of::unborn()
                };
                self.records = self.records.saturating_sub(records);
            }
            Gone::Target(_, target) if target.len() <= crate::node::VALUE_BYTES_MAX => {
                of.records.insert((Kind::Target, 0), target.into());
            }
            Gone::Target(..) => {
                of.known.remove(&Kind::Target);
                of.forget_content();
            }
            Gone::Name { name, leads, .. } => {
                let hash = hash_of(name, mark);
                of.change(Kind::Entry, hash, |value| with_name(value, name, leads));
            }
            Gone::Attribute { name, value: new, .. } => {
                let hash = hash_of(name, mark);
                of.change(Kind::Attribute, hash, |value| with_attribute(value, name, new));
            }
        }
    }
}

impl Of {
    /// Bytes of the file are others. A block of which the rest is not known stays unknown.
    fn set_bytes(&mut self, range: &Range<u64>, data: Data<'_>) {
        let (touched, whole) = (touched_blocks(range), whole_blocks(range));
        match data {
            Data::Elsewhere => {
                self.drop_blocks(touched.clone());
                self.known_blocks.remove(touched);
            }
            Data::Zeros => {
                let first = touched.start..touched.end.min(touched.start + 1);
                let last = touched.end.saturating_sub(1).max(first.end)..touched.end;
                for block in first.chain(last).filter(|block| !whole.contains(block)) {
                    self.change_block(block, range, None);
                }
                self.drop_blocks(whole.clone());
                self.known_blocks.insert(whole);
            }
            Data::Bytes(data) => {
                for block in touched {
                    self.change_block(block, range, Some(data));
                }
            }
        }
    }

    fn drop_blocks(&mut self, blocks: Range<u64>) {
        let dropped: Vec<u64> = self.blocks.range(blocks).map(|(block, _)| *block).collect();
        for block in dropped {
            self.blocks.remove(&block);
        }
    }

    /// A block gets its part of a range's bytes; zeros, if there are none.
    fn change_block(&mut self, block: u64, range: &Range<u64>, data: Option<&[u8]>) {
        const BYTES: u64 = BLOCK_BYTES as u64;
        // What is behind the end of a file goes to the end of all numbers.
        let end = (block + 1).saturating_mul(BYTES);
        let (from, to) = (range.start.max(block * BYTES), range.end.min(end));
        let is_whole = to - from == BYTES;
        if !is_whole && !self.knows_block(block) {
            return;
        }
        let inside = (from % BYTES) as usize..(to - block * BYTES) as usize;
        let part = data.map(|data| &data[(from - range.start) as usize..(to - range.start) as usize]);
        match (part, is_whole) {
            (Some(part), true) => drop(self.blocks.insert(block, part.into())),
            (Some(part), false) => {
                let there = self.blocks.entry(block);
                let there = there.or_insert_with(|| [0; BLOCK_BYTES][..].into());
                Arc::make_mut(there)[inside].copy_from_slice(part);
            }
            (None, _) => {
                if let Some(there) = self.blocks.get_mut(&block) {
                    Arc::make_mut(there)[inside].fill(0);
                }
            }
        }
        self.known_blocks.insert(block..block + 1);
    }

    /// Whether a block's bytes are known: one that is not there is zeros.
    fn knows_block(&self, block: u64) -> bool {
        let keys = block.saturating_sub(ExtentRecord::BLOCKS_MAX - 1)..block + 1;
        let is_hole = || self.gap(Kind::Extent, keys).is_none() && !self.there.contains(block..block + 1);
        self.known_blocks.contains(block..block + 1) || is_hole()
    }

    /// Changes a record that is known. What makes no sense is to be asked for anew.
    fn change(&mut self, kind: Kind, number: u64, change: impl FnOnce(&[u8]) -> Result<Vec<u8>, Errno>) {
        if !self.knows(kind, number) {
            return;
        }
        let before = self.records.get(&(kind, number)).cloned();
        match change(before.as_deref().unwrap_or_default()) {
            Ok(value) if value.is_empty() => {
                self.records.remove(&(kind, number));
            }
            Ok(value) => {
                self.records.insert((kind, number), value.into());
            }
            Err(_) => {
                if let Some(known) = self.known.get_mut(&kind) {
                    known.remove(number..number + 1);
                }
                self.records.remove(&(kind, number));
            }
        }
    }
}

fn with_name(value: &[u8], name: &[u8], leads: Option<(u64, u8)>) -> Result<Vec<u8>, Errno> {
    let mut all = Dirent::parse_all(value).map_err(|_| Errno::Io)?;
    all.retain(|entry| entry.name != name);
    if let Some((inode, kind)) = leads {
        all.push(Dirent { inode, kind, name });
    }
    let mut value = Vec::new();
    all.iter().for_each(|entry| entry.emit(&mut value));
    Ok(value)
}

fn with_attribute(value: &[u8], name: &[u8], new: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
    let mut all = Attribute::parse_all(value).map_err(|_| Errno::Io)?;
    all.retain(|attribute| attribute.name != name);
    if let Some(value) = new {
        all.push(Attribute { name, value });
    }
    let mut value = Vec::new();
    all.iter().for_each(|attribute| attribute.emit(&mut value));
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Place;
    use crate::value::Run;

    const MARK: u64 = 5;

    fn key(inode: u64, kind: Kind, number: u64) -> Key {
        Key::new(inode, kind, number)
    }

    #[test]
    fn what_is_missing_is_said_and_found_when_it_was_told() {
        let mut known = Known::new(MARK, 100..200);
        let (first, last) = (key(7, Kind::Entry, 0), key(7, Kind::Entry, u64::MAX));
        assert!(matches!(known.get(first), Err(Error::Missing)));
        assert_eq!(known.missing(), Some(Missing::Lease(7)));
        known.lease(7);
        assert!(matches!(known.next(first, last), Err(Error::Missing)));
        assert_eq!(
            known.missing(),
            Some(Missing::Records(7, Kind::Entry, 0..NUMBERS_END))
        );
        known.tell(7, Kind::Entry, 0..500, [(256, &b"a"[..])].into_iter());
        assert_eq!(known.get(key(7, Kind::Entry, 100)), Ok(None));
        let (found, value) = known
            .next(first, last)
            .expect("it is known")
            .expect("there is one");
        assert_eq!((found.number, &value[..]), (256, &b"a"[..]));
        // Behind what was told there may be more.
        let next = known.next(key(7, Kind::Entry, 257), last);
        assert!(matches!(next, Err(Error::Missing)));
        assert_eq!(
            known.missing(),
            Some(Missing::Records(7, Kind::Entry, 500..NUMBERS_END))
        );
        known.give(7);
        assert!(matches!(known.get(first), Err(Error::Missing)));
        assert_eq!(known.touched(), [7]);
    }

    #[test]
    fn of_own_numbers_nothing_is_missing_before_the_digest_and_their_content_is_then() {
        let mut known = Known::new(MARK, 100..200);
        assert_eq!(known.get(key(150, Kind::Inode, 0)), Ok(None));
        assert_eq!(known.blocks(150, 0..9), Ok(Vec::new()));
        let inode = Inode {
            size: 9,
            ..Inode::default()
        };
        known.digested(Gone::Bytes {
            inode: 150,
            range: 0..9,
            data: Data::Elsewhere,
        });
        known.digested(Gone::Inode(150, Some(&inode)));
        let value = known.get(key(150, Kind::Inode, 0)).expect("it is known");
        assert_eq!(Inode::parse(&value.expect("it is there")), Ok(inode));
        assert_eq!(known.blocks(150, 0..9), Err(Error::Missing));
        assert_eq!(known.missing(), Some(Missing::Blocks(150, 0..1)));
        known.tell_blocks(150, 0, &[3; 2 * BLOCK_BYTES]);
        assert_eq!(known.blocks(150, 1..2).map(|blocks| blocks.len()), Ok(1));
        // One that was never read before is there, too.
        known.digested(Gone::Inode(151, Some(&inode)));
        assert!(
            known
                .get(key(151, Kind::Inode, 0))
                .is_ok_and(|value| value.is_some())
        );
        // It is a lease like others when it was given back.
        known.give(150);
        assert!(!known.is_leased(150));
        assert_eq!(known.get(key(150, Kind::Inode, 0)), Err(Error::Missing));
    }

    #[test]
    fn names_that_the_digest_has_are_known() {
        let mut known = Known::new(MARK, 100..200);
        let hash = hash_of(b"name", MARK);
        let gone = |leads| Gone::Name {
            parent: 7,
            name: b"name",
            leads,
        };
        known.lease(7);
        known.digested(gone(Some((150, 8))));
        assert_eq!(known.get(key(7, Kind::Entry, hash)), Err(Error::Missing));
        known.tell(7, Kind::Entry, hash..hash + 1, core::iter::empty());
        known.digested(gone(Some((150, 8))));
        let value = known.get(key(7, Kind::Entry, hash)).expect("it is known");
        let value = value.expect("it is there");
        assert_eq!(Dirent::parse_all(&value).map(|all| all[0].inode), Ok(150));
        known.digested(gone(None));
        assert_eq!(known.get(key(7, Kind::Entry, hash)), Ok(None));
    }

    /// An overlay lets go of bytes, and of whether blocks are there.
    fn digest(
        known: &mut Known,
        (range, data): (Range<u64>, Data<'_>),
        (blocks, is_there): (Range<u64>, bool),
    ) {
        let inode = 7;
        known.digested(Gone::Bytes { inode, range, data });
        known.digested(Gone::Blocks {
            inode,
            blocks,
            is_there,
        });
    }

    /// What an overlay lets go of a file's content, at random: what is known of it is right, and what was told once is not asked for again.
    #[test]
    fn content_that_the_digest_has_is_known() {
        const BLOCKS: u64 = 12;
        const BYTES: u64 = BLOCK_BYTES as u64;
        let mut rng = base::Rng::new(17);
        for _ in 0..200 {
            let mut known = Known::new(MARK, 100..200);
            known.lease(7);
            let (mut file, mut there) = (vec![0_u8; (BLOCKS * BYTES) as usize], [false; BLOCKS as usize]);
            for step in 0..60 {
                let start = rng.below(BLOCKS * BYTES);
                let range = start..start + 1 + rng.below((BLOCKS * BYTES - start).min(3 * BYTES));
                let inside = range.start as usize..range.end as usize;
                let touched = touched_blocks(&range);
                let blocks = touched.start as usize..touched.end as usize;
                match rng.below(5) {
                    0 => {
                        // A file that becomes shorter has nothing behind its end.
                        let is_end = rng.chance(0.3);
                        let range = range.start..if is_end { u64::MAX } else { range.end };
                        let inside = inside.start..if is_end { file.len() } else { inside.end };
                        let whole = whole_blocks(&range);
                        file[inside].fill(0);
                        there[whole.start as usize..whole.end.min(BLOCKS).max(whole.start) as usize]
                            .fill(false);
                        let data = Data::Zeros;
                        digest(&mut known, (range, data), (whole, false));
                    }
                    1 | 2 => {
                        file[inside.clone()].fill(step);
                        there[blocks].fill(true);
                        let data = Data::Bytes(&file[inside]);
                        digest(&mut known, (range, data), (touched, true));
                    }
                    3 => {
                        file[inside].fill(step);
                        there[blocks].fill(true);
                        let data = Data::Elsewhere;
                        digest(&mut known, (range, data), (touched, true));
                    }
                    _ => {}
                }
                match known.blocks(7, 0..BLOCKS) {
                    Ok(found) => {
                        let mut bytes = vec![0; file.len()];
                        for (block, data) in found {
                            bytes[(block * BYTES) as usize..][..BLOCK_BYTES].copy_from_slice(&data);
                        }
                        assert_eq!(bytes, file);
                    }
                    Err(error) => {
                        assert_eq!(error, Error::Missing);
                        let Some(Missing::Blocks(7, blocks)) = known.missing() else {
                            panic!("blocks are missing");
                        };
                        if rng.chance(0.5) {
                            let bytes = (blocks.start * BYTES) as usize..(blocks.end * BYTES) as usize;
                            known.tell_blocks(7, blocks.start, &file[bytes]);
                        }
                    }
                }
                match known.there(7, &(0..BLOCKS)) {
                    Ok(found) => {
                        let found: Vec<u64> =
                            found.iter().flatten().filter(|block| *block < BLOCKS).collect();
                        let expected: Vec<u64> = (0..BLOCKS).filter(|at| there[*at as usize]).collect();
                        assert_eq!(found, expected);
                    }
                    Err(_) if rng.chance(0.5) => {
                        assert!(step < 60 && known.missing().is_some());
                        let run = |blocks| Run {
                            place: Place::new(0, 9),
                            blocks,
                        };
                        let all = (0..BLOCKS).filter(|at| there[*at as usize]);
                        let extents = all.map(|at| {
                            (
                                at,
                                ExtentRecord {
                                    run: run(1),
                                    crcs: Vec::new(),
                                }
                                .emit(),
                            )
                        });
                        let extents: Vec<(u64, Vec<u8>)> = extents.collect();
                        let extents = extents.iter().map(|(at, value)| (*at, &value[..]));
                        known.tell(7, Kind::Extent, 0..NUMBERS_END, extents);
                    }
                    Err(_) => {
                        known.missing();
                    }
                }
            }
            assert!(
                known.there(7, &(0..BLOCKS)).is_ok(),
                "what was told once is known"
            );
        }
    }
}
