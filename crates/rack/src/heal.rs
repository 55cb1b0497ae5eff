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
//! - Nobody is expelled unless a member stays that has what was flushed: a replica that is well, on a node that answers in time. Of two
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
//! - An expelled vSSD is deleted when its set has all copies. A node deletes nothing in its place that is of another set. What is to be
//!   deleted on a node whose medium is another rack's waits for the right medium.

use crate::charge::Charge;
use crate::control::{NodeStatus, Roll};
use crate::exchange::ChangeState;
use crate::moves;
use crate::registry::{JoiningRecord, LeavingRecord, LeftRecord, ReplicaRecord, SetRecord, Snapshot};
use crate::room::{Rooms, Site, promised};
use base::event::Kind;
use base::{Duration, Instant, NodeId, VolumeId, VssdId};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;
use wire::rack::Code;

/// How patient the healing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nodes are asked this often.
    pub ask_every: Duration,
    /// A node that has not answered for so long is silent; far less than a lease ([`crate::lease::LEASE`]).
    pub silent_after: Duration,
    /// As long is waited for a member that is lost while no other serves.
    pub patience: Duration,
    /// A node has to answer for so long before what was expelled there joins again.
    pub rejoin_after: Duration,
    /// A copy that lacks for so long is made anew on another node.
    pub rebuild_after: Duration,
    /// vSSDs that join at a time, to restore redundancy.
    pub joins_max: usize,
    /// Members that move at a time.
    pub moves_max: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            ask_every: Duration::from_millis(200),
            silent_after: Duration::from_secs(1),
            patience: Duration::from_secs(30),
            rejoin_after: Duration::from_secs(1),
            rebuild_after: Duration::from_secs(60),
            joins_max: 4,
            moves_max: 2,
        }
    }
}

/// A node is silent only after so many unanswered questions: time alone says nothing, as whoever asks may have slept.
const ASKS_UNANSWERED: u32 = 4;
/// A node with more unanswered questions than this takes no part in moves, and nobody is expelled for its members to stay: it may be
/// about to be lost.
const ANSWERS_LATE: u32 = 1;
/// A vSSD must be missing, of before, or not heard by others, for so long.
const SURE_AFTER: Duration = Duration::from_millis(500);
const UNHEARD_AFTER: Duration = Duration::from_millis(1_500);
/// A member that does not know the membership must be told of it for so long: the gateway asks at least every two seconds.
const BEHIND_AFTER: Duration = Duration::from_secs(5);
/// A node that refused a copy is not asked again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// Times that the wait for a node's return is doubled, at most.
const DOUBLINGS_MAX: u32 = 6;
/// A node that was expelled from no set for so long is trusted again.
const TRUSTED_AFTER: Duration = Duration::from_secs(600);

/// A node, as far as it is known.
#[derive(Clone, Debug, Default)]
struct Node {
    unanswered: u32,
    /// Its last answer.
    heard: Option<Instant>,
    /// It has answered since.
    answers_since: Option<Instant>,
    status: NodeStatus,
    /// Times that its members were expelled, and when that was last.
    expelled: u32,
    expelled_at: Option<Instant>,
    /// It takes no copy before this.
    refused_until: Option<Instant>,
}

impl Node {
    fn is_silent(&self, now: Instant, began: Instant, rules: &Rules) -> bool {
        let since = self.heard.unwrap_or(began);
        self.unanswered >= ASKS_UNANSWERED && now.since(since) >= rules.silent_after
    }

    /// It answers, and names its vSSDs.
    fn roll(&self) -> Option<&Roll> {
        let roll = self.status.roll.as_ref();
        roll.filter(|_| self.heard.is_some() && self.unanswered < ASKS_UNANSWERED)
    }

    /// It answers, and its medium is another rack's.
    fn is_elsewhere(&self, rack: Uuid) -> bool {
        self.roll().is_some() && self.status.is_of_other_rack(rack)
    }

    fn answers_for(&self, now: Instant) -> Duration {
        self.answers_since
            .map_or(Duration::ZERO, |since| now.since(since))
    }

    /// As long it has to answer before it is trusted with what was expelled.
    fn trial(&self, now: Instant, rules: &Rules) -> Duration {
        let is_old = |at: Instant| now.since(at) >= TRUSTED_AFTER;
        let times = match self.expelled_at.is_none_or(is_old) {
            true => 0,
            false => self.expelled.saturating_sub(1).min(DOUBLINGS_MAX),
        };
        rules.rejoin_after * (1 << times)
    }

    /// True if it answers for long enough, and has not refused a copy just now.
    fn takes_copies(&self, now: Instant, rules: &Rules) -> bool {
        let is_refused = self.refused_until.is_some_and(|until| now < until);
        self.roll().is_some() && !is_refused && self.answers_for(now) >= self.trial(now, rules)
    }
}

/// Why a member counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Silent,
    Missing,
    Failed,
    Past,
    /// It has missed what all members knew, perhaps by an answer of before they did.
    Before,
    Unheard,
    /// It does not serve, and knows an earlier membership only.
    Behind,
    /// Its node has something else in its place.
    Stranger,
}

impl Cause {
    fn sure_after(self) -> Duration {
        match self {
            Self::Silent | Self::Failed | Self::Past | Self::Stranger => Duration::ZERO,
            Self::Missing | Self::Before => SURE_AFTER,
            Self::Unheard => UNHEARD_AFTER,
            Self::Behind => BEHIND_AFTER,
        }
    }
}

/// A member that is lost.
#[derive(Clone, Copy, Debug)]
struct Lost {
    since: Instant,
    /// When that was told last.
    seen: Instant,
    cause: Cause,
    /// Of its set's membership: a member of another one is judged anew.
    generation: u32,
}

impl Lost {
    /// One answer may be of before the member was made.
    fn is_certain(&self) -> bool {
        self.cause.sure_after().is_zero() || self.seen > self.since
    }
}

/// The healing of a rack.
#[derive(Debug)]
pub struct Heal {
    rules: Rules,
    began: Instant,
    nodes: BTreeMap<u8, Node>,
    /// Members that are lost.
    lost: BTreeMap<u32, Lost>,
    /// Members in whose place nodes have something else, as these have said.
    strangers: BTreeSet<u32>,
    /// Members that are of before what all members of their sets knew, as their nodes have said.
    past: BTreeSet<u32>,
    /// Members that have joined, and their nodes' starts: an image of the past says nothing of what was copied since.
    renewed: BTreeMap<u32, u32>,
    /// Nodes that have something else in the place of a vSSD, and the start in which each said so: a medium is exchanged with a
    /// start.
    strange: BTreeMap<u8, u32>,
    /// Members that do not serve though they are not lost: since when, and when that was told last.
    idle: BTreeMap<u32, (Instant, Instant)>,
    /// Sets that lack copies, by volume and index, since when.
    degraded: BTreeMap<(u32, usize), Instant>,
    /// Those of them for which no node has room that answers, as told.
    without_room: BTreeSet<(u32, usize)>,
    /// vSSDs that join, since when.
    joining: BTreeMap<u32, Instant>,
    /// What is to be deleted: since when that is known, and the first answer of its node since.
    left: BTreeMap<u32, (Instant, Option<Instant>)>,
    /// Nodes that were drained, as told.
    drained: BTreeSet<u8>,
    /// When the members of a set changed last.
    changed_at: Instant,
    told: Vec<Kind>,
}

impl Heal {
    /// Of a rack about which nothing is known yet.
    pub fn new(now: Instant, rules: Rules) -> Self {
        Self {
            rules,
            began: now,
            nodes: BTreeMap::new(),
            lost: BTreeMap::new(),
            strangers: BTreeSet::new(),
            past: BTreeSet::new(),
            renewed: BTreeMap::new(),
            strange: BTreeMap::new(),
            idle: BTreeMap::new(),
            degraded: BTreeMap::new(),
            without_room: BTreeSet::new(),
            joining: BTreeMap::new(),
            left: BTreeMap::new(),
            drained: BTreeSet::new(),
            changed_at: now,
            told: Vec::new(),
        }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// These nodes were asked.
    pub fn asked(&mut self, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            let known = self.nodes.entry(node.0).or_default();
            known.unanswered = known.unanswered.saturating_add(1);
        }
    }

    /// A node's last answer. One of before the healing began says nothing: the records may have changed since.
    pub fn answered(&mut self, now: Instant, node: NodeId, at: Instant, status: &NodeStatus) {
        let (began, rules) = (self.began, self.rules);
        if at < began {
            return;
        }
        let known = self.nodes.entry(node.0).or_default();
        if known.heard.is_some_and(|heard| heard >= at) {
            return;
        }
        // A node that has started anew may go again.
        let is_new = known.is_silent(now, began, &rules) || known.status.boot != status.boot;
        if is_new || known.answers_since.is_none() {
            known.answers_since = Some(at);
        }
        known.heard = Some(at);
        known.unanswered = 0;
        known.status = status.clone();
    }

    /// These members were refused to the gateway as something else, while another member of each one's set was not: it is what the
    /// records say.
    pub fn strangers(&mut self, vssds: impl Iterator<Item = VssdId>) {
        self.strangers = vssds.map(|vssd| vssd.0).collect();
    }

    /// These members were refused to the gateway as images of the past.
    pub fn past(&mut self, vssds: impl Iterator<Item = VssdId>) {
        self.past = vssds.map(|vssd| vssd.0).collect();
    }

    /// Members that do not serve. One answer of a node says little of it: it may be of before the member was made.
    pub fn absent(&self) -> impl Iterator<Item = VssdId> {
        let lost = self.lost.iter().filter(|(_, lost)| lost.is_certain());
        let idle = self.idle.iter().filter(|(_, (since, seen))| seen > since);
        let all = lost.map(|(vssd, _)| vssd).chain(idle.map(|(vssd, _)| vssd));
        all.map(|vssd| VssdId(*vssd))
    }

    /// Members of which nothing is on their nodes, though these answer, and why.
    pub fn gone(&self) -> impl Iterator<Item = (VssdId, Code)> {
        let code = |(&vssd, lost): (&u32, &Lost)| match lost.cause {
            Cause::Missing => Some((VssdId(vssd), Code::NoVssd)),
            Cause::Stranger => Some((VssdId(vssd), Code::OtherSet)),
            _ => None,
        };
        let lost = self.lost.iter().filter(|(_, lost)| lost.is_certain());
        lost.filter_map(code)
    }

    /// Volumes of which a set lacks a copy that no node has room for that answers.
    pub fn without_room(&self) -> impl Iterator<Item = VolumeId> {
        let volumes: BTreeSet<u32> = self.without_room.iter().map(|(volume, _)| *volume).collect();
        volumes.into_iter().map(VolumeId)
    }

    /// The next event.
    pub fn poll_told(&mut self) -> Option<Kind> {
        (!self.told.is_empty()).then(|| self.told.remove(0))
    }

    /// vSSDs that are to be deleted, on nodes that answer and have them.
    pub fn discards<'a>(&'a self, records: &'a Snapshot) -> impl Iterator<Item = LeftRecord> + 'a {
        let is_here = |left: &&LeftRecord| {
            self.has(left.node, left.vssd) && !self.is_elsewhere(left.node, records.rack)
        };
        records.leftovers.iter().filter(is_here).copied()
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
        self.look(now, records);
        let mut next = records.clone();
        // First, as the gateway tells of changes that are in the records, and of none that begins now.
        self.settle(now, &mut next, charge, state);
        self.expel(now, &mut next, charge);
        self.forget_lost(now, &mut next, charge);
        let mut rooms = self.rooms(now, &next);
        self.join(now, &mut next, charge, &mut rooms);
        self.move_members(now, &mut next, charge, &mut rooms);
        self.tidy(now, &mut next, charge);
        if charge.rack {
            self.note_boots(&mut next);
        }
        (next != *records).then_some(next)
    }

    /// Nodes that belong to the rack no more are forgotten.
    fn forget_removed(&mut self, records: &Snapshot) {
        self.nodes.retain(|id, _| records.has_node(*id));
        self.drained.retain(|id| records.drain_of(*id).is_some());
        let starts: BTreeSet<u32> = self.nodes.values().map(|node| node.status.boot).collect();
        self.renewed.retain(|_, boot| starts.contains(boot));
    }

    /// Judges every member.
    fn look(&mut self, now: Instant, records: &Snapshot) {
        let mut lost = BTreeMap::new();
        for set in sets(records).map(|(_, _, set)| set) {
            let causes: Vec<(VssdId, NodeId, Option<Cause>)> = set
                .vssds()
                .map(|(vssd, node)| (vssd, node, self.own_cause(now, records, set, vssd, node)))
                .collect();
            let sound: Vec<(u32, u8)> = causes
                .iter()
                .filter(|(.., cause)| cause.is_none())
                .map(|(vssd, node, _)| (vssd.0, node.0))
                .collect();
            let unheard = self.unheard(set, &sound);
            for (vssd, node, cause) in causes {
                let cause = cause.or((unheard == Some(vssd.0)).then_some(Cause::Unheard));
                let Some(cause) = cause else { continue };
                let seen = self.seen(now, cause, set, node.0);
                let known = self.lost.get(&vssd.0).copied();
                let known = known.filter(|known| (known.cause, known.generation) == (cause, set.generation));
                let new = Lost {
                    since: now,
                    seen,
                    cause,
                    generation: set.generation,
                };
                let since = known.map_or(now, |known| known.since);
                lost.insert(vssd.0, Lost { since, ..new });
            }
        }
        self.lost = lost;
        self.note_idle(records);
    }

    /// Notes which members are there and do not serve.
    fn note_idle(&mut self, records: &Snapshot) {
        let replicas = sets(records).flat_map(|(_, _, set)| &set.replicas);
        let idle = replicas.filter(|replica| self.is_well(replica) && !self.serves(replica));
        let told = idle.map(|replica| {
            let heard = self.nodes[&replica.node].heard.expect("it answers");
            let since = self.idle.get(&replica.vssd).map_or(heard, |(since, _)| *since);
            (replica.vssd, (since, heard))
        });
        self.idle = told.collect();
    }

    /// When that was told last: whoever looks may have slept, and then has answers of before.
    fn seen(&self, now: Instant, cause: Cause, set: &SetRecord, node: u8) -> Instant {
        let heard = |node: u8| {
            let node = self.nodes.get(&node).filter(|node| node.roll().is_some());
            node.and_then(|node| node.heard)
        };
        let told = match cause {
            Cause::Silent => None,
            Cause::Unheard => set.vssds().filter_map(|(_, node)| heard(node.0)).min(),
            _ => heard(node),
        };
        told.unwrap_or(now)
    }

    fn cause(&self, now: Instant, vssd: u32, node: u8, joins: bool) -> Option<Cause> {
        let node = self.nodes.get(&node)?;
        if node.is_silent(now, self.began, &self.rules) {
            return Some(Cause::Silent);
        }
        let roll = node.roll()?;
        if roll.failed.contains(&vssd) {
            return Some(Cause::Failed);
        }
        // One that joins may not be made yet; if it cannot be, its node says so.
        (!joins && !roll.here.contains(&vssd)).then_some(Cause::Missing)
    }

    /// True if the medium of a node that answers has not seen the start that the records have: it is an image of the past.
    fn is_past(&self, node: u8, records: &Snapshot) -> bool {
        let known = self.nodes.get(&node).filter(|known| known.roll().is_some());
        let (Some(known), Some(&boot)) = (known, records.boots.get(&node)) else {
            return false;
        };
        let status = &known.status;
        status.boot < boot || status.boot > boot && status.boot_before.is_some_and(|before| before < boot)
    }

    /// Why a member is lost, apart from what the others hear.
    fn own_cause(
        &self,
        now: Instant,
        records: &Snapshot,
        set: &SetRecord,
        vssd: VssdId,
        node: NodeId,
    ) -> Option<Cause> {
        let joins = set.joining.is_some_and(|joining| joining.vssd == vssd.0);
        let is_past = || self.is_past(node.0, records) && !self.is_renewed(vssd.0, node.0);
        let is_past = !joins && set.wanted() > 1 && is_past();
        let has_missed = || !joins && self.is_before(set, vssd.0, node.0);
        let cause = self.cause(now, vssd.0, node.0, joins);
        let is_behind = || {
            let known = self.generation(vssd.0, node.0);
            !set.is_changing() && known.is_some_and(|known| known < set.generation)
        };
        let is_stranger = || self.strangers.contains(&vssd.0) || self.is_elsewhere(node.0, records.rack);
        let is_stranger = !joins && is_stranger();
        cause
            .or(is_stranger.then_some(Cause::Stranger))
            .or(is_past.then_some(Cause::Past))
            .or_else(|| has_missed().then_some(Cause::Before))
            .or_else(|| is_behind().then_some(Cause::Behind))
    }

    /// True for a member that has joined since its node started.
    fn is_renewed(&self, vssd: u32, node: u8) -> bool {
        let boot = self.nodes.get(&node).map(|node| node.status.boot);
        boot.is_some() && self.renewed.get(&vssd).copied() == boot
    }

    /// The membership that a member knows, if it does not serve and its node answers.
    fn generation(&self, vssd: u32, node: u8) -> Option<u32> {
        let mut known = self.roll(node)?.generations.iter();
        known.find_map(|&(of, generation)| (of == vssd).then_some(generation))
    }

    /// True for a member that has missed what all members knew: it is on an image of the past.
    fn is_before(&self, set: &SetRecord, vssd: u32, node: u8) -> bool {
        let known = self.generation(vssd, node);
        self.past.contains(&vssd) || known.is_some_and(|known| known < set.settled)
    }

    /// Of the members that are not lost themselves: the one that most others do not hear, or that hears most others not. Who does not hear
    /// a lost one is not to blame.
    fn unheard(&self, set: &SetRecord, members: &[(u32, u8)]) -> Option<u32> {
        let mut counts: Vec<u32> = vec![0; members.len()];
        let place = |of: u32| members.iter().position(|(vssd, _)| *vssd == of);
        // One that joins hears nobody before the others know of it.
        let joining = set.joining.map(|joining| joining.vssd);
        for (vssd, node) in members.iter().filter(|(vssd, _)| Some(*vssd) != joining) {
            let Some(roll) = self.roll(*node) else { continue };
            for (_, peer) in roll.unheard.iter().filter(|(of, _)| of == vssd) {
                if let (Some(one), Some(other)) = (place(*vssd), place(*peer))
                    && self.roll(members[other].1).is_some()
                {
                    counts[one] += 1;
                    counts[other] += 1;
                }
            }
        }
        // Of two that do not hear each other the primary stays.
        let most = counts.iter().copied().max().filter(|most| *most > 0)?;
        let place = counts.iter().rposition(|count| *count == most)?;
        Some(members[place].0)
    }

    fn is_lost(&self, vssd: u32) -> bool {
        let lost = self.lost.get(&vssd);
        lost.is_some_and(|lost| lost.seen.since(lost.since) >= lost.cause.sure_after())
    }

    fn is_silent(&self, vssd: u32) -> bool {
        self.lost
            .get(&vssd)
            .is_some_and(|lost| lost.cause == Cause::Silent)
    }

    /// A node has something else in the place of a vSSD.
    fn note_strange(&mut self, set: &mut SetRecord, volume: VolumeId, vssd: VssdId, node: NodeId) {
        set.strangers.push(vssd.0);
        let boot = self.nodes.get(&node.0).map_or(0, |node| node.status.boot);
        self.strange.insert(node.0, boot);
        self.told.push(Kind::CopyForeign { volume, vssd, node });
    }

    /// True if a node's medium is not its own, as far as is known. It gets no copies: they would be lost when the right one is back.
    fn is_strange(&self, id: u8) -> bool {
        let boot = self.nodes.get(&id).map(|node| node.status.boot);
        boot.is_some() && self.strange.get(&id).copied() == boot
    }

    /// True if a node answers, and its medium is another rack's.
    fn is_elsewhere(&self, node: u8, rack: Uuid) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.is_elsewhere(rack))
    }

    /// True if a node answers in time.
    fn answers(&self, node: u8) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.unanswered <= ANSWERS_LATE)
    }

    /// The vSSDs of a node that answers.
    fn roll(&self, node: u8) -> Option<&Roll> {
        self.nodes.get(&node).and_then(Node::roll)
    }

    /// True if the node answers and has the vSSD.
    fn is_here(&self, replica: &ReplicaRecord) -> bool {
        self.has(replica.node, replica.vssd)
    }

    fn has(&self, node: u8, vssd: u32) -> bool {
        self.roll(node).is_some_and(|roll| roll.here.contains(&vssd))
    }

    /// True if a replica has what was flushed, as far as its node says.
    fn is_well(&self, replica: &ReplicaRecord) -> bool {
        self.is_here(replica) && !self.lost.contains_key(&replica.vssd)
    }

    fn serves(&self, replica: &ReplicaRecord) -> bool {
        self.roll(replica.node)
            .is_some_and(|roll| !roll.joining.contains(&replica.vssd))
    }

    /// Expels members that are lost.
    fn expel(&mut self, now: Instant, next: &mut Snapshot, charge: Charge) {
        let mut victims: Vec<(u32, usize, Vec<u32>)> = Vec::new();
        let is_own = |volume: VolumeId| is_kept(next, volume) && (charge.leads)(volume);
        for (volume, index, set) in sets(next).filter(|(volume, ..)| is_own(*volume)) {
            let is_lost = |replica: &&ReplicaRecord| self.is_lost(replica.vssd);
            let lost: Vec<u32> = set.replicas.iter().filter(is_lost).map(|r| r.vssd).collect();
            if lost.is_empty() {
                continue;
            }
            let stays = set.replicas.iter().filter(|r| !lost.contains(&r.vssd));
            let kept = set.leaving.filter(LeavingRecord::may_stay);
            let kept = kept.map(|LeavingRecord { vssd, node, .. }| ReplicaRecord { vssd, node });
            let stays = stays.chain(kept.as_ref());
            let is_there = |replica: &&ReplicaRecord| self.is_well(replica) && self.answers(replica.node);
            let mut stay = stays.filter(is_there).peekable();
            let since = lost.iter().filter_map(|vssd| self.lost.get(vssd));
            let waited = since.map(|lost| now.since(lost.since)).min();
            let is_patient = waited.is_some_and(|waited| waited >= self.rules.patience);
            if stay.peek().is_some() && (is_patient || stay.any(|replica| self.serves(replica))) {
                victims.push((volume.0, index, lost));
            }
        }
        let mut sets_of_victims = victims.iter().map(|&(volume, index, _)| (volume, index));
        if sets_of_victims.any(|(volume, index)| set_mut(next, volume, index).exchanges()) {
            next.undo_exchange();
        }
        for (volume, index, lost) in victims {
            let set = set_mut(next, volume, index);
            for replica in set.replicas.iter().filter(|r| lost.contains(&r.vssd)) {
                let node = self.nodes.entry(replica.node).or_default();
                if node.expelled_at.is_none_or(|at| now.since(at) >= TRUSTED_AFTER) {
                    node.expelled = 0;
                }
                // A node that goes takes members of many sets along.
                if node.expelled_at != Some(now) {
                    (node.expelled, node.expelled_at) = (node.expelled + 1, Some(now));
                }
            }
            let is_stranger = |vssd: &u32| {
                self.lost
                    .get(vssd)
                    .is_some_and(|lost| lost.cause == Cause::Stranger)
            };
            let strangers = set.replicas.iter().filter(|replica| lost.contains(&replica.vssd));
            let strangers = strangers.filter(|replica| is_stranger(&replica.vssd)).copied();
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
        let own = sets(next).filter(|(volume, ..)| (charge.leads)(*volume));
        let found: Vec<(u32, usize)> = own.map(|(volume, index, _)| (volume.0, index)).collect();
        for (volume, index) in found {
            let deletes = !is_kept(next, VolumeId(volume));
            let joining = set_mut(next, volume, index).joining;
            if let Some(joining) = joining.filter(|joining| self.is_lost(joining.vssd)) {
                match joining.exchanges() {
                    true => _ = next.undo_exchange(),
                    false => self.give_up_joining(now, next, volume, index),
                }
            }
            let set = set_mut(next, volume, index);
            let mut left = Vec::new();
            if let Some(leaving) = set.leaving.take_if(|leaving| self.is_lost(leaving.vssd)) {
                let (vssd, node) = (leaving.vssd, leaving.node);
                left.push(set.left(ReplicaRecord { vssd, node }));
                set.note_expelled(&[vssd], leaving.was_primary);
            }
            if deletes {
                let (gone, stay) = set
                    .replicas
                    .iter()
                    .partition(|r: &&ReplicaRecord| self.is_silent(r.vssd));
                set.replicas = stay;
                left.extend(Vec::into_iter(gone).map(|replica| set.left(replica)));
            }
            next.leftovers.extend(left);
        }
        self.forget_growth(now, next, charge);
    }

    /// Nor for what a lost node is to make for a volume that grows. That growth is undone then.
    fn forget_growth(&self, now: Instant, next: &mut Snapshot, charge: Charge) {
        let is_silent = |replica: &ReplicaRecord| {
            let node = self.nodes.get(&replica.node);
            node.is_some_and(|node| node.is_silent(now, self.began, &self.rules))
        };
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
        let known = self.nodes.entry(node).or_default();
        known.refused_until = Some(now + REFUSED_FOR);
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
        let own = sets(next).filter(|(volume, ..)| (charge.leads)(*volume));
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
        if let Some(known) = self.nodes.get(&node) {
            self.renewed.insert(vssd, known.status.boot);
        }
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
        let lacking = sets(next).filter(|(volume, _, set)| set.lacks_copies() && is_own(*volume));
        let lacking: Vec<(u32, usize)> = lacking.map(|(volume, index, _)| (volume.0, index)).collect();
        self.degraded.retain(|at, _| lacking.contains(at));
        self.without_room.retain(|at| lacking.contains(at));
        let heals = |(_, _, set): &(VolumeId, usize, &SetRecord)| set.joining.is_some_and(|j| j.heals());
        let mut joins = sets(next).filter(heals).count();
        // A node that answers may take copies when it has answered for long enough.
        let is_on_trial = |node: &Node| node.roll().is_some() && !node.takes_copies(now, &self.rules);
        let hope = self.nodes.values().any(is_on_trial);
        for (volume, index) in lacking {
            let since = *self.degraded.entry((volume, index)).or_insert(now);
            let set = set_mut(next, volume, index).clone();
            let has_source = set.replicas.iter().any(|replica| self.is_well(replica));
            if joins >= self.rules.joins_max || set.is_changing() || !has_source {
                continue;
            }
            // Nobody who is wanted has to come back.
            let none_returns = set.expelled.iter().all(|left| next.goes(left.node));
            let is_late = none_returns || now.since(since) >= self.rules.rebuild_after;
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
        let node = self.nodes.get(&left.node);
        let has_failed = |roll: &Roll| roll.failed.contains(&left.vssd);
        node.is_some_and(|node| node.takes_copies(now, &self.rules))
            && !self.is_strange(left.node)
            && self.is_here(left)
            && !self.roll(left.node).is_some_and(has_failed)
    }

    /// The room of the nodes, without what the records have given them and they do not know of yet.
    fn rooms(&self, now: Instant, records: &Snapshot) -> Rooms {
        let site = |(&id, node): (&u8, &Node)| {
            let is_open = node.takes_copies(now, &self.rules) && !self.is_strange(id);
            Site::new(id, &node.status, records.rack, is_open)
        };
        let mut rooms = Rooms::new(self.nodes.iter().map(site));
        for (set, replica) in promised(records) {
            if !self.is_here(&replica) {
                rooms.give(set, replica.node);
            }
        }
        rooms
    }

    /// Lets members move, and tells which nodes have none any more.
    fn move_members(&mut self, now: Instant, next: &mut Snapshot, charge: Charge, rooms: &mut Rooms) {
        let since = self.changed_at + self.rules.ask_every;
        let is_fresh = |(&id, node): (&u8, &Node)| {
            let is_gone = next.is_replaced(id) && !rooms.is_open(id);
            is_gone || node.heard.is_some_and(|heard| heard >= since)
        };
        let is_fresh = self.nodes.iter().all(is_fresh);
        let told = moves::begin(
            next,
            &mut moves::Sight {
                rooms,
                is_well: &|replica| {
                    self.answers(replica.node) && self.is_well(replica) && self.serves(replica)
                },
                is_fresh,
                moves_max: self.rules.moves_max,
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
        let heard = self.nodes.iter().filter(|(_, node)| node.roll().is_some());
        let own = heard.filter(|(id, node)| next.has_node(**id) && !node.is_elsewhere(next.rack));
        let own = own.filter(|(id, _)| !self.is_strange(**id));
        let noted = own.filter(|(id, _)| !self.is_past(**id, next) || !self.holds_present(**id, next));
        let noted: Vec<(u8, u32)> = noted.map(|(&id, node)| (id, node.status.boot)).collect();
        let is_past = |(id, _): &&(u8, u32)| self.is_past(*id, next);
        let restored = noted.iter().filter(is_past).map(|(id, _)| NodeId(*id));
        let restored = restored.map(|node| Kind::NodeRestored { node });
        self.told.extend(restored.collect::<Vec<_>>());
        next.boots.extend(noted);
    }

    /// True if a node has a member of a set that is to have others, and not all that the set has are images of the past.
    fn holds_present(&self, node: u8, records: &Snapshot) -> bool {
        let is_one = |(_, _, set): (VolumeId, usize, &SetRecord)| {
            let mut here = set.replicas.iter().filter(|replica| replica.node == node);
            let is_restored = || set.replicas.iter().all(|r| self.is_past(r.node, records));
            set.wanted() > 1 && here.any(|r| self.is_before(set, r.vssd, node) || !is_restored())
        };
        sets(records).any(is_one)
    }

    /// Expelled vSSDs of a set that has all copies are nobody's; those that a node does not have are forgotten.
    fn tidy(&mut self, now: Instant, next: &mut Snapshot, charge: Charge) {
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
        let rack = next.rack;
        next.leftovers
            .retain(|left| !(charge.rack && self.is_deleted(now, left, rack)));
        next.leftovers.append(&mut left);
        let is_left = |vssd: &u32| next.leftovers.iter().any(|left| left.vssd == *vssd);
        self.left.retain(|vssd, _| is_left(vssd));
    }

    /// True if the node has its own medium, and what was to be deleted is not there. Its first answer may be to a question of before.
    fn is_deleted(&mut self, now: Instant, left: &LeftRecord, rack: Uuid) -> bool {
        let (since, first) = *self.left.entry(left.vssd).or_insert((now, None));
        let node = self.nodes.get(&left.node).filter(|node| node.roll().is_some());
        let Some(heard) = node.and_then(|node| node.heard).filter(|heard| *heard > since) else {
            return false;
        };
        if first.is_none() {
            self.left.insert(left.vssd, (since, Some(heard)));
        }
        first.is_some_and(|first| heard > first)
            && !self.has(left.node, left.vssd)
            && !self.is_elsewhere(left.node, rack)
    }
}

/// The sets of volumes that were made, or are being deleted.
fn sets(records: &Snapshot) -> impl Iterator<Item = (VolumeId, usize, &SetRecord)> {
    let made = records
        .volumes
        .iter()
        .filter(|volume| volume.ready || !is_kept(records, volume.volume()));
    made.flat_map(|volume| {
        let sets = volume.sets.iter().enumerate();
        sets.map(|(index, set)| (volume.volume(), index, set))
    })
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
#[path = "heal_tests.rs"]
mod tests;
