//! Reading, writing, and syncing, which has nothing to do: a call is durable when it returns.

use super::answers::{Done, answer, code};
use super::leave::leave;
use super::live::is_served;
use super::real_inode::inode_of;
use super::served::{by, call};
use super::table::{Opened, is_known};
use crate::real;
use crate::state::pthread_testcancel;
use libc::{c_int, c_uint, c_void, iovec, loff_t, off_t, size_t, ssize_t};
use libfs::{Allocation, Errno, File};
use std::io;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one call, at most (`MAX_RW_COUNT` of Linux).
const BYTES_MAX: usize = 0x7fff_f000;
/// Parts of a vector, at most (`UIO_MAXIOV`).
const PARTS_MAX: c_int = 1024;
/// An allocation goes in such parts.
const ALLOCATED_BYTES_MAX: u64 = 64 << 20;
/// Bytes that `copy_file_range` copies at once, at most: the program asks again for the rest.
const COPIED_BYTES_MAX: usize = 1 << 20;
/// Flags of pwritev2(2) that ask for nothing that is not done anyway.
const USUAL_FLAGS: c_int = libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_HIPRI;

/// Where a call reads or writes.
#[derive(Clone, Copy)]
pub(crate) enum At {
    /// Where the last call has ended.
    Cursor,
    Offset(off_t),
}

impl At {
    /// Of `preadv2` and `pwritev2`: -1 is the cursor.
    pub fn of(offset: off_t) -> Self {
        match offset {
            -1 => Self::Cursor,
            offset => Self::Offset(offset),
        }
    }
}

/// The threads of a program may be cancelled in such a call. Nobody between the program and this has something to drop.
fn cancels(fd: c_int) -> bool {
    let is_known = is_known(fd);
    if is_known {
        // SAFETY: nothing is dropped on the way.
        unsafe { pthread_testcancel() };
    }
    is_known
}

/// A number of bytes, or -1.
fn count(done: Done<usize>) -> ssize_t {
    answer(done.map(|count| count as i64)) as ssize_t
}

fn may_read(opened: &Opened) -> Done<()> {
    match opened.is_directory {
        _ if !opened.reads() => Err(libc::EBADF),
        true => Err(libc::EISDIR),
        false => Ok(()),
    }
}

fn may_write(opened: &Opened) -> Done<()> {
    match opened.writes() {
        true => Ok(()),
        false => Err(libc::EBADF),
    }
}

/// The process has mapped a file of the mount. Its memory may be one that the mount must fetch, for which it may ask this process for a lease: so calls that
/// have the session touch a copy.
static HAS_MAPPINGS: AtomicBool = AtomicBool::new(false);

/// A mapping of a file is about to be made: the kernel has the file.
pub(crate) fn mapping(fd: c_int) -> io::Result<()> {
    leave(fd)?;
    if let Some(mount) = is_served().filter(|_| !HAS_MAPPINGS.load(Ordering::Relaxed))
        && inode_of(fd).is_some_and(|(device, _)| device == mount.device)
    {
        HAS_MAPPINGS.store(true, Ordering::Relaxed);
    }
    Ok(())
}

fn read_part(file: &File, offset: u64, part: &mut [u8]) -> Result<usize, Errno> {
    if !HAS_MAPPINGS.load(Ordering::Relaxed) {
        return file.read_at(offset, part);
    }
    let mut copy = vec![0; part.len()];
    let count = file.read_at(offset, &mut copy)?;
    part[..count].copy_from_slice(&copy[..count]);
    Ok(count)
}

/// Reads into parts, one behind the other.
fn read_parts(file: &File, offset: u64, parts: &mut [&mut [u8]]) -> Done<usize> {
    let mut done = 0;
    for part in parts {
        match read_part(file, offset + done as u64, part) {
            Ok(count) => {
                done += count;
                if count < part.len() {
                    break;
                }
            }
            // The mount reads all of it.
            Err(errno) if done > 0 && errno != Errno::CrossDevice => break,
            Err(errno) => return Err(code(errno)),
        }
    }
    Ok(done)
}

fn read_at(opened: &Opened, file: &File, at: At, parts: &mut [&mut [u8]]) -> Done<usize> {
    may_read(opened)?;
    match at {
        At::Offset(offset) => {
            let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
            read_parts(file, offset, parts)
        }
        At::Cursor => {
            let mut offset = opened.offset();
            let done = read_parts(file, *offset, parts)?;
            *offset += done as u64;
            Ok(done)
        }
    }
}

fn write_at(opened: &Opened, file: &File, at: At, data: &[u8]) -> Done<usize> {
    may_write(opened)?;
    let copy = HAS_MAPPINGS.load(Ordering::Relaxed).then(|| data.to_vec());
    let data = copy.as_deref().unwrap_or(data);
    match at {
        At::Offset(offset) => {
            let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
            if data.is_empty() {
                return Ok(0);
            }
            file.write_at(offset, data).map_err(code)
        }
        At::Cursor => {
            let mut offset = opened.offset();
            if data.is_empty() {
                return Ok(0);
            }
            let (first, done) = match opened.appends() {
                true => file.append(data).map_err(code)?,
                false => (*offset, file.write_at(*offset, data).map_err(code)?),
            };
            *offset = first + done as u64;
            Ok(done)
        }
    }
}

/// The program's bytes; none if it says so.
unsafe fn part<'p>(data: *mut c_void, count: size_t) -> Done<&'p mut [u8]> {
    match count.min(BYTES_MAX) {
        0 => Ok(&mut []),
        _ if data.is_null() => Err(libc::EFAULT),
        // SAFETY: the program's bytes.
        count => Ok(unsafe { slice::from_raw_parts_mut(data.cast::<u8>(), count) }),
    }
}

unsafe fn parts<'p>(parts: *const iovec, count: c_int) -> Done<Vec<&'p mut [u8]>> {
    if !(0..=PARTS_MAX).contains(&count) {
        return Err(libc::EINVAL);
    }
    if parts.is_null() {
        return if count == 0 {
            Ok(Vec::new())
        } else {
            Err(libc::EFAULT)
        };
    }
    // SAFETY: the program's vector, and its bytes.
    unsafe {
        let parts = slice::from_raw_parts(parts, count as usize);
        parts.iter().map(|it| part(it.iov_base, it.iov_len)).collect()
    }
}

pub(crate) unsafe fn read(fd: c_int, at: At, data: *mut c_void, bytes: size_t) -> Option<ssize_t> {
    if !cancels(fd) {
        return None;
    }
    let done = by(fd, |_, opened, file| {
        // SAFETY: the caller's arguments.
        let data = unsafe { part(data, bytes) }?;
        read_at(opened, file, at, &mut [data])
    })?;
    Some(count(done))
}

pub(crate) unsafe fn readv(fd: c_int, at: At, vector: (*const iovec, c_int)) -> Option<ssize_t> {
    if !cancels(fd) {
        return None;
    }
    let done = by(fd, |_, opened, file| {
        // SAFETY: the caller's arguments.
        let mut parts = unsafe { parts(vector.0, vector.1) }?;
        read_at(opened, file, at, &mut parts)
    })?;
    Some(count(done))
}

pub(crate) unsafe fn write(fd: c_int, at: At, data: *const c_void, bytes: size_t) -> Option<ssize_t> {
    if !cancels(fd) {
        return None;
    }
    let done = by(fd, |_, opened, file| {
        // SAFETY: the caller's arguments, which are only read.
        let data = unsafe { part(data.cast_mut(), bytes) }?;
        write_at(opened, file, at, data)
    })?;
    Some(count(done))
}

/// All parts are one write.
pub(crate) unsafe fn writev(fd: c_int, at: At, vector: (*const iovec, c_int)) -> Option<ssize_t> {
    if !cancels(fd) {
        return None;
    }
    let done = by(fd, |_, opened, file| {
        // SAFETY: the caller's arguments, which are only read.
        let parts = unsafe { parts(vector.0, vector.1) }?;
        let data: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        write_at(opened, file, at, &data)
    })?;
    Some(count(done))
}

/// Of `preadv2` and `pwritev2`: with other flags the kernel has the file.
pub(crate) fn has_usual_flags(fd: c_int, flags: c_int) -> bool {
    flags & !USUAL_FLAGS == 0 || leave(fd).is_err()
}

pub(crate) fn lseek(fd: c_int, by: off_t, whence: c_int) -> Option<off_t> {
    let seeks = |opened: &Opened, file: &File| {
        if opened.is_directory {
            return Ok(None);
        }
        let mut offset = opened.offset();
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *offset,
            libc::SEEK_END => file.stat()?.inode.size,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let from = u64::try_from(by).map_err(|_| Errno::NoAddress)?;
                *offset = file.seek(from, whence == libc::SEEK_DATA)?;
                return Ok(Some(*offset as off_t));
            }
            _ => return Err(Errno::Invalid),
        };
        let to = i64::try_from(base).ok().and_then(|base| base.checked_add(by));
        let to = to.filter(|to| *to >= 0).ok_or(Errno::Invalid)?;
        *offset = to as u64;
        Ok(Some(to))
    };
    match call(fd, seeks)? {
        // A directory's offset is the kernel's.
        Ok(None) => leave(fd).err().map(|_| answer(Err(libc::EIO))),
        Ok(Some(to)) => Some(to),
        Err(code) => Some(answer(Err(code))),
    }
}

/// `copy_file_range` to a served file: by reads and writes, some of it at a time. None if the kernel is to make the call.
pub(crate) unsafe fn copy(
    (from, from_offset): (c_int, *mut loff_t),
    (to, to_offset): (c_int, *mut loff_t),
    bytes: size_t,
    flags: c_uint,
) -> Option<ssize_t> {
    if flags != 0 || !cancels(to) {
        return None;
    }
    let source = match source_of(from)? {
        Source::Here(inode) => inode,
        Source::Elsewhere => return Some(answer(Err(libc::EXDEV))),
    };
    let (target, writes) = call(to, |opened, file| {
        let writes = opened.writes() && !opened.appends() && !opened.is_directory;
        Ok((file.inode(), writes))
    })?
    .ok()?;
    // Within one file the kernel looks whether the ranges have bytes in common.
    if !writes || source == target {
        return None;
    }
    let mut data = vec![0_u8; bytes.min(COPIED_BYTES_MAX)];
    // SAFETY: null, or the program's places, which may be one.
    let (start, at) = unsafe {
        (
            from_offset.as_ref().copied(),
            to_offset.as_ref().map_or(At::Cursor, |at| At::Offset(*at)),
        )
    };
    let place = data.as_mut_ptr().cast();
    // SAFETY: the place has so much room.
    let found = unsafe {
        match start {
            Some(offset) => libc::pread(from, place, data.len(), offset),
            None => libc::read(from, place, data.len()),
        }
    };
    let Ok(found @ 1..) = usize::try_from(found) else {
        return Some(found);
    };
    // SAFETY: so many bytes are there.
    let written = unsafe {
        match at {
            At::Offset(offset) => libc::pwrite(to, place, found, offset),
            At::Cursor => libc::write(to, place, found),
        }
    };
    let done = written.max(0) as off_t;
    // SAFETY: null, or the program's places.
    unsafe {
        match from_offset.as_mut() {
            Some(place) => *place += done,
            None => {
                libc::lseek(from, done - found as off_t, libc::SEEK_CUR);
            }
        }
        if let Some(place) = to_offset.as_mut() {
            *place += done;
        }
    }
    Some(written)
}

/// A regular file that can be read.
enum Source {
    /// An inode of the mount.
    Here(u64),
    /// Of another file system, from which nothing is copied to this one (`generic_copy_file_checks` of Linux): the program reads and writes.
    Elsewhere,
}

fn source_of(fd: c_int) -> Option<Source> {
    if let Some(found) = call(fd, |opened, file| Ok((file.inode(), may_read(opened).is_ok()))) {
        let found = found.ok().filter(|(_, reads)| *reads);
        return found.map(|(inode, _)| Source::Here(inode));
    }
    let mount = is_served()?;
    // SAFETY: zeros are a valid `stat`, which the call fills.
    let (found, flags) = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        ((libc::fstat(fd, &mut found) == 0).then_some(found)?, flags)
    };
    let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG;
    let is_read = flags >= 0 && flags & (libc::O_ACCMODE | libc::O_PATH) != libc::O_WRONLY;
    (is_file && is_read).then_some(match found.st_dev == mount.device {
        true => Source::Here(found.st_ino),
        false => Source::Elsewhere,
    })
}

/// `fsync` and the like.
pub(crate) fn sync(fd: c_int) -> Option<c_int> {
    if !cancels(fd) {
        return None;
    }
    call(fd, |_, file| file.sync().map(|()| 0)).map(answer)
}

pub(crate) fn truncate(fd: c_int, size: off_t) -> Option<c_int> {
    let done = call(fd, |opened, file| {
        let size = u64::try_from(size).map_err(|_| Errno::Invalid)?;
        match opened.writes() {
            true => file.truncate(size).map(|()| 0),
            false => Err(Errno::Invalid),
        }
    });
    done.map(answer)
}

/// The error number, or 0.
pub(crate) fn allocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> Option<c_int> {
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Allocation::Reserve,
        libc::FALLOC_FL_PUNCH_HOLE if keeps_size => Allocation::Hole,
        libc::FALLOC_FL_ZERO_RANGE => Allocation::Zeros,
        _ => return leave(fd).err().map(|_| libc::EIO),
    };
    let done = by(fd, |_, opened, file| {
        let range = (u64::try_from(offset), u64::try_from(bytes));
        let (Ok(offset), Ok(bytes @ 1..)) = range else {
            return Err(libc::EINVAL);
        };
        may_write(opened)?;
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let part = (end - at).min(ALLOCATED_BYTES_MAX);
            file.allocate((at, part), (what, keeps_size)).map_err(code)?;
            at += part;
        }
        Ok(())
    })?;
    Some(done.err().unwrap_or(0))
}

/// Advice, which is of no use here: true if the descriptor is served.
pub(crate) fn takes_advice(fd: c_int) -> bool {
    call(fd, |_, _| Ok(())).is_some()
}
