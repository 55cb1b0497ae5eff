//! A tree on devices that record writes, beside a model of what it should hold.
#![allow(
    dead_code,
    reason = "shared by several test programs, each of which uses a part"
)]

use base::{MediaError, Rng};
use fs::check::{Report, check};
use fs::client::Budget;
use fs::edit::Room;
use fs::format::{BLOCK_BYTES, Block, Key, Kind, Place, Tier};
use fs::inode::Time;
use fs::make::Make;
use fs::media::{Error, Media, Volume};
use fs::tree::{Tree, View};
use fs::value::ExtentRecord;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Bytes of a sector: a cut leaves each old or new.
pub const SECTOR: usize = 512;

/// What happened to the devices.
#[derive(Clone)]
pub enum Event {
    Write(Place, Box<Block>),
    Flush,
    /// A commit was acknowledged: its generation.
    Done(u64),
}

/// Devices that keep the blocks that were written, and note what happens.
#[derive(Clone, Default)]
pub struct Disks {
    pub blocks: Vec<u64>,
    pub data: BTreeMap<Place, Box<Block>>,
    pub events: Vec<Event>,
    pub records: bool,
    /// Writes and flushes until one fails.
    pub fails_in: Option<u64>,
    /// A block that cannot be read.
    pub unread: Option<Place>,
}

impl Disks {
    pub fn new(blocks: &[u64]) -> Self {
        Self {
            blocks: blocks.to_vec(),
            ..Self::default()
        }
    }

    /// Puts some sectors of a block there.
    pub fn put(&mut self, place: Place, block: &Block, mut is_new: impl FnMut(usize) -> bool) {
        let old = self
            .data
            .entry(place)
            .or_insert_with(|| Box::new([0; BLOCK_BYTES]));
        for (index, (old, new)) in old.chunks_mut(SECTOR).zip(block.chunks(SECTOR)).enumerate() {
            if is_new(index) {
                old.copy_from_slice(new);
            }
        }
    }

    fn step(&mut self) -> Result<(), MediaError> {
        match &mut self.fails_in {
            Some(0) => Err(MediaError::Io),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Media for Disks {
    fn devices(&self) -> usize {
        self.blocks.len()
    }

    fn capacity_bytes(&self, device: u8) -> u64 {
        self.blocks[usize::from(device)] * BLOCK_BYTES as u64
    }

    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), MediaError> {
        let blocks = self.blocks.get(usize::from(place.device()));
        for (index, piece) in (0..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
            let place = place.plus(index);
            if blocks.is_none_or(|blocks| place.number() >= *blocks) {
                return Err(MediaError::OutOfRange);
            }
            if self.unread == Some(place) {
                return Err(MediaError::Io);
            }
            match self.data.get(&place) {
                Some(block) => piece.copy_from_slice(&block[..]),
                None => piece.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), MediaError> {
        self.step()?;
        assert!(
            place.number() < self.blocks[usize::from(place.device())],
            "{place} is outside"
        );
        for (bytes, at) in bytes.chunks(BLOCK_BYTES).zip(0..) {
            let block: Box<Block> = Box::new(bytes.try_into().expect("whole blocks"));
            if self.records {
                self.events.push(Event::Write(place.plus(at), block.clone()));
            }
            self.data.insert(place.plus(at), block);
        }
        Ok(())
    }

    fn flush(&mut self, device: u8) -> Result<(), MediaError> {
        self.step()?;
        if self.records && usize::from(device) + 1 == self.blocks.len() {
            self.events.push(Event::Flush);
        }
        Ok(())
    }
}

pub type Model = BTreeMap<Key, Vec<u8>>;

pub fn make(blocks: &[u64]) -> (Disks, Volume) {
    let mut disks = Disks::new(blocks);
    let tier = |device: usize| [Tier::Memory, Tier::Flash, Tier::Disk][device.min(2)];
    let make = Make {
        uuid: Uuid::from_u128(0x1234_5678_9abc_def0_1122_3344_5566_7788),
        devices: (0..blocks.len())
            .map(|device| (tier(device), Uuid::from_u128(device as u128 + 1)))
            .collect(),
        time: Time { seconds: 1, ns: 2 },
        owner: (0, 0),
    };
    let volume = make.make(&mut disks).expect("the devices are large enough");
    (disks, volume)
}

/// All entries of a view, those of zones aside.
pub fn contents(tree: &mut Tree, media: &dyn Media, view: View) -> Result<Model, Error> {
    let (first, last) = (
        Key::new(0, Kind::Zone, 0),
        Key::new(u64::MAX, Kind::Extent, u64::MAX),
    );
    let mut entries = tree.range(view, first..=last);
    let mut model = Model::new();
    while let Some((key, value)) = entries.next(tree, media)? {
        if key.kind != Kind::Zone {
            model.insert(key, value.to_vec());
        }
    }
    Ok(model)
}

pub fn assert_clean(report: &Report) {
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{found:#?}");
}

pub struct Rig {
    pub disks: Disks,
    pub volume: Volume,
    pub tree: Tree,
    pub model: Model,
    /// What each committed root has.
    pub roots: BTreeMap<u64, Model>,
    pub rng: Rng,
    pub cache_bytes: usize,
    /// Inodes that keys are of.
    pub inodes: u64,
    /// Bytes of values, at most.
    pub value_bytes: u64,
    next_block: u64,
}

impl Rig {
    pub fn new(blocks: &[u64], seed: u64) -> Self {
        let (mut disks, volume) = make(blocks);
        disks.records = true;
        let cache_bytes = [0, 20_000, 1 << 20][seed as usize % 3];
        let mut tree = Tree::open(&disks, &volume, cache_bytes).expect("it was just made");
        let model = contents(&mut tree, &disks, View::Pending).expect("it was just made");
        let roots = BTreeMap::from([(1, model.clone()), (2, model.clone())]);
        Self {
            disks,
            volume,
            tree,
            model,
            roots,
            rng: Rng::new(seed),
            cache_bytes,
            inodes: 6,
            value_bytes: 1024,
            next_block: 0,
        }
    }

    pub fn key(&mut self) -> Key {
        let kind = [Kind::Entry, Kind::Target, Kind::Attribute][self.rng.below(3) as usize];
        Key::new(
            self.rng.between(2, 1 + self.inodes),
            kind,
            self.rng.below(40) << 8,
        )
    }

    fn value(&mut self) -> Vec<u8> {
        let most = [20, 60, self.value_bytes][self.rng.below(3) as usize];
        let length = self.rng.below(most.min(self.value_bytes) + 1) as usize;
        vec![self.rng.next_u64() as u8; length]
    }

    /// A random change. False if there was no room for it, and it did nothing.
    pub fn change(&mut self) -> bool {
        let result = match self.rng.below(20) {
            0..=9 => self.insert(),
            10..=13 => self.remove(),
            14 => self.remove_range(),
            15..=17 => self.add_extent(),
            _ => self.remove_extent(),
        };
        match result {
            Ok(()) => true,
            Err(Error::Full(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn insert(&mut self) -> Result<(), Error> {
        let (key, value) = (self.key(), self.value());
        self.tree.insert(&self.disks, key, &value, Room::Normal)?;
        self.model.insert(key, value);
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Error> {
        let key = match self.rng.chance(0.7) {
            true => self.any(|key| key.kind != Kind::Extent && key.inode > 1),
            false => None,
        };
        let key = key.unwrap_or_else(|| self.key());
        let removed = self.tree.remove(&self.disks, key)?;
        assert_eq!(removed, self.model.remove(&key).is_some(), "{key:?}");
        Ok(())
    }

    fn remove_range(&mut self) -> Result<(), Error> {
        let first = self.key();
        let last = Key::new(first.inode, first.kind, first.number + (self.rng.below(30) << 8));
        let result = self.tree.remove_range(&self.disks, first..=last);
        if let Err(Error::Full(_)) = result {
            // A part of them is removed, from the first one on.
            while let Some(key) = self.model.range(first..=last).next().map(|(key, _)| *key) {
                if self.tree.get(&self.disks, View::Pending, key)?.is_some() {
                    break;
                }
                self.model.remove(&key);
            }
        }
        let removed = result?;
        let keys: Vec<_> = self.model.range(first..=last).map(|(key, _)| *key).collect();
        assert_eq!(removed, keys.len() as u64);
        for key in keys {
            self.model.remove(&key);
        }
        Ok(())
    }

    pub fn add_extent(&mut self) -> Result<(), Error> {
        let device = self.rng.below(self.disks.blocks.len() as u64) as u8;
        let want = self.rng.between(1, 20);
        let run = self.tree.reserve(&self.disks, device, want, None)?;
        if self.rng.chance(0.1) {
            return self.tree.give_back(&self.disks, run);
        }
        let key = Key::new(self.rng.between(2, 5), Kind::Extent, self.next_block);
        self.next_block += 128;
        let value = ExtentRecord {
            run,
            crcs: Vec::new(),
        }
        .emit();
        if let Err(error) = self.tree.insert(&self.disks, key, &value, Room::Normal) {
            self.tree.give_back(&self.disks, run)?;
            return Err(error);
        }
        self.tree.keep(&self.disks, run)?;
        self.model.insert(key, value);
        Ok(())
    }

    pub fn remove_extent(&mut self) -> Result<(), Error> {
        let Some(key) = self.any(|key| key.kind == Kind::Extent) else {
            return Ok(());
        };
        assert!(self.tree.remove(&self.disks, key)?);
        let value = self.model.remove(&key).expect("it was found");
        let extent = ExtentRecord::parse(&value).expect("it was emitted");
        self.tree.release(&self.disks, extent.run)
    }

    pub fn any(&mut self, fits: impl Fn(&Key) -> bool) -> Option<Key> {
        let keys: Vec<_> = self.model.keys().filter(|key| fits(key)).copied().collect();
        (!keys.is_empty()).then(|| keys[self.rng.below(keys.len() as u64) as usize])
    }

    pub fn commit(&mut self) {
        self.roots.insert(self.tree.generation(), self.model.clone());
        self.tree
            .commit(&mut self.disks)
            .expect("there is always room for a commit");
        self.disks
            .events
            .push(Event::Done(self.tree.committed().generation));
    }

    /// Opens what is on the devices: the changes since the last commit are gone.
    pub fn reopen(&mut self) {
        self.tree = Tree::open(&self.disks, &self.volume, self.cache_bytes).expect("it is whole");
        let newest = self.tree.committed().generation;
        self.model = self.roots[&newest].clone();
        self.roots.retain(|generation, _| *generation <= newest);
        self.roots.insert(newest + 1, self.model.clone());
    }

    pub fn verify(&mut self) {
        let found = contents(&mut self.tree, &self.disks, View::Pending).expect("it is whole");
        assert_eq!(found, self.model);
        let root = *self.tree.committed();
        let found = contents(&mut self.tree, &self.disks, View::Root(root)).expect("it is whole");
        assert_eq!(found, self.roots[&root.generation]);
    }

    pub fn check(&self) {
        assert_clean(&check(&self.disks));
    }

    /// The same after a commit: the tree knows how many nodes it has.
    pub fn check_committed(&self) {
        let report = check(&self.disks);
        assert_clean(&report);
        let nodes = Budget::of(&self.tree, &[0]).nodes;
        assert!(nodes >= report.nodes, "{nodes} of {}", report.nodes);
    }
}

/// The states of the devices if they are cut at each of these events: what was not flushed is there in part.
pub fn cuts(begin: &Disks, events: &[Event], rng: &mut Rng) -> Vec<Disks> {
    let mut images = Vec::new();
    for cut in 0..=events.len() {
        let flushed = events[..cut]
            .iter()
            .rposition(|event| matches!(event, Event::Flush))
            .map_or(0, |at| at + 1);
        let mut disks = begin.clone();
        for (index, event) in events[..cut].iter().enumerate() {
            if let Event::Write(place, block) = event {
                let chosen = if index < flushed { u64::MAX } else { rng.next_u64() };
                disks.put(*place, block, |sector| chosen >> sector & 1 == 1);
            }
        }
        images.push(disks);
    }
    images
}
