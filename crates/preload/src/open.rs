//! Opening: which files are followed.

use crate::{
    APPENDS, Followed, SYNCS, Settings, followed, inside, is_passive, journal, place, real, set_errno,
    settings, unfollow,
};
use area::files::{FileId, Journal, matches};
use libc::{c_char, c_int, mode_t};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

const SYNC_FLAGS: c_int = libc::O_SYNC | libc::O_DSYNC;

/// The settings, if a file opened by this path for writing is to be followed.
fn chosen(path: *const c_char) -> Option<&'static Settings> {
    if path.is_null() || is_passive() {
        return None;
    }
    let settings = settings()?;
    // SAFETY: the program's path ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let is_chosen = || {
        let absolute = std::path::absolute(path);
        matches(&settings.patterns, absolute.as_deref().unwrap_or(path))
    };
    inside(is_chosen).then_some(settings)
}

/// Follows a descriptor that was opened for writing; false if it is no regular file.
fn follow(journal: &'static Journal, fd: c_int, flags: c_int) -> Result<bool, c_int> {
    let code = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let is_truncated = flags & libc::O_TRUNC != 0;
    let Some(file) = inside(|| journal.open_file(fd, is_truncated)).map_err(code)? else {
        return Ok(false);
    };
    let syncs = if flags & SYNC_FLAGS != 0 { SYNCS } else { 0 };
    let appends = if flags & libc::O_APPEND != 0 { APPENDS } else { 0 };
    set(journal, fd, file, syncs | appends).map_err(code)?;
    Ok(true)
}

/// The descriptor is one of the file, with these flags. Too high a one is not followed: the file is given up.
pub(crate) fn set(journal: &'static Journal, fd: c_int, file: FileId, flags: u64) -> std::io::Result<()> {
    match place(fd) {
        Some(place) => place.store(file.0 << 2 | flags, Ordering::Relaxed),
        None => inside(|| journal.give_up(file))?,
    }
    Ok(())
}

unsafe fn open_any(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's arguments.
    let open = |flags| unsafe { real::openat(directory, path, flags, mode) };
    let is_written = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    let Some(settings) = chosen(path).filter(|_| is_written && flags & libc::O_PATH == 0) else {
        return open(flags);
    };
    let journal = match journal(settings) {
        Ok(journal) => journal,
        Err(code) => {
            set_errno(code);
            return -1;
        }
    };
    let fd = open(flags & !SYNC_FLAGS);
    if fd < 0 {
        return fd;
    }
    let result = follow(journal, fd, flags);
    if let Ok(true) = result {
        return fd;
    }
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
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
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

/// Streams write without our knowledge: a chosen file that is opened as one is given up as long as it is open.
unsafe fn stream(path: *const c_char, mode: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE {
    if file.is_null() || mode.is_null() {
        return file;
    }
    // SAFETY: the program's mode ends with a zero.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let is_written = mode.iter().any(|byte| b"wa+".contains(byte));
    let Some(settings) = chosen(path).filter(|_| is_written) else {
        return file;
    };
    // SAFETY: an open stream.
    let fd = unsafe { libc::fileno(file) };
    let give_up = |journal: &'static Journal| {
        follow(journal, fd, 0)?;
        followed(fd).map_or(Ok(()), |it: Followed| it.give_up().map_err(|_| libc::EIO))
    };
    match journal(settings).and_then(give_up) {
        Ok(()) => file,
        Err(code) => {
            unfollow(fd);
            // SAFETY: just opened, and not given out.
            unsafe { real::fclose(file) };
            set_errno(code);
            std::ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe { stream(path, mode, real::fopen(path, mode)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe { fopen(path, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe {
        unfollow(libc::fileno(file));
        stream(path, mode, real::freopen(path, mode, file))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe { freopen(path, mode, file) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if let Some(Err(_)) = followed(fd).map(|it| it.give_up()) {
        set_errno(libc::EIO);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's arguments.
    unsafe { real::fdopen(fd, mode) }
}
