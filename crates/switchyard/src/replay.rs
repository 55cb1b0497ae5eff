//! `switchyard sim replay`: a recorded block trace on a simulated rack, under one set of policies or several.

use crate::failure::Failure;
use anyhow::{Context, bail};
use clap::Args;
use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sim::eval::{Figure, Hardware, System, replay, ycsb};
use sim::trace::{Counts, Format, Replay, ReplayOptions, ReplayStatus, TraceReader};
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};

/// What gzip begins with (RFC 1952 §2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Policies that are compared if none are named.
const POLICIES: [System; 3] = [System::Vdc, System::RackBlox, System::Switchyard];

/// What to replay, and how.
#[derive(Args)]
#[command(after_help = "Formats, one request a line:\n  \
    msr      timestamp (100 ns), hostname, disk, Read|Write, offset (B), size (B), response time\n  \
    alibaba  device, R|W, offset (B), length (B), timestamp (µs)\n  \
    tencent  timestamp (s), offset (512 B), size (512 B), 0 read or 1 write, volume\n  \
    systor   timestamp (s), response time, R|W or nothing, LUN, offset (B), size (B)\n  \
    mqsim    time (ns; ms with a decimal point) device address (512 B) sectors 0|1, 0 to write\n\n\
    Offsets go round the simulated volume; requests above 256 KiB are cut. What the rack is too slow for is shed, and\n\
    told: replay slower with --speed 0.5.\n\n\
    Examples:\n  \
    switchyard sim replay hm_1.csv.gz --format msr --speed 10 --requests 200000\n  \
    switchyard sim replay io.csv --format alibaba --policy all --json")]
pub struct ReplayArgs {
    /// The trace; gzip is recognised
    file: PathBuf,
    /// Its format
    #[arg(long, value_parser = format)]
    format: Format,
    /// Policies, several separated by commas, or `all` [default: vdc,rackblox,switchyard]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<String>,
    /// So many times as fast as it was recorded
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Requests of the trace at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Count lines that are no request and pass over them; without, the first one ends the replay
    #[arg(long)]
    skip_bad: bool,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn format(text: &str) -> Result<Format, String> {
    let names = Format::ALL.map(Format::name).join(", ");
    Format::find(text).ok_or_else(|| format!("there is no format `{text}`: choose one of {names}"))
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (1e-6..=1e9).contains(speed));
    speed.ok_or_else(|| format!("`{text}` is no speed: write a number above 0, for example 0.5 or 10"))
}

fn systems(names: &[String]) -> anyhow::Result<Vec<System>> {
    if names.is_empty() {
        return Ok(POLICIES.to_vec());
    }
    if names == ["all"] {
        return Ok(System::ALL.to_vec());
    }
    let find = |name: &String| {
        let found = System::ALL.into_iter().find(|system| system.name() == *name);
        found.ok_or_else(|| {
            let names = System::ALL.map(System::name).join(", ");
            Failure::Usage(format!(
                "there is no policy `{name}`: choose among {names}, or `all`"
            ))
        })
    };
    Ok(names.iter().map(find).collect::<Result<_, _>>()?)
}

/// What the trace held, the same for every policy.
struct Held {
    counts: Counts,
    status: ReplayStatus,
}

/// Carries it out.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let systems = systems(&args.policy)?;
    let hardware = ycsb::hardware();
    let name = args.file.display().to_string();
    let mut figure = replay::figure(&hardware, args.seed, &name, args.format.name(), args.speed);
    let (mut held, mut shed) = (None, Vec::new());
    for system in systems {
        let (replayed, what) = one(args, &hardware, system)?;
        if let Some(violation) = replayed.violations.first() {
            bail!("{}: the rack did not answer well: {violation:?}", system.name());
        }
        if replayed.shed > 0 {
            shed.push(format!("{} shed {}", system.name(), replayed.shed));
        }
        figure.rows.push(replayed.row);
        held = Some(what);
    }
    let held = held.expect("there is a policy");
    if args.json {
        print_json(&figure, &held)?;
    } else {
        print!("{}", figure.report());
        println!("{}", summary(&held));
    }
    if !shed.is_empty() {
        eprintln!(
            "the rack is too slow for this trace: of {} pieces {}; try a lower --speed",
            held.status.pieces,
            shed.join(", ")
        );
    }
    Ok(())
}

/// One replay, from the beginning of the file.
fn one(args: &ReplayArgs, hardware: &Hardware, system: System) -> anyhow::Result<(replay::Replayed, Held)> {
    let name = args.file.display().to_string();
    let bar = bar(args, system)?;
    let source = open(&args.file, &bar).with_context(|| name.clone())?;
    let reader = TraceReader::new(source, &name, args.format, args.skip_bad);
    let counts = reader.counts();
    let options = ReplayOptions {
        speed: args.speed,
        requests: args.requests.unwrap_or(u64::MAX),
        ..ReplayOptions::new(args.format, hardware.pages())
    };
    let stream = Replay::new(reader, options);
    let status = stream.status();
    let replayed = replay::replay(
        hardware,
        &system.policies(),
        args.format.name(),
        Box::new(stream),
        args.seed,
    );
    bar.finish_and_clear();
    let status = status.take();
    if let Some(error) = status.error {
        bail!(Failure::Usage(error.to_string()));
    }
    if status.requests == 0 {
        let form = args.format.form();
        bail!(Failure::Usage(format!(
            "{name} holds no request: expected lines of {form}"
        )));
    }
    let counts = counts.get();
    Ok((replayed, Held { counts, status }))
}

fn bar(args: &ReplayArgs, system: System) -> anyhow::Result<ProgressBar> {
    let bytes = std::fs::metadata(&args.file)
        .map_err(|error| Failure::Usage(format!("{}: {error}", args.file.display())))?
        .len();
    if args.json || !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let template = "{msg:18} [{bar:40}] {bytes} of {total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    Ok(ProgressBar::new(bytes)
        .with_style(style)
        .with_message(system.name()))
}

/// Opens a trace, compressed or not. The bar moves with the bytes of the file.
fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<Box<dyn BufRead>> {
    let mut source = BufReader::new(bar.wrap_read(File::open(path)?));
    match source.fill_buf()?.starts_with(&GZIP) {
        true => Ok(Box::new(BufReader::new(MultiGzDecoder::new(source)))),
        false => Ok(Box::new(source)),
    }
}

fn print_json(figure: &Figure, held: &Held) -> anyhow::Result<()> {
    let Held { counts, status } = held;
    let mut value = figure.to_json();
    value["trace"] = json!({
        "lines": counts.lines,
        "requests": status.requests,
        "writes": status.writes,
        "bytes": status.bytes,
        "pieces": status.pieces,
        "bad_lines": counts.bad,
        "lines_without_operation": counts.without_operation,
        "out_of_order": status.out_of_order,
        "span_s": status.span_ns as f64 / 1e9,
    });
    println!("{}", serde_json::to_string_pretty(&value)?);
    Ok(())
}

fn summary(held: &Held) -> String {
    let Held { counts, status } = held;
    let mut text = format!(
        "{} requests, {:.2} % writes, {:.1} MiB, in {} pieces over {:.3} s",
        status.requests,
        100.0 * status.writes as f64 / status.requests as f64,
        status.bytes as f64 / f64::from(1 << 20),
        status.pieces,
        status.span_ns as f64 / 1e9
    );
    let more = [
        (counts.bad, "lines skipped as bad"),
        (counts.without_operation, "lines without an operation"),
        (status.out_of_order, "requests out of order"),
    ];
    for (count, what) in more.iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("; {what}: {count}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn policies_formats_and_speeds_are_found_or_refused_with_the_choice() {
        assert_eq!(systems(&[]).unwrap(), POLICIES);
        assert_eq!(systems(&["all".to_owned()]).unwrap(), System::ALL);
        assert_eq!(systems(&["ideal".to_owned()]).unwrap(), [System::Ideal]);
        let error = systems(&["best".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("`best`") && error.contains("rackblox-software"),
            "{error}"
        );
        assert!(
            format("blktrace")
                .unwrap_err()
                .contains("msr, alibaba, tencent, systor, mqsim")
        );
        assert!(
            speed("0").is_err() && speed("-1").is_err() && speed("nan").is_err() && speed("2.5") == Ok(2.5)
        );
    }

    #[test]
    fn a_compressed_trace_reads_as_the_plain_one() {
        let dir = tempfile::tempdir().unwrap();
        let text = "1,R,0,512,10\n1,W,512,512,20\n";
        let plain = dir.path().join("plain");
        std::fs::write(&plain, text).unwrap();
        let packed = dir.path().join("packed");
        let mut encoder =
            flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap();
        for path in [plain, packed] {
            let mut read = String::new();
            open(&path, &ProgressBar::hidden())
                .unwrap()
                .read_to_string(&mut read)
                .unwrap();
            assert_eq!(read, text);
        }
    }
}
