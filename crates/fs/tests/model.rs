//! The tree does what a sorted map does.

use crate::common::{Rig, assert_clean, contents, make};
use fs::check::check;
use fs::edit::Room;
use fs::format::{Key, Kind, ROOT_INODE};
use fs::inode::Inode;
use fs::media::Error;
use fs::node::CAPACITY;
use fs::tree::{Tree, View};

#[test]
fn a_new_file_system_is_clean_and_has_a_root_directory() {
    let (disks, volume) = make(&[256, 16, 16]);
    let report = check(&disks);
    assert_clean(&report);
    assert_eq!(
        (&report.roots[..], report.nodes, report.entries),
        (&[1][..], 1, 2)
    );
    let mut tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
    assert_eq!(tree.free(0), 256 - 4 - 2);
    let key = Key::new(ROOT_INODE, Kind::Inode, 0);
    let value = tree
        .get(&disks, View::Pending, key)
        .expect("it is whole")
        .expect("it is there");
    assert!(Inode::parse(&value).expect("it makes sense").is_directory());
    assert_eq!((tree.take_inode(), tree.take_inode(), tree.take_log()), (2, 3, 1));
}

#[test]
fn devices_that_are_too_small_or_foreign_are_refused() {
    let small = std::panic::catch_unwind(|| make(&[255]));
    assert!(small.is_err());
    let (mut disks, _) = make(&[256, 16]);
    disks.blocks[1] = 15;
    assert_eq!(fs::media::Volume::read(&disks), Err(Error::Shrunk(1)));
    disks.blocks.pop();
    assert_eq!(fs::media::Volume::read(&disks), Err(Error::Foreign(0)));
}

#[test]
fn random_changes_commits_and_openings_do_what_a_map_does() {
    for seed in 0..24 {
        let blocks = [&[4000][..], &[900, 200], &[600, 100, 100]][seed as usize % 3];
        let mut rig = Rig::new(blocks, seed);
        rig.disks.records = false;
        rig.inodes = 1 + seed % 7;
        for step in 0..3000 {
            if !rig.change() || rig.rng.chance(0.02) {
                rig.commit();
            }
            if rig.rng.chance(0.003) {
                rig.reopen();
            }
            if step % 200 == 0 {
                rig.verify();
            }
        }
        rig.commit();
        rig.verify();
        rig.check_committed();
        rig.reopen();
        rig.verify();
    }
}

#[test]
fn gets_and_ranges_find_what_there_is() {
    let mut rig = Rig::new(&[2000], 1);
    for _ in 0..2000 {
        rig.change();
        if rig.rng.chance(0.02) {
            rig.commit();
        }
        let (key, other) = (rig.key(), rig.key());
        let found = rig.tree.get(&rig.disks, View::Pending, key).expect("it is whole");
        assert_eq!(found.as_deref(), rig.model.get(&key).map(Vec::as_slice));
        let (first, last) = (key.min(other), key.max(other));
        let mut entries = rig.tree.range(View::Pending, first..=last);
        let mut model = rig.model.range(first..=last);
        while let Some((key, value)) = entries.next(&mut rig.tree, &rig.disks).expect("it is whole") {
            assert_eq!(model.next(), Some((&key, &value.to_vec())));
        }
        assert!(model.next().is_none());
    }
}

#[test]
fn a_range_sees_changes_behind_it_and_a_snapshot_sees_none() {
    let mut rig = Rig::new(&[4000], 2);
    rig.value_bytes = 100;
    while rig.model.len() < 300 {
        rig.change();
    }
    rig.commit();
    let root = *rig.tree.committed();
    rig.tree.set_oldest(Some(root.generation));
    let old = rig.model.clone();
    let keys = Key::new(0, Kind::Log, 0)..=Key::new(u64::MAX, Kind::Extent, u64::MAX);
    let (mut now, mut then) = (
        rig.tree.range(View::Pending, keys.clone()),
        rig.tree.range(View::Root(root), keys),
    );
    let mut at = None;
    for (key, value) in &old {
        let found = then.next(&mut rig.tree, &rig.disks).expect("it is whole");
        assert_eq!(
            found.map(|(key, value)| (key, value.to_vec())),
            Some((*key, value.clone()))
        );
        // Commits in between reuse all that the snapshot does not need.
        for _ in 0..5 {
            rig.change();
        }
        if rig.rng.chance(0.2) {
            rig.commit();
        }
        let expected = rig.model.iter().find(|(key, _)| at.is_none_or(|at| **key > at));
        let found = now.next(&mut rig.tree, &rig.disks).expect("it is whole");
        assert_eq!(found.as_ref().map(|(key, _)| key), expected.map(|(key, _)| key));
        at = found.map(|(key, _)| key).or(at);
    }
    assert!(
        then.next(&mut rig.tree, &rig.disks)
            .expect("it is whole")
            .is_none()
    );
    let found = contents(&mut rig.tree, &rig.disks, View::Root(root)).expect("it is whole");
    assert_eq!(found, old);
}

#[test]
fn blocks_of_a_snapshot_are_held_until_it_is_left() {
    let mut rig = Rig::new(&[2000], 4);
    while rig.model.len() < 200 {
        rig.change();
    }
    rig.commit();
    let root = *rig.tree.committed();
    rig.tree.set_oldest(Some(root.generation));
    let all = Key::new(2, Kind::Inode, 0)..=Key::new(u64::MAX, Kind::Target, u64::MAX);
    rig.tree.remove_range(&rig.disks, all).expect("there is room");
    for _ in 0..4 {
        rig.tree.commit(&mut rig.disks).expect("there is room");
    }
    let held = rig.tree.room();
    rig.tree.set_oldest(None);
    assert!(rig.tree.room() > held + 10, "{} after {held}", rig.tree.room());
}

#[test]
fn what_is_changed_while_a_commit_is_under_way_is_for_the_next_one() {
    for seed in 0..12 {
        let mut rig = Rig::new(&[1500, 100], seed);
        for _ in 0..30 {
            for _ in 0..rig.rng.below(60) {
                rig.change();
            }
            rig.roots.insert(rig.tree.generation(), rig.model.clone());
            let plan = rig.tree.plan(&rig.disks).expect("there is room");
            assert_eq!(rig.tree.plan(&rig.disks).err(), Some(Error::Busy));
            for _ in 0..rig.rng.below(60) {
                rig.change();
            }
            rig.verify();
            plan.carry_out(&mut rig.disks).expect("nothing fails");
            rig.tree.finish();
            rig.verify();
            rig.check();
            if rig.rng.chance(0.1) {
                rig.reopen();
            }
        }
    }
}

#[test]
fn the_tree_is_low_and_its_nodes_are_filled() {
    let counts = [(false, 20_000u64), (true, 20_000)];
    for (is_sorted, count) in counts {
        let (mut disks, volume) = make(&[32_000]);
        let mut tree = Tree::open(&disks, &volume, 1 << 24).expect("it is whole");
        let mut rng = base::Rng::new(1);
        for index in 0..count {
            let inode = if is_sorted { index + 2 } else { rng.next_u64() | 2 };
            let key = Key::new(inode, Kind::Entry, 0);
            tree.insert(&disks, key, &[7; 40], Room::Normal)
                .expect("there is room");
            if index % 1000 == 0 {
                tree.commit(&mut disks).expect("there is room");
            }
        }
        tree.commit(&mut disks).expect("there is room");
        let report = check(&disks);
        assert_clean(&report);
        let fill = report.entries as f64 * 59.0 / (report.nodes as f64 * CAPACITY as f64);
        let least = if is_sorted { 0.72 } else { 0.6 };
        assert!(
            tree.levels() == 3 && fill > least,
            "{} levels, {fill}",
            tree.levels()
        );
    }
}

#[test]
fn a_cache_has_no_more_than_its_limit_and_what_is_pinned() {
    let mut rig = Rig::new(&[4000], 1);
    rig.cache_bytes = 40_000;
    rig.reopen();
    for _ in 0..3000 {
        if !rig.change() || rig.rng.chance(0.01) {
            rig.commit();
        }
    }
    rig.commit();
    let keys: Vec<_> = rig.model.keys().copied().collect();
    for key in keys {
        let found = rig.tree.get(&rig.disks, View::Pending, key).expect("it is whole");
        assert_eq!(found.as_deref(), rig.model.get(&key).map(Vec::as_slice));
        assert!(rig.tree.cached() <= 40_000 / 4096 + 4, "{}", rig.tree.cached());
    }
}
