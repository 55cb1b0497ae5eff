//! The functions that those of the file system (`fs`) go on to: sockets are looked at before the C library is called.

use crate::net::{before_program, data, epoll, poll as polled, until};
pub use crate::real::*;
use libc::{
    c_char, c_int, c_ulong, c_void, epoll_event, fd_set, iovec, pollfd, sigset_t, size_t, ssize_t, timespec,
    timeval,
};
use std::ptr;
use std::time::Duration;

use crate::real;

pub unsafe fn read(fd: c_int, place: *mut c_void, bytes: size_t) -> ssize_t {
    let part = iovec {
        iov_base: place,
        iov_len: bytes,
    };
    // SAFETY: the caller's arguments.
    unsafe { data::receive(fd, (&part, 1), 0).unwrap_or_else(|| real::read(fd, place, bytes)) }
}

pub unsafe fn __read_chk(fd: c_int, place: *mut c_void, bytes: size_t, room: size_t) -> ssize_t {
    let part = iovec {
        iov_base: place,
        iov_len: bytes.min(room),
    };
    // SAFETY: the caller's arguments.
    unsafe { data::receive(fd, (&part, 1), 0).unwrap_or_else(|| real::__read_chk(fd, place, bytes, room)) }
}

pub unsafe fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let served = usize::try_from(count).ok();
    // SAFETY: the caller's arguments.
    unsafe {
        let served = served.and_then(|count| data::receive(fd, (parts, count), 0));
        served.unwrap_or_else(|| real::readv(fd, parts, count))
    }
}

pub unsafe fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let served = epoll::control(set, operation, fd, event);
        served.unwrap_or_else(|| real::epoll_ctl(set, operation, fd, event))
    }
}

pub unsafe fn poll(fds: *mut pollfd, count: c_ulong, wait: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let served = polled::poll(fds, count, || Ok(polled::limit_of_ms(wait)), ptr::null());
        served.unwrap_or_else(|| real::poll(fds, count, wait))
    }
}

pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: c_ulong,
    wait: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let served = polled::poll(fds, count, || polled::limit_of(wait), signals);
        served.unwrap_or_else(|| real::ppoll(fds, count, wait, signals))
    }
}

pub unsafe fn __poll_chk(fds: *mut pollfd, count: c_ulong, wait: c_int, room: size_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let served = polled::poll(fds, count, || Ok(polled::limit_of_ms(wait)), ptr::null());
        served.unwrap_or_else(|| real::__poll_chk(fds, count, wait, room))
    }
}

pub unsafe fn __ppoll_chk(
    fds: *mut pollfd,
    count: c_ulong,
    wait: *const timespec,
    signals: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let served = polled::poll(fds, count, || polled::limit_of(wait), signals);
        served.unwrap_or_else(|| real::__ppoll_chk(fds, count, wait, signals, room))
    }
}

pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    wait: *mut timeval,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let limit = match wait.as_ref() {
            None => Ok(None),
            Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => Err(libc::EINVAL),
            Some(time) => {
                let micros = Duration::from_micros(time.tv_usec as u64);
                Ok(Some(Duration::from_secs(time.tv_sec as u64) + micros))
            }
        };
        let end = until(limit.ok().flatten());
        match polled::select(count, [read, write, except], || limit, ptr::null()) {
            Some(found) => {
                polled::tell_rest(wait, end);
                found
            }
            None => real::select(count, read, write, except, wait),
        }
    }
}

pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    wait: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let served = polled::select(count, [read, write, except], || polled::limit_of(wait), signals);
        served.unwrap_or_else(|| real::pselect(count, read, write, except, wait, signals))
    }
}

/// Functions that start programs.
macro_rules! starts {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        pub unsafe fn $name($($argument: $type),*) -> $result {
            before_program();
            // SAFETY: the caller's arguments.
            unsafe { real::$name($($argument),*) }
        }
    )*};
}

starts! {
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, values: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, values: *const *mut c_char, environment: *const *mut c_char) -> c_int;
}
