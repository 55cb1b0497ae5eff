//! Trims that outlive a crash.
//!
//! A zeroed page has no data to carry its version, so trims are logged: a *record page* is programmed like data and
//! lists (logical page, version) pairs. A record page is live until two checkpoints cover it, so that losing the
//! newest checkpoint loses no trim. When record pages reach their limit, checkpoints take over: trims become durable
//! by them, and the oldest records die.

use crate::blocks::Stream;
use crate::geometry::RECORD_BLOCKS;
use crate::layout::{Share, put_u32, put_u64, u32_at, u64_at};
use crate::oob::Kind;
use crate::ops::{Op, OpKind};
use crate::pages::Pages;
use base::Version;
use std::collections::VecDeque;

/// Bytes of one trim in a record page.
const TRIM_BYTES: usize = 12;

/// A live record page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Sequence of its first program: copies of one record share it.
    pub(crate) id: u64,
    pub(crate) ppn: u32,
    pub(crate) sequence: u64,
    pub(crate) trims: u32,
    pub(crate) crc: u32,
}

/// How logging ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// Every trim accepted so far is logged or durable.
    All,
    /// The pool has no page; try again.
    NoPage,
    /// There is no room for records.
    NoRoom,
}

/// Trims are numbered from 1 in the order of acceptance.
#[derive(Debug, Default)]
pub(crate) struct Trims {
    /// The newest accepted.
    accepted: u64,
    /// In record pages, or covered by two checkpoints, up to this.
    logged: u64,
    /// Durable up to this.
    durable: u64,
    /// Trims after `logged`.
    pending: VecDeque<(u32, Version)>,
    records: Vec<Record>,
    records_in_flight: u32,
    channel: u32,
    /// Record pages programmed.
    programs: u64,
}

/// The pairs of a record page.
pub(crate) fn parse_record(bytes: &[u8], count: u32) -> impl Iterator<Item = (u32, Version)> {
    bytes
        .chunks_exact(TRIM_BYTES)
        .take(count as usize)
        .map(|pair| (u32_at(pair, 0), Version(u64_at(pair, 4))))
}

/// Corrects one flipped bit of `bytes`; false when that does not give the checksum.
pub(crate) fn correct(bytes: &mut [u8], crc: u32) -> bool {
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if crc32c::crc32c(bytes) == crc {
            return true;
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    false
}

fn trims_per_record(share: &Share) -> usize {
    share.page_bytes() / TRIM_BYTES
}

impl Trims {
    /// The trims of a vSSD that was recovered, with the records that are live.
    pub(crate) fn of(records: Vec<Record>) -> Self {
        Self {
            records,
            ..Self::default()
        }
    }

    /// The newest trim accepted.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Trims up to this are in record pages, or two checkpoints cover them.
    pub(crate) fn logged(&self) -> u64 {
        self.logged
    }

    /// Trims up to this are durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Record pages programmed.
    pub(crate) fn programs(&self) -> u64 {
        self.programs
    }

    pub(crate) fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    /// True while record pages are being programmed.
    pub(crate) fn is_logging(&self) -> bool {
        self.records_in_flight > 0
    }

    /// A record page is programmed.
    pub(crate) fn record_programmed(&mut self) {
        self.records_in_flight -= 1;
    }

    /// Trims that were logged up to `logged` are durable.
    pub(crate) fn flush_done(&mut self, logged: u64) {
        self.durable = self.durable.max(logged);
    }

    /// Every trim up to this is logged, or would be by a flush now.
    pub(crate) fn loggable(&self, pages: &Pages) -> u64 {
        let may_log = self.pending.is_empty() || self.room_for_record(pages);
        if may_log { self.accepted } else { self.logged }
    }

    fn room_for_record(&self, pages: &Pages) -> bool {
        let per_block = pages.share.pages_per_block();
        self.records.len() < (RECORD_BLOCKS * per_block) as usize
            && pages.blocks.room_for_moves() > per_block + 1
    }

    /// True when live records fill more than half of their limit.
    pub(crate) fn is_crowded(&self, share: &Share) -> bool {
        self.records.len() as u32 * 2 > RECORD_BLOCKS * share.pages_per_block()
    }

    /// Accepts a trim and returns its number.
    pub(crate) fn accept(&mut self, lpn: u32, version: Version) -> u64 {
        self.accepted += 1;
        self.pending.push_back((lpn, version));
        self.accepted
    }

    /// Logs full record pages as they come about, so that a flush has little to do. False if there is no room for them
    /// before a checkpoint.
    pub(crate) fn step(&mut self, pages: &mut Pages) -> bool {
        while self.pending.len() >= trims_per_record(&pages.share) && !pages.ops.latched() {
            if !self.room_for_record(pages) {
                return false;
            }
            if !self.log_record(pages) {
                return true;
            }
        }
        true
    }

    /// Logs every pending trim.
    pub(crate) fn log(&mut self, pages: &mut Pages) -> Logged {
        while !self.pending.is_empty() {
            if !self.room_for_record(pages) {
                let durable = self.accepted <= self.durable;
                return if durable { Logged::All } else { Logged::NoRoom };
            }
            if !self.log_record(pages) {
                return Logged::NoPage;
            }
        }
        Logged::All
    }

    /// Programs one record page; false when there is no page to fill.
    fn log_record(&mut self, pages: &mut Pages) -> bool {
        let Some(page) = pages.ops.own_page_zeroed() else {
            return false;
        };
        let count = trims_per_record(&pages.share).min(self.pending.len());
        page.with_mut(|bytes| {
            for (pair, (lpn, version)) in bytes
                .chunks_exact_mut(TRIM_BYTES)
                .zip(self.pending.drain(..count))
            {
                put_u32(pair, 0, lpn);
                put_u64(pair, 4, version.0);
            }
        });
        self.logged += count as u64;
        self.channel = (self.channel + 1) % pages.share.channels();
        let stream = Stream::Collection {
            channel: self.channel,
        };
        let ppn = pages.blocks.allocate(stream).expect("room_for_record left room");
        let crc = page.crc();
        let op = pages.ops.insert(Op {
            lpn: count as u32,
            crc,
            page: Some(page),
            ..Op::new(OpKind::Record)
        });
        let sequence = pages.program(op, Kind::Record, ppn, false);
        self.records.push(Record {
            id: sequence,
            ppn,
            sequence,
            trims: count as u32,
            crc,
        });
        self.records_in_flight += 1;
        self.programs += 1;
        true
    }

    /// The live record at `ppn`.
    pub(crate) fn record_mut(&mut self, ppn: u32) -> &mut Record {
        let found = self.records.iter_mut().find(|record| record.ppn == ppn);
        found.expect("a page owned by a record is a live record")
    }

    /// Checkpoints cover trims and records: `covered` twice, `durable` at least once.
    pub(crate) fn retire(&mut self, pages: &mut Pages, covered: u64, trims_covered: u64, trims_durable: u64) {
        self.durable = self.durable.max(trims_durable);
        while self.logged < trims_covered {
            self.pending
                .pop_front()
                .expect("an accepted trim is logged or pending");
            self.logged += 1;
        }
        let mut index = 0;
        while index < self.records.len() {
            let record = self.records[index];
            if record.sequence > covered {
                index += 1;
                continue;
            }
            self.records.swap_remove(index);
            pages.mapping.set_record(record.ppn, false);
            pages.blocks.kill(record.ppn, 0, 0);
        }
    }
}
