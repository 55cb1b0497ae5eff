//! Creating a volume: a record that is not ready → its vSSDs made → ready. A start makes what a record that is not
//! ready still lacks. Nobody waits for that one: what a node does not make in time, another one makes.

use super::call::Call;
use super::census::{self, Census, Space, place_within};
use super::command::{Done, NewVolume, Refusal, VssdProblem};
use super::job::{BACKGROUND, LATER, SOON, Sight, Step};
use crate::gateway::{NodeAnswer, VolumeState};
use base::limits::PAGE_BYTES;
use base::{Duration, Instant, VolumeId, VssdId};
use rack::registry::{ReplicaRecord, SetRecord, Snapshot, VolumeRecord};

/// New vSSDs are waited for this long.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(30);

/// A volume that is being created.
#[derive(Debug, Default)]
pub(super) struct Create {
    /// Volume to create; an earlier start has begun a volume without it.
    new: Option<NewVolume>,
    census: Census,
    nodes: Option<Vec<NodeAnswer>>,
    /// When to give up for want of nodes.
    place_by: Option<Instant>,
    /// The record that was to be stored last.
    planned: Option<VolumeRecord>,
    /// The record is stored.
    id: Option<VolumeId>,
    /// The sets with which the gateway was asked to open it.
    opened: Option<Vec<SetRecord>>,
    ready_by: Option<Instant>,
}

impl Create {
    /// A new volume.
    pub fn new(new: NewVolume) -> Self {
        let new = Some(new);
        Self {
            new,
            ..Self::default()
        }
    }

    /// A volume that an earlier start has begun to create.
    pub fn resume(id: VolumeId) -> Self {
        let id = Some(id);
        Self {
            id,
            ..Self::default()
        }
    }

    /// The volume, once it has a record.
    pub fn volume(&self) -> Option<VolumeId> {
        self.id
    }

    /// Next step.
    pub fn advance(&mut self, sight: &Sight) -> Step {
        if self.id.is_none() {
            let planned = self.planned.as_ref();
            let found = planned.and_then(|planned| sight.records.volume_of(planned.volume()));
            self.id = found
                .filter(|found| planned.is_some_and(|planned| planned.name == found.name))
                .map(VolumeRecord::volume);
        }
        match (self.id, self.new.clone()) {
            (Some(id), _) => self.open(sight, id),
            (None, Some(new)) => self.plan(sight, &new).unwrap_or_else(|step| step),
            (None, None) => unreachable!("what an earlier start began has a record"),
        }
    }

    /// Chooses nodes and stores a record.
    fn plan(&mut self, sight: &Sight, new: &NewVolume) -> Result<Step, Step> {
        new.check().map_err(|refusal| Step::Finish(Err(refusal)))?;
        if sight.records.volume(&new.name).is_some() {
            return Err(Step::Finish(Err(Refusal::Exists(new.name.clone()))));
        }
        let place_by = *self.place_by.get_or_insert(sight.now + new.nodes_within);
        let nodes = match self.nodes.take() {
            Some(nodes) => nodes,
            None => self.census.ask_to_place(sight)?,
        };
        let mut next = sight.records.clone();
        let space = Space {
            isolation: new.isolation,
            pages: new.size_bytes.div_ceil(PAGE_BYTES as u64),
            replicas: usize::from(new.replicas),
        };
        let has_time = sight.now < place_by;
        let sets = place_within(&mut self.census, &nodes, space, &mut next, has_time)?;
        self.nodes = Some(nodes);
        next.next_volume += 1;
        let record = VolumeRecord {
            id: next.next_volume,
            identity: Default::default(),
            name: new.name.clone(),
            size_bytes: new.size_bytes,
            durability: new.durability,
            read_only: new.read_only,
            ready: false,
            lead: None,
            sets,
        };
        next.volumes.push(record.clone());
        self.planned = Some(record);
        Ok(Step::Store(Box::new(next)))
    }

    /// Has the vSSDs made, and notes that they are.
    fn open(&mut self, sight: &Sight, id: VolumeId) -> Step {
        let Some(record) = sight.records.volume_of(id) else {
            return Step::Finish(Err(Refusal::Replaced));
        };
        if record.ready {
            return Step::Finish(Ok(Done::Volume(Box::new(record.clone()))));
        }
        if sight.records.is_deleting(id) {
            return Step::Finish(Err(Refusal::Unknown(record.name.clone())));
        }
        let resumed = self.new.is_none();
        if !resumed && !sight.is_awaited {
            return Step::GiveUp(id, Refusal::Silent(record.name.clone()));
        }
        let ready_by = *self.ready_by.get_or_insert(sight.now + READY_WITHIN);
        let Some(seen) = sight.volume(id) else {
            return Step::Look;
        };
        if seen.state.is_none() || self.opened.as_ref() != Some(&record.sets) {
            self.opened = Some(record.sets.clone());
            return Step::Call(Call::Open(Box::new(record.clone())));
        }
        let is_late = sight.now >= ready_by;
        match seen.state {
            Some(VolumeState::Ready) => sight.change(|next| make_ready(next, id)),
            Some(VolumeState::Failed(vssd, _)) if resumed && is_late => {
                self.place_anew(sight, record, Some(vssd))
            }
            Some(VolumeState::Failed(..)) if resumed => Step::Wait(BACKGROUND),
            Some(VolumeState::Failed(vssd, code)) => {
                let problem = VssdProblem::new(&record.name, &record.sets, vssd, code);
                Step::GiveUp(id, Refusal::Vssd(problem))
            }
            _ if is_late && resumed => self.place_anew(sight, record, None),
            _ if is_late => Step::GiveUp(id, Refusal::Silent(record.name.clone())),
            _ if resumed => Step::Wait(LATER),
            _ => Step::Wait(SOON),
        }
    }

    /// Gives what silent nodes were to make, and what was refused, to others that have room.
    fn place_anew(&mut self, sight: &Sight, record: &VolumeRecord, refused: Option<VssdId>) -> Step {
        let nodes = match self.census.ask_to_place(sight) {
            Ok(nodes) => nodes,
            Err(step) => return step,
        };
        self.census.again();
        self.ready_by = None;
        let mut rooms = census::rooms(&nodes, sight.records);
        let mut next = sight.records.clone();
        let mut sets = record.sets.clone();
        for set in &mut sets {
            let is_lost = |replica: &ReplicaRecord| {
                refused == Some(VssdId(replica.vssd)) || !rooms.is_open(replica.node)
            };
            let lost: Vec<ReplicaRecord> = set.replicas.iter().copied().filter(is_lost).collect();
            for old in lost {
                let Some(node) = rooms.best(&next, set) else {
                    continue;
                };
                rooms.give(set, node);
                next.next_vssd += 1;
                let new = ReplicaRecord {
                    vssd: next.next_vssd,
                    node,
                };
                next.leftovers.push(set.place_anew(old, new));
            }
        }
        if sets == record.sets {
            return Step::Wait(BACKGROUND);
        }
        next.volume_mut(record.volume()).expect("it has a record").sets = sets;
        Step::Store(Box::new(next))
    }
}

fn make_ready(next: &mut Snapshot, id: VolumeId) {
    if let Some(record) = next.volume_mut(id) {
        record.ready = true;
    }
}
