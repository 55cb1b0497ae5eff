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

use crate::buffered::{Buffered, Event, Limits, Marks};
use crate::gateway::merge::{Merged, Part, merge};
use crate::{Input, Output};
use base::device::Silence;
use base::event::{self, Collection, Grant};
use base::limits::{PAGE_BYTES, SECTORS_PER_PAGE};
use base::sync::{AtomicU32, Ordering};
use base::time::earliest;
use base::{
    BlockError, BlockOp, BlockReply, BlockRequest, Device, Duration, Extent, Instant, Lpn, Machine, Map,
    Page, Pages, Pool, SectorRange, Slab, Version, VssdId,
};
use flash::{
    CreateError, GcMode, OpenError, RecoverError, RecoveryReport, Ssd, Timing, Vssd, VssdConfig, VssdError,
};
use rack::cache::Cached;
use std::collections::VecDeque;
use std::sync::Arc;
use thiserror::Error;

/// Share of a disk's flash that clients do not see, where nobody names a size.
pub const SPARE_RATIO: f64 = 0.25;
/// Pages that one call begins or writes back at most.
pub const STEP_PAGES: usize = 256;
/// Pages of changes, of reads and of write-backs that begin in turn, so that none of the three holds up the others.
const TURN_PAGES: usize = 32;
/// Pages that the answer to a status covers at most: 16 MiB, since they are looked at one by one.
const STATUS_PAGES: u64 = 4096;
/// Without requests for this long the time is used to collect (RackBlox's artifact: 30 ms).
const GC_IDLE: Duration = Duration::from_millis(30);
/// When to try again after the pool was empty.
const STARVED_RETRY: Duration = Duration::from_micros(100);
/// Bits of a version below the number of the start: 2^40 changes of pages between two starts.
const START_SHIFT: u32 = 40;
/// Record of a disk's vSSD in the superblock, in place of the replicas of a node's vSSD.
const MARK: &[u8] = b"disk";
/// A disk is the only vSSD of its medium.
const VSSD: VssdId = VssdId(1);

/// The key of a client's read is the request's slot above the page's place in it.
const PLACE_BITS: u32 = 20;
/// The key of a read for a change is this and the page.
const FETCH: u64 = 1 << 56;

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
pub struct DiskEntry {
    ssd: Ssd,
    data_pages: Arc<AtomicU32>,
}

impl DiskEntry {
    /// Finds the disk on a formatted medium, or makes it, of `size_bytes` or what leaves [`SPARE_RATIO`] of the flash.
    /// The start is counted; all of it is durable on return.
    ///
    /// # Errors
    /// The medium is not formatted, or another's; the size is not the disk's, or too large.
    pub fn open(medium: &mut dyn Device, size_bytes: Option<u64>) -> Result<Self, DiskError> {
        let mut ssd = Ssd::open(medium, PAGE_BYTES, 0)?;
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
                ssd.store(medium).map_err(OpenError::from)?;
            }
            [entry] if entry.config == MARK => {}
            _ => return Err(DiskError::Rack),
        }
        let data_pages = Arc::new(AtomicU32::new(ssd.vssds()[0].logical_pages));
        let entry = Self { ssd, data_pages };
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
        u64::from(self.ssd.vssds()[0].logical_pages) * PAGE_BYTES as u64
    }

    /// Pages of the disk on the medium that hold data, as it counts them while it runs; all before.
    pub fn data_pages(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.data_pages)
    }

    /// The id of the medium's format, of no other medium but a copy.
    pub fn uuid(&self) -> [u8; 16] {
        self.ssd.uuid()
    }

    /// Channels of its flash.
    pub fn channels(&self) -> u32 {
        self.ssd.geometry().channels
    }
}

/// How a disk is served.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Emulated device time.
    pub timing: Timing,
    /// Effect of collection on other work.
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
    range: SectorRange,
    /// Data of a write.
    pages: Pages,
    /// Result of a read.
    found: Vec<Option<Page>>,
    /// Pages begun.
    begun: u32,
    /// Pages not done.
    left: u32,
    /// With FUA, what has to be written back.
    marks: Marks,
    error: Option<BlockError>,
}

impl Work {
    fn pages(&self) -> u32 {
        let pages = self.range.pages();
        (pages.end - pages.start) as u32
    }

    fn lpn(&self, place: u32) -> Lpn {
        Lpn(self.range.pages().start as u32 + place)
    }

    /// First sector and number of sectors of a page that are the request's.
    fn sectors(&self, place: u32) -> (usize, usize) {
        let sectors = self.range.sectors_of(u64::from(self.lpn(place).0));
        (sectors.start, sectors.len())
    }
}

/// Changes of one page that cannot be made yet.
#[derive(Debug, Default)]
struct Line {
    parts: Vec<Part>,
    /// The content of the page is being read.
    fetching: bool,
    /// Content: nothing yet, zeros, or a page.
    old: Option<Option<Page>>,
}

/// A vSSD, served to clients of its own machine.
pub struct Disk {
    config: DiskConfig,
    gc: rack::gc::Config,
    /// For others to read.
    data_pages: Arc<AtomicU32>,
    /// A request that waits for the medium is its slot.
    buffered: Buffered<u32>,
    report: RecoveryReport,
    pool: Pool,
    zero: Page,
    version: Version,
    works: Slab<Work>,
    /// Reads with pages to begin, and changes, in turns.
    reading: VecDeque<u32>,
    changing: VecDeque<u32>,
    lines: Map<u32, Line>,
    /// Lines that wait for room in the cache or for memory.
    stuck: VecDeque<Lpn>,
    reads_in_flight: usize,
    asked_at: Instant,
    collecting: bool,
    /// Pages that this call may still do.
    budget: usize,
    starved: bool,
    now: Instant,
    silence: Silence,
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
        let ssd = &entry.ssd;
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
        let limits = Limits {
            cache_pages: config.cache_pages.clamp(16, (pool.capacity() / 8).max(16)),
            write_depth: config.write_depth,
            dirty_ratio_low: config.dirty_ratio_low,
        };
        let disk = Self {
            gc: rack::gc::Config::for_spare(spare),
            data_pages: entry.data_pages(),
            buffered: Buffered::new(now, flash, limits, 0),
            report,
            zero: pool.alloc_zeroed().ok_or(DiskError::Pool)?,
            pool,
            config,
            version: Version(u64::from(ssd.boot()) << START_SHIFT),
            works: Slab::new(),
            reading: VecDeque::new(),
            changing: VecDeque::new(),
            lines: Map::new(),
            stuck: VecDeque::new(),
            reads_in_flight: 0,
            asked_at: now,
            collecting: false,
            budget: 0,
            starved: false,
            now,
            silence: Silence::default(),
            out: VecDeque::new(),
        };
        disk.tell_data_pages();
        Ok(disk)
    }

    /// Findings of recovery.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// The flash, to look at.
    pub fn flash(&self) -> &Vssd {
        self.buffered.flash()
    }

    /// Stops cleanly: writes everything back, flushes, and ends with a checkpoint. Changes are refused from now on.
    /// [`is_quiet`](Disk::is_quiet) tells when it is done.
    pub fn drain(&mut self, now: Instant) {
        self.buffered.stop();
        self.pump(now);
    }

    /// True when, after [`drain`](Disk::drain), all of it is durable and nothing is in flight. A latched disk can do no
    /// more, and is quiet when nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        self.buffered.is_quiet()
    }

    fn request(&mut self, request: BlockRequest) {
        self.asked_at = self.now;
        let changes = !matches!(request.op, BlockOp::Read | BlockOp::Flush | BlockOp::Status);
        if let Err(error) = self.judge(&request, changes) {
            return self.reply(request.client, request.tag, Err(error));
        }
        if request.op == BlockOp::Status {
            self.tell_extents(&request);
            return self.reply(request.client, request.tag, Ok(request.pages));
        }
        let mut work = Work {
            client: request.client,
            tag: request.tag,
            op: request.op,
            fua: request.fua && changes,
            range: request.range,
            pages: request.pages,
            found: Vec::new(),
            begun: 0,
            left: 0,
            marks: Marks::new(),
            error: None,
        };
        work.left = work.pages();
        if request.op == BlockOp::Read {
            work.found.resize(work.left as usize, None);
        }
        let (left, op) = (work.left, work.op);
        let slot = self.works.insert(work);
        match op {
            BlockOp::Flush => self.buffered.flush(slot),
            _ if left == 0 => self.finish(slot),
            BlockOp::Read => self.reading.push_back(slot),
            _ => self.changing.push_back(slot),
        }
    }

    fn judge(&self, request: &BlockRequest, changes: bool) -> Result<(), BlockError> {
        match () {
            () if self.buffered.is_latched() && (changes || request.op == BlockOp::Flush) => {
                Err(BlockError::Io)
            }
            () if self.buffered.is_stopping() && changes => Err(BlockError::Shutdown),
            () => Ok(()),
        }
    }

    /// Answers a status from the maps, as far as [`STATUS_PAGES`] go.
    fn tell_extents(&self, request: &BlockRequest) {
        let page_bytes = PAGE_BYTES as u64;
        let mut budget = STATUS_PAGES;
        Extent::fill(&request.pages[0], request.range, |offset, length| {
            let (first, end) = (offset / page_bytes, offset + length);
            let last = end.div_ceil(page_bytes).min(first + budget);
            let is_hole = self.is_hole(Lpn(first as u32));
            let stop = (first..last).find(|&page| self.is_hole(Lpn(page as u32)) != is_hole);
            let stop = stop.unwrap_or(last);
            budget -= stop - first;
            (stop > first).then(|| Extent {
                length: end.min(stop * page_bytes) - offset,
                is_hole,
            })
        });
    }

    fn tell_data_pages(&self) {
        let pages = self.flash().live_pages();
        self.data_pages.store(pages, Ordering::Relaxed);
    }

    /// True if a page reads as zeros, takes no space, and is not being changed.
    fn is_hole(&self, lpn: Lpn) -> bool {
        !self.lines.contains_key(&lpn.0)
            && match self.buffered.cache().get(lpn) {
                Some(cached) => cached.page.is_none(),
                None => self.flash().is_hole(lpn),
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
        if work.fua && work.error.is_none() && !work.range.is_empty() {
            let marks = core::mem::take(&mut work.marks);
            if self.buffered.is_latched() {
                work.error = Some(BlockError::Io);
            } else {
                return self.buffered.persist(marks, slot);
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

    /// Carries everything on that can go on now, within the budget.
    fn pump(&mut self, now: Instant) {
        self.now = now;
        self.budget = STEP_PAGES;
        self.starved = false;
        loop {
            let mut progress = self.step_stuck();
            progress |= self.step_changes();
            progress |= self.step_reads();
            progress |= self.issue();
            progress |= self.drain_flash();
            let busy = !self.lines.is_empty() || !self.changing.is_empty();
            progress |= self.buffered.step_stop(now, busy);
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
        let (mut progress, rest) = (false, self.rest_of_turn());
        while self.budget > rest
            && let Some(&slot) = self.changing.front()
            && self.can_change(slot)
        {
            self.changing.pop_front();
            self.budget -= 1;
            progress = true;
            let work = &mut self.works[slot];
            let (place, lpn) = (work.begun, work.lpn(work.begun));
            work.begun += 1;
            if work.begun < work.pages() {
                self.changing.push_back(slot);
            }
            self.change(slot, place, lpn);
        }
        progress
    }

    /// Budget that is left after a turn.
    fn rest_of_turn(&self) -> usize {
        self.budget.saturating_sub(TURN_PAGES)
    }

    /// True if there is room for the next page of a change.
    fn can_change(&self, slot: u32) -> bool {
        let work = &self.works[slot];
        let lpn = work.lpn(work.begun);
        self.buffered.cache().has_room(lpn) || self.lines.contains_key(&lpn.0)
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
            // Nothing waits here for a place in flight.
            bulk: false,
        };
        if let Some(line) = self.lines.get_mut(&lpn.0) {
            return line.parts.push(part);
        }
        let never_written = part.page.is_none() && self.buffered.version(lpn) == Version::NONE;
        if never_written {
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
        if !self.buffered.cache().has_room(lpn) {
            return self.stuck.push_back(lpn);
        }
        let fresh = self.buffered.flash().version(lpn) == Version::NONE;
        let old = match (self.buffered.cache().get(lpn), &line.old) {
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
                return self.buffered.read(self.now, FETCH | u64::from(lpn.0), lpn);
            }
        };
        self.version.0 += 1;
        let cached = Cached {
            version: self.version,
            crc: page.as_ref().map_or(0, Page::crc),
            page,
        };
        self.buffered.put(self.now, lpn, cached);
        let line = self.lines.remove(&lpn.0).expect("just seen");
        for part in line.parts {
            if part.durable {
                let mark = self.buffered.expedite(lpn).expect("just put");
                self.works[part.request].marks.push(mark);
            }
            self.page_done(part.request, Ok(()));
        }
    }

    /// The content of a page is known, or will never be known.
    fn fetched(&mut self, lpn: Lpn, result: Result<Cached, VssdError>) {
        let Some(line) = self.lines.get_mut(&lpn.0) else {
            // Given up when the medium failed.
            return;
        };
        line.fetching = false;
        let whole = line.parts.iter().any(|part| part.count == SECTORS_PER_PAGE);
        match result {
            Ok(cached) => line.old = Some(cached.page),
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
        let (mut progress, rest) = (false, self.rest_of_turn());
        while self.budget > rest
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
            if let Some(cached) = self.buffered.cache().get(lpn) {
                let page = cached.page.clone();
                self.found(slot, place, Ok(page));
                continue;
            }
            self.reads_in_flight += 1;
            let key = u64::from(slot) << PLACE_BITS | u64::from(place);
            self.buffered.read(self.now, key, lpn);
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

    /// Issues write-backs and flushes to the flash.
    fn issue(&mut self) -> bool {
        let (mut progress, rest) = (false, self.rest_of_turn());
        while self.budget > rest
            && let Some((lpn, _)) = self.buffered.next_write(self.now, self.waits_for_room())
        {
            self.budget -= 1;
            progress = true;
            self.buffered.write(self.now, lpn);
        }
        self.buffered.start_flush(self.now);
        progress
    }

    fn waits_for_room(&self) -> bool {
        let change = self.changing.front();
        !self.stuck.is_empty() || change.is_some_and(|&slot| !self.can_change(slot))
    }

    fn drain_flash(&mut self) -> bool {
        let mut progress = false;
        while let Some(event) = self.buffered.poll(self.now) {
            progress |= !matches!(event, Event::Media(_) | Event::Flash(_));
            match event {
                Event::Media(op) => self.out.push_back(Output::Media(op)),
                Event::Read { key, result } if key & FETCH != 0 => self.fetched(Lpn(key as u32), result),
                Event::Read { key, result } => {
                    self.reads_in_flight -= 1;
                    let place = key as u32 & ((1 << PLACE_BITS) - 1);
                    let page = result.map(|cached| cached.page).map_err(|_| BlockError::Io);
                    self.found((key >> PLACE_BITS) as u32, place, page);
                }
                Event::Written(_) | Event::Stopping => {}
                Event::Ended(slot, result) => {
                    self.works[slot].error = result.err().map(|_| BlockError::Io);
                    self.answer(slot);
                }
                Event::Latched(operation) => {
                    let vssd = VSSD;
                    self.out
                        .push_back(Output::Event(event::Kind::MediumLatched { vssd, operation }));
                    self.give_up();
                }
                Event::Flash(flash::Event::GcDone) => {
                    self.collecting = false;
                    let ended = self.buffered.end_gc(self.now, VSSD);
                    self.out.extend(ended.map(Output::Event));
                }
                Event::Flash(flash::Event::GcForced) if self.collecting => {}
                Event::Flash(flash::Event::GcForced) => self.start_collection(Grant::Forced),
                Event::Flash(_) => unreachable!("a disk has its channels for itself"),
            }
        }
        progress
    }

    /// The medium failed: every change under way fails.
    #[cold]
    fn give_up(&mut self) {
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
            && (idle || self.flash().free_ratio() < self.gc.soft_ratio);
        if due {
            self.start_collection(Grant::Unasked);
        }
        due
    }

    fn start_collection(&mut self, grant: Grant) {
        self.collecting = true;
        let collection = match self.flash().free_ratio() < self.gc.soft_ratio {
            true => Collection::Regular,
            false => Collection::Background,
        };
        self.out.push_back(Output::Event(event::Kind::CollectionBegun {
            vssd: VSSD,
            collection,
            grant,
        }));
        self.buffered.start_gc(self.now, self.gc.restore_ratio);
    }

    /// A full disk that nobody writes rests; a stop begins no collection: what it moved would follow the checkpoint.
    fn wants_collection(&self) -> bool {
        self.buffered.was_written_since_gc()
            && !self.buffered.is_stopping()
            && !self.buffered.is_latched()
            && self.flash().free_ratio() < self.gc.background_ratio
    }

    /// True if the budget alone held something back.
    fn is_unfinished(&self) -> bool {
        let reads = !self.reading.is_empty() && self.reads_in_flight < self.config.read_depth;
        let changes = self.changing.front().is_some_and(|&slot| self.can_change(slot));
        let writes = self.buffered.may_write(self.now, self.waits_for_room());
        self.budget == 0 && (reads || changes || writes && !self.buffered.cache().is_empty())
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
                if self.silence.begins(&done) {
                    let operation = done.kind.into();
                    self.out
                        .push_back(Output::Event(event::Kind::MediumSilent { operation }));
                }
                self.buffered.media_done(now, done);
            }
            Input::Packet(_) | Input::ClientGone(_) => {}
        }
        self.pump(now);
        self.tell_data_pages();
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        if self.is_unfinished() {
            return Some(self.now);
        }
        let mut deadline = self.buffered.deadline();
        if !self.collecting && self.wants_collection() {
            deadline = earliest(deadline, Some(self.asked_at + GC_IDLE));
        }
        earliest(deadline, self.starved.then(|| self.now + STARVED_RETRY))
    }

    fn tick(&mut self, now: Instant) {
        self.buffered.tick(now);
        self.pump(now);
        self.tell_data_pages();
    }
}
