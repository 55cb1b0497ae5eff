//! What the kernel is told of inodes.

use crate::engine::Failure;
use fs::format::BLOCK_BYTES;
use fs::inode::{Inode, Time};
use fuse::abi::{Attr, AttrOut, EntryOut, Errno, Statx, StatxOut, SxTime};

/// The kernel keeps what it is told for so long. It is the only way to the files as long as they are mounted, so nothing changes
/// behind its back.
pub(crate) const VALID_S: u64 = 3600;
/// `st_blocks` counts these.
const STAT_BLOCK_BYTES: u64 = 512;

/// Of statx(2).
const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

/// The kernel's `dev_t` (`new_encode_dev`) is what `mknod` sends, and is kept as it came.
pub(crate) fn attr_of(number: u64, inode: &Inode) -> Attr {
    let time = |time: Time| (time.seconds as u64, time.ns);
    let ((atime, atimensec), (mtime, mtimensec), (ctime, ctimensec)) =
        (time(inode.atime), time(inode.mtime), time(inode.ctime));
    Attr {
        ino: number,
        size: inode.size,
        blocks: inode.blocks * (BLOCK_BYTES as u64 / STAT_BLOCK_BYTES),
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: inode.mode,
        nlink: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.device,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

pub(crate) fn attr_out(number: u64, inode: &Inode) -> AttrOut {
    AttrOut {
        attr_valid: VALID_S,
        attr: attr_of(number, inode),
        ..AttrOut::default()
    }
}

/// What statx(2) tells beyond `stat`: when the inode was made.
pub(crate) fn statx_out(number: u64, inode: &Inode) -> StatxOut {
    let time = |time: Time| SxTime {
        tv_sec: time.seconds,
        tv_nsec: time.ns,
        reserved: 0,
    };
    let device = u64::from(inode.device);
    StatxOut {
        attr_valid: VALID_S,
        stat: Statx {
            mask: STATX_BASIC_STATS | STATX_BTIME,
            blksize: BLOCK_BYTES as u32,
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            mode: inode.mode as u16,
            ino: number,
            size: inode.size,
            blocks: inode.blocks * (BLOCK_BYTES as u64 / STAT_BLOCK_BYTES),
            atime: time(inode.atime),
            btime: time(inode.btime),
            ctime: time(inode.ctime),
            mtime: time(inode.mtime),
            // `new_decode_dev` of Linux.
            rdev_major: (device >> 8 & 0xfff) as u32,
            rdev_minor: (device & 0xff | device >> 12 & 0xfff00) as u32,
            ..Statx::default()
        },
        ..StatxOut::default()
    }
}

pub(crate) fn entry_out(number: u64, inode: &Inode) -> EntryOut {
    EntryOut {
        nodeid: number,
        entry_valid: VALID_S,
        attr_valid: VALID_S,
        attr: attr_of(number, inode),
        ..EntryOut::default()
    }
}

/// The kernel remembers that there is no such name.
pub(crate) fn negative_entry() -> EntryOut {
    EntryOut {
        entry_valid: VALID_S,
        ..EntryOut::default()
    }
}

pub(crate) fn errno_of(failure: &Failure) -> Errno {
    match failure {
        Failure::Posix(errno) => Errno::from_raw_os_error(errno.code()),
        Failure::TooLong => Errno::FBIG,
        Failure::NoBlocks => Errno::NOSPC,
        Failure::Busy | Failure::Stalled => Errno::AGAIN,
        Failure::Log | Failure::Digest | Failure::Read => Errno::IO,
    }
}
