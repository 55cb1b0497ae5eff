//! Full devices: errors before anything is changed, deletions work, and nothing leaks.

use crate::common::{Rig, assert_clean, make};
use fs::check::check;
use fs::client::Budget;
use fs::edit::Room;
use fs::format::{Key, Kind, Place, ZONE_BLOCKS};
use fs::media::{Error, Media};
use fs::space::LOADED_MIN;
use fs::tree::{Tree, View};
use fs::value::{ExtentRecord, Run};

/// Fills it with changes until nothing more fits.
fn fill(rig: &mut Rig) {
    let mut refused = 0;
    while refused < 40 {
        let result = match rig.rng.below(3) {
            0 => rig.add_extent(),
            _ => {
                let key = rig.key();
                let value = vec![3; rig.rng.below(1025) as usize];
                let result = rig.tree.insert(&rig.disks, key, &value, Room::Normal);
                if result.is_ok() {
                    rig.model.insert(key, value);
                }
                result
            }
        };
        match result {
            Ok(()) => {}
            Err(Error::Full(_)) => {
                refused += 1;
                rig.verify();
                rig.commit();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What promises count on: many changes of few nodes take no more than all nodes, however often they are committed.
#[test]
fn changes_take_no_more_room_than_is_promised() {
    for seed in 0..24 {
        let mut rig = Rig::new(&[6000], seed);
        rig.disks.records = false;
        rig.inodes = 1 + seed % 7;
        rig.value_bytes = 300;
        for _ in 0..rig.rng.below(600) {
            rig.change();
        }
        for _ in 0..3 {
            rig.commit();
        }
        rig.check_committed();
        let budget = Budget::of(&rig.tree, &[0]);
        let (before, mut keys) = (rig.tree.room(), 0);
        let commits = [0.0, 0.01, 0.3][seed as usize % 3];
        for _ in 0..1500 {
            let key = rig.key();
            match rig.rng.below(3) {
                0 => {
                    let removed = rig.tree.remove(&rig.disks, key).expect("it is not full");
                    assert_eq!(removed, rig.model.remove(&key).is_some());
                }
                _ => {
                    let value = vec![7; rig.rng.below(301) as usize];
                    let done = rig.tree.insert(&rig.disks, key, &value, Room::Normal);
                    done.expect("it is not full");
                    rig.model.insert(key, value);
                }
            }
            keys += 1;
            let taken = before.saturating_sub(rig.tree.room());
            assert!(
                taken <= budget.for_tree(keys, 0),
                "seed {seed}: {taken} blocks for {keys} keys"
            );
            if rig.rng.chance(commits) {
                rig.commit();
                keys += 1;
            }
        }
        assert!(
            budget.for_tree(keys, 0) < keys * budget.key,
            "all nodes are fewer than each key's"
        );
        rig.commit();
        rig.check_committed();
    }
}

#[test]
fn deletions_of_a_full_file_system_work_and_give_all_back() {
    for seed in 0..12 {
        let blocks = [&[256][..], &[300, 40], &[400, 16, 16]][seed as usize % 3];
        let mut rig = Rig::new(blocks, seed);
        rig.disks.records = false;
        rig.inodes = 40;
        let devices = blocks.len() as u8;
        let empty: Vec<_> = (0..devices).map(|device| rig.tree.free(device)).collect();
        for round in 0..3 {
            fill(&mut rig);
            assert!(rig.model.len() > 30, "{}", rig.model.len());
            rig.check();
            if round == 1 {
                rig.reopen();
            }
            // One at a time, each in a commit of its own: the hardest way.
            while rig.model.len() > 1 {
                if rig.model.keys().any(|key| key.kind == Kind::Extent) {
                    rig.remove_extent().expect("deletions work");
                } else {
                    let key = rig.any(|key| key.inode > 1).expect("there are more");
                    assert_eq!(rig.tree.remove(&rig.disks, key), Ok(true));
                    rig.model.remove(&key);
                }
                rig.commit();
            }
            rig.verify();
            for _ in 0..3 {
                rig.commit();
            }
            rig.check();
            let left: Vec<_> = (0..devices).map(|device| rig.tree.free(device)).collect();
            assert_eq!(left, empty, "seed {seed}");
        }
    }
}

/// A transaction may delete so much as the reserve is for, and then a commit makes room for the next one.
#[test]
fn a_full_file_system_takes_deletions_of_many_keys_and_updates_beside_them() {
    for seed in 0..6 {
        let mut rig = Rig::new(&[700], seed);
        rig.disks.records = false;
        rig.inodes = 60;
        fill(&mut rig);
        let (count, mut commits) = (rig.model.len(), 0);
        while rig.model.len() > 1 {
            let key = *rig.model.keys().nth(1).expect("there are more");
            let root = Key::new(1, Kind::Inode, 0);
            let value = rig.model[&root].clone();
            let updated = rig.tree.insert(&rig.disks, root, &value, Room::Reserve);
            match updated.and_then(|()| rig.tree.remove(&rig.disks, key)) {
                Ok(is_removed) => {
                    assert!(is_removed);
                    let value = rig.model.remove(&key).expect("it was there");
                    if key.kind == Kind::Extent {
                        let run = ExtentRecord::parse(&value).expect("it was emitted").run;
                        rig.tree.release(&rig.disks, run).expect("it was in use");
                    }
                }
                Err(Error::Full(0)) => {
                    rig.commit();
                    commits += 1;
                    assert!(
                        commits < count,
                        "deletions come to a halt with {} keys",
                        rig.model.len()
                    );
                }
                Err(error) => panic!("{error}"),
            }
        }
        rig.commit();
        rig.check();
    }
}

/// Zones are made and given up as blocks are needed; a bitmap is in any zone.
#[test]
fn a_device_of_three_zones_fills_and_empties() {
    let blocks = 2 * ZONE_BLOCKS + 1000;
    let (mut disks, volume) = make(&[blocks, ZONE_BLOCKS + 500]);
    let mut tree = Tree::open(&disks, &volume, 1 << 24).expect("it is whole");
    let empty = [tree.free(0), tree.free(1)];
    for round in 0..2 {
        let mut keys: Vec<(Key, Run)> = Vec::new();
        for device in [1, 0] {
            loop {
                let near = keys.last().map(|(_, run)| run.end());
                let run = match tree.reserve(&disks, device, 128, near) {
                    Ok(run) => run,
                    Err(Error::Full(_)) => break,
                    Err(error) => panic!("{error}"),
                };
                let key = Key::new(9, Kind::Extent, 128 * keys.len() as u64);
                let value = ExtentRecord {
                    run,
                    crcs: Vec::new(),
                }
                .emit();
                match tree.insert(&disks, key, &value, Room::Normal) {
                    Ok(()) => {
                        tree.keep(&disks, run).expect("it was reserved");
                        keys.push((key, run));
                    }
                    Err(Error::Full(0)) => {
                        tree.give_back(&disks, run).expect("it was reserved");
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
                if keys.len().is_multiple_of(100) {
                    tree.commit(&mut disks).expect("there is room");
                }
            }
        }
        tree.commit(&mut disks).expect("there is room");
        let report = check(&disks);
        assert_clean(&report);
        assert!(report.used > blocks - 200 + ZONE_BLOCKS, "{}", report.used);
        tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
        // From behind, and across: the last zones go first, or holes come everywhere.
        let order: Vec<_> = match round {
            0 => keys.iter().rev().collect(),
            _ => keys
                .iter()
                .step_by(2)
                .chain(keys.iter().skip(1).step_by(2))
                .collect(),
        };
        for (index, (key, run)) in order.into_iter().enumerate() {
            assert_eq!(tree.remove(&disks, *key), Ok(true));
            tree.release(&disks, *run).expect("it was in use");
            if index % 50 == 0 {
                tree.commit(&mut disks).expect("there is room");
            }
            if index % 200 == 0 {
                assert_clean(&check(&disks));
            }
        }
        for _ in 0..4 {
            tree.commit(&mut disks).expect("there is room");
        }
        assert_clean(&check(&disks));
        assert_eq!([tree.free(0), tree.free(1)], empty);
    }
}

/// A file system of many zones keeps the bitmaps of few in memory, and frees and allocates in all.
#[test]
fn bitmaps_in_memory_are_bounded() {
    let zones = 60;
    let (mut disks, volume) = make(&[2000, zones * ZONE_BLOCKS]);
    let mut tree = Tree::open(&disks, &volume, 1 << 16).expect("it is whole");
    let key = |zone: u64| Key::new(9, Kind::Extent, 128 * zone);
    let place = |zone: u64| Place::new(1, 4 + zone * ZONE_BLOCKS + 7);
    for zone in 0..zones {
        let run = Run {
            place: place(zone),
            blocks: 3,
        };
        tree.claim(&disks, run).expect("it is free");
        let crcs = Vec::new();
        let value = ExtentRecord { run, crcs }.emit();
        tree.insert(&disks, key(zone), &value, Room::Normal)
            .expect("there is room");
        tree.keep(&disks, run).expect("it was claimed");
        if zone % 5 == 0 {
            tree.commit(&mut disks).expect("there is room");
            tree.commit(&mut disks).expect("there is room");
        }
        assert!(tree.zones_loaded() <= LOADED_MIN + 12, "{}", tree.zones_loaded());
    }
    tree.commit(&mut disks).expect("there is room");
    for zone in (0..zones).rev() {
        let run = Run {
            place: place(zone),
            blocks: 3,
        };
        assert_eq!(tree.remove(&disks, key(zone)), Ok(true));
        tree.release(&disks, run).expect("it is in use");
        if zone % 5 == 0 {
            tree.commit(&mut disks).expect("there is room");
            tree.commit(&mut disks).expect("there is room");
            assert_clean(&check(&disks));
        }
        assert!(tree.zones_loaded() <= LOADED_MIN + 12, "{}", tree.zones_loaded());
    }
    assert_eq!(tree.free(1), zones * ZONE_BLOCKS - 4);
}

#[test]
fn runs_are_contiguous_and_near_and_across_no_end() {
    let (disks, volume) = make(&[3000, 64]);
    let mut tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
    let first = tree.reserve(&disks, 0, 100, None).expect("there is room");
    assert_eq!(first.blocks, 100);
    let second = tree
        .reserve(&disks, 0, 100, Some(first.end()))
        .expect("there is room");
    assert_eq!(second.place, first.end());
    tree.give_back(&disks, first).expect("it was reserved");
    let third = tree.reserve(&disks, 0, 101, None).expect("there is room");
    assert_eq!((third.place, third.blocks), (second.end(), 101));
    let fourth = tree.reserve(&disks, 0, 100, None).expect("there is room");
    assert_eq!(fourth, first);
    let all = tree.reserve(&disks, 1, 1000, None).expect("there is room");
    assert_eq!((all.place.number(), all.blocks), (4, 60));
    assert_eq!(tree.reserve(&disks, 1, 1, None), Err(Error::Full(1)));
    let part = Run {
        place: all.place.plus(10),
        blocks: 5,
    };
    tree.give_back(&disks, part).expect("it was reserved");
    assert_eq!(tree.give_back(&disks, part), Err(Error::NotOwned(part.place)));
    assert_eq!(tree.keep(&disks, part), Err(Error::NotOwned(part.place)));
    assert_eq!(tree.release(&disks, all), Err(Error::NotOwned(all.place)));
    tree.claim(&disks, part).expect("it is free");
    assert_eq!(tree.claim(&disks, part), Err(Error::NotOwned(part.place)));
    let outside = Run {
        place: all.place.plus(59),
        blocks: 2,
    };
    assert_eq!(tree.release(&disks, outside), Err(Error::NotOwned(outside.place)));
    // What was reserved and not kept is free when the file system is opened anew.
    let mut tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
    assert_eq!(tree.reserve(&disks, 1, 60, None).map(|run| run.blocks), Ok(60));
}

/// What was freed may be the last thing that the root before has: it is reused two commits later, and no sooner.
#[test]
fn freed_blocks_are_reused_two_commits_later() {
    let (mut disks, volume) = make(&[300, 20]);
    let mut tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
    let key = Key::new(2, Kind::Extent, 0);
    let run = tree.reserve(&disks, 1, 16, None).expect("there is room");
    tree.insert(
        &disks,
        key,
        &ExtentRecord {
            run,
            crcs: Vec::new(),
        }
        .emit(),
        Room::Normal,
    )
    .expect("there is room");
    tree.keep(&disks, run).expect("it was reserved");
    tree.commit(&mut disks).expect("there is room");
    for reopens in [false, true] {
        let mut disks = disks.clone();
        let mut tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
        assert_eq!(tree.remove(&disks, key), Ok(true));
        tree.release(&disks, run).expect("it was in use");
        assert_eq!(tree.reserve(&disks, 1, 1, None), Err(Error::Full(1)));
        tree.commit(&mut disks).expect("there is room");
        assert_eq!(tree.free(1), 16);
        if reopens {
            tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
        }
        assert_eq!(
            tree.reserve(&disks, 1, 1, None),
            Err(Error::Full(1)),
            "the root before needs it"
        );
        tree.commit(&mut disks).expect("there is room");
        assert_eq!(tree.reserve(&disks, 1, 16, None).map(|run| run.blocks), Ok(16));
        assert!(
            tree.get(&disks, View::Pending, key)
                .expect("it is whole")
                .is_none()
        );
        assert_eq!(disks.devices(), 2);
    }
}
