//! A rack's volumes as NVMe subsystems: one per volume, changed with it.

use rack::registry::{Snapshot, VolumeRecord};
use runtime::NvmeTarget;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::nvme::{Access, Subsystem, Target, TargetOptions};

/// What a gateway offers to NVMe/TCP hosts, and where, if it does.
#[derive(Clone, Debug, Default)]
pub struct Offer(Option<(SocketAddr, Arc<NvmeTarget>)>);

/// A volume's subsystem.
fn subsystem(record: &VolumeRecord) -> Subsystem {
    Subsystem {
        read_only: record.read_only,
        ..Subsystem::new(&record.name, record.volume(), record.size_bytes)
    }
}

impl Offer {
    /// Of the volumes there are; `None` for nothing.
    pub fn new(address: Option<SocketAddr>, snapshot: &Snapshot) -> Self {
        Self(address.map(|address| {
            let offer = (address, NvmeTarget::new(Target::new(TargetOptions::default())));
            let this = Self(Some(offer.clone()));
            for record in snapshot.volumes.iter().filter(|record| record.ready) {
                this.add(record);
            }
            offer
        }))
    }

    /// For the gateway's core.
    pub fn listen(&self) -> Option<(SocketAddr, Arc<NvmeTarget>)> {
        self.0.clone()
    }

    fn change(&self, mut f: impl FnMut(&mut Target)) {
        if let Some((_, target)) = &self.0 {
            target.with(&mut f);
        }
    }

    /// The gateway listens here: hosts are told so by discovery.
    pub fn listening(&self, address: Option<SocketAddr>) {
        let addresses: Vec<_> = address.into_iter().map(runtime::nvme_address).collect();
        self.change(|target| target.set_addresses(addresses.clone()));
    }

    /// A volume is ready.
    pub fn add(&self, record: &VolumeRecord) {
        // It may be there already; the registry's names, and the sizes it has checked, are good ones.
        self.change(|target| {
            let _ = target.add(subsystem(record));
        });
    }

    /// A volume has grown.
    pub fn resize(&self, record: &VolumeRecord) {
        self.change(|target| {
            let _ = target.resize(&subsystem(record).nqn, record.size_bytes);
        });
    }

    /// A volume goes: its hosts are disconnected.
    pub fn remove(&self, record: &VolumeRecord) {
        self.change(|target| {
            let _ = target.remove(&subsystem(record).nqn);
        });
    }

    /// A volume's name among NVMe subsystems, if it is offered.
    pub fn nqn(&self, record: &VolumeRecord) -> Option<String> {
        self.0.as_ref().map(|_| subsystem(record).nqn)
    }
}
