//! `switchyard bench store --reads`: point reads, ranges, and reads beside durable writes, of more data than memory holds.
//!
//! Each engine is a process of its own, on files of its own. A control group bounds its memory together with the page cache of
//! what it reads, so each engine has the same memory, whether its cache is its own or the system's. Its files are taken out of
//! the page cache before it starts. Engines take turns within a round. Every value that is read is checked.

pub mod args;
mod cage;
mod drive;
mod ours;

use super::rounds::median;
use super::store::StoreArgs;
use crate::failure::{Failure, within};
use crate::machine;
use anyhow::{Context, bail};
use args::CacheSize;
use cage::{Cage, forget};
use drive::{Distribution, Plan, Row};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// Our name in tables.
const OURS: &str = "switchyard";
/// Bytes of a key.
const KEY_BYTES: u64 = 16;
/// A cache that holds all the data, in multiples of them: no engine stores them in more.
const ALL: u64 = 4;

/// Medians of all rounds for one case.
#[derive(Serialize)]
struct Case {
    bytes: u64,
    cache_bytes: u64,
    distribution: Distribution,
    #[serde(flatten)]
    row: Row,
    /// Of our rate to this one's: below 1 we lose.
    ours: f64,
    /// The most memory that the process took, with its page cache.
    peak_bytes: u64,
}

/// A round of one engine that did not end well.
#[derive(Serialize)]
struct Loss {
    system: String,
    bytes: u64,
    distribution: Distribution,
    why: String,
}

/// What an engine's process leaves.
#[derive(Deserialize)]
struct Ran {
    rows: Vec<Row>,
    peak_bytes: u64,
}

/// The work of one engine's process.
fn run_plan(text: &str) -> anyhow::Result<()> {
    let plan = Plan::enter(text)?;
    let engine = ours::Ours::open(&plan)?;
    drive::run(&plan, &engine)?;
    drop(engine);
    if plan.load {
        drive::sync_files(&plan.dir)?;
    }
    Ok(())
}

/// Runs it.
pub fn run(args: &StoreArgs) -> anyhow::Result<()> {
    let reads = &args.reading;
    if let Some(text) = &reads.plan {
        return run_plan(text);
    }
    within("--keys", reads.keys, 1000..=1_000_000_000)?;
    within("--warm", reads.warm, 0.0..=600.0)?;
    if args.bytes.iter().any(|bytes| !(16..=1 << 16).contains(&bytes.0)) {
        return Err(Failure::Usage("--bytes takes 16 to 64KiB with --reads".into()).into());
    }
    let mut bench = Bench {
        args,
        cases: Vec::new(),
        losses: Vec::new(),
    };
    for bytes in &args.bytes {
        bench.size(bytes.0)?;
    }
    bench.print()
}

struct Bench<'a> {
    args: &'a StoreArgs,
    cases: Vec<Case>,
    losses: Vec<Loss>,
}

impl Bench<'_> {
    /// Switchyard, and the others if their program is there.
    fn systems(&self) -> Vec<String> {
        let engines = &self.args.reading.engines;
        let peers = engines.iter().filter(|_| self.args.peers.is_some()).cloned();
        [OURS.to_owned()].into_iter().chain(peers).collect()
    }

    /// All cases of values of `bytes`.
    fn size(&mut self, bytes: u64) -> anyhow::Result<()> {
        let name = format!("switchyard-bench-reads-{}", std::process::id());
        let scratch = self.args.dir.join(name);
        let base = self.args.reading.keep.as_ref().unwrap_or(&scratch);
        let plans: Vec<Plan> = self
            .systems()
            .iter()
            .map(|system| self.plan(system, base, bytes))
            .collect();
        let result = self.rounds(bytes, &plans);
        if self.args.reading.keep.is_none() && scratch.exists() {
            std::fs::remove_dir_all(&scratch)?;
        }
        result
    }

    fn plan(&self, system: &str, base: &Path, bytes: u64) -> Plan {
        let reads = &self.args.reading;
        let data_bytes = reads.keys * (KEY_BYTES + bytes);
        let cache_bytes = match reads.cache {
            CacheSize::Percent(percent) => data_bytes / 100 * percent,
            CacheSize::Bytes(size) => size.0,
            CacheSize::All => data_bytes * ALL,
        };
        Plan {
            system: system.into(),
            dir: base.join(format!("{system}-{}-{bytes}", reads.keys)),
            keys: reads.keys,
            bytes: bytes as usize,
            cache_bytes,
            memory_bytes: cache_bytes + reads.beside.0,
            load: false,
            distribution: Distribution::Uniform,
            threads: self.args.threads.clone(),
            works: reads.work.clone(),
            seconds: self.args.seconds,
            warm_seconds: reads.warm,
            seed: 1,
            cage: None,
        }
    }

    fn rounds(&mut self, bytes: u64, plans: &[Plan]) -> anyhow::Result<()> {
        for plan in plans {
            self.load(plan)?;
        }
        for &distribution in &self.args.reading.distribution {
            let mut all: Vec<Vec<Ran>> = plans.iter().map(|_| Vec::new()).collect();
            for round in 0..self.args.rounds {
                for (plan, all) in plans.iter().zip(&mut all) {
                    let plan = Plan {
                        distribution,
                        seed: round as u64 + 1,
                        ..plan.clone()
                    };
                    match self.spawn(&plan) {
                        Ok(ran) => all.push(ran),
                        Err(error) => self.losses.push(Loss {
                            system: plan.system,
                            bytes,
                            distribution,
                            why: format!("{error:#}"),
                        }),
                    }
                }
            }
            self.judge(bytes, distribution, plans, &all);
        }
        Ok(())
    }

    /// Loads the data, unless they are there. An engine that does not come to its end leaves nothing.
    fn load(&self, plan: &Plan) -> anyhow::Result<()> {
        let mark = plan.dir.join("loaded");
        if mark.exists() {
            return Ok(());
        }
        if plan.dir.exists() {
            bail!("{} holds something else", plan.dir.display());
        }
        std::fs::create_dir_all(&plan.dir)?;
        eprintln!("loading {} of {}", plan.keys, plan.system);
        let load = Plan {
            load: true,
            // The same for everybody, and no part of what is measured.
            cache_bytes: plan.cache_bytes.max(256 << 20),
            ..plan.clone()
        };
        let mut command = self.command(&load)?;
        let status = command.status().with_context(|| plan.system.clone())?;
        if !status.success() {
            let _ = std::fs::remove_dir_all(&plan.dir);
            bail!("{} does not load the data: {status}", plan.system);
        }
        Ok(std::fs::write(mark, "")?)
    }

    fn command(&self, plan: &Plan) -> anyhow::Result<Command> {
        let text = serde_json::to_string(plan)?;
        let mut command;
        if plan.system == OURS {
            command = Command::new(std::env::current_exe()?);
            command.args(["bench", "store", "--reads", "--plan", &text]);
        } else {
            command = Command::new(self.args.peers.as_ref().context("a peer has its program")?);
            command.args(["--plan", &text]);
        }
        Ok(command)
    }

    /// Runs one engine on loaded data.
    fn spawn(&self, plan: &Plan) -> anyhow::Result<Ran> {
        forget(&plan.dir)?;
        let reads = &self.args.reading;
        let bound = match reads.unbounded.contains(&plan.system) {
            true => i64::MAX as u64 / 4096 * 4096,
            false => plan.memory_bytes,
        };
        let cage = Cage::new(bound)?;
        let plan = Plan {
            cage: Some(cage.door()),
            ..plan.clone()
        };
        let mut command = self.command(&plan)?;
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (mut rows, mut errors) = (String::new(), String::new());
        child
            .stdout
            .take()
            .context("it is piped")?
            .read_to_string(&mut rows)?;
        child
            .stderr
            .take()
            .context("it is piped")?
            .read_to_string(&mut errors)?;
        let status = child.wait()?;
        let peak_bytes = cage.peak_bytes().unwrap_or(0);
        if !status.success() {
            bail!("{status}: {}", errors.trim());
        }
        let parse = |line| serde_json::from_str(line).context("a line of the engine's process is not a row");
        let rows = rows.lines().map(parse).collect::<anyhow::Result<_>>()?;
        Ok(Ran { rows, peak_bytes })
    }

    /// Adds the medians of all rounds.
    fn judge(&mut self, bytes: u64, distribution: Distribution, plans: &[Plan], all: &[Vec<Ran>]) {
        let first = self.cases.len();
        for (plan, rans) in plans.iter().zip(all) {
            let Some(ran) = rans.first() else {
                continue;
            };
            for (nth, row) in ran.rows.iter().enumerate() {
                let middle = |of: fn(&Row) -> f64| median(rans.iter().map(|ran| of(&ran.rows[nth])));
                let row = Row {
                    per_second: middle(|row| row.per_second),
                    p50_us: middle(|row| row.p50_us),
                    p99_us: middle(|row| row.p99_us),
                    ..row.clone()
                };
                self.cases.push(Case {
                    bytes,
                    cache_bytes: plan.cache_bytes,
                    distribution,
                    row,
                    ours: 0.0,
                    peak_bytes: rans.iter().map(|ran| ran.peak_bytes).max().unwrap_or(0),
                });
            }
        }
        let cases = &mut self.cases[first..];
        cases.sort_by_key(|case| (case.row.work as usize, case.row.threads));
        let is_ours = |case: &&Case| case.row.system == OURS;
        let ours: Vec<_> = cases
            .iter()
            .filter(is_ours)
            .map(|case| case.row.clone())
            .collect();
        for case in cases {
            let same = ours
                .iter()
                .find(|row| row.work == case.row.work && row.threads == case.row.threads);
            case.ours = same.map_or(f64::NAN, |row| row.per_second / case.row.per_second);
        }
    }

    fn print(&self) -> anyhow::Result<()> {
        let (args, about) = (self.args, machine::about());
        if args.json {
            let value = serde_json::json!({
                "machine": about, "keys": args.reading.keys, "rounds": args.rounds, "seconds": args.seconds,
                "beside_bytes": args.reading.beside.0, "rows": self.cases, "losses": self.losses,
            });
            println!("{}", serde_json::to_string_pretty(&value)?);
            return Ok(());
        }
        println!(
            "{} keys of 16 bytes; medians of {} interleaved rounds of {} s; memory: the cache and {} beside",
            args.reading.keys, args.rounds, args.seconds, args.reading.beside
        );
        println!(
            "{}, Linux {}, commit {}",
            about.processor, about.kernel, about.commit
        );
        let mut last = None;
        for case in &self.cases {
            let row = &case.row;
            let head = (
                case.bytes,
                format!("{:?}", case.distribution),
                row.work,
                row.threads,
            );
            if last.as_ref() != Some(&head) {
                println!(
                    "\n{:?}, {} threads, values of {} bytes, {}, cache of {} MiB",
                    row.work,
                    row.threads,
                    case.bytes,
                    head.1.to_lowercase(),
                    case.cache_bytes >> 20
                );
                println!(
                    "{:<12} {:>11} {:>9} {:>9} {:>11} {:>11}",
                    "system", "per second", "p50 µs", "p99 µs", "memory MiB", "ours/its"
                );
                last = Some(head);
            }
            println!(
                "{:<12} {:>11.0} {:>9.1} {:>9.1} {:>11} {:>11.2}",
                row.system,
                row.per_second,
                row.p50_us,
                row.p99_us,
                case.peak_bytes >> 20,
                case.ours
            );
        }
        for loss in &self.losses {
            println!(
                "\n{}, {} bytes, {:?}: no result: {}",
                loss.system, loss.bytes, loss.distribution, loss.why
            );
        }
        Ok(())
    }
}
