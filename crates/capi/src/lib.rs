//! Storage areas for C: `include/switchyard_store.h` describes every call. The package `python/switchyard_store` wraps them.
//!
//! - A handle is no address but a number ([`handles`]): a handle that is closed, of another kind, or of the parent of a forked
//!   child is an error. Data, names and places are addresses, checked for null. The caller vouches for the rest.
//! - Structs that may grow begin with their size ([`arguments`]).
//! - No panic leaves a call: a panic is a bug, and the process ends (`extern "C"` aborts).
#![warn(clippy::undocumented_unsafe_blocks)]
// Each function's contract is in the header, and the same for all: pointers are null or valid, lengths are theirs.
#![allow(clippy::missing_safety_doc, missing_docs)]

mod area;
mod arguments;
mod batch;
mod board;
mod completions;
mod cursor;
mod follower;
mod handles;
mod keyed;
mod listing;
mod log;
mod queue;
mod result;
mod snapshot;

use os::sync;
