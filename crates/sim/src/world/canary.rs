//! Deliberate breaks of the protocol on the wire, and what they remember.

use base::{Addr, Map, Rng, VssdId};
use rack::control::Open;
use wire::rack::{Code, Op, Packet, flags};

/// Share of the packets that a canary breaks, where it breaks some.
pub(super) const SHARE: f64 = 0.05;

/// A deliberate break of the protocol, which the checkers must catch. A checker that stays silent is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Canary {
    /// None: the protocol is left alone.
    #[default]
    None,
    /// Some invalidations (Hermes' INV) never reach their replica; the world forges the answer.
    AckWithoutApply,
    /// Media acknowledge flushes without making anything durable.
    LoseFlush,
    /// Some reads are answered with the data of an earlier answer for the same page.
    StaleRead,
    /// Answers keep the first continuity that their vSSD told: no gateway learns that memory was lost.
    HideLoss,
    /// Nobody hears that a collection or a lease ends, or that a medium failed.
    HideEvents,
    /// No member hears that another one was expelled: nobody waits until that one reads no more.
    HideExpelled,
    /// No member hears that what it has counts for nothing, when it joins again.
    HideYield,
    /// Members take messages of an earlier epoch, or of an earlier start of a peer, for those of the present one.
    AnyEpoch,
    /// Some writes are executed once more, later.
    WriteTwice,
    /// A member that starts hears of no difference between what it has and what its peers have.
    HideDifferences,
    /// Writes that a member sends again, as their writer may be gone, reach nobody; the world forges the answers.
    HideReplays,
    /// ToRs take every registration for a promise to ask them alone, for ever.
    PromiseAll,
    /// A member that asks for a lease gets it, though it was expelled: it reads for ever.
    ForgeLease,
    /// A medium says that it is that of the node which it is put into.
    ForgeIdentity,
}

impl Canary {
    /// True if runs of the swarm with it heal as those without, where others leave the control plane out.
    pub fn may_heal(self) -> bool {
        matches!(self, Self::None | Self::ForgeIdentity)
    }
}

/// What canaries remember.
#[derive(Default)]
pub struct Sabotage {
    /// [`Canary::StaleRead`]: an earlier answer for (vSSD, first block).
    pub stale: Map<(u32, u64), Packet>,
    /// [`Canary::HideLoss`]: the first continuity of each vSSD.
    pub continuities: Map<u32, u32>,
    /// [`Canary::AnyEpoch`]: the epoch and the session of the last message that each vSSD has sent to a peer.
    pub epochs: Map<u32, (u32, u32)>,
    /// [`Canary::AckWithoutApply`]: the vSSDs of each replica set and their nodes.
    pub sets: Vec<Vec<(VssdId, Addr)>>,
}

/// Breaks of a packet alone. Each says whether it has broken something.
impl Sabotage {
    /// [`Canary::PromiseAll`].
    #[cold]
    pub fn promise(&mut self, packet: &mut Packet) -> bool {
        let header = &mut packet.header;
        let is_registration = header.op == Op::CreateVssd && !header.has(flags::REPLY);
        if is_registration {
            header.code = Code::SoftOrOk;
        }
        is_registration
    }

    /// [`Canary::HideExpelled`] and [`Canary::HideYield`].
    #[cold]
    pub fn hide_terms(&mut self, canary: Canary, packet: &mut Packet) -> bool {
        if packet.header.op != Op::Open || packet.header.has(flags::REPLY) {
            return false;
        }
        let Some(mut open) = Open::parse(packet.record()) else {
            return false;
        };
        let term = match canary {
            Canary::HideExpelled => &mut open.terms.expels,
            _ => &mut open.terms.yields,
        };
        let is_set = core::mem::take(term);
        if is_set {
            *packet = Packet::with_record(packet.header, open.emit());
        }
        is_set
    }

    /// [`Canary::HideLoss`].
    #[cold]
    pub fn hide_loss(&mut self, packet: &mut Packet) -> bool {
        let header = &mut packet.header;
        let is_answer = matches!(header.op, Op::Write | Op::Flush) && header.has(flags::REPLY);
        if !is_answer || header.code != Code::SoftOrOk {
            return false;
        }
        let known = self.continuities.get(&header.vssd.0).copied();
        let first = known.unwrap_or(header.floor);
        self.continuities.insert(header.vssd.0, first);
        let is_other = first != header.floor;
        header.floor = first;
        is_other
    }

    /// [`Canary::StaleRead`].
    #[cold]
    pub fn answer_stale(&mut self, packet: &mut Packet, rng: &mut Rng) -> bool {
        let header = packet.header;
        if header.op != Op::Read || !header.has(flags::REPLY) || header.code != Code::SoftOrOk {
            return false;
        }
        let key = (header.vssd.0, header.lba);
        let Some(earlier) = self.stale.get(&key) else {
            self.stale.insert(key, packet.clone());
            return false;
        };
        let is_stale = rng.chance(SHARE);
        if is_stale {
            packet.header.payload_crc = earlier.header.payload_crc;
            packet.header.length = earlier.header.length;
            packet.header.flags = header.flags & !flags::ZERO | earlier.header.flags & flags::ZERO;
            packet.payload = earlier.payload.clone();
        }
        is_stale
    }
}

/// [`Canary::ForgeLease`]: what a peer would answer to a request for a lease.
pub(super) fn lease_of(packet: &Packet) -> Option<Packet> {
    let ask = packet.header;
    (ask.op == Op::Lease && !ask.has(flags::REPLY)).then(|| {
        Packet::bare(wire::rack::Header {
            flags: flags::REPLY,
            vssd: VssdId(ask.request as u32),
            request: u64::from(ask.vssd.0),
            source: ask.target,
            target: ask.source,
            ..ask
        })
    })
}
