//! Figures, by hand: `cargo test --release -p switchyard-fs --test all figures -- --ignored --nocapture`.
#![allow(clippy::disallowed_types, reason = "it measures")]

use base::Rng;
use fs::client::{Budget, Call, Caller, Client, Failure, New, Options, Where};
use fs::digest::{Batch, digest};
use fs::edit::Room;
use fs::format::{Key, Kind, Place, ROOT_INODE, Tier};
use fs::grants::{Grants, Rights};
use fs::inode::{TYPE_DIRECTORY, TYPE_FILE, Time};
use fs::log::{self, Next, Reader, Ring, Writer};
use fs::make::Make;
use fs::overlay::Below;
use fs::tree::{Tree, View};
use fs::value::{LogRecord, Run};
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

/// A client with its log in memory.
struct Server {
    disks: Vec<Vec<u8>>,
    tree: Tree,
    client: Client,
    writer: Writer,
    ring: Ring,
    grants: Grants,
    now: Time,
}

const LOG: u64 = 1;
const NONCE: u64 = 77;

impl Server {
    fn new() -> Self {
        let mut disks = vec![vec![1u8; 1 << 30]];
        let make = Make {
            uuid: Uuid::from_u128(1 << 100),
            devices: vec![(Tier::Memory, Uuid::from_u128(2))],
            time: Time::default(),
            owner: (0, 0),
        };
        let volume = make.make(&mut disks).expect("it is large enough");
        let mut tree = Tree::open(&disks, &volume, 256 << 20).expect("it was just made");
        let run = Run {
            place: Place::new(0, 1000),
            blocks: 1 << 16,
        };
        tree.claim(&disks, run).expect("it is free");
        tree.keep(&disks, run).expect("it was claimed");
        let record = LogRecord {
            nonce: NONCE,
            sector: 64,
            extents: vec![run],
            ..LogRecord::default()
        };
        let key = Key::new(0, Kind::Log, LOG);
        tree.insert(&disks, key, &record.emit(), Room::Normal)
            .expect("there is room");
        tree.commit(&mut disks).expect("there is room");
        tree.commit(&mut disks).expect("there is room");
        let ring = Ring::new(NONCE, 64, &[run]).expect("it is sound");
        let options = log::Options {
            frame_bytes_max: 1 << 20,
            writes_in_flight_max: 4,
        };
        let mut grants = Grants::default();
        grants.inodes = 10..1 << 40;
        grants.leases.insert(ROOT_INODE, Rights::ALL);
        let mut client = Client::new(volume.mark, Options::default());
        client.grant_inodes(10..1 << 40);
        client.set_budget(Budget::of(&tree, &[0]));
        Self {
            disks,
            tree,
            client,
            writer: Writer::new(ring.clone(), 0, options),
            ring,
            grants,
            now: Time::default(),
        }
    }

    fn write_log(&mut self) {
        while let Some(write) = self.writer.next_write() {
            for (offset, bytes) in write.pieces() {
                let at = offset as usize;
                self.disks[0][at..at + bytes.len()].copy_from_slice(bytes);
            }
            self.writer.written(write, Ok(()));
        }
    }

    fn digest(&mut self) {
        self.write_log();
        let key = Key::new(0, Kind::Log, LOG);
        let value = self.tree.get(&self.disks, View::Pending, key);
        let record = LogRecord::parse(&value.expect("whole").expect("there")).expect("sound");
        let mut frames = Vec::new();
        let mut reader = Reader::new(&self.ring, &self.disks[0], record.digested).expect("a position");
        // Behind the last frame a reader looks for damage in all of the ring.
        while reader.position() < self.writer.durable_position() {
            let Next::Frame(frame) = reader.next_frame().expect("it reads") else {
                panic!("durable frames are there");
            };
            frames.push(frame);
        }
        let batch = Batch::new((LOG, NONCE, record.digested), &frames);
        let grants = (&mut self.grants, &[0][..]);
        let report = digest(&mut self.tree, &mut self.disks, batch, grants).expect("the next one");
        assert_eq!(report.refused, []);
        self.tree.commit(&mut self.disks).expect("there is room");
        self.tree.commit(&mut self.disks).expect("there is room");
        self.writer.consumed(self.writer.durable_position());
        self.client.digested(self.writer.durable());
        self.client.set_budget(Budget::of(&self.tree, &[0]));
    }

    fn call<T>(&mut self, mut f: impl FnMut(&mut Client, &mut Call<'_, '_>) -> Result<T, Failure>) -> T {
        loop {
            let mut below = Below::new(&mut self.tree, &self.disks, View::Pending);
            let writer = &mut self.writer;
            let mut sink = |ops: &[fs::op::Op<'_>]| writer.add(ops);
            let mut call = Call {
                caller: Caller::default(),
                now: self.now,
                below: &mut below,
                sink: &mut sink,
            };
            match f(&mut self.client, &mut call) {
                Ok(done) => return done,
                Err(Failure::Busy) => self.write_log(),
                Err(Failure::Digest) => self.digest(),
                Err(failure) => panic!("{failure}"),
            }
        }
    }
}

/// Calls between two digests, which are not measured.
const CALLS: u64 = 2000;

/// The time of each of many calls, without digests.
fn measure(server: &mut Server, name: &str, count: u64, mut f: impl FnMut(&mut Server, u64)) {
    let (mut all, mut at) = (0, 0);
    while at < count {
        let begin = thread_ns();
        (at..at + CALLS).for_each(|index| f(server, index));
        all += thread_ns() - begin;
        at += CALLS;
        if name.ends_with("logged") {
            server.digest();
        }
    }
    println!("{name}: {} ns", all / count);
}

/// Time that this thread had a processor, so that others on the machine count less.
fn thread_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let first = text.split(' ').next().and_then(|ns| ns.parse().ok());
    first.expect("it is a number")
}

#[test]
#[ignore = "it measures, and takes a gibibyte"]
fn calls_of_a_client() {
    const FILES: u64 = 10_000;
    let mut server = Server::new();
    let names: Vec<_> = (0..FILES)
        .map(|index| format!("file-{index}").into_bytes())
        .collect();
    let mut files = Vec::new();
    measure(&mut server, "create, logged", FILES, |server, index| {
        let new = New {
            mode: TYPE_FILE | 0o644,
            ..New::default()
        };
        let entry = (ROOT_INODE, &names[index as usize][..]);
        let made = server.call(|client, call| client.create(call, entry, new));
        files.push(made.number);
    });
    let data = [7; 1024];
    for state in ["tree", "log"] {
        if state == "log" {
            for file in files.iter().take(1000) {
                server.call(|client, call| client.write(call, (*file, Where::End), &data, false));
            }
        }
        let of = |index: u64| (index * 7919 % 1000) as usize;
        measure(
            &mut server,
            &format!("stat, in the {state}"),
            1_000_000,
            |server, index| {
                let file = files[of(index)];
                server.call(|client, call| client.stat(call.below, file));
            },
        );
        measure(
            &mut server,
            &format!("lookup, in the {state}"),
            1_000_000,
            |server, index| {
                let name = &names[of(index)];
                server.call(|client, call| client.lookup(call, (ROOT_INODE, name)));
            },
        );
    }
    server.digest();
    measure(
        &mut server,
        "append of 1 KiB, logged",
        200_000,
        |server, index| {
            let file = files[(index / 1000) as usize];
            server.call(|client, call| client.write(call, (file, Where::End), &data, false));
        },
    );
    let mut bytes = vec![0; 4096];
    measure(
        &mut server,
        "read of 4 KiB, in the tree",
        100_000,
        |server, index| {
            let file = files[(index / 1000) as usize];
            server.call(|client, call| client.read(call.below, (file, 0), &mut bytes));
        },
    );
}

/// Files that a digest has at once: about as many as a third of a log of 16 MiB has.
const DIGESTED: u64 = 3000;

/// What the digest of a new file of 1 KiB takes. Instructions: the same under `valgrind --tool=callgrind`, by those of `Server::digest`.
#[test]
#[ignore = "it measures, and takes a gibibyte"]
fn digest_of_new_files() {
    const FILES: u64 = 12_000;
    let mut server = Server::new();
    let (data, mut parent) = ([7; 1024], ROOT_INODE);
    let mut all = 0;
    for index in 0..FILES {
        if index % 1000 == 0 {
            let new = New {
                mode: TYPE_DIRECTORY | 0o755,
                ..New::default()
            };
            let name = format!("directory-{index}");
            parent = server
                .call(|client, call| client.create(call, (ROOT_INODE, name.as_bytes()), new))
                .number;
            server.write_log();
        }
        let new = New {
            mode: TYPE_FILE | 0o644,
            ..New::default()
        };
        let name = format!("0-{index}");
        let made = server.call(|client, call| client.create(call, (parent, name.as_bytes()), new));
        server.write_log();
        server.call(|client, call| client.write(call, (made.number, Where::At(0)), &data, false));
        server.write_log();
        if index % DIGESTED == DIGESTED - 1 {
            let begin = thread_ns();
            server.digest();
            all += thread_ns() - begin;
        }
    }
    println!("digest of a new file of 1 KiB: {} ns", all / FILES);
}
