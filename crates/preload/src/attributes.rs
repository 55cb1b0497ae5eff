//! Times and attributes, of which the log has nothing: the file system makes the next sync of a file whose own ones change.
//! Modes and owners are seen at a sync.

use crate::fs::attributes::{Of, remove, set};
use crate::{followed, fs, inside, paths, present, real};
use libc::{c_char, c_int, c_void, size_t, timespec, timeval, utimbuf};

/// After a change of the descriptor's file: the result.
pub(crate) fn touched(fd: c_int, result: c_int) -> c_int {
    let Some(journal) = present().filter(|_| result == 0) else {
        return result;
    };
    let known = followed(fd).map(|it| it.file);
    // It may be followed by another descriptor.
    if let Some(file) = known.or_else(|| inside(|| journal.find_same(fd))) {
        inside(|| journal.touched(file));
    }
    result
}

/// The same of the file that a path leads to.
fn touched_at(directory: c_int, path: *const c_char, result: c_int) -> c_int {
    if path.is_null() {
        return touched(directory, result);
    }
    if let Some(journal) = present().filter(|_| result == 0) {
        let file = inside(|| journal.find(&paths::target(directory, path)?));
        if let Some(file) = file {
            inside(|| journal.touched(file));
        }
    }
    result
}

/// Functions, and what serves them.
macro_rules! of_descriptors {
    ($($name:ident($fd:ident, $($argument:ident: $type:ty),*) by $served:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($fd: c_int, $($argument: $type),*) -> c_int {
            // SAFETY: the caller's arguments.
            if let Some(result) = unsafe { served($served) } {
                return result;
            }
            let fd = $fd;
            // SAFETY: the caller's arguments.
            touched(fd, fs::numbers::by_beside(fd, |fd| unsafe { real::$name(fd, $($argument),*) }))
        }
    )*};
}

macro_rules! of_paths {
    ($($name:ident($path:ident, $($argument:ident: $type:ty),*) by $served:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($path: *const c_char, $($argument: $type),*) -> c_int {
            // SAFETY: the caller's arguments.
            if let Some(result) = unsafe { served($served) } {
                return result;
            }
            let path = $path;
            // SAFETY: the caller's arguments.
            touched_at(libc::AT_FDCWD, path, unsafe { real::$name(path, $($argument),*) })
        }
    )*};
}

/// Not all of those that serve are unsafe.
unsafe fn served(result: Option<c_int>) -> Option<c_int> {
    result
}

of_descriptors! {
    futimes(fd, times: *const timeval) by None;
    fsetxattr(fd, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int)
        by set(Of::Descriptor(fd), name, (value, bytes), flags);
    fremovexattr(fd, name: *const c_char) by remove(Of::Descriptor(fd), name);
}

of_paths! {
    utime(path, times: *const utimbuf) by None;
    utimes(path, times: *const timeval) by None;
    lutimes(path, times: *const timeval) by None;
    setxattr(path, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int)
        by set(Of::Path(path, true), name, (value, bytes), flags);
    lsetxattr(path, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int)
        by set(Of::Path(path, false), name, (value, bytes), flags);
    removexattr(path, name: *const c_char) by remove(Of::Path(path, true), name);
    lremovexattr(path, name: *const c_char) by remove(Of::Path(path, false), name);
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { fs::change::set_times((fd, std::ptr::null()), times, 0) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    touched(fd, unsafe { real::futimens(fd, times) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn utimensat(
    directory: c_int,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { fs::change::set_times((directory, path), times, flags) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { real::utimensat(directory, path, times, flags) };
    touched_at(directory, path, result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn futimesat(
    directory: c_int,
    path: *const c_char,
    times: *const timeval,
) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::futimesat(directory, path, times) };
    touched_at(directory, path, result)
}
