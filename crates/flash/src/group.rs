//! Channel groups: software-isolated vSSDs that share channels, and lend each other free blocks (RackBlox §3.5.2).
//!
//! Each member owns the blocks of its rows of units, its *home*. One whose writes find no free block asks for some of a
//! collocated vSSD ([`Event::Borrow`]) before it collects. All members collect at the same time, and then what is
//! borrowed is emptied first, erased, and goes back ([`Event::Return`]).
//!
//! Nothing is written when a block changes hands. A block belongs to the member with entries of the newest generation in
//! it. Without such entries, or if nothing in the block is of use any more, it belongs to its home. A block is free at its
//! former owner when it is handed over: everything that superseded its pages is durable. So a crash at any instant finds
//! the block unused by the one or used by the other.
//!
//! Invariants: every block is Foreign to all members but one. A vSSD does not lend while it borrows, nor borrow while it
//! lends, so what is owed can always be returned: its data fits its home without what it borrowed.

use crate::api::{Event, RecoveryReport, VssdConfig};
use crate::blocks::State;
use crate::bus::{Bus, Model};
use crate::geometry::{Isolation, RESERVE_BLOCKS};
use crate::vssd::{Vssd, operations};
use base::{Instant, Pool};
use std::cell::RefCell;
use std::rc::Rc;

/// The timing model that the vSSDs of a channel group share. Clones are the same group.
#[derive(Clone, Debug)]
pub struct ChannelGroup(Rc<RefCell<Bus>>);

/// The vSSDs of a group that was recovered, in the order of their configurations.
pub type Members = Vec<(Vssd, RecoveryReport)>;

/// A free block that changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// Its number in the group.
    pub(crate) block: u32,
    /// Its erase count.
    pub(crate) erases: u32,
}

impl ChannelGroup {
    /// The group of a software-isolated vSSD.
    pub fn new(config: &VssdConfig) -> Self {
        let channels = config.channels.count_ones();
        let units = channels * config.geometry.units_per_channel();
        let ops = operations(config, units) as u32;
        Self(Rc::new(RefCell::new(Bus::new(
            config.timing.clone(),
            channels,
            units,
            ops,
        ))))
    }

    pub(crate) fn model(&self) -> Model {
        let member = self.0.borrow_mut().join();
        Model::Shared {
            bus: self.0.clone(),
            member,
        }
    }
}

impl Vssd {
    /// As [`Vssd::create`], for a software-isolated vSSD; `members` are the others of its group.
    ///
    /// # Panics
    /// If the configuration contradicts itself, the pool's page size, or the members'.
    pub fn create_in<'a>(
        config: VssdConfig,
        pool: Pool,
        group: &ChannelGroup,
        members: impl Iterator<Item = &'a Vssd>,
    ) -> Vssd {
        assert_ne!(
            config.isolation,
            Isolation::Hardware,
            "a vSSD with channels of its own is in no group"
        );
        let mut vssd = Self::empty(config, pool, group.model(), 1);
        for id in (0..vssd.blocks.count())
            .filter(|id| !vssd.blocks.is_home(*id))
            .collect::<Vec<_>>()
        {
            vssd.blocks.get_mut(id).state = State::Foreign;
        }
        for other in members {
            assert_eq!(
                other.config.channels, vssd.config.channels,
                "a group has one set of channels"
            );
            for id in 0..vssd.blocks.count() {
                let theirs = *other.blocks.get(id);
                let block = vssd.blocks.get_mut(id);
                // A generation is used once, also when the block's last owner is another.
                block.erases = block.erases.max(theirs.erases);
                if theirs.state != State::Foreign {
                    block.state = State::Foreign;
                }
            }
        }
        vssd.blocks.start();
        vssd
    }

    fn is_shared(&self) -> bool {
        self.config.isolation != Isolation::Hardware
    }

    /// Users found no free block: ask for one, or collect.
    pub(crate) fn no_free_block(&mut self) {
        let may_borrow = self.is_shared() && !self.collection.active && self.blocks.lent() == 0;
        if !may_borrow {
            return self.force_collection();
        }
        if !self.asked_to_borrow {
            self.asked_to_borrow = true;
            self.events.push_back(Event::Borrow);
        }
    }

    /// Free blocks that it can spare, none while it collects, owes blocks itself or has failed.
    pub fn lendable_blocks(&self) -> u32 {
        if self.collection.active || self.latched() || self.blocks.borrowed() > 0 || self.asked_to_borrow {
            return 0;
        }
        self.blocks
            .free_at_home()
            .saturating_sub(self.kept_when_lending())
    }

    /// Enough to go on writing for a while, and to collect.
    fn kept_when_lending(&self) -> u32 {
        let rows = self.share.rows();
        RESERVE_BLOCKS + 2 * (rows.end - rows.start) * self.share.channels()
    }

    /// Gives at most `count` free blocks to a collocated vSSD, which [`accept`](Vssd::accept)s them.
    pub fn lend(&mut self, count: u32) -> Vec<Loan> {
        let count = count.min(self.lendable_blocks());
        self.blocks.lend(count, self.kept_when_lending())
    }

    /// Takes blocks over: the answer to [`Event::Borrow`], or what was lent comes back. Without any it collects.
    ///
    /// # Panics
    /// If it has such a block already.
    pub fn accept(&mut self, now: Instant, loans: Vec<Loan>) {
        self.advance(now);
        let asked = core::mem::take(&mut self.asked_to_borrow);
        if asked && loans.is_empty() {
            self.force_collection();
        }
        for loan in loans {
            self.counters.blocks_borrowed += u64::from(!self.blocks.is_home(loan.block));
            self.blocks.accept(loan);
        }
        if self.collection.active {
            self.call_in_borrowed();
        }
        self.pump();
    }

    /// Collection begins: what is borrowed goes back. Blocks that it is filling are closed.
    pub(crate) fn call_in_borrowed(&mut self) {
        if !self.is_shared() || self.blocks.borrowed() == 0 {
            return;
        }
        self.blocks.returning = true;
        for id in self.blocks.close_borrowed() {
            self.close_entries(id);
        }
        self.offer_returns();
    }

    pub(crate) fn offer_returns(&mut self) {
        if self.blocks.has_returns() {
            self.events.push_back(Event::Return);
        }
    }

    /// Of `room` pages for relocations, what borrowed blocks may use: so much must stay that a victim of its own
    /// can still be emptied.
    pub(crate) fn room_to_return(&self, room: u32) -> u32 {
        room.saturating_sub(RESERVE_BLOCKS * self.share.pages_per_block())
    }

    /// The borrowed blocks that are erased and not needed: the answer to [`Event::Return`].
    pub fn take_returns(&mut self) -> Vec<Loan> {
        self.blocks.take_returns()
    }

    /// Which of `loans` are of its own units.
    pub fn own_of(&self, loans: &[Loan]) -> Vec<Loan> {
        let own = loans.iter().filter(|loan| self.blocks.is_home(loan.block));
        own.copied().collect()
    }

    /// The borrowed blocks of a vSSD that is being deleted, erased. Hand them out when its deletion is durable.
    pub fn surrender(&self) -> Vec<Loan> {
        self.blocks.surrender()
    }

    /// A borrower's medium failed: what it has will not come back.
    pub fn write_off(&mut self, now: Instant) {
        self.advance(now);
        self.blocks.write_off();
        self.pump();
    }
}
