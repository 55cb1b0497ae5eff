//! How patient the healing is.

use crate::lease::LAPSES_AFTER;
use base::Duration;

/// How patient the healing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nodes are asked this often.
    pub ask_every: Duration,
    /// A node that has not answered for so long is silent; far less than a lease ([`crate::lease::LEASE`]).
    pub silent_after: Duration,
    /// As long is waited for a member that is lost while no other serves. With what comes before and after it
    /// ([`Rules::writes_wait`]) it is less than clients' requests wait, or they fail first.
    pub patience: Duration,
    /// A node has to answer for so long before what was expelled there joins again.
    pub rejoin_after: Duration,
    /// A copy that lacks for so long is made anew on another node.
    pub rebuild_after: Duration,
    /// vSSDs that join at a time, to restore redundancy.
    pub joins_max: usize,
    /// Members that move at a time.
    pub moves_max: usize,
}

impl Rules {
    /// For so long at most, beside what the network takes, the loss of a member stops a set of which another one is well: until it is
    /// found, given up, and has no lease.
    pub fn writes_wait(&self) -> Duration {
        self.silent_after + self.ask_every + self.patience + LAPSES_AFTER
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            ask_every: Duration::from_millis(200),
            silent_after: Duration::from_secs(1),
            patience: Duration::from_secs(15),
            rejoin_after: Duration::from_secs(1),
            rebuild_after: Duration::from_secs(60),
            joins_max: 4,
            moves_max: 2,
        }
    }
}
