//! Block requests as frontends hand them to a volume. They are validated once, at the edge: offset and length are
//! multiples of a sector and lie inside the volume.

use crate::id::VolumeId;
use crate::page::Pages;
use thiserror::Error;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    /// Read `length` bytes.
    Read,
    /// Write `length` bytes.
    Write,
    /// Make everything acknowledged so far durable on every replica.
    Flush,
    /// Forget the range: it reads as zeros afterwards.
    Trim,
    /// Zero the range.
    WriteZeroes,
}

/// One request of a client.
#[derive(Debug)]
pub struct BlockRequest {
    /// The client's connection; replies carry it back.
    pub client: u32,
    /// The client's own mark; replies carry it back.
    pub tag: u64,
    /// Which volume.
    pub volume: VolumeId,
    /// What to do.
    pub op: BlockOp,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u32,
    /// Durable on every replica before it is acknowledged (writes, trims and zeroes).
    pub fua: bool,
    /// Data of a write, laid out on the volume's page grid: `pages[i]` is the i-th page that the range touches, and
    /// only the sectors inside the range count. Empty for everything else.
    pub pages: Pages,
}

/// The answer to a [`BlockRequest`].
#[derive(Debug)]
pub struct BlockReply {
    /// Of the request.
    pub client: u32,
    /// Of the request.
    pub tag: u64,
    /// How it ended. Data of a read, on the page grid as in [`BlockRequest::pages`].
    pub result: Result<Pages, BlockError>,
}

/// Why a block request failed. Frontends translate it to their protocol's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum BlockError {
    /// Unaligned, outside the volume, or too long (EINVAL).
    #[error("the request is unaligned, too long or outside the volume")]
    Invalid,
    /// No such volume (ENODEV).
    #[error("no such volume")]
    NoVolume,
    /// The volume or the export is read-only (EPERM).
    #[error("the volume is read-only")]
    ReadOnly,
    /// Another host has reserved the volume (EPERM).
    #[error("the volume is reserved")]
    Reserved,
    /// No free flash is left (ENOSPC).
    #[error("no free flash is left")]
    NoSpace,
    /// The medium is damaged on every replica, or acknowledged writes were lost before a flush (EIO).
    #[error("the data could not be read, or not be kept")]
    Io,
    /// The server stops (ESHUTDOWN).
    #[error("the server is shutting down")]
    Shutdown,
    /// Another gateway serves the volume, or may do so in a moment. Whether this was executed is not known.
    #[error("another gateway serves the volume")]
    Elsewhere,
}
