//! The event queue of virtual time: a wheel of short lists for the next millisecond, a heap for what is later.
//!
//! Events of one instant leave in the order in which they came: the tie-break that makes a run repeatable. A rack's
//! events are due within microseconds, most of them last of their list, so that adding and taking one touch a list's
//! ends; a bit per list tells which have any. In steady state nothing is allocated: lists, slab and heap keep their
//! capacity.

use base::Instant;
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds of a list, as a power of two.
const WIDTH_BITS: u32 = 8;
/// Lists, of which 64 share a word of bits, and 64 words one of the summary: 1.05 ms in all.
const LISTS: usize = 64 * 64;
/// No place in the slab.
const NONE: u32 = u32::MAX;

/// A list of places in the slab, by time.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

#[derive(Debug)]
struct Entry<E> {
    at: u64,
    /// Next in its list, or next free place.
    next: u32,
    event: Option<E>,
}

/// A queue of events by time, then by order of insertion. Time does not run backwards: nothing is added for before the
/// last event taken.
///
/// Limit: 2³² − 1 events pending at once; reaching it is a bug and panics.
#[derive(Debug)]
pub struct Queue<E> {
    lists: Box<[List; LISTS]>,
    /// A bit per list that is not empty.
    used: [u64; LISTS / 64],
    /// A bit per word of `used` that is not zero.
    summary: u64,
    slab: Vec<Entry<E>>,
    free: u32,
    /// The time of the last event taken, in widths: lists hold what is due less than a turn later.
    turn: u64,
    /// Later events, by (time, order of insertion), with their places.
    later: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Events added to `later` so far.
    sequence: u64,
    len: usize,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            lists: Box::new([EMPTY; LISTS]),
            used: [0; LISTS / 64],
            summary: 0,
            slab: Vec::new(),
            free: NONE,
            turn: 0,
            later: BinaryHeap::new(),
            sequence: 0,
            len: 0,
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
        self.len
    }

    /// True when nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When the next event is due, in nanoseconds.
    #[inline]
    pub fn next_at(&self) -> Option<u64> {
        match self.first_list() {
            Some(list) => Some(self.slab[self.lists[list].first as usize].at),
            None => self.later.peek().map(|Reverse((at, ..))| *at),
        }
    }

    /// Adds an event.
    #[inline]
    pub fn push(&mut self, at: Instant, event: E) {
        let at = at.as_nanos();
        assert!(at >> WIDTH_BITS >= self.turn, "time does not run backwards");
        let place = self.free;
        let entry = Entry {
            at,
            next: NONE,
            event: Some(event),
        };
        let place = match self.slab.get_mut(place as usize) {
            Some(free) => {
                self.free = free.next;
                *free = entry;
                place
            }
            None => {
                assert!(
                    self.slab.len() < NONE as usize,
                    "fewer than 2^32 events pend at once"
                );
                self.slab.push(entry);
                (self.slab.len() - 1) as u32
            }
        };
        self.len += 1;
        if (at >> WIDTH_BITS) - self.turn < LISTS as u64 {
            self.link(at, place);
        } else {
            self.later.push(Reverse((at, self.sequence, place)));
            self.sequence += 1;
        }
    }

    /// The earliest event.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        let list = match self.first_list() {
            Some(list) => list,
            None => {
                let Reverse((at, ..)) = *self.later.peek()?;
                self.turn_to(at >> WIDTH_BITS);
                (at >> WIDTH_BITS) as usize % LISTS
            }
        };
        let place = self.lists[list].first;
        let entry = &mut self.slab[place as usize];
        let (at, next) = (entry.at, entry.next);
        let event = entry.event.take().expect("a listed place has its event");
        entry.next = self.free;
        self.free = place;
        self.lists[list].first = next;
        if next == NONE {
            self.lists[list].last = NONE;
            self.used[list / 64] &= !(1 << (list % 64));
            if self.used[list / 64] == 0 {
                self.summary &= !(1 << (list / 64));
            }
        }
        self.len -= 1;
        if at >> WIDTH_BITS != self.turn {
            self.turn_to(at >> WIDTH_BITS);
        }
        Some((Instant::from_nanos(at), event))
    }

    /// Drops every event that `keep` refuses. Linear: for faults, not for the data path.
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        let turn = self.turn;
        let mut kept = Self {
            turn,
            ..Self::default()
        };
        while let Some((at, event)) = self.pop() {
            if keep(&event) {
                kept.push(at, event);
            }
        }
        *self = kept;
    }

    /// The list of the earliest event that is not in `later`.
    #[inline]
    fn first_list(&self) -> Option<usize> {
        if self.summary == 0 {
            return None;
        }
        let from = self.turn as usize % LISTS;
        let ahead = self.used[from / 64] >> (from % 64);
        if ahead != 0 {
            return Some(from + ahead.trailing_zeros() as usize);
        }
        // The words behind this one, once round; the bits of this one that are left are the end of the turn.
        let behind = from as u32 / 64 + 1;
        let turned = self.summary.rotate_right(behind % 64);
        let word = (turned.trailing_zeros() + behind) as usize % 64;
        Some(word * 64 + self.used[word].trailing_zeros() as usize)
    }

    /// Adds a place to the list of its time, behind all that are not later.
    #[inline]
    fn link(&mut self, at: u64, place: u32) {
        let index = (at >> WIDTH_BITS) as usize % LISTS;
        let list = self.lists[index];
        if list.last == NONE {
            self.lists[index] = List {
                first: place,
                last: place,
            };
            self.used[index / 64] |= 1 << (index % 64);
            self.summary |= 1 << (index / 64);
        } else if self.slab[list.last as usize].at <= at {
            self.slab[list.last as usize].next = place;
            self.lists[index].last = place;
        } else if self.slab[list.first as usize].at > at {
            self.slab[place as usize].next = list.first;
            self.lists[index].first = place;
        } else {
            let mut before = list.first;
            loop {
                let next = self.slab[before as usize].next;
                if self.slab[next as usize].at > at {
                    self.slab[place as usize].next = next;
                    self.slab[before as usize].next = place;
                    return;
                }
                before = next;
            }
        }
    }

    /// Time has come this far: what is due less than a turn later moves to its list, before anything else can.
    #[inline]
    fn turn_to(&mut self, turn: u64) {
        self.turn = turn;
        while let Some(&Reverse((at, _, place))) = self.later.peek()
            && (at >> WIDTH_BITS) - turn < LISTS as u64
        {
            self.later.pop();
            self.link(at, place);
        }
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
            if self.tree[node] == winner {
                return;
            }
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
    fn near_and_far_events_leave_by_time_then_by_order_of_insertion() {
        let mut rng = Rng::new(2);
        let mut queue = Queue::new();
        let mut expected = std::collections::BTreeSet::new();
        let mut now = 0;
        for i in 0..200_000u64 {
            // From the same instant to several turns ahead, and often exactly a turn or a width.
            let reach = [1, 300, 5_000, 1_048_576, 1_048_577, 9_000_000][rng.below(6) as usize];
            let at = now
                + if rng.below(3) == 0 {
                    reach
                } else {
                    rng.below(reach)
                };
            queue.push(Instant::from_nanos(at), i);
            expected.insert((at, i));
            if rng.below(64) == 0 {
                queue.retain(|i| i % 5 != 0);
                expected.retain(|(_, i)| i % 5 != 0);
            }
            // The number pending swings between none and some hundreds.
            for _ in 0..rng.below(3) * u64::from(i % 2_000 < 900 || expected.len() > 500) {
                assert_eq!(queue.next_at(), expected.first().map(|(at, _)| *at));
                let Some((at, i)) = expected.pop_first() else {
                    break;
                };
                assert_eq!(queue.pop(), Some((Instant::from_nanos(at), i)));
                now = at;
            }
            assert_eq!(queue.len(), expected.len());
        }
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
