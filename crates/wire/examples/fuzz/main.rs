//! Deterministic structure-aware fuzzing of the wire formats, without a nightly compiler.
//!
//! `cargo run --release -p switchyard-wire --example fuzz -- [--executions N] [--seed S] [--format F]`
//!
//! Every execution mutates a valid rack header, or a valid NBD or NVMe/TCP conversation, and checks what comes of it
//! (`engine/`). A failure panics with the seed of its execution; `--only SEED` runs that one again. `--format` 0, 1 or 2
//! runs rack headers, NBD or NVMe/TCP alone.
#![allow(
    clippy::disallowed_types,
    reason = "a tool measures its own speed; the engine has no clock"
)]

mod engine;

use std::process::ExitCode;
use std::time::Instant;

/// Executions between two lines of progress.
const PROGRESS_EXECUTIONS: u64 = 1_000_000;

fn main() -> ExitCode {
    let mut executions = 10_000_000;
    let mut seed = 1;
    let mut fuzzer = engine::Fuzzer::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
        match (name.as_str(), value) {
            ("--executions", Some(value)) => executions = value,
            ("--seed", Some(value)) => seed = value,
            ("--format", Some(value)) if value < 3 => fuzzer.focus = Some(value),
            ("--only", Some(value)) => {
                println!("{:?}", fuzzer.execute(value));
                return ExitCode::SUCCESS;
            }
            _ => {
                eprintln!("usage: fuzz [--executions N] [--seed S] [--format 0..2] [--only SEED]");
                return ExitCode::from(2);
            }
        }
    }
    let start = Instant::now();
    let mut done = 0;
    while done < executions {
        let step = PROGRESS_EXECUTIONS.min(executions - done);
        fuzzer.run(seed, done..done + step);
        done += step;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{done} executions, {:.0}/s: {:?}",
            done as f64 / seconds,
            fuzzer.tally
        );
    }
    ExitCode::SUCCESS
}
