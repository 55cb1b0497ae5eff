//! The gc-tail experiment: a read's tail latency beside garbage collection (RackBlox §4.2).
//!
//! YCSB-style zipfian requests, half of them writes, on P-SSD timing, over four nodes with two replicas. Its parts are
//! public so that the very same experiment runs on a real rack with emulated device time.

use crate::client::{Latencies, LoadSpec, Pace};
use crate::experiment::{Progress, run_spec};
use crate::net::{Delay, LinkModel};
use crate::rack::{Layout, RackFleet, RackHost, RackOptions, flash_totals};
use crate::report::Report;
use crate::run::{Fleet, Outcome, Run};
use crate::workload::{Mix, Pattern};
use base::{Duration, Instant};
use flash::{GcMode, Geometry, Profile, VssdStats};
use hdrhistogram::Histogram;
use host::node::UnitConfig;
use rack::gc::Coordination;
use rack::registry::Durability;
use rack::sched::Policy;

/// One configuration of the gc-tail experiment.
pub struct Case {
    /// What its row is called.
    pub label: &'static str,
    /// Who decides when to collect.
    pub coordination: Coordination,
    /// What collection does to the vSSD's other work.
    pub mode: GcMode,
    /// Order of waiting reads.
    pub policy: Policy,
}

/// The configurations, from the baseline to the ideal.
pub const CASES: [Case; 4] = [
    Case {
        label: "uncoordinated",
        coordination: Coordination::None,
        mode: GcMode::Blocking,
        policy: Policy::Fifo,
    },
    Case {
        label: "rackblox",
        coordination: Coordination::Rack,
        mode: GcMode::Blocking,
        policy: Policy::Coordinated,
    },
    Case {
        label: "switchyard",
        coordination: Coordination::Rack,
        mode: GcMode::Preemptible { step_pages: 4 },
        policy: Policy::Coordinated,
    },
    Case {
        label: "no-gc",
        coordination: Coordination::None,
        mode: GcMode::Free,
        policy: Policy::Coordinated,
    },
];

/// Pages of each replica set in gc-tail, half of the flash behind it as RackBlox's thresholds assume, and its sets:
/// one per node.
const GC_SET_PAGES: u32 = 8_192;
const GC_SETS: u32 = 4;
/// Requests that bring the flash into a steady state, and those that are measured.
pub const WARM: u64 = 40_000;
/// See [`WARM`].
pub const MEASURED: u64 = 60_000;
/// Requests a second over the whole rack. Each vSSD then collects about a quarter of the time in blocking mode: were
/// it more than half, two replicas could not take turns.
const GC_RATE: f64 = 2_000.0;

/// What a row holds.
pub const COLUMNS: &[&str] = &[
    "read_mean_us",
    "read_p50_us",
    "read_p95_us",
    "read_p99_us",
    "read_p99.9_us",
    "read_p99.99_us",
    "write_mean_us",
    "write_p50_us",
    "write_p95_us",
    "write_p99_us",
    "write_p99.9_us",
    "write_p99.99_us",
    "iops",
    "write_amplification",
    "soft_collections",
];

fn percentiles(histogram: &Histogram<u64>) -> [f64; 6] {
    let at = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
    [
        histogram.mean() / 1e3,
        at(0.5),
        at(0.95),
        at(0.99),
        at(0.999),
        at(0.9999),
    ]
}

/// Runs every case.
pub(crate) fn run(seed: u64, progress: Progress<'_>) -> Report {
    let mut report = Report::new("gc-tail", seed, COLUMNS);
    for case in &CASES {
        progress(&format!("gc-tail: {}", case.label));
        let (outcome, before, after) = run_case(seed, case);
        let clients = outcome.clients;
        let seconds = (clients.recorded_to_ns - clients.recorded_from_ns) as f64 / 1e9;
        let user = after.user_programs - before.user_programs;
        let gc = after.gc_programs - before.gc_programs;
        let soft = outcome.soft_collections;
        report.push(case.label, row(&outcome.latencies, seconds, user, gc, soft));
    }
    report
}

/// A row of the table: latencies, then what the measured part of the run did in `seconds`.
pub fn row(latencies: &Latencies, seconds: f64, user_programs: u64, gc_programs: u64, soft: u64) -> Vec<f64> {
    let mut row = percentiles(&latencies.read).to_vec();
    row.extend(percentiles(&latencies.write));
    row.push((latencies.read.len() + latencies.write.len()) as f64 / seconds);
    row.push((user_programs + gc_programs) as f64 / user_programs as f64);
    row.push(soft as f64);
    row
}

/// The rack of a case.
pub fn options(case: &Case) -> RackOptions {
    let geometry = Geometry {
        channels: 8,
        chips_per_channel: 2,
        planes_per_chip: 1,
        blocks_per_plane: 64,
        pages_per_block: 32,
    };
    let channels = 4;
    let spare = 1.0 - f64::from(GC_SET_PAGES) / f64::from(channels * geometry.pages_per_channel());
    let mut gc = rack::gc::Config::for_spare(spare);
    gc.coordination = case.coordination;
    RackOptions {
        nodes: GC_SETS,
        gateways: 1,
        geometry,
        timing: Profile::built_in("p-ssd").expect("p-ssd is built in"),
        gc_mode: case.mode,
        checkpoint_every_programs: u64::MAX,
        borrow_blocks: 8,
        unit: UnitConfig {
            policy: case.policy,
            cache_pages: 1024,
            read_depth: 64,
            write_depth: 8,
            device_depth: 72,
            dirty_ratio_low: 0.25,
            gc,
        },
        request_timeout: Duration::from_secs(60),
        client_link: LinkModel {
            delay: Delay::FAST,
            ..LinkModel::default()
        },
        egress: None,
        controller: None,
        failover: None,
        volumes: vec![Layout {
            sets: GC_SETS,
            pages_per_set: GC_SET_PAGES,
            replicas: 2,
            channels,
            rows: 0,
            durability: Durability::Memory,
        }],
    }
}

/// Pages of the volume.
pub const PAGES: u64 = (GC_SETS * GC_SET_PAGES) as u64;

/// The load that fills the volume, and one of `requests` requests that warms up or is measured.
pub fn loads(gateway: usize, requests: u64) -> [LoadSpec; 2] {
    let fill = LoadSpec {
        pattern: Pattern::Sequential,
        mix: Mix::writes(1.0),
        pace: Pace::Closed { depth: 256 },
        record_after: Instant::FAR_FUTURE,
        ..LoadSpec::new(gateway, 0, PAGES)
    };
    let open = LoadSpec {
        pattern: Pattern::Zipfian,
        mix: Mix::writes(0.5),
        pace: Pace::Open {
            per_second: GC_RATE,
            outstanding_max: 20_000,
        },
        ..LoadSpec::new(gateway, 0, requests)
    };
    [fill, open]
}

/// Fills the volume, warms up, measures; flash counters before and after the measured part.
fn run_case(seed: u64, case: &Case) -> (Outcome, VssdStats, VssdStats) {
    let fleet = RackFleet::new(options(case));
    let [fill, warm] = loads(fleet.gateway(0), WARM);
    let [_, measured] = loads(fleet.gateway(0), MEASURED);
    let mut spec = run_spec(seed, PAGES);
    spec.loads = vec![fill];
    let mut run = Run::new(fleet, spec);
    run.execute();
    run.add_load(LoadSpec {
        record_after: Instant::FAR_FUTURE,
        ..warm
    });
    run.execute();
    let before = totals(&mut run);
    run.add_load(measured);
    let outcome = run.execute();
    let after = totals(&mut run);
    (outcome, before, after)
}

fn totals(run: &mut Run<RackFleet>) -> VssdStats {
    let hosts = run.fleet().sites().len();
    let world = run.world();
    let up: Vec<&RackHost> = (0..hosts).filter_map(|i| world.host(i)).collect();
    flash_totals(up.into_iter())
}
