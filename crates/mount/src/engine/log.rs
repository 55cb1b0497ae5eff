//! The log of another process, as the digest has it.

use crate::window::Window;
use fs::grants::Grants;
use fs::log::Ring;
use fs::value::Run;
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
    /// Blocks that its operations may take before the next commit: of device 0, and of all others.
    pub allowance: (u64, u64),
    /// The same, as it was told with the last commit.
    pub told: (u64, u64),
    /// Operations that were refused, and not told yet.
    pub refused: u64,
}

impl Log {
    pub fn ring_bytes(&self) -> u64 {
        self.ring.bytes()
    }
}
