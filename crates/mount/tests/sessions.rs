//! Processes with logs of their own beside one engine: here each is a connection of the test's own process.

use fs::format::Tier;
use libfs::{Errno, File, FileSystem, Open, Place, Rename, Wanted};
use mount::engine::{Engine, Options, make};
use mount::media::{Access, DeviceSpec, Disks, Source};
use mount::serve::Server;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CREATE: Open = Open {
    writes: true,
    creates: Some(0o644),
    ..Open::READ
};

fn memory(bytes: u64) -> DeviceSpec {
    DeviceSpec {
        source: Source::Memory(bytes),
        tier: Tier::Memory,
        timing: None,
    }
}

fn uuid() -> uuid::Uuid {
    let [high, low] = [os::seed(), os::seed()];
    uuid::Uuid::from_u64_pair(high, low)
}

/// A file system that is served.
struct Rig {
    engine: Arc<Engine>,
    disks: Disks,
    server: Server,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Rig {
    fn new(spec: DeviceSpec) -> Self {
        let (disks, _) = Disks::open(&[spec], Access::Own).expect("there is memory");
        let make_it = fs::make::Make {
            uuid: uuid(),
            devices: vec![(Tier::Memory, uuid())],
            time: fs::inode::Time::default(),
            owner: (0, 0),
        };
        make(&disks, &make_it).expect("it has room");
        let (engine, _) = Engine::open(disks.clone(), &Options::default()).expect("it was just made");
        engine.share(8, None).expect("it is memory");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("control");
        let engine = Arc::new(engine);
        let server = Server::start(Arc::clone(&engine), &socket, 0o600, 8).expect("nobody listens there");
        Self {
            engine,
            disks,
            server,
            socket,
            _directory: directory,
        }
    }

    fn connect(&self) -> FileSystem {
        FileSystem::connect(&self.socket).expect("it is served")
    }

    /// Ends cleanly, and checks what is left.
    fn end(mut self) {
        self.server.stop();
        self.engine.close().expect("nothing has failed");
        let status = self.engine.status();
        let refused = (status.digest.refused, status.digest.refused_of_others);
        assert_eq!(refused, (0, 0), "{:?}", status.digest);
        assert_eq!(self.engine.processes(), 0);
        let report = fs::check::check_to(&self.disks, fs::check::Depth::Data);
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

fn read_all(files: &FileSystem, path: &str) -> Result<Vec<u8>, Errno> {
    let file = files.open(Place::new(path), Open::READ)?;
    let size = file.stat()?.inode.size as usize;
    let mut bytes = vec![0; size];
    let mut done = 0;
    while done < size {
        match file.read_at(done as u64, &mut bytes[done..])? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn write_all(file: &File, data: &[u8]) {
    assert_eq!(file.append(data).expect("there is room").1, data.len());
}

fn names(files: &FileSystem, path: &str) -> Vec<String> {
    let directory = files.stat(Place::new(path), true).expect("it is there").number;
    let mut cookie = 0;
    let mut found = Vec::new();
    loop {
        let entries = files.list(directory, cookie, 100).expect("it is a directory");
        let Some(last) = entries.last() else {
            break;
        };
        cookie = last.cookie;
        found.extend(
            entries
                .iter()
                .map(|entry| String::from_utf8_lossy(&entry.name).into_owned()),
        );
    }
    found.retain(|name| name != "." && name != "..");
    found.sort();
    found
}

#[test]
fn one_process_makes_reads_and_removes_files() {
    let rig = Rig::new(memory(256 << 20));
    let files = rig.connect();
    files.mkdir(Place::new("/a"), 0o755).expect("it is new");
    assert_eq!(files.mkdir(Place::new("/a"), 0o755), Err(Errno::Exists));
    let file = files.open(Place::new("/a/f"), CREATE).expect("it is new");
    write_all(&file, &[7; 5000]);
    write_all(&file, &[8; 5000]);
    file.write_at(100, &[9; 10]).expect("there is room");
    let mut expected = [vec![7; 5000], vec![8; 5000]].concat();
    expected[100..110].fill(9);
    assert_eq!(read_all(&files, "/a/f").as_ref(), Ok(&expected));
    rig.engine.digest();
    rig.engine.digest();
    assert_eq!(read_all(&files, "/a/f").as_ref(), Ok(&expected));
    write_all(&file, &[1; 100]);
    expected.extend([1; 100]);
    assert_eq!(read_all(&files, "/a/f"), Ok(expected));
    files
        .rename(Place::new("/a/f"), Place::new("/g"), Rename::default())
        .expect("it is there");
    files.symlink(b"g", Place::new("/l")).expect("it is new");
    assert_eq!(files.readlink(Place::new("/l")).as_deref(), Ok(&b"g"[..]));
    assert_eq!(
        files.stat(Place::new("/l"), true).map(|stat| stat.inode.size),
        Ok(10_100)
    );
    assert_eq!(names(&files, "/"), ["a", "g", "l"]);
    drop(file);
    files.unlink(Place::new("/g")).expect("it is there");
    files.rmdir(Place::new("/a")).expect("it is empty");
    assert_eq!(names(&files, "/"), ["l"]);
    drop(files);
    rig.end();
}

#[test]
fn what_one_process_does_another_one_sees() {
    let rig = Rig::new(memory(256 << 20));
    let (one, two) = (rig.connect(), rig.connect());
    for round in 0..20 {
        let name = format!("/f{round}");
        let file = one.open(Place::new(&name), CREATE).expect("it is new");
        write_all(&file, name.as_bytes());
        assert_eq!(read_all(&two, &name), Ok(name.clone().into_bytes()));
        let wanted = Wanted {
            mode: Some(0o600),
            ..Wanted::default()
        };
        two.set(Place::new(&name), &wanted, true).expect("root may");
        let mode = file.stat().expect("it is open").inode.mode & 0o777;
        assert_eq!(mode, 0o600);
        two.unlink(Place::new(&name)).expect("it is there");
        assert_eq!(one.stat(Place::new(&name), true), Err(Errno::NoEntry));
        // It is open, and is read on.
        let mut bytes = [0; 8];
        assert_eq!(file.read_at(0, &mut bytes), Ok(name.len()));
    }
    drop((one, two));
    rig.end();
}

#[test]
fn appends_of_many_processes_and_threads_are_all_there_in_the_order_of_each() {
    const ROUNDS: u32 = 200;
    let rig = Rig::new(memory(256 << 20));
    let all: Vec<FileSystem> = (0..4).map(|_| rig.connect()).collect();
    all[0].mkdir(Place::new("/d"), 0o755).expect("it is new");
    std::thread::scope(|scope| {
        for (writer, files) in all.iter().enumerate() {
            for thread in 0..2 {
                scope.spawn(move || {
                    let how = Open {
                        appends: true,
                        ..CREATE
                    };
                    let file = files.open(Place::new("/d/log"), how).expect("it can be made");
                    for round in 0..ROUNDS {
                        let line = format!("{writer} {thread} {round:06}\n");
                        write_all(&file, line.as_bytes());
                    }
                });
            }
        }
    });
    let text = String::from_utf8(read_all(&all[1], "/d/log").expect("it is there")).expect("it is text");
    for (writer, thread) in (0..4).flat_map(|writer| [(writer, 0), (writer, 1)]) {
        let prefix = format!("{writer} {thread} ");
        let own: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .collect();
        let expected: Vec<_> = (0..ROUNDS).map(|round| format!("{round:06}")).collect();
        assert_eq!(own, expected, "of {prefix}");
    }
    drop(all);
    rig.end();
}

#[test]
fn renames_of_directories_by_several_processes_make_no_circle_and_lose_nothing() {
    let rig = Rig::new(memory(256 << 20));
    let all: Vec<FileSystem> = (0..4).map(|_| rig.connect()).collect();
    for name in ["a", "b", "c", "d"] {
        all[0]
            .mkdir(Place::new(&format!("/{name}")), 0o755)
            .expect("it is new");
        let file = all[0].open(Place::new(&format!("/{name}/own-{name}")), CREATE);
        write_all(&file.expect("it is new"), name.as_bytes());
    }
    let paths = |files: &FileSystem| {
        let mut found = Vec::new();
        let mut left = vec![String::new()];
        while let Some(path) = left.pop() {
            let at = if path.is_empty() { "/" } else { &path };
            for name in names(files, at) {
                let path = format!("{path}/{name}");
                if files
                    .stat(Place::new(&path), false)
                    .is_ok_and(|stat| stat.inode.is_directory())
                {
                    left.push(path.clone());
                }
                found.push(path);
            }
        }
        found
    };
    let moved = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for (seed, files) in all.iter().enumerate() {
            let moved = &moved;
            scope.spawn(move || {
                let mut rng = base::Rng::new(seed as u64);
                for _ in 0..60 {
                    let found: Vec<String> = ["a", "b", "c", "d"].map(|name| format!("/{name}")).into();
                    let pick = |rng: &mut base::Rng| found[rng.below(4) as usize].clone();
                    let (from, to) = (pick(&mut rng), pick(&mut rng));
                    let to = format!("{to}{from}");
                    let back = rng.chance(0.5);
                    let (from, to) = if back { (to, from) } else { (from, to) };
                    match files.rename(Place::new(&from), Place::new(&to), Rename::default()) {
                        Ok(()) => drop(moved.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
                        Err(Errno::NoEntry | Errno::Invalid | Errno::NotEmpty) => {}
                        Err(errno) => panic!("{from} to {to}: {errno}"),
                    }
                }
            });
        }
    });
    assert!(moved.into_inner() > 4);
    let found = paths(&all[2]);
    for name in ["a", "b", "c", "d"] {
        let end = format!("/own-{name}");
        let own: Vec<_> = found.iter().filter(|path| path.ends_with(&end)).collect();
        assert_eq!(own.len(), 1, "{found:?}");
        assert_eq!(read_all(&all[3], own[0]), Ok(name.as_bytes().to_vec()));
    }
    drop(all);
    rig.end();
}

#[test]
fn a_log_that_is_small_goes_on_and_on() {
    let rig = Rig::new(memory(64 << 20));
    let files = rig.connect();
    for round in 0..40 {
        let file = files
            .open(Place::new(&format!("/f{}", round % 4)), CREATE)
            .expect("there is room");
        for at in 0..20u64 {
            assert_eq!(file.write_at(at * 10_000, &vec![round as u8; 10_000]), Ok(10_000));
        }
    }
    for last in 36..40u8 {
        let bytes = read_all(&files, &format!("/f{}", last % 4)).expect("it is there");
        assert_eq!(bytes, vec![last; 200_000]);
    }
    drop(files);
    rig.end();
}

#[test]
fn what_is_there_after_a_clean_end_has_no_windows() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path: &Path = &directory.path().join("nvm");
    let file = std::fs::File::create(path).expect("a new file");
    file.set_len(64 << 20).expect("there is room");
    drop(file);
    let spec = DeviceSpec {
        source: Source::File(path.to_owned()),
        ..memory(0)
    };
    let rig = Rig::new(spec);
    let files = rig.connect();
    files.mkdir(Place::new("/kept"), 0o700).expect("it is new");
    let windows = || {
        let entries = std::fs::read_dir(directory.path()).expect("it is there");
        entries
            .flatten()
            .filter(|entry| entry.file_name() != "nvm")
            .count()
    };
    assert_eq!(windows(), 1);
    rig.end();
    assert_eq!(windows(), 0);
    assert_eq!(files.mkdir(Place::new("/late"), 0o700), Err(Errno::Io));
}

/// The middle of how long calls take, in µs.
fn median(mut call: impl FnMut(u64)) -> f64 {
    let mut times: Vec<u64> = (0..5000)
        .map(|round| {
            let began = std::time::Instant::now();
            call(round);
            began.elapsed().as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2] as f64 / 1000.0
}

#[test]
#[ignore = "it measures"]
fn calls_take_so_long() {
    let timing = os::NvmTiming {
        latency_ns: 500,
        bandwidth: 20_000_000_000,
    };
    let rig = Rig::new(DeviceSpec {
        timing: Some(timing),
        ..memory(32 << 30)
    });
    let files = rig.connect();
    files.mkdir(Place::new("/d"), 0o755).expect("it is new");
    let name = |round: u64| format!("/d/f{round}");
    let data = [5; 1024];
    let create = median(|round| {
        let file = files.open(Place::new(&name(round)), CREATE).expect("it is new");
        write_all(&file, &data);
    });
    let stat = median(|round| assert!(files.stat(Place::new(&name(round)), true).is_ok()));
    let unlink = median(|round| files.unlink(Place::new(&name(round))).expect("it is there"));
    let file = files.open(Place::new("/d/one"), CREATE).expect("it is new");
    let append = median(|_| write_all(&file, &data));
    let overwrite = median(|round| assert_eq!(file.write_at(round % 4000 * 1024, &data), Ok(1024)));
    let other = rig.connect();
    let there = other.open(Place::new("/d/one"), CREATE).expect("it is there");
    let mut moves: Vec<u64> = (0..300)
        .map(|round| {
            let file = if round % 2 == 0 { &there } else { &file };
            let began = std::time::Instant::now();
            file.write_at(0, &data).expect("there is room");
            began.elapsed().as_micros() as u64
        })
        .collect();
    moves.sort_unstable();
    println!(
        "µs: create and write 1 KiB {create}, append 1 KiB {append}, overwrite 1 KiB {overwrite}, stat {stat}, unlink {unlink}; \
         a lease that moves {} (p90 {})",
        moves[150], moves[270]
    );
    drop((file, there, files, other));
    rig.end();
}
