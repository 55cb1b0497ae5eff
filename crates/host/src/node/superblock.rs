//! A node's changes of its superblock. The node makes all changes that wait together: it writes them into both slots, one
//! after the other, flushes each, and then answers each change. So a table of many vSSDs is not written once for each of
//! them.
//!
//! When a pass of scrubbing begins, both slots are read, page by page. A slot that does not hold what it should is written
//! anew. The other one is left alone meanwhile.

use crate::Output;
use base::{MediaError, MediaOp, Page, Pool, Reserve, VssdId};
use flash::{Loan, SLOTS, Ssd};
use rack::control::{Lead, Open};
use std::collections::{BTreeSet, VecDeque};
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

    fn deletes(&self) -> Option<VssdId> {
        matches!(self, Self::Delete(..)).then(|| self.header().vssd)
    }
}

/// The gateway that a request comes from.
pub(super) fn lead_of(header: &Header) -> Lead {
    Lead {
        addr: header.source,
        session: header.session,
    }
}

/// A slot that is read, and what it is to hold.
#[derive(Debug)]
struct Check {
    slot: u32,
    pages: Vec<(u64, Vec<u8>)>,
    /// The page that is being read.
    next: usize,
    /// Where the first damage of the slot is.
    damaged: Option<u64>,
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
    check: Option<Check>,
    /// A write or flush failed: which of the slots holds what is not known before the next start, and nothing more is
    /// written there.
    latched: bool,
    /// vSSDs of which a change did not reach the medium.
    lost: BTreeSet<VssdId>,
    /// Deleted vSSDs that the medium may still have.
    kept: BTreeSet<VssdId>,
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
            check: None,
            latched: false,
            lost: BTreeSet::new(),
            kept: BTreeSet::new(),
        }
    }

    pub(super) fn is_latched(&self) -> bool {
        self.latched
    }

    /// True if the medium does not have a change that the vSSD has in memory already: nobody is told before a restart that it has.
    pub(super) fn has_lost(&self, vssd: VssdId) -> bool {
        self.lost.contains(&vssd)
    }

    /// vSSDs that are being deleted, and those that were when the medium failed: the next start may find them.
    pub(super) fn deleting(&self) -> impl Iterator<Item = VssdId> {
        let jobs = self.jobs().filter_map(Job::deletes);
        jobs.chain(self.kept.iter().copied())
    }

    /// True if nothing waits, is being written, or is being read.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_busy() && self.queue.is_empty()
    }

    fn is_busy(&self) -> bool {
        self.writing.is_some() || self.check.is_some()
    }

    /// Those that wait, and those that are being written.
    fn jobs(&self) -> impl Iterator<Item = &Job> {
        let writing = self.writing.iter().flat_map(|writing| &writing.jobs);
        self.queue.iter().chain(writing)
    }

    /// True if there is such a change.
    pub(super) fn any(&self, is_it: impl Fn(&Job) -> bool) -> bool {
        self.jobs().any(is_it)
    }

    pub(super) fn push(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    /// The changes to begin now: as many as there is memory for, the rest waits. After a failure all, to be refused.
    pub(super) fn take(&mut self, ssd: &Ssd) -> Vec<Job> {
        if self.is_busy() {
            return Vec::new();
        }
        let (available, present) = (self.reserve.available(), ssd.vssds().len());
        let fits = |count: &usize| self.latched || pages(ssd, present + count) <= available;
        let count = (1..=self.queue.len()).rev().find(fits).unwrap_or(0);
        let jobs: Vec<Job> = self.queue.drain(..count).collect();
        if self.latched {
            self.lose(&jobs);
        }
        jobs
    }

    /// Writes the superblock, in which these were changed just now.
    pub(super) fn write(&mut self, ssd: &mut Ssd, jobs: Vec<Job>, out: &mut VecDeque<Output>) {
        let slots = (0..SLOTS).map(|_| {
            let pages = ssd.superblock_pages().into_iter();
            let page = |(offset, bytes): (u64, Vec<u8>)| {
                let page = self.page_of(&bytes);
                (offset, page.expect("there are enough, as was seen just now"))
            };
            pages.map(page).collect()
        });
        let slots = slots.collect();
        self.begin(jobs, slots, out);
    }

    fn begin(&mut self, jobs: Vec<Job>, slots: VecDeque<Vec<(u64, Page)>>, out: &mut VecDeque<Output>) {
        self.writing = Some(Writing {
            jobs,
            slots,
            left: 0,
            flushing: false,
            failed: false,
        });
        self.write_slot(out);
    }

    fn page_of(&self, bytes: &[u8]) -> Option<Page> {
        let page = self.reserve.alloc()?;
        page.with_mut(|target| target.copy_from_slice(bytes));
        Some(page)
    }

    /// Reads both slots, unless a change writes them just now.
    pub(super) fn check(&mut self, ssd: &Ssd, out: &mut VecDeque<Output>) {
        if self.is_idle() && !self.latched {
            self.check_slot(ssd, 0, out);
        }
    }

    fn check_slot(&mut self, ssd: &Ssd, slot: u32, out: &mut VecDeque<Output>) {
        self.check = (slot < SLOTS).then(|| Check {
            slot,
            pages: ssd.slot_pages(slot),
            next: 0,
            damaged: None,
        });
        self.read_next(out);
    }

    /// Reads the next page of a slot. Without memory for it the next pass begins anew.
    fn read_next(&mut self, out: &mut VecDeque<Output>) {
        let Some(check) = &self.check else { return };
        let Some(page) = self.reserve.alloc() else {
            self.check = None;
            return;
        };
        let (offset, _) = check.pages[check.next];
        out.push_back(Output::Media(MediaOp::read(self.id, offset, page)));
    }

    /// A page of a slot was read. Returns where the slot is damaged, when all of it was read: it is written anew.
    pub(super) fn was_read(
        &mut self,
        ssd: &Ssd,
        read: Result<&Page, MediaError>,
        out: &mut VecDeque<Output>,
    ) -> Option<u64> {
        let check = self.check.as_mut()?;
        if matches!(read, Err(MediaError::TimedOut)) {
            // That says nothing of what the medium holds.
            self.check = None;
            return None;
        }
        let (offset, wanted) = &check.pages[check.next];
        if !read.is_ok_and(|page| page.with(|bytes| bytes == &wanted[..])) {
            check.damaged.get_or_insert(*offset);
        }
        check.next += 1;
        if check.next < check.pages.len() {
            self.read_next(out);
            return None;
        }
        let (slot, damaged) = (check.slot, check.damaged);
        if damaged.is_none() {
            self.check_slot(ssd, slot + 1, out);
            return None;
        }
        let wanted = core::mem::take(&mut check.pages);
        let page = |(offset, bytes): &(u64, Vec<u8>)| Some((*offset, self.page_of(bytes)?));
        match wanted.iter().map(page).collect() {
            Some(pages) => self.begin(Vec::new(), VecDeque::from([pages]), out),
            None => self.check = None,
        }
        damaged
    }

    /// If a slot was written anew that was damaged, the next one is read.
    pub(super) fn go_on_checking(&mut self, ssd: &Ssd, out: &mut VecDeque<Output>) {
        if let Some(check) = self.check.take().filter(|_| !self.latched) {
            self.check_slot(ssd, check.slot + 1, out);
        }
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
        if writing.failed {
            self.latched = true;
            self.lose(&writing.jobs);
        }
        Some((writing.jobs, writing.failed))
    }

    fn lose(&mut self, jobs: &[Job]) {
        let moved = jobs.iter().filter(|job| matches!(job, Job::Move(_)));
        self.lost.extend(moved.map(|job| job.header().vssd));
        self.kept.extend(jobs.iter().filter_map(Job::deletes));
    }
}
