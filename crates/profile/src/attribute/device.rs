//! The bios of one device from their submission to their completion.
//!
//! Tracepoints name requests by their sectors. A request covers the bios that were merged into it, so an event of a
//! request concerns every bio in flight that begins within its sectors and does the same; of several on the same
//! sectors, those that came first.

use super::operation::OpId;
use crate::event::{Action, Rw, Span};
use std::collections::{BTreeMap, VecDeque};

/// Bios in flight on a device. More are lost events.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// A bio and when it reached what; 0 if it has not.
#[derive(Clone, Debug)]
pub(super) struct Bio {
    pub(super) span: Span,
    pub(super) rw: Rw,
    /// The operations that wait for it.
    pub(super) of: Vec<OpId>,
    /// The thread that queued it.
    pub(super) thread: u32,
    pub(super) queued_ns: u64,
    pub(super) got_request_ns: u64,
    pub(super) inserted_ns: u64,
    pub(super) issued_ns: u64,
    pub(super) done_ns: u64,
    /// It joined a request that was there already.
    pub(super) merged: bool,
    left_sectors: u32,
}

/// A device.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// By first sector, those that came first in front.
    bios: BTreeMap<u64, VecDeque<Bio>>,
    /// Flushes have no sectors.
    flushes: VecDeque<Bio>,
    in_flight: usize,
    /// Bios that were given up, as their completion was never seen.
    pub(super) abandoned: u64,
}

impl Device {
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Gives up what is in flight.
    pub(super) fn abandon(&mut self) {
        self.abandoned += self.in_flight as u64;
        self.bios.clear();
        self.flushes.clear();
        self.in_flight = 0;
    }

    /// Q: a bio comes.
    pub(super) fn queue(&mut self, now_ns: u64, thread: u32, span: Span, rw: Rw, of: Vec<OpId>) {
        if self.in_flight == IN_FLIGHT_MAX {
            self.abandon();
        }
        self.in_flight += 1;
        let bio = Bio {
            span,
            rw,
            of,
            thread,
            queued_ns: now_ns,
            got_request_ns: 0,
            inserted_ns: 0,
            issued_ns: 0,
            done_ns: 0,
            merged: false,
            left_sectors: span.sectors,
        };
        match span.sectors {
            0 => self.flushes.push_back(bio),
            _ => self.bios.entry(span.sector).or_default().push_back(bio),
        }
    }

    /// The bio at `sector` is cut at `at`. Both parts are waited for; the rest was queued when the whole was.
    pub(super) fn split(&mut self, sector: u64, at: u64) -> bool {
        let Some(whole) = self.bios.get_mut(&sector).and_then(|bios| bios.back_mut()) else {
            return false;
        };
        if at <= sector || at >= whole.span.end() {
            return false;
        }
        let first_sectors = (at - sector) as u32;
        let mut rest = whole.clone();
        rest.span.sector = at;
        rest.span.sectors -= first_sectors;
        rest.left_sectors = rest.span.sectors;
        whole.span.sectors = first_sectors;
        whole.left_sectors = first_sectors;
        self.in_flight += 1;
        self.bios.entry(at).or_default().push_back(rest);
        true
    }

    /// The operations that wait for the bio that came last at `sector`.
    pub(super) fn owners_at(&self, sector: u64) -> Vec<OpId> {
        let bio = self.bios.get(&sector).and_then(|bios| bios.back());
        bio.map_or(Vec::new(), |bio| bio.of.clone())
    }

    /// G, or a merge: the bio has a request. True if it is known.
    pub(super) fn get_request(&mut self, now_ns: u64, span: Span, merged: bool) -> bool {
        let bios = match span.sectors {
            0 => Some(&mut self.flushes),
            _ => self.bios.get_mut(&span.sector),
        };
        let bio = bios.and_then(|bios| bios.iter_mut().find(|bio| bio.got_request_ns == 0));
        let Some(bio) = bio else { return false };
        bio.got_request_ns = now_ns;
        bio.merged = merged;
        true
    }

    /// Calls `each` for the bios of a request.
    fn of_request(&mut self, span: Span, rw: Rw, mut each: impl FnMut(&mut Bio)) {
        if span.sectors == 0 {
            return self.flushes.iter_mut().for_each(each);
        }
        let bios = self.bios.range_mut(span.sector..span.end());
        for bio in bios.flat_map(|(_, bios)| bios) {
            if bio.rw.action == rw.action {
                each(bio);
            }
        }
    }

    /// True if the driver has something that may need `action` of a device below: the same, or a flush.
    pub(super) fn drives(&self, action: Action) -> bool {
        let mut bios = self.bios.values().flatten();
        bios.any(|bio| bio.issued_ns != 0 && bio.rw.action == action)
            || self.flushes.iter().any(|flush| flush.issued_ns != 0)
    }

    /// A bio is done that has no request. Some drivers have counted its sectors down by then.
    pub(super) fn bio_done(&mut self, now_ns: u64, span: Span, rw: Rw) -> Option<Bio> {
        let is_it = |bio: &Bio| bio.got_request_ns == 0 && bio.rw.action == rw.action;
        let counted_down = |(sector, bios): (&u64, &VecDeque<Bio>)| {
            let found = bios.iter().any(|bio| is_it(bio) && bio.span.end() == span.sector);
            found.then_some(*sector)
        };
        let sector = match span.sectors {
            0 => self.bios.range(..span.sector).rev().find_map(counted_down),
            _ => Some(span.sector),
        };
        let mut bio = match sector {
            None => self.flushes.remove(self.flushes.iter().position(is_it)?)?,
            Some(sector) => {
                let bios = self.bios.get_mut(&sector)?;
                let bio = bios.remove(bios.iter().position(is_it)?)?;
                if bios.is_empty() {
                    self.bios.remove(&sector);
                }
                bio
            }
        };
        bio.done_ns = now_ns;
        self.in_flight -= 1;
        Some(bio)
    }

    /// I: a request is in the scheduler.
    pub(super) fn insert(&mut self, now_ns: u64, span: Span, rw: Rw) {
        self.of_request(span, rw, |bio| {
            if bio.inserted_ns == 0 && bio.issued_ns == 0 {
                bio.inserted_ns = now_ns;
            }
        });
    }

    /// D: a request is with the driver.
    pub(super) fn issue(&mut self, now_ns: u64, span: Span, rw: Rw) {
        let mut taken = None;
        self.of_request(span, rw, |bio| {
            // Of two on the same sectors only the first is this one.
            if bio.issued_ns == 0 && taken != Some(bio.span.sector) {
                bio.issued_ns = now_ns;
                taken = (bio.span.sectors > 0).then_some(bio.span.sector);
            }
        });
    }

    /// The driver gave a request back.
    pub(super) fn requeue(&mut self, span: Span, rw: Rw) {
        self.of_request(span, rw, |bio| {
            if bio.done_ns == 0 {
                bio.issued_ns = 0;
            }
        });
    }

    /// C: sectors of a request are done. Gives the bios that are done with them.
    pub(super) fn done(&mut self, now_ns: u64, span: Span, rw: Rw) -> Vec<Bio> {
        let mut done = Vec::new();
        if span.sectors == 0 {
            let waiting = self.flushes.iter().position(|bio| bio.issued_ns == 0);
            done.extend(self.flushes.drain(..waiting.unwrap_or(self.flushes.len())));
        } else {
            let before = self.bios.range(..span.sector).next_back();
            let before = before.map(|(sector, _)| *sector);
            let within = self.bios.range(span.sector..span.end());
            let sectors: Vec<u64> = before
                .into_iter()
                .chain(within.map(|(sector, _)| *sector))
                .collect();
            for sector in sectors {
                done.extend(self.done_at(sector, span, rw));
            }
        }
        for bio in &mut done {
            bio.done_ns = now_ns;
        }
        self.in_flight -= done.len();
        done
    }

    fn done_at(&mut self, sector: u64, span: Span, rw: Rw) -> Option<Bio> {
        let bios = self.bios.get_mut(&sector)?;
        let place = bios
            .iter()
            .position(|bio| bio.issued_ns != 0 && bio.rw.action == rw.action)?;
        let bio = &mut bios[place];
        let from = bio.span.sector.max(span.sector);
        let to = bio.span.end().min(span.end());
        bio.left_sectors = bio.left_sectors.saturating_sub(to.saturating_sub(from) as u32);
        if bio.left_sectors > 0 {
            return None;
        }
        let bio = bios.remove(place);
        if bios.is_empty() {
            self.bios.remove(&sector);
        }
        bio
    }
}
