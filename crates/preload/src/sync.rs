//! Syncing: one write to the area.

use crate::{answer, followed, inside, present, real};
use libc::{c_int, c_uint, off_t};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    match followed(fd) {
        Some(it) => answer(it.sync().map(|()| 0)),
        // SAFETY: the caller's arguments.
        None => unsafe { real::fsync(fd) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    match followed(fd) {
        Some(it) => answer(it.sync().map(|()| 0)),
        // SAFETY: the caller's arguments.
        None => unsafe { real::fdatasync(fd) },
    }
}

/// It begins to write, which the area need not, or waits for that, which is a sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync_file_range(fd: c_int, offset: off_t, count: off_t, flags: c_uint) -> c_int {
    let waits = flags & (libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER) != 0;
    match followed(fd) {
        Some(it) if waits => answer(it.sync().map(|()| 0)),
        Some(_) => 0,
        // SAFETY: the caller's arguments.
        None => unsafe { real::sync_file_range(fd, offset, count, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncfs(fd: c_int) -> c_int {
    let all = present().map_or(Ok(()), |journal| inside(|| journal.sync_all()));
    // SAFETY: the caller's arguments.
    answer(all.map(|()| unsafe { real::syncfs(fd) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync() {
    if let Some(journal) = present() {
        // It has no way to tell of a failure, which the next fsync does.
        let _ = inside(|| journal.sync_all());
    }
    // SAFETY: it takes nothing.
    unsafe { real::sync() }
}
