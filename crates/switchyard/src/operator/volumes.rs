//! Volumes as the control API asks for them and tells of them.

use super::gateways::lead_of;
use super::observe::Quantiles;
use super::part::Part;
use super::refusal::Refusal;
use super::seen::{Seen, Told};
use crate::config;
use crate::control::api::{self, Create};
use crate::events::time::duration;
use base::{Duration, VssdId};
use host::gateway::VolumeState;
use host::operator::{Command, Done, Ills, NewVolume, Refusal as Refused, VssdProblem};
use rack::control::Copying;
use rack::registry::{Durability, ReplicaRecord, SetRecord, VolumeRecord};
use uuid::Uuid;

impl Part {
    /// The rack's id.
    pub fn rack_id(&self) -> Result<Uuid, Refusal> {
        Ok(self.look()?.records.rack)
    }

    /// True if this gateway serves the volumes.
    pub fn serves(&self) -> Result<bool, Refusal> {
        Ok(self.look()?.serves)
    }

    fn describe(&self, seen: &Seen, record: &VolumeRecord) -> Result<api::Volume, Refusal> {
        let records = &*seen.records;
        let id = record.volume();
        let (state, latency) =
            self.gateway(move |gateway, _| (gateway.volume_state(id), gateway.latency(id).cloned()))?;
        let (state, problem) = match state {
            _ if records.is_deleting(id) => ("deleting", None),
            Some(VolumeState::Ready) if record.ready => {
                match (lost(record, &seen.ills), redundancy(record, seen)) {
                    (Some(problem), _) => ("failed", Some(problem.to_string())),
                    (None, None) => ("ready", None),
                    (None, lacks) => ("degraded", lacks),
                }
            }
            Some(VolumeState::Ready | VolumeState::Opening) => ("opening", None),
            Some(VolumeState::Failed(vssd, code)) => {
                let problem = VssdProblem::new(&record.name, &record.sets, vssd, code);
                ("failed", Some(problem.to_string()))
            }
            // Nobody has it yet, or its lead is just opening it.
            None if self.is_shared() && records.leader_of(record).is_none() => ("opening", None),
            None => ("closed", None),
        };
        let lead = lead_of(records, record).filter(|_| self.is_shared());
        let nbd = lead
            .as_ref()
            .filter(|_| state == "closed")
            .and_then(|lead| lead.nbd.as_ref());
        let uri = nbd.map_or_else(
            || self.uri(&record.name),
            |nbd| format!("nbd://{nbd}/{}", record.name),
        );
        let names = ["read", "write", "flush"];
        let latency = latency
            .iter()
            .flatten()
            .zip(names)
            .map(|(histogram, name)| histogram.latency(name));
        Ok(api::Volume {
            name: record.name.clone(),
            id: record.id,
            size_bytes: record.size_bytes,
            uuid: Some(records.uuid_of(record)),
            uri,
            nqn: self.nvme.nqn(record),
            state: state.to_owned(),
            lead,
            problem,
            durability: match record.durability {
                Durability::Memory => "memory",
                Durability::Media => "media",
            }
            .to_owned(),
            read_only: record.read_only,
            replicas: record.sets.first().map_or(0, SetRecord::wanted),
            sets: record.sets.iter().map(|set| set_place(set, seen)).collect(),
            latency: latency.collect(),
        })
    }

    /// Every volume.
    pub fn volumes(&self) -> Result<Told<Vec<api::Volume>>, Refusal> {
        self.tell(|seen| self.volumes_of(seen))
    }

    pub(super) fn volumes_of(&self, seen: &Seen) -> Result<Vec<api::Volume>, Refusal> {
        let volumes = seen.records.volumes.iter();
        volumes.map(|record| self.describe(seen, record)).collect()
    }

    /// One volume.
    pub fn volume(&self, name: &str) -> Result<Told<api::Volume>, Refusal> {
        self.tell(|seen| {
            let record = seen.records.volume(name);
            let record = record.ok_or_else(|| Refused::Unknown(name.to_owned()))?;
            self.describe(seen, record)
        })
    }

    /// Creates a volume; returns when it is ready. Enough nodes may be there only after a while.
    pub fn create_volume(&self, create: &Create, nodes_within: Duration) -> Result<api::Volume, Refusal> {
        let invalid = |error: anyhow::Error| Refusal::Invalid(error.to_string());
        let durability = match create.durability.as_deref() {
            None => self.about.durability,
            text => config::durability("durability", text).map_err(invalid)?,
        };
        let isolation = match create.isolation.as_deref() {
            None => self.about.isolation,
            text => config::isolation("isolation", text).map_err(invalid)?,
        };
        self.ask(Command::Create(NewVolume {
            name: create.name.clone(),
            size_bytes: create.size.0,
            replicas: create.replicas.unwrap_or(self.about.replicas),
            durability,
            isolation,
            read_only: create.read_only,
            nodes_within,
        }))?;
        Ok(self.volume(&create.name)?.what)
    }

    /// Gives a volume another size, or another number of copies.
    pub fn patch_volume(&self, name: &str, patch: api::Patch) -> Result<api::Volume, Refusal> {
        if let Some(size) = patch.size {
            self.ask(Command::Resize {
                name: name.to_owned(),
                size_bytes: size.0,
            })?;
        }
        if let Some(replicas) = patch.replicas {
            let name = name.to_owned();
            self.ask(Command::Replicate { name, replicas })?;
        }
        Ok(self.volume(name)?.what)
    }

    /// Deletes a volume and its data.
    pub fn delete_volume(&self, name: String) -> Result<(), Refusal> {
        self.ask(Command::Delete { name }).map(|_| ())
    }

    /// Lets two vSSDs of different replica sets exchange their nodes; returns when it is over.
    pub fn exchange(&self, vssds: api::Exchange) -> Result<api::Exchanged, Refusal> {
        let (a, b) = (VssdId(vssds.a), VssdId(vssds.b));
        match self.ask(Command::Exchange { a, b })? {
            Done::Exchanged(took) => Ok(api::Exchanged {
                seconds: took.as_secs_f64(),
            }),
            other => unreachable!("the operator answers what was asked: {other:?}"),
        }
    }
}

/// The copies of a set that serve.
fn serving(set: &SetRecord, absent: &[VssdId]) -> usize {
    let replicas = set.replicas.iter();
    replicas
        .filter(|replica| !absent.contains(&VssdId(replica.vssd)))
        .count()
}

/// A set of which nothing is left on any node.
fn lost(record: &VolumeRecord, ills: &Ills) -> Option<VssdProblem> {
    let gone = |replica: &ReplicaRecord| ills.gone.iter().find(|(vssd, _)| vssd.0 == replica.vssd);
    let is_lost = |set: &&SetRecord| set.replicas.iter().all(|replica| gone(replica).is_some());
    let set = record.sets.iter().find(is_lost)?;
    let (vssd, code) = set.replicas.first().and_then(gone)?;
    Some(VssdProblem::new(&record.name, &record.sets, *vssd, *code))
}

/// The copies that a volume lacks, and what is done about it.
fn redundancy(record: &VolumeRecord, seen: &Seen) -> Option<String> {
    let (ills, id) = (&seen.ills, record.volume());
    let absent = &ills.absent;
    let lacks = |set: &&SetRecord| serving(set, absent) < set.wanted() || set.expelling.is_some();
    let sets: Vec<&SetRecord> = record.sets.iter().filter(lacks).collect();
    let worst = sets.iter().min_by_key(|set| serving(set, absent))?;
    let (have, wanted) = (serving(worst, absent), worst.wanted());
    let copies = if have == 1 { "one copy" } else { "fewer copies" };
    let name_of = |vssd: u32, node: u8| match seen.copying.get(&vssd) {
        Some(copying) => format!("vSSD {vssd} on node {node} ({})", progress(copying)),
        None => format!("vSSD {vssd} on node {node}"),
    };
    let joining = sets.iter().filter_map(|set| set.joining);
    let joining: Vec<String> = joining.map(|new| name_of(new.vssd, new.node)).collect();
    let silent = sets.iter().flat_map(|set| &set.replicas);
    let silent = silent.filter(|replica| absent.contains(&VssdId(replica.vssd)));
    let silent: Vec<String> = silent
        .map(|replica| name_of(replica.vssd, replica.node))
        .collect();
    let awaited = ills.awaited.iter().find(|(volume, _)| *volume == id);
    let doing = match (joining.is_empty(), silent.is_empty(), awaited) {
        (false, ..) => format!("being copied: {}", joining.join(", ")),
        (true, false, _) => format!("not serving: {}", silent.join(", ")),
        (true, true, Some((_, left))) => format!(
            "a copy is made on another node in {} s (rebuild_after_s), unless the node that had it comes back",
            left.as_millis().div_ceil(1000)
        ),
        (true, true, None) if ills.without_room.contains(&id) => {
            "no node that answers has room for a copy: add a node with `switchyard node add`, or delete volumes".to_owned()
        }
        (true, true, None) => "copies are made when those of other sets are done".to_owned(),
    };
    let (name, count) = (&record.name, sets.len());
    Some(format!(
        "volume {name}: {count} of {} sets have {copies} where there should be {wanted} ({have} now); {doing}",
        record.sets.len()
    ))
}

/// How far a copy is, for a person.
fn progress(copying: &Copying) -> String {
    let percent = u64::from(copying.pages_done) * 100 / u64::from(copying.pages.max(1));
    match copying.seconds_left() {
        Some(left) => format!("{percent} %, about {} left", duration(left as f64)),
        None => format!("{percent} %"),
    }
}

fn set_place(set: &SetRecord, seen: &Seen) -> api::SetPlace {
    let members = set.replicas.iter().map(|replica| (replica.vssd, replica.node));
    let members = members.chain(set.joining.map(|new| (new.vssd, new.node)));
    let copying = members.filter_map(|(vssd, node)| {
        let copying = seen.copying.get(&vssd)?;
        Some(api::Copy {
            vssd,
            node,
            pages: copying.pages,
            pages_done: copying.pages_done,
            seconds_left: copying.seconds_left(),
        })
    });
    api::SetPlace {
        pages: set.pages,
        channels: set.channels,
        rows: set.rows,
        lacks: set.wanted().saturating_sub(serving(set, &seen.ills.absent)),
        copying: copying.collect(),
        replicas: set
            .replicas
            .iter()
            .map(|replica| api::Place {
                vssd: replica.vssd,
                node: replica.node,
            })
            .collect(),
    }
}
