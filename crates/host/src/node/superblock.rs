//! A node's changes of its superblock. The node makes all changes that wait together: it writes them into both slots, one
//! after the other, flushes each, and then answers each change. So a table of many vSSDs is not written once for each of
//! them.

use crate::Output;
use base::{MediaOp, Page, Pool, Reserve};
use flash::{Loan, SLOTS, Ssd};
use rack::control::{Lead, Open};
use std::collections::VecDeque;
use wire::rack::Header;

/// A change of one vSSD, by the request that asks for it.
#[derive(Debug)]
pub(super) enum Job {
    Open(Header, Open),
    Move(Header),
    /// Another gateway has it from now on.
    Lead(Header),
    /// The vSSD had borrowed these blocks of this group.
    Delete(Header, Option<(usize, Vec<Loan>)>),
}

impl Job {
    pub(super) fn header(&self) -> &Header {
        let (Self::Open(header, _) | Self::Move(header) | Self::Lead(header) | Self::Delete(header, _)) =
            self;
        header
    }
}

/// The gateway that a request comes from.
pub(super) fn lead_of(header: &Header) -> Lead {
    Lead {
        addr: header.source,
        session: header.session,
    }
}

#[derive(Debug)]
struct Writing {
    jobs: Vec<Job>,
    /// Pages of the slots that come after the present one.
    slots: VecDeque<Vec<(u64, Page)>>,
    /// Writes of the present one that are under way.
    left: usize,
    flushing: bool,
    failed: bool,
}

/// The changes that wait, and those that are being written.
#[derive(Debug)]
pub(super) struct Changes {
    /// Number of the media operations.
    id: u64,
    /// Of the pool, what a change is written from.
    reserve: Reserve,
    queue: VecDeque<Job>,
    writing: Option<Writing>,
    /// A write or flush failed: which of the slots holds what is not known before the next start, and nothing more is
    /// written there.
    latched: bool,
}

/// Pages of both slots with so many vSSDs.
fn pages(ssd: &Ssd, vssds: usize) -> usize {
    SLOTS as usize * ssd.superblock_page_count(vssds)
}

impl Changes {
    /// None yet. Memory for a whole table is kept back, so that none waits for clients.
    pub(super) fn new(id: u64, pool: &Pool, ssd: &Ssd) -> Self {
        Self {
            id,
            reserve: pool.reserve(pages(ssd, ssd.vssds_max())),
            queue: VecDeque::new(),
            writing: None,
            latched: false,
        }
    }

    pub(super) fn is_latched(&self) -> bool {
        self.latched
    }

    /// True if nothing waits or is being written.
    pub(super) fn is_idle(&self) -> bool {
        self.writing.is_none() && self.queue.is_empty()
    }

    /// True if there is such a change.
    pub(super) fn any(&self, is_it: impl Fn(&Job) -> bool) -> bool {
        let writing = self.writing.iter().flat_map(|writing| &writing.jobs);
        self.queue.iter().chain(writing).any(is_it)
    }

    pub(super) fn push(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    /// The changes to begin now: as many as there is memory for, the rest waits. After a failure all, to be refused.
    pub(super) fn take(&mut self, ssd: &Ssd) -> Vec<Job> {
        if self.writing.is_some() {
            return Vec::new();
        }
        let (available, present) = (self.reserve.available(), ssd.vssds().len());
        let fits = |count: &usize| self.latched || pages(ssd, present + count) <= available;
        let count = (1..=self.queue.len()).rev().find(fits).unwrap_or(0);
        self.queue.drain(..count).collect()
    }

    /// Writes the superblock, in which these were changed just now.
    pub(super) fn write(&mut self, ssd: &mut Ssd, jobs: Vec<Job>, out: &mut VecDeque<Output>) {
        let slots = (0..SLOTS).map(|_| {
            let pages = ssd.superblock_pages().into_iter();
            let page = |(offset, bytes): (u64, Vec<u8>)| {
                let page = self
                    .reserve
                    .alloc()
                    .expect("there are enough, as was seen just now");
                page.with_mut(|target| target.copy_from_slice(&bytes));
                (offset, page)
            };
            pages.map(page).collect()
        });
        self.writing = Some(Writing {
            jobs,
            slots: slots.collect(),
            left: 0,
            flushing: false,
            failed: false,
        });
        self.write_slot(out);
    }

    /// Writes the next slot. False if both have the changes.
    fn write_slot(&mut self, out: &mut VecDeque<Output>) -> bool {
        let writing = self.writing.as_mut().expect("something is to be written");
        let Some(pages) = writing.slots.pop_front() else {
            return false;
        };
        (writing.left, writing.flushing) = (pages.len(), false);
        let writes = pages
            .into_iter()
            .map(|(offset, page)| MediaOp::write(self.id, offset, page));
        out.extend(writes.map(Output::Media));
        true
    }

    /// A write or flush is done. Returns what was changed when all is written, and if it failed.
    pub(super) fn done(&mut self, failed: bool, out: &mut VecDeque<Output>) -> Option<(Vec<Job>, bool)> {
        let writing = self.writing.as_mut()?;
        writing.failed |= failed;
        if !writing.flushing {
            writing.left -= 1;
            if writing.left == 0 {
                writing.flushing = true;
                out.push_back(Output::Media(MediaOp::flush(self.id)));
            }
            return None;
        }
        if !writing.failed && self.write_slot(out) {
            return None;
        }
        let writing = self.writing.take()?;
        self.latched |= writing.failed;
        Some((writing.jobs, writing.failed))
    }
}
