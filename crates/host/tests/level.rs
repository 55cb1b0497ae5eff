//! Nodes, ToRs and gateways in a rack whose level they know, or do not.

use crate::support::{World, addr, gateway};
use base::event::Kind;
use base::limits::SECTOR_BYTES;
use base::{Addr, Duration, Instant, Machine, NodeId, Pool, VssdId};
use host::operator::{Call, carry_out};
use host::{Gateway, Input, Output, Tor, TorConfig};
use rack::control::NodeStatus;
use rack::level::{Levels, Software};
use wire::rack::{Code, Header, Op, Packet};

const OLD: Levels = Levels::UNTOLD;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// The question how a part is, by a gateway that tells the rack's level.
fn question(level: u64) -> Header {
    Header {
        lba: level,
        source: addr(9),
        session: 1,
        ..Header::new(Op::Status, VssdId(0))
    }
}

fn ask_how(world: &mut World, level: u64) -> NodeStatus {
    world.records.clear();
    world.send(Packet::bare(question(level)));
    serde_json::from_slice(&world.records[0]).expect("a node's status")
}

#[test]
fn a_node_that_does_not_know_the_racks_level_answers_nothing_but_how_it_is() {
    let medium = World::fresh().medium;
    let mut world = World::start_at(medium, Pool::new(4096, SECTOR_BYTES), OLD);
    assert_eq!(ask_how(&mut world, 1).software(), Software::own(OLD));
    world.write(2, 0);
    assert_eq!(world.replies.pop().map(|reply| reply.op), Some(Op::Write));
    assert_eq!(ask_how(&mut world, 2).software(), Software::own(OLD));
    ask_how(&mut world, 2);
    let refused = |kind: &&Kind| {
        matches!(
            kind,
            Kind::NodeRefused {
                knows_to: 1,
                rack_level: 2,
                ..
            }
        )
    };
    assert_eq!(world.told.iter().filter(refused).count(), 1, "it is told once");
    world.replies.clear();
    world.write(3, 0);
    world.send(Packet::bare(Header {
        source: addr(3),
        ..Header::new(Op::Hello, VssdId(1))
    }));
    world.node.tick(at(60_000));
    world.send_all([]);
    assert_eq!(world.replies, [], "it keeps silent");
    ask_how(&mut world, 0);
    assert_eq!(world.replies.len(), 1, "who knows no level changes nothing");
    ask_how(&mut world, 1);
    world.replies.clear();
    world.write(4, 0);
    assert_eq!(world.replies.pop().map(|reply| reply.op), Some(Op::Write));
}

fn tor(levels: Levels) -> Tor {
    Tor::new(TorConfig {
        addr: addr(8),
        gc_lease: Duration::from_secs(1),
        egress: None,
        levels,
    })
}

/// The answer of a ToR, and whether it tells that it is refused.
fn greet(tor: &mut Tor, ms: u64, level: u64) -> (Code, Software, bool) {
    tor.handle(at(ms), Input::Packet(Packet::bare(question(level))));
    let (mut answer, mut told) = (None, false);
    while let Some(output) = tor.poll() {
        match output {
            Output::Send { packet, .. } => answer = Some(packet),
            Output::Event(Kind::TorRefused { .. }) => told = true,
            _ => {}
        }
    }
    let packet = answer.expect("a ToR answers");
    assert_eq!(packet.header.source, addr(8));
    let software = serde_json::from_slice(packet.record()).expect("what it tells of its program");
    (packet.header.code, software, told)
}

#[test]
fn a_tor_tells_its_program_and_is_busy_at_a_level_that_it_does_not_know() {
    let (mut new, mut old) = (tor(Levels::BUILD), tor(OLD));
    for (ms, level, code, tells) in [
        (0, 1, Code::Busy, false),
        (2_000, 1, Code::SoftOrOk, false),
        (2_100, 2, Code::Busy, true),
        (2_200, 2, Code::Busy, false),
        // A node does not tell the level.
        (2_300, 0, Code::Busy, false),
        (2_400, 1, Code::SoftOrOk, false),
    ] {
        assert_eq!(
            greet(&mut old, ms, level),
            (code, Software::own(OLD), tells),
            "{ms} ms"
        );
        let is_young = ms < 2_000;
        let code = if is_young { Code::Busy } else { Code::SoftOrOk };
        assert_eq!(
            greet(&mut new, ms, level),
            (code, Software::own(Levels::BUILD), false)
        );
    }
}

/// The packets and the events of a gateway.
fn poll(gateway: &mut Gateway) -> (Vec<(Addr, Header)>, Vec<Kind>) {
    let (mut sent, mut told) = (Vec::new(), Vec::new());
    while let Some(output) = gateway.poll() {
        match output {
            Output::Send { packet, .. } => sent.push((packet.header.target, packet.header)),
            Output::Event(kind) => told.push(kind),
            _ => {}
        }
    }
    (sent, told)
}

/// Asks the nodes how they are, of which each answers with this program; what the gateway tells.
fn answer_all(gateway: &mut Gateway, now: Instant, software: Option<&Software>) -> Vec<Kind> {
    gateway.ask_status(now);
    let (sent, _) = poll(gateway);
    let mut told = Vec::new();
    for (node, header) in sent
        .into_iter()
        .filter(|(node, header)| header.op == Op::Status && !node.is_none())
    {
        let status = NodeStatus {
            node: node.ip.to_be_bytes()[3],
            software: software.cloned(),
            ..NodeStatus::default()
        };
        let record = serde_json::to_vec(&status).expect("plain numbers serialize");
        let packet = Packet::with_record(header.reply(Code::SoftOrOk), record);
        gateway.handle(now, Input::Packet(packet));
        told.extend(poll(gateway).1);
    }
    told
}

#[test]
fn a_gateway_takes_a_node_that_does_not_know_the_level_for_one_that_does_not_answer() {
    let pool = Pool::new(64, SECTOR_BYTES);
    let (mut gateway, _) = gateway(&pool, &[1]);
    carry_out(&mut gateway, at(0), Call::Level(2));
    let is_refused = |gateway: &Gateway| {
        let node = &gateway.nodes()[0];
        (node.last.is_some(), node.refused.is_some())
    };
    // A node that is older than levels are, and one that is held to level 1.
    for (ms, software) in [(10, None), (20, Some(Software::own(OLD)))] {
        let told = answer_all(&mut gateway, at(ms), software.as_ref());
        assert_eq!(is_refused(&gateway), (false, true));
        let event = Kind::NodeRefused {
            node: NodeId(1),
            knows_to: 1,
            rack_level: 2,
        };
        assert_eq!(told.contains(&event), ms == 10, "it is told once: {told:?}");
        assert_eq!(
            gateway.nodes()[0].software().map(|(_, known)| known),
            software.or(Some(Software::untold()))
        );
    }
    gateway.tick(at(200));
    let (sent, _) = poll(&mut gateway);
    let asked: Vec<Op> = sent.iter().map(|(_, header)| header.op).collect();
    assert!(
        !asked.contains(&Op::Open),
        "it is asked for nothing else: {asked:?}"
    );
    answer_all(&mut gateway, at(300), Some(&Software::own(Levels::BUILD)));
    assert_eq!(is_refused(&gateway), (true, false));
    gateway.tick(at(400));
    let (sent, _) = poll(&mut gateway);
    assert!(
        sent.iter().any(|(_, header)| header.op == Op::Open),
        "what waited goes on"
    );
}

#[test]
fn a_gateway_asks_its_tors_once_a_second_and_an_old_one_tells_nothing() {
    let pool = Pool::new(64, SECTOR_BYTES);
    let (mut gateway, _) = gateway(&pool, &[1]);
    carry_out(&mut gateway, at(0), Call::Level(2));
    let mut questions = |ms: u64| {
        gateway.ask_status(at(ms));
        let (sent, _) = poll(&mut gateway);
        let of_tor = sent
            .into_iter()
            .filter(|(to, header)| header.op == Op::Status && to.is_none());
        of_tor.map(|(_, header)| header).collect::<Vec<_>>()
    };
    let asked = questions(1_000);
    assert_eq!(asked.iter().map(|header| header.lba).collect::<Vec<_>>(), [2]);
    assert_eq!(questions(1_900), []);
    assert_eq!(questions(2_000).len(), 1);
    // As a ToR does that is older than levels are.
    let answer = Header {
        source: addr(8),
        ..asked[0].reply(Code::SoftOrOk)
    };
    for times in 0..2 {
        gateway.handle(at(2_001), Input::Packet(Packet::bare(answer)));
        let (_, told) = poll(&mut gateway);
        let refused = Kind::TorRefused {
            tor: addr(8),
            knows_to: 1,
            rack_level: 2,
        };
        assert_eq!(told.contains(&refused), times == 0, "it is told once: {told:?}");
    }
    let told = gateway.tors()[0].last.clone();
    assert_eq!(told, Some((at(2_001), Software::untold())));
}
