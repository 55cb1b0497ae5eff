//! Which paths lead below the mount point. Only their text is looked at: what gets there by another way is the kernel's.

use super::answers::{Done, code};
use super::leave::leave;
use super::live::{self, Live, Mount, is_served, live};
use super::real_inode::inode_of;
use super::served::keeping_errno;
use super::{forked, table};
use crate::real;
use crate::state::{inside, set_errno};
use libc::{c_char, c_int, c_long};
use libfs::{Errno, Place};
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::{io, slice};

/// Bytes of a path, at most (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;
/// The least that the kernel maps.
const PAGE_BYTES: usize = 4096;
/// Pages that are known to be readable, at most.
const PAGES_KNOWN: usize = 256;
/// Pointers below are none.
const ADDRESS_MIN: usize = 4096;

/// Whether the working directory is below the mount point, for processes without a session.
static IS_BELOW: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const ELSEWHERE: u8 = 1;
const BELOW: u8 = 2;

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    Look,
    Change,
}

/// The bytes of a path. None if it is none of what is served, or nothing can be read there: the kernel says so.
pub(crate) fn bytes<'p>(path: *const c_char) -> Option<&'p [u8]> {
    let mut length = 0;
    while length < PATH_BYTES_MAX {
        let at = path as usize + length;
        let rest = PAGE_BYTES - at % PAGE_BYTES;
        if !is_readable(at) {
            return None;
        }
        // SAFETY: the page can be read.
        let count = unsafe { libc::strnlen(at as *const c_char, rest) };
        length += count;
        if count < rest {
            break;
        }
    }
    // SAFETY: so many bytes were read.
    let bytes = unsafe { slice::from_raw_parts(path.cast(), length) };
    (1..PATH_BYTES_MAX).contains(&length).then_some(bytes)
}

/// Whether a path is there, and has nothing in it.
pub(crate) fn is_empty(path: *const c_char) -> bool {
    // SAFETY: the byte can be read.
    is_readable(path as usize) && unsafe { *path } == 0
}

/// Whether the page of an address can be read, or could when it was asked for before: a program that unmaps its paths gets no `EFAULT` for them.
fn is_readable(at: usize) -> bool {
    static KNOWN: [AtomicUsize; PAGES_KNOWN] = [const { AtomicUsize::new(0) }; PAGES_KNOWN];
    let page = at / PAGE_BYTES;
    if at < ADDRESS_MIN {
        return false;
    }
    let known = &KNOWN[page % PAGES_KNOWN];
    if known.load(Ordering::Relaxed) == page {
        return true;
    }
    let before = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // The kernel reads the set before it finds out that this is nothing to do with one.
    let (how, set, bytes) = (c_long::MAX, page * PAGE_BYTES, size_of::<u64>());
    // SAFETY: the kernel checks the address, and changes nothing.
    unsafe {
        real::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            set as c_long,
            0,
            bytes as c_long,
            0,
            0,
        )
    };
    let is_readable = io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    set_errno(before);
    if is_readable {
        known.store(page, Ordering::Relaxed);
    }
    is_readable
}

/// The part of an absolute path that begins at the mount point.
fn below<'p>(mount: &Mount, path: &'p [u8]) -> Option<&'p [u8]> {
    match path.strip_prefix(&mount.point[..])? {
        [] => Some(b"/"),
        rest if rest[0] == b'/' => Some(rest),
        _ => None,
    }
}

fn working_directory() -> Option<Vec<u8>> {
    let mut place = [0_u8; PATH_BYTES_MAX];
    // SAFETY: the place is as long as is said.
    let found = unsafe { libc::getcwd(place.as_mut_ptr().cast(), place.len()) };
    if found.is_null() {
        return None;
    }
    CStr::from_bytes_until_nul(&place)
        .ok()
        .map(|path| path.to_bytes().to_vec())
}

fn is_below(mount: &Mount) -> bool {
    let known = IS_BELOW.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known == BELOW;
    }
    let found = inside(|| working_directory().is_some_and(|path| below(mount, &path).is_some()));
    IS_BELOW.store(if found { BELOW } else { ELSEWHERE }, Ordering::Relaxed);
    found
}

/// The working directory, if it is below the mount point.
fn directory_of(live: &Live) -> Option<u64> {
    let known = live.directory.load(Ordering::Acquire);
    if known != live::UNKNOWN {
        return Some(known).filter(|inode| *inode != 0);
    }
    let find = || {
        let Some(path) = working_directory() else {
            return Ok(None);
        };
        let Some(rest) = below(live.mount, &path) else {
            return Ok(None);
        };
        let inode = match live.files.stat(Place::new(rest), true) {
            Ok(found) => found.number,
            // Many want it now, and perhaps nobody does soon.
            Err(Errno::CrossDevice) => return Err(()),
            Err(_) => return Ok(None),
        };
        // A directory that was renamed or replaced meanwhile is another one.
        Ok(Some(inode).filter(|inode| inode_of(libc::AT_FDCWD) == Some((live.mount.device, *inode))))
    };
    let found = keeping_errno(live, find).ok()?;
    live.directory.store(found.unwrap_or(0), Ordering::Release);
    found
}

fn wanted(does: Does) -> Option<&'static Live> {
    live::wanted(does == Does::Change, forked::watch)
}

/// The working directory is another one.
pub(crate) fn moved() {
    IS_BELOW.store(UNKNOWN, Ordering::Relaxed);
    if let Some(live) = live() {
        live.directory.store(live::UNKNOWN, Ordering::Release);
    }
}

/// A path by which the kernel shows descriptors: what is served there becomes real before.
fn shows_descriptors(path: &[u8]) -> bool {
    if path.starts_with(b"/dev/fd") || path.starts_with(b"/dev/std") {
        return true;
    }
    let Some(rest) = path.strip_prefix(b"/proc") else {
        return false;
    };
    let parts = || rest.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    // Or directories from which a path leads there.
    let leads = |part: &[u8]| {
        matches!(part, b"." | b"self" | b"thread-self" | b"task") || part.iter().all(u8::is_ascii_digit)
    };
    let shows = |part: &[u8]| matches!(part, b"fd" | b"fdinfo" | b"map_files" | b"..");
    rest.first().is_none_or(|byte| *byte == b'/') && (parts().any(shows) || parts().all(leads))
}

/// The descriptor that such a path is about, if it is one.
fn shown(path: &[u8]) -> Option<c_int> {
    let mut parts = path.rsplit(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let (last, of) = (parts.next()?, parts.next()?);
    matches!(of, b"fd" | b"fdinfo").then(|| std::str::from_utf8(last).ok()?.parse().ok())?
}

/// A directory that the kernel has opened, before the process had a session or by a call that is not served: calls from there are served from now on, if its path
/// leads to it.
fn adopt(mount: &Mount, directory: c_int, does: Does) -> Option<()> {
    let is_time = does == Does::Change || live().is_some();
    if !is_time || table::is_foreign(directory) {
        return None;
    }
    let before = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let looked = look_at_directory(mount, directory, does);
    set_errno(before);
    match looked {
        Looked::Adopted => Some(()),
        Looked::Foreign => {
            table::note_foreign(directory);
            None
        }
        Looked::Later => None,
    }
}

enum Looked {
    Adopted,
    /// It is no directory of the mount, or one that its path does not lead to.
    Foreign,
    /// Many want it now, and perhaps nobody does soon.
    Later,
}

fn look_at_directory(mount: &Mount, directory: c_int, does: Does) -> Looked {
    let Some((device, inode)) = inside(|| inode_of(directory)) else {
        return Looked::Later;
    };
    if device != mount.device {
        return Looked::Foreign;
    }
    let path = inside(|| path_of(directory));
    let Some(rest) = path.as_ref().and_then(|path| below(mount, path)) else {
        return Looked::Foreign;
    };
    let Some(live) = wanted(does) else {
        return Looked::Later;
    };
    match live.inside(|| live.files.stat(Place::new(rest), true)) {
        Ok(found) if found.number == inode && found.inode.is_directory() => {
            live.inside(|| live.note_directory(inode, directory));
            Looked::Adopted
        }
        Err(Errno::CrossDevice) => Looked::Later,
        _ => Looked::Foreign,
    }
}

/// The path by which the kernel shows a descriptor.
fn path_of(fd: c_int) -> Option<Vec<u8>> {
    let shown = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let mut path = vec![0_u8; PATH_BYTES_MAX];
    // SAFETY: the path ends with a zero, and the place is as long as is said.
    let count = unsafe {
        real::readlinkat(
            libc::AT_FDCWD,
            shown.as_ptr(),
            path.as_mut_ptr().cast(),
            path.len(),
        )
    };
    path.truncate(usize::try_from(count).ok()?);
    (path.len() < PATH_BYTES_MAX).then_some(path)
}

/// Where a path leads, if that is below the mount point.
fn lead<'p>(directory: c_int, path: &'p [u8], does: Does) -> Option<(&'static Live, Place<'p>)> {
    let mount = is_served()?;
    if path[0] == b'/' {
        if let Some(rest) = below(mount, path) {
            return Some((wanted(does)?, Place::new(rest)));
        }
        if table::has_any() && shows_descriptors(path) {
            match shown(path) {
                Some(fd) => leave(fd).ok()?,
                None => {
                    let live = live()?;
                    inside(|| live.table.leave_all(|_| true));
                }
            }
        }
        return None;
    }
    if directory == libc::AT_FDCWD {
        if !is_below(mount) {
            return None;
        }
        let live = wanted(does)?;
        return Some((live, Place::at(directory_of(live)?, path)));
    }
    if !table::is_known(directory) {
        adopt(mount, directory, does)?;
    }
    let live = live()?;
    let opened = live.inside(|| live.table.get(directory))?;
    opened.is_directory.then(|| (live, Place::at(opened.inode, path)))
}

/// Makes a call by a path, if it is served; None if the kernel is to make it.
pub(crate) fn at<R>(
    (directory, path): (c_int, *const c_char),
    does: Does,
    make: impl FnOnce(&Live, Place<'_>) -> Result<R, Errno>,
) -> Option<Done<R>> {
    is_served()?;
    let (live, place) = lead(directory, bytes(path)?, does)?;
    served(live, || make(live, place).map_err(code))
}

/// The same with two paths, if both are below the mount point.
pub(crate) fn at_both<R>(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    make: impl FnOnce(&Live, Place<'_>, Place<'_>) -> Result<R, Errno>,
) -> Option<Done<R>> {
    is_served()?;
    let (_, from) = lead(from.0, bytes(from.1)?, Does::Change)?;
    let (live, to) = lead(to.0, bytes(to.1)?, Does::Change)?;
    served(live, || make(live, from, to).map_err(code))
}

/// Makes a call of the session's. The kernel makes those that lead out of the mount, and those of a lost session of which the log has nothing.
fn served<R>(live: &Live, make: impl FnOnce() -> Done<R>) -> Option<Done<R>> {
    match keeping_errno(live, make) {
        Err(libc::EXDEV | libc::ESTALE) => {
            inside(|| live.is_lost());
            None
        }
        done => {
            // What the log may have of the call is not made again: the program hears of it.
            if matches!(done, Err(libc::EIO)) {
                inside(|| live.is_lost());
            }
            Some(done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: after any look into `/proc` the kernel had all files. Fix: only what shows descriptors counts, or leads there.
    #[test]
    fn only_what_shows_descriptors_has_the_kernel_get_them() {
        for path in [
            "/proc/self/fd/4",
            "/proc/self/fd",
            "/proc/12/fdinfo/4",
            "/proc/self/task/7/fd",
            "/proc/self",
            "/proc/self/",
            "/proc/12/task",
            "/proc",
            "/proc/thread-self/../12/stat",
            "/dev/fd/4",
            "/dev/fd",
            "/dev/stdin",
        ] {
            assert!(shows_descriptors(path.as_bytes()), "{path}");
        }
        for (path, fd) in [
            ("/proc/self/fd/4", Some(4)),
            ("/proc/9/task/7/fdinfo/5/", Some(5)),
            ("/dev/fd/6", Some(6)),
            ("/proc/12", None),
            ("/proc/self/fd", None),
            ("/dev/stdin", None),
        ] {
            assert_eq!(shown(path.as_bytes()), fd, "{path}");
        }
        for path in [
            "/proc/self/stat",
            "/proc/self/maps",
            "/proc/meminfo",
            "/proc/sys/vm/overcommit_memory",
            "/proc/self/task/7/stat",
            "/process/fd/4",
            "/dev/null",
        ] {
            assert!(!shows_descriptors(path.as_bytes()), "{path}");
        }
    }
}
