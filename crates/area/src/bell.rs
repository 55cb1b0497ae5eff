//! What threads sleep on: one word for all that wait for the same record, so that one system call wakes them.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rung when something happened. Who means to sleep reads it first, then looks, then sleeps: a ring in between is not
/// missed.
#[derive(Debug)]
pub(super) struct Bell {
    word: AtomicU32,
    /// Threads that sleep, or are about to: without one a ring is no system call.
    sleepers: AtomicU32,
}

impl Bell {
    pub(super) const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
        }
    }

    /// How often it was rung, to be handed to [`Bell::sleep`].
    pub(super) fn read(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Sleeps until it is rung, unless it was since `read` gave `rung`; at most `timeout_ns`. May return for no reason.
    pub(super) fn sleep(&self, rung: u32, timeout_ns: Option<u64>) {
        let timeout = timeout_ns.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // Counted before the kernel looks at the word, as who rings changes that before looking at the count: one of them sees
        // the other.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.futex(libc::FUTEX_WAIT, rung, timeout);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes `count` of the threads that sleep; those about to sleep do not.
    pub(super) fn ring(&self, count: u32) {
        self.word.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.futex(libc::FUTEX_WAKE, count, ptr::null());
        }
    }

    fn futex(&self, operation: libc::c_int, value: u32, timeout: *const libc::timespec) {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the timeout, if any, live through the call. Whatever it returns, the caller looks again.
        unsafe { libc::syscall(libc::SYS_futex, self.word.as_ptr(), operation, value, timeout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_sleep_is_not_missed_and_a_timeout_ends_it() {
        let bell = Bell::new();
        let rung = bell.read();
        bell.ring(u32::MAX >> 1);
        bell.sleep(rung, None);
        bell.sleep(bell.read(), Some(1000));
        assert_eq!(bell.read(), rung.wrapping_add(1));
    }
}
