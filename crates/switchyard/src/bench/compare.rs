//! Systems beside each other on this machine: `bench blockswitch` (latency-bound clients beside bulk ones) and `bench
//! peers` (one client alone).
//!
//! Every system gets the same clients, sizes and depths. Rounds are interleaved: each round starts every system anew,
//! fills its volume and runs every scenario, so that a machine that changes its mind changes it for all. What is
//! reported is the median over the rounds. The server has one processor, all clients share another.

use super::block::Target;
use super::load::Mode;
use super::load::{self, Case, ClientGroup, Outcome};
use super::report::{self, CompareArgs, Row};
use super::rounds::{ROUNDS, SECONDS, bar, median};
use super::servers::{Protocol, Server, System};
use crate::failure::{Failure, within};
use crate::machine;
use crate::out;
use crate::report::switch_figures;
use anyhow::{Context, bail};
use blockswitch::Policy;
use clap::Args;
use indicatif::ProgressBar;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Requests that a paced client has under way at most: many times what a system that keeps up leaves it.
const PACED_DEPTH: usize = 64;
/// Rates of `--l-rate`, in requests a second. The fastest is faster than a closed loop over a network.
const L_RATE: RangeInclusive<f64> = 0.1..=100_000.0;
/// The seed of the simulator's figures in a report.
const SIMULATED_SEED: u64 = 1;

/// `switchyard bench blockswitch`.
#[derive(Args)]
#[command(
    after_help = "A latency-bound client (L: 4 KiB reads, depth 1, real-time priority) beside bulk clients (T), on real \
    sockets. Without --figure: L alone, beside two T readers and beside two T writers of 128 KiB at depth 32, then \
    the same with L paced. Paced L begins a request at fixed times and sleeps between them. Its latency counts from the \
    time when the request was to begin, so a late answer or a late client counts. One core \
    can show the figures of the blk-switch artifact that --figure lists. `switchyard sim run switch-fig9` and its \
    siblings show the others, and a report has all figures.\n\nExample:\n  switchyard bench blockswitch --report blockswitch.html"
)]
pub struct BlockswitchArgs {
    #[command(flatten)]
    pub compare: CompareArgs,
    /// Scenarios of a figure of the blk-switch artifact: 2, 3a, 7, 8, 10, 11, 13, or all (without 10, because foreign servers have no flash)
    #[arg(long, value_name = "N")]
    pub figure: Option<String>,
    /// Run only these systems, by name, such as `spdk nvme`
    #[arg(long, value_name = "NAME")]
    pub system: Vec<String>,
    /// Run only these scenarios, by name, such as `L + 2 T reads`
    #[arg(long, value_name = "NAME")]
    pub scenario: Vec<String>,
    /// Requests a second of a paced latency-bound client
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000.0,
        allow_negative_numbers = true
    )]
    pub l_rate: f64,
}

/// `switchyard bench peers`.
#[derive(Args)]
#[command(
    after_help = "One client on one connection, the server in memory on one core: our NVMe/TCP and NBD targets beside \
    SPDK, nbdkit and qemu-nbd, as far as they are installed.\n\nExample:\n  switchyard bench peers --json"
)]
pub struct PeersArgs {
    #[command(flatten)]
    pub compare: CompareArgs,
}

/// Applications that run together.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// Latency-bound clients.
    pub latency_clients: usize,
    /// They begin requests at `--l-rate`, whatever answers take.
    is_paced: bool,
    bulk_bytes: usize,
    /// Depths of bulk clients, and how many there are of each.
    bulk_depths: Vec<(usize, usize)>,
    bulk_write_share: f64,
    /// The latency-bound clients are on flash.
    on_flash: bool,
}

impl Scenario {
    fn new(name: String, latency_clients: usize, bulk_clients: usize) -> Self {
        Self {
            name,
            latency_clients,
            is_paced: false,
            bulk_bytes: 64 << 10,
            bulk_depths: vec![(32, bulk_clients)],
            bulk_write_share: 0.0,
            on_flash: false,
        }
    }

    /// The interference that the block switch is there for.
    fn interference() -> Vec<Self> {
        let with = |name: &str, clients, share| Self {
            bulk_bytes: 128 << 10,
            bulk_write_share: share,
            ..Self::new(name.into(), 1, clients)
        };
        let closed = [
            with("L alone", 0, 0.0),
            with("L + 2 T reads", 2, 0.0),
            with("L + 2 T writes", 2, 1.0),
        ];
        let paced = closed.clone().map(|scenario| Self {
            name: format!("paced {}", scenario.name),
            is_paced: true,
            ..scenario
        });
        closed.into_iter().chain(paced).collect()
    }

    /// A figure of the artifact, as far as one core shows it.
    fn figure(name: &str) -> anyhow::Result<Vec<Self>> {
        let new = Self::new;
        Ok(match name {
            "2" => vec![
                new("fig2 1 L alone".into(), 1, 0),
                new("fig2 1 L + 1 T".into(), 1, 1),
                new("fig2 2 L + 1 T".into(), 2, 1),
                new("fig2 4 L + 1 T".into(), 4, 1),
            ],
            "3a" => [4usize, 8, 16, 32, 64, 128]
                .map(|kib| Self {
                    bulk_bytes: kib << 10,
                    ..new(format!("fig3a T {kib} KiB"), 1, 1)
                })
                .into(),
            "7" => [6usize, 12, 24]
                .map(|count| new(format!("fig7 {count} L + 6 T"), count, 6))
                .into(),
            "8" => [1usize, 2, 4, 8, 16, 32]
                .map(|depth| Self {
                    bulk_depths: vec![(depth, 6)],
                    ..new(format!("fig8 6 L + 6 T, T depth {depth}"), 6, 6)
                })
                .into(),
            "10" => [6usize, 12, 24]
                .map(|count| Self {
                    on_flash: true,
                    ..new(format!("fig10 {count} L on flash + 6 T"), count, 6)
                })
                .into(),
            "11" => [0usize, 25, 50, 75, 100]
                .map(|reads| Self {
                    bulk_write_share: 1.0 - reads as f64 / 100.0,
                    ..new(format!("fig11 6 L + 6 T, {reads} % reads"), 6, 6)
                })
                .into(),
            "13" => vec![Self {
                bulk_depths: [64, 32, 16, 8, 4, 2].map(|depth| (depth, 1)).into(),
                ..new("fig13 1 L + 6 T, T depths 64 to 2".into(), 1, 0)
            }],
            "all" => {
                let mut all = Vec::new();
                for figure in ["2", "3a", "7", "8", "11", "13"] {
                    all.extend(Self::figure(figure)?);
                }
                all
            }
            other => bail!(Failure::Usage(format!(
                "--figure {other} does not exist: choose 2, 3a, 7, 8, 10, 11, 13 or all; 9 needs several cores: `switchyard sim run \
                 switch-fig9`"
            ))),
        })
    }

    fn groups(&self, args: &CompareArgs, l_rate: f64, seed: u64) -> Vec<ClientGroup> {
        let time = Duration::from_secs_f64(args.seconds);
        let mut groups = vec![ClientGroup {
            case: Case {
                mode: Mode::Randread,
                bs: 4096,
                qd: if self.is_paced { PACED_DEPTH } else { 1 },
                conns: self.latency_clients,
                polls: false,
                write_share: 0.0,
                time,
                seed,
            },
            volume: usize::from(self.on_flash),
            cpu: Some(args.client_cpu),
            realtime: true,
            interval: self.is_paced.then(|| Duration::from_secs_f64(1.0 / l_rate)),
        }];
        for &(depth, clients) in self.bulk_depths.iter().filter(|(_, clients)| *clients > 0) {
            groups.push(ClientGroup {
                case: Case {
                    mode: Mode::Randrw,
                    bs: self.bulk_bytes,
                    qd: depth,
                    conns: clients,
                    polls: false,
                    write_share: self.bulk_write_share,
                    time,
                    seed: seed ^ 0xb01c ^ (depth as u64) << 16,
                },
                volume: 0,
                cpu: Some(args.client_cpu),
                realtime: false,
                interval: None,
            });
        }
        groups
    }
}

/// Figures of one run.
#[derive(Clone, Copy, Debug)]
struct Run {
    iops: f64,
    quantiles_us: [f64; 3],
    mib_s: f64,
    idle_cpu_percent: Option<f64>,
}

impl Run {
    fn new(groups: &[ClientGroup], outcomes: &[Outcome], idle_cpu_percent: Option<f64>) -> Self {
        let us = |quantile| outcomes[0].latency.value_at_quantile(quantile) as f64 / 1000.0;
        // Of the bulk clients, or of the only group.
        let first = usize::from(groups.len() > 1);
        let moved = groups.iter().zip(outcomes).skip(first);
        let bytes_a_second: f64 = moved
            .map(|(group, outcome)| outcome.iops() * group.case.bs as f64)
            .sum();
        Self {
            iops: outcomes[0].iops(),
            quantiles_us: [us(0.5), us(0.99), us(0.999)],
            mib_s: bytes_a_second / 1_048_576.0,
            idle_cpu_percent,
        }
    }
}

/// Scenarios by name, each with its groups for a round.
type Scenarios<'a> = Vec<(String, Box<dyn Fn(u64) -> Vec<ClientGroup> + 'a>)>;

/// `switchyard bench blockswitch`.
pub fn blockswitch(args: &BlockswitchArgs) -> anyhow::Result<()> {
    within("--l-rate", args.l_rate, L_RATE)?;
    let mut chosen = match &args.figure {
        Some(figure) => Scenario::figure(figure)?,
        None => Scenario::interference(),
    };
    retain_named("--scenario", &args.scenario, &mut chosen, |scenario| {
        scenario.name.clone()
    })?;
    let mut systems: Vec<System> = Policy::ALL
        .into_iter()
        .map(|policy| System::Ours(policy, Protocol::Nvme))
        .collect();
    systems.extend([
        System::Ours(Policy::Switchyard, Protocol::Nbd),
        System::Spdk,
        System::Nbdkit,
        System::QemuNbd,
    ]);
    if chosen.iter().any(|scenario| scenario.on_flash) {
        systems.retain(|system| matches!(system, System::Ours(..)));
    }
    retain_named("--system", &args.system, &mut systems, |system| system.name())?;
    let scenarios: Scenarios<'_> = chosen
        .iter()
        .map(|scenario| {
            let groups = move |seed| scenario.groups(&args.compare, args.l_rate, seed);
            (
                scenario.name.clone(),
                Box::new(groups) as Box<dyn Fn(u64) -> Vec<ClientGroup>>,
            )
        })
        .collect();
    let rows = compare(&args.compare, &systems, &scenarios)?;
    // What one machine's two processors cannot show: every figure, in the simulator.
    let simulated = match args.compare.report {
        Some(_) => switch_figures(SIMULATED_SEED, &bar(args.compare.json)),
        None => Vec::new(),
    };
    let title = "L beside T, target on one core";
    report::print(&args.compare, title, "T MiB/s", &rows, &simulated)
}

/// Keeps what `flag` names, or everything if it names nothing.
fn retain_named<T>(
    flag: &str,
    names: &[String],
    all: &mut Vec<T>,
    name_of: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let known: Vec<String> = all.iter().map(&name_of).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        let known = known.join(", ");
        bail!(Failure::Usage(format!(
            "{flag} {name} does not exist: choose {known}"
        )));
    }
    all.retain(|item| names.contains(&name_of(item)));
    Ok(())
}

/// `switchyard bench peers`.
pub fn peers(args: &PeersArgs) -> anyhow::Result<()> {
    let cases = [
        (Mode::Randread, 4 << 10, 1),
        (Mode::Randread, 4 << 10, 32),
        (Mode::Randwrite, 4 << 10, 1),
        (Mode::Randwrite, 4 << 10, 32),
        (Mode::Read, 128 << 10, 8),
        (Mode::Read, 128 << 10, 32),
        (Mode::Write, 128 << 10, 8),
        (Mode::Write, 128 << 10, 32),
    ];
    let compare_args = &args.compare;
    let scenarios: Scenarios<'_> = cases
        .into_iter()
        .map(|(mode, bs, qd)| {
            let case = move |seed| Case {
                mode,
                bs,
                qd,
                conns: 1,
                // One request at a time is what a program waits for; a deep queue is to show the server.
                polls: qd > 1,
                write_share: 0.0,
                time: Duration::from_secs_f64(compare_args.seconds),
                seed,
            };
            let groups = move |seed| {
                vec![ClientGroup {
                    case: case(seed),
                    volume: 0,
                    cpu: Some(compare_args.client_cpu),
                    realtime: false,
                    interval: None,
                }]
            };
            (
                case(0).to_string(),
                Box::new(groups) as Box<dyn Fn(u64) -> Vec<ClientGroup>>,
            )
        })
        .collect();
    let systems = [
        System::Ours(Policy::Switchyard, Protocol::Nvme),
        System::Ours(Policy::Switchyard, Protocol::Nbd),
        System::Spdk,
        System::Nbdkit,
        System::QemuNbd,
    ];
    let rows = compare(compare_args, &systems, &scenarios)?;
    report::print(
        compare_args,
        "one client, one connection, server on one core",
        "MiB/s",
        &rows,
        &[],
    )
}

fn compare(args: &CompareArgs, systems: &[System], scenarios: &Scenarios<'_>) -> anyhow::Result<Vec<Row>> {
    check(args)?;
    let mut there = Vec::new();
    for &system in systems {
        if system.is_there() {
            there.push(system);
        } else {
            eprintln!(
                "switchyard: left out, because it is not installed: {}",
                system.name()
            );
        }
    }
    let bar = bar(args.json);
    bar.set_length((args.rounds * there.len() * scenarios.len()) as u64);
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); there.len() * scenarios.len()];
    for round in 0..args.rounds {
        for (place, &system) in there.iter().enumerate() {
            let name = system.name();
            bar.set_message(format!("round {} of {}, {name}", round + 1, args.rounds));
            let results = visit(args, system, scenarios, round as u64, &bar).with_context(|| name.clone())?;
            for (index, run) in results.into_iter().enumerate() {
                runs[index * there.len() + place].push(run);
            }
        }
    }
    bar.finish_and_clear();
    let mut rows = Vec::new();
    for (index, (scenario, _)) in scenarios.iter().enumerate() {
        for (place, system) in there.iter().enumerate() {
            let runs = &runs[index * there.len() + place];
            let quantile = |at: usize| median(runs.iter().map(|run| run.quantiles_us[at]));
            let idle: Vec<f64> = runs.iter().filter_map(|run| run.idle_cpu_percent).collect();
            rows.push(Row {
                system: system.name(),
                scenario: scenario.clone(),
                iops: median(runs.iter().map(|run| run.iops)),
                p50_us: quantile(0),
                p99_us: quantile(1),
                p999_us: quantile(2),
                mib_s: median(runs.iter().map(|run| run.mib_s)),
                idle_cpu_percent: (!idle.is_empty()).then(|| median(idle)),
            });
        }
    }
    Ok(rows)
}

/// One round of one system.
fn visit(
    args: &CompareArgs,
    system: System,
    scenarios: &Scenarios<'_>,
    round: u64,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Run>> {
    let mut groups = scenarios.iter().flat_map(|(_, groups)| groups(round + 1));
    let flash = groups.any(|group| group.volume > 0);
    let server = Server::start(system, args.size.0, flash, args.server_cpu)?;
    let uris = core::iter::once(&server.uri).chain(&server.flash_uri);
    let targets = uris
        .map(|uri| Target::open(uri, None))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let fill = Case {
        mode: Mode::Write,
        bs: 128 << 10,
        qd: 16,
        conns: 1,
        polls: false,
        write_share: 1.0,
        time: Duration::ZERO,
        seed: round,
    };
    for target in &targets {
        load::fill(target, &fill, ProgressBar::hidden()).context("cannot fill its volume")?;
    }
    let mut idle = machine::idle_cpu_percent(server.pid(), Duration::from_secs(1));
    let warm_up = Duration::from_secs_f64((args.seconds / 5.0).min(0.5));
    let mut runs = Vec::new();
    for (name, groups) in scenarios {
        let groups = groups(round + 1);
        let outcomes = load::run_groups(&targets, &groups, warm_up, &ProgressBar::hidden())
            .with_context(|| name.clone())?;
        runs.push(Run::new(&groups, &outcomes, idle.take()));
        bar.inc(1);
    }
    Ok(runs)
}

pub fn check(args: &CompareArgs) -> anyhow::Result<()> {
    within("--rounds", args.rounds, ROUNDS)?;
    within("--seconds", args.seconds, SECONDS)?;
    if let Some(path) = &args.report {
        out::check_file(path)?;
    }
    if args.size.0 < 16 << 20 {
        bail!(Failure::Usage(format!(
            "--size takes at least 16MiB, not {}",
            args.size
        )));
    }
    let allowed = runtime::cpu::allowed();
    for cpu in [args.server_cpu, args.client_cpu] {
        if !allowed.contains(&cpu) {
            bail!(Failure::Usage(format!(
                "this process may not use processor {cpu}: choose one of {allowed:?}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_gives_all_systems_the_same_clients() {
        for (figure, least) in [
            ("2", 4),
            ("3a", 6),
            ("7", 3),
            ("8", 6),
            ("10", 3),
            ("11", 5),
            ("13", 1),
            ("all", 25),
        ] {
            let scenarios = Scenario::figure(figure).unwrap();
            assert!(scenarios.len() >= least);
            let names: std::collections::BTreeSet<_> = scenarios.iter().map(|s| s.name.clone()).collect();
            assert_eq!(names.len(), scenarios.len(), "names are different");
        }
        assert!(Scenario::figure("9").is_err());
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
    }
}
