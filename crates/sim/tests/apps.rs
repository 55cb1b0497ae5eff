//! The claims of Figures 13 and 14, on fixed seeds.

use sim::eval::apps::plan;
use sim::eval::{Case, Row, System};

/// The row of an application under a system, from a third of the requests that the figures have: those are for `sim report`.
fn row(application: &str, system: System, seed: u64) -> Row {
    let is_it = |case: &Case| case.workload.name == application && case.policies.name == system.name();
    let mut case = plan()
        .cases
        .into_iter()
        .find(is_it)
        .expect("the plan has every application and system");
    case.workload.measured /= 3;
    case.run(seed)
}

fn tails(application: &str, seed: u64) -> [f64; 3] {
    [System::Vdc, System::RackBloxCoordIo, System::RackBlox]
        .map(|system| row(application, system, seed).read.p999_us)
}

#[test]
fn twitters_gain_is_that_of_collection_in_turns() {
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
