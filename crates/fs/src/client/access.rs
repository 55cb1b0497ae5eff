//! What a caller may do with an inode: mode, access control list and flags, as `generic_permission` of Linux decides.

use crate::client::acl::{Acl, Tag};
use crate::inode::{Inode, TYPE_DIRECTORY, TYPE_MASK};

/// To read.
pub const READ: u32 = 4;
/// To write.
pub const WRITE: u32 = 2;
/// To search a directory, or to run a file.
pub const EXECUTE: u32 = 1;

/// `FS_IMMUTABLE_FL` of Linux.
pub const IMMUTABLE: u64 = 0x10;
/// `FS_APPEND_FL` of Linux.
pub const APPEND_ONLY: u64 = 0x20;
/// `FS_NOATIME_FL` of Linux.
pub const NO_ATIME: u64 = 0x80;
/// Flags that can be set: beside these `FS_SYNC_FL`, `FS_NODUMP_FL` and `FS_DIRSYNC_FL`, which ask for nothing that is not done anyway.
pub const FLAGS: u64 = IMMUTABLE | APPEND_ONLY | NO_ATIME | 0x8 | 0x40 | 0x1_0000;

pub(crate) const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;
pub(crate) const STICKY: u32 = 0o1000;
const GROUP_RUNS: u32 = 0o10;

/// Who makes a call. User 0 has all capabilities, and nobody else any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller<'c> {
    /// The process.
    pub pid: u32,
    /// Its user, as `fsuid` of Linux.
    pub uid: u32,
    /// Its group, as `fsgid` of Linux.
    pub gid: u32,
    /// Its other groups. None: they are not known, and count as none. FUSE tells none.
    pub groups: Option<&'c [u32]>,
    /// Bits that new inodes do not get, where no default list says more.
    pub umask: u32,
}

impl Caller<'_> {
    /// Whether it may do everything.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether it is in a group, as far as is known.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.is_some_and(|groups| groups.contains(&gid))
    }

    /// `inode_owner_or_capable` of Linux.
    pub fn owns(&self, inode: &Inode) -> bool {
        self.is_root() || self.uid == inode.uid
    }

    /// Whether an access control list has something to say of its access to an inode. As on Linux, one whose mask has nothing has not.
    pub fn needs_list(&self, inode: &Inode) -> bool {
        !self.is_root() && self.uid != inode.uid && inode.mode & 0o070 != 0
    }

    /// Whether it may do with an inode what `mask` says: [`READ`], [`WRITE`] and [`EXECUTE`]. `acl` is the inode's own, if it has one. Flags
    /// are not looked at.
    pub fn may(&self, inode: &Inode, acl: Option<&Acl>, mask: u32) -> bool {
        let is_directory = inode.mode & TYPE_MASK == TYPE_DIRECTORY;
        let runs = is_directory || inode.mode & 0o111 != 0 || mask & EXECUTE == 0;
        if self.is_root() {
            return runs;
        }
        let has = |bits: u32| bits & mask == mask;
        if self.uid == inode.uid {
            return has(inode.mode >> 6);
        }
        if let Some(acl) = acl.filter(|_| self.needs_list(inode)) {
            return self.may_by(acl, inode, mask);
        }
        match self.is_in(inode.gid) {
            true => has(inode.mode >> 3),
            false => has(inode.mode),
        }
    }

    /// `posix_acl_permission` of Linux, of a caller that is not the owner.
    fn may_by(&self, acl: &Acl, inode: &Inode, mask: u32) -> bool {
        let limit = acl.mask().unwrap_or(7);
        let has = |bits: u32| bits & mask == mask;
        let mut is_found = false;
        for entry in acl.entries() {
            let is_mine = match entry.tag {
                Tag::User if entry.id == self.uid => return has(entry.bits & limit),
                Tag::GroupOwner => self.is_in(inode.gid),
                Tag::Group => self.is_in(entry.id),
                Tag::Other => return !is_found && has(entry.bits),
                _ => false,
            };
            is_found |= is_mine;
            if is_mine && has(entry.bits) {
                return has(entry.bits & limit);
            }
        }
        false
    }

    /// The mode of a file after its content or owner changed: `setattr_should_drop_suidgid` of Linux.
    pub(crate) fn without_set_id(&self, inode: &Inode) -> u32 {
        let mode = inode.mode & !TYPE_MASK;
        let runs = mode & GROUP_RUNS != 0;
        let keeps_gid = !runs && (self.is_root() || self.is_in(inode.gid));
        mode & !(SET_UID | if keeps_gid { 0 } else { SET_GID })
    }

    /// The mode of what is made in a directory whose group it gets: `mode_strip_sgid` of Linux. If the groups of the caller are not known,
    /// the bit goes, too.
    pub(crate) fn without_foreign_set_gid(&self, mode: u32, gid: u32) -> u32 {
        let both = SET_GID | GROUP_RUNS;
        match mode & both == both && !self.is_root() && !self.is_in(gid) {
            true => mode & !SET_GID,
            false => mode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::acl::tests::acl;
    use crate::inode::TYPE_FILE;

    fn inode(mode: u32) -> Inode {
        Inode {
            mode: TYPE_FILE | mode,
            uid: 1,
            gid: 2,
            ..Inode::default()
        }
    }

    fn caller(uid: u32, gid: u32) -> Caller<'static> {
        Caller {
            uid,
            gid,
            ..Caller::default()
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        for mode in 0..0o1000 {
            for mask in 1..8 {
                let of = |shift: u32| (mode >> shift) & mask == mask;
                let inode = inode(mode);
                assert_eq!(caller(1, 2).may(&inode, None, mask), of(6));
                assert_eq!(caller(9, 2).may(&inode, None, mask), of(3));
                assert_eq!(caller(9, 9).may(&inode, None, mask), of(0));
                let runs = mask & EXECUTE == 0 || mode & 0o111 != 0;
                assert_eq!(caller(0, 0).may(&inode, None, mask), runs);
            }
        }
        let groups = [5, 2];
        let other = Caller {
            groups: Some(&groups),
            ..caller(9, 9)
        };
        assert!(other.may(&inode(0o040), None, READ));
    }

    #[test]
    fn a_list_decides_before_the_group_and_its_mask_limits() {
        let acl = acl("u::7 u:9:6 g::4 g:8:3 m::5 o::2");
        let inode = inode(0o752);
        assert!(caller(9, 9).may(&inode, Some(&acl), READ));
        assert!(
            !caller(9, 9).may(&inode, Some(&acl), WRITE),
            "the mask has no write"
        );
        assert!(caller(7, 8).may(&inode, Some(&acl), EXECUTE));
        assert!(!caller(7, 8).may(&inode, Some(&acl), READ));
        assert!(caller(7, 2).may(&inode, Some(&acl), READ));
        assert!(
            !caller(7, 2).may(&inode, Some(&acl), WRITE),
            "other does not count"
        );
        assert!(caller(7, 7).may(&inode, Some(&acl), WRITE));
        assert!(
            caller(1, 7).may(&inode, Some(&acl), 7),
            "the owner's bits are the mode's"
        );
    }
}
