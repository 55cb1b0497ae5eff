//! The timing model: planes that are busy, channels that carry one page at a time.
//!
//! Each unit (plane) serves its operations in order of arrival. A read occupies the plane for the array read, then
//! waits for the channel and occupies both for the transfer; a program takes the channel first, then the plane; an
//! erase takes the plane only. Planes of a chip are independent: what multi-plane commands give at best. A channel
//! serves its planes in the order in which they ask.
//!
//! [`Nand::hold`] is blocking garbage collection. Operations of users wait for the channel's release, also on idle
//! planes, while operations of the collection go on.

use crate::timing::Timing;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

/// An operation of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NandKind {
    Read,
    Program,
    Erase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Array,
    Transfer,
}

#[derive(Clone, Copy, Debug)]
struct NandOp {
    kind: NandKind,
    phase: Phase,
    unit: u32,
    array_ns: u64,
    next: u32,
}

/// A first-in-first-out list threaded through the operations.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    fn is_empty(&self) -> bool {
        self.head == NONE
    }

    fn push(&mut self, ops: &mut [NandOp], op: u32) {
        ops[op as usize].next = NONE;
        if self.tail == NONE {
            self.head = op;
        } else {
            ops[self.tail as usize].next = op;
        }
        self.tail = op;
    }

    fn pop(&mut self, ops: &[NandOp]) -> Option<u32> {
        if self.head == NONE {
            return None;
        }
        let op = self.head;
        self.head = ops[op as usize].next;
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(op)
    }
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    busy: bool,
    users: Queue,
    collection: Queue,
    /// Estimate of when the work queued here ends, in ns.
    until_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    busy: bool,
    /// Collections that keep users off.
    holds: u32,
    waiting: Queue,
}

/// The timing model of one vSSD's channels. Operations are numbered by the caller.
#[derive(Debug)]
pub(crate) struct Nand {
    timing: Timing,
    units: Vec<Unit>,
    channels: Vec<Channel>,
    ops: Vec<NandOp>,
    /// (time in ns, order of insertion, operation)
    events: BinaryHeap<Reverse<(u64, u64, u32)>>,
    inserted: u64,
    until_ns: u64,
    /// The result of [`next_ns`](Self::next_ns); `None` when that has to be found out again.
    next_ns: Cell<Option<u64>>,
}

impl Nand {
    /// `units` planes, unit u on channel u mod `channels`; room for `ops` operations.
    pub(crate) fn new(timing: Timing, channels: u32, units: u32, ops: u32) -> Self {
        let unit = Unit {
            busy: false,
            users: Queue::EMPTY,
            collection: Queue::EMPTY,
            until_ns: 0,
        };
        Self {
            timing,
            units: vec![unit; units as usize],
            channels: vec![
                Channel {
                    busy: false,
                    holds: 0,
                    waiting: Queue::EMPTY
                };
                channels as usize
            ],
            ops: Vec::with_capacity(ops as usize),
            events: BinaryHeap::with_capacity(units as usize + channels as usize + 16),
            inserted: 0,
            until_ns: 0,
            next_ns: Cell::new(None),
        }
    }

    /// Queues an operation on page `page` of a block of `unit`.
    pub(crate) fn submit(
        &mut self,
        now_ns: u64,
        op: u32,
        kind: NandKind,
        unit: u32,
        page: u32,
        collection: bool,
    ) {
        let array_ns = match kind {
            NandKind::Read => self.timing.read_ns(page),
            NandKind::Program => self.timing.program_ns(page),
            NandKind::Erase => self.timing.erase_ns,
        };
        let record = NandOp {
            kind,
            phase: Phase::Array,
            unit,
            array_ns,
            next: NONE,
        };
        if self.ops.len() <= op as usize {
            self.ops.resize(op as usize + 1, record);
        }
        self.ops[op as usize] = record;
        let transfer_ns = if kind == NandKind::Erase {
            0
        } else {
            self.timing.transfer_ns
        };
        let u = &mut self.units[unit as usize];
        u.until_ns = u.until_ns.max(now_ns) + array_ns + transfer_ns;
        self.until_ns = self.until_ns.max(u.until_ns);
        let held = self.channels[unit as usize % self.channels.len()].holds > 0;
        // Outside a hold the collection queues like everybody else.
        let queue = if collection && held {
            &mut u.collection
        } else {
            &mut u.users
        };
        queue.push(&mut self.ops, op);
        self.start(now_ns, unit);
    }

    /// Keeps users off a channel.
    pub(crate) fn hold(&mut self, channel: u32) {
        self.channels[channel as usize].holds += 1;
    }

    /// Lets users on again.
    pub(crate) fn release(&mut self, now_ns: u64, channel: u32) {
        self.channels[channel as usize].holds -= 1;
        let step = self.channels.len();
        for unit in (channel as usize..self.units.len()).step_by(step) {
            self.start(now_ns, unit as u32);
        }
    }

    /// A time before which nothing is completed, and at or before which time has to go on; `None` when all is done.
    ///
    /// What ends in between, an array read or a program's transfer, is nobody's business: it is played in its order with
    /// the next call that comes.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        if self.next_ns.get().is_none() {
            let bounds = self
                .events
                .iter()
                .map(|Reverse((at, _, op))| at + self.least_left_ns(*op));
            self.next_ns.set(bounds.min());
        }
        self.next_ns.get()
    }

    /// The least time from the end of this phase of `op` to the completion of an operation.
    fn least_left_ns(&self, op: u32) -> u64 {
        let record = &self.ops[op as usize];
        match (record.kind, record.phase) {
            (NandKind::Read, Phase::Array) => self.timing.transfer_ns,
            (NandKind::Program, Phase::Transfer) => {
                let channel = &self.channels[record.unit as usize % self.channels.len()];
                // Who waits for the channel may be a read, which is complete when it is transferred.
                if channel.waiting.is_empty() {
                    record.array_ns
                } else {
                    record.array_ns.min(self.timing.transfer_ns)
                }
            }
            (NandKind::Read, Phase::Transfer) | (NandKind::Program, Phase::Array) | (NandKind::Erase, _) => 0,
        }
    }

    /// Estimate of when all queued work is finished.
    pub(crate) fn busy_until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Plays until the next completion at or before `now_ns`: (operation, its time).
    pub(crate) fn advance(&mut self, now_ns: u64) -> Option<(u32, u64)> {
        while let Some(&Reverse((at, _, op))) = self.events.peek() {
            if at > now_ns {
                return None;
            }
            self.events.pop();
            self.next_ns.set(None);
            if self.step(at, op) {
                return Some((op, at));
            }
        }
        None
    }

    fn at(&mut self, at_ns: u64, op: u32) {
        self.inserted += 1;
        self.next_ns.set(None);
        self.events.push(Reverse((at_ns, self.inserted, op)));
    }

    fn start(&mut self, now_ns: u64, unit: u32) {
        let held = self.channels[unit as usize % self.channels.len()].holds > 0;
        let u = &mut self.units[unit as usize];
        if u.busy {
            return;
        }
        let mut next = u.collection.pop(&self.ops);
        if next.is_none() && !held {
            next = u.users.pop(&self.ops);
        }
        let Some(op) = next else { return };
        u.busy = true;
        let record = self.ops[op as usize];
        match record.kind {
            NandKind::Read | NandKind::Erase => self.at(now_ns + record.array_ns, op),
            NandKind::Program => self.transfer(now_ns, op),
        }
    }

    fn transfer(&mut self, now_ns: u64, op: u32) {
        let index = self.ops[op as usize].unit as usize % self.channels.len();
        let channel = &mut self.channels[index];
        if channel.busy {
            channel.waiting.push(&mut self.ops, op);
            self.next_ns.set(None);
            return;
        }
        channel.busy = true;
        self.ops[op as usize].phase = Phase::Transfer;
        self.at(now_ns + self.timing.transfer_ns, op);
    }

    /// One phase of `op` ends; true when that was its last.
    fn step(&mut self, at_ns: u64, op: u32) -> bool {
        let record = self.ops[op as usize];
        match (record.kind, record.phase) {
            (NandKind::Read, Phase::Array) => {
                self.transfer(at_ns, op);
                return false;
            }
            (NandKind::Read, Phase::Transfer) => self.channel_free(at_ns, record.unit),
            (NandKind::Program, Phase::Transfer) => {
                self.channel_free(at_ns, record.unit);
                self.ops[op as usize].phase = Phase::Array;
                self.at(at_ns + record.array_ns, op);
                return false;
            }
            (NandKind::Program, Phase::Array) | (NandKind::Erase, _) => {}
        }
        self.units[record.unit as usize].busy = false;
        self.start(at_ns, record.unit);
        true
    }

    fn channel_free(&mut self, at_ns: u64, unit: u32) {
        let index = unit as usize % self.channels.len();
        let channel = &mut self.channels[index];
        channel.busy = false;
        if let Some(next) = channel.waiting.pop(&self.ops) {
            self.transfer(at_ns, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p_ssd(channels: u32, units: u32) -> Nand {
        Nand::new(Timing::built_in("p-ssd").expect("built in"), channels, units, 16)
    }

    fn drain(nand: &mut Nand) -> Vec<(u32, u64)> {
        core::iter::from_fn(|| nand.advance(u64::MAX)).collect()
    }

    #[test]
    fn reads_of_two_planes_overlap_but_share_the_channel() {
        let mut nand = p_ssd(1, 2);
        nand.submit(0, 0, NandKind::Read, 0, 0, false);
        nand.submit(0, 1, NandKind::Read, 1, 0, false);
        assert_eq!(drain(&mut nand), [(0, 100_400), (1, 152_800)]);
    }

    #[test]
    fn a_read_waits_behind_a_program_of_its_plane_only() {
        let mut nand = p_ssd(1, 2);
        nand.submit(0, 0, NandKind::Program, 0, 1, false);
        nand.submit(0, 1, NandKind::Read, 0, 0, false);
        nand.submit(0, 2, NandKind::Read, 1, 0, false);
        let done = drain(&mut nand);
        assert_eq!(done, [(2, 104_800), (0, 2_352_400), (1, 2_452_800)]);
        assert_eq!(nand.busy_until_ns(), 2_352_400 + 100_400);
    }

    #[test]
    fn a_held_channel_serves_the_collection_only() {
        let mut nand = p_ssd(2, 4);
        nand.hold(0);
        nand.submit(0, 0, NandKind::Read, 0, 0, false);
        nand.submit(0, 1, NandKind::Erase, 0, 0, true);
        nand.submit(0, 2, NandKind::Read, 2, 0, false);
        nand.submit(0, 3, NandKind::Read, 1, 0, false);
        assert_eq!(drain(&mut nand), [(3, 100_400), (1, 3_000_000)]);
        nand.release(4_000_000, 0);
        assert_eq!(drain(&mut nand), [(0, 4_100_400), (2, 4_152_800)]);
    }
}
