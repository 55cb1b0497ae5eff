//! RocksDB through its C interface (`rocksdb/c.h`), from the system's library: Debian's librocksdb-dev.

use anyhow::{Context, bail};
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::Arc;

/// Something of RocksDB's, behind a pointer.
type Opaque = *mut c_void;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> Opaque;
    fn rocksdb_options_set_create_if_missing(options: Opaque, yes: c_uchar);
    fn rocksdb_options_destroy(options: Opaque);
    fn rocksdb_open(options: Opaque, name: *const c_char, error: *mut *mut c_char) -> Opaque;
    fn rocksdb_close(database: Opaque);
    fn rocksdb_writeoptions_create() -> Opaque;
    fn rocksdb_writeoptions_set_sync(options: Opaque, yes: c_uchar);
    fn rocksdb_writeoptions_destroy(options: Opaque);
    fn rocksdb_put(
        database: Opaque,
        options: Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_free(data: *mut c_void);
    fn rocksdb_options_set_block_based_table_factory(options: Opaque, table: Opaque);
    fn rocksdb_options_set_use_direct_reads(options: Opaque, yes: c_uchar);
    fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(options: Opaque, yes: c_uchar);
    fn rocksdb_options_set_write_buffer_size(options: Opaque, bytes: usize);
    fn rocksdb_options_set_compression(options: Opaque, kind: c_int);
    fn rocksdb_block_based_options_create() -> Opaque;
    fn rocksdb_block_based_options_destroy(table: Opaque);
    fn rocksdb_block_based_options_set_block_cache(table: Opaque, cache: Opaque);
    fn rocksdb_block_based_options_set_filter_policy(table: Opaque, policy: Opaque);
    fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(table: Opaque, yes: c_uchar);
    fn rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table: Opaque, yes: c_uchar);
    fn rocksdb_cache_create_lru(bytes: usize) -> Opaque;
    fn rocksdb_cache_destroy(cache: Opaque);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> Opaque;
    fn rocksdb_writeoptions_disable_WAL(options: Opaque, disable: c_int);
    fn rocksdb_readoptions_create() -> Opaque;
    fn rocksdb_readoptions_destroy(options: Opaque);
    fn rocksdb_writebatch_create() -> Opaque;
    fn rocksdb_writebatch_put(
        batch: Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
    fn rocksdb_writebatch_destroy(batch: Opaque);
    fn rocksdb_write(database: Opaque, options: Opaque, batch: Opaque, error: *mut *mut c_char);
    fn rocksdb_flushoptions_create() -> Opaque;
    fn rocksdb_flushoptions_destroy(options: Opaque);
    fn rocksdb_flush(database: Opaque, options: Opaque, error: *mut *mut c_char);
    fn rocksdb_property_int(database: Opaque, name: *const c_char, value: *mut u64) -> c_int;
    fn rocksdb_get_pinned(
        database: Opaque,
        options: Opaque,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> Opaque;
    fn rocksdb_pinnableslice_value(slice: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Opaque);
    fn rocksdb_create_iterator(database: Opaque, options: Opaque) -> Opaque;
    fn rocksdb_iter_seek(iterator: Opaque, key: *const c_char, key_bytes: usize);
    fn rocksdb_iter_next(iterator: Opaque);
    fn rocksdb_iter_valid(iterator: Opaque) -> c_uchar;
    fn rocksdb_iter_key(iterator: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: Opaque, error: *mut *mut c_char);
    fn rocksdb_iter_destroy(iterator: Opaque);
}

/// Debian's libjemalloc2.
const JEMALLOC: &str = "libjemalloc.so.2";
/// Of a write buffer, of which there are two.
const WRITE_BUFFER_BYTES: usize = 16 << 20;
/// A filter of so many bits a key misses one key in a hundred.
const FILTER_BITS: f64 = 10.0;

/// Starts this program again with jemalloc, unless it runs with it. With the C library's allocator RocksDB outgrows a bound on its
/// memory, by what it has freed in pieces; its own documentation advises jemalloc.
pub fn with_jemalloc() -> anyhow::Result<()> {
    const PRELOAD: &str = "LD_PRELOAD";
    if std::env::var_os(PRELOAD).is_some_and(|it| it == JEMALLOC) {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe()?);
    let failure = again
        .args(std::env::args_os().skip(1))
        .env(PRELOAD, JEMALLOC)
        .exec();
    Err(failure).context("this program could not be started again")
}

/// An open database that syncs its log with each write.
pub struct Database {
    database: Opaque,
    synced: Opaque,
    reads: Opaque,
}

// SAFETY: RocksDB's databases and options are used by many threads at once.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

/// An error that RocksDB handed out, if it did.
fn check(error: *mut c_char) -> anyhow::Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a string of RocksDB's, which is ours to free.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above, and not used any more.
    unsafe { rocksdb_free(error.cast()) };
    bail!(text)
}

impl Database {
    /// A new one in `dir`.
    pub fn create(dir: &Path) -> anyhow::Result<Arc<Self>> {
        Self::open(dir, |_| {})
    }

    /// One whose blocks, indexes and filters take `cache_bytes`, and which reads past the page cache.
    pub fn cached(dir: &Path, cache_bytes: usize) -> anyhow::Result<Arc<Self>> {
        // SAFETY: the calls' contracts are those of c.h. Options and tables hold references to what is set in them; the table
        // owns the policy.
        Self::open(dir, |options| unsafe {
            let (table, cache) = (
                rocksdb_block_based_options_create(),
                rocksdb_cache_create_lru(cache_bytes),
            );
            rocksdb_block_based_options_set_block_cache(table, cache);
            let filter = rocksdb_filterpolicy_create_bloom_full(FILTER_BITS);
            rocksdb_block_based_options_set_filter_policy(table, filter);
            rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
            rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
            rocksdb_options_set_block_based_table_factory(options, table);
            rocksdb_options_set_use_direct_reads(options, 1);
            rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
            rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES);
            rocksdb_options_set_compression(options, 0);
            rocksdb_cache_destroy(cache);
            rocksdb_block_based_options_destroy(table);
        })
    }

    fn open(dir: &Path, set: impl FnOnce(Opaque)) -> anyhow::Result<Arc<Self>> {
        let name = CString::new(dir.to_string_lossy().as_bytes())?;
        let mut error = ptr::null_mut();
        // SAFETY: the calls' contracts are those of c.h; what is created is destroyed once, here or by `drop`.
        let (database, synced, reads) = unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            set(options);
            let database = rocksdb_open(options, name.as_ptr(), &mut error);
            rocksdb_options_destroy(options);
            check(error)?;
            let synced = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(synced, 1);
            (database, synced, rocksdb_readoptions_create())
        };
        Ok(Arc::new(Self {
            database,
            synced,
            reads,
        }))
    }

    /// Writes entries that the next flush makes durable.
    pub fn load(&self, entries: &[([u8; 16], Vec<u8>)]) -> anyhow::Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: what is created is destroyed here, and the slices are borrowed for the calls.
        unsafe {
            let (options, batch) = (rocksdb_writeoptions_create(), rocksdb_writebatch_create());
            rocksdb_writeoptions_disable_WAL(options, 1);
            for (key, value) in entries {
                let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
                rocksdb_writebatch_put(batch, key_at, key.len(), value_at, value.len());
            }
            rocksdb_write(self.database, options, batch, &mut error);
            rocksdb_writebatch_destroy(batch);
            rocksdb_writeoptions_destroy(options);
        }
        check(error)
    }

    /// Flushes, and waits until nothing is compacted any more.
    pub fn settle(&self) -> anyhow::Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: what is created is destroyed here.
        unsafe {
            let options = rocksdb_flushoptions_create();
            rocksdb_flush(self.database, options, &mut error);
            rocksdb_flushoptions_destroy(options);
        }
        check(error)?;
        let is_at_work = |name: &CStr| {
            let mut value = 0;
            // SAFETY: the database is open, and the name ends with a zero.
            let known = unsafe { rocksdb_property_int(self.database, name.as_ptr(), &mut value) } == 0;
            known && value > 0
        };
        let works = [
            c"rocksdb.num-running-compactions",
            c"rocksdb.compaction-pending",
            c"rocksdb.num-running-flushes",
        ];
        while works.iter().any(|name| is_at_work(name)) {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Ok(())
    }

    /// Hands the value of a key to `found`, if it has one.
    pub fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        let (mut error, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: the slice is RocksDB's until it is destroyed.
        unsafe {
            let key_at = key.as_ptr().cast();
            let slice = rocksdb_get_pinned(self.database, self.reads, key_at, key.len(), &mut error);
            check(error)?;
            if !slice.is_null() {
                let value = rocksdb_pinnableslice_value(slice, &mut bytes);
                found(std::slice::from_raw_parts(value.cast(), bytes));
                rocksdb_pinnableslice_destroy(slice);
            }
        }
        Ok(())
    }

    /// Hands `count` entries from `key` on to `found`.
    pub fn range(&self, key: &[u8], count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        let mut error = ptr::null_mut();
        let (mut key_bytes, mut value_bytes) = (0, 0);
        // SAFETY: key and value are RocksDB's until the next step of the iterator, which is destroyed here.
        unsafe {
            let iterator = rocksdb_create_iterator(self.database, self.reads);
            rocksdb_iter_seek(iterator, key.as_ptr().cast(), key.len());
            for _ in 0..count {
                if rocksdb_iter_valid(iterator) == 0 {
                    break;
                }
                let key = rocksdb_iter_key(iterator, &mut key_bytes).cast();
                let value = rocksdb_iter_value(iterator, &mut value_bytes).cast();
                let key = std::slice::from_raw_parts(key, key_bytes);
                found(key, std::slice::from_raw_parts(value, value_bytes));
                rocksdb_iter_next(iterator);
            }
            rocksdb_iter_get_error(iterator, &mut error);
            rocksdb_iter_destroy(iterator);
        }
        check(error)
    }

    /// Sets the value of a key, durably.
    pub fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: both are open, and the slices are borrowed for the call.
        unsafe {
            rocksdb_put(
                self.database,
                self.synced,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &mut error,
            );
        }
        check(error)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: created by `create`, and nobody uses them any more.
        unsafe {
            rocksdb_writeoptions_destroy(self.synced);
            rocksdb_readoptions_destroy(self.reads);
            rocksdb_close(self.database);
        }
    }
}
