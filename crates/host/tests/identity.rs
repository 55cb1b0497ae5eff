//! A node and images that are not what it is asked for: of another volume, of another set, of another node.

use crate::support::{World, addr};
use base::{Instant, NodeId, Pool, Version, VssdId, limits::SECTOR_BYTES};
use host::node::StartError;
use host::{Node, NodeConfig};
use rack::control::{Config, Intent, Open, Terms};
use rack::inventory::Inventory;
use rack::membership::Membership;
use rack::part::{Part, mark_of, mark_since, marked};
use rack::registry::Durability;
use uuid::Uuid;
use wire::rack::{Code, Header, Op, Packet};

const RACK: Uuid = Uuid::from_u128(7);
const VSSD: VssdId = VssdId(3);

fn part(volume: u128, set: u128) -> Part {
    Part {
        volume: Uuid::from_u128(volume),
        set: Uuid::from_u128(set),
        number: 1,
        name: "db".to_owned(),
        size_bytes: 8192,
        durability: Durability::Memory,
        read_only: false,
        index: 0,
        place: Some(0),
        copies: 1,
    }
}

fn ask(world: &mut World, part: Option<Part>) -> Code {
    let open = Open {
        intent: Intent::Create,
        rack: RACK,
        pages: 500,
        channels: 1,
        rows: 0,
        membership: Membership::default(),
        terms: Terms::default(),
        part,
    };
    world.ask(Op::Open, VSSD, open.emit())
}

fn held(world: &World) -> Option<Part> {
    let units = world.node.units();
    units.last().and_then(|unit| unit.identity().config.part.clone())
}

#[test]
fn a_vssd_of_another_volume_or_set_is_not_opened() {
    let mut world = World::start(World::blank());
    assert_eq!(ask(&mut world, Some(part(1, 2))), Code::Busy, "it is made");
    for _ in 0..2 {
        assert_eq!(
            ask(&mut world, Some(part(9, 2))),
            Code::OtherSet,
            "a volume of the same name"
        );
        assert_eq!(ask(&mut world, Some(part(1, 9))), Code::OtherSet);
        assert_eq!(ask(&mut world, Some(part(1, 2))), Code::SoftOrOk);
        world.drain();
        world = World::start(world.medium);
    }
    // A gateway of an earlier version tells none.
    assert_eq!(ask(&mut world, None), Code::SoftOrOk);
    assert_eq!(held(&world), Some(part(1, 2)));
}

#[test]
fn a_vssd_of_an_earlier_version_is_part_of_the_first_set_that_opens_it_and_changed_facts_are_noted() {
    let mut world = World::start(World::blank());
    ask(&mut world, None);
    assert_eq!(ask(&mut world, Some(part(1, 2))), Code::Busy, "it is noted");
    assert_eq!(ask(&mut world, Some(part(1, 2))), Code::SoftOrOk);
    let grown = Part {
        size_bytes: 1 << 30,
        ..part(1, 2)
    };
    assert_eq!(ask(&mut world, Some(grown.clone())), Code::Busy, "it is noted");
    assert_eq!(ask(&mut world, Some(grown.clone())), Code::SoftOrOk);
    let mut world = World::start(world.medium);
    assert_eq!(held(&world), Some(grown));
    assert_eq!(ask(&mut world, Some(part(3, 2))), Code::OtherSet);
}

/// bug: a node that was started with another node's medium was taken for one that has lost everything. fix: it does not start.
#[test]
fn a_node_does_not_start_with_another_nodes_medium() {
    let mut world = World::start(World::blank());
    ask(&mut world, Some(part(1, 2)));
    let before = world.medium.clone();
    let mut config = NodeConfig::new(NodeId(2), addr(1), vec![addr(2)]);
    let pool = Pool::new(4096, SECTOR_BYTES);
    let refused = Node::open(Instant::ZERO, config.clone(), pool.clone(), &mut world.medium);
    assert_eq!(refused.err(), Some(StartError::OtherNode(NodeId(1))));
    assert!(world.medium == before, "nothing is written");
    config.id = NodeId(1);
    assert!(Node::open(Instant::ZERO, config, pool, &mut world.medium).is_ok());
}

#[test]
fn a_node_tells_what_is_on_its_medium() {
    let mut world = World::start(World::blank());
    ask(&mut world, Some(part(1, 2)));
    world.ask(Op::List, VssdId(0), Vec::new());
    let record = world.records.last().expect("it is answered");
    let told = Inventory::parse(record).expect("it is a record");
    assert_eq!((told.node, told.next, told.vssds.len()), (NodeId(1), 0, 1));
    let listed = &told.vssds[0];
    assert_eq!(
        (listed.vssd, listed.pages, listed.channels, listed.rows),
        (VSSD, 500, 1, 0)
    );
    let config = Config::parse(&listed.config).expect("a node's facts");
    assert_eq!(
        (config.rack, config.node, config.part),
        (RACK, Some(NodeId(1)), Some(part(1, 2)))
    );
    world.ask(Op::List, VssdId(4), Vec::new());
    let record = world.records.last().expect("it is answered");
    assert!(Inventory::parse(record).expect("it is a record").vssds.is_empty());
}

/// bug: a vSSD on an image of before its set's last change served the data of then, and others took a copy of it. fix: openings and requests
/// say which generation all replicas know.
#[test]
fn a_vssd_that_has_missed_a_membership_is_refused() {
    let mut world = World::start(World::blank());
    assert_eq!(ask(&mut world, Some(part(1, 2))), Code::Busy, "it is made");
    assert_eq!(ask(&mut world, Some(part(1, 2))), Code::SoftOrOk);
    let (gateway, session) = world.gateway;
    let mut answer = |op: Op, version: Version, record: Vec<u8>| {
        let request = 2000 + world.replies.len() as u64;
        let header = Header {
            request,
            version,
            source: gateway,
            session,
            ..Header::new(op, VSSD)
        };
        world.send(match record.is_empty() {
            true => Packet::bare(header),
            false => Packet::with_record(header, record),
        });
        let answer = world.replies.iter().find(|reply| reply.request == request);
        answer.map(|reply| reply.code)
    };
    let open = |generation: u32, yields: bool| {
        let terms = Terms {
            yields,
            ..Terms::default()
        };
        let membership = Membership {
            generation,
            peers: Vec::new(),
        };
        let open = Open {
            intent: Intent::Serve,
            rack: RACK,
            pages: 500,
            channels: 1,
            rows: 0,
            membership,
            terms,
            part: Some(part(1, 2)),
        };
        open.emit()
    };
    let since = |settled: u32| marked(mark_since(Uuid::from_u128(2), settled), 0);
    for op in [Op::Read, Op::Flush] {
        assert_eq!(answer(op, since(1), Vec::new()), Some(Code::Past), "{op:?}");
        assert_ne!(answer(op, since(0), Vec::new()), Some(Code::Past), "{op:?}");
    }
    assert_eq!(answer(Op::Open, Version(2), open(2, false)), Some(Code::Past));
    let learnt = answer(Op::Open, Version(0), open(2, true));
    assert_eq!(learnt, Some(Code::Busy), "one that joins may be of before");
    assert_eq!(answer(Op::Open, Version(2), open(2, false)), Some(Code::SoftOrOk));
    assert_ne!(answer(Op::Read, since(2), Vec::new()), Some(Code::Past));
    assert_eq!(answer(Op::Read, since(3), Vec::new()), Some(Code::Past));
}

/// bug: a node that had started with a medium from elsewhere, and a switch that had heard of that node first, gave clients the data of
/// another volume, and took their writes into it: only the opening named the set. fix: each request does.
#[test]
fn a_request_for_another_set_is_refused() {
    let mut world = World::start(World::blank());
    assert_eq!(ask(&mut world, Some(part(1, 2))), Code::Busy, "it is made");
    assert_eq!(ask(&mut world, Some(part(1, 2))), Code::SoftOrOk);
    let mut answer = |op: Op, version: Version| {
        let request = 2000 + world.replies.len() as u64;
        let header = Header {
            request,
            version,
            source: world.gateway.0,
            session: world.gateway.1,
            epoch: world.replies.last().map_or(0, |reply| reply.epoch),
            ..Header::new(op, VSSD)
        };
        world.send(Packet::bare(header));
        let mut replies = world.replies.iter();
        let answer = replies.find(|reply| reply.request == request);
        answer.expect("it is answered").code
    };
    for op in [Op::Read, Op::Zero, Op::Flush, Op::Ask] {
        let [ours, theirs] = [2, 9 << 28].map(|set| marked(mark_of(Uuid::from_u128(set)), 0));
        assert_eq!(answer(op, theirs), Code::OtherSet, "{op:?}");
        assert_ne!(answer(op, ours), Code::OtherSet, "{op:?}");
        assert_ne!(
            answer(op, Version(0)),
            Code::OtherSet,
            "{op:?} of an earlier version"
        );
    }
    let [ours, theirs] = [2, 9 << 28].map(|set| marked(mark_of(Uuid::from_u128(set)), 0));
    assert_eq!(answer(Op::Delete, theirs), Code::OtherSet);
    assert_eq!(answer(Op::Delete, ours), Code::SoftOrOk);
}
