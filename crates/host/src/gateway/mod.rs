//! Where clients enter: volumes over replica sets.
//!
//! A request is split into operations of one page ([`traffic`]). Everything in flight is numbered, bounded and sent again
//! until it is answered ([`flight`]). Replica sets change their members meanwhile ([`change`]).
//!
//! One gateway serves a volume at a time: the order of mutations of a page is its own ([`lead`]).

mod arrivals;
mod change;
mod control;
mod flight;
mod growth;
mod lead;
mod line;
mod locks;
mod losses;
pub(crate) mod merge;
mod operations;
mod overdue;
mod peers;
mod readers;
mod refusal;
mod requests;
mod round_trip;
mod set;
mod shape;
mod slowness;
mod step;
mod tors;
mod traffic;
mod volumes;

pub use control::NodeAnswer;
pub use flight::{GatewayConfig, GatewayStats, REQUEST_TIMEOUT};
pub use lead::Charge;
pub use readers::Reads;
pub use shape::Shaping;
pub use tors::TorAnswer;
pub use volumes::VolumeState;

use base::event::{self, Lead};
use base::{Addr, Instant, NodeId, Pool, VolumeId, VssdId};
use change::Changes;
use control::Owner;
use flight::Flight;
use hdrhistogram::Histogram;
use peers::Peers;
use rack::exchange::ChangeState;
use rack::registry::{LeftRecord, VolumeRecord};
use rack::uplink::Uplink;
use traffic::Traffic;

/// A gateway.
pub struct Gateway {
    traffic: Traffic,
    /// Changes of sets' members.
    changes: Changes,
    /// The other gateways, as they were asked.
    peers: Peers,
}

impl Gateway {
    /// A gateway without volumes.
    ///
    /// # Panics
    /// If the pool is empty.
    pub fn new(config: GatewayConfig, pool: Pool) -> Self {
        Self {
            traffic: Traffic::new(Flight::new(config), pool),
            changes: Changes::default(),
            peers: Peers::default(),
        }
    }

    /// Asks every node for its status; [`nodes`](Gateway::nodes) tells what came.
    pub fn ask_status(&mut self, now: Instant) {
        self.traffic.flight.control.ask_status(now);
        self.traffic.flight.send_control(now);
        self.traffic.flight.ask_tors(now);
    }

    /// The rack is at this level from now on.
    pub fn set_level(&mut self, level: u8) {
        self.traffic.flight.control.level = level;
    }

    /// Its own address.
    pub fn addr(&self) -> Addr {
        self.traffic.flight.config.addr
    }

    /// The rack's nodes are these from now on. Requests under way go on, to the nodes where they are.
    pub fn set_nodes(&mut self, nodes: &[(NodeId, Addr)]) {
        self.traffic.flight.control.set_nodes(nodes);
        let slowness = &mut self.traffic.flight.slowness;
        slowness.retain(|node| nodes.iter().any(|(known, _)| *known == node));
    }

    /// The ToRs as seen from here.
    pub fn uplink(&self) -> &Uplink {
        &self.traffic.flight.uplink
    }

    /// The ToRs, and what they have told of their programs.
    pub fn tors(&self) -> &[TorAnswer] {
        self.traffic.flight.tors.known()
    }

    /// The nodes and their last answers.
    pub fn nodes(&self) -> &[NodeAnswer] {
        &self.traffic.flight.control.nodes
    }

    /// Counters.
    pub fn stats(&self) -> GatewayStats {
        self.traffic.flight.stats
    }

    /// Latencies of an open volume in ns: reads, writes (with trims and zeroings), flushes.
    pub fn latency(&self, id: VolumeId) -> Option<&[Histogram<u64>; 3]> {
        let flight = &self.traffic.flight;
        flight.find(id).map(|index| &flight.volumes[index].latency)
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.traffic.requests.len()
    }

    /// Begins what the sets of a volume's new record ask for; [`change_states`](Gateway::change_states) tells how far it is.
    pub fn change_sets(&mut self, now: Instant, record: &VolumeRecord) {
        self.changes.begin(now, &mut self.traffic.flight, record);
    }

    /// How far the changes of each of a volume's sets are; of none if it is not open.
    pub fn change_states(&self, id: VolumeId) -> Vec<ChangeState> {
        let flight = &self.traffic.flight;
        let Some(index) = flight.find(id) else {
            return Vec::new();
        };
        let sets = flight.volumes[index].sets.len();
        self.changes.states(&flight.control, id, sets)
    }

    /// Has vSSDs deleted that are nobody's any more.
    pub fn discard(&mut self, now: Instant, leftovers: Vec<LeftRecord>) {
        let control = &mut self.traffic.flight.control;
        control.cancel(Owner::Leftovers);
        let is_asked = |gone: &(NodeId, VssdId)| {
            leftovers
                .iter()
                .any(|left| (left.node, left.vssd) == (gone.0.0, gone.1.0))
        };
        control.discarded.retain(is_asked);
        control.delete_known(now, Owner::Leftovers, leftovers.iter().copied());
        self.traffic.flight.send_control(now);
    }

    /// Nodes have answered that these are deleted, of what [`Gateway::discard`] asked for.
    pub fn discarded(&self) -> &[(NodeId, VssdId)] {
        &self.traffic.flight.control.discarded
    }

    /// Stops serving a volume. Requests in flight are answered first.
    pub fn close_volume(&mut self, id: VolumeId) {
        let control = &mut self.traffic.flight.control;
        control.cancel(Owner::Volume(id));
        self.changes.cancel(control, id);
        self.traffic.close(id);
    }

    /// Serves no more, and tells why.
    fn leave(&mut self, now: Instant, why: Lead) {
        if self.traffic.leads {
            let session = self.traffic.flight.config.session;
            self.traffic.flight.tell(event::Kind::LeadLeft { session, why });
        }
        self.stand_by(now);
    }

    /// Serves no more: what is unanswered may be executed or not, and clients ask elsewhere.
    pub fn stand_by(&mut self, now: Instant) {
        self.traffic.leads = false;
        self.traffic.give_up_all(now, None);
        self.traffic.flight.control.sessions.clear();
        let open = self.traffic.flight.volumes.iter();
        let ids: Vec<VolumeId> = open.map(|(_, volume)| volume.record.volume()).collect();
        for id in ids {
            self.close_volume(id);
        }
    }
}
