//! Calls that change names, and what files are.

use super::answers::answer;
use super::leave::leave;
use super::live::Live;
use super::place::{Does, at, at_both, bytes};
use super::served::call;
use libc::{c_char, c_int, c_uint, dev_t, gid_t, mode_t, off_t, timespec, uid_t};
use libfs::{Errno, Place, Rename, Stamp, Time, Wanted};

/// Says of no owner that it changes: set-ID bits go all the same, which the kernel does.
const NOBODY: (uid_t, gid_t) = (uid_t::MAX, gid_t::MAX);

type Named = (c_int, *const c_char);

/// A change by a path.
fn change(named: Named, make: impl FnOnce(&Live, Place<'_>) -> Result<(), Errno>) -> Option<c_int> {
    at(named, Does::Change, make).map(|done| answer(done.map(|()| 0)))
}

pub(crate) fn mkdir(named: Named, mode: mode_t) -> Option<c_int> {
    change(named, |live, place| live.files.mkdir(place, mode))
}

/// Files, pipes and sockets: devices are the kernel's.
pub(crate) fn mknod(named: Named, mode: mode_t, device: dev_t) -> Option<c_int> {
    let mode = match mode & libc::S_IFMT {
        0 => libc::S_IFREG | mode,
        libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK => mode,
        _ => return None,
    };
    if device != 0 {
        return None;
    }
    change(named, |live, place| live.files.mknod(place, mode, 0))
}

pub(crate) fn symlink(target: *const c_char, named: Named) -> Option<c_int> {
    let target = bytes(target)?;
    change(named, |live, place| live.files.symlink(target, place))
}

pub(crate) fn link(from: Named, to: Named, flags: c_int) -> Option<c_int> {
    if flags & !libc::AT_SYMLINK_FOLLOW != 0 {
        return None;
    }
    let follows = flags & libc::AT_SYMLINK_FOLLOW != 0;
    let done = at_both(from, to, |live, from, to| {
        live.files.link(from, to, follows).map(|()| 0)
    });
    done.map(answer)
}

pub(crate) fn unlink(named: Named, flags: c_int) -> Option<c_int> {
    match flags {
        0 => change(named, |live, place| live.files.unlink(place)),
        libc::AT_REMOVEDIR => change(named, |live, place| live.files.rmdir(place)),
        _ => None,
    }
}

/// Of the C library: what it is does not count.
pub(crate) fn remove(named: Named) -> Option<c_int> {
    change(named, |live, place| match live.files.unlink(place) {
        Err(Errno::IsDirectory) => live.files.rmdir(place),
        done => done,
    })
}

pub(crate) fn rename(from: Named, to: Named, flags: c_uint) -> Option<c_int> {
    if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
        return None;
    }
    let how = Rename {
        keeps_target: flags & libc::RENAME_NOREPLACE != 0,
        exchanges: flags & libc::RENAME_EXCHANGE != 0,
    };
    if how.keeps_target && how.exchanges {
        return None;
    }
    let done = at_both(from, to, |live, from, to| {
        live.files.rename(from, to, how).map(|()| 0)
    });
    done.map(answer)
}

/// What is set of which file.
fn set(named: Named, wanted: &Wanted, follows: bool) -> Option<c_int> {
    change(named, |live, place| live.files.set(place, wanted, follows))
}

fn set_of(fd: c_int, wanted: &Wanted) -> Option<c_int> {
    call(fd, |_, file| file.set(wanted).map(|()| 0)).map(answer)
}

pub(crate) fn chmod(named: Named, mode: mode_t, flags: c_int) -> Option<c_int> {
    match flags {
        0 => set(named, &mode_of(mode), true),
        // The C library would open it to find out whether it is a link, which has no mode to be changed.
        libc::AT_SYMLINK_NOFOLLOW => change(named, |live, place| {
            match live.files.stat(place, false)?.inode.mode & libc::S_IFMT {
                libc::S_IFLNK => Err(Errno::NotSupported),
                _ => live.files.set(place, &mode_of(mode), false),
            }
        }),
        _ => None,
    }
}

pub(crate) fn fchmod(fd: c_int, mode: mode_t) -> Option<c_int> {
    set_of(fd, &mode_of(mode))
}

fn mode_of(mode: mode_t) -> Wanted {
    Wanted {
        mode: Some(mode & 0o7777),
        ..Wanted::default()
    }
}

fn owner_of(owner: (uid_t, gid_t)) -> Wanted {
    Wanted {
        uid: (owner.0 != uid_t::MAX).then_some(owner.0),
        gid: (owner.1 != gid_t::MAX).then_some(owner.1),
        ..Wanted::default()
    }
}

pub(crate) fn chown(named: Named, owner: (uid_t, gid_t), flags: c_int) -> Option<c_int> {
    if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 || owner == NOBODY {
        return None;
    }
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    set(named, &owner_of(owner), follows)
}

pub(crate) fn fchown(fd: c_int, owner: (uid_t, gid_t)) -> Option<c_int> {
    match owner {
        NOBODY => leave(fd).err().map(|_| answer(Err(libc::EIO))),
        owner => set_of(fd, &owner_of(owner)),
    }
}

pub(crate) fn truncate(named: Named, size: off_t) -> Option<c_int> {
    let size = u64::try_from(size).ok()?;
    let wanted = Wanted {
        size: Some(size),
        ..Wanted::default()
    };
    set(named, &wanted, true)
}

/// Two times, as `utimensat` takes them; none if one of them is no time.
unsafe fn times_of(times: *const timespec) -> Option<Wanted> {
    let stamp = |time: &timespec| match time.tv_nsec {
        libc::UTIME_NOW => Some(Some(Stamp::Now)),
        libc::UTIME_OMIT => Some(None),
        ns @ 0..1_000_000_000 => Some(Some(Stamp::At(Time {
            seconds: time.tv_sec,
            ns: ns as u32,
        }))),
        _ => None,
    };
    let (atime, mtime) = match times.is_null() {
        true => (Some(Stamp::Now), Some(Stamp::Now)),
        // SAFETY: the program's two times.
        false => unsafe { (stamp(&*times)?, stamp(&*times.add(1))?) },
    };
    Some(Wanted {
        atime,
        mtime,
        ..Wanted::default()
    })
}

pub(crate) unsafe fn set_times(named: Named, times: *const timespec, flags: c_int) -> Option<c_int> {
    if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
        return None;
    }
    // SAFETY: the caller's times.
    let wanted = unsafe { times_of(times) }?;
    if named.1.is_null() {
        return set_of(named.0, &wanted);
    }
    set(named, &wanted, flags & libc::AT_SYMLINK_NOFOLLOW == 0)
}
