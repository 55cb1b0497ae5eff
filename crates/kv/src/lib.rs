//! A key-value store that speaks RESP, as Redis does: one shard for each core, steered by key.
//!
//! This crate decides and does no I/O. It has no clock, no socket and no thread: the crate `shards` drives it.
//!
//! ```text
//!  bytes of a connection ─► Parser ─► Shard ─┬─ own key: Keyspace ─► reply
//!                                            ├─ copy of a hot key ─► reply
//!                                            └─ another's key ─► message ─► Shard ─► message ─► reply
//!  changes ─► the driver's storage area ─► Shard::committed ─► replies that needed them
//! ```
//!
//! # Invariants
//! - A key belongs to one shard, which a hash of the key tells. No other shard changes it.
//! - Replies of a connection go out in the order of its requests.
//! - A reply tells of no change that is not durable, if changes are kept.
//! - A reply to a write, or a read that tells of the write, goes out after every copy of the key is gone ([`shard`]).
#![forbid(unsafe_code)]

pub mod command;
mod execute;
mod gather;
mod hot;
mod info;
pub mod keyspace;
mod local;
mod message;
pub mod number;
pub mod parse;
mod pattern;
pub mod reply;
mod session;
pub mod shard;
mod table;

pub use info::About;
pub use keyspace::{Keyspace, KeyspaceOptions, Lasts};
pub use shard::{Received, SessionId, Shard, ShardOptions};

/// The hash of a key. The seed keeps those who choose keys from choosing shards and buckets.
pub fn hash(seed: u64, key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(seed, key)
}

/// The shard of so many that has a key with this hash.
pub fn shard_of(hash: u64, shards: usize) -> usize {
    // The table takes the lower bits.
    (((hash >> 32) * shards as u64) >> 32) as usize
}
