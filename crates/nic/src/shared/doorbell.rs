//! The way by which one end of a queue wakes the other: a pair of sockets.
//!
//! An eventfd would be cheaper, but its flags belong to both ends: a peer that makes a full one blocking stops whoever
//! rings. A socket takes "do not wait" with each call, and it tells that the peer has gone.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Rings that one look takes away. A peer that rings faster makes work for itself, too.
const RINGS_MAX: usize = 64;

/// One end.
#[derive(Debug)]
pub struct Doorbell {
    socket: OwnedFd,
    is_closed: bool,
}

impl Doorbell {
    /// Both ends.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair() -> io::Result<[Self; 2]> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok([one, other].map(Self::new))
    }

    /// An end that came from another process.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            is_closed: false,
        }
    }

    /// Can be read after a ring, and when the peer has gone.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the peer has gone.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Wakes the peer. Rings that the peer has not taken away are as good as another one.
    pub fn ring(&mut self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&self.socket, &[1], flags) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(_) => self.is_closed = true,
        }
    }

    /// Takes rings away.
    pub fn clear(&mut self) {
        let mut byte = [0; 1];
        for _ in 0..RINGS_MAX {
            match rustix::net::recv(&self.socket, &mut byte, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.is_closed = true;
                    return;
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_bell_does_not_block_and_a_peer_that_has_gone_is_noticed() {
        let [mut one, mut other] = Doorbell::pair().expect("descriptors");
        for _ in 0..10_000 {
            one.ring();
        }
        assert!(!one.is_closed());
        other.clear();
        assert!(!other.is_closed());
        drop(one);
        for _ in 0..10_000 {
            other.clear();
        }
        assert!(other.is_closed());
        let [mut one, other] = Doorbell::pair().expect("descriptors");
        drop(other);
        one.ring();
        assert!(one.is_closed());
    }
}
