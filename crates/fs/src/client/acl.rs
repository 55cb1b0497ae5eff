//! Access control lists, as `system.posix_acl_access` and `system.posix_acl_default` have them: `posix_acl_xattr.h` and `posix_acl.c` of Linux.

use crate::format::{put_u16, put_u32, u16_at, u32_at};
use crate::inode::TYPE_MASK;

/// The attribute with the list of an inode.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list of what is made in a directory.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// What an entry has that is of nobody in particular.
const NOBODY: u32 = u32::MAX;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Tag {
    /// The owner.
    Owner = 1,
    /// A user.
    User = 2,
    /// The inode's group.
    GroupOwner = 4,
    /// A group.
    Group = 8,
    /// Limits users and groups.
    Mask = 16,
    /// All others.
    Other = 32,
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: Tag,
    /// Read, write, execute.
    pub bits: u32,
    /// The user or group.
    pub id: u32,
}

/// A list that is whole: owner, users, the group, groups, a mask if there are users or groups, others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Reads the value of an attribute. Nothing if Linux would refuse it.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(HEAD_BYTES)?;
        let (entries, rest) = rest.as_chunks::<ENTRY_BYTES>();
        if u32_at(head, 0) != VERSION || !rest.is_empty() {
            return None;
        }
        let entries: Option<Vec<_>> = entries.iter().map(entry_of).collect();
        let acl = Self(entries?);
        acl.is_whole().then_some(acl)
    }

    /// As the attribute has it.
    pub fn emit(&self) -> Vec<u8> {
        let mut value = vec![0; HEAD_BYTES + ENTRY_BYTES * self.0.len()];
        put_u32(&mut value, 0, VERSION);
        for (at, entry) in (HEAD_BYTES..).step_by(ENTRY_BYTES).zip(&self.0) {
            put_u16(&mut value, at, entry.tag as u16);
            put_u16(&mut value, at + 2, entry.bits as u16);
            put_u32(&mut value, at + 4, entry.id);
        }
        value
    }

    /// Its entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// `posix_acl_valid` of Linux.
    fn is_whole(&self) -> bool {
        let count = |tag: Tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let once = [Tag::Owner, Tag::GroupOwner, Tag::Other].map(count) == [1; 3];
        let names = count(Tag::User) + count(Tag::Group);
        let masks = count(Tag::Mask);
        let is_sorted = self.0.is_sorted_by_key(|entry| entry.tag);
        once && is_sorted && masks <= 1 && (names == 0 || masks == 1)
    }

    /// What limits users and groups.
    pub fn mask(&self) -> Option<u32> {
        let mask = self.0.iter().find(|entry| entry.tag == Tag::Mask);
        mask.map(|mask| mask.bits)
    }

    /// The permissions of a mode that say the same of owner, group and others, and whether they say all.
    pub fn mode(&self) -> (u32, bool) {
        let mut mode = 0;
        for entry in &self.0 {
            match entry.tag {
                Tag::Owner => mode |= entry.bits << 6,
                Tag::GroupOwner => mode |= self.mask().unwrap_or(entry.bits) << 3,
                Tag::Other => mode |= entry.bits,
                Tag::User | Tag::Group | Tag::Mask => {}
            }
        }
        (mode, self.0.len() == 3)
    }

    /// The list after `chmod`: `__posix_acl_chmod_masq` of Linux.
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Self {
        self.map(|tag, bits| match tag {
            Tag::Owner => mode >> 6 & 7,
            Tag::Other => mode & 7,
            Tag::Mask => mode >> 3 & 7,
            Tag::GroupOwner if self.mask().is_none() => mode >> 3 & 7,
            _ => bits,
        })
    }

    /// What an inode gets that is made with a mode in a directory with this default list: its mode, and its own list if the mode does not
    /// say all. `posix_acl_create_masq` of Linux.
    pub fn inherited(&self, mode: u32) -> (u32, Option<Self>) {
        let own = self.map(|tag, bits| match tag {
            Tag::Owner => bits & mode >> 6,
            Tag::Other => bits & mode,
            Tag::Mask => bits & mode >> 3,
            Tag::GroupOwner if self.mask().is_none() => bits & mode >> 3,
            _ => bits,
        });
        let (permissions, is_all) = own.mode();
        let mode = mode & (TYPE_MASK | 0o7000) | permissions;
        (mode, (!is_all).then_some(own))
    }

    fn map(&self, bits: impl Fn(Tag, u32) -> u32) -> Self {
        let changed = self.0.iter().map(|entry| AclEntry {
            bits: bits(entry.tag, entry.bits),
            ..*entry
        });
        Self(changed.collect())
    }
}

fn entry_of(bytes: &[u8; ENTRY_BYTES]) -> Option<AclEntry> {
    let all = [
        Tag::Owner,
        Tag::User,
        Tag::GroupOwner,
        Tag::Group,
        Tag::Mask,
        Tag::Other,
    ];
    let tag = all.into_iter().find(|tag| *tag as u16 == u16_at(bytes, 0))?;
    let (bits, id) = (u32::from(u16_at(bytes, 2)), u32_at(bytes, 4));
    let is_named = matches!(tag, Tag::User | Tag::Group);
    let is_sound = bits <= 7 && (!is_named || id != NOBODY);
    let id = if is_named { id } else { NOBODY };
    is_sound.then_some(AclEntry { tag, bits, id })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A list from words such as `u:5:7`.
    pub(crate) fn acl(text: &str) -> Acl {
        let entry = |word: &str| {
            let parts: Vec<_> = word.split(':').collect();
            let id = parts[1].parse().unwrap_or(NOBODY);
            let tag = match (parts[0], id) {
                ("u", NOBODY) => Tag::Owner,
                ("u", _) => Tag::User,
                ("g", NOBODY) => Tag::GroupOwner,
                ("g", _) => Tag::Group,
                ("m", _) => Tag::Mask,
                _ => Tag::Other,
            };
            let bits = parts[2].parse().expect("three bits");
            AclEntry { tag, bits, id }
        };
        Acl(text.split(' ').map(entry).collect())
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_only_whole_ones_are() {
        let whole = [
            "u::7 g::5 o::1",
            "u::7 u:3:6 u:4:6 g::5 g:9:2 m::7 o::1",
            "u::7 g::5 m::1 o::1",
        ];
        for text in whole {
            let acl = acl(text);
            assert_eq!(Acl::parse(&acl.emit()), Some(acl), "{text}");
        }
        let broken = [
            "u::7 g::5",
            "u::7 u:3:6 g::5 o::1",
            "g::5 u::7 o::1",
            "u::7 u::7 g::5 o::1",
            "u::7 g::5 m::1 m::1 o::1",
        ];
        for text in broken {
            assert_eq!(Acl::parse(&acl(text).emit()), None, "{text}");
        }
        let mut value = acl("u::7 g::5 o::1").emit();
        assert_eq!(Acl::parse(&value[..27]), None);
        value[6] = 8;
        assert_eq!(Acl::parse(&value), None, "there are three bits");
        assert_eq!(Acl::parse(&[]), None);
    }

    #[test]
    fn modes_and_lists_say_the_same() {
        assert_eq!(acl("u::7 g::5 o::1").mode(), (0o751, true));
        let long = acl("u::7 u:3:6 g::5 m::2 o::1");
        assert_eq!(long.mode(), (0o721, false));
        assert_eq!(long.with_mode(0o640), acl("u::6 u:3:6 g::5 m::4 o::0"));
        assert_eq!(acl("u::7 g::5 o::1").with_mode(0o640), acl("u::6 g::4 o::0"));
        let (mode, own) = long.inherited(0o102_666);
        assert_eq!((mode, own), (0o102_620, Some(acl("u::6 u:3:6 g::5 m::2 o::0"))));
        let (mode, own) = acl("u::7 g::5 o::1").inherited(0o100_666);
        assert_eq!((mode, own), (0o100_640, None));
    }
}
