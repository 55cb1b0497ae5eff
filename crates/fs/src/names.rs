//! Values of the tree that have names: the entries of a directory, and extended attributes, of one hash each (docs/format/fs.md, "Keys").
//!
//! A value has 1024 bytes at most, so names of one hash may find no room: that takes a hundred million names in a directory, or somebody
//! who looks for such names with the file system's mark in hand.

use crate::format::{Damage, put_u16, u16_at, u64_at};
use crate::inode::TYPE_MASK;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// What it leads to.
    pub inode: u64,
    /// Its type, as of `readdir`: bits 12 to 15 of the mode.
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

/// An extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its name with the name space.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

const DIRENT_HEAD_BYTES: usize = 10;
const ATTRIBUTE_HEAD_BYTES: usize = 4;

/// The type of an inode, as entries have it.
pub const fn kind_of(mode: u32) -> u8 {
    ((mode & TYPE_MASK) >> 12) as u8
}

impl<'a> Dirent<'a> {
    /// Bytes that one takes whose name has so many.
    pub(crate) const fn bytes(name_bytes: usize) -> usize {
        DIRENT_HEAD_BYTES + name_bytes
    }

    /// Reads all entries of a value.
    ///
    /// # Errors
    /// The value makes no sense.
    pub fn parse_all(mut value: &'a [u8]) -> Result<Vec<Self>, Damage> {
        let mut found = Vec::new();
        while !value.is_empty() {
            let (head, rest) = value.split_at_checked(DIRENT_HEAD_BYTES).ok_or(Damage::Content)?;
            let (name, rest) = rest
                .split_at_checked(usize::from(head[9]))
                .ok_or(Damage::Content)?;
            found.push(Self {
                inode: u64_at(head, 0),
                kind: head[8],
                name,
            });
            value = rest;
        }
        Ok(found)
    }

    /// Appends it to a value.
    pub fn emit(&self, value: &mut Vec<u8>) {
        value.extend(self.inode.to_le_bytes());
        value.extend([self.kind, self.name.len() as u8]);
        value.extend_from_slice(self.name);
    }
}

impl<'a> Attribute<'a> {
    /// Bytes that one takes whose name and value have so many.
    pub(crate) const fn bytes(name_bytes: usize, value_bytes: usize) -> usize {
        ATTRIBUTE_HEAD_BYTES + name_bytes + value_bytes
    }

    /// Reads all attributes of a value.
    ///
    /// # Errors
    /// The value makes no sense.
    pub fn parse_all(mut value: &'a [u8]) -> Result<Vec<Self>, Damage> {
        let mut found = Vec::new();
        while !value.is_empty() {
            let (head, rest) = value
                .split_at_checked(ATTRIBUTE_HEAD_BYTES)
                .ok_or(Damage::Content)?;
            let (name, rest) = rest
                .split_at_checked(usize::from(head[0]))
                .ok_or(Damage::Content)?;
            let (content, rest) = rest
                .split_at_checked(usize::from(u16_at(head, 2)))
                .ok_or(Damage::Content)?;
            if head[1] != 0 {
                return Err(Damage::Content);
            }
            found.push(Self { name, value: content });
            value = rest;
        }
        Ok(found)
    }

    /// Appends it to a value.
    pub fn emit(&self, value: &mut Vec<u8>) {
        let mut head = [self.name.len() as u8, 0, 0, 0];
        put_u16(&mut head, 2, self.value.len() as u16);
        value.extend(head);
        value.extend_from_slice(self.name);
        value.extend_from_slice(self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written_and_no_bytes_panic() {
        let entries = [&b"a"[..], &[b'x'; 255]].map(|name| Dirent {
            inode: u64::MAX - 3,
            kind: kind_of(0o100_644),
            name,
        });
        let attributes = [(&b"user.a"[..], &b""[..]), (b"user.b", &[7; 700])]
            .map(|(name, value)| Attribute { name, value });
        let (mut value, mut other) = (Vec::new(), Vec::new());
        entries.iter().for_each(|entry| entry.emit(&mut value));
        attributes.iter().for_each(|it| it.emit(&mut other));
        assert_eq!(Dirent::parse_all(&value).as_deref(), Ok(&entries[..]));
        assert_eq!(Attribute::parse_all(&other).as_deref(), Ok(&attributes[..]));
        let (mut rng, mut read) = (base::Rng::new(1), 0);
        for _ in 0..20_000 {
            let mut bytes = vec![0; rng.below(60) as usize];
            bytes.iter_mut().for_each(|byte| *byte = rng.below(12) as u8);
            let again = Dirent::parse_all(&bytes).map(|found| {
                let mut again = Vec::new();
                found.iter().for_each(|entry| entry.emit(&mut again));
                again
            });
            if let Ok(again) = again {
                assert_eq!(again, bytes);
                read += 1;
            }
            let _ = Attribute::parse_all(&bytes);
        }
        assert!(read > 100, "{read} read");
    }
}
