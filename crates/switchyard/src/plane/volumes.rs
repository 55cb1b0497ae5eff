//! Creating, growing and deleting volumes: the registry first and last, the nodes in between, so that a crash at any
//! step leaves something the next start or another attempt completes.
//!
//! - create: record with `ready = false` → vSSDs made → `ready = true`. A record that is not ready is made again at
//!   the next start.
//! - grow: the new vSSDs' numbers are taken in the registry → vSSDs made → record. A crash in between leaves channels
//!   of the nodes taken that no volume uses, never data that is mistaken for another volume's.
//! - delete: vSSDs deleted on their nodes → record removed. A crash in between is completed by deleting again.

use super::{Plane, Refusal};
use crate::control::api::{self, Create};
use crate::plane::observe::Quantiles;
use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{BlockOp, BlockRequest, Machine, Pages};
use host::gateway::VolumeState;
use host::{Gateway, Input};
use rack::placement::{Isolation, Offer, place, place_rows};
use rack::registry::{
    Durability, NAME_BYTES_MAX, Registry, SetRecord, Snapshot, VolumeRecord, name_is_valid,
};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use wire::rack::Code;

/// New vSSDs are waited for this long.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Deleted ones are waited for this long.
const GONE_WITHIN: Duration = Duration::from_secs(15);

pub(super) type Guard<'a> = MutexGuard<'a, Box<dyn Registry + Send>>;

/// Opens every volume of the registry at the start of a gateway; those that were not made completely are made.
pub fn open_registered(gateway: &mut Gateway, now: base::Instant, snapshot: &Snapshot) {
    for record in &snapshot.volumes {
        gateway.open_volume(now, record.clone(), !record.ready);
    }
}

/// Flushes every volume and closes it: requests that come later are refused, those in flight are answered.
pub(super) fn flush_and_close(gateway: &mut Gateway, now: base::Instant) {
    for export in gateway.exports() {
        let request = BlockRequest {
            client: runtime::NOBODY,
            tag: 0,
            volume: export.volume,
            op: BlockOp::Flush,
            offset: 0,
            length: 0,
            fua: false,
            pages: Pages::new(),
        };
        gateway.handle(now, Input::Request(request));
        gateway.close_volume(export.volume);
    }
}

/// Waits until `done` says so.
fn wait(within: Duration, done: impl Fn() -> Result<bool, Refusal>) -> Result<bool, Refusal> {
    let until = Instant::now() + within;
    while !done()? {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}

pub(super) fn reason(code: Code) -> &'static str {
    match code {
        Code::NoVssd => "it is not there: the node's medium was replaced or lost",
        Code::NoSpace => "the node has no free channels or flash for it",
        Code::Latched => "the node's medium failed",
        Code::Refused => "the node has it with another size or other replicas",
        _ => "the node refuses it",
    }
}

/// What is wrong with a failed volume and what to do.
fn problem(record: &VolumeRecord, vssd: base::VssdId, code: Code) -> String {
    let node = record
        .vssds()
        .find(|(id, ..)| *id == vssd)
        .map_or_else(|| "?".to_owned(), |(_, node, _)| node.0.to_string());
    format!(
        "node {node} does not serve vSSD {}: {}. Put the node's own medium back and restart it, or give the volume up \
         with `switchyard volume delete {}`",
        vssd.0,
        reason(code),
        record.name
    )
}

impl Plane {
    pub(super) fn registry(&self) -> Result<Guard<'_>, Refusal> {
        let registry = self.registry.as_ref().ok_or(Refusal::NoGateway)?;
        Ok(registry.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// The registry's records.
    pub fn snapshot(&self) -> Result<Snapshot, Refusal> {
        Ok(self.registry()?.load()?)
    }

    fn state(&self, record: &VolumeRecord) -> Result<Option<VolumeState>, Refusal> {
        let id = record.volume();
        self.gateway(move |gateway, _| gateway.volume_state(id))
    }

    fn describe(&self, record: &VolumeRecord) -> Result<api::Volume, Refusal> {
        let id = record.volume();
        let (state, latency) =
            self.gateway(move |gateway, _| (gateway.volume_state(id), gateway.latency(id).cloned()))?;
        let (state, problem) = match state {
            Some(VolumeState::Ready) => ("ready", None),
            Some(VolumeState::Opening) => ("opening", None),
            Some(VolumeState::Failed(vssd, code)) => ("failed", Some(problem(record, vssd, code))),
            None => ("closed", None),
        };
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
            uri: self.uri(&record.name),
            nqn: self.nvme.nqn(record),
            state: state.to_owned(),
            problem,
            durability: match record.durability {
                Durability::Memory => "memory",
                Durability::Media => "media",
            }
            .to_owned(),
            read_only: record.read_only,
            replicas: record.sets.first().map_or(0, |set| set.replicas.len()),
            sets: record.sets.iter().map(set_place).collect(),
            latency: latency.collect(),
        })
    }

    /// Every volume.
    pub fn volumes(&self) -> Result<Vec<api::Volume>, Refusal> {
        self.snapshot()?
            .volumes
            .iter()
            .map(|record| self.describe(record))
            .collect()
    }

    /// One volume.
    pub fn volume(&self, name: &str) -> Result<api::Volume, Refusal> {
        let snapshot = self.snapshot()?;
        self.describe(
            snapshot
                .volume(name)
                .ok_or_else(|| Refusal::Unknown(name.to_owned()))?,
        )
    }

    /// What the nodes that answer have left.
    fn place(
        &self,
        isolation: Isolation,
        pages: u64,
        replicas: usize,
        next_vssd: &mut u32,
    ) -> Result<Vec<SetRecord>, Refusal> {
        let nodes = self.ask_nodes()?;
        let answering = || nodes.iter().filter(|node| node.answers);
        let offer = |node: &api::Node| match isolation {
            Isolation::Hardware => Offer {
                node: node.id,
                free_channels: node.status.free_channels,
                pages_per_channel: node.status.pages_per_channel,
            },
            Isolation::Software => Offer {
                node: node.id,
                free_channels: node.status.free_rows,
                pages_per_channel: node.status.pages_per_row,
            },
        };
        if isolation == Isolation::Hardware {
            let offers: Vec<Offer> = answering().map(offer).collect();
            return Ok(place(&offers, pages, replicas, next_vssd)?);
        }
        // Replicas have the same shape: SSDs of other shapes than the first are left out.
        let channels = answering().next().map_or(0, |node| node.status.channels);
        let alike = answering().filter(|node| node.status.channels == channels);
        let offers: Vec<Offer> = alike.map(offer).collect();
        Ok(place_rows(&offers, channels, pages, replicas, next_vssd)?)
    }

    /// Creates a volume; returns when it is ready.
    pub fn create_volume(&self, create: &Create) -> Result<api::Volume, Refusal> {
        let replicas = create.replicas.unwrap_or(self.about.replicas);
        let durability = match create.durability.as_deref() {
            None => self.about.durability,
            text => crate::config::durability("durability", text)
                .map_err(|error| Refusal::Invalid(error.to_string()))?,
        };
        let isolation = match create.isolation.as_deref() {
            None => self.about.isolation,
            text => crate::config::isolation("isolation", text)
                .map_err(|error| Refusal::Invalid(error.to_string()))?,
        };
        check_new(&create.name, create.size.0, replicas)?;
        let mut registry = self.registry()?;
        let mut snapshot = registry.load()?;
        if snapshot.volume(&create.name).is_some() {
            return Err(Refusal::Exists(create.name.clone()));
        }
        let pages = create.size.0.div_ceil(PAGE_BYTES as u64);
        let replicas = usize::from(replicas);
        let sets = self.place(isolation, pages, replicas, &mut snapshot.next_vssd)?;
        snapshot.next_volume += 1;
        let record = VolumeRecord {
            id: snapshot.next_volume,
            name: create.name.clone(),
            size_bytes: create.size.0,
            durability,
            read_only: create.read_only,
            ready: false,
            sets,
        };
        snapshot.volumes.push(record.clone());
        registry.store(&snapshot)?;
        let opened = record.clone();
        self.gateway(move |gateway, now| gateway.open_volume(now, opened, true))?;
        if let Err(refusal) = self.await_ready(&record) {
            // Undone as far as the nodes answer; what is left of it is named by `volume list` and can be deleted.
            let _ = self.remove(&mut registry, &record);
            return Err(refusal);
        }
        self.mark_ready(&mut registry, record.id)?;
        self.nvme.add(&record);
        drop(registry);
        self.volume(&create.name)
    }

    fn await_ready(&self, record: &VolumeRecord) -> Result<(), Refusal> {
        let settled = wait(READY_WITHIN, || {
            Ok(!matches!(self.state(record)?, Some(VolumeState::Opening)))
        })?;
        match self.state(record)? {
            Some(VolumeState::Ready) => Ok(()),
            Some(VolumeState::Failed(vssd, code)) => Err(Refusal::Failed(problem(record, vssd, code))),
            _ if settled => Err(Refusal::Unknown(record.name.clone())),
            _ => Err(Refusal::Failed(format!(
                "some nodes of volume `{}` do not answer: `switchyard status` shows which",
                record.name
            ))),
        }
    }

    fn mark_ready(&self, registry: &mut Guard<'_>, id: u32) -> Result<(), Refusal> {
        let mut snapshot = registry.load()?;
        if let Some(record) = snapshot
            .volumes
            .iter_mut()
            .find(|record| record.id == id && !record.ready)
        {
            record.ready = true;
            registry.store(&snapshot)?;
        }
        Ok(())
    }

    /// The volumes' states after a start: those whose creation was cut short and is now complete are noted, and so is an
    /// exchange.
    pub fn settle(&self) -> Result<Vec<api::Volume>, Refusal> {
        let mut registry = self.registry()?;
        self.finish_exchange(&mut registry)?;
        for record in registry.load()?.volumes {
            if !record.ready && self.state(&record)? == Some(VolumeState::Ready) {
                self.mark_ready(&mut registry, record.id)?;
                self.nvme.add(&record);
            }
        }
        drop(registry);
        self.volumes()
    }

    /// Grows a volume.
    pub fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<api::Volume, Refusal> {
        let mut registry = self.registry()?;
        let mut snapshot = registry.load()?;
        let old = snapshot
            .volume(name)
            .ok_or_else(|| Refusal::Unknown(name.to_owned()))?
            .clone();
        check_growth(&old, size_bytes)?;
        if self.state(&old)? != Some(VolumeState::Ready) {
            return Err(Refusal::Failed(format!(
                "volume `{name}` is not ready: `switchyard volume show {name}` tells why"
            )));
        }
        let have: u64 = old.sets.iter().map(|set| u64::from(set.pages)).sum();
        let need = size_bytes.div_ceil(PAGE_BYTES as u64);
        let mut record = VolumeRecord { size_bytes, ..old };
        if need > have {
            let replicas = record.sets.first().map_or(1, |set| set.replicas.len());
            let isolation = match record.sets.first() {
                Some(set) if set.rows > 0 => Isolation::Software,
                _ => Isolation::Hardware,
            };
            let more = self.place(isolation, need - have, replicas, &mut snapshot.next_vssd)?;
            record.sets.extend(more);
            registry.store(&snapshot)?;
            snapshot = registry.load()?;
        }
        let grown = record.clone();
        self.gateway(move |gateway, now| gateway.grow_volume(now, grown))?;
        self.await_ready(&record)?;
        self.nvme.resize(&record);
        let place = snapshot.volumes.iter_mut().find(|volume| volume.id == record.id);
        *place.expect("it was found under the same lock") = record;
        registry.store(&snapshot)?;
        drop(registry);
        self.volume(name)
    }

    /// Deletes a volume and its data.
    pub fn delete_volume(&self, name: &str) -> Result<(), Refusal> {
        let mut registry = self.registry()?;
        let snapshot = registry.load()?;
        let record = snapshot
            .volume(name)
            .ok_or_else(|| Refusal::Unknown(name.to_owned()))?
            .clone();
        self.remove(&mut registry, &record)
    }

    fn remove(&self, registry: &mut Guard<'_>, record: &VolumeRecord) -> Result<(), Refusal> {
        self.nvme.remove(record);
        let (deleted, id) = (record.clone(), record.volume());
        self.gateway(move |gateway, now| gateway.delete_volume(now, &deleted))?;
        if !wait(GONE_WITHIN, || {
            self.gateway(move |gateway, _| gateway.is_gone(id))
        })? {
            return Err(Refusal::Failed(format!(
                "some nodes of volume `{}` do not answer, so it is not deleted completely: `switchyard status` shows \
                 which; delete it again when they are back",
                record.name
            )));
        }
        let mut snapshot = registry.load()?;
        snapshot.volumes.retain(|volume| volume.id != record.id);
        Ok(registry.store(&snapshot)?)
    }
}

fn set_place(set: &rack::registry::SetRecord) -> api::SetPlace {
    api::SetPlace {
        pages: set.pages,
        channels: set.channels,
        rows: set.rows,
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

fn check_new(name: &str, size_bytes: u64, replicas: u8) -> Result<(), Refusal> {
    let invalid = |text: String| Err(Refusal::Invalid(text));
    if !name_is_valid(name) {
        return invalid(format!(
            "`{name}` is not a volume name: letters, digits, `-`, `_` and `.`, at most {NAME_BYTES_MAX}, not starting \
             with `-` or `.`"
        ));
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
        return invalid(format!(
            "size {size_bytes}: a volume is a multiple of 512 bytes and not empty"
        ));
    }
    if !(1..=base::limits::REPLICAS_MAX as u8).contains(&replicas) {
        return invalid(format!(
            "replicas {replicas}: ask for 1 to {}",
            base::limits::REPLICAS_MAX
        ));
    }
    Ok(())
}

fn check_growth(old: &VolumeRecord, size_bytes: u64) -> Result<(), Refusal> {
    if !size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
        return Err(Refusal::Invalid(format!(
            "size {size_bytes}: a volume is a multiple of 512 bytes"
        )));
    }
    if size_bytes < old.size_bytes {
        return Err(Refusal::Invalid(format!(
            "volume `{}` has {} bytes and cannot shrink to {size_bytes}: create a smaller one and copy, for example \
             with nbdcopy",
            old.name, old.size_bytes
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rack::registry::{ReplicaRecord, SetRecord};

    fn record() -> VolumeRecord {
        VolumeRecord {
            id: 1,
            name: "db".into(),
            size_bytes: 8192,
            durability: Durability::Memory,
            read_only: false,
            ready: true,
            sets: vec![SetRecord {
                pages: 2,
                channels: 1,
                rows: 0,
                replicas: vec![ReplicaRecord { vssd: 4, node: 2 }],
                ..SetRecord::default()
            }],
        }
    }

    #[test]
    fn bad_requests_are_refused_with_a_remedy() {
        assert!(check_new("db", 512, 2).is_ok());
        for (name, size, replicas, part) in [
            ("a b", 512, 2, "letters"),
            ("db", 100, 2, "512"),
            ("db", 0, 2, "not empty"),
            ("db", 512, 4, "1 to 3"),
        ] {
            let error = check_new(name, size, replicas).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = check_growth(&record(), 4096).unwrap_err().to_string();
        assert!(
            error.contains("cannot shrink") && error.contains("nbdcopy"),
            "{error}"
        );
        assert!(check_growth(&record(), 8192).is_ok());
    }

    #[test]
    fn a_failed_volume_names_node_vssd_and_remedy() {
        let text = problem(&record(), base::VssdId(4), Code::NoVssd);
        for part in ["node 2", "vSSD 4", "medium", "volume delete db"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
