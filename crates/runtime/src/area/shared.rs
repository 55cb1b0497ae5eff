//! Many threads, one engine: whoever waits for a record writes it, if nobody else does.
//!
//! A thread that submits takes the next write, if there is room for one, makes it, and returns with no other thread
//! involved. While writes are under way others only add to the next record and sleep; who ends a write wakes those whose
//! records are durable, and one of the others to make the next write.
//!
//! Invariant: while a record is wanted and there is room for a write, some thread is awake that will make it.

use super::backend::Backend;
use super::{AreaError, Ticket};
use base::MediaError;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use store::{CleanStep, Engine, Fetch, FetchError, SubmitError, TicketState, Write};

/// Lookups of a value that moves while it is read.
const READS_MAX: u32 = 64;

pub(super) struct Shared {
    pub backend: Box<dyn Backend>,
    state: Mutex<State>,
    /// The area's own thread sleeps here.
    background: Condvar,
}

pub(super) struct State {
    pub engine: Engine,
    waiters: Vec<Waiter>,
    /// The area's thread has something to do: clean, or write what was submitted and is awaited by nobody.
    is_called: bool,
    is_closing: bool,
}

struct Waiter {
    /// What it waits for; `None` for any completion.
    ticket: Option<Ticket>,
    thread: Thread,
}

type Guard<'a> = MutexGuard<'a, State>;

impl Shared {
    pub(super) fn new(backend: Box<dyn Backend>, engine: Engine) -> Self {
        let state = State {
            engine,
            waiters: Vec::new(),
            is_called: false,
            is_closing: false,
        };
        Self {
            backend,
            state: Mutex::new(state),
            background: Condvar::new(),
        }
    }

    /// The engine. A panic elsewhere leaves it latched at worst: its steps are whole.
    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits by `f`, waiting while the engine is busy.
    pub(super) fn submit<R>(
        &self,
        mut f: impl FnMut(&mut Engine) -> Result<R, SubmitError>,
    ) -> Result<(R, Guard<'_>), AreaError> {
        let mut guard = self.lock();
        loop {
            match f(&mut guard.engine) {
                Ok(result) => return Ok((result, guard)),
                Err(SubmitError::Busy) => {
                    self.call(&mut guard);
                    guard = self.help(guard, None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until `ticket` is durable, writing what there is to write.
    pub(super) fn wait<'a>(&'a self, mut guard: Guard<'a>, ticket: Ticket) -> Result<(), AreaError> {
        guard.engine.want(ticket);
        loop {
            match guard.engine.state(ticket) {
                TicketState::Durable => return Ok(()),
                TicketState::Failed => return Err(AreaError::Failed),
                TicketState::Waiting => guard = self.help(guard, Some(ticket)),
            }
        }
    }

    /// Somebody should write what was just submitted; the caller does not wait.
    pub(super) fn start(&self, mut guard: Guard<'_>, ticket: Ticket) {
        guard.engine.want(ticket);
        self.call(&mut guard);
    }

    /// Makes the next write, or sleeps until others have ended one.
    fn help<'a>(&'a self, mut guard: Guard<'a>, ticket: Option<Ticket>) -> Guard<'a> {
        if let Some(write) = guard.engine.next_write() {
            return self.write(guard, write);
        }
        let thread = thread::current();
        let id = thread.id();
        guard.waiters.push(Waiter { ticket, thread });
        drop(guard);
        thread::park();
        let mut guard = self.lock();
        guard.waiters.retain(|waiter| waiter.thread.id() != id);
        guard
    }

    fn write<'a>(&'a self, guard: Guard<'a>, write: Write) -> Guard<'a> {
        drop(guard);
        let result = self.backend.write(write.offset(), write.bytes());
        let mut guard = self.lock();
        guard.engine.written(write, result.map_err(|_| MediaError::Io));
        self.wake(&mut guard);
        if guard.engine.wants_cleaning() {
            self.call(&mut guard);
        }
        guard
    }

    /// Wakes one thread for the next write, and those that have what they waited for.
    fn wake(&self, guard: &mut Guard<'_>) {
        let State { engine, waiters, .. } = &mut **guard;
        let is_waiting = |waiter: &Waiter| {
            waiter
                .ticket
                .is_some_and(|it| engine.state(it) == TicketState::Waiting)
        };
        waiters.retain(|waiter| {
            let stays = is_waiting(waiter);
            if !stays {
                waiter.thread.unpark();
            }
            stays
        });
        // The last to wake: those who have been served may add to the write that it makes.
        if engine.has_write() && !waiters.is_empty() {
            waiters.remove(0).thread.unpark();
        }
    }

    fn call(&self, guard: &mut Guard<'_>) {
        if !guard.is_called {
            guard.is_called = true;
            self.background.notify_one();
        }
    }

    /// The area's own thread: cleans, and writes what nobody waits for. Ends when the area is closed.
    pub(super) fn run(&self) {
        let mut guard = self.lock();
        loop {
            guard.is_called = false;
            match guard.engine.clean_step() {
                CleanStep::Read { offset, length } => {
                    drop(guard);
                    let mut bytes = vec![0; length];
                    let result = self.backend.read(offset, &mut bytes);
                    guard = self.lock();
                    guard.engine.clean_read(bytes, result.map_err(|_| MediaError::Io));
                    self.wake(&mut guard);
                    continue;
                }
                CleanStep::Wait | CleanStep::Idle => {}
            }
            if let Some(write) = guard.engine.next_write() {
                guard = self.write(guard, write);
                continue;
            }
            if guard.is_closing {
                return;
            }
            if !guard.is_called {
                guard = self
                    .background
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Lets the area's thread end.
    pub(super) fn close(&self) {
        let mut guard = self.lock();
        guard.is_closing = true;
        self.background.notify_one();
    }

    /// The value that `find` finds, read from the medium if need be.
    pub(super) fn value(
        &self,
        mut find: impl FnMut(&Engine) -> Option<Fetch>,
    ) -> Result<Option<Vec<u8>>, AreaError> {
        let mut damage = None;
        for _ in 0..READS_MAX {
            let found = match find(&self.lock().engine) {
                None => return Ok(None),
                Some(Fetch::Ready(bytes)) => return Ok(Some(bytes)),
                Some(Fetch::Read(found)) => found,
            };
            let mut bytes = vec![0; found.length()];
            self.backend
                .read(found.offset(), &mut bytes)
                .map_err(|source| AreaError::Read(source.kind()))?;
            match found.extract(&bytes) {
                Ok(value) => return Ok(Some(value)),
                Err(FetchError::Moved) => {}
                // A segment that is written anew at this moment looks like this once.
                Err(FetchError::Damaged { offset }) if damage == Some(found) => {
                    return Err(AreaError::Damaged { offset });
                }
                Err(FetchError::Damaged { .. }) => damage = Some(found),
            }
        }
        Err(AreaError::Read(io::ErrorKind::TimedOut))
    }
}
