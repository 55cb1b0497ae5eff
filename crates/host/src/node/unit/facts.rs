//! Facts of a vSSD that is served: how it is set up, who it is, and its counters.

use base::{Addr, NodeId, VssdId};
use rack::control::Config;
use rack::sched::Policy;
use rack::tor::Registration;

/// How a vSSD is served.
#[derive(Clone, Debug)]
pub struct UnitConfig {
    /// Order of waiting reads and write-backs.
    pub policy: Policy,
    /// Pages of the write cache.
    pub cache_pages: usize,
    /// Reads in the flash at once.
    pub read_depth: usize,
    /// Write-backs in the flash or waiting for it at once.
    pub write_depth: usize,
    /// Reads and write-backs in the flash at once: the rest compete for it in the scheduler.
    pub device_depth: usize,
    /// Write-back starts when the cache is fuller than this.
    pub dirty_ratio_low: f64,
    /// When to collect garbage.
    pub gc: rack::gc::Config,
}

/// Identity and peers of a unit.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The vSSD.
    pub vssd: VssdId,
    /// Its node.
    pub node: NodeId,
    /// The node's address.
    pub addr: Addr,
    /// The ToRs, in the order of [`rack::uplink`].
    pub tors: Vec<Addr>,
    /// A central controller, if there is one.
    pub controller: Option<Addr>,
    /// The node's incarnation.
    pub boot: u32,
    /// It was made in this start of the node.
    pub is_new: bool,
    /// The superblock's facts about it.
    pub config: Config,
}

impl Identity {
    /// The facts that ToRs need.
    pub fn registration(&self) -> Registration {
        let mut replicas = [None; 2];
        for (place, peer) in replicas.iter_mut().zip(&self.config.membership.peers) {
            *place = Some((peer.vssd, peer.addr));
        }
        Registration {
            vssd: self.vssd,
            server: self.addr,
            replicas,
        }
    }
}

/// Counters of a vSSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitStats {
    /// Reads answered.
    pub reads: u64,
    /// Writes and zeroings answered as coordinator.
    pub writes: u64,
    /// Reads answered from the write cache.
    pub cache_hits: u64,
    /// Copies of requests suppressed.
    pub duplicates: u64,
    /// Requests dropped because the backlog was full.
    pub dropped: u64,
    /// Pages found damaged, by clients' reads and by scrubbing.
    pub damaged: u64,
    /// Damaged pages that a peer has sent anew.
    pub repaired: u64,
    /// Pages compared with a peer.
    pub compared: u64,
    /// Pages that a peer had otherwise.
    pub differed: u64,
}
