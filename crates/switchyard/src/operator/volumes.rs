//! Volumes as the control API asks for them and tells of them.

use super::gateways::lead_of;
use super::observe::Quantiles;
use super::part::Part;
use super::refusal::Refusal;
use super::seen::{Seen, Told};
use crate::config;
use crate::control::api::{self, Create};
use crate::events::time::duration;
use base::{Addr, Duration, VssdId};
use host::gateway::VolumeState;
use host::operator::{Command, Done, Ills, NewVolume, Refusal as Refused, VssdProblem};
use rack::control::Copying;
use rack::registry::{Durability, ReplicaRecord, SetRecord, VolumeRecord};
use uuid::Uuid;
use wire::rack::Code;

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
        let (me, opened, latency) = self.gateway(move |gateway, _| {
            let latency = gateway.latency(id).cloned();
            (gateway.addr(), gateway.volume_state(id), latency)
        })?;
        let (state, problem) = state_of(seen, record, opened, me, self.is_shared());
        let lead = lead_of(records, record).filter(|_| self.is_shared());
        let nbd = lead
            .as_ref()
            .filter(|_| state == api::ELSEWHERE)
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

/// How a volume is that the gateway at `me` has opened so far, and why it is not ready.
fn state_of(
    seen: &Seen,
    record: &VolumeRecord,
    opened: Option<VolumeState>,
    me: Addr,
    is_shared: bool,
) -> (&'static str, Option<String>) {
    match opened {
        _ if seen.records.is_deleting(record.volume()) => ("deleting", None),
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
            // Another copy takes its place, or is waited for.
            let is_mended = matches!(
                code,
                Code::NoVssd | Code::OtherSet | Code::Latched | Code::Damaged
            );
            let has_others =
                is_mended && record.ready && !problem.is_last && lost(record, &seen.ills).is_none();
            match has_others {
                true => {
                    let text =
                        format!("{problem}. If its other copies are there, they serve within half a minute");
                    ("opening", Some(text))
                }
                false => ("failed", Some(problem.to_string())),
            }
        }
        // Nobody has it yet, or its lead is just opening it.
        None if is_shared => match seen.records.leader_of(record) {
            Some(lead) if lead != me => (api::ELSEWHERE, None),
            _ => ("opening", None),
        },
        None => ("closed", None),
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
    Some(VssdProblem {
        is_last: true,
        ..VssdProblem::new(&record.name, &record.sets, *vssd, *code)
    })
}

/// The copies that a volume lacks, and what is done about it.
fn redundancy(record: &VolumeRecord, seen: &Seen) -> Option<String> {
    let (ills, id) = (&seen.ills, record.volume());
    let absent = &ills.absent;
    let lacks = |set: &&SetRecord| serving(set, absent) < set.wanted();
    let sets: Vec<&SetRecord> = record.sets.iter().filter(lacks).collect();
    let Some(worst) = sets.iter().min_by_key(|set| serving(set, absent)) else {
        let changing = record.sets.iter().filter(|set| set.expelling.is_some()).count();
        let text = || {
            format!(
                "volume {}: {changing} of {} sets give a copy up, and writes wait until the others know",
                record.name,
                record.sets.len()
            )
        };
        return (changing > 0).then(text);
    };
    let (have, wanted) = (serving(worst, absent), worst.wanted());
    let copies = match have {
        0 => "no copy that serves",
        1 => "one copy",
        _ => "fewer copies",
    };
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
            "no node that answers has room for a copy: start those that do not answer, or add a node with `switchyard node add`".to_owned()
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
    // What a node told of a member that serves by now is of before.
    let absent = |replica: &&ReplicaRecord| seen.ills.absent.contains(&VssdId(replica.vssd));
    let members = set.replicas.iter().filter(absent);
    let members = members.map(|replica| (replica.vssd, replica.node));
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

#[cfg(test)]
mod tests {
    use super::*;
    use rack::registry::{ExpellingRecord, LeadRecord, Snapshot};
    use std::collections::BTreeMap;
    use wire::rack::Code;

    const ME: Addr = Addr::new([10, 0, 0, 2], 8888);
    const OTHER: Addr = Addr::new([10, 0, 0, 3], 8888);

    fn record(replicas: &[(u32, u8)]) -> VolumeRecord {
        let replicas = replicas.iter().map(|&(vssd, node)| ReplicaRecord { vssd, node });
        VolumeRecord {
            id: 1,
            name: "db".into(),
            ready: true,
            sets: vec![SetRecord {
                replicas: replicas.collect(),
                copies: 2,
                ..SetRecord::default()
            }],
            ..VolumeRecord::default()
        }
    }

    fn seen(record: &VolumeRecord) -> Seen {
        let records = Snapshot {
            volumes: vec![record.clone()],
            ..Snapshot::default()
        };
        Seen {
            records: Box::new(records),
            ills: Box::default(),
            copying: BTreeMap::new(),
            waits_for: Vec::new(),
            serves: true,
            away: None,
        }
    }

    /// bug: `status` called a volume `closed` that another gateway served.
    #[test]
    fn a_volume_of_another_gateway_is_elsewhere() {
        let mut record = record(&[(1, 1), (2, 2)]);
        for (lead, state) in [
            (Some(OTHER), "elsewhere"),
            (Some(ME), "opening"),
            (None, "opening"),
        ] {
            record.lead = lead.map(|addr| LeadRecord::new(addr, 3));
            assert_eq!(
                state_of(&seen(&record), &record, None, ME, true).0,
                state,
                "{lead:?}"
            );
        }
        assert_eq!(state_of(&seen(&record), &record, None, ME, false).0, "closed");
    }

    /// bug: while `up` started it told `failed`, and how to delete the volume, though a good copy was about to serve.
    #[test]
    fn a_volume_has_failed_and_may_be_given_up_only_if_no_copy_is_left() {
        let failed = Some(VolumeState::Failed(VssdId(2), Code::NoVssd));
        let two = record(&[(1, 1), (2, 2)]);
        let (state, problem) = state_of(&seen(&two), &two, failed, ME, false);
        let problem = problem.unwrap();
        assert!(
            state == "opening" && !problem.contains("delete"),
            "{state}: {problem}"
        );
        let mut lost = seen(&two);
        lost.ills.gone = vec![(VssdId(1), Code::NoVssd), (VssdId(2), Code::NoVssd)];
        let (state, _) = state_of(&lost, &two, failed, ME, false);
        assert_eq!(state, "failed");
        let (state, problem) = state_of(&lost, &two, Some(VolumeState::Ready), ME, false);
        let problem = problem.unwrap();
        assert!(
            state == "failed" && problem.contains("volume delete db"),
            "{problem}"
        );
        let one = record(&[(2, 2)]);
        let (state, problem) = state_of(&seen(&one), &one, failed, ME, false);
        assert!(state == "failed" && problem.unwrap().contains("volume delete db"));
    }

    /// bug: "1 of 1 sets have fewer copies where there should be 2 (2 now)".
    #[test]
    fn a_set_that_gives_a_copy_up_does_not_lack_one() {
        let mut record = record(&[(1, 1), (2, 2)]);
        assert_eq!(redundancy(&record, &seen(&record)), None);
        record.sets[0].expelling = Some(ExpellingRecord {
            vssds: vec![3],
            was_primary: false,
        });
        let text = redundancy(&record, &seen(&record)).unwrap();
        assert!(
            text.contains("give a copy up") && !text.contains("should be"),
            "{text}"
        );
        record.sets[0].replicas.pop();
        let text = redundancy(&record, &seen(&record)).unwrap();
        assert!(
            text.contains("one copy where there should be 2 (1 now)"),
            "{text}"
        );
    }

    /// bug: `volume show` told of a copy that was being made, none of its pages done, under `state ready`.
    #[test]
    fn a_member_that_serves_is_not_being_made() {
        let record = record(&[(1, 1), (2, 2)]);
        let mut seen = seen(&record);
        let copying = Copying {
            vssd: 2,
            pages: 2730,
            ..Copying::default()
        };
        seen.copying.insert(2, copying);
        assert!(set_place(&record.sets[0], &seen).copying.is_empty());
        seen.ills.absent.push(VssdId(2));
        assert_eq!(set_place(&record.sets[0], &seen).copying.len(), 1);
    }
}
