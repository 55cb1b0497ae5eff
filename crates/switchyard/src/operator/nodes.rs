//! The rack's nodes as the control API asks for them and tells of them.

use super::part::Part;
use super::ready::ASKED_SILENT_AFTER;
use super::refusal::Refusal;
use super::seen::{Seen, Told};
use crate::control::api;
use base::{Addr, NodeId};
use host::gateway::NodeAnswer;
use host::operator::{Command, Done, NodeChange};
use rack::level::Mismatch;
use rack::moves::{progress, stuck};
use rack::nodes::Moving;
use rack::registry::{Snapshot, VolumeRecord, parse_addr};
use rack::room::{Rooms, Site};

impl Part {
    /// Asks every node through the rack's network; those that do not answer in time are reported as silent.
    pub fn nodes(&self) -> Result<Told<Vec<api::Node>>, Refusal> {
        self.tell(|seen| self.nodes_of(seen))
    }

    pub(super) fn nodes_of(&self, seen: &Seen) -> Result<Vec<api::Node>, Refusal> {
        let answers = match self.ask(Command::Nodes)? {
            Done::Nodes(nodes) => nodes,
            other => unreachable!("the operator answers what was asked: {other:?}"),
        };
        let records = &*seen.records;
        let site = |answer: &NodeAnswer| {
            let status = answer.last.clone().map(|(_, status)| status).unwrap_or_default();
            Site::new(answer.node.0, &status, records.rack, answer.last.is_some())
        };
        let rooms = Rooms::new(answers.iter().map(site));
        let trouble = self.trouble(ASKED_SILENT_AFTER)?;
        let answers = answers.into_iter();
        let mut nodes: Vec<api::Node> = answers.map(|answer| node(answer, records, &rooms)).collect();
        // Nobody knows what else speaks against a move.
        if let Some(trouble) = trouble {
            let drains = nodes.iter_mut().filter_map(|node| node.drain.as_mut());
            let problems = drains.filter_map(|drain| drain.problem.as_mut());
            problems.for_each(|problem| problem.clone_from(&trouble));
        }
        Ok(nodes)
    }

    /// Changes the nodes; returns them when that is noted.
    pub fn change_nodes(&self, change: NodeChange) -> Result<Vec<api::Node>, Refusal> {
        self.ask(Command::ChangeNodes(change))?;
        Ok(self.nodes()?.what)
    }

    /// Adds nodes; returns when they answer, or after a moment.
    pub fn add_nodes(&self, add: &api::AddNodes) -> Result<Vec<api::Node>, Refusal> {
        let place = |place: &api::NodePlace| {
            let addr = addr_of(place)?.ok_or_else(|| no_address(place.id))?;
            Ok((number_of(place)?, addr))
        };
        let nodes = add.nodes.iter().map(place).collect::<Result<Vec<_>, Refusal>>()?;
        self.change_nodes(NodeChange::Add {
            nodes,
            rebalances: add.rebalance,
        })
    }

    /// Lets a node take the place of another one.
    pub fn replace_node(&self, old: NodeId, new: &api::NodePlace) -> Result<Vec<api::Node>, Refusal> {
        let (new, addr) = (number_of(new)?, addr_of(new)?);
        self.change_nodes(NodeChange::Replace { old, new, addr })
    }
}

fn number_of(place: &api::NodePlace) -> Result<NodeId, Refusal> {
    match place.id {
        0 => Err(Refusal::Invalid(
            "a node has a number from 1 to 255, not 0".to_owned(),
        )),
        id => Ok(NodeId(id)),
    }
}

fn no_address(id: u8) -> Refusal {
    Refusal::Invalid(format!(
        "node {id} has no address: write it, for example {id}=10.0.0.11:8888"
    ))
}

fn addr_of(place: &api::NodePlace) -> Result<Option<Addr>, Refusal> {
    let Some(text) = &place.addr else { return Ok(None) };
    match parse_addr(text) {
        Some(addr) if addr.ip != 0 && addr.port != 0 => Ok(Some(addr)),
        _ => Err(Refusal::Invalid(format!(
            "`{text}` is not the address of a node: write IPv4 address and port, for example 10.0.0.11:8888"
        ))),
    }
}

fn node(answer: NodeAnswer, records: &Snapshot, rooms: &Rooms) -> api::Node {
    let id = answer.node.0;
    api::Node {
        id,
        addr: answer.addr.to_string(),
        answers: answer.last.is_some(),
        slow: answer.slow,
        refused: refusal(&answer, records),
        status: answer.last.map(|(_, status)| status).unwrap_or_default(),
        copies: progress(records, id).members,
        drain: drain(records, rooms, id),
        ..api::Node::default()
    }
}

/// Why a node does not serve at the rack's level, if it does not.
fn refusal(answer: &NodeAnswer, records: &Snapshot) -> Option<String> {
    let (_, software) = answer.refused.as_ref()?;
    let checked = Mismatch::check(records.rack_level(), software);
    checked.err().map(|mismatch| mismatch.to_string())
}

fn drain(records: &Snapshot, rooms: &Rooms, id: u8) -> Option<api::Drain> {
    let drain = records.drain_of(id)?;
    let place = |vssd, node| api::Place { vssd, node };
    let moving = |(volume, moving): (&VolumeRecord, Moving)| api::Move {
        volume: volume.name.clone(),
        from: place(moving.from, moving.node),
        to: place(moving.to.vssd, moving.to.node),
    };
    let of_node = records.moving().filter(|(_, moving)| moving.node == id);
    Some(api::Drain {
        done: progress(records, id).members == 0,
        moving: of_node.map(moving).collect(),
        to: (drain.to > 0).then_some(drain.to),
        removes: drain.removes,
        problem: stuck(records, rooms, id).map(|stuck| stuck.to_string()),
    })
}
