//! Several users on the client and on the file system of this machine: the same calls are refused, and modes, groups and access control
//! lists are the same after them. It takes root to be several users.

use crate::served::{ROOT, Served};
use base::Rng;
use fs::client::access::{READ, WRITE};
use fs::client::{Call, Caller, Client, Failure, New, Options, Rename, Stamp, Wanted, Where, XattrMode};
use fs::errno::Errno;
use fs::format::ROOT_INODE;
use fs::grants::Rights;
use fs::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_MASK, Time};
use rustix::fs as host;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags,
};
use rustix::process::{Gid, Uid};
use std::collections::BTreeMap;

/// The users, with their group and other groups.
const USERS: [(u32, u32, &[u32]); 4] = [
    (0, 0, &[]),
    (1001, 2001, &[2003]),
    (1002, 2002, &[2003]),
    (1003, 2001, &[]),
];
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

#[derive(Clone, Debug)]
enum What {
    Make(String, u32),
    Unlink(String, bool),
    Link(String, String),
    Rename(String, String, bool),
    Chmod(String, u32),
    Chown(String, Option<u32>, Option<u32>),
    Times(String, [Option<Stamp>; 2]),
    Open(String, u32, bool),
    Append(String),
    Search(String),
    SetAttribute(String, String, Vec<u8>, XattrMode),
    RemoveAttribute(String, String),
    Nameless(String, u32),
}

fn caller(user: usize, umask: u32) -> Caller<'static> {
    let (uid, gid, groups) = USERS[user];
    Caller {
        pid: 1,
        uid,
        gid,
        groups: Some(groups),
        umask,
    }
}

/// Does something as a user.
fn as_user<T>(user: usize, umask: u32, f: impl FnOnce() -> T) -> T {
    let (uid, gid, groups) = USERS[user];
    let set = |uid: u32, gid: u32, groups: &[u32]| {
        let groups: Vec<_> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_res_uid(None, Some(Uid::from_raw(0)), None).expect("it was root");
        rustix::thread::set_thread_groups(&groups).expect("root may");
        rustix::thread::set_thread_res_gid(None, Some(Gid::from_raw(gid)), None).expect("root may");
        rustix::thread::set_thread_res_uid(None, Some(Uid::from_raw(uid)), None).expect("root may");
    };
    let before = rustix::process::umask(Mode::from_raw_mode(umask));
    set(uid, gid, groups);
    let result = f();
    set(0, 0, &[]);
    rustix::process::umask(before);
    result
}

fn on_host(what: &What) -> Result<(), rustix::io::Errno> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    match what {
        What::Make(path, mode) => {
            let bits = Mode::from_raw_mode(mode & 0o7777);
            match FileType::from_raw_mode(*mode) {
                FileType::Directory => host::mkdirat(CWD, path, bits),
                FileType::RegularFile => {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                    host::openat(CWD, path, flags, bits).map(drop)
                }
                kind => host::mknodat(CWD, path, kind, bits, 0),
            }
        }
        What::Unlink(path, is_directory) => {
            let flags = if *is_directory {
                AtFlags::REMOVEDIR
            } else {
                AtFlags::empty()
            };
            host::unlinkat(CWD, path, flags)
        }
        What::Link(from, to) => host::linkat(CWD, from, CWD, to, AtFlags::empty()),
        What::Rename(from, to, exchanges) => {
            let flags = if *exchanges {
                RenameFlags::EXCHANGE
            } else {
                RenameFlags::empty()
            };
            host::renameat_with(CWD, from, CWD, to, flags)
        }
        What::Chmod(path, mode) => host::chmodat(CWD, path, Mode::from_raw_mode(*mode), AtFlags::empty()),
        What::Chown(path, uid, gid) => host::chownat(
            CWD,
            path,
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            nofollow,
        ),
        What::Times(path, times) => {
            let spec = |stamp: &Option<Stamp>| match stamp {
                None => (0, UTIME_OMIT),
                Some(Stamp::Now) => (0, UTIME_NOW),
                Some(Stamp::At(time)) => (time.seconds, i64::from(time.ns)),
            };
            let [last_access, last_modification] = [&times[0], &times[1]].map(|stamp| {
                let (tv_sec, tv_nsec) = spec(stamp);
                Timespec { tv_sec, tv_nsec }
            });
            let times = Timestamps {
                last_access,
                last_modification,
            };
            host::utimensat(CWD, path, &times, nofollow)
        }
        What::Open(path, mask, truncates) => host_open(path, *mask, *truncates).map(drop),
        What::Append(path) => {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK;
            let file = host::openat(CWD, path, flags, Mode::empty())?;
            rustix::io::write(&file, b"more").map(drop)
        }
        What::Search(path) => host::statat(CWD, path, nofollow).map(drop),
        What::SetAttribute(path, name, value, mode) => {
            let flags = match mode {
                XattrMode::Any => XattrFlags::empty(),
                XattrMode::Create => XattrFlags::CREATE,
                XattrMode::Replace => XattrFlags::REPLACE,
            };
            host::lsetxattr(path.as_str(), name.as_str(), value, flags)
        }
        What::RemoveAttribute(path, name) => host::lremovexattr(path.as_str(), name.as_str()),
        What::Nameless(path, mode) => {
            let flags = OFlags::TMPFILE | OFlags::WRONLY;
            host::openat(CWD, path, flags, Mode::from_raw_mode(mode & 0o7777)).map(drop)
        }
    }
}

fn host_open(path: &str, mask: u32, truncates: bool) -> Result<std::os::fd::OwnedFd, rustix::io::Errno> {
    let access = match mask {
        READ => OFlags::RDONLY,
        WRITE => OFlags::WRONLY,
        _ => OFlags::RDWR,
    };
    let truncates = if truncates { OFlags::TRUNC } else { OFlags::empty() };
    host::openat(CWD, path, access | truncates | OFlags::NONBLOCK, Mode::empty())
}

struct Rig {
    served: Served,
    /// The client's user and umask of this call.
    caller: Caller<'static>,
}

impl Rig {
    fn with<T>(
        &mut self,
        f: impl FnMut(&mut Client, &mut Call<'_, '_>) -> Result<T, Failure>,
    ) -> Result<T, Errno> {
        self.served.call(self.caller, f)
    }

    fn entry<'p>(&mut self, path: &'p str) -> Result<(u64, &'p [u8]), Errno> {
        let (through, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut inode = ROOT_INODE;
        for step in through.split('/').filter(|step| !step.is_empty()) {
            inode = self
                .with(|client, call| client.lookup(call, (inode, step.as_bytes())))?
                .0;
        }
        self.with(|client, call| client.may_search(call, inode))?;
        Ok((inode, name.as_bytes()))
    }

    fn inode(&mut self, path: &str) -> Result<u64, Errno> {
        let entry = self.entry(path)?;
        self.with(|client, call| client.lookup(call, entry))
            .map(|(inode, _)| inode)
    }

    fn set(&mut self, path: &str, wanted: &Wanted) -> Result<(), Errno> {
        let inode = self.inode(path)?;
        self.with(|client, call| client.set(call, inode, wanted))
            .map(drop)
    }

    fn on_client(&mut self, what: &What) -> Result<(), Errno> {
        match what {
            What::Make(path, mode) => {
                let entry = self.entry(path)?;
                let mode = *mode;
                let new = New {
                    mode,
                    ..New::default()
                };
                self.with(|client, call| match mode & TYPE_MASK {
                    TYPE_FILE => client.create_or_find(call, entry, (mode, true)),
                    _ => client.create(call, entry, new),
                })
                .map(drop)
            }
            What::Unlink(path, is_directory) => {
                let entry = self.entry(path)?;
                self.with(|client, call| client.unlink(call, entry, *is_directory))
                    .map(drop)
            }
            What::Link(from, to) => {
                let inode = self.inode(from)?;
                let entry = self.entry(to)?;
                self.with(|client, call| client.link(call, inode, entry))
                    .map(drop)
            }
            What::Rename(from, to, exchanges) => {
                let (from, to) = (self.entry(from)?, self.entry(to)?);
                let how = Rename {
                    exchanges: *exchanges,
                    keeps_target: false,
                };
                self.with(|client, call| client.rename(call, from, to, how))
                    .map(drop)
            }
            What::Chmod(path, mode) => {
                let mode = Some(*mode);
                self.set(
                    path,
                    &Wanted {
                        mode,
                        ..Wanted::default()
                    },
                )
            }
            What::Chown(path, uid, gid) => {
                let (uid, gid) = (*uid, *gid);
                self.set(
                    path,
                    &Wanted {
                        uid,
                        gid,
                        ..Wanted::default()
                    },
                )
            }
            What::Times(path, [atime, mtime]) => {
                let (atime, mtime) = (*atime, *mtime);
                self.set(
                    path,
                    &Wanted {
                        atime,
                        mtime,
                        ..Wanted::default()
                    },
                )
            }
            _ => self.on_content(what),
        }
    }

    fn on_content(&mut self, what: &What) -> Result<(), Errno> {
        match what {
            What::Open(path, mask, truncates) => {
                let inode = self.inode(path)?;
                self.with(|client, call| client.open(call, inode, *mask, (*truncates, false)))?;
                self.served.forget(inode);
                Ok(())
            }
            What::Append(path) => {
                let inode = self.inode(path)?;
                self.with(|client, call| client.open(call, inode, WRITE, (false, true)))?;
                let caller = self.caller;
                self.served.write(caller, inode, Where::End, b"more")?;
                self.served.forget(inode);
                Ok(())
            }
            What::Search(path) => self.inode(path).map(drop),
            What::SetAttribute(path, name, value, mode) => {
                let inode = self.inode(path)?;
                self.with(|client, call| {
                    client.set_attribute(call, (inode, name.as_bytes()), value, (*mode, false))
                })
                .map(drop)
            }
            What::RemoveAttribute(path, name) => {
                let inode = self.inode(path)?;
                self.with(|client, call| client.remove_attribute(call, (inode, name.as_bytes())))
                    .map(drop)
            }
            What::Nameless(path, mode) => {
                let inode = self.inode(path)?;
                let made = self.with(|client, call| client.create_nameless(call, inode, (*mode, true)))?;
                self.served.forget(made.number);
                Ok(())
            }
            _ => unreachable!("others were made before"),
        }
    }

    /// All files of the machine beside the client's.
    fn compare(&mut self, step: usize) {
        self.caller = ROOT;
        let mut ahead = vec![(String::from("."), ROOT_INODE)];
        while let Some((path, inode)) = ahead.pop() {
            let stat = host::lstat(&path).expect("it is there");
            let found = self.served.stat(inode).expect("it is there");
            let of_host = (stat.st_mode, stat.st_uid, stat.st_gid);
            let of_client = (found.mode, found.uid, found.gid);
            assert_eq!(of_client, of_host, "step {step}: {path}, modes in decimal");
            for name in [ACCESS, DEFAULT, "user.a"] {
                let mut bytes = vec![0; 2000];
                let on_host = host::lgetxattr(&path, name, &mut bytes[..]);
                let on_client = self.with(|client, call| client.attribute(call, inode, name.as_bytes()));
                match on_host {
                    Ok(count) => assert_eq!(on_client.as_deref(), Ok(&bytes[..count]), "{path}: {name}"),
                    Err(errno) => {
                        let code = on_client.map_err(Errno::code);
                        assert_eq!(code, Err(errno.raw_os_error()), "{path}: {name}");
                    }
                }
            }
            match found.mode & TYPE_MASK {
                TYPE_DIRECTORY => {
                    let mut names = BTreeMap::new();
                    let listed = self
                        .served
                        .read(|client, below| client.list(below, (inode, 0), 1000));
                    for entry in listed.expect("it is a directory") {
                        names.insert(String::from_utf8(entry.name).expect("plain"), entry.inode);
                    }
                    names.retain(|name, _| name != "." && name != "..");
                    let mut on_host: Vec<_> = std::fs::read_dir(&path)
                        .expect("it is one")
                        .map(|entry| {
                            entry
                                .expect("it can be read")
                                .file_name()
                                .into_string()
                                .expect("plain")
                        })
                        .collect();
                    on_host.sort();
                    assert!(names.keys().eq(on_host.iter()), "{path}: {names:?} {on_host:?}");
                    ahead.extend(
                        names
                            .into_iter()
                            .map(|(name, inode)| (format!("{path}/{name}"), inode)),
                    );
                }
                TYPE_FILE => {
                    assert_eq!(found.size, stat.st_size as u64, "{path}");
                }
                _ => {}
            }
        }
    }
}

struct Calls {
    rng: Rng,
    has_lists: bool,
}

impl Calls {
    /// A path through directories that may be there, to one of such names.
    fn path_to(&mut self, names: &[&str]) -> String {
        let (steps, mut path) = (self.rng.below(3), String::new());
        for _ in 0..steps {
            path.push_str(["a/", "b/"][self.rng.below(2) as usize]);
        }
        path + names[self.rng.below(names.len() as u64) as usize]
    }

    fn path(&mut self) -> String {
        self.path_to(&["a", "b", "c"])
    }

    fn id(&mut self, first: u32) -> Option<u32> {
        let id = match self.rng.below(5) {
            0 => 0,
            other => first + other as u32,
        };
        self.rng.chance(0.6).then_some(id)
    }

    fn stamp(&mut self) -> Option<Stamp> {
        match self.rng.below(3) {
            0 => None,
            1 => Some(Stamp::Now),
            _ => Some(Stamp::At(Time {
                seconds: 77,
                ns: self.rng.below(1000) as u32,
            })),
        }
    }

    /// A list, which may be one that nobody takes.
    fn list(&mut self) -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        let mut push = |tag: u16, bits: u64, id: u32| {
            value.extend(tag.to_le_bytes());
            value.extend((bits as u16).to_le_bytes());
            value.extend(id.to_le_bytes());
        };
        let rng = &mut self.rng;
        let (users, groups) = (rng.below(3), rng.below(3));
        push(1, rng.below(8), u32::MAX);
        for user in 0..users {
            push(2, rng.below(8), 1001 + user as u32 + rng.below(2) as u32);
        }
        push(4, rng.below(8), u32::MAX);
        for group in 0..groups {
            push(8, rng.below(8), 2001 + group as u32 + rng.below(2) as u32);
        }
        if users + groups > 0 && !rng.chance(0.05) || rng.chance(0.1) {
            push(16, rng.below(8), u32::MAX);
        }
        if !rng.chance(0.05) {
            push(32, rng.below(8), u32::MAX);
        }
        value
    }

    fn attribute(&mut self) -> What {
        let path = self.path();
        let names = [ACCESS, DEFAULT, "user.a"];
        let first = if self.has_lists { 0 } else { 2 };
        let name = names[self.rng.between(first, 2) as usize].to_string();
        let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][self.rng.below(3) as usize];
        match (self.rng.below(5), name.starts_with("user.")) {
            (0, _) => What::RemoveAttribute(path, name),
            (_, true) => What::SetAttribute(path, name, vec![7; self.rng.below(20) as usize], mode),
            (_, false) => {
                let list = self.list();
                What::SetAttribute(path, name, list, XattrMode::Any)
            }
        }
    }

    fn next(&mut self) -> What {
        let path = self.path();
        let bits = self.rng.below(0o10000) as u32;
        // Mostly such as let somebody go on.
        let bits = if self.rng.chance(0.5) { bits | 0o777 } else { bits };
        match self.rng.below(30) {
            0..3 => What::Make(self.path_to(&["c"]), TYPE_FILE | bits),
            3..8 => What::Make(self.path_to(&["a", "b"]), TYPE_DIRECTORY | bits),
            8 => What::Make(path, 0o010_000 | bits),
            9 => What::Make(path, [0o020_000, 0o060_000][self.rng.below(2) as usize] | bits),
            10 => What::Unlink(path, false),
            11 => What::Unlink(path, true),
            12 => What::Link(path, self.path()),
            13..15 => What::Rename(path, self.path(), self.rng.chance(0.3)),
            15..18 => What::Chmod(path, bits),
            18..20 => What::Chown(path, self.id(1000), Some(2001 + self.rng.below(3) as u32)),
            20 => What::Times(path, [self.stamp(), self.stamp()]),
            21..23 => {
                let mask = [READ, WRITE, READ | WRITE][self.rng.below(3) as usize];
                What::Open(path, mask, mask != READ && self.rng.chance(0.4))
            }
            23 => What::Append(path),
            24 => What::Search(path),
            25 => What::Nameless(path, bits),
            _ => self.attribute(),
        }
    }
}

/// Whether this machine's rules for such a call are of its administrator, and not of its file systems: `fs.protected_hardlinks`. And pipes are
/// opened by the kernel, whatever the file system.
fn is_elsewhere(rig: &mut Rig, what: &What) -> bool {
    let caller = std::mem::replace(&mut rig.caller, ROOT);
    let elsewhere = match what {
        What::Link(from, _) => rig.inode(from).is_ok_and(|inode| {
            let uid = rig.served.stat(inode).expect("it was found").uid;
            caller.uid != 0 && caller.uid != uid
        }),
        What::Open(path, ..) | What::Append(path) => rig.inode(path).is_ok_and(|inode| {
            let kind = rig.served.stat(inode).expect("it was found").mode & TYPE_MASK;
            !matches!(kind, TYPE_FILE | TYPE_DIRECTORY)
        }),
        // Linux does nothing then, and does not ask the file system.
        What::Times(_, times) => *times == [None; 2],
        _ => false,
    };
    rig.caller = caller;
    elsewhere
}

fn program(seed: u64, counts: &mut BTreeMap<i32, usize>) {
    let dir = tempfile::tempdir().expect("there is a directory for tests");
    rustix::process::chdir(dir.path()).expect("it is there");
    let probe = |name| host::lgetxattr(".", name, &mut [0; 100][..]);
    let has_lists = probe(ACCESS) == Err(rustix::io::Errno::NODATA);
    host::chmod(".", Mode::from_raw_mode(0o777)).expect("root may");
    let mut rig = Rig {
        served: Served::new(seed, Options::default()),
        caller: ROOT,
    };
    rig.with(|client, call| {
        let mode = Some(0o777);
        client.set(
            call,
            ROOT_INODE,
            &Wanted {
                mode,
                ..Wanted::default()
            },
        )
    })
    .expect("root may");
    let mut calls = Calls {
        rng: Rng::new(seed),
        has_lists,
    };
    for step in 0..500 {
        rig.served.now.seconds += 1;
        let what = calls.next();
        let user = calls.rng.below(4) as usize;
        let umask = [0, 0o022, 0o077, 0o027][calls.rng.below(4) as usize];
        rig.caller = caller(user, umask);
        if is_elsewhere(&mut rig, &what) {
            continue;
        }
        let on_host = as_user(user, umask, || on_host(&what)).map_err(rustix::io::Errno::raw_os_error);
        let on_client = rig.on_client(&what).map_err(Errno::code);
        assert_eq!(
            on_client, on_host,
            "seed {seed}, step {step}: user {user}, {what:?}"
        );
        *counts.entry(on_host.err().unwrap_or(0)).or_default() += 1;
        if step % 5 == 0 {
            rig.compare(step);
        }
    }
    rustix::process::chdir("/").expect("it is there");
}

/// What a giver of leases lets a process have now: what its user may open, and what it had before.
fn lease(rig: &mut Rig, user: usize) {
    let mut ahead = vec![ROOT_INODE];
    let caller = caller(user, 0);
    while let Some(number) = ahead.pop() {
        let inode = rig.served.stat(number).expect("it is there");
        let may = |rig: &mut Rig, mask: u32| {
            rig.served
                .read(|client, below| client.access(below, &caller, (number, mask)))
                .is_ok()
        };
        let rights = rig.served.rig.grants.leases.entry(number).or_default();
        let before = *rights;
        let (data, names) = (may(rig, WRITE), inode.is_directory() && may(rig, WRITE | 1));
        let rights = Rights {
            data: before.data || data,
            names: before.names || names,
            owner: before.owner || caller.owns(&inode),
        };
        rig.served.rig.grants.leases.insert(number, rights);
        if inode.is_directory() {
            let listed = rig
                .served
                .read(|client, below| client.list(below, (number, 2), 1000));
            ahead.extend(listed.expect("it is one").into_iter().map(|entry| entry.inode));
        }
    }
}

/// All inodes that have a path, less what only the tree counts.
fn inodes(rig: &mut Rig) -> BTreeMap<u64, Inode> {
    let (mut found, mut ahead) = (BTreeMap::new(), vec![ROOT_INODE]);
    while let Some(number) = ahead.pop() {
        let inode = rig.served.stat(number).expect("it is there");
        if inode.is_directory() {
            let listed = rig
                .served
                .read(|client, below| client.list(below, (number, 2), 1000));
            ahead.extend(listed.expect("it is one").into_iter().map(|entry| entry.inode));
        }
        let (changes, log) = (0, 0);
        found.insert(
            number,
            Inode {
                changes,
                log,
                ..inode
            },
        );
    }
    found
}

/// The digest trusts no log. What a client lets its process do, the digest lets the process's log do.
#[test]
fn the_log_of_a_user_is_refused_nothing_that_its_client_acknowledged() {
    let mut done = 0;
    for seed in 0..60 {
        let mut rig = Rig {
            served: Served::new(seed, Options::default()),
            caller: ROOT,
        };
        let mut calls = Calls {
            rng: Rng::new(seed + 1000),
            has_lists: true,
        };
        let mode = Some(0o1777);
        let wanted = Wanted {
            mode,
            ..Wanted::default()
        };
        rig.with(|client, call| client.set(call, ROOT_INODE, &wanted))
            .expect("root may");
        // Files of several users, by a log of root.
        for _ in 0..150 {
            let user = calls.rng.below(4) as usize;
            rig.caller = caller(user, 0);
            let _ = rig.on_client(&calls.next());
        }
        let capability = &b"security.capability"[..];
        for name in ["c", "a/c", "b/c"] {
            rig.caller = ROOT;
            if let Ok(inode) = rig.inode(name) {
                let mode = (XattrMode::Any, false);
                rig.with(|client, call| client.set_attribute(call, (inode, capability), b"all", mode))
                    .expect("root may");
            }
        }
        rig.served.digest();
        let user = 1 + seed as usize % 3;
        let (uid, gid, groups) = USERS[user];
        rig.served.rig.grants.uid = uid;
        rig.served.rig.grants.gids = [&[gid], groups].concat();
        rig.served.rig.grants.leases.clear();
        for _ in 0..250 {
            rig.served.now.seconds += 1;
            lease(&mut rig, user);
            rig.caller = caller(user, [0, 0o022][calls.rng.below(2) as usize]);
            // The helper asserts that no digest refuses anything.
            done += usize::from(rig.on_client(&calls.next()).is_ok());
        }
        let before = inodes(&mut rig);
        rig.served.digest();
        assert_eq!(inodes(&mut rig), before, "seed {seed}");
    }
    assert!(done > 1000, "{done}");
}

#[test]
fn users_may_on_the_client_what_they_may_on_this_machine() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let mut counts = BTreeMap::new();
    for seed in 0..40 {
        program(seed, &mut counts);
    }
    let count = |errno: Errno| counts.get(&errno.code()).copied().unwrap_or(0);
    assert!(counts[&0] > 2000, "{counts:?}");
    assert!(
        count(Errno::Access) > 3000 && count(Errno::NotPermitted) > 1000,
        "{counts:?}"
    );
}
