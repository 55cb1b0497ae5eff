//! Locks, atomics, channels, futexes and wakes of the threads of a process, and the time. The model checks put the
//! checker's own in the place of this file, so that the checked sources are those that ship (docs/concurrency.md).

pub use crate::clock::now;
pub use base::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, mpsc,
};
pub use std::thread;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::{io, ptr};

/// A word on which threads of this process sleep (futex(2)).
#[derive(Debug, Default)]
pub struct Futex(AtomicU32);

impl Futex {
    /// A word that nobody sleeps on.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The word, for [`Futex::wait`].
    pub fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Makes the word another one, before everything that comes after.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Sleeps until it is woken, unless the word is not `value`; at most `limit_ns`. May return for no reason.
    pub fn wait(&self, value: u32, limit_ns: Option<u64>) {
        let limit = limit_ns.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        self.call(libc::FUTEX_WAIT, value, limit);
    }

    /// Wakes `count` of the threads that sleep.
    pub fn wake(&self, count: u32) {
        self.call(libc::FUTEX_WAKE, count, ptr::null());
    }

    fn call(&self, operation: libc::c_int, value: u32, limit: *const libc::timespec) {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the limit, if any, live through the call. Whatever it returns, the caller looks again.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, limit) };
    }
}

/// A word in memory of several processes, on which their threads sleep. Zeros are such a word.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SharedFutex(AtomicU32);

impl SharedFutex {
    /// The word, after everything that came before it was set.
    pub fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets the word, and wakes all who sleep on it.
    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::SeqCst);
        self.wake();
    }

    /// Sets the word if it is `from`, and wakes all; true if it was.
    pub fn replace(&self, from: u32, to: u32) -> bool {
        let result = self
            .0
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        if result.is_ok() {
            self.wake();
        }
        result.is_ok()
    }

    /// Makes the word another one, and wakes all.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Sleeps until it is woken, unless the word is not `value`; at most `limit_ns`. May return for no reason.
    pub fn wait(&self, value: u32, limit_ns: u64) {
        let limit = libc::timespec {
            tv_sec: (limit_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (limit_ns % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: the word and the limit live through the call. Whatever it returns, the caller looks again.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAIT,
                value,
                &raw const limit,
            )
        };
    }

    fn wake(&self) {
        // SAFETY: the word lives through the call.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// Wakes one thread that waits for many sources: an eventfd among them, which can be read after a wake.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// A wake that nobody has given.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The same with another descriptor of the wake, which `keep` makes.
    ///
    /// # Errors
    /// When `keep` fails.
    pub fn kept(self, keep: impl FnOnce(&OwnedFd) -> io::Result<OwnedFd>) -> io::Result<Self> {
        keep(&self.0).map(Self)
    }

    /// The descriptor that can be read after a wake.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Wakes the thread. A counter that is full (2^64 - 2 wakes unread) wakes the thread as well, so errors do not matter.
    ///
    /// The kernel's lock of the eventfd orders all that came before a wake before the thread's return from its wait.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `one` is valid for reads of 8 bytes.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes note of all wakes so far. The thread looks for what they were about afterwards, never before: a wake in
    /// between would be lost.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: `count` is valid for writes of 8 bytes. An empty counter (EAGAIN) is as good.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
