//! Experiments: named questions to the simulator, each answered with a table. The same seed gives the same table.

use crate::client::{ClientVolume, Latencies, LoadSpec, Pace};
use crate::cuts::{self, CutsOptions};
use crate::media::MediaModel;
use crate::net::{Delay, LinkModel, NetFaults};
use crate::rack::{Layout, RackFleet, RackHost, RackOptions, SECTOR_BYTES, SIM_PAGE_BYTES, flash_totals};
use crate::report::Report;
use crate::run::{AtCut, Fleet, Outcome, Run, RunSpec};
use crate::workload::{Mix, Pattern};
use crate::world::{Canary, WorldOptions};
use base::{Duration, Instant};
use flash::{GcMode, Geometry, Profile, VssdStats};
use hdrhistogram::Histogram;
use host::node::UnitConfig;
use rack::gc::{Coordination, TOR_LEASE};
use rack::registry::Durability;
use rack::sched::Policy;

/// What an experiment tells while it runs: a line for the user.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// A question to the simulator.
pub struct Experiment {
    /// What users call it.
    pub name: &'static str,
    /// What it shows, in one sentence.
    pub about: &'static str,
    /// Answers it.
    pub run: fn(seed: u64, progress: Progress<'_>) -> Report,
}

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "gc-tail",
        about: "Tail latency beside garbage collection: uncoordinated, through the ToR, preemptible, and without any",
        run: gc_tail,
    },
    Experiment {
        name: "speed",
        about: "A fixed number of requests on a replicated four-node rack, to measure the simulator itself",
        run: speed,
    },
    Experiment {
        name: "power-cut",
        about: "Power is lost at every single write to a medium, of the whole rack and of one node; violations must be 0",
        run: power_cut,
    },
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|e| e.name == name)
}

/// One configuration of the gc-tail experiment.
struct GcCase {
    label: &'static str,
    coordination: Coordination,
    mode: GcMode,
    policy: Policy,
}

const GC_CASES: [GcCase; 4] = [
    GcCase {
        label: "uncoordinated",
        coordination: Coordination::None,
        mode: GcMode::Blocking,
        policy: Policy::Fifo,
    },
    GcCase {
        label: "rackblox",
        coordination: Coordination::Rack,
        mode: GcMode::Blocking,
        policy: Policy::Coordinated,
    },
    GcCase {
        label: "switchyard",
        coordination: Coordination::Rack,
        mode: GcMode::Preemptible { step_pages: 4 },
        policy: Policy::Coordinated,
    },
    GcCase {
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
const GC_WARM: u64 = 60_000;
const GC_MEASURED: u64 = 120_000;
/// Requests a second over the whole rack. Each vSSD then collects about a quarter of the time in blocking mode: were
/// it more than half, two replicas could not take turns.
const GC_RATE: f64 = 2_000.0;

const GC_COLUMNS: &[&str] = &[
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

fn latency_columns(latencies: &Latencies) -> Vec<f64> {
    let mut row = percentiles(&latencies.read).to_vec();
    row.extend(percentiles(&latencies.write));
    row
}

fn gc_tail(seed: u64, progress: Progress<'_>) -> Report {
    let mut report = Report::new("gc-tail", seed, GC_COLUMNS);
    for case in &GC_CASES {
        progress(&format!("gc-tail: {}", case.label));
        let (outcome, before, after) = run_gc_case(seed, case);
        let clients = outcome.clients;
        let seconds = (clients.recorded_to_ns - clients.recorded_from_ns) as f64 / 1e9;
        let measured = outcome.latencies.read.len() + outcome.latencies.write.len();
        let user = (after.user_programs - before.user_programs) as f64;
        let gc = (after.gc_programs - before.gc_programs) as f64;
        let mut row = latency_columns(&outcome.latencies);
        row.push(measured as f64 / seconds);
        row.push((user + gc) / user);
        row.push(outcome.soft_collections as f64);
        report.push(case.label, row);
    }
    report
}

fn gc_options(case: &GcCase) -> RackOptions {
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
        unit: UnitConfig {
            policy: case.policy,
            cache_pages: 1024,
            read_depth: 64,
            write_depth: 64,
            dirty_ratio_low: 0.25,
            gc,
        },
        request_timeout: Duration::from_secs(60),
        client_link: LinkModel {
            delay: Delay::FAST,
            ..LinkModel::default()
        },
        volumes: vec![Layout {
            sets: GC_SETS,
            pages_per_set: GC_SET_PAGES,
            replicas: 2,
            channels,
            durability: Durability::Memory,
        }],
    }
}

/// Fills the volume, warms up, measures; flash counters before and after the measured part.
fn run_gc_case(seed: u64, case: &GcCase) -> (Outcome, VssdStats, VssdStats) {
    let fleet = RackFleet::new(gc_options(case));
    let gateway = fleet.gateway(0);
    let pages = u64::from(GC_SETS * GC_SET_PAGES);
    let fill = LoadSpec {
        pattern: Pattern::Sequential,
        mix: Mix::writes(1.0),
        pace: Pace::Closed { depth: 256 },
        record_after: Instant::FAR_FUTURE,
        ..LoadSpec::new(gateway, 0, pages)
    };
    let mut spec = run_spec(seed, pages);
    spec.loads = vec![fill];
    let mut run = Run::new(fleet, spec);
    run.execute();
    let open = |requests, record_after| LoadSpec {
        pattern: Pattern::Zipfian,
        mix: Mix::writes(0.5),
        pace: Pace::Open {
            per_second: GC_RATE,
            outstanding_max: 20_000,
        },
        record_after,
        ..LoadSpec::new(gateway, 0, requests)
    };
    run.add_load(open(GC_WARM, Instant::FAR_FUTURE));
    run.execute();
    let before = totals(&mut run);
    run.add_load(open(GC_MEASURED, Instant::ZERO));
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

/// A run without faults and checks, of one volume.
fn run_spec(seed: u64, pages: u64) -> RunSpec {
    RunSpec {
        world: WorldOptions {
            seed,
            link: LinkModel {
                delay: Delay::Constant(2_000),
                ..LinkModel::default()
            },
            media: MediaModel {
                page_bytes: SIM_PAGE_BYTES,
                sector_bytes: SECTOR_BYTES,
                io_ns: 0,
                flush_ns: 0,
                volatile: false,
                loses_flushes: false,
            },
            wire_check: false,
            canary: Canary::None,
            cut: None,
        },
        volumes: vec![ClientVolume {
            id: base::VolumeId(1),
            pages,
            check: false,
            durability: false,
            durable_writes: false,
        }],
        loads: Vec::new(),
        faults: Vec::new(),
        net_faults: NetFaults::default(),
        calm_ns: 0,
        answer_ns: 120_000_000_000,
        resync_ns: 1_000_000_000,
        gc_lease_ns: TOR_LEASE.as_nanos() as u64,
        pool_pages: 1 << 16,
        read_back: false,
        probe: false,
        errors_are_violations: true,
        at_cut: AtCut::Rack,
    }
}

/// Requests of the speed experiment.
pub const SPEED_REQUESTS: u64 = 300_000;

fn speed(seed: u64, progress: Progress<'_>) -> Report {
    progress("speed: a replicated four-node rack");
    let case = GcCase {
        label: "four-nodes",
        coordination: Coordination::Rack,
        mode: GcMode::Preemptible { step_pages: 4 },
        policy: Policy::Coordinated,
    };
    let mut options = gc_options(&case);
    options.timing = Profile::built_in("optane").expect("optane is built in");
    let fleet = RackFleet::new(options);
    let pages = u64::from(GC_SETS * GC_SET_PAGES);
    let mut spec = run_spec(seed, pages);
    spec.loads = vec![LoadSpec {
        pattern: Pattern::Zipfian,
        pace: Pace::Closed { depth: 64 },
        mix: Mix::writes(0.5),
        ..LoadSpec::new(fleet.gateway(0), 0, SPEED_REQUESTS)
    }];
    let outcome = Run::new(fleet, spec).execute();
    let mut report = Report::new("speed", seed, &["requests", "events", "packets", "virtual_s"]);
    report.push(
        case.label,
        vec![
            outcome.clients.answered as f64,
            outcome.world.events as f64,
            outcome.world.packets as f64,
            outcome.virtual_ns as f64 / 1e9,
        ],
    );
    report
}

fn power_cut(seed: u64, progress: Progress<'_>) -> Report {
    let options = CutsOptions {
        seed,
        ..CutsOptions::default()
    };
    let outcome = cuts::run(options, progress);
    let columns = [
        "boundaries",
        "runs",
        "violations",
        "reads_judged",
        "writes_lost",
        "gc_programs",
        "checkpoints",
    ];
    let mut report = Report::new("power-cut", seed, &columns);
    for case in &outcome.cases {
        let row = vec![
            outcome.boundaries as f64,
            case.runs as f64,
            case.violations.len() as f64,
            case.reads_judged as f64,
            case.writes_lost as f64,
            outcome.flash.gc_programs as f64,
            outcome.flash.checkpoints as f64,
        ];
        report.push(&case.label(), row);
    }
    report
}
