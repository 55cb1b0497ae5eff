//! Lines to the user, on standard error. `eprintln!` has a lock, which a forked child may find held.

use crate::real;

/// Tells the user a line.
macro_rules! tell {
    ($($part:tt)*) => {
        $crate::tell::line(format!($($part)*))
    };
}
pub(crate) use tell;

pub(crate) fn line(mut line: String) {
    line.push('\n');
    // SAFETY: the bytes are there during the call. If nobody can be told, nothing is to be done.
    unsafe { real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
