//! The facts that nodes of each version keep of a vSSD, and the requests of gateways of each version, byte for byte as
//! `docs/format/rack-packet.md` says.

use base::{Addr, Lpn, NodeId, Version, VssdId};
use rack::compare::{Ask, Content};
use rack::control::{Config, Intent, Lead, NodeStatus, Open, Roll, Terms};
use rack::inventory::{Inventory, Listed};
use rack::level::{Levels, Software};
use rack::membership::{Member, Membership};
use rack::part::Part;
use rack::registry::Durability;
use rack::tor::Registration;
use uuid::Uuid;

const RACK: &str = "000102030405060708090a0b0c0d0e0f";
const GENERATION: &str = "00000005";
const PEER: &str = "00000007 02 0a000002 22b8";
const LEAD: &str = "0a000201 22b8 0000004d";
/// Volume, set, number, size, place of the set, place, copies, flags, length of the name, name.
const PART: &str = "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf b0b1b2b3b4b5b6b7b8b9babbbcbdbebf \
                    00000009 0000000000a00000 0002 01 03 03 02 6462";

fn bytes(parts: &[&str]) -> Vec<u8> {
    let hex: String = parts.concat().chars().filter(|c| !c.is_whitespace()).collect();
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn uuid(hex: &str) -> Uuid {
    hex.parse().expect("32 digits")
}

fn membership(generation: u32) -> Membership {
    let peer = Member {
        vssd: VssdId(7),
        node: NodeId(2),
        addr: Addr::new([10, 0, 0, 2], 8888),
    };
    Membership {
        generation,
        peers: vec![peer],
    }
}

fn part() -> Part {
    Part {
        volume: uuid("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"),
        set: uuid("b0b1b2b3b4b5b6b7b8b9babbbcbdbebf"),
        number: 9,
        name: "db".to_owned(),
        size_bytes: 10 << 20,
        durability: Durability::Media,
        read_only: true,
        index: 2,
        place: Some(1),
        copies: 3,
    }
}

#[test]
fn configs_of_every_version_are_read_and_the_newest_is_written() {
    let lead = Some(Lead {
        addr: Addr::new([10, 0, 2, 1], 8888),
        session: 77,
    });
    let yields = Terms {
        expels: false,
        yields: true,
    };
    let first = Config {
        membership: membership(0),
        ..Config::default()
    };
    let led = Config {
        lead,
        membership: membership(5),
        ..Config::default()
    };
    let of_rack = Config {
        rack: uuid(RACK),
        ..led.clone()
    };
    let with_terms = Config {
        terms: yields,
        lead: None,
        ..of_rack.clone()
    };
    let newest = Config {
        terms: yields,
        node: Some(NodeId(3)),
        part: Some(part()),
        ..of_rack.clone()
    };
    let of_nobody = Config {
        node: Some(NodeId(3)),
        ..Config::default()
    };
    let nil = "00000000000000000000000000000000";
    let golden = [
        (bytes(&[PEER]), first),
        (bytes(&[GENERATION, PEER, LEAD]), led),
        (bytes(&["ff01", RACK, GENERATION, PEER, LEAD]), of_rack),
        (bytes(&["ff02", RACK, "02", GENERATION, PEER]), with_terms),
        (
            bytes(&["ff03", RACK, "02 03 01", PART, GENERATION, PEER, LEAD]),
            newest,
        ),
        (bytes(&["ff03", nil, "00 03 00"]), of_nobody),
    ];
    for (at, (bytes, config)) in golden.into_iter().enumerate() {
        assert_eq!(Config::parse(&bytes).as_ref(), Some(&config), "config {at}");
        assert!(at < 4 || config.emit() == bytes, "config {at}");
    }
}

#[test]
fn opens_of_every_version_are_read_and_written() {
    let open = Open {
        intent: Intent::Create,
        rack: Uuid::nil(),
        pages: 4096,
        channels: 2,
        rows: 0,
        membership: membership(0),
        terms: Terms::default(),
        part: None,
    };
    let of_rack = Open {
        intent: Intent::Serve,
        rack: uuid(RACK),
        rows: 3,
        membership: membership(5),
        ..open.clone()
    };
    let newest = Open {
        terms: Terms {
            expels: true,
            yields: false,
        },
        part: Some(part()),
        ..of_rack.clone()
    };
    let golden = [
        (bytes(&["01", "00001000 0000 0002", PEER]), open),
        (
            bytes(&["80", RACK, "00001000 0003 0002", GENERATION, PEER]),
            of_rack,
        ),
        (
            bytes(&["e0", RACK, "01", PART, "00001000 0003 0002", GENERATION, PEER]),
            newest,
        ),
    ];
    for (at, (bytes, open)) in golden.into_iter().enumerate() {
        assert_eq!(open.emit(), bytes, "open {at}");
        assert_eq!(Open::parse(&bytes), Some(open), "open {at}");
    }
}

#[test]
fn inventories_are_read_and_written() {
    let listed = Listed {
        vssd: VssdId(17),
        pages: 4096,
        channels: 2,
        rows: 3,
        is_unreadable: true,
        config: vec![0xab, 0xcd],
    };
    let inventory = Inventory {
        node: NodeId(3),
        boot: 100,
        next: 18,
        vssds: vec![listed],
    };
    let golden = bytes(&["03 00000064 00000012", "00000011 00001000 0002 0003 01 0002 abcd"]);
    assert_eq!(inventory.emit(), golden);
    assert_eq!(Inventory::parse(&golden), Some(inventory));
}

#[test]
fn registrations_are_read_and_written() {
    let registration = |replicas| Registration {
        vssd: VssdId(9),
        server: Addr::new([10, 0, 0, 1], 8888),
        replicas,
    };
    let replica = |end: u8| Some((VssdId(end.into()), Addr::new([10, 0, 0, end], 8888)));
    let golden = [
        (bytes(&["0a000001 22b8"]), registration([None, None])),
        (
            bytes(&[
                "0a000001 22b8",
                "00000002 0a000002 22b8",
                "00000003 0a000003 22b8",
            ]),
            registration([replica(2), replica(3)]),
        ),
    ];
    for (bytes, registration) in golden {
        assert_eq!(registration.emit(), bytes);
        assert_eq!(Registration::parse(VssdId(9), &bytes), Some(registration));
    }
}

#[test]
fn contents_and_their_differences_are_read_and_written() {
    let content = |version, crc| Content {
        version: Version(version),
        crc,
    };
    let ask = Ask {
        peer: 0,
        first: Lpn(8),
        pages: 3,
    };
    let ours = |lpn: Lpn| (lpn.0 != 9).then(|| content(u64::from(lpn.0) << 8 | 1, 0xaabb_ccdd));
    let digest = bytes(&[
        "0000000000000801 aabbccdd",
        "ffffffffffffffff 00000000",
        "0000000000000a01 aabbccdd",
    ]);
    assert_eq!(rack::compare::digest(&ask, ours), digest);
    let theirs = |lpn: Lpn| {
        Some(content(
            u64::from(lpn.0) << 8 | 1,
            if lpn.0 == 10 { 7 } else { 0xaabb_ccdd },
        ))
    };
    let answer = bytes(&["0003", "0002 0000000000000a01 00000007"]);
    assert_eq!(rack::compare::answer(Lpn(8), &digest, theirs), answer);
}

#[test]
fn demands_are_read_and_written() {
    let golden = bytes(&[
        "00000007",
        "0000000000000001 0000000000000002 0000000000000003 0000000000001000",
    ]);
    let lines = vec![(VssdId(7), [1, 2, 3, 4096])];
    assert_eq!(rack::vdc::emit(&lines), golden);
    assert_eq!(rack::vdc::parse(&golden), Some(lines));
}

/// Statuses of nodes of each level. A field that is missing has a meaning, and one that is unknown is passed over.
#[test]
fn statuses_of_every_level_are_read() {
    let expected = NodeStatus {
        node: 3,
        boot: 1_800_000_000,
        boot_before: Some(1_700_000_000),
        channels: 16,
        free_channels: 4,
        pages_per_channel: 1_000,
        vssds: 2,
        serving: 1,
        racks: vec![uuid(RACK)],
        roll: Some(Roll {
            here: vec![5, 7],
            joining: vec![7],
            generations: vec![(7, 4)],
            ..Roll::default()
        }),
        reads: 11,
        free_ratio_min: 0.5,
        ..NodeStatus::default()
    };
    let levels = Levels { min: 1, max: 2 };
    let told = Some(Software {
        version: "0.1.0".to_owned(),
        levels,
    });
    for (golden, software) in [
        (include_str!("golden/status-1.json"), None),
        (include_str!("golden/status-2.json"), told),
    ] {
        let read: NodeStatus = serde_json::from_str(golden).expect("a status");
        let known = software.clone().unwrap_or_else(Software::untold);
        assert_eq!(read.software(), known);
        assert_eq!(
            read,
            NodeStatus {
                software,
                ..expected.clone()
            }
        );
    }
    assert_eq!(
        serde_json::to_string(&expected).expect("it serializes"),
        include_str!("golden/status-1.json").trim_end()
    );
}
