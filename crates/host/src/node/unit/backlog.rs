//! Writes that wait for room in the write cache: a client's wait in the storage's queue (RackBlox Algorithm 2, lines
//! 2–4). In order of arrival or, coordinated, of end-to-end time as everything that waits (§3.4, §4.5.1: requests are
//! reordered "in each queue").

use base::Instant;
use core::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use wire::rack::Packet;

/// Limit of waiting requests; the unit refuses more.
const BACKLOG_MAX: usize = 4096;

#[derive(Debug)]
struct Waiting {
    /// Arrival less the time in the network, in ns; negative when that took longer than the world is old.
    key_ns: i64,
    sequence: u64,
    peer: Option<usize>,
    packet: Packet,
}

impl Waiting {
    fn rank(&self) -> (i64, u64) {
        (self.key_ns, self.sequence)
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Waiting {}

/// The writes of clients, and of peers by their place in the membership, that wait.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: BinaryHeap<Reverse<Waiting>>,
    sequence: u64,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if the peer has sent this before and it waits: a peer sends again what is not acknowledged.
    pub(super) fn has(&self, peer: usize, packet: &Packet) -> bool {
        let name = |packet: &Packet| (packet.header.lba, packet.header.version, packet.header.epoch);
        let is_copy = |Reverse(waiting): &Reverse<Waiting>| {
            waiting.peer == Some(peer) && name(&waiting.packet) == name(packet)
        };
        self.waiting.iter().any(is_copy)
    }

    /// Lets a write wait that arrives now and spends `network_ns` in the network; false if there is no room for it.
    pub(super) fn push(
        &mut self,
        now: Instant,
        network_ns: u64,
        peer: Option<usize>,
        packet: Packet,
    ) -> bool {
        if self.waiting.len() >= BACKLOG_MAX {
            return false;
        }
        self.sequence += 1;
        self.waiting.push(Reverse(Waiting {
            key_ns: now.as_nanos() as i64 - network_ns as i64,
            sequence: self.sequence,
            peer,
            packet,
        }));
        true
    }

    /// The one that is next.
    pub(super) fn front(&self) -> Option<&Packet> {
        self.waiting.peek().map(|Reverse(waiting)| &waiting.packet)
    }

    /// Takes it.
    pub(super) fn pop(&mut self) -> Option<(Option<usize>, Packet)> {
        let Reverse(waiting) = self.waiting.pop()?;
        Some((waiting.peer, waiting.packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VssdId;
    use wire::rack::{Header, Op};

    fn write(lba: u64) -> Packet {
        Packet::bare(Header {
            lba,
            ..Header::new(Op::Write, VssdId(1))
        })
    }

    fn order(backlog: &mut Backlog) -> Vec<u64> {
        core::iter::from_fn(|| backlog.pop().map(|(_, packet)| packet.header.lba)).collect()
    }

    #[test]
    fn what_was_longer_under_way_goes_first_and_equals_go_by_arrival() {
        let mut backlog = Backlog::default();
        for (lba, at, network_ns) in [(1, 100, 0), (2, 150, 40), (3, 150, 90), (4, 150, 40)] {
            assert!(backlog.push(Instant::from_nanos(at), network_ns, None, write(lba)));
        }
        assert_eq!(backlog.front().map(|packet| packet.header.lba), Some(3));
        assert_eq!(order(&mut backlog), [3, 1, 2, 4]);
    }

    #[test]
    fn a_peers_copy_is_known_and_a_full_backlog_refuses() {
        let mut backlog = Backlog::default();
        backlog.push(Instant::ZERO, 0, Some(1), write(8));
        assert!(backlog.has(1, &write(8)));
        assert!(!backlog.has(0, &write(8)) && !backlog.has(1, &write(16)));
        for lba in 1..BACKLOG_MAX as u64 {
            assert!(backlog.push(Instant::ZERO, 0, None, write(lba)));
        }
        assert!(!backlog.push(Instant::ZERO, 0, None, write(0)));
    }
}
