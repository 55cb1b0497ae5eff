//! Virtual time: the world that drives hosts through [`host::Input`] and [`host::Output`] only.
//!
//! Invariants: events of one instant happen in the order in which they were scheduled, deadlines after them by host
//! index; a packet or a completion for a host that is down is dropped; a completion for an earlier incarnation of a
//! host never reaches a later one. With one seed everything, down to the event hash, repeats.
//!
//! The world allocates nothing per event once its queues have grown to their working size.

mod canary;
mod clock;

use crate::media::{CutFate, MediaModel, SimMedium};
use crate::net::{Fate, LinkModel, Network};
use crate::queue::{Queue, Timers};
use base::event::{Events, Kind, Source, Value};
use base::{
    Addr, BlockReply, BlockRequest, Duration, Instant, Machine, MediaDone, MediaKind, MediaOp, Page, Pool,
    Queue as _, Rng, VssdId,
};
use canary::Sabotage;
use clock::Clock;
use host::{Input, Output};
use std::collections::VecDeque;
use wire::rack::{Code, HEADER_BYTES, Header, Op, Packet, Payload, flags};

pub use canary::Canary;

/// Ticks, and inputs of any kind, at one instant after which the rack is said to run in circles, which is a bug of its
/// hosts. Far more than any burst of work needs.
const TICKS_AT_ONE_INSTANT_MAX: u32 = 100_000;
const INPUTS_AT_ONE_INSTANT_MAX: u32 = 500_000;
/// Events of each host that are kept, of those that are routine and of the others: enough to tell what came before a
/// failure.
const EVENTS_KEPT: usize = 256;
/// A write is executed again after at most this, in ns.
const AGAIN_NS_MAX: u64 = 50_000_000;
/// Its copy has a number that is so much higher: one of the window that nobody has used yet.
const AGAIN_NUMBERS: u64 = 512;
/// Bytes of a digest's answer that say how many pages it covers.
const COVERED_BYTES: usize = 2;

/// One host's place in the world.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Its address.
    pub addr: Addr,
    /// Bytes of its medium, 0 for none.
    pub medium_bytes: u64,
    /// Whose events its are.
    pub source: Source,
}

/// A loss of power at a write boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which boundary: writes and flushes that hosts issue to their media are counted from 0 over the whole rack.
    pub boundary: u64,
    /// What becomes of that operation.
    pub fate: CutFate,
}

/// Options of a world.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// The seed of the network's and the media's draws.
    pub seed: u64,
    /// Links between all hosts, unless set one by one.
    pub link: LinkModel,
    /// Properties of the media.
    pub media: MediaModel,
    /// Emit and parse every header on its way.
    pub wire_check: bool,
    /// The deliberate break.
    pub canary: Canary,
    /// Where to report [`Happening::Cut`].
    pub cut: Option<Cut>,
}

/// Events that the driver of a world sees.
#[derive(Debug)]
pub enum Happening {
    /// A gateway answers a client.
    Reply {
        /// The gateway.
        host: usize,
        /// The answer.
        reply: BlockReply,
    },
    /// The time set with [`World::wake_at`] has come.
    Wake {
        /// The driver's mark.
        token: u64,
    },
    /// Power is lost at the boundary of [`WorldOptions::cut`], once. Whoever sees this crashes that host, or all of
    /// them, at once; what the host had still to say is never heard.
    Cut {
        /// Whose medium it is.
        host: usize,
    },
    /// A host told of an event.
    Event {
        /// Which.
        host: usize,
        /// What happened.
        kind: Kind,
    },
    /// A packet about garbage collection was sent or delivered.
    Gc {
        /// Its header.
        header: Header,
        /// Its sender.
        from: usize,
        /// The next hop.
        to: usize,
        /// False when it was sent, true when it arrives.
        arrives: bool,
    },
}

/// Counters of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldStats {
    /// Events delivered.
    pub events: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets lost, cut off, or for a host that is down.
    pub packets_lost: u64,
    /// Packets to an address where nobody listens.
    pub packets_astray: u64,
    /// Promise that the canary broke.
    pub sabotaged: u64,
    /// Writes and flushes that hosts issued to their media.
    pub boundaries: u64,
    /// Reads that a member answered which was expelled: it does not know that, and has leases.
    pub expelled_reads: u64,
    /// Reads that such a member refused.
    pub expelled_refusals: u64,
}

#[derive(Debug)]
enum Event {
    Packet { from: u16, to: u16, packet: Packet },
    Media { host: u16, incarnation: u32 },
    Wake { token: u64 },
}

struct Core {
    now: Instant,
    queue: Queue<Event>,
    /// Events of this very instant that need no place in the queue.
    ready: VecDeque<Event>,
    net: Network,
    places: Vec<Place>,
    /// Of the places, which are few: looking through them is faster than a hash.
    addrs: Vec<Addr>,
    /// Events of hosts, also of hosts that are down by now.
    events: Events,
    happenings: VecDeque<Happening>,
    hash: u64,
    stats: WorldStats,
    rng: Rng,
    pool: Pool,
    wire_check: bool,
    canary: Canary,
    cut: Option<Cut>,
    /// Packets under way to a host, at most.
    queue_max: u32,
    /// Pairs of hosts of which the second hears nothing of the first, until when.
    cuts: Vec<([Addr; 2], Instant)>,
    sabotage: Sabotage,
    /// vSSDs that the registry has expelled.
    expelled: Vec<VssdId>,
}

struct Place {
    addr: Addr,
    source: Source,
    clock: Clock,
    /// Packets under way to it.
    under_way: u32,
    medium: Option<SimMedium>,
    incarnation: u32,
    /// The session of the last packet it sent, for forging one in its name.
    session: u32,
}

/// A rack in virtual time.
pub struct World<H> {
    hosts: Vec<Option<H>>,
    timers: Timers,
    /// Hosts to be asked for their deadline before time goes on: each at most once an instant.
    unasked: Vec<u16>,
    is_unasked: Vec<bool>,
    core: Core,
    /// The instant last seen, and how many ticks and inputs there were in it.
    instant: Instant,
    ticks: u32,
    inputs: u32,
}

impl<H: Machine<Input = Input, Output = Output>> World<H> {
    /// A world with a place for each of `sites`, all hosts down, at time zero.
    pub fn new(sites: &[Site], options: WorldOptions, pool: Pool) -> Self {
        let mut rng = Rng::new(options.seed);
        let mut media = options.media;
        media.loses_flushes |= options.canary == Canary::LoseFlush;
        let addrs: Vec<Addr> = sites.iter().map(|site| site.addr).collect();
        let place = |(index, site): (usize, &Site)| {
            let is_new = !addrs[..index].contains(&site.addr);
            assert!(is_new, "two hosts do not share {}", site.addr);
            Place {
                addr: site.addr,
                source: site.source,
                clock: Clock::default(),
                under_way: 0,
                medium: (site.medium_bytes > 0)
                    .then(|| SimMedium::new(site.medium_bytes, media, options.seed ^ index as u64)),
                incarnation: 0,
                session: 0,
            }
        };
        let places = sites.iter().enumerate().map(place).collect();
        let mut events = Events::new(EVENTS_KEPT);
        sites.iter().for_each(|site| events.add(site.source));
        Self {
            hosts: sites.iter().map(|_| None).collect(),
            timers: Timers::new(sites.len()),
            unasked: Vec::with_capacity(sites.len()),
            is_unasked: vec![false; sites.len()],
            core: Core {
                now: Instant::ZERO,
                queue: Queue::new(),
                ready: VecDeque::new(),
                net: Network::new(sites.len(), options.link, rng.fork()),
                places,
                addrs,
                events,
                happenings: VecDeque::new(),
                hash: options.seed,
                stats: WorldStats::default(),
                rng,
                pool,
                wire_check: options.wire_check,
                canary: options.canary,
                cut: options.cut,
                queue_max: u32::MAX,
                cuts: Vec::new(),
                sabotage: Sabotage::default(),
                expelled: Vec::new(),
            },
            instant: Instant::ZERO,
            ticks: 0,
            inputs: 0,
        }
    }

    /// Now.
    pub fn now(&self) -> Instant {
        self.core.now
    }

    /// What the clock of a host shows.
    pub fn local(&self, index: usize) -> Instant {
        self.core.places[index].clock.show(self.core.now)
    }

    /// From now on the clock of a host runs faster by so many millionths.
    pub fn set_rate(&mut self, index: usize, ppm: i32) {
        let now = self.core.now;
        self.core.places[index].clock.set_rate(now, ppm);
        if self.hosts[index].is_some() {
            self.ask_later(index);
        }
    }

    /// From now on a packet for a host to which as many are under way is lost.
    pub fn bound_queues(&mut self, packets: u32) {
        self.core.queue_max = packets;
    }

    /// The hash of every event delivered so far.
    pub fn hash(&self) -> u64 {
        self.core.hash
    }

    /// Last events of hosts.
    pub fn events(&self) -> &Events {
        &self.core.events
    }

    /// Counters.
    pub fn stats(&self) -> WorldStats {
        self.core.stats
    }

    /// The payload memory of all hosts and clients.
    pub fn pool(&self) -> &Pool {
        &self.core.pool
    }

    /// The network, to break and mend it.
    pub fn net(&mut self) -> &mut Network {
        &mut self.core.net
    }

    /// Lets a host hear nothing of another one, and everybody else hear both.
    pub fn cut(&mut self, from: usize, to: usize, until: Instant) {
        let pair = [from, to].map(|host| self.core.places[host].addr);
        let now = self.core.now;
        self.core.cuts.retain(|(_, until)| now < *until);
        self.core.cuts.push((pair, until));
    }

    /// Tells the canary which vSSDs replicate each other, and on which nodes they are.
    pub fn set_replica_sets(&mut self, sets: Vec<Vec<(VssdId, Addr)>>) {
        self.core.sabotage.sets = sets;
    }

    /// Tells which vSSDs are expelled from their sets, so that the reads which they answer are counted.
    pub fn set_expelled(&mut self, vssds: Vec<VssdId>) {
        self.core.expelled = vssds;
    }

    /// A host, unless it is down.
    pub fn host(&self, index: usize) -> Option<&H> {
        self.hosts[index].as_ref()
    }

    /// Keeps an event of the control plane beside a host.
    pub fn note(&mut self, index: usize, kind: Kind) {
        let source = self.core.places[index].source;
        self.core.events.record(self.core.now, source, kind);
    }

    /// The medium of a host.
    pub fn medium(&mut self, index: usize) -> Option<&mut SimMedium> {
        self.core.places[index].medium.as_mut()
    }

    /// True when the host runs.
    pub fn is_up(&self, index: usize) -> bool {
        self.hosts[index].is_some()
    }

    /// Puts a host in its place and lets it speak.
    pub fn start(&mut self, index: usize, host: H) {
        assert!(
            self.hosts[index].is_none(),
            "host {index} is down before it starts"
        );
        self.core.fold(
            index as u64,
            0x57a7,
            u64::from(self.core.places[index].incarnation),
        );
        self.hosts[index] = Some(host);
        self.drain(index);
    }

    /// Takes a host down: its volatile state is lost, and what its medium had not made durable may be.
    #[cold]
    pub fn crash(&mut self, index: usize) {
        self.core.fold(index as u64, 0xc4a5, 0);
        self.hosts[index] = None;
        self.timers.set(index, None);
        let core = &mut self.core;
        let place = &mut core.places[index];
        place.incarnation += 1;
        if let Some(medium) = &mut place.medium {
            medium.crash(&mut core.rng);
        }
        core.happenings.retain(
            |h| !matches!(h, Happening::Reply { host, .. } | Happening::Event { host, .. } if *host == index),
        );
    }

    /// Drops every packet on its way: the switches lost power too.
    pub fn drop_packets(&mut self) {
        let stays = |event: &Event| !matches!(event, Event::Packet { .. });
        for place in &mut self.core.places {
            place.under_way = 0;
        }
        self.core.queue.retain(stays);
        self.core.ready.retain(stays);
    }

    /// A medium that hung answers again, late.
    #[cold]
    pub fn resume(&mut self, index: usize) {
        let core = &mut self.core;
        let medium = core.places[index].medium.as_mut();
        let (held, at) = medium.map_or((0, core.now), |medium| medium.resume(core.now));
        for _ in 0..held {
            core.poll_at(index, at);
        }
    }

    /// Flips a bit on the host's medium inside `range` (bytes); false if there was nothing to damage.
    pub fn corrupt(&mut self, index: usize, range: core::ops::Range<u64>) -> bool {
        let core = &mut self.core;
        match &mut core.places[index].medium {
            Some(medium) if !range.is_empty() => medium.corrupt(range, &mut core.rng),
            _ => false,
        }
    }

    /// Sets an alarm for the driver.
    pub fn wake_at(&mut self, at: Instant, token: u64) {
        self.core.queue.push(at.max(self.core.now), Event::Wake { token });
    }

    /// Hands a client's request to a gateway; gives it back if the gateway is down.
    pub fn request(&mut self, gateway: usize, request: BlockRequest) -> Result<(), BlockRequest> {
        if self.hosts[gateway].is_none() {
            return Err(request);
        }
        self.core
            .fold(gateway as u64, 0x4e9 ^ request.tag << 16, request.range.offset());
        self.dispatch(gateway, Input::Request(request));
        Ok(())
    }

    /// Calls into a host, as a control plane does; `None` if it is down.
    pub fn call<R>(&mut self, index: usize, call: impl FnOnce(&mut H, Instant) -> R) -> Option<R> {
        let result = call(self.hosts[index].as_mut()?, self.core.now);
        self.core.fold(index as u64, 0xca11, 0);
        self.drain(index);
        Some(result)
    }

    /// Runs until something concerns the driver, or returns `None` with the time at `until`, or earlier when nothing
    /// at all is left to happen.
    pub fn next(&mut self, until: Instant) -> Option<Happening> {
        loop {
            if let Some(happening) = self.core.happenings.pop_front() {
                return Some(happening);
            }
            let event = match self.core.ready.pop_front() {
                Some(event) => event,
                None => {
                    self.ask_deadlines();
                    let (deadline, host) = self.timers.first();
                    let event_at = self.core.queue.next_at().unwrap_or(u64::MAX);
                    let at = deadline.min(event_at);
                    if at > until.as_nanos() {
                        if at < u64::MAX {
                            self.core.now = self.core.now.max(until);
                        }
                        return None;
                    }
                    if at == u64::MAX {
                        return None;
                    }
                    if event_at > deadline {
                        self.tick(host, deadline);
                        continue;
                    }
                    let (at, event) = self.core.queue.pop()?;
                    self.core.now = at;
                    event
                }
            };
            self.deliver(event);
        }
    }

    fn tick(&mut self, host: usize, deadline: u64) {
        let core = &mut self.core;
        core.now = core.now.max(Instant::from_nanos(deadline));
        if self.instant != core.now {
            (self.instant, self.ticks, self.inputs) = (core.now, 0, 0);
        }
        self.ticks += 1;
        assert!(
            self.ticks < TICKS_AT_ONE_INSTANT_MAX,
            "the deadline of host {host} does not advance"
        );
        core.fold(host as u64, 0x71c4, 0);
        self.hosts[host]
            .as_mut()
            .expect("a host that is down has no timer")
            .tick(core.places[host].clock.show(core.now));
        self.drain(host);
    }

    fn deliver(&mut self, event: Event) {
        let (host, input) = match event {
            Event::Wake { token } => {
                return self.core.happenings.push_back(Happening::Wake { token });
            }
            Event::Media { host, incarnation } => {
                let place = &mut self.core.places[host as usize];
                if place.incarnation != incarnation {
                    return;
                }
                let Some(done) = self.core.poll_medium(host as usize) else {
                    return;
                };
                self.core.fold(u64::from(host), 0x3ed1, done.id);
                (host, Input::Media(done))
            }
            Event::Packet { from, to, packet } => {
                self.core.places[to as usize].under_way -= 1;
                let is_cut = self.core.is_cut(&packet.header, from as usize, to as usize);
                if self.hosts[to as usize].is_none() || is_cut {
                    self.core.stats.packets_lost += 1;
                    return;
                }
                self.core.arrive(from as usize, to as usize, &packet.header);
                if self.core.canary == Canary::None {
                    (to, Input::Packet(packet))
                } else {
                    let sabotaged = self.core.sabotage(from as usize, to as usize, packet);
                    let Some(packet) = sabotaged else { return };
                    (to, Input::Packet(packet))
                }
            }
        };
        self.dispatch(host as usize, input);
    }

    #[inline(always)]
    fn dispatch(&mut self, index: usize, input: Input) {
        self.core.stats.events += 1;
        if self.instant != self.core.now {
            (self.instant, self.ticks, self.inputs) = (self.core.now, 0, 0);
        }
        self.inputs += 1;
        assert!(
            self.inputs < INPUTS_AT_ONE_INSTANT_MAX,
            "host {index} runs in circles without time passing"
        );
        self.hosts[index]
            .as_mut()
            .expect("inputs go to hosts that are up")
            .handle(self.core.places[index].clock.show(self.core.now), input);
        self.drain(index);
    }

    fn drain(&mut self, index: usize) {
        let host = self.hosts[index].as_mut().expect("only a host that is up speaks");
        while let Some(output) = host.poll() {
            match output {
                Output::Send { to, packet } => self.core.send(index, to, packet),
                Output::Media(op) => {
                    if self.core.cuts_power(index, &op) {
                        break;
                    }
                    self.core.issue(index, op);
                }
                Output::Reply(reply) => {
                    self.core.fold(
                        index as u64,
                        0x4e91 ^ reply.tag << 16,
                        u64::from(reply.result.is_ok()),
                    );
                    self.core
                        .happenings
                        .push_back(Happening::Reply { host: index, reply });
                }
                Output::Event(kind) => self.core.keep(index, kind),
            }
        }
        self.ask_later(index);
    }

    /// The host is asked for its deadline before time goes on.
    #[inline(always)]
    fn ask_later(&mut self, index: usize) {
        if !self.is_unasked[index] {
            self.is_unasked[index] = true;
            self.unasked.push(index as u16);
        }
    }

    fn ask_deadlines(&mut self) {
        for index in self.unasked.drain(..).map(usize::from) {
            self.is_unasked[index] = false;
            let deadline = self.hosts[index].as_ref().and_then(Machine::deadline);
            let clock = &self.core.places[index].clock;
            self.timers.set(index, deadline.map(|at| clock.when(at)));
        }
    }
}

impl Core {
    /// Folds an event into the log's hash.
    fn fold(&mut self, host: u64, kind: u64, detail: u64) {
        let mut h = self.hash ^ self.now.as_nanos();
        h = h.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29);
        h ^= host << 56 ^ kind;
        h = h.wrapping_mul(0xa5a3_5615_1b0c_6e5d).rotate_left(31);
        h ^= detail;
        self.hash = h.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ h >> 32;
    }

    /// Keeps an event, and shows it to the driver.
    #[cold]
    fn keep(&mut self, host: usize, kind: Kind) {
        let is_end = matches!(
            kind,
            Kind::CollectionEnded { .. } | Kind::LeaseEnded { .. } | Kind::MediumLatched { .. }
        );
        if self.canary == Canary::HideEvents && is_end {
            self.stats.sabotaged += 1;
            return;
        }
        self.events.record(self.now, self.places[host].source, kind);
        self.fold(host as u64, 0xe7e4, kind.index() as u64);
        kind.fields(&mut |_, value| {
            let detail = match value {
                Value::Number(number) => number,
                Value::Name(name) => name.bytes().fold(0, |all, byte| all << 5 ^ u64::from(byte)),
                Value::Host(addr) => u64::from(addr.ip) << 16 | u64::from(addr.port),
                Value::Client(_) => 0,
                Value::Time(time) => time.as_nanos() as u64,
            };
            self.fold(host as u64, 0xe7e5, detail);
        });
        self.happenings.push_back(Happening::Event { host, kind });
    }

    #[inline(always)]
    fn send(&mut self, from: usize, to: Addr, mut packet: Packet) {
        self.stats.packets += 1;
        if packet.header.source == self.places[from].addr {
            self.places[from].session = packet.header.session;
        }
        if self.wire_check {
            check_on_the_wire(&packet);
        }
        let Some(to) = self.addrs.iter().position(|&addr| addr == to) else {
            self.stats.packets_astray += 1;
            return;
        };
        if packet.header.op == Op::GcOp {
            self.happenings.push_back(Happening::Gc {
                header: packet.header,
                from,
                to,
                arrives: false,
            });
        }
        let bytes = HEADER_BYTES as u32 + packet.header.length;
        match self.net.carry(self.now, from, to, bytes, packet.header.request) {
            Fate::Lost => self.stats.packets_lost += 1,
            Fate::Arrives { .. } if self.places[to].under_way >= self.queue_max => {
                self.stats.packets_lost += 1
            }
            Fate::Arrives { at, corrupt, again } => {
                self.places[to].under_way += 1 + u32::from(again.is_some());
                let (from, to) = (from as u16, to as u16);
                let lat_ns = packet.header.lat_ns;
                // In-band telemetry: every hop adds its time (RackBlox §3.4).
                let plus = |until: Instant| {
                    lat_ns.saturating_add(until.nanos_since(self.now).min(u64::from(u32::MAX)) as u32)
                };
                if let Some(again) = again {
                    let mut packet = packet.clone();
                    packet.header.lat_ns = plus(again);
                    self.queue.push(again, Event::Packet { from, to, packet });
                }
                packet.header.lat_ns = plus(at);
                if corrupt && !self.damage(&mut packet) {
                    self.stats.packets_lost += 1;
                    self.places[usize::from(to)].under_way -= 1;
                } else if at == self.now {
                    self.ready.push_back(Event::Packet { from, to, packet });
                } else {
                    self.queue.push(at, Event::Packet { from, to, packet });
                }
            }
        }
    }

    /// Flips a bit of the payload. False without a payload: the header's checksum fails, and the packet is gone.
    #[cold]
    fn damage(&mut self, packet: &mut Packet) -> bool {
        match &mut packet.payload {
            Payload::None => return false,
            Payload::Record(record) => {
                if record.is_empty() {
                    return false;
                }
                let bit = self.rng.below(record.len() as u64 * 8);
                record[bit as usize / 8] ^= 1 << (bit % 8);
            }
            Payload::Page(page) => {
                let Some(damaged) = self.pool.alloc() else {
                    return false;
                };
                let bit = self.rng.below(page.len() as u64 * 8);
                damaged.copy_sectors(page, 0, base::limits::SECTORS_PER_PAGE);
                damaged.with_mut(|bytes| bytes[bit as usize / 8] ^= 1 << (bit % 8));
                packet.payload = Payload::Page(damaged);
            }
        }
        true
    }

    /// Counts the boundary that a write or flush is; true if power is cut there.
    #[inline(always)]
    fn cuts_power(&mut self, host: usize, op: &MediaOp) -> bool {
        if op.kind == MediaKind::Read {
            return false;
        }
        let boundary = self.stats.boundaries;
        self.stats.boundaries += 1;
        match self.cut {
            Some(cut) if cut.boundary == boundary => self.cut_power(host, op, cut),
            _ => return false,
        }
        true
    }

    #[cold]
    fn cut_power(&mut self, host: usize, op: &MediaOp, cut: Cut) {
        let medium = self.places[host].medium.as_mut();
        let medium = medium.expect("only a host with a medium asks it");
        medium.cut(op, cut.fate, &mut self.rng);
        self.fold(host as u64, 0xc07, cut.boundary);
        self.happenings.push_back(Happening::Cut { host });
    }

    #[inline(always)]
    fn issue(&mut self, host: usize, op: MediaOp) {
        let place = &mut self.places[host];
        let medium = place
            .medium
            .as_mut()
            .expect("only a host with a medium asks it for something");
        if op.kind == MediaKind::Read {
            let is_unique = op.pages.iter().all(Page::is_unique);
            assert!(is_unique, "a page to be filled is its owner's alone");
        }
        let at = medium.issue(self.now, op);
        self.poll_at(host, at);
    }

    /// The medium of a host has something to tell at `at`.
    fn poll_at(&mut self, host: usize, at: Instant) {
        let event = Event::Media {
            host: host as u16,
            incarnation: self.places[host].incarnation,
        };
        if at <= self.now {
            self.ready.push_back(event);
        } else {
            self.queue.push(at, event);
        }
    }

    #[inline(always)]
    fn poll_medium(&mut self, host: usize) -> Option<MediaDone> {
        let place = &mut self.places[host];
        let medium = place.medium.as_mut().expect("only a host with a medium asks it");
        let done = medium.poll(self.now);
        if let Some(at) = medium.look_at() {
            self.poll_at(host, at);
        }
        done
    }

    /// A packet at its next hop: logged, and shown to the driver if it is about garbage collection.
    #[inline(always)]
    fn arrive(&mut self, from: usize, to: usize, header: &Header) {
        self.fold(
            to as u64,
            u64::from(header.op as u8)
                | u64::from(header.code as u8) << 8
                | u64::from(header.flags) << 16
                | u64::from(header.vssd.0) << 24,
            header.request ^ header.lba << 24 ^ header.version.0 << 8,
        );
        if header.op == Op::GcOp {
            self.happenings.push_back(Happening::Gc {
                header: *header,
                from,
                to,
                arrives: true,
            });
        }
        if !self.expelled.is_empty() && header.source == self.places[from].addr {
            self.note_expelled(header);
        }
    }

    /// Counts an answer of a member that was expelled.
    #[cold]
    fn note_expelled(&mut self, header: &Header) {
        let is_answer = header.op == Op::Read && header.has(flags::REPLY);
        if is_answer && self.expelled.contains(&header.vssd) {
            self.stats.expelled_reads += u64::from(header.code == Code::SoftOrOk);
            self.stats.expelled_refusals += u64::from(header.code == Code::Busy);
        }
    }

    /// True if this host hears nothing of the sender, whatever lies between.
    fn is_cut(&self, header: &Header, from: usize, to: usize) -> bool {
        let (hop, to) = (self.places[from].addr, self.places[to].addr);
        let pairs = [[header.source, to], [hop, to]];
        let mut cuts = self.cuts.iter();
        cuts.any(|(cut, until)| self.now < *until && pairs.contains(cut))
    }
}

/// A header that the wire would not carry unchanged is a bug of the host that sends it.
fn check_on_the_wire(packet: &Packet) {
    let mut bytes = [0; HEADER_BYTES];
    packet.header.emit(&mut bytes);
    let length = match &packet.payload {
        Payload::None => 0,
        // A simulated page is shorter; on the wire it is a full one.
        Payload::Page(_) => base::limits::PAGE_BYTES,
        Payload::Record(record) => record.len(),
    };
    match Header::parse(&bytes, length) {
        Ok(parsed) => assert_eq!(parsed, packet.header, "a header survives the wire"),
        Err(why) => panic!(
            "a host sends what is not a rack packet ({why}): {:?}",
            packet.header
        ),
    }
}

/// What canaries do to packets: the protocol is broken on the wire, and the code under test is not touched.
impl Core {
    /// Rest of a packet after the canary.
    #[cold]
    pub(super) fn sabotage(&mut self, from: usize, to: usize, packet: Packet) -> Option<Packet> {
        match self.canary {
            Canary::AckWithoutApply if self.rng.chance(canary::SHARE) => self.forge_ack(from, to, packet),
            Canary::HideReplays if packet.header.has(flags::REPLAY) && packet.header.code != Code::Accept => {
                self.forge_ack(from, to, packet)
            }
            Canary::AnyEpoch => Some(self.renew_epoch(to, packet)),
            Canary::WriteTwice => Some(self.write_again(from, to, packet)),
            Canary::HideDifferences => Some(self.hide_differences(to, packet)),
            Canary::ForgeLease => {
                self.forge_lease(from, to, &packet);
                Some(packet)
            }
            _ => Some(self.alter(packet)),
        }
    }

    /// Breaks of a packet by itself.
    #[cold]
    fn alter(&mut self, mut packet: Packet) -> Packet {
        let is_broken = match self.canary {
            Canary::StaleRead => self.sabotage.answer_stale(&mut packet, &mut self.rng),
            Canary::HideLoss => self.sabotage.hide_loss(&mut packet),
            Canary::HideExpelled | Canary::HideYield => self.sabotage.hide_terms(self.canary, &mut packet),
            Canary::PromiseAll => self.sabotage.promise(&mut packet),
            _ => false,
        };
        self.stats.sabotaged += u64::from(is_broken);
        packet
    }

    /// Whoever is asked for a lease seems to lend it.
    #[cold]
    fn forge_lease(&mut self, from: usize, to: usize, packet: &Packet) {
        // Only at the last hop: a node has a medium.
        if self.places[to].medium.is_some()
            && let Some(lease) = canary::lease_of(packet)
        {
            self.stats.sabotaged += 1;
            let next_hop = self.places[from].addr;
            self.send(to, next_hop, lease);
        }
    }

    #[cold]
    fn forge_ack(&mut self, from: usize, to: usize, packet: Packet) -> Option<Packet> {
        // Only at the last hop: a node has a medium.
        let last_hop = self.places[to].medium.is_some();
        if packet.header.op != Op::Inv || !last_hop {
            return Some(packet);
        }
        self.stats.sabotaged += 1;
        let inv = &packet.header;
        let set = self
            .sabotage
            .sets
            .iter()
            .find(|set| set.iter().any(|(vssd, _)| *vssd == inv.vssd));
        let writer = set.and_then(|set| set.iter().find(|(_, addr)| *addr == inv.source));
        let header = Header {
            op: Op::Ack,
            code: Code::SoftOrOk,
            flags: 0,
            vssd: writer.map_or(inv.vssd, |(vssd, _)| *vssd),
            request: u64::from(inv.vssd.0),
            length: 0,
            payload_crc: 0,
            session: self.places[to].session,
            source: self.places[to].addr,
            target: inv.source,
            ..*inv
        };
        let next_hop = self.places[from].addr;
        self.send(to, next_hop, Packet::bare(header));
        None
    }

    /// A message between members is of the epoch of the one that gets it.
    #[cold]
    fn renew_epoch(&mut self, to: usize, mut packet: Packet) -> Packet {
        let header = &mut packet.header;
        if !matches!(header.op, Op::Inv | Op::Ack | Op::Val) || self.places[to].medium.is_none() {
            return packet;
        }
        // The sender's vSSD is in the place of the request's number.
        let sender = header.request as u32;
        let (known, session) = self.sabotage.epochs.get(&sender).copied().unwrap_or_default();
        // A message that was held back is older than the last one.
        if session <= header.session {
            self.sabotage
                .epochs
                .insert(sender, (header.epoch, header.session));
        }
        let Some(&(epoch, _)) = self.sabotage.epochs.get(&header.vssd.0) else {
            return packet;
        };
        let is_old = session > header.session || header.epoch != epoch;
        if is_old && known != 0 {
            self.stats.sabotaged += 1;
            (header.epoch, header.session) = (epoch, session.max(header.session));
        }
        packet
    }

    /// A copy of a write comes later, as if it were another one.
    #[cold]
    fn write_again(&mut self, from: usize, to: usize, packet: Packet) -> Packet {
        let header = packet.header;
        let is_write = matches!(header.op, Op::Write | Op::Zero) && !header.has(flags::REPLY);
        if !is_write || self.places[to].medium.is_none() || !self.rng.chance(canary::SHARE) {
            return packet;
        }
        self.stats.sabotaged += 1;
        let mut copy = packet.clone();
        copy.header.request += AGAIN_NUMBERS;
        copy.header.floor += AGAIN_NUMBERS as u32;
        let at = self.now + Duration::from_nanos(self.rng.below(AGAIN_NS_MAX));
        self.places[to].under_way += 1;
        let (from, to) = (from as u16, to as u16);
        self.queue.push(
            at,
            Event::Packet {
                from,
                to,
                packet: copy,
            },
        );
        packet
    }

    #[cold]
    fn hide_differences(&mut self, to: usize, mut packet: Packet) -> Packet {
        let header = packet.header;
        let is_answer = header.op == Op::Digest && header.has(flags::REPLY);
        if !is_answer || self.places[to].medium.is_none() || packet.record().len() <= COVERED_BYTES {
            return packet;
        }
        self.stats.sabotaged += 1;
        let covered = packet.record()[..COVERED_BYTES].to_vec();
        packet = Packet::with_record(header, covered);
        packet
    }
}
