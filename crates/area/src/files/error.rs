//! Why files cannot be kept in an area.

use crate::error::AreaError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why files cannot be kept in an area.
#[derive(Debug, Error)]
pub enum FilesError {
    /// The area.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// A file.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Root recovers the area of a user, who may not write this file.
    #[error(
        "{}: user {user}, whose file the area is, may not write it, so recovery does not: if you trust what the area says, give the \
         area to root (chown) and try again",
        .path.display()
    )]
    Forbidden {
        /// The file.
        path: PathBuf,
        /// The owner of the area.
        user: u32,
    },
    /// Nobody may change the file: it has an inode flag that forbids it.
    #[error(
        "{}: it is append-only or immutable (lsattr), so nobody can write what it lacks: allow it by `chattr -a -i`, and try again",
        .0.display()
    )]
    Sealed(PathBuf),
    /// The area's changes of files cannot be brought back to the files.
    #[error(
        "{0}: `switchyard export AREA DIR` writes what the area has of it to another place, and `switchyard export AREA --forget \
         FILE` gives it up"
    )]
    Refused(String),
    /// The area has changes of a file whose file system is not mounted where it was. Nothing was changed.
    #[error(
        "{path} is on {system}, which was mounted at {mount} and is not there: mount it and try again, or use \
         `switchyard export AREA DIR` for what the area has of the file, or `switchyard export AREA --forget FILE` to give it up",
        path = .path.display(),
        mount = .mount.display()
    )]
    Away {
        /// The file.
        path: PathBuf,
        /// In words.
        system: String,
        /// The directory on which it was mounted.
        mount: PathBuf,
    },
    /// A copy would take the place of a file that is to be copied. Nothing was copied.
    #[error(
        "{}: a copy there would replace a file that the area has something of: give a directory that does not lead to the files",
        .0.display()
    )]
    Original(PathBuf),
    /// The files of a running program cannot be copied as they are at one moment.
    #[error(
        "the program changes its files faster than they can be copied: try again when it writes less, or when it has ended"
    )]
    Changing,
    /// The area has entries that make no sense.
    #[error(transparent)]
    Malformed(#[from] store::files::Malformed),
}
