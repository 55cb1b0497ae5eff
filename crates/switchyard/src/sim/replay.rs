//! `switchyard sim replay`: a recorded block trace on a simulated rack, under one set of policies or several.

use crate::failure::Failure;
use anyhow::{Context, bail};
use clap::Args;
use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use sim::eval::{Figure, Hardware, System, replay, ycsb};
use sim::report::Report;
use sim::trace::{Counts, Format, Replay, ReplayOptions, ReplayStatus, TraceReader};
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// First bytes of gzip (RFC 1952 §2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// How slow and how fast a trace may be replayed.
const SPEEDS: RangeInclusive<f64> = 1e-6..=1e9;
/// Policies that are compared if none are named.
const POLICIES: [System; 3] = [System::Vdc, System::RackBlox, System::Switchyard];

/// Trace to replay, and options.
#[derive(Args)]
#[command(after_help = "Formats, one request a line:\n  \
    msr      timestamp (100 ns), hostname, disk, Read|Write, offset (B), size (B), response time\n  \
    alibaba  device, R|W, offset (B), length (B), timestamp (µs)\n  \
    tencent  timestamp (s), offset (512 B), size (512 B), 0 read or 1 write, volume\n  \
    systor   timestamp (s), response time, R|W or nothing, LUN, offset (B), size (B)\n  \
    mqsim    time (ns; ms if the first has a decimal point) device address (512 B) sectors 0|1, 0 to write\n\n\
    Offsets wrap around the simulated volume, and requests above 256 KiB are cut. A rack that is too slow sheds\n\
    requests and says so: replay slower with --speed 0.5. A timestamp more than a day from the one before is damage.\n\
    Write amplification means the replay's only after the trace has written as much as the rack's spare flash.\n\
    Every policy reads the trace from its beginning: a pipe, or standard input, does for a single one.\n\n\
    Examples:\n  \
    switchyard sim replay hm_1.csv.gz --format msr --speed 10 --requests 200000\n  \
    switchyard sim replay io.csv --format alibaba --policy all --json\n  \
    zstdcat io.csv.zst | switchyard sim replay - --format alibaba --policy switchyard")]
pub struct ReplayArgs {
    /// The trace, plain or gzip; `-` for standard input
    file: PathBuf,
    /// Format of the trace
    #[arg(long, value_parser = format)]
    format: Format,
    /// Policies, several separated by commas, or `all` [default: vdc,rackblox,switchyard]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<String>,
    /// Factor by which the replay is faster than the recording
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed, allow_negative_numbers = true)]
    speed: f64,
    /// Requests to replay at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Count bad lines and impossible times and skip them; without this flag, the first one ends the replay
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
    Format::find(text).ok_or_else(|| format!("format `{text}` does not exist: choose one of {names}"))
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if SPEEDS.contains(&speed) => Ok(speed),
        Ok(_) => Err(format!(
            "--speed takes {} to {}: write for example 0.5 or 10",
            SPEEDS.start(),
            SPEEDS.end()
        )),
        Err(_) => Err("--speed takes a number: write for example 0.5 or 10".to_owned()),
    }
}

fn systems(names: &[String]) -> anyhow::Result<Vec<System>> {
    if names.is_empty() {
        return Ok(POLICIES.to_vec());
    }
    if names == ["all"] {
        return Ok(System::ALL.to_vec());
    }
    let mut systems = Vec::new();
    for name in names {
        let found = System::ALL.into_iter().find(|system| system.name() == name);
        let why = match found {
            Some(system) if !systems.contains(&system) => {
                systems.push(system);
                continue;
            }
            Some(_) => "it is there twice".to_owned(),
            None if name == "all" => "`all` is every policy and stands alone".to_owned(),
            None => format!(
                "this policy does not exist: choose among {}, or `all`",
                System::ALL.map(System::name).join(", ")
            ),
        };
        bail!(Failure::Usage(format!("--policy {name}: {why}")));
    }
    Ok(systems)
}

/// Where standard input is read, which `-` names.
fn place(file: &Path) -> &Path {
    match file == Path::new("-") {
        true => Path::new("/dev/stdin"),
        false => file,
    }
}

/// The bytes of a trace, which is read `times` times.
fn length(file: &Path, times: usize) -> anyhow::Result<u64> {
    let refuse = |why: &dyn Display| bail!(Failure::Usage(format!("{}: {why}", file.display())));
    match std::fs::metadata(place(file)) {
        Err(error) => refuse(&error),
        Ok(found) if found.is_dir() => refuse(&"this is a directory: name a trace in it"),
        Ok(found) if !found.is_file() && times > 1 => refuse(&format!(
            "a pipe can be read once only, and {times} policies read the trace: name one with --policy, or write \
             the trace to a file first"
        )),
        Ok(found) => Ok(found.len()),
    }
}

/// Content of the trace, the same for every policy.
struct Held {
    counts: Counts,
    status: ReplayStatus,
}

/// Carries it out.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let systems = systems(&args.policy)?;
    let bytes = length(&args.file, systems.len())?;
    let hardware = ycsb::hardware();
    let name = args.file.display().to_string();
    let mut figure = replay::figure(&hardware, args.seed, &name, args.format.name(), args.speed);
    let (mut held, mut shed, mut pages_written) = (None, Vec::new(), 0);
    for system in systems {
        let (replayed, what) = one(args, &hardware, system, bytes)?;
        if let Some(violation) = replayed.violations.first() {
            bail!("{}: the rack did not answer well: {violation:?}", system.name());
        }
        if replayed.shed > 0 {
            shed.push(format!("{} shed {}", system.name(), replayed.shed));
        }
        pages_written = replayed.pages_written;
        figure.rows.push(replayed.row);
        held = Some(what);
    }
    let held = held.expect("there is a policy");
    if args.json {
        print_json(&figure, &held)?;
    } else {
        print!("{}", Report::from(figure));
        println!("{}", summary(&held));
    }
    if held.counts.is_cut {
        eprintln!(
            "{name}:{}: the last line has no end: if the file is cut there, the request may be wrong",
            held.counts.lines
        );
    }
    let enough = replay::pages_to_amplify(&hardware);
    if (1..enough).contains(&pages_written) {
        eprintln!(
            "no write amplification: the trace writes {pages_written} pages, and before {enough} what is collected is \
             what the warm-up left"
        );
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
fn one(
    args: &ReplayArgs,
    hardware: &Hardware,
    system: System,
    bytes: u64,
) -> anyhow::Result<(replay::Replayed, Held)> {
    let name = args.file.display().to_string();
    let bar = bar(args, system, bytes);
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

fn bar(args: &ReplayArgs, system: System, bytes: u64) -> ProgressBar {
    if args.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{msg:18} [{bar:40}] {bytes} of {total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    ProgressBar::new(bytes)
        .with_style(style)
        .with_message(system.name())
}

/// Opens a trace, compressed or not. The bar moves with the bytes of the file.
fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<Box<dyn BufRead>> {
    // A socket cannot be opened by name.
    let source: Box<dyn Read> = match path == Path::new("-") && !place(path).is_file() {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(place(path))?),
    };
    let mut source = BufReader::new(bar.wrap_read(source));
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
        "gaps_cut_out": counts.gaps,
        "last_line_without_end": counts.is_cut,
        "stamp_unit": counts.clock.unit(),
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
        (counts.gaps, "pauses of more than a day cut out"),
        (counts.without_operation, "lines without an operation"),
        (status.out_of_order, "requests out of order"),
    ];
    if let Some(unit) = counts.clock.unit() {
        text.push_str(&format!("; stamps in {unit}"));
    }
    for (count, what) in more.iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("; {what}: {count}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn policies_formats_and_speeds_are_found_or_refused_with_the_choice() {
        assert_eq!(systems(&[]).unwrap(), POLICIES);
        assert_eq!(systems(&["all".to_owned()]).unwrap(), System::ALL);
        assert_eq!(systems(&["ideal".to_owned()]).unwrap(), [System::Ideal]);
        let error = systems(&["best".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("--policy best") && error.contains("rackblox-software"),
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
        for (text, why) in [
            ("1e-7", "takes 0.000001 to 1000000000"),
            ("0", "takes"),
            ("inf", "takes"),
            ("fast", "a number"),
        ] {
            assert!(speed(text).unwrap_err().contains(why), "{text}");
        }
        for (names, why) in [
            (
                ["all", "vdc"],
                "--policy all: `all` is every policy and stands alone",
            ),
            (
                ["vdc", "all"],
                "--policy all: `all` is every policy and stands alone",
            ),
            (["vdc", "vdc"], "--policy vdc: it is there twice"),
        ] {
            assert_eq!(systems(&names.map(str::to_owned)).unwrap_err().to_string(), why);
        }
    }

    /// Of a pipe the second policy had nothing left to read.
    #[test]
    fn what_can_be_read_once_is_refused_for_several_policies() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        assert_eq!(length(&pipe, 1).unwrap(), 0);
        let error = length(&pipe, 3).unwrap_err().to_string();
        assert!(
            error.contains("can be read once") && error.contains("3 policies"),
            "{error}"
        );
        let error = length(dir.path(), 1).unwrap_err().to_string();
        assert!(
            error.ends_with("this is a directory: name a trace in it"),
            "{error}"
        );
        assert!(length(&dir.path().join("none"), 1).is_err());
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
