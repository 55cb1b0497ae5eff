//! Random requests against a reference model, without crashes, and crashes at random points.

use crate::common::{Rig, geometry, seeds, tiny};
use flash::{GcMode, Timing};

#[test]
fn reads_return_the_newest_data_whatever_is_under_way() {
    for seed in 0..seeds(60) {
        let mut rig = tiny(seed);
        rig.random_run(3_000, if seed % 3 == 0 { 0.2 } else { 0.03 });
        rig.settle();
        assert!(!rig.vssd.gc_active() && !rig.vssd.latched());
        let stats = rig.vssd.stats();
        assert!(stats.erases > 50, "collection was at work: {stats:?}");
        assert_eq!(rig.pool.used(), 0, "every page is returned");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut rig = tiny(seed);
        rig.random_run(1_000, 0.1);
        rig.settle();
        (rig.now, rig.vssd.stats(), crc32c::crc32c(&rig.disk.present))
    };
    for seed in 100..106 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn what_a_flush_promised_survives_crashes_and_nothing_is_invented() {
    for seed in 0..seeds(150) {
        let mut rig = tiny(1_000 + seed);
        for _ in 0..12 {
            let requests = rig.rng.between(1, 250) as u32;
            rig.random_run(requests, if seed % 2 == 0 { 0.25 } else { 0.05 });
            rig.crash();
        }
    }
}

#[test]
fn crashes_in_quick_succession_do_not_use_up_the_reserve() {
    for seed in 0..seeds(40) {
        let mut rig = tiny(5_000 + seed);
        rig.random_run(600, 0.05);
        for _ in 0..120 {
            let requests = rig.rng.between(1, 12) as u32;
            rig.random_run(requests, 0.05);
            rig.crash();
        }
        rig.random_run(600, 0.05);
        rig.settle();
    }
}

#[test]
fn trims_only_do_not_fill_the_flash_with_records() {
    let mut rig = Rig::new(geometry(1, 1, 14, 4), 128, 1, |config| {
        config.checkpoint_every_programs = u64::MAX;
    });
    for round in 0..400 {
        for lpn in 0..rig.config.logical_pages {
            if round % 10 == 0 {
                rig.write(lpn);
            }
            rig.zero(lpn);
        }
        rig.flush();
        rig.settle();
        if round % 7 == 0 {
            rig.crash();
        }
    }
}

#[test]
fn a_full_vssd_is_overwritten_for_ever() {
    for mode in [
        GcMode::Blocking,
        GcMode::Preemptible { step_pages: 1 },
        GcMode::Free,
    ] {
        for separate in [true, false] {
            let mut rig = Rig::new(geometry(1, 2, 12, 8), 128, 3, |config| {
                config.gc = mode;
                config.gc_frontier_separate = separate;
                config.timing = Timing::built_in("p-ssd").expect("built in");
            });
            for lpn in 0..rig.config.logical_pages {
                rig.write(lpn);
                rig.settle();
            }
            rig.random_run(4_000, 0.0);
            rig.settle();
            assert!(rig.gc_forced > 0);
        }
    }
}

#[test]
fn collection_reaches_its_aim_or_says_there_is_nothing_to_gain() {
    let mut rig = Rig::new(geometry(1, 1, 40, 8), 128, 4, |_| {});
    for _ in 0..4 {
        for lpn in 0..100 {
            rig.write(lpn);
        }
        rig.settle();
    }
    rig.start_gc(0.5);
    rig.settle();
    assert_eq!(rig.gc_done, 1);
    assert!(rig.vssd.free_ratio() >= 0.5, "{}", rig.vssd.free_ratio());
    rig.start_gc(1.0);
    rig.settle();
    assert_eq!(rig.gc_done, 2);
}
