//! Room for what was acknowledged: a call is refused when the digest might find none for it.
//!
//! Each operation that is logged *promises* blocks: as many as the digest may take for it, at most. A call is taken if all promises and its
//! own fit into the [`Budget`]. A promise ends when its operation is in the tree, and the budget is then read anew. `docs/format/fs.md`,
//! "Room", has the argument.

use crate::edit::STOCK;
use crate::node::{CHILDREN_MIN, LEVELS_MAX};
use crate::op::{Action, Allocation, Op, blocks_of};
use crate::tree::Tree;
use crate::value::ExtentRecord;
use std::collections::VecDeque;

/// Blocks that a log's operations may take until the budget is read anew. A giver of budgets to several logs divides this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Of device 0, for what lets files grow.
    pub growth: u64,
    /// Of device 0, for what only deletes: the reserve is among these.
    pub deletion: u64,
    /// Of other devices, for data of records.
    pub data: u64,
    /// Data that find no room there go to device 0.
    pub is_shared: bool,
    /// That one changed key takes, at most.
    pub key: u64,
    /// That come free with the next commits.
    pub held: u64,
    /// Nodes of the tree, at most.
    pub nodes: u64,
    /// The root that changes are for.
    pub generation: u64,
}

/// Keys that the digest of one operation changes, at most: what it asks for room in front of each.
pub const KEYS_OF_OPERATION: u64 = 9;
/// Blocks of a key for each level: see [`Tree::places_max`].
const BLOCKS_OF_LEVEL: u64 = 3;
/// What the reserve grows with a level: see [`Tree::reserve_blocks`].
const RESERVE_OF_LEVEL: u64 = 52;
/// Roots whose nodes are there at a time: the one that is made, the newest, and the one before it.
const ROOTS: u64 = 3;
/// Bytes of a leaf that one changed key adds, at most, and one record of an extent.
const BYTES_OF_KEY: u64 = 320;
const BYTES_OF_RECORD: u64 = 64;
/// Bytes that are added between two splits of nodes, at least, but for one split of each node.
const BYTES_OF_SPLIT: u64 = 986;

impl Budget {
    /// Of a tree for one log, whose records' data go to `devices`.
    ///
    /// # Panics
    /// If device 0 is among them and not the last: data would take what the tree needs while there is room elsewhere.
    pub fn of(tree: &Tree, devices: &[u8]) -> Self {
        let is_shared = devices.last() == Some(&0);
        let others = &devices[..devices.len() - usize::from(is_shared)];
        assert!(!others.contains(&0), "device 0 is the last one that data go to");
        let known = |device: &&u8| usize::from(**device) < tree.devices();
        let room = |device: u8| tree.space.room(device);
        let key = tree.places_max() as u64;
        let nodes = tree.nodes();
        let levels = levels_more(tree, nodes);
        let checks = KEYS_OF_OPERATION * (key + levels * BLOCKS_OF_LEVEL);
        let held = |device: u8| tree.free(device) - room(device);
        Self {
            growth: tree
                .room()
                .saturating_sub(tree.reserve_blocks() + levels * RESERVE_OF_LEVEL + checks),
            deletion: tree.room().saturating_sub(checks),
            data: others.iter().filter(known).map(|device| room(*device)).sum(),
            is_shared,
            key: key + (levels + 1) * BLOCKS_OF_LEVEL,
            held: held(0)
                + others
                    .iter()
                    .filter(known)
                    .map(|device| held(*device))
                    .sum::<u64>(),
            nodes,
            generation: tree.generation(),
        }
    }
}

/// Levels that a tree grows before a budget is read anew, at most: it has no more leaves than splits make of what it has, each of which has
/// promised a block of each root, and has room in each node for so many children at least.
fn levels_more(tree: &Tree, nodes: u64) -> u64 {
    let leaves = nodes.saturating_mul(2).saturating_add(tree.room() / ROOTS);
    // The one on top has two children.
    let children = |level: u64| 2 * CHILDREN_MIN.saturating_pow(level.saturating_sub(1) as u32);
    let level = u64::from(tree.levels()).saturating_sub(1);
    let more = (1..).find(|more| children(level + more) > leaves);
    more.expect("a level more has no room") - 1
}

impl Budget {
    /// Blocks that the tree takes for changes of so many keys and records of extents, at most, however many commits there are between.
    /// `docs/format/fs.md`, "Room", has the argument.
    pub fn for_tree(&self, keys: u64, records: u64) -> u64 {
        let each = keys.saturating_mul(self.key).saturating_add(records);
        let bytes = keys.saturating_mul(BYTES_OF_KEY);
        let bytes = bytes.saturating_add(records.saturating_mul(BYTES_OF_RECORD));
        let leaves = self
            .nodes
            .saturating_mul(2)
            .saturating_add(bytes / BYTES_OF_SPLIT);
        let nodes = leaves.saturating_add(leaves / (CHILDREN_MIN - 1) + LEVELS_MAX as u64);
        each.min(nodes.saturating_mul(ROOTS).saturating_add(2 * STOCK as u64))
    }

    /// Blocks that files can take, with what will come free. Calls that are not in the tree yet were promised far more than they take: that is
    /// no news for `df`.
    pub(crate) fn for_files(&self) -> u64 {
        // The call that takes the last blocks has its promise, too.
        let first = match self.is_shared {
            true => self.growth.saturating_sub(KEYS_OF_CALL * self.key + EDGES),
            false => 0,
        };
        self.data + self.held + first - first / DATA_OF_METADATA
    }
}

/// What operations may take, in units that do not depend on the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Keys that change.
    pub keys: u64,
    /// Records of extents.
    pub records: u64,
    /// Blocks of data.
    pub data: u64,
    /// Operations that let files grow.
    pub growing: u64,
}

impl Cost {
    /// Of an operation. Of one that reserves blocks, `gaps` are the ranges of blocks that are not there, and how many these blocks are.
    pub fn of(op: &Op<'_>, gaps: (u64, u64)) -> Self {
        let grows = |keys: u64, records: u64, data: u64| Self {
            keys,
            records,
            data,
            growing: 1,
        };
        let deletes = |keys: u64| Self {
            keys,
            ..Self::default()
        };
        let touched = |offset: u64, bytes: u64| blocks_of(offset.saturating_add(bytes)) - offset / 4096;
        let extents = |blocks: u64| blocks.div_ceil(ExtentRecord::BLOCKS_MAX);
        match &op.action {
            // The inode, its name, the directory, and a target, which has as many bytes as three keys; a long target is data.
            Action::Create { target, .. } => match target.is_empty() {
                true => grows(3, 0, 0),
                false => grows(6, EDGES + 1, 1),
            },
            Action::Link { .. } => grows(4, 0, 0),
            // The name, the directory, the inode, the orphan; and both ends of what a deleted inode has.
            Action::Unlink { .. } => deletes(7),
            Action::Rename { .. } => grows(10, 0, 0),
            Action::Set(_) => deletes(1),
            Action::Attribute { value: None, .. } => deletes(2),
            // The inode, and the attribute: a value has as many bytes as four keys.
            Action::Attribute { .. } => grows(5, 0, 0),
            Action::Release => deletes(4),
            Action::Truncate { size } if size % 4096 == 0 => Self {
                records: EDGES,
                ..deletes(3)
            },
            Action::Truncate { .. } => grows(3, EDGES + 1, 1),
            Action::Write { offset, data } => {
                let blocks = touched(*offset, data.len() as u64);
                grows(3, EDGES + blocks, blocks)
            }
            Action::Place { sums, .. } => grows(3, EDGES + extents(sums.len() as u64), 0),
            Action::Allocate {
                what: Allocation::Reserve,
                ..
            } => grows(3, EDGES + gaps.0 + extents(gaps.1), gaps.1),
            Action::Allocate {
                what: Allocation::Hole,
                ..
            } => grows(3, EDGES, 2),
            Action::Allocate { offset, bytes, .. } => {
                let blocks = touched(*offset, *bytes);
                grows(3, EDGES + extents(blocks), blocks + 2)
            }
        }
    }

    /// Of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            keys: self.keys.saturating_add(other.keys),
            records: self.records.saturating_add(other.records),
            data: self.data.saturating_add(other.data),
            growing: self.growing + other.growing,
        }
    }

    fn less(self, other: Self) -> Self {
        Self {
            keys: self.keys - other.keys,
            records: self.records - other.records,
            data: self.data - other.data,
            growing: self.growing - other.growing,
        }
    }
}

/// Records of the extents that the ends of a range cut, and of the changed ranges beside them.
const EDGES: u64 = 8;
/// Keys of a call that takes room for data: three of the data, one of the mode, five of an attribute.
const KEYS_OF_CALL: u64 = 9;
/// Blocks of data for each block that describes them, at least: a record of a single block, with its key, has 33 bytes, and a node is half full.
const DATA_OF_METADATA: u64 = 62;
/// Roots after a refusal while nothing is promised, after which room does not come any more: what a commit frees is free two commits later.
const WAITS_MAX: u32 = 3;

/// What is promised.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    budget: Budget,
    /// Of each frame that is not in the tree.
    frames: VecDeque<(u64, Cost)>,
    sum: Cost,
    /// The root before which a call was refused while nothing was promised; how many there were since.
    refused: Option<u64>,
    waits: u32,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// A digest and two commits may make some.
    Yet,
    /// The devices are full.
    Ever,
}

impl Ledger {
    pub(crate) fn set(&mut self, budget: Budget) {
        if self.refused.is_some_and(|before| before != budget.generation) {
            self.refused = None;
            self.waits += 1;
        }
        self.budget = budget;
    }

    pub(crate) fn budget(&self) -> Budget {
        self.budget
    }

    /// Blocks of device 0 for the tree, and for data.
    fn blocks(&self, cost: Cost) -> u64 {
        let Budget { data, is_shared, .. } = self.budget;
        // The position of the log is a key of each digest, which takes a frame at least.
        let keys = cost.keys.saturating_add(self.frames.len() as u64 + 1);
        let tree = self.budget.for_tree(keys, cost.records);
        match (cost.data.saturating_sub(data), is_shared) {
            (1.., false) => u64::MAX,
            (spilled, _) => tree.saturating_add(spilled),
        }
    }

    fn fits(&self, sum: Cost) -> bool {
        let blocks = self.blocks(sum);
        let is_deletion = sum.growing == 0 && blocks <= self.budget.deletion;
        blocks <= self.budget.growth || is_deletion
    }

    /// Whether there is room for more beside all that is promised.
    pub(crate) fn admit(&mut self, cost: Cost) -> Result<(), NoRoom> {
        if self.fits(self.sum.and(cost)) {
            self.waits = 0;
            return Ok(());
        }
        if !self.frames.is_empty() {
            return Err(NoRoom::Yet);
        }
        if self.budget.held > 0 && self.waits < WAITS_MAX {
            self.refused = Some(self.budget.generation);
            return Err(NoRoom::Yet);
        }
        self.waits = 0;
        Err(NoRoom::Ever)
    }

    /// Blocks of device 0 that nothing was promised of.
    pub(crate) fn first_left(&self) -> u64 {
        self.budget.growth.saturating_sub(self.blocks(self.sum))
    }

    /// Blocks that are promised: of device 0, and of all others.
    pub(crate) fn promised(&self) -> (u64, u64) {
        (self.blocks(self.sum), self.sum.data.min(self.budget.data))
    }

    /// Whether half of what calls may take is promised.
    pub(crate) fn is_half_promised(&self) -> bool {
        !self.frames.is_empty() && self.first_left() < self.budget.growth / 2
    }

    /// The same of the other devices that data go to.
    pub(crate) fn data_left(&self) -> u64 {
        self.budget.data.saturating_sub(self.sum.data)
    }

    /// Notes the promises of a frame.
    pub(crate) fn promise(&mut self, position: u64, cost: Cost) {
        self.sum = self.sum.and(cost);
        match self.frames.back_mut() {
            Some((last, sum)) if *last == position => *sum = sum.and(cost),
            _ => self.frames.push_back((position, cost)),
        }
    }

    /// Frames up to a position are in the tree.
    pub(crate) fn digested(&mut self, position: u64) {
        while let Some((_, cost)) = self.frames.front().filter(|(at, _)| *at <= position) {
            self.sum = self.sum.less(*cost);
            self.frames.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: calls of several threads were refused while nothing was promised, each of them counted, and the last one was told that the
    /// devices are full before there was a commit. What was held came free with the next one.
    #[test]
    fn a_call_waits_for_commits_however_many_calls_are_refused() {
        let mut budget = Budget {
            key: 10,
            held: 1_000,
            nodes: 1_000,
            generation: 5,
            ..Budget::default()
        };
        let mut ledger = Ledger::default();
        ledger.set(budget);
        let cost = Cost {
            keys: 3,
            growing: 1,
            ..Cost::default()
        };
        for _ in 0..2 {
            for _ in 0..20 {
                assert_eq!(ledger.admit(cost), Err(NoRoom::Yet));
                ledger.set(budget);
            }
            budget.generation += 1;
            ledger.set(budget);
        }
        budget.growth = 100;
        ledger.set(budget);
        assert_eq!(ledger.admit(cost), Ok(()));
        // Half of it is promised, until that is in the tree.
        assert!(!ledger.is_half_promised());
        ledger.promise(7, cost);
        ledger.promise(8, cost);
        assert!(ledger.is_half_promised());
        ledger.digested(8);
        assert!(!ledger.is_half_promised());
        budget.growth = 0;
        for _ in 0..WAITS_MAX {
            ledger.set(budget);
            assert_eq!(ledger.admit(cost), Err(NoRoom::Yet));
            budget.generation += 1;
        }
        ledger.set(budget);
        assert_eq!(ledger.admit(cost), Err(NoRoom::Ever));
    }
}
