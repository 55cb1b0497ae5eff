//! A registry that was lost is made again from what nodes have.

use base::{Addr, NodeId, Rng};
use rack::control::{Config, Lead, Terms as OpenTerms};
use rack::inventory::Listed;
use rack::membership::{Member, Membership};
use rack::part::Part;
use rack::rebuild::{Found, Problem, Terms, VOLUMES_SKIPPED, VSSDS_SKIPPED, rebuild};
use rack::registry::{
    Durability, JoiningRecord, LeadRecord, NodeRecord, ReplicaRecord, SetRecord, Snapshot, VolumeRecord,
};
use uuid::Uuid;

const NODES: u8 = 4;
const RACK: Uuid = Uuid::from_u128(77);

fn addr(node: u8) -> Addr {
    Addr::new([10, 0, 0, node], 8888)
}

/// Records of some volumes, as a gateway stores them.
fn records(rng: &mut Rng) -> Snapshot {
    let mut records = Snapshot {
        rack: RACK,
        ..Snapshot::default()
    };
    for id in 1..=rng.between(1, 4) as u32 {
        let mut sets = Vec::new();
        for _ in 0..rng.between(1, 3) {
            let mut nodes: Vec<u8> = (1..=NODES).collect();
            let mut replicas = Vec::new();
            for _ in 0..rng.between(1, 3) {
                records.next_vssd += rng.between(1, 3) as u32;
                let node = nodes.remove(rng.below(nodes.len() as u64) as usize);
                replicas.push(ReplicaRecord {
                    vssd: records.next_vssd,
                    node,
                });
            }
            sets.push(SetRecord {
                pages: rng.between(1, 1000) as u32,
                channels: rng.between(1, 4) as u32,
                rows: rng.below(2) as u32,
                replicas,
                generation: rng.below(3) as u32,
                ..SetRecord::default()
            });
        }
        let pages: u64 = sets.iter().map(|set| u64::from(set.pages)).sum();
        records.volumes.push(VolumeRecord {
            id,
            identity: Uuid::nil(),
            name: format!("volume-{id}"),
            size_bytes: pages * 4096 - 512 * rng.below(8),
            durability: match rng.chance(0.5) {
                true => Durability::Media,
                false => Durability::Memory,
            },
            read_only: rng.chance(0.2),
            ready: true,
            lead: None,
            sets,
        });
    }
    records.identify(Uuid::from_u128(u128::from(rng.next_u64())));
    records
}

/// The superblocks of the nodes when every member has been told these records.
fn nodes(records: &Snapshot) -> Vec<Found> {
    let mut nodes: Vec<Found> = (1..=NODES)
        .map(|node| Found {
            node: NodeId(node),
            addr: addr(node),
            boot: 100 + u32::from(node),
            vssds: Vec::new(),
        })
        .collect();
    for volume in &records.volumes {
        for (index, set) in volume.sets.iter().enumerate() {
            for (vssd, node) in set.vssds() {
                let others = set.vssds().filter(|(other, _)| *other != vssd);
                let peers = others.map(|(vssd, node)| Member {
                    vssd,
                    node,
                    addr: addr(node.0),
                });
                let config = Config {
                    rack: records.rack,
                    membership: Membership {
                        generation: set.generation,
                        peers: peers.collect(),
                    },
                    lead: Some(Lead {
                        addr: addr(99),
                        session: 5 + vssd.0,
                    }),
                    terms: OpenTerms::default(),
                    node: Some(node),
                    part: Part::of(volume, index, set, vssd),
                };
                nodes[usize::from(node.0) - 1].vssds.push(Listed {
                    vssd,
                    pages: set.pages,
                    channels: set.channels as u16,
                    rows: set.rows as u16,
                    is_unreadable: false,
                    config: config.emit(),
                });
            }
        }
    }
    nodes
}

fn volume(records: &mut Snapshot) -> &mut VolumeRecord {
    &mut records.volumes[0]
}

/// One volume of one set of three copies.
fn three() -> Snapshot {
    let replica = |node| ReplicaRecord {
        vssd: 10 + u32::from(node),
        node,
    };
    let mut records = records(&mut Rng::new(1));
    records.volumes.truncate(1);
    let volume = volume(&mut records);
    volume.sets.truncate(1);
    volume.sets[0].replicas = [2, 1, 3].map(replica).to_vec();
    volume.size_bytes = u64::from(volume.sets[0].pages) * 4096;
    records
}

/// The vSSD is not where it was.
fn lose(nodes: &mut [Found], vssd: u32) {
    for found in nodes {
        found.vssds.retain(|listed| listed.vssd.0 != vssd);
    }
}

#[test]
fn the_records_are_those_that_were_lost() {
    for seed in 0..300 {
        let records = records(&mut Rng::new(seed));
        let mut found = nodes(&records);
        found.reverse();
        let rebuilt = rebuild(&found, &Terms::default()).unwrap_or_else(|error| panic!("{seed}: {error:?}"));
        assert_eq!(rebuilt.volumes, records.volumes, "seed {seed}");
        let highest = records.volumes.iter().flat_map(|volume| &volume.sets);
        let highest = highest
            .flat_map(|set| &set.replicas)
            .map(|replica| replica.vssd)
            .max();
        let highest = highest.expect("there are some");
        let expected = Snapshot {
            epoch: 1,
            rack: RACK,
            next_vssd: highest + VSSDS_SKIPPED,
            next_volume: records.volumes.len() as u32 + VOLUMES_SKIPPED,
            nodes: (1..=NODES)
                .map(|id| NodeRecord {
                    id,
                    addr: addr(id).to_string(),
                })
                .collect(),
            lead: Some(LeadRecord {
                to: String::new(),
                gateway: String::new(),
                session: highest + 5,
            }),
            volumes: records.volumes,
            boots: (1..=NODES).map(|id| (id, 100 + u32::from(id))).collect(),
            ..Snapshot::default()
        };
        assert_eq!(rebuilt, expected, "seed {seed}");
    }
}

#[test]
fn what_is_missing_is_named_and_a_copy_that_holds_everything_suffices() {
    let records = three();
    let mut found = nodes(&records);
    lose(&mut found, 12);
    found.retain(|found| found.node != NodeId(3));
    let problems = rebuild(&found, &Terms::default()).expect_err("two copies are missing");
    let volume = "volume-1".to_owned();
    assert_eq!(
        problems,
        [
            Problem::CopyMissing {
                volume: volume.clone(),
                vssd: 12,
                node: 2
            },
            Problem::NodeMissing {
                volume: volume.clone(),
                vssd: 13,
                node: 3
            },
        ]
    );
    let terms = Terms {
        without_missing: true,
        ..Terms::default()
    };
    let set = &rebuild(&found, &terms).expect("one holds everything").volumes[0].sets[0];
    let expelling = set.expelling.as_ref().expect("the others are expelled");
    assert_eq!((&expelling.vssds[..], set.copies), (&[12, 13][..], 3));
    assert_eq!(set.replicas, [ReplicaRecord { vssd: 11, node: 1 }]);
    assert_eq!(set.generation, records.volumes[0].sets[0].generation + 1);
    lose(&mut found, 11);
    assert_eq!(rebuild(&found, &terms), Err(vec![Problem::Nothing]));
}

/// A copy on node 4 joins a set that has so many replicas left.
fn heal(set: &mut SetRecord, left: usize) {
    set.replicas.truncate(left);
    set.joining = Some(JoiningRecord {
        vssd: 20,
        node: 4,
        replaces: 0,
        moves: false,
    });
}

#[test]
fn a_change_that_was_cut_leaves_the_members_that_hold_everything() {
    let mut records = three();
    let before = nodes(&records);
    let set = &mut volume(&mut records).sets[0];
    heal(set, 2);
    set.generation += 1;
    let generation = set.generation;
    let mut found = nodes(&records);
    // One member has not heard of it, and the one that was expelled neither.
    found[0] = before[0].clone();
    found[2] = before[2].clone();
    let rebuilt = rebuild(&found, &Terms::default()).expect("nothing is missing");
    let set = &rebuilt.volumes[0].sets[0];
    assert_eq!(set.replicas, volume(&mut records).sets[0].replicas);
    assert_eq!(set.generation, generation + 1);
    let expelled: Vec<u32> = set.expelled.iter().map(|left| left.vssd).collect();
    assert_eq!(expelled, [13, 20], "they may join again");
    assert_eq!(
        set.expelling.as_ref().map(|expelling| expelling.vssds.len()),
        Some(2)
    );
}

#[test]
fn a_copy_that_joins_is_never_the_only_one() {
    let mut records = three();
    let set = &mut volume(&mut records).sets[0];
    heal(set, 1);
    let mut found = nodes(&records);
    lose(&mut found, 12);
    let terms = Terms {
        without_missing: true,
        ..Terms::default()
    };
    let volume = "volume-1".to_owned();
    assert!(
        rebuild(&found, &terms)
            .expect_err("it may have little")
            .contains(&Problem::NoCopy { volume, index: 0 })
    );
}

fn problems_of(change: impl FnOnce(&mut Vec<Found>)) -> Vec<Problem> {
    let mut found = nodes(&three());
    change(&mut found);
    rebuild(&found, &Terms::default()).expect_err("it contradicts")
}

fn reconfigure(listed: &mut Listed, change: impl FnOnce(&mut Config)) {
    let mut config = Config::parse(&listed.config).expect("as it was emitted");
    change(&mut config);
    listed.config = config.emit();
}

#[test]
fn contradictions_are_told() {
    let rack = |config: &mut Config| config.rack = Uuid::from_u128(1);
    let racks = problems_of(|found| reconfigure(&mut found[0].vssds[0], rack));
    assert_eq!(racks, [Problem::Racks(vec![Uuid::from_u128(1), RACK])]);
    let twice = problems_of(|found| {
        let image = found[0].vssds.clone();
        found[3].vssds = image;
    });
    assert!(twice.contains(&Problem::VssdTwice { vssd: 11, a: 1, b: 4 }));
    let nameless = problems_of(|found| reconfigure(&mut found[0].vssds[0], |config| config.part = None));
    assert!(nameless.contains(&Problem::Nameless { vssd: 11, node: 1 }));
    let part = |config: &mut Config| config.part.as_mut().expect("it has one").name = "other".to_owned();
    let names = problems_of(|found| reconfigure(&mut found[0].vssds[0], part));
    assert_eq!(names, [Problem::Volume("other".to_owned())]);
    let peers = |config: &mut Config| config.membership.peers.truncate(1);
    let members = problems_of(|found| reconfigure(&mut found[0].vssds[0], peers));
    let what = "who has a copy";
    let volume = "volume-1".to_owned();
    assert_eq!(
        members[0],
        Problem::Set {
            volume,
            index: 0,
            what
        }
    );
    let shapes = problems_of(|found| found[0].vssds[0].pages += 1);
    assert!(matches!(
        shapes[0],
        Problem::Set {
            what: "its size or shape",
            ..
        }
    ));
    let again = problems_of(|found| found.push(found[0].clone()));
    assert_eq!(again, [Problem::NodeTwice(1)]);
}

#[test]
fn a_part_that_is_missing_is_noticed_and_a_volume_can_be_left_out() {
    let mut rng = Rng::new(5);
    let records = loop {
        let records = records(&mut rng);
        if records.volumes[0].sets.len() == 3 && records.volumes.len() > 1 {
            break records;
        }
    };
    for index in 0..3 {
        let mut found = nodes(&records);
        for replica in &records.volumes[0].sets[index].replicas {
            lose(&mut found, replica.vssd);
        }
        let problems = rebuild(&found, &Terms::default()).expect_err("a part is missing");
        assert!(!problems.is_empty());
        let terms = Terms {
            left_out: vec!["volume-1".to_owned()],
            ..Terms::default()
        };
        let rebuilt = rebuild(&found, &terms).expect("the others are whole");
        assert_eq!(rebuilt.volumes, records.volumes[1..]);
    }
}

#[test]
fn the_newest_size_counts() {
    let records = three();
    let mut found = nodes(&records);
    let size_bytes = records.volumes[0].size_bytes;
    let older = |config: &mut Config| config.part.as_mut().expect("it has one").size_bytes -= 512;
    reconfigure(&mut found[0].vssds[0], older);
    reconfigure(&mut found[1].vssds[0], older);
    let rebuilt = rebuild(&found, &Terms::default()).expect("nothing is missing");
    assert_eq!(rebuilt.volumes[0].size_bytes, size_bytes);
}
