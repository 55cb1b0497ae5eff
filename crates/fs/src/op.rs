//! What one changing call does. Its record in the operation log is in `record`.
//!
//! An [`Op`] speaks of inodes: whoever makes it has resolved the paths, and says what becomes of an inode that loses a name. A
//! record is checked once, by [`Op::parse`]. What it returns keeps the limits below, but may still not fit the files: that is for
//! whoever applies it.
//!
//! Names and data are borrowed where they can be, so that emitting copies them once.

use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, DEVICES_MAX, Place, RESERVED_BLOCKS};
use crate::inode::{
    Inode, TYPE_BLOCKS, TYPE_CHARACTERS, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK, TYPE_PIPE,
    TYPE_SOCKET, Time,
};
use std::borrow::Cow;
use thiserror::Error;

/// Bytes of a name, at most: `NAME_MAX` of Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a symbolic link's target, at most: `PATH_MAX` of Linux, less its end.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Bytes of an attribute's name and value, at most: the value of a key in the tree less what is in front of them.
pub const ATTRIBUTE_BYTES_MAX: usize = 1020;
/// Where a file ends, at most: `loff_t` of Linux.
pub const OFFSET_MAX: u64 = i64::MAX as u64;
/// Bytes of a record in front of what its kind has.
pub const RECORD_HEADER_BYTES: usize = 32;

/// Bytes that are borrowed, or not.
pub type Bytes<'a> = Cow<'a, [u8]>;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry<'a> {
    /// The directory's inode.
    pub parent: u64,
    /// The name.
    pub name: Bytes<'a>,
}

/// What becomes of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It has other names.
    Named,
    /// It has no other name, and is open: it is deleted when it is released.
    Orphaned,
    /// It has no other name: it is deleted.
    Deleted,
}

/// What is at the place to which a rename goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Nothing.
    Free,
    /// An inode that loses this name.
    Replaced {
        /// The inode.
        inode: u64,
        /// What becomes of it.
        fate: Fate,
    },
    /// An inode that gets the other's place.
    Exchanged {
        /// The inode.
        inode: u64,
    },
}

/// What of an inode is set; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Changes {
    /// The lower 12 bits of the mode.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// When it was read.
    pub atime: Option<Time>,
    /// When its content changed.
    pub mtime: Option<Time>,
    /// Flags as of `chattr`.
    pub flags: Option<u64>,
    /// The tier that it is pinned to, 0 for none.
    pub tier: Option<u8>,
    /// The ctime stays: a read sets the atime alone.
    pub keeps_ctime: bool,
}

impl Changes {
    /// An inode with them.
    pub fn apply(&self, inode: &mut Inode, time: Time) {
        if let Some(mode) = self.mode {
            inode.mode = inode.mode & TYPE_MASK | mode;
        }
        inode.uid = self.uid.unwrap_or(inode.uid);
        inode.gid = self.gid.unwrap_or(inode.gid);
        inode.atime = self.atime.unwrap_or(inode.atime);
        inode.mtime = self.mtime.unwrap_or(inode.mtime);
        inode.flags = self.flags.unwrap_or(inode.flags);
        inode.tier = self.tier.unwrap_or(inode.tier);
        if !self.keeps_ctime {
            inode.ctime = time;
        }
    }
}

/// What becomes of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocation {
    /// Blocks are there, and read as zeros if they were not.
    Reserve,
    /// Blocks are gone. The size stays.
    Hole,
    /// It reads as zeros, and has blocks.
    Zeros,
}

/// What a call does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<'a> {
    /// A new inode with its first name: `open`, `mkdir`, `mknod`, `symlink`. A file may have none, and is an orphan then: `O_TMPFILE`.
    Create {
        /// Its name. If it is empty, the directory is where its group is from, and does not change.
        entry: Entry<'a>,
        /// Type and permissions.
        mode: u32,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
        /// Of a special file.
        device: u32,
        /// Of a symbolic link.
        target: Bytes<'a>,
    },
    /// One more name, or the first one of a file that was made without.
    Link {
        /// The name.
        entry: Entry<'a>,
    },
    /// One name less: `unlink`, `rmdir`.
    Unlink {
        /// The name.
        entry: Entry<'a>,
        /// It is a directory.
        is_directory: bool,
        /// What becomes of the inode.
        fate: Fate,
    },
    /// Another name.
    Rename {
        /// The old one.
        from: Entry<'a>,
        /// The new one.
        to: Entry<'a>,
        /// What is there.
        target: Target,
    },
    /// `chmod`, `chown`, `utimens` and the like.
    Set(Changes),
    /// Another size: `truncate`.
    Truncate {
        /// The new one.
        size: u64,
    },
    /// `setxattr`, and `removexattr` if there is no value.
    Attribute {
        /// The name with its name space.
        name: Bytes<'a>,
        /// The new value.
        value: Option<Bytes<'a>>,
    },
    /// A write with its data.
    Write {
        /// The first byte.
        offset: u64,
        /// What is written.
        data: Bytes<'a>,
    },
    /// A write whose data are in blocks of the writer already.
    Place {
        /// The first byte, of a block.
        offset: u64,
        /// Bytes: whole blocks, or up to the end of the file. The rest of the last block is zeros.
        bytes: u32,
        /// The first of the blocks, which follow each other.
        place: Place,
        /// CRC of each block.
        sums: Cow<'a, [u32]>,
    },
    /// `fallocate`.
    Allocate {
        /// The first byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// What becomes of them.
        what: Allocation,
        /// The file does not get longer.
        keeps_size: bool,
    },
    /// Nobody has the orphan open any more: it is deleted.
    Release,
}

impl Action<'_> {
    /// The inode that a creation makes; its blocks are not counted. `None` of any other action.
    pub(crate) fn created(&self, time: Time) -> Option<Inode> {
        let Self::Create {
            entry,
            mode,
            uid,
            gid,
            device,
            target,
        } = self
        else {
            return None;
        };
        let is_directory = mode & TYPE_MASK == TYPE_DIRECTORY;
        let links = match entry.name.is_empty() {
            true => 0,
            false => 1 + u32::from(is_directory),
        };
        Some(Inode {
            mode: *mode,
            links,
            uid: *uid,
            gid: *gid,
            size: target.len() as u64,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            device: *device,
            parent: if is_directory { entry.parent } else { 0 },
            ..Inode::default()
        })
    }
}

/// One change of one inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Op<'a> {
    /// The inode that it is about.
    pub inode: u64,
    /// When it was made.
    pub time: Time,
    /// What it does.
    pub action: Action<'a>,
}

/// Why a record is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// It ends too early or too late.
    #[error("the record's length does not fit its content")]
    Length,
    /// A later version may know it.
    #[error("the record's kind is unknown")]
    Kind,
    /// Unknown, or not together.
    #[error("the record has flags that are unknown, or do not go together")]
    Flags,
    /// What means nothing is not zero.
    #[error("the record has bytes that should be zero")]
    Padding,
    /// It is 0, or the same twice.
    #[error("the record names an inode that cannot be")]
    Inode,
    /// It is empty, too long, `.`, `..`, or has a byte that no name has.
    #[error("the record has a name that cannot be")]
    Name,
    /// It is empty, too long, has a zero byte, or is not a symbolic link's.
    #[error("the record has a target that cannot be")]
    Target,
    /// No such type, or bits that mean nothing.
    #[error("the record has a mode that cannot be")]
    Mode,
    /// 10⁹ ns and more.
    #[error("the record has a time that cannot be")]
    Time,
    /// Nothing, or beyond [`OFFSET_MAX`].
    #[error("the record has a range that cannot be")]
    Range,
    /// Outside of all devices, or of another number of blocks.
    #[error("the record has a place that cannot be")]
    Place,
    /// Its name or its size.
    #[error("the record has an attribute that cannot be")]
    Attribute,
}

/// A name that an entry may have.
pub fn is_name(name: &[u8]) -> bool {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    fits && name != b"." && name != b".." && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// The lists of access control, which are attributes of no other name space.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Refuses the name of an attribute that is in no name space that files have.
pub(crate) fn check_space(name: &[u8]) -> Result<(), Errno> {
    let spaces = [&b"user."[..], b"trusted.", b"security."];
    match spaces.iter().find_map(|space| name.strip_prefix(*space)) {
        None if LISTS.contains(&name) => Ok(()),
        None => Err(Errno::NotSupported),
        Some([]) => Err(Errno::Invalid),
        Some(_) => Ok(()),
    }
}

/// Blocks that so many bytes take.
pub const fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64)
}

impl<'a> Op<'a> {
    /// The inodes that it changes: its own is the first.
    pub fn changed(&self) -> [Option<u64>; 4] {
        let own = Some(self.inode);
        match &self.action {
            Action::Create { entry, .. } | Action::Link { entry } | Action::Unlink { entry, .. } => {
                [own, Some(entry.parent), None, None]
            }
            Action::Rename { from, to, target } => {
                let other = match target {
                    Target::Free => None,
                    Target::Replaced { inode, .. } | Target::Exchanged { inode } => Some(*inode),
                };
                [own, Some(from.parent), Some(to.parent), other]
            }
            _ => [own, None, None, None],
        }
    }

    /// Bytes of its record.
    pub fn record_bytes(&self) -> usize {
        let rest = match &self.action {
            Action::Create { entry, target, .. } => 28 + entry.name.len() + target.len(),
            Action::Link { entry } | Action::Unlink { entry, .. } => 10 + entry.name.len(),
            Action::Rename { from, to, .. } => 28 + from.name.len() + to.name.len(),
            Action::Set(_) => 49,
            Action::Truncate { .. } => 8,
            Action::Attribute { name, value } => {
                4 + name.len() + value.as_ref().map_or(0, |value| value.len())
            }
            Action::Write { data, .. } => 16 + data.len(),
            Action::Place { sums, .. } => 24 + 4 * sums.len(),
            Action::Allocate { .. } => 16,
            Action::Release => 0,
        };
        RECORD_HEADER_BYTES + rest
    }

    /// Whether it keeps the limits that a record has, whatever files there are.
    pub fn check(&self) -> Result<(), Malformed> {
        is(self.inode != 0, Malformed::Inode)?;
        self.time.check()?;
        match &self.action {
            Action::Create {
                entry,
                mode,
                device,
                target,
                ..
            } => {
                match entry.name.is_empty() && mode & TYPE_MASK == TYPE_FILE {
                    true => is(entry.parent != 0, Malformed::Inode)?,
                    false => entry.check()?,
                }
                check_mode(*mode, *device)?;
                let fits = match mode & TYPE_MASK {
                    TYPE_LINK => (1..=TARGET_BYTES_MAX).contains(&target.len()) && !target.contains(&0),
                    _ => target.is_empty(),
                };
                is(fits, Malformed::Target)
            }
            Action::Link { entry } => entry.check(),
            Action::Unlink {
                entry,
                is_directory,
                fate,
            } => {
                is(!is_directory || *fate != Fate::Named, Malformed::Flags)?;
                entry.check()
            }
            Action::Rename { from, to, target } => {
                from.check()?;
                to.check()?;
                is(from != to, Malformed::Name)?;
                match target {
                    Target::Free => Ok(()),
                    Target::Replaced { inode, .. } | Target::Exchanged { inode } => {
                        is(*inode != 0 && *inode != self.inode, Malformed::Inode)
                    }
                }
            }
            _ => self.check_content(),
        }
    }

    /// The same of what changes no names.
    fn check_content(&self) -> Result<(), Malformed> {
        match &self.action {
            Action::Set(changes) => changes.check(),
            Action::Truncate { size } => is(*size <= OFFSET_MAX, Malformed::Range),
            Action::Attribute { name, value } => {
                let value = value.as_ref().map_or(0, |value| value.len());
                let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
                is(
                    is_name && name.len() + value <= ATTRIBUTE_BYTES_MAX,
                    Malformed::Attribute,
                )
            }
            Action::Write { offset, data } => {
                is(u32::try_from(self.record_bytes()).is_ok(), Malformed::Range)?;
                check_range(*offset, data.len() as u64)
            }
            Action::Place {
                offset,
                bytes,
                place,
                sums,
            } => {
                check_range(*offset, u64::from(*bytes))?;
                is(offset % BLOCK_BYTES as u64 == 0, Malformed::Range)?;
                let blocks = blocks_of(u64::from(*bytes));
                let whole = *place == Place::new(place.device(), place.number());
                let inside = usize::from(place.device()) < DEVICES_MAX && place.number() >= RESERVED_BLOCKS;
                let ends = place.plus(blocks).device() == place.device();
                is(
                    whole && inside && ends && sums.len() as u64 == blocks,
                    Malformed::Place,
                )
            }
            Action::Allocate {
                offset,
                bytes,
                what,
                keeps_size,
            } => {
                is(*what != Allocation::Hole || *keeps_size, Malformed::Flags)?;
                check_range(*offset, *bytes)
            }
            _ => Ok(()),
        }
    }

    /// The same with names and data of its own.
    pub fn into_owned(self) -> Op<'static> {
        Op {
            inode: self.inode,
            time: self.time,
            action: self.action.into_owned(),
        }
    }
}

impl Action<'_> {
    fn into_owned(self) -> Action<'static> {
        let own = |bytes: Bytes<'_>| Bytes::Owned(bytes.into_owned());
        match self {
            Self::Create {
                entry,
                mode,
                uid,
                gid,
                device,
                target,
            } => Action::Create {
                entry: entry.into_owned(),
                mode,
                uid,
                gid,
                device,
                target: own(target),
            },
            Self::Link { entry } => Action::Link {
                entry: entry.into_owned(),
            },
            Self::Unlink {
                entry,
                is_directory,
                fate,
            } => Action::Unlink {
                entry: entry.into_owned(),
                is_directory,
                fate,
            },
            Self::Rename { from, to, target } => Action::Rename {
                from: from.into_owned(),
                to: to.into_owned(),
                target,
            },
            Self::Set(changes) => Action::Set(changes),
            Self::Truncate { size } => Action::Truncate { size },
            Self::Attribute { name, value } => Action::Attribute {
                name: own(name),
                value: value.map(own),
            },
            Self::Write { offset, data } => Action::Write {
                offset,
                data: own(data),
            },
            Self::Place {
                offset,
                bytes,
                place,
                sums,
            } => Action::Place {
                offset,
                bytes,
                place,
                sums: Cow::Owned(sums.into_owned()),
            },
            Self::Allocate {
                offset,
                bytes,
                what,
                keeps_size,
            } => Action::Allocate {
                offset,
                bytes,
                what,
                keeps_size,
            },
            Self::Release => Action::Release,
        }
    }
}

impl Time {
    fn check(self) -> Result<(), Malformed> {
        match self.ns < 1_000_000_000 {
            true => Ok(()),
            false => Err(Malformed::Time),
        }
    }
}

impl<'a> Entry<'a> {
    /// Of these parts.
    pub fn new(parent: u64, name: impl Into<Bytes<'a>>) -> Self {
        Self {
            parent,
            name: name.into(),
        }
    }

    /// The same with a name of its own.
    pub fn into_owned(self) -> Entry<'static> {
        Entry {
            parent: self.parent,
            name: Cow::Owned(self.name.into_owned()),
        }
    }

    fn check(&self) -> Result<(), Malformed> {
        match (self.parent, is_name(&self.name)) {
            (0, _) => Err(Malformed::Inode),
            (_, false) => Err(Malformed::Name),
            _ => Ok(()),
        }
    }
}

impl Changes {
    /// Which fields are set, in their order.
    pub(crate) fn is_set(&self) -> [bool; 7] {
        let times = [self.atime.is_some(), self.mtime.is_some()];
        let [atime, mtime] = times;
        let (mode, uid, gid) = (self.mode.is_some(), self.uid.is_some(), self.gid.is_some());
        [
            mode,
            uid,
            gid,
            atime,
            mtime,
            self.flags.is_some(),
            self.tier.is_some(),
        ]
    }

    fn check(&self) -> Result<(), Malformed> {
        if self.mode.is_some_and(|mode| mode > 0o7777) {
            return Err(Malformed::Mode);
        }
        if self.tier.is_some_and(|tier| tier > 3) {
            return Err(Malformed::Place);
        }
        let only_atime = [false, false, false, true, false, false, false];
        if self.keeps_ctime && self.is_set() != only_atime {
            return Err(Malformed::Flags);
        }
        [self.atime, self.mtime]
            .into_iter()
            .flatten()
            .try_for_each(Time::check)
    }
}

fn is(is_sound: bool, otherwise: Malformed) -> Result<(), Malformed> {
    match is_sound {
        true => Ok(()),
        false => Err(otherwise),
    }
}

fn check_mode(mode: u32, device: u32) -> Result<(), Malformed> {
    let is_sound = match mode & !0o7777 {
        TYPE_CHARACTERS | TYPE_BLOCKS => true,
        TYPE_FILE | TYPE_DIRECTORY | TYPE_LINK | TYPE_PIPE | TYPE_SOCKET => device == 0,
        _ => false,
    };
    match is_sound {
        true => Ok(()),
        false => Err(Malformed::Mode),
    }
}

fn check_range(offset: u64, bytes: u64) -> Result<(), Malformed> {
    let end = offset.checked_add(bytes).filter(|end| *end <= OFFSET_MAX);
    match end.filter(|_| bytes > 0) {
        Some(_) => Ok(()),
        None => Err(Malformed::Range),
    }
}
