//! Deadline, as Linux's mq-deadline (6.6, `block/mq-deadline.c`, `__dd_dispatch_request`), without I/O priorities and
//! zones: reads and writes wait apart, each in order of pages and of keys. A batch serves one direction in ascending
//! order of pages; each new batch begins with the direction's oldest request if that has waited for too long, or if
//! nothing lies ahead.
//!
//! Coordinated, reads are in order of end-to-end time throughout, batches too ("reorders requests in each queue using
//! network latencies", RackBlox §4.5.1): flash gains nothing from the order of pages. Their deadline then decides
//! nothing, as the oldest read is always the next. Write-backs have no network time to go by and keep the order of pages.

use super::request::{Kind, Room, Targets, Waiting};
use base::{Duration, Instant};
use std::collections::VecDeque;

/// Requests in a batch at most (`fifo_batch`).
pub const FIFO_BATCH: u32 = 16;
/// Batches of reads that may go before waiting writes (`writes_starved`).
pub const WRITES_STARVED: u32 = 2;

/// Linux's own setting: `read_expire` and `write_expire`.
pub const LINUX: Targets = Targets {
    read: Duration::from_millis(500),
    write: Duration::from_secs(5),
    coordinated: false,
};

/// The requests of one direction: `sort_list`, `fifo_list` and `latest_pos` of Linux.
#[derive(Debug)]
struct Direction {
    /// By (page, sequence), ascending.
    by_page: Vec<(u32, Waiting)>,
    /// By (key, sequence), ascending.
    by_key: VecDeque<(Waiting, u32)>,
    /// Page of the last request issued.
    latest_page: u32,
    expire_ns: i64,
    /// By key throughout.
    by_key_alone: bool,
}

impl Direction {
    fn new(expire: Duration, by_key_alone: bool, capacity: usize) -> Self {
        Self {
            by_page: Vec::with_capacity(capacity),
            by_key: VecDeque::with_capacity(capacity),
            latest_page: 0,
            expire_ns: expire.as_nanos() as i64,
            by_key_alone,
        }
    }

    fn push(&mut self, page: u32, waiting: Waiting) {
        let place = self.place_of(page, waiting.sequence);
        self.by_page.insert(place, (page, waiting));
        let place = self.by_key.partition_point(|(other, _)| *other < waiting);
        self.by_key.insert(place, (waiting, page));
    }

    fn place_of(&self, page: u32, sequence: u64) -> usize {
        self.by_page
            .partition_point(|(other, waiting)| (*other, waiting.sequence) < (page, sequence))
    }

    /// Index in `by_page` of the request that continues a batch (`deadline_next_request`).
    fn ahead(&self) -> Option<usize> {
        if self.by_key_alone {
            return self.oldest();
        }
        let place = self.place_of(self.latest_page, 0);
        (place < self.by_page.len()).then_some(place)
    }

    /// Index in `by_page` of the oldest request (`deadline_fifo_request`).
    fn oldest(&self) -> Option<usize> {
        let (waiting, page) = self.by_key.front()?;
        Some(self.place_of(*page, waiting.sequence))
    }

    /// The oldest request has waited for too long (`deadline_check_fifo`).
    fn is_expired(&self, now: Instant) -> bool {
        let expired =
            |(waiting, _): &(Waiting, u32)| now.as_nanos() as i64 >= waiting.key_ns + self.expire_ns;
        self.by_key.front().is_some_and(expired)
    }

    fn is_empty(&self) -> bool {
        self.by_page.is_empty()
    }

    fn remove(&mut self, place: usize) -> Waiting {
        let (page, waiting) = self.by_page.remove(place);
        let place = self.by_key.partition_point(|(other, _)| *other < waiting);
        self.by_key.remove(place).expect("it waits in both orders");
        self.latest_page = page;
        waiting
    }
}

/// The scheduler.
#[derive(Debug)]
pub(super) struct Deadline {
    reads: Direction,
    writes: Direction,
    /// The batch is one of writes.
    writing: bool,
    /// Requests of this batch so far.
    batched: u32,
    /// Batches of reads since writes wait.
    starved: u32,
}

impl Deadline {
    pub(super) fn new(targets: Targets, capacity: usize) -> Self {
        Self {
            reads: Direction::new(targets.read, targets.coordinated, capacity),
            writes: Direction::new(targets.write, false, capacity),
            writing: true,
            batched: 0,
            starved: 0,
        }
    }

    pub(super) fn push(&mut self, page: u32, waiting: Waiting) {
        match waiting.kind {
            Kind::Read => self.reads.push(page, waiting),
            Kind::Write | Kind::Zero => self.writes.push(page, waiting),
        }
    }

    pub(super) fn pop(&mut self, now: Instant, room: Room) -> Option<Waiting> {
        let reads = room.read && !self.reads.is_empty();
        let writes = room.write && !self.writes.is_empty();
        let (direction, may) = if self.writing {
            (&mut self.writes, writes)
        } else {
            (&mut self.reads, reads)
        };
        if let Some(place) = direction.ahead()
            && may
            && self.batched < FIFO_BATCH
        {
            self.batched += 1;
            return Some(direction.remove(place));
        }
        self.writing = match (reads, writes) {
            (false, false) => return None,
            (true, false) => false,
            (false, true) => true,
            (true, true) => {
                self.starved += 1;
                self.starved > WRITES_STARVED
            }
        };
        if self.writing {
            self.starved = 0;
        }
        let direction = if self.writing {
            &mut self.writes
        } else {
            &mut self.reads
        };
        let ahead = direction.ahead().filter(|_| !direction.is_expired(now));
        let place = ahead.or_else(|| direction.oldest())?;
        self.batched = 1;
        Some(direction.remove(place))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, read, write};
    use super::super::{Policy, Scheduler};
    use super::*;

    const BOTH: Room = Room {
        read: true,
        write: true,
    };

    /// The pages, in the order in which they are issued at `now`.
    fn drain(queue: &mut Scheduler, now: u64) -> Vec<u32> {
        core::iter::from_fn(|| queue.pop(at(now), BOTH).map(|(_, item)| item)).collect()
    }

    fn rackblox(coordinated: bool) -> Scheduler {
        Scheduler::new(Policy::Deadline(Targets::deadline(coordinated)), 16)
    }

    #[test]
    fn a_batch_ascends_and_the_next_begins_with_the_oldest() {
        let mut queue = rackblox(false);
        for (us, page) in [(1, 50), (2, 20), (3, 70), (4, 60), (5, 10)] {
            queue.push(at(us), read(page, 0, 0));
        }
        // Ahead of page 0 lies 10, and nobody has waited for 500 µs: a sweep.
        assert_eq!(drain(&mut queue, 10), [10, 20, 50, 60, 70]);
        for (us, page) in [(11, 50), (12, 20), (13, 60)] {
            queue.push(at(us), read(page, 0, 0));
        }
        // Nothing lies ahead of 70: the oldest begins, then nothing lies ahead of 60 but 20 is left.
        assert_eq!(drain(&mut queue, 20), [50, 60, 20]);
    }

    #[test]
    fn an_expired_request_is_served_when_the_batch_of_sixteen_ends() {
        let mut queue = rackblox(false);
        queue.push(at(0), read(100, 0, 0));
        assert_eq!(queue.pop(at(0), BOTH), Some((Kind::Read, 100)));
        queue.push(at(0), read(5, 0, 0));
        for page in 0..20 {
            queue.push(at(1), read(200 + page, 0, 0));
        }
        let order = drain(&mut queue, 500);
        // 100 was the first of the batch: 15 more ascend before the expired one, then the sweep goes on from it.
        assert_eq!(order[14..17], [214, 5, 215]);
    }

    #[test]
    fn before_its_deadline_a_request_behind_waits_for_the_sweep_to_end() {
        let mut queue = rackblox(false);
        queue.push(at(0), read(100, 0, 0));
        assert_eq!(queue.pop(at(0), BOTH), Some((Kind::Read, 100)));
        queue.push(at(0), read(5, 0, 0));
        for page in 0..20 {
            queue.push(at(1), read(200 + page, 0, 0));
        }
        assert_eq!(drain(&mut queue, 499)[20], 5);
    }

    #[test]
    fn writes_wait_for_two_batches_of_reads_at_most() {
        let mut queue = rackblox(false);
        for page in 0..64 {
            queue.push(at(0), read(page, 0, 0));
            queue.push(at(0), write(1000 + page));
        }
        let order = drain(&mut queue, 1);
        let writes = |batch: usize| order[batch * 16] >= 1000;
        let batches: [bool; 8] = core::array::from_fn(writes);
        // As in Linux, the very first batch is one of writes.
        assert_eq!(batches, [true, false, false, true, false, false, true, true]);
        assert!(order.chunks(16).all(|batch| batch.is_sorted()));
    }

    #[test]
    fn a_batch_that_has_no_room_gives_way_to_the_other_direction() {
        let mut queue = rackblox(false);
        queue.push(at(0), read(1, 0, 0));
        queue.push(at(0), write(2));
        let writes = Room {
            read: false,
            write: true,
        };
        assert_eq!(queue.pop(at(1), writes), Some((Kind::Write, 2)));
        assert_eq!(queue.pop(at(1), writes), None);
    }

    #[test]
    fn coordinated_a_batch_is_in_order_of_end_to_end_time() {
        let order = |coordinated| {
            let mut queue = rackblox(coordinated);
            queue.push(at(1_000), read(1, 100_000, 100_000)); // its key is 800 µs
            queue.push(at(1_010), read(2, 400_000, 200_000)); // 410 µs
            queue.push(at(1_020), read(3, 200_000, 100_000)); // 720 µs
            queue.push(at(1_030), write(4));
            drain(&mut queue, 1_040)
        };
        assert_eq!(order(false), [4, 1, 2, 3]);
        assert_eq!(order(true), [4, 2, 3, 1]);
    }
}
