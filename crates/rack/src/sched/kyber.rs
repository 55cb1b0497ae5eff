//! Kyber, as in Linux from 4.20 on (`block/kyber-iosched.c`): each domain (reads, writes, discards) has a queue, a batch
//! size and tokens for the requests in the flash at once. A timer looks at the latencies of what was done: when a
//! domain's device latency is bad, domains that meet their target get fewer tokens, and those that miss it more.
//!
//! Left out is what has no counterpart here: merging, queues per processor, the limit on asynchronous requests, and the
//! domain of other requests, which are flushes. Coordinated, queues are in order of end-to-end time, and so are the
//! latencies that are held against the targets.

use super::request::{Kind, Room, Targets, Waiting};
use base::{Duration, Instant, Map};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

const DOMAINS: usize = 3;
/// Tokens of reads, writes and discards, at first and at most (`kyber_depth`).
pub const DEPTH: [u32; DOMAINS] = [256, 128, 64];
/// Requests in a row (`kyber_batch_size`).
pub const BATCH: [u32; DOMAINS] = [16, 8, 1];
/// Target of discards (`kyber_latency_targets`).
pub const DISCARD_TARGET: Duration = Duration::from_secs(5);

/// Linux's own targets of reads and writes.
pub const LINUX: Targets = Targets {
    read: Duration::from_millis(2),
    write: Duration::from_millis(10),
    coordinated: false,
};

/// A histogram's buckets are this part of the target wide (`KYBER_LATENCY_SHIFT`).
const WIDTH_SHIFT: u32 = 2;
/// Buckets up to the target.
const GOOD_BUCKETS: usize = 1 << WIDTH_SHIFT;
const BUCKETS: usize = 2 * GOOD_BUCKETS;
/// From the first completion to the timer (`kyber_completed_request`).
const TIMER: Duration = Duration::from_millis(100);
/// A percentile is taken of this many samples, or of fewer after [`SAMPLES_WAIT`] (`calculate_percentile`).
const SAMPLES: u32 = 500;
const SAMPLES_WAIT: Duration = Duration::from_secs(1);

type Buckets = [u32; BUCKETS];

#[derive(Debug)]
struct Domain {
    waiting: BinaryHeap<Reverse<Waiting>>,
    target_ns: u64,
    depth: u32,
    in_flight: u32,
    /// Latencies from the key on, and in the flash.
    total: Buckets,
    device: Buckets,
    /// Percentiles are taken from then on, however few samples there are.
    samples_until: Option<Instant>,
    /// Bucket of the last 99th percentile that no throttling has used.
    p99: Option<usize>,
}

impl Domain {
    /// The bucket in which this percentile of the samples lies, and the end of these samples; `None` for too few.
    fn percentile(&mut self, now: Instant, percent: u32, of: fn(&mut Self) -> &mut Buckets) -> Option<usize> {
        let samples: u32 = of(self).iter().sum();
        if samples == 0 {
            return None;
        }
        let until = *self.samples_until.get_or_insert(now + SAMPLES_WAIT);
        if samples < SAMPLES && until > now {
            return None;
        }
        self.samples_until = None;
        let buckets = core::mem::take(of(self));
        let mut left = (samples * percent).div_ceil(100);
        let below_last = &buckets[..BUCKETS - 1];
        for (bucket, count) in below_last.iter().enumerate() {
            if *count >= left {
                return Some(bucket);
            }
            left -= count;
        }
        Some(BUCKETS - 1)
    }

    fn sample(&mut self, total_ns: u64, device_ns: u64) {
        let width_ns = (self.target_ns >> WIDTH_SHIFT).max(1);
        let bucket = |ns: u64| (ns.saturating_sub(1) / width_ns).min(BUCKETS as u64 - 1) as usize;
        self.total[bucket(total_ns)] += 1;
        self.device[bucket(device_ns)] += 1;
    }
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    domain: usize,
    key_ns: i64,
    issued: Instant,
}

/// The scheduler.
#[derive(Debug)]
pub(super) struct Kyber {
    domains: [Domain; DOMAINS],
    /// The domain whose batch it is.
    current: usize,
    batched: u32,
    in_flight: Map<(bool, u32), InFlight>,
    timer: Option<Instant>,
}

fn domain_of(kind: Kind) -> usize {
    match kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Zero => 2,
    }
}

impl Kyber {
    pub(super) fn new(targets: Targets, capacity: usize) -> Self {
        let target = [targets.read, targets.write, DISCARD_TARGET];
        let domain = |d: usize| Domain {
            waiting: BinaryHeap::with_capacity(capacity),
            target_ns: target[d].as_nanos() as u64,
            depth: DEPTH[d],
            in_flight: 0,
            total: [0; BUCKETS],
            device: [0; BUCKETS],
            samples_until: None,
            p99: None,
        };
        Self {
            domains: core::array::from_fn(domain),
            current: 0,
            batched: 0,
            in_flight: Map::with_capacity(capacity),
            timer: None,
        }
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.domains[domain_of(waiting.kind)]
            .waiting
            .push(Reverse(waiting));
    }

    /// `kyber_dispatch_request`.
    pub(super) fn pop(&mut self, now: Instant, room: Room) -> Option<Waiting> {
        if self.batched < BATCH[self.current]
            && let Some(next) = self.pop_current(now, room)
        {
            return Some(next);
        }
        self.batched = 0;
        for _ in 0..DOMAINS {
            self.current = (self.current + 1) % DOMAINS;
            if let Some(next) = self.pop_current(now, room) {
                return Some(next);
            }
        }
        None
    }

    /// `kyber_dispatch_cur_domain`.
    fn pop_current(&mut self, now: Instant, room: Room) -> Option<Waiting> {
        let has_room = if self.current == 0 { room.read } else { room.write };
        let domain = &mut self.domains[self.current];
        if !has_room || domain.in_flight >= domain.depth {
            return None;
        }
        let Reverse(next) = domain.waiting.pop()?;
        domain.in_flight += 1;
        self.batched += 1;
        let in_flight = InFlight {
            domain: self.current,
            key_ns: next.key_ns,
            issued: now,
        };
        self.in_flight
            .insert((next.kind == Kind::Read, next.item), in_flight);
        Some(next)
    }

    /// `kyber_completed_request` and `kyber_finish_request`.
    pub(super) fn done(&mut self, now: Instant, kind: Kind, item: u32) {
        let done = self
            .in_flight
            .remove(&(kind == Kind::Read, item))
            .expect("what is done was issued");
        let domain = &mut self.domains[done.domain];
        domain.in_flight -= 1;
        let total_ns = (now.as_nanos() as i64 - done.key_ns).max(0) as u64;
        domain.sample(total_ns, now.nanos_since(done.issued));
        self.timer.get_or_insert(now + TIMER);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timer
    }

    /// `kyber_timer_fn`.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.timer.is_none_or(|timer| now < timer) {
            return;
        }
        self.timer = None;
        let mut bad = false;
        for domain in &mut self.domains {
            let p90 = domain.percentile(now, 90, |domain| &mut domain.device);
            bad |= p90.is_some_and(|bucket| bucket >= GOOD_BUCKETS);
        }
        for (domain, depth_max) in self.domains.iter_mut().zip(DEPTH) {
            let mut p99 = domain.percentile(now, 99, |domain| &mut domain.total);
            if bad {
                // Not every domain has enough samples at once: an earlier percentile does, but only once.
                p99 = p99.or(domain.p99.take());
                domain.p99 = None;
            } else if p99.is_some() {
                domain.p99 = p99;
            }
            if let Some(bucket) = p99
                && (bad || bucket >= GOOD_BUCKETS)
            {
                let depth = (domain.depth * (bucket as u32 + 1)) >> WIDTH_SHIFT;
                domain.depth = depth.clamp(1, depth_max);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, read, write};
    use super::super::{Policy, Request, Scheduler};
    use super::*;

    const BOTH: Room = Room {
        read: true,
        write: true,
    };
    /// Buckets of 0.5 ms for reads and of 1 ms for writes.
    const TARGETS: Targets = Targets {
        read: Duration::from_millis(2),
        write: Duration::from_millis(4),
        coordinated: false,
    };

    fn zero(item: u32) -> Request {
        Request {
            kind: Kind::Zero,
            ..write(item)
        }
    }

    /// `count` requests of a kind that wait for `queue_us`, then take `device_us`, and are done at `done_us`.
    fn serve(kyber: &mut Kyber, kind: Kind, count: u32, queue_us: u64, device_us: u64, done_us: u64) {
        let issued = at(done_us - device_us);
        for item in 0..count {
            let waiting = Waiting {
                key_ns: issued.as_nanos() as i64 - queue_us as i64 * 1000,
                sequence: 0,
                item,
                kind,
            };
            kyber.push(waiting);
            assert_eq!(kyber.pop(issued, BOTH), Some(waiting));
            kyber.done(at(done_us), kind, item);
        }
    }

    fn depths(kyber: &Kyber) -> [u32; DOMAINS] {
        core::array::from_fn(|d| kyber.domains[d].depth)
    }

    #[test]
    fn domains_take_turns_in_batches_of_sixteen_eight_and_one() {
        let mut queue = Scheduler::new(Policy::Kyber(LINUX), 64);
        for item in 0..40 {
            queue.push(at(0), read(item, 0, 0));
            queue.push(at(0), write(item));
            queue.push(at(0), zero(100 + item));
        }
        let kinds: Vec<Kind> = core::iter::from_fn(|| queue.pop(at(1), BOTH).map(|(kind, _)| kind)).collect();
        let runs: Vec<(Kind, usize)> = kinds
            .chunk_by(|a, b| a == b)
            .map(|run| (run[0], run.len()))
            .take(6)
            .collect();
        let round = [(Kind::Read, 16), (Kind::Write, 8), (Kind::Zero, 1)];
        assert_eq!(runs, [round, round].concat());
        assert_eq!(kinds.len(), 120);
    }

    #[test]
    fn a_domain_has_no_more_in_flight_than_tokens() {
        let mut queue = Scheduler::new(Policy::Kyber(LINUX), 64);
        for item in 0..200 {
            queue.push(at(0), write(item));
        }
        let issued = core::iter::from_fn(|| queue.pop(at(0), BOTH)).count();
        assert_eq!(issued, 128);
        queue.done(at(1), Kind::Write, 0);
        assert_eq!(queue.pop(at(1), BOTH), Some((Kind::Write, 128)));
        assert_eq!(queue.pop(at(1), BOTH), None);
    }

    #[test]
    fn buckets_are_a_quarter_of_the_target_wide_and_the_last_is_open() {
        let mut kyber = Kyber::new(TARGETS, 8);
        for us in [0, 500, 501, 2_000, 2_001, 3_500, 3_501, 90_000] {
            serve(&mut kyber, Kind::Read, 1, 0, us, 100_000);
        }
        assert_eq!(kyber.domains[0].device, [2, 1, 0, 1, 1, 0, 1, 2]);
    }

    #[test]
    fn congestion_takes_tokens_from_those_that_meet_their_target_and_gives_to_those_that_do_not() {
        let mut kyber = Kyber::new(TARGETS, 8);
        // Reads: 10.2 % take 2.1 ms in the flash, bucket 4, so the 90th percentile is bad. Writes: bucket 0.
        serve(&mut kyber, Kind::Read, 449, 0, 100, 10_000);
        serve(&mut kyber, Kind::Read, 51, 0, 2_100, 10_000);
        serve(&mut kyber, Kind::Write, 500, 0, 100, 10_000);
        assert_eq!(kyber.deadline(), Some(at(110_000)));
        kyber.tick(at(109_999));
        assert_eq!(depths(&kyber), DEPTH);
        kyber.tick(at(110_000));
        // Writes: 128 · (0 + 1) / 4. Reads: 256 · (4 + 1) / 4, at most 256.
        assert_eq!(depths(&kyber), [256, 32, 64]);
        assert_eq!(kyber.deadline(), None);
        // Later writes miss theirs: 5.5 ms in total is bucket 5, so 32 · (5 + 1) / 4.
        serve(&mut kyber, Kind::Write, 500, 5_400, 100, 200_000);
        kyber.tick(at(300_000));
        assert_eq!(depths(&kyber), [256, 48, 64]);
    }

    #[test]
    fn without_congestion_good_domains_keep_their_tokens() {
        let mut kyber = Kyber::new(TARGETS, 8);
        // 10 % in bucket 4 is not more than the 90th percentile bears.
        serve(&mut kyber, Kind::Read, 450, 0, 100, 10_000);
        serve(&mut kyber, Kind::Read, 50, 0, 2_100, 10_000);
        serve(&mut kyber, Kind::Write, 500, 0, 100, 10_000);
        kyber.tick(at(110_000));
        assert_eq!(depths(&kyber), DEPTH);
        // The writes' percentile of that time is used in the next congestion, and only in that.
        for (from, writes) in [(200_000, 32), (400_000, 32)] {
            serve(&mut kyber, Kind::Read, 500, 0, 2_100, from);
            kyber.tick(at(from + 100_000));
            assert_eq!(depths(&kyber), [256, writes, 64]);
        }
    }

    #[test]
    fn few_samples_count_after_a_second_and_then_for_the_device_alone() {
        let mut kyber = Kyber::new(TARGETS, 8);
        serve(&mut kyber, Kind::Read, 10, 9_000, 100, 10_000);
        kyber.tick(at(110_000));
        assert_eq!(kyber.domains[0].samples_until, Some(at(1_110_000)));
        serve(&mut kyber, Kind::Read, 10, 9_000, 100, 1_100_000);
        kyber.tick(at(1_200_000));
        // The 90th percentile of the device was taken, which starts the second of the 99th in total anew.
        assert_eq!(kyber.domains[0].device, [0; BUCKETS]);
        assert_eq!(kyber.domains[0].total.iter().sum::<u32>(), 20);
        assert_eq!(kyber.domains[0].samples_until, Some(at(2_200_000)));
    }

    #[test]
    fn coordinated_a_domain_is_in_order_of_end_to_end_time_and_measures_that() {
        let mut queue = Scheduler::new(Policy::Kyber(Targets::kyber(true)), 8);
        queue.push(at(1_000), read(1, 100_000, 50_000));
        queue.push(at(1_100), read(2, 300_000, 50_000));
        assert_eq!(queue.pop(at(1_200), BOTH), Some((Kind::Read, 2)));
        assert_eq!(queue.pop(at(1_200), BOTH), Some((Kind::Read, 1)));
        queue.done(at(1_300), Kind::Read, 2);
        // 350 µs of network and 200 µs here: the second bucket of 437.5 µs.
        let super::super::Inner::Kyber(kyber) = &queue.inner else {
            unreachable!("the policy is Kyber");
        };
        assert_eq!((kyber.domains[0].total[1], kyber.domains[0].device[0]), (1, 1));
    }
}
