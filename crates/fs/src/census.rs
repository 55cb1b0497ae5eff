//! The part of the check that is about files: inodes, entries and extents of a root have to fit each other.

use crate::format::{Key, Kind, ROOT_INODE};
use crate::inode::{Inode, TYPE_DIRECTORY, TYPE_LINK, TYPE_MASK};
use crate::names::{Attribute, Dirent, kind_of};
use crate::op::is_name;
use crate::value::ExtentRecord;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// A kind of damage of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FileDamage {
    /// Something belongs to an inode that is not there.
    #[error("inode {0} has names, blocks or attributes, and is not there")]
    Missing(u64),
    /// An inode is not found by any name.
    #[error("inode {0} has no name, and is not noted as an orphan")]
    Nameless(u64),
    /// An orphan has a name, or is not there.
    #[error("inode {0} is noted as an orphan, and is none")]
    Orphan(u64),
    /// The links are wrong.
    #[error("inode {inode} says that it has {said} links, and has {found}")]
    Links {
        /// The inode.
        inode: u64,
        /// By the inode.
        said: u32,
        /// By the entries.
        found: u64,
    },
    /// The entries of a directory are wrong.
    #[error("directory {inode} says that it has {said} entries, and has {found}")]
    Entries {
        /// The directory.
        inode: u64,
        /// By the inode.
        said: u64,
        /// By the tree.
        found: u64,
    },
    /// The blocks of a file are wrong.
    #[error("inode {inode} says that it has {said} blocks, and has {found}")]
    Blocks {
        /// The inode.
        inode: u64,
        /// By the inode.
        said: u64,
        /// By its extents.
        found: u64,
    },
    /// An entry has another type than its inode.
    #[error("an entry says that inode {0} has another type than it has")]
    Type(u64),
    /// A directory is elsewhere than it says, or has two names.
    #[error("directory {inode} says that it is in inode {said}, and is in {found}")]
    Parent {
        /// The directory.
        inode: u64,
        /// By the inode.
        said: u64,
        /// By the entries.
        found: u64,
    },
    /// A directory is in itself.
    #[error("directory {0} is not below the root")]
    Circle(u64),
    /// A symbolic link has no target of its size.
    #[error("symbolic link {0} has no target of its size")]
    Target(u64),
}

#[derive(Debug, Default)]
struct Life {
    inode: Option<Inode>,
    /// Entries that lead here, the last directory with such, and whether all say the right type.
    names: u64,
    parent: u64,
    kinds: BTreeSet<u8>,
    /// Of a directory: entries, and directories among them.
    entries: u64,
    directories: u64,
    blocks: u64,
    target: u64,
    is_orphan: bool,
}

/// All inodes of a root, as far as they were seen.
#[derive(Debug, Default)]
pub(crate) struct Census(BTreeMap<u64, Life>);

impl Census {
    /// Takes a value of the tree. False if it makes no sense.
    pub(crate) fn add(&mut self, key: Key, value: &[u8]) -> bool {
        match key.kind {
            Kind::Zone | Kind::Log => true,
            Kind::Orphan => {
                self.0.entry(key.number).or_default().is_orphan = true;
                true
            }
            Kind::Inode => {
                let inode = Inode::parse(value);
                self.0.entry(key.inode).or_default().inode = inode.ok();
                inode.is_ok()
            }
            Kind::Entry => self.add_entries(key.inode, value),
            Kind::Target => {
                self.0.entry(key.inode).or_default().target = value.len() as u64;
                !value.is_empty()
            }
            Kind::Attribute => {
                self.0.entry(key.inode).or_default();
                Attribute::parse_all(value).is_ok_and(|found| !found.is_empty())
            }
            Kind::Extent => {
                let extent = ExtentRecord::parse(value);
                self.0.entry(key.inode).or_default().blocks +=
                    extent.as_ref().map_or(0, |extent| extent.run.blocks);
                extent.is_ok()
            }
        }
    }

    fn add_entries(&mut self, parent: u64, value: &[u8]) -> bool {
        let Ok(entries) = Dirent::parse_all(value) else {
            return false;
        };
        for entry in &entries {
            let life = self.0.entry(entry.inode).or_default();
            life.names += 1;
            life.parent = parent;
            life.kinds.insert(entry.kind);
            let directory = self.0.entry(parent).or_default();
            directory.entries += 1;
            directory.directories += u64::from(entry.kind == kind_of(TYPE_DIRECTORY));
        }
        !entries.is_empty() && entries.iter().all(|entry| is_name(entry.name))
    }

    /// All that is wrong.
    pub(crate) fn damages(&self) -> Vec<FileDamage> {
        let mut found = Vec::new();
        for (&number, life) in &self.0 {
            match &life.inode {
                Some(inode) => life.damages(number, inode, &mut found),
                None if life.is_orphan => found.push(FileDamage::Orphan(number)),
                None => found.push(FileDamage::Missing(number)),
            }
        }
        self.circles(&mut found);
        found
    }

    /// Directories from which no way leads up to the root.
    fn circles(&self, found: &mut Vec<FileDamage>) {
        let mut rooted = BTreeSet::from([ROOT_INODE]);
        for (&number, life) in &self.0 {
            if life.names == 0 || life.inode.is_none_or(|inode| !inode.is_directory()) {
                continue;
            }
            let (mut way, mut at) = (BTreeSet::new(), number);
            while !rooted.contains(&at) && way.insert(at) {
                at = self.0.get(&at).map_or(0, |life| life.parent);
            }
            match rooted.contains(&at) {
                true => rooted.extend(way),
                false => found.push(FileDamage::Circle(number)),
            }
        }
    }
}

impl Life {
    fn damages(&self, number: u64, inode: &Inode, found: &mut Vec<FileDamage>) {
        let is_root = number == ROOT_INODE;
        match (self.names, self.is_orphan) {
            (0, false) if !is_root => found.push(FileDamage::Nameless(number)),
            (1.., true) => found.push(FileDamage::Orphan(number)),
            _ => {}
        }
        let links = match inode.is_directory() {
            true if self.names > 0 || is_root => 2 + self.directories,
            _ => self.names,
        };
        if u64::from(inode.links) != links {
            found.push(FileDamage::Links {
                inode: number,
                said: inode.links,
                found: links,
            });
        }
        if inode.entries != self.entries || (self.entries > 0 && !inode.is_directory()) {
            found.push(FileDamage::Entries {
                inode: number,
                said: inode.entries,
                found: self.entries,
            });
        }
        if inode.blocks != self.blocks {
            found.push(FileDamage::Blocks {
                inode: number,
                said: inode.blocks,
                found: self.blocks,
            });
        }
        if self.kinds.iter().any(|kind| *kind != kind_of(inode.mode)) {
            found.push(FileDamage::Type(number));
        }
        let parent = if is_root { ROOT_INODE } else { self.parent };
        if inode.is_directory() && (inode.parent != parent || self.names > 1 || (is_root && self.names > 0)) {
            found.push(FileDamage::Parent {
                inode: number,
                said: inode.parent,
                found: parent,
            });
        }
        let is_link = inode.mode & TYPE_MASK == TYPE_LINK;
        let is_told = self.target == inode.size || (self.target == 0 && self.blocks > 0);
        if is_link != (self.target > 0 || (is_link && self.blocks > 0)) || (is_link && !is_told) {
            found.push(FileDamage::Target(number));
        }
    }
}
