//! Where paths have led in a process, as long as nothing has changed since of what it has leases of: neither by its own calls, nor as it gave a lease back. Programs
//! look at the same paths again and again, and each name of a path costs a search in what is known.

use crate::format::hash_of;
use crate::inode::Inode;
use base::Map;

/// Paths that are kept, at most; more begin anew.
const WALKS_MAX: usize = 1 << 13;
/// So many paths are walked without a change before one is kept: a program that changes something with each call gains nothing by it.
const WALKS_BEFORE: u32 = 8;

/// A path that led somewhere.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The directory that it begins at, unless it begins at the root.
    pub base: u64,
    /// A link at its end is followed.
    pub follows: bool,
    /// The path.
    pub path: Box<[u8]>,
    /// The directory with the last name.
    pub parent: u64,
    /// The last name, if the path ends with one.
    pub name: Option<Box<[u8]>>,
    /// What is there.
    pub found: (u64, Inode),
    /// The path says that it is a directory.
    pub is_directory: bool,
}

/// Paths that were walked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walks {
    by_hash: Map<u64, Walk>,
    /// Walks since the last change.
    count: u32,
}

fn hash(base: u64, follows: bool, path: &[u8]) -> u64 {
    hash_of(path, base << 1 | u64::from(follows))
}

impl Walks {
    pub fn find(&self, base: u64, follows: bool, path: &[u8]) -> Option<&Walk> {
        if self.by_hash.is_empty() {
            return None;
        }
        let walk = self.by_hash.get(&hash(base, follows, path))?;
        (walk.base == base && walk.follows == follows && *walk.path == *path).then_some(walk)
    }

    /// Keeps a walk, if it is time.
    pub fn keep(&mut self, walk: impl FnOnce() -> Walk) {
        self.count = self.count.saturating_add(1);
        if self.count <= WALKS_BEFORE {
            return;
        }
        if self.by_hash.len() >= WALKS_MAX {
            self.by_hash.clear();
        }
        let walk = walk();
        self.by_hash
            .insert(hash(walk.base, walk.follows, &walk.path), walk);
    }

    /// Something has changed.
    pub fn forget(&mut self) {
        self.count = 0;
        if !self.by_hash.is_empty() {
            self.by_hash.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(number: u64) -> Walk {
        Walk {
            base: 1,
            follows: true,
            path: format!("/{number}").into_bytes().into(),
            parent: 1,
            name: None,
            found: (number, Inode::default()),
            is_directory: false,
        }
    }

    #[test]
    fn walks_are_found_until_something_changes() {
        let mut walks = Walks::default();
        for number in 0..20 {
            walks.keep(|| walk(number));
        }
        assert!(walks.find(1, true, b"/3").is_none(), "one of the first");
        assert_eq!(walks.find(1, true, b"/19").map(|walk| walk.found.0), Some(19));
        assert!(walks.find(1, false, b"/19").is_none());
        assert!(walks.find(2, true, b"/19").is_none());
        walks.forget();
        assert!(walks.find(1, true, b"/19").is_none());
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let mut walks = Walks::default();
        for number in 0..3 * WALKS_MAX as u64 {
            walks.keep(|| walk(number));
            assert!(walks.by_hash.len() <= WALKS_MAX);
        }
        assert!(!walks.by_hash.is_empty());
    }
}
