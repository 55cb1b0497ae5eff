//! Served descriptors.
//!
//! An [`Opened`] is what Linux calls an open file description: descriptors that are duplicates of each other share it, and so its offset. It is served, or the
//! kernel has it: then all its numbers are real, once and for all.

use super::answers::Done;
use super::real_inode::inode_of;
use crate::forks::Gate;
use crate::state::DESCRIPTORS_MAX;
use crate::{real, tell};
use area::own;
use libc::{c_int, c_uint, off_t};
use libfs::{File, FileSystem};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const SHARDS: usize = 64;
/// Streams use the numbers below unseen.
const NUMBER_MIN: c_int = 3;
/// Flags of an opening that the kernel gets with it.
const KEPT_FLAGS: c_int =
    libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_SYNC | libc::O_DSYNC;
/// What `F_GETFL` shows of every file on machines of 64 bits (`O_LARGEFILE` of Linux; the C library's is 0).
const LARGE_FILE: c_int = 0o100_000;

/// Whether a number is in the table: a look at it is all that other descriptors cost.
static KNOWN: [AtomicBool; DESCRIPTORS_MAX] = [const { AtomicBool::new(false) }; DESCRIPTORS_MAX];
/// Whether a number is known to be no directory of the mount: asking the kernel again would cost each call.
static FOREIGN: [AtomicBool; DESCRIPTORS_MAX] = [const { AtomicBool::new(false) }; DESCRIPTORS_MAX];
/// How many are.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// True if a descriptor is in the table.
pub(crate) fn is_known(fd: c_int) -> bool {
    let place = usize::try_from(fd).ok().and_then(|fd| KNOWN.get(fd));
    place.is_some_and(|it| it.load(Ordering::Relaxed))
}

fn foreign(fd: c_int) -> Option<&'static AtomicBool> {
    usize::try_from(fd).ok().and_then(|fd| FOREIGN.get(fd))
}

/// True if a descriptor is no directory of the mount, as far as this was looked at. It is looked at when a call is made from such a directory.
pub(crate) fn is_foreign(fd: c_int) -> bool {
    foreign(fd).is_none_or(|place| place.load(Ordering::Relaxed))
}

/// A descriptor is no directory of the mount.
pub(crate) fn note_foreign(fd: c_int) {
    if let Some(place) = foreign(fd) {
        place.store(true, Ordering::Relaxed);
    }
}

/// A descriptor is about to be closed: its number may be another one's. One that comes by another way stays foreign, and so the kernel's.
pub(crate) fn forget_foreign(fd: c_int) {
    if let Some(place) = foreign(fd).filter(|place| place.load(Ordering::Relaxed)) {
        place.store(false, Ordering::Relaxed);
    }
}

/// The same of all from `first` to `last`.
pub(crate) fn forget_foreign_range(first: c_uint, last: c_uint) {
    for fd in first..=last.min(DESCRIPTORS_MAX as c_uint - 1) {
        forget_foreign(fd as c_int);
    }
}

/// True if any descriptor is.
pub(crate) fn has_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

fn mark(fd: c_int, is_known: bool) {
    if let Some(place) = usize::try_from(fd).ok().and_then(|fd| KNOWN.get(fd))
        && place.swap(is_known, Ordering::Relaxed) != is_known
    {
        match is_known {
            true => COUNT.fetch_add(1, Ordering::Relaxed),
            false => COUNT.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

/// In a forked child, or when the session has ended: no descriptor is.
pub(crate) fn forget_all() {
    for place in &KNOWN {
        if place.load(Ordering::Relaxed) {
            place.store(false, Ordering::Relaxed);
        }
    }
    COUNT.store(0, Ordering::Relaxed);
}

/// An open file description.
pub(crate) struct Opened {
    pub inode: u64,
    pub is_directory: bool,
    flags: c_int,
    /// An absolute path that led to it.
    path: Option<CString>,
    /// None: the kernel has it.
    file: RwLock<Option<File>>,
    offset: Mutex<u64>,
    numbers: Mutex<Vec<c_int>>,
    /// An opening of the mount's, for what only the kernel can do: it keeps locks.
    beside: Mutex<Option<OwnedFd>>,
    /// Its number; -1 if there is none.
    beside_number: AtomicI32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Opened {
    /// `path` is what it was opened by.
    pub fn new(file: File, flags: c_int, path: &[u8]) -> Arc<Self> {
        let (inode, is_directory) = (file.inode(), file.is_directory());
        let path = path
            .first()
            .filter(|first| **first == b'/')
            .and(CString::new(path).ok());
        Self::of((inode, is_directory), flags, Some(file), path)
    }

    /// A directory that the kernel has.
    pub fn real_directory(inode: u64) -> Arc<Self> {
        Self::of((inode, true), libc::O_RDONLY, None, None)
    }

    fn of(
        (inode, is_directory): (u64, bool),
        flags: c_int,
        file: Option<File>,
        path: Option<CString>,
    ) -> Arc<Self> {
        Arc::new(Self {
            inode,
            is_directory,
            flags: flags & KEPT_FLAGS,
            path,
            file: RwLock::new(file),
            offset: Mutex::new(0),
            numbers: Mutex::new(Vec::new()),
            beside: Mutex::new(None),
            beside_number: AtomicI32::new(-1),
        })
    }

    /// As `F_GETFL` shows them.
    pub fn shown_flags(&self) -> c_int {
        self.flags | LARGE_FILE
    }

    pub fn reads(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    pub fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    pub fn appends(&self) -> bool {
        self.flags & libc::O_APPEND != 0
    }

    /// Where the next read or write is. A call that moves it holds this meanwhile, as on Linux.
    pub fn offset(&self) -> MutexGuard<'_, u64> {
        locked(&self.offset)
    }

    /// Makes a call, if it is served.
    pub fn served<R>(&self, make: impl FnOnce(&File) -> R) -> Option<R> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        file.as_ref().map(make)
    }

    /// An opening of the mount's, as this one is: by the path, so that the kernel knows it by a name; or by its inode, if that has another name, none, or other
    /// permissions by now.
    fn open_real(&self, table: &Table) -> io::Result<OwnedFd> {
        if let Some(opened) = self.path.as_ref().and_then(|path| self.open_by_path(table, path)) {
            return Ok(opened);
        }
        let descriptor = table.files.descriptor(self.inode, self.flags as u32);
        descriptor.map_err(|errno| io::Error::from_raw_os_error(errno.code()))
    }

    fn open_by_path(&self, table: &Table, path: &CStr) -> Option<OwnedFd> {
        let flags = self.flags | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the path ends with a zero.
        let opened = unsafe { real::openat(libc::AT_FDCWD, path.as_ptr(), flags, 0) };
        // SAFETY: new, and nobody else's.
        let opened = (opened >= 0).then(|| unsafe { OwnedFd::from_raw_fd(opened) })?;
        if inode_of(opened.as_raw_fd()) != Some((table.device, self.inode)) {
            return None;
        }
        // It was not to wait if there is a pipe now.
        let kept = self.flags & (libc::O_APPEND | libc::O_NONBLOCK);
        // SAFETY: no memory is involved.
        unsafe { real::fcntl(opened.as_raw_fd(), libc::F_SETFL, kept as libc::c_ulong) };
        Some(opened)
    }

    /// The number of an opening of the mount's beside this one.
    pub fn beside(&self, table: &Table) -> io::Result<c_int> {
        let mut beside = locked(&self.beside);
        if beside.is_none() {
            *beside = Some(own::keep(&self.open_real(table)?)?);
        }
        let number = beside.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        self.beside_number.store(number, Ordering::Relaxed);
        Ok(number)
    }

    /// The kernel gets it: all its numbers become real, with the same offset.
    pub fn leave(&self, table: &Table) -> io::Result<()> {
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            return Ok(());
        }
        let has_beside = self.beside_number.load(Ordering::Relaxed) >= 0;
        let opening = match has_beside {
            true => None,
            false => Some(self.open_real(table)?),
        };
        let real = opening
            .as_ref()
            .map_or(self.beside_number.load(Ordering::Relaxed), AsRawFd::as_raw_fd);
        let offset = *self.offset();
        // SAFETY: no memory is involved.
        if offset > 0 && unsafe { real::lseek(real, offset as off_t, libc::SEEK_SET) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut numbers = locked(&self.numbers);
        for number in numbers.iter() {
            replace(real, *number)?;
        }
        if !has_beside && !self.is_directory {
            for number in numbers.drain(..) {
                table.remove(number);
            }
        }
        drop(numbers);
        *file = None;
        Ok(())
    }

    /// One more number. If it is one that must be real, all are.
    fn add(self: &Arc<Self>, table: &Table, number: c_int) -> io::Result<()> {
        locked(&self.numbers).push(number);
        if usize::try_from(number).is_ok_and(|number| number < DESCRIPTORS_MAX) {
            table.insert(number, Arc::clone(self));
        }
        match number >= NUMBER_MIN && (number as usize) < DESCRIPTORS_MAX {
            true => Ok(()),
            false => self.leave(table),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(beside) = locked(&self.beside).take() {
            own::give_back(beside);
        }
    }
}

/// A number refers to what `real` does, and is closed by `exec` as before.
fn replace(real: c_int, number: c_int) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let made = unsafe {
        let kept = real::fcntl(number, libc::F_GETFD, 0);
        let flags = if kept > 0 && kept & libc::FD_CLOEXEC != 0 {
            libc::O_CLOEXEC
        } else {
            0
        };
        real::dup3(real, number, flags)
    };
    match made {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Which number is which open file description.
pub(crate) struct Table {
    files: FileSystem,
    /// The mount's `st_dev`.
    device: u64,
    /// The mount point: what placeholders are duplicates of.
    anchor: OwnedFd,
    shards: [RwLock<BTreeMap<c_int, Arc<Opened>>>; SHARDS],
    /// Inodes of which the process may have locks of fcntl(2), and the opening that has them.
    locks: Mutex<BTreeMap<u64, c_int>>,
}

impl Table {
    pub fn new(files: FileSystem, device: u64, anchor: OwnedFd) -> Self {
        Self {
            files,
            device,
            anchor,
            shards: std::array::from_fn(|_| RwLock::default()),
            locks: Mutex::default(),
        }
    }

    fn shard(&self, fd: c_int) -> &RwLock<BTreeMap<c_int, Arc<Opened>>> {
        &self.shards[fd as usize % SHARDS]
    }

    pub fn get(&self, fd: c_int) -> Option<Arc<Opened>> {
        if !is_known(fd) {
            return None;
        }
        let shard = self.shard(fd).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(&fd).map(Arc::clone)
    }

    fn insert(&self, fd: c_int, opened: Arc<Opened>) {
        let before = {
            let mut shard = self.shard(fd).write().unwrap_or_else(PoisonError::into_inner);
            shard.insert(fd, opened)
        };
        mark(fd, true);
        drop(before);
    }

    fn remove(&self, fd: c_int) -> Option<Arc<Opened>> {
        mark(fd, false);
        let mut shard = self.shard(fd).write().unwrap_or_else(PoisonError::into_inner);
        shard.remove(&fd)
    }

    /// All numbers, and what they are.
    pub fn all(&self) -> Vec<(c_int, Arc<Opened>)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            found.extend(shard.iter().map(|(fd, opened)| (*fd, Arc::clone(opened))));
        }
        found
    }

    /// The kernel gets all that are chosen by number. The user hears of a file that cannot be had.
    pub fn leave_all(&self, is_chosen: impl Fn(c_int) -> bool) {
        static IS_TOLD: AtomicBool = AtomicBool::new(false);
        for (fd, opened) in self.all() {
            if !is_chosen(fd) {
                continue;
            }
            if let Err(error) = opened.leave(self)
                && !IS_TOLD.swap(true, Ordering::Relaxed)
            {
                tell::tell!("switchyard run: the mount does not give descriptor {fd}: {error}");
            }
        }
    }

    /// The process may have locks of a file by an opening.
    pub fn has_locks(&self, inode: u64, by: c_int) {
        locked(&self.locks).entry(inode).or_insert(by);
    }

    /// A descriptor is about to be closed. The process loses its locks of the file by that (fcntl(2)).
    pub fn close(&self, fd: c_int) {
        let Some(opened) = self.remove(fd) else {
            return;
        };
        locked(&opened.numbers).retain(|number| *number != fd);
        let locks = locked(&self.locks).remove(&opened.inode);
        if let Some(by) = locks {
            let all = libc::flock {
                l_type: libc::F_UNLCK as libc::c_short,
                l_whence: libc::SEEK_SET as libc::c_short,
                l_start: 0,
                l_len: 0,
                l_pid: 0,
            };
            // SAFETY: the lock is there during the call.
            unsafe { real::fcntl(by, libc::F_SETLK, (&raw const all) as libc::c_ulong) };
        }
    }
}

impl Table {
    /// A number for an open file description: a placeholder.
    pub fn number(&self, gate: &Gate, opened: &Arc<Opened>, is_closed_by_exec: bool) -> Done<c_int> {
        let command = match is_closed_by_exec {
            true => libc::F_DUPFD_CLOEXEC,
            false => libc::F_DUPFD,
        };
        // SAFETY: no memory is involved.
        self.adopt(gate, opened, || unsafe {
            real::fcntl(self.anchor.as_raw_fd(), command, 0)
        })
    }

    /// A number that `make` makes is one of an open file description. No child is forked meanwhile.
    pub fn adopt(&self, gate: &Gate, opened: &Arc<Opened>, make: impl FnOnce() -> c_int) -> Done<c_int> {
        gate.without(|| {
            let made = make();
            if made < 0 {
                return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
            }
            opened.add(self, made).map(|()| made).map_err(|error| {
                self.close(made);
                // SAFETY: just made, and not given out.
                unsafe { real::close(made) };
                error.raw_os_error().unwrap_or(libc::EIO)
            })
        })
    }
}
