//! The policy of tiers: what it orders, by few and by random inputs.

use base::Rng;
use fs::format::Tier;
use fs::tier::{Batch, Found, Marks, Options, Tiers, Unit, Usage};
use std::collections::BTreeMap;

const UNIT: u64 = 1024;

fn usage(used: u64, total: u64) -> Usage {
    Usage { used, total }
}

/// Units of whole blocks on tiers, as a driver knows them.
struct World {
    tiers: Tiers,
    units: BTreeMap<Unit, (Tier, Option<Tier>)>,
    totals: [u64; 3],
    batches: Vec<u64>,
}

const ALL: [Tier; 3] = [Tier::Memory, Tier::Flash, Tier::Disk];

impl World {
    /// With so many units' room on each tier.
    fn new(options: Options, units: [u64; 3]) -> Self {
        let totals = units.map(|units| units * UNIT);
        let tiers: Vec<_> = ALL
            .into_iter()
            .zip(totals)
            .filter(|(_, total)| *total > 0)
            .map(|(tier, total)| (tier, usage(0, total)))
            .collect();
        Self {
            tiers: Tiers::new(options, &tiers),
            units: BTreeMap::new(),
            totals,
            batches: Vec::new(),
        }
    }

    fn used(&self, tier: Tier) -> u64 {
        self.units.values().filter(|(there, _)| *there == tier).count() as u64
    }

    fn tell(&mut self) {
        for (tier, total) in ALL.into_iter().zip(self.totals) {
            let used = self.used(tier) * UNIT;
            self.tiers.set_usage(tier, usage(used, total));
        }
    }

    fn add(&mut self, unit: Unit, tier: Tier, pin: Option<Tier>) {
        self.units.insert(unit, (tier, pin));
        self.tell();
    }

    fn touch(&mut self, unit: Unit, times: u32) {
        let (tier, pin) = self.units[&unit];
        (0..times).for_each(|_| self.tiers.touch(unit, tier, pin));
    }

    fn show(&mut self) {
        for (unit, (tier, pin)) in self.units.clone() {
            let mut blocks = [0; 3];
            blocks[tier as usize - 1] = UNIT;
            self.tiers.offer(&Found { unit, pin, blocks });
        }
    }

    fn carry_out(&mut self, batch: &Batch) {
        self.batches.push(batch.blocks());
        for order in &batch.orders {
            let unit = (order.inode, order.blocks.start / UNIT);
            assert_eq!(order.blocks.end - order.blocks.start, UNIT);
            let there = self.units.get_mut(&unit).expect("it exists");
            assert_eq!(there.0, order.from, "it is where the order says");
            there.0 = batch.to;
        }
        self.tiers.done(batch);
        self.tell();
    }

    /// Rounds until the policy wants no more. How many.
    fn settle(&mut self) -> usize {
        let mut rounds = 0;
        while self.tiers.wants_round() {
            self.show();
            while let Some(batch) = self.tiers.next_batch(false) {
                self.carry_out(&batch);
            }
            while let Some(batch) = self.tiers.next_batch(true) {
                self.carry_out(&batch);
            }
            self.tiers.end_of_round();
            rounds += 1;
            assert!(rounds < 40, "it ends");
        }
        rounds
    }
}

#[test]
fn a_tier_above_its_mark_gives_the_cold_units_away_until_it_has_room() {
    let mut world = World::new(Options::default(), [100, 1000, 0]);
    for unit in 0..91 {
        world.add((5, unit), Tier::Memory, None);
        world.touch((5, unit), if unit % 2 == 0 { 4 } else { 0 });
    }
    assert_eq!(world.settle(), 0, "91 % are not more than 91 %");
    world.add((6, 0), Tier::Memory, None);
    assert_eq!(world.settle(), 1);
    assert_eq!((world.used(Tier::Memory), world.used(Tier::Flash)), (89, 3));
    let warm = (0..91)
        .filter(|unit| unit % 2 == 0)
        .all(|unit| world.units[&(5, unit)].0 == Tier::Memory);
    assert!(warm, "what was touched stays");
    // When there is nothing cold any more, warm ones go.
    for unit in 100..160 {
        world.add((5, unit), Tier::Memory, None);
        world.touch((5, unit), 7);
    }
    world.settle();
    assert_eq!(world.used(Tier::Memory), 89);
}

#[test]
fn what_is_read_once_goes_before_what_is_read_again_and_again() {
    let mut world = World::new(Options::default(), [100, 1000, 0]);
    for unit in 0..40 {
        world.add((5, unit), Tier::Memory, None);
        world.touch((5, unit), 6);
    }
    for unit in 0..60 {
        // A backup: each of these was touched later than all of the others.
        world.add((6, unit), Tier::Memory, None);
        world.touch((6, unit), 1);
    }
    world.settle();
    assert_eq!(world.used(Tier::Memory), 89);
    let stays = (0..40).all(|unit| world.units[&(5, unit)].0 == Tier::Memory);
    assert!(stays, "by the order of last touches these would have gone");
}

#[test]
fn pinned_files_go_to_their_tier_and_stay() {
    let mut world = World::new(Options::default(), [100, 100, 100]);
    for unit in 0..95 {
        world.add((5, unit), Tier::Memory, Some(Tier::Memory));
    }
    world.add((6, 0), Tier::Memory, Some(Tier::Disk));
    world.add((6, 1), Tier::Flash, Some(Tier::Disk));
    world.touch((6, 0), 50);
    world.settle();
    assert_eq!(world.used(Tier::Memory), 95, "there is nothing else that may go");
    assert_eq!(world.used(Tier::Disk), 2);
    assert!(!world.tiers.wants_round(), "it does not look again and again");
    // What comes later may go.
    world.add((7, 0), Tier::Memory, None);
    world.settle();
    assert_eq!((world.used(Tier::Memory), world.used(Tier::Flash)), (95, 1));
}

#[test]
fn what_is_hot_comes_up_as_far_as_there_is_room() {
    let mut world = World::new(Options::default(), [10, 100, 0]);
    for unit in 0..20 {
        world.add((5, unit), Tier::Flash, None);
    }
    world.touch((5, 0), 7);
    assert_eq!(world.tiers.next_batch(true), None);
    for unit in 0..20 {
        world.touch((5, unit), 8);
    }
    while let Some(batch) = world.tiers.next_batch(true) {
        assert_eq!(batch.to, Tier::Memory);
        world.carry_out(&batch);
    }
    assert_eq!(world.used(Tier::Memory), 8, "89 % of ten units");
    assert!(!world.tiers.wants_round(), "what came up does not go down again");
    // What goes down does so to the next tier that has room.
    let mut world = World::new(Options::default(), [100, 20, 100]);
    for unit in 0..19 {
        world.add((5, unit), Tier::Flash, None);
    }
    for unit in 0..95 {
        world.add((6, unit), Tier::Memory, None);
    }
    world.settle();
    let used = ALL.map(|tier| world.used(tier));
    assert_eq!(used, [89, 19, 6]);
}

#[test]
fn batches_have_a_unit_at_least_and_a_gibibyte_at_most() {
    let mut world = World::new(Options::default(), [2000, 4000, 0]);
    for unit in 0..2000 {
        world.units.insert((5, unit), (Tier::Memory, None));
    }
    world.tell();
    world.settle();
    assert_eq!(world.used(Tier::Memory), 1780);
    assert_eq!(world.batches, [220 * UNIT]);
    let mut world = World::new(Options::default(), [5000, 9000, 0]);
    for unit in 0..5000 {
        world.units.insert((5, unit), (Tier::Memory, None));
    }
    world.tell();
    world.settle();
    assert_eq!(world.batches, [256 * UNIT, 256 * UNIT, 38 * UNIT]);
    // Small files wait for others.
    let mut tiers = Tiers::new(
        Options::default(),
        &[
            (Tier::Memory, usage(99_000, 100_000)),
            (Tier::Flash, usage(0, 1 << 20)),
        ],
    );
    let found = |inode| Found {
        unit: (inode, 0),
        pin: None,
        blocks: [100, 0, 0],
    };
    for inode in 2..12 {
        tiers.offer(&found(inode));
        assert_eq!(tiers.next_batch(false), None);
    }
    tiers.offer(&found(12));
    assert_eq!(tiers.next_batch(false).map(|batch| batch.blocks()), Some(1100));
}

#[test]
fn memory_is_bounded_and_keeps_what_is_hot() {
    let options = Options {
        units_max: 100,
        ..Options::default()
    };
    let mut tiers = Tiers::new(options, &[(Tier::Memory, usage(0, 1 << 30))]);
    for step in 0..100_000 {
        tiers.touch((9, step % 20), Tier::Memory, None);
        tiers.touch((10, step), Tier::Memory, None);
        if step % 1000 == 0 {
            tiers.end_of_round();
        }
    }
    assert_eq!(tiers.known(), 100);
    assert!((0..20).all(|unit| tiers.heat((9, unit)) > 50));
    tiers.forget(9);
    assert_eq!((tiers.known(), tiers.heat((9, 3))), (80, 0));
}

/// Random files come, are touched and go; the policy keeps its marks, and orders nothing twice.
#[test]
fn random_work_keeps_the_marks() {
    let mut moved = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let marks = |high, low| Marks { high, low };
        let options = Options {
            marks: [marks(900, 800), marks(950, 900), marks(1000, 1000)],
            batch_blocks: rng.between(1, 5) * UNIT,
            units_max: rng.between(4, 60) as usize,
            ..Options::default()
        };
        let mut world = World::new(options, [20, 40, 200]);
        for step in 0..600 {
            let unit = (rng.between(2, 9), rng.below(18));
            let pin = [None, None, None, None, Some(Tier::Disk)][rng.below(5) as usize];
            match rng.below(4) {
                0 if world.used(Tier::Memory) < 20 && !world.units.contains_key(&unit) => {
                    world.add(unit, Tier::Memory, pin);
                }
                1..3 if world.units.contains_key(&unit) => world.touch(unit, rng.below(12) as u32),
                _ if rng.chance(0.3) => {
                    world.settle();
                    let used = ALL.map(|tier| world.used(tier));
                    assert!(
                        used[0] <= 18 && used[1] <= 38,
                        "seed {seed}, step {step}: {used:?}"
                    );
                }
                _ => {}
            }
        }
        moved += world.batches.iter().sum::<u64>() / UNIT;
    }
    assert!(moved > 2000, "{moved}");
}
