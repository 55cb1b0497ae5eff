//! The swarm over a range of seeds, one thread per core. The only file of the simulator with threads: each seed's run
//! stays on one thread and shares nothing.

use crate::swarm::{SeedReport, SwarmOptions, run_seed};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

/// Runs every seed of `seeds` on `threads` threads. `progress` is told of each seed as it ends, in no certain order;
/// when it returns false, no further seed is begun. Returns the reports of the seeds that broke a promise, by seed.
pub fn run_seeds(
    seeds: Range<u64>,
    threads: usize,
    options: SwarmOptions,
    progress: &(dyn Fn(&SeedReport) -> bool + Sync),
) -> Vec<SeedReport> {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let failed = Mutex::new(Vec::new());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let report = run_seed(seed, options);
            if !progress(&report) {
                stop.store(true, Ordering::Relaxed);
            }
            if !report.violations.is_empty() {
                failed.lock().expect("no holder panics").push(report);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut failed = failed.into_inner().expect("no holder panics");
    failed.sort_by_key(|report| report.seed);
    failed
}
