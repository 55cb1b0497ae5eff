//! `bench kv --steering`: two threads on one keyspace behind striped locks, beside two threads with a shard each.
//!
//! Everything is in this process, and no request crosses a socket. Half of the requests are SETs, keys are drawn by Zipf's law, and each
//! read copies its value. Each keyspace keeps the order of last use. Three sides take turns:
//!
//! - `locks`: each thread carries out its requests itself. A stripe is a keyspace behind a lock.
//! - `steered`: requests are at their shard's thread already, as a NIC that steers by key or a client that knows the shards brings them.
//! - `lanes`: each thread has the requests of its clients, and hands those of other shards over, as `kv serve` does: in rounds,
//!   by lanes, with a reply each.

use super::super::rounds::median;
use super::args::KvArgs;
use anyhow::ensure;
use kv::{Keyspace, KeyspaceOptions, Lasts};
use serde::Serialize;
use shards::Lane;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

/// Stripes: many more than threads, so that two seldom want one at the same time.
const STRIPES: usize = 64;
/// Threads, and shards.
const THREADS: usize = 2;
const VALUE: [u8; 64] = [b'x'; 64];
/// Requests of a round, as of as many connections.
const ROUND: usize = 64;
const SKEW: f64 = 0.99;

/// Requests of one thread: the key, and whether it is set.
type Requests = Vec<(u32, bool)>;

/// Keys with their hashes.
struct Keys {
    keys: Vec<([u8; 16], u64)>,
}

impl Keys {
    fn new(count: u64) -> Self {
        let key = |number: u64| {
            let mut key = [0; 16];
            key.copy_from_slice(format!("key:{number:012}").as_bytes());
            (key, kv::hash(1, &key))
        };
        Self {
            keys: (0..count).map(key).collect(),
        }
    }

    /// Each thread's requests, however they are steered.
    fn draw(&self, count: usize) -> Vec<Requests> {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=self.keys.len())
            .map(|rank| {
                sum += (rank as f64).powf(-SKEW);
                sum
            })
            .collect();
        let mut rng = base::Rng::new(7);
        let mut draw = || {
            let wanted = rng.unit() * sum;
            let rank = sums.partition_point(|sum| *sum < wanted).min(sums.len() - 1);
            (rank as u32, rng.chance(0.5))
        };
        (0..THREADS)
            .map(|_| (0..count).map(|_| draw()).collect())
            .collect()
    }

    fn shard(&self, key: u32) -> usize {
        kv::shard_of(self.keys[key as usize].1, THREADS)
    }
}

fn keyspace() -> Keyspace {
    Keyspace::new(KeyspaceOptions {
        memory_max: u64::MAX / 2,
        value_bytes_max: 1 << 20,
        keeps_changes: false,
    })
}

fn carry_out(keyspace: &mut Keyspace, (key, hash): &([u8; 16], u64), sets: bool, out: &mut Vec<u8>) {
    if sets {
        keyspace
            .set(*hash, key, &VALUE, Lasts::Ever)
            .expect("there is room");
        out.extend_from_slice(b"+OK\r\n");
    } else if let Some(entry) = keyspace.read(*hash, key) {
        out.extend_from_slice(entry.value());
    }
}

/// Runs a part on each thread; the nanoseconds of one request, from the first begin to the last end.
#[allow(
    clippy::type_complexity,
    reason = "what each thread does, after it has waited for the others"
)]
fn time(count: usize, parts: Vec<Box<dyn FnOnce(&Barrier) + Send + '_>>) -> f64 {
    let barrier = Barrier::new(parts.len() + 1);
    let mut start = Instant::now();
    std::thread::scope(|scope| {
        let barrier = &barrier;
        for (index, part) in parts.into_iter().enumerate() {
            scope.spawn(move || {
                // With fewer processors they share one, which is no comparison but no failure either.
                let _ = runtime::cpu::pin(index);
                part(barrier);
            });
        }
        barrier.wait();
        start = Instant::now();
    });
    start.elapsed().as_nanos() as f64 / count as f64
}

fn locks(keys: &Keys, drawn: &[Requests]) -> f64 {
    let stripes: Vec<Mutex<Keyspace>> = (0..STRIPES).map(|_| Mutex::new(keyspace())).collect();
    let stripe = |hash: u64| &stripes[kv::shard_of(hash, STRIPES)];
    for (key, hash) in &keys.keys {
        let mut keyspace = stripe(*hash).lock().expect("nobody panics");
        carry_out(&mut keyspace, &(*key, *hash), true, &mut Vec::new());
    }
    let stripe = &stripe;
    let parts = drawn
        .iter()
        .map(|requests| -> Box<dyn FnOnce(&Barrier) + Send + '_> {
            Box::new(move |barrier| {
                let mut out = Vec::with_capacity(1 << 16);
                barrier.wait();
                for (key, sets) in requests {
                    let key = &keys.keys[*key as usize];
                    carry_out(
                        &mut stripe(key.1).lock().expect("nobody panics"),
                        key,
                        *sets,
                        &mut out,
                    );
                    clear(&mut out);
                }
            })
        });
    time(drawn.iter().map(Vec::len).sum(), parts.collect())
}

/// Replies are as if they were sent from time to time.
fn clear(out: &mut Vec<u8>) {
    if out.len() > 1 << 15 {
        std::hint::black_box(&*out);
        out.clear();
    }
}

fn filled(keys: &Keys) -> Vec<Keyspace> {
    let mut shards: Vec<Keyspace> = (0..THREADS).map(|_| keyspace()).collect();
    for (index, key) in keys.keys.iter().enumerate() {
        carry_out(&mut shards[keys.shard(index as u32)], key, true, &mut Vec::new());
    }
    shards
}

fn steered(keys: &Keys, drawn: &[Requests]) -> f64 {
    let mut own: Vec<Requests> = vec![Vec::new(); THREADS];
    for request in drawn.iter().flatten() {
        own[keys.shard(request.0)].push(*request);
    }
    let parts = filled(keys).into_iter().zip(&own).map(
        |(mut keyspace, requests)| -> Box<dyn FnOnce(&Barrier) + Send + '_> {
            Box::new(move |barrier| {
                let mut out = Vec::with_capacity(1 << 16);
                barrier.wait();
                for (key, sets) in requests {
                    carry_out(&mut keyspace, &keys.keys[*key as usize], *sets, &mut out);
                    clear(&mut out);
                }
            })
        },
    );
    time(drawn.iter().map(Vec::len).sum(), parts.collect())
}

/// One thread of the side `lanes`.
struct Steerer<'a> {
    keys: &'a Keys,
    index: usize,
    keyspace: Keyspace,
    requests: Arc<Vec<Vec<Lane>>>,
    replies: Arc<Vec<Vec<Lane>>>,
    messages: Vec<u8>,
    answers: Vec<u8>,
    /// Own requests that were answered elsewhere.
    answered: usize,
}

impl Steerer<'_> {
    /// Carries out what other threads have asked for, and takes their answers.
    fn hear(&mut self) {
        for from in (0..THREADS).filter(|from| *from != self.index) {
            if self.requests[from][self.index].has_some() {
                let mut taken = std::mem::take(&mut self.messages);
                self.requests[from][self.index].take(&mut taken);
                let mut out = Vec::with_capacity(taken.len() * 4);
                for message in taken.chunks_exact(25) {
                    let (key, rest) = message.split_first_chunk::<16>().expect("a whole message");
                    let (hash, sets) = rest.split_first_chunk::<8>().expect("a whole message");
                    let key = (*key, u64::from_le_bytes(*hash));
                    let at = out.len();
                    out.push(0);
                    carry_out(&mut self.keyspace, &key, sets[0] == 1, &mut out);
                    out[at] = (out.len() - at - 1) as u8;
                }
                taken.clear();
                self.messages = taken;
                self.replies[self.index][from].put(&mut out);
            }
            if self.replies[from][self.index].has_some() {
                self.replies[from][self.index].take(&mut self.answers);
                let mut at = 0;
                while at < self.answers.len() {
                    at += 1 + self.answers[at] as usize;
                    self.answered += 1;
                }
                self.answers.clear();
            }
        }
    }

    fn run(mut self, requests: &[(u32, bool)], left: &std::sync::atomic::AtomicUsize) {
        use std::sync::atomic::Ordering;
        let (mut out, mut asked) = (Vec::with_capacity(1 << 16), 0);
        let mut outbox: Vec<Vec<u8>> = vec![Vec::new(); THREADS];
        for round in requests.chunks(ROUND) {
            for (key, sets) in round {
                let entry = &self.keys.keys[*key as usize];
                let to = self.keys.shard(*key);
                if to == self.index {
                    carry_out(&mut self.keyspace, entry, *sets, &mut out);
                    continue;
                }
                asked += 1;
                outbox[to].extend_from_slice(&entry.0);
                outbox[to].extend_from_slice(&entry.1.to_le_bytes());
                outbox[to].push(u8::from(*sets));
            }
            clear(&mut out);
            for (to, bytes) in outbox
                .iter_mut()
                .enumerate()
                .filter(|(_, bytes)| !bytes.is_empty())
            {
                self.requests[self.index][to].put(bytes);
            }
            self.hear();
            // As connections do, clients wait for their replies before they ask for more than two rounds.
            while asked - self.answered > 2 * ROUND {
                self.hear();
                std::hint::spin_loop();
            }
        }
        while self.answered < asked {
            self.hear();
        }
        left.fetch_sub(1, Ordering::AcqRel);
        while left.load(Ordering::Acquire) > 0 {
            self.hear();
            std::hint::spin_loop();
        }
    }
}

fn lanes(keys: &Keys, drawn: &[Requests]) -> f64 {
    let square = || -> Arc<Vec<Vec<Lane>>> {
        let row = || (0..THREADS).map(|_| Lane::new()).collect();
        Arc::new((0..THREADS).map(|_| row()).collect())
    };
    let (requests, replies) = (square(), square());
    let left = std::sync::atomic::AtomicUsize::new(THREADS);
    let left = &left;
    let sides = filled(keys).into_iter().zip(drawn).enumerate();
    let parts = sides.map(
        |(index, (keyspace, own))| -> Box<dyn FnOnce(&Barrier) + Send + '_> {
            let steerer = Steerer {
                keys,
                index,
                keyspace,
                requests: Arc::clone(&requests),
                replies: Arc::clone(&replies),
                messages: Vec::new(),
                answers: Vec::new(),
                answered: 0,
            };
            Box::new(move |barrier| {
                barrier.wait();
                steerer.run(own, left);
            })
        },
    );
    time(drawn.iter().map(Vec::len).sum(), parts.collect())
}

/// Medians of the three sides.
#[derive(Debug, Serialize)]
pub struct Row {
    side: &'static str,
    ns_per_request: f64,
    requests_per_second: f64,
    times_locks: f64,
}

/// A side: its name, and what takes its time.
type Run = (&'static str, fn(&Keys, &[Requests]) -> f64);

/// Runs all sides in turn.
pub fn run(args: &KvArgs) -> anyhow::Result<Vec<Row>> {
    ensure!(
        runtime::cpu::count() >= THREADS,
        "steering needs {THREADS} processors"
    );
    let keys = Keys::new(args.keys);
    let drawn = keys.draw((2_000_000.0 * args.seconds) as usize);
    let sides: [Run; 3] = [("locks", locks), ("steered", steered), ("lanes", lanes)];
    let mut taken = vec![Vec::new(); sides.len()];
    for round in 0..args.rounds {
        for index in 0..sides.len() {
            let index = (index + round) % sides.len();
            taken[index].push((sides[index].1)(&keys, &drawn));
        }
    }
    let medians: Vec<f64> = taken.into_iter().map(median).collect();
    let row = |(side, ns): (&Run, &f64)| Row {
        side: side.0,
        ns_per_request: *ns,
        requests_per_second: 1e9 / ns,
        times_locks: medians[0] / ns,
    };
    Ok(sides.iter().zip(&medians).map(row).collect())
}
