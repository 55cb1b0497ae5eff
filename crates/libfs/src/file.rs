//! Open files.

use crate::calls::Stat;
use crate::paths::Place;
use crate::session::{FileSystem, How, Session};
use fs::client::access::{APPEND_ONLY, READ, WRITE};
use fs::client::{Wanted, Where, XattrMode};
use fs::errno::Errno;
use fs::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK};
use fs::op::Allocation;
use os::sync::Arc;
use std::os::fd::OwnedFd;

/// What a read takes in one call: so many blocks are had at once.
const READ_BYTES_MAX: usize = 1 << 20;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// It is read.
    pub reads: bool,
    /// It is written.
    pub writes: bool,
    /// `O_APPEND`: each write is behind the end.
    pub appends: bool,
    /// `O_TRUNC`.
    pub truncates: bool,
    /// `O_CREAT`, with this mode.
    pub creates: Option<u32>,
    /// `O_EXCL`.
    pub is_exclusive: bool,
    /// `O_NOFOLLOW`.
    pub is_here: bool,
}

impl Open {
    /// `O_RDONLY`.
    pub const READ: Self = Self {
        reads: true,
        writes: false,
        appends: false,
        truncates: false,
        creates: None,
        is_exclusive: false,
        is_here: false,
    };
}

/// Whether it is a file or a directory: pipes and devices are the kernel's.
fn is_plain(inode: &Inode) -> bool {
    matches!(inode.mode & TYPE_MASK, TYPE_FILE | TYPE_DIRECTORY | TYPE_LINK)
}

/// An open file or directory. It is closed when it is dropped.
pub struct File {
    session: Arc<Session>,
    inode: u64,
    is_directory: bool,
    how: Open,
}

impl FileSystem {
    /// `open`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn open(&self, at: Place<'_>, how: Open) -> Result<File, Errno> {
        self.open_as(at, how, How::default())
    }

    /// `open`, if the process has all leases that this takes, and knows what it needs; else [`Errno::CrossDevice`]. So a process that has to do with a file is
    /// told from one that only passes by.
    ///
    /// # Errors
    /// As of Linux.
    pub fn open_at_hand(&self, at: Place<'_>, how: Open) -> Result<File, Errno> {
        let is_at_hand = true;
        self.open_as(
            at,
            how,
            How {
                is_at_hand,
                ..How::default()
            },
        )
    }

    fn open_as(&self, at: Place<'_>, how: Open, call: How<'_>) -> Result<File, Errno> {
        let mask = if how.reads { READ } else { 0 } | if how.writes { WRITE } else { 0 };
        let follows = !(how.is_here || how.creates.is_some() && how.is_exclusive);
        let (inode, is_directory) = self.0.call_as(call, |calls, call| {
            let walked = self.0.walk(calls, call, at, follows)?;
            if let (None, Some(mode)) = (walked.found, how.creates) {
                let entry = walked.entry(Errno::IsDirectory)?;
                if walked.is_directory {
                    return Err(Errno::IsDirectory.into());
                }
                let made = calls.create_or_find(call, entry, (mode, how.is_exclusive))?;
                calls.hold(made.number, 1);
                return Ok((made.number, false));
            }
            let (number, inode) = walked.there()?;
            if how.creates.is_some() && how.is_exclusive {
                return Err(Errno::Exists.into());
            }
            if how.creates.is_some() && inode.is_directory() {
                return Err(Errno::IsDirectory.into());
            }
            if self.0.is_mounted() && !is_plain(&inode) {
                return Err(Errno::CrossDevice.into());
            }
            // The daemon cannot tell an append from another write.
            if how.writes && inode.flags & APPEND_ONLY != 0 && !call.caller.is_root() {
                return Err(Errno::NotPermitted.into());
            }
            calls.open(call, number, mask, (how.truncates, how.appends))?;
            Ok((number, inode.is_directory()))
        })?;
        let session = Arc::clone(&self.0);
        Ok(File {
            session,
            inode,
            is_directory,
            how,
        })
    }

    /// `open` with `O_TMPFILE`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn open_nameless(&self, at: Place<'_>, mode: u32, how: Open) -> Result<File, Errno> {
        let inode = self.0.call(|calls, call| {
            let (directory, _) = self.0.walk(calls, call, at, true)?.there()?;
            let made = calls.create_nameless(call, directory, (mode, !how.is_exclusive))?;
            Ok(made.number)
        })?;
        let session = Arc::clone(&self.0);
        Ok(File {
            session,
            inode,
            is_directory: false,
            how,
        })
    }

    /// Gives an open file a name: `linkat` of a descriptor.
    ///
    /// # Errors
    /// As of Linux.
    pub fn link_file(&self, file: &File, to: Place<'_>) -> Result<(), Errno> {
        self.0.call(|calls, call| {
            let walked = self.0.walk(calls, call, to, false)?;
            let entry = walked.entry(Errno::Exists)?;
            calls.link(call, file.inode, entry).map(|_| ())
        })
    }
}

/// A part of a call of which so much is done: the mount cannot make the rest.
fn beyond<'a>(done: usize) -> How<'a> {
    How {
        insists: done > 0,
        ..How::default()
    }
}

impl File {
    /// Its inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// A descriptor of the mount for this file ([`FileSystem::descriptor`]).
    ///
    /// # Errors
    /// As of [`FileSystem::descriptor`].
    pub fn descriptor(&self, flags: u32) -> Result<OwnedFd, Errno> {
        self.session.descriptor(self.inode, flags)
    }

    /// How it was opened.
    pub fn how(&self) -> Open {
        self.how
    }

    /// `pread`. How many bytes there were.
    ///
    /// # Errors
    /// As of Linux. One that was not opened to be read is [`Errno::NotPermitted`]: the caller knows descriptors.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        if !self.how.reads {
            return Err(Errno::NotPermitted);
        }
        // A call has all its blocks at once.
        let mut done = 0;
        for part in bytes.chunks_mut(READ_BYTES_MAX) {
            let at = (self.inode, offset.saturating_add(done as u64));
            let read = self
                .session
                .call_as(beyond(done), |calls, call| calls.read(call.below, at, part));
            match read {
                Ok(count) => {
                    done += count;
                    if count < part.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// `pwrite`: all of it, in several calls if it is long. How many bytes, which are less if there is no room for all.
    ///
    /// # Errors
    /// As of Linux, if nothing was written.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        match self.how.appends {
            true => self.append(data).map(|(_, count)| count),
            false => self.write(Where::At(offset), data).map(|(_, count)| count),
        }
    }

    /// Writes behind the end. Where that was, and how many bytes.
    ///
    /// # Errors
    /// As of [`Self::write_at`].
    pub fn append(&self, data: &[u8]) -> Result<(u64, usize), Errno> {
        self.write(Where::End, data)
    }

    fn write(&self, at: Where, data: &[u8]) -> Result<(u64, usize), Errno> {
        if !self.how.writes {
            return Err(Errno::NotPermitted);
        }
        let (mut first, mut done) = (None, 0);
        loop {
            let at = match at {
                Where::At(offset) => Where::At(offset + done as u64),
                Where::End => Where::End,
            };
            let rest = &data[done..];
            let written = self.session.call_as(beyond(done), |calls, call| {
                calls.write(call, (self.inode, at), rest, true)
            });
            match written {
                Ok(written) => {
                    first.get_or_insert(written.offset);
                    done += written.bytes;
                    if done == data.len() || written.bytes == 0 {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok((first.unwrap_or_default(), done))
    }

    /// `fstat`.
    ///
    /// # Errors
    /// The log is closed.
    pub fn stat(&self) -> Result<Stat, Errno> {
        let number = self.inode;
        let inode = self.session.call(|calls, call| calls.stat(call.below, number))?;
        Ok(Stat { number, inode })
    }

    /// `fchmod`, `fchown`, `ftruncate` and `futimens`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn set(&self, wanted: &Wanted) -> Result<(), Errno> {
        self.session
            .call(|calls, call| calls.set(call, self.inode, wanted).map(|_| ()))
    }

    /// `ftruncate`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        if !self.how.writes {
            return Err(Errno::Invalid);
        }
        let wanted = Wanted {
            size: Some(size),
            is_open: true,
            ..Wanted::default()
        };
        self.set(&wanted)
    }

    /// `fallocate`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn allocate(&self, range: (u64, u64), what: (Allocation, bool)) -> Result<(), Errno> {
        self.session
            .call(|calls, call| calls.allocate(call, (self.inode, range), what, true).map(|_| ()))
    }

    /// `lseek` with `SEEK_DATA`, or with `SEEK_HOLE`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn seek(&self, offset: u64, wants_data: bool) -> Result<u64, Errno> {
        self.session
            .call(|calls, call| calls.seek(call.below, (self.inode, offset), wants_data))
    }

    /// `fgetxattr`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn attribute(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.session
            .call(|calls, call| calls.attribute(call, self.inode, name))
    }

    /// `fsetxattr`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn set_attribute(&self, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Errno> {
        let of = (self.inode, name);
        self.session
            .call(|calls, call| calls.set_attribute(call, of, value, (mode, true)).map(|_| ()))
    }

    /// `fremovexattr`.
    ///
    /// # Errors
    /// As of Linux.
    pub fn remove_attribute(&self, name: &[u8]) -> Result<(), Errno> {
        let of = (self.inode, name);
        self.session
            .call(|calls, call| calls.remove_attribute(call, of).map(|_| ()))
    }

    /// `fsync`: what calls have done is durable when they return.
    ///
    /// # Errors
    /// The log is closed.
    pub fn sync(&self) -> Result<(), Errno> {
        self.session.call(|_, _| Ok(()))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.session.forget(self.inode);
    }
}
