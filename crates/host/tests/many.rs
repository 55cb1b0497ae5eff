//! A node with many vSSDs.

use crate::support::{World, addr, gateway};
use base::{Addr, Instant, Machine, NodeId, Pool, VssdId};
use flash::{Geometry, Ssd};
use host::{Input, Node, NodeConfig, Output};
use rack::control::{Intent, Open, Terms};
use rack::membership::Membership;
use uuid::Uuid;
use wire::rack::{Code, Header, Op, Packet};

const PAGE_BYTES: usize = 128;
const VSSDS: u32 = 1024;
const GEOMETRY: Geometry = Geometry {
    channels: 64,
    chips_per_channel: 16,
    planes_per_chip: 1,
    blocks_per_plane: 10,
    pages_per_block: 16,
};

fn pool() -> Pool {
    Pool::new(8192, PAGE_BYTES / 8)
}

fn open(vssd: u32, request: u64) -> Packet {
    let open = Open {
        intent: Intent::Create,
        rack: Uuid::from_u128(7),
        pages: 8,
        channels: 1,
        rows: 1,
        membership: Membership::default(),
        terms: Terms::default(),
        part: None,
    };
    let header = Header {
        source: addr(9),
        session: 1,
        request,
        ..Header::new(Op::Open, VssdId(vssd))
    };
    Packet::with_record(header, open.emit())
}

fn blank() -> Vec<u8> {
    let mut medium = vec![0; Ssd::bytes_needed(&GEOMETRY, PAGE_BYTES) as usize];
    Ssd::format(&mut medium, GEOMETRY, PAGE_BYTES, [1; 16]).expect("formats");
    medium
}

fn full() -> World {
    let mut world = World::start_with(blank(), pool());
    world.send_all((1..=VSSDS).map(|vssd| open(vssd, u64::from(vssd))));
    assert_eq!(world.node.units().count(), VSSDS as usize);
    world
}

/// bug: the table had room for 64, and was written anew for each vSSD. fix: the table is as long as the units suffice for, and what
/// waits is written together.
#[test]
fn a_node_has_as_many_vssds_as_its_units_suffice_for() {
    let world = full();
    let whole_table = 2 * (VSSDS as usize * 288 / PAGE_BYTES + 1);
    assert!(world.writes < 2 * whole_table, "{} pages", world.writes);
    let mut world = World::start_with(world.medium, pool());
    assert_eq!(world.node.units().count(), VSSDS as usize);
    world.send_all((1..=VSSDS).map(|vssd| open(vssd, u64::from(vssd))));
    let answers = world.replies.iter().filter(|reply| reply.op == Op::Open);
    assert!(answers.clone().all(|reply| reply.code == Code::SoftOrOk));
    assert_eq!(answers.count(), VSSDS as usize);
    assert_eq!(
        world.ask(Op::Open, VssdId(VSSDS + 1), open(1, 0).record().to_vec()),
        Code::NoSpace
    );
}

#[test]
fn a_node_offers_rows_of_groups_of_as_many_channels_as_it_is_told() {
    for (group_channels, told) in [(0, 64), (1, 1), (8, 8), (99, 64)] {
        let config = NodeConfig {
            group_channels,
            ..NodeConfig::new(NodeId(1), addr(1), vec![addr(2)])
        };
        let node = Node::open(Instant::ZERO, config, pool(), &mut blank()).expect("opens");
        let status = node.status(Instant::ZERO);
        assert_eq!((status.group_channels, status.free_rows), (told, 16));
        let row = GEOMETRY.blocks_per_plane * GEOMETRY.pages_per_block * told;
        assert!(
            (1..row).contains(&status.pages_per_row),
            "{}",
            status.pages_per_row
        );
    }
}

/// bug: a node with so many vSSDs that their numbers do not fit a packet told none, and was taken for one that is away. fix: it tells them
/// in parts.
#[test]
fn a_gateway_learns_all_vssds_of_a_node_in_as_many_packets_as_it_takes() {
    let mut world = full();
    let (mut gateway, _) = gateway(&pool(), &[1]);
    gateway.ask_status(Instant::ZERO);
    let mut answers = 0;
    while let Some(output) = gateway.poll() {
        let Output::Send { packet, .. } = output else {
            continue;
        };
        if packet.header.op != Op::Status || packet.header.target == Addr::NONE {
            continue;
        }
        world.node.handle(Instant::ZERO, Input::Packet(packet));
        while let Some(output) = world.node.poll() {
            if let Output::Send { packet, .. } = output {
                answers += 1;
                gateway.handle(Instant::ZERO, Input::Packet(packet));
            }
        }
    }
    let nodes = gateway.nodes();
    let (_, status) = nodes[0].last.as_ref().expect("it answered");
    let roll = status.roll.as_ref().expect("it told them all");
    assert!(roll.here.iter().copied().eq(1..=VSSDS));
    assert!(answers > 1 && status.vssds == VSSDS, "{answers} answers");
}
