//! The gateway's control work: opening and deleting vSSDs on nodes, asking nodes for their status. Each request is
//! repeated until it is answered.

use base::{Addr, Duration, Instant, NodeId, VssdId};
use rack::control::{NodeStatus, Open};
use wire::rack::{Code, Header, Op, Packet};

const ASK_AGAIN: Duration = Duration::from_millis(50);

/// One request to a node.
#[derive(Debug)]
struct Ask {
    number: u64,
    volume: u32,
    vssd: VssdId,
    node: Addr,
    op: Op,
    record: Vec<u8>,
    again_at: Instant,
}

/// A node's last answer.
#[derive(Clone, Debug)]
pub struct NodeAnswer {
    /// The node.
    pub node: NodeId,
    /// Where it is.
    pub addr: Addr,
    /// What it told and when, if it ever did.
    pub last: Option<(Instant, NodeStatus)>,
}

/// Requests in progress and nodes known.
#[derive(Debug)]
pub struct Control {
    asks: Vec<Ask>,
    next: u64,
    /// The nodes.
    pub nodes: Vec<NodeAnswer>,
    /// Volumes some of whose vSSDs were refused, with why.
    pub failures: Vec<(u32, VssdId, Code)>,
    send_at: Option<Instant>,
}

/// Requests of the control path are numbered apart from the data path's.
pub const CONTROL_BIT: u64 = 1 << 62;

impl Control {
    /// A control path to these nodes.
    pub fn new(nodes: impl IntoIterator<Item = (NodeId, Addr)>) -> Self {
        let nodes = nodes
            .into_iter()
            .map(|(node, addr)| NodeAnswer {
                node,
                addr,
                last: None,
            })
            .collect();
        Self {
            asks: Vec::new(),
            next: 0,
            nodes,
            failures: Vec::new(),
            send_at: None,
        }
    }

    /// Where a node is.
    pub fn addr(&self, node: NodeId) -> Option<Addr> {
        self.nodes
            .iter()
            .find(|answer| answer.node == node)
            .map(|answer| answer.addr)
    }

    fn ask(&mut self, now: Instant, volume: u32, vssd: VssdId, node: Addr, op: Op, record: Vec<u8>) {
        self.next += 1;
        self.asks.push(Ask {
            number: self.next | CONTROL_BIT,
            volume,
            vssd,
            node,
            op,
            record,
            again_at: now,
        });
        self.send_at = Some(now);
    }

    /// Opens a vSSD.
    pub fn open(&mut self, now: Instant, volume: u32, vssd: VssdId, node: Addr, open: &Open) {
        self.ask(now, volume, vssd, node, Op::Open, open.emit());
    }

    /// Deletes a vSSD.
    pub fn delete(&mut self, now: Instant, volume: u32, vssd: VssdId, node: Addr) {
        self.ask(now, volume, vssd, node, Op::Delete, Vec::new());
    }

    /// Asks every node for its status.
    pub fn ask_status(&mut self, now: Instant) {
        self.asks.retain(|ask| ask.op != Op::Status);
        for addr in self.nodes.iter().map(|node| node.addr).collect::<Vec<_>>() {
            self.ask(now, 0, VssdId(0), addr, Op::Status, Vec::new());
        }
    }

    /// True while requests for this volume are unanswered.
    pub fn is_pending(&self, volume: u32) -> bool {
        self.asks
            .iter()
            .any(|ask| ask.volume == volume && ask.op != Op::Status)
    }

    /// Forgets what is asked for a volume.
    pub fn cancel(&mut self, volume: u32) {
        self.asks.retain(|ask| ask.volume != volume);
        self.failures.retain(|(failed, ..)| *failed != volume);
    }

    /// Takes an answer.
    pub fn answered(&mut self, now: Instant, packet: &Packet) {
        let header = packet.header;
        let Some(index) = self.asks.iter().position(|ask| ask.number == header.request) else {
            return;
        };
        match header.code {
            // Under way: ask again.
            Code::Busy => return,
            Code::SoftOrOk => {}
            code => self
                .failures
                .push((self.asks[index].volume, self.asks[index].vssd, code)),
        }
        self.asks.swap_remove(index);
        if header.op == Op::Status
            && let Ok(status) = serde_json::from_slice::<NodeStatus>(packet.record())
            && let Some(node) = self.nodes.iter_mut().find(|node| node.addr == header.source)
        {
            node.last = Some((now, status));
        }
    }

    /// When something is to be sent.
    pub fn deadline(&self) -> Option<Instant> {
        if self.asks.is_empty() { None } else { self.send_at }
    }

    /// What is to be sent now.
    pub fn due(&mut self, now: Instant) -> Vec<Packet> {
        let mut packets = Vec::new();
        for ask in &mut self.asks {
            if now >= ask.again_at {
                ask.again_at = now + ASK_AGAIN;
                let header = Header {
                    request: ask.number,
                    target: ask.node,
                    ..Header::new(ask.op, ask.vssd)
                };
                packets.push(match ask.record.is_empty() {
                    true => Packet::bare(header),
                    false => Packet::with_record(header, ask.record.clone()),
                });
            }
        }
        self.send_at = self.asks.iter().map(|ask| ask.again_at).min();
        packets
    }
}
