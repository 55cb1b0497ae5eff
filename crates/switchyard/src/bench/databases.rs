//! `switchyard bench databases`: durable writes of SQLite, LevelDB and RocksDB, unmodified, by ext4 and by `switchyard run`, one
//! thread. Sides take turns within a round, each with a new database and, for ours, the area of the round before, which is
//! cleaned as it goes; medians over rounds. SQLite and LevelDB are driven by Python (`databases.py`), RocksDB by its `db_bench`.

use super::looped::Loop;
use super::redis::{print_raws, raws_json};
use super::rounds::{ROUNDS, median};
use super::store::{RAW_BYTES, Scratch, check_area, raw, scratch};
use crate::failure::{Failure, within};
use crate::machine;
use crate::size::Size;
use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const DRIVER: &str = include_str!("databases.py");
/// For one raw overwrite's figure.
const RAW_TIME: Duration = Duration::from_millis(400);

/// `switchyard bench databases`.
#[derive(Args)]
#[command(
    after_help = "Needs python3 for SQLite, python3-plyvel for LevelDB, db_bench (rocksdb-tools) for RocksDB, and leaves out \
    missing programs. The loop device needs root.\n\n\
    Example:\n  switchyard bench databases --dir /srv --rounds 7"
)]
pub struct DatabasesArgs {
    /// Directory on the file system to measure, for files that the command removes again
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "1000")]
    pub bytes: Size,
    /// Writes of each case
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub count: u64,
    /// Rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: usize,
    /// Size of Switchyard's area
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub area: Size,
    /// Do not measure on a loop device
    #[arg(long)]
    pub no_loop: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Program {
    Sqlite,
    Leveldb,
    Rocksdb,
}

impl Program {
    const ALL: [Self; 3] = [Self::Sqlite, Self::Leveldb, Self::Rocksdb];

    fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite, WAL, synchronous=FULL",
            Self::Leveldb => "LevelDB, sync",
            Self::Rocksdb => "RocksDB, sync",
        }
    }

    /// The program that runs it here, if any.
    fn executable(self) -> Option<&'static str> {
        match self {
            Self::Sqlite => python("sqlite3"),
            Self::Leveldb => python("plyvel"),
            Self::Rocksdb => runs(Command::new("db_bench").arg("--version")).then_some("db_bench"),
        }
    }

    /// Arguments for writing durably into a new database in `directory`.
    fn arguments(self, args: &DatabasesArgs, directory: &Path) -> Vec<String> {
        let place = directory.display();
        let (count, bytes) = (args.count, args.bytes.0);
        match self {
            Self::Sqlite | Self::Leveldb => {
                let name = if self == Self::Sqlite { "sqlite" } else { "leveldb" };
                let words = ["-c", DRIVER, name].map(str::to_owned);
                let more = [place.to_string(), count.to_string(), bytes.to_string()];
                words.into_iter().chain(more).collect()
            }
            Self::Rocksdb => rocksdb_arguments("fillrandom", true, directory, count, bytes),
        }
    }

    /// Mean and median in µs, of what it printed.
    fn parse(self, said: &str) -> Option<Times> {
        match self {
            Self::Sqlite | Self::Leveldb => {
                let (mean, median) = said.trim().split_once(' ')?;
                Some(Times {
                    mean_us: first_number(mean)?,
                    p50_us: first_number(median)?,
                })
            }
            Self::Rocksdb => rocksdb_times(said, "fillrandom"),
        }
    }
}

/// Arguments of `db_bench` for one of its benchmarks, with a database in `directory`.
pub(super) fn rocksdb_arguments(
    benchmark: &str,
    sync: bool,
    directory: &Path,
    count: u64,
    bytes: u64,
) -> Vec<String> {
    vec![
        format!("--benchmarks={benchmark}"),
        format!("--sync={}", u8::from(sync)),
        format!("--use_existing_db={}", u8::from(benchmark != "fillrandom")),
        "--histogram=1".into(),
        "--compression_type=none".into(),
        format!("--db={}/it", directory.display()),
        format!("--num={count}"),
        format!("--value_size={bytes}"),
    ]
}

/// What `db_bench` printed of a benchmark.
pub(super) fn rocksdb_times(said: &str, benchmark: &str) -> Option<Times> {
    let line = said.lines().find(|line| line.starts_with(benchmark))?;
    Some(Times {
        mean_us: first_number(line.split_once(" : ")?.1)?,
        p50_us: first_number(said.split_once("Percentiles: P50: ")?.1)?,
    })
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The Python that has this module: another one than the distribution's may come first.
pub(super) fn python(module: &str) -> Option<&'static str> {
    let has_it = |python: &&str| runs(Command::new(*python).args(["-c", &format!("import {module}")]));
    ["python3", "/usr/bin/python3"].into_iter().find(has_it)
}

pub(super) fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Of one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub mean_us: f64,
    pub p50_us: f64,
}

/// Medians of one program on one medium.
#[derive(Debug, Serialize)]
struct Row {
    medium: &'static str,
    program: Program,
    ext4_mean_us: f64,
    ext4_p50_us: f64,
    run_mean_us: f64,
    run_p50_us: f64,
}

/// Runs it.
pub fn run(args: &DatabasesArgs) -> anyhow::Result<()> {
    check_area(args.area)?;
    within("--rounds", args.rounds, ROUNDS)?;
    within("--count", args.count, 1..=10_000_000)?;
    let mut programs = Vec::new();
    let mut left_out = Vec::new();
    for program in Program::ALL {
        match program.executable() {
            Some(executable) => programs.push((program, executable)),
            None => left_out.push(program.name()),
        }
    }
    if programs.is_empty() {
        bail!(Failure::Usage(
            "neither python3 nor db_bench is installed: install one of them".into()
        ));
    }
    for name in left_out {
        eprintln!("left out, because it is not installed: {name}");
    }
    let looped = if args.no_loop { None } else { Loop::in_memory() };
    let mut media = vec![("disk", args.dir.clone())];
    media.extend(looped.iter().map(|it| ("loop over memory", it.directory.clone())));
    let (mut rows, mut raws) = (Vec::new(), Vec::new());
    for (medium, dir) in &media {
        let area = scratch(dir, "databases.area");
        let mut raw_us = Vec::new();
        // By program: ext4's rounds, and ours.
        let mut times = vec![[Vec::new(), Vec::new()]; programs.len()];
        for round in 0..args.rounds {
            raw_us.push(raw(dir, 1, RAW_BYTES, RAW_TIME)?.p50_us);
            for (&program, times) in programs.iter().zip(&mut times) {
                for side in [round % 2, 1 - round % 2] {
                    times[side].push(case(args, program, dir, (side == 1).then_some(&area))?);
                }
            }
        }
        raws.push((*medium, median(raw_us)));
        let middle = |all: &[Times], of: fn(&Times) -> f64| median(all.iter().map(of));
        rows.extend(
            programs
                .iter()
                .zip(&times)
                .map(|(&(program, _), [ext4, ours])| Row {
                    medium,
                    program,
                    ext4_mean_us: middle(ext4, |it| it.mean_us),
                    ext4_p50_us: middle(ext4, |it| it.p50_us),
                    run_mean_us: middle(ours, |it| it.mean_us),
                    run_p50_us: middle(ours, |it| it.p50_us),
                }),
        );
    }
    report(args, &raws, &rows)
}

/// One database, by ext4 or, with an area, by `switchyard run`.
fn case(
    args: &DatabasesArgs,
    (program, executable): (Program, &str),
    dir: &Path,
    area: Option<&Scratch>,
) -> anyhow::Result<Times> {
    let directory = scratch(dir, "databases").0.clone();
    fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut command = match area {
        None => Command::new(executable),
        Some(area) => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["run", "--quiet", "--size", &args.area.0.to_string(), "--area"]);
            command.arg(&area.0).arg("--").arg(executable);
            command
        }
    };
    let output = command.args(program.arguments(args, &directory)).output();
    fs::remove_dir_all(&directory)?;
    let output = output.with_context(|| format!("{executable} does not run"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{} failed: {}",
        program.name(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let times = program.parse(&said);
    times.with_context(|| format!("{} did not say how long it took: {said}", program.name()))
}

fn report(args: &DatabasesArgs, raws: &[(&str, f64)], rows: &[Row]) -> anyhow::Result<()> {
    let about = machine::about();
    if args.json {
        let value = serde_json::json!({
            "machine": about, "bytes": args.bytes.0, "count": args.count, "rounds": args.rounds,
            "raw_overwrite_p50_us": raws_json(raws), "rows": rows,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "{} durable writes of {} bytes; medians of {} interleaved rounds",
        args.count, args.bytes.0, args.rounds
    );
    print_raws(&about, raws);
    println!(
        "\n{:<17} {:<30} {:>9} {:>9} {:>9} {:>9} {:>6}",
        "medium", "program", "ext4 µs", "p50 µs", "run µs", "p50 µs", "× ext4"
    );
    for row in rows {
        println!(
            "{:<17} {:<30} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>6.2}",
            row.medium,
            row.program.name(),
            row.ext4_mean_us,
            row.ext4_p50_us,
            row.run_mean_us,
            row.run_p50_us,
            row.run_mean_us / row.ext4_mean_us
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_print_is_read() {
        let times = |mean_us, p50_us| Some(Times { mean_us, p50_us });
        assert_eq!(Program::Sqlite.parse("159.25 143.5\n"), times(159.25, 143.5));
        let said = "fillrandom   :     140.250 micros/op 7130 ops/sec 0.421 seconds 3000 operations;    6.9 MB/s\n\
            Microseconds per write:\nCount: 3000 Average: 140.2  StdDev: 3.5\n\
            Min: 90  Median: 130.1  Max: 900\nPercentiles: P50: 130.12 P75: 150.00 P99: 300.00\n";
        assert_eq!(Program::Rocksdb.parse(said), times(140.25, 130.12));
        assert_eq!(Program::Rocksdb.parse("Segmentation fault"), None);
    }
}
