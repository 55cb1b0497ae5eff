//! The applications of RackBlox §4.1, Table 2, as their block devices see them.
//!
//! **From the paper**: the shares of writes, and that AuctionMark has "a long sequence of writes followed by a sequence
//! of reads" (§4.3). **From BenchBase** (VLDB'13, its descriptions and sample configurations): which transactions there
//! are and their weights. **From RackBlox's artifact**: requests of 4 KiB. **Our own**: all else, that is the shares of
//! log, heap and index, the sizes of their regions and how they are scattered, the length of runs, and the
//! rates and depths. The paper does not publish its block traces, nor the database it used.
//!
//! Everything is a table, [`APPS`]; [`AppStream`] draws from it. An application writes far more at its block device than
//! its transactions suggest, as most of its reads end in the database's memory.

use super::stream::{Request, Stream};
use super::{Chooser, Pattern};
use base::Rng;
use base::limits::SECTORS_PER_PAGE;

/// Pages of a database page: 4 KiB, what the clients of RackBlox's artifact ask for.
const DB_PAGES: u64 = 1;
/// Pages of a range: 32 KiB. Linux' read-ahead begins with 16 KiB and grows to 128 KiB.
const RANGE_PAGES: u64 = 8;

/// Pages of an extent, 256 KiB. Extents lie scattered over the volume, so that no replica set holds one table alone.
const EXTENT_PAGES: u64 = 64;

/// How a [`Part`] goes through its region, in steps of its requests' size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Zipfian (θ 0.99), spread over the region.
    Skewed,
    /// All alike.
    Uniform,
    /// From the region's start to its end, and again: a log, or the end of a table.
    Ring,
    /// From a place anywhere on, for this many requests.
    Scan {
        /// Requests of one scan.
        requests: u64,
    },
}

/// Some of an application's reads or writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Its subject.
    pub what: &'static str,
    /// Share among the parts of its kind; they need not sum to one.
    pub weight: f64,
    /// How it moves.
    pub place: Place,
    /// Pages of a request.
    pub pages: u64,
    /// The part of the application's data that it touches: from and to, in 0 to 1.
    pub region: (f64, f64),
}

/// When an application asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// A Poisson process, independent of answers.
    Open {
        /// Its rate, in relation to that of single zipfian pages on the same rack.
        rate: f64,
    },
    /// As soon as something is answered.
    Closed {
        /// Requests under way at all times.
        depth: u32,
    },
}

/// An application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct App {
    /// Its name in rows.
    pub name: &'static str,
    /// Description, and reasons for the model.
    pub about: &'static str,
    /// Share of writes among its requests (RackBlox, Table 2).
    pub write_share: f64,
    /// Mean number of writes in a row; `None` draws each request anew. Runs last half to one and a half times as long,
    /// evenly; those of reads are as long as the share of writes says.
    pub write_run: Option<f64>,
    /// When it asks.
    pub arrivals: Arrivals,
    /// Its reads.
    pub reads: &'static [Part],
    /// Its writes.
    pub writes: &'static [Part],
}

const fn part(what: &'static str, weight: f64, place: Place, pages: u64, region: (f64, f64)) -> Part {
    Part {
        what,
        weight,
        place,
        pages,
        region,
    }
}

/// The applications, by share of writes.
pub const APPS: [App; 5] = [
    App {
        name: "tpc-h",
        about: "Ad-hoc queries over 22 templates. They scan the large tables, which read-ahead turns into long reads, look \
                dimensions up by index, and write where sorts and joins spill. Several run at once, as in TPC-H's \
                throughput test, and each goes on as soon as it has what it asked for: a closed loop.",
        write_share: 0.0227,
        write_run: None,
        arrivals: Arrivals::Closed { depth: 64 },
        reads: &[
            part(
                "scans",
                0.25,
                Place::Scan { requests: 64 },
                RANGE_PAGES,
                (0.1, 0.9),
            ),
            part("index and dimensions", 0.75, Place::Uniform, DB_PAGES, (0.0, 0.1)),
        ],
        writes: &[part("spilled runs", 1.0, Place::Ring, DB_PAGES, (0.9, 1.0))],
    },
    App {
        name: "seats",
        about: "Airline tickets: finding flights and open seats is 45 % of the transactions and nearly all of the reading; \
                flights that leave soon are asked for most. Reservations and customers are changed in place.",
        write_share: 0.1034,
        write_run: None,
        arrivals: Arrivals::Open { rate: 1.0 },
        reads: &[
            part(
                "customers, reservations, indexes",
                0.7,
                Place::Skewed,
                DB_PAGES,
                (0.05, 1.0),
            ),
            part("flights of a day", 0.3, Place::Uniform, 2 * DB_PAGES, (0.05, 0.3)),
        ],
        writes: &[
            part("log", 0.4, Place::Ring, DB_PAGES, (0.0, 0.05)),
            part(
                "reservations and customers",
                0.6,
                Place::Skewed,
                DB_PAGES,
                (0.05, 1.0),
            ),
        ],
    },
    App {
        name: "auctionmark",
        about: "Auctions: bids and new items (45 % of the transactions change something) are written back together, and \
                closing auctions goes over what is due. Long runs of writes, then of reads, as RackBlox §4.3 reports.",
        write_share: 0.5376,
        write_run: Some(400.0),
        arrivals: Arrivals::Open { rate: 1.0 },
        reads: &[
            part("items and users", 0.8, Place::Skewed, DB_PAGES, (0.05, 1.0)),
            part(
                "auctions that are due",
                0.2,
                Place::Scan { requests: 16 },
                DB_PAGES,
                (0.05, 0.4),
            ),
        ],
        writes: &[
            part("log", 0.3, Place::Ring, DB_PAGES, (0.0, 0.05)),
            part("new items and bids", 0.2, Place::Ring, DB_PAGES, (0.8, 1.0)),
            part("items and users", 0.5, Place::Skewed, DB_PAGES, (0.05, 0.8)),
        ],
    },
    App {
        name: "tpc-c",
        about: "Order entry: 45 % new orders and 43 % payments. Stock and customers are read and changed in place, by \
                TPC-C's skewed random numbers; order lines are appended; each commit writes the log.",
        write_share: 0.5995,
        write_run: None,
        arrivals: Arrivals::Open { rate: 1.0 },
        reads: &[
            part("stock and customers", 0.9, Place::Skewed, DB_PAGES, (0.05, 0.8)),
            part(
                "order lines",
                0.1,
                Place::Scan { requests: 4 },
                DB_PAGES,
                (0.8, 1.0),
            ),
        ],
        writes: &[
            part("log", 0.25, Place::Ring, DB_PAGES, (0.0, 0.05)),
            part("order lines", 0.1, Place::Ring, DB_PAGES, (0.8, 1.0)),
            part("stock and customers", 0.65, Place::Skewed, DB_PAGES, (0.05, 0.8)),
        ],
    },
    App {
        name: "twitter",
        about: "Micro-blogging: 99 % of the transactions read, but what is read is recent and in memory, so that at the \
                block device nearly all is the writing of tweets: log, heap, and indexes over users, of whom few have most \
                of the followers. Every request makes work for collection, so the rate is less than that of the others.",
        write_share: 0.9786,
        write_run: None,
        arrivals: Arrivals::Open { rate: 0.75 },
        reads: &[part(
            "users and old tweets",
            1.0,
            Place::Skewed,
            DB_PAGES,
            (0.05, 1.0),
        )],
        writes: &[
            part("log", 0.25, Place::Ring, DB_PAGES, (0.0, 0.05)),
            part("tweets", 0.1, Place::Ring, DB_PAGES, (0.7, 1.0)),
            part("indexes and users", 0.65, Place::Skewed, DB_PAGES, (0.05, 0.7)),
        ],
    },
];

impl App {
    /// Mean pages of a request.
    pub fn mean_pages(&self) -> f64 {
        let mean = |parts: &[Part]| {
            let total: f64 = parts.iter().map(|part| part.weight).sum();
            parts
                .iter()
                .map(|part| part.weight * part.pages as f64)
                .sum::<f64>()
                / total
        };
        self.write_share * mean(self.writes) + (1.0 - self.write_share) * mean(self.reads)
    }
}

/// The application of this name.
pub fn find(name: &str) -> Option<&'static App> {
    APPS.iter().find(|app| app.name == name)
}

/// Place of a part of an application.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    part: Part,
    chooser: Chooser,
    /// First page of the region, and its steps.
    start: u64,
    steps: u64,
    /// Of a scan: the next step, and the requests still to come.
    next: u64,
    left: u64,
}

impl Cursor {
    fn new(part: Part, pages: u64) -> Self {
        let at = |share: f64| (share * pages as f64) as u64 / EXTENT_PAGES * EXTENT_PAGES;
        assert!(
            EXTENT_PAGES.is_multiple_of(part.pages),
            "a request does not leave its extent"
        );
        let (from, to) = part.region;
        let steps = (at(to) - at(from)) / part.pages;
        assert!(steps > 0, "{}: a request fits its region", part.what);
        let pattern = match part.place {
            Place::Skewed => Pattern::Zipfian,
            Place::Uniform | Place::Scan { .. } => Pattern::Uniform,
            Place::Ring => Pattern::Sequential,
        };
        Self {
            part,
            chooser: Chooser::new(pattern, steps),
            start: at(from),
            steps,
            next: 0,
            left: 0,
        }
    }

    /// First page of the next request, among the application's data.
    fn draw(&mut self, rng: &mut Rng) -> u64 {
        let step = match self.part.place {
            Place::Scan { requests } => {
                if self.left == 0 {
                    (self.next, self.left) = (self.chooser.draw(rng), requests);
                }
                let step = self.next;
                (self.next, self.left) = ((step + 1) % self.steps, self.left - 1);
                step
            }
            _ => self.chooser.draw(rng),
        };
        self.start + step * self.part.pages
    }
}

/// Where extents lie on a volume.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    extents: u64,
    stride: u64,
}

impl Scatter {
    fn new(pages: u64) -> Self {
        let extents = pages / EXTENT_PAGES;
        assert!(extents > 0, "a volume has an extent");
        // Neighbours are about 0.618 of the volume apart, so that any few in a row are spread evenly.
        let golden = (extents as f64 * 0.618_034) as u64;
        let coprime = |&stride: &u64| gcd(stride, extents) == 1;
        let stride = (golden.max(1)..).find(coprime).expect("a prime is found");
        Self { extents, stride }
    }

    /// The volume's page that holds an application's page.
    fn place(&self, page: u64) -> u64 {
        (page / EXTENT_PAGES * self.stride % self.extents) * EXTENT_PAGES + page % EXTENT_PAGES
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// An application's requests.
#[derive(Clone, Debug)]
pub struct AppStream {
    app: &'static App,
    per_second: f64,
    scatter: Scatter,
    reads: Vec<Cursor>,
    writes: Vec<Cursor>,
    steady_ns: f64,
    writing: bool,
    run_left: u64,
}

impl AppStream {
    /// On a volume of so many pages, due `per_second` times a second; all at once if that is infinite.
    ///
    /// # Panics
    /// If the volume is too small for one request in each of the application's regions.
    pub fn new(app: &'static App, pages: u64, per_second: f64) -> Self {
        let cursors = |parts: &[Part]| parts.iter().map(|part| Cursor::new(*part, pages)).collect();
        Self {
            app,
            per_second,
            scatter: Scatter::new(pages),
            reads: cursors(app.reads),
            writes: cursors(app.writes),
            steady_ns: 0.0,
            writing: false,
            run_left: 0,
        }
    }

    fn writes_next(&mut self, rng: &mut Rng) -> bool {
        let Some(run) = self.app.write_run else {
            return rng.chance(self.app.write_share);
        };
        if self.run_left == 0 {
            self.writing = !self.writing;
            let share = self.app.write_share;
            let mean = if self.writing {
                run
            } else {
                run * (1.0 - share) / share
            };
            self.run_left = ((mean * (0.5 + rng.unit())).round() as u64).max(1);
        }
        self.run_left -= 1;
        self.writing
    }
}

impl Stream for AppStream {
    fn next(&mut self, rng: &mut Rng) -> Option<Request> {
        self.steady_ns += rng.exponential(1e9 / self.per_second);
        let write = self.writes_next(rng);
        let cursors = if write { &mut self.writes } else { &mut self.reads };
        let total: f64 = cursors.iter().map(|cursor| cursor.part.weight).sum();
        let mut left = rng.unit() * total;
        let drawn = cursors.iter().position(|cursor| {
            left -= cursor.part.weight;
            left < 0.0
        });
        let cursor = &mut cursors[drawn.unwrap_or(0)];
        Some(Request {
            due_ns: self.steady_ns as u64,
            write,
            block: self.scatter.place(cursor.draw(rng)) * SECTORS_PER_PAGE as u64,
            blocks: cursor.part.pages * SECTORS_PER_PAGE as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PAGES: u64 = 32_768;
    const DRAWN: usize = 200_000;

    fn draw(app: &'static App, seed: u64) -> Vec<Request> {
        let (mut stream, mut rng) = (AppStream::new(app, PAGES, 2_000.0), Rng::new(seed));
        (0..DRAWN).filter_map(|_| stream.next(&mut rng)).collect()
    }

    /// As [`draw`], with the pages of the application's data.
    fn draw_unscattered(app: &'static App, seed: u64) -> Vec<Request> {
        let scatter = Scatter::new(PAGES);
        let block = SECTORS_PER_PAGE as u64;
        let origin: BTreeMap<u64, u64> = (0..PAGES).map(|page| (scatter.place(page), page)).collect();
        assert_eq!(origin.len() as u64, PAGES, "each page has its own place");
        let back = |request: Request| Request {
            block: origin[&(request.block / block)] * block,
            ..request
        };
        draw(app, seed).into_iter().map(back).collect()
    }

    /// Mean length of runs of writes.
    fn write_run(requests: &[Request]) -> f64 {
        let writes = requests.iter().filter(|request| request.write).count();
        let begins = requests
            .windows(2)
            .filter(|pair| !pair[0].write && pair[1].write)
            .count();
        writes as f64 / (begins.max(1)) as f64
    }

    #[test]
    fn an_application_draws_its_share_of_writes_and_its_runs() {
        for app in &APPS {
            let requests = draw(app, 3);
            let writes = requests.iter().filter(|request| request.write).count();
            let share = writes as f64 / DRAWN as f64;
            assert!((share - app.write_share).abs() < 0.005, "{}: {share}", app.name);
            let run = write_run(&requests);
            let expected = app.write_run.unwrap_or(1.0 / (1.0 - app.write_share));
            assert!((run / expected - 1.0).abs() < 0.1, "{}: runs of {run}", app.name);
        }
        let runs = APPS.iter().filter(|app| app.write_run.is_some());
        let runs: Vec<_> = runs.map(|app| (app.name, app.write_run > Some(100.0))).collect();
        assert!(
            runs.contains(&("auctionmark", true)),
            "AuctionMark has long runs: {runs:?}"
        );
        assert!(runs.iter().all(|(name, _)| *name != "tpc-c"), "{runs:?}");
    }

    #[test]
    fn a_stream_is_a_function_of_its_seed_and_stays_on_the_volume() {
        for app in &APPS {
            let requests = draw(app, 5);
            assert_eq!(requests, draw(app, 5), "{}", app.name);
            assert_ne!(requests, draw(app, 6), "{}", app.name);
            let blocks = PAGES * SECTORS_PER_PAGE as u64;
            assert!(
                requests
                    .iter()
                    .all(|r| r.blocks > 0 && r.block + r.blocks <= blocks)
            );
            assert!(requests.windows(2).all(|pair| pair[0].due_ns <= pair[1].due_ns));
            let seconds = requests[DRAWN - 1].due_ns as f64 / 1e9;
            let rate = DRAWN as f64 / seconds;
            assert!(
                (1_950.0..2_050.0).contains(&rate),
                "{}: {rate} a second",
                app.name
            );
        }
    }

    #[test]
    fn skew_scans_and_rings_are_where_the_table_says() {
        let block = SECTORS_PER_PAGE as u64;
        let scans: Vec<Request> = draw_unscattered(&APPS[0], 9)
            .into_iter()
            .filter(|request| !request.write && request.blocks == RANGE_PAGES * block)
            .collect();
        let next = |pair: &&[Request]| pair[1].block == pair[0].block + pair[0].blocks;
        let sequential = scans.windows(2).filter(next).count() as f64 / scans.len() as f64;
        assert!((0.975..0.99).contains(&sequential), "63 of 64: {sequential}");
        let twitter = draw_unscattered(&APPS[4], 9);
        let log_end = (0.05 * PAGES as f64) as u64 / EXTENT_PAGES * EXTENT_PAGES * block;
        let (log, rest): (Vec<Request>, Vec<Request>) = twitter
            .into_iter()
            .filter(|r| r.write)
            .partition(|r| r.block < log_end);
        assert!((log.len() as f64 / (log.len() + rest.len()) as f64 - 0.25).abs() < 0.01);
        let steps = log.windows(2).filter(next).count();
        assert!(steps * 100 > log.len() * 99, "a log goes on where it ended");
        let mut places = BTreeMap::new();
        for request in &rest {
            *places.entry(request.block).or_insert(0u32) += 1;
        }
        let most = *places.values().max().unwrap();
        assert!(
            most as usize * 100 > rest.len() * 2,
            "the first of a zipfian has 3.8 % of 7/8: {most}"
        );
    }

    #[test]
    fn every_quarter_of_the_volume_has_its_part_of_the_writes() {
        for app in &APPS {
            let mut quarters = [0u64; 4];
            for request in draw(app, 11).iter().filter(|request| request.write) {
                quarters[(request.block / SECTORS_PER_PAGE as u64 * 4 / PAGES) as usize] += 1;
            }
            let mean = quarters.iter().sum::<u64>() / 4;
            assert!(
                quarters.iter().all(|&q| q > mean * 8 / 10 && q < mean * 12 / 10),
                "{}: {quarters:?}",
                app.name
            );
        }
    }

    #[test]
    fn names_are_found() {
        assert!(APPS.iter().all(|app| find(app.name) == Some(app)));
        assert!(find("tpc-x").is_none());
    }
}
