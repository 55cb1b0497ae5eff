//! What a vSSD knows of other servers: its replicas', and who decides about collection.

use super::Unit;
use base::Addr;
use rack::gc::Coordination;
use rack::replica::{Member, lpn_of};
use wire::rack::{Header, Op, flags};

impl Unit {
    /// Where a read is to go instead while this vSSD collects, if the controller named a replica. What is in the write
    /// cache is read here, and nothing is sent on twice.
    pub(in crate::node) fn elsewhere(&self, header: &Header) -> Option<Member> {
        let stays = header.flags & (flags::PINNED | flags::REDIRECTED | flags::REPLY) != 0;
        if header.op != Op::Read
            || stays
            || !self.agent.is_collecting()
            || self.cache.get(lpn_of(header)).is_some()
        {
            return None;
        }
        let away = self.away?;
        self.identity.peers.iter().find(|peer| peer.vssd == away).copied()
    }

    /// Who decides about collection instead of the ToR.
    pub(super) fn arbiter(&self) -> Option<Addr> {
        let decides = self.config.gc.coordination == Coordination::Controller;
        self.identity.controller.filter(|_| decides)
    }

    /// The peers are at other addresses; false if they are other peers.
    pub fn move_peers(&mut self, peers: &[Member]) -> bool {
        let known = &mut self.identity.peers;
        let same = |(a, b): (&Member, &Member)| a.vssd == b.vssd && a.node == b.node;
        if known.len() != peers.len() || !known.iter().zip(peers).all(same) {
            return false;
        }
        known.copy_from_slice(peers);
        self.replica.move_peers(peers);
        true
    }
}
