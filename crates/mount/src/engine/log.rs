//! The log of another process, as the digest has it.

use super::reserve::Reserved;
use crate::window::Window;
use fs::grants::Grants;
use fs::log::Ring;
use fs::value::{Part, Run};
use std::ops::Range;

/// The log of a process.
pub(crate) struct Log {
    pub window: Window,
    pub ring: Ring,
    pub nonce: u64,
    pub grants: Grants,
    /// The tree has positions below.
    pub digested: u64,
    /// What each of the two roots has, the older one first.
    pub roots: [u64; 2],
    /// Its place on device 0, which is not written.
    pub extents: Vec<Run>,
    pub numbers: Range<u64>,
    /// Room that nobody else takes.
    pub reserved: Reserved,
    /// The same, as the tree has it for the next opening.
    pub noted: Part,
    /// The part of the room that its process is told.
    pub part: Part,
    /// Operations that were refused, and not told yet.
    pub refused: u64,
}

impl Log {
    pub fn ring_bytes(&self) -> u64 {
        self.ring.bytes()
    }
}
