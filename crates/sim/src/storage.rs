//! Storage areas in virtual time: clients that insert and wait, a medium with a volatile cache, power cuts, failing writes,
//! flipped bits. Part of every seed of the swarm.
//!
//! The very [`store::Engine`] that ships runs here. A durable write is the blocks, then a flush, as a kernel makes it on a
//! device with a cache and without FUA. The checker keeps the acknowledged operations outside of the engine. After a crash
//! the area must hold exactly the acknowledged operations, and beyond them a prefix of the others, in the order of
//! submission.

use crate::media::{MediaModel, SimMedium};
use base::device::{LIMIT, LatencyModel};
use base::{Device, Instant, MediaError, MediaKind, MediaOp, Pool, Queue as _, Rng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use store::{
    CleanStep, Conditional, Durability, Engine, Expected, Fetch, Kind, Known, Layout, Op, Options, OwnedOp,
    OwnedValue, Receipt, Search, SnapshotId, StructureId, SubmitError, Ticket, TicketState, Uncached,
    Version, Write,
};

const SECTOR_BYTES: usize = 64;
const BLOCK_BYTES: usize = 8 * SECTOR_BYTES;
/// Blocks of the longest record, and one more: the numbers that the operations of a write have.
const BLOCKS_MAX: usize = 2048 / BLOCK_BYTES + 1;
/// A seed's run ends after this many power cuts.
const CUTS: u32 = 12;
/// Keys of the map and tree: few, so that most are overwritten.
const KEYS: u64 = 12;
/// The same where they leave memory for tables.
const KEYS_SPILLED: u64 = 120;
/// Segments that the medium has for the area to grow by.
const GROWTH_MAX: u32 = 12;
/// Snapshots at a time.
const SNAPSHOTS: usize = 3;
/// A key of the tree whose value clients count up: each expects that nobody else did so since it read the value.
const COUNTER: &[u8] = b"counter";

/// Result of a seed's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageReport {
    /// The seed.
    pub seed: u64,
    /// The first broken promise.
    pub violation: Option<String>,
    /// Hash of all completions and their times.
    pub hash: u64,
    /// Operations acknowledged.
    pub acknowledged: u64,
    /// Segments cleaned.
    pub cleaned: u64,
    /// Writes that crashes undid or tore.
    pub writes_lost: u64,
    /// Openings that began with a checkpoint of the index.
    pub resumed: u64,
    /// Jobs on tables that were done.
    pub jobs: u64,
    /// Times that a counter was counted up, and that somebody else was faster.
    pub counted: (u64, u64),
    /// Looks at snapshots, and snapshots that ended before their owners let go.
    pub snapshots: (u64, u64),
    /// Times that the area got more segments while it was open.
    pub growths: u64,
    /// Bits flipped, each in a copy of the medium, and how many of them were met and told.
    pub flips: (u64, u64),
}

/// Options that the seed does not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageOptions {
    /// Flushes do nothing: the canary, which must be found.
    pub loses_flushes: bool,
    /// Writes and flushes may fail, and bits flip.
    pub failing_media: bool,
}

/// Contents by structure; positions are big-endian keys.
type State = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

/// A change of one entry: `None` removes.
type Change = ((u32, Vec<u8>), Option<Vec<u8>>);

/// Runs `seed`.
pub fn run(seed: u64, options: StorageOptions) -> StorageReport {
    let mut run = Run::new(seed, options);
    for _ in 0..CUTS {
        run.live();
        if !run.cut() {
            break;
        }
    }
    StorageReport {
        seed,
        violation: run.violation,
        hash: run.hash,
        acknowledged: run.acknowledged,
        cleaned: run.cleaned,
        writes_lost: run.medium.stats().writes_lost,
        resumed: run.resumed,
        jobs: run.jobs,
        counted: run.counted,
        snapshots: run.looks,
        growths: run.growths,
        flips: run.flips,
    }
}

/// Event at a time.
enum Event {
    /// A block, or the flush, of a durable write is done.
    Medium,
    /// A client has thought.
    Client(usize),
    /// The cleaner has read.
    Cleaned(Vec<u8>),
}

/// A durable write under way.
struct Durable {
    write: Option<Write>,
    blocks_left: usize,
    result: Result<(), MediaError>,
}

struct Run {
    rng: Rng,
    medium: SimMedium,
    pool: Pool,
    engine: Engine,
    options: Options,
    structures: [StructureId; 4],
    now_ns: u64,
    /// Time, order, and the index of the event.
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    writes: Vec<Durable>,
    /// Wait of each client.
    clients: Vec<Option<Ticket>>,
    /// The counter as each client has read it, to be counted up next time.
    counters: Vec<Option<(u64, Option<Version>)>>,
    /// The counter with all that was submitted.
    counter: u64,
    counted: (u64, u64),
    /// Each with the maps and trees that there were when it was taken.
    snapshots: Vec<(SnapshotId, State)>,
    looks: (u64, u64),
    growths: u64,
    /// Operations that are certainly acknowledged, and operations submitted after them, by ticket.
    base: State,
    submitted: Vec<(Ticket, Vec<Change>)>,
    violation: Option<String>,
    hash: u64,
    acknowledged: u64,
    cleaned: u64,
    resumed: u64,
    /// Jobs on tables that were done.
    jobs: u64,
    /// Power has left in the middle of a job.
    is_cut: bool,
    keys: u64,
    flips: (u64, u64),
    failing_media: bool,
}

impl Run {
    fn new(seed: u64, faults: StorageOptions) -> Self {
        let mut rng = Rng::new(seed);
        let spills = rng.chance(0.4);
        let layout = Layout {
            sector_bytes: SECTOR_BYTES as u32,
            block_bytes: BLOCK_BYTES as u32,
            segment_bytes: 8192,
            segments: match spills {
                true => 96 + rng.below(16) as u32,
                false => 8 + rng.below(32) as u32,
            },
            atomic_bytes: SECTOR_BYTES as u32,
            record_bytes_max: 2048,
        };
        let model = MediaModel {
            page_bytes: BLOCK_BYTES,
            sector_bytes: SECTOR_BYTES,
            latency: LatencyModel {
                io_ns: 43_000,
                flush_ns: 42_000,
            },
            limit: LIMIT,
            volatile: true,
            loses_flushes: faults.loses_flushes,
        };
        let room = u64::from(GROWTH_MAX) * u64::from(layout.segment_bytes);
        let capacity = (layout.capacity_bytes() + room).next_multiple_of(BLOCK_BYTES as u64);
        let mut medium = SimMedium::new(capacity, model, rng.next_u64());
        let options = Options {
            writes_in_flight_max: 1 + rng.below(4) as usize,
            spill_bytes: if spills { 200 << rng.below(5) } else { u64::MAX },
            ..Options::default()
        };
        store::create(&mut medium, layout, [seed as u8; 16]).expect("the sizes fit");
        let (engine, _) = Engine::open(&mut medium, options).expect("it was just made");
        let clients = 1 + rng.below(8) as usize;
        Self {
            rng,
            medium,
            pool: Pool::new(256, SECTOR_BYTES),
            engine,
            options,
            structures: [StructureId(0); 4],
            now_ns: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            writes: Vec::new(),
            clients: vec![None; clients],
            counters: vec![None; clients],
            counter: 0,
            counted: (0, 0),
            snapshots: Vec::new(),
            looks: (0, 0),
            growths: 0,
            base: State::new(),
            submitted: Vec::new(),
            violation: None,
            hash: seed,
            acknowledged: 0,
            cleaned: 0,
            resumed: 0,
            jobs: 0,
            is_cut: false,
            keys: if spills { KEYS_SPILLED } else { KEYS },
            flips: (0, 0),
            failing_media: faults.failing_media,
        }
    }

    fn after(&mut self, delay_ns: u64, event: Event) {
        let number = self.next_event;
        self.next_event += 1;
        self.queue.push(Reverse((self.now_ns + delay_ns, number)));
        self.events.insert(number, event);
    }

    /// From one opening to the next power cut.
    fn live(&mut self) {
        let kinds = [Kind::Log, Kind::Queue, Kind::Map, Kind::Tree];
        for (index, kind) in kinds.into_iter().enumerate() {
            let made = self.engine.create(&format!("{kind:?}"), kind, Durability::Sync);
            self.structures[index] = made.expect("there is room for four").0;
        }
        for client in 0..self.clients.len() {
            self.clients[client] = None;
            self.counters[client] = None;
            let think_ns = self.rng.below(50_000);
            self.after(think_ns, Event::Client(client));
        }
        if self.failing_media && self.rng.chance(0.2) {
            self.medium.faults().fail_writes(u32::from(self.rng.chance(0.5)));
        }
        let end_ns = self.now_ns + self.rng.below(60_000_000);
        while let Some(&Reverse((time, number))) = self.queue.peek() {
            if time > end_ns {
                break;
            }
            self.queue.pop();
            self.now_ns = time;
            let event = self.events.remove(&number).expect("each comes once");
            self.hash = (self.hash ^ time ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if self.failing_media && self.rng.chance(0.0005) {
                self.medium.faults().fail_flushes(1);
            }
            self.handle(event);
            self.pump();
            if self.rng.chance(0.004) {
                self.look_at_snapshots();
            }
            if self.rng.chance(0.0004) {
                self.grow();
            }
            if self.is_cut {
                break;
            }
        }
        self.now_ns = end_ns;
        self.queue.clear();
        self.events.clear();
        self.cleaned += self.engine.stats().cleaned;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Client(client) => self.submit(client),
            Event::Cleaned(bytes) => self.engine.clean_read(bytes, Ok(())),
            Event::Medium => {
                let done = self.medium.poll(self.now()).expect("it is due");
                let index = done.id as usize / BLOCKS_MAX;
                let is_flush = done.kind == MediaKind::Flush;
                let write = &mut self.writes[index];
                write.result = write.result.and(done.result);
                if !is_flush {
                    write.blocks_left -= 1;
                    if write.blocks_left == 0 {
                        self.issue(MediaOp::flush((index * BLOCKS_MAX) as u64));
                    }
                    return;
                }
                let result = write.result;
                let write = write.write.take().expect("it ends once");
                self.engine.written(write, result);
                self.acknowledge();
            }
        }
    }

    fn issue(&mut self, op: MediaOp) {
        let now = self.now();
        let at = self.medium.issue(now, op);
        self.after(at.nanos_since(now), Event::Medium);
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns)
    }

    /// Carries out what the engine has to do.
    fn pump(&mut self) {
        match self.engine.clean_step() {
            CleanStep::Read { offset, length } => {
                let mut bytes = vec![0; length];
                self.medium.read_at(offset, &mut bytes).expect("inside");
                self.after(50_000, Event::Cleaned(bytes));
            }
            CleanStep::Write(write) => self.begin(write),
            CleanStep::Wait | CleanStep::Idle => {}
        }
        self.work_on_tables();
        while let Some(write) = self.engine.next_write() {
            self.begin(write);
        }
    }

    /// Does a job on tables, if there is one: whole, or until power leaves.
    fn work_on_tables(&mut self) {
        if !self.engine.wants_job() || self.rng.chance(0.7) {
            return;
        }
        let Some(mut job) = self.engine.take_job() else {
            return;
        };
        if self.rng.chance(0.1) {
            let left = self.rng.below(8);
            let mut cutting = Cutting {
                bytes: self.medium.capacity_bytes(),
                medium: &mut self.medium,
                left,
            };
            self.is_cut = job.run(&mut cutting).is_err();
            if self.is_cut {
                return;
            }
            return self.engine.end_job(job, Ok(()));
        }
        let result = job.run(&mut self.medium);
        self.jobs += u64::from(result.is_ok());
        self.engine.end_job(job, result);
        self.acknowledge();
    }

    /// Takes a snapshot, or looks at those that there are, and ends some.
    fn look_at_snapshots(&mut self) {
        if self.snapshots.len() < SNAPSHOTS && self.rng.chance(0.3) {
            // Everything here is shown when it is durable.
            if let Ok((id, _)) = self.engine.snapshot() {
                let [_, _, map, tree] = self.structures;
                let kept = self
                    .base
                    .iter()
                    .filter(|((id, _), _)| *id == map.0 || *id == tree.0);
                let state = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
                self.snapshots.push((id, state));
            }
        }
        for (id, state) in core::mem::take(&mut self.snapshots) {
            let Some(found) = self.contents_at(id) else {
                self.looks.1 += 1;
                self.engine.end_snapshot(id);
                continue;
            };
            self.looks.0 += 1;
            if found != state {
                let differ = state
                    .iter()
                    .filter(|(key, value)| found.get(*key) != Some(*value));
                let differ = differ.count();
                self.violation = Some(format!("{differ} entries of a snapshot are not what they were"));
            }
            match self.rng.chance(0.2) {
                true => self.engine.end_snapshot(id),
                false => self.snapshots.push((id, state)),
            }
        }
    }

    /// Maps and trees of a snapshot; `None` if it has ended.
    fn contents_at(&self, id: SnapshotId) -> Option<State> {
        let mut state = State::new();
        for structure in &self.structures[2..] {
            let part = self.engine.snapshot_keys(id, *structure).ok()?;
            for (key, found) in part.merge(&mut Uncached(&self.medium)).expect("sound") {
                let found = match found {
                    OwnedValue::Table(value) => value,
                    OwnedValue::Memory(fetch) => value(fetch, &self.medium).expect("sound"),
                };
                state.insert((structure.0, key.to_vec()), found);
            }
        }
        Some(state)
    }

    /// The area gets some segments more, if the medium has them, or power leaves meanwhile.
    fn grow(&mut self) {
        let layout = *self.engine.layout();
        let more = (1 + self.rng.below(4)) * u64::from(layout.segment_bytes);
        let left = match self.rng.chance(0.2) {
            true => self.rng.below(6),
            false => u64::MAX,
        };
        let mut cutting = Cutting {
            bytes: (layout.capacity_bytes() + more).min(self.medium.capacity_bytes()),
            medium: &mut self.medium,
            left,
        };
        match store::grow(&mut cutting, Some(&layout)) {
            Ok(segments) => {
                self.engine.grown(segments);
                self.growths += u64::from(segments > 0);
            }
            // A failing flush also ends so: a program may try again.
            Err(_) => self.is_cut = true,
        }
    }

    /// Issues the blocks of a write.
    fn begin(&mut self, write: Write) {
        let index = self.writes.len();
        let offset = write.offset();
        let blocks: Vec<Vec<u8>> = write.bytes().chunks(BLOCK_BYTES).map(<[u8]>::to_vec).collect();
        self.writes.push(Durable {
            write: Some(write),
            blocks_left: blocks.len(),
            result: Ok(()),
        });
        for (block, bytes) in blocks.into_iter().enumerate() {
            let page = self.pool.alloc().expect("a few records are under way");
            page.with_mut(|page| page.copy_from_slice(&bytes));
            let offset = offset + (block * BLOCK_BYTES) as u64;
            self.issue(MediaOp::write((index * BLOCKS_MAX + block) as u64, offset, page));
        }
    }

    /// A client's next operation, or pair of them.
    fn submit(&mut self, client: usize) {
        if let Some((value, version)) = self.counters[client].take() {
            return self.count_up(client, value, version);
        }
        if self.rng.chance(0.1) {
            self.counters[client] = Some(self.read_counter());
        }
        let mut batch = vec![self.draw()];
        if self.rng.chance(0.2) {
            batch.push(self.draw());
        }
        let ops: Vec<Op<'_>> = batch.iter().map(OwnedOp::op).collect();
        match self.engine.submit(&ops) {
            Ok(receipt) => self.taken(client, &batch, &receipt),
            Err(error) => self.refused(client, error),
        }
    }

    fn taken(&mut self, client: usize, batch: &[OwnedOp], receipt: &Receipt) {
        let mut positions = receipt.positions.iter();
        let changes = batch
            .iter()
            .filter_map(|drawn| change(drawn, || *positions.next().expect("one for each")))
            .collect();
        self.submitted.push((receipt.ticket, changes));
        self.clients[client] = Some(receipt.ticket);
    }

    fn refused(&mut self, client: usize, error: SubmitError) {
        match error {
            SubmitError::Busy | SubmitError::NoSpace | SubmitError::Damaged { .. } => {
                self.after(20_000, Event::Client(client));
            }
            SubmitError::Latched => {}
            error => self.violation = Some(format!("refused: {error}")),
        }
    }

    fn read_counter(&mut self) -> (u64, Option<Version>) {
        let tree = self.structures[3];
        let (bytes, version) = match self.engine.get_versioned(tree, COUNTER) {
            None => return (0, None),
            Some((Fetch::Search(search), _)) => match search.run(&mut Uncached(&self.medium)).expect("sound")
            {
                None => return (0, None),
                Some(piece) => {
                    let version = self.engine.version_of(&piece);
                    (piece.value().expect("no removal").to_vec(), Some(version))
                }
            },
            Some((fetch, version)) => (value(fetch, &self.medium).expect("sound"), version),
        };
        (u64::from_le_bytes(bytes.try_into().expect("a counter")), version)
    }

    /// Counts up from what was read some time ago. Nobody else may have done so since, if that is taken in.
    fn count_up(&mut self, client: usize, read: u64, version: Option<Version>) {
        let map = self.structures[3];
        let put = OwnedOp::Put(map, COUNTER.into(), (read + 1).to_le_bytes().into());
        let expected = Expected {
            map,
            key: COUNTER,
            version,
        };
        let mut known = Vec::new();
        loop {
            match self.engine.submit_if(&[put.op()], &[expected], &known, None) {
                Ok(Conditional::Look(searches)) => {
                    let look = |search: Search| search.known(&mut Uncached(&self.medium)).expect("sound");
                    known = searches.into_iter().map(look).collect::<Vec<Known>>();
                }
                Ok(Conditional::Done(receipt)) => {
                    if read != self.counter {
                        self.violation = Some(format!(
                            "an update was lost: {read} was counted up, and the counter was {}",
                            self.counter
                        ));
                    }
                    self.counter = read + 1;
                    self.counted.0 += 1;
                    return self.taken(client, &[put], &receipt);
                }
                Ok(Conditional::Conflict(_)) => {
                    if read == self.counter {
                        self.violation = Some(format!("{read} is the counter, and yet it is not counted up"));
                    }
                    self.counted.1 += 1;
                    return self.after(20_000, Event::Client(client));
                }
                Err(error) => return self.refused(client, error),
            }
        }
    }

    fn draw(&mut self) -> OwnedOp {
        let [log, queue, map, tree] = self.structures;
        let length = self.rng.below(120);
        let data = (0..length).map(|_| self.rng.next_u64() as u8).collect();
        let key = vec![self.rng.below(self.keys) as u8];
        match self.rng.below(8) {
            0 => OwnedOp::Append(log, data),
            1 => {
                let range = self.engine.positions(log).expect("it is there");
                OwnedOp::Trim(log, (range.start + 1).min(range.end))
            }
            2 => OwnedOp::Push(queue, data),
            3 => match self.engine.pop(queue) {
                Some((position, _)) => OwnedOp::Acknowledge(queue, position),
                None => OwnedOp::Push(queue, data),
            },
            4 => OwnedOp::Remove(map, key),
            5 | 6 => OwnedOp::Put(map, key, data),
            _ => OwnedOp::Put(tree, key, data),
        }
    }

    /// Clients whose operations are durable go on; the checker's base follows.
    fn acknowledge(&mut self) {
        for client in 0..self.clients.len() {
            let Some(ticket) = self.clients[client] else {
                continue;
            };
            if self.engine.state(ticket) == TicketState::Durable {
                self.clients[client] = None;
                self.acknowledged += 1;
                let think_ns = self.rng.below(20_000);
                self.after(think_ns, Event::Client(client));
            }
        }
        let durable = self.engine.durable();
        let done = self
            .submitted
            .iter()
            .take_while(|(ticket, _)| *ticket <= durable)
            .count();
        for (_, changes) in self.submitted.drain(..done) {
            changes
                .into_iter()
                .for_each(|change| apply(&mut self.base, change));
        }
    }

    /// Power is cut, and the area opened anew. False if what it holds is wrong.
    fn cut(&mut self) -> bool {
        self.writes.clear();
        self.snapshots.clear();
        self.is_cut = false;
        self.medium.faults().fail_writes(0);
        self.medium.faults().fail_flushes(0);
        self.medium.crash(&mut self.rng);
        match Engine::open(&mut self.medium, self.options) {
            Ok((engine, report)) => {
                self.engine = engine;
                self.resumed += u64::from(report.checkpoint > 0);
            }
            Err(error) => {
                self.violation = Some(format!("a power cut was taken for damage: {error}"));
                return false;
            }
        }
        let Some(found) = contents(&self.engine, &self.medium) else {
            self.violation = Some("a value is damaged after a power cut".into());
            return false;
        };
        let mut state = self.base.clone();
        let mut is_admissible = state == found;
        let submitted = core::mem::take(&mut self.submitted);
        for (index, (ticket, changes)) in submitted.iter().enumerate() {
            changes
                .iter()
                .for_each(|change| apply(&mut state, change.clone()));
            // Operations of one record come together.
            let is_last = submitted.get(index + 1).is_none_or(|(next, _)| next != ticket);
            is_admissible |= is_last && state == found;
        }
        if !is_admissible {
            let lost = self
                .base
                .iter()
                .filter(|(key, value)| found.get(*key) != Some(*value));
            let lost = lost.count();
            self.violation = Some(format!(
                "no prefix of what was submitted is there; {lost} acknowledged entries differ"
            ));
        }
        self.base = found;
        let counter = self.base.get(&(self.structures[3].0, COUNTER.to_vec()));
        self.counter = counter.map_or(0, |bytes| {
            u64::from_le_bytes(bytes[..].try_into().expect("a counter"))
        });
        is_admissible && (!self.failing_media || self.flip())
    }

    /// One bit of a copy is wrong: what is read of it is right nevertheless, or refused. False if it is neither.
    fn flip(&mut self) -> bool {
        let mut image = vec![0; self.medium.capacity_bytes() as usize];
        self.medium.read_at(0, &mut image).expect("inside");
        let ranges = self.engine.log_ranges();
        let (start, length) = match ranges.is_empty() || self.rng.chance(0.5) {
            true => (0, image.len() as u64),
            false => ranges[self.rng.below(ranges.len() as u64) as usize],
        };
        let (byte, bit) = (start + self.rng.below(length), self.rng.below(8));
        image[byte as usize] ^= 1 << bit;
        self.flips.0 += 1;
        let opened = Engine::open(&mut image, self.options);
        let found = opened.ok().and_then(|(engine, _)| contents(&engine, &image));
        self.flips.1 += u64::from(found.is_none());
        if found.is_some_and(|found| found != self.base) {
            self.violation = Some(format!(
                "bit {bit} of byte {byte} was flipped, and nothing told of it"
            ));
        }
        self.violation.is_none()
    }
}

/// Everything that the area shows; `None` if a value is damaged.
fn contents(engine: &Engine, medium: &dyn Device) -> Option<State> {
    let mut state = State::new();
    let all: Vec<_> = engine
        .structures()
        .map(|(_, id, kind, _, _)| (id, kind))
        .collect();
    for (id, kind) in all {
        if matches!(kind, Kind::Map | Kind::Tree) {
            for (key, found) in engine.keys(id).merge(&mut Uncached(medium)).ok()? {
                let found = match found {
                    OwnedValue::Table(value) => value,
                    OwnedValue::Memory(fetch) => value(fetch, medium)?,
                };
                let looked_up = engine.get(id, &key).and_then(|fetch| value(fetch, medium))?;
                assert_eq!(looked_up, found, "a lookup finds what a range does");
                state.insert((id.0, key.to_vec()), found);
            }
            continue;
        }
        for position in engine.positions(id).expect("it is there") {
            if let Some(fetch) = engine.read(id, position) {
                state.insert((id.0, position.to_be_bytes().to_vec()), value(fetch, medium)?);
            }
        }
    }
    Some(state)
}

fn value(fetch: Fetch, medium: &dyn Device) -> Option<Vec<u8>> {
    match fetch {
        Fetch::Ready(bytes) => Some(bytes.to_vec()),
        Fetch::Read(found) => {
            let mut bytes = vec![0; found.length()];
            medium.read_at(found.offset(), &mut bytes).expect("inside");
            found.extract(&bytes).ok()
        }
        Fetch::Search(search) => Some(search.run(&mut Uncached(medium)).ok()??.value()?.to_vec()),
        Fetch::Lost => None,
    }
}

/// A medium that power leaves after some operations: from then on all of them fail.
struct Cutting<'a> {
    medium: &'a mut SimMedium,
    /// So much of the medium is to be seen.
    bytes: u64,
    left: u64,
}

impl Cutting<'_> {
    fn next(&mut self) -> Result<(), MediaError> {
        self.left = self.left.checked_sub(1).ok_or(MediaError::Io)?;
        Ok(())
    }
}

impl Device for Cutting<'_> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.medium.read_at(offset, bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.next()?;
        self.medium.write_at(offset, bytes)
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        self.next()?;
        self.medium.flush()
    }

    fn capacity_bytes(&self) -> u64 {
        self.bytes
    }
}

/// Effect of an operation, once it has its position. A trim goes up by one position at a time, so it removes one entry.
fn change(op: &OwnedOp, position: impl FnOnce() -> u64) -> Option<Change> {
    let key = |id: &StructureId, position: u64| (id.0, position.to_be_bytes().to_vec());
    Some(match op {
        OwnedOp::Append(id, data) | OwnedOp::Push(id, data) => (key(id, position()), Some(data.clone())),
        OwnedOp::Trim(id, floor) => (key(id, floor.checked_sub(1)?), None),
        OwnedOp::Acknowledge(id, position) => (key(id, *position), None),
        OwnedOp::Put(id, key, data) => ((id.0, key.clone()), Some(data.clone())),
        OwnedOp::Remove(id, key) => ((id.0, key.clone()), None),
    })
}

fn apply(state: &mut State, (key, value): Change) {
    match value {
        Some(value) => drop(state.insert(key, value)),
        None => drop(state.remove(&key)),
    }
}
