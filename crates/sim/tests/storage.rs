//! Storage areas under power cuts and failing writes, from a seed.

use sim::storage::run;

#[test]
fn power_cuts_and_failing_writes_lose_nothing_that_was_acknowledged() {
    let (mut acknowledged, mut cleaned, mut lost) = (0, 0, 0);
    for seed in 0..150 {
        let report = run(seed, false);
        assert_eq!(report.violation, None, "seed {seed}");
        acknowledged += report.acknowledged;
        cleaned += report.cleaned;
        lost += report.writes_lost;
    }
    assert!(
        acknowledged > 200_000 && cleaned > 10_000 && lost > 500,
        "{acknowledged} {cleaned} {lost}"
    );
}

#[test]
fn a_seed_means_the_same_each_time() {
    for seed in 0..10 {
        assert_eq!(run(seed, false), run(seed, false));
    }
}

/// The canary: a medium whose flushes do nothing.
#[test]
fn a_medium_that_lies_about_flushes_is_noticed() {
    let found = (0..40)
        .filter(|&seed| run(seed, true).violation.is_some())
        .count();
    assert!(found > 20, "{found} of 40");
}
