//! Descriptors of the mount for programs with logs of their own: a file that has no name any more can be opened, too.

use crate::serve::Opener;
use os::{HANDLE_BYTES, open_by_handle};
use rustix::fs::{FileType, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// `FILEID_INO64_GEN` (linux/exportfs.h): the inode in two halves, the upper one first, and its generation, which is 0 here.
const INO64_GEN: i32 = 0x81;

/// Opens inodes of a mount by their handles, which takes root. The calls that this makes are served by other threads.
pub(super) struct Handles {
    pub place: PathBuf,
    pub device: u64,
}

impl Opener for Handles {
    fn open(&self, inode: u64, flags: OFlags) -> io::Result<OwnedFd> {
        // One of `O_PATH` is not enough.
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.place, how, Mode::empty())?;
        if rustix::fs::fstat(&root)?.st_dev != self.device {
            // Somebody has mounted something on it, or unmounted it.
            return Err(rustix::io::Errno::STALE.into());
        }
        let mut handle = [0; HANDLE_BYTES];
        handle[..4].copy_from_slice(&((inode >> 32) as u32).to_ne_bytes());
        handle[4..8].copy_from_slice(&(inode as u32).to_ne_bytes());
        let open =
            |flags: OFlags| open_by_handle(root.as_fd(), (INO64_GEN, handle), flags.bits().cast_signed());
        let found = open(OFlags::PATH)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
            FileType::RegularFile | FileType::Directory => open(flags),
            // A pipe would keep this waiting, and a device is no file of the mount.
            _ => Err(rustix::io::Errno::INVAL.into()),
        }
    }
}
