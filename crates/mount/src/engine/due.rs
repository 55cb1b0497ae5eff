//! When a log is digested.

use std::time::Duration;

/// Parts in 100 of a log from which on it is digested (Strata §3.3).
pub(super) const DIGEST_PERCENT: u64 = 30;
/// A log in which nothing has happened for so long is digested, however little it has: so it costs no time after a cut.
pub(super) const IDLE: Duration = Duration::from_secs(2);
