//! Connections by user-level TCP: each thread has a stack, a virtual NIC at a hub, and an address of its own.

use crate::lane::Bell;
use crate::transport::{News, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sockets::{Handle, Options, SocketError, Sockets};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tcp::addr::{Endpoint, Ip};
use tcp::config::Config;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 512;

/// Where the threads are to be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubOptions {
    /// Socket of the hub.
    pub hub: PathBuf,
    /// Address of the first thread; the others have those that follow.
    pub first: Ipv4Addr,
    /// Bits of the network.
    pub prefix: u8,
    /// Port of all.
    pub port: u16,
}

impl HubOptions {
    /// The address of a thread.
    pub fn address(&self, index: usize) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.first).wrapping_add(index as u32))
    }
}

/// The connections of one thread.
pub struct User {
    sockets: Sockets,
    listener: Handle,
    handles: Vec<Option<Handle>>,
    news: VecDeque<News>,
}

/// Why a thread has no address.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The hub.
    #[error("no hub takes this program at {}: {why}", .hub.display())]
    Hub {
        /// Its socket.
        hub: PathBuf,
        /// Why.
        why: String,
    },
    /// The address.
    #[error("cannot listen at {0}: {1}")]
    Listen(Ipv4Addr, SocketError),
}

fn io(error: SocketError) -> io::Error {
    match error {
        SocketError::WouldBlock => ErrorKind::WouldBlock.into(),
        error => io::Error::other(error),
    }
}

impl User {
    /// Takes a port of the hub, and listens.
    ///
    /// # Errors
    /// There is no hub, or it has no port left.
    pub fn open(options: &HubOptions, index: usize, spin: Duration) -> Result<Self, UserError> {
        let hub = |why: String| UserError::Hub {
            hub: options.hub.clone(),
            why,
        };
        let path: &Path = &options.hub;
        let link = nic::shared::join(path, &format!("kv-{index}"));
        let link = link.map_err(|error| hub(error.to_string()))?;
        let mac = nic::Frames::limits(&link).mac;
        let mac = mac.ok_or_else(|| hub("it gives no Ethernet address".into()))?;
        let address = options.address(index);
        let config = Config::new(mac, Ip::v4(address.octets()), options.prefix);
        let stack = Options {
            spin,
            ..Options::default()
        };
        let mut sockets = Sockets::new(Box::new(link), config, stack);
        let endpoint = Endpoint {
            ip: Ip::ANY,
            port: options.port,
        };
        let listener = sockets.listen(endpoint, BACKLOG);
        let listener = listener.map_err(|error| UserError::Listen(address, error))?;
        Ok(Self {
            sockets,
            listener,
            handles: Vec::new(),
            news: VecDeque::new(),
        })
    }

    fn poll(&mut self) -> io::Result<()> {
        self.sockets.poll().map_err(io::Error::other)?;
        while let Some((handle, _)) = self.sockets.next_ready() {
            if handle == self.listener {
                while let Ok(stream) = self.sockets.accept(self.listener) {
                    self.accepted(stream);
                }
            } else if self.handles.get(handle.index()).copied().flatten() == Some(handle) {
                self.news.push_back(News::Ready(handle.index() as u32));
            }
        }
        Ok(())
    }

    fn accepted(&mut self, stream: Handle) {
        // A stream that is over already shows that when it is read.
        let _ = self.sockets.set_no_delay(stream, true);
        let place = stream.index();
        if self.handles.len() <= place {
            self.handles.resize(place + 1, None);
        }
        self.handles[place] = Some(stream);
        self.news.push_back(News::Open(place as u32));
    }

    fn handle(&self, connection: u32) -> io::Result<Handle> {
        let handle = self.handles.get(connection as usize).copied().flatten();
        handle.ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Transport for User {
    fn wait(&mut self, limit: Duration, bell: &Bell) -> io::Result<()> {
        self.poll()?;
        if !self.news.is_empty() || limit.is_zero() {
            return Ok(());
        }
        let Some(parked) = self.sockets.park() else {
            return self.poll();
        };
        let until = parked.deadline.map(|deadline| deadline.since(os::now()));
        let limit = until.map_or(limit, |until| limit.min(until));
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let more = if parked.writable {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        let link = self.sockets.fd();
        let mut fds = [
            PollFd::from_borrowed_fd(link, PollFlags::IN | more),
            PollFd::from_borrowed_fd(bell.wake().as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            bell.wake().clear();
        }
        self.sockets.unpark();
        self.poll()
    }

    fn next(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn read(&mut self, connection: u32, bytes: &mut Vec<u8>, wanted: usize) -> io::Result<(usize, bool)> {
        let handle = self.handle(connection)?;
        let length = bytes.len();
        bytes.resize(length + wanted, 0);
        let result = self.sockets.receive(handle, &mut bytes[length..]);
        bytes.truncate(length + *result.as_ref().unwrap_or(&0));
        // News are told once: there is more until a read says that it would wait.
        result.map(|count| (count, true)).map_err(io)
    }

    fn write(&mut self, connection: u32, bytes: &[u8]) -> io::Result<usize> {
        let handle = self.handle(connection)?;
        self.sockets.send(handle, bytes).map_err(io)
    }

    fn close(&mut self, connection: u32) {
        if let Some(handle) = self.handles.get_mut(connection as usize).and_then(Option::take) {
            // What was written still goes with the next polls.
            let _ = self.sockets.close(handle);
            self.news.retain(|news| *news != News::Ready(connection));
        }
    }

    fn push(&mut self) -> io::Result<()> {
        self.sockets.push().map_err(io::Error::other)
    }
}
