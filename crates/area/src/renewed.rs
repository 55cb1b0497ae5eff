//! A lock that a forked child gets anew: another thread of the parent, which is not there in the child, may have held it at the fork.

use os::sync::{Mutex, MutexGuard, PoisonError};
use std::cell::UnsafeCell;
use std::ptr;

/// A static lock of a library in a program that may fork at any time.
pub(crate) struct Renewed<T>(UnsafeCell<Mutex<T>>);

// SAFETY: it is a lock, but in `renew` and `reset`, whose callers have no other thread.
unsafe impl<T: Send> Sync for Renewed<T> {}

impl<T> Renewed<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(Mutex::new(value)))
    }

    /// The lock itself.
    pub fn mutex(&self) -> &Mutex<T> {
        // SAFETY: nobody has it exclusively while there is another thread.
        unsafe { &*self.0.get() }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a forked child: nobody holds the lock, and it has this value. The value before is not dropped, as it may be half changed.
    ///
    /// # Safety
    /// The process has one thread, which does not hold the lock.
    pub unsafe fn reset(&self, value: T) {
        // SAFETY: the caller's word.
        unsafe { ptr::write(self.0.get(), Mutex::new(value)) };
    }

    /// The same with the value that is there, which no thread changes but by one store.
    ///
    /// # Safety
    /// As [`Renewed::reset`].
    pub unsafe fn renew(&self) {
        // SAFETY: the caller's word; the value goes from the old lock to the new one, and the old one is not dropped.
        unsafe {
            let value = (*self.0.get()).get_mut().unwrap_or_else(PoisonError::into_inner);
            let value = ptr::read(value);
            self.reset(value);
        }
    }
}
