//! I/O schedulers with and without coordination (RackBlox §4.5.1, Figure 17), and the predictor that coordination needs
//! (§3.4).
//!
//! Coordination reorders, so it can gain only where there is something to reorder: requests that wait at the same time
//! and have been under way for different times. Behind one gateway and one path there are none, as all requests of a
//! vSSD come one after the other. So here clients at two distances share the vSSD, there are always requests waiting, as
//! YCSB's clients are closed loops, and few fit into the device at once. Nothing is collected, so nothing but the
//! scheduler differs.

use super::{Case, Figure, Hardware, Percentiles, Plan, Policies, Row, Workload};
use crate::client::Pace;
use crate::net::{Delay, Fate, LinkModel, Network};
use crate::report::Progress;
use crate::report::Report;
use base::{Instant, Rng};
use flash::{GcMode, Geometry, Timing};
use hdrhistogram::Histogram;
use host::gateway::Reads;
use rack::gc::Coordination;
use rack::port::Discipline;
use rack::predictor::{Predictor, WINDOW_PACKETS};
use rack::sched::{Policy, Targets};
use serde_json::{Map, Value, json};

/// The schedulers: name, by arrival, coordinated with RackBlox's settings.
pub const SCHEDULERS: [(&str, [Policy; 2]); 3] = [
    ("fifo", [Policy::Fifo, Policy::Coordinated]),
    (
        "deadline",
        [
            Policy::Deadline(Targets::deadline(false)),
            Policy::Deadline(Targets::deadline(true)),
        ],
    ),
    (
        "kyber",
        [
            Policy::Kyber(Targets::kyber(false)),
            Policy::Kyber(Targets::kyber(true)),
        ],
    ),
];

/// Suffix of coordinated policies' names.
pub const COORDINATED: &str = "+coordination";

/// Shares of writes in percent.
const WRITE_PERCENTS: [u32; 5] = [0, 5, 10, 20, 50];
/// Requests outstanding at all times: some wait at the vSSD, the rest are under way.
const CLIENTS_DEPTH: u32 = 112;

/// The published trace (P95 210 µs) six times: about the millisecond of network that RackBlox adds to the schedulers'
/// targets (§4.5.1). The factor, the mixture of clients and the depths are ours, chosen so that there is something to
/// reorder.
const DELAY: Delay = Delay::Trace(6.0);

/// One vSSD of a channel with 16 planes and its replica, on the timing of a data center drive, which has room for four
/// requests; ten far clients and six near ones.
fn hardware() -> Hardware {
    Hardware {
        nodes: 2,
        sets: 1,
        channels: 1,
        geometry: Geometry {
            channels: 1,
            chips_per_channel: 16,
            ..Hardware::default().geometry
        },
        timing: Timing::built_in("intel-dc").expect("intel-dc is built in"),
        write_depth: 4,
        device_depth: 4,
        client_link: LinkModel {
            delay: DELAY,
            paths: 16,
            near_paths: 6,
            ..LinkModel::default()
        },
        ..Hardware::default()
    }
}

/// Every scheduler, with and without coordination, for every share of writes.
pub fn plan() -> Plan {
    let case = |percent: u32, name: &str, scheduler: Policy| Case {
        hardware: hardware(),
        policies: Policies {
            name: match scheduler.is_coordinated() {
                true => format!("{name}{COORDINATED}"),
                false => name.to_owned(),
            },
            coordination: Coordination::None,
            gc_mode: GcMode::Free,
            scheduler,
            shaped: false,
            reads: Reads::First,
            network: Discipline::Fifo,
        },
        workload: Workload {
            pace: Pace::Closed { depth: CLIENTS_DEPTH },
            ..Workload::writes(f64::from(percent) / 100.0, 0.0)
        },
        parameters: Map::from_iter([("write_percent".to_owned(), json!(percent))]),
        cdf: false,
    };
    let schedulers = || SCHEDULERS.into_iter();
    let pairs =
        |percent| schedulers().flat_map(move |(name, pair)| pair.map(|policy| case(percent, name, policy)));
    Plan {
        name: "fig17",
        cases: WRITE_PERCENTS.into_iter().flat_map(pairs).collect(),
    }
}

/// By how much coordination shortens this scheduler's P99.9 read latency at each workload of the figure.
fn gains(figure: &Figure, scheduler: &str) -> Vec<(String, f64)> {
    let coordinated = format!("{scheduler}{COORDINATED}");
    let alone = figure.rows.iter().filter(|row| row.policy == scheduler);
    alone
        .filter_map(|row| {
            let other = figure.row(&coordinated, &row.workload)?;
            Some((row.workload.clone(), row.read.p999_us / other.read.p999_us))
        })
        .collect()
}

/// Figure 17.
pub fn fig17(seed: u64, progress: Progress<'_>) -> Report {
    let mut figure = plan().run(seed, progress);
    let of = |(name, _): &(&str, _)| {
        let gains: Map<String, Value> = gains(&figure, name)
            .into_iter()
            .map(|(workload, gain)| (workload, json!(gain)))
            .collect();
        ((*name).to_owned(), Value::Object(gains))
    };
    let gains: Map<String, Value> = SCHEDULERS.iter().map(of).collect();
    figure
        .parameters
        .insert("read_p999_gain_by_coordination".to_owned(), Value::Object(gains));
    figure.into()
}

/// Packets of the published trace.
const PACKETS: u64 = 600_000;
/// Error of a right prediction, by RackBlox.
const NEAR_NS: u64 = 25_000;

/// Larger errors than this, a second, are recorded as this.
const ERROR_NS_MAX: u64 = 1_000_000_000;

/// The plain mean of the last 100 packets, which is RackBlox's predictor.
struct Mean {
    window: [u64; WINDOW_PACKETS],
    seen: usize,
}

impl Mean {
    fn observe(&mut self, ns: u64) {
        self.window[self.seen % WINDOW_PACKETS] = ns;
        self.seen += 1;
    }

    fn predict_ns(&self) -> u64 {
        let count = self.seen.min(WINDOW_PACKETS) as u64;
        self.window.iter().sum::<u64>() / count
    }
}

/// Errors of both predictors, in ns, on `PACKETS` packets over a link: of the next packet where there is one client, of
/// the packet's way back where there are several.
fn errors(seed: u64, model: LinkModel) -> [Histogram<u64>; 2] {
    let mut net = Network::new(2, model, Rng::new(seed));
    let mut carry = |from: usize, request: u64| match net.carry(Instant::ZERO, from, 1 - from, 0, request) {
        Fate::Arrives { at, .. } => at.as_nanos(),
        Fate::Lost => unreachable!("a network without faults loses nothing"),
    };
    let mut errors =
        [(); 2].map(|()| Histogram::new_with_bounds(1, ERROR_NS_MAX, 3).expect("the bounds are in order"));
    let mut ours = Predictor::default();
    let mut mean = Mean {
        window: [0; WINDOW_PACKETS],
        seen: 0,
    };
    let mut there = carry(0, 0);
    for request in 0..PACKETS {
        ours.observe(there as u32);
        mean.observe(there);
        let back = if model.paths > 1 {
            carry(1, request)
        } else {
            carry(0, request + 1)
        };
        for (errors, predicted) in errors
            .iter_mut()
            .zip([mean.predict_ns(), ours.predict_ns(there as u32)])
        {
            errors.saturating_record(predicted.abs_diff(back));
        }
        there = if model.paths > 1 {
            carry(0, request + 1)
        } else {
            back
        };
    }
    errors
}

/// The predictor's accuracy.
pub fn predictor(seed: u64, progress: Progress<'_>) -> Report {
    progress("predictor: one client, several");
    let trace = LinkModel {
        delay: Delay::MEDIUM,
        ..LinkModel::default()
    };
    let links = [
        ("next-packet", trace),
        ("way-back-of-16-clients", LinkModel { paths: 16, ..trace }),
    ];
    let mut figure = Figure::new("predictor", seed);
    figure.parameters.insert("packets".to_owned(), json!(PACKETS));
    figure.parameters.insert("near_ns".to_owned(), json!(NEAR_NS));
    let mut report = Report::new(
        "predictor",
        seed,
        &["within_25us_percent", "error_p50_us", "error_p95_us"],
    );
    for (workload, link) in links {
        for (policy, errors) in ["mean-of-100", "switchyard"].into_iter().zip(errors(seed, link)) {
            let within = errors.count_between(0, NEAR_NS) as f64 / errors.len() as f64 * 100.0;
            let at = |q: f64| errors.value_at_quantile(q) as f64 / 1e3;
            let values = vec![within, at(0.5), at(0.95)];
            let more = report
                .columns
                .iter()
                .cloned()
                .zip(values.iter().map(|value| json!(value)));
            let none = Percentiles::of(&Histogram::new(3).expect("three digits are allowed"));
            figure.rows.push(Row {
                policy: policy.to_owned(),
                workload: workload.to_owned(),
                parameters: Map::new(),
                made_with: Map::new(),
                read: none,
                write: none,
                iops: f64::NAN,
                write_amplification: f64::NAN,
                more: more.collect(),
            });
            report.push(&format!("{policy} {workload}"), values);
        }
    }
    report.figure = Some(figure);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordination_alone_shortens_the_tail_with_every_scheduler() {
        let mut plan = plan();
        let is_kept = |case: &Case| [0, 5, 10].iter().any(|p| case.parameters["write_percent"] == *p);
        plan.cases.retain(is_kept);
        let figure = plan.run(1, &mut |_| {});
        for (scheduler, least) in [("fifo", 1.4), ("deadline", 1.25), ("kyber", 1.2)] {
            let gains = gains(&figure, scheduler);
            assert_eq!(gains.len(), 3);
            assert!(
                gains.iter().any(|(_, gain)| *gain >= least),
                "{scheduler}: {gains:?}"
            );
            assert!(
                gains.iter().all(|(_, gain)| *gain >= 1.0),
                "{scheduler}: {gains:?}"
            );
        }
    }

    #[test]
    fn at_least_95_percent_of_packets_are_predicted_within_25_us() {
        let report = predictor(1, &mut |_| {});
        let within = |label: &str| {
            report
                .value(label, "within_25us_percent")
                .expect("the row is there")
        };
        assert!(within("switchyard next-packet") >= 95.0, "{report}");
        assert!(within("switchyard way-back-of-16-clients") >= 90.0, "{report}");
        // The published trace's own figure for the plain mean is 94.9 %.
        assert!(
            (93.0..97.0).contains(&within("mean-of-100 next-packet")),
            "{report}"
        );
    }
}
