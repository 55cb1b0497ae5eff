//! Files of programs over a model of a file system that loses what was not synced: after a crash, at any point, every byte that
//! was synced is there, and none is there that was never written. Part of every seed of the swarm.
//!
//! The very [`store::files::Files`] and [`store::Engine`] that ship run here. The checker keeps the content of each file at each moment.

use base::{Device, Rng};
use std::collections::{BTreeMap, BTreeSet};
use store::files::{
    Change, Claim, Description, Evidence, FILES_NAME, Fate, FileId, FileLimits, Files, Identity, Malformed,
    Present, Round, Settled, SyncBy, WRITES_NAME, replay,
};
use store::{
    CleanStep, Durability, Engine, Fetch, Kind, Layout, Op, Options, StructureId, SubmitError, Uncached,
};

/// Steps of a seed's run.
const STEPS: u32 = 200;
/// How many of them a crash follows, each in copies of the media.
const CRASHES: f64 = 0.2;

/// Result of a seed's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesReport {
    /// The seed.
    pub seed: u64,
    /// The first broken promise.
    pub violation: Option<String>,
    /// Hash of all that the files held.
    pub hash: u64,
    /// Syncs by the log, syncs that settle a file, and checkpoints.
    pub syncs: [u64; 3],
}

/// Options that the seed does not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesOptions {
    /// Syncs of the area do nothing: the canary, which must be found.
    pub loses_syncs: bool,
}

/// Runs `seed`.
pub fn run(seed: u64, options: FilesOptions) -> FilesReport {
    let mut world = World::new(seed, options);
    for _ in 0..STEPS {
        world.step();
        if world.rng.chance(CRASHES) {
            world.crash();
        }
        if world.violation.is_some() {
            break;
        }
    }
    FilesReport {
        seed,
        violation: world.violation,
        hash: world.hash,
        syncs: world.syncs,
    }
}

/// Small sizes, so that a run meets every case often.
fn layout(block_sectors: u32) -> Layout {
    Layout {
        sector_bytes: 64,
        block_bytes: 64 * block_sectors,
        segment_bytes: 2048,
        segments: 24,
        atomic_bytes: 64,
        record_bytes_max: 512,
    }
}

/// The bytes of an entry.
fn value(fetch: Fetch, image: &dyn Device) -> Vec<u8> {
    match fetch {
        Fetch::Ready(bytes) => bytes.to_vec(),
        Fetch::Read(found) => {
            let mut bytes = vec![0; found.length()];
            image.read_at(found.offset(), &mut bytes).expect("it is intact");
            found.extract(&bytes).expect("it is intact")
        }
        Fetch::Search(_) => unreachable!("the area is too small for tables"),
        Fetch::Lost => panic!("nothing was repaired"),
    }
}

const PAGE_BYTES: usize = 8;
const PATHS: [&[u8]; 3] = [b"/d/a", b"/d/b", b"/d/c"];

/// An inode: what programs see, and what the medium has.
#[derive(Clone, Default)]
struct Inode {
    seen: Vec<u8>,
    kept: Vec<u8>,
}

/// The content of a file at each moment; `None`: there was none.
type History = Vec<Option<Vec<u8>>>;

struct World {
    rng: Rng,
    engine: Engine,
    image: Vec<u8>,
    flying: Vec<(store::Write, u64, Vec<u8>)>,
    map: StructureId,
    log: StructureId,
    files: Files,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<&'static [u8], u64>,
    names_kept: BTreeMap<&'static [u8], u64>,
    open: BTreeMap<&'static [u8], FileId>,
    inode_of: BTreeMap<FileId, u64>,
    round: Option<(Round, u64)>,
    history: BTreeMap<&'static [u8], History>,
    /// Moments before this one may not come back.
    since: BTreeMap<&'static [u8], usize>,
    born: u64,
    syncs: [u64; 3],
    options: FilesOptions,
    violation: Option<String>,
    hash: u64,
}

fn options() -> Options {
    Options {
        writes_in_flight_max: 2,
        ..Options::default()
    }
}

impl World {
    fn new(seed: u64, own: FilesOptions) -> Self {
        let layout = layout(1 + seed as u32 % 2);
        let mut image = vec![0; layout.capacity_bytes() as usize];
        store::create(&mut image, layout, [7; 16]).expect("it fits");
        let (mut engine, _) = Engine::open(&mut image, options()).expect("just made");
        let (map, _) = engine
            .create(FILES_NAME, Kind::Map, Durability::Lazy)
            .expect("room");
        let (log, _) = engine
            .create(WRITES_NAME, Kind::Log, Durability::Lazy)
            .expect("room");
        let limits = FileLimits {
            unsynced_bytes_max: 120,
            checkpoint_bytes: 1500,
        };
        let mut world = Self {
            rng: Rng::new(seed),
            engine,
            image,
            flying: Vec::new(),
            map,
            log,
            files: Files::new(limits, FileId(1)),
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            names_kept: BTreeMap::new(),
            open: BTreeMap::new(),
            inode_of: BTreeMap::new(),
            round: None,
            history: PATHS.iter().map(|&path| (path, vec![None])).collect(),
            since: PATHS.iter().map(|&path| (path, 0)).collect(),
            born: 0,
            syncs: [0; 3],
            options: FilesOptions { loses_syncs: false },
            violation: None,
            hash: 0,
        };
        world.sync_area();
        world.options = own;
        world
    }

    fn issue(&mut self) {
        while let Some(write) = self.engine.next_write() {
            let (offset, bytes) = (write.offset(), write.bytes().to_vec());
            self.flying.push((write, offset, bytes));
        }
    }

    fn complete(&mut self) {
        let index = self.rng.below(self.flying.len() as u64) as usize;
        let (write, offset, bytes) = self.flying.swap_remove(index);
        self.image.write_at(offset, &bytes).expect("inside");
        self.engine.written(write, Ok(()));
    }

    fn clean(&mut self) {
        if let CleanStep::Read { offset, length } = self.engine.clean_step() {
            let mut bytes = vec![0; length];
            let result = self.image.read_at(offset, &mut bytes);
            self.engine.clean_read(bytes, result);
        }
    }

    fn sync_area(&mut self) {
        if self.options.loses_syncs {
            return;
        }
        let newest = self.engine.newest();
        self.engine.want(newest);
        while self.engine.durable() < newest {
            self.clean();
            self.issue();
            self.complete();
        }
    }

    /// Logs, waiting while the engine is busy; false if it refuses.
    fn enter(&mut self, ops: &[Op<'_>]) -> bool {
        loop {
            match self.engine.submit(ops) {
                Ok(_) => return true,
                Err(SubmitError::Busy) => {
                    self.clean();
                    self.issue();
                    if !self.flying.is_empty() {
                        self.complete();
                    }
                }
                Err(_) => return false,
            }
        }
    }

    fn note(&mut self, path: &'static [u8]) {
        let seen = self.names.get(path).map(|inode| self.inodes[inode].seen.clone());
        for &byte in seen.iter().flatten() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        self.history.get_mut(path).expect("all are there").push(seen);
    }

    fn log_change(&mut self, id: FileId, change: Option<(Option<Vec<u8>>, Change)>, data: &[u8]) {
        let Some((description, change)) = change else {
            return;
        };
        let key = self.files.number(id).key();
        let (map, log, header) = (self.map, self.log, change.emit());
        let mut ops = Vec::new();
        if let Some(data) = &description {
            ops.push(Op::Put { map, key: &key, data });
        }
        ops.push(Op::Append { log, data: &header });
        if change.pieces.is_some() {
            ops.push(Op::Append { log, data });
        }
        let bytes: usize = ops.iter().map(Op::bytes).sum();
        if bytes <= self.engine.batch_bytes_max() && self.enter(&ops) {
            self.files.logged(id, bytes as u64);
        } else {
            self.files.missed(id);
        }
    }

    fn open(&mut self, path: &'static [u8]) {
        if !self.names.contains_key(path) {
            self.born += 1;
            // The number of an inode is used again, as file systems do.
            let taken: BTreeSet<u64> = self
                .names
                .values()
                .chain(self.inode_of.values())
                .map(|it| it % 4)
                .collect();
            let number = (0..4).find(|it| !taken.contains(it)).unwrap_or(3);
            let inode = self.born * 4 + number;
            self.inodes.insert(inode, Inode::default());
            self.names.insert(path, inode);
        }
        let inode = self.names[path];
        let description = Description {
            path: path.to_vec(),
            identity: identity(inode, 1),
            ..Description::default()
        };
        let (id, _) = self
            .files
            .open(description, self.inodes[&inode].seen.len() as u64);
        self.open.insert(path, id);
        self.inode_of.insert(id, inode);
        self.note(path);
    }

    fn write(&mut self, path: &'static [u8]) {
        let id = self.open[path];
        let length = 1 + self.rng.below(40) as usize;
        let fill = 1 + self.rng.below(255) as u8;
        let data: Vec<u8> = (0..length).map(|index| fill ^ (index as u8) | 1).collect();
        let seen = &mut self.inodes.get_mut(&self.inode_of[&id]).expect("open").seen;
        let offset = if self.rng.chance(0.6) {
            seen.len()
        } else {
            self.rng.below(seen.len() as u64 + 1) as usize
        };
        seen.resize(seen.len().max(offset + length), 0);
        seen[offset..offset + length].copy_from_slice(&data);
        let change = self.files.write(id, offset as u64, length as u64, 1);
        self.log_change(id, change, &data);
        self.note(path);
    }

    fn resize(&mut self, path: &'static [u8]) {
        let id = self.open[path];
        let seen = &mut self.inodes.get_mut(&self.inode_of[&id]).expect("open").seen;
        let size = self.rng.below(seen.len() as u64 + 10);
        seen.resize(size as usize, 0);
        let change = self.files.resize(id, size);
        self.log_change(id, change, &[]);
        self.note(path);
    }

    fn sync(&mut self, path: &'static [u8]) {
        let id = self.open[path];
        let change = self.files.announce(id);
        self.log_change(id, change, &[]);
        match self.files.sync(id, self.rng.chance(0.5)) {
            SyncBy::Log => {
                self.sync_area();
                self.syncs[0] += 1;
            }
            SyncBy::Settle => {
                self.settle(id);
                self.syncs[1] += 1;
            }
            SyncBy::FileSystem => panic!("removed files are closed at once here"),
        }
        let last = self.history[path].len() - 1;
        self.since.insert(path, last);
    }

    /// The file is the file system's, as far as it goes: with a checkpoint under way, or none.
    fn settle(&mut self, id: FileId) {
        let Some(with_directory) = self.files.unsettled(id) else {
            return;
        };
        self.keep(id, with_directory);
        if let Some(number) = self.files.settle(id, 1) {
            let (map, key) = (self.map, number.key());
            assert!(self.enter(&[Op::Remove { map, key: &key }]), "a removal has room");
            self.sync_area();
        }
    }

    fn keep(&mut self, id: FileId, with_directory: bool) {
        let inode = self.inodes.get_mut(&self.inode_of[&id]).expect("kept");
        inode.kept = inode.seen.clone();
        if with_directory {
            self.names_kept = self.names.clone();
        }
    }

    fn remove(&mut self, path: &'static [u8]) {
        let id = self.open.remove(path).expect("open");
        let before = self.history[path].len() - 1;
        if let Some(data) = self.files.remove(id) {
            let key = self.files.number(id).key();
            let put = Op::Put {
                map: self.map,
                key: &key,
                data: &data,
            };
            if !self.enter(&[put]) {
                self.files.restore(id);
                self.open.insert(path, id);
                return;
            }
            self.sync_area();
        }
        self.names.remove(path);
        self.files.close(id);
        self.note(path);
        // Neither is promised: the file as it was, nor that it is gone.
        let since = self.since.get_mut(path).expect("all are there");
        *since = (*since).min(before);
    }

    fn begin_checkpoint(&mut self) {
        let end = self.engine.positions(self.log).expect("it is there").end;
        self.round = Some((self.files.begin_checkpoint(), end));
    }

    fn end_checkpoint(&mut self) {
        let Some((round, end)) = self.round.take() else {
            return;
        };
        for &(id, with_directory) in &round.files {
            self.keep(id, with_directory);
        }
        let settled = self.files.end_checkpoint(&round, &BTreeMap::new());
        let (map, log) = (self.map, self.log);
        let keyed = settled.into_iter().map(|it| match it {
            Settled::Put(id, data) => (id.key(), Some(data)),
            Settled::Forget(id) => (id.key(), None),
        });
        let keyed: Vec<_> = keyed.collect();
        let mut ops: Vec<_> = keyed
            .iter()
            .map(|(key, data)| match data {
                Some(data) => Op::Put { map, key, data },
                None => Op::Remove { map, key },
            })
            .collect();
        ops.push(Op::Trim { log, floor: end });
        assert!(self.enter(&ops), "the area has room for descriptions");
        self.sync_area();
        self.syncs[2] += 1;
    }

    /// Write-back by the kernel: pages of any file, or all names.
    fn write_back(&mut self) {
        if self.rng.chance(0.3) {
            self.names_kept = self.names.clone();
        }
        let all: Vec<u64> = self.inodes.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let inode = self
            .inodes
            .get_mut(&all[self.rng.below(all.len() as u64) as usize])
            .expect("chosen");
        let pages = inode.seen.len().div_ceil(PAGE_BYTES);
        inode.kept.truncate(inode.seen.len());
        if pages > 0 {
            let start = self.rng.below(pages as u64) as usize * PAGE_BYTES;
            let end = (start + PAGE_BYTES).min(inode.seen.len());
            inode.kept.resize(inode.kept.len().max(end), 0);
            inode.kept[start..end].copy_from_slice(&inode.seen[start..end]);
        }
    }

    fn step(&mut self) {
        let path = PATHS[self.rng.below(3) as usize];
        if !self.open.contains_key(path) {
            return self.open(path);
        }
        match self.rng.below(40) {
            0..=17 => self.write(path),
            18..=19 => self.resize(path),
            20..=27 => self.sync(path),
            28 => self.remove(path),
            29 => self.settle(self.open[path]),
            30..=31 => {
                let id = self.open.remove(path).expect("open");
                self.files.close(id);
            }
            32..=36 => self.write_back(),
            37 => self.clean(),
            38 if self.round.is_none() => self.begin_checkpoint(),
            _ => self.end_checkpoint(),
        }
    }

    /// The machine stops: what is on the media afterwards is recovered and judged.
    fn crash(&mut self) {
        let sector = self.engine.layout().sector_bytes as usize;
        self.issue();
        for _ in 0..4 {
            let share = [0.0, 0.5, 0.9, 1.0][self.rng.below(4) as usize];
            let mut image = self.image.clone();
            for (_, offset, bytes) in &self.flying {
                for (index, part) in bytes.chunks(sector).enumerate() {
                    if self.rng.chance(share) {
                        image
                            .write_at(offset + (index * sector) as u64, part)
                            .expect("inside");
                    }
                }
            }
            let wrong = match self.recover(image) {
                Ok(found) => PATHS.iter().find_map(|path| self.judge(path, found.get(*path))),
                Err(refusal) => Some(refusal),
            };
            self.violation = self.violation.take().or(wrong);
        }
    }

    fn recover(&self, mut image: Vec<u8>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        let (engine, _) = Engine::open(&mut image, options()).expect("a cut is recovered");
        let kept = self.names_kept.iter();
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = kept
            .map(|(path, inode)| (path.to_vec(), self.inodes[inode].kept.clone()))
            .collect();
        let (map, _) = engine.lookup(FILES_NAME).expect("made durably");
        let mut paths = BTreeMap::new();
        let part = engine.keys(map);
        let listed = part.merge(&mut Uncached(&image)).expect("all of it is in memory");
        let keys = listed.iter().map(|(key, _)| key);
        let mut all: Vec<_> = keys.map(|key| FileId::parse(key).expect("a key")).collect();
        all.sort();
        for id in all {
            let data = value(engine.get(map, &id.key()).expect("its key"), &image);
            let description = Description::parse(&data).expect("a description");
            let path = description.path.clone();
            let inode = self.names_kept.get(&path[..]);
            let present = inode.map_or(Present::Nothing, |&inode| Present::File(identity(inode, 2)));
            let evidence = Evidence {
                present,
                cache: Some(2),
                is_mounted: true,
                changed_ns: 1,
                directory_changed_ns: 1,
            };
            match description.fate(&evidence, Claim { until_ns: 1 }) {
                Fate::Gone => {}
                Fate::Remove => drop(found.remove(&path)),
                Fate::Replay => drop(paths.insert(id, path)),
                Fate::Rewrite => {
                    found.insert(path.clone(), Vec::new());
                    paths.insert(id, path);
                }
                other => return Err(format!("{other:?} of {description:?}, {present:?}")),
            }
        }
        let (log, _) = engine.lookup(WRITES_NAME).expect("made durably");
        let read = |position| Ok(engine.read(log, position).map(|fetch| value(fetch, &image)));
        let done: Result<(), Malformed> = replay(
            engine.positions(log).expect("there"),
            read,
            |id, offset, data, size| {
                if let Some(path) = paths.get(&id) {
                    let content = found.get_mut(path).expect("to be replayed");
                    let end = offset as usize + data.len();
                    content.resize(content.len().max(end), 0);
                    content[offset as usize..end].copy_from_slice(data);
                    content.resize(size as usize, 0);
                }
                Ok(())
            },
        );
        done.map_err(|error| error.to_string())?;
        Ok(found)
    }

    /// Every byte, and the size, is one of those that the file had since it was last synced; else what is wrong.
    fn judge(&self, path: &'static [u8], found: Option<&Vec<u8>>) -> Option<String> {
        let moments = &self.history[path][self.since[path]..];
        let name = String::from_utf8_lossy(path);
        let empty = Vec::new();
        let content = found.unwrap_or(&empty);
        let is_gone = |it: &Option<Vec<u8>>| it.as_ref().is_none_or(Vec::is_empty);
        if content.is_empty() {
            let is_permitted = moments.iter().any(is_gone);
            return (!is_permitted).then(|| format!("{name}: what was synced is gone"));
        }
        // A removed file that comes back is as it was, or as the medium happens to have it, if it was never synced.
        let known: Vec<&Vec<u8>> = moments.iter().flatten().collect();
        for (at, byte) in content.iter().enumerate() {
            let was = known.iter().any(|it| it.get(at) == Some(byte));
            let is_hole = *byte == 0
                && moments
                    .iter()
                    .any(|it| it.as_ref().is_none_or(|it| it.len() <= at));
            if !(was || is_hole) {
                return Some(format!("{name}: byte {at} of {} is {byte}", content.len()));
            }
        }
        let synced = moments[0].as_ref().map_or(0, Vec::len);
        let shortest = moments.iter().map(|it| it.as_ref().map_or(0, Vec::len)).min();
        let is_short = content.len() < synced.min(shortest.unwrap_or(0));
        is_short.then(|| format!("{name}: it is shorter than what was synced"))
    }
}

/// The low part of the number is the inode, the high one the birth.
fn identity(inode: u64, cache: u64) -> Identity {
    Identity {
        inode: inode % 4,
        born_ns: 1 + inode / 4,
        cache,
        device: 1,
    }
}
