//! A call that finds no room waits for it, but not for ever.

use super::{Engine, Failure};
use fs::errno::Errno;

/// Digests for calls without room that a call waits for, at most: each gives the tree and the log all that there is to be freed. Others may take that before
/// the call comes, and again the next time; a call that is unlucky so often is told that the devices are full. Digests for others do not count: beside many
/// programs there are more of them than calls can wait for.
const DIGESTS_MAX: u64 = 8;

/// What a call has waited for.
#[derive(Debug, Default)]
pub struct Patience {
    /// Digests when it found no room first.
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
        let digests = engine.wait_for_room();
        if failure == Failure::Stalled && digests >= *self.since.get_or_insert(digests) + DIGESTS_MAX {
            return Err(Errno::NoSpace.into());
        }
        Ok(())
    }
}
