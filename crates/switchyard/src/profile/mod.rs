//! `switchyard profile`: where the time of an I/O goes.

mod diff;
mod html;
mod matrix;
mod own;
mod saved;
mod text;

use crate::failure::Failure;
use crate::launch;
use crate::out;
use anyhow::bail;
use clap::{Args, Subcommand};
use profile::devices::Devices;
use profile::session::{self, Options, Target};
use profile::summary::Summary;
use saved::{save, to_json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  switchyard profile -- fio --name=t --filename=/srv/f --size=1G --rw=randread --direct=1 --runtime=5
  switchyard profile --pid 4711 --seconds 10 --device vda
  switchyard profile --save before.json --html page.html -- my-program
  switchyard profile diff before.json after.json
  switchyard profile --target http://127.0.0.1:9180 --seconds 5
  switchyard profile matrix

Needs root: it reads the kernel's static tracepoints. What the probes cost is measured first and taken out of
every figure.";

/// `switchyard profile`.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ProfileArgs {
    #[command(subcommand)]
    command: Option<ProfileCommand>,
    /// Profile only the I/O of this block device, or of this file's block device
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
    /// Profile a running process, and its children
    #[arg(long, value_name = "PID", conflicts_with = "words")]
    pid: Option<u32>,
    /// Profile the requests of a running rack or target instead, by its control address, such as http://127.0.0.1:9180
    #[arg(long, value_name = "URL", conflicts_with_all = ["words", "pid", "device", "stacks"], requires = "seconds",
        value_parser = crate::control::address::check)]
    target: Option<String>,
    /// Seconds to profile; without a command or process, profile every process
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    seconds: Option<f64>,
    /// Print the profile as JSON; the command's own output goes to standard error
    #[arg(long)]
    json: bool,
    /// Write the profile as JSON, for `profile diff`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a page with charts, a heat map, and a flame graph of the program's kernel stacks
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Sample kernel stacks for the shares of functions (--html includes it)
    #[arg(long)]
    stacks: bool,
    /// The program to run and profile, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    words: Vec<OsString>,
}

#[derive(Subcommand)]
enum ProfileCommand {
    /// Compare two saved profiles
    Diff(diff::DiffArgs),
    /// Measure the share of software in an I/O, for file systems, sizes and interfaces
    Matrix(matrix::MatrixArgs),
}

/// Carries `switchyard profile` out.
pub fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(ProfileCommand::Diff(args)) => return diff::run(args),
        Some(ProfileCommand::Matrix(args)) => return matrix::run(args),
        None => {}
    }
    let limit = match args.seconds {
        Some(seconds) if !(seconds > 0.0 && seconds < 1e6) => {
            bail!(Failure::Usage(format!(
                "--seconds takes a number above 0 and below 1,000,000, not {seconds}"
            )));
        }
        seconds => seconds.map(Duration::from_secs_f64),
    };
    for path in args.save.iter().chain(&args.html) {
        out::check_file(path)?;
    }
    if let (Some(control), Some(limit)) = (&args.target, limit) {
        return tell(args, &own::watch(control, limit)?);
    }
    let target = match (&args.words[..], args.pid) {
        ([], Some(process)) => Target::Process(process),
        ([], None) if args.seconds.is_some() => Target::System,
        ([], None) => {
            bail!(Failure::Usage(
                "name the work to profile: `-- COMMAND …`, `--pid PID`, or `--seconds N` for every process"
                    .to_string(),
            ));
        }
        (words, _) => Target::Command(words.to_vec()),
    };
    let named = match &target {
        Target::Command(words) => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        }
        Target::Process(process) => format!("process {process}"),
        Target::System => "all processes".to_string(),
    };
    let device = match &args.device {
        Some(path) => Some(Devices::read().of_path(path).map_err(Failure::Usage)?),
        None => None,
    };
    let options = Options {
        target,
        device,
        limit,
        stacks: args.stacks || args.html.is_some(),
        quiet_output: args.json,
    };
    let stop = Arc::new(AtomicBool::new(false));
    // A second Ctrl-C is the program's, which gets every one of them.
    launch::set_at_stop(&stop);
    let found = session::run(&options, &stop, |_| {})?;
    tell(args, &Summary::new(&found, named)?)?;
    if let Some(status) = found.status
        && !status.success()
        && !stop.load(Ordering::Relaxed)
    {
        bail!("the program ended with {status}");
    }
    Ok(())
}

/// Prints and writes a profile as it is asked for.
fn tell(args: &ProfileArgs, summary: &Summary) -> anyhow::Result<()> {
    // First, as it is all that remains where the files cannot be written.
    if args.json {
        println!("{}", to_json(summary));
    } else {
        print!("{}", text::render(summary));
    }
    let saved = args.save.as_ref().map(|path| save(path, summary));
    let drawn = args.html.as_ref();
    let drawn = drawn.map(|path| out::write_file(path, &html::render(summary)));
    saved.unwrap_or(Ok(())).and(drawn.unwrap_or(Ok(())))
}
