//! Writing, and whatever else changes a file.

use crate::fs::data::{self, At as DataAt};
use crate::{Followed, answer, fs, inside, net, paths, present, real, set_errno, to_change, tree};
use area::files::At;
use libc::{c_char, c_int, c_uint, c_void, iovec, loff_t, off_t, size_t, ssize_t};
use std::io;
use std::slice;

/// Parts of a vector at most (the kernel's UIO_MAXIOV).
const PARTS_MAX: c_int = 1024;

/// Flags of pwritev2(2) whose writes the log follows, beside those of a sync (linux/fs.h). A write with others may go elsewhere.
const RWF_FOLLOWED: c_int =
    libc::RWF_HIPRI | libc::RWF_NOWAIT | libc::RWF_APPEND | RWF_NOAPPEND | RWF_DONTCACHE | RWF_NOSIGNAL;
const RWF_NOAPPEND: c_int = 0x20;
const RWF_DONTCACHE: c_int = 0x80;
const RWF_NOSIGNAL: c_int = 0x100;

/// True if the opening has O_APPEND. The kernel is asked each time: any process with a descriptor of the same opening may change it.
fn appends(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

/// Where an offset leads to.
fn at(offset: off_t) -> At {
    u64::try_from(offset).map_or(At::Cursor, At::Offset)
}

/// Where `pwrite` writes: with O_APPEND to the end, whatever it is told (pwrite(2), "Bugs").
fn at_or_end(fd: c_int, offset: off_t) -> At {
    match appends(fd) {
        true => At::End,
        false => at(offset),
    }
}

impl Followed {
    fn write(&self, fd: c_int, at: At, data: &[&[u8]], syncs: bool, make: impl Fn() -> ssize_t) -> ssize_t {
        let unsynced = || self.journal.write_unsynced(fd, self.file, at, appends(fd), data);
        let written = self.syncs().then(|| inside(unsynced)).flatten();
        let written = written.unwrap_or_else(|| inside(|| self.journal.write(fd, self.file, at, data, make)));
        if written <= 0 || !(syncs || self.syncs()) {
            return written;
        }
        answer(self.sync().map(|()| written as i64)) as ssize_t
    }

    unsafe fn write_one(
        &self,
        fd: c_int,
        at: At,
        data: *const c_void,
        count: size_t,
        make: impl Fn() -> ssize_t,
    ) -> ssize_t {
        if data.is_null() || count > isize::MAX as usize {
            return make();
        }
        // SAFETY: the program's bytes.
        let data = unsafe { slice::from_raw_parts(data.cast::<u8>(), count) };
        self.write(fd, at, &[data], false, make)
    }

    unsafe fn write_parts(
        &self,
        fd: c_int,
        at: At,
        (parts, count): (*const iovec, c_int),
        syncs: bool,
        make: impl Fn() -> ssize_t,
    ) -> ssize_t {
        if parts.is_null() || !(1..=PARTS_MAX).contains(&count) {
            return make();
        }
        // SAFETY: the program's vector.
        let parts = unsafe { slice::from_raw_parts(parts, count as usize) };
        inside(|| {
            let filled = parts.iter().filter(|part| part.iov_len > 0);
            // SAFETY: the program's bytes.
            let bytes =
                |part: &iovec| unsafe { slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            let data: Vec<&[u8]> = filled.map(bytes).collect();
            self.write(fd, at, &data, syncs, make)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, data: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { data::write(fd, DataAt::Cursor, data, count) } {
        return result;
    }
    let part = iovec {
        iov_base: data.cast_mut(),
        iov_len: count,
    };
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { net::data::send(fd, (&part, 1), 0) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::write(fd, data, count) };
    match to_change(fd) {
        // SAFETY: the caller's arguments.
        Ok(Some(it)) => unsafe { it.write_one(fd, At::Cursor, data, count, make) },
        Ok(None) => make(),
        Err(error) => answer(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwrite(
    fd: c_int,
    data: *const c_void,
    count: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { data::write(fd, DataAt::Offset(offset), data, count) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::pwrite(fd, data, count, offset) };
    match to_change(fd) {
        // SAFETY: the caller's arguments.
        Ok(Some(it)) => unsafe { it.write_one(fd, at_or_end(fd, offset), data, count, make) },
        Ok(None) => make(),
        Err(error) => answer(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwrite64(
    fd: c_int,
    data: *const c_void,
    count: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { pwrite(fd, data, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { data::writev(fd, DataAt::Cursor, (parts, count)) } {
        return result;
    }
    if let Ok(count) = usize::try_from(count)
        // SAFETY: the caller's arguments.
        && let Some(result) = unsafe { net::data::send(fd, (parts, count), 0) }
    {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::writev(fd, parts, count) };
    match to_change(fd) {
        // SAFETY: the caller's arguments.
        Ok(Some(it)) => unsafe { it.write_parts(fd, At::Cursor, (parts, count), false, make) },
        Ok(None) => make(),
        Err(error) => answer(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { data::writev(fd, DataAt::Offset(offset), (parts, count)) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::pwritev(fd, parts, count, offset) };
    match to_change(fd) {
        // SAFETY: the caller's arguments.
        Ok(Some(it)) => unsafe { it.write_parts(fd, at_or_end(fd, offset), (parts, count), false, make) },
        Ok(None) => make(),
        Err(error) => answer(Err(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { pwritev(fd, parts, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    if data::has_usual_flags(fd, flags) {
        // SAFETY: the caller's arguments.
        if let Some(result) = unsafe { data::writev(fd, DataAt::of(offset), (parts, count)) } {
            return result;
        }
    }
    let sync_flags = libc::RWF_SYNC | libc::RWF_DSYNC;
    // SAFETY: the caller's arguments.
    let make = |flags| unsafe { real::pwritev2(fd, parts, count, offset, flags) };
    let it = match to_change(fd) {
        Ok(Some(it)) => it,
        Ok(None) => return make(flags),
        Err(error) => return answer(Err(error)),
    };
    let at = match flags & (libc::RWF_APPEND | RWF_NOAPPEND) {
        0 => at_or_end(fd, offset),
        RWF_NOAPPEND => at(offset),
        _ => At::End,
    };
    let is_known =
        flags & !(RWF_FOLLOWED | sync_flags) == 0 && !(flags & RWF_NOAPPEND != 0 && at == At::Cursor);
    if !is_known {
        return answer(it.give_up().map(|()| make(flags) as i64)) as ssize_t;
    }
    let syncs = flags & sync_flags != 0;
    // SAFETY: the caller's arguments.
    unsafe { it.write_parts(fd, at, (parts, count), syncs, || make(flags & !sync_flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { pwritev2(fd, parts, count, offset, flags) }
}

/// The log cannot follow what happens to the file now: the file system has it alone from here on.
pub(crate) fn give_up(fd: c_int) -> io::Result<()> {
    fs::leave(fd)?;
    net::leave(fd)?;
    to_change(fd)?.map_or(Ok(()), |it| it.give_up())
}

/// sendfile(2) to a served socket: the file is read as the program would. None if the kernel does it.
unsafe fn send_to_socket(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> Option<ssize_t> {
    // SAFETY: null, or the program's place.
    let place = unsafe { offset.as_mut() };
    let Some(place) = place else {
        // SAFETY: the places are there during the calls.
        return unsafe {
            net::data::send_file(
                to,
                count,
                |place, bytes| libc::read(from, place, bytes),
                |bytes| {
                    libc::lseek(from, -bytes, libc::SEEK_CUR);
                },
            )
        };
    };
    let at = std::cell::Cell::new(*place);
    // SAFETY: the places are there during the calls.
    let result = unsafe {
        net::data::send_file(
            to,
            count,
            |place, bytes| {
                let found = libc::pread(from, place, bytes, at.get());
                at.set(at.get() + found.max(0) as off_t);
                found
            },
            |bytes| at.set(at.get() - bytes),
        )
    }?;
    *place = at.get();
    Some(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { send_to_socket(to, from, offset, count) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = |()| unsafe { real::sendfile(to, from, offset, count) as i64 };
    answer(fs::leave(from).and_then(|()| give_up(to)).map(make)) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { sendfile(to, from, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    let make = |()| unsafe { real::splice(from, from_offset, to, to_offset, count, flags) as i64 };
    answer(
        fs::leave(from)
            .and_then(|()| net::leave(from))
            .and_then(|()| give_up(to))
            .map(make),
    ) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { fs::data::copy((from, from_offset), (to, to_offset), count, flags) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = |()| unsafe { real::copy_file_range(from, from_offset, to, to_offset, count, flags) as i64 };
    answer(fs::leave(from).and_then(|()| give_up(to)).map(make)) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap(
    at: *mut c_void,
    count: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0 && data::mapping(fd).is_err() {
        set_errno(libc::EIO);
        return libc::MAP_FAILED;
    }
    let is_shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS == 0;
    let it = if is_shared { to_change(fd) } else { Ok(None) };
    let given_up = it.and_then(|it| it.map_or(Ok(it), |followed| followed.give_up().map(|()| it)));
    let Ok(it) = given_up else {
        set_errno(libc::EIO);
        return libc::MAP_FAILED;
    };
    if let Some(it) = it {
        // The mapping outlives its descriptor: the file stays given up.
        inside(|| it.journal.duplicate(it.file));
    }
    // SAFETY: the caller's arguments.
    unsafe { real::mmap(at, count, protection, flags, fd, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap64(
    at: *mut c_void,
    count: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments.
    unsafe { mmap(at, count, protection, flags, fd, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ftruncate(fd: c_int, size: off_t) -> c_int {
    if let Some(result) = data::truncate(fd, size) {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::ftruncate(fd, size) };
    match (to_change(fd), u64::try_from(size)) {
        (Ok(Some(it)), Ok(size)) => answer(inside(|| it.journal.resize(it.file, size, make))),
        (Err(error), _) => answer(Err(error)),
        _ => make(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ftruncate64(fd: c_int, size: off_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { ftruncate(fd, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn truncate(path: *const c_char, size: off_t) -> c_int {
    if let Some(result) = fs::change::truncate((libc::AT_FDCWD, path), size) {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::truncate(path, size) };
    if let Err(error) = tree::change_path(libc::AT_FDCWD, path, true) {
        return answer(Err(error));
    }
    let known = present().and_then(|journal| {
        let find = || journal.find(&paths::target(libc::AT_FDCWD, path)?);
        Some((journal, inside(find)?))
    });
    match (known, u64::try_from(size)) {
        (Some((journal, file)), Ok(size)) => answer(inside(|| journal.resize(file, size, make))),
        _ => make(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn truncate64(path: *const c_char, size: off_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { truncate(path, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fallocate(fd: c_int, mode: c_int, offset: off_t, count: off_t) -> c_int {
    if let Some(code) = data::allocate(fd, mode, offset, count) {
        return match code {
            0 => 0,
            code => answer(Err(io::Error::from_raw_os_error(code))),
        };
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::fallocate(fd, mode, offset, count) };
    let it = match to_change(fd) {
        Ok(Some(it)) => it,
        Ok(None) => return make(),
        Err(error) => return answer(Err(error)),
    };
    match mode {
        0 | libc::FALLOC_FL_KEEP_SIZE => answer(inside(|| it.journal.grow(it.file, make))),
        _ => answer(it.give_up().map(|()| make())),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fallocate64(fd: c_int, mode: c_int, offset: off_t, count: off_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { fallocate(fd, mode, offset, count) }
}

/// Answers with the error number itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_fallocate(fd: c_int, offset: off_t, count: off_t) -> c_int {
    if let Some(result) = data::allocate(fd, 0, offset, count) {
        return result;
    }
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::posix_fallocate(fd, offset, count) };
    match to_change(fd) {
        Ok(Some(it)) => inside(|| it.journal.grow(it.file, make)).unwrap_or(libc::EIO),
        Ok(None) => make(),
        Err(_) => libc::EIO,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_fallocate64(fd: c_int, offset: off_t, count: off_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { posix_fallocate(fd, offset, count) }
}
