//! vSSDs exchange their places while clients go on, and whatever can crash does so at every moment of it.

use base::{Duration, Instant};
use rack::registry::Durability;
use sim::client::{LoadSpec, Pace, Shape};
use sim::commands::{Counts, Wish};
use sim::media::CutFate;
use sim::operators::Control;
use sim::rack::RackFleet;
use sim::run::{AtCut, Fault, Outcome, Run, RunSpec};
use sim::small;
use sim::workload::{Mix, Pattern};
use sim::world::Cut;

const MILLISECOND: u64 = 1_000_000;
const PAGES: u32 = 40;
const NODES: u32 = 4;
/// The exchange begins when the volumes are made, in the midst of the load.
const BEGIN_NS: u64 = 120 * MILLISECOND;
/// It is long decided by then; one that hangs on a node that is away is undone.
const LIMIT_NS: u64 = 1_000 * MILLISECOND;
/// How long a host is away: longer and shorter than most of the exchange's steps.
const DOWN_NS: u64 = 3 * MILLISECOND;

/// Volumes of one and two copies, one of them durable at each write.
fn rack() -> RackFleet {
    let layout = |replicas, durability| small::layout(PAGES, replicas, durability);
    let volumes = vec![
        layout(2, Durability::Memory),
        layout(1, Durability::Memory),
        layout(2, Durability::Media),
    ];
    let mut options = small::options(NODES, small::geometry(3, 1), volumes);
    options.unit.gc.check_every = Duration::from_millis(1);
    RackFleet::new(options)
}

fn spec(fleet: &RackFleet, seed: u64) -> RunSpec {
    let load = |volume| LoadSpec {
        pace: Pace::Open {
            per_second: 8_000.0,
            outstanding_max: 64,
        },
        pattern: Pattern::Uniform,
        mix: Mix {
            flush: 0.02,
            trim: 0.05,
            ..Mix::writes(0.7)
        },
        shape: Shape {
            sub_page: 0.3,
            multi_page: 0.1,
            pages_max: 3,
        },
        fua: 0.1,
        start: Instant::from_nanos(BEGIN_NS - 5 * MILLISECOND),
        ..LoadSpec::new(fleet.gateway_of(volume), volume, 500)
    };
    let loads = (0..fleet.options().volumes.len()).map(load).collect();
    RunSpec {
        calm_ns: 200 * MILLISECOND,
        ..small::spec(fleet, seed, small::LINK, loads)
    }
}

/// Nodes of every replica, by set.
fn places(fleet: &RackFleet) -> Vec<Vec<u8>> {
    let sets = fleet.records().iter().flat_map(|record| &record.sets);
    sets.map(|set| set.replicas.iter().map(|replica| replica.node).collect())
        .collect()
}

/// One exchange under load with what `change` adds to the run.
fn exchange(seed: u64, change: impl FnOnce(&mut RunSpec)) -> (Outcome, Counts) {
    let mut fleet = rack();
    let before = places(&fleet);
    let mut spec = spec(&fleet, seed);
    let control = Control::sound(seed, Duration::from_nanos(LIMIT_NS));
    fleet.operate(control, vec![(BEGIN_NS, Wish::Exchange)]);
    change(&mut spec);
    let mut run = Run::new(fleet, spec);
    let outcome = run.execute();
    let counts = run.fleet().operators().counts();
    assert_eq!(
        counts.exchanged + counts.undone,
        1,
        "it came to an end: {counts:?}"
    );
    assert_eq!(run.fleet().operators().stored().exchanging().count(), 0);
    // Two sets have exchanged one node each, or nothing has changed.
    let moved: Vec<(u8, u8)> = before
        .iter()
        .flatten()
        .zip(places(run.fleet()).iter().flatten())
        .filter(|(old, new)| old != new)
        .map(|(old, new)| (*old, *new))
        .collect();
    match moved[..] {
        [] => assert_eq!(counts.exchanged, 0),
        [(a, b), (c, d)] => assert_eq!((counts.exchanged, (a, b)), (1, (d, c))),
        _ => panic!("half an exchange: {moved:?}"),
    }
    (outcome, counts)
}

/// An exchange without trouble takes so long, in ns; it is decided after two thirds.
const SPAN_NS: u64 = 18 * MILLISECOND;
/// Write boundaries at which the rack is cut per fate, over the whole run.
const CUTS: u64 = 60;

#[test]
fn an_exchange_under_load_costs_no_request() {
    for seed in 0..20 {
        let (outcome, counts) = exchange(seed, |spec| spec.errors_are_violations = true);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert_eq!(counts.exchanged, 1, "seed {seed}");
    }
}

#[test]
fn any_host_may_crash_at_any_moment_of_an_exchange() {
    let (mut exchanged, mut undone) = (0, 0);
    let hosts = 1 + NODES as usize + 1;
    for host in 0..=hosts {
        for at in (0..SPAN_NS).step_by(MILLISECOND as usize / 2) {
            let seed = at / (MILLISECOND / 2);
            let fault = match host {
                _ if host == hosts => Fault::PowerLoss { down_ns: DOWN_NS },
                host => Fault::Crash {
                    host,
                    down_ns: DOWN_NS,
                },
            };
            let (outcome, counts) = exchange(seed, |spec| spec.faults = vec![(BEGIN_NS + at, fault)]);
            assert_eq!(outcome.violations, [], "seed {seed}: {fault:?} after {at} ns");
            exchanged += counts.exchanged;
            undone += counts.undone;
        }
    }
    // Before the decision and after it.
    assert!(
        exchanged > 50 && undone > 10,
        "{exchanged} exchanged, {undone} undone"
    );
}

/// One exchange in which power is lost at a write boundary.
fn exchange_cut(boundary: u64, fate: CutFate, at_cut: AtCut) -> Counts {
    let (outcome, counts) = exchange(7, |spec| {
        spec.world.cut = Some(Cut { boundary, fate });
        spec.at_cut = at_cut;
    });
    assert_eq!(outcome.violations, [], "{fate:?} at {boundary}, {at_cut:?}");
    counts
}

fn boundaries() -> u64 {
    // The last exam is no part of what is cut.
    let whole = exchange(7, |spec| (spec.exam, spec.probe) = (false, false));
    whole.0.world.boundaries
}

#[test]
fn the_rack_loses_power_at_write_boundaries_of_an_exchange() {
    let mut all = Counts::default();
    let stride = boundaries() / (CUTS + 1);
    for (index, fate) in CutFate::ALL.into_iter().enumerate() {
        for cut in 0..CUTS {
            let counts = exchange_cut(cut * stride + index as u64 * stride / 3, fate, AtCut::Rack);
            all.exchanged += counts.exchanged;
            all.undone += counts.undone;
        }
    }
    assert!(all.exchanged > 25 && all.undone > 5, "{all:?}");
}

/// What a host loses at the moment of the decision nobody may miss: that moment is between a few boundaries.
#[test]
fn a_host_loses_power_at_write_boundaries_of_an_exchange() {
    let mut all = Counts::default();
    for boundary in (0..boundaries()).step_by(5) {
        let fate = CutFate::ALL[boundary as usize / 5 % CutFate::ALL.len()];
        let counts = exchange_cut(boundary, fate, AtCut::Host);
        all.exchanged += counts.exchanged;
        all.undone += counts.undone;
    }
    assert!(all.exchanged > 60, "{all:?}");
}
