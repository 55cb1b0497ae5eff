//! Files of an unmodified program that an area makes durable (docs/format/files.md): what the preload calls for each
//! descriptor that it follows.
//!
//! Every change is made to the file itself, as the program asked, and logged, under the file's lock, so that the log has the order of
//! the changes of a file, and of those of a thread. A sync makes the log durable. A thread of its own shortens the log by
//! checkpoints.
//!
//! Locks are taken in this order: rounds, the files' by their numbers, names, state, the area's. No system call that may take long is
//! made under the last two.

mod broker;
mod error;
mod export;
mod identity;
mod lease;
mod opened;
mod pattern;
mod program;
mod recover;
mod rights;
mod root;
mod shared;

pub use broker::{Broker, Wish, is_shared, serve, serve_at};
pub use error::FilesError;
pub use export::export;
pub use identity::prepare;
pub use os::is_kept;
pub use pattern::{DEFAULT_PATTERNS, matches};
pub use program::{end_as, run_to_end};
pub use recover::{Recovered, forget, restore};
pub use root::{change_root, forked, whole};
pub use store::files::FileId;

use crate::area::{Area, AreaOptions};
use crate::awake;
use crate::backend::NvmTiming;
use crate::error::AreaError;
use crate::own;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, Ordering, PoisonError, thread};
use lease::Lease;
use opened::{Opened, keep_directories, open_plain, sync_directory, sync_file};
use shared::{Shared, State, failed};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use store::Op;
use store::files::{Claim, FileLimits, Files, SyncBy};

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

/// The files of this process that its area makes durable.
pub struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
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
        Self::on(area)
    }

    /// The same of an area in a file that somebody else has opened for this process.
    pub fn open_file_of_area(file: File) -> Result<(Self, Recovered), FilesError> {
        Self::on(Area::from_file(file, &AreaOptions::new(0))?)
    }

    fn on(area: Area) -> Result<(Self, Recovered), FilesError> {
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
            names: Mutex::new(()),
            directories: Mutex::new(BTreeSet::new()),
            until_ns: AtomicU64::new(0),
            state: Mutex::new(State {
                files: Files::new(limits, FileId(writes.positions()?.end + 1)),
                opened: BTreeMap::new(),
                directories: BTreeMap::new(),
                plain: BTreeMap::new(),
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
        let shared = &*self.shared;
        let names = shared.names();
        let Some((description, size)) = identity::describe(file)? else {
            return Ok(None);
        };
        // SAFETY: no memory is involved.
        let syncs = unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_DSYNC != 0;
        let path = description.path.clone();
        let mut state = shared.lock();
        let (id, is_new) = state.files.open(description, size);
        if is_new {
            let Ok(opened) = Opened::new(fd) else {
                state.files.close(id);
                return Ok(None);
            };
            state.opened.insert(id, Arc::new(opened));
            state.keep_directory(&path);
        }
        if syncs
            && !state.plain.contains_key(&id)
            && let Some(plain) = open_plain(fd)
        {
            state.plain.insert(id, Arc::new(plain));
        }
        if !is_new && is_truncated && !state.files.has_size(id, 0) {
            let change = state.files.resize(id, 0);
            shared.log(&mut state, id, change, &[]);
            drop((state, names));
            self.sync(id)?;
        } else if is_new && size == 0 {
            drop((state, names));
            let mut durable = shared.directories.lock().unwrap_or_else(PoisonError::into_inner);
            keep_directories(Path::new(OsStr::from_bytes(&path)), file, &mut durable)?;
        }
        Ok(Some(id))
    }

    /// Another descriptor for it.
    pub fn duplicate(&self, id: FileId) {
        self.shared.lock().files.duplicate(id);
    }

    /// A descriptor was closed.
    pub fn close_file(&self, id: FileId) {
        let opened = self.shared.opened(id);
        if opened.is_some_and(|it| it.is_duplicate) && self.opens(id) == 1 {
            // A failure is kept, and told to whoever syncs next.
            let _ = self.shared.settle(id);
        }
        let mut state = self.shared.lock();
        state.files.close(id);
        state.close_if_unneeded(id);
        let closed = state.files.closed();
        drop(state);
        if closed > 0 && self.shared.is_crowded(closed) {
            // A failure is kept, and told to whoever syncs next.
            let _ = self.shared.checkpoint();
        }
    }

    /// Writes by `make`, which returns how many of the bytes were written, or less than 0, and logs it.
    pub fn write(&self, fd: RawFd, id: FileId, at: At, data: &[&[u8]], make: impl Fn() -> isize) -> isize {
        let write = |_: &Opened| {
            let written = make();
            if written > 0 {
                self.log_write(fd, id, at, data, written as usize);
            }
            written
        };
        self.shared.change(id, write).unwrap_or_else(&make)
    }

    /// Logs a write that was made.
    fn log_write(&self, fd: RawFd, id: FileId, at: At, data: &[&[u8]], written: usize) {
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
        WRITTEN.set(Some(id));
        let mut state = self.shared.lock();
        if state.files.opens(id).is_none() {
            // Another thread has closed its last descriptor meanwhile.
            return;
        }
        let Some(offset) = offset else {
            state.files.missed(id);
            return;
        };
        let data = cut(data, written);
        let change = state.files.write(id, offset, count, data.len() as u32);
        self.shared.log(&mut state, id, change, &data);
        if state.files.is_checkpoint_due() {
            self.shared.due.notify_one();
        }
    }

    /// Writes for a descriptor that was opened with O_SYNC or O_DSYNC, so that the kernel does not sync: as [`Journal::write`], by a
    /// descriptor of the journal's own. The program's keeps its flags, for whoever inherits it. `None` if there is no such
    /// descriptor, as when the program may not open its file again; or if the file was given up, as others may move the cursor.
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
        let write = |_: &Opened| {
            if self.shared.lock().files.is_removed(id) {
                return None;
            }
            let written = write_plain(plain.as_fd(), fd, at, appends, &parts);
            if written > 0 {
                self.log_write(fd, id, at, data, written as usize);
            }
            Some(written)
        };
        self.shared.change(id, write).flatten()
    }

    /// Changes the file's size by `make`, which returns 0 if it did; durable on return if it is less then.
    pub fn resize(&self, id: FileId, size: u64, make: impl Fn() -> i32) -> io::Result<i32> {
        let shared = &*self.shared;
        let resize = |opened: &Opened| -> io::Result<(i32, bool)> {
            if shared.lock().files.opens(id).is_none() {
                return Ok((make(), false));
            }
            if shared.lock().files.is_falling_behind(id) {
                // Older changes of the log must not be made to the shorter file.
                shared.settle_held(id)?;
            }
            let before = identity::size(opened)?;
            let result = make();
            if result != 0 || before == size {
                return Ok((result, false));
            }
            shared.resized(id, size);
            Ok((result, size < before))
        };
        let (result, is_shorter) = shared.change(id, resize).unwrap_or_else(|| Ok((make(), false)))?;
        if is_shorter {
            self.sync(id)?;
        }
        Ok(result)
    }

    /// The file's size may have grown by `make`, as `posix_fallocate` does.
    pub fn grow(&self, id: FileId, make: impl Fn() -> i32) -> io::Result<i32> {
        let grow = |opened: &Opened| {
            let before = identity::size(opened)?;
            let result = make();
            let size = identity::size(opened)?;
            if size != before {
                self.shared.resized(id, size);
            }
            Ok(result)
        };
        self.shared.change(id, grow).unwrap_or_else(|| Ok(make()))
    }

    /// Makes everything durable that was written to the file.
    pub fn sync(&self, id: FileId) -> io::Result<()> {
        let shared = &*self.shared;
        let Some(opened) = shared.opened(id) else {
            // Nobody has it open, and the area has nothing of it.
            return match shared.lock().has_failed {
                true => Err(failed()),
                false => Ok(()),
            };
        };
        // A change that is under way is waited for: it may have been made, and not logged.
        let changing = opened.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (by, claim) = {
            let status = identity::status(&*opened)?;
            let mut state = shared.lock();
            if state.has_failed {
                return Err(failed());
            }
            if state.files.opens(id).is_none() {
                // A checkpoint has synced it, and nobody has it open.
                return Ok(());
            }
            if !state.files.has_size(id, status.size) {
                state.files.surprise(id, status.size);
            }
            state.files.has_links(id, status.links);
            state.files.has_owner(id, status.owner);
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
                drop(changing);
                self.sync_log(claim)
            }
            SyncBy::Settle => shared.settle_held(id),
            SyncBy::FileSystem => {
                drop(changing);
                sync_file(&*opened)
            }
        }
    }

    fn sync_log(&self, claim: Option<Claim>) -> io::Result<()> {
        let shared = &*self.shared;
        let result = shared.area.sync();
        if result.is_err() {
            shared.lock().has_failed = true;
        } else if let Some(claim) = claim {
            let mut state = shared.lock();
            state.lease.is_durable(claim);
            shared.until_ns.store(state.lease.until_ns(), Ordering::Relaxed);
        }
        result.map_err(|_| failed())
    }

    /// Times or attributes of the file have changed, which the log has not: the file system makes its next sync.
    pub fn touched(&self, id: FileId) {
        let mut state = self.shared.lock();
        if state.files.opens(id).is_some() {
            state.files.missed(id);
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
        let all: Vec<_> = self.shared.lock().files.all().collect();
        all.into_iter().try_for_each(|id| self.give_up(id))
    }

    /// Gives the file up: from now on it is the file system's alone, which has all of it.
    pub fn give_up(&self, id: FileId) -> io::Result<()> {
        let give_up = |_: &Opened| {
            self.shared.settle_held(id)?;
            self.shared.lock().files.remove(id);
            Ok(())
        };
        self.shared.change(id, give_up).unwrap_or(Ok(()))
    }

    /// The file could not be synced: no sync succeeds from now on, and recovery makes its changes again.
    #[doc(hidden)]
    pub fn sync_failed(&self, id: FileId) {
        self.shared.fail(id);
    }

    /// The area has nothing of any file, until one changes.
    pub fn settle_all(&self) -> io::Result<()> {
        let all: Vec<_> = self.shared.lock().files.all().collect();
        all.into_iter().try_for_each(|id| self.shared.settle(id))
    }

    /// Removes a file by `make`, which returns 0 if it did.
    pub fn remove(&self, id: FileId, make: impl Fn() -> i32) -> io::Result<i32> {
        let shared = &*self.shared;
        let remove = |opened: &Opened| {
            if identity::links(opened)? > 1 {
                shared.settle_held(id)?;
            }
            let (number, description) = {
                let mut state = shared.lock();
                if state.has_failed {
                    return Err(failed());
                }
                if state.files.opens(id).is_none() {
                    // It is nobody's any more.
                    drop(state);
                    return match make() {
                        0 => Ok(0),
                        _ => Err(io::Error::last_os_error()),
                    };
                }
                (state.files.number(id), state.files.remove(id))
            };
            if let Some(data) = description {
                let (map, key) = (shared.map, number.key());
                let put = Op::Put {
                    map,
                    key: &key,
                    data: &data,
                };
                let done = shared.area.enter(&[put]).and_then(|_| shared.area.sync());
                if done.is_err() {
                    shared.lock().files.restore(id);
                    shared.settle_held(id)?;
                    shared.lock().files.remove(id);
                }
            }
            let result = make();
            if result != 0 {
                let failure = io::Error::last_os_error();
                shared.lock().files.restore(id);
                // Until the area forgets it, recovery would remove what is still there.
                shared.settle_held(id)?;
                return Err(failure);
            }
            shared.lock().close_if_unneeded(id);
            Ok(result)
        };
        shared.change(id, remove).unwrap_or_else(|| Ok(make()))
    }

    /// Renames by `make`, which returns 0 if it did. Nobody gets a file with one of the names before the renaming is durable, if the area has
    /// one of the files or may have one by such a name later.
    pub fn rename(&self, renaming: &Renaming<'_>, make: impl Fn() -> i32) -> io::Result<i32> {
        let shared = &*self.shared;
        let (from, to) = (
            renaming.from.as_os_str().as_bytes(),
            renaming.to.as_os_str().as_bytes(),
        );
        // Recovery must not take the file that comes to a name for an older state of one that was removed from there.
        let named = |state: &State| -> BTreeSet<FileId> {
            let names = [from, to].into_iter();
            let all = names.flat_map(|name| state.files.at(name).chain(state.files.removed_at(name)));
            all.collect()
        };
        loop {
            let ids = named(&shared.lock());
            if ids.is_empty() {
                let _names = shared.names();
                if !named(&shared.lock()).is_empty() {
                    continue;
                }
                return change_names(&[renaming.from, renaming.to], renaming.is_chosen, make);
            }
            let opened: Vec<_> = ids.iter().map(|&id| shared.opened(id)).collect();
            let _changing: Vec<_> = opened
                .iter()
                .flatten()
                .map(|it| it.changing.lock().unwrap_or_else(PoisonError::into_inner))
                .collect();
            ids.iter().try_for_each(|&id| shared.settle_held(id))?;
            let _names = shared.names();
            // What came meanwhile is settled first, too.
            let is_settled = {
                let state = shared.lock();
                named(&state).is_subset(&ids)
            };
            if !is_settled {
                continue;
            }
            let result = make();
            if result != 0 || from == to {
                return Ok(result);
            }
            self.renamed(&ids, from, to, renaming.swaps);
            // Changes are logged for the new name from now on, so it has to be there.
            let file = opened.iter().flatten().next().map(|it| it.as_fd());
            sync_names(&[renaming.from, renaming.to], file)?;
            return Ok(result);
        }
    }

    /// Makes another name of a file by `make`, which returns 0 if it did. A file that was removed from that name is forgotten before, as by
    /// [`Journal::rename`]. If the area may have the file by one of its names, `is_chosen`, the new one is durable.
    pub fn link(&self, to: &Path, is_chosen: bool, make: impl Fn() -> i32) -> io::Result<i32> {
        let shared = &*self.shared;
        let removed: Vec<_> = {
            let state = shared.lock();
            state.files.removed_at(to.as_os_str().as_bytes()).collect()
        };
        removed.into_iter().try_for_each(|id| shared.settle(id))?;
        change_names(&[to], is_chosen, make)
    }

    /// The files go by their new names.
    fn renamed(&self, ids: &BTreeSet<FileId>, from: &[u8], to: &[u8], swaps: bool) {
        let mut state = self.shared.lock();
        let at = |state: &State, path: &[u8]| -> Vec<FileId> {
            state.files.at(path).filter(|id| ids.contains(id)).collect()
        };
        let (moved, replaced) = (at(&state, from), at(&state, to));
        for id in replaced {
            if swaps {
                state.files.renamed(id, to, from);
            } else {
                state.files.remove(id);
            }
        }
        for id in moved {
            state.files.renamed(id, from, to);
            let path = state.files.path(id).to_vec();
            state.keep_directory(&path);
        }
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

/// A rename, or an exchange of two names. Paths as for [`Journal::find`].
pub struct Renaming<'a> {
    /// The file's name before.
    pub from: &'a Path,
    /// Its name afterwards.
    pub to: &'a Path,
    /// Both names stay.
    pub swaps: bool,
    /// A file of one of the names would be followed. If recovery found a name as it was before, it would take the file there for an older
    /// state of the one that came later.
    pub is_chosen: bool,
}

/// Changes names by `make`, which returns 0 if it did; durably, if files of such names are followed (`is_chosen`).
pub fn change_names(names: &[&Path], is_chosen: bool, make: impl Fn() -> i32) -> io::Result<i32> {
    let result = make();
    if result == 0 && is_chosen {
        sync_names(names, None)?;
    }
    Ok(result)
}

/// Makes durable what was done with the names; `file` is one that has, or had, one of them.
fn sync_names(names: &[&Path], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let parents: BTreeSet<_> = names.iter().filter_map(|name| name.parent()).collect();
    parents
        .into_iter()
        .try_for_each(|parent| sync_directory(parent, file))
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
