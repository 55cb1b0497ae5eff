//! How a file system is opened, and why it refuses a call.

use super::held::Wants;
use fs::errno::Errno;
use os::sync::Arc;
use std::time::Duration;
use thiserror::Error as ErrorOf;

/// Bytes of nodes in memory, of each of the two trees.
const CACHE_BYTES: usize = 64 << 20;

/// Between two looks at what was touched, and what is to move.
const MIGRATES_EVERY: Duration = Duration::from_secs(1);

/// When a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When it is durable.
    Sync,
    /// At once. A cut leaves all calls up to one; a sync waits.
    Ordered,
}

/// How a file system is opened.
#[derive(Clone)]
pub struct Options {
    /// When a call returns. None: `Sync` if device 0 is memory.
    pub mode: Option<Mode>,
    /// Bytes of the log. None: an eighth of device 0, at most 64 MiB.
    pub log_bytes: Option<u64>,
    /// Bytes of nodes in memory, of each of the two trees.
    pub cache_bytes: usize,
    /// Permissions are looked at; not if the kernel has.
    pub checks_permissions: bool,
    /// Open it although acknowledged calls are lost.
    pub despite_damage: bool,
    /// Where devices are of several tiers: between two looks at what is to move. None: data move by [`Engine::migrate`](super::Engine::migrate) only.
    pub migrates_every: Option<Duration>,
    /// Hears of what goes wrong later.
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: None,
            log_bytes: None,
            cache_bytes: CACHE_BYTES,
            checks_permissions: true,
            despite_damage: false,
            migrates_every: Some(MIGRATES_EVERY),
            tell: Arc::new(|_| {}),
        }
    }
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, ErrorOf)]
pub enum Failure {
    /// As Linux calls it.
    #[error("{0}")]
    Posix(#[from] Errno),
    /// The log has no room now: wait ([`Patience`](super::Patience)), and try again.
    #[error("the log has no room now: try again")]
    Busy,
    /// The devices have no room before a digest: wait ([`Patience`](super::Patience)), and try again.
    #[error("there is no room before a digest: try again")]
    Stalled,
    /// Others have leases that the call needs: it is to wait ([`Engine::wait_for_leases`](super::Engine::wait_for_leases)).
    #[error("other processes have leases of what the call needs")]
    Leases(Wants),
    /// No device has so many blocks in a row.
    #[error("no device has room for large data")]
    NoBlocks,
    /// The call is longer than a frame of the log.
    #[error("the call is longer than a frame of the log: divide it")]
    TooLong,
    /// A write of the log has failed.
    #[error("a write of the log failed, and nothing changes any more: look at device 0, and mount again")]
    Log,
    /// A digest has failed.
    #[error("a digest failed, and nothing changes any more: run the check, and mount again")]
    Digest,
    /// A device cannot be read, or is damaged.
    #[error("a device cannot be read, or is damaged: run the check")]
    Read,
}
