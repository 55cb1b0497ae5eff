//! Looking at a running part: what [`api::Status`] tells.

use super::part::Part;
use super::ready::ASKED_SILENT_AFTER;
use super::refusal::Refusal;
use crate::control::api;
use base::{Addr, NodeId};
use hdrhistogram::Histogram;
use host::node::{Stages, Unit};
use host::{Gateway, Node};
use rack::uplink::Seen;

/// A histogram of nanoseconds as the API tells it.
pub trait Quantiles {
    /// The figures under a name.
    fn latency(&self, name: &str) -> api::Latency;
}

impl Quantiles for Histogram<u64> {
    fn latency(&self, name: &str) -> api::Latency {
        let us = |quantile| self.value_at_quantile(quantile) as f64 / 1000.0;
        api::Latency {
            name: name.to_owned(),
            count: self.len(),
            mean_us: if self.is_empty() {
                0.0
            } else {
                self.mean() / 1000.0
            },
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: self.max() as f64 / 1000.0,
        }
    }
}

/// Where the reads of a node spent their time: a copy per vSSD, to be merged off the core.
pub fn stages_of(node: &Node) -> Vec<Stages> {
    node.units().map(|unit| unit.stages().clone()).collect()
}

fn merged(stages: Vec<Stages>) -> Stages {
    let mut all = Stages::new();
    for one in &stages {
        all.merge(one);
    }
    all
}

/// One vSSD.
fn vssd(unit: &Unit) -> api::Vssd {
    let (stats, flash, erases) = (unit.stats(), unit.flash().stats(), unit.flash().erase_counts());
    api::Vssd {
        id: unit.identity().vssd.0,
        serving: unit.is_serving(),
        collecting: unit.is_collecting(),
        latched: unit.is_latched(),
        reads: stats.reads,
        writes: stats.writes,
        cache_hits: stats.cache_hits,
        duplicates: stats.duplicates,
        dropped: stats.dropped,
        damaged: stats.damaged,
        dirty_pages: unit.dirty_pages() as u64,
        free_ratio: unit.flash().free_ratio(),
        write_amplification: flash.write_amplification(),
        user_programs: flash.user_programs,
        gc_programs: flash.gc_programs,
        record_programs: flash.record_programs,
        erases: flash.erases,
        erase_count_min: *erases.start(),
        erase_count_max: *erases.end(),
        flushes: flash.flushes,
        checkpoints: flash.checkpoints,
        live_pages: u64::from(flash.live_pages),
        damaged_pages: u64::from(flash.damaged_pages),
    }
}

/// Everything there is to see.
fn status(part: &Part) -> Result<api::Status, Refusal> {
    let mut status = api::Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        role: part.about.role.to_owned(),
        pid: std::process::id(),
        uptime_s: part.uptime_s(),
        dir: part
            .about
            .dir
            .as_ref()
            .map(|dir| dir.display().to_string())
            .unwrap_or_default(),
        timing: part.about.timing.clone(),
        nbd: part.nbd_address().map(|address| address.to_string()),
        tor: part.tor(|tor, _| tor_counters(tor))?,
        cores: part.core_stats().map(core).collect(),
        ..api::Status::default()
    };
    status.tors = tors(part)?;
    if part.has_gateway() {
        status.gateway = Some(part.gateway(|gateway, _| gateway_counters(gateway))?);
        let seen = part.look()?;
        status.volumes = part.volumes_of(&seen)?;
        status.nodes = part.nodes_of(&seen)?;
        status.trouble = part.trouble(ASKED_SILENT_AFTER)?;
        status.rebalancing = seen.records.rebalance_moves > 0;
        let rack = part.rack_of(&seen)?;
        note_refused(&mut status.tors, part.refused_tors(rack.level)?);
        status.rack = Some(rack);
        status.registry = seen.away;
    } else {
        for id in part.local_nodes() {
            let addr = part.node(id, |node, _| node.config().addr)?.unwrap_or(Addr::NONE);
            status.nodes.push(api::Node {
                id: id.0,
                addr: addr.to_string(),
                ..api::Node::default()
            });
        }
    }
    for node in &mut status.nodes {
        let seen = part.node(NodeId(node.id), |node, now| {
            (
                node.status(now),
                stages_of(node),
                node.units().map(vssd).collect::<Vec<_>>(),
            )
        })?;
        if let Some((seen, stages, vssds)) = seen {
            node.answers = true;
            node.status = seen;
            node.stages = merged(stages)
                .iter()
                .map(|(name, histogram)| histogram.latency(name))
                .collect();
            node.vssds = vssds;
        }
    }
    Ok(status)
}

/// The ToRs, if there are two or the only one does not answer, as the gateway here sees them, or a node.
fn tors(part: &Part) -> Result<Vec<api::Tor>, Refusal> {
    let tor = |seen: Seen| api::Tor {
        addr: seen.tor.to_string(),
        answers: seen.answers,
        used: seen.used,
        refused: None,
    };
    let mut tors: Vec<api::Tor> = match part.has_gateway() {
        true => part.gateway(move |gateway, _| gateway.uplink().seen().map(tor).collect())?,
        false => match part.local_nodes().next() {
            Some(id) => part
                .node(id, move |node, _| node.uplink().seen().map(tor).collect())?
                .unwrap_or_default(),
            None => Vec::new(),
        },
    };
    // The only one is told of if it does not answer.
    if tors.len() == 1 && tors[0].answers {
        tors.clear();
    }
    Ok(tors)
}

/// Takes note of the ToRs that do not serve, and why.
fn note_refused(tors: &mut Vec<api::Tor>, refused: Vec<(Addr, String)>) {
    for (addr, why) in refused {
        let addr = addr.to_string();
        match tors.iter_mut().find(|tor| tor.addr == addr) {
            Some(tor) => tor.refused = Some(why),
            None => tors.push(api::Tor {
                addr,
                answers: true,
                used: true,
                refused: Some(why),
            }),
        }
    }
}

fn tor_counters(tor: &host::Tor) -> api::TorCounters {
    let stats = tor.stats();
    api::TorCounters {
        forwarded: stats.forwarded,
        redirected: stats.redirected,
        unroutable: stats.unroutable,
        gc_accepted: stats.gc_accepted,
        gc_delayed: stats.gc_delayed,
    }
}

fn gateway_counters(gateway: &Gateway) -> api::GatewayCounters {
    let stats = gateway.stats();
    api::GatewayCounters {
        requests: stats.requests,
        errors: stats.errors,
        in_flight: gateway.in_flight() as u64,
        retransmissions: stats.retransmissions,
        redirected: stats.redirected,
        merged: stats.merged,
        corrupt_packets: stats.corrupt_packets,
    }
}

/// A core's counters.
pub fn core(stats: runtime::Stats) -> api::Core {
    api::Core {
        packets_in: stats.packets_in,
        packets_out: stats.packets_out,
        packets_malformed: stats.malformed.total(),
        packets_dropped: stats.packets_dropped_pool
            + stats.packets_incomplete
            + stats.packets_dropped_full
            + stats.packets_dropped_unsendable
            + stats.packets_dropped_kernel,
        syscalls: stats.syscalls,
        polls: stats.polls,
        sleeps: stats.sleeps,
        ticks: stats.ticks,
        media_reads: stats.media_reads,
        media_writes: stats.media_writes,
        media_flushes: stats.media_flushes,
        media_errors: stats.media_errors,
        nbd_connections: stats.clients_accepted.saturating_sub(stats.clients_closed),
        nbd_refused: stats.clients_refused,
        nbd_requests: stats.requests,
        nbd_bytes_in: stats.client_bytes_in,
        nbd_bytes_out: stats.client_bytes_out,
    }
}

impl Part {
    /// Everything there is to see.
    pub fn status(&self) -> Result<api::Status, Refusal> {
        status(self)
    }
}
