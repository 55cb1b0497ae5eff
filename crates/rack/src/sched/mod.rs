//! I/O scheduling in front of a vSSD: which of the waiting reads and write-backs the flash gets next.
//!
//! Three schedulers, after Linux's: FIFO (`none`), [`deadline`] and [`kyber`]. Each orders what waits by a key, which
//! is the time of arrival or, coordinated (RackBlox §3.4), arrival − Net_time − Predict_time: the request with the
//! largest Net_time + Storage_time + Predict_time first. All waiting requests' Storage_time grows at the same rate, so
//! the order does not change with time. The client of a write-back has its answer, so a write-back has no network time:
//! its key is its arrival either way.
//!
//! Flushes do not pass a scheduler, as in Linux.

pub mod deadline;
mod fifo;
pub mod kyber;
mod request;

pub use request::{Kind, Request, Room, Targets};

use base::Instant;
use deadline::Deadline;
use fifo::Fifo;
use kyber::Kyber;
use request::Waiting;

/// How waiting requests are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// In order of arrival: Linux's `none`.
    Fifo,
    /// By end-to-end time, RackBlox §3.4.
    #[default]
    Coordinated,
    /// As Linux's mq-deadline.
    Deadline(Targets),
    /// As Linux's Kyber.
    Kyber(Targets),
}

impl Policy {
    /// True when the key is the end-to-end time.
    pub fn is_coordinated(self) -> bool {
        match self {
            Self::Fifo => false,
            Self::Coordinated => true,
            Self::Deadline(targets) | Self::Kyber(targets) => targets.coordinated,
        }
    }
}

#[derive(Debug)]
enum Inner {
    Fifo(Fifo),
    Deadline(Deadline),
    Kyber(Box<Kyber>),
}

/// The requests that wait in front of one vSSD.
#[derive(Debug)]
pub struct Scheduler {
    coordinated: bool,
    sequence: u64,
    waiting: usize,
    inner: Inner,
}

impl Scheduler {
    /// An empty queue with room for `capacity` requests of each kind; more make it grow.
    pub fn new(policy: Policy, capacity: usize) -> Self {
        Self {
            coordinated: policy.is_coordinated(),
            sequence: 0,
            waiting: 0,
            inner: match policy {
                Policy::Fifo | Policy::Coordinated => Inner::Fifo(Fifo::new(capacity)),
                Policy::Deadline(targets) => Inner::Deadline(Deadline::new(targets, capacity)),
                Policy::Kyber(targets) => Inner::Kyber(Box::new(Kyber::new(targets, capacity))),
            },
        }
    }

    /// Queues a request that arrives now.
    pub fn push(&mut self, now: Instant, request: Request) {
        self.sequence += 1;
        self.waiting += 1;
        let network_ns = if self.coordinated {
            request.net_ns + request.predicted_ns
        } else {
            0
        };
        let waiting = Waiting {
            key_ns: now.as_nanos() as i64 - network_ns as i64,
            sequence: self.sequence,
            item: request.item,
            kind: request.kind,
        };
        match &mut self.inner {
            Inner::Fifo(fifo) => fifo.push(waiting),
            Inner::Deadline(deadline) => deadline.push(request.page, waiting),
            Inner::Kyber(kyber) => kyber.push(waiting),
        }
    }

    /// The next request to issue, of a kind that there is room for: what it does, and its item.
    pub fn pop(&mut self, now: Instant, room: Room) -> Option<(Kind, u32)> {
        let next = match &mut self.inner {
            Inner::Fifo(fifo) => fifo.pop(room),
            Inner::Deadline(deadline) => deadline.pop(now, room),
            Inner::Kyber(kyber) => kyber.pop(now, room),
        }?;
        self.waiting -= 1;
        Some((next.kind, next.item))
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The flash is done with a request that [`pop`](Scheduler::pop) gave out. A zeroing may be called a write.
    pub fn done(&mut self, now: Instant, kind: Kind, item: u32) {
        if let Inner::Kyber(kyber) = &mut self.inner {
            kyber.done(now, kind, item);
        }
    }

    /// When to [`tick`](Scheduler::tick).
    pub fn deadline(&self) -> Option<Instant> {
        match &self.inner {
            Inner::Kyber(kyber) => kyber.deadline(),
            _ => None,
        }
    }

    /// Lets time pass: more may be issued afterwards.
    pub fn tick(&mut self, now: Instant) {
        if let Inner::Kyber(kyber) = &mut self.inner {
            kyber.tick(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    pub(super) fn read(item: u32, net_ns: u64, predicted_ns: u64) -> Request {
        Request {
            kind: Kind::Read,
            page: item,
            net_ns,
            predicted_ns,
            item,
        }
    }

    pub(super) fn write(item: u32) -> Request {
        Request {
            kind: Kind::Write,
            page: item,
            net_ns: 0,
            predicted_ns: 0,
            item,
        }
    }

    #[test]
    fn rackblox_adds_a_millisecond_of_network_to_every_target() {
        for targets in [Targets::deadline, Targets::kyber] {
            let (alone, coordinated) = (targets(false), targets(true));
            let more = base::Duration::from_millis(1);
            assert_eq!(coordinated.read, alone.read + more);
            assert_eq!(coordinated.write, alone.write + more);
        }
    }
}
