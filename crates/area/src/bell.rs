//! A word on which threads sleep that wait for the same record, so that one system call wakes all of them.

use super::sync::{AtomicU64, Futex, Ordering};

/// Rung when something happened. A thread that means to sleep reads the bell first, then looks, then sleeps: a ring in
/// between keeps it from sleeping.
#[derive(Debug)]
pub(super) struct Bell {
    rings: Futex,
    /// Threads that sleep, or are about to: without one a ring is no system call.
    sleepers: AtomicU64,
}

impl Bell {
    pub(super) const fn new() -> Self {
        Self {
            rings: Futex::new(),
            sleepers: AtomicU64::new(0),
        }
    }

    /// How often it was rung, to be handed to [`Bell::sleep`].
    pub(super) fn read(&self) -> u32 {
        self.rings.load()
    }

    /// Sleeps until it is rung, unless it was since `read` gave `rung`; at most `limit_ns`. May return for no reason.
    pub(super) fn sleep(&self, rung: u32, limit_ns: Option<u64>) {
        // Counted before the kernel compares the word. A ring changes the word before it looks at the count. So the sleeper
        // sees the ring, or the ring sees the sleeper.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.rings.wait(rung, limit_ns);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes `count` of the threads that sleep; those about to sleep do not.
    pub(super) fn ring(&self, count: u32) {
        self.rings.change();
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.rings.wake(count);
        }
    }
}
