//! Opening.

use super::answers::answer;
use super::live::{NUMBERS, live};
use super::place::{Does, at, bytes};
use super::table::Opened;
use crate::real;
use crate::state::inside;
use libc::{c_char, c_int, mode_t};
use libfs::{Errno, Open};

/// `O_TMPFILE` without `O_DIRECTORY`, which it has, too.
const NAMELESS: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// Flags of an opening that the kernel makes: what is opened is no content, or other rules hold for it, or, without a name, it gets one only by the
/// descriptor of its making.
const KERNELS: c_int = libc::O_PATH | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC | NAMELESS;

pub(crate) fn open(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Option<c_int> {
    if flags & KERNELS != 0 {
        return None;
    }
    let (reads, writes) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return None,
    };
    let has = |flag| flags & flag != 0;
    let (creates, is_directory) = (has(libc::O_CREAT), has(libc::O_DIRECTORY));
    if (creates && is_directory) || (has(libc::O_TRUNC) && !writes) {
        return None;
    }
    let how = Open {
        reads,
        writes,
        appends: has(libc::O_APPEND),
        truncates: has(libc::O_TRUNC),
        creates: creates.then_some(mode & 0o7777),
        is_exclusive: has(libc::O_EXCL),
        is_here: has(libc::O_NOFOLLOW),
    };
    let does = if writes || creates {
        Does::Change
    } else {
        Does::Look
    };
    let opened = at((directory, path), does, |live, place| {
        let file = match is_directory {
            // Of a directory of which the program has no lease the kernel tells more at once. It is served from the first change on that is made from there.
            true => live.files.open_at_hand(place, how)?,
            false => live.files.open(place, how)?,
        };
        if is_directory && !file.is_directory() {
            return Err(Errno::NotDirectory);
        }
        let opened = Opened::new(file, flags, bytes(path).unwrap_or_default());
        Ok(live.table.number(&NUMBERS, &opened, has(libc::O_CLOEXEC)))
    })?;
    Some(answer(opened.and_then(|number| number)))
}

/// The kernel has opened a directory: calls relative to it are served, if it is the one that the path leads to.
pub(crate) fn opened_directory(path: *const c_char, fd: c_int) {
    let found = at((libc::AT_FDCWD, path), Does::Look, |live, place| {
        let inode = live.files.stat(place, true)?.number;
        live.note_directory(inode, fd);
        Ok(())
    });
    // Otherwise they are the kernel's.
    let _ = found;
}

/// `readlink`: the bytes that there are, as far as there is room.
pub(crate) fn readlink(directory: c_int, path: *const c_char, place: &mut [u8]) -> Option<isize> {
    let target = at((directory, path), Does::Look, |live, at| live.files.readlink(at))?;
    Some(answer(target.map(|target| {
        let count = target.len().min(place.len());
        place[..count].copy_from_slice(&target[..count]);
        count as i64
    })) as isize)
}

/// The bits that new files do not get are others.
pub(crate) fn umask(mask: mode_t) -> mode_t {
    // SAFETY: no memory is involved.
    let before = unsafe { real::umask(mask) };
    if let Some(live) = live() {
        inside(|| live.files.set_umask(mask));
    }
    before
}
