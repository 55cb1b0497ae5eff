//! Calls that change what an inode is: modes, owners, times, flags, and extended attributes with the access control lists among them.

use super::access::{APPEND_ONLY, FLAGS, IMMUTABLE, NO_ATIME, SET_GID, STICKY, WRITE};
use super::acl::{self, Acl};
use super::{Call, Client, Failure};
use crate::errno::Errno;
use crate::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK, Time};
use crate::log::Ticket;
use crate::op::{ATTRIBUTE_BYTES_MAX, Action, Bytes, Changes, NAME_BYTES_MAX, OFFSET_MAX};

/// Bytes of an attribute's value, at most: `XATTR_SIZE_MAX` of Linux.
const VALUE_BYTES_MAX: usize = 1 << 16;
/// How old a time of reading may be: `relatime` of Linux.
const ATIME_SECONDS_MAX: i64 = 24 * 60 * 60;

/// A time that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// Now, for which the right to write is enough.
    Now,
    /// Another one, which only the owner sets.
    At(Time),
}

/// What of an inode is to be another: `chmod`, `chown`, `truncate`, `utimensat`. What is none stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The lower 12 bits of the mode.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size.
    pub size: Option<u64>,
    /// When it was read.
    pub atime: Option<Stamp>,
    /// When its content changed.
    pub mtime: Option<Stamp>,
    /// The size is changed by a descriptor that is open for writing.
    pub is_open: bool,
    /// Set-ID bits go with a change of the size: FUSE says so (`FATTR_KILL_SUIDGID`). A client that looks at permissions decides itself.
    pub takes_set_id: bool,
}

/// What an extended attribute is to be before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Anything.
    #[default]
    Any,
    /// Not there: `XATTR_CREATE`.
    Create,
    /// There: `XATTR_REPLACE`.
    Replace,
}

impl Client {
    /// Changes what `wanted` says. None if that is nothing.
    ///
    /// # Errors
    /// As of Linux: `setattr_prepare`, `notify_change`.
    pub fn set(
        &mut self,
        call: &mut Call<'_, '_>,
        number: u64,
        wanted: &Wanted,
    ) -> Result<Option<Ticket>, Failure> {
        let inode = self.known(call.below, number)?;
        self.may_set(call, (number, &inode), wanted)?;
        let mut ops = Vec::new();
        let mut changes = Changes {
            uid: wanted.uid,
            gid: wanted.gid,
            atime: wanted.atime.map(|stamp| stamp.at(call.now)),
            mtime: wanted.mtime.map(|stamp| stamp.at(call.now)),
            ..Changes::default()
        };
        if let Some(size) = wanted.size {
            ops.push(self.op(call, number, Action::Truncate { size }));
        }
        let kind = inode.mode & TYPE_MASK;
        let is_given = wanted.uid.is_some() || wanted.gid.is_some();
        let changes_size = wanted.size.is_some();
        let takes = wanted.takes_set_id || (self.options.checks_permissions && !call.caller.is_root());
        if let Some(mode) = wanted.mode {
            let gid = wanted.gid.unwrap_or(inode.gid);
            let is_foreign =
                self.options.checks_permissions && !call.caller.is_root() && !call.caller.is_in(gid);
            changes.mode = Some(mode & 0o7777 & !if is_foreign { SET_GID } else { 0 });
        } else if kind != TYPE_DIRECTORY && kind != TYPE_LINK && (is_given || (changes_size && takes)) {
            let mode = call.caller.without_set_id(&inode);
            changes.mode = Some(mode).filter(|mode| *mode != inode.mode & !TYPE_MASK);
        }
        if (is_given || changes_size) && kind == TYPE_FILE {
            ops.extend(self.without_capability(call, number)?);
        }
        if let Some(mode) = wanted.mode
            && let Some(acl) = self.acl(call.below, number, acl::ACCESS)?
        {
            let name = acl::ACCESS.into();
            let value = Some(Bytes::Owned(acl.with_mode(mode).emit()));
            ops.push(self.op(call, number, Action::Attribute { name, value }));
        }
        if changes != Changes::default() {
            ops.push(self.op(call, number, Action::Set(changes)));
        }
        match ops.is_empty() {
            true => Ok(None),
            false => self.commit_data(call, (number, &inode), &ops).map(Some),
        }
    }

    /// Whether all that is wanted may be.
    fn may_set(
        &self,
        call: &mut Call<'_, '_>,
        (number, inode): (u64, &Inode),
        wanted: &Wanted,
    ) -> Result<(), Failure> {
        let times = [wanted.atime, wanted.mtime];
        let is_at = times.iter().flatten().any(|stamp| *stamp != Stamp::Now);
        let is_partly = times.iter().flatten().count() == 1;
        let changes_owner = wanted.mode.is_some() || wanted.uid.is_some() || wanted.gid.is_some();
        let is_fixed = inode.flags & (IMMUTABLE | APPEND_ONLY) != 0;
        let is_touched = times.iter().any(Option::is_some) && inode.flags & IMMUTABLE != 0;
        if is_touched || (is_fixed && (is_at || is_partly || changes_owner || wanted.size.is_some())) {
            return Err(Errno::NotPermitted.into());
        }
        if let Some(size) = wanted.size {
            match inode.mode & TYPE_MASK {
                TYPE_FILE => {}
                TYPE_DIRECTORY => return Err(Errno::IsDirectory.into()),
                _ => return Err(Errno::Invalid.into()),
            }
            if !wanted.is_open {
                self.check(call, (number, inode), WRITE)?;
            }
            if size > OFFSET_MAX {
                return Err(Errno::FileTooBig.into());
            }
        }
        if wanted.mode.is_some() && inode.mode & TYPE_MASK == TYPE_LINK {
            return Err(Errno::NotSupported.into());
        }
        if changes_owner || is_at || is_partly {
            self.check_owner(call, inode)?;
        } else if times != [None; 2] && !call.caller.owns(inode) {
            self.check(call, (number, inode), WRITE)?;
        }
        let caller = call.caller;
        let may_give = !self.options.checks_permissions || caller.is_root();
        let keeps_uid = wanted.uid.is_none_or(|uid| uid == inode.uid);
        let may_group = wanted.gid.is_none_or(|gid| gid == inode.gid || caller.is_in(gid));
        match may_give || (keeps_uid && may_group) {
            true => Ok(()),
            false => Err(Errno::NotPermitted.into()),
        }
    }

    /// Sets the flags of `chattr`.
    ///
    /// # Errors
    /// The caller is not the owner, or not root for [`IMMUTABLE`] and [`APPEND_ONLY`]; or a flag is not known.
    pub fn set_flags(&mut self, call: &mut Call<'_, '_>, number: u64, flags: u64) -> Result<Ticket, Failure> {
        let inode = self.known(call.below, number)?;
        self.check_owner(call, &inode)?;
        if flags & !FLAGS != 0 {
            return Err(Errno::NotSupported.into());
        }
        let of_root = IMMUTABLE | APPEND_ONLY;
        if (flags ^ inode.flags) & of_root != 0 && !call.caller.is_root() {
            return Err(Errno::NotPermitted.into());
        }
        let changes = Changes {
            flags: Some(flags),
            ..Changes::default()
        };
        self.commit(call, &[self.op(call, number, Action::Set(changes))])
    }

    /// Notes that a file or directory was read, as `relatime` does. None if its time is new enough. A refusal may be ignored.
    ///
    /// # Errors
    /// The log or the devices have no room.
    pub fn accessed(&mut self, call: &mut Call<'_, '_>, number: u64) -> Result<Option<Ticket>, Failure> {
        let inode = self.known(call.below, number)?;
        let age = call.now.seconds.saturating_sub(inode.atime.seconds);
        let is_new = inode.atime > inode.mtime && inode.atime > inode.ctime && age < ATIME_SECONDS_MAX;
        if is_new || inode.flags & NO_ATIME != 0 || inode.links == 0 {
            return Ok(None);
        }
        let changes = Changes {
            atime: Some(call.now),
            keeps_ctime: true,
            ..Changes::default()
        };
        self.commit(call, &[self.op(call, number, Action::Set(changes))])
            .map(Some)
    }

    /// `setxattr`. `takes_set_gid` is what FUSE says with a list (`FUSE_SETXATTR_ACL_KILL_SGID`).
    ///
    /// # Errors
    /// As of Linux: `setxattr`, `xattr_permission`.
    pub fn set_attribute(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, name): (u64, &[u8]),
        value: &[u8],
        (mode, takes_set_gid): (XattrMode, bool),
    ) -> Result<Option<Ticket>, Failure> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Errno::Range.into());
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Errno::TooBig.into());
        }
        let inode = self.known(call.below, number)?;
        if is_acl(name) {
            let list = Some(value).filter(|value| !value.is_empty());
            return self.set_acl(call, (number, &inode), name, (list, takes_set_gid));
        }
        self.may_set_attribute(call, (number, &inode), name)?;
        let is_there = self.overlay.attribute(call.below, number, name)?.is_some();
        match mode {
            XattrMode::Create if is_there => return Err(Errno::Exists.into()),
            XattrMode::Replace if !is_there => return Err(Errno::NoData.into()),
            _ => {}
        }
        self.has_attribute_room(call, (number, name), value.len())?;
        let action = Action::Attribute {
            name: name.into(),
            value: Some(value.into()),
        };
        self.plain = self.plain.filter(|plain| *plain != number);
        self.commit(call, &[self.op(call, number, action)]).map(Some)
    }

    /// `removexattr`. None if there was nothing to do: a list that is not there.
    ///
    /// # Errors
    /// As of Linux.
    pub fn remove_attribute(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, name): (u64, &[u8]),
    ) -> Result<Option<Ticket>, Failure> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Errno::Range.into());
        }
        let inode = self.known(call.below, number)?;
        if is_acl(name) {
            return self.set_acl(call, (number, &inode), name, (None, false));
        }
        self.may_set_attribute(call, (number, &inode), name)?;
        if self.overlay.attribute(call.below, number, name)?.is_none() {
            return Err(Errno::NoData.into());
        }
        let (name, value) = (name.into(), None);
        self.commit(call, &[self.op(call, number, Action::Attribute { name, value })])
            .map(Some)
    }

    /// `xattr_permission` of Linux, and the name spaces that there are.
    fn may_set_attribute(
        &self,
        call: &mut Call<'_, '_>,
        (number, inode): (u64, &Inode),
        name: &[u8],
    ) -> Result<(), Failure> {
        if inode.flags & (IMMUTABLE | APPEND_ONLY) != 0 {
            return Err(Errno::NotPermitted.into());
        }
        let is_root = call.caller.is_root() || !self.options.checks_permissions;
        let is_plain = matches!(inode.mode & TYPE_MASK, TYPE_FILE | TYPE_DIRECTORY);
        let (space, rest) = match name.iter().position(|byte| *byte == b'.') {
            Some(at) => name.split_at(at + 1),
            None => return Err(Errno::NotSupported.into()),
        };
        match space {
            b"user." if !is_plain => return Err(Errno::NotPermitted.into()),
            b"user." => {
                if inode.is_directory() && inode.mode & STICKY != 0 {
                    self.check_owner(call, inode)?;
                }
                self.check(call, (number, inode), WRITE)?;
            }
            b"trusted." | b"security." if !is_root => return Err(Errno::NotPermitted.into()),
            b"trusted." | b"security." => {}
            _ => return Err(Errno::NotSupported.into()),
        }
        match rest {
            [] => Err(Errno::Invalid.into()),
            _ => Ok(()),
        }
    }

    fn has_attribute_room(
        &self,
        call: &mut Call<'_, '_>,
        (number, name): (u64, &[u8]),
        value_bytes: usize,
    ) -> Result<(), Failure> {
        let fits = name.len() + value_bytes <= ATTRIBUTE_BYTES_MAX;
        match fits
            && self
                .overlay
                .has_attribute_room(call.below, (number, name), value_bytes)?
        {
            true => Ok(()),
            false => Err(Errno::NoSpace.into()),
        }
    }

    /// Sets or takes away a list: `set_posix_acl` and `posix_acl_update_mode` of Linux. The mode says the same as the list of an inode.
    fn set_acl(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, inode): (u64, &Inode),
        name: &[u8],
        (value, takes_set_gid): (Option<&[u8]>, bool),
    ) -> Result<Option<Ticket>, Failure> {
        if inode.mode & TYPE_MASK == TYPE_LINK {
            return Err(Errno::NotSupported.into());
        }
        if inode.flags & (IMMUTABLE | APPEND_ONLY) != 0 {
            return Err(Errno::NotPermitted.into());
        }
        if name == acl::DEFAULT && !inode.is_directory() {
            return match value {
                Some(_) => Err(Errno::Access.into()),
                None => Ok(None),
            };
        }
        self.check_owner(call, inode)?;
        let mut changes = Changes::default();
        let mut acl = match value {
            Some(value) => Some(Acl::parse(value).ok_or(Errno::Invalid)?),
            None => None,
        };
        if name == acl::ACCESS
            && let Some(list) = &acl
        {
            let (permissions, is_all) = list.mode();
            let is_foreign =
                self.options.checks_permissions && !call.caller.is_root() && !call.caller.is_in(inode.gid);
            let kept = if takes_set_gid || is_foreign {
                0o5000
            } else {
                0o7000
            };
            changes.mode = Some(inode.mode & kept | permissions);
            acl = acl.filter(|_| !is_all);
        }
        let mut ops = Vec::new();
        let is_there = self.overlay.attribute(call.below, number, name)?.is_some();
        if acl.is_some() || is_there {
            let value = acl.map(|acl| Bytes::Owned(acl.emit()));
            if let Some(value) = &value {
                self.has_attribute_room(call, (number, name), value.len())?;
            }
            let name = name.into();
            ops.push(self.op(call, number, Action::Attribute { name, value }));
        }
        if changes.mode.is_some() {
            ops.push(self.op(call, number, Action::Set(changes)));
        }
        match ops.is_empty() {
            true => Ok(None),
            false => self.commit(call, &ops).map(Some),
        }
    }
}

impl Stamp {
    fn at(self, now: Time) -> Time {
        match self {
            Self::Now => now,
            Self::At(time) => time,
        }
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}
