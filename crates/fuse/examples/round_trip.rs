//! The cost of a request with a server that does nothing: the floor under every figure of a mount. As root:
//!
//! ```text
//! cargo run --release -p switchyard-fuse --example round_trip -- [--json] [--calls COUNT]
//! ```
//!
//! Each call is measured over both transports, with its caller on the server's processor, on another one, and wherever the
//! scheduler puts it. Over io_uring each processor has its own server thread; over `/dev/fuse` the server has one thread, on
//! the first processor. io_uring needs `Y` in `/sys/module/fuse/parameters/enable_uring`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a measurement has a clock and threads"
)]

use fuse::abi::{Attr, AttrOut, EntryOut, Errno, Kstatfs, OpenOut, Operation, Reply, fopen};
use fuse::mount::{MountOptions, mount};
use fuse::transport::{Call, Choice, Config, Session, Transport, Wishes};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstat, open, statfs, statx};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 1 << 30;
/// The root's only entry.
const FILE: u64 = 2;

/// The place of the caller.
#[derive(Clone, Copy)]
enum Caller {
    OnServers,
    OnAnother,
    Anywhere,
}

const CALLERS: [(&str, Caller); 3] = [
    ("same processor", Caller::OnServers),
    ("another processor", Caller::OnAnother),
    ("unpinned", Caller::Anywhere),
];

type Measured = fn(&Path, &Files) -> rustix::io::Result<()>;

/// The measured calls: name, whether opens are sent, and the call.
const CALLS: [(&str, bool, Measured); 7] = [
    ("getattr", true, |_, files| {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        statx(&files.cached, "", flags, StatxFlags::MODE).map(drop)
    }),
    ("fstat", true, |_, files| fstat(&files.cached).map(drop)),
    ("statfs", true, |path, _| statfs(path).map(drop)),
    ("open + close", true, |path, _| {
        open_file(path, OFlags::empty()).map(drop)
    }),
    ("open + close, no-open", false, |path, _| {
        open_file(path, OFlags::empty()).map(drop)
    }),
    ("read 4 KiB", true, |_, files| {
        let mut block = Block([0; BLOCK]);
        rustix::io::pread(&files.direct, &mut block.0, 0).map(drop)
    }),
    ("write 4 KiB", true, |_, files| {
        rustix::io::pwrite(&files.cached, &Block([1; BLOCK]).0, 0).map(drop)
    }),
];

#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// The file, opened twice.
struct Files {
    cached: OwnedFd,
    /// Past the cache: each read is a request.
    direct: OwnedFd,
}

fn open_file(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open(
        path.join("file"),
        OFlags::RDWR | OFlags::CLOEXEC | flags,
        Mode::empty(),
    )
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_json = arguments.iter().any(|argument| argument == "--json");
    let count = arguments.iter().position(|argument| argument == "--calls");
    let count = count.map_or(Some(20_000), |at| arguments.get(at + 1)?.parse().ok());
    let Some(count) = count.filter(|count| *count > 0) else {
        eprintln!("--calls takes a count of at least 1");
        std::process::exit(2);
    };
    let allowed = sched_getaffinity(None).expect("this thread runs somewhere");
    let mut rows = Vec::new();
    for transport in [Transport::Ring, Transport::Classic] {
        for sends_opens in [true, false] {
            let calls = CALLS.iter().filter(|(_, opens, _)| *opens == sends_opens);
            measure(transport, sends_opens, calls, count, &allowed, &mut rows);
        }
    }
    if is_json {
        println!("{}", Value::from(rows));
        return;
    }
    println!(
        "{:<10} {:<22} {:<18} {:>8} {:>8}",
        "transport", "call", "caller", "p50 µs", "p99 µs"
    );
    for row in rows {
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_string();
        let us = |name: &str| row[name].as_u64().unwrap_or_default() as f64 / 1000.0;
        let (transport, call, caller) = (text("transport"), text("call"), text("caller"));
        println!(
            "{transport:<10} {call:<22} {caller:<18} {:>8.1} {:>8.1}",
            us("p50_ns"),
            us("p99_ns")
        );
    }
}

/// Mounts, and measures some calls.
fn measure<'c>(
    transport: Transport,
    sends_opens: bool,
    calls: impl Iterator<Item = &'c (&'static str, bool, Measured)>,
    count: usize,
    allowed: &CpuSet,
    rows: &mut Vec<Value>,
) {
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let (first, last) = (processors[0], processors[processors.len() - 1]);
    let dir = std::env::temp_dir().join(format!("switchyard-round-trip-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a mount point");
    if transport == Transport::Classic {
        pin(first);
    }
    let (mount, device) = mount(&dir, &MountOptions::default()).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    });
    let config = Config {
        choice: if transport == Transport::Ring {
            Choice::Best
        } else {
            Choice::Classic
        },
        threads: 1,
        wishes: if sends_opens {
            Wishes::default()
        } else {
            Wishes::without_opens()
        },
        ..Config::default()
    };
    let session = Session::start(device, &config, move |call| serve(call, sends_opens)).expect("a new mount");
    if session.transport() == transport {
        let files = Files {
            cached: open_file(&dir, OFlags::empty()).expect("the file is there"),
            direct: open_file(&dir, OFlags::DIRECT).expect("the file is there"),
        };
        for (call, _, run) in calls {
            for (caller, place) in CALLERS {
                match place {
                    Caller::OnServers => pin(first),
                    Caller::OnAnother if first == last => continue,
                    Caller::OnAnother => pin(last),
                    Caller::Anywhere => sched_setaffinity(None, allowed).expect("it was so before"),
                }
                let ns = times(count, || run(&dir, &files));
                rows.push(json!({
                    "transport": if transport == Transport::Ring { "io_uring" } else { "/dev/fuse" },
                    "call": call, "caller": caller, "calls": count,
                    "p50_ns": ns[ns.len() / 2], "p99_ns": ns[ns.len() * 99 / 100],
                }));
            }
        }
    } else if let Some(fallback) = session.fallback() {
        eprintln!("{fallback}");
    }
    drop(mount);
    session.join();
    sched_setaffinity(None, allowed).expect("it was so before");
    let _ = std::fs::remove_dir(&dir);
}

/// How long calls take, in ascending order; the first ones are not counted.
fn times(count: usize, call: impl Fn() -> rustix::io::Result<()>) -> Vec<u64> {
    let one = |_| {
        let start = Instant::now();
        call().expect("the server does not fail");
        start.elapsed().as_nanos() as u64
    };
    let mut ns: Vec<u64> = (0..count + count / 10).map(one).skip(count / 10).collect();
    ns.sort_unstable();
    ns
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("this process may run there");
}

/// A directory with one file, which has zeros and keeps nothing. The kernel may keep the name, and no attributes.
fn serve(call: Call, sends_opens: bool) {
    let attr = |inode: u64| Attr {
        ino: inode,
        mode: if inode == FILE { 0o100_644 } else { 0o040_755 },
        size: FILE_BYTES,
        nlink: 1,
        ..Attr::default()
    };
    let inode = call.header().nodeid;
    match call.operation() {
        Operation::Lookup { name: b"file" } => call.reply(&Reply::Entry(EntryOut {
            nodeid: FILE,
            entry_valid: 3600,
            attr_valid: if sends_opens { 0 } else { 3600 },
            attr: attr(FILE),
            ..EntryOut::default()
        })),
        Operation::Getattr(_) => call.reply(&Reply::Attr(AttrOut {
            attr_valid: if sends_opens { 0 } else { 3600 },
            attr: attr(inode),
            ..AttrOut::default()
        })),
        Operation::Statfs => call.reply(&Reply::Statfs(Kstatfs::default())),
        Operation::Open(_) if sends_opens => call.reply(&Reply::Opened(OpenOut {
            open_flags: fopen::KEEP_CACHE | fopen::NOFLUSH,
            ..OpenOut::default()
        })),
        Operation::Read(read) => call.reply_with(read.size as usize, |place| Ok(place.len())),
        Operation::Write { argument, .. } => {
            let written = Reply::Written(argument.size);
            call.reply(&written);
        }
        Operation::Release(_) | Operation::Forget(_) | Operation::BatchForget(_) => {
            call.reply(&Reply::Empty);
        }
        // FLUSH is among these: the kernel asks once.
        _ => call.fail(Errno::NOSYS),
    }
}
