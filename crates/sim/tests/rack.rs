//! The rack's own hosts under the swarm, and the canaries that the checkers must catch there.

use sim::cuts::{self, CutsOptions};
use sim::experiment;
use sim::run::{AtCut, Run};
use sim::swarm::{SeedReport, SwarmOptions, draw, run_once};
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

/// More seeds, once each, are in `swarm` and `control`.
#[test]
fn every_seed_repeats() {
    for failing_media in [false, true] {
        let options = SwarmOptions {
            failing_media,
            ..SwarmOptions::default()
        };
        assert_clean(&run_seeds(0..SEEDS / 10, 2, options, &|_| true));
    }
}

/// Checks that the canary does something and is caught in at least so many of the seeds, in percent. The rest are not run then.
fn assert_caught(canary: Canary, percent: usize) {
    let options = SwarmOptions {
        canary,
        failing_media: false,
        ..SwarmOptions::default()
    };
    let least = (percent * SEEDS as usize).div_ceil(100);
    let reports = (0..SEEDS).map(|seed| run_once(seed, options));
    let caught = reports.filter(|report| !report.violations.is_empty());
    let caught = caught.take(least).count();
    assert_eq!(caught, least, "of {SEEDS}");
}

#[test]
fn swallowed_invalidations_are_caught() {
    assert_caught(Canary::AckWithoutApply, 40);
}

#[test]
fn flushes_that_do_nothing_are_caught() {
    assert_caught(Canary::LoseFlush, 10);
}

#[test]
fn stale_answers_are_caught() {
    assert_caught(Canary::StaleRead, 80);
}

#[test]
fn losses_that_are_not_told_are_caught() {
    // Few runs lose what the memory of a whole set held while their gateway stays, and flush afterwards.
    let options = SwarmOptions {
        canary: Canary::HideLoss,
        failing_media: false,
        ..SwarmOptions::default()
    };
    let mut reports = (0..5 * SEEDS).map(|seed| run_once(seed, options));
    assert!(reports.any(|report| !report.violations.is_empty()));
}

#[test]
fn messages_of_earlier_epochs_that_count_are_caught() {
    assert_caught(Canary::AnyEpoch, 2);
}

#[test]
fn writes_that_are_executed_twice_are_caught() {
    assert_caught(Canary::WriteTwice, 30);
}

#[test]
fn members_that_serve_before_they_have_what_they_lack_are_caught() {
    assert_caught(Canary::HideDifferences, 5);
}

#[test]
fn writes_that_nobody_sends_again_are_caught() {
    assert_caught(Canary::HideReplays, 2);
}

#[test]
fn a_node_that_starts_with_the_medium_of_another_one_is_caught() {
    assert_caught(Canary::ForgeIdentity, 2);
}

#[test]
fn ends_that_are_not_told_are_caught() {
    // Few runs fill their flash so far that they collect.
    assert_caught(Canary::HideEvents, 15);
}

#[test]
fn a_seed_tells_the_same_events_again_and_a_failing_one_shows_them() {
    let run = || {
        let (fleet, spec) = draw(3, SwarmOptions::default());
        Run::new(fleet, spec).execute().events
    };
    let told = run();
    assert!(told.len() > 10, "hosts tell of their start at least");
    assert_eq!(told, run());
    let options = SwarmOptions {
        canary: Canary::HideEvents,
        ..SwarmOptions::default()
    };
    let mut reports = (0..SEEDS).map(|seed| run_once(seed, options));
    let failed = reports.find(|report| report.repro().is_some());
    let shown = failed.expect("the canary is caught").last_events();
    assert!(
        shown.contains("node-started") && shown.contains("tor "),
        "{shown}"
    );
}

/// Share of the boundaries that the test run cuts; `switchyard sim run power-cut` cuts all.
const CUT_STRIDE: u64 = 5;

#[test]
fn power_is_lost_at_every_write_boundary() {
    let options = CutsOptions {
        stride: CUT_STRIDE,
        ..CutsOptions::default()
    };
    let outcome = cuts::run(options, &mut |_| {});
    assert!(outcome.boundaries > 500, "{outcome:?}");
    let flash = &outcome.flash;
    assert!(
        flash.gc_programs > 50 && flash.checkpoints > 6 && flash.record_programs > 0,
        "collection, checkpoints and trims are among what is cut: {flash:?}"
    );
    for case in &outcome.cases {
        assert!(case.runs >= outcome.boundaries / CUT_STRIDE, "{case:?}");
        assert_eq!(case.violations, [], "{}", case.label());
    }
}

#[test]
fn power_is_lost_at_every_write_boundary_while_blocks_change_hands() {
    let options = CutsOptions {
        stride: CUT_STRIDE,
        shared: true,
        ..CutsOptions::default()
    };
    let outcome = cuts::run(options, &mut |_| {});
    let flash = &outcome.flash;
    assert!(
        outcome.boundaries > 500 && flash.blocks_borrowed > 10,
        "{outcome:?}"
    );
    assert!(flash.gc_programs > 50 && flash.checkpoints > 6, "{flash:?}");
    for case in &outcome.cases {
        assert!(case.runs >= outcome.boundaries / CUT_STRIDE, "{case:?}");
        assert_eq!(case.violations, [], "{}", case.label());
    }
}

#[test]
fn cuts_catch_flushes_that_do_nothing() {
    let options = CutsOptions {
        stride: 50,
        canary: Canary::LoseFlush,
        ..CutsOptions::default()
    };
    let outcome = cuts::run(options, &mut |_| {});
    let rack = |case: &&cuts::CutCase| case.at_cut == AtCut::Rack;
    let caught: usize = outcome
        .cases
        .iter()
        .filter(rack)
        .map(|c| c.violations.len())
        .sum();
    let runs: u64 = outcome.cases.iter().filter(rack).map(|c| c.runs).sum();
    assert!(caught as u64 * 2 > runs, "{caught} of {runs}");
}

/// RackBlox Figure 21's acceptance: P99.9 of reads against VDC.
#[test]
fn coordination_helps_software_isolated_vssds_too() {
    let experiment = experiment::find("fig21").expect("it is listed");
    let report = (experiment.run)(1, &mut |_| {});
    let tail = |policy, isolation| {
        let row = format!("{policy} ycsb-w50 isolation={isolation}");
        let value = report.value(&row, "read_p999_us");
        value.expect("the row and column exist")
    };
    let ratio = |isolation| tail("vdc", isolation) / tail("rackblox", isolation);
    assert!(ratio("software") >= 1.45, "{report}");
    assert!(ratio("hardware") >= 1.5, "{report}");
}

#[test]
fn experiments_are_found_by_name() {
    for experiment in experiment::EXPERIMENTS {
        let found = experiment::find(experiment.name).expect("it is listed");
        assert_eq!(found.about, experiment.about);
    }
    assert!(experiment::find("no-such").is_none());
}

#[test]
fn coordination_takes_the_tail_off_collection() {
    let experiment = experiment::find("gc-tail").expect("it is listed");
    let report = (experiment.run)(1, &mut |_| {});
    let tail = |row| {
        report
            .value(row, "read_p99.9_us")
            .expect("the row and column exist")
    };
    // The bar of the project: P99.9 within 1.1 times that of a run without collection.
    assert!(tail("rackblox") <= 1.1 * tail("no-gc"), "{report}");
    assert!(tail("switchyard") <= 1.1 * tail("no-gc"), "{report}");
    assert!(tail("uncoordinated") >= 2.0 * tail("no-gc"), "{report}");
}
