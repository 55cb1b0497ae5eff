//! The other gateways, and whether they are there: each asks the others through the rack's switch.
//!
//! The answer comes from the gateway's own core. So one whose registry stalls answers, and nobody takes it for gone; it says
//! that it is to be given nothing.

use super::control::CONTROL_BIT;
use base::{Addr, Duration, Instant};
use rack::lead::Seen;
use wire::rack::{Code, Header};

/// A gateway whose operator has not looked for so long is given no volumes.
const READY_FOR: Duration = Duration::from_secs(1);

/// What is known of the others.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: Vec<Seen>,
    /// When this gateway's operator has looked last; it does not answer before.
    looked: Option<Instant>,
    /// The epoch of the registry that it knows, and the newest one that others have told of.
    epoch: u64,
    epoch_told: u64,
}

impl Peers {
    /// The operator has looked: these are the others. They are asked now.
    pub fn watch(&mut self, now: Instant, peers: &[Addr], epoch: u64) -> impl Iterator<Item = (Addr, u32)> {
        (self.looked, self.epoch) = (Some(now), epoch);
        let fresh = |addr: &Addr| Seen {
            addr: *addr,
            heard: None,
            unanswered: 0,
            ready: false,
        };
        let seen = |addr: &Addr| {
            let known = self.known.iter().find(|known| known.addr == *addr);
            known.copied().unwrap_or_else(|| fresh(addr))
        };
        let mut known: Vec<Seen> = peers.iter().map(seen).collect();
        for peer in &mut known {
            peer.unanswered = peer.unanswered.saturating_add(1);
        }
        self.known = known;
        self.known.iter().map(|peer| (peer.addr, peer.unanswered - 1))
    }

    /// Takes an answer; false if it is none of another gateway.
    pub fn answered(&mut self, now: Instant, header: &Header) -> bool {
        if header.request != CONTROL_BIT {
            return false;
        }
        if let Some(peer) = self.known.iter_mut().find(|peer| peer.addr == header.source) {
            (peer.heard, peer.unanswered) = (Some(now), 0);
            peer.ready = header.code == Code::SoftOrOk;
            self.epoch_told = self.epoch_told.max(header.lba);
        }
        true
    }

    /// Another gateway asks: what it is told, and the epoch; nothing if this one is not there yet.
    pub fn asked(&mut self, now: Instant, header: &Header) -> Option<(Code, u64)> {
        let looked = self.looked?;
        self.epoch_told = self.epoch_told.max(header.lba);
        let code = match now.since(looked) < READY_FOR {
            true => Code::SoftOrOk,
            false => Code::Busy,
        };
        Some((code, self.epoch))
    }

    /// The newest epoch that others have told of.
    pub fn epoch_told(&self) -> u64 {
        self.epoch_told
    }

    /// The others.
    pub fn seen(&self) -> &[Seen] {
        &self.known
    }
}
