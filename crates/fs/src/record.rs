//! The records of operations (docs/format/fs.md, "Operation log"): each is emitted as it is parsed, byte for byte.

use crate::format::{Place, u16_at, u32_at, u64_at};
use crate::inode::Time;
use crate::op::{
    Action, Allocation, Changes, Entry, Fate, Malformed, Op, RECORD_HEADER_BYTES, Target, blocks_of,
};
use std::borrow::Cow;

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

impl<'a> Op<'a> {
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
}

impl Changes {
    const MASKS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

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
