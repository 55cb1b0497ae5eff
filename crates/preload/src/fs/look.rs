//! What files are.

use super::answers::{Done, answer, code};
use super::live::Live;
use super::place::{Does, at, is_empty};
use super::served::by;
use libc::{c_char, c_int, c_uint, dev_t};
use libfs::{Errno, Stat, Time};
use std::mem;

/// The unit of `st_blksize`, and in units of `st_blocks`.
const BLOCK_BYTES: i64 = 4096;
const BLOCK_UNITS: u64 = 8;
/// Flags of `fstatat` and `statx`.
const KNOWN_FLAGS: c_int =
    libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | libc::AT_STATX_SYNC_TYPE;

/// `new_decode_dev` of Linux.
fn device(coded: u32) -> (c_uint, c_uint) {
    (coded >> 8 & 0xfff, coded & 0xff | coded >> 12 & 0xf_ff00)
}

fn stat_of(device_of_mount: dev_t, found: &Stat) -> libc::stat {
    let inode = &found.inode;
    let (major, minor) = device(inode.device);
    // SAFETY: zeros are a valid `stat`.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    stat.st_dev = device_of_mount;
    stat.st_ino = found.number;
    stat.st_nlink = inode.links as _;
    stat.st_mode = inode.mode;
    stat.st_uid = inode.uid;
    stat.st_gid = inode.gid;
    stat.st_rdev = libc::makedev(major, minor);
    stat.st_size = inode.size as i64;
    stat.st_blksize = BLOCK_BYTES as _;
    stat.st_blocks = (inode.blocks * BLOCK_UNITS) as i64;
    (stat.st_atime, stat.st_atime_nsec) = (inode.atime.seconds, i64::from(inode.atime.ns));
    (stat.st_mtime, stat.st_mtime_nsec) = (inode.mtime.seconds, i64::from(inode.mtime.ns));
    (stat.st_ctime, stat.st_ctime_nsec) = (inode.ctime.seconds, i64::from(inode.ctime.ns));
    stat
}

fn statx_of(live: &Live, found: &Stat, mask: c_uint) -> libc::statx {
    let inode = &found.inode;
    let time = |time: Time, place: &mut libc::statx_timestamp| {
        (place.tv_sec, place.tv_nsec) = (time.seconds, time.ns);
    };
    // SAFETY: zeros are a valid `statx`.
    let mut statx: libc::statx = unsafe { mem::zeroed() };
    statx.stx_mask = libc::STATX_BASIC_STATS | mask & (libc::STATX_BTIME | libc::STATX_MNT_ID);
    statx.stx_blksize = BLOCK_BYTES as u32;
    statx.stx_nlink = inode.links;
    statx.stx_uid = inode.uid;
    statx.stx_gid = inode.gid;
    statx.stx_mode = inode.mode as u16;
    statx.stx_ino = found.number;
    statx.stx_size = inode.size;
    statx.stx_blocks = inode.blocks * BLOCK_UNITS;
    time(inode.atime, &mut statx.stx_atime);
    time(inode.mtime, &mut statx.stx_mtime);
    time(inode.ctime, &mut statx.stx_ctime);
    if mask & libc::STATX_BTIME != 0 {
        time(inode.btime, &mut statx.stx_btime);
    }
    (statx.stx_rdev_major, statx.stx_rdev_minor) = device(inode.device);
    statx.stx_dev_major = libc::major(live.mount.device);
    statx.stx_dev_minor = libc::minor(live.mount.device);
    statx.stx_mnt_id = live.mount_id;
    statx
}

/// What is found for the arguments of `fstatat` and `statx`.
fn find<R>(
    (directory, path): (c_int, *const c_char),
    flags: c_int,
    tell: impl Fn(&Live, &Stat) -> R,
) -> Option<Done<R>> {
    if flags & !KNOWN_FLAGS != 0 {
        return None;
    }
    if flags & libc::AT_EMPTY_PATH != 0 && is_empty(path) {
        return by(directory, |live, _, file| {
            Ok(tell(live, &file.stat().map_err(code)?))
        });
    }
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    at((directory, path), Does::Look, |live, place| {
        Ok(tell(live, &live.files.stat(place, follows)?))
    })
}

pub(crate) unsafe fn stat(
    from: (c_int, *const c_char),
    place: *mut libc::stat,
    flags: c_int,
) -> Option<c_int> {
    let found = find(from, flags, |live, found| stat_of(live.mount.device, found))?;
    // SAFETY: the program's place.
    Some(answer(found.map(|found| unsafe {
        place.write(found);
        0
    })))
}

pub(crate) unsafe fn fstat(fd: c_int, place: *mut libc::stat) -> Option<c_int> {
    // SAFETY: the caller's arguments.
    unsafe { stat((fd, c"".as_ptr()), place, libc::AT_EMPTY_PATH) }
}

pub(crate) unsafe fn statx(
    from: (c_int, *const c_char),
    (flags, mask): (c_int, c_uint),
    place: *mut libc::statx,
) -> Option<c_int> {
    let found = find(from, flags, |live, found| statx_of(live, found, mask))?;
    // SAFETY: the program's place.
    Some(answer(found.map(|found| unsafe {
        place.write(found);
        0
    })))
}

pub(crate) fn access(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    let is_known = flags & !(libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW) == 0 && mode & !7 == 0;
    if !is_known {
        return None;
    }
    let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let done = at((directory, path), Does::Look, |live, place| {
        if flags & libc::AT_EACCESS == 0 && !live.is_plain_user {
            return Err(Errno::CrossDevice);
        }
        match mode {
            0 => live.files.stat(place, follows).map(|_| 0),
            mode => live.files.access(place, mode as u32, follows).map(|()| 0),
        }
    });
    done.map(answer)
}
