//! Checkers outside the code under test: they see what clients and the wire see, and the faults, nothing else.

pub mod gc;
pub mod memory;
pub mod register;
pub mod told;

pub use gc::GcChecker;
pub use register::{Checker, Loss, Stamp};
pub use told::ToldChecker;

use base::{BlockError, VolumeId, VssdId};
use thiserror::Error;

/// A promise of the rack that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// A read returned what nobody wrote to this block.
    #[error("volume {} block {block}: a read returned write {id} of block {stamped}, which nobody wrote here", volume.0)]
    Invented {
        /// Where.
        volume: VolumeId,
        /// Block read.
        block: u64,
        /// Write id found.
        id: u64,
        /// Block number found.
        stamped: u64,
    },
    /// A read returned a value that was overwritten, or lost with power, before the read began.
    #[error("volume {} block {block}: the read of {start_ns}..{end_ns} ns returned write {id}, which was gone", volume.0)]
    Stale {
        /// Where.
        volume: VolumeId,
        /// Block read.
        block: u64,
        /// Write id found (0: zeros).
        id: u64,
        /// When the read began.
        start_ns: u64,
        /// When it ended.
        end_ns: u64,
    },
    /// A flush succeeded though a write that was acknowledged before it was lost and no flush had said so.
    #[error("volume {} block {block}: a flush begun at {start_ns} ns succeeded and did not tell that a write was lost", volume.0)]
    Untold {
        /// Where.
        volume: VolumeId,
        /// Block that lost a write.
        block: u64,
        /// When the flush began.
        start_ns: u64,
    },
    /// Two replicas of a set collect by soft request at once.
    #[error("vSSDs {} and {} of one replica set collect by soft request at once, at {at_ns} ns", first.0, second.0)]
    BothCollect {
        /// The one that was collecting.
        first: VssdId,
        /// The one that was allowed to join.
        second: VssdId,
        /// When.
        at_ns: u64,
    },
    /// Requests were not answered in time after the faults had stopped.
    #[error(
        "{count} requests are not answered {waited_ns} ns after the faults stopped; the oldest began at {oldest_ns} ns"
    )]
    Stuck {
        /// How many.
        count: usize,
        /// When the oldest began.
        oldest_ns: u64,
        /// How long they were given.
        waited_ns: u64,
    },
    /// A request that must succeed was refused.
    #[error(
        "client {client}'s request at {offset} of volume {} was refused with {error:?} though nothing was wrong, at {at_ns} ns",
        volume.0
    )]
    Refused {
        /// Why.
        error: BlockError,
        /// Whose request.
        client: u32,
        /// To which volume.
        volume: VolumeId,
        /// First byte of the request.
        offset: u64,
        /// When.
        at_ns: u64,
    },
    /// A host's own accounts do not add up.
    #[error("host {host}: {what}")]
    Accounts {
        /// Which host.
        host: usize,
        /// The contradiction.
        what: String,
    },
    /// Replicas at rest hold different versions of a page.
    #[error("page {page} at rest: vSSD {} holds version {first_version:x}, vSSD {} version {second_version:x}", first.0, second.0)]
    Disagree {
        /// Page within the vSSD.
        page: u32,
        /// One replica.
        first: VssdId,
        /// Its version.
        first_version: u64,
        /// Another.
        second: VssdId,
        /// Its version.
        second_version: u64,
    },
    /// Replicas at rest hold different data of one version.
    #[error("page {page} at rest: vSSDs {} and {} hold different data of one version", first.0, second.0)]
    OtherData {
        /// Page within the vSSD.
        page: u32,
        /// One replica.
        first: VssdId,
        /// Another.
        second: VssdId,
    },
    /// A host did not come up again.
    #[error("host {host} does not start: {why}")]
    Start {
        /// Which host.
        host: usize,
        /// Why.
        why: String,
    },
    /// A storage area lost or invented something.
    #[error("storage area: {0}")]
    Area(String),
    /// A file of a program lost what was synced, or has what was never written.
    #[error("files: {0}")]
    Files(String),
    /// A disk of its own broke a promise.
    #[error("disk: {0}")]
    Disk(Box<Violation>),
    /// The same seed gave another run.
    #[error("the same seed gave two runs: {first:016x} and {second:016x}")]
    Diverged {
        /// Hash of the first run.
        first: u64,
        /// Hash of the second run.
        second: u64,
    },
    /// The control plane did not keep what it had answered.
    #[error("control plane: {0}")]
    Control(String),
    /// The code under test panicked.
    #[error("panic: {0}")]
    Panicked(String),
}
