//! Nodes are drained, removed, added and replaced while clients go on, and whatever can crash does so meanwhile.

use base::{Duration, NodeId, Rng};
use rack::heal::Rules;
use rack::registry::{Durability, SetRecord, Snapshot};
use sim::commands::{Counts, Wish};
use sim::operators::Control;
use sim::rack::{Failover, Layout, RackFleet, RackHost, RackOptions};
use sim::run::{Fault, Outcome, Run, RunSpec};
use sim::small;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const PAGES: u32 = 40;
const NODES: u32 = 4;
const RATE: f64 = 300.0;
const LOAD_SECONDS: u64 = 12;

fn rack(gateways: u32, seed: u64, plan: Vec<(u64, Wish)>) -> RackFleet {
    let layout = |replicas, durability| Layout {
        sets: 2,
        ..small::layout(PAGES, replicas, durability)
    };
    let volumes = vec![
        layout(2, Durability::Memory),
        layout(1, Durability::Memory),
        layout(3, Durability::Memory),
        layout(2, Durability::Media),
    ];
    let failover = (gateways > 1).then_some(Failover {
        silent_after: Duration::from_millis(500),
        look_every: Duration::from_secs(1),
        seed,
        one_session: false,
    });
    let mut options = RackOptions {
        gateways,
        failover,
        ..small::options(NODES, small::geometry(10, 1), volumes)
    };
    options.unit.gc.check_every = Duration::from_millis(1);
    let mut fleet = RackFleet::new(options);
    let rules = Rules {
        rebuild_after: Duration::from_secs(3),
        patience: Duration::from_secs(10),
        ..Rules::default()
    };
    let control = Control {
        heal: Some(rules),
        ..Control::sound(seed, Duration::from_secs(1))
    };
    fleet.operate(control, plan);
    fleet
}

fn spec(fleet: &RackFleet, seed: u64) -> RunSpec {
    let loads = small::mixed_loads(fleet, RATE, LOAD_SECONDS);
    RunSpec {
        calm_ns: (LOAD_SECONDS + 9) * SECOND,
        exam: false,
        pool_pages: 1 << 15,
        ..small::spec(fleet, seed, small::LINK, loads)
    }
}

/// A run, and what it has left.
struct End {
    outcome: Outcome,
    stored: Snapshot,
    moved: u32,
    has_lost_copies: bool,
    counts: Counts,
    /// vSSDs of each node.
    vssds: Vec<usize>,
}

fn run(gateways: u32, seed: u64, plan: Vec<(u64, Wish)>, change: impl FnOnce(&mut RunSpec)) -> End {
    let fleet = rack(gateways, seed, plan);
    let mut spec = spec(&fleet, seed);
    change(&mut spec);
    let mut run = Run::new(fleet, spec);
    let outcome = run.execute();
    let vssds = (1..=NODES as usize).map(|index| match run.world().host(index) {
        Some(RackHost::Node(node)) => node.units().count(),
        _ => 0,
    });
    let vssds = vssds.collect();
    let operators = run.fleet().operators();
    let stored = operators.stored().clone();
    if !outcome.violations.is_empty() {
        let events = outcome.events.iter().map(ToString::to_string);
        let telling = events.filter(|event| !event.contains("collection-") && !event.contains("lease-"));
        telling.for_each(|event| println!("{event}"));
    }
    assert_eq!(outcome.violations, [], "seed {seed}: {stored:?}");
    let mut sets = stored.volumes.iter().flat_map(|volume| &volume.sets);
    assert!(sets.all(SetRecord::is_whole), "seed {seed}: {stored:?}");
    End {
        moved: operators.moved(),
        has_lost_copies: operators.have_lost_copies(),
        counts: operators.counts(),
        outcome,
        stored,
        vssds,
    }
}

/// Without any fault: no client sees an error, no set has fewer copies, and requests wait for moments.
fn calmly(seed: u64, plan: Vec<(u64, Wish)>) -> End {
    let end = run(1, seed, plan, |spec| spec.errors_are_violations = true);
    assert!(!end.has_lost_copies, "seed {seed}");
    let counts = end.counts;
    assert_eq!(
        (counts.impossible, counts.refused),
        (0, 0),
        "seed {seed}: {counts:?}"
    );
    let latencies = &end.outcome.latencies;
    let took = latencies.read.max().max(latencies.write.max()) / MILLISECOND;
    assert!(took <= 100, "seed {seed}: a request took {took} ms");
    end
}

fn node(seed: u64) -> NodeId {
    NodeId(1 + (seed % u64::from(NODES)) as u8)
}

#[test]
fn a_node_that_is_drained_under_load_is_empty_at_the_end_and_nobody_notices() {
    for seed in 0..16 {
        let node = node(seed);
        let end = calmly(seed, vec![(SECOND, Wish::Drain(node))]);
        assert_eq!(end.stored.members_on(node.0), 0, "seed {seed}");
        assert_eq!(
            end.vssds[usize::from(node.0) - 1],
            0,
            "seed {seed}: {:?}",
            end.vssds
        );
        assert!(end.moved >= 3, "seed {seed}: {} moved", end.moved);
    }
}

#[test]
fn a_node_is_drained_removed_and_added_under_load() {
    for seed in 0..12 {
        let node = node(seed);
        let plan = vec![
            (SECOND, Wish::Drain(node)),
            (6 * SECOND, Wish::Remove(node)),
            (7 * SECOND, Wish::Add(node)),
        ];
        let end = calmly(seed, plan);
        let stored = &end.stored;
        assert!(stored.has_node(node.0) && stored.removed.is_empty() && stored.drains.is_empty());
        let (most, fewest) = (end.vssds.iter().max(), end.vssds.iter().min());
        let gap = most.zip(fewest).map(|(most, fewest)| most - fewest);
        assert!(gap.is_some_and(|gap| gap <= 1), "seed {seed}: {:?}", end.vssds);
    }
}

#[test]
fn a_node_takes_the_place_of_another_under_load() {
    for seed in 0..12 {
        let (new, old) = (node(seed), node(seed + 1));
        let plan = vec![
            (SECOND, Wish::Drain(new)),
            (6 * SECOND, Wish::Remove(new)),
            (7 * SECOND, Wish::Replace { old, new }),
        ];
        let end = calmly(seed, plan);
        assert!(!end.stored.has_node(old.0) && end.stored.has_node(new.0));
        assert_eq!(
            end.vssds[usize::from(old.0) - 1],
            0,
            "seed {seed}: {:?}",
            end.vssds
        );
    }
}

#[test]
fn volumes_get_more_copies_and_fewer_under_load() {
    for seed in 0..12 {
        let copies = |replicas| Wish::Copies { replicas };
        let plan = vec![
            (SECOND, copies(3)),
            (2 * SECOND, copies(1)),
            (4 * SECOND, copies(2)),
            (5 * SECOND, copies(3)),
        ];
        let end = run(1, seed, plan, |spec| spec.errors_are_violations = true);
        let sets = end.stored.volumes.iter().flat_map(|volume| &volume.sets);
        let copies: usize = sets.map(|set| set.replicas.len()).sum();
        assert_eq!(
            copies,
            end.vssds.iter().sum::<usize>(),
            "seed {seed}: nothing is left behind"
        );
    }
}

/// As many seeds, unless `MOVES_SEEDS` asks for more (and `MOVES_FIRST` for others).
fn seeds(count: u64) -> core::ops::Range<u64> {
    let asked = |name| {
        std::env::var(name)
            .ok()
            .map(|asked| asked.parse().expect("a number"))
    };
    let first = asked("MOVES_FIRST").unwrap_or(0);
    first..first + asked("MOVES_SEEDS").unwrap_or(count)
}

/// Gateways, nodes and the whole rack crash, or are cut off, while a node is drained: the drain goes on afterwards.
#[test]
fn a_drain_survives_whatever_happens() {
    let mut moved = 0;
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let gateways = 1 + (seed % 2) as u32;
        let faults = faults(&mut rng, gateways);
        let node = node(rng.below(100));
        println!("seed {seed}, {gateways} gateways, node {node:?}: {faults:?}");
        let end = run(gateways, seed, vec![(SECOND, Wish::Drain(node))], |spec| {
            spec.faults = faults
        });
        // The gateway may have crashed before the wish was noted.
        if end.stored.drain_of(node.0).is_some() {
            assert_eq!(end.stored.members_on(node.0), 0, "seed {seed}");
            moved += end.moved;
        }
    }
    println!("{moved} moved");
    assert!(u64::from(moved) > seeds(40).count() as u64);
}

/// The same, while nodes come and go and volumes get more copies and fewer.
#[test]
fn changes_of_nodes_and_copies_survive_whatever_happens() {
    let mut all = Counts::default();
    let mut moved = 0;
    // Seed 1248: a copy was given up though the node of the other one had just crashed.
    for seed in seeds(40).chain([1248]) {
        let mut rng = Rng::new(!seed);
        let gateways = 1 + (seed % 2) as u32;
        let (plan, faults) = (plan(&mut rng), faults(&mut rng, gateways));
        println!("seed {seed}, {gateways} gateways: {plan:?} {faults:?}");
        let end = run(gateways, seed, plan, |spec| spec.faults = faults);
        all.refused += end.counts.refused;
        all.unanswered += end.counts.unanswered;
        moved += end.moved;
    }
    println!("{moved} moved, {all:?}");
    assert!(u64::from(moved) > seeds(40).count() as u64);
}

/// A node that goes is back in the end: volumes of three copies need three nodes.
fn plan(rng: &mut Rng) -> Vec<(u64, Wish)> {
    let node = node(rng.below(100));
    let at = |rng: &mut Rng, from: u64, to: u64| rng.between(from * SECOND, to * SECOND);
    let copies = |rng: &mut Rng| Wish::Copies {
        replicas: rng.between(1, 4) as u8,
    };
    vec![
        (at(rng, 1, 2), Wish::Drain(node)),
        (at(rng, 2, 6), copies(rng)),
        (at(rng, 4, 7), Wish::Remove(node)),
        (at(rng, 2, 8), copies(rng)),
        (at(rng, 8, 9), Wish::StopDrain(node)),
        (at(rng, 9, 10), Wish::Add(node)),
    ]
}

fn faults(rng: &mut Rng, gateways: u32) -> Vec<(u64, Fault)> {
    let hosts = u64::from(NODES + gateways);
    let fault = |rng: &mut Rng| {
        let at = rng.between(SECOND, 4 * SECOND);
        let host = 1 + rng.below(hosts) as usize;
        let long = rng.between(5 * MILLISECOND, 4 * SECOND);
        let fault = match rng.below(6) {
            0..=2 => Fault::Crash { host, down_ns: long },
            3 | 4 => Fault::Partition {
                host,
                for_ns: long,
                inbound: true,
                outbound: rng.below(2) == 0,
            },
            _ => Fault::PowerLoss { down_ns: long / 10 },
        };
        (at, fault)
    };
    (0..rng.between(1, 4)).map(|_| fault(rng)).collect()
}
