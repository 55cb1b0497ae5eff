//! YCSB by share of writes (RackBlox §4.2, Figures 9 to 12).

use super::{Case, Hardware, Plan, System, Workload};
use crate::experiment::Progress;
use crate::report::Report;
use serde_json::{Map, json};

/// Requests a second over the whole rack.
const RATE: f64 = 2_000.0;

/// Shares of writes in percent.
const WRITE_PERCENTS: [u32; 11] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];

/// Every system for every share of writes.
pub fn sweep(name: &'static str) -> Plan {
    let case = |percent: u32, system: System| Case {
        hardware: Hardware::default(),
        policies: system.policies(),
        workload: Workload::writes(f64::from(percent) / 100.0, RATE),
        parameters: Map::from_iter([("write_percent".to_owned(), json!(percent))]),
    };
    let of_share = |percent| System::ALL.map(|system| case(percent, system));
    Plan {
        name,
        cases: WRITE_PERCENTS.into_iter().flat_map(of_share).collect(),
    }
}

/// P99.9 latency.
pub fn fig9(seed: u64, progress: Progress<'_>) -> Report {
    sweep("fig9").run(seed, progress).report()
}
