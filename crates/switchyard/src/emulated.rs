//! An experiment of the simulator on a real rack with emulated device time: the same hosts, options, workload and seed,
//! over real sockets and in real time, on one core of this process.

use crate::bench::median;
use crate::loaded::{LoadedGateway, Measured};
use anyhow::{Context, anyhow};
use base::{Addr, Instant, NodeId, VolumeId};
use flash::{Ssd, VssdStats};
use host::gateway::VolumeState;
use host::{Gateway, GatewayConfig, Node, NodeConfig, Tor, TorConfig};
use runtime::{BoxError, CoreConfig, CoreHandle, HostSpec, MediaFile, RackHost, Site, start_core};
use sim::client::LoadSpec;
use sim::gc_tail::{self, CASES, COLUMNS, Case, MEASURED, WARM};
use sim::rack::{RackFleet, RackOptions};
use sim::report::Report;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

const PAGE_BYTES: usize = base::limits::PAGE_BYTES;
/// A rack that is not ready by then never will be.
const READY_WITHIN: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(100);
/// Index of the gateway among the core's hosts; the ToR is the first, the nodes follow the gateway.
const GATEWAY: usize = 1;
const NODES: usize = 2;
/// Every case runs so often, interleaved with the others, and each figure is the median: a machine that stalls now and
/// then does not decide it.
const ROUNDS: usize = 3;
/// Runs gc-tail on a real rack.
pub fn gc_tail(seed: u64, progress: &mut dyn FnMut(&str)) -> anyhow::Result<Report> {
    let mut rows: Vec<Vec<Vec<f64>>> = vec![Vec::new(); CASES.len()];
    for round in 1..=ROUNDS {
        for (case, rows) in CASES.iter().zip(&mut rows) {
            progress(&format!(
                "gc-tail on a real rack: {}, round {round} of {ROUNDS} (about 50 s)",
                case.label
            ));
            rows.push(run_case(seed, case)?);
        }
    }
    let mut report = Report::new("gc-tail, real rack", seed, COLUMNS);
    for (case, rows) in CASES.iter().zip(&rows) {
        let column = |at: usize| median(rows.iter().map(|row| row[at]));
        report.push(case.label, (0..COLUMNS.len()).map(column).collect());
    }
    Ok(report)
}

fn run_case(seed: u64, case: &Case) -> anyhow::Result<Vec<f64>> {
    let options = gc_tail::options(case);
    let nodes = options.nodes as usize;
    let rack = start(&options)?;
    let [fill, warm] = gc_tail::loads(0, WARM);
    let [_, measured] = gc_tail::loads(0, MEASURED);
    load(&rack, fill, seed, false)?;
    load(&rack, warm, seed + 1, false)?;
    let before = totals(&rack, nodes)?;
    let soft_before = rack.call(0, |host, _| as_host::<Tor>(host).stats().gc_soft)?;
    let outcome = load(&rack, measured, seed + 2, true)?;
    let after = totals(&rack, nodes)?;
    let soft = rack.call(0, |host, _| as_host::<Tor>(host).stats().gc_soft)? - soft_before;
    rack.stop()?;
    if outcome.failed > 0 {
        return Err(anyhow!("{} requests failed", outcome.failed));
    }
    let user = after.user_programs - before.user_programs;
    let gc = after.gc_programs - before.gc_programs;
    Ok(gc_tail::row(&outcome.latencies, outcome.seconds, user, gc, soft))
}

fn as_host<T: 'static>(host: &mut dyn RackHost) -> &mut T {
    host.as_any_mut()
        .downcast_mut()
        .expect("hosts are in the order in which they were given")
}

fn totals(rack: &CoreHandle, nodes: usize) -> anyhow::Result<VssdStats> {
    let mut sum = VssdStats::default();
    for index in 0..nodes {
        let stats: Vec<VssdStats> = rack.call(NODES + index, |host, _| {
            as_host::<Node>(host)
                .units()
                .map(|unit| unit.flash().stats())
                .collect()
        })?;
        for stats in stats {
            sum.user_programs += stats.user_programs;
            sum.gc_programs += stats.gc_programs;
        }
    }
    Ok(sum)
}

/// Runs a load to its end.
fn load(rack: &CoreHandle, spec: LoadSpec, seed: u64, record: bool) -> anyhow::Result<Measured> {
    rack.call(GATEWAY, move |host, now| {
        as_host::<LoadedGateway>(host).start(now, spec, VolumeId(1), gc_tail::PAGES, seed, record);
    })?;
    loop {
        std::thread::sleep(POLL_EVERY);
        if let Some(measured) = rack.call(GATEWAY, |host, _| as_host::<LoadedGateway>(host).finished())? {
            return Ok(measured);
        }
    }
}

/// Starts a rack of these options on loopback ports that are free now, and waits until its volume is ready.
fn start(options: &RackOptions) -> anyhow::Result<CoreHandle> {
    let places = free_places(NODES + options.nodes as usize)?;
    let addrs: Vec<Addr> = places
        .iter()
        .map(|place| Addr::new(place.ip().octets(), place.port()))
        .collect();
    let mut specs = vec![tor(&addrs, places[0]), gateway(options, &addrs, places[GATEWAY])];
    for (index, place) in places.iter().enumerate().skip(NODES) {
        specs.push(node(options, &addrs, index, *place));
    }
    let rack = start_core(CoreConfig::default(), specs).context("the rack does not start")?;
    let started = runtime::now();
    loop {
        let state = rack.call(GATEWAY, |host, _| {
            as_host::<LoadedGateway>(host).gateway().volume_state(VolumeId(1))
        })?;
        match state {
            Some(VolumeState::Ready) => return Ok(rack),
            Some(VolumeState::Failed(vssd, code)) => {
                return Err(anyhow!("vSSD {} was refused: {code:?}", vssd.0));
            }
            _ if runtime::now().since(started) > READY_WITHIN => {
                return Err(anyhow!("the rack is not ready in time"));
            }
            _ => std::thread::sleep(POLL_EVERY),
        }
    }
}

fn free_places(count: usize) -> anyhow::Result<Vec<SocketAddrV4>> {
    let sockets: Vec<UdpSocket> = (0..count)
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()?;
    let place = |socket: &UdpSocket| {
        Ok(SocketAddrV4::new(
            Ipv4Addr::LOCALHOST,
            socket.local_addr()?.port(),
        ))
    };
    sockets.iter().map(place).collect()
}

fn spec(
    bind: SocketAddrV4,
    medium: Option<MediaFile>,
    build: impl FnOnce(Site<'_>) -> Result<Box<dyn RackHost>, BoxError> + Send + 'static,
) -> HostSpec {
    HostSpec {
        bind: Some(bind),
        medium,
        build: Box::new(build),
        nbd: Vec::new(),
        nvme: None,
    }
}

fn tor(addrs: &[Addr], place: SocketAddrV4) -> HostSpec {
    let config = TorConfig {
        addr: addrs[0],
        gc_lease: rack::gc::TOR_LEASE,
        egress: None,
    };
    spec(place, None, move |_| Ok(Box::new(Tor::new(config))))
}

fn gateway(options: &RackOptions, addrs: &[Addr], place: SocketAddrV4) -> HostSpec {
    let config = GatewayConfig {
        addr: addrs[GATEWAY],
        tor: addrs[0],
        session: 1,
        nodes: (1..).map(NodeId).zip(addrs[NODES..].iter().copied()).collect(),
        request_timeout: options.request_timeout,
        shaping: None,
        shared: false,
    };
    let record = RackFleet::new(options.clone()).records()[0].clone();
    spec(place, None, move |site| {
        let mut gateway = Gateway::new(config, site.pool.clone());
        gateway.open_volume(site.now, record, true);
        Ok(Box::new(LoadedGateway::new(gateway, site.pool.clone())))
    })
}

fn node(options: &RackOptions, addrs: &[Addr], index: usize, place: SocketAddrV4) -> HostSpec {
    let id = NodeId((index - NODES + 1) as u8);
    let config = NodeConfig {
        timing: options.timing.clone(),
        gc_mode: options.gc_mode,
        checkpoint_every_programs: options.checkpoint_every_programs,
        unit: options.unit.clone(),
        ..NodeConfig::new(id, addrs[index], addrs[0])
    };
    let geometry = options.geometry;
    let medium = MediaFile::memory(Ssd::bytes_needed(&geometry, PAGE_BYTES));
    spec(place, Some(medium), move |site| {
        let medium = site.medium.expect("a node has a medium");
        Ssd::format(medium, geometry, PAGE_BYTES, [id.0; 16])?;
        let now: Instant = site.now;
        Ok(Box::new(Node::open(now, config, site.pool.clone(), medium)?))
    })
}
