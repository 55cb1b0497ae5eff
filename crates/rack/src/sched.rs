//! I/O scheduling in front of a vSSD: which waiting request is issued next.
//!
//! Coordinated (RackBlox §3.4): the request with the largest Net_time + Storage_time + Predict_time first. All waiting
//! requests' Storage_time grows at the same rate, so the order is that of `arrival − net − predicted`, which does not
//! change with time: a heap with static keys does.

use base::Instant;
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// How waiting requests are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// In order of arrival: Linux's `none`.
    Fifo,
    /// By end-to-end time, RackBlox §3.4.
    #[default]
    Coordinated,
}

/// A waiting request: ordered by key, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting<T> {
    key: u64,
    sequence: u64,
    item: T,
}

/// A queue of waiting requests, each named by a small item.
#[derive(Debug)]
pub struct Scheduler<T> {
    policy: Policy,
    heap: BinaryHeap<Reverse<Waiting<T>>>,
    sequence: u64,
}

/// Keys are shifted so that a latency larger than the time since the world's epoch stays positive.
const KEY_BIAS: u64 = 1 << 62;

impl<T: Ord + Copy> Scheduler<T> {
    /// An empty queue with room for `capacity` requests.
    pub fn new(policy: Policy, capacity: usize) -> Self {
        Self {
            policy,
            heap: BinaryHeap::with_capacity(capacity),
            sequence: 0,
        }
    }

    /// Queues `item`, which arrived now after `net_ns` in the network, and whose answer will take `predicted_ns`.
    pub fn push(&mut self, now: Instant, net_ns: u64, predicted_ns: u64, item: T) {
        self.sequence += 1;
        let key = match self.policy {
            Policy::Fifo => 0,
            Policy::Coordinated => KEY_BIAS + now.as_nanos() - net_ns - predicted_ns,
        };
        self.heap.push(Reverse(Waiting {
            key,
            sequence: self.sequence,
            item,
        }));
    }

    /// The next request to issue.
    pub fn pop(&mut self) -> Option<T> {
        self.heap.pop().map(|Reverse(waiting)| waiting.item)
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True when none waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn fifo_keeps_the_order_of_arrival() {
        let mut queue = Scheduler::new(Policy::Fifo, 4);
        queue.push(at(1), 0, 0, 'a');
        queue.push(at(2), 900_000, 0, 'b');
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some('a'), Some('b'), None)
        );
    }

    #[test]
    fn the_request_with_the_longest_way_behind_and_before_it_goes_first() {
        let mut queue = Scheduler::new(Policy::Coordinated, 4);
        queue.push(at(100), 50_000, 50_000, 'a'); // 100 µs of network
        queue.push(at(150), 100_000, 60_000, 'b'); // 160 µs of network, 50 µs younger: 10 µs ahead
        queue.push(at(151), 0, 0, 'c');
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some('b'), Some('a'), Some('c'))
        );
    }
}
