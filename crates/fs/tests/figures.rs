//! Figures, by hand: `cargo test --release -p switchyard-fs --test figures -- --ignored --nocapture`.
#![allow(clippy::disallowed_types, reason = "it measures")]

use base::Rng;
use fs::edit::Room;
use fs::format::{Key, Kind, Tier};
use fs::inode::Time;
use fs::make::Make;
use fs::tree::{Tree, View};
use std::time::Instant;
use uuid::Uuid;

const COUNT: u64 = 1_000_000;
const BATCH: u64 = 1000;

#[test]
#[ignore = "it measures, and takes a quarter of a gibibyte"]
fn inserts_and_lookups_of_a_million() {
    for (name, bytes, is_sorted) in [
        ("in order, 40 bytes", 40, true),
        ("random, 40 bytes", 40, false),
        ("random, 128 bytes", 128, false),
    ] {
        let mut disks = vec![vec![1u8; 600 << 20]];
        let make = Make {
            uuid: Uuid::from_u128(1 << 100),
            devices: vec![(Tier::Memory, Uuid::from_u128(2))],
            time: Time::default(),
            owner: (0, 0),
        };
        let volume = make.make(&mut disks).expect("it is large enough");
        let mut tree = Tree::open(&disks, &volume, 512 << 20).expect("it was just made");
        let key = |index: u64| match is_sorted {
            true => Key::new(2 + index / 100, Kind::Entry, index % 100),
            false => Key::new(2 + Rng::new(index).next_u64() / 2, Kind::Entry, 0),
        };
        let begin = Instant::now();
        for index in 0..COUNT {
            tree.insert(&disks, key(index), &vec![7; bytes], Room::Normal)
                .expect("there is room");
            if index % BATCH == BATCH - 1 {
                tree.commit(&mut disks).expect("there is room");
            }
        }
        let inserts = COUNT as f64 / begin.elapsed().as_secs_f64();
        let mut rng = Rng::new(3);
        let begin = Instant::now();
        for _ in 0..COUNT {
            let found = tree
                .get(&disks, View::Pending, key(rng.below(COUNT)))
                .expect("it is whole");
            assert!(found.is_some_and(|value| value.len() == bytes));
        }
        let lookups = COUNT as f64 / begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let (first, last) = (
            Key::new(1, Kind::Inode, 0),
            Key::new(u64::MAX, Kind::Extent, u64::MAX),
        );
        let (mut entries, mut count) = (tree.range(View::Pending, first..=last), 0);
        while entries.next(&mut tree, &disks).expect("it is whole").is_some() {
            count += 1;
        }
        let scanned = f64::from(count) / begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let report = fs::check::check(&disks);
        assert!(report.is_clean());
        println!(
            "{name}: {inserts:.0} inserts/s, {lookups:.0} lookups/s, {scanned:.0} entries of a range/s, {} nodes, \
             {} levels, check {:.2} s",
            report.nodes,
            tree.levels(),
            begin.elapsed().as_secs_f64(),
        );
    }
}
