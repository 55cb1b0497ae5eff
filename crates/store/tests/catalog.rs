//! The catalog under crashes: a cut between any two steps of any change, with every subset of the sectors under way, again
//! while recovering, and every flipped bit.

use base::{Device, MediaError, Rng};
use std::collections::BTreeMap;
use store::catalog::{
    AreaId, AreaState, Catalog, CatalogError, CatalogRefusal, Change, Extent, NewArea, Opened, Quota, Rate,
    Readers, SLOT_BYTES, TABLE_BYTES, UNIT_BYTES, Who, Work,
};

const SECTOR: usize = 512;
/// Of each slot, as much as these tables need.
const KEPT: usize = 8192;
const UNIT: u64 = UNIT_BYTES;
const ROOT: Who = Who {
    user: 0,
    group: 0,
    is_admin: true,
};

fn user(user: u32) -> Who {
    Who {
        user,
        group: user,
        is_admin: false,
    }
}

fn quota(bytes: u64) -> Quota {
    Quota {
        bytes,
        ..Quota::UNLIMITED
    }
}

fn some_rate(rng: &mut Rng) -> Rate {
    Rate {
        operations: rng.below(3) as u32,
        bytes: rng.below(3) * UNIT,
    }
}

/// The medium of a catalog: the table, what is in each unit, which areas somebody could reach, and what has been used of them. Each
/// step costs one of `steps_left`; when there is none the power is cut.
#[derive(Clone)]
struct World {
    table: Vec<u8>,
    /// Writes to the table that no flush followed.
    flying: Vec<(usize, Vec<u8>)>,
    units: BTreeMap<u64, u64>,
    reach: BTreeMap<AreaId, Extent>,
    /// Bytes of each area: its program uses what it can reach at once.
    used: BTreeMap<AreaId, u64>,
    steps_left: usize,
    is_placed: bool,
}

struct Cut;

impl World {
    fn new(is_placed: bool) -> Self {
        Self {
            table: vec![0; 2 * KEPT],
            flying: Vec::new(),
            units: BTreeMap::new(),
            reach: BTreeMap::new(),
            used: BTreeMap::new(),
            steps_left: usize::MAX,
            is_placed,
        }
    }

    fn step(&mut self) -> Result<(), Cut> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Cut)?;
        Ok(())
    }

    fn slot(offset: u64) -> usize {
        (offset / SLOT_BYTES) as usize * KEPT + (offset % SLOT_BYTES) as usize
    }

    /// Places of an extent's units: without places each area has its own.
    fn units_of(&self, id: AreaId, extent: Extent) -> impl Iterator<Item = u64> + use<> {
        let base = if self.is_placed { 0 } else { id.0 << 32 };
        (extent.offset / UNIT..extent.end() / UNIT).map(move |unit| base + unit)
    }

    fn zero(&mut self, units: impl Iterator<Item = u64>) -> Result<(), Cut> {
        for unit in units {
            self.step()?;
            self.units.insert(unit, 0);
        }
        Ok(())
    }

    fn work(&mut self, work: &Work) -> Result<(), Cut> {
        match *work {
            Work::Make(id, extent) => {
                self.zero(self.units_of(id, extent))?;
                self.step()?;
                self.show(id, extent);
            }
            Work::Grow(id, from, to) => {
                let targets: Vec<u64> = self.units_of(id, to).collect();
                let old = (from.bytes / UNIT) as usize;
                if from.offset != to.offset {
                    let sources: Vec<u64> = self.units_of(id, from).collect();
                    for (source, target) in sources.iter().zip(&targets) {
                        self.step()?;
                        let what = self.units.get(source).copied().unwrap_or(0);
                        self.units.insert(*target, what);
                    }
                }
                self.zero(targets[old..].iter().copied())?;
            }
            Work::Shrink(id, from, _) => {
                self.step()?;
                self.reach.insert(id, from);
            }
            Work::Remove(id, _) => {
                self.step()?;
                self.reach.remove(&id);
                self.used.remove(&id);
            }
        }
        Ok(())
    }

    /// Lets the area's program see all of it.
    fn show(&mut self, id: AreaId, extent: Extent) {
        self.reach.insert(id, extent);
        let used = self.used.insert(id, extent.bytes).unwrap_or(0);
        for unit in self.units_of(id, extent).skip((used / UNIT) as usize) {
            let was = self.units.insert(unit, id.0);
            assert!(matches!(was, None | Some(0)), "another's data shows");
        }
    }

    fn save(&mut self, catalog: &mut Catalog) -> Result<(), Cut> {
        catalog.save(self).map_err(|_| Cut)
    }

    /// What is there after the cut: of the sectors under way those that `keep` says.
    fn after_cut(&self, mut keep: impl FnMut() -> bool) -> Self {
        let mut world = self.clone();
        world.steps_left = usize::MAX;
        for (offset, bytes) in std::mem::take(&mut world.flying) {
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                if keep() {
                    world.table[offset + index * SECTOR..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        world
    }

    fn recover(&mut self) -> Result<Catalog, Cut> {
        let (mut catalog, _) = Catalog::load(self).map_err(|error| {
            assert!(
                matches!(error, CatalogError::Medium(_)),
                "a cut is recovered: {error}"
            );
            Cut
        })?;
        for work in catalog.unfinished() {
            self.work(&work)?;
            catalog.end(&work);
            self.save(&mut catalog)?;
        }
        for (id, area) in catalog.areas() {
            self.show(id, area.extent);
        }
        Ok(catalog)
    }
}

impl Device for World {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let within = (offset % SLOT_BYTES) as usize;
        let kept = bytes.len().min(KEPT - within);
        bytes[..kept].copy_from_slice(&self.table[Self::slot(offset)..][..kept]);
        bytes[kept..].fill(0);
        Ok(())
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.flying.push((Self::slot(offset), bytes.to_vec()));
        self.step().map_err(|_| MediaError::Io)
    }
    fn flush(&mut self) -> Result<(), MediaError> {
        self.step().map_err(|_| MediaError::Io)?;
        for (offset, bytes) in std::mem::take(&mut self.flying) {
            self.table[offset..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
    fn capacity_bytes(&self) -> u64 {
        TABLE_BYTES
    }
}

/// What users have been told: areas with their bytes, and exports; and the change that was under way, which may be there.
#[derive(Default)]
struct Told {
    areas: BTreeMap<String, (AreaId, u64)>,
    rates: BTreeMap<String, Rate>,
    exports: BTreeMap<String, AreaId>,
    asked: Option<(Change, Who)>,
}

fn random_change(rng: &mut Rng) -> (Change, Who) {
    let who = user(1 + rng.below(2) as u32);
    let name = format!("area-{}", rng.below(4));
    let bytes = (8 + rng.below(12)) * UNIT;
    let change = match rng.below(9) {
        0..4 => Change::Create(NewArea {
            name,
            bytes,
            owner: who.user,
            group: who.group,
            mode: 0o600,
            rate: some_rate(rng),
        }),
        4 | 5 => Change::Resize { name, bytes },
        6 => Change::Delete { name },
        7 => Change::Limit {
            name,
            rate: some_rate(rng),
        },
        _ => Change::Export {
            name: format!("export-{}", rng.below(3)),
            area: name,
            readers: Readers::All,
            path: String::new(),
        },
    };
    (change, who)
}

/// The name by which everybody may call an area that `who` calls `name`.
fn name_of(name: &str, who: Who) -> String {
    format!("{}/{name}", who.user)
}

/// One change from its first step to its answer, as the server makes it.
fn change(
    world: &mut World,
    catalog: &mut Catalog,
    told: &mut Told,
    change: Change,
    who: Who,
) -> Result<(), Cut> {
    let before = catalog.clone();
    let Ok(work) = catalog.begin(&change, who, quota(40 * UNIT)) else {
        assert_eq!(*catalog, before, "a refusal changes nothing");
        return Ok(());
    };
    told.asked = Some((change.clone(), who));
    world.save(catalog)?;
    if let Some(work) = work {
        world.work(&work)?;
        catalog.end(&work);
        world.save(catalog)?;
        if let Work::Grow(id, _, to) = work {
            world.step()?;
            world.show(id, to);
        }
    }
    told.asked = None;
    match change {
        Change::Limit { name, rate } => drop(told.rates.insert(name_of(&name, who), rate)),
        Change::Create(NewArea { name, .. }) | Change::Resize { name, .. } => {
            let (id, area) = catalog.find(&name, who.user).expect("it was just made");
            let name = name_of(&name, who);
            told.rates.insert(name.clone(), area.rate);
            told.areas.insert(name, (id, area.extent.bytes));
        }
        Change::Delete { name } => {
            let (id, _) = told.areas.remove(&name_of(&name, who)).expect("it was there");
            told.exports.retain(|_, area| *area != id);
        }
        Change::Export { name, area, .. } => {
            told.exports.insert(name, told.areas[&name_of(&area, who)].0);
        }
        Change::Withdraw { .. } => {}
    }
    Ok(())
}

fn check(world: &World, catalog: &Catalog, told: &Told) {
    let asked =
        |is_it: &dyn Fn(&Change) -> bool| told.asked.as_ref().is_some_and(|(change, _)| is_it(change));
    let asked_of = |whole: &str, is_it: &dyn Fn(&Change, &str) -> bool| {
        let asked = told.asked.as_ref();
        asked.is_some_and(|(change, who)| {
            let name = whole.strip_prefix(&format!("{}/", who.user));
            name.is_some_and(|name| is_it(change, name))
        })
    };
    for (name, (id, bytes)) in &told.areas {
        let Some((found, area)) = catalog.find(name, 0) else {
            assert!(
                asked_of(
                    name,
                    &|it, name| matches!(it, Change::Delete { name: gone } if gone == name)
                ),
                "{name} is lost"
            );
            continue;
        };
        assert_eq!(found, *id);
        let grown = asked_of(
            name,
            &|it, name| matches!(it, Change::Resize { name: grown, .. } if grown == name),
        );
        assert!(area.extent.bytes == *bytes || (grown && area.extent.bytes > *bytes));
        let limited = asked_of(
            name,
            &|it, name| matches!(it, Change::Limit { name: limited, .. } if limited == name),
        );
        assert!(
            area.rate == told.rates[name] || limited,
            "the rate of {name} is another"
        );
        let units: Vec<u64> = world.units_of(*id, area.extent).collect();
        let written = (world.used[id].max(*bytes) / UNIT) as usize;
        assert!(
            units[..written].iter().all(|unit| world.units[unit] == id.0),
            "data of {name} is gone"
        );
    }
    for (name, area) in &told.exports {
        let is_there = catalog
            .exports()
            .any(|(it, export)| it == name && export.area == *area);
        assert!(
            is_there || asked(&|it| matches!(it, Change::Delete { .. })),
            "the export {name} is lost"
        );
    }
    let mut taken = BTreeMap::new();
    for (id, area) in catalog.areas() {
        assert_eq!(area.state, AreaState::Ready);
        assert_eq!(
            world.reach.get(&id),
            Some(&area.extent),
            "what is reached is what is in the table"
        );
        for unit in world.units_of(id, area.extent) {
            assert!(
                [None, Some(&0), Some(&id.0)].contains(&world.units.get(&unit)),
                "another's data shows"
            );
            assert_eq!(taken.insert(unit, id), None, "areas overlap");
        }
    }
    assert_eq!(world.reach.len(), catalog.areas().count(), "nothing is left over");
    for who in [1, 2] {
        assert!(catalog.bytes_of(who) <= 40 * UNIT);
    }
}

/// Runs a script with the power cut after `steps`; true if it came to its end.
fn run(seed: u64, steps: usize, images: &mut u64) -> bool {
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed.is_multiple_of(2));
    let mut catalog = Catalog::new([7; 16], world.is_placed, 70 * UNIT);
    catalog.format(&mut world).expect("nothing is cut yet");
    world.steps_left = steps;
    let mut told = Told::default();
    for _ in 0..30 {
        let (asked, who) = random_change(&mut rng);
        if change(&mut world, &mut catalog, &mut told, asked, who).is_err() {
            let sectors: usize = world.flying.iter().map(|(_, bytes)| bytes.len() / SECTOR).sum();
            assert!(sectors <= 8, "one write of one block is under way");
            // All subsets, once in a while; else some.
            let chosen: Vec<u64> = match steps.is_multiple_of(5) {
                true => (0..1 << sectors).collect(),
                false => vec![0, (1 << sectors) - 1, rng.below(1 << sectors)],
            };
            for chosen in chosen {
                let mut index = 0;
                let mut again = world.after_cut(|| {
                    index += 1;
                    chosen >> (index - 1) & 1 == 1
                });
                // Power fails while it recovers, too.
                again.steps_left = rng.below(12) as usize;
                let mut recovered = again.recover();
                while recovered.is_err() {
                    again = again.after_cut(|| rng.below(2) == 0);
                    again.steps_left = 2 + rng.below(40) as usize;
                    recovered = again.recover();
                }
                check(&again, &recovered.ok().expect("it came to its end"), &told);
                *images += 1;
            }
            return false;
        }
    }
    check(&world, &catalog, &told);
    true
}

#[test]
fn a_cut_between_any_two_steps_loses_and_leaks_nothing() {
    let mut images = 0;
    for seed in 0..24 {
        let mut steps = 0;
        while !run(seed, steps, &mut images) {
            steps += 1;
        }
        assert!(steps > 60, "the script of seed {seed} does something");
    }
    assert!(images > 10_000, "{images} images");
}

fn furnished() -> (Catalog, World) {
    let mut world = World::new(true);
    let mut catalog = Catalog::new([3; 16], true, 64 * UNIT);
    let create = Change::Create(NewArea {
        name: "db".into(),
        bytes: 8 * UNIT,
        owner: 1,
        group: 10,
        mode: 0o640,
        rate: Rate {
            operations: 9,
            bytes: 1 << 40,
        },
    });
    let work = catalog
        .begin(&create, user(1), quota(u64::MAX))
        .expect("there is room")
        .expect("there is work");
    catalog.end(&work);
    let export = |name: &str, readers, path: &str| Change::Export {
        name: name.into(),
        area: "db".into(),
        readers,
        path: path.into(),
    };
    for change in [
        export("public", Readers::All, ""),
        export("served", Readers::User(2), "/run/db.sock"),
    ] {
        assert_eq!(catalog.begin(&change, user(1), quota(0)), Ok(None));
    }
    catalog.save(&mut world).expect("memory");
    (catalog, world)
}

#[test]
fn every_flipped_bit_of_a_slot_is_made_good_and_both_slots_are_refused() {
    let (catalog, world) = furnished();
    let used = 64 + 56 + 2 + 2 * 20 + 6 + 6 + 12;
    for slot in 0..2 {
        for bit in 0..used * 8 {
            let mut damaged = world.clone();
            damaged.table[slot * KEPT + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                Catalog::read(&damaged),
                Ok((catalog.clone(), 1)),
                "bit {bit} of slot {slot}"
            );
            assert_eq!(Catalog::load(&mut damaged), Ok((catalog.clone(), 1)));
            assert_eq!(
                Catalog::read(&damaged),
                Ok((catalog.clone(), 0)),
                "it is made good"
            );
            damaged.table[bit / 8] ^= 1 << (bit % 8);
            damaged.table[KEPT + bit / 8] ^= 1 << (bit % 8);
            let refused = Catalog::read(&damaged).expect_err("both slots are damaged");
            assert!(
                matches!(refused, CatalogError::Damaged | CatalogError::NotACatalog),
                "bit {bit}: {refused}"
            );
        }
    }
}

#[test]
fn rights_are_those_of_the_mode_and_of_exports() {
    let (mut catalog, _) = furnished();
    let group = Who {
        user: 5,
        group: 10,
        is_admin: false,
    };
    let is_area =
        |opened: Result<Opened<'_>, CatalogRefusal>| matches!(opened, Ok(Opened::Area(AreaId(1), _)));
    for (who, name, write, expected) in [
        (user(1), "db", true, true),
        (group, "1/db", false, true),
        (group, "1/db", true, false),
        (group, "db", false, false),
        (user(2), "1/db", false, false),
        (ROOT, "1/db", true, true),
        (ROOT, "db", true, false),
        (user(1), "1/db", true, true),
        (user(1), "2/db", true, false),
        (user(1), "+1/db", true, false),
        (user(1), "/db", true, false),
        (user(2), "public", false, true),
        (user(2), "public", true, false),
        (user(1), "public", true, false),
        (user(3), "served", false, false),
    ] {
        assert_eq!(
            is_area(catalog.open(name, who, write)),
            expected,
            "{who:?} {name} {write}"
        );
    }
    assert_eq!(
        catalog.open("served", user(2), true),
        Ok(Opened::Elsewhere("/run/db.sock"))
    );
    assert_eq!(catalog.open("nothing", ROOT, false), Err(CatalogRefusal::Unknown));
    for change in [
        Change::Delete { name: "1/db".into() },
        Change::Resize {
            name: "1/db".into(),
            bytes: 32 * UNIT,
        },
        Change::Withdraw {
            name: "public".into(),
        },
        Change::Create(NewArea {
            name: "mine".into(),
            bytes: 8 * UNIT,
            owner: 1,
            group: 1,
            mode: 0o600,
            rate: Rate::UNLIMITED,
        }),
    ] {
        assert_eq!(
            catalog.begin(&change, user(2), quota(u64::MAX)),
            Err(CatalogRefusal::NotPermitted)
        );
    }
    let delete = Change::Delete { name: "db".into() };
    let work = catalog
        .begin(&delete, user(1), quota(0))
        .expect("it is the owner's")
        .expect("there is work");
    assert_eq!(catalog.open("db", user(1), false), Err(CatalogRefusal::Unknown));
    assert_eq!(
        catalog.open("public", user(1), false),
        Err(CatalogRefusal::Unknown),
        "exports go along"
    );
    assert_eq!(catalog.bytes_of(1), 8 * UNIT, "what leaves still counts");
    catalog.end(&work);
    assert_eq!(catalog.bytes_of(1), 0);
}

/// bug: a user could take a name that another user's program asks for, and keep that program out. fix: names are the owners'.
#[test]
fn users_have_names_of_their_own() {
    let (mut catalog, mut world) = furnished();
    let version = |world: &World| u32::from_le_bytes(world.table[8..12].try_into().expect("four bytes"));
    assert!(world.save(&mut catalog).is_ok());
    assert_eq!(version(&world), 1, "programs of version 1 read it");
    let create = |name: &str, owner| {
        Change::Create(NewArea {
            name: name.into(),
            bytes: 8 * UNIT,
            owner,
            group: owner,
            mode: 0o600,
            rate: Rate::UNLIMITED,
        })
    };
    // As another user's area, and as another user's export.
    for name in ["db", "public"] {
        let work = catalog.begin(&create(name, 2), user(2), Quota::UNLIMITED);
        catalog.end(&work.expect("it is the user's own name").expect("work"));
        let again = catalog.begin(&create(name, 2), user(2), Quota::UNLIMITED);
        assert_eq!(again, Err(CatalogRefusal::Exists));
    }
    let of = |name, who| match catalog.open(name, who, false) {
        Ok(Opened::Area(id, _)) => id.0,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(
        [of("db", user(1)), of("db", user(2)), of("2/db", ROOT)],
        [1, 2, 2]
    );
    assert_eq!(
        [of("public", user(1)), of("public", user(2))],
        [1, 3],
        "one's own comes first"
    );
    let export = |name: &str, area: &str| Change::Export {
        name: name.into(),
        area: area.into(),
        readers: Readers::All,
        path: String::new(),
    };
    let mut exporting = catalog.clone();
    for (name, area, who, expected) in [
        ("db", "db", user(1), Err(CatalogRefusal::Exists)),
        ("public", "db", user(2), Err(CatalogRefusal::Exists)),
        ("db", "2/db", user(3), Err(CatalogRefusal::NotPermitted)),
        ("new", "2/db", ROOT, Ok(None)),
    ] {
        assert_eq!(
            exporting.begin(&export(name, area), who, Quota::UNLIMITED),
            expected,
            "{name} {area}"
        );
    }
    assert!(world.save(&mut catalog).is_ok());
    assert_eq!(version(&world), 2);
    world.flying.clear();
    let (found, _) = Catalog::load(&mut world).expect("sound");
    assert_eq!(found, catalog);
    let delete = |name: &str| Change::Delete { name: name.into() };
    for (name, who) in [("2/db", ROOT), ("public", user(2))] {
        let work = catalog.begin(&delete(name), who, Quota::UNLIMITED);
        catalog.end(&work.expect("permitted").expect("work"));
    }
    assert!(world.save(&mut catalog).is_ok());
    assert_eq!(version(&world), 1);
    assert!(catalog.find("db", 1).is_some());
}

#[test]
fn names_sizes_modes_and_quotas_are_checked() {
    let create = |name: &str, bytes, mode| {
        Change::Create(NewArea {
            name: name.into(),
            bytes,
            owner: 1,
            group: 1,
            mode,
            rate: Rate::UNLIMITED,
        })
    };
    let long = "n".repeat(65);
    for (change, expected) in [
        (create("", 8 * UNIT, 0o600), CatalogRefusal::Name),
        (create("../x", 8 * UNIT, 0o600), CatalogRefusal::Name),
        (create("1/a", 8 * UNIT, 0o600), CatalogRefusal::Name),
        (create(&long, 8 * UNIT, 0o600), CatalogRefusal::Name),
        (create("a", 0, 0o600), CatalogRefusal::Size),
        (create("a", u64::MAX, 0o600), CatalogRefusal::Size),
        (create("a", u64::MAX / 2, 0o600), CatalogRefusal::Quota),
        (create("a", 21 * UNIT, 0o600), CatalogRefusal::Quota),
        (create("a", 8 * UNIT, 0o777), CatalogRefusal::Mode),
        (create("a", 8 * UNIT, 0o200), CatalogRefusal::Mode),
        (create("a", 8 * UNIT, 0o6000), CatalogRefusal::Mode),
        (create("db", 8 * UNIT, 0o600), CatalogRefusal::Exists),
        (create("public", 8 * UNIT, 0o600), CatalogRefusal::Exists),
    ] {
        let (mut catalog, _) = furnished();
        assert_eq!(
            catalog.begin(&change, user(1), quota(28 * UNIT)),
            Err(expected),
            "{change:?}"
        );
    }
    let (mut catalog, _) = furnished();
    let resize = |bytes| Change::Resize {
        name: "db".into(),
        bytes,
    };
    assert_eq!(
        catalog.begin(&resize(8 * UNIT), user(1), quota(0)),
        Ok(None),
        "it has that already"
    );
    assert_eq!(
        catalog.begin(&resize(9 * UNIT), user(1), quota(8 * UNIT)),
        Err(CatalogRefusal::Quota)
    );
    assert_eq!(
        catalog
            .begin(&resize(9 * UNIT), user(1), quota(u64::MAX))
            .map(|work| work.is_some()),
        Ok(true)
    );
    assert_eq!(
        catalog.begin(&resize(10 * UNIT), user(1), quota(u64::MAX)),
        Err(CatalogRefusal::Busy)
    );
    let no_room = create("a", 63 * UNIT, 0o600);
    assert_eq!(
        catalog.begin(&no_room, user(1), quota(u64::MAX)),
        Err(CatalogRefusal::NoRoom)
    );
}

#[test]
fn the_rates_of_a_users_areas_are_at_most_its_quota_and_no_limit_is_what_is_left() {
    let create = |name: &str, operations, bytes| {
        Change::Create(NewArea {
            name: name.into(),
            bytes: 8 * UNIT,
            owner: 5,
            group: 5,
            mode: 0o600,
            rate: Rate { operations, bytes },
        })
    };
    let limit = |name: &str, operations, bytes| Change::Limit {
        name: name.into(),
        rate: Rate { operations, bytes },
    };
    let (mut catalog, _) = furnished();
    let some = Quota {
        rate: Rate {
            operations: 100,
            bytes: 1000,
        },
        ..Quota::UNLIMITED
    };
    let mut ask = |change: &Change, quota| {
        catalog
            .begin(change, user(5), quota)?
            .inspect(|work| catalog.end(work));
        let name = match change {
            Change::Create(NewArea { name, .. }) | Change::Limit { name, .. } => name,
            other => panic!("{other:?}"),
        };
        let (_, area) = catalog.find(name, 5).expect("it was granted");
        Ok((area.rate.operations, area.rate.bytes))
    };
    assert_eq!(ask(&create("free", 0, 0), Quota::UNLIMITED), Ok((0, 0)));
    assert_eq!(ask(&create("a", 101, 1), some), Err(CatalogRefusal::Quota));
    assert_eq!(ask(&create("a", 1, 1001), some), Err(CatalogRefusal::Quota));
    assert_eq!(ask(&create("a", 60, 400), some), Ok((60, 400)));
    assert_eq!(ask(&create("b", 41, 0), some), Err(CatalogRefusal::Quota));
    assert_eq!(ask(&create("b", 0, 0), some), Ok((40, 600)), "what is left");
    assert_eq!(
        ask(&create("c", 1, 1), some),
        Err(CatalogRefusal::Quota),
        "nothing is left"
    );
    assert_eq!(ask(&limit("a", 61, 1), some), Err(CatalogRefusal::Quota));
    assert_eq!(ask(&limit("a", 0, 0), some), Ok((60, 400)), "its own, again");
    assert_eq!(ask(&limit("a", 10, 100), some), Ok((10, 100)));
    assert_eq!(ask(&limit("b", 90, 0), some), Ok((90, 900)));
    let mallory = catalog.begin(&limit("5/a", 1, 1), user(6), Quota::UNLIMITED);
    assert_eq!(mallory, Err(CatalogRefusal::NotPermitted));
}
