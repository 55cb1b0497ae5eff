//! One run: a fleet of hosts, clients, faults and checkers, put together and driven to its end.
//!
//! A run has three parts: load and faults; calm, in which everything must be answered; and reading every volume back.

use crate::check::memory::{Lost, Memories, Set};
use crate::check::{GcChecker, Loss, ToldChecker, Violation};
use crate::client::{ClientStats, ClientVolume, Clients, Latencies, LoadSpec, Pace, Shape};
use crate::media::SimMedium;
use crate::net::NetFaults;
use crate::operators::Attention;
use crate::reached::{Changes, Reached, Situation};
use crate::workload::stream::Stream;
use crate::workload::{Mix, Pattern};
use crate::world::{Canary, Happening, Site, World, WorldOptions, WorldStats};
use base::event::{Event, Kind};
use base::limits::{PAGE_BYTES, SECTORS_PER_PAGE};
use base::{BlockReply, Duration, Instant, Machine, Pool, Rng, VssdId};
use host::{Input, Output};
use rack::registry::{Durability, VolumeRecord};

pub use crate::fault::{FOR_EVER, Fault};
pub use crate::fleet::{Fleet, Role};

/// A digest of more pages than this takes several messages ([`rack::catchup`]).
const RANGE_PAGES: u64 = 512;

/// Parts that lose power at the boundary of [`WorldOptions::cut`]. The loads end there: what is read back is what the cut
/// left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AtCut {
    /// Every host.
    #[default]
    Rack,
    /// The host whose medium it is, alone.
    Host,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Of the world; its seed is the run's.
    pub world: WorldOptions,
    /// Volumes.
    pub volumes: Vec<ClientVolume>,
    /// Loads on them.
    pub loads: Vec<LoadSpec>,
    /// Faults, by virtual time in ns.
    pub faults: Vec<(u64, Fault)>,
    /// Random misfortunes of the network until [`RunSpec::calm_ns`].
    pub net_faults: NetFaults,
    /// When the network's misfortunes end, in ns.
    pub calm_ns: u64,
    /// Every request is answered within this once the faults have stopped, in ns.
    pub answer_ns: u64,
    /// The lease of the ToR's GC bits, in ns (`u64::MAX`: none).
    pub gc_lease_ns: u64,
    /// Pages of the pool.
    pub pool_pages: usize,
    /// Read every volume back at the end.
    pub read_back: bool,
    /// At the very end let the hosts come to rest and check their accounts.
    pub probe: bool,
    /// At the very end, if no medium failed, demand that writes and flushes succeed, and look at each medium alone. No
    /// host is up after that.
    pub exam: bool,
    /// No fault excuses an error: every one is a violation.
    pub errors_are_violations: bool,
    /// Parts that [`WorldOptions::cut`] takes down.
    pub at_cut: AtCut,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Broken promises, in the order found; at most [`VIOLATIONS_MAX`].
    pub violations: Vec<Violation>,
    /// Hash of the event log.
    pub hash: u64,
    /// Of the world.
    pub world: WorldStats,
    /// Of the clients.
    pub clients: ClientStats,
    /// Latencies recorded.
    pub latencies: Latencies,
    /// Virtual time at the end, in ns.
    pub virtual_ns: u64,
    /// Soft GC requests that were accepted.
    pub soft_collections: u64,
    /// Block reads that the checkers judged.
    pub reads_judged: u64,
    /// Situations that the run came into.
    pub reached: Reached,
    /// What the hosts told last, in order.
    pub events: Vec<Event>,
}

/// Violations kept of one run; it is stopped when they are reached.
pub const VIOLATIONS_MAX: usize = 8;
/// Quiet time before the hosts' accounts are checked, in ns: several times what a replica waits before it replays
/// somebody's unfinished write.
const SETTLE_NS: u64 = 1_000_000_000;
/// Writes of the last exam, per step and volume.
const EXAM_WRITES: u64 = 8;
/// How long a cut lasts, in ns.
const CUT_DOWN_NS: u64 = 5_000_000;
/// Requests of the clients of a volume that was created.
const NEW_VOLUME_REQUESTS: u64 = 60;
/// A process that crashes between two steps of its control plane is down so long, in ns.
const CONTROL_DOWN_NS: u64 = 7_000_000;
/// Queue depth and pages of a request when reading back.
const READ_BACK: (u32, u64) = (4, 8);

const TOKEN_LOAD: u64 = 1 << 56;
const TOKEN_FAULT: u64 = 2 << 56;
const TOKEN_START: u64 = 3 << 56;
const TOKEN_SPEED: u64 = 4 << 56;
const TOKEN_CALM: u64 = 5 << 56;
const TOKEN_ATTEND: u64 = 6 << 56;
const TOKEN_RESUME: u64 = 7 << 56;
const TOKEN_CALM_AGAIN: u64 = 8 << 56;
const TOKEN_KIND: u64 = 0xff << 56;

/// A run under way.
pub struct Run<F: Fleet> {
    fleet: F,
    world: World<F::Host>,
    clients: Clients,
    gc: GcChecker,
    told: ToldChecker,
    spec: RunSpec,
    sites: Vec<(Site, Role)>,
    boots: Vec<u32>,
    memories: Memories,
    /// Content of the media of hosts that have another one's for now, and how long they are down again then.
    own_media: Vec<Option<(Vec<u8>, u64)>>,
    reached: Reached,
    /// When the last burst of losses ends.
    burst_until: Instant,
    /// Faults that have not happened, hosts that are down, calm not yet reached.
    troubles: usize,
    /// The control plane counts as one of these.
    is_attended: bool,
    /// When the control plane does something next.
    attend_at: Option<Instant>,
    calm_since: Instant,
    violations: Vec<Violation>,
    /// A host did not start: nothing good can follow.
    given_up: bool,
    rng: Rng,
}

impl<F: Fleet> Run<F> {
    /// Puts a run together and starts its hosts.
    pub fn new(fleet: F, spec: RunSpec) -> Self {
        let sites = fleet.sites();
        let places: Vec<Site> = sites.iter().map(|s| s.0).collect();
        let pool = Pool::new(spec.pool_pages, spec.world.media.sector_bytes);
        let mut rng = Rng::new(spec.world.seed ^ 0x5eed);
        let mut world = World::new(&places, spec.world, pool);
        for (from, to, model) in fleet.links() {
            world.net().set_link(from, to, model);
        }
        world.net().set_faults(spec.net_faults);
        let sets = fleet.replica_sets();
        let gc = GcChecker::new(
            sets.iter().map(|set| set.iter().map(|member| &member.0)),
            spec.gc_lease_ns,
        );
        world.set_replica_sets(sets);
        let mut clients = Clients::new(&spec.volumes);
        clients.set_errors_are_violations(spec.errors_are_violations);
        clients.set_paths(fleet.paths());
        for load in &spec.loads {
            let (index, at) = clients.add(*load, rng.next_u64());
            world.wake_at(at, TOKEN_LOAD | index as u64);
        }
        for (index, fault) in spec.faults.iter().enumerate() {
            world.wake_at(Instant::from_nanos(fault.0), TOKEN_FAULT | index as u64);
        }
        world.wake_at(Instant::from_nanos(spec.calm_ns), TOKEN_CALM);
        let mut run = Self {
            gc,
            told: ToldChecker::default(),
            troubles: spec.faults.len() + 1 + sites.len() + usize::from(fleet.is_busy(Instant::ZERO)),
            is_attended: fleet.is_busy(Instant::ZERO),
            attend_at: None,
            boots: vec![0; sites.len()],
            memories: Memories::new(sites.len(), &fleet.sets()),
            own_media: vec![None; sites.len()],
            reached: Reached::default(),
            burst_until: Instant::ZERO,
            calm_since: Instant::ZERO,
            violations: Vec::new(),
            given_up: false,
            fleet,
            world,
            clients,
            spec,
            sites,
            rng,
        };
        for index in 0..run.sites.len() {
            run.start(index);
        }
        run.attend_soon();
        run
    }

    /// The fleet.
    pub fn fleet(&self) -> &F {
        &self.fleet
    }

    /// The world, to look at hosts after the end.
    pub fn world(&mut self) -> &mut World<F::Host> {
        &mut self.world
    }

    /// Adds a load that begins now. Latencies and counters go on from where they are.
    pub fn add_load(&mut self, load: LoadSpec) {
        let now = self.world.now();
        let load = LoadSpec { start: now, ..load };
        let (index, at) = self.clients.add(load, self.rng.next_u64());
        self.world.wake_at(at, TOKEN_LOAD | index as u64);
    }

    /// As [`Run::add_load`], with requests from a stream, see [`Clients::add_stream`].
    pub fn add_stream(&mut self, load: LoadSpec, stream: Box<dyn Stream>) {
        let now = self.world.now();
        let load = LoadSpec { start: now, ..load };
        let (index, at) = self.clients.add_stream(load, stream, self.rng.next_u64());
        self.world.wake_at(at, TOKEN_LOAD | index as u64);
    }

    /// Drives the run to its end. May be called again after [`Run::add_load`].
    pub fn execute(&mut self) -> Outcome {
        let mut fine = self.drive(false);
        let exam = self.spec.exam && self.media_are_sound();
        if exam {
            // Troubles are over, and what they cost may be an older value or one failed flush, but no page.
            self.clients.set_errors_are_violations(true);
        }
        if fine && self.spec.read_back {
            self.add_read_back();
            fine = self.drive(true);
        }
        if fine && self.spec.probe {
            self.settle();
        }
        (0..self.sites.len()).for_each(|host| self.note_host(host));
        if exam && fine && self.violations.is_empty() {
            self.examine();
        }
        let is_empty = self.clients.stats().starved > 0;
        self.reached.note_if(is_empty, Situation::PoolEmpty);
        Outcome {
            violations: core::mem::take(&mut self.violations),
            hash: self.world.hash(),
            world: self.world.stats(),
            clients: self.clients.stats(),
            latencies: self.clients.latencies().clone(),
            virtual_ns: self.world.now().as_nanos(),
            soft_collections: self.gc.accepted(),
            reads_judged: self.clients.reads_judged(),
            reached: self.reached,
            events: self.world.events().after(0, usize::MAX).events,
        }
    }

    fn metadata_are_damaged(&self, of: usize) -> bool {
        let mut faults = self.spec.faults.iter();
        faults.any(|(_, fault)| matches!(fault, Fault::CorruptMetadata { host, .. } if *host == of))
    }

    fn media_are_sound(&self) -> bool {
        let limit = self.spec.world.media.limit;
        let mut faults = self.spec.faults.iter();
        !faults.any(|(_, fault)| fault.fails_medium(limit))
    }

    /// Writes and flushes once more, then demands that what was acknowledged is on the medium of every replica.
    fn examine(&mut self) {
        // The first flush may tell of a loss.
        self.clients.set_errors_are_violations(false);
        let flush = Mix {
            flush: 1.0,
            ..Mix::default()
        };
        let steps = [
            (flush, 1, 0.0),
            (Mix::writes(1.0), EXAM_WRITES, 0.0),
            (flush, 1, 0.0),
            (Mix::writes(1.0), EXAM_WRITES, 1.0),
        ];
        for (mix, requests, fua) in steps {
            for volume in 0..self.spec.volumes.len() {
                self.add_load(LoadSpec {
                    mix,
                    fua,
                    record_after: Instant::FAR_FUTURE,
                    ..LoadSpec::new(self.gateway_of(volume), volume, requests)
                });
            }
            if !self.drive(true) {
                return;
            }
            self.clients.set_errors_are_violations(true);
        }
        for index in 0..self.sites.len() {
            self.world.crash(index);
        }
        let (now, pool) = (self.world.now(), self.world.pool().clone());
        let mut hosts = Vec::new();
        for (index, boot) in self.boots.iter().enumerate() {
            let medium = self
                .world
                .medium(index)
                .filter(|_| self.sites[index].1 == Role::Node);
            let sound = medium
                .as_deref()
                .map_or(Ok(()), |medium| self.fleet.check_medium(medium));
            if let Err(what) = sound {
                self.violations.push(Violation::Accounts { host: index, what });
            }
            let started = medium.map(|medium| self.fleet.start(index, *boot, now, &pool, Some(medium)));
            match started.transpose() {
                Ok(host) => hosts.push(host),
                Err(why) => return self.violations.push(Violation::Start { host: index, why }),
            }
        }
        if let Err(violation) = self.fleet.media_agree(&hosts) {
            self.violations.push(violation);
        }
    }

    /// The gateway of a volume: that of its first load, where it has one.
    fn gateway_of(&self, volume: usize) -> usize {
        let load = self.spec.loads.iter().find(|load| load.volume == volume);
        let any = || self.sites.iter().position(|site| site.1 == Role::Gateway);
        load.map(|load| load.gateway)
            .or_else(any)
            .expect("a fleet has a gateway")
    }

    /// Runs until all clients are done and the troubles over; false if the run is to be stopped.
    fn drive(&mut self, troubles_over: bool) -> bool {
        let slice_ns = (self.spec.answer_ns / 4).max(1);
        loop {
            if self.is_over(troubles_over) {
                return true;
            }
            let until = Instant::from_nanos(self.world.now().as_nanos() + slice_ns);
            while let Some(happening) = self.world.next(until) {
                self.happen(happening);
                if self.given_up || self.violations.len() >= VIOLATIONS_MAX {
                    return false;
                }
                if self.is_over(troubles_over) {
                    return true;
                }
            }
            if self.is_stuck(until) {
                return false;
            }
        }
    }

    fn is_over(&self, troubles_over: bool) -> bool {
        let now = self.world.now();
        let calm = || self.troubles == 0 && now >= self.calm_since && !self.fleet.is_busy(now);
        self.clients.are_done() && (troubles_over || calm())
    }

    fn is_stuck(&mut self, until: Instant) -> bool {
        if self.troubles > 0 {
            return false;
        }
        let (count, oldest) = self.clients.waiting();
        let since = oldest.max(self.calm_since);
        let stuck = count > 0 && until.nanos_since(since) > self.spec.answer_ns;
        // Nothing pends, nothing is due, and the loads are not done: the world has stopped.
        let dead = self.world.now() < until;
        if (stuck || dead) && !self.fleet.is_beyond_repair() {
            self.violations.push(Violation::Stuck {
                count,
                oldest_ns: oldest.as_nanos(),
                waited_ns: until.nanos_since(since),
            });
        }
        stuck || dead
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Reply { reply, .. } => self.reply(reply),
            Happening::Wake { token } => self.alarm(token),
            Happening::Cut { host } => {
                self.clients.stop();
                self.strike(match self.spec.at_cut {
                    AtCut::Rack => Fault::PowerLoss { down_ns: CUT_DOWN_NS },
                    AtCut::Host => Fault::Crash {
                        host,
                        down_ns: CUT_DOWN_NS,
                    },
                });
            }
            Happening::Event { host, kind } => {
                // It is deleted, and so is what it collected.
                if let Kind::VssdClosed { vssd } = kind {
                    self.gc.left(vssd);
                }
                if let Some(situation) = Situation::of(&kind) {
                    self.reached.note(situation);
                }
                if let Kind::ReplicaServing { vssd, .. } = kind {
                    self.serves(host, vssd);
                }
                let told = self.told.told(self.world.now(), host, &kind);
                let invented =
                    matches!(kind, Kind::MetadataDamaged { .. }) && !self.metadata_are_damaged(host);
                let what = "it tells of damaged metadata, which nothing has damaged".to_owned();
                if let Err(what) = told.and(if invented { Err(what) } else { Ok(()) }) {
                    self.violations.push(Violation::Accounts { host, what });
                }
            }
            Happening::Gc {
                header, to, arrives, ..
            } => {
                if !arrives {
                    self.gc.sent(self.world.now(), &header);
                } else if let Err(violation) = self.gc.arrived(self.world.now(), to, &header) {
                    self.violations.push(violation);
                }
            }
        }
    }

    fn reply(&mut self, reply: BlockReply) {
        if let Some((load, at)) = self.clients.reply(&mut self.world, reply) {
            self.world.wake_at(at, TOKEN_LOAD | load as u64);
        }
        let found = self.clients.take_violations();
        self.violations.extend(found);
    }

    fn alarm(&mut self, token: u64) {
        let index = (token & !TOKEN_KIND) as usize;
        match token & TOKEN_KIND {
            TOKEN_LOAD => {
                if let Some(at) = self.clients.wake(&mut self.world, index) {
                    self.world.wake_at(at, token);
                }
            }
            TOKEN_FAULT => {
                let fault = self.spec.faults[index].1;
                if fault.takes_medium().is_none_or(|host| self.can_spare(host)) {
                    self.strike(fault);
                }
                self.ease();
            }
            TOKEN_START => self.start(index),
            TOKEN_RESUME => self.world.resume(index),
            TOKEN_SPEED => {
                if let Some(medium) = self.world.medium(index) {
                    medium.slow_down(1);
                }
            }
            TOKEN_CALM => {
                self.spec.net_faults = NetFaults::default();
                self.world.bound_queues(u32::MAX);
                self.end_burst();
                self.ease();
            }
            TOKEN_CALM_AGAIN => self.end_burst(),
            TOKEN_ATTEND if self.attend_at.is_some_and(|at| at <= self.world.now()) => self.attend(),
            // Something else was sooner.
            TOKEN_ATTEND => {}
            _ => panic!("an alarm nobody set: {token:x}"),
        }
    }

    /// The network is as it usually is, unless packets are lost in a burst.
    fn end_burst(&mut self) {
        if self.world.now() >= self.burst_until {
            self.world.net().set_faults(self.spec.net_faults);
        }
    }

    /// Lets the control plane do what is due.
    fn attend(&mut self) {
        self.attend_at = None;
        let attention = self.fleet.attend(&mut self.world);
        self.world.set_expelled(self.fleet.expelled());
        self.note_attention(&attention);
        self.clients.lead_moved(&attention.led_anew);
        self.given_up |= attention.broken.is_some();
        self.violations.extend(attention.broken.map(Violation::Control));
        for &vssd in &attention.expelled {
            self.gc.left(vssd);
        }
        for record in &attention.created {
            self.use_volume(record);
        }
        if let Some(host) = attention.crash {
            let down_ns = CONTROL_DOWN_NS;
            self.strike(Fault::Crash { host, down_ns });
        }
        if self.is_attended && !self.fleet.is_busy(self.world.now()) {
            self.is_attended = false;
            self.ease();
        }
        self.attend_soon();
    }

    /// Sets an alarm for the control plane.
    fn attend_soon(&mut self) {
        let Some(at) = self.fleet.attend_at(self.world.now()) else {
            return;
        };
        if self.attend_at.is_none_or(|known| at < known) {
            self.attend_at = Some(at);
            self.world.wake_at(at, TOKEN_ATTEND);
        }
    }

    /// Clients use a volume that was created.
    fn use_volume(&mut self, record: &VolumeRecord) {
        let volume = ClientVolume {
            id: record.volume(),
            pages: record.size_bytes / PAGE_BYTES as u64,
            check: true,
            durability: true,
            durable_writes: record.durability == Durability::Media,
        };
        self.spec.volumes.push(volume);
        let index = self.clients.add_volume(volume);
        let gateway = self.sites.iter().position(|site| site.1 == Role::Gateway);
        let gateway = gateway.expect("volumes are created where there is one");
        self.add_load(LoadSpec {
            pace: Pace::Closed { depth: 4 },
            mix: Mix {
                flush: 0.05,
                ..Mix::writes(0.6)
            },
            ..LoadSpec::new(gateway, index, NEW_VOLUME_REQUESTS)
        });
    }

    /// One trouble less.
    fn ease(&mut self) {
        self.troubles -= 1;
        self.calm_since = self.calm_since.max(self.world.now());
    }

    fn start(&mut self, index: usize) {
        let (now, boot) = (self.world.now(), self.boots[index]);
        let local = self.world.local(index);
        self.boots[index] += 1;
        let pool = self.world.pool().clone();
        let started = self
            .fleet
            .start(index, boot, local, &pool, self.world.medium(index));
        if let Some((own, down_ns)) = self.own_media[index].take() {
            return self.refuse(index, started.is_err(), &own, down_ns);
        }
        match started {
            Ok(host) => {
                self.world.start(index, host);
                if !self.fleet.tells_who_serves() {
                    self.serve_from_start(index);
                }
                for load in self.clients.gateway_back(index) {
                    self.world.wake_at(now, TOKEN_LOAD | load as u64);
                }
                if self.sites[index].1 == Role::Tor {
                    self.gc.tor_restarted(index);
                }
            }
            Err(why) => {
                self.violations.push(Violation::Start { host: index, why });
                self.given_up = true;
            }
        }
        self.ease();
        self.attend_soon();
    }

    /// A host has refused to start with the medium of another one, and gets its own back.
    fn refuse(&mut self, host: usize, has_refused: bool, own: &[u8], down_ns: u64) {
        if !has_refused {
            let why = "it has started with the medium of another host".to_owned();
            self.violations.push(Violation::Start { host, why });
            self.given_up = true;
            return;
        }
        self.reached.note(Situation::StrangerRefused);
        medium(&mut self.world, host).fill(own);
        let at = self.world.now() + Duration::from_nanos(down_ns);
        self.world.wake_at(at, TOKEN_START | host as u64);
    }

    /// Whoever tells nothing serves from when its host starts.
    fn serve_from_start(&mut self, host: usize) {
        for (vssd, of) in self.fleet.sets().into_iter().flat_map(|set| set.members) {
            if of == host {
                self.serves(host, vssd);
            }
        }
    }

    fn add_read_back(&mut self) {
        let gateways: Vec<usize> = (0..self.sites.len())
            .filter(|&i| matches!(self.sites[i].1, Role::Gateway | Role::Server))
            .collect();
        let mut loads = Vec::new();
        for (volume, spec) in self.spec.volumes.iter().enumerate() {
            let read_back = LoadSpec {
                pace: Pace::Closed { depth: READ_BACK.0 },
                pattern: Pattern::Sequential,
                mix: Mix::writes(0.0),
                shape: Shape {
                    sub_page: 0.0,
                    multi_page: 1.0,
                    pages_max: READ_BACK.1,
                },
                record_after: Instant::FAR_FUTURE,
                ..LoadSpec::new(
                    gateways[volume % gateways.len()],
                    volume,
                    spec.pages.div_ceil(READ_BACK.1),
                )
            };
            loads.push(read_back);
        }
        for load in loads {
            self.add_load(load);
        }
    }

    /// Lets the hosts come to rest and checks their accounts.
    fn settle(&mut self) {
        self.rest();
        if self.disagreement().is_some() {
            // A gateway sends what a lost server has not answered once in seconds: that may have come just now.
            self.rest();
        }
        for index in 0..self.sites.len() {
            if let Some(host) = self.world.host(index)
                && let Err(what) = self.fleet.probe(index, host).and_then(|()| {
                    let (now, latched) = (self.world.now(), self.fleet.latched(host));
                    self.told.at_rest(now, index, &latched)
                })
            {
                self.violations.push(Violation::Accounts { host: index, what });
            }
        }
        self.violations.extend(self.disagreement());
    }

    fn rest(&mut self) {
        let until = Instant::from_nanos(self.world.now().as_nanos() + SETTLE_NS);
        while let Some(happening) = self.world.next(until) {
            self.happen(happening);
        }
    }

    fn disagreement(&self) -> Option<Violation> {
        let hosts: Vec<_> = (0..self.sites.len()).map(|i| self.world.host(i)).collect();
        self.fleet.agree(&hosts).err()
    }
}

/// What the run came into.
impl<F: Fleet> Run<F> {
    /// Notes what a host came into that is up still.
    fn note_host(&mut self, host: usize) {
        let situations = self.world.host(host).map(|host| self.fleet.situations(host));
        for situation in situations.into_iter().flatten() {
            self.reached.note(situation);
        }
    }

    /// A host is about to go down.
    fn note_crash(&mut self, host: usize) {
        self.note_host(host);
        let is_down = |of: usize| of == host || !self.world.is_up(of);
        let down = |set: &Set| set.members.iter().filter(|(_, of)| is_down(*of)).count();
        let sets = self.fleet.sets();
        let mut here = sets
            .iter()
            .filter(|set| set.members.iter().any(|(_, of)| *of == host));
        let are_two = here.any(|set| down(set) > 1);
        self.reached.note_if(are_two, Situation::TwoDown);
        let Changes {
            exchanges,
            rebuilds,
            moves,
            ..
        } = self.fleet.changes();
        self.reached.note_if(exchanges, Situation::ExchangeAndCrash);
        self.reached.note_if(rebuilds, Situation::RebuildAndCrash);
        self.reached.note_if(moves, Situation::MoveAndCrash);
    }

    /// A member serves.
    fn note_serving(&mut self, host: usize, vssd: VssdId, sets: &[Set]) {
        let Some(set) = sets.iter().find(|set| set.members.contains(&(vssd, host))) else {
            return;
        };
        let mut others = set.members.iter().filter(|(other, _)| *other != vssd);
        let collects = others.any(|(other, of)| self.told.collects(*of, *other));
        self.reached.note_if(collects, Situation::JoinWhileCollecting);
        let is_long = set.pages.end - set.pages.start > RANGE_PAGES && set.members.len() > 1;
        self.reached
            .note_if(is_long && self.boots[host] > 1, Situation::ManyRanges);
    }

    /// The control plane has done something.
    fn note_attention(&mut self, attention: &Attention) {
        let changes = self.fleet.changes();
        let takes_over = !attention.led_anew.is_empty() && changes.lacks;
        self.reached.note_if(changes.leads > 1, Situation::SeveralLead);
        self.reached.note_if(changes.gathers, Situation::Gathered);
        self.reached.note_if(takes_over, Situation::LeadWhileRebuilding);
        self.reached.note_if(changes.is_alone, Situation::SoleSurvivor);
        self.reached
            .note_if(!attention.expelled.is_empty(), Situation::Expelled);
        if !attention.expelled.is_empty() {
            let joins = |(vssd, host): &(VssdId, usize)| {
                self.world.is_up(*host) && !self.memories.holds(*host, *vssd)
            };
            let sets = self.fleet.sets();
            let joins = changes.rebuilds || sets.iter().flat_map(|set| &set.members).any(joins);
            self.reached.note_if(joins, Situation::ExpelWhileJoining);
        }
        self.reached.note_if(attention.joins_again > 0, Situation::Yield);
        self.reached.note_if(attention.joined > 0, Situation::Rebuilt);
        self.reached.note_if(attention.moved > 0, Situation::Moved);
        self.reached
            .note_if(attention.replaced > 0, Situation::NodeReplaced);
    }
}

/// Faults strike: what each does, and whom it endangers.
impl<F: Fleet> Run<F> {
    fn strike(&mut self, fault: Fault) {
        let now = self.world.now().as_nanos();
        match fault {
            Fault::Crash { host, down_ns } => _ = self.crash(host, down_ns),
            Fault::Gone { host } => {
                if self.world.is_up(host) {
                    self.go_down(host);
                    self.fleet.gone(host);
                    self.judge_losses();
                }
            }
            Fault::Blank { host, down_ns } => {
                if self.lose_medium(host, down_ns) {
                    medium(&mut self.world, host).wipe();
                }
            }
            Fault::Rollback { host, down_ns } => {
                if self.lose_medium(host, down_ns) {
                    medium(&mut self.world, host).put_image_back();
                }
            }
            Fault::Foreign { host, of, down_ns } => self.exchange_medium(host, of, down_ns),
            Fault::Image { host } => medium(&mut self.world, host).keep_image(),
            Fault::PowerLoss { down_ns } => {
                for host in 0..self.sites.len() {
                    if self.world.is_up(host) {
                        let delay = self.rng.below(down_ns + 1);
                        self.take_down(host, now + down_ns + delay);
                    }
                }
                self.world.drop_packets();
                self.judge_losses();
            }
            Fault::Partition {
                host,
                for_ns,
                inbound,
                outbound,
            } => {
                let until = self.trouble_until(for_ns);
                self.world.net().partition(host, until, inbound, outbound);
            }
            Fault::Cut { pair: [a, b], for_ns } => {
                let until = self.trouble_until(for_ns);
                self.world.cut(a, b, until);
                self.world.cut(b, a, until);
            }
            Fault::CutOneWay { pair: [a, b], for_ns } => {
                let until = self.trouble_until(for_ns);
                self.world.cut(a, b, until);
            }
            Fault::ClockRate { host, ppm } => self.world.set_rate(host, ppm),
            Fault::FullQueues { packets } => self.world.bound_queues(packets),
            Fault::Burst { loss, for_ns } => {
                let until = self.trouble_until(for_ns);
                let usual = self.spec.net_faults;
                self.world.net().set_faults(NetFaults { loss, ..usual });
                self.burst_until = self.burst_until.max(until);
                self.world.wake_at(until, TOKEN_CALM_AGAIN);
            }
            Fault::Corrupt { .. }
            | Fault::CorruptMetadata { .. }
            | Fault::Hang { .. }
            | Fault::Slow { .. }
            | Fault::FailWrite { .. }
            | Fault::FailFlush { .. } => self.strike_medium(fault),
        }
    }

    /// True if every set has a copy elsewhere of what the medium of a host has.
    fn can_spare(&self, host: usize) -> bool {
        let addr = self.sites[host].0.addr;
        let sets = self.fleet.replica_sets();
        let mut last = sets
            .iter()
            .filter(|set| set.iter().all(|member| member.1 == addr));
        last.next().is_none()
    }

    /// A trouble that begins now is over then.
    fn trouble_until(&mut self, for_ns: u64) -> Instant {
        let until = self.world.now() + Duration::from_nanos(for_ns);
        self.calm_since = self.calm_since.max(until);
        until
    }

    /// A host goes down; false if it was down.
    fn crash(&mut self, host: usize, down_ns: u64) -> bool {
        let is_up = self.world.is_up(host);
        if is_up {
            self.take_down(host, self.world.now().as_nanos() + down_ns);
            self.judge_losses();
        }
        is_up
    }

    /// A host goes down, and will have another medium; false if it was down.
    fn lose_medium(&mut self, host: usize, down_ns: u64) -> bool {
        if !self.world.is_up(host) {
            return false;
        }
        // What others copy from it is not what it had.
        self.memories.damaged(host);
        self.reached.note(Situation::OtherMedium);
        self.crash(host, down_ns)
    }

    /// A host goes down, and will be started with the medium of another one, if that says whose it is.
    fn exchange_medium(&mut self, host: usize, of: usize, down_ns: u64) {
        let sets = self.fleet.sets();
        let mut members = sets.iter().flat_map(|set| &set.members);
        let says_whose = members.any(|(vssd, on)| *on == of && self.memories.holds(of, *vssd));
        if says_whose && self.crash(host, down_ns) {
            let other = medium(&mut self.world, of).content();
            let medium = medium(&mut self.world, host);
            self.own_media[host] = Some((medium.content(), down_ns));
            medium.fill(&other);
            if self.spec.world.canary == Canary::ForgeIdentity {
                self.fleet.forge_identity(host, medium);
            }
        }
    }

    fn strike_medium(&mut self, fault: Fault) {
        match fault {
            Fault::Corrupt { host } => {
                let range = self.fleet.corruptible(host);
                if self.world.corrupt(host, range) {
                    self.memories.damaged(host);
                }
            }
            Fault::CorruptMetadata { host, part } => {
                let range = self.fleet.metadata(host, part);
                if self.world.corrupt(host, range) {
                    self.memories.damaged(host);
                }
            }
            Fault::Hang { host, for_ns } => {
                if fault.fails_medium(self.spec.world.media.limit) {
                    self.memories.damaged(host);
                }
                if let Some(medium) = self.world.medium(host) {
                    medium.faults().hang();
                    if for_ns != FOR_EVER {
                        let at = self.world.now() + Duration::from_nanos(for_ns);
                        self.world.wake_at(at, TOKEN_RESUME | host as u64);
                    }
                }
            }
            Fault::Slow { host, factor, for_ns } => {
                let until = self.trouble_until(for_ns);
                if let Some(medium) = self.world.medium(host) {
                    medium.slow_down(factor);
                    self.world.wake_at(until, TOKEN_SPEED | host as u64);
                }
            }
            Fault::FailWrite { host } => {
                self.memories.damaged(host);
                if let Some(medium) = self.world.medium(host) {
                    medium.faults().fail_writes(1);
                }
            }
            Fault::FailFlush { host } => {
                self.memories.damaged(host);
                if let Some(medium) = self.world.medium(host) {
                    medium.faults().fail_flushes(1);
                }
            }
            _ => unreachable!("it is none of a medium"),
        }
    }

    fn take_down(&mut self, host: usize, until_ns: u64) {
        self.go_down(host);
        self.troubles += 1;
        self.world
            .wake_at(Instant::from_nanos(until_ns), TOKEN_START | host as u64);
    }

    fn go_down(&mut self, host: usize) {
        self.note_crash(host);
        self.world.crash(host);
        match self.sites[host].1 {
            Role::Gateway => {
                self.clients.gateway_lost(host);
                let now = self.world.now();
                for load in self.clients.reroute(host) {
                    self.world.wake_at(now, TOKEN_LOAD | load as u64);
                }
            }
            Role::Server => self.clients.gateway_lost(host),
            Role::Tor | Role::Node => {}
        }
        self.memories.crashed(host);
        self.gc.crashed(host);
        self.told.crashed(host);
    }

    /// A member of a set says that it serves.
    fn serves(&mut self, host: usize, vssd: VssdId) {
        let sets = self.fleet.sets();
        self.note_serving(host, vssd, &sets);
        if let Some(lost) = self.memories.serves(host, vssd, &sets) {
            self.reached.note(Situation::MemoryGivenUp);
            self.tell_losses(&[lost]);
        }
    }

    /// Tells the checkers which blocks have no replica left that kept its memory.
    fn judge_losses(&mut self) {
        let world = &self.world;
        let lost = self.memories.judge(&self.fleet.sets(), |host| world.is_up(host));
        self.reached.note_if(!lost.is_empty(), Situation::MemoryLost);
        self.tell_losses(&lost);
    }

    fn tell_losses(&mut self, lost: &[Lost]) {
        let now = self.world.now();
        for volume in 0..self.spec.volumes.len() {
            let mine: Vec<&Lost> = lost.iter().filter(|lost| lost.0 == volume).collect();
            if mine.is_empty() || !self.spec.volumes[volume].durability {
                continue;
            }
            if let Some(checker) = self.clients.checker(volume) {
                checker.power_loss(now, |block| {
                    let page = block / SECTORS_PER_PAGE as u64;
                    let here = mine.iter().find(|(_, pages, _)| pages.contains(&page));
                    here.map_or(Loss::None, |(_, _, loss)| *loss)
                });
            }
        }
    }
}

fn medium<H: Machine<Input = Input, Output = Output>>(world: &mut World<H>, host: usize) -> &mut SimMedium {
    world.medium(host).expect("a node has a medium")
}
