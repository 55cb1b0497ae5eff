//! Storage areas of this process: the library `store` on files, block devices, persistent memory and memory.
//!
//! ```no_run
//! # fn main() -> Result<(), area::AreaError> {
//! use area::{Area, AreaOptions, Batch};
//!
//! let area = Area::open("app.area".as_ref(), &AreaOptions::new(256 << 20))?;
//! let (jobs, done) = (area.queue("jobs")?, area.map("done")?);
//! jobs.push(b"a job")?;                                    // durable when it returns
//! while let Some((position, job)) = jobs.pop()? {
//!     let batch = Batch::new().acknowledge(&jobs, position).put(&done, &job, b"yes");
//!     batch.commit(&area)?;                                // both or neither
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The engine in the crate `store` decides. This crate has the threads (`shared`) and the system calls (`backend`). An area
//! has one thread of its own. The thread wakes to reclaim segments, and to write records that nobody waits for.
#![warn(clippy::undocumented_unsafe_blocks)]

mod area;
mod awake;
mod backend;
mod bell;
mod beneath;
mod bindings;
mod burst;
mod cache;
pub mod catalog;
mod commit;
mod deaf;
pub mod desk;
mod error;
mod expect;
pub mod files;
mod follow;
mod fork;
mod grow;
pub mod keeper;
pub mod own;
mod peer;
mod read;
mod renewed;
pub mod runs;
mod shared;
mod slabs;
mod snapshot;
mod structures;
pub mod table;
mod view;
pub mod writers;

use os::sync;

pub use area::{Area, AreaOptions, Pending};
pub use backend::{NvmTiming, WriteCache};
pub use bindings::process_generation;
pub use cache::CacheStats;
pub use error::AreaError;
pub use expect::Versioned;
pub use follow::{FollowOptions, FollowedFile, Follower};
pub use os::{MediaOpenError, is_volatile};
pub use read::Value;
pub use snapshot::Snapshot;
pub use store::{
    Durability, Expected, FollowError, FollowStats, Kind, Layout, Moment, Op, OpenError, Receipt,
    RecoveryReport, SnapshotEnded, Stats, StructureId, SubmitError, Ticket, Version,
};
pub use structures::{Batch, Keyed, Log, Map, Queue, Tree};
