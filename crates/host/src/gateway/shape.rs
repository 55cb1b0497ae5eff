//! Shaping of flows under a central controller ([`rack::vdc`]): a flow is a replica set's reads and mutations. Flushes
//! and what is sent again are not shaped.

use super::{Gateway, Kind};
use crate::Output;
use base::{Addr, Instant, limits, time::earliest};
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

    /// When to [`Gateway::shape`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.flows
            .values()
            .fold(self.report_at, |at, flow| earliest(at, flow.deadline()))
    }

    /// An operation is given up.
    pub(super) fn forget(&mut self, slot: u32) {
        self.flows.values_mut().for_each(|flow| flow.forget(slot));
    }
}

impl Gateway {
    /// True if an operation may go at once; else it waits for its flow's tokens.
    pub(super) fn is_admitted(&mut self, now: Instant, slot: u32) -> bool {
        let Some(shaper) = &mut self.shaper else {
            return true;
        };
        let operation = &self.operations[slot];
        let volume = self.volumes[operation.volume]
            .as_ref()
            .expect("a volume stays while operations name it");
        let replicas = &volume.sets[operation.set].replicas;
        let mutates = match operation.kind {
            Kind::Flush { .. } => return true,
            Kind::Read { .. } | Kind::ReadForMerge { .. } => false,
            Kind::Mutate { .. } => true,
        };
        let config = shaper.shaping.vdc;
        let cost = config
            .costs
            .of(mutates, limits::PAGE_BYTES as u64, replicas.len());
        shaper.report_at.get_or_insert(now + config.interval);
        let flow = shaper
            .flows
            .entry(replicas[0].0)
            .or_insert_with(|| Flow::new(&config));
        flow.admit(now, slot, cost)
    }

    /// Lets go what has its tokens, and reports to the controller when it is time.
    pub(super) fn shape(&mut self, now: Instant) {
        let Some(shaper) = &mut self.shaper else { return };
        let mut released = Vec::new();
        for flow in shaper.flows.values_mut() {
            released.extend(core::iter::from_fn(|| flow.release(now)));
        }
        if shaper.report_at.is_some_and(|at| now >= at) {
            shaper.report_at = Some(now + shaper.shaping.vdc.interval);
            let lines: Vec<Line> = shaper
                .flows
                .iter_mut()
                .map(|(vssd, flow)| (base::VssdId(*vssd), flow.report()))
                .collect();
            for lines in lines.chunks(FLOWS_MAX) {
                shaper.reports += 1;
                let header = Header {
                    request: shaper.reports,
                    session: self.config.session,
                    source: self.config.addr,
                    target: shaper.shaping.controller,
                    ..Header::new(Op::Demand, lines[0].0)
                };
                self.out.push_back(Output::Send {
                    to: self.config.tor,
                    packet: Packet::with_record(header, vdc::emit(lines)),
                });
            }
        }
        for slot in released {
            self.launch(now, slot);
        }
    }

    /// The controller's answer: tokens a second of each flow.
    pub(super) fn allocated(&mut self, now: Instant, packet: &Packet) {
        let (Some(shaper), Some(lines)) = (&mut self.shaper, vdc::parse(packet.record())) else {
            return;
        };
        for (vssd, rate) in lines {
            if let Some(flow) = shaper.flows.get_mut(&vssd.0) {
                flow.allocate(now, rate);
            }
        }
        self.shape(now);
    }
}
