//! `switchyard bench fs`: our mount beside the kernel's file systems on the same kind of device, used by the same programs.
//!
//! A case is (side, task), in a new directory. Sides take turns within a round, in another order in each, and end what they do in
//! the background before the next side's turn; the report has medians over rounds. Clients are processes of their own ([`work`]) or real programs ([`task`]). All sides do the same calls, with `fsync`
//! wherever data are to be kept: in mode `sync` our server has told the kernel that it need not ask for that.
//!
//! Processor time is of two kinds. A client's is its process's. All else that the machine's processors did meanwhile is the file
//! system's: our server's, the kernel's threads', the loop device's. So nothing else may run.

mod args;
mod report;
mod side;
mod task;
mod work;
mod workload;

use super::rounds::{ROUNDS, SECONDS, bar, median};
use super::store::{RAW_BYTES, raw};
use crate::failure::{Failure, within};
use crate::machine;
use crate::size::Size;
use anyhow::{Context, bail};
use args::Medium;
use report::{MediumRows, Row};
use side::{Side, mode_name, sides};
use std::time::Duration;
use task::{Figures, Task, Tools};

pub use args::FilesArgs;
pub use work::{ClientArgs, run as be_client};

/// For one raw overwrite's figure: it tells whether the disk was busy with something else.
const RAW_TIME: Duration = Duration::from_millis(200);
/// Bytes of each file system.
const SIZE: std::ops::RangeInclusive<u64> = 512 << 20..=1 << 40;

/// Runs it.
pub fn run(args: &FilesArgs) -> anyhow::Result<()> {
    within("--rounds", args.rounds, ROUNDS)?;
    within("--seconds", args.seconds, SECONDS)?;
    within("--count", args.count, 1..=10_000_000)?;
    if !SIZE.contains(&args.size.0) {
        bail!(Failure::Usage(format!(
            "--size takes {} to {}, not {}",
            Size(*SIZE.start()),
            Size(*SIZE.end()),
            args.size
        )));
    }
    let (tools, mut left_out) = Tools::find()?;
    let tasks = tasks(args, &tools)?;
    let mut media = Vec::new();
    for &medium in &args.media {
        let (sides, missing) = sides(args, medium)?;
        left_out.extend(
            missing
                .into_iter()
                .map(|why| format!("on {}: {why}", medium.name())),
        );
        media.push(measure(args, medium, &sides, &tasks, &tools)?);
    }
    report::tell(args, &machine::about(), &media, &left_out)
}

/// What is to be done, and can be.
fn tasks(args: &FilesArgs, tools: &Tools) -> anyhow::Result<Vec<Task>> {
    let all = Task::all();
    if let Some(unknown) = args
        .only
        .iter()
        .find(|name| !all.iter().any(|task| task.name() == **name))
    {
        let names: Vec<_> = all.iter().map(|task| task.name()).collect();
        bail!(Failure::Usage(format!(
            "--only: `{unknown}` is none of {}",
            names.join(", ")
        )));
    }
    let is_asked = |task: &Task| args.only.is_empty() || args.only.contains(&task.name());
    Ok(all
        .into_iter()
        .filter(|task| is_asked(task) && tools.can(*task))
        .collect())
}

/// All rounds on one medium.
fn measure(
    args: &FilesArgs,
    medium: Medium,
    sides: &[Side],
    tasks: &[Task],
    tools: &Tools,
) -> anyhow::Result<MediumRows> {
    let bar = bar(args.json);
    let mut figures = vec![vec![Vec::new(); sides.len()]; tasks.len()];
    let mut raws = Vec::new();
    for round in 0..args.rounds {
        if medium == Medium::Ssd {
            raws.push(raw(&args.dir, 1, RAW_BYTES, RAW_TIME)?.p50_us);
        }
        for turn in 0..sides.len() {
            let place = (turn + round) % sides.len();
            let side = &sides[place];
            for (number, task) in tasks.iter().enumerate() {
                let done = (round * sides.len() + turn) * tasks.len() + number;
                bar.set_position((100 * done / (args.rounds * sides.len() * tasks.len())) as u64);
                bar.set_message(format!("{}, {}", side.name, task.name()));
                let case = task.run(args, tools, side, round as u64);
                let case = case.with_context(|| format!("{}, {}", side.name, task.name()))?;
                figures[number][place].push(case);
            }
            side.rest()?;
        }
    }
    bar.finish_and_clear();
    let rows = |(task, of_sides): (&Task, &Vec<Vec<Figures>>)| {
        let row = |(side, rounds): (&Side, &Vec<Figures>)| Row {
            task: *task,
            side: side.name.clone(),
            figures: middle(rounds),
        };
        sides.iter().zip(of_sides).map(row).collect::<Vec<_>>()
    };
    Ok(MediumRows {
        medium,
        raw_overwrite_us: (!raws.is_empty()).then(|| median(raws)),
        mode: mode_name(medium.mode(args.mode)),
        sides: sides
            .iter()
            .map(|side| (side.name.clone(), side.about.clone()))
            .collect(),
        rows: tasks.iter().zip(&figures).flat_map(rows).collect(),
    })
}

/// Medians of rounds.
fn middle(rounds: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure));
    Figures {
        count: median(rounds.iter().map(|round| round.count as f64)) as u64,
        mean_us: of(|round| round.mean_us),
        p50_us: of(|round| round.p50_us),
        p99_us: of(|round| round.p99_us),
        client_cpu_us: of(|round| round.client_cpu_us),
        rest_cpu_us: of(|round| round.rest_cpu_us),
    }
}
