//! Data that move between tiers through the engine: what moves, that content stays, and that no cut loses any of it.

use crate::cut_tests::{Power, call, write_all};
use crate::engine::{Engine, Mode, Options, Write, make};
use crate::media::Disks;
use base::Rng;
use fs::check::{Depth, check_to};
use fs::client::{Caller, Where};
use fs::format::{BLOCK_BYTES, Key, Kind, Place, ROOT_INODE, Tier};
use fs::inode::Time;
use fs::make::Make;
use fs::media::{Media, Volume};
use fs::tier::Options as TierOptions;
use fs::tree::{Tree, View};
use fs::value::ExtentRecord;
use os::sync::{Arc, Mutex, PoisonError};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Bytes of a unit.
const UNIT: usize = 4 << 20;

/// Images of devices with an empty file system.
fn empty(devices: &[(Tier, usize)]) -> Vec<Vec<u8>> {
    let images = devices
        .iter()
        .map(|(_, blocks)| vec![0; blocks * BLOCK_BYTES])
        .collect();
    let disks = Disks::volatile(images, true, &Arc::default());
    let devices = devices
        .iter()
        .map(|(tier, _)| (*tier, Uuid::from_u64_pair(1, *tier as u64)));
    let new = Make {
        uuid: Uuid::from_u64_pair(1, 2),
        devices: devices.collect(),
        time: Time::default(),
        owner: (0, 0),
    };
    make(&disks, &new).expect("there is room");
    disks.cut_all(|device| device.cut(&mut Rng::new(1)))
}

struct Rig {
    engine: Engine,
    disks: Disks,
    power: Arc<Power>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    fn open(images: Vec<Vec<u8>>) -> Self {
        let (power, told) = (Arc::default(), Arc::default());
        let disks = Disks::volatile(images, true, &power);
        let hears: Arc<Mutex<Vec<String>>> = Arc::clone(&told);
        let options = Options {
            mode: Some(Mode::Sync),
            log_bytes: Some(1 << 20),
            migrates_every: None,
            tell: Arc::new(move |text| {
                hears
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(text.into())
            }),
            ..Options::default()
        };
        let (engine, recovery) = Engine::open(disks.clone(), &options).expect("it is whole");
        assert_eq!((recovery.refused, recovery.damaged), (0, vec![]));
        Self {
            engine,
            disks,
            power,
            told,
        }
    }

    fn new(devices: &[(Tier, usize)]) -> Self {
        Self::open(empty(devices))
    }

    /// A new file.
    fn file(&self, name: &str, data: &[u8]) -> u64 {
        let made = call(&self.engine, |client, call| {
            client.create_or_find(call, (ROOT_INODE, name.as_bytes()), (0o644, true))
        });
        self.write(made.number, 0, data);
        made.number
    }

    fn write(&self, inode: u64, offset: u64, data: &[u8]) {
        for (part, data) in data.chunks(256 << 10).enumerate() {
            write_all(
                &self.engine,
                &Write {
                    caller: Caller::default(),
                    inode,
                    at: Where::At(offset + (part as u64) * (256 << 10)),
                    data,
                    takes_set_id: false,
                    appends: false,
                    is_write_back: false,
                    pins: &[],
                },
            );
        }
    }

    fn read(&self, inode: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let count = self.engine.read((inode, 0), &mut data).expect("it can be read");
        data.truncate(count);
        data
    }

    fn pin(&self, inode: u64, tier: Option<Tier>) {
        call(&self.engine, |client, call| client.pin(call, inode, tier));
        self.engine.turn(|turn| turn.pinned(inode, tier));
    }

    /// Brings all into the tree, and moves what is to move.
    fn migrate(&self) {
        self.engine.sync().expect("the medium works");
        self.engine.digest();
        self.engine.migrate();
    }

    /// Blocks that each file has on each device.
    fn places(&self) -> BTreeMap<u64, [u64; 3]> {
        let volume = Volume::read(&self.disks).expect("it is whole");
        let mut tree = Tree::open(&self.disks, &volume, 1 << 20).expect("it is whole");
        let keys = Key::new(1, Kind::Inode, 0)..=Key::new(u64::MAX, Kind::Extent, u64::MAX);
        let mut entries = tree.range(View::Pending, keys);
        let mut found: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
        while let Some((key, value)) = entries.next(&mut tree, &self.disks).expect("it is whole") {
            if key.kind == Kind::Extent {
                let run = ExtentRecord::parse(&value).expect("it makes sense").run;
                found.entry(key.inode).or_default()[usize::from(run.place.device())] += run.blocks;
            }
        }
        found
    }

    fn on(&self, device: usize) -> u64 {
        self.places().values().map(|blocks| blocks[device]).sum()
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The images after the end, which are clean.
    fn close(self) -> Vec<Vec<u8>> {
        self.engine.close().expect("it goes well");
        let report = check_to(&self.disks, Depth::Data);
        assert!(report.is_clean(), "{report:?}");
        self.disks.cut_all(|device| device.cut(&mut Rng::new(1)))
    }
}

fn data(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (seed * 131 + at + (at >> 12) * 7) as u8)
        .collect()
}

/// Files until so many bytes.
fn fill(rig: &Rig, first: usize, bytes: usize) -> Vec<(u64, Vec<u8>)> {
    let each = 1 << 20;
    let make = |number: usize| {
        let data = data(number, each);
        if number.is_multiple_of(4) {
            rig.engine.sync().expect("the medium works");
            rig.engine.digest();
        }
        (rig.file(&format!("f{number}"), &data), data)
    };
    (first..first + bytes / each).map(make).collect()
}

fn assert_contents(rig: &Rig, files: &[(u64, Vec<u8>)]) {
    for (inode, data) in files {
        assert!(
            rig.read(*inode, data.len() + 1) == *data,
            "inode {inode} has other data"
        );
    }
}

/// Thousandths of a tier that are in use.
fn fullness(rig: &Rig, tier: Tier) -> u64 {
    let migration = rig.engine.status().migration.expect("there are tiers");
    let status = migration
        .tiers
        .iter()
        .find(|status| status.tier == tier)
        .expect("it is there");
    status.usage.used * 1000 / status.usage.total
}

#[test]
fn new_data_go_to_the_fastest_tier_and_cold_ones_go_down_when_it_is_full() {
    let rig = Rig::new(&[(Tier::Memory, 16_384), (Tier::Flash, 40_000)]);
    let mut files = fill(&rig, 0, 30 << 20);
    rig.migrate();
    assert_eq!(rig.on(1), 0, "memory has room");
    files.extend(fill(&rig, 30, 60 << 20));
    rig.migrate();
    assert_contents(&rig, &files);
    let migration = rig.engine.status().migration.expect("there are tiers");
    assert!(migration.down_blocks >= 512, "{migration:?}");
    assert_eq!(
        (
            migration.dropped_blocks,
            migration.damaged_blocks,
            migration.waiting_blocks
        ),
        (0, 0, 0)
    );
    let marks = TierOptions::default().marks[0];
    let full = fullness(&rig, Tier::Memory);
    assert!(full <= marks.low + 5, "{full} of 1000 in use: {migration:?}");
    assert!(full > 700, "no more goes down than has to: {full}");
    let images = rig.close();
    let rig = Rig::open(images);
    assert_contents(&rig, &files);
}

#[test]
fn small_writes_go_to_the_fastest_tier_as_well() {
    let rig = Rig::new(&[(Tier::Memory, 16_384), (Tier::Disk, 40_000)]);
    let files: Vec<_> = (0..50)
        .map(|number| {
            let data = data(number, 5000);
            (rig.file(&format!("s{number}"), &data), data)
        })
        .collect();
    rig.migrate();
    assert_eq!((rig.on(0), rig.on(1)), (100, 0));
    assert_contents(&rig, &files);
    rig.close();
}

#[test]
fn three_tiers_hand_down_one_to_the_next() {
    let rig = Rig::new(&[(Tier::Memory, 8_192), (Tier::Flash, 8_192), (Tier::Disk, 60_000)]);
    let mut files = Vec::new();
    for step in 0..9 {
        files.extend(fill(&rig, step * 8, 8 << 20));
        rig.migrate();
    }
    let places = rig.places();
    let on = |device: usize| places.values().map(|blocks| blocks[device]).sum::<u64>();
    assert!(
        on(0) > 1000 && on(1) > 1000 && on(2) > 1000,
        "{} {} {}",
        on(0),
        on(1),
        on(2)
    );
    assert!(fullness(&rig, Tier::Flash) <= 955);
    assert_contents(&rig, &files);
    let images = rig.close();
    assert_contents(&Rig::open(images), &files);
}

#[test]
fn a_pinned_file_goes_to_its_tier_and_stays_there() {
    let rig = Rig::new(&[(Tier::Memory, 16_384), (Tier::Flash, 40_000)]);
    let kept = rig.file("kept", &data(1, 2 << 20));
    let sent = rig.file("sent", &data(2, 2 << 20));
    rig.pin(kept, Some(Tier::Memory));
    rig.pin(sent, Some(Tier::Flash));
    rig.migrate();
    assert_eq!(rig.places()[&sent], [0, 512, 0]);
    // What is written later goes there as well.
    rig.write(sent, 1 << 20, &data(3, 1 << 20));
    rig.migrate();
    assert_eq!(rig.places()[&sent], [0, 512, 0]);
    // Hot or not, it stays.
    for _ in 0..20 {
        rig.read(sent, UNIT);
    }
    let files = fill(&rig, 0, 80 << 20);
    rig.migrate();
    let places = rig.places();
    assert_eq!((places[&sent], places[&kept]), ([0, 512, 0], [512, 0, 0]));
    let images = rig.close();
    let rig = Rig::open(images);
    assert_contents(&rig, &files);
    // A pin is known after the next opening, and ends when it is taken away.
    rig.pin(sent, None);
    rig.pin(files[0].0, Some(Tier::Flash));
    rig.migrate();
    assert_eq!(rig.places()[&files[0].0], [0, 256, 0]);
    let mut whole = data(2, 1 << 20);
    whole.extend(data(3, 1 << 20));
    assert!(rig.read(sent, UNIT) == whole);
    rig.close();
}

#[test]
fn a_pin_that_a_stop_left_undone_is_done_after_the_next_opening() {
    let rig = Rig::new(&[(Tier::Memory, 8_192), (Tier::Flash, 8_192)]);
    let sent = rig.file("sent", &data(2, 1 << 20));
    rig.pin(sent, Some(Tier::Flash));
    let images = rig.close();
    let rig = Rig::open(images);
    assert_eq!(rig.places()[&sent], [256, 0, 0]);
    rig.migrate();
    assert_eq!(rig.places()[&sent], [0, 256, 0]);
    rig.close();
}

#[test]
fn what_is_read_often_comes_up() {
    let rig = Rig::new(&[(Tier::Memory, 16_384), (Tier::Flash, 40_000)]);
    let (hot, cold) = (
        rig.file("hot", &data(1, 1 << 20)),
        rig.file("cold", &data(2, 1 << 20)),
    );
    for inode in [hot, cold] {
        rig.pin(inode, Some(Tier::Flash));
    }
    rig.migrate();
    for inode in [hot, cold] {
        rig.pin(inode, None);
    }
    rig.migrate();
    rig.read(cold, UNIT);
    (0..8).for_each(|_| drop(rig.read(hot, UNIT)));
    rig.migrate();
    let places = rig.places();
    assert_eq!((places[&hot], places[&cold]), ([256, 0, 0], [0, 256, 0]));
    assert!(rig.read(hot, UNIT) == data(1, 1 << 20));
    assert_eq!(
        rig.engine.status().migration.expect("there are tiers").up_blocks,
        256
    );
    rig.close();
}

#[test]
fn a_full_lower_tier_is_told_and_loses_nothing() {
    let rig = Rig::new(&[(Tier::Memory, 8_192), (Tier::Flash, 1_024)]);
    let files = fill(&rig, 0, 33 << 20);
    (0..20).for_each(|_| rig.migrate());
    let migration = rig.engine.status().migration.expect("there are tiers");
    let memory = migration.tiers.iter().find(|status| status.tier == Tier::Memory);
    assert!(memory.is_some_and(|memory| memory.is_stuck), "{migration:?}");
    assert_contents(&rig, &files);
    // Deletions make room, and then it is not stuck any more.
    for number in 0..20 {
        let name = format!("f{number}");
        call(&rig.engine, |client, call| {
            client.unlink(call, (ROOT_INODE, name.as_bytes()), false)
        });
    }
    rig.migrate();
    let migration = rig.engine.status().migration.expect("there are tiers");
    assert!(
        migration.tiers.iter().all(|status| !status.is_stuck),
        "{migration:?}"
    );
    rig.close();
}

#[test]
fn a_damaged_block_stays_and_is_told_once() {
    let rig = Rig::new(&[(Tier::Memory, 8_192), (Tier::Flash, 8_192)]);
    let (bad, good) = (
        rig.file("bad", &data(1, 64 << 10)),
        rig.file("good", &data(2, 64 << 10)),
    );
    rig.migrate();
    let volume = Volume::read(&rig.disks).expect("it is whole");
    let mut tree = Tree::open(&rig.disks, &volume, 1 << 20).expect("it is whole");
    let key = Key::new(bad, Kind::Extent, 0);
    let value = tree
        .get(&rig.disks, View::Pending, key)
        .expect("it is whole")
        .expect("it is there");
    let place: Place = ExtentRecord::parse(&value).expect("it makes sense").run.place;
    rig.disks.clone().write(place, &[9; 512]).expect("it writes");
    for inode in [bad, good] {
        rig.pin(inode, Some(Tier::Flash));
    }
    (0..3).for_each(|_| rig.migrate());
    let places = rig.places();
    assert_eq!((places[&bad], places[&good]), ([16, 0, 0], [0, 16, 0]));
    let told = rig.told();
    assert!(
        told.len() == 1 && told[0].contains("damaged block stays on nvm"),
        "{told:?}"
    );
    assert_eq!(
        rig.engine
            .status()
            .migration
            .expect("there are tiers")
            .damaged_blocks,
        1
    );
}

#[test]
fn calls_go_on_while_data_move() {
    let rig = Rig::new(&[(Tier::Memory, 16_384), (Tier::Flash, 40_000)]);
    let mut files = fill(&rig, 0, 50 << 20);
    os::sync::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for _ in 0..30 {
                rig.migrate();
                os::sync::thread::yield_now();
            }
        });
        for number in 50..90 {
            files.extend(fill(&rig, number, 1 << 20));
            let (inode, data) = &files[number / 2];
            assert!(rig.read(*inode, data.len()) == *data);
        }
        mover.join().expect("it goes well");
    });
    rig.migrate();
    assert!(rig.on(1) > 1024);
    assert_contents(&rig, &files);
    assert_eq!(rig.engine.status().digest.first_refused, None);
    rig.close();
}

#[test]
fn a_cut_at_every_write_of_a_migration_loses_nothing() {
    let rig = Rig::new(&[(Tier::Memory, 2_000), (Tier::Flash, 3_000)]);
    let mut files = Vec::new();
    for number in 0..4 {
        let data = data(number, 150_000 + number * 4096);
        let inode = rig.file(&format!("f{number}"), &data);
        let tier = if number % 2 == 0 {
            Tier::Flash
        } else {
            Tier::Memory
        };
        rig.pin(inode, Some(tier));
        files.push((inode, data));
    }
    let images = rig.close();
    let mut rng = Rng::new(7);
    let mut moved = [0; 2];
    for writes in 0.. {
        let rig = Rig::open(images.clone());
        rig.power.lasts_for(writes);
        rig.engine.migrate();
        let is_whole = rig.power.left() > 0;
        let Rig { engine, disks, .. } = rig;
        drop(engine);
        let left = disks.cut_all(|device| device.cut(&mut rng));
        let report = check_to(&Disks::volatile(left.clone(), true, &Arc::default()), Depth::Data);
        assert!(report.is_clean(), "cut at write {writes}: {report:?}");
        let rig = Rig::open(left);
        assert_contents(&rig, &files);
        let sent = rig.places()[&files[0].0];
        assert!(sent[0] == 0 || sent[1] == 0, "cut at write {writes}: {sent:?}");
        moved[usize::from(sent[1] > 0)] += 1;
        // What the cut left undone is done now.
        rig.migrate();
        assert_eq!(rig.places()[&files[0].0][0], 0);
        rig.close();
        if is_whole {
            break;
        }
    }
    assert!(
        moved[0] > 5 && moved[1] > 0,
        "cuts before and behind the new root: {moved:?}"
    );
}
