//! What all threads of an engine have.

use super::digester::Keeper;
use super::failure::Mode;
use super::gate::Gate;
use super::state::Locked;
use crate::media::Disks;
use fs::media::Volume;
use os::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct SharedOptions {
    pub mode: Mode,
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
}

pub(crate) struct Shared {
    pub options: SharedOptions,
    pub disks: Disks,
    pub volume: Volume,
    pub is_immediate: bool,
    pub locked: Locked,
    pub gate: Arc<Gate>,
    pub keeper: Mutex<Keeper>,
}

impl Shared {
    pub fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
