//! The value of an inode (docs/format/fs.md, "Keys"), and the words that it is told in.

use crate::format::{Damage, put_u32, put_u64, u32_at, u64_at};

/// The bits of a mode that say what an inode is.
pub const TYPE_MASK: u32 = 0o170_000;
/// A regular file.
pub const TYPE_FILE: u32 = 0o100_000;
/// A directory.
pub const TYPE_DIRECTORY: u32 = 0o040_000;
/// A symbolic link.
pub const TYPE_LINK: u32 = 0o120_000;
pub(crate) const TYPE_CHARACTERS: u32 = 0o020_000;
pub(crate) const TYPE_BLOCKS: u32 = 0o060_000;
pub(crate) const TYPE_PIPE: u32 = 0o010_000;
pub(crate) const TYPE_SOCKET: u32 = 0o140_000;

/// A moment of the wall clock, as `stat` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second, below 10⁹.
    pub ns: u32,
}

impl From<core::time::Duration> for Time {
    /// So long after the beginning of 1970.
    fn from(since: core::time::Duration) -> Self {
        Self {
            seconds: since.as_secs() as i64,
            ns: since.subsec_nanos(),
        }
    }
}

impl Time {
    /// Bytes of it.
    pub const BYTES: usize = 12;

    /// Writes it at `at`.
    pub fn emit(self, bytes: &mut [u8], at: usize) {
        put_u64(bytes, at, self.seconds as u64);
        put_u32(bytes, at + 8, self.ns);
    }

    /// Reads it from `at`.
    pub fn parse(bytes: &[u8], at: usize) -> Self {
        Self {
            seconds: u64_at(bytes, at) as i64,
            ns: u32_at(bytes, at + 8),
        }
    }
}

/// A file, a directory, or anything else that has a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions, as in `stat`.
    pub mode: u32,
    /// Names that it has; of a directory 2 and one for each directory in it.
    pub links: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks that it has.
    pub blocks: u64,
    /// Counts its changes.
    pub changes: u64,
    /// As of `chattr`.
    pub flags: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// When it was made.
    pub btime: Time,
    /// The device of a special file.
    pub device: u32,
    /// The tier that it is pinned to, or 0.
    pub tier: u8,
    /// Where a directory is.
    pub parent: u64,
    /// Entries of a directory.
    pub entries: u64,
    /// The last log that changed it.
    pub log: u64,
}

impl Inode {
    /// Bytes of the value.
    pub const BYTES: usize = 128;

    /// True for a directory.
    pub const fn is_directory(&self) -> bool {
        self.mode & TYPE_MASK == TYPE_DIRECTORY
    }

    /// As the tree has it.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        for (at, word) in [
            (0, self.mode),
            (4, self.links),
            (8, self.uid),
            (12, self.gid),
            (96, self.device),
        ] {
            put_u32(&mut value, at, word);
        }
        for (at, word) in [
            (16, self.size),
            (24, self.blocks),
            (32, self.changes),
            (40, self.flags),
        ] {
            put_u64(&mut value, at, word);
        }
        for (at, time) in [
            (48, self.atime),
            (60, self.mtime),
            (72, self.ctime),
            (84, self.btime),
        ] {
            time.emit(&mut value, at);
        }
        value[100] = self.tier;
        for (at, word) in [(104, self.parent), (112, self.entries), (120, self.log)] {
            put_u64(&mut value, at, word);
        }
        value
    }

    /// Reads what [`emit`](Self::emit) wrote.
    pub fn parse(value: &[u8]) -> Result<Self, Damage> {
        let value: &[u8; Self::BYTES] = value.try_into().map_err(|_| Damage::Content)?;
        Ok(Self {
            mode: u32_at(value, 0),
            links: u32_at(value, 4),
            uid: u32_at(value, 8),
            gid: u32_at(value, 12),
            size: u64_at(value, 16),
            blocks: u64_at(value, 24),
            changes: u64_at(value, 32),
            flags: u64_at(value, 40),
            atime: Time::parse(value, 48),
            mtime: Time::parse(value, 60),
            ctime: Time::parse(value, 72),
            btime: Time::parse(value, 84),
            device: u32_at(value, 96),
            tier: value[100],
            parent: u64_at(value, 104),
            entries: u64_at(value, 112),
            log: u64_at(value, 120),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_read_as_it_was_written_and_each_byte_of_it_counts() {
        let bytes: [u8; Inode::BYTES] = core::array::from_fn(|at| match at {
            101..104 => 0,
            _ => at as u8 + 1,
        });
        let inode = Inode::parse(&bytes).expect("it has its length");
        assert_eq!(inode.emit(), bytes);
        assert_eq!((inode.uid, inode.mtime.ns), (0x0c0b_0a09, 0x4847_4645));
        assert_eq!(Inode::parse(&bytes[1..]), Err(Damage::Content));
    }
}
