//! Bridges, for sockets that the kernel has to have. The descriptors of such a socket become ends of an AF_UNIX connection of the kernel's. The keeper carries
//! bytes between the other end and the stack. A listener becomes an AF_UNIX listener, to which the keeper connects for each connection that comes.

use super::file::{File, Kind};
use super::pipe::{Bridge, BridgeKind, Pipe, Way};
use super::stack::{Link, Net};
use super::{known, names};
use crate::real;
use area::own;
use libc::{c_int, epoll_event};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use sockets::Handle;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tcp::addr::Endpoint;

/// Connections that the kernel keeps for a program that does not accept them.
const BACKLOG: c_int = 128;

/// Words of a child's message to its parent, before the number of a file. The child wants the file, which the parent answers with a descriptor; or it has closed
/// the file.
pub(crate) const WANTED: u32 = 1;
pub(crate) const CLOSED: u32 = 2;

/// A child's message.
pub(crate) fn message(word: u32, number: u32) -> [u8; 8] {
    let mut message = [0; 8];
    message[..4].copy_from_slice(&word.to_ne_bytes());
    message[4..].copy_from_slice(&number.to_ne_bytes());
    message
}

pub(crate) fn code(error: Errno) -> c_int {
    error.raw_os_error()
}

fn code_of_io(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn unix(flags: SocketFlags) -> Result<OwnedFd, c_int> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags | SocketFlags::CLOEXEC,
        None,
    )
    .map_err(code)
}

/// An AF_UNIX listener with the name of an end.
fn listener(file: &File, local: Endpoint, backlog: c_int) -> Result<(OwnedFd, SocketAddrUnix), c_int> {
    let socket = unix(SocketFlags::empty())?;
    let name = names::make(file.family, local)?;
    rustix::net::bind(&socket, &name).map_err(code)?;
    rustix::net::listen(&socket, backlog).map_err(code)?;
    Ok((socket, name))
}

/// Connects to such a listener, with the name of the peer.
fn dial(file: &File, remote: Endpoint, to: &SocketAddrUnix) -> Result<OwnedFd, c_int> {
    let low = unix(SocketFlags::NONBLOCK)?;
    rustix::net::bind(&low, &names::make(file.family, remote)?).map_err(code)?;
    rustix::net::connect(&low, to).map_err(code)?;
    own::keep(&low).map_err(|error| code_of_io(&error))
}

impl Net {
    /// The kernel gets a socket: all descriptors of this process become the program's end, if they are served. A descriptor of it for whoever asks, if
    /// `is_wanted`.
    pub fn bridge(&mut self, number: u32, is_wanted: bool) -> Result<Option<OwnedFd>, c_int> {
        if let Some(bridge) = self.bridges.get(&number) {
            let copy = bridge.copy.as_ref().ok_or(libc::EBADF)?;
            let copy = copy.try_clone().map_err(|error| code_of_io(&error))?;
            return Ok(Some(copy).filter(|_| is_wanted));
        }
        let file = self.files.get(&number).ok_or(libc::EBADF)?.clone();
        let (program, kind) = match file.kind {
            Kind::Stream { tuple, .. } => {
                let (listener, name) = listener(&file, tuple.local, 1)?;
                let end = dial(&file, tuple.remote, &name)?;
                let program = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).map_err(code)?;
                self.watch_bridge(&end, number)?;
                (program, BridgeKind::Stream(Pipe::new(end, file.is_mute)))
            }
            Kind::Listener { local, .. } => {
                let (listener, name) = listener(&file, local, BACKLOG)?;
                (listener, BridgeKind::Listener(name, None))
            }
            Kind::Fresh | Kind::Bound(_) | Kind::Lost | Kind::Inherited => return Err(libc::EINVAL),
        };
        if file.is_nonblocking {
            rustix::io::ioctl_fionbio(&program, true).map_err(code)?;
        }
        let copy = program.try_clone().map_err(|error| code_of_io(&error))?;
        let copy = own::keep(&copy).map_err(|error| code_of_io(&error))?;
        let bridge = Bridge {
            kind,
            copy: Some(copy),
        };
        self.bridges.insert(number, bridge);
        self.give_to_kernel(number, &program);
        self.stir(number);
        Ok(Some(program).filter(|_| is_wanted))
    }

    /// The keeper hears of what happens at a bridge's end.
    fn watch_bridge(&mut self, end: &OwnedFd, number: u32) -> Result<(), c_int> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.watch_by_keeper(end, events as u32, u64::from(number))
    }

    /// Adds a descriptor to those that the keeper hears of.
    pub fn watch_by_keeper(&mut self, fd: &OwnedFd, events: u32, word: u64) -> Result<(), c_int> {
        if self.ends.is_none() {
            let low =
                rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).map_err(code)?;
            self.ends = Some(own::keep(&low).map_err(|error| code_of_io(&error))?);
        }
        let set = self.ends.as_ref().expect("it was made").as_raw_fd();
        let mut event = epoll_event { events, u64: word };
        // SAFETY: the event is there during the call.
        match unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(code_of_io(&io::Error::last_os_error())),
        }
    }

    /// The descriptors of a file become another one of the kernel's, and so do their places in sets.
    pub fn give_to_kernel(&mut self, number: u32, program: &OwnedFd) {
        let fds: Vec<_> = known::all().filter(|(_, other)| *other == number).collect();
        for (fd, _) in &fds {
            known::forget(*fd);
            // SAFETY: no memory is involved.
            unsafe {
                let flags = real::fcntl(*fd, libc::F_GETFD, 0);
                let is_closed_by_exec = flags >= 0 && flags & libc::FD_CLOEXEC != 0;
                let flags = if is_closed_by_exec { libc::O_CLOEXEC } else { 0 };
                real::dup3(program.as_raw_fd(), *fd, flags);
            }
        }
        let Some(file) = self.files.get_mut(&number) else {
            return;
        };
        let watchers = std::mem::take(&mut file.watchers);
        for (set, fd) in watchers {
            let interest = self.sets.get_mut(&set).and_then(|known| known.remove(fd));
            if let Some(interest) = interest {
                let mut event = epoll_event {
                    events: interest.events,
                    u64: interest.data,
                };
                // SAFETY: the event is there during the call.
                unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) };
            }
        }
        // Threads that wait look again, and find the kernel's.
        self.tell(number);
        for _ in fds {
            self.release(number);
        }
    }

    /// A descriptor of a file, or a child's part in it, is no more.
    pub fn release(&mut self, number: u32) {
        let Some(file) = self.files.get_mut(&number) else {
            return;
        };
        file.numbers = file.numbers.saturating_sub(1);
        if file.numbers > 0 {
            return;
        }
        if matches!(file.kind, Kind::Inherited) {
            self.say_closed(number);
        }
        match self.bridges.get_mut(&number) {
            None => self.end(number),
            Some(bridge) => {
                // Nobody will ask for it any more. From now on the keeper sees when the program closes its end.
                if let Some(copy) = bridge.copy.take() {
                    own::give_back(copy);
                }
            }
        }
    }

    /// A child says to its parent that it has closed a file.
    fn say_closed(&self, number: u32) {
        if let Some(parent) = &self.parent {
            // A parent that has gone needs it no more.
            let _ = rustix::net::send(
                parent,
                &message(CLOSED, number),
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
        }
    }

    /// The keeper's turn for bridges that something has happened to. True if some want another turn soon.
    pub fn turn_bridges(&mut self) -> bool {
        let mut is_stuck = false;
        let stirred = std::mem::take(&mut self.stirred);
        for number in stirred {
            let Some(mut bridge) = self.bridges.remove(&number) else {
                continue;
            };
            let goes_on = match &mut bridge.kind {
                BridgeKind::Stream(pipe) => self.turn_pipe(number, pipe),
                BridgeKind::Listener(name, waiting) => self.turn_listener(number, name, waiting),
            };
            match goes_on {
                Turn::Done => {}
                Turn::Again => {
                    self.stirred.insert(number);
                }
                Turn::Later => {
                    self.stirred.insert(number);
                    is_stuck = true;
                }
                Turn::Over => {
                    bridge.close();
                    self.end(number);
                    continue;
                }
            }
            self.bridges.insert(number, bridge);
        }
        self.push();
        is_stuck
    }

    fn turn_pipe(&mut self, number: u32, pipe: &mut Pipe) -> Turn {
        let is_up = self.is_up();
        let Some(Kind::Stream { handle, .. }) = self.files.get(&number).map(|file| file.kind) else {
            return Turn::Over;
        };
        let Some(Link { sockets, .. }) = self.link.as_mut().filter(|_| is_up) else {
            return Turn::Over;
        };
        let Ok(ready) = sockets.readiness(handle) else {
            return Turn::Over;
        };
        let to = pipe.give(sockets, handle);
        let from = match ready.is_over {
            true => Way::Waits,
            false => pipe.take(sockets, handle),
        };
        let is_drained = sockets.readable_bytes(handle) == Ok(0);
        match (to, from) {
            (Way::Gone, _) | (_, Way::Gone) => Turn::Over,
            // The peer has gone, and the program has what it has sent.
            _ if ready.is_over && is_drained => Turn::Over,
            (Way::More, _) | (_, Way::More) => Turn::Again,
            _ => Turn::Done,
        }
    }

    fn turn_listener(&mut self, number: u32, name: &SocketAddrUnix, waiting: &mut Option<Handle>) -> Turn {
        let Some(file) = self.files.get(&number).cloned() else {
            return Turn::Over;
        };
        let Some(listener) = file.handle().filter(|_| self.is_up()) else {
            return Turn::Over;
        };
        let next = waiting.take().or_else(|| self.sockets().accept(listener).ok());
        let Some(stream) = next else {
            return Turn::Done;
        };
        let tuple = self.sockets().tuple(stream).ok().flatten().unwrap_or_default();
        let end = match dial(&file, tuple.remote, name) {
            Ok(end) => end,
            Err(libc::EAGAIN) => {
                *waiting = Some(stream);
                return Turn::Later;
            }
            Err(code) => {
                // If nobody listens any more, it ends.
                let _ = self.sockets().abort(stream);
                return if code == libc::ECONNREFUSED {
                    Turn::Over
                } else {
                    Turn::Later
                };
            }
        };
        let kind = Kind::Stream {
            handle: stream,
            tuple,
        };
        let Some(made) = self.files.add(file.accepted(kind, false)) else {
            let _ = self.sockets().abort(stream);
            return Turn::Later;
        };
        self.bind(stream, made);
        self.settle(made);
        if self.watch_bridge(&end, made).is_err() {
            own::give_back(end);
            self.end(made);
            return Turn::Again;
        }
        let bridge = Bridge {
            kind: BridgeKind::Stream(Pipe::new(end, false)),
            copy: None,
        };
        self.bridges.insert(made, bridge);
        self.stirred.insert(made);
        Turn::Again
    }
}

/// How a turn of a bridge ended.
enum Turn {
    Done,
    Again,
    /// Not before some time has passed.
    Later,
    Over,
}
