//! A call that finds no room waits for it, but not for ever.

use super::{Engine, Failure};
use fs::errno::Errno;

/// Commits that a call waits for, at most: each two of them give the tree and the log what a digest has freed. Others may take that before the
/// call comes, and again the next time; a call that is unlucky so often is told that the devices are full.
const COMMITS_MAX: u64 = 16;

/// What a call has waited for.
#[derive(Debug, Default)]
pub struct Patience {
    /// Commits when it found no room first.
    since: Option<u64>,
}

impl Patience {
    /// True if waiting may help against a refusal.
    pub fn may_wait(failure: &Failure) -> bool {
        matches!(failure, Failure::Busy | Failure::Stalled)
    }

    /// Waits, if that may help: then the call is to be tried again.
    ///
    /// # Errors
    /// How the call has failed.
    pub fn wait(&mut self, engine: &Engine, failure: Failure) -> Result<(), Failure> {
        if !Self::may_wait(&failure) {
            return Err(failure);
        }
        let commits = engine.wait_for_room();
        if failure == Failure::Stalled && commits >= *self.since.get_or_insert(commits) + COMMITS_MAX {
            return Err(Errno::NoSpace.into());
        }
        Ok(())
    }
}
