//! How long other nodes take to acknowledge this node's writes, for the gateway to compare ([`rack::slow`]).

use base::{Duration, Instant, NodeId};
use rack::control::Acknowledged;
use rack::slow::{Rules, Windows};

/// The last window of each node.
pub(super) struct Answers {
    windows: Windows,
    last: Vec<Acknowledged>,
}

impl Answers {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            windows: Windows::new(rules),
            last: Vec::new(),
        }
    }

    /// A node has acknowledged a write after so long.
    pub(super) fn note(&mut self, now: Instant, node: NodeId, took: Duration) {
        let Some(median) = self.windows.note(now, node, took) else {
            return;
        };
        let place = self.last.iter().position(|known| known.node == node.0);
        let known = place.map_or(0, |place| self.last.swap_remove(place).window);
        self.last.push(Acknowledged {
            node: node.0,
            median_us: median.as_micros() as u64,
            window: known + 1,
        });
    }

    /// The report for the gateway.
    pub(super) fn last(&self) -> &[Acknowledged] {
        &self.last
    }
}
