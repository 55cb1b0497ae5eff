//! The swarm: runs whose options are all drawn from their seed, each made twice and checked: a rack, a
//! storage area, files of programs, and a disk.
//!
//! Everything that can be is small, so that rare things are common: volumes of a few dozen pages on flash of a few
//! blocks (collection is constant), caches of a few pages, several crashes a run.

use crate::check::Violation;
use crate::client::{LoadSpec, Pace};
use crate::commands::Wish;
use crate::disk::{self, DiskOptions};
use crate::draw::{MEDIUM_LIMIT, draw_hang_ns, draw_load, draw_media, drop_damage_like_a_cut, pick};
use crate::fault::Metadata;
use crate::files::{self, FilesOptions};
use crate::net::{Delay, LinkModel, NetFaults};
use crate::operators::Control;
use crate::rack::{Failover, Layout, RackFleet, RackOptions, SIM_PAGE_BYTES, Tors, newest};
use crate::reached::Reached;
use crate::registry::{ControlCanary, RegistryModel};
use crate::run::{AtCut, Fault, Fleet, Outcome, Run, RunSpec};
use crate::scripts::{self, Scene};
use crate::storage::{self, StorageOptions};
use crate::tors::{draw_tor_faults, draw_tors};
use crate::world::{Canary, WorldOptions};
use base::event::Event;
use base::{Duration, Instant, NodeId, Rng};
use flash::{GcMode, Geometry, Timing};
use host::Central;
use host::gateway::{REQUEST_TIMEOUT, Reads};
use host::node::UnitConfig;
use rack::gc::{Coordination, TOR_LEASE};
use rack::heal::Rules;
use rack::registry::Durability;
use rack::sched::{Policy, Targets};
use rack::{scrub, slow};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MILLISECOND: u64 = 1_000_000;
/// Events of each host that are shown of a run that broke a promise.
const EVENTS_SHOWN: usize = 12;
/// Every request is answered this long after the faults stopped. Longest under way then: a ToR learns its vSSDs
/// again within a second, requests are sent again after at most two.
const ANSWER_NS: u64 = 20_000 * MILLISECOND;
/// In some runs gateways give requests up while a node is only away.
const REQUEST_TIMEOUT_SHORT: Duration = Duration::from_millis(60);

/// The share of a node's flash that it offers nobody (`host::NodeConfig`).
const OVER_PROVISIONING: f64 = 0.25;
/// Pages of a set at most, usually and where members compare more pages than one message holds.
const PAGES_MAX: u32 = 256;
const PAGES_MANY: u32 = 1_400;
/// A clock runs so much faster or slower than time at most, in millionths: two of them differ by less than 5 %.
const CLOCK_PPM_MAX: i32 = 24_000;
/// Pages of the pool, usually and where it is empty now and then.
const POOL_PAGES: usize = 1 << 15;

/// What the seed does not decide.
#[derive(Clone, Copy, Debug)]
pub struct SwarmOptions {
    /// The deliberate break.
    pub canary: Canary,
    /// The deliberate break of the control plane.
    pub control_canary: ControlCanary,
    /// Media may fail a write or a flush, flip bits, and hang.
    pub failing_media: bool,
    /// The deliberate break of storage areas: their flushes do nothing.
    pub area_canary: bool,
    /// The deliberate break of programs' files: the syncs of their area do nothing.
    pub files_canary: bool,
    /// The deliberate break of disks: a write with FUA is acknowledged before it is on the medium.
    pub disk_canary: bool,
    /// Each seed runs once: nothing is said about runs that differ.
    pub once: bool,
}

impl Default for SwarmOptions {
    fn default() -> Self {
        Self {
            canary: Canary::None,
            control_canary: ControlCanary::None,
            failing_media: true,
            area_canary: false,
            files_canary: false,
            disk_canary: false,
            once: false,
        }
    }
}

/// What a seed's run came to.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Broken promises; empty is good.
    pub violations: Vec<Violation>,
    /// Hash of the event log.
    pub hash: u64,
    /// Requests issued.
    pub requests: u64,
    /// Events delivered.
    pub events: u64,
    /// Virtual time, in ns.
    pub virtual_ns: u64,
    /// Soft collections accepted.
    pub soft_collections: u64,
    /// What the canary broke.
    pub sabotaged: u64,
    /// Media could fail in this run.
    pub failing_media: bool,
    /// Situations that the rack came into.
    pub reached: Reached,
    /// What the hosts told last, in order; empty if nothing was broken.
    pub told: Vec<Event>,
}

impl SeedReport {
    /// The last events of each host, one a line.
    pub fn last_events(&self) -> String {
        let mut text = String::new();
        for (place, event) in self.told.iter().enumerate() {
            let later = self.told[place + 1..].iter();
            if later.filter(|later| later.source == event.source).count() < EVENTS_SHOWN {
                let _ = writeln!(text, "    {event}");
            }
        }
        text
    }

    /// One line: how to see it again, and what was broken first. `None` if nothing was.
    pub fn repro(&self) -> Option<String> {
        let first = self.violations.first()?;
        Some(format!(
            "switchyard sim swarm --seed {}{}   # {first}",
            self.seed,
            if self.failing_media {
                ""
            } else {
                " --healthy-media"
            }
        ))
    }
}

/// Runs a seed twice and compares, or once.
pub fn run_seed(seed: u64, options: SwarmOptions) -> SeedReport {
    let first = run_once(seed, options);
    let mut report = first.clone();
    if first.violations.is_empty() && !options.once {
        let second = run_once(seed, options);
        if second.hash != first.hash {
            report.violations.push(Violation::Diverged {
                first: first.hash,
                second: second.hash,
            });
        }
    }
    report
}

/// Runs a seed once. A panic of the code under test is a violation.
pub fn run_once(seed: u64, options: SwarmOptions) -> SeedReport {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (fleet, spec) = draw(seed, options);
        let area = StorageOptions {
            loses_flushes: options.area_canary,
            failing_media: options.failing_media,
        };
        let disk = DiskOptions {
            hasty_fua: options.disk_canary,
            failing_media: options.failing_media,
            ..DiskOptions::default()
        };
        let outcome = Run::new(fleet, spec).execute();
        let files = FilesOptions {
            loses_syncs: options.files_canary,
        };
        let (area, files) = (storage::run(seed, area), files::run(seed, files));
        (outcome, area, files, disk::run(seed, disk).outcome)
    }));
    match outcome {
        Ok((outcome, area, files, disk)) => {
            let mut report = report(seed, options, outcome);
            for hash in [area.hash, files.hash, disk.hash] {
                report.hash = (report.hash ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            report.requests += area.acknowledged + disk.clients.issued;
            report.events += disk.world.events;
            report.violations.extend(area.violation.map(Violation::Area));
            report.violations.extend(files.violation.map(Violation::Files));
            if !disk.violations.is_empty() {
                report.told.extend(disk.events);
            }
            report.violations.extend(disk.violations);
            report
        }
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("?");
            SeedReport {
                seed,
                violations: vec![Violation::Panicked(text.to_owned())],
                hash: 0,
                requests: 0,
                events: 0,
                virtual_ns: 0,
                soft_collections: 0,
                sabotaged: 0,
                failing_media: options.failing_media,
                reached: Reached::default(),
                told: Vec::new(),
            }
        }
    }
}

fn report(seed: u64, options: SwarmOptions, outcome: Outcome) -> SeedReport {
    let is_broken = !outcome.violations.is_empty();
    SeedReport {
        seed,
        told: if is_broken { outcome.events } else { Vec::new() },
        violations: outcome.violations,
        hash: outcome.hash,
        requests: outcome.clients.issued,
        events: outcome.world.events,
        virtual_ns: outcome.virtual_ns,
        soft_collections: outcome.soft_collections,
        sabotaged: outcome.world.sabotaged,
        failing_media: options.failing_media,
        reached: outcome.reached,
    }
}

/// The rack and the run of a seed.
pub fn draw(seed: u64, swarm: SwarmOptions) -> (RackFleet, RunSpec) {
    let mut rng = Rng::new(seed);
    let heals = swarm.canary.may_heal() && (rng.chance(0.5) || swarm.canary != Canary::None);
    let mut options = draw_rack(heals, &mut rng.fork());
    if !heals {
        draw_controller(&mut options, &mut Rng::new(!seed));
    }
    let mut tors = Rng::new(!seed.rotate_left(17));
    options.tors = draw_tors(&options, &mut tors);
    let mut lies = Rng::new(!seed.rotate_left(29));
    options.scrub = draw_scrub(&mut lies);
    options.slow = draw_slow(&mut lies);
    let mut fleet = RackFleet::new(options);
    let mut spec = draw_run(&fleet, seed, swarm, heals, &mut rng.fork());
    if heals {
        draw_stranger(&fleet, &mut spec, &mut Rng::new(!seed.rotate_left(41)));
    }
    for (_, fault) in &spec.faults {
        if let Fault::Rollback { host, .. } = *fault {
            fleet.roll_back(host);
        }
    }
    draw_control(&mut fleet, &mut spec, swarm, heals, &mut rng.fork());
    draw_tor_faults(&fleet, &mut spec, &mut tors);
    (fleet, spec)
}

/// In some runs a node is started with the medium of another one.
fn draw_stranger(fleet: &RackFleet, spec: &mut RunSpec, rng: &mut Rng) {
    if !is_replicated_enough(fleet) || !rng.chance(0.1) {
        return;
    }
    let nodes = u64::from(fleet.options().nodes);
    let (host, others) = (rng.below(nodes), rng.between(1, nodes - 1));
    let fault = Fault::Foreign {
        host: fleet.node(host as u32),
        of: fleet.node(((host + others) % nodes) as u32),
        down_ns: pick(rng, &[5, 50, 400, 1_500]) * MILLISECOND,
    };
    spec.faults
        .push((rng.between(spec.calm_ns / 4, spec.calm_ns), fault));
    spec.faults.sort_by_key(|fault| fault.0);
    spec.errors_are_violations = false;
}

/// In most runs nodes read their own pages, as fast as a run is short.
fn draw_scrub(rng: &mut Rng) -> scrub::Options {
    scrub::Options {
        bytes_per_s: pick(rng, &[0, 1, 4, 64]) << 20,
        every: Duration::from_millis(pick(rng, &[50, 500, 3_000])),
    }
}

/// In most runs a node counts as slow after parts of a second, as a run is short.
fn draw_slow(rng: &mut Rng) -> slow::Rules {
    match rng.chance(0.2) {
        true => slow::Rules::default(),
        false => slow::Rules {
            window: Duration::from_millis(pick(rng, &[20, 100])),
            answers_min: pick(rng, &[2, 6]),
            windows: pick(rng, &[2, 4]),
        },
    }
}

/// In some runs a central controller shapes the clients' flows, and in most of these it decides about collection.
fn draw_controller(options: &mut RackOptions, rng: &mut Rng) {
    if !rng.chance(0.2) {
        return;
    }
    let planes = options.geometry.channels * options.geometry.units_per_channel();
    options.controller = Some(Central::new(&options.timing, planes, 0));
    if rng.chance(0.7) {
        options.unit.gc.coordination = Coordination::Controller;
    }
}

/// In some runs operators change volumes meanwhile, with a registry that has troubles of its own; where gateways share
/// their volumes, operators decide who serves. A node whose medium failed may refuse its part until it starts again, and
/// cannot keep whose its vSSDs are: there vSSDs exchange places at most, and what waits for it is left as it is.
fn draw_control(fleet: &mut RackFleet, spec: &mut RunSpec, swarm: SwarmOptions, heals: bool, rng: &mut Rng) {
    let media_fail = spec
        .faults
        .iter()
        .any(|(_, fault)| fault.fails_medium(MEDIUM_LIMIT));
    let alone = fleet.options().gateways == 1;
    let is_left_out = !spec.world.canary.may_heal() || !heals && rng.chance(0.3);
    if is_left_out || !alone && media_fail {
        return;
    }
    if !alone {
        let silences: &[u64] = if heals { &[20, 100, 500] } else { &[5, 20, 100] };
        fleet.share_volumes(Failover {
            silent_after: Duration::from_millis(pick(rng, silences)),
            look_every: Duration::from_millis(pick(rng, &[2, 20, 100])),
            seed: rng.next_u64(),
            one_session: false,
        });
    }
    let cut_off = draw_outdone(fleet, spec);
    let patient = fleet.options().request_timeout == REQUEST_TIMEOUT;
    let crash_at = (rng.chance(0.3) && !media_fail).then(|| rng.below(200) + 1);
    spec.errors_are_violations &= crash_at.is_none() && patient;
    let away = (heals && rng.chance(0.2)).then(|| rng.below(spec.calm_ns));
    let control = Control {
        exchange_within: Duration::from_millis(pick(rng, &[1, 30, 1_000])),
        registry: RegistryModel {
            away_ns: away.map_or((0, 0), |from| (from, from + spec.calm_ns / 4)),
            cut_off,
            ..draw_registry(rng)
        },
        calm_ns: spec.calm_ns,
        canary: swarm.control_canary,
        crash_at,
        leaves: media_fail,
        heal: heals.then(|| draw_rules(rng)),
        seed: rng.next_u64(),
    };
    let mut plan = Vec::new();
    let commands = if rng.chance(0.2) { 0 } else { rng.between(1, 8) };
    let takes_medium = spec
        .faults
        .iter()
        .any(|(_, fault)| fault.takes_medium().is_some());
    if let Some(rules) = control.heal.filter(|_| takes_medium) {
        // What a lost member may have in memory is waited for.
        spec.answer_ns += rules.patience.as_nanos() as u64;
    }
    let replicas_min = if takes_medium { 2 } else { 1 };
    for _ in 0..commands {
        let wish = match rng.below(9) {
            _ if media_fail => Wish::Exchange,
            0..=2 => Wish::Exchange,
            3 | 4 => Wish::Create {
                pages: rng.between(1, 40),
                replicas: rng.between(replicas_min, 3).min(u64::from(fleet.options().nodes)) as u8,
                used: rng.chance(0.6),
            },
            5 | 6 => Wish::Grow {
                pages: rng.between(1, 60),
            },
            _ => Wish::Delete,
        };
        plan.push((rng.below(spec.calm_ns), wish));
    }
    if heals && !media_fail {
        plan.extend(draw_moves(fleet, spec, rng));
    }
    fleet.operate(control, plan);
}

/// In some runs where gateways share their volumes, one of them reaches neither rack nor registry until another one leads in its
/// place. Then it reaches the rack again, and does not know that it was replaced: nodes refuse it. Returns which gateway, and when.
fn draw_outdone(fleet: &RackFleet, spec: &mut RunSpec) -> Option<(usize, u64)> {
    let mut rng = Rng::new(!spec.world.seed.rotate_left(53));
    let failover = fleet.options().failover.filter(|_| rng.chance(0.2))?;
    let gateway = rng.below(u64::from(fleet.options().gateways)) as u32;
    let at = rng.between(spec.calm_ns / 10, spec.calm_ns / 2);
    let fault = Fault::Partition {
        host: fleet.gateway(gateway),
        for_ns: failover.silent_after.as_nanos() as u64 * rng.between(2, 8),
        inbound: true,
        outbound: true,
    };
    spec.faults.push((at, fault));
    spec.faults.sort_by_key(|fault| fault.0);
    spec.errors_are_violations = false;
    Some((gateway as usize, at))
}

/// How patient the healing is: less so than in production, where a run would take minutes. Nobody is less patient than the
/// lease of a member that is given up.
fn draw_rules(rng: &mut Rng) -> Rules {
    let ms = |rng: &mut Rng, of: &[u64]| Duration::from_millis(pick(rng, of));
    Rules {
        ask_every: ms(rng, &[50, 200]),
        silent_after: ms(rng, &[300, 1_000, 1_500]),
        patience: ms(rng, &[3_000, 10_000, 15_000]),
        rejoin_after: ms(rng, &[100, 1_000, 3_000]),
        rebuild_after: ms(rng, &[500, 3_000, 20_000]),
        joins_max: pick(rng, &[1, 4]),
        moves_max: pick(rng, &[1, 2]),
    }
}

/// Copies more or fewer, and nodes that go and come, as far as there are enough nodes.
fn draw_moves(fleet: &RackFleet, spec: &RunSpec, rng: &mut Rng) -> Vec<(u64, Wish)> {
    let options = fleet.options();
    let copies_max = options.volumes.iter().map(|volume| volume.replicas).max();
    let gone: Vec<usize> = (spec.faults.iter())
        .filter_map(|(_, fault)| match fault {
            Fault::Gone { host } => Some(*host),
            _ => None,
        })
        .collect();
    let takes_medium = spec
        .faults
        .iter()
        .any(|(_, fault)| fault.takes_medium().is_some());
    let nodes = options.nodes - gone.len() as u32;
    let mut plan = Vec::new();
    let at =
        |rng: &mut Rng, from: u64, to: u64| rng.between(spec.calm_ns * from / 10, spec.calm_ns * to / 10);
    for _ in 0..rng.below(3) {
        let least = if takes_medium { 2 } else { 1 };
        let replicas = rng.between(least, 3).min(u64::from(nodes.max(2) - 1)) as u8;
        plan.push((at(rng, 0, 10), Wish::Copies { replicas }));
    }
    let node = rng.below(u64::from(options.nodes)) as u32;
    if nodes <= copies_max.unwrap_or(0) || nodes <= 3 || rng.chance(0.4) {
        return plan;
    }
    let (id, is_gone) = (NodeId(node as u8 + 1), gone.contains(&fleet.node(node)));
    plan.push((at(rng, 1, 4), Wish::Drain(id)));
    match rng.below(4) {
        0 => plan.push((at(rng, 4, 10), Wish::StopDrain(id))),
        1 => plan.push((at(rng, 4, 7), Wish::Remove(id))),
        _ if is_gone => {}
        2 => {
            // It comes back in the place of another one, which may be gone.
            let other = |node: &NodeId| *node != id;
            let mut lost = gone.iter().map(|host| NodeId(*host as u8));
            let others = (1..=options.nodes as u8).map(NodeId).filter(other);
            let others: Vec<NodeId> = others.collect();
            let old = lost.find(other).unwrap_or_else(|| pick(rng, &others));
            plan.push((at(rng, 4, 6), Wish::Remove(id)));
            plan.push((at(rng, 6, 10), Wish::Replace { old, new: id }));
        }
        _ => {
            plan.push((at(rng, 4, 7), Wish::Remove(id)));
            plan.push((at(rng, 7, 10), Wish::Add(id)));
        }
    }
    plan
}

fn draw_registry(rng: &mut Rng) -> RegistryModel {
    if rng.chance(0.3) {
        return RegistryModel::default();
    }
    RegistryModel {
        latency_ns_max: pick(rng, &[MILLISECOND / 10, 3 * MILLISECOND, 40 * MILLISECOND]),
        failing: pick(rng, &[0.0, 0.05, 0.2]),
        unknown: pick(rng, &[0.0, 0.1, 0.3]),
        conflicting: pick(rng, &[0.0, 0.1]),
        ..RegistryModel::default()
    }
}

const GC_MODES: [GcMode; 3] = [
    GcMode::Blocking,
    GcMode::Preemptible { step_pages: 2 },
    GcMode::Free,
];

fn draw_rack(heals: bool, rng: &mut Rng) -> RackOptions {
    let nodes = rng.between(if heals { 3 } else { 2 }, 6) as u32;
    let gateways = rng.between(1, 3) as u32;
    let is_large = rng.chance(0.06);
    let mut geometry = Geometry {
        channels: 1,
        chips_per_channel: rng.between(1, 2) as u32,
        planes_per_chip: 1,
        blocks_per_plane: rng.between(20, 40) as u32,
        pages_per_block: pick(rng, if is_large { &[32, 64] } else { &[4, 8, 16] }),
    };
    let channels = if is_large { 2 } else { rng.between(1, 2) as u32 };
    let sizing = Geometry { channels, ..geometry };
    let share = pick(rng, &[0.3, 0.6, 0.8, 0.95]);
    let pages_per_set = pages_of(sizing, share, is_large, heals);
    let volumes = draw_volumes(rng, nodes, channels, pages_per_set, heals);
    // Round robin puts a vSSD of every set at most once on a node.
    let sets: u32 = volumes.iter().map(|v| v.sets).sum();
    geometry.channels = sets * channels;
    let physical = f64::from(channels * geometry.pages_per_channel());
    let mut gc = rack::gc::Config::for_spare(1.0 - f64::from(pages_per_set) / physical);
    gc.check_every = Duration::from_millis(rng.between(1, 20));
    gc.coordination = pick(rng, &[Coordination::Rack, Coordination::Rack, Coordination::None]);
    let options = RackOptions {
        nodes,
        gateways,
        geometry,
        timing: Timing::built_in(pick(rng, Timing::BUILT_IN)).expect("it is built in"),
        gc_mode: pick(rng, &GC_MODES),
        checkpoint_every_programs: pick(rng, &[64, 500, 1 << 20]),
        borrow_blocks: 8,
        unit: UnitConfig {
            policy: draw_policy(rng),
            cache_pages: pick(rng, &[4, 16, 64]),
            read_depth: pick(rng, &[1, 4, 32]),
            write_depth: pick(rng, &[1, 4, 32]),
            device_depth: pick(rng, &[1, 3, 16, usize::MAX]),
            dirty_ratio_low: pick(rng, &[0.0, 0.5, 0.9]),
            gc,
        },
        scrub: scrub::Options::OFF,
        slow: slow::Rules::default(),
        request_timeout: if rng.chance(0.2) {
            REQUEST_TIMEOUT_SHORT
        } else {
            REQUEST_TIMEOUT
        },
        client_link: draw_link(rng),
        tors: Tors::One,
        egress: None,
        reads: pick(rng, &[Reads::Fastest, Reads::First]),
        controller: None,
        failover: None,
        volumes,
        levels: newest,
    };
    if !is_large && rng.chance(0.3) {
        let mut shared = options.clone();
        if share_channels(&mut shared, share, heals, rng) {
            return shared;
        }
    }
    options
}

/// Pages of a set whose vSSDs have all channels of this flash.
fn pages_of(flash: Geometry, share: f64, is_large: bool, heals: bool) -> u32 {
    let pages_max = if is_large { PAGES_MANY } else { PAGES_MAX };
    let logical_max = flash.logical_pages_max(flash.channels);
    let pages = ((f64::from(logical_max) * share) as u32).clamp(4, pages_max);
    // Copies go to nodes as they offer room: no vSSD is fuller.
    let offered = (f64::from(flash.pages_per_channel()) * (1.0 - OVER_PROVISIONING)) as u32;
    if heals {
        pages.min(flash.channels * offered)
    } else {
        pages
    }
}

fn draw_volumes(rng: &mut Rng, nodes: u32, channels: u32, pages_per_set: u32, heals: bool) -> Vec<Layout> {
    let replicas: &[u32] = if heals {
        &[1, 2, 2, 2, 2, 3, 3, 3]
    } else {
        &[1, 2, 3]
    };
    (0..rng.between(1, 2))
        .map(|_| Layout {
            sets: rng.between(1, 2) as u32,
            pages_per_set,
            replicas: pick(rng, replicas).min(nodes),
            channels,
            rows: 0,
            durability: pick(rng, &[Durability::Memory, Durability::Memory, Durability::Media]),
        })
        .collect()
}

/// Makes every vSSD a software-isolated one: of the chips of its channels it has one, and others the rest. Where members
/// move, all share all channels, as the operator places them. False if none would have pages.
fn share_channels(options: &mut RackOptions, share: f64, heals: bool, rng: &mut Rng) -> bool {
    options.geometry.chips_per_channel = rng.between(2, 3) as u32;
    if heals {
        let sets: u32 = options.volumes.iter().map(|layout| layout.sets).sum();
        options.geometry.chips_per_channel = sets + 2;
        options.geometry.channels = options.volumes[0].channels;
    }
    options.borrow_blocks = rng.between(1, 6) as u32;
    let geometry = options.geometry;
    let channels = options.volumes[0].channels;
    let logical_max = geometry.logical_pages_max_shared(channels, 1, SIM_PAGE_BYTES);
    let offered = f64::from(channels * geometry.blocks_per_plane * geometry.pages_per_block)
        * (1.0 - OVER_PROVISIONING);
    let pages = ((f64::from(logical_max) * share) as u32)
        .min(PAGES_MAX)
        .min(offered as u32);
    if pages < 4 {
        return false;
    }
    for layout in &mut options.volumes {
        (layout.rows, layout.pages_per_set) = (1, pages);
    }
    let physical = channels * geometry.blocks_per_plane * geometry.pages_per_block;
    options.unit.gc = rack::gc::Config {
        coordination: options.unit.gc.coordination,
        check_every: options.unit.gc.check_every,
        ..rack::gc::Config::for_spare(1.0 - f64::from(pages) / f64::from(physical))
    };
    true
}

fn draw_policy(rng: &mut Rng) -> Policy {
    let coordinated = rng.chance(0.5);
    match rng.below(3) {
        0 if coordinated => Policy::Coordinated,
        0 => Policy::Fifo,
        1 => Policy::Deadline(Targets::deadline(coordinated)),
        _ => Policy::Kyber(Targets::kyber(coordinated)),
    }
}

fn draw_link(rng: &mut Rng) -> LinkModel {
    LinkModel {
        delay: pick(
            rng,
            &[
                Delay::None,
                Delay::Constant(5_000),
                Delay::FAST,
                Delay::MEDIUM,
                Delay::SLOW,
            ],
        ),
        ns_per_kilobyte: pick(rng, &[0, 80]),
        fifo: rng.chance(0.3),
        paths: pick(rng, &[1, 1, 4]),
        near_paths: rng.below(3) as u32,
    }
}

fn draw_run(fleet: &RackFleet, seed: u64, swarm: SwarmOptions, heals: bool, rng: &mut Rng) -> RunSpec {
    let span_ns = match heals {
        true => rng.between(3_000, 8_000),
        false => rng.between(200, 2_000),
    } * MILLISECOND;
    let patient = fleet.options().request_timeout == REQUEST_TIMEOUT;
    let volumes = fleet.checked_volumes();
    let pool_pages = draw_pool(fleet, rng);
    let loads = draw_loads(fleet, volumes.len(), (span_ns, pool_pages, heals), rng);
    let calm = rng.chance(0.2);
    let mut faults = if calm {
        Vec::new()
    } else {
        let scene = Scene {
            span_ns,
            heals,
            takes_medium: heals && is_replicated_enough(fleet),
        };
        draw_faults(fleet, scene, swarm.canary, rng)
    };
    faults.retain(|(_, fault)| swarm.failing_media || !fault.fails_medium(MEDIUM_LIMIT));
    let media_fails = faults.iter().any(|(_, fault)| fault.fails_medium(MEDIUM_LIMIT));
    let net_faults = if calm || rng.chance(0.3) {
        NetFaults::default()
    } else {
        NetFaults {
            loss: pick(rng, &[0.0, 0.001, 0.02]),
            duplicate: pick(rng, &[0.0, 0.01, 0.05]),
            reorder: pick(rng, &[0.0, 0.05]),
            reorder_ns_max: pick(rng, &[MILLISECOND / 10, 3 * MILLISECOND, 100 * MILLISECOND]),
            corrupt: pick(rng, &[0.0, 0.005]),
        }
    };
    RunSpec {
        world: WorldOptions {
            seed,
            link: draw_link(rng),
            media: draw_media(rng),
            wire_check: true,
            canary: swarm.canary,
            cut: None,
        },
        volumes,
        loads,
        // Only a run without any fault must be without error: a loss of power may cost unflushed writes, and says so.
        errors_are_violations: faults.is_empty() && patient,
        faults,
        net_faults,
        calm_ns: span_ns,
        // A node whose medium failed refuses writes until it starts again: that fault does not stop, and what waits for the
        // node may wait until the gateway gives up.
        answer_ns: if media_fails {
            ANSWER_NS + REQUEST_TIMEOUT.as_nanos() as u64
        } else {
            ANSWER_NS
        },
        gc_lease_ns: TOR_LEASE.as_nanos() as u64,
        pool_pages,
        read_back: true,
        probe: true,
        exam: patient,
        at_cut: AtCut::Rack,
    }
}

/// The pages of the pool: in some runs hardly more than all caches hold. A sixteenth, which nodes keep for changes of
/// their superblock, suffices for these: a simulated page holds little of a superblock.
fn draw_pool(fleet: &RackFleet, rng: &mut Rng) -> usize {
    if !rng.chance(0.15) {
        return POOL_PAGES;
    }
    let vssds: usize = fleet.sets().iter().map(|set| set.members.len()).sum();
    vssds * fleet.options().unit.cache_pages + pick(rng, &[1_300, 1_600, 2_400])
}

/// True if a node can go for ever: no data are there alone, and another node can take its place.
fn is_replicated_enough(fleet: &RackFleet) -> bool {
    let options = fleet.options();
    let mut volumes = options.volumes.iter();
    volumes.all(|volume| volume.replicas > 1 && volume.replicas < options.nodes)
}

/// One or two loads on each volume.
fn draw_loads(
    fleet: &RackFleet,
    volumes: usize,
    (span_ns, pool_pages, heals): (u64, usize, bool),
    rng: &mut Rng,
) -> Vec<LoadSpec> {
    let mut loads = Vec::new();
    for index in 0..volumes {
        for _ in 0..rng.between(1, 2) {
            let mut load = draw_load(fleet.gateway_of(index), index, span_ns, rng);
            if heals {
                draw_longer(&mut load, span_ns, rng);
            }
            if pool_pages < POOL_PAGES && rng.chance(0.5) {
                load.pace = Pace::Closed { depth: 400 };
                load.shape.multi_page = 0.6;
            }
            loads.push(load);
        }
    }
    loads
}

/// A load that goes on while members are expelled and come back.
fn draw_longer(load: &mut LoadSpec, span_ns: u64, rng: &mut Rng) {
    load.requests = rng.between(300, 1_200);
    load.start = Instant::from_nanos(rng.below(span_ns / 8));
    if rng.chance(0.85) {
        load.pace = Pace::Open {
            per_second: load.requests as f64 * 1e9 / span_ns as f64,
            outstanding_max: pick(rng, &[64, 1_024]),
        };
    }
}

/// A fault by itself.
fn draw_fault(fleet: &RackFleet, heals: bool, rng: &mut Rng) -> Fault {
    let options = fleet.options();
    let outages: &[u64] = if heals {
        &[1, 30, 400, 1_300, 3_000]
    } else {
        &[1, 30, 400]
    };
    let node = fleet.node(rng.below(u64::from(options.nodes)) as u32);
    let gateway = fleet.gateway(rng.below(u64::from(options.gateways)) as u32);
    let any = pick(rng, &[node, gateway, RackFleet::TOR]);
    let down_ns = pick(rng, outages) * MILLISECOND;
    match rng.below(14) {
        0..=2 => Fault::Crash { host: node, down_ns },
        3 => Fault::Crash {
            host: gateway,
            down_ns,
        },
        4 => Fault::Crash {
            host: RackFleet::TOR,
            down_ns,
        },
        5 | 6 => Fault::PowerLoss { down_ns },
        7 | 8 => {
            let (inbound, outbound) = pick(rng, &[(true, true), (true, false), (false, true)]);
            Fault::Partition {
                host: any,
                for_ns: down_ns,
                inbound,
                outbound,
            }
        }
        9 if heals && rng.chance(0.5) => Fault::CorruptMetadata {
            host: node,
            part: pick(
                rng,
                &[Metadata::Superblock, Metadata::Checkpoint, Metadata::Spare],
            ),
        },
        9 => Fault::Corrupt { host: node },
        10 => Fault::FailWrite { host: node },
        11 => Fault::FailFlush { host: node },
        12 => Fault::Slow {
            host: node,
            factor: pick(rng, &[3, 30, 300]),
            for_ns: down_ns,
        },
        _ => Fault::Hang {
            host: node,
            for_ns: draw_hang_ns(rng),
        },
    }
}

fn draw_faults(fleet: &RackFleet, scene: Scene, canary: Canary, rng: &mut Rng) -> Vec<(u64, Fault)> {
    let options = fleet.options();
    let Scene { span_ns, heals, .. } = scene;
    let mut faults = Vec::new();
    if rng.chance(if heals { 0.75 } else { 0.35 }) {
        faults.extend(scripts::draw(fleet, scene, rng));
    }
    let alone = rng.between(0, if faults.is_empty() { 4 } else { 2 });
    for _ in 0..alone {
        let fault = draw_fault(fleet, heals, rng);
        faults.push((rng.between(span_ns / 10, span_ns), fault));
    }
    if heals && rng.chance(0.3) {
        // As far apart as leases can bear (`rack::lease`).
        let host = |i| fleet.node(i);
        let rate = |host| Fault::ClockRate {
            host,
            ppm: CLOCK_PPM_MAX - rng.below(2 * CLOCK_PPM_MAX as u64 + 1) as i32,
        };
        faults.extend((0..options.nodes).map(host).map(rate).map(|fault| (1, fault)));
    }
    if heals && rng.chance(0.1) {
        let packets = pick(rng, &[16, 64, 256]);
        faults.push((1, Fault::FullQueues { packets }));
    }
    if canary == Canary::LoseFlush {
        // Without a loss of power nobody could tell.
        faults.push((
            span_ns / 2,
            Fault::PowerLoss {
                down_ns: 10 * MILLISECOND,
            },
        ));
    }
    faults.sort_unstable_by_key(|fault| fault.0);
    if options.volumes.iter().any(|volume| volume.replicas == 1) {
        drop_damage_like_a_cut(&mut faults);
    }
    faults
}
