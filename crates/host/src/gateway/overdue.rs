//! What is overdue: operations are sent again, requests given up.
//!
//! A request that is given up has failed for its client, but what was sent for it may yet be executed. A mutation in
//! flight therefore stays there, with its page locked, until it is answered: a later write of the page must not be
//! undone by it.

use super::merge::Part;
use super::operations::Kind;
use super::set::sooner;
use super::{Gateway, SCAN_EVERY};
use crate::Output;
use base::event::{self, Wait};
use base::{BlockError, Duration, Instant, VssdId};

/// A request that is unanswered this long is told of.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);
/// How often it is told of such requests.
const TOLD_EVERY: Duration = Duration::from_secs(5);

impl Gateway {
    /// Tells of requests that wait for long: how many, the oldest of them, and what that one waits for.
    #[cold]
    fn tell_overdue(&mut self, now: Instant) {
        let late = |arrived: Instant| now.since(arrived) >= OVERDUE_AFTER;
        let slots = 0..self.requests.bound();
        let late = slots
            .filter_map(|slot| self.requests.get(slot))
            .filter(|request| late(request.arrived));
        let (mut requests, mut oldest) = (0, None);
        for request in late {
            requests += 1;
            let seen = oldest.get_or_insert((request.arrived, request.volume));
            *seen = (*seen).min((request.arrived, request.volume));
        }
        let Some((arrived, volume)) = oldest else { return };
        self.told_at = Some(now);
        let (wait, vssd) = self.waits_for(volume);
        let volume = self.volume(volume).record.volume();
        self.out.push_back(Output::Event(event::Kind::RequestOverdue {
            volume,
            vssd,
            wait,
            waited: now.since(arrived),
            requests,
        }));
    }

    /// Tells of acknowledged writes of a set that are lost, if they are.
    pub(super) fn tell_loss(&mut self, volume: usize, set: usize, is_lost: bool) {
        if is_lost {
            let vssd = self.set(volume, set).replicas[0];
            let volume = self.volume(volume).record.volume();
            self.out
                .push_back(Output::Event(event::Kind::WritesLost { volume, vssd }));
        }
    }

    /// What a request of a volume (by index) waits for, and the vSSD, if it is one.
    fn waits_for(&self, volume: usize) -> (Wait, VssdId) {
        let slots = 0..self.operations.bound();
        let mut of_volume = slots
            .filter_map(|slot| self.operations.get(slot))
            .filter(|operation| operation.volume == volume);
        let sent = of_volume.clone().filter(|operation| operation.number != 0);
        match (sent.min_by_key(|operation| operation.sent_at), of_volume.next()) {
            (Some(sent), _) => (Wait::Answer, sent.vssd),
            (None, Some(waiting)) => (Wait::Window, waiting.vssd),
            (None, None) if !self.starved.is_empty() => (Wait::Memory, VssdId(0)),
            (None, None) => (Wait::Page, VssdId(0)),
        }
    }

    /// Gives up what is too old, sends again what is unanswered, retries what lacked memory.
    pub(super) fn scan(&mut self, now: Instant) {
        // What is launched meanwhile sets its own time.
        self.scan_at = None;
        let mut next = None;
        if self.told_at.is_none_or(|at| now.since(at) >= TOLD_EVERY) {
            self.tell_overdue(now);
        }
        let mut has_failed = false;
        for slot in 0..self.requests.bound() {
            let Some(request) = self.requests.get(slot) else {
                continue;
            };
            let at = request.arrived + self.config.request_timeout;
            if now >= at {
                // Nobody has answered anything since: it is this gateway that is cut off, and another one may not be.
                let arrived = request.arrived;
                let cut_off = self.config.shared && self.heard_at.is_none_or(|heard| heard < arrived);
                let error = if cut_off {
                    BlockError::Elsewhere
                } else {
                    BlockError::Io
                };
                if !core::mem::replace(&mut has_failed, true) {
                    let index = request.volume;
                    let vssd = self.waits_for(index).1;
                    let volume = self.volume(index).record.volume();
                    self.out
                        .push_back(Output::Event(event::Kind::RequestFailed { volume, vssd }));
                }
                self.give_up(now, slot, error);
            } else {
                sooner(&mut next, at);
            }
        }
        for slot in 0..self.operations.bound() {
            let Some(operation) = self.operations.get(slot) else {
                continue;
            };
            if operation.number == 0 {
                continue;
            }
            if now >= operation.again_at {
                self.stats.retransmissions += 1;
                self.come_back(slot);
                self.send(now, slot);
            }
            sooner(&mut next, self.operations[slot].again_at);
        }
        if let Some(at) = next {
            sooner(&mut self.scan_at, at.max(now + SCAN_EVERY));
        }
        for (volume, page, parts, old) in core::mem::take(&mut self.starved) {
            self.mutate_locked(now, volume, page, parts, old);
        }
    }

    /// Fails a request, wherever its parts are.
    #[cold]
    pub(super) fn give_up(&mut self, now: Instant, request: u32, error: BlockError) {
        let entry = &mut self.requests[request];
        entry.error = Some(error);
        let volume = entry.volume;
        let of_others = |part: &Part| part.request != request;
        // First what waits, as it would move into operations when a page is unlocked.
        self.volume(volume).locks.forget(request);
        let mut unlocked = Vec::new();
        self.starved.retain_mut(|(of, page, parts, _)| {
            parts.retain(of_others);
            if parts.is_empty() {
                unlocked.push((*of, *page));
            }
            !parts.is_empty()
        });
        for slot in 0..self.operations.bound() {
            let Some(operation) = self.operations.get_mut(slot) else {
                continue;
            };
            let is_sent = operation.number != 0;
            match &mut operation.kind {
                Kind::Read { request: of, .. } | Kind::Flush { request: of, .. } if *of == request => {
                    self.abandon(now, slot);
                }
                Kind::ReadForMerge { page, parts } if parts.iter().any(|part| !of_others(part)) => {
                    parts.retain(of_others);
                    if parts.is_empty() {
                        unlocked.push((volume, *page));
                        self.abandon(now, slot);
                    }
                }
                Kind::Mutate { page, parts, .. } if parts.iter().any(|part| !of_others(part)) => {
                    parts.retain(of_others);
                    if parts.is_empty() && !is_sent {
                        unlocked.push((volume, *page));
                        self.abandon(now, slot);
                    }
                }
                _ => {}
            }
        }
        for (volume, page) in unlocked {
            self.finish_page(now, volume, page, Vec::new(), None);
        }
        self.finish_request(now, request);
    }

    /// Takes out an operation, in flight or waiting.
    #[cold]
    fn abandon(&mut self, now: Instant, slot: u32) {
        let operation = &mut self.operations[slot];
        if operation.number != 0 {
            self.end(now, slot);
            return;
        }
        let (volume, set) = (operation.volume, operation.set);
        let set = self.set(volume, set);
        set.waiting_mutations.retain(|&waiting| waiting != slot);
        set.waiting_reads.retain(|&waiting| waiting != slot);
        if let Some(shaper) = &mut self.shaper {
            shaper.forget(slot);
        }
        self.operations.remove(slot);
    }

    /// A read that followed a server's word to a replica which does not answer is asked of the primary again, collecting or
    /// not. (One that went elsewhere because its page is damaged stays there.)
    fn come_back(&mut self, slot: u32) {
        let operation = &mut self.operations[slot];
        if matches!(operation.kind, Kind::Read { .. }) && operation.pinned && operation.damaged == 0 {
            let (volume, set) = (operation.volume, operation.set);
            self.operations[slot].vssd = self.set(volume, set).replicas[0];
        }
    }

    /// A server that collects has named a replica: the page is read there. What names none is sent again in its time.
    pub(super) fn follow(&mut self, now: Instant, slot: u32, header: &wire::rack::Header) {
        let operation = &mut self.operations[slot];
        let is_read = matches!(operation.kind, Kind::Read { .. } | Kind::ReadForMerge { .. });
        let (volume, set) = (operation.volume, operation.set);
        let replica = u32::try_from(header.lba).map(base::VssdId);
        let replicas = &self.set(volume, set).replicas;
        let Some(named) = replica.ok().filter(|vssd| is_read && vssd.0 != 0) else {
            return;
        };
        let is_known = replicas.contains(&named);
        let operation = &mut self.operations[slot];
        // One that is just joining the set is not asked: who named it answers then.
        let vssd = if is_known { named } else { operation.vssd };
        (operation.vssd, operation.pinned) = (vssd, true);
        self.stats.redirected += 1;
        self.send(now, slot);
    }
}
