//! What is overdue: operations are sent again, requests given up.
//!
//! A request that is given up has failed for its client, but what was sent for it may yet be executed. A mutation in
//! flight therefore stays there, with its page locked, until it is answered: a later write of the page must not be
//! undone by it.

use super::flight::SCAN_EVERY;
use super::merge::Part;
use super::operations::Kind;
use super::set::sooner;
use super::traffic::Traffic;
use base::event::{self, Wait};
use base::{BlockError, Duration, Instant, VssdId};

/// A request that is unanswered this long is told of.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);
/// How often it is told of such requests.
const TOLD_EVERY: Duration = Duration::from_secs(5);

impl Traffic {
    /// Tells of requests that wait for long: how many, the oldest of them, and what that one waits for.
    #[cold]
    fn tell_overdue(&mut self, now: Instant) {
        let requests = self.requests.iter().map(|(_, request)| request);
        let late = requests.filter(|request| now.since(request.arrived) >= OVERDUE_AFTER);
        let late = late.map(|request| (request.arrived, request.volume));
        let requests = late.clone().count() as u32;
        let Some((arrived, volume)) = late.min() else {
            return;
        };
        self.told_at = Some(now);
        let (wait, vssd) = self.waits_for(volume);
        let volume = self.flight.volumes[volume].record.volume();
        self.flight.tell(event::Kind::RequestOverdue {
            volume,
            vssd,
            wait,
            waited: now.since(arrived),
            requests,
        });
    }

    /// What a request of a volume (by index) waits for, and the vSSD, if it is one.
    fn waits_for(&self, volume: u32) -> (Wait, VssdId) {
        let operations = self.flight.operations.iter().map(|(_, operation)| operation);
        let mut of_volume = operations.filter(|operation| operation.volume == volume);
        let sent = of_volume.clone().filter(|operation| operation.number != 0);
        match (sent.min_by_key(|operation| operation.sent_at), of_volume.next()) {
            (Some(sent), _) => (Wait::Answer, sent.vssd),
            (None, Some(waiting)) => (Wait::Window, waiting.vssd),
            (None, None) if !self.starved.is_empty() => (Wait::Memory, VssdId(0)),
            (None, None) => (Wait::Page, VssdId(0)),
        }
    }

    /// Gives up what is too old, sends again what is unanswered, retries what lacked memory.
    pub fn scan(&mut self, now: Instant) {
        // What is launched meanwhile sets its own time.
        self.flight.scan_at = None;
        let mut next = None;
        if self.told_at.is_none_or(|at| now.since(at) >= TOLD_EVERY) {
            self.tell_overdue(now);
        }
        let mut has_failed = false;
        for slot in 0..self.requests.bound() {
            let Some(request) = self.requests.get(slot) else {
                continue;
            };
            let (arrived, volume) = (request.arrived, request.volume);
            let at = arrived + self.flight.config.request_timeout;
            if now < at {
                sooner(&mut next, at);
                continue;
            }
            if !core::mem::replace(&mut has_failed, true) {
                let vssd = self.waits_for(volume).1;
                let volume = self.flight.volumes[volume].record.volume();
                self.flight.tell(event::Kind::RequestFailed { volume, vssd });
            }
            // Nobody has answered anything since: it is this gateway that is cut off, and another one may not be.
            let cut_off = self.flight.config.shared && self.heard_at.is_none_or(|heard| heard < arrived);
            let error = if cut_off {
                BlockError::Elsewhere
            } else {
                BlockError::Io
            };
            self.give_up(now, slot, error);
        }
        if let Some(at) = self.flight.send_again(now) {
            sooner(&mut next, at);
        }
        if let Some(at) = next {
            sooner(&mut self.flight.scan_at, at.max(now + SCAN_EVERY));
        }
        for (volume, page, parts, old) in core::mem::take(&mut self.starved) {
            self.mutate_locked(now, volume, page, parts, old);
        }
    }

    /// Fails every request, or those of a volume (by index): another gateway leads.
    pub fn give_up_all(&mut self, now: Instant, volume: Option<u32>) {
        for slot in 0..self.requests.bound() {
            let request = self.requests.get(slot);
            if request.is_some_and(|request| volume.is_none_or(|volume| volume == request.volume)) {
                self.give_up(now, slot, BlockError::Elsewhere);
            }
        }
    }

    /// Fails a request, wherever its parts are.
    #[cold]
    fn give_up(&mut self, now: Instant, request: u32, error: BlockError) {
        let entry = &mut self.requests[request];
        entry.error = Some(error);
        let volume = entry.volume;
        let of_others = |part: &Part| part.request != request;
        // First what waits, as it would move into operations when a page is unlocked.
        self.flight.volumes[volume].locks.forget(request);
        let mut unlocked = Vec::new();
        self.starved.retain_mut(|(of, page, parts, _)| {
            parts.retain(of_others);
            if parts.is_empty() {
                unlocked.push((*of, *page));
            }
            !parts.is_empty()
        });
        for slot in 0..self.flight.operations.bound() {
            let Some(operation) = self.flight.operations.get_mut(slot) else {
                continue;
            };
            let is_sent = operation.number != 0;
            match &mut operation.kind {
                Kind::Read { request: of, .. } | Kind::Flush { request: of, .. } if *of == request => {
                    self.flight.abandon(now, slot);
                }
                Kind::ReadForMerge { page, parts } if parts.iter().any(|part| !of_others(part)) => {
                    parts.retain(of_others);
                    if parts.is_empty() {
                        unlocked.push((volume, *page));
                        self.flight.abandon(now, slot);
                    }
                }
                Kind::Mutate { page, parts, .. } if parts.iter().any(|part| !of_others(part)) => {
                    parts.retain(of_others);
                    if parts.is_empty() && !is_sent {
                        unlocked.push((volume, *page));
                        self.flight.abandon(now, slot);
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
}
