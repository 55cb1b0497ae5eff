//! `switchyard bench`: load against a rack's volume, any NBD export, a file or a device, with latency percentiles.
//!
//! The client is closed-loop: each connection keeps `qd` requests under way and blocks for replies, as most clients
//! do. Latency is taken from just before a request is handed to the socket (or to the file) to just after its reply is
//! read. Every case runs several times and the run with the median rate is reported.
//!
//! Writing destroys what is on the target, so it happens only when asked for: `--writes`, or `--rw` with a write.

mod block;
mod compare;
mod databases;
mod files;
mod hostile;
mod instructions;
mod kv;
mod load;
mod looped;
mod nbd;
mod nvme;
mod rack;
mod reads;
mod redis;
mod report;
mod rounds;
mod servers;
mod socket;
mod store;
mod tcp;

use crate::control::client::Client;
use crate::failure::Failure;
use crate::machine;
use crate::size::Size;
use anyhow::Context;
use block::Target;
use clap::{Args, Subcommand};
use load::{Case, Mode, Outcome};
use rounds::bar;
use serde_json::{Value, json};
use std::time::Duration;

/// Systems beside each other.
#[derive(Subcommand)]
pub enum Comparison {
    /// Compare small reads beside bulk clients: our policies, SPDK, nbdkit, qemu-nbd
    Blockswitch(compare::BlockswitchArgs),
    /// Compare one client alone: our targets, SPDK, nbdkit, qemu-nbd
    Peers(compare::PeersArgs),
    /// Measure one good client beside a thousand bad clients
    Hostile(hostile::HostileArgs),
    /// Run the simulator's experiments on a real rack with emulated devices and links, and compare
    Rack(rack::RackArgs),
    /// Measure durable inserts into a storage area, beside raw overwrites and other engines
    Store(Box<store::StoreArgs>),
    /// Measure Redis with a durable append-only file, by ext4 and by `switchyard run`
    Redis(redis::RedisArgs),
    /// Measure durable writes of SQLite, LevelDB and RocksDB, by ext4 and by `switchyard run`
    Databases(databases::DatabasesArgs),
    /// Measure a mount of `switchyard fs` beside ext4, xfs and btrfs on the same kind of device
    Fs(files::FilesArgs),
    /// Measure small requests by user-level TCP on every link, beside Linux' sockets
    Tcp(tcp::TcpArgs),
    /// Measure `switchyard kv serve` beside Redis, durable and in memory; or shards beside locks
    Kv(kv::KvArgs),
    /// A client process of `bench fs`
    #[command(hide = true)]
    FsClient(files::ClientArgs),
}

/// `switchyard bench`.
#[derive(Args)]
#[command(
    after_help = "Without --rw the command runs a suite: the rack's idle CPU, 4 KiB reads at depth 1 and 32, and with \
    --writes also writes and flushes. Writing DESTROYS the data of the target. The medium is not asked for unwritten \
    pages: --writes --fill writes the whole target first.\n\n\
    Examples:\n  switchyard bench                              reads from the volume `demo` of the running rack\n  \
    switchyard bench --writes                     the whole suite; `demo` loses its data\n  \
    switchyard bench nbd://127.0.0.1:10809/db --rw randread --qd 8 --conns 2 --seconds 10\n  \
    switchyard bench file:/dev/nvme0n1 --json"
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub comparison: Option<Comparison>,
    /// `nbd://HOST:PORT/NAME`, `nvme://HOST:PORT/NAME` or `file:PATH` [default: the volume `demo` of the running rack]
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,
    /// Run one case instead of the suite
    #[arg(long, value_name = "MODE")]
    pub rw: Option<Mode>,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub bs: Size,
    /// Requests under way on each connection
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub qd: usize,
    /// Connections, each with a thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub conns: usize,
    /// Let clients poll for answers; each connection needs a core
    #[arg(long)]
    pub poll: bool,
    /// Share of writes in randrw
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.5,
        allow_negative_numbers = true
    )]
    pub write_share: f64,
    /// Seconds of each run
    #[arg(long, value_name = "S", default_value_t = 3.0, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Runs of each case; the run with the median rate counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Use only the first part of the target
    #[arg(long, value_name = "SIZE")]
    pub span: Option<Size>,
    /// Seed of the random places
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write, too: DESTROYS the target's data
    #[arg(long)]
    pub writes: bool,
    /// Fill the target with data first (needs --writes)
    #[arg(long, requires = "writes")]
    pub fill: bool,
    /// Control address of the rack
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9180", value_parser = crate::control::address::check)]
    pub control: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.comparison {
        Some(Comparison::Blockswitch(args)) => return compare::blockswitch(args),
        Some(Comparison::Peers(args)) => return compare::peers(args),
        Some(Comparison::Hostile(args)) => return hostile::run(args),
        Some(Comparison::Rack(args)) => return rack::run(args),
        Some(Comparison::Store(args)) if args.reading.reads => return reads::run(args),
        Some(Comparison::Store(args)) => return store::run(args),
        Some(Comparison::Redis(args)) => return redis::run(args),
        Some(Comparison::Databases(args)) => return databases::run(args),
        Some(Comparison::Fs(args)) => return files::run(args),
        Some(Comparison::Tcp(args)) => return tcp::run(args),
        Some(Comparison::Kv(args)) => return kv::run(args),
        Some(Comparison::FsClient(args)) => return files::be_client(args),
        None => {}
    }
    check(args)?;
    let client = Client::new(&args.control);
    let (target, pid) = target(args, &client)?;
    let about = machine::about();
    if !args.json {
        println!(
            "machine  {}, {} processors, Linux {}",
            about.processor, about.processors, about.kernel
        );
        println!("commit   {}", about.commit);
        println!("target   {target}");
        println!("runs     {} × {} s each, median\n", args.runs, args.seconds);
    }
    let idle = match (pid, args.rw) {
        (Some(pid), None) => machine::idle_cpu_percent(pid, Duration::from_secs(2)),
        _ => None,
    };
    if let (Some(percent), false) = (idle, args.json) {
        println!("{:<34} {percent:>9.2} % of a processor", "idle rack");
    }
    if args.fill {
        let fill = Case {
            mode: Mode::Write,
            qd: 16,
            bs: 128 << 10,
            ..case(args, Mode::Write, 16)
        };
        load::fill(&target, &fill, bar(args.json)).context("cannot fill the target")?;
    }
    let mut rows = Vec::new();
    for case in cases(args) {
        let outcome = median_run(args, &target, &case)?;
        if !args.json {
            print_row(&case, &outcome, rows.is_empty());
        }
        if crate::out::is_lost() {
            break;
        }
        rows.push(row(&case, &outcome));
    }
    if args.json {
        let value = json!({
            "machine": about, "target": target.to_string(), "runs": args.runs, "seconds": args.seconds,
            "idle_cpu_percent": idle, "cases": rows,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    }
    Ok(())
}

fn check(args: &BenchArgs) -> anyhow::Result<()> {
    let refuse = |flag: &str, value: &dyn std::fmt::Display, range: &str| {
        Err(Failure::Usage(format!("--{flag} takes {range}, not {value}")).into())
    };
    if !(1..=128).contains(&args.qd) {
        return refuse("qd", &args.qd, "1 to 128 (--conns adds connections)");
    }
    if !(1..=256).contains(&args.conns) {
        return refuse("conns", &args.conns, "1 to 256");
    }
    if args.bs.0 == 0 || !args.bs.0.is_multiple_of(512) || args.bs.0 > 32 << 20 {
        return refuse("bs", &args.bs.0, "a multiple of 512 bytes up to 32MiB");
    }
    if !(0.05..=86_400.0).contains(&args.seconds) {
        return refuse("seconds", &args.seconds, "0.05 to 86400");
    }
    if !(1..=100).contains(&args.runs) {
        return refuse("runs", &args.runs, "1 to 100");
    }
    if !(0.0..=1.0).contains(&args.write_share) {
        return refuse("write-share", &args.write_share, "0 to 1");
    }
    Ok(())
}

/// The target, and the process whose idle CPU counts.
fn target(args: &BenchArgs, client: &Client) -> anyhow::Result<(Target, Option<u32>)> {
    let span = args.span.map(|size| size.0);
    if let Some(text) = &args.target {
        let target = Target::open(text, span)?;
        // The rack of this target, if it is one and on this machine.
        let status = client.status().ok();
        let pid = status
            .filter(|s| s.nbd.as_ref().is_some_and(|nbd| text.contains(nbd)))
            .map(|s| s.pid);
        return Ok((target, pid));
    }
    let status = client.status()?;
    let volume = status
        .volumes
        .iter()
        .find(|volume| volume.name == crate::role::gateway::DEMO)
        .context(
            "the rack has no volume `demo`: name another target, for example nbd://127.0.0.1:10809/NAME",
        )?;
    Ok((Target::open(&volume.uri, span)?, Some(status.pid)))
}

fn case(args: &BenchArgs, mode: Mode, qd: usize) -> Case {
    Case {
        mode,
        bs: args.bs.0 as usize,
        qd,
        conns: args.conns,
        polls: args.poll,
        write_share: args.write_share,
        time: Duration::from_secs_f64(args.seconds),
        seed: args.seed,
    }
}

/// The suite, or the one case asked for.
fn cases(args: &BenchArgs) -> Vec<Case> {
    if let Some(mode) = args.rw {
        return vec![case(args, mode, args.qd)];
    }
    let mut cases = vec![case(args, Mode::Randread, 1), case(args, Mode::Randread, 32)];
    if args.writes {
        cases.push(case(args, Mode::Randwrite, 1));
        cases.push(case(args, Mode::Randwrite, 32));
        cases.push(case(args, Mode::Flush, 1));
    }
    cases
}

fn median_run(args: &BenchArgs, target: &Target, case: &Case) -> anyhow::Result<Outcome> {
    let bar = bar(args.json);
    let mut outcomes = Vec::new();
    for number in 0..args.runs {
        bar.set_message(format!("{case}, run {} of {}", number + 1, args.runs));
        let again = Case {
            seed: case.seed.wrapping_add(number as u64),
            ..*case
        };
        outcomes.push(load::run(target, &again, &bar).with_context(|| format!("{case}"))?);
    }
    bar.finish_and_clear();
    outcomes.sort_by(|a, b| a.iops().total_cmp(&b.iops()));
    Ok(outcomes.swap_remove(outcomes.len() / 2))
}

fn print_row(case: &Case, outcome: &Outcome, is_first: bool) {
    if is_first {
        println!(
            "{:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "case", "IOPS", "MiB/s", "mean µs", "p50 µs", "p99 µs", "p99.9 µs"
        );
    }
    let us = |quantile| outcome.latency.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "{:<34} {:>9.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
        case.to_string(),
        outcome.iops(),
        outcome.iops() * case.bs as f64 / 1_048_576.0,
        outcome.latency.mean() / 1000.0,
        us(0.5),
        us(0.99),
        us(0.999)
    );
}

fn row(case: &Case, outcome: &Outcome) -> Value {
    let us = |quantile| outcome.latency.value_at_quantile(quantile) as f64 / 1000.0;
    json!({
        "rw": case.mode.name(), "bs": case.bs, "qd": case.qd, "conns": case.conns,
        "requests": outcome.requests, "iops": outcome.iops(),
        "mib_s": outcome.iops() * case.bs as f64 / 1_048_576.0,
        "mean_us": outcome.latency.mean() / 1000.0, "p50_us": us(0.5), "p99_us": us(0.99), "p999_us": us(0.999),
        "max_us": outcome.latency.max() as f64 / 1000.0,
    })
}
