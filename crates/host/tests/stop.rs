//! A clean stop of a node ends with a checkpoint, and a latched vSSD does not hold it up.

use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{Addr, Instant, Machine, MediaDone, MediaError, MediaKind, Medium, NodeId, Page, Pool, VssdId};
use flash::{Geometry, Ssd};
use host::{Input, Node, NodeConfig, Output};
use rack::control::{Intent, Open};
use rack::replica::Membership;
use wire::rack::{Code, Header, Op, Packet};

const GEOMETRY: Geometry = Geometry {
    channels: 2,
    chips_per_channel: 1,
    planes_per_chip: 1,
    blocks_per_plane: 16,
    pages_per_block: 64,
};
const VSSD: VssdId = VssdId(1);

fn addr(last: u8) -> Addr {
    Addr::new([10, 0, 0, last], 1)
}

/// A node on a medium in memory, driven by hand.
struct World {
    pool: Pool,
    medium: Vec<u8>,
    node: Node,
    replies: Vec<Header>,
    writes_fail: bool,
}

impl World {
    fn blank() -> Vec<u8> {
        let mut medium = vec![0; Ssd::bytes_needed(&GEOMETRY, PAGE_BYTES) as usize];
        Ssd::format(&mut medium, GEOMETRY, PAGE_BYTES, [1; 16]).expect("formats");
        medium
    }

    fn start(mut medium: Vec<u8>) -> Self {
        let pool = Pool::new(4096, SECTOR_BYTES);
        let config = NodeConfig::new(NodeId(1), addr(1), addr(2));
        let node = Node::open(Instant::ZERO, config, pool.clone(), &mut medium).expect("opens");
        Self {
            pool,
            medium,
            node,
            replies: Vec::new(),
            writes_fail: false,
        }
    }

    /// With one vSSD, whose epoch the client learns by a first write.
    fn fresh() -> Self {
        let mut world = Self::start(Self::blank());
        let open = Open {
            intent: Intent::Create,
            pages: 500,
            channels: 1,
            rows: 0,
            membership: Membership::default(),
        };
        world.send(Packet::with_record(world.header(Op::Open, 0), open.emit()));
        assert!(world.node.units().all(host::node::Unit::is_serving));
        world.write(1, 0);
        world
    }

    fn header(&self, op: Op, request: u64) -> Header {
        Header {
            request,
            source: addr(9),
            session: 1,
            epoch: self.replies.last().map_or(0, |reply| reply.epoch),
            ..Header::new(op, VSSD)
        }
    }

    fn write(&mut self, request: u64, lpn: u64) {
        let page: Page = self.pool.alloc().expect("the pool is large");
        page.with_mut(|bytes| bytes.fill(request as u8));
        let crc = page.crc();
        let header = Header {
            lba: lpn * 8,
            ..self.header(Op::Write, request)
        };
        self.send(Packet::with_page(header, Some(page), crc));
    }

    fn send(&mut self, packet: Packet) {
        self.node.handle(Instant::ZERO, Input::Packet(packet));
        self.settle();
    }

    fn drain(&mut self) {
        self.node.drain(Instant::ZERO);
        self.settle();
    }

    /// Carries out what the node asks for until it asks for nothing more.
    fn settle(&mut self) {
        while let Some(output) = self.node.poll() {
            match output {
                Output::Media(op) => {
                    let (page, result) = self.carry_out(op.kind);
                    let id = op.id;
                    let done = MediaDone { id, page, result };
                    self.node.handle(Instant::ZERO, Input::Media(done));
                }
                Output::Send { packet, .. } => self.replies.push(packet.header),
                Output::Reply(_) => unreachable!("a node has no clients of its own"),
            }
        }
    }

    fn carry_out(&mut self, kind: MediaKind) -> (Option<Page>, Result<(), MediaError>) {
        match kind {
            MediaKind::Read { offset, page } => {
                let read = page.with_mut(|bytes| self.medium.read_at(offset, bytes));
                (Some(page), read)
            }
            MediaKind::Write { page, .. } if self.writes_fail => (Some(page), Err(MediaError::Io)),
            MediaKind::Write { offset, page } => {
                let written = page.with(|bytes| self.medium.write_at(offset, bytes));
                (Some(page), written)
            }
            MediaKind::Flush => (None, Ok(())),
        }
    }

    fn written(&self) -> usize {
        let ok = |reply: &&Header| reply.op == Op::Write && reply.code == Code::SoftOrOk;
        self.replies.iter().filter(ok).count()
    }
}

#[test]
fn a_clean_stop_ends_with_a_checkpoint_that_leaves_nothing_to_replay() {
    let mut world = World::fresh();
    for request in 2..200 {
        world.write(request, request * 7 % 300);
    }
    assert!(world.written() >= 198, "{}", world.written());
    assert!(!world.node.is_quiet(), "no checkpoint before it is asked for");
    world.drain();
    assert!(world.node.is_quiet());
    let stats = world.node.units().next().expect("one").flash().stats();
    assert_eq!(stats.checkpoints, 1);
    assert!(stats.user_programs > 100);
    let again = World::start(world.medium);
    let (_, report) = &again.node.recovery_reports()[0];
    assert_eq!(
        (report.checkpoint, report.entries_replayed, report.torn),
        (1, 0, 0)
    );
}

#[test]
fn a_write_after_the_stop_is_not_taken_so_that_nothing_follows_the_checkpoint() {
    let mut world = World::fresh();
    world.drain();
    let (written, medium) = (world.written(), world.medium.clone());
    world.write(500, 3);
    assert!(world.node.is_quiet());
    assert_eq!(world.written(), written);
    assert!(world.medium == medium, "the medium changed");
}

#[test]
fn a_latched_vssd_counts_as_quiet() {
    let mut world = World::fresh();
    world.write(2, 1);
    world.writes_fail = true;
    world.drain();
    assert_eq!(world.node.status().latched, 1);
    assert!(world.node.is_quiet());
}

#[test]
fn a_node_without_vssds_is_quiet_at_once() {
    let mut world = World::start(World::blank());
    world.drain();
    assert!(world.node.is_quiet());
}
