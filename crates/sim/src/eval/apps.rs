//! The applications (RackBlox §4.3, Figures 13 and 14), on the rack of the YCSB figures.
//!
//! `rackblox-coord-io` splits the gain: what it has over `vdc` comes from scheduling, what `rackblox` has over it from
//! collection in turns.

use super::{Case, Hardware, Plan, System, Workload, ycsb};
use crate::net::LinkModel;
use crate::report::Progress;
use crate::report::Report;
use crate::workload::apps::{APPS, App, Arrivals};
use serde_json::Map;

/// Requests a second of single pages that the rack is meant for, as in the YCSB figures; each application has its own
/// rate in relation to it.
const RATE: f64 = 6_000.0;
/// Writes of a warm-up that brings the flash into a steady state.
const WARM_WRITES: f64 = 20_000.0;
/// Reads that are measured, at least, so that 50 of them are beyond the 99.9th percentile.
const READS_MIN: f64 = 50_000.0;
/// Requests that are measured, at least.
const MEASURED_MIN: u64 = 60_000;
/// Requests of a closed loop that are measured: without collection systems differ by less.
const MEASURED_CLOSED: u64 = 240_000;
/// Pages of a warm-up, at most: what reads long ranges has fewer requests.
const PAGES_MAX: f64 = 300_000.0;

/// Pages of a vSSD's write cache: applications write in bursts.
const CACHE_PAGES: usize = 128;
/// Instances of the application, each with a replica set of its own (RackBlox §4.1).
const INSTANCES: u32 = 4;

/// The flash and the network of the YCSB figures, for several instances of the application, with another write cache and
/// some near clients.
pub fn hardware() -> Hardware {
    let ycsb = ycsb::hardware();
    let client_link = LinkModel {
        near_paths: ycsb::NEAR_CLIENTS,
        ..ycsb.client_link
    };
    Hardware {
        clients: INSTANCES,
        sets: 1,
        cache_pages: CACHE_PAGES,
        client_link,
        ..ycsb
    }
}

fn workload(app: &'static App) -> Workload {
    let warm_max = (PAGES_MAX / app.mean_pages()) as u64;
    Workload {
        warm: ((WARM_WRITES / app.write_share) as u64).min(warm_max),
        measured: match app.arrivals {
            Arrivals::Closed { .. } => MEASURED_CLOSED,
            Arrivals::Open { .. } => ((READS_MIN / (1.0 - app.write_share)) as u64).max(MEASURED_MIN),
        },
        ..Workload::app(app, RATE)
    }
}

fn case(app: &'static App, system: System) -> Case {
    Case {
        hardware: hardware(),
        policies: system.policies(),
        workload: workload(app),
        parameters: Map::new(),
        cdf: false,
    }
}

/// Every system for every application.
pub fn plan() -> Plan {
    let of_app = |app| System::ALL.map(|system| case(app, system));
    Plan {
        name: "applications",
        cases: APPS.iter().flat_map(of_app).collect(),
    }
}

/// P99.9 latency.
pub fn fig13(seed: u64, progress: Progress<'_>) -> Report {
    ycsb::shared(&plan(), "fig13", "p999_us", seed, progress)
}

/// Throughput.
pub fn fig14(seed: u64, progress: Progress<'_>) -> Report {
    ycsb::shared(&plan(), "fig14", "iops", seed, progress)
}
