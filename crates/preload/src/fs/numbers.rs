//! Descriptors that come and go, and locks, which the kernel keeps.

use super::answers::{Done, answer};
use super::leave::leave;
use super::live::{NUMBERS, live};
use super::served::{by, call};
use super::table::{forget_foreign, forget_foreign_range, has_any, is_known};
use crate::real;
use crate::state::inside;
use libc::{c_int, c_uint, c_ulong};

/// Flags that `F_SETFL` changes.
const CHANGEABLE: c_int =
    libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME | libc::O_NONBLOCK;

/// The program is about to close a descriptor.
pub(crate) fn closing(fd: c_int) {
    forget_foreign(fd);
    if is_known(fd)
        && let Some(live) = live()
    {
        live.inside(|| live.table.close(fd));
    }
}

/// The program is about to close all from `first` to `last`.
pub(crate) fn closing_range(first: c_uint, last: c_uint) {
    forget_foreign_range(first, last);
    let Some(live) = live().filter(|_| has_any()) else {
        return;
    };
    inside(|| {
        for (fd, _) in live.table.all() {
            if (first..=last).contains(&(fd as c_uint)) {
                live.table.close(fd);
            }
        }
    });
}

/// One more number for a served descriptor, which `make` makes. None if it is not served.
pub(crate) fn dup(fd: c_int, make: impl FnOnce() -> c_int) -> Option<c_int> {
    if !is_known(fd) {
        return None;
    }
    let live = live()?;
    inside(|| {
        let opened = live.table.get(fd)?;
        Some(answer(live.table.adopt(&NUMBERS, &opened, make)))
    })
}

/// True if `dup2` has to do with a served descriptor. Its number will be another one's.
pub(crate) fn is_concerned(fd: c_int, to: c_int) -> bool {
    forget_foreign(to);
    (is_known(fd) || is_known(to)) && live().is_some()
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    unsafe { real::fcntl(fd, libc::F_GETFD, 0) >= 0 }
}

/// `dup2` and `dup3`, where one of both is served.
pub(crate) fn dup_onto(fd: c_int, to: c_int, make: impl FnOnce() -> c_int) -> c_int {
    let Some(live) = live().filter(|_| is_open(fd)) else {
        return make();
    };
    inside(|| {
        let opened = live.table.get(fd);
        // What the number is now may be a stream's, which reads and writes unseen.
        let is_streams = !is_known(to) && is_open(to);
        if let Some(opened) = opened.as_ref().filter(|_| is_streams)
            && let Err(error) = opened.leave(&live.table)
        {
            return answer(Err(error.raw_os_error().unwrap_or(libc::EIO)));
        }
        live.table.close(to);
        match opened {
            Some(opened) => answer(live.table.adopt(&NUMBERS, &opened, make)),
            None => make(),
        }
    })
}

/// The kernel has the file from now on, and makes the call.
fn left(fd: c_int) -> Option<c_int> {
    leave(fd).err().map(|_| answer(Err(libc::EIO)))
}

pub(crate) fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> Option<c_int> {
    if !is_known(fd) {
        return None;
    }
    match command {
        // SAFETY: no memory is involved.
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => dup(fd, || unsafe { real::fcntl(fd, command, argument) }),
        libc::F_GETFD | libc::F_SETFD => None,
        libc::F_GETFL => call(fd, |opened, _| Ok(opened.shown_flags())).map(answer),
        libc::F_SETFL => {
            let has = call(fd, |opened, _| Ok(opened.shown_flags()))?;
            match has {
                Ok(has) if (has ^ argument as c_int) & CHANGEABLE == 0 => Some(0),
                _ => left(fd),
            }
        }
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            let lock = argument as *const libc::flock;
            // SAFETY: the program's lock.
            let is_absolute =
                !lock.is_null() && unsafe { (*lock).l_whence } == libc::SEEK_SET as libc::c_short;
            if !is_absolute {
                return left(fd);
            }
            let number = beside(fd)?;
            if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
                note_locks(fd);
            }
            // SAFETY: the caller's arguments.
            Some(number.map_or_else(
                |code| answer(Err(code)),
                |number| unsafe { real::fcntl(number, command, argument) },
            ))
        }
        _ => left(fd),
    }
}

fn note_locks(fd: c_int) {
    let noted = by(fd, |live, opened, _| {
        let number = opened.beside(&live.table).map_err(|_| libc::EIO)?;
        live.table.has_locks(opened.inode, number);
        Ok(())
    });
    // Without an opening beside it there are no locks.
    let _ = noted;
}

/// An opening of the mount's beside a served descriptor; None if the descriptor itself is the kernel's.
pub(crate) fn beside(fd: c_int) -> Option<Done<c_int>> {
    by(fd, |live, opened, _| {
        opened
            .beside(&live.table)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    })
}

/// A call that does not look at the offset is made by the opening beside the descriptor, or by the descriptor itself.
pub(crate) fn by_beside<R: From<i8>>(fd: c_int, make: impl FnOnce(c_int) -> R) -> R {
    match beside(fd) {
        None => make(fd),
        Some(Ok(number)) => make(number),
        Some(Err(code)) => answer(Err(code)),
    }
}
