//! The choices that all parts of the swarm draw from a seed: media, loads, faults that exclude each other.

use crate::client::{LoadSpec, Pace, Shape};
use crate::media::MediaModel;
use crate::rack::{SECTOR_BYTES, SIM_PAGE_BYTES};
use crate::run::{FOR_EVER, Fault};
use crate::workload::{Mix, Pattern};
use base::device::LatencyModel;
use base::{Duration, Instant, Rng};

/// A medium is given up after this: long beside its latency, short beside a run.
pub(crate) const MEDIUM_LIMIT: Duration = Duration::from_millis(20);
const MILLISECOND: u64 = 1_000_000;

/// One of these.
pub(crate) fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}

/// A medium with a volatile cache.
pub(crate) fn draw_media(rng: &mut Rng) -> MediaModel {
    MediaModel {
        page_bytes: SIM_PAGE_BYTES,
        sector_bytes: SECTOR_BYTES,
        latency: LatencyModel {
            io_ns: pick(rng, &[0, 1_000, 20_000]),
            flush_ns: pick(rng, &[0, 10_000, MILLISECOND]),
        },
        limit: MEDIUM_LIMIT,
        volatile: true,
        loses_flushes: false,
    }
}

/// How long a medium hangs: less than the limit, longer, or for ever.
pub(crate) fn draw_hang_ns(rng: &mut Rng) -> u64 {
    pick(rng, &[MILLISECOND, 30 * MILLISECOND, 400 * MILLISECOND, FOR_EVER])
}

/// A load on one volume that begins in the first half of the run.
pub(crate) fn draw_load(gateway: usize, volume: usize, span_ns: u64, rng: &mut Rng) -> LoadSpec {
    let requests = rng.between(100, 400);
    let writes = pick(rng, &[0.2, 0.5, 0.9]);
    let pace = if rng.chance(0.6) {
        Pace::Open {
            per_second: requests as f64 * 1e9 / span_ns as f64,
            outstanding_max: 256,
        }
    } else {
        Pace::Closed {
            depth: pick(rng, &[1, 4, 32]),
        }
    };
    LoadSpec {
        pace,
        pattern: pick(rng, &[Pattern::Uniform, Pattern::Zipfian, Pattern::Latest]),
        mix: Mix {
            read_modify_write: pick(rng, &[0.0, 0.1]),
            insert: pick(rng, &[0.0, 0.1]),
            flush: pick(rng, &[0.0, 0.01, 0.1]),
            trim: pick(rng, &[0.0, 0.05]),
            zeroes: pick(rng, &[0.0, 0.05]),
            ..Mix::writes(writes)
        },
        shape: Shape {
            sub_page: pick(rng, &[0.0, 0.3]),
            multi_page: pick(rng, &[0.0, 0.2]),
            pages_max: 6,
        },
        fua: pick(rng, &[0.0, 0.1, 1.0]),
        start: Instant::from_nanos(rng.below(span_ns / 2)),
        ..LoadSpec::new(gateway, volume, requests)
    }
}

/// Damage to the last programs before a crash looks like a cut (docs/format/flash.md, *Recovery*): with a single copy
/// nothing tells them apart, and what was flushed may be gone.
pub(crate) fn drop_crashes_after_corruption(faults: &mut Vec<(u64, Fault)>) {
    let mut corrupted = Vec::new();
    faults.retain(|(_, fault)| match fault {
        Fault::Corrupt { host } | Fault::CorruptMetadata { host, .. } => {
            corrupted.push(*host);
            true
        }
        Fault::Crash { host, .. } => !corrupted.contains(host),
        Fault::PowerLoss { .. } => corrupted.is_empty(),
        _ => true,
    });
}
