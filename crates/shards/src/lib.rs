//! Drives the key-value store of the crate `kv`: a thread for each shard, on the kernel's sockets or on user-level TCP, with a storage
//! area of its own.
//!
//! Threads share lanes of messages, a bell each, and connections that are handed over; nothing else. This is a crate of its own,
//! and no part of the command, so that a program can have a server in its own process, and so that its tests need no rack.
#![forbid(unsafe_code)]

mod keeper;
mod kernel;
mod lane;
mod place;
mod server;
mod store;
mod transport;
mod user;
mod worker;

use os::sync;

pub use lane::{Bell, Lane};
pub use place::{AreaSizes, PlaceError, SHARDS_MAX};
pub use server::{Listen, Server, ServerOptions, StartError, Started};
pub use store::{Durability, Loaded};
pub use user::{HubOptions, UserError};
pub use worker::WorkerError;
