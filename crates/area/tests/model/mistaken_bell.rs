//! A bell that looks for sleepers before it changes its word. A thread that is about to sleep then sees neither.

use super::sync::{AtomicU64, Futex, Ordering};

pub struct Bell {
    rings: Futex,
    sleepers: AtomicU64,
}

impl Bell {
    pub const fn new() -> Self {
        Self {
            rings: Futex::new(),
            sleepers: AtomicU64::new(0),
        }
    }

    pub fn read(&self) -> u32 {
        self.rings.load()
    }

    pub fn sleep(&self, rung: u32, limit_ns: Option<u64>) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.rings.wait(rung, limit_ns);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn ring(&self, count: u32) {
        let has_sleepers = self.sleepers.load(Ordering::SeqCst) > 0;
        self.rings.change();
        if has_sleepers {
            self.rings.wake(count);
        }
    }
}
