//! A vSSD reads its own pages and checkpoints while its node is idle ([`rack::scrub`]), and compares what its peers have
//! ([`rack::compare`]).

use super::Unit;
use super::scrubbing::Scrubbing;
use super::waits::Reading;
use crate::Output;
use base::{Instant, Lpn};
use rack::cache::Store;
use rack::compare::{self, Comparison};
use std::collections::VecDeque;

/// Pages without data that are passed at once: few enough that nobody waits.
const HOLES_MAX: u32 = 4096;

impl Unit {
    /// A pass begins. The member that orders the writes compares: the first one, or one that has ordered a write.
    pub(in crate::node) fn begin_scrub(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        self.scrubbing.walk.restart();
        if self.scrubbing.orders || self.identity.config.is_first() {
            let (pages, peers) = (self.flash().logical_pages(), self.replica.peer_count());
            self.scrubbing.comparison = Comparison::new(pages, peers);
        }
        if !self.is_stopping() {
            self.held.buffered.flash_mut().begin_check(now);
            self.pump(now, out);
        }
    }

    /// True if it has seen every page, here and at its peers, and its checkpoints.
    pub(in crate::node) fn is_scrubbed(&self) -> bool {
        self.scrubbing.is_over() && self.flash().is_checked()
    }

    /// True if it can read one page more, or ask a peer.
    pub(in crate::node) fn can_scrub(&self, now: Instant) -> bool {
        let is_well = self.is_serving() && !self.is_latched() && !self.is_stopping();
        is_well && (self.can_read() || self.scrubbing.comparison.wants(now) || self.flash().can_check())
    }

    fn can_read(&self) -> bool {
        let Scrubbing {
            walk, repairs, reads, ..
        } = &self.scrubbing;
        !walk.is_over() && !reads && repairs.has_room()
    }

    /// Asks a peer what differs, or reads the next page of a checkpoint, or of data.
    pub(in crate::node) fn scrub(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        if self.scrubbing.comparison.wants(now) {
            self.compare(now);
        } else if self.flash().can_check() {
            self.held.buffered.flash_mut().check(now);
        } else {
            self.read_own(now);
        }
        self.pump(now, out);
    }

    fn compare(&mut self, now: Instant) {
        if let Some(ask) = self.scrubbing.comparison.step(now) {
            let digest = compare::digest(&ask, |lpn| self.content(lpn));
            self.stats.compared += u64::from(ask.pages);
            self.replica.compare(&ask, digest);
        }
    }

    /// Reads the next page that has data on the medium, if one is near.
    fn read_own(&mut self, now: Instant) {
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
    }
}
