//! A case of the simulator's evaluation on a real rack: the same hosts, options, clients and seed, over real sockets
//! and in real time, on one core of this process. Devices and links take the modelled time.

mod place;

use crate::machine::cpu_time;
use anyhow::{Context, anyhow, ensure};
use base::{Addr, Rng, VolumeId};
use flash::Ssd;
use host::gateway::VolumeState;
use place::{Links, Place};
use runtime::{BoxError, CoreConfig, CoreHandle, HostSpec, Medium, Site, start_core};
use serde_json::json;
use sim::client::{ClientStats, ClientVolume, Latencies, LoadSpec};
use sim::eval::{self, Case, Counted, Row};
use sim::rack::RackFleet;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

const PAGE_BYTES: usize = base::limits::PAGE_BYTES;
/// A rack that is not ready by then never will be.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// A device or a link does not oversleep, as a processor that was idle does by tens of microseconds: under load the rack
/// polls.
const POLL_FOR: Duration = Duration::from_millis(2);
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Fills the volumes of a real rack, warms it up, measures. The row's `more` also has `cpu_percent`, the share of a
/// processor that the rack took while it was measured, and `packets_dropped` of the whole run.
pub fn measure(case: &Case, seed: u64) -> anyhow::Result<Row> {
    let rack = Rack::start(case, seed)?;
    let clients = case.hardware.clients as usize;
    let gateways: Vec<usize> = (0..clients).map(|client| rack.gateway(client)).collect();
    let [fill, warm, measured] = eval::phases(&case.hardware, &case.workload, &gateways);
    let mut seeds = Rng::new(seed ^ 0x5eed);
    rack.load(case, fill, false, &mut seeds)?;
    rack.load(case, warm, true, &mut seeds)?;
    let before = rack.counted()?;
    let pid = std::process::id();
    let (cpu_before, started) = (cpu_time(pid), runtime::now());
    rack.load(case, measured, true, &mut seeds)?;
    let seconds = runtime::now().since(started).as_secs_f64();
    let cpu = cpu_time(pid)
        .zip(cpu_before)
        .map(|(after, before)| after - before);
    let during = rack.counted()?.since(&before);
    let (clients, latencies) = rack.seen()?;
    let dropped = rack.dropped();
    rack.core.stop()?;
    ensure!(clients.failed == 0, "{} requests failed", clients.failed);
    let mut row = eval::row(&case.policies, &case.workload, &clients, &latencies, &during);
    case.describe(&mut row);
    let more = [
        (
            "cpu_percent",
            json!(cpu.map(|cpu| cpu.as_secs_f64() / seconds * 100.0)),
        ),
        ("packets_dropped", json!(dropped)),
        ("shed", json!(clients.shed)),
    ];
    row.more
        .extend(more.map(|(name, value)| (name.to_owned(), value)));
    Ok(row)
}

/// A rack that runs.
struct Rack {
    fleet: RackFleet,
    core: CoreHandle,
}

impl Rack {
    /// Starts the rack of a case on loopback ports that are free now, and waits until its volumes are ready.
    fn start(case: &Case, seed: u64) -> anyhow::Result<Self> {
        let options = eval::options(&case.hardware, &case.policies);
        let fleet = RackFleet::new(options.clone());
        let places = free_places(fleet.hosts())?;
        let addrs: Vec<Addr> = places
            .iter()
            .map(|place| Addr::new(place.ip().octets(), place.port()))
            .collect();
        let links = Arc::new(Links::new(eval::network(&fleet, &case.hardware, seed), &addrs));
        let fleet = Arc::new(fleet.with_addrs(addrs));
        let pages = case.hardware.pages();
        let specs = places.iter().enumerate().map(|(index, place)| {
            let is_node = (1..=options.nodes as usize).contains(&index);
            let medium_bytes = Ssd::bytes_needed(&options.geometry, PAGE_BYTES);
            spec(
                index,
                *place,
                is_node.then_some(medium_bytes),
                pages,
                &fleet,
                &links,
            )
        });
        let config = CoreConfig::with(CoreConfig::default().target.pool_pages, POLL_FOR);
        let core = start_core(config, specs.collect()).context("cannot start the rack")?;
        let fleet = RackFleet::new(options);
        let rack = Self { fleet, core };
        (0..case.hardware.clients as usize).try_for_each(|client| rack.await_ready(client))?;
        Ok(rack)
    }

    fn gateway(&self, client: usize) -> usize {
        self.fleet.gateway(client as u32)
    }

    /// Calls into a host.
    fn call<R: Send + 'static>(
        &self,
        index: usize,
        call: impl FnOnce(&mut Place, base::Instant) -> R + Send + 'static,
    ) -> anyhow::Result<R> {
        let result = self.core.call(index, |host, now| {
            let place = host.as_any_mut().downcast_mut();
            call(place.expect("all hosts of this core are places"), now)
        });
        Ok(result?)
    }

    fn await_ready(&self, client: usize) -> anyhow::Result<()> {
        let started = runtime::now();
        let volume = VolumeId(client as u32 + 1);
        loop {
            match self.call(self.gateway(client), move |place, _| place.volume_state(volume))? {
                Some(VolumeState::Ready) => return Ok(()),
                Some(VolumeState::Failed(vssd, code)) => {
                    return Err(anyhow!("vSSD {} was refused: {code:?}", vssd.0));
                }
                _ if runtime::now().since(started) > READY_WITHIN => {
                    return Err(anyhow!("the rack did not become ready in time"));
                }
                _ => std::thread::sleep(POLL_EVERY),
            }
        }
    }

    /// Runs a load at each gateway to its end. Where the clients are an application, requests are its, if these are its
    /// and not the filling.
    fn load(&self, case: &Case, loads: Vec<LoadSpec>, is_its: bool, seeds: &mut Rng) -> anyhow::Result<()> {
        for load in loads.iter().copied() {
            let (workload, pages) = (case.workload.clone(), case.hardware.pages());
            let seed = seeds.next_u64();
            self.call(load.gateway, move |place, now| {
                let stream = is_its.then(|| workload.stream(load.pace, pages)).flatten();
                place.start(now, load, stream, seed);
            })?;
        }
        for load in loads {
            while !self.call(load.gateway, |place, _| place.is_done())? {
                std::thread::sleep(POLL_EVERY);
            }
        }
        Ok(())
    }

    fn counted(&self) -> anyhow::Result<Counted> {
        let of = |index| self.call(index, |place, _| Counted::of(std::iter::once(place.host())));
        let mut sum = of(RackFleet::TOR)?;
        for index in 1..self.fleet.hosts() {
            sum.merge(&of(index)?);
        }
        Ok(sum)
    }

    /// The observations of the clients of all gateways together.
    fn seen(&self) -> anyhow::Result<(ClientStats, Latencies)> {
        let mut sum = (ClientStats::default(), Latencies::default());
        sum.0.recorded_from_ns = u64::MAX;
        for client in 0..self.fleet.options().gateways as usize {
            let (clients, latencies) = self.call(self.gateway(client), |place, _| place.seen())?;
            sum.0.failed += clients.failed;
            sum.0.shed += clients.shed;
            sum.0.recorded_from_ns = sum.0.recorded_from_ns.min(clients.recorded_from_ns);
            sum.0.recorded_to_ns = sum.0.recorded_to_ns.max(clients.recorded_to_ns);
            sum.1.read.add(&latencies.read).expect("equal bounds");
            sum.1.write.add(&latencies.write).expect("equal bounds");
        }
        Ok(sum)
    }

    fn dropped(&self) -> u64 {
        let stats = self.core.stats();
        stats.packets_dropped_kernel + stats.packets_dropped_full + stats.packets_dropped_pool
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
    index: usize,
    bind: SocketAddrV4,
    medium_bytes: Option<u64>,
    volume_pages: u64,
    fleet: &Arc<RackFleet>,
    links: &Arc<Links>,
) -> HostSpec {
    let (fleet, links) = (Arc::clone(fleet), Arc::clone(links));
    let client = index.saturating_sub(fleet.gateway(0)) as u32;
    let volume = ClientVolume {
        id: VolumeId(client + 1),
        pages: volume_pages,
        check: false,
        durability: false,
        durable_writes: false,
    };
    let build = move |site: Site<'_>| -> Result<Box<dyn runtime::RackHost>, BoxError> {
        let host = fleet.build(index, 0, site.now, site.pool, site.medium)?;
        Ok(Box::new(Place::new(
            host,
            index,
            links,
            site.pool.clone(),
            volume,
        )))
    };
    HostSpec {
        bind: Some(bind),
        medium: medium_bytes.map(|bytes| Medium::memory(bytes).expect("a small medium fits memory")),
        build: Box::new(build),
        listen: Vec::new(),
    }
}
