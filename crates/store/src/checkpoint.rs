//! The index on the medium, so that opening need not read the whole log (docs/format/store.md, "Checkpoint").
//!
//! A checkpoint is written a piece at a time beside the log, in segments of its own, while operations go on. Each entry is
//! written as it is when the walk comes by. A checkpoint begins with the last durable record. Replay goes on from that
//! record, so the log corrects all entries that change during the walk. A checkpoint ends only when everything that the
//! walk may have seen is durable. Nothing depends on a checkpoint. Recovery ignores a checkpoint that is not whole, or
//! that begins before the log does.

use crate::buffer::Buffer;
use crate::entry::{Description, EntryKind, Kind, StructureId, entry_bytes};
use crate::format::{Headers, PART_HEADER_BYTES, PartHeader};
use crate::index::{Body, Location, SHARDS, Structure, index_bytes};
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::log::{CleanStep, Log, Ticket, TicketState, Write};
use crate::replay::Replayed;
use crate::run::manifest::Manifest;
use crate::run::{self, Builder, Lookup, Page, Run, RunKey, Spot, Step};
use crate::sector::{self, Role};
use crate::space::Used;
use base::Device;
use std::collections::btree_map::Entry;
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
/// The checkpoints of an open area.
#[derive(Default)]
pub(crate) struct Checkpoints {
    walk: Option<Walk>,
    /// Slots of the newest whole one.
    kept: Vec<u32>,
}

/// A checkpoint under way.
struct Walk {
    since: u64,
    /// Generation that those of locations count from.
    base: u64,
    manifest: Manifest,
    /// Structures that are left, the present one first, and how far it is.
    left: VecDeque<StructureId>,
    cursor: Cursor,
    builder: Builder,
    parts: Vec<(u32, u64)>,
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
            Some(walk) => checkpoint_segments(log).saturating_sub(walk.parts.len() as u32),
            None if is_checkpoint_due(log) => {
                let needed = checkpoint_segments(log);
                if has_room_aside(log, needed) { needed } else { 0 }
            }
            None => 0,
        }
    }

    /// True if a checkpoint is under way, or due.
    pub(crate) fn are_wanted(&self, log: &Log) -> bool {
        self.walk.is_some() || (is_checkpoint_due(log) && has_free_segments(log, checkpoint_segments(log)))
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
    pub(crate) fn step(&mut self, log: &mut Log) -> CleanStep {
        let mut walk = match self.walk.take() {
            Some(walk) if walk.is_flying => {
                self.walk = Some(walk);
                return CleanStep::Wait;
            }
            Some(walk) => walk,
            None if !is_checkpoint_due(log) => return CleanStep::Idle,
            None => match self.begin(log) {
                Some(walk) => walk,
                None => return CleanStep::Idle,
            },
        };
        let piece = piece_bytes(log);
        while walk.builder.finished_bytes() < piece && !walk.left.is_empty() {
            walk_on(log, &mut walk);
        }
        if walk.left.is_empty() && !walk.has_end && walk.builder.finished_bytes() < piece {
            let seen = *walk.seen.get_or_insert(log.newest());
            if log.state(seen) != TicketState::Durable {
                log.want(seen);
                self.walk = Some(walk);
                return CleanStep::Wait;
            }
            walk.manifest.seen = seen.0;
            if !end(log, &mut walk) {
                abandon(log, walk);
                return CleanStep::Idle;
            }
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
        let describe = |(id, it): (&StructureId, &Structure)| (*id, it.name.to_string(), it.describe());
        let left: VecDeque<StructureId> = log.structures.keys().copied().collect();
        let first = left.front().and_then(|id| log.structures.get(id));
        Some(Walk {
            since: log.since,
            base: log.space.tail(),
            manifest: Manifest {
                start: log.tip,
                seen: 0,
                next_structure: log.next_structure,
                structures: log.structures.iter().map(describe).collect(),
                runs: Vec::new(),
            },
            cursor: first.map_or(Cursor::Shard(0), Cursor::at_start_of),
            left,
            builder: Builder::new(log.layout),
            parts: Vec::new(),
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
        if !(walk.has_end && walk.builder.finished_bytes() == 0) {
            self.walk = Some(walk);
            return;
        }
        let slots = walk.parts.iter().map(|&(slot, _)| slot).collect();
        let old = core::mem::replace(&mut self.kept, slots);
        old.into_iter().for_each(|slot| log.space.give_back(slot));
        log.since -= walk.since;
        log.stats.checkpoints += 1;
    }
}

/// Bytes of a checkpoint, about.
fn checkpoint_bytes(log: &Log) -> u64 {
    let described = |it: &Structure| entry_bytes(it.name.len(), 32) as u64;
    // An entry of a map or tree takes about 24 bytes beside its key, with its share of the pages above.
    let saved = |it: &Structure| match it.kind {
        Kind::Map | Kind::Tree => (index_bytes(it.kind, 0) - 24) * it.len(),
        Kind::Log | Kind::Queue => 0,
    };
    let structures = log.structures.values();
    let bytes = structures.fold(log.usage.all.index, |sum, it| {
        sum.saturating_sub(saved(it)) + described(it)
    });
    bytes + u64::from(2 * run::page_bytes(&log.layout))
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
    log.space.free_count() >= segments + log.layout.reserve_segments() + 2
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
    let kind = structure.kind;
    match (&structure.body, &mut walk.cursor) {
        (Body::Log { floor, entries }, Cursor::Position(from)) => {
            let first = (*from).max(*floor);
            let step = entries.range((first - floor) as usize..).take(WALK_STEP);
            *from = first + step.len() as u64;
            let is_done = step.len() < WALK_STEP;
            for (position, &location) in (first..).zip(step) {
                put(log, walk, &RunKey::of_position(id, position), location);
            }
            is_done
        }
        (Body::Queue { entries, .. }, Cursor::Position(from)) => {
            let step: Vec<_> = entries.range(*from..).take(WALK_STEP).collect();
            *from = step.last().map_or(*from, |(position, _)| *position + 1);
            for &(&position, &location) in &step {
                put(log, walk, &RunKey::of_position(id, position), location);
            }
            step.len() < WALK_STEP
        }
        (Body::Map(map), Cursor::Shard(shard)) => {
            *shard += 1;
            let (shard, is_done) = (*shard - 1, *shard == SHARDS);
            for (key, location) in map.shard(shard) {
                put(log, walk, &RunKey::new(id, kind, key), location);
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
            *after = step.last().map(|(key, _)| (*key).clone());
            for &(key, &location) in &step {
                put(log, walk, &RunKey::new(id, kind, key), location);
            }
            step.len() < WALK_STEP
        }
        _ => unreachable!("the cursor was made for the structure"),
    }
}

fn put(log: &Log, walk: &mut Walk, key: &RunKey, location: Location) {
    let generation = log.space.generation_of(location.slot);
    let spot = Spot { generation, location };
    let mut value = Vec::with_capacity(16);
    spot.emit(walk.base, &mut value);
    walk.builder.add(&key.0, &value);
}

fn piece_bytes(log: &Log) -> u32 {
    PIECE_BYTES
        .min(log.layout.record_bytes_max)
        .max(log.layout.block_bytes)
}

/// Takes segments until the run has `count`; false if there are not so many.
fn take_parts(log: &mut Log, walk: &mut Walk, count: u32) -> bool {
    while (walk.parts.len() as u32) < count {
        let reserve = log.layout.reserve_segments() + 1;
        match log.space.take_aside(reserve) {
            Some(part) => walk.parts.push(part),
            None => return false,
        }
    }
    true
}

/// Ends the run, and adds the manifest. False if it has no segment.
fn end(log: &mut Log, walk: &mut Walk) -> bool {
    let root = walk.builder.finish();
    loop {
        walk.manifest.runs = vec![Run {
            base: walk.base,
            entries: walk.builder.entries,
            root,
            parts: walk.parts.clone(),
        }];
        let bytes = walk.manifest.emit();
        let count = walk.builder.part_of_manifest(bytes.len()) + 1;
        if walk.parts.len() as u32 == count {
            walk.builder.add_manifest(&bytes);
            return true;
        }
        if !take_parts(log, walk, count) {
            return false;
        }
    }
}

/// The next piece as a write; `None` without a segment for it.
fn next_piece(log: &mut Log, walk: &mut Walk) -> Option<Write> {
    let layout = log.layout;
    let pages = walk.builder.take(piece_bytes(log));
    let first = pages.first()?;
    if !take_parts(log, walk, first.part + 1) {
        return None;
    }
    let (slot, generation) = walk.parts[first.part as usize];
    let is_begin = first.at == layout.block_bytes;
    let start = if is_begin { 0 } else { first.at };
    let end = pages
        .iter()
        .map(|it| it.at + layout.extent_of(it.payload.len() as u32))
        .max()?;
    let mut buffer = Buffer::new((end - start) as usize);
    let bytes = buffer.bytes_mut();
    let skip = SECTOR_HEADER_BYTES as usize;
    if is_begin {
        let part = PartHeader {
            generation,
            first: walk.parts[0].1,
            index: first.part,
        };
        bytes[skip..][..PART_HEADER_BYTES].copy_from_slice(&part.emit());
    }
    let sector_bytes = layout.sector_bytes as usize;
    for page in &pages {
        let sectors = bytes[(page.at - start) as usize..].chunks_mut(sector_bytes);
        for (sector, payload) in sectors.zip(page.payload.chunks(sector_bytes - skip)) {
            sector[skip..].copy_from_slice(payload);
        }
    }
    for (index, sector) in bytes.chunks_mut(sector_bytes).enumerate() {
        let number = layout.sector_number(slot, start + index as u32 * layout.sector_bytes);
        sector::seal(sector, Role::Checkpoint, generation as u32, number);
    }
    let offset = layout.segment_offset(slot) + u64::from(start);
    Some(Write::new(0, offset, (end - start) as usize, Arc::new(buffer)))
}

/// Gives the segments of an unfinished one back. The next one waits as long as for the first.
fn abandon(log: &mut Log, walk: Walk) -> usize {
    log.since = 0;
    let count = walk.parts.len();
    walk.parts
        .into_iter()
        .for_each(|(slot, _)| log.space.give_back(slot));
    count
}

/// The newest checkpoint that is whole and fits the log. If anything is wrong with one, another is used, or none.
pub(crate) fn load(
    medium: &dyn Device,
    layout: &Layout,
    parts: &Headers<PartHeader>,
    chain: &[Used],
    fresh: impl Fn() -> Replayed,
) -> Option<(Manifest, Replayed)> {
    let firsts = parts.iter().rev().filter(|(_, (_, part))| part.index == 0);
    for (&first, _) in firsts {
        let Some(manifest) = manifest_of(medium, layout, parts, first) else {
            continue;
        };
        let mut replayed = fresh();
        if fill(medium, layout, &manifest, chain, &mut replayed).is_some() {
            return Some((manifest, replayed));
        }
    }
    None
}

/// The manifest of the run that begins with generation `first`.
fn manifest_of(
    medium: &dyn Device,
    layout: &Layout,
    parts: &Headers<PartHeader>,
    first: u64,
) -> Option<Manifest> {
    let of_it = parts.range(first..).filter(|(_, (_, part))| part.first == first);
    let (&generation, &(slot, _)) = of_it.max_by_key(|(_, (_, part))| part.index)?;
    let mut last = None;
    run::read_part(medium, layout, (slot, generation), |payload| {
        last = Some(payload.to_vec())
    })?;
    let payload = last?;
    let page = Page::parse(&payload).filter(|page| page.level == run::MANIFEST)?;
    Manifest::parse(page.content())
}

/// The structures that any checkpoint names, newest first, whether or not the checkpoint counts.
pub(crate) fn descriptions(
    medium: &dyn Device,
    layout: &Layout,
    parts: &Headers<PartHeader>,
) -> Vec<(StructureId, String, Description)> {
    let firsts = parts.iter().rev().filter(|(_, (_, part))| part.index == 0);
    let manifests = firsts.filter_map(|(&first, _)| manifest_of(medium, layout, parts, first));
    manifests.flat_map(|it| it.structures).collect()
}

/// Fills `replayed`; `None` if the checkpoint is not whole or does not fit the log.
fn fill(
    medium: &dyn Device,
    layout: &Layout,
    manifest: &Manifest,
    chain: &[Used],
    replayed: &mut Replayed,
) -> Option<()> {
    let start = manifest.start;
    let has_start = |used: &Used| {
        used.generation == start.generation && start.end <= used.end && start.record <= used.last
    };
    let fits = chain.iter().any(has_start) && manifest.seen <= chain.last()?.last;
    fits.then_some(())?;
    for (id, name, description) in &manifest.structures {
        replayed.describe(*id, name, description).then_some(())?;
    }
    replayed.next_structure = replayed.next_structure.max(manifest.next_structure);
    let slots: BTreeMap<u64, u32> = chain.iter().map(|used| (used.generation, used.slot)).collect();
    for run in &manifest.runs {
        let mut entries = 0;
        for &part in &run.parts {
            let mut is_sound = true;
            run::read_part(medium, layout, part, |payload| {
                is_sound &= place_leaf(payload, run.base, layout, &slots, replayed, &mut entries).is_some();
            })?;
            is_sound.then_some(())?;
        }
        (entries == run.entries).then_some(())?;
    }
    Some(())
}

/// True if each key of the runs is found through the pages above its leaf, at the place that the leaf says.
pub(crate) fn finds_all(medium: &dyn Device, layout: &Layout, manifest: &Manifest) -> bool {
    let runs: Vec<Arc<Run>> = manifest.runs.iter().map(|run| Arc::new(run.clone())).collect();
    let mut pages = BTreeMap::new();
    let parts = runs
        .iter()
        .flat_map(|run| run.parts.iter().map(move |part| (run, part)));
    let mut is_sound = true;
    for (run, &part) in parts {
        let read = run::read_part(medium, layout, part, |payload| {
            is_sound &= finds_leaf(medium, layout, (run, &runs), payload, &mut pages).is_some();
        });
        is_sound &= read.is_some();
    }
    is_sound
}

/// The same of one leaf. `pages` has those that were read, by place.
fn finds_leaf(
    medium: &dyn Device,
    layout: &Layout,
    (run, runs): (&Run, &[Arc<Run>]),
    payload: &[u8],
    pages: &mut BTreeMap<u64, Vec<u8>>,
) -> Option<()> {
    const PAGES_MAX: usize = 4096;
    let page = Page::parse(payload)?;
    let mut cursor = page.cursor();
    while page.level == 0
        && let Some((key, value)) = cursor.next()?
    {
        let mut lookup = Lookup::new(*layout, runs.to_vec(), RunKey(key.to_vec()));
        let mut step = lookup.step(None);
        while let Step::Read(place) = step {
            if pages.len() > PAGES_MAX {
                pages.clear();
            }
            let page = match pages.entry(place.offset()) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(page) => {
                    let mut bytes = vec![0; place.length()];
                    medium.read_at(place.offset(), &mut bytes).ok()?;
                    page.insert(place.extract(&bytes).ok()?)
                }
            };
            step = lookup.step(Some(page));
        }
        (step == Step::Found(Spot::parse(value, run.base)?)).then_some(())?;
    }
    Some(())
}

/// Takes the entries of a page, if it is a leaf; `None` if they make no sense.
fn place_leaf(
    payload: &[u8],
    base: u64,
    layout: &Layout,
    slots: &BTreeMap<u64, u32>,
    replayed: &mut Replayed,
    entries: &mut u64,
) -> Option<()> {
    let page = Page::parse(payload)?;
    let mut cursor = page.cursor();
    while page.level == 0
        && let Some((key, value)) = cursor.next()?
    {
        let spot = Spot::parse(value, base)?;
        (spot.location.end() <= layout.segment_payload_bytes()).then_some(())?;
        let id = RunKey::structure(key)?;
        let kind = replayed.structures.get(&id)?.kind;
        let key = RunKey::key(key, kind)?;
        // What has moved since is met again behind the start.
        let slot = slots.get(&spot.generation).copied().unwrap_or(Location::MOVED);
        let location = Location {
            slot,
            ..spot.location
        };
        let kind = match kind {
            Kind::Log => EntryKind::Append,
            Kind::Queue => EntryKind::Push,
            Kind::Map | Kind::Tree => EntryKind::Put,
        };
        replayed.place(kind, id, key, location).then_some(())?;
        *entries += 1;
    }
    Some(())
}
