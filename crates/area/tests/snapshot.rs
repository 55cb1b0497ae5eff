//! Snapshots of an open area beside threads that write: each stays what it was, or says that it has ended.

use area::{Area, AreaError, AreaOptions, Batch, Map, Snapshot, Tree};
use base::Rng;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KEYS: u64 = 4_000;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Room for tables, or none.
fn options(has_tables: bool) -> AreaOptions {
    AreaOptions {
        spill_bytes: 128 << 10,
        cache_bytes_max: 1 << 20,
        ..AreaOptions::new(if has_tables { 160 << 20 } else { 24 << 20 })
    }
}

fn write_some(area: &Area, tree: &Tree, map: &Map, state: &Mutex<Entries>, random: &mut Rng) {
    let mut state = state.lock().expect("no panic");
    let mut batch = Batch::new();
    for _ in 0..1 + random.below(20) {
        let key = (random.below(KEYS) as u32).to_be_bytes().to_vec();
        if random.chance(0.2) {
            batch = batch.remove(tree, &key).remove(map, &key);
            state.remove(&key);
        } else {
            let length = random.below(400) as usize;
            let value = vec![random.below(256) as u8; length];
            batch = batch.put(tree, &key, &value).put(map, &key, &value);
            state.insert(key, value);
        }
    }
    batch.commit(area).expect("room");
}

/// All that the snapshot shows, in several ways.
fn check(snapshot: &Snapshot, tree: &Tree, map: &Map, state: &Entries, random: &mut Rng) {
    let found: Entries = snapshot
        .range(tree, ..)
        .map(|entry| entry.map(|(key, value)| (key.into_vec(), value)))
        .collect::<Result<_, _>>()
        .expect("readable");
    assert!(found == *state, "{} and {}", found.len(), state.len());
    let from = (random.below(KEYS) as u32).to_be_bytes();
    let range = (Bound::Unbounded, Bound::Excluded(&from[..]));
    let mut expected = state.range::<[u8], _>(range).rev();
    snapshot
        .visit_rev(tree, range, 50, |key, value| {
            let (own, held) = expected.next().expect("no more than there were");
            assert_eq!((key, value), (&own[..], &held[..]));
            ControlFlow::Continue(())
        })
        .expect("readable");
    let keys = snapshot.keys(map).expect("readable");
    assert!(keys.iter().map(|key| &**key).eq(state.keys().map(Vec::as_slice)));
    let some: Vec<[u8; 4]> = (0..50)
        .map(|_| (random.below(KEYS) as u32).to_be_bytes())
        .collect();
    let some: Vec<&[u8]> = some.iter().map(|key| &key[..]).collect();
    let found = snapshot.get_many(map, &some).expect("readable");
    for (key, found) in some.iter().zip(found) {
        assert_eq!(found.as_ref(), state.get(*key));
        assert_eq!(
            snapshot.get(tree, key).expect("readable").as_ref(),
            state.get(*key)
        );
    }
}

fn stays_as_it_is(has_tables: bool) {
    let area = Area::memory(&options(has_tables), None).expect("memory");
    let (tree, map) = (area.tree("tree").expect("room"), area.map("map").expect("room"));
    let state = Mutex::new(Entries::new());
    let (is_over, checks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (area, tree, map, state, is_over) = (&area, &tree, &map, &state, &is_over);
            scope.spawn(move || {
                let mut random = Rng::new(40 + seed);
                while !is_over.load(Ordering::Relaxed) {
                    write_some(area, tree, map, state, &mut random);
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let (area, tree, map, state, checks) = (&area, &tree, &map, &state, &checks);
                scope.spawn(move || {
                    let mut random = Rng::new(50 + seed);
                    for _ in 0..8 {
                        let (snapshot, then) = {
                            let state = state.lock().expect("no panic");
                            (area.snapshot().expect("room"), state.clone())
                        };
                        for _ in 0..1 + random.below(4) {
                            check(&snapshot, tree, map, &then, &mut random);
                            checks.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|it| it.join().expect("no panic"));
        is_over.store(true, Ordering::Relaxed);
    });
    let stats = area.stats();
    assert_eq!(
        (stats.snapshots, stats.snapshot_bytes, stats.snapshots_ended),
        (0, 0, 0)
    );
    assert!(checks.load(Ordering::Relaxed) >= 16);
    assert!(!has_tables || stats.tables > 0, "{stats:?}");
    check(
        &area.snapshot().expect("room"),
        &tree,
        &map,
        &state.lock().expect("no panic"),
        &mut Rng::new(1),
    );
}

#[test]
fn a_snapshot_stays_as_it_is_while_memory_leaves_for_tables() {
    stays_as_it_is(true);
}

#[test]
fn a_snapshot_stays_as_it_is_while_segments_are_cleaned() {
    stays_as_it_is(false);
}

#[test]
fn a_snapshot_that_keeps_too_much_ends_and_the_area_goes_on() {
    let options = AreaOptions {
        index_bytes_max: 4 << 20,
        ..options(false)
    };
    let area = Area::memory(&options, None).expect("memory");
    let map = area.map("map").expect("room");
    (0..2000_u32).for_each(|key| map.put(&key.to_be_bytes(), &[1; 3000]).expect("room"));
    let (old, later) = (area.snapshot().expect("room"), {
        map.put(b"later", b"1").expect("room");
        area.snapshot().expect("room")
    });
    for round in 2..6 {
        (0..2000_u32).for_each(|key| map.put(&key.to_be_bytes(), &[round; 3000]).expect("room"));
    }
    assert!(matches!(
        old.get(&map, b"later"),
        Err(AreaError::SnapshotEnded(_))
    ));
    assert!(matches!(old.keys(&map), Err(AreaError::SnapshotEnded(_))));
    drop(old);
    drop(later);
    let stats = area.stats();
    assert!(stats.snapshots_ended >= 1 && stats.snapshots == 0, "{stats:?}");
    assert_eq!(stats.snapshot_bytes, 0);
    assert_eq!(
        map.get(&7_u32.to_be_bytes()).expect("readable"),
        Some(vec![5; 3000])
    );
}

/// Without an end of the snapshot the area would refuse what it takes without one.
#[test]
fn a_snapshot_does_not_make_an_area_full() {
    let options = AreaOptions {
        spill_bytes: 1 << 20,
        index_bytes_max: 256 << 20,
        ..AreaOptions::new(110 << 20)
    };
    let area = Area::memory(&options, None).expect("memory");
    let tree = area.tree("tree").expect("room");
    let put = |round: u8| {
        (0..12_000_u32)
            .try_for_each(|key| tree.put(&key.wrapping_mul(0x9e37_79b1).to_be_bytes(), &[round; 4000]))
    };
    put(0).expect("room");
    let snapshot = area.snapshot().expect("room");
    (1..4).for_each(|round| put(round).expect("room for the same again"));
    let first = snapshot.range(&tree, ..).next().expect("something");
    match first {
        Ok((_, value)) => assert_eq!(value, [0; 4000]),
        Err(error) => assert!(matches!(error, AreaError::SnapshotEnded(_)), "{error}"),
    }
    drop(snapshot);
    area.settle().expect("sound");
    assert_eq!(area.stats().snapshots, 0);
}
