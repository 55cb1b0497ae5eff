//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why something was not mounted. The text says what to do.
#[derive(Debug, Error)]
pub enum MountError {
    /// The kernel has no FUSE, or this process may not use it.
    #[error(
        "/dev/fuse: {0}; load the kernel's module with `modprobe fuse`, and in a container pass the device on"
    )]
    Device(#[source] io::Error),
    /// The place is no directory or file, or cannot be reached.
    #[error("mount point {}: {source}; it has to be a directory that exists", place.display())]
    Place {
        /// The mount point.
        place: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The server of a mount that is still there has died.
    #[error("mount point {}: the server of the mount there has ended; remove the mount with `umount -l {0}`", place.display())]
    Dead {
        /// The mount point.
        place: PathBuf,
    },
    /// An option cannot be written down.
    #[error("mount option {0}: letters, digits, and of other characters no comma and no control characters")]
    Option(&'static str),
    /// mount(2) refused.
    #[error("mount(2) on {}: {source}", place.display())]
    Refused {
        /// The mount point.
        place: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no `fusermount3`, and this process is not root.
    #[error("mounting needs root or fusermount3 ({0}): install the package fuse3, or mount as root")]
    NoHelper(#[source] io::Error),
    /// `fusermount3` refused; it has said why on standard error.
    #[error("fusermount3 did not mount on {}: {message}", place.display())]
    Helper {
        /// The mount point.
        place: PathBuf,
        /// What it said.
        message: String,
    },
}

/// Why something was not unmounted.
#[derive(Debug, Error)]
pub enum UnmountError {
    /// Programs have files of it open or their working directory there.
    #[error("{place} is busy: programs use it (`fuser -m {place}` lists them); unmount lazily to let them end by themselves", place = .0.display())]
    Busy(PathBuf),
    /// The system refused.
    #[error("unmounting {place}: {1}", place = .0.display())]
    Refused(PathBuf, #[source] io::Error),
}
