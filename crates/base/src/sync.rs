//! Atomics that threads share. The model checks put the checker's own in their place (docs/concurrency.md); `os::sync` adds locks.

pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
