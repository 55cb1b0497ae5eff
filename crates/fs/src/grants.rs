//! The digest takes nothing of a log on trust, as Trio (SOSP'23) verifies what a library hands over. [`Grants`] are what the log's process
//! may do. The giver of leases, inode numbers and blocks keeps one for each log.

use crate::errno::Errno;
use crate::format::Place;
use crate::inode::{Inode, TYPE_BLOCKS, TYPE_CHARACTERS, TYPE_DIRECTORY, TYPE_MASK};
use crate::media::Error;
use crate::op::{Changes, Malformed};
use crate::ranges::Ranges;
use crate::value::Run;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error as ErrorOf;

/// Why an operation of a log is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ErrorOf)]
pub enum Reason {
    /// The record cannot be.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// No lease of the log covers what it changes.
    #[error("the log has no lease that lets it change inode {0} so")]
    Unleased(u64),
    /// A new inode's number was not given to the log.
    #[error("inode number {0} was not granted to the log")]
    Number(u64),
    /// Blocks were not granted to the log, or it has used them already.
    #[error("{0} was not granted to the log")]
    Ungranted(Place),
    /// The files do not let it be done.
    #[error("{0}")]
    Posix(#[from] Errno),
    /// A device has no room.
    #[error("device {0} is full")]
    Full(u8),
}

/// Why an operation came to no good: only it, or all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Refused(Reason),
    Failed(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno.into())
    }
}

/// What a lease of an inode lets its holder change. Whoever gives the lease looks at permissions then, as `open` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// A file's content and size, and attributes of users: it is open for writing.
    pub data: bool,
    /// A directory's entries: it may be written and searched.
    pub names: bool,
    /// Mode, group and times: the holder owns it, or is root.
    pub owner: bool,
}

impl Rights {
    /// All of them: what the creator of an inode has.
    pub const ALL: Self = Self {
        data: true,
        names: true,
        owner: true,
    };
}

/// What a log may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grants {
    /// The user of the process. Root may give files away, make devices, and set what only root sets.
    pub uid: u32,
    /// Its groups.
    pub gids: Vec<u32>,
    /// Inodes that the process has an exclusive lease of, or had when it wrote the records. The digest adds what is created, and takes out
    /// what is deleted.
    pub leases: BTreeMap<u64, Rights>,
    /// Inodes that other processes have open: deleted ones stay as orphans.
    pub open_elsewhere: BTreeSet<u64>,
    /// Numbers for new inodes.
    pub inodes: Range<u64>,
    /// Blocks that are reserved for it, by place.
    blocks: Ranges,
}

/// Flags as of `chattr` that only root sets: immutable, and append only.
const FLAGS_OF_ROOT: u64 = 0x10 | 0x20;
/// The attribute with a file's capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// Bits of a mode that a write takes.
const SET_ID: u32 = 0o6000;
const SET_GID_RUNS: u32 = 0o2010;
const STICKY: u32 = 0o1000;

impl Grants {
    /// Notes that blocks are reserved for the log ([`Tree::reserve`](crate::tree::Tree::reserve)).
    pub fn grant(&mut self, run: Run) {
        self.blocks.insert(run.place.raw()..run.end().raw());
    }

    /// Takes blocks out, if the log has them all: they are used, or it has given them back.
    pub fn take(&mut self, run: Run) -> bool {
        let places = run.place.raw()..run.end().raw();
        let has = self.blocks.contains(places.clone());
        if has {
            self.blocks.remove(places);
        }
        has
    }

    /// Blocks that are reserved for the log and are no file's.
    pub fn granted(&self) -> impl Iterator<Item = Run> + '_ {
        self.blocks.iter().map(|places| Run {
            place: Place::from_raw(places.start),
            blocks: places.end - places.start,
        })
    }

    /// Whether the process is root's.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    fn rights(&self, inode: u64) -> Result<Rights, Reason> {
        self.leases.get(&inode).copied().ok_or(Reason::Unleased(inode))
    }

    /// Whether the log may change an inode's links and times: it has a lease of it.
    pub(crate) fn admit_change(&self, inode: u64) -> Result<(), Reason> {
        self.rights(inode).map(|_| ())
    }

    pub(crate) fn admit_names(&self, directory: u64) -> Result<(), Reason> {
        match self.rights(directory)?.names {
            true => Ok(()),
            false => Err(Reason::Unleased(directory)),
        }
    }

    pub(crate) fn admit_data(&self, inode: u64) -> Result<(), Reason> {
        match self.rights(inode)?.data {
            true => Ok(()),
            false => Err(Reason::Unleased(inode)),
        }
    }

    /// A name goes out of a directory: of a sticky one, only what the process owns.
    pub(crate) fn admit_leave(&self, directory: &Inode, inode: &Inode) -> Result<(), Reason> {
        let is_free = directory.mode & STICKY == 0 || [0, directory.uid, inode.uid].contains(&self.uid);
        match is_free {
            true => Ok(()),
            false => Err(Errno::NotPermitted.into()),
        }
    }

    /// A new inode: its number, owner and type.
    pub(crate) fn admit_create(
        &self,
        (inode, mode, device): (u64, u32, u32),
        (uid, gid): (u32, u32),
        directory: &Inode,
    ) -> Result<(), Reason> {
        if !self.inodes.contains(&inode) {
            return Err(Reason::Number(inode));
        }
        let is_ours = uid == self.uid && (self.gids.contains(&gid) || gid == directory.gid);
        // A character device 0 is none: overlayfs says by it that a name is gone, and Linux lets everybody make it.
        let is_device = match mode & TYPE_MASK {
            TYPE_CHARACTERS => device != 0,
            kind => kind == TYPE_BLOCKS,
        };
        match self.uid == 0 || (is_ours && !is_device && self.may_run_as((mode, gid))) {
            true => Ok(()),
            false => Err(Errno::NotPermitted.into()),
        }
    }

    /// Whether a file may have this mode in this group: with a set-group-ID bit and to be run, only in a group of the process. Of a
    /// directory the bit says that what is made in it has its group.
    fn may_run_as(&self, (mode, gid): (u32, u32)) -> bool {
        mode & SET_GID_RUNS != SET_GID_RUNS || mode & TYPE_MASK == TYPE_DIRECTORY || self.gids.contains(&gid)
    }

    /// `setxattr` and `removexattr`.
    pub(crate) fn admit_attribute(&self, inode: u64, (name, is_set): (&[u8], bool)) -> Result<(), Reason> {
        let rights = self.rights(inode)?;
        let is_of_user = name.starts_with(b"user.") && (rights.data || rights.owner || rights.names);
        let is_list = name.starts_with(b"system.") && rights.owner;
        // Whoever changes a file, or gives it another group, takes its capabilities.
        let is_taken = name == CAPABILITY && !is_set && (rights.data || rights.owner);
        match self.uid == 0 || is_of_user || is_list || is_taken {
            true => Ok(()),
            false => Err(Errno::NotPermitted.into()),
        }
    }

    /// What is set of an inode that is now as told.
    pub(crate) fn admit_set(&self, number: u64, inode: &Inode, changes: &Changes) -> Result<(), Reason> {
        let rights = self.rights(number)?;
        let permissions = inode.mode & !TYPE_MASK;
        let is_mode = changes.mode.is_none_or(|mode| {
            let only_takes_set_id = permissions & !mode & !SET_ID == 0 && mode & !permissions == 0;
            let gid = changes.gid.unwrap_or(inode.gid);
            let may_run = self.may_run_as((inode.mode & TYPE_MASK | mode, gid));
            (rights.owner && may_run) || (rights.data && only_takes_set_id)
        });
        let is_uid = changes.uid.is_none_or(|uid| uid == inode.uid);
        let is_gid = changes
            .gid
            .is_none_or(|gid| gid == inode.gid || (rights.owner && self.gids.contains(&gid)));
        let is_flags = changes
            .flags
            .is_none_or(|flags| rights.owner && (flags ^ inode.flags) & FLAGS_OF_ROOT == 0);
        let is_time = changes.mtime.is_none() || rights != Rights::default();
        let is_tier = changes.tier.is_none() || rights.owner;
        match self.uid == 0 || (is_mode && is_uid && is_gid && is_flags && is_time && is_tier) {
            true => Ok(()),
            false => Err(Errno::NotPermitted.into()),
        }
    }

    /// The mode of a file after its data were changed: who is not root takes set-id bits with it, as `file_remove_privs` of Linux does.
    pub(crate) fn mode_after_write(&self, mode: u32) -> u32 {
        let group_runs = mode & 0o10 != 0;
        match self.uid {
            0 => mode,
            _ => mode & !(0o4000 | if group_runs { 0o2000 } else { 0 }),
        }
    }
}
