//! Nodes read their own pages while clients are away, and what is damaged comes from a peer.

use base::Duration;
use base::event::{Kind, Look, Metadata as Part};
use host::gateway::Reads;
use rack::control::NodeStatus;
use rack::heal::Rules;
use rack::registry::Durability;
use rack::scrub;
use sim::client::LoadSpec;
use sim::fault::Metadata;
use sim::operators::Control;
use sim::rack::{RackFleet, RackHost, RackOptions};
use sim::reached::Situation;
use sim::run::{Fault, Outcome, Run, RunSpec};
use sim::small;
use sim::workload::{Mix, Pattern};
use sim::world::Canary;

const SECOND: u64 = 1_000_000_000;
const PAGES: u32 = 40;
const LOAD_SECONDS: u64 = 2;
/// The first node: one of two that have the volume.
const DAMAGED: usize = 1;
const GONE: usize = 2;

const OFTEN: scrub::Options = scrub::Options {
    bytes_per_s: 1 << 20,
    every: Duration::from_secs(1),
};

/// Clients write, and are away. Bits flip on the medium of one of two nodes; later the other node is gone for ever.
fn run(seed: u64, scrub: scrub::Options) -> Outcome {
    let flips = (0..60).map(|nth| (4 * SECOND + nth, Fault::Corrupt { host: DAMAGED }));
    let faults = flips.chain([(8 * SECOND, Fault::Gone { host: GONE })]);
    run_with(seed, scrub, Duration::from_secs(1), faults.collect())
}

/// The same with bits of what describes the data. The damaged node starts again when it is alone, and before a copy is made elsewhere.
fn run_metadata(seed: u64, scrub: scrub::Options, part: Metadata) -> Outcome {
    let host = DAMAGED;
    let flips = (0..40).map(|nth| (4 * SECOND + nth, Fault::CorruptMetadata { host, part }));
    let down_ns = SECOND / 10;
    let losses = [
        (8 * SECOND, Fault::Gone { host: GONE }),
        (11 * SECOND, Fault::Crash { host, down_ns }),
    ];
    run_with(seed, scrub, Duration::from_secs(8), flips.chain(losses).collect())
}

fn run_with(seed: u64, scrub: scrub::Options, rebuild_after: Duration, faults: Vec<(u64, Fault)>) -> Outcome {
    let mut options = RackOptions {
        scrub,
        ..small::options(
            4,
            small::geometry(6, 1),
            vec![small::layout(PAGES, 2, Durability::Memory)],
        )
    };
    options.unit.gc.check_every = Duration::from_millis(1);
    let mut fleet = RackFleet::new(options);
    let rules = Rules {
        rebuild_after,
        ..Rules::default()
    };
    fleet.operate(
        Control {
            heal: Some(rules),
            ..Control::sound(seed, Duration::from_secs(1))
        },
        Vec::new(),
    );
    let loads = small::mixed_loads(&fleet, 300.0, LOAD_SECONDS);
    let spec = RunSpec {
        calm_ns: 12 * SECOND,
        errors_are_violations: true,
        faults,
        ..small::spec(&fleet, seed, small::LINK, loads)
    };
    Run::new(fleet, spec).execute()
}

fn count(outcome: &Outcome, is_one: impl Fn(&Kind) -> bool) -> usize {
    outcome.events.iter().filter(|event| is_one(&event.kind)).count()
}

/// Bug: damage that no client had read stayed until the other copy was lost, and then the page was. Cause: nobody looked.
#[test]
fn damage_is_found_and_repaired_before_the_other_copy_is_lost() {
    let mut found = 0;
    for seed in 0..6 {
        let outcome = run(seed, OFTEN);
        assert_eq!(outcome.violations, [], "seed {seed}");
        let damaged = count(&outcome, |kind| {
            matches!(
                kind,
                Kind::PageDamaged {
                    found: Look::Scrub,
                    ..
                }
            )
        });
        let repaired = count(&outcome, |kind| {
            matches!(
                kind,
                Kind::PageRepaired {
                    found: Look::Scrub,
                    ..
                }
            )
        });
        assert_eq!(damaged, repaired, "seed {seed}");
        assert_eq!(
            outcome.reached.count(Situation::ScrubRepaired) as usize,
            repaired,
            "seed {seed}"
        );
        found += damaged;
    }
    assert!(found > 20, "{found}");
    let missed = (0..6).filter(|&seed| !run(seed, scrub::Options::OFF).violations.is_empty());
    assert!(missed.count() > 3, "without scrubbing pages are lost");
}

/// Bug: damage of checkpoints, spare areas and the superblock stayed until a start needed them. With the other copy lost meanwhile,
/// the data were. Cause: nobody looked. Fix: they are read, and written anew from memory; a new checkpoint makes spare areas needless.
#[test]
fn damaged_metadata_is_written_anew_before_a_start_needs_it() {
    let cases = [
        (Metadata::Checkpoint, Some(Part::Checkpoint)),
        (Metadata::Spare, None),
        (Metadata::Superblock, Some(Part::Superblock)),
    ];
    for (damaged, told) in cases {
        let (mut found, mut lost) = (0, 0);
        for seed in 0..6 {
            let outcome = run_metadata(seed, OFTEN, damaged);
            assert_eq!(outcome.violations, [], "{damaged:?}, seed {seed}");
            found += count(
                &outcome,
                |kind| matches!(kind, Kind::MetadataDamaged { part, .. } if Some(*part) == told),
            );
            let unread = run_metadata(seed, scrub::Options::OFF, damaged);
            lost += usize::from(!unread.violations.is_empty());
        }
        println!("{damaged:?}: told {found} times, lost in {lost} runs without scrubbing");
        assert_eq!(found > 0, told.is_some(), "{damaged:?}");
        // The other slot of the superblock has the same.
        assert_eq!(lost > 0, damaged != Metadata::Superblock, "{damaged:?}");
    }
}

/// What a follower acknowledges and does not keep is found although nobody reads there. Members that keep what they acknowledge
/// compare and find nothing.
#[test]
fn members_that_hold_something_else_are_found() {
    for (seed, canary) in
        (0..10).map(|seed| (seed, [Canary::None, Canary::AckWithoutApply][seed as usize % 2]))
    {
        let mut options = RackOptions {
            scrub: scrub::Options {
                bytes_per_s: 1 << 20,
                every: Duration::from_millis(500),
            },
            reads: Reads::First,
            ..small::options(
                3,
                small::geometry(4, 1),
                vec![small::layout(PAGES, 2, Durability::Memory)],
            )
        };
        options.unit.gc.check_every = Duration::from_millis(1);
        let fleet = RackFleet::new(options);
        // Each page is written once: what is not kept stays so, and no client finds it before.
        let load = LoadSpec {
            pattern: Pattern::Sequential,
            mix: Mix::writes(1.0),
            ..LoadSpec::new(fleet.gateway(0), 0, u64::from(PAGES))
        };
        let mut spec = RunSpec {
            calm_ns: 6 * SECOND,
            exam: false,
            probe: false,
            ..small::spec(&fleet, seed, small::LINK, vec![load])
        };
        spec.world.canary = canary;
        let mut run = Run::new(fleet, spec);
        let outcome = run.execute();
        let nodes: Vec<NodeStatus> = (1..=3).map(|host| status(&mut run, host)).collect();
        let compared: u64 = nodes.iter().map(|node| node.compared_pages).sum();
        let differed: u64 = nodes.iter().map(|node| node.differed_pages).sum();
        assert!(compared >= 4 * u64::from(PAGES), "seed {seed}: {compared}");
        assert_eq!(differed, outcome.world.sabotaged, "seed {seed}");
        assert_eq!(
            outcome.violations.len() as u64,
            differed,
            "seed {seed}: each is told"
        );
        assert_eq!(differed > 0, canary != Canary::None, "seed {seed}");
    }
}

fn status(run: &mut Run<RackFleet>, host: usize) -> NodeStatus {
    let now = run.world().now();
    match run.world().host(host) {
        Some(RackHost::Node(node)) => node.status(now),
        _ => panic!("host {host} is a node, and up"),
    }
}
