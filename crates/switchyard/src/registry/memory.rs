//! A registry in memory.

use rack::registry::{Registry, RegistryError, Snapshot};
use std::sync::Mutex;
use uuid::Uuid;

/// A registry that ends with the process, for racks whose media do so too.
#[derive(Debug)]
pub struct MemoryRegistry(Mutex<Snapshot>);

impl MemoryRegistry {
    /// Of a new rack.
    pub fn new() -> Self {
        Self(Mutex::new(Snapshot {
            rack: Uuid::new_v4(),
            ..Snapshot::default()
        }))
    }
}

impl Registry for MemoryRegistry {
    fn load(&self) -> Result<Snapshot, RegistryError> {
        Ok(self.0.lock().expect("nobody panics with it").clone())
    }

    fn store(&mut self, snapshot: &Snapshot) -> Result<(), RegistryError> {
        let mine = self.0.get_mut().expect("nobody panics with it");
        if mine.epoch != snapshot.epoch {
            return Err(RegistryError::Conflict);
        }
        *mine = snapshot.clone();
        mine.epoch += 1;
        Ok(())
    }
}
