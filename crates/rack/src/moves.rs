//! Which member moves where, and when: nodes are drained, room is evened out, and a set that is to have fewer copies gives
//! one up.
//!
//! A pure policy over the records. It begins moves; [`crate::heal`] carries them on, as it does with every vSSD that joins:
//!
//! | record | the set | next |
//! | --- | --- | --- |
//! | `joining`, `moves` | a vSSD on another node joins as one member more | takes the place when it holds everything durably; given up if it cannot |
//! | `leaving`, `moves` | the vSSD that had the place is deleted | forgotten when that is done |
//!
//! Rules:
//! - A copy that is given up goes when the others have flushed what all hold, and the registry has noted that. Nothing is
//!   changed meanwhile: a node may have lost its memory just before the decision. If another copy is lost before, this one
//!   stays.
//! - A set moves one member at a time, and only while all its replicas are well and serve. So it never has fewer copies than
//!   before.
//! - At most [`Sight::moves_max`] moves are under way in a rack.
//! - Room is evened out by one move at a time, when nothing else changes. Each takes a vSSD to a node that has at least as
//!   much free afterwards as the one it comes from. A number of moves bounds the whole. Of equal moves one is chosen that
//!   spreads primaries.

use crate::charge::Charge;
use crate::nodes::Moving;
use crate::registry::{JoiningRecord, LeavingRecord, ReplicaRecord, SetRecord, Snapshot, VolumeRecord};
use crate::room::{Rooms, taken};
use base::event::Kind;
use base::{NodeId, VolumeId, VssdId};
use thiserror::Error;

/// The rack, as far as its records do not tell.
pub struct Sight<'a> {
    /// Room of the nodes.
    pub rooms: &'a mut Rooms,
    /// True for a replica whose node answers, and which serves.
    pub is_well: &'a dyn Fn(&ReplicaRecord) -> bool,
    /// The nodes that are waited for have told their room since the last change.
    pub is_fresh: bool,
    /// Moves at a time.
    pub moves_max: usize,
    /// What this gateway leads: it moves members of no other volume.
    pub charge: Charge<'a>,
}

/// Why a drain does not go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Stuck {
    /// No other node can have a copy.
    #[error(
        "no other node that answers has room for a copy of volume `{0}`: start those that do not answer, or add a node with \
         `switchyard node add`"
    )]
    NoRoom(String),
    /// Nobody is there who could have a copy.
    #[error("no other node answers: start them, or look at the ToR and the network between")]
    Unheard,
    /// The set gets copies first.
    #[error(
        "volume `{0}` lacks copies, which come first: `switchyard volume show {0}` tells what is done about it"
    )]
    LacksCopies(String),
    /// The node that takes its place is not there.
    #[error(
        "node {0}, which takes its place, does not answer: start it, or name another one with `switchyard node replace`"
    )]
    NoHeir(u8),
    /// The node is away with the only copy.
    #[error("the node does not answer and has the only copy of a part of volume `{0}`: start it")]
    Away(String),
}

/// Begins what is to begin, and forgets nodes that are to be forgotten. Returns what there is to tell.
pub fn begin(records: &mut Snapshot, sight: &mut Sight) -> Vec<Kind> {
    let mut told = Vec::new();
    drop_surplus(records, sight, &mut told);
    drain(records, sight, &mut told);
    rebalance(records, sight, &mut told);
    if sight.charge.rack {
        forget(records);
    }
    told
}

/// Why no member of a node that is being drained moves; `None` if one does, will, or need not.
pub fn stuck(records: &Snapshot, rooms: &Rooms, node: u8) -> Option<Stuck> {
    if records.moving().any(|(_, moving)| moving.node == node) {
        return None;
    }
    let heir = records.drain_of(node).map_or(0, |drain| drain.to);
    if heir > 0 && !rooms.is_open(heir) {
        return Some(Stuck::NoHeir(heir));
    }
    let answers = rooms.is_open(node);
    let on_node = |set: &SetRecord| set.replicas.iter().any(|replica| replica.node == node);
    let mut found = None;
    for volume in records.served() {
        for set in volume.sets.iter().filter(|set| on_node(set)) {
            let name = volume.name.clone();
            match rooms.best(records, set) {
                _ if !answers && set.replicas.len() == 1 => return Some(Stuck::Away(name)),
                _ if set.lacks_copies() => found = found.or(Some(Stuck::LacksCopies(name))),
                None if !rooms.sites().any(|site| site.is_open && site.node != node) => {
                    return Some(Stuck::Unheard);
                }
                None => return Some(Stuck::NoRoom(name)),
                Some(_) => return None,
            }
        }
    }
    found
}

/// The sets of served volumes, by volume and index.
fn places(records: &Snapshot) -> Vec<(VolumeId, usize)> {
    let places = |volume: &VolumeRecord| {
        let id = volume.volume();
        (0..volume.sets.len()).map(move |index| (id, index))
    };
    records.served().flat_map(places).collect()
}

fn set(records: &Snapshot, (id, index): (VolumeId, usize)) -> &SetRecord {
    let record = records.volume_of(id).expect("it was found just now");
    &record.sets[index]
}

fn set_mut(records: &mut Snapshot, (id, index): (VolumeId, usize)) -> &mut SetRecord {
    let record = records.volume_mut(id).expect("it was found just now");
    &mut record.sets[index]
}

impl Sight<'_> {
    /// The sets of served volumes that this gateway leads.
    fn places(&self, records: &Snapshot) -> Vec<(VolumeId, usize)> {
        let mut own = places(records);
        own.retain(|(id, _)| (self.charge.leads)(*id));
        own
    }

    /// True if one member less, for the time of a change, is none less than before.
    fn is_sound(&self, set: &SetRecord) -> bool {
        set.is_whole() && set.replicas.iter().all(self.is_well)
    }

    fn may_begin(&self, records: &Snapshot) -> bool {
        let moves = |set: &SetRecord| {
            set.joining.is_some_and(|joining| joining.moves)
                || set.leaving.is_some_and(|leaving| leaving.moves)
        };
        let sets = records.volumes.iter().flat_map(|volume| &volume.sets);
        sets.filter(|set| moves(set)).count() < self.moves_max
    }
}

/// Sets that are to have fewer copies give up one, never the primary.
fn drop_surplus(records: &mut Snapshot, sight: &Sight, told: &mut Vec<Kind>) {
    for at in sight.places(records) {
        let old = set(records, at);
        if !old.has_surplus() || !sight.is_sound(old) || !sight.may_begin(records) {
            continue;
        }
        let drains = |replica: &ReplicaRecord| records.goes(replica.node);
        let place = old.replicas.iter().skip(1).rposition(drains);
        let place = place.map_or(old.replicas.len() - 1, |place| place + 1);
        let set = set_mut(records, at);
        let ReplicaRecord { vssd, node } = set.replicas.remove(place);
        set.leaving = Some(LeavingRecord {
            vssd,
            node,
            was_primary: false,
            moves: true,
            surplus: true,
            secured: false,
        });
        set.generation += 1;
        let (volume, vssd) = (at.0, VssdId(vssd));
        told.push(Kind::CopyDropped { volume, vssd });
    }
}

/// Members of nodes that are being drained move to the node that takes their node's place, or else to the one with most room.
/// Nothing moves before the former is there.
fn drain(records: &mut Snapshot, sight: &mut Sight, told: &mut Vec<Kind>) {
    for drain in records.drains.clone() {
        if drain.to > 0 && !sight.rooms.is_open(drain.to) {
            continue;
        }
        for at in sight.places(records) {
            let set = set(records, at);
            let old = set.replicas.iter().find(|replica| replica.node == drain.node);
            let Some(old) = old.copied() else { continue };
            if set.has_surplus() || !sight.is_sound(set) || !sight.may_begin(records) {
                continue;
            }
            let preferred = (drain.to > 0 && sight.rooms.fits(records, set, drain.to)).then_some(drain.to);
            if let Some(node) = preferred.or_else(|| sight.rooms.best(records, set)) {
                begin_move(records, sight.rooms, (at, old.vssd, node), told);
            }
        }
    }
}

fn begin_move(
    records: &mut Snapshot,
    rooms: &mut Rooms,
    (at, replaces, node): ((VolumeId, usize), u32, u8),
    told: &mut Vec<Kind>,
) {
    records.next_vssd += 1;
    let vssd = records.next_vssd;
    let set = set_mut(records, at);
    rooms.give(set, node);
    set.joining = Some(JoiningRecord {
        vssd,
        node,
        replaces,
        moves: true,
    });
    set.generation += 1;
    told.push(Kind::CopyBegun {
        volume: at.0,
        vssd: VssdId(vssd),
        node: NodeId(node),
    });
}

/// Moves a member from a full node to an empty one, if nothing else is under way.
fn rebalance(records: &mut Snapshot, sight: &mut Sight, told: &mut Vec<Kind>) {
    if records.rebalance_moves == 0 || !sight.is_fresh {
        return;
    }
    let places = places(records);
    let is_quiet = |at: &(VolumeId, usize)| {
        let set = set(records, *at);
        sight.is_sound(set) && !set.has_surplus()
    };
    let drains = records
        .drains
        .iter()
        .any(|drain| records.members_on(drain.node) > 0);
    let mut nodes = records.nodes.iter().map(|node| node.id);
    let all_there = nodes.all(|node| sight.rooms.is_open(node) || records.is_replaced(node));
    if drains || !all_there || !places.iter().all(is_quiet) {
        return;
    }
    match best_move(records, sight.rooms, &sight.places(records)) {
        Some(best) => {
            begin_move(records, sight.rooms, best, told);
            records.rebalance_moves -= 1;
        }
        // Another gateway may have a volume to move.
        None if !sight.charge.rack || best_move(records, sight.rooms, &places).is_some() => return,
        None => records.rebalance_moves = 0,
    }
    if records.rebalance_moves == 0 {
        told.push(Kind::Rebalanced {});
    }
}

/// The move between the nodes whose room differs most: a set, its vSSD that moves, and where to. Of equals the first that
/// evens the primaries out, too.
fn best_move(
    records: &Snapshot,
    rooms: &Rooms,
    places: &[(VolumeId, usize)],
) -> Option<((VolumeId, usize), u32, u8)> {
    let mut best = None;
    for &at in places {
        let set = set(records, at);
        for site in rooms.sites().filter(|site| rooms.fits(records, set, site.node)) {
            for (place, old) in set.replicas.iter().enumerate() {
                let (from, to) = (rooms.free(set, old.node), rooms.free(set, site.node));
                let gap = to.saturating_sub(from);
                let leads_more = primaries_on(records, old.node) > primaries_on(records, site.node);
                let score = (gap, (place == 0) == leads_more);
                if gap >= 2 * taken(set) && best.is_none_or(|(most, _)| score > most) {
                    best = Some((score, (at, old.vssd, site.node)));
                }
            }
        }
    }
    best.map(|(_, found)| found)
}

/// Sets whose writes a node orders.
fn primaries_on(records: &Snapshot, node: u8) -> usize {
    let sets = records.served().flat_map(|volume| &volume.sets);
    let primaries = sets.filter_map(|set| set.replicas.first());
    primaries.filter(|primary| primary.node == node).count()
}

/// Nodes that were replaced, and have no copies any more, belong to the rack no more.
fn forget(records: &mut Snapshot) {
    let removed = records.drains.iter().filter(|drain| drain.removes);
    let is_empty = |node: &u8| records.members_on(*node) == 0 && records.missing_from(*node) == 0;
    let removed: Vec<u8> = removed.map(|drain| drain.node).filter(is_empty).collect();
    for node in removed {
        records.forget_node(node);
    }
}

/// How far a node is with being drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Copies that it still has, or had and are not made elsewhere yet.
    pub members: usize,
    /// Those of them that move now.
    pub moving: Vec<Moving>,
}

/// How far a node is with being drained.
pub fn progress(records: &Snapshot, node: u8) -> Progress {
    let moving = records.moving().map(|(_, moving)| moving);
    Progress {
        members: records.members_on(node) + records.missing_from(node),
        moving: moving.filter(|moving| moving.node == node).collect(),
    }
}
