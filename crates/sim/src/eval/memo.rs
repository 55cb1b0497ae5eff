//! Runs that several figures show, so that each is made once: kept by everything that decides what comes of it, which
//! is hardware, policies, workload and seed.

use super::{Case, Row, figure, measure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// A run's row, without what a figure adds to it, and the distribution of its reads' latency.
#[derive(Clone)]
pub struct Known {
    /// The row; it has no parameters.
    pub row: Row,
    /// See [`figure::cdf`].
    pub read_cdf: Value,
}

/// Runs that were begun, by [`specification`].
static RUNS: Mutex<BTreeMap<String, Arc<OnceLock<Known>>>> = Mutex::new(BTreeMap::new());

/// All that a case's run depends on, as text. Equal text means equal runs.
pub fn specification(case: &Case, seed: u64) -> String {
    let Case {
        hardware,
        policies,
        workload,
        parameters: _,
        cdf: _,
    } = case;
    format!("{seed} {hardware:?} {policies:?} {workload:?}")
}

/// Runs a case, unless it is known. Whoever asks for one that another thread runs waits for it.
pub fn run(case: &Case, seed: u64) -> Known {
    let entry = RUNS
        .lock()
        .expect("no holder panics")
        .entry(specification(case, seed))
        .or_default()
        .clone();
    let make = || {
        let (row, latencies) = measure(&case.hardware, &case.policies, &case.workload, seed);
        Known {
            row,
            read_cdf: figure::cdf(&latencies.read),
        }
    };
    entry.get_or_init(make).clone()
}

/// Forgets all runs, so that the next ones are made anew: for tests of repeatability.
pub fn forget() {
    RUNS.lock().expect("no holder panics").clear();
}
