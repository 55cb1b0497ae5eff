//! Paths of the program: what they are in the area, and which of them are chosen.

use crate::state::is_sealed;
use crate::{Settings, inside, is_passive, over, settings};
use area::files::{matches, whole};
use area::own;
use libc::{c_char, c_int};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) fn path_of<'a>(path: *const c_char) -> Option<&'a Path> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program's path ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    Some(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// The name that `path` is, relative to a directory's descriptor: absolute, its directories without links, as the area has it.
pub(crate) fn name(directory: c_int, path: *const c_char) -> Option<PathBuf> {
    let path = path_of(path)?;
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let parent = own::resolve(directory, parent.unwrap_or(Path::new("."))).ok()?;
    Some(whole(&parent).join(path.file_name()?))
}

/// The file that `path` leads to, relative to a directory's descriptor, as the area has it.
pub(crate) fn target(directory: c_int, path: *const c_char) -> Option<PathBuf> {
    own::resolve(directory, path_of(path)?).ok().map(|it| whole(&it))
}

/// The settings, if a file opened by this path for writing is to be followed. The path is relative to a directory's descriptor.
pub(crate) fn chosen(directory: c_int, path: *const c_char) -> Option<&'static Settings> {
    let may_follow = !is_passive() && !over::is_over();
    may_follow.then(|| matched(directory, path)).flatten()
}

/// The settings, if the path, relative to a directory's descriptor, is one of those to follow.
pub(crate) fn matched(directory: c_int, path: *const c_char) -> Option<&'static Settings> {
    let (settings, path) = (settings()?, path_of(path)?);
    let is_chosen = || {
        let named = match directory {
            _ if path.is_absolute() || !settings.names_directories() => Path::new("/").join(path),
            libc::AT_FDCWD => path.to_owned(),
            fd => own::link(fd).unwrap_or_default().join(path),
        };
        let absolute = std::path::absolute(&named);
        matches(&settings.patterns, absolute.as_ref().unwrap_or(&named))
    };
    inside(is_chosen).then_some(settings)
}

/// True if a file of this name, relative to a directory's descriptor, would be followed by the process that owns the area.
pub(crate) fn is_matched((directory, path): (c_int, *const c_char)) -> bool {
    !is_sealed() && matched(directory, path).is_some()
}

/// True if it is a directory, and the run has an area.
pub(crate) fn is_directory((directory, path): (c_int, *const c_char)) -> bool {
    !is_sealed()
        && settings().is_some()
        && inside(|| own::is_directory(directory, path_of(path)?).ok()) == Some(true)
}
