//! A trace on a volume: where its requests come to lie, how large they are, and when they are due.
//!
//! - **Place**: offsets go round the volume. A device of the trace begins at a page that its name decides, so that
//!   several do not lie on each other from the start. Neighbours stay neighbours; what is farther apart than the volume
//!   is large may share pages.
//! - **Size**: a range is widened to whole blocks of 512 bytes and cut into pieces of at most [`PIECE_BYTES`], each at a
//!   multiple of that, as a block layer does. All pieces of a request are due when it was; each counts.
//! - **Time**: from the first request on, divided by the speed. A request whose stamp lies before that of the one ahead
//!   of it comes with that one. If the clock's step is a second, the requests of one step are spread over it evenly.

use super::{Format, Record, TraceError};
use crate::workload::stream::{Request, Stream};
use base::Rng;
use base::limits::{SECTOR_BYTES, SECTORS_PER_PAGE};
use core::cell::RefCell;
use core::fmt;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a piece at most. Our own choice: Linux hands up to 1280 KiB to a device that takes it, many take 128 KiB.
pub const PIECE_BYTES: u64 = 256 << 10;
const PIECE_BLOCKS: u64 = PIECE_BYTES / SECTOR_BYTES as u64;
/// Requests that are spread over one step of the clock. Further ones of the step come together at its end.
const SPREAD_MAX: usize = 1 << 16;

/// Simulated time of a replay at most: longer than any published trace, and far from where time ends. Reaching it ends the
/// replay with [`TraceError::TooSlow`].
pub const SPAN_NS_MAX: u64 = 366 * 86_400_000_000_000;

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Pages of the volume.
    pub pages: u64,
    /// So many times as fast as it was recorded; positive.
    pub speed: f64,
    /// Requests of the trace at most.
    pub requests: u64,
    /// Step of the trace's clock in ns, see [`Format::tick_ns`].
    pub tick_ns: u64,
}

impl ReplayOptions {
    /// All of a trace of this format, as fast as it was recorded.
    pub fn new(format: Format, pages: u64) -> Self {
        Self {
            pages,
            speed: 1.0,
            requests: u64::MAX,
            tick_ns: format.tick_ns(),
        }
    }
}

/// Progress of a replay; shared, because the stream itself belongs to the run.
#[derive(Debug, Default)]
pub struct ReplayStatus {
    /// Requests of the trace.
    pub requests: u64,
    /// Pieces they were cut into.
    pub pieces: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Requests whose stamp was before that of the one ahead of it.
    pub out_of_order: u64,
    /// Time from the first request to the last, at the speed of the replay, in ns.
    pub span_ns: u64,
    /// Cause of an early end.
    pub error: Option<TraceError>,
}

/// The pieces of a trace's requests, in order.
pub struct Replay<I> {
    records: I,
    options: ReplayOptions,
    status: Rc<RefCell<ReplayStatus>>,
    /// Read ahead: with its time from the start, in ns of the trace.
    ahead: Option<(u64, Record)>,
    /// Of one step of the clock.
    ready: VecDeque<(u64, Record)>,
    pieces: VecDeque<Request>,
    origin_ns: Option<u64>,
    latest_ns: u64,
    read: u64,
}

impl<I> fmt::Debug for Replay<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<I: Iterator<Item = Result<Record, TraceError>>> Replay<I> {
    /// Of these records. [`Replay::status`] shows its progress.
    ///
    /// # Panics
    /// If the volume has no pages, or the speed is not positive.
    pub fn new(records: I, options: ReplayOptions) -> Self {
        assert!(
            options.pages > 0 && options.speed > 0.0,
            "there is a volume, and time passes"
        );
        Self {
            records,
            options,
            status: Rc::default(),
            ahead: None,
            ready: VecDeque::new(),
            pieces: VecDeque::new(),
            origin_ns: None,
            latest_ns: 0,
            read: 0,
        }
    }

    /// Its progress, also after it was given away.
    pub fn status(&self) -> Rc<RefCell<ReplayStatus>> {
        Rc::clone(&self.status)
    }

    /// Reads one record, with its time from the start; never before the one ahead of it.
    fn read(&mut self) -> Option<(u64, Record)> {
        if let Some(ahead) = self.ahead.take() {
            return Some(ahead);
        }
        if self.read == self.options.requests {
            return None;
        }
        let record = match self.records.next()? {
            Ok(record) => record,
            Err(error) => {
                self.status.borrow_mut().error = Some(error);
                self.read = self.options.requests;
                return None;
            }
        };
        self.read += 1;
        let origin = *self.origin_ns.get_or_insert(record.time_ns);
        let since = record.time_ns.saturating_sub(origin);
        if record.time_ns < origin || since < self.latest_ns {
            self.status.borrow_mut().out_of_order += 1;
        }
        self.latest_ns = self.latest_ns.max(since);
        Some((self.latest_ns, record))
    }

    /// The next request, its time spread within the clock's step.
    fn next_request(&mut self) -> Option<(u64, Record)> {
        if self.options.tick_ns == 0 {
            return self.read();
        }
        if self.ready.is_empty() {
            let first = self.read()?;
            self.ready.push_back(first);
            while let Some(next) = self.read() {
                if next.0 != first.0 || self.ready.len() == SPREAD_MAX {
                    self.ahead = Some(next);
                    break;
                }
                self.ready.push_back(next);
            }
            let gap = self.options.tick_ns / self.ready.len() as u64;
            for (index, entry) in self.ready.iter_mut().enumerate() {
                entry.0 += index as u64 * gap;
            }
        }
        self.ready.pop_front()
    }

    /// When a request is due that came at this time; `None` if that is too far away.
    fn due_ns(&mut self, at_ns: u64) -> Option<u64> {
        let due_ns = (at_ns as f64 / self.options.speed) as u64;
        if due_ns > SPAN_NS_MAX {
            let mut status = self.status.borrow_mut();
            status.error = Some(TraceError::TooSlow(status.requests + 1));
            (self.ahead, self.read) = (None, self.options.requests);
            self.ready.clear();
            return None;
        }
        Some(due_ns)
    }

    /// Cuts a request into pieces on the volume.
    fn cut(&mut self, due_ns: u64, record: &Record) {
        // Spreading may have put the rest of a very full step before the end of what was spread.
        let due_ns = due_ns.max(self.status.borrow().span_ns);
        let sector = SECTOR_BYTES as u64;
        let volume = self.options.pages * SECTORS_PER_PAGE as u64;
        let base = record.device % self.options.pages * SECTORS_PER_PAGE as u64;
        let mut at = record.offset / sector;
        let end = (record.offset + record.length).div_ceil(sector);
        let mut status = self.status.borrow_mut();
        status.requests += 1;
        status.writes += u64::from(record.write);
        status.bytes += record.length;
        status.span_ns = due_ns;
        while at < end {
            let block = (at % volume + base) % volume;
            let to_boundary = PIECE_BLOCKS - at % PIECE_BLOCKS;
            let blocks = (end - at).min(to_boundary).min(volume - block);
            status.pieces += 1;
            self.pieces.push_back(Request {
                due_ns,
                write: record.write,
                block,
                blocks,
            });
            at += blocks;
        }
    }
}

impl<I: Iterator<Item = Result<Record, TraceError>>> Stream for Replay<I> {
    fn next(&mut self, _rng: &mut Rng) -> Option<Request> {
        if self.pieces.is_empty() {
            let (at_ns, record) = self.next_request()?;
            let due_ns = self.due_ns(at_ns)?;
            self.cut(due_ns, &record);
        }
        self.pieces.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceReader;
    use base::Rng;
    use proptest::prelude::*;

    fn record(time_ns: u64, offset: u64, length: u64) -> Result<Record, TraceError> {
        Ok(Record {
            time_ns,
            write: false,
            offset,
            length,
            device: 0,
        })
    }

    fn all(replay: &mut dyn Stream) -> Vec<Request> {
        let mut rng = Rng::new(1);
        core::iter::from_fn(|| replay.next(&mut rng)).collect()
    }

    fn options(pages: u64) -> ReplayOptions {
        ReplayOptions::new(Format::Msr, pages)
    }

    #[test]
    fn large_requests_are_cut_at_multiples_and_unaligned_ones_widened() {
        let volume = 1 << 20;
        let records = [
            record(0, 1000, 100),
            record(0, PIECE_BYTES - 512, PIECE_BYTES + 513),
        ];
        let mut replay = Replay::new(records.into_iter(), options(volume));
        let ranges: Vec<_> = all(&mut replay).iter().map(|r| (r.block, r.blocks)).collect();
        assert_eq!(ranges, [(1, 2), (511, 1), (512, 512), (1024, 1)]);
        let status = replay.status();
        assert_eq!((status.borrow().requests, status.borrow().pieces), (2, 4));
    }

    #[test]
    fn times_count_from_the_first_request_are_scaled_and_never_go_back() {
        let records = [
            record(5_000, 0, 512),
            record(9_000, 0, 512),
            record(6_000, 0, 512),
            record(4_000, 0, 512),
        ];
        let fast = ReplayOptions {
            speed: 2.0,
            ..options(8)
        };
        let mut replay = Replay::new(records.into_iter(), fast);
        let due: Vec<_> = all(&mut replay).iter().map(|r| r.due_ns).collect();
        assert_eq!(due, [0, 2_000, 2_000, 2_000]);
        assert_eq!(replay.status().borrow().out_of_order, 2);
    }

    #[test]
    fn requests_of_one_second_of_a_coarse_clock_are_spread_over_it() {
        let text = "100,0,8,0,1\n100,8,8,1,1\n100,16,8,0,1\n100,24,8,0,1\n102,0,8,0,1\n";
        let reader = TraceReader::new(text.as_bytes(), "t", Format::Tencent, false);
        let mut replay = Replay::new(reader, ReplayOptions::new(Format::Tencent, 64));
        let due: Vec<_> = all(&mut replay).iter().map(|r| r.due_ns / 1_000_000).collect();
        assert_eq!(due, [0, 250, 500, 750, 2_000]);
    }

    #[test]
    fn a_bad_line_ends_the_replay_and_is_told() {
        let text = "1,R,0,512,10\nnonsense\n1,R,0,512,11\n";
        let reader = TraceReader::new(text.as_bytes(), "t", Format::Alibaba, false);
        let mut replay = Replay::new(reader, options(64));
        assert_eq!(all(&mut replay).len(), 1);
        let error = replay.status().borrow_mut().error.take().expect("it is told");
        assert!(
            error.to_string().starts_with("t:2: the line has 1 fields"),
            "{error}"
        );
    }

    #[test]
    fn a_replay_of_more_than_a_year_ends_and_tells_how_to_shorten_it() {
        let slow = ReplayOptions {
            speed: 1e-6,
            ..options(64)
        };
        let records = [record(0, 0, 512), record(60_000_000_000, 0, 512)];
        let mut replay = Replay::new(records.into_iter(), slow);
        assert_eq!(all(&mut replay).len(), 1);
        let error = replay.status().borrow_mut().error.take().expect("it is told");
        assert!(
            error
                .to_string()
                .contains("at request 2: choose a higher --speed"),
            "{error}"
        );
    }

    #[test]
    fn no_more_requests_than_asked_for_are_read() {
        let records = (0..10).map(|i| record(i, i * 512, 512));
        let few = ReplayOptions {
            requests: 4,
            ..options(64)
        };
        assert_eq!(all(&mut Replay::new(records, few)).len(), 4);
    }

    proptest! {
        #[test]
        fn every_piece_is_on_the_volume_and_together_they_are_the_request(
            pages in 1u64..100_000, offset in 0u64..1 << 62, length in 1u64..1 << 24, device: u64,
        ) {
            let one = Record { time_ns: 7, write: true, offset, length, device };
            let pieces = all(&mut Replay::new([Ok(one)].into_iter(), options(pages)));
            let volume = pages * SECTORS_PER_PAGE as u64;
            prop_assert!(pieces.iter().all(|p| p.write && p.blocks >= 1 && p.blocks <= PIECE_BLOCKS));
            prop_assert!(pieces.iter().all(|p| p.block + p.blocks <= volume));
            let sum: u64 = pieces.iter().map(|p| p.blocks).sum();
            prop_assert_eq!(sum, (offset + length).div_ceil(512) - offset / 512);
            prop_assert!(pieces.windows(2).all(|p| (p[0].block + p[0].blocks) % volume == p[1].block));
        }
    }
}
