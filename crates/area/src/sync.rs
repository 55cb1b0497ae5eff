//! Every lock, atomic and futex of this crate, and the time. The model checks (`tests/model`) put the checker's own in the
//! place of this file, so that the sources they check are the sources that ship.

pub(crate) use os::now;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};

use std::ptr;

/// A word on which threads of this process sleep (futex(2)).
#[derive(Debug)]
pub(crate) struct Futex(AtomicU32);

impl Futex {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Makes the word another one, before everything that comes after.
    pub(crate) fn change(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Sleeps until it is woken, unless the word is not `value`; at most `limit_ns`. May return for no reason.
    pub(crate) fn wait(&self, value: u32, limit_ns: Option<u64>) {
        let limit = limit_ns.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        self.call(libc::FUTEX_WAIT, value, limit);
    }

    /// Wakes `count` of the threads that sleep.
    pub(crate) fn wake(&self, count: u32) {
        self.call(libc::FUTEX_WAKE, count, ptr::null());
    }

    fn call(&self, operation: libc::c_int, value: u32, limit: *const libc::timespec) {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the limit, if any, live through the call. Whatever it returns, the caller looks again.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, limit) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_futex_that_has_changed_is_not_slept_on_and_a_limit_ends_a_sleep() {
        let futex = Futex::new();
        let before = futex.load();
        futex.change();
        futex.wait(before, None);
        futex.wait(futex.load(), Some(1000));
        assert_ne!(futex.load(), before);
    }
}
