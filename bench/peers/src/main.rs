//! Durable inserts into other engines: one JSON row per engine, as `switchyard bench store` reads them.
//!
//! Every engine makes each insert durable before it returns:
//!
//! - LMDB without NOSYNC flags;
//! - redb with `Durability::Immediate`;
//! - fjall with `PersistMode::SyncData` after each insert;
//! - sled with `flush` after each insert, and an fdatasync of its file, because `flush` is sync_file_range(2) and leaves the
//!   data in the device's cache;
//! - RocksDB with `sync` writes;
//! - SQLite in WAL mode with `synchronous=FULL`.
//!
//! Each insert is a transaction of its own, as for a program whose threads do not know of each other. Keys and values are
//! those of `switchyard bench store`.
//!
//! With `--plan` it is one engine's process of `switchyard bench store --reads`: `reads` has how each engine is set up for that.

#[path = "../../../crates/switchyard/src/bench/reads/drive.rs"]
mod drive;
mod reads;
mod rocksdb;

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// LMDB's map, and room enough for any run.
const MAP_BYTES: usize = 8 << 30;

/// Inserts one key durably.
type Insert = Box<dyn FnMut(&[u8], &[u8]) -> anyhow::Result<()> + Send>;

struct Args {
    dir: PathBuf,
    threads: usize,
    bytes: usize,
    seconds: f64,
    engines: Vec<String>,
    /// Reads instead (`reads`).
    plan: Option<String>,
}

fn args() -> anyhow::Result<Args> {
    let mut args = Args {
        dir: ".".into(),
        threads: 1,
        bytes: 1024,
        seconds: 2.0,
        engines: ["lmdb", "redb", "fjall", "sled", "rocksdb", "sqlite"]
            .map(String::from)
            .to_vec(),
        plan: None,
    };
    let mut all = std::env::args().skip(1);
    while let Some(flag) = all.next() {
        let value = all.next().with_context(|| format!("{flag} wants a value"))?;
        match flag.as_str() {
            "--plan" => args.plan = Some(value),
            "--dir" => args.dir = value.into(),
            "--threads" => args.threads = value.parse()?,
            "--bytes" => args.bytes = value.parse()?,
            "--seconds" => args.seconds = value.parse()?,
            "--engines" => args.engines = value.split(',').map(String::from).collect(),
            _ => bail!("unknown flag {flag}"),
        }
    }
    Ok(args)
}

fn main() -> anyhow::Result<()> {
    let args = args()?;
    if let Some(plan) = &args.plan {
        return reads::run(plan);
    }
    for engine in &args.engines {
        let dir = args
            .dir
            .join(format!("switchyard-peers-{}-{engine}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let result = measure(engine, &dir, &args);
        std::fs::remove_dir_all(&dir)?;
        println!("{}", result.with_context(|| engine.clone())?);
    }
    Ok(())
}

fn measure(engine: &str, dir: &Path, args: &Args) -> anyhow::Result<serde_json::Value> {
    let inserts = open(engine, dir, args)?;
    let barrier = Arc::new(Barrier::new(args.threads));
    let time = Duration::from_secs_f64(args.seconds);
    let value = vec![0x5a; args.bytes];
    let handles: Vec<_> = inserts
        .into_iter()
        .enumerate()
        .map(|(thread, insert)| {
            let (barrier, value) = (Arc::clone(&barrier), value.clone());
            std::thread::spawn(move || drive(thread, insert, &barrier, &value, time))
        })
        .collect();
    let mut all = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    let mut seconds: f64 = 0.0;
    for handle in handles {
        let (latency, elapsed) = handle.join().expect("it does not panic")?;
        all.add(latency)?;
        seconds = seconds.max(elapsed);
    }
    let us = |quantile| all.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(serde_json::json!({
        "system": engine, "threads": args.threads, "per_second": all.len() as f64 / seconds,
        "p50_us": us(0.5), "p99_us": us(0.99),
    }))
}

fn drive(
    thread: usize,
    mut insert: Insert,
    barrier: &Barrier,
    value: &[u8],
    time: Duration,
) -> anyhow::Result<(Histogram<u64>, f64)> {
    let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    barrier.wait();
    let start = Instant::now();
    let (mut before, mut count) = (start, 0);
    while before - start < time {
        insert(&key(thread, count), value)?;
        let now = Instant::now();
        latency.saturating_record((now - before).as_nanos() as u64);
        (before, count) = (now, count + 1);
    }
    Ok((latency, (before - start).as_secs_f64()))
}

/// Sixteen bytes, new each time, in no order.
fn key(thread: usize, count: u64) -> [u8; 16] {
    let mut key = [0; 16];
    let scattered = (count << 8 | thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[..8].copy_from_slice(&scattered.to_be_bytes());
    key[8..].copy_from_slice(&count.to_be_bytes());
    key
}

/// The engine's way to insert, one for each thread.
fn open(engine: &str, dir: &Path, args: &Args) -> anyhow::Result<Vec<Insert>> {
    let threads = args.threads;
    match engine {
        "lmdb" => lmdb(dir, threads),
        "redb" => redb(dir, threads),
        "fjall" => fjall(dir, threads),
        "sled" => sled(dir, threads),
        "rocksdb" => rocksdb(dir, threads),
        "sqlite" => (0..threads)
            .map(|thread| sqlite(dir, thread, args.bytes))
            .collect(),
        _ => bail!("no such engine"),
    }
}

fn lmdb(dir: &Path, threads: usize) -> anyhow::Result<Vec<Insert>> {
    use heed::types::Bytes;
    // SAFETY: nobody else opens or changes the files of this run's own directory.
    let env = unsafe {
        heed::EnvOpenOptions::new()
            .map_size(MAP_BYTES)
            .max_dbs(1)
            .open(dir)?
    };
    let mut transaction = env.write_txn()?;
    let database: heed::Database<Bytes, Bytes> = env.create_database(&mut transaction, None)?;
    transaction.commit()?;
    let insert = |_| -> Insert {
        let env = env.clone();
        Box::new(move |key, value| {
            let mut transaction = env.write_txn()?;
            database.put(&mut transaction, key, value)?;
            Ok(transaction.commit()?)
        })
    };
    Ok((0..threads).map(insert).collect())
}

fn redb(dir: &Path, threads: usize) -> anyhow::Result<Vec<Insert>> {
    const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("it");
    let database = Arc::new(redb::Database::create(dir.join("it.redb"))?);
    let insert = |_| -> Insert {
        let database = Arc::clone(&database);
        Box::new(move |key, value| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(redb::Durability::Immediate)?;
            transaction.open_table(TABLE)?.insert(key, value)?;
            Ok(transaction.commit()?)
        })
    };
    Ok((0..threads).map(insert).collect())
}

fn fjall(dir: &Path, threads: usize) -> anyhow::Result<Vec<Insert>> {
    let database = fjall::Database::builder(dir).open()?;
    let keyspace = database.keyspace("it", fjall::KeyspaceCreateOptions::default)?;
    let insert = |_| -> Insert {
        let (database, keyspace) = (database.clone(), keyspace.clone());
        Box::new(move |key, value| {
            keyspace.insert(key, value)?;
            Ok(database.persist(fjall::PersistMode::SyncData)?)
        })
    };
    Ok((0..threads).map(insert).collect())
}

fn rocksdb(dir: &Path, threads: usize) -> anyhow::Result<Vec<Insert>> {
    let database = rocksdb::Database::create(dir)?;
    let insert = |_| -> Insert {
        let database = Arc::clone(&database);
        Box::new(move |key, value| database.put(key, value))
    };
    Ok((0..threads).map(insert).collect())
}

fn sled(dir: &Path, threads: usize) -> anyhow::Result<Vec<Insert>> {
    let database = sled::open(dir)?;
    let file = Arc::new(std::fs::File::open(dir.join("db"))?);
    let insert = |_| -> Insert {
        let (database, file) = (database.clone(), Arc::clone(&file));
        Box::new(move |key, value| {
            database.insert(key, value)?;
            database.flush()?;
            Ok(file.sync_data()?)
        })
    };
    Ok((0..threads).map(insert).collect())
}

/// The table of keys and values, in a new file. Rows lie in the order of keys, in pages so large that a row is whole in one: SQLite puts
/// what is longer than a quarter of a page into pages of its own (https://www.sqlite.org/fileformat2.html, 1.6; withoutrowid.html).
fn sqlite_table(file: &Path, value_bytes: usize) -> anyhow::Result<()> {
    const KEY_AND_HEADER_BYTES: usize = 32;
    let fits = |page: &usize| (page - 12) * 64 / 255 - 23 >= value_bytes + KEY_AND_HEADER_BYTES;
    let page = (12..16).map(|bits| 1 << bits).find(fits).unwrap_or(1 << 16);
    let connection = rusqlite::Connection::open(file)?;
    connection.pragma_update(None, "page_size", page as i64)?;
    Ok(connection.execute_batch("CREATE TABLE it (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")?)
}

/// A connection for each thread; who finds the database locked waits.
fn sqlite(dir: &Path, thread: usize, value_bytes: usize) -> anyhow::Result<Insert> {
    let file = dir.join("it.sqlite");
    if thread == 0 {
        sqlite_table(&file, value_bytes)?;
    }
    let connection = rusqlite::Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(Box::new(move |key, value| {
        let mut statement = connection.prepare_cached("INSERT INTO it VALUES (?1, ?2)")?;
        statement.execute((key, value))?;
        Ok(())
    }))
}
