//! Storage areas under power cuts and failing writes, from a seed.

use sim::check::Violation;
use sim::storage::{StorageOptions, run};
use sim::swarm::{SwarmOptions, run_once};

const FAULTS: StorageOptions = StorageOptions {
    loses_flushes: false,
    failing_media: true,
};

#[test]
fn power_cuts_and_failing_writes_lose_nothing_that_was_acknowledged() {
    let (mut acknowledged, mut cleaned, mut lost) = (0, 0, 0);
    let (mut resumed, mut flips, mut told) = (0, 0, 0);
    let (mut counted, mut looks, mut growths) = ((0, 0), 0, 0);
    for seed in 0..150 {
        let report = run(seed, FAULTS);
        assert_eq!(report.violation, None, "seed {seed}");
        acknowledged += report.acknowledged;
        cleaned += report.cleaned;
        lost += report.writes_lost;
        resumed += report.resumed;
        flips += report.flips.0;
        told += report.flips.1;
        looks += report.snapshots.0;
        growths += report.growths;
        counted = (counted.0 + report.counted.0, counted.1 + report.counted.1);
    }
    assert!(
        acknowledged > 200_000 && cleaned > 10_000 && lost > 500,
        "{acknowledged} {cleaned} {lost}"
    );
    assert!(
        resumed > 200 && flips > 1000 && told > 300,
        "{resumed} {flips} {told}"
    );
    assert!(counted.0 > 5000 && counted.1 > 1000, "{counted:?}");
    assert!(looks > 1000 && growths > 100, "{looks} {growths}");
}

#[test]
fn a_seed_means_the_same_each_time() {
    for seed in 0..10 {
        assert_eq!(run(seed, FAULTS), run(seed, FAULTS));
    }
}

/// The canary: a medium whose flushes do nothing.
#[test]
fn a_medium_that_lies_about_flushes_is_noticed() {
    let lies = StorageOptions {
        loses_flushes: true,
        failing_media: false,
    };
    let found = (0..40)
        .filter(|&seed| run(seed, lies).violation.is_some())
        .count();
    assert!(found > 20, "{found} of 40");
}

/// The same canary, by way of the swarm.
#[test]
fn the_swarm_reports_what_is_wrong_with_an_area() {
    let options = SwarmOptions {
        area_canary: true,
        failing_media: false,
        ..SwarmOptions::default()
    };
    let is_area = |violation: &Violation| matches!(violation, Violation::Area(_));
    let found = (0..12).filter(|&seed| run_once(seed, options).violations.iter().any(is_area));
    let found = found.count();
    assert!(found > 5, "{found} of 12");
}
