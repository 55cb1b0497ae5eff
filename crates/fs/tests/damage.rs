//! Damage: each flipped bit is found, each wrong owner is told, and nothing that a medium says makes a panic.

use crate::common;
use crate::common::{Disks, Rig, contents, make};
use base::Rng;
use fs::check::{Meaning, Owner, check};
use fs::edit::Room;
use fs::format::{BLOCK_BYTES, Key, Kind, Place, Pointer, Root, Sort, seal, unseal_any};
use fs::media::Volume;
use fs::tree::{Tree, View};
use fs::value::{ExtentRecord, LogRecord, Run};

/// The blocks that the newest root reaches, the superblocks and the root itself.
fn reached(disks: &Disks, volume: &Volume, newest: u64) -> Vec<Place> {
    let mut places = Vec::new();
    for (place, block) in &disks.data {
        let sorts = [Sort::Superblock, Sort::Root, Sort::Node, Sort::Bitmap];
        let is_sealed = sorts
            .iter()
            .any(|sort| unseal_any(block, *sort, *place, volume.mark).is_ok());
        let mut damaged = disks.clone();
        damaged.data.get_mut(place).expect("it is there")[2000] ^= 1;
        let findings = check(&damaged).findings;
        let is_reached = findings
            .iter()
            .any(|it| it.root.is_none_or(|root| root == newest));
        if is_sealed && is_reached {
            places.push(*place);
        }
    }
    places
}

#[test]
fn every_flipped_bit_of_each_block_that_the_newest_root_reaches_is_found() {
    let mut rig = Rig::new(&[256, 16], 1);
    rig.value_bytes = 300;
    while rig.tree.levels() < 2 || rig.model.len() < 60 {
        rig.change();
    }
    rig.commit();
    rig.commit();
    let newest = rig.tree.committed().generation;
    let places = reached(&rig.disks, &rig.volume, newest);
    let report = check(&rig.disks);
    // Four superblocks, two roots, and at least two nodes below another one, and a bitmap.
    assert!(report.is_clean() && report.nodes > 2, "{report:?}");
    assert!(places.len() as u64 > 6 + report.nodes, "{places:?}");
    let mut disks = rig.disks.clone();
    for place in places {
        for bit in 0..BLOCK_BYTES * 8 {
            // Each bit of the heads, and a bit of each byte behind.
            if bit > 1024 && bit % 8 != bit / 8 % 8 {
                continue;
            }
            disks.data.get_mut(&place).expect("it is there")[bit / 8] ^= 1 << (bit % 8);
            let report = check(&disks);
            let is_found = report.findings.iter().any(|finding| finding.place == place);
            assert!(
                is_found || !report.is_clean() && place.number() < 2,
                "bit {bit} of {place}"
            );
            disks.data.get_mut(&place).expect("it is there")[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert!(check(&disks).is_clean());
}

/// Blocks whose seals fit and whose content is anything: a worse medium than there is.
#[test]
fn nothing_on_a_medium_makes_a_panic() {
    let mut outcomes = [0; 3];
    for seed in 0..2500 {
        let mut rig = Rig::new(&[256, 20], 1000 + seed % 20);
        for _ in 0..40 {
            rig.change();
        }
        rig.commit();
        let mut rng = Rng::new(seed);
        let places: Vec<_> = rig
            .disks
            .data
            .keys()
            .copied()
            .filter(|place| place.number() > 1)
            .collect();
        for _ in 0..rng.between(1, 3) {
            let place = places[rng.below(places.len() as u64) as usize];
            let block = rig.disks.data.get_mut(&place).expect("it is there");
            scramble(block, place, rig.volume.mark, &mut rng);
        }
        let report = check(&rig.disks);
        outcomes[0] += u32::from(!report.is_clean());
        for finding in &report.findings {
            assert!(finding.to_string().len() > 20);
        }
        let Ok(mut tree) = Tree::open(&rig.disks, &rig.volume, 10_000) else {
            outcomes[1] += 1;
            continue;
        };
        rig.tree.fail();
        let _ = contents(&mut tree, &rig.disks, View::Pending);
        for step in 0..60 {
            let key = rig.key();
            let result = match step % 3 {
                0 => tree.insert(&rig.disks, key, &[1; 300], Room::Normal),
                1 => tree.remove(&rig.disks, key).map(|_| ()),
                _ => match tree.reserve(&rig.disks, (step % 2) as u8, 9, Some(places[0])) {
                    Ok(run) => tree
                        .keep(&rig.disks, run)
                        .and_then(|()| tree.release(&rig.disks, run)),
                    Err(error) => Err(error),
                },
            };
            outcomes[2] += u32::from(result.is_err());
            if step % 20 == 19 {
                let _ = tree.commit(&mut rig.disks);
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
}

/// Changes some bytes, and seals the block anew.
fn scramble(block: &mut [u8; BLOCK_BYTES], place: Place, mark: u64, rng: &mut Rng) {
    let sorts = [Sort::Root, Sort::Node, Sort::Bitmap];
    for sort in sorts {
        let Ok(generation) = unseal_any(block, sort, place, mark) else {
            continue;
        };
        for _ in 0..rng.between(1, 3) {
            let last = [48, 200, BLOCK_BYTES as u64 - 1][rng.below(3) as usize];
            let at = rng.between(32, last) as usize;
            block[at] = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => block[at].wrapping_add(1),
                _ => rng.next_u64() as u8,
            };
        }
        seal(block, sort, Pointer { place, generation }, mark);
    }
}

fn extent(place: Place, blocks: u64) -> Vec<u8> {
    let run = Run { place, blocks };
    ExtentRecord {
        run,
        crcs: Vec::new(),
    }
    .emit()
}

#[test]
fn the_check_tells_of_wrong_owners() {
    let (mut disks, volume) = make(&[256, 64]);
    let mut tree = Tree::open(&disks, &volume, 1 << 20).expect("it is whole");
    let insert = |tree: &mut Tree, key, value: &[u8]| {
        tree.insert(&disks, key, value, Room::Normal)
            .expect("there is room");
    };
    let run = tree
        .reserve(&common::make(&[256, 64]).0, 1, 20, None)
        .expect("there is room");
    let first = Key::new(2, Kind::Extent, 0);
    insert(&mut tree, first, &extent(run.place, 10));
    // Shared by another file and a log, and free.
    insert(
        &mut tree,
        Key::new(3, Kind::Extent, 0),
        &extent(run.place.plus(8), 4),
    );
    let log = LogRecord {
        extents: vec![Run {
            place: run.place.plus(30),
            blocks: 2,
        }],
        ..LogRecord::default()
    };
    insert(&mut tree, Key::new(0, Kind::Log, 1), &log.emit());
    // Outside, overlapping, and nonsense.
    insert(
        &mut tree,
        Key::new(4, Kind::Extent, 0),
        &extent(Place::new(1, 60), 10),
    );
    insert(
        &mut tree,
        Key::new(5, Kind::Extent, 7),
        &extent(run.place.plus(40), 3),
    );
    insert(
        &mut tree,
        Key::new(5, Kind::Extent, 9),
        &extent(run.place.plus(43), 3),
    );
    insert(&mut tree, Key::new(6, Kind::Extent, 9), &[1, 2, 3]);
    tree.keep(&disks, run).expect("it was reserved");
    tree.commit(&mut disks).expect("there is room");
    let findings = check(&disks).findings;
    let has = |meaning: Meaning, number: u64| {
        let place = Place::new(1, number);
        assert!(
            findings
                .iter()
                .any(|it| it.meaning == meaning && (it.place == place || number == 0)),
            "{meaning:?} is not in {findings:#?}"
        );
    };
    let owner = |inode, block| Owner::Extent { inode, block };
    let (first, second) = (owner(2, 0), owner(3, 0));
    has(
        Meaning::Shared {
            blocks: 2,
            first,
            second,
        },
        12,
    );
    has(Meaning::Unmarked(2, Owner::Log(1)), 34);
    has(Meaning::Outside(10, owner(4, 0)), 60);
    has(Meaning::Overlap { inode: 5, block: 9 }, 0);
    has(Meaning::Value(Key::new(6, Kind::Extent, 9)), 0);
    has(Meaning::Unowned(8), 16);
    has(Meaning::Unmarked(3, owner(5, 7)), 44);
    has(Meaning::Unmarked(3, owner(5, 9)), 47);
    assert_eq!(findings.len(), 8, "{findings:#?}");
}

#[test]
fn the_check_tells_of_wrong_counts_gaps_and_superblocks() {
    let mut rig = Rig::new(&[256], 3);
    rig.commit();
    let root = *rig.tree.committed();
    let place = Root::place_of(root.generation);
    let wrong = Root {
        free: [7, 1, 0, 0, 0, 0, 0, 0],
        ..root
    };
    let mut disks = rig.disks.clone();
    disks.data.insert(place, wrong.emit(rig.volume.mark));
    let found: Vec<_> = check(&disks)
        .findings
        .iter()
        .map(|it| it.meaning.clone())
        .collect();
    let (said, right) = (7, root.free[0]);
    let expected = [
        Meaning::Free {
            device: 0,
            said,
            found: right,
        },
        Meaning::Free {
            device: 1,
            said: 1,
            found: 0,
        },
    ];
    assert_eq!(found, expected);
    let later = Root {
        generation: root.generation + 2,
        ..root
    };
    let mut disks = rig.disks.clone();
    disks.data.insert(place, later.emit(rig.volume.mark));
    let found = check(&disks).findings;
    assert_eq!(
        found[0].meaning,
        Meaning::Gap(root.generation - 1, root.generation + 2)
    );
    let mut disks = rig.disks.clone();
    let mut other = rig.volume.devices[0];
    other.blocks -= 1;
    disks.data.insert(Place::new(0, 1), other.emit(1));
    let found = check(&disks).findings;
    assert_eq!((found.len(), &found[0].meaning), (1, &Meaning::Superblocks));
    disks.data.remove(&Place::new(0, 0));
    let report = check(&Disks {
        blocks: vec![255],
        ..disks.clone()
    });
    assert!(matches!(report.findings[0].meaning, Meaning::Volume(_)) || report.findings.len() == 1);
    disks.data.remove(&Place::new(0, 1));
    assert!(matches!(check(&disks).findings[0].meaning, Meaning::Volume(_)));
}

/// A damaged node takes what is below it; the rest is read, and told of.
#[test]
fn one_damaged_node_does_not_take_the_others() {
    let mut rig = Rig::new(&[2000], 2);
    rig.inodes = 30;
    while rig.model.len() < 300 {
        rig.change();
    }
    rig.commit();
    rig.commit();
    let newest = rig.tree.committed().tree.place;
    let nodes: Vec<_> = rig
        .disks
        .data
        .iter()
        .filter(|(place, block)| {
            **place != newest && unseal_any(block, Sort::Node, **place, rig.volume.mark).is_ok()
        })
        .map(|(place, _)| *place)
        .collect();
    let (mut seen, mut refusals) = (0, 0);
    for place in nodes {
        let mut disks = rig.disks.clone();
        disks.data.get_mut(&place).expect("it is there")[77] ^= 4;
        let findings = check(&disks).findings;
        if findings.is_empty() {
            continue;
        }
        assert!(findings.iter().all(|it| it.place == place), "{findings:#?}");
        let mut tree = Tree::open(&disks, &rig.volume, 1 << 20).expect("the top is whole");
        let read = rig.model.iter().filter(|(key, value)| {
            tree.get(&disks, View::Pending, **key).ok().flatten().as_deref() == Some(value)
        });
        let read = read.count();
        assert!(read > rig.model.len() / 2 || tree.committed().generation < rig.tree.committed().generation);
        seen += usize::from(read < rig.model.len());
        // Without the records of zones nothing can be changed, but read.
        let key = rig.key();
        let refusal = tree.refuses();
        let result = tree.insert(&disks, key, &[], Room::Normal);
        if let Some(refusal) = refusal {
            refusals += 1;
            assert_eq!((result, tree.commit(&mut disks)), (Err(refusal), Err(refusal)));
        }
    }
    assert!(seen > 5 && refusals == 1, "{seen} {refusals}");
}
