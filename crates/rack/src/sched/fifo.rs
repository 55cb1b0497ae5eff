//! One queue for everything: Linux's `none`, or RackBlox's coordinated scheduling when keys are end-to-end times.

use super::request::{Kind, Room, Waiting};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Reads beside writes, so that either is served while there is no room for the other.
#[derive(Debug)]
pub(super) struct Fifo {
    reads: BinaryHeap<Reverse<Waiting>>,
    writes: BinaryHeap<Reverse<Waiting>>,
}

impl Fifo {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            reads: BinaryHeap::with_capacity(capacity),
            writes: BinaryHeap::with_capacity(capacity),
        }
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        match waiting.kind {
            Kind::Read => self.reads.push(Reverse(waiting)),
            Kind::Write | Kind::Zero => self.writes.push(Reverse(waiting)),
        }
    }

    pub(super) fn pop(&mut self, room: Room) -> Option<Waiting> {
        let read = self.reads.peek().filter(|_| room.read);
        let write = self.writes.peek().filter(|_| room.write);
        let heap = match (read, write) {
            (Some(Reverse(read)), Some(Reverse(write))) if write < read => &mut self.writes,
            (Some(_), _) => &mut self.reads,
            (None, Some(_)) => &mut self.writes,
            (None, None) => return None,
        };
        heap.pop().map(|Reverse(waiting)| waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, read, write};
    use super::super::{Kind, Policy, Room, Scheduler};

    const BOTH: Room = Room {
        read: true,
        write: true,
    };

    #[test]
    fn fifo_keeps_the_order_of_arrival_of_reads_and_writes() {
        let mut queue = Scheduler::new(Policy::Fifo, 4);
        queue.push(at(1), read(7, 0, 0));
        queue.push(at(2), write(8));
        queue.push(at(3), read(9, 900_000, 0));
        assert_eq!(queue.pop(at(4), BOTH), Some((Kind::Read, 7)));
        assert_eq!(queue.pop(at(4), BOTH), Some((Kind::Write, 8)));
        assert_eq!(queue.pop(at(4), BOTH), Some((Kind::Read, 9)));
        assert_eq!(queue.pop(at(4), BOTH), None);
    }

    #[test]
    fn the_request_with_the_longest_way_behind_and_before_it_goes_first() {
        let mut queue = Scheduler::new(Policy::Coordinated, 4);
        queue.push(at(100), read(1, 50_000, 50_000)); // 100 µs of network
        queue.push(at(150), read(2, 100_000, 60_000)); // 160 µs of network, 50 µs younger: 10 µs ahead
        queue.push(at(151), read(3, 0, 0));
        let order = core::array::from_fn(|_| queue.pop(at(160), BOTH).map(|(_, item)| item));
        assert_eq!(order, [Some(2), Some(1), Some(3)]);
    }

    #[test]
    fn a_read_overtakes_the_write_backs_that_are_younger_than_its_network_time() {
        let mut queue = Scheduler::new(Policy::Coordinated, 4);
        queue.push(at(100), write(1));
        queue.push(at(200), write(2));
        queue.push(at(250), read(3, 100_000, 0)); // sent at 150
        let order = core::array::from_fn(|_| queue.pop(at(300), BOTH).map(|(_, item)| item));
        assert_eq!(order, [Some(1), Some(3), Some(2)]);
    }

    #[test]
    fn what_there_is_no_room_for_does_not_hold_up_the_rest() {
        let mut queue = Scheduler::new(Policy::Fifo, 4);
        queue.push(at(1), write(1));
        queue.push(at(2), read(2, 0, 0));
        let reads = Room {
            read: true,
            write: false,
        };
        assert_eq!(queue.pop(at(3), reads), Some((Kind::Read, 2)));
        assert_eq!(queue.pop(at(3), reads), None);
        assert_eq!(queue.pop(at(3), BOTH), Some((Kind::Write, 1)));
    }
}
