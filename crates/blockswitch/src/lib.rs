//! The host block switch, pure (blk-switch, OSDI'21): small latency-bound requests keep microsecond tails while bulk
//! readers and writers take the rest of the machine.
//!
//! A request's way:
//!
//! 1. Its application's [`class::Classifier`] says L or T.
//! 2. [`steer::Steering`] of the application's home core chooses the core that will do the work.
//! 3. [`load::Loads::charge`] counts the request there.
//! 4. That core's [`egress::Egress`] decides the time and the slices.
//! 5. [`load::Loads::release`] takes the count away when the request is done.
//!
//! [`balance::Balancer`] moves whole applications every few milliseconds. [`policy::Config`] selects among the published
//! systems and ours, on the same code.
//!
//! Each core owns its queues. Cores share [`load::Loads`] alone, which is atomics. Nothing here locks, and nothing
//! allocates after start.
#![forbid(unsafe_code)]

pub mod balance;
pub mod class;
pub mod egress;
pub mod load;
#[cfg(test)]
mod load_tests;
pub mod policy;
mod queues;
pub mod steer;

use base::sync;

pub use balance::{AppView, Balancer, CoreSet, Move};
pub use class::{Class, ClassHint, Classifier};
pub use egress::{AppId, Egress, Item, Kind, Limits, Refused, Slice};
pub use load::{Charge, Loads};
pub use policy::{Config, Policy};
pub use steer::Steering;
