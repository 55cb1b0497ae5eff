//! Forks of the program: a child shares descriptors and offsets with its parent, so the kernel has them before. The child begins anew.

use super::live::{NUMBERS, forget, live};
use crate::forks;
use crate::state::inside;
use std::sync::Once;

/// Registers what is below. Before a fork it runs before what `forks` has registered, and in the child after it.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        forks::watch();
        // SAFETY: the functions are there as long as the process.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(release), Some(after_fork)) };
    });
}

extern "C" fn before_fork() {
    // Nobody gets a number for something served until the child is there.
    NUMBERS.close();
    if let Some(live) = live() {
        inside(|| live.table.leave_all(|_| true));
    }
}

/// In the parent, and in the child.
extern "C" fn release() {
    NUMBERS.open();
}

/// In the child. Its copies of the socket and of the anchor are closed by `own::forked`, as all that this library keeps.
extern "C" fn after_fork() {
    forget();
    release();
}
