//! Functions of the C library that only `run --tcp` stands in for.

use super::{address, data, epoll, names, open, options, poll};
use crate::real;
use libc::{
    c_int, c_void, epoll_event, iovec, mmsghdr, msghdr, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
};
use libc::{c_uint, timespec};
use std::ptr;

/// Functions that are served, or go to the C library.
macro_rules! served {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $served:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller's arguments.
            if let Some(result) = unsafe { $served } {
                return result;
            }
            // SAFETY: the caller's arguments.
            unsafe { real::$name($($argument),*) }
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

served! {
    bind(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int = open::bind(fd, address, bytes);
    listen(fd: c_int, backlog: c_int) -> c_int = safe!(open::listen(fd, backlog));
    connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int = open::connect(fd, address, bytes);
    shutdown(fd: c_int, how: c_int) -> c_int = safe!(open::shutdown(fd, how));
    getsockname(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t) -> c_int = named(fd, false, address, bytes);
    getpeername(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t) -> c_int = named(fd, true, address, bytes);
    getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, bytes: *mut socklen_t) -> c_int =
        options::get(fd, level, option, value, bytes);
    recv(fd: c_int, place: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t =
        data::receive(fd, (&part(place, bytes), 1), flags);
    __recv_chk(fd: c_int, place: *mut c_void, bytes: size_t, room: size_t, flags: c_int) -> ssize_t =
        data::receive(fd, (&part(place, bytes.min(room)), 1), flags);
    recvfrom(fd: c_int, place: *mut c_void, bytes: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t =
        from(data::receive(fd, (&part(place, bytes), 1), flags), address, length);
    __recvfrom_chk(fd: c_int, place: *mut c_void, bytes: size_t, room: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t =
        from(data::receive(fd, (&part(place, bytes.min(room)), 1), flags), address, length);
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = data::receive_message(fd, message, flags);
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, wait: *mut timespec) -> c_int =
        receive_first(fd, messages, count, flags);
    send(fd: c_int, place: *const c_void, bytes: size_t, flags: c_int) -> ssize_t =
        data::send(fd, (&part(place.cast_mut(), bytes), 1), flags);
    sendto(fd: c_int, place: *const c_void, bytes: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t =
        data::send(fd, (&part(place.cast_mut(), bytes), 1), flags);
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, wait: c_int) -> c_int =
        epoll::wait(set, events, count, || Ok(poll::limit_of_ms(wait)), ptr::null());
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, wait: c_int, signals: *const sigset_t) -> c_int =
        epoll::wait(set, events, count, || Ok(poll::limit_of_ms(wait)), signals);
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, wait: *const timespec, signals: *const sigset_t) -> c_int =
        epoll::wait(set, events, count, || poll::limit_of(wait), signals);
}

/// The name of a served socket, or of one that stands for one.
unsafe fn named(fd: c_int, is_peer: bool, address: *mut sockaddr, bytes: *mut socklen_t) -> Option<c_int> {
    // SAFETY: the caller's arguments.
    unsafe {
        if let Some(result) = open::name(fd, is_peer, address, bytes) {
            return Some(result);
        }
        let (family, end) = names::of(fd, is_peer)?;
        address::write(family, end, address, bytes);
    }
    Some(0)
}

fn part(place: *mut c_void, bytes: size_t) -> iovec {
    iovec {
        iov_base: place,
        iov_len: bytes,
    }
}

/// A connection says nothing of where bytes are from.
unsafe fn from(result: Option<ssize_t>, address: *mut sockaddr, length: *mut socklen_t) -> Option<ssize_t> {
    if result.is_some_and(|result| result >= 0) && !address.is_null() && !length.is_null() {
        // SAFETY: the program's place.
        unsafe { *length = 0 };
    }
    result
}

/// recvmmsg(2): one message is as many as a stream has.
unsafe fn receive_first(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Option<c_int> {
    if messages.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the program's messages.
    unsafe {
        let received =
            data::receive_message(fd, &raw mut (*messages).msg_hdr, flags & !libc::MSG_WAITFORONE)?;
        if received < 0 {
            return Some(-1);
        }
        (*messages).msg_len = received as c_uint;
        Some(1)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let result = real::setsockopt(fd, level, option, value, bytes);
        if result == 0 {
            options::was_set(fd, level, option, value, bytes);
        } else if level == libc::IPPROTO_TCP && names::of(fd, false).is_some() {
            // The stack has the connection, with options of its own.
            return 0;
        }
        result
    }
}
