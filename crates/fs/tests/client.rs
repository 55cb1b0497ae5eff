//! The client: what it acknowledged is in the tree after a digest and after a cut, also where devices are full.

use crate::common::assert_clean;
use crate::process::{LOG, NONCE, Rig, frames};
use crate::served::{ROOT, Served};
use fs::check::{Depth, check_to};
use fs::client::access::{APPEND_ONLY, IMMUTABLE};
use fs::client::{Caller, Failure, Made, New, Options, Rename, Wanted, Where, XattrMode};
use fs::digest::{Batch, digest};
use fs::errno::Errno;
use fs::format::{Key, Kind, ROOT_INODE, hash_of};
use fs::grants::{Grants, Rights};
use fs::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK};
use fs::op::{Action, Allocation};
use fs::overlay::{Below, Overlay};
use fs::tree::{Tree, View};
use fs::value::Run;
use std::collections::BTreeMap;

const FILE: u32 = TYPE_FILE | 0o644;
const DIRECTORY: u32 = TYPE_DIRECTORY | 0o755;

fn make(served: &mut Served, parent: u64, name: &[u8], mode: u32) -> Result<Made, Errno> {
    let new = New {
        mode,
        ..New::default()
    };
    served.call(ROOT, |client, call| client.create(call, (parent, name), new))
}

fn unlink(served: &mut Served, parent: u64, name: &[u8]) -> Result<(), Errno> {
    served
        .call(ROOT, |client, call| client.unlink(call, (parent, name), false))
        .map(drop)
}

/// All that can be seen of a file: as `stat`, less what only the tree counts; entries or content; attributes.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    inode: Inode,
    content: Vec<u8>,
    blocks: Vec<u64>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// All files that have a path.
fn seen(overlay: &Overlay, below: &mut Below<'_>) -> BTreeMap<Vec<u8>, (u64, Seen)> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![(Vec::new(), ROOT_INODE)];
    while let Some((path, number)) = ahead.pop() {
        let inode = overlay
            .inode(below, number)
            .expect("it is whole")
            .expect("it is there");
        let (mut content, mut blocks) = (Vec::new(), Vec::new());
        match inode.mode & TYPE_MASK {
            TYPE_FILE => {
                content = vec![0; inode.size as usize];
                overlay
                    .read(below, (number, 0), &mut content)
                    .expect("it is whole");
                let there = overlay.blocks(below, number, 0..1 << 40).expect("it is whole");
                blocks = there.into_iter().flatten().collect();
            }
            TYPE_LINK => content = overlay.target(below, number).expect("it is whole"),
            _ => {}
        }
        let names = overlay.attributes(below, number).expect("it is whole");
        let value = |name: Vec<u8>| {
            let value = overlay.attribute(below, number, &name).expect("it is whole");
            (name, value.expect("it is there"))
        };
        let attributes = names.into_iter().map(value).collect();
        if inode.is_directory() {
            for entry in overlay.list(below, (number, 0), 10_000).expect("it is whole") {
                ahead.push(([&path[..], b"/", &entry.name].concat(), entry.inode));
            }
        }
        let seen = Seen {
            inode: Inode {
                changes: 0,
                log: 0,
                ..inode
            },
            content,
            blocks,
            attributes,
        };
        found.insert(path, (number, seen));
    }
    found
}

fn seen_by(served: &mut Served) -> BTreeMap<Vec<u8>, (u64, Seen)> {
    served.read(|client, below| seen(client.overlay(), below))
}

/// What the media have, as who opens them after a cut finds it.
fn seen_after_a_cut(served: &Served) -> BTreeMap<Vec<u8>, (u64, Seen)> {
    let mut disks = served.rig.disks.clone();
    let mut tree = Tree::open(&disks, &served.rig.volume, 1 << 20).expect("it is whole");
    let (start, frames) = frames(&mut tree, &disks);
    let mut grants = Grants::default();
    grants.inodes = 1 << 20..1 << 40;
    let keys = Key::new(1, Kind::Inode, 0)..=Key::new(u64::MAX, Kind::Inode, 0);
    let mut range = tree.range(View::Pending, keys);
    while let Some((key, _)) = range.next(&mut tree, &disks).expect("it is whole") {
        if key.kind == Kind::Inode {
            grants.leases.insert(key.inode, Rights::ALL);
        }
    }
    for op in frames.iter().flat_map(|frame| frame.ops()) {
        if let Action::Place { place, sums, .. } = &op.expect("it was emitted").action {
            let run = Run {
                place: *place,
                blocks: sums.len() as u64,
            };
            tree.claim(&disks, run)
                .expect("what the log has of blocks is free");
            grants.grant(run);
        }
    }
    let batch = Batch::new((LOG, NONCE, start), &frames);
    let report = digest(&mut tree, &mut disks, batch, (&mut grants, &served.rig.devices));
    assert_eq!(report.expect("it is the next batch").refused, []);
    tree.commit(&mut disks).expect("there is room");
    let mut below = Below::new(&mut tree, &disks, View::Pending);
    seen(&Overlay::new(served.rig.volume.mark), &mut below)
}

/// Random calls on few names.
struct Program {
    directories: Vec<u64>,
    files: Vec<u64>,
    /// What data of files that fit are.
    bytes_max: u64,
    refused: usize,
    done: usize,
}

impl Program {
    fn new(bytes_max: u64) -> Self {
        Self {
            directories: vec![ROOT_INODE],
            files: Vec::new(),
            bytes_max,
            refused: 0,
            done: 0,
        }
    }

    fn note<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        match result {
            Ok(done) => {
                self.done += 1;
                Some(done)
            }
            Err(errno) => {
                self.refused += usize::from(errno == Errno::NoSpace);
                None
            }
        }
    }

    fn step(&mut self, served: &mut Served, names: u64) {
        served.now.seconds += 1;
        let rng = &mut served.rng;
        let parent = self.directories[rng.below(self.directories.len() as u64) as usize];
        let name = format!("name-{}", rng.below(names)).into_bytes();
        let offset = rng.below(self.bytes_max);
        let bytes = [rng.between(1, 5000), rng.between(1, self.bytes_max)][rng.below(2) as usize];
        let file = match self.files.len() as u64 {
            0 => None,
            count => Some(self.files[rng.below(count) as usize]),
        };
        match (rng.below(16), file) {
            (0..4, _) | (_, None) => {
                let made = make(served, parent, &name, FILE);
                if let Some(made) = self.note(made) {
                    self.files.push(made.number);
                    served.client.hold(made.number, 1);
                }
            }
            (4, _) => {
                let made = make(served, parent, &name, DIRECTORY);
                if let Some(made) = self.note(made) {
                    self.directories.push(made.number);
                }
            }
            (5, _) => {
                let target = vec![b't'; [10, 900, 3000][served.rng.below(3) as usize]];
                let new = New {
                    mode: TYPE_LINK | 0o777,
                    target: &target,
                    ..New::default()
                };
                let made = served.call(ROOT, |client, call| client.create(call, (parent, &name), new));
                self.note(made);
            }
            (6, Some(file)) => {
                let name = format!("user.{}", served.rng.below(20)).into_bytes();
                let value = vec![3; served.rng.below(1000) as usize];
                let mode = (XattrMode::Any, false);
                let set = served.call(ROOT, |client, call| {
                    client.set_attribute(call, (file, &name), &value, mode)
                });
                self.note(set);
            }
            (7, Some(file)) => {
                let what =
                    [Allocation::Reserve, Allocation::Zeros, Allocation::Hole][served.rng.below(3) as usize];
                let set = served.call(ROOT, |client, call| {
                    client.allocate(call, (file, (offset, bytes)), (what, true), false)
                });
                self.note(set);
            }
            (8, Some(file)) => {
                let wanted = Wanted {
                    size: Some(offset),
                    is_open: true,
                    ..Wanted::default()
                };
                let set = served.call(ROOT, |client, call| client.set(call, file, &wanted));
                self.note(set);
            }
            (9, _) => {
                let to = format!("name-{}", served.rng.below(names)).into_bytes();
                let other = self.directories[served.rng.below(self.directories.len() as u64) as usize];
                let moved = served.call(ROOT, |client, call| {
                    client.rename(call, (parent, &name), (other, &to), Rename::default())
                });
                self.note(moved);
            }
            (10, _) if names < 50 => {
                let gone = unlink(served, parent, &name);
                self.note(gone);
            }
            (_, Some(file)) => {
                let data: Vec<u8> = (0..bytes).map(|at| (at * 7 + offset) as u8 | 1).collect();
                let at = match served.rng.chance(0.3) && data.len() < 5000 {
                    true => Where::End,
                    false => Where::At(offset),
                };
                let written = served.write(ROOT, file, at, &data);
                self.note(written);
            }
        }
        let gone = |number: &u64, served: &mut Served| served.stat(*number).is_err();
        self.directories.retain(|number| !gone(number, served));
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_cut() {
    let (mut cuts, mut named) = (0, 0);
    for seed in 0..40 {
        let mut served = Served::new(seed, Options::default());
        served.digests = 0.03;
        let mut program = Program::new(40_000);
        for step in 0..120 {
            program.step(&mut served, 12);
            if step % 12 == 11 {
                served.rig.write_log();
                let (now, then) = (seen_by(&mut served), seen_after_a_cut(&served));
                assert!(now.keys().eq(then.keys()), "seed {seed}, step {step}");
                for (path, seen) in &now {
                    let what = String::from_utf8_lossy(path);
                    assert_eq!(
                        seen.1.inode, then[path].1.inode,
                        "seed {seed}, step {step}: {what}"
                    );
                    assert!(*seen == then[path], "seed {seed}, step {step}: {what}");
                }
                cuts += 1;
                named += now.len();
            }
        }
        served.digest();
        assert!(served.client.overlay().is_empty());
        assert_clean(&check_to(&served.rig.disks, Depth::Data));
    }
    assert!(cuts == 400 && named > 4000, "{named}");
}

/// The digest refuses nothing, however full the devices are, and deletions work in the end and give all back.
#[test]
fn full_devices_refuse_calls_and_never_what_was_acknowledged() {
    let devices: [(&[u64], &[u8]); 4] = [
        (&[2300], &[0]),
        (&[2300, 300], &[1]),
        (&[2300, 300], &[1, 0]),
        (&[2300, 300, 200], &[2, 1, 0]),
    ];
    let mut waited = 0;
    for seed in 0..16 {
        let (blocks, data) = devices[seed as usize % 4];
        let mut served = Served::of(Rig::of(blocks, data), seed, Options::default());
        served.digests = 0.02;
        for _ in 0..3 {
            served.digest();
        }
        let empty: u64 = (0..blocks.len() as u8).map(|at| served.rig.tree.free(at)).sum();
        let mut program = Program::new(30_000);
        while program.refused < 60 {
            program.step(&mut served, 4000);
        }
        assert!(program.done > 50, "{} done", program.done);
        waited += served.waited;
        let before = seen_by(&mut served);
        served.digest();
        let after = seen_by(&mut served);
        assert!(
            before == after,
            "seed {seed}: a digest changes nothing that is seen"
        );
        assert_clean(&check_to(&served.rig.disks, Depth::Data));
        // Directories are behind what is in them.
        for (path, (_, seen)) in before.iter().rev().filter(|(path, _)| !path.is_empty()) {
            let at = path
                .iter()
                .rposition(|byte| *byte == b'/')
                .expect("a path has one");
            let parent = before[&path[..at]].0;
            let is_directory = seen.inode.is_directory();
            let gone = served.call(ROOT, |client, call| {
                client.unlink(call, (parent, &path[at + 1..]), is_directory)
            });
            gone.expect("deletions work");
        }
        // Those that lost their names before are among them.
        program.files.iter().for_each(|file| served.forget(*file));
        give_back(&mut served);
        let free: u64 = (0..blocks.len() as u8).map(|at| served.rig.tree.free(at)).sum();
        assert_eq!(free, empty, "seed {seed}: all is given back");
        assert_clean(&check_to(&served.rig.disks, Depth::Data));
    }
    assert!(waited > 100, "{waited}: many calls had to wait for a digest");
}

/// Names and attributes alone: they fill the tree, and the log has much of it when the device is full.
#[test]
fn a_full_tree_refuses_calls_and_never_what_was_acknowledged() {
    for seed in 0..6 {
        let mut served = Served::of(Rig::of(&[2300, 300], &[1]), seed, Options::default());
        (served.digests, served.writes) = (0.0, 0.2);
        let (mut made, mut refused) = (Vec::new(), 0);
        while refused < 30 {
            let name = format!("name-{}", made.len() + refused).into_bytes();
            let Ok(file) = make(&mut served, ROOT_INODE, &name, FILE) else {
                refused += 1;
                continue;
            };
            made.push(name);
            for attribute in 0..served.rng.below(4) {
                let name = format!("user.{attribute}").into_bytes();
                let value = vec![5; served.rng.between(700, 1000) as usize];
                let mode = (XattrMode::Any, false);
                let set = served.call(ROOT, |client, call| {
                    client.set_attribute(call, (file.number, &name), &value, mode)
                });
                refused += usize::from(set.is_err());
            }
        }
        assert!(made.len() > 1000, "{}", made.len());
        let before = seen_by(&mut served);
        served.digest();
        assert!(seen_by(&mut served) == before);
        for name in made {
            unlink(&mut served, ROOT_INODE, &name).expect("deletions work");
        }
        served.digest();
        assert_eq!(seen_by(&mut served).len(), 1);
        assert_clean(&check_to(&served.rig.disks, Depth::Data));
    }
}

/// Settles what is held, and gives back what was granted.
fn give_back(served: &mut Served) {
    served.digest();
    let granted: Vec<Run> = served.rig.grants.granted().collect();
    for run in granted {
        served
            .rig
            .tree
            .give_back(&served.rig.disks, run)
            .expect("it was reserved");
    }
    for _ in 0..3 {
        served.digest();
    }
}

/// A name of 120 bytes whose hash does not depend on what is behind its first eight: XXH3 multiplies what it reads there by zero.
fn colliding(mark: u64, index: u8) -> Vec<u8> {
    const SECRET: u64 = 0xbe4b_a423_396c_feb8;
    let mut name = vec![b'n'; 120];
    name[..8].copy_from_slice(&SECRET.wrapping_add(mark).to_le_bytes());
    name[8] = index;
    name
}

#[test]
fn names_of_one_hash_are_refused_by_the_call_and_not_by_the_digest() {
    let mut served = Served::new(1, Options::default());
    served.digests = 0.0;
    let mark = served.rig.volume.mark;
    let name = |index: u8| colliding(mark, index + 65);
    assert_eq!(hash_of(&name(1), mark), hash_of(&name(2), mark));
    for round in 0..3 {
        for index in 0..7 {
            let made = make(&mut served, ROOT_INODE, &name(index), FILE);
            made.expect("seven names of 130 bytes fit a value of 1024");
        }
        let full = make(&mut served, ROOT_INODE, &name(7), FILE);
        assert_eq!(full.map(drop), Err(Errno::NoSpace));
        make(&mut served, ROOT_INODE, b"other", FILE).expect("it has another hash");
        for (from, to) in [(&b"other"[..], name(7)), (&name(0), name(7))] {
            let moved = served.call(ROOT, |client, call| {
                client.rename(call, (ROOT_INODE, from), (ROOT_INODE, &to), Rename::default())
            });
            assert_eq!(moved.map(drop), Err(Errno::NoSpace));
        }
        if round > 0 {
            served.digest();
        }
        unlink(&mut served, ROOT_INODE, &name(3)).expect("it is there");
        make(&mut served, ROOT_INODE, &name(7), FILE).expect("there is room again");
        for index in (0..8).filter(|index| *index != 3) {
            unlink(&mut served, ROOT_INODE, &name(index)).expect("it is there");
        }
        unlink(&mut served, ROOT_INODE, b"other").expect("it is there");
    }
    served.digest();
}

/// A bug: the digest takes attributes in the order of their names. One grew before another of its hash became shorter, was refused, and its
/// call had been acknowledged. Now those that find no room wait for the others.
#[test]
fn attributes_of_one_hash_fit_in_the_end_whatever_their_order() {
    let mut served = Served::new(1, Options::default());
    let mark = served.rig.volume.mark;
    let name = |index: u8| {
        // The last sixteen bytes meet the second part of the secret.
        const SECOND: u64 = 0xdb97_9083_e96d_d4de;
        let mut name = [&b"user."[..], &[b'x'; 59]].concat();
        let at = name.len() - 16;
        name[at..at + 8].copy_from_slice(&SECOND.wrapping_add(mark).to_le_bytes());
        name[at + 8] = index;
        name
    };
    let (first, second) = (name(65), name(66));
    assert_eq!(hash_of(&first, mark), hash_of(&second, mark));
    let file = make(&mut served, ROOT_INODE, b"file", FILE)
        .expect("it is new")
        .number;
    let set = |served: &mut Served, name: &[u8], bytes: usize| {
        let mode = (XattrMode::Any, false);
        served.call(ROOT, |client, call| {
            client.set_attribute(call, (file, name), &vec![1; bytes], mode)
        })
    };
    for (small, large) in [(&first, &second), (&second, &first)] {
        set(&mut served, small, 100).expect("there is room");
        set(&mut served, large, 700).expect("there is room");
        served.digest();
        served.digests = 0.0;
        assert_eq!(set(&mut served, small, 400).map(drop), Err(Errno::NoSpace));
        set(&mut served, large, 100).expect("it becomes shorter");
        set(&mut served, small, 700).expect("there is room now");
        served.digest();
        for (name, bytes) in [(small, 700), (large, 100)] {
            let value = served.call(ROOT, |client, call| client.attribute(call, file, name));
            assert_eq!(value.map(|value| value.len()), Ok(bytes));
        }
    }
}

#[test]
fn a_file_without_a_name_gets_one_or_goes() {
    for digests in [false, true] {
        let mut served = Served::new(1, Options::default());
        served.digests = 0.0;
        let parent = make(&mut served, ROOT_INODE, b"d", DIRECTORY)
            .expect("it is new")
            .number;
        let before = served.stat(parent).expect("it is there");
        served.now.seconds += 1;
        let nameless = |served: &mut Served, is_linkable: bool| {
            let made = served.call(ROOT, |client, call| {
                client.create_nameless(call, parent, (0o600, is_linkable))
            });
            made.expect("there is room").number
        };
        let files = [true, false, true].map(|is_linkable| nameless(&mut served, is_linkable));
        for file in files {
            served
                .write(ROOT, file, Where::At(0), b"data")
                .expect("it is open");
        }
        assert_eq!(served.stat(parent), Ok(before), "the directory did not change");
        if digests {
            served.digest();
        }
        let link = |served: &mut Served, file: u64, name: &[u8]| {
            served
                .call(ROOT, |client, call| client.link(call, file, (parent, name)))
                .map(drop)
        };
        assert_eq!(link(&mut served, files[0], b"a"), Ok(()));
        assert_eq!(link(&mut served, files[1], b"b"), Err(Errno::NoEntry));
        assert_eq!(served.stat(files[0]).map(|inode| inode.links), Ok(1));
        unlink(&mut served, parent, b"a").expect("it is there");
        assert_eq!(link(&mut served, files[0], b"a"), Err(Errno::NoEntry), "once");
        assert_eq!(link(&mut served, files[2], b"c"), Ok(()));
        if digests {
            served.digest();
            assert_clean(&check_to(&served.rig.disks, Depth::Data));
        }
        for file in files {
            assert_eq!(served.content(file), b"data");
            served.forget(file);
        }
        served.digest();
        assert!(served.stat(files[0]).is_err() && served.stat(files[1]).is_err());
        assert_eq!(served.content(files[2]), b"data");
        assert_clean(&check_to(&served.rig.disks, Depth::Data));
    }
}

/// What is made in a directory that goes takes its group from there, so the directory stays in the batch.
#[test]
fn a_file_that_was_made_without_a_name_survives_the_directory_it_was_made_in() {
    let mut served = Served::new(1, Options::default());
    (served.digests, served.writes) = (0.0, 0.0);
    let parent = make(&mut served, ROOT_INODE, b"d", DIRECTORY)
        .expect("it is new")
        .number;
    let made = served.call(ROOT, |client, call| {
        client.create_nameless(call, parent, (0o600, true))
    });
    let file = made.expect("there is room").number;
    served
        .call(ROOT, |client, call| client.link(call, file, (ROOT_INODE, b"f")))
        .expect("it may have a name");
    served
        .call(ROOT, |client, call| client.unlink(call, (ROOT_INODE, b"d"), true))
        .expect("it is empty");
    served.digest();
    assert_eq!(served.stat(file).map(|inode| inode.links), Ok(1));
}

#[test]
fn an_open_file_without_a_name_stays_until_it_is_forgotten() {
    let mut served = Served::new(1, Options::default());
    let file = make(&mut served, ROOT_INODE, b"f", FILE)
        .expect("it is new")
        .number;
    for _ in 0..2 {
        let opened = served.call(ROOT, |client, call| client.open(call, file, 4, (false, false)));
        opened.expect("root may");
    }
    served
        .write(ROOT, file, Where::At(0), &[5; 100_000])
        .expect("there is room");
    unlink(&mut served, ROOT_INODE, b"f").expect("it is there");
    served.forget(file);
    served.digest();
    assert_eq!(served.content(file), [5; 100_000]);
    served.forget(file);
    assert_eq!(
        served.stat(file).map(drop),
        Err(Failure::Posix(Errno::NoEntry)),
        "nobody has it"
    );
    served.digest();
    assert_clean(&check_to(&served.rig.disks, Depth::Data));
}

#[test]
fn a_planned_append_is_planned_again_if_the_file_has_grown_meanwhile() {
    let mut served = Served::new(1, Options::default());
    let file = make(&mut served, ROOT_INODE, b"f", FILE)
        .expect("it is new")
        .number;
    let data = vec![7; 50_000];
    let mut plan = || {
        served
            .call(ROOT, |client, call| {
                client.plan(call, (file, Where::End), data.len())
            })
            .expect("there is room")
            .expect("it is large")
    };
    let first = plan();
    served.write(ROOT, file, Where::End, b"x").expect("there is room");
    let sums = first.sums(&data);
    let left = served.client.blocks_left();
    let placed = served.call(ROOT, |client, call| {
        match client.place(call, &first, (&data, &sums), false) {
            Err(Failure::Changed) => Ok(None),
            other => other.map(Some),
        }
    });
    assert_eq!(placed, Ok(None));
    let blocks: u64 = first.runs().map(|(run, _)| run.blocks).sum();
    served.client.abandon(first);
    assert_eq!(served.client.blocks_left(), left + blocks);
    assert_eq!(served.write(ROOT, file, Where::End, &data), Ok(50_000));
    assert_eq!(served.content(file)[..2], [b'x', 7]);
    served.digest();
    assert_eq!(served.content(file).len(), 50_001);
}

/// Large data are in no record: the frames that have them are short.
#[test]
fn large_writes_go_to_their_blocks_once() {
    let mut served = Served::new(1, Options::default());
    (served.digests, served.writes) = (0.0, 0.0);
    let file = make(&mut served, ROOT_INODE, b"f", FILE)
        .expect("it is new")
        .number;
    let free = served.rig.writer.free();
    for (offset, bytes) in [(0, 1 << 20), (100, 300_000), (4096, 40_000), (1 << 20, 20_001)] {
        let data: Vec<u8> = (0..bytes).map(|at: usize| (at * 13 + offset) as u8).collect();
        let written = served.write(ROOT, file, Where::At(offset as u64), &data);
        assert_eq!(written, Ok(bytes));
        assert!(served.content(file)[offset..offset + bytes] == data[..]);
    }
    served.rig.write_log();
    let taken = free - served.rig.writer.free();
    assert!(taken < 20_000, "{taken} bytes of log for 1.4 million of data");
    let before = served.content(file);
    served.digest();
    assert!(served.content(file) == before);
    assert_clean(&check_to(&served.rig.disks, Depth::Data));
}

/// The kernel has looked at permissions, and says when set-ID bits go: the client of FUSE.
#[test]
fn set_id_bits_and_capabilities_go_when_they_are_told_to() {
    let options = Options {
        checks_permissions: false,
        ..Options::default()
    };
    let mut served = Served::new(1, options);
    let file = make(&mut served, ROOT_INODE, b"f", TYPE_FILE | 0o6755)
        .expect("it is new")
        .number;
    let other = Caller {
        uid: 5,
        gid: 5,
        ..Caller::default()
    };
    let mode = |served: &mut Served| served.stat(file).map(|inode| inode.mode & 0o7777);
    let write = |served: &mut Served, takes: bool| {
        served
            .call(other, |client, call| {
                client.write(call, (file, Where::End), b"x", takes)
            })
            .expect("the kernel let it")
    };
    let give = |served: &mut Served| {
        served
            .call(ROOT, |client, call| {
                let name = &b"security.capability"[..];
                client.set_attribute(call, (file, name), b"all", (XattrMode::Any, false))
            })
            .expect("root may");
    };
    let has = |served: &mut Served| {
        let name = b"security.capability";
        let value = served.call(ROOT, |client, call| client.attribute(call, file, name));
        value.is_ok()
    };
    write(&mut served, false);
    assert_eq!(mode(&mut served), Ok(0o6755));
    give(&mut served);
    assert!(has(&mut served));
    write(&mut served, true);
    assert_eq!(mode(&mut served), Ok(0o755));
    assert!(!has(&mut served), "a write takes capabilities");
    give(&mut served);
    served.digest();
    let wanted = Wanted {
        uid: Some(7),
        ..Wanted::default()
    };
    served
        .call(ROOT, |client, call| client.set(call, file, &wanted))
        .expect("root may");
    assert!(!has(&mut served), "who gives a file away takes its capabilities");
    served.digest();
}

#[test]
fn what_is_immutable_stays_and_what_is_append_only_grows() {
    let mut served = Served::new(1, Options::default());
    let file = make(&mut served, ROOT_INODE, b"f", FILE)
        .expect("it is new")
        .number;
    let other = Caller {
        uid: 5,
        ..Caller::default()
    };
    let flag = |served: &mut Served, caller: Caller<'static>, flags: u64| {
        served
            .call(caller, |client, call| client.set_flags(call, file, flags))
            .map(drop)
    };
    let open = |served: &mut Served, truncates: bool, appends: bool| {
        served
            .call(ROOT, |client, call| {
                client.open(call, file, 2, (truncates, appends))
            })
            .map(drop)
    };
    let mode = Wanted {
        mode: Some(0o600),
        ..Wanted::default()
    };
    let refused = Err(Errno::NotPermitted);
    assert_eq!(flag(&mut served, other, IMMUTABLE), refused);
    assert_eq!(flag(&mut served, ROOT, 1 << 40), Err(Errno::NotSupported));
    for (flags, appends) in [(IMMUTABLE, refused), (APPEND_ONLY, Ok(()))] {
        assert_eq!(flag(&mut served, ROOT, flags), Ok(()));
        served.digest();
        assert_eq!(unlink(&mut served, ROOT_INODE, b"f"), refused);
        let set = served.call(ROOT, |client, call| client.set(call, file, &mode));
        assert_eq!(set.map(drop), refused);
        let linked = served.call(ROOT, |client, call| client.link(call, file, (ROOT_INODE, b"g")));
        assert_eq!(linked.map(drop), refused);
        assert_eq!(open(&mut served, false, false), refused);
        assert_eq!(open(&mut served, true, true), refused);
        assert_eq!(open(&mut served, false, true), appends);
        // A mount's kernel opens without asking, and says where each write goes.
        let write = |served: &mut Served, at| {
            let written = served.call(ROOT, |client, call| {
                client.write(call, (file, at), b"more", false)
            });
            written.map(drop)
        };
        assert_eq!(write(&mut served, Where::End), appends);
        assert_eq!(write(&mut served, Where::At(0)), refused);
    }
    assert_eq!(flag(&mut served, ROOT, 0), Ok(()));
    assert_eq!(open(&mut served, true, false), Ok(()));
    assert_eq!(unlink(&mut served, ROOT_INODE, b"f"), Ok(()));
    served.digest();
}

#[test]
fn seeks_find_data_and_holes() {
    let mut served = Served::new(1, Options::default());
    let file = make(&mut served, ROOT_INODE, b"f", FILE)
        .expect("it is new")
        .number;
    for block in [2u64, 3, 7] {
        served
            .write(ROOT, file, Where::At(block * 4096 + 5), b"data")
            .expect("there is room");
    }
    let wanted = Wanted {
        size: Some(10 * 4096 + 100),
        ..Wanted::default()
    };
    served
        .call(ROOT, |client, call| client.set(call, file, &wanted))
        .expect("root may");
    for digests in [false, true] {
        if digests {
            served.digest();
        }
        let there = |at: u64| [2, 3, 7].contains(&(at / 4096));
        let size = 10 * 4096 + 100;
        for offset in (0..size + 5000).step_by(1000) {
            let inside = || (offset..size).filter(|_| offset < size);
            let data = inside()
                .find(|at| there(*at))
                .ok_or(Failure::Posix(Errno::NoAddress));
            let hole = match offset < size {
                true => Ok(inside().find(|at| !there(*at)).unwrap_or(size)),
                false => Err(Failure::Posix(Errno::NoAddress)),
            };
            for (wants_data, expected) in [(true, data), (false, hole)] {
                let found = served.read(|client, below| client.seek(below, (file, offset), wants_data));
                assert_eq!(found, expected, "at {offset}");
            }
        }
    }
}

/// Times of reading change as `relatime` has them, and then nothing else.
#[test]
fn reading_is_noted_once_after_each_change_and_each_day() {
    let mut served = Served::new(1, Options::default());
    let file = make(&mut served, ROOT_INODE, b"f", FILE)
        .expect("it is new")
        .number;
    let read_at = |served: &mut Served, seconds: i64| {
        served.now.seconds = seconds;
        let before = served.stat(file).expect("it is there");
        let noted = served
            .call(ROOT, |client, call| client.accessed(call, file))
            .expect("there is room")
            .is_some();
        let after = served.stat(file).expect("it is there");
        let atime = if noted { served.now } else { before.atime };
        assert_eq!(after, Inode { atime, ..before });
        noted
    };
    assert!(read_at(&mut served, 10));
    assert!(!read_at(&mut served, 20));
    assert!(read_at(&mut served, 20 + 24 * 60 * 60));
    served.now.seconds = 100_000;
    served.write(ROOT, file, Where::End, b"x").expect("there is room");
    assert!(read_at(&mut served, 100_001));
    assert!(!read_at(&mut served, 100_002));
}
