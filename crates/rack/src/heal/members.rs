//! What is known of nodes and of members of sets: which are lost, and why.

use super::rules::Rules;
use crate::control::{NodeStatus, Roll};
use crate::registry::{ReplicaRecord, SetRecord, Snapshot};
use base::{Duration, Instant, NodeId, VssdId};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;
use wire::rack::Code;

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

/// The nodes, and the members that they have.
#[derive(Debug)]
pub struct Members {
    pub(super) rules: Rules,
    began: Instant,
    nodes: BTreeMap<u8, Node>,
    /// Members that are lost.
    lost: BTreeMap<u32, Lost>,
    /// Members in whose place nodes have something else, as these have said.
    strangers: BTreeSet<u32>,
    /// Members that are of before what all members of their sets knew, as their nodes have said.
    past: BTreeSet<u32>,
    /// Members that know later members of their sets than the records, as their nodes have said.
    ahead: BTreeSet<u32>,
    /// Members that have joined, and their nodes' starts: an image of the past says nothing of what was copied since.
    renewed: BTreeMap<u32, u32>,
    /// Nodes that have something else in the place of a vSSD, and the start in which each said so: a medium is exchanged with a
    /// start.
    strange: BTreeMap<u8, u32>,
    /// Members that do not serve though they are not lost: since when, and when that was told last.
    idle: BTreeMap<u32, (Instant, Instant)>,
}

impl Members {
    /// Nothing is known yet.
    pub(super) fn new(now: Instant, rules: Rules) -> Self {
        Self {
            rules,
            began: now,
            nodes: BTreeMap::new(),
            lost: BTreeMap::new(),
            strangers: BTreeSet::new(),
            past: BTreeSet::new(),
            ahead: BTreeSet::new(),
            renewed: BTreeMap::new(),
            strange: BTreeMap::new(),
            idle: BTreeMap::new(),
        }
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

    /// These members were refused to the gateway, as their sets have changed since the records were made.
    pub fn ahead(&mut self, vssds: impl Iterator<Item = VssdId>) {
        self.ahead = vssds.map(|vssd| vssd.0).collect();
    }

    /// True if the records of a set are of before.
    pub(super) fn is_outdated(&self, set: &SetRecord) -> bool {
        set.vssds().any(|(vssd, _)| self.ahead.contains(&vssd.0))
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

    /// Judges every member.
    pub fn look(&mut self, now: Instant, records: &Snapshot) {
        let mut lost = BTreeMap::new();
        for (.., set) in records.made_sets() {
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
        let replicas = records.made_sets().flat_map(|(.., set)| &set.replicas);
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
    pub(super) fn is_past(&self, node: u8, records: &Snapshot) -> bool {
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
    pub(super) fn is_before(&self, set: &SetRecord, vssd: u32, node: u8) -> bool {
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

    pub(super) fn is_lost(&self, vssd: u32) -> bool {
        let lost = self.lost.get(&vssd);
        lost.is_some_and(|lost| lost.seen.since(lost.since) >= lost.cause.sure_after())
    }

    pub(super) fn is_silent(&self, vssd: u32) -> bool {
        self.lost
            .get(&vssd)
            .is_some_and(|lost| lost.cause == Cause::Silent)
    }

    /// True if a node's medium is not its own, as far as is known. It gets no copies: they would be lost when the right one is back.
    pub(super) fn is_strange(&self, id: u8) -> bool {
        let boot = self.nodes.get(&id).map(|node| node.status.boot);
        boot.is_some() && self.strange.get(&id).copied() == boot
    }

    /// True if a node answers, and its medium is another rack's.
    pub(super) fn is_elsewhere(&self, node: u8, rack: Uuid) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.is_elsewhere(rack))
    }

    /// True if a node answers in time.
    pub(super) fn answers(&self, node: u8) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.unanswered <= ANSWERS_LATE)
    }

    /// The vSSDs of a node that answers.
    pub(super) fn roll(&self, node: u8) -> Option<&Roll> {
        self.nodes.get(&node).and_then(Node::roll)
    }

    /// True if the node answers and has no vSSD: its medium is new.
    pub(super) fn is_empty(&self, node: u8) -> bool {
        self.roll(node).is_some_and(|roll| roll.here.is_empty())
    }

    /// True if the node answers and has the vSSD.
    pub(super) fn is_here(&self, replica: &ReplicaRecord) -> bool {
        self.has(replica.node, replica.vssd)
    }

    pub(super) fn has(&self, node: u8, vssd: u32) -> bool {
        self.roll(node).is_some_and(|roll| roll.here.contains(&vssd))
    }

    /// True if a replica has what was flushed, as far as its node says.
    pub(super) fn is_well(&self, replica: &ReplicaRecord) -> bool {
        self.is_here(replica) && !self.lost.contains_key(&replica.vssd)
    }

    pub(super) fn serves(&self, replica: &ReplicaRecord) -> bool {
        self.roll(replica.node)
            .is_some_and(|roll| !roll.joining.contains(&replica.vssd))
    }

    /// Nodes that belong to the rack no more are forgotten.
    pub(super) fn forget_removed(&mut self, records: &Snapshot) {
        self.nodes.retain(|id, _| records.has_node(*id));
        let starts: BTreeSet<u32> = self.nodes.values().map(|node| node.status.boot).collect();
        self.renewed.retain(|_, boot| starts.contains(boot));
    }

    /// The nodes, and what each has told last.
    pub(super) fn answers_of_nodes(&self) -> impl Iterator<Item = (u8, &NodeStatus)> {
        self.nodes.iter().map(|(&id, node)| (id, &node.status))
    }

    /// The last answer of a node.
    pub(super) fn heard(&self, node: u8) -> Option<Instant> {
        self.nodes.get(&node).and_then(|node| node.heard)
    }

    /// The starts of the rack's nodes that answer with media of their own.
    pub(super) fn own_boots(&self, records: &Snapshot) -> impl Iterator<Item = (u8, u32)> {
        let heard = self.nodes.iter().filter(|(_, node)| node.roll().is_some());
        let own = heard.filter(|(id, node)| records.has_node(**id) && !node.is_elsewhere(records.rack));
        let own = own.filter(|(id, _)| !self.is_strange(**id));
        own.map(|(&id, node)| (id, node.status.boot))
    }

    /// True if a node does not answer.
    pub(super) fn is_node_silent(&self, now: Instant, node: u8) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.is_silent(now, self.began, &self.rules))
    }

    /// True if a node answers for long enough with a medium of its own, and has not refused a copy just now.
    pub(super) fn takes_copies(&self, now: Instant, id: u8) -> bool {
        let node = self.nodes.get(&id);
        node.is_some_and(|node| node.takes_copies(now, &self.rules)) && !self.is_strange(id)
    }

    /// True if a node that answers may take copies when it has answered for long enough.
    pub(super) fn are_some_on_trial(&self, now: Instant) -> bool {
        let is_on_trial = |node: &Node| node.roll().is_some() && !node.takes_copies(now, &self.rules);
        self.nodes.values().any(is_on_trial)
    }

    /// When the last of these, which are lost, was found to be so.
    pub(super) fn found_lost(&self, lost: &[u32]) -> Option<Instant> {
        let lost = lost.iter().filter_map(|vssd| self.lost.get(vssd));
        lost.map(|lost| lost.since).max()
    }

    /// As long is at least waited for these, which are lost.
    pub(super) fn waited(&self, now: Instant, lost: &[u32]) -> Option<Duration> {
        let lost = lost.iter().filter_map(|vssd| self.lost.get(vssd));
        lost.map(|lost| now.since(lost.since)).min()
    }

    /// True for a member in whose place its node has something else.
    pub(super) fn is_stranger(&self, vssd: u32) -> bool {
        let lost = self.lost.get(&vssd);
        lost.is_some_and(|lost| lost.cause == Cause::Stranger)
    }

    /// A node has something else in the place of a member.
    pub(super) fn note_strange(&mut self, node: u8) {
        let boot = self.nodes.get(&node).map_or(0, |node| node.status.boot);
        self.strange.insert(node, boot);
    }

    /// A member of this node is expelled.
    pub(super) fn note_expelled(&mut self, now: Instant, node: u8) {
        let node = self.nodes.entry(node).or_default();
        if node.expelled_at.is_none_or(|at| now.since(at) >= TRUSTED_AFTER) {
            node.expelled = 0;
        }
        // A node that goes takes members of many sets along.
        if node.expelled_at != Some(now) {
            (node.expelled, node.expelled_at) = (node.expelled + 1, Some(now));
        }
    }

    /// A node has refused a copy.
    pub(super) fn note_refused(&mut self, now: Instant, node: u8) {
        let known = self.nodes.entry(node).or_default();
        known.refused_until = Some(now + REFUSED_FOR);
    }

    /// A member has joined.
    pub(super) fn note_joined(&mut self, vssd: u32, node: u8) {
        if let Some(known) = self.nodes.get(&node) {
            self.renewed.insert(vssd, known.status.boot);
        }
    }
}
