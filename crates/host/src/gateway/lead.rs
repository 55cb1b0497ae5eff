//! Which of several gateways serves the volumes: one at a time, the *lead*; the others stand by.
//!
//! What a gateway knows of pages that it changes, and of acknowledged writes that are not flushed, is in its memory. Two of
//! them that change one volume would undo each other's writes: parts of a page that both have read, and copies of requests
//! that the other one does not wait for. So the control plane names the lead and gives it a session, higher than any
//! before, in the registry (`rack::lead`). Nodes take part: who opens a vSSD in a higher session has it, durably, and
//! nothing that is sent in a lower one is begun after that (`rack::dedup`). A lead changes no page before it has opened
//! the page's primary. One that was replaced and does not know it yet may read, which is right at any replica, and is
//! told with its first write.

use super::{CONTROL_BIT, Gateway};
use crate::Output;
use base::event::{Kind, Lead};
use base::{Addr, BlockError, Instant, VolumeId, VssdId};
use rack::registry::Snapshot;
use wire::rack::{Code, Header, Op, Packet};

impl Gateway {
    /// True unless it stands by. It stops by itself when it hears that another one has taken over.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// The session in which it serves, unless it stands by.
    pub fn session(&self) -> Option<u32> {
        self.leads.then_some(self.config.session)
    }

    /// The gateway that was asked last whether it is there, and when it answered, if it ever did.
    pub fn peer(&self) -> Option<(Addr, Option<Instant>)> {
        self.peer
    }

    /// Stands by while the gateway at `peer` leads: asks that gateway and the nodes whether they are there.
    pub fn stand_by_for(&mut self, now: Instant, peer: Addr) {
        if self.leads {
            self.leave(now, Lead::Named);
        }
        self.ask_peer(peer);
        self.ask_status(now);
    }

    /// Serves from now on what the registry has, in the session that it has given this gateway.
    pub fn serve(&mut self, now: Instant, session: u32, snapshot: &Snapshot) {
        self.stand_by(now);
        self.config.session = session;
        self.leads = true;
        self.out.push_back(Output::Event(Kind::LeadTaken { session }));
        for record in &snapshot.volumes {
            self.open_volume(now, record.clone(), !record.ready);
        }
    }

    /// Serves no more, and tells why.
    pub(super) fn leave(&mut self, now: Instant, why: Lead) {
        if self.leads {
            let session = self.config.session;
            self.out.push_back(Output::Event(Kind::LeadLeft { session, why }));
        }
        self.stand_by(now);
    }

    /// Serves no more: what is unanswered may be executed or not, and clients ask elsewhere.
    pub fn stand_by(&mut self, now: Instant) {
        self.leads = false;
        for slot in 0..self.requests.bound() {
            if self.requests.get(slot).is_some() {
                self.give_up(now, slot, BlockError::Elsewhere);
            }
        }
        let open = self.volumes.iter().flatten();
        let ids: Vec<VolumeId> = open.map(|volume| volume.record.volume()).collect();
        for id in ids {
            self.close_volume(id);
        }
    }

    /// Asks another gateway whether it is there.
    fn ask_peer(&mut self, peer: Addr) {
        if self.peer.is_none_or(|(known, _)| known != peer) {
            self.peer = Some((peer, None));
        }
        let header = Header {
            request: CONTROL_BIT,
            session: self.config.session,
            source: self.config.addr,
            target: peer,
            ..Header::new(Op::Status, VssdId(0))
        };
        self.out.push_back(Output::Send {
            to: self.config.tor,
            packet: Packet::bare(header),
        });
    }

    #[cold]
    pub(super) fn peer_answered(&mut self, now: Instant, header: &Header) {
        if let Some((peer, heard)) = &mut self.peer
            && (header.op, header.source) == (Op::Status, *peer)
        {
            *heard = Some(now);
        }
    }

    /// One that stands by asks: only the lead answers.
    #[cold]
    pub(super) fn answer_peer(&mut self, header: &Header) {
        if self.leads {
            self.out.push_back(Output::Send {
                to: self.config.tor,
                packet: Packet::bare(Header {
                    source: self.config.addr,
                    ..header.reply(Code::SoftOrOk)
                }),
            });
        }
    }
}
