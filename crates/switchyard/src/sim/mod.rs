//! `switchyard sim`: experiments and the swarm of the deterministic simulator. Real time is measured here; in the
//! simulator there is none.

mod replay;

use crate::failure::{Failure, within};
use crate::report::{self, ReportArgs, THREADS_MAX};
use anyhow::bail;
use clap::Args;
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use replay::ReplayArgs;
use serde_json::json;
use sim::experiment::{EXPERIMENTS, find};
use sim::reached::{Reached, Situation};
use sim::report::Report;
use sim::swarm::SwarmOptions;
use sim::threads::run_seeds;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// `switchyard sim`.
#[derive(Args)]
pub struct SimArgs {
    #[command(subcommand)]
    pub command: SimCommand,
}

/// Seeds of a swarm if none are named.
const SEEDS: u64 = 200;

/// Seeds at most of a swarm that is told where it begins.
const SEEDS_MAX: u64 = 1 << 40;

/// What to simulate.
#[derive(Subcommand)]
pub enum SimCommand {
    /// List the experiments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run an experiment; the same seed gives the same table
    #[command(
        after_help = "Examples:\n  switchyard sim run gc-tail\n  switchyard sim run speed --json | jq .simulated_requests_per_second"
    )]
    Run {
        /// Name of the experiment, see `sim list`
        name: String,
        /// Seed of everything random
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replay a block trace on a simulated rack, under several policies
    Replay(ReplayArgs),
    /// Run every figure, and write one page with charts, the papers' numbers and the targets
    Report(ReportArgs),
    /// Run many whole racks with faults from seeds, and check every promise
    #[command(
        after_help = "The swarm runs each seed twice, and compares the event logs.\n\nExamples:\n  \
        switchyard sim swarm --seeds 0..1000\n  switchyard sim swarm --seed 17 --count 1    one seed again"
    )]
    Swarm {
        /// Range of seeds, the end excluded [default: 0..200]
        #[arg(long, value_name = "A..B", value_parser = seed_range, conflicts_with = "seed")]
        seeds: Option<Range<u64>>,
        /// First seed, with --count
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Number of seeds, with --seed
        #[arg(long, value_name = "N", default_value_t = 1, requires = "seed")]
        count: u64,
        /// Use media that never fail and flip no bits
        #[arg(long)]
        healthy_media: bool,
        /// Run each seed once, in half the time: a run that its seed does not decide is not noticed
        #[arg(long)]
        once: bool,
        /// Threads [default: one per processor]
        #[arg(long, value_name = "N")]
        threads: Option<usize>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn seed_range(text: &str) -> Result<Range<u64>, String> {
    let remedy = || format!("`{text}` is not a range: write for example 0..1000");
    let (start, end) = text.split_once("..").ok_or_else(remedy)?;
    let range = start.trim().parse().map_err(|_| remedy())?..end.trim().parse().map_err(|_| remedy())?;
    if range.is_empty() {
        return Err(format!("`{text}` contains no seed, because the end is excluded"));
    }
    Ok(range)
}

/// Carries it out.
pub fn run(args: SimArgs) -> anyhow::Result<()> {
    match args.command {
        SimCommand::List { json } => list(json),
        SimCommand::Run { name, seed, json } => experiment(&name, seed, json),
        SimCommand::Replay(args) => replay::run(&args),
        SimCommand::Report(args) => report::run(&args),
        SimCommand::Swarm {
            seeds,
            seed,
            count,
            healthy_media,
            once,
            threads,
            json,
        } => {
            let range = match (seeds, seed) {
                (Some(range), _) => range,
                (None, Some(seed)) => {
                    within("--count", count, 1..=SEEDS_MAX)?;
                    within("--seed", seed, 0..=u64::MAX - count)?;
                    seed..seed + count
                }
                (None, None) => 0..SEEDS,
            };
            let options = SwarmOptions {
                failing_media: !healthy_media,
                once,
                ..SwarmOptions::default()
            };
            let threads = threads.unwrap_or_else(runtime::cpu::count);
            within("--threads", threads, 1..=THREADS_MAX)?;
            swarm(range, options, threads, json)
        }
    }
}

fn list(json: bool) -> anyhow::Result<()> {
    if json {
        let all: Vec<_> = EXPERIMENTS
            .iter()
            .map(|e| json!({ "name": e.name, "about": e.about }))
            .collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    for experiment in EXPERIMENTS {
        println!("{:<12} {}", experiment.name, experiment.about);
    }
    Ok(())
}

fn experiment(name: &str, seed: u64, json: bool) -> anyhow::Result<()> {
    let Some(experiment) = find(name) else {
        let names: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
        bail!(Failure::Usage(format!(
            "experiment `{name}` does not exist: choose one of {}",
            names.join(", ")
        )));
    };
    let start = Instant::now();
    let report = (experiment.run)(seed, &mut |text| {
        if !json {
            eprintln!("{text}");
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let speed = column_sum(&report, "requests").map(|requests| requests / seconds);
    if json {
        let mut value = report.to_json();
        value["real_seconds"] = json!(seconds);
        value["simulated_requests_per_second"] = json!(speed);
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        print!("{report}");
        match speed {
            Some(speed) => println!("{seconds:.2} s of real time, {speed:.0} simulated requests a second"),
            None => println!("{seconds:.2} s of real time"),
        }
    }
    match column_sum(&report, "violations") {
        Some(count) if count > 0.0 => bail!(Failure::Problems(count as usize)),
        _ => Ok(()),
    }
}

/// The sum of a column, if the report has it.
fn column_sum(report: &Report, name: &str) -> Option<f64> {
    let column = report.columns.iter().position(|column| column == name)?;
    Some(report.rows.iter().map(|(_, values)| values[column]).sum())
}

fn swarm(seeds: Range<u64>, options: SwarmOptions, threads: usize, json: bool) -> anyhow::Result<()> {
    let total = seeds.end - seeds.start;
    let bar = match !json && std::io::stderr().is_terminal() {
        true => ProgressBar::new(total).with_style(
            ProgressStyle::with_template("{pos}/{len} seeds [{bar:40}] {per_sec}, {eta} left")
                .expect("a valid template"),
        ),
        false => ProgressBar::hidden(),
    };
    let (requests, events) = (AtomicU64::new(0), AtomicU64::new(0));
    let reached = Mutex::new(Reached::default());
    let start = Instant::now();
    let failed = run_seeds(seeds.clone(), threads, options, &|report| {
        requests.fetch_add(report.requests, Ordering::Relaxed);
        events.fetch_add(report.events, Ordering::Relaxed);
        let mut reached = reached.lock().expect("no holder panics");
        reached.add_run(&report.reached);
        if let (Some(line), false) = (report.repro(), json) {
            bar.suspend(|| println!("{line}\n{}", report.last_events().trim_end()));
        }
        bar.inc(1);
        true
    });
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let (requests, events) = (requests.into_inner(), events.into_inner());
    let reached = reached.into_inner().expect("no holder panics");
    let reached = Situation::ALL
        .iter()
        .map(|(situation, name)| (*name, reached.count(*situation)));
    if json {
        let failures: Vec<_> = failed
            .iter()
            .map(|report| json!({ "seed": report.seed, "repro": report.repro(), "events": report.last_events().lines().collect::<Vec<_>>() }))
            .collect();
        let value = json!({
            "seeds": total, "failed": failures, "requests": requests, "events": events, "real_seconds": seconds,
            "ms_per_seed": seconds * 1000.0 * threads as f64 / total as f64,
            "reached": reached.collect::<BTreeMap<_, _>>(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        println!(
            "{total} seeds, {} failed; {requests} requests, {events} events in {seconds:.1} s ({:.1} ms a seed and thread)",
            failed.len(),
            seconds * 1000.0 * threads as f64 / total as f64
        );
        println!("seeds that came into a situation:");
        for (name, count) in reached {
            println!("  {count:>6} {name}");
        }
    }
    match failed.len() {
        0 => Ok(()),
        count => bail!(Failure::Problems(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_ranges_are_read_and_empty_ones_refused() {
        assert_eq!(seed_range("3..9").unwrap(), 3..9);
        for text in ["", "3", "9..3", "3..3", "a..b"] {
            assert!(seed_range(text).is_err(), "{text}");
        }
    }
}
