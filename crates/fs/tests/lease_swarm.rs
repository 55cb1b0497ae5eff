//! Random runs of several processes that share files by leases, with real logs, overlays, digests and trees, and a crash at the end.
//!
//! The model has all calls that were acknowledged, in their order. A call sees what the model has. After the crash the files are those of
//! the calls that were durable: in a synchronous run all of them.

use crate::lease::world::{Broken, Counts, Setup, World};
use base::Rng;
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

/// More of the same.
#[test]
#[ignore = "a minute"]
fn processes_that_share_files_keep_their_promises_in_more_runs() {
    let calls: u64 = (60..6000).map(|seed| run(seed, Broken::No).calls).sum();
    println!("{calls} calls");
    assert!(calls > 250_000, "{calls}");
}

/// Why a run failed, if it did.
fn failure(seed: u64, broken: Broken) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| run(seed, broken))).err()?;
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Some(text.unwrap_or_default())
}

#[test]
fn a_swarm_notices_a_rule_that_is_not_kept() {
    let rules = [
        (Broken::Undigested, "left == right"),
        (Broken::OneRoot, "left == right"),
        (Broken::Unmoved, "can be done: Invalid"),
        (Broken::Undurable, "left == right"),
        (Broken::Stale, "left == right"),
    ];
    for (broken, expected) in rules {
        let mut found = (0..2000).filter_map(|seed| failure(seed, broken).map(|text| (seed, text)));
        let (seed, text) = found.next().unwrap_or_else(|| panic!("{broken:?} passes"));
        assert!(text.contains(expected), "{broken:?}, seed {seed}: {text}");
    }
}
