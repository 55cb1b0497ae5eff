//! Descriptors that this library has in a program that knows nothing of it, and rings that are the program's.
//!
//! A descriptor of ours has a number above the program's limit, where that can be: so the program gets the numbers that it expects,
//! and as many. It is an opening of its own, not a duplicate, as a duplicate keeps flock(2) locks. Locks of fcntl(2) end if the process
//! closes any descriptor of the file. So ours of such a file stay open until the program closes one.

use crate::renewed::Renewed;
use crate::sync::{AtomicU32, AtomicU64, MutexGuard, Once, Ordering};
use os::Ring;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::TryLockError;

/// Higher descriptors are not told from the program's.
const DESCRIPTORS_MAX: usize = 1 << 16;
/// Descriptors of ours are above those that programs expect to get.
const DESCRIPTOR_MIN: libc::c_int = 512;
/// Of files that nobody has open, so many descriptors are kept.
const SPARE_MAX: usize = 64;
/// Above a higher limit there are no descriptors that could be told from the program's.
const LIMIT_MAX: u64 = DESCRIPTORS_MAX as u64 / 2;
/// The name of a ring's descriptor in /proc.
const RING: &str = "anon_inode:[io_uring]";

/// A bit for each descriptor. A bit is set after its descriptor is made, and cleared before that is closed. So each bit stands for
/// itself, and no order is needed.
static OWN: [AtomicU64; DESCRIPTORS_MAX / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// Those of them that are an [`Own`].
static FILES: [AtomicU64; DESCRIPTORS_MAX / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// Held while a ring of ours is made, and while rings are looked for.
static RINGS: Renewed<()> = Renewed::new(());
/// Looks at the lock before nobody waits for it any more. A thread holds it for some system calls. In a child that was forked past the C
/// library it may be held for ever, by a thread that is not there.
const LOOKS_MAX: u32 = 1000;
/// Held while the limit of descriptors is another one than the program's.
static RAISED: Renewed<()> = Renewed::new(());
/// The program's limit while it is another one, and 1; 0: it is the program's. A child that is forked meanwhile gets it back.
static LIMIT_BEFORE: AtomicU64 = AtomicU64::new(0);
/// Files (device and inode) of which the program may have locks of fcntl(2), and our descriptors that wait for the locks' end.
static LOCKED: Renewed<BTreeMap<FilePlace, Vec<Own>>> = Renewed::new(BTreeMap::new());
/// How many there are, for who must not wait.
static LOCKED_COUNT: AtomicU32 = AtomicU32::new(0);

type FilePlace = (u64, u64);

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OWN.get(fd / 64)?, 1 << (fd % 64)))
}

fn place_of_file(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((FILES.get(fd / 64)?, 1 << (fd % 64)))
}

/// True if this library has the descriptor, not the program.
pub fn is_own(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The lowest descriptor from `first` to `last` that this library has, if `has_all`. Else one of those by which it sees processes and disks:
/// these have no locks, and stay as long as the process.
pub fn next(first: RawFd, last: RawFd, has_all: impl Fn() -> bool) -> Option<RawFd> {
    let is_lasting = |fd: RawFd| {
        [&PROC, &SYS]
            .iter()
            .any(|it| it.fd.load(Ordering::Acquire) == fd as u32)
    };
    (first.max(0)..=last.min(DESCRIPTORS_MAX as RawFd - 1))
        .find(|&fd| is_own(fd) && (is_lasting(fd) || has_all()))
}

/// The program's limit of descriptors.
fn limit() -> libc::rlimit {
    // SAFETY: zeros are a valid `rlimit`.
    let mut limit: libc::rlimit = unsafe { mem::zeroed() };
    // SAFETY: the kernel fills `limit`, whose resource there is.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit
}

/// True if ours are above the program's.
fn is_above(limit: &libc::rlimit) -> bool {
    limit.rlim_cur < limit.rlim_max || limit.rlim_cur > LIMIT_MAX
}

/// True if descriptors of ours have numbers that the program could have.
pub fn takes_numbers() -> bool {
    let mut words = FILES.iter().map(|word| word.load(Ordering::Relaxed)).enumerate();
    let lowest = words.find(|&(_, word)| word != 0);
    let number = |(index, word): (usize, u64)| index as u64 * 64 + u64::from(word.trailing_zeros());
    lowest.is_some_and(|it| number(it) < limit().rlim_cur)
}

/// False if a descriptor of ours more would leave too few to the program: below its limit we have a quarter.
fn has_room() -> bool {
    let limit = limit();
    let own = || FILES.iter().map(|word| word.load(Ordering::Relaxed).count_ones());
    is_above(&limit) || u64::from(own().sum::<u32>()) < limit.rlim_cur / 4
}

/// Descriptors that we may keep beside those of open files.
pub(crate) fn spare() -> usize {
    let limit = limit();
    match is_above(&limit) {
        true => SPARE_MAX,
        false => SPARE_MAX.min(limit.rlim_cur as usize / 16),
    }
}

/// Calls `f` with the lowest descriptor that is ours, while the limit of descriptors is high enough for it.
fn above_limit<R>(f: impl FnOnce(RawFd) -> R) -> R {
    let _guard = RAISED.lock();
    let limit = limit();
    if limit.rlim_cur > LIMIT_MAX {
        return f(DESCRIPTOR_MIN);
    }
    if limit.rlim_cur >= limit.rlim_max {
        // The last ones that there are.
        return f(DESCRIPTOR_MIN.min((limit.rlim_cur - limit.rlim_cur / 4) as RawFd));
    }
    let raised = libc::rlimit {
        rlim_cur: limit.rlim_max.min(DESCRIPTORS_MAX as u64),
        ..limit
    };
    // SAFETY: limits that are there during the calls. A limit that cannot be raised stays.
    unsafe {
        LIMIT_BEFORE.store(limit.rlim_cur + 1, Ordering::SeqCst);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raised);
        let result = f(DESCRIPTOR_MIN.max(limit.rlim_cur as RawFd));
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        LIMIT_BEFORE.store(0, Ordering::SeqCst);
        result
    }
}

fn duplicate_from(fd: RawFd, lowest: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let make = |lowest: libc::c_int| unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) };
    let high = make(lowest);
    // The limit of descriptors may be lower.
    let own = if high < 0 { make(0) } else { high };
    if own < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

/// Another descriptor of what `fd` is, above the program's.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    if !has_room() {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    above_limit(|lowest| duplicate_from(fd, lowest))
}

/// An opening of the descriptor's file, with these flags and no other, above the program's.
///
/// # Errors
/// Also if the program may have locks of the file: an opening begins with a low number, and the locks would end when it is closed.
pub(crate) fn reopen(fd: RawFd, flags: OFlags) -> io::Result<Own> {
    let proc = proc().ok_or(io::ErrorKind::NotFound)?;
    if is_locked(fd) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    if !has_room() {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    above_limit(|lowest| {
        let low = openat(
            proc,
            format!("self/fd/{fd}"),
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Own::new(duplicate_from(low.as_raw_fd(), lowest)?))
    })
}

/// A directory of the kernel's that another root of this process may lack.
struct KernelDirectory {
    path: &'static str,
    once: Once,
    fd: AtomicU32,
}

static PROC: KernelDirectory = KernelDirectory::new("/proc");
static SYS: KernelDirectory = KernelDirectory::new("/sys");
const NOT_OPEN: u32 = u32::MAX;

impl KernelDirectory {
    const fn new(path: &'static str) -> Self {
        Self {
            path,
            once: Once::new(),
            fd: AtomicU32::new(NOT_OPEN),
        }
    }

    /// It, opened when this process first asks for it.
    fn open(&self) -> Option<BorrowedFd<'static>> {
        let open = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let low = openat(CWD, self.path, flags, Mode::empty()).ok()?;
            duplicate(low.as_raw_fd()).ok()
        };
        self.once.call_once(|| {
            if let Some(own) = open() {
                // It stays as long as the process, also in a forked child.
                let fd = own.into_raw_fd();
                mark(fd);
                self.fd.store(fd as u32, Ordering::Release);
            }
        });
        let fd = self.fd.load(Ordering::Acquire);
        // SAFETY: it is never closed.
        (fd != NOT_OPEN).then(|| unsafe { BorrowedFd::borrow_raw(fd as RawFd) })
    }
}

/// `/proc`.
pub fn proc() -> Option<BorrowedFd<'static>> {
    PROC.open()
}

/// `/sys`.
pub fn sys() -> Option<BorrowedFd<'static>> {
    SYS.open()
}

/// The number of this process's namespace of processes (pid_namespaces(7)); 0 if nobody tells it.
pub fn namespace() -> u64 {
    let found = proc().and_then(|proc| statat(proc, "self/ns/pid", AtFlags::empty()).ok());
    found.map_or(0, |it| it.st_ino)
}

/// The text of a file in `/proc`.
pub(crate) fn read_proc(path: &str) -> io::Result<String> {
    let proc = proc().ok_or(io::ErrorKind::NotFound)?;
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(fs::File::from(file))
}

/// The path of the descriptor's file, as the kernel tells it.
pub fn link(fd: RawFd) -> io::Result<PathBuf> {
    let proc = proc().ok_or(io::ErrorKind::NotFound)?;
    let path = readlinkat(proc, format!("self/fd/{fd}"), Vec::new())?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

/// The absolute path that `path` leads to, relative to a directory's descriptor, without links.
pub fn resolve(directory: RawFd, path: &Path) -> io::Result<PathBuf> {
    // SAFETY: the caller's descriptor, or the mark of the working directory, during the call.
    let directory = unsafe { BorrowedFd::borrow_raw(directory) };
    let place = openat(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    link(place.as_raw_fd())
}

/// True if `path`, relative to a directory's descriptor, is a directory itself.
pub fn is_directory(directory: RawFd, path: &Path) -> io::Result<bool> {
    // SAFETY: the caller's descriptor, or the mark of the working directory, during the call.
    let directory = unsafe { BorrowedFd::borrow_raw(directory) };
    let found = statat(directory, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Device and inode of a descriptor's file. No times are asked for (`files::identity`).
fn file_place(fd: RawFd) -> Option<FilePlace> {
    // SAFETY: zeros are a valid `statx`.
    let mut found: libc::statx = unsafe { mem::zeroed() };
    // SAFETY: the path ends with a zero; the kernel fills `found`.
    let result = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_INO, &mut found) };
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    (result == 0).then_some((device, found.stx_ino))
}

/// The program is about to lock the descriptor's file (fcntl(2)).
pub fn locking(fd: RawFd) {
    if let Some(place) = file_place(fd) {
        let mut locked = LOCKED.lock();
        locked.entry(place).or_default();
        LOCKED_COUNT.store(locked.len() as u32, Ordering::Relaxed);
    }
}

/// Whether the program has locks, as far as this is known.
pub fn has_locks() -> bool {
    LOCKED_COUNT.load(Ordering::Relaxed) > 0
}

/// The program is about to close the descriptor, by which it loses its locks of the file.
pub fn unlocking(fd: RawFd) {
    if LOCKED_COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(place) = file_place(fd) else {
        return;
    };
    let waited = {
        let mut locked = LOCKED.lock();
        let waited = locked.remove(&place);
        LOCKED_COUNT.store(locked.len() as u32, Ordering::Relaxed);
        waited
    };
    drop(waited);
}

fn is_locked(fd: RawFd) -> bool {
    LOCKED_COUNT.load(Ordering::Relaxed) > 0
        && file_place(fd).is_some_and(|place| {
            let locked = LOCKED.lock();
            locked.contains_key(&place)
        })
}

/// In a forked child, which has no locks: nothing is waited for, and nobody holds what other threads held. It has no use for our
/// descriptors, which would keep the space of removed files.
///
/// # Safety
/// The process has one thread, which is not in this module.
pub unsafe fn forked() {
    LOCKED_COUNT.store(0, Ordering::Relaxed);
    // SAFETY: the caller's word.
    unsafe {
        RINGS.renew();
        RAISED.renew();
        LOCKED.reset(BTreeMap::new());
    }
    if let Some(before) = LIMIT_BEFORE.swap(0, Ordering::SeqCst).checked_sub(1) {
        let limit = libc::rlimit {
            rlim_cur: before,
            ..limit()
        };
        // SAFETY: a limit that is there during the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
    for (index, word) in FILES.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let fd = (index * 64) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            unmark(fd);
            word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
            // SAFETY: the child's copy, which nothing uses.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

/// Keeps a descriptor of ours while the program has locks of its file; gives it back if there are none.
fn keep_locks(own: OwnedFd) -> Option<OwnedFd> {
    if LOCKED_COUNT.load(Ordering::Relaxed) == 0 {
        return Some(own);
    }
    let Some(place) = file_place(own.as_raw_fd()) else {
        return Some(own);
    };
    let mut locked = LOCKED.lock();
    match locked.get_mut(&place) {
        Some(waiting) => {
            waiting.push(Own::new(own));
            None
        }
        None => Some(own),
    }
}

pub(crate) fn mark(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

pub(crate) fn unmark(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Keeps what a descriptor is, as long as the process lives, by a number above the program's.
///
/// # Errors
/// No number is left.
pub fn keep(low: &OwnedFd) -> io::Result<OwnedFd> {
    let own = duplicate(low.as_raw_fd())?;
    mark(own.as_raw_fd());
    mark_file(own.as_raw_fd());
    Ok(own)
}

/// Closes what [`keep`] has kept.
pub fn give_back(own: OwnedFd) {
    drop(Own(Some(own)));
}

fn mark_file(fd: RawFd) {
    if let Some((word, bit)) = place_of_file(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A descriptor of ours.
pub(crate) struct Own(Option<OwnedFd>);

impl Own {
    pub fn new(fd: OwnedFd) -> Self {
        mark(fd.as_raw_fd());
        mark_file(fd.as_raw_fd());
        Self(Some(fd))
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is taken when dropped").as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(own) = self.0.take().and_then(keep_locks) {
            unmark(own.as_raw_fd());
            if let Some((word, bit)) = place_of_file(own.as_raw_fd()) {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }
}

/// The lock of [`RINGS`], unless it is held for too long.
fn rings() -> Option<MutexGuard<'static, ()>> {
    for _ in 0..LOOKS_MAX {
        match RINGS.mutex().try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Makes a ring of ours, which nobody takes for the program's meanwhile.
pub(crate) fn ring(make: impl FnOnce() -> io::Result<Ring>) -> io::Result<Ring> {
    let _guard = rings().ok_or(io::ErrorKind::WouldBlock)?;
    let ring = make()?;
    mark(ring.fd());
    Ok(ring)
}

/// True if the program has an io_uring. A look costs a system call for each descriptor. A ring of ours may pass for one of the
/// program's if the lock is held for too long: then files are followed no more, which is always safe. `None` if nobody can tell, as
/// without a descriptor for the look.
pub fn has_rings() -> Option<bool> {
    let _guard = rings();
    let is_ring = |fd| link(fd).is_ok_and(|name| name.as_os_str() == RING);
    Some(descriptors()?.into_iter().any(|fd| !is_own(fd) && is_ring(fd)))
}

/// The descriptors of this process; `None` if the system does not tell.
pub fn descriptors() -> Option<Vec<RawFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(proc()?, "self/fd", flags, Mode::empty()).ok()?;
    let entries = Dir::read_from(directory).ok()?;
    let number = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok()?.parse().ok();
    Some(entries.flatten().filter_map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// bug: a child was forked while another thread had one of our locks. It waited for the lock for ever, or kept the raised limit of
    /// descriptors. fix: it gets the locks anew, and the limit back.
    #[test]
    fn a_forked_child_has_the_locks_and_the_limit_of_before() {
        let before = limit().rlim_cur;
        let child = above_limit(|_| {
            let _locked = LOCKED.lock();
            // SAFETY: the child makes system calls, and ends.
            match unsafe { libc::fork() } {
                0 => {
                    // SAFETY: there is no other thread.
                    unsafe { forked() };
                    let is_free = RAISED.mutex().try_lock().is_ok() && LOCKED.mutex().try_lock().is_ok();
                    let is_as_before = is_free && limit().rlim_cur == before;
                    // SAFETY: it ends here.
                    unsafe { libc::_exit(i32::from(!is_as_before)) }
                }
                child => child,
            }
        });
        let mut status = 0;
        // SAFETY: the status is borrowed.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    /// bug: a forked child slept for ever at its first write. cause: a thread of the parent was making a ring at the fork. So nobody
    /// held the child's copy of the lock. fix: nobody waits long for the lock, and a thread without a ring sleeps.
    #[test]
    fn a_child_forked_while_a_ring_is_made_does_without_one() {
        let guard = rings().expect("nobody holds it for long");
        // SAFETY: the child makes system calls, and ends.
        match unsafe { libc::fork() } {
            0 => {
                let refused = ring(|| Err(io::ErrorKind::Unsupported.into()));
                let is_refused = refused.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
                // SAFETY: it ends here.
                unsafe { libc::_exit(i32::from(!is_refused)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the status is borrowed.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        drop(guard);
    }
}
