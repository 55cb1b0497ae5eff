//! The digest: random programs through log, coalescing and digest leave the files that the model has; cuts and lies do no harm.

mod common;
mod program;
use base::{Device, MediaError, Rng};
use common::{Disks, Event, assert_clean, make};
use fs::check::{Depth, check_to};
use fs::digest::{Batch, DigestError, Report, digest};
use fs::edit::Room;
use fs::files::{Body, Files, Inode as ModelInode};
use fs::format::{BLOCK_BYTES, Block, Key, Kind, Place, ROOT_INODE};
use fs::grants::{Grants, Reason, Rights};
use fs::inode::Inode;
use fs::log::{Frame, Next, Options, Reader, Ring, Writer};
use fs::media::{Media, Volume};
use fs::names::{Attribute, Dirent};
use fs::op::{Action, Entry, Fate, Op, Target};
use fs::tree::{Tree, View};
use fs::value::{ExtentRecord, LogRecord, Run};
use program::{Program, block, new};
use std::collections::BTreeMap;

const NONCE: u64 = 0x0102_0304_0506_0708;
const LOG: u64 = 1;
/// Where the log is on device 0, of 3000 blocks.
const RING: Run = Run {
    place: Place::new(0, 2000),
    blocks: 128,
};

/// Device 0, to read a log.
struct First<'d>(&'d Disks);

impl Device for First<'_> {
    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes(0)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let mut block = [0; BLOCK_BYTES];
            let (number, inside) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
            self.0.read(Place::new(0, number), &mut block)?;
            let count = rest.len().min(BLOCK_BYTES - inside);
            let (piece, behind) = rest.split_at_mut(count);
            piece.copy_from_slice(&block[inside..inside + count]);
            (rest, at) = (behind, at + count as u64);
        }
        Ok(())
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("the log is read")
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        unreachable!("the log is read")
    }
}

/// Writes bytes of device 0 that need not be whole blocks.
fn write_at(disks: &mut Disks, offset: u64, bytes: &[u8]) {
    for (at, byte) in (offset..).zip(bytes) {
        let place = Place::new(0, at / BLOCK_BYTES as u64);
        let block = disks
            .data
            .entry(place)
            .or_insert_with(|| Box::new([0; BLOCK_BYTES]));
        block[(at % BLOCK_BYTES as u64) as usize] = *byte;
    }
}

/// A process with its log, and the file system that digests it.
struct Rig {
    disks: Disks,
    volume: Volume,
    tree: Tree,
    writer: Writer,
    grants: Grants,
}

fn ring() -> Ring {
    Ring::new(NONCE, 512, &[RING]).expect("it is sound")
}

impl Rig {
    fn new() -> Self {
        let (mut disks, volume) = make(&[3000, 200_000]);
        let mut tree = Tree::open(&disks, &volume, 1 << 22).expect("it was just made");
        let root = Inode {
            mode: 0o040_755,
            links: 2,
            parent: ROOT_INODE,
            ..Inode::default()
        };
        let key = Key::new(ROOT_INODE, Kind::Inode, 0);
        tree.insert(&disks, key, &root.emit(), Room::Normal)
            .expect("there is room");
        tree.claim(&disks, RING).expect("it is free");
        tree.keep(&disks, RING).expect("it was claimed");
        let record = LogRecord {
            nonce: NONCE,
            sector: 512,
            extents: vec![RING],
            ..LogRecord::default()
        };
        tree.insert(
            &disks,
            Key::new(0, Kind::Log, LOG),
            &record.emit(),
            Room::Normal,
        )
        .expect("there is room");
        for _ in 0..2 {
            tree.commit(&mut disks).expect("there is room");
        }
        let options = Options {
            frame_bytes_max: 1 << 16,
            writes_in_flight_max: 1,
        };
        let mut grants = Grants::default();
        grants.inodes = 10..1 << 32;
        grants.leases.insert(ROOT_INODE, Rights::ALL);
        Self {
            disks,
            volume,
            tree,
            writer: Writer::new(ring(), 0, options),
            grants,
        }
    }

    /// Writes the frame that is gathered.
    fn write_log(&mut self) {
        while let Some(write) = self.writer.next_write() {
            for (offset, bytes) in write.pieces() {
                write_at(&mut self.disks, offset, bytes);
            }
            self.writer.written(write, Ok(()));
        }
    }

    /// Does what a process does for a call: its data are in granted blocks before the record is.
    fn log(&mut self, op: &Op<'_>) {
        if let Action::Place { place, sums, .. } = &op.action {
            let run = Run {
                place: *place,
                blocks: sums.len() as u64,
            };
            self.tree.claim(&self.disks, run).expect("it is free");
            self.grants.grant(run);
            for at in 0..run.blocks {
                self.disks.data.insert(place.plus(at), block(place.plus(at)));
            }
        }
        while self.writer.add(std::slice::from_ref(op)).is_err() {
            let before = self.writer.durable();
            self.write_log();
            if self.writer.durable() == before {
                self.digest();
                self.commit_twice();
            }
        }
    }

    fn digest(&mut self) -> Report {
        self.write_log();
        let report = digest_log(&mut self.tree, &mut self.disks, &mut self.grants);
        report.expect("it is the next batch")
    }

    /// Both roots then have what was digested.
    fn commit_twice(&mut self) {
        for _ in 0..2 {
            self.tree.commit(&mut self.disks).expect("there is room");
        }
        let digested = record(&mut self.tree, &self.disks).digested;
        self.writer.consumed(digested);
    }
}

fn record(tree: &mut Tree, disks: &Disks) -> LogRecord {
    let value = tree.get(disks, View::Pending, Key::new(0, Kind::Log, LOG));
    LogRecord::parse(&value.expect("it is whole").expect("there is a log")).expect("it makes sense")
}

/// The frames of the log that are not in the tree.
fn frames(tree: &mut Tree, disks: &Disks) -> (u64, Vec<Frame>) {
    let (start, ring, medium) = (record(tree, disks).digested, ring(), First(disks));
    let mut reader = Reader::new(&ring, &medium, start).expect("it is a position");
    let mut frames = Vec::new();
    while let Next::Frame(frame) = reader.next_frame().expect("the medium reads") {
        frames.push(frame);
    }
    (start, frames)
}

fn digest_log(tree: &mut Tree, disks: &mut Disks, grants: &mut Grants) -> Result<Report, DigestError> {
    let (start, frames) = frames(tree, disks);
    let batch = Batch::new((LOG, NONCE, start), &frames);
    digest(tree, disks, batch, (grants, &[0]))
}

/// All that the tree has of an inode.
#[derive(Default)]
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
        let of_model = (model.mode, model.links, model.uid, model.gid, model.device, model.size);
        let of_tree = (inode.mode, inode.links, inode.uid, inode.gid, inode.device, inode.size);
        assert_eq!(of_tree, of_model, "{what}");
        let of_model = (model.flags, model.tier, model.atime, model.mtime, model.ctime, model.btime);
        let of_tree = (inode.flags, inode.tier, inode.atime, inode.mtime, inode.ctime, inode.btime);
        assert_eq!(of_tree, of_model, "{what}");
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
            let found = if seen.target.is_empty() { &data } else { &seen.target };
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
    for seed in 0..25 {
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
        let mut grants = rig.grants.clone();
        let begin = rig.disks.clone();
        rig.disks.records = true;
        rig.disks.events.clear();
        rig.digest();
        rig.tree.commit(&mut rig.disks).expect("there is room");
        let events = core::mem::take(&mut rig.disks.events);
        let mut rng = Rng::new(seed);
        for cut in 0..=events.len() {
            // All up to the last flush is there, and of what follows a part.
            let flushed = events[..cut]
                .iter()
                .rposition(|event| matches!(event, Event::Flush))
                .map_or(0, |at| at + 1);
            let mut disks = begin.clone();
            for (index, event) in events[..cut].iter().enumerate() {
                if let Event::Write(place, block) = event {
                    let chosen = if index < flushed { u64::MAX } else { rng.next_u64() };
                    disks.put(*place, block, |sector| chosen >> sector & 1 == 1);
                }
            }
            let mut tree = Tree::open(&disks, &rig.volume, 1 << 20).expect("a root counts");
            let mut grants = grants.clone();
            let granted: Vec<Run> = grants.granted().collect();
            claim_again(&mut tree, &disks, &mut grants);
            let report = digest_log(&mut tree, &mut disks, &mut grants).expect("it is the next batch");
            match report.read {
                0 => after_root += 1,
                _ => {
                    before_root += 1;
                    assert_eq!(report.refused, [], "seed {seed}, cut {cut}, {granted:?}");
                }
            }
            tree.commit(&mut disks).expect("there is room");
            assert_same(&mut tree, &disks, &program.files, &format!("seed {seed}, cut {cut}"));
            assert_clean(&check_to(&disks, Depth::Data));
        }
    }
    assert!(before_root > 500 && after_root > 20, "{before_root} {after_root}");
}
