//! Bytes in and out of served sockets.

use super::file::Kind;
use super::inherit;
use super::open::ended;
use super::rest::{NO_FDS, Wish, rest, until};
use super::stack::{Net, with};
use crate::state::set_errno;
use base::{Duration, Instant};
use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, ssize_t};
use sockets::{Handle, SocketError};
use std::slice;

/// Parts of a vector at most (the kernel's UIO_MAXIOV).
const PARTS_MAX: usize = 1024;
/// Bytes that are copied at once where they have no other place.
const COPY_BYTES: usize = 64 << 10;

/// The program's vector.
pub(crate) type Parts = (*const iovec, usize);

/// The outcome of a look at a socket.
enum Look {
    /// So many bytes.
    Count(usize),
    /// Nothing now.
    Nothing,
    Failed(c_int),
    /// The kernel has the socket.
    Kernels,
}

/// How a call waits.
struct Patience {
    is_nonblocking: bool,
    limit: Option<Duration>,
}

fn failed(code: c_int) -> ssize_t {
    set_errno(code);
    -1
}

/// The parts of a vector from a byte on: `work` has each of them, until it does less than the part has.
unsafe fn for_parts(
    (parts, count): Parts,
    mut skipped: usize,
    mut work: impl FnMut(*mut u8, usize) -> Result<usize, SocketError>,
) -> Result<usize, SocketError> {
    let mut total = 0;
    for index in 0..count {
        // SAFETY: the program's vector.
        let part = unsafe { parts.add(index).read_unaligned() };
        let passed = skipped.min(part.iov_len);
        skipped -= passed;
        let bytes = part.iov_len - passed;
        if bytes == 0 {
            continue;
        }
        // SAFETY: inside the part.
        match work(unsafe { part.iov_base.cast::<u8>().add(passed) }, bytes) {
            Ok(done) => {
                total += done;
                if done < bytes {
                    break;
                }
            }
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

unsafe fn bytes_of((parts, count): Parts) -> Option<usize> {
    if count > PARTS_MAX || (count > 0 && parts.is_null()) {
        return None;
    }
    let mut total = 0usize;
    for index in 0..count {
        // SAFETY: the program's vector.
        total = total.checked_add(unsafe { parts.add(index).read_unaligned() }.iov_len)?;
    }
    (total <= isize::MAX as usize).then_some(total)
}

/// The stack's socket of a connection, or the answer.
fn stream(net: &Net, number: u32, unconnected: c_int) -> Result<Handle, Look> {
    match net.files.get(&number).map(|file| file.kind) {
        None => Err(Look::Failed(libc::EBADF)),
        Some(_) if net.bridges.contains_key(&number) => Err(Look::Kernels),
        Some(Kind::Stream { handle, .. }) => Ok(handle),
        Some(Kind::Lost) => Err(Look::Failed(libc::ENETDOWN)),
        Some(Kind::Fresh) => Err(Look::Kernels),
        Some(_) => Err(Look::Failed(unconnected)),
    }
}

fn patience(net: &Net, number: u32, flags: c_int, sends: bool) -> Patience {
    let file = &net.files[&number];
    Patience {
        is_nonblocking: file.is_nonblocking || flags & libc::MSG_DONTWAIT != 0,
        limit: if sends {
            file.send_limit
        } else {
            file.receive_limit
        },
    }
}

/// recv(2) and the like. None if the kernel is to make the call.
pub(crate) unsafe fn receive(fd: c_int, parts: Parts, flags: c_int) -> Option<ssize_t> {
    let number = inherit::file(fd)?;
    // SAFETY: the caller's arguments.
    let Some(wanted) = (unsafe { bytes_of(parts) }) else {
        return Some(failed(libc::EINVAL));
    };
    if flags & libc::MSG_OOB != 0 {
        return Some(failed(libc::EINVAL));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Some(failed(libc::EAGAIN));
    }
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let (mut done, mut end) = (0, None);
    loop {
        let (look, patience) = with(|net| {
            // SAFETY: the caller's arguments.
            let look = unsafe { look_for_bytes(net, number, (parts, done, wanted), flags) };
            let waits = matches!(look, Look::Nothing) && net.files.contains_key(&number);
            let patience = waits.then(|| patience(net, number, flags, false));
            (look, patience)
        });
        match look {
            Look::Count(0) => return Some(done as ssize_t),
            Look::Count(count) => {
                done += count;
                if !waits_for_all || done == wanted {
                    return Some(done as ssize_t);
                }
            }
            Look::Kernels => return None,
            Look::Failed(_) if done > 0 => return Some(done as ssize_t),
            Look::Failed(code) => return Some(failed(code)),
            Look::Nothing if wanted == done => return Some(done as ssize_t),
            Look::Nothing => {
                if let Some(code) = wait(number, patience, &mut end, libc::EPOLLIN as u32) {
                    return Some(match done {
                        0 => failed(code),
                        done => done as ssize_t,
                    });
                }
            }
        }
    }
}

/// Waits for one of the events. The error, if the call is not to go on.
fn wait(
    number: u32,
    patience: Option<Patience>,
    end: &mut Option<Option<Instant>>,
    events: u32,
) -> Option<c_int> {
    let Some(patience) = patience else {
        return Some(libc::EBADF);
    };
    if patience.is_nonblocking {
        return Some(libc::EAGAIN);
    }
    let end = *end.get_or_insert_with(|| until(patience.limit));
    let mut fds = NO_FDS;
    let events = events | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
    let is_ready = |net: &mut Net| !net.files.contains_key(&number) || net.events(number) & events != 0;
    ended(rest(&Wish::of(number, end, &mut fds), is_ready), patience.limit)
}

unsafe fn look_for_bytes(
    net: &mut Net,
    number: u32,
    (parts, done, wanted): (Parts, usize, usize),
    flags: c_int,
) -> Look {
    let handle = match stream(net, number, libc::ENOTCONN) {
        Ok(handle) => handle,
        Err(look) => return look,
    };
    if net.files[&number].is_deaf && net.sockets().readable_bytes(handle) == Ok(0) {
        return Look::Count(0);
    }
    // What is here already needs no look at the link.
    if net.sockets().readable_bytes(handle) == Ok(0) {
        net.carry();
    }
    if wanted == 0 {
        return Look::Count(0);
    }
    let discards = flags & libc::MSG_TRUNC != 0;
    let peeks = flags & libc::MSG_PEEK != 0;
    let sockets = net.sockets();
    let mut peeked = 0;
    let work = |place: *mut u8, bytes: usize| {
        if discards && !peeks {
            return discard(sockets, handle, bytes);
        }
        // SAFETY: the program's place.
        let place = unsafe { slice::from_raw_parts_mut(place, bytes) };
        if !peeks {
            return sockets.receive(handle, place);
        }
        let count = sockets.peek(handle, peeked, place)?;
        peeked += count;
        match (count, peeked) {
            // It says why there is nothing.
            (0, 0) => sockets.receive(handle, &mut [0]),
            (count, _) => Ok(count),
        }
    };
    // SAFETY: the caller's arguments.
    match unsafe { for_parts(parts, done, work) } {
        Ok(count) => Look::Count(count),
        Err(SocketError::WouldBlock) if net.is_up() => Look::Nothing,
        // A failure is told once; then it is the end of the stream.
        Err(error) => match net.take_failure(number) {
            Some(code) => Look::Failed(code),
            None if error == SocketError::WouldBlock => Look::Failed(libc::ENETDOWN),
            None => Look::Count(0),
        },
    }
}

fn discard(sockets: &mut sockets::Sockets, handle: Handle, bytes: usize) -> Result<usize, SocketError> {
    let mut place = [0; 4096];
    let mut done = 0;
    while done < bytes {
        let room = place.len().min(bytes - done);
        match sockets.receive(handle, &mut place[..room]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// send(2) and the like. None if the kernel is to make the call.
pub(crate) unsafe fn send(fd: c_int, parts: Parts, flags: c_int) -> Option<ssize_t> {
    let number = inherit::file(fd)?;
    // SAFETY: the caller's arguments.
    let Some(wanted) = (unsafe { bytes_of(parts) }) else {
        return Some(failed(libc::EINVAL));
    };
    if flags & libc::MSG_OOB != 0 {
        return Some(failed(libc::EOPNOTSUPP));
    }
    let (mut done, mut end) = (0, None);
    loop {
        let (look, patience) = with(|net| {
            // SAFETY: the caller's arguments.
            let look = unsafe { write_bytes(net, number, (parts, done, wanted), flags) };
            let waits = matches!(look, Look::Nothing) && net.files.contains_key(&number);
            let patience = waits.then(|| patience(net, number, flags, true));
            (look, patience)
        });
        let code = match look {
            Look::Count(count) => {
                done += count;
                if done == wanted {
                    return Some(done as ssize_t);
                }
                continue;
            }
            Look::Failed(code) => code,
            Look::Kernels => return None,
            Look::Nothing => match wait(number, patience, &mut end, libc::EPOLLOUT as u32) {
                None => continue,
                Some(code) => code,
            },
        };
        if done > 0 {
            return Some(done as ssize_t);
        }
        if code == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
            // SAFETY: the thread is outside of the library, and gets what the kernel would send.
            unsafe { libc::raise(libc::SIGPIPE) };
        }
        return Some(failed(code));
    }
}

unsafe fn write_bytes(
    net: &mut Net,
    number: u32,
    (parts, done, wanted): (Parts, usize, usize),
    flags: c_int,
) -> Look {
    let handle = match stream(net, number, libc::EPIPE) {
        Ok(handle) => handle,
        Err(look) => return look,
    };
    if net.files[&number].is_mute {
        return Look::Failed(libc::EPIPE);
    }
    if !net.is_up() {
        return Look::Failed(net.take_failure(number).unwrap_or(libc::EPIPE));
    }
    if wanted == 0 {
        return Look::Count(0);
    }
    let sockets = net.sockets();
    let work = |place: *mut u8, bytes: usize| {
        // SAFETY: the program's bytes.
        sockets.send(handle, unsafe { slice::from_raw_parts(place, bytes) })
    };
    // SAFETY: the caller's arguments.
    let written = unsafe { for_parts(parts, done, work) };
    match written {
        Ok(count) => {
            if flags & libc::MSG_MORE == 0 || done + count < wanted {
                net.push();
            }
            if done + count < wanted
                && let Some(file) = net.files.get_mut(&number)
            {
                file.is_starved = true;
            }
            Look::Count(count)
        }
        Err(SocketError::WouldBlock) => {
            net.carry();
            if let Some(file) = net.files.get_mut(&number) {
                file.is_starved = true;
            }
            let has_room = net.events(number) & libc::EPOLLOUT as u32 != 0;
            match has_room {
                true => Look::Count(0),
                false => Look::Nothing,
            }
        }
        Err(_) => Look::Failed(net.take_failure(number).unwrap_or(libc::EPIPE)),
    }
}

/// recvmsg(2).
pub(crate) unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    inherit::file(fd)?;
    if message.is_null() {
        return Some(failed(libc::EFAULT));
    }
    // SAFETY: the caller's arguments.
    unsafe {
        let parts = ((*message).msg_iov.cast_const(), (*message).msg_iovlen);
        let result = receive(fd, parts, flags)?;
        if result >= 0 {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
            (*message).msg_flags = 0;
        }
        Some(result)
    }
}

/// sendmsg(2).
pub(crate) unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    inherit::file(fd)?;
    if message.is_null() {
        return Some(failed(libc::EFAULT));
    }
    // SAFETY: the caller's arguments.
    unsafe {
        send(
            fd,
            ((*message).msg_iov.cast_const(), (*message).msg_iovlen),
            flags,
        )
    }
}

/// sendfile(2) to a served socket: from a file, by `read`, which answers as read(2) and pread(2) do, and `back`, which gives bytes back that found no room.
pub(crate) unsafe fn send_file(
    to: c_int,
    count: size_t,
    mut read: impl FnMut(*mut c_void, size_t) -> ssize_t,
    mut back: impl FnMut(off_t),
) -> Option<ssize_t> {
    let number = inherit::file(to)?;
    with(|net| (!matches!(net.files.get(&number)?.kind, Kind::Fresh)).then_some(()))?;
    let mut place = [0u8; COPY_BYTES];
    let mut done = 0;
    while done < count {
        let wanted = place.len().min(count - done);
        let found = read(place.as_mut_ptr().cast(), wanted);
        if found <= 0 {
            return Some(if done > 0 { done as ssize_t } else { found });
        }
        let part = iovec {
            iov_base: place.as_mut_ptr().cast(),
            iov_len: found as usize,
        };
        // SAFETY: the bytes are there during the call.
        let sent = unsafe { send(to, (&raw const part, 1), 0) }?;
        if sent < found {
            back((found - sent.max(0)) as off_t);
            if sent < 0 && done == 0 {
                return Some(-1);
            }
            return Some((done + sent.max(0) as usize) as ssize_t);
        }
        done += found as usize;
    }
    Some(done as ssize_t)
}
