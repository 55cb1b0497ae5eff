//! Load of every core, shared by all of them: atomics, no lock.
//!
//! Work is counted at the core that will do it, steered or not, and taken away exactly once: a [`Charge`] stands for
//! the added work and cannot be copied.
//!
//! If a published algorithm is selected, the published code's own figures are kept beside this, as that code keeps them.
//! Steered requests are left out. Averages have a gain of 1/8 per request and no decay in time. Updates of two cores may
//! overwrite each other.
//!
//! Orderings are relaxed throughout: each figure stands for itself and only guides a choice.

use super::class::Class;
use super::policy::{Balancing, Config};
use super::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The figures of one core, on cache lines of its own (two, as processors fetch them in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Core {
    /// Outstanding, by class.
    requests: [AtomicU64; 2],
    /// Time the core has spent on each class, in ns. Written by the core alone.
    spent_ns: [AtomicU64; 2],
    /// Waiting requests of the current T batch (blk-switch's ranking). Written by the core alone.
    batch: AtomicU32,
    /// The published code's outstanding bytes (`blk_switch_T_bytes`) and averages (`blk_switch_T_metric`).
    published_bytes: [AtomicU64; 2],
    published_mean: [AtomicU64; 2],
}

/// Load of every core.
#[derive(Debug)]
pub struct Loads {
    cores: Box<[Core]>,
    published: bool,
    published_means: bool,
}

/// The load that one request added to a core. To be given back to [`Loads::release`].
#[must_use = "what is charged is released"]
#[derive(Debug, PartialEq, Eq)]
pub struct Charge {
    core: u32,
    bytes: u32,
    class: Class,
    steered: bool,
}

impl Charge {
    /// The core that does the work.
    pub fn core(&self) -> usize {
        self.core as usize
    }

    /// The class it counts for.
    pub fn class(&self) -> Class {
        self.class
    }
}

impl Loads {
    /// Of `cores` cores without load.
    ///
    /// # Panics
    /// If there is no core, or there are more than 64: sets of cores are 64 bits.
    pub fn new(cores: usize, config: &Config) -> Self {
        assert!(
            (1..=64).contains(&cores),
            "between 1 and 64 cores: a set of them is 64 bits"
        );
        let moves_as_published = config.application_steering == Balancing::Published;
        Self {
            cores: (0..cores).map(|_| Core::default()).collect(),
            published: config.request_steering || moves_as_published,
            // The code updates its averages inside application steering only; without it every core seems free of L.
            published_means: moves_as_published,
        }
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Counts a request of an application at home on core `home` which `core` will do.
    pub fn charge(&self, home: usize, core: usize, class: Class, bytes: u32) -> Charge {
        let steered = home != core;
        let at = &self.cores[core];
        at.requests[class.index()].fetch_add(1, Relaxed);
        if self.published {
            self.charge_published(home, class, u64::from(bytes), steered);
        }
        Charge {
            core: core as u32,
            bytes,
            class,
            steered,
        }
    }

    /// The request of `charge` is done.
    pub fn release(&self, charge: Charge) {
        let (core, class) = (&self.cores[charge.core()], charge.class.index());
        let before = core.requests[class].fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "what was charged is released once");
        if self.published && !charge.steered {
            let bytes = u64::from(charge.bytes);
            let left = core.published_bytes[class].load(Relaxed).saturating_sub(bytes);
            core.published_bytes[class].store(left, Relaxed);
        }
    }

    /// `core` has spent `ns` on work of `class`. To be called by that core alone, after each slice. Application
    /// steering of our policy sees only this.
    pub fn spend(&self, core: usize, class: Class, ns: u64) {
        let spent = &self.cores[core].spent_ns[class.index()];
        spent.store(spent.load(Relaxed) + ns, Relaxed);
    }

    /// All time that `core` has spent on `class`, in ns.
    pub fn spent_ns(&self, core: usize, class: Class) -> u64 {
        self.cores[core].spent_ns[class.index()].load(Relaxed)
    }

    /// Outstanding requests of a class at a core.
    pub fn requests(&self, core: usize, class: Class) -> u64 {
        self.cores[core].requests[class.index()].load(Relaxed)
    }

    /// The owner of `core` tells how many requests its current T batch has.
    pub fn set_batch(&self, core: usize, requests: u32) {
        self.cores[core].batch.store(requests, Relaxed);
    }

    /// Requests of the current T batch of `core`.
    pub fn batch(&self, core: usize) -> u32 {
        self.cores[core].batch.load(Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn published_bytes(&self, core: usize, class: Class) -> u64 {
        self.cores[core].published_bytes[class.index()].load(Relaxed)
    }

    /// The published average of outstanding bytes.
    pub fn published_mean(&self, core: usize, class: Class) -> u64 {
        self.cores[core].published_mean[class.index()].load(Relaxed)
    }

    /// The published code forgets a class's average at a core when one of its applications leaves: it means to ask
    /// whether it was the last, but counts devices.
    pub(crate) fn forget_published(&self, core: usize, class: Class) {
        self.cores[core].published_mean[class.index()].store(0, Relaxed);
    }

    /// The published reset after a second without traffic.
    pub(crate) fn reset_published(&self) {
        for core in &self.cores {
            for class in [Class::Latency, Class::Throughput] {
                core.published_bytes[class.index()].store(0, Relaxed);
                core.published_mean[class.index()].store(0, Relaxed);
            }
        }
    }

    /// As `blk_mq_get_request` counts: the average of the application's own core first, then bytes, unless steered.
    fn charge_published(&self, home: usize, class: Class, bytes: u64, steered: bool) {
        let core = &self.cores[home];
        let outstanding = core.published_bytes[class.index()].load(Relaxed);
        if self.published_means {
            let mean = core.published_mean[class.index()].load(Relaxed);
            let sample = outstanding + bytes;
            let next = match mean {
                0 => sample,
                mean => mean - (mean >> 3) + (sample >> 3),
            };
            // The code treats averages below ten bytes as none.
            core.published_mean[class.index()].store(if next < 10 { 0 } else { next }, Relaxed);
        }
        if !steered {
            core.published_bytes[class.index()].store(outstanding + bytes, Relaxed);
        }
    }
}
