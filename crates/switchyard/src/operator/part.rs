//! One process's part of the rack: its cores, its hosts, and the operator beside a gateway.

use super::cores::{At, Cores};
use super::driver::{Driver, World};
use super::nvme::Offer;
use super::refusal::Refusal;
use base::{Instant, NodeId};
use host::operator::{Command, Done, Role};
use host::{Gateway, Node, Tor};
use rack::heal::Rules;
use rack::level::Levels;
use rack::placement::Isolation;
use rack::registry::{Durability, Registry};
use runtime::{CoreHandle, Stopped};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Nodes write back what clients have not flushed in this time, or leave it.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// Facts of a process about itself.
#[derive(Clone, Debug)]
pub struct About {
    /// The command that started it.
    pub role: &'static str,
    /// Directory of its files.
    pub dir: Option<PathBuf>,
    /// Name of the timing profile.
    pub timing: String,
    /// Copies of a volume if a request does not say.
    pub replicas: u8,
    /// Acknowledgement of writes if a request does not say.
    pub durability: Durability,
    /// Isolation of a volume's vSSDs if a request does not say.
    pub isolation: Isolation,
    /// How sets of volumes are healed.
    pub heal: Rules,
    /// The levels of the rack at which it may serve.
    pub levels: Levels,
}

/// One process's part of the rack.
pub struct Part {
    /// What this is.
    pub about: About,
    cores: Cores,
    tor: Option<At>,
    gateway: Option<At>,
    nodes: Vec<(NodeId, At)>,
    operator: Option<Driver>,
    is_shared: bool,
    pub(super) nvme: Offer,
    started: std::time::Instant,
}

/// The pieces of a [`Part`].
#[derive(Default)]
pub struct Pieces {
    /// Running cores.
    pub cores: Vec<CoreHandle>,
    /// Place of the ToR, if here.
    pub tor: Option<At>,
    /// Place of the gateway, if here.
    pub gateway: Option<At>,
    /// Places of the nodes that are here.
    pub nodes: Vec<(NodeId, At)>,
    /// The volumes' records and how the gateway comes to serve them; needed with a gateway.
    pub records: Option<(Box<dyn Registry + Send>, Role)>,
    /// Offer to NVMe/TCP hosts.
    pub nvme: Offer,
}

impl Part {
    /// Of running cores.
    pub fn new(about: About, pieces: Pieces) -> anyhow::Result<Self> {
        let cores = Cores(Arc::new(pieces.cores));
        let role = pieces.records.as_ref().map(|(_, role)| *role);
        let is_shared = matches!(role, Some(Role::Shared(_)));
        let operator = match (pieces.gateway, pieces.records) {
            (Some(at), Some((registry, role))) => {
                let listening = cores.0[at.core].listening(at.host, wire::nvme::NAME);
                pieces.nvme.listening(listening.first().copied());
                let world = World::new(
                    (role, about.heal, about.levels),
                    (cores.clone(), at),
                    pieces.nvme.clone(),
                );
                Some(Driver::start(world, registry)?)
            }
            _ => None,
        };
        Ok(Self {
            about,
            cores,
            tor: pieces.tor,
            gateway: pieces.gateway,
            nodes: pieces.nodes,
            operator,
            is_shared,
            nvme: pieces.nvme,
            started: std::time::Instant::now(),
        })
    }

    /// Calls into the gateway.
    pub fn gateway<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Gateway, Instant) -> R + Send + 'static,
    ) -> Result<R, Refusal> {
        let at = self.gateway.ok_or(Refusal::NoGateway)?;
        Ok(self.cores.call(at, f)?)
    }

    /// Calls into the ToR, if it is here.
    pub fn tor<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Tor, Instant) -> R + Send + 'static,
    ) -> Result<Option<R>, Stopped> {
        self.tor.map(|at| self.cores.call(at, f)).transpose()
    }

    /// Calls into a node that is here.
    pub fn node<R: Send + 'static>(
        &self,
        id: NodeId,
        f: impl FnOnce(&mut Node, Instant) -> R + Send + 'static,
    ) -> Result<Option<R>, Stopped> {
        let at = self.nodes.iter().find(|(node, _)| *node == id).map(|(_, at)| *at);
        at.map(|at| self.cores.call(at, f)).transpose()
    }

    /// The nodes that are here.
    pub fn local_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|(node, _)| *node)
    }

    /// Counters of the cores.
    pub fn core_stats(&self) -> impl Iterator<Item = runtime::Stats> {
        self.cores.0.iter().map(CoreHandle::stats)
    }

    /// False when a core has died of a bug.
    pub fn is_running(&self) -> bool {
        self.cores.0.iter().all(CoreHandle::is_running)
    }

    /// Where NBD clients connect.
    pub fn nbd_address(&self) -> Option<SocketAddr> {
        let at = self.gateway?;
        self.cores.0[at.core]
            .listening(at.host, wire::nbd::NAME)
            .first()
            .copied()
    }

    /// Where clients find a volume.
    pub fn uri(&self, volume: &str) -> String {
        match self.nbd_address() {
            Some(address) => format!("nbd://{address}/{volume}"),
            None => String::new(),
        }
    }

    /// True if a gateway runs here.
    pub fn has_gateway(&self) -> bool {
        self.gateway.is_some()
    }

    /// True if other gateways may serve the rack's volumes, too.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Has the operator carry a command out.
    pub(super) fn ask(&self, command: Command) -> Result<Done, Refusal> {
        self.operator.as_ref().ok_or(Refusal::NoGateway)?.ask(command)
    }

    /// Begins a clean stop: commands under way are answered, every volume is flushed and closed, and another gateway may
    /// lead. The flag says whether every request was answered in time.
    pub fn stop_serving(&self) -> Result<bool, Stopped> {
        match self.ask(Command::Stop) {
            Ok(Done::Stopped { clean }) => Ok(clean),
            Err(Refusal::Stopped(stopped)) => Err(stopped),
            // There is no gateway.
            _ => Ok(true),
        }
    }

    /// Ends what [`stop_serving`](Part::stop_serving) began: nodes write back and end with checkpoints, then every core
    /// ends. The flag says whether that was done in time; acknowledged data that was flushed is durable either way.
    pub fn stop(self) -> Result<bool, Stopped> {
        drop(self.operator);
        let clean = drain(&self.cores, &self.nodes)?;
        let cores = Arc::into_inner(self.cores.0).expect("the operator's thread has ended");
        for core in cores {
            core.stop()?;
        }
        Ok(clean)
    }

    /// Seconds since the start.
    pub fn uptime_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

/// Has the nodes write back and make their checkpoints.
fn drain(cores: &Cores, nodes: &[(NodeId, At)]) -> Result<bool, Stopped> {
    for &(_, at) in nodes {
        cores.call(at, |node: &mut Node, now| node.drain(now))?;
    }
    let until = std::time::Instant::now() + DRAIN_WITHIN;
    for &(_, at) in nodes {
        while !cores.call(at, |node: &mut Node, _| node.is_quiet())? {
            if std::time::Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(true)
}
