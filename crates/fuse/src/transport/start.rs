//! A session: its start, its threads, and its end.

use super::answered::Answered;
use super::call::{Call, Handler};
use super::channel::{Buffers, Channel};
use super::classic;
use super::end::End;
use super::init::{Agreement, MINOR_MIN, Wishes, agree, offered};
use super::ring::{self, Part, Worker};
use super::sync::mpsc::{self, Receiver, Sender};
use super::sync::{Arc, Wake, thread};
use crate::abi::{InHeader, InitIn, Notification, Operation, Plain, Reply, Request, init, opcode, protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;
use std::{fmt, io};
use thiserror::Error;

/// The kernel sends INIT when it mounts. Later than this it has not mounted.
const INIT_SECONDS_MAX: i64 = 10;
/// Root writes `Y` there to allow io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Which transport a session is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// io_uring where the kernel has it, else `/dev/fuse`.
    #[default]
    Best,
    /// `/dev/fuse`.
    Classic,
}

/// How a session is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which transport.
    pub choice: Choice,
    /// Entries of each processor's queue: requests that may be under way there at once. 1 to 1024. Each has memory for the largest
    /// write, which takes room when it is first used.
    pub entries: usize,
    /// Threads that read `/dev/fuse` where there is no ring; at least 1.
    pub threads: usize,
    /// What the server wants of the kernel.
    pub wishes: Wishes,
    /// A thread of this process may wait in the kernel for requests that this process is to answer: it uses the mount itself, or has the kernel drop pages. Then a
    /// request takes some 0.3 µs more, and a kill of the process ends such a thread, too, once the connection is [ended](crate::mount::abort).
    pub waits_for_itself: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            choice: Choice::Best,
            entries: 16,
            threads: 2,
            wishes: Wishes::default(),
            waits_for_itself: false,
        }
    }
}

/// What requests come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// io_uring.
    Ring,
    /// Reads and writes of `/dev/fuse`.
    Classic,
}

/// Why a session that was to have the best transport has `/dev/fuse`. The text says what to do.
#[derive(Debug, Error)]
pub enum Fallback {
    /// The kernel has FUSE over io_uring and root has not allowed it.
    #[error(
        "FUSE over io_uring is off: as root, write Y to {PARAMETER} and mount again; /dev/fuse serves meanwhile, more slowly"
    )]
    Off,
    /// The kernel has no FUSE over io_uring.
    #[error("this kernel has no FUSE over io_uring, Linux 6.14 has: /dev/fuse serves, more slowly")]
    Missing,
    /// This process got no ring.
    #[error(
        "no io_uring for FUSE ({0}): look at the sysctl kernel.io_uring_disabled and at the limit of locked memory; /dev/fuse serves meanwhile, more slowly"
    )]
    Refused(#[source] io::Error),
}

impl Fallback {
    /// Of an entry that the kernel did not take.
    fn of(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            // Root has switched it off since the mount.
            Some(Errno::OPNOTSUPP) => Fallback::Off,
            _ => Fallback::Refused(error),
        }
    }
}

/// Why a session did not start. The mount is of no use then.
#[derive(Debug, Error)]
pub enum StartError {
    /// No INIT came.
    #[error("the kernel sent no INIT within {INIT_SECONDS_MAX} s: is the descriptor that of a new mount?")]
    NoInit,
    /// The kernel is too old, or speaks another protocol.
    #[error("the kernel speaks FUSE {0}.{1}, at least 7.{MINOR_MIN} (Linux 5.17) is needed")]
    Version(u32, u32),
    /// The system refused something.
    #[error("the session's {0}: {1}")]
    System(&'static str, #[source] io::Error),
}

/// A connection that is being served.
///
/// Unmount before the session goes: a session that is dropped or stopped under its mount is a server that has died, and
/// calls on the mount fail with ENOTCONN.
pub struct Session {
    threads: Vec<thread::JoinHandle<End>>,
    shared: Arc<Shared>,
    agreement: Agreement,
    transport: Transport,
    fallback: Option<Fallback>,
    notifier: Notifier,
}

/// What the threads of a session share.
struct Shared {
    handler: Handler,
    /// Readable when the threads that read `/dev/fuse` are to end.
    stop: Wake,
    /// Of each ring.
    rings: Vec<Arc<Answered>>,
}

impl Shared {
    fn stop(&self) {
        self.stop.wake();
        self.rings.iter().for_each(|answered| answered.stop());
    }
}

/// Ends the other threads with its own: a queue without its thread would keep callers waiting for ever.
struct EndsAll<'s>(&'s Shared);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Sends notifications, from any thread but those of the handler; what these may send is said at [`Notification`].
///
/// It does not keep the connection: when all threads of a session have ended, and all calls were answered, the kernel ends
/// the connection, and nobody waits for replies any more.
#[derive(Clone)]
pub struct Notifier(Weak<Channel>);

impl Notifier {
    /// Tells the kernel of a change. False if the kernel has nothing of it in its caches.
    ///
    /// # Errors
    /// ENOTCONN if the connection has ended, EINVAL for a name over the kernel's limit.
    pub fn notify(&self, notification: &Notification<'_>) -> Result<bool, Errno> {
        self.0.upgrade().ok_or(Errno::NOTCONN)?.notify(notification)
    }
}

/// Ends a session, from any thread but those of the handler ([`Session::stopper`]).
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// As [`Session::stop`], without waiting for its end.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// A ring's thread, which starts in steps: it makes its ring, gives the kernel its entries, and serves. After each of the
/// first two it tells how it went, and waits until it may go on. It ends if nobody can let it.
struct Starting {
    thread: thread::JoinHandle<End>,
    go: Sender<()>,
    done: Receiver<io::Result<()>>,
}

impl Starting {
    /// How a step went.
    fn wait(&self) -> io::Result<()> {
        let gone = |_| io::Error::other("its thread has ended");
        self.done.recv().map_err(gone).flatten()
    }

    /// The next step. A thread that has ended is told nothing: `wait` finds out.
    fn go(&self) {
        let _ = self.go.send(());
    }
}

impl Session {
    /// Serves the connection of a new mount: answers INIT, and starts the threads that call `handler`. Over io_uring there is
    /// one thread for each processor where this process may run, and one for `/dev/fuse`.
    ///
    /// The handler does not use the mount itself: it would wait for its own reply.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        device: OwnedFd,
        config: &Config,
        handler: impl Fn(Call) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        assert!((1..=1024).contains(&config.entries) && config.threads > 0);
        let (wished, _) = agree(&InitIn::default(), &config.wishes, false);
        let payload_bytes = wished.write_bytes_max as usize;
        let buffers = Arc::new(Buffers::new(payload_bytes));
        let channel = Channel::new(device, buffers);
        let channel = Arc::new(channel.map_err(|errno| StartError::System("device", errno.into()))?);
        let (header, kernel) = read_init(&channel)?;
        let mut fallback = match config.choice {
            Choice::Best => missing(&kernel),
            Choice::Classic => None,
        };
        let parts = match (config.choice, &fallback) {
            (Choice::Best, None) => ring::parts_here().unwrap_or_else(|error| {
                fallback = Some(Fallback::Refused(error));
                Vec::new()
            }),
            _ => Vec::new(),
        };
        let queues = parts.iter().map(|part| part.queues.len()).max().unwrap_or(0);
        let shared = share(Arc::new(handler), queues * config.entries, parts.len())
            .map_err(|error| StartError::System("wakes", error))?;
        let size = ring::Size {
            entries: config.entries,
            payload_bytes,
            waits_for_itself: config.waits_for_itself,
        };
        let mut starting = start_rings(parts, size, &shared, &channel).unwrap_or_else(|error| {
            fallback = Some(Fallback::Refused(error));
            Vec::new()
        });
        let (agreement, reply) = agree(&kernel, &config.wishes, !starting.is_empty());
        channel.reply(&header, &Reply::Init(reply));
        if let Err(error) = step(&starting) {
            fallback = Some(Fallback::of(error));
            starting.clear();
        }
        let mut session = Self {
            threads: Vec::new(),
            shared,
            agreement,
            transport: if starting.is_empty() {
                Transport::Classic
            } else {
                Transport::Ring
            },
            fallback,
            notifier: Notifier(Arc::downgrade(&channel)),
        };
        for starting in starting {
            starting.go();
            session.threads.push(starting.thread);
        }
        session.read_device(config.threads, channel)?;
        Ok(session)
    }

    /// Starts the threads that read `/dev/fuse`: one beside rings.
    fn read_device(&mut self, threads: usize, channel: Arc<Channel>) -> Result<(), StartError> {
        let threads = match self.transport {
            Transport::Ring => 1,
            Transport::Classic => threads,
        };
        for number in 0..threads {
            // Threads may share a descriptor, too, if this process may not open the device.
            let own = (number > 0).then(|| channel.try_clone().ok()).flatten();
            let channel = own.map_or_else(|| Arc::clone(&channel), Arc::new);
            let shared = Arc::clone(&self.shared);
            let serve = move || {
                let _ends_all = EndsAll(&shared);
                classic::serve(&channel, &shared.stop, &shared.handler)
            };
            let started = thread::Builder::new().name(format!("fuse-{number}")).spawn(serve);
            self.threads
                .push(started.map_err(|error| StartError::System("threads", error))?);
        }
        Ok(())
    }

    /// What kernel and server have agreed on.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// What requests come by.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Why there is no ring though there was to be one; to be said once.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// For notifications.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Ends the session while another thread waits for its end.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits until the session is over: after an unmount, or an abort. Calls that wait for their replies in the handler's
    /// threads are not waited for.
    pub fn join(mut self) -> End {
        self.join_threads()
    }

    /// Ends the session. Under a mount that is still there, calls fail with ENOTCONN from then on; those that the server has
    /// not answered yet fail when it drops them.
    pub fn stop(mut self) -> End {
        self.shared.stop();
        self.join_threads()
    }

    /// Each thread ends when its own connection does, or when another one ends: [`EndsAll`].
    fn join_threads(&mut self) -> End {
        let ends = self
            .threads
            .drain(..)
            .map(|thread| thread.join().unwrap_or(End::Panicked));
        ends.max_by_key(|end| end.rank()).unwrap_or(End::Stopped)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.stop();
        self.join_threads();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Session");
        text.field("transport", &self.transport)
            .field("agreement", &self.agreement);
        text.finish_non_exhaustive()
    }
}

fn share(handler: Handler, entries: usize, rings: usize) -> io::Result<Arc<Shared>> {
    let answered = |_| Ok(Arc::new(Answered::new(entries, Wake::new()?)));
    Ok(Arc::new(Shared {
        handler,
        stop: Wake::new()?,
        rings: (0..rings).map(answered).collect::<io::Result<_>>()?,
    }))
}

/// The kernel's INIT.
fn read_init(channel: &Channel) -> Result<(InHeader, InitIn), StartError> {
    let limit = Timespec {
        tv_sec: INIT_SECONDS_MAX,
        tv_nsec: 0,
    };
    let system = |errno: Errno| StartError::System("INIT", errno.into());
    let mut files = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    if poll(&mut files, Some(&limit)).map_err(system)? == 0 {
        return Err(StartError::NoInit);
    }
    let mut buffer = channel.buffers.take();
    let bytes = channel.read(&mut buffer).map_err(|errno| match errno {
        Errno::PERM => StartError::NoInit,
        errno => system(errno),
    })?;
    let init = first(&buffer[..bytes]);
    channel.buffers.give(buffer);
    init
}

/// A connection's first request.
fn first(bytes: &[u8]) -> Result<(InHeader, InitIn), StartError> {
    let number = |at: usize| bytes.get(InHeader::BYTES + at..).and_then(u32::read).unwrap_or(0);
    match Request::parse(bytes) {
        Ok(Request {
            header,
            operation: Operation::Init(init),
        }) if init.major == protocol::KERNEL_VERSION && init.minor >= MINOR_MIN => Ok((header, init)),
        // Older kernels have a shorter INIT, which begins alike.
        _ => match InHeader::read(bytes) {
            Some(header) if header.opcode == opcode::INIT => Err(StartError::Version(number(0), number(4))),
            _ => Err(StartError::NoInit),
        },
    }
}

/// Why the kernel has no ring for a connection, as far as its INIT tells.
fn missing(kernel: &InitIn) -> Option<Fallback> {
    if offered(kernel) & init::OVER_IO_URING != 0 {
        return None;
    }
    match std::fs::exists(PARAMETER) {
        Ok(true) => Some(Fallback::Off),
        _ => Some(Fallback::Missing),
    }
}

/// Starts a thread for each part, and waits until all have their rings. After an error all of them end.
fn start_rings(
    parts: Vec<Part>,
    size: ring::Size,
    shared: &Arc<Shared>,
    channel: &Arc<Channel>,
) -> io::Result<Vec<Starting>> {
    let mut starting = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        let (shared, channel) = (Arc::clone(shared), Arc::clone(channel));
        let ((go, may_go), (tell, done)) = (mpsc::channel(), mpsc::channel());
        let serve = move || serve_ring(&part, size, &shared, (number, channel), (&tell, &may_go));
        let thread = thread::Builder::new()
            .name(format!("fuse-ring-{number}"))
            .spawn(serve)?;
        starting.push(Starting { thread, go, done });
    }
    starting.iter().try_for_each(Starting::wait)?;
    Ok(starting)
}

/// Lets all threads take a step, and waits for it.
fn step(starting: &[Starting]) -> io::Result<()> {
    starting.iter().for_each(Starting::go);
    starting.iter().try_for_each(Starting::wait)
}

/// A ring's thread.
fn serve_ring(
    part: &Part,
    size: ring::Size,
    shared: &Shared,
    (number, channel): (usize, Arc<Channel>),
    (tell, may_go): (&Sender<io::Result<()>>, &Receiver<()>),
) -> End {
    let answered = Arc::clone(&shared.rings[number]);
    let mut worker = None;
    let mut make = || -> io::Result<()> {
        worker = Some(Worker::new(
            part,
            size,
            Arc::clone(&answered),
            Arc::clone(&channel),
        )?);
        Ok(())
    };
    let _ = tell.send(make());
    let Some(mut worker) = worker.filter(|_| may_go.recv().is_ok()) else {
        return End::Stopped;
    };
    let mut early = Vec::new();
    let _ = tell.send(worker.register().map(|found| early = found));
    if may_go.recv().is_err() {
        return End::Stopped;
    }
    let _ends_all = EndsAll(shared);
    worker.run(early, &shared.handler)
}
