//! A run of the modelled rack: it fills the volumes, warms the flash up until collection is steady, and measures.

use super::figure::{Percentiles, Row};
use super::setup::{Hardware, Policies, System, Workload};
use crate::client::{ClientStats, ClientVolume, Latencies, LoadSpec, Pace};
use crate::media::MediaModel;
use crate::net::{Delay, LinkModel, NetFaults, Network};
use crate::rack::{
    Layout, RackFleet, RackHost, RackOptions, SECTOR_BYTES, SIM_PAGE_BYTES, Tors, flash_totals, newest,
};
use crate::run::{AtCut, Fleet, Outcome, Run, RunSpec};
use crate::workload::stream::Stream;
use crate::workload::{Mix, Pattern};
use crate::world::{Canary, WorldOptions};
use base::device::{LIMIT, LatencyModel};
use base::{Duration, Instant, Rng, VolumeId};
use hdrhistogram::Histogram;
use host::node::{Stages, UnitConfig};
use host::{Central, Egress};
use rack::gc::{Coordination, TOR_LEASE};
use rack::registry::Durability;
use rack::{scrub, slow};
use serde_json::{Map, json};

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

/// Source of a load's requests, if not its mix.
pub(super) type Streams<'a> = &'a mut dyn FnMut(&LoadSpec) -> Option<Box<dyn Stream>>;

/// As [`measure`], with the requests of the warm-up and of what is measured from streams, where there are any; what went
/// wrong is in the outcome.
pub(super) fn measure_streams(
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

/// Phases of the clients at these gateways: they fill the volumes, warm the flash up, and are measured.
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

/// Counters of a rack's hosts.
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

    /// Counts since then.
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
        tors: Tors::One,
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
        scrub: scrub::Options::OFF,
        slow: slow::Rules::NEVER,
        request_timeout: Duration::from_secs(60),
        client_link: hardware.client_link,
        egress: (hardware.port_ns_per_kilobyte > 0).then_some(Egress {
            discipline: policies.network,
            ns_per_kilobyte: hardware.port_ns_per_kilobyte,
        }),
        reads: policies.reads,
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
        levels: newest,
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

/// A run without faults and checks, of one volume.
pub fn run_spec(seed: u64, pages: u64) -> RunSpec {
    RunSpec {
        world: WorldOptions {
            seed,
            link: LinkModel {
                delay: Delay::Constant(2_000),
                ..LinkModel::default()
            },
            media: MediaModel {
                page_bytes: SIM_PAGE_BYTES,
                sector_bytes: SECTOR_BYTES,
                latency: LatencyModel {
                    io_ns: 0,
                    flush_ns: 0,
                },
                limit: LIMIT,
                volatile: false,
                loses_flushes: false,
            },
            wire_check: false,
            canary: Canary::None,
            cut: None,
        },
        volumes: vec![ClientVolume {
            id: base::VolumeId(1),
            pages,
            check: false,
            durability: false,
            durable_writes: false,
        }],
        loads: Vec::new(),
        faults: Vec::new(),
        net_faults: NetFaults::default(),
        calm_ns: 0,
        answer_ns: 120_000_000_000,
        gc_lease_ns: TOR_LEASE.as_nanos() as u64,
        pool_pages: 1 << 16,
        read_back: false,
        exam: false,
        probe: false,
        errors_are_violations: true,
        at_cut: AtCut::Rack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Geometry;

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
