//! Growing a volume: what it is to grow by is noted in the registry → its vSSDs made → the record has them and the new
//! size → clients see it. A start deletes what was made for a size that was not stored.
//!
//! Clients see a size only after the registry has it: what they write there is the volume's, whatever crashes.

use super::call::Call;
use super::census::{Census, Space, place_within};
use super::command::{Done, Refusal, VssdProblem, check_growth};
use super::create::READY_WITHIN;
use super::job::{BACKGROUND, SOON, Sight, Step};
use crate::gateway::VolumeState;
use base::limits::PAGE_BYTES;
use base::{Duration, Instant, NodeId, VolumeId, VssdId};
use rack::placement::Isolation;
use rack::registry::{GrowthRecord, SetRecord, Snapshot, VolumeRecord};

/// A volume that opens is waited for this long: a gateway that takes volumes over opens them within three seconds or so.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Vain vSSDs are waited for this long before the command is answered.
const GONE_WITHIN: Duration = Duration::from_secs(15);

/// A volume that grows.
#[derive(Debug)]
pub(super) struct Resize {
    name: String,
    size_bytes: u64,
    id: Option<VolumeId>,
    census: Census,
    /// Last state to note.
    planned: Vec<SetRecord>,
    stage: Stage,
    /// The gateway was asked to delete so many vSSDs.
    unmade: usize,
    /// It cannot be done: what was made is deleted.
    refusal: Option<Refusal>,
    until: Option<Instant>,
}

/// The last call of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    None,
    Made,
    Unmade,
    Shown,
}

impl Resize {
    /// A volume that somebody wants to have this size.
    pub fn new(name: String, size_bytes: u64) -> Self {
        Self {
            name,
            size_bytes,
            id: None,
            census: Census::default(),
            planned: Vec::new(),
            stage: Stage::None,
            unmade: 0,
            refusal: None,
            until: None,
        }
    }

    /// A growth that an earlier start has begun: it is undone.
    pub fn undo(id: VolumeId) -> Self {
        Self {
            id: Some(id),
            refusal: Some(Refusal::Replaced),
            ..Self::new(String::new(), 0)
        }
    }

    /// The volume, once it was found.
    pub fn volume(&self) -> Option<VolumeId> {
        self.id
    }

    /// The name of the volume, if somebody named it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Next step.
    pub fn advance(&mut self, sight: &Sight) -> Step {
        let record = match self.id {
            Some(id) => sight.records.volume_of(id),
            None => sight.records.volume(&self.name),
        };
        let record = record.filter(|record| !sight.records.is_deleting(record.volume()));
        let Some(record) = record else {
            return Step::Finish(Err(Refusal::Unknown(self.name.clone())));
        };
        let id = record.volume();
        let is_new = self.id.replace(id).is_none();
        match sight.records.growth_of(id) {
            Some(_) if is_new => Step::Finish(Err(Refusal::Growing(self.name.clone()))),
            Some(growth) => {
                let planned: Vec<_> = vssds(&self.planned).collect();
                let is_mine = vssds(&growth.sets).all(|vssd| planned.contains(&vssd));
                if !sight.is_awaited || !is_mine {
                    self.refusal.get_or_insert(Refusal::Replaced);
                } else if vssds(&growth.sets).count() < planned.len() {
                    // Nodes are lost, and what they have is left over (`rack::heal`).
                    self.refusal.get_or_insert(Refusal::Silent(self.name.clone()));
                }
                match self.refusal {
                    None => self.make(sight, record, growth),
                    Some(_) => self.unmake(sight, record, growth),
                }
            }
            None if !is_new && record.size_bytes == self.size_bytes => self.show(sight, record),
            None => match self.refusal.take() {
                Some(refusal) => Step::Finish(Err(refusal)),
                None if !sight.is_awaited => Step::Finish(Err(Refusal::Replaced)),
                None => self.plan(sight, record).unwrap_or_else(|step| step),
            },
        }
    }

    /// Stores the size if the volume has room for it, or else what it is to grow by.
    fn plan(&mut self, sight: &Sight, record: &VolumeRecord) -> Result<Step, Step> {
        check_growth(record, self.size_bytes).map_err(|refusal| Step::Finish(Err(refusal)))?;
        let id = record.volume();
        let seen = sight.volume(id).ok_or(Step::Look)?;
        // It opens at this gateway, which has just taken it over.
        let opens = matches!(seen.state, None | Some(VolumeState::Opening));
        if opens && sight.now < *self.until.get_or_insert(sight.now + OPEN_WITHIN) {
            return Err(Step::Wait(SOON));
        }
        if seen.state != Some(VolumeState::Ready) {
            return Err(Step::Finish(Err(Refusal::NotReady(self.name.clone()))));
        }
        let have: u64 = record.sets.iter().map(|set| u64::from(set.pages)).sum();
        let need = self.size_bytes.div_ceil(PAGE_BYTES as u64);
        if need <= have {
            return Ok(sight.change(|next| set_size(next, id, self.size_bytes)));
        }
        let nodes = self.census.ask_to_place(sight)?;
        let software = record.sets.first().is_some_and(|set| set.rows > 0);
        let space = Space {
            isolation: if software {
                Isolation::Software
            } else {
                Isolation::Hardware
            },
            pages: need - have,
            replicas: record.sets.first().map_or(1, SetRecord::wanted),
        };
        let mut next = sight.records.clone();
        self.planned = place_within(&mut self.census, &nodes, space, &mut next, false)?;
        next.growing.push(GrowthRecord {
            volume: id.0,
            sets: self.planned.clone(),
        });
        Ok(Step::Store(Box::new(next)))
    }

    fn enter(&mut self, sight: &Sight, stage: Stage, within: Duration, call: Call) -> Step {
        self.stage = stage;
        self.until = Some(sight.now + within);
        Step::Call(call)
    }

    fn is_late(&self, sight: &Sight) -> bool {
        self.until.is_some_and(|until| sight.now >= until)
    }

    /// Has the vSSDs made, and stores them with the size.
    fn make(&mut self, sight: &Sight, record: &VolumeRecord, growth: &GrowthRecord) -> Step {
        let id = record.volume();
        if self.stage != Stage::Made {
            let call = Call::Make(id, growth.sets.clone());
            return self.enter(sight, Stage::Made, READY_WITHIN, call);
        }
        let Some(seen) = sight.volume(id) else {
            return Step::Look;
        };
        if let Some((vssd, code)) = seen.growth_failure {
            let problem = VssdProblem::new(&self.name, &growth.sets, vssd, code);
            self.refusal = Some(Refusal::Vssd(problem));
            return self.unmake(sight, record, growth);
        }
        if !seen.growth_is_pending {
            return sight.change(|next| {
                next.growing.retain(|growth| growth.volume != id.0);
                set_size(next, id, self.size_bytes);
                if let Some(record) = next.volume_mut(id) {
                    record.sets.extend(growth.sets.clone());
                }
            });
        }
        if self.is_late(sight) {
            self.refusal = Some(Refusal::Silent(self.name.clone()));
            return self.unmake(sight, record, growth);
        }
        Step::Wait(SOON)
    }

    /// The registry has the size: clients may see it.
    fn show(&mut self, sight: &Sight, record: &VolumeRecord) -> Step {
        if self.stage != Stage::Shown {
            return self.enter(
                sight,
                Stage::Shown,
                READY_WITHIN,
                Call::Grow(Box::new(record.clone())),
            );
        }
        let Some(seen) = sight.volume(record.volume()) else {
            return Step::Look;
        };
        Step::Finish(match seen.state {
            Some(VolumeState::Opening) if !self.is_late(sight) => return Step::Wait(SOON),
            Some(VolumeState::Ready) => Ok(Done::Volume(Box::new(record.clone()))),
            Some(VolumeState::Failed(vssd, code)) => Err(Refusal::Vssd(VssdProblem::new(
                &record.name,
                &record.sets,
                vssd,
                code,
            ))),
            _ => Err(Refusal::Silent(record.name.clone())),
        })
    }

    /// Has the vSSDs deleted, and then forgets them.
    fn unmake(&mut self, sight: &Sight, record: &VolumeRecord, growth: &GrowthRecord) -> Step {
        let id = record.volume();
        // Those of nodes that are lost meanwhile are waited for no more.
        let count = vssds(&growth.sets).count();
        if self.stage != Stage::Unmade || self.unmade != count {
            self.unmade = count;
            let call = Call::Unmake(id, growth.sets.clone());
            return self.enter(sight, Stage::Unmade, GONE_WITHIN, call);
        }
        let Some(seen) = sight.volume(id) else {
            return Step::Look;
        };
        if !seen.growth_is_pending {
            return sight.change(|next| next.growing.retain(|growth| growth.volume != id.0));
        }
        match &self.refusal {
            Some(refusal) if sight.is_awaited && self.is_late(sight) => Step::Answer(refusal.clone()),
            _ if sight.is_awaited => Step::Wait(SOON),
            _ => Step::Wait(BACKGROUND),
        }
    }
}

fn vssds(sets: &[SetRecord]) -> impl Iterator<Item = (VssdId, NodeId)> {
    sets.iter().flat_map(SetRecord::vssds)
}

fn set_size(next: &mut Snapshot, id: VolumeId, size_bytes: u64) {
    if let Some(record) = next.volume_mut(id) {
        record.size_bytes = size_bytes;
    }
}
