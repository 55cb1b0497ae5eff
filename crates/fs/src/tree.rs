//! The metadata of a file system: a copy-on-write B+-tree (docs/format/fs.md), opened and read.
//!
//! A node that is changed gets a new place at its first change after a commit, and so does each node above it. So no block that a
//! root needs is written while the root counts, and a reader of a committed root is not disturbed by changes. The node's old
//! place is held by [`Space`] until nobody needs it. Changes are in `edit`, commits in `commit`.

use crate::cache::Cache;
use crate::format::{Damage, Key, Kind, Place, Pointer, Root, Sort, unseal};
use crate::media::{Error, Media, Volume, read_block};
use crate::node::{CHILDREN_MAX, LEVELS_MAX, Node, Raw};
use crate::space::{Space, ZoneId};
use crate::value::ZoneRecord;
use core::ops::{Deref, Range, RangeInclusive};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is read: the tree as it will be, or as a root has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// With all changes.
    Pending,
    /// As of a committed root. The root is to be kept whole: see [`Tree::set_oldest`].
    Root(Root),
}

/// A value of the tree: bytes.
#[derive(Clone, Debug)]
pub struct Value {
    node: Arc<Node>,
    range: Range<usize>,
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.node.block()[self.range.clone()]
    }
}

/// Room that operations are to leave: of device 0, those that let files grow and those that only delete; of all others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) growth: u64,
    pub(crate) deletion: u64,
    pub(crate) others: u64,
}

/// A step from the top to a leaf: a node, and which child of it comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) pointer: Pointer,
    /// Where the cache has the node.
    pub(crate) slot: usize,
    pub(crate) index: usize,
}

/// Where a view has its tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Top {
    /// Nowhere, if the tree is empty.
    pub(crate) pointer: Pointer,
    pub(crate) level: u8,
}

/// The tree.
#[derive(Debug)]
pub struct Tree {
    pub(crate) mark: u64,
    pub(crate) cache: Cache,
    pub(crate) space: Space,
    /// The newest durable root.
    pub(crate) durable: Root,
    /// The root that is to be written before the first commit: the same tree, under the next number. So what a commit wrote that was
    /// cut has another generation than what any later one writes.
    pub(crate) opening: Option<Root>,
    /// The root that is being written.
    pub(crate) planned: Option<Root>,
    pub(crate) top: Top,
    /// Nodes of the tree that changes, at most.
    pub(crate) nodes: u64,
    /// The root that changes are for.
    pub(crate) generation: u64,
    pub(crate) next_inode: u64,
    pub(crate) next_log: u64,
    /// Places that are reserved for nodes. The last one is next.
    pub(crate) stock: Vec<Place>,
    /// Where to look for more of them.
    pub(crate) near: Option<Place>,
    /// Places of nodes for the next root, and of some that are gone.
    pub(crate) changed: Vec<Place>,
    /// Zones that may have become free with the last commit.
    pub(crate) hollow: Vec<ZoneId>,
    pub(crate) oldest: Option<u64>,
    /// Why it takes no changes, if it takes none.
    pub(crate) refuses: Option<Error>,
    /// Room that is others' than whose operations are digested.
    pub(crate) kept: Kept,
    /// Counts changes, so that a range notices them.
    pub(crate) edits: u64,
    pub(crate) path: Vec<Step>,
}

impl Tree {
    /// An empty tree of a file system that is being made: its first commit is root 1.
    pub(crate) fn blank(volume: &Volume, cache_bytes: usize) -> Self {
        let space = Space::new(volume.mark, &volume.blocks());
        let root = Root {
            next_inode: crate::format::ROOT_INODE + 1,
            next_log: 1,
            ..Root::default()
        };
        let mut tree = Self::of_root(volume.mark, root, space, cache_bytes);
        (tree.opening, tree.generation) = (None, 1);
        tree
    }

    fn of_root(mark: u64, root: Root, space: Space, cache_bytes: usize) -> Self {
        Self {
            mark,
            cache: Cache::new(cache_bytes, root.generation),
            space,
            durable: root,
            opening: Some(Root {
                generation: root.generation + 1,
                ..root
            }),
            planned: None,
            top: Top {
                pointer: root.tree,
                level: root.level,
            },
            nodes: 0,
            generation: root.generation + 2,
            next_inode: root.next_inode,
            next_log: root.next_log,
            stock: Vec::new(),
            near: None,
            changed: Vec::new(),
            hollow: Vec::new(),
            oldest: None,
            refuses: None,
            kept: Kept::default(),
            edits: 0,
            path: Vec::new(),
        }
    }

    /// Opens the tree of the newest root that can be read, as far as opening reads it: its slot, its uppermost node, and the records
    /// of the zones. `cache_bytes` is for nodes that need not be in memory; an eighth more
    /// is for bitmaps. If of both roots records of zones are damaged, the tree can
    /// be read, and [refuses](Tree::refuses) changes.
    ///
    /// # Errors
    /// Neither root can be read. The error is that of the newest one.
    pub fn open(media: &dyn Media, volume: &Volume, cache_bytes: usize) -> Result<Self, Error> {
        let roots = roots(media, volume.mark)?;
        let mut first_error = None;
        for (index, root) in roots.iter().enumerate() {
            match Self::open_root(media, volume, root, cache_bytes) {
                Ok(mut tree) => {
                    tree.space.limit(cache_bytes / 8);
                    if let Some(older) = roots.get(index + 1) {
                        tree.hold_older(media, volume, older)?;
                    }
                    return Ok(tree);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let error = first_error.unwrap_or(Error::NoRoot);
        for root in roots {
            let space = Space::new(volume.mark, &volume.blocks());
            let mut tree = Self::of_root(volume.mark, root, space, cache_bytes);
            if tree.load(media, root.tree, root.level).is_ok() {
                tree.refuses = Some(error);
                return Ok(tree);
            }
        }
        Err(error)
    }

    fn open_root(media: &dyn Media, volume: &Volume, root: &Root, cache_bytes: usize) -> Result<Self, Error> {
        let space = Space::new(volume.mark, &volume.blocks());
        let mut tree = Self::of_root(volume.mark, *root, space, cache_bytes);
        for (id, record) in tree.zone_records(media)? {
            if !tree.space.add_record(id, &record) {
                let (place, damage) = (root.tree.place, Damage::Content);
                return Err(Error::Damaged { place, damage });
            }
        }
        let ids: Vec<_> = tree.space.ids().collect();
        let is_kept =
            |id: &ZoneId| tree.space.record(*id).bitmap.place != Place::NONE && tree.space.is_hollow(*id);
        tree.hollow = ids.into_iter().filter(is_kept).collect();
        tree.nodes = tree.nodes_max(media);
        Ok(tree)
    }

    /// Nodes of the tree, at most: the two uppermost levels say how many there are on three.
    fn nodes_max(&mut self, media: &dyn Media) -> u64 {
        let Top { pointer, level } = self.top;
        if pointer.place == Place::NONE {
            return 0;
        }
        let (mut nodes, mut of_level, mut known) = (1, 1, level);
        let mut upper = vec![pointer];
        while known > level.saturating_sub(2) {
            let mut lower = Vec::new();
            for pointer in upper {
                // What cannot be read is told when it is needed.
                match self.load(media, pointer, known) {
                    Ok(node) => lower.extend((0..node.count()).map(|index| node.child(index))),
                    Err(_) => return u64::MAX,
                }
            }
            (of_level, known) = (lower.len() as u64, known - 1);
            nodes += of_level;
            upper = lower;
        }
        for _ in 0..known {
            of_level = of_level.saturating_mul(CHILDREN_MAX);
            nodes = of_level.saturating_add(nodes);
        }
        nodes
    }

    /// Keeps whole what the root before needs, as far as it can be read.
    fn hold_older(&mut self, media: &dyn Media, volume: &Volume, older: &Root) -> Result<(), Error> {
        let Ok(mut before) = Self::open_root(media, volume, older, 0) else {
            return Ok(());
        };
        let records = before.zone_records(media)?;
        for (id, record) in records {
            if self.space.record(id) != record {
                // If a bitmap of the root before is damaged, there is no root before that is whole. If one of this root is, nothing is
                // reserved in its zone.
                let _ = self
                    .space
                    .hold_older(media, (id, &record), self.durable.generation);
            }
        }
        Ok(())
    }

    fn zone_records(&mut self, media: &dyn Media) -> Result<BTreeMap<ZoneId, ZoneRecord>, Error> {
        let mut records = BTreeMap::new();
        let keys = Key::new(0, Kind::Zone, 0)..=Key::new(0, Kind::Zone, u64::MAX);
        let mut range = self.range(View::Pending, keys);
        while let Some((key, value)) = range.next(self, media)? {
            let (place, damage) = (self.top.pointer.place, Damage::Content);
            let damaged = Error::Damaged { place, damage };
            let id = ZoneId::of_number(key.number).ok_or(damaged)?;
            records.insert(id, ZoneRecord::parse(&value).map_err(|_| damaged)?);
        }
        Ok(records)
    }

    /// The newest durable root.
    pub fn committed(&self) -> &Root {
        &self.durable
    }

    /// Why the tree takes no changes, if it takes none: a commit failed, or what says which blocks are free is damaged.
    pub fn refuses(&self) -> Option<Error> {
        self.refuses
    }

    /// Refuses, if it takes no changes.
    pub(crate) fn admit_changes(&self) -> Result<(), Error> {
        self.refuses.map_or(Ok(()), Err)
    }

    /// The generation of the root that changes are for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Says which is the oldest root that somebody reads. What it needs is not reused. Forget nobody.
    pub fn set_oldest(&mut self, generation: Option<u64>) {
        self.oldest = generation;
        self.space.let_go(self.durable.generation, generation);
    }

    /// A number for a new inode.
    pub fn take_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode - 1
    }

    /// A number for a new log.
    pub fn take_log(&mut self) -> u64 {
        self.next_log += 1;
        self.next_log - 1
    }

    /// The number that the next new inode gets.
    pub fn next_inode(&self) -> u64 {
        self.next_inode
    }

    /// Says which number the next new inode gets, if it is not above: numbers may be given out elsewhere.
    pub fn raise_next_inode(&mut self, number: u64) {
        self.next_inode = self.next_inode.max(number);
    }

    /// Drops what is too much in memory. Not while a caller relies on something to be there.
    #[inline]
    pub(crate) fn trim(&mut self) {
        self.cache.trim();
        self.space.trim(self.durable.generation);
    }

    /// The number that names the file system in its blocks.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Devices of the file system.
    pub fn devices(&self) -> usize {
        self.space.devices()
    }

    /// Zones whose bitmaps are in memory.
    pub fn zones_loaded(&self) -> usize {
        self.space.loaded()
    }

    /// Nodes in memory.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Levels of the tree; 0 if it is empty.
    pub fn levels(&self) -> u8 {
        match self.top.pointer.place {
            Place::NONE => 0,
            _ => self.top.level + 1,
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn get(&mut self, media: &dyn Media, view: View, key: Key) -> Result<Option<Value>, Error> {
        let Some((node, key)) = self.leaf_with(media, view, key)? else {
            return Ok(None);
        };
        let (index, is_found) = node.find(key);
        Ok(is_found.then(|| Value {
            range: node.value(index),
            node: Arc::clone(node),
        }))
    }

    /// The last key up to another one, if the leaf of that one tells.
    pub(crate) fn last_up_to(
        &mut self,
        media: &dyn Media,
        view: View,
        key: Key,
    ) -> Result<Option<Key>, Error> {
        let Some((node, key)) = self.leaf_with(media, view, key)? else {
            return Ok(None);
        };
        let (index, is_found) = node.find(key);
        let index = (index + usize::from(is_found)).checked_sub(1);
        Ok(index.map(|index| node.key(index).key().expect("the node was checked")))
    }

    /// The leaf of a key. None if the tree is empty.
    fn leaf_with(
        &mut self,
        media: &dyn Media,
        view: View,
        key: Key,
    ) -> Result<Option<(&Arc<Node>, Raw)>, Error> {
        self.cache.trim();
        let top = self.top_of(&view);
        if top.pointer.place == Place::NONE {
            return Ok(None);
        }
        let key = Raw::of(key);
        let mut pointer = top.pointer;
        for level in (1..=top.level).rev() {
            let node = self.load(media, pointer, level)?;
            pointer = node.child(node.child_of(key));
        }
        Ok(Some((self.load(media, pointer, 0)?, key)))
    }

    /// The entries of keys, in their order: see [`Entries::next`].
    pub fn range(&self, view: View, keys: RangeInclusive<Key>) -> Entries {
        Entries {
            view,
            from: Some(Raw::of(*keys.start())),
            last: Raw::of(*keys.end()),
            leaf: None,
            edits: self.edits,
        }
    }

    fn top_of(&self, view: &View) -> Top {
        match view {
            View::Pending => self.top,
            View::Root(root) => Top {
                pointer: root.tree,
                level: root.level,
            },
        }
    }

    /// A node, from memory or a medium.
    #[inline]
    pub(crate) fn load(
        &mut self,
        media: &dyn Media,
        pointer: Pointer,
        level: u8,
    ) -> Result<&Arc<Node>, Error> {
        let slot = self.slot(media, pointer, level)?;
        Ok(self.cache.at(slot))
    }

    /// Where the cache has a node.
    #[inline]
    pub(crate) fn slot(&mut self, media: &dyn Media, pointer: Pointer, level: u8) -> Result<usize, Error> {
        match self.cache.find(pointer) {
            Some(slot) => Ok(slot),
            None => self.read(media, pointer, level),
        }
    }

    #[cold]
    fn read(&mut self, media: &dyn Media, pointer: Pointer, level: u8) -> Result<usize, Error> {
        let place = pointer.place;
        if self.cache.newest_at(place) > Some(pointer.generation) {
            // The place was reused: the reader's root was given up, or what points here is damaged.
            let damage = Damage::Generation;
            return Err(Error::Damaged { place, damage });
        }
        let node = read_node(media, pointer, (level, self.mark))?;
        Ok(self.cache.insert(pointer, node))
    }

    /// Goes down to the leaf of a key. The nodes are then in memory. What is returned is above each key of the leaf.
    pub(crate) fn descend(
        &mut self,
        media: &dyn Media,
        (top, key): (Top, Raw),
        path: &mut Vec<Step>,
    ) -> Result<Option<Raw>, Error> {
        path.clear();
        let (mut pointer, mut bound) = (top.pointer, None);
        for level in (1..=top.level).rev() {
            let slot = self.slot(media, pointer, level)?;
            let node = self.cache.at(slot);
            let index = node.child_of(key);
            bound = node.lowest_of(index + 1).or(bound);
            path.push(Step { pointer, slot, index });
            pointer = node.child(index);
        }
        let slot = self.slot(media, pointer, 0)?;
        path.push(Step {
            pointer,
            slot,
            index: 0,
        });
        Ok(bound)
    }
}

/// Reads a node and checks it. `level` and mark are what it is to have.
pub(crate) fn read_node(
    media: &dyn Media,
    pointer: Pointer,
    (level, mark): (u8, u64),
) -> Result<Arc<Node>, Error> {
    let place = pointer.place;
    let block = read_block(media, place)?;
    let node = unseal(&block, Sort::Node, pointer, mark).and_then(|()| Node::read(&block, level));
    node.map(Arc::new)
        .map_err(|damage| Error::Damaged { place, damage })
}

/// The roots that can be read, the newest one first.
pub(crate) fn roots(media: &dyn Media, mark: u64) -> Result<Vec<Root>, Error> {
    let mut roots = Vec::new();
    for slot in [0, 1] {
        let block = read_block(media, Place::new(0, 2 + slot));
        let root = block.ok().and_then(|block| Root::parse(&block, slot, mark).ok());
        roots.extend(root.filter(is_sound));
    }
    roots.sort_by_key(|root: &Root| core::cmp::Reverse(root.generation));
    match roots.is_empty() {
        true => Err(Error::NoRoot),
        false => Ok(roots),
    }
}

/// False if no root can be like that.
pub(crate) fn is_sound(root: &Root) -> bool {
    let is_placed = root.tree.place.device() == 0 && root.tree.generation <= root.generation;
    is_placed && usize::from(root.level) < LEVELS_MAX && root.generation < u64::MAX / 2
}

/// Entries of the tree, one after the other. It keeps nothing of the tree borrowed: changes between two entries are seen, in a
/// view that has them.
#[derive(Clone, Debug)]
pub struct Entries {
    view: View,
    /// The next key is not below it; none at the end.
    from: Option<Raw>,
    last: Raw,
    /// The leaf, the next entry of it, and what is above its keys.
    leaf: Option<(Arc<Node>, usize, Option<Raw>)>,
    edits: u64,
}

impl Entries {
    /// The next entry.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn next(&mut self, tree: &mut Tree, media: &dyn Media) -> Result<Option<(Key, Value)>, Error> {
        if self.edits != tree.edits && self.view == View::Pending {
            (self.leaf, self.edits) = (None, tree.edits);
        }
        loop {
            let Some(from) = self.from.filter(|from| *from <= self.last) else {
                return Ok(None);
            };
            if self.leaf.is_none() && !self.seek(tree, media, from)? {
                return Ok(None);
            }
            let Some((node, index, bound)) = &mut self.leaf else {
                return Ok(None);
            };
            if *index == node.count() {
                (self.from, self.leaf) = (*bound, None);
                continue;
            }
            let raw = node.key(*index);
            if raw > self.last {
                self.from = None;
                return Ok(None);
            }
            let value = Value {
                node: Arc::clone(node),
                range: node.value(*index),
            };
            *index += 1;
            self.from = raw.next();
            return Ok(Some((raw.key().expect("the node was checked"), value)));
        }
    }

    /// Goes to the leaf of a key. False if there are no entries at all.
    fn seek(&mut self, tree: &mut Tree, media: &dyn Media, from: Raw) -> Result<bool, Error> {
        tree.cache.trim();
        let top = tree.top_of(&self.view);
        if top.pointer.place == Place::NONE {
            return Ok(false);
        }
        let mut path = core::mem::take(&mut tree.path);
        let bound = tree.descend(media, (top, from), &mut path);
        let slot = path.last().map(|step| step.slot);
        tree.path = path;
        let bound = bound?;
        let leaf = Arc::clone(tree.cache.at(slot.expect("a path ends with a leaf")));
        let (index, _) = leaf.find(from);
        self.leaf = Some((leaf, index, bound));
        Ok(true)
    }
}
