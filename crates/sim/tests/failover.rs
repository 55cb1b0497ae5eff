//! Two gateways share their volumes: one serves, the other takes over, and the first one may not know it for long. Clients
//! go on with whoever serves; what they read is checked against one history.

use base::{Duration, Rng};
use rack::registry::Durability;
use sim::check::Violation;
use sim::client::{LoadSpec, Pace, Shape};
use sim::net::{Delay, LinkModel};
use sim::operators::Control;
use sim::rack::{Failover, RackFleet, RackOptions};
use sim::reached::Situation;
use sim::run::{Fault, Outcome, Run, RunSpec};
use sim::small;
use sim::workload::{Mix, Pattern};

const MILLISECOND: u64 = 1_000_000;
const PAGES: u32 = 24;
const NODES: u32 = 3;
const GATEWAYS: [usize; 2] = [1 + NODES as usize, 2 + NODES as usize];
/// Faults come until then.
const CALM_NS: u64 = 1_500 * MILLISECOND;

fn failover(seed: u64) -> Failover {
    Failover {
        silent_after: Duration::from_millis(20),
        // One that was replaced has time to write on.
        look_every: Duration::from_millis(100),
        seed,
        one_session: false,
    }
}

fn rack(failover: Failover) -> RackFleet {
    let layout = |durability| small::layout(PAGES, 2, durability);
    let volumes = vec![layout(Durability::Memory), layout(Durability::Media)];
    let mut fleet = RackFleet::new(RackOptions {
        gateways: GATEWAYS.len() as u32,
        failover: Some(failover),
        client_link: link(),
        ..small::options(NODES, small::geometry(2, 1), volumes)
    });
    fleet.operate(Control::sound(failover.seed, Duration::from_secs(1)), Vec::new());
    fleet
}

/// Slow and uneven, so that there are always requests of both gateways under way.
fn link() -> LinkModel {
    LinkModel {
        delay: Delay::SLOW,
        ..LinkModel::default()
    }
}

/// Small pages' parts on few pages, at both gateways, for each volume.
fn loads(volumes: usize) -> Vec<LoadSpec> {
    let load = |volume, gateway| LoadSpec {
        pace: Pace::Closed { depth: 6 },
        pattern: Pattern::Uniform,
        mix: Mix {
            flush: 0.02,
            trim: 0.03,
            ..Mix::writes(0.6)
        },
        shape: Shape {
            sub_page: 0.7,
            multi_page: 0.1,
            pages_max: 3,
        },
        fua: 0.05,
        ..LoadSpec::new(gateway, volume, 1_500)
    };
    let volumes = 0..volumes;
    let both = volumes.flat_map(|volume| GATEWAYS.map(|gateway| (volume, gateway)));
    both.map(|(volume, gateway)| load(volume, gateway)).collect()
}

fn spec(fleet: &RackFleet, seed: u64, faults: Vec<(u64, Fault)>) -> RunSpec {
    let loads = loads(fleet.options().volumes.len());
    RunSpec {
        faults,
        calm_ns: CALM_NS,
        ..small::spec(fleet, seed, link(), loads)
    }
}

/// One run; returns how often the lead moved, too.
fn run(seed: u64, failover: Failover, faults: Vec<(u64, Fault)>) -> (Outcome, u32) {
    let fleet = rack(failover);
    let spec = spec(&fleet, seed, faults);
    let mut run = Run::new(fleet, spec);
    let outcome = run.execute();
    let takeovers = run.fleet().operators().takeovers();
    (outcome, takeovers)
}

/// Gateways are cut off in turn, one way or both ways, for longer than their silence is borne; nodes crash beside it.
fn partitions(seed: u64) -> Vec<(u64, Fault)> {
    let mut rng = Rng::new(seed);
    let mut faults = Vec::new();
    let mut at = rng.between(20, 60) * MILLISECOND;
    while at < CALM_NS - 200 * MILLISECOND {
        let way = rng.below(3);
        faults.push((
            at,
            Fault::Partition {
                host: GATEWAYS[rng.below(2) as usize],
                for_ns: rng.between(25, 160) * MILLISECOND,
                inbound: way != 1,
                outbound: way != 0,
            },
        ));
        // Some after the lead has moved: a node must not forget that.
        if rng.chance(0.5) {
            faults.push((
                at + rng.between(20, 160) * MILLISECOND,
                Fault::Crash {
                    host: 1 + rng.below(u64::from(NODES)) as usize,
                    down_ns: rng.between(1, 30) * MILLISECOND,
                },
            ));
        }
        at += rng.between(40, 250) * MILLISECOND;
    }
    faults.sort_by_key(|fault| fault.0);
    faults
}

#[test]
fn without_faults_each_gateway_serves_a_volume_and_nobody_takes_over() {
    for seed in 0..5 {
        let (outcome, takeovers) = run(seed, failover(seed), Vec::new());
        assert_eq!(outcome.violations, [], "seed {seed}");
        // The first may take both, and gives one away when the other is there.
        assert!((2..=3).contains(&takeovers), "seed {seed}: {takeovers}");
        assert!(outcome.clients.answered > 2_000, "{:?}", outcome.clients);
    }
}

#[test]
fn clients_go_on_with_the_other_gateway_when_one_is_killed() {
    for seed in 0..20 {
        let fault = Fault::Crash {
            host: GATEWAYS[(seed % 2) as usize],
            down_ns: 10_000 * MILLISECOND,
        };
        let at = (30 + 11 * seed) * MILLISECOND;
        let (outcome, takeovers) = run(seed, failover(seed), vec![(at, fault)]);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert!((2..=5).contains(&takeovers), "seed {seed}: {takeovers}");
        let whole = loads(2).iter().map(|load| load.requests).sum::<u64>();
        assert!(outcome.clients.answered >= whole - 24, "{:?}", outcome.clients);
    }
}

#[test]
fn two_gateways_that_both_believe_to_lead_write_one_history() {
    let mut moved = 0;
    for seed in 0..60 {
        let (outcome, takeovers) = run(seed, failover(seed), partitions(seed));
        assert_eq!(outcome.violations, [], "seed {seed}");
        moved += takeovers - 2;
    }
    assert!(moved > 60, "{moved} takeovers");
}

/// Gateways get the same sessions as each other, as a registry that fell back could give them. Nodes stay with the first one: the other
/// does not get on before it has a higher one, and undoes nothing.
#[test]
fn leads_with_one_session_do_not_undo_each_other() {
    let mut refused = 0;
    for seed in 0..6 {
        let failover = Failover {
            one_session: true,
            ..failover(seed)
        };
        let (outcome, _) = run(seed, failover, partitions(seed));
        let undone = |violation: &&Violation| {
            matches!(
                violation,
                Violation::Stale { .. } | Violation::Invented { .. } | Violation::Untold { .. }
            )
        };
        assert_eq!(outcome.violations.iter().find(undone), None, "seed {seed}");
        refused += outcome.reached.count(Situation::LeadRefused);
    }
    assert!(refused > 0, "no lead was refused");
}
