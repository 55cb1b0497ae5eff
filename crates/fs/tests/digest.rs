//! The digest: random programs through log, coalescing and digest leave the files that the model has; cuts and lies do no harm.

use crate::common::{Disks, assert_clean, cuts};
use crate::process::{LOG, NONCE, RING, Rig, assert_attributes, digest_log, frames, record, write_at};
use crate::program::{Program, block};
use base::Rng;
use fs::check::{Depth, Meaning, check_to};
use fs::digest::{Batch, DigestError, digest};
use fs::edit::Room;
use fs::errno::Errno;
use fs::files::{Body, Files, Inode as ModelInode};
use fs::format::{BLOCK_BYTES, Block, Key, Kind, Place, ROOT_INODE};
use fs::grants::{Grants, Reason, Rights};
use fs::inode::{Inode, Time};
use fs::log::Frame;
use fs::media::Media;
use fs::names::{Attribute, Dirent};
use fs::op::{Action, Allocation, Changes, Entry, Fate, Op, Target};
use fs::tree::{Tree, View};
use fs::value::{ExtentRecord, Run};
use std::collections::BTreeMap;

/// All that the tree has of an inode.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    inode: Option<Inode>,
    entries: BTreeMap<Vec<u8>, u64>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Vec<u8>,
    extents: Vec<(u64, ExtentRecord)>,
}

fn inodes_of(tree: &mut Tree, disks: &Disks) -> BTreeMap<u64, Seen> {
    let keys = Key::new(1, Kind::Inode, 0)..=Key::new(u64::MAX, Kind::Extent, u64::MAX);
    let mut range = tree.range(View::Pending, keys);
    let mut found = BTreeMap::<u64, Seen>::new();
    while let Some((key, value)) = range.next(tree, disks).expect("it is whole") {
        let seen = found.entry(key.inode).or_default();
        match key.kind {
            Kind::Inode => seen.inode = Some(Inode::parse(&value).expect("it makes sense")),
            Kind::Entry => {
                for entry in Dirent::parse_all(&value).expect("it makes sense") {
                    seen.entries.insert(entry.name.to_vec(), entry.inode);
                }
            }
            Kind::Attribute => {
                for it in Attribute::parse_all(&value).expect("it makes sense") {
                    seen.attributes.insert(it.name.to_vec(), it.value.to_vec());
                }
            }
            Kind::Target => seen.target = value.to_vec(),
            Kind::Extent => {
                let extent = ExtentRecord::parse(&value).expect("it makes sense");
                seen.extents.push((key.number, extent));
            }
            kind => panic!("{kind:?} in an inode"),
        }
    }
    found
}

/// The tree has the model's files, and nothing else.
fn assert_same(tree: &mut Tree, disks: &Disks, files: &Files, what: &str) {
    let found = inodes_of(tree, disks);
    let numbers: Vec<u64> = files.inodes().map(|(number, _)| number).collect();
    let in_tree: Vec<u64> = found.keys().copied().collect();
    assert_eq!(in_tree, numbers, "{what}");
    for (number, model) in files.inodes() {
        let seen = &found[&number];
        let inode = seen.inode.expect("it has its value");
        let what = format!("{what}, inode {number}");
        assert_attributes(&inode, model, &what);
        assert_eq!(seen.attributes, model.attributes, "{what}");
        assert_body(disks, seen, (&inode, model), &what);
    }
}

fn assert_body(disks: &Disks, seen: &Seen, (inode, model): (&Inode, &ModelInode), what: &str) {
    match &model.body {
        Body::Directory { parent, entries } => {
            assert_eq!((inode.parent, &seen.entries), (*parent, entries), "{what}");
            assert_eq!(inode.entries, entries.len() as u64, "{what}");
        }
        Body::Link(target) => {
            let data = content_of(disks, &seen.extents, target.len());
            let found = if seen.target.is_empty() {
                &data
            } else {
                &seen.target
            };
            assert_eq!(found, target, "{what}");
        }
        Body::File(content) => {
            let (mut written, mut reserved) = (Vec::new(), Vec::new());
            for (first, extent) in &seen.extents {
                for block in *first..first + extent.run.blocks {
                    match extent.is_unwritten() {
                        true => reserved.push(block),
                        false => written.push(block),
                    }
                }
            }
            let of_model = content.map();
            let in_model: Vec<u64> = of_model.1.into_iter().flatten().collect();
            assert_eq!((written, reserved), (of_model.0, in_model), "{what}");
            assert_eq!(inode.blocks, content.blocks(), "{what}");
            let length = seen.extents.last().map_or(0, |(first, extent)| {
                (first + extent.run.blocks) as usize * BLOCK_BYTES
            });
            let mut expected = vec![0; length];
            content.read(0, &mut expected);
            let found = content_of(disks, &seen.extents, length);
            assert!(found == expected, "{what}: another content");
        }
        Body::Special => {}
    }
}

fn content_of(disks: &Disks, extents: &[(u64, ExtentRecord)], length: usize) -> Vec<u8> {
    let mut content = vec![0; length.next_multiple_of(BLOCK_BYTES)];
    for (first, extent) in extents {
        for (index, crc) in extent.crcs.iter().enumerate() {
            let mut block: Box<Block> = Box::new([0; BLOCK_BYTES]);
            let place = extent.run.place.plus(index as u64);
            disks.read(place, &mut block[..]).expect("it reads");
            assert_eq!(crc32c::crc32c(&block[..]), *crc, "{place}");
            let at = (*first as usize + index) * BLOCK_BYTES;
            content[at..at + BLOCK_BYTES].copy_from_slice(&block[..]);
        }
    }
    content.truncate(length);
    content
}

#[test]
fn random_programs_leave_what_the_model_has() {
    let mut applied = 0;
    for seed in 0..300 {
        let mut rig = Rig::new();
        let mut program = Program::new(seed);
        for round in 0..4 {
            let count = [3, 20, 60, 150][(seed as usize + round) % 4];
            for op in program.run(count) {
                rig.log(&op);
            }
            let report = rig.digest();
            assert_eq!(report.refused, [], "seed {seed}");
            applied += report.applied;
            rig.commit_twice();
            let what = format!("seed {seed}, round {round}");
            assert_same(&mut rig.tree, &rig.disks, &program.files, &what);
            assert_clean(&check_to(&rig.disks, Depth::Data));
        }
        // Nothing is digested twice.
        let again = rig.digest();
        assert_eq!((again.read, again.applied), (0, 0));
        let mut tree = Tree::open(&rig.disks, &rig.volume, 1 << 20).expect("it is whole");
        assert_same(&mut tree, &rig.disks, &program.files, "opened again");
    }
    assert!(applied > 10_000, "{applied}");
}

/// What a process was granted, after a cut: the blocks that its log says to be its own, if they are free.
fn claim_again(tree: &mut Tree, disks: &Disks, grants: &mut Grants) {
    let (_, frames) = frames(tree, disks);
    for op in frames.iter().flat_map(Frame::ops).flatten() {
        if let Action::Place { place, sums, .. } = &op.action {
            let run = Run {
                place: *place,
                blocks: sums.len() as u64,
            };
            if tree.claim(disks, run).is_ok() {
                grants.grant(run);
            }
        }
    }
}

#[test]
fn a_digest_that_is_cut_at_any_write_and_repeated_is_done_once() {
    let (mut before_root, mut after_root) = (0, 0);
    for seed in 0..60 {
        let mut rig = Rig::new();
        let mut program = Program::new(1000 + seed);
        for op in program.run(40) {
            rig.log(&op);
        }
        rig.digest();
        rig.commit_twice();
        for op in program.run(30) {
            rig.log(&op);
        }
        rig.write_log();
        let grants = rig.grants.clone();
        let begin = rig.disks.clone();
        rig.disks.records = true;
        rig.disks.events.clear();
        rig.digest();
        rig.tree.commit(&mut rig.disks).expect("there is room");
        let events = core::mem::take(&mut rig.disks.events);
        let mut rng = Rng::new(seed);
        for (cut, mut disks) in cuts(&begin, &events, &mut rng).into_iter().enumerate() {
            let mut tree = Tree::open(&disks, &rig.volume, 1 << 20).expect("a root counts");
            let mut grants = grants.clone();
            claim_again(&mut tree, &disks, &mut grants);
            let report = digest_log(&mut tree, &mut disks, &mut grants).expect("it is the next batch");
            match report.read {
                0 => after_root += 1,
                _ => {
                    before_root += 1;
                    assert_eq!(report.refused, [], "seed {seed}, cut {cut}");
                }
            }
            tree.commit(&mut disks).expect("there is room");
            assert_same(
                &mut tree,
                &disks,
                &program.files,
                &format!("seed {seed}, cut {cut}"),
            );
            assert_clean(&check_to(&disks, Depth::Data));
        }
    }
    assert!(before_root > 500 && after_root > 50, "{before_root} {after_root}");
}

/// Writes a frame of any records behind the last one, as a process may that has its log mapped.
fn write_frame(rig: &mut Rig, position: u64, records: &[Vec<u8>]) -> u64 {
    let ring_bytes = RING.blocks * BLOCK_BYTES as u64;
    let length = 40 + records.iter().map(Vec::len).sum::<usize>();
    let rest = ring_bytes - position % ring_bytes;
    let skipped = if length.next_multiple_of(512) as u64 > rest {
        rest
    } else {
        0
    };
    let position = position + skipped;
    let mut frame = vec![0; 40];
    frame[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    frame[8..16].copy_from_slice(&NONCE.to_le_bytes());
    frame[16..24].copy_from_slice(&position.to_le_bytes());
    frame[32..36].copy_from_slice(&(records.len() as u32).to_le_bytes());
    frame[36..40].copy_from_slice(&(skipped as u32).to_le_bytes());
    records.iter().for_each(|record| frame.extend(record));
    let crc = crc32c::crc32c(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    let offset = RING.place.offset() + position % ring_bytes;
    write_at(&mut rig.disks, offset, &frame);
    position + length.next_multiple_of(512) as u64
}

/// Makes up operations on whatever there is, and records that are none.
struct Liar {
    rng: Rng,
    granted: Run,
}

impl Liar {
    fn inode(&mut self) -> u64 {
        match self.rng.below(60) {
            0 => u64::MAX - self.rng.below(3),
            1 => self.rng.next_u64(),
            2..5 => self.rng.between(1, 20),
            5..35 => 1000 + self.rng.below(3),
            _ => 1000 + self.rng.below(14),
        }
    }

    fn entry(&mut self) -> Entry<'static> {
        let length = [1, 1, 1, 1, 1, 255][self.rng.below(6) as usize];
        let parent = if self.rng.chance(0.6) { 1000 } else { self.inode() };
        Entry::new(parent, vec![b'a' + self.rng.below(9) as u8; length])
    }

    fn fate(&mut self) -> Fate {
        [Fate::Named, Fate::Orphaned, Fate::Deleted][self.rng.below(3) as usize]
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(6) {
            0 => i64::MAX as u64 - self.rng.below(1 << 16),
            1 => self.rng.next_u64() >> self.rng.between(1, 40),
            _ => self.rng.below(1 << 15),
        }
    }

    fn place(&mut self) -> Place {
        match self.rng.below(5) {
            0 => Place::new(self.rng.below(8) as u8, self.rng.between(4, 300_000)),
            1 => Place::new(0, RING.place.number() + self.rng.below(200)),
            2 => Place::new(0, self.rng.between(4, 200)),
            3 => Place::new(1, self.rng.between(4, 60)),
            _ => self.granted.place.plus(self.rng.below(self.granted.blocks + 2)),
        }
    }

    fn action(&mut self) -> Action<'static> {
        let (bytes, what) = (self.rng.between(1, 20_000), self.rng.below(3) as usize);
        let what = [Allocation::Reserve, Allocation::Hole, Allocation::Zeros][what];
        match self.rng.below(14) {
            0 | 1 | 12 | 13 => Action::Create {
                entry: self.entry(),
                mode: [0o100_644, 0o040_755, 0o040_755, 0o104_755, 0o060_666][self.rng.below(5) as usize],
                uid: [0, 7, 7, 7, 7, 8][self.rng.below(6) as usize],
                gid: 7,
                device: 0,
                target: Vec::new().into(),
            },
            2 => Action::Link { entry: self.entry() },
            3 => Action::Unlink {
                entry: self.entry(),
                is_directory: self.rng.chance(0.5),
                fate: self.fate(),
            },
            4..7 => Action::Rename {
                from: self.entry(),
                to: self.entry(),
                target: match self.rng.below(3) {
                    0 => Target::Free,
                    1 => Target::Exchanged { inode: self.inode() },
                    _ => Target::Replaced {
                        inode: self.inode(),
                        fate: self.fate(),
                    },
                },
            },
            7 => Action::Truncate { size: self.offset() },
            8 => Action::Write {
                offset: self.offset(),
                data: vec![6; bytes as usize].into(),
            },
            9 => Action::Place {
                offset: self.offset() / 4096 * 4096,
                bytes: bytes as u32,
                place: self.place(),
                sums: vec![7; bytes.div_ceil(4096) as usize].into(),
            },
            10 => Action::Allocate {
                offset: self.offset(),
                bytes: self.offset().max(1),
                what,
                keeps_size: what == Allocation::Hole || self.rng.chance(0.5),
            },
            _ => Action::Set(Changes {
                mode: self.rng.chance(0.3).then_some(0o4777),
                uid: self.rng.chance(0.3).then_some(7),
                flags: self.rng.chance(0.3).then_some(0x10),
                ..Changes::default()
            }),
        }
    }

    fn record(&mut self) -> Vec<u8> {
        let mut record = Vec::new();
        while record.is_empty() {
            let op = Op {
                inode: self.inode(),
                time: Time { seconds: 9, ns: 9 },
                action: self.action(),
            };
            if op.check().is_ok() {
                op.emit(&mut record);
            }
        }
        if self.rng.chance(0.1) {
            let at = self.rng.below(record.len() as u64) as usize;
            record[at] = self.rng.next_u64() as u8;
        }
        if self.rng.chance(0.02) {
            record = (0..self.rng.below(200))
                .map(|_| self.rng.next_u64() as u8)
                .collect();
        }
        record
    }
}

#[test]
fn a_log_that_lies_changes_nothing_but_its_own_and_panics_nothing() {
    let (mut applied, mut refused) = (0, BTreeMap::new());
    for seed in 0..300 {
        let mut rig = Rig::new();
        // What root has, and what another user may do nothing with.
        let mut victim = Program::new(5000 + seed);
        for op in victim.run(60) {
            rig.log(&op);
        }
        assert_eq!(rig.digest().refused, []);
        rig.commit_twice();
        let theirs = inodes_of(&mut rig.tree, &rig.disks);
        // The liar has a directory, a range of numbers, and some blocks.
        let own = Op {
            inode: 1000,
            time: Time::default(),
            action: Action::Create {
                entry: Entry::new(ROOT_INODE, &b"liar"[..]),
                mode: 0o040_755,
                uid: 7,
                gid: 7,
                device: 0,
                target: Vec::new().into(),
            },
        };
        rig.log(&own);
        rig.digest();
        rig.commit_twice();
        let before = inodes_of(&mut rig.tree, &rig.disks)[&ROOT_INODE].clone();
        let granted = rig.tree.reserve(&rig.disks, 1, 20, None).expect("there is room");
        let mut grants = Grants::default();
        (grants.uid, grants.gids, grants.inodes) = (7, vec![7], 1001..1014);
        grants.leases.insert(1000, Rights::ALL);
        grants.grant(granted);
        let rng = Rng::new(seed);
        let mut liar = Liar { rng, granted };
        for round in 0..6 {
            let mut position = record(&mut rig.tree, &rig.disks).digested;
            for _ in 0..liar.rng.between(1, 4) {
                let records: Vec<_> = (0..liar.rng.below(12)).map(|_| liar.record()).collect();
                position = write_frame(&mut rig, position, &records);
            }
            let report = digest_log(&mut rig.tree, &mut rig.disks, &mut grants).expect("the media work");
            assert_eq!(record(&mut rig.tree, &rig.disks).digested, position);
            applied += report.applied;
            for it in report.refused {
                *refused
                    .entry(
                        format!("{:?}", it.reason)
                            .split(['(', ' '])
                            .next()
                            .map(str::to_owned),
                    )
                    .or_insert(0) += 1;
            }
            for _ in 0..2 {
                rig.tree.commit(&mut rig.disks).expect("there is room");
            }
            let now = inodes_of(&mut rig.tree, &rig.disks);
            for (number, seen) in &theirs {
                let was = if *number == ROOT_INODE { &before } else { seen };
                assert_eq!(&now[number], was, "seed {seed}, round {round}: inode {number}");
            }
            assert!(
                now.keys()
                    .all(|inode| theirs.contains_key(inode) || (1000..1014).contains(inode))
            );
            let mut findings = check_to(&rig.disks, Depth::Data).findings;
            // Its own files may have wrong checksums: it wrote them.
            findings.retain(|it| {
                !matches!(
                    it.meaning,
                    Meaning::Data {
                        inode: 1000..1014,
                        ..
                    }
                )
            });
            assert_eq!(findings, [], "seed {seed}, round {round}");
        }
    }
    assert!(applied > 1000, "{applied} applied, refused: {refused:?}");
    assert!(refused.len() >= 5, "{refused:?}");
}

#[test]
fn a_batch_is_the_next_one_of_its_log_or_is_refused() {
    let mut rig = Rig::new();
    let mut program = Program::new(3);
    for op in program.run(10) {
        rig.log(&op);
    }
    rig.write_log();
    let (start, frames) = frames(&mut rig.tree, &rig.disks);
    let mut refused = |of, expected| {
        let batch = Batch::new(of, &frames);
        let result = digest(&mut rig.tree, &mut rig.disks, batch, (&mut rig.grants, &[0]));
        assert_eq!(result, Err(expected));
    };
    refused((LOG + 1, NONCE, start), DigestError::NoLog(LOG + 1));
    refused((LOG, NONCE + 1, start), DigestError::NoLog(LOG));
    let digested = start;
    let start = start + 512;
    refused((LOG, NONCE, start), DigestError::Position { digested, start });
    assert_eq!(rig.digest().refused, []);
}

/// What a grant does not cover is refused, and covers what a process may do.
#[test]
fn each_grant_covers_what_it_is_for() {
    let mut rig = Rig::new();
    let op = |inode, action| Op {
        inode,
        time: Time::default(),
        action,
    };
    let create = |inode, name: &str, (mode, uid): (u32, u32)| {
        let entry = Entry::new(ROOT_INODE, name.as_bytes().to_vec());
        let target = Vec::new().into();
        let (gid, device) = (uid, 0);
        op(
            inode,
            Action::Create {
                entry,
                mode,
                uid,
                gid,
                device,
                target,
            },
        )
    };
    // In the directory's group, which is not the user's.
    let foreign = |inode, name: &str, mode| {
        let mut made = create(inode, name, (mode, 7));
        if let Action::Create { gid, .. } = &mut made.action {
            *gid = 0;
        }
        made
    };
    let mut reasons = |grants: &mut Grants, ops: &[Op<'_>]| -> Vec<Reason> {
        for op in ops {
            rig.log(op);
        }
        core::mem::swap(&mut rig.grants, grants);
        let report = rig.digest();
        core::mem::swap(&mut rig.grants, grants);
        rig.commit_twice();
        report.refused.into_iter().map(|it| it.reason).collect()
    };
    let mut root = Grants::default();
    root.inodes = 100..200;
    root.leases.insert(ROOT_INODE, Rights::ALL);
    let made = [
        create(100, "theirs", (0o100_644, 0)),
        create(101, "ours", (0o100_644, 7)),
    ];
    assert_eq!(reasons(&mut root, &made), []);
    let mut user = Grants::default();
    (user.uid, user.gids, user.inodes) = (7, vec![7], 200..210);
    let posix = |errno| Reason::Posix(errno);
    assert_eq!(
        reasons(&mut user, &[create(200, "x", (0o100_644, 7))]),
        [Reason::Unleased(1)]
    );
    user.leases.insert(ROOT_INODE, Rights::ALL);
    let refused = [
        create(300, "a", (0o100_644, 7)),
        create(201, "b", (0o100_644, 0)),
        create(202, "c", (0o060_644, 7)),
        create(203, "d", (0o100_644, 7)),
        foreign(204, "e", 0o102_755),
        foreign(205, "f", 0o042_755),
        foreign(206, "g", 0o100_755),
    ];
    let expected = [
        Reason::Number(300),
        posix(Errno::NotPermitted),
        posix(Errno::NotPermitted),
        posix(Errno::NotPermitted),
    ];
    assert_eq!(
        reasons(&mut user, &refused),
        expected,
        "the fourth and the last two pass"
    );
    let set_gid = Changes {
        mode: Some(0o2755),
        ..Changes::default()
    };
    assert_eq!(
        reasons(&mut user, &[op(206, Action::Set(set_gid))]),
        [posix(Errno::NotPermitted)]
    );
    let write = |inode| {
        op(
            inode,
            Action::Write {
                offset: 0,
                data: vec![1; 10].into(),
            },
        )
    };
    assert_eq!(reasons(&mut user, &[write(101)]), [Reason::Unleased(101)]);
    let data = Rights {
        data: true,
        ..Rights::default()
    };
    user.leases.insert(101, data);
    let set = |changes| op(101, Action::Set(changes));
    let mode = |mode| Changes {
        mode: Some(mode),
        ..Changes::default()
    };
    assert_eq!(reasons(&mut user, &[write(101)]), []);
    assert_eq!(
        reasons(&mut user, &[set(mode(0o600))]),
        [posix(Errno::NotPermitted)]
    );
    let owner = Rights { owner: true, ..data };
    user.leases.insert(101, owner);
    assert_eq!(reasons(&mut user, &[set(mode(0o6711))]), []);
    let gift = Changes {
        uid: Some(0),
        ..Changes::default()
    };
    assert_eq!(reasons(&mut user, &[set(gift)]), [posix(Errno::NotPermitted)]);
    // Its own log need not say that a write takes the set-id bits.
    assert_eq!(reasons(&mut user, &[write(101)]), []);
    let ours = inodes_of(&mut rig.tree, &rig.disks)[&101]
        .inode
        .expect("it is there");
    assert_eq!(ours.mode, 0o100_711);
}

/// A sticky directory, and a file that others have open.
#[test]
fn names_of_others_stay_in_a_sticky_directory_and_open_files_become_orphans() {
    let mut rig = Rig::new();
    let op = |inode, action| Op {
        inode,
        time: Time::default(),
        action,
    };
    let name = |name: &str| Entry::new(ROOT_INODE, name.as_bytes().to_vec());
    let sticky = Changes {
        mode: Some(0o1777),
        ..Changes::default()
    };
    let create = |entry, uid| Action::Create {
        entry,
        mode: 0o100_644,
        uid,
        gid: uid,
        device: 0,
        target: Vec::new().into(),
    };
    rig.log(&op(ROOT_INODE, Action::Set(sticky)));
    rig.log(&op(100, create(name("theirs"), 0)));
    rig.log(&op(101, create(name("ours"), 7)));
    assert_eq!(rig.digest().refused, []);
    rig.commit_twice();
    rig.grants.uid = 7;
    rig.grants.open_elsewhere.insert(101);
    for (inode, entry) in [(100, "theirs"), (101, "ours")] {
        let (entry, fate) = (name(entry), Fate::Deleted);
        let is_directory = false;
        rig.log(&op(
            inode,
            Action::Unlink {
                entry,
                is_directory,
                fate,
            },
        ));
    }
    let reasons: Vec<_> = rig.digest().refused.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::Posix(Errno::NotPermitted)]);
    rig.commit_twice();
    let found = inodes_of(&mut rig.tree, &rig.disks);
    let links = |inode: u64| found[&inode].inode.map(|inode| inode.links);
    assert_eq!((links(100), links(101)), (Some(1), Some(0)));
    assert_clean(&check_to(&rig.disks, Depth::Data));
}

fn op_of(inode: u64, action: Action<'static>) -> Op<'static> {
    let time = Time::default();
    Op { inode, time, action }
}

fn create_of(inode: u64, parent: u64, name: &str, mode: u32) -> Op<'static> {
    op_of(
        inode,
        Action::Create {
            entry: Entry::new(parent, name.as_bytes().to_vec()),
            mode,
            uid: 0,
            gid: 0,
            device: 0,
            target: Vec::new().into(),
        },
    )
}

#[test]
fn a_rename_that_would_make_a_circle_is_refused() {
    let mut rig = Rig::new();
    for (inode, parent, name) in [(100, ROOT_INODE, "a"), (101, 100, "b"), (102, 101, "c")] {
        rig.log(&create_of(inode, parent, name, 0o040_755));
    }
    assert_eq!(rig.digest().refused, []);
    rig.commit_twice();
    let before = inodes_of(&mut rig.tree, &rig.disks);
    let at = |parent, name: &str| Entry::new(parent, name.as_bytes().to_vec());
    let (top, low) = ((ROOT_INODE, "a", 100), (101, "c", 102));
    let tries = [
        (top, (100, "x", 0), Target::Free),
        (top, (102, "x", 0), Target::Free),
        (top, low, Target::Exchanged { inode: 102 }),
        (low, top, Target::Exchanged { inode: 100 }),
    ];
    for ((from, name, inode), (to, new_name, _), target) in tries {
        let (from, to) = (at(from, name), at(to, new_name));
        rig.log(&op_of(inode, Action::Rename { from, to, target }));
        let reasons: Vec<_> = rig.digest().refused.iter().map(|it| it.reason).collect();
        assert_eq!(reasons, [Reason::Posix(Errno::Invalid)], "{name} to {new_name}");
        rig.commit_twice();
        assert_eq!(inodes_of(&mut rig.tree, &rig.disks), before);
    }
    assert_clean(&check_to(&rig.disks, Depth::Data));
}

/// What finds no room is refused whole, and deletions give all of it back.
#[test]
fn a_full_file_system_refuses_writes_and_digests_deletions() {
    let mut rig = Rig::new();
    let empty = rig.tree.free(0);
    for round in 0..2 {
        let (mut files, mut is_full) = (0, false);
        while !is_full {
            let (inode, name) = (100 + 1000 * round + files, files.to_string());
            files += 1;
            rig.log(&create_of(inode, ROOT_INODE, &name, 0o100_644));
            for part in 0..4 {
                let (offset, data) = (part * 70_000, vec![part as u8 + 1; 60_000].into());
                rig.log(&op_of(inode, Action::Write { offset, data }));
            }
            for refused in rig.digest().refused {
                assert_eq!(refused.reason, Reason::Full(0));
                is_full = true;
            }
            rig.commit_twice();
            assert_clean(&check_to(&rig.disks, Depth::Data));
        }
        let used = empty - rig.tree.free(0);
        assert!(
            files > 10 && used > empty / 2,
            "{files} files, {used} of {empty} blocks"
        );
        for file in 0..files {
            let entry = Entry::new(ROOT_INODE, file.to_string().into_bytes());
            let (is_directory, fate) = (false, Fate::Deleted);
            let action = Action::Unlink {
                entry,
                is_directory,
                fate,
            };
            rig.log(&op_of(100 + 1000 * round + file, action));
            let refused = rig.digest().refused;
            // The last file may not have come into being.
            assert!(refused.is_empty() || file + 1 == files, "{refused:?}");
            rig.commit_twice();
        }
        rig.commit_twice();
        assert_clean(&check_to(&rig.disks, Depth::Data));
        assert_eq!(rig.tree.free(0), empty, "round {round}");
    }
}

#[test]
fn the_check_tells_of_damaged_data_and_of_files_that_do_not_fit_each_other() {
    let mut rig = Rig::new();
    rig.log(&create_of(100, ROOT_INODE, "a", 0o100_644));
    rig.log(&create_of(101, ROOT_INODE, "d", 0o040_755));
    let (offset, data) = (0, vec![5; 5000].into());
    rig.log(&op_of(100, Action::Write { offset, data }));
    assert_eq!(rig.digest().refused, []);
    rig.commit_twice();
    assert_clean(&check_to(&rig.disks, Depth::Data));
    let seen = inodes_of(&mut rig.tree, &rig.disks);
    let place = seen[&100].extents[0].1.run.place.plus(1);
    let mut disks = rig.disks.clone();
    disks.data.get_mut(&place).expect("it was written")[7] ^= 1;
    assert_clean(&check_to(&disks, Depth::Files));
    let findings = check_to(&disks, Depth::Data).findings;
    let (inode, block) = (100, 1);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        (findings[0].place, &findings[0].meaning),
        (place, &Meaning::Data { inode, block })
    );
    // Each lie about an inode, and what is found.
    let file = seen[&100].inode.expect("it is there");
    let directory = seen[&101].inode.expect("it is there");
    let lies = [
        (100, Inode { links: 2, ..file }, "links"),
        (100, Inode { blocks: 9, ..file }, "blocks"),
        (
            101,
            Inode {
                entries: 1,
                ..directory
            },
            "entries",
        ),
        (
            101,
            Inode {
                parent: 101,
                ..directory
            },
            "is in inode",
        ),
        (
            101,
            Inode {
                mode: 0o100_644,
                links: 1,
                ..directory
            },
            "type",
        ),
        (102, file, "has no name"),
    ];
    for (number, inode, expected) in lies {
        let mut disks = rig.disks.clone();
        let mut tree = Tree::open(&disks, &rig.volume, 1 << 20).expect("it is whole");
        let key = Key::new(number, Kind::Inode, 0);
        tree.insert(&disks, key, &inode.emit(), Room::Normal)
            .expect("there is room");
        tree.commit(&mut disks).expect("there is room");
        let found: Vec<_> = check_to(&disks, Depth::Files)
            .findings
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(
            found.iter().any(|text| text.contains(expected)),
            "{expected}: {found:?}"
        );
    }
}

/// bug: a digest gave blocks of placed data that later calls had changed to others at once. A reader of the log found other bytes in them, and so did a
/// digest that had to be repeated after a cut. fix: they are held until two roots do without them.
#[test]
fn placed_blocks_keep_their_data_until_two_roots_do_without_them() {
    let mut rig = Rig::new();
    let run = rig.tree.reserve(&rig.disks, 0, 8, None).expect("there is room");
    rig.tree.give_back(&rig.disks, run).expect("it was reserved");
    let blocks: Vec<Box<Block>> = (0..8).map(|at| block(run.place.plus(at))).collect();
    let data = blocks
        .iter()
        .flat_map(|block| block.iter().copied())
        .collect::<Vec<u8>>();
    let place = |first: u64, blocks: usize| {
        let from = first as usize * BLOCK_BYTES;
        let blocks = data[from..].chunks(BLOCK_BYTES).take(blocks);
        let sums: Vec<u32> = blocks.map(crc32c::crc32c).collect();
        Action::Place {
            offset: 0,
            bytes: (sums.len() * BLOCK_BYTES) as u32,
            place: run.place.plus(first),
            sums: sums.into(),
        }
    };
    let write = |offset: u64, bytes: usize| Action::Write {
        offset,
        data: vec![7; bytes].into(),
    };
    for (inode, first) in [(100, 0), (101, 4)] {
        rig.log(&create_of(inode, ROOT_INODE, &format!("{inode}"), 0o100_644));
        rig.log(&op_of(inode, place(first, 4)));
    }
    // A part of one block, and one and a half.
    rig.log(&op_of(100, write(4096 + 10, 50)));
    rig.log(&op_of(101, write(4096, 6000)));
    for inode in 200..300 {
        rig.log(&create_of(inode, ROOT_INODE, &format!("{inode}"), 0o100_644));
        rig.log(&op_of(inode, write(0, BLOCK_BYTES)));
    }
    assert_eq!(rig.digest().refused, []);
    let mut found = vec![0; data.len()];
    for _ in 0..2 {
        rig.disks.read(run.place, &mut found).expect("it reads");
        assert!(found == data, "other data are there");
        rig.tree.commit(&mut rig.disks).expect("there is room");
    }
    let kept = rig.tree.free(0);
    rig.tree.commit(&mut rig.disks).expect("there is room");
    assert!(rig.tree.free(0) >= kept);
    assert_clean(&check_to(&rig.disks, Depth::Data));
}
