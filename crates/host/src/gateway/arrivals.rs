//! What comes to a gateway: requests, packets, and time.

use super::Gateway;
use super::control::CONTROL_BIT;
use super::operations::names_slot;
use crate::{Input, Output};
use base::{Instant, Machine};
use wire::rack::{Code, Header, Op, Packet, flags};

impl Gateway {
    fn packet(&mut self, now: Instant, packet: Packet) {
        let header = packet.header;
        let flight = &mut self.traffic.flight;
        flight.uplink.heard(now, &header);
        match (header.op, header.has(flags::REPLY)) {
            (Op::Status, false) => return self.answer_peer(now, &header),
            // A ToR has answered for itself.
            (Op::Status, true) if header.request == 0 => {
                let told = flight.tors.answered(now, &packet, flight.control.level);
                return told.into_iter().for_each(|kind| flight.tell(kind));
            }
            _ => {}
        }
        if !header.has(flags::REPLY) {
            return;
        }
        if !packet.payload_is_intact() {
            flight.stats.corrupt_packets += 1;
            return;
        }
        if header.op == Op::Demand {
            if header.session != flight.config.session {
                return;
            }
            if let Some(shaper) = &mut flight.shaper {
                shaper.allocated(now, &packet);
            }
            return flight.shape(now);
        }
        self.traffic.heard_at = Some(now);
        if header.code == Code::Superseded {
            return self.superseded(now, &packet);
        }
        if names_slot(header.request) || header.request & CONTROL_BIT == 0 {
            return self.traffic.answered(now, packet);
        }
        if header.op == Op::Status && self.peers.answered(now, &header) {
            return;
        }
        let flight = &mut self.traffic.flight;
        if !flight.control.awaits_answer(&header) {
            return;
        }
        if let Some(status) = flight.control.answered(now, &packet) {
            let verdicts = flight.slowness.hear(now, status);
            verdicts.iter().for_each(|verdict| flight.tell_slow(verdict));
        }
        while let Some(kind) = flight.control.told.pop() {
            flight.tell(kind);
        }
        flight.fenced(now, &header);
        self.changes.advance(now, flight);
    }

    /// Another gateway asks whether this one is there.
    #[cold]
    fn answer_peer(&mut self, now: Instant, header: &Header) {
        let Some((code, epoch)) = self.peers.asked(now, header) else {
            return;
        };
        let flight = &mut self.traffic.flight;
        let mut packet = Packet::bare(Header {
            source: flight.config.addr,
            lba: epoch,
            ..header.reply(code)
        });
        let to = flight.uplink.send(now, &mut packet.header);
        flight.out.push_back(Output::Send { to, packet });
    }
}

impl Machine for Gateway {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Packet(packet) => self.packet(now, packet),
            Input::Request(request) => self.traffic.request(now, request),
            Input::ClientGone(client) => {
                let volumes = self.traffic.flight.volumes.iter_mut();
                volumes.for_each(|(_, volume)| volume.losses.leave(client));
            }
            Input::Media(_) => unreachable!("a gateway has no medium"),
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.traffic.flight.poll()
    }

    fn deadline(&self) -> Option<Instant> {
        self.traffic.flight.deadline()
    }

    fn tick(&mut self, now: Instant) {
        let flight = &mut self.traffic.flight;
        flight.uplink.tick(now);
        if flight.control.deadline().is_some_and(|at| now >= at) {
            flight.send_control(now);
        }
        if flight.scan_at.is_some_and(|at| now >= at) {
            self.traffic.scan(now);
        }
        self.traffic.flight.shape(now);
    }
}
