//! Moves between devices: content stays what it is, through changes, cuts and damage.

use crate::common::{Disks, Event, assert_clean, cuts};
use crate::process::{Rig, assert_files};
use crate::program::Program;
use base::Rng;
use fs::check::{Depth, Meaning, check_to};
use fs::files::Body;
use fs::format::{BLOCK_BYTES, Key, Kind, Place, ROOT_INODE, Tier};
use fs::grants::Reason;
use fs::inode::Time;
use fs::migrate::{Move, Moved, Target};
use fs::op::{Action, Entry, Op};
use fs::tier::{Found, Options, Tiers, Unit, Usage};
use fs::tree::{Tree, View};
use fs::value::{ExtentRecord, Run};
use std::collections::BTreeMap;

type Extents = BTreeMap<(u64, u64), ExtentRecord>;

fn extents(tree: &mut Tree, disks: &Disks) -> Extents {
    let keys = Key::new(1, Kind::Inode, 0)..=Key::new(u64::MAX, Kind::Extent, u64::MAX);
    let mut range = tree.range(View::Pending, keys);
    let mut found = Extents::new();
    while let Some((key, value)) = range.next(tree, disks).expect("it is whole") {
        if key.kind == Kind::Extent {
            let extent = ExtentRecord::parse(&value).expect("it makes sense");
            found.insert((key.inode, key.number), extent);
        }
    }
    found
}

fn blocks_on(extents: &Extents, device: u8) -> u64 {
    let there = extents
        .values()
        .filter(|extent| extent.run.place.device() == device);
    there.map(|extent| extent.run.blocks).sum()
}

const DOWN: Target = Target {
    device: 1,
    run_blocks_min: 1,
    blocks_max: 1 << 18,
};
const UP: Target = Target { device: 0, ..DOWN };

fn plan(tree: &mut Tree, disks: &Disks, inodes: &[u64], target: Target) -> Option<Move> {
    let all = 0..1 << 40;
    let ranges: Vec<_> = inodes.iter().map(|inode| (*inode, all.clone())).collect();
    let from = [1 - target.device];
    Move::plan(tree, disks, (&from, &ranges), target).expect("the tree is whole")
}

fn run(rig: &mut Rig, inodes: &[u64], target: Target) -> Moved {
    let Some(mut planned) = plan(&mut rig.tree, &rig.disks, inodes, target) else {
        return Moved::default();
    };
    planned.copy(&mut rig.disks).expect("the devices write");
    let moved = planned.finish(&mut rig.tree, &mut rig.disks);
    rig.commit_twice();
    moved.expect("the media work")
}

fn files_of(program: &Program) -> Vec<u64> {
    let files = program.files.inodes();
    let files = files.filter(|(_, inode)| matches!(inode.body, Body::File(_)));
    files.map(|(number, _)| number).collect()
}

/// A file system with random files in it.
fn filled(seed: u64) -> (Rig, Program) {
    let (mut rig, mut program) = (Rig::new(), Program::new(seed));
    // Blocks that are granted are not where data are moved to.
    program.next_block = 100_000;
    for op in program.run(60) {
        rig.log(&op);
    }
    assert_eq!(rig.digest().refused, []);
    rig.commit_twice();
    (rig, program)
}

#[test]
fn moves_up_and_down_change_no_content() {
    let mut moved = 0;
    for seed in 0..60 {
        let (mut rig, mut program) = filled(seed);
        for round in 0..6 {
            let inodes = files_of(&program);
            let target = if round % 2 == 0 { DOWN } else { UP };
            let before = extents(&mut rig.tree, &rig.disks);
            let result = run(&mut rig, &inodes, target);
            assert_eq!((result.dropped, &result.damaged[..]), (0, &[][..]));
            assert_eq!(
                result.blocks,
                blocks_on(&before, 1 - target.device),
                "seed {seed}, round {round}"
            );
            moved += result.blocks;
            let after = extents(&mut rig.tree, &rig.disks);
            assert_eq!(blocks_on(&after, 1 - target.device), 0);
            let what = format!("seed {seed}, round {round}");
            assert_files(&mut rig.tree, &rig.disks, &program.files, &what);
            assert_clean(&check_to(&rig.disks, Depth::Data));
            for op in program.run(10) {
                rig.log(&op);
            }
            assert_eq!(rig.digest().refused, []);
            rig.commit_twice();
        }
        let free = rig.tree.free(1);
        let used = blocks_on(&extents(&mut rig.tree, &rig.disks), 1);
        assert_eq!(free + used, 200_000 - 4, "what has moved away is free");
    }
    assert!(moved > 1000, "{moved}");
}

#[test]
fn what_changes_while_it_is_copied_stays_what_it_has_become() {
    let (mut moved, mut dropped) = (0, 0);
    for seed in 0..100 {
        let (mut rig, mut program) = filled(100 + seed);
        let inodes = files_of(&program);
        let Some(mut planned) = plan(&mut rig.tree, &rig.disks, &inodes, DOWN) else {
            continue;
        };
        let planned_blocks = planned.blocks();
        let is_late = seed % 2 == 0;
        if !is_late {
            planned.copy(&mut rig.disks).expect("the devices write");
        }
        for op in program.run(8) {
            rig.log(&op);
        }
        assert_eq!(rig.digest().refused, []);
        // What was freed is used for something else before it is read.
        rig.commit_twice();
        for op in program.run(8) {
            rig.log(&op);
        }
        assert_eq!(rig.digest().refused, []);
        if is_late {
            planned.copy(&mut rig.disks).expect("the devices write");
        }
        let result = planned
            .finish(&mut rig.tree, &mut rig.disks)
            .expect("the media work");
        rig.commit_twice();
        assert_eq!(result.damaged, [], "what has changed is not damaged");
        assert_eq!(result.blocks + result.dropped, planned_blocks);
        (moved, dropped) = (moved + result.blocks, dropped + result.dropped);
        assert_files(&mut rig.tree, &rig.disks, &program.files, &format!("seed {seed}"));
        assert_clean(&check_to(&rig.disks, Depth::Data));
        let used: u64 = blocks_on(&extents(&mut rig.tree, &rig.disks), 1);
        assert_eq!(rig.tree.free(1) + used, 200_000 - 4, "seed {seed}");
    }
    assert!(moved > 100 && dropped > 100, "{moved} moved, {dropped} dropped");
}

/// Moves all files, and notes what is written.
fn recorded(rig: &mut Rig, program: &Program) -> (Disks, Vec<Event>) {
    let begin = rig.disks.clone();
    rig.disks.records = true;
    rig.disks.events.clear();
    run(rig, &files_of(program), DOWN);
    (begin, core::mem::take(&mut rig.disks.events))
}

#[test]
fn a_move_that_is_cut_at_any_write_leaves_all_where_it_was_or_where_it_goes() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..25 {
        let (mut rig, program) = filled(300 + seed);
        let before = blocks_on(&extents(&mut rig.tree, &rig.disks), 0);
        let (begin, events) = recorded(&mut rig, &program);
        for (cut, mut disks) in cuts(&begin, &events, &mut Rng::new(seed)).into_iter().enumerate() {
            let what = format!("seed {seed}, cut {cut}");
            assert_clean(&check_to(&disks, Depth::Data));
            let mut tree = Tree::open(&disks, &rig.volume, 1 << 20).expect("a root counts");
            assert_files(&mut tree, &disks, &program.files, &what);
            let left = blocks_on(&extents(&mut tree, &disks), 0);
            assert!(left == 0 || left == before, "{what}: {left} of {before}");
            *if left == 0 { &mut new } else { &mut old } += 1;
            // It can be done again.
            if let Some(mut planned) = plan(&mut tree, &disks, &files_of(&program), DOWN) {
                planned.copy(&mut disks).expect("the devices write");
                planned.finish(&mut tree, &mut disks).expect("the media work");
                tree.commit(&mut disks).expect("there is room");
            }
            assert_eq!(blocks_on(&extents(&mut tree, &disks), 0), 0, "{what}");
            assert_files(&mut tree, &disks, &program.files, &what);
        }
    }
    assert!(old > 100 && new > 50, "{old} {new}");
}

/// The canary: were the copies not flushed before the root, the test above would notice.
#[test]
fn a_copy_that_is_not_flushed_before_the_root_is_noticed() {
    let mut noticed = 0;
    for seed in 0..10 {
        let (mut rig, program) = filled(300 + seed);
        let (begin, mut events) = recorded(&mut rig, &program);
        // The second write behind a flush and before another one is the root's.
        let is_root = |event: &Event| matches!(event, Event::Write(place, _) if *place < Place::new(0, 4));
        let root = events.iter().position(is_root).expect("a root is written");
        events.remove(root - 1);
        for disks in cuts(&begin, &events, &mut Rng::new(seed)) {
            noticed += usize::from(!check_to(&disks, Depth::Data).is_clean());
        }
    }
    assert!(noticed > 0);
}

#[test]
fn a_damaged_block_stays_where_it_is_and_is_told() {
    let mut damages = 0;
    for seed in 0..40 {
        let (mut rig, program) = filled(400 + seed);
        let before = extents(&mut rig.tree, &rig.disks);
        let mut written = before
            .iter()
            .filter(|(_, extent)| extent.run.place.device() == 0 && !extent.is_unwritten());
        let Some((&(inode, first), extent)) = written.nth(seed as usize % 3) else {
            continue;
        };
        let index = seed % extent.run.blocks;
        let (block, place) = (first + index, extent.run.place.plus(index));
        let is_flipped = seed % 2 == 0;
        match is_flipped {
            true => rig.disks.data.get_mut(&place).expect("it was written")[77] ^= 4,
            false => rig.disks.unread = Some(place),
        }
        let result = run(&mut rig, &files_of(&program), DOWN);
        let told: Vec<_> = result
            .damaged
            .iter()
            .map(|it| (it.inode, it.block, it.place))
            .collect();
        assert_eq!(told, [(inode, block, place)], "seed {seed}");
        let after = extents(&mut rig.tree, &rig.disks);
        assert_eq!(after.get(&(inode, first)), Some(extent), "its extent stays");
        assert_eq!(blocks_on(&after, 0), extent.run.blocks, "and all others go");
        let findings = check_to(&rig.disks, Depth::Data).findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        let expected = match is_flipped {
            true => Meaning::Data { inode, block },
            false => Meaning::Unread(base::MediaError::Io),
        };
        assert_eq!(findings[0].meaning, expected);
        // The block is not lost: if it reads again, so does the file.
        match is_flipped {
            true => rig.disks.data.get_mut(&place).expect("it was written")[77] ^= 4,
            false => rig.disks.unread = None,
        }
        assert_files(&mut rig.tree, &rig.disks, &program.files, "mended");
        damages += 1;
    }
    assert!(damages > 20, "{damages}");
}

fn write(inode: u64, offset: u64, data: Vec<u8>) -> Op<'static> {
    Op {
        inode,
        time: Time::default(),
        action: Action::Write {
            offset,
            data: data.into(),
        },
    }
}

fn create(inode: u64) -> Op<'static> {
    Op {
        inode,
        time: Time::default(),
        action: Action::Create {
            entry: Entry::new(ROOT_INODE, inode.to_string().into_bytes()),
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            device: 0,
            target: Vec::new().into(),
        },
    }
}

/// Files of so many blocks, on device 0.
fn with_files(rig: &mut Rig, inodes: core::ops::Range<u64>, blocks: u64) -> bool {
    for inode in inodes {
        rig.log(&create(inode));
        for part in 0..blocks.div_ceil(10) {
            let count = (blocks - 10 * part).min(10) as usize;
            let data = vec![inode as u8; count * BLOCK_BYTES];
            rig.log(&write(inode, part * 10 * BLOCK_BYTES as u64, data));
        }
        let report = rig.digest();
        rig.commit_twice();
        match report.refused.first().map(|refused| refused.reason) {
            None => {}
            Some(Reason::Full(_)) => return false,
            Some(reason) => panic!("{reason}"),
        }
    }
    true
}

#[test]
fn small_files_go_to_one_run_and_never_to_runs_that_are_too_short() {
    let mut rig = Rig::new();
    assert!(with_files(&mut rig, 100..150, 7));
    // Behind the first thousand blocks of the device, runs of 300 alternate with used ones.
    let last = 200_000 - 1;
    for at in 0..(last - 1500) / 400 {
        let place = Place::new(1, 1500 + at * 400);
        let run = Run { place, blocks: 100 };
        rig.tree.claim(&rig.disks, run).expect("it is free");
    }
    let inodes: Vec<u64> = (100..150).collect();
    let target = Target {
        run_blocks_min: 1024,
        ..DOWN
    };
    let result = run(&mut rig, &inodes, target);
    assert_eq!(result.blocks, 350);
    let all = extents(&mut rig.tree, &rig.disks);
    let mut places: Vec<Run> = all.values().map(|extent| extent.run).collect();
    places.sort();
    assert!(
        places.windows(2).all(|pair| pair[0].end() == pair[1].place),
        "one behind the other"
    );
    // No run of a thousand blocks is left.
    let hole = Run {
        place: Place::new(1, 1000),
        blocks: 400,
    };
    rig.tree.claim(&rig.disks, hole).expect("it is free");
    assert!(with_files(&mut rig, 200..212, 100));
    let inodes: Vec<u64> = (200..212).collect();
    assert!(plan(&mut rig.tree, &rig.disks, &inodes, target).is_none());
    let short = Target {
        run_blocks_min: 100,
        ..DOWN
    };
    let planned = plan(&mut rig.tree, &rig.disks, &inodes, short).expect("there are shorter ones");
    assert_eq!(planned.blocks(), 1200);
    planned
        .give_up(&mut rig.tree, &rig.disks)
        .expect("the tree takes changes");
}

#[test]
fn a_move_that_is_given_up_or_cannot_be_written_keeps_no_blocks() {
    let (mut rig, program) = filled(500);
    let before = extents(&mut rig.tree, &rig.disks);
    let mut planned = plan(&mut rig.tree, &rig.disks, &files_of(&program), DOWN).expect("there are files");
    rig.disks.fails_in = Some(2);
    assert!(planned.copy(&mut rig.disks).is_err());
    rig.disks.fails_in = None;
    planned
        .give_up(&mut rig.tree, &rig.disks)
        .expect("the tree takes changes");
    assert_eq!(extents(&mut rig.tree, &rig.disks), before);
    let all = Run {
        place: Place::new(1, 150_000),
        blocks: 200_000 - 150_000,
    };
    rig.tree
        .claim(&rig.disks, all)
        .expect("nothing is reserved there");
    rig.commit_twice();
    assert_clean(&check_to(&rig.disks, Depth::Data));
}

#[test]
fn a_move_makes_room_on_a_device_that_is_full() {
    let mut rig = Rig::new();
    let mut last = 100;
    while with_files(&mut rig, last..last + 1, 40) {
        last += 1;
    }
    assert!(last > 140, "{last}");
    let inodes: Vec<u64> = (100..last).collect();
    let mut moved = 0;
    for _ in 0..40 {
        let target = Target {
            blocks_max: 512,
            ..DOWN
        };
        moved += run(&mut rig, &inodes, target).blocks;
    }
    let left = blocks_on(&extents(&mut rig.tree, &rig.disks), 0);
    assert!(left <= 40, "{moved} moved, {left} left");
    assert_clean(&check_to(&rig.disks, Depth::Data));
    assert!(with_files(&mut rig, 1000..1020, 40), "there is room again");
}

/// Policy and moves together, as a driver runs them.
#[test]
fn a_full_tier_gives_away_what_is_cold_and_keeps_what_is_hot() {
    let mut rig = Rig::new();
    // 46 files of 40 blocks are about nine tenths of what the device has for files.
    assert!(with_files(&mut rig, 100..146, 40));
    let total = 2000;
    let usage = |rig: &mut Rig, device: u8| {
        let used = blocks_on(&extents(&mut rig.tree, &rig.disks), device);
        let total = [total, 200_000][usize::from(device)];
        Usage { used, total }
    };
    let options = Options {
        unit_blocks: 64,
        ..Options::default()
    };
    let both = [
        (Tier::Memory, usage(&mut rig, 0)),
        (Tier::Flash, usage(&mut rig, 1)),
    ];
    let mut tiers = Tiers::new(options, &both);
    let hot: Vec<u64> = (100..146).step_by(3).collect();
    for inode in &hot {
        (0..5).for_each(|_| tiers.touch((*inode, 0), Tier::Memory, None));
    }
    assert!(tiers.wants_round());
    while tiers.wants_round() {
        let mut units = BTreeMap::<Unit, [u64; 3]>::new();
        for ((inode, first), extent) in extents(&mut rig.tree, &rig.disks) {
            let blocks = units.entry((inode, first / 64)).or_default();
            blocks[usize::from(extent.run.place.device())] += extent.run.blocks;
        }
        for (unit, blocks) in units {
            tiers.offer(&Found {
                unit,
                pin: None,
                blocks,
            });
        }
        while let Some(batch) = tiers.next_batch(true) {
            let ranges: Vec<_> = batch
                .orders
                .iter()
                .map(|order| (order.inode, order.blocks.clone()))
                .collect();
            let planned = Move::plan(&mut rig.tree, &rig.disks, (&[0], &ranges), DOWN);
            let mut planned = planned.expect("the tree is whole").expect("there is room");
            planned.copy(&mut rig.disks).expect("the devices write");
            let moved = planned
                .finish(&mut rig.tree, &mut rig.disks)
                .expect("the media work");
            assert_eq!(moved.blocks, batch.blocks());
            rig.commit_twice();
            tiers.done(&batch);
            for (tier, device) in [(Tier::Memory, 0), (Tier::Flash, 1)] {
                tiers.set_usage(tier, usage(&mut rig, device));
            }
        }
        tiers.end_of_round();
    }
    let after = extents(&mut rig.tree, &rig.disks);
    assert!(
        blocks_on(&after, 0) <= total * 89 / 100,
        "{}",
        blocks_on(&after, 0)
    );
    let stays = |inode: &u64| {
        after
            .iter()
            .all(|((of, _), it)| of != inode || it.run.place.device() == 0)
    };
    assert!(hot.iter().all(stays));
    assert_clean(&check_to(&rig.disks, Depth::Data));
}
