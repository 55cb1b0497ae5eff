//! `switchyard bench kv`: `switchyard kv serve` beside Redis, with the same client, on the same directory and device.
//!
//! Four sides take turns within a round, each with a new server: ours and Redis with every write durable before its answer, and both in
//! memory alone. Medians over rounds. With `--steering` there are no servers: two threads, locks beside shards ([`steering`]).
//!
//! The client is one thread. On a machine with two processors it has one of them, and a server with one thread the other.

mod args;
mod load;
mod servers;
mod steering;

use super::rounds::{ROUNDS, SECONDS, bar, median};
use crate::failure::within;
use crate::machine;
pub use args::KvArgs;
use args::{Kind, Side};
use load::{Asked, Load, Outcome};
use serde::Serialize;
use servers::Server;
use std::time::Duration;

/// Connections and requests under way of the client that fills a server.
const FILL: (usize, usize) = (16, 16);

/// A case: what is asked for, by how many, how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Case {
    command: &'static str,
    clients: usize,
    pipeline: usize,
}

/// Medians of one side in one case.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    side: &'static str,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Processor time of the server for a request.
    server_us: f64,
    /// By the rate of Redis that keeps as much.
    times_redis: f64,
}

/// A run: its outcome, and the server's processor time for a request, in µs.
type Run = (Outcome, f64);

/// Runs it.
pub fn run(args: &KvArgs) -> anyhow::Result<()> {
    within("--seconds", args.seconds, SECONDS)?;
    within("--rounds", args.rounds, ROUNDS)?;
    within("--keys", args.keys, 1..=100_000_000)?;
    within("--shards", args.shards, 1..=shards::SHARDS_MAX)?;
    args.clients
        .iter()
        .try_for_each(|count| within("--clients", *count, 1..=1000))?;
    args.pipeline
        .iter()
        .try_for_each(|count| within("--pipeline", *count, 1..=1000))?;
    within("--bytes", args.bytes.0, 1..=65_536)?;
    let about = machine::about();
    if args.steering {
        let rows = steering::run(args)?;
        if args.json {
            println!("{}", serde_json::json!({"machine": about, "rows": rows}));
        } else {
            print_head(args, &about);
            println!("{rows:#?}");
        }
        return Ok(());
    }
    let rows = measure(args)?;
    if args.json {
        let value = serde_json::json!({"machine": about, "rounds": args.rounds, "seconds": args.seconds, "rows": rows});
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    print_head(args, &about);
    println!(
        "\n{:<34} {:<20} {:>10} {:>9} {:>9} {:>10} {:>8}",
        "", "", "per second", "p50 µs", "p99 µs", "server µs", "× redis"
    );
    for row in &rows {
        let Case {
            command,
            clients,
            pipeline,
        } = row.case;
        println!(
            "{:<34} {:<20} {:>10.0} {:>9.1} {:>9.1} {:>10.2} {:>8.2}",
            format!("{command}, {clients} clients, pipeline {pipeline}"),
            row.side,
            row.per_second,
            row.p50_us,
            row.p99_us,
            row.server_us,
            row.times_redis
        );
    }
    Ok(())
}

fn print_head(args: &KvArgs, about: &machine::About) {
    println!(
        "{}, {} processors, Linux {}, commit {}; medians of {} rounds of {} s",
        about.processor, about.processors, about.kernel, about.commit, args.rounds, args.seconds
    );
}

fn sides(args: &KvArgs) -> Vec<Side> {
    let of = |kind: &Kind| match kind {
        Kind::Durable => [Side::Ours, Side::Redis],
        Kind::Memory => [Side::OursMemory, Side::RedisMemory],
    };
    args.sides.iter().flat_map(of).collect()
}

fn cases(args: &KvArgs) -> Vec<Case> {
    let mut cases = Vec::new();
    for command in ["SET", "GET"] {
        for &clients in &args.clients {
            for &pipeline in &args.pipeline {
                cases.push(Case {
                    command,
                    clients,
                    pipeline,
                });
            }
        }
    }
    cases
}

fn measure(args: &KvArgs) -> anyhow::Result<Vec<Row>> {
    let (sides, cases) = (sides(args), cases(args));
    let mut runs: Vec<Vec<Vec<Run>>> = vec![vec![Vec::new(); cases.len()]; sides.len()];
    let bar = bar(args.json);
    bar.set_length((args.rounds * sides.len()) as u64);
    for round in 0..args.rounds {
        for index in 0..sides.len() {
            let index = (index + round) % sides.len();
            bar.set_message(sides[index].name());
            round_of(args, sides[index], &cases, &mut runs[index])?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let middle = |runs: &[Run], of: fn(&Run) -> f64| median(runs.iter().map(of));
    let mut rows = Vec::new();
    for (place, case) in cases.iter().enumerate() {
        for (index, side) in sides.iter().enumerate() {
            let own = &runs[index][place];
            let peer = sides
                .iter()
                .position(|it| *it == side.redis())
                .expect("sides come in pairs");
            let rate = |runs: &[Run]| middle(runs, |run| run.0.per_second);
            rows.push(Row {
                case: *case,
                side: side.name(),
                per_second: rate(own),
                p50_us: middle(own, |run| run.0.p50_us),
                p99_us: middle(own, |run| run.0.p99_us),
                server_us: middle(own, |run| run.1),
                times_redis: rate(own) / rate(&runs[peer][place]),
            });
        }
    }
    Ok(rows)
}

/// All cases on a new server of one side.
fn round_of(args: &KvArgs, side: Side, cases: &[Case], runs: &mut [Vec<Run>]) -> anyhow::Result<()> {
    let server = Server::start(args, side)?;
    let load = |asked, (clients, pipeline)| Load {
        address: server.address,
        asked,
        clients,
        pipeline,
        keys: args.keys,
        value_bytes: args.bytes.0 as usize,
        time: Duration::from_secs_f64(args.seconds),
    };
    load::run(load(Asked::Fill, FILL))?;
    for (place, case) in cases.iter().enumerate() {
        let asked = if case.command == "SET" {
            Asked::Set
        } else {
            Asked::Get
        };
        let before = server.cpu_time()?;
        let outcome = load::run(load(asked, (case.clients, case.pipeline)))?;
        let taken = server.cpu_time()? - before;
        runs[place].push((outcome, taken.as_secs_f64() * 1e6 / outcome.requests as f64));
    }
    server.stop()
}
