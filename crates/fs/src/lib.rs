//! A file system over memory, flash and disks, after Strata (SOSP'17): each process has an operation log, calls are durable when they
//! return, and a digest brings them into a tree.
//!
//! A call is an [`op::Op`]; its record goes to a [`log`]. The [`digest`] applies what [`coalesce`] keeps of records to the [`tree`], as far as
//! [`grants`] let it. A process reads through its [`overlay`]. A [`client`] does calls of POSIX by all of these. [`check`] looks at what is on the media.
//! [`files`] is the model of all that. Processes share files by [`lease`]s. [`tier`] says which data belong on which device, and [`migrate`] moves them.
//!
//! The page `docs/format/fs.md` has the format, and says why it is safe. This crate decides and does no I/O but by [`base::Device`].
#![forbid(unsafe_code)]

pub mod below;
mod bits;
mod cache;
pub mod census;
pub mod check;
pub mod client;
pub mod coalesce;
pub mod commit;
pub mod content;
pub mod digest;
pub mod edit;
pub mod errno;
mod extents;
pub mod files;
pub mod format;
pub mod grants;
pub mod inode;
pub mod known;
pub mod lease;
pub mod log;
pub mod make;
pub mod media;
pub mod migrate;
pub mod names;
pub mod node;
pub mod op;
pub mod overlay;
mod patch;
pub mod pieces;
pub mod protocol;
mod ranges;
mod record;
pub mod space;
mod spans;
pub mod tier;
pub mod tree;
pub mod value;
pub mod walks;
mod work;
