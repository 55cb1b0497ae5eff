//! The gateway's control work: opening and deleting vSSDs on nodes, asking nodes for their status. Each request is
//! repeated until it is answered.

use base::{Addr, Duration, Instant, NodeId, Version, VolumeId, VssdId, event};
use rack::control::{Intent, NodeStatus, Open, Roll, Terms, emit_rack};
use rack::heal::is_refused_as_stranger;
use rack::level::Software;
use rack::membership::{Member, Membership};
use rack::part::{Part, mark_of, marked};
use rack::registry::{LeftRecord, SetRecord};
use std::collections::BTreeMap;
use uuid::Uuid;
use wire::rack::{Code, Header, Op, Packet};

/// A request is sent again after this,
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// and then ever later, unless it asks how the node is: the pause doubles with each time that it is not answered, so often at most.
const ASK_DOUBLINGS_MAX: u32 = 4;
/// A node that is at it is asked again after this, and then ever later: the pause doubles with each such answer,
const BUSY_AGAIN: Duration = Duration::from_millis(5);
/// so often at most. A replica may take minutes to serve, and what else changes waits so long for nothing at most.
const BUSY_DOUBLINGS_MAX: u32 = 4;

/// Purpose of a request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// To see how the nodes are.
    Nodes,
    /// The opening or the end of a volume.
    Volume(VolumeId),
    /// A change of a volume's set of this index.
    Change(VolumeId, usize),
    /// vSSDs that the volume is to grow by.
    Growth(VolumeId),
    /// vSSDs that are nobody's.
    Leftovers,
}

/// One request to a node.
#[derive(Debug)]
struct Ask {
    number: u64,
    owner: Owner,
    vssd: VssdId,
    node: NodeId,
    op: Op,
    record: Vec<u8>,
    /// Which vSSD is meant. Of an opening: the generation that it must know, 0 for any. Of a deletion: the mark of its set.
    version: Version,
    /// In which it is asked.
    session: u32,
    /// Of an opening: the start of the node that may make the vSSD, as far as is known, or 0.
    boot: u32,
    /// There is no other way: one that is refused is asked again, too.
    insists: bool,
    /// The node is at it, and so has found nothing wrong with the request.
    is_taken: bool,
    /// It has said so this many times.
    busy: u32,
    again_at: Instant,
    /// It was sent so many times since the last answer.
    attempts: u32,
}

impl Ask {
    /// How long to wait for the answer. A node that says how it is ends the wait ([`Control::answered`]).
    fn patience(&self) -> Duration {
        match self.op {
            Op::Status => ASK_AGAIN,
            _ => ASK_AGAIN * (1 << self.attempts.min(ASK_DOUBLINGS_MAX)),
        }
    }
}

/// A node's last answer.
#[derive(Clone, Debug)]
pub struct NodeAnswer {
    /// The node.
    pub node: NodeId,
    /// Where it is.
    pub addr: Addr,
    /// Its last status and the time, if any.
    pub last: Option<(Instant, NodeStatus)>,
    /// Its vSSDs as far as it has told them, while it goes on.
    told: Roll,
    /// It is much slower than the others.
    pub slow: bool,
    /// Its last answer was refused, as it does not know the rack's level: it counts as one that does not answer.
    pub refused: Option<(Instant, Software)>,
}

/// Requests in progress and nodes known.
#[derive(Debug)]
pub struct Control {
    asks: Vec<Ask>,
    /// Openings of volumes' vSSDs that were refused, and the start of the node as it was known then: its next start may have the medium that
    /// this one lacks.
    refused: Vec<(Ask, Option<u32>)>,
    next: u64,
    /// The nodes.
    pub nodes: Vec<NodeAnswer>,
    /// Refusals of nodes, with reasons.
    pub failures: Vec<(Owner, VssdId, Code)>,
    send_at: Option<Instant>,
    /// The session of what is no volume's.
    pub session: u32,
    /// Volumes that this gateway leads, and the session of each.
    pub sessions: BTreeMap<VolumeId, u32>,
    /// The rack that the vSSDs belong to; nil until it is known.
    pub rack: Uuid,
    /// The rack's level; 0 until it is known.
    pub level: u8,
    /// Events about nodes that are not told yet.
    pub told: Vec<event::Kind>,
    /// vSSDs that were nobody's, and are deleted.
    pub discarded: Vec<(NodeId, VssdId)>,
}

/// Requests of the control path are numbered apart from the data path's.
pub const CONTROL_BIT: u64 = 1 << 62;

fn answer_of(nodes: &[NodeAnswer], node: NodeId) -> Option<&NodeAnswer> {
    nodes.iter().find(|answer| answer.node == node)
}

impl NodeAnswer {
    /// One that has not answered yet.
    pub fn unheard(node: NodeId, addr: Addr) -> Self {
        Self {
            node,
            addr,
            last: None,
            told: Roll::default(),
            slow: false,
            refused: None,
        }
    }

    /// Its program as it has told, and when it did so.
    pub fn software(&self) -> Option<(Instant, Software)> {
        let served = || self.last.as_ref().map(|(at, status)| (*at, status.software()));
        self.refused.clone().or_else(served)
    }

    /// Takes a status. Of many vSSDs it tells some: then the node is to be asked for more, from this number on.
    fn take(&mut self, now: Instant, mut status: NodeStatus) -> Option<VssdId> {
        if let Some(part) = status.roll_part.take() {
            if part.from == 0 {
                self.told = Roll::default();
            }
            self.told.extend(part.roll);
            if part.next > 0 {
                return Some(VssdId(part.next));
            }
            status.roll = Some(core::mem::take(&mut self.told));
        }
        self.last = Some((now, status));
        None
    }
}

impl Control {
    /// A control path to these nodes.
    pub fn new(nodes: impl IntoIterator<Item = (NodeId, Addr)>) -> Self {
        let nodes = nodes
            .into_iter()
            .map(|(node, addr)| NodeAnswer::unheard(node, addr))
            .collect();
        Self {
            asks: Vec::new(),
            refused: Vec::new(),
            next: 0,
            nodes,
            failures: Vec::new(),
            send_at: None,
            session: 0,
            sessions: BTreeMap::new(),
            rack: Uuid::nil(),
            level: 0,
            told: Vec::new(),
            discarded: Vec::new(),
        }
    }

    /// These are the nodes from now on; what is known of one that stays is kept.
    pub fn set_nodes(&mut self, nodes: &[(NodeId, Addr)]) {
        let known = core::mem::take(&mut self.nodes);
        let answer = |&(node, addr): &(NodeId, Addr)| {
            let is_it = |known: &&NodeAnswer| (known.node, known.addr) == (node, addr);
            let known = known.iter().find(is_it).cloned();
            known.unwrap_or_else(|| NodeAnswer::unheard(node, addr))
        };
        self.nodes = nodes.iter().map(answer).collect();
        let is_known = |ask: &Ask| nodes.iter().any(|(node, _)| *node == ask.node);
        self.asks.retain(|ask| ask.owner != Owner::Nodes || is_known(ask));
    }

    /// Address of a node; nowhere if the node is not known, so that its requests wait.
    fn addr(&self, node: NodeId) -> Addr {
        answer_of(&self.nodes, node).map_or(Addr::NONE, |known| known.addr)
    }

    /// The session in which this is asked.
    fn session_of(&self, owner: Owner) -> u32 {
        let own = match owner {
            Owner::Volume(id) | Owner::Change(id, _) | Owner::Growth(id) => self.sessions.get(&id),
            Owner::Nodes | Owner::Leftovers => None,
        };
        own.copied().unwrap_or(self.session)
    }

    /// True if this answers what was asked.
    pub fn awaits_answer(&self, header: &Header) -> bool {
        self.asked(header).is_some()
    }

    /// The request that this answers, by its session, too: an earlier start of this gateway may have asked with a number that is in use
    /// again.
    fn asked(&self, header: &Header) -> Option<usize> {
        let is_it = |ask: &Ask| (ask.number, ask.session) == (header.request, header.session);
        self.asks.iter().position(is_it)
    }

    fn ask(
        &mut self,
        now: Instant,
        owner: Owner,
        vssd: VssdId,
        node: NodeId,
        op: Op,
        record: Vec<u8>,
    ) -> &mut Ask {
        self.refused
            .retain(|(ask, _)| (ask.owner, ask.vssd) != (owner, vssd));
        self.next += 1;
        self.asks.push(Ask {
            number: self.next | CONTROL_BIT,
            owner,
            vssd,
            node,
            op,
            record,
            version: Version(0),
            session: self.session_of(owner),
            boot: self.boot_of(node).unwrap_or(0),
            insists: false,
            is_taken: false,
            busy: 0,
            again_at: now,
            attempts: 0,
        });
        self.send_at = Some(now);
        self.asks.last_mut().expect("it was put there just now")
    }

    /// Opens a vSSD of a set, whose other members are its peers: replicas, and one that joins.
    pub fn open(
        &mut self,
        now: Instant,
        owner: Owner,
        set: &SetRecord,
        (vssd, node): (VssdId, NodeId),
        intent: Intent,
        part: Option<Part>,
    ) {
        let leaving = set.leaving.map(|leaving| VssdId(leaving.vssd));
        let others = set
            .vssds()
            .filter(|&(other, _)| other != vssd && Some(other) != leaving);
        let peers = others.map(|(vssd, node)| Member {
            vssd,
            node,
            addr: self.addr(node),
        });
        let open = Open {
            intent,
            rack: self.rack,
            pages: set.pages,
            channels: set.channels,
            rows: set.rows,
            membership: Membership {
                generation: set.generation,
                peers: peers.collect(),
            },
            terms: Terms {
                expels: set.expelling.is_some(),
                yields: set.joining.is_some_and(|joining| joining.vssd == vssd.0),
            },
            part,
        };
        self.ask(now, owner, vssd, node, Op::Open, open.emit()).version = Version(set.settled.into());
    }

    /// Deletes a vSSD.
    pub fn delete(&mut self, now: Instant, owner: Owner, left: LeftRecord) {
        let record = emit_rack(self.rack);
        let (vssd, node) = (VssdId(left.vssd), NodeId(left.node));
        self.ask(now, owner, vssd, node, Op::Delete, record).version = marked(mark_of(left.set), 0);
    }

    /// Deletes the vSSDs whose nodes are known.
    pub fn delete_known(&mut self, now: Instant, owner: Owner, vssds: impl Iterator<Item = LeftRecord>) {
        for left in vssds {
            if self.addr(NodeId(left.node)) != Addr::NONE {
                self.delete(now, owner, left);
            }
        }
    }

    /// Makes durable what a vSSD holds.
    pub fn flush(&mut self, now: Instant, owner: Owner, (vssd, node): (VssdId, NodeId)) {
        self.ask(now, owner, vssd, node, Op::Flush, Vec::new());
    }

    /// Asks every node for its status.
    pub fn ask_status(&mut self, now: Instant) {
        self.asks.retain(|ask| ask.op != Op::Status);
        self.await_status(now);
    }

    /// Asks the nodes for their status that are not being asked. However often that is, each one's answer counts.
    pub fn await_status(&mut self, now: Instant) {
        let is_asked = |node: &NodeId| {
            let mut asks = self.asks.iter();
            asks.any(|ask| (ask.node, ask.op) == (*node, Op::Status))
        };
        let nodes = self.nodes.iter().map(|known| known.node);
        for node in nodes.filter(|node| !is_asked(node)).collect::<Vec<_>>() {
            self.ask(now, Owner::Nodes, VssdId(0), node, Op::Status, Vec::new());
        }
    }

    /// What is asked for this is asked until it is done, refused or not.
    pub fn insist(&mut self, owner: Owner) {
        for ask in self.asks.iter_mut().filter(|ask| ask.owner == owner) {
            ask.insists = true;
        }
    }

    /// True while requests for this are unanswered.
    pub fn is_pending(&self, owner: Owner) -> bool {
        self.asks.iter().any(|ask| ask.owner == owner)
    }

    /// True while a request for this to a vSSD is unanswered.
    pub fn awaits(&self, owner: Owner, vssd: VssdId) -> bool {
        self.asks.iter().any(|ask| (ask.owner, ask.vssd) == (owner, vssd))
    }

    /// True while this is asked of a vSSD, or after it was refused.
    pub fn was_asked(&self, owner: Owner, vssd: VssdId) -> bool {
        let mut failures = self.failures.iter();
        self.awaits(owner, vssd) || failures.any(|failure| (failure.0, failure.1) == (owner, vssd))
    }

    /// True if a vSSD was opened for this, or is being opened.
    pub fn is_taken(&self, owner: Owner, vssd: VssdId) -> bool {
        let mut asks = self
            .asks
            .iter()
            .filter(|ask| (ask.owner, ask.vssd) == (owner, vssd));
        let mut failures = self.failures.iter();
        asks.all(|ask| ask.is_taken) && !failures.any(|failure| (failure.0, failure.1) == (owner, vssd))
    }

    /// True if a node has something else in the place of a vSSD that is asked for this.
    pub fn is_stranger(&self, owner: Owner, vssd: VssdId) -> bool {
        let mut failures = self.failures.iter();
        failures.any(|&(of, which, code)| (of, which) == (owner, vssd) && is_refused_as_stranger(code))
    }

    /// Volumes' vSSDs that are of before what all members of their sets knew.
    pub fn past(&self) -> impl Iterator<Item = VssdId> {
        self.refused_as(Code::Past)
    }

    /// Volumes' vSSDs that know later members of their sets than the records.
    pub fn ahead(&self) -> impl Iterator<Item = VssdId> {
        self.refused_as(Code::Ahead)
    }

    fn refused_as(&self, code: Code) -> impl Iterator<Item = VssdId> {
        let refused = self.failures.iter().filter(move |(.., of)| *of == code);
        refused.map(|(_, vssd, _)| *vssd)
    }

    /// First refusal of this.
    pub fn failure(&self, owner: Owner) -> Option<(VssdId, Code)> {
        let failure = self.failures.iter().find(|failure| failure.0 == owner);
        failure.map(|&(_, vssd, code)| (vssd, code))
    }

    /// vSSDs of which what is asked for this was refused.
    pub fn refused(&self, owner: Owner) -> impl Iterator<Item = VssdId> {
        let failures = self.failures.iter().filter(move |failure| failure.0 == owner);
        failures.map(|(_, vssd, _)| *vssd)
    }

    /// True if a vSSD that is asked for this does not exist.
    pub fn is_gone(&self, owner: Owner, vssd: VssdId) -> bool {
        self.failures.contains(&(owner, vssd, Code::NoVssd))
    }

    /// Forgets what is asked for this.
    pub fn cancel(&mut self, owner: Owner) {
        self.asks.retain(|ask| ask.owner != owner);
        self.refused.retain(|(ask, _)| ask.owner != owner);
        self.failures.retain(|failure| failure.0 != owner);
    }

    /// Forgets what is asked of these for this. False if nothing was.
    pub fn cancel_some(&mut self, owner: Owner, vssds: &[VssdId]) -> bool {
        let before = self.asks.len() + self.failures.len();
        self.asks
            .retain(|ask| ask.owner != owner || !vssds.contains(&ask.vssd));
        self.refused
            .retain(|(ask, _)| ask.owner != owner || !vssds.contains(&ask.vssd));
        self.failures
            .retain(|(of, vssd, _)| *of != owner || !vssds.contains(vssd));
        before != self.asks.len() + self.failures.len()
    }

    /// The node at an address.
    pub fn node_at(&self, addr: Addr) -> Option<NodeId> {
        let known = self.nodes.iter().find(|answer| answer.addr == addr);
        known.map(|answer| answer.node)
    }

    /// Takes an answer. A node's status, if it is one.
    pub fn answered(&mut self, now: Instant, packet: &Packet) -> Option<&NodeStatus> {
        let header = packet.header;
        let index = self.asked(&header)?;
        let ask = &mut self.asks[index];
        ask.attempts = 0;
        let (owner, vssd, insists) = (ask.owner, ask.vssd, ask.insists);
        match header.code {
            Code::Busy => {
                let ask = &mut self.asks[index];
                let again_at = now + BUSY_AGAIN * (1 << ask.busy.min(BUSY_DOUBLINGS_MAX));
                ask.again_at = again_at;
                let boot = header.lba as u32;
                ask.is_taken = ask.op != Op::Open || core::mem::replace(&mut ask.boot, boot) == boot;
                ask.busy += 1;
                self.send_at = Some(self.send_at.map_or(again_at, |at| at.min(again_at)));
                return None;
            }
            code => {
                self.failures
                    .retain(|failure| (failure.0, failure.1) != (owner, vssd));
                if code != Code::SoftOrOk {
                    self.failures.push((owner, vssd, code));
                    if insists {
                        return None;
                    }
                }
            }
        }
        let ask = self.asks.swap_remove(index);
        if owner == Owner::Leftovers && header.code == Code::SoftOrOk {
            self.discarded.push((ask.node, vssd));
        }
        if header.op != Op::Status {
            let is_refused = ask.op == Op::Open && header.code != Code::SoftOrOk;
            if is_refused && matches!(owner, Owner::Volume(_)) {
                let boot = self.boot_of(ask.node);
                self.refused.push((ask, boot));
            }
            return None;
        }
        let status = serde_json::from_slice::<NodeStatus>(packet.record()).ok()?;
        let place = self.nodes.iter().position(|node| node.addr == header.source)?;
        let node = self.nodes[place].node;
        if self.is_refused(now, place, &status) {
            return None;
        }
        if let Some(next) = self.nodes[place].take(now, status) {
            self.ask(now, Owner::Nodes, next, node, Op::Status, Vec::new());
            return None;
        }
        self.open_again(now, node);
        self.ask_again(now, node);
        self.nodes[place].last.as_ref().map(|(_, status)| status)
    }

    /// The start of a node, as its last status has told it.
    fn boot_of(&self, node: NodeId) -> Option<u32> {
        let known = answer_of(&self.nodes, node)?;
        known.last.as_ref().map(|(_, status)| status.boot)
    }

    /// A node has started anew: it may have what it refused to open.
    fn open_again(&mut self, now: Instant, node: NodeId) {
        let boot = self.boot_of(node);
        let is_new = |(ask, of): &mut (Ask, Option<u32>)| ask.node == node && *of != boot;
        for (ask, _) in self.refused.extract_if(.., is_new).collect::<Vec<_>>() {
            self.failures
                .retain(|failure| (failure.0, failure.1) != (ask.owner, ask.vssd));
            let again = self.ask(now, ask.owner, ask.vssd, node, ask.op, ask.record);
            again.version = ask.version;
        }
    }

    /// A node is there: what it has left without an answer need not wait any longer.
    fn ask_again(&mut self, now: Instant, node: NodeId) {
        let waits = |ask: &&mut Ask| ask.node == node && ask.attempts > 1 && !ask.is_taken;
        for ask in self.asks.iter_mut().filter(waits) {
            ask.again_at = now;
            self.send_at = Some(now);
        }
    }

    /// True if a node does not know the rack's level. It counts as silent, and is asked for nothing but its status.
    fn is_refused(&mut self, now: Instant, place: usize, status: &NodeStatus) -> bool {
        let (software, answer) = (status.software(), &mut self.nodes[place]);
        if self.level == 0 || software.levels.has(self.level) {
            answer.refused = None;
            return false;
        }
        if answer.refused.is_none() {
            self.told.push(event::Kind::NodeRefused {
                node: answer.node,
                knows_to: software.levels.max.into(),
                rack_level: self.level.into(),
            });
        }
        answer.refused = Some((now, software));
        true
    }

    /// When something is to be sent.
    pub fn deadline(&self) -> Option<Instant> {
        if self.asks.is_empty() { None } else { self.send_at }
    }

    /// Packets to send now, and how many times each was sent before.
    pub fn due(&mut self, now: Instant) -> Vec<(Packet, u32)> {
        let mut packets = Vec::new();
        for ask in &mut self.asks {
            if now >= ask.again_at {
                ask.again_at = now + ask.patience();
                let known = answer_of(&self.nodes, ask.node);
                if ask.op != Op::Status && known.is_some_and(|known| known.refused.is_some()) {
                    continue;
                }
                let header = Header {
                    request: ask.number,
                    target: known.map_or(Addr::NONE, |known| known.addr),
                    session: ask.session,
                    version: ask.version,
                    lba: match ask.op {
                        Op::Status => self.level.into(),
                        Op::Open => ask.boot.into(),
                        _ => 0,
                    },
                    ..Header::new(ask.op, ask.vssd)
                };
                let packet = match ask.record.is_empty() {
                    true => Packet::bare(header),
                    false => Packet::with_record(header, ask.record.clone()),
                };
                packets.push((packet, ask.attempts));
                ask.attempts += 1;
            }
        }
        self.send_at = self.asks.iter().map(|ask| ask.again_at).min();
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);
    const ADDR: Addr = Addr::new([127, 0, 0, 1], 7);

    /// How often a vSSD's deletion is asked for in a second, from a time on.
    fn asked_in_a_second(control: &mut Control, from: Instant) -> usize {
        let times = (0..1_000).map(|ms| from + Duration::from_millis(ms));
        let packets = times.flat_map(|now| control.due(now));
        packets
            .filter(|(packet, _)| packet.header.op == Op::Delete)
            .count()
    }

    #[test]
    fn a_silent_node_is_asked_ever_later_and_at_once_when_it_is_there() {
        let start = Instant::ZERO;
        let mut control = Control::new([(NODE, ADDR)]);
        let left = LeftRecord {
            vssd: 5,
            node: NODE.0,
            set: Uuid::nil(),
        };
        control.delete(start, Owner::Leftovers, left);
        let first = asked_in_a_second(&mut control, start);
        assert!((4..=6).contains(&first), "{first}");
        let later: usize = (1..9)
            .map(|s| asked_in_a_second(&mut control, start + Duration::from_secs(s)))
            .sum();
        assert!((8..=11).contains(&later), "{later}");

        let now = start + Duration::from_secs(9);
        control.ask_status(now);
        let asked = control
            .due(now)
            .into_iter()
            .find(|(packet, _)| packet.header.op == Op::Status);
        let (mut answer, _) = asked.expect("it is asked how it is");
        answer.header.source = ADDR;
        answer = Packet::with_record(
            answer.header,
            serde_json::to_vec(&NodeStatus::default()).expect("a status is text"),
        );
        assert!(control.answered(now, &answer).is_some());
        assert!(
            control
                .due(now)
                .iter()
                .any(|(packet, _)| packet.header.op == Op::Delete)
        );
    }
}
