//! Crash images: every subset of the writes that were not flushed, and flipped bits.

use crate::common::{Rig, geometry, seeds, tiny};
use base::{Device, Rng};
use flash::{GcMode, verify};

/// More writes than this are sampled instead of enumerated.
const EXHAUSTIVE: usize = 8;

/// The durable image with the writes of `chosen` laid over it.
fn overlaid(rig: &Rig, chosen: u64) -> Vec<u8> {
    let mut image = rig.disk.durable.clone();
    for (index, write) in rig.disk.log.iter().enumerate() {
        if chosen >> index & 1 == 1 {
            image.write_at(write.offset, &write.bytes).expect("in range");
        }
    }
    image
}

#[test]
fn every_subset_of_unflushed_writes_is_recovered_at_every_point() {
    let mut probes = 0;
    for seed in 0..seeds(12) {
        let mut rig = Rig::new(
            geometry(1, 1, 12, 4),
            [128, 512][seed as usize % 2],
            77 + seed,
            |config| {
                config.checkpoint_every_programs = 40;
                config.gc = GcMode::Preemptible { step_pages: 1 };
            },
        );
        for _ in 0..60 {
            rig.random_request(0.2);
            while rig.step() {
                let pending = rig.disk.log.len();
                if pending <= EXHAUSTIVE {
                    for chosen in 0..1u64 << pending {
                        rig.probe(overlaid(&rig, chosen));
                        probes += 1;
                    }
                }
                let mut rng = rig.rng.fork();
                let torn = rig.disk.crash(&mut rng);
                rig.probe(torn);
                probes += 1;
            }
        }
    }
    assert!(probes > 10_000, "{probes} images");
}

#[test]
fn torn_images_of_busy_runs_are_recovered() {
    for seed in 0..seeds(40) {
        let mut rig = tiny(20_000 + seed);
        rig.random_run(400, 0.1);
        for _ in 0..100 {
            let mut rng = rig.rng.fork();
            let image = rig.disk.crash(&mut rng);
            rig.probe(image);
            rig.random_run(3, 0.1);
        }
    }
}

/// The canary: were a flush not to keep its promise, these tests would notice.
#[test]
#[should_panic(expected = "is none of")]
fn a_medium_that_lies_about_flushes_is_noticed() {
    for seed in 0..20 {
        let mut rig = tiny(30_000 + seed);
        rig.disk.lies = true;
        for _ in 0..5 {
            rig.random_run(60, 0.0);
            rig.flush();
            rig.settle();
            rig.restart(rig.disk.durable.clone()).expect("nothing is there");
        }
    }
}

/// A vSSD at rest after a clean shutdown, or only after a flush.
fn rested(seed: u64, clean: bool) -> Rig {
    let mut rig = Rig::new(geometry(1, 1, 14, 4), 128, seed, |config| {
        config.checkpoint_every_programs = 100
    });
    rig.random_run(500, 0.15);
    rig.settle();
    rig.flush();
    rig.settle();
    if clean {
        rig.checkpoint();
        rig.settle();
    }
    rig
}

#[test]
fn a_flipped_bit_is_detected_and_never_returns_wrong_data() {
    let mut damaged = 0;
    let mut refused = 0;
    for seed in 0..3 {
        let mut rig = rested(seed, true);
        let image = rig.disk.present.clone();
        let mut rng = Rng::new(seed);
        // The superblocks have tests of their own.
        for byte in 40_960..image.len() {
            let mut flipped = image.clone();
            flipped[byte] ^= 1 << rng.below(8);
            match rig.probe_tampered(flipped) {
                Some(pages) => damaged += pages,
                None => refused += 1,
            }
        }
    }
    assert!(damaged > 100, "{damaged} pages were found damaged");
    assert_eq!(refused, 0, "one bit never costs the vSSD");
}

#[test]
fn a_lost_sector_never_returns_wrong_data() {
    for seed in 0..3 {
        let mut rig = rested(10 + seed, true);
        let image = rig.disk.present.clone();
        for at in (40_960..image.len()).step_by(16) {
            let mut lost = image.clone();
            lost[at..at + 16].fill(0xee);
            rig.probe_tampered(lost);
        }
    }
}

#[test]
fn verify_finds_what_recovery_would_suffer_from() {
    for clean in [true, false] {
        let rig = rested(50, clean);
        let mut image = rig.disk.present.clone();
        let mut last = None;
        let report = verify(&image, 128, &mut |progress| last = Some(progress)).expect("formatted");
        assert_eq!(report.problems, [], "clean {clean}");
        assert_eq!(report.live_pages, u64::from(rig.vssd.stats().live_pages));
        let last = last.expect("progress is reported");
        assert_eq!(last.done, last.total);
        // A live page is in the data area, which is the last.
        let pages = 14 * 4;
        let mut found = 0;
        for page in 0..pages {
            let at = image.len() - (page + 1) * 128;
            image[at] ^= 1;
            found += verify(&image, 128, &mut |_| {})
                .expect("formatted")
                .problems
                .len();
            image[at] ^= 1;
        }
        if clean {
            assert_eq!(found as u64, report.live_pages, "each live page, and no other");
        } else {
            // What no later entry calls durable may as well have been cut.
            assert!(found as u64 <= report.live_pages);
        }
        image[100] ^= 1;
        assert_eq!(
            verify(&image, 128, &mut |_| {})
                .expect("the other slot")
                .problems
                .len(),
            1
        );
    }
}
