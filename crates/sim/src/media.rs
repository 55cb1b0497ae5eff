//! A medium in memory with a volatile write cache, as the simulator's hosts use it.
//!
//! Invariants: a read sees the newest write issued before it. A write is durable once a flush that was issued after
//! the write was done is itself done. At a crash each write that is not durable persists, vanishes or persists torn at
//! sector granularity, drawn from the seed; writes to one sector keep their order (a later one is never overwritten by
//! an earlier one).
//!
//! Assumption: operations of one medium are done in the order in which they were issued, as their latency is constant.

use base::{Device, MediaDone, MediaError, MediaKind, MediaOp, Rng};

/// Writes that wait for a flush before the drive starts to write the oldest back by itself.
const CACHED_WRITES_MAX: usize = 1 << 14;

/// What a medium is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaModel {
    /// Bytes of a page: the unit of run-time I/O.
    pub page_bytes: usize,
    /// Bytes of a sector: the unit of atomic persistence.
    pub sector_bytes: usize,
    /// Latency of a read or write, in ns.
    pub io_ns: u64,
    /// Latency of a flush, in ns.
    pub flush_ns: u64,
    /// Keep what a crash may lose. Without it every write is durable at once, and a run needs half the memory.
    pub volatile: bool,
    /// The canary: flushes are acknowledged and do nothing.
    pub loses_flushes: bool,
}

/// What becomes of the write or flush at which power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutFate {
    /// It never reached the medium.
    Lost,
    /// It is durable, but nobody hears of it.
    Persists,
    /// A write is durable in some of its sectors; a flush, for the oldest of the writes that it covers.
    Torn,
}

impl CutFate {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lost, Self::Persists, Self::Torn];
}

/// A simulated medium.
#[derive(Debug)]
pub struct SimMedium {
    model: MediaModel,
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Offsets of the writes that are not durable, oldest first, and their bytes. `offsets[..head]` are gone.
    offsets: Vec<u64>,
    bytes: Vec<u8>,
    head: usize,
    /// Position after the last write that is done, counted since the start.
    done: u64,
    /// Positions that were removed from the front since the start.
    retired: u64,
    fail_writes: u32,
    fail_flushes: u32,
    /// At the next crash, the fate of the last write.
    cut: Option<CutFate>,
    stats: MediaStats,
}

/// What a medium did.
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

/// An operation on its way: kept by the world until its time.
#[derive(Debug)]
pub struct Issued {
    op: MediaOp,
    /// For a write its own position, for a flush the position up to which it makes durable.
    position: u64,
    result: Result<(), MediaError>,
}

impl SimMedium {
    /// A medium of zeros.
    pub fn new(capacity_bytes: u64, model: MediaModel) -> Self {
        let capacity = usize::try_from(capacity_bytes).expect("a simulated medium fits memory");
        Self {
            model,
            current: vec![0; capacity],
            durable: if model.volatile {
                vec![0; capacity]
            } else {
                Vec::new()
            },
            offsets: Vec::new(),
            bytes: Vec::new(),
            head: 0,
            done: 0,
            retired: 0,
            fail_writes: 0,
            fail_flushes: 0,
            cut: None,
            stats: MediaStats::default(),
        }
    }

    /// What it did so far.
    pub fn stats(&self) -> MediaStats {
        self.stats
    }

    /// Makes the next `count` writes fail; each has taken effect or not, drawn from the seed.
    pub fn fail_writes(&mut self, count: u32) {
        self.fail_writes = count;
    }

    /// Makes the next `count` flushes fail.
    pub fn fail_flushes(&mut self, count: u32) {
        self.fail_flushes = count;
    }

    /// Takes an operation in and says how many nanoseconds it takes.
    pub fn issue(&mut self, op: MediaOp, rng: &mut Rng) -> (Issued, u64) {
        let mut result = Ok(());
        let mut position = 0;
        let mut latency_ns = self.model.io_ns;
        match &op.kind {
            MediaKind::Read { offset, page } => {
                self.stats.reads += 1;
                result = self.check(*offset, page.len());
            }
            MediaKind::Write { offset, page } => {
                self.stats.writes += 1;
                result = self.check(*offset, page.len());
                let mut takes_effect = result.is_ok();
                if self.fail_writes > 0 && result.is_ok() {
                    self.fail_writes -= 1;
                    result = Err(MediaError::Io);
                    takes_effect = rng.chance(0.5);
                }
                if takes_effect {
                    page.with(|bytes| self.apply(*offset, bytes));
                }
                position = self.retired + self.offsets.len() as u64;
            }
            MediaKind::Flush => {
                self.stats.flushes += 1;
                latency_ns = self.model.flush_ns;
                position = self.done;
                if self.fail_flushes > 0 {
                    self.fail_flushes -= 1;
                    result = Err(MediaError::Io);
                }
            }
        }
        (Issued { op, position, result }, latency_ns)
    }

    /// Completes an operation.
    pub fn complete(&mut self, issued: Issued) -> MediaDone {
        let Issued { op, position, result } = issued;
        let page = match op.kind {
            MediaKind::Read { offset, page } => {
                if result.is_ok() {
                    let start = offset as usize;
                    page.with_mut(|bytes| bytes.copy_from_slice(&self.current[start..start + bytes.len()]));
                }
                Some(page)
            }
            MediaKind::Write { page, .. } => {
                self.done = self.done.max(position);
                Some(page)
            }
            MediaKind::Flush => {
                if result.is_ok() && !self.model.loses_flushes {
                    self.destage(position);
                }
                None
            }
        };
        MediaDone {
            id: op.id,
            page,
            result,
        }
    }

    /// Takes the operation in at which power is cut: [`SimMedium::crash`] follows, and it is never completed.
    pub fn cut(&mut self, op: &MediaOp, fate: CutFate, rng: &mut Rng) {
        let waiting = self.done.saturating_sub(self.retired + self.head as u64);
        match (&op.kind, fate) {
            (MediaKind::Read { .. }, _) => panic!("power is cut at writes and flushes"),
            (_, CutFate::Lost) => {}
            (MediaKind::Write { offset, page }, _) => {
                if self.check(*offset, page.len()).is_ok() {
                    page.with(|bytes| self.apply(*offset, bytes));
                    self.cut = Some(fate);
                }
            }
            (MediaKind::Flush, _) if self.model.loses_flushes => {}
            (MediaKind::Flush, CutFate::Persists) => self.destage(self.done),
            (MediaKind::Flush, CutFate::Torn) => {
                let position = self.retired + self.head as u64 + rng.below(waiting + 1);
                self.destage(position);
            }
        }
    }

    /// Power is lost: what is not durable persists, vanishes or is torn.
    pub fn crash(&mut self, rng: &mut Rng) {
        if !self.model.volatile {
            return;
        }
        let (page, sector) = (self.model.page_bytes, self.model.sector_bytes);
        // One draw decides how the drive tends to behave, so that "all" and "nothing" are met often.
        let keep = [0.0, 0.2, 0.5, 0.9, 1.0][rng.below(5) as usize];
        let cut = self.cut.take();
        for i in self.head..self.offsets.len() {
            let last = i + 1 == self.offsets.len();
            let fate = cut.filter(|_| last).unwrap_or_else(|| draw_fate(keep, rng));
            let start = self.offsets[i] as usize;
            let source = i * page;
            self.stats.writes_lost += u64::from(fate != CutFate::Persists);
            for at in (0..page).step_by(sector) {
                let kept = match fate {
                    CutFate::Lost => false,
                    CutFate::Persists => true,
                    CutFate::Torn => rng.chance(0.5),
                };
                if kept {
                    self.durable[start + at..start + at + sector]
                        .copy_from_slice(&self.bytes[source + at..source + at + sector]);
                }
            }
        }
        self.retired += self.offsets.len() as u64;
        self.offsets.clear();
        self.bytes.clear();
        self.head = 0;
        self.done = self.retired;
        self.current.copy_from_slice(&self.durable);
    }

    /// Flips one bit of a stored page in `range` (bytes), skipping pages of zeros; false if it found none.
    pub fn corrupt(&mut self, range: core::ops::Range<u64>, rng: &mut Rng) -> bool {
        let page = self.model.page_bytes as u64;
        let pages = (range.end - range.start) / page;
        for _ in 0..64.min(pages) {
            let start = (range.start + rng.below(pages) * page) as usize;
            if self.current[start..start + page as usize].iter().all(|&b| b == 0) {
                continue;
            }
            let (byte, bit) = (start + rng.below(page) as usize, rng.below(8));
            self.current[byte] ^= 1 << bit;
            if self.model.volatile {
                self.durable[byte] ^= 1 << bit;
            }
            return true;
        }
        false
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), MediaError> {
        assert_eq!(len, self.model.page_bytes, "run-time I/O is of whole pages");
        assert_eq!(offset % len as u64, 0, "run-time I/O is page-aligned");
        let inside = offset + len as u64 <= self.current.len() as u64;
        if inside {
            Ok(())
        } else {
            Err(MediaError::OutOfRange)
        }
    }

    fn apply(&mut self, offset: u64, bytes: &[u8]) {
        let start = offset as usize;
        self.current[start..start + bytes.len()].copy_from_slice(bytes);
        if !self.model.volatile {
            return;
        }
        if self.offsets.len() - self.head >= CACHED_WRITES_MAX && !self.model.loses_flushes {
            self.destage(self.retired + (self.head + CACHED_WRITES_MAX / 2) as u64);
        }
        self.offsets.push(offset);
        self.bytes.extend_from_slice(bytes);
    }

    /// Makes the writes up to `position` durable, in order.
    fn destage(&mut self, position: u64) {
        let page = self.model.page_bytes;
        let end = position
            .saturating_sub(self.retired)
            .min(self.offsets.len() as u64) as usize;
        for i in self.head..end {
            let start = self.offsets[i] as usize;
            self.durable[start..start + page].copy_from_slice(&self.bytes[i * page..(i + 1) * page]);
        }
        self.head = self.head.max(end);
        if self.head * 2 >= self.offsets.len() {
            self.retired += self.head as u64;
            self.bytes.copy_within(self.head * page.., 0);
            self.bytes.truncate((self.offsets.len() - self.head) * page);
            self.offsets.drain(..self.head);
            self.head = 0;
        }
    }
}

/// The fate of a write that was not durable, on a drive that keeps a share of about `keep` of them.
fn draw_fate(keep: f64, rng: &mut Rng) -> CutFate {
    if rng.chance(0.1) {
        CutFate::Torn
    } else if rng.chance(keep) {
        CutFate::Persists
    } else {
        CutFate::Lost
    }
}

impl Device for SimMedium {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.current.read_at(offset, bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let page = self.model.page_bytes;
        assert!(
            offset.is_multiple_of(page as u64) && bytes.len().is_multiple_of(page),
            "cold writes are of whole pages too"
        );
        if offset + bytes.len() as u64 > self.current.len() as u64 {
            return Err(MediaError::OutOfRange);
        }
        for (i, chunk) in bytes.chunks(page).enumerate() {
            self.apply(offset + (i * page) as u64, chunk);
        }
        self.done = self.retired + self.offsets.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        if !self.model.loses_flushes {
            self.destage(self.retired + self.offsets.len() as u64);
        }
        Ok(())
    }

    fn capacity_bytes(&self) -> u64 {
        self.current.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Pool;

    const MODEL: MediaModel = MediaModel {
        page_bytes: 128,
        sector_bytes: 16,
        io_ns: 10,
        flush_ns: 20,
        volatile: true,
        loses_flushes: false,
    };

    fn write(medium: &mut SimMedium, pool: &Pool, page_index: u64, fill: u8) -> Issued {
        let page = pool.alloc().expect("the pool is large enough");
        page.with_mut(|bytes| bytes.fill(fill));
        let op = MediaOp {
            id: page_index,
            kind: MediaKind::Write {
                offset: page_index * 128,
                page,
            },
        };
        medium.issue(op, &mut Rng::new(0)).0
    }

    fn flush(medium: &mut SimMedium) -> Issued {
        let op = MediaOp {
            id: 0,
            kind: MediaKind::Flush,
        };
        medium.issue(op, &mut Rng::new(0)).0
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
            let mut medium = SimMedium::new(1024, MODEL);
            let issued = write(&mut medium, &pool, 0, 1);
            medium.complete(issued);
            let issued = flush(&mut medium);
            medium.complete(issued);
            let issued = write(&mut medium, &pool, 1, 2);
            medium.complete(issued);
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
            let mut medium = SimMedium::new(1024, MODEL);
            let in_flight = write(&mut medium, &pool, 0, 1);
            let barrier = flush(&mut medium);
            medium.complete(in_flight);
            medium.complete(barrier);
            medium.crash(&mut Rng::new(seed));
            lost += usize::from(read(&medium, 0) != [1; 128]);
        }
        assert!(lost > 20);
    }

    #[test]
    fn a_later_write_is_never_overwritten_by_an_earlier_one() {
        let pool = Pool::new(8, 16);
        for seed in 0..200 {
            let mut medium = SimMedium::new(1024, MODEL);
            for fill in [1, 2] {
                let issued = write(&mut medium, &pool, 0, fill);
                medium.complete(issued);
            }
            let barrier = flush(&mut medium);
            medium.complete(barrier);
            let issued = write(&mut medium, &pool, 0, 3);
            medium.complete(issued);
            medium.crash(&mut Rng::new(seed));
            assert!(read(&medium, 0).iter().all(|&b| b == 2 || b == 3));
        }
    }

    #[test]
    fn a_full_cache_is_written_back_by_itself_and_loses_nothing_it_flushed() {
        let pool = Pool::new(8, 16);
        let mut medium = SimMedium::new(1024, MODEL);
        for i in 0..CACHED_WRITES_MAX as u64 * 3 {
            let issued = write(&mut medium, &pool, i % 8, i as u8);
            medium.complete(issued);
            if i % 5000 == 0 {
                let issued = flush(&mut medium);
                medium.complete(issued);
            }
        }
        let barrier = flush(&mut medium);
        medium.complete(barrier);
        let before: Vec<_> = (0..8).map(|i| read(&medium, i)).collect();
        medium.crash(&mut Rng::new(1));
        assert_eq!(before, (0..8).map(|i| read(&medium, i)).collect::<Vec<_>>());
    }

    #[test]
    fn the_write_at_which_power_is_cut_has_the_fate_it_was_given() {
        let pool = Pool::new(8, 16);
        let page = pool.alloc().expect("the pool is large enough");
        page.with_mut(|bytes| bytes.fill(7));
        let op = MediaOp {
            id: 0,
            kind: MediaKind::Write { offset: 0, page },
        };
        for seed in 0..100 {
            let written = |fate| {
                let mut medium = SimMedium::new(1024, MODEL);
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
        let mut medium = SimMedium::new(1024, MODEL);
        medium.fail_writes(1);
        medium.fail_flushes(1);
        let failed = write(&mut medium, &pool, 0, 1);
        assert_eq!(medium.complete(failed).result, Err(MediaError::Io));
        let failed = flush(&mut medium);
        assert_eq!(medium.complete(failed).result, Err(MediaError::Io));
        let fine = write(&mut medium, &pool, 0, 1);
        assert_eq!(medium.complete(fine).result, Ok(()));
    }
}
