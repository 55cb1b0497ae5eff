//! What a vSSD knows of other servers: its replicas', and who decides about collection.

use super::{Stop, Unit};
use crate::Output;
use base::{Addr, Instant, VssdId};
use rack::control::Lead;
use rack::gc::Coordination;
use rack::replica::{Member, Membership, lpn_of};
use std::collections::VecDeque;
use wire::rack::{Header, Op, flags};

impl Unit {
    /// Where a client is to read instead while this vSSD collects, if the controller named a replica (RackBlox
    /// (Software), RackBlox §4.1). What is in the write cache is read here, and nobody is sent on twice.
    pub(in crate::node) fn elsewhere(&self, header: &Header) -> Option<VssdId> {
        let stays = header.flags & (flags::PINNED | flags::REPLY) != 0;
        if header.op != Op::Read
            || stays
            || !self.agent.is_collecting()
            || self.cache.get(lpn_of(header)).is_some()
        {
            return None;
        }
        let is_peer = |vssd: &VssdId| {
            self.identity
                .membership
                .peers
                .iter()
                .any(|peer| peer.vssd == *vssd)
        };
        self.away.filter(is_peer)
    }

    /// Who decides about collection instead of the ToR.
    pub(super) fn arbiter(&self) -> Option<Addr> {
        let decides = self.config.gc.coordination == Coordination::Controller;
        self.identity.controller.filter(|_| decides)
    }

    pub(super) fn wants_gc_check(&self) -> bool {
        self.written_since_gc
            && self.stop == Stop::No
            && self.flash.free_ratio() < self.config.gc.background_ratio
    }

    /// The peers are at other addresses; false if they are other peers.
    pub fn move_peers(&mut self, peers: &[Member]) -> bool {
        let known = &mut self.identity.membership.peers;
        let same = |(a, b): (&Member, &Member)| a.vssd == b.vssd && a.node == b.node;
        if known.len() != peers.len() || !known.iter().zip(peers).all(same) {
            return false;
        }
        known.copy_from_slice(peers);
        self.replica.move_peers(peers);
        true
    }

    /// The replica set has other members from now on; see [`Replica::change_members`].
    pub fn change_members(
        &mut self,
        now: Instant,
        membership: Membership,
        again: bool,
        out: &mut VecDeque<Output>,
    ) {
        self.replica.change_members(now, &membership, again);
        self.identity.membership = membership;
        self.pump(now, out);
    }

    /// A gateway opens the vSSD: what was sent in an earlier session and was not begun is not executed any more. False
    /// if it is the gateway that is superseded.
    pub fn fence(&mut self, header: &Header) -> bool {
        self.dedup.fence(header.session)
    }

    /// True if a gateway of a higher session has the vSSD.
    pub fn is_superseded(&self, header: &Header) -> bool {
        !self.dedup.is_current(header.session)
    }

    /// The superblock says so.
    pub fn set_lead(&mut self, lead: Lead) {
        self.identity.lead = Some(lead);
    }
}
