//! The rack's own hosts under the swarm, and the canaries that the checkers must catch there.

use sim::experiment;
use sim::swarm::{SeedReport, run_once};
use sim::threads::run_seeds;
use sim::world::Canary;

/// Seeds of the test run; `switchyard sim swarm` runs as many as one likes.
const SEEDS: u64 = 100;

fn assert_clean(failed: &[SeedReport]) {
    let lines: Vec<String> = failed.iter().filter_map(SeedReport::repro).collect();
    assert!(
        lines.is_empty(),
        "{} seeds failed:\n{}",
        lines.len(),
        lines.join("\n")
    );
}

#[test]
fn the_swarm_finds_no_broken_promise_and_every_seed_repeats() {
    let failed = run_seeds(0..SEEDS, 2, Canary::None, &|_| true);
    assert_clean(&failed);
}

/// Share of the seeds in which the canary did something and was caught, in percent.
fn caught_percent(canary: Canary) -> usize {
    let reports: Vec<SeedReport> = (0..SEEDS).map(|seed| run_once(seed, canary)).collect();
    let caught = reports.iter().filter(|r| !r.violations.is_empty()).count();
    caught * 100 / SEEDS as usize
}

#[test]
fn swallowed_invalidations_are_caught() {
    let percent = caught_percent(Canary::AckWithoutApply);
    assert!(percent >= 40, "{percent} %");
}

#[test]
fn flushes_that_do_nothing_are_caught() {
    let percent = caught_percent(Canary::LoseFlush);
    assert!(percent >= 10, "{percent} %");
}

#[test]
fn stale_answers_are_caught() {
    let percent = caught_percent(Canary::StaleRead);
    assert!(percent >= 80, "{percent} %");
}

#[test]
fn experiments_are_found_by_name() {
    for experiment in experiment::EXPERIMENTS {
        let found = experiment::find(experiment.name).expect("it is listed");
        assert_eq!(found.about, experiment.about);
    }
    assert!(experiment::find("no-such").is_none());
}
