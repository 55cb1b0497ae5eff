//! `switchyard run --fs`: calls on files below a mount point, served in the program by its own operation log (`libfs`).
//!
//! The mount is the truth, and the kernel's way works at any time: what is served here is only faster. Each function answers `None` if the kernel is to serve
//! the call.
//!
//! | module | what |
//! | --- | --- |
//! | `live` | the process's session, and when it has one |
//! | `usual` | which programs are served |
//! | `table` | served descriptors, and how the kernel gets one |
//! | `served` | calls by such a descriptor |
//! | `forked`, `children` | forks of the program, and children that nothing tells of |
//! | `place` | which paths lead below the mount point |
//! | `open`, `data` | files: opening, reading, writing, syncing |
//! | `look`, `change` | calls by path |
//! | `attributes` | extended attributes |
//! | `listing` | streams of directories |
//! | `numbers` | descriptors that come and go, and locks |
//! | `leave` | what the kernel must have the files for: processes, mappings, polls |
//! | `exported` | functions of the C library that nothing else here stands in for |
//!
//! A served descriptor is a *placeholder*: a number of the kernel's that refers to the mount point, by which nothing can be read. Before anything is done with
//! it that is not served, it becomes *real*: the number gets an opening of the mount, at the same offset (`table`). The numbers 0 to 2 are always
//! real, as streams use them unseen.

mod answers;
pub(crate) mod attributes;
pub(crate) mod change;
pub(crate) mod children;
pub(crate) mod data;
mod exported;
mod forked;
pub(crate) mod leave;
mod listing;
mod live;
pub(crate) mod look;
pub(crate) mod numbers;
pub(crate) mod open;
mod place;
mod real_inode;
mod served;
mod table;
mod usual;

pub(crate) use leave::{before_exec, end, leave};
pub(crate) use live::{has_session, is_on, is_run};
