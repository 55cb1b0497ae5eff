//! Descriptors that come and go.

use crate::numbers::numbered;
use crate::state::{DESCRIPTORS_MAX, is_own_memory, is_owner, unlocking};
use crate::{Followed, followed, fs, inside, is_passive, net, open, real, set_errno, settings, unfollow};
use area::own;
use libc::{c_int, c_uint, c_ulong, off_t};

/// The lowest descriptor from `first` to `last` that this library keeps: the program closes none of them, as its next file would
/// get the number, and what is written to the area. A child may, but for what it needs itself.
fn next_own(first: c_int, last: c_int) -> Option<c_int> {
    // A program's filter of system calls may end it for the look.
    own::next(first, last, || is_owner() || fs::has_session())
}

/// `fd` is another descriptor of what is followed now, or of nothing.
fn copied(from: Option<Followed>, fd: c_int) -> c_int {
    if let Some(it) = from.filter(|_| fd >= 0) {
        inside(|| it.journal.duplicate(it.file));
        if open::set(it.journal, fd, it.file, it.flags).is_err() {
            // SAFETY: just made, and not given out.
            unsafe { real::close(fd) };
            set_errno(libc::EIO);
            return -1;
        }
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if next_own(fd, fd).is_some() {
        set_errno(libc::EBADF);
        return -1;
    }
    fs::numbers::closing(fd);
    net::open::closing(fd);
    unfollow(fd);
    // SAFETY: the caller's arguments.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(file: *mut libc::FILE) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        fs::numbers::closing(libc::fileno(file));
        net::open::closing(libc::fileno(file));
        unfollow(libc::fileno(file));
        real::fclose(file)
    }
}

fn unfollow_range(first: c_uint, last: c_uint) {
    for fd in first..=last.min(DESCRIPTORS_MAX as c_uint - 1) {
        unfollow(fd as c_int);
    }
}

/// Closes from `first` to `last` by `close`, but what this library keeps.
fn close_around(mut first: c_uint, last: c_uint, close: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    let number = |fd| c_int::try_from(fd).unwrap_or(c_int::MAX);
    while let Some(own) = next_own(number(first), number(last)) {
        let own = own as c_uint;
        if own > first && close(first, own - 1) < 0 {
            return -1;
        }
        if own == last {
            return 0;
        }
        first = own + 1;
    }
    close(first, last)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        fs::numbers::closing_range(first, last);
        net::open::closing_range(first, last);
        unfollow_range(first, last);
    }
    // SAFETY: the caller's arguments.
    close_around(first, last, |first, last| unsafe {
        real::close_range(first, last, flags)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    fs::numbers::closing_range(first, c_uint::MAX);
    net::open::closing_range(first, c_uint::MAX);
    unfollow_range(first, c_uint::MAX);
    close_around(first, c_uint::MAX, |first, last| {
        // SAFETY: the caller's arguments.
        unsafe {
            match last {
                c_uint::MAX => real::closefrom(first as c_int),
                _ => return real::close_range(first, last, 0),
            }
        }
        0
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::dup(fd) };
    if let Some(made) = fs::numbers::dup(fd, make) {
        return made;
    }
    let made = numbered(-1, make);
    net::open::copied(fd, made);
    copied(followed(fd), made)
}

/// Makes `to` another descriptor of `fd`. `to` is forgotten before, and not if that fails.
fn replaced(fd: c_int, to: c_int, make: impl FnOnce() -> c_int) -> c_int {
    if fd == to {
        return make();
    }
    // If the call fails, what waits for the locks' end is closed, and the locks end early: a wrong `fd` is a program's mistake.
    unlocking(to);
    if next_own(to, to).is_some() {
        set_errno(libc::EBUSY);
        return -1;
    }
    if fs::numbers::is_concerned(fd, to) {
        return fs::numbers::dup_onto(fd, to, make);
    }
    let before = followed(to);
    if let Some(it) = before {
        inside(|| it.journal.duplicate(it.file));
        unfollow(to);
    }
    net::open::replacing(fd, to);
    let made = make();
    net::open::copied(fd, made);
    match before {
        Some(it) if made < 0 => {
            // Its place is there: it was followed.
            let _ = open::set(it.journal, to, it.file, it.flags);
        }
        Some(it) => inside(|| it.journal.close_file(it.file)),
        None => {}
    }
    copied(followed(fd), made)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    replaced(fd, to, || unsafe { real::dup2(fd, to) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    replaced(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

/// The program is about to lock the file. The lock ends if this process closes any descriptor of the file, so we close none of ours
/// meanwhile.
fn locking(fd: c_int) {
    if fd >= 0 && settings().is_some() && !is_passive() && is_own_memory() {
        inside(|| own::locking(fd));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lockf(fd: c_int, command: c_int, count: off_t) -> c_int {
    if matches!(command, libc::F_LOCK | libc::F_TLOCK) {
        locking(fd);
    }
    // It counts from the offset.
    if fs::leave(fd).is_err() {
        set_errno(libc::EIO);
        return -1;
    }
    // SAFETY: the caller's arguments.
    unsafe { real::lockf(fd, command, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lockf64(fd: c_int, command: c_int, count: off_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { lockf(fd, command, count) }
}

/// The C library's is variadic: the argument, if any, is a word.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    if let Some(result) = fs::numbers::fcntl(fd, command, argument) {
        return result;
    }
    if let Some(result) = net::options::fcntl(fd, command, argument) {
        return result;
    }
    if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
        locking(fd);
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::fcntl(fd, command, argument) };
    let result = numbered(-1, make);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            net::open::copied(fd, result);
            copied(followed(fd), result)
        }
        _ => result,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { fcntl(fd, command, argument) }
}
