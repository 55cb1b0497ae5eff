//! Lines to the user, on standard error. `eprintln!` has a lock, which a forked child may find held.
//!
//! A line must neither change what the program does, nor what is in its files. So it goes only to the file that was standard error when
//! the program began: a program that has closed it may have the number for a file of its own. A duplicate of the library's would keep a
//! pipe open that the program has closed. A pipe without a reader costs the line, and not the program its life.

use crate::real;
use std::mem;
use std::ptr;
use std::sync::OnceLock;

/// Tells the user a line.
macro_rules! tell {
    ($($part:tt)*) => {
        $crate::tell::line(format!($($part)*))
    };
}
pub(crate) use tell;

/// Device and inode of standard error when the program began; none if it was closed, or before that.
static AT_START: OnceLock<Option<(u64, u64)>> = OnceLock::new();
/// Signals that a thread gets whose write fails.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

fn present() -> Option<(u64, u64)> {
    // SAFETY: zeros are a valid `stat`, which the call fills.
    let (result, found) = unsafe {
        let mut found: libc::stat = mem::zeroed();
        (libc::fstat(libc::STDERR_FILENO, &mut found), found)
    };
    (result == 0).then_some((found.st_dev, found.st_ino))
}

/// The program begins.
pub(crate) fn begin() {
    AT_START.get_or_init(present);
}

pub(crate) fn line(mut line: String) {
    line.push('\n');
    let is_same = || AT_START.get().is_some_and(|it| it.is_some() && *it == present());
    without_signals(|| {
        if is_same() {
            // SAFETY: the bytes are there during the call. If nobody can be told, nothing is to be done.
            unsafe { real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        }
    });
}

/// Calls `f`, and takes the signals away that its writes get.
fn without_signals(f: impl FnOnce()) {
    // SAFETY: zeros are valid sets, which the calls fill.
    unsafe {
        let (mut own, mut before, mut pending): (libc::sigset_t, _, _) =
            (mem::zeroed(), mem::zeroed(), mem::zeroed());
        libc::sigpending(&mut pending);
        libc::sigemptyset(&mut own);
        for signal in OF_WRITES {
            // One that waits already is the program's.
            if libc::sigismember(&pending, signal) == 0 {
                libc::sigaddset(&mut own, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &own, &mut before);
        f();
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        while libc::sigtimedwait(&own, ptr::null_mut(), &at_once) > 0 {}
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
    }
}
