//! Runs that several figures show, so that each is made once: kept by everything that decides what comes of it, which
//! is hardware, policies, workload and seed.

use super::figure::Row;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// A run's row, without what a figure adds to it, and the distribution of its reads' latency.
#[derive(Clone)]
pub struct Known {
    /// The row; it has no parameters.
    pub row: Row,
    /// See [`cdf`](super::figure::cdf).
    pub read_cdf: Value,
}

/// Runs that were begun, by all that they depend on.
static RUNS: Mutex<BTreeMap<String, Arc<OnceLock<Known>>>> = Mutex::new(BTreeMap::new());

/// Makes a run, unless it is known. A thread that asks for a run that another thread makes waits for it.
pub fn run(specification: String, make: impl FnOnce() -> Known) -> Known {
    let entry = RUNS
        .lock()
        .expect("no holder panics")
        .entry(specification)
        .or_default()
        .clone();
    entry.get_or_init(make).clone()
}

/// Forgets all runs, so that the next ones are made anew: for tests of repeatability.
pub fn forget() {
    RUNS.lock().expect("no holder panics").clear();
}
