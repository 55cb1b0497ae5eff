//! A moment of an area, and how the next one is found (docs/format/store.md, "Following").

use super::medium::{FollowStats, Followed, Moment};
use crate::damage::FetchError;
use crate::entry::{Description, Durability, EntryKind, Kind, StructureId};
use crate::fetch::{Fetch, Found};
use crate::format::{RECORD_HEADER_BYTES, SegmentHeader, Superblock};
use crate::index::{Body, Key, Location};
use crate::layers::{ALL, Bounds, Layers};
use crate::layout::Layout;
use crate::range::RangePart;
use crate::recover::{Heads, OpenError, identify, survey_of, table_error};
use crate::replay::Replayed;
use crate::scan::{self, Head, Next, Segment};
use crate::sector::{self, Role, State};
use crate::space::Used;
use crate::table::Way;
use crate::table::levels::{Levels, List};
use crate::table::scan::{Scan, Search};
use base::{Device, MediaError};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the log that are read at once.
const CHUNK_BYTES: u32 = 64 << 10;
/// Headers of slots that are read at once.
const HEADS_AT_ONCE: u32 = 64;

/// A segment of the log, and the number of its first record.
#[derive(Clone, Copy)]
struct Part {
    used: Used,
    first: u64,
}

/// The area after a record.
pub(super) struct View {
    superblock: Superblock,
    /// Oldest first.
    chain: VecDeque<Part>,
    /// Generation by slot, of the log's segments.
    generations: Vec<u64>,
    replayed: Replayed,
    list: List,
    levels: Arc<Levels>,
    /// Slots with damaged headers that the log does not need.
    damaged: Vec<u32>,
}

/// An entry that came since.
struct Change {
    kind: EntryKind,
    structure: StructureId,
    key: Key,
    at: Location,
    /// Of a description.
    described: Option<(Box<str>, Description)>,
}

/// Tables that count from now on, and the first place in the log whose keys are not in them.
struct NewTables {
    list: List,
    levels: Levels,
    boundary: Option<u64>,
}

/// All that came since the last moment.
pub(super) struct News {
    changes: Vec<Change>,
    /// The newest segment as it is now, and those that followed it.
    parts: Vec<Part>,
    tail: u64,
    /// The highest record that one of them calls durable.
    claims: u64,
    list: Option<List>,
    tables: Option<NewTables>,
}

impl News {
    pub(super) fn has_tables(&self) -> bool {
        self.tables.is_some()
    }

    fn tip(&mut self) -> &mut Part {
        self.parts.last_mut().expect("it begins with the newest segment")
    }

    /// Takes an entry in; false if it makes no sense.
    fn take(&mut self, entry: &crate::entry::Entry<'_>, at: Location) -> bool {
        let mut described = None;
        let key = match entry.kind {
            EntryKind::Tables => {
                self.list = List::parse(entry.value);
                return self.list.is_some();
            }
            EntryKind::Describe => {
                let name = core::str::from_utf8(entry.key).ok();
                described = name.map(Box::from).zip(Description::parse(entry.value));
                if described.is_none() {
                    return false;
                }
                Key::Position(0)
            }
            EntryKind::Drop => Key::Position(0),
            _ => Key::of(entry),
        };
        self.changes.push(Change {
            kind: entry.kind,
            structure: entry.structure,
            key,
            at,
            described,
        });
        true
    }
}

/// The records of a segment, read as far as they are asked for.
struct Tape<'a> {
    medium: &'a dyn Device,
    layout: Layout,
    slot: u32,
    generation: u64,
    /// Of the whole segment; only `loaded` of it was read.
    bytes: Vec<u8>,
    loaded: Range<u32>,
}

impl<'a> Tape<'a> {
    fn new(medium: &'a dyn Device, layout: Layout, used: &Used, at: u32) -> Self {
        Self {
            medium,
            layout,
            slot: used.slot,
            generation: used.generation,
            // Memory that is never touched costs nothing.
            bytes: vec![0; layout.segment_bytes as usize],
            loaded: at..at,
        }
    }

    fn segment(&self) -> Segment<'_> {
        Segment {
            layout: &self.layout,
            slot: self.slot,
            generation: self.generation,
            bytes: &self.bytes,
        }
    }

    fn damaged(&self, at: u32) -> OpenError {
        OpenError::Damaged {
            offset: self.layout.segment_offset(self.slot) + u64::from(at),
        }
    }

    fn load(&mut self, to: u32) -> Result<(), MediaError> {
        let from = self.loaded.end;
        if to > from {
            let to = to.max(from + CHUNK_BYTES).min(self.layout.segment_bytes);
            let offset = self.layout.segment_offset(self.slot) + u64::from(from);
            self.medium
                .read_at(offset, &mut self.bytes[from as usize..to as usize])?;
            self.loaded.end = to;
        }
        Ok(())
    }

    /// The record at byte `at`, of which everything is read.
    fn next(&mut self, at: u32) -> Result<Next, MediaError> {
        if at >= self.layout.segment_bytes {
            return Ok(Next::End);
        }
        self.load(at + self.layout.block_bytes)?;
        if self.segment().judge(at, Role::Record) == State::New {
            let room = self.layout.stream_of(self.layout.segment_bytes - at);
            let stream = self.segment().header_at(at).length;
            let stream = stream.saturating_add(RECORD_HEADER_BYTES).min(room);
            self.load((at + self.layout.extent_of(stream)).min(self.layout.segment_bytes))?;
        }
        Ok(self.segment().next(at))
    }
}

/// Reads the headers of all slots.
fn collect(medium: &dyn Followed, layout: &Layout) -> Result<Heads, OpenError> {
    let mut heads = Heads::default();
    let mut first = 0;
    while first < layout.segments {
        let end = (first + HEADS_AT_ONCE).min(layout.segments);
        let sector = || vec![0; layout.sector_bytes as usize];
        let mut places: Vec<_> = (first..end)
            .map(|slot| (layout.segment_offset(slot), sector()))
            .collect();
        medium.read_many(&mut places)?;
        for (slot, (_, sector)) in (first..end).zip(&places) {
            heads.note(layout, slot, sector)?;
        }
        first = end;
    }
    Ok(heads)
}

impl View {
    /// Reads everything. `None` if the area changed too much meanwhile.
    pub(super) fn build(medium: &dyn Followed) -> Result<Option<Self>, OpenError> {
        let device = medium.device();
        let (superblock, superblocks_damaged) = identify(device)?;
        let layout = superblock.layout;
        let newest = collect(medium, &layout)?.log.into_keys().next_back();
        // Those before the newest one were there when it was found: a second look finds all that the log still needs.
        let mut heads = collect(medium, &layout)?;
        let later = newest.map_or(0, |newest| newest + 1);
        heads.log.split_off(&later);
        if newest.is_some_and(|newest| !heads.log.contains_key(&newest)) {
            return Ok(None);
        }
        let mut survey = survey_of(device, (superblock, superblocks_damaged), heads)?;
        survey.is_followed = true;
        let levels = Arc::new(survey.levels(device)?);
        let (replayed, ..) = survey.structures(device)?;
        let mut generations = vec![0; layout.segments as usize];
        let part = |(used, header): &(Used, SegmentHeader)| Part {
            used: *used,
            first: header.first,
        };
        let chain: VecDeque<Part> = survey.chain.iter().map(part).collect();
        for part in &chain {
            generations[part.used.slot as usize] = part.used.generation;
        }
        let view = Self {
            superblock,
            chain,
            generations,
            replayed,
            list: survey.list,
            levels,
            damaged: survey.damaged,
        };
        if let Some(tip) = view.chain.back() {
            medium.sync()?;
            return Ok(view.is_present(device, &tip.used)?.then_some(view));
        }
        Ok((identify(device)?.0 == superblock).then_some(view))
    }

    /// True if the area is in the same epoch, and its segment `tip` was not used anew.
    fn is_present(&self, device: &dyn Device, tip: &Used) -> Result<bool, OpenError> {
        let layout = self.layout();
        let sector = scan::read_segment(device, layout, tip.slot, layout.sector_bytes)?;
        let is_there = match scan::head(layout, tip.slot, &sector) {
            Head::Segment(header) => header.generation == tip.generation,
            _ => false,
        };
        Ok(is_there && identify(device)?.0 == self.superblock)
    }

    /// Looks for all that came since. `None` if everything is to be read anew.
    pub(super) fn news(&self, medium: &dyn Followed) -> Result<Option<News>, OpenError> {
        let device = medium.device();
        let Some(&tip) = self.chain.back() else {
            let is_same =
                collect(medium, self.layout())?.log.is_empty() && identify(device)?.0 == self.superblock;
            return Ok(is_same.then(|| News {
                changes: Vec::new(),
                parts: Vec::new(),
                tail: 0,
                claims: 0,
                list: None,
                tables: None,
            }));
        };
        let mut news = News {
            changes: Vec::new(),
            parts: vec![tip],
            tail: 0,
            claims: 0,
            list: None,
            tables: None,
        };
        if !self.read_on(medium, &mut news)? || !self.find_tables(device, &mut news)? {
            return Ok(None);
        }
        let last = news.tip().used;
        if last.last > tip.used.last.max(news.claims) {
            medium.sync()?;
        }
        Ok(self.is_present(device, &last)?.then_some(news))
    }

    /// Reads the log on. False if it cannot be followed.
    fn read_on(&self, medium: &dyn Followed, news: &mut News) -> Result<bool, OpenError> {
        let layout = *self.layout();
        self.read_records(medium, news)?;
        let mut heads: Option<Heads> = None;
        // Where a record of any length fits, the log goes on.
        while layout.segment_bytes - news.tip().used.end < layout.record_bytes_max {
            let tip = *news.tip();
            let next = |heads: &Heads| {
                let mut all = heads.log.values();
                all.find(|(_, header)| header.previous == tip.used.generation)
                    .copied()
            };
            let found = match heads.as_ref().and_then(next) {
                Some(found) => Some(found),
                None => {
                    let fresh = collect(medium, &layout)?;
                    if fresh.damaged.iter().any(|slot| !self.damaged.contains(slot)) {
                        return Ok(false);
                    }
                    let found = next(&fresh);
                    let newest = fresh.log.keys().next_back().copied().unwrap_or(0);
                    if found.is_none() && newest > tip.used.generation {
                        return Ok(false);
                    }
                    heads = Some(fresh);
                    found
                }
            };
            let Some((slot, header)) = found else { break };
            if header.previous_end != tip.used.end {
                // What came last in this one may have come since.
                self.read_records(medium, news)?;
            }
            let tip = news.tip().used;
            if tip.last + 1 < header.first && tip.end < header.previous_end {
                // It is under way.
                break;
            }
            if tip.last + 1 != header.first || tip.end != header.previous_end {
                return Ok(false);
            }
            let used = Used {
                slot,
                generation: header.generation,
                last: tip.last,
                end: layout.block_bytes,
            };
            news.claims = news.claims.max(header.durable);
            news.tail = news.tail.max(header.tail);
            news.parts.push(Part {
                used,
                first: header.first,
            });
            if !self.read_records(medium, news)? {
                // Segment and first record are one write, which is under way.
                news.parts.pop();
                break;
            }
        }
        Ok(true)
    }

    /// Reads the newest segment on; false if nothing came.
    fn read_records(&self, medium: &dyn Followed, news: &mut News) -> Result<bool, OpenError> {
        let layout = *self.layout();
        let mut used = news.tip().used;
        let before = used.end;
        let from = if before == layout.block_bytes { 0 } else { before };
        let mut tape = Tape::new(medium.device(), layout, &used, from);
        if from == 0 {
            tape.load(layout.block_bytes)?;
            match tape.segment().padding() {
                Next::Damaged(at) => return Err(tape.damaged(at)),
                Next::Torn => return Ok(false),
                Next::Record { .. } | Next::End => {}
            }
        }
        loop {
            match tape.next(used.end)? {
                Next::Record { header, end } if header.number == used.last + 1 => {
                    let mut is_sound = true;
                    let makes_sense = tape.segment().entries(used.end, &header, |entry, at| {
                        is_sound &= news.take(entry, at);
                    });
                    if !(makes_sense && is_sound) {
                        return Err(tape.damaged(used.end));
                    }
                    news.tail = news.tail.max(header.tail);
                    news.claims = news.claims.max(header.durable);
                    (used.end, used.last) = (end, header.number);
                    news.tip().used = used;
                }
                Next::Record { .. } => return Err(tape.damaged(used.end)),
                Next::Damaged(at) => return Err(tape.damaged(at)),
                Next::End | Next::Torn => return Ok(used.end > before),
            }
        }
    }

    /// Opens the tables of a new list. False if everything is to be read anew.
    fn find_tables(&self, device: &dyn Device, news: &mut News) -> Result<bool, OpenError> {
        let Some(list) = news.list.take().filter(|list| *list != self.list) else {
            return Ok(true);
        };
        if !self.has_tables() {
            // Removals were not kept so far.
            return Ok(false);
        }
        let levels = list.open_beside(device, self.layout(), &self.levels);
        let levels = levels.map_err(table_error)?;
        let boundary = match list.flushed == self.list.flushed {
            true => None,
            false => match self.boundary(device, news, list.flushed + 1)? {
                None => return Ok(false),
                boundary => boundary,
            },
        };
        news.tables = Some(NewTables {
            list,
            levels,
            boundary,
        });
        Ok(true)
    }

    /// The place in the log where a record begins, as versions count. `None` if it is not found.
    fn boundary(&self, device: &dyn Device, news: &News, record: u64) -> Result<Option<u64>, OpenError> {
        let old = self.chain.len() - 1;
        let mut parts = self.chain.iter().take(old).chain(&news.parts);
        let place = |part: &Part, at: u32| {
            let at = self.layout().stream_of(at);
            let location = Location {
                slot: part.used.slot,
                at,
                length: 0,
            };
            location.version(part.used.generation)
        };
        let Some(part) = parts.find(|part| part.used.last >= record) else {
            return Ok(None);
        };
        if part.first >= record {
            return Ok(Some(place(part, 0)));
        }
        let mut at = self.layout().block_bytes;
        let mut tape = Tape::new(device, *self.layout(), &part.used, at);
        loop {
            match tape.next(at)? {
                Next::Record { header, .. } if header.number == record => return Ok(Some(place(part, at))),
                Next::Record { end, .. } => at = end,
                Next::Damaged(_) | Next::End | Next::Torn => return Ok(None),
            }
        }
    }

    /// The next moment. `None` if the news contradict what is here.
    pub(super) fn with(mut self, news: News) -> Option<Self> {
        for change in news.changes {
            let Change { structure: id, .. } = change;
            match (change.kind, change.described) {
                (_, Some((name, description))) => {
                    self.replayed.describe(id, &name, &description).then_some(())?;
                }
                (EntryKind::Drop, _) => {
                    if let Some(structure) = self.replayed.structures.remove(&id) {
                        structure.give_back(&mut self.replayed.usage);
                    }
                }
                (kind, _) => {
                    self.is_next(kind, id, &change.key).then_some(())?;
                    self.replayed
                        .place(kind, id, change.key, change.at)
                        .then_some(())?;
                }
            }
        }
        for part in news.parts {
            match self.chain.back_mut() {
                Some(tip) if tip.used.generation == part.used.generation => *tip = part,
                _ => self.chain.push_back(part),
            }
            self.generations[part.used.slot as usize] = part.used.generation;
        }
        if let Some(new) = news.tables {
            if let Some(boundary) = new.boundary {
                self.forget(boundary);
            }
            (self.list, self.levels) = (new.list, Arc::new(new.levels));
        }
        while self.chain.len() > 1 && self.chain[0].used.generation < news.tail {
            let part = self.chain.pop_front().expect("there are two");
            let generation = &mut self.generations[part.used.slot as usize];
            if *generation == part.used.generation {
                *generation = 0;
            }
        }
        Some(self)
    }

    /// False for a position of a log that leaves a gap before it.
    fn is_next(&self, kind: EntryKind, id: StructureId, key: &Key) -> bool {
        match (kind, key, self.replayed.structures.get(&id).map(|it| &it.body)) {
            (
                EntryKind::Append | EntryKind::Lost,
                Key::Position(position),
                Some(Body::Log { floor, entries }),
            ) => *position <= floor + entries.len() as u64,
            _ => true,
        }
    }

    /// Tables have the keys whose places are before `boundary`.
    fn forget(&mut self, boundary: u64) {
        let Self {
            replayed,
            generations,
            ..
        } = self;
        let keeps = |at: &Location| {
            let generation = generations.get(at.slot as usize).copied().unwrap_or(0);
            at.version(generation) >= boundary
        };
        for structure in replayed.structures.values_mut() {
            structure.keep(keeps, &mut replayed.usage);
        }
    }

    fn has_tables(&self) -> bool {
        !self.list.tables.is_empty() || self.list.flushed > 0
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.superblock.layout
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            epoch: self.superblock.epoch,
            record: self.chain.back().map_or(0, |part| part.used.last),
        }
    }

    pub(super) fn count(&self, stats: &mut FollowStats) {
        stats.index_bytes = self.replayed.usage.all.index;
        stats.tables = self.levels.count();
        stats.segments = self.chain.len() as u32;
    }
}

/// Lookups.
impl View {
    fn fetch(&self, location: Location) -> Fetch {
        if location.is_lost() {
            return Fetch::Lost;
        }
        if location.length == 0 {
            return Fetch::Ready(Arc::default());
        }
        let generation = self.generations[location.slot as usize];
        Fetch::Read(Found::new(*self.layout(), location, generation))
    }

    pub(super) fn structures(&self) -> impl Iterator<Item = (&str, StructureId, Kind, Durability, u64)> {
        let all = self.replayed.structures.iter();
        all.map(|(&id, it)| (&*it.name, id, it.kind, it.durability, self.len(id)))
    }

    pub(super) fn len(&self, id: StructureId) -> u64 {
        let structure = self.replayed.structures.get(&id);
        structure.map_or(0, |it| it.len() + self.levels.entries_of(id))
    }

    pub(super) fn get(&self, map: StructureId, key: &[u8], tables: u64) -> Option<Fetch> {
        let search = || Search::new(&self.levels, map, key, tables);
        self.layers(map)?.get(key, |slot| self.fetch(slot.at), search)
    }

    pub(super) fn read(&self, id: StructureId, position: u64) -> Option<Fetch> {
        let location = self.replayed.structures.get(&id)?.find_position(position)?;
        Some(self.fetch(location))
    }

    pub(super) fn positions(&self, id: StructureId) -> Option<Range<u64>> {
        let it = self.replayed.structures.get(&id)?;
        Some(it.floor()..it.next)
    }

    fn layers(&self, id: StructureId) -> Option<Layers<'_>> {
        let structure = self.replayed.structures.get(&id);
        structure.filter(|it| it.kind.has_keys()).map(|structure| Layers {
            id,
            kind: structure.kind,
            changed: None,
            own: Some(&structure.body),
            below: None,
            levels: &self.levels,
        })
    }

    pub(super) fn range(
        &self,
        tree: StructureId,
        (bounds, way): (Bounds<'_>, Way),
        wanted: usize,
        tables: Option<Scan>,
    ) -> RangePart {
        match self.layers(tree) {
            None => RangePart::new(bounds, way),
            Some(layers) => layers.part((bounds, way), wanted, wanted, tables, |slot| self.fetch(slot.at)),
        }
    }

    pub(super) fn keys(&self, map: StructureId) -> RangePart {
        match self.layers(map) {
            None => RangePart::new(ALL, Way::Up),
            Some(layers) => layers.keys(|slot| self.fetch(slot.at)),
        }
    }

    /// Tells why the bytes at `offset` are not those of this moment.
    pub(super) fn explain(&self, medium: &dyn Device, offset: u64) -> Result<FetchError, MediaError> {
        let layout = self.layout();
        let within = offset.saturating_sub(layout.segment_offset(0));
        let slot = ((within / u64::from(layout.segment_bytes)) as u32).min(layout.segments - 1);
        let at =
            (within % u64::from(layout.segment_bytes)) as u32 / layout.sector_bytes * layout.sector_bytes;
        let of_table = self.levels.all().map(|(_, view)| view.table.place);
        let of_table = of_table.into_iter().find(|place| place.slot == slot);
        let generation = of_table.map_or(self.generations[slot as usize], |place| place.generation);
        for at in [at, 0] {
            let number = layout.sector_number(slot, at);
            let mut sector = vec![0; layout.sector_bytes as usize];
            medium.read_at(layout.segment_offset(slot) + u64::from(at), &mut sector)?;
            // A segment that is used anew is not erased first: another generation's sector tells.
            if sector::any_tag_of(&sector, number).is_some_and(|tag| tag != generation as u32) {
                return Ok(FetchError::Moved);
            }
        }
        Ok(FetchError::Damaged { offset })
    }
}
