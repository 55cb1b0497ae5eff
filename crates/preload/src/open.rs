//! Opening: which files are followed.

use crate::numbers::numbered;
use crate::paths::{chosen, matched, target};
use crate::{SYNCS, fs, inside, journal, place, present, real, rings, set_errno, tree, unfollow};
use area::files::{FileId, Journal, is_kept};
use area::own::{descriptors, is_own};
use libc::{c_char, c_int, mode_t};
use std::io;
use std::sync::atomic::Ordering;

const SYNC_FLAGS: c_int = libc::O_SYNC | libc::O_DSYNC;

/// Follows a descriptor that was opened for writing; false if it is no regular file of a file system that keeps files.
pub(crate) fn follow(journal: &'static Journal, fd: c_int, flags: c_int) -> Result<bool, c_int> {
    let code = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let is_truncated = flags & libc::O_TRUNC != 0;
    if !is_kept(fd) {
        return Ok(false);
    }
    let Some(file) = inside(|| journal.open_file(fd, is_truncated)).map_err(code)? else {
        return Ok(false);
    };
    let syncs = if flags & SYNC_FLAGS != 0 { SYNCS } else { 0 };
    set(journal, fd, file, syncs).map_err(code)?;
    let check = || {
        // The program may have the file open already, by another name or from its parent: then it is not followed.
        if journal.opens(file) == 1 && (is_open_elsewhere(fd) || !tree::follow(journal, fd, file)) {
            journal.give_up(file)?;
        }
        rings::look(journal, file)
    };
    inside(check).map_err(code)?;
    Ok(true)
}

/// True if the program has another descriptor for writing of the same file.
fn is_open_elsewhere(fd: c_int) -> bool {
    let identity = |fd: c_int| {
        // SAFETY: zeros are a valid `stat`.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills `found`. No times are looked at, but this call asks for them: the file has just been opened.
        let is_there = unsafe { libc::fstat(fd, &mut found) } == 0;
        is_there.then_some((found.st_dev, found.st_ino))
    };
    let Some(numbers) = descriptors() else {
        return true;
    };
    let wanted = identity(fd);
    let mut others = numbers.into_iter().filter(|&other| other != fd && !is_own(other));
    others.any(|other| identity(other) == wanted && tree::can_write(other))
}

/// A process that does not own the area has opened a file for writing.
pub(crate) fn told(fd: c_int, is_chosen: bool) -> c_int {
    if fd >= 0 && tree::change_opened(fd, is_chosen).is_err() {
        // SAFETY: just opened, and not given out.
        unsafe { real::close(fd) };
        set_errno(libc::EIO);
        return -1;
    }
    fd
}

/// A file that is opened by a name that is not chosen may be followed by another one.
fn follow_known(fd: c_int, flags: c_int) -> c_int {
    let known = |journal: &'static Journal| {
        inside(|| journal.find_same(fd))?;
        Some(journal)
    };
    let Some(journal) = present().filter(|_| fd >= 0).and_then(known) else {
        return fd;
    };
    match follow(journal, fd, flags) {
        Ok(_) => fd,
        Err(code) => {
            // SAFETY: just opened, and not given out.
            unsafe { real::close(fd) };
            set_errno(code);
            -1
        }
    }
}

/// The descriptor is one of the file, with these flags. Too high a one is not followed: the file is given up.
pub(crate) fn set(journal: &'static Journal, fd: c_int, file: FileId, flags: u64) -> io::Result<()> {
    match place(fd) {
        Some(place) => place.store(file.0 << 1 | flags, Ordering::Relaxed),
        None => inside(|| journal.give_up(file))?,
    }
    Ok(())
}

unsafe fn open_any(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    if let Some(fd) = fs::open::open(directory, path, flags, mode) {
        return fd;
    }
    // SAFETY: the caller's arguments.
    let open = |flags| numbered(-1, || unsafe { real::openat(directory, path, flags, mode) });
    let is_written = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    if !is_written || flags & libc::O_PATH != 0 {
        return open(flags);
    }
    tree::writes();
    if tree::is_another() {
        return told(open(flags), matched(directory, path).is_some());
    }
    let Some(settings) = chosen(directory, path) else {
        let fd = follow_known(open(flags), flags);
        // Another process may own the area since.
        return if fd >= 0 && tree::is_another() {
            told(fd, false)
        } else {
            fd
        };
    };
    let Some(journal) = journal(settings) else {
        // Another process has the area, or nobody can.
        let fd = open(flags);
        return if tree::is_another() { told(fd, true) } else { fd };
    };
    // What the log has of a file must not be made to one that was emptied without the log's knowledge.
    let is_known = || journal.find(&target(directory, path)?);
    let empties = flags & libc::O_TRUNC != 0 && inside(is_known).is_some();
    let kept = if empties { libc::O_TRUNC } else { 0 };
    let fd = open(flags & !kept);
    if fd < 0 {
        return fd;
    }
    let result = follow(journal, fd, flags & !kept);
    // SAFETY: no memory is involved.
    let empty = || unsafe { libc::ftruncate(fd, 0) } == 0;
    match result {
        Ok(true) if !empties || empty() => return fd,
        Ok(false) if !empties => return fd,
        _ => {}
    }
    unfollow(fd);
    // SAFETY: just opened, and not given out.
    unsafe { real::close(fd) };
    match result {
        Ok(_) => open(flags & !(libc::O_EXCL | libc::O_TRUNC)),
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}

macro_rules! opens {
    ($($name:ident($($argument:ident: $type:ty),*) => $directory:expr, $path:ident, $flags:expr, $mode:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe { open_any($directory, $path, $flags, $mode) }
        }
    )*};
}

// The C library's are variadic: without O_CREAT the mode is whatever is in its register, and not looked at.
opens! {
    open(path: *const c_char, flags: c_int, mode: mode_t) => libc::AT_FDCWD, path, flags, mode;
    open64(path: *const c_char, flags: c_int, mode: mode_t) => libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode;
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) => directory, path, flags, mode;
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) => directory, path, flags | libc::O_LARGEFILE, mode;
    creat(path: *const c_char, mode: mode_t) => libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode;
    creat64(path: *const c_char, mode: mode_t) => libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode;
    __open_2(path: *const c_char, flags: c_int) => libc::AT_FDCWD, path, flags, 0;
    __open64_2(path: *const c_char, flags: c_int) => libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, 0;
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) => directory, path, flags, 0;
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) => directory, path, flags | libc::O_LARGEFILE, 0;
}
