//! Opening, growing, closing and deleting volumes.

use super::control::Owner;
use super::locks::Locks;
use super::set::Set;
use super::{Gateway, Volume};
use base::{Instant, NodeId, VolumeId, VssdId};
use hdrhistogram::Histogram;
use rack::control::Intent;
use rack::registry::VolumeRecord;
use wire::nbd::Export;
use wire::rack::Code;

/// State of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeState {
    /// Some vSSDs did not answer yet.
    Opening,
    /// All vSSDs serve.
    Ready,
    /// A vSSD was refused by its node.
    Failed(VssdId, Code),
}

impl Gateway {
    /// Opens a volume; with `create`, its vSSDs are made where they are missing. Requests may follow at once.
    pub fn open_volume(&mut self, now: Instant, record: VolumeRecord, create: bool) {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
        let latency = core::array::from_fn(|_| histogram());
        let empty = VolumeRecord {
            size_bytes: 0,
            sets: Vec::new(),
            ..record.clone()
        };
        let volume = Volume {
            record: empty,
            sets: Vec::new(),
            locks: Locks::default(),
            latency,
            closing: false,
        };
        let index = match self.volumes.iter().position(Option::is_none) {
            Some(index) => {
                self.volumes[index] = Some(volume);
                index
            }
            None => {
                self.volumes.push(Some(volume));
                self.volumes.len() - 1
            }
        };
        self.add_sets(now, index, record, create);
    }

    /// Grows an open volume to `record`, which has the same sets in front. Those behind were made before
    /// ([`make_growth`](Gateway::make_growth)).
    pub fn grow_volume(&mut self, now: Instant, record: VolumeRecord) {
        if let Some(index) = self.find(record.volume()) {
            self.add_sets(now, index, record, false);
        }
    }

    /// Leaves the sets that are known as they are: [`change_sets`](Gateway::change_sets) begins what they are to do.
    fn add_sets(&mut self, now: Instant, index: usize, mut record: VolumeRecord, create: bool) {
        let known = self.volume(index).sets.len();
        record.sets[..known].clone_from_slice(&self.volume(index).record.sets);
        let intent = if create { Intent::Create } else { Intent::Serve };
        let mut first_page = record.sets[..known].iter().map(|set| u64::from(set.pages)).sum();
        for (number, set) in record.sets.iter().enumerate().skip(known) {
            let replicas: Vec<VssdId> = set.replicas.iter().map(|replica| VssdId(replica.vssd)).collect();
            self.primaries.insert(replicas[0].0, (index, number));
            self.volume(index).sets.push(Set::new(replicas, first_page));
            first_page += u64::from(set.pages);
            if set.leaving.is_some() {
                self.resume_change(now, index, record.volume(), number, set);
                continue;
            }
            for replica in &set.replicas {
                let (vssd, node) = (VssdId(replica.vssd), NodeId(replica.node));
                self.open(now, Owner::Volume(record.volume()), set, (vssd, node), intent);
            }
        }
        self.volume(index).record = record;
        self.send_control(now);
    }

    /// Stops serving a volume. Requests in flight are answered first.
    pub fn close_volume(&mut self, id: VolumeId) {
        self.control.cancel(Owner::Volume(id));
        self.cancel_changes(id);
        let Some(index) = self.find(id) else { return };
        self.volume(index).closing = true;
        self.drop_if_closed(index);
    }

    /// Deletes a volume's vSSDs on their nodes; [`volume_state`](Gateway::volume_state) is `None` when it is done.
    pub fn delete_volume(&mut self, now: Instant, record: &VolumeRecord) {
        self.close_volume(record.volume());
        self.control.cancel(Owner::Growth(record.volume()));
        for (vssd, node, _) in record.vssds() {
            if let Some(addr) = self.control.addr(node) {
                self.control
                    .delete(now, Owner::Volume(record.volume()), vssd, addr);
            }
        }
        self.send_control(now);
    }

    /// True when nothing is under way for this volume any more: it is deleted.
    pub fn is_gone(&self, id: VolumeId) -> bool {
        self.find(id).is_none() && !self.control.is_pending(Owner::Volume(id))
    }

    /// State of a volume, `None` if it is not open.
    pub fn volume_state(&self, id: VolumeId) -> Option<VolumeState> {
        self.find(id)?;
        let owner = Owner::Volume(id);
        let failure = self.control.failure(owner).or_else(|| self.resume_failure(id));
        Some(match failure {
            Some((vssd, code)) => VolumeState::Failed(vssd, code),
            None if self.control.is_pending(owner) || self.is_resuming(id) => VolumeState::Opening,
            None => VolumeState::Ready,
        })
    }

    /// The volumes as NBD exports.
    pub fn exports(&self) -> Vec<Export> {
        let open = self.volumes.iter().flatten().filter(|volume| !volume.closing);
        open.map(|volume| Export {
            name: volume.record.name.clone(),
            description: format!("Switchyard volume {}", volume.record.id),
            volume: volume.record.volume(),
            size_bytes: volume.record.size_bytes,
            read_only: volume.record.read_only,
        })
        .collect()
    }

    pub(super) fn drop_if_closed(&mut self, index: usize) {
        let in_use = self.requests.iter().any(|request| request.volume == index);
        if self.volumes[index].as_ref().is_some_and(|volume| volume.closing) && !in_use {
            // What is left was given up and awaits an answer that nobody needs any more.
            for slot in 0..self.operations.bound() {
                let left = self.operations.get(slot);
                if left.is_some_and(|operation| operation.volume == index) {
                    self.operations.remove(slot);
                    if let Some(shaper) = &mut self.shaper {
                        shaper.forget(slot);
                    }
                }
            }
            let volume = self.volumes[index].take().expect("checked above");
            for set in &volume.sets {
                self.primaries.remove(&set.replicas[0].0);
            }
        }
    }
}
