//! A process sees its own calls that are not in the tree yet, and below them the tree (Strata §3.2: log index, then cache, then the layers).
//!
//! An [`Overlay`] is the index of a log. It takes each operation as it is logged ([`Overlay::apply`]), with a *position*: a number that does not
//! fall, such as the log's ticket. When the view of the tree that the process reads has all up to a position, [`Overlay::digested`] drops what
//! the tree now has. What later operations have touched stays, so no reader ever sees an old state.
//!
//! An operation is one that succeeds: its maker has looked at the same overlay before. What the overlay knows is right as long as the
//! process has the leases of what it reads. Memory is in proportion to what is in the log and not digested.

pub use crate::below::Below;
use crate::content::{touched_blocks, whole_blocks};
use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, Key, Kind, Place, hash_of};
use crate::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_MASK, Time};
use crate::known::{Data, Gone};
use crate::media::Error;
use crate::names::{Attribute, Dirent, kind_of};
use crate::node::VALUE_BYTES_MAX;
use crate::op::{Action, Allocation, Entry, Fate, OFFSET_MAX, Op, Target};
pub use crate::pieces::ReadError;
use crate::pieces::{Pieces, Spot};
use crate::spans::{Cut, Spans};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const BYTES: u64 = BLOCK_BYTES as u64;
/// Behind all blocks of a file.
const BLOCKS_END: u64 = OFFSET_MAX / BYTES + 1;

/// An entry of a directory that was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The next entries are above: of the hash and the place among its names.
    pub cookie: u64,
    /// What it leads to.
    pub inode: u64,
    /// Its type: see [`Dirent::kind`].
    pub kind: u8,
    /// Its name.
    pub name: Vec<u8>,
}

/// What the operation at a position has left.
#[derive(Clone, Debug)]
struct At<T> {
    position: u64,
    value: T,
}

/// Bytes of a file.
#[derive(Clone, Debug)]
enum Source {
    /// Zeros, whatever the tree has.
    Zeros,
    /// In memory: which, and from where on.
    Memory(Arc<[u8]>, usize),
    /// In granted blocks: the first of them, their checksums, and from which byte on.
    Placed(Place, Arc<[u32]>, u64),
}

impl Source {
    /// What a range of a file has that is of this source.
    fn data(&self, range: &Range<u64>) -> Data<'_> {
        match self {
            Self::Zeros => Data::Zeros,
            Self::Memory(bytes, from) => Data::Bytes(&bytes[*from..][..(range.end - range.start) as usize]),
            Self::Placed(..) => Data::Elsewhere,
        }
    }
}

impl Cut for At<Source> {
    fn cut(&mut self, at: u64) -> Self {
        let value = match &self.value {
            Source::Zeros => Source::Zeros,
            Source::Memory(bytes, from) => Source::Memory(Arc::clone(bytes), from + at as usize),
            Source::Placed(place, sums, from) => Source::Placed(*place, Arc::clone(sums), from + at),
        };
        let position = self.position;
        Self { position, value }
    }
}

/// Whether blocks of a file are there.
impl Cut for At<bool> {
    fn cut(&mut self, _: u64) -> Self {
        self.clone()
    }
}

/// What of a file's content is not in the tree.
#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Spans<At<Source>>,
    blocks: Spans<At<bool>>,
}

/// What an operation has touched.
#[derive(Clone, Debug)]
enum Touched {
    Inode(u64),
    Name(u64, u64, Vec<u8>),
    Attribute(u64, Vec<u8>),
}

/// A name of a directory, and what it leads to.
#[derive(Clone, Debug)]
struct Named {
    name: Vec<u8>,
    at: At<Leads>,
}

/// What a name leads to, and its type. None: it was removed.
type Leads = Option<(u64, u8)>;
/// The value of an attribute. None: it was removed.
type Value = Option<Vec<u8>>;

/// The index of a log.
#[derive(Clone, Debug)]
pub struct Overlay {
    mark: u64,
    /// None: deleted.
    inodes: BTreeMap<u64, At<Option<Inode>>>,
    targets: BTreeMap<u64, At<Vec<u8>>>,
    /// By directory and hash.
    names: BTreeMap<(u64, u64), Vec<Named>>,
    attributes: BTreeMap<(u64, Vec<u8>), At<Value>>,
    contents: BTreeMap<u64, Content>,
    /// In the order of positions.
    touched: VecDeque<(u64, Touched)>,
}

impl Overlay {
    /// Nothing. The mark is the file system's.
    pub fn new(mark: u64) -> Self {
        Self {
            mark,
            inodes: BTreeMap::new(),
            targets: BTreeMap::new(),
            names: BTreeMap::new(),
            attributes: BTreeMap::new(),
            contents: BTreeMap::new(),
            touched: VecDeque::new(),
        }
    }

    /// True if the tree has all.
    pub fn is_empty(&self) -> bool {
        let is_named = !self.names.is_empty() || !self.attributes.is_empty();
        !is_named && self.inodes.is_empty() && self.contents.is_empty() && self.targets.is_empty()
    }

    /// The view that is read from now on has all operations up to a position.
    pub fn digested(&mut self, position: u64) {
        self.digested_to(position, |_| {});
    }

    /// The same. `tell` hears of what goes.
    pub fn digested_to(&mut self, position: u64, mut tell: impl FnMut(Gone<'_>)) {
        let mut inodes = BTreeSet::new();
        let passed = self.touched.partition_point(|(at, _)| *at <= position);
        for (_, touched) in self.touched.drain(..passed) {
            match touched {
                Touched::Inode(inode) => {
                    inodes.insert(inode);
                }
                Touched::Name(parent, hash, name) => {
                    let Some(names) = self.names.get_mut(&(parent, hash)) else {
                        continue;
                    };
                    let has_passed = |named: &Named| named.name == name && named.at.position <= position;
                    if let Some(at) = names.iter().position(has_passed) {
                        let leads = names.remove(at).at.value;
                        let name = &name;
                        tell(Gone::Name { parent, name, leads });
                    }
                    if names.is_empty() {
                        self.names.remove(&(parent, hash));
                    }
                }
                Touched::Attribute(inode, name) => {
                    let key = (inode, name);
                    if let Some(value) = take_passed(&mut self.attributes, &key, position) {
                        let (name, value) = (&key.1[..], value.as_deref());
                        tell(Gone::Attribute { inode, name, value });
                    }
                }
            }
        }
        for inode in inodes {
            if let Some(target) = take_passed(&mut self.targets, &inode, position) {
                tell(Gone::Target(inode, &target));
            }
            if let Some(content) = self.contents.get_mut(&inode) {
                content.bytes.retain(|range, source| {
                    let stays = source.position > position;
                    if !stays {
                        let data = source.value.data(&range);
                        tell(Gone::Bytes { inode, range, data });
                    }
                    stays
                });
                content.blocks.retain(|blocks, is_there| {
                    let stays = is_there.position > position;
                    if !stays {
                        let is_there = is_there.value;
                        tell(Gone::Blocks {
                            inode,
                            blocks,
                            is_there,
                        });
                    }
                    stays
                });
                if content.bytes.is_empty() && content.blocks.is_empty() {
                    self.contents.remove(&inode);
                }
            }
            if let Some(value) = take_passed(&mut self.inodes, &inode, position) {
                tell(Gone::Inode(inode, value.as_ref()));
            }
        }
    }

    /// An inode, as `stat` shows it.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn inode(&self, below: &mut Below<'_>, inode: u64) -> Result<Option<Inode>, Error> {
        match self.inodes.get(&inode) {
            Some(at) => {
                below.admit(inode)?;
                Ok(at.value)
            }
            None => below.inode(inode),
        }
    }

    fn known(&self, below: &mut Below<'_>, inode: u64) -> Result<Inode, ReadError> {
        Ok(self.inode(below, inode)?.ok_or(Errno::NoEntry)?)
    }

    /// The inode of a name.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn lookup(&self, below: &mut Below<'_>, parent: u64, name: &[u8]) -> Result<Option<u64>, Error> {
        let hash = hash_of(name, self.mark);
        if let Some(named) = self.named(parent, hash, name) {
            return Ok(named.at.value.map(|(inode, _)| inode));
        }
        let key = Key::new(parent, Kind::Entry, hash);
        let Some(value) = below.get(key)? else {
            return Ok(None);
        };
        let entries = Dirent::parse_all(&value).map_err(below.senseless())?;
        let found = entries.iter().find(|entry| entry.name == name);
        Ok(found.map(|entry| entry.inode))
    }

    fn named(&self, parent: u64, hash: u64, name: &[u8]) -> Option<&Named> {
        let names = self.names.get(&(parent, hash))?;
        names.iter().find(|named| named.name == name)
    }

    /// Whether the names of a hash have room for one more of so many bytes. It counts what the digest counts when it comes to the name: all
    /// that are there now.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub(crate) fn has_entry_room(
        &self,
        below: &mut Below<'_>,
        (parent, hash): (u64, u64),
        name_bytes: usize,
    ) -> Result<bool, Error> {
        let bytes_of = |name: &[u8]| Dirent::bytes(name.len());
        let mut bytes = Dirent::bytes(name_bytes);
        let key = Key::new(parent, Kind::Entry, hash);
        if let Some(value) = below.get(key)? {
            let entries = Dirent::parse_all(&value).map_err(below.senseless())?;
            let left = entries
                .iter()
                .filter(|entry| self.named(parent, hash, entry.name).is_none());
            bytes += left.map(|entry| bytes_of(entry.name)).sum::<usize>();
        }
        let own = self.names.get(&(parent, hash)).into_iter().flatten();
        let own = own.filter(|named| named.at.value.is_some());
        bytes += own.map(|named| bytes_of(&named.name)).sum::<usize>();
        Ok(bytes <= VALUE_BYTES_MAX)
    }

    /// Whether the attributes of a hash have room for one, which may be there, with a value of so many bytes.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub(crate) fn has_attribute_room(
        &self,
        below: &mut Below<'_>,
        (inode, name): (u64, &[u8]),
        value_bytes: usize,
    ) -> Result<bool, Error> {
        let hash = hash_of(name, self.mark);
        let mut others = BTreeMap::new();
        let key = Key::new(inode, Kind::Attribute, hash);
        if let Some(value) = below.get(key)? {
            let all = Attribute::parse_all(&value).map_err(below.senseless())?;
            others.extend(all.iter().map(|it| (it.name.to_vec(), Some(it.value.len()))));
        }
        let own = self
            .attributes
            .range((inode, Vec::new())..(inode + 1, Vec::new()));
        let of_hash = own.filter(|((_, name), _)| hash_of(name, self.mark) == hash);
        others.extend(of_hash.map(|((_, name), at)| (name.clone(), at.value.as_ref().map(Vec::len))));
        others.insert(name.to_vec(), Some(value_bytes));
        let bytes = others
            .iter()
            .filter_map(|(name, value)| value.map(|value| Attribute::bytes(name.len(), value)));
        Ok(bytes.sum::<usize>() <= VALUE_BYTES_MAX)
    }

    /// Up to `count` entries of a directory, those whose cookies are above one: 0 for the first. `.` and `..` are for the caller.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn list(
        &self,
        below: &mut Below<'_>,
        (parent, cookie): (u64, u64),
        count: usize,
    ) -> Result<Vec<Listed>, Error> {
        let first = cookie & !0xff;
        let keys = Key::new(parent, Kind::Entry, first)..=Key::new(parent, Kind::Entry, u64::MAX);
        let mut range = below.range(keys);
        let mut own = self.names.range((parent, first)..(parent + 1, 0));
        let mut next = range.next(below)?;
        let mut next_own = own.next();
        let mut found = Vec::new();
        while found.len() < count {
            // All names of the lowest hash that is left.
            let hashes = [
                next.as_ref().map(|(key, _)| key.number),
                next_own.map(|((_, hash), _)| *hash),
            ];
            let Some(hash) = hashes.into_iter().flatten().min() else {
                break;
            };
            let mut names = Vec::new();
            if let Some((_, value)) = next.take_if(|(key, _)| key.number == hash) {
                let entries = Dirent::parse_all(&value).map_err(below.senseless())?;
                names.extend(
                    entries
                        .iter()
                        .map(|it| (it.name.to_vec(), Some((it.inode, it.kind)))),
                );
                next = range.next(below)?;
            }
            if let Some((_, all)) = next_own.take_if(|((_, other), _)| *other == hash) {
                for Named { name, at } in all {
                    match names.iter_mut().find(|(other, _)| other == name) {
                        Some((_, there)) => *there = at.value,
                        None => names.push((name.clone(), at.value)),
                    }
                }
                next_own = own.next();
            }
            // The hash may be 0, and no cookie is.
            for (place, (name, there)) in (hash + 1..).zip(names) {
                if let Some((inode, kind)) = there.filter(|_| place > cookie) {
                    let cookie = place;
                    found.push(Listed {
                        cookie,
                        inode,
                        kind,
                        name,
                    });
                }
            }
        }
        Ok(found)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn attribute(
        &self,
        below: &mut Below<'_>,
        inode: u64,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        if let Some(at) = self.attributes.get(&(inode, name.to_vec())) {
            return Ok(at.value.clone());
        }
        let key = Key::new(inode, Kind::Attribute, hash_of(name, self.mark));
        let Some(value) = below.get(key)? else {
            return Ok(None);
        };
        let all = Attribute::parse_all(&value).map_err(below.senseless())?;
        let found = all.iter().find(|attribute| attribute.name == name);
        Ok(found.map(|attribute| attribute.value.to_vec()))
    }

    /// The names of all extended attributes of an inode.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn attributes(&self, below: &mut Below<'_>, inode: u64) -> Result<Vec<Vec<u8>>, Error> {
        let keys = Key::new(inode, Kind::Attribute, 0)..=Key::new(inode, Kind::Attribute, u64::MAX);
        let mut range = below.range(keys);
        let mut names = BTreeSet::new();
        while let Some((_, value)) = range.next(below)? {
            let all = Attribute::parse_all(&value).map_err(below.senseless())?;
            names.extend(all.iter().map(|attribute| attribute.name.to_vec()));
        }
        for ((_, name), at) in self
            .attributes
            .range((inode, Vec::new())..(inode + 1, Vec::new()))
        {
            match at.value {
                Some(_) => names.insert(name.clone()),
                None => names.remove(name),
            };
        }
        Ok(names.into_iter().collect())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// It is none, or the tree cannot be read.
    pub fn target(&self, below: &mut Below<'_>, inode: u64) -> Result<Vec<u8>, ReadError> {
        if let Some(at) = self.targets.get(&inode) {
            return Ok(at.value.clone());
        }
        let size = self.known(below, inode)?.size;
        let key = Key::new(inode, Kind::Target, 0);
        if let Some(value) = below.get(key)? {
            return Ok(value.to_vec());
        }
        let mut target = vec![0; size.min(BYTES) as usize];
        let pieces = self.find_pieces(below, inode, 0..target.len() as u64)?;
        below.read(&pieces, &mut target)?;
        Ok(target)
    }

    /// Reads a file from an offset on. How many bytes there were.
    ///
    /// # Errors
    /// It is no file, or what it has cannot be read.
    pub fn read(&self, below: &mut Below<'_>, of: (u64, u64), bytes: &mut [u8]) -> Result<usize, ReadError> {
        let pieces = self.pieces(below, of, bytes.len())?;
        below.read(&pieces, bytes)?;
        Ok(pieces.bytes())
    }

    /// Where so many bytes of a file are, from an offset on; fewer if the file ends before.
    ///
    /// # Errors
    /// It is no file, or the tree cannot be read.
    pub fn pieces(
        &self,
        below: &mut Below<'_>,
        (inode, offset): (u64, u64),
        bytes: usize,
    ) -> Result<Pieces, ReadError> {
        let found = self.known(below, inode)?;
        match found.mode & TYPE_MASK {
            TYPE_FILE => {}
            TYPE_DIRECTORY => return Err(Errno::IsDirectory.into()),
            _ => return Err(Errno::Invalid.into()),
        }
        let count = found.size.saturating_sub(offset).min(bytes as u64);
        self.find_pieces(below, inode, offset..offset + count)
    }

    fn find_pieces(&self, below: &mut Below<'_>, inode: u64, range: Range<u64>) -> Result<Pieces, ReadError> {
        let mut pieces = Pieces::new((range.end - range.start) as usize);
        let content = self.contents.get(&inode);
        let spans = content
            .into_iter()
            .flat_map(|content| content.bytes.of(range.clone()));
        let mut at = range.start;
        for (span, source) in spans {
            let (start, end) = (span.start.max(range.start), span.end.min(range.end));
            below.add_pieces(inode, (range.start, at..start), &mut pieces)?;
            let from = match &source.value {
                Source::Zeros => None,
                Source::Memory(data, from) => {
                    let from = from + (start - span.start) as usize;
                    Some(Spot::Memory(Arc::clone(data), from))
                }
                Source::Placed(place, sums, from) => {
                    let from = from + (start - span.start);
                    Some(Spot::Blocks(*place, Arc::clone(sums), from))
                }
            };
            if let Some(from) = from {
                let to = (start - range.start) as usize;
                pieces.add(to, (end - start) as usize, from);
            }
            at = end;
        }
        below.add_pieces(inode, (range.start, at..range.end), &mut pieces)?;
        Ok(pieces)
    }

    /// The ranges of a file's blocks that are there, from `blocks` on: what `SEEK_DATA` and `SEEK_HOLE` look for. Numbers are blocks.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn blocks(
        &self,
        below: &mut Below<'_>,
        inode: u64,
        blocks: Range<u64>,
    ) -> Result<Vec<Range<u64>>, Error> {
        let mut there = below.there(inode, &blocks)?;
        let content = self.contents.get(&inode);
        for (span, is_there) in content
            .into_iter()
            .flat_map(|content| content.blocks.of(blocks.clone()))
        {
            match is_there.value {
                true => there.insert(span),
                false => there.remove(span),
            }
        }
        there.keep(blocks);
        Ok(there.iter().collect())
    }

    /// Whether an operation of the log has made all of these blocks at once, and none has taken one away.
    fn has_blocks(&self, inode: u64, blocks: &Range<u64>) -> bool {
        let content = self.contents.get(&inode);
        let made = content.and_then(|content| content.blocks.at(blocks.start));
        made.is_some_and(|(there, at)| at.value && blocks.end <= there.end)
    }

    /// Reads all that [`Self::apply`] will read: what is missing is found before anything is logged.
    ///
    /// # Errors
    /// Something is missing, or cannot be read.
    pub(crate) fn probe(&self, below: &mut Below<'_>, op: &Op<'_>) -> Result<(), ReadError> {
        let creates = matches!(op.action, Action::Create { .. });
        for inode in op.changed().into_iter().skip(usize::from(creates)).flatten() {
            self.inode(below, inode)?;
        }
        let (blocks, makes) = match &op.action {
            Action::Truncate { size } => (size / BYTES..BLOCKS_END, false),
            Action::Write { offset, data } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                (touched_blocks(&range), true)
            }
            Action::Allocate { offset, bytes, .. } => {
                (touched_blocks(&(*offset..offset.saturating_add(*bytes))), false)
            }
            _ => return Ok(()),
        };
        if !makes || !self.has_blocks(op.inode, &blocks) {
            self.blocks(below, op.inode, blocks)?;
        }
        Ok(())
    }

    /// Takes an operation that was logged at a position.
    ///
    /// # Errors
    /// Something that it is about is not there, or the tree cannot be read. Then nothing has changed.
    pub fn apply(&mut self, below: &mut Below<'_>, op: &Op<'_>, position: u64) -> Result<(), ReadError> {
        Taker {
            overlay: self,
            below,
            position,
            time: op.time,
        }
        .take(op)
    }
}

fn take_passed<K: Ord, T>(map: &mut BTreeMap<K, At<T>>, key: &K, position: u64) -> Option<T> {
    match map.get(key).is_some_and(|at| at.position <= position) {
        true => map.remove(key).map(|at| at.value),
        false => None,
    }
}

/// Takes one operation.
struct Taker<'o, 'b, 't> {
    overlay: &'o mut Overlay,
    below: &'b mut Below<'t>,
    position: u64,
    time: Time,
}

impl Taker<'_, '_, '_> {
    fn take(&mut self, op: &Op<'_>) -> Result<(), ReadError> {
        let number = op.inode;
        match &op.action {
            Action::Create { .. } => self.create(op),
            Action::Link { entry } => {
                let mut inode = self.inode(number)?;
                let directory = self.inode(entry.parent)?;
                inode.links += 1;
                inode.ctime = self.time;
                self.put(number, inode);
                self.enter(entry, directory, (number, inode.mode));
                Ok(())
            }
            Action::Unlink { entry, fate, .. } => {
                let inode = self.inode(number)?;
                let directory = self.inode(entry.parent)?;
                self.leave(entry, directory, &inode);
                self.lose(number, inode, *fate);
                Ok(())
            }
            Action::Rename { from, to, target } => self.rename(number, (from, to), *target),
            Action::Release => {
                self.inode(number)?;
                self.delete(number);
                Ok(())
            }
            Action::Set(changes) => {
                let mut inode = self.inode(number)?;
                changes.apply(&mut inode, self.time);
                self.put(number, inode);
                Ok(())
            }
            Action::Attribute { name, value } => {
                let mut inode = self.inode(number)?;
                inode.ctime = self.time;
                self.put(number, inode);
                let key = (number, name.to_vec());
                let value = value.as_ref().map(|value| value.to_vec());
                let position = self.position;
                self.touch(Touched::Attribute(number, name.to_vec()));
                self.overlay.attributes.insert(key, At { position, value });
                Ok(())
            }
            action => self.change_content(number, action),
        }
    }

    fn inode(&mut self, number: u64) -> Result<Inode, ReadError> {
        self.overlay.known(self.below, number)
    }

    fn touch(&mut self, touched: Touched) {
        self.overlay.touched.push_back((self.position, touched));
    }

    fn put(&mut self, number: u64, inode: Inode) {
        let (position, value) = (self.position, Some(inode));
        self.touch(Touched::Inode(number));
        self.overlay.inodes.insert(number, At { position, value });
    }

    fn name(&mut self, entry: &Entry<'_>, value: Leads) {
        let hash = hash_of(&entry.name, self.overlay.mark);
        self.touch(Touched::Name(entry.parent, hash, entry.name.to_vec()));
        let position = self.position;
        let at = At { position, value };
        let names = self.overlay.names.entry((entry.parent, hash)).or_default();
        match names.iter_mut().find(|named| named.name == *entry.name) {
            Some(named) => named.at = at,
            None => names.push(Named {
                name: entry.name.to_vec(),
                at,
            }),
        }
    }

    fn create(&mut self, op: &Op<'_>) -> Result<(), ReadError> {
        let (
            Action::Create {
                entry, mode, target, ..
            },
            Some(inode),
        ) = (&op.action, op.action.created(self.time))
        else {
            unreachable!("the caller passes one")
        };
        let (number, position) = (op.inode, self.position);
        let directory = self.inode(entry.parent)?;
        let blocks = u64::from(target.len() > VALUE_BYTES_MAX);
        self.put(number, Inode { blocks, ..inode });
        if !target.is_empty() {
            let value = target.to_vec();
            self.overlay.targets.insert(number, At { position, value });
        }
        if entry.name.is_empty() {
            return Ok(());
        }
        self.enter(entry, directory, (number, *mode));
        Ok(())
    }

    fn rename(
        &mut self,
        number: u64,
        (from, to): (&Entry<'_>, &Entry<'_>),
        target: Target,
    ) -> Result<(), ReadError> {
        let mut inode = self.inode(number)?;
        let other = match target {
            Target::Free => None,
            Target::Replaced { inode, .. } | Target::Exchanged { inode } => Some((inode, self.inode(inode)?)),
        };
        let directories = (self.inode(from.parent)?, self.inode(to.parent)?);
        self.leave(from, directories.0, &inode);
        if let Some((_, other)) = &other {
            let directory = self.inode(to.parent)?;
            self.leave(to, directory, other);
        }
        let directory = self.inode(to.parent)?;
        self.enter(to, directory, (number, inode.mode));
        match (other, target) {
            (Some((found, other)), Target::Replaced { fate, .. }) => self.lose(found, other, fate),
            (Some((found, mut other)), _) => {
                let directory = self.inode(from.parent)?;
                self.enter(from, directory, (found, other.mode));
                other.ctime = self.time;
                other.parent = if other.is_directory() { from.parent } else { 0 };
                self.put(found, other);
            }
            (None, _) => {}
        }
        inode.ctime = self.time;
        inode.parent = if inode.is_directory() { to.parent } else { 0 };
        self.put(number, inode);
        Ok(())
    }

    fn enter(&mut self, entry: &Entry<'_>, mut directory: Inode, (inode, mode): (u64, u32)) {
        self.name(entry, Some((inode, kind_of(mode))));
        directory.entries += 1;
        directory.links += u32::from(mode & TYPE_MASK == TYPE_DIRECTORY);
        (directory.mtime, directory.ctime) = (self.time, self.time);
        self.put(entry.parent, directory);
    }

    fn leave(&mut self, entry: &Entry<'_>, mut directory: Inode, inode: &Inode) {
        self.name(entry, None);
        directory.entries = directory.entries.saturating_sub(1);
        directory.links = directory.links.saturating_sub(u32::from(inode.is_directory()));
        (directory.mtime, directory.ctime) = (self.time, self.time);
        self.put(entry.parent, directory);
    }

    fn lose(&mut self, number: u64, mut inode: Inode, fate: Fate) {
        if fate == Fate::Deleted {
            return self.delete(number);
        }
        inode.ctime = self.time;
        inode.links = match inode.is_directory() {
            true => 0,
            false => inode.links.saturating_sub(1),
        };
        inode.parent = 0;
        self.put(number, inode);
    }

    fn delete(&mut self, number: u64) {
        let (position, value) = (self.position, None);
        self.touch(Touched::Inode(number));
        self.overlay.inodes.insert(number, At { position, value });
        // Numbers are not used again while the log lives: nobody asks for these any more.
        self.overlay.contents.remove(&number);
        self.overlay.targets.remove(&number);
    }

    fn change_content(&mut self, number: u64, action: &Action<'_>) -> Result<(), ReadError> {
        let mut inode = self.inode(number)?;
        match action {
            Action::Truncate { size } => {
                self.punch((number, &mut inode), *size..u64::MAX)?;
                inode.size = *size;
            }
            Action::Write { offset, data } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                self.set_blocks((number, &mut inode), touched_blocks(&range), true)?;
                inode.size = inode.size.max(range.end);
                self.set_bytes(number, range, Source::Memory(data[..].into(), 0));
            }
            Action::Place {
                offset,
                bytes,
                place,
                sums,
            } => {
                let end = offset.saturating_add(u64::from(*bytes));
                let blocks = offset / BYTES..offset / BYTES + sums.len() as u64;
                self.set_blocks((number, &mut inode), blocks.clone(), true)?;
                inode.size = inode.size.max(end);
                let source = Source::Placed(*place, sums[..].into(), 0);
                self.set_bytes(number, blocks.start * BYTES..blocks.end * BYTES, source);
            }
            Action::Allocate {
                offset,
                bytes,
                what,
                keeps_size,
            } => {
                let range = *offset..offset.saturating_add(*bytes);
                if *what != Allocation::Reserve {
                    self.punch((number, &mut inode), range.clone())?;
                }
                if *what != Allocation::Hole {
                    self.set_blocks((number, &mut inode), touched_blocks(&range), true)?;
                }
                if !keeps_size {
                    inode.size = inode.size.max(range.end);
                }
            }
            _ => unreachable!("the caller passes actions on content"),
        }
        (inode.mtime, inode.ctime) = (self.time, self.time);
        self.put(number, inode);
        Ok(())
    }

    /// Bytes of a range are zeros, and its whole blocks are gone.
    fn punch(&mut self, (number, inode): (u64, &mut Inode), range: Range<u64>) -> Result<(), ReadError> {
        let whole = whole_blocks(&range);
        self.set_blocks((number, inode), whole.start..whole.end.min(BLOCKS_END), false)?;
        self.set_bytes(number, range, Source::Zeros);
        Ok(())
    }

    fn set_bytes(&mut self, number: u64, range: Range<u64>, value: Source) {
        let position = self.position;
        let content = self.overlay.contents.entry(number).or_default();
        content.bytes.set(range, At { position, value }, drop);
    }

    fn set_blocks(
        &mut self,
        (number, inode): (u64, &mut Inode),
        blocks: Range<u64>,
        value: bool,
    ) -> Result<(), ReadError> {
        if value && self.overlay.has_blocks(number, &blocks) {
            // They come from an operation before, and are in the tree when the overlay has forgotten it.
            return Ok(());
        }
        let before = self.overlay.blocks(self.below, number, blocks.clone())?;
        let before: u64 = before.iter().map(|there| there.end - there.start).sum();
        let after = if value {
            blocks.end.saturating_sub(blocks.start)
        } else {
            0
        };
        inode.blocks = (inode.blocks + after).saturating_sub(before);
        let position = self.position;
        let content = self.overlay.contents.entry(number).or_default();
        content.blocks.set(blocks, At { position, value }, drop);
        Ok(())
    }
}
