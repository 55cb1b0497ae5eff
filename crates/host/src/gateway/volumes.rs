//! Opening, growing, closing and deleting volumes.

use super::Gateway;
use super::control::{Control, Owner};
use super::flight::Volume;
use super::locks::Locks;
use super::losses::Losses;
use super::set::Set;
use base::{Instant, NodeId, VolumeId, VssdId};
use hdrhistogram::Histogram;
use rack::control::Intent;
use rack::part::{Part, mark_since};
use rack::registry::{SetRecord, VolumeRecord};
use wire::Export;
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
        let empty = VolumeRecord {
            size_bytes: 0,
            sets: Vec::new(),
            ..record.clone()
        };
        let control = &self.traffic.flight.control;
        let session = control.sessions.get(&record.volume());
        let session = session.copied().unwrap_or(control.session);
        let index = self.traffic.flight.volumes.insert(Volume {
            record: empty,
            session,
            sets: Vec::new(),
            locks: Locks::default(),
            losses: Losses::default(),
            latency: core::array::from_fn(|_| histogram()),
            closing: false,
        });
        self.add_sets(now, index, record, create);
    }

    /// Grows an open volume to `record`, which has the same sets in front. Those behind were made before
    /// ([`make_growth`](Gateway::make_growth)).
    pub fn grow_volume(&mut self, now: Instant, record: VolumeRecord) {
        if let Some(index) = self.traffic.flight.find(record.volume()) {
            self.add_sets(now, index, record, false);
        }
    }

    /// Has the vSSDs of these sets made that are new in the places of others. Nobody has served anything from those: the volume is being
    /// created.
    pub fn place_anew(&mut self, now: Instant, record: &VolumeRecord) {
        let flight = &mut self.traffic.flight;
        let Some(index) = flight.find(record.volume()) else {
            return;
        };
        for (number, set) in record.sets.iter().enumerate() {
            let known = &mut flight.volumes[index].record.sets[number];
            if known == set {
                continue;
            }
            let known = core::mem::replace(known, set.clone());
            let old: Vec<VssdId> = known.vssds().map(|(vssd, _)| vssd).collect();
            let new: Vec<VssdId> = set.vssds().map(|(vssd, _)| vssd).collect();
            flight.control.cancel_some(Owner::Volume(record.volume()), &old);
            flight.replace(now, index, number, &old, new);
            open_set(now, &mut flight.control, record, number, Intent::Create);
        }
        flight.send_control(now);
    }

    /// Leaves the sets that are known as they are: [`change_sets`](Gateway::change_sets) begins what they are to do.
    fn add_sets(&mut self, now: Instant, index: u32, mut record: VolumeRecord, create: bool) {
        let flight = &mut self.traffic.flight;
        let known = flight.volumes[index].sets.len();
        record.sets[..known].clone_from_slice(&flight.volumes[index].record.sets);
        let intent = if create { Intent::Create } else { Intent::Serve };
        let mut first_page = record.sets[..known].iter().map(|set| u64::from(set.pages)).sum();
        for (number, set) in record.sets.iter().enumerate().skip(known) {
            let replicas: Vec<VssdId> = set.replicas.iter().map(|replica| VssdId(replica.vssd)).collect();
            flight.primaries.insert(replicas[0].0, (index, number));
            let mut made = Set::new(replicas, first_page);
            made.mark = mark_since(set.identity, set.settled);
            flight.volumes[index].sets.push(made);
            first_page += u64::from(set.pages);
            if self.changes.resume(now, flight, index, number, &record) {
                continue;
            }
            open_set(now, &mut flight.control, &record, number, intent);
        }
        flight.volumes[index].record = record;
        self.changes.join(now, flight, index);
        flight.send_control(now);
    }

    /// Deletes a volume's vSSDs on their nodes; [`volume_state`](Gateway::volume_state) is `None` when it is done.
    pub fn delete_volume(&mut self, now: Instant, record: &VolumeRecord) {
        self.close_volume(record.volume());
        let flight = &mut self.traffic.flight;
        flight.control.cancel(Owner::Growth(record.volume()));
        flight.control.cancel(Owner::Volume(record.volume()));
        let vssds = record.sets.iter().flat_map(SetRecord::all_left);
        flight
            .control
            .delete_known(now, Owner::Volume(record.volume()), vssds);
        flight.send_control(now);
    }

    /// True when nothing is under way for this volume any more: it is deleted.
    pub fn is_gone(&self, id: VolumeId) -> bool {
        let flight = &self.traffic.flight;
        flight.find(id).is_none() && !flight.control.is_pending(Owner::Volume(id))
    }

    /// vSSDs of a volume that is deleted which nodes have refused to delete: these are latched, or have the medium of another rack.
    pub fn kept(&self, id: VolumeId) -> Vec<VssdId> {
        let flight = &self.traffic.flight;
        match self.is_gone(id) {
            true => flight.control.refused(Owner::Volume(id)).collect(),
            false => Vec::new(),
        }
    }

    /// State of a volume, `None` if it is not open.
    pub fn volume_state(&self, id: VolumeId) -> Option<VolumeState> {
        self.traffic.flight.find(id)?;
        let (control, owner) = (&self.traffic.flight.control, Owner::Volume(id));
        let failure = control.failure(owner);
        Some(
            match failure.or_else(|| self.changes.resume_failure(control, id)) {
                Some((vssd, code)) => VolumeState::Failed(vssd, code),
                None if control.is_pending(owner) || self.changes.is_resuming(id) => VolumeState::Opening,
                None => VolumeState::Ready,
            },
        )
    }

    /// Replicas of open volumes in whose place nodes have something else. Only of sets of which another replica was not refused:
    /// a set whose media are all from elsewhere is a mistake to be told of, and not one to be healed.
    pub fn strangers(&self) -> Vec<VssdId> {
        let flight = &self.traffic.flight;
        let sets = flight.volumes.iter().flat_map(|(_, volume)| {
            let (id, sets) = (volume.record.volume(), volume.record.sets.iter().enumerate());
            sets.map(move |(number, set)| (id, number, set))
        });
        let mut strangers = Vec::new();
        for (id, number, set) in sets {
            for owner in [Owner::Volume(id), Owner::Change(id, number)] {
                let replicas = || set.replicas.iter().map(|replica| VssdId(replica.vssd));
                let has_own = || replicas().any(|vssd| flight.control.is_taken(owner, vssd));
                let refused = replicas().filter(|vssd| flight.control.is_stranger(owner, *vssd));
                let refused: Vec<VssdId> = refused.collect();
                if !refused.is_empty() && has_own() {
                    strangers.extend(refused);
                }
            }
        }
        strangers
    }

    /// Members of open volumes that their nodes have refused as images of the past.
    pub fn past(&self) -> Vec<VssdId> {
        self.traffic.flight.control.past().collect()
    }

    /// Members of volumes that know later members of their sets than the records: these are of before.
    pub fn ahead(&self) -> Vec<VssdId> {
        self.traffic.flight.control.ahead().collect()
    }

    /// The volumes as NBD exports.
    pub fn exports(&self) -> Vec<Export> {
        let volumes = self.traffic.flight.volumes.iter().map(|(_, volume)| volume);
        let open = volumes.filter(|volume| !volume.closing);
        open.map(|volume| Export {
            name: volume.record.name.clone(),
            description: format!("Switchyard volume {}", volume.record.id),
            volume: volume.record.volume(),
            size_bytes: volume.record.size_bytes,
            read_only: volume.record.read_only,
        })
        .collect()
    }
}

/// Opens the replicas of a volume's set.
fn open_set(now: Instant, control: &mut Control, volume: &VolumeRecord, number: usize, intent: Intent) {
    let (owner, set) = (Owner::Volume(volume.volume()), &volume.sets[number]);
    for replica in &set.replicas {
        let member = (VssdId(replica.vssd), NodeId(replica.node));
        let part = Part::of(volume, number, set, member.0);
        control.open(now, owner, set, member, intent, part);
    }
}
