//! Redundancy heals itself: members that are lost are expelled, so that writes go on; they come back, or a copy is made
//! elsewhere.
//!
//! A pure machine. It sees the nodes' answers and how far each set is, and returns records that a registry stores. Every
//! record can be the last one before a crash:
//!
//! | record | the set | next |
//! | --- | --- | --- |
//! | `expelling` | its members learn that some are expelled, and wait until these have no lease ([`crate::lease`]) | forgotten when all have |
//! | `joining` | a vSSD joins, and yields to the others ([`crate::replica::Replica::yield_all`]) | a replica when it holds everything durably; expelled if it cannot |
//! | `leaving` of a move | the vSSD that has moved is deleted ([`crate::moves`]) | forgotten when it is |
//! | neither | serves | |
//!
//! Rules:
//! - A member is lost if it takes no writes, or if the others do not hear it. Its node may not answer, or not have it, or
//!   count fewer starts than before: the medium is an image of the past. So it is if the member does not serve, and knows an earlier
//!   membership only.
//! - Nobody is expelled unless a member stays that has what was flushed: a replica that is well, on a node that answers in time, and has
//!   answered since the other one was found lost ([`Heal::asks`]). Of two
//!   nodes that die shortly after each other the first one is no reason to expel. Sometimes none of those
//!   that stay serves: all have started again, and wait for the one that is lost. Then there is more patience, as the lost
//!   one may have acknowledged writes in memory that the others have not.
//! - A member is lost, too, if its node refuses it as of before the generation that all members knew ([`SetRecord::settled`]). If no other
//!   one is left, nothing joins either: it would be a copy of old data.
//! - A member is lost, too, if its node has a stranger in its place ([`Heal::strangers`]). Nothing of the set is there, as if the node
//!   did not have it: so a stranger counts as missing, and the same holds for those that stay. They have every acknowledged write, as a
//!   write is acknowledged by all members; or all have started again, and then what was not flushed is lost whoever stays.
//! - A node with a stranger gets no copies before it has started anew, with the right medium perhaps. Any other
//!   member that was expelled joins again when its node has answered for a while, each time a longer one; else, after
//!   [`Rules::rebuild_after`], another node gets a new copy.
//! - Nothing is changed of a volume of which a member knows later members than the records: a registry of before was put in the place of a
//!   newer one. Whoever is a member there may have been expelled since, and lack what was flushed.
//! - An expelled vSSD is deleted when its set has all copies. A node deletes nothing in its place that is of another set. What is to be
//!   deleted on a node whose medium is another rack's waits for the right medium.

use crate::charge::Charge;
use crate::control::Roll;
use crate::exchange::ChangeState;
use crate::moves;
use crate::registry::{JoiningRecord, LeavingRecord, LeftRecord, ReplicaRecord, SetRecord, Snapshot};
use crate::room::{Rooms, Site};
use base::event::Kind;
use base::{Instant, NodeId, VolumeId, VssdId};
use std::collections::{BTreeMap, BTreeSet};
use wire::rack::Code;

mod members;
mod rules;

pub use members::Members;
pub use rules::Rules;

/// The healing of a rack.
#[derive(Debug)]
pub struct Heal {
    members: Members,
    /// Sets that lack copies, by volume and index, since when.
    degraded: BTreeMap<(u32, usize), Instant>,
    /// Those of them for which no node has room that answers, as told.
    without_room: BTreeSet<(u32, usize)>,
    /// Those of them whose expelled members may still come back, and until when that is waited for.
    awaited: BTreeMap<(u32, usize), Instant>,
    /// vSSDs that join, since when.
    joining: BTreeMap<u32, Instant>,
    /// What was to be deleted, and is not there any more, as its node has answered.
    discarded: BTreeSet<(u8, u32)>,
    /// Nodes that were drained, as told.
    drained: BTreeSet<u8>,
    /// When the members of a set changed last.
    changed_at: Instant,
    /// When a member was found lost that is to be expelled if those that stay have answered since.
    found_lost: Option<Instant>,
    told: Vec<Kind>,
}

impl Heal {
    /// Of a rack about which nothing is known yet.
    pub fn new(now: Instant, rules: Rules) -> Self {
        Self {
            members: Members::new(now, rules),
            degraded: BTreeMap::new(),
            without_room: BTreeSet::new(),
            awaited: BTreeMap::new(),
            joining: BTreeMap::new(),
            discarded: BTreeSet::new(),
            drained: BTreeSet::new(),
            changed_at: now,
            found_lost: None,
            told: Vec::new(),
        }
    }

    /// What is known of the nodes, and of the members that they have.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// To tell of nodes and members.
    pub fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.members.rules
    }

    /// Volumes of which a set lacks a copy that no node has room for that answers.
    pub fn without_room(&self) -> impl Iterator<Item = VolumeId> {
        let volumes: BTreeSet<u32> = self.without_room.iter().map(|(volume, _)| *volume).collect();
        volumes.into_iter().map(VolumeId)
    }

    /// Volumes of which a set lacks a copy that is made on another node at that time, unless the one that had it comes back.
    pub fn awaited(&self) -> impl Iterator<Item = (VolumeId, Instant)> {
        let mut volumes: BTreeMap<u32, Instant> = BTreeMap::new();
        for ((volume, _), until) in &self.awaited {
            let first = volumes.entry(*volume).or_insert(*until);
            *first = (*first).min(*until);
        }
        volumes
            .into_iter()
            .map(|(volume, until)| (VolumeId(volume), until))
    }

    /// When a member was found lost that is expelled as soon as one that stays answers what it is asked from then on: the nodes should be
    /// asked at once. That one may have died since its last answer.
    pub fn asks(&self) -> Option<Instant> {
        self.found_lost
    }

    /// The next event.
    pub fn poll_told(&mut self) -> Option<Kind> {
        (!self.told.is_empty()).then(|| self.told.remove(0))
    }

    /// vSSDs that are to be deleted, on nodes that answer. A node that does not have one is asked, too: it makes none of that number from
    /// then on, however late the request to make it comes.
    pub fn discards<'a>(&'a self, records: &'a Snapshot) -> impl Iterator<Item = LeftRecord> + 'a {
        let is_one = |left: &&LeftRecord| {
            self.members.roll(left.node).is_some()
                && !self.members.is_elsewhere(left.node, records.rack)
                && !self.discarded.contains(&(left.node, left.vssd))
        };
        records.leftovers.iter().filter(is_one).copied()
    }

    /// Nodes have answered that these are deleted.
    pub fn note_discarded(&mut self, discarded: impl Iterator<Item = (NodeId, VssdId)>) {
        self.discarded
            .extend(discarded.map(|(node, vssd)| (node.0, vssd.0)));
    }

    /// The records that are to be stored, if they are to be changed. `state` tells how far the changes of a set are.
    pub fn next(
        &mut self,
        now: Instant,
        records: &Snapshot,
        charge: Charge,
        state: impl Fn(VolumeId, usize) -> ChangeState,
    ) -> Option<Snapshot> {
        self.forget_removed(records);
        self.members.look(now, records);
        let outdated = records
            .made_sets()
            .filter(|(.., set)| self.members.is_outdated(set));
        let outdated: BTreeSet<VolumeId> = outdated.map(|(volume, ..)| volume).collect();
        let leads = |volume| (charge.leads)(volume) && !outdated.contains(&volume);
        let charge = Charge {
            leads: &leads,
            ..charge
        };
        let mut next = records.clone();
        // First, as the gateway tells of changes that are in the records, and of none that begins now.
        self.settle(now, &mut next, charge, state);
        self.expel(now, &mut next, charge);
        self.forget_lost(now, &mut next, charge);
        let mut rooms = self.rooms(now, &next);
        self.join(now, &mut next, charge, &mut rooms);
        self.move_members(now, &mut next, charge, &mut rooms);
        self.tidy(&mut next, charge);
        if charge.rack {
            self.note_boots(&mut next);
        }
        (next != *records).then_some(next)
    }

    /// Nodes that belong to the rack no more are forgotten.
    fn forget_removed(&mut self, records: &Snapshot) {
        self.members.forget_removed(records);
        self.drained.retain(|id| records.drain_of(*id).is_some());
    }

    /// A node has something else in the place of a vSSD.
    fn note_strange(&mut self, set: &mut SetRecord, volume: VolumeId, vssd: VssdId, node: NodeId) {
        set.strangers.push(vssd.0);
        self.members.note_strange(node.0);
        self.told.push(Kind::CopyForeign { volume, vssd, node });
    }

    /// Expels members that are lost.
    fn expel(&mut self, now: Instant, next: &mut Snapshot, charge: Charge) {
        let mut victims: Vec<(u32, usize, Vec<u32>)> = Vec::new();
        self.found_lost = None;
        let is_own = |volume: VolumeId| is_kept(next, volume) && (charge.leads)(volume);
        for (volume, index, set) in next.made_sets().filter(|(volume, ..)| is_own(*volume)) {
            let is_lost = |replica: &&ReplicaRecord| self.members.is_lost(replica.vssd);
            let lost: Vec<u32> = set.replicas.iter().filter(is_lost).map(|r| r.vssd).collect();
            if lost.is_empty() {
                continue;
            }
            let stays = set.replicas.iter().filter(|r| !lost.contains(&r.vssd));
            let kept = set.leaving.filter(LeavingRecord::may_stay);
            let kept = kept.map(ReplicaRecord::from);
            let stays = stays.chain(kept.as_ref());
            let is_there = |replica: &&ReplicaRecord| {
                self.members.is_well(replica) && self.members.answers(replica.node)
            };
            let found = self.members.found_lost(&lost);
            let has_answered = |replica: &&ReplicaRecord| self.members.heard(replica.node) > found;
            let waited = self.members.waited(now, &lost);
            let is_patient = waited.is_some_and(|waited| waited >= self.members.rules.patience);
            let goes_on = |replica: &&ReplicaRecord| is_patient || self.members.serves(replica);
            let mut stay = stays.filter(is_there).filter(goes_on).peekable();
            if stay.peek().is_none() {
                continue;
            }
            match stay.any(|replica| has_answered(&replica)) {
                true => victims.push((volume.0, index, lost)),
                false => self.found_lost = self.found_lost.max(found),
            }
        }
        let mut sets_of_victims = victims.iter().map(|&(volume, index, _)| (volume, index));
        if sets_of_victims.any(|(volume, index)| set_mut(next, volume, index).exchanges()) {
            next.undo_exchange();
        }
        for (volume, index, lost) in victims {
            let set = set_mut(next, volume, index);
            for replica in set.replicas.iter().filter(|r| lost.contains(&r.vssd)) {
                self.members.note_expelled(now, replica.node);
            }
            let strangers = set.replicas.iter().filter(|replica| lost.contains(&replica.vssd));
            let strangers = strangers
                .filter(|replica| self.members.is_stranger(replica.vssd))
                .copied();
            for ReplicaRecord { vssd, node } in strangers.collect::<Vec<_>>() {
                self.note_strange(set, VolumeId(volume), VssdId(vssd), NodeId(node));
            }
            set.expel(&lost);
            for vssd in lost {
                self.told.push(Kind::MemberExpelled {
                    volume: VolumeId(volume),
                    vssd: VssdId(vssd),
                    copies: set.replicas.len() as u32,
                });
            }
        }
    }

    /// Nobody waits for what joins, leaves or is deleted on a node that does not answer.
    fn forget_lost(&mut self, now: Instant, next: &mut Snapshot, charge: Charge) {
        let own = next.made_sets().filter(|(volume, ..)| (charge.leads)(*volume));
        let found: Vec<(u32, usize)> = own.map(|(volume, index, _)| (volume.0, index)).collect();
        for (volume, index) in found {
            let deletes = !is_kept(next, VolumeId(volume));
            let joining = set_mut(next, volume, index).joining;
            if let Some(joining) = joining.filter(|joining| self.members.is_lost(joining.vssd)) {
                match joining.exchanges() {
                    true => _ = next.undo_exchange(),
                    false => self.give_up_joining(now, next, volume, index),
                }
            }
            let set = set_mut(next, volume, index);
            let mut left = Vec::new();
            if let Some(leaving) = set.leaving.take_if(|leaving| self.members.is_lost(leaving.vssd)) {
                left.push(set.left(leaving.into()));
                set.note_expelled(&[leaving.vssd], leaving.was_primary);
            }
            if deletes {
                let (gone, stay) = set
                    .replicas
                    .iter()
                    .partition(|r: &&ReplicaRecord| self.members.is_silent(r.vssd));
                set.replicas = stay;
                left.extend(Vec::into_iter(gone).map(|replica| set.left(replica)));
            }
            next.leftovers.extend(left);
        }
        self.forget_growth(now, next, charge);
    }

    /// Nor for what a lost node is to make for a volume that grows. That growth is undone then.
    fn forget_growth(&self, now: Instant, next: &mut Snapshot, charge: Charge) {
        let is_silent = |replica: &ReplicaRecord| self.members.is_node_silent(now, replica.node);
        let own = next.growing.iter_mut();
        let own = own.filter(|growth| (charge.leads)(VolumeId(growth.volume)));
        for set in own.flat_map(|growth| &mut growth.sets) {
            let silent: Vec<ReplicaRecord> = set.replicas.extract_if(.., |r| is_silent(r)).collect();
            next.leftovers
                .extend(silent.into_iter().map(|replica| set.left(replica)));
        }
    }

    fn give_up_joining(&mut self, now: Instant, next: &mut Snapshot, volume: u32, index: usize) {
        let set = set_mut(next, volume, index);
        let Some(joining) = set.joining.take() else { return };
        let (vssd, node) = (joining.vssd, joining.node);
        set.expelled.push(ReplicaRecord { vssd, node });
        set.note_expelled(&[vssd], false);
        self.members.note_refused(now, node);
        self.changed_at = now;
        self.joining.remove(&vssd);
    }

    /// Takes note of what sets have done.
    fn settle(
        &mut self,
        now: Instant,
        next: &mut Snapshot,
        charge: Charge,
        state: impl Fn(VolumeId, usize) -> ChangeState,
    ) {
        let own = next.made_sets().filter(|(volume, ..)| (charge.leads)(*volume));
        let found: Vec<(VolumeId, usize)> = own.map(|(volume, index, _)| (volume, index)).collect();
        for (volume, index) in found {
            let set = set_mut(next, volume.0, index);
            if set.expelling.is_some() && state(volume, index) == ChangeState::Done {
                (set.expelling, set.leaving) = (None, None);
                set.settled = set.generation;
            }
            let may_stay = |leaving: &&mut LeavingRecord| leaving.may_stay();
            if state(volume, index) == ChangeState::Secured
                && let Some(leaving) = set.leaving.as_mut().filter(may_stay)
            {
                leaving.secured = true;
                set.generation += 1;
            }
            let has_moved = set
                .leaving
                .is_some_and(|leaving| leaving.moves && !leaving.may_stay());
            if has_moved && set.expelling.is_none() && state(volume, index) == ChangeState::Done {
                set.leaving = None;
                set.settled = set.generation;
                self.changed_at = now;
            }
            if set.joining.is_none_or(|joining| joining.exchanges()) {
                continue;
            }
            match state(volume, index) {
                ChangeState::Joined if is_kept(next, volume) => self.joined(now, next, volume, index),
                ChangeState::Failed(vssd, code) => {
                    let set = set_mut(next, volume.0, index);
                    let joining = set.joining.filter(|joining| joining.vssd == vssd.0);
                    if let Some(joining) = joining.filter(|_| is_refused_as_stranger(code)) {
                        self.note_strange(set, volume, vssd, NodeId(joining.node));
                    }
                    self.give_up_joining(now, next, volume.0, index);
                }
                ChangeState::Joined | ChangeState::Secured | ChangeState::Busy | ChangeState::Done => {}
            }
        }
    }

    /// A vSSD that joins holds everything durably.
    fn joined(&mut self, now: Instant, next: &mut Snapshot, volume: VolumeId, index: usize) {
        let set = set_mut(next, volume.0, index);
        let joining = set.joining.expect("it was asked just now");
        let (vssd, node) = (joining.vssd, joining.node);
        let began = self.joining.remove(&vssd).unwrap_or(now);
        let took = now.since(began);
        self.members.note_joined(vssd, node);
        self.changed_at = now;
        set.settled = set.generation;
        if joining.heals() {
            set.joining = None;
            set.replicas.push(ReplicaRecord { vssd, node });
            set.generation += 1;
            let vssd = VssdId(vssd);
            return self.told.push(Kind::CopyJoined { volume, vssd, took });
        }
        set.replace();
        self.told.push(Kind::MemberMoved {
            volume,
            vssd: VssdId(vssd),
            node: NodeId(node),
            took,
        });
    }

    /// Lets vSSDs join sets that lack copies.
    fn join(&mut self, now: Instant, next: &mut Snapshot, charge: Charge, rooms: &mut Rooms) {
        let is_own = |volume: VolumeId| is_kept(next, volume) && (charge.leads)(volume);
        let lacking = next
            .made_sets()
            .filter(|(volume, _, set)| set.lacks_copies() && is_own(*volume));
        let lacking: Vec<(u32, usize)> = lacking.map(|(volume, index, _)| (volume.0, index)).collect();
        self.degraded.retain(|at, _| lacking.contains(at));
        self.without_room.retain(|at| lacking.contains(at));
        self.awaited.clear();
        let heals = |(_, _, set): &(VolumeId, usize, &SetRecord)| set.joining.is_some_and(|j| j.heals());
        let mut joins = next.made_sets().filter(heals).count();
        let hope = self.members.are_some_on_trial(now);
        for (volume, index) in lacking {
            let since = *self.degraded.entry((volume, index)).or_insert(now);
            let set = set_mut(next, volume, index).clone();
            let has_source = set.replicas.iter().any(|replica| self.members.is_well(replica));
            if joins >= self.members.rules.joins_max || set.is_changing() || !has_source {
                continue;
            }
            // Nobody who is wanted has to come back.
            let none_returns = set.expelled.iter().all(|left| next.goes(left.node));
            let is_late = none_returns || now.since(since) >= self.members.rules.rebuild_after;
            let back = set
                .expelled
                .iter()
                .find(|left| self.may_rejoin(now, left))
                .copied();
            let place = back.map(|left| (left.vssd, left.node)).or_else(|| {
                let node = heir_of(next, rooms, &set).or_else(|| rooms.best(next, &set));
                let node = node.filter(|_| is_late)?;
                rooms.give(&set, node);
                next.next_vssd += 1;
                Some((next.next_vssd, node))
            });
            let Some((vssd, node)) = place else {
                if !is_late {
                    let until = since + self.members.rules.rebuild_after;
                    self.awaited.insert((volume, index), until);
                }
                if is_late && !hope && self.without_room.insert((volume, index)) {
                    let volume = VolumeId(volume);
                    self.told.push(Kind::CopyWithoutRoom { volume });
                }
                continue;
            };
            self.without_room.remove(&(volume, index));
            let set = set_mut(next, volume, index);
            set.expelled.retain(|left| left.vssd != vssd);
            set.strangers.retain(|left| *left != vssd);
            set.joining = Some(JoiningRecord {
                vssd,
                node,
                replaces: 0,
                moves: false,
            });
            set.generation += 1;
            joins += 1;
            self.joining.insert(vssd, now);
            self.told.push(Kind::CopyBegun {
                volume: VolumeId(volume),
                vssd: VssdId(vssd),
                node: NodeId(node),
            });
        }
    }

    /// True if a member that was expelled can be one again.
    fn may_rejoin(&self, now: Instant, left: &ReplicaRecord) -> bool {
        let has_failed = |roll: &Roll| roll.failed.contains(&left.vssd);
        self.members.takes_copies(now, left.node)
            && self.members.is_here(left)
            && !self.members.roll(left.node).is_some_and(has_failed)
    }

    /// The room of the nodes, without what the records have given them and they do not know of yet.
    fn rooms(&self, now: Instant, records: &Snapshot) -> Rooms {
        let sites = self.members.answers_of_nodes();
        let site = |(id, status)| Site::new(id, status, records.rack, self.members.takes_copies(now, id));
        let mut rooms = Rooms::new(sites.map(site));
        rooms.give_promised(records, |replica| self.members.is_here(replica));
        rooms
    }

    /// Lets members move, and tells which nodes have none any more.
    fn move_members(&mut self, now: Instant, next: &mut Snapshot, charge: Charge, rooms: &mut Rooms) {
        let since = self.changed_at + self.members.rules.ask_every;
        let is_fresh = |id: u8| {
            let is_gone = next.is_replaced(id) && !rooms.is_open(id);
            is_gone || self.members.heard(id).is_some_and(|heard| heard >= since)
        };
        let mut nodes = self.members.answers_of_nodes();
        let is_fresh = nodes.all(|(id, _)| is_fresh(id));
        let told = moves::begin(
            next,
            &mut moves::Sight {
                rooms,
                is_well: &|replica| {
                    self.members.answers(replica.node)
                        && self.members.is_well(replica)
                        && self.members.serves(replica)
                },
                is_fresh,
                moves_max: self.members.rules.moves_max,
                charge,
            },
        );
        for kind in &told {
            if let Kind::CopyBegun { vssd, .. } = kind {
                self.joining.insert(vssd.0, now);
            }
        }
        self.told.extend(told);
        for drain in next.drains.iter().filter(|_| charge.rack) {
            let is_empty = moves::progress(next, drain.node).members == 0;
            if is_empty && self.drained.insert(drain.node) {
                let node = NodeId(drain.node);
                self.told.push(Kind::NodeDrained { node });
            }
        }
    }

    /// Notes the starts of nodes. A node whose medium is an image of the past has to wait until no set has a member there beside one of the
    /// present. So what was restored as a whole goes on. A medium from elsewhere says nothing of the node's own one.
    fn note_boots(&mut self, next: &mut Snapshot) {
        let own = self.members.own_boots(next);
        let noted = own.filter(|(id, _)| !self.members.is_past(*id, next) || !self.holds_present(*id, next));
        let noted: Vec<(u8, u32)> = noted.collect();
        let is_image = |(id, _): &&(u8, u32)| self.members.is_past(*id, next) && !self.members.is_empty(*id);
        let restored = noted.iter().filter(is_image).map(|(id, _)| NodeId(*id));
        let restored = restored.map(|node| Kind::NodeRestored { node });
        self.told.extend(restored.collect::<Vec<_>>());
        next.boots.extend(noted);
    }

    /// True if a node has a member of a set that is to have others, and not all that the set has are images of the past.
    fn holds_present(&self, node: u8, records: &Snapshot) -> bool {
        let is_one = |(_, _, set): (VolumeId, usize, &SetRecord)| {
            let mut here = set.replicas.iter().filter(|replica| replica.node == node);
            let is_restored = || set.replicas.iter().all(|r| self.members.is_past(r.node, records));
            set.wanted() > 1 && here.any(|r| self.members.is_before(set, r.vssd, node) || !is_restored())
        };
        records.made_sets().any(is_one)
    }

    /// Expelled vSSDs of a set that has all copies are nobody's; those that a node has deleted are forgotten.
    fn tidy(&mut self, next: &mut Snapshot, charge: Charge) {
        let mut left = Vec::new();
        let own = next.volumes.iter_mut();
        for volume in own.filter(|volume| (charge.leads)(volume.volume())) {
            for set in &mut volume.sets {
                if set.is_whole() {
                    left.append(&mut set.left_behind());
                    set.expelled.clear();
                    set.strangers.clear();
                }
            }
        }
        let is_deleted = |left: &LeftRecord| self.discarded.contains(&(left.node, left.vssd));
        next.leftovers.retain(|left| !(charge.rack && is_deleted(left)));
        next.leftovers.append(&mut left);
        let is_left = |of: &(u8, u32)| next.leftovers.iter().any(|left| (left.node, left.vssd) == *of);
        self.discarded.retain(is_left);
    }
}

/// The node that takes the place of one that had a copy of the set, if it can have the copy.
fn heir_of(records: &Snapshot, rooms: &Rooms, set: &SetRecord) -> Option<u8> {
    let drains = set.expelled.iter().filter_map(|left| records.drain_of(left.node));
    let mut heirs = drains.map(|drain| drain.to);
    heirs.find(|&to| rooms.fits(records, set, to))
}

/// True for the refusal of a node that has something else of the number.
pub fn is_refused_as_stranger(code: Code) -> bool {
    matches!(code, Code::Foreign | Code::OtherSet)
}

fn is_kept(records: &Snapshot, volume: VolumeId) -> bool {
    !records.is_deleting(volume)
}

fn set_mut(records: &mut Snapshot, volume: u32, index: usize) -> &mut SetRecord {
    let record = records.volume_mut(VolumeId(volume));
    &mut record.expect("it was found just now").sets[index]
}

#[cfg(test)]
mod tests;
