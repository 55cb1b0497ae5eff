//! The gateways that ask a node how it is, and the rack's level that they tell with the question.

use base::event::Kind;
use base::{Instant, NodeId};
use rack::control::{Lead, LeadSeen};
use rack::level::{Levels, Software};

/// Gateways that are remembered to have asked; of more the one that asked longest ago is forgotten.
const GATEWAYS_MAX: usize = 16;

/// The gateways that have asked.
#[derive(Debug)]
pub(super) struct Askers {
    node: NodeId,
    /// The levels that the node knows.
    levels: Levels,
    /// In which session each has asked, and when it did so last.
    gateways: Vec<(Lead, Instant)>,
    is_refused: bool,
}

impl Askers {
    /// Nobody has asked.
    pub fn new(node: NodeId, levels: Levels) -> Self {
        Self {
            node,
            levels,
            gateways: Vec::new(),
            is_refused: false,
        }
    }

    /// True if the node does not know the rack's level, as a gateway has told. It answers nothing but questions how it is then, and
    /// sends nothing else.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The node's program.
    pub fn software(&self) -> Software {
        Software::own(self.levels)
    }

    /// A gateway has asked, and told the rack's level, or 0 if it knows none. The event to tell, if the node is refused from now on.
    pub fn asked(&mut self, now: Instant, by: Lead, level: u64) -> Option<Kind> {
        self.gateways.retain(|(lead, _)| lead.addr != by.addr);
        if self.gateways.len() == GATEWAYS_MAX {
            self.gateways.remove(0);
        }
        self.gateways.push((by, now));
        let level = u8::try_from(level).unwrap_or(u8::MAX);
        let was_refused = self.is_refused;
        if level > 0 {
            self.is_refused = !self.levels.has(level);
        }
        (self.is_refused && !was_refused).then_some(Kind::NodeRefused {
            node: self.node,
            knows_to: self.levels.max.into(),
            rack_level: level.into(),
        })
    }

    /// The gateways, as the node has seen them.
    pub fn seen(&self, now: Instant) -> impl Iterator<Item = LeadSeen> {
        self.gateways.iter().map(move |(lead, at)| LeadSeen {
            gateway: lead.addr.to_string(),
            session: lead.session,
            ago_ms: now.since(*at).as_millis() as u64,
        })
    }
}
