//! Which tickets are waited for, and which have ended: between the threads that ask, one that waits, and one that collects.
//!
//! # Who wakes whom
//!
//! - The waiting thread ([`Board::serve`]) sleeps on `asked` only under the lock and only without tickets. [`Board::add`] and
//!   [`Board::close`] change that under the lock, and notify.
//! - The descriptor of `wake` can be read if and only if there is something to collect: both change under the lock.
//! - `serve` waits for the first ticket without the lock. The wait ends, as an area ends every record. Tickets that are
//!   added meanwhile, also earlier ones, are seen afterwards.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError, Wake};
use std::collections::{BTreeMap, VecDeque};

/// A ticket that has ended, as `swy_completion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Completion {
    /// The caller's.
    pub tag: u64,
    pub ticket: u64,
    /// `SWY_OK`, or why the ticket is not durable.
    pub code: i32,
    /// Zero.
    pub reserved: u32,
}

#[derive(Default)]
struct State {
    /// Tags by ticket.
    waiting: BTreeMap<u64, Vec<u64>>,
    ended: VecDeque<Completion>,
    is_closing: bool,
}

/// See the module.
pub struct Board {
    state: Mutex<State>,
    asked: Condvar,
    wake: Wake,
}

impl Board {
    /// A board whose `wake` tells that there is something to collect.
    pub fn new(wake: Wake) -> Self {
        Self {
            state: Mutex::new(State::default()),
            asked: Condvar::new(),
            wake,
        }
    }

    pub fn wake(&self) -> &Wake {
        &self.wake
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the end of a ticket.
    pub fn add(&self, ticket: u64, tag: u64) {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            self.asked.notify_one();
        }
        state.waiting.entry(ticket).or_default().push(tag);
    }

    /// Tells the end of a ticket.
    fn end(&self, state: &mut State, ticket: u64, code: i32) {
        let tags = state.waiting.remove(&ticket).unwrap_or_default();
        if state.ended.is_empty() && !tags.is_empty() {
            self.wake.wake();
        }
        state.ended.extend(tags.into_iter().map(|tag| Completion {
            tag,
            ticket,
            code,
            reserved: 0,
        }));
    }

    /// Waits for tickets by `wait`, the first one first, until the board is closed. `wait` gives the last ticket that is
    /// durable, the one asked for or a later one; or why the one asked for is not.
    pub fn serve(&self, mut wait: impl FnMut(u64) -> Result<u64, i32>) {
        let mut state = self.lock();
        while !state.is_closing {
            let Some((&ticket, _)) = state.waiting.first_key_value() else {
                state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let result = wait(ticket);
            state = self.lock();
            match result {
                Ok(durable) => {
                    let last = durable.max(ticket);
                    while let Some((&first, _)) = state.waiting.range(..=last).next() {
                        self.end(&mut state, first, 0);
                    }
                }
                // Alone: an earlier one may have been added since, and be durable.
                Err(code) => self.end(&mut state, ticket, code),
            }
        }
    }

    /// Takes completions, as many as `room`.
    pub fn collect(&self, room: usize, mut take: impl FnMut(Completion)) -> usize {
        let mut state = self.lock();
        let count = room.min(state.ended.len());
        state.ended.drain(..count).for_each(&mut take);
        if count > 0 && state.ended.is_empty() {
            self.wake.clear();
        }
        count
    }

    /// Lets [`Board::serve`] end: what is waited for is forgotten.
    pub fn close(&self) {
        self.lock().is_closing = true;
        self.asked.notify_one();
    }
}
