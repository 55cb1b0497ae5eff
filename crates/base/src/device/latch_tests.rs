//! Tests of `latch.rs`, apart from it: the model checks include that file.

use super::sync::AtomicBool;
use super::*;
use crate::device::{Faults, Latency, suite};
use crate::{Pool, Rng};
use std::sync::Arc;

const NOW: Instant = Instant::ZERO;

fn latch(failed: &Arc<AtomicBool>) -> Latch<Faults<Latency<Vec<u8>>>> {
    let faults = Faults::new(Latency::none(vec![0; 1 << 13]), Rng::new(1));
    Latch::new(faults, Arc::clone(failed))
}

#[test]
fn a_sound_medium_is_not_latched() {
    let mut latch = latch(&Arc::default());
    suite::queue(&mut latch, 16, |_| NOW);
    suite::device(&mut latch);
    assert!(!latch.is_latched());
}

#[test]
fn write_after_a_failed_flush_is_refused_by_every_queue_of_the_medium() {
    let failed = Arc::default();
    let (mut latch, mut other) = (self::latch(&failed), self::latch(&failed));
    let pool = Pool::new(8, 16);
    let page = || pool.alloc_zeroed().expect("a page is left");
    let run = |latch: &mut Latch<_>, op| {
        latch.submit(NOW, op);
        latch.poll(NOW).expect("it answers at once").result
    };
    latch.inner_mut().fail_flushes(1);
    assert_eq!(run(&mut latch, MediaOp::flush(1)), Err(MediaError::Io));
    for latch in [&mut latch, &mut other] {
        assert_eq!(run(latch, MediaOp::write(2, 0, page())), Err(MediaError::Latched));
        assert_eq!(run(latch, MediaOp::flush(3)), Err(MediaError::Latched));
        assert_eq!(run(latch, MediaOp::read(4, 0, page())), Ok(()));
        assert_eq!(latch.write_at(0, &[1]), Err(MediaError::Latched));
        assert_eq!(latch.flush(), Err(MediaError::Latched));
    }
    assert_eq!(pool.available(), 8);
}

#[test]
fn a_failed_read_latches_nothing() {
    let mut latch = latch(&Arc::default());
    let pool = Pool::new(1, 16);
    let op = MediaOp::read(1, 1 << 13, pool.alloc().expect("one page"));
    latch.submit(NOW, op);
    assert_eq!(
        latch.poll(NOW).map(|done| done.result),
        Some(Err(MediaError::OutOfRange))
    );
    assert!(!latch.is_latched());
}
