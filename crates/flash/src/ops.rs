//! The operations in flight. The key of an operation in the slab is its id at the medium and at the timing model.

use crate::mapping::NONE;
use base::{Page, Version};

/// Purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
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
