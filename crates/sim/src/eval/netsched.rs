//! Network scheduling policies and coordinated storage scheduling (RackBlox §4.5.2, Figure 18).
//!
//! Four client hosts, each with a volume of its own, ask one server whose link is limited, through the switch's port. With
//! fair queueing all of them come in bursts; with priority the last one's packets, which come periodically, go first.
//! Collection takes no time here, so that scheduling alone shows.

use super::{Case, Hardware, Plan, Policies, System, Workload, ycsb};
use crate::net::LinkModel;
use crate::report::Progress;
use crate::report::Report;
use crate::workload::Burst;
use base::limits::RACK_PORT;
use base::{Addr, Duration};
use flash::{GcMode, Geometry};
use rack::port::Discipline;
use rack::sched::Policy;
use serde_json::{Map, json};

/// Client hosts.
const CLIENTS: u32 = 4;
/// Requests a second of all.
const RATE: f64 = 30_000.0;
/// Shares of writes in percent.
const WRITE_PERCENTS: [u32; 3] = [5, 10, 20];
/// Nanoseconds that a kilobyte occupies the server's link.
const PORT_NS_PER_KILOBYTE: u32 = 5_000;
/// Bursts of all clients, and of the urgent one.
const BURSTS: Burst = Burst {
    run_mean: 1.0,
    duty: 0.5,
    period_ns: 10_000_000,
};
const PERIODIC: Burst = Burst {
    run_mean: 1.0,
    duty: 0.4,
    period_ns: 20_000_000,
};

/// The rack of this figure: one server, two channels for each client host, whose clients are at two distances.
fn hardware() -> Hardware {
    Hardware {
        nodes: 1,
        clients: CLIENTS,
        sets: 1,
        replicas: 1,
        channels: 2,
        pages_per_set: 1_024,
        geometry: Geometry {
            channels: 2 * CLIENTS,
            planes_per_chip: 1,
            blocks_per_plane: 16,
            ..ycsb::hardware().geometry
        },
        device_depth: 4,
        port_ns_per_kilobyte: PORT_NS_PER_KILOBYTE,
        client_link: LinkModel {
            near_paths: ycsb::NEAR_CLIENTS,
            ..ycsb::slow_link()
        },
        ..ycsb::hardware()
    }
}

/// The disciplines by name.
fn disciplines() -> [(&'static str, Discipline); 4] {
    let bucket = Discipline::TokenBucket {
        ns_per_kilobyte: PORT_NS_PER_KILOBYTE * CLIENTS,
        burst: Duration::from_millis(1),
    };
    let urgent = Addr::new([10, 0, 2, CLIENTS as u8], RACK_PORT);
    [
        ("fifo", Discipline::Fifo),
        ("token-bucket", bucket),
        ("fair", Discipline::Fair),
        ("priority", Discipline::Priority { urgent }),
    ]
}

fn case(network: (&str, Discipline), percent: u32, coordinated: bool) -> Case {
    let (burst, last_burst) = match network.1 {
        Discipline::Priority { .. } => (Burst::default(), Some(PERIODIC)),
        _ => (BURSTS, None),
    };
    Case {
        hardware: hardware(),
        policies: Policies {
            name: if coordinated { "coordinated" } else { "fifo" }.to_owned(),
            gc_mode: GcMode::Free,
            scheduler: if coordinated {
                Policy::Coordinated
            } else {
                Policy::Fifo
            },
            network: network.1,
            ..System::Ideal.policies()
        },
        workload: Workload {
            burst,
            last_burst,
            warm: 20_000,
            measured: 80_000,
            ..Workload::writes(f64::from(percent) / 100.0, RATE)
        },
        parameters: Map::from_iter([
            ("network".to_owned(), json!(network.0)),
            ("write_percent".to_owned(), json!(percent)),
        ]),
        cdf: false,
    }
}

/// Each discipline and share of writes, with the storage's scheduler in order of arrival and coordinated.
pub fn plan() -> Plan {
    let mut cases = Vec::new();
    for network in disciplines() {
        for percent in WRITE_PERCENTS {
            cases.extend([false, true].map(|coordinated| case(network, percent, coordinated)));
        }
    }
    Plan { name: "fig18", cases }
}

/// P99.9 latency of reads by network policy.
pub fn fig18(seed: u64, progress: Progress<'_>) -> Report {
    plan().run(seed, progress).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordination_helps_under_every_network_policy() {
        for network in disciplines() {
            let [fifo, coordinated] = [false, true].map(|coordinated| {
                let mut case = case(network, 10, coordinated);
                case.workload.warm = 10_000;
                case.workload.measured = 30_000;
                case.run(1)
            });
            let ratio = fifo.read.p999_us / coordinated.read.p999_us;
            assert!(ratio > 1.05, "{}: {ratio:.3}", network.0);
        }
    }
}
