//! Sending to sockets, and waiting for events (`outward`).

use crate::{is_passive, outward, real};
use libc::{
    c_int, c_void, epoll_event, iovec, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};
use smallvec::SmallVec;
use std::slice;

/// Flags with which a message is one like any other.
const PLAIN: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;

fn is_plain(data: *const c_void, count: size_t, flags: c_int) -> bool {
    !data.is_null() && count > 0 && count <= isize::MAX as usize && flags & !PLAIN == 0
}

/// Sends bytes by `make`, or holds them; settles first if they cannot be held.
pub(crate) unsafe fn send_one(
    fd: c_int,
    data: *const c_void,
    count: size_t,
    flags: c_int,
    make: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !outward::is_unsettled() || is_passive() {
        return make();
    }
    if !is_plain(data, count, flags) {
        outward::settle();
        return make();
    }
    // SAFETY: the program's bytes.
    let data = unsafe { slice::from_raw_parts(data.cast::<u8>(), count) };
    outward::send(fd, &[data], make)
}

/// The same of a vector.
pub(crate) unsafe fn send_parts(
    fd: c_int,
    (parts, count): (*const iovec, usize),
    flags: c_int,
    make: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !outward::is_unsettled() || is_passive() {
        return make();
    }
    if parts.is_null() || count == 0 || count > libc::UIO_MAXIOV as usize || flags & !PLAIN != 0 {
        outward::settle();
        return make();
    }
    // SAFETY: the program's vector.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    let filled = parts.iter().filter(|part| part.iov_len > 0);
    // SAFETY: the program's bytes.
    let bytes = |part: &iovec| unsafe { slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
    let data: SmallVec<[&[u8]; 16]> = filled.map(bytes).collect();
    outward::send(fd, &data, make)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, data: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { send_one(fd, data, count, flags, || real::send(fd, data, count, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    data: *const c_void,
    count: size_t,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::sendto(fd, data, count, flags, to, length) };
    if to.is_null() {
        // SAFETY: the caller's arguments.
        return unsafe { send_one(fd, data, count, flags, make) };
    }
    outward::settle();
    make()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::sendmsg(fd, message, flags) };
    // SAFETY: the program's message, or none.
    let plain = unsafe { message.as_ref() }.filter(|it| it.msg_name.is_null() && it.msg_controllen == 0);
    match plain {
        // SAFETY: the caller's arguments.
        Some(it) => unsafe { send_parts(fd, (it.msg_iov, it.msg_iovlen), flags, make) },
        None => {
            outward::settle();
            make()
        }
    }
}

/// Waits for events of an epoll by `wait`, which is told a timeout.
unsafe fn wait_at(
    fd: c_int,
    events: *mut epoll_event,
    timeout: c_int,
    wait: impl Fn(c_int) -> c_int,
) -> c_int {
    let wait = |timeout| {
        let count = wait(timeout);
        if count <= 0 || !outward::is_watched(fd) {
            return (count, false);
        }
        // SAFETY: the kernel has filled so many.
        let filled = unsafe { slice::from_raw_parts_mut(events, count as usize) };
        let kept = outward::without_ours(filled) as c_int;
        (kept, kept < count)
    };
    // With no events but ours the time begins anew: it is the device's, and passes before any timeout does.
    let again = |timeout, send: &dyn Fn()| {
        loop {
            let (count, is_woken) = wait(timeout);
            if is_woken {
                send();
            }
            if count != 0 || !is_woken || timeout == 0 {
                return count;
            }
        }
    };
    let plain = |own: Option<c_int>| again(own.unwrap_or(timeout), &|| {});
    let sleep = |send: &dyn Fn()| again(timeout, send);
    let is_watched = || outward::watch(fd);
    outward::wait_for_events(timeout == 0, plain, Some((&is_watched, &sleep)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    fd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's arguments.
    let wait = |timeout| unsafe { real::epoll_wait(fd, events, count, timeout) };
    // SAFETY: the caller's arguments.
    unsafe { wait_at(fd, events, timeout, wait) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    let wait = |timeout| unsafe { real::epoll_pwait(fd, events, count, timeout, mask) };
    // SAFETY: the caller's arguments.
    unsafe { wait_at(fd, events, timeout, wait) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    fd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's time, or none.
    let own = unsafe { timeout.as_ref() };
    let ms = own.map_or(-1, |it| {
        let ms = it
            .tv_sec
            .saturating_mul(1000)
            .saturating_add((it.tv_nsec + 999_999) / 1_000_000);
        ms.clamp(0, c_int::MAX.into()) as c_int
    });
    // SAFETY: the caller's arguments.
    unsafe { epoll_pwait(fd, events, count, ms, mask) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let wait = |own: Option<c_int>| unsafe { real::poll(fds, count, own.unwrap_or(timeout)) };
    // It is not woken by us: our thread sends.
    outward::wait_for_events(timeout == 0, wait, None)
}

/// `pthread_create`'s argument.
struct Start {
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
}

/// A thread of our own: its calls are not followed.
extern "C" fn start_inside(start: *mut c_void) -> *mut c_void {
    crate::IS_INSIDE.set(true);
    // SAFETY: made by `pthread_create` for this thread.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    (start.routine)(start.argument)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    if !crate::IS_INSIDE.get() {
        // SAFETY: the caller's arguments.
        return unsafe { real::pthread_create(thread, attributes, routine, argument) };
    }
    let start = Box::into_raw(Box::new(Start { routine, argument }));
    // SAFETY: the caller's, and what our routine expects.
    let result = unsafe { real::pthread_create(thread, attributes, start_inside, start.cast()) };
    if result != 0 {
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(start) });
    }
    result
}
