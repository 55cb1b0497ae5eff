//! Software- and hardware-isolated vSSDs (RackBlox §4.5.4, Figure 21).
//!
//! Both racks have the servers and the network of Figure 9, and each server's two vSSDs have as many planes either way:
//! with hardware isolation two channels each, with software isolation two of the four planes of all four channels.

use super::{Case, Hardware, Plan, System, Workload, ycsb};
use crate::report::{Progress, Report};
use serde_json::{Map, json};

/// Requests a second over the whole rack, as in Figure 9.
const RATE: f64 = 6_000.0;
/// Share of writes (§4.5.4: "YCSB with 50% writes").
const WRITES: f64 = 0.5;

/// VDC, RackBlox and ours for either isolation.
pub fn plan() -> Plan {
    let hardware = ycsb::hardware();
    let geometry = hardware.geometry;
    let shared = Hardware {
        channels: geometry.channels,
        rows: geometry.units_per_channel() * hardware.channels / geometry.channels,
        ..hardware.clone()
    };
    let mut cases = Vec::new();
    for (isolation, hardware) in [("software", shared), ("hardware", hardware)] {
        for system in [System::Vdc, System::RackBlox, System::Switchyard] {
            cases.push(Case {
                hardware: hardware.clone(),
                policies: system.policies(),
                workload: Workload::writes(WRITES, RATE),
                parameters: Map::from_iter([("isolation".to_owned(), json!(isolation))]),
                cdf: false,
            });
        }
    }
    Plan { name: "fig21", cases }
}

/// P99.9 latency by isolation.
pub fn fig21(seed: u64, progress: Progress<'_>) -> Report {
    plan().run(seed, progress).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_isolations_have_the_same_flash() {
        let plan = plan();
        let planes = |case: &Case| {
            let hardware = &case.hardware;
            let rows = match hardware.rows {
                0 => hardware.geometry.units_per_channel(),
                rows => rows,
            };
            (
                hardware.geometry,
                hardware.channels * rows,
                hardware.spare_ratio().to_bits(),
            )
        };
        let first = planes(&plan.cases[0]);
        assert!(plan.cases.iter().all(|case| planes(case) == first));
    }
}
