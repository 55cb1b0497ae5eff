//! A vSSD's answers to its node about other servers: its replicas', the ToRs, gateways.

use super::Unit;
use crate::Output;
use base::{Addr, Instant, VssdId};
use rack::cache::lpn_of;
use rack::control::{Lead, Terms};
use rack::lease::Leases;
use rack::membership::{Member, Membership};
use std::collections::VecDeque;
use uuid::Uuid;
use wire::rack::{Code, Header, Op, flags};

impl Unit {
    /// Where a client is to read instead while this vSSD collects, if the controller named a replica (RackBlox
    /// (Software), RackBlox §4.1). What is in the write cache is read here, and nobody is sent on twice.
    pub(in crate::node) fn elsewhere(&self, header: &Header) -> Option<VssdId> {
        let stays = header.flags & (flags::PINNED | flags::REPLY) != 0;
        if header.op != Op::Read
            || stays
            || !self.agent.is_collecting()
            || self.held.buffered.cache().get(lpn_of(header)).is_some()
        {
            return None;
        }
        let is_peer = |vssd: &VssdId| {
            self.identity
                .config
                .membership
                .peers
                .iter()
                .any(|peer| peer.vssd == *vssd)
        };
        self.away.filter(is_peer)
    }

    /// The ToRs, and what it promises each of them.
    pub(in crate::node) fn promise(
        &mut self,
        now: Instant,
        decider: usize,
    ) -> impl Iterator<Item = (Addr, Code)> {
        let collects = self.agent.is_collecting();
        let (promise, tors) = (&mut self.promise, self.identity.tors.iter().enumerate());
        tors.map(move |(nth, &tor)| (tor, promise.renew(now, nth, decider, collects)))
    }

    /// The peers are at other addresses; false if they are other peers.
    pub fn move_peers(&mut self, peers: &[Member]) -> bool {
        let known = &mut self.identity.config.membership.peers;
        let alike = |old: &Member, new: &Member| (old.vssd, old.node) == (new.vssd, new.node);
        let is_known = |new: &Member| known.iter().any(|old| alike(old, new));
        if known.len() != peers.len() || !peers.iter().all(is_known) {
            return false;
        }
        known.copy_from_slice(peers);
        self.replica.move_peers(peers);
        self.leases.move_peers(peers);
        true
    }

    /// The replica set has other members from now on; see [`Replica::change_members`]. With `again` it joins once more.
    pub fn change_members(
        &mut self,
        now: Instant,
        membership: Membership,
        again: bool,
        terms: Terms,
        out: &mut VecDeque<Output>,
    ) {
        let lapsed = self.leases.change(now, &membership);
        if terms.expels {
            self.replica.fence(lapsed);
        }
        if terms.yields {
            self.replica.yield_all();
        }
        self.replica.change_members(now, &membership, again);
        self.scrubbing.members_changed();
        (self.identity.config.membership, self.identity.config.terms) = (membership, terms);
        self.pump(now, out);
    }

    /// True while no write can be complete, as a member that was expelled may still read.
    pub fn is_fenced(&self) -> bool {
        self.replica.is_fenced()
    }

    /// A member that was expelled reads no more: the superblock may forget it. False if it has forgotten it.
    pub fn forget_expelled(&mut self) -> bool {
        core::mem::take(&mut self.identity.config.terms.expels)
    }

    /// The leases under which it reads.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// True if a page can be given to a member that joins, or asked for to join; without room, too, if it is owed.
    pub(in crate::node) fn wants_copy(&self, is_owed: bool) -> bool {
        // Between where write-back begins and a full cache, so that clients' writes find room.
        let room = self.config.cache_pages as f64 * (1.0 + self.config.dirty_ratio_low) / 2.0;
        let has_room = || (self.dirty_pages() as f64) < room;
        !self.copies.is_empty() || self.replica.wants_page() && (is_owed || has_room())
    }

    /// Gives or asks for one page, as [`wants_copy`](Unit::wants_copy) says.
    pub(in crate::node) fn copy(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        match self.copies.pop() {
            Some(packet) => {
                if let Some(peer) = self.replica.peer_of(&packet.header) {
                    self.peer_packet(now, peer, packet, out);
                }
            }
            None => self.replica.pull_page(),
        }
        self.pump(now, out);
    }

    /// A gateway opens the vSSD: what was sent in an earlier session and was not begun is not executed any more. False
    /// if it is the gateway that is superseded.
    pub fn fence(&mut self, header: &Header) -> bool {
        self.dedup.fence(header.source, header.session)
    }

    /// The superblock says so.
    pub fn set_lead(&mut self, lead: Lead) {
        self.identity.config.lead = Some(lead);
    }

    /// It belongs to this rack from now on, if it belonged to none that is known. True if that is new.
    pub fn claim(&mut self, rack: Uuid) -> bool {
        let known = &mut self.identity.config.rack;
        let is_new = known.is_nil() && !rack.is_nil();
        if is_new {
            *known = rack;
        }
        is_new
    }
}
