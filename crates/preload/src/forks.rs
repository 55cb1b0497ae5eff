//! Forks of the program. A forked child has one thread. Locks that the other threads held stay held in the child. So the child gets
//! our locks anew, and no fork comes while the area is being opened.

use crate::memory;
use crate::state::{IS_PASSIVE, JOURNAL};
use area::{files, own};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

thread_local! {
    /// Locks that this thread holds over a fork. Handlers of the program's, which run meanwhile, and of its signals do not wait for them.
    static HOLDS: Cell<u32> = const { Cell::new(0) };
}

/// A lock that a fork holds.
pub(crate) struct Gate {
    lock: Mutex<()>,
    /// The guard of the forking thread.
    held: UnsafeCell<Option<MutexGuard<'static, ()>>>,
}

// SAFETY: only the thread that holds the lock touches `held`.
unsafe impl Sync for Gate {}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self {
            lock: Mutex::new(()),
            held: UnsafeCell::new(None),
        }
    }

    /// Runs `f` while nobody forks.
    pub(crate) fn without<R>(&self, f: impl FnOnce() -> R) -> R {
        if HOLDS.get() > 0 {
            return f();
        }
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        f()
    }

    /// Before a fork.
    pub(crate) fn close(&'static self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this thread has the lock.
        unsafe { *self.held.get() = Some(guard) };
        HOLDS.set(HOLDS.get() + 1);
    }

    /// After it, in the parent, and in the child.
    pub(crate) fn open(&'static self) {
        HOLDS.set(HOLDS.get() - 1);
        // SAFETY: this thread has the lock, or is the copy of the one that has.
        drop(unsafe { (*self.held.get()).take() });
    }
}

/// Held while the area is opened for the first time, and over a fork.
static OPENING: Gate = Gate::new();

/// Runs `f` while nobody forks.
pub(crate) fn without<R>(f: impl FnOnce() -> R) -> R {
    OPENING.without(f)
}

/// Registers what is below. The program's own handlers, which come later, run before ours before a fork, and after ours in the child.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions are there as long as the process.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(release), Some(after_fork)) };
    });
}

extern "C" fn before_fork() {
    OPENING.close();
}

/// In the parent, and in the child.
extern "C" fn release() {
    OPENING.open();
}

/// In the child.
extern "C" fn after_fork() {
    memory::forked();
    // SAFETY: this is the only thread, which was forking, and holds none of these locks.
    unsafe {
        own::forked();
        files::forked();
    }
    if let Some(Some(journal)) = JOURNAL.get() {
        IS_PASSIVE.store(true, Ordering::Relaxed);
        if let Some(area) = journal.descriptor() {
            // SAFETY: the child's copy, which nothing uses.
            unsafe { libc::syscall(libc::SYS_close, area) };
        }
    }
    release();
}
