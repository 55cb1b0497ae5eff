//! Options of sockets. The kernel's socket of the same descriptor keeps them all, so what is set can be read; the stack is told of those that it has.

use super::file::{File, Kind, LIVENESS};
use super::inherit;
use super::open::answer;
use super::stack::{Net, with};
use crate::real;
use base::Duration;
use libc::{c_int, c_ulong, c_void, linger, socklen_t, timeval};

/// getsockopt(2). None if the kernel answers.
pub(crate) unsafe fn get(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    bytes: *mut socklen_t,
) -> Option<c_int> {
    let number = inherit::file(fd)?;
    let found = with(|net| {
        let kind = net.files.get(&number)?.kind;
        match (level, option) {
            _ if matches!(kind, Kind::Fresh) => None,
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                net.carry();
                Some(net.take_failure(number).unwrap_or(0))
            }
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                Some(c_int::from(matches!(kind, Kind::Listener { .. })))
            }
            _ => None,
        }
    })?;
    if value.is_null() || bytes.is_null() {
        return Some(answer(Err(libc::EFAULT)));
    }
    // SAFETY: the program's place has as many bytes as it says.
    unsafe {
        let room = (*bytes as usize).min(size_of::<c_int>());
        std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), value.cast::<u8>(), room);
        *bytes = room as socklen_t;
    }
    Some(0)
}

unsafe fn read<T: Copy>(value: *const c_void, bytes: socklen_t) -> Option<T> {
    let is_there = !value.is_null() && bytes as usize >= size_of::<T>();
    // SAFETY: the program's value has so many bytes.
    is_there.then(|| unsafe { value.cast::<T>().read_unaligned() })
}

fn limit_of(time: timeval) -> Option<Duration> {
    let whole = Duration::from_secs(time.tv_sec.max(0) as u64);
    let limit = whole + Duration::from_micros(time.tv_usec.max(0) as u64);
    (!limit.is_zero()).then_some(limit)
}

/// setsockopt(2), after the kernel has taken the option.
pub(crate) unsafe fn was_set(fd: c_int, level: c_int, option: c_int, value: *const c_void, bytes: socklen_t) {
    let Some(number) = inherit::file(fd) else {
        return;
    };
    with(|net| {
        let Some(file) = net.files.get_mut(&number) else {
            return;
        };
        // SAFETY: the caller's arguments.
        unsafe { note(file, (level, option), value, bytes) };
        if matches!(file.kind, Kind::Stream { .. }) {
            file.is_settled = false;
            net.settle(number);
            net.push();
        }
    });
}

unsafe fn note(file: &mut File, option: (c_int, c_int), value: *const c_void, bytes: socklen_t) {
    // SAFETY: the caller's arguments.
    let (number, time, end) = unsafe {
        (
            read::<c_int>(value, bytes).unwrap_or(0),
            read::<timeval>(value, bytes),
            read::<linger>(value, bytes),
        )
    };
    let seconds = || Duration::from_secs(number.max(1) as u64);
    match option {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => file.receive_limit = time.and_then(limit_of),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => file.send_limit = time.and_then(limit_of),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            file.resets = end.is_some_and(|end| end.l_onoff != 0 && end.l_linger == 0);
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) if number == 0 => file.keep_alive = LIVENESS,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => file.is_no_delay = number != 0,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => file.keep_alive.idle = seconds(),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => file.keep_alive.interval = seconds(),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => file.keep_alive.probes = number.clamp(1, 127) as u8,
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) if number > 0 => {
            file.user_timeout = Some(Duration::from_millis(number as u64));
        }
        _ => {}
    }
}

/// Sets whether calls wait.
fn set_nonblocking(net: &mut Net, number: u32, on: bool) {
    if let Some(file) = net.files.get_mut(&number) {
        file.is_nonblocking = on;
    }
}

/// fcntl(2) of flags. None if the kernel makes the call as it is.
pub(crate) fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> Option<c_int> {
    let number = inherit::file(fd)?;
    match command {
        libc::F_GETFL => with(|net| {
            let is_nonblocking = net.files.get(&number)?.is_nonblocking;
            // SAFETY: no memory is involved.
            let flags = unsafe { real::fcntl(fd, command, 0) };
            Some(match (flags, is_nonblocking) {
                (..0, _) => flags,
                (_, true) => flags | libc::O_NONBLOCK,
                (_, false) => flags & !libc::O_NONBLOCK,
            })
        }),
        libc::F_SETFL => with(|net| {
            let is_dual = matches!(net.files.get(&number)?.kind, Kind::Listener { is_dual: true, .. });
            set_nonblocking(net, number, argument & libc::O_NONBLOCK as c_ulong != 0);
            let kept = if is_dual { libc::O_NONBLOCK as c_ulong } else { 0 };
            // SAFETY: no memory is involved.
            Some(unsafe { real::fcntl(fd, command, argument | kept) })
        }),
        _ => None,
    }
}

/// ioctl(2). None if the kernel makes the call as it is.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> Option<c_int> {
    let number = inherit::file(fd)?;
    let place = argument.cast::<c_int>();
    if argument.is_null() {
        return None;
    }
    match request {
        libc::FIONBIO => with(|net| {
            // SAFETY: the program's place.
            let on = unsafe { place.read_unaligned() } != 0;
            let is_dual = matches!(net.files.get(&number)?.kind, Kind::Listener { is_dual: true, .. });
            set_nonblocking(net, number, on);
            is_dual.then_some(0)
        }),
        libc::FIONREAD | libc::TIOCOUTQ => with(|net| {
            let Kind::Stream { handle, .. } = net.files.get(&number)?.kind else {
                return None;
            };
            net.carry();
            let count = match request {
                libc::FIONREAD => net.sockets().readable_bytes(handle).unwrap_or(0),
                _ => 0,
            };
            // SAFETY: the program's place.
            unsafe { place.write_unaligned(count as c_int) };
            Some(0)
        }),
        _ => None,
    }
}
