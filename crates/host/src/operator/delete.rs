//! Deleting a volume: noted in the registry → vSSDs deleted on their nodes → record removed. A start goes on with it.

use super::call::Call;
use super::command::{Done, Refusal};
use super::job::{BACKGROUND, SOON, Sight, Step};
use base::{Duration, Instant, VolumeId};
use rack::registry::VolumeRecord;

/// Deleted vSSDs are waited for this long before the command is answered.
const GONE_WITHIN: Duration = Duration::from_secs(15);

/// A volume that is being deleted.
#[derive(Debug)]
pub(super) struct Delete {
    which: Which,
    /// The answer, if the volume goes because it could not be created.
    refusal: Option<Refusal>,
    /// Nodes were asked to delete so many vSSDs.
    asked: Option<usize>,
    gone_by: Option<Instant>,
}

#[derive(Debug)]
enum Which {
    Name(String),
    Id(VolumeId),
}

impl Delete {
    /// A volume that somebody wants to be gone.
    pub fn new(name: String) -> Self {
        Self::which(Which::Name(name), None)
    }

    /// A volume whose deletion is noted.
    pub fn resume(id: VolumeId) -> Self {
        Self::which(Which::Id(id), None)
    }

    /// A volume that cannot be created.
    pub fn undo(id: VolumeId, refusal: Refusal) -> Self {
        Self::which(Which::Id(id), Some(refusal))
    }

    fn which(which: Which, refusal: Option<Refusal>) -> Self {
        Self {
            which,
            refusal,
            asked: None,
            gone_by: None,
        }
    }

    /// The volume, once it was found.
    pub fn volume(&self) -> Option<VolumeId> {
        match self.which {
            Which::Name(_) => None,
            Which::Id(id) => Some(id),
        }
    }

    /// The name of a volume that is to be found.
    pub fn name(&self) -> Option<&str> {
        match &self.which {
            Which::Name(name) => Some(name),
            Which::Id(_) => None,
        }
    }

    /// Next step.
    pub fn advance(&mut self, sight: &Sight) -> Step {
        let record = match &self.which {
            Which::Id(id) => sight.records.volume_of(*id),
            Which::Name(name) => match sight.records.volume(name) {
                Some(record) => Some(record),
                None => return Step::Finish(Err(Refusal::Unknown(name.clone()))),
            },
        };
        let Some(record) = record else {
            return Step::Finish(self.refusal.take().map_or(Ok(Done::Deleted), Err));
        };
        let id = record.volume();
        if !sight.records.is_deleting(id) {
            if !sight.is_awaited && self.refusal.is_none() {
                return Step::Finish(Err(Refusal::Replaced));
            }
            self.which = Which::Id(id);
            return sight.change(|next| next.deleting.push(id.0));
        }
        self.which = Which::Id(id);
        let gone_by = *self.gone_by.get_or_insert(sight.now + GONE_WITHIN);
        // Looked at after the note was stored: frontends do not offer it any more.
        let Some(seen) = sight.volume(id) else {
            return Step::Look;
        };
        let everything = everything_of(sight, record);
        // Those whose nodes are lost, or refuse, are deleted when these are back (`rack::heal`).
        let vssds = everything.vssds().count();
        if self.asked.replace(vssds) != Some(vssds) {
            return Step::Call(Call::Delete(Box::new(everything)));
        }
        if seen.is_gone {
            return sight.change(|next| next.remove_volume(id, &seen.kept));
        }
        if !sight.is_awaited {
            return Step::Wait(BACKGROUND);
        }
        if sight.now < gone_by {
            return Step::Wait(SOON);
        }
        let silent = Refusal::NotDeleted(record.name.clone());
        Step::Answer(self.refusal.clone().unwrap_or(silent))
    }
}

/// A volume with what it was to grow by.
fn everything_of(sight: &Sight, record: &VolumeRecord) -> VolumeRecord {
    let mut all = record.clone();
    let growth = sight.records.growth_of(record.volume());
    all.sets
        .extend(growth.iter().flat_map(|growth| growth.sets.clone()));
    all
}
