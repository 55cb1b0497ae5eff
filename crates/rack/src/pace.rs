//! How fast a node makes copies: as fast as its clients hardly notice.
//!
//! A pure policy. A node tells it what clients' operations take there ([`Pace::note`]), and asks for each page that it gives
//! to a member that joins, or takes as one ([`Pace::take`]). Both ends of a copy do so, and the slower one decides.
//!
//! - **Measure.** Once a second copying pauses for a moment. What clients' operations take meanwhile, or took before the
//!   copying began, is the *calm* time; the lowest of the last ones counts, as in LEDBAT (RFC 6817). The load of clients may
//!   change: a calm time is forgotten when enough newer ones have come.
//! - **Rate.** After each period, the rate falls if clients' operations took much longer than the calm time, and grows if
//!   they did not. It grows twice as fast while there are no clients. It never runs far ahead of what is really copied.
//! - **Bounds.** The rate never falls below [`FLOOR_PAGES_PER_S`], so a copy always ends. An operator may set a cap.

use crate::bucket::{Bucket, Rate};
use crate::times::Times;
use base::limits::PAGE_BYTES;
use base::{Duration, Instant};

/// The least rate: 4 MiB a second, a few hundredths of what a flash medium does. A copy of 1 TiB takes three days at it.
pub const FLOOR_PAGES_PER_S: f64 = (4 << 20) as f64 / PAGE_BYTES as f64;
/// The rate at first: little enough for a busy medium, and without clients it is doubled within each period.
const START_PAGES_PER_S: f64 = 4.0 * FLOOR_PAGES_PER_S;
/// More than any medium and wire of a node give: 40 GiB a second.
const MOST_PAGES_PER_S: f64 = 1e7;
/// Tokens for so much time gather while none is taken. Far below what a client notices.
const BURST_S: f64 = 0.001;

/// A period is at least so long,
const PERIOD: Duration = Duration::from_millis(50);
/// and has so many operations, unless it is so long that clients hardly do anything.
const OPERATIONS_MIN: u32 = 40;
const PERIOD_MAX: Duration = Duration::from_millis(500);
/// As long is copied between two pauses.
const PAUSE_EVERY: Duration = Duration::from_secs(1);
/// A pause without clients' operations tells nothing after this.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The lowest of so many calm times counts: those of the last seconds.
const CALM_TIMES: usize = 8;

/// Of operations, the part that has taken at most the time that is compared.
const QUANTILE: f64 = 0.95;
/// The rate falls above this share of the calm time, and grows below that one.
const MUCH_LONGER: f64 = 1.5;
const LITTLE_LONGER: f64 = 1.25;
/// A difference below this is none: a client's way to the node and back takes longer.
const SLACK_NS: f64 = 50_000.0;
const FALL: f64 = 0.7;
const GROW: f64 = 1.25;
const GROW_ALONE: f64 = 2.0;
/// The rate is at most so many times what was copied.
const AHEAD: f64 = 2.0;

/// An operator's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cap {
    /// Bytes a second that a node gives and takes at most, each page counted once; none for no cap.
    pub bytes_per_s: Option<u64>,
}

impl Cap {
    fn pages_per_s(self) -> f64 {
        let cap = self.bytes_per_s.map_or(f64::INFINITY, |bytes| bytes as f64);
        (cap / PAGE_BYTES as f64).clamp(1.0, MOST_PAGES_PER_S)
    }
}

/// The occupation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is copied.
    Idle,
    Copying,
    /// Copying pauses, to see what clients' operations take without it.
    Paused,
}

/// The pace of a node.
#[derive(Clone, Debug)]
pub struct Pace {
    cap: f64,
    rate: f64,
    bucket: Bucket,
    /// Pages of the least rate that were not copied yet.
    owed: Bucket,
    phase: Phase,
    /// When the period began.
    since: Instant,
    /// When copying paused last, or began.
    paused_at: Instant,
    /// Of operations since the period began, while something was copied.
    times: Times,
    /// Of operations since the last calm time was known, while nothing was copied.
    calm_times: Times,
    /// Pages copied in the period.
    copied: u32,
    calm_ns: [f64; CALM_TIMES],
    /// The place of the next calm time.
    next: usize,
    pages: u64,
    waits: u64,
}

impl Pace {
    /// Of a node that copies nothing yet.
    pub fn new(now: Instant, cap: Cap) -> Self {
        let cap = cap.pages_per_s();
        let rate = START_PAGES_PER_S.min(cap);
        Self {
            cap,
            rate,
            bucket: Bucket::new(now, rate_of(rate)),
            owed: Bucket::new(now, rate_of(FLOOR_PAGES_PER_S.min(cap))),
            phase: Phase::Idle,
            since: now,
            paused_at: now,
            times: Times::new(),
            calm_times: Times::new(),
            copied: 0,
            calm_ns: [f64::INFINITY; CALM_TIMES],
            next: 0,
            pages: 0,
            waits: 0,
        }
    }

    /// Pages that were copied.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Times that a page had to wait, as enough was copied or copying paused.
    pub fn waits(&self) -> u64 {
        self.waits
    }

    /// An operation of a client took so long.
    pub fn note(&mut self, now: Instant, took: Duration) {
        let times = match self.phase {
            Phase::Copying => &mut self.times,
            Phase::Idle | Phase::Paused => &mut self.calm_times,
        };
        times.note(took.as_nanos() as u64);
        self.go_on(now);
    }

    /// True if less is copied than the least rate: whatever else stands in the way of the next page has to give way.
    pub fn owes(&mut self, now: Instant) -> bool {
        self.owed.has_token(now)
    }

    /// When the next page is owed.
    pub fn owed_at(&self) -> Instant {
        self.owed.ready_at()
    }

    /// True if one page more may be copied now; it is then.
    pub fn take(&mut self, now: Instant) -> bool {
        self.go_on(now);
        if self.phase == Phase::Idle {
            self.begin(now);
        }
        let may = self.phase == Phase::Copying && self.bucket.has_token(now);
        if may {
            self.bucket.take();
            if self.owes(now) {
                self.owed.take();
            }
            self.copied += 1;
            self.pages += 1;
        } else {
            self.waits += 1;
        }
        may
    }

    /// When to ask again for a page that [`take`](Pace::take) has refused just now.
    pub fn ready_at(&self, now: Instant) -> Instant {
        match self.phase {
            Phase::Paused if now < self.since + PERIOD => self.since + PERIOD,
            Phase::Paused => self.since + PAUSE_MAX,
            Phase::Idle | Phase::Copying => self.bucket.ready_at(),
        }
    }

    /// The first page is asked for. What was copied before says little about the clients of now.
    fn begin(&mut self, now: Instant) {
        self.set_rate(now, START_PAGES_PER_S);
        self.paused_at = now;
        self.enter(now, Phase::Copying);
    }

    fn enter(&mut self, now: Instant, phase: Phase) {
        (self.phase, self.since, self.copied) = (phase, now, 0);
        self.times.clear();
    }

    /// Ends the period if it is long enough.
    fn go_on(&mut self, now: Instant) {
        let lasted = now.since(self.since);
        if lasted < PERIOD {
            return;
        }
        let (operations, calm) = (self.times.count(), self.calm_times.count());
        match self.phase {
            Phase::Idle if calm >= OPERATIONS_MIN && lasted >= PERIOD_MAX => {
                self.end_calm();
                self.enter(now, Phase::Idle);
            }
            Phase::Paused if calm >= OPERATIONS_MIN || lasted >= PAUSE_MAX => {
                self.end_calm();
                self.enter(now, Phase::Copying);
            }
            Phase::Copying if self.copied == 0 => self.enter(now, Phase::Idle),
            Phase::Copying if operations == 0 || operations >= OPERATIONS_MIN || lasted >= PERIOD_MAX => {
                self.end_copying(now, lasted);
            }
            Phase::Idle | Phase::Paused | Phase::Copying => {}
        }
    }

    /// Nothing was copied while these operations took their time. Few operations tell with those of later pauses.
    fn end_calm(&mut self) {
        if self.calm_times.count() >= OPERATIONS_MIN {
            self.calm_ns[self.next] = self.calm_times.quantile(QUANTILE).expect("there are operations");
            self.next = (self.next + 1) % CALM_TIMES;
            self.calm_times.clear();
        }
    }

    fn end_copying(&mut self, now: Instant, lasted: Duration) {
        let most = AHEAD * f64::from(self.copied) / lasted.as_secs_f64();
        let calm_ns = self.calm_ns.iter().copied().fold(f64::INFINITY, f64::min);
        let is_above = |took: f64, share: f64, slack: f64| took > (calm_ns * share).max(calm_ns + slack);
        let took = self.times.quantile(QUANTILE);
        let rate = match took {
            None => (self.rate * GROW_ALONE).min(most.max(self.rate)),
            Some(took) if is_above(took, MUCH_LONGER, SLACK_NS) => self.rate.min(most) * FALL,
            // It is little longer, or nobody knows what is usual.
            Some(took) if calm_ns.is_infinite() || is_above(took, LITTLE_LONGER, SLACK_NS / 2.0) => self.rate,
            Some(_) => (self.rate * GROW).min(most.max(self.rate)),
        };
        self.set_rate(now, rate);
        let is_due = calm_ns.is_infinite() || now.since(self.paused_at) >= PAUSE_EVERY;
        match took.is_some() && is_due {
            true => {
                self.paused_at = now;
                self.enter(now, Phase::Paused);
            }
            false => self.enter(now, Phase::Copying),
        }
    }

    fn set_rate(&mut self, now: Instant, rate: f64) {
        let cap = self.cap;
        self.rate = rate.clamp(FLOOR_PAGES_PER_S.min(cap), cap);
        self.bucket.set_rate(now, rate_of(self.rate));
    }
}

fn rate_of(pages_per_s: f64) -> Rate {
    Rate {
        per_second: pages_per_s,
        burst: (pages_per_s * BURST_S).max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    #[test]
    fn the_least_rate_is_owed_whatever_else_stands_in_the_way() {
        let mut pace = Pace::new(at(0), Cap::default());
        // Asked for only when it is owed, as where clients fill the write cache.
        let copied = (0..10_000).filter(|ms| pace.owes(at(ms * 1_000)) && pace.take(at(ms * 1_000)));
        let share = copied.count() as f64 / (10.0 * FLOOR_PAGES_PER_S);
        assert!((0.8..1.1).contains(&share), "{share}");
    }

    /// Copies as much as it may for so many seconds, from a second on, beside clients whose operations take what `took_us` says
    /// of the pages copied in the last millisecond; returns the pages of each second.
    fn copy(cap: Cap, seconds: u64, operations: u64, took_us: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut pace = Pace::new(at(0), cap);
        let mut pages = Vec::new();
        for second in 0..=seconds {
            let before = pace.pages();
            for ms in 0..1_000 {
                let now = at(second * 1_000_000 + ms * 1_000);
                let mut copied = 0;
                // More than the medium does.
                while second > 0 && copied < 100 && pace.take(now) {
                    copied += 1;
                }
                if second > 0 && copied == 0 {
                    assert!(pace.ready_at(now) > now, "nobody asks for ever");
                }
                for _ in 0..operations {
                    pace.note(now, Duration::from_micros(took_us(copied)));
                }
            }
            pages.push(pace.pages() - before);
        }
        pages.split_off(1)
    }

    #[test]
    fn alone_it_is_soon_as_fast_as_the_medium() {
        let pages = copy(Cap::default(), 3, 0, |_| 0);
        assert!(pages[0] > 50_000, "{pages:?}");
        assert_eq!(pages[1..], [100_000; 2]);
    }

    #[test]
    fn clients_that_do_not_mind_cost_it_a_pause_a_second() {
        let pages = copy(Cap::default(), 4, 4, |_| 200);
        assert!(pages[3] > 90_000 && pages[3] < 100_000, "{pages:?}");
    }

    #[test]
    fn it_yields_to_clients_that_mind_and_ends_all_the_same() {
        // Each page of a millisecond costs an operation a tenth of its usual time.
        let pages = copy(Cap::default(), 8, 4, |copied| 400 + 40 * copied);
        let last: u64 = pages[4..].iter().sum::<u64>() / 4;
        assert!((2_000..10_000).contains(&last), "{pages:?}");
        let pages = copy(Cap::default(), 8, 4, |copied| 400 + 4_000 * copied.min(1));
        let last = *pages.last().expect("there are some");
        let floor = FLOOR_PAGES_PER_S as u64;
        assert!(last > floor / 2 && last <= floor + 50, "{pages:?}");
    }

    #[test]
    fn an_operator_may_cap_it_even_below_the_least_rate() {
        for mib in [1, 16] {
            let bytes_per_s = Some(mib << 20);
            let pages = copy(Cap { bytes_per_s }, 3, 0, |_| 0);
            assert!(pages.iter().all(|pages| *pages <= mib * 256 + 20), "{pages:?}");
            assert!(pages[2] >= mib * 250, "{pages:?}");
        }
    }
}
