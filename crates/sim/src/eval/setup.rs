//! Setup of a run: hardware, policies and workload.

use crate::client::{ClientStats, Pace, Shape};
use crate::net::{Delay, LinkModel};
use crate::workload::apps::{App, AppStream, Arrivals};
use crate::workload::stream::Stream;
use crate::workload::{Burst, Mix, Pattern};
use flash::{GcMode, Geometry, Timing};
use host::gateway::Reads;
use rack::gc::Coordination;
use rack::port::Discipline;
use rack::sched::{Policy, Targets};
use serde_json::{Map, Value, json};

/// Parts of a rack: the same for every policy that a figure compares.
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

    pub(super) fn to_json(&self) -> Value {
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

    /// Name in rows.
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

    /// Its parts.
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
            reads: match self {
                Self::Switchyard => Reads::Fastest,
                _ => Reads::First,
            },
            network: Discipline::Fifo,
        }
    }
}

/// How a rack decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies {
    /// Name in rows.
    pub name: String,
    /// Decider of collection.
    pub coordination: Coordination,
    /// Effect of collection on the vSSD's other work.
    pub gc_mode: GcMode,
    /// Order of waiting requests.
    pub scheduler: Policy,
    /// A central controller shapes flows (VDC).
    pub shaped: bool,
    /// Which replica a gateway reads from.
    pub reads: Reads,
    /// Order of packets at the ToR's ports, if these are limited.
    pub network: Discipline,
}

/// Work of the clients.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Name in rows.
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

    /// Planned and done work of all clients.
    pub(super) fn made_with(&self, clients: &ClientStats) -> Map<String, Value> {
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
