//! `switchyard gateway`: where clients enter a rack.

use super::{FIRST, about, reachable, tors};
use crate::config::{Config, Options, ReadFrom};
use crate::control::api::Create;
use crate::control::server::{self, Server};
use crate::datadir::DataDir;
use crate::failure::Failure;
use crate::inventory;
use crate::launch::{self, Says};
use crate::operator::{
    ASK_EVERY, LOOK_EVERY, Offer, Part, Pieces, Refusal, SILENT_AFTER, check_level, cntlids, enter,
};
use crate::registry::{FileRegistry, Place};
use crate::size::Size;
use anyhow::{Context, bail};
use base::{Addr, Duration, NodeId};
use clap::Args;
use host::operator::{Role, Shared};
use host::{Gateway, GatewayConfig};
use rack::level::Software;
use rack::nodes::check_place;
use rack::placement::PlacementError;
use rack::registry::{GatewayRecord, NodeRecord, Registry, Snapshot};
use runtime::HostSpec;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use wire::nvme::TargetOptions;

/// Name of the volume of the first start.
pub const DEMO: &str = "demo";

/// Nodes register at the ToR a moment after they start.
const NODES_WITHIN: Duration = Duration::from_secs(10);

/// `switchyard gateway`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  switchyard gateway --listen 10.0.0.2:8888 --tor 10.0.0.1:8888 \
    --node 1=10.0.0.11:8888 --node 2=10.0.0.12:8888 --nbd 10.0.0.2:10809 --demo 1GiB\n\n\
    The registry remembers nodes. Name a node again only if its address changes. `switchyard node add` adds one to a\n\
    running rack.\n\n\
    Two gateways that share a registry in etcd (each with the same --registry):\n  \
    switchyard gateway --registry etcd://10.0.0.21:2379,10.0.0.22:2379,10.0.0.23:2379/rack1 --listen 10.0.0.2:8888 …"
)]
pub struct GatewayArgs {
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// The ToR's address; repeat it for a second ToR, which is used if the first does not answer
    #[arg(long = "tor", value_name = "IP:PORT", required = true)]
    pub tors: Vec<SocketAddrV4>,
    /// A storage server; repeat it for each
    #[arg(long = "node", value_name = "ID=IP:PORT", value_parser = parse_node)]
    pub nodes: Vec<(NodeId, Addr)>,
    /// Directory of the registry and lock [default: $SWITCHYARD_DIR or ./rack-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// A registry that several gateways share: a directory, or etcd://HOST:PORT,HOST:PORT,…[/PREFIX], or with TLS
    /// etcds://…[/PREFIX]?ca=FILE; each volume is served by one of them
    #[arg(long, value_name = "DIR|URL")]
    pub registry: Option<Place>,
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
    /// Connections of clients; any more are closed at once [default: 1024]
    #[arg(long, value_name = "N")]
    pub connections: Option<u16>,
    /// Seconds until an unanswered request of a client fails [default: 30]
    #[arg(long, value_name = "S")]
    pub request_timeout_s: Option<u64>,
    /// Seconds until a copy that a lost node had is made on another one [default: 60]
    #[arg(long, value_name = "S")]
    pub rebuild_after_s: Option<u64>,
    /// The replica that pages are read from [default: fastest]
    #[arg(long, value_name = "WHICH")]
    pub reads: Option<ReadFrom>,
    /// The highest level of the rack that this part may serve at, to keep the way back open [default: the newest]
    #[arg(long, value_name = "N")]
    pub level_max: Option<u8>,
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
            connections: self.connections,
            request_timeout_s: self.request_timeout_s,
            rebuild_after_s: self.rebuild_after_s,
            reads: self.reads,
            level_max: self.level_max,
            ..Options::default()
        }
    }
}

/// Runs until a signal.
pub fn run(args: GatewayArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    let signals = launch::signals()?;
    let (addr, tors) = (reachable("listen", args.listen)?, tors(&args.tors)?);
    let mut config = Config::new(args.options())?;
    config.connections = launch::connections(config.connections, 0, 1, &says)?;
    let dir = DataDir::lock(&config.dir)?;
    // The others are told where it listens.
    let listener = server::bind(config.control)?;
    config.control = listener.local_addr()?;
    let Records {
        registry,
        snapshot,
        nvme,
        role,
    } = records(&args, &config, addr, &dir, &says)?;
    let settings = GatewayConfig {
        addr,
        tors,
        // The operator names it.
        session: 0,
        nodes: known_nodes(&snapshot)?,
        request_timeout: config.request_timeout,
        shaping: None,
        reads: config.reads,
        slow: Default::default(),
        shared: matches!(role, Role::Shared(_)),
    };
    for (id, addr) in args
        .nodes
        .iter()
        .filter(|(id, _)| snapshot.removed.contains(&id.0))
    {
        says.note(&format!(
            "node {0} was removed and is left out: take it out of the command, or add it with `switchyard node add {0}={addr}`",
            id.0
        ));
    }
    let is_first = snapshot.next_volume == 0;
    let spec = host(args.listen, config.nbd, settings, &nvme);
    let core = launch::start_core(config.core(0), vec![spec], &["the gateway".into()])?;
    let pieces = Pieces {
        cores: vec![core],
        gateway: Some(FIRST),
        records: Some((registry, role)),
        nvme,
        ..Pieces::default()
    };
    let about = about("gateway", Some(dir.path().to_owned()), &config);
    let part = Arc::new(Part::new(about, pieces)?);
    let server = Server::start(listener, Arc::clone(&part))?;
    let serves = part.serves()?;
    if serves && is_first && args.demo.is_some_and(|size| size.0 > 0) {
        create_demo(&part, config.demo_bytes, &says)?;
    }
    signals.serving();
    if !serves {
        says.note("another gateway leads the rack");
    }
    let Some(volumes) = launch::await_volumes(&part, &says, &signals)? else {
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
pub(super) fn host(listen: SocketAddrV4, nbd: SocketAddr, settings: GatewayConfig, nvme: &Offer) -> HostSpec {
    HostSpec {
        bind: Some(listen),
        medium: None,
        build: Box::new(move |site| {
            let mut gateway = Gateway::new(settings, site.pool.clone());
            gateway.stand_by(site.now);
            Ok(Box::new(gateway))
        }),
        listen: nvme.listen(nbd),
    }
}

/// Creates the volume of the first start.
pub(super) fn create_demo(part: &Part, size_bytes: u64, says: &Says) -> anyhow::Result<()> {
    says.note(&format!("creating volume `{DEMO}` ({})", Size(size_bytes)));
    let create = Create {
        name: DEMO.into(),
        size: Size(size_bytes),
        replicas: None,
        durability: None,
        isolation: None,
        read_only: false,
    };
    match part.create_volume(&create, NODES_WITHIN) {
        Ok(_) => Ok(()),
        Err(Refusal::Operator(host::operator::Refusal::NoRoom(error @ PlacementError::NoRoom { .. }))) => {
            bail!("volume `{DEMO}` does not fit: {error}; or start with a smaller one (--demo SIZE)")
        }
        Err(error) => Err(error).context(format!("cannot create volume `{DEMO}`")),
    }
}

/// The start of a gateway.
struct Records {
    registry: Box<dyn Registry + Send>,
    snapshot: Snapshot,
    nvme: Offer,
    /// Alone, or one of several that share the registry.
    role: Role,
}

fn records(
    args: &GatewayArgs,
    config: &Config,
    addr: Addr,
    dir: &DataDir,
    says: &Says,
) -> anyhow::Result<Records> {
    let software = Software::own(config.levels);
    let Some(shared) = &args.registry else {
        let mut registry = FileRegistry::open(dir.path())?;
        let before = registry.load()?;
        check_level(&before, &software)?;
        let nodes = confirmed(&before, args, says, inventory::number_at)?;
        let snapshot = note_nodes(&mut registry, &nodes)?;
        return Ok(Records {
            nvme: Offer::new(config.nvme, TargetOptions::default()),
            registry: Box::new(registry),
            snapshot,
            role: Role::Alone {
                session: dir.next_session()?,
            },
        });
    };
    let mut registry = shared.open()?;
    let record = GatewayRecord {
        addr: addr.to_string(),
        nvme: config.nvme.map(|address| address.to_string()),
        nbd: (config.nbd.port() > 0).then(|| announced(config.nbd, *args.listen.ip()).to_string()),
        control: format!("http://{}", announced(config.control, *args.listen.ip())),
        software: Some(software),
    };
    let nodes = confirmed(&registry.load()?, args, says, inventory::number_at)?;
    let (snapshot, number) = enter(registry.as_mut(), &record, |snapshot| add_nodes(snapshot, &nodes))?;
    if snapshot.nodes.is_empty() {
        bail!(no_nodes());
    }
    let options = TargetOptions {
        cntlids: cntlids(number),
        ..TargetOptions::default()
    };
    Ok(Records {
        nvme: Offer::new(config.nvme, options),
        registry,
        snapshot,
        role: Role::Shared(Shared {
            me: addr,
            silent_after: SILENT_AFTER,
            lead_looks_every: LOOK_EVERY,
            others_look_every: ASK_EVERY,
            session_min: dir.next_session()?,
        }),
    })
}

/// Where others reach an address: one that listens on all of this machine's has that of the rack's packets.
fn announced(address: SocketAddr, rack: Ipv4Addr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::from((rack, address.port())),
        false => address,
    }
}

fn no_nodes() -> Failure {
    Failure::Usage("the registry knows no node: name each with --node ID=IP:PORT".into())
}

/// The nodes of the command line without those that are to be somewhere else than the registry says, and are not there. A wrong address would
/// take the node's copies away from every gateway. `number_at` tells the number of the node at an address.
fn confirmed(
    snapshot: &Snapshot,
    args: &GatewayArgs,
    says: &Says,
    number_at: impl Fn(Addr) -> anyhow::Result<NodeId>,
) -> anyhow::Result<Vec<(NodeId, Addr)>> {
    check_named(args)?;
    let mut confirmed = Vec::new();
    for &(id, addr) in &args.nodes {
        let known = snapshot.nodes.iter().find(|known| known.id == id.0);
        let moves = known.filter(|known| known.addr != addr.to_string() && !snapshot.removed.contains(&id.0));
        let Some(known) = moves else {
            confirmed.push((id, addr));
            continue;
        };
        match number_at(addr) {
            Ok(there) if there == id => confirmed.push((id, addr)),
            Ok(there) => bail!(Failure::Usage(format!(
                "the node at {addr} has the number {}, and not {}: correct --node {}={addr}",
                there.0, id.0, id.0
            ))),
            Err(_) => says.note(&format!(
                "node {} is not at {addr}: it stays at {}. If it is to move, start it at {addr}, and then this gateway again",
                id.0, known.addr
            )),
        }
    }
    Ok(confirmed)
}

/// Refuses nodes of the command line that cannot be as it says.
fn check_named(args: &GatewayArgs) -> anyhow::Result<()> {
    let here = reachable("listen", args.listen)?;
    let tors = tors(&args.tors)?;
    for (place, &(id, addr)) in args.nodes.iter().enumerate() {
        check_place(addr, &tors, &[here]).map_err(|error| Failure::Usage(error.to_string()))?;
        let before = &args.nodes[..place];
        if before.iter().any(|&(other, at)| (other == id) != (at == addr)) {
            bail!(Failure::Usage(format!(
                "--node {}={addr}: a node has one number and one address, and another --node has one of these",
                id.0
            )));
        }
    }
    Ok(())
}

/// The nodes of the command line replace the registry's of the same number. Those that the rack was told to forget stay
/// forgotten.
fn add_nodes(snapshot: &mut Snapshot, nodes: &[(NodeId, Addr)]) {
    for (id, addr) in nodes {
        if snapshot.removed.contains(&id.0) {
            continue;
        }
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
    }

    #[test]
    fn a_gateway_announces_an_address_that_others_reach() {
        let shown = |text: &str| announced(text.parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2)).to_string();
        assert_eq!(shown("0.0.0.0:9180"), "10.0.0.2:9180");
        assert_eq!(shown("[::]:9180"), "10.0.0.2:9180");
        assert_eq!(shown("127.0.0.1:9180"), "127.0.0.1:9180");
        assert_eq!(shown("[fd00::1]:9180"), "[fd00::1]:9180");
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: GatewayArgs,
    }

    fn gateway_of(nodes: &[&str]) -> GatewayArgs {
        let nodes = nodes.iter().flat_map(|node| ["--node", node]);
        let fixed = ["gateway", "--listen", "10.0.0.9:1", "--tor", "10.0.0.8:1"];
        <Command as clap::Parser>::parse_from(fixed.into_iter().chain(nodes)).args
    }

    /// bug: a gateway that was given another node's address for a node took that node's copies away from the whole rack.
    #[test]
    fn a_node_moves_only_to_where_it_is() {
        let at = |host| Addr::new([10, 0, 0, host], 1);
        let mut snapshot = Snapshot::default();
        add_nodes(&mut snapshot, &[(NodeId(1), at(1)), (NodeId(2), at(2))]);
        let confirm = |nodes: &[&str]| {
            let number_at = |addr: Addr| match addr.ip & 0xff {
                host @ 1..=3 => Ok(NodeId(host.min(2) as u8)),
                _ => bail!("nobody answers"),
            };
            confirmed(&snapshot, &gateway_of(nodes), &Says { json: true }, number_at)
        };
        let named = |nodes: &[&str]| confirm(nodes).unwrap();
        assert_eq!(named(&["2=10.0.0.3:1"]), [(NodeId(2), at(3))], "it is there");
        assert_eq!(
            named(&["1=10.0.0.1:1", "2=10.0.0.7:1"]),
            [(NodeId(1), at(1))],
            "nobody is there"
        );
        assert_eq!(named(&["4=10.0.0.7:1"]), [(NodeId(4), at(7))], "it is new");
        for wrong in [
            &["1=10.0.0.2:1"][..],
            &["1=10.0.0.2:1", "2=10.0.0.1:1"],
            &["3=10.0.0.8:1"],
            &["3=10.0.0.9:1"],
            &["3=10.0.0.7:1", "4=10.0.0.7:1"],
            &["3=10.0.0.6:1", "3=10.0.0.7:1"],
        ] {
            assert!(confirm(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn nodes_of_the_command_line_replace_known_ones() {
        let mut registry = MemoryRegistry::new();
        assert!(note_nodes(&mut registry, &[]).is_err());
        let node = |id, port| (NodeId(id), Addr::new([10, 0, 0, 1], port));
        note_nodes(&mut registry, &[node(1, 1), node(2, 2)]).unwrap();
        let snapshot = note_nodes(&mut registry, &[node(2, 9)]).unwrap();
        assert_eq!(known_nodes(&snapshot).unwrap(), vec![node(1, 1), node(2, 9)]);
        let mut removed = snapshot;
        removed.remove_node(2, false).unwrap();
        registry.store(&removed).unwrap();
        let snapshot = note_nodes(&mut registry, &[node(1, 1), node(2, 9)]).unwrap();
        assert_eq!(known_nodes(&snapshot).unwrap(), vec![node(1, 1)]);
    }
}
