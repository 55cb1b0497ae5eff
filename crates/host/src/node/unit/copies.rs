//! A vSSD gives pages to members of its set that join, and notes how long its clients' operations take meanwhile. Its node decides
//! by that how fast it goes on ([`rack::pace`]).

use base::{Duration, Instant};
use smallvec::SmallVec;
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, Packet};

/// Pages that are asked for at once: more than one that joins asks for. The rest is asked for again.
const WAITING_MAX: usize = 256;

/// Requests of members that join, and times of clients' operations.
#[derive(Debug, Default)]
pub(in crate::node) struct Copies {
    waiting: VecDeque<Packet>,
    times: SmallVec<[Duration; 4]>,
}

/// True for a request of a member that joins a set whose clients do not wait for it.
pub(super) fn can_wait(header: &Header) -> bool {
    (header.op, header.code) == (Op::Pull, Code::Background)
}

impl Copies {
    /// Lets a request wait; a copy of one that waits is dropped.
    pub(super) fn push(&mut self, packet: Packet) {
        let name = |packet: &Packet| (packet.header.request, packet.header.lba, packet.header.epoch);
        let waits = |waiting: &Packet| name(waiting) == name(&packet);
        if self.waiting.len() < WAITING_MAX && !self.waiting.iter().any(waits) {
            self.waiting.push_back(packet);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Packet> {
        self.waiting.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// An operation of a client began here then, and is over.
    pub(super) fn note(&mut self, now: Instant, since: Instant, request: &Header) {
        let on_its_way = Duration::from_nanos(u64::from(request.lat_ns));
        self.times.push(on_its_way + now.since(since));
    }

    /// True if clients' operations ended.
    pub(in crate::node) fn has_times(&self) -> bool {
        !self.times.is_empty()
    }

    /// Times of clients' operations since the last call.
    pub(in crate::node) fn take_times(&mut self) -> impl Iterator<Item = Duration> {
        self.times.drain(..)
    }
}
