//! Entries of a ring that were answered, and wait for the ring's thread to hand them to the kernel.
//!
//! # Why no answer is lost
//! A reply comes from any thread, and only the ring's thread may use the ring. Both sides change one state under one lock.
//! The ring's thread counts as asleep from the step on that finds no answer. An answer after this step finds the thread
//! asleep and wakes it, and the wake stays readable until the thread has cleared it. The thread clears the wake first, and looks
//! for answers then. A thread that serves a request itself is awake: its answer costs no system call.

use super::sync::{Mutex, MutexGuard, PoisonError, Wake};

/// Answers of one ring.
pub(crate) struct Answered {
    state: Mutex<State>,
    wake: Wake,
}

struct State {
    slots: Vec<u16>,
    is_asleep: bool,
    is_stopped: bool,
}

/// What the ring's thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There are answers: hand them over.
    Submit,
    /// There is nothing: sleep until the kernel has a request or the wake can be read.
    Sleep,
    /// End.
    Stop,
}

impl Answered {
    /// No answers yet, of at most `count` entries.
    pub fn new(count: usize, wake: Wake) -> Self {
        let state = State {
            slots: Vec::with_capacity(count),
            is_asleep: false,
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
            wake,
        }
    }

    /// Readable when the ring's thread is to look again.
    pub fn wake(&self) -> &Wake {
        &self.wake
    }

    /// An entry was answered; from any thread.
    pub fn add(&self, slot: u16) {
        let mut state = self.lock();
        state.slots.push(slot);
        let was_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if was_asleep {
            self.wake.wake();
        }
    }

    /// The ring's thread ends when it looks next; from any thread.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.wake.wake();
    }

    /// The ring's thread takes all answers; `slots` is empty before.
    pub fn take(&self, slots: &mut Vec<u16>) -> Next {
        let mut state = self.lock();
        if state.is_stopped {
            return Next::Stop;
        }
        std::mem::swap(&mut state.slots, slots);
        state.is_asleep = slots.is_empty();
        match state.is_asleep {
            true => Next::Sleep,
            false => Next::Submit,
        }
    }

    /// The ring's thread is awake, for whatever reason.
    pub fn awake(&self) {
        self.lock().is_asleep = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No step under the lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
