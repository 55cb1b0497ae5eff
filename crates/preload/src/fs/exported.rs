//! Functions of the C library that only `run --fs` stands in for.

use super::attributes::{self, Of};
use super::data::{self, At};
use super::leave::{before_children, before_exec, before_unseen_children, end, leave, restart};
use super::numbers::by_beside;
use super::{change, look, open, place, table};
use crate::behind as real;
use crate::state::{answer, set_errno};
use libc::{
    c_char, c_int, c_uint, c_ulong, c_void, dev_t, gid_t, iovec, mode_t, off_t, size_t, ssize_t, uid_t,
};
use std::slice;

/// Functions that are served, or go to the C library.
macro_rules! served {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $served:expr, $else:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller's arguments.
            if let Some(result) = unsafe { $served } {
                return result;
            }
            // SAFETY: the caller's arguments.
            unsafe { $else }
        }
    )*};
}

/// A block whose calls are not all unsafe.
macro_rules! safe {
    ($served:expr) => {{
        unsafe fn same<R>(result: R) -> R {
            result
        }
        same($served)
    }};
}

const HERE: c_int = libc::AT_FDCWD;
const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

served! {
    read(fd: c_int, data: *mut c_void, bytes: size_t) -> ssize_t =
        data::read(fd, At::Cursor, data, bytes), real::read(fd, data, bytes);
    __read_chk(fd: c_int, data: *mut c_void, bytes: size_t, room: size_t) -> ssize_t =
        data::read(fd, At::Cursor, data, bytes.min(room)), real::__read_chk(fd, data, bytes, room);
    pread(fd: c_int, data: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t =
        data::read(fd, At::Offset(offset), data, bytes), real::pread(fd, data, bytes, offset);
    pread64(fd: c_int, data: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t =
        data::read(fd, At::Offset(offset), data, bytes), real::pread(fd, data, bytes, offset);
    __pread_chk(fd: c_int, data: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t =
        data::read(fd, At::Offset(offset), data, bytes.min(room)), real::__pread_chk(fd, data, bytes, offset, room);
    __pread64_chk(fd: c_int, data: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t =
        data::read(fd, At::Offset(offset), data, bytes.min(room)), real::__pread_chk(fd, data, bytes, offset, room);
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t =
        data::readv(fd, At::Cursor, (parts, count)), real::readv(fd, parts, count);
    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t =
        data::readv(fd, At::Offset(offset), (parts, count)), real::preadv(fd, parts, count, offset);
    preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t =
        data::readv(fd, At::Offset(offset), (parts, count)), real::preadv(fd, parts, count, offset);
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        readv_with(fd, (parts, count), offset, flags), real::preadv2(fd, parts, count, offset, flags);
    preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        readv_with(fd, (parts, count), offset, flags), real::preadv2(fd, parts, count, offset, flags);
    lseek(fd: c_int, by: off_t, whence: c_int) -> off_t =
        safe!(data::lseek(fd, by, whence)), real::lseek(fd, by, whence);
    lseek64(fd: c_int, by: off_t, whence: c_int) -> off_t =
        safe!(data::lseek(fd, by, whence)), real::lseek(fd, by, whence);
    stat(path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, 0), real::fstatat(HERE, path, found, 0);
    stat64(path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, 0), real::fstatat(HERE, path, found, 0);
    lstat(path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, NO_FOLLOW), real::fstatat(HERE, path, found, NO_FOLLOW);
    lstat64(path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, NO_FOLLOW), real::fstatat(HERE, path, found, NO_FOLLOW);
    fstat(fd: c_int, found: *mut libc::stat) -> c_int =
        look::fstat(fd, found), real::fstat(fd, found);
    fstat64(fd: c_int, found: *mut libc::stat) -> c_int =
        look::fstat(fd, found), real::fstat(fd, found);
    fstatat(directory: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int =
        look::stat((directory, path), found, flags), real::fstatat(directory, path, found, flags);
    fstatat64(directory: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int =
        look::stat((directory, path), found, flags), real::fstatat(directory, path, found, flags);
    // Of programs that were linked with a C library before 2.33.
    __xstat(_version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, 0), real::fstatat(HERE, path, found, 0);
    __xstat64(_version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, 0), real::fstatat(HERE, path, found, 0);
    __lxstat(_version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, NO_FOLLOW), real::fstatat(HERE, path, found, NO_FOLLOW);
    __lxstat64(_version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int =
        look::stat((HERE, path), found, NO_FOLLOW), real::fstatat(HERE, path, found, NO_FOLLOW);
    __fxstat(_version: c_int, fd: c_int, found: *mut libc::stat) -> c_int =
        look::fstat(fd, found), real::fstat(fd, found);
    __fxstat64(_version: c_int, fd: c_int, found: *mut libc::stat) -> c_int =
        look::fstat(fd, found), real::fstat(fd, found);
    __fxstatat(_version: c_int, directory: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int =
        look::stat((directory, path), found, flags), real::fstatat(directory, path, found, flags);
    __fxstatat64(_version: c_int, directory: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int =
        look::stat((directory, path), found, flags), real::fstatat(directory, path, found, flags);
    statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, found: *mut libc::statx) -> c_int =
        look::statx((directory, path), (flags, mask), found), real::statx(directory, path, flags, mask, found);
    access(path: *const c_char, mode: c_int) -> c_int =
        safe!(look::access(HERE, path, mode, 0)), real::access(path, mode);
    faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int =
        safe!(look::access(directory, path, mode, flags)), real::faccessat(directory, path, mode, flags);
    eaccess(path: *const c_char, mode: c_int) -> c_int =
        safe!(look::access(HERE, path, mode, libc::AT_EACCESS)), real::faccessat(HERE, path, mode, libc::AT_EACCESS);
    euidaccess(path: *const c_char, mode: c_int) -> c_int =
        safe!(look::access(HERE, path, mode, libc::AT_EACCESS)), real::faccessat(HERE, path, mode, libc::AT_EACCESS);
    readlink(path: *const c_char, target: *mut c_char, room: size_t) -> ssize_t =
        readlink_at(HERE, path, target, room), real::readlinkat(HERE, path, target, room);
    readlinkat(directory: c_int, path: *const c_char, target: *mut c_char, room: size_t) -> ssize_t =
        readlink_at(directory, path, target, room), real::readlinkat(directory, path, target, room);
    __readlink_chk(path: *const c_char, target: *mut c_char, room: size_t, there: size_t) -> ssize_t =
        readlink_at(HERE, path, target, room.min(there)), real::__readlinkat_chk(HERE, path, target, room, there);
    __readlinkat_chk(directory: c_int, path: *const c_char, target: *mut c_char, room: size_t, there: size_t) -> ssize_t =
        readlink_at(directory, path, target, room.min(there)), real::__readlinkat_chk(directory, path, target, room, there);
    mkdir(path: *const c_char, mode: mode_t) -> c_int =
        safe!(change::mkdir((HERE, path), mode)), real::mkdirat(HERE, path, mode);
    mkdirat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int =
        safe!(change::mkdir((directory, path), mode)), real::mkdirat(directory, path, mode);
    mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int =
        safe!(change::mknod((HERE, path), mode, device)), real::mknodat(HERE, path, mode, device);
    mknodat(directory: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int =
        safe!(change::mknod((directory, path), mode, device)), real::mknodat(directory, path, mode, device);
    symlink(target: *const c_char, path: *const c_char) -> c_int =
        safe!(change::symlink(target, (HERE, path))), real::symlinkat(target, HERE, path);
    symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int =
        safe!(change::symlink(target, (directory, path))), real::symlinkat(target, directory, path);
    rmdir(path: *const c_char) -> c_int =
        safe!(change::unlink((HERE, path), libc::AT_REMOVEDIR)), real::unlinkat(HERE, path, libc::AT_REMOVEDIR);
    chmod(path: *const c_char, mode: mode_t) -> c_int =
        safe!(change::chmod((HERE, path), mode, 0)), real::fchmodat(HERE, path, mode, 0);
    fchmodat(directory: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int =
        safe!(change::chmod((directory, path), mode, flags)), real::fchmodat(directory, path, mode, flags);
    fchmod(fd: c_int, mode: mode_t) -> c_int =
        safe!(change::fchmod(fd, mode)), real::fchmod(fd, mode);
    chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int =
        safe!(change::chown((HERE, path), (user, group), 0)), real::fchownat(HERE, path, user, group, 0);
    lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int =
        safe!(change::chown((HERE, path), (user, group), NO_FOLLOW)), real::fchownat(HERE, path, user, group, NO_FOLLOW);
    fchownat(directory: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int =
        safe!(change::chown((directory, path), (user, group), flags)), real::fchownat(directory, path, user, group, flags);
    fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int =
        safe!(change::fchown(fd, (user, group))), real::fchown(fd, user, group);
    posix_fadvise(fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int =
        safe!(data::takes_advice(fd).then_some(0)), real::posix_fadvise(fd, offset, bytes, advice);
    posix_fadvise64(fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int =
        safe!(data::takes_advice(fd).then_some(0)), real::posix_fadvise(fd, offset, bytes, advice);
    readahead(fd: c_int, offset: off_t, bytes: size_t) -> ssize_t =
        safe!(data::takes_advice(fd).then_some(0)), real::readahead(fd, offset, bytes);
    isatty(fd: c_int) -> c_int = safe!(is_no_terminal(fd, 0)), real::isatty(fd);
    getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, bytes: size_t) -> ssize_t =
        attributes::get(Of::Path(path, true), name, value, bytes), real::getxattr(path, name, value, bytes);
    lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, bytes: size_t) -> ssize_t =
        attributes::get(Of::Path(path, false), name, value, bytes), real::lgetxattr(path, name, value, bytes);
    fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, bytes: size_t) -> ssize_t =
        attributes::get(Of::Descriptor(fd), name, value, bytes),
        by_beside(fd, |fd| real::fgetxattr(fd, name, value, bytes) as i64) as ssize_t;
    tcgetattr(fd: c_int, found: *mut c_void) -> c_int = safe!(is_no_terminal(fd, -1)), real::tcgetattr(fd, found);
}

unsafe fn readv_with(
    fd: c_int,
    parts: (*const iovec, c_int),
    offset: off_t,
    flags: c_int,
) -> Option<ssize_t> {
    if !table::is_known(fd) || !data::has_usual_flags(fd, flags) {
        return None;
    }
    // SAFETY: the caller's arguments.
    unsafe { data::readv(fd, At::of(offset), parts) }
}

unsafe fn readlink_at(
    directory: c_int,
    path: *const c_char,
    target: *mut c_char,
    room: size_t,
) -> Option<ssize_t> {
    if target.is_null() || room == 0 {
        return None;
    }
    // SAFETY: the program's place.
    let target = unsafe { slice::from_raw_parts_mut(target.cast::<u8>(), room) };
    open::readlink(directory, path, target)
}

fn is_no_terminal(fd: c_int, result: c_int) -> Option<c_int> {
    data::takes_advice(fd).then(|| {
        set_errno(libc::ENOTTY);
        result
    })
}

/// No handlers of forks run in its child.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> libc::pid_t {
    before_unseen_children();
    // SAFETY: it takes nothing.
    unsafe { real::_Fork() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn umask(mask: mode_t) -> mode_t {
    open::umask(mask)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::chdir(path) };
    place::moved();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fchdir(fd: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let result = answer(leave(fd).map(|()| unsafe { real::fchdir(fd) }));
    place::moved();
    result
}

/// Functions by an opening beside the descriptor: they do not look at its offset.
macro_rules! beside {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($argument: $type),*) -> $result {
            // SAFETY: the caller's arguments.
            by_beside(fd, |fd| unsafe { real::$name(fd, $($argument),*) as i64 }) as $result
        }
    )*};
}

beside! {
    flock(operation: c_int) -> c_int;
    flistxattr(names: *mut c_char, bytes: size_t) -> ssize_t;
}

/// Functions before which the kernel gets the file of their first descriptor.
macro_rules! leaves {
    ($($name:ident($fd:ident: c_int $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($fd: c_int $(, $argument: $type)*) -> $result {
            if leave($fd).is_err() {
                set_errno(libc::EIO);
                return -1;
            }
            // SAFETY: the caller's arguments.
            unsafe { real::$name($fd $(, $argument)*) }
        }
    )*};
}

leaves! {
    getdents64(fd: c_int, place: *mut c_void, bytes: size_t) -> ssize_t;
    tee(fd: c_int, to: c_int, bytes: size_t, flags: c_uint) -> ssize_t;
    name_to_handle_at(fd: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the caller's arguments.
    answer(leave(fd).map(|()| unsafe { real::epoll_ctl(set, operation, fd, event) }))
}

unsafe fn leave_polled(fds: *const libc::pollfd, count: c_ulong) {
    if !table::has_any() || fds.is_null() {
        return;
    }
    // SAFETY: the program's descriptors.
    for it in unsafe { slice::from_raw_parts(fds, count as usize) } {
        // One that cannot be had is polled as it is.
        let _ = leave(it.fd);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut libc::pollfd, count: c_ulong, wait: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        leave_polled(fds, count);
        real::poll(fds, count, wait)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut libc::pollfd,
    count: c_ulong,
    wait: *const libc::timespec,
    signals: *const libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        leave_polled(fds, count);
        real::ppoll(fds, count, wait, signals)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut libc::pollfd,
    count: c_ulong,
    wait: c_int,
    room: size_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        leave_polled(fds, count);
        real::__poll_chk(fds, count, wait, room)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    count: c_ulong,
    wait: *const libc::timespec,
    signals: *const libc::sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        leave_polled(fds, count);
        real::__ppoll_chk(fds, count, wait, signals, room)
    }
}

/// Asynchronous reads are of the C library's threads.
macro_rules! asynchronous {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(request: *mut libc::aiocb) -> c_int {
            // SAFETY: null, or the program's request.
            let fd = unsafe { request.as_ref() }.map_or(-1, |it| it.aio_fildes);
            // SAFETY: the caller's arguments.
            answer(leave(fd).map(|()| unsafe { real::$name(request) }))
        }
    )*};
}

asynchronous! {
    aio_read;
    aio_read64;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    values: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    before_exec();
    // SAFETY: the caller's arguments.
    answer(leave(directory).map(|()| unsafe { real::execveat(directory, path, values, environment, flags) }))
}

unsafe fn leave_selected(count: c_int, sets: [*mut libc::fd_set; 3]) {
    if !table::has_any() {
        return;
    }
    for fd in (0..count).filter(|fd| table::is_known(*fd)) {
        let is_in = |set: &*mut libc::fd_set| {
            // SAFETY: the program's sets, which have so many bits.
            !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) }
        };
        if sets.iter().any(is_in) {
            // One that cannot be had is looked at as it is.
            let _ = leave(fd);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    wait: *mut libc::timeval,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        leave_selected(count, [read, write, except]);
        real::select(count, read, write, except, wait)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    wait: *const libc::timespec,
    signals: *const libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        leave_selected(count, [read, write, except]);
        real::pselect(count, read, write, except, wait, signals)
    }
}

/// Functions before which something is done.
macro_rules! after {
    ($before:path: $($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            $before();
            // SAFETY: the caller's arguments.
            unsafe { real::$name($($argument),*) }
        }
    )*};
}

after! {
    before_children:
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, values: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, values: *const *mut c_char, environment: *const *mut c_char) -> c_int;
}

after! {
    restart:
    setuid(user: uid_t) -> c_int;
    setgid(group: gid_t) -> c_int;
    seteuid(user: uid_t) -> c_int;
    setegid(group: gid_t) -> c_int;
    setreuid(user: uid_t, effective: uid_t) -> c_int;
    setregid(group: gid_t, effective: gid_t) -> c_int;
    setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    setresgid(group: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    setgroups(count: size_t, groups: *const gid_t) -> c_int;
    initgroups(user: *const c_char, group: gid_t) -> c_int;
}

after! {
    end:
    setfsuid(user: uid_t) -> c_int;
    setfsgid(group: gid_t) -> c_int;
    unshare(flags: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    capset(header: *mut c_void, data: *const c_void) -> c_int;
}

/// Limits: one of the size of files is the kernel's to keep.
fn before_limit(resource: c_uint, limit: *const c_void) {
    if resource == libc::RLIMIT_FSIZE && !limit.is_null() {
        restart();
    }
}

macro_rules! limits {
    ($($name:ident($($before:ident: $kind:ty,)* ; $limit:ident $(, $argument:ident: $type:ty)*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($before: $kind,)* resource: c_uint, $limit: *const c_void $(, $argument: $type)*) -> c_int {
            before_limit(resource, $limit);
            // SAFETY: the caller's arguments.
            unsafe { real::$name($($before,)* resource, $limit $(, $argument)*) }
        }
    )*};
}

limits! {
    setrlimit(; limit);
    setrlimit64(; limit);
    prlimit(pid: c_int, ; limit, before: *mut c_void);
    prlimit64(pid: c_int, ; limit, before: *mut c_void);
}
