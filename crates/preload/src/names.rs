//! Names: a file that is renamed or removed takes what the area has of it along.

use crate::paths::{is_directory, is_matched, name, path_of};
use crate::{answer, fs, inside, present, real, tree};
use area::files::{FileId, Journal, Renaming, change_names, change_root};
use area::own;
use libc::{c_char, c_int, c_uint};
use std::path::PathBuf;

/// Another root: what the area knows has the paths of the one before.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    fs::end();
    let root = inside(|| target_here(path));
    // SAFETY: the caller's arguments.
    let result = unsafe { real::chroot(path) };
    if let (0, Some(root)) = (result, root) {
        inside(|| change_root(&root));
    }
    result
}

fn target_here(path: *const c_char) -> Option<PathBuf> {
    own::resolve(libc::AT_FDCWD, path_of(path)?).ok()
}

fn known(directory: c_int, path: *const c_char) -> Option<(&'static Journal, FileId)> {
    let journal = present()?;
    let find = || journal.find(&name(directory, path)?);
    Some((journal, inside(find)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn renameat2(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    if let Some(result) = fs::change::rename((from_directory, from), (to_directory, to), flags) {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::renameat2(from_directory, from, to_directory, to, flags) };
    let both = [(from_directory, from), (to_directory, to)];
    // What is in a directory gets another name with it.
    let is_chosen = both.iter().any(|&it| is_matched(it) || is_directory(it));
    let names = || name(from_directory, from).zip(name(to_directory, to));
    let Some(journal) = present() else {
        let asked = both
            .iter()
            .try_for_each(|&(directory, path)| tree::change_path(directory, path, false));
        let names = is_chosen.then(|| inside(names)).flatten();
        return answer(asked.and_then(|()| match names {
            Some((from, to)) => inside(|| change_names(&[&from, &to], true, make)),
            None => Ok(make()),
        }));
    };
    let swaps = flags & libc::RENAME_EXCHANGE != 0;
    match inside(names) {
        Some((from, to)) => {
            let renaming = Renaming {
                from: &from,
                to: &to,
                swaps,
                is_chosen,
            };
            answer(inside(|| journal.rename(&renaming, make)))
        }
        None => make(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { renameat2(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn renameat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { renameat2(from_directory, from, to_directory, to, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn linkat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    if let Some(result) = fs::change::link((from_directory, from), (to_directory, to), flags) {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::linkat(from_directory, from, to_directory, to, flags) };
    let is_chosen = is_matched((from_directory, from)) || is_matched((to_directory, to));
    let journal = present();
    let name = (is_chosen || journal.is_some()).then(|| inside(|| name(to_directory, to)));
    match (journal, name.flatten()) {
        (Some(journal), Some(to)) => answer(inside(|| journal.link(&to, is_chosen, make))),
        (None, Some(to)) => answer(inside(|| change_names(&[&to], is_chosen, make))),
        _ => make(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { linkat(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    if let Some(result) = fs::change::unlink((directory, path), flags) {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::unlinkat(directory, path, flags) };
    match known(directory, path) {
        Some((journal, file)) => answer(inside(|| journal.remove(file, make))),
        None => answer(tree::change_path(directory, path, false).map(|()| make())),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn remove(path: *const c_char) -> c_int {
    if let Some(result) = fs::change::remove((libc::AT_FDCWD, path)) {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::remove(path) };
    match known(libc::AT_FDCWD, path) {
        Some((journal, file)) => answer(inside(|| journal.remove(file, make))),
        None => answer(tree::change_path(libc::AT_FDCWD, path, false).map(|()| make())),
    }
}
