//! `switchyard bench tcp`: small requests and answers by our sockets and by Linux', on every link.
//!
//! One thread on one core has both ends of all connections. It sends a request on each, answers all of them at the other end, and
//! reads the answers. So the time of a turn is what both ends and everything between take, on whichever account: `veth` runs the
//! receiver's half in the sender's system call. Nobody is woken and nothing waits; a process that sleeps pays for its wake
//! beyond that, on either side of the comparison.
//!
//! Then each end has a thread and a processor: the time of one request at a time (`latency`), and the throughput of one stream
//! (`bulk`).
//!
//! Sides take turns within a round; medians over rounds. Ratios are to the best of Linux' sides.

mod bulk;
mod duplex;
mod ends;
mod latency;
mod linux;
mod network;
mod ours;
mod sockmap;
mod uring;

use super::rounds::{ROUNDS, SECONDS, bar, median};
use crate::failure::within;
use crate::machine;
use anyhow::Context;
use clap::Args;
use ends::{Ends, RPC_BYTES};
use linux::Place;
use network::Network;
use ours::Ours;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Before what counts.
const WARM_UP: Duration = Duration::from_millis(20);
/// Turns between two looks at the clock.
const TURNS: u64 = 16;

/// `switchyard bench tcp`.
#[derive(Args)]
#[command(
    after_help = "AF_XDP, AF_PACKET and veth need root, and are left out otherwise.\n\n\
    Examples:\n  switchyard bench tcp\n  switchyard bench tcp --connections 1 --rounds 21 --json"
)]
pub struct TcpArgs {
    /// Connections, each with one request at a time
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,64")]
    pub connections: Vec<usize>,
    /// Seconds of each run
    #[arg(long, value_name = "S", default_value_t = 0.2, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Cases to measure
    #[arg(
        long,
        value_name = "CASE,…",
        value_delimiter = ',',
        default_value = "rpc,latency,bulk"
    )]
    pub cases: Vec<Case>,
    /// Rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Small requests, both ends in one thread
    Rpc,
    /// One small request at a time, the ends on two processors
    Latency,
    /// One stream, the ends on two processors
    Bulk,
}

/// One way to do it.
struct Side {
    name: &'static str,
    is_linux: bool,
    ends: Box<dyn Ends>,
    /// µs of a request, in each round.
    taken_us: Vec<f64>,
}

/// Medians of one side.
#[derive(Debug, Serialize)]
struct Row {
    side: &'static str,
    connections: usize,
    /// Of both ends.
    us_per_rpc: f64,
    rpcs_per_second: f64,
    /// The best of Linux' sides by this one.
    times_linux: f64,
}

/// Runs it.
pub fn run(args: &TcpArgs) -> anyhow::Result<()> {
    for &connections in &args.connections {
        within("--connections", connections, 1..=512)?;
    }
    within("--rounds", args.rounds, ROUNDS)?;
    within("--seconds", args.seconds, SECONDS)?;
    // Before the thread is bound: it counts the processors that there are.
    let about = machine::about();
    let cpus = runtime::cpu::allowed();
    runtime::cpu::pin(cpus[0]).context("cannot bind the thread to a processor")?;
    let has = |case| args.cases.contains(&case);
    if !args.json {
        println!(
            "machine  {}, {} processors, Linux {}",
            about.processor, about.processors, about.kernel
        );
        println!("commit   {}", about.commit);
        println!(
            "runs     {} × {} s each in turns, medians",
            args.rounds, args.seconds
        );
    }
    let network = Network::make()
        .inspect_err(|error| eprintln!("veth is left out, and what needs it, because {error:#}"))
        .ok();
    let network = network.as_ref();
    let rpc = has(Case::Rpc).then(|| measure_rpc(args, network)).transpose()?;
    let latency = has(Case::Latency)
        .then(|| apart(&cpus).map(|cpus| measure_latency(args, network, cpus)))
        .flatten()
        .transpose()?;
    let bulk = has(Case::Bulk)
        .then(|| apart(&cpus).map(|cpus| measure_bulk(args, network, cpus)))
        .flatten()
        .transpose()?;
    if args.json {
        let value = serde_json::json!({
            "machine": about, "bytes": RPC_BYTES, "rounds": args.rounds, "seconds": args.seconds,
            "rows": rpc, "latency": latency, "bulk": bulk,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    }
    Ok(())
}

/// The processors of two ends.
fn apart(cpus: &[usize]) -> Option<[usize; 2]> {
    let two = cpus.first_chunk::<2>().copied();
    if two.is_none() {
        eprintln!("latency and bulk are left out, because they take two processors");
    }
    two
}

fn measure_rpc(args: &TcpArgs, network: Option<&Network>) -> anyhow::Result<Vec<Row>> {
    if !args.json {
        println!(
            "\nrpc      {RPC_BYTES} bytes there and back, one request at a time on each connection, both ends on one processor\n"
        );
        println!(
            "{:<28} {:>11} {:>10} {:>12} {:>10}",
            "side", "connections", "µs per RPC", "RPC/s", "× Linux"
        );
    }
    let mut rows = Vec::new();
    for &connections in &args.connections {
        let more = measure(args, connections, network)?;
        if !args.json {
            more.iter().for_each(print_row);
        }
        rows.extend(more);
    }
    Ok(rows)
}

fn measure_latency(
    args: &TcpArgs,
    network: Option<&Network>,
    cpus: [usize; 2],
) -> anyhow::Result<Vec<latency::Row>> {
    let rows = latency::measure(network, cpus, args.rounds, args.seconds)?;
    if !args.json {
        println!(
            "\nlatency  {RPC_BYTES} bytes there and back, one at a time, the ends on processors {} and {}\n",
            cpus[0], cpus[1]
        );
        println!("{:<28} {:>10} {:>10}", "side", "p50 µs", "p99 µs");
        for row in &rows {
            println!("{:<28} {:>10.2} {:>10.2}", row.side, row.p50_us, row.p99_us);
        }
    }
    Ok(rows)
}

fn measure_bulk(
    args: &TcpArgs,
    network: Option<&Network>,
    cpus: [usize; 2],
) -> anyhow::Result<Vec<bulk::Row>> {
    let rows = bulk::measure(network, cpus, args.rounds, args.seconds)?;
    if !args.json {
        println!(
            "\nbulk     one stream, the ends on processors {} and {}\n",
            cpus[0], cpus[1]
        );
        println!(
            "{:<28} {:>11} {:>10} {:>12}",
            "side", "write KiB", "Gbit/s", "processors"
        );
        for row in &rows {
            println!(
                "{:<28} {:>11} {:>10.1} {:>12.2}",
                row.side,
                row.write_bytes >> 10,
                row.gbit_per_second,
                row.processors
            );
        }
    }
    Ok(rows)
}

/// All sides with so many connections.
fn sides(connections: usize, network: Option<&Network>) -> anyhow::Result<Vec<Side>> {
    let mut sides = Vec::new();
    let mut add = |name, is_linux, ends: anyhow::Result<Box<dyn Ends>>| match ends {
        Ok(ends) => sides.push(Side {
            name,
            is_linux,
            ends,
            taken_us: Vec::new(),
        }),
        Err(error) => eprintln!("{name} is left out, because {error:#}"),
    };
    let boxed = |ours: anyhow::Result<Ours>| ours.map(|ours| Box::new(ours) as Box<dyn Ends>);
    let small = ours::SMALL;
    add("shared memory", false, boxed(ours::shared(connections, small)));
    if let Some(network) = network {
        for (name, is_native) in [
            ("AF_XDP in the driver", true),
            ("AF_XDP behind the driver", false),
        ] {
            add(
                name,
                false,
                boxed(ours::xdp(connections, network, is_native, small)),
            );
        }
        let packet = ours::packet(connections, network, small);
        add("AF_PACKET", false, boxed(packet));
        let place = Place::Veth(network);
        add("Linux veth, recv", true, linux::tcp(connections, place, true));
        add("Linux veth, epoll", true, linux::tcp(connections, place, false));
        add("Linux veth, io_uring", true, uring::open(connections, place));
        add(
            "Linux veth, sockmap, recv",
            true,
            sockmap::open(connections, place, true),
        );
        add(
            "Linux veth, sockmap, epoll",
            true,
            sockmap::open(connections, place, false),
        );
    }
    let place = Place::Loopback;
    add("Linux loopback, recv", true, linux::tcp(connections, place, true));
    add(
        "Linux loopback, epoll",
        true,
        linux::tcp(connections, place, false),
    );
    add("Linux loopback, io_uring", true, uring::open(connections, place));
    add("AF_UNIX, recv", true, linux::unix(connections, true));
    add("AF_UNIX, epoll", true, linux::unix(connections, false));
    Ok(sides)
}

fn measure(args: &TcpArgs, connections: usize, network: Option<&Network>) -> anyhow::Result<Vec<Row>> {
    let mut sides = sides(connections, network)?;
    let bar = bar(args.json);
    for round in 0..args.rounds {
        for side in &mut sides {
            bar.set_message(format!("{}, round {}", side.name, round + 1));
            let taken = run_side(side, connections, args.seconds);
            side.taken_us.push(taken.with_context(|| side.name)?);
        }
        bar.set_position((round + 1) as u64 * 100 / args.rounds as u64);
    }
    bar.finish_and_clear();
    let medians: Vec<f64> = sides
        .iter()
        .map(|side| median(side.taken_us.iter().copied()))
        .collect();
    let of_linux = sides.iter().zip(&medians).filter(|(side, _)| side.is_linux);
    let best = of_linux.map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
    let row = |(side, us): (&Side, &f64)| Row {
        side: side.name,
        connections,
        us_per_rpc: *us,
        rpcs_per_second: 1e6 / us,
        times_linux: best / us,
    };
    Ok(sides.iter().zip(&medians).map(row).collect())
}

/// Runs one side once, and answers µs of a request.
fn run_side(side: &mut Side, connections: usize, seconds: f64) -> anyhow::Result<f64> {
    let warm_until = Instant::now() + WARM_UP;
    while Instant::now() < warm_until {
        side.ends.turn()?;
    }
    let began = Instant::now();
    let mut turns = 0;
    loop {
        for _ in 0..TURNS {
            side.ends.turn()?;
        }
        turns += TURNS;
        let taken = began.elapsed().as_secs_f64();
        if taken >= seconds {
            return Ok(taken * 1e6 / (turns * connections as u64) as f64);
        }
    }
}

fn print_row(row: &Row) {
    println!(
        "{:<28} {:>11} {:>10.3} {:>12.0} {:>10.2}",
        row.side, row.connections, row.us_per_rpc, row.rpcs_per_second, row.times_linux
    );
}
