//! The engine on real media, and processes beside it.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests of a driver have threads and a clock"
)]

mod engine;
mod room;
mod sessions;
