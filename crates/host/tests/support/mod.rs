//! A node alone, or a gateway alone, driven by hand.
#![allow(dead_code, reason = "no test uses all of it")]

use base::device::execute;
use base::event::Kind;
use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{
    Addr, BlockReply, Duration, Instant, Machine, MediaDone, MediaError, MediaKind, MediaOp, NodeId, Page,
    Pool, VolumeId, VssdId,
};
use flash::{Geometry, Ssd};
use host::{Gateway, GatewayConfig, Input, Node, NodeConfig, Output};
use rack::control::{Intent, Open, Terms};
use rack::level::Levels;
use rack::membership::Membership;
use rack::registry::{ReplicaRecord, SetRecord, VolumeRecord};
use uuid::Uuid;
use wire::rack::{Code, Header, Op, Packet, Payload};

const GEOMETRY: Geometry = Geometry {
    channels: 2,
    chips_per_channel: 1,
    planes_per_chip: 1,
    blocks_per_plane: 16,
    pages_per_block: 64,
};
pub const VSSD: VssdId = VssdId(1);
/// The volume of [`gateway`].
pub const VOLUME: VolumeId = VolumeId(1);

pub fn addr(last: u8) -> Addr {
    Addr::new([10, 0, 0, last], 1)
}

/// A node on a medium in memory, driven by hand.
pub struct World {
    pool: Pool,
    pub medium: Vec<u8>,
    pub node: Node,
    pub replies: Vec<Header>,
    /// Of the replies that have one.
    pub records: Vec<Vec<u8>>,
    pub writes_fail: bool,
    /// Who asks, and in which session.
    pub gateway: (Addr, u32),
    /// Pages that were written to the medium.
    pub writes: usize,
    /// Events of the node.
    pub told: Vec<Kind>,
}

impl World {
    pub fn blank() -> Vec<u8> {
        let mut medium = vec![0; Ssd::bytes_needed(&GEOMETRY, PAGE_BYTES) as usize];
        Ssd::format(&mut medium, GEOMETRY, PAGE_BYTES, [1; 16]).expect("formats");
        medium
    }

    pub fn start(medium: Vec<u8>) -> Self {
        Self::start_with(medium, Pool::new(4096, SECTOR_BYTES))
    }

    pub fn start_with(medium: Vec<u8>, pool: Pool) -> Self {
        Self::start_at(medium, pool, Levels::BUILD)
    }

    /// With a program that knows these levels.
    pub fn start_at(mut medium: Vec<u8>, pool: Pool, levels: Levels) -> Self {
        let config = NodeConfig {
            levels,
            ..NodeConfig::new(NodeId(1), addr(1), vec![addr(2)])
        };
        let node = Node::open(Instant::ZERO, config, pool.clone(), &mut medium).expect("opens");
        Self {
            pool,
            medium,
            node,
            replies: Vec::new(),
            records: Vec::new(),
            writes_fail: false,
            gateway: (addr(9), 1),
            writes: 0,
            told: Vec::new(),
        }
    }

    /// With one vSSD, whose epoch the client learns by a first write.
    pub fn fresh() -> Self {
        let mut world = Self::start(Self::blank());
        world.open(Intent::Create);
        assert!(world.node.units().all(host::node::Unit::is_serving));
        world.write(1, 0);
        world
    }

    pub fn open(&mut self, intent: Intent) {
        let open = Open {
            intent,
            rack: Uuid::nil(),
            pages: 500,
            channels: 1,
            rows: 0,
            membership: Membership::default(),
            terms: Terms::default(),
            part: None,
        };
        self.send(Packet::with_record(self.header(Op::Open, 0), open.emit()));
    }

    /// Asks about a vSSD; what the node answers.
    pub fn ask(&mut self, op: Op, vssd: VssdId, record: Vec<u8>) -> Code {
        let request = 1000 + self.replies.len() as u64;
        let header = Header {
            request,
            source: self.gateway.0,
            session: self.gateway.1,
            ..Header::new(op, vssd)
        };
        self.send(Packet::with_record(header, record));
        let mut replies = self.replies.iter();
        let answer = replies.find(|reply| reply.request == request);
        answer.expect("it is answered").code
    }

    fn header(&self, op: Op, request: u64) -> Header {
        Header {
            request,
            source: self.gateway.0,
            session: self.gateway.1,
            epoch: self.replies.last().map_or(0, |reply| reply.epoch),
            ..Header::new(op, VSSD)
        }
    }

    pub fn write(&mut self, request: u64, lpn: u64) {
        let page: Page = self.pool.alloc().expect("the pool is large");
        page.with_mut(|bytes| bytes.fill(request as u8));
        let crc = page.crc();
        let header = Header {
            lba: lpn * 8,
            ..self.header(Op::Write, request)
        };
        self.send(Packet::with_page(header, Some(page), crc));
    }

    pub fn send(&mut self, packet: Packet) {
        self.send_all([packet]);
    }

    /// Packets that arrive together.
    pub fn send_all(&mut self, packets: impl IntoIterator<Item = Packet>) {
        for packet in packets {
            self.node.handle(Instant::ZERO, Input::Packet(packet));
        }
        self.settle();
    }

    pub fn drain(&mut self) {
        self.node.drain(Instant::ZERO);
        self.settle();
    }

    /// Carries out what the node asks for until it asks for nothing more.
    fn settle(&mut self) {
        while let Some(output) = self.node.poll() {
            match output {
                Output::Media(op) => {
                    let done = self.carry_out(op);
                    self.node.handle(Instant::ZERO, Input::Media(done));
                }
                Output::Send { packet, .. } => {
                    self.replies.push(packet.header);
                    if let Payload::Record(record) = &packet.payload {
                        self.records.push(record.to_vec());
                    }
                }
                Output::Reply(_) => unreachable!("a node has no clients of its own"),
                Output::Event(kind) => self.told.push(kind),
            }
        }
    }

    fn carry_out(&mut self, op: MediaOp) -> MediaDone {
        match op.kind {
            MediaKind::Write if self.writes_fail => op.done(Err(MediaError::Io)),
            kind => {
                self.writes += usize::from(kind == MediaKind::Write);
                execute(&mut self.medium, op)
            }
        }
    }

    pub fn written(&self) -> usize {
        let ok = |reply: &&Header| reply.op == Op::Write && reply.code == Code::SoftOrOk;
        self.replies.iter().filter(ok).count()
    }
}

/// A gateway with one volume of one set, whose vSSDs have the numbers of their nodes; and what it has sent to open them.
pub fn gateway(pool: &Pool, vssds: &[u8]) -> (Gateway, Vec<Header>) {
    let config = GatewayConfig {
        addr: addr(9),
        tors: vec![addr(8)],
        session: 1,
        nodes: vssds.iter().map(|&id| (NodeId(id), addr(id))).collect(),
        request_timeout: Duration::from_secs(60),
        shaping: None,
        reads: host::gateway::Reads::default(),
        slow: Default::default(),
        shared: false,
    };
    let mut gateway = Gateway::new(config, pool.clone());
    let replica = |&node| ReplicaRecord {
        vssd: u32::from(node),
        node,
    };
    let volume = VolumeRecord {
        id: VOLUME.0,
        identity: Default::default(),
        name: "v".to_owned(),
        size_bytes: 8 * PAGE_BYTES as u64,
        durability: Default::default(),
        read_only: false,
        ready: true,
        lead: None,
        sets: vec![SetRecord {
            pages: 8,
            channels: 1,
            replicas: vssds.iter().map(replica).collect(),
            ..SetRecord::default()
        }],
    };
    gateway.open_volume(Instant::ZERO, volume, false);
    let (opened, _) = poll_all(&mut gateway);
    (gateway, opened)
}

/// What a gateway sends and answers.
pub fn poll_all(gateway: &mut Gateway) -> (Vec<Header>, Vec<BlockReply>) {
    let (mut packets, mut replies) = (Vec::new(), Vec::new());
    while let Some(output) = gateway.poll() {
        match output {
            Output::Send { packet, .. } => packets.push(packet.header),
            Output::Reply(reply) => replies.push(reply),
            Output::Media(_) => unreachable!("a gateway has no medium"),
            Output::Event(_) => {}
        }
    }
    (packets, replies)
}
