//! After a crash: what becomes of a file, and its changes in their order.

use super::{Change, Claim, Description, FileId, Identity};
use core::ops::Range;
use std::collections::BTreeMap;
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

/// A described file as its file system has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The file itself, under whatever name, or what is at its path.
    pub present: Present,
    /// The page cache of `present`, or of the directory if there is nothing.
    pub cache: Option<u64>,
    /// The file system of the file is mounted where it was ([`Place`](super::Place)).
    pub is_mounted: bool,
    /// When `present` changed last (ctime), in ns since 1970.
    pub changed_ns: u64,
    /// When a name in the directory of the path changed last (its ctime), in ns since 1970.
    pub directory_changed_ns: u64,
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
    /// Its file system is not mounted where it was: nobody knows what became of it.
    Away,
}

/// An entry of the log is no change, or not all of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the area's records of files make no sense at position {0}")]
pub struct Malformed(pub u64);

impl Description {
    /// The fate of the file, which may have changed until `claim` by its own program. A file system that keeps a change of a
    /// directory keeps the changes before it, too: so a directory that changed later than the claim had the fresh file.
    pub fn fate(&self, evidence: &Evidence, claim: Claim) -> Fate {
        let wanted = self.identity;
        let is_intact = evidence.cache == Some(wanted.cache);
        let has_moved_on = evidence.changed_ns > claim.until_ns;
        let has_new_names = evidence.directory_changed_ns > claim.until_ns;
        let dated_ns = match self.is_fresh {
            true => evidence.directory_changed_ns,
            false => evidence.changed_ns,
        };
        let is_rolled_back = dated_ns < self.since_ns;
        // An older file that changed after this one was born came to the path later, as by a rename.
        let came_later = evidence.changed_ns > wanted.born_ns;
        let is_older = |it: Identity| {
            self.is_fresh && it.born_ns < wanted.born_ns && !came_later && !has_moved_on && !has_new_names
        };
        match evidence.present {
            Present::File(it) if is_intact && it.is_same_file(&wanted) => Fate::Complete,
            _ if is_intact => Fate::Gone,
            _ if !evidence.is_mounted => Fate::Away,
            Present::Nothing if self.is_removed => Fate::Gone,
            // Nothing tells how old it was.
            Present::Nothing if !self.is_fresh => {
                Fate::Refuse("is missing, and the area has only its last changes")
            }
            Present::File(_) | Present::Nothing if is_rolled_back => {
                Fate::Refuse("is older than its program left it, as in a backup that was brought back")
            }
            Present::File(it) if it.is_same_file(&wanted) => match (self.is_removed, self.is_fresh) {
                _ if has_moved_on => Fate::Refuse("was changed after the program that the area belongs to"),
                (true, _) | (_, true) if wanted.born_ns == 0 => {
                    Fate::Refuse("may be another file, as its file system does not tell when files were made")
                }
                (true, _) => Fate::Remove,
                (false, true) => Fate::Rewrite,
                (false, false) => Fate::Replay,
            },
            // The file system has lost the removal of the one before, too.
            Present::File(it) if self.is_removed && is_older(it) => Fate::Remove,
            _ if self.is_removed => Fate::Gone,
            Present::Nothing if has_new_names => Fate::Refuse(
                "is missing, and its directory was changed after the program that the area belongs to",
            ),
            Present::Nothing => Fate::Rewrite,
            Present::File(it) if is_older(it) => Fate::Rewrite,
            Present::File(_) => Fate::Refuse("is another file than the one that the area has changes of"),
            Present::Other => Fate::Refuse("is no regular file any more"),
        }
    }
}

/// Goes through the changes of the log, without their data: `read` reads a position. The size below which no file can have
/// fallen since the last checkpoint, unless somebody else has cut it off.
pub fn least_sizes<E: From<Malformed>>(
    positions: Range<u64>,
    mut read: impl FnMut(u64) -> Result<Option<Vec<u8>>, E>,
) -> Result<BTreeMap<FileId, u64>, E> {
    let mut least = BTreeMap::new();
    let mut position = positions.start;
    while position < positions.end {
        let entry = read(position)?;
        let change = entry.as_deref().and_then(Change::parse);
        let change = change.ok_or(Malformed(position))?;
        // Before its first change a file was at least as long as where that begins.
        let size = least.entry(change.file).or_insert(change.offset);
        *size = change.size.min(*size);
        position += 1 + u64::from(change.pieces.unwrap_or(0));
    }
    Ok(least)
}

/// What the log leaves of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Parts of the file, by their beginnings: their ends, and which change of the log has written them last.
    parts: BTreeMap<u64, (u64, u64)>,
    /// Bytes of the file.
    pub size: u64,
    /// A change made it shorter, so what is behind its end is older.
    pub is_cut: bool,
    /// Its first change gave it a size. A file that is not fresh may have been longer before.
    pub may_be_cut: bool,
}

impl Outcome {
    /// True if a file of so many bytes can be what the log leaves, and perhaps more. A fresh file may have been emptied, not made, so all
    /// that the log does not have may be older.
    pub fn may_be_complete(&self, is_fresh: bool, bytes: u64) -> bool {
        let mut end = 0;
        let is_whole = self.parts.iter().all(|(&start, &(next, _))| {
            let before = core::mem::replace(&mut end, next);
            start == before
        });
        match is_fresh {
            true => is_whole && end == self.size && bytes == self.size,
            false => !self.is_cut && !self.may_be_cut && self.size <= bytes,
        }
    }
}

impl Outcome {
    fn change(&mut self, nth: u64, part: Range<u64>, size: u64) {
        self.is_cut |= size < self.size;
        self.size = size;
        if part.is_empty() {
            return;
        }
        let overlapped = self.parts.range(..part.end).rev();
        let overlapped: Vec<_> = overlapped
            .take_while(|(_, (end, _))| *end > part.start)
            .map(|(&start, &(end, by))| (start, end, by))
            .collect();
        for (start, end, by) in overlapped {
            self.parts.remove(&start);
            if start < part.start {
                self.parts.insert(start, (part.start, by));
            }
            if end > part.end {
                self.parts.insert(part.end, (end, by));
            }
        }
        self.parts.insert(part.start, (part.end, nth));
    }

    /// Those parts of `part` that the change has written last.
    pub fn last_of(&self, nth: u64, part: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let all = self.parts.range(part.start..part.end);
        all.filter(move |(_, (_, by))| *by == nth)
            .map(|(&start, &(end, _))| start..end)
    }
}

/// Goes through the log: what it leaves of each file in the end.
pub fn outcomes<E: From<Malformed>>(
    positions: Range<u64>,
    read: impl FnMut(u64) -> Result<Option<Vec<u8>>, E>,
) -> Result<BTreeMap<FileId, Outcome>, E> {
    let mut outcomes: BTreeMap<FileId, Outcome> = BTreeMap::new();
    let mut nth = 0;
    replay(positions, read, |id, offset, data, size| {
        let part = offset..offset + data.len() as u64;
        let may_be_cut = data.is_empty();
        let outcome = outcomes.entry(id).or_insert_with(|| Outcome {
            may_be_cut,
            ..Outcome::default()
        });
        outcome.change(nth, part, size);
        nth += 1;
        Ok(())
    })?;
    Ok(outcomes)
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
