//! Commits: what is to be written for the next root, and in which order.
//!
//! A commit writes the changed nodes, and the bitmaps of the zones that have changed. Both take blocks, and bitmaps are found by
//! records in the tree; so each bitmap may change the tree, and each node a bitmap. The circle closes as it only grows: each
//! zone gets a new bitmap once, and each node a new place once. Then the numbers of used blocks are put into the records, which
//! changes no length.

use crate::bits::Bits;
use crate::format::{BLOCK_BYTES, Block, DEVICES_MAX, Key, Kind, Place, Pointer, Root, Sort, seal};
use crate::media::{Error, Media};
use crate::node::{Node, Raw};
use crate::space::ZoneId;
use crate::tree::{Top, Tree};
use crate::value::{Run, ZoneRecord};
use base::MediaError;
use std::sync::Arc;

#[derive(Debug)]
enum Bytes {
    Node(Arc<Node>),
    Bitmap(Box<Block>),
}

/// What a commit writes.
#[derive(Debug)]
pub struct Plan {
    opening: Option<(Place, Box<Block>)>,
    writes: Vec<(Place, Bytes)>,
    root: (Place, Box<Block>),
    next: Root,
    devices: u8,
}

/// A step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write<'p> {
    /// Write a block. Those between two flushes may be written in any order.
    Block(Place, &'p Block),
    /// Wait for all writes, then make what was written to all devices durable.
    Flush,
}

impl Plan {
    /// What is to be done, in this order: nodes and bitmaps, a flush, the root, a flush. The first plan after an opening begins with
    /// the old tree's root under a new number, and a flush.
    pub fn steps(&self) -> impl Iterator<Item = Write<'_>> {
        let opening = self.opening.iter();
        let opening = opening.flat_map(|(place, root)| [Write::Block(*place, root), Write::Flush]);
        let writes = self.writes.iter().map(|(place, bytes)| {
            let block = match bytes {
                Bytes::Node(node) => node.block(),
                Bytes::Bitmap(block) => block,
            };
            Write::Block(*place, block)
        });
        let (place, root) = &self.root;
        let writes = opening.chain(writes);
        writes.chain([Write::Flush, Write::Block(*place, root), Write::Flush])
    }

    /// Blocks that are written.
    pub fn blocks(&self) -> usize {
        self.writes.len() + 1 + usize::from(self.opening.is_some())
    }

    /// Carries the plan out.
    ///
    /// # Errors
    /// A device failed; what was written is unknown.
    pub fn carry_out(&self, media: &mut dyn Media) -> Result<(), MediaError> {
        for step in self.steps() {
            match step {
                Write::Block(place, block) => media.write(place, block)?,
                Write::Flush => {
                    for device in 0..self.devices {
                        media.flush(device)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tree {
    /// Commits all changes.
    ///
    /// # Errors
    /// As of [`plan`](Tree::plan); or a device failed, and then the tree takes no more changes.
    pub fn commit(&mut self, media: &mut dyn Media) -> Result<(), Error> {
        let plan = self.plan(media)?;
        match plan.carry_out(media) {
            Ok(()) => {
                drop(plan);
                self.finish();
                Ok(())
            }
            Err(error) => {
                let place = plan.root.0;
                self.fail();
                Err(Error::Media { place, error })
            }
        }
    }

    /// Plans a commit of all changes. They are then for the next root, and [`finish`](Tree::finish) is to be called when the plan has
    /// been carried out, or [`fail`](Tree::fail). Until then the tree may be read and changed.
    ///
    /// # Errors
    /// A node or a bitmap cannot be read, or another plan is under way. Nothing is to be written, and the changes stay.
    pub fn plan(&mut self, media: &dyn Media) -> Result<Plan, Error> {
        self.admit_changes()?;
        if self.planned.is_some() {
            return Err(Error::Busy);
        }
        self.trim();
        self.give_back_stock(media)?;
        self.sweep(media)?;
        let zones = self.close(media)?;
        let mut writes = Vec::with_capacity(self.changed.len() + zones.len());
        self.seal_nodes(&mut writes);
        for id in &zones {
            let pointer = self.space.record(*id).bitmap;
            let block = bitmap(self.space.used(*id), pointer, self.mark);
            writes.push((pointer.place, Bytes::Bitmap(block)));
        }
        writes.sort_unstable_by_key(|(place, _)| *place);
        let root = self.next_root();
        let emitted = |root: Root| (Root::place_of(root.generation), root.emit(self.mark));
        let plan = Plan {
            opening: self.opening.take().map(emitted),
            writes,
            root: emitted(root),
            next: root,
            devices: self.space.devices() as u8,
        };
        self.cache.fly(self.generation);
        let hollow = |id: &ZoneId| self.space.is_hollow(*id);
        self.hollow = zones.into_iter().filter(hollow).collect();
        self.space.clean();
        self.planned = Some(root);
        self.generation += 1;
        self.near = None;
        Ok(plan)
    }

    /// The plan was carried out.
    pub fn finish(&mut self) {
        let root = self.planned.take().expect("a commit was planned");
        self.durable = root;
        self.cache.land(root.generation);
        self.space.let_go(root.generation, self.oldest);
        self.trim();
    }

    /// The plan could not be carried out: it is not known what is on the media. The tree takes no changes until it is opened anew.
    pub fn fail(&mut self) {
        self.refuses = Some(Error::Latched);
    }

    /// Reads the root of a plan from now on, which another tree of the same file system has carried out. This tree takes no changes: it
    /// is for readers that do not wait for the other one. The other tree plans its next commit only after this call.
    pub fn follow(&mut self, plan: &Plan) {
        let root = plan.next;
        self.refuses = Some(Error::Latched);
        (self.durable, self.opening) = (root, None);
        self.top = Top {
            pointer: root.tree,
            level: root.level,
        };
        (self.generation, self.edits) = (root.generation + 1, self.edits + 1);
        (self.next_inode, self.next_log) = (root.next_inode, root.next_log);
        self.cache.fly(root.generation);
        self.cache.land(root.generation);
        for (place, bytes) in &plan.writes {
            if let Bytes::Node(node) = bytes {
                let generation = root.generation;
                let pointer = Pointer {
                    place: *place,
                    generation,
                };
                self.cache.insert(pointer, Arc::clone(node));
            }
        }
        self.cache.trim();
    }

    fn next_root(&self) -> Root {
        let free = |device: usize| match device < self.space.devices() {
            true => self.space.free(device as u8),
            false => 0,
        };
        Root {
            generation: self.generation,
            tree: self.top.pointer,
            level: self.top.level,
            next_inode: self.next_inode,
            next_log: self.next_log,
            free: core::array::from_fn::<_, DEVICES_MAX, _>(free),
        }
    }

    /// Takes out the records of zones that have become free.
    fn sweep(&mut self, media: &dyn Media) -> Result<(), Error> {
        for id in core::mem::take(&mut self.hollow) {
            self.space.touch(id);
        }
        let dirty = self.space.dirty().to_vec();
        for id in dirty {
            let bitmap = self.space.record(id).bitmap;
            if bitmap.place == Place::NONE || !self.space.is_hollow(id) {
                continue;
            }
            self.free_bitmap(media, bitmap)?;
            self.space.set_bitmap(id, Pointer::default());
            self.unput(media, key_of(id))?;
        }
        Ok(())
    }

    /// Gives each changed zone a new bitmap, and a record that says where it is.
    fn close(&mut self, media: &dyn Media) -> Result<Vec<ZoneId>, Error> {
        let mut closed = Vec::new();
        let mut at = 0;
        let mut is_done = false;
        while !is_done {
            is_done = true;
            while let Some(id) = self.space.dirty().get(at).copied() {
                at += 1;
                let record = self.space.record(id);
                let is_free = record.bitmap.place == Place::NONE && record.used == 0;
                if !is_free && record.bitmap.generation != self.generation {
                    self.close_zone(media, id)?;
                    is_done = false;
                }
            }
            at = 0;
        }
        self.give_back_stock(media)?;
        for id in self.space.dirty().to_vec() {
            let record = self.space.record(id);
            if record.bitmap.place != Place::NONE {
                self.patch(key_of(id), &record.emit());
                closed.push(id);
            }
        }
        Ok(closed)
    }

    fn close_zone(&mut self, media: &dyn Media, id: ZoneId) -> Result<(), Error> {
        let old = self.space.record(id).bitmap;
        if old.place != Place::NONE {
            self.space.check_one(media, old.place)?;
        }
        self.put(media, key_of(id), &ZoneRecord::default().emit())?;
        let run = self.space.reserve(media, 0, 1, Some(id.place(0)))?;
        let place = run.ok_or(Error::Full(0))?.place;
        self.space.keep_one(place);
        let generation = self.generation;
        self.space.set_bitmap(id, Pointer { place, generation });
        if old.place != Place::NONE {
            self.free_bitmap(media, old)?;
        }
        Ok(())
    }

    fn free_bitmap(&mut self, media: &dyn Media, bitmap: Pointer) -> Result<(), Error> {
        self.space.check_one(media, bitmap.place)?;
        if bitmap.generation == self.generation {
            self.space.free_one(bitmap.place, None);
            return Ok(());
        }
        self.space.release(media, Run::one(bitmap.place), self.generation)
    }

    /// Seals the changed nodes.
    fn seal_nodes(&mut self, writes: &mut Vec<(Place, Bytes)>) {
        let (generation, mark) = (self.generation, self.mark);
        let mut changed = core::mem::take(&mut self.changed);
        changed.sort_unstable();
        changed.dedup();
        for place in changed.drain(..) {
            let pointer = Pointer { place, generation };
            if let Some(slot) = self.cache.find(pointer) {
                seal(self.cache.at_mut(slot).block_mut(), Sort::Node, pointer, mark);
                writes.push((place, Bytes::Node(Arc::clone(self.cache.at(slot)))));
            }
        }
        self.changed = changed;
    }
}

fn key_of(id: ZoneId) -> Raw {
    Raw::of(Key::new(0, Kind::Zone, id.number()))
}

fn bitmap(bits: &Bits, pointer: Pointer, mark: u64) -> Box<Block> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    bits.emit(&mut block);
    seal(&mut block, Sort::Bitmap, pointer, mark);
    block
}
