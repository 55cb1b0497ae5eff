//! Batches that expect versions of keys: beside a model that counts the writes of each key.

use crate::common::{Owned, Rig, borrow, seeds};
use std::collections::BTreeMap;
use store::{Conditional, Durability, Expected, Fetch, Kind, Op, StructureId, SubmitError};
use store::{Uncached, Version};

fn rig(seed: u64) -> Rig {
    crate::common::with_and_without_tables(seed, [6, 30][seed as usize / 6 % 2])
}

/// Value and version of a key, as a reader finds them.
fn read(rig: &mut Rig, map: StructureId, key: &[u8]) -> Option<(Vec<u8>, Version)> {
    match rig.engine.get_versioned(map, key)? {
        (Fetch::Search(search), _) => {
            let piece = search.run(&mut Uncached(&rig.image)).expect("sound")?;
            let version = rig.engine.version_of(&piece);
            Some((piece.value().expect("it is no removal").to_vec(), version))
        }
        (fetch, version) => {
            let value = crate::common::value(fetch, &rig.image).expect("sound");
            Some((value, version.expect("memory has it")))
        }
    }
}

/// Submits with expectations, looking tables up as often as need be. `None`: busy.
fn submit_if(rig: &mut Rig, ops: &[Op<'_>], expected: &[Expected<'_>]) -> Option<Conditional> {
    let mut known = Vec::new();
    for _ in 0..3 {
        match rig.engine.submit_if(ops, expected, &known, None) {
            Ok(Conditional::Look(searches)) => {
                let all = searches.into_iter();
                let look = |search: store::Search| search.known(&mut Uncached(&rig.image)).expect("sound");
                known.extend(all.map(look));
            }
            Ok(outcome) => return Some(outcome),
            Err(SubmitError::Busy | SubmitError::NoSpace) => return None,
            Err(error) => panic!("refused: {error}"),
        }
    }
    panic!("nothing leaves memory meanwhile");
}

/// How often each key was written or removed by what is durable, or shown.
type Writes = BTreeMap<(StructureId, Vec<u8>), u64>;

struct Told {
    map: StructureId,
    key: Vec<u8>,
    version: Option<Version>,
    /// Writes of the key at that time.
    writes: u64,
    moved_bytes: u64,
}

fn count(writes: &mut Writes, op: &Owned) {
    if let Owned::Put(id, key, _) | Owned::Remove(id, key) = op {
        *writes.entry((*id, key.clone())).or_default() += 1;
    }
}

/// One conditional change, after everything before it is durable.
fn change(rig: &mut Rig, writes: &mut Writes, told: &[&Told], seen: &mut [u64; 3]) {
    let target = told[0];
    let op = match rig.rng.chance(0.3) {
        true => Owned::Remove(target.map, target.key.clone()),
        false => Owned::Put(
            target.map,
            target.key.clone(),
            vec![7; rig.rng.below(40) as usize],
        ),
    };
    let expected: Vec<Expected<'_>> = told
        .iter()
        .map(|it| Expected {
            map: it.map,
            key: &it.key,
            version: it.version,
        })
        .collect();
    let present = |rig: &Rig, writes: &Writes, it: &Told| {
        let is_same = writes.get(&(it.map, it.key.clone())).copied().unwrap_or(0) == it.writes;
        let entries = &rig.base[&it.map].entries;
        is_same || (it.version.is_none() && !entries.contains_key(&it.key))
    };
    match submit_if(rig, &[borrow(&op)], &expected) {
        None => {}
        Some(Conditional::Done(receipt)) => {
            assert!(
                told.iter().all(|it| present(rig, writes, it)),
                "an update was lost"
            );
            count(writes, &op);
            rig.log.push((receipt.ticket.0, op));
            seen[0] += 1;
        }
        Some(Conditional::Conflict(nth)) => {
            let it = told[nth];
            if present(rig, writes, it) {
                // It has moved, more often than is remembered: not in so short a run, but for an opening between.
                assert!(
                    it.moved_bytes == u64::MAX,
                    "refused without a reason: {:?}",
                    it.version
                );
                seen[2] += 1;
            }
            seen[1] += 1;
        }
        Some(Conditional::Look(_)) => unreachable!("looked up above"),
    }
}

#[test]
fn no_update_is_lost_and_none_is_refused_without_a_reason() {
    let (mut seen, mut moved, mut tables) = ([0; 3], 0, 0);
    for seed in 0..seeds(40) {
        let mut rig = rig(11_000 + seed);
        let mut writes = Writes::new();
        let mut told: Vec<Told> = Vec::new();
        for _ in 0..700 {
            if rig.rng.chance(0.01) {
                rig.settle();
                let image = rig.image.clone();
                moved += rig.engine.stats().moved_bytes;
                rig.restart(image);
                told.iter_mut().for_each(|it| it.moved_bytes = u64::MAX);
            }
            let before = rig.log.len();
            for _ in 0..rig.rng.below(4) {
                rig.random_batch();
            }
            let submitted: Vec<Owned> = rig.log[before..].iter().map(|(_, op)| op.clone()).collect();
            submitted.iter().for_each(|op| count(&mut writes, op));
            rig.settle();
            let maps: Vec<StructureId> = rig
                .engine
                .structures()
                .filter(|(_, _, kind, ..)| matches!(kind, Kind::Map | Kind::Tree))
                .map(|(_, id, ..)| id)
                .collect();
            for &map in &maps {
                let key = vec![b'k', rig.rng.below(rig.keys) as u8];
                let found = read(&mut rig, map, &key);
                let entry = rig.base[&map].entries.get(&key);
                assert_eq!(found.as_ref().map(|(value, _)| value), entry, "seed {seed}");
                told.push(Told {
                    map,
                    version: found.map(|(_, version)| version),
                    writes: writes.get(&(map, key.clone())).copied().unwrap_or(0),
                    key,
                    moved_bytes: 0,
                });
            }
            let chosen: Vec<usize> = (0..1 + rig.rng.below(2))
                .map(|_| rig.rng.below(told.len().min(40) as u64) as usize)
                .collect();
            let newest = told.len() - 1;
            let chosen: Vec<&Told> = chosen.into_iter().map(|back| &told[newest - back]).collect();
            change(&mut rig, &mut writes, &chosen, &mut seen);
            rig.settle();
        }
        let stats = rig.engine.stats();
        moved += stats.moved_bytes;
        tables += stats.tables;
    }
    let [done, conflicts, spurious] = seen;
    assert!(done > 4000 && conflicts > 1000, "{done}, {conflicts}");
    assert!(
        moved > 10_000 && tables > 20,
        "{moved} bytes moved, {tables} tables"
    );
    assert!(spurious < conflicts / 10, "{spurious} of {conflicts}");
}

#[test]
fn a_write_on_its_way_is_waited_for() {
    let mut rig = rig(1);
    let map = rig.create(Kind::Map, Durability::Sync).expect("room");
    rig.settle();
    let put = |data| Op::Put {
        map,
        key: b"key",
        data,
    };
    let absent = Expected {
        map,
        key: b"key",
        version: None,
    };
    rig.engine.submit(&[put(b"1")]).expect("room");
    assert!(submit_if(&mut rig, &[put(b"2")], &[absent]).is_none(), "busy");
    let other = Expected {
        key: b"other",
        ..absent
    };
    let done = submit_if(&mut rig, &[], &[other]);
    assert!(matches!(done, Some(Conditional::Done(_))), "{done:?}");
    rig.settle();
    let conflict = submit_if(&mut rig, &[put(b"2")], &[other, absent]);
    assert!(matches!(conflict, Some(Conditional::Conflict(1))), "{conflict:?}");
    let (value, version) = read(&mut rig, map, b"key").expect("it is there");
    assert_eq!(value, b"1");
    let same = Expected {
        version: Some(version),
        ..absent
    };
    assert!(matches!(
        submit_if(&mut rig, &[put(b"1")], &[same]),
        Some(Conditional::Done(_))
    ));
    rig.settle();
    let (value, newer) = read(&mut rig, map, b"key").expect("it is there");
    assert!(
        value == b"1" && newer != version,
        "the same value, and another write"
    );
    assert!(matches!(
        submit_if(&mut rig, &[put(b"3")], &[same]),
        Some(Conditional::Conflict(0))
    ));
}

#[test]
fn what_is_no_key_of_a_map_is_refused() {
    let mut rig = rig(0);
    let log = rig.create(Kind::Log, Durability::Sync).expect("room");
    let of = |map| Expected {
        map,
        key: b"key",
        version: None,
    };
    for map in [log, StructureId(77)] {
        let refused = rig.engine.submit_if(&[], &[of(map)], &[], None);
        assert_eq!(refused.err(), Some(SubmitError::NoStructure));
    }
}
