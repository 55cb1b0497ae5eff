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

/// Damage to the last programs before a host starts again looks like a cut (docs/format/flash.md, *Recovery*): with a single copy
/// nothing tells them apart, and what was flushed may be gone. So nothing goes down after such damage, and nothing is damaged that is down.
pub(crate) fn drop_damage_like_a_cut(faults: &mut Vec<(u64, Fault)>) {
    let mut corrupted = Vec::new();
    let (mut outages, mut all_down_until) = (Vec::new(), 0);
    faults.retain(|&(at, fault)| match fault {
        Fault::Corrupt { host } | Fault::CorruptMetadata { host, .. } => {
            let mut outages = outages.iter();
            let is_down = at <= all_down_until || outages.any(|&(of, until)| of == host && at <= until);
            corrupted.extend((!is_down).then_some(host));
            !is_down
        }
        Fault::Crash { host, down_ns } => {
            outages.push((host, at + down_ns));
            !corrupted.contains(&host)
        }
        // Hosts come back one after the other, the last one after twice the time.
        Fault::PowerLoss { down_ns } => {
            all_down_until = all_down_until.max(at + 2 * down_ns);
            corrupted.is_empty()
        }
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: a disk was found to have lost what was flushed. Cause: a bit was flipped while it was down. Fix: none is.
    #[test]
    fn nothing_is_damaged_just_before_it_starts() {
        let crash = |host| Fault::Crash { host, down_ns: 10 };
        let corrupt = |host| Fault::Corrupt { host };
        let all = [
            (100, crash(1)),
            (105, corrupt(1)),
            (106, corrupt(2)),
            (120, corrupt(1)),
            (130, crash(1)),
            (130, crash(3)),
        ];
        let mut faults = all.to_vec();
        drop_damage_like_a_cut(&mut faults);
        assert_eq!(faults, [all[0], all[2], all[3], all[5]]);
        let loss = (100, Fault::PowerLoss { down_ns: 10 });
        let mut faults = vec![loss, (119, corrupt(1)), (121, corrupt(1))];
        drop_damage_like_a_cut(&mut faults);
        assert_eq!(faults, [loss, (121, corrupt(1))]);
    }
}
