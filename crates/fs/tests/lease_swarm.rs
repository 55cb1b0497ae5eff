//! Random runs of several processes that share files by leases, with real logs, overlays, digests and trees, and a crash at the end.
//!
//! The model has all calls that were acknowledged, in their order. A call sees what the model has. After the crash the files are those of
//! the calls that were durable: in a synchronous run all of them.

mod common;
mod lease;
mod process;
mod program;
use base::Rng;
use lease::world::{Broken, Counts, Setup, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn run(seed: u64, broken: Broken) -> Counts {
    let mut rng = Rng::new(seed);
    let setup = Setup {
        processes: rng.between(2, 4) as usize,
        is_ordered: rng.chance(0.5),
        has_deaths: rng.chance(0.6),
        hold: [0, 3, 20][rng.below(3) as usize],
        broken,
    };
    let settles = rng.chance(0.5);
    let mut world = World::new(setup, rng);
    for _ in 0..6000 {
        world.step();
    }
    if settles {
        world.settle();
    }
    world.crash();
    world.counts
}

#[test]
fn processes_that_share_files_see_what_was_done_and_keep_it_through_a_crash() {
    let mut all = Counts::default();
    for seed in 0..60 {
        let counts = run(seed, Broken::No);
        all.calls += counts.calls;
        all.handed += counts.handed;
        all.moves += counts.moves;
        all.closed += counts.closed;
        all.lies += counts.lies;
        all.lost += counts.lost;
    }
    println!("{all:?}");
    assert!(all.calls > 2500 && all.handed > 5000, "{all:?}");
    assert!(
        all.moves > 100 && all.closed > 50 && all.lies > 500 && all.lost > 5,
        "{all:?}"
    );
}

#[test]
fn a_run_is_the_same_each_time() {
    for seed in 0..3 {
        assert_eq!(run(seed, Broken::No), run(seed, Broken::No));
    }
}

#[test]
fn a_swarm_notices_a_rule_that_is_not_kept() {
    let rules = [
        Broken::Undigested,
        Broken::OneRoot,
        Broken::Unmoved,
        Broken::Undurable,
        Broken::Stale,
    ];
    for broken in rules {
        let noticed = (0..400).find(|seed| catch_unwind(AssertUnwindSafe(|| run(*seed, broken))).is_err());
        println!("{broken:?}: seed {noticed:?}");
        assert!(noticed.is_some(), "{broken:?} passes");
    }
}
