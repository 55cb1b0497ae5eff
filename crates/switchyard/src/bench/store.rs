//! `switchyard bench store`: durable inserts into every structure of a storage area, beside the device's own limit, one
//! O_DIRECT | O_DSYNC overwrite, and beside other engines at the same durability.
//!
//! A case is (system, threads): each thread inserts, waits until its insert is durable, and inserts again. Systems take
//! turns within a round, each on a new file in the same directory; the round with the median rate counts. Other engines
//! run in a program of their own (`bench/peers`), so that this one does not depend on them.

use super::instructions::{self, key};
use super::reads::args::ReadsArgs;
use super::rounds::{ROUNDS, SECONDS};
use crate::failure::{Failure, within};
use crate::machine;
use crate::size::Size;
use anyhow::{Context, bail};
use area::{Area, AreaOptions, NvmTiming};
use clap::Args;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use store::catalog::AREA_BYTES_MIN;

/// Latencies beyond are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// The least that a raw overwrite writes: a block of most devices.
pub(super) const RAW_BYTES: usize = 4096;
/// The file that raw overwrites go to.
const RAW_FILE_BYTES: usize = 64 << 20;
/// The paper's NVDIMM: 500 ns for 1 KiB.
const NVM: NvmTiming = NvmTiming {
    latency_ns: 500,
    bandwidth: 20_000_000_000,
};
/// Our structures.
const OURS: [&str; 4] = ["log", "queue", "map", "tree"];

/// `switchyard bench store`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  switchyard bench store --dir /srv --threads 1,2,4,8,16\n  \
    cargo build --release --manifest-path bench/peers/Cargo.toml\n  switchyard bench store --peers bench/peers/target/release/switchyard-peers\n  \
    switchyard bench store --nvm                  emulated NVM of 500 ns and 20 GB/s\n  switchyard bench store --instructions         what an operation costs, by valgrind\n  \
    switchyard bench store --reads --bytes 100,1KiB --peers bench/peers/target/release/switchyard-peers --keep /srv/data\n\n\
    --reads gives each engine the same memory: its own cache takes --cache, and a control group bounds the process, with the page \
    cache of its files, to --cache and --beside. The group needs root and the memory controller. Engines with direct I/O \
    (Switchyard, RocksDB) read past the page cache. Each engine's files are taken out of the page cache before it runs."
)]
pub struct StoreArgs {
    /// Directory on the file system to measure, for files that the command removes again
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Bytes of a value; several with --reads
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "1KiB")]
    pub bytes: Vec<Size>,
    /// Threads that insert at the same time
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8")]
    pub threads: Vec<usize>,
    /// Seconds of each case
    #[arg(long, value_name = "S", default_value_t = 2.0, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Rounds; the round with the median rate counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Size of Switchyard's area
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub area: Size,
    /// Writes of Switchyard under way at once [default: the library's]
    #[arg(long, value_name = "N")]
    pub in_flight: Option<usize>,
    /// Measure Switchyard alone, on emulated NVM instead of files
    #[arg(long)]
    pub nvm: bool,
    /// Run other engines, too, with this program of bench/peers
    #[arg(long, value_name = "PROGRAM")]
    pub peers: Option<PathBuf>,
    /// Count instructions of Switchyard's operations by valgrind: an area in memory, one thread
    #[arg(long)]
    pub instructions: bool,
    /// The work of a counted run
    #[arg(long, hide = true, requires = "instructions")]
    pub operation: Option<String>,
    /// How often
    #[arg(long, hide = true, default_value_t = 0)]
    pub count: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub reading: ReadsArgs,
}

impl StoreArgs {
    /// Bytes of a value of inserts.
    fn value_bytes(&self) -> Size {
        self.bytes[0]
    }
}

/// One case of one round, or of the median one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    system: String,
    threads: usize,
    per_second: f64,
    pub(super) p50_us: f64,
    p99_us: f64,
}

/// Refuses an area that is too small to be one.
pub(super) fn check_area(size: Size) -> Result<(), Failure> {
    match size.0 >= AREA_BYTES_MIN {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "--area takes at least {}, not {size}",
            Size(AREA_BYTES_MIN)
        ))),
    }
}

/// Runs it.
pub fn run(args: &StoreArgs) -> anyhow::Result<()> {
    if args.bytes.len() != 1 {
        return Err(Failure::Usage("--bytes takes one size without --reads".into()).into());
    }
    if args.instructions {
        let counted = args.operation.as_deref().map(|operation| (operation, args.count));
        return instructions::run(args.value_bytes(), counted, args.json);
    }
    for &threads in &args.threads {
        within("--threads", threads, 1..=256)?;
    }
    if let Some(in_flight) = args.in_flight {
        within("--in-flight", in_flight, 1..=32)?;
    }
    check_area(args.area)?;
    within("--rounds", args.rounds, ROUNDS)?;
    within("--seconds", args.seconds, SECONDS)?;
    let about = machine::about();
    let mut rows = Vec::new();
    for &threads in &args.threads {
        let mut rounds: Vec<Vec<Row>> = Vec::new();
        for _ in 0..args.rounds {
            rounds.push(round(args, threads)?);
        }
        for system in 0..rounds[0].len() {
            let mut all: Vec<Row> = rounds.iter().map(|round| round[system].clone()).collect();
            all.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            rows.push(all[all.len() / 2].clone());
        }
    }
    if args.json {
        let value = serde_json::json!({
            "machine": about, "bytes": args.value_bytes().0, "rounds": args.rounds, "seconds": args.seconds, "rows": rows,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "durable inserts of {} bytes; medians of {} interleaved rounds of {} s",
        args.value_bytes().0,
        args.rounds,
        args.seconds
    );
    println!(
        "{}, Linux {}, commit {}\n",
        about.processor, about.kernel, about.commit
    );
    println!(
        "{:<22} {:>7} {:>11} {:>9} {:>9}",
        "system", "threads", "inserts/s", "p50 µs", "p99 µs"
    );
    for row in &rows {
        println!(
            "{:<22} {:>7} {:>11.0} {:>9.1} {:>9.1}",
            row.system, row.threads, row.per_second, row.p50_us, row.p99_us
        );
    }
    Ok(())
}

/// Every system once.
fn round(args: &StoreArgs, threads: usize) -> anyhow::Result<Vec<Row>> {
    let time = Duration::from_secs_f64(args.seconds);
    let mut rows = Vec::new();
    if !args.nvm {
        rows.push(raw(&args.dir, threads, RAW_BYTES, time)?);
    }
    for structure in OURS {
        rows.push(ours(args, structure, threads, time)?);
    }
    if let Some(program) = args.peers.as_deref().filter(|_| !args.nvm) {
        rows.extend(peers(args, program, threads)?);
    }
    Ok(rows)
}

/// A file that is removed at the end.
pub(super) struct Scratch(pub(super) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may not have come to be.
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn scratch(dir: &Path, name: &str) -> Scratch {
    Scratch(dir.join(format!("switchyard-bench-{}-{name}", std::process::id())))
}

/// The device's limit: as many bytes, whole blocks, overwritten in place.
pub(super) fn raw(dir: &Path, threads: usize, bytes: usize, time: Duration) -> anyhow::Result<Row> {
    let path = scratch(dir, "raw");
    let prepare = || -> std::io::Result<std::fs::File> {
        std::fs::write(&path.0, vec![0; RAW_FILE_BYTES])?;
        std::fs::File::open(&path.0)?.sync_all()?;
        OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(&path.0)
    };
    let file = prepare().with_context(|| format!("cannot prepare {}", path.0.display()))?;
    let share = RAW_FILE_BYTES / threads / bytes;
    drive("raw overwrite", threads, time, |thread| {
        let memory = vec![thread as u8; bytes + RAW_BYTES];
        let start = memory.as_ptr().align_offset(RAW_BYTES);
        let file = &file;
        move |count| {
            let block = thread * share + count as usize % share;
            file.write_all_at(&memory[start..start + bytes], (block * bytes) as u64)?;
            Ok(())
        }
    })
}

fn ours(args: &StoreArgs, structure: &str, threads: usize, time: Duration) -> anyhow::Result<Row> {
    let path = scratch(&args.dir, structure);
    let mut options = AreaOptions::new(args.area.0);
    if let Some(in_flight) = args.in_flight {
        options.writes_in_flight_max = in_flight;
    }
    let area = if args.nvm {
        Area::memory(&options, Some(NVM))?
    } else {
        Area::open(&path.0, &options)?
    };
    let value = vec![0x5a; args.value_bytes().0 as usize];
    let name = format!("switchyard {structure}");
    match structure {
        "log" => {
            let log = area.log("it")?;
            drive(&name, threads, time, |_| {
                let (log, value) = (log.clone(), &value);
                move |_| Ok(log.append(value).map(drop)?)
            })
        }
        "queue" => {
            let queue = area.queue("it")?;
            drive(&name, threads, time, |_| {
                let (queue, value) = (queue.clone(), &value);
                move |_| Ok(queue.push(value).map(drop)?)
            })
        }
        "map" => {
            let map = area.map("it")?;
            drive(&name, threads, time, |thread| {
                let (map, value) = (map.clone(), &value);
                move |count| Ok(map.put(&key(thread, count), value)?)
            })
        }
        _ => {
            let tree = area.tree("it")?;
            drive(&name, threads, time, |thread| {
                let (tree, value) = (tree.clone(), &value);
                move |count| Ok(tree.put(&key(thread, count), value)?)
            })
        }
    }
}

/// Lets `threads` threads do what `make` makes for each, for `time`.
fn drive<F, G>(system: &str, threads: usize, time: Duration, make: F) -> anyhow::Result<Row>
where
    F: Fn(usize) -> G,
    G: FnMut(u64) -> anyhow::Result<()> + Send,
{
    let barrier = Barrier::new(threads);
    let results: Vec<anyhow::Result<(Histogram<u64>, f64)>> = std::thread::scope(|scope| {
        let spawn = |thread| {
            let (mut insert, barrier) = (make(thread), &barrier);
            scope.spawn(move || {
                let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
                barrier.wait();
                let start = Instant::now();
                let mut count = 0;
                let mut before = start;
                while before - start < time {
                    insert(count)?;
                    let now = Instant::now();
                    latency.saturating_record((now - before).as_nanos() as u64);
                    before = now;
                    count += 1;
                }
                Ok((latency, (before - start).as_secs_f64()))
            })
        };
        let handles: Vec<_> = (0..threads).map(spawn).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| handle.join().expect("it does not panic");
        handles.into_iter().map(join).collect()
    });
    let mut all = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    let mut seconds: f64 = 0.0;
    for result in results {
        let (latency, elapsed) = result.with_context(|| system.to_owned())?;
        all.add(latency)?;
        seconds = seconds.max(elapsed);
    }
    let us = |quantile| all.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(Row {
        system: system.into(),
        threads,
        per_second: all.len() as f64 / seconds,
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}

/// The other engines, one after the other, by their own program: it prints a row for each as JSON.
fn peers(args: &StoreArgs, program: &Path, threads: usize) -> anyhow::Result<Vec<Row>> {
    let output = Command::new(program)
        .args(["--dir".as_ref(), args.dir.as_os_str()])
        .args(["--threads", &threads.to_string()])
        .args(["--bytes", &args.value_bytes().0.to_string()])
        .args(["--seconds", &args.seconds.to_string()])
        .output()
        .with_context(|| format!("{} does not run", program.display()))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let lines = String::from_utf8(output.stdout)?;
    let row = |line| {
        serde_json::from_str(line)
            .with_context(|| format!("the program of --peers printed a line that is not a row: {line}"))
    };
    lines.lines().map(row).collect()
}
