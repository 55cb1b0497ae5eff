//! vSSDs that a volume is to grow by: nodes make them before the volume has them, so that clients see the new size only
//! when the registry has it.

use super::Gateway;
use super::control::Owner;
use base::{Instant, VolumeId, VssdId};
use rack::control::Intent;
use rack::part::Part;
use rack::registry::SetRecord;
use wire::rack::Code;

impl Gateway {
    /// Has nodes make the vSSDs of these sets, which the volume does not have yet.
    pub fn make_growth(&mut self, now: Instant, id: VolumeId, sets: &[SetRecord]) {
        let (owner, flight) = (Owner::Growth(id), &mut self.traffic.flight);
        flight.control.cancel(owner);
        let known = flight.find(id).map(|index| flight.volumes[index].record.clone());
        for (further, set) in sets.iter().enumerate() {
            for member in set.vssds() {
                let part = known.as_ref().and_then(|record| {
                    let index = record.sets.len() + further;
                    Part::of(record, index, set, member.0)
                });
                flight
                    .control
                    .open(now, owner, set, member, Intent::Prepare, part);
            }
        }
        flight.send_control(now);
    }

    /// Has nodes delete the vSSDs of these sets again.
    pub fn delete_growth(&mut self, now: Instant, id: VolumeId, sets: &[SetRecord]) {
        let (owner, flight) = (Owner::Growth(id), &mut self.traffic.flight);
        flight.control.cancel(owner);
        let vssds = sets.iter().flat_map(SetRecord::all_left);
        flight.control.delete_known(now, owner, vssds);
        flight.send_control(now);
    }

    /// True while a node has not answered what the growth of this volume asks of it.
    pub fn growth_is_pending(&self, id: VolumeId) -> bool {
        self.traffic.flight.control.is_pending(Owner::Growth(id))
    }

    /// Refusal of a node to grow this volume.
    pub fn growth_failure(&self, id: VolumeId) -> Option<(VssdId, Code)> {
        self.traffic.flight.control.failure(Owner::Growth(id))
    }
}
