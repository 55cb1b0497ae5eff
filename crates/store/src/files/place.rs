//! The place of a file: the mount that it was on. A file system that is not mounted looks like one that has lost its files.

use crate::format::u64_at;

/// Bytes of a place in a description.
pub(super) const PLACE_BYTES: usize = 32;
/// No file system tells this one.
pub const NO_UUID: [u8; 16] = [0; 16];

/// The mount of a file, in a way that survives a new mount and a new boot. Numbers of devices do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory on which it was mounted is so many bytes of the file's path.
    pub mount_bytes: u16,
    /// Inode of that directory: the root of what was mounted.
    pub inode: u64,
    /// When that was made, in ns; 0 if the file system does not tell.
    pub born_ns: u64,
    /// UUID of the file system; [`NO_UUID`] if it does not tell.
    pub uuid: [u8; 16],
}

impl Place {
    /// Its part of a description, without the length of the path.
    pub(super) fn emit(&self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        bytes[..8].copy_from_slice(&self.inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.born_ns.to_le_bytes());
        bytes[16..].copy_from_slice(&self.uuid);
        bytes
    }

    /// The place that such a part is.
    pub(super) fn parse(mount_bytes: u16, bytes: &[u8; PLACE_BYTES]) -> Self {
        Self {
            mount_bytes,
            inode: u64_at(bytes, 0),
            born_ns: u64_at(bytes, 8),
            uuid: core::array::from_fn(|at| bytes[16 + at]),
        }
    }

    /// The directory on which the file's system was mounted, if `path` is the file's.
    pub fn mount<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        path.get(..usize::from(self.mount_bytes))
    }

    /// True if `present`, which was found at the same directory, is the same mount.
    pub fn is_same(&self, present: &Self) -> bool {
        let is_told = self.uuid != NO_UUID && present.uuid != NO_UUID;
        (self.inode, self.born_ns) == (present.inode, present.born_ns)
            && (!is_told || self.uuid == present.uuid)
    }

    /// The place of a file after it, or a directory above it, went from `from` to `to`. A mount may be below what was renamed.
    pub(super) fn renamed(self, from: &[u8], to: &[u8]) -> Option<Self> {
        let before = usize::from(self.mount_bytes);
        let mount_bytes = match before >= from.len() {
            true => u16::try_from(before - from.len() + to.len()).ok()?,
            false => self.mount_bytes,
        };
        Some(Self { mount_bytes, ..self })
    }
}
