//! A registry that was lost is made again from what the nodes' superblocks say ([`crate::part`]).
//!
//! Only what is whole and of one mind makes records: whoever asks is told all that is missing or contradicts, and decides.
//!
//! Of a set's copies those of the newest generation tell who the members are. A write is complete when all members of a
//! generation have it. So each replica of the newest generation that was made durable has everything: it shares it with the others
//! when they meet, as after any start. A copy that joins, or that is of an earlier generation, need not.
//!
//! A change of the set was cut if there are such copies, or if members are not found. Then the replicas become a new generation, and the
//! other copies are expelled, as after the loss of a node ([`crate::heal`]).

use crate::control::Config;
use crate::inventory::Listed;
use crate::part::Part;
use crate::registry::{
    ExpellingRecord, LeadRecord, NodeRecord, ReplicaRecord, SetRecord, Snapshot, VolumeRecord,
};
use base::limits::PAGE_BYTES;
use base::{Addr, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use uuid::Uuid;

/// So many numbers of vSSDs are left out where those that were given out last are not known. A number that is used again would
/// show a new volume the data of an old one.
pub const VSSDS_SKIPPED: u32 = 100_000;
/// The same for volumes.
pub const VOLUMES_SKIPPED: u32 = 1000;

/// A node and its vSSDs.
#[derive(Clone, Debug)]
pub struct Found {
    /// The node.
    pub node: NodeId,
    /// Its address.
    pub addr: Addr,
    /// The number of its start.
    pub boot: u32,
    /// Its vSSDs.
    pub vssds: Vec<Listed>,
}

/// The gaps that the asker puts up with.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Copies may be missing where another one has everything.
    pub without_missing: bool,
    /// Names of volumes to leave out.
    pub left_out: Vec<String>,
}

/// Something that is missing, or contradicts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// Two of the addresses are one node's.
    #[error("node {0} answers at two addresses: name each node once")]
    NodeTwice(u8),
    /// A vSSD is there twice.
    #[error("vSSD {vssd} is on node {a} and on node {b}: one of their media is an image of the other")]
    VssdTwice {
        /// Its number.
        vssd: u32,
        /// A node.
        a: u8,
        /// Another one.
        b: u8,
    },
    /// A vSSD does not say what it is part of.
    #[error(
        "vSSD {vssd} on node {node} does not say which volume it is part of: no gateway of this version has opened it"
    )]
    Nameless {
        /// Its number.
        vssd: u32,
        /// Its node.
        node: u8,
    },
    /// Nothing is there.
    #[error("the nodes have no vSSDs of a rack")]
    Nothing,
    /// They are of several racks.
    #[error("the nodes have vSSDs of several racks: {}", list(.0))]
    Racks(Vec<Uuid>),
    /// Two volumes have one name or number, or one has two.
    #[error("the copies of volume `{0}` contradict each other about its name, number or kind")]
    Volume(String),
    /// Copies of a set do not agree.
    #[error("the copies of part {index} of volume `{volume}` contradict each other about {what}")]
    Set {
        /// The volume's name.
        volume: String,
        /// The set's place in it.
        index: u16,
        /// About what.
        what: &'static str,
    },
    /// A set is not there at all, or has no copy with everything.
    #[error("part {index} of volume `{volume}` has no copy that holds everything")]
    NoCopy {
        /// The volume's name.
        volume: String,
        /// The set's place in it.
        index: u16,
    },
    /// The last sets are not there.
    #[error("volume `{volume}` has {size_bytes} bytes, and its parts only {found_bytes}")]
    TooShort {
        /// The volume's name.
        volume: String,
        /// Its size.
        size_bytes: u64,
        /// The bytes of its sets.
        found_bytes: u64,
    },
    /// A member's node was not asked.
    #[error(
        "vSSD {vssd} of volume `{volume}` is on node {node}, which is not among the nodes that were named"
    )]
    NodeMissing {
        /// The volume's name.
        volume: String,
        /// The vSSD's number.
        vssd: u32,
        /// Its node.
        node: u8,
    },
    /// A member is not there, or cannot be read.
    #[error("vSSD {vssd} of volume `{volume}` is not on node {node}, or cannot be read there")]
    CopyMissing {
        /// The volume's name.
        volume: String,
        /// The vSSD's number.
        vssd: u32,
        /// Its node.
        node: u8,
    },
}

fn list(racks: &[Uuid]) -> String {
    let racks: Vec<String> = racks.iter().map(Uuid::to_string).collect();
    racks.join(", ")
}

/// One vSSD that says what it is.
#[derive(Clone, Debug)]
struct Copy {
    replica: ReplicaRecord,
    listed: Listed,
    config: Config,
    part: Part,
}

/// The records that the nodes' superblocks amount to.
///
/// # Errors
/// All that is missing or contradicts.
pub fn rebuild(nodes: &[Found], terms: &Terms) -> Result<Snapshot, Vec<Problem>> {
    let mut problems = Vec::new();
    let (copies, racks) = copies(nodes, terms, &mut problems);
    if racks.len() != 1 {
        problems.push(match racks.is_empty() {
            true => Problem::Nothing,
            false => Problem::Racks(racks.iter().copied().collect()),
        });
    }
    let mut by_volume: BTreeMap<(u32, Uuid), Vec<&Copy>> = BTreeMap::new();
    for copy in &copies {
        let volume = (copy.part.number, copy.part.volume);
        by_volume.entry(volume).or_default().push(copy);
    }
    let known: BTreeSet<u8> = nodes.iter().map(|found| found.node.0).collect();
    let mut volumes: Vec<VolumeRecord> = Vec::new();
    for copies in by_volume.values() {
        let volume = volume(copies, &known, terms, &mut problems);
        let is_other = |other: &VolumeRecord| {
            other.id != volume.id && other.name != volume.name && other.identity != volume.identity
        };
        if !volumes.iter().all(is_other) {
            problems.push(Problem::Volume(volume.name.clone()));
        }
        volumes.push(volume);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let vssds = nodes.iter().flat_map(|found| &found.vssds);
    let sessions = copies.iter().filter_map(|copy| copy.config.lead);
    let mut records: Vec<NodeRecord> = Vec::new();
    records.extend(nodes.iter().map(|found| NodeRecord {
        id: found.node.0,
        addr: found.addr.to_string(),
    }));
    records.sort_unstable_by_key(|node| node.id);
    let newest = volumes.iter().map(|volume| volume.id).max().unwrap_or(0);
    Ok(Snapshot {
        epoch: 1,
        rack: racks.into_iter().next().unwrap_or_default(),
        next_vssd: vssds.map(|listed| listed.vssd.0).max().unwrap_or(0) + VSSDS_SKIPPED,
        next_volume: newest + VOLUMES_SKIPPED,
        nodes: records,
        lead: Some(LeadRecord {
            gateway: String::new(),
            session: sessions.map(|lead| lead.session).max().unwrap_or(0),
            to: String::new(),
        }),
        volumes,
        boots: nodes.iter().map(|found| (found.node.0, found.boot)).collect(),
        ..Snapshot::default()
    })
}

/// The vSSDs that say what they are, and the racks that they belong to.
fn copies(nodes: &[Found], terms: &Terms, problems: &mut Vec<Problem>) -> (Vec<Copy>, BTreeSet<Uuid>) {
    let (mut copies, mut racks) = (Vec::new(), BTreeSet::new());
    let (mut seen, mut owners) = (BTreeSet::new(), BTreeMap::new());
    for found in nodes {
        let node = found.node.0;
        if !seen.insert(node) {
            problems.push(Problem::NodeTwice(node));
            continue;
        }
        for listed in &found.vssds {
            let vssd = listed.vssd.0;
            if let Some(a) = owners.insert(vssd, node) {
                problems.push(Problem::VssdTwice { vssd, a, b: node });
            }
            let config = Config::parse(&listed.config).filter(|config| !config.rack.is_nil());
            let Some((config, part)) = config.and_then(|config| Some((config.clone(), config.part?))) else {
                problems.push(Problem::Nameless { vssd, node });
                continue;
            };
            racks.insert(config.rack);
            if !terms.left_out.contains(&part.name) {
                copies.push(Copy {
                    replica: ReplicaRecord { vssd, node },
                    listed: listed.clone(),
                    config,
                    part,
                });
            }
        }
    }
    (copies, racks)
}

/// The record of the volume that these are copies of.
fn volume(
    copies: &[&Copy],
    nodes: &BTreeSet<u8>,
    terms: &Terms,
    problems: &mut Vec<Problem>,
) -> VolumeRecord {
    let first = &copies[0].part;
    let name = first.name.clone();
    let facts = |part: &Part| (part.name.clone(), part.durability, part.read_only);
    if copies.iter().any(|copy| facts(&copy.part) != facts(first)) {
        problems.push(Problem::Volume(name.clone()));
    }
    let last = copies.iter().map(|copy| copy.part.index).max().unwrap_or(0);
    let mut sets = Vec::new();
    for index in 0..=last {
        let of_set = copies.iter().filter(|copy| copy.part.index == index);
        let of_set: Vec<&Copy> = of_set.copied().collect();
        sets.extend(set(&name, index, &of_set, nodes, terms, problems));
    }
    let size_bytes = copies.iter().map(|copy| copy.part.size_bytes).max().unwrap_or(0);
    let pages: u64 = sets.iter().map(|set| u64::from(set.pages)).sum();
    let found_bytes = pages * PAGE_BYTES as u64;
    if found_bytes < size_bytes {
        problems.push(Problem::TooShort {
            volume: name.clone(),
            size_bytes,
            found_bytes,
        });
    }
    VolumeRecord {
        id: first.number,
        identity: first.volume,
        name,
        size_bytes,
        durability: first.durability,
        read_only: first.read_only,
        ready: true,
        lead: None,
        sets,
    }
}

/// Every member of the newest generation, by the copies that know it; `None` if these do not agree.
fn members(newest: &[&Copy]) -> Option<BTreeMap<u32, u8>> {
    let members = |copy: &&Copy| {
        let peers = copy.config.membership.peers.iter();
        let peers = peers.map(|peer| (peer.vssd.0, peer.node.0));
        peers
            .chain([(copy.replica.vssd, copy.replica.node)])
            .collect::<BTreeMap<_, _>>()
    };
    let first = members(newest.first()?);
    newest.iter().all(|copy| members(copy) == first).then_some(first)
}

/// The record of the set that these are copies of.
fn set(
    volume: &str,
    index: u16,
    copies: &[&Copy],
    nodes: &BTreeSet<u8>,
    terms: &Terms,
    problems: &mut Vec<Problem>,
) -> Option<SetRecord> {
    let volume = volume.to_owned();
    let generation_of = |copy: &&Copy| copy.config.membership.generation;
    let Some(generation) = copies.iter().map(generation_of).max() else {
        problems.push(Problem::NoCopy { volume, index });
        return None;
    };
    let newest = copies.iter().filter(|copy| generation_of(copy) == generation);
    let newest: Vec<&Copy> = newest.copied().collect();
    let first = newest[0];
    let shape = |copy: &Copy| (copy.listed.pages, copy.listed.channels, copy.listed.rows);
    let what = if copies.iter().any(|copy| copy.part.set != first.part.set) {
        Some("which part it is")
    } else if copies.iter().any(|copy| shape(copy) != shape(first)) {
        Some("its size or shape")
    } else {
        None
    };
    let members = match (what, members(&newest)) {
        (None, Some(members)) => members,
        (what, _) => {
            let what = what.unwrap_or("who has a copy");
            problems.push(Problem::Set { volume, index, what });
            return None;
        }
    };
    let is_full = |copy: &&&Copy| {
        let is_member = members.contains_key(&copy.replica.vssd);
        is_member && copy.part.place.is_some() && !copy.listed.is_unreadable
    };
    let mut full: Vec<&Copy> = copies.iter().filter(is_full).copied().collect();
    full.sort_by_key(|copy| (generation_of(copy) < generation, copy.part.place));
    let here: BTreeSet<u32> = copies
        .iter()
        .filter(|copy| !copy.listed.is_unreadable)
        .map(|copy| copy.replica.vssd)
        .collect();
    let missing = members.iter().filter(|(vssd, _)| !here.contains(vssd));
    let missing: Vec<(u32, u8)> = missing.map(|(&vssd, &node)| (vssd, node)).collect();
    for &(vssd, node) in missing.iter().filter(|_| !terms.without_missing) {
        let volume = volume.clone();
        problems.push(match nodes.contains(&node) {
            true => Problem::CopyMissing { volume, vssd, node },
            false => Problem::NodeMissing { volume, vssd, node },
        });
    }
    if full.iter().all(|copy| generation_of(copy) < generation) {
        problems.push(Problem::NoCopy { volume, index });
        return None;
    }
    Some(record(generation, first, copies, &full, &missing))
}

fn record(
    generation: u32,
    first: &Copy,
    copies: &[&Copy],
    full: &[&Copy],
    missing: &[(u32, u8)],
) -> SetRecord {
    let replicas: Vec<ReplicaRecord> = full.iter().map(|copy| copy.replica).collect();
    let others = copies.iter().map(|copy| copy.replica);
    let others: Vec<ReplicaRecord> = others.filter(|other| !replicas.contains(other)).collect();
    let wanted = u32::from(first.part.copies);
    let mut set = SetRecord {
        identity: first.part.set,
        pages: first.listed.pages,
        channels: u32::from(first.listed.channels),
        rows: u32::from(first.listed.rows),
        copies: if wanted as usize == replicas.len() {
            0
        } else {
            wanted
        },
        replicas,
        generation,
        ..SetRecord::default()
    };
    let knows = |copy: &&&Copy| copy.config.membership.generation == generation;
    if others.is_empty() && missing.is_empty() && full.iter().filter(knows).count() == full.len() {
        return set;
    }
    let lost = others.iter().map(|other| other.vssd);
    let lost: BTreeSet<u32> = lost.chain(missing.iter().map(|&(vssd, _)| vssd)).collect();
    set.generation += 1;
    set.expelling = Some(ExpellingRecord {
        vssds: lost.into_iter().collect(),
        // Which of them it was is not known: the first of the others makes sure that it has what that one has begun.
        was_primary: true,
    });
    set.expelled = others;
    set
}
