//! A read's tail latency beside garbage collection (RackBlox §4.2): what each step of coordination takes off it.
//!
//! YCSB-style zipfian requests, half of them writes, on P-SSD timing, over four nodes with two replicas. Each vSSD
//! collects about a quarter of the time in blocking mode: were it more than half, two replicas could not take turns.

use super::{Case, Hardware, Plan, Policies, Row, Workload};
use crate::report::{Progress, Report};
use flash::GcMode;
use host::gateway::Reads;
use rack::gc::Coordination;
use rack::port::Discipline;
use rack::sched::Policy;
use serde_json::Map;

/// Requests a second over the whole rack.
const RATE: f64 = 2_000.0;
/// Share of writes.
const WRITES: f64 = 0.5;

/// From the baseline to the ideal: name, who decides when to collect, what collection does to the vSSD's other work,
/// order of waiting requests.
const STEPS: [(&str, Coordination, GcMode, Policy); 4] = [
    (
        "uncoordinated",
        Coordination::None,
        GcMode::Blocking,
        Policy::Fifo,
    ),
    (
        "rackblox",
        Coordination::Rack,
        GcMode::Blocking,
        Policy::Coordinated,
    ),
    (
        "switchyard",
        Coordination::Rack,
        GcMode::Preemptible { step_pages: 4 },
        Policy::Coordinated,
    ),
    ("no-gc", Coordination::None, GcMode::Free, Policy::Coordinated),
];

const COLUMNS: &[&str] = &[
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

/// Every step.
pub fn plan() -> Plan {
    let case = |(name, coordination, gc_mode, scheduler): (&str, _, _, _)| Case {
        hardware: Hardware::default(),
        policies: Policies {
            name: name.to_owned(),
            coordination,
            gc_mode,
            scheduler,
            shaped: false,
            reads: Reads::First,
            network: Discipline::Fifo,
        },
        workload: Workload::writes(WRITES, RATE),
        parameters: Map::new(),
        cdf: false,
    };
    Plan {
        name: "gc-tail",
        cases: STEPS.into_iter().map(case).collect(),
    }
}

fn values(row: &Row) -> Vec<f64> {
    let mut values = [row.read.values(), row.write.values()].concat();
    let soft = row.more["soft_collections"].as_u64().expect("every row has it");
    values.extend([row.iops, row.write_amplification, soft as f64]);
    values
}

/// A row for each step.
pub fn gc_tail(seed: u64, progress: Progress<'_>) -> Report {
    let figure = plan().run(seed, progress);
    let mut report = Report::new("gc-tail", seed, COLUMNS);
    for row in &figure.rows {
        report.push(&row.policy, values(row));
    }
    report
}
