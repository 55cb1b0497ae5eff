//! The event queue of virtual time: a four-ary heap of small keys with the events beside it in a slab.
//!
//! A key packs (time, sequence, slot), so that comparing two keys is one integer comparison and events of one
//! instant leave in the order in which they came: the tie-break that makes a run repeatable. In steady state nothing
//! is allocated: heap, slab and free list keep their capacity.

use base::Instant;

const SLOT_BITS: u32 = 24;
const SEQUENCE_BITS: u32 = 40;
/// Children of a heap node: four keys of 16 bytes are one cache line.
const ARITY: usize = 4;

/// A queue of events by time, then by order of insertion.
///
/// Limits: 2²⁴ events pending at once and 2⁴⁰ in a run; reaching either is a bug and panics.
#[derive(Debug)]
pub struct Queue<E> {
    heap: Vec<u128>,
    slab: Vec<Option<E>>,
    free: Vec<u32>,
    sequence: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            heap: Vec::new(),
            slab: Vec::new(),
            free: Vec::new(),
            sequence: 0,
        }
    }
}

impl<E> Queue<E> {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Events pending.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True when nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// When the next event is due, in nanoseconds.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.first().map(|&key| (key >> 64) as u64)
    }

    /// Adds an event.
    pub fn push(&mut self, at: Instant, event: E) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slab[slot as usize] = Some(event);
                slot
            }
            None => {
                assert!(
                    self.slab.len() < 1 << SLOT_BITS,
                    "fewer than 2^24 events pend at once"
                );
                self.slab.push(Some(event));
                (self.slab.len() - 1) as u32
            }
        };
        assert!(
            self.sequence < 1 << SEQUENCE_BITS,
            "a run has fewer than 2^40 events"
        );
        let key = u128::from(at.as_nanos()) << 64 | u128::from(self.sequence) << SLOT_BITS | u128::from(slot);
        self.sequence += 1;
        self.heap.push(key);
        self.sift_up(self.heap.len() - 1);
    }

    /// The earliest event.
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        let key = *self.heap.first()?;
        let last = self.heap.pop().expect("the heap has a first element");
        if !self.heap.is_empty() {
            self.heap[0] = last;
            self.sift_down();
        }
        let slot = key as u32 & ((1 << SLOT_BITS) - 1);
        let event = self.slab[slot as usize].take().expect("a key's slot is taken");
        self.free.push(slot);
        Some((Instant::from_nanos((key >> 64) as u64), event))
    }

    /// Drops every event that `keep` refuses. Linear: for faults, not for the data path.
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        let mut kept = Vec::with_capacity(self.heap.len());
        for &key in &self.heap {
            let slot = key as u32 & ((1 << SLOT_BITS) - 1);
            let event = self.slab[slot as usize].as_ref().expect("a key's slot is taken");
            if keep(event) {
                kept.push(key);
            } else {
                self.slab[slot as usize] = None;
                self.free.push(slot);
            }
        }
        // A sorted array is a heap, whatever its arity.
        kept.sort_unstable();
        self.heap = kept;
    }

    fn sift_up(&mut self, mut at: usize) {
        let key = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = key;
    }

    fn sift_down(&mut self) {
        let heap = &mut self.heap[..];
        let key = heap[0];
        let mut at = 0;
        loop {
            let first = at * ARITY + 1;
            let Some(children) = heap.get(first..) else { break };
            let (child, least) = match children.first_chunk::<ARITY>() {
                Some(&[a, b, c, d]) => {
                    let left = if b < a { (1, b) } else { (0, a) };
                    let right = if d < c { (3, d) } else { (2, c) };
                    if right.1 < left.1 { right } else { left }
                }
                None => match children.iter().enumerate().min_by_key(|(_, key)| **key) {
                    Some((child, least)) => (child, *least),
                    None => break,
                },
            };
            if least >= key {
                break;
            }
            heap[at] = least;
            at = first + child;
        }
        heap[at] = key;
    }
}

/// The hosts' deadlines: a tournament tree, so that a host has one timer whatever it changes its mind to.
#[derive(Debug)]
pub struct Timers {
    /// `tree[1]` is the root; leaves start at `tree.len() / 2`. Each node is (deadline in ns, host).
    tree: Vec<(u64, u32)>,
}

impl Timers {
    /// Timers of `hosts` hosts, none set.
    pub fn new(hosts: usize) -> Self {
        let leaves = hosts.next_power_of_two().max(1);
        let mut tree = vec![(u64::MAX, 0); 2 * leaves];
        for (host, leaf) in tree[leaves..].iter_mut().enumerate() {
            leaf.1 = host as u32;
        }
        Self { tree }
    }

    /// The earliest deadline in nanoseconds (`u64::MAX` if none is set) and its host; of equals, the lowest host.
    pub fn first(&self) -> (u64, usize) {
        let (at, host) = self.tree[1];
        (at, host as usize)
    }

    /// Sets or clears the timer of `host`.
    pub fn set(&mut self, host: usize, deadline: Option<Instant>) {
        let at = deadline.map_or(u64::MAX, Instant::as_nanos);
        let mut node = self.tree.len() / 2 + host;
        if self.tree[node].0 == at {
            return;
        }
        self.tree[node] = (at, host as u32);
        while node > 1 {
            node /= 2;
            let winner = self.tree[2 * node].min(self.tree[2 * node + 1]);
            self.tree[node] = winner;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    #[test]
    fn events_leave_by_time_then_by_order_of_insertion() {
        let mut rng = Rng::new(1);
        let mut queue = Queue::new();
        let mut expected = Vec::new();
        for i in 0..20_000u64 {
            let at = rng.below(500);
            queue.push(Instant::from_nanos(at), i);
            expected.push((at, i));
        }
        expected.sort_unstable();
        for (at, i) in expected {
            assert_eq!(queue.pop(), Some((Instant::from_nanos(at), i)));
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn a_filtered_queue_keeps_its_order() {
        let mut queue = Queue::new();
        for i in 0..1000u64 {
            queue.push(Instant::from_nanos(i * 7919 % 100), i);
        }
        queue.retain(|i| i % 3 == 0);
        let mut last = 0;
        let mut count = 0;
        while let Some((at, i)) = queue.pop() {
            assert!(i % 3 == 0 && at.as_nanos() >= last);
            last = at.as_nanos();
            count += 1;
        }
        assert_eq!(count, 334);
    }

    #[test]
    fn the_earliest_timer_wins_and_the_lowest_host_of_equals() {
        let mut timers = Timers::new(5);
        assert_eq!(timers.first().0, u64::MAX);
        timers.set(4, Some(Instant::from_nanos(10)));
        timers.set(2, Some(Instant::from_nanos(10)));
        assert_eq!(timers.first(), (10, 2));
        timers.set(2, Some(Instant::from_nanos(30)));
        assert_eq!(timers.first(), (10, 4));
        timers.set(4, None);
        assert_eq!(timers.first(), (30, 2));
    }
}
