//! A trace on the rack of the evaluation, for one set of policies or several side by side.

use super::measure::{Streams, measure_streams};
use super::{Figure, Hardware, Policies, Row, Workload};
use crate::check::Violation;
use crate::client::Pace;
use crate::workload::stream::{Request, Stream};
use base::Rng;
use base::limits::SECTORS_PER_PAGE;
use core::cell::Cell;
use serde_json::json;
use std::rc::Rc;

/// Pieces outstanding at most; what comes while there are more is shed.
const OUTSTANDING_MAX: u32 = 4_096;
/// The warm-up: single zipfian pages, half of them writes, at this rate a second.
const WARM_RATE: f64 = 9_500.0;

/// A stream, and the pages that it has written.
#[derive(Debug)]
struct Counting {
    stream: Box<dyn Stream>,
    pages: Rc<Cell<u64>>,
}

impl Stream for Counting {
    fn next(&mut self, rng: &mut Rng) -> Option<Request> {
        let request = self.stream.next(rng)?;
        if request.write {
            let page = |block: u64| block / SECTORS_PER_PAGE as u64;
            let pages = page(request.block + request.blocks - 1) - page(request.block) + 1;
            self.pages.set(self.pages.get() + pages);
        }
        Some(request)
    }
}

/// Pages that a replay has to write before its write amplification is its own: as many as the volume's copies have flash to
/// spare. Earlier collections move only data of the warm-up.
pub fn pages_to_amplify(hardware: &Hardware) -> u64 {
    let spare = hardware.spare_ratio();
    (hardware.pages() as f64 * spare / (1.0 - spare)) as u64
}

/// Result of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// Latencies, each piece counted; `more` has `shed`. Without a write amplification, if the replay wrote fewer than
    /// [`pages_to_amplify`], and without a rate, if it was one request.
    pub row: Row,
    /// Pages that the stream wrote.
    pub pages_written: u64,
    /// Requests that were shed, because too much was outstanding or waiting for memory: the rack is too slow for the trace.
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
    let pages = Rc::new(Cell::new(0));
    let mut stream = Some(Box::new(Counting {
        stream,
        pages: Rc::clone(&pages),
    }));
    let streams: [Streams<'_>; 2] = [&mut |_| None, &mut |_| Some(stream.take()?)];
    let (mut row, outcome) = measure_streams(hardware, policies, &workload, seed, streams);
    row.more.insert("shed".to_owned(), json!(outcome.clients.shed));
    // The first answer begins the time that the others took: few requests have no other rate, and one has none.
    let answers = row.read.count + row.write.count;
    let ns = outcome.clients.recorded_to_ns - outcome.clients.recorded_from_ns;
    row.iops = match ns {
        0 => f64::NAN,
        _ => (answers - 1) as f64 * 1e9 / ns as f64,
    };
    if pages.get() < pages_to_amplify(hardware) {
        row.write_amplification = f64::NAN;
    }
    Replayed {
        row,
        pages_written: pages.get(),
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
        let again = || run(&text, 1.0).row.to_json();
        assert_eq!(again(), again(), "a replay repeats");
    }

    /// One request had an infinite rate, and some hundred writes the amplification of the warm-up's collection.
    #[test]
    fn a_short_replay_has_no_write_amplification_and_a_single_request_no_rate() {
        let one = run(&trace(1), 1.0).row;
        assert!((one.write.count, one.iops.is_nan()) == (1, true), "{one:?}");
        let short = run(&trace(300), 1.0);
        assert_eq!(short.pages_written, 100);
        assert!(short.row.write_amplification.is_nan() && short.row.iops > 0.0);
        let few = run(&trace(0), 1.0).row;
        assert!(few.iops.is_nan());

        let enough = pages_to_amplify(&small());
        let long = run(&trace(3 * enough), 8.0);
        assert_eq!(long.pages_written, enough);
        assert!(
            (1.0..4.0).contains(&long.row.write_amplification),
            "{:?}",
            long.row
        );
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
