//! After a crash: what becomes of a file, and its changes in their order.

use super::{Change, Description, FileId, Identity};
use core::ops::Range;
use thiserror::Error;

/// The present file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// Nothing.
    Nothing,
    /// A regular file.
    File(Identity),
    /// Something else.
    Other,
}

/// The fate of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has everything; to be synced.
    Complete,
    /// It is gone, and should be.
    Gone,
    /// It should be.
    Remove,
    /// Its changes are made to what is there.
    Replay,
    /// Its changes are all that is in it.
    Rewrite,
    /// Another file is at its path: why.
    Refuse(&'static str),
}

/// An entry of the log is no change, or not all of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the area's records of files make no sense at position {0}")]
pub struct Malformed(pub u64);

impl Description {
    /// The fate of the file: `present` is at its path. `cache` is the page cache of the file there, or of the directory if
    /// there is no file.
    pub fn fate(&self, present: Present, cache: Option<u64>) -> Fate {
        let wanted = self.identity;
        let same = |it: Identity| (it.inode, it.born_ns) == (wanted.inode, wanted.born_ns);
        let is_intact = cache == Some(wanted.cache);
        match present {
            Present::File(it) if is_intact && same(it) => Fate::Complete,
            _ if is_intact => Fate::Gone,
            Present::File(it) if same(it) => match (self.is_removed, self.is_fresh) {
                (true, _) => Fate::Remove,
                (false, true) => Fate::Rewrite,
                (false, false) => Fate::Replay,
            },
            // The file system has lost the removal of the one before, too.
            Present::File(it) if self.is_removed && self.is_fresh && it.born_ns < wanted.born_ns => {
                Fate::Remove
            }
            _ if self.is_removed => Fate::Gone,
            Present::Nothing if self.is_fresh => Fate::Rewrite,
            Present::Nothing => Fate::Refuse("is missing, and the area has only its last changes"),
            Present::File(it) if self.is_fresh && it.born_ns < wanted.born_ns => Fate::Rewrite,
            Present::File(_) => Fate::Refuse("is another file than the one that the area has changes of"),
            Present::Other => Fate::Refuse("is no regular file any more"),
        }
    }
}

/// Goes through the log: `read` reads a position, `apply` takes each change: of which file, where its data goes, the data, and
/// the file's size afterwards.
pub fn replay<E: From<Malformed>>(
    positions: Range<u64>,
    mut read: impl FnMut(u64) -> Result<Option<Vec<u8>>, E>,
    mut apply: impl FnMut(FileId, u64, &[u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut position = positions.start;
    while position < positions.end {
        let entry = read(position)?;
        let change = entry
            .as_deref()
            .and_then(Change::parse)
            .ok_or(Malformed(position))?;
        position += 1;
        let mut data = Vec::new();
        for _ in 0..change.pieces.unwrap_or(0) {
            data.extend(read(position)?.ok_or(Malformed(position))?);
            position += 1;
        }
        apply(change.file, change.offset, &data, change.size)?;
    }
    Ok(())
}
