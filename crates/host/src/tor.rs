//! The ToR as a host: [`rack::tor::Tor`] behind a socket.

use crate::{Input, Output};
use base::{Addr, Duration, Instant, Machine};
use rack::tor::{Stats, Verdict};
use std::collections::VecDeque;
use wire::rack::{Packet, Payload};

/// How a ToR is set up.
#[derive(Clone, Copy, Debug)]
pub struct TorConfig {
    /// Where it listens.
    pub addr: Addr,
    /// GC bits lapse this long after they were last set.
    pub gc_lease: Duration,
}

/// A ToR switch. It starts with empty tables; the nodes fill them.
pub struct Tor {
    config: TorConfig,
    tables: rack::tor::Tor,
    out: VecDeque<Output>,
}

impl Tor {
    /// A ToR with empty tables.
    pub fn new(config: TorConfig) -> Self {
        Self {
            tables: rack::tor::Tor::new(config.gc_lease),
            config,
            out: VecDeque::new(),
        }
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
                    packet = Packet::bare(packet.header);
                    packet.header.source = self.config.addr;
                }
                self.out.push_back(Output::Send { to, packet });
            }
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant) {}
}
