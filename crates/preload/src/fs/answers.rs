//! What calls come to.

use crate::state::set_errno;
use libc::c_int;
use libfs::Errno;

/// What a call has come to: an error is a number of Linux.
pub(crate) type Done<T> = Result<T, c_int>;

pub(crate) fn code(errno: Errno) -> c_int {
    errno.code()
}

/// The result for the program: what `done` says, or -1 and an error number.
pub(crate) fn answer<T: From<i8>>(done: Done<T>) -> T {
    done.unwrap_or_else(|code| {
        set_errno(code);
        T::from(-1)
    })
}
