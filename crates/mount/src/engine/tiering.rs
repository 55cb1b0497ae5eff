//! What the engine knows of its tiers: the policy, what is pinned, what has moved. `migrator` drives it.

use super::digester::Keeper;
use super::touches::Touch;
use fs::format::{Key, Kind, Tier};
use fs::inode::Inode;
use fs::log::Ticket;
use fs::media::{Error, Volume};
use fs::tier::{Found, Options, Tiers, Unit, Usage};
use fs::tree::{Tree, View};
use fs::value::ExtentRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Entries of the tree that are looked at while a digest waits.
const ENTRIES_OF_STEP: usize = 2048;

pub(super) const ALL: [Tier; 3] = [Tier::Memory, Tier::Flash, Tier::Disk];

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
    /// The tree could not be read: nothing moves until the next opening.
    pub is_stopped: bool,
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
    pub(super) policy: Tiers,
    /// Of each device: its tier and its blocks.
    pub(super) devices: Vec<(Tier, u64)>,
    pub(super) pins: BTreeMap<u64, Tier>,
    /// Pinned files whose data may be elsewhere, and the frame with which the tree knows that.
    pub(super) to_pin: BTreeMap<u64, Ticket>,
    pub(super) damaged: BTreeSet<Unit>,
    pub(super) notes: Vec<Touch>,
    pub(super) looks: u32,
    /// The files have been looked at since the opening: pins are known.
    pub(super) has_looked: bool,
    pub(super) failed: Option<Tier>,
}

/// A look at all files: where it goes on, and what is found of the unit that it is in.
pub(super) struct Round {
    pub(super) next: Option<Key>,
    pub(super) pin: (u64, Option<Tier>),
    pub(super) found: Option<Found>,
    pub(super) pins: BTreeMap<u64, Tier>,
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

    pub(super) fn devices_of(&self, tier: Tier) -> Vec<u8> {
        let all = (0..).zip(&self.devices);
        all.filter(|(_, (of, _))| *of == tier)
            .map(|(device, _)| device)
            .collect()
    }

    fn tier_of(&self, device: u8) -> Tier {
        self.devices[usize::from(device)].0
    }

    /// Tells the policy how full the tiers are.
    pub(super) fn see_usage(&mut self, tree: &Tree) -> Vec<TierStatus> {
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
    pub(super) fn see_touches(&mut self, pinned: Vec<(u64, Option<Tier>)>, newest: Ticket) {
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
    pub(super) fn step(&mut self, keeper: &mut Keeper, round: &mut Round) -> Result<(), Error> {
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

/// A tier as commands and attributes have it.
pub fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Memory => "nvm",
        Tier::Flash => "ssd",
        Tier::Disk => "hdd",
    }
}
