//! A volatile write cache over a device: what a power cut takes, and what it leaves.
//!
//! Invariants: a write is durable once a flush that was submitted after the write was done is itself done, or once it
//! is done if it was written through. At a crash each write that is not durable persists, vanishes or persists torn at
//! sector granularity, drawn from the seed; writes to one sector keep their order (a later one is never overwritten by
//! an earlier one).

use base::device::Device;
use base::{Instant, MediaDone, MediaError, MediaKind, MediaOp, Queue, Rng};
use std::collections::VecDeque;

/// Writes that wait for a flush before the drive starts to write the oldest back by itself.
pub(super) const CACHED_WRITES_MAX: usize = 1 << 14;
/// The place of a write that a later one has made meaningless.
const VOID: u64 = u64::MAX;

/// Fate of the write or flush at a power cut.
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

/// How the cache keeps what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keeps {
    /// Bytes of a page: the unit in which the cache keeps writes.
    pub page_bytes: usize,
    /// Bytes of a sector: the unit of atomic persistence.
    pub sector_bytes: usize,
    /// The canary: flushes are acknowledged and do nothing.
    pub loses_flushes: bool,
}

/// A change of the medium in flight: the positions of its writes, for a flush those that it makes durable.
#[derive(Clone, Copy, Debug)]
struct Flight {
    id: u64,
    first: u64,
    end: u64,
}

/// A write cache that a power cut empties. The device below holds what a read sees.
#[derive(Debug)]
pub(super) struct Volatile<D> {
    inner: D,
    keeps: Keeps,
    durable: Vec<u8>,
    /// Offsets of the writes that are not durable, oldest first, and their bytes. `offsets[..head]` are gone.
    offsets: Vec<u64>,
    bytes: Vec<u8>,
    head: usize,
    /// Changes in flight, in the order of submission.
    flights: VecDeque<Flight>,
    /// Position after the last write that is done, counted since the start.
    done: u64,
    /// Positions that were removed from the front since the start.
    retired: u64,
    /// At the next crash, the fate of the last write.
    cut: Option<CutFate>,
    /// Writes that a crash undid or tore.
    pub lost: u64,
}

impl<D: Device> Volatile<D> {
    /// A cache over `inner`, which holds zeros.
    pub fn new(inner: D, keeps: Keeps) -> Self {
        Self {
            durable: vec![0; inner.capacity_bytes() as usize],
            inner,
            keeps,
            offsets: Vec::new(),
            bytes: Vec::new(),
            head: 0,
            flights: VecDeque::new(),
            done: 0,
            retired: 0,
            cut: None,
            lost: 0,
        }
    }

    /// Cached writes.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// Takes the operation in at which power is cut: [`Volatile::crash`] follows, and it is never completed.
    pub fn cut(&mut self, op: &MediaOp, fate: CutFate, rng: &mut Rng) {
        assert!(op.kind.changes(), "power is cut at writes and flushes");
        let waiting = self.done.saturating_sub(self.front());
        match (op.kind, fate) {
            (_, CutFate::Lost) => {}
            (MediaKind::Flush, _) if self.keeps.loses_flushes => {}
            (MediaKind::Flush, CutFate::Persists) => self.destage(self.done),
            (MediaKind::Flush, CutFate::Torn) => self.destage(self.front() + rng.below(waiting + 1)),
            _ => {
                if self.is_inside(op) {
                    self.keep(op);
                    self.cut = Some(fate);
                }
            }
        }
    }

    /// Power is lost: what is not durable persists, vanishes or is torn.
    pub fn crash(&mut self, rng: &mut Rng) {
        let (page, sector) = (self.keeps.page_bytes, self.keeps.sector_bytes);
        // One draw decides how the drive tends to behave, so that "all" and "nothing" are met often.
        let keep = [0.0, 0.2, 0.5, 0.9, 1.0][rng.below(5) as usize];
        let cut = self.cut.take();
        for i in self.head..self.offsets.len() {
            let last = i + 1 == self.offsets.len();
            let fate = cut.filter(|_| last).unwrap_or_else(|| draw_fate(keep, rng));
            if self.offsets[i] == VOID {
                continue;
            }
            let start = self.offsets[i] as usize;
            let source = i * page;
            self.lost += u64::from(fate != CutFate::Persists);
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
        self.flights.clear();
        self.head = 0;
        self.done = self.retired;
        let durable = self.inner.write_at(0, &self.durable);
        durable.expect("memory takes what it has room for");
    }

    /// After a crash: another drive takes the place of this one, and holds this.
    pub fn fill(&mut self, content: &[u8]) {
        self.durable.copy_from_slice(content);
    }

    /// What a crash leaves.
    pub fn durable(&self) -> &[u8] {
        &self.durable
    }

    /// Flips a bit of what is durable.
    pub fn corrupt(&mut self, byte: usize, bit: u64) {
        self.durable[byte] ^= 1 << bit;
    }

    /// The position of the oldest write that is not durable.
    fn front(&self) -> u64 {
        self.retired + self.head as u64
    }

    /// The position after the newest write.
    fn end(&self) -> u64 {
        self.retired + self.offsets.len() as u64
    }

    fn is_inside(&self, op: &MediaOp) -> bool {
        let end = op.offset.checked_add(u64::from(op.length));
        end.is_some_and(|end| end <= self.durable.len() as u64)
    }

    /// Remembers the bytes of a change.
    fn keep(&mut self, op: &MediaOp) {
        if op.pages.is_empty() {
            return self.keep_zeros(op.offset, u64::from(op.length));
        }
        for (at, page, part) in op.parts() {
            page.with(|bytes| self.keep_bytes(at, &bytes[part]));
        }
    }

    fn keep_zeros(&mut self, offset: u64, length: u64) {
        let zeros = vec![0; length as usize];
        self.keep_bytes(offset, &zeros);
    }

    fn keep_bytes(&mut self, offset: u64, mut bytes: &[u8]) {
        let page = self.keeps.page_bytes;
        let mut at = offset;
        while !bytes.is_empty() {
            let skip = (at % page as u64) as usize;
            let (part, rest) = bytes.split_at(bytes.len().min(page - skip));
            self.keep_part(at - skip as u64, skip, part);
            at += part.len() as u64;
            bytes = rest;
        }
    }

    /// Remembers a page as it is after a write of some of its bytes.
    fn keep_part(&mut self, start: u64, skip: usize, part: &[u8]) {
        if self.offsets.len() - self.head >= CACHED_WRITES_MAX && !self.keeps.loses_flushes {
            self.destage(self.front() + (CACHED_WRITES_MAX / 2) as u64);
        }
        self.offsets.push(start);
        let page = self.keeps.page_bytes;
        if part.len() == page {
            return self.bytes.extend_from_slice(part);
        }
        let from = self.bytes.len();
        self.bytes.resize(from + page, 0);
        let before = self.inner.read_at(start, &mut self.bytes[from..]);
        before.expect("a page of the medium");
        self.bytes[from + skip..][..part.len()].copy_from_slice(part);
    }

    /// Makes the writes up to `position` durable, in order.
    fn destage(&mut self, position: u64) {
        let page = self.keeps.page_bytes;
        let end = position
            .saturating_sub(self.retired)
            .min(self.offsets.len() as u64) as usize;
        for i in self.head..end {
            self.persist(i);
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

    fn persist(&mut self, index: usize) {
        let (page, start) = (self.keeps.page_bytes, self.offsets[index]);
        if start != VOID {
            self.durable[start as usize..start as usize + page]
                .copy_from_slice(&self.bytes[index * page..(index + 1) * page]);
        }
    }

    /// Makes the writes of these positions durable, and no others. Earlier ones to the same places mean nothing then.
    fn write_through(&mut self, first: u64, end: u64) {
        for position in first.max(self.front())..end {
            let index = (position - self.retired) as usize;
            self.persist(index);
            let place = self.offsets[index];
            for earlier in &mut self.offsets[self.head..=index] {
                if *earlier == place {
                    *earlier = VOID;
                }
            }
        }
    }

    /// A change that ends.
    fn ended(&mut self, done: &MediaDone) {
        let Some(at) = self.flights.iter().position(|flight| flight.id == done.id) else {
            return;
        };
        let flight = self.flights.remove(at).expect("just found");
        let is_durable = done.result.is_ok() && !self.keeps.loses_flushes;
        match done.kind {
            MediaKind::Flush if is_durable => self.destage(flight.end),
            MediaKind::Flush => {}
            MediaKind::WriteThrough if is_durable => self.write_through(flight.first, flight.end),
            _ => self.done = self.done.max(flight.end),
        }
    }
}

impl<D: Device + Queue> Queue for Volatile<D> {
    fn submit(&mut self, now: Instant, op: MediaOp) {
        if op.kind.changes() && self.is_inside(&op) {
            let first = self.end();
            let end = if op.kind == MediaKind::Flush {
                self.done
            } else {
                self.keep(&op);
                self.end()
            };
            let id = op.id;
            self.flights.push_back(Flight { id, first, end });
        }
        self.inner.submit(now, op);
    }

    fn poll(&mut self, now: Instant) -> Option<MediaDone> {
        let done = self.inner.poll(now)?;
        if done.kind.changes() {
            self.ended(&done);
        }
        Some(done)
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }
}

impl<D: Device> Device for Volatile<D> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.inner.read_at(offset, bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.durable.len() as u64) {
            return Err(MediaError::OutOfRange);
        }
        self.keep_bytes(offset, bytes);
        self.done = self.end();
        self.inner.write_at(offset, bytes)
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        if !self.keeps.loses_flushes {
            self.destage(self.end());
        }
        self.inner.flush()
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn atomic_bytes(&self) -> u32 {
        self.keeps.sector_bytes as u32
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
