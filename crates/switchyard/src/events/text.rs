//! What an event means, in a sentence for people.

use base::event::{
    Answers, AreaRefusal, Collection, Grant, Kind, Lapse, Lead, Look, MediumOperation, Metadata, Obstacle,
    Refusal, RegistryTrouble, Wait,
};
use core::cmp::Ordering;
use std::time::Duration;

/// One sentence.
pub fn sentence(kind: &Kind) -> String {
    switch(kind)
        .or_else(|| node(kind))
        .or_else(|| vssd(kind))
        .or_else(|| pages(kind))
        .or_else(|| gateway(kind))
        .or_else(|| control(kind))
        .or_else(|| nodes(kind))
        .or_else(|| volume(kind))
        .or_else(|| areas(kind))
        .or_else(|| client(kind))
        .unwrap_or_else(|| kind.name().to_owned())
}

fn brought_by(level: u32) -> &'static str {
    rack::level::brought_by(u8::try_from(level).unwrap_or(u8::MAX))
}

/// A time in the unit that a person would choose.
fn time(time: Duration) -> String {
    match time.as_nanos() {
        0..1_000 => format!("{} ns", time.as_nanos()),
        1_000..1_000_000 => format!("{} µs", time.as_micros()),
        1_000_000..1_000_000_000 => format!("{} ms", time.as_millis()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

const fn collection(collection: Collection) -> &'static str {
    match collection {
        Collection::Soft => "soft",
        Collection::Regular => "regular",
        Collection::Background => "background",
    }
}

/// What a ToR or a controller tells.
fn switch(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::VssdRegistered { vssd, server } => {
            format!("The switch learnt of vSSD {} on {server}.", vssd.0)
        }
        Kind::VssdUnregistered { vssd, server } => {
            format!(
                "The switch has no room for vSSD {} on {server}: its tables are full.",
                vssd.0
            )
        }
        Kind::VssdContested { vssd, server } => format!(
            "{server} says to have vSSD {}, which another server has: no packet goes there. Its medium is from elsewhere.",
            vssd.0
        ),
        Kind::LeaseGranted { vssd, collection: of } => format!(
            "vSSD {} holds the lease of its GC bit for a {} collection; reads go to its replica.",
            vssd.0,
            collection(of)
        ),
        Kind::LeaseRenewed { vssd } => format!("vSSD {} goes on collecting and renews its lease.", vssd.0),
        Kind::LeaseEnded { vssd, held } => {
            format!("vSSD {} gave its lease back after {}.", vssd.0, time(held))
        }
        Kind::LeaseLapsed {
            vssd,
            server,
            why,
            held,
        } => {
            let why = match why {
                Lapse::NodeSilent => {
                    format!("the node {server} has sent nothing since: it is dead, stopped or cut off")
                }
                Lapse::NodeRestarted => format!("the node {server} started anew while the vSSD collected"),
                Lapse::FinishLate => format!("the node {server} said too late that it is done"),
                Lapse::RenewalLate => format!("the node {server} renewed it too late and still collects"),
                Lapse::FinishLost => {
                    format!("the node {server} lives and collects no more: its last word was lost")
                }
            };
            format!(
                "The lease of vSSD {} lapsed {} after it was granted: {why}.",
                vssd.0,
                time(held)
            )
        }
        Kind::CollectionDelayed { vssd, why } => {
            let why = match why {
                Obstacle::Collects => "its replica collects",
                Obstacle::Unknown => "the switch does not know yet whether its replica collects",
                Obstacle::Elsewhere => "the other switch decides, or will soon",
            };
            format!("vSSD {} has to wait with its collection: {why}.", vssd.0)
        }
        _ => return None,
    })
}

/// What a node tells of itself and of replicas.
fn node(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::NodeStarted { node, boot, vssds } => {
            format!("Node {} is up with {vssds} vSSDs, as start {boot}.", node.0)
        }
        Kind::NodeStopping { node } => format!("Node {} writes back and stops.", node.0),
        Kind::VssdCreated { vssd, pages } => format!("vSSD {} was made, with {pages} pages.", vssd.0),
        Kind::VssdUnreadable { vssd, offset } => format!(
            "The metadata of vSSD {} cannot be read, from byte {offset} of the medium on: it is not served.",
            vssd.0
        ),
        Kind::VssdClosed { vssd } => format!("vSSD {} was deleted.", vssd.0),
        Kind::ReplicaServing { vssd, epoch } => format!(
            "vSSD {} holds everything that its peers hold, and serves in epoch {epoch:08x}.",
            vssd.0
        ),
        Kind::MemberGreeted { vssd, peer, boot } => format!(
            "vSSD {} met its peer {} of start {boot}: a new epoch begins.",
            vssd.0, peer.0
        ),
        Kind::MemberLost { vssd, peer, waited } => format!(
            "vSSD {} waits for its peer {}, which has answered nothing for {}; writes wait, too.",
            vssd.0,
            peer.0,
            time(waited)
        ),
        Kind::MemberUnmet { vssd, peer, waited } => format!(
            "vSSD {} does not serve yet: its peer {} has answered nothing for {}. Nothing waits for a copy that the rack has given up, or \
             whose medium is from elsewhere.",
            vssd.0,
            peer.0,
            time(waited)
        ),
        Kind::MemberBack { vssd, peer } => format!("The peer {} of vSSD {} answers again.", peer.0, vssd.0),
        Kind::MembersChanged {
            vssd,
            generation,
            members,
        } => format!(
            "The replica set of vSSD {} has {members} members from generation {generation} on.",
            vssd.0
        ),
        _ => return None,
    })
}

/// What a node or a disk tells of one vSSD.
fn vssd(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::CollectionBegun {
            vssd,
            collection: of,
            grant,
        } => {
            let leave = match grant {
                Grant::Accepted => "the switch accepted",
                Grant::Unanswered => "the switch did not answer, and it cannot wait",
                Grant::Unasked => "nobody has to be asked",
                Grant::Forced => "no free block was left",
            };
            format!("vSSD {} begins a {} collection: {leave}.", vssd.0, collection(of))
        }
        Kind::CollectionEnded {
            vssd,
            took,
            moved,
            erased,
        } => format!(
            "vSSD {} collected for {}: it moved {moved} pages and erased {erased} blocks.",
            vssd.0,
            time(took)
        ),
        Kind::SwitchSilent { vssd, asked } => {
            format!(
                "The switch answered none of {asked} requests of vSSD {} to collect.",
                vssd.0
            )
        }
        Kind::TorSilent { tor, silent } => format!(
            "The ToR {tor} has not answered for {}, or has just started: packets go by the other one, if there are two.",
            time(silent)
        ),
        Kind::TorBack { tor, away } => {
            format!("The ToR {tor} answers again, after {}.", time(away))
        }
        Kind::PathNarrow { to, mtu, parts } => format!(
            "The path to {to} has an MTU of {mtu} bytes: a page goes in {parts} datagrams. Jumbo frames would take it in one."
        ),
        Kind::MediumLatched { vssd, operation } => {
            let operation = match operation {
                MediumOperation::Write => "a write failed",
                MediumOperation::Flush => "a flush failed",
                MediumOperation::Superblock => "its superblock could not be written",
                MediumOperation::Read => "a read failed",
            };
            format!(
                "The medium of vSSD {} takes no more writes before the next start: {operation}.",
                vssd.0
            )
        }
        Kind::MediumSilent { operation } => {
            format!(
                "The medium does not answer: {} was given up at the deadline.",
                operation_of(operation)
            )
        }
        _ => return None,
    })
}

/// What a vSSD tells of damaged pages, and of those that its peers have otherwise.
fn pages(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::PageDamaged { vssd, page, found } => {
            let how = match found {
                Look::Read => "",
                Look::Scrub => ", as the node found by itself",
            };
            format!(
                "Page {page} of vSSD {} cannot be read{how}; it is fetched from a peer.",
                vssd.0
            )
        }
        Kind::MetadataDamaged { part, offset } => {
            let part = match part {
                Metadata::Superblock => "A slot of the superblock",
                Metadata::Checkpoint => "A checkpoint",
            };
            format!("{part} is damaged, at byte {offset} of the medium; the node writes it anew.")
        }
        Kind::ReplicasDiffer {
            vssd,
            peer,
            page,
            ours,
            theirs,
        } => {
            let which = match ours.cmp(&theirs) {
                Ordering::Less => "the peer's is the later one and counts",
                Ordering::Equal => "they have one version, and the first one's counts",
                Ordering::Greater => "the first one's is the later one and counts",
            };
            format!(
                "vSSDs {} and {} have page {page} otherwise, though both copies are intact: {which}.",
                vssd.0, peer.0
            )
        }
        Kind::PageRepaired { vssd, page, peer, .. } => {
            format!(
                "Page {page} of vSSD {}, which could not be read, has come from vSSD {} and is written anew.",
                vssd.0, peer.0
            )
        }
        _ => return None,
    })
}

/// What a gateway tells.
fn gateway(kind: &Kind) -> Option<String> {
    let lead = |why| match why {
        Lead::Superseded => "a node told of a gateway with a higher session",
        Lead::Named => "the registry names another gateway",
        Lead::Given => "another gateway leads fewer volumes, and gets it",
    };
    Some(match *kind {
        Kind::LeadTaken { session } => {
            format!("This gateway leads from now on, in session {session}.")
        }
        Kind::LeadLeft { session, why } => {
            format!("This gateway stands by after session {session}: {}.", lead(why))
        }
        Kind::VolumeTaken { volume, session } => {
            format!(
                "This gateway serves volume {} from now on, in session {session}.",
                volume.0
            )
        }
        Kind::VolumeLeft { volume, session, why } => format!(
            "This gateway serves volume {} no more, after session {session}: {}.",
            volume.0,
            lead(why)
        ),
        Kind::RequestOverdue {
            volume,
            vssd,
            wait,
            waited,
            requests,
        } => {
            let wait = match wait {
                Wait::Answer => format!("vSSD {} does not answer", vssd.0),
                Wait::Window => format!("the window of vSSD {} is full", vssd.0),
                Wait::Page => "another change of the same page is under way".to_owned(),
                Wait::Memory => "no memory is free".to_owned(),
            };
            format!(
                "{requests} requests of volume {} are overdue, the oldest by {}: {wait}.",
                volume.0,
                time(waited)
            )
        }
        Kind::RequestFailed { volume, vssd } => format!(
            "A request of volume {} failed: vSSD {} did not answer in time.",
            volume.0, vssd.0
        ),
        Kind::WritesLost { volume, vssd } => format!(
            "Every replica beside vSSD {} lost its memory with writes of volume {}: the next flush fails.",
            vssd.0, volume.0
        ),
        _ => return None,
    })
}

/// Events of the control plane about nodes.
fn nodes(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::TorRefused {
            tor,
            knows_to,
            rack_level,
        } => format!(
            "The rack is at level {rack_level}, and the ToR {tor} knows levels up to {knows_to}: start it in {}.",
            brought_by(rack_level)
        ),
        Kind::PacketForeign { from, version } => format!(
            "Packets of format version {version} come from {from} and are dropped: this version knows {}.",
            wire::rack::FORMAT_VERSION
        ),
        Kind::LevelRaised { to } => {
            format!("All parts of the rack know level {to}: the rack is at this level from now on.")
        }
        Kind::NodeRefused {
            node,
            knows_to,
            rack_level,
        } => format!(
            "The rack is at level {rack_level}, and node {} knows levels up to {knows_to}, so it does not serve: start it in {}.",
            node.0,
            brought_by(rack_level)
        ),
        Kind::NodeAdded { node } => format!("Node {} belongs to the rack from now on.", node.0),
        Kind::NodeDraining { node } => format!("The copies on node {} move to other nodes.", node.0),
        Kind::NodeDrained { node } => format!("Node {} has no copies any more.", node.0),
        Kind::NodeSlow {
            node,
            answers,
            median,
            usual,
        } => {
            let what = match answers {
                Answers::Reads => "answers half of its reads",
                Answers::Writes => "acknowledges half of its writes",
            };
            format!(
                "Node {} {what} only after {}, where {} are usual: reads go to other nodes.",
                node.0,
                time(median),
                time(usual)
            )
        }
        Kind::NodeWell { node } => format!("Node {} is no slower than the others any more.", node.0),
        Kind::NodeRemoved { node } => format!("Node {} belongs to the rack no more.", node.0),
        Kind::Rebalanced {} => "Free room is as even over the nodes as moves can make it.".to_owned(),
        _ => return None,
    })
}

/// What the control plane tells.
fn control(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::VolumeCreated { volume, bytes } => format!("Volume {} was made, with {bytes} bytes.", volume.0),
        Kind::VolumeResized { volume, bytes } => format!("Volume {} has {bytes} bytes now.", volume.0),
        Kind::VolumeDeleted { volume } => format!("Volume {} was deleted.", volume.0),
        Kind::VssdsExchanged { volume, other, took } => format!(
            "A vSSD of volume {} and one of volume {} exchanged their nodes within {}.",
            volume.0,
            other.0,
            time(took)
        ),
        Kind::MemberExpelled { volume, vssd, copies } => format!(
            "vSSD {} is lost: volume {} goes on without it, with {copies} of its copies.",
            vssd.0, volume.0
        ),
        Kind::CopyForeign { volume, vssd, node } => format!(
            "Node {} has something else in the place of vSSD {} of volume {}: its medium is from elsewhere, and is left alone.",
            node.0, vssd.0, volume.0
        ),
        Kind::NodeRestored { node } => format!(
            "The medium of node {} is an image of the past. Copies that others have were made anew; other sets go on with what it has.",
            node.0
        ),
        Kind::CopyBegun { volume, vssd, node } => format!(
            "vSSD {} on node {} begins to take a copy for volume {}.",
            vssd.0, node.0, volume.0
        ),
        Kind::CopyWithoutRoom { volume } => format!(
            "A set of volume {} lacks a copy, and no node that answers has room for it.",
            volume.0
        ),
        Kind::CopyJoined { volume, vssd, took } => format!(
            "vSSD {} is a whole copy for volume {} after {}.",
            vssd.0,
            volume.0,
            time(took)
        ),
        Kind::MemberMoved {
            volume,
            vssd,
            node,
            took,
        } => format!(
            "vSSD {} on node {} has the place of a copy that moved, for volume {} after {}.",
            vssd.0,
            node.0,
            volume.0,
            time(took)
        ),
        Kind::CopyDropped { volume, vssd } => format!(
            "Volume {} gives vSSD {} up: it is to have fewer copies.",
            volume.0, vssd.0
        ),
        Kind::RegistryFailed { why } => match why {
            RegistryTrouble::Conflict => "Another process wrote the registry first; this one looks again.",
            RegistryTrouble::Unreachable => "The registry does not answer; nothing can be changed meanwhile.",
        }
        .to_owned(),
        _ => return None,
    })
}

const fn operation_of(operation: MediumOperation) -> &'static str {
    match operation {
        MediumOperation::Read => "a read",
        MediumOperation::Write => "a write",
        MediumOperation::Flush => "a flush",
        MediumOperation::Superblock => "a write of the superblock",
    }
}

/// Events of a core about the volumes that it serves.
fn volume(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::VolumeLatched { volume, operation } => format!(
            "Volume {} takes no more writes before the next start: {} failed.",
            volume.0,
            operation_of(operation)
        ),
        Kind::VolumeSilent { volume, operation } => format!(
            "The medium of volume {} does not answer: {} was given up at the deadline.",
            volume.0,
            operation_of(operation)
        ),
        _ => return None,
    })
}

const fn area_refusal(why: AreaRefusal) -> &'static str {
    match why {
        AreaRefusal::Malformed => "the request cannot be read",
        AreaRefusal::Unknown => "there is no such area or export",
        AreaRefusal::Exists => "there is one of this name already",
        AreaRefusal::NotPermitted => "the user may not",
        AreaRefusal::Invalid => "the name, the size, the mode or the path cannot be",
        AreaRefusal::Quota => "the user's quota is used up",
        AreaRefusal::NoRoom => "the medium has no room",
        AreaRefusal::InUse => "another process has claimed the area",
        AreaRefusal::Failed => "the system or the medium failed",
        AreaRefusal::Busy => "there are too many connections",
    }
}

/// Events of the server of areas.
fn areas(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::AreaCreated { area, user, bytes } => {
            format!("User {user} made area {area}, with {bytes} bytes.")
        }
        Kind::AreaResized { area, user, bytes } => {
            format!("User {user} gave area {area} another size: it has {bytes} bytes.")
        }
        Kind::AreaDeleted { area, user } => format!("User {user} deleted area {area}."),
        Kind::AreaClaimed { area, user, process } => {
            format!("Process {process} of user {user} claimed area {area}.")
        }
        Kind::AreaRefused { user, why } => {
            format!("A request of user {user} was refused: {}.", area_refusal(why))
        }
        Kind::AreaMended { area, user } => {
            format!("User {user} changed the size of the file of area {area}. The server put the size right.")
        }
        Kind::AreaDamaged { area } => {
            format!("Area {area} is not sound: `switchyard areas verify` says more.")
        }
        Kind::TableLatched {} => {
            "The table of areas could not be written: restart the server when its medium is sound.".to_owned()
        }
        _ => return None,
    })
}

/// Events of a core that takes clients.
fn client(kind: &Kind) -> Option<String> {
    Some(match *kind {
        Kind::ClientConnected { client, protocol } => format!("{client} connected by {protocol}."),
        Kind::ClientRefused { client, why } => {
            let why = match why {
                Refusal::Limit => "as many connections as there may be are open",
                Refusal::Share => {
                    "other listeners, or addresses with fewer connections, are to have what is left"
                }
                Refusal::Descriptors => "the process may open no more files",
                Refusal::Setup => "the connection could not be set up",
            };
            format!("{client} was refused: {why}.")
        }
        Kind::ClientCut { client, held } => {
            format!(
                "{client} was cut off: it stood still with {held} bytes of payload while others waited for memory."
            )
        }
        Kind::ClientMoved { to } => format!("A connection came to core {to} from another core."),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::event::{Level, Source};
    use base::{Addr, VssdId};
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_lapse_names_the_vssd_the_node_and_the_reason() {
        let kind = Kind::LeaseLapsed {
            vssd: VssdId(3),
            server: Addr::new([10, 0, 0, 2], 8888),
            why: Lapse::NodeSilent,
            held: Duration::from_millis(1240),
        };
        assert_eq!(
            sentence(&kind),
            "The lease of vSSD 3 lapsed 1.2 s after it was granted: the node 10.0.0.2:8888 has sent nothing since: it is \
             dead, stopped or cut off."
        );
        assert_eq!(Source::Tor.to_string(), "tor");
    }

    #[test]
    fn every_kind_has_a_sentence() {
        for kind in Kind::samples() {
            let text = sentence(&kind);
            assert!(
                text.ends_with('.') && text.contains(' '),
                "{}: {text}",
                kind.name()
            );
        }
    }

    #[test]
    fn every_kind_is_in_the_documents_with_its_level_and_fields() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
        let page = fs::read_to_string(path).unwrap();
        for kind in Kind::ALL {
            let fields: Vec<String> = kind.fields.iter().map(|field| format!("`{field}`")).collect();
            let row = format!(
                "| `{}` | {} | {} |",
                kind.name,
                kind.level.name(),
                fields.join(", ")
            );
            assert!(page.contains(&row), "docs/events.md has no row `{row}`");
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(
            rows,
            Kind::COUNT,
            "docs/events.md has a row for each kind, and no more"
        );
        assert!(Level::Debug < Level::Error);
    }
}
