//! `switchyard node`, `tor` and `gateway`: one part of a rack per process, so that a rack can span machines.

use crate::config::{Collecting, GcPolicy, Scheduler, Scheduling};
use crate::config::{Config, Options};
use crate::control::server::{self, Server};
use crate::datadir::{self, DataDir};
use crate::failure::Failure;
use crate::launch::{self, Says};
use crate::operator::{About, At, LOOK_EVERY, Offer, Part, Pieces, SILENT_AFTER, cntlids, enter};
use crate::registry::FileRegistry;
use crate::size::Size;
use crate::up::create_demo;
use anyhow::{Context, bail};
use base::{Addr, NodeId};
use clap::Args;
use host::operator::{Role, Shared};
use host::{Gateway, GatewayConfig, Tor, TorConfig};
use rack::registry::{GatewayRecord, NodeRecord, Registry, Snapshot};
use runtime::{CoreConfig, HostSpec, Medium};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::nvme::TargetOptions;

/// `switchyard tor`.
#[derive(Args)]
#[command(after_help = "Example:\n  switchyard tor --listen 10.0.0.1:8888")]
pub struct TorArgs {
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// Serve the control API and /metrics here
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
    /// Print one JSON line when ready
    #[arg(long)]
    pub json: bool,
}

/// `switchyard node`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  switchyard node --id 1 --listen 10.0.0.11:8888 --tor 10.0.0.1:8888 \
    --dir /srv/switchyard --size 64GiB\n\nThe medium is formatted at the first start."
)]
pub struct NodeArgs {
    /// The node's number in the rack, 1 to 255
    #[arg(long, value_name = "N")]
    pub id: u8,
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// The ToR's address
    #[arg(long, value_name = "IP:PORT")]
    pub tor: SocketAddrV4,
    /// Directory of the node's medium and lock [default: $SWITCHYARD_DIR or ./rack-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The medium: a file, a block device, or `memory` [default: node-ID.img in the directory]
    #[arg(long, value_name = "PATH")]
    pub media: Option<String>,
    /// Size of a new medium [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Channels of a new SSD [default: 16]
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Chips behind each channel of a new SSD [default: 1]
    #[arg(long, value_name = "N")]
    pub chips: Option<u32>,
    /// Emulated device time: p-ssd, intel-dc, optane, none, or a profile file [default: none]
    #[arg(long, value_name = "PROFILE")]
    pub timing: Option<String>,
    /// Share of the flash reserved for collection [default: 0.25]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub over_provisioning: Option<f64>,
    /// Scheduler of the reads and write-backs that wait for a vSSD's flash [default: fifo]
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<Scheduler>,
    /// Whether the scheduler orders by end-to-end time or by arrival [default: coordinated]
    #[arg(long, value_name = "POLICY")]
    pub scheduling: Option<Scheduling>,
    /// Reads' latency target (kyber) or expiry (deadline), in µs [default: RackBlox's]
    #[arg(long, value_name = "US")]
    pub read_target_us: Option<u64>,
    /// Write-backs' latency target or expiry, in µs [default: RackBlox's]
    #[arg(long, value_name = "US")]
    pub write_target_us: Option<u64>,
    /// Reads and write-backs in a vSSD's flash at once; the rest wait in the scheduler [default: 128]
    #[arg(long, value_name = "N")]
    pub device_depth: Option<usize>,
    /// Coordinator of garbage collection [default: rack]
    #[arg(long, value_name = "POLICY")]
    pub gc: Option<GcPolicy>,
    /// Effect of collection on other requests [default: preemptible]
    #[arg(long, value_name = "MODE")]
    pub gc_mode: Option<Collecting>,
    /// Payload memory, reserved at start [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<Size>,
    /// Time that the thread polls after work before it sleeps, in µs [default: 50]
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// Seconds until a medium's unanswered operation is given up and the medium takes no more writes [default: 30]
    #[arg(long, value_name = "S")]
    pub media_timeout_s: Option<u64>,
    /// Serve the control API and /metrics here
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
    /// Print one JSON line when ready
    #[arg(long)]
    pub json: bool,
}

impl NodeArgs {
    /// The part of a rack's options that a node has.
    pub fn options(&self) -> Options {
        Options {
            dir: self.dir.clone(),
            size: self.size,
            channels: self.channels,
            chips: self.chips,
            timing: self.timing.clone(),
            over_provisioning: self.over_provisioning,
            scheduler: self.scheduler,
            scheduling: self.scheduling,
            read_target_us: self.read_target_us,
            write_target_us: self.write_target_us,
            device_depth: self.device_depth,
            gc: self.gc,
            gc_mode: self.gc_mode,
            pool: self.pool,
            spin_us: self.spin_us,
            media_timeout_s: self.media_timeout_s,
            ..Options::default()
        }
    }
}

/// `switchyard gateway`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  switchyard gateway --listen 10.0.0.2:8888 --tor 10.0.0.1:8888 \
    --node 1=10.0.0.11:8888 --node 2=10.0.0.12:8888 --nbd 10.0.0.2:10809 --demo 1GiB\n\n\
    The registry remembers nodes. Name a node again only if its address changes."
)]
pub struct GatewayArgs {
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// The ToR's address
    #[arg(long, value_name = "IP:PORT")]
    pub tor: SocketAddrV4,
    /// A storage server; repeat it for each
    #[arg(long = "node", value_name = "ID=IP:PORT", value_parser = parse_node)]
    pub nodes: Vec<(NodeId, Addr)>,
    /// Directory of the registry and lock [default: $SWITCHYARD_DIR or ./rack-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory of a registry that several gateways share; one serves, the others stand by
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
    /// Address for NBD clients [default: 127.0.0.1:10809]
    #[arg(long, value_name = "IP:PORT")]
    pub nbd: Option<SocketAddr>,
    /// Address for NVMe/TCP hosts, such as 10.0.0.2:4420 [default: none]
    #[arg(long, value_name = "IP:PORT")]
    pub nvme: Option<SocketAddr>,
    /// Address for the commands and Prometheus [default: 127.0.0.1:9180]
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
    /// Create the volume `demo` of this size at the first start
    #[arg(long, value_name = "SIZE")]
    pub demo: Option<Size>,
    /// Copies of a volume that `volume create` makes without --replicas [default: 2]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u8>,
    /// Seconds until an unanswered request of a client fails [default: 30]
    #[arg(long, value_name = "S")]
    pub request_timeout_s: Option<u64>,
    /// Print one JSON line when ready
    #[arg(long)]
    pub json: bool,
}

impl GatewayArgs {
    /// The part of a rack's options that a gateway has.
    pub fn options(&self) -> Options {
        Options {
            dir: self.dir.clone(),
            nbd: self.nbd,
            nvme: self.nvme,
            control: self.control,
            demo: self.demo,
            replicas: self.replicas,
            request_timeout_s: self.request_timeout_s,
            ..Options::default()
        }
    }
}

const FIRST: At = At { core: 0, host: 0 };

/// An address as other hosts reach it: a real IP and port.
fn reachable(flag: &str, address: SocketAddrV4) -> anyhow::Result<Addr> {
    if *address.ip() == Ipv4Addr::UNSPECIFIED || address.port() == 0 {
        bail!(Failure::Usage(format!(
            "--{flag} {address}: other parts must reach this address: name this machine's own IPv4 address and a port"
        )));
    }
    Ok(Addr::new(address.ip().octets(), address.port()))
}

fn about(role: &'static str, dir: Option<PathBuf>, config: &Config) -> About {
    About {
        role,
        dir,
        timing: config.timing.name.clone(),
        replicas: config.replicas,
        durability: config.durability,
        isolation: config.isolation,
    }
}

/// Control server of a part, if it is to have one.
fn serve_control(control: Option<SocketAddr>, part: &Arc<Part>) -> anyhow::Result<Option<Server>> {
    control
        .map(|address| Server::start(server::bind(address)?, Arc::clone(part)))
        .transpose()
}

fn ready(part: &str, address: Addr, server: Option<&Server>, says: &Says) {
    let control = server.map(|server| format!("http://{}", server.address()));
    if says.json {
        let metrics = control.as_ref().map(|control| format!("{control}/metrics"));
        let line = serde_json::json!({
            "part": part, "address": address.to_string(), "control": control, "metrics": metrics,
            "pid": std::process::id(),
        });
        println!("{line}");
    } else {
        println!(
            "{part} ready at {address}/udp{}",
            control.map(|url| format!(", control {url}")).unwrap_or_default()
        );
    }
    crate::out::flush();
}

/// `switchyard tor`.
pub fn tor(args: TorArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    let signals = launch::signals()?;
    let addr = reachable("listen", args.listen)?;
    let config = Config::new(Options::default())?;
    let spec = HostSpec {
        bind: Some(args.listen),
        medium: None,
        build: Box::new(move |_| {
            let config = TorConfig {
                addr,
                gc_lease: rack::gc::TOR_LEASE,
                egress: None,
            };
            Ok(Box::new(Tor::new(config)))
        }),
        nbd: Vec::new(),
        nvme: None,
    };
    let core = CoreConfig {
        ..CoreConfig::with(config.pool_pages, config.spin)
    };
    let cores = vec![launch::start_core(core, vec![spec], &["the ToR".into()])?];
    let pieces = Pieces {
        cores,
        tor: Some(FIRST),
        gateway: None,
        nodes: Vec::new(),
        records: None,
        nvme: Offer::default(),
    };
    signals.serving();
    let part = Arc::new(Part::new(about("tor", None, &config), pieces)?);
    let server = serve_control(args.control, &part)?;
    ready("tor", addr, server.as_ref(), &says);
    launch::serve(part, server, &signals, &says)
}

/// `switchyard node`.
pub fn node(args: NodeArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    let signals = launch::signals()?;
    if args.id == 0 {
        bail!(Failure::Usage("--id takes 1 to 255, not 0".into()));
    }
    let (addr, tor) = (reachable("listen", args.listen)?, reachable("tor", args.tor)?);
    // One node: its vSSDs share the whole pool.
    let options = Options {
        nodes: Some(1),
        replicas: Some(1),
        ..args.options()
    };
    let config = Config::new(options)?;
    if config.central().is_some() {
        bail!(Failure::Usage(
            "--gc controller works in `switchyard up` only: choose rack or none".into()
        ));
    }
    let id = NodeId(args.id);
    let (medium, dir, _lock) = node_medium(&args, &config, &says)?;
    if let Some(warning) = medium.warning() {
        says.note(&format!("node {}: {warning}", id.0));
    }
    let spec = launch::node_spec(config.node(id, addr, tor), medium);
    let cores = vec![launch::start_core(
        config.core(0),
        vec![spec],
        &[format!("node {}", id.0)],
    )?];
    let pieces = Pieces {
        cores,
        tor: None,
        gateway: None,
        nodes: vec![(id, FIRST)],
        records: None,
        nvme: Offer::default(),
    };
    signals.serving();
    let part = Arc::new(Part::new(about("node", dir, &config), pieces)?);
    launch::print_recovery(&part, &says)?;
    let server = serve_control(args.control, &part)?;
    ready(&format!("node {}", id.0), addr, server.as_ref(), &says);
    launch::serve(part, server, &signals, &says)
}

type NodeMedium = (Medium, Option<PathBuf>, Option<DataDir>);

/// `memory`, a named file or device, or `node-N.img` in the node's directory.
fn node_medium(args: &NodeArgs, config: &Config, says: &Says) -> anyhow::Result<NodeMedium> {
    let note = |made: bool, path: &Path| {
        if made {
            says.note(&format!("node {}: formatted {}", args.id, path.display()));
        }
    };
    match args.media.as_deref() {
        Some("memory") => {
            let mut medium = Medium::memory(config.media_bytes)?;
            datadir::format(&mut medium, config.shape)?;
            Ok((medium, None, None))
        }
        Some(path) => {
            let path = Path::new(path);
            let (medium, made) = datadir::open_named(path, config.media_bytes, config.shape)?;
            note(made, path);
            Ok((medium, Some(path.to_owned()), None))
        }
        None => {
            let dir = DataDir::lock(&config.dir)?;
            let path = dir.medium_path(args.id);
            let (medium, made) = datadir::open_file(&path, config.media_bytes, config.shape)?;
            note(made, &path);
            Ok((medium, Some(dir.path().to_owned()), Some(dir)))
        }
    }
}

/// `ID=IP:PORT`.
pub fn parse_node(text: &str) -> Result<(NodeId, Addr), String> {
    let remedy =
        || format!("`{text}` is not a node: write its number and address, for example 1=10.0.0.11:8888");
    let (id, address) = text.split_once('=').ok_or_else(remedy)?;
    let id = id.parse().ok().filter(|&id| id > 0).ok_or_else(remedy)?;
    let address: SocketAddrV4 = address.parse().map_err(|_| remedy())?;
    if *address.ip() == Ipv4Addr::UNSPECIFIED || address.port() == 0 {
        return Err(remedy());
    }
    Ok((NodeId(id), Addr::new(address.ip().octets(), address.port())))
}

/// `switchyard gateway`.
pub fn gateway(args: GatewayArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    let signals = launch::signals()?;
    let (addr, tor) = (reachable("listen", args.listen)?, reachable("tor", args.tor)?);
    let config = Config::new(args.options())?;
    let dir = DataDir::lock(&config.dir)?;
    let Records {
        registry,
        snapshot,
        nvme,
        role,
    } = records(&args, &config, addr, &dir)?;
    let settings = GatewayConfig {
        addr,
        tor,
        // The operator names it.
        session: 0,
        nodes: known_nodes(&snapshot)?,
        request_timeout: config.request_timeout,
        shaping: None,
        shared: matches!(role, Role::Shared(_)),
    };
    let is_first = snapshot.next_volume == 0;
    let spec = gateway_host(args.listen, config.nbd, settings, &nvme);
    let cores = vec![launch::start_core(
        config.core(0),
        vec![spec],
        &["the gateway".into()],
    )?];
    let pieces = Pieces {
        cores,
        tor: None,
        gateway: Some(FIRST),
        nodes: Vec::new(),
        records: Some((registry, role)),
        nvme,
    };
    let about = about("gateway", Some(dir.path().to_owned()), &config);
    let part = Arc::new(Part::new(about, pieces)?);
    let server = Server::start(server::bind(config.control)?, Arc::clone(&part))?;
    let serves = part.serves()?;
    if serves && is_first && args.demo.is_some_and(|size| size.0 > 0) {
        create_demo(&part, config.demo_bytes, &says)?;
    }
    signals.serving();
    let volumes = if serves {
        launch::await_volumes(&part, &says, &signals)?
    } else {
        says.note("another gateway leads: stands by");
        Some(part.volumes()?)
    };
    let Some(volumes) = volumes else {
        return launch::stop_early(part, server, &says);
    };
    if says.json {
        launch::print_ready_json(&volumes, &format!("http://{}", server.address()));
    } else {
        println!("gateway ready at {addr}/udp, control http://{}", server.address());
        launch::print_volumes(&volumes);
    }
    launch::serve(part, server, &signals, &says)
}

/// A gateway that stands by until its operator has it serve.
fn gateway_host(listen: SocketAddrV4, nbd: SocketAddr, settings: GatewayConfig, nvme: &Offer) -> HostSpec {
    HostSpec {
        bind: Some(listen),
        medium: None,
        build: Box::new(move |site| {
            let mut gateway = Gateway::new(settings, site.pool.clone());
            gateway.stand_by(site.now);
            Ok(Box::new(gateway))
        }),
        nbd: vec![nbd],
        nvme: nvme.listen(),
    }
}

/// What a gateway begins with.
struct Records {
    registry: Box<dyn Registry + Send>,
    snapshot: Snapshot,
    nvme: Offer,
    /// Alone, or one of several that share the registry.
    role: Role,
}

fn records(args: &GatewayArgs, config: &Config, addr: Addr, dir: &DataDir) -> anyhow::Result<Records> {
    let Some(shared) = &args.registry else {
        let mut registry = FileRegistry::open(dir.path())?;
        let snapshot = note_nodes(&mut registry, &args.nodes)?;
        return Ok(Records {
            nvme: Offer::new(config.nvme, TargetOptions::default()),
            registry: Box::new(registry),
            snapshot,
            role: Role::Alone {
                session: dir.next_session()?,
            },
        });
    };
    std::fs::create_dir_all(shared)
        .with_context(|| format!("cannot create the directory {} (--registry)", shared.display()))?;
    let mut registry = FileRegistry::open(shared)?;
    let record = GatewayRecord {
        addr: addr.to_string(),
        nvme: config.nvme.map(|address| address.to_string()),
        control: format!("http://{}", config.control),
    };
    let (snapshot, number) = enter(&mut registry, &record, |snapshot| {
        add_nodes(snapshot, &args.nodes)
    })?;
    if snapshot.nodes.is_empty() {
        bail!(no_nodes());
    }
    let options = TargetOptions {
        cntlids: cntlids(number),
        ..TargetOptions::default()
    };
    Ok(Records {
        nvme: Offer::new(config.nvme, options),
        registry: Box::new(registry),
        snapshot,
        role: Role::Shared(Shared {
            me: addr,
            silent_after: SILENT_AFTER,
            lead_looks_every: LOOK_EVERY,
            others_look_every: LOOK_EVERY,
            session_min: dir.next_session()?,
        }),
    })
}

fn no_nodes() -> Failure {
    Failure::Usage("the registry knows no node: name each with --node ID=IP:PORT".into())
}

/// The nodes of the command line replace the registry's of the same number.
fn add_nodes(snapshot: &mut Snapshot, nodes: &[(NodeId, Addr)]) {
    for (id, addr) in nodes {
        let record = NodeRecord {
            id: id.0,
            addr: addr.to_string(),
        };
        match snapshot.nodes.iter_mut().find(|known| known.id == id.0) {
            Some(known) => *known = record,
            None => snapshot.nodes.push(record),
        }
    }
}

fn note_nodes(registry: &mut dyn Registry, nodes: &[(NodeId, Addr)]) -> anyhow::Result<Snapshot> {
    let mut snapshot = registry.load()?;
    let before = snapshot.nodes.clone();
    add_nodes(&mut snapshot, nodes);
    if snapshot.nodes.is_empty() {
        bail!(no_nodes());
    }
    if snapshot.nodes != before {
        registry.store(&snapshot)?;
    }
    Ok(registry.load()?)
}

fn known_nodes(snapshot: &Snapshot) -> anyhow::Result<Vec<(NodeId, Addr)>> {
    let parse = |record: &NodeRecord| match rack::registry::parse_addr(&record.addr) {
        Some(addr) => Ok((NodeId(record.id), addr)),
        None => bail!(
            "the registry has the address `{1}` for node {0}, which is not one: correct it with --node",
            record.id,
            record.addr
        ),
    };
    snapshot.nodes.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::MemoryRegistry;

    #[test]
    fn nodes_are_numbers_and_addresses() {
        assert_eq!(
            parse_node("3=10.0.0.3:8888").unwrap(),
            (NodeId(3), Addr::new([10, 0, 0, 3], 8888))
        );
        for text in [
            "",
            "3",
            "0=10.0.0.3:1",
            "256=10.0.0.3:1",
            "1=host:1",
            "1=0.0.0.0:1",
            "1=10.0.0.1:0",
        ] {
            assert!(parse_node(text).is_err(), "{text}");
        }
        assert!(reachable("listen", "0.0.0.0:8888".parse().unwrap()).is_err());
    }

    #[test]
    fn nodes_of_the_command_line_replace_known_ones() {
        let mut registry = MemoryRegistry::default();
        assert!(note_nodes(&mut registry, &[]).is_err());
        let node = |id, port| (NodeId(id), Addr::new([10, 0, 0, 1], port));
        note_nodes(&mut registry, &[node(1, 1), node(2, 2)]).unwrap();
        let snapshot = note_nodes(&mut registry, &[node(2, 9)]).unwrap();
        assert_eq!(known_nodes(&snapshot).unwrap(), vec![node(1, 1), node(2, 9)]);
    }
}
