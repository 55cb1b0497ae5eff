//! Files in a process that has a log of its own (Strata's LibFS, §3): calls that change something write one record to a memory that the process has
//! mapped, and are durable when they return. Nobody else is asked, as long as the process holds the leases of what it uses.
//!
//! [`FileSystem::connect`] gets the log of a daemon's socket. Calls are by a directory's inode and a path from there; [`File`] is an open file. Any number
//! of threads may call. All calls answer as Linux does, with an [`Errno`].
//!
//! After `fork` the parent goes on; the child connects anew. A process that is stopped for so long that others wait for its leases loses its log: its calls fail with [`Errno::Io`] then.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a driver has a clock, threads and waits"
)]

mod calls;
mod file;
mod paths;
mod session;
mod state;

pub use calls::{Entry, Stat};
pub use file::{File, Open};
pub use fs::client::{Rename, Stamp, Statfs, Wanted, XattrMode};
pub use fs::errno::Errno;
pub use fs::format::ROOT_INODE;
pub use fs::inode::{Inode, Time};
pub use fs::op::Allocation;
pub use paths::Place;
pub use session::{ConnectError, FileSystem};
