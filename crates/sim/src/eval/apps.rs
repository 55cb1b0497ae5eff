//! The applications (RackBlox §4.3, Figures 13 and 14).

use super::{Case, Hardware, Plan, System, Workload};
use crate::experiment::Progress;
use crate::report::Report;
use crate::workload::apps::APPS;
use serde_json::Map;

/// Requests a second of single zipfian pages that the rack is meant for; each application has a rate of its own in
/// relation to it.
const RATE: f64 = 2_000.0;

/// Every system for every application.
pub fn plan(name: &'static str) -> Plan {
    let case = |app, system: System| Case {
        hardware: Hardware::default(),
        policies: system.policies(),
        workload: Workload::app(app, RATE),
        parameters: Map::new(),
    };
    Plan {
        name,
        cases: APPS
            .iter()
            .flat_map(|app| System::ALL.map(|system| case(app, system)))
            .collect(),
    }
}

/// P99.9 latency.
pub fn fig13(seed: u64, progress: Progress<'_>) -> Report {
    plan("fig13").run(seed, progress).report()
}

/// Throughput.
pub fn fig14(seed: u64, progress: Progress<'_>) -> Report {
    plan("fig14").run(seed, progress).report()
}
