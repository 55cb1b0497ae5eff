//! Write amplification against the closed forms: Desnoyers, "Analytic modeling of SSD write performance" (SYSTOR'12)
//! for greedy collection of finite blocks, and Lambert's W for its limit.
//!
//! The vSSD runs at full speed on a medium that stores nothing: only the translation is under test.

use crate::common::geometry;
use base::{Instant, Lpn, Pool, Rng, Version};
use flash::{Event, Request, Ssd, Vssd, VssdConfig};

/// Pages of 512 bytes keep the copying of entries cheap.
const SECTOR_BYTES: usize = 64;
/// Blocks that users never take.
const RESERVE: f64 = 3.0;

/// The principal branch of Lambert's W by Newton's method, for -1/e < x < 0.
fn lambert_w0(x: f64) -> f64 {
    let mut w = -0.5f64;
    for _ in 0..200 {
        let e = w.exp();
        w -= (w * e - x) / (e * (1.0 + w));
    }
    w
}

/// Greedy collection of blocks of `b` pages at utilisation `rho`.
fn greedy(rho: f64, b: f64) -> f64 {
    let alpha = 1.0 / rho;
    let c = (1.0 + 1.0 / (2.0 * b)) * alpha;
    let x0 = 0.5 - (b / alpha) * lambert_w0(-c * (-c).exp());
    b / (b - x0 + 1.0)
}

struct Bare {
    vssd: Vssd,
    pool: Pool,
    version: u64,
    rng: Rng,
}

impl Bare {
    fn new(blocks: u32, pages: u32, rho: f64, kept: f64, change: impl Fn(&mut VssdConfig)) -> Self {
        let geometry = geometry(1, 1, blocks, pages);
        let mut medium = vec![0; Ssd::bytes_needed(&geometry, SECTOR_BYTES * 8) as usize];
        Ssd::format(&mut medium, geometry, SECTOR_BYTES * 8, [0; 16]).expect("formats");
        let mut ssd = Ssd::open(&mut medium, SECTOR_BYTES * 8, 0).expect("opens");
        let logical = (rho * f64::from(pages) * (f64::from(blocks) - kept)).round() as u32;
        let entry = ssd.create(base::VssdId(1), 1, logical, vec![]).expect("fits");
        let mut config = VssdConfig::new(entry, &geometry, SECTOR_BYTES * 8);
        config.checkpoint_every_programs = u64::MAX;
        change(&mut config);
        let pool = Pool::new(256, SECTOR_BYTES);
        let vssd = Vssd::create(config, pool.clone());
        Self {
            vssd,
            pool,
            version: 0,
            rng: Rng::new(11),
        }
    }

    fn write(&mut self, lpn: u32) {
        self.version += 256;
        let page = self.pool.alloc().expect("all pages are returned");
        let request = Request::Write {
            tag: 0,
            lpn: Lpn(lpn),
            version: Version(self.version),
            crc: 0,
            page,
        };
        self.vssd.submit(Instant::ZERO, request);
        self.play();
    }

    fn play(&mut self) {
        while let Some(event) = self.vssd.poll() {
            let Event::Media(op) = event else { continue };
            self.vssd.media_done(Instant::ZERO, op.done(Ok(())));
        }
    }

    /// Amplification over `measured` overwrites of everything after `warm` of them. `pick` chooses a page.
    fn run(&mut self, warm: f64, measured: f64, threshold: f64, pick: fn(&mut Rng, u64) -> u64) -> f64 {
        let pages = u64::from(self.vssd.logical_pages());
        for lpn in 0..pages {
            self.write(lpn as u32);
        }
        let mut before = self.vssd.stats();
        let total = ((warm + measured) * pages as f64) as u64;
        for count in 0..total {
            if count == (warm * pages as f64) as u64 {
                before = self.vssd.stats();
            }
            let lpn = pick(&mut self.rng, pages);
            self.write(lpn as u32);
            if threshold > 0.0 && self.vssd.free_ratio() < threshold {
                self.vssd.start_gc(Instant::ZERO, threshold);
                self.play();
            }
        }
        let after = self.vssd.stats();
        let user = after.user_programs - before.user_programs;
        (after.gc_programs - before.gc_programs + user) as f64 / user as f64
    }
}

#[allow(clippy::disallowed_types, reason = "a measurement of wall time")]
impl Bare {
    /// Four overwrites of everything, one write at a time, and as many reads.
    fn measure(&mut self, name: &str) {
        let pages = u64::from(self.vssd.logical_pages());
        let started = std::time::Instant::now();
        for count in 0..5 * pages {
            let lpn = if count < pages {
                count
            } else {
                self.rng.below(pages)
            };
            self.write(lpn as u32);
            while let Some(at) = self.vssd.deadline() {
                self.vssd.tick(at);
                self.play();
            }
            let lpn = self.rng.below(pages) as u32;
            self.vssd.submit(
                Instant::ZERO,
                Request::Read {
                    tag: 0,
                    lpn: Lpn(lpn),
                },
            );
            self.play();
        }
        let seconds = started.elapsed().as_secs_f64();
        let stats = self.vssd.stats();
        let requests = stats.user_programs + stats.reads;
        let operations = requests + 2 * stats.gc_programs;
        println!(
            "{name}: {:.2} M requests/s, {:.2} M flash operations/s",
            requests as f64 / seconds / 1e6,
            operations as f64 / seconds / 1e6
        );
    }
}

fn uniform(rng: &mut Rng, pages: u64) -> u64 {
    rng.below(pages)
}

fn hot_and_cold(rng: &mut Rng, pages: u64) -> u64 {
    let hot = pages / 5;
    if rng.chance(0.8) {
        rng.below(hot)
    } else {
        hot + rng.below(pages - hot)
    }
}

fn assert_close(measured: f64, expected: f64, what: &str) {
    println!("{what}: measured {measured:.3}, expected {expected:.3}");
    assert!(
        (measured / expected - 1.0).abs() < 0.01,
        "{what}: {measured} is not within 1 % of {expected}"
    );
}

#[test]
fn the_closed_form_gives_the_published_table() {
    for (rho, b, expected) in [
        (0.7, 32.0, 1.792),
        (0.8, 64.0, 2.598),
        (0.9, 256.0, 5.083),
        (0.9346, 64.0, 7.003),
    ] {
        assert!(
            (greedy(rho, b) - expected).abs() < 0.0006,
            "{rho} {b}: {}",
            greedy(rho, b)
        );
    }
}

#[test]
fn greedy_collection_amplifies_as_the_closed_form_says() {
    for (rho, b, separate) in [
        (0.7, 32, false),
        (0.9, 32, false),
        (0.8, 32, true),
        (0.8, 64, false),
    ] {
        let mut bare = Bare::new(2000, b, rho, RESERVE, |config| {
            config.gc_frontier_separate = separate
        });
        let measured = bare.run(20.0, 4.0, 0.0, uniform);
        assert_close(
            measured,
            greedy(rho, f64::from(b)),
            &format!("rho {rho}, b {b}, separate {separate}"),
        );
    }
}

/// The other cells of the table; minutes on a busy machine, so by name only.
#[test]
#[ignore = "takes minutes"]
fn every_cell_of_the_table_is_met() {
    for b in [32, 64, 256] {
        for rho in [0.7, 0.8, 0.9, 0.9346] {
            let mut bare = Bare::new(2000, b, rho, RESERVE, |_| {});
            assert_close(
                bare.run(20.0, 2.0, 0.0, uniform),
                greedy(rho, f64::from(b)),
                &format!("rho {rho}, b {b}"),
            );
        }
    }
}

/// The second and third are RackBlox's hard and soft thresholds on a device that is half full, as its paper has it.
#[test]
fn a_threshold_consumes_over_provisioning() {
    for (rho, g, b) in [(0.7, 0.15, 32), (0.5, 0.25, 64), (0.5, 0.35, 64)] {
        let mut bare = Bare::new(2000, b, rho, 0.0, |_| {});
        assert_close(
            bare.run(20.0, 4.0, g, uniform),
            greedy(rho / (1.0 - g), f64::from(b)),
            &format!("rho {rho}, threshold {g}, b {b}"),
        );
    }
}

/// Prints operations per second of this machine; asserts nothing of wall time.
#[test]
#[ignore = "a measurement"]
fn operations_per_second() {
    for profile in ["none", "p-ssd"] {
        let mut bare = Bare::new(2000, 64, 0.7, RESERVE, |config| {
            config.timing = flash::Timing::built_in(profile).expect("built in");
        });
        bare.measure(profile);
    }
}

#[test]
fn skewed_writes_amplify_no_more_with_a_separate_frontier() {
    let run = |separate| {
        let mut bare = Bare::new(2000, 32, 0.8, RESERVE, |config| {
            config.gc_frontier_separate = separate
        });
        bare.run(10.0, 4.0, 0.0, hot_and_cold)
    };
    let (one, two) = (run(false), run(true));
    println!("80/20: one frontier {one:.3}, two {two:.3}");
    assert!(two < one * 1.01);
}
