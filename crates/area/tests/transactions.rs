//! Batches that expect versions, and snapshots, while memory leaves for tables.

use area::{Area, AreaError, AreaOptions, Batch, Map, Version};
use std::sync::atomic::{AtomicU64, Ordering};

const COUNTERS: u64 = 7;
const ROUNDS: u64 = 400;
const THREADS: u64 = 4;

/// An area whose maps and trees leave memory often.
fn spilling(directory: &tempfile::TempDir) -> Area {
    let options = AreaOptions {
        spill_bytes: 64 << 10,
        cache_bytes_max: 1 << 20,
        ..AreaOptions::new(160 << 20)
    };
    Area::open(&directory.path().join("it.area"), &options).expect("made")
}

/// An area that keeps all keys in memory, and no values.
fn small(directory: &tempfile::TempDir) -> Area {
    Area::open(&directory.path().join("it.area"), &AreaOptions::new(8 << 20)).expect("made")
}

fn number(value: Option<&(Vec<u8>, Version)>) -> u64 {
    value.map_or(0, |(value, _)| {
        u64::from_le_bytes(*value.first_chunk().expect("a counter"))
    })
}

/// Moves one from a counter to another, as long as somebody is faster.
fn transfer(map: &Map, (from, to): (u64, u64), conflicts: &AtomicU64) {
    let padding = [7; 200];
    loop {
        let found = [from, to].map(|counter| map.get_versioned(&counter.to_be_bytes()).expect("readable"));
        let [taken, given] = found.each_ref().map(|found| number(found.as_ref()));
        let mut batch = Batch::new();
        for ((counter, value), found) in [(from, taken.wrapping_sub(1)), (to, given.wrapping_add(1))]
            .into_iter()
            .zip(found)
        {
            let key = counter.to_be_bytes();
            let value = [&value.to_le_bytes()[..], &padding].concat();
            batch = batch
                .expect(map, &key, found.map(|(_, version)| version))
                .put(map, &key, &value);
        }
        match batch.commit(map.area()) {
            Ok(_) => return,
            Err(AreaError::Conflict { structure, key }) => {
                let counter = u64::from_be_bytes(key[..].try_into().expect("a key of ours"));
                assert!(&*structure == "counters" && (counter == from || counter == to));
                conflicts.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn count_by_threads(area: &Area) {
    let map = area.map("counters").expect("made");
    let conflicts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, conflicts) = (&map, &conflicts);
            scope.spawn(move || {
                let mut random = base::Rng::new(thread);
                for _ in 0..ROUNDS {
                    let from = random.below(COUNTERS);
                    transfer(map, (from, (from + 1) % COUNTERS), conflicts);
                    // Others make memory leave.
                    let key = [b"other", &random.next_u64().to_le_bytes()[..]].concat();
                    map.put(&key, &[1; 100]).expect("room");
                }
            });
        }
    });
    let counters = (0..COUNTERS).map(|counter| map.get_versioned(&counter.to_be_bytes()).expect("readable"));
    let sum = counters.fold(0, |sum: u64, found| sum.wrapping_add(number(found.as_ref())));
    assert_eq!(sum, 0, "nothing is lost or won by transfers");
    assert!(conflicts.into_inner() > 0, "threads met");
}

#[test]
fn counters_are_right_though_threads_change_them_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let area = spilling(&directory);
    count_by_threads(&area);
    assert!(
        area.stats().flushes > 0,
        "memory left for tables: {:?}",
        area.stats()
    );
}

#[test]
fn counters_are_right_where_entries_are_moved() {
    let directory = tempfile::tempdir().expect("a directory");
    let area = small(&directory);
    let log = area.log("log").expect("made");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..400 {
                let position = log.append(&[3; 30_000]).expect("room");
                log.trim(position).expect("room");
            }
        });
        count_by_threads(&area);
    });
    assert!(area.stats().moved_bytes > 0, "{:?}", area.stats());
}

/// A hundred increments of one counter by each of four threads are four hundred, wherever the counter lies.
#[test]
fn a_counter_in_tables_loses_no_increment() {
    let directory = tempfile::tempdir().expect("a directory");
    let area = spilling(&directory);
    let tree = area.tree("tree").expect("made");
    let filler = area.map("filler").expect("made");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tree, filler) = (&tree, &filler);
            scope.spawn(move || {
                for round in 0..100_u64 {
                    loop {
                        let found = tree.get_versioned(b"counter").expect("readable");
                        let next = number(found.as_ref()) + 1;
                        let version = found.map(|(_, version)| version);
                        let batch = Batch::new()
                            .put(tree, b"counter", &next.to_le_bytes())
                            .expect(tree, b"counter", version);
                        match batch.commit(tree.area()) {
                            Ok(_) => break,
                            Err(AreaError::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    let key = [thread, round].map(u64::to_le_bytes).concat();
                    filler.put(&key, &[1; 2000]).expect("room");
                }
            });
        }
    });
    let found = tree.get_versioned(b"counter").expect("readable");
    assert_eq!(number(found.as_ref()), THREADS * 100);
    assert!(
        area.stats().flushes > 0,
        "memory left for tables: {:?}",
        area.stats()
    );
}

#[test]
fn versions_survive_tables_and_openings() {
    let directory = tempfile::tempdir().expect("a directory");
    let area = spilling(&directory);
    let map = area.map("map").expect("made");
    map.put(b"key", b"value").expect("room");
    let (_, told) = map.get_versioned(b"key").expect("readable").expect("there");
    for round in 0..3_u32 {
        for index in 0..2000_u32 {
            map.put_async(&[round, index].map(u32::to_le_bytes).concat(), &[1; 60])
                .expect("room");
        }
        area.sync().expect("sound");
        area.settle().expect("sound");
    }
    assert!(area.stats().flushes > 0 && area.stats().tables > 0);
    drop((map, area));
    let area = spilling(&directory);
    let map = area.map("map").expect("there");
    assert_eq!(
        map.get_versioned(b"key").expect("readable"),
        Some((b"value".to_vec(), told))
    );
    let batch = Batch::new()
        .expect(&map, b"key", Some(told))
        .expect(&map, b"none", None)
        .remove(&map, b"key");
    batch.commit(&area).expect("as expected");
    let refused = batch.commit(&area).expect_err("it is gone");
    assert_eq!(
        refused.to_string(),
        "key \"key\" of \"map\" is not as the batch expects: nothing was done"
    );
    Batch::new()
        .expect(&map, b"key", None)
        .put(&map, b"key", b"anew")
        .commit(&area)
        .expect("it is absent");
    let (value, version) = map.get_versioned(b"key").expect("readable").expect("there");
    assert!(value == b"anew" && version != told);
}
