//! `switchyard bench tcp`: small requests and answers by our sockets and by Linux', on every link.
//!
//! One thread on one core has both ends of all connections. It sends a request on each, answers all of them at the other end, and
//! reads the answers. So the time of a turn is what both ends and everything between take, on whichever account: `veth` runs the
//! receiver's half in the sender's system call. Nobody is woken and nothing waits; a process that sleeps pays for its wake
//! beyond that, on either side of the comparison.
//!
//! Sides take turns within a round; medians over rounds. Ratios are to the best of Linux' sides.

mod ends;
mod linux;
mod network;
mod ours;

use super::rounds::{ROUNDS, SECONDS, bar, median};
use crate::failure::within;
use crate::machine;
use anyhow::Context;
use clap::Args;
use ends::{Ends, RPC_BYTES};
use network::Network;
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
    /// Rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
    let cpu = runtime::cpu::allowed()[0];
    runtime::cpu::pin(cpu).context("cannot bind the thread to a processor")?;
    if !args.json {
        println!(
            "machine  {}, {} processors, Linux {}",
            about.processor, about.processors, about.kernel
        );
        println!("commit   {}", about.commit);
        println!("case     {RPC_BYTES} bytes there and back, one request at a time on each connection");
        println!(
            "runs     both ends on processor {cpu}, {} × {} s each in turns, medians\n",
            args.rounds, args.seconds
        );
        println!(
            "{:<28} {:>11} {:>10} {:>12} {:>10}",
            "side", "connections", "µs per RPC", "RPC/s", "× Linux"
        );
    }
    let network = Network::make()
        .inspect_err(|error| eprintln!("veth is left out, and what needs it, because {error:#}"))
        .ok();
    let mut rows = Vec::new();
    for &connections in &args.connections {
        let more = measure(args, connections, network.as_ref())?;
        if !args.json {
            more.iter().for_each(print_row);
        }
        rows.extend(more);
    }
    if args.json {
        let value = serde_json::json!({
            "machine": about, "bytes": RPC_BYTES, "rounds": args.rounds, "seconds": args.seconds, "rows": rows,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    }
    Ok(())
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
    add("shared memory", false, ours::shared(connections));
    if let Some(network) = network {
        add(
            "AF_XDP in the driver",
            false,
            ours::xdp(connections, network, true),
        );
        add(
            "AF_XDP behind the driver",
            false,
            ours::xdp(connections, network, false),
        );
        add("AF_PACKET", false, ours::packet(connections, network));
    }
    for (polls, names) in [
        (
            true,
            ["Linux veth, recv", "Linux loopback, recv", "AF_UNIX, recv"],
        ),
        (
            false,
            ["Linux veth, epoll", "Linux loopback, epoll", "AF_UNIX, epoll"],
        ),
    ] {
        if let Some(network) = network {
            add(names[0], true, linux::veth(connections, network, polls));
        }
        add(names[1], true, linux::loopback(connections, polls));
        add(names[2], true, linux::unix(connections, polls));
    }
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
