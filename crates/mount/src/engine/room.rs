//! How the room is divided among processes, and what is reserved for each.

use super::log::Log;
use super::placing::Placing;
use super::reserve::level;
use super::state::State;
use crate::media::Disks;
use fs::client::Budget;
use fs::client::budget::KEYS_OF_OPERATION;
use fs::edit::Room;
use fs::format::{Key, Kind};
use fs::media::Error;
use fs::tree::{Tree, View};
use fs::value::{LogRecord, Part};
use std::collections::BTreeMap;

/// Keys that a call which deletes promises, and the log's position: so many can be deleted by each process, however full the devices are.
const KEYS_OF_DELETION: u64 = 8;
/// Parts of device 0 that are kept for deletions of all processes, at most.
const DELETION_PARTS: u64 = 16;
/// Commits whose own blocks are held at a time.
const COMMITS_HELD: u64 = 2;

/// The tree, the devices and the logs, which say what room there is.
pub(crate) struct Shares<'k> {
    pub tree: &'k Tree,
    pub placing: &'k Placing,
    pub logs: &'k BTreeMap<u64, Log>,
}

impl Shares<'_> {
    /// The part of the room that may be told to each process now. All reservations fit into what is free then, with this one in place of those that are
    /// smaller.
    ///
    /// A call that only deletes may take somewhat more. All of that together, and a reserve more, is never told to what grows: so it does not need what deletions have
    /// taken.
    pub fn part(&self, state: &State) -> Part {
        let parts = state.sharing.slots + 1;
        let (budget, reserve) = (self.placing.budget(self.tree), self.tree.reserve_blocks());
        let deletions = (checks(budget.key) + KEYS_OF_DELETION * budget.key) * parts;
        let blocks = self.placing.first_blocks() / DELETION_PARTS;
        let deletion = deletions.min(blocks).max(reserve) / parts;
        let own = match state.is_shared() {
            true => state.client.blocks_promised(),
            false => (0, 0),
        };
        let kept = reserve + deletion * parts + COMMITS_HELD * self.tree.closing();
        let left = self.logs.values().map(|log| log.reserved.left());
        let growth = left.clone().map(|left| left.growth).chain([own.0]);
        let growth = steady(level(budget.growth.saturating_sub(kept), parts, growth));
        let data = left.map(|left| left.data).chain([own.1]);
        Part {
            growth,
            deletion: growth + deletion,
            data: steady(level(budget.data, parts, data)),
        }
    }

    /// The room that is free and reserved for no process: the daemon's own work may take it. None if nobody shares the files.
    pub fn unreserved(&self, state: &State) -> Option<Part> {
        if self.logs.is_empty() && !state.is_shared() {
            return None;
        }
        let left = self.logs.values().map(|log| log.reserved.left());
        let add = |(first, data): (u64, u64), left: Part| {
            let first = first.saturating_add(left.deletion);
            (first, data.saturating_add(left.data))
        };
        let (first, data) = left.fold(state.client.blocks_promised(), add);
        let first = self.tree.room().saturating_sub(first);
        Some(Part {
            growth: first,
            deletion: first,
            data: self.tree.room_of_others().saturating_sub(data),
        })
    }
}

/// Blocks that the digest asks for in front of an operation, and that are no part of its promise.
fn checks(key: u64) -> u64 {
    KEYS_OF_OPERATION * key
}

/// A budget with a part of the room.
pub(crate) fn budget_of(part: Part, budget: Budget) -> Budget {
    let Part {
        growth,
        deletion,
        data,
    } = part;
    Budget {
        growth,
        deletion,
        data,
        ..budget
    }
}

/// Reserves a part for each process, which it is told with the next root. The root has that, too: an opening after a crash keeps to it.
pub(crate) fn reserve(
    (tree, disks): (&mut Tree, &Disks),
    logs: &mut BTreeMap<u64, Log>,
    (part, key): (Part, u64),
) -> Result<(), Error> {
    let number = tree.generation() + 1;
    for (log, of) in logs {
        of.reserved.tell(number, part);
        of.part = part.less(checks(key), 0);
        let left = of.reserved.left();
        if of.noted == left {
            continue;
        }
        let key = Key::new(0, Kind::Log, *log);
        let value = tree.get(disks, View::Pending, key)?;
        let record = value.and_then(|value| LogRecord::parse(&value).ok());
        let Some(mut record) = record else {
            continue;
        };
        if let Some(window) = &mut record.window {
            window.reserved = Some(left);
        }
        match tree.insert(disks, key, &record.emit(), Room::Reserve) {
            Ok(()) => of.noted = left,
            // The next commit has room for it.
            Err(Error::Full(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Not more than a number, and the same for most that are near it: a reservation that changes is written with each root.
fn steady(blocks: u64) -> u64 {
    let bits = u64::BITS - blocks.leading_zeros();
    blocks & (u64::MAX << bits.saturating_sub(5))
}
