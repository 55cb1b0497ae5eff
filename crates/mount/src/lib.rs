//! The file system of the crate `fs` on real media, and its mount.
//!
//! [`engine`] drives one client's log, its digest and its reads, whoever the client is: it has the media, the threads and the waits, and
//! knows nothing of FUSE. [`posix`] is the mount: it turns requests of the kernel into calls of the engine.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a driver has a clock, threads and waits"
)]

#[cfg(test)]
mod cut_tests;
pub mod engine;
pub mod media;
pub mod posix;
pub mod serve;
#[cfg(test)]
mod tier_tests;
pub mod window;
