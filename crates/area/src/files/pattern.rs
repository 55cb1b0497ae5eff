//! Which files are followed.

use std::ffi::CString;
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

/// True if one of the patterns (`glob(7)`) matches the path, which is absolute and has no part `.`. A pattern that begins with a slash is for
/// the whole path. Any other is for the last parts of the path, as many as the pattern has.
pub fn matches(patterns: &[CString], path: &Path) -> bool {
    let Ok(whole) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let whole = whole.as_bytes_with_nul();
    patterns.iter().any(|pattern| {
        let Some(text) = end_for(pattern.as_bytes(), whole) else {
            return false;
        };
        // SAFETY: both are strings that end with a zero.
        unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr().cast(), libc::FNM_PATHNAME) == 0 }
    })
}

/// The path or its end, with which a pattern is compared. `None` if the path has fewer parts than the pattern.
fn end_for<'a>(pattern: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    if pattern.starts_with(b"/") {
        return Some(path);
    }
    let slashes = pattern.iter().filter(|&&byte| byte == b'/').count();
    let places = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
    let (before, _) = places.into_iter().nth(slashes)?;
    Some(&path[before + 1..])
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

    /// bug: `pg_wal/*` followed nothing, wherever the directory was. cause: a pattern with a slash was compared with the whole path.
    #[test]
    fn a_pattern_without_a_first_slash_is_for_the_last_parts() {
        for (pattern, path, is_followed) in [
            ("pg_wal/*", "/d/pg_wal/0001", true),
            ("*/pg_wal/*", "/a/b/data/pg_wal/0001", true),
            ("*/pg_wal/*", "/data/pg_wal/0001", true),
            ("*/pg_wal/*", "/pg_wal/0001", false),
            ("pg_wal/*", "/d/pg_wal/old/0001", false),
            ("pg_wal/*", "/d/my_pg_wal/0001", false),
            ("wal", "/d/my_wal", false),
            ("*", "/d/wal", true),
            ("/pg_wal/*", "/d/pg_wal/0001", false),
        ] {
            let patterns = [CString::new(pattern).expect("no zeros")];
            assert_eq!(
                matches(&patterns, Path::new(path)),
                is_followed,
                "{pattern} {path}"
            );
        }
    }
}
