//! Reads of maps and trees while memory leaves for tables, tables are merged, and rows of the cache are renewed.

use area::{Area, AreaOptions, Batch, Tree};
use base::Rng;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::Way;

const KEYS: u32 = 3_000;
const FLUSHES: u64 = 12;

fn options() -> AreaOptions {
    AreaOptions {
        spill_bytes: 128 << 10,
        cache_bytes_max: 1 << 20,
        ..AreaOptions::new(160 << 20)
    }
}

fn key(index: u32) -> [u8; 4] {
    index.to_be_bytes()
}

fn value(index: u32, version: u64) -> Vec<u8> {
    let bytes = [&version.to_le_bytes()[..], &index.to_le_bytes()].concat();
    bytes.repeat(1 + index as usize % 9)
}

/// The version of a value, which must be whole and its key's.
fn version_of(index: u32, found: &[u8]) -> u64 {
    let version = u64::from_le_bytes(*found.first_chunk().expect("it has a version"));
    assert_eq!(found, value(index, version), "a whole value of key {index}");
    version
}

/// Versions that were acknowledged, by key: a read that begins later must not find an older one.
struct Board(Vec<AtomicU64>);

impl Board {
    fn acknowledged(&self, index: u32) -> u64 {
        self.0[index as usize].load(Ordering::SeqCst)
    }

    /// Writes the next versions of some keys of a writer.
    fn write(&self, tree: &Tree, writer: u32, random: &mut Rng) {
        let mut batch = Batch::new();
        let chosen = (0..8).map(|_| random.below(u64::from(KEYS / 2)) as u32 * 2 + writer);
        let chosen: std::collections::BTreeSet<u32> = chosen.collect();
        for &index in &chosen {
            batch = batch.put(tree, &key(index), &value(index, self.acknowledged(index) + 1));
        }
        batch.commit(tree.area()).expect("room");
        for index in chosen {
            self.0[index as usize].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The entries from `last` down to the first, `count` of them at most.
    fn read_down(&self, tree: &Tree, last: u32, count: u32) {
        let first = (last + 1).saturating_sub(count);
        let before: Vec<u64> = (first..=last).map(|index| self.acknowledged(index)).collect();
        let mut next = last + 1;
        let to = key(last);
        let range = (Bound::Unbounded, Bound::Included(&to[..]));
        tree.visit_rev(range, count as usize, |found, bytes| {
            next -= 1;
            assert_eq!(found, key(next), "no key is left out");
            let version = version_of(next, bytes);
            assert!(version >= before[(next - first) as usize], "key {next}");
            ControlFlow::Continue(())
        })
        .expect("readable");
        assert_eq!(next, first);
    }

    fn read(&self, tree: &Tree, random: &mut Rng) {
        // A few keys are read often: they become rows.
        let draw = |random: &mut Rng| match random.below(3) {
            0 => random.below(u64::from(KEYS)) as u32,
            _ => random.below(40) as u32,
        };
        match random.below(5) {
            4 => self.read_down(tree, draw(random), 1 + random.below(150) as u32),
            0 => {
                let all: Vec<u32> = (0..5).map(|_| draw(random)).collect();
                let before: Vec<u64> = all.iter().map(|&index| self.acknowledged(index)).collect();
                let keys: Vec<[u8; 4]> = all.iter().map(|&index| key(index)).collect();
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                let found = tree.get_many(&keys).expect("readable");
                for ((index, before), found) in all.into_iter().zip(before).zip(found) {
                    assert!(
                        version_of(index, &found.expect("it is there")) >= before,
                        "key {index}"
                    );
                }
            }
            1 => {
                let first = draw(random);
                let count = (KEYS - first).min(1 + random.below(150) as u32);
                let before: Vec<u64> = (first..first + count)
                    .map(|index| self.acknowledged(index))
                    .collect();
                let mut next = first;
                let from = key(first);
                let range = (Bound::Included(&from[..]), Bound::Unbounded);
                tree.visit(range, count as usize, |found, bytes| {
                    assert_eq!(found, key(next), "no key is left out");
                    let version = version_of(next, bytes);
                    assert!(version >= before[(next - first) as usize], "key {next}");
                    next += 1;
                    ControlFlow::Continue(())
                })
                .expect("readable");
                assert_eq!(next, first + count);
            }
            _ => {
                let index = draw(random);
                let before = self.acknowledged(index);
                let found = tree.get_ref(&key(index)).expect("readable").expect("it is there");
                assert!(version_of(index, &found) >= before, "key {index}");
            }
        }
    }
}

#[test]
fn no_read_finds_an_older_value_than_was_acknowledged_before_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let area = Area::open(&directory.path().join("it.area"), &options()).expect("made");
    let tree = area.tree("tree").expect("made");
    for first in (0..KEYS).step_by(100) {
        let all = first..first + 100;
        let batch = all.fold(Batch::new(), |batch, index| {
            batch.put(&tree, &key(index), &value(index, 1))
        });
        batch.commit(&area).expect("room");
    }
    let board = Board((0..KEYS).map(|_| AtomicU64::new(1)).collect());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (board, tree, is_over) = (&board, &tree, &is_over);
            scope.spawn(move || {
                let mut random = Rng::new(reader);
                while !is_over.load(Ordering::Relaxed) {
                    board.read(tree, &mut random);
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (board, tree) = (&board, &tree);
                scope.spawn(move || {
                    let mut random = Rng::new(100 + u64::from(writer));
                    while tree.area().stats().flushes < FLUSHES {
                        board.write(tree, writer, &mut random);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(
            ended.into_iter().all(|writer| writer.is_ok()),
            "a writer panicked"
        );
    });
    for index in 0..KEYS {
        let found = tree.get(&key(index)).expect("readable").expect("it is there");
        assert_eq!(version_of(index, &found), board.acknowledged(index));
    }
    let stats = area.stats();
    assert!(stats.merges > 0 && area.cache_stats().hits > 0, "{stats:?}");
}

/// A range is that of a map of the standard library, whichever part of it memory has.
#[test]
fn ranges_are_those_of_a_sorted_map() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("it.area");
    let mut random = Rng::new(5);
    let mut model = BTreeMap::new();
    let mut area = Area::open(&path, &options()).expect("made");
    let mut tree = area.tree("tree").expect("made");
    area.tree("other")
        .and_then(|other| other.put(&key(1), b"not of this tree"))
        .expect("room");
    for round in 0..40_u64 {
        for _ in 0..6 {
            let mut batch = Batch::new();
            for _ in 0..60 {
                let index = random.below(u64::from(KEYS)) as u32;
                if random.below(5) == 0 {
                    model.remove(&key(index));
                    batch = batch.remove(&tree, &key(index));
                } else {
                    model.insert(key(index), value(index, round));
                    batch = batch.put(&tree, &key(index), &value(index, round));
                }
            }
            batch.commit(&area).expect("room");
        }
        if round % 8 == 7 {
            area.settle().expect("sound");
        }
        if round % 16 == 15 {
            drop((tree, area));
            area = Area::open(&path, &options()).expect("sound");
            tree = area.tree("tree").expect("there");
        }
        for _ in 0..30 {
            let mut bound = || {
                let key = key(random.below(u64::from(KEYS) + 10) as u32);
                match random.below(5) {
                    0 => Bound::Unbounded,
                    1 | 2 => Bound::Excluded(key),
                    _ => Bound::Included(key),
                }
            };
            check_range(&tree, &model, (bound(), bound()), random.below(300) as usize);
        }
    }
    assert!(area.stats().tables > 0);
}

type Bounds = (Bound<[u8; 4]>, Bound<[u8; 4]>);

fn check_range(tree: &Tree, model: &BTreeMap<[u8; 4], Vec<u8>>, bounds: Bounds, limit: usize) {
    let key_of = |bound: &Bound<[u8; 4]>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(*key),
        Bound::Unbounded => None,
    };
    // The standard library panics where we find nothing.
    let is_empty = matches!((key_of(&bounds.0), key_of(&bounds.1)), (Some(a), Some(b)) if a >= b);
    let expected: Vec<_> = match is_empty && bounds.0 != bounds.1 {
        true => Vec::new(),
        false if is_empty && matches!(bounds.0, Bound::Excluded(_)) => Vec::new(),
        false => model.range(bounds).take(limit).collect(),
    };
    let backwards: Vec<_> = match expected.is_empty() {
        true => Vec::new(),
        false => model.range(bounds).rev().take(limit).collect(),
    };
    fn slice(bound: &Bound<[u8; 4]>) -> Bound<&[u8]> {
        bound.as_ref().map(|key| &key[..])
    }
    let range = (slice(&bounds.0), slice(&bounds.1));
    for (is_reverse, expected) in [(false, expected), (true, backwards)] {
        let mut seen = Vec::new();
        let take = |key: &[u8], value: &[u8]| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        let visited = match is_reverse {
            false => tree.visit(range, limit, take),
            true => tree.visit_rev(range, limit, take),
        };
        visited.expect("readable");
        let walked: Vec<_> = match is_reverse {
            false => tree.range(range).take(limit).collect(),
            true => tree.range_rev(range).take(limit).collect(),
        };
        let walked: Vec<_> = walked.into_iter().map(|entry| entry.expect("readable")).collect();
        let way = if is_reverse { Way::Down } else { Way::Up };
        let keys = tree.keys_at(None, range, way, limit).expect("readable");
        assert_eq!(seen.len(), expected.len(), "{bounds:?} {limit} {is_reverse}");
        assert!(
            seen.iter()
                .zip(&expected)
                .all(|(a, b)| a.0 == b.0[..] && a.1 == *b.1)
        );
        assert!(walked.iter().zip(&seen).all(|(a, b)| *a.0 == *b.0 && a.1 == b.1));
        assert!(keys.iter().zip(&seen).all(|(a, b)| **a == *b.0) && keys.len() == seen.len());
        assert_eq!(walked.len(), seen.len());
    }
}
