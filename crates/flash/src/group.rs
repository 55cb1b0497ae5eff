//! Channel groups: software-isolated vSSDs that share channels, and lend each other free blocks (RackBlox §3.5.2).
//!
//! Each member owns the blocks of its rows of units, its *home*. One whose writes find no free block asks for some of a
//! collocated vSSD ([`crate::Event::Borrow`]) before it collects. All members collect at the same time, and then what is
//! borrowed is emptied first, erased, and goes back ([`crate::Event::Return`]).
//!
//! Nothing is written when a block changes hands. A block belongs to the member with entries of the newest generation in
//! it. Without such entries, or if nothing in the block is of use any more, it belongs to its home. A block is free at its
//! former owner when it is handed over: everything that superseded its pages is durable. So a crash at any instant finds
//! the block unused by the one or used by the other.
//!
//! Invariants: every block is Foreign to all members but one. A vSSD does not lend while it borrows, nor borrow while it
//! lends, so what is owed can always be returned: its data fits its home without what it borrowed.

use crate::api::VssdConfig;
use crate::bus::{Bus, Model};
use std::cell::RefCell;
use std::rc::Rc;

/// The timing model that the vSSDs of a channel group share. Clones are the same group.
#[derive(Clone, Debug)]
pub struct ChannelGroup(Rc<RefCell<Bus>>);

impl ChannelGroup {
    /// The group of a software-isolated vSSD.
    pub fn new(config: &VssdConfig) -> Self {
        let channels = config.channels.count_ones();
        let units = channels * config.geometry.units_per_channel();
        let ops = config.operations(units) as u32;
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
