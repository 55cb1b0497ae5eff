//! A unit as a member of a channel group: what its node, which carries blocks and orders between the members, asks.

use super::Unit;
use crate::Output;
use crate::node::collector::{Collector, Member, Report};
use base::Instant;
use flash::Loan;
use rack::bucket::{Bucket, Rate};
use rack::gc::Action;
use std::collections::VecDeque;

impl Unit {
    /// From now on its group decides when it collects, and `rate` bounds what it asks of its channels.
    pub(in crate::node) fn join_group(&mut self, now: Instant, rate: Option<Rate>) {
        self.agent = Collector::Member(Member::default());
        self.share = rate.map(|rate| Bucket::new(now, rate));
    }

    /// What its group has not heard yet.
    pub(in crate::node) fn report(&mut self) -> Option<Report> {
        self.agent.report()
    }

    /// Does what its group decided.
    pub(in crate::node) fn obey(&mut self, now: Instant, action: Action, out: &mut VecDeque<Output>) {
        if action == Action::Start && self.flash.latched() {
            // It never collects again, and the others do not wait for it.
            return self.agent.finished(now);
        }
        self.agent.order(action);
        self.pump(now, out);
    }

    pub(in crate::node) fn set_collecting(&mut self, collecting: bool) {
        self.agent.set_collecting(collecting);
    }

    /// True if something was written since its last collection began.
    pub(in crate::node) fn was_written_since_gc(&self) -> bool {
        self.written_since_gc
    }

    /// True from [`drain`](Unit::drain) on.
    pub(in crate::node) fn is_stopping(&self) -> bool {
        self.stop != super::stop::Stop::No
    }

    pub(in crate::node) fn lend_blocks(&mut self, count: u32) -> Vec<Loan> {
        self.flash.lend(count)
    }

    pub(in crate::node) fn take_returns(&mut self) -> Vec<Loan> {
        self.flash.take_returns()
    }

    pub(in crate::node) fn accept_blocks(
        &mut self,
        now: Instant,
        loans: Vec<Loan>,
        out: &mut VecDeque<Output>,
    ) {
        self.flash.accept(now, loans);
        self.pump(now, out);
    }

    pub(in crate::node) fn write_off(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        self.flash.write_off(now);
        self.pump(now, out);
    }

    /// True if its share of the channels allows one more page; what has gathered since is counted.
    pub(super) fn share_allows(&mut self, now: Instant) -> bool {
        self.share.as_mut().is_none_or(|share| share.has_token(now))
    }

    /// A page was asked of the channels.
    pub(super) fn take_share(&mut self) {
        if let Some(share) = self.share.as_mut() {
            share.take();
        }
    }

    /// When its share allows a page that waits for it.
    pub(super) fn share_deadline(&self) -> Option<Instant> {
        let share = self.share.as_ref()?;
        let waits = !self.scheduler.is_empty() && self.in_flight < self.config.device_depth;
        (waits && share.is_empty()).then(|| share.ready_at())
    }
}
