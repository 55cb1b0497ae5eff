//! Forks of the program. A forked child has one thread. Locks that the other threads held stay held in the child. So the child gets
//! our locks anew, and no fork comes while the area is being opened.

use crate::memory;
use crate::state::{IS_PASSIVE, JOURNAL};
use area::{files, own};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Held while the area is opened for the first time, and over a fork.
static OPENING: Mutex<()> = Mutex::new(());

struct Held(UnsafeCell<Option<MutexGuard<'static, ()>>>);

// SAFETY: only the thread that holds `OPENING` touches what is in it.
unsafe impl Sync for Held {}

/// The guard of the forking thread.
static HELD: Held = Held(UnsafeCell::new(None));

/// Runs `f` while nobody forks.
pub(crate) fn without<R>(f: impl FnOnce() -> R) -> R {
    let _guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    f()
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
    let guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: this thread has the lock.
    unsafe { *HELD.0.get() = Some(guard) };
}

/// In the parent, and in the child.
extern "C" fn release() {
    // SAFETY: this thread has the lock, or is the copy of the one that has.
    drop(unsafe { (*HELD.0.get()).take() });
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
