//! The readable content of a damaged area, whether or not it opens.
//!
//! The log is read record by record. A sector that is not intact takes the entries that touch it. It takes no others, as
//! long as the record tells where its next entry begins. The order of the log stays the order of truth. So the result is
//! what the area held, less what is named as lost. If the log has lost something, a checkpoint tells what was there when it began,
//! and only the log behind it is read so ([`known`]). Nothing is written.

use crate::checkpoint::{self, Loaded};
use crate::entry::{Description, Durability, Entry, EntryKind, Kind, StructureId};
use crate::fetch;
use crate::files::{FILES_NAME, WRITES_NAME};
use crate::format::{SegmentHeader, Superblock};
use crate::index::{Key, Location, Structure};
use crate::layout::Layout;
use crate::recover::{Heads, OpenError, headers, identify_rest, table_error};
use crate::replay::Replayed;
use crate::scan::{Piece, Segment, read_segment};
use crate::sector::{self, Role};
use crate::table::levels::{Levels, List};
use crate::table::merged::{Gap, Merged};
use crate::table::{Place, structure_of};
use base::{Device, MediaError};
use std::collections::{BTreeMap, BTreeSet};

/// Content of a sector that cannot be read: it fits no checksum.
const UNREADABLE: u8 = 0xa5;

/// The key or position of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKey {
    /// Of a log or queue.
    Position(u64),
    /// Of a map or tree.
    Bytes(Vec<u8>),
}

impl From<&Key> for EntryKey {
    fn from(key: &Key) -> Self {
        match key {
            Key::Position(position) => Self::Position(*position),
            Key::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }
}

/// Pages of a table that cannot be read, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPages {
    /// Of the first one, in bytes of the area.
    pub offset: u64,
    /// The structure and the key that no lost key is below, and those that none is above. Both may be there. `None` if the table does
    /// not tell them.
    pub keys: Option<[(String, Vec<u8>); 2]>,
}

impl LostPages {
    pub(crate) fn new(gap: &Gap, structures: &BTreeMap<StructureId, Structure>) -> Self {
        let named = |key: &[u8]| {
            let id = structure_of(key)?;
            let number = || format!("structure {}", id.0);
            let name = structures.get(&id).map_or_else(number, |it| it.name.to_string());
            Some((name, key[4..].to_vec()))
        };
        let (offset, keys) = (gap.offset, named(&gap.from).zip(named(&gap.to)));
        Self {
            offset,
            keys: keys.map(|(from, to)| [from, to]),
        }
    }
}

/// A structure in a repaired copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvagedStructure {
    /// Its name; made up if the record that named it is lost.
    pub name: String,
    /// Its kind; a tree if nothing says whether it was a map or a tree.
    pub kind: Kind,
    /// The name is made up.
    pub is_nameless: bool,
    /// Entries that the copy has.
    pub kept: u64,
    /// Entries whose data are lost. A copy's log answers these positions with an error.
    pub lost: Vec<EntryKey>,
    /// Entries that the copy leaves out although they can be read: changes of files that come after a lost one.
    pub left_out: u64,
}

/// The content of a repaired copy, and what it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// The index up to this record is that of a checkpoint, and the records below are those behind it; 0 if the log told everything.
    pub checkpoint: u64,
    /// Bytes at the end of the area that the medium does not have. How many records were there, only a checkpoint may tell.
    pub bytes_cut_off: u64,
    /// Records that are whole.
    pub records: u64,
    /// Records of which a part is lost.
    pub records_damaged: u64,
    /// Records of which nothing is left. Their changes are not there: what they set or removed is as it was before.
    pub records_lost: u64,
    /// Damaged records that do not tell which of their entries are lost.
    pub records_unnamed: u64,
    /// The newest list of tables is lost. Tables that are newer than the one before are taken for parts of it: keys that were removed may
    /// have a value again.
    pub is_list_lost: bool,
    /// Tables that do not tell what is in them: what can be read was found all the same.
    pub tables_damaged: u64,
    /// Pages of tables that are lost. Keys in them have an older value, or none.
    pub pages_lost: Vec<LostPages>,
    /// By number.
    pub structures: Vec<SalvagedStructure>,
}

impl SalvageReport {
    /// True if records, or parts of them, are lost.
    fn is_lossy(&self) -> bool {
        self.records_damaged + self.records_lost + self.records_unnamed > 0
    }
}

/// The content of a damaged area, as far as it can be read.
pub struct Salvage {
    pub(crate) superblock: Superblock,
    pub(crate) replayed: Replayed,
    /// Generations by slot.
    pub(crate) generations: Vec<u64>,
    /// Positions of logs that are lost.
    pub(crate) holes: BTreeMap<StructureId, BTreeSet<u64>>,
    /// Tables, with what is damaged of them.
    pub(crate) levels: Levels,
    report: SalvageReport,
}

/// A medium whose unreadable sectors are damaged ones.
pub(crate) struct Lenient<'a>(pub &'a dyn Device);

impl Device for Lenient<'_> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        const SECTOR: usize = 512;
        if self.0.read_at(offset, bytes).is_ok() {
            return Ok(());
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let count = (SECTOR - (at % SECTOR as u64) as usize).min(bytes.len() - done);
            let part = &mut bytes[done..done + count];
            if self.0.read_at(at, part).is_err() {
                part.fill(UNREADABLE);
            }
            done += count;
        }
        Ok(())
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("a salvage only reads")
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        unreachable!("a salvage only reads")
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }
}

/// A segment that the log may need.
struct Candidate {
    slot: u32,
    generation: u64,
    header: Option<SegmentHeader>,
}

impl Candidate {
    fn headless(slot: u32, generation: u64) -> Self {
        Self {
            slot,
            generation,
            header: None,
        }
    }
}

/// Reads what can be read of the area. Changes nothing.
///
/// # Errors
/// Without a valid superblock nothing is known of the area.
pub fn salvage(medium: &dyn Device) -> Result<Salvage, OpenError> {
    let medium = &Lenient(medium);
    let (superblock, _) = identify_rest(medium)?;
    let layout = superblock.layout;
    let mut reader = Reader {
        medium,
        layout,
        claims: 0,
        tail: 0,
        described: BTreeMap::new(),
        list: (0, List::default()),
        may_have_newer: false,
    };
    let heads = headers(medium, &layout)?;
    let candidates = reader.candidates(&heads, superblock.generation)?;
    let mut pieces = Vec::new();
    for candidate in &candidates {
        reader.scan(candidate, &mut pieces)?;
    }
    for (id, name, description) in checkpoint::descriptions(medium, &layout, &heads.parts) {
        reader.described.entry(id).or_insert((name, description));
    }
    pieces.retain(|it| it.generation >= reader.tail);
    let used = || candidates.iter().filter(|it| it.generation >= reader.tail);
    let first = used().next().and_then(|it| it.header).map(|header| header.first);
    let mut generations = vec![0; layout.segments as usize];
    used().for_each(|it| generations[it.slot as usize] = it.generation);
    let (loaded, seen) = newest_checkpoint(&reader, &superblock, &heads, &generations);
    reader.claims = reader.claims.max(seen);
    let mut list = reader.list.1.clone();
    let mut found = Found::new(&reader, &superblock, &list);
    found.take_all(&pieces, first)?;
    // How many records were there, nothing tells.
    found.report.records_lost += u64::from(reader.lacks_beginning(used().next(), &heads, &pieces));
    if let Some(loaded) = loaded.filter(|_| found.report.is_lossy()) {
        found = found.known(loaded, &pieces, &generations)?;
    }
    found.report.is_list_lost = found.renew(&mut list, &heads);
    let (levels, damaged) = list.open_damaged(medium, &layout);
    found.take_tables(&levels, medium)?;
    if found.report.is_list_lost {
        found.yield_to_tables(&levels, &generations, medium)?;
    }
    let (replayed, lost, mut report) = (found.replayed, found.lost, found.report);
    report.tables_damaged = damaged;
    report.bytes_cut_off = layout.capacity_bytes().saturating_sub(medium.capacity_bytes());
    let mut salvage = Salvage {
        superblock,
        replayed,
        generations,
        holes: BTreeMap::new(),
        levels,
        report,
    };
    let mut kept: BTreeMap<StructureId, u64> = BTreeMap::new();
    let gaps = salvage.each_in_tables(medium, |id, _, _| *kept.entry(id).or_default() += 1)?;
    let structures = &salvage.replayed.structures;
    salvage.report.pages_lost = gaps.iter().map(|gap| LostPages::new(gap, structures)).collect();
    salvage.conclude(lost, &reader.described, &kept);
    Ok(salvage)
}

/// The newest checkpoint that is whole, if all that came since would be in the log; the last record that any has seen durable.
fn newest_checkpoint(
    reader: &Reader<'_>,
    superblock: &Superblock,
    heads: &Heads,
    generations: &[u64],
) -> (Option<Loaded>, u64) {
    let slots = (0..).zip(generations).filter(|(_, generation)| **generation > 0);
    let places = slots.map(|(slot, &generation)| (generation, slot)).collect();
    let list = &reader.list.1;
    let fresh = || Replayed::new(superblock, list.flushed, !list.tables.is_empty());
    let fits = |it: &Loaded| it.start.generation >= reader.tail;
    checkpoint::load(reader.medium, &reader.layout, &heads.parts, &places, fresh, fits)
}

impl Salvage {
    /// The content of a copy, and what is lost.
    pub fn report(&self) -> &SalvageReport {
        &self.report
    }

    /// Calls `f` with structure, key and value of each entry that tables have and the log does not change; what cannot be read.
    pub(crate) fn each_in_tables(
        &self,
        medium: &dyn Device,
        mut f: impl FnMut(StructureId, &[u8], &[u8]),
    ) -> Result<Vec<Gap>, OpenError> {
        let merged = Merged::lenient(self.levels.all().map(|(_, view)| view));
        let mut merged = merged.by_version(self.report.is_list_lost);
        while merged.next(medium).map_err(table_error)? {
            let (key, held) = merged.entry().map_err(table_error)?;
            let (Some(id), Some(value)) = (structure_of(key), held.value) else {
                continue;
            };
            let structure = self.replayed.structures.get(&id);
            if structure.is_some_and(|it| it.entry_of(&key[4..]).is_none()) {
                f(id, &key[4..], value);
            }
        }
        Ok(merged.gaps())
    }

    /// Counts what is there and what is lost, and ends a journal of files before its first lost change.
    fn conclude(&mut self, mut lost: Lost, described: &Described, in_tables: &BTreeMap<StructureId, u64>) {
        let is_journal = self.is_journal();
        let limit = self.superblock.layout.capacity_bytes() as usize;
        let Replayed {
            structures, usage, ..
        } = &mut self.replayed;
        for (&id, structure) in structures.iter_mut() {
            let mut holes: BTreeSet<u64> = structure.holes().take(limit).collect();
            let mut keys: BTreeSet<EntryKey> = holes.iter().copied().map(EntryKey::Position).collect();
            if structure.kind != Kind::Log {
                keys = lost
                    .remove(&id)
                    .unwrap_or_default()
                    .iter()
                    .map(EntryKey::from)
                    .collect();
            }
            let mut left_out = 0;
            let first = holes.first().copied().filter(|_| is_journal);
            if let Some(first) = first {
                left_out = structure.cut(first, usage);
                holes.clear();
            }
            self.report.structures.push(SalvagedStructure {
                name: structure.name.to_string(),
                kind: structure.kind,
                is_nameless: described
                    .get(&id)
                    .is_none_or(|(name, _)| **name != *structure.name),
                kept: structure.met() + in_tables.get(&id).copied().unwrap_or(0),
                lost: keys.into_iter().collect(),
                left_out,
            });
            self.holes.insert(id, holes);
        }
    }

    /// True if the area has the journal of `switchyard run` (docs/format/files.md), of which only a prefix makes sense.
    fn is_journal(&self) -> bool {
        let has = |name: &str, kind| {
            let mut all = self.replayed.structures.values();
            all.any(|it| &*it.name == name && it.kind == kind && it.durability == Durability::Lazy)
        };
        self.replayed.structures.len() == 2 && has(FILES_NAME, Kind::Map) && has(WRITES_NAME, Kind::Log)
    }
}

/// Names and descriptions by structure, as far as any record or checkpoint has them.
type Described = BTreeMap<StructureId, (String, Description)>;
/// Keys whose newest value is damaged, by structure.
type Lost = BTreeMap<StructureId, BTreeSet<Key>>;

/// The first look at the segments: where records are, and what they claim.
struct Reader<'a> {
    medium: &'a dyn Device,
    layout: Layout,
    /// The highest record that any record calls durable.
    claims: u64,
    tail: u64,
    described: Described,
    /// The newest list of tables that can be read, and its record.
    list: (u64, List),
    /// Something is damaged behind it, which may have been a newer one.
    may_have_newer: bool,
}

impl Reader<'_> {
    /// The segments that the log may have, oldest first. `known`: the highest generation, if no header has it.
    fn candidates(&mut self, heads: &Heads, known: u64) -> Result<Vec<Candidate>, MediaError> {
        let newest = heads.log.keys().chain(heads.parts.keys()).copied().max();
        let newest = newest.max(Some(heads.table));
        let mut candidates = Vec::new();
        for (&generation, &(slot, header)) in &heads.log {
            self.claims = self.claims.max(header.durable);
            self.tail = self.tail.max(header.tail);
            candidates.push(Candidate {
                header: Some(header),
                ..Candidate::headless(slot, generation)
            });
        }
        for &slot in &heads.damaged {
            if let Some(generation) = self.generation_of(slot, newest.unwrap_or(known))? {
                candidates.push(Candidate::headless(slot, generation));
            }
        }
        candidates.sort_by_key(|it| it.generation);
        // What lies between two segments that are linked is not of the log.
        let links: Vec<(u64, u64)> = heads.log.iter().map(|(&to, (_, it))| (it.previous, to)).collect();
        candidates.retain(|it| {
            let is_between =
                |&(from, to): &(u64, u64)| from < it.generation && it.generation < to && from > 0;
            !links.iter().any(is_between)
        });
        Ok(candidates)
    }

    /// The generation of a segment whose header is damaged, by its other sectors; `None` if it was never used.
    fn generation_of(&self, slot: u32, newest: u64) -> Result<Option<u64>, MediaError> {
        let layout = &self.layout;
        let bytes = read_segment(self.medium, layout, slot, layout.segment_bytes)?;
        let sectors = bytes.chunks(layout.sector_bytes as usize).enumerate();
        let distances = sectors.filter_map(|(index, bytes)| {
            let number = layout.sector_number(slot, index as u32 * layout.sector_bytes);
            let tags = [Role::Inner, Role::Record].map(|role| sector::tag_of(bytes, role, number));
            let tag = tags[0].or(tags[1])?;
            Some(tag.wrapping_sub(newest as u32) as i32)
        });
        let latest = distances.max();
        Ok(latest.and_then(|distance| newest.checked_add_signed(i64::from(distance))))
    }

    /// True if something may be lost before the oldest segment that was found, or at its beginning.
    fn lacks_beginning(&self, oldest: Option<&Candidate>, heads: &Heads, pieces: &[Piece]) -> bool {
        let Some(oldest) = oldest else { return false };
        if let Some(header) = oldest.header {
            return header.previous > 0 && header.previous >= self.tail;
        }
        let first = pieces.first().filter(|it| it.at == self.layout.block_bytes);
        heads.damaged.len() > 1 || first.is_none_or(|it| it.header.is_none())
    }

    fn scan(&mut self, candidate: &Candidate, pieces: &mut Vec<Piece>) -> Result<(), MediaError> {
        let layout = self.layout;
        let bytes = read_segment(self.medium, &layout, candidate.slot, layout.segment_bytes)?;
        let segment = Segment {
            layout: &layout,
            slot: candidate.slot,
            generation: candidate.generation,
            bytes: &bytes,
        };
        let mut at = layout.block_bytes;
        while at < layout.segment_bytes {
            let Some(piece) = Piece::at(&segment, at) else {
                at += layout.block_bytes;
                continue;
            };
            if let Some(header) = piece.header {
                self.claims = self.claims.max(header.durable);
                self.tail = self.tail.max(header.tail);
                self.note_descriptions(&segment, &piece);
            } else {
                self.may_have_newer = true;
            }
            at = piece.end;
            pieces.push(piece);
        }
        Ok(())
    }

    fn note_descriptions(&mut self, segment: &Segment<'_>, piece: &Piece) {
        let record = piece.header.map_or(0, |header| header.number);
        let is_named = segment.readable_entries(piece, |entry, _, is_damaged| {
            if entry.kind == EntryKind::Tables && record >= self.list.0 {
                let list = List::parse(entry.value).filter(|_| !is_damaged);
                self.may_have_newer = list.is_none();
                self.list = list.map_or_else(|| self.list.clone(), |list| (record, list));
            }
            let name = core::str::from_utf8(entry.key);
            if entry.kind == EntryKind::Describe
                && !is_damaged
                && let (Some(description), Ok(name)) = (Description::parse(entry.value), name)
            {
                let described = || (name.to_owned(), description);
                self.described.entry(entry.structure).or_insert_with(described);
            }
        });
        self.may_have_newer |= !is_named;
    }
}

/// The second look: what the records make, in the order of the log.
struct Found<'a> {
    reader: &'a Reader<'a>,
    replayed: Replayed,
    lost: Lost,
    report: SalvageReport,
    unknown: Unknown,
}

/// Structures that may be there although no description of them can be read.
#[derive(Default)]
struct Unknown {
    /// Nothing that may describe or drop a structure was lost since a segment began with all descriptions.
    is_excluded: bool,
    /// Numbers below were described there, or are gone.
    next: u32,
    /// Their descriptions are damaged.
    damaged: BTreeSet<StructureId>,
    dropped: BTreeSet<StructureId>,
}

impl Unknown {
    /// True if entries in tables may be those of a structure with this number that nothing describes.
    fn may_have(&self, id: StructureId) -> bool {
        let is_possible = self.damaged.contains(&id) || (!self.is_excluded && id.0 >= self.next);
        is_possible && !self.dropped.contains(&id)
    }
}

impl<'a> Found<'a> {
    fn new(reader: &'a Reader<'a>, superblock: &Superblock, list: &List) -> Self {
        Self {
            reader,
            replayed: Replayed::new(superblock, list.flushed, !list.tables.is_empty()),
            lost: Lost::new(),
            report: SalvageReport::default(),
            unknown: Unknown::default(),
        }
    }

    /// Applies the records; `first` is the number of the first one, if that is known.
    fn take_all(&mut self, pieces: &[Piece], first: Option<u64>) -> Result<(), MediaError> {
        let layout = self.reader.layout;
        let mut next = first;
        let (mut place, mut has_damage) = (None, false);
        let mut read: (u32, Vec<u8>) = (u32::MAX, Vec::new());
        for piece in pieces {
            let Some(header) = piece.header else {
                has_damage |= place.is_none_or(|place| place == (piece.slot, piece.at))
                    || piece.at == layout.block_bytes;
                continue;
            };
            let expected = next.unwrap_or(header.number);
            let was_durable = |number: u64| number <= self.reader.claims;
            let is_torn = piece.has_gap && !piece.has_damage && !was_durable(header.number);
            let is_cut = header.number > expected && !was_durable(expected) && !has_damage;
            if header.number < expected {
                continue;
            }
            if is_torn || is_cut {
                return Ok(());
            }
            self.report.records_lost += header.number - expected;
            self.unknown.is_excluded &= header.number == expected;
            if read.0 != piece.slot {
                let bytes = read_segment(self.reader.medium, &layout, piece.slot, layout.segment_bytes)?;
                read = (piece.slot, bytes);
            }
            let segment = Segment {
                layout: &layout,
                slot: piece.slot,
                generation: piece.generation,
                bytes: &read.1,
            };
            self.take(&segment, piece);
            (next, place, has_damage) = (Some(header.number + 1), Some((piece.slot, piece.end)), false);
        }
        // What was called durable, or lies damaged where the next record would be.
        let missing = (self.reader.claims + 1).saturating_sub(next.unwrap_or(1));
        let missing = missing.max(u64::from(has_damage));
        self.report.records_lost += missing;
        self.unknown.is_excluded &= missing == 0;
        Ok(())
    }

    fn take(&mut self, segment: &Segment<'_>, piece: &Piece) {
        let mut described = BTreeSet::new();
        let record = piece.header.map_or(0, |header| header.number);
        let is_named = segment.readable_entries(piece, |entry, location, is_damaged| {
            if entry.kind == EntryKind::Describe {
                described.insert(entry.structure);
            }
            self.apply(record, entry, location, is_damaged);
        });
        match piece.has_damage || piece.has_gap {
            true => self.report.records_damaged += 1,
            false => self.report.records += 1,
        }
        self.report.records_unnamed += u64::from(!is_named);
        self.unknown.is_excluded &= is_named;
        if piece.at == segment.layout.block_bytes && is_named {
            // A segment begins with a description of every structure: of others the end is lost.
            let ids: Vec<StructureId> = self.replayed.structures.keys().copied().collect();
            for id in ids.into_iter().filter(|id| !described.contains(id)) {
                self.drop(id);
            }
            let last = described.last().map_or(0, |id| id.0.saturating_add(1));
            self.unknown.damaged.retain(|id| described.contains(id));
            self.unknown.next = last.max(self.replayed.next_structure);
            self.unknown.is_excluded = true;
        }
    }

    /// If the newest list may be lost, adds tables to the one before that are newer than it. True if there are any.
    fn renew(&self, list: &mut List, heads: &Heads) -> bool {
        let newer = |place: &&Place| place.generation > list.newest();
        let newer: Vec<Place> = heads.tables.iter().filter(newer).copied().collect();
        let log = heads
            .log
            .iter()
            .map(|(&generation, &(slot, _))| (slot, generation));
        let parts = heads
            .parts
            .iter()
            .map(|(&generation, &(slot, _))| (slot, generation));
        let tables = heads.tables.iter().map(|place| (place.slot, place.generation));
        let places = log.chain(parts).chain(tables).collect();
        // Nothing is put where a table of the newest list is.
        let may_have =
            self.reader.may_have_newer || self.report.records_lost > 0 || list.is_outdated(&places);
        if newer.is_empty() || !may_have {
            return false;
        }
        list.renew(&newer, &places);
        true
    }

    /// Makes the structures of which only tables have something.
    fn take_tables(&mut self, levels: &Levels, medium: &dyn Device) -> Result<(), OpenError> {
        if self.unknown.is_excluded && self.unknown.damaged.is_empty() {
            return Ok(());
        }
        let mut merged = Merged::lenient(levels.all().map(|(_, view)| view));
        while merged.next(medium).map_err(table_error)? {
            let (key, held) = merged.entry().map_err(table_error)?;
            let id = structure_of(key).filter(|id| self.unknown.may_have(*id));
            if let (Some(id), Some(_)) = (id, held.value) {
                self.is_there(id, EntryKind::Put);
            }
        }
        Ok(())
    }

    /// Gives up the entries of the log of which tables have newer ones: what left memory since the list that was found.
    fn yield_to_tables(
        &mut self,
        levels: &Levels,
        generations: &[u64],
        medium: &dyn Device,
    ) -> Result<(), OpenError> {
        let mut merged = Merged::lenient(levels.all().map(|(_, view)| view)).by_version(true);
        while merged.next(medium).map_err(table_error)? {
            let (key, held) = merged.entry().map_err(table_error)?;
            let Some(id) = structure_of(key) else { continue };
            let Some(structure) = self.replayed.structures.get_mut(&id) else {
                continue;
            };
            let Some(at) = structure
                .entry_of(&key[4..])
                .filter(|_| structure.kind.has_keys())
            else {
                continue;
            };
            let generation = generations.get(at.slot as usize);
            if generation.is_some_and(|generation| at.version(*generation) < held.version) {
                let key = Key::Bytes(key[4..].into());
                if let Some(lost) = self.lost.get_mut(&id) {
                    lost.remove(&key);
                }
                structure.apply(EntryKind::Remove, key, at, false, &mut self.replayed.usage);
            }
        }
        Ok(())
    }

    /// The same, as a checkpoint tells it: which entries were there, and where. The log behind the checkpoint is applied to that.
    /// Entries that cannot be read are lost by name, whatever else their records had.
    fn known(&self, loaded: Loaded, pieces: &[Piece], generations: &[u64]) -> Result<Self, MediaError> {
        let start = loaded.start;
        let mut known = Self {
            reader: self.reader,
            lost: Lost::new(),
            report: SalvageReport {
                checkpoint: start.record,
                ..SalvageReport::default()
            },
            unknown: Unknown {
                is_excluded: true,
                next: loaded.replayed.next_structure,
                ..Unknown::default()
            },
            replayed: loaded.replayed,
        };
        let behind = pieces.partition_point(|it| (it.generation, it.at) < (start.generation, start.end));
        known.take_all(&pieces[behind..], Some(start.record + 1))?;
        known.give_up_unreadable(&self.replayed, generations);
        Ok(known)
    }

    /// Gives up the entries whose values cannot be read. Of positions, which have one value, the log may know `another` place.
    fn give_up_unreadable(&mut self, another: &Replayed, generations: &[u64]) {
        let (layout, medium) = (self.reader.layout, self.reader.medium);
        let is_readable = |at: &Location| {
            let generation = generations.get(at.slot as usize);
            let is_whole = |&generation: &u64| {
                let it = fetch::Found::new(layout, *at, generation);
                let mut bytes = vec![0; it.length()];
                medium.read_at(it.offset(), &mut bytes).is_ok() && it.extract(&bytes).is_ok()
            };
            generation.is_some_and(|generation| at.is_lost() || at.length == 0 || is_whole(generation))
        };
        for (&id, structure) in &mut self.replayed.structures {
            let mut unreadable = Vec::new();
            structure.each(|key, at| {
                if !at.is_removed() && !is_readable(&at) {
                    unreadable.push((key, at));
                }
            });
            let usage = &mut self.replayed.usage;
            let another = another.structures.get(&id);
            for (key, at) in unreadable {
                let place = match key {
                    Key::Position(position) => another.and_then(|it| it.find_position(position)),
                    Key::Bytes(_) => None,
                };
                let kind = match structure.kind {
                    Kind::Log => EntryKind::Append,
                    Kind::Queue => EntryKind::Push,
                    Kind::Map | Kind::Tree => EntryKind::Remove,
                };
                match (place.filter(is_readable), &key) {
                    (Some(place), _) => structure.apply(kind, key, place, true, usage),
                    (None, Key::Position(position)) if kind == EntryKind::Append => {
                        structure.miss(*position, usage);
                    }
                    (None, _) => {
                        self.lost.entry(id).or_default().insert(key.clone());
                        let gone = match kind {
                            EntryKind::Push => EntryKind::Acknowledge,
                            kind => kind,
                        };
                        structure.apply(gone, key, at, self.replayed.has_tables, usage);
                    }
                }
            }
        }
    }

    fn drop(&mut self, id: StructureId) {
        if let Some(structure) = self.replayed.structures.remove(&id) {
            structure.give_back(&mut self.replayed.usage);
        }
        self.lost.remove(&id);
        self.unknown.dropped.insert(id);
    }

    fn apply(&mut self, record: u64, entry: &Entry<'_>, location: Location, is_damaged: bool) {
        let id = entry.structure;
        match entry.kind {
            EntryKind::Describe if is_damaged => {
                self.unknown.damaged.insert(id);
                return;
            }
            EntryKind::Describe => drop(self.replayed.take(record, entry, location)),
            EntryKind::Drop => self.drop(id),
            _ => {}
        }
        let has_key = matches!(entry.kind, EntryKind::Put | EntryKind::Remove);
        if entry.kind == EntryKind::Tables || (has_key && record <= self.replayed.flushed) {
            return;
        }
        if matches!(entry.kind, EntryKind::Describe | EntryKind::Drop) || !self.is_there(id, entry.kind) {
            return;
        }
        let key = Key::of(entry);
        let lost = self.lost.entry(id).or_default();
        lost.remove(&key);
        if !is_damaged {
            self.replayed.take(record, entry, location);
            return;
        }
        match entry.kind {
            // Its older value is not the one that it had.
            EntryKind::Put => {
                lost.insert(key.clone());
                self.replayed.place(EntryKind::Remove, id, key, location);
            }
            // A position has one value: an older place of it is as good.
            EntryKind::Push if self.replayed.structures[&id].entry_of(entry.key).is_none() => {
                lost.insert(key);
                self.replayed
                    .structures
                    .get_mut(&id)
                    .expect("just seen")
                    .shown(entry.position());
            }
            EntryKind::Append => self
                .replayed
                .structures
                .get_mut(&id)
                .expect("just seen")
                .shown(entry.position()),
            _ => {}
        }
    }

    /// True if the structure is there, of a kind that has such entries; it is made if its description is lost.
    fn is_there(&mut self, id: StructureId, kind: EntryKind) -> bool {
        if !self.replayed.structures.contains_key(&id) {
            let described = self.reader.described.get(&id).cloned();
            let is_free = |name: &str| self.replayed.structures.values().all(|it| &*it.name != name);
            let described = described.filter(|(name, _)| is_free(name));
            let (name, description) = described.unwrap_or_else(|| {
                let structure = match kind {
                    EntryKind::Push | EntryKind::Acknowledge => Kind::Queue,
                    EntryKind::Put | EntryKind::Remove => Kind::Tree,
                    _ => Kind::Log,
                };
                let description = Description {
                    kind: structure,
                    durability: Durability::Sync,
                    next: 0,
                    floor: 0,
                };
                let mut name = format!("recovered-{}", id.0);
                while !is_free(&name) {
                    name.push('+');
                }
                (name, description)
            });
            self.replayed.describe(id, &name, &description);
        }
        kind.suits(self.replayed.structures[&id].kind)
    }
}
