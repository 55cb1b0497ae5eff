//! Why an operation on an area failed.

use crate::catalog::ClientError;
use os::MediaOpenError;
use std::io;
use std::path::PathBuf;
use store::{FetchError, FollowError, OpenError, SnapshotEnded, SubmitError};
use thiserror::Error;

/// Why an operation on an area failed.
#[derive(Debug, Error)]
pub enum AreaError {
    /// The file cannot be opened.
    #[error(transparent)]
    Media(#[from] MediaOpenError),
    /// The server of a catalog.
    #[error(transparent)]
    Catalog(#[from] ClientError),
    /// The area inside cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file has somebody's data, which a new area would destroy.
    #[error("{} holds data at byte {offset}, and is no storage area: name another file", .path.display())]
    HoldsData {
        /// The file.
        path: PathBuf,
        /// Of the first byte that is not zero.
        offset: u64,
    },
    /// A block device becomes an area only if somebody asks for it.
    #[error("{path} is a block device without a storage area: `switchyard store format {path}` makes one", path = .0.display())]
    NotFormatted(PathBuf),
    /// A new area cannot be made.
    #[error("the area cannot be made: {0}")]
    Create(Box<dyn std::error::Error + Send + Sync>),
    /// It cannot become larger.
    #[error("the area cannot grow: {0}")]
    Grow(#[source] io::Error),
    /// Refused: nothing was done.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// A batch expected something of this key that is not so. Nothing of the batch was done.
    #[error("key \"{}\" of {structure:?} is not as the batch expects: nothing was done", .key.escape_ascii())]
    Conflict {
        /// Name of the map or tree.
        structure: Box<str>,
        /// Its key.
        key: Box<[u8]>,
    },
    /// The write failed: whether the operation is durable shows when the area is opened anew.
    #[error("the write failed: open the area anew to see whether it is there")]
    Failed,
    /// A thread panicked at its work for the area, which takes nothing more.
    #[error("a thread of the area has panicked: open the area anew to see what is there")]
    Panicked,
    /// A forked child has no part in its parent's area.
    #[error(
        "the area belongs to the process that opened it, not to a forked child: let the child open one of its own"
    )]
    Forked,
    /// The medium cannot be read.
    #[error("the area cannot be read: {0}")]
    Read(io::ErrorKind),
    /// A repair found the data of this position damaged.
    #[error("the data of this position were lost: a repair found them damaged")]
    Lost,
    /// A checksum does not match.
    #[error("the area is damaged, at byte {offset}")]
    Damaged {
        /// In the area.
        offset: u64,
    },
    /// The area cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The owner of an area that is followed has used space anew that the moment shown was in.
    #[error("the moment that was read is gone, as the area went on: refresh, and read again")]
    SnapshotGone,
    /// The snapshot is no more.
    #[error(transparent)]
    SnapshotEnded(#[from] SnapshotEnded),
    /// The operating system refuses memory or a thread.
    #[error("the system refuses the area's memory or thread: {0}")]
    System(#[from] io::Error),
}

impl From<FetchError> for AreaError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Damaged { offset } => Self::Damaged { offset },
            FetchError::Moved => Self::Read(io::ErrorKind::TimedOut),
        }
    }
}
