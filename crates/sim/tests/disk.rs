//! Disks of their own under loss of power and failing media, from a seed.

use sim::check::Violation;
use sim::disk::{DiskOptions, run};
use sim::swarm::{SwarmOptions, run_once};

const FAULTS: DiskOptions = DiskOptions {
    failing_media: true,
    hasty_fua: false,
    loses_flushes: false,
    never_gives_up: false,
};

/// Seeds of `range` in which a canary was found.
fn found(seeds: u64, options: DiskOptions) -> usize {
    let broken = (0..seeds).filter(|&seed| !run(seed, options).outcome.violations.is_empty());
    broken.count()
}

#[test]
fn a_disk_keeps_its_promises_under_loss_of_power_and_failing_media() {
    let (mut requests, mut judged, mut lost, mut collected) = (0, 0, 0, 0);
    for seed in 0..60 {
        let report = run(seed, FAULTS);
        assert_eq!(report.outcome.violations, [], "seed {seed}");
        requests += report.outcome.clients.issued;
        judged += report.outcome.reads_judged;
        lost += report.media.writes_lost;
        collected += report.flash.gc_programs;
    }
    assert!(
        requests > 20_000 && judged > 100_000 && lost > 200 && collected > 200,
        "{requests} {judged} {lost} {collected}"
    );
}

#[test]
fn a_seed_means_the_same_disk_each_time() {
    for seed in 0..10 {
        let [first, second] = [run(seed, FAULTS), run(seed, FAULTS)];
        assert_eq!(first.outcome.hash, second.outcome.hash);
    }
}

/// The canary: a disk that acknowledges a write with FUA when its cache has it.
#[test]
fn a_disk_that_acknowledges_before_the_medium_is_noticed() {
    let hasty = DiskOptions {
        hasty_fua: true,
        ..DiskOptions::default()
    };
    let found = found(40, hasty);
    assert!(found > 8, "{found} of 40");
}

/// The canary: a medium whose flushes do nothing.
#[test]
fn a_medium_that_lies_about_flushes_to_a_disk_is_noticed() {
    let lies = DiskOptions {
        loses_flushes: true,
        ..DiskOptions::default()
    };
    let found = found(40, lies);
    assert!(found > 20, "{found} of 40");
}

/// The canary: a medium that hangs, under a deadline that is switched off.
#[test]
fn a_medium_that_hangs_for_ever_is_noticed_if_nobody_gives_it_up() {
    let patient = DiskOptions {
        never_gives_up: true,
        ..DiskOptions::default()
    };
    let is_stuck = |violation: &Violation| match violation {
        Violation::Disk(of_disk) => matches!(**of_disk, Violation::Stuck { .. }),
        _ => false,
    };
    let found = (0..40).filter(|&seed| run(seed, patient).outcome.violations.iter().any(is_stuck));
    let found = found.count();
    assert!(found > 8, "{found} of 40");
}

/// The first canary, by way of the swarm.
#[test]
fn the_swarm_reports_what_is_wrong_with_a_disk() {
    let options = SwarmOptions {
        disk_canary: true,
        failing_media: false,
        ..SwarmOptions::default()
    };
    let is_disk = |violation: &Violation| matches!(violation, Violation::Disk(_));
    let found = (0..24).filter(|&seed| run_once(seed, options).violations.iter().any(is_disk));
    let found = found.count();
    assert!(found > 3, "{found} of 24");
}
