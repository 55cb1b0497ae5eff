//! Changes of a rack's nodes (`rack::nodes`): noted in the registry, and then done by the healing beside whichever gateway
//! serves. So a command is answered when its intention is noted, not when nothing is left to move.

use super::census::Census;
use super::command::{Done, NodeChange, Refusal};
use super::job::{LATER, Sight, Step};
use crate::gateway::NodeAnswer;
use base::event::Kind;
use base::{Addr, Duration, Instant, NodeId};
use rack::level::Mismatch;
use rack::nodes::{NodeError, check_place};
use rack::registry::{Snapshot, parse_addr};

/// Nodes that were added are waited for this long.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A change of the nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    change: NodeChange,
    census: Census,
    /// Nodes that are new to the rack.
    added: Vec<(NodeId, Addr)>,
    /// It was to be stored.
    is_asked: bool,
    until: Option<Instant>,
    refusal: Option<Refusal>,
}

impl Nodes {
    /// A change that somebody wants.
    pub fn new(change: NodeChange) -> Self {
        Self {
            change,
            census: Census::default(),
            added: Vec::new(),
            is_asked: false,
            until: None,
            refusal: None,
        }
    }

    /// The event of its being noted. Every gateway tells by itself which nodes come and go.
    pub fn told(&self) -> Option<Kind> {
        match self.change {
            NodeChange::Drain(node) | NodeChange::Replace { old: node, .. } => {
                Some(Kind::NodeDraining { node })
            }
            _ => None,
        }
    }

    /// Next step.
    pub fn advance(&mut self, sight: &Sight) -> Step {
        if !sight.is_awaited {
            return Step::Finish(Err(Refusal::Replaced));
        }
        match self.refusal.clone() {
            Some(refusal) => self.take_back(sight, refusal),
            None => self.note(sight).unwrap_or_else(|step| step),
        }
    }

    /// Stores the intention.
    fn note(&mut self, sight: &Sight) -> Result<Step, Step> {
        let is_silent = match &self.change {
            NodeChange::Remove(node) if sight.records.has_node(node.0) => {
                let nodes = self.census.ask(sight)?;
                if let Some(refusal) = self.census.unheard() {
                    return Err(Step::Finish(Err(refusal)));
                }
                let answers = |known: &NodeAnswer| known.node == *node && known.last.is_some();
                !nodes.iter().any(answers)
            }
            _ => false,
        };
        if self.is_asked && is_done(&self.change, sight.records) {
            return self.greet(sight);
        }
        let mut next = sight.records.clone();
        let refuse = |error| Step::Finish(Err(Refusal::Nodes(error)));
        self.check_places(sight)?.map_err(refuse)?;
        apply(&self.change, &mut next, is_silent).map_err(refuse)?;
        let is_new = |(id, _): &(NodeId, Addr)| !has(sight.records, *id);
        if !self.is_asked {
            self.added = self.change.named().into_iter().filter(is_new).collect();
        }
        self.is_asked = true;
        match next == *sight.records {
            true => self.greet(sight),
            false => Ok(Step::Store(Box::new(next))),
        }
    }

    /// Nodes are not where other parts of the rack are.
    fn check_places(&self, sight: &Sight) -> Result<Result<(), NodeError>, Step> {
        let named = self.change.named();
        if named.is_empty() {
            return Ok(Ok(()));
        }
        let view = sight.view.ok_or(Step::Look)?;
        let tors: Vec<Addr> = view.tors.iter().map(|tor| tor.addr).collect();
        let others = sight.records.gateways.iter();
        let others = others.filter_map(|gateway| parse_addr(&gateway.addr));
        let gateways: Vec<Addr> = others.chain([view.me]).collect();
        let mut places = named.iter().map(|&(_, addr)| check_place(addr, &tors, &gateways));
        Ok(places.find(Result::is_err).unwrap_or(Ok(())))
    }

    /// Waits until nodes that were added answer, and refuses strangers.
    fn greet(&mut self, sight: &Sight) -> Result<Step, Step> {
        let named = self.change.named();
        if named.is_empty() {
            return Ok(Step::Finish(Ok(Done::Noted)));
        }
        let until = *self.until.get_or_insert(sight.now + ANSWER_WITHIN);
        let nodes = self.census.ask(sight)?;
        for (id, addr) in named {
            let known = nodes.iter().find(|known| known.node == id);
            if let Some((_, software)) = known.and_then(|known| known.refused.as_ref())
                && let Err(mismatch) = Mismatch::check(sight.records.rack_level(), software)
            {
                self.refusal = Some(Refusal::NodeLevel { node: id, mismatch });
                continue;
            }
            match known.and_then(|known| known.last.as_ref()) {
                Some((_, status)) if status.node != id.0 => {
                    let node = NodeId(status.node);
                    self.refusal = Some(Refusal::OtherNode { addr, node });
                }
                Some((_, status)) if is_foreign(sight.records, &status.racks) => {
                    self.refusal = Some(Refusal::ForeignNode(id));
                }
                None if sight.now < until => {
                    self.census.again();
                    return Err(Step::Wait(LATER));
                }
                _ => {}
            }
        }
        match self.refusal.clone() {
            Some(refusal) => Ok(self.take_back(sight, refusal)),
            None => Ok(Step::Finish(Ok(Done::Nodes(nodes)))),
        }
    }

    /// A stranger does not stay.
    fn take_back(&self, sight: &Sight, refusal: Refusal) -> Step {
        let mut next = sight.records.clone();
        for (id, _) in &self.added {
            next.take_back_node(id.0);
        }
        match next == *sight.records {
            true => Step::Finish(Err(refusal)),
            false => Step::Store(Box::new(next)),
        }
    }
}

fn is_foreign(records: &Snapshot, racks: &[uuid::Uuid]) -> bool {
    !records.rack.is_nil() && racks.iter().any(|rack| *rack != records.rack)
}

fn apply(change: &NodeChange, next: &mut Snapshot, is_silent: bool) -> Result<(), NodeError> {
    match *change {
        NodeChange::Add {
            ref nodes,
            rebalances,
        } => {
            let known = next.nodes.len();
            for &(id, addr) in nodes {
                next.add_node(id, addr)?;
            }
            if rebalances && next.nodes.len() > known {
                next.rebalance();
            }
        }
        NodeChange::Drain(node) => next.drain_node(node.0)?,
        NodeChange::StopDrain(node) => next.stop_drain(node.0)?,
        NodeChange::Remove(node) => next.remove_node(node.0, is_silent)?,
        NodeChange::Replace { old, new, addr } => {
            if let Some((id, addr)) = addr.map(|addr| (new, addr)) {
                next.add_node(id, addr)?;
            }
            next.replace_node(old.0, new.0)?;
        }
        NodeChange::Rebalance => next.rebalance(),
        NodeChange::StopRebalance => next.rebalance_moves = 0,
    }
    Ok(())
}

/// True if records have what a change asks for, of which it is not known whether it was stored.
fn is_done(change: &NodeChange, records: &Snapshot) -> bool {
    match *change {
        NodeChange::Add { ref nodes, .. } => nodes.iter().all(|(id, _)| has(records, *id)),
        NodeChange::Drain(node) => records.goes(node.0),
        NodeChange::StopDrain(node) => records.drain_of(node.0).is_none(),
        NodeChange::Remove(node) => !has(records, node),
        NodeChange::Replace { old, new, .. } => {
            let drain = records.drain_of(old.0);
            !has(records, old) || drain.is_some_and(|drain| drain.to == new.0)
        }
        // Either may be over by now.
        NodeChange::Rebalance => true,
        NodeChange::StopRebalance => records.rebalance_moves == 0,
    }
}

fn has(records: &Snapshot, node: NodeId) -> bool {
    records.nodes.iter().any(|known| known.id == node.0)
}

impl NodeChange {
    /// Nodes of which it tells the addresses.
    fn named(&self) -> Vec<(NodeId, Addr)> {
        match self {
            Self::Add { nodes, .. } => nodes.clone(),
            Self::Replace { new, addr, .. } => addr.iter().map(|addr| (*new, *addr)).collect(),
            _ => Vec::new(),
        }
    }
}
