//! Syncing: one write to the area.

use crate::state::{Followed, pthread_testcancel};
use crate::{answer, followed, fs, inside, present, real, tree};
use libc::{c_int, c_uint, off_t};
use std::io;

/// The followed file of a descriptor, also of one that cannot write. The log has to have all that such a sync makes durable:
/// recovery takes the log for the newest. If another process follows the file, that process gives it up.
fn known(fd: c_int) -> io::Result<Option<Followed>> {
    // SAFETY: nothing is dropped on the way, and the callers are cancellation points.
    unsafe { pthread_testcancel() };
    if let Some(it) = followed(fd) {
        return Ok(Some(it));
    }
    let Some(journal) = present() else {
        if tree::is_another() {
            tree::change(fd)?;
        }
        return Ok(None);
    };
    let file = inside(|| journal.find_same(fd));
    Ok(file.map(|file| Followed {
        journal,
        file,
        flags: 0,
    }))
}

/// Syncs by the area if the file is followed, else by `real`.
fn synced(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let result = known(fd).and_then(|it| it.map_or(Ok(None), |it| it.sync().map(Some)));
    match result {
        Ok(None) => real(),
        result => answer(result.map(|_| 0)),
    }
}

/// All files of the run, wherever they are followed.
fn sync_all() -> io::Result<()> {
    match present() {
        Some(journal) => inside(|| journal.sync_all()),
        None => tree::change_all(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    if let Some(result) = fs::data::sync(fd) {
        return result;
    }
    // SAFETY: the caller's arguments.
    synced(fd, || unsafe { real::fsync(fd) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    if let Some(result) = fs::data::sync(fd) {
        return result;
    }
    // SAFETY: the caller's arguments.
    synced(fd, || unsafe { real::fdatasync(fd) })
}

/// It begins to write, which the area need not, or waits for that, which is a sync.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync_file_range(
    fd: c_int,
    offset: off_t,
    count: off_t,
    flags: c_uint,
) -> c_int {
    if let Some(result) = fs::data::sync(fd) {
        return result;
    }
    let waits = flags & (libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER) != 0;
    // SAFETY: the caller's arguments.
    let real = || unsafe { real::sync_file_range(fd, offset, count, flags) };
    match followed(fd) {
        _ if waits => synced(fd, real),
        Some(_) => 0,
        None => real(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    if let Some(result) = fs::data::sync(fd) {
        return result;
    }
    // SAFETY: the caller's arguments.
    answer(sync_all().map(|()| unsafe { real::syncfs(fd) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync() {
    // It has no way to tell of a failure, which the next fsync does.
    let _ = sync_all();
    // SAFETY: it takes nothing.
    unsafe { real::sync() }
}
