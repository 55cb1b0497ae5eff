//! The ToR as a host: [`rack::tor::Tor`] behind a socket.

use crate::{Input, Output};
use base::event::Kind;
use base::{Addr, Duration, Instant, Machine, time::earliest};
use rack::level::{Levels, Software};
use rack::port::{Discipline, Port};
use rack::tor::{Stats, Verdict};
use std::collections::{BTreeMap, VecDeque};
use wire::rack::{Code, HEADER_BYTES, Header, Op, Packet, Payload};

/// How a ToR is set up.
#[derive(Clone, Copy, Debug)]
pub struct TorConfig {
    /// Its address.
    pub addr: Addr,
    /// GC bits lapse this long after they were last set.
    pub gc_lease: Duration,
    /// Links of limited rate towards the servers, and who goes first there.
    pub egress: Option<Egress>,
    /// The levels of the rack in which it serves ([`rack::level`]).
    pub levels: Levels,
}

/// A ToR's ports towards servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Egress {
    /// Order of packets.
    pub discipline: Discipline,
    /// Nanoseconds that a kilobyte (1000 bytes) occupies a link.
    pub ns_per_kilobyte: u32,
}

/// A ToR switch. It starts with empty tables; the nodes fill them.
pub struct Tor {
    config: TorConfig,
    tables: rack::tor::Tor,
    /// Of each server that has registered, in order of address, if links are limited.
    ports: BTreeMap<Addr, Port<Packet>>,
    /// It does not know the rack's level, as a gateway has told: parts that know another ToR are to use that one.
    is_refused: bool,
    out: VecDeque<Output>,
}

impl Tor {
    /// A ToR with empty tables.
    pub fn new(config: TorConfig) -> Self {
        Self {
            tables: rack::tor::Tor::new(config.gc_lease),
            config,
            ports: BTreeMap::new(),
            is_refused: false,
            out: VecDeque::new(),
        }
    }

    /// Sends a packet, or queues it at the port of its server.
    fn send(&mut self, now: Instant, to: Addr, packet: Packet) {
        match self.ports.get_mut(&to) {
            Some(port) => {
                let bytes = HEADER_BYTES as u32 + packet.header.length;
                port.push(now, packet.header.source, bytes, packet);
                self.carry(now);
            }
            None => self.out.push_back(Output::Send { to, packet }),
        }
    }

    /// Lets the ports send what they can. The time that a packet waited is the network's (RackBlox §3.4).
    fn carry(&mut self, now: Instant) {
        for (&to, port) in &mut self.ports {
            while let Some((mut packet, waited)) = port.pop(now) {
                let waited_ns = u32::try_from(waited.as_nanos()).unwrap_or(u32::MAX);
                packet.header.lat_ns = packet.header.lat_ns.saturating_add(waited_ns);
                self.out.push_back(Output::Send { to, packet });
            }
        }
    }

    /// The answer to a part that asks whether this ToR is there, with what it is to know of the program. Gateways tell the rack's level
    /// with the question, others 0.
    #[cold]
    fn greeting(&mut self, mut header: Header, level: u64) -> Packet {
        let level = u8::try_from(level).unwrap_or(u8::MAX);
        let is_refused = match level {
            0 => self.is_refused,
            level => !self.config.levels.has(level),
        };
        if is_refused && !self.is_refused {
            self.out.push_back(Output::Event(Kind::TorRefused {
                tor: self.config.addr,
                knows_to: self.config.levels.max.into(),
                rack_level: level.into(),
            }));
        }
        self.is_refused = is_refused;
        if is_refused {
            header.code = Code::Busy;
        }
        let software = serde_json::to_vec(&Software::own(self.config.levels));
        Packet::with_record(header, software.expect("plain text serializes"))
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.tables.stats()
    }

    /// The tables, to look at.
    pub fn tables(&self) -> &rack::tor::Tor {
        &self.tables
    }
}

impl Machine for Tor {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        let Input::Packet(mut packet) = input else {
            unreachable!("a ToR has packets only")
        };
        if let Payload::Record(_) = packet.payload
            && !packet.payload_is_intact()
        {
            return;
        }
        let request = packet.header;
        if let (Op::CreateVssd, Some(egress)) = (request.op, self.config.egress) {
            let port = || Port::new(egress.discipline, egress.ns_per_kilobyte);
            self.ports.entry(request.source).or_insert_with(port);
        }
        match self
            .tables
            .process(now, &mut packet.header, packet.payload.record())
        {
            Verdict::Unroutable | Verdict::Overtaken => {}
            // An address that is mine would make the packet go round for ever.
            Verdict::Forward(to) | Verdict::Refuse(to) if to == self.config.addr => {}
            Verdict::Forward(to) | Verdict::Refuse(to) => {
                let is_answer_of_mine =
                    packet.header.has(wire::rack::flags::REPLY) && !request.has(wire::rack::flags::REPLY);
                if is_answer_of_mine {
                    packet = match request.op {
                        Op::Status => self.greeting(packet.header, request.lba),
                        _ => Packet::bare(packet.header),
                    };
                    packet.header.source = self.config.addr;
                }
                self.send(now, to, packet);
            }
        }
    }

    fn poll(&mut self) -> Option<Output> {
        let event = || self.tables.poll_event().map(Output::Event);
        self.out.pop_front().or_else(event)
    }

    fn deadline(&self) -> Option<Instant> {
        let ports = self.ports.values().filter_map(Port::deadline).min();
        earliest(ports, self.tables.deadline())
    }

    fn tick(&mut self, now: Instant) {
        self.carry(now);
        self.tables.tick(now);
    }
}
