//! An engine on a recorded medium, beside a model of what it should hold.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "shared by several test programs, each of which uses a part"
)]

use base::{Device, MediaError, Rng};
use std::collections::BTreeMap;
use store::{
    CleanStep, Durability, Engine, Fetch, Kind, Layout, Older, Op, OpenError, Options, OwnedValue,
    StructureId, SubmitError, Uncached, Write,
};

/// Small sizes, so that a run meets every case often.
pub fn tiny(block_sectors: u32) -> Layout {
    Layout {
        sector_bytes: 64,
        block_bytes: 64 * block_sectors,
        segment_bytes: 2048,
        segments: 12,
        atomic_bytes: 64,
        record_bytes_max: 512,
    }
}

/// Many small segments, so that checkpoints are written often and survive a while.
pub fn roomy() -> Layout {
    Layout {
        segments: 40,
        ..tiny(1)
    }
}

/// Options of an engine whose maps and trees leave memory when they have so many bytes.
pub fn options(writes_in_flight_max: usize, spill_bytes: u64) -> Options {
    Options {
        writes_in_flight_max,
        spill_bytes,
        ..Options::default()
    }
}

/// A medium that notes writes, and flushes as `None`.
#[derive(Default)]
pub struct Recorded {
    pub image: Vec<u8>,
    pub writes: Vec<Option<(u64, Vec<u8>)>>,
    pub fault: Option<Fault>,
}

/// Changes the result of a read at an offset.
pub type Fault = std::rc::Rc<dyn Fn(u64, &mut [u8]) -> Result<(), MediaError>>;

impl Device for Recorded {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.image.read_at(offset, bytes)?;
        self.fault.as_ref().map_or(Ok(()), |fault| fault(offset, bytes))
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.writes.push(Some((offset, bytes.to_vec())));
        self.image.write_at(offset, bytes)
    }
    fn flush(&mut self) -> Result<(), MediaError> {
        self.writes.push(None);
        Ok(())
    }
    fn capacity_bytes(&self) -> u64 {
        self.image.capacity_bytes()
    }
}

/// A rig with room for tables, or without; `keys` are those of its maps.
pub fn with_and_without_tables(seed: u64, keys: u64) -> Rig {
    let (layout, spill_bytes) = match seed % 2 {
        0 => (tiny(1), u64::MAX),
        _ => (
            Layout {
                segment_bytes: 4096,
                segments: 96,
                record_bytes_max: 1024,
                ..tiny(1)
            },
            [200, 600, 2000][seed as usize / 2 % 3],
        ),
    };
    let mut rig = Rig::new(layout, options(1 + seed as usize % 3, spill_bytes), seed);
    rig.keys = keys;
    rig.furnish();
    rig
}

/// Submits, and looks for older values where the area is full; does `wait` while it is busy.
pub fn submit_over(
    rig: &mut Rig,
    op: Op<'_>,
    tries: u32,
    wait: impl Fn(&mut Rig),
) -> Result<(), SubmitError> {
    let mut older: Option<Older> = None;
    for _ in 0..tries {
        match rig.engine.submit_over(&[op], older.as_ref()) {
            Ok(_) => return Ok(()),
            Err(SubmitError::Busy) => wait(rig),
            Err(SubmitError::NoSpace) => {
                let is_known = older.is_some_and(|it| it.freezes() == rig.engine.freezes());
                older = rig.engine.older(&[op]).filter(|_| !is_known);
                let Some(older) = &mut older else {
                    return Err(SubmitError::NoSpace);
                };
                older.look_up(&mut Uncached(&rig.image)).expect("sound");
            }
            Err(error) => return Err(error),
        }
    }
    panic!("busy for ever: {op:?} {:?}", rig.engine.stats());
}

pub fn seeds(count: u64) -> u64 {
    std::env::var("STORE_SEEDS").map_or(count, |all| all.parse().unwrap())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owned {
    Create(StructureId, Kind),
    Drop(StructureId),
    Append(StructureId, u64, Vec<u8>),
    Trim(StructureId, u64),
    Push(StructureId, u64, Vec<u8>),
    Acknowledge(StructureId, u64),
    Put(StructureId, Vec<u8>, Vec<u8>),
    Remove(StructureId, Vec<u8>),
}

/// Contents of a structure: positions are their own keys, big-endian so that they sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub kind: Kind,
    pub entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub type State = BTreeMap<StructureId, Contents>;

pub fn position_key(position: u64) -> Vec<u8> {
    position.to_be_bytes().to_vec()
}

pub fn apply(state: &mut State, op: &Owned) {
    match op {
        Owned::Create(id, kind) => {
            let kind = *kind;
            let entries = BTreeMap::new();
            state.entry(*id).or_insert(Contents { kind, entries });
        }
        Owned::Drop(id) => drop(state.remove(id)),
        Owned::Append(id, position, data) | Owned::Push(id, position, data) => {
            let it = state.get_mut(id).unwrap();
            it.entries.insert(position_key(*position), data.clone());
        }
        Owned::Trim(id, floor) => {
            let it = state.get_mut(id).unwrap();
            it.entries = it.entries.split_off(&position_key(*floor));
        }
        Owned::Acknowledge(id, position) => {
            state
                .get_mut(id)
                .unwrap()
                .entries
                .remove(&position_key(*position));
        }
        Owned::Put(id, key, data) => {
            state
                .get_mut(id)
                .unwrap()
                .entries
                .insert(key.clone(), data.clone());
        }
        Owned::Remove(id, key) => {
            state.get_mut(id).unwrap().entries.remove(key);
        }
    }
}

/// State of an engine, with values read from `image`.
pub fn contents(engine: &Engine, image: &dyn Device) -> State {
    let mut state = State::new();
    let all: Vec<_> = engine
        .structures()
        .map(|(_, id, kind, _, _)| (id, kind))
        .collect();
    for (id, kind) in all {
        let mut entries = BTreeMap::new();
        match kind {
            Kind::Log | Kind::Queue => {
                for position in engine.positions(id).unwrap() {
                    if let Some(fetch) = engine.read(id, position) {
                        entries.insert(position_key(position), value(fetch, image).unwrap());
                    }
                }
            }
            Kind::Map | Kind::Tree => {
                let found = engine.keys(id).merge(&mut Uncached(image)).unwrap();
                for (key, held) in found {
                    let held = match held {
                        OwnedValue::Table(value) => value,
                        OwnedValue::Memory(fetch) => value(fetch, image).unwrap(),
                    };
                    // A lookup finds what a range does.
                    let found = engine.get(id, &key).and_then(|fetch| value(fetch, image));
                    assert_eq!(found.as_ref(), Some(&held));
                    entries.insert(key.to_vec(), held);
                }
            }
        }
        state.insert(id, Contents { kind, entries });
    }
    state
}

/// The keys of a map or tree, in order.
pub fn keys(engine: &Engine, id: StructureId, image: &dyn Device) -> Vec<Box<[u8]>> {
    let found = engine.keys(id).merge(&mut Uncached(image)).unwrap();
    found.into_iter().map(|(key, _)| key).collect()
}

pub fn value(fetch: Fetch, image: &dyn Device) -> Option<Vec<u8>> {
    Some(match fetch {
        Fetch::Ready(bytes) => bytes.to_vec(),
        Fetch::Search(search) => {
            let piece = search.run(&mut Uncached(image)).unwrap()?;
            piece.value().unwrap().to_vec()
        }
        Fetch::Read(found) => {
            let mut bytes = vec![0; found.length()];
            image.read_at(found.offset(), &mut bytes).unwrap();
            found.extract(&bytes).unwrap()
        }
        Fetch::Lost => panic!("nothing was repaired"),
    })
}

/// Sees a rig, and an image that a crash would leave.
pub type Look<'a> = &'a mut dyn FnMut(&Rig, Vec<u8>);

/// A write under way.
pub struct Flying {
    pub write: Write,
    /// When it was issued: later ones overtake earlier ones only in completing.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

pub struct Rig {
    pub engine: Engine,
    pub image: Vec<u8>,
    pub flying: Vec<Flying>,
    pub rng: Rng,
    pub options: Options,
    /// Operations that are certainly durable, and operations submitted after them, by record.
    pub base: State,
    pub log: Vec<(u64, Owned)>,
    /// All operations since the last restart, by record.
    pub history: Vec<(u64, Owned)>,
    popped: Vec<(StructureId, u64)>,
    /// The state that users see of synchronous structures is checked against this.
    pub refused: u64,
    pub lies: bool,
    /// Openings that used a checkpoint.
    pub resumed: std::cell::Cell<u64>,
    names: u32,
    /// Different keys of maps and trees.
    pub keys: u64,
    /// Jobs on tables that were done.
    pub jobs: u64,
    /// The image is damaged: jobs may fail.
    pub has_damage: bool,
    /// Reads by jobs, and by the cleaner, come to this.
    pub fault: Option<Fault>,
}

impl Rig {
    pub fn new(layout: Layout, options: Options, seed: u64) -> Self {
        let mut image = vec![0; layout.capacity_bytes() as usize];
        store::create(&mut image, layout, [seed as u8; 16]).unwrap();
        let (engine, _) = Engine::open(&mut image, options).unwrap();
        Self {
            engine,
            image,
            flying: Vec::new(),
            rng: Rng::new(seed),
            options,
            base: State::new(),
            log: Vec::new(),
            history: Vec::new(),
            popped: Vec::new(),
            refused: 0,
            lies: false,
            resumed: std::cell::Cell::new(0),
            names: 0,
            keys: 12,
            jobs: 0,
            has_damage: false,
            fault: None,
        }
    }

    fn note(&mut self, ticket: u64, op: Owned) {
        self.history.push((ticket, op.clone()));
        self.log.push((ticket, op));
    }

    pub fn create(&mut self, kind: Kind, durability: Durability) -> Result<StructureId, SubmitError> {
        self.names += 1;
        let name = format!("s{}", self.names);
        let (id, ticket) = self.engine.create(&name, kind, durability)?;
        self.note(ticket.0, Owned::Create(id, kind));
        Ok(id)
    }

    /// One of each kind, durable.
    pub fn furnish(&mut self) {
        for kind in [Kind::Log, Kind::Queue, Kind::Map, Kind::Tree] {
            self.create(kind, Durability::Sync).unwrap();
        }
        self.create(Kind::Map, Durability::Lazy).unwrap();
        self.settle();
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.rng.below(10) {
            0 => 0,
            1 => self.rng.below(200),
            _ => self.rng.below(24),
        };
        (0..length).map(|_| self.rng.next_u64() as u8).collect()
    }

    fn random_op(&mut self, id: StructureId, kind: Kind) -> Option<Owned> {
        let key = vec![b'k', self.rng.below(self.keys) as u8];
        let range = self.engine.positions(id)?;
        Some(match (kind, self.rng.below(4)) {
            (Kind::Log, 0) => Owned::Trim(id, range.end.saturating_sub(self.rng.below(4)).max(range.start)),
            (Kind::Log, _) => Owned::Append(id, 0, self.value()),
            (Kind::Queue, 0 | 1) => {
                if let Some((position, _)) = self.engine.pop(id) {
                    self.popped.push((id, position));
                }
                let index = self.popped.iter().position(|(of, _)| *of == id)?;
                let (_, position) = self.popped.swap_remove(index);
                if self.rng.chance(0.1) {
                    self.engine.give_up(id, position);
                    return None;
                }
                Owned::Acknowledge(id, position)
            }
            (Kind::Queue, _) => Owned::Push(id, 0, self.value()),
            (Kind::Map | Kind::Tree, 0) => Owned::Remove(id, key),
            (Kind::Map | Kind::Tree, _) => Owned::Put(id, key, self.value()),
        })
    }

    /// A batch of one to three random operations.
    pub fn random_batch(&mut self) {
        let all: Vec<_> = self
            .engine
            .structures()
            .map(|(_, id, kind, _, _)| (id, kind))
            .collect();
        if all.is_empty() {
            return;
        }
        let mut owned = Vec::new();
        for _ in 0..[1, 1, 1, 2, 3][self.rng.below(5) as usize] {
            let (id, kind) = all[self.rng.below(all.len() as u64) as usize];
            owned.extend(self.random_op(id, kind));
        }
        if !owned.is_empty() {
            let _ = self.submit(owned);
        }
    }

    pub fn submit(&mut self, mut owned: Vec<Owned>) -> Result<(), SubmitError> {
        let ops: Vec<Op<'_>> = owned.iter().map(borrow).collect();
        let receipt = match self.engine.submit(&ops) {
            Ok(receipt) => receipt,
            Err(error) => {
                self.refused += 1;
                return Err(error);
            }
        };
        let mut positions = receipt.positions.iter();
        for op in &mut owned {
            if let Owned::Append(_, position, _) | Owned::Push(_, position, _) = op {
                *position = *positions.next().unwrap();
            }
        }
        for op in owned {
            self.note(receipt.ticket.0, op);
        }
        Ok(())
    }

    /// Issues every write that there is.
    pub fn issue(&mut self) {
        while let Some(write) = self.engine.next_write() {
            self.fly(write);
        }
    }

    fn fly(&mut self, write: Write) {
        let (offset, bytes) = (write.offset(), write.bytes().to_vec());
        self.flying.push(Flying { write, offset, bytes });
    }

    /// Completes one of the writes under way.
    pub fn complete_one(&mut self) -> bool {
        if self.flying.is_empty() {
            return false;
        }
        let index = self.rng.below(self.flying.len() as u64) as usize;
        self.complete(index, Ok(()));
        true
    }

    pub fn complete(&mut self, index: usize, result: Result<(), MediaError>) {
        let flying = self.flying.swap_remove(index);
        if result.is_ok() && !self.lies {
            self.image.write_at(flying.offset, &flying.bytes).unwrap();
        }
        self.engine.written(flying.write, result);
        self.catch_up();
    }

    /// The model's base follows what is durable.
    fn catch_up(&mut self) {
        let durable = self.engine.durable().0;
        while self.log.first().is_some_and(|(ticket, _)| *ticket <= durable) {
            let (_, op) = self.log.remove(0);
            apply(&mut self.base, &op);
        }
    }

    pub fn clean(&mut self) -> bool {
        match self.engine.clean_step() {
            CleanStep::Idle => false,
            CleanStep::Wait => true,
            CleanStep::Write(write) => {
                self.fly(write);
                true
            }
            CleanStep::Read { offset, length } => {
                let mut bytes = vec![0; length];
                let read = self.image.read_at(offset, &mut bytes);
                let fault = self.fault.as_ref();
                let result = read.and_then(|()| fault.map_or(Ok(()), |fault| fault(offset, &mut bytes)));
                self.engine.clean_read(bytes, result);
                true
            }
        }
    }

    /// Runs a job on tables, if there is one, beside the writes that are under way. `look` sees the rig and the image after each write
    /// of the job, less some of those that were not flushed.
    pub fn job(&mut self, mut look: Option<Look<'_>>) -> bool {
        let Some(mut job) = self.engine.take_job() else {
            return false;
        };
        let mut recorded = Recorded {
            image: self.image.clone(),
            writes: Vec::new(),
            fault: self.fault.clone(),
        };
        let result = job.run(&mut recorded);
        let may_fail = self.has_damage || self.fault.is_some();
        assert!(may_fail || result.is_ok(), "{result:?}");
        let mut rng = self.rng.fork();
        let (mut flushed, mut unflushed) = (Vec::new(), Vec::new());
        if look.is_some() {
            flushed.clone_from(&self.image);
        }
        for write in recorded.writes {
            match write {
                None => unflushed.drain(..).for_each(|(offset, bytes): (u64, Vec<u8>)| {
                    if look.is_some() {
                        flushed.write_at(offset, &bytes).unwrap();
                    }
                }),
                Some(write) => unflushed.push(write),
            }
            let Some(look) = &mut look else { continue };
            let mut image = flushed.clone();
            let share = [0.0, 0.5, 1.0][rng.below(3) as usize];
            for (offset, bytes) in &unflushed {
                for (index, part) in bytes.chunks(64).enumerate() {
                    if rng.chance(share) {
                        image.write_at(offset + (index * 64) as u64, part).unwrap();
                    }
                }
            }
            look(self, image);
        }
        assert!(result.is_err() || unflushed.is_empty(), "a job ends with a flush");
        self.image = recorded.image;
        self.engine.end_job(job, result);
        self.jobs += 1;
        self.catch_up();
        true
    }

    /// Everything that was submitted becomes durable.
    pub fn settle(&mut self) {
        self.engine.want(self.engine.newest());
        for _ in 0..10_000 {
            self.clean();
            self.job(None);
            self.issue();
            if !self.complete_one() && self.engine.durable() == self.engine.newest() {
                self.catch_up();
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// A random step of a busy run.
    pub fn step(&mut self) {
        match self.rng.below(10) {
            0..=4 => self.random_batch(),
            5..=6 => self.issue(),
            7..=8 => drop(self.complete_one()),
            _ => drop(self.clean()),
        }
    }

    /// Every state that recovery may return: after the durable records, and after each one more.
    pub fn admissible(&self) -> Vec<State> {
        let mut state = self.base.clone();
        let mut all = vec![state.clone()];
        let mut index = 0;
        while index < self.log.len() {
            let ticket = self.log[index].0;
            while index < self.log.len() && self.log[index].0 == ticket {
                apply(&mut state, &self.log[index].1);
                index += 1;
            }
            all.push(state.clone());
        }
        all
    }

    /// Opens `image` and checks what is there.
    pub fn probe(&self, mut image: Vec<u8>) -> (Engine, Vec<u8>) {
        let opened = Engine::open(&mut image, self.options);
        let (engine, report) = opened.unwrap_or_else(|error| panic!("a cut was taken for damage: {error}"));
        self.resumed
            .set(self.resumed.get() + u64::from(report.checkpoint > 0));
        let found = contents(&engine, &image);
        let admissible = self.admissible();
        assert!(
            admissible.contains(&found),
            "{found:?}\nis none of {} states, first\n{:?}",
            admissible.len(),
            admissible[0]
        );
        (engine, image)
    }

    /// Goes on with what is found in `image`, which a crash left.
    pub fn restart(&mut self, image: Vec<u8>) {
        let (engine, image) = self.probe(image);
        self.base = contents(&engine, &image);
        self.engine = engine;
        self.image = image;
        self.flying.clear();
        self.log.clear();
        self.history.clear();
        self.popped.clear();
    }

    /// The image with each sector of the writes under way there or not, as `keep` says.
    pub fn cut(&self, keep: impl FnMut() -> bool) -> Vec<u8> {
        self.cut_of(self.image.clone(), keep)
    }

    /// The same of an image that has something more.
    pub fn cut_of(&self, mut image: Vec<u8>, mut keep: impl FnMut() -> bool) -> Vec<u8> {
        let sector = self.engine.layout().sector_bytes as usize;
        for flying in &self.flying {
            for (index, part) in flying.bytes.chunks(sector).enumerate() {
                if keep() {
                    image
                        .write_at(flying.offset + (index * sector) as u64, part)
                        .unwrap();
                }
            }
        }
        image
    }

    /// A cut drawn from the seed; all, nothing and single sectors are frequent.
    pub fn random_cut(&mut self) -> Vec<u8> {
        let share = [0.0, 0.1, 0.5, 0.9, 1.0][self.rng.below(5) as usize];
        let mut rng = self.rng.fork();
        self.cut(|| rng.chance(share))
    }

    /// Sectors under way.
    pub fn flying_sectors(&self) -> usize {
        let bytes: usize = self.flying.iter().map(|it| it.bytes.len()).sum();
        bytes / self.engine.layout().sector_bytes as usize
    }

    pub fn open(&self, mut image: Vec<u8>) -> Result<State, OpenError> {
        let (engine, _) = Engine::open(&mut image, self.options)?;
        Ok(contents(&engine, &image))
    }
}

pub fn borrow(op: &Owned) -> Op<'_> {
    match op {
        Owned::Append(log, _, data) => Op::Append { log: *log, data },
        Owned::Trim(log, floor) => Op::Trim {
            log: *log,
            floor: *floor,
        },
        Owned::Push(queue, _, data) => Op::Push { queue: *queue, data },
        Owned::Acknowledge(queue, position) => Op::Acknowledge {
            queue: *queue,
            position: *position,
        },
        Owned::Put(map, key, data) => Op::Put { map: *map, key, data },
        Owned::Remove(map, key) => Op::Remove { map: *map, key },
        Owned::Create(..) | Owned::Drop(_) => panic!("these are no operations of batches"),
    }
}

/// Slots that the log does not use: where they begin in the area.
pub fn slots_beside_the_log(rig: &Rig) -> Vec<usize> {
    let segment = rig.engine.layout().segment_bytes as usize;
    let ranges = rig.engine.log_ranges();
    let logs: Vec<usize> = ranges.iter().map(|&(at, _)| at as usize).collect();
    let slots = (8192..rig.image.len()).step_by(segment);
    slots.filter(|at| !logs.contains(at)).collect()
}
