//! The healing of sets (`rack::heal`) while the gateway serves. It asks the nodes how they are, stores changed records, and
//! hands them on.

use super::call::{Call, View, VolumeView};
use super::command::Ills;
use super::job::{LATER, Sight, Step};
use base::event::Kind;
use base::{Duration, Instant, VolumeId};
use rack::charge::Charge;
use rack::exchange::ChangeState;
use rack::heal::{Heal, Rules};
use rack::registry::{LeftRecord, Snapshot, VolumeRecord};

/// vSSDs that are nobody's are asked to be deleted at once, and this often.
const DISCARD_EVERY: Duration = Duration::from_secs(5);

/// The healing beside one gateway.
#[derive(Debug)]
pub(super) struct Healing {
    heal: Heal,
    ask_at: Instant,
    /// The loss for which they were asked earlier ([`Heal::asks`]).
    asked_for: Option<Instant>,
    discard_at: Instant,
    /// They were asked for last.
    discarding: Vec<LeftRecord>,
    /// Epoch of the records that the gateway has.
    handed_on: Option<u64>,
}

impl Healing {
    /// Begins when the gateway begins to serve these records.
    pub fn new(now: Instant, rules: Rules, served: &Snapshot) -> Self {
        Self {
            heal: Heal::new(now, rules),
            ask_at: now,
            asked_for: None,
            discard_at: now,
            discarding: Vec::new(),
            handed_on: Some(served.epoch),
        }
    }

    /// The volumes that have to be seen, as far as they are this gateway's.
    pub fn volumes(records: &Snapshot) -> impl Iterator<Item = VolumeId> {
        let changing = records.volumes.iter().filter(|volume| is_changing(volume));
        changing.map(VolumeRecord::volume)
    }

    /// The next event.
    pub fn poll_told(&mut self) -> Option<Kind> {
        self.heal.poll_told()
    }

    /// The faults of sets.
    pub fn ills(&self, now: Instant) -> Ills {
        let heal = &self.heal;
        Ills {
            absent: heal.members().absent().collect(),
            gone: heal.members().gone().collect(),
            without_room: heal.without_room().collect(),
            awaited: heal
                .awaited()
                .map(|(volume, until)| (volume, until.since(now)))
                .collect(),
        }
    }

    /// Next step.
    pub fn advance(&mut self, sight: &Sight, charge: Charge) -> Step {
        let (now, records) = (sight.now, sight.records);
        if self.handed_on != Some(records.epoch) {
            self.handed_on = Some(records.epoch);
            let changed = records.served().filter(|volume| was_changed(volume));
            let changed: Vec<VolumeRecord> = changed.cloned().collect();
            if !changed.is_empty() {
                return Step::Call(Call::Change(changed));
            }
        }
        let Some(view) = sight.view else {
            return Step::Look;
        };
        if let Some(step) = self.observe(now, view) {
            return step;
        }
        let state = |id: VolumeId, set: usize| {
            let seen = view.volumes.iter().find(|volume| volume.id == id);
            let state = seen.and_then(|seen: &VolumeView| seen.changes.get(set));
            state.copied().unwrap_or(ChangeState::Busy)
        };
        if let Some(next) = self.heal.next(now, records, charge, state) {
            return Step::Store(Box::new(next));
        }
        if charge.rack
            && let Some(left) = self.discards(now, records)
        {
            return Step::Call(Call::Discard(left));
        }
        let found_lost = self.heal.asks();
        if found_lost.is_some() && self.asked_for != found_lost {
            self.asked_for = found_lost;
            return self.ask(now, view);
        }
        let changes = found_lost.is_some() || Self::volumes(records).any(charge.leads);
        let until_asked = self.ask_at.since(now);
        Step::Wait(if changes {
            until_asked.min(LATER)
        } else {
            until_asked
        })
    }

    /// Tells the deletions to ask nodes for, if it is time, or if there are others than last.
    fn discards(&mut self, now: Instant, records: &Snapshot) -> Option<Vec<LeftRecord>> {
        let left: Vec<LeftRecord> = self.heal.discards(records).collect();
        let is_new = || left.iter().any(|left| !self.discarding.contains(left));
        if left.is_empty() || now < self.discard_at && !is_new() {
            return None;
        }
        self.discard_at = now + DISCARD_EVERY;
        self.discarding.clone_from(&left);
        Some(left)
    }

    /// While the registry does not answer nothing can be changed, but who is there is seen.
    pub fn watch(&mut self, sight: &Sight) -> Step {
        let Some(view) = sight.view else {
            return Step::Look;
        };
        let step = self.observe(sight.now, view);
        self.heal.members_mut().look(sight.now, sight.records);
        step.unwrap_or_else(|| Step::Wait(self.ask_at.since(sight.now)))
    }

    /// Takes note of the nodes' answers, and asks them again when it is time.
    fn observe(&mut self, now: Instant, view: &View) -> Option<Step> {
        for node in &view.nodes {
            if let Some((at, status)) = &node.last {
                self.heal.members_mut().answered(now, node.node, *at, status);
            }
        }
        self.heal.note_discarded(view.discarded.iter().copied());
        self.heal.members_mut().strangers(view.strangers.iter().copied());
        self.heal.members_mut().past(view.past.iter().copied());
        self.heal.members_mut().ahead(view.ahead.iter().copied());
        (now >= self.ask_at).then(|| self.ask(now, view))
    }

    fn ask(&mut self, now: Instant, view: &View) -> Step {
        self.ask_at = now + self.heal.rules().ask_every;
        self.heal
            .members_mut()
            .asked(view.nodes.iter().map(|node| node.node));
        Step::Call(Call::AskNodes)
    }
}

fn is_changing(volume: &VolumeRecord) -> bool {
    volume.sets.iter().any(rack::registry::SetRecord::is_changing)
}

/// True if the members of a set have ever changed.
fn was_changed(volume: &VolumeRecord) -> bool {
    volume.sets.iter().any(|set| set.generation > 0)
}
