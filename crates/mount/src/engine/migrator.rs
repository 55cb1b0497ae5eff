//! Data move between tiers, by a thread of its own: `fs::tier` decides, `fs::migrate` moves, this drives both.
//!
//! A move takes the keeper twice, for a short time: to reserve blocks, and to change the tree and commit. It copies without any lock. So
//! calls go on, and digests do, too. The lock of the state is taken to swap what was noted, and to withhold room.
//!
//! # Room
//! What a move takes was promised to nobody: while the keeper is held, the room is withheld from the budget of calls
//! ([`Placing`](super::placing::Placing)), and then reserved. Of what is left on device 0 a move takes a half at most, for the tree.

use super::digester::Keeper;
use super::failure::Failure;
use super::shared::Shared;
use super::state::Locked;
use super::touches::Touch;
use fs::format::{BLOCK_BYTES, Key, Kind, Tier};
use fs::inode::Inode;
use fs::log::Ticket;
use fs::media::{Error, Volume};
use fs::migrate::{Damaged, Move, Moved, Target};
use fs::tier::{Batch, Found, Options, Order, Tiers, Unit, Usage};
use fs::tree::{Tree, View};
use fs::value::ExtentRecord;
use os::sync::{MutexGuard, PoisonError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Units get colder after so many looks, also if no tier is too full.
const LOOKS_OF_ROUND: u32 = 60;
/// Entries of the tree that are looked at while a digest waits.
const ENTRIES_OF_STEP: usize = 2048;
/// Blocks of one move, which is one commit: 64 MiB. What a stop of the engine waits for.
const MOVE_BLOCKS: u64 = 1 << 14;
/// Damaged units that are remembered, so that they are told once. Others are tried and told again.
const DAMAGED_MAX: usize = 4096;

const ALL: [Tier; 3] = [Tier::Memory, Tier::Flash, Tier::Disk];

/// What has moved since the opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// The tiers that there are, the fastest one first.
    pub tiers: Vec<TierStatus>,
    /// Blocks that went to slower tiers.
    pub down_blocks: u64,
    /// Blocks that went to faster tiers.
    pub up_blocks: u64,
    /// Moves, each with a commit.
    pub moves: u64,
    /// The time they took.
    pub time: Duration,
    /// Blocks that are ordered, and have not moved yet.
    pub waiting_blocks: u64,
    /// Blocks that changed while they were copied, or for which there was no room.
    pub dropped_blocks: u64,
    /// Damaged blocks that stay where they are.
    pub damaged_blocks: u64,
    /// Why a tier gets nothing any more: its device has refused a write.
    pub failed: Option<Tier>,
}

/// A tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierStatus {
    /// Which.
    pub tier: Tier,
    /// Blocks of it.
    pub usage: Usage,
    /// It is too full, and nothing can leave it: lower tiers are full, or the rest is pinned.
    pub is_stuck: bool,
}

pub(crate) struct Migrator {
    policy: Tiers,
    /// Of each device: its tier and its blocks.
    devices: Vec<(Tier, u64)>,
    pins: BTreeMap<u64, Tier>,
    /// Pinned files whose data may be elsewhere, and the frame with which the tree knows that.
    to_pin: BTreeMap<u64, Ticket>,
    damaged: BTreeSet<Unit>,
    notes: Vec<Touch>,
    looks: u32,
    /// The files have been looked at since the opening: pins are known.
    has_looked: bool,
    failed: Option<Tier>,
}

/// A look at all files: where it goes on, and what is found of the unit that it is in.
struct Round {
    next: Option<Key>,
    pin: (u64, Option<Tier>),
    found: Option<Found>,
    pins: BTreeMap<u64, Tier>,
}

impl Migrator {
    /// None if all devices are of one tier.
    pub fn of(volume: &Volume) -> Option<Self> {
        let devices: Vec<_> = volume
            .devices
            .iter()
            .map(|device| (device.tier, device.blocks))
            .collect();
        let tiers: BTreeSet<Tier> = devices.iter().map(|(tier, _)| *tier).collect();
        if tiers.len() < 2 {
            return None;
        }
        let total = |of: Tier| {
            devices
                .iter()
                .filter(|(tier, _)| *tier == of)
                .map(|(_, blocks)| blocks)
                .sum()
        };
        let usage = |tier| Usage {
            used: 0,
            total: total(tier),
        };
        let tiers: Vec<_> = tiers.iter().map(|tier| (*tier, usage(*tier))).collect();
        Some(Self {
            policy: Tiers::new(Options::default(), &tiers),
            devices,
            pins: BTreeMap::new(),
            to_pin: BTreeMap::new(),
            damaged: BTreeSet::new(),
            notes: Vec::new(),
            looks: 0,
            has_looked: false,
            failed: None,
        })
    }

    fn devices_of(&self, tier: Tier) -> Vec<u8> {
        let all = (0..).zip(&self.devices);
        all.filter(|(_, (of, _))| *of == tier)
            .map(|(device, _)| device)
            .collect()
    }

    fn tier_of(&self, device: u8) -> Tier {
        self.devices[usize::from(device)].0
    }

    /// Tells the policy how full the tiers are.
    fn see_usage(&mut self, tree: &Tree) -> Vec<TierStatus> {
        let mut seen = Vec::new();
        for tier in ALL {
            let devices = self.devices_of(tier);
            if devices.is_empty() {
                continue;
            }
            let total = devices
                .iter()
                .map(|device| self.devices[usize::from(*device)].1)
                .sum();
            let free: u64 = devices.iter().map(|device| tree.free(*device)).sum();
            let usage = Usage {
                used: total - free,
                total,
            };
            self.policy.set_usage(tier, usage);
            let is_stuck = self.policy.is_stuck(tier);
            seen.push(TierStatus {
                tier,
                usage,
                is_stuck,
            });
        }
        seen
    }

    /// Tells the policy what was touched, and which files are pinned.
    fn see_touches(&mut self, pinned: Vec<(u64, Option<Tier>)>, newest: Ticket) {
        for (inode, tier) in pinned {
            match tier {
                Some(tier) => {
                    self.pins.insert(inode, tier);
                    self.to_pin.insert(inode, newest);
                }
                None => {
                    self.pins.remove(&inode);
                }
            }
        }
        for (unit, device) in std::mem::take(&mut self.notes) {
            let pin = self.pins.get(&unit.0).copied();
            // New data of a pinned file go where all new data go, and from there to their tier.
            if pin.is_some() && device.is_none() {
                self.to_pin.insert(unit.0, newest);
            }
            if self.damaged.contains(&unit) {
                continue;
            }
            let fastest = self.devices.iter().map(|(tier, _)| *tier).min();
            let tier = device.map(|device| self.tier_of(device)).or(fastest);
            self.policy.touch(unit, tier.expect("there are devices"), pin);
        }
    }

    fn offer(&mut self, found: &Found) {
        if !self.damaged.contains(&found.unit) {
            self.policy.offer(found);
        }
    }

    /// A step of a look at all files.
    fn step(&mut self, keeper: &mut Keeper, round: &mut Round) -> Result<(), Error> {
        let Some(first) = round.next else {
            return Ok(());
        };
        let last = Key::new(u64::MAX, Kind::Extent, u64::MAX);
        let mut entries = keeper.tree.range(View::Pending, first..=last);
        for _ in 0..ENTRIES_OF_STEP {
            let Some((key, value)) = entries.next(&mut keeper.tree, &keeper.disks)? else {
                round.next = None;
                break;
            };
            round.next = Some(Key::new(key.inode, key.kind, key.number.saturating_add(1)));
            self.see_entry(round, key, &value);
        }
        if round.next.is_none()
            && let Some(found) = round.found.take()
        {
            self.offer(&found);
        }
        Ok(())
    }

    fn see_entry(&mut self, round: &mut Round, key: Key, value: &[u8]) {
        match key.kind {
            Kind::Inode => {
                let pin = Inode::parse(value)
                    .ok()
                    .and_then(|inode| Tier::from_u8(inode.tier));
                round.pin = (key.inode, pin);
                round.pins.extend(pin.map(|pin| (key.inode, pin)));
            }
            Kind::Extent => {
                // A record that makes no sense is the check's to tell.
                let Ok(extent) = ExtentRecord::parse(value) else {
                    return;
                };
                let unit = (key.inode, key.number / Options::default().unit_blocks);
                let pin = round.pin.1.filter(|_| round.pin.0 == key.inode);
                if round.found.is_some_and(|found| found.unit != unit)
                    && let Some(found) = round.found.take()
                {
                    self.offer(&found);
                }
                let blocks = [0; 3];
                let found = round.found.get_or_insert(Found { unit, pin, blocks });
                let tier = self.tier_of(extent.run.place.device());
                found.blocks[tier as usize - 1] += extent.run.blocks;
            }
            _ => {}
        }
    }
}

impl Shared {
    /// The thread that moves data.
    pub(super) fn migrate_in_turn(&self) {
        let Some(every) = self.options.migrates_every else {
            return;
        };
        loop {
            let state = self.locked.lock();
            if state.is_stopping {
                return;
            }
            let state = Locked::sleep(&self.locked.tiers, state, every);
            let is_over = state.is_stopping;
            let may_move = state.failure.is_none();
            drop(state);
            if is_over {
                return;
            }
            if may_move {
                self.migrate_once();
            }
        }
    }

    /// Looks at what was touched, and moves what the policy wants moved.
    pub(super) fn migrate_once(&self) {
        let Some(migrator) = &self.migrator else {
            return;
        };
        let mut migrator = migrator.lock().unwrap_or_else(PoisonError::into_inner);
        let migrator = &mut *migrator;
        let mut state = self.locked.lock();
        let (pinned, newest) = (state.touches.take(&mut migrator.notes), state.newest);
        drop(state);
        migrator.see_touches(pinned, newest);
        let before = self.migration().moves;
        if let Err(error) = self.migrate(migrator) {
            self.cannot_migrate(error);
            return;
        }
        let has_moved = self.migration().moves > before;
        let mut keeper = self.keeper();
        // What has moved away is free after a second root without it.
        let done = if has_moved {
            keeper.commit(&self.locked)
        } else {
            Ok(())
        };
        let tiers = migrator.see_usage(&keeper.tree);
        drop(keeper);
        self.migration().tiers = tiers;
        if let Err(error) = done {
            self.cannot_migrate(error);
        }
    }

    fn cannot_migrate(&self, error: Error) {
        if self.is_stopping() {
            return;
        }
        let mut state = self.locked.lock();
        let is_first = state.failure.is_none();
        state.failure.get_or_insert(Failure::Digest);
        drop(state);
        self.locked.room.notify_all();
        if is_first {
            (self.options.tell)(&format!(
                "data could not be moved between tiers, and files can be read only: {error}"
            ));
        }
    }

    fn is_stopping(&self) -> bool {
        self.locked.lock().is_stopping
    }

    fn migrate(&self, migrator: &mut Migrator) -> Result<(), Error> {
        let tiers = migrator.see_usage(&self.keeper().tree);
        self.migration().tiers = tiers;
        self.pin(migrator)?;
        self.move_all(migrator, true)?;
        migrator.looks += 1;
        // Each round takes what the one before has left: warmer units.
        while (!migrator.has_looked || migrator.policy.wants_round()) && !self.is_stopping() {
            let before = self.migration().moves;
            let batches = self.round(migrator)?;
            (migrator.has_looked, migrator.looks) = (true, 0);
            let tiers = migrator.see_usage(&self.keeper().tree);
            self.migration().tiers = tiers;
            // What is ordered and cannot be moved now may be moved after more commits.
            if batches > 0 && self.migration().moves == before {
                break;
            }
        }
        if migrator.looks >= LOOKS_OF_ROUND {
            migrator.looks = 0;
            migrator.policy.end_of_round();
        }
        Ok(())
    }

    /// Looks at the pinned files whose data may be elsewhere, as soon as the tree has these.
    fn pin(&self, migrator: &mut Migrator) -> Result<(), Error> {
        let digested = self.keeper().frame;
        let ready = migrator.to_pin.iter().filter(|(_, frame)| **frame <= digested);
        let ready: Vec<u64> = ready.map(|(inode, _)| *inode).collect();
        for inode in ready {
            migrator.to_pin.remove(&inode);
            let mut round = Round {
                next: Some(Key::new(inode, Kind::Inode, 0)),
                pin: (inode, None),
                found: None,
                pins: BTreeMap::new(),
            };
            while round.next.is_some_and(|key| key.inode == inode) && !self.is_stopping() {
                migrator.step(&mut self.keeper(), &mut round)?;
            }
        }
        Ok(())
    }

    /// Shows the policy all files, and moves what it orders.
    /// How many batches it was.
    fn round(&self, migrator: &mut Migrator) -> Result<u64, Error> {
        let mut round = Round {
            next: Some(Key::new(1, Kind::Inode, 0)),
            pin: (0, None),
            found: None,
            pins: BTreeMap::new(),
        };
        let mut batches = 0;
        while round.next.is_some() {
            if self.is_stopping() {
                return Ok(batches);
            }
            migrator.step(&mut self.keeper(), &mut round)?;
            batches += self.move_all(migrator, false)?;
        }
        // What was pinned meanwhile has been noted, and comes with the next look.
        migrator.pins = round.pins;
        batches += self.move_all(migrator, true)?;
        migrator.policy.end_of_round();
        Ok(batches)
    }

    /// Moves all that is ordered. What is less than a unit waits for more, unless this is the last.
    fn move_all(&self, migrator: &mut Migrator, is_last: bool) -> Result<u64, Error> {
        let mut batches = 0;
        while let Some(batch) = migrator.policy.next_batch(is_last) {
            self.migration().waiting_blocks += batch.blocks();
            let done = self.move_batch(migrator, &batch);
            self.migration().waiting_blocks -= batch.blocks();
            migrator.policy.done(&batch);
            let tiers = migrator.see_usage(&self.keeper().tree);
            self.migration().tiers = tiers;
            done?;
            batches += 1;
        }
        Ok(batches)
    }

    fn move_batch(&self, migrator: &mut Migrator, batch: &Batch) -> Result<(), Error> {
        for from in ALL {
            let orders = batch.orders.iter().filter(|order| order.from == from);
            let mut rest: Vec<&Order> = orders.collect();
            while !rest.is_empty() {
                let mut blocks = 0;
                let fits = rest.iter().take_while(|order| {
                    blocks += order.count;
                    blocks <= MOVE_BLOCKS
                });
                let count = fits.count().max(1);
                let ranges: Vec<_> = rest
                    .drain(..count)
                    .map(|order| (order.inode, order.blocks.clone()))
                    .collect();
                if self.is_stopping() || migrator.failed == Some(batch.to) {
                    return Ok(());
                }
                self.move_some(migrator, (from, batch.to), &ranges)?;
            }
        }
        Ok(())
    }

    /// One move: reserve, copy, verify, change the tree, commit.
    fn move_some(
        &self,
        migrator: &mut Migrator,
        (from, to): (Tier, Tier),
        ranges: &[(u64, Range<u64>)],
    ) -> Result<(), Error> {
        let began = Instant::now();
        let devices = migrator.devices_of(from);
        let planned = {
            let mut keeper = self.keeper();
            let to = migrator
                .devices_of(to)
                .into_iter()
                .max_by_key(|device| keeper.tree.free(*device));
            let to = to.expect("an order is to a tier that there is");
            let planned = self.plan(&mut keeper, (&devices, ranges), to);
            keeper.tell_room(&mut self.locked.lock());
            planned?
        };
        let Some(mut planned) = planned else {
            self.forget_withheld();
            return Ok(());
        };
        let copied = planned.copy(&mut self.disks.clone());
        let mut keeper = self.keeper();
        if let Err(error) = copied {
            let given_up = planned.give_up(&mut keeper.tree, &self.disks);
            drop(keeper);
            self.forget_withheld();
            self.cannot_write(migrator, to, error);
            return given_up;
        }
        let mut disks = self.disks.clone();
        let moved = planned.finish(&mut keeper.tree, &mut disks)?;
        keeper.placing.withhold(0, 0);
        keeper.commit(&self.locked)?;
        drop(keeper);
        self.note(migrator, (from, to), (&moved, began.elapsed()));
        Ok(())
    }

    /// Withholds room, and reserves it. None if there is nothing to move, or no room.
    fn plan(
        &self,
        keeper: &mut MutexGuard<'_, Keeper>,
        (from, ranges): (&[u8], &[(u64, Range<u64>)]),
        device: u8,
    ) -> Result<Option<Move>, Error> {
        let mut state = self.locked.lock();
        let (first, others) = state.client.blocks_unpromised();
        let of_tree = first / 2;
        let of_data = if device == 0 { first / 4 } else { others };
        let taken_first = of_tree / if device == 0 { 2 } else { 1 };
        match device {
            0 => keeper.placing.withhold(taken_first + of_data, 0),
            _ => keeper.placing.withhold(taken_first, of_data),
        }
        let key = state.client.budget().key.max(1);
        keeper.tell_room(&mut state);
        drop(state);
        // A digest may have taken back what a reader has begun to read.
        keeper.gate.pass();
        let target = Target {
            device,
            run_blocks_min: match self.volume.devices[usize::from(device)].tier {
                Tier::Disk => Options::default().unit_blocks,
                Tier::Memory | Tier::Flash => 1,
            },
            blocks_max: of_data,
        };
        let keeper = &mut **keeper;
        let planned = Move::plan(&mut keeper.tree, &keeper.disks, (from, ranges), target)?;
        // What is reserved needs to be withheld no more.
        keeper.placing.withhold(taken_first, 0);
        let Some(mut planned) = planned else {
            return Ok(None);
        };
        planned.limit_keys(&mut keeper.tree, &keeper.disks, taken_first / key)?;
        Ok(Some(planned))
    }

    fn forget_withheld(&self) {
        let mut keeper = self.keeper();
        keeper.placing.withhold(0, 0);
        keeper.tell_room(&mut self.locked.lock());
    }

    /// The device does not take what is to go there: nothing more goes there.
    fn cannot_write(&self, migrator: &mut Migrator, to: Tier, error: Error) {
        migrator.failed = Some(to);
        self.migration().failed = Some(to);
        (self.options.tell)(&format!("no more data move to {}: {error}", tier_name(to)));
    }

    fn note(&self, migrator: &mut Migrator, (from, to): (Tier, Tier), (moved, time): (&Moved, Duration)) {
        let mut migration = self.migration();
        migration.moves += u64::from(moved.blocks > 0);
        migration.time += time;
        migration.dropped_blocks += moved.dropped;
        match to > from {
            true => migration.down_blocks += moved.blocks,
            false => migration.up_blocks += moved.blocks,
        }
        let mut told = Vec::new();
        for damaged in &moved.damaged {
            let unit = (damaged.inode, damaged.block / Options::default().unit_blocks);
            if migrator.damaged.len() >= DAMAGED_MAX || migrator.damaged.insert(unit) {
                migration.damaged_blocks += 1;
                told.push(*damaged);
            }
        }
        drop(migration);
        for Damaged { inode, block, place } in told {
            (self.options.tell)(&format!(
                "a damaged block stays on {}: block {block} of inode {inode}, at {place}, of {} bytes",
                tier_name(from),
                BLOCK_BYTES
            ));
        }
    }
}

/// A tier as commands and attributes have it.
pub fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Memory => "nvm",
        Tier::Flash => "ssd",
        Tier::Disk => "hdd",
    }
}
