//! Which data go to which tier (Strata §3.5): a pure policy.
//!
//! Temperature is of *units* of a file, 4 MiB each. A unit gets hotter by each touch, and half as hot with each round. That is better than the order of
//! last touches (LRU): what is read once, as by a backup, is as cold again after one round, and pushes nothing out. Memory is
//! bounded: the coldest units are forgotten, and a unit that is not known is cold.
//!
//! When a tier is fuller than its mark, the driver shows the policy the units that files have there ([`Tiers::offer`]), round
//! after round, as the hand of a clock. Cold ones go down until the tier has some room again. If a round moves nothing, the next one takes
//! warmer ones. What is touched often goes up, as far as there is room. A file that is pinned goes to its tier, and stays.
//!
//! What goes to one tier goes in batches ([`Tiers::next_batch`]): 4 MiB at least, so that flash and disks are written sequentially, and
//! 1 GiB at most. [`migrate`](crate::migrate) moves them.

use crate::format::Tier;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Marks of a tier, in thousandths of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// If more is used, something goes down.
    pub high: u64,
    /// Then so much stays.
    pub low: u64,
}

/// Limits of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of memory, flash and disks.
    pub marks: [Marks; 3],
    /// Blocks of a unit, and of a batch at least.
    pub unit_blocks: u64,
    /// Blocks of a batch, at most.
    pub batch_blocks: u64,
    /// Touches of about two rounds that bring a unit up.
    pub hot: u32,
    /// Units that are known, at most.
    pub units_max: usize,
}

impl Default for Options {
    /// Strata moves at 91 % of memory and 95 % of flash, in units of 4 MiB and up to 1 GiB. A tier gets 2 % of room at a time.
    /// 65,536 units are 256 GiB of data that are not cold, in about 5 MiB of memory.
    fn default() -> Self {
        let marks = |high, low| Marks { high, low };
        Self {
            marks: [marks(910, 890), marks(950, 930), marks(1000, 1000)],
            unit_blocks: 1024,
            batch_blocks: 1 << 18,
            hot: 8,
            units_max: 1 << 16,
        }
    }
}

/// A part of a file: the inode, and the number of the part.
pub type Unit = (u64, u64);

/// Blocks of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In use.
    pub used: u64,
    /// All.
    pub total: u64,
}

/// What a file has of one of its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The unit.
    pub unit: Unit,
    /// The tier that its file is pinned to.
    pub pin: Option<Tier>,
    /// Blocks that it has in memory, on flash and on disks.
    pub blocks: [u64; 3],
}

/// Data that are to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The file.
    pub inode: u64,
    /// Its blocks, as far as it has some there.
    pub blocks: Range<u64>,
    /// Where they are.
    pub from: Tier,
    /// How many there are, at most.
    pub count: u64,
}

/// Orders to one tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Where they go.
    pub to: Tier,
    /// What goes.
    pub orders: Vec<Order>,
}

impl Batch {
    /// Blocks of it.
    pub fn blocks(&self) -> u64 {
        self.orders.iter().map(|order| order.count).sum()
    }
}

#[derive(Clone, Copy, Debug)]
struct Heat {
    touches: u32,
    /// The round of the last touch.
    round: u64,
}

#[derive(Clone, Debug, Default)]
struct State {
    usage: Usage,
    /// Blocks that are ordered away, and not reported yet.
    leaving: u64,
    /// Blocks that are ordered to it.
    coming: u64,
    /// It is getting rid of data.
    is_emptying: bool,
    /// What it had in use when nothing was found that could go.
    stuck_at: Option<u64>,
    /// Orders to it that are in no batch yet.
    orders: Vec<Order>,
    waiting: u64,
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Tiers {
    options: Options,
    /// None: there is no such tier.
    tiers: [Option<State>; 3],
    heats: BTreeMap<Unit, Heat>,
    /// Where the search for a cold unit to forget goes on.
    hand: Unit,
    round: u64,
    /// Units that are not hotter go down.
    bar: u32,
    /// This round has ordered something.
    has_moved: bool,
    /// Units whose orders are not reported yet.
    under_way: BTreeSet<Unit>,
}

const ALL: [Tier; 3] = [Tier::Memory, Tier::Flash, Tier::Disk];
/// Units that are looked at when one is to be forgotten.
const SEARCH: usize = 8;
/// No unit is hotter: it is cold after 17 rounds.
const HEAT_MAX: u32 = 1 << 16;

fn index(tier: Tier) -> usize {
    tier as usize - 1
}

impl Tiers {
    /// Of the tiers that there are, each with its blocks.
    pub fn new(options: Options, tiers: &[(Tier, Usage)]) -> Self {
        let state = |tier: Tier| {
            let (_, usage) = tiers.iter().find(|(other, _)| *other == tier)?;
            Some(State {
                usage: *usage,
                ..State::default()
            })
        };
        let mut made = Self {
            options,
            tiers: ALL.map(state),
            heats: BTreeMap::new(),
            hand: (0, 0),
            round: 0,
            bar: 0,
            has_moved: false,
            under_way: BTreeSet::new(),
        };
        tiers
            .iter()
            .for_each(|(tier, usage)| made.set_usage(*tier, *usage));
        made
    }

    /// Says how full a tier is now.
    pub fn set_usage(&mut self, tier: Tier, usage: Usage) {
        let marks = self.options.marks[index(tier)];
        let has_below = self.tiers[index(tier) + 1..].iter().any(Option::is_some);
        let Some(state) = &mut self.tiers[index(tier)] else {
            return;
        };
        let was_emptying = state.is_emptying;
        state.usage = usage;
        let mark = if was_emptying { marks.low } else { marks.high };
        state.is_emptying = has_below && usage.used > part(usage.total, mark);
        // What came since may go.
        let has_news = state
            .stuck_at
            .is_none_or(|at| usage.used >= at + self.options.unit_blocks);
        if !state.is_emptying || has_news {
            state.stuck_at = None;
        }
        if state.is_emptying && !was_emptying {
            self.bar = 0;
        }
    }

    /// Blocks that a tier has yet to order away.
    fn excess(&self, tier: Tier) -> u64 {
        let state = self.tiers[index(tier)].as_ref();
        let Some(state) = state.filter(|state| state.is_emptying && state.stuck_at.is_none()) else {
            return 0;
        };
        let low = part(state.usage.total, self.options.marks[index(tier)].low);
        state.usage.used.saturating_sub(low + state.leaving)
    }

    /// Whether so many blocks more leave a tier below a mark.
    fn has_room(&self, tier: Tier, blocks: u64, mark: u64) -> bool {
        let state = self.tiers[index(tier)].as_ref();
        state.is_some_and(|state| state.usage.used + state.coming + blocks <= part(state.usage.total, mark))
    }

    /// A unit was read or written, of which the data are on a tier. Its file is pinned, or not.
    pub fn touch(&mut self, unit: Unit, tier: Tier, pin: Option<Tier>) {
        let round = self.round;
        let is_known = self.heats.contains_key(&unit);
        if !is_known && self.heats.len() >= self.options.units_max && !self.forget_one() {
            return;
        }
        let heat = self.heats.entry(unit).or_insert(Heat { touches: 0, round });
        heat.touches = (decayed(heat, round) + 1).min(HEAT_MAX);
        heat.round = round;
        let is_hot = heat.touches >= self.options.hot;
        if !is_hot || pin.is_some() || self.under_way.contains(&unit) {
            return;
        }
        let count = self.options.unit_blocks;
        let above = ALL[..index(tier)].iter().rev().copied();
        let above = above.filter(|above| self.tiers[index(*above)].is_some());
        // What makes a tier move something down again does not come up.
        let has_room = |above: &Tier| self.has_room(*above, count, self.options.marks[index(*above)].low);
        if let Some(to) = above.take(1).find(has_room) {
            self.order(unit, (tier, to), count);
        }
    }

    /// How hot a unit is: its touches, each half as much with each round that has passed.
    pub fn heat(&self, unit: Unit) -> u32 {
        self.heats.get(&unit).map_or(0, |heat| decayed(heat, self.round))
    }

    /// Forgets the coldest one of a few units, unless each of them is hotter than one that was touched once. The next search goes on behind.
    fn forget_one(&mut self) -> bool {
        let behind = self.heats.range(self.hand..).chain(&self.heats).take(SEARCH);
        let heats = behind.map(|(unit, heat)| (decayed(heat, self.round), heat.round, *unit));
        let heats: Vec<_> = heats.collect();
        self.hand = heats.last().map_or((0, 0), |(_, _, unit)| (unit.0, unit.1 + 1));
        let coldest = heats.iter().min().filter(|(heat, _, _)| *heat <= 1);
        coldest.is_some_and(|(_, _, unit)| self.heats.remove(unit).is_some())
    }

    /// A file is deleted.
    pub fn forget(&mut self, inode: u64) {
        let mut behind = self.heats.split_off(&(inode, 0));
        self.heats
            .append(&mut behind.split_off(&(inode.saturating_add(1), 0)));
    }

    /// Whether a tier is too full although nothing more can leave it: the rest is pinned, or there is no room below.
    pub fn is_stuck(&self, tier: Tier) -> bool {
        let state = self.tiers[index(tier)].as_ref();
        state.is_some_and(|state| state.is_emptying && state.stuck_at.is_some())
    }

    /// Whether the driver is to show the policy what files have: some tier is too full, and something may yet be found.
    pub fn wants_round(&self) -> bool {
        ALL.iter().any(|tier| self.excess(*tier) > 0)
    }

    /// Shows a unit. It may be ordered away, or to the tier of its pin.
    pub fn offer(&mut self, found: &Found) {
        if self.under_way.contains(&found.unit) {
            return;
        }
        for from in ALL {
            let count = found.blocks[index(from)];
            if count == 0 || found.pin == Some(from) {
                continue;
            }
            let to = match found.pin {
                Some(pin) => Some(pin).filter(|pin| self.has_room(*pin, count, 1000)),
                None if self.excess(from) > 0 && self.heat(found.unit) <= self.bar => self.below(from, count),
                None => None,
            };
            if let Some(to) = to {
                self.order(found.unit, (from, to), count);
            }
        }
    }

    /// The next tier below one that does not get too full by so many blocks.
    fn below(&self, tier: Tier, count: u64) -> Option<Tier> {
        let below = ALL[index(tier) + 1..].iter().copied();
        let mut below = below.filter(|below| self.tiers[index(*below)].is_some());
        below.find(|below| self.has_room(*below, count, self.options.marks[index(*below)].high))
    }

    /// All units of all files were shown.
    pub fn end_of_round(&mut self) {
        if !core::mem::take(&mut self.has_moved) {
            let hottest = self.heats.keys().map(|unit| self.heat(*unit)).max();
            match hottest.filter(|hottest| *hottest > self.bar) {
                Some(hottest) => self.bar = (2 * self.bar).clamp(1, hottest),
                // The rest is pinned, or there is no room below.
                None => {
                    let emptying = self.tiers.iter_mut().flatten().filter(|state| state.is_emptying);
                    emptying.for_each(|state| state.stuck_at = Some(state.usage.used));
                }
            }
        }
        self.round += 1;
    }

    fn order(&mut self, unit: Unit, (from, to): (Tier, Tier), count: u64) {
        let (inode, number) = unit;
        let first = number * self.options.unit_blocks;
        self.under_way.insert(unit);
        self.has_moved = true;
        if let Some(state) = &mut self.tiers[index(from)] {
            state.leaving += count;
        }
        if let Some(state) = &mut self.tiers[index(to)] {
            state.coming += count;
            state.waiting += count;
            state.orders.push(Order {
                inode,
                blocks: first..first + self.options.unit_blocks,
                from,
                count,
            });
        }
    }

    /// The next data to move. What is less than a unit waits for more, unless there will be no more: `is_last`.
    pub fn next_batch(&mut self, is_last: bool) -> Option<Batch> {
        let (least, most) = (self.options.unit_blocks, self.options.batch_blocks);
        for to in ALL {
            let Some(state) = &mut self.tiers[index(to)] else {
                continue;
            };
            if state.waiting == 0 || (state.waiting < least && !is_last) {
                continue;
            }
            let mut blocks = 0;
            let fits = state.orders.iter().take_while(|order| {
                blocks += order.count;
                blocks <= most
            });
            let count = fits.count().max(1);
            let orders: Vec<Order> = state.orders.drain(..count).collect();
            let batch = Batch { to, orders };
            state.waiting -= batch.blocks();
            return Some(batch);
        }
        None
    }

    /// A batch was moved, as far as it could be. Tell the usage afterwards.
    pub fn done(&mut self, batch: &Batch) {
        for order in &batch.orders {
            let unit = order.blocks.start / self.options.unit_blocks;
            self.under_way.remove(&(order.inode, unit));
            if let Some(state) = &mut self.tiers[index(order.from)] {
                state.leaving -= order.count;
            }
            if let Some(state) = &mut self.tiers[index(batch.to)] {
                state.coming -= order.count;
            }
        }
    }

    /// Units that are known.
    pub fn known(&self) -> usize {
        self.heats.len()
    }
}

fn part(total: u64, thousandths: u64) -> u64 {
    (u128::from(total) * u128::from(thousandths) / 1000) as u64
}

fn decayed(heat: &Heat, round: u64) -> u32 {
    heat.touches.checked_shr((round - heat.round) as u32).unwrap_or(0)
}
