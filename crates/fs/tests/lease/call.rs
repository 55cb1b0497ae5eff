//! Calls of a process that has leases: what they need, and what they do.

use crate::process::assert_inode;
use base::Rng;
use fs::files::Files;
use fs::lease::{MOVES, Mode};
use fs::media::Media;
use fs::op::{Action, Entry, Fate, Op, Target};
use fs::overlay::{Below, Overlay};
use fs::tree::{Tree, View};
use std::collections::BTreeMap;

/// A name in a directory.
pub type Name = (u64, u8);

/// A call of a process.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Create(Name),
    Unlink(Name),
    Rename(Name, Name),
    Write(Name),
    Read(Name),
}

/// The directories that there always are. All but the root are renamed.
pub const DIRECTORIES: [u64; 7] = [1, 2, 3, 4, 5, 6, 7];
/// Names in each directory.
const NAMES: u64 = 4;

pub fn entry((directory, name): Name) -> Entry<'static> {
    Entry::new(directory, vec![b'a' + name])
}

impl Call {
    /// A directory goes to another one.
    pub fn random_move(rng: &mut Rng) -> Self {
        let mut name = || (DIRECTORIES[rng.below(7) as usize], 2 + rng.below(2) as u8);
        let (from, to) = (name(), name());
        match from == to {
            true => Self::Read(from),
            false => Self::Rename(from, to),
        }
    }

    pub fn random(rng: &mut Rng) -> Self {
        let mut name = || (rng.between(1, 7), rng.below(NAMES) as u8);
        let (first, second) = (name(), name());
        match rng.below(12) {
            0..3 => Self::Create(first),
            3..5 => Self::Unlink(first),
            5..8 if first != second => Self::Rename(first, second),
            8..10 => Self::Write(first),
            _ => Self::Read(first),
        }
    }

    pub fn names(self) -> Vec<Name> {
        match self {
            Self::Rename(from, to) => vec![from, to],
            Self::Create(name) | Self::Unlink(name) | Self::Write(name) | Self::Read(name) => vec![name],
        }
    }

    fn mode_of_directories(self) -> Mode {
        match self {
            Self::Write(_) | Self::Read(_) => Mode::Shared,
            _ => Mode::Exclusive,
        }
    }
}

/// What a process sees.
pub struct Sight<'s> {
    pub overlay: &'s Overlay,
    pub tree: &'s mut Tree,
    pub media: &'s dyn Media,
    pub held: &'s BTreeMap<u64, Mode>,
}

impl Sight<'_> {
    pub fn below(&mut self) -> (&Overlay, Below<'_>) {
        let below = Below::new(self.tree, self.media, View::Pending);
        (self.overlay, below)
    }

    /// An inode is as the model has it.
    pub fn verify(&mut self, files: &Files, inode: u64) {
        let (overlay, mut below) = self.below();
        assert_inode((overlay, &mut below), files, inode, "a call");
    }

    pub fn lookup(&mut self, name: Name) -> Option<u64> {
        let entry = entry(name);
        let (overlay, mut below) = self.below();
        let found = overlay.lookup(&mut below, entry.parent, &entry.name);
        found.expect("the tree is whole")
    }

    fn is_directory(&mut self, inode: u64) -> bool {
        let (overlay, mut below) = self.below();
        let found = overlay.inode(&mut below, inode).expect("the tree is whole");
        found.is_some_and(|inode| inode.is_directory())
    }

    fn parent(&mut self, directory: u64) -> u64 {
        let (overlay, mut below) = self.below();
        let found = overlay.inode(&mut below, directory).expect("the tree is whole");
        found.map_or(0, |inode| inode.parent)
    }

    /// The leases that a call needs, as far as can be seen without those that are missing.
    pub fn needs(&mut self, call: Call, knows_moves: bool) -> BTreeMap<u64, Mode> {
        let mode = call.mode_of_directories();
        let mut needs: BTreeMap<u64, Mode> = call.names().iter().map(|name| (name.0, mode)).collect();
        let has_directories = needs.keys().all(|inode| self.held.get(inode) >= Some(&mode));
        if !has_directories {
            return needs;
        }
        for name in call.names() {
            if let Some(inode) = self.lookup(name) {
                let mode = match call {
                    Call::Read(_) => Mode::Shared,
                    _ => Mode::Exclusive,
                };
                let needed = needs.entry(inode).or_insert(mode);
                *needed = mode.max(*needed);
            }
        }
        if let Call::Rename(from, to) = call
            && from.0 != to.0
            && knows_moves
            && self.lookup(from).is_some_and(|inode| self.is_directory(inode))
        {
            needs.insert(MOVES, Mode::Exclusive);
        }
        needs
    }

    /// What the call does, if it can be done. The process has what it needs.
    pub fn action(&mut self, call: Call, new: u64, data: u8) -> Option<(u64, Action<'static>)> {
        let first = call.names()[0];
        let found = self.lookup(first);
        let is_directory = found.is_some_and(|inode| self.is_directory(inode));
        match call {
            Call::Create(_) if found.is_none() => Some((new, create(first, 0o100_644))),
            Call::Unlink(_) if !is_directory => {
                let (is_directory, fate) = (false, Fate::Deleted);
                let entry = entry(first);
                let unlink = Action::Unlink {
                    entry,
                    is_directory,
                    fate,
                };
                Some((found?, unlink))
            }
            Call::Write(_) if !is_directory => {
                let (offset, bytes) = (u64::from(data % 3) * 3000, usize::from(data) * 20 + 1);
                let data = vec![data; bytes].into();
                Some((found?, Action::Write { offset, data }))
            }
            Call::Rename(from, to) => self.rename(found?, is_directory, (from, to)),
            _ => None,
        }
    }

    fn rename(
        &mut self,
        inode: u64,
        is_directory: bool,
        (from, to): (Name, Name),
    ) -> Option<(u64, Action<'static>)> {
        let target = match self.lookup(to) {
            None => Target::Free,
            Some(other) if is_directory || self.is_directory(other) || other == inode => return None,
            Some(inode) => Target::Replaced {
                inode,
                fate: Fate::Deleted,
            },
        };
        let mut above = to.0;
        while above != 1 && is_directory {
            if above == inode {
                return None;
            }
            above = self.parent(above);
        }
        let (from, to) = (entry(from), entry(to));
        Some((inode, Action::Rename { from, to, target }))
    }
}

pub fn create(name: Name, mode: u32) -> Action<'static> {
    Action::Create {
        entry: entry(name),
        mode,
        uid: 0,
        gid: 0,
        device: 0,
        target: Vec::new().into(),
    }
}

/// Inodes that an operation may need a lease of.
pub fn inodes_of(op: &Op<'_>) -> Vec<u64> {
    let mut inodes = vec![op.inode];
    match &op.action {
        Action::Create { entry, .. } | Action::Unlink { entry, .. } => inodes.push(entry.parent),
        Action::Rename { from, to, target } => {
            inodes.extend([from.parent, to.parent]);
            if let Target::Replaced { inode, .. } = target {
                inodes.push(*inode);
            }
        }
        _ => {}
    }
    inodes
}
