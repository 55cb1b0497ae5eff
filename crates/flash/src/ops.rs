//! The operations in flight: a slab whose index is the id of the medium's and the timing model's operation.

use crate::mapping::NONE;
use base::{Page, Version};

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// Not in use.
    Free,
    /// A user's read.
    Read,
    /// A user's write.
    Write,
    /// Collection reads a live page; then the same operation becomes `MoveWrite`.
    MoveRead,
    /// Collection programs it elsewhere.
    MoveWrite,
    /// A page of trim records.
    Record,
    /// Collection programs a page of trim records elsewhere.
    MoveRecord,
    /// A page of out-of-band entries; `lpn` is the buffer.
    Oob,
    /// A page of a checkpoint.
    Piece,
    /// A checkpoint's header.
    Header,
    /// A media flush.
    Flush,
    /// The timing model's erase.
    Erase,
}

/// One operation. It ends when neither the medium nor the timing model is still at it.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    pub(crate) tag: u64,
    pub(crate) lpn: u32,
    pub(crate) ppn: u32,
    pub(crate) version: Version,
    pub(crate) crc: u32,
    pub(crate) sequence: u64,
    pub(crate) page: Option<Page>,
    /// The medium is at it.
    pub(crate) media: bool,
    /// The timing model is at it.
    pub(crate) model: bool,
    /// The medium refused.
    pub(crate) failed: bool,
}

impl Op {
    pub(crate) fn new(kind: OpKind) -> Self {
        Self {
            kind,
            tag: 0,
            lpn: NONE,
            ppn: NONE,
            version: Version::NONE,
            crc: 0,
            sequence: 0,
            page: None,
            media: false,
            model: false,
            failed: false,
        }
    }
}

/// The slab.
#[derive(Debug)]
pub(crate) struct Ops {
    slots: Vec<Op>,
    free: Vec<u32>,
}

impl Ops {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            slots: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
        }
    }

    pub(crate) fn add(&mut self, op: Op) -> u32 {
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = op;
            return id;
        }
        self.slots.push(op);
        self.slots.len() as u32 - 1
    }

    pub(crate) fn remove(&mut self, id: u32) -> Op {
        let op = core::mem::replace(&mut self.slots[id as usize], Op::new(OpKind::Free));
        assert_ne!(op.kind, OpKind::Free, "an operation ends once");
        self.free.push(id);
        op
    }

    pub(crate) fn get(&self, id: u32) -> &Op {
        &self.slots[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Op {
        &mut self.slots[id as usize]
    }
}
