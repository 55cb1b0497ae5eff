//! The control plane under load: volumes are created, grown, deleted and exchanged while clients go on, the registry is
//! slow and silent, and the gateway's process crashes between any two steps.

use base::Duration;
use rack::registry::Durability;
use sim::client::{LoadSpec, Pace};
use sim::commands::{Counts, Wish};
use sim::operators::Control;
use sim::rack::RackFleet;
use sim::registry::{ControlCanary, RegistryModel};
use sim::run::{Outcome, Run, RunSpec};
use sim::small;
use sim::swarm::{SwarmOptions, draw};
use sim::workload::Mix;

const MILLISECOND: u64 = 1_000_000;
const NODES: u32 = 4;

/// Slow, and often silent.
const TROUBLED: RegistryModel = RegistryModel {
    latency_ns_max: 2 * MILLISECOND,
    failing: 0.1,
    unknown: 0.3,
    conflicting: 0.1,
    away_ns: (0, 0),
    cut_off: None,
};

fn rack() -> RackFleet {
    let layout = |replicas| small::layout(40, replicas, Durability::Memory);
    let volumes = vec![layout(2), layout(1), layout(2)];
    RackFleet::new(small::options(NODES, small::geometry(3, 1), volumes))
}

/// Each kind of command, one after the other and some at once.
fn plan() -> Vec<(u64, Wish)> {
    let create = |used| Wish::Create {
        pages: 30,
        replicas: 2,
        used,
    };
    [
        (200, create(false)),
        (300, create(true)),
        (500, Wish::Exchange),
        (500, Wish::Grow { pages: 30 }),
        (700, Wish::Delete),
        (800, Wish::Grow { pages: 1 }),
    ]
    .map(|(at, wish)| (at * MILLISECOND, wish))
    .to_vec()
}

fn run(seed: u64, change: impl FnOnce(&mut Control)) -> (Outcome, Counts, u64) {
    let mut fleet = rack();
    let load = |volume| LoadSpec {
        pace: Pace::Open {
            per_second: 1_000.0,
            outstanding_max: 64,
        },
        mix: Mix {
            flush: 0.02,
            ..Mix::writes(0.7)
        },
        ..LoadSpec::new(fleet.gateway_of(volume), volume, 900)
    };
    let loads = (0..fleet.options().volumes.len()).map(load).collect();
    let spec = RunSpec {
        calm_ns: 900 * MILLISECOND,
        ..small::spec(&fleet, seed, small::LINK, loads)
    };
    let mut control = Control {
        calm_ns: spec.calm_ns,
        ..Control::sound(seed, Duration::from_secs(1))
    };
    change(&mut control);
    fleet.operate(control, plan());
    let mut run = Run::new(fleet, spec);
    let outcome = run.execute();
    let operators = run.fleet().operators();
    (outcome, operators.counts(), operators.sabotaged())
}

#[test]
fn every_command_is_carried_out_under_load() {
    let (outcome, counts, _) = run(1, |_| ());
    assert_eq!(outcome.violations, []);
    let expected = Counts {
        created: 2,
        grown: 2,
        deleted: 1,
        exchanged: 1,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
}

#[test]
fn a_registry_with_troubles_breaks_no_promise() {
    let mut all = Counts::default();
    for seed in 0..20 {
        let (outcome, counts, _) = run(seed, |control| control.registry = TROUBLED);
        assert_eq!(outcome.violations, [], "seed {seed}");
        all.created += counts.created;
        all.grown += counts.grown;
        all.refused += counts.refused;
    }
    assert!(all.created > 10 && all.grown > 10 && all.refused > 5, "{all:?}");
}

#[test]
fn the_process_may_crash_between_any_two_steps() {
    for at in (1..200).step_by(3) {
        let (outcome, ..) = run(at, |control| {
            control.crash_at = Some(at);
            control.registry = if at % 2 == 0 {
                TROUBLED
            } else {
                RegistryModel::default()
            };
        });
        assert_eq!(outcome.violations, [], "crash before output {at}");
    }
}

#[test]
fn every_broken_promise_is_seen() {
    for canary in [
        ControlCanary::ForgetStores,
        ControlCanary::TrustUnknown,
        ControlCanary::ShowEarly,
        ControlCanary::HalfDecision,
        ControlCanary::KeepDeleted,
    ] {
        let mut is_seen = false;
        for seed in 0..8 {
            let (outcome, _, sabotaged) = run(seed, |control| {
                control.canary = canary;
                control.registry = RegistryModel {
                    failing: 0.0,
                    ..TROUBLED
                };
            });
            is_seen = !outcome.violations.is_empty();
            assert!(sabotaged > 0 || !is_seen, "{canary:?} seed {seed}");
            if is_seen {
                break;
            }
        }
        assert!(is_seen, "{canary:?} was not seen");
    }
}

#[test]
fn the_swarm_changes_volumes_too() {
    let mut all = Counts::default();
    for seed in 0..100 {
        let options = SwarmOptions {
            failing_media: false,
            ..SwarmOptions::default()
        };
        let (fleet, spec) = draw(seed, options);
        let mut run = Run::new(fleet, spec);
        assert_eq!(run.execute().violations, [], "seed {seed}");
        let counts = run.fleet().operators().counts();
        all.created += counts.created;
        all.grown += counts.grown;
        all.deleted += counts.deleted;
        all.exchanged += counts.exchanged;
        all.undone += counts.undone;
        all.unanswered += counts.unanswered;
    }
    let least = [all.created, all.grown, all.exchanged, all.undone];
    assert!(least.iter().all(|count| *count > 5), "{all:?}");
    assert!(all.deleted > 3 && all.unanswered > 3, "{all:?}");
}
