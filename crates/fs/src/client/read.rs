//! Calls that change nothing.

use super::access::READ;
use super::{Call, Client, Failure};
use crate::client::acl;
use crate::errno::Errno;
use crate::format::BLOCK_BYTES;
use crate::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK};
use crate::names::kind_of;
use crate::op::NAME_BYTES_MAX;
use crate::overlay::Below;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Cookies of `.` and `..`: all others are above.
const COOKIES_OF_DOTS: u64 = 2;
/// Bits of a cookie for the place among the names of one hash. They are at most 93.
const PLACE_BITS: u32 = 7;
/// The same of the overlay's cookies.
const OVERLAY_PLACE_BITS: u32 = 8;

/// An entry of a directory, as `getdents` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The next entries come for this one. It stays the entry's as long as the entry is there, and is a positive `off_t`.
    pub cookie: u64,
    /// The inode.
    pub inode: u64,
    /// The type: bits 12 to 15 of the mode, which are the `d_type` of Linux.
    pub kind: u8,
    /// The name.
    pub name: Vec<u8>,
}

/// What `statfs` tells, in blocks of 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// All.
    pub blocks: u64,
    /// That are free.
    pub free: u64,
    /// That are free for data.
    pub available: u64,
}

impl Client {
    /// What a name leads to.
    ///
    /// # Errors
    /// It is not there, and others of Linux.
    pub fn lookup(
        &self,
        call: &mut Call<'_, '_>,
        (parent, name): (u64, &[u8]),
    ) -> Result<(u64, Inode), Failure> {
        let directory = self.directory(call.below, parent)?;
        self.check(call, (parent, &directory), super::EXECUTE)?;
        let number = match name {
            b"." => parent,
            b".." if directory.parent != 0 => directory.parent,
            _ if name.len() > NAME_BYTES_MAX => return Err(Errno::NameTooLong.into()),
            _ => self
                .overlay
                .lookup(call.below, parent, name)?
                .ok_or(Errno::NoEntry)?,
        };
        Ok((number, self.known(call.below, number)?))
    }

    /// What `stat` tells of an inode. Blocks are of 4096 bytes.
    ///
    /// # Errors
    /// It is not there.
    pub fn stat(&self, below: &mut Below<'_>, inode: u64) -> Result<Inode, Failure> {
        self.known(below, inode)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// It is none.
    pub fn readlink(&self, below: &mut Below<'_>, inode: u64) -> Result<Vec<u8>, Failure> {
        match self.known(below, inode)?.mode & TYPE_MASK {
            TYPE_LINK => Ok(self.overlay.target(below, inode)?),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// Up to `count` entries of a directory behind a cookie, or from the first one on (0), `.` and `..` among them.
    ///
    /// # Errors
    /// It is no directory.
    pub fn list(
        &self,
        below: &mut Below<'_>,
        (parent, cookie): (u64, u64),
        count: usize,
    ) -> Result<Vec<Listing>, Failure> {
        let directory = self.directory(below, parent)?;
        let up = if directory.parent == 0 {
            parent
        } else {
            directory.parent
        };
        let mut found = Vec::new();
        for (of, inode, name) in [(1, parent, &b"."[..]), (2, up, b"..")] {
            if cookie < of && found.len() < count {
                found.push(Listing {
                    cookie: of,
                    inode,
                    kind: kind_of(TYPE_DIRECTORY),
                    name: name.to_vec(),
                });
            }
        }
        let after = cookie.saturating_sub(COOKIES_OF_DOTS);
        let places = (1 << PLACE_BITS) - 1;
        let after = after >> PLACE_BITS << OVERLAY_PLACE_BITS | after & places;
        let left = count - found.len();
        let listed = self.overlay.list(below, (parent, after), left)?;
        found.extend(listed.into_iter().map(|entry| {
            let hash = entry.cookie >> OVERLAY_PLACE_BITS << PLACE_BITS;
            Listing {
                cookie: (hash | entry.cookie & places) + COOKIES_OF_DOTS,
                inode: entry.inode,
                kind: entry.kind,
                name: entry.name,
            }
        }));
        Ok(found)
    }

    /// Reads a file. How many bytes there were.
    ///
    /// # Errors
    /// It is no file, or data are damaged ([`Errno::Io`]).
    pub fn read(
        &self,
        below: &mut Below<'_>,
        (inode, offset): (u64, u64),
        bytes: &mut [u8],
    ) -> Result<usize, Failure> {
        Ok(self.overlay.read(below, (inode, offset), bytes)?)
    }

    /// The next offset with data (`SEEK_DATA`), or without (`SEEK_HOLE`). Blocks that were reserved count as data.
    ///
    /// # Errors
    /// [`Errno::NoAddress`] if there is none.
    pub fn seek(
        &self,
        below: &mut Below<'_>,
        (number, offset): (u64, u64),
        wants_data: bool,
    ) -> Result<u64, Failure> {
        let inode = self.known(below, number)?;
        if inode.mode & TYPE_MASK != TYPE_FILE {
            return Err(Errno::Invalid.into());
        }
        if offset >= inode.size {
            return Err(Errno::NoAddress.into());
        }
        let blocks = offset / BLOCK..inode.size.div_ceil(BLOCK);
        let mut at = offset;
        for there in self.overlay.blocks(below, number, blocks)? {
            let there = there.start * BLOCK..there.end * BLOCK;
            match wants_data {
                true => return Ok(at.max(there.start)),
                false if at < there.start => return Ok(at),
                false => at = there.end,
            }
        }
        match wants_data {
            true => Err(Errno::NoAddress.into()),
            false => Ok(at.min(inode.size)),
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`Errno::NoData`] if there is none. A buffer that is too short is the caller's affair.
    pub fn attribute(&self, call: &mut Call<'_, '_>, number: u64, name: &[u8]) -> Result<Vec<u8>, Failure> {
        let inode = self.known(call.below, number)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Errno::Range.into());
        }
        let is_plain = matches!(inode.mode & TYPE_MASK, TYPE_FILE | TYPE_DIRECTORY);
        let is_root = call.caller.is_root() || !self.options.checks_permissions;
        match name.split(|byte| *byte == b'.').next() {
            Some(b"user") if !is_plain => return Err(Errno::NoData.into()),
            Some(b"user") => self.check(call, (number, &inode), READ)?,
            Some(b"trusted") if !is_root => return Err(Errno::NoData.into()),
            Some(b"trusted" | b"security") => {}
            Some(b"system") if name == acl::ACCESS || name == acl::DEFAULT => {
                if inode.mode & TYPE_MASK == TYPE_LINK {
                    return Err(Errno::NotSupported.into());
                }
            }
            _ => return Err(Errno::NotSupported.into()),
        }
        let value = self.overlay.attribute(call.below, number, name)?;
        Ok(value.ok_or(Errno::NoData)?)
    }

    /// The names of all extended attributes that the caller may know of.
    ///
    /// # Errors
    /// It is not there.
    pub fn attributes(&self, call: &mut Call<'_, '_>, number: u64) -> Result<Vec<Vec<u8>>, Failure> {
        self.known(call.below, number)?;
        let mut names = self.overlay.attributes(call.below, number)?;
        let is_root = call.caller.is_root();
        names.retain(|name| is_root || !name.starts_with(b"trusted."));
        Ok(names)
    }

    /// What `statfs` tells.
    pub fn statfs(&self, below: &Below<'_>) -> Statfs {
        let (blocks, free) = below.room();
        Statfs {
            blocks,
            free,
            available: self.ledger.budget().for_files(),
        }
    }
}
