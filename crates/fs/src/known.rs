//! What a process without devices knows of the tree: records and blocks that the daemon has told, of inodes of which the process has a lease.
//!
//! A reader that asks for something else gets [`Error::Missing`], and [`Known::missing`] says what is to be asked for. The numbers for new inodes
//! that the process was given need no question: the tree has nothing of them until the process's own log is digested.
//!
//! When the tree has got a part of the log, the overlay hands over what it drops ([`Known::digested`]): names and attributes are known then, and
//! the places of data are not, as the digest has chosen them.

use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, Key, Kind, hash_of};
use crate::inode::Inode;
use crate::media::Error;
use crate::names::{Attribute, Dirent};
use crate::ranges::Ranges;
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
#[derive(Clone, Copy, Debug)]
pub enum Gone<'a> {
    /// An inode; none if it was deleted.
    Inode(u64, Option<&'a Inode>),
    /// Something of a file's content.
    Content(u64),
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

/// What is known of an inode.
#[derive(Clone, Debug, Default)]
struct Of {
    records: BTreeMap<(Kind, u64), Arc<[u8]>>,
    /// Numbers of each kind of which all records are known.
    known: BTreeMap<Kind, Ranges>,
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

    fn forget_content(&mut self) {
        self.blocks.clear();
        self.known_blocks = Ranges::default();
        self.known.remove(&Kind::Extent);
        self.records.retain(|(kind, _), _| *kind != Kind::Extent);
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

    /// The process gives the lease back.
    pub fn give(&mut self, inode: u64) {
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
            let before = of.records.insert((kind, number), value.into());
            self.records += usize::from(before.is_none());
        }
        of.known.entry(kind).or_default().insert(numbers);
    }

    /// Blocks of a file were told, from one on.
    pub fn tell_blocks(&mut self, inode: u64, first: u64, data: &[u8]) {
        if self.bytes > BLOCKS_BYTES_MAX {
            for of in self.inodes.values_mut().filter(|of| !of.is_unborn) {
                of.blocks.clear();
                of.known_blocks = Ranges::default();
            }
            self.bytes = 0;
        }
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
        let known = of.known.get(&from.kind).cloned().unwrap_or_default();
        let end = last.number.saturating_add(1);
        let gap = known.gaps(from.number..end).first().map(|gap| gap.start);
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

    /// Blocks of a range that are not zeros.
    pub(crate) fn blocks(&mut self, inode: u64, blocks: Range<u64>) -> Result<Vec<(u64, Bytes)>, Error> {
        let of = self.of(inode)?;
        if let Some(gap) = of.known_blocks.gaps(blocks.clone()).into_iter().next() {
            return self.miss(Missing::Blocks(inode, gap));
        }
        let found = of.blocks.range(blocks).map(|(at, data)| (*at, Arc::clone(data)));
        Ok(found.collect())
    }

    /// The tree has got what the overlay lets go.
    pub fn digested(&mut self, gone: Gone<'_>) {
        let number = match gone {
            Gone::Inode(inode, _) | Gone::Content(inode) | Gone::Target(inode, _) => inode,
            Gone::Name { parent, .. } => parent,
            Gone::Attribute { inode, .. } => inode,
        };
        match (self.is_own(number), gone) {
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
            Gone::Content(_) => of.forget_content(),
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
        known.digested(Gone::Content(150));
        known.digested(Gone::Inode(150, Some(&inode)));
        let value = known.get(key(150, Kind::Inode, 0)).expect("it is known");
        assert_eq!(Inode::parse(&value.expect("it is there")), Ok(inode));
        assert_eq!(known.blocks(150, 0..9), Err(Error::Missing));
        assert_eq!(known.missing(), Some(Missing::Blocks(150, 0..9)));
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
}
