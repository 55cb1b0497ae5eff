//! `/metrics`: OpenMetrics text for Prometheus. Every scrape reads the counters anew; nothing is kept between scrapes.
//!
//! Latencies are histograms in seconds. Labels: `volume` and `op` for the gateway's, `node` and `stage` for the
//! nodes' (`net`, `queue`, `gc_wait`, `device`, `return`), `node` and `vssd` for flash.

use crate::control::api;
use crate::events;
use crate::operator::{Part, Refusal, stages_of};
use hdrhistogram::Histogram;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Metric, Registry};
use rack::control::NodeStatus;
use std::collections::BTreeMap;
use std::fmt;

/// Upper bounds of the buckets, in ns: 1–2–5 steps from 1 µs to 10 s.
const BUCKETS_NS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Labels of one series, in order.
type Labels = Vec<(&'static str, String)>;

/// A value of a series.
#[derive(Clone, Debug)]
enum Value {
    Counter(u64),
    Gauge(f64),
    /// Sum in seconds, count, and the count of each bucket, which are not cumulative.
    Histogram(f64, u64, Vec<(f64, u64)>),
}

/// All series of one name.
#[derive(Debug)]
struct Series(Vec<(Labels, Value)>);

impl EncodeMetric for Series {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        for (labels, value) in &self.0 {
            let mut family = encoder.encode_family(labels)?;
            match value {
                Value::Counter(count) => ConstCounter::new(*count).encode(family)?,
                Value::Gauge(level) => ConstGauge::new(*level).encode(family)?,
                Value::Histogram(sum, count, buckets) => {
                    family.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self.0.first() {
            Some((_, Value::Counter(_))) => MetricType::Counter,
            Some((_, Value::Gauge(_))) => MetricType::Gauge,
            Some((_, Value::Histogram(..))) => MetricType::Histogram,
            None => MetricType::Unknown,
        }
    }
}

/// The help text of a name and its series.
type Family = (&'static str, Vec<(Labels, Value)>);

/// Collects series by name.
#[derive(Default)]
struct Page(BTreeMap<&'static str, Family>);

impl Page {
    fn add(&mut self, name: &'static str, help: &'static str, labels: &Labels, value: Value) {
        let (_, series) = self.0.entry(name).or_insert_with(|| (help, Vec::new()));
        series.push((labels.clone(), value));
    }

    fn count(&mut self, name: &'static str, help: &'static str, labels: &Labels, count: u64) {
        self.add(name, help, labels, Value::Counter(count));
    }

    fn level(&mut self, name: &'static str, help: &'static str, labels: &Labels, level: f64) {
        self.add(name, help, labels, Value::Gauge(level));
    }

    fn latency(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &Labels,
        histogram: &Histogram<u64>,
    ) {
        self.add(name, help, labels, buckets(histogram));
    }

    fn text(self) -> String {
        let mut registry = Registry::with_prefix("switchyard");
        for (name, (help, series)) in self.0 {
            let metric: Box<dyn Metric> = Box::new(Series(series));
            registry.register(name, help, Boxed(metric));
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string takes everything");
        text
    }
}

/// A metric of any kind.
#[derive(Debug)]
struct Boxed(Box<dyn Metric>);

impl EncodeMetric for Boxed {
    fn encode(&self, encoder: MetricEncoder) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }
}

/// A histogram of nanoseconds in the fixed buckets, in seconds.
fn buckets(histogram: &Histogram<u64>) -> Value {
    let mut counts = vec![0; BUCKETS_NS.len() + 1];
    let mut sum_ns = 0.0;
    for step in histogram.iter_recorded() {
        let count = step.count_at_value();
        let bucket = BUCKETS_NS.partition_point(|&bound| bound < step.value_iterated_to());
        counts[bucket] += count;
        sum_ns += histogram.median_equivalent(step.value_iterated_to()) as f64 * count as f64;
    }
    let bounds = BUCKETS_NS.iter().map(|&ns| ns as f64 / 1e9).chain([f64::MAX]);
    Value::Histogram(sum_ns / 1e9, histogram.len(), bounds.zip(counts).collect())
}

/// The text of one scrape.
pub fn text(part: &Part) -> Result<String, Refusal> {
    let status = part.status()?;
    let mut page = Page::default();
    let role = vec![("role", status.role.clone()), ("version", status.version.clone())];
    page.level("info", "What this process is", &role, 1.0);
    page.level(
        "uptime_seconds",
        "Time since the start",
        &Vec::new(),
        status.uptime_s,
    );
    event_counters(&mut page);
    if let Some(gateway) = &status.gateway {
        gateway_counters(&mut page, gateway);
    }
    if let Some(tor) = &status.tor {
        tor_counters(&mut page, tor);
    }
    if let Some(rack) = &status.rack {
        rack_series(&mut page, rack);
    }
    if status.gateway.is_some() {
        let help = "1 if the registry answers; while it does not, nothing is changed, and volumes and nodes are as of before";
        let answers = f64::from(u8::from(status.registry.is_none()));
        page.level("registry_up", help, &Vec::new(), answers);
    }
    for tor in &status.tors {
        let labels = vec![("tor", tor.addr.clone())];
        page.level(
            "tor_up",
            "1 if the ToR answers",
            &labels,
            f64::from(u8::from(tor.answers)),
        );
        page.level(
            "tor_used",
            "1 if requests go by the ToR",
            &labels,
            f64::from(u8::from(tor.used)),
        );
    }
    for (index, core) in status.cores.iter().enumerate() {
        core_counters(&mut page, &vec![("core", index.to_string())], core);
    }
    for volume in &status.volumes {
        volume_series(&mut page, part, volume)?;
    }
    for node in &status.nodes {
        node_series(&mut page, part, node)?;
    }
    Ok(page.text())
}

fn event_counters(page: &mut Page) {
    for (source, event, count) in events::counts() {
        let labels = vec![("source", source.to_string()), ("event", event.to_owned())];
        page.count("events", "Events, see docs/events.md", &labels, count);
    }
    let help = "Events that found no room on their way out of a core";
    page.count("events_lost", help, &Vec::new(), events::lost());
}

fn gateway_counters(page: &mut Page, gateway: &api::GatewayCounters) {
    let none = Vec::new();
    let rows = [
        ("gateway_requests", "Client requests answered", gateway.requests),
        (
            "gateway_errors",
            "Client requests answered with an error",
            gateway.errors,
        ),
        (
            "gateway_retransmissions",
            "Packets sent again",
            gateway.retransmissions,
        ),
        (
            "gateway_redirected",
            "Answers of the replica a read was redirected to",
            gateway.redirected,
        ),
        (
            "gateway_merged",
            "Parts of pages sent together with others",
            gateway.merged,
        ),
        (
            "gateway_corrupt_packets",
            "Payloads that did not match their checksum",
            gateway.corrupt_packets,
        ),
    ];
    for (name, help, count) in rows {
        page.count(name, help, &none, count);
    }
    page.level(
        "gateway_in_flight",
        "Client requests not yet answered",
        &none,
        gateway.in_flight as f64,
    );
}

fn rack_series(page: &mut Page, rack: &api::Rack) {
    let none = Vec::new();
    page.level(
        "rack_level",
        "The level that all parts of the rack serve at",
        &none,
        rack.level.into(),
    );
    let help = "The newest level that this program knows";
    page.level("rack_level_newest", help, &none, rack.newest.into());
    let help = "Parts that the next level waits for";
    page.level("rack_level_waits_for", help, &none, rack.waits_for.len() as f64);
}

fn tor_counters(page: &mut Page, tor: &api::TorCounters) {
    let rows = [
        ("tor_forwarded", "Packets sent on", tor.forwarded),
        (
            "tor_redirected",
            "Reads sent to the replica that does not collect garbage",
            tor.redirected,
        ),
        (
            "tor_unroutable",
            "Packets with no known destination",
            tor.unroutable,
        ),
        (
            "tor_gc_accepted",
            "Requests to collect garbage that were accepted",
            tor.gc_accepted,
        ),
        (
            "tor_gc_delayed",
            "Requests to collect garbage that were delayed",
            tor.gc_delayed,
        ),
    ];
    for (name, help, count) in rows {
        page.count(name, help, &Vec::new(), count);
    }
}

fn core_counters(page: &mut Page, labels: &Labels, core: &api::Core) {
    let rows = [
        ("core_packets_in", "Rack packets that arrived", core.packets_in),
        ("core_packets_out", "Rack packets sent", core.packets_out),
        (
            "core_packets_malformed",
            "Datagrams that were not rack packets",
            core.packets_malformed,
        ),
        (
            "core_packets_dropped",
            "Rack packets dropped for lack of room",
            core.packets_dropped,
        ),
        ("core_syscalls", "System calls of the loop", core.syscalls),
        ("core_polls", "Turns of the loop that did not wait", core.polls),
        ("core_sleeps", "Turns of the loop that slept", core.sleeps),
        ("core_media_reads", "Pages read from media", core.media_reads),
        ("core_media_writes", "Pages written to media", core.media_writes),
        ("core_media_flushes", "Flushes of media", core.media_flushes),
        (
            "core_media_errors",
            "Media operations that failed",
            core.media_errors,
        ),
        (
            "core_nbd_refused",
            "NBD connections refused at the limit",
            core.nbd_refused,
        ),
        ("core_nbd_requests", "NBD requests", core.nbd_requests),
        (
            "core_nbd_received_bytes",
            "Bytes received from NBD clients",
            core.nbd_bytes_in,
        ),
        (
            "core_nbd_sent_bytes",
            "Bytes sent to NBD clients",
            core.nbd_bytes_out,
        ),
    ];
    for (name, help, count) in rows {
        page.count(name, help, labels, count);
    }
    page.level(
        "core_nbd_connections",
        "NBD connections now",
        labels,
        core.nbd_connections as f64,
    );
}

fn volume_series(page: &mut Page, part: &Part, volume: &api::Volume) -> Result<(), Refusal> {
    let labels = vec![("volume", volume.name.clone())];
    page.level(
        "volume_size_bytes",
        "Size of the volume",
        &labels,
        volume.size_bytes as f64,
    );
    let ready = if volume.state == "ready" { 1.0 } else { 0.0 };
    page.level("volume_ready", "1 when every replica serves", &labels, ready);
    let degraded = if volume.state == "degraded" { 1.0 } else { 0.0 };
    let help = "1 when it is served with fewer copies than there should be";
    page.level("volume_degraded", help, &labels, degraded);
    let elsewhere = f64::from(u8::from(volume.state == api::ELSEWHERE));
    let help = "1 when another gateway serves it";
    page.level("volume_elsewhere", help, &labels, elsewhere);
    if let Some(lead) = &volume.lead {
        let labels = vec![("volume", volume.name.clone()), ("gateway", lead.gateway.clone())];
        let help = "1 for the gateway that leads the volume, as the registry has it";
        page.level("volume_lead", help, &labels, 1.0);
    }
    for copy in volume.sets.iter().flat_map(|set| &set.copying) {
        let labels = vec![
            ("volume", volume.name.clone()),
            ("node", copy.node.to_string()),
            ("vssd", copy.vssd.to_string()),
        ];
        let help = "Share of the pages that a copy which is being made has";
        let ratio = f64::from(copy.pages_done) / f64::from(copy.pages.max(1));
        page.level("volume_copy_done_ratio", help, &labels, ratio);
    }
    let id = base::VolumeId(volume.id);
    let Some(latency) = part.gateway(move |gateway, _| gateway.latency(id).cloned())? else {
        return Ok(());
    };
    for (histogram, op) in latency.iter().zip(["read", "write", "flush"]) {
        let labels = vec![("volume", volume.name.clone()), ("op", op.to_owned())];
        let help = "From a client's request at the gateway to its answer";
        page.latency("request_latency_seconds", help, &labels, histogram);
    }
    Ok(())
}

fn node_series(page: &mut Page, part: &Part, node: &api::Node) -> Result<(), Refusal> {
    let labels = vec![("node", node.id.to_string())];
    page.level(
        "node_up",
        "1 when the node answers",
        &labels,
        f64::from(u8::from(node.answers)),
    );
    let help = "1 while the node answers much later than the others";
    page.level("node_slow", help, &labels, f64::from(u8::from(node.slow)));
    page.level(
        "node_copies",
        "Copies that the node has, or had and that are not made elsewhere yet",
        &labels,
        node.copies as f64,
    );
    page.level(
        "node_draining",
        "1 while the node's copies move to other nodes",
        &labels,
        f64::from(u8::from(node.drain.as_ref().is_some_and(|drain| !drain.done))),
    );
    if !node.answers {
        return Ok(());
    }
    node_levels(page, &labels, &node.status);
    node_counts(page, &labels, &node.status);
    for vssd in &node.vssds {
        let labels = vec![("node", node.id.to_string()), ("vssd", vssd.id.to_string())];
        vssd_counts(page, &labels, vssd);
        vssd_levels(page, &labels, vssd);
    }
    let Some(stages) = part.node(base::NodeId(node.id), |node, _| stages_of(node))? else {
        return Ok(());
    };
    let mut merged = host::node::Stages::new();
    stages.iter().for_each(|one| merged.merge(one));
    for (stage, histogram) in merged.iter() {
        let labels = vec![("node", node.id.to_string()), ("stage", stage.to_owned())];
        let help = "Where reads spend their time: network, queue, waiting for collection, device, way back";
        page.latency("read_stage_latency_seconds", help, &labels, histogram);
    }
    Ok(())
}

fn node_levels(page: &mut Page, labels: &Labels, node: &NodeStatus) {
    let mut level = |name, help, level| page.level(name, help, labels, level);
    level(
        "node_free_channels",
        "Channels that no vSSD has",
        f64::from(node.free_channels),
    );
    level("node_vssds", "vSSDs of the node", f64::from(node.vssds));
    level(
        "node_vssds_serving",
        "vSSDs that serve clients",
        f64::from(node.serving),
    );
    level(
        "node_vssds_collecting",
        "vSSDs that collect garbage",
        f64::from(node.collecting),
    );
    let help = "vSSDs that refuse writes after a media failure";
    level("node_vssds_latched", help, f64::from(node.latched));
    let help = "vSSDs whose metadata cannot be read";
    level("node_vssds_unreadable", help, f64::from(node.unreadable));
    level(
        "node_start_time_seconds",
        "When the node started, by its clock, since 1970",
        f64::from(node.boot),
    );
    level(
        "node_dirty_pages",
        "Pages in the write caches",
        node.dirty_pages as f64,
    );
    level(
        "node_free_ratio_min",
        "Lowest share of free blocks of a vSSD",
        node.free_ratio_min,
    );
    if let Some(ago_s) = node.scrubbed_ago_s {
        let help = "Seconds since the node was over with a pass over all its pages";
        level("node_scrubbed_ago_seconds", help, ago_s as f64);
    }
}

fn node_counts(page: &mut Page, labels: &Labels, node: &NodeStatus) {
    let mut count = |name, help, count| page.count(name, help, labels, count);
    count("node_reads", "Reads answered", node.reads);
    count("node_writes", "Writes answered as coordinator", node.writes);
    count("node_programs", "Pages programmed", node.programs);
    count(
        "node_user_programs",
        "Pages programmed for clients' writes",
        node.user_programs,
    );
    count("node_erases", "Blocks erased", node.erases);
    count("node_damaged_pages", "Pages found damaged", node.damaged_pages);
    let help = "Damaged pages that a peer has sent anew";
    count("node_repaired_pages", help, node.repaired_pages);
    let help = "Pages compared with a peer";
    count("node_compared_pages", help, node.compared_pages);
    let help = "Pages that a peer had otherwise though both were intact";
    count("node_differed_pages", help, node.differed_pages);
    let help = "Pages that the node has read by itself to find damage";
    count("node_scrubbed_pages", help, node.scrubbed_pages);
    count("node_scrubs", "Whole passes over all pages", node.scrubs);
    let help = "Pages given to copies that are made, or taken for them";
    count("node_copied_pages", help, node.copied_pages);
}

fn vssd_counts(page: &mut Page, labels: &Labels, vssd: &api::Vssd) {
    let mut count = |name, help, count| page.count(name, help, labels, count);
    count("vssd_reads", "Reads answered", vssd.reads);
    count("vssd_writes", "Writes answered as coordinator", vssd.writes);
    count(
        "vssd_cache_hits",
        "Reads answered from the write cache",
        vssd.cache_hits,
    );
    count(
        "vssd_duplicates",
        "Copies of requests suppressed",
        vssd.duplicates,
    );
    count(
        "vssd_dropped",
        "Requests dropped because the backlog was full",
        vssd.dropped,
    );
    count(
        "vssd_user_programs",
        "Pages programmed for users",
        vssd.user_programs,
    );
    count(
        "vssd_gc_programs",
        "Pages programmed by collection",
        vssd.gc_programs,
    );
    count("vssd_erases", "Blocks erased", vssd.erases);
    count("vssd_flushes", "Media flushes", vssd.flushes);
    count("vssd_checkpoints", "Checkpoints completed", vssd.checkpoints);
}

fn vssd_levels(page: &mut Page, labels: &Labels, vssd: &api::Vssd) {
    let mut level = |name, help, level| page.level(name, help, labels, level);
    level(
        "vssd_free_ratio",
        "Share of blocks that are free",
        vssd.free_ratio,
    );
    let help = "Pages programmed per page a user wrote";
    level("vssd_write_amplification", help, vssd.write_amplification);
    level(
        "vssd_dirty_pages",
        "Pages in the write cache",
        vssd.dirty_pages as f64,
    );
    level(
        "vssd_live_pages",
        "Logical pages with data",
        vssd.live_pages as f64,
    );
    level(
        "vssd_damaged_pages",
        "Logical pages damaged and not rewritten",
        vssd.damaged_pages as f64,
    );
    level(
        "vssd_collecting",
        "1 while garbage is collected",
        f64::from(u8::from(vssd.collecting)),
    );
    level(
        "vssd_erase_count_max",
        "Highest erase count of a block",
        f64::from(vssd.erase_count_max),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_keeps_count_sum_and_order() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        for ns in [900, 15_000, 15_000, 30_000_000_000] {
            histogram.record(ns).unwrap();
        }
        let mut page = Page::default();
        page.latency("t_seconds", "help", &vec![("op", "read".to_owned())], &histogram);
        let text = page.text();
        assert!(
            text.contains("switchyard_t_seconds_count{op=\"read\"} 4"),
            "{text}"
        );
        assert!(
            text.contains("switchyard_t_seconds_bucket{le=\"0.000001\",op=\"read\"} 1"),
            "{text}"
        );
        assert!(text.contains("le=\"0.00002\",op=\"read\"} 3"), "{text}");
        assert!(text.contains("le=\"+Inf\",op=\"read\"} 4"), "{text}");
    }

    #[test]
    fn counters_and_gauges_are_typed() {
        let mut page = Page::default();
        page.count("a", "first", &Vec::new(), 3);
        page.level("b", "second", &vec![("node", "1".to_owned())], 0.5);
        let text = page.text();
        assert!(
            text.contains("# TYPE switchyard_a counter\nswitchyard_a_total{} 3\n"),
            "{text}"
        );
        assert!(
            text.contains("# TYPE switchyard_b gauge\nswitchyard_b{node=\"1\"} 0.5\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }
}
