//! Nodes in memory, by place. Those that no durable root has are pinned; of the others the least recently used ones go (CLOCK).

use crate::format::{Place, Pointer};
use crate::node::Node;
use base::Map;
use std::sync::Arc;

#[derive(Debug)]
struct Slot {
    pointer: Pointer,
    /// None: the slot is free.
    node: Option<Arc<Node>>,
    is_recent: bool,
}

/// Nodes in memory. A node keeps its slot until it is removed, or [`trim`](Cache::trim) drops it.
#[derive(Debug)]
pub struct Cache {
    slots: Vec<Slot>,
    free: Vec<usize>,
    index: Map<Place, u32>,
    hand: usize,
    clean_max: usize,
    /// Roots above are not durable.
    durable: u64,
    /// Nodes of these.
    pinned: usize,
    /// The root that is being written, and its nodes among the pinned ones.
    flying: (u64, usize),
}

impl Cache {
    /// Nothing. `bytes` is for nodes that are also on the medium.
    pub fn new(bytes: usize, durable: u64) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            index: Map::new(),
            hand: 0,
            clean_max: bytes / size_of::<Node>(),
            durable,
            pinned: 0,
            flying: (durable, 0),
        }
    }

    /// Finds a node.
    #[inline]
    pub fn find(&mut self, pointer: Pointer) -> Option<usize> {
        let at = *self.index.get(&pointer.place)? as usize;
        let slot = &mut self.slots[at];
        slot.is_recent = true;
        (slot.pointer == pointer).then_some(at)
    }

    /// The node of a slot that the caller knows to be in use.
    #[inline]
    pub fn at(&self, slot: usize) -> &Arc<Node> {
        self.slots[slot].node.as_ref().expect("the slot is in use")
    }

    /// The same, to change it.
    #[inline]
    pub fn at_mut(&mut self, slot: usize) -> &mut Node {
        Arc::make_mut(self.slots[slot].node.as_mut().expect("the slot is in use"))
    }

    /// The slot of a node that the caller knows to be there.
    pub fn slot_of(&self, place: Place) -> usize {
        *self.index.get(&place).expect("the caller has put it there") as usize
    }

    /// The generation of the node of a place.
    pub fn newest_at(&self, place: Place) -> Option<u64> {
        let at = self.index.get(&place)?;
        Some(self.slots[*at as usize].pointer.generation)
    }

    /// Adds a node, in place of what was there. The slot that it has.
    pub fn insert(&mut self, pointer: Pointer, node: Arc<Node>) -> usize {
        self.remove(pointer.place);
        let slot = Slot {
            pointer,
            node: Some(node),
            is_recent: true,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.index.insert(pointer.place, at as u32);
        self.count(pointer.generation, true);
        at
    }

    /// Takes a node out, if it is there.
    pub fn remove(&mut self, place: Place) -> Option<Arc<Node>> {
        let at = self.index.remove(&place)? as usize;
        let node = self.slots[at].node.take();
        self.free.push(at);
        self.count(self.slots[at].pointer.generation, false);
        node
    }

    /// Gives the node of a slot a new place.
    pub fn relocate(&mut self, slot: usize, to: Pointer) {
        self.remove(to.place);
        let from = core::mem::replace(&mut self.slots[slot].pointer, to);
        self.index.remove(&from.place);
        self.index.insert(to.place, slot as u32);
        self.count(from.generation, false);
        self.count(to.generation, true);
    }

    fn count(&mut self, generation: u64, is_added: bool) {
        if generation <= self.durable {
            return;
        }
        let (of, flying) = &mut self.flying;
        match is_added {
            true => self.pinned += 1,
            false => self.pinned -= 1,
        }
        if *of == generation {
            match is_added {
                true => *flying += 1,
                false => *flying -= 1,
            }
        }
    }

    /// All pinned nodes are being written, for this root.
    pub fn fly(&mut self, generation: u64) {
        self.flying = (generation, self.pinned);
    }

    /// This root is durable.
    pub fn land(&mut self, generation: u64) {
        self.durable = generation;
        self.pinned -= self.flying.1;
        self.flying = (generation, 0);
    }

    /// Drops what is too much. Not while a caller relies on nodes to be there.
    #[inline]
    pub fn trim(&mut self) {
        while self.len() > self.clean_max + self.pinned {
            self.drop_one();
        }
    }

    #[cold]
    fn drop_one(&mut self) {
        loop {
            self.hand = if self.hand < self.slots.len() {
                self.hand
            } else {
                0
            };
            let slot = &mut self.slots[self.hand];
            let is_free = slot.node.is_none();
            let is_kept = core::mem::take(&mut slot.is_recent) || slot.pointer.generation > self.durable;
            if !is_free && !is_kept {
                let place = slot.pointer.place;
                self.remove(place);
                return;
            }
            self.hand += 1;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
