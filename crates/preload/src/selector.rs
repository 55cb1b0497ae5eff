//! Whether the kernel hands this thread's own system calls to us (`trap`): a byte that it reads at each of them.

use std::cell::Cell;

/// `SYSCALL_DISPATCH_FILTER_ALLOW` of prctl(2): the kernel makes them.
const ALLOW: u8 = 0;
/// `SYSCALL_DISPATCH_FILTER_BLOCK`: the thread gets SIGSYS in their place.
const BLOCK: u8 = 1;

thread_local! {
    static SELECTOR: Cell<u8> = const { Cell::new(ALLOW) };
    /// What it is while the thread is not in the library.
    static OUTSIDE: Cell<u8> = const { Cell::new(ALLOW) };
}

/// The thread comes into the library.
pub(crate) fn enter() {
    SELECTOR.set(ALLOW);
}

/// The thread goes back to the program.
pub(crate) fn leave() {
    SELECTOR.set(OUTSIDE.get());
}

/// From now on the thread's calls are handed to us. Where the byte is, as long as the thread lives.
#[cfg(target_arch = "x86_64")]
pub(crate) fn begin() -> *mut u8 {
    OUTSIDE.set(BLOCK);
    SELECTOR.set(BLOCK);
    SELECTOR.with(Cell::as_ptr)
}

/// They are not any more.
#[cfg(target_arch = "x86_64")]
pub(crate) fn end() {
    OUTSIDE.set(ALLOW);
    SELECTOR.set(ALLOW);
}
