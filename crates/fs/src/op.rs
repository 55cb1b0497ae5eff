//! What one changing call does, and its record in the operation log (docs/format/fs.md, "Operation log").
//!
//! An [`Op`] speaks of inodes: whoever makes it has resolved the paths, and says what becomes of an inode that loses a name. A
//! record is checked once, by [`Op::parse`]. What it returns keeps the limits below, but may still not fit the files: that is for
//! whoever applies it.
//!
//! Names and data are borrowed where they can be, so that emitting copies them once.

use crate::format::{BLOCK_BYTES, DEVICES_MAX, Place, RESERVED_BLOCKS, u16_at, u32_at, u64_at};
use crate::inode::{
    TYPE_BLOCKS, TYPE_CHARACTERS, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK, TYPE_PIPE, TYPE_SOCKET,
    Time,
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
    /// A new inode with its first name: `open`, `mkdir`, `mknod`, `symlink`.
    Create {
        /// Its name.
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
    /// One more name.
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

mod kind {
    pub const CREATE: u8 = 1;
    pub const LINK: u8 = 2;
    pub const UNLINK: u8 = 3;
    pub const RENAME: u8 = 4;
    pub const SET: u8 = 5;
    pub const TRUNCATE: u8 = 6;
    pub const ATTRIBUTE: u8 = 7;
    pub const WRITE: u8 = 8;
    pub const PLACE: u8 = 9;
    pub const ALLOCATE: u8 = 10;
    pub const RELEASE: u8 = 11;
}

/// Flags of a record that say what becomes of an inode which loses a name.
const ORPHANED: u8 = 2;
const DELETED: u8 = 4;

impl Fate {
    const fn flag(self) -> u8 {
        match self {
            Self::Named => 0,
            Self::Orphaned => ORPHANED,
            Self::Deleted => DELETED,
        }
    }

    fn from_flags(flags: u8) -> Result<Self, Malformed> {
        match flags {
            0 => Ok(Self::Named),
            ORPHANED => Ok(Self::Orphaned),
            DELETED => Ok(Self::Deleted),
            _ => Err(Malformed::Flags),
        }
    }
}

/// A name that an entry may have.
pub fn is_name(name: &[u8]) -> bool {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    fits && name != b"." && name != b".." && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Blocks that so many bytes take.
pub const fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64)
}

impl<'a> Op<'a> {
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

    /// Appends its record.
    ///
    /// # Panics
    /// If [`Op::check`] refuses it: whoever makes operations keeps the limits.
    pub fn emit(&self, out: &mut Vec<u8>) {
        if let Err(why) = self.check() {
            panic!("an operation that cannot be: {why}: {:?}", self.action);
        }
        let start = out.len();
        let (kind, flags) = self.kind();
        put(out, self.record_bytes() as u32);
        out.extend([kind, flags, 0, 0]);
        out.extend(self.inode.to_le_bytes());
        put_time(out, self.time);
        put(out, 0);
        self.emit_rest(out);
        assert_eq!(
            out.len() - start,
            self.record_bytes(),
            "a record is as long as it says"
        );
    }

    /// The kind and the flags of its record.
    fn kind(&self) -> (u8, u8) {
        match &self.action {
            Action::Create { .. } => (kind::CREATE, 0),
            Action::Link { .. } => (kind::LINK, 0),
            Action::Unlink {
                is_directory, fate, ..
            } => (kind::UNLINK, u8::from(*is_directory) | fate.flag()),
            Action::Rename { target, .. } => match target {
                Target::Free => (kind::RENAME, 0),
                Target::Exchanged { .. } => (kind::RENAME, 1),
                Target::Replaced { fate, .. } => (kind::RENAME, fate.flag()),
            },
            Action::Set(changes) => (kind::SET, u8::from(changes.keeps_ctime)),
            Action::Truncate { .. } => (kind::TRUNCATE, 0),
            Action::Attribute { .. } => (kind::ATTRIBUTE, 0),
            Action::Write { .. } => (kind::WRITE, 0),
            Action::Place { .. } => (kind::PLACE, 0),
            Action::Allocate { what, keeps_size, .. } => {
                let what = match what {
                    Allocation::Reserve => 0,
                    Allocation::Hole => 2,
                    Allocation::Zeros => 4,
                };
                (kind::ALLOCATE, u8::from(*keeps_size) | what)
            }
            Action::Release => (kind::RELEASE, 0),
        }
    }

    fn emit_rest(&self, out: &mut Vec<u8>) {
        match &self.action {
            Action::Create {
                entry,
                mode,
                uid,
                gid,
                device,
                target,
            } => {
                put_u64(out, entry.parent);
                [mode, uid, gid, device]
                    .into_iter()
                    .for_each(|field| put(out, *field));
                put_lengths(out, &entry.name, target);
            }
            Action::Link { entry } | Action::Unlink { entry, .. } => {
                put_u64(out, entry.parent);
                out.extend((entry.name.len() as u16).to_le_bytes());
                out.extend_from_slice(&entry.name);
            }
            Action::Rename { from, to, target } => {
                let other = match target {
                    Target::Free => 0,
                    Target::Replaced { inode, .. } | Target::Exchanged { inode } => *inode,
                };
                [from.parent, to.parent, other]
                    .into_iter()
                    .for_each(|field| put_u64(out, field));
                put_lengths(out, &from.name, &to.name);
            }
            Action::Set(changes) => changes.emit(out),
            Action::Truncate { size } => put_u64(out, *size),
            Action::Attribute { name, value } => {
                let bytes = value.as_deref().unwrap_or_default();
                out.extend([name.len() as u8, u8::from(value.is_some())]);
                out.extend((bytes.len() as u16).to_le_bytes());
                out.extend_from_slice(name);
                out.extend_from_slice(bytes);
            }
            Action::Write { offset, data } => {
                put_u64(out, *offset);
                put_u64(out, data.len() as u64);
                out.extend_from_slice(data);
            }
            Action::Place {
                offset,
                bytes,
                place,
                sums,
            } => {
                [*offset, u64::from(*bytes), place.raw()]
                    .into_iter()
                    .for_each(|field| put_u64(out, field));
                sums.iter().for_each(|sum| put(out, *sum));
            }
            Action::Allocate { offset, bytes, .. } => {
                put_u64(out, *offset);
                put_u64(out, *bytes);
            }
            Action::Release => {}
        }
    }

    /// Reads the record at the beginning of `bytes`: the operation, and how long the record is. Any bytes may come.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize), Malformed> {
        let header = bytes.get(..RECORD_HEADER_BYTES).ok_or(Malformed::Length)?;
        let length = u32_at(header, 0) as usize;
        if length < RECORD_HEADER_BYTES {
            return Err(Malformed::Length);
        }
        let rest = bytes.get(RECORD_HEADER_BYTES..length).ok_or(Malformed::Length)?;
        let (kind, flags) = (header[4], header[5]);
        if header[6..8] != [0; 2] || u32_at(header, 28) != 0 {
            return Err(Malformed::Padding);
        }
        let mut fields = Fields(rest);
        let action = match kind {
            kind::CREATE | kind::LINK | kind::UNLINK | kind::RENAME => parse_names(kind, flags, &mut fields)?,
            kind::SET => Action::Set(Changes::parse(flags, &mut fields)?),
            kind::TRUNCATE | kind::ATTRIBUTE | kind::RELEASE => parse_rest(kind, flags, &mut fields)?,
            kind::WRITE | kind::PLACE | kind::ALLOCATE => parse_data(kind, flags, &mut fields)?,
            _ => return Err(Malformed::Kind),
        };
        if !fields.0.is_empty() {
            return Err(Malformed::Length);
        }
        let op = Self {
            inode: u64_at(header, 8),
            time: Time {
                seconds: u64_at(header, 16) as i64,
                ns: u32_at(header, 24),
            },
            action,
        };
        op.check()?;
        Ok((op, length))
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
                entry.check()?;
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
    const MASKS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

    /// Which fields are set, in the order of [`Self::MASKS`].
    fn is_set(&self) -> [bool; 7] {
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

    fn emit(&self, out: &mut Vec<u8>) {
        let masks = Self::MASKS.into_iter().zip(self.is_set());
        put(
            out,
            masks.filter(|(_, is_set)| *is_set).map(|(mask, _)| mask).sum(),
        );
        [self.mode, self.uid, self.gid]
            .into_iter()
            .for_each(|field| put(out, field.unwrap_or(0)));
        put_time(out, self.atime.unwrap_or_default());
        put_time(out, self.mtime.unwrap_or_default());
        put_u64(out, self.flags.unwrap_or(0));
        out.push(self.tier.unwrap_or(0));
    }

    fn parse(flags: u8, fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let mask = fields.u32()?;
        let known: u32 = Self::MASKS.into_iter().sum();
        if flags > 1 || mask & !known != 0 {
            return Err(Malformed::Flags);
        }
        let all = Self {
            mode: Some(fields.u32()?),
            uid: Some(fields.u32()?),
            gid: Some(fields.u32()?),
            atime: Some(fields.time()?),
            mtime: Some(fields.time()?),
            flags: Some(fields.u64()?),
            tier: Some(fields.u8()?),
            keeps_ctime: flags == 1,
        };
        Ok(Self {
            mode: only(mask & 1, all.mode)?,
            uid: only(mask & 2, all.uid)?,
            gid: only(mask & 4, all.gid)?,
            atime: only(mask & 8, all.atime)?,
            mtime: only(mask & 16, all.mtime)?,
            flags: only(mask & 32, all.flags)?,
            tier: only(mask & 64, all.tier)?,
            keeps_ctime: all.keeps_ctime,
        })
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

/// A field that a mask says to be there; one that is not there is zero.
fn only<T: Copy + Default + PartialEq>(bit: u32, field: Option<T>) -> Result<Option<T>, Malformed> {
    match bit {
        0 if field.is_some_and(|field| field != T::default()) => Err(Malformed::Padding),
        0 => Ok(None),
        _ => Ok(field),
    }
}

fn parse_names<'a>(kind: u8, flags: u8, fields: &mut Fields<'a>) -> Result<Action<'a>, Malformed> {
    if kind == kind::RENAME {
        return parse_rename(flags, fields);
    }
    let parent = fields.u64()?;
    if kind == kind::CREATE {
        let [mode, uid, gid, device] = [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        let (name, target) = fields.two()?;
        let entry = Entry::new(parent, name);
        let action = Action::Create {
            entry,
            mode,
            uid,
            gid,
            device,
            target: target.into(),
        };
        return unflagged(flags, action);
    }
    let name = usize::from(fields.u16()?);
    let entry = Entry::new(parent, fields.take(name)?);
    if kind == kind::LINK {
        return unflagged(flags, Action::Link { entry });
    }
    Ok(Action::Unlink {
        entry,
        is_directory: flags & 1 != 0,
        fate: Fate::from_flags(flags & !1)?,
    })
}

fn parse_rename<'a>(flags: u8, fields: &mut Fields<'a>) -> Result<Action<'a>, Malformed> {
    let [from, to, inode] = [fields.u64()?, fields.u64()?, fields.u64()?];
    let (name, new_name) = fields.two()?;
    let target = match (flags, inode) {
        (0, 0) => Target::Free,
        (_, 0) => return Err(Malformed::Flags),
        (1, _) => Target::Exchanged { inode },
        _ => Target::Replaced {
            inode,
            fate: Fate::from_flags(flags)?,
        },
    };
    Ok(Action::Rename {
        from: Entry::new(from, name),
        to: Entry::new(to, new_name),
        target,
    })
}

fn parse_rest<'a>(kind: u8, flags: u8, fields: &mut Fields<'a>) -> Result<Action<'a>, Malformed> {
    let action = match kind {
        kind::TRUNCATE => Action::Truncate { size: fields.u64()? },
        kind::ATTRIBUTE => {
            let (name, is_set) = (usize::from(fields.u8()?), fields.u8()?);
            let bytes = usize::from(fields.u16()?);
            let name = fields.take(name)?.into();
            let value = match (is_set, bytes) {
                (1, _) => Some(fields.take(bytes)?.into()),
                (0, 0) => None,
                _ => return Err(Malformed::Attribute),
            };
            Action::Attribute { name, value }
        }
        _ => Action::Release,
    };
    unflagged(flags, action)
}

fn parse_data<'a>(kind: u8, flags: u8, fields: &mut Fields<'a>) -> Result<Action<'a>, Malformed> {
    let offset = fields.u64()?;
    if kind == kind::ALLOCATE {
        let what = match flags & !1 {
            0 => Allocation::Reserve,
            2 => Allocation::Hole,
            4 => Allocation::Zeros,
            _ => return Err(Malformed::Flags),
        };
        return Ok(Action::Allocate {
            offset,
            bytes: fields.u64()?,
            what,
            keeps_size: flags & 1 != 0,
        });
    }
    let bytes = fields.u32()?;
    if fields.u32()? != 0 {
        return Err(Malformed::Padding);
    }
    if kind == kind::WRITE {
        let data = fields.take(bytes as usize)?.into();
        return unflagged(flags, Action::Write { offset, data });
    }
    let place = Place::from_raw(fields.u64()?);
    let sums = fields.take(blocks_of(u64::from(bytes)) as usize * 4)?;
    let sums = sums.chunks_exact(4).map(|sum| u32_at(sum, 0)).collect();
    unflagged(
        flags,
        Action::Place {
            offset,
            bytes,
            place,
            sums: Cow::Owned(sums),
        },
    )
}

fn unflagged(flags: u8, action: Action<'_>) -> Result<Action<'_>, Malformed> {
    match flags {
        0 => Ok(action),
        _ => Err(Malformed::Flags),
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

/// What of a record is not read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16_at(self.take(2)?, 0))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32_at(self.take(4)?, 0))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64_at(self.take(8)?, 0))
    }

    fn time(&mut self) -> Result<Time, Malformed> {
        Ok(Time {
            seconds: self.u64()? as i64,
            ns: self.u32()?,
        })
    }

    /// Two lengths, and what they are of.
    fn two(&mut self) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let (first, second) = (usize::from(self.u16()?), usize::from(self.u16()?));
        Ok((self.take(first)?, self.take(second)?))
    }
}

fn put(out: &mut Vec<u8>, field: u32) {
    out.extend(field.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, field: u64) {
    out.extend(field.to_le_bytes());
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend(time.seconds.to_le_bytes());
    put(out, time.ns);
}

/// Two lengths, and what they are of.
fn put_lengths(out: &mut Vec<u8>, first: &[u8], second: &[u8]) {
    out.extend((first.len() as u16).to_le_bytes());
    out.extend((second.len() as u16).to_le_bytes());
    out.extend_from_slice(first);
    out.extend_from_slice(second);
}
