//! What a gateway offers to clients: a rack's volumes as NVMe subsystems, one per volume, changed with it; and NBD clients of
//! volumes that another gateway serves are told of that one.

use base::VolumeId;
use rack::registry::{Snapshot, VolumeRecord};
use runtime::{Away, Listen, NbdOthers, NvmeTarget};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::nbd::Nbd;
use wire::nvme::{self, Access, AnaState, Nvme, Subsystem, Target, TargetOptions};

/// What a gateway offers to its clients.
#[derive(Clone, Debug)]
pub struct Offer {
    /// To NVMe/TCP hosts, and where, if it does.
    nvme: Option<(SocketAddr, Arc<NvmeTarget>)>,
    /// What NBD clients find elsewhere.
    away: Arc<NbdOthers>,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            nvme: None,
            away: NbdOthers::new(),
        }
    }
}

/// The ANA group of every volume: a subsystem has one volume, and its state is its own.
const GROUP: u32 = 1;

/// A volume's subsystem.
fn subsystem(snapshot: &Snapshot, record: &VolumeRecord) -> Subsystem {
    let identity = snapshot.uuid_of(record).into_bytes();
    Subsystem {
        read_only: record.read_only,
        ana_group: GROUP,
        ..Subsystem::new(&record.name, record.volume(), record.size_bytes, identity)
    }
}

impl Offer {
    /// Of nothing before the operator tells what to [`follow`](Offer::follow); `None` offers nothing at all.
    pub fn new(address: Option<SocketAddr>, options: TargetOptions) -> Self {
        Self {
            nvme: address.map(|address| (address, NvmeTarget::new(Target::new(options)))),
            ..Self::default()
        }
    }

    /// Offers the volumes that the registry has: the path is optimized to those that this gateway serves, and inaccessible
    /// to the rest. Refers to other gateways. Hosts are told of changes.
    pub fn follow(
        &self,
        snapshot: &Snapshot,
        serves: &BTreeSet<VolumeId>,
        (others, away): (&[SocketAddr], Vec<Away>),
    ) {
        self.away.set(away);
        let ready = || snapshot.served();
        let state = |volume: VolumeId| match serves.contains(&volume) {
            true => AnaState::Optimized,
            false => AnaState::Inaccessible,
        };
        let referrals: Vec<_> = others.iter().copied().map(runtime::nvme_address).collect();
        self.change(|target| {
            let offered: Vec<Subsystem> = target.subsystems().cloned().collect();
            for old in &offered {
                // They are there, and the registry's sizes were checked.
                let _ = match ready().find(|record| record.volume() == old.volume) {
                    None => target.remove(&old.nqn),
                    Some(record) if record.size_bytes != old.size_bytes => {
                        target.resize(&old.nqn, record.size_bytes)
                    }
                    Some(_) => Ok(()),
                };
                let _ = target.set_state(&old.nqn, state(old.volume));
            }
            for record in ready().filter(|record| offered.iter().all(|old| old.volume != record.volume())) {
                let _ = target.add(Subsystem {
                    ana_state: state(record.volume()),
                    ..subsystem(snapshot, record)
                });
            }
            if target.referrals() != referrals {
                target.set_referrals(referrals.clone());
            }
        });
    }

    /// For the gateway's core, whose NBD clients connect at `nbd`. A rack's volumes cannot be reserved.
    pub fn listen(&self, nbd: SocketAddr) -> Vec<Listen> {
        let nvme = self.nvme.iter();
        let nvme = nvme.map(|(address, target)| Listen::tcp(*address, Nvme::new(target.clone())));
        [Listen::tcp(nbd, Nbd::among(self.away.clone()))]
            .into_iter()
            .chain(nvme)
            .collect()
    }

    fn change(&self, mut f: impl FnMut(&mut Target)) {
        if let Some((_, target)) = &self.nvme {
            target.with(&mut f);
        }
    }

    /// The gateway listens here: hosts are told so by discovery.
    pub fn listening(&self, address: Option<SocketAddr>) {
        let addresses: Vec<_> = address.into_iter().map(runtime::nvme_address).collect();
        self.change(|target| target.set_addresses(addresses.clone()));
    }

    /// A volume's name among NVMe subsystems, if it is offered.
    pub fn nqn(&self, record: &VolumeRecord) -> Option<String> {
        self.nvme.as_ref().map(|_| nvme::nqn_of(&record.name))
    }
}
