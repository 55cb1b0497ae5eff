//! What a target's core needs to hand connections to the others.

use crate::command::Sibling;
use base::Duration;
use blockswitch::AppId;
use host::target::{Homes, Relocation};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A target's core as one that connections move from and to.
pub(crate) struct Steering {
    pub homes: Arc<Mutex<Homes>>,
    /// Which core this is.
    pub core: usize,
    /// All cores of the target, this one included.
    pub siblings: Vec<Sibling>,
    pub orders: Vec<Relocation>,
}

impl Steering {
    pub fn new(homes: Arc<Mutex<Homes>>, core: usize, siblings: Vec<Sibling>) -> Self {
        Self {
            homes,
            core,
            siblings,
            orders: Vec::new(),
        }
    }

    /// The homes, behind their lock.
    pub fn homes(&self) -> MutexGuard<'_, Homes> {
        // A panic of another core in here is a bug that ends the process; until then the others go on.
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the core says what its connections do.
    pub fn interval(&self) -> Option<Duration> {
        self.homes().interval()
    }

    /// The core of a client that has just come, if that is another one.
    pub fn next_place(&self) -> Option<&Sibling> {
        let place = self.homes().next_place();
        (place != self.core).then(|| &self.siblings[place])
    }

    /// A connection comes to this core, if it has room.
    pub fn enter(&self) -> Option<AppId> {
        self.homes().join(self.core)
    }

    /// A connection of this core has ended.
    pub fn leave(&self, app: AppId) {
        self.homes().leave(self.core, app);
    }
}
