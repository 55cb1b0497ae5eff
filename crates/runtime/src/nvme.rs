//! The NVMe/TCP target that all cores of a process offer, and its addresses.

use crate::poller::Wake;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use wire::nvme::{Access, Address, Family, Target};

/// A target behind a lock that is taken for control only: connecting, admin commands, and changes of what is offered.
pub struct NvmeTarget {
    target: Mutex<Target>,
    generation: AtomicU64,
    /// The cores whose sessions look at the target again when it has changed.
    cores: Mutex<Vec<Arc<Wake>>>,
}

impl NvmeTarget {
    /// Lets the cores that are started with it offer `target`.
    pub fn new(target: Target) -> Arc<Self> {
        Arc::new(Self {
            generation: AtomicU64::new(target.generation()),
            target: Mutex::new(target),
            cores: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn add_core(&self, wake: Arc<Wake>) {
        self.cores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(wake);
    }
}

impl Access for NvmeTarget {
    fn with(&self, f: &mut dyn FnMut(&mut Target)) {
        // A panic of another core in here is a bug that ends the process; until then the others go on.
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut target);
        let generation = target.generation();
        if generation != self.generation.load(Relaxed) {
            self.generation.store(generation, Release);
            for core in &*self.cores.lock().unwrap_or_else(PoisonError::into_inner) {
                core.wake();
            }
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }
}

impl std::fmt::Debug for NvmeTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeTarget").finish_non_exhaustive()
    }
}

/// An address as the discovery log says it.
pub fn nvme_address(address: SocketAddr) -> Address {
    Address {
        family: match address {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        },
        host: address.ip().to_string(),
        port: address.port(),
    }
}
