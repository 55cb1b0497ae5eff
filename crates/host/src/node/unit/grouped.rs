//! A vSSD as a member of a channel group.

use super::Unit;
use crate::Output;
use crate::node::collector::{self, Collector, Report};
use base::Instant;
use flash::Loan;
use rack::bucket::{Bucket, Rate};
use rack::gc::Action;
use std::collections::VecDeque;

/// As a member of a channel group: what its node, which carries blocks and orders between the members, asks.
impl Unit {
    /// From now on its group decides when it collects, and `rate` bounds what it asks of its channels.
    pub(in crate::node) fn join_group(&mut self, now: Instant, rate: Option<Rate>) {
        self.agent = Collector::Member(collector::Member::default());
        self.share = rate.map(|rate| Bucket::new(now, rate));
    }

    /// News that its group has not heard yet.
    pub(in crate::node) fn report(&mut self) -> Option<Report> {
        self.agent.report()
    }

    /// Does what its group decided.
    pub(in crate::node) fn obey(&mut self, now: Instant, action: Action, out: &mut VecDeque<Output>) {
        if matches!(action, Action::Start(..)) && self.flash().latched() {
            // It never collects again, and the others do not wait for it.
            return self.agent.finished(now);
        }
        self.agent.order(action);
        self.pump(now, out);
    }

    pub(in crate::node) fn set_collecting(&mut self, collecting: bool) {
        self.agent.set_collecting(collecting);
    }

    pub(in crate::node) fn lend_blocks(&mut self, count: u32) -> Vec<Loan> {
        self.held.buffered.flash_mut().lend(count)
    }

    pub(in crate::node) fn take_returns(&mut self) -> Vec<Loan> {
        self.held.buffered.flash_mut().take_returns()
    }

    pub(in crate::node) fn accept_blocks(
        &mut self,
        now: Instant,
        loans: Vec<Loan>,
        out: &mut VecDeque<Output>,
    ) {
        self.held.buffered.flash_mut().accept(now, loans);
        self.pump(now, out);
    }

    pub(in crate::node) fn write_off(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        self.held.buffered.flash_mut().write_off(now);
        self.pump(now, out);
    }
}
