//! The way by which one end of a queue wakes the other: a pair of sockets.
//!
//! An eventfd would be cheaper, but its flags belong to both ends: a peer that makes a full one blocking stops whoever
//! rings. A socket takes "do not wait" with each call, and it tells that the peer has gone.
//!
//! A hub's doorbell also brings *letters*: messages of [`LETTER_BYTES`], perhaps with descriptors. An end takes letters if it was made
//! for them; otherwise they are rings.

use super::kept::Kept;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Rings that one look takes away. A peer that rings faster makes work for itself, too.
const RINGS_MAX: usize = 64;
/// Bytes of a letter.
pub const LETTER_BYTES: usize = 64;
/// Descriptors of a letter at most.
const LETTER_FDS: usize = 2;

/// A message of the hub.
#[derive(Debug)]
pub struct Letter {
    /// What it says.
    pub bytes: [u8; LETTER_BYTES],
    /// What comes with it.
    pub fds: Vec<OwnedFd>,
}

/// One end.
#[derive(Debug)]
pub struct Doorbell {
    socket: Kept,
    is_closed: bool,
    takes_letters: bool,
    /// Letters that nobody has opened.
    letters: Vec<Letter>,
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
        Ok([one, other].map(|socket| Self::new(socket.into())))
    }

    /// An end that came from another process.
    pub fn new(socket: Kept) -> Self {
        Self {
            socket,
            is_closed: false,
            takes_letters: false,
            letters: Vec::new(),
        }
    }

    /// From now on letters are kept.
    pub fn take_letters(&mut self) {
        self.takes_letters = true;
    }

    /// Whether there are letters that nobody has opened.
    #[inline]
    pub fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// The letters.
    pub fn open_letters(&mut self) -> Vec<Letter> {
        std::mem::take(&mut self.letters)
    }

    /// Sends a letter, which rings, too. False if the peer has too much to read, or has gone.
    pub fn write(&self, letter: &[u8; LETTER_BYTES], fds: &[BorrowedFd<'_>]) -> bool {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LETTER_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return false;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(letter)], &mut control, flags).is_ok()
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

    /// Takes rings away, and keeps letters.
    pub fn clear(&mut self) {
        for _ in 0..RINGS_MAX {
            if !self.clear_one() {
                return;
            }
        }
    }

    /// Takes one message away. False if there was none.
    pub fn clear_one(&mut self) -> bool {
        let mut bytes = [0; LETTER_BYTES];
        let received = match self.takes_letters {
            true => self.receive(&mut bytes),
            false => rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT).map(|(count, _)| count),
        };
        match received {
            Ok(1..) | Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(0) | Err(_) => {
                self.is_closed = true;
                false
            }
        }
    }

    fn receive(&mut self, bytes: &mut [u8; LETTER_BYTES]) -> Result<usize, Errno> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LETTER_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let parts = &mut [IoSliceMut::new(bytes)];
        let count = rustix::net::recvmsg(&self.socket, parts, &mut control, flags)?.bytes;
        if count == LETTER_BYTES {
            let rights = control.drain().filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let letter = Letter {
                bytes: *bytes,
                fds: rights.flatten().collect(),
            };
            self.letters.push(letter);
        }
        Ok(count)
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

    #[test]
    fn a_letter_arrives_with_its_descriptors_where_it_is_wanted_and_is_a_ring_elsewhere() {
        let [mut one, mut other] = Doorbell::pair().expect("descriptors");
        let bytes = [7; LETTER_BYTES];
        assert!(one.write(&bytes, &[one.fd()]));
        other.clear();
        assert!(!other.has_letters() && !other.is_closed());
        other.take_letters();
        one.ring();
        assert!(one.write(&bytes, &[one.fd(), other.fd()]));
        assert!(one.write(&[8; LETTER_BYTES], &[]));
        other.clear();
        let letters = other.open_letters();
        let seen: Vec<_> = letters
            .iter()
            .map(|letter| (letter.bytes[63], letter.fds.len()))
            .collect();
        assert_eq!(seen, [(7, 2), (8, 0)]);
        assert!(!other.has_letters());
        drop((one, letters));
        other.clear();
        assert!(other.is_closed());
    }
}
