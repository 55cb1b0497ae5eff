//! A device that hangs does not hang its users: an operation that does not come back in time is given up.
//!
//! Invariants:
//! - Every operation is answered within the limit, or when it ends.
//! - The pages of an operation that was given up stay with the device until it answers: the kernel may still fill or
//!   read them. Its late answer reaches nobody.
//! - While such an operation is out the device takes nothing more, so that its users' pages do not all end up there.

use super::{Device, MediaDone, MediaError, MediaKind, MediaOp, Queue, pass_on};
use crate::slab::Slab;
use crate::time::{Duration, Instant, earliest};
use std::collections::VecDeque;

/// Linux gives its NVMe drives as long (`nvme_core.io_timeout`).
pub const LIMIT: Duration = Duration::from_secs(30);

/// An operation of the device's.
#[derive(Clone, Copy, Debug)]
struct Flight {
    id: u64,
    kind: MediaKind,
    since: Instant,
    is_given_up: bool,
}

/// Gives up operations that take longer than a limit, with [`MediaError::TimedOut`].
#[derive(Debug)]
pub struct Deadline<D> {
    inner: D,
    limit: Duration,
    flights: Slab<Flight>,
    /// Operations that were given up and are still out.
    overdue: u32,
    /// No operation is overdue before this.
    look_at: Option<Instant>,
    answered: VecDeque<MediaDone>,
}

/// Notices when a medium begins not to answer: the first operation that was given up since one went well.
#[derive(Debug, Default)]
pub struct Silence {
    lasts: bool,
}

impl Silence {
    /// An operation has ended; true if this is the beginning.
    #[inline]
    pub fn begins(&mut self, done: &MediaDone) -> bool {
        match done.result {
            Ok(()) => {
                self.lasts = false;
                false
            }
            Err(MediaError::TimedOut) => !core::mem::replace(&mut self.lasts, true),
            Err(_) => false,
        }
    }
}

impl<D> Deadline<D> {
    /// Gives the operations of `inner` up after `limit`.
    pub fn new(inner: D, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            flights: Slab::new(),
            overdue: 0,
            look_at: None,
            answered: VecDeque::new(),
        }
    }

    /// Operations that were given up and that the device still has.
    pub fn overdue(&self) -> u32 {
        self.overdue
    }

    /// A new start of the device: what was in flight is gone.
    pub fn reset(&mut self) {
        self.flights = Slab::new();
        self.overdue = 0;
        self.look_at = None;
        self.answered.clear();
    }

    /// What is watched.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What is watched.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// Gives up what is overdue, and finds out when to look again.
    #[cold]
    fn look(&mut self, now: Instant) {
        let mut oldest: Option<Instant> = None;
        for (_, flight) in self.flights.iter_mut() {
            if flight.is_given_up {
                continue;
            }
            if now.since(flight.since) < self.limit {
                oldest = earliest(oldest, Some(flight.since));
                continue;
            }
            flight.is_given_up = true;
            self.overdue += 1;
            let given_up = MediaOp::range(flight.id, flight.kind, 0, 0);
            self.answered.push_back(given_up.done(Err(MediaError::TimedOut)));
        }
        self.look_at = oldest.map(|oldest| oldest + self.limit);
    }
}

impl<D: Queue> Queue for Deadline<D> {
    fn submit(&mut self, now: Instant, mut op: MediaOp) {
        if self.overdue > 0 {
            return self.answered.push_back(op.done(Err(MediaError::TimedOut)));
        }
        self.look_at.get_or_insert(now + self.limit);
        let flight = Flight {
            id: op.id,
            kind: op.kind,
            since: now,
            is_given_up: false,
        };
        op.id = u64::from(self.flights.insert(flight));
        self.inner.submit(now, op);
    }

    fn poll(&mut self, now: Instant) -> Option<MediaDone> {
        while let Some(done) = self.inner.poll(now) {
            let flight = self.flights.remove(done.id as u32);
            if flight.is_given_up {
                self.overdue -= 1;
                continue;
            }
            if self.flights.is_empty() {
                self.look_at = None;
            }
            return Some(MediaDone {
                id: flight.id,
                ..done
            });
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(now);
        }
        self.answered.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        match self.answered.is_empty() {
            true => earliest(self.look_at, self.inner.deadline()),
            false => Some(Instant::ZERO),
        }
    }
}

impl<D: Device> Device for Deadline<D> {
    pass_on!(device Self { inner, .. } => inner);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Faults, Latch, Latency, suite};
    use crate::{Pool, Rng};
    use std::sync::Arc;

    type Stalled = Deadline<Faults<Latency<Vec<u8>>>>;

    fn stalled() -> Stalled {
        let faults = Faults::new(Latency::none(vec![0; 1 << 13]), Rng::new(1));
        Deadline::new(faults, Duration::from_nanos(100))
    }

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn a_device_that_answers_in_time_is_left_alone() {
        let mut deadline = stalled();
        suite::queue(&mut deadline, 16, |_| at(0));
        assert_eq!((deadline.overdue(), deadline.deadline()), (0, None));
    }

    #[test]
    fn an_operation_is_given_up_at_its_limit_and_its_page_stays_with_the_device() {
        let pool = Pool::new(2, 16);
        let mut deadline = stalled();
        deadline.inner_mut().hang();
        deadline.submit(at(10), MediaOp::read(7, 0, pool.alloc().expect("a page is left")));
        assert_eq!(deadline.deadline(), Some(at(110)));
        assert!(deadline.poll(at(109)).is_none());
        let done = deadline.poll(at(110)).expect("it is overdue");
        assert_eq!((done.id, done.result), (7, Err(MediaError::TimedOut)));
        assert!(done.pages.is_empty());
        assert_eq!(pool.available(), 1, "the device may still fill the page");
        deadline.inner_mut().resume(at(200));
        assert!(deadline.poll(at(200)).is_none(), "a late answer reaches nobody");
        assert_eq!((pool.available(), deadline.overdue()), (2, 0));
    }

    #[test]
    fn a_device_with_an_overdue_operation_takes_nothing_until_it_has_answered() {
        let pool = Pool::new(2, 16);
        let mut deadline = stalled();
        deadline.inner_mut().hang();
        deadline.submit(at(0), MediaOp::flush(1));
        assert!(deadline.poll(at(100)).is_some());
        let page = || pool.alloc().expect("a page is left");
        deadline.submit(at(101), MediaOp::read(2, 0, page()));
        let done = deadline.poll(at(101)).expect("refused at once");
        assert_eq!((done.result, done.pages.len()), (Err(MediaError::TimedOut), 1));
        drop(done);
        deadline.inner_mut().resume(at(102));
        assert!(deadline.poll(at(102)).is_none());
        deadline.submit(at(103), MediaOp::read(3, 0, page()));
        assert_eq!(deadline.poll(at(103)).map(|done| done.result), Some(Ok(())));
    }

    #[test]
    fn silence_begins_once_until_the_device_has_answered() {
        let mut silence = Silence::default();
        let mut begins = |result| silence.begins(&MediaOp::flush(1).done(result));
        let (ok, given_up, failed) = (Ok(()), Err(MediaError::TimedOut), Err(MediaError::Io));
        let told = [ok, failed, given_up, given_up, failed, given_up, ok, given_up].map(&mut begins);
        assert_eq!(told, [false, false, true, false, false, false, false, true]);
    }

    #[test]
    fn each_operation_has_its_own_limit() {
        let mut deadline = stalled();
        deadline.inner_mut().hang();
        deadline.submit(at(0), MediaOp::flush(1));
        deadline.submit(at(60), MediaOp::flush(2));
        assert_eq!(deadline.poll(at(100)).map(|done| done.id), Some(1));
        assert!(deadline.poll(at(159)).is_none());
        assert_eq!(deadline.deadline(), Some(at(160)));
        assert_eq!(deadline.poll(at(160)).map(|done| done.id), Some(2));
    }

    #[test]
    fn a_latch_over_a_deadline_writes_no_more_after_a_device_hung() {
        let pool = Pool::new(1, 16);
        let mut latch = Latch::new(stalled(), Arc::default());
        latch.inner_mut().inner_mut().hang();
        latch.submit(at(0), MediaOp::read(1, 0, pool.alloc().expect("a page is left")));
        assert!(latch.poll(at(100)).is_some());
        latch.inner_mut().inner_mut().resume(at(150));
        assert!(latch.poll(at(150)).is_none());
        latch.submit(at(151), MediaOp::write(2, 0, pool.alloc().expect("it came back")));
        assert_eq!(
            latch.poll(at(151)).map(|done| done.result),
            Some(Err(MediaError::Latched))
        );
        latch.submit(at(152), MediaOp::read(3, 0, pool.alloc().expect("it came back")));
        assert_eq!(latch.poll(at(152)).map(|done| done.result), Some(Ok(())));
    }
}
