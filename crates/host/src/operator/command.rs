//! Commands to the operator, and the answers to them.

use crate::gateway::NodeAnswer;
use base::limits::{REPLICAS_MAX, SECTOR_BYTES};
use base::{Addr, Duration, NodeId, VolumeId, VssdId};
use core::fmt;
use rack::exchange::ExchangeError;
use rack::level::{Mismatch, Part};
use rack::nodes::NodeError;
use rack::placement::{Isolation, PlacementError};
use rack::registry::{
    Durability, NAME_BYTES_MAX, RegistryError, SetRecord, Snapshot, VolumeRecord, name_is_valid,
};
use thiserror::Error;
use uuid::Uuid;
use wire::rack::Code;

/// A command to the operator.
#[derive(Clone, Debug)]
pub enum Command {
    /// Create a volume; answered when it is ready.
    Create(NewVolume),
    /// Grow a volume.
    Resize {
        /// Its name.
        name: String,
        /// Its new size.
        size_bytes: u64,
    },
    /// Delete a volume and its data.
    Delete {
        /// Its name.
        name: String,
    },
    /// Let two vSSDs of different replica sets exchange their nodes; answered when it is over.
    Exchange {
        /// The one.
        a: VssdId,
        /// The other one.
        b: VssdId,
    },
    /// Let a volume have more or fewer copies; answered when that is noted.
    Replicate {
        /// Its name.
        name: String,
        /// Its copies.
        replicas: u8,
    },
    /// Change the rack's nodes; answered when that is noted.
    ChangeNodes(NodeChange),
    /// Tell the registry's records, and whether this gateway serves, once that is known.
    Records,
    /// Ask every node how it is.
    Nodes,
    /// Answer what is under way, flush and close every volume, and let another gateway lead.
    Stop,
}

/// A change of the rack's nodes.
#[derive(Clone, Debug)]
pub enum NodeChange {
    /// Nodes belong to the rack from now on.
    Add {
        /// Their numbers and addresses.
        nodes: Vec<(NodeId, Addr)>,
        /// Members move there until free room is even.
        rebalances: bool,
    },
    /// A node is to have no members any more.
    Drain(NodeId),
    /// It may have members again.
    StopDrain(NodeId),
    /// A node without members is to be forgotten.
    Remove(NodeId),
    /// A node takes the place of another one, which is forgotten then.
    Replace {
        /// The node that goes.
        old: NodeId,
        /// The node that takes its place.
        new: NodeId,
        /// Its address, if it is not known yet.
        addr: Option<Addr>,
    },
    /// Members move until free room is even.
    Rebalance,
    /// They do so no more.
    StopRebalance,
}

/// A volume to create.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Copies.
    pub replicas: u8,
    /// When writes are acknowledged.
    pub durability: Durability,
    /// Isolation of its vSSDs.
    pub isolation: Isolation,
    /// Writes are refused.
    pub read_only: bool,
    /// How long to wait for enough nodes to be there.
    pub nodes_within: Duration,
}

/// The faults of sets, as far as a gateway knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ills {
    /// Members that do not serve.
    pub absent: Vec<VssdId>,
    /// Those of them of which nothing is on their nodes, and why.
    pub gone: Vec<(VssdId, Code)>,
    /// Volumes of which a set lacks a copy that no node has room for that answers.
    pub without_room: Vec<VolumeId>,
    /// Volumes of which a set lacks a copy that is made on another node after so long, unless the one that had it comes back.
    pub awaited: Vec<(VolumeId, Duration)>,
}

/// A registry that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryAway {
    /// For so long.
    pub lasts: Duration,
    /// Why.
    pub why: RegistryError,
}

/// A command was carried out.
#[derive(Clone, Debug)]
pub enum Done {
    /// The volume as it is now.
    Volume(Box<VolumeRecord>),
    /// The volume is gone.
    Deleted,
    /// The exchange took so long.
    Exchanged(Duration),
    /// The registry.
    Records {
        /// Its records; those of before if it is away.
        records: Box<Snapshot>,
        /// Set while it does not answer.
        away: Option<Box<RegistryAway>>,
        /// This gateway serves.
        serves: bool,
        /// The faults of the sets in them.
        ills: Box<Ills>,
        /// Parts for which the rack's next level waits, as far as this gateway knows.
        waits_for: Vec<Part>,
    },
    /// The registry has what was wanted, and it is being done.
    Noted,
    /// The nodes; those that did not answer have no last answer.
    Nodes(Vec<NodeAnswer>),
    /// Every volume is closed.
    Stopped {
        /// All requests were answered in time.
        clean: bool,
    },
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No name for a volume.
    #[error(
        "`{0}` is not a volume name: letters, digits, `-`, `_` and `.`, at most {NAME_BYTES_MAX}, not starting with `-` \
         or `.`"
    )]
    Name(String),
    /// No size for a new volume.
    #[error("size {0}: a volume is a multiple of 512 bytes and not empty")]
    Size(u64),
    /// No number of copies.
    #[error("replicas {0}: ask for 1 to {REPLICAS_MAX}")]
    Replicas(u8),
    /// The new size is smaller.
    #[error(
        "volume `{name}` has {have} bytes and cannot shrink to {asked}: create a smaller one and copy, for example with \
         nbdcopy"
    )]
    Shrinks {
        /// Of the volume.
        name: String,
        /// Its size.
        have: u64,
        /// The size asked for.
        asked: u64,
    },
    /// There is no such volume.
    #[error("there is no volume `{0}`: `switchyard volume list` names those there are")]
    Unknown(String),
    /// The name is taken.
    #[error("a volume `{0}` exists already: choose another name or delete it first")]
    Exists(String),
    /// It does not fit.
    #[error(transparent)]
    NoRoom(#[from] PlacementError),
    /// Two vSSDs cannot exchange their places.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A vSSD of the volume does not serve.
    #[error("volume `{0}` is not ready: `switchyard volume show {0}` tells why")]
    NotReady(String),
    /// A volume that would take part in an exchange is not ready.
    #[error("a volume of these vSSDs is not ready: `switchyard volume list` tells which")]
    ExchangeNotReady,
    /// Nodes did not answer in time.
    #[error("some nodes of volume `{0}` do not answer: `switchyard status` shows which")]
    Silent(String),
    /// A node refused its part of a volume.
    #[error("{0}")]
    Vssd(VssdProblem),
    /// Nodes did not answer in time, and the rest is deleted when they do.
    #[error(
        "some nodes of volume `{0}` do not answer, so it is not deleted completely: `switchyard status` shows which; the \
         rest is deleted when they are back"
    )]
    NotDeleted(String),
    /// An earlier attempt to grow is still being undone.
    #[error(
        "volume `{0}` gives back what an earlier resize took: some nodes do not answer, `switchyard status` shows which"
    )]
    Growing(String),
    /// No node answers, and no ToR.
    #[error(
        "no ToR answers at {}, so no node can be asked: start the ToR again at this address, or look at the network to it", list(.0)
    )]
    NoTor(Vec<Addr>),
    /// No node answers, though a ToR does.
    #[error(
        "none of the rack's {0} nodes answers, though the ToR does: start them, or look at the network between"
    )]
    NoNode(usize),
    /// A node has vSSDs of another rack.
    #[error(
        "node {} has vSSDs that belong to another rack, or to this one before its registry was lost, and may hold data: put \
         that registry back, make it again with `switchyard registry rebuild`, or start the node with an empty medium",
        .0.0
    )]
    ForeignNode(NodeId),
    /// A node does not know the rack's level.
    #[error("node {} does not serve: {mismatch}", node.0)]
    NodeLevel {
        /// The node.
        node: NodeId,
        /// The levels that it knows.
        mismatch: Mismatch,
    },
    /// The nodes cannot be changed so.
    #[error(transparent)]
    Nodes(#[from] NodeError),
    /// Another node answers at an address.
    #[error("the node at {addr} has the number {}: add it by this number", node.0)]
    OtherNode {
        /// The address.
        addr: Addr,
        /// The number of the node there.
        node: NodeId,
    },
    /// More copies than nodes.
    #[error(
        "{copies} copies need as many nodes, and the rack has {nodes} that may have any: add one with `switchyard node add`"
    )]
    FewNodes {
        /// Copies asked for.
        copies: u8,
        /// Nodes that may have copies.
        nodes: usize,
    },
    /// An exchange was undone.
    #[error("nothing was exchanged: {0}")]
    NotExchanged(NotExchanged),
    /// An exchange was decided, and is not over in time.
    #[error(
        "decided, but some nodes do not answer, and writes to these vSSDs wait for them: `switchyard status` shows which; \
         it is completed when they are back"
    )]
    ExchangeUnfinished,
    /// The process is about to end.
    #[error("the rack stops; what was begun is undone or completed at its next start")]
    Stops,
    /// Another gateway took over meanwhile.
    #[error("another gateway has taken over, and undoes or completes what was begun")]
    Replaced,
    /// Another gateway leads.
    #[error("{0}")]
    Elsewhere(Box<LeadPlace>),
    /// No gateway leads.
    #[error("no gateway leads this now: one will within seconds, try again then")]
    Unled,
    /// The registry cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// The gateway that leads what a command is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeadPlace {
    /// The rack's id.
    pub rack: Uuid,
    /// IPv4 address and UDP port of the gateway that was asked.
    pub asked: String,
    /// That of the gateway that leads.
    pub gateway: String,
    /// The control API of the gateway that leads, empty if it has announced none.
    pub control: String,
}

impl fmt::Display for LeadPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.control.as_str() {
            "" => write!(
                f,
                "the gateway at {}/udp leads, and has announced no control address: ask that one, with --control",
                self.gateway
            ),
            control => write!(f, "the gateway at {control} leads: ask that one, with --control"),
        }
    }
}

/// Why an exchange was undone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotExchanged {
    /// A node refused.
    #[error("vSSD {}: {}", .0.0, reason(*.1))]
    Refused(VssdId, Code),
    /// One of its volumes was deleted.
    #[error("a volume was deleted")]
    Deleted,
    /// It took too long.
    #[error("the nodes did not copy in time")]
    Late,
}

/// A node that does not do its part of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "node {} does not serve vSSD {}: {}. {}",
    node.map_or_else(|| "?".to_owned(), |node| node.0.to_string()), vssd.0, reason(*code), self.remedy()
)]
pub struct VssdProblem {
    /// Its node, if the volume's record has it.
    pub node: Option<NodeId>,
    /// The vSSD.
    pub vssd: VssdId,
    /// Answer of the node.
    pub code: Code,
    /// The volume's name.
    pub volume: String,
    /// No other node has a copy.
    pub is_last: bool,
}

impl VssdProblem {
    /// Of a vSSD of these sets.
    pub fn new(volume: &str, sets: &[SetRecord], vssd: VssdId, code: Code) -> Self {
        let has = |set: &&SetRecord| set.vssds().any(|(id, _)| id == vssd);
        let set = sets.iter().find(has);
        let node = set.and_then(|set| set.vssds().find(|(id, _)| *id == vssd));
        Self {
            node: node.map(|(_, node)| node),
            vssd,
            code,
            volume: volume.to_owned(),
            is_last: set.is_some_and(|set| set.replicas.len() == 1),
        }
    }

    /// The way on. To delete the volume is the last resort, if no copy is left.
    fn remedy(&self) -> String {
        let own = "Put the node's own medium back and restart it";
        match (self.code, self.is_last) {
            (Code::Ahead, _) => "Nothing is lost: stop the gateways, and put the newer registry back, or make it anew from the nodes by \
                                 `switchyard registry rebuild --replace`"
                .to_owned(),
            (_, false) => own.to_owned(),
            (_, true) => format!(
                "{own}. No other node has a copy: only if that medium is lost for good, give the volume up with \
                 `switchyard volume delete {}`, and restore it from a backup",
                self.volume
            ),
        }
    }
}

fn list(addrs: &[Addr]) -> String {
    let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
    addrs.join(", ")
}

fn reason(code: Code) -> &'static str {
    match code {
        Code::NoVssd => "it is not there: the node's medium was replaced or lost",
        Code::NoSpace => "the node has no free channels or flash for it",
        Code::Latched => "the node's medium failed",
        Code::Damaged => "its metadata is damaged, as `switchyard verify` shows",
        Code::Foreign => {
            "it belongs to another rack, or to this one before its registry was lost, and may hold data: put that registry back"
        }
        Code::OtherSet => "it is part of another volume or set: the node's medium is an image from elsewhere",
        Code::Past => {
            "its node has a medium of before the set's members changed last: put the node's own medium back, or go on with what is left by `switchyard registry force-copy`"
        }
        Code::Ahead => "its set has changed since this registry's records were made",
        Code::Refused => "the node has it with another size",
        _ => "the node refuses it",
    }
}

impl NewVolume {
    /// Refuses what no rack can create.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if !name_is_valid(&self.name) {
            return Err(Refusal::Name(self.name.clone()));
        }
        if self.size_bytes == 0 || !self.size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
            return Err(Refusal::Size(self.size_bytes));
        }
        if !(1..=REPLICAS_MAX as u8).contains(&self.replicas) {
            return Err(Refusal::Replicas(self.replicas));
        }
        Ok(())
    }
}

/// Refuses a size that a volume cannot get.
pub(super) fn check_growth(old: &VolumeRecord, size_bytes: u64) -> Result<(), Refusal> {
    if !size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
        return Err(Refusal::Size(size_bytes));
    }
    if size_bytes < old.size_bytes {
        return Err(Refusal::Shrinks {
            name: old.name.clone(),
            have: old.size_bytes,
            asked: size_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rack::registry::ReplicaRecord;

    fn sets() -> Vec<SetRecord> {
        vec![SetRecord {
            pages: 2,
            channels: 1,
            replicas: vec![ReplicaRecord { vssd: 4, node: 2 }],
            ..SetRecord::default()
        }]
    }

    #[test]
    fn bad_requests_are_refused_with_a_remedy() {
        let new = |name: &str, size_bytes, replicas| NewVolume {
            name: name.into(),
            size_bytes,
            replicas,
            durability: Durability::Memory,
            isolation: Isolation::Hardware,
            read_only: false,
            nodes_within: Duration::ZERO,
        };
        assert!(new("db", 512, 2).check().is_ok());
        for (name, size, replicas, part) in [
            ("a b", 512, 2, "letters"),
            ("db", 100, 2, "512"),
            ("db", 0, 2, "not empty"),
            ("db", 512, 4, "1 to 3"),
        ] {
            let error = new(name, size, replicas).check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let record = VolumeRecord {
            id: 1,
            identity: Default::default(),
            name: "db".into(),
            size_bytes: 8192,
            durability: Durability::Memory,
            read_only: false,
            ready: true,
            lead: None,
            sets: sets(),
        };
        let error = check_growth(&record, 4096).unwrap_err().to_string();
        assert!(
            error.contains("cannot shrink") && error.contains("nbdcopy"),
            "{error}"
        );
        assert!(check_growth(&record, 8192).is_ok());
    }

    #[test]
    fn a_failed_volume_names_node_vssd_and_remedy() {
        let text = VssdProblem::new("db", &sets(), VssdId(4), Code::NoVssd).to_string();
        for part in ["node 2", "vSSD 4", "medium", "volume delete db"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
