//! The reference model and the client beside the file system of this machine: the same calls, and the same results, trees, contents and
//! times.

mod witness;

use fs::content::Content;
use fs::files::{Body, Errno, Files, Inode, Limits};
use fs::format::ROOT_INODE;
use fs::inode::Time;
use fs::op::{Action, Allocation, Changes, Entry, Op, Target};
use rustix::fs as host;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use witness::Witness;

/// A directory that is open (0: the root), or what is below it, and a name in it.
#[derive(Clone, Debug)]
struct Path {
    handle: usize,
    through: Vec<String>,
    name: String,
}

impl Path {
    fn text(&self) -> String {
        self.through
            .iter()
            .map(|name| format!("{name}/"))
            .chain([self.name.clone()])
            .collect()
    }
}

/// A call, before its paths are resolved.
#[derive(Clone, Debug)]
enum Call {
    Make(Path, u32),
    Symlink(Path, String),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, RenameFlags),
    Chmod(Path, u32),
    Chown(Path, u32, u32),
    Times(Path, Option<Time>, Option<Time>),
    Truncate(Path, u64),
    Attribute(Path, String, Option<usize>),
    Open(Path),
    Close(usize),
    Resize(usize, u64),
    Write(usize, u64, usize),
    Allocate(usize, u64, u64, Allocation, bool),
}

struct Open {
    file: OwnedFd,
    inode: u64,
}

struct Rig {
    model: Files,
    dir: tempfile::TempDir,
    /// The first is the root.
    open: Vec<Open>,
    client: Witness,
    next_inode: u64,
    now: i64,
    has_attributes: bool,
    /// Directories of the machine's file system have a link for each directory in them.
    counts_directories: bool,
}

fn refused(errno: rustix::io::Errno) -> i32 {
    errno.raw_os_error()
}

fn modelled(errno: Errno) -> i32 {
    errno.code()
}

impl Rig {
    fn new(seed: u64) -> Self {
        rustix::process::umask(Mode::empty());
        let dir = tempfile::tempdir().expect("there is a directory for tests");
        let file =
            host::open(dir.path(), OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).expect("it is there");
        let ids = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let stat = host::fstat(&file).expect("it is there");
        Self {
            client: Witness::new(seed, stat.st_mode & 0o7777, ids),
            model: Files::new(Limits::default(), stat.st_mode & 0o7777, ids, Time::default()),
            has_attributes: host::fsetxattr(&file, "user.probe", b"", XattrFlags::empty()).is_ok()
                && host::fremovexattr(&file, "user.probe").is_ok(),
            counts_directories: stat.st_nlink == 2,
            dir,
            open: vec![Open {
                file,
                inode: ROOT_INODE,
            }],
            next_inode: 100,
            now: 1,
        }
    }

    fn at(&self, path: &Path) -> BorrowedFd<'_> {
        self.open[path.handle].file.as_fd()
    }

    /// The entry that a path means.
    fn entry(&self, path: &Path) -> Result<Entry<'static>, i32> {
        let mut inode = self.open[path.handle].inode;
        for name in &path.through {
            inode = self.model.lookup(inode, name.as_bytes()).map_err(modelled)?;
            // Symbolic links of these tests lead nowhere.
            if self
                .model
                .inode(inode)
                .is_some_and(|inode| matches!(inode.body, Body::Link(_)))
            {
                return Err(Errno::NoEntry.code());
            }
        }
        Ok(Entry::new(inode, path.name.clone().into_bytes()))
    }

    /// The inode of a path; one that is refused with the right error if there is none.
    fn inode(&self, path: &Path) -> Result<u64, i32> {
        let entry = self.entry(path)?;
        match (entry.name.len() > 255, self.model.inode(entry.parent)) {
            (
                true,
                Some(Inode {
                    body: Body::Directory { .. },
                    links: 1..,
                    ..
                }),
            ) => Err(Errno::NameTooLong.code()),
            _ => self.model.lookup(entry.parent, &entry.name).map_err(modelled),
        }
    }

    fn is_open(&self, inode: u64) -> bool {
        self.open.iter().any(|open| open.inode == inode)
    }

    fn apply(&mut self, inode: u64, action: Action<'_>) -> Result<(), i32> {
        let op = Op {
            inode,
            time: Time {
                seconds: self.now,
                ns: 0,
            },
            action,
        };
        let before = self.model.clone();
        let result = self
            .model
            .apply(&op, &|_| unreachable!("no data are in blocks"))
            .map_err(modelled);
        assert!(
            result.is_ok() || self.model == before,
            "what is refused changes nothing: {op:?}"
        );
        if result.is_ok() {
            op.check().expect("what can be done can be logged");
        }
        result
    }

    fn create(&mut self, path: &Path, mode: u32, target: &str) -> Result<(), i32> {
        let entry = self.entry(path).map_err(|code| match target.len() {
            0 if mode == 0o120_777 => Errno::NoEntry.code(),
            4096.. => Errno::NameTooLong.code(),
            _ => code,
        })?;
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let target = Cow::Owned(target.as_bytes().to_vec());
        self.next_inode += 1;
        self.apply(
            self.next_inode,
            Action::Create {
                entry,
                mode,
                uid,
                gid,
                device: 0,
                target,
            },
        )
    }

    fn unlink(&mut self, path: &Path, is_directory: bool) -> Result<(), i32> {
        let entry = self.entry(path)?;
        let inode = self.model.lookup(entry.parent, &entry.name).unwrap_or(1);
        let fate = self.model.fate(inode, self.is_open(inode));
        self.apply(
            inode,
            Action::Unlink {
                entry,
                is_directory,
                fate,
            },
        )
    }

    fn rename(&mut self, from: &Path, to: &Path, flags: RenameFlags) -> Result<(), i32> {
        let (from, to) = (self.entry(from)?, self.entry(to)?);
        let source = self.model.lookup(from.parent, &from.name).unwrap_or(1);
        let found = self.model.lookup(to.parent, &to.name).ok();
        let target = match found {
            _ if flags == RenameFlags::NOREPLACE => Target::Free,
            _ if flags == RenameFlags::EXCHANGE => Target::Exchanged {
                inode: found.unwrap_or(1),
            },
            Some(inode) => Target::Replaced {
                inode,
                fate: self.model.fate(inode, self.is_open(inode)),
            },
            None => Target::Free,
        };
        if found == Some(source) && flags != RenameFlags::NOREPLACE {
            return Ok(());
        }
        self.apply(source, Action::Rename { from, to, target })
    }

    fn set(&mut self, inode: Result<u64, i32>, changes: Changes) -> Result<(), i32> {
        self.apply(inode?, Action::Set(changes))
    }

    /// The call on the model.
    fn on_model(&mut self, call: &Call) -> Result<(), i32> {
        match call {
            Call::Make(path, mode) => self.create(path, *mode, ""),
            Call::Symlink(path, target) => self.create(path, 0o120_777, target),
            Call::Link(from, to) => {
                let inode = self.inode(from)?;
                let entry = self.entry(to)?;
                self.apply(inode, Action::Link { entry })
            }
            Call::Unlink(path) => self.unlink(path, false),
            Call::Rmdir(path) => self.unlink(path, true),
            Call::Rename(from, to, flags) => self.rename(from, to, *flags),
            Call::Chmod(path, mode) => self.set(
                self.inode(path),
                Changes {
                    mode: Some(*mode),
                    ..Changes::default()
                },
            ),
            Call::Chown(path, uid, gid) => {
                let inode = self.inode(path)?;
                // The kernel takes the set-id bits of what is given away, as a call of two records does.
                let found = self.model.inode(inode).expect("it was found");
                let is_directory = found.is_directory();
                let group_runs = found.mode & 0o10 != 0;
                let taken = 0o4000 | if group_runs { 0o2000 } else { 0 };
                let mode = (!is_directory && found.mode & 0o170_000 != 0o120_000)
                    .then_some(found.mode & 0o7777 & !taken);
                self.set(
                    Ok(inode),
                    Changes {
                        mode,
                        uid: Some(*uid),
                        gid: Some(*gid),
                        ..Changes::default()
                    },
                )
            }
            Call::Times(path, atime, mtime) => {
                let changes = Changes {
                    atime: *atime,
                    mtime: *mtime,
                    ..Changes::default()
                };
                self.set(self.inode(path), changes)
            }
            Call::Truncate(path, size) => {
                let inode = self.inode(path)?;
                let is_link = matches!(self.model.inode(inode).expect("it was found").body, Body::Link(_));
                if is_link {
                    return Err(Errno::NoEntry.code());
                }
                self.apply(inode, Action::Truncate { size: *size })
            }
            Call::Attribute(path, name, value) => {
                // Linux looks at what was passed before it looks for the file.
                let inode = self.inode(path).map_err(|code| match value {
                    _ if name.len() > 255 => Errno::Range.code(),
                    Some(65_537..) => Errno::TooBig.code(),
                    _ => code,
                })?;
                let value = value.map(|bytes| Cow::Owned(vec![b'v'; bytes]));
                self.apply(
                    inode,
                    Action::Attribute {
                        name: Cow::Borrowed(name.as_bytes()),
                        value,
                    },
                )
            }
            Call::Open(path) => self.inode(path).map(drop),
            Call::Close(handle) => {
                let inode = self.open[*handle].inode;
                let is_last = self.open.iter().filter(|open| open.inode == inode).count() == 1;
                match is_last && self.model.inode(inode).expect("it is open").links == 0 {
                    true => self.apply(inode, Action::Release),
                    false => Ok(()),
                }
            }
            Call::Resize(handle, size) => {
                self.apply(self.open[*handle].inode, Action::Truncate { size: *size })
            }
            Call::Write(handle, offset, bytes) => {
                let data = Cow::Owned(pattern(*offset, *bytes));
                self.apply(
                    self.open[*handle].inode,
                    Action::Write {
                        offset: *offset,
                        data,
                    },
                )
            }
            Call::Allocate(handle, offset, bytes, what, keeps_size) => {
                let (offset, bytes, what, keeps_size) = (*offset, *bytes, *what, *keeps_size);
                let action = Action::Allocate {
                    offset,
                    bytes,
                    what,
                    keeps_size,
                };
                self.apply(self.open[*handle].inode, action)
            }
        }
    }

    /// The call on the machine's file system.
    fn on_host(&mut self, call: &Call) -> Result<(), i32> {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let proc_path = |path: &Path| {
            format!(
                "/proc/self/fd/{}/{}",
                std::os::fd::AsRawFd::as_raw_fd(&self.at(path)),
                path.text()
            )
        };
        let result = match call {
            Call::Make(path, mode) => {
                let bits = Mode::from_raw_mode(mode & 0o7777);
                match FileType::from_raw_mode(*mode) {
                    FileType::Directory => host::mkdirat(self.at(path), path.text(), bits),
                    FileType::RegularFile => {
                        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                        host::openat(self.at(path), path.text(), flags, bits).map(drop)
                    }
                    kind => host::mknodat(self.at(path), path.text(), kind, bits, 0),
                }
            }
            Call::Symlink(path, target) => host::symlinkat(target.as_str(), self.at(path), path.text()),
            Call::Link(from, to) => host::linkat(
                self.at(from),
                from.text(),
                self.at(to),
                to.text(),
                AtFlags::empty(),
            ),
            Call::Unlink(path) => host::unlinkat(self.at(path), path.text(), AtFlags::empty()),
            Call::Rmdir(path) => host::unlinkat(self.at(path), path.text(), AtFlags::REMOVEDIR),
            Call::Rename(from, to, flags) => {
                host::renameat_with(self.at(from), from.text(), self.at(to), to.text(), *flags)
            }
            Call::Chmod(path, mode) => {
                let inode = self.inode(path).ok().and_then(|inode| self.model.inode(inode));
                if inode.is_some_and(|inode| matches!(inode.body, Body::Link(_))) {
                    // Without following, which is how the model means it, only newer kernels can be asked.
                    return Err(Errno::NotSupported.code());
                }
                host::chmodat(
                    self.at(path),
                    path.text(),
                    Mode::from_raw_mode(*mode),
                    AtFlags::empty(),
                )
            }
            Call::Chown(path, uid, gid) => {
                let (uid, gid) = (
                    rustix::process::Uid::from_raw(*uid),
                    rustix::process::Gid::from_raw(*gid),
                );
                host::chownat(self.at(path), path.text(), Some(uid), Some(gid), nofollow)
            }
            Call::Times(path, atime, mtime) => {
                let spec = |time: &Option<Time>| match time {
                    Some(time) => Timespec {
                        tv_sec: time.seconds,
                        tv_nsec: i64::from(time.ns),
                    },
                    None => Timespec {
                        tv_sec: 0,
                        tv_nsec: host::UTIME_OMIT,
                    },
                };
                let times = Timestamps {
                    last_access: spec(atime),
                    last_modification: spec(mtime),
                };
                host::utimensat(self.at(path), path.text(), &times, nofollow)
            }
            Call::Truncate(path, size) => {
                let result =
                    rustix::fs::open(proc_path(path), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
                result.and_then(|_| match truncate(&proc_path(path), *size) {
                    0 => Ok(()),
                    code => Err(rustix::io::Errno::from_raw_os_error(code)),
                })
            }
            Call::Attribute(path, name, value) => match value {
                Some(bytes) => host::lsetxattr(
                    proc_path(path),
                    name.as_str(),
                    &vec![b'v'; *bytes],
                    XattrFlags::empty(),
                ),
                None => host::lremovexattr(proc_path(path), name.as_str()),
            },
            Call::Open(path) => return self.open_on_host(path),
            Call::Close(handle) => {
                self.open.remove(*handle);
                Ok(())
            }
            Call::Resize(handle, size) => host::ftruncate(&self.open[*handle].file, *size),
            Call::Write(handle, offset, bytes) => {
                let data = pattern(*offset, *bytes);
                rustix::io::pwrite(&self.open[*handle].file, &data, *offset)
                    .map(|done| assert_eq!(done, *bytes))
            }
            Call::Allocate(handle, offset, bytes, what, keeps_size) => {
                let what = match what {
                    Allocation::Reserve => FallocateFlags::empty(),
                    Allocation::Hole => FallocateFlags::PUNCH_HOLE,
                    Allocation::Zeros => FallocateFlags::ZERO_RANGE,
                };
                let keeps = if *keeps_size {
                    FallocateFlags::KEEP_SIZE
                } else {
                    FallocateFlags::empty()
                };
                host::fallocate(&self.open[*handle].file, what | keeps, *offset, *bytes)
            }
        };
        result.map_err(refused)
    }

    fn open_on_host(&mut self, path: &Path) -> Result<(), i32> {
        let inode = self.inode(path);
        let body = inode
            .ok()
            .and_then(|inode| self.model.inode(inode))
            .map(|inode| &inode.body);
        let flags = match body {
            Some(Body::File(_)) => OFlags::RDWR,
            Some(Body::Directory { .. }) => OFlags::RDONLY | OFlags::DIRECTORY,
            _ => OFlags::PATH | OFlags::NOFOLLOW,
        };
        let is_kept = matches!(body, Some(Body::File(_) | Body::Directory { .. }));
        let file = host::openat(self.at(path), path.text(), flags, Mode::empty()).map_err(refused)?;
        if is_kept {
            self.open.push(Open {
                file,
                inode: inode.expect("it has a body"),
            });
        }
        Ok(())
    }

    /// Both, and their results compared. True if it was done.
    fn call(&mut self, call: &Call) -> bool {
        self.now += 1;
        let before = self.model.clone();
        // What is closed is looked up before it is gone, and what is opened is kept by the host's side.
        let expected = self.on_model(call);
        let keep = core::mem::replace(&mut self.model, before);
        let found = self.on_host(call);
        self.model = keep;
        let not_supported = Errno::NotSupported.code();
        if found == Err(not_supported) && expected.is_ok() {
            panic!("the machine's file system lacks {call:?}");
        }
        // POSIX allows both for a directory that has entries.
        let same = |code: i32| {
            if code == Errno::NotEmpty.code() {
                Errno::Exists.code()
            } else {
                code
            }
        };
        assert_eq!(found.map_err(same), expected.map_err(same), "{call:?}");
        self.client.served.now.seconds = self.now;
        let by_client = self.client.call(call);
        assert_eq!(by_client, expected, "{call:?} of the client");
        expected.is_ok()
    }

    /// Every path of the model beside what is on the machine, and what the client has.
    fn compare(&mut self) {
        self.client.compare(&self.model, &self.open);
        let mut inodes = BTreeMap::new();
        let mut paths = vec![(ROOT_INODE, self.dir.path().to_path_buf())];
        while let Some((number, path)) = paths.pop() {
            let inode = self.model.inode(number).expect("it has a name");
            let stat = host::lstat(&path).expect("it is there");
            let other = *inodes.entry(number).or_insert(stat.st_ino);
            assert_eq!(other, stat.st_ino, "{path:?} is the same file as another");
            self.compare_inode(inode, &stat, &format!("{path:?}"));
            match &inode.body {
                Body::Directory { entries, .. } => {
                    let mut names: Vec<_> = std::fs::read_dir(&path)
                        .expect("it is one")
                        .map(|entry| {
                            entry
                                .expect("it can be read")
                                .file_name()
                                .into_string()
                                .expect("plain names")
                        })
                        .collect();
                    names.sort();
                    let expected: Vec<_> = entries
                        .keys()
                        .map(|name| String::from_utf8_lossy(name).into_owned())
                        .collect();
                    assert_eq!(names, expected, "{path:?}");
                    paths.extend(
                        expected
                            .iter()
                            .map(|name| (entries[name.as_bytes()], path.join(name))),
                    );
                }
                Body::Link(target) => {
                    let found = std::fs::read_link(&path).expect("it is one");
                    assert_eq!(found.as_os_str().as_encoded_bytes(), target);
                }
                _ => {}
            }
            self.compare_attributes(inode, &path);
        }
        let distinct: std::collections::BTreeSet<_> = inodes.values().collect();
        assert_eq!(distinct.len(), inodes.len(), "no two files of the model are one");
        for open in &self.open {
            let inode = self.model.inode(open.inode).expect("what is open stays");
            let stat = host::fstat(&open.file).expect("it is open");
            self.compare_inode(inode, &stat, "an open file");
            if let Body::File(content) = &inode.body {
                compare_content(content, inode.size, &open.file);
            }
        }
    }

    fn compare_inode(&self, inode: &Inode, stat: &host::Stat, what: &str) {
        assert_eq!(stat.st_mode, inode.mode, "mode of {what}");
        assert_eq!(
            (stat.st_uid, stat.st_gid),
            (inode.uid, inode.gid),
            "owner of {what}"
        );
        if !inode.is_directory() || self.counts_directories {
            assert_eq!(u64::from(inode.links), stat.st_nlink, "links of {what}");
        }
        if !inode.is_directory() {
            assert_eq!(stat.st_size as u64, inode.size, "size of {what}");
        }
    }

    fn compare_attributes(&self, inode: &Inode, path: &std::path::Path) {
        if !self.has_attributes || !matches!(inode.body, Body::File(_) | Body::Directory { .. }) {
            return;
        }
        let mut names = vec![0; 4096];
        let length = host::llistxattr(path, &mut names[..]).expect("it can be asked");
        let mut found: Vec<_> = names[..length]
            .split(|byte| *byte == 0)
            .filter(|name| name.starts_with(b"user."))
            .collect();
        found.sort();
        assert_eq!(
            found,
            inode.attributes.keys().collect::<Vec<_>>(),
            "attributes of {path:?}"
        );
        for (name, value) in &inode.attributes {
            let mut bytes = vec![0; 2000];
            let length = host::lgetxattr(path, &name[..], &mut bytes[..]).expect("it is there");
            assert_eq!(&bytes[..length], value);
        }
    }
}

fn compare_content(content: &Content, size: u64, file: &OwnedFd) {
    let mut expected = vec![0; size as usize];
    content.read(0, &mut expected);
    let mut found = vec![0; size as usize + 1];
    let mut length = 0;
    loop {
        match rustix::io::pread(file, &mut found[length..], length as u64).expect("it can be read") {
            0 => break,
            more => length += more,
        }
    }
    assert!(found[..length] == expected[..], "content of an open file");
}

fn truncate(path: &str, size: u64) -> i32 {
    // rustix has no call by path. The one of the standard library opens the file, which waits for pipes.
    let kind = std::fs::symlink_metadata(path).map(|it| it.file_type());
    match kind {
        Ok(kind) if kind.is_file() => {
            let file = std::fs::OpenOptions::new().write(true).open(path);
            let result = file.and_then(|file| file.set_len(size));
            result.err().and_then(|err| err.raw_os_error()).unwrap_or(0)
        }
        Ok(kind) if kind.is_dir() => Errno::IsDirectory.code(),
        Ok(kind) if kind.is_symlink() => Errno::NoEntry.code(),
        Ok(_) => Errno::Invalid.code(),
        Err(err) => err.raw_os_error().expect("of the system"),
    }
}

fn pattern(offset: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|index| ((offset as usize + index) * 31 % 251) as u8 | 1)
        .collect()
}

/// Random calls over few names, so that they meet.
struct Calls {
    rng: base::Rng,
    is_root: bool,
}

impl Calls {
    fn name(&mut self) -> String {
        match self.rng.below(40) {
            0 => "n".repeat(255),
            1 => "n".repeat(256),
            other => ["a", "b", "c", "d", "e"][other as usize % 5].into(),
        }
    }

    fn path(&mut self, rig: &Rig) -> Path {
        let directories: Vec<_> = (0..rig.open.len())
            .filter(|at| {
                rig.model
                    .inode(rig.open[*at].inode)
                    .is_some_and(Inode::is_directory)
            })
            .collect();
        let handle = match self.rng.chance(0.7) {
            true => 0,
            false => directories[self.rng.below(directories.len() as u64) as usize],
        };
        // Mostly directories that are there.
        let mut through = Vec::new();
        let mut inode = rig.open[handle].inode;
        while self.rng.chance(0.5) && through.len() < 4 {
            let known = match &rig.model.inode(inode).map(|inode| &inode.body) {
                Some(Body::Directory { entries, .. }) => entries
                    .iter()
                    .filter(|(_, inode)| rig.model.inode(**inode).is_some_and(Inode::is_directory))
                    .map(|(name, inode)| (String::from_utf8_lossy(name).into_owned(), *inode))
                    .collect(),
                _ => Vec::new(),
            };
            if known.is_empty() || self.rng.chance(0.1) {
                if self.rng.chance(0.3) {
                    through.push(self.name()[..1].into());
                }
                break;
            }
            let (name, next) = known[self.rng.below(known.len() as u64) as usize].clone();
            through.push(name);
            inode = next;
        }
        Path {
            handle,
            through,
            name: self.name(),
        }
    }

    fn data(&mut self, rig: &Rig) -> Option<Call> {
        let files: Vec<_> = (0..rig.open.len())
            .filter(|at| {
                matches!(
                    rig.model.inode(rig.open[*at].inode).expect("it is open").body,
                    Body::File(_)
                )
            })
            .collect();
        let handle = *files.get(self.rng.below(files.len().max(1) as u64) as usize)?;
        let offset = self.rng.below(5) * 4096 + self.rng.below(3) * self.rng.below(4096);
        let bytes = match self.rng.below(3) {
            0 => 4096 * self.rng.between(1, 3),
            _ => self.rng.between(1, 9000),
        };
        Some(match self.rng.below(8) {
            0 | 1 => Call::Resize(handle, offset),
            2 => Call::Allocate(handle, offset, bytes, Allocation::Reserve, self.rng.chance(0.5)),
            3 => Call::Allocate(handle, offset, bytes, Allocation::Hole, true),
            4 => Call::Allocate(handle, offset, bytes, Allocation::Zeros, self.rng.chance(0.5)),
            _ => Call::Write(handle, offset, bytes as usize),
        })
    }

    fn rename_flags(&mut self) -> RenameFlags {
        match self.rng.below(6) {
            0 => RenameFlags::NOREPLACE,
            1 => RenameFlags::EXCHANGE,
            _ => RenameFlags::empty(),
        }
    }

    fn attribute(&mut self, rig: &Rig) -> Call {
        let names = ["user.a", "user.b", "user.", "nothing.a"];
        let name = match self.rng.below(12) {
            0 => format!("user.{}", "x".repeat(251)),
            other => names[other as usize % 4].into(),
        };
        let value = match self.rng.below(10) {
            0 => Some(65_537),
            1..4 => None,
            _ => Some(self.rng.below(200) as usize),
        };
        Call::Attribute(self.path(rig), name, value)
    }

    fn next(&mut self, rig: &Rig) -> Call {
        let mode = self.rng.below(0o10000) as u32 & !0o6000 | 0o700;
        let path = self.path(rig);
        match self.rng.below(32) {
            0..3 => Call::Make(path, 0o100_000 | mode),
            3..7 => Call::Make(path, 0o040_000 | mode),
            7 => Call::Make(path, [0o010_000, 0o140_000][self.rng.below(2) as usize] | mode),
            8 => Call::Symlink(
                path,
                [
                    "nowhere/at/all".to_string(),
                    "t/".repeat(2048)[..4095].to_string(),
                    "t/".repeat(2048),
                    String::new(),
                ][self.rng.below(4) as usize]
                    .clone(),
            ),
            9..11 => Call::Link(path, self.path(rig)),
            11..13 => Call::Unlink(path),
            13..15 => Call::Rmdir(path),
            15..20 => Call::Rename(path, self.path(rig), self.rename_flags()),
            20 => Call::Truncate(path, self.rng.below(9000)),
            21 if self.is_root => Call::Chown(path, self.rng.below(9) as u32, self.rng.below(9) as u32),
            22 if rig.has_attributes => self.attribute(rig),
            23 => {
                let times = [
                    None,
                    Some(Time {
                        seconds: self.rng.below(1 << 31) as i64,
                        ns: 5,
                    }),
                ];
                Call::Times(path, times[self.rng.below(2) as usize], times[1])
            }
            27 => {
                let kept = if self.is_root { 0o5777 } else { 0o1777 };
                Call::Chmod(path, self.rng.below(0o10000) as u32 & kept | 0o700)
            }
            24..26 if rig.open.len() < 8 => Call::Open(path),
            26 if rig.open.len() > 1 => Call::Close(self.rng.between(1, rig.open.len() as u64 - 1) as usize),
            _ => self.data(rig).unwrap_or(Call::Make(path, 0o100_644)),
        }
    }
}

#[test]
fn random_calls_do_on_the_model_what_they_do_on_this_machine() {
    let (mut done, mut refused) = (0, 0);
    for seed in 0..12 {
        let mut rig = Rig::new(seed);
        let is_root = rustix::process::geteuid().is_root();
        let mut calls = Calls {
            rng: base::Rng::new(seed),
            is_root,
        };
        for step in 0..600 {
            let call = calls.next(&rig);
            match rig.call(&call) {
                true => done += 1,
                false => refused += 1,
            }
            if step % 10 == 0 {
                rig.compare();
            }
        }
        rig.compare();
    }
    assert!(done > 1500 && refused > 1500, "{done} done, {refused} refused");
}
