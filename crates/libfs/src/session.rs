//! A process's connection: its log, the thread that hears the daemon, and the loop by which a call gets what it lacks.

use crate::paths::{Manner, Place, Walked, walk};
use crate::state::{Come, Sink, State, Wish};
use fs::client::{Call, Caller, Client, Failure, Options};
use fs::errno::Errno;
use fs::inode::Inode;
use fs::known::{Known, Missing};
use fs::lease::{MOVES, Mode, WANTS_MAX};
use fs::log::{AddError, Options as LogOptions, Ring, Writer};
use fs::media::Error;
use fs::op::{Action, Op, Target};
use fs::overlay::Below;
use fs::protocol::{Answer, Closed, MESSAGE_BYTES_MAX, Malformed, Request, WINDOW_HEAD_BYTES, Welcome};
use fs::value::{Run, Windowed};
use os::sync::{Arc, AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, PoisonError, thread};
use os::{Mapped, NvmTiming};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error as ErrorOf;

/// A wait ends after this long at the latest, and looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// The attribute of a mount's root that has the path of the socket.
const CONTROL: &str = "switchyard.control";
/// Bytes of a path, at most.
const PATH_BYTES_MAX: usize = 4096;
/// Digests that a call waits for, at most, before it is told that there is no room.
const DIGESTS_MAX: u32 = 64;
/// Bytes of data of a record, at most.
const RECORD_BYTES_MAX: u32 = 128 << 10;
/// Refusals of a lease of an inode that is not there, after which a call is told so.
const DENIALS_MAX: u64 = 8;
/// How often a call asks anew for what others take away meanwhile. Each time it was granted once, so this is no limit in practice.
const TRIES_MAX: u32 = 100_000;

/// Why a process gets no log.
#[derive(Debug, ErrorOf)]
pub enum ConnectError {
    /// Nobody listens there, or this user may not connect.
    #[error("no file system is served there: {0}")]
    Socket(#[from] io::Error),
    /// The daemon takes no more processes, or ends.
    #[error("the daemon gives no log: {0:?}")]
    Closed(Closed),
    /// It does not speak this protocol.
    #[error("the daemon speaks another version")]
    Malformed,
}

impl From<rustix::io::Errno> for ConnectError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Socket(errno.into())
    }
}

impl From<Malformed> for ConnectError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// The files of a daemon, as this process sees them. Clones are the same.
#[derive(Clone)]
pub struct FileSystem(pub(crate) Arc<Session>);

pub(crate) struct Session {
    line: Arc<Line>,
    hearer: Mutex<Option<thread::JoinHandle<()>>>,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    umask: AtomicU32,
    pid: u32,
    is_mounted: AtomicBool,
    ring_bytes: u64,
}

struct Line {
    socket: OwnedFd,
    state: Mutex<State>,
    news: Condvar,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what the socket takes, in order. The thread that hears the daemon sends the rest: nobody waits here, so neither side waits for
    /// the other.
    fn send(&self, state: &mut State) {
        while let Some(packet) = state.outbox.front() {
            match rustix::net::send(&self.socket, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => {
                    state.outbox.pop_front();
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => return state.lost(),
            }
        }
    }

    /// Hears the daemon, until it is gone.
    fn hear(&self) {
        let mut packet = vec![0; MESSAGE_BYTES_MAX + 1];
        loop {
            let has_more = {
                let mut state = self.lock();
                self.send(&mut state);
                !state.outbox.is_empty()
            };
            let wanted = if has_more {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            let mut events = [PollFd::new(&self.socket, wanted)];
            if !matches!(poll(&mut events, Some(&POLL)), Ok(1..)) {
                continue;
            }
            let (length, descriptor) = match receive(&self.socket, &mut packet, RecvFlags::DONTWAIT) {
                Ok((length @ 1.., descriptor)) => (length, descriptor),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                _ => break,
            };
            let Ok(answer) = Answer::parse(&packet[..length]) else {
                break;
            };
            let mut state = self.lock();
            state.hear(answer, descriptor);
            self.send(&mut state);
            drop(state);
            self.news.notify_all();
            // Calls go on meanwhile.
            while self.lock().pass_some() {
                thread::yield_now();
            }
        }
        self.lock().lost();
        self.news.notify_all();
    }
}

impl FileSystem {
    /// Connects to a daemon, and gets a log.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(path: &Path) -> Result<Self, ConnectError> {
        Self::over(Self::dial(path)?)
    }

    /// A socket that is connected to a daemon, for [`over`](Self::over).
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn dial(path: &Path) -> Result<OwnedFd, ConnectError> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    /// Gets a log by a socket that is connected to a daemon.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn over(socket: OwnedFd) -> Result<Self, ConnectError> {
        rustix::net::send(&socket, &Request::Hello.emit(), SendFlags::NOSIGNAL)?;
        let (welcome, window) = receive_window(&socket)?;
        let timing = (welcome.bandwidth > 0 || welcome.latency_ns > 0).then_some(NvmTiming {
            latency_ns: welcome.latency_ns,
            bandwidth: welcome.bandwidth,
        });
        let window = Mapped::shared(&window, WINDOW_HEAD_BYTES + welcome.ring_bytes, timing)?;
        let block = fs::format::BLOCK_BYTES as u64;
        let run = Run {
            place: fs::format::Place::new(0, 1),
            blocks: welcome.ring_bytes / block,
        };
        let ring = Ring::new(welcome.nonce, welcome.sector, &[run]).ok_or(ConnectError::Malformed)?;
        let frame_bytes_max = ring.frame_bytes_max();
        let options = LogOptions {
            frame_bytes_max,
            writes_in_flight_max: 1,
        };
        let options_of_calls = Options {
            record_bytes_max: (frame_bytes_max / 4).min(RECORD_BYTES_MAX),
            ..Options::default()
        };
        let mut calls = Client::new(welcome.mark, options_of_calls);
        calls.grant_inodes(welcome.numbers.clone());
        let known = Known::new(welcome.mark, welcome.numbers.clone());
        let writer = Writer::new(ring, 0, options);
        let line = Arc::new(Line {
            socket,
            state: Mutex::new(State::new((calls, known), (writer, window), welcome.numbers)),
            news: Condvar::new(),
        });
        let of = Arc::clone(&line);
        let hearer = thread::Builder::new()
            .name("libfs".into())
            .spawn(move || of.hear())?;
        Ok(Self(Arc::new(Session {
            line,
            hearer: Mutex::new(Some(hearer)),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            // The daemon knows no more of them.
            groups: rustix::process::getgroups()?
                .into_iter()
                .take(Windowed::GIDS_MAX - 1)
                .map(|gid| gid.as_raw())
                .collect(),
            umask: AtomicU32::new(0o022),
            pid: std::process::id(),
            is_mounted: AtomicBool::new(false),
            ring_bytes: welcome.ring_bytes,
        })))
    }

    /// A descriptor of the mount for a file or directory, of which this process must have come to the inode: with it the kernel makes the calls.
    /// All that was logged is durable, and the lease of the inode is given back before. `flags` are those of `open`: the access mode, which must be
    /// one that the process might open it with, `O_APPEND`, `O_DIRECT`, `O_SYNC`, `O_DSYNC`, `O_NONBLOCK`, `O_NOATIME`, `O_DIRECTORY`, and `O_PATH`. The
    /// descriptor is closed by `exec`.
    ///
    /// A file that has no name any more can be had as long as this process has it open. Keep the [`File`](crate::File) until then.
    ///
    /// # Errors
    /// [`Errno::NotSupported`] without a mount, [`Errno::Access`], [`Errno::Invalid`] for other flags and for what is neither file nor directory,
    /// [`Errno::Io`] if the log is closed.
    pub fn descriptor(&self, inode: u64, flags: u32) -> Result<OwnedFd, Errno> {
        self.0.descriptor(inode, flags)
    }

    /// The socket of the programs with logs that share a mount's files; none if it is no such mount. `directory` is where it is mounted.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn socket_of(directory: &Path) -> io::Result<Option<PathBuf>> {
        let mut path = [0; PATH_BYTES_MAX];
        match rustix::fs::getxattr(directory, CONTROL, &mut path[..]) {
            Ok(bytes) => Ok(Some(PathBuf::from(OsStr::from_bytes(&path[..bytes])))),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Says which bits new files do not get.
    pub fn set_umask(&self, umask: u32) {
        self.0.umask.store(umask & 0o777, Ordering::Relaxed);
    }

    /// Says that the files are also mounted, and the process sees more than them. What a call cannot do then is told by [`Errno::CrossDevice`]: its path leads
    /// out by an absolute link or by `..` of the root, it opens a pipe or a device, it needs a lease that many want, or the log is closed, and has nothing of the call.
    pub fn set_mounted(&self) {
        self.0.is_mounted.store(true, Ordering::Relaxed);
    }

    /// Whether the log is closed: all calls fail.
    pub fn is_closed(&self) -> bool {
        self.0.line.lock().check_open().is_err()
    }

    /// Ends the session. What calls have done is durable, and the daemon finds it in the log. Calls fail from now on.
    pub fn close(&self) {
        self.0.end();
    }
}

fn receive_window(socket: &OwnedFd) -> Result<(Welcome, File), ConnectError> {
    let mut packet = vec![0; MESSAGE_BYTES_MAX + 1];
    let (length, window) = receive(socket, &mut packet, RecvFlags::empty())?;
    match (Answer::parse(&packet[..length])?, window) {
        (Answer::Welcome(welcome), Some(window)) => Ok((welcome, window.into())),
        (Answer::Closed(why), _) => Err(ConnectError::Closed(why)),
        _ => Err(ConnectError::Malformed),
    }
}

/// The next packet: its length, and the descriptor that it carries.
fn receive(
    socket: &OwnedFd,
    packet: &mut [u8],
    flags: RecvFlags,
) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(packet)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut slices, &mut control, flags)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            descriptor = descriptors.next();
        }
    }
    Ok((received.bytes, descriptor))
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

impl Session {
    fn end(&self) {
        let _ = rustix::net::shutdown(&self.line.socket, Shutdown::Both);
        let hearer = self.hearer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hearer) = hearer {
            // A panic was reported when it happened.
            let _ = hearer.join();
        }
    }
}

/// The kind of a call.
#[derive(Clone, Copy, Default)]
pub(crate) struct How<'a> {
    /// The call moves a name. It says here which inode is no directory: all others need one more lease to go to another directory.
    pub plain: Option<&'a Cell<Option<u64>>>,
    /// While this is set, a lease that is missing is of something that the call changes: it is asked for exclusively at once.
    pub changes: Option<&'a Cell<bool>>,
    /// It cannot be made by the mount: a part of it is done already.
    pub insists: bool,
    /// It is the mount's, unless the process has all that it needs.
    pub is_at_hand: bool,
}

/// What a call lacks.
enum Lack {
    /// To know something.
    Known(Missing),
    /// Exclusive leases.
    Leases(Vec<u64>),
    /// Room.
    Room,
}

impl Session {
    pub(crate) fn is_mounted(&self) -> bool {
        self.is_mounted.load(Ordering::Relaxed)
    }

    /// Where a path leads.
    pub(crate) fn walk(
        &self,
        calls: &Client,
        call: &mut Call<'_, '_>,
        at: Place<'_>,
        follows: bool,
    ) -> Result<Walked, Failure> {
        let manner = Manner {
            follows,
            is_mounted: self.is_mounted(),
            is_last: None,
        };
        walk(calls, call, (at.directory, at.path), manner)
    }

    /// Where a path leads whose last name, and what is there, the call changes: [`How::changes`] has the same cell.
    pub(crate) fn walk_to_change(
        &self,
        calls: &Client,
        call: &mut Call<'_, '_>,
        at: Place<'_>,
        is_last: &Cell<bool>,
    ) -> Result<Walked, Failure> {
        let manner = Manner {
            follows: false,
            is_mounted: self.is_mounted(),
            is_last: Some(is_last),
        };
        walk(calls, call, (at.directory, at.path), manner)
    }

    /// What a path has led to before, if nothing has changed since: without a walk, and without what a call of more needs.
    pub(crate) fn walked(&self, at: Place<'_>, follows: bool) -> Option<(u64, Inode)> {
        let mut state = self.line.lock();
        state.check_open().ok()?;
        let walk = state.known.walked(at.directory, follows, at.path)?;
        let is_sound = !walk.is_directory || walk.found.1.is_directory();
        is_sound.then_some(walk.found)
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            pid: self.pid,
            uid: self.uid,
            gid: self.gid,
            groups: Some(&self.groups),
            umask: self.umask.load(Ordering::Relaxed),
        }
    }

    /// Makes a call, as often as it takes: what it lacks is asked for, and it is tried again. Nothing has changed before it succeeds.
    pub(crate) fn call<R>(
        &self,
        call: impl FnMut(&mut Client, &mut Call<'_, '_>) -> Result<R, Failure>,
    ) -> Result<R, Errno> {
        self.call_as(How::default(), call)
    }

    pub(crate) fn call_as<R>(
        &self,
        how: How<'_>,
        mut call: impl FnMut(&mut Client, &mut Call<'_, '_>) -> Result<R, Failure>,
    ) -> Result<R, Errno> {
        let mut state = self.line.lock();
        let mut pinned = Vec::new();
        let (mut tries, mut denials, mut waits) = (0, 0, 0);
        let mut is_unlogged = true;
        let result = loop {
            if let Err(errno) = state.check_open() {
                break Err(errno);
            }
            let lack = match self.try_call(&mut state, how, &mut call) {
                Ok(result) => {
                    let frames = state.frames;
                    let flushed = state.flush();
                    is_unlogged = state.frames == frames;
                    break flushed.map(|()| result);
                }
                Err(Ok(errno)) => break Err(errno),
                Err(Err(lack)) => lack,
            };
            tries += 1;
            let supplied = match lack {
                _ if tries > TRIES_MAX => Err(Errno::Io),
                _ if how.is_at_hand => Err(Errno::CrossDevice),
                Lack::Room => {
                    state.unpin(&mut pinned);
                    waits += 1;
                    state = self.wait_for_digest(state);
                    match waits < DIGESTS_MAX {
                        true => Ok(()),
                        false => Err(Errno::NoSpace),
                    }
                }
                Lack::Known(Missing::Lease(inode)) => {
                    let asked = self.ask(state, (&mut pinned, &mut denials), &[], (Some(inode), how));
                    state = asked.0;
                    asked.1
                }
                Lack::Leases(inodes) => {
                    let asked = self.ask(state, (&mut pinned, &mut denials), &inodes, (None, how));
                    state = asked.0;
                    asked.1
                }
                Lack::Known(missing) => {
                    let fetched = self.fetch(state, missing);
                    state = fetched.0;
                    fetched.1
                }
            };
            if let Err(errno) = supplied {
                break Err(errno);
            }
        };
        let result = result.map_err(|errno| self.told(&mut state, errno, is_unlogged));
        state.unpin(&mut pinned);
        if !state.is_digest_wanted && state.is_filling(self.ring_bytes) {
            state.is_digest_wanted = true;
            state.say(&Request::Digest);
        }
        if !state.outbox.is_empty() {
            self.line.send(&mut state);
        }
        result
    }

    /// The mount can still make a call of which a closed log has nothing.
    fn told(&self, state: &mut State, errno: Errno, is_unlogged: bool) -> Errno {
        let is_mounts = errno == Errno::Io && is_unlogged && self.is_mounted();
        match is_mounts && state.check_open().is_err() {
            true => Errno::CrossDevice,
            false => errno,
        }
    }

    /// Makes a call once. What it lacks, if it lacks something.
    fn try_call<R>(
        &self,
        state: &mut State,
        how: How<'_>,
        call: &mut impl FnMut(&mut Client, &mut Call<'_, '_>) -> Result<R, Failure>,
    ) -> Result<R, Result<Errno, Lack>> {
        let (calls, known, mut sink) = state.parts();
        known.begin();
        let mut lacking = Vec::new();
        let result = {
            let mut add = |ops: &[Op<'_>]| {
                lacking = lacks(&sink, ops, how.plain.and_then(Cell::get));
                match lacking.is_empty() {
                    true => sink.add(ops),
                    false => Err(AddError::Busy),
                }
            };
            let mut below = Below::known(known);
            let mut context = Call {
                caller: self.caller(),
                now: os::since_1970().into(),
                below: &mut below,
                sink: &mut add,
            };
            call(calls, &mut context)
        };
        result.map_err(|failure| match failure {
            Failure::Busy if !lacking.is_empty() => Err(Lack::Leases(lacking)),
            Failure::Tree(Error::Missing) => match known.missing() {
                Some(Missing::Lease(inode)) if how.changes.is_some_and(Cell::get) => {
                    Err(Lack::Leases(vec![inode]))
                }
                Some(missing) => Err(Lack::Known(missing)),
                None => Ok(Errno::Io),
            },
            Failure::Busy | Failure::Digest => Err(Lack::Room),
            failure => Ok(failure.errno()),
        })
    }

    /// Asks for leases: exclusive ones, one to read, and those to read that the call has used. They are kept until the call ends.
    fn ask<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        (pinned, denials): (&mut Vec<u64>, &mut u64),
        exclusive: &[u64],
        (shared, how): (Option<u64>, How<'_>),
    ) -> (MutexGuard<'s, State>, Result<(), Errno>) {
        let has_mount = self.is_mounted() && !how.insists;
        let mut wants: Vec<(u64, Mode)> = exclusive.iter().map(|inode| (*inode, Mode::Exclusive)).collect();
        let used: Vec<u64> = state.known.touched().to_vec();
        for inode in shared.into_iter().chain(used) {
            let is_new = !wants.iter().any(|(other, _)| *other == inode);
            if is_new && wants.len() < WANTS_MAX && !state.known.is_own(inode) {
                wants.push((inode, Mode::Shared));
            }
        }
        // While this waits, others get what they ask for.
        state.unpin(pinned);
        if has_mount && state.is_crowded(&wants) {
            return (state, Err(Errno::CrossDevice));
        }
        let request = state.wish(Wish::Leases);
        state.say(&Request::Ask {
            request,
            wants,
            has_mount,
        });
        let (mut state, come) = self.wait(state, request);
        let result = match come {
            Come::Yes(inodes) => {
                let is_there = shared.is_none_or(|inode| inodes.contains(&inode));
                let all = exclusive.iter().all(|inode| inodes.contains(inode));
                *pinned = inodes;
                *denials += u64::from(!is_there || !all);
                // An inode that is gone is looked for again, by its name.
                match *denials < DENIALS_MAX {
                    true => Ok(()),
                    false => Err(Errno::Stale),
                }
            }
            // Many threads ask at once: it is their turn first.
            Come::No(Errno::Busy) => {
                state = self.sleep(state);
                Ok(())
            }
            // The daemon has forgotten how the process came to it: it comes by names again.
            Come::No(Errno::Stale) if *denials < DENIALS_MAX => {
                *denials += 1;
                state.known.forget();
                Ok(())
            }
            Come::No(errno) => Err(errno),
            Come::Not | Come::Descriptor(_) => unreachable!("the wait has an end, and was for leases"),
        };
        (state, result)
    }

    fn fetch<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        missing: Missing,
    ) -> (MutexGuard<'s, State>, Result<(), Errno>) {
        let request = match missing {
            Missing::Records(inode, kind, numbers) => {
                let request = state.wish(Wish::Records(inode, kind, numbers.clone()));
                state.say(&Request::Records {
                    request,
                    inode,
                    kind,
                    numbers,
                });
                request
            }
            Missing::Blocks(inode, blocks) => {
                let first = blocks.start;
                let count = state.blocks_to_fetch(inode, &blocks);
                let request = state.wish(Wish::Blocks(inode, first..first + count));
                state.say(&Request::Blocks {
                    request,
                    inode,
                    first,
                    count,
                });
                request
            }
            Missing::Lease(_) => return (state, Err(Errno::Io)),
        };
        let (state, come) = self.wait(state, request);
        match come {
            Come::Yes(_) => (state, Ok(())),
            Come::No(errno) => (state, Err(errno)),
            Come::Not | Come::Descriptor(_) => unreachable!("the wait has an end, and was for what is known"),
        }
    }

    /// Waits until something has come of a wish.
    fn wait<'s>(&'s self, mut state: MutexGuard<'s, State>, request: u64) -> (MutexGuard<'s, State>, Come) {
        self.line.send(&mut state);
        loop {
            if let Some(come) = state.come(request) {
                return (state, come);
            }
            state = self.sleep(state);
            // The daemon may be gone without a word.
            if state.check_open().is_err() {
                state.lost();
            }
        }
    }

    fn sleep<'s>(&'s self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        match self.line.news.wait_timeout(state, LOOK_AGAIN) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    fn wait_for_digest<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.say(&Request::Digest);
        self.line.send(&mut state);
        let before = state.digests;
        while state.digests == before && state.check_open().is_ok() {
            state = self.sleep(state);
        }
        state
    }

    /// A descriptor of the mount.
    pub(crate) fn descriptor(&self, inode: u64, flags: u32) -> Result<OwnedFd, Errno> {
        loop {
            let mut state = self.line.lock();
            // The calls of the mount have it next, with all that was logged.
            state.flush()?;
            state.release(inode);
            let request = state.wish(Wish::Descriptor);
            state.say(&Request::Descriptor {
                request,
                inode,
                flags,
            });
            let (state, come) = self.wait(state, request);
            match come {
                Come::Descriptor(descriptor) => return Ok(descriptor),
                // Many are asked for at once.
                Come::No(Errno::Busy) => drop(self.sleep(state)),
                Come::No(errno) => return Err(errno),
                Come::Not | Come::Yes(_) => {
                    unreachable!("the wait has an end, and was for a descriptor")
                }
            }
        }
    }

    /// Nobody of the process refers to an inode any more, if this was the last.
    pub(crate) fn forget(&self, inode: u64) {
        {
            let mut state = self.line.lock();
            let (calls, known, _) = state.parts();
            known.begin();
            // Of an inode without a lease the daemon knows whether it has a name.
            let _ = calls.forget(&mut Below::known(known), inode, 1);
            state.shut(inode);
            self.line.send(&mut state);
        }
        // What cannot be deleted now is when the file system is opened anew.
        while self.line.lock().calls.has_lost() {
            let how = How {
                insists: true,
                ..How::default()
            };
            if self.call_as(how, |calls, call| calls.release_lost(call)).is_err() {
                break;
            }
        }
    }
}

/// Inodes of which operations need an exclusive lease that the process does not have.
fn lacks(sink: &Sink<'_>, ops: &[Op<'_>], plain: Option<u64>) -> Vec<u64> {
    let mut lacking = Vec::new();
    let mut need = |inode: u64| {
        if !sink.may_change(inode) && !lacking.contains(&inode) {
            lacking.push(inode);
        }
    };
    for op in ops {
        let creates = matches!(op.action, Action::Create { .. });
        op.changed()
            .into_iter()
            .skip(usize::from(creates))
            .flatten()
            .for_each(&mut need);
        // A directory may be what moves, or what it changes places with: only a file is known not to be one.
        if let Action::Rename { from, to, target } = &op.action
            && from.parent != to.parent
            && (plain != Some(op.inode) || matches!(target, Target::Exchanged { .. }))
        {
            need(MOVES);
        }
    }
    lacking
}
