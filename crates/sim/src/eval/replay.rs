//! A trace on the rack of the evaluation, for one set of policies or several side by side.

use super::{Figure, Hardware, Policies, Row, Streams, Workload, measure_streams};
use crate::check::Violation;
use crate::client::Pace;
use crate::workload::stream::Stream;
use serde_json::json;

/// Pieces outstanding at most; what comes while there are more is shed.
const OUTSTANDING_MAX: u32 = 4_096;
/// The warm-up: single zipfian pages, half of them writes, at this rate a second.
const WARM_RATE: f64 = 9_500.0;

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
    let mut stream = Some(stream);
    let streams: [Streams<'_>; 2] = [&mut |_| None, &mut |_| stream.take()];
    let (mut row, outcome) = measure_streams(hardware, policies, &workload, seed, streams);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::System;
    use crate::trace::{Format, Replay, ReplayOptions, TraceReader};
    use flash::Geometry;
    use std::fmt::Write;

    fn small() -> Hardware {
        Hardware {
            pages_per_set: 2_048,
            geometry: Geometry {
                blocks_per_plane: 16,
                ..Hardware::default().geometry
            },
            ..Hardware::default()
        }
    }

    /// `count` requests, every third a write, one every millisecond.
    fn trace(count: u64) -> String {
        (0..count).fold(String::new(), |mut text, i| {
            let kind = if i % 3 == 0 { 'W' } else { 'R' };
            writeln!(text, "1,{kind},{},4096,{}", i * 7919 % 100_000 * 4096, i * 1000)
                .expect("a string takes all");
            text
        })
    }

    fn run(text: &str, speed: f64) -> Replayed {
        let hardware = small();
        let reader = TraceReader::new(text.as_bytes(), "t", Format::Alibaba, false);
        let options = ReplayOptions {
            speed,
            ..ReplayOptions::new(Format::Alibaba, hardware.pages())
        };
        // A stream outlives what it reads from only if it owns it.
        let records: Vec<_> = reader.collect();
        let stream = Replay::new(records.into_iter(), options);
        replay(&hardware, &System::RackBlox.policies(), "t", Box::new(stream), 1)
    }

    #[test]
    fn a_replay_keeps_the_traces_requests_and_its_rate_scaled() {
        let text = trace(3_000);
        for (speed, rate) in [(1.0, 1_000.0), (2.0, 2_000.0)] {
            let replayed = run(&text, speed);
            assert!(replayed.violations.is_empty(), "{:?}", replayed.violations);
            let row = replayed.row;
            assert_eq!(
                (row.read.count, row.write.count, replayed.shed),
                (2_000, 1_000, 0)
            );
            assert!((row.iops / rate - 1.0).abs() < 0.02, "{row:?}");
            assert!(row.read.p50_us > 0.0 && row.write.p50_us > 0.0, "{row:?}");
        }
        assert_eq!(run(&text, 1.0).row, run(&text, 1.0).row, "a replay repeats");
    }

    #[test]
    fn what_the_rack_is_too_slow_for_is_shed_and_told() {
        let replayed = run(&trace(20_000), 10_000.0);
        assert!(replayed.violations.is_empty(), "{:?}", replayed.violations);
        let answered = replayed.row.read.count + replayed.row.write.count;
        assert!(
            replayed.shed > 0 && answered + replayed.shed == 20_000,
            "{replayed:?}"
        );
    }
}
