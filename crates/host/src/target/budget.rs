//! Payload under way, shared among connections: what a request holds until its answer is sent.
//!
//! Half of the budget is reserved, in equal parts, one for each connection that there may be. The other half is shared. A
//! client that has moved [`PROOF_BYTES`] takes what is free of it. Every other client leaves half of it free. So clients that
//! ask for much and never read an answer hold a quarter of the budget at most, and those that do read go on beside them.

/// A client that has sent and received so much does not only ask: sockets do not swallow as much by themselves.
pub const PROOF_BYTES: u64 = 1 << 20;

/// The payload of all connections of a core.
#[derive(Debug)]
pub struct Budget {
    /// Bytes that every connection may have under way whatever the others do.
    reserve: u64,
    /// Bytes that connections may have beyond their reserves, together.
    shared_max: u64,
    shared: u64,
}

impl Budget {
    pub fn new(bytes: u64, connections_max: usize) -> Self {
        Self {
            reserve: bytes / 2 / connections_max.max(1) as u64,
            shared_max: bytes / 2,
            shared: 0,
        }
    }

    /// The part of a connection's bytes that is beyond its reserve.
    pub fn excess(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.reserve)
    }

    /// Bytes that every connection may have.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Bytes that a connection with `own` bytes under way may have, whose client has moved so many since it stood still.
    pub fn share_of(&self, own: u64, moved_bytes: u64) -> u64 {
        let others = self.shared - self.excess(own);
        let shared_max = match moved_bytes < PROOF_BYTES {
            true => self.shared_max / 2,
            false => self.shared_max,
        };
        self.reserve + shared_max.saturating_sub(others)
    }

    /// A connection has `after` bytes under way instead of `before`.
    pub fn recount(&mut self, before: u64, after: u64) {
        self.shared = self.shared - self.excess(before) + self.excess(after);
    }

    /// Bytes beyond reserves. If the bytes under way get fewer, other connections may go on.
    pub fn shared(&self) -> u64 {
        self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greedy_leave_every_reserve_alone() {
        let mut budget = Budget::new(2000, 10);
        let share = |budget: &Budget, own| budget.share_of(own, PROOF_BYTES);
        assert_eq!(share(&budget, 0), 100 + 1000, "alone");
        budget.recount(0, 600);
        assert_eq!(share(&budget, 600), 1100, "its own does not count against it");
        assert_eq!(share(&budget, 0), 100 + 500);
        budget.recount(0, 600);
        assert_eq!((budget.shared(), share(&budget, 0)), (1000, 100));
        budget.recount(0, 100);
        assert_eq!(budget.shared(), 1000, "a reserve is not shared");
        budget.recount(600, 0);
        assert_eq!(share(&budget, 100), 600);
    }

    #[test]
    fn who_has_moved_little_leaves_half_of_what_is_shared() {
        let mut budget = Budget::new(2000, 10);
        assert_eq!(budget.share_of(0, PROOF_BYTES - 1), 100 + 500);
        budget.recount(0, 600);
        assert_eq!(budget.share_of(0, 0), 100);
        assert_eq!(budget.share_of(0, PROOF_BYTES), 100 + 500);
        assert_eq!(budget.share_of(600, 0), 600, "it keeps what it has");
    }
}
