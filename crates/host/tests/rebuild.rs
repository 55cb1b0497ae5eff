//! A rack whose registry is lost: it is made again from the nodes' superblocks, and all data reads back.

use base::device::execute;
use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::time::earliest;
use base::{
    Addr, BlockOp, BlockReply, BlockRequest, Duration, Instant, Machine, NodeId, Pages, Pool, SectorRange,
    VolumeId, VssdId,
};
use flash::{Geometry, Ssd};
use host::{Gateway, GatewayConfig, Input, Node, NodeConfig, Output};
use rack::inventory::Inventory;
use rack::rebuild::{Found, Terms, rebuild};
use rack::registry::{ReplicaRecord, SetRecord, Snapshot, VolumeRecord};
use std::collections::VecDeque;
use uuid::Uuid;
use wire::rack::{Header, Op, Packet};

const PAGES: u64 = 16;
const GATEWAY: Addr = Addr::new([10, 0, 0, 9], 1);
const TOR: Addr = Addr::new([10, 0, 0, 8], 1);
/// It asks the nodes what they have.
const TOOL: Addr = Addr::new([10, 0, 0, 7], 1);
const GEOMETRY: Geometry = Geometry {
    channels: 4,
    chips_per_channel: 1,
    planes_per_chip: 1,
    blocks_per_plane: 16,
    pages_per_block: 8,
};

fn addr(node: u8) -> Addr {
    Addr::new([10, 0, 0, node], 1)
}

/// Nodes, a gateway, and a ToR that carries each packet to its target, or to the node that has its vSSD.
struct Rack {
    now: Instant,
    pool: Pool,
    media: Vec<Vec<u8>>,
    nodes: Vec<Node>,
    gateway: Gateway,
    packets: VecDeque<Packet>,
    replies: Vec<BlockReply>,
    /// For the tool.
    told: Vec<Packet>,
    /// Nobody hears this one.
    deaf: Option<Addr>,
    tag: u64,
}

fn open(now: Instant, id: u8, pool: &Pool, medium: &mut Vec<u8>) -> Node {
    let config = NodeConfig::new(NodeId(id), addr(id), vec![TOR]);
    Node::open(now, config, pool.clone(), medium).expect("opens")
}

fn gateway(pool: &Pool, session: u32) -> Gateway {
    let config = GatewayConfig {
        addr: GATEWAY,
        tors: vec![TOR],
        session,
        nodes: (1..=3).map(|id| (NodeId(id), addr(id))).collect(),
        request_timeout: Duration::from_secs(60),
        shaping: None,
        reads: host::gateway::Reads::default(),
        slow: Default::default(),
        shared: false,
    };
    Gateway::new(config, pool.clone())
}

impl Rack {
    fn new() -> Self {
        let pool = Pool::new(8192, SECTOR_BYTES);
        let blank = || {
            let mut medium = vec![0; Ssd::bytes_needed(&GEOMETRY, PAGE_BYTES) as usize];
            Ssd::format(&mut medium, GEOMETRY, PAGE_BYTES, [1; 16]).expect("formats");
            medium
        };
        let mut media: Vec<Vec<u8>> = (0..3).map(|_| blank()).collect();
        let nodes = (1..).zip(&mut media);
        let nodes = nodes
            .map(|(id, medium)| open(Instant::ZERO, id, &pool, medium))
            .collect();
        Self {
            now: Instant::ZERO,
            gateway: gateway(&pool, 1),
            pool,
            media,
            nodes,
            packets: VecDeque::new(),
            replies: Vec::new(),
            told: Vec::new(),
            deaf: None,
            tag: 0,
        }
    }

    /// The nodes stop cleanly and start again; a new gateway serves these records.
    fn restart(&mut self, session: u32, records: &Snapshot) {
        for at in 0..self.nodes.len() {
            self.nodes[at].drain(self.now);
        }
        self.run(Duration::from_millis(100));
        self.packets.clear();
        for (at, medium) in self.media.iter_mut().enumerate() {
            self.nodes[at] = open(self.now, at as u8 + 1, &self.pool, medium);
        }
        self.gateway = gateway(&self.pool, session);
        self.serve(session, records);
    }

    fn serve(&mut self, session: u32, records: &Snapshot) {
        self.gateway.serve(self.now, session, records);
        self.run(Duration::from_secs(5));
        for volume in &records.volumes {
            let state = self.gateway.volume_state(volume.volume());
            assert_eq!(state, Some(host::gateway::VolumeState::Ready), "{}", volume.name);
        }
    }

    fn carry(&mut self) -> bool {
        let mut any = false;
        while let Some(output) = self.gateway.poll() {
            any = true;
            match output {
                Output::Send { packet, .. } => self.packets.push_back(packet),
                Output::Reply(reply) => self.replies.push(reply),
                Output::Media(_) => unreachable!("a gateway has no medium"),
                Output::Event(_) => {}
            }
        }
        for (node, medium) in self.nodes.iter_mut().zip(&mut self.media) {
            while let Some(output) = node.poll() {
                any = true;
                match output {
                    Output::Send { packet, .. } => self.packets.push_back(packet),
                    Output::Media(op) => node.handle(self.now, Input::Media(execute(medium, op))),
                    Output::Reply(_) => unreachable!("a node has no clients of its own"),
                    Output::Event(_) => {}
                }
            }
        }
        while let Some(packet) = self.packets.pop_front() {
            any = true;
            let header = packet.header;
            if [header.source, header.target].map(Some).contains(&self.deaf) {
                continue;
            }
            let has = |node: &&mut Node| node.units().any(|unit| unit.identity().vssd == header.vssd);
            if header.target == GATEWAY {
                self.gateway.handle(self.now, Input::Packet(packet));
            } else if header.target == TOOL {
                self.told.push(packet);
            } else if let Some(at) = (1..=3).position(|id| addr(id) == header.target) {
                self.nodes[at].handle(self.now, Input::Packet(packet));
            } else if let Some(node) = self
                .nodes
                .iter_mut()
                .find(has)
                .filter(|_| header.target.is_none())
                && !matches!(header.op, Op::CreateVssd | Op::DelVssd | Op::GcOp)
            {
                node.handle(self.now, Input::Packet(packet));
            }
        }
        any
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            while self.carry() {}
            let nodes = self.nodes.iter().map(Machine::deadline);
            let due = nodes.fold(self.gateway.deadline(), earliest);
            let Some(due) = due.filter(|due| *due <= until) else {
                break;
            };
            self.now = self.now.max(due);
            self.gateway.tick(self.now);
            self.nodes.iter_mut().for_each(|node| node.tick(self.now));
        }
        self.now = until;
    }

    fn ask(&mut self, op: BlockOp, volume: u32, page: u64, byte: u8) -> BlockReply {
        self.tag += 1;
        let pages: Pages = match op {
            BlockOp::Write => {
                let page = self.pool.alloc().expect("room");
                page.with_mut(|bytes| bytes.fill(byte));
                Pages::from_buf([page])
            }
            _ => Pages::new(),
        };
        let range = match op {
            BlockOp::Flush => SectorRange::EMPTY,
            _ => SectorRange::new(page * PAGE_BYTES as u64, PAGE_BYTES as u64, u64::MAX).expect("sectors"),
        };
        let request = BlockRequest {
            client: 1,
            tag: self.tag,
            volume: VolumeId(volume),
            op,
            range,
            fua: false,
            bulk: false,
            pages,
        };
        self.gateway.handle(self.now, Input::Request(request));
        self.run(Duration::from_millis(500));
        let found = self.replies.iter().position(|reply| reply.tag == self.tag);
        self.replies.swap_remove(found.expect("it is answered"))
    }

    fn write_all(&mut self, volume: u32) {
        for page in 0..PAGES {
            let byte = (volume as u8) << 5 | page as u8;
            let written = self.ask(BlockOp::Write, volume, page, byte).result;
            assert_eq!(written.err(), None);
        }
        assert_eq!(self.ask(BlockOp::Flush, volume, 0, 0).result.err(), None);
    }

    fn check_all(&mut self, volume: u32) {
        for page in 0..PAGES {
            let read = self.ask(BlockOp::Read, volume, page, 0).result;
            let byte = read.expect("it is served")[0].with(|bytes| bytes[0]);
            assert_eq!(
                byte,
                (volume as u8) << 5 | page as u8,
                "page {page} of volume {volume}"
            );
        }
    }

    /// The answers of the nodes about their media.
    fn found(&mut self) -> Vec<Found> {
        let mut found = Vec::new();
        for id in 1..=3 {
            let header = Header {
                source: TOOL,
                target: addr(id),
                ..Header::new(Op::List, VssdId(0))
            };
            self.packets.push_back(Packet::bare(header));
            self.run(Duration::from_millis(1));
            let told = self.told.pop().expect("it is answered");
            let told = Inventory::parse(told.record()).expect("it is a record");
            assert_eq!(told.next, 0, "few vSSDs fit one record");
            found.push(Found {
                node: told.node,
                addr: addr(id),
                boot: told.boot,
                vssds: told.vssds,
            });
        }
        found
    }
}

/// Two volumes of two sets, whose copies are on two nodes each.
fn records() -> Snapshot {
    let set = |first: u32, nodes: [u8; 2]| SetRecord {
        pages: PAGES as u32 / 2,
        channels: 1,
        replicas: (first..)
            .zip(nodes)
            .map(|(vssd, node)| ReplicaRecord { vssd, node })
            .collect(),
        ..SetRecord::default()
    };
    let volume = |id: u32, nodes: [[u8; 2]; 2]| VolumeRecord {
        id,
        identity: Uuid::nil(),
        name: format!("volume-{id}"),
        size_bytes: PAGES * PAGE_BYTES as u64,
        durability: Default::default(),
        read_only: false,
        ready: false,
        lead: None,
        sets: vec![set(4 * id, nodes[0]), set(4 * id + 2, nodes[1])],
    };
    let mut records = Snapshot {
        rack: Uuid::from_u128(3),
        volumes: vec![volume(1, [[1, 2], [2, 3]]), volume(2, [[3, 1], [3, 2]])],
        ..Snapshot::default()
    };
    records.identify(Uuid::from_u128(4));
    records
}

#[test]
fn a_lost_registry_is_made_again_and_all_data_reads_back() {
    let mut rack = Rack::new();
    let mut lost = records();
    rack.serve(1, &lost);
    for volume in [1, 2] {
        rack.write_all(volume);
    }
    for volume in &mut lost.volumes {
        volume.ready = true;
    }
    let found = rack.found();
    let rebuilt = rebuild(&found, &Terms::default()).expect("nothing is missing");
    assert_eq!((rebuilt.rack, &rebuilt.volumes), (lost.rack, &lost.volumes));
    let session = rebuilt.lead.as_ref().expect("it says the last session").session + 1;
    rack.restart(session, &rebuilt);
    for volume in [1, 2] {
        rack.check_all(volume);
        rack.write_all(volume);
        rack.check_all(volume);
    }
}

#[test]
fn with_a_node_that_is_lost_too_the_other_copies_serve() {
    let mut rack = Rack::new();
    rack.serve(1, &records());
    for volume in [1, 2] {
        rack.write_all(volume);
    }
    let found: Vec<Found> = rack
        .found()
        .into_iter()
        .filter(|found| found.node != NodeId(3))
        .collect();
    assert!(rebuild(&found, &Terms::default()).is_err());
    let terms = Terms {
        without_missing: true,
        ..Terms::default()
    };
    let rebuilt = rebuild(&found, &terms).expect("each set has a copy");
    rack.nodes.pop();
    rack.media.pop();
    rack.restart(2, &rebuilt);
    for volume in [1, 2] {
        rack.check_all(volume);
        rack.write_all(volume);
    }
}

/// Bug: a set whose only member was lost for ever stayed lost, though the copy that it had expelled was back. Cause: nothing could make that
/// one a member. Fix: an operator can.
#[test]
fn a_copy_that_was_expelled_takes_the_place_of_a_member_that_is_lost() {
    let mut rack = Rack::new();
    let mut records = records();
    records.volumes.truncate(1);
    rack.serve(1, &records);
    rack.write_all(1);
    records.volumes[0].ready = true;
    // Node 1 is away: the set goes on with vSSD 5 of node 2.
    records.volumes[0].sets[0].expel(&[4]);
    rack.gateway = gateway(&rack.pool, 2);
    rack.serve(2, &records);
    assert_eq!(rack.ask(BlockOp::Write, 1, 0, 0xff).result.err(), None);
    assert_eq!(rack.ask(BlockOp::Flush, 1, 0, 0).result.err(), None);
    // Node 2 is lost, and node 1 is back and waits for it.
    let set = &mut records.volumes[0].sets[0];
    set.expelling = None;
    let left = set.expelled.pop().expect("it was expelled");
    set.joining = Some(rack::registry::JoiningRecord {
        vssd: left.vssd,
        node: left.node,
        replaces: 0,
        moves: false,
    });
    set.generation += 1;
    rack.gateway = gateway(&rack.pool, 3);
    rack.deaf = Some(addr(2));
    rack.gateway.serve(rack.now, 3, &records);
    rack.run(Duration::from_secs(5));
    let state = rack.gateway.volume_state(VolumeId(1));
    assert_ne!(state, Some(host::gateway::VolumeState::Ready));
    for vssd in [4, 7] {
        // The other set has its member on node 2 first.
        let forced = records.force_copy(VssdId(vssd), false);
        assert_eq!(forced.is_ok(), vssd == 4);
    }
    records.volumes[0].sets.truncate(1);
    records.volumes[0].size_bytes /= 2;
    rack.gateway = gateway(&rack.pool, 4);
    rack.serve(4, &records);
    for page in 0..PAGES / 2 {
        let read = rack.ask(BlockOp::Read, 1, page, 0).result;
        let byte = read.expect("it is served")[0].with(|bytes| bytes[0]);
        assert_eq!(byte, 1 << 5 | page as u8, "page {page} is as it was before");
        assert_eq!(rack.ask(BlockOp::Write, 1, page, 7).result.err(), None);
    }
}
