//! Calls by directory and path.

use crate::paths::Place;
use crate::session::{FileSystem, How};
use fs::client::{Call, Client, Failure, New, Rename, Statfs, Wanted, XattrMode};
use fs::errno::Errno;
use fs::inode::{Inode, TYPE_DIRECTORY, TYPE_LINK};
use std::cell::Cell;

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The inode's number.
    pub number: u64,
    /// What it is.
    pub inode: Inode,
}

/// An entry of a directory, as `getdents` has it.
pub type Entry = fs::client::Listing;

type Done<T> = Result<T, Errno>;

impl FileSystem {
    /// A call on what a path leads to.
    fn with<R>(
        &self,
        at: Place<'_>,
        follows: bool,
        mut then: impl FnMut(&mut Client, &mut Call<'_, '_>, u64) -> Result<R, Failure>,
    ) -> Done<R> {
        self.0.call(|calls, call| {
            let (number, _) = self.0.walk(calls, call, at, follows)?.there()?;
            then(calls, call, number)
        })
    }

    /// `stat`; `lstat` if it does not follow.
    ///
    /// # Errors
    /// As of Linux.
    pub fn stat(&self, at: Place<'_>, follows: bool) -> Done<Stat> {
        if let Some((number, inode)) = self.0.walked(at, follows) {
            return Ok(Stat { number, inode });
        }
        self.0.call(|calls, call| {
            let (number, inode) = self.0.walk(calls, call, at, follows)?.there()?;
            Ok(Stat { number, inode })
        })
    }

    /// `access`: with bits of 4, 2 and 1.
    ///
    /// # Errors
    /// As of Linux.
    pub fn access(&self, at: Place<'_>, mask: u32, follows: bool) -> Done<()> {
        self.with(at, follows, |calls, call, number| {
            let caller = call.caller;
            calls.access(call.below, &caller, (number, mask))
        })
    }

    fn make(&self, at: Place<'_>, new: New<'_>) -> Done<()> {
        let is_directory = new.mode & fs::inode::TYPE_MASK == TYPE_DIRECTORY;
        self.0.call(|calls, call| {
            let walked = self.0.walk(calls, call, at, false)?;
            let entry = walked.entry(Errno::Exists)?;
            if walked.is_directory && !is_directory && walked.found.is_none() {
                return Err(Errno::NoEntry.into());
            }
            calls.create(call, entry, new).map(|_| ())
        })
    }

    /// `mkdir`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn mkdir(&self, at: Place<'_>, mode: u32) -> Done<()> {
        let mode = TYPE_DIRECTORY | mode & 0o7777;
        self.make(
            at,
            New {
                mode,
                ..New::default()
            },
        )
    }

    /// `mknod`: with the type in the mode.
    ///
    /// # Errors
    /// As of Linux.
    pub fn mknod(&self, at: Place<'_>, mode: u32, device: u32) -> Done<()> {
        self.make(
            at,
            New {
                mode,
                device,
                ..New::default()
            },
        )
    }

    /// `symlink`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn symlink(&self, target: &[u8], at: Place<'_>) -> Done<()> {
        let mode = TYPE_LINK | 0o777;
        self.make(
            at,
            New {
                mode,
                target,
                ..New::default()
            },
        )
    }

    /// `readlink`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn readlink(&self, at: Place<'_>) -> Done<Vec<u8>> {
        self.with(at, false, |calls, call, number| {
            calls.readlink(call.below, number)
        })
    }

    /// `link`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn link(&self, from: Place<'_>, to: Place<'_>, follows: bool) -> Done<()> {
        self.0.call(|calls, call| {
            let (number, _) = self.0.walk(calls, call, from, follows)?.there()?;
            let walked = self.0.walk(calls, call, to, false)?;
            let entry = walked.entry(Errno::Exists)?;
            if walked.is_directory && walked.found.is_none() {
                return Err(Errno::NoEntry.into());
            }
            calls.link(call, number, entry).map(|_| ())
        })
    }

    /// `unlink`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn unlink(&self, at: Place<'_>) -> Done<()> {
        self.remove(at, false)
    }

    /// `rmdir`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn rmdir(&self, at: Place<'_>) -> Done<()> {
        self.remove(at, true)
    }

    fn remove(&self, at: Place<'_>, is_directory: bool) -> Done<()> {
        let is_last = Cell::new(false);
        let removing = How {
            changes: Some(&is_last),
            ..How::default()
        };
        self.0.call_as(removing, |calls, call| {
            let walked = self.0.walk_to_change(calls, call, at, &is_last)?;
            let entry = walked.entry(match is_directory {
                true if at.path.ends_with(b".") && !at.path.ends_with(b"..") => Errno::Invalid,
                true if at.path.ends_with(b"..") => Errno::NotEmpty,
                true => Errno::Busy,
                false => Errno::IsDirectory,
            })?;
            if walked.is_directory && !is_directory {
                let (_, inode) = walked.there()?;
                return Err(match inode.is_directory() {
                    true => Errno::IsDirectory,
                    false => Errno::NotDirectory,
                }
                .into());
            }
            calls.unlink(call, entry, is_directory).map(|_| ())
        })
    }

    /// `renameat2`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn rename(&self, from: Place<'_>, to: Place<'_>, how: Rename) -> Done<()> {
        let plain = Cell::new(None);
        let moving = How {
            plain: Some(&plain),
            ..How::default()
        };
        self.0.call_as(moving, |calls, call| {
            let source = self.0.walk(calls, call, from, false)?;
            let target = self.0.walk(calls, call, to, false)?;
            let (number, inode) = source.found.ok_or(Errno::NoEntry)?;
            if (source.is_directory || target.is_directory) && !inode.is_directory() {
                return Err(Errno::NotDirectory.into());
            }
            plain.set((!inode.is_directory()).then_some(number));
            let entries = (source.entry(Errno::Busy)?, target.entry(Errno::Busy)?);
            calls.rename(call, entries.0, entries.1, how).map(|_| ())
        })
    }

    /// `chmod`, `chown`, `truncate` and `utimensat` of a path.
    ///
    /// # Errors
    /// As of Linux.
    pub fn set(&self, at: Place<'_>, wanted: &Wanted, follows: bool) -> Done<()> {
        self.with(at, follows, |calls, call, number| {
            calls.set(call, number, wanted).map(|_| ())
        })
    }

    /// Up to `count` entries of a directory, behind a cookie: 0 for the first.
    ///
    /// # Errors
    /// As of Linux.
    pub fn list(&self, directory: u64, cookie: u64, count: usize) -> Done<Vec<Entry>> {
        self.0
            .call(|calls, call| calls.list(call.below, (directory, cookie), count))
    }

    /// `getxattr`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn attribute(&self, at: Place<'_>, name: &[u8], follows: bool) -> Done<Vec<u8>> {
        self.with(at, follows, |calls, call, number| {
            calls.attribute(call, number, name)
        })
    }

    /// `listxattr`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn attributes(&self, at: Place<'_>, follows: bool) -> Done<Vec<Vec<u8>>> {
        self.with(at, follows, |calls, call, number| calls.attributes(call, number))
    }

    /// `setxattr`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn set_attribute(
        &self,
        at: Place<'_>,
        (name, value): (&[u8], &[u8]),
        (mode, follows): (XattrMode, bool),
    ) -> Done<()> {
        self.with(at, follows, |calls, call, number| {
            calls
                .set_attribute(call, (number, name), value, (mode, true))
                .map(|_| ())
        })
    }

    /// `removexattr`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn remove_attribute(&self, at: Place<'_>, name: &[u8], follows: bool) -> Done<()> {
        self.with(at, follows, |calls, call, number| {
            calls.remove_attribute(call, (number, name)).map(|_| ())
        })
    }

    /// `statfs`. What is free for data is this process's part.
    ///
    /// # Errors
    /// The log is closed.
    pub fn statfs(&self) -> Done<Statfs> {
        self.0.call(|calls, call| Ok(calls.statfs(call.below)))
    }
}
