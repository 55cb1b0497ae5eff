//! Requests of the kernel as calls of the engine, and their answers.
//!
//! A change is answered when it is durable (mode `sync`), or at once (`ordered`). If the log has no room, or a device is to be waited for,
//! the call goes to a worker: a thread of the transport waits for nothing.

use super::attr::errno_of;
use super::workers::Queue;
use crate::engine::{Engine, Failure, Mode, Turn};
use fs::client::Caller;
use fs::log::Ticket;
use fuse::abi::{Errno, InHeader, Operation, Reply};
use fuse::transport::{Call, Transport};
use os::sync::{Arc, AtomicU32, Ordering};

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
    /// What requests come by, once it is known.
    pub transport: Told,
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
    /// Serves a call, or gives it to a worker.
    pub fn serve(&self, call: Call, place: Place) {
        if place == Place::Transport && self.is_slow && is_long(&call.operation()) {
            return self.queue.serve(call);
        }
        match call.operation() {
            Operation::Forget(argument) => {
                self.forget(&[(call.header().nodeid, argument.nlookup)]);
                call.reply(&Reply::Empty);
            }
            Operation::BatchForget(forgets) => {
                let forgets: Vec<_> = forgets.map(|one| (one.nodeid, one.nlookup)).collect();
                self.forget(&forgets);
                call.reply(&Reply::Empty);
            }
            Operation::Lookup { .. } => self.look_up(call),
            Operation::Getattr(_) => self.attributes(call),
            Operation::Statx(_) => self.all_attributes(call),
            Operation::Readlink => self.read_link(call),
            Operation::Read(_) => self.read(call),
            Operation::Readdir(_) => self.list(call, false),
            Operation::Readdirplus(_) => self.list(call, true),
            Operation::Lseek(_) => self.seek(call),
            Operation::Statfs => self.room(call),
            Operation::Getxattr { .. } => self.attribute(call),
            Operation::Listxattr(_) => self.attribute_names(call),
            Operation::Ioctl { .. } => self.control(call, place),
            // Each call is durable before it is answered: the kernel need not ask again.
            Operation::Fsync(_) | Operation::Fsyncdir(_) | Operation::Syncfs
                if self.engine.mode() == Mode::Sync =>
            {
                call.fail(Errno::NOSYS)
            }
            Operation::Fsync(_) | Operation::Fsyncdir(_) | Operation::Syncfs => self.sync(call),
            Operation::Write { .. } => self.write(call, place),
            Operation::Destroy => call.reply(&Reply::Empty),
            // The kernel opens without asking, checks permissions itself, keeps the locks, and copies by reading and writing.
            Operation::Open(_)
            | Operation::Opendir(_)
            | Operation::Create { .. }
            | Operation::Flush(_)
            | Operation::Access(_)
            | Operation::CopyFileRange(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Poll(_) => call.fail(Errno::NOSYS),
            _ => self.change(call, place),
        }
    }

    /// Makes a change, and answers.
    fn change(&self, call: Call, place: Place) {
        loop {
            match self.engine.turn(|turn| Self::changed(turn, &call)) {
                Ok(changed) => return self.answer(call, changed),
                Err(Failure::Busy) if place == Place::Transport => return self.queue.serve(call),
                Err(Failure::Busy) => self.engine.wait_for_room(),
                Err(failure) => return call.fail(errno_of(&failure)),
            }
        }
    }

    /// The same of a change that is told.
    pub fn change_by(
        &self,
        call: Call,
        place: Place,
        change: impl Fn(&mut Turn<'_>) -> Result<Changed, Failure>,
    ) {
        loop {
            match self.engine.turn(&change) {
                Ok(changed) => return self.answer(call, changed),
                Err(Failure::Busy) if place == Place::Transport => return self.queue.serve(call),
                Err(Failure::Busy) => self.engine.wait_for_room(),
                Err(failure) => return call.fail(errno_of(&failure)),
            }
        }
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

    fn sync(&self, call: Call) {
        let newest = self.engine.turn(|turn| turn.newest());
        self.answer_durable(call, newest, Reply::Empty);
    }

    /// The kernel has no use for these inodes any more. Those without a name go.
    fn forget(&self, forgets: &[(u64, u64)]) {
        let is_done = self.engine.turn(|turn| {
            for (inode, count) in forgets {
                turn.forget(*inode, *count)?;
            }
            turn.release_lost()
        });
        match is_done {
            Ok(false) => {}
            Ok(true) => self.engine.write_behind(),
            // Those that are left go with the next ones, or when the file system is opened again.
            Err(_) => self.engine.write_behind(),
        }
    }

    /// One change, under the lock.
    fn changed(turn: &mut Turn<'_>, call: &Call) -> Result<Changed, Failure> {
        let header = call.header();
        match call.operation() {
            Operation::Setattr(argument) => Self::set_attributes(turn, header, &argument),
            Operation::Setxattr {
                argument,
                name,
                value,
            } => Self::set_attribute(turn, header, (name, value), &argument),
            Operation::Removexattr { name } => Self::remove_attribute(turn, header, name),
            Operation::Fallocate(argument) => Self::allocate(turn, header, &argument),
            operation => Self::change_names(turn, header, operation),
        }
    }
}

/// Whether an operation may wait for a device with files.
fn is_long(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Read(_) | Operation::Fallocate(_) | Operation::Readlink
    )
}
