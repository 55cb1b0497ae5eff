//! Changes of a replica set's members while clients go on: one vSSD takes another one's place (`rack::exchange`).
//!
//! A record that says `joining` asks for the preparation, step by step, each for as long as it takes:
//!
//! 1. `Create`: the new vSSD is made. Until it exists nothing else changes, so that a node that is away does no harm.
//! 2. `Join`: every member learns the membership with the new one; that takes part in writes at once, pulls what it lacks,
//!    and answers when it serves. Flushes are for the old members: their copies are what a loss of power must find.
//! 3. `Flush`: flushes are for the new one, too; what it had before is flushed by us. Then it is `Joined`.
//!
//! A record that says `leaving` tells the decision. It is carried out however often it is begun:
//!
//! 4. `Secure`, if the set keeps one copy and its place is taken over: nothing is changed any more, and the new vSSD flushes
//!    what it holds. It may have crashed since it joined, and then pulls everything once more before it answers: the old
//!    copy goes only when the new one is on its medium. The old one is asked, too: if it is gone, all this was done before.
//!    Both are told where the other is, in the membership of before the decision, as their nodes may have moved.
//! 5. `Retire`: the vSSD that leaves is deleted. From then on nobody reads it, and nothing sent to it has an effect. If it
//!    was the primary, nothing new is changed meanwhile, and what was under way is begun anew: its pages are still locked.
//! 6. `Settle`: the others learn the membership without it. A new primary joins once more before it serves: it then knows
//!    every write that its predecessor left undecided, as a primary does that has started again.

use super::Gateway;
use super::control::Owner;
use super::operations::Kind;
use super::set::sooner;
use super::step::{Change, Step, undecided};
use base::{Addr, Instant, NodeId, VolumeId, VssdId};
use rack::control::{Intent, Open};
use rack::exchange::ChangeState;
use rack::registry::{LeavingRecord, SetRecord, VolumeRecord};
use rack::replica::{Member, Membership};
use wire::rack::Code;

impl Gateway {
    /// Begins what the sets of a volume's new record ask for; [`change_state`](Gateway::change_state) tells how far it is.
    pub fn change_sets(&mut self, now: Instant, record: &VolumeRecord) {
        let id = record.volume();
        let Some(index) = self.find(id) else { return };
        for (number, set) in record.sets.iter().enumerate() {
            // The volume may have grown, and this gateway not have the new sets yet.
            let Some(known) = self.volume(index).record.sets.get(number) else {
                break;
            };
            if set.generation <= known.generation {
                continue;
            }
            self.changes
                .retain(|change| (change.volume, change.set) != (id, number));
            self.control.cancel(Owner::Change(id, number));
            let step = match (set.joining, set.leaving) {
                (Some(_), _) => Step::Create,
                (None, Some(leaving)) => Step::decided(set, leaving),
                (None, None) => continue,
            };
            self.volume(index).record.sets[number] = set.clone();
            self.begin(now, index, number, step, false);
        }
        self.send_control(now);
    }

    /// Goes on, at a start, with a change that was decided before.
    pub(super) fn resume_change(
        &mut self,
        now: Instant,
        index: usize,
        id: VolumeId,
        number: usize,
        set: &SetRecord,
    ) {
        let Some(leaving) = set.leaving else { return };
        self.set(index, number).taking_over = true;
        let step = Step::decided(set, leaving);
        let change = Change {
            volume: id,
            set: number,
            step,
            resumed: true,
        };
        self.ask(now, set, change.owner(), step);
        self.changes.push(change);
    }

    /// How far the changes of a volume are.
    pub fn change_state(&self, id: VolumeId) -> ChangeState {
        if self.find(id).is_none() {
            return ChangeState::Busy;
        }
        let mut state = ChangeState::Done;
        for change in self.changes.iter().filter(|change| change.volume == id) {
            if let Some((vssd, code)) = self.control.failure(change.owner()) {
                return ChangeState::Failed(vssd, code);
            }
            state = match (state, change.step) {
                (ChangeState::Done | ChangeState::Joined, Step::Joined) => ChangeState::Joined,
                _ => ChangeState::Busy,
            };
        }
        state
    }

    /// Obstacle to opening a volume.
    pub(super) fn resume_failure(&self, id: VolumeId) -> Option<(VssdId, Code)> {
        let mut resumed = self
            .changes
            .iter()
            .filter(|change| change.volume == id && change.resumed);
        resumed.find_map(|change| self.control.failure(change.owner()))
    }

    /// True while a volume is not open because of what an earlier start has left.
    pub(super) fn is_resuming(&self, id: VolumeId) -> bool {
        self.changes
            .iter()
            .any(|change| change.volume == id && change.resumed)
    }

    pub(super) fn cancel_changes(&mut self, id: VolumeId) {
        for change in self.changes.iter().filter(|change| change.volume == id) {
            self.control.cancel(change.owner());
        }
        self.changes.retain(|change| change.volume != id);
    }

    /// Takes the next step wherever the last one is done.
    pub(super) fn advance_changes(&mut self, now: Instant) {
        for at in 0..self.changes.len() {
            let change = &self.changes[at];
            let (owner, id, number, step) = (change.owner(), change.volume, change.set, change.step);
            if let Step::Secure(leaving) = step
                && (self.control.is_gone(owner, VssdId(leaving.vssd)) || self.is_secure(id, number))
            {
                self.control.cancel(owner);
            }
            let idle = !self.control.is_pending(owner) && step != Step::Joined;
            let Some(index) = self.find(id).filter(|_| idle) else {
                continue;
            };
            if self.control.failure(owner).is_some() {
                // It cannot be done, and waits for that decision.
                continue;
            }
            let next = match step {
                Step::Create => Step::Join,
                Step::Join => Step::Flush,
                Step::Flush | Step::Joined => Step::Joined,
                Step::Secure(leaving) => Step::Retire(leaving),
                Step::Retire(leaving) => Step::Settle(leaving),
                Step::Settle(_) => {
                    self.changes.remove(at);
                    self.set(index, number).taking_over = false;
                    self.launch_waiting(now, index, number);
                    // The places of the others have changed.
                    return self.advance_changes(now);
                }
            };
            self.changes[at].step = next;
            self.enter(now, index, number, owner, next);
        }
        self.send_control(now);
    }

    /// True if the only vSSD of a set has flushed. The other one's word does not count: its medium may have failed.
    fn is_secure(&self, id: VolumeId, number: usize) -> bool {
        let volume = self.find(id).and_then(|index| self.volumes[index].as_ref());
        let new = volume.map(|volume| VssdId(volume.record.sets[number].replicas[0].vssd));
        new.is_some_and(|new| !self.control.awaits(Owner::Change(id, number), new))
    }

    fn begin(&mut self, now: Instant, index: usize, number: usize, step: Step, resumed: bool) {
        let change = Change {
            volume: self.volume(index).record.volume(),
            set: number,
            step,
            resumed,
        };
        let owner = change.owner();
        self.changes.push(change);
        self.enter(now, index, number, owner, step);
    }

    /// Changes of a step here, and its requests to nodes.
    fn enter(&mut self, now: Instant, index: usize, number: usize, owner: Owner, step: Step) {
        match step {
            Step::Flush => {
                let joining = self.volume(index).record.sets[number].joining;
                self.set(index, number).joined = joining.map(|joining| VssdId(joining.vssd));
            }
            Step::Secure(leaving) | Step::Retire(leaving) => {
                self.set(index, number).taking_over |= leaving.was_primary;
            }
            Step::Settle(leaving) => self.replace(now, index, number, leaving),
            Step::Create | Step::Join | Step::Joined => {}
        }
        let set = self.volume(index).record.sets[number].clone();
        self.ask(now, &set, owner, step);
    }

    fn ask(&mut self, now: Instant, set: &SetRecord, owner: Owner, step: Step) {
        let joining = set
            .joining
            .map(|joining| (VssdId(joining.vssd), NodeId(joining.node)));
        match (step, joining) {
            (Step::Create, Some(joining)) => self.open(now, owner, set, joining, Intent::Prepare),
            (Step::Join, _) => {
                for member in set.vssds() {
                    self.open(now, owner, set, member, Intent::Serve);
                }
            }
            (Step::Flush, Some((vssd, node))) => {
                let addr = self.addr(node);
                self.control.flush(now, owner, vssd, addr);
            }
            (Step::Secure(leaving), _) => {
                let before = undecided(set, leaving);
                for (vssd, node) in before.vssds() {
                    self.open(now, owner, &before, (vssd, node), Intent::Serve);
                    let addr = self.addr(node);
                    self.control.flush(now, owner, vssd, addr);
                }
                self.control.insist(owner);
            }
            (Step::Retire(leaving), _) => {
                let addr = self.addr(NodeId(leaving.node));
                self.control.delete(now, owner, VssdId(leaving.vssd), addr);
                self.control.insist(owner);
            }
            (Step::Settle(leaving), _) => {
                for (place, replica) in set.replicas.iter().enumerate() {
                    let takes_over = leaving.was_primary && place == 0;
                    let intent = if takes_over {
                        Intent::TakeOver
                    } else {
                        Intent::Serve
                    };
                    let member = (VssdId(replica.vssd), NodeId(replica.node));
                    self.open(now, owner, set, member, intent);
                }
                self.control.insist(owner);
            }
            (Step::Create | Step::Flush | Step::Joined, _) => {}
        }
    }

    /// Where a node is; nowhere if it is not known, so that what is asked of it waits.
    fn addr(&self, node: NodeId) -> Addr {
        self.control.addr(node).unwrap_or(Addr::NONE)
    }

    /// Opens a vSSD of a set, whose other members are its peers: replicas, and one that joins.
    pub(super) fn open(
        &mut self,
        now: Instant,
        owner: Owner,
        set: &SetRecord,
        (vssd, node): (VssdId, NodeId),
        intent: Intent,
    ) {
        let leaving = set.leaving.map(|leaving| VssdId(leaving.vssd));
        let others = set
            .vssds()
            .filter(|&(other, _)| other != vssd && Some(other) != leaving);
        let peers = others.map(|(vssd, node)| Member {
            vssd,
            node,
            addr: self.addr(node),
        });
        let open = Open {
            intent,
            pages: set.pages,
            channels: set.channels,
            rows: set.rows,
            membership: Membership {
                generation: set.generation,
                peers: peers.collect(),
            },
        };
        self.control.open(now, owner, vssd, self.addr(node), &open);
    }

    /// A vSSD is no more: what is under way to it goes to the one in its place.
    fn replace(&mut self, now: Instant, index: usize, number: usize, leaving: LeavingRecord) {
        let replicas = &self.volume(index).record.sets[number].replicas;
        let new: Vec<VssdId> = replicas.iter().map(|replica| VssdId(replica.vssd)).collect();
        let set = self.set(index, number);
        set.joined = None;
        let old = core::mem::replace(&mut set.replicas, new.clone());
        let gone = VssdId(leaving.vssd);
        // After an undone change it was none of them, and any will do.
        let place = old.iter().position(|&vssd| vssd == gone).unwrap_or(0);
        self.primaries.remove(&old[0].0);
        self.primaries.insert(new[0].0, (index, number));
        for slot in 0..self.operations.bound() {
            let Some(operation) = self.operations.get_mut(slot) else {
                continue;
            };
            if (operation.volume, operation.set, operation.vssd) != (index, number, gone) {
                continue;
            }
            operation.vssd = new[place];
            operation.attempts = 0;
            operation.again_at = now;
            sooner(&mut self.scan_at, now);
            let sent = core::mem::take(&mut operation.number);
            if sent == 0 {
                continue;
            }
            // Numbered anew: an answer of the one that is gone is not taken for one of its successor.
            match operation.kind {
                Kind::Mutate { .. } => {
                    let set = self.set(index, number);
                    set.end_mutation(sent);
                    set.waiting_mutations.push_back(slot);
                }
                Kind::ReadForMerge { .. } | Kind::Read { .. } => {
                    self.operations.renumber(slot);
                    let set = self.set(index, number);
                    set.reads_in_flight -= 1;
                    set.waiting_reads.push_back(slot);
                }
                Kind::Flush { .. } => {
                    self.operations.renumber(slot);
                    self.launch(now, slot);
                }
            }
        }
        self.launch_waiting(now, index, number);
    }
}
