//! `switchyard profile --target`: the layers of requests through a running rack, in the same table as those through the
//! kernel, from what its gateway and nodes count.
//!
//! A read's layers are of its pages: network, queue and scheduler, waiting for collection, flash translation and media, the
//! way back. What a client's read takes beyond these is the gateway: frontend, block switch, reply. Means are of the time
//! that was watched; percentiles of all time since the rack's start.

use crate::control::api::{Latency, Status};
use crate::control::client::Client;
use crate::failure::Failure;
use anyhow::bail;
use profile::summary::{LayerSummary, OperationSummary, ProbeSummary, Summary, TimeSummary, VERSION};
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
const MEDIA: &str = "FTL and media";

/// Watches a rack for some time.
pub fn watch(control: &str, time: Duration) -> anyhow::Result<Summary> {
    let client = Client::new(control);
    let before = client.status()?;
    std::thread::sleep(time);
    let after = client.status()?;
    if after.gateway.is_none() {
        bail!(Failure::Usage(format!(
            "{control}: a {}, which no client enters; name a gateway",
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
    let layer = |name: &str, times| LayerSummary {
        name: name.to_owned(),
        times,
        probes_us: 0.0,
        share: 0.0,
    };
    let mut layers: Vec<LayerSummary> = stages
        .iter()
        .map(|(name, seen, times)| {
            let mean_us = times.mean_us * *seen as f64 / pages as f64;
            layer(name, TimeSummary { mean_us, ..*times })
        })
        .collect();
    let inside_us: f64 = layers.iter().map(|layer| layer.times.mean_us).sum();
    let rest = TimeSummary {
        mean_us: (times.mean_us - inside_us).max(0.0),
        ..TimeSummary::default()
    };
    layers.insert(0, layer(GATEWAY, rest));
    let all_us: f64 = layers.iter().map(|layer| layer.times.mean_us).sum();
    for layer in &mut layers {
        layer.share = layer.times.mean_us / all_us.max(f64::MIN_POSITIVE);
    }
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
}
