//! `switchyard profile --target`: the layers of requests through a running rack, in the same table as those through the
//! kernel, from what its gateway and nodes count.
//!
//! A read's layers are of its pages: network, queue and scheduler, waiting for collection, flash translation and media, the
//! way back. The rest of a client's read is the gateway: frontend, block switch, reply. Means are of the time
//! that was watched; percentiles of all time since the rack's start.
//!
//! A target (`switchyard serve --control`) times each request itself: all figures are of the time that was watched.

use crate::control::api::{Latency, SpanTimes, Spans, Status};
use crate::control::client::Client;
use crate::failure::Failure;
use crate::target;
use anyhow::bail;
use profile::summary::{LayerSummary, OperationSummary, ProbeSummary, Summary, TimeSummary, VERSION};
use std::collections::BTreeMap;
use std::time::Duration;

/// The stages of a node, as users call them.
const STAGES: [(&str, &str); 5] = [
    ("net", "network"),
    ("queue", "scheduler"),
    ("gc_wait", "collection"),
    ("device", "FTL and media"),
    ("return", "way back"),
];
const GATEWAY: &str = "gateway";
pub const MEDIA: &str = "FTL and media";

/// Watches a rack or a target for some time.
pub fn watch(control: &str, time: Duration) -> anyhow::Result<Summary> {
    let client = Client::new(control);
    let before = client.status()?;
    std::thread::sleep(time);
    let after = client.status()?;
    if after.role == target::ROLE {
        let operations = requests(&before.spans, &after.spans);
        return Ok(about(&after, control, time, operations));
    }
    if after.gateway.is_none() {
        bail!(Failure::Usage(format!(
            "{control} is a {}, where no client enters: name a gateway",
            after.role
        )));
    }
    Ok(summary(&before, &after, control, time))
}

/// All distributions of a name.
fn named<'a>(latencies: impl Iterator<Item = &'a Latency>, name: &str) -> Vec<&'a Latency> {
    latencies.filter(|latency| latency.name == name).collect()
}

/// Count and mean of what came between two moments, and the largest percentiles since the start.
fn between(before: &[&Latency], after: &[&Latency]) -> (u64, TimeSummary) {
    let sum = |all: &[&Latency]| {
        all.iter().fold((0, 0.0), |(count, us), one| {
            (count + one.count, us + one.count as f64 * one.mean_us)
        })
    };
    let ((count_before, us_before), (count_after, us_after)) = (sum(before), sum(after));
    let count = count_after.saturating_sub(count_before);
    let largest = |of: fn(&Latency) -> f64| after.iter().map(|one| of(one)).fold(0.0, f64::max);
    let times = TimeSummary {
        mean_us: (us_after - us_before).max(0.0) / count.max(1) as f64,
        p50_us: largest(|one| one.p50_us),
        p99_us: largest(|one| one.p99_us),
        p999_us: largest(|one| one.p999_us),
    };
    (count, times)
}

fn summary(before: &Status, after: &Status, control: &str, time: Duration) -> Summary {
    fn of_volumes<'a>(status: &'a Status, name: &str) -> Vec<&'a Latency> {
        named(status.volumes.iter().flat_map(|volume| &volume.latency), name)
    }
    fn of_nodes<'a>(status: &'a Status, name: &str) -> Vec<&'a Latency> {
        named(status.nodes.iter().flat_map(|node| &node.stages), name)
    }
    let mut operations = Vec::new();
    for (name, action) in [("read", "read"), ("write", "write"), ("flush", "sync")] {
        let (count, times) = between(&of_volumes(before, name), &of_volumes(after, name));
        if count == 0 {
            continue;
        }
        let stages = STAGES.iter().filter(|_| name == "read").map(|(stage, layer)| {
            let (pages, times) = between(&of_nodes(before, stage), &of_nodes(after, stage));
            (*layer, pages, times)
        });
        operations.push(operation(action, count, times, stages.collect()));
    }
    about(after, control, time, operations)
}

fn about(after: &Status, control: &str, time: Duration, operations: Vec<OperationSummary>) -> Summary {
    Summary {
        version: VERSION,
        target: format!("Switchyard at {control}"),
        kernel: after.version.clone(),
        seconds: time.as_secs_f64(),
        probes: ProbeSummary::default(),
        operations,
        devices: Vec::new(),
        heat: Default::default(),
        stacks: None,
    }
}

fn operation(
    action: &str,
    count: u64,
    times: TimeSummary,
    stages: Vec<(&str, u64, TimeSummary)>,
) -> OperationSummary {
    // Reads that the write cache answers have the first stages only, so all are spread over the reads.
    let pages = stages
        .iter()
        .map(|(_, pages, _)| *pages)
        .max()
        .unwrap_or(0)
        .max(1);
    let mut layers: Vec<(&str, TimeSummary)> = stages
        .iter()
        .map(|(name, seen, times)| {
            let mean_us = times.mean_us * *seen as f64 / pages as f64;
            (*name, TimeSummary { mean_us, ..*times })
        })
        .collect();
    let inside_us: f64 = layers.iter().map(|(_, times)| times.mean_us).sum();
    let rest = TimeSummary {
        mean_us: (times.mean_us - inside_us).max(0.0),
        ..TimeSummary::default()
    };
    layers.insert(0, (GATEWAY, rest));
    row(action, count, times, layers)
}

/// A row of the table of these layers.
fn row(action: &str, count: u64, times: TimeSummary, layers: Vec<(&str, TimeSummary)>) -> OperationSummary {
    let all_us: f64 = layers.iter().map(|(_, times)| times.mean_us).sum();
    let layer = |(name, times): &(&str, TimeSummary)| LayerSummary {
        name: (*name).to_owned(),
        times: *times,
        probes_us: 0.0,
        share: times.mean_us / all_us.max(f64::MIN_POSITIVE),
    };
    let layers: Vec<LayerSummary> = layers.iter().map(layer).collect();
    let media = layers.iter().find(|layer| layer.name == MEDIA);
    OperationSummary {
        interface: "switchyard".to_owned(),
        action: action.to_owned(),
        reached_device: true,
        count,
        times,
        software_share: 1.0 - media.map_or(0.0, |layer| layer.share),
        layers,
        ..OperationSummary::default()
    }
}

/// Requests to a target between two moments, those that took the most time first.
pub fn requests(before: &[Spans], after: &[Spans]) -> Vec<OperationSummary> {
    let mut kinds: BTreeMap<(&str, u64), Vec<Watched<'_>>> = BTreeMap::new();
    for (rows, sign) in [(after, 1), (before, -1)] {
        for row in rows {
            let kind = kinds.entry((&row.action, row.bytes_max)).or_default();
            for (place, times) in row.layers.iter().chain([&row.total]).enumerate() {
                if kind.len() == place {
                    kind.push(Watched::default());
                }
                kind[place].add(times, sign);
            }
        }
    }
    let mut operations: Vec<OperationSummary> = kinds
        .into_iter()
        .filter_map(|((action, bytes_max), mut kind)| {
            let total = kind.pop().filter(|total| total.count() > 0)?;
            let layers = kind.iter().map(|layer| (layer.name, layer.times()));
            Some(OperationSummary {
                bytes_max,
                ..row(action, total.count(), total.times(), layers.collect())
            })
        })
        .collect();
    let time = |row: &OperationSummary| row.count as f64 * row.times.mean_us;
    operations.sort_by(|a, b| time(b).total_cmp(&time(a)));
    operations
}

/// A distribution of the time watched: what is there now less what was there before, of all cores.
#[derive(Default)]
struct Watched<'a> {
    name: &'a str,
    sum_ns: i64,
    counts: BTreeMap<u64, i64>,
}

impl<'a> Watched<'a> {
    fn add(&mut self, times: &'a SpanTimes, sign: i64) {
        self.name = &times.name;
        self.sum_ns += sign * times.sum_ns as i64;
        for (ns, count) in &times.counts {
            *self.counts.entry(*ns).or_default() += sign * *count as i64;
        }
    }

    fn count(&self) -> u64 {
        self.counts.values().sum::<i64>().max(0) as u64
    }

    fn times(&self) -> TimeSummary {
        let count = self.count().max(1);
        let at = |quantile: f64| {
            let mut left = (quantile * count as f64).ceil() as i64;
            let found = self.counts.iter().find(|(_, count)| {
                left -= **count;
                left <= 0
            });
            found.map_or(0.0, |(ns, _)| *ns as f64 / 1e3)
        };
        TimeSummary {
            mean_us: self.sum_ns.max(0) as f64 / count as f64 / 1e3,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::{Node, Volume};

    fn latency(name: &str, count: u64, mean_us: f64) -> Latency {
        Latency {
            name: name.to_owned(),
            count,
            mean_us,
            ..Latency::default()
        }
    }

    #[test]
    fn layers_are_of_the_time_watched_and_what_no_node_has_is_the_gateways() {
        let status = |reads: Latency, stages: Vec<Latency>| Status {
            volumes: vec![Volume {
                latency: vec![reads],
                ..Volume::default()
            }],
            nodes: vec![Node {
                stages,
                ..Node::default()
            }],
            ..Status::default()
        };
        let before = status(latency("read", 10, 500.0), vec![latency("net", 10, 400.0)]);
        let stages = vec![
            latency("net", 20, 205.0),
            latency("queue", 10, 5.0),
            latency("device", 5, 40.0),
            latency("return", 5, 10.0),
        ];
        let after = status(latency("read", 20, 300.0), stages);
        let summary = summary(&before, &after, "here", Duration::from_secs(1));
        let [read] = &summary.operations[..] else { panic!() };
        assert_eq!((read.count, read.times.mean_us), (10, 100.0));
        let means: Vec<_> = read.layers.iter().map(|layer| layer.times.mean_us).collect();
        assert_eq!(means, [60.0, 10.0, 5.0, 0.0, 20.0, 5.0]);
        assert_eq!(read.software_share, 0.8);
    }

    #[test]
    fn requests_to_a_target_are_those_of_all_cores_since_the_watch_began() {
        let times = |name: &str, counts: &[(u64, u64)]| SpanTimes {
            name: name.to_owned(),
            sum_ns: counts.iter().map(|(ns, count)| ns * count).sum(),
            counts: counts.to_vec(),
        };
        let reads = |counts: &[(u64, u64)]| Spans {
            action: "read".to_owned(),
            bytes_max: 4096,
            layers: vec![times("frontend", &[]), times("FTL and media", counts)],
            total: times("total", counts),
        };
        let before = [reads(&[(1000, 5)])];
        let after = [reads(&[(1000, 5), (3000, 1)]), reads(&[(1000, 3)])];
        let [read] = &requests(&before, &after)[..] else {
            panic!()
        };
        assert_eq!(
            (read.action.as_str(), read.bytes_max, read.count),
            ("read", 4096, 4)
        );
        assert_eq!(
            (read.times.mean_us, read.times.p50_us, read.times.p99_us),
            (1.5, 1.0, 3.0)
        );
        assert_eq!((read.layers[1].share, read.software_share), (1.0, 0.0));
        assert!(requests(&after, &after).is_empty());
    }
}
