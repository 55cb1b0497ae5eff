//! Descriptors that this library has in a program that knows nothing of it, and rings that are the program's.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use os::Ring;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::TryLockError;

/// Higher descriptors are not told from the program's.
const DESCRIPTORS_MAX: usize = 1 << 16;
/// Descriptors of ours are above those that programs expect to get.
const DESCRIPTOR_MIN: libc::c_int = 512;
/// The name of a ring's descriptor in /proc.
const RING: &str = "anon_inode:[io_uring]";

/// A bit for each descriptor. A bit is set after its descriptor is made, and cleared before that is closed. So each bit stands for
/// itself, and no order is needed.
static OWN: [AtomicU64; DESCRIPTORS_MAX / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// Held while a ring of ours is made, and while rings are looked for.
static RINGS: Mutex<()> = Mutex::new(());
/// Looks at the lock before nobody waits for it any more. A thread holds it for some system calls. In a forked child it may be held
/// for ever, by a thread that is not there.
const LOOKS_MAX: u32 = 1000;

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OWN.get(fd / 64)?, 1 << (fd % 64)))
}

/// True if this library has the descriptor, not the program.
pub fn is_own(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The lowest descriptor from `first` to `last` that this library has.
pub fn next(first: RawFd, last: RawFd) -> Option<RawFd> {
    (first.max(0)..=last.min(DESCRIPTORS_MAX as RawFd - 1)).find(|&fd| is_own(fd))
}

/// Another descriptor of what `fd` is, above the program's.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let make = |lowest: libc::c_int| unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) };
    let high = make(DESCRIPTOR_MIN);
    // The limit of descriptors may be lower.
    let own = if high < 0 { make(0) } else { high };
    if own < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
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

/// A descriptor of ours.
pub(crate) struct Own(OwnedFd);

impl Own {
    pub fn new(fd: OwnedFd) -> Self {
        mark(fd.as_raw_fd());
        Self(fd)
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        unmark(self.0.as_raw_fd());
    }
}

/// The lock of [`RINGS`], unless it is held for too long.
fn rings() -> Option<MutexGuard<'static, ()>> {
    for _ in 0..LOOKS_MAX {
        match RINGS.try_lock() {
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
/// program's if the lock is held for too long: then files are followed no more, which is always safe.
pub fn has_rings() -> bool {
    let _guard = rings();
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return false;
    };
    let is_ring = |path: &Path| fs::read_link(path).is_ok_and(|name| name.as_os_str() == RING);
    let mut rings = entries.flatten().filter(|entry| is_ring(&entry.path()));
    rings.any(|entry| {
        let number = entry.file_name();
        let fd = number.to_str().and_then(|text| text.parse().ok());
        fd.is_none_or(|fd| !is_own(fd))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
