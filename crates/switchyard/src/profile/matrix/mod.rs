//! `switchyard profile matrix`: how much of an I/O's time is software, for file systems, sizes and interfaces: the
//! question of the poster "Quantifying the Overheads of the Modern Linux I/O Stack", asked of this machine's kernel and of
//! Switchyard's own target on the same device.

mod cell;
mod ground;
mod measure;
mod page;

use crate::failure::Failure;
use crate::launch;
use crate::out;
use crate::size::Size;
use anyhow::{Context, bail};
use cell::{Cell, Engine, Found, OWN, SYSTEMS};
use clap::Args;
use ground::Ground;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{BufRead, IsTerminal};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// `switchyard profile matrix`.
#[derive(Args)]
#[command(
    after_help = "Needs root and fio, and mkfs.ext4, mkfs.xfs and mkfs.btrfs for their rows. DIR/matrix.json keeps \
    measured cells: a run that was cut continues there.\n\n\
    Examples:\n  switchyard profile matrix\n  switchyard profile matrix --systems ext4,switchyard --sizes 4KiB,1MiB\n  \
    switchyard profile matrix --device /dev/nvme1n1     destroys its data, after asking"
)]
pub struct MatrixArgs {
    /// Directory of matrix.html and matrix.json
    #[arg(long, value_name = "DIR", default_value = "matrix")]
    out: PathBuf,
    /// Systems to put on the device, one after the other
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = SYSTEMS.map(str::to_owned))]
    systems: Vec<String>,
    /// Sizes of a request
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values_t = SIZES.map(Size))]
    sizes: Vec<Size>,
    /// Longest time of one cell's load, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, allow_negative_numbers = true)]
    seconds: f64,
    /// Measure on this block device instead of a loop device in DIR: DESTROYS its data
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
    /// Destroy the data on --device without asking
    #[arg(long)]
    yes: bool,
    /// Measure again what an earlier run measured
    #[arg(long)]
    again: bool,
    /// Print the cells as JSON
    #[arg(long)]
    json: bool,
}

/// The poster's sizes (§III).
const SIZES: [u64; 5] = [4 << 10, 64 << 10, 1 << 20, 10 << 20, 100 << 20];
/// A request of NBD is at most this long (NBD protocol, "Size constraints").
const NBD_BYTES_MAX: u64 = 32 << 20;

fn cells(args: &MatrixArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for system in &args.systems {
        let engines = match system.as_str() {
            OWN => &[Engine::Nbd][..],
            _ => &[Engine::Direct, Engine::Uring, Engine::Buffered],
        };
        let has_files = system != OWN && system != "raw";
        for is_preallocated in [true, false] {
            if !is_preallocated && !has_files {
                continue;
            }
            let each = [false, true].into_iter().flat_map(|is_write| {
                let sizes = args.sizes.iter().map(move |size| (is_write, size.0));
                sizes.flat_map(|(is_write, bytes)| {
                    engines.iter().map(move |engine| (is_write, bytes, *engine))
                })
            });
            cells.extend(each.map(|(is_write, bytes, engine)| Cell {
                system: system.clone(),
                engine,
                is_write,
                is_preallocated: is_preallocated && has_files,
                bytes,
            }));
        }
    }
    cells.retain(|cell| cell.engine != Engine::Nbd || cell.bytes <= NBD_BYTES_MAX);
    cells
}

/// Carries it out.
pub fn run(args: &MatrixArgs) -> anyhow::Result<()> {
    check(args)?;
    out::make_dir(&args.out)?;
    let (state, page) = (args.out.join("matrix.json"), args.out.join("matrix.html"));
    for path in [&state, &page] {
        out::check_file(path)?;
    }
    let begin = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    // What was made on the device is undone in any case.
    launch::set_at_stop(&stop);
    let lock = File::open(&args.out)?;
    if lock.try_lock().is_err() {
        bail!(Failure::InUse(format!(
            "{} is in use by another matrix: wait for its end, or name another --out",
            args.out.display()
        )));
    }
    let mut ground = Ground::new(&args.out, args.device.as_deref())?;
    let mut found = resume(&state, args.again, &ground.about)?;
    let before_s = found.seconds;
    let wanted = cells(args);
    let left: Vec<Cell> = wanted
        .iter()
        .filter(|cell| !found.outcomes.iter().any(|outcome| outcome.cell == **cell))
        .cloned()
        .collect();
    found.refused.clear();
    let bar = progress(wanted.len(), wanted.len() - left.len());
    for cell in left {
        bar.set_message(cell.name());
        let measured = measure::cell(&mut ground, &cell, args.seconds, &stop);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match measured {
            Ok(outcome) => found.outcomes.push(outcome),
            Err(error) => found.refused.push((cell, format!("{error:#}"))),
        }
        found.seconds = before_s + begin.elapsed().as_secs_f64();
        keep(&state, &found)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(ground);
    out::write_file(&page, &page::render(&found))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        print!("{}", page::text(&found));
        println!(
            "\n{} cells in {:.0} s: {}",
            found.outcomes.len(),
            found.seconds,
            page.display()
        );
    }
    end(&found, &wanted, stop.load(Ordering::Relaxed))
}

/// A run that was stopped goes on another time; one that found nothing has failed.
fn end(found: &Found, wanted: &[Cell], is_stopped: bool) -> anyhow::Result<()> {
    if is_stopped {
        let measured = found.outcomes.iter().map(|outcome| &outcome.cell);
        eprintln!(
            "switchyard: stopped with {} of {} cells; the same command continues",
            measured.filter(|cell| wanted.contains(cell)).count(),
            wanted.len()
        );
    } else if found.outcomes.is_empty() {
        let why = found
            .refused
            .first()
            .map_or("nothing was asked for", |(_, why)| why.as_str());
        bail!("no cell could be measured: {why}");
    }
    Ok(())
}

fn check(args: &MatrixArgs) -> anyhow::Result<()> {
    if let Some(unknown) = args.systems.iter().find(|name| !SYSTEMS.contains(&name.as_str())) {
        bail!(Failure::Usage(format!(
            "--systems {unknown} does not exist: choose from {}",
            SYSTEMS.join(", ")
        )));
    }
    let is_good = |size: &Size| size.0.is_multiple_of(4096) && (4096..=ground::FILE_BYTES).contains(&size.0);
    if let Some(bad) = args.sizes.iter().find(|size| !is_good(size)) {
        bail!(Failure::Usage(format!(
            "--sizes takes multiples of 4 KiB up to {}, not {bad}",
            Size(ground::FILE_BYTES)
        )));
    }
    if !(args.seconds > 0.0 && args.seconds < 1e6) {
        bail!(Failure::Usage(format!(
            "--seconds takes a number above 0, not {}",
            args.seconds
        )));
    }
    let Some(device) = &args.device else {
        return Ok(());
    };
    let found = std::fs::metadata(device)
        .map_err(|error| Failure::Usage(format!("{}: {error}", device.display())))?;
    if !found.file_type().is_block_device() {
        bail!(Failure::Usage(format!(
            "{}: not a block device",
            device.display()
        )));
    }
    if args.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        bail!(Failure::Usage(format!(
            "this destroys everything on {}, and there is no terminal to ask at: add --yes if you mean it",
            device.display()
        )));
    }
    eprint!(
        "Everything on {} will be destroyed. Type its name to go on: ",
        device.display()
    );
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match Path::new(answer.trim()) == device {
        true => Ok(()),
        false => bail!(Failure::Usage(
            "nothing was done, because you did not confirm".to_string()
        )),
    }
}

/// Cells that an earlier run on the same ground measured.
fn resume(state: &Path, again: bool, ground: &str) -> anyhow::Result<Found> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let fresh = Found {
        kernel: kernel.trim().to_owned(),
        ground: ground.to_owned(),
        ..Found::default()
    };
    if again || !state.exists() {
        return Ok(fresh);
    }
    let text = std::fs::read_to_string(state).with_context(|| state.display().to_string())?;
    let found: Found = serde_json::from_str(&text).with_context(|| {
        format!(
            "{}: not what this command keeps there; --again replaces it",
            state.display()
        )
    })?;
    if (&found.kernel, &found.ground) != (&fresh.kernel, &fresh.ground) {
        bail!(Failure::Usage(format!(
            "{}: measured on {} with Linux {}; --again begins anew",
            state.display(),
            found.ground,
            found.kernel
        )));
    }
    Ok(found)
}

/// Whole or not at all, so that a cut run leaves the cells before.
fn keep(state: &Path, found: &Found) -> anyhow::Result<()> {
    out::write_file(state, &(serde_json::to_string_pretty(found)? + "\n"))
}

fn progress(count: usize, done: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{pos}/{len} cells [{bar:30}] {elapsed}, {eta} left  {msg}");
    let bar = ProgressBar::new(count as u64).with_style(style.expect("a valid template"));
    bar.set_position(done as u64);
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MatrixArgs,
    }

    fn args(words: &[&str]) -> MatrixArgs {
        Line::parse_from([&["matrix"], words].concat()).args
    }

    #[test]
    fn every_combination_is_a_cell_once() {
        let all = cells(&args(&[]));
        // Files: 3 systems, 2 kinds of allocation; devices have none. 2 directions, 5 sizes, 3 engines; NBD up to 10 MiB.
        assert_eq!(all.len(), (3 * 2 + 1) * 2 * 5 * 3 + 2 * 4);
        for (index, cell) in all.iter().enumerate() {
            assert!(!all[..index].contains(cell), "{}", cell.name());
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [
            &["--systems", "zfs"][..],
            &["--sizes", "1000"],
            &["--sizes", "1TiB"],
            &["--seconds", "0"],
        ] {
            assert!(check(&args(words)).is_err(), "{words:?}");
        }
        // No device, no block device; a device's name in the input is no answer of somebody who was asked.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        for device in [
            file.as_path(),
            Path::new("/dev/null"),
            dir.path(),
            Path::new("/dev/none"),
        ] {
            let refused = check(&args(&["--device", device.to_str().unwrap(), "--yes"])).unwrap_err();
            assert!(
                refused.to_string().contains(device.to_str().unwrap()),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_cut_run_goes_on_and_one_of_other_ground_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("matrix.json");
        let mut found = resume(&state, false, "a loop device").unwrap();
        found.seconds = 7.0;
        keep(&state, &found).unwrap();
        assert_eq!(resume(&state, false, "a loop device").unwrap().seconds, 7.0);
        assert!(resume(&state, false, "/dev/sdb").is_err());
        assert_eq!(resume(&state, true, "/dev/sdb").unwrap().seconds, 0.0);
    }
}
