//! The socket by which processes get logs of their own (docs/format/fs-session.md): who connects, and that nobody keeps others from it.
//!
//! A thread for each process reads what it says. Packets to it never make anybody wait: what the socket does not take is kept, up to a limit,
//! and nothing is read of the process meanwhile. The kernel says whose a process is, and when it is gone.

use crate::engine::{Engine, Link, Peer};
use ::fs::client::access::{READ, WRITE};
use ::fs::errno::Errno as FsErrno;
use ::fs::protocol::{Answer, Closed, MESSAGE_BYTES_MAX, Request};
use ::fs::value::Windowed;
use os::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, PoisonError, thread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, Permissions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Sessions of one user at once, as parts of all: nobody has all of them but root.
const USER_PARTS: usize = 2;
/// Packets that a process has not taken, at most. It is cut off then.
const QUEUE_MAX: usize = 4096;
/// Descriptors that are opened for a process at once, at most.
const OPENING_MAX: u32 = 16;
const BACKLOG: i32 = 128;
/// Who has a place says hello within this time.
const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// A wait ends after this long at the latest, and looks again.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A socket that is served.
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Opens inodes for processes: the mount.
pub trait Opener: Send + Sync {
    /// Opens a file or directory, however long that takes.
    ///
    /// # Errors
    /// As of Linux.
    fn open(&self, inode: u64, flags: OFlags) -> io::Result<OwnedFd>;
}

struct Shared {
    engine: Arc<Engine>,
    /// If there is a mount.
    opener: Option<Arc<dyn Opener>>,
    is_stopping: AtomicBool,
    processes_max: usize,
    users: Mutex<BTreeMap<u32, usize>>,
}

/// The way to a process.
struct Line {
    socket: OwnedFd,
    queue: Mutex<VecDeque<Packet>>,
    is_cut: AtomicBool,
    /// Descriptors that are being opened.
    opening: AtomicU32,
    /// A packet was received, perhaps, and the engine has not heard it yet.
    is_hearing: AtomicBool,
}

/// A packet, and the descriptor that it carries.
type Packet = (Vec<u8>, Option<OwnedFd>);

impl Line {
    fn queue(&self) -> os::sync::MutexGuard<'_, VecDeque<Packet>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what it can. False if something is left.
    fn flush(&self, queue: &mut VecDeque<Packet>) -> bool {
        while let Some((packet, descriptor)) = queue.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = match descriptor {
                None => rustix::net::send(&self.socket, packet, flags),
                Some(descriptor) => send_descriptor(&self.socket, packet, descriptor.as_fd()),
            };
            match sent {
                Ok(_) => {
                    queue.pop_front();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => {
                    queue.clear();
                    self.is_cut.store(true, Ordering::Release);
                }
            }
        }
        if self.is_cut.load(Ordering::Acquire) {
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
        true
    }
}

impl Line {
    fn push(&self, packet: Packet) {
        let mut queue = self.queue();
        if self.is_cut.load(Ordering::Acquire) {
            return;
        }
        queue.push_back(packet);
        if queue.len() > QUEUE_MAX {
            queue.clear();
            self.is_cut.store(true, Ordering::Release);
        }
        self.flush(&mut queue);
    }
}

impl Link for Line {
    fn send(&self, packet: Vec<u8>) {
        self.push((packet, None));
    }

    fn cut(&self) {
        let mut queue = self.queue();
        self.is_cut.store(true, Ordering::Release);
        self.flush(&mut queue);
    }

    fn is_unheard(&self) -> bool {
        let mut events = [PollFd::new(&self.socket, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // First the socket: what was taken out of it meanwhile is being heard.
        matches!(poll(&mut events, Some(&now)), Ok(1..)) || self.is_hearing.load(Ordering::Acquire)
    }
}

impl Server {
    /// Listens at a path for up to so many processes. Who may connect is what the mode of the socket says.
    ///
    /// # Errors
    /// Somebody listens there, or the path cannot be had.
    pub fn start(engine: Arc<Engine>, path: &Path, mode: u32, processes_max: usize) -> io::Result<Self> {
        Self::start_beside(engine, None, path, (mode, processes_max))
    }

    /// The same beside a mount, which gives processes descriptors.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn start_beside(
        engine: Arc<Engine>,
        opener: Option<Arc<dyn Opener>>,
        path: &Path,
        (mode, processes_max): (u32, usize),
    ) -> io::Result<Self> {
        let socket = listen(path, mode)?;
        let shared = Arc::new(Shared {
            engine,
            opener,
            is_stopping: AtomicBool::new(false),
            processes_max,
            users: Mutex::default(),
        });
        let of = Arc::clone(&shared);
        let builder = thread::Builder::new().name("fs-control".into());
        let thread = builder.spawn(move || of.accept(&socket))?;
        Ok(Self {
            path: path.to_owned(),
            shared,
            thread: Some(thread),
        })
    }

    /// Nobody comes any more. Processes that are there go on until the engine closes.
    pub fn stop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let new = || {
        rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
    };
    match fs::symlink_metadata(path) {
        Ok(data) if data.file_type().is_socket() => {
            if rustix::net::connect(new()?, &address).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            fs::remove_file(path)?;
        }
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => {}
    }
    let socket = new()?;
    // Nobody may connect before the mode is set: nobody is listened to before.
    rustix::net::bind(&socket, &address)?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

impl Shared {
    fn accept(self: &Arc<Self>, socket: &OwnedFd) {
        while !self.is_stopping.load(Ordering::Acquire) {
            let mut events = [PollFd::new(socket, PollFlags::IN)];
            if !matches!(poll(&mut events, Some(&LOOK_AGAIN)), Ok(1..)) {
                continue;
            }
            let flags = SocketFlags::CLOEXEC;
            let Ok(connection) = rustix::net::accept_with(socket, flags) else {
                // A process that is gone already, or no descriptor left for it.
                thread::sleep(std::time::Duration::from_millis(10));
                continue;
            };
            let Ok(peer) = os::peer_identity(&connection) else {
                continue;
            };
            if !self.take_place(peer.uid) {
                let packet = Answer::Closed(Closed::Full).emit();
                let _ = rustix::net::send(&connection, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                continue;
            }
            let mut gids = vec![peer.gid];
            gids.extend(peer.groups);
            gids.truncate(Windowed::GIDS_MAX);
            let uid = peer.uid;
            let peer = Peer {
                pid: peer.pid,
                uid,
                gids,
            };
            let shared = Arc::clone(self);
            let builder = thread::Builder::new().name("fs-session".into());
            let spawned = builder.spawn(move || {
                shared.serve(connection, peer);
                shared.leave_place(uid);
            });
            if spawned.is_err() {
                self.leave_place(uid);
            }
        }
    }

    fn take_place(&self, uid: u32) -> bool {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = users.values().sum();
        let own = users.get(&uid).copied().unwrap_or(0);
        let is_alone = uid == 0 || users.keys().all(|user| *user == uid);
        let limit = match is_alone {
            // One place stays for root.
            true if uid != 0 => self.processes_max.saturating_sub(1).max(1),
            true => self.processes_max,
            false => self.processes_max.div_ceil(USER_PARTS),
        };
        let has_place = all < self.processes_max && own < limit;
        if has_place {
            *users.entry(uid).or_default() += 1;
        }
        has_place
    }

    fn leave_place(&self, uid: u32) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        match users.get_mut(&uid) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(users.remove(&uid)),
        }
    }

    /// A process, to its end.
    fn serve(&self, connection: OwnedFd, peer: Peer) {
        let line = Arc::new(Line {
            socket: connection,
            queue: Mutex::default(),
            is_cut: AtomicBool::new(false),
            opening: AtomicU32::new(0),
            is_hearing: AtomicBool::new(false),
        });
        let mut packet = vec![0; MESSAGE_BYTES_MAX + 1];
        if self.receive(&line, &mut packet, Some(HELLO_WITHIN)) != Some(Request::Hello) {
            return;
        }
        let link = Arc::clone(&line);
        let log = self.engine.join(peer, move |welcome, window| {
            // If it cannot be sent, the process is gone, and the next receive tells.
            let _ = sockopt::set_socket_send_buffer_size(&link.socket, MESSAGE_BYTES_MAX * 8);
            let _ = send_descriptor(&link.socket, welcome, window.as_fd());
            link
        });
        let log = match log {
            Ok(log) => log,
            Err(why) => {
                line.send(Answer::Closed(why).emit());
                return;
            }
        };
        while !line.is_cut.load(Ordering::Acquire) {
            match self.receive(&line, &mut packet, None) {
                Some(Request::Descriptor {
                    request,
                    inode,
                    flags,
                }) => self.open_for(&line, log, (request, inode, flags)),
                Some(request) => self.engine.hear(log, request),
                None => break,
            }
        }
        self.engine.gone(log);
    }

    /// Opens an inode for a process, in a thread of its own: it may wait for leases, and the process is to be heard meanwhile.
    fn open_for(&self, line: &Arc<Line>, log: u64, (request, inode, flags): (u64, u64, u32)) {
        let refuse = |errno: FsErrno| line.send(Answer::refused(request, errno).emit());
        let Some(opener) = &self.opener else {
            return refuse(FsErrno::NotSupported);
        };
        let flags = OFlags::from_bits_retain(flags);
        if !(flags - OFlags::RWMODE - flags_that_count()).is_empty() {
            return refuse(FsErrno::Invalid);
        }
        let mask = match flags & OFlags::RWMODE {
            _ if flags.contains(OFlags::PATH) => 0,
            OFlags::RDONLY => READ,
            OFlags::WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if let Err(errno) = self.engine.may_open(log, inode, mask) {
            return refuse(errno);
        }
        if line.opening.fetch_add(1, Ordering::AcqRel) >= OPENING_MAX {
            line.opening.fetch_sub(1, Ordering::AcqRel);
            return refuse(FsErrno::Busy);
        }
        let (opener, of) = (Arc::clone(opener), Arc::clone(line));
        let builder = thread::Builder::new().name("fs-open".into());
        let spawned = builder.spawn(move || {
            match opener.open(inode, flags) {
                Ok(descriptor) => of.push((Answer::Descriptor { request }.emit(), Some(descriptor))),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(FsErrno::Io.code());
                    of.send(Answer::Refused { request, errno }.emit());
                }
            }
            of.opening.fetch_sub(1, Ordering::AcqRel);
        });
        if spawned.is_err() {
            line.opening.fetch_sub(1, Ordering::AcqRel);
            refuse(FsErrno::Busy);
        }
    }

    /// The next packet. None if there is none any more or within a time, or it is malformed.
    fn receive(&self, line: &Line, packet: &mut [u8], within: Option<Duration>) -> Option<Request> {
        let until = within.map(|within| Instant::now() + within);
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
            line.is_hearing.store(false, Ordering::Release);
            // What the process has not taken yet is sent first.
            let is_free = {
                let mut queue = line.queue();
                line.flush(&mut queue)
            };
            let wanted = if is_free { PollFlags::IN } else { PollFlags::OUT };
            let mut events = [PollFd::new(&line.socket, wanted)];
            match poll(&mut events, Some(&LOOK_AGAIN)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return None,
            }
            if !is_free {
                if events[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                    return None;
                }
                continue;
            }
            line.is_hearing.store(true, Ordering::Release);
            let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
            return match rustix::net::recv(&line.socket, &mut *packet, flags) {
                Ok((_, length @ 1..)) => Request::parse(packet.get(..length)?).ok(),
                Err(Errno::INTR | Errno::AGAIN) => continue,
                _ => None,
            };
        }
    }
}

/// Flags of `open` that a descriptor may have, beside its access mode.
fn flags_that_count() -> OFlags {
    OFlags::APPEND
        | OFlags::DIRECT
        | OFlags::DIRECTORY
        | OFlags::DSYNC
        | OFlags::SYNC
        | OFlags::LARGEFILE
        | OFlags::NOATIME
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC
        | OFlags::PATH
}

fn send_descriptor(socket: &OwnedFd, packet: &[u8], descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let descriptors = [descriptor];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags)
}
