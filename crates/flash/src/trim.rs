//! Trims that outlive a crash.
//!
//! A zeroed page has no data to carry its version, so trims are logged: a *record page* is programmed like data and
//! lists (logical page, version) pairs. A record page is live until two checkpoints cover it, so that losing the
//! newest checkpoint loses no trim. When record pages reach their limit, checkpoints take over: trims become durable
//! by them, and the oldest records die.

use crate::blocks::Stream;
use crate::flush::Stage;
use crate::geometry::RECORD_BLOCKS;
use crate::layout::{put_u32, put_u64, u32_at, u64_at};
use crate::oob::Kind;
use crate::ops::{Op, OpKind};
use crate::vssd::Vssd;
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
    pub(crate) accepted: u64,
    /// In record pages, or covered by two checkpoints, up to this.
    pub(crate) logged: u64,
    /// Durable up to this.
    pub(crate) durable: u64,
    /// Trims after `logged`.
    pending: VecDeque<(u32, Version)>,
    pub(crate) records: Vec<Record>,
    pub(crate) records_in_flight: u32,
    channel: u32,
}

/// The pairs of a record page.
pub(crate) fn parse_record(bytes: &[u8], count: u32) -> impl Iterator<Item = (u32, Version)> {
    bytes
        .chunks_exact(TRIM_BYTES)
        .take(count as usize)
        .map(|pair| (u32_at(pair, 0), Version(u64_at(pair, 4))))
}

impl Vssd {
    fn trims_per_record(&self) -> usize {
        self.share.page_bytes() / TRIM_BYTES
    }

    /// Every trim up to this is logged, or would be by a flush now.
    pub(crate) fn trims_loggable(&self) -> u64 {
        let may_log = self.trims.pending.is_empty() || self.room_for_record();
        if may_log {
            self.trims.accepted
        } else {
            self.trims.logged
        }
    }

    fn room_for_record(&self) -> bool {
        let per_block = self.share.pages_per_block();
        self.trims.records.len() < (RECORD_BLOCKS * per_block) as usize
            && self.blocks.room_for_moves() > per_block + 1
    }

    /// True when live records fill more than half of their limit.
    pub(crate) fn records_crowded(&self) -> bool {
        self.trims.records.len() as u32 * 2 > RECORD_BLOCKS * self.share.pages_per_block()
    }

    /// Accepts a trim and returns its number.
    pub(crate) fn accept_trim(&mut self, lpn: u32, version: Version) -> u64 {
        self.trims.accepted += 1;
        self.trims.pending.push_back((lpn, version));
        self.trims.accepted
    }

    /// Logs full record pages as they come about, so that a flush has little to do.
    pub(crate) fn step_trims(&mut self) {
        while self.trims.pending.len() >= self.trims_per_record()
            && self.rounds.stage != Stage::Writing
            && !self.latched
        {
            if !self.room_for_record() {
                self.checkpoints.wanted = true;
                return;
            }
            if !self.log_record() {
                return;
            }
        }
    }

    /// Logs every pending trim.
    pub(crate) fn log_trims(&mut self) -> Logged {
        while !self.trims.pending.is_empty() {
            if !self.room_for_record() {
                let durable = self.trims.accepted <= self.trims.durable;
                return if durable { Logged::All } else { Logged::NoRoom };
            }
            if !self.log_record() {
                return Logged::NoPage;
            }
        }
        Logged::All
    }

    /// Programs one record page; false when there is no page to fill.
    fn log_record(&mut self) -> bool {
        let Some(page) = self.pool.alloc_zeroed() else {
            self.starved = true;
            return false;
        };
        let count = self.trims_per_record().min(self.trims.pending.len());
        page.with_mut(|bytes| {
            for (pair, (lpn, version)) in bytes
                .chunks_exact_mut(TRIM_BYTES)
                .zip(self.trims.pending.drain(..count))
            {
                put_u32(pair, 0, lpn);
                put_u64(pair, 4, version.0);
            }
        });
        self.trims.logged += count as u64;
        self.trims.channel = (self.trims.channel + 1) % self.share.channels();
        let stream = Stream::Collection {
            channel: self.trims.channel,
        };
        let ppn = self.blocks.allocate(stream).expect("room_for_record left room");
        let crc = page.crc();
        let op = Op {
            lpn: count as u32,
            crc,
            page: Some(page),
            ..Op::new(OpKind::Record)
        };
        let op = self.ops.insert(op);
        let sequence = self.program(op, Kind::Record, ppn, false);
        self.trims.records.push(Record {
            id: sequence,
            ppn,
            sequence,
            trims: count as u32,
            crc,
        });
        self.trims.records_in_flight += 1;
        self.counters.record_programs += 1;
        true
    }

    /// The live record at `ppn`.
    pub(crate) fn record_at(&self, ppn: u32) -> usize {
        let found = self.trims.records.iter().position(|record| record.ppn == ppn);
        found.expect("a page owned by a record is a live record")
    }

    /// Checkpoints cover trims and records: `covered` twice, `durable` at least once.
    pub(crate) fn retire_trims(&mut self, covered: u64, trims_covered: u64, trims_durable: u64) {
        self.trims.durable = self.trims.durable.max(trims_durable);
        while self.trims.logged < trims_covered {
            self.trims
                .pending
                .pop_front()
                .expect("an accepted trim is logged or pending");
            self.trims.logged += 1;
        }
        let mut index = 0;
        while index < self.trims.records.len() {
            let record = self.trims.records[index];
            if record.sequence > covered {
                index += 1;
                continue;
            }
            self.trims.records.swap_remove(index);
            self.mapping.set_record(record.ppn, false);
            self.blocks.kill(record.ppn, 0, 0);
        }
    }
}
