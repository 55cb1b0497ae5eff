//! The third witness: the client, with a log that is digested now and then.

use super::{Body, Call, Errno, FileType, Files, Open, Path, ROOT_INODE, RenameFlags, pattern};
use crate::process::assert_attributes;
use crate::served::Served;
use fs::client::{Caller, Client, Failure, New, Options, Rename, Stamp, Wanted, Where, XattrMode};
use fs::inode::{TYPE_LINK, TYPE_MASK};
use std::collections::BTreeMap;

pub struct Witness {
    pub served: Served,
    caller: Caller<'static>,
    /// Inodes that are open. The first is the root.
    open: Vec<u64>,
}

impl Witness {
    pub fn new(seed: u64, mode: u32, (uid, gid): (u32, u32)) -> Self {
        let mut served = Served::new(seed, Options::default());
        let caller = Caller {
            uid,
            gid,
            groups: Some(&[]),
            ..Caller::default()
        };
        let wanted = Wanted {
            mode: Some(mode),
            uid: Some(uid),
            gid: Some(gid),
            ..Wanted::default()
        };
        let root = crate::served::ROOT;
        served.now.seconds = 0;
        served
            .call(root, |client, call| client.set(call, ROOT_INODE, &wanted))
            .expect("root may");
        served.client.hold(ROOT_INODE, 1);
        Self {
            served,
            caller,
            open: vec![ROOT_INODE],
        }
    }

    fn with<T>(
        &mut self,
        f: impl FnMut(&mut Client, &mut fs::client::Call<'_, '_>) -> Result<T, Failure>,
    ) -> Result<T, Errno> {
        self.served.call(self.caller, f)
    }

    /// The directory of a path.
    fn parent(&mut self, path: &Path) -> Result<u64, Errno> {
        let mut inode = self.open[path.handle];
        for name in &path.through {
            let (next, found) = self.with(|client, call| client.lookup(call, (inode, name.as_bytes())))?;
            // Symbolic links of these tests lead nowhere.
            if found.mode & TYPE_MASK == TYPE_LINK {
                return Err(Errno::NoEntry);
            }
            inode = next;
        }
        Ok(inode)
    }

    fn inode(&mut self, path: &Path) -> Result<u64, Errno> {
        let parent = self.parent(path)?;
        self.with(|client, call| client.lookup(call, (parent, path.name.as_bytes())))
            .map(|(inode, _)| inode)
    }

    fn set(&mut self, path: &Path, wanted: &Wanted) -> Result<(), Errno> {
        let inode = self.inode(path)?;
        self.with(|client, call| client.set(call, inode, wanted))
            .map(drop)
    }

    fn make(&mut self, path: &Path, mode: u32, target: &str) -> Result<(), Errno> {
        let new = New {
            mode,
            device: 0,
            target: target.as_bytes(),
        };
        // Linux takes the target from its caller before it looks for the directory.
        let parent = self.parent(path).map_err(|errno| match target.len() {
            0 if mode & TYPE_MASK == TYPE_LINK => Errno::NoEntry,
            4096.. => Errno::NameTooLong,
            _ => errno,
        })?;
        let name = path.name.as_bytes();
        let is_plain = FileType::from_raw_mode(mode) == FileType::RegularFile;
        self.with(|client, call| match is_plain {
            true => client.create_or_find(call, (parent, name), (mode, true)),
            false => client.create(call, (parent, name), new),
        })
        .map(drop)
    }

    pub fn call(&mut self, call: &Call) -> Result<(), i32> {
        self.try_call(call).map_err(Errno::code)
    }

    fn try_call(&mut self, call: &Call) -> Result<(), Errno> {
        match call {
            Call::Make(path, mode) => self.make(path, *mode, ""),
            Call::Symlink(path, target) => self.make(path, 0o120_777, target),
            Call::Link(from, to) => {
                let inode = self.inode(from)?;
                let entry = (self.parent(to)?, to.name.as_bytes());
                self.with(|client, call| client.link(call, inode, entry))
                    .map(drop)
            }
            Call::Unlink(path) | Call::Rmdir(path) => {
                let entry = (self.parent(path)?, path.name.as_bytes());
                let is_directory = matches!(call, Call::Rmdir(_));
                self.with(|client, call| client.unlink(call, entry, is_directory))
                    .map(drop)
            }
            Call::Rename(from, to, flags) => {
                let old = (self.parent(from)?, from.name.as_bytes());
                let new = (self.parent(to)?, to.name.as_bytes());
                let how = Rename {
                    keeps_target: flags.contains(RenameFlags::NOREPLACE),
                    exchanges: flags.contains(RenameFlags::EXCHANGE),
                };
                self.with(|client, call| client.rename(call, old, new, how))
                    .map(drop)
            }
            Call::Chmod(path, mode) => self.set(
                path,
                &Wanted {
                    mode: Some(*mode),
                    ..Wanted::default()
                },
            ),
            Call::Chown(path, uid, gid) => self.set(
                path,
                &Wanted {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..Wanted::default()
                },
            ),
            Call::Times(path, atime, mtime) => self.set(
                path,
                &Wanted {
                    atime: atime.map(Stamp::At),
                    mtime: mtime.map(Stamp::At),
                    ..Wanted::default()
                },
            ),
            _ => self.try_content(call),
        }
    }

    fn try_content(&mut self, call: &Call) -> Result<(), Errno> {
        match call {
            Call::Truncate(path, size) => {
                let inode = self.inode(path)?;
                if self.served.stat(inode).expect("it was found").mode & TYPE_MASK == TYPE_LINK {
                    return Err(Errno::NoEntry);
                }
                self.set(
                    path,
                    &Wanted {
                        size: Some(*size),
                        ..Wanted::default()
                    },
                )
            }
            Call::Attribute(path, name, value) => {
                let inode = self.inode(path).map_err(|errno| match value {
                    _ if name.len() > 255 => Errno::Range,
                    Some(65_537..) => Errno::TooBig,
                    _ => errno,
                })?;
                let attribute = (inode, name.as_bytes());
                let mode = (XattrMode::Any, false);
                self.with(|client, call| match value {
                    Some(bytes) => client.set_attribute(call, attribute, &vec![b'v'; *bytes], mode),
                    None => client.remove_attribute(call, attribute),
                })
                .map(drop)
            }
            Call::Open(path) => {
                let inode = self.inode(path)?;
                let kind = self.served.stat(inode).expect("it was found").mode & TYPE_MASK;
                if matches!(kind, 0o100_000 | 0o040_000) {
                    self.served.client.hold(inode, 1);
                    self.open.push(inode);
                }
                Ok(())
            }
            Call::Close(handle) => {
                let inode = self.open.remove(*handle);
                self.served.forget(inode);
                Ok(())
            }
            Call::Resize(handle, size) => {
                let wanted = Wanted {
                    size: Some(*size),
                    is_open: true,
                    ..Wanted::default()
                };
                let inode = self.open[*handle];
                self.with(|client, call| client.set(call, inode, &wanted))
                    .map(drop)
            }
            Call::Write(handle, offset, bytes) => {
                let (inode, data) = (self.open[*handle], pattern(*offset, *bytes));
                let written = self.served.write(self.caller, inode, Where::At(*offset), &data)?;
                assert_eq!(written, *bytes);
                Ok(())
            }
            Call::Allocate(handle, offset, bytes, what, keeps_size) => {
                let range = (self.open[*handle], (*offset, *bytes));
                let how = (*what, *keeps_size);
                self.with(|client, call| client.allocate(call, range, how, false))
                    .map(drop)
            }
            _ => unreachable!("others were made before"),
        }
    }

    /// Every path of the model beside what the client has.
    pub fn compare(&mut self, model: &Files, open: &[Open]) {
        let mut numbers = BTreeMap::new();
        let mut ahead = vec![(ROOT_INODE, ROOT_INODE)];
        ahead.extend(open.iter().map(|open| open.inode).zip(self.open.iter().copied()));
        while let Some((number, own)) = ahead.pop() {
            if let Some(known) = numbers.insert(number, own) {
                assert_eq!(known, own, "inode {number} of the model is one of the client's");
                continue;
            }
            let expected = model.inode(number).expect("it is named or open");
            let found = self.served.stat(own).expect("it is there");
            assert_attributes(&found, expected, &format!("inode {number} of the client"));
            let mut names = self
                .with(|client, call| client.attributes(call, own))
                .expect("it is there");
            names.sort();
            assert_eq!(names, expected.attributes.keys().cloned().collect::<Vec<_>>());
            for (name, value) in &expected.attributes {
                let found = self.with(|client, call| client.attribute(call, own, name));
                assert_eq!(found.as_ref(), Ok(value));
            }
            match &expected.body {
                Body::Directory { entries, .. } => {
                    let listed = self.list(own);
                    assert!(listed.keys().eq(entries.keys()), "entries of inode {number}");
                    ahead.extend(entries.iter().map(|(name, inode)| (*inode, listed[name])));
                }
                Body::File(content) => {
                    let mut bytes = vec![0; expected.size as usize];
                    content.read(0, &mut bytes);
                    assert!(self.served.content(own) == bytes, "content of inode {number}");
                    assert_eq!(found.blocks, content.blocks(), "blocks of inode {number}");
                }
                Body::Link(target) => {
                    let found = self.served.read(|client, below| client.readlink(below, own));
                    assert_eq!(found.as_ref(), Ok(target));
                }
                Body::Special => {}
            }
        }
        let distinct: std::collections::BTreeSet<_> = numbers.values().collect();
        assert_eq!(distinct.len(), numbers.len(), "no two files of the model are one");
    }

    fn list(&mut self, inode: u64) -> BTreeMap<Vec<u8>, u64> {
        let (mut found, mut cookie) = (BTreeMap::new(), 0);
        loop {
            let count = self.served.rng.between(1, 5) as usize;
            let listed = self
                .served
                .read(|client, below| client.list(below, (inode, cookie), count))
                .expect("it is a directory");
            let is_last = listed.len() < count;
            for entry in listed {
                assert!(entry.cookie > cookie && i64::try_from(entry.cookie).is_ok());
                cookie = entry.cookie;
                assert_eq!(found.insert(entry.name, entry.inode), None, "an entry comes once");
            }
            if is_last {
                break;
            }
        }
        assert_eq!(found.remove(&b"."[..]), Some(inode));
        assert!(found.remove(&b".."[..]).is_some());
        found
    }
}
