//! Parts of the library that can be tested outside of a program: addresses, sockets by their numbers, and sets of epoll(7).

#![allow(missing_docs, dead_code, clippy::disallowed_types, clippy::disallowed_methods)]

#[path = "../src/net/address.rs"]
mod address;
#[path = "../src/net/file.rs"]
mod file;
#[path = "../src/net/files.rs"]
mod files;
#[path = "../src/net/set.rs"]
mod set;

mod known {
    /// As in `net/known.rs`.
    pub(crate) const FILES_END: u32 = u32::MAX;
}
