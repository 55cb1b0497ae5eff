//! The engines of `switchyard bench store --reads`.
//!
//! Each gets the plan's memory as its cache, as its documentation says to set it:
//!
//! - redb: `set_cache_size`;
//! - fjall: `cache_size`, which has its filters and indexes, too. It is told that keys which are asked for are there;
//! - sled: `cache_capacity`. Its table of pages is in memory beside it;
//! - RocksDB: a block cache that holds indexes and filters, too, filters of ten bits a key, direct I/O, no compression, as the
//!   values are random bytes;
//! - SQLite: WAL, `synchronous=FULL`, and a share of the cache for each connection (`cache_size`). If all data fit, it maps the file
//!   (`mmap_size`): a mapping of more than memory makes the kernel read 128 KiB for each page that is missed. Pages are so large that a row
//!   is whole in one: 4 KiB for values of 100 bytes, 8 KiB for those of 1 KiB;
//! - LMDB: its map, so the page cache is the cache. It reads nothing ahead (MDB_NORDAHEAD) if memory is less than the data.
//!
//! The page cache is bounded by the process's control group. An engine with transactions reads [`READS_OF_TRANSACTION`] times in
//! each, except beside writes.

use crate::drive::{self, Engine, Key, Plan, READS_OF_TRANSACTION, Session};
use crate::rocksdb::{Database, with_jemalloc};
use anyhow::{Context, bail};
use redb::ReadableDatabase;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Of fjall's buffer of writes.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Batches of a load of redb between two that are durable.
const DURABLE_BATCHES: u32 = 20;

/// Runs one engine by a plan.
pub fn run(text: &str) -> anyhow::Result<()> {
    let plan = Plan::enter(text)?;
    if plan.system == "rocksdb" {
        with_jemalloc()?;
    }
    match plan.system.as_str() {
        "lmdb" => drive::run(&plan, &Lmdb::open(&plan)?)?,
        "redb" => Redb::open(&plan)?.run(&plan)?,
        "fjall" => drive::run(&plan, &Fjall::open(&plan)?)?,
        "sled" => drive::run(&plan, &Sled::open(&plan)?)?,
        "rocksdb" => drive::run(
            &plan,
            &Rocks(Database::cached(&plan.dir, plan.cache_bytes as usize)?),
        )?,
        "sqlite" => drive::run(&plan, &Sqlite::open(&plan)?)?,
        _ => bail!("no such engine"),
    }
    if plan.load {
        drive::sync_files(&plan.dir)?;
    }
    Ok(())
}

/// Bytes of keys and values.
fn data_bytes(plan: &Plan) -> u64 {
    plan.keys * (plan.bytes as u64 + 16)
}

struct Lmdb {
    env: heed::Env,
    database: heed::Database<heed::types::Bytes, heed::types::Bytes>,
}

impl Lmdb {
    fn open(plan: &Plan) -> anyhow::Result<Self> {
        let mut options = heed::EnvOpenOptions::new();
        options
            .map_size((8 * data_bytes(plan) as usize + (1 << 30)) / 4096 * 4096)
            .max_dbs(1);
        let mut flags = heed::EnvFlags::empty();
        flags.set(heed::EnvFlags::NO_SYNC, plan.load);
        flags.set(heed::EnvFlags::NO_READ_AHEAD, plan.cache_bytes < data_bytes(plan));
        // SAFETY: nobody else has the files. A load that is cut off counts for nothing.
        let env = unsafe { options.flags(flags).open(&plan.dir)? };
        let mut transaction = env.write_txn()?;
        let database = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, database })
    }
}

impl Engine for Lmdb {
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>> {
        let (reading, reads) = (None, 0);
        Ok(Box::new(LmdbSession {
            it: self,
            reading,
            reads,
        }))
    }

    fn settle(&self) -> anyhow::Result<()> {
        Ok(self.env.force_sync()?)
    }
}

struct LmdbSession<'a> {
    it: &'a Lmdb,
    reading: Option<heed::RoTxn<'a, heed::WithTls>>,
    reads: u32,
}

impl<'a> LmdbSession<'a> {
    fn transaction(&mut self) -> anyhow::Result<&heed::RoTxn<'a, heed::WithTls>> {
        self.reads += 1;
        if self.reading.is_none() || self.reads % READS_OF_TRANSACTION == 0 {
            self.reading = None;
            self.reading = Some(self.it.env.read_txn()?);
        }
        self.reading.as_ref().context("begun above")
    }
}

impl Session for LmdbSession<'_> {
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()> {
        let mut transaction = self.it.env.write_txn()?;
        for (key, value) in entries {
            self.it.database.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        let database = self.it.database;
        if let Some(value) = database.get(self.transaction()?, key)? {
            found(value);
        }
        Ok(())
    }

    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        let database = self.it.database;
        let bounds = (Bound::Included(&key[..]), Bound::Unbounded);
        for entry in database.range(self.transaction()?, &bounds)?.take(count) {
            let (key, value) = entry?;
            found(key, value);
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()> {
        self.reading = None;
        let mut transaction = self.it.env.write_txn()?;
        self.it.database.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }
}

const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("it");

struct Redb(redb::Database);

impl Redb {
    fn open(plan: &Plan) -> anyhow::Result<Self> {
        let mut builder = redb::Database::builder();
        builder.set_cache_size(plan.cache_bytes as usize);
        let database = builder.create(plan.dir.join("it.redb"))?;
        let transaction = database.begin_write()?;
        transaction.open_table(TABLE)?;
        transaction.commit()?;
        Ok(Self(database))
    }

    /// Nothing is compacted after a load: `compact` makes the file smaller, not faster, and of ten million values of 1 KiB it did not end
    /// within half an hour.
    fn run(self, plan: &Plan) -> anyhow::Result<()> {
        drive::run(plan, &self)
    }
}

impl Engine for Redb {
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>> {
        let (reading, reads, batches) = (None, 0, 0);
        Ok(Box::new(RedbSession {
            it: self,
            reading,
            reads,
            batches,
        }))
    }

    fn settle(&self) -> anyhow::Result<()> {
        Ok(self.0.begin_write()?.commit()?)
    }
}

struct RedbSession<'a> {
    it: &'a Redb,
    reading: Option<redb::ReadOnlyTable<&'static [u8], &'static [u8]>>,
    reads: u32,
    batches: u32,
}

impl RedbSession<'_> {
    fn table(&mut self) -> anyhow::Result<&redb::ReadOnlyTable<&'static [u8], &'static [u8]>> {
        self.reads += 1;
        if self.reading.is_none() || self.reads % READS_OF_TRANSACTION == 0 {
            self.reading = None;
            self.reading = Some(self.it.0.begin_read()?.open_table(TABLE)?);
        }
        self.reading.as_ref().context("opened above")
    }
}

impl Session for RedbSession<'_> {
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()> {
        self.batches += 1;
        let mut transaction = self.it.0.begin_write()?;
        transaction.set_durability(match self.batches % DURABLE_BATCHES {
            0 => redb::Durability::Immediate,
            _ => redb::Durability::None,
        })?;
        let mut table = transaction.open_table(TABLE)?;
        for (key, value) in entries {
            table.insert(&key[..], &value[..])?;
        }
        drop(table);
        Ok(transaction.commit()?)
    }

    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        if let Some(value) = self.table()?.get(&key[..])? {
            found(value.value());
        }
        Ok(())
    }

    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        for entry in self.table()?.range(&key[..]..)?.take(count) {
            let (key, value) = entry?;
            found(key.value(), value.value());
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()> {
        self.reading = None;
        let mut transaction = self.it.0.begin_write()?;
        transaction.set_durability(redb::Durability::Immediate)?;
        transaction.open_table(TABLE)?.insert(&key[..], value)?;
        Ok(transaction.commit()?)
    }
}

struct Fjall {
    database: fjall::Database,
    keyspace: fjall::Keyspace,
}

impl Fjall {
    fn open(plan: &Plan) -> anyhow::Result<Self> {
        let database = fjall::Database::builder(&plan.dir)
            .cache_size(plan.cache_bytes)
            .open()?;
        let options = || {
            fjall::KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .expect_point_read_hits(true)
        };
        let keyspace = database.keyspace("it", options)?;
        Ok(Self { database, keyspace })
    }
}

impl Engine for Fjall {
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession(self)))
    }

    fn settle(&self) -> anyhow::Result<()> {
        self.database.persist(fjall::PersistMode::SyncAll)?;
        self.keyspace.rotate_memtable_and_wait()?;
        // A compaction begins some time after the one before it.
        let mut quiet = 0;
        while quiet < 20 {
            quiet = if self.database.active_compactions() == 0 {
                quiet + 1
            } else {
                0
            };
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

struct FjallSession<'a>(&'a Fjall);

impl Session for FjallSession<'_> {
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()> {
        let mut batch = self.0.database.batch();
        for (key, value) in entries {
            batch.insert(&self.0.keyspace, &key[..], &value[..]);
        }
        Ok(batch.commit()?)
    }

    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        if let Some(value) = self.0.keyspace.get(key)? {
            found(&value);
        }
        Ok(())
    }

    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        for entry in self.0.keyspace.range(&key[..]..).take(count) {
            let (key, value) = entry.into_inner()?;
            found(&key, &value);
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()> {
        self.0.keyspace.insert(&key[..], value)?;
        Ok(self.0.database.persist(fjall::PersistMode::SyncData)?)
    }
}

struct Sled {
    database: sled::Db,
    file: std::fs::File,
}

impl Sled {
    fn open(plan: &Plan) -> anyhow::Result<Self> {
        let config = sled::Config::new()
            .path(&plan.dir)
            .cache_capacity(plan.cache_bytes);
        let database = config.open()?;
        let file = std::fs::File::open(plan.dir.join("db"))?;
        Ok(Self { database, file })
    }
}

impl Engine for Sled {
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>> {
        Ok(Box::new(SledSession(self)))
    }

    fn settle(&self) -> anyhow::Result<()> {
        self.database.flush()?;
        Ok(self.file.sync_data()?)
    }
}

struct SledSession<'a>(&'a Sled);

impl Session for SledSession<'_> {
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in entries {
            batch.insert(&key[..], &value[..]);
        }
        Ok(self.0.database.apply_batch(batch)?)
    }

    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        if let Some(value) = self.0.database.get(key)? {
            found(&value);
        }
        Ok(())
    }

    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        for entry in self.0.database.range(&key[..]..).take(count) {
            let (key, value) = entry?;
            found(&key, &value);
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()> {
        self.0.database.insert(key, value)?;
        self.0.database.flush()?;
        Ok(self.0.file.sync_data()?)
    }
}

struct Rocks(Arc<Database>);

impl Engine for Rocks {
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksSession(&self.0)))
    }

    fn settle(&self) -> anyhow::Result<()> {
        self.0.settle()
    }
}

struct RocksSession<'a>(&'a Database);

impl Session for RocksSession<'_> {
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()> {
        self.0.load(entries)
    }

    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        self.0.get(key, found)
    }

    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        self.0.range(key, count, found)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()> {
        self.0.put(key, value)
    }
}

struct Sqlite(Plan);

impl Sqlite {
    fn open(plan: &Plan) -> anyhow::Result<Self> {
        let it = Self(plan.clone());
        if plan.load {
            crate::sqlite_table(&it.file(), plan.bytes)?;
        }
        Ok(it)
    }

    fn file(&self) -> PathBuf {
        self.0.dir.join("it.sqlite")
    }

    fn connect(&self) -> anyhow::Result<rusqlite::Connection> {
        let connection = rusqlite::Connection::open(self.file())?;
        connection.busy_timeout(Duration::from_secs(60))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", if self.0.load { "OFF" } else { "FULL" })?;
        let connections = self.0.threads.iter().copied().max().unwrap_or(1) as u64;
        if self.0.cache_bytes < data_bytes(&self.0) {
            let kib = (self.0.cache_bytes / connections / 1024) as i64;
            connection.pragma_update(None, "cache_size", -kib)?;
        } else {
            connection.pragma_update(None, "mmap_size", i64::MAX)?;
        }
        Ok(connection)
    }
}

impl Engine for Sqlite {
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>> {
        let (connection, is_reading, reads) = (self.connect()?, false, 0);
        Ok(Box::new(SqliteSession {
            connection,
            is_reading,
            reads,
        }))
    }

    fn settle(&self) -> anyhow::Result<()> {
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        Ok(self.connect()?.query_row(checkpoint, (), |_| Ok(()))?)
    }
}

struct SqliteSession {
    connection: rusqlite::Connection,
    is_reading: bool,
    reads: u32,
}

impl SqliteSession {
    fn execute(&self, text: &str) -> anyhow::Result<()> {
        self.connection.prepare_cached(text)?.execute(())?;
        Ok(())
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        self.reads += 1;
        if self.is_reading && self.reads % READS_OF_TRANSACTION == 0 {
            self.end()?;
        }
        if !self.is_reading {
            self.execute("BEGIN")?;
            self.is_reading = true;
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_reading) {
            self.execute("COMMIT")?;
        }
        Ok(())
    }
}

impl Session for SqliteSession {
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()> {
        self.execute("BEGIN IMMEDIATE")?;
        let mut statement = self.connection.prepare_cached("INSERT INTO it VALUES (?1, ?2)")?;
        for (key, value) in entries {
            statement.execute((&key[..], &value[..]))?;
        }
        drop(statement);
        self.execute("COMMIT")
    }

    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        self.begin()?;
        let mut statement = self
            .connection
            .prepare_cached("SELECT value FROM it WHERE key = ?1")?;
        let mut rows = statement.query((&key[..],))?;
        if let Some(row) = rows.next()? {
            found(row.get_ref(0)?.as_blob()?);
        }
        Ok(())
    }

    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        self.begin()?;
        let text = "SELECT key, value FROM it WHERE key >= ?1 ORDER BY key LIMIT ?2";
        let mut statement = self.connection.prepare_cached(text)?;
        let mut rows = statement.query((&key[..], count as i64))?;
        while let Some(row) = rows.next()? {
            found(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()> {
        self.end()?;
        let text = "INSERT INTO it VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
        self.connection.prepare_cached(text)?.execute((&key[..], value))?;
        Ok(())
    }
}
