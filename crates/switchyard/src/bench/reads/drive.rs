//! The load of `switchyard bench store --reads`, by an engine of any kind. The program of `bench/peers` is built from this file,
//! too, so that every engine has the same keys, values, checks and clocks.
//!
//! A key is 16 bytes, in no order. A value says how often it was written, and all its other bytes follow from that and the key.
//! So every value that is read is checked, and the first that is wrong ends the run.

use anyhow::{bail, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Latencies beyond are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Entries of a batch while data are loaded.
const BATCH: u64 = 1000;
/// Entries of a range.
pub const RANGE: usize = 100;
/// The exponent of the zipfian distribution, as YCSB has it.
const EXPONENT: f64 = 0.99;
/// Reads after which an engine with transactions begins another one: a program that answers requests begins one for each.
#[allow(dead_code, reason = "Switchyard has no transactions for reads")]
pub const READS_OF_TRANSACTION: u32 = 100;

/// A key.
pub type Key = [u8; 16];

/// Which keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Each equally often.
    Uniform,
    /// The n-th most popular in proportion to n^-0.99. The popular ones are anywhere.
    Zipfian,
}

/// What threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Read the value of a key.
    Point,
    /// Read [`RANGE`] entries in order.
    Range,
    /// Read the value of a key, or write one durably, half by half.
    Mix,
}

/// A run of a program, handed over as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The engine.
    pub system: String,
    /// Its files, and nobody else's.
    pub dir: PathBuf,
    /// Keys that are there.
    pub keys: u64,
    /// Bytes of a value.
    pub bytes: usize,
    /// Memory of the engine's cache.
    pub cache_bytes: u64,
    /// Memory of the whole process, with the page cache of its files.
    pub memory_bytes: u64,
    /// Load the data instead of reading them.
    pub load: bool,
    /// Which keys.
    pub distribution: Distribution,
    /// Threads of each case.
    pub threads: Vec<usize>,
    /// What they do.
    pub works: Vec<Work>,
    /// Of each case.
    pub seconds: f64,
    /// Of reads before the first case.
    pub warm_seconds: f64,
    /// Other places and versions with another one.
    pub seed: u64,
    /// The control group that bounds the process's memory.
    pub cage: Option<PathBuf>,
}

impl Plan {
    /// From its JSON. The process is in its control group on return.
    pub fn enter(text: &str) -> anyhow::Result<Self> {
        let plan: Self = serde_json::from_str(text)?;
        if let Some(cage) = &plan.cage {
            std::fs::write(cage, "0")?;
        }
        Ok(plan)
    }
}

/// A case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The engine.
    pub system: String,
    /// What its threads did.
    pub work: Work,
    /// How many they were.
    pub threads: usize,
    /// Operations of all of them.
    pub per_second: f64,
    /// Of one operation.
    pub p50_us: f64,
    /// The same.
    pub p99_us: f64,
}

/// An open engine.
pub trait Engine: Sync {
    /// What a thread does its work with.
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>>;
    /// Writers have ended: what they left for later is done on return.
    fn settle(&self) -> anyhow::Result<()>;
}

/// A thread's access to an engine.
pub trait Session {
    /// Inserts entries, durable some time later.
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()>;
    /// Hands the value of a key to `found`.
    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()>;
    /// Hands `count` entries from `key` on to `found`, or as many as there are.
    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()>;
    /// Sets the value of a key, durable on return.
    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()>;
}

/// Carries a plan out. The rows are printed, one a line.
pub fn run(plan: &Plan, engine: &dyn Engine) -> anyhow::Result<()> {
    if plan.load {
        load(plan, engine)?;
        return engine.settle();
    }
    let popularity = Popularity::new(plan);
    let warm = Plan {
        seconds: plan.warm_seconds,
        ..plan.clone()
    };
    let threads_max = plan.threads.iter().copied().max().unwrap_or(1);
    measure(&warm, engine, &popularity, (Work::Point, threads_max), 0)?;
    let cases = plan
        .works
        .iter()
        .flat_map(|&work| plan.threads.iter().map(move |&it| (work, it)));
    for (number, case) in (1..).zip(cases) {
        if case.0 == Work::Mix {
            // What the writers before left to be merged is no part of this case.
            engine.settle()?;
        }
        let row = measure(plan, engine, &popularity, case, number)?;
        println!("{}", serde_json::to_string(&row)?);
    }
    Ok(())
}

/// Syncs every file of a directory, whatever its engine does itself.
pub fn sync_files(dir: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_files(&path)?;
        } else {
            File::open(&path)?.sync_all()?;
        }
    }
    Ok(())
}

/// Inserts all keys, in no order.
fn load(plan: &Plan, engine: &dyn Engine) -> anyhow::Result<()> {
    let mut session = engine.session()?;
    let mut next = 0;
    while next < plan.keys {
        let end = (next + BATCH).min(plan.keys);
        let entry = |index| {
            let key = key(index);
            (key, value(&key, 0, plan.bytes))
        };
        let entries: Vec<_> = (next..end).map(entry).collect();
        session.load(&entries)?;
        next = end;
    }
    Ok(())
}

/// Lets so many threads do the work. Each case has a number, and keys of its own: a case that asked for those of the one before would
/// find them in the caches.
fn measure(
    plan: &Plan,
    engine: &dyn Engine,
    popularity: &Popularity,
    (work, threads): (Work, usize),
    case: u64,
) -> anyhow::Result<Row> {
    let (barrier, has_failed) = (Barrier::new(threads), AtomicBool::new(false));
    let results: Vec<_> = std::thread::scope(|scope| {
        let spawn = |thread: usize| {
            let (barrier, has_failed) = (&barrier, &has_failed);
            scope.spawn(move || {
                let session = engine.session();
                barrier.wait();
                let mut worker = Worker {
                    plan,
                    popularity,
                    random: Random::of(plan.seed, case, thread as u64),
                };
                let result = session.and_then(|mut session| worker.drive(&mut *session, work, has_failed));
                has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
                result
            })
        };
        let handles: Vec<_> = (0..threads).map(spawn).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| handle.join().expect("it does not panic");
        handles.into_iter().map(join).collect()
    });
    let mut all = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    let mut seconds: f64 = 0.0;
    for result in results {
        let (latency, elapsed): (Histogram<u64>, f64) = result?;
        all.add(latency)?;
        seconds = seconds.max(elapsed);
    }
    let us = |quantile| all.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(Row {
        system: plan.system.clone(),
        work,
        threads,
        per_second: all.len() as f64 / seconds,
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}

/// One thread.
struct Worker<'a> {
    plan: &'a Plan,
    popularity: &'a Popularity,
    random: Random,
}

impl Worker<'_> {
    fn drive(
        &mut self,
        session: &mut dyn Session,
        work: Work,
        has_failed: &AtomicBool,
    ) -> anyhow::Result<(Histogram<u64>, f64)> {
        let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
        let time = Duration::from_secs_f64(self.plan.seconds);
        let start = Instant::now();
        let mut before = start;
        while before - start < time && !has_failed.load(Ordering::Relaxed) {
            let key = key(self.popularity.draw(&mut self.random));
            match work {
                Work::Point => self.point(session, &key)?,
                Work::Range => self.range(session, &key)?,
                Work::Mix if self.random.next().is_multiple_of(2) => self.point(session, &key)?,
                Work::Mix => {
                    let version = self.random.next();
                    session.put(&key, &value(&key, version, self.plan.bytes))?;
                }
            }
            let now = Instant::now();
            latency.saturating_record((now - before).as_nanos() as u64);
            before = now;
        }
        Ok((latency, (before - start).as_secs_f64()))
    }

    fn point(&self, session: &mut dyn Session, key: &Key) -> anyhow::Result<()> {
        let mut is_right = false;
        session.get(key, &mut |found| {
            is_right = is_value_of(key, found, self.plan.bytes);
        })?;
        ensure!(is_right, "{key:x?} has no value, or another key's");
        Ok(())
    }

    fn range(&self, session: &mut dyn Session, key: &Key) -> anyhow::Result<()> {
        let (mut count, mut wrong) = (0, false);
        let mut last = [0; 16];
        session.range(key, RANGE, &mut |found, value| {
            let Ok(found) = Key::try_from(found) else {
                wrong = true;
                return;
            };
            let follows = if count == 0 { found == *key } else { found > last };
            wrong |= !follows || !is_value_of(&found, value, self.plan.bytes);
            (count, last) = (count + 1, found);
        })?;
        // The highest keys have fewer behind them. Keys are spread evenly.
        let (head, _) = key.split_first_chunk::<8>().expect("a key has sixteen bytes");
        let behind = (u128::from(!u64::from_be_bytes(*head)) * u128::from(self.plan.keys)) >> 64;
        if wrong || count == 0 || (count < RANGE && behind > 3 * RANGE as u128) {
            bail!("the range from {key:x?} has {count} entries, or wrong ones");
        }
        Ok(())
    }
}

/// Draws keys.
enum Popularity {
    Uniform {
        keys: u64,
    },
    /// After Gray et al., "Quickly generating billion-record synthetic databases" (SIGMOD'94), as YCSB does.
    Zipfian {
        keys: u64,
        zeta: f64,
        eta: f64,
    },
}

impl Popularity {
    fn new(plan: &Plan) -> Self {
        let keys = plan.keys;
        match plan.distribution {
            Distribution::Uniform => Self::Uniform { keys },
            Distribution::Zipfian => {
                let zeta: f64 = (1..=keys).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
                let zeta_two = 1.0 + 0.5_f64.powf(EXPONENT);
                let eta = (1.0 - (2.0 / keys as f64).powf(1.0 - EXPONENT)) / (1.0 - zeta_two / zeta);
                Self::Zipfian { keys, zeta, eta }
            }
        }
    }

    /// The number of a key.
    fn draw(&self, random: &mut Random) -> u64 {
        match *self {
            Self::Uniform { keys } => random.next() % keys,
            Self::Zipfian { keys, zeta, eta } => {
                let unit = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
                let rank = if unit * zeta < 1.0 {
                    0
                } else if unit * zeta < 1.0 + 0.5_f64.powf(EXPONENT) {
                    1
                } else {
                    let exponent = 1.0 / (1.0 - EXPONENT);
                    (keys as f64 * (eta * unit - eta + 1.0).powf(exponent)) as u64
                };
                // Popular keys are neighbours neither in order nor in time of insertion.
                scatter(rank) % keys
            }
        }
    }
}

/// A sequence of numbers (splitmix64).
struct Random(u64);

impl Random {
    /// That of a thread, which no other case or round has.
    fn of(seed: u64, case: u64, thread: u64) -> Self {
        let round = scatter(seed.wrapping_add(1));
        Self(scatter(scatter(round.wrapping_add(case)).wrapping_add(thread)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scatter(self.0)
    }
}

/// Another number for each number (the end of splitmix64).
fn scatter(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The key with a number.
fn key(index: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&scatter(index + 1).to_be_bytes());
    key[8..].copy_from_slice(&scatter(!index).to_be_bytes());
    key
}

/// The words of a value behind its version.
fn words(key: &Key, version: u64) -> Random {
    let (high, low) = key.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    Random(word(high) ^ word(low).rotate_left(32) ^ scatter(version))
}

fn value(key: &Key, version: u64, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes + 8);
    value.extend_from_slice(&version.to_le_bytes());
    let mut words = words(key, version);
    while value.len() < bytes {
        value.extend_from_slice(&words.next().to_le_bytes());
    }
    value.truncate(bytes);
    value
}

/// True if the value was written for this key, and is whole.
fn is_value_of(key: &Key, value: &[u8], bytes: usize) -> bool {
    let Some((version, rest)) = value.split_first_chunk::<8>() else {
        return false;
    };
    let mut words = words(key, u64::from_le_bytes(*version));
    value.len() == bytes
        && rest
            .chunks(8)
            .all(|chunk| chunk == &words.next().to_le_bytes()[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_belongs_to_its_key_and_is_whole() {
        let (mine, other) = (key(7), key(8));
        for bytes in [16, 100, 1024] {
            let mut value = value(&mine, 3, bytes);
            assert!(is_value_of(&mine, &value, bytes));
            assert!(!is_value_of(&other, &value, bytes));
            assert!(!is_value_of(&mine, &value[1..], bytes));
            value[bytes - 1] ^= 1;
            assert!(!is_value_of(&mine, &value, bytes));
        }
    }

    /// bug: caches held what a case read, as the case before had read the same keys. cause: the sequence came from the thread alone.
    #[test]
    fn no_case_asks_for_the_keys_of_another() {
        let mut firsts = std::collections::BTreeSet::new();
        for (seed, case, thread) in (0..4).flat_map(|it| (0..8).map(move |case| (it, case, it + case))) {
            assert!(firsts.insert(Random::of(seed, case, thread).next()));
        }
    }

    /// Of 1000 keys the most popular one is asked for about once in seven times.
    #[test]
    fn few_keys_are_asked_for_often() {
        let (keys, draws) = (1000, 100_000);
        let zeta: f64 = (1..=keys).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        let text = format!(
            r#"{{"system":"it","dir":".","keys":{keys},"bytes":100,"cache_bytes":0,"memory_bytes":0,"load":false,"distribution":"zipfian",
            "threads":[1],"works":["point"],"seconds":1,"warm_seconds":0,"seed":1,"cage":null}}"#
        );
        let popularity = Popularity::new(&Plan::enter(&text).expect("a plan"));
        let mut random = Random(1);
        let top = scatter(0) % keys;
        let count = (0..draws).filter(|_| popularity.draw(&mut random) == top).count();
        let share = count as f64 / f64::from(draws) * zeta;
        assert!((0.9..1.2).contains(&share), "{share}");
    }
}
