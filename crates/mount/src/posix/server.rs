//! The server of a mount: how changes are answered, and who waits.
//!
//! A change is answered when it is durable (mode `sync`), or at once (`ordered`). If the log has no room, or a device is to be waited for,
//! the call goes to a worker: a thread of the transport waits for nothing.

use super::attr::errno_of;
use super::workers::Queue;
use crate::engine::{Engine, Failure, Mode, Patience, Turn};
use fs::client::Caller;
use fs::log::Ticket;
use fuse::abi::{InHeader, Notification, Reply};
use fuse::transport::{Call, Notifier, Transport};
use os::sync::{Arc, AtomicU32, Mutex, Ordering, PoisonError};

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

/// The kernel, to which notifications go from the session's start on.
#[derive(Default)]
pub(crate) struct Kernel(Mutex<Option<Notifier>>);

impl Kernel {
    pub fn set(&self, notifier: Notifier) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(notifier);
    }

    fn notify(&self, notification: &Notification<'_>) {
        let notifier = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Refused if the kernel does not know the inode any more, or the session ends.
        let _ = notifier.map(|notifier| notifier.notify(notification));
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
        place: Place,
        change: impl Fn(&mut Turn<'_>, &Call) -> Result<Changed, Failure>,
    ) {
        let mut patience = Patience::default();
        loop {
            match self.engine.turn(|turn| change(turn, &call)) {
                Ok(changed) => return self.answer(call, changed),
                Err(failure) if place == Place::Transport && Patience::may_wait(&failure) => {
                    return self.queue.serve(call);
                }
                Err(failure) => {
                    if let Err(failure) = patience.wait(&self.engine, failure) {
                        return call.fail(errno_of(&failure));
                    }
                }
            }
        }
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
            Some(ticket) if self.engine.mode() == Mode::Sync => self.answer_durable(call, ticket, reply),
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
