//! The server of a mount: how changes are answered, and who waits.
//!
//! A change is answered when it is durable (mode `sync`), or at once (`ordered`). If the log has no room, or a device is to be waited for,
//! the call goes to a worker: a thread of the transport waits for nothing.

use super::attr::errno_of;
use super::cache::KernelCache;
use super::kernel::Kernel;
use super::workers::Queue;
use crate::engine::{Engine, Failure, Mode as EngineMode, Patience, Pins, Turn, Wants};
use fs::client::Caller;
use fs::lease::Mode;
use fs::log::Ticket;
use fuse::abi::{Errno, InHeader, Notification, Reply};
use fuse::transport::{Call, Transport};
use os::sync::{Arc, AtomicU32, Ordering};
use std::path::PathBuf;

/// What a change has come to: its answer, and when it is durable. None: nothing has changed.
pub(crate) type Changed = (Reply<'static>, Option<Ticket>);

/// Who is to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A thread of the transport: it does not wait.
    Transport,
    /// A worker.
    Worker,
}

/// How a call is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way<'w> {
    pub place: Place,
    /// Leases that it has for its time.
    pub pins: &'w Pins,
}

impl Way<'_> {
    /// Whether a call may use inodes so. The first of them may be in the kernel's cache, if `is_cached`.
    pub fn may(&self, turn: &mut Turn<'_>, leases: &[(u64, Mode)], is_cached: bool) -> Result<(), Failure> {
        if !turn.is_shared() {
            return Ok(());
        }
        let leases = leases.to_vec();
        turn.may(self.pins, &Wants { leases, is_cached })
    }

    /// Whether it may read an inode.
    pub fn may_read(&self, turn: &mut Turn<'_>, inode: u64) -> Result<(), Failure> {
        self.may(turn, &[(inode, Mode::Shared)], false)
    }

    /// Whether it may change an inode.
    pub fn may_change(&self, turn: &mut Turn<'_>, inode: u64) -> Result<(), Failure> {
        self.may(turn, &[(inode, Mode::Exclusive)], false)
    }
}

pub(crate) struct Server {
    pub engine: Arc<Engine>,
    pub queue: Queue,
    /// Devices with files keep a caller waiting.
    pub is_slow: bool,
    /// Reading changes access times.
    pub keeps_atime: bool,
    /// What requests come by, once it is known.
    pub transport: Told,
    /// Tells the kernel of changes, once the session has started.
    pub kernel: Kernel,
    /// What the kernel has, where others may have logs.
    pub cache: KernelCache,
    /// Calls that may wait for leases at once.
    pub waiting_max: usize,
    /// The socket of programs with logs.
    pub control: Option<PathBuf>,
}

/// A transport that is told once.
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicU32);

impl Told {
    pub fn set(&self, transport: Transport) {
        let value = if transport == Transport::Ring { 2 } else { 1 };
        // It stands for itself.
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn transport(&self) -> Transport {
        match self.0.load(Ordering::Relaxed) {
            2 => Transport::Ring,
            _ => Transport::Classic,
        }
    }
}

/// The caller of a request. The kernel tells no other groups than the first.
pub(crate) fn caller_of(header: &InHeader, umask: u32) -> Caller<'static> {
    Caller {
        pid: header.pid,
        uid: header.uid,
        gid: header.gid,
        groups: None,
        umask,
    }
}

impl Server {
    /// Makes a change, and answers.
    pub fn change_by(
        &self,
        call: Call,
        way: Way<'_>,
        change: impl Fn(&mut Turn<'_>, &Call, Way<'_>) -> Result<Changed, Failure>,
    ) {
        let mut patience = Patience::default();
        loop {
            match self.engine.turn(|turn| change(turn, &call, way)) {
                Ok(changed) => return self.answer(call, changed),
                Err(Failure::Leases(wants)) => return self.park(call, wants),
                Err(failure) if way.place == Place::Transport && Patience::may_wait(&failure) => {
                    return self.queue.serve(call, Pins::new());
                }
                Err(failure) => {
                    if let Err(failure) = patience.wait(&self.engine, failure) {
                        return call.fail(errno_of(&failure));
                    }
                }
            }
        }
    }

    /// A call waits for leases, without a thread. A worker goes on with it.
    pub fn park(&self, call: Call, wants: Wants) {
        if self.engine.waiting() >= self.waiting_max {
            // Each has a place that the calls of those need that have the leases.
            return call.fail(Errno::BUSY);
        }
        let queue = self.queue.clone();
        self.engine
            .wait_for_leases(wants, Box::new(move |pins| queue.serve(call, pins)));
    }

    /// A call has changed attributes, and its answer does not say so: without a word the kernel would let programs run with set-ID bits that are
    /// gone. This waits for no call: only notifications of data do.
    pub fn attributes_changed(&self, inode: u64) {
        let notification = Notification::InvalInode {
            inode,
            offset: -1,
            bytes: 0,
        };
        self.kernel.notify(&notification);
    }

    /// Answers a change, when its mode says so.
    pub fn answer(&self, call: Call, (reply, ticket): Changed) {
        match ticket {
            Some(ticket) if self.engine.mode() == EngineMode::Sync => {
                self.answer_durable(call, ticket, reply)
            }
            Some(_) => {
                call.reply(&reply);
                self.engine.write_behind();
            }
            None => call.reply(&reply),
        }
    }

    /// Answers when a frame is durable.
    pub fn answer_durable(&self, call: Call, ticket: Ticket, reply: Reply<'static>) {
        let answer = move |result: Result<(), Failure>| match result {
            Ok(()) => call.reply(&reply),
            Err(failure) => call.fail(errno_of(&failure)),
        };
        self.engine.when_durable(ticket, Box::new(answer));
    }
}
