//! How a rack is set up: defaults, under a TOML file, under flags.
//!
//! [`Options`] is both the file's keys and the flags (`rack_port` is `--rack-port`), every one optional;
//! [`Config`] is what they come to, validated. Each error names the key, its value and what to write instead.
//! `docs/configuration.md` documents every key, and a test checks that it does.

use crate::datadir::Shape;
use crate::failure::Failure;
use crate::size::Size;
use anyhow::Context;
use base::limits::{CHANNELS_MAX, PAGE_BYTES, REPLICAS_MAX};
use base::{Addr, NodeId};
use clap::{Args, ValueEnum};
use flash::{GcMode, Timing};
use host::Central;
use host::gateway::{REQUEST_TIMEOUT, Reads};
use rack::gc::Coordination;
use rack::heal::Rules;
use rack::level::{self, Levels};
use rack::pace::Cap;
use rack::placement::Isolation;
use rack::registry::Durability;
use rack::sched::{Policy, Targets};
use rack::scrub;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where media are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MediaKind {
    /// Files in the rack's directory, with O_DIRECT.
    File,
    /// Memory; everything is lost when the rack stops.
    Memory,
}

/// What chooses among the reads and write-backs that wait for a vSSD's flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// One queue.
    Fifo,
    /// As Linux's mq-deadline.
    Deadline,
    /// As Linux's Kyber.
    Kyber,
}

/// What a scheduler goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scheduling {
    /// By end-to-end time: network so far, waiting, predicted way back (RackBlox §3.4).
    Coordinated,
    /// By arrival.
    #[serde(alias = "fifo")]
    #[value(alias = "fifo")]
    Arrival,
}

/// What collection does to other work of the vSSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Collecting {
    /// Collection moves a few pages at a time, and requests pass between.
    Preemptible,
    /// Collection holds the channel for a whole victim, as RackBlox's devices do.
    Blocking,
    /// Collection costs no modelled time.
    Free,
}

/// Who decides when a vSSD collects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum GcPolicy {
    /// The ToR lets replicas collect in turn, and sends reads to the replica that does not collect (RackBlox §3.5).
    Rack,
    /// A central controller: servers ask it, and a collecting server names a replica (RackBlox (Software)).
    Controller,
    /// Nobody: each server decides alone (the baseline).
    None,
}

/// Who divides the servers among volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Shaping {
    /// Nobody.
    None,
    /// A central controller, by the demand of flows (VDC, after Pulsar, OSDI'14).
    Vdc,
}

/// Which replica of a set a page is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ReadFrom {
    /// The one that is likely to answer first, by its recent times and the reads under way.
    Fastest,
    /// The first one, as RackBlox's clients do: the ToR alone leads reads elsewhere.
    First,
}

impl From<ReadFrom> for Reads {
    fn from(which: ReadFrom) -> Self {
        match which {
            ReadFrom::Fastest => Self::Fastest,
            ReadFrom::First => Self::First,
        }
    }
}

/// Everything that may be set, in a file or by a flag. Unset means the default.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Directory of the rack: registry, media, lock [default: $SWITCHYARD_DIR or ./rack-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Storage servers of the rack, 1 to 32 [default: 4]
    #[arg(long, value_name = "N")]
    pub nodes: Option<u8>,
    /// Copies of each volume, on different nodes, 1 to 3 [default: 2]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u8>,
    /// Size of the volume `demo` that the first start creates; 0 creates none [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub demo: Option<Size>,
    /// Place of an acknowledged write: `memory` of all replicas (FLUSH makes it durable) or `media` [default: memory]
    #[arg(long, value_name = "WHEN")]
    pub durability: Option<String>,
    /// Emulated device time: p-ssd, intel-dc, optane, none, or a timing file [default: none]
    #[arg(long, value_name = "TIMING")]
    pub timing: Option<String>,
    /// Place of the media [default: file]
    #[arg(long, value_name = "KIND")]
    pub media: Option<MediaKind>,
    /// Size of each node's medium, reserved at the first start [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Channels of each node's SSD; a vSSD owns whole channels [default: 16]
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Chips behind each channel, 1 to 256; a channel group fits as many software-isolated vSSDs [default: 1, or 8 with `isolation = "software"`]
    #[arg(long, value_name = "N")]
    pub chips: Option<u32>,
    /// Channels that software-isolated vSSDs share [default: all]
    #[arg(long, value_name = "N")]
    pub group_channels: Option<u32>,
    /// Isolation of vSSDs: `hardware` (channels of their own) or `software` (chips on shared channels) [default: hardware]
    #[arg(long, value_name = "WHAT")]
    pub isolation: Option<String>,
    /// Share of the flash reserved for collection, 0.05 to 0.9 [default: 0.25]
    #[arg(long, value_name = "SHARE")]
    pub over_provisioning: Option<f64>,
    /// Write cache of each vSSD [default: an even part of half the pool, at most 8MiB]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
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
    /// Divider of the servers' flash and network among volumes; `vdc` needs a timing [default: none]
    #[arg(long, value_name = "WHO")]
    pub shaping: Option<Shaping>,
    /// The replica that pages are read from [default: fastest]
    #[arg(long, value_name = "WHICH")]
    pub reads: Option<ReadFrom>,
    /// Address for NBD clients [default: 127.0.0.1:10809]
    #[arg(long, value_name = "IP:PORT")]
    pub nbd: Option<SocketAddr>,
    /// Address for NVMe/TCP hosts, such as 127.0.0.1:4420 [default: none]
    #[arg(long, value_name = "IP:PORT")]
    pub nvme: Option<SocketAddr>,
    /// HTTP address for the commands and Prometheus [default: 127.0.0.1:9180]
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
    /// UDP port of the ToR on 127.0.0.1; the next ports are the gateway's and the nodes' [default: 8888]
    #[arg(long, value_name = "PORT")]
    pub rack_port: Option<u16>,
    /// Threads: ToR and gateway on the first, nodes over the rest [default: 1]
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,
    /// Pin each thread to a processor [default: false]
    #[arg(long, value_name = "BOOL")]
    pub pin: Option<bool>,
    /// Payload memory of each thread at most [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<Size>,
    /// Connections of clients; any more are closed at once [default: 1024]
    #[arg(long, value_name = "N")]
    pub connections: Option<u16>,
    /// Time that a thread polls after work before it sleeps, in µs [default: 50]
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// Seconds until an unanswered request of a client fails [default: 30]
    #[arg(long, value_name = "S")]
    pub request_timeout_s: Option<u64>,
    /// Seconds until a copy that a lost node had is made on another one [default: 60]
    #[arg(long, value_name = "S")]
    pub rebuild_after_s: Option<u64>,
    /// Seconds until a medium's unanswered operation is given up and the medium takes no more writes [default: 30]
    #[arg(long, value_name = "S")]
    pub media_timeout_s: Option<u64>,
    /// The most that a node copies in a second, in MiB, when copies are rebuilt or moved [default: no cap]
    #[arg(long, value_name = "MIB")]
    pub copy_mib_per_s: Option<u64>,
    /// What an idle node reads of its own pages in a second, in MiB, to find damage; 0 for nothing [default: 4]
    #[arg(long, value_name = "MIB")]
    pub scrub_mib_per_s: Option<u64>,
    /// Seconds from the begin of such a pass over all pages to that of the next one [default: 604800]
    #[arg(long, value_name = "S")]
    pub scrub_every_s: Option<u64>,
    /// The highest level of the rack that its parts may serve at, to keep the way back open [default: the newest]
    #[arg(long, value_name = "N")]
    pub level_max: Option<u8>,
}

macro_rules! overlay {
    ($over:expr, $under:expr, $($field:ident),+ $(,)?) => {
        Options { $($field: $over.$field.or($under.$field),)+ }
    };
}

impl Options {
    /// Reads a file's keys.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// These options; where one is unset, `under`'s.
    pub fn over(self, under: Self) -> Self {
        overlay!(
            self,
            under,
            dir,
            nodes,
            replicas,
            demo,
            durability,
            timing,
            media,
            size,
            channels,
            chips,
            group_channels,
            isolation,
            over_provisioning,
            cache,
            scheduler,
            scheduling,
            read_target_us,
            write_target_us,
            device_depth,
            gc,
            gc_mode,
            shaping,
            reads,
            nbd,
            nvme,
            control,
            rack_port,
            cores,
            pin,
            pool,
            connections,
            spin_us,
            request_timeout_s,
            rebuild_after_s,
            media_timeout_s,
            copy_mib_per_s,
            scrub_mib_per_s,
            scrub_every_s,
            level_max,
        )
    }

    /// These options over the file's, if one is named.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else { return Ok(self) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))
            .map_err(|error| Failure::Usage(format!("{error:#}")))?;
        let under = Self::from_toml(&text).map_err(|error| {
            Failure::Usage(format!(
                "{}: {error}\ndocs/configuration.md describes every key",
                path.display()
            ))
        })?;
        Ok(self.over(under))
    }
}

/// A rack's set-up, validated. Fields are the keys of [`Options`] unless they say otherwise.
#[derive(Clone, Debug)]
pub struct Config {
    /// The rack's directory.
    pub dir: PathBuf,
    /// Storage servers.
    pub nodes: u8,
    /// Default copies of a volume.
    pub replicas: u8,
    /// Bytes of the first volume, 0 for none.
    pub demo_bytes: u64,
    /// Default acknowledgement of writes.
    pub durability: Durability,
    /// Emulated device time.
    pub timing: Timing,
    /// Kind of media.
    pub media: MediaKind,
    /// Bytes of a medium.
    pub media_bytes: u64,
    /// Channels that software-isolated vSSDs share.
    pub group_channels: u32,
    /// Channels and chips of a new SSD.
    pub shape: Shape,
    /// Default isolation of vSSDs.
    pub isolation: Isolation,
    /// Share of the flash that is not visible.
    pub over_provisioning: f64,
    /// Pages of a vSSD's write cache.
    pub cache_pages: usize,
    /// What chooses among waiting requests.
    pub policy: Policy,
    /// Requests in a vSSD's flash at once.
    pub device_depth: usize,
    /// Who decides on collection.
    pub gc: GcPolicy,
    /// How collection shares the flash.
    pub gc_mode: Collecting,
    /// Who shapes flows.
    pub shaping: Shaping,
    pub reads: Reads,
    /// NBD address.
    pub nbd: SocketAddr,
    /// NVMe/TCP address, if there is one.
    pub nvme: Option<SocketAddr>,
    /// HTTP address.
    pub control: SocketAddr,
    /// The ToR's UDP port.
    pub rack_port: u16,
    /// Threads.
    pub cores: usize,
    /// Whether threads are pinned.
    pub pin: bool,
    /// Pages of a thread's pool.
    pub pool_pages: usize,
    /// Connections of clients.
    pub connections: u16,
    /// Polling after work.
    pub spin: Duration,
    /// Age at which a request fails.
    pub request_timeout: Duration,
    /// Age at which a medium's operation is given up.
    pub media_timeout: Duration,
    /// The most that a node copies to and from members that join.
    pub copy_cap: Cap,
    /// How nodes read their own pages.
    pub scrub: scrub::Options,
    /// How sets of volumes are healed.
    pub heal: Rules,
    /// The levels of the rack at which the parts here may serve (from `level_max`).
    pub levels: Levels,
}

/// Most nodes of a rack in one process: each has a socket with receive buffers out of the pool.
pub const NODES_MAX: u8 = 32;
/// A vSSD's write cache by default, at most.
const CACHE_PAGES_MAX: usize = 2048;
/// Requests in a vSSD's flash at once, by default and at most: its reads' and its write-backs' own limits together.
const DEVICE_DEPTH: usize = 128;
/// The largest target of a scheduler, in µs: a minute.
const TARGET_US_MAX: u64 = 60_000_000;
/// A vSSD's write cache, at least.
const CACHE_PAGES_MIN: usize = 16;
/// The smallest medium: below, a channel has too few erase blocks to collect garbage with.
pub const MEDIA_BYTES_MIN: u64 = 64 << 20;

/// Refuses a value: the key, the value, the reason and the remedy.
fn refuse(key: &str, value: impl std::fmt::Display, why: &str) -> anyhow::Error {
    Failure::Usage(format!(
        "{key} = {value}: {why} (flag --{})",
        key.replace('_', "-")
    ))
    .into()
}

fn within<T: PartialOrd + std::fmt::Display + Copy>(
    key: &str,
    value: T,
    low: T,
    high: T,
) -> anyhow::Result<T> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(refuse(key, value, &format!("{key} takes {low} to {high}")))
}

/// The default directory: `$SWITCHYARD_DIR` or `./rack-data`.
pub fn default_dir() -> PathBuf {
    std::env::var_os("SWITCHYARD_DIR").map_or_else(|| "rack-data".into(), PathBuf::from)
}

/// More connections would need more places for requests than a core has.
const CONNECTIONS_MAX: u16 = 16_384;

/// Where the commands and Prometheus connect by default.
pub const CONTROL: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9180));
/// Where NBD clients connect by default: the protocol's own port.
pub const NBD: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10809));

impl Config {
    /// Validates; unset options get their defaults.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let nodes = within("nodes", options.nodes.unwrap_or(4), 1, NODES_MAX)?;
        let replicas = match options.replicas {
            None => 2.min(nodes),
            Some(replicas) => within("replicas", replicas, 1, REPLICAS_MAX as u8)?,
        };
        if replicas > nodes {
            let why = format!(
                "each copy needs its own node, and the rack has {nodes}: add nodes, or ask for fewer copies"
            );
            return Err(refuse("replicas", replicas, &why));
        }
        let (shape, isolation) = flash_shape(&options)?;
        let group_channels = options.group_channels.unwrap_or(shape.channels);
        within("group_channels", group_channels, 1, shape.channels)?;
        let cores = within("cores", options.cores.unwrap_or(1), 1, 1 + usize::from(nodes))?;
        let rack_port = options.rack_port.unwrap_or(base::limits::RACK_PORT);
        within("rack_port", rack_port, 1, u16::MAX - u16::from(nodes) - 2)?;
        let pool_pages = pool_pages(options.pool, nodes)?;
        let (policy, shaping) = (policy(&options)?, shaping(&options)?);
        let depth = options.device_depth.unwrap_or(DEVICE_DEPTH);
        let vssds_max = usize::from(nodes).div_ceil(cores.saturating_sub(1).max(1))
            * shape
                .channels
                .max(shape.chips * (shape.channels / group_channels)) as usize;
        Ok(Self {
            dir: options.dir.unwrap_or_else(default_dir),
            nodes,
            replicas,
            demo_bytes: volume_bytes("demo", options.demo.unwrap_or(Size(1 << 30)))?,
            durability: durability("durability", options.durability.as_deref())?,
            timing: timing(options.timing.as_deref().unwrap_or("none"))?,
            media: options.media.unwrap_or(MediaKind::File),
            media_bytes: media_bytes(options.size.unwrap_or(Size(4 << 30)))?,
            shape,
            group_channels,
            isolation,
            over_provisioning: over_provisioning(options.over_provisioning)?,
            cache_pages: cache_pages(options.cache, pool_pages, vssds_max)?,
            policy,
            device_depth: within("device_depth", depth, 1, DEVICE_DEPTH)?,
            gc: options.gc.unwrap_or(GcPolicy::Rack),
            gc_mode: options.gc_mode.unwrap_or(Collecting::Preemptible),
            shaping,
            reads: options.reads.map_or(Reads::Fastest, Reads::from),
            nbd: options.nbd.unwrap_or(NBD),
            nvme: options.nvme,
            control: options.control.unwrap_or(CONTROL),
            rack_port,
            cores,
            pin: options.pin.unwrap_or(false),
            pool_pages,
            connections: within(
                "connections",
                options.connections.unwrap_or(1024),
                1,
                CONNECTIONS_MAX,
            )?,
            spin: Duration::from_micros(within("spin_us", options.spin_us.unwrap_or(50), 0, 1_000_000)?),
            request_timeout: request_timeout(options.request_timeout_s)?,
            heal: heal(options.rebuild_after_s)?,
            media_timeout: media_timeout(options.media_timeout_s)?,
            copy_cap: copy_cap(options.copy_mib_per_s)?,
            scrub: scrubbing(options.scrub_mib_per_s, options.scrub_every_s)?,
            levels: levels(options.level_max)?,
        })
    }

    /// What a central controller does, if anything is left to one, and where it is on the loopback.
    pub fn central(&self) -> Option<(Central, Addr)> {
        if self.gc != GcPolicy::Controller && self.shaping != Shaping::Vdc {
            return None;
        }
        let planes = self.shape.channels * self.shape.chips;
        let addr = self.rack_addr(u16::from(self.nodes) + 2);
        Some((Central::new(&self.timing, planes, 0), addr))
    }

    /// The same, if the gateway is to shape its flows by it.
    pub fn shapes(&self) -> Option<(Central, Addr)> {
        self.central().filter(|_| self.shaping == Shaping::Vdc)
    }

    /// A host's UDP address on the loopback: 0 is the ToR, 1 the gateway, 1 + n node n, then a controller.
    pub fn rack_addr(&self, place: u16) -> Addr {
        Addr::new([127, 0, 0, 1], self.rack_port + place)
    }

    /// How a core is set up; `index` counts the cores. Clients are at the first one.
    pub fn core(&self, index: usize) -> runtime::CoreConfig {
        let cpus = runtime::cpu::allowed();
        let mut core = runtime::CoreConfig::with(self.pool_pages, self.spin);
        core.cpu = self.pin.then(|| cpus[index % cpus.len()]);
        core.media_limit = self.media_timeout;
        core.target.connections_max = if index == 0 { self.connections.into() } else { 1 };
        core
    }

    /// How a node is set up.
    pub fn node(&self, id: NodeId, addr: Addr, tors: Vec<Addr>) -> host::NodeConfig {
        let mut node = host::NodeConfig::new(id, addr, tors);
        node.timing = self.timing.clone();
        node.over_provisioning = self.over_provisioning;
        node.gc_mode = match self.gc_mode {
            Collecting::Preemptible => node.gc_mode,
            Collecting::Blocking => GcMode::Blocking,
            Collecting::Free => GcMode::Free,
        };
        node.unit.gc = rack::gc::Config::for_spare(self.over_provisioning);
        node.unit.gc.coordination = match self.gc {
            GcPolicy::Rack => Coordination::Rack,
            GcPolicy::Controller => Coordination::Controller,
            GcPolicy::None => Coordination::None,
        };
        node.controller = self.central().map(|(_, addr)| addr);
        node.unit.policy = self.policy;
        node.unit.device_depth = self.device_depth;
        node.unit.cache_pages = self.cache_pages;
        node.copy_cap = self.copy_cap;
        node.group_channels = self.group_channels;
        node.scrub = self.scrub;
        node.levels = self.levels;
        node
    }
}

/// The levels that the parts here know.
fn levels(max: Option<u8>) -> anyhow::Result<Levels> {
    let max = max.unwrap_or(level::NEWEST);
    let held = Levels::up_to(within("level_max", max, level::FIRST, level::NEWEST)?);
    Ok(held.expect("it was checked"))
}

/// Bytes of a volume, checked: whole sectors.
pub fn volume_bytes(key: &str, size: Size) -> anyhow::Result<u64> {
    if !size.0.is_multiple_of(base::limits::SECTOR_BYTES as u64) {
        return Err(refuse(key, size.0, "a volume takes a multiple of 512 bytes"));
    }
    Ok(size.0)
}

fn media_bytes(size: Size) -> anyhow::Result<u64> {
    if size.0 < MEDIA_BYTES_MIN {
        let why = format!("garbage collection needs at least {}", Size(MEDIA_BYTES_MIN));
        return Err(refuse("size", size, &why));
    }
    Ok(size.0)
}

/// When writes are acknowledged, by name.
pub fn durability(key: &str, name: Option<&str>) -> anyhow::Result<Durability> {
    match name {
        None | Some("memory") => Ok(Durability::Memory),
        Some("media") => Ok(Durability::Media),
        Some(other) => Err(refuse(key, other, "choose `memory` or `media`")),
    }
}

/// The shape of new SSDs, and what vSSDs share on them.
fn flash_shape(options: &Options) -> anyhow::Result<(Shape, Isolation)> {
    let isolation = isolation("isolation", options.isolation.as_deref())?;
    let chips = match isolation {
        Isolation::Hardware => 1,
        Isolation::Software => 8,
    };
    let shape = Shape {
        channels: within("channels", options.channels.unwrap_or(16), 1, CHANNELS_MAX as u32)?,
        chips: within("chips", options.chips.unwrap_or(chips), 1, 256)?,
    };
    Ok((shape, isolation))
}

/// What flows may use is device time, of which there is none without a timing.
fn shaping(options: &Options) -> anyhow::Result<Shaping> {
    let shaping = options.shaping.unwrap_or(Shaping::None);
    let timed = options.timing.as_deref().is_some_and(|name| name != "none");
    if shaping == Shaping::Vdc && !timed {
        return Err(refuse(
            "shaping",
            "vdc",
            "VDC divides device time: set timing, for example p-ssd",
        ));
    }
    Ok(shaping)
}

fn over_provisioning(share: Option<f64>) -> anyhow::Result<f64> {
    within("over_provisioning", share.unwrap_or(0.25), 0.05, 0.9)
}

/// What vSSDs share, by name.
pub fn isolation(key: &str, name: Option<&str>) -> anyhow::Result<Isolation> {
    match name {
        None | Some("hardware") => Ok(Isolation::Hardware),
        Some("software") => Ok(Isolation::Software),
        Some(other) => Err(refuse(key, other, "choose `hardware` or `software`")),
    }
}

/// The scheduler with its targets.
fn policy(options: &Options) -> anyhow::Result<Policy> {
    let coordinated = options.scheduling.unwrap_or(Scheduling::Coordinated) == Scheduling::Coordinated;
    let set = |default: Targets| -> anyhow::Result<Targets> {
        let us = |key: &str, us: Option<u64>, default: Duration| match us {
            None => Ok(default),
            Some(us) => within(key, us, 1, TARGET_US_MAX).map(Duration::from_micros),
        };
        Ok(Targets {
            read: us("read_target_us", options.read_target_us, default.read)?,
            write: us("write_target_us", options.write_target_us, default.write)?,
            ..default
        })
    };
    match options.scheduler.unwrap_or(Scheduler::Fifo) {
        Scheduler::Deadline => Ok(Policy::Deadline(set(Targets::deadline(coordinated))?)),
        Scheduler::Kyber => Ok(Policy::Kyber(set(Targets::kyber(coordinated))?)),
        Scheduler::Fifo => {
            for (key, target) in [
                ("read_target_us", options.read_target_us),
                ("write_target_us", options.write_target_us),
            ] {
                if let Some(us) = target {
                    return Err(refuse(
                        key,
                        us,
                        "the scheduler fifo has no targets: set scheduler to deadline or kyber",
                    ));
                }
            }
            Ok(if coordinated {
                Policy::Coordinated
            } else {
                Policy::Fifo
            })
        }
    }
}

fn heal(rebuild_after_s: Option<u64>) -> anyhow::Result<Rules> {
    let rules = Rules::default();
    let seconds = rebuild_after_s.unwrap_or(rules.rebuild_after.as_secs());
    Ok(Rules {
        rebuild_after: Duration::from_secs(within("rebuild_after_s", seconds, 1, 86_400)?),
        ..rules
    })
}

fn request_timeout(seconds: Option<u64>) -> anyhow::Result<Duration> {
    let seconds = within(
        "request_timeout_s",
        seconds.unwrap_or(REQUEST_TIMEOUT.as_secs()),
        1,
        3600,
    )?;
    Ok(Duration::from_secs(seconds))
}

fn copy_cap(mib_per_s: Option<u64>) -> anyhow::Result<Cap> {
    let mib_per_s = mib_per_s.map(|mib| within("copy_mib_per_s", mib, 1, 1_000_000));
    let bytes_per_s = mib_per_s.transpose()?.map(|mib| mib << 20);
    Ok(Cap { bytes_per_s })
}

fn scrubbing(mib_per_s: Option<u64>, every_s: Option<u64>) -> anyhow::Result<scrub::Options> {
    let usual = scrub::Options::default();
    let mib_per_s = mib_per_s.map(|mib| within("scrub_mib_per_s", mib, 0, 1_000_000));
    let every_s = every_s.unwrap_or(usual.every.as_secs());
    Ok(scrub::Options {
        bytes_per_s: mib_per_s.transpose()?.map_or(usual.bytes_per_s, |mib| mib << 20),
        every: Duration::from_secs(within("scrub_every_s", every_s, 1, 31_536_000)?),
    })
}

/// The time after which a medium's operation is given up.
pub fn media_timeout(seconds: Option<u64>) -> anyhow::Result<Duration> {
    let seconds = seconds.unwrap_or(base::device::LIMIT.as_secs());
    Ok(Duration::from_secs(within("media_timeout_s", seconds, 1, 3600)?))
}

/// The timing of flash: a built-in by name, or a file.
pub fn timing(name: &str) -> anyhow::Result<Timing> {
    if let Some(timing) = Timing::built_in(name) {
        return Ok(timing);
    }
    let built_in = Timing::BUILT_IN.join(", ");
    let text = std::fs::read_to_string(name).map_err(|error| {
        let why = format!("name a built-in timing ({built_in}) or a file; the file cannot be read: {error}");
        refuse("timing", name, &why)
    })?;
    Timing::parse(&text).map_err(|error| refuse("timing", name, &error.to_string()))
}

fn pool_pages(pool: Option<Size>, nodes: u8) -> anyhow::Result<usize> {
    let pool = pool.unwrap_or(Size(256 << 20));
    let least = Size((64 * (u64::from(nodes) + 3) + 4096) * PAGE_BYTES as u64);
    if pool.0 < least.0 {
        let why = format!("sockets and requests need at least {least}");
        return Err(refuse("pool", pool, &why));
    }
    Ok((pool.0 / PAGE_BYTES as u64) as usize)
}

/// The caches of all vSSDs together leave half the pool to packets and requests.
fn cache_pages(size: Option<Size>, pool_pages: usize, vssds_max: usize) -> anyhow::Result<usize> {
    match size {
        None => Ok((pool_pages / 2 / vssds_max).clamp(CACHE_PAGES_MIN, CACHE_PAGES_MAX)),
        Some(size) => {
            let low = Size((CACHE_PAGES_MIN * PAGE_BYTES) as u64);
            let high = Size((pool_pages / 2 * PAGE_BYTES) as u64);
            if !(low..=high).contains(&size) {
                let why = format!("a cache takes {low} to {high}, half the pool (key pool)");
                return Err(refuse("cache", size, &why));
            }
            Ok((size.0 / PAGE_BYTES as u64) as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(clap::Parser)]
    struct Probe {
        #[command(flatten)]
        options: Options,
    }

    fn config(toml: &str) -> anyhow::Result<Config> {
        Config::new(Options::from_toml(toml)?)
    }

    #[test]
    fn an_empty_file_is_the_default_rack() {
        let config = config("").unwrap();
        assert_eq!((config.nodes, config.replicas, config.shape.channels), (4, 2, 16));
        assert_eq!(config.demo_bytes, 1 << 30);
        assert_eq!(config.rack_addr(0), Addr::new([127, 0, 0, 1], 8888));
        assert!(config.cache_pages >= CACHE_PAGES_MIN);
    }

    #[test]
    fn flags_win_over_the_file() {
        let flags = Options {
            nodes: Some(3),
            ..Options::default()
        };
        let file = Options::from_toml("nodes = 2\nsize = '1GiB'\ndemo = 0").unwrap();
        let merged = Config::new(flags.over(file)).unwrap();
        assert_eq!(
            (merged.nodes, merged.media_bytes, merged.demo_bytes),
            (3, 1 << 30, 0)
        );
    }

    #[test]
    fn the_most_that_is_copied_reaches_the_node() {
        let cap = |toml: &str| {
            let node = config(toml).unwrap().node(NodeId(1), Addr::NONE, Vec::new());
            node.copy_cap.bytes_per_s
        };
        assert_eq!(cap(""), None);
        assert_eq!(cap("copy_mib_per_s = 3"), Some(3 << 20));
    }

    #[test]
    fn how_nodes_read_their_own_pages_reaches_the_node() {
        let scrub = |toml: &str| {
            config(toml)
                .unwrap()
                .node(NodeId(1), Addr::NONE, Vec::new())
                .scrub
        };
        assert_eq!(scrub(""), scrub::Options::default());
        let set = scrub("scrub_mib_per_s = 0\nscrub_every_s = 60");
        assert_eq!((set.bytes_per_s, set.every), (0, Duration::from_secs(60)));
    }

    #[test]
    fn the_time_that_a_medium_has_reaches_the_core() {
        let limit = |toml: &str| config(toml).unwrap().core(0).media_limit;
        assert_eq!(limit(""), base::device::LIMIT);
        assert_eq!(limit("media_timeout_s = 5"), Duration::from_secs(5));
    }

    #[test]
    fn every_scheduler_can_be_chosen_with_and_without_coordination() {
        let policy = |toml: &str| config(toml).unwrap().policy;
        assert_eq!(policy(""), Policy::Coordinated);
        assert_eq!(policy("scheduling = 'fifo'"), Policy::Fifo);
        assert_eq!(
            policy("scheduler = 'deadline'"),
            Policy::Deadline(Targets::deadline(true))
        );
        let kyber = policy("scheduler = 'kyber'\nscheduling = 'arrival'\nwrite_target_us = 5000");
        let targets = Targets {
            write: Duration::from_millis(5),
            ..Targets::kyber(false)
        };
        assert_eq!(kyber, Policy::Kyber(targets));
    }

    #[test]
    fn what_a_controller_decides_brings_one() {
        let of = |toml: &str| {
            let config = config(toml).unwrap();
            let node = config.node(NodeId(1), config.rack_addr(2), vec![config.rack_addr(0)]);
            (config.central(), node)
        };
        let (central, node) = of("");
        assert!(central.is_none() && node.controller.is_none());
        let (central, node) = of("gc = 'controller'");
        assert_eq!(node.unit.gc.coordination, Coordination::Controller);
        assert_eq!(node.controller, Some(Addr::new([127, 0, 0, 1], 8888 + 6)));
        assert_eq!(central.map(|(_, addr)| addr), node.controller);
        let (central, node) = of("shaping = 'vdc'\ngc = 'none'\ntiming = 'p-ssd'\nchips = 2");
        assert_eq!(node.unit.gc.coordination, Coordination::None);
        let (central, addr) = central.expect("it shapes");
        assert_eq!(
            (Some(addr), central.capacity.storage_ns),
            (node.controller, 32_000_000_000)
        );
    }

    #[test]
    fn errors_name_key_value_and_remedy() {
        for (toml, parts) in [
            ("nodes = 0", ["nodes = 0", "1 to 32"]),
            ("replicas = 4", ["replicas = 4", "1 to 3"]),
            ("nodes = 1\nreplicas = 2", ["replicas = 2", "add nodes"]),
            ("size = '1MiB'", ["size = 1 MiB", "64 MiB"]),
            ("timing = 'nope'", ["timing = nope", "p-ssd"]),
            ("durability = 'x'", ["durability = x", "media"]),
            ("isolation = 'x'", ["isolation = x", "software"]),
            ("chips = 257", ["chips = 257", "1"]),
            ("group_channels = 17", ["group_channels = 17", "16"]),
            ("demo = 100", ["demo = 100", "512"]),
            ("pool = '1MiB'", ["pool = 1 MiB", "at least"]),
            ("cache = '1GiB'", ["cache = 1 GiB", "half the pool"]),
            ("over_provisioning = 0.99", ["over_provisioning = 0.99", "0.9"]),
            ("device_depth = 0", ["device_depth = 0", "1 to 128"]),
            ("read_target_us = 5", ["read_target_us = 5", "set scheduler"]),
            ("spin_us = 9999999", ["spin_us = 9999999", "--spin-us"]),
            ("copy_mib_per_s = 0", ["copy_mib_per_s = 0", "--copy-mib-per-s"]),
            ("scrub_every_s = 0", ["scrub_every_s = 0", "--scrub-every-s"]),
            ("media_timeout_s = 0", ["media_timeout_s = 0", "1 to 3600"]),
            (
                "media_timeout_s = 3601",
                ["media_timeout_s = 3601", "--media-timeout-s"],
            ),
            ("shaping = 'vdc'", ["shaping = vdc", "set timing"]),
        ] {
            let error = config(toml).expect_err(toml).to_string();
            for part in parts {
                assert!(error.contains(part), "{toml}: {error}");
            }
        }
        assert!(
            Options::from_toml("colour = 1").is_err(),
            "unknown keys are refused"
        );
    }

    #[test]
    fn every_key_is_documented() {
        let text = include_str!("../../../docs/configuration.md");
        for argument in Probe::command().get_arguments() {
            let key = argument.get_id().as_str();
            if key != "help" {
                assert!(
                    text.contains(&format!("`{key}`")),
                    "docs/configuration.md lacks `{key}`"
                );
                let flag = format!("{key} = 1");
                let known = Options::from_toml(&flag)
                    .err()
                    .is_none_or(|e| !e.message().contains("unknown field"));
                assert!(known, "{key} is a flag but no key");
            }
        }
    }
}
