//! Room for what was acknowledged: a program that keeps to no promise takes its own part of the devices, and nobody else's.

use fs::format::{ROOT_INODE, Tier};
use fs::inode::{TYPE_DIRECTORY, TYPE_FILE, Time};
use fs::lease::{Given, Mode};
use fs::log::{AddError, Options as LogOptions, Writer};
use fs::op::{Action, Changes, Entry, Op};
use fs::protocol::{Answer, DURABLE_AT, Request};
use libfs::{File, FileSystem, Open, Place};
use mount::engine::{Engine, Link, Options, Peer, Recovery, make};
use mount::media::{Access, DeviceSpec, Disks, Source};
use mount::serve::Server;
use mount::window::ring_in_window;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const CREATE: Open = Open {
    writes: true,
    creates: Some(0o644),
    ..Open::READ
};
/// Blocks that the honest program writes.
const BLOCKS: u64 = 8;
/// Bytes of a log.
const LOG_BYTES: u64 = 1 << 20;

/// Files of several processes, on devices that a test chooses.
struct Rig {
    engine: Arc<Engine>,
    disks: Disks,
    server: Server,
    socket: PathBuf,
}

impl Rig {
    /// Opens the files in a directory, which are made if there are none.
    fn open(directory: &Path, device_bytes: &[u64]) -> (Self, Recovery) {
        let path = |at: usize| directory.join(format!("device-{at}"));
        let tiers = [Tier::Memory, Tier::Flash];
        let is_new = !path(0).exists();
        let specs = device_bytes.iter().enumerate().map(|(at, bytes)| {
            if is_new {
                let file = std::fs::File::create(path(at)).expect("a new file");
                file.set_len(*bytes).expect("there is room");
            }
            DeviceSpec {
                source: Source::File(path(at)),
                tier: tiers[at],
                timing: None,
            }
        });
        let (disks, _) = Disks::open(&specs.collect::<Vec<_>>(), Access::Own).expect("they are ours");
        let uuid = || uuid::Uuid::from_u64_pair(os::seed(), os::seed());
        let own = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        if is_new {
            let make_it = fs::make::Make {
                uuid: uuid(),
                devices: tiers[..device_bytes.len()]
                    .iter()
                    .map(|tier| (*tier, uuid()))
                    .collect(),
                time: Time::default(),
                owner: own,
            };
            make(&disks, &make_it).expect("they have room");
        }
        let (engine, recovery) = Engine::open(disks.clone(), &Options::default()).expect("they are whole");
        engine.share(3, Some(LOG_BYTES)).expect("it is memory");
        let engine = Arc::new(engine);
        let socket = directory.join("control");
        let server = Server::start(Arc::clone(&engine), &socket, 0o600, 3).expect("nobody listens there");
        let rig = Self {
            engine,
            disks,
            server,
            socket,
        };
        (rig, recovery)
    }

    fn connect(&self) -> FileSystem {
        loop {
            // Whoever has gone may have its place yet.
            if let Ok(files) = FileSystem::connect(&self.socket) {
                return files;
            }
            std::thread::yield_now();
        }
    }

    /// Room of all devices, in blocks.
    fn room(&self) -> u64 {
        let devices = self.engine.status().devices;
        devices.iter().map(|(_, free)| free / 4096).sum()
    }

    fn check(&self) {
        let report = fs::check::check_to(&self.disks, fs::check::Depth::Data);
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    fn end(mut self) {
        self.server.stop();
        self.engine.close().expect("nothing has failed");
        self.check();
    }

    /// As after a kill. Its programs are gone, but the daemon has not noticed.
    fn kill(self) {
        let Self { engine, server, .. } = self;
        drop(server);
        drop(Arc::into_inner(engine).expect("nobody else has it"));
    }
}

/// In memory, if there is such a place.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    directory.expect("a temporary directory")
}

/// What the daemon tells a process.
#[derive(Default)]
struct Told(Mutex<Vec<Answer>>);

impl Link for Told {
    fn send(&self, packet: Vec<u8>) {
        let answer = Answer::parse(&packet).expect("the daemon makes sense");
        self.0.lock().expect("no thread panics").push(answer);
    }

    fn cut(&self) {}

    fn is_unheard(&self) -> bool {
        false
    }
}

/// A process that writes into its log what it likes.
struct Liar {
    engine: Arc<Engine>,
    log: u64,
    window: std::fs::File,
    told: Arc<Told>,
    writer: Writer,
    next: u64,
}

impl Liar {
    fn join(engine: &Arc<Engine>) -> Self {
        let peer = Peer {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            gids: vec![rustix::process::getegid().as_raw()],
        };
        let (told, mut got) = (Arc::<Told>::default(), None);
        let link = Arc::clone(&told);
        let joined = engine.join(peer, |welcome, window| {
            got = Some((
                Answer::parse(welcome),
                window.try_clone().expect("there are descriptors"),
            ));
            link
        });
        let log = joined.expect("there is room for it");
        let Some((Ok(Answer::Welcome(welcome)), window)) = got else {
            panic!("no welcome");
        };
        let ring = ring_in_window(welcome.nonce, welcome.sector, welcome.ring_bytes).expect("it is a ring");
        let options = LogOptions {
            frame_bytes_max: ring.frame_bytes_max(),
            writes_in_flight_max: 1,
        };
        let next = welcome.numbers.start;
        Self {
            engine: Arc::clone(engine),
            log,
            writer: Writer::new(ring, 0, options),
            window,
            told,
            next,
        }
    }

    fn hear(&self, request: Request) {
        self.engine.hear(self.log, request);
    }

    /// Writes what was added, and says that it is durable.
    fn flush(&mut self) {
        while let Some(write) = self.writer.next_write() {
            for (offset, bytes) in write.pieces() {
                self.window.write_all_at(bytes, offset).expect("it is ours");
            }
            self.writer.written(write, Ok(()));
        }
        let end = self.writer.durable_position().to_le_bytes();
        self.window.write_all_at(&end, DURABLE_AT).expect("it is ours");
    }

    /// Logs an operation. If the log is full, all of it is digested first.
    fn add(&mut self, inode: u64, action: Action<'_>) {
        let time = Time::default();
        let op = [Op { inode, time, action }];
        loop {
            match self.writer.add(&op) {
                Ok(_) => return,
                Err(AddError::Busy) => self.flush(),
                Err(AddError::Full { .. }) => self.settle(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn settle(&mut self) {
        self.flush();
        for _ in 0..2 {
            self.engine.digest();
        }
        let told = self.told.0.lock().expect("no thread panics");
        let both = told.iter().filter_map(|answer| match answer {
            Answer::Digested(digested) => Some(digested.both),
            _ => None,
        });
        self.writer.consumed(both.max().unwrap_or(0));
    }

    fn create(&mut self, parent: u64, name: &str, mode: u32) -> u64 {
        let inode = self.next;
        self.next += 1;
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let create = Action::Create {
            entry: Entry::new(parent, name.as_bytes().to_vec()),
            mode,
            uid,
            gid,
            device: 0,
            target: (&b""[..]).into(),
        };
        self.add(inode, create);
        inode
    }

    /// A directory or file of its own in the root directory.
    fn own(&mut self, name: &str, mode: u32) -> u64 {
        let wants = vec![(ROOT_INODE, Mode::Exclusive)];
        self.hear(Request::Ask {
            request: 1,
            wants,
            has_mount: false,
        });
        let grant = loop {
            let told = self.told.0.lock().expect("no thread panics");
            let grants = told.iter().find_map(|answer| match answer {
                Answer::Granted { grant, .. } => Some(*grant),
                _ => None,
            });
            if let Some(grant) = grants {
                break grant;
            }
            drop(told);
            std::thread::yield_now();
        };
        let inode = self.create(ROOT_INODE, name, mode);
        self.flush();
        self.hear(Request::Give(Given {
            inode: ROOT_INODE,
            keeps_shared: false,
            position: self.writer.durable_position(),
            is_open: false,
            grant,
        }));
        inode
    }

    /// Files with long attributes: there are three in a leaf of the tree.
    fn files(&mut self, directory: u64, count: u64) -> Vec<u64> {
        let mut made = Vec::new();
        for _ in 0..count {
            let name = format!("f{}", self.next);
            let inode = self.create(directory, &name, TYPE_FILE | 0o644);
            let value = Some(vec![7; 1000].into());
            let name = (&b"user.long"[..]).into();
            self.add(inode, Action::Attribute { name, value });
            made.push(inode);
        }
        self.settle();
        made
    }

    /// Makes files until the tree has as many leaves as there is room left. One file of each leaf, at least.
    fn fill(&mut self, rig: &Rig) -> Vec<u64> {
        let own = self.own("liar", TYPE_DIRECTORY | 0o755);
        let mut made = Vec::new();
        while made.len() as u64 / 3 < rig.room() {
            made.extend(self.files(own, 2000));
            assert!(made.len() < 20_000, "{} blocks are left", rig.room());
            self.settle();
        }
        made.into_iter().step_by(2).collect()
    }

    /// Changes each of these files, so that each leaf is written anew.
    fn touch(&mut self, files: &[u64]) {
        let changes = Changes {
            mode: Some(0o600),
            ..Changes::default()
        };
        for inode in files {
            self.add(*inode, Action::Set(changes));
        }
        self.flush();
    }
}

/// The honest program writes to a file of its own, and each call is acknowledged.
fn write(file: &File, round: u64) {
    for block in 0..BLOCKS {
        let data = vec![round as u8 + 1; 4096];
        assert_eq!(file.write_at(block * 4096, &data), Ok(4096), "in round {round}");
    }
}

fn assert_written(files: &FileSystem, round: u64) {
    let file = files
        .open(Place::new("/honest"), Open::READ)
        .expect("it is there");
    let mut bytes = vec![0; 4096];
    for block in 0..BLOCKS {
        assert_eq!(file.read_at(block * 4096, &mut bytes), Ok(4096));
        let is_there = bytes.iter().all(|byte| u64::from(*byte) == round + 1);
        assert!(is_there, "block {block} of round {round} is lost");
    }
}

/// Bug: what only deletes or sets took room that others had been promised. A program that set the modes of all its files took the last block, and the
/// acknowledged writes of another one were refused. Cause: the digest kept the room of others from what lets files grow alone. Fix: a log takes its part of
/// the room, whatever its operations are.
#[test]
fn a_program_that_changes_all_its_files_at_once_takes_no_room_of_others() {
    let directory = directory();
    let (rig, _) = Rig::open(directory.path(), &[40 << 20]);
    let mut liar = Liar::join(&rig.engine);
    let leaves = liar.fill(&rig);
    let honest = rig.connect();
    let file = honest.open(Place::new("/honest"), CREATE).expect("it is new");
    rig.engine.digest();
    for round in 0..3 {
        write(&file, round);
        liar.touch(&leaves);
        liar.settle();
        let other = rig.connect();
        assert_written(&other, round);
    }
    drop((file, honest));
    rig.end();
}

/// The same after a crash: recovery digested a log of lies with all the room that there was.
#[test]
fn recovery_gives_no_log_the_room_of_others() {
    // The daemon may have digested both logs before it ends: then there is nothing to see, and it is tried again.
    let _ = (0..3).find(|_| has_recovered());
}

/// Whether there was something to recover. What was acknowledged is there.
fn has_recovered() -> bool {
    let directory = directory();
    let (rig, _) = Rig::open(directory.path(), &[40 << 20]);
    let mut liar = Liar::join(&rig.engine);
    let leaves = liar.fill(&rig);
    let mut honest = Liar::join(&rig.engine);
    let file = honest.own("honest", TYPE_FILE | 0o644);
    honest.settle();
    liar.settle();
    // Nothing is digested while the lock is held.
    Arc::clone(&rig.engine).turn(|_| {
        for block in 0..BLOCKS {
            let data = vec![1; 4096].into();
            let offset = block * 4096;
            honest.add(file, Action::Write { offset, data });
        }
        honest.flush();
        liar.touch(&leaves);
    });
    drop((liar, honest));
    rig.kill();
    let (rig, recovery) = Rig::open(directory.path(), &[40 << 20]);
    let files = rig.connect();
    assert_written(&files, 0);
    drop(files);
    rig.end();
    recovery.operations >= BLOCKS
}
