//! The index on the medium, so that opening need not read the whole log (docs/format/store.md, "Checkpoint").
//!
//! A checkpoint is written a piece at a time beside the log, in segments of its own, while operations go on. Each entry is
//! written as it is when the walk comes by. A checkpoint begins with the last durable record. Replay goes on from that
//! record, so the log corrects all entries that change during the walk. A checkpoint ends only when everything that the
//! walk may have seen is durable. Nothing depends on a checkpoint. Recovery ignores a checkpoint that is not whole, or
//! that begins before the log does.

use crate::buffer::Buffer;
use crate::entry::{Description, EntryKind, Kind, StructureId, entry_bytes};
use crate::format::{Headers, PART_HEADER_BYTES, PartHeader, u32_at, u64_at};
use crate::index::{Body, Key, Location, SHARDS, Structure, index_bytes};
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::log::{Access, CleanStep, Log, Ticket, TicketState, Write};
use crate::replay::Replayed;
use crate::scan::read_segment;
use crate::sector::{self, Role, State};
use crate::space::Start;
use base::Device;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of a piece: what users' writes may wait behind.
const PIECE_BYTES: u32 = 64 << 10;
/// Entries that one step of the walk visits, or a shard of a map.
const WALK_STEP: usize = 1024;
/// A checkpoint is worth writing when this many segments of log came after the last one,
const SEGMENTS_BETWEEN: u64 = 4;
/// and this many times its own size: it adds an eighth to what is written at most, and what is replayed is bounded by
/// the size of the index.
const LOG_PER_CHECKPOINT: u64 = 8;
/// Checkpoints have one in so many of the segments that live data does not need.
const SPARE_PER_CHECKPOINT: u64 = 4;
/// Kind of the last item.
const END: u8 = 0xff;
const ITEM_HEADER_BYTES: usize = 8;
const LOCATION_BYTES: usize = 12;
/// Bytes before the descriptions.
const PREFIX_BYTES: usize = 40;

/// The checkpoints of an open area.
#[derive(Default)]
pub(crate) struct Checkpoints {
    walk: Option<Walk>,
    /// Slots of the newest whole one.
    kept: Vec<u32>,
}

/// A checkpoint under way.
struct Walk {
    /// Generation that those of locations count from.
    base: u64,
    since: u64,
    /// Structures that are left, the present one first, and how far it is.
    left: VecDeque<StructureId>,
    cursor: Cursor,
    items: u64,
    /// Bytes that are not written yet.
    stream: Vec<u8>,
    slots: Vec<(u32, u64)>,
    /// Place of the next piece in the last of them.
    at: u32,
    /// It ends when this is durable.
    seen: Option<Ticket>,
    has_end: bool,
    is_flying: bool,
    is_cancelled: bool,
}

/// How far the walk is in a structure.
enum Cursor {
    Position(u64),
    Shard(usize),
    After(Option<Box<[u8]>>),
}

impl Cursor {
    fn at_start_of(structure: &Structure) -> Self {
        match structure.body {
            Body::Log { .. } | Body::Queue { .. } => Self::Position(0),
            Body::Map(_) => Self::Shard(0),
            Body::Tree(_) => Self::After(None),
        }
    }
}

impl Checkpoints {
    pub(crate) fn new(kept: Vec<u32>) -> Self {
        Self { walk: None, kept }
    }

    /// Segments that checkpoints want and do not have yet: the cleaner sees to them.
    pub(crate) fn segments_wanted(&self, log: &Log) -> u32 {
        match &self.walk {
            Some(walk) => checkpoint_segments(log).saturating_sub(walk.slots.len() as u32),
            None if is_checkpoint_due(log) => {
                let needed = checkpoint_segments(log);
                if has_room_aside(log, needed) { needed } else { 0 }
            }
            None => 0,
        }
    }

    /// True while one is under way.
    pub(crate) fn are_walking(&self) -> bool {
        self.walk.is_some()
    }

    /// True if a checkpoint is under way, or due. None begins while it is `held`.
    pub(crate) fn are_wanted(&self, log: &Log, held: bool) -> bool {
        self.walk.is_some()
            || (!held && is_checkpoint_due(log) && has_free_segments(log, checkpoint_segments(log)))
    }

    /// Gives up a checkpoint, so that the log has its segments. False if there is none.
    pub(crate) fn release(&mut self, log: &mut Log) -> bool {
        let kept = core::mem::take(&mut self.kept);
        if !kept.is_empty() {
            kept.into_iter().for_each(|slot| log.space.give_back(slot));
            return true;
        }
        match self.walk.take() {
            Some(mut walk) if walk.is_flying => {
                walk.is_cancelled = true;
                self.walk = Some(walk);
                false
            }
            Some(walk) => abandon(log, walk) > 0,
            None => false,
        }
    }

    /// True if segments come back when a write ends.
    pub(crate) fn is_releasing(&self) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.is_cancelled)
    }

    /// A bounded piece of a checkpoint, if one is due or under way.
    pub(crate) fn step(&mut self, log: &mut Log, held: bool) -> CleanStep {
        let mut walk = match self.walk.take() {
            Some(walk) if walk.is_flying => {
                self.walk = Some(walk);
                return CleanStep::Wait;
            }
            Some(walk) => walk,
            None if held || !is_checkpoint_due(log) => return CleanStep::Idle,
            None => match self.begin(log) {
                Some(walk) => walk,
                None => return CleanStep::Idle,
            },
        };
        let piece = log.layout.stream_of(piece_bytes(log)) as usize;
        while walk.stream.len() < piece && !walk.left.is_empty() {
            walk_on(log, &mut walk);
        }
        if walk.left.is_empty() && !walk.has_end && walk.stream.len() < piece {
            let seen = *walk.seen.get_or_insert(log.newest());
            if log.state(seen) != TicketState::Durable {
                log.want(seen);
                self.walk = Some(walk);
                return CleanStep::Wait;
            }
            walk.stream.extend([END, 0, 0, 0, 0, 0, 0, 0]);
            walk.stream.extend(seen.0.to_le_bytes());
            walk.stream.extend(walk.items.to_le_bytes());
            walk.has_end = true;
        }
        match next_piece(log, &mut walk) {
            Some(write) => {
                walk.is_flying = true;
                self.walk = Some(walk);
                CleanStep::Write(write)
            }
            None => {
                abandon(log, walk);
                CleanStep::Idle
            }
        }
    }

    fn begin(&mut self, log: &mut Log) -> Option<Walk> {
        let needed = checkpoint_segments(log);
        if !has_room_aside(log, self.kept.len() as u32 + needed) {
            self.release(log);
            if !has_room_aside(log, needed) {
                log.since = 0;
                return None;
            }
        }
        if !has_free_segments(log, needed) {
            return None;
        }
        let (start, base) = (log.tip, log.space.tail());
        let mut stream = Vec::with_capacity(2 * PIECE_BYTES as usize);
        for word in [start.record, start.generation, base, u64::from(start.end)] {
            stream.extend(word.to_le_bytes());
        }
        stream.extend(log.next_structure.to_le_bytes());
        stream.extend((log.structures.len() as u32).to_le_bytes());
        for (id, it) in &log.structures {
            stream.extend(id.0.to_le_bytes());
            stream.extend((it.name.len() as u32).to_le_bytes());
            stream.extend(it.describe().emit());
            stream.extend(it.name.as_bytes());
        }
        let left: VecDeque<StructureId> = log.structures.keys().copied().collect();
        let first = left.front().and_then(|id| log.structures.get(id));
        Some(Walk {
            base,
            since: log.since,
            cursor: first.map_or(Cursor::Shard(0), Cursor::at_start_of),
            left,
            items: 0,
            stream,
            slots: Vec::new(),
            at: 0,
            seen: None,
            has_end: false,
            is_flying: false,
            is_cancelled: false,
        })
    }

    /// A piece has been written.
    pub(crate) fn written(&mut self, log: &mut Log) {
        let mut walk = self.walk.take().expect("its piece was under way");
        walk.is_flying = false;
        if walk.is_cancelled || log.is_latched() {
            abandon(log, walk);
            return;
        }
        if !(walk.has_end && walk.stream.is_empty()) {
            self.walk = Some(walk);
            return;
        }
        let slots = walk.slots.iter().map(|&(slot, _)| slot).collect();
        let old = core::mem::replace(&mut self.kept, slots);
        old.into_iter().for_each(|slot| log.space.give_back(slot));
        log.since -= walk.since;
        log.stats.checkpoints += 1;
    }
}

/// Bytes of a checkpoint at most.
fn checkpoint_bytes(log: &Log) -> u64 {
    let described = |it: &Structure| entry_bytes(it.name.len(), 32) as u64;
    // An entry of a map or tree takes an item's header and a location, beside its key.
    let saved = |it: &Structure| match it.kind {
        Kind::Map | Kind::Tree => (index_bytes(it.kind, 0) - 20) * it.len(),
        Kind::Log | Kind::Queue => 0,
    };
    let structures = log.structures.values();
    let bytes = structures.fold(log.usage.all.index, |sum, it| {
        sum.saturating_sub(saved(it)) + described(it)
    });
    bytes + (PREFIX_BYTES + 64) as u64
}

fn checkpoint_segments(log: &Log) -> u32 {
    let room = log
        .layout
        .stream_of(log.layout.segment_bytes - log.layout.block_bytes);
    checkpoint_bytes(log).div_ceil(u64::from(room)) as u32
}

/// True if enough was written since the last one.
fn is_checkpoint_due(log: &Log) -> bool {
    let enough = SEGMENTS_BETWEEN * u64::from(log.layout.segment_bytes);
    let since = log.since;
    since >= enough && since >= LOG_PER_CHECKPOINT * checkpoint_bytes(log)
}

/// True if `segments` can be taken and users still have some.
fn has_free_segments(log: &Log, segments: u32) -> bool {
    log.space.free_count() >= segments + log.reserve(Access::User) + 2
}

/// True if `segments` are at most a share of those that live data does not need: what is left decides how dear
/// cleaning is.
fn has_room_aside(log: &Log, segments: u32) -> bool {
    let live = log.usage.all.live.div_ceil(log.layout.segment_payload_bytes());
    let spare = u64::from(log.layout.segments - log.layout.reserve_segments()).saturating_sub(live);
    u64::from(segments) * SPARE_PER_CHECKPOINT <= spare
}

/// Visits some more entries.
fn walk_on(log: &Log, walk: &mut Walk) {
    let id = *walk.left.front().expect("the caller has looked");
    let is_done = match log.structures.get(&id) {
        Some(structure) => visit(log, id, structure, walk),
        // Dropped meanwhile.
        None => true,
    };
    if is_done {
        walk.left.pop_front();
        let next = walk.left.front().and_then(|id| log.structures.get(id));
        walk.cursor = next.map_or(Cursor::Shard(0), Cursor::at_start_of);
    }
}

/// Visits some more entries of a structure; true if there are no more.
fn visit(log: &Log, id: StructureId, structure: &Structure, walk: &mut Walk) -> bool {
    match (&structure.body, &mut walk.cursor) {
        (Body::Log { floor, entries }, &mut Cursor::Position(from)) => {
            let from = from.max(*floor);
            let range = entries.iter().skip((from - floor) as usize).take(WALK_STEP);
            let step: Vec<Location> = range.copied().collect();
            walk.cursor = Cursor::Position(from + step.len() as u64);
            if !step.is_empty() {
                put_run(log, walk, EntryKind::Append, id, from, &step);
            }
            step.len() < WALK_STEP
        }
        (Body::Queue { entries, .. }, &mut Cursor::Position(from)) => {
            let step: Vec<_> = entries.range(from..).take(WALK_STEP).collect();
            let is_done = step.len() < WALK_STEP;
            for run in step.chunk_by(|a, b| a.0 + 1 == *b.0) {
                let first = *run[0].0;
                let locations: Vec<Location> = run.iter().map(|(_, at)| **at).collect();
                put_run(log, walk, EntryKind::Push, id, first, &locations);
                walk.cursor = Cursor::Position(first + run.len() as u64);
            }
            is_done
        }
        (Body::Map(map), Cursor::Shard(shard)) => {
            *shard += 1;
            let (shard, is_done) = (*shard - 1, *shard == SHARDS);
            for (key, slot) in map.shard(shard) {
                put_key(log, walk, id, key, slot.at);
            }
            is_done
        }
        (Body::Tree(tree), Cursor::After(after)) => {
            let from = match after {
                Some(key) => Bound::Excluded(&**key),
                None => Bound::Unbounded,
            };
            let range = tree.range::<[u8], _>((from, Bound::Unbounded));
            let step: Vec<_> = range.take(WALK_STEP).collect();
            let last = step.last().map(|(key, _)| (*key).clone());
            for &(key, slot) in &step {
                put_key(log, walk, id, key, slot.at);
            }
            walk.cursor = Cursor::After(last);
            step.len() < WALK_STEP
        }
        _ => unreachable!("the cursor was made for the structure"),
    }
}

fn put_location(log: &Log, walk: &mut Walk, location: Location) {
    let generation = log.space.generation_of(location.slot);
    let generation = generation
        .checked_sub(walk.base)
        .expect("live data is above the tail");
    for word in [generation as u32, location.at, location.length] {
        walk.stream.extend(word.to_le_bytes());
    }
}

fn put_key(log: &Log, walk: &mut Walk, id: StructureId, key: &[u8], location: Location) {
    let kind = match location.is_removed() {
        true => EntryKind::Remove,
        false => EntryKind::Put,
    };
    put_item(&mut walk.stream, kind, key.len() as u16, id);
    put_location(log, walk, location);
    walk.stream.extend(key);
    walk.items += 1;
}

fn put_run(log: &Log, walk: &mut Walk, kind: EntryKind, id: StructureId, first: u64, run: &[Location]) {
    put_item(&mut walk.stream, kind, run.len() as u16, id);
    walk.stream.extend(first.to_le_bytes());
    run.iter().for_each(|&location| put_location(log, walk, location));
    walk.items += 1;
}

fn piece_bytes(log: &Log) -> u32 {
    PIECE_BYTES
        .min(log.layout.record_bytes_max)
        .max(log.layout.block_bytes)
}

/// The next piece as a write; `None` without a segment for it.
fn next_piece(log: &mut Log, walk: &mut Walk) -> Option<Write> {
    let layout = log.layout;
    if walk.slots.is_empty() || walk.at == layout.segment_bytes {
        walk.slots
            .push(log.space.take_aside(layout.reserve_segments() + 1)?);
        walk.at = 0;
    }
    let &(slot, generation) = walk.slots.last().expect("just seen");
    let (start, head) = (walk.at, if walk.at == 0 { layout.block_bytes } else { 0 });
    let whole = layout.extent_of(walk.stream.len() as u32);
    let data = whole
        .min(piece_bytes(log))
        .min(layout.segment_bytes - start - head);
    let length = (head + data) as usize;
    let mut buffer = Buffer::new(length);
    let bytes = buffer.bytes_mut();
    let skip = SECTOR_HEADER_BYTES as usize;
    if head > 0 {
        let part = PartHeader {
            generation,
            first: walk.slots[0].1,
            index: walk.slots.len() as u32 - 1,
        };
        bytes[skip..][..PART_HEADER_BYTES].copy_from_slice(&part.emit());
    }
    let sector_bytes = layout.sector_bytes as usize;
    let mut done = 0;
    for sector in bytes[head as usize..].chunks_mut(sector_bytes) {
        let count = (sector_bytes - skip).min(walk.stream.len() - done);
        sector[skip..][..count].copy_from_slice(&walk.stream[done..done + count]);
        done += count;
    }
    walk.stream.drain(..done);
    for (index, sector) in bytes.chunks_mut(sector_bytes).enumerate() {
        let number = layout.sector_number(slot, start + index as u32 * layout.sector_bytes);
        sector::seal(sector, Role::Checkpoint, generation as u32, number);
    }
    walk.at = start + length as u32;
    let offset = layout.segment_offset(slot) + u64::from(start);
    Some(Write::new(0, offset, length, Arc::new(buffer)))
}

/// Gives the segments of an unfinished one back. The next one waits as long as for the first.
fn abandon(log: &mut Log, walk: Walk) -> usize {
    log.since = 0;
    let count = walk.slots.len();
    walk.slots
        .into_iter()
        .for_each(|(slot, _)| log.space.give_back(slot));
    count
}

fn put_item(stream: &mut Vec<u8>, kind: EntryKind, count: u16, id: StructureId) {
    stream.extend([kind as u8, 0]);
    stream.extend(count.to_le_bytes());
    stream.extend(id.0.to_le_bytes());
}

/// A checkpoint that was read.
pub(crate) struct Loaded {
    pub start: Start,
    pub replayed: Replayed,
    pub slots: Vec<u32>,
    /// All up to this record was durable when it ended.
    pub seen: u64,
}

/// The newest checkpoint that is whole and `fits`, and the last record that any one which was looked at has seen durable. `places` are
/// the slots of the log by generation. If anything is wrong with a checkpoint, another is used, or none.
pub(crate) fn load(
    medium: &dyn Device,
    layout: &Layout,
    parts: &Headers<PartHeader>,
    places: &BTreeMap<u64, u32>,
    fresh: impl Fn() -> Replayed,
    fits: impl Fn(&Loaded) -> bool,
) -> (Option<Loaded>, u64) {
    let firsts = parts.iter().rev().filter(|(_, (_, part))| part.index == 0);
    let mut seen = 0;
    for (&first, _) in firsts {
        let Some((stream, slots)) = read_stream(medium, layout, parts, first) else {
            continue;
        };
        let mut replayed = fresh();
        let Some((start, to)) = parse(&stream, layout, places, &mut replayed) else {
            continue;
        };
        seen = seen.max(to);
        let loaded = Loaded {
            start,
            replayed,
            slots,
            seen: to,
        };
        if fits(&loaded) {
            return (Some(loaded), seen);
        }
    }
    (None, seen)
}

/// The stream of the checkpoint that begins with generation `first`, as far as it is intact, and its slots. `None` if it cannot
/// be read.
fn read_stream(
    medium: &dyn Device,
    layout: &Layout,
    parts: &Headers<PartHeader>,
    first: u64,
) -> Option<(Vec<u8>, Vec<u32>)> {
    let of_it = parts.range(first..).map(|(_, part)| part);
    let mut own: Vec<_> = of_it.filter(|(_, part)| part.first == first).collect();
    own.sort_by_key(|(_, part)| part.index);
    let (mut stream, mut slots) = (Vec::new(), Vec::new());
    for &(slot, part) in own {
        if part.index as usize != slots.len() {
            break;
        }
        slots.push(slot);
        if !read_part(medium, layout, slot, part.generation as u32, &mut stream)? {
            break;
        }
    }
    Some((stream, slots))
}

/// The structures that any checkpoint names, newest first, whether or not the checkpoint counts.
pub(crate) fn descriptions(
    medium: &dyn Device,
    layout: &Layout,
    parts: &Headers<PartHeader>,
) -> Vec<(StructureId, String, Description)> {
    let mut all = Vec::new();
    for (&first, _) in parts.iter().rev().filter(|(_, (_, part))| part.index == 0) {
        if let Some((stream, _)) = read_stream(medium, layout, parts, first) {
            let mut reader = Reader(&stream);
            let fixed = reader.bytes(PREFIX_BYTES - 4);
            let count = fixed.and_then(|_| reader.word()).unwrap_or(0);
            all.extend((0..count).map_while(|_| reader.description()));
        }
    }
    all
}

/// Adds the payload of a segment's sectors, as far as they are intact; false if they end before the segment does. `None`
/// if it cannot be read.
fn read_part(
    medium: &dyn Device,
    layout: &Layout,
    slot: u32,
    tag: u32,
    stream: &mut Vec<u8>,
) -> Option<bool> {
    let bytes = read_segment(medium, layout, slot, layout.segment_bytes).ok()?;
    let sectors = bytes.chunks(layout.sector_bytes as usize).enumerate();
    for (index, sector) in sectors.skip((layout.block_bytes / layout.sector_bytes) as usize) {
        let number = layout.sector_number(slot, index as u32 * layout.sector_bytes);
        if sector::judge(sector, Role::Checkpoint, tag, number) != State::New {
            return Some(false);
        }
        stream.extend(&sector[SECTOR_HEADER_BYTES as usize..]);
    }
    Some(true)
}

/// Takes bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.bytes(4).map(|bytes| u32_at(bytes, 0))
    }

    fn long(&mut self) -> Option<u64> {
        self.bytes(8).map(|bytes| u64_at(bytes, 0))
    }

    fn description(&mut self) -> Option<(StructureId, String, Description)> {
        let id = StructureId(self.word()?);
        let name_bytes = self.word()? as usize;
        let description = Description::parse(self.bytes(crate::entry::DESCRIPTION_BYTES)?)?;
        let name = core::str::from_utf8(self.bytes(name_bytes)?).ok()?;
        Some((id, name.to_owned(), description))
    }
}

/// Fills `replayed`: where replay goes on, and the last record that the checkpoint has seen durable. `None` if it is not whole.
fn parse(
    stream: &[u8],
    layout: &Layout,
    places: &BTreeMap<u64, u32>,
    replayed: &mut Replayed,
) -> Option<(Start, u64)> {
    let mut reader = Reader(stream);
    let (record, generation, base) = (reader.long()?, reader.long()?, reader.long()?);
    let end = u32::try_from(reader.long()?).ok()?;
    let next_structure = reader.word()?;
    for _ in 0..reader.word()? {
        let (id, name, description) = reader.description()?;
        replayed.describe(id, &name, &description).then_some(())?;
    }
    replayed.next_structure = replayed.next_structure.max(next_structure);
    let mut items = 0;
    let seen = loop {
        let header = reader.bytes(ITEM_HEADER_BYTES)?;
        let count = usize::from(u16::from_le_bytes([header[2], header[3]]));
        let id = StructureId(u32_at(header, 4));
        if header[0] == END {
            let seen = reader.long()?;
            (reader.long()? == items).then_some(())?;
            break seen;
        }
        items += 1;
        let kind = EntryKind::from_u8(header[0])?;
        let (first, count) = match kind {
            EntryKind::Append | EntryKind::Push => (Some(reader.long()?), count),
            EntryKind::Put | EntryKind::Remove => (None, 1),
            _ => return None,
        };
        let locations = reader.bytes(count * LOCATION_BYTES)?;
        let key = match first {
            None => reader.bytes(usize::from(u16::from_le_bytes([header[2], header[3]])))?,
            Some(_) => &[],
        };
        for (index, bytes) in locations.chunks(LOCATION_BYTES).enumerate() {
            let generation = base.checked_add(u64::from(u32_at(bytes, 0)))?;
            let location = Location {
                // What has moved since is met again behind the start.
                slot: places.get(&generation).copied().unwrap_or(Location::MOVED),
                at: u32_at(bytes, 4),
                length: u32_at(bytes, 8),
            };
            let room = layout.segment_payload_bytes();
            (location.end() <= room).then_some(())?;
            let key = match first {
                Some(first) => Key::Position(first.checked_add(index as u64)?),
                None => Key::Bytes(key.into()),
            };
            // What the record before the start changed may be in tables since.
            if first.is_none() && replayed.flushed >= record {
                continue;
            }
            replayed.place(kind, id, key, location).then_some(())?;
        }
    };
    let start = Start {
        record,
        generation,
        end,
    };
    Some((start, seen))
}
