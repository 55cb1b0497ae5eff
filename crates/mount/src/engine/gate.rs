//! Readers find out under the lock of the state where bytes are, and read them without it. The keeper of the tree waits for those that have
//! begun before it uses blocks anew.
//!
//! A reader enters while it has the lock of the state, so it has seen what was published before. A reader waits at the gate only
//! for a keeper that waits for readers, and those wait for nothing but a device.

use os::sync::{PoisonError, RwLock, RwLockReadGuard};

#[derive(Debug, Default)]
pub(crate) struct Gate(RwLock<()>);

impl Gate {
    /// A reader begins. It ends when what it gets is dropped.
    pub fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all readers have ended that have begun.
    pub fn pass(&self) {
        drop(self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
