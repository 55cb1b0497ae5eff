//! The vSSDs of a node and their channel groups: blocks between collocated vSSDs, and collection of all at the same time
//! (RackBlox §3.5.2).

use super::answers::Answers;
use super::collector::Report;
use super::group::{Group, rate_of};
use super::timed::Timed;
use super::unit::Unit;
use crate::Output;
use base::{Instant, Map, Pool, VssdId, time::earliest};
use flash::{ChannelGroup, Loan, VssdConfig};
use rack::gc_group::GroupAgent;
use rack::pace::Pace;
use rack::scrub::Scrub;
use std::collections::VecDeque;
use wire::rack::Header;

/// A vSSD's place in a node.
pub(super) struct Slot {
    pub(super) unit: Timed,
    /// It is being deleted, as this asked for.
    pub(super) closing: Option<Header>,
    /// Its channel group, if it shares its channels.
    pub(super) group: Option<usize>,
}

/// The vSSDs that a node serves, and the channel groups that some of them share.
pub(super) struct Units {
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) index: Map<u32, u32>,
    /// Outputs of the node, to which the vSSDs add.
    pub(super) out: VecDeque<Output>,
    groups: Vec<Group>,
    gc: rack::gc::Config,
    /// Blocks that a member lends another at once.
    borrow_blocks: u32,
    /// How fast copies are made.
    pace: Pace,
    /// When one page more may be copied, if one is to be.
    copy_at: Option<Instant>,
    /// The vSSD that copies next, if it has something to copy.
    copier: usize,
    /// How long other nodes take to acknowledge.
    pub(super) answers: Answers,
    /// When a vSSD reads its own pages.
    scrub: Scrub,
    /// When one page more may be read, or a pass begins.
    scrub_at: Option<Instant>,
    /// The vSSD that reads next.
    scrubber: usize,
    /// A pass has begun, and the superblock is to be read, too.
    pub(super) checks_superblock: bool,
}

/// The same on every server for the members of one replica set.
fn order_of(unit: &Unit) -> u32 {
    let identity = unit.identity();
    let peers = identity.config.membership.peers.iter().map(|peer| peer.vssd.0);
    peers.fold(identity.vssd.0, u32::min)
}

impl Units {
    pub(super) fn new(
        now: Instant,
        gc: rack::gc::Config,
        borrow_blocks: u32,
        pace: Pace,
        scrub: Scrub,
        answers: Answers,
    ) -> Self {
        Self {
            slots: Vec::new(),
            index: Map::new(),
            out: VecDeque::new(),
            groups: Vec::new(),
            gc,
            borrow_blocks,
            pace,
            copy_at: None,
            copier: 0,
            scrub_at: scrub.look_at(now),
            scrub,
            scrubber: 0,
            checks_superblock: false,
            answers,
        }
    }

    /// Serves a vSSD, as a member of its group if it has one.
    pub(super) fn add(&mut self, now: Instant, unit: Unit, group: Option<usize>) {
        let (vssd, index) = (unit.identity().vssd, self.slots.len());
        self.index.insert(vssd.0, index as u32);
        let mut unit = Timed::new(unit);
        if let Some(group) = group.map(|group| &mut self.groups[group]) {
            let rate = rate_of(unit.flash().config());
            unit.join_group(now, rate);
            group.members.push(index);
            group.agent.join(vssd, order_of(&unit));
        }
        self.slots.push(Some(Slot {
            unit,
            closing: None,
            group,
        }));
    }

    /// The group on these channels, made if there is none.
    pub(super) fn group_on(&mut self, config: &VssdConfig, shared: Option<ChannelGroup>) -> usize {
        let found = self
            .groups
            .iter()
            .position(|group| group.channels == config.channels);
        found.unwrap_or_else(|| {
            self.groups.push(Group {
                channels: config.channels,
                shared: shared.unwrap_or_else(|| ChannelGroup::new(config)),
                agent: GroupAgent::new(self.gc),
                members: Vec::new(),
                failed: false,
            });
            self.groups.len() - 1
        })
    }

    /// A new vSSD of a group.
    pub(super) fn create_member(&self, config: VssdConfig, pool: Pool, group: usize) -> flash::Vssd {
        let group = &self.groups[group];
        let others = group
            .members
            .iter()
            .filter_map(|index| self.slots[*index].as_ref());
        let others = others.map(|slot| slot.unit.flash());
        flash::Vssd::create_in(config, pool, &group.shared, others)
    }

    /// Calls a unit, if it exists.
    pub(super) fn with_unit(&mut self, index: usize, call: impl FnOnce(&mut Unit, &mut VecDeque<Output>)) {
        if let Some(slot) = self.slots[index].as_mut() {
            call(&mut slot.unit, &mut self.out);
        }
    }

    /// As [`with_unit`](Units::with_unit), from outside: a member's group hears of it.
    pub(super) fn call_unit(
        &mut self,
        now: Instant,
        index: usize,
        call: impl FnOnce(&mut Unit, &mut VecDeque<Output>),
    ) {
        self.with_unit(index, call);
        self.step_copies(now, index);
        self.step_scrub(now, index);
        if let Some(group) = self.slots[index].as_ref().and_then(|slot| slot.group) {
            self.step_group(now, group);
        }
    }

    /// A vSSD was called: its clients' operations tell how fast copies may be made, and how fast other nodes are.
    fn step_copies(&mut self, now: Instant, index: usize) {
        let Some(slot) = self.slots[index].as_mut() else {
            return;
        };
        if slot.unit.copies.has_times() {
            let times = slot.unit.copies.take_times();
            times.for_each(|took| self.pace.note(now, took));
        }
        if !slot.unit.acknowledged.is_empty() {
            let acknowledged = slot.unit.acknowledged.drain(..);
            acknowledged.for_each(|(node, took)| self.answers.note(now, node, took));
        }
        if slot.unit.wants_copy(true) {
            self.copy(now);
        }
    }

    /// Copies as much as may be copied now, a page of each vSSD after the other.
    fn copy(&mut self, now: Instant) {
        self.copy_at = None;
        loop {
            let is_owed = self.pace.owes(now);
            let Some(index) = self.next_copier(is_owed) else {
                // What has no room goes on when it is owed.
                self.copy_at = self.next_copier(true).map(|_| self.pace.owed_at());
                return;
            };
            if !self.pace.take(now) {
                self.copy_at = Some(self.pace.ready_at(now));
                return;
            }
            self.copier = index + 1;
            self.with_unit(index, |unit, out| unit.copy(now, out));
        }
    }

    fn next_copier(&self, is_owed: bool) -> Option<usize> {
        self.next_of(self.copier, |unit| unit.wants_copy(is_owed))
    }

    /// The next vSSD of this kind, around.
    fn next_of(&self, from: usize, is_one: impl Fn(&Unit) -> bool) -> Option<usize> {
        let count = self.slots.len();
        let mut all = (0..count).map(|nth| (from + nth) % count);
        all.find(|index| self.slots[*index].as_ref().is_some_and(|slot| is_one(&slot.unit)))
    }

    /// A vSSD was called: its clients hold up the reading of its own pages, and a page that was read makes room for another.
    fn step_scrub(&mut self, now: Instant, index: usize) {
        let Some(slot) = self.slots[index].as_mut() else {
            return;
        };
        if slot.unit.scrubbing.take_asked() {
            self.scrub.note_client(now);
        }
        if slot.unit.scrubbing.take_ended() {
            self.scrub(now);
        }
    }

    /// Reads as many pages as may be read now, one of each vSSD after the other.
    fn scrub(&mut self, now: Instant) {
        if self.slots.iter().flatten().next().is_some() && self.scrub.begins(now) {
            for index in 0..self.slots.len() {
                self.with_unit(index, |unit, out| unit.begin_scrub(now, out));
            }
            self.checks_superblock = true;
        }
        while let Some(index) = self.next_of(self.scrubber, |unit| unit.can_scrub(now))
            && self.scrub.take(now)
        {
            self.scrubber = index + 1;
            self.with_unit(index, |unit, out| unit.scrub(now, out));
        }
        if self.scrub.is_at_it() && self.next_of(0, |unit| !unit.is_scrubbed()).is_none() {
            self.scrub.end(now);
        }
        self.scrub_at = self.scrub.look_at(now);
    }

    /// How far the reading of own pages is.
    pub(super) fn scrubbed(&self) -> &Scrub {
        &self.scrub
    }

    /// How fast copies are made.
    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// When a vSSD or a group is to be looked at next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let units = self
            .slots
            .iter()
            .flatten()
            .fold(None, |deadline, slot| earliest(deadline, slot.unit.deadline()));
        let units = earliest(earliest(units, self.copy_at), self.scrub_at);
        (0..self.groups.len()).fold(units, |deadline, group| {
            earliest(deadline, self.group_deadline(group))
        })
    }

    /// Lets time pass.
    pub(super) fn tick(&mut self, now: Instant) {
        for index in 0..self.slots.len() {
            let due = |slot: &Slot| slot.unit.deadline().is_some_and(|deadline| now >= deadline);
            if self.slots[index].as_ref().is_some_and(due) {
                self.call_unit(now, index, |unit, out| unit.tick(now, out));
            }
        }
        if self.copy_at.is_some_and(|at| now >= at) {
            self.copy(now);
        }
        if self.scrub_at.is_some_and(|at| now >= at) {
            self.scrub(now);
        }
        self.tick_groups(now);
    }

    /// A unit is gone; returns the blocks that it had borrowed, to be handed out when that is durable.
    pub(super) fn leave_group(&mut self, now: Instant, index: usize, group: usize, unit: &Unit) -> Vec<Loan> {
        let members = &mut self.groups[group];
        members.members.retain(|member| *member != index);
        members.agent.leave(now, unit.identity().vssd);
        unit.flash().surrender()
    }

    /// Gives blocks to those of a group that own them.
    pub(super) fn hand_out(&mut self, now: Instant, group: usize, loans: &[Loan]) {
        for index in self.groups[group].members.clone() {
            let Some(slot) = self.slots[index].as_ref() else {
                continue;
            };
            let own = slot.unit.flash().own_of(loans);
            if !own.is_empty() {
                self.with_unit(index, |unit, out| unit.accept_blocks(now, own, out));
            }
        }
    }

    /// Blocks for a vSSD that has none left: of the collocated one that can spare most, unless the group has to collect
    /// anyway.
    fn lend_to(&mut self, now: Instant, group: usize, borrower: usize) {
        let state = &self.groups[group];
        let spare = |index: &usize| {
            let slot = self.slots[*index].as_ref();
            slot.map_or(0, |slot| slot.unit.flash().lendable_blocks())
        };
        let others = state.members.iter().copied().filter(|index| *index != borrower);
        let lender = others.max_by_key(|index| (spare(index), core::cmp::Reverse(*index)));
        let (free, blocks) = self.free_of(group);
        let low = f64::from(free) < state.agent.config().hard_ratio * f64::from(blocks);
        let count = self.borrow_blocks;
        let slot = lender.and_then(|lender| self.slots[lender].as_mut());
        let loans = slot
            .filter(|_| !low)
            .map_or(Vec::new(), |slot| slot.unit.lend_blocks(count));
        self.with_unit(borrower, |unit, out| unit.accept_blocks(now, loans, out));
    }

    /// Free blocks of a group's members, and all.
    fn free_of(&self, group: usize) -> (u32, u32) {
        let members = &self.groups[group].members;
        let units = members.iter().filter_map(|index| self.slots[*index].as_ref());
        units.fold((0, 0), |(free, blocks), slot| {
            let (f, b) = slot.unit.flash().free_blocks();
            (free + f, blocks + b)
        })
    }

    /// Carries a group on after one of its members was called.
    pub(super) fn step_group(&mut self, now: Instant, group: usize) {
        loop {
            let mut progress = false;
            for position in 0..self.groups[group].members.len() {
                let index = self.groups[group].members[position];
                while let Some(report) = self.slots[index].as_mut().and_then(|slot| slot.unit.report()) {
                    progress = true;
                    self.reported(now, group, index, report);
                }
            }
            self.check_group(now, group);
            while let Some((vssd, action)) = self.groups[group].agent.poll() {
                progress = true;
                self.order(now, vssd, action);
            }
            if !progress {
                break;
            }
        }
        self.note_failure(now, group);
        let collecting = self.groups[group].agent.is_collecting();
        for position in 0..self.groups[group].members.len() {
            let index = self.groups[group].members[position];
            if let Some(slot) = self.slots[index].as_mut() {
                slot.unit.set_collecting(collecting);
            }
        }
    }

    fn reported(&mut self, now: Instant, group: usize, index: usize, report: Report) {
        let Some(slot) = self.slots[index].as_mut() else {
            return;
        };
        let vssd = slot.unit.identity().vssd;
        let agent = &mut self.groups[group].agent;
        match report {
            Report::Request => agent.note_request(now),
            Report::Answered(code) => agent.answered(now, vssd, code),
            Report::Finished => agent.finished(now, vssd),
            Report::Forced => agent.forced(now, vssd),
            Report::Borrow => self.lend_to(now, group, index),
            Report::Return => {
                let loans = slot.unit.take_returns();
                self.hand_out(now, group, &loans);
            }
        }
    }

    /// Members that were written to and are not being stopped make the group look at its free blocks.
    fn check_group(&mut self, now: Instant, group: usize) {
        let members = &self.groups[group].members;
        let mut units = members.iter().filter_map(|index| self.slots[*index].as_ref());
        let written = units.clone().any(|slot| slot.unit.was_written_since_gc());
        if written && units.all(|slot| !slot.unit.is_stopping()) {
            let (free, blocks) = self.free_of(group);
            let ratio = f64::from(free) / f64::from(blocks.max(1));
            self.groups[group].agent.check(now, ratio, written);
        }
    }

    fn order(&mut self, now: Instant, vssd: VssdId, action: rack::gc::Action) {
        let Some(&index) = self.index.get(&vssd.0) else {
            return;
        };
        self.with_unit(index as usize, |unit, out| unit.obey(now, action, out));
    }

    /// When a group is to be looked at next.
    fn group_deadline(&self, group: usize) -> Option<Instant> {
        let state = &self.groups[group];
        let mut units = state
            .members
            .iter()
            .filter_map(|index| self.slots[*index].as_ref());
        let written = units.clone().any(|slot| slot.unit.was_written_since_gc());
        let stopping = units.any(|slot| slot.unit.is_stopping());
        let (free, blocks) = self.free_of(group);
        let low = f64::from(free) < state.agent.config().background_ratio * f64::from(blocks);
        let check = (written && low && !stopping).then(|| state.agent.check_deadline());
        earliest(state.deadline(), check.flatten())
    }

    /// Lets time pass for the groups.
    fn tick_groups(&mut self, now: Instant) {
        for group in 0..self.groups.len() {
            if self.group_deadline(group).is_some_and(|deadline| now >= deadline) {
                self.groups[group].agent.tick(now);
                self.step_group(now, group);
            }
        }
    }

    /// When a vSSD's medium has failed, what it borrowed is lost to the others, and nobody waits for it.
    fn note_failure(&mut self, now: Instant, group: usize) {
        let members = &self.groups[group].members;
        let mut units = members.iter().filter_map(|index| self.slots[*index].as_ref());
        if self.groups[group].failed || !units.any(|slot| slot.unit.flash().latched()) {
            return;
        }
        self.groups[group].failed = true;
        for index in self.groups[group].members.clone() {
            self.with_unit(index, |unit, out| unit.write_off(now, out));
        }
    }
}
