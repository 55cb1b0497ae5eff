//! Deterministic structure-aware fuzzing of the wire formats, without a nightly compiler.
//!
//! `cargo run --release -p switchyard-wire --example fuzz -- [--executions N] [--seed S]`
//!
//! Every execution mutates a valid rack header or a valid NBD conversation and checks what comes of it against an
//! independent model (`engine/`). A failure panics with the seed of its execution; `--only SEED` runs that one again.
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
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
        match (name.as_str(), value) {
            ("--executions", Some(value)) => executions = value,
            ("--seed", Some(value)) => seed = value,
            ("--only", Some(value)) => {
                println!("{:?}", engine::Fuzzer::default().execute(value));
                return ExitCode::SUCCESS;
            }
            _ => {
                eprintln!("usage: fuzz [--executions N] [--seed S] [--only SEED]");
                return ExitCode::from(2);
            }
        }
    }
    let start = Instant::now();
    let mut fuzzer = engine::Fuzzer::default();
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
