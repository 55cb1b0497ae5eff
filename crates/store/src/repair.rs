//! A repaired copy: a new area with everything that a [`Salvage`] has. The damaged area stays as it is.

use crate::damage::FetchError;
use crate::engine::Engine;
use crate::entry::{ENTRY_HEADER_BYTES, Entry, EntryKind, Kind, StructureId, entry_bytes};
use crate::fetch::Found;
use crate::format::{CreateError, create};
use crate::index::{Key, Location};
use crate::layout::{Layout, SEGMENTS_MAX};
use crate::limits::Options;
use crate::log::{CleanStep, SubmitError};
use crate::recover::OpenError;
use crate::salvage::{Lenient, Salvage};
use crate::table::job::JobError;
use crate::verify::{VerifyReport, verify};
use base::{Device, MediaError};
use thiserror::Error;

/// Why a copy cannot be written. The rest of it is no area to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RepairError {
    /// The copy's medium.
    #[error("the copy: {0}")]
    Create(#[from] CreateError),
    /// The copy's medium.
    #[error("the copy: {0}")]
    Medium(#[from] MediaError),
    /// The copy does not take an entry.
    #[error("the copy: {0}")]
    Submit(#[from] SubmitError),
    /// The copy is not sound.
    #[error("the copy: {0}")]
    Open(#[from] OpenError),
    /// The copy's tables.
    #[error("the copy: {0}")]
    Job(#[from] JobError),
    /// The damaged area changed since it was read.
    #[error("the damaged area: {0}")]
    Fetch(#[from] FetchError),
}

/// A live entry of the damaged area.
struct Live {
    location: Location,
    structure: StructureId,
    key: Key,
    kind: EntryKind,
}

impl Salvage {
    /// Sizes of the copy: those of the area, with more segments if the live data need them.
    pub fn layout(&self) -> Layout {
        let mut layout = self.superblock.layout;
        let positions: usize = self.holes.values().map(std::collections::BTreeSet::len).sum();
        let tables: u64 = self.levels.all().map(|(_, view)| view.table.bytes()).sum();
        // The copy's tables are as long, and there is room to merge them.
        let bytes =
            self.replayed.usage.all.live + (positions * entry_bytes(8, 0)) as u64 + tables + tables / 4;
        while layout.live_bytes_max() < bytes && layout.segments < SEGMENTS_MAX {
            layout.segments += 1;
        }
        layout
    }

    /// Makes `copy` an area with everything that can be read of the area on `medium`, durably, and verifies it. The copy has at
    /// least the capacity of [`Salvage::layout`], and is a new file: its content is lost.
    pub fn write(&self, medium: &dyn Device, copy: &mut dyn Device) -> Result<VerifyReport, RepairError> {
        create(copy, self.layout(), self.superblock.uuid)?;
        let options = Options {
            index_bytes_max: u64::MAX,
            ..Options::default()
        };
        let (mut engine, _) = Engine::open(copy, options)?;
        for (&id, structure) in &self.replayed.structures {
            let bytes = entry_bytes(structure.name.len(), crate::entry::DESCRIPTION_BYTES);
            make_room(&mut engine, copy, bytes)?;
            engine.log_mut().restore_structure(id, structure);
        }
        let medium = &Lenient(medium);
        for live in self.live() {
            let value = self.value(medium, live.location)?;
            let mut scratch = [0; 8];
            let entry = crate::log::entry_of(live.kind, live.structure, &live.key, &value, &mut scratch);
            make_room(&mut engine, copy, entry.bytes())?;
            engine.log_mut().restore(&entry, live.key.clone());
        }
        let mut result = Ok(());
        self.each_in_tables(medium, |structure, key, value| {
            if result.is_ok() {
                result = restore(&mut engine, copy, structure, key, value);
            }
        })?;
        result?;
        for (&structure, holes) in &self.holes {
            for position in holes {
                let key = position.to_le_bytes();
                let (kind, value) = (EntryKind::Lost, &[][..]);
                let entry = Entry {
                    kind,
                    structure,
                    key: &key,
                    value,
                };
                make_room(&mut engine, copy, ENTRY_HEADER_BYTES + key.len())?;
                engine.log_mut().restore(&entry, Key::Position(*position));
            }
        }
        engine.want(engine.newest());
        while engine.durable() < engine.newest() {
            step(&mut engine, copy)?;
        }
        copy.flush()?;
        Ok(verify(copy)?)
    }

    /// All entries that can be read, in the order of the medium.
    fn live(&self) -> Vec<Live> {
        let mut all = Vec::new();
        for (&structure, it) in &self.replayed.structures {
            let kind = match it.kind {
                Kind::Log => EntryKind::Append,
                Kind::Queue => EntryKind::Push,
                Kind::Map | Kind::Tree => EntryKind::Put,
            };
            it.each(|key, location| {
                let kind = match () {
                    () if location.is_lost() => EntryKind::Lost,
                    () if location.is_removed() => return,
                    () => kind,
                };
                all.push(Live {
                    location,
                    structure,
                    key,
                    kind,
                });
            });
        }
        all.sort_unstable_by_key(|it| (self.generations[it.location.slot as usize], it.location));
        all
    }

    fn value(&self, medium: &dyn Device, location: Location) -> Result<Vec<u8>, RepairError> {
        if location.length == 0 {
            return Ok(Vec::new());
        }
        let generation = self.generations[location.slot as usize];
        let found = Found::new(self.superblock.layout, location, generation);
        let mut bytes = vec![0; found.length()];
        medium.read_at(found.offset(), &mut bytes)?;
        Ok(found.extract(&bytes)?)
    }
}

/// Puts a key's value into the copy.
fn restore(
    engine: &mut Engine,
    copy: &mut dyn Device,
    structure: StructureId,
    key: &[u8],
    value: &[u8],
) -> Result<(), RepairError> {
    let kind = EntryKind::Put;
    let entry = Entry {
        kind,
        structure,
        key,
        value,
    };
    make_room(engine, copy, entry.bytes())?;
    engine.log_mut().restore(&entry, Key::Bytes(key.into()));
    Ok(())
}

fn make_room(engine: &mut Engine, copy: &mut dyn Device, bytes: usize) -> Result<(), RepairError> {
    loop {
        while engine.is_behind() {
            engine.want(engine.newest());
            step(engine, copy)?;
        }
        match engine.make_room(bytes) {
            Err(SubmitError::Busy) => step(engine, copy)?,
            result => return Ok(result?),
        }
    }
}

/// Makes the writes that are due, or a step of cleaning if there are none.
fn step(engine: &mut Engine, copy: &mut dyn Device) -> Result<(), RepairError> {
    if let Some(mut job) = engine.take_job() {
        let result = job.run(copy);
        engine.end_job(job, result);
        result?;
    }
    let mut write = engine.next_write();
    if write.is_none() {
        match engine.clean_step() {
            CleanStep::Write(piece) => write = Some(piece),
            CleanStep::Read { offset, length } => {
                let mut bytes = vec![0; length];
                let result = copy.read_at(offset, &mut bytes);
                engine.clean_read(bytes, result);
            }
            CleanStep::Idle | CleanStep::Wait => {}
        }
    }
    if let Some(write) = write {
        let result = copy.write_at(write.offset(), write.bytes());
        engine.written(write, result);
        result?;
    }
    Ok(())
}
