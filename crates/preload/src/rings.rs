//! Rings of the program (io_uring): the kernel writes for them unseen. A program that has one is not followed.
//!
//! The library sees a ring that is made by the C library's `syscall` or by `liburing`. It finds others by a look at the descriptors.
//! It looks when a file is followed. It also looks before a sync if the number of descriptors has changed since the last look, or
//! if that was long ago.

use crate::over::{self, is_over};
use area::files::{FileId, Journal};
use area::own;
use libc::c_uint;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A sync looks again after so long.
const LOOK_EVERY_NS: u64 = 50_000_000;

/// At the last look: the number of descriptors, and the time.
static DESCRIPTORS: AtomicU64 = AtomicU64::new(0);
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);

fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills `time`; this clock is there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The program makes a ring: everything is given up before it has it.
pub fn made(journal: Option<&Journal>) -> io::Result<()> {
    over::end(journal, "the program has an io_uring, which writes unseen")
}

/// Linux 6.2 tells how many descriptors a process has as the size of their directory; before, it is 0.
fn descriptors() -> u64 {
    // SAFETY: zeros are a valid `statx`.
    let mut data: libc::statx = unsafe { std::mem::zeroed() };
    let mask: c_uint = libc::STATX_SIZE;
    // SAFETY: the path ends with a zero; the kernel fills `data`.
    unsafe { libc::statx(libc::AT_FDCWD, c"/proc/self/fd".as_ptr(), 0, mask, &mut data) };
    data.stx_size
}

/// Looks for rings, if there may be a new one, and gives everything up if there is. If the look fails, the file system makes the next sync
/// of `file`, which a ring may have written.
pub fn look(journal: &Journal, file: FileId) -> io::Result<()> {
    if is_over() {
        return Ok(());
    }
    let (count, now) = (descriptors(), now_ns());
    let is_recent = now.saturating_sub(LOOKED_NS.load(Ordering::Relaxed)) < LOOK_EVERY_NS;
    if is_recent && DESCRIPTORS.load(Ordering::Relaxed) == count {
        return Ok(());
    }
    match own::has_rings() {
        Some(true) => return made(Some(journal)),
        Some(false) => {}
        None => {
            journal.touched(file);
            return Ok(());
        }
    }
    // What came meanwhile is looked at next time: the number is that of before.
    DESCRIPTORS.store(count, Ordering::Relaxed);
    LOOKED_NS.store(now, Ordering::Relaxed);
    Ok(())
}
