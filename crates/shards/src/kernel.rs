//! Connections by the kernel's sockets, and an epoll of each thread. One thread accepts them for all, and hands them over in turn.

use crate::lane::Bell;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, PoisonError};
use crate::transport::{News, Transport};
use base::Slab;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Marks the bell among the events.
const BELL: u64 = u64::MAX;
/// Events of one look.
const EVENTS: usize = 256;

/// Connections that were accepted for a thread.
#[derive(Debug, Default)]
pub struct Handed {
    has_some: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
    /// Connections of all threads that are open.
    pub open: Arc<AtomicU32>,
}

impl Handed {
    /// For a thread whose connections are counted with those of others.
    pub fn new(open: Arc<AtomicU32>) -> Self {
        Self {
            open,
            ..Self::default()
        }
    }

    /// Leaves a connection. Ring the bell then.
    pub fn put(&self, stream: TcpStream) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.push(stream);
        self.has_some.store(true, Ordering::SeqCst);
    }

    /// True if there is one to be taken.
    pub fn has_some(&self) -> bool {
        self.has_some.load(Ordering::SeqCst)
    }

    fn take(&self) -> Vec<TcpStream> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_some.store(false, Ordering::SeqCst);
        std::mem::take(&mut *streams)
    }
}

/// A connection.
struct Stream {
    socket: TcpStream,
    /// The peer sends no more, or the connection is over. It was told with the last bytes, perhaps, and is not told again.
    ends: bool,
}

/// The connections of one thread.
pub struct Kernel {
    epoll: OwnedFd,
    handed: Arc<Handed>,
    streams: Slab<Stream>,
    events: Vec<epoll::Event>,
    news: VecDeque<News>,
}

impl Kernel {
    /// No connections, and those that will be handed over.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(handed: Arc<Handed>, bell: &Bell) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, bell.wake().as_fd(), data, epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            handed,
            streams: Slab::new(),
            events: Vec::with_capacity(EVENTS),
            news: VecDeque::new(),
        })
    }

    fn take_handed(&mut self) -> io::Result<()> {
        for socket in self.handed.take() {
            // A connection that cannot be watched is closed.
            if socket
                .set_nonblocking(true)
                .and(socket.set_nodelay(true))
                .is_err()
            {
                self.handed.open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let connection = self.streams.insert(Stream { socket, ends: false });
            let data = epoll::EventData::new_u64(u64::from(connection));
            let flags = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::ET
                | epoll::EventFlags::RDHUP;
            epoll::add(&self.epoll, &self.streams[connection].socket, data, flags)?;
            self.news.push_back(News::Open(connection));
        }
        Ok(())
    }
}

impl Transport for Kernel {
    fn wait(&mut self, limit: Duration, bell: &Bell) -> io::Result<()> {
        self.events.clear();
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for index in 0..self.events.len() {
            let epoll::Event { flags, data } = self.events[index];
            match data.u64() {
                BELL => bell.wake().clear(),
                connection => {
                    let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                    if let Some(stream) = self.streams.get_mut(connection as u32) {
                        stream.ends |= flags.intersects(ends);
                    }
                    self.news.push_back(News::Ready(connection as u32));
                }
            }
        }
        if self.handed.has_some() {
            self.take_handed()?;
        }
        Ok(())
    }

    fn next(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn read(&mut self, connection: u32, bytes: &mut Vec<u8>, wanted: usize) -> io::Result<(usize, bool)> {
        let stream = self.streams.get(connection).ok_or(ErrorKind::NotConnected)?;
        bytes.reserve(wanted);
        let room = bytes.capacity() - bytes.len();
        let count = rustix::io::read(&stream.socket, spare_capacity(bytes))?;
        // A read that leaves room has all that there was, but for the end.
        Ok((count, count == room || stream.ends))
    }

    fn write(&mut self, connection: u32, bytes: &[u8]) -> io::Result<usize> {
        let stream = self.streams.get(connection).ok_or(ErrorKind::NotConnected)?;
        let flags = rustix::net::SendFlags::NOSIGNAL;
        Ok(rustix::net::send(&stream.socket, bytes, flags)?)
    }

    fn close(&mut self, connection: u32) {
        if self.streams.get(connection).is_some() {
            self.streams.remove(connection);
            self.news.retain(|news| *news != News::Ready(connection));
            self.handed.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
