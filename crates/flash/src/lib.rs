//! The software-defined SSD: geometry, NAND timing, flash translation, garbage collection, wear, recovery.
//!
//! [`Ssd`] is the cold path: the superblock with its table of vSSDs. [`Vssd`] is the run-time machine of one vSSD. It
//! asks for media operations, and completes a request when both the medium and the timing model are done.
//! The bytes are specified in `docs/format/flash.md`.
#![forbid(unsafe_code)]

mod api;
mod blocks;
mod bulk;
mod bus;
mod check;
mod checkpoint;
mod entries;
mod flush;
mod gc;
mod geometry;
mod group;
mod layout;
mod mapping;
mod nand;
mod oob;
mod ops;
mod pages;
mod rebuild;
mod recover;
mod sequence;
mod ssd;
mod superblock;
mod timing;
mod trim;
mod verify;
mod vssd;

pub use api::{Data, Event, GcMode, RecoverError, RecoveryReport, Request, VssdConfig, VssdError, VssdStats};
pub use blocks::Loan;
pub use geometry::{Geometry, GeometryError, Isolation};
pub use group::ChannelGroup;
pub use rebuild::Members;
pub use ssd::{CreateError, OpenError, SLOTS, Ssd};
pub use superblock::VssdEntry;
pub use timing::{Timing, TimingError};
pub use verify::{Problem, Progress, VerifyReport, Where, verify};
pub use vssd::Vssd;
