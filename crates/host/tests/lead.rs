//! A gateway takes over: what the last one sends is refused, also after the node has started again, and the new one changes
//! nothing before the node has kept that.

mod support;

use base::{
    Addr, BlockError, BlockOp, BlockRequest, Duration, Instant, Machine, NodeId, Pages, Pool, SectorRange,
    VolumeId,
};
use host::{Gateway, GatewayConfig, Input, Output};
use rack::control::Intent;
use rack::registry::{ReplicaRecord, SetRecord, Snapshot, VolumeRecord};
use support::{VSSD, World, addr};
use wire::rack::{Code, Header, Op, Packet};

fn last_code(world: &World) -> Code {
    world.replies.last().expect("it was answered").code
}

#[test]
fn a_gateway_that_was_replaced_is_refused_also_after_a_restart() {
    let first = (addr(9), 5);
    let second = (addr(10), 6);
    let mut world = World::fresh();
    world.gateway = first;
    world.open(Intent::Serve);
    world.write(2, 0);
    assert_eq!(last_code(&world), Code::SoftOrOk);

    world.gateway = second;
    let before = world.medium.clone();
    world.open(Intent::Serve);
    assert_eq!(last_code(&world), Code::Busy, "asked again, it is settled");
    assert!(
        world.medium != before,
        "it is in the superblock before it is answered"
    );
    world.open(Intent::Serve);
    assert_eq!(last_code(&world), Code::SoftOrOk);

    let mut world = World::start(world.medium);
    world.gateway = first;
    // An answer tells the epoch.
    world.write(3, 0);
    assert_eq!(last_code(&world), Code::Stale);
    world.write(4, 0);
    assert_eq!(last_code(&world), Code::Superseded, "its session is older");
    world.open(Intent::Serve);
    assert_eq!(last_code(&world), Code::Superseded);
    world.gateway = second;
    world.write(1, 0);
    assert_eq!(last_code(&world), Code::SoftOrOk);
}

#[test]
fn a_restart_at_the_same_address_writes_nothing() {
    let mut world = World::fresh();
    let before = world.medium.clone();
    world.gateway.1 = 9;
    world.open(Intent::Serve);
    assert_eq!(last_code(&world), Code::SoftOrOk);
    assert!(world.medium == before);
}

const NODE: Addr = Addr::new([10, 0, 0, 1], 1);
const VOLUME: VolumeId = VolumeId(1);

fn gateway(pool: &Pool) -> Gateway {
    let config = GatewayConfig {
        addr: addr(9),
        tors: vec![addr(2)],
        session: 1,
        nodes: vec![(NodeId(1), NODE)],
        request_timeout: Duration::from_secs(30),
        shaping: None,
        reads: host::gateway::Reads::default(),
        slow: Default::default(),
        shared: true,
    };
    let mut gateway = Gateway::new(config, pool.clone());
    gateway.stand_by(Instant::ZERO);
    gateway
}

fn snapshot() -> Snapshot {
    let set = SetRecord {
        pages: 8,
        channels: 1,
        replicas: vec![ReplicaRecord {
            vssd: VSSD.0,
            node: 1,
        }],
        ..SetRecord::default()
    };
    let volume = VolumeRecord {
        id: VOLUME.0,
        identity: Default::default(),
        name: "v".into(),
        size_bytes: 8 * 4096,
        durability: Default::default(),
        read_only: false,
        ready: true,
        sets: vec![set],
    };
    Snapshot {
        volumes: vec![volume],
        ..Snapshot::default()
    }
}

/// Zeroes the first block: a part of a page.
fn zero(gateway: &mut Gateway, tag: u64) {
    let request = BlockRequest {
        client: 0,
        tag,
        volume: VOLUME,
        op: BlockOp::WriteZeroes,
        range: SectorRange::new(0, 512, u64::MAX).expect("whole sectors"),
        fua: false,
        bulk: false,
        pages: Pages::new(),
    };
    gateway.handle(Instant::ZERO, Input::Request(request));
}

/// Packets that it sends, and errors that it answers.
fn drain(gateway: &mut Gateway) -> (Vec<Header>, Vec<(u64, Option<BlockError>)>) {
    let (mut packets, mut replies) = (Vec::new(), Vec::new());
    while let Some(output) = gateway.poll() {
        match output {
            Output::Send { packet, .. } => packets.push(packet.header),
            Output::Reply(reply) => replies.push((reply.tag, reply.result.err())),
            Output::Media(_) => unreachable!("a gateway has no medium"),
            Output::Event(_) => {}
        }
    }
    (packets, replies)
}

#[test]
fn a_new_lead_touches_no_page_before_the_node_has_kept_that_it_leads() {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool);
    zero(&mut gateway, 1);
    assert_eq!(drain(&mut gateway).1, [(1, Some(BlockError::Elsewhere))]);

    gateway.serve(Instant::ZERO, 7, &snapshot());
    let open = drain(&mut gateway).0;
    assert_eq!((open.len(), open[0].op, open[0].session), (1, Op::Open, 7));
    zero(&mut gateway, 2);
    assert_eq!(drain(&mut gateway).0, [], "not even read, to change a part of it");
    let answer = |code| Input::Packet(Packet::bare(open[0].reply(code)));
    gateway.handle(Instant::ZERO, answer(Code::Busy));
    let sent = drain(&mut gateway).0;
    assert_eq!((sent.len(), sent[0].op, sent[0].session), (1, Op::Read, 7));

    gateway.handle(
        Instant::ZERO,
        Input::Packet(Packet::bare(sent[0].reply(Code::Superseded))),
    );
    assert!(!gateway.leads());
    assert_eq!(drain(&mut gateway).1, [(2, Some(BlockError::Elsewhere))]);
}

#[test]
fn a_medium_that_keeps_nothing_lets_nobody_take_over() {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool);
    gateway.serve(Instant::ZERO, 7, &snapshot());
    let open = drain(&mut gateway).0;
    zero(&mut gateway, 1);
    let refusal = Packet::bare(open[0].reply(Code::Latched));
    gateway.handle(Instant::ZERO, Input::Packet(refusal));
    let (sent, replies) = drain(&mut gateway);
    assert_eq!((sent, replies), (vec![], vec![]));
}
