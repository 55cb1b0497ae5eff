//! Making tables: of what leaves memory, or of tables that are merged. A job does its own I/O, beside everything else.

use super::levels::View;
use super::merged::Merged;
use super::page::Held;
use super::reader::{ReadError, Table};
use super::writer::{Writer, separator};
use super::{Place, structure_of, table_key};
use crate::damage::FetchError;
use crate::entry::StructureId;
use crate::fetch::Found;
use crate::index::{Body, Frozen, Location, Slot, Usage};
use crate::layout::Layout;
use base::{Device, MediaError};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use thiserror::Error;

/// Bytes of the log that are read at once.
const READ_BYTES: u32 = 256 << 10;
/// Values of what leaves memory that are in memory at once, at most.
const VALUES_BYTES_MAX: usize = 64 << 20;

/// Work on tables, for whoever has the medium: [`Job::run`] it, and give it back to [`crate::Engine::end_job`].
pub struct Job {
    pub(crate) layout: Layout,
    pub(crate) work: Work,
    /// Segments that the job may use.
    pub(crate) places: VecDeque<Place>,
    /// Structures that are there; entries of others are left out.
    pub(crate) structures: BTreeSet<StructureId>,
    pub(crate) made: Made,
}

pub(crate) enum Work {
    /// What leaves memory becomes tables of level 0, from a key on.
    Flush(Arc<Frozen>, Option<Arc<[u8]>>),
    /// Tables become such of the next level.
    Merge(Merge),
    /// A table that could not be read is read again.
    Look(Arc<Table>),
}

pub(crate) struct Merge {
    /// Of what is to be merged the newest first, then what it is merged into.
    pub sources: Vec<View>,
    pub targets: Vec<View>,
    /// Nothing older lies below: removals have done their work.
    pub is_bottom: bool,
}

/// Result of a job.
#[derive(Default)]
pub(crate) struct Made {
    pub tables: Vec<Table>,
    /// The job ended before this key, as its segments were full; `None` if it is through.
    pub bound: Option<Arc<[u8]>>,
    /// Of a flush: live bytes that the log is free of, by slot, and all of them.
    pub freed: Vec<u64>,
    pub usage: Usage,
}

/// Why a job could not be done. Nothing of it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// A page or value cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The medium does not give a page of a table.
    #[error("a table cannot be read at byte {offset}")]
    Unread {
        /// Of the page, in the area.
        offset: u64,
    },
    /// The medium does not take a write, or its flush fails.
    #[error("a table cannot be written: {0}")]
    Write(MediaError),
}

impl From<MediaError> for JobError {
    fn from(error: MediaError) -> Self {
        Self::Write(error)
    }
}

impl From<FetchError> for JobError {
    fn from(error: FetchError) -> Self {
        Self::Read(error.into())
    }
}

impl Job {
    /// Does it: reads, writes, and flushes the medium at the end.
    ///
    /// # Errors
    /// The medium fails, or something that is to be read is damaged.
    pub fn run(&mut self, medium: &mut dyn Device) -> Result<(), JobError> {
        self.run_telling(medium, &mut |_, _| {})
    }

    /// The same. `left` is told of each entry that leaves memory: its [`crate::Search::key`], and its value or that it was removed. Nobody
    /// looks the key up in tables before the job's tables count.
    ///
    /// # Errors
    /// As of [`Job::run`].
    pub fn run_telling(&mut self, medium: &mut dyn Device, left: Left<'_>) -> Result<(), JobError> {
        let mut output = Output {
            layout: self.layout,
            places: core::mem::take(&mut self.places),
            writer: None,
            tables: Vec::new(),
            left,
        };
        let result = match &self.work {
            Work::Flush(frozen, from) => {
                let from = from.as_deref().unwrap_or_default();
                self.made
                    .flush(frozen, from, &self.structures, &mut output, medium)
            }
            Work::Merge(merge) => self.made.merge(merge, &self.structures, &mut output, medium),
            Work::Look(table) => return Ok(table.look(medium)?),
        };
        let result = result.and_then(|()| {
            output.close(medium)?;
            Ok(medium.flush()?)
        });
        self.made.tables = core::mem::take(&mut output.tables);
        self.places = output.places;
        if let Some(writer) = output.writer {
            self.places.push_back(writer.place());
        }
        result
    }
}

/// A function that is told of what leaves memory.
pub type Left<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>);

/// The tables that a job writes.
struct Output<'a> {
    layout: Layout,
    places: VecDeque<Place>,
    writer: Option<Writer>,
    tables: Vec<Table>,
    left: Left<'a>,
}

impl Output<'_> {
    /// Adds an entry. False if all segments are full.
    fn add(&mut self, key: &[u8], held: Held<'_>, medium: &mut dyn Device) -> Result<bool, JobError> {
        let value_bytes = held.value.map_or(0, <[u8]>::len);
        if self
            .writer
            .as_ref()
            .is_some_and(|writer| !writer.has_room(key, value_bytes))
        {
            self.close(medium)?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let Some(place) = self.places.pop_front() else {
                    return Ok(false);
                };
                none.insert(Writer::new(self.layout, place))
            }
        };
        writer.add(key, held, medium)?;
        Ok(true)
    }

    /// Ends the present table.
    fn close(&mut self, medium: &mut dyn Device) -> Result<(), JobError> {
        if let Some(writer) = self.writer.take() {
            let (place, meta) = writer.finish(medium)?;
            self.tables.push(Table::new(self.layout, place, meta));
        }
        Ok(())
    }
}

/// Writes entries of a structure, which are in order. The key before which the segments were full, if they were.
fn flush_some(
    frozen: &Frozen,
    id: StructureId,
    entries: &[(&[u8], &Slot)],
    output: &mut Output<'_>,
    medium: &mut dyn Device,
) -> Result<Option<Arc<[u8]>>, JobError> {
    // Values are read in the order of the medium, and written in that of their keys.
    let is_elsewhere = |index: &usize| entries[*index].1.value.is_none();
    let mut order: Vec<usize> = (0..entries.len()).filter(is_elsewhere).collect();
    order.sort_unstable_by_key(|&index| (entries[index].1.at.slot, entries[index].1.at.at));
    let mut places = vec![0; entries.len()];
    let mut values = Values::new(output.layout, &frozen.generations);
    for index in order {
        places[index] = values.read(entries[index].1.at, medium)?;
    }
    for (&(key, slot), place) in entries.iter().zip(places) {
        let at = slot.at;
        let value = match &slot.value {
            Some(value) => value,
            None => &values.bytes[place..place + at.length as usize],
        };
        let held = Held {
            version: at.version(frozen.generations[at.slot as usize]),
            value: (!at.is_removed()).then_some(value),
        };
        let key = table_key(id, key);
        if !output.add(&key, held, medium)? {
            return Ok(Some(key.into()));
        }
        (output.left)(&key, held.value);
    }
    Ok(None)
}

/// Values of the log that are read one after the other.
pub(crate) struct Values<'a> {
    layout: Layout,
    /// By slot.
    generations: &'a [u64],
    pub bytes: Vec<u8>,
    /// The last bytes that were read, and where they begin in the area.
    window: Vec<u8>,
    start: u64,
}

impl<'a> Values<'a> {
    pub(crate) fn new(layout: Layout, generations: &'a [u64]) -> Self {
        Self {
            layout,
            generations,
            bytes: Vec::new(),
            window: Vec::new(),
            start: 0,
        }
    }

    /// Reads a value; where it is in `bytes`.
    pub(crate) fn read(&mut self, at: Location, medium: &dyn Device) -> Result<usize, JobError> {
        let place = self.bytes.len();
        if at.length == 0 {
            return Ok(place);
        }
        let generation = self.generations[at.slot as usize];
        let found = Found::new(self.layout, at, generation);
        let end = found.offset() + found.length() as u64;
        if found.offset() < self.start || end > self.start + self.window.len() as u64 {
            let rest =
                self.layout.segment_offset(at.slot) + u64::from(self.layout.segment_bytes) - found.offset();
            let wanted = u64::from(READ_BYTES.next_multiple_of(self.layout.block_bytes));
            self.window
                .resize(wanted.max(found.length() as u64).min(rest) as usize, 0);
            self.start = found.offset();
            medium
                .read_at(self.start, &mut self.window)
                .map_err(ReadError::from)?;
        }
        let within = (found.offset() - self.start) as usize;
        let value = found.extract(&self.window[within..][..found.length()])?;
        self.bytes.extend(value);
        Ok(place)
    }
}

impl Made {
    /// Writes what leaves memory, from a key of tables on.
    fn flush(
        &mut self,
        frozen: &Frozen,
        from: &[u8],
        structures: &BTreeSet<StructureId>,
        output: &mut Output<'_>,
        medium: &mut dyn Device,
    ) -> Result<(), JobError> {
        self.freed = vec![0; frozen.generations.len()];
        for (&id, body) in &frozen.bodies {
            let mut entries: Vec<(&[u8], &Slot)> = match body {
                Body::Map(map) => map.iter().collect(),
                Body::Tree(tree) => tree.iter().map(|(key, slot)| (&**key, slot)).collect(),
                Body::Log { .. } | Body::Queue { .. } => unreachable!("positions stay in memory"),
            };
            for (key, slot) in &entries {
                self.usage.add(body.kind(), key.len(), slot);
                self.freed[slot.at.slot as usize] += slot.at.entry_bytes(key.len());
            }
            if !structures.contains(&id) || self.bound.is_some() {
                continue;
            }
            entries.sort_unstable_by_key(|(key, _)| *key);
            let first = entries.partition_point(|(key, _)| *table_key(id, key) < *from);
            let mut rest = &entries[first..];
            while !rest.is_empty() && self.bound.is_none() {
                let mut bytes = 0;
                let fits = rest.iter().take_while(|(_, slot)| {
                    bytes += slot.at.length as usize;
                    bytes <= VALUES_BYTES_MAX
                });
                let (now, later) = rest.split_at(fits.count().max(1));
                self.bound = flush_some(frozen, id, now, output, medium)?;
                rest = later;
            }
        }
        Ok(())
    }

    fn merge(
        &mut self,
        merge: &Merge,
        structures: &BTreeSet<StructureId>,
        output: &mut Output<'_>,
        medium: &mut dyn Device,
    ) -> Result<(), JobError> {
        let mut merged = Merged::new(merge.sources.iter().chain(&merge.targets));
        let mut last = Vec::new();
        loop {
            match merged.next(medium) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(ReadError::Medium(_)) => {
                    let offset = merged.failed_at();
                    return Err(JobError::Unread { offset });
                }
                Err(error) => return Err(error.into()),
            }
            let (key, held) = merged.entry()?;
            let is_there = structure_of(key).is_some_and(|id| structures.contains(&id));
            let is_needed = is_there && !(merge.is_bottom && held.value.is_none());
            if is_needed && !output.add(key, held, medium)? {
                self.bound = Some(separator(&last, key).into());
                return Ok(());
            }
            last.clear();
            last.extend(key);
        }
    }
}
