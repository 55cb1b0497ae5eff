//! Which of several gateways serves the volumes: one at a time, the *lead*; the others stand by.
//!
//! What a gateway knows of pages that it changes, and of acknowledged writes that are not flushed, is in its memory. Two of
//! them that change one volume would undo each other's writes: parts of a page that both have read, and copies of requests
//! that the other one does not wait for. So the control plane names the lead and gives it a session, higher than any
//! before, in the registry (`rack::lead`). Nodes take part: who opens a vSSD in a higher session has it, durably, and
//! nothing that is sent in a lower one is begun after that (`rack::dedup`). A lead changes no page before it has opened
//! the page's primary. One that was replaced and does not know it yet may read, which is right at any replica, and is
//! told with its first write.

use super::Gateway;
use super::control::CONTROL_BIT;
use base::event::{Kind, Lead};
use base::{Addr, Instant, VssdId};
use rack::registry::Snapshot;
use wire::rack::{Header, Op, Packet};

impl Gateway {
    /// True unless it stands by. It stops by itself when it hears that another one has taken over.
    pub fn leads(&self) -> bool {
        self.traffic.leads
    }

    /// The session in which it serves, unless it stands by.
    pub fn session(&self) -> Option<u32> {
        self.leads().then_some(self.traffic.flight.config.session)
    }

    /// The gateway that was asked last whether it is there, and when it answered, if it ever did.
    pub fn peer(&self) -> Option<(Addr, Option<Instant>)> {
        self.peer
    }

    /// Stands by while the gateway at `peer` leads: asks that gateway and the nodes whether they are there.
    pub fn stand_by_for(&mut self, now: Instant, peer: Addr) {
        if self.leads() {
            self.leave(now, Lead::Named);
        }
        self.ask_peer(now, peer);
        self.ask_status(now);
    }

    /// Serves from now on what the registry has, in the session that it has given this gateway.
    pub fn serve(&mut self, now: Instant, session: u32, snapshot: &Snapshot) {
        self.stand_by(now);
        self.traffic.flight.config.session = session;
        self.traffic.flight.control.rack = snapshot.rack;
        self.traffic.leads = true;
        self.traffic.flight.tell(Kind::LeadTaken { session });
        for record in &snapshot.volumes {
            self.open_volume(now, record.clone(), !record.ready);
        }
    }

    /// Asks another gateway whether it is there.
    fn ask_peer(&mut self, now: Instant, peer: Addr) {
        if self.peer.is_none_or(|(known, _)| known != peer) {
            self.peer = Some((peer, None));
        }
        let packet = Packet::bare(Header {
            request: CONTROL_BIT,
            target: peer,
            ..Header::new(Op::Status, VssdId(0))
        });
        self.traffic.flight.post(now, packet, self.peer_asked);
        self.peer_asked = self.peer_asked.wrapping_add(1);
    }
}
