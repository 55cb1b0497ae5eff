//! Names: a file that is renamed or removed takes what the area has of it along.

use crate::{answer, inside, present, real, tree};
use area::files::{FileId, Journal};
use libc::{c_char, c_int, c_uint};
use std::ffi::{CStr, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

fn path_of<'a>(path: *const c_char) -> Option<&'a Path> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program's path ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    Some(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// The name that `path` is, relative to a directory's descriptor: absolute, its directories without links.
fn name(directory: c_int, path: *const c_char) -> Option<PathBuf> {
    let path = path_of(path)?;
    let parent = base(directory, path)?.join(path.parent()?);
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        &parent
    };
    Some(fs::canonicalize(parent).ok()?.join(path.file_name()?))
}

/// The file that `path` leads to, relative to a directory's descriptor.
pub(crate) fn target(directory: c_int, path: *const c_char) -> Option<PathBuf> {
    fs::canonicalize(base(directory, path_of(path)?)?.join(path_of(path)?)).ok()
}

/// The directory that a path is relative to.
fn base(directory: c_int, path: &Path) -> Option<PathBuf> {
    match directory {
        libc::AT_FDCWD => Some(PathBuf::new()),
        _ if path.is_absolute() => Some(PathBuf::new()),
        _ => fs::read_link(format!("/proc/self/fd/{directory}")).ok(),
    }
}

fn known(directory: c_int, path: *const c_char) -> Option<(&'static Journal, FileId)> {
    let journal = present()?;
    let find = || journal.find(&name(directory, path)?);
    Some((journal, inside(find)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn renameat2(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::renameat2(from_directory, from, to_directory, to, flags) };
    let Some(journal) = present() else {
        let both = [(from_directory, from), (to_directory, to)];
        let asked = both
            .iter()
            .try_for_each(|&(directory, path)| tree::change_path(directory, path, false));
        return answer(asked.map(|()| make()));
    };
    let names = inside(|| name(from_directory, from).zip(name(to_directory, to)));
    let swaps = flags & libc::RENAME_EXCHANGE != 0;
    match names {
        Some((from, to)) => answer(inside(|| journal.rename(&from, &to, swaps, make))),
        None => make(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { renameat2(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn renameat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { renameat2(from_directory, from, to_directory, to, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::unlinkat(directory, path, flags) };
    match known(directory, path) {
        Some((journal, file)) => answer(inside(|| journal.remove(file, make))),
        None => answer(tree::change_path(directory, path, false).map(|()| make())),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::remove(path) };
    match known(libc::AT_FDCWD, path) {
        Some((journal, file)) => answer(inside(|| journal.remove(file, make))),
        None => answer(tree::change_path(libc::AT_FDCWD, path, false).map(|()| make())),
    }
}
