//! The errors of Linux that operations are refused with.

use thiserror::Error;

/// Why an operation is refused, as Linux calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[repr(i32)]
pub enum Errno {
    /// It may not be done at all.
    #[error("operation not permitted")]
    NotPermitted = 1,
    /// A name, or an inode, is not there.
    #[error("no such file or directory")]
    NoEntry = 2,
    /// A block is not what its checksum says.
    #[error("input/output error")]
    Io = 5,
    /// There are no data behind the offset.
    #[error("no such device or address")]
    NoAddress = 6,
    /// The value of an attribute is longer than any may be.
    #[error("argument list too long")]
    TooBig = 7,
    /// The caller may not do it.
    #[error("permission denied")]
    Access = 13,
    /// The root directory cannot go.
    #[error("device or resource busy")]
    Busy = 16,
    /// The name is taken.
    #[error("file exists")]
    Exists = 17,
    /// It leads to another file system.
    #[error("invalid cross-device link")]
    CrossDevice = 18,
    /// It has no blocks to allocate.
    #[error("no such device")]
    NoDevice = 19,
    /// A name in what is no directory.
    #[error("not a directory")]
    NotDirectory = 20,
    /// It takes a file.
    #[error("is a directory")]
    IsDirectory = 21,
    /// It makes no sense.
    #[error("invalid argument")]
    Invalid = 22,
    /// It would end too far away.
    #[error("file too large")]
    FileTooBig = 27,
    /// A device is full, or an attribute is longer than the format has room for.
    #[error("no space left on device")]
    NoSpace = 28,
    /// An inode has as many names as it can have.
    #[error("too many links")]
    TooManyLinks = 31,
    /// An attribute's name is empty or too long, or the buffer too short for its value.
    #[error("numerical result out of range")]
    Range = 34,
    /// A name or target is too long.
    #[error("file name too long")]
    NameTooLong = 36,
    /// It has entries.
    #[error("directory not empty")]
    NotEmpty = 39,
    /// A symbolic link in the place of what it leads to.
    #[error("too many levels of symbolic links")]
    Loop = 40,
    /// No such attribute.
    #[error("no data available")]
    NoData = 61,
    /// Not of this kind of inode.
    #[error("operation not supported")]
    NotSupported = 95,
    /// The operation says something of the files that is not so.
    #[error("stale file handle")]
    Stale = 116,
}

impl Errno {
    /// Its number.
    pub const fn code(self) -> i32 {
        self as i32
    }
}
