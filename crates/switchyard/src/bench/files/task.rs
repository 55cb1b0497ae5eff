//! The tasks of `switchyard bench fs`: our own clients, and real programs.

use super::super::databases::{DRIVER, python, rocksdb_arguments, rocksdb_times, runs};
use super::super::looped::tool;
use super::super::rounds::median;
use super::super::store::{Scratch, scratch};
use super::args::FilesArgs;
use super::side::{Directory, Side};
use super::work::{Told, settle};
use super::workload::Workload;
use crate::machine::{Busy, children_cpu_time};
use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a value in a database.
const VALUE_BYTES: u64 = 1000;
/// Operations of RocksDB that need not be durable take so much less.
const FAST_OPERATIONS: u64 = 20;
/// The tree that is unpacked: directories, and files in each, whose sizes grow by a step from file to file.
const TREE: (usize, usize, usize) = (400, 16, 1000);

/// What sides are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Client(Workload),
    Untar,
    Sqlite { is_wal: bool },
    Leveldb,
    Rocksdb(Rocksdb),
}

/// Benchmarks of `db_bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rocksdb {
    Fillsync,
    Overwrite,
    Readrandom,
}

/// One case.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Processor time of an operation: of clients.
    pub client_cpu_us: f64,
    /// And of all else on the machine.
    pub rest_cpu_us: f64,
}

impl Task {
    pub(super) fn all() -> Vec<Self> {
        let mut all: Vec<_> = Workload::value_variants()
            .iter()
            .map(|it| Self::Client(*it))
            .collect();
        all.push(Self::Untar);
        all.extend([true, false].map(|is_wal| Self::Sqlite { is_wal }));
        all.push(Self::Leveldb);
        all.extend([Rocksdb::Fillsync, Rocksdb::Overwrite, Rocksdb::Readrandom].map(Self::Rocksdb));
        all
    }

    /// Its name in arguments and JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::Client(workload) => {
                let value = workload.to_possible_value().expect("no workload is skipped");
                value.get_name().to_owned()
            }
            Self::Untar => "untar".into(),
            Self::Sqlite { is_wal: true } => "sqlite-wal".into(),
            Self::Sqlite { is_wal: false } => "sqlite-delete".into(),
            Self::Leveldb => "leveldb-fillsync".into(),
            Self::Rocksdb(benchmark) => format!("rocksdb-{}", benchmark.name()),
        }
    }

    /// For people.
    pub(super) fn text(self) -> String {
        match self {
            Self::Client(workload) => workload.text().into(),
            Self::Untar => format!("untar {} entries, sync", TREE.0 * (TREE.1 + 1)),
            Self::Sqlite { is_wal: true } => "SQLite, WAL, synchronous=FULL".into(),
            Self::Sqlite { is_wal: false } => "SQLite, DELETE, synchronous=FULL".into(),
            Self::Leveldb => "LevelDB, fillsync".into(),
            Self::Rocksdb(benchmark) => format!("RocksDB, {}", benchmark.name()),
        }
    }

    /// Whether the mean is its figure, and not the median.
    pub(super) fn is_told_by_mean(self) -> bool {
        match self {
            Self::Client(workload) => workload.is_told_by_mean(),
            // Programs report a mean, and some a median.
            Self::Untar | Self::Sqlite { .. } | Self::Leveldb | Self::Rocksdb(_) => true,
        }
    }

    /// One case, in a new directory in `root`.
    pub(super) fn run(
        self,
        args: &FilesArgs,
        tools: &Tools,
        side: &Side,
        seed: u64,
    ) -> anyhow::Result<Figures> {
        let root = &side.directory;
        let at = Directory(scratch(root, "case").0.clone());
        fs::create_dir(&at.0).with_context(|| format!("cannot create {}", at.0.display()))?;
        let figures = match self {
            Self::Client(workload) => clients(args, workload, (side, &at.0), seed)?,
            Self::Untar => untar(args, tools, (side, &at.0))?,
            Self::Sqlite { is_wal } => {
                let name = if is_wal { "sqlite" } else { "sqlite-delete" };
                scripted(args, tools.sqlite, name, (side, &at.0))?
            }
            Self::Leveldb => scripted(args, tools.leveldb, "leveldb", (side, &at.0))?,
            Self::Rocksdb(benchmark) => rocksdb(args, benchmark, (side, &at.0))?,
        };
        drop(at);
        settle(root)?;
        Ok(figures)
    }
}

impl Serialize for Task {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl Rocksdb {
    fn name(self) -> &'static str {
        match self {
            Self::Fillsync => "fillsync",
            Self::Overwrite => "overwrite",
            Self::Readrandom => "readrandom",
        }
    }
}

/// Programs that are here, and what they work on.
pub(super) struct Tools {
    archive: Option<Scratch>,
    sqlite: Option<&'static str>,
    leveldb: Option<&'static str>,
    has_rocksdb: bool,
}

impl Tools {
    /// Those of this machine, and the names of those that are not here.
    pub(super) fn find() -> anyhow::Result<(Self, Vec<String>)> {
        let has_tar = runs(Command::new("tar").arg("--version"));
        let tools = Self {
            archive: if has_tar { Some(archive()?) } else { None },
            sqlite: python("sqlite3"),
            leveldb: python("plyvel"),
            has_rocksdb: runs(Command::new("db_bench").arg("--version")),
        };
        let missing =
            |is_missing: bool, name: &str| is_missing.then(|| format!("{name}: it is not installed"));
        let left_out = [
            missing(!has_tar, "tar"),
            missing(tools.sqlite.is_none(), "SQLite (python3)"),
            missing(tools.leveldb.is_none(), "LevelDB (python3-plyvel)"),
            missing(!tools.has_rocksdb, "RocksDB (rocksdb-tools)"),
        ];
        Ok((tools, left_out.into_iter().flatten().collect()))
    }

    pub(super) fn can(&self, task: Task) -> bool {
        match task {
            Task::Client(_) => true,
            Task::Untar => self.archive.is_some(),
            Task::Sqlite { .. } => self.sqlite.is_some(),
            Task::Leveldb => self.leveldb.is_some(),
            Task::Rocksdb(_) => self.has_rocksdb,
        }
    }
}

/// A tree of files, packed.
fn archive() -> anyhow::Result<Scratch> {
    let tree = Directory(scratch(&std::env::temp_dir(), "tree").0.clone());
    let (directories, files, step) = TREE;
    for directory in 0..directories {
        let place = tree.0.join(format!("{directory}"));
        fs::create_dir_all(&place)?;
        for file in 0..files {
            fs::write(
                place.join(format!("{file}")),
                vec![b'a' + file as u8; file * step + 100],
            )?;
        }
    }
    let packed = scratch(&std::env::temp_dir(), "tree.tar");
    tool(
        Command::new("tar")
            .arg("-cf")
            .arg(&packed.0)
            .arg("-C")
            .arg(&tree.0)
            .arg("."),
    )?;
    Ok(packed)
}

/// A client process that waits for the word.
struct Client {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a client has failed");
        Ok(line)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // After its work it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(
    args: &FilesArgs,
    workload: Workload,
    (side, at): (&Side, &Path),
    place: u64,
    seed: u64,
) -> anyhow::Result<Client> {
    let mut process = side
        .command(std::env::current_exe()?)
        .args(["bench", "fs-client", "--workload", &Task::Client(workload).name()])
        .arg("--at")
        .arg(at)
        .args([
            "--seconds",
            &args.seconds.to_string(),
            "--place",
            &place.to_string(),
        ])
        .args([
            "--clients",
            &workload.clients().to_string(),
            "--seed",
            &seed.to_string(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = process.stdout.take().context("its output is piped")?;
    Ok(Client {
        process,
        output: BufReader::new(output),
    })
}

/// Our own clients, together.
fn clients(args: &FilesArgs, workload: Workload, at: (&Side, &Path), seed: u64) -> anyhow::Result<Figures> {
    let mut clients = Vec::new();
    for place in 0..workload.clients() {
        clients.push(start(args, workload, at, place, seed)?);
    }
    for client in &mut clients {
        client.line()?;
    }
    let busy = Busy::begin();
    for client in &mut clients {
        let input = client.process.stdin.as_mut().context("its input is piped")?;
        input.write_all(b"go\n")?;
    }
    let mut told = Vec::new();
    for client in &mut clients {
        told.push(serde_json::from_str::<Told>(&client.line()?)?);
    }
    let all = busy.and_then(|busy| busy.end()).unwrap_or_default();
    let count: u64 = told.iter().map(|one| one.count).sum();
    let client_cpu_s: f64 = told.iter().map(|one| one.cpu_s).sum();
    let each_us = |seconds: f64| seconds.max(0.0) * 1e6 / count.max(1) as f64;
    let seconds = told.iter().map(|one| one.seconds).fold(0.0, f64::max);
    Ok(Figures {
        count,
        // Of all clients together: what their rate is.
        mean_us: each_us(seconds),
        p50_us: median(told.iter().map(|one| one.p50_us)),
        p99_us: median(told.iter().map(|one| one.p99_us)),
        client_cpu_us: each_us(client_cpu_s),
        rest_cpu_us: each_us(all.as_secs_f64() - client_cpu_s),
    })
}

/// Processor time of a program, and of all else meanwhile.
struct Meter {
    busy: Option<Busy>,
    children: Duration,
}

impl Meter {
    fn begin() -> Self {
        Self {
            busy: Busy::begin(),
            children: children_cpu_time().unwrap_or_default(),
        }
    }

    /// Of the program that has ended, and of all else.
    fn end(&self) -> (Duration, Duration) {
        let all = self.busy.as_ref().and_then(Busy::end).unwrap_or_default();
        let own = children_cpu_time().unwrap_or_default() - self.children;
        (own, all.saturating_sub(own))
    }
}

/// `tar`, again and again for the time of a case, in new directories.
fn untar(args: &FilesArgs, tools: &Tools, (side, at): (&Side, &Path)) -> anyhow::Result<Figures> {
    let archive = &tools.archive.as_ref().context("there is an archive")?.0;
    let (mut times, mut own, mut rest) = (Vec::new(), 0.0, 0.0);
    let begin = Instant::now();
    while times.is_empty() || begin.elapsed().as_secs_f64() < args.seconds {
        let tree = Directory(at.join("tree"));
        fs::create_dir(&tree.0)?;
        settle(at)?;
        let (meter, start) = (Meter::begin(), Instant::now());
        tool(side.command("tar").arg("-xf").arg(archive).arg("-C").arg(&tree.0))?;
        settle(at)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        let (program, others) = meter.end();
        own += program.as_secs_f64() * 1e6;
        rest += others.as_secs_f64() * 1e6;
        let last = tree.0.join(format!("{}/{}", TREE.0 - 1, TREE.1 - 1));
        let bytes = fs::metadata(&last)?.len() as usize;
        ensure!(
            bytes == (TREE.1 - 1) * TREE.2 + 100,
            "tar has left {} short",
            last.display()
        );
    }
    let count = times.len() as f64;
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(Figures {
        count: times.len() as u64,
        mean_us: times.iter().sum::<f64>() / count,
        p50_us: median(times),
        p99_us: sorted.last().copied().unwrap_or_default(),
        client_cpu_us: own / count,
        rest_cpu_us: rest / count,
    })
}

/// A database that Python drives. It prints the mean, the median, and its processor time without its start.
fn scripted(
    args: &FilesArgs,
    python: Option<&str>,
    name: &str,
    (side, at): (&Side, &Path),
) -> anyhow::Result<Figures> {
    let python = python.context("the task is left out without it")?;
    let meter = Meter::begin();
    let said = tool(
        side.command(python)
            .args(["-c", DRIVER, name])
            .arg(at)
            .args([args.count.to_string(), VALUE_BYTES.to_string()]),
    )?;
    let (_, rest) = meter.end();
    let numbers: Vec<f64> = said
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let [mean_us, p50_us, client_cpu_us] = numbers[..] else {
        anyhow::bail!("{name} did not say how long it took: {said}");
    };
    Ok(Figures {
        count: args.count,
        mean_us,
        p50_us,
        p99_us: f64::NAN,
        client_cpu_us,
        rest_cpu_us: rest.as_secs_f64() * 1e6 / args.count as f64,
    })
}

/// `db_bench`. Overwrites and reads go to a database that is there.
fn rocksdb(args: &FilesArgs, benchmark: Rocksdb, (side, at): (&Side, &Path)) -> anyhow::Result<Figures> {
    let (name, sync, count) = match benchmark {
        Rocksdb::Fillsync => ("fillrandom", true, args.count),
        Rocksdb::Overwrite => ("overwrite", false, args.count * FAST_OPERATIONS),
        Rocksdb::Readrandom => ("readrandom", false, args.count * FAST_OPERATIONS),
    };
    let run = |name: &str, sync| {
        tool(
            side.command("db_bench")
                .args(rocksdb_arguments(name, sync, at, count, VALUE_BYTES)),
        )
    };
    if benchmark != Rocksdb::Fillsync {
        run("fillrandom", false)?;
        settle(at)?;
    }
    let meter = Meter::begin();
    let said = run(name, sync)?;
    let (own, rest) = meter.end();
    let times = rocksdb_times(&said, name);
    let times = times.with_context(|| format!("db_bench did not say how long it took: {said}"))?;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    Ok(Figures {
        count,
        mean_us: times.mean_us,
        p50_us: times.p50_us,
        p99_us: f64::NAN,
        client_cpu_us: each(own),
        rest_cpu_us: each(rest),
    })
}
