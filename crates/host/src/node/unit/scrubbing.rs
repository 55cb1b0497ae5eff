//! A vSSD reads its own pages while its node is idle ([`rack::scrub`]), and cares for those that are damaged.

use super::Unit;
use super::waits::Reading;
use crate::Output;
use base::event::Look;
use base::{Instant, Lpn, VssdId};
use rack::cache::Store;
use rack::scrub::{Repairs, Walk};
use std::collections::VecDeque;

/// Pages without data that are passed at once: few enough that nobody waits.
const HOLES_MAX: u32 = 4096;

/// How far a vSSD is with scrubbing.
pub(in crate::node) struct Scrubbing {
    walk: Walk,
    pub(super) repairs: Repairs<Look>,
    reads: bool,
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
            reads: false,
            ended: false,
            asked: false,
        }
    }

    pub(super) fn note_client(&mut self) {
        self.asked = true;
    }

    pub(super) fn read_ended(&mut self) {
        (self.reads, self.ended) = (false, true);
    }

    /// True if a client has asked for something since the last call.
    pub(in crate::node) fn take_asked(&mut self) -> bool {
        core::mem::take(&mut self.asked)
    }

    /// True if a page was read since the last call.
    pub(in crate::node) fn take_ended(&mut self) -> bool {
        core::mem::take(&mut self.ended)
    }

    /// A pass begins.
    pub(in crate::node) fn restart(&mut self) {
        self.walk.restart();
    }

    /// True if it has seen every page.
    pub(in crate::node) fn is_over(&self) -> bool {
        self.walk.is_over() && !self.reads
    }
}

impl Unit {
    /// True if it can read one page more.
    pub(in crate::node) fn can_scrub(&self) -> bool {
        let Scrubbing {
            walk, repairs, reads, ..
        } = &self.scrubbing;
        let is_well = self.is_serving() && !self.is_latched() && !self.is_stopping();
        !walk.is_over() && !reads && repairs.has_room() && is_well
    }

    /// Reads the next page that has data on the medium, if one is near.
    pub(in crate::node) fn scrub(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        // What is in the write cache is written anew soon.
        let held = &self.held;
        let is_there =
            |lpn: &Lpn| !held.buffered.flash().is_hole(*lpn) && held.buffered.cache().get(*lpn).is_none();
        let walk = &mut self.scrubbing.walk;
        let mut steps = (0..HOLES_MAX).map_while(|_| walk.step());
        let Some(lpn) = steps.find(is_there) else {
            return;
        };
        self.scrubbing.reads = true;
        let version = held.newest(lpn);
        let slot = self.readings.insert(Reading::Scrub { lpn, version });
        self.held.buffered.read(now, u64::from(slot), lpn);
        self.pump(now, out);
    }
}
