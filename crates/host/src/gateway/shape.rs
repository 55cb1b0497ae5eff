//! Shaping of flows under a central controller ([`rack::vdc`]): a flow is a replica set's reads and mutations. Flushes
//! and what is sent again are not shaped.

use base::{Addr, Instant, VssdId, limits, time::earliest};
use rack::vdc::{self, Config, FLOWS_MAX, Flow, Line};
use std::collections::BTreeMap;
use wire::rack::{Header, Op, Packet};

/// The allocator, and its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Shaping {
    /// The controller.
    pub controller: Addr,
    /// Costs and times.
    pub vdc: Config,
}

/// The flows of a gateway, by their sets' first vSSD.
pub(super) struct Shaper {
    shaping: Shaping,
    flows: BTreeMap<u32, Flow<u32>>,
    report_at: Option<Instant>,
    reports: u64,
}

impl Shaper {
    pub(super) fn new(shaping: Shaping) -> Self {
        Self {
            shaping,
            flows: BTreeMap::new(),
            report_at: None,
            reports: 0,
        }
    }

    /// When operations may be [released](Shaper::release), or [`Shaper::reports`] are due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.flows
            .values()
            .fold(self.report_at, |at, flow| earliest(at, flow.deadline()))
    }

    /// An operation is given up.
    pub(super) fn forget(&mut self, slot: u32) {
        self.flows.values_mut().for_each(|flow| flow.forget(slot));
    }

    /// True if an operation on a set may go at once; else it waits for the tokens of the set's flow.
    pub(super) fn admits(&mut self, now: Instant, slot: u32, replicas: &[VssdId], mutates: bool) -> bool {
        let config = self.shaping.vdc;
        let bytes = limits::PAGE_BYTES as u64;
        let cost = config.costs.of(mutates, bytes, replicas.len());
        self.report_at.get_or_insert(now + config.interval);
        let flow = self.flows.entry(replicas[0].0);
        flow.or_insert_with(|| Flow::new(&config)).admit(now, slot, cost)
    }

    /// The operations that have their tokens now.
    pub(super) fn release(&mut self, now: Instant) -> Vec<u32> {
        let flows = self.flows.values_mut();
        flows
            .flat_map(|flow| core::iter::from_fn(|| flow.release(now)))
            .collect()
    }

    /// Reports to the controller, when it is time for them. The gateway adds who it is.
    pub(super) fn reports(&mut self, now: Instant) -> Vec<Packet> {
        if self.report_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.report_at = Some(now + self.shaping.vdc.interval);
        let flows = self.flows.iter_mut();
        let lines: Vec<Line> = flows.map(|(vssd, flow)| (VssdId(*vssd), flow.report())).collect();
        let report = |lines: &[Line]| {
            self.reports += 1;
            let header = Header {
                request: self.reports,
                target: self.shaping.controller,
                ..Header::new(Op::Demand, lines[0].0)
            };
            Packet::with_record(header, vdc::emit(lines))
        };
        lines.chunks(FLOWS_MAX).map(report).collect()
    }

    /// The controller's answer: tokens a second of each flow.
    pub(super) fn allocated(&mut self, now: Instant, packet: &Packet) {
        for (vssd, rate) in vdc::parse(packet.record()).into_iter().flatten() {
            if let Some(flow) = self.flows.get_mut(&vssd.0) {
                flow.allocate(now, rate);
            }
        }
    }
}
