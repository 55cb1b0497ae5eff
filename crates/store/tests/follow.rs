//! Followers: an owner makes steps between all reads of a follower, and in the middle of them. A follower shows the state after one
//! record, and none that is older than what was durable when the refresh began.

use crate::common::{Contents, Owned, Rig, State, apply, options, position_key, roomy, seeds, tiny};
use base::{Device, MediaError};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use store::{
    Fetch, FetchError, FollowError, Followed, Follower, Kind, Layout, Moment, OpenError, Options, OwnedValue,
    ReadError, StructureId, Uncached,
};

/// As tests/spill.rs has it.
fn spilling() -> Layout {
    Layout {
        sector_bytes: 64,
        block_bytes: 64,
        segment_bytes: 4096,
        segments: 96,
        atomic_bytes: 64,
        record_bytes_max: 1024,
    }
}

/// An area whose owner goes on while it is read.
struct Live {
    rig: RefCell<Rig>,
    /// The state when the epoch began, beside the rig's history.
    first: RefCell<State>,
    epoch: Cell<u64>,
    /// The same of the epoch before, with its history.
    before: RefCell<(State, Vec<(u64, Owned)>)>,
    /// The owner is killed in so many of a thousand steps.
    kills: Cell<u64>,
    /// The owner makes a step before so many of a thousand reads of a sector.
    pace: Cell<u64>,
    /// A sector that is being written may be read half.
    tears: bool,
    /// Shown instead of what is there, unless it is empty.
    stale: RefCell<Vec<u8>>,
}

impl Live {
    fn new(layout: Layout, options: Options, seed: u64, tears: bool) -> Self {
        let mut rig = Rig::new(layout, options, seed);
        rig.furnish();
        Self {
            rig: RefCell::new(rig),
            first: RefCell::default(),
            epoch: Cell::new(2),
            before: RefCell::default(),
            kills: Cell::new(0),
            pace: Cell::new(0),
            tears,
            stale: RefCell::default(),
        }
    }

    /// A step of the owner, or some sectors of its writes under way.
    fn step(&self) {
        let mut rig = self.rig.borrow_mut();
        if rig.rng.below(1000) < self.kills.get() {
            drop(rig);
            self.kills.set(0);
            return self.restart();
        }
        match rig.rng.below(10) {
            0 if rig.engine.may_spill() => drop(rig.job(None)),
            0..=3 => {
                let count = rig.flying.len() as u64;
                if count > 0 {
                    let nth = rig.rng.below(count) as usize;
                    let (offset, bytes) = (rig.flying[nth].offset, rig.flying[nth].bytes.clone());
                    for (index, sector) in bytes.chunks(64).enumerate() {
                        if rig.rng.chance(0.5) {
                            rig.image
                                .write_at(offset + index as u64 * 64, sector)
                                .expect("inside");
                        }
                    }
                }
            }
            _ => rig.step(),
        }
    }

    /// The owner is killed: what was under way is there in part. It opens the area anew.
    fn restart(&self) {
        let mut rig = self.rig.borrow_mut();
        let image = rig.random_cut();
        *self.before.borrow_mut() = (self.first.borrow().clone(), rig.history.clone());
        rig.restart(image);
        *self.first.borrow_mut() = rig.base.clone();
        self.epoch.set(self.epoch.get() + 1);
    }

    fn durable(&self) -> Moment {
        let record = self.rig.borrow().engine.durable().0;
        let epoch = self.epoch.get();
        Moment { epoch, record }
    }

    /// The state after the record of a moment of this epoch, or of the one before.
    fn at(&self, moment: Moment) -> State {
        let (mut state, history) = if moment.epoch == self.epoch.get() {
            (self.first.borrow().clone(), self.rig.borrow().history.clone())
        } else {
            assert_eq!(moment.epoch + 1, self.epoch.get());
            self.before.borrow().clone()
        };
        let before = history.iter().take_while(|(record, _)| *record <= moment.record);
        before.for_each(|(_, op)| apply(&mut state, op));
        state
    }

    /// Refreshes while the owner goes on, and checks the moment.
    fn refresh(&self, follower: &mut Follower, pace: u64) -> Moment {
        let before = self.durable();
        self.pace.set(pace);
        self.kills.set(if pace > 0 { 4 } else { 0 });
        let refreshed = follower.refresh(self);
        self.pace.set(0);
        self.kills.set(0);
        let moment = refreshed.unwrap_or_else(|error| panic!("{error}, of {:?}", follower.stats()));
        assert!(moment >= before, "{moment:?} is older than {before:?}");
        moment
    }
}

impl Device for Live {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let stale = self.stale.borrow();
        if !stale.is_empty() {
            return stale.read_at(offset, bytes);
        }
        for (index, part) in bytes.chunks_mut(64).enumerate() {
            let at = offset + index as u64 * 64;
            let steps = self.rig.borrow_mut().rng.below(1000) < self.pace.get();
            if steps {
                self.step();
            }
            let mut rig = self.rig.borrow_mut();
            rig.image.read_at(at, part)?;
            let writes =
                |it: &&crate::common::Flying| (it.offset..it.offset + it.bytes.len() as u64).contains(&at);
            let new = rig.flying.iter().find(writes).map(|it| {
                let from = (at - it.offset) as usize;
                it.bytes[from..][..part.len()].to_vec()
            });
            if let Some(new) = new.filter(|_| self.tears && self.pace.get() > 0)
                && rig.rng.chance(0.3)
            {
                let cut = rig.rng.below(part.len() as u64) as usize;
                part[..cut].copy_from_slice(&new[..cut]);
                if *part == new[..] {
                    // What was seen whole is there.
                    rig.image.write_at(at, &new)?;
                }
            }
        }
        Ok(())
    }
    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
        panic!("a follower writes nothing");
    }
    fn flush(&mut self) -> Result<(), MediaError> {
        panic!("a follower writes nothing");
    }
    fn capacity_bytes(&self) -> u64 {
        self.rig.borrow().image.capacity_bytes()
    }
}

impl Followed for Live {
    fn device(&self) -> &dyn Device {
        self
    }
    fn sync(&self) -> Result<(), MediaError> {
        Ok(())
    }
    fn pause(&self, _: u32) {
        // The owner comes to its next write.
        let steps = self.rig.borrow_mut().rng.below(4);
        (0..steps).for_each(|_| self.step());
    }
}

/// A value that a follower found; `None` if its segment was used anew since.
fn value(follower: &Follower, live: &Live, fetch: Fetch) -> Option<Option<Vec<u8>>> {
    let moved = |error| match error {
        FetchError::Moved => None,
        FetchError::Damaged { offset } => match follower.explain(live, offset) {
            Ok(FetchError::Moved) => None,
            other => panic!("{other:?} at byte {offset}"),
        },
    };
    match fetch {
        Fetch::Ready(bytes) => Some(Some(bytes.to_vec())),
        Fetch::Lost => panic!("nothing was repaired"),
        Fetch::Read(found) => {
            let mut bytes = vec![0; found.length()];
            live.read_at(found.offset(), &mut bytes).expect("inside");
            found
                .extract(&bytes)
                .map_or_else(moved, |value| Some(Some(value)))
        }
        Fetch::Search(search) => match search.run(&mut Uncached(live)) {
            Ok(piece) => Some(piece.and_then(|piece| piece.value().map(<[u8]>::to_vec))),
            Err(ReadError::Fetch(error)) => moved(error),
            Err(ReadError::Medium(error)) => panic!("{error}"),
        },
    }
}

/// Compares all that a follower shows; how many values had moved.
fn compare(follower: &Follower, live: &Live, wanted: &State) -> u64 {
    let mut moved = 0;
    let all: BTreeMap<StructureId, Kind> = follower
        .structures()
        .map(|(_, id, kind, ..)| (id, kind))
        .collect();
    let ids: Vec<_> = wanted.iter().map(|(id, it)| (*id, it.kind)).collect();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), ids);
    for (&id, Contents { kind, entries }) in wanted {
        match kind {
            Kind::Log | Kind::Queue => {
                let positions = follower.positions(id).expect("it is there");
                let found = positions.filter_map(|position| Some((position, follower.read(id, position)?)));
                let found: Vec<_> = found.collect();
                let keys: Vec<_> = found
                    .iter()
                    .map(|(position, _)| position_key(*position))
                    .collect();
                assert!(keys.iter().eq(entries.keys()), "positions of {id:?}");
                for (position, fetch) in found {
                    match value(follower, live, fetch) {
                        Some(value) => assert_eq!(value.as_ref(), entries.get(&position_key(position))),
                        None => moved += 1,
                    }
                }
            }
            Kind::Map | Kind::Tree => {
                match follower.keys(id).merge(&mut Uncached(live)) {
                    Ok(found) => {
                        let keys = found.iter().map(|(key, _)| key.to_vec());
                        assert!(
                            keys.eq(entries.keys().cloned()),
                            "keys of {id:?}: {found:?} {entries:?}"
                        );
                        for (key, held) in found {
                            let held = match held {
                                OwnedValue::Table(value) => Some(Some(value)),
                                OwnedValue::Memory(fetch) => value(follower, live, fetch),
                            };
                            match held {
                                Some(held) => assert_eq!(held.as_ref(), entries.get(&key[..])),
                                None => moved += 1,
                            }
                        }
                    }
                    Err(ReadError::Fetch(FetchError::Damaged { offset })) => {
                        assert_eq!(follower.explain(live, offset), Ok(FetchError::Moved));
                        moved += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                for key in 0..40u8 {
                    let key = vec![b'k', key];
                    match follower.get(id, &key).map(|fetch| value(follower, live, fetch)) {
                        None => assert_eq!(entries.get(&key), None),
                        Some(Some(found)) => assert_eq!(found.as_ref(), entries.get(&key)),
                        Some(None) => moved += 1,
                    }
                }
            }
        }
    }
    moved
}

/// An owner of an area, and how many steps it makes.
fn areas(seed: u64) -> Live {
    let in_flight = 1 + seed as usize % 3;
    let tears = seed % 4 == 3;
    match seed % 3 {
        0 => {
            let mut layout = tiny(1 + (seed / 3) as u32 % 2);
            // Mapped memory, every other time.
            layout.atomic_bytes = [64, 8][seed as usize / 6 % 2];
            Live::new(layout, options(in_flight, u64::MAX), seed, tears)
        }
        1 => Live::new(roomy(), options(in_flight, u64::MAX), seed, tears),
        _ => {
            let spill_bytes = [200, 600, 2000][seed as usize / 3 % 3];
            let live = Live::new(spilling(), options(in_flight, spill_bytes), seed, tears);
            live.rig.borrow_mut().keys = [6, 40, 200][seed as usize / 9 % 3];
            live
        }
    }
}

#[test]
fn every_refresh_shows_the_state_after_a_record_not_older_than_what_was_durable() {
    let (mut moved, mut compared, mut stats) = (0, 0, [0; 3]);
    for seed in 0..seeds(60) {
        let live = areas(seed);
        let mut follower = Follower::new();
        let mut last = Moment::default();
        for round in 0..150 {
            let pace = [0, 2, 10, 40, 150][live.rig.borrow_mut().rng.below(5) as usize];
            let moment = live.refresh(&mut follower, pace);
            assert!(moment >= last, "seed {seed}, round {round}");
            last = moment;
            moved += compare(&follower, &live, &live.at(moment));
            compared += 1;
            let steps = [0, 3, 3, 30, 30, 300, 300, 2000][live.rig.borrow_mut().rng.below(8) as usize];
            (0..steps).for_each(|_| live.step());
            if live.rig.borrow_mut().rng.chance(0.03) {
                live.restart();
            } else {
                // What was shown stays as it was, or is gone.
                moved += compare(&follower, &live, &live.at(moment));
            }
        }
        let found = follower.stats();
        stats = [
            stats[0] + found.refreshes,
            stats[1] + found.rebuilds,
            stats[2] + found.looks,
        ];
    }
    assert!(
        compared > 5000 && moved > 1000,
        "{compared} compared, {moved} moved, {stats:?}"
    );
    assert!(
        stats[0] > 2 * stats[1],
        "most refreshes read what is new: {stats:?}"
    );
}

/// An image that nobody changes.
struct Still(Vec<u8>);

impl Followed for Still {
    fn device(&self) -> &dyn Device {
        &self.0
    }
    fn sync(&self) -> Result<(), MediaError> {
        Ok(())
    }
    fn pause(&self, _: u32) {}
}

/// Everything that a follower shows of an image.
fn state_of(follower: &Follower, image: &Still) -> State {
    let read = |fetch| match fetch {
        Fetch::Ready(bytes) => bytes.to_vec(),
        Fetch::Read(found) => {
            let mut bytes = vec![0; found.length()];
            image.0.read_at(found.offset(), &mut bytes).expect("inside");
            found.extract(&bytes).expect("it is there")
        }
        Fetch::Search(_) | Fetch::Lost => panic!("a range has none of these"),
    };
    let contents = |(_, id, kind, ..): (&str, StructureId, Kind, _, _)| {
        let positions = follower
            .positions(id)
            .filter(|_| matches!(kind, Kind::Log | Kind::Queue));
        let entry = |position| Some((position_key(position), read(follower.read(id, position)?)));
        let found = follower
            .keys(id)
            .merge(&mut Uncached(&image.0))
            .expect("it is there");
        let keyed = found.into_iter().map(|(key, held)| match held {
            OwnedValue::Table(value) => (key.to_vec(), value),
            OwnedValue::Memory(fetch) => (key.to_vec(), read(fetch)),
        });
        let entries = positions
            .unwrap_or_default()
            .filter_map(entry)
            .chain(keyed)
            .collect();
        (id, Contents { kind, entries })
    };
    follower.structures().map(contents).collect()
}

#[test]
fn a_follower_is_right_at_every_write_of_a_job() {
    let (mut looks, mut jobs) = (0u64, 0);
    for seed in 0..seeds(12) {
        let options = options(1 + seed as usize % 3, [200, 600, 2000][seed as usize % 3]);
        let mut rig = Rig::new(spilling(), options, 500 + seed);
        rig.keys = [6, 40, 200][seed as usize / 3 % 3];
        rig.furnish();
        let mut follower = Follower::new();
        for _ in 0..1200 {
            rig.step();
            rig.job(Some(&mut |rig: &Rig, image| {
                let image = Still(image);
                let mut fresh = Follower::new();
                for follower in [&mut follower, &mut fresh] {
                    follower.refresh(&image).expect("the owner is at work");
                    let found = state_of(follower, &image);
                    assert!(rig.admissible().contains(&found), "seed {seed}: {found:?}");
                }
                looks += 1;
            }));
        }
        jobs += rig.jobs;
    }
    assert!(looks > 1000 && jobs > 300, "{looks} looks at {jobs} jobs");
}

#[test]
fn damage_is_told_and_leaves_the_moment_before() {
    let mut rig = Rig::new(tiny(1), options(1, u64::MAX), 77);
    rig.furnish();
    let mut follower = Follower::new();
    let before = follower.refresh(&Still(rig.image.clone())).expect("sound");
    for _ in 0..6 {
        rig.random_batch();
        rig.settle();
    }
    let (offset, length) = *rig.engine.log_ranges().last().expect("there is a log");
    let mut image = Still(rig.image.clone());
    image.0[(offset + length) as usize - 64 + 20] ^= 1;
    let damaged = Err(FollowError::Open(OpenError::Damaged {
        offset: offset + length - 64,
    }));
    assert_eq!(follower.refresh(&image), damaged);
    assert_eq!(follower.moment(), before, "it shows what it had");
    assert_eq!(Follower::new().refresh(&image), damaged);
    let after = follower.refresh(&Still(rig.image.clone())).expect("sound again");
    assert_eq!(after.record, rig.engine.durable().0);
}

/// The canary: were the newest record not looked for, these tests would notice.
#[test]
#[should_panic(expected = "is older than")]
fn a_medium_that_hides_what_is_new_is_noticed() {
    let live = areas(1);
    let mut follower = Follower::new();
    live.refresh(&mut follower, 0);
    *live.stale.borrow_mut() = live.rig.borrow().image.clone();
    (0..400).for_each(|_| live.step());
    live.refresh(&mut follower, 0);
}

/// How many segments an owner takes into use before a moment is gone, in an area that was filled and is overwritten for ever.
fn stays(is_followed: bool, seed: u64) -> u64 {
    let mut rig = Rig::new(roomy(), options(1, u64::MAX), seed);
    let map = rig.create(Kind::Map, store::Durability::Sync).expect("room");
    let put = |rig: &mut Rig| {
        let key = (rig.rng.below(200) as u32).to_be_bytes();
        let data = [7; 40];
        let op = store::Op::Put {
            map,
            key: &key,
            data: &data,
        };
        if rig.engine.submit(&[op]) == Err(store::SubmitError::Busy) {
            rig.settle();
        }
        rig.issue();
        while rig.complete_one() {}
        for _ in 0..3 {
            rig.clean();
            rig.issue();
            while rig.complete_one() {}
        }
    };
    rig.engine.set_followed(is_followed);
    (0..6000).for_each(|_| put(&mut rig));
    let mut follower = Follower::new();
    follower.refresh(&Still(rig.image.clone())).expect("sound");
    let before = rig.engine.segments_taken();
    loop {
        put(&mut rig);
        let is_there = (0..200u32).all(|key| match follower.get(map, &key.to_be_bytes()) {
            Some(Fetch::Read(found)) => {
                let from = found.offset() as usize;
                found.extract(&rig.image[from..from + found.length()]).is_ok()
            }
            _ => panic!("each key has a place in the log"),
        });
        if !is_there {
            return rig.engine.segments_taken() - before;
        }
    }
}

#[test]
fn a_moment_stays_longer_while_the_owner_knows_of_a_follower() {
    for seed in 0..4 {
        let (without, with) = (stays(false, seed), stays(true, seed));
        eprintln!("{without} segments without, {with} with");
        assert!(
            without >= 3 && with >= without + 4,
            "{without} segments without, {with} with"
        );
    }
}
