//! The user at the other end of a socket. Names of sockets are of a network, and anybody may have one that is free.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// The user who made the other end. In a namespace of users that lacks that user it is the one for all who are lacking.
///
/// # Errors
/// If the socket has no other end.
pub(crate) fn user(socket: impl AsFd) -> io::Result<u32> {
    // The process may be of another namespace, and its number 0.
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = mem::size_of_val(&found) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel fills `found`, which has as many bytes.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut bytes,
        )
    };
    match result {
        0 => Ok(found.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if this process's files may be shown to the other end: it is root's, or this user's own.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    user(socket).is_ok_and(|user| user == 0 || user == own)
}
