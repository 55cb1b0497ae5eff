//! A member that was expelled and does not know it may answer reads while it has leases, and the others complete no write
//! meanwhile. In these runs somebody reads there, and nowhere else.

use base::{Duration, Instant};
use rack::heal::Rules;
use rack::registry::Durability;
use sim::operators::Control;
use sim::rack::{Failover, RackFleet, RackOptions};
use sim::registry::RegistryModel;
use sim::run::{Fault, Outcome, Run, RunSpec};
use sim::small;
use sim::workload::Mix;
use sim::world::Canary;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const NODES: u32 = 3;
const PAGES: u32 = 40;
const RATE: f64 = 300.0;
const LOAD_SECONDS: u64 = 12;
const CALM_NS: u64 = (LOAD_SECONDS + 9) * SECOND;
/// The lead is taken from the first gateway while it is cut off, from then until then. It does not learn it, as it does not reach the
/// registry.
const REPLACED: (u64, u64) = (SECOND, 17 * SECOND / 10);
/// The member is lost then, at the earliest.
const LOST_AT: u64 = 7 * SECOND / 2;
/// Seeds of each case.
const SEEDS: u64 = 10;

/// How the member is lost: it goes on answering the gateway that was replaced.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Its medium fails. It tells so at once, and goes on hearing its peer.
    Medium,
    /// The gateway that leads and the other nodes do not hear it, nor it them.
    Cut,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    loss: Loss,
    canary: Canary,
    /// The member's clock is slower by so many millionths, and those of the other nodes are faster by as many.
    apart_ppm: i32,
}

fn rack(seed: u64) -> RackFleet {
    let volume = small::layout(PAGES, 2, Durability::Memory);
    let mut fleet = RackFleet::new(RackOptions {
        gateways: 2,
        failover: Some(Failover {
            silent_after: Duration::from_millis(500),
            look_every: Duration::from_millis(500),
            seed,
            one_session: false,
        }),
        // The first member is the one that is lost.
        reads: host::gateway::Reads::First,
        ..small::options(NODES, small::geometry(4, 1), vec![volume])
    });
    let control = Control {
        heal: Some(Rules::default()),
        registry: RegistryModel {
            cut_off: Some((0, REPLACED.0)),
            ..RegistryModel::default()
        },
        calm_ns: CALM_NS,
        ..Control::sound(seed, Duration::from_secs(1))
    };
    fleet.operate(control, Vec::new());
    fleet
}

fn spec(fleet: &RackFleet, seed: u64, case: Case) -> RunSpec {
    let (replaced, lead) = (fleet.gateway(0), fleet.gateway(1));
    let nodes = 1..=NODES as usize;
    let member = usize::from(fleet.records()[0].sets[0].replicas[0].node);
    let mut faults = vec![(
        REPLACED.0,
        Fault::Partition {
            host: replaced,
            for_ns: REPLACED.1 - REPLACED.0,
            inbound: true,
            outbound: true,
        },
    )];
    let rate = |host| Fault::ClockRate {
        host,
        ppm: case.apart_ppm * if host == member { -1 } else { 1 },
    };
    faults.extend(nodes.clone().map(|host| (1, rate(host))));
    let at = LOST_AT + seed * 7 * MILLISECOND;
    let cut = |other| Fault::Cut {
        pair: [member, other],
        for_ns: LOAD_SECONDS * SECOND,
    };
    match case.loss {
        Loss::Medium => faults.push((at, Fault::FailWrite { host: member })),
        Loss::Cut => {
            let others = nodes.filter(|host| *host != member).chain([lead]);
            faults.extend(others.map(|other| (at, cut(other))));
        }
    }
    let mut loads = small::mixed_loads(fleet, RATE, LOAD_SECONDS);
    for load in &mut loads {
        match load.gateway == replaced {
            // A write would tell it.
            true => load.mix = Mix::writes(0.0),
            false => load.start = Instant::from_nanos(REPLACED.1),
        }
    }
    let mut spec = RunSpec {
        faults,
        calm_ns: CALM_NS,
        exam: false,
        read_back: false,
        probe: false,
        pool_pages: 1 << 15,
        ..small::spec(fleet, seed, small::LINK, loads)
    };
    spec.world.canary = case.canary;
    spec
}

fn run(seed: u64, case: Case) -> Outcome {
    let fleet = rack(seed);
    let spec = spec(&fleet, seed, case);
    Run::new(fleet, spec).execute()
}

/// What the runs of a case came to.
#[derive(Debug, Default)]
struct Found {
    /// Seeds in which a promise is broken.
    broken: u64,
    /// Reads that the member answered after it was expelled, and refused.
    reads: u64,
    refusals: u64,
}

fn found(case: Case) -> Found {
    let mut found = Found::default();
    for seed in 0..SEEDS {
        let outcome = run(seed, case);
        found.broken += u64::from(!outcome.violations.is_empty());
        found.reads += outcome.world.expelled_reads;
        found.refusals += outcome.world.expelled_refusals;
    }
    println!("{case:?}: {found:?}");
    found
}

const SOUND: Case = Case {
    loss: Loss::Medium,
    canary: Canary::None,
    apart_ppm: 0,
};

#[test]
fn nobody_reads_what_is_old_at_a_member_that_was_expelled() {
    for loss in [Loss::Medium, Loss::Cut] {
        for apart_ppm in [0, 24_000] {
            let case = Case {
                loss,
                apart_ppm,
                ..SOUND
            };
            let Found {
                broken,
                reads,
                refusals,
            } = found(case);
            assert_eq!(broken, 0, "{case:?}: the clocks agree within 5 %");
            // It has read there while the leases were not over, and not when they were.
            assert!(
                reads > 0 && refusals > 0,
                "{case:?}: {reads} reads, {refusals} refusals"
            );
        }
    }
}

#[test]
fn an_expelled_member_that_has_leases_for_ever_is_found() {
    let canary = Canary::ForgeLease;
    assert_eq!(found(Case { canary, ..SOUND }).broken, SEEDS);
}

#[test]
fn members_that_do_not_wait_for_the_leases_of_an_expelled_one_are_found() {
    let canary = Canary::HideExpelled;
    for loss in [Loss::Medium, Loss::Cut] {
        let case = Case {
            loss,
            canary,
            ..SOUND
        };
        // After a medium has failed, some runs have no read in between.
        assert!(found(case).broken > SEEDS / 2, "{case:?}");
    }
}

#[test]
fn clocks_whose_rates_differ_by_more_than_leases_bear_are_found() {
    let case = Case {
        loss: Loss::Cut,
        apart_ppm: 250_000,
        ..SOUND
    };
    // In some runs nobody reads at the member in between.
    assert!(found(case).broken > SEEDS / 2);
}
