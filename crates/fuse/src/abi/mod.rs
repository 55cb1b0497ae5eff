//! The kernel's FUSE protocol as values: nothing here has a clock, a descriptor or a thread.
//!
//! Requests are read strictly: an argument has exactly the length that its operation has, each name ends where its NUL is,
//! and nothing follows. A request that breaks this is [`Malformed`], and never a panic. Protocol 7.36 (Linux 5.17) is the
//! least: from there on `flags2` of INIT exists, and all layouts are those of [`layout`].
//!
//! Sources: `include/uapi/linux/fuse.h`, `Documentation/filesystems/fuse-io-uring.rst`, fuse(4).

mod constants;
mod interrupts;
mod layout;
mod notification;
mod plain;
mod reply;
mod request;

pub use constants::*;
pub use interrupts::Interrupts;
pub use layout::*;
pub use notification::{NOTIFICATION_HEAD_BYTES_MAX, Notification};
pub use plain::{Field, Layout, Plain};
pub use reply::{Directory, REPLY_HEAD_BYTES_MAX, Reply, ReplyTooLong};
pub use request::{Forgets, Malformed, Operation, Request, argument_bytes, wants_reply};
pub use rustix::io::Errno;
