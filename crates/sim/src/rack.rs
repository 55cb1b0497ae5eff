//! The real hosts in the simulated world: ToRs, nodes and gateways of crate `host`.
//!
//! Index 0 is the ToR, then the nodes, then the gateways, then the controller if there is one, then the second ToR if there is one. A volume belongs to one gateway: volume `i` of the options to
//! gateway `i` modulo their number. The world's links are the nodes'; the gateways' links to the ToR have a model of
//! their own, as clients may be farther away.

use crate::check::Violation;
use crate::check::memory::Set;
use crate::client::ClientVolume;
use crate::commands::Wish;
use crate::fault::Metadata;
use crate::media::SimMedium;
use crate::net::LinkModel;
use crate::operators::{Attention, Control, MaybeGateway, Operators};
use crate::reached::{Changes, Situation};
use crate::run::{Fleet, Role};
use crate::world::{Site, World};
use base::event::Source;
use base::limits::{PAGE_BYTES, RACK_PORT, SECTORS_PER_PAGE};
use base::{Addr, Device, Duration, Instant, Lpn, Machine, NodeId, Pool, Rng, VolumeId, VssdId};
use flash::{GcMode, Geometry, Isolation, Ssd, Timing, Vssd, VssdStats};
use host::gateway::{Reads, Shaping};
use host::node::{Unit, UnitConfig};
use host::{
    Central, Controller, ControllerConfig, Egress, Gateway, GatewayConfig, Input, Node, NodeConfig, Output,
    Tor, TorConfig,
};
use rack::control::{Config, NodeStatus};
use rack::gc::TOR_LEASE;
use rack::level::Levels;
use rack::registry::{Durability, ReplicaRecord, SetRecord, Snapshot, VolumeRecord};
use rack::{scrub, slow};

/// Bytes of a simulated sector: a stamp.
pub const SECTOR_BYTES: usize = 16;
/// Bytes of a simulated page.
pub const SIM_PAGE_BYTES: usize = SECTOR_BYTES * SECTORS_PER_PAGE;

/// Bytes of a slot of the superblock, and of the spare area of a page (docs/format/flash.md).
const SUPERBLOCK_BYTES: u64 = 20_480;
const SPARE_BYTES: usize = 64;

/// Commands for which nodes get room, at most.
const ROOM_MAX: usize = 4;

/// One machine of the rack.
pub enum RackHost {
    /// The switch.
    Tor(Box<Tor>),
    /// A storage server.
    Node(Box<Node>),
    /// Where clients enter.
    Gateway(Box<Gateway>),
    /// The central controller of the published baselines.
    Controller(Box<Controller>),
}

impl MaybeGateway for RackHost {
    fn gateway(&self) -> Option<&Gateway> {
        match self {
            Self::Gateway(gateway) => Some(gateway),
            _ => None,
        }
    }

    fn gateway_mut(&mut self) -> Option<&mut Gateway> {
        match self {
            Self::Gateway(gateway) => Some(gateway),
            _ => None,
        }
    }

    fn status(&self, now: Instant) -> Option<NodeStatus> {
        match self {
            Self::Node(node) => Some(node.status(now)),
            _ => None,
        }
    }
}

impl Machine for RackHost {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        match self {
            Self::Tor(tor) => tor.handle(now, input),
            Self::Node(node) => node.handle(now, input),
            Self::Gateway(gateway) => gateway.handle(now, input),
            Self::Controller(controller) => controller.handle(now, input),
        }
    }

    fn poll(&mut self) -> Option<Output> {
        match self {
            Self::Tor(tor) => tor.poll(),
            Self::Node(node) => node.poll(),
            Self::Gateway(gateway) => gateway.poll(),
            Self::Controller(controller) => controller.poll(),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Tor(tor) => tor.deadline(),
            Self::Node(node) => node.deadline(),
            Self::Gateway(gateway) => gateway.deadline(),
            Self::Controller(controller) => controller.deadline(),
        }
    }

    fn tick(&mut self, now: Instant) {
        match self {
            Self::Tor(tor) => tor.tick(now),
            Self::Node(node) => node.tick(now),
            Self::Gateway(gateway) => gateway.tick(now),
            Self::Controller(controller) => controller.tick(now),
        }
    }
}

/// The ToRs of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tors {
    /// One.
    #[default]
    One,
    /// Two; all parts prefer the first.
    Two,
    /// Two; every other part prefers the second.
    Mixed,
}

/// How a volume is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Replica sets.
    pub sets: u32,
    /// Pages of each set.
    pub pages_per_set: u32,
    /// Replicas of each set.
    pub replicas: u32,
    /// Channels of each vSSD.
    pub channels: u32,
    /// Rows of units of a software-isolated vSSD on these, which it shares; 0 for hardware isolation.
    pub rows: u32,
    /// When writes are acknowledged.
    pub durability: Durability,
}

/// A rack's options.
#[derive(Clone, Debug)]
pub struct RackOptions {
    /// Storage servers.
    pub nodes: u32,
    /// Gateways.
    pub gateways: u32,
    /// ToRs.
    pub tors: Tors,
    /// The shape of every node's SSD.
    pub geometry: Geometry,
    /// Device time.
    pub timing: Timing,
    /// What collection does to the vSSD's other work.
    pub gc_mode: GcMode,
    /// Programs between two checkpoints.
    pub checkpoint_every_programs: u64,
    /// Blocks that software-isolated vSSDs lend each other at once.
    pub borrow_blocks: u32,
    /// How vSSDs are served.
    pub unit: UnitConfig,
    /// How nodes read their own pages.
    pub scrub: scrub::Options,
    /// When a node counts as slow.
    pub slow: slow::Rules,
    /// A request unanswered this long fails.
    pub request_timeout: Duration,
    /// Between a gateway and the ToR.
    pub client_link: LinkModel,
    /// The ToR's ports towards the servers, if their links are limited.
    pub egress: Option<Egress>,
    /// Which replica a gateway reads from.
    pub reads: Reads,
    /// A controller on a server of its own, behind a link like a client's.
    pub controller: Option<Central>,
    /// Every gateway can serve every volume; each volume is led by one at a time.
    pub failover: Option<Failover>,
    /// Volumes.
    pub volumes: Vec<Layout>,
    /// The levels that the process of a host knows, by the host's index and the number of the start.
    pub levels: fn(usize, u32) -> Levels,
}

/// All processes are of this build.
pub fn newest(_host: usize, _boot: u32) -> Levels {
    Levels::BUILD
}

/// How gateways look after each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover {
    /// A lead that is silent so long is replaced.
    pub silent_after: Duration,
    /// Between two looks of the lead, at most: one that has been replaced does not know it for so long. Others look often.
    pub look_every: Duration,
    /// Of the times between looks.
    pub seed: u64,
    /// The deliberate break: gateways get the same sessions as each other, as a registry that fell back could give them.
    pub one_session: bool,
}

/// The fleet of one rack.
#[derive(Debug)]
pub struct RackFleet {
    options: RackOptions,
    /// Of every host, by index.
    addrs: Vec<Addr>,
    operators: Operators,
    /// The volumes that clients use, by their index.
    used: Vec<VolumeId>,
    looks: Rng,
    /// Hosts whose medium may be one of before, with vSSDs that were deleted since.
    rolled_back: Vec<usize>,
}

impl RackFleet {
    /// Lays the volumes out over the nodes, round robin.
    ///
    /// # Panics
    /// If a set has more replicas than there are nodes.
    pub fn new(options: RackOptions) -> Self {
        let mut vssd = 0;
        let mut first_node = 0;
        let mut records = Vec::new();
        for (index, layout) in options.volumes.iter().enumerate() {
            assert!(layout.replicas <= options.nodes, "each replica has its own node");
            let mut sets = Vec::new();
            for _ in 0..layout.sets {
                let replica = |r: u32| ReplicaRecord {
                    vssd: vssd + 1 + r,
                    node: (1 + (first_node + r) % options.nodes) as u8,
                };
                sets.push(SetRecord {
                    pages: layout.pages_per_set,
                    channels: layout.channels,
                    rows: layout.rows,
                    replicas: (0..layout.replicas).map(replica).collect(),
                    ..SetRecord::default()
                });
                vssd += layout.replicas;
                first_node += 1;
            }
            records.push(VolumeRecord {
                id: index as u32 + 1,
                identity: Default::default(),
                name: format!("v{}", index + 1),
                size_bytes: u64::from(layout.sets) * u64::from(layout.pages_per_set) * PAGE_BYTES as u64,
                durability: layout.durability,
                read_only: false,
                ready: false,
                lead: None,
                sets,
            });
        }
        let mut stored = Snapshot {
            rack: uuid::Uuid::from_u128(1),
            next_vssd: vssd,
            next_volume: records.len() as u32,
            volumes: records,
            ..Snapshot::default()
        };
        stored.identify(uuid::Uuid::from_u128(2));
        let (first, gateways) = (1 + options.nodes as usize, options.gateways as usize);
        let mut fleet = Self {
            looks: Rng::new(options.failover.map_or(0, |failover| failover.seed)),
            used: stored.volumes.iter().map(VolumeRecord::volume).collect(),
            operators: Operators::new(stored, first, gateways),
            options,
            addrs: Vec::new(),
            rolled_back: Vec::new(),
        };
        fleet.addrs = (0..fleet.hosts())
            .map(|index| fleet.modelled_addr(index))
            .collect();
        fleet
    }

    /// Gives its hosts other addresses, by index.
    ///
    /// # Panics
    /// If there are not as many as hosts.
    pub fn with_addrs(mut self, addrs: Vec<Addr>) -> Self {
        assert_eq!(addrs.len(), self.hosts(), "each host has an address");
        self.addrs = addrs;
        self
    }

    /// Runs operators beside the gateways, with commands by their times in ns; each node gets room for these.
    ///
    /// # Panics
    /// If there are several gateways that do not share their volumes.
    pub fn operate(&mut self, control: Control, plan: Vec<(u64, Wish)>) {
        let failover = self.options.failover;
        assert!(
            self.options.gateways == 1 || failover.is_some(),
            "operators of several gateways share the volumes"
        );
        let channels = self.options.volumes.iter().map(|layout| layout.channels);
        // As much again, and one copy more, where members move.
        let heals = control.heal.is_some();
        let sets: u32 = self.options.volumes.iter().map(|layout| layout.sets).sum();
        let copies = if heals { sets + 1 } else { 0 };
        // A software-isolated vSSD has all channels of its node, and room is in rows.
        if !heals || self.options.volumes.iter().all(|layout| layout.rows == 0) {
            let more = channels.max().unwrap_or(0) * (plan.len().min(ROOM_MAX) as u32 + copies);
            self.options.geometry.channels += more;
        }
        let one_session = failover.is_some_and(|failover| failover.one_session);
        let node = |i| (NodeId(i as u8 + 1), self.addr(self.node(i)));
        let nodes = (0..self.options.nodes).map(node).collect();
        let gateways = (0..self.options.gateways).filter(|_| failover.is_some());
        let gateways = gateways.map(|i| self.addr(self.gateway(i))).collect();
        self.operators.run(control, (nodes, gateways), plan, one_session);
    }

    /// Lets every gateway serve every volume; each volume is led by one at a time.
    pub fn share_volumes(&mut self, failover: Failover) {
        self.looks = Rng::new(failover.seed);
        self.options.failover = Some(failover);
    }

    /// The medium of this host may become one of before: what was deleted since is there again, and belongs to nobody.
    pub fn roll_back(&mut self, host: usize) {
        self.rolled_back.push(host);
    }

    /// The control plane.
    pub fn operators(&self) -> &Operators {
        &self.operators
    }

    /// Its volumes for clients whose requests are all checked.
    pub fn checked_volumes(&self) -> Vec<ClientVolume> {
        let layouts = self.records().iter().zip(&self.options.volumes);
        layouts
            .map(|(record, layout)| ClientVolume {
                id: record.volume(),
                pages: u64::from(layout.sets * layout.pages_per_set),
                check: true,
                durability: true,
                durable_writes: layout.durability == Durability::Media,
            })
            .collect()
    }

    /// The options.
    pub fn options(&self) -> &RackOptions {
        &self.options
    }

    /// The volumes' records.
    pub fn records(&self) -> &[VolumeRecord] {
        &self.operators.stored().volumes
    }

    /// Index of the ToR.
    pub const TOR: usize = 0;

    /// Index of the `i`-th node.
    pub fn node(&self, i: u32) -> usize {
        1 + i as usize
    }

    /// Index of the `i`-th gateway.
    pub fn gateway(&self, i: u32) -> usize {
        1 + (self.options.nodes + i) as usize
    }

    /// Index of the gateway that serves a volume.
    pub fn gateway_of(&self, volume: usize) -> usize {
        self.gateway(volume as u32 % self.options.gateways)
    }

    /// Index that a controller has.
    pub fn controller(&self) -> usize {
        self.gateway(self.options.gateways)
    }

    /// Index that a second ToR has.
    fn second(&self) -> usize {
        self.controller() + usize::from(self.options.controller.is_some())
    }

    /// Indexes of the ToRs.
    pub fn tors(&self) -> Vec<usize> {
        match self.options.tors {
            Tors::One => vec![Self::TOR],
            Tors::Two | Tors::Mixed => vec![Self::TOR, self.second()],
        }
    }

    /// Hosts in all.
    pub fn hosts(&self) -> usize {
        self.second() + self.tors().len() - 1
    }

    /// Addresses of the ToRs as a host has them: the preferred one first.
    fn tors_of(&self, host: usize) -> Vec<Addr> {
        let mut tors: Vec<Addr> = self.tors().into_iter().map(|index| self.addr(index)).collect();
        if self.options.tors == Tors::Mixed && host % 2 == 1 {
            tors.reverse();
        }
        tors
    }

    fn source(&self, index: usize) -> Source {
        let nodes = self.options.nodes as usize;
        match index {
            Self::TOR => Source::Tor,
            i if i <= nodes => Source::Node(NodeId(i as u8)),
            i if i == self.second() => Source::Tor,
            i if i == self.controller() => Source::Controller,
            i => Source::Gateway((i - nodes - 1) as u16),
        }
    }

    fn addr(&self, index: usize) -> Addr {
        self.addrs[index]
    }

    fn modelled_addr(&self, index: usize) -> Addr {
        let nodes = self.options.nodes as usize;
        match index {
            Self::TOR => Addr::new([10, 0, 0, 1], RACK_PORT),
            i if i <= nodes => Addr::new([10, 0, 1, i as u8], RACK_PORT),
            i if i == self.second() => Addr::new([10, 0, 0, 2], RACK_PORT),
            i if i == self.controller() => Addr::new([10, 0, 3, 1], RACK_PORT),
            i => Addr::new([10, 0, 2, (i - nodes) as u8], RACK_PORT),
        }
    }

    /// Makes a host that starts now, after `boot` earlier starts; a node has a medium, which its first start formats.
    pub fn build(
        &self,
        index: usize,
        boot: u32,
        now: Instant,
        pool: &Pool,
        medium: Option<&mut dyn Device>,
    ) -> Result<RackHost, String> {
        match medium {
            Some(medium) => {
                let node = self.open_node((index, boot), now, pool, medium)?;
                Ok(RackHost::Node(Box::new(node)))
            }
            None if self.tors().contains(&index) => {
                let config = TorConfig {
                    addr: self.addr(index),
                    gc_lease: TOR_LEASE,
                    egress: self.options.egress,
                    levels: (self.options.levels)(index, boot),
                };
                Ok(RackHost::Tor(Box::new(Tor::new(config))))
            }
            None if index == self.controller() => {
                let central = self.options.controller.expect("it has a site only then");
                let config = ControllerConfig {
                    addr: self.addr(index),
                    tor: self.addr(Self::TOR),
                    gc_lease: TOR_LEASE,
                    interval: central.vdc.interval,
                    capacity: central.capacity,
                };
                Ok(RackHost::Controller(Box::new(Controller::new(config))))
            }
            None => {
                let gateway = self.open_gateway(index, boot, now, pool);
                Ok(RackHost::Gateway(Box::new(gateway)))
            }
        }
    }

    fn open_node(
        &self,
        (index, boot): (usize, u32),
        now: Instant,
        pool: &Pool,
        medium: &mut dyn Device,
    ) -> Result<Node, String> {
        let mut first = [0; 64];
        medium.read_at(0, &mut first).map_err(|e| e.to_string())?;
        if first == [0; 64] {
            let mut uuid = [0; 16];
            uuid[0] = index as u8;
            Ssd::format(medium, self.options.geometry, pool.page_bytes(), uuid).map_err(|e| e.to_string())?;
        }
        let config = NodeConfig {
            // As in production, where it is the time in seconds.
            boot_min: (now.as_nanos() / 1_000_000) as u32,
            timing: self.options.timing.clone(),
            gc_mode: self.options.gc_mode,
            checkpoint_every_programs: self.options.checkpoint_every_programs,
            borrow_blocks: self.options.borrow_blocks,
            unit: self.options.unit.clone(),
            scrub: self.options.scrub,
            slow: self.options.slow,
            controller: self.options.controller.map(|_| self.addr(self.controller())),
            levels: (self.options.levels)(index, boot),
            ..NodeConfig::new(NodeId(index as u8), self.addr(index), self.tors_of(index))
        };
        Node::open(now, config, pool.clone(), medium).map_err(|e| e.to_string())
    }

    fn open_gateway(&self, index: usize, boot: u32, now: Instant, pool: &Pool) -> Gateway {
        let node = |i| (NodeId(i as u8 + 1), self.addr(self.node(i)));
        let config = GatewayConfig {
            addr: self.addr(index),
            tors: self.tors_of(index),
            // An operator names it.
            session: if self.operators.are_running() { 0 } else { boot + 1 },
            nodes: (0..self.options.nodes).map(node).collect(),
            request_timeout: self.options.request_timeout,
            shaping: self.options.controller.map(|central| Shaping {
                controller: self.addr(self.controller()),
                vdc: central.vdc,
            }),
            reads: self.options.reads,
            slow: self.options.slow,
            shared: self.options.failover.is_some(),
        };
        let mut gateway = Gateway::new(config, pool.clone());
        if self.operators.are_running() {
            gateway.stand_by(now);
            return gateway;
        }
        for (volume, record) in self.records().iter().enumerate() {
            if self.gateway_of(volume) == index {
                gateway.open_volume(now, record.clone(), !record.ready);
            }
        }
        gateway
    }
}

impl Fleet for RackFleet {
    type Host = RackHost;

    fn sites(&self) -> Vec<(Site, Role)> {
        let medium_bytes = Ssd::bytes_needed(&self.options.geometry, SIM_PAGE_BYTES);
        (0..self.hosts())
            .map(|index| {
                let role = match index {
                    Self::TOR => Role::Tor,
                    i if i <= self.options.nodes as usize => Role::Node,
                    // Whose loss loses nothing, as the ToR's.
                    i if i >= self.controller() => Role::Tor,
                    _ => Role::Gateway,
                };
                let site = Site {
                    addr: self.addr(index),
                    medium_bytes: if role == Role::Node { medium_bytes } else { 0 },
                    source: self.source(index),
                };
                (site, role)
            })
            .collect()
    }

    fn start(
        &mut self,
        index: usize,
        boot: u32,
        now: Instant,
        pool: &Pool,
        medium: Option<&mut SimMedium>,
    ) -> Result<RackHost, String> {
        let is_gateway = (self.gateway(0)..self.controller()).contains(&index);
        if is_gateway {
            let role = self.role(index, boot);
            let levels = (self.options.levels)(index, boot);
            self.operators
                .started(index - self.gateway(0), boot, now, (role, levels));
        }
        self.build(
            index,
            boot,
            now,
            pool,
            medium.map(|medium| medium as &mut dyn Device),
        )
    }

    fn links(&self) -> Vec<(usize, usize, LinkModel)> {
        let model = self.options.client_link;
        (0..self.options.gateways + u32::from(self.options.controller.is_some()))
            .map(|i| self.gateway(i))
            .flat_map(|gateway| self.tors().into_iter().map(move |tor| (gateway, tor)))
            .flat_map(|(gateway, tor)| [(gateway, tor, model), (tor, gateway, model)])
            .collect()
    }

    fn replica_sets(&self) -> Vec<Vec<(VssdId, Addr)>> {
        let sets = self.records().iter().flat_map(|record| &record.sets);
        sets.map(|set| {
            set.replicas
                .iter()
                .map(|r| (VssdId(r.vssd), self.addr(r.node as usize)))
                .collect()
        })
        .collect()
    }

    fn sets(&self) -> Vec<Set> {
        let stored = self.operators.stored();
        let mut sets = Vec::new();
        for (volume, &id) in self.used.iter().enumerate() {
            let record = stored.volume_of(id).expect("nobody deletes what clients use");
            let mut first = 0;
            for set in &record.sets {
                let pages = first..first + u64::from(set.pages);
                first = pages.end;
                let member = |r: &ReplicaRecord| (VssdId(r.vssd), usize::from(r.node));
                sets.push(Set {
                    volume,
                    pages,
                    members: set.replicas.iter().map(member).collect(),
                    may_change: set.is_changing() || self.operators.heal(),
                });
            }
        }
        sets
    }

    fn tells_who_serves(&self) -> bool {
        true
    }

    fn changes(&self) -> Changes {
        self.operators.changes()
    }

    fn is_busy(&self, now: Instant) -> bool {
        !self.operators.are_done(now)
    }

    fn gone(&mut self, host: usize) {
        let node = (0..self.options.nodes).find(|node| self.node(*node) == host);
        self.operators.gone.extend(node.map(|node| node as u8 + 1));
    }

    fn is_beyond_repair(&self) -> bool {
        self.operators.have_lost_set()
    }

    fn attend_at(&self, now: Instant) -> Option<Instant> {
        self.operators.attend_at(now)
    }

    fn attend(&mut self, world: &mut World<RackHost>) -> Attention {
        let mut attention = self.operators.attend(world);
        self.used
            .extend(attention.created.iter().map(VolumeRecord::volume));
        if self.options.failover.is_none() {
            attention.led_anew.clear();
        }
        attention
    }

    fn expelled(&self) -> Vec<VssdId> {
        let sets = self.records().iter().flat_map(|record| &record.sets);
        let expelled = sets.flat_map(|set| &set.expelled);
        expelled.map(|left| VssdId(left.vssd)).collect()
    }

    fn paths(&self) -> Vec<usize> {
        let shared = self.options.failover.is_some();
        let count = if shared { self.options.gateways } else { 0 };
        (0..count).map(|i| self.gateway(i)).collect()
    }

    fn corruptible(&self, index: usize) -> core::ops::Range<u64> {
        // The data area, which is the last part of the layout (docs/format/flash.md).
        let end = Ssd::bytes_needed(&self.options.geometry, SIM_PAGE_BYTES);
        let data = u64::from(self.options.geometry.pages()) * SIM_PAGE_BYTES as u64;
        let is_node = (1..=self.options.nodes as usize).contains(&index);
        if is_node { end - data..end } else { 0..0 }
    }

    fn metadata(&self, index: usize, part: Metadata) -> core::ops::Range<u64> {
        // docs/format/flash.md: two slots of the superblock, checkpoints, spare areas, data.
        let geometry = &self.options.geometry;
        let spares = geometry
            .pages_per_block
            .div_ceil((SIM_PAGE_BYTES / SPARE_BYTES) as u32);
        let blocks = u64::from(geometry.channels) * u64::from(geometry.blocks_per_channel());
        let data = self.corruptible(index).start;
        let spare = data.saturating_sub(blocks * u64::from(spares) * SIM_PAGE_BYTES as u64);
        match part {
            _ if data == 0 => 0..0,
            Metadata::Superblock => 0..SUPERBLOCK_BYTES,
            Metadata::Checkpoint => 2 * SUPERBLOCK_BYTES..spare,
            Metadata::Spare => spare..data,
        }
    }

    fn forge_identity(&self, index: usize, medium: &mut SimMedium) {
        let mut ssd = Ssd::look(medium, SIM_PAGE_BYTES).expect("its node has started");
        for entry in ssd.vssds().to_vec() {
            let config = Config::parse(&entry.config).expect("its node wrote it");
            let node = Some(NodeId(index as u8));
            let forged = ssd.set_config(entry.id, Config { node, ..config }.emit());
            forged.expect("it is as long as before");
        }
        ssd.store(medium).expect("a medium that nobody uses");
    }

    fn probe(&self, _index: usize, host: &RackHost) -> Result<(), String> {
        let RackHost::Node(node) = host else { return Ok(()) };
        for unit in node.units() {
            flash_is_sound(unit.flash(), self.options.geometry.pages_per_block)
                .map_err(|what| format!("vSSD {}: {what}", unit.identity().vssd.0))?;
        }
        groups_are_sound(node, self.options.geometry.units_per_channel())
    }

    fn situations(&self, host: &RackHost) -> Vec<Situation> {
        let RackHost::Node(node) = host else {
            return Vec::new();
        };
        let has_compared = node.units().any(|unit| unit.stats().compared > 0);
        let paced = (node.pace().waits() > 0).then_some(Situation::CopyPaced);
        let compared = has_compared.then_some(Situation::Compared);
        paced.into_iter().chain(compared).collect()
    }

    fn latched(&self, host: &RackHost) -> Vec<VssdId> {
        let RackHost::Node(node) = host else {
            return Vec::new();
        };
        let latched = node.units().filter(|unit| unit.is_latched());
        latched.map(|unit| unit.identity().vssd).collect()
    }

    fn agree(&self, hosts: &[Option<&RackHost>]) -> Result<(), Violation> {
        self.no_strays(hosts)?;
        let gateways = hosts.iter().flatten().filter_map(|host| host.gateway());
        let served = self.operators.check_served(gateways);
        served.map_err(Violation::Control)?;
        let unit = |r: &ReplicaRecord| match hosts[r.node as usize] {
            Some(RackHost::Node(node)) => node.units().find(|u| u.identity().vssd.0 == r.vssd),
            _ => None,
        };
        let has_failed = |r: &ReplicaRecord| match hosts[r.node as usize] {
            Some(RackHost::Node(node)) => {
                let roll = node.status(Instant::ZERO).roll;
                roll.is_some_and(|roll| roll.failed.contains(&r.vssd))
            }
            _ => false,
        };
        for set in self.records().iter().flat_map(|record| &record.sets) {
            let units: Vec<&Unit> = set.replicas.iter().filter_map(unit).collect();
            let whole = |u: &&Unit| u.is_serving() && !u.is_latched();
            // After a failed medium a replica takes no writes any more, or does not learn other members, and may stay behind.
            if units.len() < set.replicas.len()
                || !units.iter().all(whole)
                || set.replicas.iter().any(has_failed)
            {
                continue;
            }
            units_agree(&units, set.pages)?;
        }
        Ok(())
    }

    fn check_medium(&self, medium: &SimMedium) -> Result<(), String> {
        let report = flash::verify(medium, SIM_PAGE_BYTES, &mut |_| {}).map_err(|error| error.to_string())?;
        // What a cut has left of an entry is none of a page.
        let mut problems = report.problems.iter();
        match problems.find(|problem| problem.place.lpn.is_some()) {
            Some(problem) => Err(format!("{problem:?}")),
            None => Ok(()),
        }
    }

    fn media_agree(&self, hosts: &[Option<RackHost>]) -> Result<(), Violation> {
        let unit = |r: &ReplicaRecord| match &hosts[r.node as usize] {
            Some(RackHost::Node(node)) => node.units().find(|u| u.identity().vssd.0 == r.vssd),
            _ => None,
        };
        for set in self.records().iter().flat_map(|record| &record.sets) {
            let units: Vec<&Unit> = set.replicas.iter().filter_map(unit).collect();
            assert_eq!(units.len(), set.replicas.len(), "a vSSD is found on its medium");
            units_agree(&units, set.pages)?;
        }
        Ok(())
    }
}

impl RackFleet {
    /// How the gateway of a host comes to serve.
    fn role(&mut self, index: usize, boot: u32) -> host::operator::Role {
        let Some(failover) = self.options.failover else {
            return host::operator::Role::Alone { session: boot + 1 };
        };
        // Looks that come much oftener than answers make runs long, and show nothing.
        let mut up_to = |most: Duration| {
            let most = most.as_nanos() as u64;
            Duration::from_nanos(most / 4 + self.looks.below(most - most / 4) + 1)
        };
        let (lead_looks_every, others_look_every) =
            (up_to(failover.look_every), up_to(failover.silent_after / 4));
        host::operator::Role::Shared(host::operator::Shared {
            me: self.addrs[index],
            silent_after: failover.silent_after,
            lead_looks_every,
            others_look_every,
            session_min: 0,
        })
    }

    /// What has left or was undone is gone.
    fn no_strays(&self, hosts: &[Option<&RackHost>]) -> Result<(), Violation> {
        let records = self.records().iter();
        let growing = self.operators.stored().growing.iter();
        let sets = records
            .flat_map(|record| &record.sets)
            .chain(growing.flat_map(|growth| &growth.sets));
        // What was expelled may join again, or is still to be deleted.
        let lefts = sets.clone().flat_map(|set| &set.expelled);
        let leftovers = self.operators.stored().leftovers.iter();
        let lefts = lefts.map(|left| left.vssd).chain(leftovers.map(|left| left.vssd));
        let known: Vec<VssdId> = sets
            .flat_map(SetRecord::vssds)
            .map(|(vssd, _)| vssd)
            .chain(lefts.map(VssdId))
            .collect();
        for (host, up) in hosts.iter().enumerate() {
            let Some(RackHost::Node(node)) = up.filter(|_| !self.rolled_back.contains(&host)) else {
                continue;
            };
            if let Some(stray) = node.units().find(|unit| !known.contains(&unit.identity().vssd)) {
                let what = format!("vSSD {} belongs to no volume", stray.identity().vssd.0);
                return Err(Violation::Accounts { host, what });
            }
        }
        Ok(())
    }
}

/// The accounts of a flash add up: its blocks, and the pages in them.
pub(crate) fn flash_is_sound(flash: &Vssd, pages_per_block: u32) -> Result<(), String> {
    let (stats, pages) = (flash.stats(), flash.logical_pages());
    let used = stats.blocks.saturating_sub(stats.free_blocks);
    if stats.free_blocks > stats.blocks {
        return Err(format!(
            "{} of {} blocks are free",
            stats.free_blocks, stats.blocks
        ));
    }
    if stats.live_pages > pages || stats.live_pages > used * pages_per_block {
        return Err(format!(
            "{} live pages of {pages}, in {used} blocks of {pages_per_block}",
            stats.live_pages
        ));
    }
    Ok(())
}

/// The software-isolated vSSDs of a node collect all or none, and what one borrowed another has lent.
fn groups_are_sound(node: &Node, rows: u32) -> Result<(), String> {
    let shared = |unit: &&Unit| unit.flash().config().isolation != Isolation::Hardware;
    for first in node.units().filter(shared) {
        let channels = first.flash().config().channels;
        let members = || {
            node.units()
                .filter(|unit| unit.flash().config().channels == channels)
        };
        let vssd = first.identity().vssd.0;
        if members().any(|unit| unit.is_collecting() != first.is_collecting()) {
            return Err(format!("vSSD {vssd} collects alone, or not at all"));
        }
        let (mut borrowed, mut lent, mut owned) = (0, 0, 0);
        for unit in members() {
            let stats = unit.flash().stats();
            if let Isolation::Software { count, .. } = unit.flash().config().isolation {
                owned += count;
            }
            borrowed += stats.borrowed_blocks;
            lent += stats.lent_blocks;
        }
        // A vSSD that was deleted may have lent what another one keeps.
        let is_sound = borrowed == lent || borrowed > lent && owned < rows;
        if !is_sound && !members().any(|unit| unit.flash().latched()) {
            return Err(format!(
                "the group of vSSD {vssd} borrowed {borrowed} blocks and lent {lent}"
            ));
        }
    }
    Ok(())
}

/// The same version of every page, with the same data.
fn units_agree(units: &[&Unit], pages: u32) -> Result<(), Violation> {
    for page in 0..pages {
        let version = |unit: &Unit| unit.version(Lpn(page)).0;
        if let Some(other) = units.iter().find(|unit| version(unit) != version(units[0])) {
            return Err(Violation::Disagree {
                page,
                first: units[0].identity().vssd,
                first_version: version(units[0]),
                second: other.identity().vssd,
                second_version: version(other),
            });
        }
        let mut sums = units.iter().filter_map(|unit| Some((unit, unit.crc(Lpn(page))?)));
        if let Some((first, sum)) = sums.next()
            && let Some((second, _)) = sums.find(|(_, other)| *other != sum)
        {
            return Err(Violation::OtherData {
                page,
                first: first.identity().vssd,
                second: second.identity().vssd,
            });
        }
    }
    Ok(())
}

/// Programs, checkpoints and loans of the flashes of all nodes that are up.
pub fn flash_totals<'a>(hosts: impl Iterator<Item = &'a RackHost>) -> VssdStats {
    let mut total = VssdStats::default();
    for host in hosts {
        let RackHost::Node(node) = host else { continue };
        for unit in node.units() {
            let stats = unit.flash().stats();
            total.user_programs += stats.user_programs;
            total.gc_programs += stats.gc_programs;
            total.record_programs += stats.record_programs;
            total.checkpoints += stats.checkpoints;
            total.blocks_borrowed += stats.blocks_borrowed;
        }
    }
    total
}
