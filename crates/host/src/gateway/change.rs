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
//!    Both are told where the other is, in the membership of before the decision, as their nodes may have moved. The same
//!    goes before a copy that the set is not to have any more: all that stay flush. They do so once before (`Ease`), while
//!    clients go on, so that writes wait for little. It is then `Secured`, and waits for a record that says so: until the
//!    registry has that, the copy can still stay.
//! 5. `Retire`: the vSSD that leaves is deleted. From then on nobody reads it, and nothing sent to it has an effect. If it
//!    was the primary, nothing new is changed meanwhile, and what was under way is begun anew: its pages are still locked.
//! 6. `Settle`: the others learn the membership without it. A new primary joins once more before it serves: it then knows
//!    every write that its predecessor left undecided, as a primary does that has started again.
//!
//! A record that says `expelling` tells that members are lost (`rack::heal`), and only asks for `Settle`: nobody waits for
//! those that are lost. The others answer when the leases of these have lapsed (`rack::lease`).

use super::control::{Control, Owner};
use super::flight::Flight;
use super::step::{Change, Step, departed, has_new_primary, pauses, undecided};
use base::{Instant, NodeId, VolumeId, VssdId};
use rack::control::Intent;
use rack::exchange::ChangeState;
use rack::part::{Part, mark_since};
use rack::registry::{SetRecord, VolumeRecord};
use wire::rack::Code;

/// The changes under way.
#[derive(Default)]
pub(super) struct Changes(Vec<Change>);

impl Changes {
    /// Begins what the sets of a volume's new record ask for.
    pub fn begin(&mut self, now: Instant, flight: &mut Flight, record: &VolumeRecord) {
        let id = record.volume();
        let Some(index) = flight.find(id) else { return };
        for (number, set) in record.sets.iter().enumerate() {
            // The volume may have grown, and this gateway not have the new sets yet.
            let Some(known) = flight.volumes[index].record.sets.get_mut(number) else {
                break;
            };
            let is_known = set.generation <= known.generation;
            match is_known {
                true => known.settled = set.settled,
                false => *known = set.clone(),
            }
            flight.set(index, number).mark = mark_since(set.identity, set.settled);
            if is_known {
                continue;
            }
            self.0
                .retain(|change| (change.volume, change.set) != (id, number));
            flight.control.cancel(Owner::Change(id, number));
            let members: Vec<VssdId> = set.vssds().map(|(vssd, _)| vssd).chain(departed(set)).collect();
            let change = Change {
                volume: id,
                set: number,
                step: Step::first_of_open(set),
                // Who is asked to open the volume would be asked for a membership of before.
                resumed: flight.control.cancel_some(Owner::Volume(id), &members),
            };
            enter(now, flight, index, &change);
            self.0.push(change);
        }
        flight.send_control(now);
    }

    /// Goes on, at a start, with a change that was decided before. Returns false if there is none.
    pub fn resume(
        &mut self,
        now: Instant,
        flight: &mut Flight,
        index: u32,
        number: usize,
        record: &VolumeRecord,
    ) -> bool {
        let set = &record.sets[number];
        if set.leaving.is_none() && set.expelling.is_none() {
            return false;
        }
        flight.set(index, number).taking_over = true;
        let change = Change {
            volume: flight.volumes[index].record.volume(),
            set: number,
            step: Step::first(set),
            resumed: true,
        };
        ask(now, &mut flight.control, record, &change);
        self.0.push(change);
        true
    }

    /// Goes on, at a start, with what joins a volume's sets.
    pub fn join(&mut self, now: Instant, flight: &mut Flight, index: u32) {
        let record = &flight.volumes[index].record;
        let volume = record.volume();
        let joins = |(number, set): (usize, &SetRecord)| set.joining.map(|_| number);
        let joining: Vec<usize> = record.sets.iter().enumerate().filter_map(joins).collect();
        for set in joining {
            let is_at = |change: &Change| (change.volume, change.set) == (volume, set);
            if self.0.iter().any(is_at) {
                continue;
            }
            let change = Change {
                volume,
                set,
                step: Step::Create,
                resumed: false,
            };
            enter(now, flight, index, &change);
            self.0.push(change);
        }
    }

    /// How far the changes of an open volume's sets are.
    pub fn states(&self, control: &Control, id: VolumeId, sets: usize) -> Vec<ChangeState> {
        let mut states = vec![ChangeState::Done; sets];
        for change in self.0.iter().filter(|change| change.volume == id) {
            states[change.set] = match (control.failure(change.owner()), change.step) {
                (Some((vssd, code)), _) => ChangeState::Failed(vssd, code),
                (None, Step::Joined) => ChangeState::Joined,
                (None, Step::Secured) => ChangeState::Secured,
                (None, _) => ChangeState::Busy,
            };
        }
        states
    }

    fn resumed(&self, id: VolumeId) -> impl Iterator<Item = &Change> {
        self.0
            .iter()
            .filter(move |change| change.volume == id && change.resumed)
    }

    /// Obstacle to opening a volume.
    pub fn resume_failure(&self, control: &Control, id: VolumeId) -> Option<(VssdId, Code)> {
        self.resumed(id)
            .find_map(|change| control.failure(change.owner()))
    }

    /// True while a volume is not open because of what an earlier start has left.
    pub fn is_resuming(&self, id: VolumeId) -> bool {
        self.resumed(id).next().is_some()
    }

    pub fn cancel(&mut self, control: &mut Control, id: VolumeId) {
        for change in self.0.iter().filter(|change| change.volume == id) {
            control.cancel(change.owner());
        }
        self.0.retain(|change| change.volume != id);
    }

    /// Takes the next step wherever the last one is done.
    pub fn advance(&mut self, now: Instant, flight: &mut Flight) {
        for at in 0..self.0.len() {
            let change = &mut self.0[at];
            let owner = change.owner();
            if let Step::Secure(leaving) = change.step
                && (flight.control.is_gone(owner, VssdId(leaving.vssd)) || is_secure(flight, change))
            {
                flight.control.cancel(owner);
            }
            let waits = matches!(change.step, Step::Joined | Step::Secured);
            let idle = !flight.control.is_pending(owner) && !waits;
            let Some(index) = flight.find(change.volume).filter(|_| idle) else {
                continue;
            };
            if flight.control.failure(owner).is_some() {
                // It cannot be done, and waits for that decision.
                continue;
            }
            change.step = match change.step {
                Step::Create => Step::Join,
                Step::Join => Step::Flush,
                Step::Flush | Step::Joined => Step::Joined,
                Step::Ease(leaving) => Step::Secure(leaving),
                Step::Secure(leaving) if leaving.may_stay() => Step::Secured,
                Step::Secured => Step::Secured,
                Step::Secure(leaving) => Step::Retire(leaving),
                Step::Retire(_) => Step::Settle,
                Step::Settle => {
                    let number = self.0.remove(at).set;
                    flight.set(index, number).taking_over = false;
                    flight.launch_waiting(now, index, number);
                    // The places of the others have changed.
                    return self.advance(now, flight);
                }
            };
            enter(now, flight, index, change);
        }
        flight.send_control(now);
    }
}

/// True if the vSSDs that stay have flushed. The word of the one that leaves does not count: its medium may have failed.
fn is_secure(flight: &Flight, change: &Change) -> bool {
    let Some(index) = flight.find(change.volume) else {
        return false;
    };
    let stay = &flight.volumes[index].record.sets[change.set].replicas;
    let mut stay = stay.iter().map(|replica| VssdId(replica.vssd));
    stay.all(|vssd| !flight.control.awaits(change.owner(), vssd))
}

/// Changes of a step here, and its requests to nodes.
fn enter(now: Instant, flight: &mut Flight, index: u32, change: &Change) {
    let number = change.set;
    let volume = flight.volumes[index].record.clone();
    let record = &volume.sets[number];
    match change.step {
        Step::Flush => {
            flight.set(index, number).joined = record.joining.map(|joining| VssdId(joining.vssd));
        }
        Step::Secure(leaving) | Step::Retire(leaving) => {
            flight.set(index, number).taking_over |= pauses(leaving);
        }
        Step::Settle => {
            flight.set(index, number).taking_over |= has_new_primary(record);
            let replicas = record.replicas.iter();
            let new = replicas.map(|replica| VssdId(replica.vssd)).collect();
            flight.replace(now, index, number, &departed(record), new);
        }
        Step::Create | Step::Join | Step::Joined | Step::Ease(_) | Step::Secured => {}
    }
    ask(now, &mut flight.control, &volume, change);
}

fn ask(now: Instant, control: &mut Control, volume: &VolumeRecord, change: &Change) {
    let (owner, set) = (change.owner(), &volume.sets[change.set]);
    let open = |control: &mut Control, set: &SetRecord, member: (VssdId, NodeId), intent| {
        let part = Part::of(volume, change.set, set, member.0);
        control.open(now, owner, set, member, intent, part);
    };
    let joining = set
        .joining
        .map(|joining| (VssdId(joining.vssd), NodeId(joining.node)));
    match (change.step, joining) {
        (Step::Create, Some(joining)) => open(control, set, joining, Intent::Prepare),
        (Step::Join, _) => {
            for member in set.vssds() {
                open(control, set, member, Intent::Serve);
            }
        }
        (Step::Flush, Some(joining)) => control.flush(now, owner, joining),
        (Step::Ease(_), _) => {
            for replica in &set.replicas {
                control.flush(now, owner, (VssdId(replica.vssd), NodeId(replica.node)));
            }
            control.insist(owner);
        }
        (Step::Secure(leaving), _) => {
            let before = undecided(set, leaving);
            for member in before.vssds() {
                open(control, &before, member, Intent::Serve);
                control.flush(now, owner, member);
            }
            control.insist(owner);
        }
        (Step::Retire(leaving), _) => {
            control.delete(now, owner, set.left(leaving.into()));
            control.insist(owner);
        }
        (Step::Settle, _) => {
            for (place, replica) in set.replicas.iter().enumerate() {
                let takes_over = has_new_primary(set) && place == 0;
                let intent = if takes_over {
                    Intent::TakeOver
                } else {
                    Intent::Serve
                };
                let member = (VssdId(replica.vssd), NodeId(replica.node));
                open(control, set, member, intent);
            }
            control.insist(owner);
        }
        (Step::Create | Step::Flush | Step::Joined | Step::Secured, _) => {}
    }
}
