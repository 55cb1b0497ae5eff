//! When a node reads its own pages, to find damage before a client does.
//!
//! A pure policy. Each vSSD has a [`Walk`] over its pages, and its node one [`Scrub`] that says when one page more is read. The
//! vSSD asks its peers for a page that a read found damaged ([`Repairs`]).
//!
//! - **Pass.** A pass reads each page once. The next one begins [`Options::every`] after it began, or when it is over.
//! - **Pace.** While no client has asked for anything for [`CALM_AFTER`], pages are read at the rate that is set. Otherwise they are
//!   read at a fraction of it ([`BUSY_PART`]), so that a pass ends on a node that is never idle.
//! - **Restart.** Nothing is kept over a restart of the node: a pass begins anew. Where a walk begins depends on the number of the
//!   start, so a node that starts often reads other pages each time.

use crate::bucket::{Bucket, Rate};
use base::limits::PAGE_BYTES;
use base::{Duration, Instant, Lpn, VssdId};
use std::collections::VecDeque;

/// Without a client's operation for so long, a node is idle: much longer than an operation takes.
const CALM_AFTER: Duration = Duration::from_millis(100);
/// Beside clients the rate is one part in so many.
const BUSY_PART: f64 = 16.0;
/// Pages are read in batches that far apart: a node that is idle wakes seldom.
const BATCH_EVERY: Duration = Duration::from_millis(50);
/// Damaged pages of a vSSD that its peers are asked for. Its walk waits while there are so many.
const REPAIRS_MAX: usize = 64;
/// A peer that has not sent a page is asked again after this,
const ASK_EVERY: Duration = Duration::from_secs(1);
/// so often. Then the page is left to the next pass, or to a client that reads it.
const ASKS_MAX: u8 = 10;

/// How a node scrubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes that an idle node reads in a second; 0 for none at all.
    pub bytes_per_s: u64,
    /// From the begin of a pass to that of the next one, at least.
    pub every: Duration,
}

impl Options {
    /// Nothing is scrubbed.
    pub const OFF: Self = Self {
        bytes_per_s: 0,
        every: Duration::from_secs(1),
    };
}

impl Default for Options {
    /// 4 MiB a second, far below what a flash medium does; once a week, as operators of Ceph do.
    fn default() -> Self {
        Self {
            bytes_per_s: 4 << 20,
            every: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// The scrubbing of a node.
#[derive(Clone, Debug)]
pub struct Scrub {
    options: Options,
    bucket: Bucket,
    /// Pages a second while the node is idle; none: it does not scrub.
    rate: Option<f64>,
    calm_at: Instant,
    /// When the pass under way began.
    began: Option<Instant>,
    /// When the next pass begins.
    next: Instant,
    pages: u64,
    passes: u64,
    ended: Option<Instant>,
}

impl Scrub {
    /// Of a node that has just started: a pass begins soon.
    pub fn new(now: Instant, options: Options) -> Self {
        let rate = (options.bytes_per_s > 0).then(|| options.bytes_per_s as f64 / PAGE_BYTES as f64);
        Self {
            options,
            bucket: Bucket::new(now, rate_of(rate.unwrap_or(1.0))),
            rate,
            calm_at: now + CALM_AFTER,
            began: None,
            next: now + CALM_AFTER,
            pages: 0,
            passes: 0,
            ended: None,
        }
    }

    /// Pages that were read.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whole passes.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// When the last whole pass was over.
    pub fn ended(&self) -> Option<Instant> {
        self.ended
    }

    /// True while a pass is under way.
    pub fn is_at_it(&self) -> bool {
        self.began.is_some()
    }

    /// A client has asked for something.
    pub fn note_client(&mut self, now: Instant) {
        self.calm_at = now + CALM_AFTER;
    }

    /// True if a pass begins now: every walk starts over.
    pub fn begins(&mut self, now: Instant) -> bool {
        let begins = self.rate.is_some() && self.began.is_none() && now >= self.next;
        if begins {
            (self.began, self.next) = (Some(now), now + self.options.every);
        }
        begins
    }

    /// Every walk is over, and so is the pass.
    pub fn end(&mut self, now: Instant) {
        (self.began, self.ended) = (None, Some(now));
        self.passes += 1;
    }

    /// True if one page more may be read now; it is then.
    pub fn take(&mut self, now: Instant) -> bool {
        let Some(rate) = self.rate.filter(|_| self.began.is_some()) else {
            return false;
        };
        let is_calm = now >= self.calm_at;
        self.bucket
            .set_rate(now, rate_of(if is_calm { rate } else { rate / BUSY_PART }));
        let may = self.bucket.has_token(now);
        if may {
            self.bucket.take();
            self.pages += 1;
        }
        may
    }

    /// When to look again; never, if nothing is scrubbed.
    pub fn look_at(&self, now: Instant) -> Option<Instant> {
        self.rate?;
        Some(match self.began {
            Some(_) => self.bucket.ready_at().max(now + BATCH_EVERY),
            None => self.next.max(now + BATCH_EVERY),
        })
    }
}

fn rate_of(pages_per_s: f64) -> Rate {
    Rate {
        per_second: pages_per_s,
        burst: (pages_per_s * BATCH_EVERY.as_secs_f64()).max(1.0),
    }
}

/// A walk over the pages of a vSSD. It begins somewhere among them.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pages: u32,
    first: u32,
    /// Pages that it has passed.
    passed: u32,
}

impl Walk {
    /// A walk of a vSSD with so many pages, in this start of its node; it is over before a pass begins.
    pub fn new(vssd: VssdId, boot: u32, pages: u32) -> Self {
        // The golden ratio: the begins of successive walks are far apart.
        let turn = (boot ^ vssd.0.rotate_left(16)).wrapping_mul(0x9e37_79b9);
        Self {
            pages,
            first: ((u64::from(turn) * u64::from(pages)) >> 32) as u32,
            passed: pages,
        }
    }

    /// A pass begins.
    pub fn restart(&mut self) {
        self.passed = 0;
    }

    /// True if it has passed every page.
    pub fn is_over(&self) -> bool {
        self.passed == self.pages
    }

    /// Steps to the next page; none if it is over.
    pub fn step(&mut self) -> Option<Lpn> {
        if self.is_over() {
            return None;
        }
        let page = (u64::from(self.first) + u64::from(self.passed)) % u64::from(self.pages);
        self.passed += 1;
        Some(Lpn(page as u32))
    }
}

/// A damaged page that peers are asked for.
#[derive(Clone, Copy, Debug)]
struct Repair<L> {
    lpn: Lpn,
    look: L,
    asks: u8,
    ask_at: Instant,
}

/// The damaged pages of a vSSD that its peers are asked for. `L` is the look that found each.
#[derive(Clone, Debug)]
pub struct Repairs<L>(VecDeque<Repair<L>>);

impl<L> Default for Repairs<L> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<L: Copy> Repairs<L> {
    /// True if one damaged page more can be cared for.
    pub fn has_room(&self) -> bool {
        self.0.len() < REPAIRS_MAX
    }

    /// A look found a damaged page, and peers are asked for it now.
    pub fn found(&mut self, now: Instant, lpn: Lpn, look: L) {
        if self.has_room() && !self.0.iter().any(|repair| repair.lpn == lpn) {
            self.0.push_back(Repair {
                lpn,
                look,
                asks: 1,
                ask_at: now + ASK_EVERY,
            });
        }
    }

    /// A page is whole again. Which look found it, if it was cared for.
    pub fn repaired(&mut self, lpn: Lpn) -> Option<L> {
        let place = self.0.iter().position(|repair| repair.lpn == lpn)?;
        self.0.remove(place).map(|repair| repair.look)
    }

    /// A page that peers are to be asked for again, of those that are still damaged.
    pub fn due(&mut self, now: Instant, is_damaged: impl Fn(Lpn) -> bool) -> Option<Lpn> {
        while self.0.front().is_some_and(|repair| now >= repair.ask_at) {
            let mut repair = self.0.pop_front().expect("there is a front");
            if repair.asks < ASKS_MAX && is_damaged(repair.lpn) {
                (repair.asks, repair.ask_at) = (repair.asks + 1, now + ASK_EVERY);
                self.0.push_back(repair);
                return Some(repair.lpn);
            }
        }
        None
    }

    /// When a page is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|repair| repair.ask_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn scrub(mib_per_s: u64, every_s: u64) -> Scrub {
        Scrub::new(
            at(0),
            Options {
                bytes_per_s: mib_per_s * MIB,
                every: Duration::from_secs(every_s),
            },
        )
    }

    /// Pages that are read in these milliseconds of a pass without end.
    fn read(scrub: &mut Scrub, from: u64, to: u64, mut clients: impl FnMut(u64) -> bool) -> u64 {
        let before = scrub.pages();
        for ms in from..to {
            if clients(ms) {
                scrub.note_client(at(ms));
            }
            scrub.begins(at(ms));
            while scrub.take(at(ms)) {}
        }
        scrub.pages() - before
    }

    #[test]
    fn it_reads_at_its_rate_when_idle_and_goes_on_slowly_beside_clients() {
        let mut scrub = scrub(4, 1);
        let idle = read(&mut scrub, 0, 4_000, |_| false);
        assert!((3_900..=4_100).contains(&idle), "{idle}");
        let busy = read(&mut scrub, 4_000, 8_000, |ms| ms % 50 == 0);
        assert!((200..=260).contains(&busy), "{busy}");
        let idle = read(&mut scrub, 8_000, 12_000, |_| false);
        assert!((3_800..=4_100).contains(&idle), "{idle}");
    }

    #[test]
    fn a_pass_begins_when_the_last_one_is_over_and_its_time_has_come() {
        let mut scrub = scrub(4, 10);
        assert!(!scrub.begins(at(0)) && !scrub.take(at(0)), "it has just started");
        assert_eq!(scrub.look_at(at(0)), Some(at(100)));
        assert!(scrub.begins(at(100)) && !scrub.begins(at(100)));
        assert!(scrub.take(at(100)));
        scrub.end(at(2_000));
        assert_eq!((scrub.passes(), scrub.ended()), (1, Some(at(2_000))));
        assert!(!scrub.take(at(3_000)), "nothing is read between two passes");
        assert_eq!(scrub.look_at(at(2_000)), Some(at(10_100)));
        assert!(scrub.begins(at(10_100)));
        assert!(!scrub.begins(at(30_000)), "one that is late is ended first");
        scrub.end(at(30_000));
        assert!(scrub.begins(at(30_000)));
    }

    #[test]
    fn it_can_be_off() {
        let mut scrub = Scrub::new(at(0), Options::OFF);
        assert_eq!(read(&mut scrub, 0, 1_000, |_| false), 0);
        assert_eq!(scrub.look_at(at(1_000)), None);
    }

    #[test]
    fn a_walk_passes_each_page_once_and_begins_elsewhere_after_each_start() {
        let mut begins = Vec::new();
        for boot in 1..=20 {
            let mut walk = Walk::new(VssdId(3), boot, 1_000);
            assert!(walk.is_over() && walk.step().is_none());
            walk.restart();
            let mut pages: Vec<u32> = core::iter::from_fn(|| walk.step().map(|lpn| lpn.0)).collect();
            begins.push(pages[0]);
            pages.sort_unstable();
            assert_eq!(pages, (0..1_000).collect::<Vec<_>>());
        }
        begins.sort_unstable();
        let gap = begins.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(gap < Some(150), "{begins:?}");
        assert!(Walk::new(VssdId(1), 1, 0).is_over());
    }

    #[test]
    fn a_damaged_page_is_asked_for_until_it_is_whole_or_given_up() {
        let mut repairs = Repairs::default();
        repairs.found(at(0), Lpn(1), 'a');
        repairs.found(at(5), Lpn(1), 'b');
        repairs.found(at(5), Lpn(2), 'b');
        repairs.found(at(9), Lpn(3), 'c');
        assert_eq!(repairs.due(at(999), |_| true), None);
        assert_eq!(repairs.deadline(), Some(at(1_000)));
        assert_eq!(repairs.due(at(1_000), |_| true), Some(Lpn(1)));
        // A client has written the second one meanwhile.
        assert_eq!(repairs.due(at(1_009), |lpn| lpn != Lpn(2)), Some(Lpn(3)));
        assert_eq!(repairs.repaired(Lpn(3)), Some('c'));
        assert_eq!(repairs.repaired(Lpn(2)), None);
        let asks = (2..100).filter(|s| repairs.due(at(s * 1_000), |_| true).is_some());
        assert_eq!(asks.count() + 2, usize::from(ASKS_MAX));
        assert_eq!(repairs.deadline(), None);
        for lpn in 0..100 {
            repairs.found(at(0), Lpn(lpn), 'd');
        }
        assert!(!repairs.has_room() && repairs.0.len() == REPAIRS_MAX);
    }
}
