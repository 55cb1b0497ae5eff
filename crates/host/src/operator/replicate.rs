//! Another number of copies of a volume: noted in its sets' records. Then the healing makes what lacks (`rack::heal`), or a
//! member of each set goes (`rack::moves`).

use super::command::{Done, Refusal};
use super::job::{Sight, Step};
use base::limits::REPLICAS_MAX;

/// A volume that is to have another number of copies.
#[derive(Debug)]
pub(super) struct Replicate {
    name: String,
    replicas: u8,
}

impl Replicate {
    /// A wish of somebody.
    pub fn new(name: String, replicas: u8) -> Self {
        Self { name, replicas }
    }

    /// The name of the volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Next step.
    pub fn advance(&self, sight: &Sight) -> Step {
        if !sight.is_awaited {
            return Step::Finish(Err(Refusal::Replaced));
        }
        match self.check(sight) {
            Err(refusal) => Step::Finish(Err(refusal)),
            Ok(step) => step,
        }
    }

    fn check(&self, sight: &Sight) -> Result<Step, Refusal> {
        if !(1..=REPLICAS_MAX as u8).contains(&self.replicas) {
            return Err(Refusal::Replicas(self.replicas));
        }
        let record = sight.records.volume(&self.name);
        let record = record.filter(|record| !sight.records.is_deleting(record.volume()));
        let record = record.ok_or_else(|| Refusal::Unknown(self.name.clone()))?;
        if !record.ready {
            return Err(Refusal::NotReady(self.name.clone()));
        }
        let copies = usize::from(self.replicas);
        if record.sets.iter().all(|set| set.wanted() == copies) {
            return Ok(Step::Finish(Ok(Done::Volume(Box::new(record.clone())))));
        }
        let nodes = sight.records.nodes_for_copies();
        if nodes < copies {
            let copies = self.replicas;
            return Err(Refusal::FewNodes { copies, nodes });
        }
        let id = record.volume();
        Ok(sight.change(|next| {
            let sets = next
                .volume_mut(id)
                .into_iter()
                .flat_map(|record| &mut record.sets);
            sets.for_each(|set| set.copies = u32::from(self.replicas));
        }))
    }
}
