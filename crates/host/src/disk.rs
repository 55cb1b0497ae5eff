//! A vSSD as a disk of its own: block requests of one machine's clients in, operations of a medium out. No replication,
//! no network: what a node's unit does with packets this does with requests.
//!
//! A write is acknowledged when the write cache has it, as a drive with a volatile cache does; with FUA, and after a
//! flush, it is on the medium. Write-back, collection and recovery are those of a node.
//!
//! Invariants:
//! - Every request is answered exactly once.
//! - A page is changed by one writer at a time: parts of a page that come while it is read lie over it in their order.
//! - One call does a bounded number of pages ([`STEP_PAGES`]); what is left goes on at the next tick, which is due at once.
//!   Pages of several requests take turns, so that a small request does not wait for all of a large one.
//! - After a failed write or flush of the medium nothing is written any more (latched); reads go on.
//! - Versions of pages grow over restarts: they begin with the number of the start, which is durable before the first.

use crate::gateway::merge::{Merged, Part, merge};
use crate::{Input, Output};
use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::time::earliest;
use base::{
    BlockError, BlockOp, BlockReply, BlockRequest, Device, Duration, Instant, Lpn, Machine, Map, Page, Pages,
    Pool, Slab, Version, VssdId,
};
use flash::{
    CreateError, Data, Event, GcMode, OpenError, RecoverError, RecoveryReport, Request, Ssd, Timing, Vssd,
    VssdConfig, VssdError,
};
use rack::cache::{Cache, Cached};
use std::collections::VecDeque;
use thiserror::Error;

/// Share of a disk's flash that clients do not see, where nobody names a size.
pub const SPARE_RATIO: f64 = 0.25;
/// Pages that one call begins or writes back at most.
pub const STEP_PAGES: usize = 256;
/// Data that nobody adds to any more is written back after this.
const WRITE_BACK_IDLE: Duration = Duration::from_millis(200);
/// Without requests for this long the time is used to collect (RackBlox's artifact: 30 ms).
const GC_IDLE: Duration = Duration::from_millis(30);
/// When to try again after the pool was empty.
const STARVED_RETRY: Duration = Duration::from_micros(100);
/// Bits of a version below the number of the start: 2^40 changes of pages between two starts.
const START_SHIFT: u32 = 40;
/// What the superblock says of a disk's vSSD, in place of the replicas of a node's.
const MARK: &[u8] = b"disk";
/// A disk is the only vSSD of its medium.
const VSSD: VssdId = VssdId(1);

const KIND_SHIFT: u32 = 56;
const TAG_READ: u64 = 1 << KIND_SHIFT;
const TAG_FETCH: u64 = 2 << KIND_SHIFT;
const TAG_WRITE: u64 = 3 << KIND_SHIFT;
const TAG_FLUSH: u64 = 4 << KIND_SHIFT;
const TAG_STOP_FLUSH: u64 = 5 << KIND_SHIFT;
const TAG_STOP_CHECKPOINT: u64 = 6 << KIND_SHIFT;
const TAG_VALUE: u64 = (1 << KIND_SHIFT) - 1;
/// A read's tag is the request's slot above the page's place in it.
const PLACE_BITS: u32 = 20;

/// Why a disk cannot be started.
#[derive(Debug, Error)]
pub enum DiskError {
    /// The superblock.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its only vSSD cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The medium has vSSDs that are not a disk.
    #[error("the medium belongs to a node of a rack")]
    Rack,
    /// It has another size than was asked for.
    #[error("the disk was made with {have_bytes} bytes, not {asked_bytes}")]
    Size {
        /// Its size.
        have_bytes: u64,
        /// The size asked for.
        asked_bytes: u64,
    },
    /// It cannot be recovered.
    #[error("{0}")]
    Recover(#[from] RecoverError),
    /// The pool has no page.
    #[error("the pool of pages is too small")]
    Pool,
}

/// A disk on a medium, known and not yet started.
#[derive(Debug)]
pub struct DiskEntry(Ssd);

impl DiskEntry {
    /// Finds the disk on a formatted medium, or makes it, of `size_bytes` or what leaves [`SPARE_RATIO`] of the flash.
    /// The start is counted; all of it is durable on return.
    ///
    /// # Errors
    /// The medium is not formatted, or another's; the size is not the disk's, or too large.
    pub fn open(medium: &mut dyn Device, size_bytes: Option<u64>) -> Result<Self, DiskError> {
        let mut ssd = Ssd::open(medium, PAGE_BYTES)?;
        match ssd.vssds() {
            [] => {
                let geometry = *ssd.geometry();
                let max = geometry.logical_pages_max(geometry.channels);
                let pages = match size_bytes {
                    // Too many for a page number are refused as more than `max`.
                    Some(bytes) => u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX),
                    None => ((f64::from(geometry.pages()) * (1.0 - SPARE_RATIO)) as u32).min(max),
                };
                ssd.create(VSSD, geometry.channels, pages, MARK.to_vec())?;
                for (offset, bytes) in ssd.superblock_pages() {
                    medium.write_at(offset, &bytes).map_err(OpenError::from)?;
                }
                medium.flush().map_err(OpenError::from)?;
            }
            [entry] if entry.config == MARK => {}
            _ => return Err(DiskError::Rack),
        }
        let entry = Self(ssd);
        let whole_pages = |bytes: u64| bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        match size_bytes.map(whole_pages) {
            Some(asked_bytes) if asked_bytes != entry.size_bytes() => Err(DiskError::Size {
                have_bytes: entry.size_bytes(),
                asked_bytes,
            }),
            _ => Ok(entry),
        }
    }

    /// Its size in bytes, whole pages.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.0.vssds()[0].logical_pages) * PAGE_BYTES as u64
    }

    /// Channels of its flash.
    pub fn channels(&self) -> u32 {
        self.0.geometry().channels
    }
}

/// How a disk is served.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Emulated device time.
    pub timing: Timing,
    /// What collection does to other work.
    pub gc_mode: GcMode,
    /// Pages of the write cache.
    pub cache_pages: usize,
    /// Reads in the flash at once.
    pub read_depth: usize,
    /// Write-backs in the flash at once.
    pub write_depth: usize,
    /// Write-back starts when the cache is fuller than this.
    pub dirty_ratio_low: f64,
}

impl DiskConfig {
    /// Collection in steps of 8 pages, a cache of 2048 pages, 64 reads and writes at once. With timing less, as a plane
    /// of flash serves in order of arrival: two for each of the `channels`.
    pub fn new(timing: Timing, channels: u32) -> Self {
        let depth = if timing.is_none() {
            64
        } else {
            2 * channels as usize
        };
        Self {
            timing,
            gc_mode: GcMode::Preemptible { step_pages: 8 },
            cache_pages: 2048,
            read_depth: depth,
            write_depth: depth,
            dirty_ratio_low: 0.5,
        }
    }
}

/// A request under way.
#[derive(Debug)]
struct Work {
    client: u32,
    tag: u64,
    op: BlockOp,
    fua: bool,
    offset: u64,
    length: u64,
    /// Data of a write.
    pages: Pages,
    /// What a read has found.
    found: Vec<Option<Page>>,
    /// Pages begun.
    begun: u32,
    /// Pages not done.
    left: u32,
    /// With FUA, what has to be written back.
    marks: Vec<u64>,
    error: Option<BlockError>,
}

impl Work {
    fn pages(&self) -> u32 {
        let page = PAGE_BYTES as u64;
        ((self.offset + self.length).div_ceil(page) - self.offset / page) as u32
    }

    fn lpn(&self, place: u32) -> Lpn {
        Lpn((self.offset / PAGE_BYTES as u64) as u32 + place)
    }

    /// First sector and number of sectors of a page that are the request's.
    fn sectors(&self, place: u32) -> (usize, usize) {
        let start = u64::from(self.lpn(place).0) * PAGE_BYTES as u64;
        let (first, end) = (
            self.offset.max(start),
            (self.offset + self.length).min(start + PAGE_BYTES as u64),
        );
        let sector = SECTOR_BYTES as u64;
        (
            ((first - start) / sector) as usize,
            ((end - first) / sector) as usize,
        )
    }
}

/// Changes of one page that cannot be made yet.
#[derive(Debug, Default)]
struct Line {
    parts: Vec<Part>,
    /// What the page holds is being read.
    fetching: bool,
    /// What it holds: nothing yet, zeros, or a page.
    old: Option<Option<Page>>,
}

/// A request that waits for the medium.
#[derive(Debug)]
struct Job {
    slot: u32,
    /// Everything below is to be written back first.
    below: u64,
    /// These are to be written back first.
    marks: Vec<u64>,
}

/// How far a clean stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    No,
    WriteBack,
    Flush,
    Checkpoint,
    Done,
}

/// A vSSD, served to clients of its own machine.
pub struct Disk {
    config: DiskConfig,
    gc: rack::gc::Config,
    flash: Vssd,
    report: RecoveryReport,
    pool: Pool,
    zero: Page,
    cache: Cache,
    version: Version,
    works: Slab<Work>,
    /// Reads with pages to begin, and changes, in turns.
    reading: VecDeque<u32>,
    changing: VecDeque<u32>,
    lines: Map<u32, Line>,
    /// Lines that wait for room in the cache or for memory.
    stuck: VecDeque<Lpn>,
    jobs_waiting: Vec<Job>,
    jobs_ready: Vec<Job>,
    jobs_flushing: Vec<Job>,
    flush_in_flight: bool,
    reads_in_flight: usize,
    writes_in_flight: usize,
    media_in_flight: usize,
    asked_at: Instant,
    written_at: Instant,
    written_since_gc: bool,
    collecting: bool,
    latched: bool,
    stop: Stop,
    /// Pages that this call may still do.
    budget: usize,
    starved: bool,
    now: Instant,
    out: VecDeque<Output>,
}

impl Disk {
    /// Starts a disk from what its medium holds.
    ///
    /// # Errors
    /// It cannot be recovered, or the pool is empty.
    pub fn start(
        now: Instant,
        entry: &DiskEntry,
        config: DiskConfig,
        pool: Pool,
        medium: &dyn Device,
    ) -> Result<Self, DiskError> {
        let ssd = &entry.0;
        let (vssd, geometry) = (&ssd.vssds()[0], ssd.geometry());
        let mut flash_config = VssdConfig::new(vssd, geometry, PAGE_BYTES);
        flash_config.timing = config.timing.clone();
        flash_config.gc = config.gc_mode;
        let (flash, report) = Vssd::recover(flash_config, pool.clone(), medium)?;
        let spare = 1.0 - f64::from(vssd.logical_pages) / f64::from(geometry.pages());
        assert!(
            ssd.boot() >> (63 - START_SHIFT) == 0,
            "a disk starts less than 2^23 times"
        );
        Ok(Self {
            gc: rack::gc::Config::for_spare(spare),
            flash,
            report,
            zero: pool.alloc_zeroed().ok_or(DiskError::Pool)?,
            cache: Cache::new(config.cache_pages.clamp(16, (pool.capacity() / 8).max(16))),
            pool,
            config,
            version: Version(u64::from(ssd.boot()) << START_SHIFT),
            works: Slab::new(),
            reading: VecDeque::new(),
            changing: VecDeque::new(),
            lines: Map::new(),
            stuck: VecDeque::new(),
            jobs_waiting: Vec::new(),
            jobs_ready: Vec::new(),
            jobs_flushing: Vec::new(),
            flush_in_flight: false,
            reads_in_flight: 0,
            writes_in_flight: 0,
            media_in_flight: 0,
            asked_at: now,
            written_at: now,
            written_since_gc: true,
            collecting: false,
            latched: false,
            stop: Stop::No,
            budget: 0,
            starved: false,
            now,
            out: VecDeque::new(),
        })
    }

    /// What recovery found.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// The flash, to look at.
    pub fn flash(&self) -> &Vssd {
        &self.flash
    }

    /// Stops cleanly: writes everything back, flushes, and ends with a checkpoint. Changes are refused from now on.
    /// [`is_quiet`](Disk::is_quiet) tells when it is done.
    pub fn drain(&mut self, now: Instant) {
        if self.stop == Stop::No {
            self.stop = Stop::WriteBack;
        }
        self.pump(now);
    }

    /// True when, after [`drain`](Disk::drain), all of it is durable and nothing is in flight. A latched disk can do no
    /// more, and is quiet when nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        self.media_in_flight == 0 && (self.latched || self.stop == Stop::Done)
    }

    fn request(&mut self, request: BlockRequest) {
        self.asked_at = self.now;
        let changes = !matches!(request.op, BlockOp::Read | BlockOp::Flush);
        if let Err(error) = self.judge(&request, changes) {
            return self.reply(request.client, request.tag, Err(error));
        }
        let mut work = Work {
            client: request.client,
            tag: request.tag,
            op: request.op,
            fua: request.fua && changes,
            offset: request.offset,
            length: u64::from(request.length),
            pages: request.pages,
            found: Vec::new(),
            begun: 0,
            left: 0,
            marks: Vec::new(),
            error: None,
        };
        work.left = if work.length == 0 { 0 } else { work.pages() };
        if request.op == BlockOp::Read {
            work.found.resize(work.left as usize, None);
        }
        let (left, op) = (work.left, work.op);
        let slot = self.works.insert(work);
        match op {
            BlockOp::Flush => self.add_job(Job {
                slot,
                below: self.cache.mark(),
                marks: Vec::new(),
            }),
            _ if left == 0 => self.finish(slot),
            BlockOp::Read => self.reading.push_back(slot),
            _ => self.changing.push_back(slot),
        }
    }

    fn judge(&self, request: &BlockRequest, changes: bool) -> Result<(), BlockError> {
        let sector = SECTOR_BYTES as u64;
        let aligned =
            request.offset.is_multiple_of(sector) && u64::from(request.length).is_multiple_of(sector);
        let end = request.offset.checked_add(u64::from(request.length));
        let size_bytes = u64::from(self.flash.logical_pages()) * PAGE_BYTES as u64;
        if !aligned || end.is_none_or(|end| end > size_bytes) {
            return Err(BlockError::Invalid);
        }
        match () {
            () if self.latched && request.op != BlockOp::Read => Err(BlockError::Io),
            () if self.stop != Stop::No && changes => Err(BlockError::Shutdown),
            () => Ok(()),
        }
    }

    fn reply(&mut self, client: u32, tag: u64, result: Result<Pages, BlockError>) {
        self.out
            .push_back(Output::Reply(BlockReply { client, tag, result }));
    }

    /// A page of a request is done.
    fn page_done(&mut self, slot: u32, result: Result<(), BlockError>) {
        let work = &mut self.works[slot];
        work.left -= 1;
        if let Err(error) = result {
            work.error.get_or_insert(error);
        }
        if work.left == 0 {
            self.finish(slot);
        }
    }

    /// All pages of a request are done.
    fn finish(&mut self, slot: u32) {
        let work = &mut self.works[slot];
        if work.fua && work.error.is_none() && work.length > 0 {
            let marks = core::mem::take(&mut work.marks);
            if self.latched {
                self.works[slot].error = Some(BlockError::Io);
            } else {
                return self.add_job(Job {
                    slot,
                    below: 0,
                    marks,
                });
            }
        }
        self.answer(slot);
    }

    fn answer(&mut self, slot: u32) {
        let work = self.works.remove(slot);
        let result = match work.error {
            Some(error) => Err(error),
            None => {
                let found = work.found.into_iter();
                Ok(found.map(|page| page.expect("every page was read")).collect())
            }
        };
        self.reply(work.client, work.tag, result);
    }

    /// A request that waited for the medium ends.
    fn finish_job(&mut self, job: &Job, result: Result<(), BlockError>) {
        self.works[job.slot].error = result.err();
        self.answer(job.slot);
    }

    fn add_job(&mut self, job: Job) {
        if self.is_due(&job) {
            self.jobs_ready.push(job);
        } else {
            self.jobs_waiting.push(job);
        }
    }

    fn is_due(&self, job: &Job) -> bool {
        self.cache.is_written_below(job.below) && job.marks.iter().all(|&mark| self.cache.is_written_at(mark))
    }

    /// Carries everything on that can go on now, within the budget.
    fn pump(&mut self, now: Instant) {
        self.now = now;
        self.budget = STEP_PAGES;
        self.starved = false;
        loop {
            let mut progress = self.step_stuck();
            progress |= self.step_changes();
            progress |= self.step_reads();
            self.issue();
            progress |= self.drain_flash();
            progress |= self.step_stop();
            progress |= self.collect();
            if !progress {
                break;
            }
        }
    }

    /// Tries the lines again that wait for room or memory.
    fn step_stuck(&mut self) -> bool {
        let count = self.stuck.len();
        for _ in 0..count {
            let lpn = self.stuck.pop_front().expect("just counted");
            self.settle(lpn);
        }
        self.stuck.len() < count
    }

    /// Begins pages of changes, in turns.
    fn step_changes(&mut self) -> bool {
        let mut progress = false;
        while self.budget > 0
            && let Some(&slot) = self.changing.front()
        {
            let work = &mut self.works[slot];
            let (place, lpn) = (work.begun, work.lpn(work.begun));
            if !self.cache.has_room(lpn) && !self.lines.contains_key(&lpn.0) {
                break;
            }
            self.changing.pop_front();
            self.budget -= 1;
            progress = true;
            let work = &mut self.works[slot];
            work.begun += 1;
            if work.begun < work.pages() {
                self.changing.push_back(slot);
            }
            self.change(slot, place, lpn);
        }
        progress
    }

    /// Changes one page, or lets that wait for what the page holds.
    fn change(&mut self, slot: u32, place: u32, lpn: Lpn) {
        let work = &mut self.works[slot];
        let (first, count) = work.sectors(place);
        let part = Part {
            request: slot,
            page: work.pages.get(place as usize).cloned(),
            first,
            count,
            durable: work.fua,
        };
        if let Some(line) = self.lines.get_mut(&lpn.0) {
            return line.parts.push(part);
        }
        let never_written = part.page.is_none() && self.cache.get(lpn).is_none();
        if never_written && self.flash.version(lpn) == Version::NONE {
            // It reads as zeros already.
            return self.page_done(slot, Ok(()));
        }
        self.lines.insert(
            lpn.0,
            Line {
                parts: vec![part],
                ..Line::default()
            },
        );
        self.settle(lpn);
    }

    /// Makes the changes of a line, if what the page holds is known and there is room.
    fn settle(&mut self, lpn: Lpn) {
        let Some(line) = self.lines.get_mut(&lpn.0).filter(|line| !line.fetching) else {
            return;
        };
        if !self.cache.has_room(lpn) {
            return self.stuck.push_back(lpn);
        }
        let fresh = self.flash.version(lpn) == Version::NONE;
        let old = match (self.cache.get(lpn), &line.old) {
            (Some(cached), _) => Some(cached.page.as_ref()),
            (None, Some(old)) => Some(old.as_ref()),
            (None, None) => fresh.then_some(None),
        };
        let page = match merge(&line.parts, old, &self.pool) {
            Merged::Zero => None,
            Merged::Page(page) => Some(page),
            Merged::NoMemory => {
                self.starved = true;
                return self.stuck.push_back(lpn);
            }
            Merged::NeedsRead => {
                line.fetching = true;
                let tag = TAG_FETCH | u64::from(lpn.0);
                return self.flash.submit(self.now, Request::Read { tag, lpn });
            }
        };
        self.version.0 += 1;
        let cached = Cached {
            version: self.version,
            crc: page.as_ref().map_or(0, Page::crc),
            page,
        };
        self.cache.put(lpn, cached);
        self.written_at = self.now;
        self.written_since_gc = true;
        let line = self.lines.remove(&lpn.0).expect("just seen");
        for part in line.parts {
            if part.durable {
                let mark = self.cache.mark_of(lpn).expect("just put");
                self.works[part.request].marks.push(mark);
                self.cache.expedite(lpn);
            }
            self.page_done(part.request, Ok(()));
        }
    }

    /// What a page holds is known, or will never be.
    fn fetched(&mut self, lpn: Lpn, result: Result<Data, VssdError>) {
        let Some(line) = self.lines.get_mut(&lpn.0) else {
            // Given up when the medium failed.
            return;
        };
        line.fetching = false;
        let whole = line
            .parts
            .iter()
            .any(|part| part.count == PAGE_BYTES / SECTOR_BYTES);
        match result {
            Ok(Data::Page { page, .. }) => line.old = Some(Some(page)),
            Ok(Data::Zero { .. } | Data::None) => line.old = Some(None),
            // All of it is written anew.
            Err(_) if whole => {}
            Err(_) => {
                let line = self.lines.remove(&lpn.0).expect("just seen");
                for part in line.parts {
                    self.page_done(part.request, Err(BlockError::Io));
                }
                return;
            }
        }
        self.settle(lpn);
    }

    /// Begins pages of reads, in turns.
    fn step_reads(&mut self) -> bool {
        let mut progress = false;
        while self.budget > 0
            && self.reads_in_flight < self.config.read_depth
            && let Some(slot) = self.reading.pop_front()
        {
            self.budget -= 1;
            progress = true;
            let work = &mut self.works[slot];
            let (place, lpn) = (work.begun, work.lpn(work.begun));
            work.begun += 1;
            if work.begun < work.pages() {
                self.reading.push_back(slot);
            }
            if let Some(cached) = self.cache.get(lpn) {
                let page = cached.page.clone();
                self.found(slot, place, Ok(page));
                continue;
            }
            self.reads_in_flight += 1;
            let tag = TAG_READ | u64::from(slot) << PLACE_BITS | u64::from(place);
            self.flash.submit(self.now, Request::Read { tag, lpn });
        }
        progress
    }

    fn found(&mut self, slot: u32, place: u32, page: Result<Option<Page>, BlockError>) {
        let zero = self.zero.clone();
        let result = page.map(|page| {
            self.works[slot].found[place as usize] = Some(page.unwrap_or(zero));
        });
        self.page_done(slot, result);
    }

    fn wants_write_back(&self) -> bool {
        let waits = !self.jobs_waiting.is_empty() || !self.stuck.is_empty() || !self.changing.is_empty();
        let is_full = self.cache.len() as f64 > self.config.dirty_ratio_low * self.cache.capacity() as f64;
        !self.latched
            && (self.stop != Stop::No || waits || is_full || self.now >= self.written_at + WRITE_BACK_IDLE)
    }

    /// Issues write-backs and flushes to the flash.
    fn issue(&mut self) {
        while self.budget > 0
            && self.writes_in_flight < self.config.write_depth
            && self.wants_write_back()
            && let Some((lpn, _)) = self.cache.next_write()
        {
            self.budget -= 1;
            self.writes_in_flight += 1;
            let tag = TAG_WRITE | u64::from(lpn.0);
            let Cached { version, crc, page } = self.cache.begin(lpn);
            let request = match page {
                Some(page) => Request::Write {
                    tag,
                    lpn,
                    version,
                    crc,
                    page,
                },
                None => Request::Zero { tag, lpn, version },
            };
            self.flash.submit(self.now, request);
        }
        if !self.flush_in_flight && !self.jobs_ready.is_empty() {
            self.flush_in_flight = true;
            core::mem::swap(&mut self.jobs_flushing, &mut self.jobs_ready);
            self.flash.submit(self.now, Request::Flush { tag: TAG_FLUSH });
        }
    }

    fn drain_flash(&mut self) -> bool {
        let mut progress = false;
        while let Some(event) = self.flash.poll() {
            match event {
                Event::Media(op) => {
                    self.media_in_flight += 1;
                    self.out.push_back(Output::Media(op));
                }
                Event::GcDone => self.collecting = false,
                Event::GcForced if self.collecting => {}
                Event::GcForced => self.start_collection(),
                Event::Borrow | Event::Return => unreachable!("a disk has its channels for itself"),
                Event::Done { tag, result } => {
                    progress = true;
                    self.flash_done(tag, result);
                }
            }
        }
        progress
    }

    fn flash_done(&mut self, tag: u64, result: Result<Data, VssdError>) {
        let value = tag & TAG_VALUE;
        match tag & !TAG_VALUE {
            TAG_READ => {
                self.reads_in_flight -= 1;
                let (slot, place) = (
                    (value >> PLACE_BITS) as u32,
                    value as u32 & ((1 << PLACE_BITS) - 1),
                );
                let page = match result {
                    Ok(Data::Page { page, .. }) => Ok(Some(page)),
                    Ok(Data::Zero { .. } | Data::None) => Ok(None),
                    Err(_) => Err(BlockError::Io),
                };
                self.found(slot, place, page);
            }
            TAG_FETCH => self.fetched(Lpn(value as u32), result),
            TAG_WRITE => self.write_done(Lpn(value as u32), result),
            TAG_FLUSH => {
                self.flush_in_flight = false;
                if result.is_err() {
                    return self.latch();
                }
                for job in core::mem::take(&mut self.jobs_flushing) {
                    self.finish_job(&job, Ok(()));
                }
            }
            TAG_STOP_FLUSH | TAG_STOP_CHECKPOINT if result.is_err() => self.latch(),
            TAG_STOP_FLUSH => {
                self.stop = Stop::Checkpoint;
                self.flash.checkpoint(self.now, TAG_STOP_CHECKPOINT);
            }
            TAG_STOP_CHECKPOINT => self.stop = Stop::Done,
            _ => unreachable!("the flash echoes tags"),
        }
    }

    fn write_done(&mut self, lpn: Lpn, result: Result<Data, VssdError>) {
        self.writes_in_flight -= 1;
        if result.is_err() {
            return self.latch();
        }
        self.cache.wrote(lpn);
        let mut index = 0;
        while index < self.jobs_waiting.len() {
            if self.is_due(&self.jobs_waiting[index]) {
                let job = self.jobs_waiting.swap_remove(index);
                self.jobs_ready.push(job);
            } else {
                index += 1;
            }
        }
    }

    /// The medium failed: what waits for it fails, and so will every change and flush from now on.
    fn latch(&mut self) {
        if core::mem::replace(&mut self.latched, true) {
            return;
        }
        let mut jobs = core::mem::take(&mut self.jobs_waiting);
        jobs.append(&mut self.jobs_ready);
        jobs.append(&mut self.jobs_flushing);
        for job in jobs {
            self.finish_job(&job, Err(BlockError::Io));
        }
        self.stuck.clear();
        for key in self.lines.sorted_keys() {
            let line = self.lines.remove(&key).expect("one of the keys");
            for part in line.parts {
                self.page_done(part.request, Err(BlockError::Io));
            }
        }
        while let Some(slot) = self.changing.pop_front() {
            let work = &mut self.works[slot];
            work.error = Some(BlockError::Io);
            work.left -= work.pages() - work.begun;
            if work.left == 0 {
                self.finish(slot);
            }
        }
    }

    /// Begins collecting when it is time: below one threshold at once, below a higher one when nobody asks for anything.
    fn collect(&mut self) -> bool {
        let idle = self.now >= self.asked_at + GC_IDLE;
        let due = !self.collecting
            && self.wants_collection()
            && (idle || self.flash.free_ratio() < self.gc.soft_ratio);
        if due {
            self.start_collection();
        }
        due
    }

    fn start_collection(&mut self) {
        self.collecting = true;
        self.written_since_gc = false;
        self.flash.start_gc(self.now, self.gc.restore_ratio);
    }

    /// A full disk that nobody writes rests; a stop begins no collection: what it moved would follow the checkpoint.
    fn wants_collection(&self) -> bool {
        self.written_since_gc
            && self.stop == Stop::No
            && !self.latched
            && self.flash.free_ratio() < self.gc.background_ratio
    }

    /// Carries a clean stop on.
    fn step_stop(&mut self) -> bool {
        let waits = !self.lines.is_empty() || !self.changing.is_empty();
        let jobs = !self.jobs_waiting.is_empty() || !self.jobs_ready.is_empty() || self.flush_in_flight;
        let busy = waits || jobs || !self.cache.is_empty() || self.flash.gc_active();
        if self.stop != Stop::WriteBack || self.latched || busy {
            return false;
        }
        self.stop = Stop::Flush;
        self.flash
            .submit(self.now, Request::Flush { tag: TAG_STOP_FLUSH });
        true
    }

    /// True if the budget alone held something back.
    fn is_unfinished(&self) -> bool {
        let reads = !self.reading.is_empty() && self.reads_in_flight < self.config.read_depth;
        let room = |&slot: &u32| {
            let work = &self.works[slot];
            self.cache.has_room(work.lpn(work.begun))
        };
        let changes = self.changing.front().is_some_and(room);
        let writes = self.writes_in_flight < self.config.write_depth && self.wants_write_back();
        self.budget == 0 && (reads || changes || writes && !self.cache.is_empty())
    }
}

impl Machine for Disk {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = now;
        match input {
            Input::Request(request) => self.request(request),
            Input::Media(done) => {
                self.media_in_flight -= 1;
                self.flash.media_done(now, done);
            }
            Input::Packet(_) => {}
        }
        self.pump(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        if self.is_unfinished() {
            return Some(self.now);
        }
        let mut deadline = self.flash.deadline();
        if !self.cache.is_empty() && self.writes_in_flight == 0 && !self.latched {
            deadline = earliest(deadline, Some(self.written_at + WRITE_BACK_IDLE));
        }
        if !self.collecting && self.wants_collection() {
            deadline = earliest(deadline, Some(self.asked_at + GC_IDLE));
        }
        earliest(deadline, self.starved.then(|| self.now + STARVED_RETRY))
    }

    fn tick(&mut self, now: Instant) {
        self.flash.tick(now);
        self.pump(now);
    }
}
