//! Replies: their bytes.

use super::constants::opcode;
use super::layout::*;
use super::plain::{Plain, put};
use thiserror::Error;

/// A reply does not fit in the place for it: a defect of the server, which sent more than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the reply is longer than what was asked for")]
pub struct ReplyTooLong;

/// The answer to a request that did not fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'a> {
    /// It is done.
    Empty,
    /// To LOOKUP, and to all that makes a name.
    Entry(EntryOut),
    /// To GETATTR and SETATTR.
    Attr(AttrOut),
    /// To STATX.
    Statx(StatxOut),
    /// To READ, READLINK, READDIR, READDIRPLUS, GETXATTR and LISTXATTR.
    Data(&'a [u8]),
    /// To OPEN and OPENDIR.
    Opened(OpenOut),
    /// To CREATE and TMPFILE.
    Created(EntryOut, OpenOut),
    /// To WRITE: bytes.
    Written(u32),
    /// To COPY_FILE_RANGE: bytes.
    Copied(u64),
    /// To STATFS.
    Statfs(Kstatfs),
    /// To GETXATTR and LISTXATTR of size 0: bytes.
    Size(u32),
    /// To GETLK.
    Lock(FileLock),
    /// To LSEEK.
    Offset(u64),
    /// To IOCTL.
    Ioctl(i32, &'a [u8]),
    /// To POLL: the events that are there.
    Events(u32),
    /// To INIT.
    Init(InitOut),
}

/// Room for the head of any reply; STATX has the largest.
pub const REPLY_HEAD_BYTES_MAX: usize = StatxOut::BYTES;

impl<'a> Reply<'a> {
    /// The reply to operation `code` in two parts: a head, of which the count of bytes in `head` is told, and data that lie
    /// elsewhere.
    pub fn parts(&self, code: u32, head: &mut [u8; REPLY_HEAD_BYTES_MAX]) -> (usize, &'a [u8]) {
        let none: &[u8] = &[];
        let written = |size| WriteOut { size, padding: 0 };
        match *self {
            Reply::Empty => (0, none),
            Reply::Entry(entry) => (put(&entry, head), none),
            Reply::Attr(attr) => (put(&attr, head), none),
            Reply::Statx(statx) => (put(&statx, head), none),
            Reply::Data(data) => (0, data),
            Reply::Opened(opened) => (put(&opened, head), none),
            Reply::Created(entry, opened) => {
                put(&entry, head);
                put(&opened, &mut head[EntryOut::BYTES..]);
                (EntryOut::BYTES + OpenOut::BYTES, none)
            }
            Reply::Written(bytes) => (put(&written(bytes), head), none),
            Reply::Copied(bytes_copied) if code == opcode::COPY_FILE_RANGE_64 => {
                (put(&CopyFileRangeOut { bytes_copied }, head), none)
            }
            // The older operation asks for less than 4 GiB.
            Reply::Copied(bytes) => {
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                (put(&written(bytes), head), none)
            }
            Reply::Statfs(st) => (put(&StatfsOut { st }, head), none),
            Reply::Size(size) => (put(&GetxattrOut { size, padding: 0 }, head), none),
            Reply::Lock(lk) => (put(&LkOut { lk }, head), none),
            Reply::Offset(offset) => (put(&LseekOut { offset }, head), none),
            Reply::Ioctl(result, data) => {
                let out = IoctlOut {
                    result,
                    ..IoctlOut::default()
                };
                (put(&out, head), data)
            }
            Reply::Events(revents) => (put(&PollOut { revents, padding: 0 }, head), none),
            Reply::Init(init) => (put(&init, head), none),
        }
    }

    /// Writes the reply to operation `code` to `place`; how many bytes it has.
    ///
    /// # Errors
    /// [`ReplyTooLong`]; `place` then has nothing of use.
    pub fn encode(&self, code: u32, place: &mut [u8]) -> Result<usize, ReplyTooLong> {
        let mut head = [0; REPLY_HEAD_BYTES_MAX];
        let (head_bytes, data) = self.parts(code, &mut head);
        let bytes = head_bytes + data.len();
        let place = place.get_mut(..bytes).ok_or(ReplyTooLong)?;
        place[..head_bytes].copy_from_slice(&head[..head_bytes]);
        place[head_bytes..].copy_from_slice(data);
        Ok(bytes)
    }
}

/// Entries of a directory, in the buffer of a reply to READDIR or READDIRPLUS.
#[derive(Debug)]
pub struct Directory<'b> {
    place: &'b mut [u8],
    bytes: usize,
}

impl<'b> Directory<'b> {
    /// No entries yet. `place` is at most as long as the request's `size`.
    pub fn new(place: &'b mut [u8]) -> Self {
        Self { place, bytes: 0 }
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an entry for READDIR: inode, offset of the entry that follows, kind (`DT_`), name. False if there is no room left:
    /// then the listing goes on with this entry at the next request.
    pub fn push(&mut self, ino: u64, next_offset: u64, kind: u32, name: &[u8]) -> bool {
        self.add(0, None, (ino, next_offset, kind), name)
    }

    /// Adds an entry for READDIRPLUS, as [`Directory::push`]. An entry that was added counts as a lookup of its inode, unless
    /// `nodeid` is 0: then the kernel looks the name up when it needs to. `.` and `..` have 0.
    pub fn push_plus(&mut self, entry: &EntryOut, next_offset: u64, kind: u32, name: &[u8]) -> bool {
        self.add(
            EntryOut::BYTES,
            Some(entry),
            (entry.attr.ino, next_offset, kind),
            name,
        )
    }

    fn add(
        &mut self,
        before: usize,
        entry: Option<&EntryOut>,
        (ino, off, kind): (u64, u64, u32),
        name: &[u8],
    ) -> bool {
        let named = before + Dirent::BYTES + name.len();
        // FUSE_DIRENT_ALIGN.
        let bytes = named.next_multiple_of(8);
        let Some(place) = self
            .place
            .get_mut(self.bytes..)
            .and_then(|rest| rest.get_mut(..bytes))
        else {
            return false;
        };
        let dirent = Dirent {
            ino,
            off,
            namelen: name.len() as u32,
            kind,
        };
        if let Some(entry) = entry {
            put(entry, place);
        }
        put(&dirent, &mut place[before..]);
        place[before + Dirent::BYTES..named].copy_from_slice(name);
        place[named..].fill(0);
        self.bytes += bytes;
        true
    }
}
