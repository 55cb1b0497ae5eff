//! Network scheduling at a switch's port towards a server (RackBlox §4.5.2): which waiting packet a link of limited rate
//! carries next. A flow is a client host.
//!
//! Every discipline gives a packet a key when it comes that does not change while it waits: a heap does.
//! - FIFO: its arrival.
//! - Fair queueing: a start time in virtual bytes, by which backlogged flows get equal parts of the link (start-time fair
//!   queueing; Goyal et al., SIGCOMM'96).
//! - Priority: urgent flows first, each class in order of arrival.
//! - Token bucket: the time at which the flow's bucket lets it go (GCRA; ATM Forum TM 4.0 §4.4.2). A link that has nothing
//!   else to carry waits.

use base::{Addr, Duration, Instant, Map};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// In order of arrival.
    Fifo,
    /// Equal parts for all flows that want more.
    Fair,
    /// This flow before all others.
    Priority {
        /// The urgent flow.
        urgent: Addr,
    },
    /// Each flow its own rate, and bursts of so long at that rate.
    TokenBucket {
        /// Nanoseconds that a kilobyte (1000 bytes) of a flow takes from its bucket.
        ns_per_kilobyte: u32,
        /// Tokens that an idle flow saves up.
        burst: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    class: u8,
    tag: u64,
    sequence: u64,
}

struct Waiting<T> {
    key: Key,
    bytes: u32,
    arrived: Instant,
    item: T,
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// A port and what waits for it.
pub struct Port<T> {
    discipline: Discipline,
    ns_per_kilobyte: u32,
    free_at: Instant,
    heap: BinaryHeap<Reverse<Waiting<T>>>,
    sequence: u64,
    /// Fair queueing: the start time of the packet sent last.
    virtual_bytes: u64,
    /// Fair queueing: where each flow's next packet starts. Token bucket: when its bucket is full again, in ns.
    flows: Map<Addr, u64>,
}

impl<T> Port<T> {
    /// An idle port of a link that a kilobyte (1000 bytes) occupies for so long.
    pub fn new(discipline: Discipline, ns_per_kilobyte: u32) -> Self {
        Self {
            discipline,
            ns_per_kilobyte,
            free_at: Instant::ZERO,
            heap: BinaryHeap::new(),
            sequence: 0,
            virtual_bytes: 0,
            flows: Map::new(),
        }
    }

    /// A packet of a flow arrives.
    pub fn push(&mut self, now: Instant, flow: Addr, bytes: u32, item: T) {
        self.sequence += 1;
        let known = self.flows.get(&flow).copied().unwrap_or(0);
        let (class, tag) = match self.discipline {
            Discipline::Fifo => (0, 0),
            Discipline::Priority { urgent } => (u8::from(flow != urgent), 0),
            Discipline::Fair => {
                let start = known.max(self.virtual_bytes);
                self.flows.insert(flow, start + u64::from(bytes));
                (0, start)
            }
            Discipline::TokenBucket {
                ns_per_kilobyte,
                burst,
            } => {
                let full_at = known.max(now.as_nanos());
                let cost = u64::from(bytes) * u64::from(ns_per_kilobyte) / 1000;
                self.flows.insert(flow, full_at + cost);
                (
                    0,
                    full_at
                        .saturating_sub(burst.as_nanos() as u64)
                        .max(now.as_nanos()),
                )
            }
        };
        self.heap.push(Reverse(Waiting {
            key: Key {
                class,
                tag,
                sequence: self.sequence,
            },
            bytes,
            arrived: now,
            item,
        }));
    }

    /// When the next packet goes, if one waits.
    pub fn deadline(&self) -> Option<Instant> {
        let Reverse(first) = self.heap.peek()?;
        Some(match self.discipline {
            Discipline::TokenBucket { .. } => self.free_at.max(Instant::from_nanos(first.key.tag)),
            _ => self.free_at,
        })
    }

    /// The packet that goes now, if one does, and how long it waited.
    pub fn pop(&mut self, now: Instant) -> Option<(T, Duration)> {
        if self.deadline()? > now {
            return None;
        }
        let Reverse(first) = self.heap.pop()?;
        let took = u64::from(first.bytes) * u64::from(self.ns_per_kilobyte) / 1000;
        self.free_at = now + Duration::from_nanos(took);
        if self.discipline == Discipline::Fair {
            self.virtual_bytes = first.key.tag;
        }
        Some((first.item, now.since(first.arrived)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Addr = Addr::new([10, 0, 2, 1], 1);
    const B: Addr = Addr::new([10, 0, 2, 2], 1);

    /// Pushes at time 0 and tells what goes and when, in µs: a kilobyte a µs.
    fn order(discipline: Discipline, packets: &[(Addr, char)]) -> Vec<(char, u64)> {
        let mut port = Port::new(discipline, 1000);
        for &(flow, item) in packets {
            port.push(Instant::ZERO, flow, 1000, item);
        }
        let mut sent = Vec::new();
        while let Some(at) = port.deadline() {
            let (item, waited) = port.pop(at).expect("it goes when it is due");
            assert_eq!(waited, at.since(Instant::ZERO));
            sent.push((item, at.as_nanos() / 1000));
        }
        sent
    }

    #[test]
    fn each_discipline_has_its_order() {
        let packets = [(A, 'a'), (A, 'b'), (A, 'c'), (B, 'x'), (B, 'y')];
        let fifo = order(Discipline::Fifo, &packets);
        assert_eq!(fifo, [('a', 0), ('b', 1), ('c', 2), ('x', 3), ('y', 4)]);
        let fair = order(Discipline::Fair, &packets);
        assert_eq!(fair, [('a', 0), ('x', 1), ('b', 2), ('y', 3), ('c', 4)]);
        let first = order(Discipline::Priority { urgent: B }, &packets);
        assert_eq!(first, [('x', 0), ('y', 1), ('a', 2), ('b', 3), ('c', 4)]);
        let bucket = Discipline::TokenBucket {
            ns_per_kilobyte: 10_000,
            burst: Duration::from_micros(10),
        };
        let shaped = order(bucket, &packets);
        assert_eq!(shaped, [('a', 0), ('b', 1), ('x', 2), ('y', 3), ('c', 10)]);
    }

    #[test]
    fn a_flow_that_was_idle_gets_no_credit_for_it() {
        let mut port = Port::new(Discipline::Fair, 1000);
        for item in 0..10 {
            port.push(Instant::ZERO, A, 1000, item);
        }
        for _ in 0..5 {
            let at = port.deadline().unwrap();
            port.pop(at).unwrap();
        }
        for item in 10..20 {
            port.push(port.free_at, B, 1000, item);
        }
        let next = core::iter::from_fn(|| {
            let at = port.deadline()?;
            port.pop(at).map(|sent| sent.0 >= 10)
        });
        let of_b = next.take(6).filter(|of_b| *of_b).count();
        assert!((3..=4).contains(&of_b), "{of_b} of six");
    }
}
