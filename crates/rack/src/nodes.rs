//! The nodes of a running rack: adding, draining, replacing and removing them, as far as the records go.
//!
//! The [`Snapshot`] notes what a person wants of a node. [`crate::moves`] does it, beside whichever gateway serves.

use crate::registry::{DrainRecord, NodeRecord, ReplicaRecord, SetRecord, Snapshot, VolumeRecord};
use base::limits::REPLICAS_MAX;
use base::{Addr, NodeId};
use core::net::Ipv4Addr;
use thiserror::Error;

/// Why the nodes cannot be changed so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// No node has this number.
    #[error("the rack has no node {0}: `switchyard node list` names those it has")]
    Unknown(u8),
    /// The number is another node's.
    #[error(
        "node {node} is at {addr}: choose another number, or restart the gateway with --node {node}=ADDRESS if the node has moved"
    )]
    NumberTaken {
        /// The number.
        node: u8,
        /// Where that node is.
        addr: String,
    },
    /// The address is another node's.
    #[error("node {node} is at {addr} already: `switchyard node list` names the nodes")]
    AddressTaken {
        /// The address.
        addr: String,
        /// The node that has it.
        node: u8,
    },
    /// No node can be there.
    #[error(
        "no node can be at {0}: name the IPv4 address and the UDP port at which the node listens, for example 10.0.0.11:8888"
    )]
    NoPlace(Addr),
    /// A ToR is there.
    #[error(
        "a ToR of this rack is at {0}: name the address at which the node listens (`switchyard node --listen`)"
    )]
    TorThere(Addr),
    /// A gateway is there.
    #[error(
        "a gateway of this rack is at {0}: name the address at which the node listens (`switchyard node --listen`)"
    )]
    GatewayThere(Addr),
    /// A node cannot take its own place.
    #[error("node {0} cannot take its own place: name another one")]
    Same(u8),
    /// It is being drained itself.
    #[error("node {0} is being drained: end that with `switchyard node drain --stop {0}` first")]
    Drains(u8),
    /// It is not being drained.
    #[error("node {0} is not being drained")]
    NotDraining(u8),
    /// The copies of a volume need as many nodes as there are without it.
    #[error(
        "volume `{volume}` has {copies} copies, each on a node of its own, and {nodes} nodes would be left: add a node \
         with `switchyard node add` first"
    )]
    TooFew {
        /// The volume.
        volume: String,
        /// Its copies.
        copies: usize,
        /// Nodes that are left.
        nodes: usize,
    },
    /// It still has copies.
    #[error(
        "node {node} has {members} copies: move them to other nodes with `switchyard node drain {node}` first"
    )]
    HasMembers {
        /// The node.
        node: u8,
        /// Copies that it has.
        members: usize,
    },
    /// It does not answer, and its copies are not made elsewhere yet.
    #[error(
        "node {node} does not answer, and {members} of its copies are not made on other nodes yet: do that with \
         `switchyard node drain {node}`, and remove it when `switchyard node show {node}` names none"
    )]
    NotRebuilt {
        /// The node.
        node: u8,
        /// Copies that it has.
        members: usize,
    },
    /// It does not answer, and nobody else has a copy.
    #[error(
        "node {node} does not answer and has the only copy of a part of volume `{volume}`: bring it back. Only if its \
         medium is lost for good, give the volume up with `switchyard volume delete {volume}`"
    )]
    OnlyCopy {
        /// The node.
        node: u8,
        /// The volume.
        volume: String,
    },
}

/// Refuses an address at which no node can be, or another part of the rack is.
pub fn check_place(addr: Addr, tors: &[Addr], gateways: &[Addr]) -> Result<(), NodeError> {
    let ip = Ipv4Addr::from(addr.ip);
    // 0.0.0.0/8 is this network, 240.0.0.0/4 reserved, with the broadcast (RFC 6890 §2.2.2).
    let is_nowhere = addr.port == 0 || ip.is_multicast() || matches!(ip.octets()[0], 0 | 240..);
    match addr {
        _ if is_nowhere => Err(NodeError::NoPlace(addr)),
        _ if tors.contains(&addr) => Err(NodeError::TorThere(addr)),
        _ if gateways.contains(&addr) => Err(NodeError::GatewayThere(addr)),
        _ => Ok(()),
    }
}

/// A vSSD on its way from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The vSSD that is to be given up.
    pub from: u32,
    /// Its node.
    pub node: u8,
    /// The vSSD that takes its place.
    pub to: ReplicaRecord,
}

impl Snapshot {
    /// True if the rack has a node. One whose records name no nodes has those of its configuration.
    pub fn has_node(&self, node: u8) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|known| known.id == node)
    }

    /// True if a node is to have no copies: it is being drained, or the rack has forgotten it.
    pub fn goes(&self, node: u8) -> bool {
        !self.has_node(node) || self.drain_of(node).is_some()
    }

    /// How a node is being drained, if it is.
    pub fn drain_of(&self, node: u8) -> Option<&DrainRecord> {
        self.drains.iter().find(|drain| drain.node == node)
    }

    fn check_known(&self, node: u8) -> Result<(), NodeError> {
        let is_known = self.nodes.iter().any(|known| known.id == node);
        is_known.then_some(()).ok_or(NodeError::Unknown(node))
    }

    /// A node belongs to the rack from now on.
    pub fn add_node(&mut self, node: NodeId, addr: Addr) -> Result<(), NodeError> {
        let (id, addr) = (node.0, addr.to_string());
        for known in &self.nodes {
            match (known.id == id, known.addr == addr) {
                (true, true) => return Ok(()),
                (true, false) => {
                    let addr = known.addr.clone();
                    return Err(NodeError::NumberTaken { node: id, addr });
                }
                (false, true) => return Err(NodeError::AddressTaken { addr, node: known.id }),
                (false, false) => {}
            }
        }
        self.removed.retain(|removed| *removed != id);
        let place = self.nodes.partition_point(|known| known.id < id);
        self.nodes.insert(place, NodeRecord { id, addr });
        Ok(())
    }

    /// A node that was just added turns out to be a stranger: it was not meant, unless it has copies by now.
    pub fn take_back_node(&mut self, node: u8) {
        if self.members_on(node) == 0 {
            self.nodes.retain(|known| known.id != node);
            self.drains.retain(|drain| drain.to != node);
        }
    }

    /// A node is to have no copies any more.
    pub fn drain_node(&mut self, node: u8) -> Result<(), NodeError> {
        self.check_known(node)?;
        self.check_enough(node)?;
        if self.drain_of(node).is_none() {
            self.drains.push(DrainRecord {
                node,
                ..DrainRecord::default()
            });
        }
        Ok(())
    }

    /// A node may have copies again. Moves that have begun go on.
    pub fn stop_drain(&mut self, node: u8) -> Result<(), NodeError> {
        self.check_known(node)?;
        self.drain_of(node).ok_or(NodeError::NotDraining(node))?;
        self.drains.retain(|drain| drain.node != node);
        Ok(())
    }

    /// A node takes the place of another one, which the rack forgets when it has no copies any more.
    pub fn replace_node(&mut self, old: u8, new: u8) -> Result<(), NodeError> {
        self.check_known(old)?;
        self.check_known(new)?;
        if old == new {
            return Err(NodeError::Same(old));
        }
        if self.drain_of(new).is_some() {
            return Err(NodeError::Drains(new));
        }
        self.check_enough(old)?;
        self.drains.retain(|drain| drain.node != old);
        self.drains.push(DrainRecord {
            node: old,
            to: new,
            removes: true,
        });
        Ok(())
    }

    fn check_enough(&self, node: u8) -> Result<(), NodeError> {
        let others = self.nodes.iter().map(|known| known.id);
        let others = others.filter(|&other| other != node && !self.goes(other));
        let nodes = others.count();
        let widest = |volume: &&VolumeRecord| volume.sets.iter().map(SetRecord::wanted).max();
        let volumes = self.volumes.iter();
        let volumes = volumes.filter(|volume| !self.is_deleting(volume.volume()));
        match volumes.max_by_key(widest) {
            Some(volume) if widest(&volume).is_some_and(|copies| copies > nodes) => Err(NodeError::TooFew {
                volume: volume.name.clone(),
                copies: widest(&volume).expect("asked just now"),
                nodes,
            }),
            _ => Ok(()),
        }
    }

    /// Every set, also one that is being made, with its volume.
    fn every_set(&self) -> impl Iterator<Item = (&VolumeRecord, &SetRecord)> {
        let with_sets = |volume| {
            let record: &VolumeRecord = volume;
            let growth = self.growth_of(record.volume());
            let growth = growth.into_iter().flat_map(|growth| &growth.sets);
            record.sets.iter().chain(growth).map(move |set| (record, set))
        };
        self.volumes.iter().flat_map(with_sets)
    }

    /// Copies that a node has, or is to have. vSSDs that were expelled or are nobody's are none.
    pub fn members_on(&self, node: u8) -> usize {
        let vssds = self.every_set().flat_map(|(_, set)| set.vssds());
        vssds.filter(|(_, on)| on.0 == node).count()
    }

    /// Copies that a node had, and that are not made elsewhere yet.
    pub fn missing_from(&self, node: u8) -> usize {
        let lacking = self.every_set().filter(|(_, set)| set.lacks_copies());
        let expelled = lacking.flat_map(|(_, set)| &set.expelled);
        expelled.filter(|left| left.node == node).count()
    }

    /// True if a node had copies that others have by now. While it is away, nobody waits for it.
    pub fn is_replaced(&self, node: u8) -> bool {
        self.leftovers.iter().any(|left| left.node == node)
    }

    /// Members of the rack's sets that move.
    pub fn moving(&self) -> impl Iterator<Item = (&VolumeRecord, Moving)> {
        self.every_set().filter_map(|(volume, set)| {
            let joining = set.joining.filter(|joining| joining.moves)?;
            let old = set.replicas.iter().find(|old| old.vssd == joining.replaces)?;
            let moving = Moving {
                from: old.vssd,
                node: old.node,
                to: ReplicaRecord {
                    vssd: joining.vssd,
                    node: joining.node,
                },
            };
            Some((volume, moving))
        })
    }

    /// The rack forgets a node that has no copies. vSSDs of nobody's there stay noted, should the node ever be back.
    pub fn remove_node(&mut self, node: u8, is_silent: bool) -> Result<(), NodeError> {
        self.check_known(node)?;
        self.check_enough(node)?;
        if is_silent && let Some(volume) = self.only_copy_on(node) {
            return Err(NodeError::OnlyCopy { node, volume });
        }
        match (self.members_on(node), self.missing_from(node)) {
            (0, 0) => {}
            (0, _) if is_silent => {}
            (has, missed) if is_silent => {
                let members = has + missed;
                return Err(NodeError::NotRebuilt { node, members });
            }
            (has, missed) => {
                let members = has + missed;
                return Err(NodeError::HasMembers { node, members });
            }
        }
        self.forget_node(node);
        Ok(())
    }

    /// A volume of which a node has the only copy of a part.
    fn only_copy_on(&self, node: u8) -> Option<String> {
        let is_only = |set: &SetRecord| matches!(set.replicas[..], [only] if only.node == node);
        let mut sets = self.every_set().filter(|(_, set)| is_only(set));
        sets.next().map(|(volume, _)| volume.name.clone())
    }

    pub(crate) fn forget_node(&mut self, node: u8) {
        self.nodes.retain(|known| known.id != node);
        self.drains.retain(|drain| drain.node != node);
        for drain in self.drains.iter_mut().filter(|drain| drain.to == node) {
            drain.to = 0;
        }
        self.boots.remove(&node);
        self.removed.push(node);
    }

    /// Evens free room out, with at most as many moves as there are copies.
    pub fn rebalance(&mut self) {
        let copies: usize = self.every_set().map(|(_, set)| set.replicas.len()).sum();
        self.rebalance_moves = copies as u32;
    }

    /// Nodes that a volume of so many copies can be on.
    pub fn nodes_for_copies(&self) -> usize {
        let nodes = self.nodes.iter().filter(|known| !self.goes(known.id));
        match self.nodes.is_empty() {
            true => REPLICAS_MAX,
            false => nodes.count(),
        }
    }
}
