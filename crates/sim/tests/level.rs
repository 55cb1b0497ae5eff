//! A rack whose parts are replaced by newer ones, one after the other, while clients go on.

use base::Duration;
use rack::heal::Rules;
use rack::level::Levels;
use rack::registry::{Durability, SetRecord, Snapshot};
use sim::operators::Control;
use sim::rack::{Failover, RackFleet, RackOptions, Tors};
use sim::run::{Fault, Outcome, Run, RunSpec};
use sim::small;

const SECOND: u64 = 1_000_000_000;
const NODES: u32 = 4;
const GATEWAYS: u32 = 2;
const LOAD_SECONDS: u64 = 44;
/// Between two restarts: so long a set may need to have its copies again.
const PAUSE_NS: u64 = 4 * SECOND;

/// The first start of each part is of the version before, and the second one of this version.
fn upgraded(_host: usize, boot: u32) -> Levels {
    match boot {
        0 => Levels::UNTOLD,
        _ => Levels::BUILD,
    }
}

/// As [`upgraded`], and the third start is of the version before again.
fn with_a_way_back(_host: usize, boot: u32) -> Levels {
    match boot {
        1 => Levels::BUILD,
        _ => Levels::UNTOLD,
    }
}

fn rack(seed: u64, levels: fn(usize, u32) -> Levels) -> RackFleet {
    let layout = |replicas, durability| small::layout(40, replicas, durability);
    let volumes = vec![layout(2, Durability::Memory), layout(3, Durability::Media)];
    let failover = Failover {
        silent_after: Duration::from_millis(500),
        look_every: Duration::from_secs(1),
        seed,
        one_session: false,
    };
    let mut options = RackOptions {
        gateways: GATEWAYS,
        tors: Tors::Two,
        failover: Some(failover),
        levels,
        ..small::options(NODES, small::geometry(10, 1), volumes)
    };
    options.unit.gc.check_every = Duration::from_millis(1);
    let mut fleet = RackFleet::new(options);
    let rules = Rules {
        rebuild_after: Duration::from_secs(3),
        ..Rules::default()
    };
    let control = Control {
        heal: Some(rules),
        ..Control::sound(seed, Duration::from_secs(1))
    };
    fleet.operate(control, Vec::new());
    fleet
}

/// The parts in the order in which an operator replaces them: nodes, ToRs, gateways.
fn parts(fleet: &RackFleet) -> Vec<usize> {
    let nodes = (0..NODES).map(|i| fleet.node(i));
    let gateways = (0..GATEWAYS).map(|i| fleet.gateway(i));
    nodes.chain(fleet.tors()).chain(gateways).collect()
}

struct End {
    outcome: Outcome,
    stored: Snapshot,
}

impl End {
    /// How often each part has told of this.
    fn told(&self, name: &str) -> usize {
        let events = self.outcome.events.iter().map(ToString::to_string);
        events.filter(|event| event.contains(name)).count()
    }
}

/// Restarts these parts one after the other.
fn run(seed: u64, levels: fn(usize, u32) -> Levels, restarted: impl FnOnce(Vec<usize>) -> Vec<usize>) -> End {
    let fleet = rack(seed, levels);
    let hosts = restarted(parts(&fleet));
    let faults = hosts.iter().enumerate().map(|(nth, &host)| {
        let down_ns = SECOND / 2;
        (SECOND + nth as u64 * PAUSE_NS, Fault::Crash { host, down_ns })
    });
    let mut spec = RunSpec {
        calm_ns: LOAD_SECONDS * SECOND,
        pool_pages: 1 << 15,
        ..small::spec(
            &fleet,
            seed,
            small::LINK,
            small::mixed_loads(&fleet, 100.0, LOAD_SECONDS),
        )
    };
    spec.faults = faults.collect();
    let mut run = Run::new(fleet, spec);
    let outcome = run.execute();
    let stored = run.fleet().operators().stored().clone();
    assert_eq!(outcome.violations, [], "seed {seed}: {stored:?}");
    End { outcome, stored }
}

#[test]
fn the_level_rises_when_the_last_part_was_replaced_and_no_copy_is_lost() {
    for seed in 0..2 {
        let end = run(seed, upgraded, |parts| parts);
        assert_eq!(end.stored.level, 2, "seed {seed}");
        // Both gateways tell it.
        assert_eq!(end.told("level-raised"), 2, "seed {seed}");
        assert_eq!(end.told("refused"), 0, "seed {seed}");
        let mut sets = end.stored.volumes.iter().flat_map(|volume| &volume.sets);
        assert!(sets.all(SetRecord::is_whole), "seed {seed}: {:?}", end.stored);
    }
}

#[test]
fn one_part_of_the_version_before_holds_the_level_back_whichever_it_is() {
    let count = (NODES + 2 + GATEWAYS) as usize;
    for old in 0..count {
        let end = run(old as u64, upgraded, |mut parts| {
            parts.remove(old);
            parts
        });
        assert_eq!((end.stored.level, end.told("level-raised")), (0, 0), "part {old}");
    }
}

#[test]
fn a_node_that_goes_back_to_the_version_before_is_refused_and_its_copies_are_made_elsewhere() {
    let end = run(9, with_a_way_back, |mut parts| {
        parts.push(parts[0]);
        parts
    });
    assert_eq!(end.stored.level, 2);
    assert!(end.told("node-refused") >= 2, "the node and a gateway tell it");
    assert_eq!(end.stored.members_on(1), 0, "{:?}", end.stored);
    let mut sets = end.stored.volumes.iter().flat_map(|volume| &volume.sets);
    assert!(sets.all(SetRecord::is_whole), "{:?}", end.stored);
}
