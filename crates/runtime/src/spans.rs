//! Where the requests to a target spend their time, if somebody wants to know ([`CoreConfig::spans`]); else nothing of
//! this is there, and a request passes a few branches.
//!
//! | layer | from | to |
//! | --- | --- | --- |
//! | frontend | the turn begins in which its connection is read | it is parsed, classified and queued |
//! | block switch | that | its turn has come |
//! | FTL and media | that | it is answered: memory, a file's ring and the kernel below it, or a vSSD |
//! | reply | that | the socket has taken the last byte of the answer |
//!
//! A request that the session cuts counts once for each part. As with counters, the core is the only writer, and any thread may read.
//!
//! [`CoreConfig::spans`]: crate::CoreConfig::spans

use crate::counters::Counter;
use base::limits::{REQUEST_BYTES_MAX, SECTOR_BYTES};
use base::{BlockOp, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// The layers, in order.
pub const SPAN_LAYERS: [&str; 4] = ["frontend", "block switch", "FTL and media", "reply"];

/// Steps within a factor of two: times are told apart to 6 %.
const STEPS: usize = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Longer times (18 minutes) count as this long.
const OCTAVES: usize = 40;
/// Sizes of requests: powers of two from a sector to the largest request.
const SIZES: usize = (REQUEST_BYTES_MAX as usize / SECTOR_BYTES).ilog2() as usize + 1;
/// Reads and writes by size, and what has none.
const ROWS: usize = 2 * SIZES + 1;

/// Requests of one kind and size, since the core's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanRow {
    /// Reads, writes, or flushes and their like.
    pub op: BlockOp,
    /// Bytes, rounded up to a power of two; 0 for what has none.
    pub bytes_max: u64,
    /// Time in each of [`SPAN_LAYERS`].
    pub layers: [SpanTimes; SPAN_LAYERS.len()],
    /// All of it.
    pub total: SpanTimes,
}

/// A distribution of times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanTimes {
    /// Their sum, ns.
    pub sum_ns: u64,
    /// Times, to 6 %, ns, and how many there were, the shortest first.
    pub counts: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Times {
    sum_ns: Counter,
    counts: Box<[Counter]>,
}

impl Times {
    fn new() -> Self {
        Self {
            sum_ns: Counter::default(),
            counts: (0..OCTAVES * STEPS).map(|_| Counter::default()).collect(),
        }
    }

    fn add(&self, ns: u64) {
        self.sum_ns.add(ns);
        self.counts[place_of(ns)].bump();
    }

    fn read(&self) -> SpanTimes {
        let counts = self.counts.iter().enumerate();
        let counts = counts.map(|(place, count)| (time_at(place), count.read()));
        SpanTimes {
            sum_ns: self.sum_ns.read(),
            counts: counts.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// Times below [`STEPS`] have a place each; above, each factor of two has as many.
fn place_of(ns: u64) -> usize {
    let octave = ns.max(1).ilog2();
    let place = match octave.checked_sub(STEP_BITS) {
        None => ns as usize,
        Some(shift) => (shift as usize + 1) * STEPS + (ns >> shift) as usize - STEPS,
    };
    place.min(OCTAVES * STEPS - 1)
}

/// The middle of what has a place, ns.
fn time_at(place: usize) -> u64 {
    match (place / STEPS).checked_sub(1) {
        None => place as u64,
        Some(shift) => (((STEPS + place % STEPS) as u64) << shift) + ((1 << shift) >> 1),
    }
}

/// Counts: by row the layers, and the whole.
#[derive(Debug)]
pub(crate) struct Table(Vec<[Times; SPAN_LAYERS.len() + 1]>);

impl Table {
    pub fn new() -> Self {
        Self(
            (0..ROWS)
                .map(|_| core::array::from_fn(|_| Times::new()))
                .collect(),
        )
    }

    /// All rows that have something.
    pub fn read(&self) -> Vec<SpanRow> {
        let rows = self.0.iter().enumerate().map(|(row, times)| {
            let [layers @ .., total] = times;
            let (op, bytes_max) = match row {
                0 => (BlockOp::Flush, 0),
                row if row <= SIZES => (BlockOp::Read, (SECTOR_BYTES as u64) << (row - 1)),
                row => (BlockOp::Write, (SECTOR_BYTES as u64) << (row - 1 - SIZES)),
            };
            SpanRow {
                op,
                bytes_max,
                layers: layers.each_ref().map(Times::read),
                total: total.read(),
            }
        });
        rows.filter(|row| !row.total.counts.is_empty()).collect()
    }
}

fn row_of(op: BlockOp, bytes: u32) -> usize {
    let size = (bytes as usize).div_ceil(SECTOR_BYTES).max(1).next_power_of_two();
    let size = (size.ilog2() as usize).min(SIZES - 1);
    match op {
        BlockOp::Read => 1 + size,
        BlockOp::Write => 1 + SIZES + size,
        BlockOp::Flush | BlockOp::Trim | BlockOp::WriteZeroes | BlockOp::Status => 0,
    }
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    row: usize,
    came: Instant,
    queued: Instant,
    begun: Instant,
}

impl Span {
    /// A request that is queued now.
    pub fn new(op: BlockOp, bytes: u32, came: Instant, queued: Instant) -> Self {
        Self {
            row: row_of(op, bytes),
            came,
            queued,
            begun: queued,
        }
    }

    /// Its turn has come.
    pub fn begin(&mut self, now: Instant) {
        self.begun = now;
    }
}

/// An answer that is not sent yet.
struct Unsent {
    slot: usize,
    span: Span,
    answered: Instant,
    /// It is when its connection has sent so many bytes.
    at_bytes: u64,
}

/// The spans of one core.
pub(crate) struct Spans {
    table: Arc<Table>,
    unsent: VecDeque<Unsent>,
    /// Bytes that the connection in each slot has sent.
    sent_bytes: Vec<u64>,
}

impl Spans {
    pub fn new(table: Arc<Table>, slots: usize) -> Self {
        Self {
            table,
            unsent: VecDeque::with_capacity(1024),
            sent_bytes: vec![0; slots],
        }
    }

    /// A request is answered; its connection has `pending_bytes` to send, the answer's the last of them.
    pub fn answered(&mut self, now: Instant, slot: usize, span: Span, pending_bytes: u64) {
        let unsent = Unsent {
            slot,
            span,
            answered: now,
            at_bytes: self.sent_bytes[slot] + pending_bytes,
        };
        self.unsent.push_back(unsent);
    }

    /// A connection has sent `bytes`, or, with none, has closed.
    pub fn sent(&mut self, now: impl FnOnce() -> Instant, slot: usize, bytes: Option<usize>) {
        if let Some(bytes) = bytes {
            self.sent_bytes[slot] += bytes as u64;
        }
        if self.unsent.is_empty() {
            return;
        }
        let (now, sent_bytes, table) = (now(), self.sent_bytes[slot], &self.table);
        self.unsent.retain(|unsent| {
            let is_sent = unsent.slot == slot && bytes.is_some() && unsent.at_bytes <= sent_bytes;
            if is_sent {
                let Span {
                    row,
                    came,
                    queued,
                    begun,
                } = unsent.span;
                let edges = [came, queued, begun, unsent.answered, now];
                let times = &table.0[row];
                for (times, edges) in times.iter().zip(edges.windows(2)) {
                    times.add(edges[1].nanos_since(edges[0]));
                }
                times[SPAN_LAYERS.len()].add(now.nanos_since(came));
            }
            !is_sent && (bytes.is_some() || unsent.slot != slot)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_apart_to_a_sixteenth() {
        for ns in (0..200).chain([1_000, 123_456, 1 << 30, (1 << 43) - 1]) {
            let told = time_at(place_of(ns));
            assert!(told.abs_diff(ns) <= ns / 32 + 1, "{ns}: {told}");
        }
        let places: Vec<usize> = (0..100_000).map(place_of).collect();
        assert!(places.is_sorted());
        assert_eq!(place_of(u64::MAX), OCTAVES * STEPS - 1);
    }

    #[test]
    fn requests_have_a_row_by_what_they_do_and_how_much() {
        for (op, bytes, row) in [
            (BlockOp::Flush, 0, 0),
            (BlockOp::Trim, 1 << 20, 0),
            (BlockOp::Read, 512, 1),
            (BlockOp::Read, 4096, 4),
            (BlockOp::Read, 4608, 5),
            (BlockOp::Read, REQUEST_BYTES_MAX, SIZES),
            (BlockOp::Write, 512, SIZES + 1),
            (BlockOp::Write, REQUEST_BYTES_MAX, ROWS - 1),
        ] {
            assert_eq!(row_of(op, bytes), row, "{op:?} {bytes}");
        }
    }

    #[test]
    fn an_answer_is_sent_when_its_last_byte_is_and_one_whose_client_has_gone_never() {
        let at = |ns| Instant::ZERO + base::Duration::from_nanos(ns);
        let table = Arc::new(Table::new());
        let mut spans = Spans::new(Arc::clone(&table), 2);
        let mut span = Span::new(BlockOp::Read, 4096, at(100), at(110));
        span.begin(at(130));
        spans.answered(at(1130), 0, span, 4112);
        spans.answered(at(1140), 1, span, 4112);
        spans.sent(|| at(1150), 0, Some(4000));
        assert_eq!(table.read(), []);
        spans.sent(|| at(1160), 1, None);
        spans.sent(|| at(1190), 0, Some(112));
        let [row] = &table.read()[..] else { panic!() };
        assert_eq!((row.op, row.bytes_max), (BlockOp::Read, 4096));
        let sums = row.layers.each_ref().map(|times| times.sum_ns);
        assert_eq!((sums, row.total.sum_ns), ([10, 20, 1000, 60], 1090));
        assert_eq!(row.layers[0].counts, [(10, 1)]);
        assert!(spans.unsent.is_empty());
    }
}
