//! A rack so small that it is soon full, collects and makes checkpoints all the time: what tests of crashes are made of.
//! They say what differs.

use crate::client::{LoadSpec, Pace, Shape};
use crate::media::MediaModel;
use crate::net::{Delay, LinkModel, NetFaults};
use crate::rack::{Layout, RackFleet, RackOptions, SECTOR_BYTES, SIM_PAGE_BYTES, Tors, newest};
use crate::run::{AtCut, RunSpec};
use crate::workload::{Mix, Pattern};
use crate::world::{Canary, WorldOptions};
use base::device::{LIMIT, LatencyModel};
use flash::{GcMode, Geometry, Timing};
use host::gateway::{REQUEST_TIMEOUT, Reads};
use host::node::UnitConfig;
use rack::gc::{Coordination, TOR_LEASE};
use rack::registry::Durability;
use rack::sched::Policy;
use rack::{scrub, slow};

const MILLISECOND: u64 = 1_000_000;

/// Links that take 5 µs.
pub const LINK: LinkModel = LinkModel {
    delay: Delay::Constant(5_000),
    ns_per_kilobyte: 0,
    fifo: false,
    paths: 0,
    near_paths: 0,
};

/// SSDs of 20 blocks of four pages for each of a channel's chips.
pub fn geometry(channels: u32, chips_per_channel: u32) -> Geometry {
    Geometry {
        channels,
        chips_per_channel,
        planes_per_chip: 1,
        blocks_per_plane: 20,
        pages_per_block: 4,
    }
}

/// A volume of one set, whose vSSDs have a channel each.
pub fn layout(pages: u32, replicas: u32, durability: Durability) -> Layout {
    Layout {
        sets: 1,
        pages_per_set: pages,
        replicas,
        rows: 0,
        channels: 1,
        durability,
    }
}

/// A rack with one gateway, of vSSDs that have a chip each, on fast flash that is collected in small steps.
pub fn options(nodes: u32, geometry: Geometry, volumes: Vec<Layout>) -> RackOptions {
    let pages = geometry.blocks_per_plane * geometry.pages_per_block;
    let spare = 1.0 - f64::from(volumes[0].pages_per_set) / f64::from(pages);
    let mut gc = rack::gc::Config::for_spare(spare);
    gc.coordination = Coordination::Rack;
    RackOptions {
        nodes,
        gateways: 1,
        geometry,
        timing: Timing::built_in("optane").expect("optane is built in"),
        gc_mode: GcMode::Preemptible { step_pages: 2 },
        checkpoint_every_programs: 64,
        borrow_blocks: 0,
        unit: UnitConfig {
            policy: Policy::Coordinated,
            cache_pages: 16,
            read_depth: 4,
            write_depth: 4,
            device_depth: usize::MAX,
            dirty_ratio_low: 0.25,
            gc,
        },
        scrub: scrub::Options::OFF,
        slow: slow::Rules::default(),
        request_timeout: REQUEST_TIMEOUT,
        client_link: LINK,
        tors: Tors::One,
        egress: None,
        reads: Reads::Fastest,
        controller: None,
        failover: None,
        volumes,
        levels: newest,
    }
}

/// A load on each volume by each gateway, of `rate` requests a second: half of them write, some parts of pages or several pages.
pub fn mixed_loads(fleet: &RackFleet, rate: f64, seconds: u64) -> Vec<LoadSpec> {
    let load = |volume, gateway| LoadSpec {
        pace: Pace::Open {
            per_second: rate,
            outstanding_max: 4_000,
        },
        pattern: Pattern::Uniform,
        mix: Mix {
            flush: 0.02,
            trim: 0.05,
            ..Mix::writes(0.5)
        },
        shape: Shape {
            sub_page: 0.3,
            multi_page: 0.1,
            pages_max: 3,
        },
        fua: 0.1,
        ..LoadSpec::new(fleet.gateway(gateway), volume, rate as u64 * seconds)
    };
    let gateways = fleet.options().gateways;
    let volumes = 0..fleet.options().volumes.len();
    let pairs = volumes.flat_map(|volume| (0..gateways).map(move |gateway| (volume, gateway)));
    pairs.map(|(volume, gateway)| load(volume, gateway)).collect()
}

/// A run of it under every checker, whose drives lose what was not flushed.
pub fn spec(fleet: &RackFleet, seed: u64, link: LinkModel, loads: Vec<LoadSpec>) -> RunSpec {
    RunSpec {
        world: WorldOptions {
            seed,
            link,
            media: MediaModel {
                page_bytes: SIM_PAGE_BYTES,
                sector_bytes: SECTOR_BYTES,
                latency: LatencyModel {
                    io_ns: 10_000,
                    flush_ns: 100_000,
                },
                limit: LIMIT,
                volatile: true,
                loses_flushes: false,
            },
            wire_check: true,
            canary: Canary::None,
            cut: None,
        },
        loads,
        volumes: fleet.checked_volumes(),
        faults: Vec::new(),
        net_faults: NetFaults::default(),
        calm_ns: 300 * MILLISECOND,
        answer_ns: 20_000 * MILLISECOND,
        gc_lease_ns: TOR_LEASE.as_nanos() as u64,
        pool_pages: 1 << 12,
        read_back: true,
        exam: true,
        probe: true,
        // After a loss of power the next flush says that unflushed writes may be gone.
        errors_are_violations: false,
        at_cut: AtCut::Rack,
    }
}
