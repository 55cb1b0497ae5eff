//! Files of an unmodified program that an area makes durable (docs/format/files.md): what the preload calls for each
//! descriptor that it follows.
//!
//! Every change is made to the file itself, as the program asked, and logged, under one lock, so that the log has the order of
//! the changes. A sync makes the log durable. A thread of its own shortens the log by checkpoints.
//!
//! Locks are taken in this order: rounds, state, the area's.

mod error;
mod identity;
mod lease;
mod pattern;
mod program;
mod recover;

pub use error::FilesError;
pub use pattern::{DEFAULT_PATTERNS, matches};
pub use program::{end_as, run_to_end};
pub use recover::{Recovered, export, forget, restore};
pub use store::files::FileId;

use crate::area::{Area, AreaOptions};
use crate::awake;
use crate::backend::NvmTiming;
use crate::error::AreaError;
use crate::own::{self, Own};
use crate::structures::Log;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, thread};
use identity::Name;
use lease::Lease;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use store::files::{Change, Claim, FileLimits, Files, Round, Settled, SyncBy};
use store::{Op, StructureId};

/// A file that changes by so much between two syncs is synced by the file system: its cost is that of the data then.
const UNSYNCED_BYTES_MAX: u64 = 1 << 20;
/// A checkpoint is due when the log has so much at the latest: it bounds the time of recovery.
const CHECKPOINT_BYTES_MAX: u64 = 512 << 20;

/// Path of the area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file or block device, made with so many bytes if it is not there.
    Path(PathBuf, u64),
    /// Memory of so many bytes that takes the time of NVM: for measuring. Nothing survives the process.
    Nvm(u64, NvmTiming),
}

/// Place of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// To the descriptor's cursor, which is behind it now.
    Cursor,
    /// To an offset.
    Offset(u64),
    /// To the end, wherever that was.
    End,
}

struct State {
    files: Files,
    /// Of each file: open as long as the area has something of it.
    descriptors: BTreeMap<FileId, Arc<Own>>,
    /// Of files that are open with O_SYNC or O_DSYNC: a descriptor without these flags.
    plain: BTreeMap<FileId, Arc<Own>>,
    /// Held whenever a file changes.
    lease: Lease,
    /// The program has had locks of the file (fcntl(2)), which end if any of its descriptors is closed.
    locked: BTreeSet<FileId>,
    /// A file could not be synced, or the area not written.
    has_failed: bool,
    is_closing: bool,
}

impl State {
    /// Closes our descriptors of these files. Those of locked files stay open.
    fn close(&mut self, is_done: impl Fn(FileId) -> bool) {
        for map in [&mut self.descriptors, &mut self.plain] {
            map.retain(|&id, own| {
                if is_done(id) && self.locked.contains(&id) {
                    mem::forget(Arc::clone(own));
                }
                !is_done(id)
            });
        }
    }
}

struct Shared {
    area: Area,
    map: StructureId,
    writes: Log,
    batch_bytes_max: usize,
    rounds: Mutex<()>,
    state: Mutex<State>,
    /// The thread sleeps here.
    due: Condvar,
}

/// The files of this process that its area makes durable.
pub struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

thread_local! {
    /// The file that this thread wrote last, if it has not synced it.
    static WRITTEN: Cell<Option<FileId>> = const { Cell::new(None) };
}

impl Journal {
    /// Opens the area, and brings back to their files what it has of them after a crash.
    pub fn open(source: &Source) -> Result<(Self, Recovered), FilesError> {
        let area = match source {
            Source::Path(path, bytes) => Area::open(path, &AreaOptions::new(*bytes))?,
            Source::Nvm(bytes, timing) => Area::memory(&AreaOptions::new(*bytes), Some(*timing))?,
        };
        let (map, writes) = recover::structures(&area)?;
        let recovered = recover::in_place(&area, map, &writes)?;
        let limits = FileLimits {
            unsynced_bytes_max: UNSYNCED_BYTES_MAX,
            checkpoint_bytes: (area.stats().live_bytes_max / 2).min(CHECKPOINT_BYTES_MAX),
        };
        let shared = Arc::new(Shared {
            map,
            batch_bytes_max: area.batch_bytes_max(),
            rounds: Mutex::new(()),
            state: Mutex::new(State {
                files: Files::new(limits, FileId(writes.positions().end + 1)),
                descriptors: BTreeMap::new(),
                plain: BTreeMap::new(),
                locked: BTreeSet::new(),
                lease: Lease::new(map, Claim::default()),
                has_failed: false,
                is_closing: false,
            }),
            due: Condvar::new(),
            writes,
            area,
        });
        let runner = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("files".into())
            .spawn(move || {
                awake::never();
                runner.run();
            })
            .map_err(AreaError::from)?;
        let thread = Mutex::new(Some(thread));
        if let Some(fd) = shared.area.descriptor() {
            own::mark(fd);
        }
        Ok((Self { shared, thread }, recovered))
    }

    /// Descriptors that a forked child must close: while it has them, nobody else can open the area.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.shared.area.descriptor()
    }

    /// Follows the file of a descriptor that was just opened for writing, `is_truncated` if that emptied it. `None` if it is no
    /// regular file.
    pub fn open_file(&self, fd: RawFd, is_truncated: bool) -> io::Result<Option<FileId>> {
        // SAFETY: the caller's descriptor is open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let Some((description, size)) = identity::describe(file)? else {
            return Ok(None);
        };
        // Before the program can have a lock of the file by this descriptor.
        // SAFETY: no memory is involved.
        let syncs = unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_DSYNC != 0;
        let mut state = self.shared.lock();
        let (id, is_new) = state.files.open(description, size);
        if syncs
            && !state.plain.contains_key(&id)
            && let Some(plain) = open_again(fd)
        {
            state.plain.insert(id, Arc::new(Own::new(plain)));
        }
        if is_new {
            let own = own::duplicate(fd)?;
            state.descriptors.insert(id, Arc::new(Own::new(own)));
        } else if is_truncated && !state.files.has_size(id, 0) {
            let change = state.files.resize(id, 0);
            self.shared.log(&mut state, id, change, &[]);
            drop(state);
            self.sync(id)?;
        }
        Ok(Some(id))
    }

    /// Another descriptor for it.
    pub fn duplicate(&self, id: FileId) {
        self.shared.lock().files.duplicate(id);
    }

    /// A descriptor was closed.
    pub fn close_file(&self, id: FileId) {
        let mut state = self.shared.lock();
        if state.files.close(id) {
            state.close(|it| it == id);
        }
    }

    /// Writes by `make`, which returns how many of the bytes were written, or less than 0, and logs it.
    pub fn write(
        &self,
        fd: RawFd,
        id: FileId,
        at: At,
        data: &[&[u8]],
        make: impl FnOnce() -> isize,
    ) -> isize {
        let mut state = self.shared.held();
        let written = make();
        if written <= 0 {
            return written;
        }
        let count = written as u64;
        let offset = match at {
            At::Offset(offset) => Some(offset),
            // SAFETY: no memory is involved.
            At::Cursor => u64::try_from(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }).ok(),
            // SAFETY: as the caller's, open during the call.
            At::End => identity::size(unsafe { BorrowedFd::borrow_raw(fd) }).ok(),
        };
        let offset = match at {
            At::Offset(_) => offset,
            _ => offset.and_then(|end| end.checked_sub(count)),
        };
        let Some(offset) = offset else {
            state.files.missed(id);
            return written;
        };
        let data = cut(data, written as usize);
        let change = state.files.write(id, offset, count, data.len() as u32);
        self.shared.log(&mut state, id, change, &data);
        WRITTEN.set(Some(id));
        if state.files.is_checkpoint_due() {
            self.shared.due.notify_one();
        }
        written
    }

    /// Writes for a descriptor that was opened with O_SYNC or O_DSYNC, so that the kernel does not sync: as [`Journal::write`], by a
    /// descriptor of the journal's own. The program's keeps its flags, for whoever inherits it. `None` if there is no such
    /// descriptor, as when the program may not open its file again.
    pub fn write_unsynced(
        &self,
        fd: RawFd,
        id: FileId,
        at: At,
        appends: bool,
        data: &[&[u8]],
    ) -> Option<isize> {
        let plain = self.shared.lock().plain.get(&id).map(Arc::clone)?;
        let parts: Vec<_> = data.iter().map(|piece| io::IoSlice::new(piece)).collect();
        let make = || write_plain(plain.as_fd(), fd, at, appends, &parts);
        Some(self.write(fd, id, at, data, make))
    }

    /// Changes the file's size by `make`, which returns 0 if it did; durable on return if it is less then.
    pub fn resize(&self, id: FileId, size: u64, make: impl FnOnce() -> i32) -> io::Result<i32> {
        let mut state = self.shared.held();
        if state.files.is_falling_behind(id) {
            // Older changes of the log must not be made to the shorter file.
            drop(state);
            self.shared.checkpoint()?;
            state = self.shared.held();
        }
        let before = self.shared.size(&state, id)?;
        let result = make();
        if result != 0 || before == size {
            return Ok(result);
        }
        let change = state.files.resize(id, size);
        self.shared.log(&mut state, id, change, &[]);
        drop(state);
        if size < before {
            self.sync(id)?;
        }
        Ok(result)
    }

    /// The file's size may have grown by `make`, as `posix_fallocate` does.
    pub fn grow(&self, id: FileId, make: impl FnOnce() -> i32) -> io::Result<i32> {
        let mut state = self.shared.held();
        let before = self.shared.size(&state, id)?;
        let result = make();
        let size = self.shared.size(&state, id)?;
        if size != before {
            let change = state.files.resize(id, size);
            self.shared.log(&mut state, id, change, &[]);
        }
        Ok(result)
    }

    /// Makes everything durable that was written to the file.
    pub fn sync(&self, id: FileId) -> io::Result<()> {
        let shared = &*self.shared;
        let (by, claim) = {
            let mut state = shared.lock();
            if state.has_failed {
                return Err(failed());
            }
            let size = shared.size(&state, id)?;
            if !state.files.has_size(id, size) {
                state.files.surprise(id, size);
            }
            let change = state.files.announce(id);
            shared.log(&mut state, id, change, &[]);
            let has_written = WRITTEN.get() == Some(id);
            if has_written {
                WRITTEN.set(None);
            }
            let by = state.files.sync(id, has_written);
            let is_logged = by == SyncBy::Log;
            (by, is_logged.then(|| state.lease.renew(&shared.area)).flatten())
        };
        match by {
            SyncBy::Log => {
                let result = shared.area.sync();
                if result.is_err() {
                    shared.lock().has_failed = true;
                } else if let Some(claim) = claim {
                    shared.lock().lease.is_durable(claim);
                }
                result.map_err(|_| failed())
            }
            SyncBy::Checkpoint => shared.checkpoint(),
            SyncBy::FileSystem => {
                let own = shared.lock().descriptors.get(&id).map(Arc::clone);
                sync_file(&*own.ok_or_else(failed)?)
            }
        }
    }

    /// Makes everything durable that was written to any file.
    pub fn sync_all(&self) -> io::Result<()> {
        self.shared.checkpoint()
    }

    /// The file that a path leads to, if it is followed: the path is absolute and has no links in it.
    pub fn find(&self, path: &Path) -> Option<FileId> {
        let state = self.shared.lock();
        let bytes = path.as_os_str().as_bytes();
        let mut all = state.files.at(bytes);
        all.find(|&id| state.files.path(id) == bytes)
    }

    /// The file of a descriptor, if it is followed by whatever name.
    pub fn find_same(&self, fd: RawFd) -> Option<FileId> {
        if fd < 0 {
            return None;
        }
        // SAFETY: the caller's descriptor is open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let inode = identity::inode(file).ok()?;
        if !self.shared.lock().files.has_inode(inode) {
            return None;
        }
        let (description, _) = identity::describe(file).ok()??;
        self.shared.lock().files.find(&description.identity)
    }

    /// The program locks a file by this descriptor.
    pub fn lock_file(&self, fd: RawFd) {
        if let Some(id) = self.find_same(fd) {
            self.shared.lock().locked.insert(id);
        }
    }

    /// True if the area or the program has something of the file.
    pub fn is_known(&self, id: FileId) -> bool {
        self.shared.lock().files.opens(id).is_some()
    }

    /// Descriptors of the program that are open for the file.
    pub fn opens(&self, id: FileId) -> u32 {
        self.shared.lock().files.opens(id).unwrap_or(0)
    }

    /// Gives all files up.
    pub fn give_up_all(&self) -> io::Result<()> {
        let _round = self.shared.round();
        let mut state = self.shared.lock();
        self.shared.quiet_checkpoint(&mut state)?;
        let all: Vec<_> = state.files.all().collect();
        for id in all {
            state.files.remove(id);
        }
        Ok(())
    }

    /// Gives the file up: from now on it is the file system's alone, which has all of it.
    pub fn give_up(&self, id: FileId) -> io::Result<()> {
        let _round = self.shared.round();
        let mut state = self.shared.lock();
        if state.files.opens(id).is_some() {
            self.shared.quiet_checkpoint(&mut state)?;
            state.files.remove(id);
        }
        Ok(())
    }

    /// Removes a file by `make`, which returns 0 if it did.
    pub fn remove(&self, id: FileId, make: impl FnOnce() -> i32) -> io::Result<i32> {
        let shared = &*self.shared;
        let _round = shared.round();
        let mut state = shared.lock();
        shared.hold(&mut state)?;
        if identity::links(shared.own(&state, id)?)? > 1 {
            shared.quiet_checkpoint(&mut state)?;
        }
        if let Some(description) = state.files.remove(id) {
            let key = id.key();
            let put = Op::Put {
                map: shared.map,
                key: &key,
                data: &description,
            };
            let done = shared.area.enter(&[put]).and_then(|_| shared.area.sync());
            if done.is_err() {
                state.files.restore(id);
                shared.quiet_checkpoint(&mut state)?;
                state.files.remove(id);
            }
        }
        let result = make();
        if result != 0 {
            let failure = io::Error::last_os_error();
            state.files.restore(id);
            // Until the area forgets it, recovery would remove what is still there.
            shared.quiet_checkpoint(&mut state)?;
            return Err(failure);
        }
        Ok(result)
    }

    /// Renames by `make`, which returns 0 if it did; `swaps` if both names stay. Paths as for [`Journal::find`].
    pub fn rename(&self, from: &Path, to: &Path, swaps: bool, make: impl FnOnce() -> i32) -> io::Result<i32> {
        let shared = &*self.shared;
        let (from, to) = (from.as_os_str().as_bytes(), to.as_os_str().as_bytes());
        let _round = shared.round();
        let mut state = shared.lock();
        let moved: Vec<_> = state.files.at(from).collect();
        let replaced: Vec<_> = state.files.at(to).collect();
        if moved.is_empty() && replaced.is_empty() {
            drop(state);
            return Ok(make());
        }
        shared.quiet_checkpoint(&mut state)?;
        let result = make();
        if result != 0 || from == to {
            return Ok(result);
        }
        let still = |state: &State, ids: &[FileId]| -> Vec<FileId> {
            let known = ids.iter().filter(|&&id| state.files.opens(id).is_some());
            known.copied().collect()
        };
        for id in still(&state, &replaced) {
            if swaps {
                state.files.renamed(id, to, from);
            } else {
                state.files.remove(id);
            }
        }
        for id in still(&state, &moved) {
            state.files.renamed(id, from, to);
        }
        // Changes are logged for the new name from now on, so it has to be there.
        for name in [from, to] {
            sync_directory_of(name)?;
        }
        Ok(result)
    }

    /// Syncs all files, so that the area has nothing that they lack, and ends. Nothing is followed afterwards.
    pub fn close(&self) -> io::Result<()> {
        let result = self.shared.checkpoint().and_then(|()| self.shared.end_claim());
        self.shared.lock().is_closing = true;
        self.shared.due.notify_one();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Its panic was reported by itself.
            let _ = thread.join();
        }
        result
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(fd) = self.descriptor() {
            own::unmark(fd);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn round(&self) -> MutexGuard<'_, ()> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, in which files may change.
    fn held(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.has_failed || state.lease.hold(&self.area).is_ok() {
            return state;
        }
        // Perhaps the area is full, which a checkpoint ends. If it cannot be written, every sync will fail from now on.
        drop(state);
        let _ = self.checkpoint();
        state = self.lock();
        let _ = state.lease.hold(&self.area);
        state
    }

    /// Files may change from here on. Of a full area it makes room.
    fn hold(&self, state: &mut State) -> io::Result<()> {
        if state.lease.hold(&self.area).is_ok() {
            return Ok(());
        }
        self.quiet_checkpoint(state)?;
        state.lease.hold(&self.area).map_err(|_| failed())
    }

    /// After the last checkpoint: the area has nothing any more, and claims nothing.
    fn end_claim(&self) -> io::Result<()> {
        let key = Claim::PLACE.key();
        let map = self.map;
        let done = self.area.enter(&[Op::Remove { map, key: &key }]);
        done.and_then(|_| self.area.sync()).map_err(|_| failed())
    }

    fn own<'a>(&self, state: &'a State, id: FileId) -> io::Result<BorrowedFd<'a>> {
        let own = state.descriptors.get(&id).ok_or_else(failed)?;
        Ok(own.as_fd())
    }

    fn size(&self, state: &State, id: FileId) -> io::Result<u64> {
        identity::size(self.own(state, id)?)
    }

    /// Logs a change, if the log follows the file, with its data.
    fn log(&self, state: &mut State, id: FileId, change: Option<(Option<Vec<u8>>, Change)>, data: &[&[u8]]) {
        let Some((description, change)) = change else {
            return;
        };
        let (key, header, log) = (id.key(), change.emit(), self.writes.id());
        let mut ops = Vec::with_capacity(2 + data.len());
        let mut bytes = 0;
        if let Some(description) = &description {
            ops.push(Op::Put {
                map: self.map,
                key: &key,
                data: description,
            });
        }
        ops.push(Op::Append { log, data: &header });
        ops.extend(data.iter().map(|data| Op::Append { log, data }));
        for op in &ops {
            bytes += op.bytes();
        }
        let is_logged = bytes <= self.batch_bytes_max && self.area.enter(&ops).is_ok();
        if is_logged {
            state.files.logged(id, bytes as u64);
        } else {
            state.files.missed(id);
        }
    }

    /// Syncs what the log is about, and empties the log up to where it was at the beginning.
    fn checkpoint(&self) -> io::Result<()> {
        let _round = self.round();
        let mut state = self.lock();
        if state.has_failed {
            return Err(failed());
        }
        let end = self.writes.positions().end;
        let round = self.begin_checkpoint(&mut state);
        let syncs: Vec<_> = round
            .files
            .iter()
            .map(|&(id, with_directory)| self.syncing(&state, id, with_directory))
            .collect();
        drop(state);
        let result = syncs.into_iter().try_for_each(|sync| sync.and_then(Syncing::run));
        let mut state = self.lock();
        state.has_failed |= result.is_err();
        result?;
        if self.settle(&mut state, &round, end).is_err() {
            // The area is so full that it does not take a description: with nothing changing, it needs none.
            self.quiet_checkpoint(&mut state)?;
        }
        Ok(())
    }

    /// A checkpoint during which no file is changed: afterwards the area has nothing of any.
    fn quiet_checkpoint(&self, state: &mut State) -> io::Result<()> {
        if state.has_failed {
            return Err(failed());
        }
        let end = self.writes.positions().end;
        let round = self.begin_checkpoint(state);
        let result = round.files.iter().try_for_each(|&(id, with_directory)| {
            self.syncing(state, id, with_directory).and_then(Syncing::run)
        });
        let result = result.and_then(|()| self.settle(state, &round, end));
        state.has_failed |= result.is_err();
        result
    }

    /// Begins a checkpoint, in which every file goes by the name that it has now: others may have renamed or removed it.
    fn begin_checkpoint(&self, state: &mut State) -> Round {
        for (&id, own) in &state.descriptors {
            match identity::name(own) {
                Name::Path(path) => state.files.moved(id, path.as_os_str().as_bytes()),
                Name::None => state.files.vanished(id),
                Name::Unknown => {}
            }
        }
        state.files.begin_checkpoint()
    }

    fn settle(&self, state: &mut State, round: &Round, end: u64) -> io::Result<()> {
        let settled = state.files.end_checkpoint(round);
        let mut owned: Vec<([u8; 8], Option<Vec<u8>>)> = Vec::with_capacity(settled.len());
        owned.extend(settled.into_iter().map(|it| match it {
            Settled::Put(id, description) => (id.key(), Some(description)),
            Settled::Forget(id) => (id.key(), None),
        }));
        let map = self.map;
        let mut ops: Vec<Op<'_>> = owned
            .iter()
            .map(|(key, description)| match description {
                Some(data) => Op::Put { map, key, data },
                None => Op::Remove { map, key },
            })
            .collect();
        ops.push(Op::Trim {
            log: self.writes.id(),
            floor: end,
        });
        self.area.enter(&ops).map_err(|_| failed())?;
        let known: BTreeSet<_> = state.files.all().collect();
        state.close(|id| !known.contains(&id));
        self.area.sync().map_err(|_| failed())
    }

    fn syncing(&self, state: &State, id: FileId, with_directory: bool) -> io::Result<Syncing> {
        let own = state.descriptors.get(&id).ok_or_else(failed)?;
        let path = Path::new(OsStr::from_bytes(state.files.path(id)));
        let directory = path.parent().filter(|_| with_directory);
        Ok(Syncing {
            file: Arc::clone(own),
            directory: directory.map(Path::to_owned),
        })
    }

    /// The thread: checkpoints when they are due.
    fn run(&self) {
        let mut state = self.lock();
        while !state.is_closing {
            if state.files.is_checkpoint_due() && !state.has_failed {
                drop(state);
                // A failure is kept, and told to whoever syncs next.
                let _ = self.checkpoint();
                state = self.lock();
                continue;
            }
            state = self.due.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A file that a checkpoint syncs, and the directory that has its name.
struct Syncing {
    file: Arc<Own>,
    directory: Option<PathBuf>,
}

impl Syncing {
    fn run(self) -> io::Result<()> {
        sync_file(&self.file)?;
        self.directory.map_or(Ok(()), |path| sync_directory(&path))
    }
}

/// Another descriptor of the file for writing, without flags.
fn open_again(fd: RawFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{fd}");
    let file = File::options().write(true).open(path).ok()?;
    own::duplicate(file.as_fd().as_raw_fd()).ok()
}

/// Writes to the place by `plain`, and moves the cursor of `fd` as its own write would.
fn write_plain(plain: BorrowedFd<'_>, fd: RawFd, at: At, appends: bool, parts: &[io::IoSlice<'_>]) -> isize {
    let seek = |offset, whence| {
        // SAFETY: no memory is involved.
        unsafe { libc::lseek(fd, offset, whence) }
    };
    let write = |offset: libc::off_t, flags| {
        // SAFETY: the parts are there during the call, and an `IoSlice` is an `iovec`.
        unsafe {
            let (first, count) = (parts.as_ptr().cast(), parts.len() as libc::c_int);
            libc::pwritev2(plain.as_raw_fd(), first, count, offset, flags)
        }
    };
    match at {
        At::Offset(offset) => write(offset as libc::off_t, 0),
        At::End => write(0, libc::RWF_APPEND),
        At::Cursor if appends => {
            let written = write(0, libc::RWF_APPEND);
            if written > 0 {
                seek(0, libc::SEEK_END);
            }
            written
        }
        At::Cursor => {
            let offset = seek(0, libc::SEEK_CUR);
            let written = write(offset, 0);
            if written > 0 {
                seek(offset + written as libc::off_t, libc::SEEK_SET);
            }
            written
        }
    }
}

fn sync_file(file: &Own) -> io::Result<()> {
    Ok(rustix::fs::fsync(file)?)
}

/// The first `count` bytes of `data`, without empty pieces: a write may be short.
fn cut<'a>(data: &[&'a [u8]], mut count: usize) -> Vec<&'a [u8]> {
    let mut written = Vec::with_capacity(data.len());
    for piece in data {
        let piece = &piece[..piece.len().min(count)];
        count -= piece.len();
        if !piece.is_empty() {
            written.push(piece);
        }
    }
    written
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path) {
        // It was removed with all that was in it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        directory => directory?.sync_all(),
    }
}

fn sync_directory_of(path: &[u8]) -> io::Result<()> {
    let parent = Path::new(OsStr::from_bytes(path)).parent();
    parent.map_or(Ok(()), sync_directory)
}
