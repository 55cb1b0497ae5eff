//! A file system in memory: what the tests mount.

use fuse::abi::{
    Attr, AttrOut, CreateIn, Directory, EntryOut, Errno, FallocateIn, Interrupts, Kstatfs, LseekIn, OpenOut,
    Operation, ReadIn, Rename2In, Reply, SetattrIn, Statx, StatxOut, SxTime, fattr, fopen,
};
use fuse::transport::Call;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

const BLOCK: u64 = 4096;
/// Reads of a file of this name are answered by [`Memory::release`], or end with EINTR.
pub const SLOW: &[u8] = b"slow";

/// How the server behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// OPEN and OPENDIR fail with ENOSYS, so the kernel sends no more of them.
    pub no_open: bool,
    /// For how long the kernel may keep names and attributes, also those that do not exist.
    pub valid_s: u64,
}

#[derive(Default)]
struct Inode {
    attr: Attr,
    data: Vec<u8>,
    written: BTreeSet<u64>,
    /// Name and inode by the place in listings.
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    places: BTreeMap<Vec<u8>, u64>,
    parent: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
    opened: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub opens: u64,
    pub flushes: u64,
    pub lookups_of_missing: u64,
    pub interrupts: u64,
    pub forgotten: u64,
}

#[derive(Default)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    next_place: u64,
    counts: Counts,
    interrupts: Interrupts,
    slow: Vec<Call>,
}

pub struct Memory {
    state: Mutex<State>,
    behaviour: Behaviour,
}

fn now() -> (u64, u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    (now.as_secs(), now.subsec_nanos())
}

type Result<T> = std::result::Result<T, Errno>;

impl State {
    fn inode(&mut self, number: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or(Errno::NOENT)
    }

    fn child(&mut self, parent: u64, name: &[u8]) -> Result<u64> {
        let dir = self.inode(parent)?;
        let place = dir.places.get(name).ok_or(Errno::NOENT)?;
        Ok(dir.entries[place].1)
    }

    fn add(&mut self, parent: u64, name: &[u8], number: u64) -> Result<()> {
        self.next_place += 1;
        let place = self.next_place;
        let dir = self.inode(parent)?;
        if dir.places.contains_key(name) {
            return Err(Errno::EXIST);
        }
        dir.places.insert(name.to_vec(), place);
        dir.entries.insert(place, (name.to_vec(), number));
        self.touch(parent)
    }

    fn take(&mut self, parent: u64, name: &[u8]) -> Result<u64> {
        let dir = self.inode(parent)?;
        let place = dir.places.remove(name).ok_or(Errno::NOENT)?;
        let (_, number) = dir.entries.remove(&place).expect("both or none");
        self.touch(parent)?;
        Ok(number)
    }

    fn touch(&mut self, number: u64) -> Result<()> {
        let (seconds, ns) = now();
        let attr = &mut self.inode(number)?.attr;
        (attr.mtime, attr.mtimensec, attr.ctime, attr.ctimensec) = (seconds, ns, seconds, ns);
        Ok(())
    }

    fn make(&mut self, mode: u32, rdev: u32, owner: (u32, u32), parent: u64) -> u64 {
        self.next += 1;
        let number = self.next;
        let (seconds, ns) = now();
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        let attr = Attr {
            ino: number,
            mode,
            rdev,
            uid: owner.0,
            gid: owner.1,
            nlink: if is_dir { 2 } else { 1 },
            blksize: BLOCK as u32,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: ns,
            mtimensec: ns,
            ctimensec: ns,
            ..Attr::default()
        };
        let inode = Inode {
            attr,
            parent,
            ..Inode::default()
        };
        self.inodes.insert(number, inode);
        number
    }

    /// The inode goes when it has no name, is not open, and the kernel does not know it.
    fn reap(&mut self, number: u64) {
        let gone = |inode: &Inode| inode.attr.nlink == 0 && inode.lookups == 0 && inode.opened == 0;
        if self.inodes.get(&number).is_some_and(gone) {
            self.inodes.remove(&number);
        }
    }

    fn forget(&mut self, number: u64, count: u64) {
        self.counts.forgotten += 1;
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.lookups = inode
                .lookups
                .checked_sub(count)
                .expect("no more is forgotten than was looked up");
        }
        self.reap(number);
    }

    fn unlink(&mut self, parent: u64, name: &[u8], wants_dir: bool) -> Result<()> {
        let number = self.child(parent, name)?;
        let inode = self.inode(number)?;
        let is_dir = inode.attr.mode & libc::S_IFMT == libc::S_IFDIR;
        match (is_dir, wants_dir) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if !inode.entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        inode.attr.nlink = if is_dir { 0 } else { inode.attr.nlink - 1 };
        self.take(parent, name)?;
        if is_dir {
            self.inode(parent)?.attr.nlink -= 1;
        }
        self.reap(number);
        Ok(())
    }

    fn rename(&mut self, parent: u64, name: &[u8], to: &Rename2In, new_name: &[u8]) -> Result<()> {
        let number = self.child(parent, name)?;
        let other = self.child(to.newdir, new_name).ok();
        if to.flags & libc::RENAME_EXCHANGE != 0 {
            let other = other.ok_or(Errno::NOENT)?;
            self.take(parent, name)?;
            self.take(to.newdir, new_name)?;
            self.add(parent, name, other)?;
            return self.add(to.newdir, new_name, number);
        }
        if to.flags & libc::RENAME_NOREPLACE != 0 && other.is_some() {
            return Err(Errno::EXIST);
        }
        if other == Some(number) {
            return Ok(());
        }
        let is_dir = self.inode(number)?.attr.mode & libc::S_IFMT == libc::S_IFDIR;
        if other.is_some() {
            self.unlink(to.newdir, new_name, is_dir)?;
        }
        self.take(parent, name)?;
        self.add(to.newdir, new_name, number)?;
        if is_dir {
            self.inode(parent)?.attr.nlink -= 1;
            self.inode(to.newdir)?.attr.nlink += 1;
            self.inode(number)?.parent = to.newdir;
        }
        Ok(())
    }

    fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        let inode = self.inode(number)?;
        let end = offset as usize + data.len();
        if inode.data.len() < end {
            inode.data.resize(end, 0);
        }
        inode.data[offset as usize..end].copy_from_slice(data);
        inode.written.extend(offset / BLOCK..(end as u64).div_ceil(BLOCK));
        inode.sized();
        self.touch(number)
    }

    fn setattr(&mut self, number: u64, set: &SetattrIn) -> Result<()> {
        let (seconds, ns) = now();
        let inode = self.inode(number)?;
        let has = |bit: u32| set.valid & bit != 0;
        if has(fattr::SIZE) {
            inode.data.resize(set.size as usize, 0);
            inode.written.retain(|block| *block < set.size.div_ceil(BLOCK));
            inode.sized();
            (inode.attr.mtime, inode.attr.mtimensec) = (seconds, ns);
        }
        let attr = &mut inode.attr;
        if has(fattr::KILL_SUIDGID) {
            attr.mode &= !(libc::S_ISUID | libc::S_ISGID);
        }
        if has(fattr::MODE) {
            attr.mode = attr.mode & libc::S_IFMT | set.mode & !libc::S_IFMT;
        }
        if has(fattr::UID) {
            attr.uid = set.uid;
        }
        if has(fattr::GID) {
            attr.gid = set.gid;
        }
        if has(fattr::ATIME) {
            (attr.atime, attr.atimensec) = if has(fattr::ATIME_NOW) {
                (seconds, ns)
            } else {
                (set.atime, set.atimensec)
            };
        }
        if has(fattr::MTIME) {
            (attr.mtime, attr.mtimensec) = if has(fattr::MTIME_NOW) {
                (seconds, ns)
            } else {
                (set.mtime, set.mtimensec)
            };
        }
        (attr.ctime, attr.ctimensec) = (seconds, ns);
        Ok(())
    }

    fn seek(&mut self, number: u64, seek: &LseekIn) -> Result<u64> {
        let inode = self.inode(number)?;
        let size = inode.data.len() as u64;
        if seek.offset >= size {
            return Err(Errno::NXIO);
        }
        let wants_data = seek.whence == libc::SEEK_DATA as u32;
        let from = seek.offset / BLOCK;
        let found = (from..size.div_ceil(BLOCK)).find(|block| inode.written.contains(block) == wants_data);
        match (found, wants_data) {
            (Some(block), _) => Ok((block * BLOCK).max(seek.offset)),
            (None, true) => Err(Errno::NXIO),
            (None, false) => Ok(size),
        }
    }

    fn fallocate(&mut self, number: u64, change: &FallocateIn) -> Result<()> {
        let inode = self.inode(number)?;
        let (start, end) = (change.offset, change.offset + change.length);
        let keeps_size = change.mode & libc::FALLOC_FL_KEEP_SIZE as u32 != 0;
        match change.mode & !(libc::FALLOC_FL_KEEP_SIZE as u32) {
            0 => {
                if !keeps_size && inode.data.len() < end as usize {
                    inode.data.resize(end as usize, 0);
                }
            }
            mode if mode == libc::FALLOC_FL_PUNCH_HOLE as u32 => {
                let size = inode.data.len();
                let (from, to) = (size.min(start as usize), size.min(end as usize));
                inode.data[from..to].fill(0);
                inode
                    .written
                    .retain(|block| *block < start.div_ceil(BLOCK) || *block >= end / BLOCK);
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        inode.sized();
        Ok(())
    }
}

impl Inode {
    fn sized(&mut self) {
        self.attr.size = self.data.len() as u64;
        self.attr.blocks = self.written.len() as u64 * BLOCK / 512;
    }
}

/// The kind of an entry in listings (`DT_`).
fn kind(mode: u32) -> u32 {
    (mode & libc::S_IFMT) >> 12
}

impl Memory {
    pub fn new(behaviour: Behaviour) -> Self {
        let mut state = State::default();
        let root = state.make(libc::S_IFDIR | 0o755, 0, (0, 0), 1);
        assert_eq!(root, 1);
        Self {
            state: Mutex::new(state),
            behaviour,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Changes a file behind the kernel's back; its inode.
    pub fn change(&self, name: &[u8], data: &[u8]) -> u64 {
        let mut state = self.lock();
        let number = state.child(1, name).expect("the file is in the root");
        state.write(number, 0, data).expect("it exists");
        number
    }

    /// Removes a file behind the kernel's back; its inode.
    pub fn remove(&self, name: &[u8]) -> u64 {
        let mut state = self.lock();
        let number = state.child(1, name).expect("the file is in the root");
        state.unlink(1, name, false).expect("it exists");
        number
    }

    /// How many slow calls wait.
    pub fn slow(&self) -> usize {
        self.lock().slow.len()
    }

    /// Makes a file behind the kernel's back.
    pub fn add(&self, name: &[u8], data: &[u8]) {
        let mut state = self.lock();
        let number = state.make(libc::S_IFREG | 0o644, 0, (0, 0), 1);
        state.add(1, name, number).expect("the name is new");
        state.write(number, 0, data).expect("it exists");
    }

    /// Answers all slow calls with the same data.
    pub fn release(&self, data: &[u8]) {
        let calls = std::mem::take(&mut self.lock().slow);
        for call in calls {
            assert!(self.lock().interrupts.end(call.header().unique));
            call.reply(&Reply::Data(data));
        }
    }

    /// Drops all slow calls.
    pub fn abandon(&self) {
        let calls = std::mem::take(&mut self.lock().slow);
        drop(calls);
    }

    pub fn serve(&self, call: Call) {
        let result = self.answer(&call);
        match result {
            Ok(Answer::Reply(reply)) => call.reply(&reply),
            Ok(Answer::Read(number, read)) => self.read(call, number, &read),
            Ok(Answer::List(number, read, is_plus)) => self.list(call, number, &read, is_plus),
            Ok(Answer::Bytes(bytes)) => call.reply(&Reply::Data(&bytes)),
            Err(errno) => call.fail(errno),
        }
    }

    fn read(&self, call: Call, number: u64, read: &ReadIn) {
        let mut state = self.lock();
        if state.child(1, SLOW) == Ok(number) {
            match state.interrupts.begin(call.header().unique) {
                true => state.slow.push(call),
                false => call.fail(Errno::INTR),
            }
            return;
        }
        call.reply_with(read.size as usize, |place| {
            let data = &state.inode(number)?.data;
            let from = data.len().min(read.offset as usize);
            let count = place.len().min(data.len() - from);
            place[..count].copy_from_slice(&data[from..from + count]);
            Ok(count)
        });
    }

    fn list(&self, call: Call, number: u64, read: &ReadIn, is_plus: bool) {
        let mut state = self.lock();
        call.reply_with(read.size as usize, |place| {
            let mut list = Directory::new(place);
            let dir = state.inode(number)?;
            let dots = [(b".".to_vec(), number), (b"..".to_vec(), dir.parent)];
            let dots = dots
                .into_iter()
                .enumerate()
                .map(|(at, entry)| (at as u64 + 1, entry));
            // Places begin at 3.
            let named = dir
                .entries
                .iter()
                .map(|(place, entry)| (place + 2, entry.clone()));
            let entries: Vec<_> = dots
                .chain(named)
                .filter(|(at, _)| *at > read.offset)
                .take(2000)
                .collect();
            for (at, (name, child)) in entries {
                let inode = state.inode(child)?;
                let is_dot = at <= 2;
                let has_room = match is_plus {
                    false => list.push(child, at, kind(inode.attr.mode), &name),
                    true => {
                        let mut entry = self.behaviour.entry(inode);
                        if is_dot {
                            entry.nodeid = 0;
                        }
                        let has_room = list.push_plus(&entry, at, kind(inode.attr.mode), &name);
                        inode.lookups += u64::from(has_room && !is_dot);
                        has_room
                    }
                };
                if !has_room {
                    break;
                }
            }
            Ok(list.bytes())
        });
    }

    fn answer<'a>(&self, call: &Call) -> Result<Answer<'a>> {
        let header = *call.header();
        let number = header.nodeid;
        let mut state = self.lock();
        let state = &mut *state;
        let entry = |state: &mut State, child: u64| -> Result<EntryOut> {
            let inode = state.inode(child)?;
            inode.lookups += 1;
            Ok(self.behaviour.entry(inode))
        };
        let owner = (header.uid, header.gid);
        let reply = match call.operation() {
            Operation::Lookup { name } => match state.child(number, name) {
                Ok(child) => Reply::Entry(entry(state, child)?),
                Err(Errno::NOENT) if self.behaviour.valid_s > 0 => {
                    state.counts.lookups_of_missing += 1;
                    // A negative entry.
                    Reply::Entry(EntryOut {
                        entry_valid: self.behaviour.valid_s,
                        ..EntryOut::default()
                    })
                }
                Err(errno) => {
                    state.counts.lookups_of_missing += 1;
                    return Err(errno);
                }
            },
            Operation::Forget(forget) => {
                state.forget(number, forget.nlookup);
                Reply::Empty
            }
            Operation::BatchForget(forgets) => {
                forgets.for_each(|one| state.forget(one.nodeid, one.nlookup));
                Reply::Empty
            }
            Operation::Interrupt(interrupt) => {
                state.counts.interrupts += 1;
                if state.interrupts.interrupt(interrupt.unique) {
                    let at = state
                        .slow
                        .iter()
                        .position(|call| call.header().unique == interrupt.unique);
                    let call = state.slow.swap_remove(at.expect("it waits"));
                    call.fail(Errno::INTR);
                }
                Reply::Empty
            }
            Operation::Getattr(_) => Reply::Attr(self.behaviour.attr(state.inode(number)?)),
            Operation::Setattr(set) => {
                state.setattr(number, &set)?;
                Reply::Attr(self.behaviour.attr(state.inode(number)?))
            }
            Operation::Statx(_) => Reply::Statx(statx(&state.inode(number)?.attr)),
            Operation::Readlink => return Ok(Answer::Bytes(state.inode(number)?.data.clone())),
            Operation::Symlink { name, target } => {
                let child = state.make(libc::S_IFLNK | 0o777, 0, owner, number);
                state.inode(child)?.data = target.to_vec();
                state.inode(child)?.sized();
                state.add(number, name, child)?;
                Reply::Entry(entry(state, child)?)
            }
            Operation::Mknod { argument, name } => {
                let child = state.make(argument.mode, argument.rdev, owner, number);
                state.add(number, name, child)?;
                Reply::Entry(entry(state, child)?)
            }
            Operation::Mkdir { argument, name } => {
                let child = state.make(libc::S_IFDIR | argument.mode, 0, owner, number);
                state.add(number, name, child)?;
                state.inode(number)?.attr.nlink += 1;
                Reply::Entry(entry(state, child)?)
            }
            Operation::Unlink { name } => {
                state.unlink(number, name, false)?;
                Reply::Empty
            }
            Operation::Rmdir { name } => {
                state.unlink(number, name, true)?;
                Reply::Empty
            }
            Operation::Rename {
                argument,
                name,
                new_name,
            } => {
                state.rename(number, name, &argument, new_name)?;
                Reply::Empty
            }
            Operation::Link { argument, name } => {
                state.add(number, name, argument.oldnodeid)?;
                state.inode(argument.oldnodeid)?.attr.nlink += 1;
                Reply::Entry(entry(state, argument.oldnodeid)?)
            }
            Operation::Open(_) | Operation::Opendir(_) => {
                state.counts.opens += 1;
                if self.behaviour.no_open {
                    return Err(Errno::NOSYS);
                }
                if let Operation::Open(open) = call.operation()
                    && open.flags & libc::O_TRUNC as u32 != 0
                {
                    let set = SetattrIn {
                        valid: fattr::SIZE,
                        ..SetattrIn::default()
                    };
                    state.setattr(number, &set)?;
                }
                state.inode(number)?.opened += 1;
                let mut opened = opened();
                if state.child(1, SLOW) == Ok(number) {
                    // Reads of the cache are not interrupted by signals that do not kill.
                    opened.open_flags |= fopen::DIRECT_IO;
                }
                Reply::Opened(opened)
            }
            Operation::Create { .. } if self.behaviour.no_open => return Err(Errno::NOSYS),
            Operation::Create { argument, name } => {
                let child = create(state, &argument, owner, number);
                state.add(number, name, child)?;
                Reply::Created(entry(state, child)?, opened())
            }
            Operation::Tmpfile(argument) => {
                let child = create(state, &argument, owner, number);
                state.inode(child)?.attr.nlink = 0;
                Reply::Created(entry(state, child)?, opened())
            }
            Operation::Read(read) => return Ok(Answer::Read(number, read)),
            Operation::Readdir(read) => return Ok(Answer::List(number, read, false)),
            Operation::Readdirplus(read) => return Ok(Answer::List(number, read, true)),
            Operation::Write { argument, data } => {
                state.write(number, argument.offset, data)?;
                Reply::Written(argument.size)
            }
            Operation::Lseek(seek) => Reply::Offset(state.seek(number, &seek)?),
            Operation::CopyFileRange(copy) => {
                let data = &state.inode(number)?.data;
                let from = data.len().min(copy.off_in as usize);
                let to = data.len().min(from + copy.len as usize);
                let data = data[from..to].to_vec();
                state.write(copy.nodeid_out, copy.off_out, &data)?;
                Reply::Copied(data.len() as u64)
            }
            Operation::Statfs => Reply::Statfs(Kstatfs {
                blocks: 1 << 20,
                bfree: 1 << 19,
                bavail: 1 << 19,
                files: 1000,
                ffree: 1000 - state.inodes.len() as u64 % 1000,
                bsize: BLOCK as u32,
                frsize: BLOCK as u32,
                namelen: 255,
                ..Kstatfs::default()
            }),
            Operation::Release(_) | Operation::Releasedir(_) => {
                let inode = state.inode(number)?;
                inode.opened = inode.opened.checked_sub(1).expect("it was opened");
                state.reap(number);
                Reply::Empty
            }
            Operation::Flush(_) => {
                state.counts.flushes += 1;
                Reply::Empty
            }
            Operation::Fsync(_) | Operation::Fsyncdir(_) | Operation::Syncfs | Operation::Destroy => {
                Reply::Empty
            }
            Operation::Setxattr {
                argument,
                name,
                value,
            } => {
                let xattrs = &mut state.inode(number)?.xattrs;
                let exists = xattrs.contains_key(name);
                if argument.flags & libc::XATTR_CREATE as u32 != 0 && exists {
                    return Err(Errno::EXIST);
                }
                if argument.flags & libc::XATTR_REPLACE as u32 != 0 && !exists {
                    return Err(Errno::NODATA);
                }
                xattrs.insert(name.to_vec(), value.to_vec());
                Reply::Empty
            }
            Operation::Getxattr { argument, name } => {
                let value = state.inode(number)?.xattrs.get(name).cloned();
                return sized(value.ok_or(Errno::NODATA)?, argument.size);
            }
            Operation::Listxattr(argument) => {
                let names = state.inode(number)?.xattrs.keys();
                return sized(
                    names.flat_map(|name| [name, &b"\0"[..]].concat()).collect(),
                    argument.size,
                );
            }
            Operation::Removexattr { name } => {
                let taken = state.inode(number)?.xattrs.remove(name);
                taken.map(|_| Reply::Empty).ok_or(Errno::NODATA)?
            }
            Operation::Fallocate(change) => {
                state.fallocate(number, &change)?;
                Reply::Empty
            }
            // The kernel keeps locks itself, and none of the rest is asked for twice.
            _ => return Err(Errno::NOSYS),
        };
        Ok(Answer::Reply(reply))
    }
}

#[allow(clippy::large_enum_variant, reason = "it lives for one call")]
enum Answer<'a> {
    Reply(Reply<'a>),
    Read(u64, ReadIn),
    List(u64, ReadIn, bool),
    Bytes(Vec<u8>),
}

fn opened() -> OpenOut {
    OpenOut {
        open_flags: fopen::KEEP_CACHE | fopen::NOFLUSH,
        ..OpenOut::default()
    }
}

fn create(state: &mut State, argument: &CreateIn, owner: (u32, u32), parent: u64) -> u64 {
    let child = state.make(argument.mode, 0, owner, parent);
    state.inodes.get_mut(&child).expect("it was made").opened = 1;
    child
}

fn sized<'a>(value: Vec<u8>, size: u32) -> Result<Answer<'a>> {
    match size {
        0 => Ok(Answer::Reply(Reply::Size(value.len() as u32))),
        size if (size as usize) < value.len() => Err(Errno::RANGE),
        _ => Ok(Answer::Bytes(value)),
    }
}

fn statx(attr: &Attr) -> StatxOut {
    let time = |seconds: u64, ns: u32| SxTime {
        tv_sec: seconds as i64,
        tv_nsec: ns,
        reserved: 0,
    };
    let stat = Statx {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime, attr.atimensec),
        btime: time(12345, 678),
        ctime: time(attr.ctime, attr.ctimensec),
        mtime: time(attr.mtime, attr.mtimensec),
        ..Statx::default()
    };
    StatxOut {
        stat,
        ..StatxOut::default()
    }
}

impl Behaviour {
    fn attr(&self, inode: &Inode) -> AttrOut {
        AttrOut {
            attr_valid: self.valid_s,
            attr: inode.attr,
            ..AttrOut::default()
        }
    }

    fn entry(&self, inode: &Inode) -> EntryOut {
        EntryOut {
            nodeid: inode.attr.ino,
            generation: 1,
            entry_valid: self.valid_s,
            attr_valid: self.valid_s,
            attr: inode.attr,
            ..EntryOut::default()
        }
    }
}
