//! A page that is not Valid.

use crate::cache::Cached;
use base::{Instant, Lpn};
use std::collections::VecDeque;
use wire::rack::{Code, Header, Packet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Write,
    Invalid,
    Replay,
}

#[derive(Debug)]
pub(super) struct Key {
    pub lpn: Lpn,
    pub state: State,
    pub data: Cached,
    /// The client's request this answers when done.
    pub origin: Option<Header>,
    pub durable: bool,
    pub own_persisted: bool,
    pub failure: Option<Code>,
    /// Bit per peer that has not acknowledged.
    pub pending: u8,
    pub since: Instant,
    pub sent_at: Instant,
    pub waiters: VecDeque<Packet>,
}

impl Key {
    /// A value of another coordinator, taken and not yet validated.
    pub fn invalid(now: Instant, lpn: Lpn, data: Cached, durable: bool) -> Self {
        Self {
            lpn,
            state: State::Invalid,
            data,
            origin: None,
            durable,
            own_persisted: true,
            failure: None,
            pending: 0,
            since: now,
            sent_at: now,
            waiters: VecDeque::new(),
        }
    }
}
