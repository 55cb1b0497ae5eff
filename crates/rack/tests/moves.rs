//! Members move where somebody wants them to be, in a model of nodes that do at once what the records ask for.

use base::event::Kind;
use base::{Addr, Instant, NodeId};
use rack::control::{NodeStatus, Roll};
use rack::exchange::ChangeState;
use rack::heal::{Heal, Rules};
use rack::moves::{progress, stuck};
use rack::nodes::NodeError;
use rack::registry::{LeftRecord, ReplicaRecord, SetRecord, Snapshot, VolumeRecord};
use rack::room::{Rooms, Site};
use std::collections::{BTreeMap, BTreeSet};

const CHANNELS: u32 = 8;
const PAGES_PER_CHANNEL: u32 = 10;

fn addr(node: u8) -> Addr {
    Addr::new([10, 0, 0, node], 8888)
}

/// A volume with sets of one channel, on these nodes.
fn volume(id: u32, next_vssd: &mut u32, sets: &[&[u8]]) -> VolumeRecord {
    let mut replica = |node: &u8| {
        *next_vssd += 1;
        ReplicaRecord {
            vssd: *next_vssd,
            node: *node,
        }
    };
    let mut set = |nodes: &[u8]| SetRecord {
        pages: 1,
        channels: 1,
        replicas: nodes.iter().map(&mut replica).collect(),
        ..SetRecord::default()
    };
    VolumeRecord {
        id,
        identity: Default::default(),
        name: format!("v{id}"),
        size_bytes: 4096,
        durability: Default::default(),
        read_only: false,
        ready: true,
        lead: None,
        sets: sets.iter().map(|nodes| set(nodes)).collect(),
    }
}

struct World {
    heal: Heal,
    now: u64,
    records: Snapshot,
    /// vSSDs of each node; of one that is away, what it had.
    nodes: BTreeMap<u8, BTreeSet<u32>>,
    away: BTreeSet<u8>,
    told: Vec<Kind>,
    /// Moves at one moment.
    moving_max: usize,
}

impl World {
    fn new(nodes: u8, volumes: &[&[&[u8]]]) -> Self {
        let mut records = Snapshot::default();
        for node in 1..=nodes {
            let added = records.add_node(NodeId(node), addr(node));
            added.expect("no other node has its number or address");
        }
        for (id, sets) in (1..).zip(volumes) {
            let record = volume(id, &mut records.next_vssd, sets);
            records.volumes.push(record);
        }
        let mut world = Self {
            heal: Heal::new(Instant::from_nanos(0), Rules::default()),
            now: 0,
            nodes: (1..=nodes).map(|node| (node, BTreeSet::new())).collect(),
            records,
            away: BTreeSet::new(),
            told: Vec::new(),
            moving_max: 0,
        };
        world.obey();
        world
    }

    /// Nodes have what the records ask for, and nothing else.
    fn obey(&mut self) {
        for (node, vssds) in self.nodes.iter_mut().filter(|(id, _)| !self.away.contains(id)) {
            let sets = || self.records.volumes.iter().flat_map(|volume| &volume.sets);
            let members = sets().flat_map(SetRecord::vssds);
            let members = members.map(|(vssd, node)| (vssd.0, node.0));
            let expelled = sets().flat_map(|set| set.expelled.iter().map(|left| (left.vssd, left.node)));
            let leaving = sets().filter_map(|set| set.leaving.filter(|leaving| !leaving.may_stay()));
            let leaving = leaving.map(|leaving| leaving.vssd);
            let leaving: Vec<u32> = leaving.collect();
            *vssds = members
                .chain(expelled)
                .filter(|(vssd, on)| on == node && !leaving.contains(vssd))
                .map(|(vssd, _)| vssd)
                .collect();
        }
    }

    fn status(&self, node: u8) -> NodeStatus {
        let vssds = &self.nodes[&node];
        NodeStatus {
            node,
            boot: 1,
            channels: CHANNELS,
            free_channels: CHANNELS - vssds.len() as u32,
            pages_per_channel: PAGES_PER_CHANNEL,
            roll: Some(Roll {
                here: vssds.iter().copied().collect(),
                ..Roll::default()
            }),
            ..NodeStatus::default()
        }
    }

    /// One look of the healing; true if it changed the records.
    fn look(&mut self) -> bool {
        self.now += 200;
        let now = Instant::from_nanos(self.now * 1_000_000);
        let known: Vec<u8> = self.records.nodes.iter().map(|node| node.id).collect();
        self.heal.members_mut().asked(known.iter().map(|&id| NodeId(id)));
        for id in known.into_iter().filter(|id| !self.away.contains(id)) {
            let status = self.status(id);
            self.heal.members_mut().answered(now, NodeId(id), now, &status);
        }
        let before = self.copies();
        let records = self.records.clone();
        let away = self.away.clone();
        let state = |id, set: usize| {
            let set = &records.volume_of(id).expect("it was asked for").sets[set];
            let left = set.leaving.map(|leaving| leaving.node);
            let may_stay = set.leaving.is_some_and(|leaving| leaving.may_stay());
            let is_well = set.replicas.iter().all(|replica| !away.contains(&replica.node));
            match set.joining.map(|joining| joining.node) {
                Some(node) if !away.contains(&node) => ChangeState::Joined,
                None if may_stay && is_well => ChangeState::Secured,
                None if may_stay => ChangeState::Busy,
                None if !left.is_some_and(|node| away.contains(&node)) => ChangeState::Done,
                _ => ChangeState::Busy,
            }
        };
        let next = self.heal.next(now, &records, rack::charge::Charge::ALL, state);
        let is_changed = next.is_some();
        self.records = next.unwrap_or(records);
        while let Some(kind) = self.heal.poll_told() {
            self.told.push(kind);
        }
        self.moving_max = self.moving_max.max(self.records.moving().count());
        if self.away.is_empty() {
            let sets = self.records.volumes.iter().flat_map(|volume| &volume.sets);
            for ((set, had), wanted) in sets.zip(before).zip(self.wanted()) {
                assert!(set.replicas.len() >= had.min(wanted), "fewer copies: {set:?}");
            }
        }
        self.obey();
        is_changed
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 5 {
            self.look();
        }
    }

    fn copies(&self) -> Vec<usize> {
        let sets = self.records.volumes.iter().flat_map(|volume| &volume.sets);
        sets.map(|set| set.replicas.len()).collect()
    }

    fn wanted(&self) -> Vec<usize> {
        let sets = self.records.volumes.iter().flat_map(|volume| &volume.sets);
        sets.map(SetRecord::wanted).collect()
    }

    fn rooms(&self) -> Rooms {
        let site = |node: &u8| {
            Site::new(
                *node,
                &self.status(*node),
                self.records.rack,
                !self.away.contains(node),
            )
        };
        Rooms::new(self.nodes.keys().map(site))
    }

    fn loads(&self) -> Vec<usize> {
        self.nodes.values().map(BTreeSet::len).collect()
    }

    fn has_told(&self, wanted: impl Fn(&Kind) -> bool) -> bool {
        self.told.iter().any(wanted)
    }
}

#[test]
fn a_node_that_is_drained_has_nothing_at_the_end_and_no_set_has_fewer_copies_meanwhile() {
    let mut world = World::new(4, &[&[&[1, 2], &[2, 3], &[3, 1]], &[&[1], &[2]], &[&[1, 2, 3]]]);
    world.run(2);
    world.records.drain_node(1).unwrap();
    world.run(10);
    assert_eq!(world.records.members_on(1), 0, "{:?}", world.records);
    assert_eq!(world.nodes[&1].len(), 0);
    assert_eq!(world.moving_max, Rules::default().moves_max);
    assert!(world.has_told(|kind| *kind == Kind::NodeDrained { node: NodeId(1) }));
    assert!(
        world
            .records
            .volumes
            .iter()
            .flat_map(|v| &v.sets)
            .all(SetRecord::is_whole)
    );
    world.run(10);
    assert_eq!(world.records.members_on(1), 0, "nothing comes back");
    world.records.remove_node(1, false).unwrap();
    assert!(!world.records.has_node(1) && world.records.removed == [1]);
    world.records.add_node(NodeId(1), addr(1)).unwrap();
    assert!(world.records.removed.is_empty() && !world.records.goes(1));
}

#[test]
fn a_drain_without_room_waits_says_why_and_ends_when_it_is_stopped() {
    let mut world = World::new(3, &[&[&[1, 2, 3]], &[&[1, 2]]]);
    let refused = world.records.drain_node(1);
    assert!(
        matches!(
            refused,
            Err(NodeError::TooFew {
                copies: 3,
                nodes: 2,
                ..
            })
        ),
        "{refused:?}"
    );
    world.records.volumes.remove(0);
    world.nodes.get_mut(&3).unwrap().extend(100..107);
    world.run(2);
    let full = |world: &World| {
        let mut rooms = world.rooms();
        let set = &world.records.volumes[0].sets[0];
        (0..CHANNELS).for_each(|_| rooms.give(set, 3));
        stuck(&world.records, &rooms, 1)
    };
    world.records.drain_node(1).unwrap();
    assert!(
        full(&world)
            .unwrap()
            .to_string()
            .contains("no other node that answers has room")
    );
    world.records.stop_drain(1).unwrap();
    world.run(5);
    assert_eq!(world.records.members_on(1), 1, "nothing moved");
    assert_eq!(world.records.stop_drain(1), Err(NodeError::NotDraining(1)));
}

#[test]
fn a_node_with_copies_is_not_removed_and_one_that_is_silent_only_if_others_have_all() {
    let mut world = World::new(4, &[&[&[1, 2]], &[&[3]]]);
    world.run(2);
    let refused = world.records.remove_node(2, false);
    assert_eq!(refused, Err(NodeError::HasMembers { node: 2, members: 1 }));
    let refused = world.records.remove_node(3, true);
    assert!(
        matches!(refused, Err(NodeError::OnlyCopy { node: 3, .. })),
        "{refused:?}"
    );
    assert_eq!(world.records.remove_node(9, true), Err(NodeError::Unknown(9)));
    world.away.insert(2);
    let refused = world.records.remove_node(2, true);
    assert!(
        matches!(refused, Err(NodeError::NotRebuilt { node: 2, .. })),
        "{refused:?}"
    );
    // A person who drains it does not want to wait for it.
    world.records.drain_node(2).unwrap();
    world.run(5);
    assert_eq!(progress(&world.records, 2).members, 0, "{:?}", world.records);
    world.records.remove_node(2, true).unwrap();
    assert_eq!(
        world.records.leftovers,
        [LeftRecord {
            vssd: 2,
            node: 2,
            set: Default::default()
        }]
    );
    // It comes back by a mistake: nobody minds, and what it had is deleted when it belongs to the rack again.
    world.away.clear();
    world.run(2);
    assert_eq!(world.heal.discards(&world.records).count(), 0);
    world.records.add_node(NodeId(2), addr(2)).unwrap();
    world.nodes.get_mut(&2).unwrap().insert(2);
    let left = |world: &World| world.heal.discards(&world.records).collect::<Vec<_>>();
    world.now += 200;
    world.heal.members_mut().asked([NodeId(2)].into_iter());
    let (now, status) = (Instant::from_nanos(world.now * 1_000_000), world.status(2));
    world.heal.members_mut().answered(now, NodeId(2), now, &status);
    assert_eq!(left(&world), world.records.leftovers);
}

#[test]
fn one_node_takes_the_place_of_another_which_is_forgotten() {
    let mut world = World::new(3, &[&[&[1, 2], &[2, 3], &[3, 2]]]);
    world.run(2);
    world.nodes.insert(4, BTreeSet::new());
    world.records.add_node(NodeId(4), addr(4)).unwrap();
    assert_eq!(world.records.replace_node(2, 2), Err(NodeError::Same(2)));
    world.records.replace_node(2, 4).unwrap();
    world.run(10);
    assert!(!world.records.has_node(2) && world.records.drains.is_empty());
    assert_eq!(world.nodes[&4].len(), 3, "{:?}", world.records);
    assert!(!world.records.boots.contains_key(&2));
}

/// The node that is replaced is gone, and its heir gets its copies at once.
#[test]
fn a_dead_node_is_replaced() {
    let mut world = World::new(4, &[&[&[1, 2], &[2, 3]]]);
    world.run(2);
    world.away.insert(2);
    world.run(3);
    assert_eq!(world.copies(), [1, 1]);
    world.records.replace_node(2, 4).unwrap();
    world.run(4);
    assert_eq!((world.copies(), world.nodes[&4].len()), (vec![2, 2], 2));
    assert!(!world.records.has_node(2));
}

#[test]
fn room_is_evened_out_one_move_at_a_time_and_then_nothing_moves() {
    let mut world = World::new(2, &[&[&[1, 2], &[2, 1], &[1, 2], &[2, 1]], &[&[1], &[1], &[1]]]);
    world.run(2);
    world.nodes.insert(3, BTreeSet::new());
    world.records.add_node(NodeId(3), addr(3)).unwrap();
    world.records.rebalance();
    world.run(20);
    assert_eq!(world.moving_max, 1);
    assert_eq!(world.records.rebalance_moves, 0);
    let loads = world.loads();
    assert!(loads.iter().all(|load| (3..=4).contains(load)), "{loads:?}");
    let sets = world.records.volumes.iter().flat_map(|volume| &volume.sets);
    let primaries: Vec<u8> = sets.map(|set| set.replicas[0].node).collect();
    let most = (1..=3)
        .map(|node| primaries.iter().filter(|on| **on == node).count())
        .max();
    assert!(most.is_some_and(|most| most <= 3), "{primaries:?}");
    assert!(world.has_told(|kind| *kind == Kind::Rebalanced {}));
    assert!(!world.look() && !world.look());
}

#[test]
fn copies_of_a_volume_become_more_at_once_and_fewer_without_losing_the_primary() {
    let mut world = World::new(4, &[&[&[1, 2], &[2, 3]]]);
    world.run(2);
    let copies = |world: &mut World, copies| {
        for set in &mut world.records.volumes[0].sets {
            set.copies = copies;
        }
        world.run(5);
        assert!(world.records.volumes[0].sets.iter().all(SetRecord::is_whole));
        world.copies()
    };
    assert_eq!(copies(&mut world, 3), [3, 3]);
    assert_eq!(copies(&mut world, 1), [1, 1]);
    let primaries: Vec<u32> = world.records.volumes[0]
        .sets
        .iter()
        .map(|set| set.replicas[0].vssd)
        .collect();
    assert_eq!(primaries, [1, 3]);
    assert_eq!(world.loads().iter().sum::<usize>(), 2);
}

/// Bug: a set was to have one copy, and the node of the one that was to stay died for ever before the other one was deleted.
/// Cause: nobody brought the good copy back. Fix: it is deleted when the registry has that the others have everything
/// durably, and is a member until then.
#[test]
fn a_copy_that_was_to_go_stays_if_another_one_is_lost_before_that_has_flushed() {
    let mut world = World::new(2, &[&[&[1, 2]]]);
    world.run(2);
    world.away.insert(1);
    world.records.volumes[0].sets[0].copies = 1;
    assert!(world.look());
    assert_eq!(world.copies(), [1]);
    world.run(5);
    let set = &world.records.volumes[0].sets[0];
    let vssds: Vec<u32> = set.replicas.iter().map(|replica| replica.vssd).collect();
    assert_eq!((vssds, set.leaving), (vec![2], None));
    assert!(set.is_whole() && world.nodes[&2].contains(&2));
    world.away.clear();
    world.run(5);
    assert!(world.records.leftovers.iter().all(|left| left.vssd == 1));
}

#[test]
fn a_move_to_a_node_that_goes_is_given_up_and_begun_to_another() {
    let mut world = World::new(4, &[&[&[1, 2]]]);
    world.run(2);
    world.records.drain_node(1).unwrap();
    world.look();
    let joining = world.records.volumes[0].sets[0].joining.expect("it moves");
    assert!(joining.moves && joining.replaces == 1);
    world.away.insert(joining.node);
    // The copy is away before it is whole.
    while world.records.volumes[0].sets[0]
        .joining
        .is_none_or(|now| now == joining)
    {
        world.look();
    }
    let set = &world.records.volumes[0].sets[0];
    assert_eq!(set.replicas.len(), 2);
    let again = set.joining.expect("it moves to another node");
    assert!(again.node != joining.node && again.moves);
}

/// bug: a rebalancing waited for ever for a node that was gone for ever. fix: it goes on once other nodes have that node's copies.
#[test]
fn room_is_evened_out_without_a_node_that_is_gone() {
    let mut world = World::new(4, &[&[&[1, 2], &[1, 2], &[1, 2], &[2, 4]]]);
    world.run(2);
    world.away.insert(4);
    world.records.rebalance();
    world.run(2);
    assert!(world.records.rebalance_moves > 0, "it may come back");
    world.run(90);
    assert_eq!(world.copies(), [2, 2, 2, 2]);
    assert_eq!(world.records.rebalance_moves, 0, "{:?}", world.records);
    assert!(world.has_told(|kind| *kind == Kind::Rebalanced {}));
    let loads = &world.loads()[..3];
    assert!(loads.iter().all(|load| (2..=3).contains(load)), "{loads:?}");
}
