//! What the kernel is told of inodes.

use crate::engine::{Failure, Turn};
use fs::format::BLOCK_BYTES;
use fs::inode::{Inode, Time};
use fuse::abi::{Attr, AttrOut, EntryOut, Errno, Statx, StatxOut, SxTime};

/// The kernel keeps what it is told for so long: nothing changes behind its back.
pub(crate) const VALID_S: u64 = 3600;

/// For how many seconds the kernel keeps a name, and attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Valid {
    pub entry: u64,
    pub attr: u64,
}

impl Valid {
    /// Of an answer that a name of a directory leads to an inode. Attributes are dropped when
    /// their lease goes, but for those that the kernel is being told with an inode that it did not know: it may drop them before it has them.
    pub fn of(turn: &mut Turn<'_>, directory: u64, is_known: bool) -> Self {
        let attr = match is_known {
            true => VALID_S,
            false => Self::of_change(turn),
        };
        Self {
            entry: if turn.may_keep_names(directory) {
                VALID_S
            } else {
                0
            },
            attr,
        }
    }

    /// Of the attributes in the answer to a change, which the kernel takes whatever it was told meanwhile.
    pub fn of_change(turn: &Turn<'_>) -> u64 {
        if turn.is_shared() { 0 } else { VALID_S }
    }
}
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

pub(crate) fn attr_out(number: u64, inode: &Inode, attr_valid: u64) -> AttrOut {
    AttrOut {
        attr_valid,
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

pub(crate) fn entry_out(number: u64, inode: &Inode, valid: Valid) -> EntryOut {
    EntryOut {
        nodeid: number,
        entry_valid: valid.entry,
        attr_valid: valid.attr,
        attr: attr_of(number, inode),
        ..EntryOut::default()
    }
}

/// The kernel remembers that there is no such name.
pub(crate) fn negative_entry(valid: Valid) -> EntryOut {
    EntryOut {
        entry_valid: valid.entry,
        ..EntryOut::default()
    }
}

pub(crate) fn errno_of(failure: &Failure) -> Errno {
    match failure {
        Failure::Posix(errno) => Errno::from_raw_os_error(errno.code()),
        Failure::TooLong => Errno::FBIG,
        Failure::NoBlocks => Errno::NOSPC,
        Failure::Busy | Failure::Stalled | Failure::Leases(_) => Errno::AGAIN,
        Failure::Log | Failure::Digest | Failure::Read => Errno::IO,
    }
}
