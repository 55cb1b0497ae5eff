//! Files of programs in an area, from a seed.

use sim::check::Violation;
use sim::files::{FilesOptions, run};
use sim::swarm::{SwarmOptions, run_once};

const SOUND: FilesOptions = FilesOptions { loses_syncs: false };

#[test]
fn what_was_synced_survives_a_crash_at_any_point() {
    let mut syncs = [0; 3];
    for seed in 0..1000 {
        let report = run(seed, SOUND);
        assert_eq!(report.violation, None, "seed {seed}");
        for (all, own) in syncs.iter_mut().zip(report.syncs) {
            *all += own;
        }
    }
    assert!(
        syncs.iter().all(|&count| count > 1000),
        "{syncs:?}: all kinds of syncs were met"
    );
}

/// The canary: an area whose syncs do nothing. Also by way of the swarm.
#[test]
fn an_area_that_lies_about_syncs_is_noticed() {
    let lies = FilesOptions { loses_syncs: true };
    let found = |seed: &u64| run(*seed, lies).violation.is_some();
    let seeds: Vec<u64> = (0..40).filter(found).collect();
    assert!(seeds.len() > 20, "{} of 40", seeds.len());
    let options = SwarmOptions {
        files_canary: true,
        ..SwarmOptions::default()
    };
    let report = run_once(seeds[0], options);
    let is_it = |it: &Violation| matches!(it, Violation::Files(_));
    assert!(report.violations.iter().any(is_it), "{:?}", report.violations);
}

#[test]
fn a_seed_means_the_same_each_time() {
    for seed in 0..10 {
        assert_eq!(run(seed, SOUND), run(seed, SOUND));
    }
}
