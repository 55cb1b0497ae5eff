//! The evaluation of RackBlox (SOSP'23 §4), figure by figure: the published systems, an ideal without garbage
//! collection and ours, on one modelled rack.
//!
//! A figure is a [`Plan`]: cases of hardware, policies and workload, each of which becomes a [`Row`]. Within a plan all
//! policies meet the same [`Hardware`] for the same workload, which [`Plan::is_fair`] tells. A run fills the volumes,
//! warms the flash up until collection is steady, and measures.

pub mod apps;
mod figure;
pub mod gc_tail;
pub mod isolation;
mod memo;
pub mod netsched;
pub mod pairs;
pub mod replay;
pub mod schedulers;
mod slower;
pub mod wear;
pub mod ycsb;

pub use figure::{Figure, Percentiles, Row};
pub use memo::{forget, specification};

use crate::client::{ClientStats, ClientVolume, Latencies, LoadSpec, Pace, Shape};
use crate::experiment::{Progress, run_spec};
use crate::net::{Delay, LinkModel, Network};
use crate::rack::{Layout, RackFleet, RackHost, RackOptions, flash_totals};
use crate::run::{Fleet, Outcome, Run};
use crate::workload::apps::{App, AppStream, Arrivals};
use crate::workload::stream::Stream;
use crate::workload::{Burst, Mix, Pattern};
use base::{Duration, Instant, Rng, VolumeId};
use flash::{GcMode, Geometry, Timing};
use hdrhistogram::Histogram;
use host::node::{Stages, UnitConfig};
use host::{Central, Egress};
use rack::gc::Coordination;
use rack::port::Discipline;
use rack::registry::Durability;
use rack::sched::{Policy, Targets};
use serde_json::{Map, Value, json};

/// What a rack is made of: the same for every policy that a figure compares.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// Storage servers.
    pub nodes: u32,
    /// Client hosts, each with a volume of its own.
    pub clients: u32,
    /// Replica sets of each volume, round robin over the servers.
    pub sets: u32,
    /// Replicas of each set.
    pub replicas: u32,
    /// Pages of each set.
    pub pages_per_set: u32,
    /// Channels of each vSSD.
    pub channels: u32,
    /// Rows of units that a software-isolated vSSD has of these; 0 for all.
    pub rows: u32,
    /// Blocks that software-isolated vSSDs lend each other at once.
    pub borrow_blocks: u32,
    /// The shape of every server's SSD.
    pub geometry: Geometry,
    /// Device time.
    pub timing: Timing,
    /// Pages of a vSSD's write cache.
    pub cache_pages: usize,
    /// Write-back begins when the cache is fuller than this share.
    pub dirty_ratio_low: f64,
    /// Reads in a vSSD's flash at once.
    pub read_depth: usize,
    /// Write-backs in a vSSD's flash or waiting for it at once.
    pub write_depth: usize,
    /// Reads and write-backs in a vSSD's flash at once: the rest wait in its scheduler.
    pub device_depth: usize,
    /// Collection goes on until so much more than the share of the blocks at which it began is free. Not hardware, but the
    /// same for all.
    pub gc_slice_ratio: f64,
    /// Between the servers and the ToR.
    pub server_link: LinkModel,
    /// Nanoseconds that a kilobyte (1000 bytes) occupies the ToR's port to a server; 0 is no limit.
    pub port_ns_per_kilobyte: u32,
    /// Between the clients and the ToR.
    pub client_link: LinkModel,
}

impl Default for Hardware {
    /// Four servers with P-SSDs, four sets of two replicas, half of the flash behind each as RackBlox's thresholds
    /// assume, and RackBlox's fast network.
    fn default() -> Self {
        Self {
            nodes: 4,
            clients: 1,
            sets: 4,
            replicas: 2,
            pages_per_set: 8_192,
            channels: 4,
            rows: 0,
            borrow_blocks: 16,
            geometry: Geometry {
                channels: 8,
                chips_per_channel: 2,
                planes_per_chip: 1,
                blocks_per_plane: 64,
                pages_per_block: 32,
            },
            timing: Timing::built_in("p-ssd").expect("p-ssd is built in"),
            cache_pages: 1024,
            dirty_ratio_low: 0.25,
            read_depth: 64,
            write_depth: 8,
            device_depth: 72,
            gc_slice_ratio: 0.05,
            server_link: LinkModel {
                delay: Delay::Constant(2_000),
                ..LinkModel::default()
            },
            port_ns_per_kilobyte: 0,
            client_link: LinkModel {
                delay: Delay::FAST,
                ..LinkModel::default()
            },
        }
    }
}

impl Hardware {
    /// Pages of a volume.
    pub fn pages(&self) -> u64 {
        u64::from(self.sets) * u64::from(self.pages_per_set)
    }

    /// Share of a vSSD's pages that its clients do not see.
    pub fn spare_ratio(&self) -> f64 {
        let g = &self.geometry;
        let rows = if self.rows == 0 {
            g.units_per_channel()
        } else {
            self.rows
        };
        let blocks = self.channels * rows * g.blocks_per_plane;
        1.0 - f64::from(self.pages_per_set) / f64::from(blocks * g.pages_per_block)
    }

    fn to_json(&self) -> Value {
        let link = |link: &LinkModel| json!({ "delay": format!("{:?}", link.delay), "ns_per_kilobyte": link.ns_per_kilobyte, "paths": link.paths.max(1), "near_paths": link.near_paths });
        json!({
            "nodes": self.nodes,
            "clients": self.clients,
            "sets": self.sets,
            "replicas": self.replicas,
            "pages_per_set": self.pages_per_set,
            "channels_per_vssd": self.channels,
            "rows_per_vssd": self.rows,
            "borrow_blocks": self.borrow_blocks,
            "geometry": {
                "channels": self.geometry.channels,
                "chips_per_channel": self.geometry.chips_per_channel,
                "planes_per_chip": self.geometry.planes_per_chip,
                "blocks_per_plane": self.geometry.blocks_per_plane,
                "pages_per_block": self.geometry.pages_per_block,
            },
            "spare_ratio": self.spare_ratio(),
            "device": self.timing.name,
            "cache_pages": self.cache_pages,
            "dirty_ratio_low": self.dirty_ratio_low,
            "read_depth": self.read_depth,
            "write_depth": self.write_depth,
            "device_depth": self.device_depth,
            "gc_slice_ratio": self.gc_slice_ratio,
            "server_link": link(&self.server_link),
            "port_ns_per_kilobyte": self.port_ns_per_kilobyte,
            "client_link": link(&self.client_link),
        })
    }
}

/// A published system, the ideal, or ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// A central controller's shares, and nobody knows of collection (Pulsar, OSDI'14; RackBlox §4.1).
    Vdc,
    /// VDC with coordinated scheduling, and collection decided by the controller.
    RackBloxSoftware,
    /// VDC without its shares: what each of the others adds is told from here.
    Unshaped,
    /// RackBlox without coordinated collection (RackBlox §4.4).
    RackBloxCoordIo,
    /// Collection decided by the ToR, and coordinated scheduling.
    RackBlox,
    /// Collection costs no time.
    Ideal,
    /// Ours.
    Switchyard,
}

impl System {
    /// All of them, from the baseline on.
    pub const ALL: [Self; 7] = [
        Self::Vdc,
        Self::Unshaped,
        Self::RackBloxSoftware,
        Self::RackBloxCoordIo,
        Self::RackBlox,
        Self::Ideal,
        Self::Switchyard,
    ];

    /// What its rows are called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vdc => "vdc",
            Self::RackBloxSoftware => "rackblox-software",
            Self::Unshaped => "vdc-unshaped",
            Self::RackBloxCoordIo => "rackblox-coord-io",
            Self::RackBlox => "rackblox",
            Self::Ideal => "ideal",
            Self::Switchyard => "switchyard",
        }
    }

    /// What it consists of.
    pub fn policies(self) -> Policies {
        let shaped = matches!(self, Self::Vdc | Self::RackBloxSoftware);
        let coordination = match self {
            Self::Vdc | Self::Unshaped | Self::RackBloxCoordIo | Self::Ideal => Coordination::None,
            Self::RackBloxSoftware => Coordination::Controller,
            Self::RackBlox | Self::Switchyard => Coordination::Rack,
        };
        let gc_mode = match self {
            Self::Ideal => GcMode::Free,
            Self::Switchyard => GcMode::Preemptible { step_pages: 4 },
            _ => GcMode::Blocking,
        };
        let scheduler = Policy::Kyber(Targets::kyber(!matches!(self, Self::Vdc | Self::Unshaped)));
        Policies {
            name: self.name().to_owned(),
            coordination,
            gc_mode,
            scheduler,
            shaped,
            network: Discipline::Fifo,
        }
    }
}

/// How a rack decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies {
    /// What its rows are called.
    pub name: String,
    /// Who decides when to collect.
    pub coordination: Coordination,
    /// What collection does to the vSSD's other work.
    pub gc_mode: GcMode,
    /// Order of waiting requests.
    pub scheduler: Policy,
    /// A central controller shapes flows (VDC).
    pub shaped: bool,
    /// Who goes first at the ToR's ports, where these are limited.
    pub network: Discipline,
}

/// What clients do.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What its rows say.
    pub name: String,
    /// Shares of the actions.
    pub mix: Mix,
    /// Which pages.
    pub pattern: Pattern,
    /// Which ranges.
    pub shape: Shape,
    /// How fast.
    pub pace: Pace,
    /// How uneven in time.
    pub burst: Burst,
    /// How uneven the last client host's requests are, if it differs.
    pub last_burst: Option<Burst>,
    /// An application whose requests these are: it decides mix, pattern, shape and burst.
    pub app: Option<&'static App>,
    /// Requests that bring the flash into a steady state, after it was filled.
    pub warm: u64,
    /// Requests that are measured.
    pub measured: u64,
}

impl Workload {
    /// Single zipfian pages, a Poisson process of `per_second` requests, this share of which are writes.
    pub fn writes(share: f64, per_second: f64) -> Self {
        Self {
            name: format!("ycsb-w{:.0}", share * 100.0),
            mix: Mix::writes(share),
            pattern: Pattern::Zipfian,
            shape: Shape::PAGE,
            pace: Pace::Open {
                per_second,
                outstanding_max: 20_000,
            },
            burst: Burst::default(),
            last_burst: None,
            app: None,
            warm: 40_000,
            measured: 60_000,
        }
    }

    /// An application, on a rack that would serve `per_second` single zipfian pages.
    pub fn app(app: &'static App, per_second: f64) -> Self {
        let of_pages = Self::writes(app.write_share, per_second);
        let pace = match (app.arrivals, of_pages.pace) {
            (Arrivals::Open { rate }, Pace::Open { outstanding_max, .. }) => Pace::Open {
                per_second: per_second * rate,
                outstanding_max,
            },
            (Arrivals::Open { .. }, closed) => closed,
            (Arrivals::Closed { depth }, _) => Pace::Closed { depth },
        };
        Self {
            name: app.name.to_owned(),
            app: Some(app),
            pace,
            ..of_pages
        }
    }

    /// What clients were to do, over all of them, and did.
    fn made_with(&self, clients: &ClientStats) -> Map<String, Value> {
        let mut made = match self.pace {
            Pace::Open {
                per_second,
                outstanding_max,
            } => vec![
                ("rate_per_second", json!(per_second)),
                ("outstanding_max", json!(outstanding_max)),
            ],
            Pace::Closed { depth } => vec![("depth", json!(depth))],
        };
        made.extend([
            ("warm", json!(self.warm)),
            ("measured", json!(self.measured)),
            ("shed", json!(clients.shed)),
        ]);
        made.into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// The application's requests, if it is one, to a volume of so many pages, at the pace of one client host.
    pub fn stream(&self, pace: Pace, pages: u64) -> Option<Box<dyn Stream>> {
        let per_second = match pace {
            Pace::Open { per_second, .. } => per_second,
            Pace::Closed { .. } => f64::INFINITY,
        };
        Some(Box::new(AppStream::new(self.app?, pages, per_second)))
    }
}

/// What becomes one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The rack.
    pub hardware: Hardware,
    /// Its policies.
    pub policies: Policies,
    /// Its clients.
    pub workload: Workload,
    /// What the figure varies, by name.
    pub parameters: Map<String, Value>,
    /// Show the distribution of reads' latency.
    pub cdf: bool,
}

/// What becomes a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The experiment's name.
    pub name: &'static str,
    /// The rows to come.
    pub cases: Vec<Case>,
}

impl Plan {
    /// True if, for workloads of equal name and equal parameters, all policies have equal hardware and equal clients.
    pub fn is_fair(&self) -> bool {
        let beside = |a: &Case, b: &Case| a.workload.name == b.workload.name && a.parameters == b.parameters;
        let same = |a: &Case, b: &Case| a.hardware == b.hardware && a.workload == b.workload;
        let differs = |a: &Case| self.cases.iter().any(|b| beside(a, b) && !same(a, b));
        !self.cases.iter().any(differs)
    }

    /// Runs all cases, one after the other.
    ///
    /// # Panics
    /// If the plan is not fair.
    pub fn run(&self, seed: u64, progress: Progress<'_>) -> Figure {
        assert!(
            self.is_fair(),
            "{}: policies differ in hardware or clients",
            self.name
        );
        let mut figure = Figure::new(self.name, seed);
        // Where it differs, rows alone tell.
        let first = self.cases.first();
        if let Some(case) =
            first.filter(|first| self.cases.iter().all(|case| case.hardware == first.hardware))
        {
            figure
                .parameters
                .insert("hardware".to_owned(), case.hardware.to_json());
        }
        for case in &self.cases {
            progress(&format!(
                "{}: {} {}",
                self.name, case.policies.name, case.workload.name
            ));
            figure.rows.push(case.run(seed));
        }
        figure
    }
}

impl Case {
    /// Runs it, or takes the row of an equal run that was made before.
    pub fn run(&self, seed: u64) -> Row {
        let memo::Known { mut row, read_cdf } = memo::run(self, seed);
        if self.cdf {
            row.more.insert("read_cdf".to_owned(), read_cdf);
        }
        self.describe(&mut row);
        row
    }

    /// Adds to a row of this case what the figure varies, and the hardware.
    pub fn describe(&self, row: &mut Row) {
        row.parameters.extend(self.parameters.clone());
        row.made_with
            .insert("hardware".to_owned(), self.hardware.to_json());
    }
}

/// An experiment's name and plan.
pub type Planned = (&'static str, fn() -> Plan);

/// The experiments that run plans, and theirs: all must be [fair](Plan::is_fair). Figures 22 and 23 have none, as they
/// are about wear alone.
pub const PLANS: &[Planned] = &[
    ("gc-tail", gc_tail::plan),
    ("fig9", ycsb::sweep),
    ("fig10", ycsb::sweep),
    ("fig11", ycsb::sweep),
    ("fig12", ycsb::throughput),
    ("fig13", apps::plan),
    ("fig14", apps::plan),
    ("fig15", ycsb::breakdown),
    ("fig16", ycsb::distribution),
    ("fig17", schedulers::plan),
    ("fig18", netsched::plan),
    ("fig19", pairs::distributions),
    ("fig20", pairs::improvements),
    ("fig21", isolation::plan),
];

/// The plan of the experiment of this name, if it runs one.
pub fn plan_of(experiment: &str) -> Option<Plan> {
    let planned = PLANS.iter().find(|(name, _)| *name == experiment)?;
    Some(planned.1())
}

/// Fills the volume, warms up, measures.
pub fn run(hardware: &Hardware, system: System, workload: &Workload, seed: u64) -> Row {
    measure(hardware, &system.policies(), workload, seed).0
}

/// As [`run`], with policies of one's own, and with all latencies.
///
/// # Panics
/// If a request was not answered well, which without faults does not happen.
pub fn measure(hardware: &Hardware, policies: &Policies, workload: &Workload, seed: u64) -> (Row, Latencies) {
    let stream = |load: &LoadSpec| workload.stream(load.pace, hardware.pages());
    let (row, outcome) = measure_streams(
        hardware,
        policies,
        workload,
        seed,
        [&mut { stream }, &mut { stream }],
    );
    assert!(
        outcome.violations.is_empty(),
        "without faults nothing goes wrong: {:?}",
        outcome.violations
    );
    (row, outcome.latencies)
}

/// Where a load's requests come from, if not from its mix.
type Streams<'a> = &'a mut dyn FnMut(&LoadSpec) -> Option<Box<dyn Stream>>;

/// As [`measure`], with the requests of the warm-up and of what is measured from streams, where there are any; what went
/// wrong is in the outcome.
fn measure_streams(
    hardware: &Hardware,
    policies: &Policies,
    workload: &Workload,
    seed: u64,
    [warm, measured]: [Streams<'_>; 2],
) -> (Row, Outcome) {
    let fleet = RackFleet::new(options(hardware, policies));
    let mut spec = run_spec(seed, hardware.pages());
    spec.world.link = hardware.server_link;
    let client = spec.volumes[0];
    spec.volumes = (1..=hardware.clients)
        .map(|id| ClientVolume {
            id: VolumeId(id),
            ..client
        })
        .collect();
    let gateways: Vec<usize> = (0..hardware.clients)
        .map(|client| fleet.gateway(client))
        .collect();
    let [fills, warms, measures] = phases(hardware, workload, &gateways);
    spec.loads = fills;
    let mut run = Run::new(fleet, spec);
    run.world().net().separate(seed);
    run.execute();
    add(&mut run, warms, warm);
    run.execute();
    let before = counted(&mut run);
    add(&mut run, measures, measured);
    let outcome = run.execute();
    let during = counted(&mut run).since(&before);
    let row = row(policies, workload, &outcome.clients, &outcome.latencies, &during);
    (row, outcome)
}

/// What clients do at these gateways, one after the other: they fill the volumes, warm the flash up, and are measured.
pub fn phases(hardware: &Hardware, workload: &Workload, gateways: &[usize]) -> [Vec<LoadSpec>; 3] {
    let fill = |(volume, &gateway)| fill(gateway, volume, hardware.pages());
    let mut warm = loads(gateways, workload, workload.warm);
    for load in &mut warm {
        load.record_after = Instant::FAR_FUTURE;
    }
    let fills = gateways.iter().enumerate().map(fill).collect();
    [fills, warm, loads(gateways, workload, workload.measured)]
}

/// The network of a rack, with the delays that it has in a run of this seed.
pub fn network(fleet: &RackFleet, hardware: &Hardware, seed: u64) -> Network {
    let mut net = Network::new(fleet.hosts(), hardware.server_link, Rng::new(seed).fork());
    for (from, to, model) in fleet.links() {
        net.set_link(from, to, model);
    }
    net.separate(seed);
    net
}

/// Adds every client's load.
fn add(run: &mut Run<RackFleet>, loads: Vec<LoadSpec>, streams: Streams<'_>) {
    for load in loads {
        match streams(&load) {
            Some(stream) => run.add_stream(load, stream),
            None => run.add_load(load),
        }
    }
}

/// What hosts of a rack have counted.
#[derive(Clone, Debug)]
pub struct Counted {
    user_programs: u64,
    gc_programs: u64,
    /// Soft requests to collect that the ToR accepted.
    soft_collections: u64,
    /// Packets that gateways sent again.
    retransmissions: u64,
    /// Time of reads between their arrival at the server that answers and its answer, in ns.
    reads: Histogram<u64>,
}

impl Counted {
    /// By these hosts.
    pub fn of<'a>(hosts: impl Iterator<Item = &'a RackHost> + Clone) -> Self {
        let mut stages = Stages::new();
        let (mut soft_collections, mut retransmissions) = (0, 0);
        for host in hosts.clone() {
            match host {
                RackHost::Node(node) => node.units().for_each(|unit| stages.merge(unit.stages())),
                RackHost::Tor(tor) => soft_collections += tor.stats().gc_soft,
                RackHost::Gateway(gateway) => retransmissions += gateway.stats().retransmissions,
                RackHost::Controller(_) => {}
            }
        }
        let totals = flash_totals(hosts);
        Self {
            user_programs: totals.user_programs,
            gc_programs: totals.gc_programs,
            soft_collections,
            retransmissions,
            reads: stages.storage().clone(),
        }
    }

    /// Adds what others have counted.
    pub fn merge(&mut self, other: &Self) {
        self.user_programs += other.user_programs;
        self.gc_programs += other.gc_programs;
        self.soft_collections += other.soft_collections;
        self.retransmissions += other.retransmissions;
        self.reads.add(&other.reads).expect("equal bounds");
    }

    /// What was counted since then.
    ///
    /// # Panics
    /// If a counter has shrunk: a host was started anew.
    pub fn since(mut self, before: &Self) -> Self {
        self.reads.subtract(&before.reads).expect("counters only grow");
        Self {
            user_programs: self.user_programs - before.user_programs,
            gc_programs: self.gc_programs - before.gc_programs,
            soft_collections: self.soft_collections - before.soft_collections,
            retransmissions: self.retransmissions - before.retransmissions,
            reads: self.reads,
        }
    }
}

fn counted(run: &mut Run<RackFleet>) -> Counted {
    let hosts = run.fleet().hosts();
    let world = run.world();
    let up: Vec<&RackHost> = (0..hosts).filter_map(|i| world.host(i)).collect();
    Counted::of(up.into_iter())
}

/// The row of a run, of what its clients and its hosts have seen while it was measured.
pub fn row(
    policies: &Policies,
    workload: &Workload,
    clients: &ClientStats,
    latencies: &Latencies,
    hosts: &Counted,
) -> Row {
    let seconds = (clients.recorded_to_ns - clients.recorded_from_ns) as f64 / 1e9;
    let user = hosts.user_programs as f64;
    let answered = latencies.read.len() + latencies.write.len();
    let storage = Percentiles::of(&hosts.reads).to_json();
    Row {
        policy: policies.name.clone(),
        workload: workload.name.clone(),
        parameters: Map::new(),
        made_with: workload.made_with(clients),
        read: Percentiles::of(&latencies.read),
        write: Percentiles::of(&latencies.write),
        iops: answered as f64 / seconds,
        write_amplification: (user + hosts.gc_programs as f64) / user,
        more: Map::from_iter([
            ("storage_read".to_owned(), storage),
            ("soft_collections".to_owned(), json!(hosts.soft_collections)),
            ("retransmissions".to_owned(), json!(hosts.retransmissions)),
        ]),
    }
}

/// The rack of a run.
pub fn options(hardware: &Hardware, policies: &Policies) -> RackOptions {
    let mut gc = rack::gc::Config::for_spare(hardware.spare_ratio());
    gc.coordination = policies.coordination;
    // Whoever nobody coordinates begins at the threshold below which it must.
    let begins = match policies.coordination {
        Coordination::None => gc.hard_ratio,
        Coordination::Controller | Coordination::Rack => gc.soft_ratio,
    };
    gc.restore_ratio = begins + hardware.gc_slice_ratio;
    RackOptions {
        nodes: hardware.nodes,
        gateways: hardware.clients,
        geometry: hardware.geometry,
        timing: hardware.timing.clone(),
        gc_mode: policies.gc_mode,
        checkpoint_every_programs: u64::MAX,
        borrow_blocks: hardware.borrow_blocks,
        unit: UnitConfig {
            policy: policies.scheduler,
            cache_pages: hardware.cache_pages,
            read_depth: hardware.read_depth,
            write_depth: hardware.write_depth,
            device_depth: hardware.device_depth,
            dirty_ratio_low: hardware.dirty_ratio_low,
            gc,
        },
        request_timeout: Duration::from_secs(60),
        client_link: hardware.client_link,
        egress: (hardware.port_ns_per_kilobyte > 0).then_some(Egress {
            discipline: policies.network,
            ns_per_kilobyte: hardware.port_ns_per_kilobyte,
        }),
        controller: central(hardware, policies),
        failover: None,
        volumes: vec![
            Layout {
                sets: hardware.sets,
                pages_per_set: hardware.pages_per_set,
                replicas: hardware.replicas,
                channels: hardware.channels,
                rows: hardware.rows,
                durability: Durability::Memory,
            };
            hardware.clients as usize
        ],
    }
}

/// VDC's controller, or that of RackBlox (Software).
fn central(hardware: &Hardware, policies: &Policies) -> Option<Central> {
    if !policies.shaped && policies.coordination != Coordination::Controller {
        return None;
    }
    let planes = hardware.geometry.channels * hardware.geometry.units_per_channel();
    let link_ns = hardware.server_link.ns_per_kilobyte;
    Some(Central::new(&hardware.timing, planes, link_ns))
}

fn fill(gateway: usize, volume: usize, pages: u64) -> LoadSpec {
    LoadSpec {
        pattern: Pattern::Sequential,
        mix: Mix::writes(1.0),
        pace: Pace::Closed { depth: 256 },
        record_after: Instant::FAR_FUTURE,
        ..LoadSpec::new(gateway, volume, pages)
    }
}

/// The workload, in equal parts of `requests` and of its rate for each client host. A closed loop's depth is each one's.
fn loads(gateways: &[usize], workload: &Workload, requests: u64) -> Vec<LoadSpec> {
    let clients = gateways.len();
    let pace = match workload.pace {
        Pace::Open {
            per_second,
            outstanding_max,
        } => Pace::Open {
            per_second: per_second / clients as f64,
            outstanding_max,
        },
        closed @ Pace::Closed { .. } => closed,
    };
    let load = |(volume, &gateway): (usize, &usize)| LoadSpec {
        pattern: workload.pattern,
        mix: workload.mix,
        shape: workload.shape,
        pace,
        burst: workload
            .last_burst
            .filter(|_| volume + 1 == clients)
            .unwrap_or(workload.burst),
        ..LoadSpec::new(gateway, volume, requests / clients as u64)
    };
    gateways.iter().enumerate().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::EXPERIMENTS;
    use std::collections::BTreeSet;

    #[test]
    fn in_every_figure_all_policies_have_the_same_hardware() {
        for (figure, plan) in PLANS {
            let mut plan = plan();
            assert!(plan.is_fair(), "{figure}");
            let mut other = plan.cases[0].clone();
            other.hardware.cache_pages += 1;
            other.policies.name.push('x');
            plan.cases.push(other);
            assert!(!plan.is_fair(), "{figure}: a difference is seen");
            let mut other = plan.cases.pop().expect("it was just added");
            other.hardware = plan.cases[0].hardware.clone();
            other.workload.measured += 1;
            plan.cases.push(other);
            assert!(!plan.is_fair(), "{figure}: a difference of the clients is seen");
        }
    }

    #[test]
    fn every_figure_has_its_plan_in_the_list() {
        let figures = EXPERIMENTS.iter().map(|experiment| experiment.name);
        let figures: BTreeSet<&str> = figures
            .filter(|name| name.starts_with("fig") || *name == "gc-tail")
            .collect();
        let listed = PLANS.iter().map(|(figure, _)| *figure);
        let listed: BTreeSet<&str> = listed.chain(["fig22", "fig23"]).collect();
        assert_eq!(figures, listed);
    }

    #[test]
    #[should_panic(expected = "policies differ in hardware or clients")]
    fn an_unfair_plan_is_not_run() {
        let mut plan = ycsb::distribution();
        plan.cases[1].hardware.cache_pages += 1;
        plan.run(1, &mut |_| {});
    }

    #[test]
    fn a_run_repeats_and_its_row_is_whole() {
        let hardware = Hardware {
            pages_per_set: 2_048,
            geometry: Geometry {
                blocks_per_plane: 16,
                ..Hardware::default().geometry
            },
            ..Hardware::default()
        };
        let workload = Workload {
            warm: 4_000,
            measured: 4_000,
            ..Workload::writes(0.5, 2_000.0)
        };
        let row = run(&hardware, System::RackBlox, &workload, 1);
        assert_eq!(row.read.count + row.write.count, 4_000);
        assert!(
            row.read.p50_us > 0.0 && row.read.p50_us <= row.read.p9999_us,
            "{row:?}"
        );
        assert!((1_500.0..2_500.0).contains(&row.iops), "{row:?}");
        assert!((1.0..4.0).contains(&row.write_amplification), "{row:?}");
        let made = |name: &str| row.made_with[name].as_f64();
        assert_eq!(
            (made("rate_per_second"), made("measured"), made("shed")),
            (Some(2_000.0), Some(4_000.0), Some(0.0))
        );
        assert_eq!(row, run(&hardware, System::RackBlox, &workload, 1));
    }
}
