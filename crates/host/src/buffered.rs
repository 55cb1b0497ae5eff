//! A software-defined SSD behind a write cache: what a node's vSSD and a disk of its own have in common.
//!
//! A value is accepted into the cache ([`Buffered::put`]) and later written back to the flash. [`Job`]s wait until what they
//! name is written back, and then for a flush of the medium. The owner decides what is accepted, and in which order reads
//! and write-backs go to the flash.
//!
//! Invariants:
//! - A job ends exactly once: after a flush of the medium that began when everything the job names was written back, or with
//!   an error after the medium failed.
//! - After a failed write or flush the buffer is latched: nothing more is written to the flash. Reads go on.
//! - A clean stop is done when a checkpoint of everything accepted is durable.

use base::event::{Kind, MediumOperation};
use base::time::earliest;
use base::{Duration, Instant, Lpn, MediaDone, MediaOp, Version, VssdId};
use flash::{Data, Request, Vssd, VssdError};
use rack::cache::{Cache, Cached};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Data that nobody adds to any more is written back after this, so that little is lost and flushes are quick.
const WRITE_BACK_IDLE: Duration = Duration::from_millis(200);

const KIND_SHIFT: u32 = 60;
const READ: u64 = 1;
const WRITE: u64 = 2;
const FLUSH: u64 = 3;
const STOP_FLUSH: u64 = 4;
const STOP_CHECKPOINT: u64 = 5;

/// Keys of reads are below this.
pub const READ_KEYS: u64 = 1 << KIND_SHIFT;

const fn tag(kind: u64, value: u64) -> u64 {
    kind << KIND_SHIFT | value
}

/// The limits of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pages of the write cache.
    pub cache_pages: usize,
    /// Write-backs under way at once: those in the flash, and those that the owner lets wait for it.
    pub write_depth: usize,
    /// Write-back starts when the cache is fuller than this.
    pub dirty_ratio_low: f64,
}

/// Marks of the cache that have to be written back.
pub type Marks = SmallVec<[u64; 1]>;

/// Something that waits for the medium.
#[derive(Debug)]
struct Job<J> {
    /// Everything below is to be written back first.
    below: u64,
    /// These are to be written back first.
    marks: Marks,
    then: J,
}

/// News of a buffer to its owner.
#[derive(Debug)]
pub enum Event<J> {
    /// Do this on the medium.
    Media(MediaOp),
    /// A read ended. A page that was never written has version zero.
    Read {
        /// Of the read.
        key: u64,
        /// Content of the flash.
        result: Result<Cached, VssdError>,
    },
    /// The write-back of a page ended.
    Written(Lpn),
    /// A job ended: all it waited for is durable, or the medium failed.
    Ended(J, Result<(), VssdError>),
    /// The medium failed at this. Comes once, after the end of every job.
    Latched(MediumOperation),
    /// A clean stop is a step further.
    Stopping,
    /// The flash tells of collection, or of blocks that its channel group shares.
    Flash(flash::Event),
}

/// How far a clean stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Not asked for.
    No,
    /// The cache is written back, and collection finishes what it began.
    WriteBack,
    /// The last flush is in the flash.
    Flush,
    /// The checkpoint is in the flash.
    Checkpoint,
    /// The checkpoint is durable: a start finds nothing to replay.
    Done,
}

/// A flash behind a write cache. `J` is what waits for the medium.
pub struct Buffered<J> {
    flash: Vssd,
    cache: Cache,
    write_depth: usize,
    /// Pages in the cache above which write-back starts.
    dirty_low: usize,
    /// Ids of media operations above the flash's own, and the number of operations at the medium.
    media_tag: u64,
    media_in_flight: u32,
    waiting: Vec<Job<J>>,
    ready: Vec<Job<J>>,
    flushing: Vec<Job<J>>,
    flush_in_flight: bool,
    reads_in_flight: usize,
    /// Write-backs under way, and those of them that the flash has.
    writes_out: usize,
    writes_in_flight: usize,
    written_at: Instant,
    written_since_gc: bool,
    /// Since when garbage is collected, and what had been collected then.
    collecting: Option<(Instant, (u64, u64))>,
    latched: bool,
    stop: Stop,
    events: VecDeque<Event<J>>,
}

impl<J> Buffered<J> {
    /// A buffer before `flash`, which is fresh or recovered. The ids of its media operations carry `media_tag`.
    pub fn new(now: Instant, flash: Vssd, limits: Limits, media_tag: u64) -> Self {
        Self {
            cache: Cache::new(limits.cache_pages),
            write_depth: limits.write_depth,
            dirty_low: (limits.dirty_ratio_low * limits.cache_pages as f64) as usize,
            flash,
            media_tag,
            media_in_flight: 0,
            waiting: Vec::new(),
            ready: Vec::new(),
            flushing: Vec::new(),
            flush_in_flight: false,
            reads_in_flight: 0,
            writes_out: 0,
            writes_in_flight: 0,
            written_at: now,
            written_since_gc: false,
            collecting: None,
            latched: false,
            stop: Stop::No,
            events: VecDeque::new(),
        }
    }

    /// The flash, to look at.
    pub fn flash(&self) -> &Vssd {
        &self.flash
    }

    /// The flash, for blocks that its channel group shares.
    pub fn flash_mut(&mut self) -> &mut Vssd {
        &mut self.flash
    }

    /// The cache, to look at.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// True after a failure of the medium.
    pub fn is_latched(&self) -> bool {
        self.latched
    }

    /// Operations that the medium has.
    pub fn media_in_flight(&self) -> u32 {
        self.media_in_flight
    }

    /// Write-backs that the flash has.
    pub fn writes_in_flight(&self) -> usize {
        self.writes_in_flight
    }

    /// The version of the data that a read here returns.
    pub fn version(&self, lpn: Lpn) -> Version {
        let cached = self.cache.get(lpn);
        cached.map_or_else(|| self.flash.version(lpn), |cached| cached.version)
    }

    /// Accepts newer data of a page.
    ///
    /// # Panics
    /// If the cache has no room, or newer data.
    pub fn put(&mut self, now: Instant, lpn: Lpn, data: Cached) {
        self.cache.put(lpn, data);
        self.written_at = now;
        self.written_since_gc = true;
    }

    /// Reads a page from the flash, which may be older than what the cache has. `key` is below [`READ_KEYS`].
    pub fn read(&mut self, now: Instant, key: u64, lpn: Lpn) {
        self.reads_in_flight += 1;
        let tag = tag(READ, key);
        self.flash.submit(now, Request::Read { tag, lpn });
    }

    /// Ends `then` when all that was accepted so far is durable.
    pub fn flush(&mut self, then: J) {
        self.add(Job {
            below: self.cache.mark(),
            marks: Marks::new(),
            then,
        });
    }

    /// Hurries the write-back of a page; returns the mark of its newest data, `None` if this is written back.
    pub fn expedite(&mut self, lpn: Lpn) -> Option<u64> {
        let mark = self.cache.mark_of(lpn);
        self.cache.expedite(lpn);
        mark
    }

    /// Ends `then` when what has these marks is durable.
    pub fn persist(&mut self, marks: Marks, then: J) {
        self.add(Job {
            below: 0,
            marks,
            then,
        });
    }

    /// Work that waits for the medium.
    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        let jobs = [&self.waiting, &self.ready, &self.flushing];
        jobs.into_iter().flatten().map(|job| &job.then)
    }

    fn add(&mut self, job: Job<J>) {
        if self.is_due(&job) {
            self.ready.push(job);
        } else {
            self.waiting.push(job);
        }
    }

    fn is_due(&self, job: &Job<J>) -> bool {
        self.cache.is_written_below(job.below) && job.marks.iter().all(|&mark| self.cache.is_written_at(mark))
    }

    /// True if a page may be written back now; `urgent` if something waits for room.
    pub fn may_write(&self, now: Instant, urgent: bool) -> bool {
        self.writes_out < self.write_depth
            && !self.latched
            && (self.stop != Stop::No
                || urgent
                || !self.waiting.is_empty()
                || self.cache.len() > self.dirty_low
                || now >= self.written_at + WRITE_BACK_IDLE)
    }

    /// The next page to write back, and whether it is all zeros so far. [`write`](Buffered::write) begins that.
    pub fn next_write(&mut self, now: Instant, urgent: bool) -> Option<(Lpn, bool)> {
        let next = self.may_write(now, urgent).then(|| self.cache.next_write());
        self.writes_out += usize::from(matches!(next, Some(Some(_))));
        next.flatten()
    }

    /// Writes back a page that [`next_write`](Buffered::next_write) named.
    pub fn write(&mut self, now: Instant, lpn: Lpn) {
        self.writes_in_flight += 1;
        let tag = tag(WRITE, u64::from(lpn.0));
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
        self.flash.submit(now, request);
    }

    /// Flushes the medium if a job waits for nothing else.
    pub fn start_flush(&mut self, now: Instant) {
        if !self.flush_in_flight && !self.ready.is_empty() {
            self.flush_in_flight = true;
            core::mem::swap(&mut self.flushing, &mut self.ready);
            let tag = tag(FLUSH, 0);
            self.flash.submit(now, Request::Flush { tag });
        }
    }

    /// The medium is done with an operation.
    pub fn media_done(&mut self, now: Instant, done: MediaDone) {
        self.media_in_flight -= 1;
        self.flash.media_done(now, done);
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.flash.tick(now);
    }

    /// When to [`tick`](Buffered::tick), or to ask for the [`next_write`](Buffered::next_write) again.
    pub fn deadline(&self) -> Option<Instant> {
        let idle = !self.cache.is_empty() && self.writes_out == 0 && !self.latched;
        earliest(
            self.flash.deadline(),
            idle.then(|| self.written_at + WRITE_BACK_IDLE),
        )
    }

    /// True if [`poll`](Buffered::poll) has something to look at: most inputs bring nothing.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.events.is_empty() || self.flash.has_events()
    }

    /// The next event.
    pub fn poll(&mut self, now: Instant) -> Option<Event<J>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.flash.poll()? {
                flash::Event::Media(mut op) => {
                    op.id |= self.media_tag;
                    self.media_in_flight += 1;
                    return Some(Event::Media(op));
                }
                flash::Event::Done { tag, result } => {
                    if let Some(event) = self.done(now, tag, result) {
                        return Some(event);
                    }
                }
                event => return Some(Event::Flash(event)),
            }
        }
    }

    fn done(&mut self, now: Instant, tag: u64, result: Result<Data, VssdError>) -> Option<Event<J>> {
        let value = tag & (READ_KEYS - 1);
        match tag >> KIND_SHIFT {
            READ => {
                self.reads_in_flight -= 1;
                let result = result.map(cached);
                return Some(Event::Read { key: value, result });
            }
            WRITE => {
                self.writes_out -= 1;
                self.writes_in_flight -= 1;
                let lpn = Lpn(value as u32);
                match result {
                    Ok(_) => self.wrote(lpn),
                    Err(error) => self.latch(error, MediumOperation::Write),
                }
                return Some(Event::Written(lpn));
            }
            FLUSH => {
                self.flush_in_flight = false;
                if let Err(error) = result {
                    self.latch(error, MediumOperation::Flush);
                }
                let ended = self.flushing.drain(..).map(|job| Event::Ended(job.then, Ok(())));
                self.events.extend(ended);
            }
            kind => {
                let operation = match kind {
                    STOP_FLUSH => MediumOperation::Flush,
                    _ => MediumOperation::Write,
                };
                match result {
                    Ok(_) => self.stop_done(now),
                    Err(error) => self.latch(error, operation),
                }
                return Some(Event::Stopping);
            }
        }
        None
    }

    fn wrote(&mut self, lpn: Lpn) {
        self.cache.wrote(lpn);
        let mut index = 0;
        while index < self.waiting.len() {
            if self.is_due(&self.waiting[index]) {
                let job = self.waiting.swap_remove(index);
                self.ready.push(job);
            } else {
                index += 1;
            }
        }
    }

    /// The medium failed: nothing more can be promised, so everything that waits for the medium fails, once and for all.
    #[cold]
    fn latch(&mut self, error: VssdError, operation: MediumOperation) {
        if core::mem::replace(&mut self.latched, true) {
            return;
        }
        for jobs in [&mut self.waiting, &mut self.ready, &mut self.flushing] {
            let ended = jobs.drain(..).map(|job| Event::Ended(job.then, Err(error)));
            self.events.extend(ended);
        }
        self.events.push_back(Event::Latched(operation));
    }

    /// Collects garbage until this share of the blocks is free.
    pub fn start_gc(&mut self, now: Instant, restore_ratio: f64) {
        self.written_since_gc = false;
        let collected = self.flash.collected();
        self.collecting.get_or_insert((now, collected));
        self.flash.start_gc(now, restore_ratio);
    }

    /// True from [`start_gc`](Buffered::start_gc) until [`end_gc`](Buffered::end_gc).
    pub fn is_collecting(&self) -> bool {
        self.collecting.is_some()
    }

    /// The flash is done with the collection of `vssd`: what there is to tell of that.
    pub fn end_gc(&mut self, now: Instant, vssd: VssdId) -> Option<Kind> {
        let (since, (moved, erased)) = self.collecting.take()?;
        let (moved_now, erased_now) = self.flash.collected();
        Some(Kind::CollectionEnded {
            vssd,
            took: now.since(since),
            moved: moved_now - moved,
            erased: erased_now - erased,
        })
    }

    /// True if something was accepted since the last collection began.
    pub fn was_written_since_gc(&self) -> bool {
        self.written_since_gc
    }

    /// Stops cleanly: writes everything back, flushes, and ends with a checkpoint, so that the next start finds no
    /// unflushed tail. [`is_quiet`](Buffered::is_quiet) tells when the stop is done.
    pub fn stop(&mut self) {
        if self.stop == Stop::No {
            self.stop = Stop::WriteBack;
        }
    }

    /// True from [`stop`](Buffered::stop) on.
    pub fn is_stopping(&self) -> bool {
        self.stop != Stop::No
    }

    /// True when nothing is left to write back, nor on its way to the medium.
    fn is_written_back(&self) -> bool {
        let waits = !self.waiting.is_empty() || !self.ready.is_empty();
        let in_flight = self.writes_out > 0 || self.flush_in_flight;
        self.cache.is_empty() && !waits && !in_flight && !self.flash.gc_active()
    }

    /// True when a clean stop is complete: nothing is in flight, and a checkpoint of everything is durable. A latched
    /// buffer can do no more and is quiet when nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        let in_flight = self.media_in_flight > 0
            || self.reads_in_flight > 0
            || self.writes_in_flight > 0
            || self.flush_in_flight;
        !in_flight && (self.latched || self.stop == Stop::Done && self.is_written_back())
    }

    /// Carries a clean stop on, unless the owner is `busy` with what it will put. Data that is put after the checkpoint
    /// starts the stop again. True if there was something to do.
    pub fn step_stop(&mut self, now: Instant, busy: bool) -> bool {
        let is_written_back = || !busy && self.is_written_back();
        match self.stop {
            _ if self.latched => false,
            Stop::WriteBack if is_written_back() => {
                self.stop = Stop::Flush;
                let tag = tag(STOP_FLUSH, 0);
                self.flash.submit(now, Request::Flush { tag });
                true
            }
            Stop::Done if !is_written_back() => {
                self.stop = Stop::WriteBack;
                true
            }
            _ => false,
        }
    }

    /// The flush or the checkpoint of a clean stop is done.
    fn stop_done(&mut self, now: Instant) {
        self.stop = match self.stop {
            Stop::Flush => {
                self.flash.checkpoint(now, tag(STOP_CHECKPOINT, 0));
                Stop::Checkpoint
            }
            Stop::Checkpoint => Stop::Done,
            stop => unreachable!("only a clean stop waits: {stop:?}"),
        };
    }
}

/// Content of the flash, in the words of the cache.
fn cached(data: Data) -> Cached {
    let (version, crc, page) = match data {
        Data::Page { page, crc, version } => (version, crc, Some(page)),
        Data::Zero { version } => (version, 0, None),
        Data::None => (Version::NONE, 0, None),
    };
    Cached { version, crc, page }
}
