//! Calls that change names: creations, links, removals and renames.

use super::access::{APPEND_ONLY, EXECUTE, IMMUTABLE, SET_GID, STICKY, WRITE};
use super::acl::{ACCESS, Acl, DEFAULT};
use super::{Call, Client, Failure};
use crate::errno::Errno;
use crate::inode::{Inode, TYPE_BLOCKS, TYPE_CHARACTERS, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK};
use crate::log::Ticket;
use crate::op::{Action, Bytes, Entry, Op, TARGET_BYTES_MAX, Target};
use crate::overlay::Below;

/// Directories above one another, at most: the digest goes no further up.
const DEPTH_MAX: usize = 1 << 16;

/// An inode that is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct New<'n> {
    /// Type and permissions. The umask is the client's work.
    pub mode: u32,
    /// Of a special file, as `stat` of Linux has it.
    pub device: u32,
    /// Of a symbolic link.
    pub target: &'n [u8],
}

/// What a creation has made, or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its number.
    pub number: u64,
    /// What it is now.
    pub inode: Inode,
    /// When it is durable; none if it was there.
    pub ticket: Option<Ticket>,
}

/// How `renameat2` is to rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rename {
    /// `RENAME_NOREPLACE`.
    pub keeps_target: bool,
    /// `RENAME_EXCHANGE`.
    pub exchanges: bool,
}

/// Owner, group, mode and lists of a new inode.
struct Born {
    mode: u32,
    gid: u32,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Client {
    /// Makes an inode with a name: `mkdir`, `mknod`, `symlink`.
    ///
    /// # Errors
    /// The name is taken, and others of Linux.
    pub fn create(
        &mut self,
        call: &mut Call<'_, '_>,
        (parent, name): (u64, &[u8]),
        new: New<'_>,
    ) -> Result<Made, Failure> {
        if new.mode & TYPE_MASK == TYPE_LINK {
            match new.target.len() {
                0 => return Err(Errno::NoEntry.into()),
                1..=TARGET_BYTES_MAX => {}
                _ => return Err(Errno::NameTooLong.into()),
            }
        }
        let (directory, found) = self.find(call, parent, name)?;
        match found {
            Some(_) => Err(Errno::Exists.into()),
            None => self.make(call, (parent, &directory), name, new),
        }
    }

    /// `open` with `O_CREAT`: a regular file that is there or is made. Permissions of one that is there are for [`Client::open`].
    ///
    /// # Errors
    /// As of [`Client::create`], if it is exclusive.
    pub fn create_or_find(
        &mut self,
        call: &mut Call<'_, '_>,
        (parent, name): (u64, &[u8]),
        (mode, is_exclusive): (u32, bool),
    ) -> Result<Made, Failure> {
        let (directory, found) = self.find(call, parent, name)?;
        let Some(number) = found else {
            let mode = TYPE_FILE | mode & 0o7777;
            let new = New {
                mode,
                ..New::default()
            };
            return self.make(call, (parent, &directory), name, new);
        };
        if is_exclusive {
            return Err(Errno::Exists.into());
        }
        let inode = self.known(call.below, number)?;
        let ticket = None;
        Ok(Made {
            number,
            inode,
            ticket,
        })
    }

    /// `open` with `O_TMPFILE`: a regular file without a name, which [`Client::link`] may give it one if `is_linkable`. The caller
    /// [holds](Client::hold) it: it is deleted by who forgets it last.
    ///
    /// # Errors
    /// As of [`Client::create`].
    pub fn create_nameless(
        &mut self,
        call: &mut Call<'_, '_>,
        parent: u64,
        (mode, is_linkable): (u32, bool),
    ) -> Result<Made, Failure> {
        let directory = self.directory(call.below, parent)?;
        if directory.links == 0 {
            return Err(Errno::NoEntry.into());
        }
        let mode = TYPE_FILE | mode & 0o7777;
        let new = New {
            mode,
            ..New::default()
        };
        let made = self.make(call, (parent, &directory), b"", new)?;
        self.hold(made.number, 1);
        if is_linkable {
            self.nameless.insert(made.number);
        }
        Ok(made)
    }

    /// Makes an inode that has a free name, or none.
    fn make(
        &mut self,
        call: &mut Call<'_, '_>,
        (parent, directory): (u64, &Inode),
        name: &[u8],
        new: New<'_>,
    ) -> Result<Made, Failure> {
        self.may_create(call, (parent, directory))?;
        let kind = new.mode & TYPE_MASK;
        let is_device = matches!(kind, TYPE_CHARACTERS | TYPE_BLOCKS);
        let is_gone = kind == TYPE_CHARACTERS && new.device == 0;
        if is_device && !is_gone && self.options.checks_permissions && !call.caller.is_root() {
            return Err(Errno::NotPermitted.into());
        }
        if kind == TYPE_DIRECTORY && directory.links >= self.options.links_max {
            return Err(Errno::TooManyLinks.into());
        }
        let entry = Entry::new(parent, name);
        if !name.is_empty() {
            self.has_room(call.below, &entry)?;
        }
        let born = self.born(call, (parent, directory), new.mode)?;
        let number = self.numbers.start;
        if self.numbers.is_empty() {
            return Err(Failure::Inodes);
        }
        let create = Action::Create {
            entry,
            mode: born.mode,
            uid: call.caller.uid,
            gid: born.gid,
            device: if is_device { new.device } else { 0 },
            target: new.target.into(),
        };
        let mut ops = vec![self.op(call, number, create)];
        for (name, acl) in [(ACCESS, &born.access), (DEFAULT, &born.default)] {
            if let Some(acl) = acl {
                let value = Some(Bytes::Owned(acl.emit()));
                let name = name.into();
                ops.push(self.op(call, number, Action::Attribute { name, value }));
            }
        }
        let ticket = Some(self.commit(call, &ops)?);
        self.numbers.start += 1;
        let inode = self.known(call.below, number)?;
        Ok(Made {
            number,
            inode,
            ticket,
        })
    }

    /// What a new inode gets of its directory and its maker: `inode_init_owner`, `vfs_prepare_mode` and `posix_acl_create` of Linux.
    fn born(
        &self,
        call: &mut Call<'_, '_>,
        (parent, directory): (u64, &Inode),
        mode: u32,
    ) -> Result<Born, Failure> {
        let kind = mode & TYPE_MASK;
        let is_inherited = directory.mode & SET_GID != 0;
        let gid = if is_inherited {
            directory.gid
        } else {
            call.caller.gid
        };
        let mut mode = match kind {
            TYPE_DIRECTORY => kind | mode & (0o777 | STICKY),
            TYPE_LINK => kind | 0o777,
            _ if is_inherited => call.caller.without_foreign_set_gid(mode, gid),
            _ => mode,
        };
        let mut born = Born {
            mode,
            gid,
            access: None,
            default: None,
        };
        if kind == TYPE_LINK {
            return Ok(born);
        }
        match self.acl(call.below, parent, DEFAULT)? {
            Some(default) => {
                (mode, born.access) = default.inherited(mode);
                born.default = (kind == TYPE_DIRECTORY).then_some(default);
            }
            None => mode &= !(call.caller.umask & 0o777),
        }
        let set_gid = if kind == TYPE_DIRECTORY && is_inherited {
            SET_GID
        } else {
            0
        };
        born.mode = mode | set_gid;
        Ok(born)
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// The name is taken, the inode is a directory or has none left, and others of Linux.
    pub fn link(
        &mut self,
        call: &mut Call<'_, '_>,
        number: u64,
        (parent, name): (u64, &[u8]),
    ) -> Result<Ticket, Failure> {
        let inode = self.known(call.below, number)?;
        let (directory, found) = self.find(call, parent, name)?;
        if found.is_some() {
            return Err(Errno::Exists.into());
        }
        self.may_create(call, (parent, &directory))?;
        let is_fixed = inode.flags & (APPEND_ONLY | IMMUTABLE) != 0;
        match inode.links {
            _ if is_fixed || inode.is_directory() => return Err(Errno::NotPermitted.into()),
            0 if !self.nameless.contains(&number) => return Err(Errno::NoEntry.into()),
            links if links >= self.options.links_max => return Err(Errno::TooManyLinks.into()),
            _ => {}
        }
        let entry = Entry::new(parent, name);
        self.has_room(call.below, &entry)?;
        let ticket = self.commit(call, &[self.op(call, number, Action::Link { entry })])?;
        self.nameless.remove(&number);
        Ok(ticket)
    }

    /// Takes a name away: `unlink`, and `rmdir` if it is a directory's.
    ///
    /// # Errors
    /// It is of another kind, has entries, and others of Linux.
    pub fn unlink(
        &mut self,
        call: &mut Call<'_, '_>,
        (parent, name): (u64, &[u8]),
        is_directory: bool,
    ) -> Result<Ticket, Failure> {
        let (directory, found) = self.find(call, parent, name)?;
        let number = found.ok_or(Errno::NoEntry)?;
        let inode = self.known(call.below, number)?;
        self.may_delete(call, (parent, &directory), &inode)?;
        match (inode.is_directory(), is_directory) {
            (true, false) => return Err(Errno::IsDirectory.into()),
            (false, true) => return Err(Errno::NotDirectory.into()),
            (true, true) if inode.entries > 0 => return Err(Errno::NotEmpty.into()),
            _ => {}
        }
        let action = Action::Unlink {
            entry: Entry::new(parent, name),
            is_directory,
            fate: self.fate(number, &inode),
        };
        self.commit(call, &[self.op(call, number, action)])
    }

    /// Moves a name: `renameat2`. None if there is nothing to do, as both are the same inode.
    ///
    /// # Errors
    /// As of Linux, in the order of `do_renameat2` and `vfs_rename`.
    pub fn rename(
        &mut self,
        call: &mut Call<'_, '_>,
        (from_parent, from_name): (u64, &[u8]),
        (to_parent, to_name): (u64, &[u8]),
        how: Rename,
    ) -> Result<Option<Ticket>, Failure> {
        if how.keeps_target && how.exchanges {
            return Err(Errno::Invalid.into());
        }
        self.directory(call.below, to_parent)?;
        let (from_directory, source) = self.find(call, from_parent, from_name)?;
        let source = source.ok_or(Errno::NoEntry)?;
        let (to_directory, found) = self.find(call, to_parent, to_name)?;
        match found {
            Some(_) if how.keeps_target => return Err(Errno::Exists.into()),
            None if how.exchanges => return Err(Errno::NoEntry.into()),
            _ => {}
        }
        let inode = self.known(call.below, source)?;
        let other = match found {
            Some(found) => Some((found, self.known(call.below, found)?)),
            None => None,
        };
        if inode.is_directory() && self.is_inside(call.below, to_parent, source)? {
            return Err(Errno::Invalid.into());
        }
        if let Some((found, other)) = &other
            && other.is_directory()
            && self.is_inside(call.below, from_parent, *found)?
        {
            let errno = if how.exchanges {
                Errno::Invalid
            } else {
                Errno::NotEmpty
            };
            return Err(errno.into());
        }
        if found == Some(source) {
            return Ok(None);
        }
        self.may_rename(
            call,
            [(from_parent, &from_directory), (to_parent, &to_directory)],
            (source, &inode),
            other.as_ref(),
            how,
        )?;
        let target = match &other {
            None => Target::Free,
            Some((inode, _)) if how.exchanges => Target::Exchanged { inode: *inode },
            Some((number, inode)) => Target::Replaced {
                inode: *number,
                fate: self.fate(*number, inode),
            },
        };
        let (from, to) = (Entry::new(from_parent, from_name), Entry::new(to_parent, to_name));
        if other.is_none() {
            self.has_room(call.below, &to)?;
        }
        let op: Op<'_> = self.op(call, source, Action::Rename { from, to, target });
        self.commit(call, &[op]).map(Some)
    }

    /// `vfs_rename` of Linux: permissions, types and links.
    fn may_rename(
        &self,
        call: &mut Call<'_, '_>,
        [from, to]: [(u64, &Inode); 2],
        (source, inode): (u64, &Inode),
        other: Option<&(u64, Inode)>,
        how: Rename,
    ) -> Result<(), Failure> {
        let is_directory = inode.is_directory();
        let was_directory = other.is_some_and(|(_, other)| other.is_directory());
        self.may_delete(call, from, inode)?;
        match other {
            None => self.may_create(call, to)?,
            Some((_, other)) => {
                self.may_delete(call, to, other)?;
                match (is_directory, was_directory) {
                    (true, false) if !how.exchanges => return Err(Errno::NotDirectory.into()),
                    (false, true) if !how.exchanges => return Err(Errno::IsDirectory.into()),
                    _ => {}
                }
            }
        }
        if from.0 != to.0 {
            // The `..` of a directory that moves is a change of the directory.
            if is_directory {
                self.check(call, (source, inode), WRITE)?;
            }
            if let Some((number, other)) = other.filter(|_| how.exchanges && was_directory) {
                self.check(call, (*number, other), WRITE)?;
            }
            let full = |directory: &Inode| directory.links >= self.options.links_max;
            let is_full = (is_directory && !was_directory && full(to.1))
                || (how.exchanges && !is_directory && was_directory && full(from.1));
            if is_full {
                return Err(Errno::TooManyLinks.into());
            }
        }
        match other {
            Some((_, other)) if was_directory && !how.exchanges && other.entries > 0 => {
                Err(Errno::NotEmpty.into())
            }
            _ => Ok(()),
        }
    }

    /// Whether a directory is another one, or somewhere in it.
    fn is_inside(&self, below: &mut Below<'_>, mut directory: u64, inode: u64) -> Result<bool, Failure> {
        for _ in 0..DEPTH_MAX {
            if directory == inode {
                return Ok(true);
            }
            let parent = match self.overlay.inode(below, directory)? {
                Some(found) if found.is_directory() => found.parent,
                _ => return Ok(false),
            };
            if parent == directory || parent == 0 {
                return Ok(false);
            }
            directory = parent;
        }
        Err(Errno::Invalid.into())
    }

    /// Whether the caller may search a directory: each step of a path.
    ///
    /// # Errors
    /// [`Errno::Access`] if not, [`Errno::NotDirectory`] if it is none.
    pub fn may_search(&self, call: &mut Call<'_, '_>, directory: u64) -> Result<(), Failure> {
        let inode = self.directory(call.below, directory)?;
        self.check(call, (directory, &inode), EXECUTE)
    }
}
