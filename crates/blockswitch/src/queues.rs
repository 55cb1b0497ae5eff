//! Lists of waiting requests in one slab, and rings of lists. All memory is taken at start.

use base::{Instant, Slab};

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

/// A waiting request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<T> {
    pub item: T,
    pub done_bytes: u32,
    pub queued_at: Instant,
    next: u32,
}

/// Requests in order of arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    pub len: u32,
}

impl List {
    pub const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}

/// The memory of all lists.
#[derive(Debug)]
pub(crate) struct Lists<T> {
    nodes: Slab<Node<T>>,
    capacity: usize,
}

impl<T> Lists<T> {
    pub fn new(capacity: usize) -> Self {
        Self {
            nodes: Slab::with_capacity(capacity),
            capacity,
        }
    }

    /// True when no further request fits.
    pub fn is_full(&self) -> bool {
        self.nodes.len() == self.capacity
    }

    /// Appends to `list`. The memory must not be full.
    pub fn push(&mut self, list: &mut List, item: T, now: Instant) {
        debug_assert!(!self.is_full(), "asked before");
        let at = self.nodes.insert(Node {
            item,
            done_bytes: 0,
            queued_at: now,
            next: NONE,
        });
        match list.tail {
            NONE => list.head = at,
            tail => self.nodes[tail].next = at,
        }
        list.tail = at;
        list.len += 1;
    }

    /// The first of `list`.
    pub fn first(&mut self, list: &List) -> Option<&mut Node<T>> {
        self.nodes.get_mut(list.head)
    }

    /// Removes the first of `list`, which is not empty.
    #[inline]
    pub fn pop(&mut self, list: &mut List) {
        list.head = self.nodes.remove(list.head).next;
        if list.head == NONE {
            list.tail = NONE;
        }
        list.len -= 1;
    }

    /// Removes the first of `list` that `matches`. Walks the list.
    pub fn remove(&mut self, list: &mut List, matches: impl Fn(&T) -> bool) -> Option<Node<T>> {
        let (mut before, mut at) = (NONE, list.head);
        while !matches(&self.nodes.get(at)?.item) {
            (before, at) = (at, self.nodes[at].next);
        }
        let node = self.nodes.remove(at);
        match before {
            NONE => list.head = node.next,
            before => self.nodes[before].next = node.next,
        }
        if list.tail == at {
            list.tail = before;
        }
        list.len -= 1;
        Some(node)
    }
}

/// A queue of one application and class (or one for all, as the order has it), as a member of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub list: List,
    /// Bytes it may still send in this turn; negative when it has sent more.
    pub deficit: i64,
    /// Share beside the others of its class.
    pub weight: u32,
    next: u32,
    ringed: bool,
}

impl Queue {
    pub const EMPTY: Self = Self {
        list: List::EMPTY,
        deficit: 0,
        weight: 1,
        next: NONE,
        ringed: false,
    };

    /// Allows it a quantum more. It owes at most two quanta, so that a turn comes after at most two rounds.
    pub fn begin_turn(&mut self, quantum: u32) {
        let quantum = i64::from(quantum);
        self.deficit = self.deficit.max(-2 * quantum) + quantum * i64::from(self.weight);
    }
}

/// Queues whose turn comes in order. Empty ones leave when their turn comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    head: u32,
    tail: u32,
}

impl Ring {
    pub const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    /// Puts queue `at` to the end unless it is in the ring.
    pub fn enter(&mut self, queues: &mut [Queue], at: u32) {
        let queue = &mut queues[at as usize];
        if queue.ringed {
            return;
        }
        (queue.ringed, queue.next) = (true, NONE);
        match self.tail {
            NONE => self.head = at,
            tail => queues[tail as usize].next = at,
        }
        self.tail = at;
    }

    /// The queue whose turn it is, which is not empty; drops empty ones before it.
    pub fn first(&mut self, queues: &mut [Queue]) -> Option<u32> {
        while self.head != NONE {
            if queues[self.head as usize].list.len > 0 {
                return Some(self.head);
            }
            self.leave(queues);
        }
        None
    }

    /// Takes the first queue out.
    pub fn leave(&mut self, queues: &mut [Queue]) {
        let queue = &mut queues[self.head as usize];
        queue.ringed = false;
        self.head = queue.next;
        if self.head == NONE {
            self.tail = NONE;
        }
    }

    /// The first queue becomes the last.
    pub fn rotate(&mut self, queues: &mut [Queue]) {
        let at = self.head;
        self.leave(queues);
        self.enter(queues, at);
    }

    /// True when one queue, or none, is in the ring.
    pub fn is_single(&self) -> bool {
        self.head == self.tail
    }
}
