//! Racks with two ToRs: one of them dies, comes back, or is cut off from some, while clients go on.

use base::Duration;
use flash::{GcMode, Timing};
use rack::registry::Durability;
use sim::check::Violation;
use sim::rack::{RackFleet, RackOptions, Tors};
use sim::run::{Fault, Outcome, Run, RunSpec};
use sim::small;
use sim::world::Canary;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const NODES: u32 = 3;
const LOAD_SECONDS: u64 = 24;

fn options(tors: Tors) -> RackOptions {
    let layout = |replicas, durability| small::layout(40, replicas, durability);
    let volumes = vec![layout(2, Durability::Memory), layout(3, Durability::Media)];
    let mut options = RackOptions {
        tors,
        ..small::options(NODES, small::geometry(4, 1), volumes)
    };
    options.unit.gc.check_every = Duration::from_millis(1);
    options
}

/// Runs under load with these faults, none of which excuses an error.
fn run(options: RackOptions, rate: f64, seed: u64, change: impl FnOnce(&RackFleet, &mut RunSpec)) -> Outcome {
    let fleet = RackFleet::new(options);
    let mut spec = RunSpec {
        calm_ns: LOAD_SECONDS * SECOND,
        errors_are_violations: true,
        pool_pages: 1 << 15,
        ..small::spec(
            &fleet,
            seed,
            small::LINK,
            small::mixed_loads(&fleet, rate, LOAD_SECONDS),
        )
    };
    change(&fleet, &mut spec);
    Run::new(fleet, spec).execute()
}

#[test]
fn a_tor_that_is_gone_for_ever_costs_a_moment_and_no_error() {
    for (seed, tors) in [Tors::Two, Tors::Mixed].into_iter().enumerate() {
        let outcome = run(options(tors), 300.0, seed as u64, |fleet, spec| {
            let host = fleet.tors()[0];
            spec.faults = vec![(5 * SECOND, Fault::Gone { host })];
        });
        assert_eq!(outcome.violations, []);
        let (read, write) = (outcome.latencies.read.max(), outcome.latencies.write.max());
        // A read waits for the write of its page, and that one for its third sending.
        assert!(read <= 150 * MILLISECOND, "{read}");
        assert!(write <= 200 * MILLISECOND, "{write}");
    }
}

#[test]
fn with_one_tor_the_same_pauses_everything() {
    let outcome = run(options(Tors::One), 300.0, 1, |fleet, spec| {
        let (host, down_ns) = (fleet.tors()[0], 2 * SECOND);
        spec.faults = vec![(5 * SECOND, Fault::Crash { host, down_ns })];
    });
    assert_eq!(outcome.violations, []);
    assert!(outcome.latencies.read.max() > SECOND);
}

#[test]
fn a_tor_that_starts_again_at_once_is_left_until_it_knows_the_vssds() {
    let outcome = run(options(Tors::Two), 300.0, 2, |fleet, spec| {
        let host = fleet.tors()[0];
        let crash = |at, down_ns| (at * SECOND, Fault::Crash { host, down_ns });
        spec.faults = vec![crash(5, MILLISECOND), crash(14, 3 * SECOND)];
    });
    assert_eq!(outcome.violations, []);
    assert!(outcome.latencies.read.max() <= 100 * MILLISECOND);
}

#[test]
fn a_part_that_is_cut_off_from_one_tor_goes_by_the_other() {
    for part in 1..=NODES as usize + 1 {
        for tor in 0..2 {
            let outcome = run(options(Tors::Two), 300.0, 3, |fleet, spec| {
                let pair = [part, fleet.tors()[tor]];
                spec.faults = vec![(
                    5 * SECOND,
                    Fault::Cut {
                        pair,
                        for_ns: 8 * SECOND,
                    },
                )];
            });
            assert_eq!(outcome.violations, [], "part {part}, ToR {tor}");
            let longest = outcome.latencies.read.max();
            assert!(longest <= 200 * MILLISECOND, "part {part}, ToR {tor}: {longest}");
        }
    }
}

/// Replicas on flash that is slow to collect, of which one is cut off from a ToR for so long that it promises the other one.
fn collect(seed: u64, canary: Canary) -> Outcome {
    let mut options = options(Tors::Two);
    options.volumes.truncate(1);
    options.nodes = 2;
    options.timing = Timing::built_in("p-ssd").expect("it is built in");
    options.gc_mode = GcMode::Blocking;
    run(options, 400.0, seed, |fleet, spec| {
        spec.world.canary = canary;
        let pair = [fleet.node(1), fleet.tors()[0]];
        spec.faults = vec![(
            5 * SECOND,
            Fault::Cut {
                pair,
                for_ns: 14 * SECOND,
            },
        )];
    })
}

#[test]
fn replicas_that_see_different_tors_never_collect_by_soft_request_at_once() {
    for seed in 0..3 {
        let outcome = collect(seed, Canary::None);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert!(outcome.soft_collections > 20, "{}", outcome.soft_collections);
    }
}

#[test]
fn two_tors_that_both_accept_are_caught() {
    let outcome = collect(0, Canary::PromiseAll);
    let is_it = |violation: &Violation| matches!(violation, Violation::BothCollect { .. });
    assert!(outcome.violations.iter().any(is_it), "{:?}", outcome.violations);
}
