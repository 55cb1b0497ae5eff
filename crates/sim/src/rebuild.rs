//! How fast a copy is made, and what clients notice of it ([`rack::pace`]).
//!
//! A volume of two copies gets a third one: alone, and beside clients. Two runs more say what to compare with: clients
//! without a copy being made, and how fast a client writes a volume of one copy from its first page to its last, which is
//! what the media and the wire give.

use crate::client::{LoadSpec, Pace};
use crate::commands::Wish;
use crate::operators::Control;
use crate::rack::{Layout, RackFleet, RackOptions};
use crate::report::{Progress, Report};
use crate::run::{Outcome, Run, RunSpec};
use crate::small;
use crate::workload::{Mix, Pattern};
use base::event::Kind;
use base::limits::PAGE_BYTES;
use base::{Duration, Instant};
use flash::{Geometry, Timing};
use hdrhistogram::Histogram;
use rack::heal::Rules;
use rack::registry::Durability;

const SECOND: u64 = 1_000_000_000;
const NODES: u32 = 4;
/// Pages of the volume: a copy takes some seconds on four channels of this flash.
const PAGES: u32 = 16_384;
const CHANNELS: u32 = 4;
/// The volume is full and the write caches are empty by then, in ns.
const BEGIN_NS: u64 = 6 * SECOND;
/// Clients' requests a second, and for how many seconds: less than the copy takes beside them.
const RATE: f64 = 4_000.0;
const SECONDS: u64 = 3;
/// Shares of writes: of clients whose reads hardly wait for the flash, and of clients whose reads wait for its programs and
/// for collection.
const WRITES: [f64; 2] = [0.02, 0.3];
/// Pages in flight of the client that writes as fast as it can.
const DEPTH: u32 = 64;

const COLUMNS: &[&str] = &["copy_mib_per_s", "copy_s", "read_p99_us", "write_p99_us"];

fn rack(copies: u32, plan: Vec<(u64, Wish)>, seed: u64) -> RackFleet {
    let layout = Layout {
        channels: CHANNELS,
        ..small::layout(PAGES, copies, Durability::Memory)
    };
    let geometry = Geometry {
        channels: 2 * CHANNELS,
        chips_per_channel: 1,
        planes_per_chip: 1,
        blocks_per_plane: 24,
        pages_per_block: 256,
    };
    let mut options = RackOptions {
        timing: Timing::built_in("intel-dc").expect("it is built in"),
        checkpoint_every_programs: 1 << 20,
        ..small::options(NODES, geometry, vec![layout])
    };
    options.unit = host::node::NodeConfig::new(base::NodeId(1), base::Addr::NONE, Vec::new()).unit;
    let mut fleet = RackFleet::new(options);
    let control = Control {
        heal: Some(Rules::default()),
        ..Control::sound(seed, Duration::from_secs(1))
    };
    fleet.operate(control, plan);
    fleet
}

fn fill(fleet: &RackFleet) -> LoadSpec {
    LoadSpec {
        pace: Pace::Closed { depth: DEPTH },
        pattern: Pattern::Sequential,
        mix: Mix::writes(1.0),
        ..LoadSpec::new(fleet.gateway(0), 0, u64::from(PAGES))
    }
}

/// Fills the volume, and then lets clients go on, if there are any, while a copy is made, if one is.
fn run(is_copied: bool, writes: Option<f64>, seed: u64) -> Outcome {
    let wish = Wish::Copies { replicas: 3 };
    let plan = if is_copied {
        vec![(BEGIN_NS, wish)]
    } else {
        Vec::new()
    };
    let fleet = rack(2, plan, seed);
    let begin = Instant::from_nanos(BEGIN_NS);
    let mut loads = vec![LoadSpec {
        record_after: Instant::FAR_FUTURE,
        ..fill(&fleet)
    }];
    if let Some(writes) = writes {
        let warm = Duration::from_secs(1);
        loads.push(LoadSpec {
            pace: Pace::Open {
                per_second: RATE,
                outstanding_max: 4_000,
            },
            pattern: Pattern::Uniform,
            mix: Mix::writes(writes),
            start: Instant::from_nanos(BEGIN_NS - warm.as_nanos() as u64),
            record_after: begin,
            ..LoadSpec::new(fleet.gateway(0), 0, RATE as u64 * (1 + SECONDS))
        });
    }
    execute(fleet, seed, loads)
}

fn execute(fleet: RackFleet, seed: u64, loads: Vec<LoadSpec>) -> Outcome {
    let spec = RunSpec {
        exam: false,
        read_back: false,
        probe: false,
        pool_pages: 1 << 15,
        errors_are_violations: true,
        ..small::spec(&fleet, seed, small::LINK, loads)
    };
    let outcome = Run::new(fleet, spec).execute();
    assert!(
        outcome.violations.is_empty(),
        "nothing goes wrong without faults: {:?}",
        outcome.violations
    );
    outcome
}

fn mib_per_s(seconds: f64) -> f64 {
    f64::from(PAGES) * PAGE_BYTES as f64 / f64::from(1 << 20) / seconds
}

/// The rate and the time of the copy that was made, if one was.
fn copy_of(outcome: &Outcome) -> [f64; 2] {
    let took = outcome.events.iter().find_map(|event| match event.kind {
        Kind::CopyJoined { took, .. } => Some(took.as_secs_f64()),
        _ => None,
    });
    took.map_or([0.0; 2], |seconds| [mib_per_s(seconds), seconds])
}

fn p99_us(histogram: &Histogram<u64>) -> f64 {
    match histogram.is_empty() {
        true => 0.0,
        false => histogram.value_at_quantile(0.99) as f64 / 1e3,
    }
}

/// A row for each run.
pub fn rebuild(seed: u64, progress: Progress<'_>) -> Report {
    let mut report = Report::new("rebuild", seed, COLUMNS);
    progress("rebuild: what the media and the wire give");
    let fleet = rack(1, Vec::new(), seed);
    let load = fill(&fleet);
    let outcome = execute(fleet, seed, vec![load]);
    let lasted_ns = outcome.clients.recorded_to_ns - outcome.clients.recorded_from_ns;
    let seconds = lasted_ns as f64 / 1e9;
    report.push("client-writes", vec![mib_per_s(seconds), seconds, 0.0, 0.0]);
    let mut add = |label: &str, is_copied, writes| {
        progress(&format!("rebuild: {label}"));
        let outcome = run(is_copied, writes, seed);
        let [rate, seconds] = copy_of(&outcome);
        let latencies = &outcome.latencies;
        let p99 = [&latencies.read, &latencies.write].map(p99_us);
        report.push(label, vec![rate, seconds, p99[0], p99[1]]);
    };
    add("copy-alone", true, None);
    for writes in WRITES {
        let percent = writes * 100.0;
        add(&format!("clients-alone-{percent}"), false, Some(writes));
        add(&format!("copy-and-clients-{percent}"), true, Some(writes));
    }
    report
}
