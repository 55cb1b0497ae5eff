//! The swarm finds no broken promise, and comes into the situations that it is made for.

use sim::reached::{Reached, Situation};
use sim::run::Run;
use sim::swarm::{SwarmOptions, draw};

/// Seeds of the test run; `switchyard sim swarm` runs as many as one likes.
const SEEDS: u64 = 100;
/// Seeds within which each situation is reached.
const SEEDS_TO_REACH_ALL: u64 = 400;

#[test]
fn the_swarm_finds_no_broken_promise_and_every_situation_is_reached() {
    let mut reached = Reached::default();
    for seed in 0..SEEDS_TO_REACH_ALL {
        let (fleet, spec) = draw(seed, SwarmOptions::default());
        let outcome = Run::new(fleet, spec).execute();
        assert_eq!(outcome.violations, [], "seed {seed}");
        reached.add_run(&outcome.reached);
        let mut situations = Situation::ALL.iter();
        if seed + 1 >= SEEDS && situations.all(|(situation, _)| reached.count(*situation) > 0) {
            return;
        }
    }
    let missed = Situation::ALL
        .iter()
        .filter(|(situation, _)| reached.count(*situation) == 0);
    let missed: Vec<&str> = missed.map(|(_, name)| *name).collect();
    assert_eq!(missed, [""; 0], "within {SEEDS_TO_REACH_ALL} seeds");
}
