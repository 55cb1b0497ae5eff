//! Classes of requests, and how an application's is learned.
//!
//! Two classes: L, latency-bound, and T, throughput-bound. An application's class is given or learned from the size of
//! its requests and the bytes it keeps outstanding. A request's class is its application's, with two corrections:
//!
//! - **A liar harms only itself.** A request is served as L only within the L budget of its application (bytes
//!   outstanding, bytes a second, size of one request). The rest is T like all other bulk. Within L, applications share
//!   by weight (`egress`), so an application at its budget delays others by its own share only.
//! - **Promotion.** A FLUSH, FUA or metadata request of a T application is served as L, because somebody waits for it.
//!   It has a far smaller budget of its own, so promotion is no way around the classes.

use base::{Duration, Instant};

/// Latency-bound or throughput-bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// L: few small requests, somebody waits for each.
    Latency,
    /// T: bulk, the rate counts.
    Throughput,
}

impl Class {
    /// 0 for L, 1 for T.
    pub const fn index(self) -> usize {
        match self {
            Self::Latency => 0,
            Self::Throughput => 1,
        }
    }
}

/// The class known of an application beforehand: by volume, port or host name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassHint {
    /// It is of this class, within the L budget.
    Fixed(Class),
    /// Learn it.
    #[default]
    Auto,
}

/// Limits of L and the pace of learning. All ours: the published code takes the class from the task's I/O priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// An application whose requests are on average not larger may be L. 16 KiB: a database page.
    pub small_bytes: u32,
    /// An application that keeps on average not more bytes outstanding may be L: four requests of 16 KiB.
    pub shallow_bytes: u32,
    /// A learned L application becomes T only above the two limits above times this, so that one at the border does
    /// not swing.
    pub band: u32,
    /// Requests for which an application must look like the other class before its class changes.
    pub hold_requests: u32,
    /// Time for which it must.
    pub hold: Duration,
    /// Largest single request that is ever served as L.
    pub request_bytes_max: u32,
    /// L bytes that one application may have outstanding.
    pub budget_outstanding_bytes: u32,
    /// L bytes a second of one application: 4 KiB every 8 µs, faster than a closed loop over a network can be.
    pub budget_bytes_per_s: u64,
    /// L bytes that it may have saved up.
    pub budget_burst_bytes: u32,
    /// Bytes a second that are promoted for one application: 16,384 flushes.
    pub promotion_bytes_per_s: u64,
    /// Bytes to be promoted that it may have saved up.
    pub promotion_burst_bytes: u32,
}

impl ClassConfig {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        small_bytes: 16 << 10,
        shallow_bytes: 64 << 10,
        band: 2,
        hold_requests: 32,
        hold: Duration::from_millis(5),
        request_bytes_max: 64 << 10,
        budget_outstanding_bytes: 128 << 10,
        budget_bytes_per_s: 512 << 20,
        budget_burst_bytes: 512 << 10,
        promotion_bytes_per_s: 64 << 20,
        promotion_burst_bytes: 128 << 10,
    };
}

impl Default for ClassConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// No request costs less of a budget: a flush has no bytes and still takes a turn.
const COST_BYTES_MIN: u32 = 4096;
/// The averages are kept in 1/16 byte, so that a gain of 1/16 loses nothing.
const FRACTION_BITS: u32 = 4;
/// Gain of the averages: 1/16, about the last thirty requests.
const GAIN_BITS: u32 = 4;

/// Credit of one byte: credit is counted in billionths, so that no part of a nanosecond's worth is lost.
const CREDIT: u64 = 1_000_000_000;

/// A bucket of bytes that fills with time.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    credit: u64,
    at: Instant,
}

impl Bucket {
    fn new(burst_bytes: u32) -> Self {
        Self {
            credit: u64::from(burst_bytes) * CREDIT,
            at: Instant::ZERO,
        }
    }

    /// Takes `cost_bytes` if they are there.
    fn take(&mut self, now: Instant, cost_bytes: u32, bytes_per_s: u64, burst_bytes: u32) -> bool {
        // A second at most: a bucket is full long before, and 18 GB/s do not overflow.
        let elapsed_ns = now.nanos_since(self.at).min(1_000_000_000);
        let full = u64::from(burst_bytes) * CREDIT;
        self.credit = (self.credit + elapsed_ns * bytes_per_s).min(full);
        self.at = now;
        let left = self.credit.checked_sub(u64::from(cost_bytes) * CREDIT);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }
}

/// The class of one application and of each of its requests. Owned by the application's home core.
#[derive(Clone, Debug)]
pub struct Classifier {
    config: ClassConfig,
    promotion: bool,
    hint: ClassHint,
    class: Class,
    /// Mean size of a request and mean bytes outstanding, with [`FRACTION_BITS`]; the first request sets them.
    size_mean: u64,
    outstanding_mean: u64,
    seen: bool,
    outstanding_bytes: u64,
    latency_outstanding_bytes: u64,
    /// Since when, and for how many requests, the application looks like the other class.
    against_since: Option<Instant>,
    against_count: u32,
    budget: Bucket,
    promotions: Bucket,
}

impl Classifier {
    /// Of a new application. A class to be learned begins as L: the first requests of a client are small, and the
    /// budget bounds what a bulk client can do with it. `promotion` as in `policy::Config::promotion`.
    pub fn new(config: ClassConfig, hint: ClassHint, promotion: bool) -> Self {
        Self {
            config,
            promotion,
            hint,
            class: match hint {
                ClassHint::Fixed(class) => class,
                ClassHint::Auto => Class::Latency,
            },
            size_mean: 0,
            outstanding_mean: 0,
            seen: false,
            outstanding_bytes: 0,
            latency_outstanding_bytes: 0,
            against_since: None,
            against_count: 0,
            budget: Bucket::new(config.budget_burst_bytes),
            promotions: Bucket::new(config.promotion_burst_bytes),
        }
    }

    /// The class of the application, for application steering and for show.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The class of a request of `bytes` that arrived now; `urgent` if it is a FLUSH, has FUA, or is metadata. To be
    /// followed by [`Self::finish`] with the same bytes and the returned class.
    pub fn arrive(&mut self, now: Instant, bytes: u32, urgent: bool) -> Class {
        self.outstanding_bytes += u64::from(bytes);
        self.learn(now, bytes);
        let class = self.admit(now, bytes, urgent);
        if class == Class::Latency {
            self.latency_outstanding_bytes += u64::from(bytes);
        }
        class
    }

    /// A request ended.
    ///
    /// # Panics
    /// If it did not arrive: the accounts would be wrong for good.
    pub fn finish(&mut self, bytes: u32, class: Class) {
        let taken = |from: u64| from.checked_sub(u64::from(bytes)).expect("a request ends once");
        self.outstanding_bytes = taken(self.outstanding_bytes);
        if class == Class::Latency {
            self.latency_outstanding_bytes = taken(self.latency_outstanding_bytes);
        }
    }

    /// Bytes that arrived and have not ended.
    pub fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes
    }

    fn admit(&mut self, now: Instant, bytes: u32, urgent: bool) -> Class {
        let config = self.config;
        if bytes > config.request_bytes_max {
            return Class::Throughput;
        }
        let cost = bytes.max(COST_BYTES_MIN);
        let outstanding = self.latency_outstanding_bytes + u64::from(bytes);
        if outstanding > u64::from(config.budget_outstanding_bytes) {
            return Class::Throughput;
        }
        let admitted = match self.class {
            Class::Latency => {
                self.budget
                    .take(now, cost, config.budget_bytes_per_s, config.budget_burst_bytes)
            }
            Class::Throughput => {
                let (rate, burst) = (config.promotion_bytes_per_s, config.promotion_burst_bytes);
                self.promotion && urgent && self.promotions.take(now, cost, rate, burst)
            }
        };
        if admitted {
            Class::Latency
        } else {
            Class::Throughput
        }
    }

    fn learn(&mut self, now: Instant, bytes: u32) {
        if self.hint != ClassHint::Auto {
            return;
        }
        let (size, outstanding) = (
            u64::from(bytes) << FRACTION_BITS,
            self.outstanding_bytes << FRACTION_BITS,
        );
        let is_first = !core::mem::replace(&mut self.seen, true);
        if is_first {
            (self.size_mean, self.outstanding_mean) = (size, outstanding);
        } else {
            self.size_mean = self.size_mean - (self.size_mean >> GAIN_BITS) + (size >> GAIN_BITS);
            self.outstanding_mean =
                self.outstanding_mean - (self.outstanding_mean >> GAIN_BITS) + (outstanding >> GAIN_BITS);
        }
        let band = match self.class {
            Class::Latency => u64::from(self.config.band),
            Class::Throughput => 1,
        };
        let within = |mean: u64, limit: u32| (mean >> FRACTION_BITS) <= u64::from(limit) * band;
        let small = within(self.size_mean, self.config.small_bytes);
        let looks = match small && within(self.outstanding_mean, self.config.shallow_bytes) {
            true => Class::Latency,
            false => Class::Throughput,
        };
        // There is no class to hold on to before the first request.
        if is_first {
            self.class = looks;
        }
        if looks == self.class {
            self.against_since = None;
            self.against_count = 0;
            return;
        }
        let since = *self.against_since.get_or_insert(now);
        self.against_count += 1;
        if self.against_count >= self.config.hold_requests && now.since(since) >= self.config.hold {
            self.class = looks;
            self.against_since = None;
            self.against_count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(at: u64) -> Instant {
        Instant::from_nanos(at * 1000)
    }

    /// A closed loop of `depth` requests of `bytes`, one finished every `gap_us`, until `requests` arrived: how many
    /// were served as L.
    fn closed(app: &mut Classifier, start_us: u64, shape: (u32, usize, u64), requests: usize) -> usize {
        let (bytes, depth, gap_us) = shape;
        let mut pending = std::collections::VecDeque::new();
        let mut latency = 0;
        for i in 0..requests {
            if pending.len() == depth {
                let class = pending.pop_front().unwrap();
                app.finish(bytes, class);
            }
            let class = app.arrive(us(start_us + i as u64 * gap_us), bytes, false);
            latency += usize::from(class == Class::Latency);
            pending.push_back(class);
        }
        for class in pending {
            app.finish(bytes, class);
        }
        latency
    }

    fn auto() -> Classifier {
        Classifier::new(ClassConfig::DEFAULT, ClassHint::Auto, true)
    }

    #[test]
    fn small_requests_one_at_a_time_are_learned_as_l_and_bulk_as_t() {
        let mut small = auto();
        assert_eq!(closed(&mut small, 0, (4096, 1, 20), 1000), 1000);
        assert_eq!(small.class(), Class::Latency);
        let mut bulk = auto();
        closed(&mut bulk, 0, (128 << 10, 32, 30), 1000);
        assert_eq!(bulk.class(), Class::Throughput);
        let mut deep = auto();
        closed(&mut deep, 0, (4096, 128, 2), 10_000);
        assert_eq!(deep.class(), Class::Throughput);
        assert_eq!(deep.outstanding_bytes(), 0);
    }

    #[test]
    fn a_class_does_not_depend_on_how_seldom_a_client_asks() {
        let (small, bulk) = ((4096, 1), (128 << 10, 32));
        let shapes = [
            vec![small],
            vec![bulk],
            vec![small, bulk],
            vec![bulk, small],
            vec![(16 << 10, 3)],
        ];
        let classes = |per_s: u64| {
            shapes.each_ref().map(|shape| {
                let (mut app, gap_us, requests) = (auto(), 1_000_000 / per_s, 300);
                let mut start_us = 0;
                let mut latency = 0;
                for &(bytes, depth) in shape {
                    closed(&mut app, start_us, (bytes, depth, gap_us), requests);
                    start_us += requests as u64 * gap_us;
                    // A class once learned serves as many requests as L.
                    latency = closed(&mut app, start_us, (bytes, depth, gap_us), requests);
                    start_us += requests as u64 * gap_us;
                }
                (app.class(), latency)
            })
        };
        let (l, t) = ((Class::Latency, 300), (Class::Throughput, 0));
        for per_s in [10, 100, 1_000, 10_000] {
            assert_eq!(classes(per_s), [l, t, t, l, l], "{per_s} a second");
        }
    }

    #[test]
    fn a_class_changes_only_after_it_held_in_count_and_in_time() {
        let config = ClassConfig::DEFAULT;
        let mut app = auto();
        closed(&mut app, 0, (4096, 1, 20), 1000);
        closed(&mut app, 20_000, (64 << 10, 8, 1), 100); // many requests in 100 µs: too short a time
        assert_eq!(app.class(), Class::Latency);
        let mut app = auto();
        closed(&mut app, 0, (4096, 1, 20), 1);
        closed(
            &mut app,
            20,
            (256 << 10, 8, 100_000),
            config.hold_requests as usize - 1,
        ); // long, but too few
        assert_eq!(app.class(), Class::Latency);
        closed(&mut app, 60_000_000, (256 << 10, 8, 1000), 100);
        assert_eq!(app.class(), Class::Throughput);
        closed(&mut app, 70_000_000, (4096, 1, 20), 200); // the means have come down, not for long enough
        assert_eq!(app.class(), Class::Throughput);
        closed(&mut app, 80_000_000, (4096, 1, 20), 2000);
        assert_eq!(app.class(), Class::Latency);
    }

    // Bug: a bulk client that connected beside a hundred small ones moved 50 MiB a second for seconds. Cause: every client was
    // taken for L until 32 requests spoke against it, and stood in one line with the hundred. Fix: the first request decides.
    #[test]
    fn the_first_request_decides_where_nothing_is_known() {
        let mut bulk = auto();
        assert_eq!(bulk.arrive(us(0), 1 << 20, false), Class::Throughput);
        assert_eq!(bulk.class(), Class::Throughput);
        let mut small = auto();
        assert_eq!(small.arrive(us(0), 4096, false), Class::Latency);
        assert_eq!(small.class(), Class::Latency);
    }

    #[test]
    fn an_application_that_claims_l_and_sends_bulk_is_served_as_t() {
        let mut large = Classifier::new(ClassConfig::DEFAULT, ClassHint::Fixed(Class::Latency), true);
        assert_eq!(closed(&mut large, 0, (128 << 10, 32, 30), 1000), 0);
        // 64 KiB at QD32, 4 GB/s: two of the 32 fit the budget of bytes outstanding.
        let mut bulk = Classifier::new(ClassConfig::DEFAULT, ClassHint::Fixed(Class::Latency), true);
        let latency = closed(&mut bulk, 0, (64 << 10, 32, 16), 10_000);
        assert!((600..650).contains(&latency), "{latency}");
        // One at a time it is the rate that bounds: 512 MiB of 4 GB a second, and the burst.
        let mut fast = Classifier::new(ClassConfig::DEFAULT, ClassHint::Fixed(Class::Latency), true);
        let latency = closed(&mut fast, 0, (64 << 10, 1, 16), 10_000);
        assert!((1310..1330).contains(&latency), "{latency}");
        let honest = closed(
            &mut Classifier::new(ClassConfig::DEFAULT, ClassHint::Fixed(Class::Latency), true),
            0,
            (4096, 1, 9),
            10_000,
        );
        assert_eq!(honest, 10_000);
    }

    #[test]
    fn urgent_requests_of_a_bulk_writer_are_promoted_within_their_budget() {
        let mut bulk = Classifier::new(ClassConfig::DEFAULT, ClassHint::Fixed(Class::Throughput), true);
        let mut promoted = 0u64;
        for i in 0..100_000 {
            let class = bulk.arrive(us(i), 4096, true); // a second's tenth, a million a second
            promoted += u64::from(class == Class::Latency);
            bulk.finish(4096, class);
        }
        let budget = (ClassConfig::DEFAULT.promotion_bytes_per_s / 10
            + u64::from(ClassConfig::DEFAULT.promotion_burst_bytes))
            / 4096;
        assert!(
            (budget - 1..=budget).contains(&promoted),
            "{promoted} of {budget}"
        );
        assert_eq!(bulk.arrive(us(200_000), 128 << 10, true), Class::Throughput);
        let mut published = Classifier::new(ClassConfig::DEFAULT, ClassHint::Fixed(Class::Throughput), false);
        assert_eq!(published.arrive(us(0), 0, true), Class::Throughput);
    }
}
