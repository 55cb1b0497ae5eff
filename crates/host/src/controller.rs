//! The central controller of the published baselines, on a server of its own: VDC's allocations ([`rack::vdc`]), and for
//! RackBlox (Software) the ToR's tables and decisions about collection ([`rack::tor`]), without its place in the path.
//!
//! Nodes register their vSSDs here as at the ToR. An accepted request to collect is answered with the vSSD of a replica
//! that does not, so that the server can redirect reads.

use crate::{Input, Output};
use base::{Addr, Duration, Instant, Machine, Map, VssdId};
use flash::Timing;
use rack::tor::{Registration, Verdict};
use rack::vdc::{self, Capacity};
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, Packet, flags};

/// Time between two reports of a client host, and what a flow's bucket holds.
const INTERVAL: Duration = Duration::from_millis(100);
const BURST: Duration = Duration::from_millis(10);
/// Bytes a second of a link without a limit, as the controller sees it: 50 Gb/s, RackBlox's testbed (§3.7).
const LINK_BYTES: u64 = 6_250_000_000;

/// Work of a central controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Central {
    /// Shape the gateways' flows.
    pub vdc: vdc::Config,
    /// Capacity of each server.
    pub capacity: Capacity,
}

impl Central {
    /// For servers with so many planes of this timing, whose links take so many nanoseconds for a kilobyte (1000 bytes;
    /// 0 is no limit). It knows nominal device times, and nothing of collection.
    pub fn new(timing: &Timing, planes: u32, link_ns_per_kilobyte: u32) -> Self {
        let mean = |lower: u64, upper: u64| (lower + upper) / 2;
        Self {
            vdc: vdc::Config {
                interval: INTERVAL,
                burst: BURST,
                costs: vdc::Costs {
                    read_ns: mean(timing.read_lower_ns, timing.read_upper_ns) + timing.transfer_ns,
                    write_ns: mean(timing.program_lower_ns, timing.program_upper_ns) + timing.transfer_ns,
                },
            },
            capacity: Capacity {
                storage_ns: u64::from(planes) * 1_000_000_000,
                network_bytes: 1_000_000_000_000u64
                    .checked_div(u64::from(link_ns_per_kilobyte))
                    .unwrap_or(LINK_BYTES),
            },
        }
    }
}

/// How a controller is set up.
#[derive(Clone, Copy, Debug)]
pub struct ControllerConfig {
    /// Its address.
    pub addr: Addr,
    /// The ToR.
    pub tor: Addr,
    /// GC bits lapse this long after they were last set.
    pub gc_lease: Duration,
    /// Time between two reports of a client host.
    pub interval: Duration,
    /// Capacity of each server.
    pub capacity: Capacity,
}

/// The controller.
pub struct Controller {
    config: ControllerConfig,
    tables: rack::tor::Tor,
    shares: vdc::Controller,
    registrations: Map<u32, Registration>,
    out: VecDeque<Output>,
}

impl Controller {
    /// A controller that knows of nobody; the nodes tell it.
    pub fn new(config: ControllerConfig) -> Self {
        Self {
            tables: rack::tor::Tor::new(config.gc_lease),
            shares: vdc::Controller::new(config.interval, config.capacity),
            registrations: Map::new(),
            out: VecDeque::new(),
            config,
        }
    }

    fn send(&mut self, mut packet: Packet) {
        packet.header.source = self.config.addr;
        self.out.push_back(Output::Send {
            to: self.config.tor,
            packet,
        });
    }

    /// A node's packet, of which the tables know what to do.
    fn decide(&mut self, now: Instant, packet: &Packet) {
        // As at a ToR, the tables are meant.
        let mut header = Header {
            target: Addr::NONE,
            ..packet.header
        };
        match self.tables.process(now, &mut header, packet.payload.record()) {
            Verdict::Forward(_) | Verdict::Refuse(_) => {}
            Verdict::Unroutable | Verdict::Overtaken => return,
        }
        if packet.header.op == Op::CreateVssd
            && let Some(registration) = Registration::parse(header.vssd, packet.payload.record())
        {
            self.registrations.insert(header.vssd.0, registration);
        }
        if header.op == Op::GcOp && header.code == Code::Accept {
            let idle = self.tables.idle_replica(now, header.vssd);
            header.lba = idle.map_or(0, |vssd| u64::from(vssd.0));
        }
        self.send(Packet::bare(header));
    }

    fn allocate(&mut self, now: Instant, packet: &Packet) {
        let Some(lines) = vdc::parse(packet.payload.record()) else {
            return;
        };
        let registrations = &self.registrations;
        let servers = |vssd: VssdId| {
            let known = registrations.get(&vssd.0);
            let [second, third] = known.map_or([None; 2], |known| known.replicas.map(|r| r.map(|r| r.1)));
            [known.map(|known| known.server), second, third]
        };
        let answer = self.shares.report(now, packet.header.source, &lines, servers);
        let header = packet.header.reply(Code::SoftOrOk);
        self.send(Packet::with_record(header, vdc::emit(&answer)));
    }
}

impl Machine for Controller {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        let Input::Packet(packet) = input else {
            unreachable!("a controller has packets only")
        };
        if packet.header.has(flags::REPLY) || !packet.payload_is_intact() {
            return;
        }
        match packet.header.op {
            Op::GcOp | Op::CreateVssd => self.decide(now, &packet),
            Op::Demand => self.allocate(now, &packet),
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<Output> {
        let event = || self.tables.poll_event().map(Output::Event);
        self.out.pop_front().or_else(event)
    }

    fn deadline(&self) -> Option<Instant> {
        self.tables.deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.tables.tick(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rack::vdc::RESOURCES;

    const LEASE: Duration = Duration::from_millis(200);

    fn addr(last: u8) -> Addr {
        Addr::new([10, 0, 0, last], 1)
    }

    fn controller() -> Controller {
        let mut controller = Controller::new(ControllerConfig {
            addr: addr(9),
            tor: addr(8),
            gc_lease: LEASE,
            interval: Duration::from_millis(100),
            capacity: Capacity {
                storage_ns: 1000,
                network_bytes: 1000,
            },
        });
        for (vssd, other) in [(1, 2), (2, 1)] {
            let registration = Registration {
                vssd: VssdId(u32::from(vssd)),
                server: addr(vssd),
                replicas: [Some((VssdId(u32::from(other)), addr(other))), None],
            };
            let packet = Packet::with_record(header(Op::CreateVssd, vssd), registration.emit());
            assert_eq!(
                ask(&mut controller, Instant::ZERO, packet).header.op,
                Op::CreateVssd
            );
        }
        controller
    }

    fn header(op: Op, vssd: u8) -> Header {
        Header {
            source: addr(vssd),
            target: addr(9),
            ..Header::new(op, VssdId(u32::from(vssd)))
        }
    }

    fn ask(controller: &mut Controller, now: Instant, packet: Packet) -> Packet {
        let asked = packet.header;
        controller.handle(now, Input::Packet(packet));
        let mut outputs = core::iter::from_fn(|| controller.poll());
        let Some(Output::Send { to, packet }) = outputs.next() else {
            panic!("every packet is answered")
        };
        outputs.for_each(drop);
        assert_eq!(
            (to, packet.header.target, packet.header.source),
            (addr(8), asked.source, addr(9))
        );
        packet
    }

    #[test]
    fn a_grant_names_the_replica_that_rests_and_the_other_has_to_wait() {
        let mut controller = controller();
        let now = Instant::ZERO + LEASE;
        let first = ask(&mut controller, now, Packet::bare(header(Op::GcOp, 1))).header;
        assert_eq!((first.code, first.lba), (Code::Accept, 2));
        let second = ask(&mut controller, now, Packet::bare(header(Op::GcOp, 2))).header;
        assert_eq!((second.code, second.lba), (Code::Delay, 0));
        let must = Header {
            code: Code::Regular,
            ..header(Op::GcOp, 2)
        };
        let third = ask(&mut controller, now, Packet::bare(must)).header;
        assert_eq!((third.code, third.lba), (Code::Accept, 0), "nobody rests");
    }

    #[test]
    fn a_report_is_answered_with_the_flows_whose_servers_are_known() {
        let mut controller = controller();
        let lines = [(VssdId(1), [1; RESOURCES]), (VssdId(3), [1; RESOURCES])];
        let report = Packet::with_record(header(Op::Demand, 1), vdc::emit(&lines));
        let answer = ask(&mut controller, Instant::ZERO, report);
        let shares = vdc::parse(answer.record()).expect("an answer is well formed");
        assert_eq!(shares, [(VssdId(1), [1000, 1000, 0, 1000])], "alone, it gets all");
    }
}
