//! A page that is not Valid.

use crate::cache::Cached;
use base::{Duration, Instant, Lpn};
use std::collections::VecDeque;
use wire::rack::{Code, Header, Packet};

/// An unacknowledged message is sent again after this.
pub const RESEND_AFTER: Duration = Duration::from_millis(40);
/// A value that is not acknowledged is sent again after at most `RESEND_AFTER` times two to this: as often as a follower replays.
const RESEND_SHIFT_MAX: u8 = 2;
/// A peer's word that it waits for room is good for so long.
pub(super) const HELD_FOR: Duration = Duration::from_secs(1);

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
    /// Why it is not durable here.
    pub own_failure: Option<Code>,
    /// Why a peer has not taken it, of those that have acknowledged since it went to all of them.
    pub peer_failure: Option<Code>,
    /// Bit per peer that has not acknowledged.
    pub pending: u8,
    /// The peers of these that have the value and wait for room.
    pub held: u8,
    /// When one said so last.
    pub held_at: Instant,
    pub since: Instant,
    pub sent_at: Instant,
    /// How often it was sent again, as far as that matters.
    pub resends: u8,
    pub waiters: VecDeque<Packet>,
}

impl Key {
    /// Everybody has it to take, and from now on.
    pub fn restart(&mut self, now: Instant, peers: u8) {
        (self.pending, self.held, self.resends, self.sent_at) = (peers, 0, 0, now);
        self.peer_failure = None;
    }

    /// A peer has the value, and takes it when it has room.
    pub fn hold(&mut self, now: Instant, peer: usize) {
        self.held |= self.pending & 1 << peer;
        self.held_at = now;
    }

    /// The peers that it is to be sent to.
    pub fn awaited(&self) -> u8 {
        self.pending & !self.held
    }

    /// True if it is to be sent again: ever later, so that peers who are slow are not slowed down further.
    pub fn is_due(&self, now: Instant) -> bool {
        now.since(self.sent_at) >= RESEND_AFTER * (1 << self.resends)
    }

    /// It is sent again, also to a peer that said long ago that it waits.
    pub fn resend(&mut self, now: Instant) {
        if now.since(self.held_at) >= HELD_FOR {
            self.held = 0;
        }
        self.resends = RESEND_SHIFT_MAX.min(self.resends + 1);
        self.sent_at = now;
    }

    /// A value of another coordinator, taken and not yet validated.
    pub fn invalid(now: Instant, lpn: Lpn, data: Cached, durable: bool) -> Self {
        Self {
            lpn,
            state: State::Invalid,
            data,
            origin: None,
            durable,
            own_persisted: true,
            own_failure: None,
            peer_failure: None,
            pending: 0,
            held: 0,
            held_at: now,
            since: now,
            sent_at: now,
            resends: 0,
            waiters: VecDeque::new(),
        }
    }
}

/// Whether a request can be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// Not before the page's write in progress is decided: [`Replica::wait`](super::Replica::wait) for it.
    Undecided,
}
