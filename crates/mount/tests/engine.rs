//! The engine on real media: what was acknowledged is there after a kill, and the log never stays full.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests of threads have threads"
)]

use fs::check::{Depth, check_to};
use fs::format::{ROOT_INODE, Tier};
use fs::inode::{Inode, TYPE_FILE, Time};
use fs::make::Make;
use fs::op::{Action, Entry, Op};
use mount::engine::{Engine, Failure, Mode, Options, Recovery, make};
use mount::media::{Access, DeviceSpec, Disks, Source};
use std::path::Path;
use std::sync::mpsc;
use uuid::Uuid;

const TIME: Time = Time {
    seconds: 1_700_000_000,
    ns: 5,
};

/// Files in a directory as devices.
struct Rig {
    directory: tempfile::TempDir,
    tiers: Vec<Tier>,
    options: Options,
}

fn uuid() -> Uuid {
    let [high, low] = [os::seed(), os::seed()];
    Uuid::from_u64_pair(high, low)
}

impl Rig {
    fn new(devices: &[(Tier, u64)]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (number, (_, bytes)) in devices.iter().enumerate() {
            let file = std::fs::File::create(directory.path().join(number.to_string()));
            file.and_then(|file| file.set_len(*bytes)).expect("a file");
        }
        let tiers: Vec<_> = devices.iter().map(|(tier, _)| *tier).collect();
        let rig = Self {
            directory,
            tiers,
            options: Options::default(),
        };
        let new = Make {
            uuid: uuid(),
            devices: rig.tiers.iter().map(|tier| (*tier, uuid())).collect(),
            time: TIME,
            owner: (0, 0),
        };
        make(&rig.disks(), &new).expect("there is room");
        rig
    }

    fn specs(&self, path: &Path) -> Vec<DeviceSpec> {
        let spec = |(number, tier): (usize, &Tier)| DeviceSpec {
            source: Source::File(path.join(number.to_string())),
            tier: *tier,
            timing: None,
        };
        self.tiers.iter().enumerate().map(spec).collect()
    }

    fn disks(&self) -> Disks {
        let specs = self.specs(self.directory.path());
        Disks::open(&specs, Access::Own).expect("nobody has them").0
    }

    fn open(&self) -> (Engine, Recovery) {
        Engine::open(self.disks(), &self.options).expect("it is whole")
    }

    fn assert_clean(&self) {
        let report = check_to(&self.disks(), Depth::Data);
        assert!(report.is_clean(), "{report:?}");
    }
}

fn create(number: u64, name: &str) -> Op<'static> {
    Op {
        inode: number,
        time: TIME,
        action: Action::Create {
            entry: Entry::new(ROOT_INODE, name.as_bytes().to_vec()),
            mode: TYPE_FILE | 0o644,
            uid: 0,
            gid: 0,
            device: 0,
            target: Vec::new().into(),
        },
    }
}

fn write(number: u64, offset: u64, data: Vec<u8>) -> Op<'static> {
    Op {
        inode: number,
        time: TIME,
        action: Action::Write {
            offset,
            data: data.into(),
        },
    }
}

/// Logs a call, and waits for room if it must.
fn log(engine: &Engine, call: &[Op<'_>]) -> fs::log::Ticket {
    loop {
        match engine.turn(|turn| turn.log(call)) {
            Ok(ticket) => return ticket,
            Err(Failure::Busy) => engine.wait_for_room(),
            Err(failure) => panic!("{failure}"),
        }
    }
}

fn durable(engine: &Engine, call: &[Op<'_>]) {
    let ticket = log(engine, call);
    let (tell, told) = mpsc::channel();
    engine.when_durable(
        ticket,
        Box::new(move |result| tell.send(result).expect("it waits")),
    );
    told.recv().expect("it is told").expect("the medium works");
}

fn find(engine: &Engine, name: &str) -> Option<(u64, Inode)> {
    engine.turn(|turn| {
        let (overlay, mut below) = turn.view();
        let found = overlay.lookup(&mut below, ROOT_INODE, name.as_bytes());
        let number = found.expect("it can be read")?;
        let inode = overlay.inode(&mut below, number).expect("it can be read");
        Some((number, inode.expect("a name leads somewhere")))
    })
}

fn read(engine: &Engine, number: u64, bytes: usize) -> Vec<u8> {
    engine.turn(|turn| {
        let (overlay, mut below) = turn.view();
        let mut data = vec![0; bytes];
        let count = overlay.read(&mut below, (number, 0), &mut data);
        data.truncate(count.expect("it can be read"));
        data
    })
}

fn data_of(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number as usize * 31 + at) as u8).collect()
}

/// A long log is never digested before the kill, a short one often.
fn kill_keeps_what_was_acknowledged(devices: &[(Tier, u64)], mode: Mode, log_bytes: u64) {
    let mut rig = Rig::new(devices);
    rig.options.mode = Some(mode);
    rig.options.log_bytes = Some(log_bytes);
    let mut next = 2;
    for round in 0..4 {
        let (engine, recovery) = rig.open();
        assert_eq!((recovery.refused, &recovery.damaged[..]), (0, &[][..]));
        let is_read = log_bytes < 1 << 20 || recovery.frames >= 600;
        assert!(is_read || round == 0, "the log had all of it, and was read");
        for number in 2..next {
            let (found, inode) = find(&engine, &format!("f{number}")).expect("it was acknowledged");
            assert_eq!((found, inode.size), (number, 2000));
            assert_eq!(read(&engine, number, 4000), data_of(number, 2000));
        }
        for _ in 0..300 {
            durable(&engine, &[create(next, &format!("f{next}"))]);
            durable(&engine, &[write(next, 0, data_of(next, 2000))]);
            next += 1;
        }
        assert_eq!(engine.status().digest.refused, 0);
        drop(engine);
        rig.assert_clean();
    }
    let (engine, _) = rig.open();
    engine.close().expect("all goes well");
    let (engine, recovery) = rig.open();
    assert_eq!(recovery.operations, 0, "after a close the log has nothing");
    assert!(find(&engine, &format!("f{}", next - 1)).is_some());
    drop(engine);
    rig.assert_clean();
}

#[test]
fn on_mapped_memory_a_kill_keeps_what_was_acknowledged() {
    kill_keeps_what_was_acknowledged(&[(Tier::Memory, 32 << 20)], Mode::Sync, 4 << 20);
}

#[test]
fn on_a_file_a_kill_keeps_what_was_acknowledged() {
    kill_keeps_what_was_acknowledged(&[(Tier::Flash, 32 << 20)], Mode::Ordered, 256 << 10);
}

#[test]
fn callers_at_once_on_a_small_log_all_end() {
    let mut rig = Rig::new(&[(Tier::Memory, 48 << 20)]);
    rig.options.log_bytes = Some(128 << 10);
    let (engine, _) = rig.open();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let engine = &engine;
            scope.spawn(move || {
                for at in 0..500 {
                    let number = 10 + thread * 1000 + at;
                    durable(engine, &[create(number, &format!("f{number}"))]);
                    durable(engine, &[write(number, 0, data_of(number, 3000))]);
                }
            });
        }
    });
    let status = engine.status();
    assert_eq!(status.digest.first_refused, None);
    assert!(status.digest.commits > 10, "the log was full often: {status:?}");
    engine.close().expect("all goes well");
    let (engine, _) = rig.open();
    for number in (0..4).flat_map(|thread| (0..500).map(move |at| 10 + thread * 1000 + at)) {
        assert_eq!(read(&engine, number, 4000), data_of(number, 3000));
    }
    drop(engine);
    rig.assert_clean();
}

#[test]
fn devices_that_are_in_use_are_refused() {
    let rig = Rig::new(&[(Tier::Memory, 32 << 20)]);
    let (_engine, _) = rig.open();
    let error = Disks::open(&rig.specs(rig.directory.path()), Access::Own).expect_err("it is taken");
    assert!(error.to_string().contains("in use"), "{error}");
}
