//! The keeper's side of a bridge (`bridge`): one end of a connection of the kernel's, whose other end the program has.

use crate::real;
use area::own;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrUnix};
use sockets::{Handle, SocketError, Sockets};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes that go one way in a turn.
const TURN_BYTES: usize = 64 << 10;

/// The keeper's side of a bridge.
#[derive(Debug)]
pub(crate) struct Bridge {
    pub kind: BridgeKind,
    /// The program's end, for children that have not asked for it yet.
    pub copy: Option<OwnedFd>,
}

#[derive(Debug)]
pub(crate) enum BridgeKind {
    Stream(Pipe),
    /// The place where the program listens, and a connection that it has had no room for.
    Listener(SocketAddrUnix, Option<Handle>),
}

impl Bridge {
    /// Closes what the keeper has of it.
    pub fn close(self) {
        if let BridgeKind::Stream(pipe) = self.kind {
            own::give_back(pipe.end);
        }
        if let Some(copy) = self.copy {
            own::give_back(copy);
        }
    }
}

/// Both directions of a connection.
#[derive(Debug)]
pub(crate) struct Pipe {
    end: OwnedFd,
    /// Bytes of the program's that have found no room in the stack.
    left: Vec<u8>,
    /// The program writes no more.
    is_ended: bool,
    /// The stack was told so.
    is_shut: bool,
    /// The program was told that the peer writes no more.
    is_told: bool,
}

impl Pipe {
    pub fn new(end: OwnedFd, is_shut: bool) -> Self {
        Self {
            end,
            left: Vec::new(),
            is_ended: false,
            is_shut,
            is_told: false,
        }
    }

    /// Carries bytes from the stack to the program.
    pub fn give(&mut self, sockets: &mut Sockets, handle: Handle) -> Way {
        let mut bytes = [0; TURN_BYTES];
        let count = sockets.peek(handle, 0, &mut bytes).unwrap_or(0);
        if count == 0 {
            let is_ended = sockets
                .readiness(handle)
                .is_ok_and(|ready| ready.is_ended || ready.is_over);
            if is_ended && !mem::replace(&mut self.is_told, true) {
                // A program that has closed its end is noticed by what it writes.
                let _ = rustix::net::shutdown(&self.end, Shutdown::Write);
            }
            return Way::Waits;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&self.end, &bytes[..count], flags) {
            Ok(sent) => {
                let _ = sockets.receive(handle, &mut bytes[..sent]);
                Way::More
            }
            Err(Errno::AGAIN | Errno::INTR) => Way::Waits,
            Err(_) => Way::Gone,
        }
    }

    /// Carries bytes from the program to the stack.
    pub fn take(&mut self, sockets: &mut Sockets, handle: Handle) -> Way {
        if self.left.is_empty() && !self.is_ended {
            let mut bytes = [0; TURN_BYTES];
            match rustix::net::recv(&self.end, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.is_ended = true,
                Ok((count, _)) => self.left.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return Way::Waits,
                Err(_) => return Way::Gone,
            }
        }
        if !self.left.is_empty() {
            return match sockets.send(handle, &self.left) {
                Ok(sent) => {
                    self.left.drain(..sent);
                    Way::More
                }
                Err(SocketError::WouldBlock) => Way::Waits,
                Err(_) => Way::Gone,
            };
        }
        if !mem::replace(&mut self.is_shut, true) {
            let _ = sockets.shutdown(handle);
        }
        match self.is_closed() {
            true => Way::Gone,
            false => Way::Waits,
        }
    }

    /// Whether nobody has the program's end any more.
    fn is_closed(&self) -> bool {
        let mut fds = [libc::pollfd {
            fd: self.end.as_raw_fd(),
            events: 0,
            revents: 0,
        }];
        // SAFETY: the list is there during the call, which does not wait.
        unsafe {
            real::poll(fds.as_mut_ptr(), 1, 0) > 0 && fds[0].revents & libc::POLLHUP != 0 && !self.is_told
        }
    }
}

/// How a direction ended its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// There is more to carry now.
    More,
    /// Until something happens.
    Waits,
    /// The program has closed its end.
    Gone,
}
