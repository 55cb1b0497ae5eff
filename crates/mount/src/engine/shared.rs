//! What all threads of an engine have.

use super::digester::Keeper;
use super::failure::Mode;
use super::gate::Gate;
use super::state::Locked;
use super::tiering::{Migration, Migrator};
use crate::media::Disks;
use fs::media::Volume;
use os::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) struct SharedOptions {
    pub mode: Mode,
    pub migrates_every: Option<Duration>,
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
    /// None if all devices are of one tier.
    pub migrator: Option<Mutex<Migrator>>,
    pub migration: Mutex<Migration>,
}

impl Shared {
    /// What has moved; a lock for a moment.
    pub fn migration(&self) -> MutexGuard<'_, Migration> {
        self.migration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
