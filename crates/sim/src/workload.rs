//! Which page a request touches, and what it does: YCSB's distributions and mixes at block level. Applications are in
//! [`apps`].
//!
//! Zipfian draws follow Gray et al. ("Quickly generating billion-record synthetic databases", SIGMOD'94) as YCSB uses
//! them: θ = 0.99, and in scrambled form over 10¹⁰ items whose ranks are spread by FNV-1a 64.

pub mod apps;
pub mod stream;

use base::Rng;

/// YCSB's skew.
pub const ZIPFIAN_THETA: f64 = 0.99;
/// Items of the scrambled distribution (YCSB's `ScrambledZipfianGenerator.ITEM_COUNT`).
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// ζ(10¹⁰, 0.99), as YCSB gives it.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// Terms of ζ summed one by one; the rest is an integral with a midpoint correction, exact to 10⁻⁷.
const ZETA_TERMS: u64 = 1000;
/// Longest scan of YCSB E, in pages.
pub const SCAN_PAGES_MAX: u64 = 100;

/// FNV-1a 64 over the eight bytes of `value`, made positive as YCSB does.
pub fn fnv(value: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in value.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    (hash as i64).unsigned_abs()
}

/// A zipfian distribution over ranks `0..items`; rank 0 is the most popular.
#[derive(Clone, Copy, Debug)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    second: f64,
}

impl Zipfian {
    /// Over `items` ranks with θ = 0.99.
    pub fn new(items: u64) -> Self {
        Self::with_zeta(items, zeta(items, ZIPFIAN_THETA))
    }

    fn with_zeta(items: u64, zeta_items: f64) -> Self {
        assert!(items > 0, "a distribution has an item");
        let theta = ZIPFIAN_THETA;
        let second = 0.5f64.powf(theta);
        Self {
            items,
            zeta: zeta_items,
            alpha: 1.0 / (1.0 - theta),
            eta: (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - (1.0 + second) / zeta_items),
            second,
        }
    }

    /// Draws a rank.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + self.second {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

/// ζ(n, θ) = Σ i^−θ for i in 1..=n.
fn zeta(n: u64, theta: f64) -> f64 {
    let head: f64 = (1..=n.min(ZETA_TERMS)).map(|i| (i as f64).powf(-theta)).sum();
    if n <= ZETA_TERMS {
        return head;
    }
    let primitive = |x: f64| x.powf(1.0 - theta) / (1.0 - theta);
    head + primitive(n as f64 + 0.5) - primitive(ZETA_TERMS as f64 + 0.5)
}

/// Which pages are popular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All alike.
    Uniform,
    /// Zipfian ranks, spread over the volume (YCSB's default request distribution).
    Zipfian,
    /// Zipfian distance from the page inserted last (YCSB D).
    Latest,
    /// One after the other.
    Sequential,
}

/// Draws pages by a pattern.
#[derive(Clone, Copy, Debug)]
pub struct Chooser {
    pattern: Pattern,
    pages: u64,
    zipfian: Zipfian,
    last: u64,
    next: u64,
}

impl Chooser {
    /// Over pages `0..pages`.
    pub fn new(pattern: Pattern, pages: u64) -> Self {
        let zipfian = match pattern {
            Pattern::Latest => Zipfian::new(pages),
            _ => Zipfian::with_zeta(SCRAMBLED_ITEMS, SCRAMBLED_ZETA),
        };
        Self {
            pattern,
            pages,
            zipfian,
            last: pages - 1,
            next: 0,
        }
    }

    /// Draws a page.
    pub fn draw(&mut self, rng: &mut Rng) -> u64 {
        match self.pattern {
            Pattern::Uniform => rng.below(self.pages),
            Pattern::Zipfian => fnv(self.zipfian.draw(rng)) % self.pages,
            Pattern::Latest => (self.last + self.pages - self.zipfian.draw(rng)) % self.pages,
            Pattern::Sequential => {
                let page = self.next;
                self.next = (self.next + 1) % self.pages;
                page
            }
        }
    }

    /// The next page to insert: the volume is a ring.
    pub fn insert(&mut self) -> u64 {
        self.last = (self.last + 1) % self.pages;
        self.last
    }

    /// Skips `pages` pages of a sequential pattern.
    pub fn skip(&mut self, pages: u64) {
        self.next = (self.next + pages) % self.pages;
    }
}

/// The action of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Read, and when it is answered write the same range.
    ReadModifyWrite,
    /// Read 1 to [`SCAN_PAGES_MAX`] pages.
    Scan,
    /// Write the page after the one inserted last.
    Insert,
    /// Flush.
    Flush,
    /// Trim.
    Trim,
    /// Write zeroes.
    Zeroes,
}

/// How uneven requests are in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Mean number of requests of the same action in a row, if the mix had but that one: 1 draws each anew. The shares
    /// of the mix stay as they are.
    pub run_mean: f64,
    /// Share of each period in which an open loop's requests come, so much faster: 1 is steady.
    pub duty: f64,
    /// The period, in ns.
    pub period_ns: u64,
}

impl Default for Burst {
    /// Each request is drawn anew, at a steady rate.
    fn default() -> Self {
        Self {
            run_mean: 1.0,
            duty: 1.0,
            period_ns: 0,
        }
    }
}

impl Burst {
    /// Draws the next action after `last`.
    pub fn next(&self, mix: &Mix, last: Option<Action>, rng: &mut Rng) -> Action {
        match last {
            Some(last) if self.run_mean > 1.0 && rng.chance(1.0 - 1.0 / self.run_mean) => last,
            _ => mix.draw(rng),
        }
    }

    /// The time of a period at which a steady time within it, in ns from the load's start, comes to lie.
    pub fn place(&self, steady_ns: u64) -> u64 {
        if self.duty >= 1.0 || self.period_ns == 0 {
            return steady_ns;
        }
        let within = steady_ns % self.period_ns;
        steady_ns - within + (within as f64 * self.duty) as u64
    }
}

/// Shares of the actions; they need not sum to one.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Mix {
    /// Of [`Action::Read`].
    pub read: f64,
    /// Of [`Action::Write`].
    pub write: f64,
    /// Of [`Action::ReadModifyWrite`].
    pub read_modify_write: f64,
    /// Of [`Action::Scan`].
    pub scan: f64,
    /// Of [`Action::Insert`].
    pub insert: f64,
    /// Of [`Action::Flush`].
    pub flush: f64,
    /// Of [`Action::Trim`].
    pub trim: f64,
    /// Of [`Action::Zeroes`].
    pub zeroes: f64,
}

impl Mix {
    /// Reads and writes only, with this share of writes.
    pub fn writes(share: f64) -> Self {
        Self {
            read: 1.0 - share,
            write: share,
            ..Self::default()
        }
    }

    /// The mix and pattern of YCSB workload `A` to `F`.
    pub fn ycsb(letter: char) -> Option<(Self, Pattern)> {
        let none = Self::default();
        let mix = match letter.to_ascii_uppercase() {
            'A' => Self::writes(0.5),
            'B' => Self::writes(0.05),
            'C' => Self::writes(0.0),
            'D' => Self {
                read: 0.95,
                insert: 0.05,
                ..none
            },
            'E' => Self {
                scan: 0.95,
                insert: 0.05,
                ..none
            },
            'F' => Self {
                read: 0.5,
                read_modify_write: 0.5,
                ..none
            },
            _ => return None,
        };
        let pattern = if letter.eq_ignore_ascii_case(&'d') {
            Pattern::Latest
        } else {
            Pattern::Zipfian
        };
        Some((mix, pattern))
    }

    fn shares(&self) -> [(f64, Action); 8] {
        [
            (self.read, Action::Read),
            (self.write, Action::Write),
            (self.read_modify_write, Action::ReadModifyWrite),
            (self.scan, Action::Scan),
            (self.insert, Action::Insert),
            (self.flush, Action::Flush),
            (self.trim, Action::Trim),
            (self.zeroes, Action::Zeroes),
        ]
    }

    /// Draws an action.
    pub fn draw(&self, rng: &mut Rng) -> Action {
        let shares = self.shares();
        let total: f64 = shares.iter().map(|s| s.0).sum();
        let mut left = rng.unit() * total;
        for (share, action) in shares {
            if left < share {
                return action;
            }
            left -= share;
        }
        let positive = shares.iter().rev().find(|s| s.0 > 0.0);
        positive.map_or(Action::Read, |s| s.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_is_ycsbs() {
        let expected = [
            6_284_781_860_667_377_211,
            8_517_097_267_634_966_620,
            1_820_151_046_732_198_393,
            4_052_466_453_699_787_802,
        ];
        assert_eq!([0, 1, 2, 3].map(fnv), expected);
    }

    #[test]
    fn the_most_popular_of_the_scrambled_items_has_3_778_percent() {
        let zipfian = Zipfian::with_zeta(SCRAMBLED_ITEMS, SCRAMBLED_ZETA);
        let mut rng = Rng::new(5);
        let hits = (0..1_000_000).filter(|_| zipfian.draw(&mut rng) == 0).count();
        assert!((37_300..38_300).contains(&hits), "{hits}");
    }

    #[test]
    fn zeta_matches_its_published_value() {
        assert!((zeta(SCRAMBLED_ITEMS, ZIPFIAN_THETA) - SCRAMBLED_ZETA).abs() < 1e-6);
        let plain: f64 = (1..=5000u32).map(|i| f64::from(i).powf(-0.99)).sum();
        assert!((zeta(5000, ZIPFIAN_THETA) - plain).abs() < 1e-7);
    }

    #[test]
    fn latest_favours_what_was_inserted_last() {
        let mut chooser = Chooser::new(Pattern::Latest, 1000);
        let mut rng = Rng::new(2);
        let newest = (0..10).map(|_| chooser.insert()).last();
        let hits = (0..10_000)
            .filter(|_| Some(chooser.draw(&mut rng)) == newest)
            .count();
        assert!(hits > 1000, "{hits}");
    }

    #[test]
    fn runs_of_an_action_keep_its_share_and_bursts_their_requests() {
        let burst = Burst {
            run_mean: 20.0,
            duty: 0.25,
            period_ns: 1000,
        };
        let (mix, mut rng, mut last) = (Mix::writes(0.3), Rng::new(4), None);
        let (mut writes, mut runs) = (0, 0);
        for _ in 0..400_000 {
            let action = burst.next(&mix, last, &mut rng);
            writes += u32::from(action == Action::Write);
            runs += u32::from(Some(action) != last);
            last = Some(action);
        }
        assert!((110_000..130_000).contains(&writes), "{writes}");
        // A new draw ends a run with the other action's share: 2 · 0.3 · 0.7 / 20 of the requests.
        assert!((7_800..9_000).contains(&runs), "{runs}");
        assert_eq!(
            [0, 999, 1000, 1400].map(|at| burst.place(at)),
            [0, 249, 1000, 1100]
        );
        assert_eq!(Burst::default().place(1234), 1234);
    }

    #[test]
    fn a_mix_draws_its_shares() {
        let (mix, _) = Mix::ycsb('B').expect("B exists");
        let mut rng = Rng::new(3);
        let writes = (0..100_000)
            .filter(|_| mix.draw(&mut rng) == Action::Write)
            .count();
        assert!((4_700..5_300).contains(&writes), "{writes}");
    }
}
