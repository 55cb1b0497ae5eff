//! Where new data go: to the fastest tier that has room, beside the tree, which is on device 0.
//!
//! Data that are granted or digested there must not take what calls were promised of device 0. So the budget of the client is divided. A part of
//! what is not promised, the *allowance*, counts as room for data. A digest puts data on device 0 only as far as the allowance goes. Its
//! sums are those of docs/format/fs.md, "Room": with all data on device 0 that the allowance has, the rest of it still has what was
//! promised of it.

use super::recover::devices_for_data;
use fs::client::budget::Cost;
use fs::client::{Budget, Client};
use fs::format::Tier;
use fs::log::Frame;
use fs::media::Volume;
use fs::op::{Action, Op, blocks_of};
use fs::tier::Options;
use fs::tree::Tree;

/// A part of what nothing was promised of is the allowance.
const ALLOWANCE_PART: u64 = 4;
/// Parts of device 0 that are left to the tree, beside its reserve, as long as data find room elsewhere.
const TREE_PARTS: u64 = 32;

#[derive(Debug)]
pub(crate) struct Placing {
    /// Of each device: its tier and its blocks.
    devices: Vec<(Tier, u64)>,
    /// Blocks of device 0 that the next digests may put data on.
    allowance: u64,
    /// Blocks of device 0 and of others that are about to be taken, by a move between tiers.
    withheld: (u64, u64),
}

impl Placing {
    pub fn of(volume: &Volume) -> Self {
        Self {
            devices: volume
                .devices
                .iter()
                .map(|device| (device.tier, device.blocks))
                .collect(),
            allowance: 0,
            withheld: (0, 0),
        }
    }

    /// Device 0 is of a faster tier than all others: data go there first.
    pub fn is_first_fast(&self) -> bool {
        let (first, others) = self.devices.split_first().expect("a file system has a device");
        !others.is_empty() && others.iter().all(|(tier, _)| *tier > first.0)
    }

    /// Blocks of device 0.
    pub fn first_blocks(&self) -> u64 {
        self.devices[0].1
    }

    /// Blocks of data that a device takes before the next tier gets them. Between the mark at which data move down and the end, so that there is
    /// time for that.
    fn room(&self, tree: &Tree, device: u8) -> u64 {
        let (tier, blocks) = self.devices[usize::from(device)];
        let mark = (Options::default().marks[tier as usize - 1].high + 1000) / 2;
        let used = blocks - tree.free(device);
        (blocks / 1000 * mark).saturating_sub(used)
    }

    /// Blocks of device 0 for data, of those that are not promised.
    fn for_data(&self, unpromised: u64) -> u64 {
        unpromised.saturating_sub(self.devices[0].1 / TREE_PARTS)
    }

    /// Blocks that are about to be taken are promised to nobody.
    pub fn withhold(&mut self, first: u64, others: u64) {
        self.withheld = (first, others);
    }

    /// The room of the tree, for all who have a log.
    pub fn budget(&self, tree: &Tree) -> Budget {
        let mut budget = Budget::of(tree, &devices_for_data(tree));
        budget.growth = budget.growth.saturating_sub(self.withheld.0);
        budget.deletion = budget.deletion.saturating_sub(self.withheld.0);
        budget.data = budget.data.saturating_sub(self.withheld.1);
        budget
    }

    /// Tells a client its budget.
    pub fn divide(&mut self, tree: &Tree, mut budget: Budget, client: &mut Client) {
        client.set_budget(budget);
        self.allowance = 0;
        if self.is_first_fast() {
            let (unpromised, _) = client.blocks_unpromised();
            // The rest is for promises, and for blocks that are granted for large data.
            self.allowance = self.room(tree, 0).min(self.for_data(unpromised) / ALLOWANCE_PART);
            budget.growth -= self.allowance;
            budget.data += self.allowance;
            client.set_budget(budget);
        }
    }

    /// Devices for the data of frames, in the order of preference.
    pub fn order(&mut self, tree: &Tree, frames: &[Frame]) -> Vec<u8> {
        let mut order: Vec<u8> = (1..tree.devices() as u8).collect();
        order.sort_by_key(|device| {
            (
                self.room(tree, *device) == 0,
                self.devices[usize::from(*device)].0,
            )
        });
        if self.allowance > 0 {
            let needed: u64 = frames
                .iter()
                .flat_map(Frame::ops)
                .flatten()
                .map(|op| blocks(&op))
                .sum();
            if needed <= self.allowance {
                self.allowance -= needed;
                order.insert(0, 0);
                return order;
            }
        }
        order.push(0);
        order
    }

    /// Devices that blocks for large data are granted on, in the order of preference, and how many.
    pub fn for_grants(&self, tree: &Tree, unpromised: u64) -> Vec<(u8, u64)> {
        let mut order: Vec<u8> = (0..tree.devices() as u8).collect();
        if !self.is_first_fast() {
            order.rotate_left(1);
        }
        let is_last = |device: u8| device == 0 && !self.is_first_fast();
        let sort = |device: &u8| (is_last(*device), self.devices[usize::from(*device)].0);
        order.sort_by_key(sort);
        let limit = |device: u8| match device {
            0 => self.room(tree, 0).min(self.for_data(unpromised)),
            _ => self.room(tree, device),
        };
        let below_mark = order.iter().map(|device| (*device, limit(*device)));
        let below_mark = below_mark.filter(|(device, _)| !is_last(*device));
        // Full tiers are better than none; device 0 has the tree.
        let full = devices_for_data(tree)
            .into_iter()
            .map(|device| (device, u64::MAX));
        below_mark.chain(full).collect()
    }
}

/// Blocks of data that an operation takes, at most.
fn blocks(op: &Op<'_>) -> u64 {
    let reserved = match &op.action {
        Action::Allocate { offset, bytes, .. } => blocks_of(offset.saturating_add(*bytes)) - offset / 4096,
        _ => 0,
    };
    Cost::of(op, (0, reserved)).data
}
