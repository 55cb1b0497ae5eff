//! Calls by a descriptor.

use super::answers::{Done, code};
use super::live::{Live, live};
use super::table::{Opened, is_known};
use crate::state::set_errno;
use libc::c_int;
use libfs::{Errno, File};
use std::io;

/// Makes calls of the session's. What the program has as its last error stays, if there is none.
pub(crate) fn keeping_errno<R>(live: &Live, make: impl FnOnce() -> R) -> R {
    let before = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let done = live.inside(make);
    set_errno(before);
    done
}

/// Makes a call by a descriptor that is served; None if the kernel is to make it.
pub(crate) fn by<R>(fd: c_int, make: impl FnOnce(&Live, &Opened, &File) -> Done<R>) -> Option<Done<R>> {
    if !is_known(fd) {
        return None;
    }
    let live = live()?;
    keeping_errno(live, || {
        let opened = live.table.get(fd)?;
        let done = opened.served(|file| make(live, &opened, file))?;
        match done {
            // The mount has the file: many want it, or the session is lost.
            Err(libc::EXDEV) => match opened.leave(&live.table) {
                Ok(()) => None,
                Err(_) => {
                    live.is_lost();
                    Some(Err(libc::EIO))
                }
            },
            done => {
                // What the log may have of the call is not made again: the program hears of it.
                if matches!(done, Err(libc::EIO)) {
                    live.is_lost();
                }
                Some(done)
            }
        }
    })
}

/// [`by`] for calls of the library.
pub(crate) fn call<R>(fd: c_int, make: impl FnOnce(&Opened, &File) -> Result<R, Errno>) -> Option<Done<R>> {
    by(fd, |_, opened, file| make(opened, file).map_err(code))
}
