//! A process with a log, and the file system that digests it.
#![allow(
    dead_code,
    reason = "shared by several test programs, each of which uses a part"
)]

use crate::common::{Disks, make};
use crate::program::block;
use base::{Device, MediaError};
use fs::digest::{Batch, DigestError, Report, digest};
use fs::edit::Room;
use fs::files::{Body, Files, Inode as ModelInode};
use fs::format::{BLOCK_BYTES, Key, Kind, Place, ROOT_INODE};
use fs::grants::{Grants, Rights};
use fs::inode::Inode;
use fs::log::{Frame, Next, Options, Reader, Ring, Ticket, Writer};
use fs::media::{Media, Volume};
use fs::op::{Action, Op};
use fs::overlay::{Below, Overlay};
use fs::tree::{Tree, View};
use fs::value::{LogRecord, Run};
use std::collections::BTreeMap;

pub const NONCE: u64 = 0x0102_0304_0506_0708;
pub const LOG: u64 = 1;
/// Where the log is on device 0, of 3000 blocks.
pub const RING: Run = Run {
    place: Place::new(0, 2000),
    blocks: 128,
};

/// Device 0, to read a log.
pub struct First<'d>(pub &'d Disks);

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
pub fn write_at(disks: &mut Disks, offset: u64, bytes: &[u8]) {
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
pub struct Rig {
    pub disks: Disks,
    pub volume: Volume,
    pub tree: Tree,
    pub writer: Writer,
    pub grants: Grants,
    /// Where data of records go, in this order.
    pub devices: Vec<u8>,
    /// The last frame that is in the tree.
    pub digested: Ticket,
}

pub fn ring() -> Ring {
    Ring::new(NONCE, 512, &[RING]).expect("it is sound")
}

impl Rig {
    pub fn new() -> Self {
        Self::of(&[3000, 200_000], &[0])
    }

    /// With devices of so many blocks, on some of which data of records go.
    pub fn of(blocks: &[u64], devices: &[u8]) -> Self {
        let (mut disks, volume) = make(blocks);
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
        tree.insert(&disks, Key::new(0, Kind::Log, LOG), &record.emit(), Room::Normal)
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
            devices: devices.to_vec(),
            digested: Ticket(0),
        }
    }

    /// Writes the frame that is gathered.
    pub fn write_log(&mut self) {
        while let Some(write) = self.writer.next_write() {
            for (offset, bytes) in write.pieces() {
                write_at(&mut self.disks, offset, bytes);
            }
            self.writer.written(write, Ok(()));
        }
    }

    /// Does what a process does for a call: its data are in granted blocks before the record is.
    pub fn log(&mut self, op: &Op<'_>) -> Ticket {
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
        loop {
            if let Ok(ticket) = self.writer.add(std::slice::from_ref(op)) {
                return ticket;
            }
            let before = self.writer.durable();
            self.write_log();
            if self.writer.durable() == before {
                self.digest();
                self.commit_twice();
            }
        }
    }

    pub fn digest(&mut self) -> Report {
        self.write_log();
        self.digest_some(usize::MAX)
    }

    /// Digests so many frames of those that are durable, if there are as many.
    pub fn digest_some(&mut self, count: usize) -> Report {
        let (start, mut frames) = frames(&mut self.tree, &self.disks);
        frames.truncate(count);
        self.digested.0 += frames.len() as u64;
        let batch = Batch::new((LOG, NONCE, start), &frames);
        let grants = (&mut self.grants, &self.devices[..]);
        let report = digest(&mut self.tree, &mut self.disks, batch, grants);
        report.expect("it is the next batch")
    }

    /// Both roots then have what was digested.
    pub fn commit_twice(&mut self) {
        for _ in 0..2 {
            self.tree.commit(&mut self.disks).expect("there is room");
        }
        let digested = record(&mut self.tree, &self.disks).digested;
        self.writer.consumed(digested);
    }
}

pub fn record(tree: &mut Tree, disks: &Disks) -> LogRecord {
    let value = tree.get(disks, View::Pending, Key::new(0, Kind::Log, LOG));
    LogRecord::parse(&value.expect("it is whole").expect("there is a log")).expect("it makes sense")
}

/// The frames of the log that are not in the tree.
pub fn frames(tree: &mut Tree, disks: &Disks) -> (u64, Vec<Frame>) {
    let (start, ring, medium) = (record(tree, disks).digested, ring(), First(disks));
    let mut reader = Reader::new(&ring, &medium, start).expect("it is a position");
    let mut frames = Vec::new();
    while let Next::Frame(frame) = reader.next_frame().expect("the medium reads") {
        frames.push(frame);
    }
    (start, frames)
}

pub fn digest_log(tree: &mut Tree, disks: &mut Disks, grants: &mut Grants) -> Result<Report, DigestError> {
    let (start, frames) = frames(tree, disks);
    let batch = Batch::new((LOG, NONCE, start), &frames);
    digest(tree, disks, batch, (grants, &[0]))
}

/// Checks that an inode has the attributes of the model's.
pub fn assert_attributes(inode: &Inode, model: &ModelInode, what: &str) {
    let of_model = (
        model.mode,
        model.links,
        model.uid,
        model.gid,
        model.device,
        model.size,
    );
    let found = (
        inode.mode,
        inode.links,
        inode.uid,
        inode.gid,
        inode.device,
        inode.size,
    );
    assert_eq!(found, of_model, "{what}");
    let of_model = (
        model.flags,
        model.tier,
        model.atime,
        model.mtime,
        model.ctime,
        model.btime,
    );
    let found = (
        inode.flags,
        inode.tier,
        inode.atime,
        inode.mtime,
        inode.ctime,
        inode.btime,
    );
    assert_eq!(found, of_model, "{what}");
}

/// The tree has the model's files: what a process reads that has logged nothing.
pub fn assert_files(tree: &mut Tree, disks: &Disks, files: &Files, what: &str) {
    let volume = Volume::read(disks).expect("superblocks are whole");
    let overlay = Overlay::new(volume.mark);
    let view = View::Pending;
    let mut below = Below::new(tree, disks, view);
    for (number, _) in files.inodes() {
        assert_inode((&overlay, &mut below), files, number, what);
    }
}

/// What a process sees of an inode is what the model has.
pub fn assert_inode((overlay, below): (&Overlay, &mut Below<'_>), files: &Files, number: u64, what: &str) {
    let what = format!("{what}, inode {number}");
    let model = files.inode(number).expect("the model has it");
    let inode = overlay.inode(below, number).expect("it is whole");
    let inode = inode.unwrap_or_else(|| panic!("{what} is missing"));
    assert_attributes(&inode, model, &what);
    let names = overlay.attributes(below, number).expect("it is whole");
    let values = names.into_iter().map(|name| {
        let value = overlay.attribute(below, number, &name).expect("it is whole");
        (name, value.expect("it is listed"))
    });
    assert_eq!(values.collect::<BTreeMap<_, _>>(), model.attributes, "{what}");
    match &model.body {
        Body::Directory { parent, entries } => {
            let listed = overlay.list(below, (number, 0), 1000).expect("it is whole");
            let listed: BTreeMap<_, _> = listed.into_iter().map(|it| (it.name, it.inode)).collect();
            assert_eq!((inode.parent, &listed), (*parent, entries), "{what}");
        }
        Body::File(content) => {
            assert_eq!(inode.blocks, content.blocks(), "{what}");
            let mut bytes = vec![0; model.size as usize];
            let count = overlay.read(below, (number, 0), &mut bytes);
            assert_eq!(count, Ok(bytes.len()), "{what}");
            let of_model = files.read(number, 0, bytes.len()).expect("it is a file");
            assert!(bytes == of_model, "{what}: another content");
        }
        Body::Link(target) => assert_eq!(overlay.target(below, number).as_ref(), Ok(target), "{what}"),
        Body::Special => {}
    }
}
