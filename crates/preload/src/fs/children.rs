//! Children that have this process's memory, or a copy of it in which nothing says so: a child of vfork, and those of system calls. They have no session. Only
//! while there may be such a child does a call ask the kernel which process it is in.

use std::cell::Cell;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

/// There may be one in any thread, from now on.
static ANYWHERE: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread has called vfork, and is its child or goes on behind it.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// This thread is about to call vfork.
pub(crate) fn before_vfork() {
    HERE.set(true);
}

/// A child is about to be made that nothing tells of.
pub(crate) fn before_unseen() {
    ANYWHERE.store(true, Ordering::Relaxed);
}

/// Whether this is the process of a number that this memory has noted.
pub(crate) fn is_process(pid: u32) -> bool {
    if !HERE.get() && !ANYWHERE.load(Ordering::Relaxed) {
        return true;
    }
    let is_same = pid == process::id();
    if is_same {
        // The child has ended, or has another program.
        HERE.set(false);
    }
    is_same
}
