//! Who is at the other end of a Unix socket, as the kernel noted it when the socket was connected.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// A process at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The process; 0 if it is of another namespace.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
}

/// Groups of a process, at most: NGROUPS_MAX of Linux.
const GROUPS_MAX: usize = 65_536;

/// Who is at the other end.
///
/// # Errors
/// It is no connected Unix socket.
pub fn peer_identity(socket: impl AsFd) -> io::Result<PeerIdentity> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let fd = socket.as_fd().as_raw_fd();
    let mut bytes = mem::size_of_val(&credentials) as libc::socklen_t;
    // SAFETY: the kernel fills at most `bytes` bytes, which `credentials` has.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut bytes = (groups.len() * mem::size_of::<u32>()) as libc::socklen_t;
    // SAFETY: the kernel fills at most `bytes` bytes, which `groups` has.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(bytes as usize / mem::size_of::<u32>());
    Ok(PeerIdentity {
        pid: u32::try_from(credentials.pid).unwrap_or_default(),
        uid: credentials.uid,
        gid: credentials.gid,
        groups,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_of_ones_own_socket_is_oneself() {
        let (one, _other) = UnixStream::pair().expect("there are descriptors");
        let peer = peer_identity(&one).expect("it is connected");
        // SAFETY: it only reads what the process is.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        assert_eq!((peer.pid, peer.uid, peer.gid), (std::process::id(), uid, gid));
        // SAFETY: it only counts.
        let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        assert_eq!(peer.groups.len() as i32, count);
    }
}
