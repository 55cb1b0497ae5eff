//! The registry's records and the [`Registry`] trait: membership, placement and volume metadata.
//!
//! The records are plain data; a registry stores them (an embedded file by default). Everything else in the rack can
//! be rebuilt from them and from the nodes' own superblocks.

use crate::level::{self, Software};
use base::{Addr, NodeId, VolumeId, VssdId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;
use uuid::Uuid;

/// When a write of a volume is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When every replica holds it in memory; FLUSH and FUA make it durable (a volatile write cache).
    #[default]
    Memory,
    /// When every replica holds it on media.
    Media,
}

/// One vSSD of a replica set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// The vSSD's number.
    pub vssd: u32,
    /// The node that has it.
    pub node: u8,
}

impl From<(VssdId, NodeId)> for ReplicaRecord {
    fn from((vssd, node): (VssdId, NodeId)) -> Self {
        Self {
            vssd: vssd.0,
            node: node.0,
        }
    }
}

impl From<LeavingRecord> for ReplicaRecord {
    fn from(LeavingRecord { vssd, node, .. }: LeavingRecord) -> Self {
        Self { vssd, node }
    }
}

/// A vSSD that is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftRecord {
    /// The vSSD's number.
    pub vssd: u32,
    /// The node that has it.
    pub node: u8,
    /// The set that it was of, if that had an identity: a node deletes nothing else of the number.
    #[serde(default, skip_serializing_if = "Uuid::is_nil")]
    pub set: Uuid,
}

/// A vSSD that joins a set: to take a replica's place ([`crate::exchange`], [`crate::moves`]), or as one replica more
/// ([`crate::heal`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoiningRecord {
    /// The vSSD's number.
    pub vssd: u32,
    /// The node that is to have it.
    pub node: u8,
    /// The vSSD whose place it is to take; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replaces: u32,
    /// It takes the place in a move, and no other set is concerned.
    #[serde(default, skip_serializing_if = "is_false")]
    pub moves: bool,
}

impl JoiningRecord {
    /// True if it restores a set's redundancy; else it takes a replica's place.
    pub fn heals(&self) -> bool {
        self.replaces == 0
    }

    /// True if it is part of an exchange.
    pub fn exchanges(&self) -> bool {
        !self.heals() && !self.moves
    }
}

/// Members of a set that were expelled, as they do not answer, and that the others have still to learn of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpellingRecord {
    /// Their numbers.
    pub vssds: Vec<u32>,
    /// One of them was the primary.
    pub was_primary: bool,
}

/// A vSSD that is a replica no more and is to be deleted ([`crate::exchange`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeavingRecord {
    /// The vSSD's number.
    pub vssd: u32,
    /// The node that has it.
    pub node: u8,
    /// It was the primary until now.
    pub was_primary: bool,
    /// It goes by itself: it has moved, or its set is to have fewer copies. Else it is part of an exchange.
    #[serde(default, skip_serializing_if = "is_false")]
    pub moves: bool,
    /// Its set is to have fewer copies, and nothing takes its place.
    #[serde(default, skip_serializing_if = "is_false")]
    pub surplus: bool,
    /// Of a surplus copy: the others have everything durably, so that it may be deleted. Before, it is still a member.
    #[serde(default, skip_serializing_if = "is_false")]
    pub secured: bool,
}

impl LeavingRecord {
    /// True if it is still a member, and is not deleted before the others have everything durably.
    pub fn may_stay(&self) -> bool {
        self.surplus && !self.secured
    }
}

/// Replicas of one part of a volume. The first is the primary: it orders the writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRecord {
    /// Its random identity, which no other set has; nil until a gateway of this version has stored the records.
    #[serde(default, skip_serializing_if = "Uuid::is_nil")]
    pub identity: Uuid,
    /// Pages of 4096 bytes that clients see of this set.
    pub pages: u32,
    /// Channels of each vSSD.
    pub channels: u32,
    /// Rows of units of each software-isolated vSSD in its channel group; 0 when its channels are its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rows: u32,
    /// The replicas.
    pub replicas: Vec<ReplicaRecord>,
    /// Changes of the members so far.
    #[serde(default)]
    pub generation: u32,
    /// A generation that every replica knows durably: one that knows only an earlier one has a medium of before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub settled: u32,
    /// A change that is being prepared, and is undone if it is not completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining: Option<JoiningRecord>,
    /// Work that a decided change has still to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<LeavingRecord>,
    /// Members that were expelled just now ([`crate::heal`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expelling: Option<ExpellingRecord>,
    /// Replicas that there should be, fewer or more than there are; 0 for as many as there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copies: u32,
    /// Members that were expelled. They are no part of the set, and may become one again while it lacks copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expelled: Vec<ReplicaRecord>,
    /// Those of them in whose place a node had something else when it was asked last. That is not this set's to delete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<u32>,
}

impl SetRecord {
    /// Every vSSD of the set and its node, also one that joins or leaves.
    pub fn vssds(&self) -> impl Iterator<Item = (VssdId, NodeId)> {
        let replicas = self.replicas.iter().map(|replica| (replica.vssd, replica.node));
        let joining = self.joining.iter().map(|joining| (joining.vssd, joining.node));
        let leaving = self.leaving.iter().map(|leaving| (leaving.vssd, leaving.node));
        let all = replicas.chain(joining).chain(leaving);
        all.map(|(vssd, node)| (VssdId(vssd), NodeId(node)))
    }

    /// Members that are lost are members no more. Nor is one that joins: it joins again when the others are settled. A surplus
    /// copy that may stay does.
    pub fn expel(&mut self, lost: &[u32]) {
        self.copies = self.wanted() as u32;
        let kept = self.leaving.take_if(|leaving| leaving.may_stay());
        let kept = kept.map(ReplicaRecord::from);
        self.replicas.extend(kept);
        let was_primary = lost.contains(&self.replicas[0].vssd);
        let (gone, stay) = self
            .replicas
            .iter()
            .partition(|replica: &&ReplicaRecord| lost.contains(&replica.vssd));
        self.expelled.extend::<Vec<ReplicaRecord>>(gone);
        self.replicas = stay;
        let mut lost = lost.to_vec();
        if let Some(JoiningRecord { vssd, node, .. }) = self.joining.take() {
            self.expelled.push(ReplicaRecord { vssd, node });
            lost.push(vssd);
        }
        self.note_expelled(&lost, was_primary);
    }

    /// A membership without these; one of them may have been the primary.
    pub fn note_expelled(&mut self, lost: &[u32], was_primary: bool) {
        let expelling = self.expelling.get_or_insert(ExpellingRecord {
            vssds: Vec::new(),
            was_primary: false,
        });
        expelling.vssds.extend(lost);
        expelling.was_primary |= was_primary;
        self.generation += 1;
    }

    /// The vSSDs that were expelled, and are the set's to delete.
    pub fn left_behind(&self) -> Vec<LeftRecord> {
        let is_safe = |left: &&ReplicaRecord| !self.identity.is_nil() || !self.strangers.contains(&left.vssd);
        self.expelled
            .iter()
            .filter(is_safe)
            .map(|left| self.left(*left))
            .collect()
    }

    /// All vSSDs of the set, which are to be deleted.
    pub fn all_left(&self) -> impl Iterator<Item = LeftRecord> {
        self.vssds().map(|member| self.left(member.into()))
    }

    /// A vSSD of the set that is to be deleted.
    pub fn left(&self, ReplicaRecord { vssd, node }: ReplicaRecord) -> LeftRecord {
        let set = self.identity;
        LeftRecord { vssd, node, set }
    }

    /// The joining vSSD takes the place that it was made for, and the one that has it leaves.
    ///
    /// # Panics
    /// If none joins, or it has no place.
    pub fn replace(&mut self) {
        let joining = self.joining.take().expect("one joins");
        let mut replicas = self.replicas.iter();
        let place = replicas.position(|replica| replica.vssd == joining.replaces);
        let place = place.expect("a record's own replica is replaced");
        let new = ReplicaRecord {
            vssd: joining.vssd,
            node: joining.node,
        };
        let old = core::mem::replace(&mut self.replicas[place], new);
        self.generation += 1;
        self.leaving = Some(LeavingRecord {
            vssd: old.vssd,
            node: old.node,
            was_primary: place == 0,
            moves: joining.moves,
            surplus: false,
            secured: false,
        });
    }

    /// Another vSSD takes the place of a replica of which nobody has ever served anything. Returns what is to be deleted.
    ///
    /// # Panics
    /// If the set does not have the replica.
    pub fn place_anew(&mut self, old: ReplicaRecord, new: ReplicaRecord) -> LeftRecord {
        let place = self.replicas.iter().position(|replica| *replica == old);
        self.replicas[place.expect("it is a replica of the set")] = new;
        self.generation += 1;
        self.left(old)
    }

    /// Replicas that there should be.
    pub fn wanted(&self) -> usize {
        match self.copies {
            0 => self.replicas.len(),
            copies => copies as usize,
        }
    }

    /// True if a vSSD joins it in an exchange.
    pub fn exchanges(&self) -> bool {
        self.joining.is_some_and(|joining| joining.exchanges())
    }

    /// True if a vSSD leaves it in an exchange.
    pub fn ends_exchange(&self) -> bool {
        self.leaving.is_some_and(|leaving| !leaving.moves)
    }

    /// True while its members change.
    pub fn is_changing(&self) -> bool {
        self.joining.is_some() || self.leaving.is_some() || self.expelling.is_some()
    }

    /// True if it has fewer replicas than it should have.
    pub fn lacks_copies(&self) -> bool {
        self.replicas.len() < self.wanted()
    }

    /// True if it has more replicas than it should have.
    pub fn has_surplus(&self) -> bool {
        self.replicas.len() > self.wanted()
    }

    /// True if it has all its replicas, and they do not change.
    pub fn is_whole(&self) -> bool {
        !self.lacks_copies() && !self.is_changing()
    }
}

fn is_zero(rows: &u32) -> bool {
    *rows == 0
}

fn is_untold(level: &u8) -> bool {
    *level == 0
}

fn is_nobody(node: &u8) -> bool {
    *node == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A volume: an ordered list of replica sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Its number, never used again.
    pub id: u32,
    /// Its random identity, which no other volume has; nil until a gateway of this version has stored the records.
    #[serde(default, skip_serializing_if = "Uuid::is_nil")]
    pub identity: Uuid,
    /// Its name, which clients use.
    pub name: String,
    /// Its size, a multiple of 512.
    pub size_bytes: u64,
    /// When writes are acknowledged.
    #[serde(default)]
    pub durability: Durability,
    /// Writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Every vSSD was made; a vSSD that is missing from now on has lost its data.
    #[serde(default)]
    pub ready: bool,
    /// The gateway that serves it, or did last; if unset, it is the rack's lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<LeadRecord>,
    /// Its replica sets, in the order of the volume's bytes.
    pub sets: Vec<SetRecord>,
}

impl VolumeRecord {
    /// The volume's number.
    pub fn volume(&self) -> VolumeId {
        VolumeId(self.id)
    }

    /// Every vSSD of the volume with its set and the node that has it.
    pub fn vssds(&self) -> impl Iterator<Item = (VssdId, NodeId, &SetRecord)> {
        self.sets
            .iter()
            .flat_map(|set| set.vssds().map(move |(vssd, node)| (vssd, node, set)))
    }
}

/// vSSDs that nodes make for a volume that is to grow. They are no part of it yet: nothing is in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthRecord {
    /// The volume's number.
    pub volume: u32,
    /// The sets that it is to get behind those it has.
    pub sets: Vec<SetRecord>,
}

/// A storage server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its number, 1 to 255.
    pub id: u8,
    /// IPv4 address and UDP port, `a.b.c.d:port`.
    pub addr: String,
}

/// A node that is to have no vSSD of a volume any more ([`crate::moves`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// The node.
    pub node: u8,
    /// The node that takes its place, if that has room; 0 for none.
    #[serde(default, skip_serializing_if = "is_nobody")]
    pub to: u8,
    /// The rack forgets the node when it has none.
    #[serde(default, skip_serializing_if = "is_false")]
    pub removes: bool,
}

/// The gateway that leads a volume, or the rack ([`crate::lead`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadRecord {
    /// Its IPv4 address and UDP port; empty when it gave the lead back.
    pub gateway: String,
    /// Its session: higher than that of any lead before.
    pub session: u32,
    /// The gateway that it gave the lead to; empty for any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub to: String,
}

impl LeadRecord {
    /// A gateway that leads in this session.
    pub fn new(gateway: Addr, session: u32) -> Self {
        Self {
            gateway: gateway.to_string(),
            session,
            to: String::new(),
        }
    }

    /// Given back, to this gateway if one is named.
    pub fn give_back(&mut self, to: Option<Addr>) {
        self.gateway.clear();
        self.to = to.map(|to| to.to_string()).unwrap_or_default();
    }

    /// True if this gateway leads, in whichever session.
    pub fn is_of(&self, gateway: Addr) -> bool {
        self.addr() == Some(gateway)
    }

    /// Address of the lead; `None` if it gave the lead back.
    pub fn addr(&self) -> Option<Addr> {
        parse_addr(&self.gateway)
    }
}

/// Volumes that one gateway is to lead, as two of their vSSDs are to exchange their nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatheringRecord {
    /// The gateway's IPv4 address and UDP port.
    pub gateway: String,
    /// The volumes' numbers.
    pub volumes: Vec<u32>,
}

/// A gateway of the rack. Its place in the list is its number, and stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRecord {
    /// IPv4 address and UDP port.
    pub addr: String,
    /// Its address for NVMe/TCP hosts, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<String>,
    /// Its address for NBD clients, if it has announced one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// Its control API.
    pub control: String,
    /// Its program; nothing of one that is older than levels are, or while such a one has stored the records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software: Option<Software>,
}

/// Everything the registry knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Grows with each change.
    pub epoch: u64,
    /// The rack's level ([`crate::level`]), if it was ever raised.
    #[serde(default, skip_serializing_if = "is_untold")]
    pub level: u8,
    /// The rack's own id, of no other rack.
    #[serde(default, skip_serializing_if = "Uuid::is_nil")]
    pub rack: Uuid,
    /// The next vSSD number.
    pub next_vssd: u32,
    /// The next volume number.
    pub next_volume: u32,
    /// The servers.
    #[serde(default)]
    pub nodes: Vec<NodeRecord>,
    /// The gateways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayRecord>,
    /// Which of them leads the rack, or did last: it creates volumes and changes nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<LeadRecord>,
    /// The highest session that any lead has had; 0 if the leads that there are tell it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub last_session: u32,
    /// Volumes that come to one gateway, for an exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gathering: Option<GatheringRecord>,
    /// The volumes.
    #[serde(default)]
    pub volumes: Vec<VolumeRecord>,
    /// Starts of each node, as they were last seen: one that counts fewer has a medium of before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub boots: BTreeMap<u8, u32>,
    /// vSSDs that are nobody's any more, on nodes that were away. They are deleted when their nodes answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<LeftRecord>,
    /// Sets that volumes are to grow by. A start deletes these vSSDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub growing: Vec<GrowthRecord>,
    /// Nodes that are being drained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drains: Vec<DrainRecord>,
    /// Numbers of nodes that the rack was told to forget. A gateway that is started with one of them leaves it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<u8>,
    /// Moves that free room may still be evened out with; 0 if it is not being evened out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rebalance_moves: u32,
    /// Numbers of volumes whose vSSDs are being deleted. A start goes on with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleting: Vec<u32>,
}

impl Snapshot {
    /// The rack's level.
    pub fn rack_level(&self) -> u8 {
        self.level.max(level::FIRST)
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Option<&VolumeRecord> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// The volume of this number.
    pub fn volume_of(&self, id: VolumeId) -> Option<&VolumeRecord> {
        self.volumes.iter().find(|volume| volume.volume() == id)
    }

    /// As [`volume_of`](Snapshot::volume_of), to change it.
    pub fn volume_mut(&mut self, id: VolumeId) -> Option<&mut VolumeRecord> {
        self.volumes.iter_mut().find(|volume| volume.volume() == id)
    }

    /// The lead of a volume: its own, or else the rack's.
    pub fn lead_of<'a>(&'a self, volume: &'a VolumeRecord) -> Option<&'a LeadRecord> {
        volume.lead.as_ref().or(self.lead.as_ref())
    }

    /// The gateway that leads a volume, if one does.
    pub fn leader_of(&self, volume: &VolumeRecord) -> Option<Addr> {
        self.lead_of(volume).and_then(LeadRecord::addr)
    }

    /// A gateway that leads something, if there is one.
    pub fn any_lead(&self) -> Option<&LeadRecord> {
        let volumes = self.volumes.iter().filter_map(|volume| volume.lead.as_ref());
        let mut leads = self.lead.iter().chain(volumes);
        leads.find(|lead| !lead.gateway.is_empty())
    }

    /// Nobody leads anything: whoever comes first may.
    pub fn give_back_leads(&mut self) {
        let volumes = self.volumes.iter_mut().filter_map(|volume| volume.lead.as_mut());
        volumes
            .chain(&mut self.lead)
            .for_each(|lead| lead.give_back(None));
        self.gathering = None;
    }

    /// The highest session that was given so far.
    pub fn session_max(&self) -> u32 {
        let leads = self.volumes.iter().filter_map(|volume| volume.lead.as_ref());
        let sessions = leads.chain(&self.lead).map(|lead| lead.session);
        sessions.fold(self.last_session, u32::max)
    }

    /// Gives out a session, higher than any before and not below `session_min`.
    pub fn next_session(&mut self, session_min: u32) -> u32 {
        self.last_session = self.session_max().saturating_add(1).max(session_min);
        self.last_session
    }

    /// True if a volume waits for an exchange.
    pub fn is_gathered(&self, id: VolumeId) -> bool {
        let gathering = self.gathering.as_ref();
        gathering.is_some_and(|gathering| gathering.volumes.contains(&id.0))
    }

    /// Sets that a volume is to grow by.
    pub fn growth_of(&self, id: VolumeId) -> Option<&GrowthRecord> {
        self.growing.iter().find(|growth| growth.volume == id.0)
    }

    /// Removes a volume whose vSSDs are deleted, but for the kept ones. These are left over, as are those that were expelled: they are on
    /// nodes that may be away.
    pub fn remove_volume(&mut self, id: VolumeId, kept: &[VssdId]) {
        let grown = self
            .growth_of(id)
            .map(|growth| &growth.sets[..])
            .unwrap_or_default();
        let made = self
            .volume_of(id)
            .map(|record| &record.sets[..])
            .unwrap_or_default();
        let sets = || made.iter().chain(grown);
        let of_set = |set: &SetRecord| {
            let all = set.all_left();
            let kept = all.filter(|left| kept.contains(&VssdId(left.vssd)));
            kept.chain(set.left_behind()).collect::<Vec<_>>()
        };
        let left: Vec<LeftRecord> = sets().flat_map(of_set).collect();
        self.leftovers.extend(left);
        self.volumes.retain(|volume| volume.id != id.0);
        self.growing.retain(|growth| growth.volume != id.0);
        self.deleting.retain(|deleting| *deleting != id.0);
    }

    /// The sets of volumes that were made, or are being deleted, with volume and index.
    pub fn made_sets(&self) -> impl Iterator<Item = (VolumeId, usize, &SetRecord)> {
        let is_made = |volume: &&VolumeRecord| volume.ready || self.is_deleting(volume.volume());
        self.volumes.iter().filter(is_made).flat_map(|volume| {
            let sets = volume.sets.iter().enumerate();
            sets.map(|(index, set)| (volume.volume(), index, set))
        })
    }

    /// True for a volume that is being deleted.
    pub fn is_deleting(&self, id: VolumeId) -> bool {
        self.deleting.contains(&id.0)
    }

    /// A volume's UUID, which no other volume of this or any other rack has.
    pub fn uuid_of(&self, volume: &VolumeRecord) -> Uuid {
        Uuid::new_v5(&self.rack, &volume.id.to_be_bytes())
    }

    /// Gives identities to volumes and sets that have none. `nonce` is random, and the caller's alone.
    pub fn identify(&mut self, nonce: Uuid) {
        for volume in &mut self.volumes {
            if volume.identity.is_nil() {
                volume.identity = Uuid::new_v5(&nonce, &volume.id.to_be_bytes());
            }
            let growing = self
                .growing
                .iter_mut()
                .filter(|growth| growth.volume == volume.id);
            let growing = growing.flat_map(|growth| &mut growth.sets);
            for set in volume.sets.iter_mut().chain(growing) {
                let first = set.replicas.first().map_or(0, |replica| replica.vssd);
                if set.identity.is_nil() {
                    set.identity = Uuid::new_v5(&volume.identity, &first.to_be_bytes());
                }
            }
        }
    }

    /// The volumes that clients see.
    pub fn served(&self) -> impl Iterator<Item = &VolumeRecord> {
        let shown = |volume: &&VolumeRecord| volume.ready && !self.is_deleting(volume.volume());
        self.volumes.iter().filter(shown)
    }
}

/// Why the registry refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// Somebody else changed it first.
    #[error("the registry changed meanwhile; try again")]
    Conflict,
    /// It could not be read or written.
    ///
    /// After a store this leaves open whether the records are stored, or will be: the caller reads again.
    #[error("the registry cannot be read or written: {0}")]
    Unavailable(String),
    /// It takes no such records: they are not stored, and will not be.
    #[error("the registry does not take the records: {0}")]
    Refused(String),
    /// Its records are older than those that it has told of.
    #[error(
        "the registry has the records of change {0}, and has told of change {1} before: an older copy was put in its place. Put the newer one \
         back; or stop all gateways and make it anew from the nodes by `switchyard registry rebuild --replace`"
    )]
    WentBack(u64, u64),
}

/// The store of the records.
pub trait Registry {
    /// The newest records.
    fn load(&self) -> Result<Snapshot, RegistryError>;
    /// Replaces the records durably if the stored epoch is still `snapshot.epoch`; stores `epoch + 1`.
    fn store(&mut self, snapshot: &Snapshot) -> Result<(), RegistryError>;
}

/// Reads `a.b.c.d:port`.
pub fn parse_addr(text: &str) -> Option<Addr> {
    let addr: core::net::SocketAddrV4 = text.parse().ok()?;
    Some(Addr::new(addr.ip().octets(), addr.port()))
}

/// The longest volume name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// True for a name that every frontend and shell takes as it is.
pub fn name_is_valid(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(allowed)
        && !name.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["demo", "db-1", "a.b_c"] {
            assert!(name_is_valid(name), "{name}");
        }
        for name in ["", "-x", "a b", "a/b", ".hidden", &"x".repeat(129)] {
            assert!(!name_is_valid(name), "{name}");
        }
    }

    #[test]
    fn addresses_are_ipv4_with_a_port() {
        assert_eq!(
            parse_addr("127.0.0.1:8888"),
            Some(Addr::new([127, 0, 0, 1], 8888))
        );
        for text in ["localhost:1", "127.0.0.1", "[::1]:8888", "1.2.3.4:99999"] {
            assert_eq!(parse_addr(text), None, "{text}");
        }
    }
}
