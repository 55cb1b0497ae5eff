//! The swarm comes into the situations that it is made for.

use sim::reached::{Reached, Situation};
use sim::run::Run;
use sim::swarm::{SwarmOptions, draw};

/// Seeds within which each situation is reached.
const SEEDS: u64 = 400;

#[test]
fn every_situation_is_reached() {
    let mut reached = Reached::default();
    for seed in 0..SEEDS {
        let (fleet, spec) = draw(seed, SwarmOptions::default());
        let outcome = Run::new(fleet, spec).execute();
        assert_eq!(outcome.violations, [], "seed {seed}");
        reached.add_run(&outcome.reached);
        if Situation::ALL
            .iter()
            .all(|(situation, _)| reached.count(*situation) > 0)
        {
            println!("all after {seed}");
            return;
        }
    }
    let missed = Situation::ALL
        .iter()
        .filter(|(situation, _)| reached.count(*situation) == 0);
    let missed: Vec<&str> = missed.map(|(_, name)| *name).collect();
    assert_eq!(missed, [""; 0], "within {SEEDS} seeds");
}
