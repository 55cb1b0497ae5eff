//! Application storage: logs, queues, maps and trees of one program in a storage area of its own, durable when the call
//! returns (Arrakis, OSDI'14; TenaciousD).
//!
//! All structures of an area share one log on its medium. An index in memory has the places of their entries. The page
//! `docs/format/store.md` has the format, and says why it is safe. This crate decides and does no I/O:
//!
//! ```text
//!  submit ─► draft ─► next_write ─► [medium] ─► written ─► durable, applied to the index
//!                                                  find, fetch ─► [medium] ─► Fetch::extract
//!              clean_step ─► [medium] ─► clean_read ─► live entries are submitted again
//! ```
//!
//! [`Engine`] is stepped by whoever owns the medium: threads and system calls (the crate `area`), or the simulator. It has no
//! clock, so it is no [`base::Machine`]: nothing happens in it but by a submission or a completion.
//!
//! Which program has which area of a medium is another matter, and the table of [`catalog`].
//!
//! # Invariants
//! - Records are acknowledged in order; one write that fails latches the engine, and nothing after it is acknowledged.
//! - A replay of the log from its tail to its end gives the state of all structures.
//! - Nothing is allocated for payload but a bounded number of buffers; the index grows with keys and positions, up to
//!   [`Options::index_bytes_max`].
#![forbid(unsafe_code)]

mod admit;
mod buffer;
pub mod catalog;
mod checkpoint;
mod clean;
mod damage;
mod draft;
mod engine;
mod entry;
mod expect;
mod fetch;
pub mod files;
mod follow;
mod format;
mod grow;
mod index;
mod layers;
mod layout;
mod limits;
mod log;
mod memory;
mod older;
mod paged;
mod past;
mod range;
mod recover;
mod repair;
mod replay;
mod salvage;
mod scan;
mod sector;
mod snapshot;
mod space;
mod spill;
mod suspects;
mod table;
mod verify;
mod version;

pub use damage::FetchError;
pub use engine::{Engine, Trash};
pub use entry::{Durability, KEY_BYTES_MAX, Kind, NAME_BYTES_MAX, Op, OwnedOp, StructureId};
pub use expect::{Conditional, Expected, Known};
pub use fetch::{Fetch, Found};
pub use follow::{FollowError, FollowStats, Followed, Follower, Later, Moment, while_written};
pub use format::create;
pub use grow::grow;
pub use layout::{Layout, LayoutError, SUPERBLOCK_BYTES};
pub use limits::Options;
pub use log::{CleanStep, Receipt, Stats, SubmitError, Ticket, TicketState, Write};
pub use older::Older;
pub use paged::PageView;
pub use range::{OwnedEntry, OwnedValue, RangeEnd, RangePart, RangeValue};
pub use recover::{OpenError, RecoveryReport};
pub use repair::RepairError;
pub use salvage::{EntryKey, LostPages, Salvage, SalvageReport, SalvagedStructure, salvage};
pub use snapshot::{SnapshotEnded, SnapshotId};
pub use table::Way;
pub use table::job::{Job, JobError, Left};
pub use table::reader::{PageAt, Pages, Piece, ReadError, Uncached};
pub use table::scan::{Scan, Search};
pub use verify::{DumpEntry, Examination, VerifyReport, dump, examine, verify};
pub use version::Version;
