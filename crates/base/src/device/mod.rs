//! What the software-defined SSD asks of its medium: whole pages at byte offsets, and flushes.

use crate::page::Page;
use thiserror::Error;

/// One request to the medium of a host. `offset` is a multiple of the pool's page size.
#[derive(Debug)]
pub struct MediaOp {
    /// Echoed in [`MediaDone`].
    pub id: u64,
    /// What to do.
    pub kind: MediaKind,
}

/// What to do to the medium.
#[derive(Debug)]
pub enum MediaKind {
    /// Fill `page` (its own, unshared) from `offset`.
    Read {
        /// Byte offset on the medium.
        offset: u64,
        /// Page to fill.
        page: Page,
    },
    /// Write `page` at `offset`. Not durable before a later [`MediaKind::Flush`] is done.
    Write {
        /// Byte offset on the medium.
        offset: u64,
        /// Page to write; nobody changes it until the operation is done.
        page: Page,
    },
    /// Make every write that was *done* before this was issued durable.
    Flush,
}

/// Completion of a [`MediaOp`].
#[derive(Debug)]
pub struct MediaDone {
    /// Of the operation.
    pub id: u64,
    /// The operation's page, returned.
    pub page: Option<Page>,
    /// How it ended.
    pub result: Result<(), MediaError>,
}

/// Why the medium refused. After a failed write or flush its owner latches the failure and refuses further writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MediaError {
    /// The device reported an error.
    #[error("the medium reported an I/O error")]
    Io,
    /// The offset is outside the medium.
    #[error("the offset is outside the medium")]
    OutOfRange,
}

/// The medium as the cold path sees it: formatting, recovery and offline verification.
pub trait Device {
    /// Fills `bytes` from `offset`.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError>;
    /// Writes `bytes` at `offset`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError>;
    /// Makes all writes durable.
    fn flush(&mut self) -> Result<(), MediaError>;
    /// Bytes of the medium.
    fn capacity_bytes(&self) -> u64;
}

/// A medium in memory, for tests and for `mem:` media.
impl Device for Vec<u8> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let start = usize::try_from(offset).map_err(|_| MediaError::OutOfRange)?;
        let source = self
            .get(start..start + bytes.len())
            .ok_or(MediaError::OutOfRange)?;
        bytes.copy_from_slice(source);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let start = usize::try_from(offset).map_err(|_| MediaError::OutOfRange)?;
        let target = self
            .get_mut(start..start + bytes.len())
            .ok_or(MediaError::OutOfRange)?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        Ok(())
    }

    fn capacity_bytes(&self) -> u64 {
        self.len() as u64
    }
}
