//! The vocabulary every other crate speaks: time, ids, units and limits, a seeded generator, pages of payload,
//! the block and media requests, and the [`Machine`] contract.
//!
//! Nothing here reads a clock, calls the operating system or depends on a process's hash seed.
#![forbid(unsafe_code)]

pub mod block;
pub mod device;
pub mod event;
pub mod extent;
pub mod fifo;
pub mod id;
pub mod limits;
pub mod machine;
pub mod map;

pub mod page;
pub mod rate;
pub mod readers;
pub mod rng;
pub mod slab;
pub mod sync;
pub mod time;

pub use block::{BadRange, BlockError, BlockOp, BlockReply, BlockRequest, SectorRange};
pub use device::{Device, MediaDone, MediaError, MediaKind, MediaOp, Queue};
pub use extent::Extent;
pub use fifo::Fifo;
pub use id::{Addr, Lpn, NodeId, Version, VolumeId, VssdId};
pub use machine::Machine;
pub use map::{ByteMap, Map};
pub use page::{Page, Pages, Pool, Reserve, Window};
pub use rate::Rate;
pub use readers::Readers;
pub use rng::Rng;
pub use slab::Slab;
pub use time::{Duration, Instant};
