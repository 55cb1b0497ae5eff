//! The simulator's medium: memory, under the wrappers that ship ([`base::device`]) and a write cache that a power cut
//! empties ([`volatile`]).
//!
//! From the host down: the deadline of the product; the cache; the faults; the time that operations take; memory. A
//! medium whose model is not volatile leaves the cache out: every write is durable at once, and a run needs half the
//! memory.

mod volatile;

pub use volatile::CutFate;

use base::device::{Deadline, Faults, Latency, LatencyModel, pass_on};
use base::{Device, Duration, Instant, MediaDone, MediaError, MediaKind, MediaOp, Queue, Rng};
use volatile::{Keeps, Volatile};

/// Properties of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaModel {
    /// Bytes of a page: the unit of run-time I/O.
    pub page_bytes: usize,
    /// Bytes of a sector: the unit of atomic persistence.
    pub sector_bytes: usize,
    /// Latency of operations.
    pub latency: LatencyModel,
    /// An operation that takes longer is given up.
    pub limit: Duration,
    /// Keep what a crash may lose.
    pub volatile: bool,
    /// The canary: flushes are acknowledged and do nothing.
    pub loses_flushes: bool,
}

type Drive = Faults<Latency<Vec<u8>>>;

/// With the cache or without.
#[derive(Debug)]
enum Cached {
    Volatile(Volatile<Drive>),
    Durable(Drive),
}

/// A simulated medium.
#[derive(Debug)]
pub struct SimMedium {
    stack: Deadline<Cached>,
    model: MediaModel,
    /// The times that operations take now.
    latency: LatencyModel,
    /// The last operation but a flush is done then, and the last flush.
    done_at: [Instant; 2],
    /// What was durable when an image was made.
    image: Vec<u8>,
    stats: MediaStats,
}

/// Work of a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaStats {
    /// Pages read.
    pub reads: u64,
    /// Pages written.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Writes that a crash undid or tore.
    pub writes_lost: u64,
}

impl SimMedium {
    /// A medium of zeros. The seed draws which failing writes take effect.
    pub fn new(capacity_bytes: u64, model: MediaModel, seed: u64) -> Self {
        let capacity = usize::try_from(capacity_bytes).expect("a simulated medium fits memory");
        let drive = Faults::new(Latency::new(vec![0; capacity], model.latency), Rng::new(seed));
        let keeps = Keeps {
            page_bytes: model.page_bytes,
            sector_bytes: model.sector_bytes,
            loses_flushes: model.loses_flushes,
        };
        let cached = match model.volatile {
            true => Cached::Volatile(Volatile::new(drive, keeps)),
            false => Cached::Durable(drive),
        };
        Self {
            stack: Deadline::new(cached, model.limit),
            model,
            latency: model.latency,
            done_at: [Instant::ZERO; 2],
            image: Vec::new(),
            stats: MediaStats::default(),
        }
    }

    /// Its work so far.
    pub fn stats(&self) -> MediaStats {
        MediaStats {
            writes_lost: match self.stack.inner() {
                Cached::Volatile(volatile) => volatile.lost,
                Cached::Durable(_) => 0,
            },
            ..self.stats
        }
    }

    /// Its failures, to cause some.
    pub fn faults(&mut self) -> &mut Drive {
        match self.stack.inner_mut() {
            Cached::Volatile(volatile) => volatile.inner_mut(),
            Cached::Durable(drive) => drive,
        }
    }

    /// Takes an operation. Says when to [`poll`](Queue::poll) for its end; how it ends then is told by that call.
    pub fn issue(&mut self, now: Instant, op: MediaOp) -> Instant {
        let kind = op.kind;
        self.submit(now, op);
        let is_stuck = self.stack.overdue() > 0 || self.faults().hangs();
        if is_stuck {
            return self.stack.deadline().unwrap_or(now).max(now);
        }
        let (class, takes_ns) = match kind {
            MediaKind::Flush => (1, self.latency.flush_ns),
            _ => (0, self.latency.io_ns),
        };
        let at = self.done_at[class].max(now + Duration::from_nanos(takes_ns));
        self.done_at[class] = at;
        at
    }

    /// The drive answers again; how many operations it held, and when it is done with all of them.
    pub fn resume(&mut self, now: Instant) -> (usize, Instant) {
        let held = self.faults().held();
        self.faults().resume(now);
        let LatencyModel { io_ns, flush_ns } = self.latency;
        let at = now + Duration::from_nanos(io_ns.max(flush_ns));
        self.done_at = self.done_at.map(|before| before.max(at));
        (held, self.done_at[0].max(self.done_at[1]))
    }

    /// From now on operations take so many times as long as the model says.
    pub fn slow_down(&mut self, factor: u32) {
        let LatencyModel { io_ns, flush_ns } = self.model.latency;
        self.latency = LatencyModel {
            io_ns: io_ns * u64::from(factor),
            flush_ns: flush_ns * u64::from(factor),
        };
        let latency = self.latency;
        self.faults().inner_mut().set_model(latency);
    }

    /// When to poll again although nothing ends by itself: while it hangs.
    pub fn look_at(&mut self) -> Option<Instant> {
        self.faults().hangs().then(|| self.stack.deadline()).flatten()
    }

    /// Takes the operation in at which power is cut: [`SimMedium::crash`] follows, and it is never completed.
    pub fn cut(&mut self, op: &MediaOp, fate: CutFate, rng: &mut Rng) {
        match self.stack.inner_mut() {
            Cached::Volatile(volatile) => volatile.cut(op, fate, rng),
            Cached::Durable(_) => panic!("power is cut where it takes something"),
        }
    }

    /// Power is lost: what is in flight is never answered, and what is not durable persists, vanishes or is torn.
    pub fn crash(&mut self, rng: &mut Rng) {
        self.stack.reset();
        self.faults().restart();
        self.faults().inner_mut().reset();
        self.done_at = [Instant::ZERO; 2];
        if let Cached::Volatile(volatile) = self.stack.inner_mut() {
            volatile.crash(rng);
        }
    }

    /// After a crash: an empty medium takes the place of this one.
    pub fn wipe(&mut self) {
        self.fill(&vec![0; self.capacity_bytes() as usize]);
    }

    /// After a crash: a medium of this content takes the place of this one.
    pub fn fill(&mut self, content: &[u8]) {
        if let Cached::Volatile(volatile) = self.stack.inner_mut() {
            volatile.fill(content);
        }
        self.faults().write_at(0, content).expect("inside");
    }

    /// Everything that is durable.
    pub fn content(&self) -> Vec<u8> {
        match self.stack.inner() {
            Cached::Volatile(volatile) => volatile.durable().to_vec(),
            Cached::Durable(drive) => drive.inner().inner().clone(),
        }
    }

    /// Makes an image of what is durable.
    pub fn keep_image(&mut self) {
        self.image = self.content();
    }

    /// After a crash: the last image takes the place of the content, if one was made.
    pub fn put_image_back(&mut self) {
        if !self.image.is_empty() {
            let image = core::mem::take(&mut self.image);
            self.fill(&image);
        }
    }

    /// Flips one bit of a stored page in `range` (bytes), skipping pages of zeros; false if it found none.
    pub fn corrupt(&mut self, range: core::ops::Range<u64>, rng: &mut Rng) -> bool {
        let page = self.model.page_bytes;
        let pages = (range.end - range.start) / page as u64;
        let mut bytes = vec![0; page];
        for _ in 0..64.min(pages) {
            let start = range.start + rng.below(pages) * page as u64;
            self.stack.read_at(start, &mut bytes).expect("inside");
            if bytes.iter().all(|&b| b == 0) {
                continue;
            }
            let (byte, bit) = (rng.below(page as u64) as usize, rng.below(8));
            bytes[byte] ^= 1 << bit;
            self.faults().write_at(start, &bytes).expect("inside");
            if let Cached::Volatile(volatile) = self.stack.inner_mut() {
                volatile.corrupt(start as usize + byte, bit);
            }
            return true;
        }
        false
    }
}

impl Queue for SimMedium {
    fn submit(&mut self, now: Instant, op: MediaOp) {
        match op.kind {
            MediaKind::Read => self.stats.reads += 1,
            MediaKind::Flush => self.stats.flushes += 1,
            _ => self.stats.writes += 1,
        }
        self.stack.submit(now, op);
    }

    fn poll(&mut self, now: Instant) -> Option<MediaDone> {
        self.stack.poll(now)
    }

    fn deadline(&self) -> Option<Instant> {
        self.stack.deadline()
    }
}

impl Queue for Cached {
    pass_on!(queue Self::Volatile(inner) => inner, Self::Durable(inner) => inner);
}

impl Device for Cached {
    pass_on!(device Self::Volatile(inner) => inner, Self::Durable(inner) => inner);
}

impl Device for SimMedium {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.stack.read_at(offset, bytes)
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.stack.write_at(offset, bytes)
    }
    fn flush(&mut self) -> Result<(), MediaError> {
        self.stack.flush()
    }
    fn capacity_bytes(&self) -> u64 {
        self.stack.capacity_bytes()
    }
    fn atomic_bytes(&self) -> u32 {
        self.model.sector_bytes as u32
    }
    fn has_cache(&self) -> bool {
        self.model.volatile
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Pool;
    use base::device::suite;

    const MODEL: MediaModel = MediaModel {
        page_bytes: 128,
        sector_bytes: 16,
        latency: LatencyModel {
            io_ns: 10,
            flush_ns: 20,
        },
        limit: Duration::from_nanos(1000),
        volatile: true,
        loses_flushes: false,
    };

    const NOW: Instant = Instant::ZERO;

    /// Submits a write of a page; it ends when it is polled for.
    fn write(medium: &mut SimMedium, pool: &Pool, page_index: u64, fill: u8) {
        let page = pool.alloc().expect("the pool is large enough");
        page.with_mut(|bytes| bytes.fill(fill));
        medium.submit(NOW, MediaOp::write(page_index, page_index * 128, page));
    }

    fn flush(medium: &mut SimMedium) {
        medium.submit(NOW, MediaOp::flush(100));
    }

    fn end(medium: &mut SimMedium) -> MediaDone {
        let at = medium.deadline().expect("something is in flight");
        medium.poll(at).expect("it is due")
    }

    fn read(medium: &SimMedium, page_index: u64) -> Vec<u8> {
        let mut bytes = vec![0; 128];
        medium.read_at(page_index * 128, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_flushed_write_survives_every_crash_and_an_unflushed_one_some() {
        let pool = Pool::new(8, 16);
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 0..300 {
            let mut medium = SimMedium::new(1024, MODEL, 1);
            write(&mut medium, &pool, 0, 1);
            end(&mut medium);
            flush(&mut medium);
            end(&mut medium);
            write(&mut medium, &pool, 1, 2);
            end(&mut medium);
            medium.crash(&mut Rng::new(seed));
            assert_eq!(read(&medium, 0), [1; 128]);
            match read(&medium, 1).iter().filter(|&&b| b == 2).count() {
                128 => kept += 1,
                0 => lost += 1,
                some => {
                    assert_eq!(some % 16, 0, "torn at sectors only");
                    torn += 1;
                }
            }
        }
        assert!(kept > 50 && lost > 50 && torn > 5, "{kept} {lost} {torn}");
    }

    #[test]
    fn a_flush_covers_only_writes_done_before_it_was_issued() {
        let pool = Pool::new(8, 16);
        let mut lost = 0;
        for seed in 0..100 {
            let mut medium = SimMedium::new(1024, MODEL, 1);
            write(&mut medium, &pool, 0, 1);
            flush(&mut medium);
            assert_eq!(end(&mut medium).kind, MediaKind::Write);
            assert_eq!(end(&mut medium).kind, MediaKind::Flush);
            medium.crash(&mut Rng::new(seed));
            lost += usize::from(read(&medium, 0) != [1; 128]);
        }
        assert!(lost > 20);
    }

    #[test]
    fn a_later_write_is_never_overwritten_by_an_earlier_one() {
        let pool = Pool::new(8, 16);
        for seed in 0..200 {
            let mut medium = SimMedium::new(1024, MODEL, 1);
            for fill in [1, 2] {
                write(&mut medium, &pool, 0, fill);
                end(&mut medium);
            }
            flush(&mut medium);
            end(&mut medium);
            write(&mut medium, &pool, 0, 3);
            end(&mut medium);
            medium.crash(&mut Rng::new(seed));
            assert!(read(&medium, 0).iter().all(|&b| b == 2 || b == 3));
        }
    }

    #[test]
    fn a_full_cache_is_written_back_by_itself_and_loses_nothing_it_flushed() {
        let pool = Pool::new(8, 16);
        let mut medium = SimMedium::new(1024, MODEL, 1);
        for i in 0..volatile::CACHED_WRITES_MAX as u64 * 3 {
            write(&mut medium, &pool, i % 8, i as u8);
            end(&mut medium);
            if i % 5000 == 0 {
                flush(&mut medium);
                end(&mut medium);
            }
        }
        flush(&mut medium);
        end(&mut medium);
        let before: Vec<_> = (0..8).map(|i| read(&medium, i)).collect();
        medium.crash(&mut Rng::new(1));
        assert_eq!(before, (0..8).map(|i| read(&medium, i)).collect::<Vec<_>>());
    }

    #[test]
    fn the_write_at_which_power_is_cut_has_the_fate_it_was_given() {
        let pool = Pool::new(8, 16);
        let page = pool.alloc().expect("the pool is large enough");
        page.with_mut(|bytes| bytes.fill(7));
        let op = MediaOp::write(0, 0, page);
        for seed in 0..100 {
            let written = |fate| {
                let mut medium = SimMedium::new(1024, MODEL, 1);
                let mut rng = Rng::new(seed);
                medium.cut(&op, fate, &mut rng);
                medium.crash(&mut rng);
                read(&medium, 0).iter().filter(|&&b| b == 7).count()
            };
            assert_eq!(written(CutFate::Lost), 0);
            assert_eq!(written(CutFate::Persists), 128);
            assert_eq!(written(CutFate::Torn) % 16, 0);
        }
    }

    #[test]
    fn injected_failures_fail_once_each() {
        let pool = Pool::new(8, 16);
        let mut medium = SimMedium::new(1024, MODEL, 1);
        medium.faults().fail_writes(1);
        medium.faults().fail_flushes(1);
        write(&mut medium, &pool, 0, 1);
        assert_eq!(end(&mut medium).result, Err(MediaError::Io));
        flush(&mut medium);
        assert_eq!(end(&mut medium).result, Err(MediaError::Io));
        write(&mut medium, &pool, 0, 1);
        assert_eq!(end(&mut medium).result, Ok(()));
    }

    #[test]
    fn a_simulated_medium_is_a_medium() {
        for volatile in [false, true] {
            let model = MediaModel { volatile, ..MODEL };
            let capacity = suite::PAGES * 128;
            let mut medium = SimMedium::new(capacity, model, 1);
            suite::device(&mut medium);
            let mut medium = SimMedium::new(capacity, model, 1);
            suite::queue(&mut medium, 16, |medium| medium.deadline().unwrap_or_default());
        }
    }

    #[test]
    fn what_is_written_through_survives_every_crash_and_what_came_before_it_need_not() {
        let pool = Pool::new(8, 16);
        let mut lost = 0;
        for seed in 0..200 {
            let mut medium = SimMedium::new(1024, MODEL, 1);
            for (place, fill) in [(0, 1), (1, 2)] {
                write(&mut medium, &pool, place, fill);
                end(&mut medium);
            }
            let page = pool.alloc().expect("the pool is large enough");
            page.with_mut(|bytes| bytes.fill(3));
            medium.submit(NOW, MediaOp::page(9, MediaKind::WriteThrough, 128, page));
            end(&mut medium);
            medium.crash(&mut Rng::new(seed));
            assert_eq!(read(&medium, 1), [3; 128]);
            lost += usize::from(read(&medium, 0) != [1; 128]);
        }
        assert!(lost > 40, "{lost}");
    }

    #[test]
    fn a_medium_that_hangs_is_given_up_and_a_restart_brings_it_back() {
        let pool = Pool::new(8, 16);
        let mut medium = SimMedium::new(1024, MODEL, 1);
        medium.faults().hang();
        let page = || pool.alloc().expect("the pool is large enough");
        let at = medium.issue(NOW, MediaOp::read(1, 0, page()));
        assert_eq!(at, NOW + MODEL.limit);
        assert_eq!(
            medium.poll(at).map(|done| done.result),
            Some(Err(MediaError::TimedOut))
        );
        assert_eq!(pool.available(), 7, "the drive has the page");
        medium.crash(&mut Rng::new(1));
        assert_eq!(pool.available(), 8);
        let at = medium.issue(NOW, MediaOp::read(1, 0, page()));
        assert_eq!(medium.poll(at).map(|done| done.result), Some(Ok(())));
    }
}
