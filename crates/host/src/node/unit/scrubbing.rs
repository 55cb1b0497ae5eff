//! How far a vSSD is with what it does while its node is idle.

use base::VssdId;
use base::event::Look;
use rack::compare::Comparison;
use rack::scrub::{Repairs, Walk};

/// Its walk over its pages, its damaged pages, and the comparison with its peers.
pub(in crate::node) struct Scrubbing {
    pub(super) walk: Walk,
    pub(super) repairs: Repairs<Look>,
    pub(super) comparison: Comparison,
    /// It has ordered a write since the members of its set changed: it is the one that does.
    pub(super) orders: bool,
    /// A page is being read.
    pub(super) reads: bool,
    /// A read has ended since its node asked.
    ended: bool,
    /// A client has asked for something since.
    asked: bool,
}

impl Scrubbing {
    pub(super) fn new(vssd: VssdId, boot: u32, pages: u32) -> Self {
        Self {
            walk: Walk::new(vssd, boot, pages),
            repairs: Repairs::default(),
            comparison: Comparison::default(),
            orders: false,
            reads: false,
            ended: false,
            asked: false,
        }
    }

    pub(super) fn note_client(&mut self) {
        self.asked = true;
    }

    pub(super) fn note_order(&mut self) {
        self.orders = true;
    }

    /// The set has other members: the next pass compares with these.
    pub(super) fn members_changed(&mut self) {
        (self.orders, self.comparison) = (false, Comparison::default());
    }

    /// A peer has answered, or what was asked of the flash.
    pub(super) fn answered(&mut self) {
        self.ended = true;
    }

    pub(super) fn read_ended(&mut self) {
        (self.reads, self.ended) = (false, true);
    }

    /// True if a client has asked for something since the last call.
    pub(in crate::node) fn take_asked(&mut self) -> bool {
        core::mem::take(&mut self.asked)
    }

    /// True if a page was read, or a peer has answered, since the last call.
    pub(in crate::node) fn take_ended(&mut self) -> bool {
        core::mem::take(&mut self.ended)
    }

    /// True if it has seen every page, here and at its peers.
    pub(super) fn is_over(&self) -> bool {
        self.walk.is_over() && !self.reads && self.comparison.is_over()
    }
}
