//! The claims of Figures 13 and 14, on fixed seeds.

use sim::eval::apps::plan;
use sim::eval::{Row, System};

/// The row of an application under a system, as the figures have it.
fn row(application: &str, system: System, seed: u64) -> Row {
    let cases = plan().cases;
    let case = cases
        .iter()
        .find(|case| case.workload.name == application && case.policies.name == system.name());
    case.expect("the plan has every application and system").run(seed)
}

fn tails(application: &str, seed: u64) -> [f64; 3] {
    [System::Vdc, System::RackBloxCoordIo, System::RackBlox]
        .map(|system| row(application, system, seed).read.p999_us)
}

#[test]
fn twitters_gain_is_that_of_collection_in_turns() {
    // A minute each: more seeds are for `sim report`.
    let [vdc, scheduled, rackblox] = tails("twitter", 1);
    assert!(vdc / rackblox >= 5.0, "{vdc} {rackblox}");
    assert!(vdc / scheduled < 1.3 && scheduled / rackblox > 5.0, "{scheduled}");
}

#[test]
fn tpc_h_collects_nothing_and_gains_by_scheduling() {
    let [vdc, scheduled, rackblox] =
        [System::Vdc, System::RackBloxCoordIo, System::RackBlox].map(|system| row("tpc-h", system, 1));
    for row in [&vdc, &scheduled, &rackblox] {
        assert!(row.write_amplification < 1.01, "{row:?}");
    }
    let gain = vdc.read.p999_us / scheduled.read.p999_us;
    assert!(gain > 1.05, "{vdc:?} {scheduled:?}");
    let rest = scheduled.read.p999_us / rackblox.read.p999_us;
    assert!((0.97..1.03).contains(&rest), "{scheduled:?} {rackblox:?}");
}
