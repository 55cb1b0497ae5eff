//! Which nodes are slow, as this gateway's reads and the nodes' reports of each other tell ([`rack::slow`]).

use base::event::{self, Kind};
use base::{Duration, Instant, NodeId};
use rack::control::NodeStatus;
use rack::slow::{Answers, Rules, Slow, Verdict, Windows};
use std::collections::BTreeMap;

/// The answers of nodes, so far.
#[derive(Debug)]
pub(super) struct Slowness {
    reads: Windows,
    pub slow: Slow,
    /// The last window that a node has reported of another one.
    reported: BTreeMap<(NodeId, NodeId), u64>,
}

impl Slowness {
    pub fn new(rules: Rules) -> Self {
        Self {
            reads: Windows::new(rules),
            slow: Slow::new(rules),
            reported: BTreeMap::new(),
        }
    }

    /// A node has answered a read after so long, or has not answered for so long.
    pub fn read(&mut self, now: Instant, node: NodeId, took: Duration) -> Option<Verdict> {
        let median = self.reads.note(now, node, took)?;
        self.slow.observe(now, node, Answers::Reads, median)
    }

    /// A node reports how long others take to acknowledge its writes.
    pub fn hear(&mut self, now: Instant, status: &NodeStatus) -> Vec<Verdict> {
        let from = NodeId(status.node);
        let mut verdicts = Vec::new();
        for report in &status.acknowledged {
            let of = NodeId(report.node);
            let is_new = self.reported.insert((from, of), report.window) != Some(report.window);
            if is_new && !self.slow.is_suspect(from) {
                let median = Duration::from_micros(report.median_us);
                verdicts.extend(self.slow.observe(now, of, Answers::Writes, median));
            }
        }
        verdicts
    }

    /// The rack has these nodes.
    pub fn retain(&mut self, is_there: impl Fn(NodeId) -> bool) {
        self.slow.retain(&is_there);
        self.reported
            .retain(|(from, of), _| is_there(*from) && is_there(*of));
    }
}

/// The event of a verdict.
pub(super) fn event_of(verdict: &Verdict) -> Kind {
    let Verdict {
        node, median, usual, ..
    } = *verdict;
    let answers = match verdict.answers {
        Answers::Reads => event::Answers::Reads,
        Answers::Writes => event::Answers::Writes,
    };
    match verdict.slow {
        true => Kind::NodeSlow {
            node,
            answers,
            median,
            usual,
        },
        false => Kind::NodeWell { node },
    }
}
