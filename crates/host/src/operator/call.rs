//! The operator's calls to the gateway on its machine, and its view of the gateway.
//!
//! Calls change the gateway in the order in which the operator makes them. Only a [`Call::Look`] has an answer.

use crate::gateway::{Charge, Gateway, NodeAnswer, TorAnswer, VolumeState};
use base::event::Lead;
use base::{Addr, Instant, NodeId, VolumeId, VssdId};
use rack::exchange::ChangeState;
use rack::lead::Seen;
use rack::registry::{LeftRecord, SetRecord, Snapshot, VolumeRecord};
use std::collections::BTreeMap;
use uuid::Uuid;
use wire::rack::Code;

/// A call of the gateway's methods.
#[derive(Clone, Debug)]
pub enum Call {
    /// Serve the volumes of these records in this session.
    Serve {
        /// Higher than that of any gateway before.
        session: u32,
        /// Volumes to serve.
        records: Box<Snapshot>,
    },
    /// Lead the rack in this session, or no more.
    LeadRack {
        /// The rack's id.
        rack: Uuid,
        /// The session, if it leads.
        session: Option<u32>,
        /// The session in which it led until now.
        was: Option<u32>,
    },
    /// Lead these volumes, each in its session.
    Lead {
        /// The rack's id.
        rack: Uuid,
        /// The volumes.
        volumes: Vec<Charge>,
    },
    /// Answer what is under way of these volumes, flush them, and serve them no more.
    Retire(Vec<VolumeId>),
    /// Lead these volumes no more.
    Leave(Vec<(VolumeId, Lead)>),
    /// Ask the other gateways and the nodes whether they are there, and tell others from now on that this one is.
    Watch {
        /// The others.
        peers: Vec<Addr>,
        /// Of the records as they are known here.
        epoch: u64,
    },
    /// These are the rack's nodes.
    Nodes(Vec<(NodeId, Addr)>),
    /// The rack is at this level.
    Level(u8),
    /// Ask every node for its status.
    AskNodes,
    /// Have a volume's vSSDs made, and open it. It may be open with others in their places.
    Open(Box<VolumeRecord>),
    /// Close a volume, and have its vSSDs deleted.
    Delete(Box<VolumeRecord>),
    /// Have vSSDs made that the volume is to grow by.
    Make(VolumeId, Vec<SetRecord>),
    /// Have these deleted.
    Unmake(VolumeId, Vec<SetRecord>),
    /// Show clients the size of this record, which the registry has.
    Grow(Box<VolumeRecord>),
    /// Do what the `joining` and `leaving` of these records ask for.
    Change(Vec<VolumeRecord>),
    /// Have these vSSDs deleted, which are nobody's.
    Discard(Vec<LeftRecord>),
    /// Flush every volume, and close it.
    Close,
    /// Tell how these volumes are, and the nodes' answers if they are wanted.
    Look {
        /// To tell the answer of this look from that of an earlier one.
        number: u64,
        /// The volumes.
        volumes: Vec<VolumeId>,
        /// Include the nodes' answers.
        nodes: bool,
    },
}

/// Result of a [`Call::Look`].
#[derive(Clone, Debug)]
pub struct View {
    /// Of the look.
    pub number: u64,
    /// The volumes that the gateway leads beside others, each in its session.
    pub leads: BTreeMap<VolumeId, u32>,
    /// Volumes that it serves no more, with requests in flight.
    pub retiring: Vec<VolumeId>,
    /// Requests that are not answered yet.
    pub in_flight: usize,
    /// The other gateways, as they were asked.
    pub peers: Vec<Seen>,
    /// The newest epoch of the records that they know of.
    pub epoch_told: u64,
    /// When each node answered last.
    pub heard: Vec<Option<Instant>>,
    /// The nodes' answers, if they were wanted.
    pub nodes: Vec<NodeAnswer>,
    /// The gateway's own address.
    pub me: Addr,
    /// The ToRs.
    pub tors: Vec<TorAnswer>,
    /// The volumes that were asked for.
    pub volumes: Vec<VolumeView>,
    /// Replicas in whose place nodes have something else.
    pub strangers: Vec<VssdId>,
    /// Members that are of before what all members of their sets knew.
    pub past: Vec<VssdId>,
    /// Members that know later members of their sets than the records.
    pub ahead: Vec<VssdId>,
    /// vSSDs of [`Call::Discard`] that their nodes do not have any more.
    pub discarded: Vec<(NodeId, VssdId)>,
}

/// How a volume is.
#[derive(Clone, Debug)]
pub struct VolumeView {
    /// Its number.
    pub id: VolumeId,
    /// `None` if it is not open.
    pub state: Option<VolumeState>,
    /// It is closed, and no node is asked for anything of it.
    pub is_gone: bool,
    /// vSSDs of it that nodes have not deleted, as these have said.
    pub kept: Vec<VssdId>,
    /// How far the changes of its sets' members are; of none if it is not open.
    pub changes: Vec<ChangeState>,
    /// A node has not answered what the volume's growth asks for.
    pub growth_is_pending: bool,
    /// Refusal of a node to grow the volume.
    pub growth_failure: Option<(VssdId, Code)>,
}

/// Carries a call out.
pub fn carry_out(gateway: &mut Gateway, now: Instant, call: Call) -> Option<View> {
    match call {
        Call::Serve { session, records } => {
            let mut records = *records;
            let deleting = core::mem::take(&mut records.deleting);
            records.volumes.retain(|volume| !deleting.contains(&volume.id));
            gateway.serve(now, session, &records);
        }
        Call::LeadRack { rack, session, was } => gateway.lead_rack(rack, session, was),
        Call::Lead { rack, volumes } => gateway.lead_volumes(now, rack, volumes),
        Call::Retire(volumes) => {
            for id in volumes {
                gateway.retire_volume(now, id);
            }
        }
        Call::Leave(volumes) => {
            for (id, why) in volumes {
                gateway.leave_volume(now, id, why);
            }
        }
        Call::Watch { peers, epoch } => gateway.watch(now, &peers, epoch),
        Call::Nodes(nodes) => gateway.set_nodes(&nodes),
        Call::Level(level) => gateway.set_level(level),
        Call::AskNodes => gateway.ask_status(now),
        // Whoever leads it may have opened it already.
        Call::Open(record) if gateway.volume_state(record.volume()).is_some() => {
            gateway.place_anew(now, &record);
        }
        Call::Open(record) => gateway.open_volume(now, *record, true),
        Call::Delete(record) => gateway.delete_volume(now, &record),
        Call::Make(id, sets) => gateway.make_growth(now, id, &sets),
        Call::Unmake(id, sets) => gateway.delete_growth(now, id, &sets),
        Call::Grow(record) => gateway.grow_volume(now, *record),
        Call::Change(records) => {
            for record in &records {
                gateway.change_sets(now, record);
            }
        }
        Call::Discard(leftovers) => gateway.discard(now, leftovers),
        Call::Close => flush_and_close(gateway, now),
        Call::Look {
            number,
            volumes,
            nodes,
        } => return Some(look(gateway, number, &volumes, nodes)),
    }
    None
}

fn look(gateway: &Gateway, number: u64, volumes: &[VolumeId], nodes: bool) -> View {
    let known = gateway.nodes();
    let volume = |&id: &VolumeId| VolumeView {
        id,
        state: gateway.volume_state(id),
        is_gone: gateway.is_gone(id),
        kept: gateway.kept(id),
        changes: gateway.change_states(id),
        growth_is_pending: gateway.growth_is_pending(id),
        growth_failure: gateway.growth_failure(id),
    };
    View {
        number,
        leads: gateway.led().clone(),
        retiring: gateway
            .led()
            .keys()
            .copied()
            .filter(|id| gateway.is_retiring(*id))
            .collect(),
        in_flight: gateway.in_flight(),
        peers: gateway.peers().to_vec(),
        epoch_told: gateway.epoch_told(),
        heard: known
            .iter()
            .map(|node| node.last.as_ref().map(|(at, _)| *at))
            .collect(),
        me: gateway.addr(),
        tors: gateway.tors().to_vec(),
        nodes: if nodes { known.to_vec() } else { Vec::new() },
        volumes: volumes.iter().map(volume).collect(),
        strangers: gateway.strangers(),
        past: gateway.past(),
        ahead: gateway.ahead(),
        discarded: gateway.discarded().to_vec(),
    }
}

/// Requests that come later are refused; those in flight are answered.
fn flush_and_close(gateway: &mut Gateway, now: Instant) {
    for export in gateway.exports() {
        gateway.retire_volume(now, export.volume);
    }
}
