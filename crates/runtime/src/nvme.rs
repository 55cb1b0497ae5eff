//! The NVMe/TCP target that all cores of a process offer, and its addresses.
//!
//! # Why every core sees a change
//! A change is made under the target's lock, and in the same locked step the new generation is stored and each core is
//! woken. A core asks for the generation in each turn, and sleeps only between two turns ([`Offers::have_changed`]): it sees
//! the new generation before it sleeps, or is woken from its sleep. Then its sessions look at the target, under its lock.
//!
//! Orderings: a session that reads an old generation works as if the change came later, which it may: nobody has been told
//! that the change holds for this session. A reservation that must hold sets up a fence, and its host is told only after every
//! session has passed it. To pass it a session takes the lock, after which no read gives an older generation.

use super::sync::Ordering::{Relaxed, Release};
use super::sync::{Arc, AtomicU64, Mutex, PoisonError, Wake};
use std::mem::replace;
use std::net::SocketAddr;
use wire::Protocol;
use wire::nvme::{Access, Address, Target};

/// A target behind a lock that is taken for control only: connecting, admin commands, and changes of what is offered.
pub struct NvmeTarget {
    target: Mutex<Target>,
    generation: AtomicU64,
    /// The cores whose sessions look at the target again when it has changed.
    cores: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
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
                core();
            }
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    fn watch(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.push(wake);
    }
}

impl std::fmt::Debug for NvmeTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeTarget").finish_non_exhaustive()
    }
}

/// The protocols that a core's clients speak.
#[derive(Default)]
pub(crate) struct Offers {
    protocols: Vec<Arc<dyn Protocol>>,
    /// Their generations, together, that the core's sessions have been told of.
    seen: u64,
}

impl Offers {
    /// Offers one more protocol, which wakes the core by `wake` when what it offers changes.
    pub fn add(&mut self, protocol: Arc<dyn Protocol>, wake: Arc<Wake>) {
        protocol.watch(Box::new(move || wake.wake()));
        self.protocols.push(protocol);
    }

    /// True if something offered has changed since the last call. All sessions are to be ticked then.
    pub fn have_changed(&mut self) -> bool {
        let generation = self.protocols.iter().map(|protocol| protocol.generation()).sum();
        replace(&mut self.seen, generation) != generation
    }
}

/// An address as the discovery log says it.
pub fn nvme_address(address: SocketAddr) -> Address {
    Address::new(address.ip(), address.port())
}
