//! The library's own memory, whose tests are beside it: the library replaces the C library's functions in whatever links it.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

#[path = "../src/memory.rs"]
#[allow(dead_code, reason = "the checks need a part")]
mod memory;
