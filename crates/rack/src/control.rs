//! Control records between gateway and node. Layouts: `docs/format/rack-packet.md`.

use crate::level::Software;
use crate::membership::{GENERATION_BYTES, MEMBER_BYTES, Membership};
use crate::part::{self, Part, mark_of};
use base::{Addr, NodeId, Version};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wire::rack::Code;

/// The wish for a vSSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Serve; answered when it does. One that does not exist is an error, as its data is gone.
    Serve,
    /// Serve, and be made first if it does not exist.
    Create,
    /// Be made if it does not exist; answered when that is durable, whether it serves or not.
    Prepare,
    /// Serve, and join once more if this is how the membership is learnt: for the replica that is to coordinate from now
    /// on, in place of another one.
    TakeOver,
}

impl Intent {
    const ALL: [Self; 4] = [Self::Serve, Self::Create, Self::Prepare, Self::TakeOver];

    /// True if a missing vSSD is made.
    pub const fn creates(self) -> bool {
        matches!(self, Self::Create | Self::Prepare)
    }
}

/// Content of an `open` packet: make sure that the vSSD exists, with these peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The wish.
    pub intent: Intent,
    /// The rack's own id ([`crate::registry::Snapshot::rack`]); nil if it has none.
    pub rack: Uuid,
    /// Pages that it exposes.
    pub pages: u32,
    /// Channels that it takes.
    pub channels: u32,
    /// Rows of units that it takes of a channel group of so many channels, 0 for channels of its own; below 2¹⁶.
    pub rows: u32,
    /// The other replicas.
    pub membership: Membership,
    /// The terms on which the vSSD takes the membership.
    pub terms: Terms,
    /// The part of a volume that it has a copy of, if the volume has an identity.
    pub part: Option<Part>,
}

/// How a member takes a membership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// A member was expelled, and may read until its leases have lapsed: no write is complete before.
    pub expels: bool,
    /// The vSSD joins the others, and what it had before counts for nothing ([`crate::replica::Replica::yield_all`]).
    pub yields: bool,
}

impl Terms {
    const EXPELS: u8 = 1;
    const YIELDS: u8 = 2;

    fn to_byte(self) -> u8 {
        (u8::from(self.expels) * Self::EXPELS) | (u8::from(self.yields) * Self::YIELDS)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        let known = byte & !(Self::EXPELS | Self::YIELDS) == 0;
        known.then_some(Self {
            expels: byte & Self::EXPELS != 0,
            yields: byte & Self::YIELDS != 0,
        })
    }
}

/// A bit of the intent: the rack's id follows.
const RACK_BIT: u8 = 0x80;
/// A bit of the intent: the terms follow.
const TERMS_BIT: u8 = 0x40;
/// A bit of the intent: the part of the volume follows.
const PART_BIT: u8 = 0x20;
const RACK_BYTES: usize = 16;
/// Begins a vSSD's facts in a superblock that have the rack's id. Facts without it begin with a generation or a number, which are small.
const CONFIG_TAG: [u8; 2] = [0xff, 1];
/// As [`CONFIG_TAG`], with terms behind the rack's id.
const CONFIG_TERMS_TAG: [u8; 2] = [0xff, 2];
/// As [`CONFIG_TERMS_TAG`], with the node and the part of the volume behind the terms. Since version 3 of the flash format all
/// that is written has it.
const CONFIG_PART_TAG: [u8; 2] = [0xff, 3];
/// Place of the rows in the number of channels: a node that does not know rows has too few channels.
const ROWS_SHIFT: u32 = 16;

impl Open {
    /// The record's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![self.intent as u8];
        if !self.rack.is_nil() {
            bytes[0] |= RACK_BIT;
            bytes.extend_from_slice(self.rack.as_bytes());
        }
        if self.terms != Terms::default() {
            bytes[0] |= TERMS_BIT;
            bytes.push(self.terms.to_byte());
        }
        if let Some(part) = &self.part {
            bytes[0] |= PART_BIT;
            bytes.extend(part.emit());
        }
        bytes.extend_from_slice(&self.pages.to_be_bytes());
        let channels = self.rows << ROWS_SHIFT | self.channels;
        bytes.extend_from_slice(&channels.to_be_bytes());
        bytes.extend_from_slice(&self.membership.emit());
        bytes
    }

    /// Reads a record, `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (intent, rest) = bytes.split_first()?;
        let (rack, rest) = match intent & RACK_BIT {
            0 => (Uuid::nil(), rest),
            _ => take_rack(rest)?,
        };
        let (terms, rest) = match intent & TERMS_BIT {
            0 => (Terms::default(), rest),
            _ => take_terms(rest)?,
        };
        let (part, rest) = match intent & PART_BIT {
            0 => (None, rest),
            _ => take_part(rest)?,
        };
        let (pages, rest) = rest.split_first_chunk()?;
        let (channels, rest) = rest.split_first_chunk()?;
        Some(Self {
            intent: *Intent::ALL.get(usize::from(*intent & !(RACK_BIT | TERMS_BIT | PART_BIT)))?,
            rack,
            pages: u32::from_be_bytes(*pages),
            channels: u32::from_be_bytes(*channels) & ((1 << ROWS_SHIFT) - 1),
            rows: u32::from_be_bytes(*channels) >> ROWS_SHIFT,
            membership: Membership::parse(rest)?,
            terms,
            part,
        })
    }
}

/// The record of a deletion: whose vSSD it is to be. Nothing if the rack has no id.
pub fn emit_rack(rack: Uuid) -> Vec<u8> {
    match rack.is_nil() {
        true => Vec::new(),
        false => rack.as_bytes().to_vec(),
    }
}

/// Reads what [`emit_rack`] wrote; nil if there is nothing.
pub fn parse_rack(bytes: &[u8]) -> Uuid {
    take_rack(bytes).map_or(Uuid::nil(), |(rack, _)| rack)
}

fn take_rack(bytes: &[u8]) -> Option<(Uuid, &[u8])> {
    let (rack, rest) = bytes.split_first_chunk::<RACK_BYTES>()?;
    Some((Uuid::from_bytes(*rack), rest))
}

fn take_terms(bytes: &[u8]) -> Option<(Terms, &[u8])> {
    let (terms, rest) = bytes.split_first()?;
    Some((Terms::from_byte(*terms)?, rest))
}

fn take_part(bytes: &[u8]) -> Option<(Option<Part>, &[u8])> {
    let (part, rest) = Part::take(bytes)?;
    Some((Some(part), rest))
}

/// The gateway that has a vSSD: nobody with a lower session changes it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// Its place.
    pub addr: Addr,
    /// Its session when it came to have it; that of a later start at the same address is higher.
    pub session: u32,
}

const LEAD_BYTES: usize = 10;

/// Facts about a vSSD in its node's superblock, beyond its shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The rack that it belongs to; nil if that has no id, or is of an earlier version.
    pub rack: Uuid,
    /// The other replicas.
    pub membership: Membership,
    /// The gateway that has it, if known.
    pub lead: Option<Lead>,
    /// How it took the membership, as far as that is not over.
    pub terms: Terms,
    /// The node that has it, if known: a medium that is in another node's place is noticed.
    pub node: Option<NodeId>,
    /// The part of a volume that it has a copy of, if known.
    pub part: Option<Part>,
}

impl Config {
    /// True if the vSSD belongs to another rack than this one.
    pub fn is_foreign_to(&self, rack: Uuid) -> bool {
        !self.rack.is_nil() && !rack.is_nil() && self.rack != rack
    }

    /// The mark of the set that the vSSD is part of.
    pub fn mark(&self) -> u32 {
        self.part.as_ref().map_or(0, |part| mark_of(part.set))
    }

    /// True if the vSSD is part of another set than the one that it is opened for.
    pub fn is_of_other_set(&self, open: &Open) -> bool {
        let parts = self.part.as_ref().zip(open.part.as_ref());
        parts.is_some_and(|(held, asked)| !held.is_of_same_set(asked))
    }

    /// The vSSD belongs to what it is opened for, as far as that is not known. True if that is new.
    pub fn claim(&mut self, open: &Open, node: NodeId) -> bool {
        let known = |config: &Self| (config.rack, config.node, config.part.is_some());
        let before = known(self);
        if self.rack.is_nil() {
            self.rack = open.rack;
        }
        self.node.get_or_insert(node);
        if self.part.is_none() {
            self.part.clone_from(&open.part);
        }
        before != known(self)
    }

    /// Why it is not what the version field of a request names.
    pub fn refusal(&self, version: Version) -> Option<Code> {
        part::refusal(version, self.mark(), self.membership.generation)
    }

    /// Why it cannot be opened so. The version field names the generation that all members knew; what yields to others may be of before.
    pub fn refusal_of_open(&self, settled: Version, open: &Open) -> Option<Code> {
        let is_before = u64::from(self.membership.generation) < settled.0;
        match self.is_of_other_set(open) {
            true => Some(Code::OtherSet),
            false => (is_before && !open.terms.yields).then_some(Code::Past),
        }
    }

    /// Takes the part as the gateway tells it: the size, or the place of the vSSD, may have changed. True if it has.
    pub fn note_part(&mut self, open: &Open) -> bool {
        let is_new = open.part.is_some() && self.part != open.part;
        if is_new {
            self.part.clone_from(&open.part);
        }
        is_new
    }

    /// The members are others from now on. A gateway that does not tell the part leaves open which place the vSSD has among them.
    pub fn change_part(&mut self, open: &Open) {
        self.note_part(open);
        if let Some(part) = self.part.as_mut().filter(|_| open.part.is_none()) {
            part.place = None;
        }
    }

    /// True if it is the first replica of its set, which orders the set's writes.
    pub fn is_first(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.place == Some(0))
    }

    /// As the superblock keeps it, at most 246 bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = CONFIG_PART_TAG.to_vec();
        bytes.extend_from_slice(self.rack.as_bytes());
        bytes.extend([self.terms.to_byte(), self.node.map_or(0, |node| node.0)]);
        bytes.push(u8::from(self.part.is_some()));
        bytes.extend(self.part.iter().flat_map(Part::emit));
        bytes.extend(self.membership.emit());
        if let Some(lead) = self.lead {
            bytes.extend_from_slice(&lead.addr.ip.to_be_bytes());
            bytes.extend_from_slice(&lead.addr.port.to_be_bytes());
            bytes.extend_from_slice(&lead.session.to_be_bytes());
        }
        bytes
    }

    /// Reads what [`emit`](Config::emit) wrote, in this version or in an earlier one; `None` if it is malformed. The length tells
    /// whether there is a [`Lead`].
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut config = Self::default();
        let mut rest = bytes;
        if let Some(tagged) = bytes.strip_prefix(&CONFIG_PART_TAG) {
            (config.rack, rest) = take_rack(tagged)?;
            (config.terms, rest) = take_terms(rest)?;
            let ([node, has_part], tail) = rest.split_first_chunk()?;
            config.node = (*node > 0).then_some(NodeId(*node));
            (config.part, rest) = match has_part {
                0 => (None, tail),
                1 => take_part(tail)?,
                _ => return None,
            };
        } else if let Some(tagged) = bytes.strip_prefix(&CONFIG_TERMS_TAG) {
            (config.rack, rest) = take_rack(tagged)?;
            (config.terms, rest) = take_terms(rest)?;
        } else if let Some(tagged) = bytes.strip_prefix(&CONFIG_TAG) {
            (config.rack, rest) = take_rack(tagged)?;
        }
        let with_lead = [LEAD_BYTES, (LEAD_BYTES + GENERATION_BYTES) % MEMBER_BYTES];
        if with_lead.contains(&(rest.len() % MEMBER_BYTES)) {
            let (membership, lead) = rest.split_last_chunk::<LEAD_BYTES>()?;
            let [a, b, c, d, port_high, port_low, session @ ..] = *lead;
            config.lead = Some(Lead {
                addr: Addr::new([a, b, c, d], u16::from_be_bytes([port_high, port_low])),
                session: u32::from_be_bytes(session),
            });
            rest = membership;
        }
        config.membership = Membership::parse(rest)?;
        Some(config)
    }
}

/// A node's answer to a `status` packet, as JSON: it is for people and the placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's number.
    pub node: u8,
    /// The number of the node's start, higher than any before: seconds since 1970.
    pub boot: u32,
    /// That of the start before, by the node's medium.
    #[serde(default)]
    pub boot_before: Option<u32>,
    /// Its program, and the levels that it knows; nothing of one that is older than levels are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software: Option<Software>,
    /// Channels of its SSD.
    pub channels: u32,
    /// Channels that no vSSD has.
    pub free_channels: u32,
    /// Pages that a vSSD may expose for each of its channels.
    pub pages_per_channel: u32,
    /// Channels that software-isolated vSSDs share; 0 of a node of an earlier version, where they share all.
    #[serde(default)]
    pub group_channels: u32,
    /// Neighbouring rows of units that are free in a group of so many channels.
    #[serde(default)]
    pub free_rows: u32,
    /// Pages that such a vSSD may expose for each of its rows.
    #[serde(default)]
    pub pages_per_row: u32,
    /// vSSDs here.
    pub vssds: u32,
    /// vSSDs of these that serve clients.
    pub serving: u32,
    /// vSSDs of these that collect garbage now.
    pub collecting: u32,
    /// vSSDs of these that refuse writes after a media failure.
    pub latched: u32,
    /// The racks that its vSSDs belong to: one, unless the node came from another rack, or the registry was lost.
    #[serde(default)]
    pub racks: Vec<Uuid>,
    /// vSSDs beside these that cannot be read, and are not served.
    #[serde(default)]
    pub unreadable: u32,
    /// The gateway of the highest session that has asked how the node is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<LeadSeen>,
    /// The gateways that have asked how the node is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<LeadSeen>,
    /// Which vSSDs these are; `None` if they are too many for a packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roll: Option<Roll>,
    /// Some of them, if they are too many for a packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roll_part: Option<RollPart>,
    /// Reads answered.
    pub reads: u64,
    /// Writes answered as coordinator.
    pub writes: u64,
    /// Pages in the write caches.
    pub dirty_pages: u64,
    /// Pages programmed, by clients' writes and by collection.
    pub programs: u64,
    /// Pages programmed for clients' writes alone.
    pub user_programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// How long other nodes take to acknowledge its writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledged: Vec<Acknowledged>,
    /// Pages found damaged.
    pub damaged_pages: u64,
    /// Damaged pages that a peer has sent anew.
    #[serde(default)]
    pub repaired_pages: u64,
    /// Pages compared with a peer.
    #[serde(default)]
    pub compared_pages: u64,
    /// Pages that a peer had otherwise; they are settled.
    #[serde(default)]
    pub differed_pages: u64,
    /// Pages that the node has read by itself, to see whether they are intact.
    #[serde(default)]
    pub scrubbed_pages: u64,
    /// Whole passes over all its pages.
    #[serde(default)]
    pub scrubs: u64,
    /// Seconds since the last one was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrubbed_ago_s: Option<u64>,
    /// Pages given to members that join, or taken as one.
    #[serde(default)]
    pub copied_pages: u64,
    /// Some of the vSSDs here that take copies of what other members have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copying: Vec<Copying>,
    /// The lowest share of free blocks of any vSSD here.
    pub free_ratio_min: f64,
    /// Mean erases of a block of the vSSDs here: their wear.
    #[serde(default)]
    pub erase_count_mean: f64,
}

/// True if what is known to belong to racks belongs to others than this one.
pub fn is_of_other_rack(racks: &[Uuid], rack: Uuid) -> bool {
    !rack.is_nil() && !racks.is_empty() && !racks.contains(&rack)
}

impl NodeStatus {
    /// True if all that the node has belongs to other racks than this one: its medium is from elsewhere.
    pub fn is_of_other_rack(&self, rack: Uuid) -> bool {
        is_of_other_rack(&self.racks, rack)
    }

    /// Its program.
    pub fn software(&self) -> Software {
        self.software.clone().unwrap_or_else(Software::untold)
    }

    /// Channels of a set of software-isolated vSSDs here.
    pub fn shared_channels(&self) -> u32 {
        match self.group_channels {
            0 => self.channels,
            channels => channels,
        }
    }
}

/// How far a vSSD is that takes a copy of what other members of its set have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// Its number.
    pub vssd: u32,
    /// Pages of which it has what the others have.
    pub pages_done: u32,
    /// All its pages.
    pub pages: u32,
    /// Milliseconds since it began.
    pub ms: u64,
}

impl Copying {
    /// Seconds until all is done, if it goes on as until now; `None` while that cannot be told.
    pub fn seconds_left(&self) -> Option<u64> {
        let (done, left) = (
            u64::from(self.pages_done),
            u64::from(self.pages - self.pages_done.min(self.pages)),
        );
        (self.ms * left).checked_div(done * 1000)
    }
}

/// How long a node takes to acknowledge another one's writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The node.
    pub node: u8,
    /// The median of the last window ([`crate::slow`]), in µs.
    pub median_us: u64,
    /// The number of that window.
    pub window: u64,
}

/// A gateway as a node has seen it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadSeen {
    /// Its IPv4 address and UDP port.
    pub gateway: String,
    /// Its session.
    pub session: u32,
    /// Milliseconds since the node heard it.
    pub ago_ms: u64,
}

/// The vSSDs of a node, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roll {
    /// All.
    pub here: Vec<u32>,
    /// Those of them that do not serve yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joining: Vec<u32>,
    /// The generations of the memberships that these know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generations: Vec<(u32, u32)>,
    /// Those that take no write: their medium has failed, or they cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<u32>,
    /// Those that hear nothing of a peer, and which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<(u32, u32)>,
}

/// Some of the vSSDs of a node, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollPart {
    /// They are.
    pub roll: Roll,
    /// The number from which on the node was asked.
    pub from: u32,
    /// The number from which on there are more; 0 if there are not.
    pub next: u32,
}

impl Roll {
    /// Adds what another part tells.
    pub fn extend(&mut self, other: Self) {
        self.here.extend(other.here);
        self.joining.extend(other.joining);
        self.generations.extend(other.generations);
        self.failed.extend(other.failed);
        self.unheard.extend(other.unheard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Member, PEERS_MAX};
    use crate::registry::Durability;
    use base::VssdId;

    fn part(name: &str, size_bytes: u64) -> Part {
        Part {
            volume: Uuid::from_u128(5),
            set: Uuid::from_u128(6),
            number: 7,
            name: name.to_owned(),
            size_bytes,
            durability: Durability::Media,
            read_only: size_bytes > 1,
            index: 8,
            place: (size_bytes > 1).then_some(2),
            copies: 3,
        }
    }

    #[test]
    fn records_survive_the_wire_and_junk_is_refused() {
        let peer = Member {
            vssd: VssdId(7),
            node: NodeId(2),
            addr: Addr::new([10, 0, 0, 2], 8888),
        };
        for peers in [vec![], vec![peer], vec![peer; PEERS_MAX]] {
            for (generation, intent) in [0, 1, u32::MAX].into_iter().zip(Intent::ALL) {
                let rack = Uuid::from_u128(u128::from(generation) << 99);
                let open = Open {
                    intent,
                    rack,
                    pages: 77,
                    channels: 3,
                    rows: 5,
                    membership: Membership {
                        generation,
                        peers: peers.clone(),
                    },
                    terms: Terms {
                        expels: generation > 1,
                        yields: generation == 1,
                    },
                    part: (generation > 0).then(|| part("db", 1)),
                };
                assert_eq!(Open::parse(&open.emit()), Some(open));
            }
        }
        for (peers, generation) in [
            (0, 0),
            (1, 0),
            (PEERS_MAX, 0),
            (0, 5),
            (2, 7),
            (PEERS_MAX, u32::MAX),
        ] {
            let membership = Membership {
                generation,
                peers: vec![peer; peers],
            };
            let lead = Lead {
                addr: Addr::new([10, 0, 2, 1], 8888),
                session: 77,
            };
            for (lead, rack) in [(None, 0), (Some(lead), 0), (None, 9), (Some(lead), u128::MAX)] {
                for (yields, name) in [(false, None), (true, Some("")), (false, Some(&*"n".repeat(128)))] {
                    let config = Config {
                        rack: Uuid::from_u128(rack),
                        membership: membership.clone(),
                        lead,
                        terms: Terms {
                            expels: false,
                            yields,
                        },
                        node: yields.then_some(NodeId(255)),
                        part: name.map(|name| part(name, u64::MAX)),
                    };
                    assert!(config.emit().len() <= 246, "a superblock's entry has room");
                    assert_eq!(Config::parse(&config.emit()), Some(config));
                }
            }
        }
        assert_eq!(Config::parse(&[0; 5]), None);
        assert_eq!(Config::parse(&CONFIG_TAG), None);
        assert_eq!(Open::parse(&[]), None);
        assert_eq!(Open::parse(&[4, 0, 0, 0, 1, 0, 0, 0, 1]), None);
        assert_eq!(Membership::parse(&[0; 10]), None);
        assert_eq!(Membership::parse(&[0; 44]), None, "more peers than a set has");
    }
}
