//! Figures 22 and 23 of RackBlox (SOSP'23 §4.6): five years of a rack of 32 servers with 16 SSDs of 4 vSSDs each, with
//! and without wear balancers (`rack::wear`).
//!
//! Each vSSD runs one of the paper's workloads (Table 2), all equally likely; YCSB has a write share of its own between 0
//! and 100 %. It is asked between half and one and a half times as much as the average, and varies by as much from day to
//! day. The writes of an SSD's four vSSDs wear it evenly, because it levels itself.
//! vSSDs are placed round robin over servers
//! first, then over SSDs. The average SSD uses its endurance up in five years. An exchange rewrites both SSDs, so each of
//! their blocks is erased once more.

use super::figure::{Figure, Percentiles, Row};
use crate::report::{Progress, Report};
use base::{Duration, Rng};
use hdrhistogram::Histogram;
use rack::wear::{DAY, Level, Place, deal, imbalance};
use serde_json::{Map, Value, json};

const SERVERS: usize = 32;
const SSDS: usize = 16;
const VSSDS: usize = 4;
const PLACES: usize = SERVERS * SSDS;
/// Five years.
const DAYS: u32 = 5 * 365;
/// Erases that a block endures (RackBlox §3.6).
const ENDURANCE: f64 = 30_000.0;
/// Write shares of RackBlox Table 2: TPC-H, Seats, AuctionMark, TPC-C, Twitter. YCSB's is drawn.
const WRITE_SHARES: [f64; 5] = [0.0227, 0.1034, 0.5376, 0.5995, 0.9786];
/// How much one vSSD is asked, and one day differs from others: a factor between these.
const VARIATION: (f64, f64) = (0.5, 1.5);
/// When rows are written.
const ROW_DAYS: [u32; 9] = [12, 28, 56, 112, 182, 365, 730, 1095, DAYS];

/// Balancers of a rack.
#[derive(Clone, Copy, Debug)]
pub struct Balancers {
    /// Name in rows.
    pub name: &'static str,
    /// Between the SSDs of a server.
    pub local: Option<Level>,
    /// Between servers.
    pub global: Option<Level>,
}

const NO_SWAP: Balancers = Balancers {
    name: "no-swap",
    local: None,
    global: None,
};
const RACKBLOX: Balancers = Balancers {
    name: "rackblox",
    local: Some(Level::RACKBLOX_LOCAL),
    global: Some(Level::RACKBLOX_GLOBAL),
};
const LOCAL_ONLY: Balancers = Balancers {
    name: "switchyard-local-only",
    local: Some(Level::LOCAL),
    global: None,
};
/// Our rule on the paper's days: what the rule gains, and what the days.
const FIXED_DAYS: Balancers = Balancers {
    name: "switchyard-12-days-8-weeks",
    local: Some(Level {
        age_share: 0.0,
        ..Level::LOCAL
    }),
    global: Some(Level {
        age_share: 0.0,
        ..Level::GLOBAL
    }),
};
const SWITCHYARD: Balancers = Balancers {
    name: "switchyard",
    local: Some(Level::LOCAL),
    global: Some(Level::GLOBAL),
};

/// The rack on one day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Since the beginning.
    pub day: u32,
    /// λ between the SSDs of a server: of the worst server.
    pub within_max: f64,
    /// The mean over all servers.
    pub within_mean: f64,
    /// λ between the servers.
    pub across: f64,
    /// λ between all SSDs of the rack.
    pub ssds: f64,
    /// Exchanges of SSDs within servers so far.
    pub local_swaps: u32,
    /// Exchanges of servers so far.
    pub global_swaps: u32,
    /// Share of its lifetime that exchanges have cost the SSD that was in most of them.
    pub lifetime_share: f64,
}

/// A rack that ages. A load is what an SSD's vSSDs make it write; place and load have the same number at the start.
struct Study {
    rng: Rng,
    /// Erases per block and day.
    loads: Vec<f64>,
    /// Which load each place has.
    at: Vec<usize>,
    /// Erases per block of each place.
    wear: Vec<f64>,
    /// Erases per block that each load has made.
    made: Vec<f64>,
    /// Rewrites of each place.
    rewrites: Vec<u32>,
    local_swaps: u32,
    global_swaps: u32,
}

impl Study {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut loads = vec![0.0; PLACES];
        for vssd in 0..PLACES * VSSDS {
            let (server, ssd) = (vssd % SERVERS, vssd / SERVERS % SSDS);
            let known = rng.below(WRITE_SHARES.len() as u64 + 1) as usize;
            let share = WRITE_SHARES.get(known).copied().unwrap_or_else(|| rng.unit());
            loads[server * SSDS + ssd] += share * vary(&mut rng);
        }
        let mean = loads.iter().sum::<f64>() / PLACES as f64;
        let scale = ENDURANCE / f64::from(DAYS) / mean;
        loads.iter_mut().for_each(|load| *load *= scale);
        Self {
            rng,
            loads,
            at: (0..PLACES).collect(),
            wear: vec![0.0; PLACES],
            made: vec![0.0; PLACES],
            rewrites: vec![0; PLACES],
            local_swaps: 0,
            global_swaps: 0,
        }
    }

    fn pass_day(&mut self) {
        for place in 0..PLACES {
            let load = self.at[place];
            let erases = self.loads[load] * vary(&mut self.rng);
            self.wear[place] += erases;
            self.made[load] += erases;
        }
    }

    /// The places of a server.
    fn places(server: usize) -> core::ops::Range<usize> {
        server * SSDS..(server + 1) * SSDS
    }

    /// A load's rate as the rack can know it: the mean of all days.
    fn rate(&self, load: usize, day: u32) -> f64 {
        self.made[load] / f64::from(day)
    }

    fn put(&mut self, place: usize, load: usize) {
        self.at[place] = load;
        self.wear[place] += 1.0;
        self.rewrites[place] += 1;
    }

    fn balance_locally(&mut self, day: u32, level: &Level) {
        for server in 0..SERVERS {
            let first = Self::places(server).start;
            let places: Vec<Place> = Self::places(server)
                .map(|place| Place {
                    wear: self.wear[place],
                    rate: self.rate(self.at[place], day),
                })
                .collect();
            for (a, b) in level.exchanges(DAY * day, &places) {
                let (to_a, to_b) = (self.at[first + b], self.at[first + a]);
                self.put(first + a, to_a);
                self.put(first + b, to_b);
                self.local_swaps += 1;
            }
        }
    }

    fn balance_globally(&mut self, day: u32, level: &Level) {
        let servers: Vec<Place> = (0..SERVERS)
            .map(|server| Place {
                wear: self.server_wear(server),
                rate: Self::places(server)
                    .map(|place| self.rate(self.at[place], day))
                    .sum::<f64>()
                    / SSDS as f64,
            })
            .collect();
        for (a, b) in level.exchanges(DAY * day, &servers) {
            let of = |server| self.at[Self::places(server)].to_vec();
            let (loads_a, loads_b) = (of(a), of(b));
            self.move_in(day, a, &loads_b);
            self.move_in(day, b, &loads_a);
            self.global_swaps += 1;
        }
    }

    /// A server gets another one's loads: the most worn SSD the slowest.
    fn move_in(&mut self, day: u32, server: usize, loads: &[usize]) {
        let rates: Vec<f64> = loads.iter().map(|&load| self.rate(load, day)).collect();
        let dealt = deal(&self.wear[Self::places(server)], &rates);
        for (place, load) in Self::places(server).zip(dealt) {
            self.put(place, loads[load]);
        }
    }

    fn server_wear(&self, server: usize) -> f64 {
        self.wear[Self::places(server)].iter().sum::<f64>() / SSDS as f64
    }

    fn sample(&self, day: u32) -> Sample {
        let within: Vec<f64> = (0..SERVERS)
            .map(|server| imbalance(self.wear[Self::places(server)].iter().copied()))
            .collect();
        let most = self.rewrites.iter().max().copied().unwrap_or(0);
        Sample {
            day,
            within_max: within.iter().copied().fold(1.0, f64::max),
            within_mean: within.iter().sum::<f64>() / SERVERS as f64,
            across: imbalance((0..SERVERS).map(|server| self.server_wear(server))),
            ssds: imbalance(self.wear.iter().copied()),
            local_swaps: self.local_swaps,
            global_swaps: self.global_swaps,
            lifetime_share: f64::from(most) / ENDURANCE,
        }
    }
}

fn vary(rng: &mut Rng) -> f64 {
    VARIATION.0 + rng.unit() * (VARIATION.1 - VARIATION.0)
}

/// Lets a rack age five years; a sample per day.
pub fn age(seed: u64, balancers: &Balancers) -> Vec<Sample> {
    let mut study = Study::new(seed);
    let first = |level: Option<Level>| level.map(|level| level.wait(Duration::ZERO));
    let (mut local_at, mut global_at) = (first(balancers.local), first(balancers.global));
    let mut samples = Vec::with_capacity(DAYS as usize);
    for day in 1..=DAYS {
        study.pass_day();
        let now = DAY * day;
        let due = |level: Option<Level>, at: &mut Option<Duration>| {
            let level = level.filter(|_| at.is_some_and(|at| now >= at))?;
            *at = Some(now + level.wait(now));
            Some(level)
        };
        // Servers first: SSDs are then looked at with what they have got.
        if let Some(level) = due(balancers.global, &mut global_at) {
            study.balance_globally(day, &level);
        }
        if let Some(level) = due(balancers.local, &mut local_at) {
            study.balance_locally(day, &level);
        }
        samples.push(study.sample(day));
    }
    samples
}

/// The day from which on λ stays at 1.1 or below; not a number if it does not.
fn settled(samples: &[Sample], lambda: fn(&Sample) -> f64) -> f64 {
    let above = samples
        .iter()
        .rposition(|sample| lambda(sample) > 1.0 + rack::wear::GAMMA);
    let day = above.map_or(0, |at| at + 1);
    samples.get(day).map_or(f64::NAN, |sample| f64::from(sample.day))
}

/// RackBlox Figure 22: imbalance within servers.
pub(crate) fn fig22(seed: u64, progress: Progress<'_>) -> Report {
    let local = |balancers: Balancers| Balancers {
        global: None,
        ..balancers
    };
    let all = [NO_SWAP, local(RACKBLOX), local(FIXED_DAYS), local(SWITCHYARD)];
    figure("fig22", seed, &all, progress)
}

/// RackBlox Figure 23: imbalance across the rack.
pub(crate) fn fig23(seed: u64, progress: Progress<'_>) -> Report {
    let all = [NO_SWAP, LOCAL_ONLY, RACKBLOX, FIXED_DAYS, SWITCHYARD];
    figure("fig23", seed, &all, progress)
}

const COLUMNS: [&str; 9] = [
    "lambda_within_max",
    "lambda_within_mean",
    "lambda_across",
    "lambda_ssds",
    "local_swaps",
    "global_swaps",
    "lifetime_percent",
    "settled_day_within",
    "settled_day_across",
];

fn figure(name: &'static str, seed: u64, all: &[Balancers], progress: Progress<'_>) -> Report {
    let mut figure = Figure::new(name, seed);
    figure.parameters = parameters();
    let mut report = Report::new(name, seed, &COLUMNS);
    for balancers in all {
        progress(&format!("{name}: {}", balancers.name));
        let samples = age(seed, balancers);
        let settled_within = settled(&samples, |sample| sample.within_max);
        let settled_across = settled(&samples, |sample| sample.across);
        for sample in samples.iter().filter(|sample| ROW_DAYS.contains(&sample.day)) {
            let values = vec![
                sample.within_max,
                sample.within_mean,
                sample.across,
                sample.ssds,
                f64::from(sample.local_swaps),
                f64::from(sample.global_swaps),
                sample.lifetime_share * 100.0,
                settled_within,
                settled_across,
            ];
            figure.rows.push(row(balancers, sample.day, &values));
            report.push(&format!("{} day={}", balancers.name, sample.day), values);
        }
    }
    report.figure = Some(figure);
    report
}

/// Nobody reads or writes here, so a row has no latencies.
fn row(balancers: &Balancers, day: u32, values: &[f64]) -> Row {
    let none = Percentiles::of(&Histogram::new(3).expect("three digits are allowed"));
    let more = COLUMNS.iter().zip(values);
    Row {
        policy: balancers.name.to_owned(),
        workload: "table2-mix".to_owned(),
        parameters: Map::from_iter([("day".to_owned(), json!(day))]),
        made_with: Map::new(),
        read: none,
        write: none,
        iops: f64::NAN,
        write_amplification: f64::NAN,
        more: more
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect(),
    }
}

fn parameters() -> Map<String, Value> {
    let object = json!({
        "servers": SERVERS,
        "ssds_per_server": SSDS,
        "vssds_per_ssd": VSSDS,
        "days": DAYS,
        "endurance_erases": ENDURANCE,
        "gamma": rack::wear::GAMMA,
        "write_shares": WRITE_SHARES,
        "variation": [VARIATION.0, VARIATION.1],
    });
    object.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both balancers have looked at the rack after the longest of the paper's periods.
    const BEGUN: u32 = 56;

    fn worst(samples: &[Sample], lambda: fn(&Sample) -> f64) -> f64 {
        let begun = samples.iter().filter(|sample| sample.day >= BEGUN);
        begun.map(lambda).fold(1.0, f64::max)
    }

    #[test]
    fn imbalance_stays_within_a_tenth_at_little_cost() {
        for seed in 1..=3 {
            let samples = age(seed, &SWITCHYARD);
            for lambda in [
                |s: &Sample| s.within_max,
                |s: &Sample| s.across,
                |s: &Sample| s.ssds,
            ] {
                assert!(
                    worst(&samples, lambda) <= 1.1,
                    "seed {seed}: {}",
                    worst(&samples, lambda)
                );
            }
            let cost = samples.last().unwrap().lifetime_share;
            assert!(cost > 0.0 && cost <= 0.006, "seed {seed}: {cost}");
        }
    }

    #[test]
    fn each_level_is_needed() {
        let end = |balancers| *age(1, &balancers).last().unwrap();
        let (none, local, both) = (end(NO_SWAP), end(LOCAL_ONLY), end(SWITCHYARD));
        assert!(none.within_max > 1.5 && none.across > 1.1, "{none:?}");
        assert!(local.within_max <= 1.1 && local.across > 1.1, "{local:?}");
        assert!(both.within_max <= 1.1 && both.across <= 1.1, "{both:?}");
        assert_eq!(
            (none.local_swaps, none.global_swaps, none.lifetime_share),
            (0, 0, 0.0)
        );
    }

    #[test]
    fn wear_is_what_loads_made_and_swaps_cost() {
        let mut study = Study::new(1);
        for day in 1..=100 {
            study.pass_day();
            study.balance_globally(day, &Level::GLOBAL);
            study.balance_locally(day, &Level::LOCAL);
        }
        let rewrites: u32 = study.rewrites.iter().sum();
        assert_eq!(
            rewrites,
            2 * (study.local_swaps + SSDS as u32 * study.global_swaps)
        );
        let made: f64 = study.made.iter().sum();
        let wear: f64 = study.wear.iter().sum();
        assert!((wear - made - f64::from(rewrites)).abs() < 1e-6 * wear);
        let mut at = study.at.clone();
        at.sort_unstable();
        assert_eq!(at, (0..PLACES).collect::<Vec<_>>(), "no load is lost");
        // The average SSD lasts five years.
        let mean = made / PLACES as f64 / 100.0;
        assert!(
            (mean / (ENDURANCE / f64::from(DAYS)) - 1.0).abs() < 0.01,
            "{mean}"
        );
    }

    #[test]
    fn rows_have_days_and_no_latencies() {
        let report = fig22(1, &mut |_| {});
        assert_eq!(report.rows.len(), 4 * ROW_DAYS.len());
        let json = report.to_json();
        let row = &json["rows"][0];
        assert_eq!(
            (&row["policy"], &row["parameters"]["day"]),
            (&json!("no-swap"), &json!(12))
        );
        assert!(row["read"]["p99_us"].is_null() && row["lambda_within_max"].as_f64().unwrap() > 1.5);
        assert_eq!(json, fig22(1, &mut |_| {}).to_json(), "a seed repeats");
    }
}
