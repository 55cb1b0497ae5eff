//! Changes of the tree.
//!
//! A change first reads all that it will need, and reserves places; it may fail only until then. Then it makes the nodes from the top
//! to the leaf new, and changes them.
//!
//! Room: at any time so many blocks are free that a commit can write the zones' bitmaps and records ([`Tree::closing`]). What lets
//! files grow leaves a reserve beside them ([`Room::Normal`]), of which deletions take until the blocks that they free may be reused:
//! after two commits.

use crate::format::{Key, Place, Pointer};
use crate::media::{Error, Media};
use crate::node::{CAPACITY, Edit, Entry, FILL_MIN, INNER_BYTES, Node, Raw, VALUE_BYTES_MAX};
use crate::tree::{Kept, Step, Top, Tree};
use crate::value::{Part, Run, ZoneRecord};
use core::ops::RangeInclusive;
use std::sync::Arc;

/// How much room a change may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// What is there beside the reserve.
    Normal,
    /// Also the reserve: the change is part of a deletion.
    Reserve,
}

/// Places that are reserved at a time, at least: so nodes lie one behind the other.
pub(crate) const STOCK: usize = 32;

impl Tree {
    /// Sets the value of a key. It has at most 1024 bytes.
    ///
    /// # Errors
    /// No room, or damage; nothing was changed.
    pub fn insert(&mut self, media: &dyn Media, key: Key, value: &[u8], room: Room) -> Result<(), Error> {
        assert!(value.len() <= VALUE_BYTES_MAX, "a value has at most 1024 bytes");
        self.admit(room)?;
        self.trim();
        self.put(media, Raw::of(key), value)
    }

    /// Removes a key. True if it was there.
    ///
    /// # Errors
    /// As of [`insert`](Tree::insert).
    pub fn remove(&mut self, media: &dyn Media, key: Key) -> Result<bool, Error> {
        Ok(self.remove_range(media, key..=key)? > 0)
    }

    /// Removes all keys of a range. How many they were.
    ///
    /// # Errors
    /// As of [`insert`](Tree::insert), but a part of them may be removed: commit and go on.
    pub fn remove_range(&mut self, media: &dyn Media, keys: RangeInclusive<Key>) -> Result<u64, Error> {
        let (mut from, last) = (Some(Raw::of(*keys.start())), Raw::of(*keys.end()));
        let mut removed = 0;
        while let Some(low) = from.filter(|low| *low <= last) {
            self.admit(Room::Reserve)?;
            self.trim();
            let (count, next) = self.cut(media, (low, last))?;
            removed += count as u64;
            from = next;
        }
        Ok(removed)
    }

    /// Blocks that one change takes, at most: on each level it makes two nodes new and splits one.
    pub(crate) fn places_max(&self) -> usize {
        3 * (usize::from(self.top.level) + 1) + 2
    }

    /// Nodes of the tree, at most.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Blocks that a commit takes beside the changed nodes, at most: for each zone a bitmap; nodes with records of zones, each a
    /// quarter full, and those above them.
    pub fn closing(&self) -> u64 {
        let zones = self.space.zones();
        let leaves = zones * (19 + ZoneRecord::BYTES) as u64 / FILL_MIN as u64 + 2;
        zones + leaves + leaves / 16 + 2 * (u64::from(self.top.level) + 2)
    }

    /// Blocks that may be taken by the changes between two commits that only delete, however full the file system is.
    pub fn deleting(&self) -> u64 {
        (self.space.free(0) / 256).clamp(4 * self.places_max() as u64, 4096)
    }

    /// Blocks of device 0 that only deletions may take.
    pub fn reserve_blocks(&self) -> u64 {
        2 * (self.closing() + self.deleting())
    }

    /// Blocks of device 0 that can be taken until the next commit, beside what it needs.
    pub fn room(&self) -> u64 {
        let room = self.space.room(0) + self.stock.len() as u64;
        room.saturating_sub(self.closing())
    }

    /// Blocks of a device that the next root does not use.
    pub fn free(&self, device: u8) -> u64 {
        self.space.free(device)
    }

    /// Blocks of all devices but the first one that can be taken now.
    pub fn room_of_others(&self) -> u64 {
        (1..self.devices() as u8)
            .map(|device| self.space.room(device))
            .sum()
    }

    /// Keeps room from the operations that are digested next: of what is free now they may take a part. None: they may take what there is.
    pub fn keep_back(&mut self, part: Option<Part>) {
        let (first, others) = (self.room(), self.room_of_others());
        let kept = |part: Part| Kept {
            growth: first.saturating_sub(part.growth),
            deletion: first.saturating_sub(part.deletion),
            others: others.saturating_sub(part.data),
        };
        self.kept = part.map(kept).unwrap_or_default();
    }

    fn admit(&self, room: Room) -> Result<(), Error> {
        self.admit_changes()?;
        let reserve = match room {
            Room::Normal => self.reserve_blocks(),
            Room::Reserve => 0,
        };
        match self.room() >= reserve + self.places_max() as u64 {
            true => Ok(()),
            false => Err(Error::Full(0)),
        }
    }

    /// Reserves up to `want` blocks of a device one behind the other, near a place. Fewer, if no so many are in a row. They are the
    /// caller's until it [keeps](Tree::keep) them or gives them back, or until the file system is opened anew.
    ///
    /// # Errors
    /// No room, or a bitmap cannot be read.
    pub fn reserve(
        &mut self,
        media: &dyn Media,
        device: u8,
        want: u64,
        near: Option<Place>,
    ) -> Result<Run, Error> {
        self.admit_changes()?;
        self.trim();
        let left = match device {
            0 => self.room().saturating_sub(self.reserve_blocks()),
            _ => u64::MAX,
        };
        let found = match left {
            0 => None,
            _ => self.space.reserve(media, device, want.min(left), near)?,
        };
        found.ok_or(Error::Full(device))
    }

    /// Reserves just these blocks, when opening: what an operation log says that its process was granted.
    ///
    /// # Errors
    /// Some are not free.
    pub fn claim(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        self.admit_changes()?;
        self.trim();
        self.space.claim(media, run)
    }

    /// Uses reserved blocks from the next root on: the caller makes an extent of them.
    ///
    /// # Errors
    /// Some are not reserved.
    pub fn keep(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        self.admit_changes()?;
        self.trim();
        self.space.keep(media, run)
    }

    /// Gives reserved blocks back.
    ///
    /// # Errors
    /// Some are not reserved.
    pub fn give_back(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        self.admit_changes()?;
        self.trim();
        self.space.give_back(media, run)
    }

    /// Gives reserved blocks back that a log speaks of. Until two roots say that it is digested, they keep what they have: a reader of
    /// the log, also after a cut, finds its data there.
    ///
    /// # Errors
    /// Some are not reserved.
    pub fn retire(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        self.keep(media, run)?;
        self.release(media, run)
    }

    /// Frees blocks from the next root on: the caller has removed their extent.
    ///
    /// # Errors
    /// Some are not in use.
    pub fn release(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        self.admit_changes()?;
        self.trim();
        self.space.release(media, run, self.generation)
    }

    /// Sets a value, whatever the room.
    pub(crate) fn put(&mut self, media: &dyn Media, key: Raw, value: &[u8]) -> Result<(), Error> {
        self.edits += 1;
        if self.top.pointer.place == Place::NONE {
            self.stock_up(media, 1)?;
            let mut leaf = Node::empty(0);
            leaf.apply(&Edit {
                index: 0,
                count: 0,
                entry: Entry::Leaf(key, value),
            });
            let pointer = self.add(leaf);
            self.top = Top { pointer, level: 0 };
            return Ok(());
        }
        let mut path = core::mem::take(&mut self.path);
        let result = self.put_on(media, (key, value), &mut path);
        self.path = path;
        result
    }

    fn put_on(
        &mut self,
        media: &dyn Media,
        (key, value): (Raw, &[u8]),
        path: &mut Vec<Step>,
    ) -> Result<(), Error> {
        self.descend(media, (self.top, key), path)?;
        let leaf = self.leaf_of(path);
        let (index, is_found) = leaf.find(key);
        let edit = Edit {
            index,
            count: usize::from(is_found),
            entry: Entry::Leaf(key, value),
        };
        let bytes = leaf.bytes_with(&edit);
        self.prepare(media, path, bytes)?;
        self.renew(path);
        self.change(path, edit);
        self.rebalance(path);
        Ok(())
    }

    /// Removes the keys of a range that the first leaf with such has. How many, and where to go on.
    fn cut(&mut self, media: &dyn Media, range: (Raw, Raw)) -> Result<(usize, Option<Raw>), Error> {
        if self.top.pointer.place == Place::NONE {
            return Ok((0, None));
        }
        let mut path = core::mem::take(&mut self.path);
        let result = self.cut_on(media, range, &mut path);
        self.path = path;
        result
    }

    fn cut_on(
        &mut self,
        media: &dyn Media,
        (low, last): (Raw, Raw),
        path: &mut Vec<Step>,
    ) -> Result<(usize, Option<Raw>), Error> {
        let bound = self.descend(media, (self.top, low), path)?;
        let leaf = self.leaf_of(path);
        let (index, _) = leaf.find(low);
        let count = leaf.until(index, last);
        if count > 0 {
            let left = leaf.bytes() - leaf.bytes_of(index, count);
            self.edits += 1;
            self.prepare(media, path, left)?;
            self.renew(path);
            let entry = Entry::None;
            self.change(path, Edit { index, count, entry });
            self.rebalance(path);
        }
        Ok((count, bound))
    }

    /// Removes a key, whatever the room.
    pub(crate) fn unput(&mut self, media: &dyn Media, key: Raw) -> Result<(), Error> {
        self.cut(media, (key, key)).map(|_| ())
    }

    /// Overwrites a value by one of its length. The leaf is one that was changed after the last commit.
    pub(crate) fn patch(&mut self, key: Raw, value: &[u8]) {
        let mut pointer = self.top.pointer;
        for _ in 0..self.top.level {
            let node = self.node(pointer);
            pointer = node.child(node.child_of(key));
        }
        let slot = self.cache.slot_of(pointer.place);
        let leaf = self.cache.at_mut(slot);
        let (index, is_found) = leaf.find(key);
        assert!(is_found, "the key was put");
        leaf.overwrite(index, value);
    }

    /// A node that is known to be in memory.
    fn node(&self, pointer: Pointer) -> &Node {
        self.cache.at(self.cache.slot_of(pointer.place))
    }

    fn leaf_of(&self, path: &[Step]) -> &Node {
        self.cache.at(path.last().expect("a path ends with a leaf").slot)
    }

    /// Gets all that a change of the leaf needs. `bytes` are those that it will have.
    fn prepare(&mut self, media: &dyn Media, path: &[Step], bytes: usize) -> Result<(), Error> {
        for step in path {
            self.check_old(media, step.pointer)?;
        }
        let mut left = bytes;
        for steps in path.windows(2).rev() {
            if left >= FILL_MIN {
                break;
            }
            let parent = self.cache.at(steps[0].slot);
            let (level, entries) = (parent.level() - 1, parent.bytes());
            let Some(other) = sibling(parent, steps[0].index).map(|index| parent.child(index)) else {
                break;
            };
            self.check_old(media, other)?;
            if left + self.load(media, other, level)?.bytes() > CAPACITY {
                break;
            }
            left = entries - INNER_BYTES;
        }
        self.stock_up(media, self.places_max())
    }

    /// Makes sure that the place of a node can be freed.
    fn check_old(&mut self, media: &dyn Media, pointer: Pointer) -> Result<(), Error> {
        match pointer.generation == self.generation {
            true => Ok(()),
            false => self.space.check_one(media, pointer.place),
        }
    }

    /// Reserves places for so many nodes.
    fn stock_up(&mut self, media: &dyn Media, count: usize) -> Result<(), Error> {
        while self.stock.len() < count {
            let want = (count - self.stock.len()).max(STOCK);
            let run = self.space.reserve(media, 0, want as u64, self.near)?;
            let run = run.ok_or(Error::Full(0))?;
            self.near = Some(run.end());
            let places = (0..run.blocks).rev().map(|block| run.place.plus(block));
            self.stock.splice(0..0, places);
        }
        Ok(())
    }

    /// Gives places back that were reserved for nodes.
    pub(crate) fn give_back_stock(&mut self, media: &dyn Media) -> Result<(), Error> {
        while let Some(place) = self.stock.pop() {
            self.space.give_back(media, Run::one(place))?;
        }
        Ok(())
    }

    fn new_pointer(&mut self) -> Pointer {
        let place = self.stock.pop().expect("places were reserved");
        self.space.keep_one(place);
        self.changed.push(place);
        Pointer {
            place,
            generation: self.generation,
        }
    }

    /// Adds a node.
    fn add(&mut self, node: Node) -> Pointer {
        let pointer = self.new_pointer();
        self.nodes = self.nodes.saturating_add(1);
        self.cache.insert(pointer, Arc::new(node));
        pointer
    }

    /// Frees the place of a node that is not needed any more.
    fn drop_place(&mut self, pointer: Pointer) {
        let is_new = pointer.generation == self.generation;
        let held_for = (!is_new).then_some(self.generation);
        self.space.free_one(pointer.place, held_for);
    }

    /// Gives a node a new place, if it is of an older root.
    fn renew_one(&mut self, pointer: Pointer, slot: usize) -> Pointer {
        if pointer.generation == self.generation {
            return pointer;
        }
        let new = self.new_pointer();
        self.cache.relocate(slot, new);
        self.drop_place(pointer);
        new
    }

    /// Gives each node of a path a new place.
    fn renew(&mut self, path: &mut [Step]) {
        for at in 0..path.len() {
            let Step { pointer, slot, .. } = path[at];
            let new = self.renew_one(pointer, slot);
            if new == pointer {
                continue;
            }
            path[at].pointer = new;
            match at.checked_sub(1).map(|above| path[above]) {
                Some(above) => self.cache.at_mut(above.slot).set_child(above.index, new),
                None => self.top.pointer = new,
            }
        }
    }

    /// Makes an edit of a leaf, and splits it and nodes above it as necessary.
    fn change(&mut self, path: &[Step], mut edit: Edit<'_>) {
        for (at, step) in path.iter().enumerate().rev() {
            let node = self.cache.at_mut(step.slot);
            if node.bytes_with(&edit) <= CAPACITY {
                return node.apply(&edit);
            }
            let right = node.split(&edit);
            let lowest = right.key(0);
            let pointer = self.add(right);
            let entry = Entry::Inner(lowest, pointer);
            match at.checked_sub(1) {
                Some(above) => {
                    edit = Edit {
                        index: path[above].index + 1,
                        count: 0,
                        entry,
                    };
                }
                None => self.grow(entry),
            }
        }
    }

    /// Sets a new node on top, of which the old one is the first child.
    fn grow(&mut self, second: Entry<'_>) {
        let mut node = Node::empty(self.top.level + 1);
        for (index, entry) in [Entry::Inner(Raw::LOWEST, self.top.pointer), second]
            .into_iter()
            .enumerate()
        {
            let count = 0;
            node.apply(&Edit { index, count, entry });
        }
        let pointer = self.add(node);
        let level = self.top.level + 1;
        self.top = Top { pointer, level };
    }

    /// Joins what is less than a quarter full with what is beside it, from the leaf up. [`prepare`](Tree::prepare) has read it.
    fn rebalance(&mut self, path: &[Step]) {
        for at in (1..path.len()).rev() {
            let node = self.cache.at(path[at].slot);
            if node.bytes() >= FILL_MIN || !self.join(path[at - 1]) {
                break;
            }
        }
        loop {
            let Top { pointer, level } = self.top;
            let node = self.node(pointer);
            self.top = match (level, node.count()) {
                (0, 0) => Top::default(),
                (1.., 1) => Top {
                    pointer: node.child(0),
                    level: level - 1,
                },
                _ => return,
            };
            self.cache.remove(pointer.place);
            self.drop_place(pointer);
            self.nodes -= 1;
            if self.top == Top::default() {
                return;
            }
        }
    }

    /// Joins a child with the one beside it. True if there is one child fewer.
    fn join(&mut self, parent: Step) -> bool {
        let above = parent.slot;
        let node = self.cache.at(above);
        let Some(other) = sibling(node, parent.index) else {
            return false;
        };
        let (left, right) = (parent.index.min(other), parent.index.max(other));
        let (left_old, right_old) = (node.child(left), node.child(right));
        let slots = [left_old, right_old].map(|child| self.cache.slot_of(child.place));
        let bytes = slots.map(|slot| self.cache.at(slot).bytes());
        let left_new = self.renew_one(left_old, slots[0]);
        self.cache.at_mut(above).set_child(left, left_new);
        let mut right_new = right_old;
        if bytes[0] + bytes[1] > CAPACITY {
            right_new = self.renew_one(right_old, slots[1]);
            self.cache.at_mut(above).set_child(right, right_new);
        }
        let mut right_node = self.cache.remove(right_new.place).expect("it was read");
        if self.cache.at_mut(slots[0]).join(Arc::make_mut(&mut right_node)) {
            self.drop_place(right_new);
            self.nodes -= 1;
            self.cache.at_mut(above).apply(&Node::without(right));
            return true;
        }
        let lowest = right_node.key(0);
        self.cache.insert(right_new, right_node);
        self.cache.at_mut(above).set_lowest(right, lowest);
        false
    }
}

/// The child that another one is joined with: the one behind it, or the one before it.
fn sibling(parent: &Node, index: usize) -> Option<usize> {
    let behind = (index + 1 < parent.count()).then_some(index + 1);
    behind.or_else(|| index.checked_sub(1))
}
