//! Which files are followed.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Files that programs append to and sync: Redis' append-only files, SQLite's write-ahead logs, those of LevelDB and
/// RocksDB, which are called by six digits.
pub const DEFAULT_PATTERNS: [&str; 4] = [
    "*.incr.aof",
    "appendonly.aof",
    "*-wal",
    "[0-9][0-9][0-9][0-9][0-9][0-9].log",
];

/// True if one of the patterns (`glob(7)`) matches: a pattern with a slash the whole path, another one the file's name.
pub fn matches(patterns: &[CString], path: &Path) -> bool {
    let c_string = |text: &OsStr| CString::new(text.as_bytes()).ok();
    let whole = c_string(path.as_os_str());
    let name = path.file_name().and_then(c_string);
    patterns.iter().any(|pattern| {
        let text = if pattern.as_bytes().contains(&b'/') {
            &whole
        } else {
            &name
        };
        text.as_ref().is_some_and(|text| {
            // SAFETY: both are strings that end with a zero.
            unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), libc::FNM_PATHNAME) == 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_patterns_are_those_of_redis_sqlite_and_rocksdb() {
        let patterns: Vec<_> = DEFAULT_PATTERNS
            .iter()
            .map(|it| CString::new(*it).expect("no zeros"))
            .collect();
        let is_followed = |path: &str| matches(&patterns, Path::new(path));
        for path in ["/d/appendonly.aof.1.incr.aof", "/d/my.db-wal", "/d/000012.log"] {
            assert!(is_followed(path), "{path}");
        }
        for path in [
            "/d/appendonly.aof.1.base.rdb",
            "/d/my.db",
            "/d/LOG",
            "/d/redis.log",
            "/d-wal/x",
        ] {
            assert!(!is_followed(path), "{path}");
        }
        let whole = [CString::new("/srv/*/journal").expect("no zeros")];
        assert!(matches(&whole, Path::new("/srv/a/journal")));
        assert!(!matches(&whole, Path::new("/srv/a/b/journal")));
    }
}
