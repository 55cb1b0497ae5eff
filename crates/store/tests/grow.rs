//! An area gets more segments, with a cut at every write of it, and is used on.

use crate::common::{Recorded, Rig, tiny};
use base::{Device, MediaError};
use store::{Engine, Layout, Options};

#[test]
fn an_area_grows_under_cuts_and_is_used_on() {
    for seed in 0..12 {
        let mut rig = Rig::new(tiny(1), Options::default(), 100 + seed);
        rig.furnish();
        for _ in 0..100 {
            rig.random_batch();
            rig.settle();
        }
        let mut before = rig.image.clone();
        let more = 9;
        // What the device held there before, and room for less than another segment.
        before.resize(before.len() + more * 2048 + 700, 0xA5);
        let mut recorded = Recorded {
            image: before.clone(),
            writes: Vec::new(),
            ..Recorded::default()
        };
        assert_eq!(store::grow(&mut recorded, None), Ok(more as u32));
        for end in 0..=recorded.writes.len() {
            for is_last_kept in [false, true] {
                let mut image = before.clone();
                for (index, write) in recorded.writes[..end].iter().enumerate() {
                    let is_cut = index + 1 == end && !is_last_kept;
                    if let Some((offset, bytes)) = write.as_ref().filter(|_| !is_cut) {
                        image.write_at(*offset, bytes).expect("inside");
                    }
                }
                rig.probe(image);
            }
        }
        let mut image = recorded.image;
        assert_eq!(store::grow(&mut image, None), Ok(0), "it has all there is");
        let segments = Engine::open(&mut image.clone(), Options::default())
            .expect("it is sound")
            .0
            .layout()
            .segments;
        assert_eq!(segments, 12 + more as u32);
        rig.restart(image);
        for _ in 0..20 {
            for _ in 0..rig.rng.below(60) {
                rig.step();
            }
            let image = rig.random_cut();
            rig.restart(image);
        }
    }
}

/// The engine goes on while its area gets more segments, and uses them.
#[test]
fn an_open_area_grows_and_is_used_on() {
    let tables = Layout {
        segment_bytes: 4096,
        segments: 96,
        record_bytes_max: 1024,
        ..tiny(1)
    };
    for (seed, layout) in (0..12).flat_map(|seed| [(seed, tiny(1)), (seed, tables)]) {
        let options = Options {
            spill_bytes: 3000,
            ..Options::default()
        };
        let mut rig = Rig::new(layout, options, 200 + seed);
        rig.furnish();
        let mut segments = layout.segments;
        for _ in 0..6 {
            for _ in 0..rig.rng.below(150) {
                rig.step();
                if rig.rng.chance(0.2) {
                    rig.job(None);
                }
            }
            let more = 1 + rig.rng.below(6) as u32;
            let bytes = rig.image.len() + more as usize * layout.segment_bytes as usize;
            rig.image.resize(bytes, 0xA5);
            assert_eq!(store::grow(&mut rig.image, Some(rig.engine.layout())), Ok(more));
            if rig.rng.chance(0.3) {
                // The machine stops before the engine is told.
                let image = rig.random_cut();
                rig.restart(image);
            } else {
                rig.engine.grown(more);
            }
            segments += more;
            assert_eq!(rig.engine.layout().segments, segments);
        }
        for _ in 0..20 {
            for _ in 0..rig.rng.below(60) {
                rig.step();
            }
            let image = rig.random_cut();
            rig.restart(image);
        }
    }
}

/// Fails one write or flush.
struct Failing<'a> {
    image: &'a mut Vec<u8>,
    left: u64,
}

impl Failing<'_> {
    fn count(&mut self) -> Result<(), MediaError> {
        self.left = self.left.wrapping_sub(1);
        match self.left {
            u64::MAX => Err(MediaError::Io),
            _ => Ok(()),
        }
    }
}

impl Device for Failing<'_> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.image.read_at(offset, bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.count()?;
        self.image.write_at(offset, bytes)
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        self.count()
    }

    fn capacity_bytes(&self) -> u64 {
        self.image.capacity_bytes()
    }
}

/// bug: an open area whose growth had failed never grew. cause: one superblock had the new size already. fix: it counts from what the engine
/// has.
#[test]
fn a_growth_that_failed_is_tried_again() {
    for left in 0..6 {
        let mut rig = Rig::new(tiny(1), Options::default(), 3);
        rig.furnish();
        let bytes = rig.image.len() + 4 * 2048;
        rig.image.resize(bytes, 0xA5);
        let image = &mut rig.image;
        assert!(store::grow(&mut Failing { image, left }, Some(rig.engine.layout())).is_err());
        let more = store::grow(&mut rig.image, Some(rig.engine.layout()));
        rig.engine.grown(more.expect("it works again"));
        assert_eq!(rig.engine.layout().segments, 16, "{left}");
    }
}
