//! Model checks of what the cores of a process share: `shuttle` runs the sources as they ship under many schedules, and stops
//! where every thread sleeps. docs/concurrency.md lists what is checked where.
//!
//! Each module below has the shipped files that it checks, and mistaken ones in their place. All of them take locks, atomics,
//! channels, wakes and the time from `super::sync`, and here that is `crates/os/tests/model/sync.rs`. Every promise has a
//! mistake that breaks it, and a test that the checker finds the mistake.

#![allow(
    clippy::duplicate_mod,
    reason = "each module has the shipped files that it does not replace"
)]

#[path = "../../../os/tests/model/check.rs"]
mod check;
mod commands;
mod fences;
mod figures;
mod moves;
#[path = "../../../os/tests/model/sync.rs"]
mod sync;

/// The shipped file expects the crate's name for time.
mod time {
    pub(crate) use base::Instant;
}
