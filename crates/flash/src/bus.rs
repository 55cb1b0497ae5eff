//! The timing model of a vSSD: its own, or its channel group's.

use crate::api::VssdConfig;
use crate::geometry::Isolation;
use crate::nand::{Nand, NandKind};
use crate::timing::Timing;
use base::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Nobody's operation: its vSSD is gone.
const GONE: u32 = u32::MAX;

/// The timing model of a channel group. Completions that one member comes across while it plays the model wait for
/// the member they belong to.
#[derive(Debug)]
pub(crate) struct Bus {
    nand: Nand,
    /// Per operation of the model: member and its operation.
    keys: Slab<(u32, u32)>,
    /// Per member: (operation, time) done and not yet told.
    done: Vec<VecDeque<(u32, u64)>>,
    /// (member, channel) of collections that keep users off.
    holds: Vec<(u32, u32)>,
    now_ns: u64,
}

impl Bus {
    pub(crate) fn new(timing: Timing, channels: u32, units: u32, ops: u32) -> Self {
        Self {
            nand: Nand::new(timing, channels, units, ops),
            keys: Slab::with_capacity(ops as usize),
            done: Vec::new(),
            holds: Vec::new(),
            now_ns: 0,
        }
    }

    /// A new member's number.
    pub(crate) fn join(&mut self) -> u32 {
        self.done.push(VecDeque::with_capacity(64));
        self.done.len() as u32 - 1
    }

    fn leave(&mut self, member: u32) {
        for (_, (of, _)) in self.keys.iter_mut().filter(|(_, key)| key.0 == member) {
            *of = GONE;
        }
        self.done[member as usize].clear();
        for (of, channel) in core::mem::take(&mut self.holds) {
            if of == member {
                self.nand.release(self.now_ns, channel);
            } else {
                self.holds.push((of, channel));
            }
        }
    }

    fn advance(&mut self, member: u32, now_ns: u64) -> Option<(u32, u64)> {
        self.now_ns = self.now_ns.max(now_ns);
        loop {
            if let Some(&(_, at)) = self.done[member as usize].front()
                && at <= now_ns
            {
                return self.done[member as usize].pop_front();
            }
            let (key, at) = self.nand.advance(now_ns)?;
            let (of, op) = self.keys.remove(key);
            if of != GONE {
                self.done[of as usize].push_back((op, at));
            }
        }
    }
}

/// A vSSD's way to the timing model.
#[derive(Debug)]
pub(crate) enum Model {
    /// Its channels are its own.
    Own(Nand),
    /// It shares them.
    Shared { bus: Rc<RefCell<Bus>>, member: u32 },
}

impl Model {
    /// The model of a vSSD with channels of its own.
    pub(crate) fn own(config: &VssdConfig) -> Self {
        assert_eq!(
            config.isolation,
            Isolation::Hardware,
            "a software-isolated vSSD is created in its group"
        );
        let channels = config.channels.count_ones();
        let units = channels * config.geometry.units_per_channel();
        let ops = config.operations(units) as u32;
        Self::Own(Nand::new(config.timing.clone(), channels, units, ops))
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
        match self {
            Self::Own(nand) => nand.submit(now_ns, op, kind, unit, page, collection),
            Self::Shared { bus, member } => {
                let mut bus = bus.borrow_mut();
                let key = bus.keys.insert((*member, op));
                // Another member may have played the model further.
                let now_ns = now_ns.max(bus.now_ns);
                bus.nand.submit(now_ns, key, kind, unit, page, collection);
            }
        }
    }

    /// Keeps users off a channel.
    pub(crate) fn hold(&mut self, channel: u32) {
        match self {
            Self::Own(nand) => nand.hold(channel),
            Self::Shared { bus, member } => {
                let mut bus = bus.borrow_mut();
                bus.holds.push((*member, channel));
                bus.nand.hold(channel);
            }
        }
    }

    /// Lets users on again.
    pub(crate) fn release(&mut self, now_ns: u64, channel: u32) {
        match self {
            Self::Own(nand) => nand.release(now_ns, channel),
            Self::Shared { bus, member } => {
                let mut bus = bus.borrow_mut();
                let held = bus.holds.iter().position(|hold| *hold == (*member, channel));
                bus.holds.swap_remove(held.expect("a released channel was held"));
                let now_ns = now_ns.max(bus.now_ns);
                bus.nand.release(now_ns, channel);
            }
        }
    }

    /// When the next thing happens.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        match self {
            Self::Own(nand) => nand.next_ns(),
            Self::Shared { bus, member } => {
                let bus = bus.borrow();
                let told = bus.done[*member as usize].front().map(|(_, at)| *at);
                told.or_else(|| bus.nand.next_ns())
            }
        }
    }

    /// Estimate of when all queued work is finished.
    pub(crate) fn busy_until_ns(&self) -> u64 {
        match self {
            Self::Own(nand) => nand.busy_until_ns(),
            Self::Shared { bus, .. } => bus.borrow().nand.busy_until_ns(),
        }
    }

    /// Plays until the next completion at or before `now_ns`: (operation, its time).
    pub(crate) fn advance(&mut self, now_ns: u64) -> Option<(u32, u64)> {
        match self {
            Self::Own(nand) => nand.advance(now_ns),
            Self::Shared { bus, member } => bus.borrow_mut().advance(*member, now_ns),
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        if let Self::Shared { bus, member } = self {
            bus.borrow_mut().leave(*member);
        }
    }
}
