//! What all cores of a process offer: the NVMe/TCP target with its addresses, and whom NBD clients are to ask instead.
//!
//! # Why every core sees a change
//! A change is made under the lock of what changes ([`Watched`]), and in the same locked step the new generation is stored and each core is
//! woken. A core asks for the generation in each turn, and sleeps only between two turns ([`Offers::have_changed`]): it sees
//! the new generation before it sleeps, or is woken from its sleep. Then its sessions look again, under the lock.
//!
//! Orderings: a session that reads an old generation works as if the change came later, which it may: nobody has been told
//! that the change holds for this session. A reservation that must hold sets up a fence, and its host is told only after every
//! session has passed it. To pass it a session takes the lock, after which no read gives an older generation.

use super::sync::Ordering::{Relaxed, Release};
use super::sync::{Arc, AtomicU64, Mutex, PoisonError, Wake};
use base::VolumeId;
use std::mem::replace;
use std::net::SocketAddr;
use wire::Protocol;
use wire::nbd::Whereabouts;
use wire::nvme::{Access, Address, Target};

/// A value that the sessions of all cores look at again when it has changed.
struct Watched<T> {
    value: Mutex<T>,
    generation: AtomicU64,
    /// The cores whose sessions look again.
    cores: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl<T> Watched<T> {
    fn new(value: T, generation: u64) -> Self {
        Self {
            value: Mutex::new(value),
            generation: AtomicU64::new(generation),
            cores: Mutex::new(Vec::new()),
        }
    }

    /// Looks at the value, or changes it: `f` tells the generation that it has then.
    fn with(&self, f: impl FnOnce(&mut T) -> u64) {
        // A panic of another core in here is a bug that ends the process; until then the others go on.
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = f(&mut value);
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

/// A target behind a lock that is taken for control only: connecting, admin commands, and changes of what is offered.
pub struct NvmeTarget(Watched<Target>);

impl NvmeTarget {
    /// Lets the cores that are started with it offer `target`.
    pub fn new(target: Target) -> Arc<Self> {
        let generation = target.generation();
        Arc::new(Self(Watched::new(target, generation)))
    }
}

impl Access for NvmeTarget {
    fn with(&self, f: &mut dyn FnMut(&mut Target)) {
        self.0.with(|target| {
            f(target);
            target.generation()
        });
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn watch(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.watch(wake);
    }
}

/// A volume that another server may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Its number.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// Another server has taken it; else one will soon.
    pub is_elsewhere: bool,
    /// Who has it, for its clients: one sentence.
    pub direction: String,
}

/// The volumes of a rack that are not served here, as NBD sessions see them. The lock is taken in handshakes and after
/// changes.
pub struct NbdOthers(Watched<(u64, Vec<Away>)>);

impl NbdOthers {
    /// Nothing is known of others.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Watched::new((0, Vec::new()), 0)))
    }

    /// These are not served here from now on; clients of one that is elsewhere are hung up.
    pub fn set(&self, volumes: Vec<Away>) {
        self.0.with(|(generation, known)| {
            if *known != volumes {
                *known = volumes;
                *generation += 1;
            }
            *generation
        });
    }

    fn find<R>(&self, is_it: impl Fn(&Away) -> bool, f: impl FnOnce(&Away) -> R) -> Option<R> {
        let mut found = None;
        self.0.with(|(generation, known)| {
            found = known.iter().find(|away| is_it(away)).map(f);
            *generation
        });
        found
    }
}

impl Whereabouts for NbdOthers {
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn watch(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.watch(wake);
    }

    fn is_elsewhere(&self, volume: VolumeId) -> bool {
        self.find(|away| away.volume == volume, |away| away.is_elsewhere) == Some(true)
    }

    fn direction(&self, name: &str) -> Option<String> {
        self.find(|away| away.name == name, |away| away.direction.clone())
    }
}

impl std::fmt::Debug for NbdOthers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdOthers").finish_non_exhaustive()
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
