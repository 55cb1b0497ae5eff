//! The clients' requests under way in a gateway, and the flushes among them.

use base::{BlockError, BlockOp, Instant, Map, Page, Slab};
use core::ops::{Deref, DerefMut, Range};

/// One request.
#[derive(Debug)]
pub(super) struct Request {
    pub client: u32,
    pub tag: u64,
    pub volume: u32,
    pub op: BlockOp,
    pub left: u32,
    pub error: Option<BlockError>,
    pub pages: smallvec::SmallVec<[Option<Page>; 1]>,
    pub arrived: Instant,
    /// Of a mutation: the sets that have its pages.
    pub sets: Range<usize>,
    /// Of a mutation that loses its effect with the replicas' memory: the losses of these sets when it arrived. Of a flush: the
    /// mutations of the volume that were acknowledged then.
    pub before: Option<u64>,
    /// Of a flush: the losses of the volume that had shown then.
    pub shown: u64,
}

/// A set in a flush.
pub(super) struct Flushing {
    pub set: usize,
    /// Replicas that have not answered.
    pub left: u32,
    /// One has answered with an error.
    pub failed: bool,
}

/// All requests, by slot.
#[derive(Default)]
pub(super) struct Requests {
    slots: Slab<Request>,
    flushing: Map<u32, Vec<Flushing>>,
}

impl Requests {
    /// A flush is of these sets.
    pub fn flush(&mut self, slot: u32, sets: Vec<Flushing>) {
        self.flushing.insert(slot, sets);
    }

    /// A set of a flush.
    pub fn flushing(&mut self, slot: u32, set: usize) -> &mut Flushing {
        let sets = self.flushing.get_mut(&slot);
        let sets = sets.expect("a flush is pending until all is done");
        let entry = sets.iter_mut().find(|entry| entry.set == set);
        entry.expect("the set is being flushed")
    }

    /// A part of a request ended; true if it was the last one.
    pub fn end_part(&mut self, slot: u32, error: Option<BlockError>) -> bool {
        let request = &mut self.slots[slot];
        request.error = request.error.or(error);
        request.left -= 1;
        request.left == 0
    }

    /// Takes a request out.
    pub fn remove(&mut self, slot: u32) -> Request {
        self.flushing.remove(&slot);
        self.slots.remove(slot)
    }
}

impl Deref for Requests {
    type Target = Slab<Request>;

    fn deref(&self) -> &Slab<Request> {
        &self.slots
    }
}

impl DerefMut for Requests {
    fn deref_mut(&mut self) -> &mut Slab<Request> {
        &mut self.slots
    }
}
