//! A storage server: one software-defined SSD, its vSSDs, and their registration at the ToR.
//!
//! Cold start ([`Node::open`]) reads the medium directly; afterwards everything is [`Input`] and [`Output`]. Changes of
//! the superblock (create, delete) are written one after the other, each into both slots, and each slot is flushed,
//! before they are answered.

mod answers;
mod askers;
mod collector;
mod group;
mod held;
mod roll;
mod stages;
mod superblock;
mod timed;
mod tors;
mod unit;
mod units;

pub use stages::{STAGES, Stages};
pub use unit::{Identity, Unit, UnitConfig, UnitStats};

use crate::{Input, Output};
use answers::Answers;
use askers::Askers;
use base::device::Silence;
use base::event::{self, MediumOperation};
use base::{Addr, Device, Instant, Machine, MediaDone, MediaKind, NodeId, Pool, VssdId, time::earliest};
use flash::{GcMode, Isolation, OpenError, RecoveryReport, Ssd, Timing, Vssd, VssdConfig, VssdEntry};
use rack::control::{Config, Intent, Lead, NodeStatus, Open, is_of_other_rack, parse_rack};
use rack::level::Levels;
use rack::pace::{Cap, Pace};
use rack::scrub::{self, Scrub};
use rack::slow;
use rack::uplink::Uplink;
use std::collections::{BTreeSet, VecDeque};
use superblock::{Changes, Job, lead_of};
use thiserror::Error;
use tors::Tors;
use units::Units;
use uuid::Uuid;
use wire::rack::{Code, Header, Op, Packet, Payload, flags};

/// Media operations carry the unit's index above this bit.
const UNIT_SHIFT: u32 = 48;
/// Deleted vSSDs that are remembered: far more than requests that can be under way.
const DELETED_MAX: usize = 256;
/// Index of the node's own media operations.
const NODE_UNIT: u64 = 0xffff;
/// Of the operations that write the superblock.
const SUPERBLOCK_ID: u64 = NODE_UNIT << UNIT_SHIFT;

/// How a node is set up. The per-vSSD parts hold for each of its vSSDs.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its number.
    pub id: NodeId,
    /// Its address.
    pub addr: Addr,
    /// This start has at least this number: the time in seconds, by which no image of the past repeats a number.
    pub boot_min: u32,
    /// The ToRs, the preferred one first ([`rack::uplink`]).
    pub tors: Vec<Addr>,
    /// A central controller, which is told of the vSSDs. With [`rack::gc::Coordination::Controller`] it decides about
    /// collection instead of the ToR.
    pub controller: Option<Addr>,
    /// Emulated device time.
    pub timing: Timing,
    /// What collection does to the vSSD's other work.
    pub gc_mode: GcMode,
    /// Share of a vSSD's physical pages that clients do not see.
    pub over_provisioning: f64,
    /// Programs between two checkpoints.
    pub checkpoint_every_programs: u64,
    /// Channels of each group of software-isolated vSSDs; 0 for all. With fewer, more vSSDs fit the node.
    pub group_channels: u32,
    /// Blocks that software-isolated vSSDs lend each other at once (RackBlox §3.5.2: 1 GB).
    pub borrow_blocks: u32,
    /// How its vSSDs are served.
    pub unit: UnitConfig,
    /// The most that it copies to and from members that join.
    pub copy_cap: Cap,
    /// How its vSSDs read their own pages.
    pub scrub: scrub::Options,
    /// Windows in which it measures the answers of other nodes.
    pub slow: slow::Rules,
    /// The levels of the rack in which it serves ([`rack::level`]).
    pub levels: Levels,
}

impl NodeConfig {
    /// Defaults for a node of this number and address, in a rack with these ToRs.
    pub fn new(id: NodeId, addr: Addr, tors: Vec<Addr>) -> Self {
        let over_provisioning = 0.25;
        Self {
            id,
            addr,
            boot_min: 0,
            tors,
            controller: None,
            timing: Timing::none(),
            gc_mode: GcMode::Preemptible { step_pages: 8 },
            over_provisioning,
            checkpoint_every_programs: 1 << 20,
            group_channels: 0,
            borrow_blocks: 8,
            unit: UnitConfig {
                policy: rack::sched::Policy::Coordinated,
                cache_pages: 2048,
                read_depth: 64,
                write_depth: 64,
                device_depth: 128,
                dirty_ratio_low: 0.5,
                gc: rack::gc::Config::for_spare(over_provisioning),
            },
            copy_cap: Cap::default(),
            scrub: scrub::Options::default(),
            slow: slow::Rules::default(),
            levels: Levels::BUILD,
        }
    }
}

/// The superblock's facts about a vSSD that is made.
fn config_of_new(node: NodeId, header: &Header, open: &Open) -> Config {
    Config {
        rack: open.rack,
        membership: open.membership.clone(),
        lead: Some(lead_of(header)),
        terms: open.terms,
        node: Some(node),
        part: open.part.clone(),
    }
}

/// Why a node does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The medium cannot be opened.
    #[error(transparent)]
    Medium(#[from] OpenError),
    /// The medium is another node's: what is on it would be missing there, and be taken for lost.
    #[error(
        "the medium is that of node {}: put each node's own medium back, or use an empty one", .0.0
    )]
    OtherNode(NodeId),
}

/// The node whose vSSDs are on a medium, if any says so.
fn node_of(medium: &dyn Device, page_bytes: usize) -> Result<Option<NodeId>, OpenError> {
    let ssd = Ssd::look(medium, page_bytes)?;
    let mut configs = ssd
        .vssds()
        .iter()
        .filter_map(|entry| Config::parse(&entry.config));
    Ok(configs.find_map(|config| config.node))
}

/// A storage server.
pub struct Node {
    config: NodeConfig,
    tors: Tors,
    pool: Pool,
    ssd: Ssd,
    units: Units,
    changes: Changes,
    /// The last vSSDs that were deleted: a late request to make one is refused.
    deleted: VecDeque<VssdId>,
    silence: Silence,
    reports: Vec<(VssdId, RecoveryReport)>,
    /// vSSDs of the superblock that cannot be recovered. They are not served, and keep their channels until they are deleted.
    unreadable: Vec<VssdId>,
    corrupt_packets: u64,
    askers: Askers,
}

impl Node {
    /// Starts from what the medium holds: numbers the start, recovers every vSSD. One that cannot be recovered is told of, and the others are
    /// served.
    pub fn open(
        now: Instant,
        config: NodeConfig,
        pool: Pool,
        medium: &mut dyn Device,
    ) -> Result<Self, StartError> {
        if let Some(other) = node_of(medium, pool.page_bytes())?.filter(|node| *node != config.id) {
            return Err(StartError::OtherNode(other));
        }
        let ssd = Ssd::open(medium, pool.page_bytes(), config.boot_min)?;
        let mut node = Self {
            changes: Changes::new(SUPERBLOCK_ID, &pool, &ssd),
            ssd,
            pool,
            units: Units::new(
                now,
                config.unit.gc,
                config.borrow_blocks,
                Pace::new(now, config.copy_cap),
                Scrub::new(now, config.scrub),
                Answers::new(config.slow),
            ),
            tors: Tors::new(now, config.addr, &config.tors),
            askers: Askers::new(config.id, config.levels),
            config,
            deleted: VecDeque::new(),
            silence: Silence::default(),
            reports: Vec::new(),
            unreadable: Vec::new(),
            corrupt_packets: 0,
        };
        let entries = node.ssd.vssds().to_vec();
        for entry in &entries {
            if entry.isolation != Isolation::Hardware {
                node.recover_group_of(now, entry, &entries, medium);
                continue;
            }
            let config = node.vssd_config(entry);
            match (
                Config::parse(&entry.config),
                Vssd::recover(config, node.pool.clone(), medium),
            ) {
                (Some(config), Ok((flash, report))) => {
                    node.reports.push((entry.id, report));
                    node.start_unit(now, entry.id, config, flash, None);
                }
                (_, Err(error)) => node.leave_out(entry.id, error.offset()),
                (None, Ok(_)) => node.leave_out(entry.id, 0),
            }
        }
        node.tell(event::Kind::NodeStarted {
            node: node.config.id,
            boot: node.ssd.boot(),
            vssds: entries.len() as u32,
        });
        Ok(node)
    }

    /// A vSSD cannot be read, from this byte of the medium on.
    fn leave_out(&mut self, vssd: VssdId, offset: u64) {
        self.unreadable.push(vssd);
        self.tell(event::Kind::VssdUnreadable { vssd, offset });
    }

    /// Recovers the channel group of `entry`, with its first member. Members lend each other blocks: without one of them the others cannot be
    /// told apart.
    fn recover_group_of(
        &mut self,
        now: Instant,
        entry: &VssdEntry,
        entries: &[VssdEntry],
        medium: &dyn Device,
    ) {
        let members: Vec<&VssdEntry> = entries.iter().filter(|other| other.shares_with(entry)).collect();
        if members[0] != entry {
            return;
        }
        let lacks_config = |entry: &&&VssdEntry| Config::parse(&entry.config).is_none();
        let configs: Vec<_> = members.iter().map(|entry| self.vssd_config(entry)).collect();
        let first = configs[0].clone();
        let recovered = match members.iter().find(lacks_config) {
            Some(_) => Err(0),
            None => {
                let recovered = Vssd::recover_group(configs, &self.pool, medium);
                recovered.map_err(|(_, error)| error.offset())
            }
        };
        let (shared, vssds) = match recovered {
            Ok(recovered) => recovered,
            Err(offset) => {
                return members.iter().for_each(|entry| self.leave_out(entry.id, offset));
            }
        };
        let group = self.units.group_on(&first, Some(shared));
        for (entry, (flash, report)) in members.into_iter().zip(vssds) {
            self.reports.push((entry.id, report));
            let config = Config::parse(&entry.config).expect("looked at above");
            self.start_unit(now, entry.id, config, flash, Some(group));
        }
    }

    fn vssd_config(&self, entry: &VssdEntry) -> VssdConfig {
        let mut config = VssdConfig::new(entry, self.ssd.geometry(), self.pool.page_bytes());
        config.timing = self.config.timing.clone();
        config.gc = self.config.gc_mode;
        config.checkpoint_every_programs = self.config.checkpoint_every_programs;
        config
    }

    fn start_unit(&mut self, now: Instant, vssd: VssdId, config: Config, flash: Vssd, group: Option<usize>) {
        let identity = Identity {
            vssd,
            node: self.config.id,
            addr: self.config.addr,
            tors: self.tors.uplink.tors().collect(),
            controller: self.config.controller,
            boot: self.ssd.boot(),
            is_new: !self.reports.iter().any(|(recovered, _)| *recovered == vssd),
            config,
        };
        let media_tag = (self.units.slots.len() as u64 + 1) << UNIT_SHIFT;
        let unit = Unit::new(now, identity, self.config.unit.clone(), flash, media_tag);
        assert!(
            self.units.slots.len() < NODE_UNIT as usize,
            "unit indexes fit beside the node's own"
        );
        self.units.add(now, unit, group);
        self.tors.changed(now);
    }

    /// The pace of copies to and from it.
    pub fn pace(&self) -> &Pace {
        self.units.pace()
    }

    /// What recovery found, per vSSD.
    pub fn recovery_reports(&self) -> &[(VssdId, RecoveryReport)] {
        &self.reports
    }

    /// The vSSDs that cannot be read.
    pub fn unreadable(&self) -> &[VssdId] {
        &self.unreadable
    }

    /// The vSSDs that are served.
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units.slots.iter().flatten().map(|slot| &*slot.unit)
    }

    /// The configuration.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// True while it does not serve, as it does not know the rack's level.
    pub fn is_refused(&self) -> bool {
        self.askers.is_refused()
    }

    /// The ToRs as seen from here.
    pub fn uplink(&self) -> &Uplink {
        &self.tors.uplink
    }

    /// The number of this start.
    pub fn boot(&self) -> u32 {
        self.ssd.boot()
    }

    /// Packets whose payload did not match its checksum; they were dropped.
    pub fn corrupt_packets(&self) -> u64 {
        self.corrupt_packets
    }

    /// Stops cleanly: every vSSD writes back, flushes and makes a checkpoint. [`is_quiet`](Node::is_quiet) tells when it is done.
    pub fn drain(&mut self, now: Instant) {
        let node = self.config.id;
        self.tell(event::Kind::NodeStopping { node });
        for index in 0..self.units.slots.len() {
            self.units.call_unit(now, index, |unit, out| unit.drain(now, out));
        }
    }

    /// True when, after [`drain`](Node::drain), nothing is in flight and the checkpoint of every vSSD is durable. A
    /// vSSD whose medium failed counts as quiet.
    pub fn is_quiet(&self) -> bool {
        let mut slots = self.units.slots.iter().flatten();
        self.changes.is_idle() && slots.all(|slot| slot.unit.is_quiet())
    }

    /// Content of a `status` packet.
    pub fn status(&self, now: Instant) -> NodeStatus {
        let mut status = NodeStatus {
            copied_pages: self.units.pace().pages(),
            acknowledged: self.units.answers.last().to_vec(),
            scrubbed_pages: self.units.scrubbed().pages(),
            scrubs: self.units.scrubbed().passes(),
            scrubbed_ago_s: self.units.scrubbed().ended().map(|at| now.since(at).as_secs()),
            node: self.config.id.0,
            software: Some(self.askers.software()),
            boot: self.ssd.boot(),
            boot_before: Some(self.ssd.boot_before()),
            channels: self.ssd.geometry().channels,
            free_channels: self.ssd.free_channels(),
            pages_per_channel: self.pages_per_channel(),
            group_channels: self.group_channels(),
            free_rows: self.ssd.free_rows(self.group_channels()),
            pages_per_row: self.pages_per_row(),
            free_ratio_min: 1.0,
            unreadable: self.unreadable.len() as u32,
            racks: self.racks(),
            roll: Some(roll::of(
                now,
                self.units(),
                &self.ssd,
                &self.unreadable,
                &self.changes,
            )),
            lead: self.askers.seen(now).max_by_key(|seen| seen.session),
            gateways: self.askers.seen(now).collect(),
            copying: roll::copying(now, self.units()),
            ..NodeStatus::default()
        };
        let (mut erases, mut blocks) = (0.0, 0.0);
        for unit in self.units() {
            let (stats, flash) = (unit.stats(), unit.flash().stats());
            erases += flash.erase_count_mean * f64::from(flash.blocks);
            blocks += f64::from(flash.blocks);
            status.vssds += 1;
            status.serving += u32::from(unit.is_serving());
            status.collecting += u32::from(unit.is_collecting());
            status.latched += u32::from(unit.is_latched() || self.changes.is_latched());
            status.reads += stats.reads;
            status.writes += stats.writes;
            status.dirty_pages += unit.dirty_pages() as u64;
            status.programs += flash.user_programs + flash.gc_programs;
            status.user_programs += flash.user_programs;
            status.erases += flash.erases;
            status.damaged_pages += stats.damaged;
            status.repaired_pages += stats.repaired;
            status.compared_pages += stats.compared;
            status.differed_pages += stats.differed;
            status.free_ratio_min = status.free_ratio_min.min(unit.flash().free_ratio());
        }
        status.erase_count_mean = if blocks > 0.0 { erases / blocks } else { 0.0 };
        status
    }

    /// The racks that the vSSDs belong to, as far as that is known.
    fn racks(&self) -> Vec<Uuid> {
        let entries = self.ssd.vssds().iter();
        let configs = entries.filter_map(|entry| Config::parse(&entry.config));
        let racks = configs.map(|config| config.rack).filter(|rack| !rack.is_nil());
        racks.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn pages_per_channel(&self) -> u32 {
        let physical = self.ssd.geometry().pages_per_channel() as f64;
        (physical * (1.0 - self.config.over_provisioning)) as u32
    }

    fn group_channels(&self) -> u32 {
        match self.config.group_channels {
            0 => self.ssd.geometry().channels,
            channels => channels.min(self.ssd.geometry().channels),
        }
    }

    fn pages_per_row(&self) -> u32 {
        let (geometry, channels) = (self.ssd.geometry(), self.group_channels());
        let physical = channels * geometry.pages_per_channel() / geometry.units_per_channel();
        let visible = (f64::from(physical) * (1.0 - self.config.over_provisioning)) as u32;
        let max = geometry.logical_pages_max_shared(channels, 1, self.pool.page_bytes());
        visible.min(max)
    }

    fn packet(&mut self, now: Instant, packet: Packet) {
        let header = packet.header;
        self.tors.uplink.heard(now, &header);
        if !matches!(packet.payload, Payload::None) && !packet.payload_is_intact() {
            self.corrupt_packets += 1;
            return;
        }
        // Answers that a node awaits; any other would be taken for a request.
        let awaited = matches!(
            header.op,
            Op::CreateVssd | Op::GcOp | Op::Digest | Op::Hello | Op::Lease
        );
        let is_refused = self.askers.is_refused() && header.op != Op::Status;
        if header.has(flags::REPLY) && !awaited || is_refused {
            return;
        }
        match header.op {
            Op::CreateVssd if header.has(flags::REPLY) => {
                if Some(header.source) != self.config.controller {
                    self.tors.answered();
                }
            }
            Op::Open => self.open_vssd(now, &packet),
            Op::Delete => self.delete_vssd(now, header, parse_rack(packet.record())),
            Op::Status if !header.has(flags::REPLY) => self.answer_status(now, &header),
            Op::List => {
                let inventory = roll::inventory(self.config.id, &self.ssd, &self.unreadable, header.vssd.0);
                self.send(Packet::with_record(
                    header.reply(Code::SoftOrOk),
                    inventory.emit(),
                ));
            }
            _ => match self.units.index.get(&header.vssd.0) {
                // Nothing is begun any more of what is being deleted.
                Some(&index) if self.is_closing(index) => {}
                Some(&index) => self.unit_packet(now, index as usize, packet),
                None if !header.has(flags::REPLY)
                    && matches!(header.op, Op::Read | Op::Write | Op::Zero | Op::Flush) =>
                {
                    let code = self.code_of_absent(header.vssd);
                    self.answer(&header, code);
                }
                None => {}
            },
        }
    }

    /// The node answers this to requests for a vSSD that it does not serve.
    fn code_of_absent(&self, vssd: VssdId) -> Code {
        match self.unreadable.contains(&vssd) {
            true => Code::Damaged,
            false => Code::NoVssd,
        }
    }

    fn is_closing(&self, index: u32) -> bool {
        let slot = self.units.slots[index as usize].as_ref();
        slot.is_some_and(|slot| slot.closing.is_some())
    }

    fn unit_packet(&mut self, now: Instant, index: usize, packet: Packet) {
        let unit = self.units.slots[index].as_ref().map(|slot| &slot.unit);
        match unit.and_then(|unit| unit.elsewhere(&packet.header)) {
            Some(replica) => {
                let header = Header {
                    lba: u64::from(replica.0),
                    lat_ns: 0,
                    ..packet.header.reply(Code::Elsewhere)
                };
                self.send(Packet::bare(header));
            }
            None => self
                .units
                .call_unit(now, index, |unit, out| unit.packet(now, packet, out)),
        }
    }

    fn tell(&mut self, kind: event::Kind) {
        self.units.out.push_back(Output::Event(kind));
    }

    fn answer(&mut self, request: &Header, code: Code) {
        let packet = Packet::bare(request.reply(code));
        self.send(packet);
    }

    fn send(&mut self, packet: Packet) {
        self.send_by(Addr::NONE, packet);
    }

    fn register(&mut self, now: Instant) {
        let (boot, controller) = (self.ssd.boot(), self.config.controller);
        self.tors.register(now, boot, controller, &mut self.units);
    }

    /// Sends a packet by this very ToR.
    fn send_by(&mut self, to: Addr, mut packet: Packet) {
        packet.header.source = self.config.addr;
        self.units.out.push_back(Output::Send { to, packet });
    }

    #[cold]
    fn answer_status(&mut self, now: Instant, header: &Header) {
        let told = self.askers.asked(now, lead_of(header), header.lba);
        told.into_iter().for_each(|kind| self.tell(kind));
        let record = roll::emit(self.status(now), header.vssd.0);
        self.send(Packet::with_record(header.reply(Code::SoftOrOk), record));
    }

    #[cold]
    fn open_vssd(&mut self, now: Instant, packet: &Packet) {
        let header = packet.header;
        let Some(open) = Open::parse(packet.record()) else {
            return self.answer(&header, Code::Refused);
        };
        if let Some(&index) = self.units.index.get(&header.vssd.0) {
            return self.open_known(now, header, open, index as usize);
        }
        let code = self.code_of_absent(header.vssd);
        if !open.intent.creates() || code == Code::Damaged {
            return self.answer(&header, code);
        }
        if self.deleted.contains(&header.vssd) {
            return self.answer(&header, Code::Refused);
        }
        let (boot, meant) = (self.ssd.boot(), header.lba as u32);
        if meant != 0 && meant != boot {
            // What was deleted before this start is not known here. Who still wants it asks for it in this start.
            let lba = boot.into();
            return self.answer(&Header { lba, ..header }, Code::Busy);
        }
        let known = |job: &Job| matches!(job, Job::Open(queued, _) if queued.vssd == header.vssd);
        if !self.changes.any(known) {
            self.changes.push(Job::Open(header, open));
            self.next_job();
        }
    }

    fn open_known(&mut self, now: Instant, header: Header, open: Open, index: usize) {
        let changing = self.is_changing(header.vssd);
        let Some(slot) = self.units.slots[index].as_mut() else {
            return;
        };
        if slot.unit.identity().config.is_foreign_to(open.rack) {
            return self.answer(&header, Code::Foreign);
        }
        if !slot.unit.fence(&header) {
            return self.answer(&header, Code::Superseded);
        }
        let config = &slot.unit.identity().config;
        let lost = self.changes.has_lost(header.vssd).then_some(Code::Latched);
        if let Some(code) = config.refusal_of_open(header.version, &open).or(lost) {
            return self.answer(&header, code);
        }
        // One that an earlier version has made belongs to the rack, and is part of the set, that opens it.
        let is_claimed = slot.unit.config_mut().claim(&open, self.config.id);
        let lead = slot.unit.identity().config.lead;
        if slot.closing.is_none() && (is_claimed || lead.is_none_or(|lead| lead.addr != header.source)) {
            return self.change_lead(header);
        }
        let known = &slot.unit.identity().config.membership;
        let code = if slot.closing.is_some() {
            Code::Busy
        } else if open.membership.generation < known.generation {
            Code::Ahead
        } else if slot.unit.flash().logical_pages() != open.pages {
            Code::Refused
        } else if open.membership.generation > known.generation {
            return self.change_members(now, header, open, index);
        } else if known.peers != open.membership.peers {
            return self.move_peers(header, open);
        } else if slot.unit.config_mut().note_part(&open) {
            self.changes.push(Job::Move(header));
            return self.next_job();
        } else if changing
            || slot.unit.is_fenced()
            || open.intent != Intent::Prepare && !slot.unit.is_serving()
        {
            Code::Busy
        } else if slot.unit.forget_expelled() {
            self.changes.push(Job::Move(header));
            return self.next_job();
        } else {
            Code::SoftOrOk
        };
        self.answer(&header, code);
    }

    /// Another gateway opens the vSSD. It is answered, and so begins to change pages, when that is durable: what the last
    /// one sends is then refused after a restart, too.
    #[cold]
    fn change_lead(&mut self, header: Header) {
        let is_same = |job: &Job| {
            matches!(job, Job::Lead(known)
                if (known.vssd, known.source, known.session) == (header.vssd, header.source, header.session))
        };
        if !self.changes.any(is_same) {
            self.changes.push(Job::Lead(header));
            self.next_job();
        }
    }

    /// Facts for the superblock about a vSSD that is here. A gateway that opens it has it.
    fn config_of(&self, vssd: VssdId, lead: Option<Lead>) -> Option<Vec<u8>> {
        let slot = self.units.slots[*self.units.index.get(&vssd.0)? as usize].as_ref()?;
        let identity = slot.unit.identity();
        // A change before this one may have brought another lead, which the unit does not have yet.
        let entry = self.ssd.vssds().iter().find(|entry| entry.id == vssd);
        let noted = entry.and_then(|entry| Config::parse(&entry.config)?.lead);
        let config = Config {
            lead: lead.or(noted),
            ..identity.config.clone()
        };
        Some(config.emit())
    }

    /// The replica set has other members from now on. The gateway asks again, and is answered when that is durable.
    #[cold]
    fn change_members(&mut self, now: Instant, header: Header, open: Open, index: usize) {
        let again = open.intent == Intent::TakeOver;
        self.units.with_unit(index, |unit, out| {
            unit.config_mut().change_part(&open);
            unit.change_members(now, open.membership, again, open.terms, out)
        });
        self.tors.changed(now);
        self.changes.push(Job::Move(header));
        self.next_job();
    }

    /// The peers are the same, at other addresses: take these. The gateway asks again and is answered then.
    #[cold]
    fn move_peers(&mut self, header: Header, open: Open) {
        let index = self
            .units
            .index
            .get(&header.vssd.0)
            .copied()
            .expect("the caller found it") as usize;
        let slot = self.units.slots[index].as_mut().expect("an indexed unit exists");
        if !slot.unit.move_peers(&open.membership.peers) {
            return self.answer(&header, Code::Refused);
        }
        self.tors.doubt();
        self.changes.push(Job::Move(header));
        self.next_job();
    }

    /// True while a change of this vSSD waits for the superblock; it is answered when that is durable.
    fn is_changing(&self, vssd: VssdId) -> bool {
        self.changes.any(|job| job.header().vssd == vssd)
    }

    #[cold]
    fn delete_vssd(&mut self, now: Instant, header: Header, rack: Uuid) {
        if let Some(code) = self.refusal_of_delete(&header, rack) {
            return self.answer(&header, code);
        }
        let unit = |index: &u32| self.units.slots[*index as usize].as_ref().map(|slot| &slot.unit);
        let known = self.units.index.get(&header.vssd.0);
        if known
            .and_then(unit)
            .is_some_and(|unit| unit.is_superseded(&header))
        {
            return self.answer(&header, Code::Superseded);
        }
        match known {
            None if self.is_changing(header.vssd) => {}
            // The superblock may still have it.
            None if self.changes.is_latched() => self.answer(&header, Code::Latched),
            None if self.unreadable.contains(&header.vssd) => {
                self.changes.push(Job::Delete(header, None));
                self.next_job();
            }
            None => {
                self.remember_deleted(header.vssd);
                self.answer(&header, Code::SoftOrOk);
            }
            Some(&index) => {
                if let Some(slot) = self.units.slots[index as usize].as_mut() {
                    slot.closing = Some(header);
                }
                self.close_if_quiet(now, index as usize);
            }
        }
    }

    /// Why the vSSD that is to be deleted is not here: it is on the medium that belongs here.
    fn refusal_of_delete(&self, header: &Header, rack: Uuid) -> Option<Code> {
        let entry = self.ssd.vssds().iter().find(|entry| entry.id == header.vssd);
        let Some(config) = entry.and_then(|entry| Config::parse(&entry.config)) else {
            return is_of_other_rack(&self.racks(), rack).then_some(Code::Foreign);
        };
        match config.is_foreign_to(rack) {
            true => Some(Code::Foreign),
            false => config.refusal(header.version),
        }
    }

    fn remember_deleted(&mut self, vssd: VssdId) {
        if !self.deleted.contains(&vssd) {
            if self.deleted.len() == DELETED_MAX {
                self.deleted.pop_front();
            }
            self.deleted.push_back(vssd);
        }
    }

    /// A vSSD's channels are given away only when none of its writes can still reach the medium.
    fn close_if_quiet(&mut self, now: Instant, index: usize) {
        let quiet = self.units.slots[index]
            .as_ref()
            .filter(|slot| slot.unit.media_in_flight() == 0);
        let Some(header) = quiet.and_then(|slot| slot.closing) else {
            return;
        };
        let slot = self.units.slots[index].take().expect("checked above");
        let vssd = slot.unit.identity().vssd;
        self.units.index.remove(&vssd.0);
        self.tell(event::Kind::VssdClosed { vssd });
        self.remember_deleted(vssd);
        let borrowed = slot.group.map(|group| {
            let loans = self.units.leave_group(now, index, group, &slot.unit);
            (group, loans)
        });
        drop(slot);
        if let Some((group, _)) = borrowed {
            self.units.step_group(now, group);
        }
        for nth in 0..self.config.tors.len() {
            let packet = Packet::bare(Header::new(Op::DelVssd, vssd));
            self.send_by(self.config.tors[nth], packet);
        }
        self.changes.push(Job::Delete(header, borrowed));
        self.next_job();
    }

    /// Begins the changes of the superblock that wait. Without memory for them they go on waiting; they are looked at again
    /// with the next registration.
    #[cold]
    fn next_job(&mut self) {
        loop {
            let jobs = self.changes.take(&self.ssd);
            if jobs.is_empty() {
                return;
            }
            let mut changed = Vec::with_capacity(jobs.len());
            for job in jobs {
                if self.changes.is_latched() {
                    self.answer(job.header(), Code::Latched);
                } else if self.change(&job) {
                    changed.push(job);
                } else {
                    self.answer(job.header(), Code::NoSpace);
                }
            }
            if !changed.is_empty() {
                return self.changes.write(&mut self.ssd, changed, &mut self.units.out);
            }
        }
    }

    /// Changes the superblock in memory. False if it cannot be done.
    fn change(&mut self, job: &Job) -> bool {
        let changed = match job {
            // Whose blocks its group would have is not known.
            Job::Open(_, open) if open.rows > 0 && self.has_unreadable_group() => return false,
            Job::Open(header, open) => {
                let (id, config) = (header.vssd, config_of_new(self.config.id, header, open).emit());
                let created = match open.rows {
                    0 => self.ssd.create(id, open.channels, open.pages, config),
                    rows => self
                        .ssd
                        .create_shared(id, open.channels, rows, open.pages, config),
                };
                created.map(|_| ())
            }
            Job::Move(header) | Job::Lead(header) => {
                let lead = matches!(job, Job::Lead(_)).then(|| lead_of(header));
                let config = self.config_of(header.vssd, lead);
                config.map_or(Ok(()), |config| self.ssd.set_config(header.vssd, config))
            }
            Job::Delete(header, _) => self.ssd.delete(header.vssd),
        };
        changed.is_ok()
    }

    fn has_unreadable_group(&self) -> bool {
        let shares = |entry: &VssdEntry| entry.isolation != Isolation::Hardware;
        let mut entries = self.ssd.vssds().iter();
        entries.any(|entry| shares(entry) && self.unreadable.contains(&entry.id))
    }

    fn media_done(&mut self, now: Instant, mut done: MediaDone) {
        if self.silence.begins(&done) {
            let operation = done.kind.into();
            self.tell(event::Kind::MediumSilent { operation });
        }
        let unit = done.id >> UNIT_SHIFT;
        if unit == NODE_UNIT {
            return match done.kind {
                MediaKind::Read => self.superblock_read(&done),
                _ => self.superblock_done(now, done.result.is_err()),
            };
        }
        done.id &= (1 << UNIT_SHIFT) - 1;
        let index = unit as usize - 1;
        self.units
            .call_unit(now, index, |unit, out| unit.media_done(now, done, out));
        self.close_if_quiet(now, index);
    }

    #[cold]
    fn superblock_done(&mut self, now: Instant, failed: bool) {
        let Some((jobs, failed)) = self.changes.done(failed, &mut self.units.out) else {
            return;
        };
        let of_job = jobs.first().map(|job| job.header().vssd);
        let first = self.ssd.vssds().first().map(|entry| entry.id);
        if let Some(vssd) = of_job.or(first).filter(|_| failed) {
            let operation = MediumOperation::Superblock;
            self.tell(event::Kind::MediumLatched { vssd, operation });
        }
        for job in jobs {
            match failed {
                true => self.answer(job.header(), Code::Latched),
                false => self.changed(now, job),
            }
        }
        self.changes.go_on_checking(&self.ssd, &mut self.units.out);
        self.next_job();
    }

    /// A page of the superblock was read, to see whether it is intact.
    #[cold]
    fn superblock_read(&mut self, done: &MediaDone) {
        let read = done.result.map(|()| &done.pages[0]);
        let out = &mut self.units.out;
        if let Some(offset) = self.changes.was_read(&self.ssd, read, out) {
            let part = event::Metadata::Superblock;
            self.tell(event::Kind::MetadataDamaged { part, offset });
        }
        self.next_job();
    }

    /// The superblock has the change, durably.
    fn changed(&mut self, now: Instant, job: Job) {
        match job {
            Job::Delete(header, borrowed) => {
                self.unreadable.retain(|&vssd| vssd != header.vssd);
                self.remember_deleted(header.vssd);
                if let Some((group, loans)) = borrowed {
                    self.units.hand_out(now, group, &loans);
                    self.units.step_group(now, group);
                }
                self.answer(&header, Code::SoftOrOk);
            }
            Job::Move(header) => self.answer(&header, Code::Busy),
            Job::Lead(header) => {
                let index = self.units.index.get(&header.vssd.0).map(|&index| index as usize);
                if let Some(slot) = index.and_then(|index| self.units.slots[index].as_mut()) {
                    slot.unit.config_mut().lead = Some(lead_of(&header));
                }
                self.answer(&header, Code::Busy);
            }
            Job::Open(header, open) => self.made(now, header, open),
        }
    }

    /// The superblock has a new vSSD.
    fn made(&mut self, now: Instant, header: Header, open: Open) {
        let entry = self
            .ssd
            .vssds()
            .iter()
            .find(|entry| entry.id == header.vssd)
            .cloned();
        let entry = entry.expect("created before it was written");
        let config_of_new = config_of_new(self.config.id, &header, &open);
        let config = self.vssd_config(&entry);
        let (pool, shared) = (self.pool.clone(), entry.isolation != Isolation::Hardware);
        let group = shared.then(|| self.units.group_on(&config, None));
        let flash = match group {
            None => Vssd::create(config, pool),
            Some(group) => self.units.create_member(config, pool, group),
        };
        self.start_unit(now, header.vssd, config_of_new, flash, group);
        self.tell(event::Kind::VssdCreated {
            vssd: header.vssd,
            pages: open.pages,
        });
        self.register(now);
        self.answer(&header, Code::Busy);
    }
}

impl Machine for Node {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        self.tors.now = now;
        match input {
            Input::Packet(packet) => self.packet(now, packet),
            Input::Media(done) => self.media_done(now, done),
            Input::Request(_) | Input::ClientGone(_) => unreachable!("clients talk to gateways"),
        }
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            let output = self.tors.poll(&mut self.units.out)?;
            match &output {
                Output::Send { packet, .. } if self.askers.is_refused() && packet.header.op != Op::Status => {
                }
                _ => return Some(output),
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let register = (!self.units.index.is_empty()).then_some(self.tors.register_at);
        earliest(
            earliest(register, self.tors.uplink.deadline()),
            self.units.deadline(),
        )
    }

    fn tick(&mut self, now: Instant) {
        self.tors.now = now;
        self.tors.uplink.tick(now);
        if now >= self.tors.register_at && !self.units.index.is_empty() {
            self.register(now);
            self.next_job();
        }
        self.units.tick(now);
        if core::mem::take(&mut self.units.checks_superblock) {
            self.changes.check(&self.ssd, &mut self.units.out);
        }
    }
}
