//! RocksDB through its C interface (`rocksdb/c.h`), from the system's library: Debian's librocksdb-dev.

use anyhow::bail;
use std::ffi::{CStr, CString, c_char, c_uchar, c_void};
use std::path::Path;
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
}

/// An open database that syncs its log with each write.
pub struct Database {
    database: Opaque,
    synced: Opaque,
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
        let name = CString::new(dir.to_string_lossy().as_bytes())?;
        let mut error = ptr::null_mut();
        // SAFETY: the calls' contracts are those of c.h; what is created is destroyed once, here or by `drop`.
        let (database, synced) = unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            let database = rocksdb_open(options, name.as_ptr(), &mut error);
            rocksdb_options_destroy(options);
            check(error)?;
            let synced = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(synced, 1);
            (database, synced)
        };
        Ok(Arc::new(Self { database, synced }))
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
            rocksdb_close(self.database);
        }
    }
}
