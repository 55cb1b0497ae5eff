//! Opening an area: where the log begins and ends, what it holds, and erasing what a cut left (docs/format/store.md,
//! "Recovery").

use crate::checkpoint::{self, Checkpoints, Loaded};
use crate::damage::FetchError;
use crate::engine::Engine;
use crate::entry::{Entry, EntryKind, StructureId};
use crate::format::{Headers, PartHeader, SegmentHeader, Superblock, Superblocks, VERSION, superblocks};
use crate::index::{Location, Slot, Structure};
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::limits::{Limits, Options, behind};
use crate::log::{GENERATIONS_LOST_MAX, Log, Parts};
use crate::replay::Replayed;
use crate::scan::{self, Head, Next, Segment, read_segment};
use crate::sector::{self, Role};
use crate::space::{Space, Start, Used};
use crate::table::Place;
use crate::table::job::Values;
use crate::table::levels::{Levels, List};
use crate::table::reader::ReadError;
use base::{Device, MediaError};
use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use thiserror::Error;

/// Why an area cannot be opened. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The medium reported an error.
    #[error(transparent)]
    Medium(#[from] MediaError),
    /// Neither superblock is valid.
    #[error("this is no storage area, or both its superblocks are damaged")]
    NotAnArea,
    /// Written by another version.
    #[error("the area has format version {0}, which this version does not know")]
    OtherVersion(u32),
    /// The medium ends before the area.
    #[error(
        "the medium has {have_bytes} bytes, but the area {need_bytes}: its end is cut off. Restore a backup, or let \
         `switchyard store repair` copy what is left"
    )]
    TooSmall {
        /// Of the medium.
        have_bytes: u64,
        /// Of the area.
        need_bytes: u64,
    },
    /// The header of a segment matches no checksum, and the log may need the segment.
    #[error("the header of a segment is damaged, at byte {offset}")]
    SegmentHeader {
        /// In the area.
        offset: u64,
    },
    /// A segment of the log is not there.
    #[error("segment {generation} of the log is missing")]
    SegmentMissing {
        /// Its number.
        generation: u64,
    },
    /// A sector of the log is neither what was written nor what was there before.
    #[error("the log is damaged, at byte {offset}")]
    Damaged {
        /// In the area.
        offset: u64,
    },
    /// A record that was acknowledged is not there.
    #[error("record {number} was durable and is gone, at byte {offset}")]
    RecordLost {
        /// Its number.
        number: u64,
        /// In the area.
        offset: u64,
    },
    /// A table is not what was written: its beginning, or where it tells what is in it.
    #[error("a table is damaged, at byte {offset}")]
    TableDamaged {
        /// In the area.
        offset: u64,
    },
    /// Positions of a log were never met.
    #[error("structure {} lacks its entry {position}", .structure.0)]
    EntryMissing {
        /// A log.
        structure: StructureId,
        /// The first one.
        position: u64,
    },
}

/// Findings of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// How often the area was opened, this time included.
    pub epoch: u64,
    /// Segments of the log.
    pub segments: u32,
    /// Records replayed.
    pub records: u64,
    /// Entries of them.
    pub entries: u64,
    /// A write was cut at the end of the log: it was not acknowledged.
    pub is_torn: bool,
    /// Sectors that cuts left behind the end of the log.
    pub leftovers: u64,
    /// Superblocks that are damaged; they are written anew.
    pub superblocks_damaged: u32,
    /// Damaged headers of segments that the log does not need; they are erased.
    pub headers_damaged: u32,
    /// The index up to this record was read from a checkpoint; 0 where the whole log was replayed.
    pub checkpoint: u64,
    /// Tables beside the log.
    pub tables: u32,
}

/// The log of an area, before it is replayed.
pub(crate) struct Survey {
    pub superblock: Superblock,
    pub superblocks_damaged: u32,
    /// Oldest first.
    pub chain: Vec<(Used, SegmentHeader)>,
    pub is_torn: bool,
    /// Segments that do not count: where their headers are in the area, to be erased in this order.
    pub dropped: Vec<u64>,
    /// Sectors behind the log's end that are not old, in the area: to be erased.
    pub leftovers: Vec<u64>,
    /// The highest generation of any segment.
    generation: u64,
    /// Segments of checkpoints.
    parts: Headers<PartHeader>,
    /// Slots that the log does not need, with damaged headers.
    pub damaged: Vec<u32>,
    /// The tables that count.
    pub list: List,
    /// Values of maps and trees are held in memory while that has less than this.
    held_bytes_max: u64,
    /// Another process may write meanwhile: a checkpoint may have seen more than the log had when that was read.
    pub is_followed: bool,
}

/// The end of a segment's records.
struct Tip {
    end: u32,
    /// The last record, or the one before the first.
    last: u64,
    is_torn: bool,
    tail: u64,
    /// The highest record that one of them calls durable.
    claims: u64,
}

/// The first sectors of all slots.
#[derive(Default)]
pub(crate) struct Heads {
    /// Of the log.
    pub log: Headers<SegmentHeader>,
    /// Of checkpoints.
    pub parts: Headers<PartHeader>,
    /// The highest generation of a table.
    pub table: u64,
    pub tables: Vec<Place>,
    /// Slots with a damaged one.
    pub damaged: Vec<u32>,
}

/// Reads the headers of all segments, of the log and of checkpoints.
pub(crate) fn headers(medium: &dyn Device, layout: &Layout) -> Result<Heads, OpenError> {
    let mut heads = Heads::default();
    for slot in 0..layout.segments {
        let sector = read_segment(medium, layout, slot, layout.sector_bytes)?;
        heads.note(layout, slot, &sector)?;
    }
    Ok(heads)
}

impl Heads {
    /// Takes the first sector of a slot in.
    pub(crate) fn note(&mut self, layout: &Layout, slot: u32, sector: &[u8]) -> Result<(), OpenError> {
        match scan::head(layout, slot, sector) {
            Head::Blank => {}
            Head::Part(part) => drop(self.parts.insert(part.generation, (slot, part))),
            Head::Table(table) => {
                let generation = table.generation;
                self.table = self.table.max(generation);
                self.tables.push(Place { slot, generation });
            }
            Head::Damaged => self.damaged.push(slot),
            Head::Segment(header) => {
                if self.log.insert(header.generation, (slot, header)).is_some() {
                    let offset = layout.segment_offset(slot);
                    return Err(OpenError::Damaged { offset });
                }
            }
        }
        Ok(())
    }
}

/// True if a slot with a damaged header may have a segment of the log behind `newest`, the last one that is known and to
/// which all others are linked. A segment is begun by one write with its first record. So the slot is free if something
/// older is at the record's place, or nothing, and no sector is of a later generation.
fn is_needed(medium: &dyn Device, layout: &Layout, slot: u32, newest: u64) -> Result<bool, MediaError> {
    let bytes = read_segment(medium, layout, slot, layout.segment_bytes)?;
    let sectors = bytes.chunks(layout.sector_bytes as usize).enumerate();
    for (index, sector) in sectors.skip(1) {
        let within = index as u32 * layout.sector_bytes;
        let number = layout.sector_number(slot, within);
        let aside = [Role::Checkpoint, Role::Page];
        let is_aside = aside
            .into_iter()
            .any(|role| sector::tag_of(sector, role, number).is_some());
        if sector::is_blank(sector) || is_aside {
            continue;
        }
        let tag = [Role::Inner, Role::Record].map(|role| sector::tag_of(sector, role, number));
        match tag[0].or(tag[1]) {
            // Tags are the low halves of generations.
            Some(tag) if (tag.wrapping_sub(newest as u32) as i32) <= 0 => {}
            Some(_) => return Ok(true),
            None if within <= layout.block_bytes => return Ok(true),
            None => {}
        }
    }
    Ok(false)
}

/// Follows a segment's records to where they end.
fn tip(segment: &Segment<'_>, header: &SegmentHeader) -> Result<Tip, OpenError> {
    let damaged = |within: u32| OpenError::Damaged {
        offset: segment.layout.segment_offset(segment.slot) + u64::from(within),
    };
    let mut tip = Tip {
        end: segment.layout.block_bytes,
        last: header.first.wrapping_sub(1),
        is_torn: false,
        tail: header.tail,
        claims: header.durable,
    };
    if let Next::Damaged(within) = segment.padding() {
        return Err(damaged(within));
    }
    loop {
        match segment.next(tip.end) {
            Next::Record { header, .. } if header.number != tip.last + 1 => return Err(damaged(tip.end)),
            Next::Record { header, end } => {
                tip.last += 1;
                tip.end = end;
                tip.tail = tip.tail.max(header.tail);
                tip.claims = tip.claims.max(header.durable);
            }
            Next::Damaged(within) => return Err(damaged(within)),
            Next::Torn => {
                tip.is_torn = true;
                return Ok(tip);
            }
            Next::End => return Ok(tip),
        }
    }
}

/// Reads the superblocks, also of an area whose end is cut off.
pub(crate) fn identify_rest(medium: &dyn Device) -> Result<(Superblock, u32), OpenError> {
    match superblocks(medium)? {
        Superblocks::Found(superblock, damaged) => Ok((superblock, damaged)),
        Superblocks::OtherVersion(version) => Err(OpenError::OtherVersion(version)),
        Superblocks::None => Err(OpenError::NotAnArea),
    }
}

/// Reads the superblocks.
pub(crate) fn identify(medium: &dyn Device) -> Result<(Superblock, u32), OpenError> {
    let (superblock, damaged) = identify_rest(medium)?;
    let (have_bytes, need_bytes) = (medium.capacity_bytes(), superblock.layout.capacity_bytes());
    if have_bytes < need_bytes {
        return Err(OpenError::TooSmall {
            have_bytes,
            need_bytes,
        });
    }
    Ok((superblock, damaged))
}

/// Finds the log. Changes nothing.
pub(crate) fn survey(medium: &dyn Device) -> Result<Survey, OpenError> {
    let identity = identify(medium)?;
    let heads = headers(medium, &identity.0.layout)?;
    survey_of(medium, identity, heads)
}

/// Finds the log among segments whose headers were read.
pub(crate) fn survey_of(
    medium: &dyn Device,
    (superblock, superblocks_damaged): (Superblock, u32),
    heads: Heads,
) -> Result<Survey, OpenError> {
    let layout = superblock.layout;
    let first = heads.damaged.first().copied();
    let lost = |slot| OpenError::SegmentHeader {
        offset: layout.segment_offset(slot),
    };
    let newest = heads.log.keys().chain(heads.parts.keys()).copied().max();
    let newest = newest.max(Some(heads.table));
    let mut survey = Survey {
        superblock,
        superblocks_damaged,
        chain: Vec::new(),
        is_torn: false,
        dropped: Vec::new(),
        leftovers: Vec::new(),
        generation: newest.unwrap_or(0),
        parts: heads.parts,
        damaged: heads.damaged,
        list: List::default(),
        held_bytes_max: 0,
        is_followed: false,
    };
    match (survey.follow(medium, heads.log), first) {
        // What is missing may be behind the damaged header.
        (Err(OpenError::SegmentMissing { .. } | OpenError::RecordLost { .. }), Some(slot)) => {
            return Err(lost(slot));
        }
        (result, _) => result?,
    }
    survey.list = survey.newest_list(medium)?;
    let newest = survey.chain.last().map_or(0, |(used, _)| used.generation);
    for &slot in &survey.damaged {
        if survey.list.tables.iter().any(|it| it.place.slot == slot) {
            let offset = layout.segment_offset(slot);
            return Err(OpenError::TableDamaged { offset });
        }
        if is_needed(medium, &layout, slot, newest)? {
            return Err(lost(slot));
        }
    }
    Ok(survey)
}

/// True if the segment before, where there is one that is needed, goes on to where `header` says that it ends.
fn follows(
    medium: &dyn Device,
    layout: &Layout,
    known: &Headers<SegmentHeader>,
    header: &SegmentHeader,
    tip_of: &Tip,
    claims: u64,
) -> Result<bool, OpenError> {
    let generation = header.previous;
    if generation == 0 || generation < tip_of.tail {
        return Ok(true);
    }
    let &(slot, before) = known
        .get(&generation)
        .ok_or(OpenError::SegmentMissing { generation })?;
    let bytes = read_segment(medium, layout, slot, layout.segment_bytes)?;
    let segment = Segment {
        layout,
        slot,
        generation,
        bytes: &bytes,
    };
    let tip = tip(&segment, &before)?;
    let offset = layout.segment_offset(slot) + u64::from(tip.end);
    let number = tip.last + 1;
    match number.cmp(&header.first) {
        Ordering::Equal if tip.end == header.previous_end => Ok(true),
        Ordering::Less if claims < number => Ok(false),
        Ordering::Less => Err(OpenError::RecordLost { number, offset }),
        _ => Err(OpenError::Damaged { offset }),
    }
}

impl Survey {
    /// Finds the log's newest segment among those `known`, and the log by its links.
    fn follow(&mut self, medium: &dyn Device, mut known: Headers<SegmentHeader>) -> Result<(), OpenError> {
        let layout = self.superblock.layout;
        let mut claims = 0;
        // Segments that were begun by writes of which one before was cut are dropped, newest first.
        while let Some((generation, (slot, header))) = known.pop_last() {
            let bytes = read_segment(medium, &layout, slot, layout.segment_bytes)?;
            let segment = Segment {
                layout: &layout,
                slot,
                generation,
                bytes: &bytes,
            };
            let tip = tip(&segment, &header)?;
            let lost = |number: u64, slot: u32, within: u32| OpenError::RecordLost {
                number,
                offset: layout.segment_offset(slot) + u64::from(within),
            };
            claims = claims.max(segment.durable_beyond(tip.end));
            if claims > tip.last {
                return Err(lost(tip.last + 1, slot, tip.end));
            }
            let is_empty = tip.last + 1 == header.first;
            claims = claims.max(tip.claims);
            self.is_torn |= tip.is_torn;
            let offset = layout.segment_offset(slot);
            if is_empty || !follows(medium, &layout, &known, &header, &tip, claims)? {
                self.dropped.push(offset);
                self.is_torn = true;
                continue;
            }
            let leftovers = segment.leftovers(tip.end);
            self.leftovers = leftovers.iter().map(|&at| offset + u64::from(at)).collect();
            self.link(&known, (slot, header), &tip)?;
            return Ok(());
        }
        if claims > 0 {
            return Err(OpenError::SegmentMissing {
                generation: self.generation,
            });
        }
        Ok(())
    }

    /// Collects the chain that ends with the newest segment, from the tail on.
    fn link(
        &mut self,
        known: &Headers<SegmentHeader>,
        newest: (u32, SegmentHeader),
        tip: &Tip,
    ) -> Result<(), OpenError> {
        let (mut slot, mut header) = newest;
        let (mut end, mut last) = (tip.end, tip.last);
        loop {
            let generation = header.generation;
            let used = Used {
                slot,
                generation,
                last,
                end,
            };
            self.chain.push((used, header));
            let generation = header.previous;
            if generation == 0 || generation < tip.tail {
                break;
            }
            (end, last) = (header.previous_end, header.first - 1);
            (slot, header) = *known
                .get(&generation)
                .ok_or(OpenError::SegmentMissing { generation })?;
        }
        self.chain.reverse();
        let oldest = self.chain[0].0.generation;
        let orphan = known.range(oldest..).map(|(&generation, _)| generation);
        let orphan = orphan
            .into_iter()
            .find(|&generation| !self.chain.iter().any(|(used, _)| used.generation == generation));
        match orphan {
            Some(generation) => Err(OpenError::SegmentMissing { generation }),
            None => Ok(()),
        }
    }

    /// The newest list of tables: each segment has it, from the first table on.
    fn newest_list(&self, medium: &dyn Device) -> Result<List, OpenError> {
        let Some((used, header)) = self.chain.last() else {
            return Ok(List::default());
        };
        let start = Start {
            record: header.first - 1,
            generation: used.generation,
            end: self.superblock.layout.block_bytes,
        };
        let mut list = Some(List::default());
        self.replay(medium, Some(start), |_, entry, _| {
            if entry.kind == EntryKind::Tables {
                list = List::parse(entry.value);
            }
            list.is_some()
        })?;
        Ok(list.expect("replay has refused what makes no sense"))
    }

    /// The tables that count.
    pub(crate) fn levels(&self, medium: &dyn Device) -> Result<Levels, OpenError> {
        let opened = self.list.open(medium, &self.superblock.layout);
        opened.map_err(table_error)
    }

    /// The structures, by a checkpoint if there is one that counts.
    pub(crate) fn structures(&self, medium: &dyn Device) -> Result<Opened, OpenError> {
        let loaded = self.checkpoint(medium)?;
        if let Some(resumed) = loaded.and_then(|loaded| self.resume(medium, loaded)) {
            return Ok(resumed);
        }
        let mut replayed = self.nothing_replayed();
        let take = |record, entry: &Entry<'_>, location| replayed.take(record, entry, location);
        let records = self.replay(medium, None, take)?;
        check(&replayed)?;
        Ok((replayed, records, None))
    }

    /// The checkpoint that counts. One that has seen records beyond the log's end durable tells that they are lost.
    pub(crate) fn checkpoint(&self, medium: &dyn Device) -> Result<Option<Loaded>, OpenError> {
        let layout = &self.superblock.layout;
        let all = self.chain.iter().map(|(used, _)| used);
        let places = all.map(|used| (used.generation, used.slot)).collect();
        let tip = self.chain.last().map(|(used, _)| *used);
        let last = tip.map_or(0, |used| used.last);
        let fits = |it: &Loaded| {
            let start = &it.start;
            let is_in = |used: &Used| {
                used.generation == start.generation && start.end <= used.end && start.record <= used.last
            };
            it.seen <= last && self.chain.iter().any(|(used, _)| is_in(used))
        };
        let fresh = || self.nothing_replayed();
        let (loaded, seen) = checkpoint::load(medium, layout, &self.parts, &places, fresh, fits);
        if seen > last && !self.is_followed {
            let (slot, end) = tip.map_or((0, 0), |used| (used.slot, used.end));
            return Err(OpenError::RecordLost {
                number: last + 1,
                offset: layout.segment_offset(slot) + u64::from(end),
            });
        }
        Ok(loaded)
    }

    /// The structures from a checkpoint and the log behind it. `None` if there is any damage: the caller reads the whole log then.
    fn resume(&self, medium: &dyn Device, loaded: Loaded) -> Option<Opened> {
        let (mut replayed, start) = (loaded.replayed, loaded.start);
        let take = |record, entry: &Entry<'_>, location| replayed.take(record, entry, location);
        let records = self.replay(medium, Some(start), take).ok()?;
        check(&replayed).ok()?;
        let has_moved = replayed.structures.values().any(Structure::has_moved);
        (!has_moved).then_some((replayed, records, Some((start, loaded.slots))))
    }

    fn nothing_replayed(&self) -> Replayed {
        let has_tables = !self.list.tables.is_empty();
        let mut replayed = Replayed::new(&self.superblock, self.list.flushed, has_tables);
        replayed.held_bytes_max = self.held_bytes_max;
        replayed
    }

    /// Calls `f` with the number of every record, its entries, and where the record is in the area.
    /// All of them, or those behind `start`.
    pub(crate) fn replay(
        &self,
        medium: &dyn Device,
        start: Option<Start>,
        mut f: impl FnMut(u64, &Entry<'_>, Location) -> bool,
    ) -> Result<u64, OpenError> {
        let layout = &self.superblock.layout;
        let mut records = 0;
        let skipped = start.map_or(0, |start| start.generation);
        for (used, header) in self.chain.iter().filter(|(used, _)| used.generation >= skipped) {
            let bytes = read_segment(medium, layout, used.slot, used.end)?;
            let segment = Segment {
                layout,
                slot: used.slot,
                generation: used.generation,
                bytes: &bytes,
            };
            let base = layout.segment_offset(used.slot);
            let damaged = |within: u32| OpenError::Damaged {
                offset: base + u64::from(within),
            };
            if let Next::Damaged(within) = segment.padding() {
                return Err(damaged(within));
            }
            let (mut at, mut number) = match start {
                Some(start) if start.generation == used.generation => (start.end, start.record + 1),
                _ => (layout.block_bytes, header.first),
            };
            while at < used.end {
                match segment.next(at) {
                    Next::Record { header, end } if header.number == number && end <= used.end => {
                        let mut is_sound = true;
                        let makes_sense = segment.entries(at, &header, |entry, location| {
                            is_sound &= f(number, entry, location);
                        });
                        if !(makes_sense && is_sound) {
                            return Err(damaged(at));
                        }
                        (at, number, records) = (end, number + 1, records + 1);
                    }
                    Next::Damaged(within) => return Err(damaged(within)),
                    Next::Record { .. } => return Err(damaged(at)),
                    Next::End | Next::Torn => {
                        let offset = base + u64::from(at);
                        return Err(OpenError::RecordLost { number, offset });
                    }
                }
            }
            if number != used.last + 1 {
                return Err(damaged(at));
            }
        }
        Ok(records)
    }
}

/// A table cannot be read.
pub(crate) fn table_error(error: ReadError) -> OpenError {
    match error {
        ReadError::Medium(error) => error.into(),
        ReadError::Fetch(FetchError::Damaged { offset }) => OpenError::TableDamaged { offset },
        ReadError::Fetch(FetchError::Moved) => unreachable!("tables stay where they are"),
    }
}

/// The structures, records replayed, and where they began and the slots of the checkpoint before, if there was one.
pub(crate) type Opened = (Replayed, u64, Option<(Start, Vec<u32>)>);

/// Every log has all its positions.
pub(crate) fn check(replayed: &Replayed) -> Result<(), OpenError> {
    match replayed.hole() {
        Some((structure, position)) => Err(OpenError::EntryMissing { structure, position }),
        None => Ok(()),
    }
}

impl Engine {
    /// Opens the area on `medium`: replays its log, erases what a cut left, and begins a new epoch, durably.
    pub fn open(medium: &mut dyn Device, options: Options) -> Result<(Self, RecoveryReport), OpenError> {
        let mut survey = survey(medium)?;
        let spill_bytes = Limits::new(&survey.superblock.layout, options.spill_bytes()).spill_bytes;
        survey.held_bytes_max = spill_bytes.map_or(0, behind);
        let levels = survey.levels(medium)?;
        let (replayed, records, checkpoint) = survey.structures(medium)?;
        // Earlier releases know nothing of tables.
        let may_spill = spill_bytes.is_some();
        let superblock = begin_epoch(medium, &survey, if may_spill { VERSION } else { 1 })?;
        let report = RecoveryReport {
            epoch: superblock.epoch,
            segments: survey.chain.len() as u32,
            records,
            entries: replayed.entries,
            is_torn: survey.is_torn,
            leftovers: (survey.dropped.len() + survey.leftovers.len()) as u64,
            superblocks_damaged: survey.superblocks_damaged,
            headers_damaged: survey.damaged.len() as u32,
            checkpoint: checkpoint.as_ref().map_or(0, |(start, _)| start.record),
            tables: levels.count(),
        };
        let chain: VecDeque<Used> = survey.chain.iter().map(|&(used, _)| used).collect();
        let (start, kept) = checkpoint.unwrap_or_default();
        let behind = chain.iter().filter(|used| used.generation > start.generation);
        let since = behind.map(|used| u64::from(used.end)).sum();
        let tip = chain.back().map(|used| Start {
            record: used.last,
            generation: used.generation,
            end: used.end,
        });
        let tables = survey.list.tables.iter().map(|it| it.place.slot);
        let aside: BTreeSet<u32> = kept.iter().copied().chain(tables).collect();
        let parts = Parts {
            layout: superblock.layout,
            epoch: superblock.epoch,
            seed: replayed.seed,
            last: chain.back().map_or(0, |used| used.last),
            space: Space::new(superblock.layout, chain, &aside, superblock.generation + 1),
            since,
            tip: tip.unwrap_or_default(),
            structures: replayed.structures,
            // Tables may have keys of a structure that was dropped: its number is never given to another one.
            next_structure: replayed
                .next_structure
                .max(levels.structure_max().map_or(0, |id| id.0.saturating_add(1))),
            levels,
            usage: replayed.usage,
        };
        let mut log = Log::new(parts, options);
        log.note_all();
        hold_values(&mut log, medium);
        Ok((Self::new(log, Checkpoints::new(kept)), report))
    }
}

/// Reads the values that memory is to have, and that a checkpoint did not tell. One that cannot be read is left to whoever asks
/// for it.
fn hold_values(log: &mut Log, medium: &dyn Device) {
    let Some(bytes_max) = log.limits.spill_bytes.map(behind) else {
        return;
    };
    let generations = (0..log.layout.segments).map(|slot| log.space.generation_of(slot));
    let generations: Vec<u64> = generations.collect();
    let mut values = Values::new(log.layout, &generations);
    for structure in log.structures.values_mut() {
        let mut unheld = structure.unheld();
        unheld.sort_unstable();
        for (at, key) in unheld {
            if log.usage.keyed.index >= bytes_max {
                log.lacks_values = true;
                return;
            }
            values.bytes.clear();
            let is_read = values.read(at, medium).is_ok();
            log.lacks_values |= !is_read;
            if is_read {
                let value = Some(values.bytes[..].into());
                structure.hold(key, Slot { at, value }, &mut log.usage);
            }
        }
    }
}

/// Erases what a cut left and writes the superblock of the new epoch, durably.
fn begin_epoch(medium: &mut dyn Device, survey: &Survey, version: u32) -> Result<Superblock, MediaError> {
    const ERASED: [u8; SECTOR_HEADER_BYTES as usize] = [0; SECTOR_HEADER_BYTES as usize];
    // One at a time: a segment without its predecessor would be missing it.
    for &offset in &survey.dropped {
        medium.write_at(offset, &ERASED)?;
        medium.flush()?;
    }
    for &offset in &survey.leftovers {
        medium.write_at(offset, &ERASED)?;
    }
    // Else a cut of the write that begins a segment there would leave a header that is neither old nor new.
    for &slot in &survey.damaged {
        medium.write_at(survey.superblock.layout.segment_offset(slot), &ERASED)?;
    }
    medium.flush()?;
    let mut superblock = survey.superblock;
    superblock.version = superblock.version.max(version);
    let newest = survey.chain.last().map_or(0, |(_, header)| header.epoch);
    superblock.epoch = superblock.epoch.max(newest) + 1;
    let strides = 1 + u64::from(survey.superblocks_damaged);
    // A damaged header may be that of the highest generation.
    superblock.generation = superblock.generation.max(survey.generation)
        + GENERATIONS_LOST_MAX * 2 * strides
        + survey.damaged.len() as u64;
    superblock.write(medium)?;
    medium.flush()?;
    if survey.superblocks_damaged > 0 {
        superblock.epoch += 1;
        superblock.write(medium)?;
        medium.flush()?;
    }
    Ok(superblock)
}
