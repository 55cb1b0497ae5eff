//! What canaries do to packets: the protocol is broken on the wire, and the code under test is not touched.

use super::{Canary, Core, Event};
use base::{Addr, Duration, Map, VssdId};
use rack::control::Open;
use wire::rack::{Code, Header, Op, Packet, flags};

/// Share of the packets that a canary breaks, where it breaks some.
const CANARY_SHARE: f64 = 0.05;
/// A write is executed again after at most this, in ns.
const AGAIN_NS_MAX: u64 = 50_000_000;
/// Bytes of a digest's answer that say how many pages it covers.
const COVERED_BYTES: usize = 2;

/// What canaries remember.
#[derive(Default)]
pub(super) struct Sabotage {
    /// [`Canary::StaleRead`]: an earlier answer for (vSSD, first block).
    stale: Map<(u32, u64), Packet>,
    /// [`Canary::HideLoss`]: the first continuity of each vSSD.
    continuities: Map<u32, u32>,
    /// [`Canary::AnyEpoch`]: the epoch and the session of the last message that each vSSD has sent to a peer.
    epochs: Map<u32, (u32, u32)>,
    /// [`Canary::AckWithoutApply`]: the vSSDs of each replica set and their nodes.
    pub(super) sets: Vec<Vec<(VssdId, Addr)>>,
}

impl Core {
    /// Rest of a packet after the canary.
    #[cold]
    pub(super) fn sabotage(&mut self, from: usize, to: usize, packet: Packet) -> Option<Packet> {
        match self.canary {
            Canary::AckWithoutApply if self.rng.chance(CANARY_SHARE) => self.forge_ack(from, to, packet),
            Canary::HideReplays if packet.header.has(flags::REPLAY) && packet.header.code != Code::Accept => {
                self.forge_ack(from, to, packet)
            }
            Canary::AnyEpoch => Some(self.renew_epoch(to, packet)),
            Canary::WriteTwice => Some(self.write_again(from, to, packet)),
            Canary::HideDifferences => Some(self.hide_differences(to, packet)),
            Canary::StaleRead => Some(self.answer_stale(packet)),
            Canary::HideLoss => Some(self.hide_loss(packet)),
            Canary::HideExpelled | Canary::HideYield => Some(self.hide_terms(packet)),
            Canary::PromiseAll => Some(self.promise(packet)),
            _ => Some(packet),
        }
    }

    #[cold]
    fn forge_ack(&mut self, from: usize, to: usize, packet: Packet) -> Option<Packet> {
        // Only at the last hop: a node has a medium.
        let last_hop = self.places[to].medium.is_some();
        if packet.header.op != Op::Inv || !last_hop {
            return Some(packet);
        }
        self.stats.sabotaged += 1;
        let inv = &packet.header;
        let set = self
            .sabotage
            .sets
            .iter()
            .find(|set| set.iter().any(|(vssd, _)| *vssd == inv.vssd));
        let writer = set.and_then(|set| set.iter().find(|(_, addr)| *addr == inv.source));
        let header = Header {
            op: Op::Ack,
            code: Code::SoftOrOk,
            flags: 0,
            vssd: writer.map_or(inv.vssd, |(vssd, _)| *vssd),
            request: u64::from(inv.vssd.0),
            length: 0,
            payload_crc: 0,
            session: self.places[to].session,
            source: self.places[to].addr,
            target: inv.source,
            ..*inv
        };
        let next_hop = self.places[from].addr;
        self.send(to, next_hop, Packet::bare(header));
        None
    }

    #[cold]
    fn promise(&mut self, mut packet: Packet) -> Packet {
        let header = &mut packet.header;
        if header.op == Op::CreateVssd && !header.has(flags::REPLY) {
            header.code = Code::SoftOrOk;
            self.stats.sabotaged += 1;
        }
        packet
    }

    #[cold]
    fn hide_terms(&mut self, mut packet: Packet) -> Packet {
        if packet.header.op != Op::Open || packet.header.has(flags::REPLY) {
            return packet;
        }
        let Some(mut open) = Open::parse(packet.record()) else {
            return packet;
        };
        let term = match self.canary {
            Canary::HideExpelled => &mut open.terms.expels,
            _ => &mut open.terms.yields,
        };
        if core::mem::take(term) {
            self.stats.sabotaged += 1;
            packet = Packet::with_record(packet.header, open.emit());
        }
        packet
    }

    fn hide_loss(&mut self, mut packet: Packet) -> Packet {
        let header = &mut packet.header;
        if !matches!(header.op, Op::Write | Op::Flush)
            || !header.has(flags::REPLY)
            || header.code != Code::SoftOrOk
        {
            return packet;
        }
        let known = self.sabotage.continuities.get(&header.vssd.0).copied();
        let first = known.unwrap_or(header.floor);
        self.sabotage.continuities.insert(header.vssd.0, first);
        self.stats.sabotaged += u64::from(first != header.floor);
        header.floor = first;
        packet
    }

    #[cold]
    fn answer_stale(&mut self, mut packet: Packet) -> Packet {
        let header = packet.header;
        if header.op != Op::Read || !header.has(flags::REPLY) || header.code != Code::SoftOrOk {
            return packet;
        }
        let key = (header.vssd.0, header.lba);
        match self.sabotage.stale.get(&key) {
            Some(earlier) if self.rng.chance(CANARY_SHARE) => {
                self.stats.sabotaged += 1;
                packet.header.payload_crc = earlier.header.payload_crc;
                packet.header.length = earlier.header.length;
                packet.header.flags = header.flags & !flags::ZERO | earlier.header.flags & flags::ZERO;
                packet.payload = earlier.payload.clone();
            }
            Some(_) => {}
            None => {
                self.sabotage.stale.insert(key, packet.clone());
            }
        }
        packet
    }

    /// A message between members is of the epoch of the one that gets it.
    #[cold]
    fn renew_epoch(&mut self, to: usize, mut packet: Packet) -> Packet {
        let header = &mut packet.header;
        if !matches!(header.op, Op::Inv | Op::Ack | Op::Val) || self.places[to].medium.is_none() {
            return packet;
        }
        // The sender's vSSD is in the place of the request's number.
        let sender = header.request as u32;
        let (known, session) = self.sabotage.epochs.get(&sender).copied().unwrap_or_default();
        // A message that was held back is older than the last one.
        if session <= header.session {
            self.sabotage
                .epochs
                .insert(sender, (header.epoch, header.session));
        }
        let Some(&(epoch, _)) = self.sabotage.epochs.get(&header.vssd.0) else {
            return packet;
        };
        let is_old = session > header.session || header.epoch != epoch;
        if is_old && known != 0 {
            self.stats.sabotaged += 1;
            (header.epoch, header.session) = (epoch, session.max(header.session));
        }
        packet
    }

    /// A copy of a write comes later, as if from somebody else.
    #[cold]
    fn write_again(&mut self, from: usize, to: usize, packet: Packet) -> Packet {
        let header = packet.header;
        let is_write = matches!(header.op, Op::Write | Op::Zero) && !header.has(flags::REPLY);
        if !is_write || self.places[to].medium.is_none() || !self.rng.chance(CANARY_SHARE) {
            return packet;
        }
        self.stats.sabotaged += 1;
        let mut copy = packet.clone();
        copy.header.source.port += 1;
        let at = self.now + Duration::from_nanos(self.rng.below(AGAIN_NS_MAX));
        self.places[to].under_way += 1;
        let (from, to) = (from as u16, to as u16);
        self.queue.push(
            at,
            Event::Packet {
                from,
                to,
                packet: copy,
            },
        );
        packet
    }

    #[cold]
    fn hide_differences(&mut self, to: usize, mut packet: Packet) -> Packet {
        let header = packet.header;
        let is_answer = header.op == Op::Digest && header.has(flags::REPLY);
        if !is_answer || self.places[to].medium.is_none() || packet.record().len() <= COVERED_BYTES {
            return packet;
        }
        self.stats.sabotaged += 1;
        let covered = packet.record()[..COVERED_BYTES].to_vec();
        packet = Packet::with_record(header, covered);
        packet
    }
}
