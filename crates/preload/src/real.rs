//! The functions that ours stand in for: the next ones in the order in which libraries were loaded.

use libc::{DIR, dev_t, dirent64, gid_t, uid_t};
use libc::{aiocb, c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, loff_t, mode_t, off_t, sigevent};
use libc::{mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, utimbuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

fn find(place: &AtomicPtr<c_void>, name: &str) -> *mut c_void {
    let found = look_up(place, name);
    assert!(!found.is_null(), "the C library has what the program has called");
    found
}

/// Null if nobody has it.
fn look_up(place: &AtomicPtr<c_void>, name: &str) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    place.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[allow(non_snake_case)]
        pub unsafe fn $name($($argument: $type),*) -> $result {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            let found = find(&PLACE, concat!(stringify!($name), "\0"));
            // SAFETY: the C library's function of this name has this type.
            let function: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller keeps to its contract.
            unsafe { function($($argument),*) }
        }
    )*};
}

real! {
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    freopen(path: *const c_char, mode: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fclose(file: *mut libc::FILE) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    lockf(fd: c_int, command: c_int, count: off_t) -> c_int;
    write(fd: c_int, data: *const c_void, count: size_t) -> ssize_t;
    pwrite(fd: c_int, data: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    pwritev(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, count: size_t, flags: c_uint) -> ssize_t;
    copy_file_range(from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, count: size_t, flags: c_uint) -> ssize_t;
    ftruncate(fd: c_int, size: off_t) -> c_int;
    truncate(path: *const c_char, size: off_t) -> c_int;
    fallocate(fd: c_int, mode: c_int, offset: off_t, count: off_t) -> c_int;
    posix_fallocate(fd: c_int, offset: off_t, count: off_t) -> c_int;
    mmap(at: *mut c_void, count: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    fsync(fd: c_int) -> c_int;
    fdatasync(fd: c_int) -> c_int;
    sync_file_range(fd: c_int, offset: off_t, count: off_t, flags: c_uint) -> c_int;
    syncfs(fd: c_int) -> c_int;
    sync() -> ();
    execve(path: *const c_char, values: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, values: *const *const c_char) -> c_int;
    execvp(path: *const c_char, values: *const *const c_char) -> c_int;
    execvpe(path: *const c_char, values: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, values: *const *const c_char, environment: *const *const c_char) -> c_int;
    chroot(path: *const c_char) -> c_int;
    renameat2(from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char, flags: c_uint) -> c_int;
    linkat(from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char, flags: c_int) -> c_int;
    unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    remove(path: *const c_char) -> c_int;
    futimens(fd: c_int, times: *const timespec) -> c_int;
    futimes(fd: c_int, times: *const timeval) -> c_int;
    futimesat(directory: c_int, path: *const c_char, times: *const timeval) -> c_int;
    utimensat(directory: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int;
    utime(path: *const c_char, times: *const utimbuf) -> c_int;
    utimes(path: *const c_char, times: *const timeval) -> c_int;
    lutimes(path: *const c_char, times: *const timeval) -> c_int;
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int;
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int;
    fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int;
    removexattr(path: *const c_char, name: *const c_char) -> c_int;
    lremovexattr(path: *const c_char, name: *const c_char) -> c_int;
    fremovexattr(fd: c_int, name: *const c_char) -> c_int;
    aio_write(request: *mut aiocb) -> c_int;
    aio_write64(request: *mut aiocb) -> c_int;
    aio_fsync(operation: c_int, request: *mut aiocb) -> c_int;
    aio_fsync64(operation: c_int, request: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t, flags: c_int) -> c_int;
    pipe(fds: *mut c_int) -> c_int;
    pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    eventfd(count: c_uint, flags: c_int) -> c_int;
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    bind(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, bytes: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, bytes: socklen_t) -> c_int;
    recv(fd: c_int, place: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    __recv_chk(fd: c_int, place: *mut c_void, bytes: size_t, room: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, place: *mut c_void, bytes: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    __recvfrom_chk(fd: c_int, place: *mut c_void, bytes: size_t, room: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, wait: *mut timespec) -> c_int;
    send(fd: c_int, place: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, place: *const c_void, bytes: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t;
    epoll_wait(set: c_int, events: *mut libc::epoll_event, count: c_int, wait: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut libc::epoll_event, count: c_int, wait: c_int, signals: *const libc::sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut libc::epoll_event, count: c_int, wait: *const timespec, signals: *const libc::sigset_t) -> c_int;
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    read(fd: c_int, data: *mut c_void, bytes: size_t) -> ssize_t;
    __read_chk(fd: c_int, data: *mut c_void, bytes: size_t, room: size_t) -> ssize_t;
    pread(fd: c_int, data: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t;
    __pread_chk(fd: c_int, data: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    lseek(fd: c_int, by: off_t, whence: c_int) -> off_t;
    fstat(fd: c_int, found: *mut libc::stat) -> c_int;
    fstatat(directory: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int;
    statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, found: *mut libc::statx) -> c_int;
    access(path: *const c_char, mode: c_int) -> c_int;
    faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    readlinkat(directory: c_int, path: *const c_char, target: *mut c_char, room: size_t) -> ssize_t;
    __readlinkat_chk(directory: c_int, path: *const c_char, target: *mut c_char, room: size_t, there: size_t) -> ssize_t;
    mkdirat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int;
    mknodat(directory: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int;
    symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int;
    fchmod(fd: c_int, mode: mode_t) -> c_int;
    fchmodat(directory: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int;
    fchownat(directory: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int;
    posix_fadvise(fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int;
    readahead(fd: c_int, offset: off_t, bytes: size_t) -> ssize_t;
    isatty(fd: c_int) -> c_int;
    umask(mask: mode_t) -> mode_t;
    chdir(path: *const c_char) -> c_int;
    fchdir(fd: c_int) -> c_int;
    opendir(path: *const c_char) -> *mut DIR;
    fdopendir(fd: c_int) -> *mut DIR;
    closedir(directory: *mut DIR) -> c_int;
    dirfd(directory: *mut DIR) -> c_int;
    readdir64(directory: *mut DIR) -> *mut dirent64;
    readdir64_r(directory: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int;
    rewinddir(directory: *mut DIR) -> ();
    seekdir(directory: *mut DIR, place: c_long) -> ();
    telldir(directory: *mut DIR) -> c_long;
    flock(fd: c_int, operation: c_int) -> c_int;
    getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, bytes: size_t) -> ssize_t;
    lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, bytes: size_t) -> ssize_t;
    fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, bytes: size_t) -> ssize_t;
    flistxattr(fd: c_int, names: *mut c_char, bytes: size_t) -> ssize_t;
    getdents64(fd: c_int, place: *mut c_void, bytes: size_t) -> ssize_t;
    tee(fd: c_int, to: c_int, bytes: size_t, flags: c_uint) -> ssize_t;
    name_to_handle_at(fd: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    poll(fds: *mut libc::pollfd, count: c_ulong, wait: c_int) -> c_int;
    ppoll(fds: *mut libc::pollfd, count: c_ulong, wait: *const timespec, signals: *const libc::sigset_t) -> c_int;
    select(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, wait: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, wait: *const timespec, signals: *const libc::sigset_t) -> c_int;
    __poll_chk(fds: *mut libc::pollfd, count: c_ulong, wait: c_int, room: size_t) -> c_int;
    __ppoll_chk(fds: *mut libc::pollfd, count: c_ulong, wait: *const timespec, signals: *const libc::sigset_t, room: size_t) -> c_int;
    tcgetattr(fd: c_int, found: *mut c_void) -> c_int;
    aio_read(request: *mut aiocb) -> c_int;
    aio_read64(request: *mut aiocb) -> c_int;
    execveat(directory: c_int, path: *const c_char, values: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, values: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, values: *const *mut c_char, environment: *const *mut c_char) -> c_int;
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
    setfsuid(user: uid_t) -> c_int;
    setfsgid(group: gid_t) -> c_int;
    unshare(flags: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    capset(header: *mut c_void, data: *const c_void) -> c_int;
    setrlimit(resource: c_uint, limit: *const c_void) -> c_int;
    setrlimit64(resource: c_uint, limit: *const c_void) -> c_int;
    prlimit(pid: c_int, resource: c_uint, limit: *const c_void, before: *mut c_void) -> c_int;
    prlimit64(pid: c_int, resource: c_uint, limit: *const c_void, before: *mut c_void) -> c_int;
    sigaction(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int;
    _Fork() -> libc::pid_t;
    sigprocmask(how: c_int, set: *const libc::sigset_t, before: *mut libc::sigset_t) -> c_int;
    pthread_sigmask(how: c_int, set: *const libc::sigset_t, before: *mut libc::sigset_t) -> c_int;
    pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t, start: *const c_void, argument: *mut c_void) -> c_int;
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
}

/// Functions whose arguments nobody knows.
macro_rules! variadic {
    ($($name:ident;)*) => {$(
        pub fn $name() -> *mut c_void {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            find(&PLACE, concat!(stringify!($name), "\0"))
        }
    )*};
}

variadic! {
    dprintf;
    __dprintf_chk;
    vdprintf;
    __vdprintf_chk;
    execl;
    execle;
    execlp;
    vfork;
    clone;
}

/// Functions of libraries that a program may lack: they answer with a negative error number.
macro_rules! optional {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        pub unsafe fn $name($($argument: $type),*) -> c_int {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            let found = look_up(&PLACE, concat!(stringify!($name), "\0"));
            if found.is_null() {
                return -libc::ENOSYS;
            }
            // SAFETY: the library's function of this name has this type.
            let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller keeps to its contract.
            unsafe { function($($argument),*) }
        }
    )*};
}

optional! {
    io_submit(context: *mut c_void, count: c_long, requests: *mut *mut c_void);
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
}
