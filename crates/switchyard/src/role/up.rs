//! `switchyard up`: a whole rack in one process. Every part talks UDP through the ToR, as on machines of its own.

use super::gateway::create_demo;
use super::{about, gateway, tor};
use crate::config::{Config, MediaKind, Options};
use crate::control::api;
use crate::control::server::{self, Server};
use crate::datadir::{self, DataDir};
use crate::failure::Failure;
use crate::launch::{self, Says};
use crate::operator::{At, Offer, Part, Pieces, check_level};
use crate::registry::{FileRegistry, MemoryRegistry};
use crate::size::Size;
use anyhow::{Context, bail};
use base::{Addr, NodeId};
use clap::Args;
use host::gateway::Shaping;
use host::operator::Role;
use host::{Central, Controller, ControllerConfig, GatewayConfig};
use rack::level::Software;
use rack::registry::{NodeRecord, Registry, Snapshot};
use runtime::{HostSpec, Medium};
use std::path::PathBuf;
use std::sync::Arc;
use wire::nvme::TargetOptions;

/// `switchyard up`.
#[derive(Args)]
#[command(
    after_help = "Every flag is also a key of the configuration file; docs/configuration.md describes them.\n\n\
    Examples:\n  switchyard up --dir /srv/rack --size 16GiB --demo 8GiB\n  \
    switchyard up --media memory --timing p-ssd     flash of RackBlox's speed, kept in memory\n  \
    switchyard up --config rack.toml --json         one JSON line when ready, for scripts"
)]
pub struct UpArgs {
    /// Configuration file (TOML); flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub options: Options,
    /// Print one JSON line when ready, nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Runs until a signal.
pub fn run(args: UpArgs) -> anyhow::Result<()> {
    let mut config = Config::new(args.options.with_file(args.config.as_deref())?)?;
    let says = Says { json: args.json };
    // A node has a medium, and perhaps a core of its own. Clients are at one core.
    let files = (launch::FILES_OF_MEDIUM + launch::FILES_OF_CORE) * u64::from(config.nodes);
    config.connections = launch::connections(config.connections, files, 1, &says)?;
    let signals = launch::signals()?;
    let (dir, mut registry, session) = storage(&config)?;
    let control = server::bind(config.control)?;
    let snapshot = note_nodes(&config, registry.as_mut())?;
    let media = (1..=config.nodes)
        .map(|id| medium(&config, dir.as_ref(), id, &snapshot, &says))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let is_first = snapshot.next_volume == 0;
    let nvme = Offer::new(config.nvme, TargetOptions::default());
    let mut pieces = start(&config, media, &nvme)?;
    pieces.nvme = nvme;
    pieces.records = Some((registry, Role::Alone { session }));
    let path = dir.as_ref().map(|dir| dir.path().to_owned());
    let part = Arc::new(Part::new(about("up", path, &config), pieces)?);
    let server = Server::start(control, Arc::clone(&part))?;
    launch::print_recovery(&part, &says)?;
    if is_first && config.demo_bytes > 0 {
        create_demo(&part, config.demo_bytes, &says)?;
    }
    signals.serving();
    let Some(volumes) = launch::await_volumes(&part, &says, &signals)? else {
        return launch::stop_early(part, server, &says);
    };
    announce(&config, &volumes, &server, &says);
    launch::serve(part, server, &signals, &says)
}

/// Directory, registry and the gateway's session number.
#[allow(clippy::type_complexity)]
fn storage(config: &Config) -> anyhow::Result<(Option<DataDir>, Box<dyn Registry + Send>, u32)> {
    if config.media == MediaKind::Memory {
        let session = datadir::next_session(0).context("the clock is beyond the year 2106")?;
        return Ok((None, Box::new(MemoryRegistry::new()), session));
    }
    let dir = DataDir::lock(&config.dir)?;
    let registry = FileRegistry::open(dir.path())?;
    let session = dir.next_session()?;
    Ok((Some(dir), Box::new(registry), session))
}

/// Checks that every node which holds something is there, and records the nodes' addresses.
fn note_nodes(config: &Config, registry: &mut dyn Registry) -> anyhow::Result<Snapshot> {
    let mut snapshot = registry.load()?;
    check_level(&snapshot, &Software::own(config.levels))?;
    for volume in &snapshot.volumes {
        if let Some((_, node, _)) = volume.vssds().find(|(_, node, _)| node.0 > config.nodes) {
            bail!(Failure::Usage(format!(
                "nodes = {}: node {} holds a part of volume `{}`; start with --nodes {} or more",
                config.nodes, node.0, volume.name, node.0
            )));
        }
    }
    let nodes: Vec<NodeRecord> = (1..=config.nodes)
        .map(|id| NodeRecord {
            id,
            addr: node_addr(config, id).to_string(),
        })
        .collect();
    if snapshot.nodes != nodes {
        snapshot.nodes = nodes;
        snapshot.removed.clear();
        registry.store(&snapshot)?;
        snapshot = registry.load()?;
    }
    Ok(snapshot)
}

fn node_addr(config: &Config, id: u8) -> Addr {
    config.rack_addr(1 + u16::from(id))
}

/// A node's medium, formatted if it is new.
fn medium(
    config: &Config,
    dir: Option<&DataDir>,
    id: u8,
    snapshot: &Snapshot,
    says: &Says,
) -> anyhow::Result<Medium> {
    let Some(dir) = dir else {
        return datadir::open_memory(config.media_bytes, config.shape);
    };
    let path = dir.medium_path(id);
    if !path.exists() {
        says.note(&format!(
            "formatting node {id}: {} ({})",
            path.display(),
            Size(config.media_bytes)
        ));
        for volume in &snapshot.volumes {
            if volume.ready && volume.vssds().any(|(_, node, _)| node.0 == id) {
                says.note(&format!(
                    "warning: the medium of node {id} is gone, and volume `{}` had a part there: put {} back; parts of which \
                     other nodes have copies are copied from there",
                    volume.name,
                    path.display()
                ));
            }
        }
    }
    let (medium, _) = datadir::open_file(&path, config.media_bytes, config.shape)?;
    if let Some(warning) = medium.warning() {
        says.note(&format!("node {id}: {warning}"));
    }
    Ok(medium)
}

/// Starts the cores: ToR and gateway on the first, nodes on it too or over the others.
fn start(config: &Config, media: Vec<Medium>, nvme: &Offer) -> anyhow::Result<Pieces> {
    let mut specs: Vec<Vec<HostSpec>> = (0..config.cores).map(|_| Vec::new()).collect();
    let mut names: Vec<Vec<String>> = vec![Vec::new(); config.cores];
    specs[0].push(tor::host(config.rack_addr(0), config.levels));
    names[0].push("the ToR".into());
    specs[0].push(gateway_host(config, nvme));
    names[0].push("the gateway".into());
    if let Some((central, addr)) = config.central() {
        specs[0].push(controller(config, central, addr));
        names[0].push("the controller".into());
    }
    let mut nodes = Vec::new();
    for (index, medium) in media.into_iter().enumerate() {
        let id = NodeId(index as u8 + 1);
        let core = if config.cores == 1 {
            0
        } else {
            1 + index % (config.cores - 1)
        };
        nodes.push((
            id,
            At {
                core,
                host: specs[core].len(),
            },
        ));
        let node = config.node(id, node_addr(config, id.0), vec![config.rack_addr(0)]);
        specs[core].push(launch::node_spec(node, medium));
        names[core].push(format!("node {}", id.0));
    }
    let mut cores = Vec::new();
    // Nodes first: the gateway's first packets find them listening.
    for (index, specs) in specs.into_iter().enumerate() {
        cores.push(launch::start_core(config.core(index), specs, &names[index])?);
    }
    Ok(Pieces {
        cores,
        tor: Some(At { core: 0, host: 0 }),
        gateway: Some(At { core: 0, host: 1 }),
        nodes,
        ..Pieces::default()
    })
}

fn controller(config: &Config, central: Central, addr: Addr) -> HostSpec {
    let settings = ControllerConfig {
        addr,
        tor: config.rack_addr(0),
        gc_lease: rack::gc::TOR_LEASE,
        interval: central.vdc.interval,
        capacity: central.capacity,
    };
    HostSpec {
        bind: Some(runtime::socket_addr(addr)),
        medium: None,
        build: Box::new(move |_| Ok(Box::new(Controller::new(settings)))),
        listen: Vec::new(),
    }
}

fn gateway_host(config: &Config, nvme: &Offer) -> HostSpec {
    let addr = config.rack_addr(1);
    let settings = GatewayConfig {
        addr,
        tors: vec![config.rack_addr(0)],
        // The operator names it.
        session: 0,
        nodes: (1..=config.nodes)
            .map(|id| (NodeId(id), node_addr(config, id)))
            .collect(),
        request_timeout: config.request_timeout,
        shaping: config.shapes().map(|(central, controller)| Shaping {
            controller,
            vdc: central.vdc,
        }),
        reads: config.reads,
        slow: Default::default(),
        shared: false,
    };
    gateway::host(runtime::socket_addr(addr), config.nbd, settings, nvme)
}

/// Tells where everything is, and what to try.
fn announce(config: &Config, volumes: &[api::Volume], server: &Server, says: &Says) {
    let control = format!("http://{}", server.address());
    if says.json {
        return launch::print_ready_json(volumes, &control);
    }
    let copies = config.replicas;
    println!(
        "rack ready: {} nodes, {copies} copies, timing {}, control {control}",
        config.nodes, config.timing.name
    );
    launch::print_volumes(volumes);
    let Some(volume) = volumes
        .iter()
        .find(|volume| ["ready", "degraded"].contains(&&*volume.state))
    else {
        return;
    };
    let uri = &volume.uri;
    println!("\ntry:");
    println!("  nbdinfo {uri}");
    println!(
        "  fio --name=t --ioengine=nbd --uri={uri} --rw=randread --bs=4k --iodepth=32 --time_based --runtime=10"
    );
    println!("  switchyard top    switchyard bench    switchyard volume create db --size 2GiB");
    println!("\nstop with Ctrl-C");
}
