//! Which of several gateways serves a volume: one at a time, its *lead*.
//!
//! What a gateway knows of pages that it changes, and of acknowledged writes that are not flushed, is in its memory. Two of
//! them that change one volume would undo each other's writes: parts of a page that both have read, and copies of requests
//! that the other one does not wait for. So the control plane names the lead of each volume and gives it a session, higher
//! than any before, in the registry (`rack::lead`). Nodes take part: who opens a vSSD in a higher session has it, durably,
//! and nothing that is sent in a lower one is begun after that (`rack::dedup`). A lead changes no page before it has opened
//! the page's primary. One that was replaced and does not know it yet may read, which is right at any replica, and is
//! told with its first write or flush. Then it closes that volume, and goes on with its others.

use super::Gateway;
use super::control::{CONTROL_BIT, Owner};
use base::event::{Kind, Lead};
use base::{Addr, BlockOp, BlockRequest, Instant, Pages, SectorRange, VolumeId, VssdId};
use rack::lead::Seen;
use rack::registry::{Snapshot, VolumeRecord};
use std::collections::BTreeMap;
use uuid::Uuid;
use wire::rack::{Header, Op, Packet};

/// A volume to serve.
#[derive(Clone, Debug)]
pub struct Charge {
    /// Its record.
    pub record: VolumeRecord,
    /// The session in which this gateway leads it.
    pub session: u32,
    /// It is opened; else its vSSDs are only deleted.
    pub opens: bool,
}

impl Gateway {
    /// True unless it stands by. It stops by itself when it hears that another one has taken over.
    pub fn leads(&self) -> bool {
        self.traffic.leads
    }

    /// The session of what is no volume's, unless it stands by.
    pub fn session(&self) -> Option<u32> {
        self.leads().then_some(self.traffic.flight.config.session)
    }

    /// The volumes that it leads, each in its session.
    pub fn led(&self) -> &BTreeMap<VolumeId, u32> {
        &self.traffic.flight.control.sessions
    }

    /// Serves from now on what the registry has, alone and in one session.
    pub fn serve(&mut self, now: Instant, session: u32, snapshot: &Snapshot) {
        self.stand_by(now);
        self.set_session(session);
        let flight = &mut self.traffic.flight;
        flight.control.rack = snapshot.rack;
        flight.tell(Kind::LeadTaken { session });
        self.traffic.leads = true;
        for record in &snapshot.volumes {
            self.open_volume(now, record.clone(), !record.ready);
        }
    }

    /// Leads the rack in this session from now on, or no more.
    pub fn lead_rack(&mut self, rack: Uuid, session: Option<u32>, was: Option<u32>) {
        let flight = &mut self.traffic.flight;
        flight.control.rack = rack;
        match (session, was) {
            (Some(session), None) => flight.tell(Kind::LeadTaken { session }),
            (None, Some(session)) => {
                let why = Lead::Named;
                flight.tell(Kind::LeadLeft { session, why });
            }
            _ => {}
        }
        self.set_session(session.unwrap_or(0));
    }

    /// Leads these volumes from now on.
    pub fn lead_volumes(&mut self, now: Instant, rack: Uuid, volumes: Vec<Charge>) {
        self.traffic.leads = true;
        self.traffic.flight.control.rack = rack;
        for charge in volumes {
            let (volume, session) = (charge.record.volume(), charge.session);
            self.drop_volume(now, volume);
            let flight = &mut self.traffic.flight;
            flight.control.sessions.insert(volume, session);
            flight.tell(Kind::VolumeTaken { volume, session });
            if charge.opens {
                let create = !charge.record.ready;
                self.open_volume(now, charge.record, create);
            }
        }
    }

    /// Leads a volume no more: what is unanswered may be executed or not, and clients ask elsewhere.
    pub fn leave_volume(&mut self, now: Instant, volume: VolumeId, why: Lead) {
        if let Some(session) = self.drop_volume(now, volume) {
            let kind = Kind::VolumeLeft { volume, session, why };
            self.traffic.flight.tell(kind);
        }
    }

    fn drop_volume(&mut self, now: Instant, id: VolumeId) -> Option<u32> {
        if let Some(index) = self.traffic.flight.find(id) {
            self.traffic.give_up_all(now, Some(index));
        }
        self.close_volume(id);
        let control = &mut self.traffic.flight.control;
        control.cancel(Owner::Growth(id));
        control.sessions.remove(&id)
    }

    /// Requests for this volume that come later are refused. Those in flight are answered, and it is flushed.
    pub fn retire_volume(&mut self, now: Instant, volume: VolumeId) {
        if self.volume_state(volume).is_none() || self.is_retiring(volume) {
            return;
        }
        let request = BlockRequest {
            client: crate::NOBODY,
            tag: 0,
            volume,
            op: BlockOp::Flush,
            range: SectorRange::EMPTY,
            fua: false,
            bulk: false,
            pages: Pages::new(),
        };
        self.traffic.request(now, request);
        self.close_volume(volume);
    }

    /// True while requests for a volume are in flight that is served no more.
    pub fn is_retiring(&self, volume: VolumeId) -> bool {
        let flight = &self.traffic.flight;
        flight
            .find(volume)
            .is_some_and(|index| flight.volumes[index].closing)
    }

    /// A node has told of another gateway.
    #[cold]
    pub(super) fn superseded(&mut self, now: Instant, packet: &Packet) {
        let (flight, header) = (&mut self.traffic.flight, packet.header);
        if !flight.config.shared {
            if header.session == flight.config.session {
                self.leave(now, Lead::Superseded);
            }
            return;
        }
        let has = |record: &VolumeRecord| record.vssds().any(|(vssd, ..)| vssd == header.vssd);
        let is_it = |id: VolumeId| {
            let volume = flight.find(id).map(|index| &flight.volumes[index]);
            volume.is_none_or(|volume| volume.session == header.session && has(&volume.record))
        };
        let led = flight.control.sessions.iter();
        let mut named = led.filter(|(_, session)| **session == header.session);
        match named.find(|(id, _)| is_it(**id)).map(|(id, _)| *id) {
            Some(id) => self.leave_volume(now, id, Lead::Superseded),
            // It is no volume's any more: nobody waits for it.
            None => _ = flight.control.answered(now, packet),
        }
    }

    fn set_session(&mut self, session: u32) {
        self.traffic.flight.config.session = session;
        self.traffic.flight.control.session = session;
    }

    /// The other gateways, as they were asked.
    pub fn peers(&self) -> &[Seen] {
        self.peers.seen()
    }

    /// The newest epoch of the registry that others know of.
    pub fn epoch_told(&self) -> u64 {
        self.peers.epoch_told()
    }

    /// The operator has looked: asks these gateways, and the nodes, whether they are there. From now on this one tells others
    /// that it is there.
    pub fn watch(&mut self, now: Instant, peers: &[Addr], epoch: u64) {
        let asked: Vec<(Addr, u32)> = self.peers.watch(now, peers, epoch).collect();
        for (peer, attempts) in asked {
            let packet = Packet::bare(Header {
                request: CONTROL_BIT,
                target: peer,
                lba: epoch,
                ..Header::new(Op::Status, VssdId(0))
            });
            self.traffic.flight.post(now, packet, attempts);
        }
        self.traffic.flight.control.await_status(now);
        self.traffic.flight.send_control(now);
        self.traffic.flight.ask_tors(now);
    }
}
