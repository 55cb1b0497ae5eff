//! Nodes in memory, by place. Those that no durable root has are pinned; of the others the least recently used ones go (CLOCK).

use crate::format::{Place, Pointer};
use crate::node::Node;
use base::Map;
use std::sync::Arc;

#[derive(Debug)]
struct Slot {
    pointer: Pointer,
    node: Arc<Node>,
    is_recent: bool,
}

/// Nodes in memory.
#[derive(Debug)]
pub struct Cache {
    slots: Vec<Slot>,
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

    /// A node that was found.
    #[inline]
    pub fn at(&self, at: usize) -> &Arc<Node> {
        &self.slots[at].node
    }

    /// A node that the caller knows to be there.
    pub fn node(&self, place: Place) -> &Node {
        &self.slots[self.slot_of(place)].node
    }

    /// A node that the caller knows to be there, to change it.
    pub fn node_mut(&mut self, place: Place) -> &mut Node {
        let at = self.slot_of(place);
        Arc::make_mut(&mut self.slots[at].node)
    }

    /// A node that the caller knows to be there, to write it.
    pub fn share(&self, place: Place) -> Arc<Node> {
        Arc::clone(&self.slots[self.slot_of(place)].node)
    }

    fn slot_of(&self, place: Place) -> usize {
        *self.index.get(&place).expect("the caller has put it there") as usize
    }

    /// True if there is a node of this place and root.
    pub fn has(&self, pointer: Pointer) -> bool {
        let at = self.index.get(&pointer.place);
        at.is_some_and(|&at| self.slots[at as usize].pointer == pointer)
    }

    /// The generation of the node of a place.
    pub fn newest_at(&self, place: Place) -> Option<u64> {
        let at = self.index.get(&place)?;
        Some(self.slots[*at as usize].pointer.generation)
    }

    /// Adds a node, in place of what was there. The slot that it has.
    pub fn insert(&mut self, pointer: Pointer, node: Arc<Node>) -> usize {
        self.remove(pointer.place);
        let at = self.slots.len();
        self.index.insert(pointer.place, at as u32);
        let is_recent = true;
        self.slots.push(Slot {
            pointer,
            node,
            is_recent,
        });
        self.count(pointer.generation, true);
        at
    }

    /// Takes a node out, if it is there.
    pub fn remove(&mut self, place: Place) -> Option<Arc<Node>> {
        let at = self.index.remove(&place)? as usize;
        let slot = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.pointer.place, at as u32);
        }
        self.count(slot.pointer.generation, false);
        Some(slot.node)
    }

    /// Gives a node that is there a new place.
    pub fn relocate(&mut self, place: Place, to: Pointer) {
        self.remove(to.place);
        let at = self.index.remove(&place).expect("the caller has put it there");
        self.index.insert(to.place, at);
        let from = core::mem::replace(&mut self.slots[at as usize].pointer, to);
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
        while self.slots.len() > self.clean_max + self.pinned {
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
            let is_kept = core::mem::take(&mut slot.is_recent) || slot.pointer.generation > self.durable;
            if !is_kept {
                let place = slot.pointer.place;
                self.remove(place);
                return;
            }
            self.hand += 1;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}
