//! The control plane of one process: the cores that run here, which hosts they have, and the registry. Everything the
//! control API and the metrics know comes from here.
//!
//! Invariants: changes of volumes are made one at a time (the registry's lock is held for a whole change, and an exchange
//! of vSSDs holds it for each of its steps); a host is
//! only touched on its own core, through [`runtime::CoreHandle::call`].

mod exchange;
mod lead;
mod nvme;
mod observe;
mod volumes;

pub use exchange::load_decided;
pub use lead::{Follower, cntlids, enter};
pub use nvme::Offer;
pub use observe::{core as core_counters, stages_of};
pub use volumes::open_registered;

use crate::control::api;
use base::{Instant, NodeId};
use host::{Gateway, Node, Tor};
use rack::exchange::ExchangeError;
use rack::placement::{Isolation, PlacementError};
use rack::registry::{Durability, Registry, RegistryError};
use runtime::{CoreHandle, Stopped};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use thiserror::Error;

/// Where a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Index of its core.
    pub core: usize,
    /// Its place on the core.
    pub host: usize,
}

/// What a process is told about itself.
#[derive(Clone, Debug)]
pub struct About {
    /// The command that started it.
    pub role: &'static str,
    /// Where it keeps its files.
    pub dir: Option<PathBuf>,
    /// Name of the timing profile.
    pub timing: String,
    /// Copies of a volume if a request does not say.
    pub replicas: u8,
    /// Acknowledgement of writes if a request does not say.
    pub durability: Durability,
    /// Isolation of a volume's vSSDs if a request does not say.
    pub isolation: Isolation,
}

/// One process's part of the rack.
pub struct Plane {
    /// What this is.
    pub about: About,
    cores: Vec<CoreHandle>,
    tor: Option<At>,
    gateway: Option<At>,
    nodes: Vec<(NodeId, At)>,
    registry: Option<Mutex<Box<dyn Registry + Send>>>,
    nvme: Offer,
    follower: lead::Kept,
    started: std::time::Instant,
    /// Work that takes long is broken off.
    pub stopping: AtomicBool,
}

/// Why the control plane did not do what it was asked.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such volume.
    #[error("there is no volume `{0}`: `switchyard volume list` names those there are")]
    Unknown(String),
    /// The name is taken.
    #[error("a volume `{0}` exists already: choose another name or delete it first")]
    Exists(String),
    /// It does not fit.
    #[error(transparent)]
    NoRoom(#[from] PlacementError),
    /// Two vSSDs cannot exchange their places.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A node refused or did not answer.
    #[error("{0}")]
    Failed(String),
    /// The registry refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The process is stopping, or a core has died.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// This process has no gateway.
    #[error("this part of the rack has no gateway: ask the one that has, with --control")]
    NoGateway,
}

/// The pieces of a [`Plane`].
pub struct Parts {
    /// Running cores.
    pub cores: Vec<CoreHandle>,
    /// Where the ToR is, if here.
    pub tor: Option<At>,
    /// Where the gateway is, if here.
    pub gateway: Option<At>,
    /// Where the nodes are that are here.
    pub nodes: Vec<(NodeId, At)>,
    /// The volumes' records; needed with a gateway.
    pub registry: Option<Box<dyn Registry + Send>>,
    /// What NVMe/TCP hosts are offered.
    pub nvme: Offer,
    /// The gateway shares its registry with others.
    pub follower: Option<Follower>,
}

impl Plane {
    /// Of running cores.
    pub fn new(about: About, parts: Parts) -> Self {
        if let Some(at) = parts.gateway {
            parts.nvme.listening(parts.cores[at.core].nvme_address(at.host));
        }
        Self {
            about,
            cores: parts.cores,
            tor: parts.tor,
            gateway: parts.gateway,
            nodes: parts.nodes,
            registry: parts.registry.map(Mutex::new),
            nvme: parts.nvme,
            follower: parts.follower.map(Mutex::new),
            started: std::time::Instant::now(),
            stopping: AtomicBool::new(false),
        }
    }

    fn call<H: 'static, R: Send + 'static>(
        &self,
        at: At,
        f: impl FnOnce(&mut H, Instant) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        self.cores[at.core].call(at.host, move |host, now| {
            let host = host.as_any_mut().downcast_mut::<H>();
            f(
                host.expect("a place names a host of the kind it was recorded with"),
                now,
            )
        })
    }

    /// Calls into the gateway.
    pub fn gateway<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Gateway, Instant) -> R + Send + 'static,
    ) -> Result<R, Refusal> {
        let at = self.gateway.ok_or(Refusal::NoGateway)?;
        Ok(self.call(at, f)?)
    }

    /// Calls into the ToR, if it is here.
    pub fn tor<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Tor, Instant) -> R + Send + 'static,
    ) -> Result<Option<R>, Stopped> {
        self.tor.map(|at| self.call(at, f)).transpose()
    }

    /// Calls into a node that is here.
    pub fn node<R: Send + 'static>(
        &self,
        id: NodeId,
        f: impl FnOnce(&mut Node, Instant) -> R + Send + 'static,
    ) -> Result<Option<R>, Stopped> {
        let at = self.nodes.iter().find(|(node, _)| *node == id).map(|(_, at)| *at);
        at.map(|at| self.call(at, f)).transpose()
    }

    /// The nodes that are here.
    pub fn local_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|(node, _)| *node)
    }

    /// Counters of the cores.
    pub fn core_stats(&self) -> impl Iterator<Item = runtime::Stats> {
        self.cores.iter().map(CoreHandle::stats)
    }

    /// False when a core has died of a bug.
    pub fn is_running(&self) -> bool {
        self.cores.iter().all(CoreHandle::is_running)
    }

    /// Where NBD clients connect.
    pub fn nbd_address(&self) -> Option<SocketAddr> {
        let at = self.gateway?;
        self.cores[at.core].nbd_addresses(at.host).first().copied()
    }

    /// Where clients find a volume.
    pub fn uri(&self, volume: &str) -> String {
        match self.nbd_address() {
            Some(address) => format!("nbd://{address}/{volume}"),
            None => String::new(),
        }
    }

    /// A clean stop: what clients were told is written back, nodes end with checkpoints, then every core ends. The flag
    /// says whether that was done in time; whatever was acknowledged before a FLUSH is durable either way.
    pub fn stop(self) -> Result<bool, Stopped> {
        self.send_away();
        let clean = self.drain()?;
        // Without it another gateway takes over all the same, later.
        let _ = self.give_lead_back();
        for core in self.cores {
            core.stop()?;
        }
        Ok(clean)
    }

    /// Flushes every volume, lets requests in flight end, and has the nodes write back and make their checkpoints.
    fn drain(&self) -> Result<bool, Stopped> {
        use std::time::{Duration, Instant};
        let until = Instant::now() + Duration::from_secs(10);
        let wait = |done: &dyn Fn() -> Result<bool, Stopped>| {
            while !done()? {
                if Instant::now() >= until {
                    return Ok(false);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(true)
        };
        let mut clean = true;
        if let Some(at) = self.gateway {
            self.call(at, volumes::flush_and_close)?;
            clean &= wait(&|| self.call(at, |gateway: &mut Gateway, _| gateway.in_flight() == 0))?;
        }
        for &(_, at) in &self.nodes {
            self.call(at, |node: &mut Node, now| node.drain(now))?;
        }
        for &(_, at) in &self.nodes {
            clean &= wait(&|| self.call(at, |node: &mut Node, _| node.is_quiet()))?;
        }
        Ok(clean)
    }

    fn uptime_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Everything there is to see.
    pub fn status(&self) -> Result<api::Status, Refusal> {
        observe::status(self)
    }
}
