//! Group commit: who waits for which record, and whether the next write waits for those who were just served.
//!
//! When a record of several threads becomes durable they come back together, a few µs apart, with their next operations.
//! A write begun with the first of them would leave the others to the record after it, and from then on the threads would
//! be served half by half, each waiting for two writes. So the next write is held until as many have come as were served,
//! for half the time of a write at most; the last one to come makes it, and nobody is woken for it. A thread that is alone
//! is never held: nobody else was served. Where threads do something else between operations that is a loss, noticed by
//! the deadline: then twice as many writes as the time before go without being held.

use base::Instant;

/// Records that wait or are being written at once, at most, rounded up: 32 + 4 + 1.
pub(super) const RECORDS: usize = 64;
/// Writes of less are not held: to sleep and to wake takes as long.
const HELD_WRITE_NS_MIN: u64 = 20_000;
/// Held at most this long, however slow the medium is.
const HOLD_NS_MAX: u64 = 200_000;
/// After so many losses in a row, one write in 128 is held to see whether it pays.
const LOSSES_MAX: u32 = 7;

/// See the module. All under the area's lock.
#[derive(Debug)]
pub(super) struct Group {
    /// Threads that wait, by record.
    waiting: [u32; RECORDS],
    total: u32,
    /// Those who were served last and have not come back.
    expected: u32,
    /// How long the next write is held.
    until: Option<Instant>,
    /// A thread sees to it that it is not held longer.
    pub is_guarded: bool,
    /// A write's time, averaged over about eight.
    write_ns: u64,
    losses: u32,
    /// Writes not to be held.
    pass: u32,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            waiting: [0; RECORDS],
            total: 0,
            expected: 0,
            until: None,
            is_guarded: false,
            write_ns: 0,
            losses: 0,
            pass: 0,
        }
    }
}

impl Group {
    /// A thread waits for `record`.
    pub(super) fn arrive(&mut self, record: u64) {
        self.waiting[record as usize % RECORDS] += 1;
        self.total += 1;
        self.expected = self.expected.saturating_sub(1);
    }

    /// `record` has ended: those who waited for it do no more.
    pub(super) fn serve(&mut self, record: u64) -> u32 {
        let served = core::mem::take(&mut self.waiting[record as usize % RECORDS]);
        self.total -= served;
        served
    }

    /// The first record from `from` on that a thread waits for.
    pub(super) fn first_awaited(&self, from: u64) -> Option<u64> {
        (from..from + RECORDS as u64).find(|record| self.waiting[*record as usize % RECORDS] > 0)
    }

    /// A write has ended, after `took_ns`, for `served` threads.
    pub(super) fn ended(&mut self, now: Instant, took_ns: u64, served: u32) {
        self.write_ns = match self.write_ns {
            0 => took_ns,
            mean => mean - mean / 8 + took_ns / 8,
        };
        self.until = None;
        self.expected = 0;
        if self.write_ns < HELD_WRITE_NS_MIN || served == 0 || served + self.total < 2 {
            return;
        }
        if self.pass > 0 {
            self.pass -= 1;
            return;
        }
        self.expected = served;
        let hold_ns = (self.write_ns / 2).min(HOLD_NS_MAX);
        self.until = Some(Instant::from_nanos(now.as_nanos() + hold_ns));
    }

    /// How long the next write is still held, if it is. What is said is final: `None` lets it go.
    pub(super) fn hold_ns(&mut self, now: impl FnOnce() -> Instant) -> Option<u64> {
        let until = self.until?;
        if self.expected > 0 {
            let left = until.as_nanos().saturating_sub(now().as_nanos());
            if left > 0 {
                return Some(left);
            }
            self.losses = (self.losses + 1).min(LOSSES_MAX);
            self.pass = (1 << self.losses) - 1;
        } else {
            self.losses = 0;
        }
        self.until = None;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE_NS: u64 = 90_000;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn a_thread_that_is_alone_is_never_held() {
        let mut group = Group::default();
        for record in 1..100 {
            group.arrive(record);
            assert_eq!(group.hold_ns(|| at(0)), None);
            let served = group.serve(record);
            group.ended(at(0), WRITE_NS, served);
        }
    }

    #[test]
    fn a_write_is_held_until_those_who_were_served_are_back() {
        let mut group = Group::default();
        (0..3).for_each(|_| group.arrive(1));
        let served = group.serve(1);
        group.ended(at(0), WRITE_NS, served);
        group.arrive(2);
        assert_eq!(group.hold_ns(|| at(1000)), Some(WRITE_NS / 2 - 1000));
        group.arrive(2);
        group.arrive(2);
        assert_eq!(group.hold_ns(|| at(2000)), None);
        assert_eq!((group.first_awaited(1), group.losses), (Some(2), 0));
    }

    #[test]
    fn holding_is_given_up_where_nobody_comes_back() {
        let mut group = Group::default();
        let mut held = 0;
        for record in 1..1000 {
            (0..2).for_each(|_| group.arrive(record));
            let served = group.serve(record);
            group.ended(at(0), WRITE_NS, served);
            group.arrive(record + 1);
            held += u32::from(group.hold_ns(|| at(1)).is_some());
            assert_eq!(group.hold_ns(|| at(WRITE_NS)), None);
            group.serve(record + 1);
        }
        assert!(held < 20, "{held} of 1000");
    }
}
