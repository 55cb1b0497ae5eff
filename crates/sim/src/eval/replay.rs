//! A trace on the rack of the evaluation, for one set of policies or several side by side.

use super::{Figure, Hardware, Policies, Row, Workload, measure_streams};
use crate::check::Violation;
use crate::client::Pace;
use crate::workload::stream::Stream;
use serde_json::json;

/// Pieces outstanding at most; what comes while there are more is shed.
const OUTSTANDING_MAX: u32 = 4_096;
/// The warm-up: single zipfian pages, half of them writes, at this rate a second.
const WARM_RATE: f64 = 2_000.0;

/// What became of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// Latencies, each piece counted; `more` has `shed`.
    pub row: Row,
    /// What was not sent, as too much was outstanding or waiting for memory: the rack is too slow for the trace.
    pub shed: u64,
    /// Requests that the rack did not answer well.
    pub violations: Vec<Violation>,
}

/// Fills the volume, warms the flash up until collection is steady, then sends what the stream has.
pub fn replay(
    hardware: &Hardware,
    policies: &Policies,
    name: &str,
    stream: Box<dyn Stream>,
    seed: u64,
) -> Replayed {
    let workload = Workload {
        name: name.to_owned(),
        pace: Pace::Open {
            per_second: WARM_RATE,
            outstanding_max: OUTSTANDING_MAX,
        },
        measured: u64::MAX,
        ..Workload::writes(0.5, WARM_RATE)
    };
    let (mut row, outcome) = measure_streams(hardware, policies, &workload, seed, [None, Some(stream)]);
    row.more.insert("shed".to_owned(), json!(outcome.clients.shed));
    Replayed {
        row,
        shed: outcome.clients.shed,
        violations: outcome.violations,
    }
}

/// A figure without rows for a trace of this name.
pub fn figure(hardware: &Hardware, seed: u64, trace: &str, format: &str, speed: f64) -> Figure {
    let mut figure = Figure::new("replay", seed);
    let parameters = [
        ("hardware", hardware.to_json()),
        ("trace", json!(trace)),
        ("format", json!(format)),
        ("speed", json!(speed)),
    ];
    for (name, value) in parameters {
        figure.parameters.insert(name.to_owned(), value);
    }
    figure
}
