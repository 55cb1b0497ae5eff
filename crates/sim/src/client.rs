//! Clients: generators of block requests, open-loop (Poisson) or closed-loop (queue depth), with their latencies and
//! the register checkers of their volumes.
//!
//! Offsets and lengths are in the units of production (512-byte blocks, 4096-byte pages); a simulated sector holds a
//! [`Stamp`] instead of data. Every write has an id unique in the run. Latency is counted from when an open-loop
//! request was due, or a closed-loop one was issued.

use crate::check::{Checker, Stamp, Violation};
use crate::workload::stream::{Request, Stream};
use crate::workload::{Action, Burst, Chooser, Mix, Pattern, SCAN_PAGES_MAX};
use crate::world::World;
use base::limits::{PAGE_BYTES, SECTOR_BYTES, SECTORS_PER_PAGE};
use base::{
    BlockError, BlockOp, BlockReply, BlockRequest, Instant, Machine, Pages, Pool, Rng, SectorRange, VolumeId,
};
use hdrhistogram::Histogram;
use host::{Input, Output};
use std::collections::VecDeque;

/// Pause of a client after an error, or when the gateway is down or the pool empty, in ns.
const PAUSE_NS: u64 = 200_000;
/// Largest latency recorded, in ns; larger ones are recorded as this.
const LATENCY_NS_MAX: u64 = 1 << 40;

/// Clients leave one part in so many of the pool to hosts, as frontends do (`runtime::frontend`).
const RESERVE_PART: usize = 4;

const BLOCKS_PER_PAGE: u64 = SECTORS_PER_PAGE as u64;

/// How fast requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A Poisson process of this many requests a second, with at most so many outstanding: beyond, they are shed.
    Open {
        /// Requests a second of virtual time.
        per_second: f64,
        /// Bound on outstanding requests.
        outstanding_max: u32,
    },
    /// This many requests outstanding at all times.
    Closed {
        /// Queue depth.
        depth: u32,
    },
}

/// The shape of ranges: the rest are single whole pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Share of requests for 1–8 blocks somewhere in a page.
    pub sub_page: f64,
    /// Share of requests for several pages, starting and ending anywhere.
    pub multi_page: f64,
    /// Pages of a multi-page request at most.
    pub pages_max: u64,
}

impl Shape {
    /// One whole page each.
    pub const PAGE: Self = Self {
        sub_page: 0.0,
        multi_page: 0.0,
        pages_max: 1,
    };
}

/// A volume as the clients know it.
#[derive(Clone, Copy, Debug)]
pub struct ClientVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its pages.
    pub pages: u64,
    /// Check its history; without, an error is only counted.
    pub check: bool,
    /// The history may meet losses of power.
    pub durability: bool,
    /// Every write is durable before it is acknowledged.
    pub durable_writes: bool,
}

/// A stream of requests.
#[derive(Clone, Copy, Debug)]
pub struct LoadSpec {
    /// Index of the gateway's host.
    pub gateway: usize,
    /// Index of the volume.
    pub volume: usize,
    /// How fast.
    pub pace: Pace,
    /// Which pages.
    pub pattern: Pattern,
    /// What to do.
    pub mix: Mix,
    /// Which ranges.
    pub shape: Shape,
    /// How uneven in time.
    pub burst: Burst,
    /// Share of writes, trims and zeroes that are durable before they are acknowledged.
    pub fua: f64,
    /// Requests in all.
    pub requests: u64,
    /// When it starts.
    pub start: Instant,
    /// Latencies before this are not recorded.
    pub record_after: Instant,
}

impl LoadSpec {
    /// A closed loop of uniform single-page requests, half of them writes, from time zero.
    pub fn new(gateway: usize, volume: usize, requests: u64) -> Self {
        Self {
            gateway,
            volume,
            pace: Pace::Closed { depth: 8 },
            pattern: Pattern::Uniform,
            mix: Mix::writes(0.5),
            shape: Shape::PAGE,
            burst: Burst::default(),
            fua: 0.0,
            requests,
            start: Instant::ZERO,
            record_after: Instant::ZERO,
        }
    }
}

/// Latencies in ns, by kind.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Of reads.
    pub read: Histogram<u64>,
    /// Of writes, trims and zeroes.
    pub write: Histogram<u64>,
    /// Of flushes.
    pub flush: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let empty = || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order");
        Self {
            read: empty(),
            write: empty(),
            flush: empty(),
        }
    }
}

/// Counters of all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Requests handed to gateways.
    pub issued: u64,
    /// Answered with success.
    pub answered: u64,
    /// Answered with an error.
    pub failed: u64,
    /// Lost with their gateway.
    pub abandoned: u64,
    /// Due in an open loop but not issued, as too many were outstanding.
    pub shed: u64,
    /// Not issued at first as no page was free.
    pub starved: u64,
    /// Virtual time of the first answer recorded in the histograms, in ns.
    pub recorded_from_ns: u64,
    /// And of the last.
    pub recorded_to_ns: u64,
}

/// Where clients enter a rack: the simulated world, or a gateway that runs in real time.
pub trait Entry {
    /// Now.
    fn now(&self) -> Instant;
    /// The memory of payload.
    fn pool(&self) -> &Pool;
    /// True when the gateway runs.
    fn is_up(&self, gateway: usize) -> bool;
    /// Hands a request to a gateway; gives it back if the gateway is down.
    fn request(&mut self, gateway: usize, request: BlockRequest) -> Result<(), BlockRequest>;
}

impl<H: Machine<Input = Input, Output = Output>> Entry for World<H> {
    fn now(&self) -> Instant {
        World::now(self)
    }

    fn pool(&self) -> &Pool {
        World::pool(self)
    }

    fn is_up(&self, gateway: usize) -> bool {
        World::is_up(self, gateway)
    }

    fn request(&mut self, gateway: usize, request: BlockRequest) -> Result<(), BlockRequest> {
        World::request(self, gateway, request)
    }
}

#[derive(Debug)]
struct Load {
    spec: LoadSpec,
    chooser: Chooser,
    rng: Rng,
    left: u64,
    outstanding: u32,
    due: Instant,
    /// Of an open loop, when the next request would be due without bursts, in ns from the start.
    steady_ns: u64,
    last: Option<Action>,
    /// Source of the requests, if not the mix, and the next request.
    stream: Option<Box<dyn Stream>>,
    upcoming: Option<Request>,
    /// Requests to make again, as another gateway has the volume.
    again: VecDeque<Again>,
    /// An alarm is set: do not set another.
    paused: bool,
}

/// A request that is made again as it was.
#[derive(Clone, Copy, Debug)]
struct Again {
    /// When it was made first.
    since: Instant,
    op: BlockOp,
    kind: Kind,
    range: (u64, u64),
    fua: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    ReadThenWrite,
    Write,
    Flush,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    active: bool,
    generation: u32,
    load: u32,
    /// Whom it was sent to.
    gateway: usize,
    op: BlockOp,
    fua: bool,
    kind: Kind,
    first: u64,
    count: u64,
    id: u64,
    start: Instant,
    /// When it was made first: another gateway may have had the volume.
    since: Instant,
    due: Instant,
}

/// All clients of a run.
#[derive(Debug)]
pub struct Clients {
    volumes: Vec<(ClientVolume, Option<Checker>)>,
    loads: Vec<Load>,
    pending: Vec<Pending>,
    free: Vec<u32>,
    outstanding: usize,
    write_id: u64,
    latencies: Latencies,
    stats: ClientStats,
    violations: Vec<Violation>,
    errors_are_violations: bool,
    /// Gateways that all have every volume.
    paths: Vec<usize>,
    /// When the next request was made first, if it is made again.
    made_first: Option<Instant>,
}

impl Clients {
    /// Clients of these volumes; loads are added with [`Clients::add`].
    pub fn new(volumes: &[ClientVolume]) -> Self {
        let checked = |v: &ClientVolume| {
            let checker = v
                .check
                .then(|| Checker::new(v.id, v.pages * BLOCKS_PER_PAGE, v.durability));
            (*v, checker)
        };
        Self {
            volumes: volumes.iter().map(checked).collect(),
            loads: Vec::new(),
            pending: Vec::new(),
            free: Vec::new(),
            outstanding: 0,
            write_id: 0,
            latencies: Latencies::default(),
            stats: ClientStats::default(),
            violations: Vec::new(),
            errors_are_violations: false,
            paths: Vec::new(),
            made_first: None,
        }
    }

    /// Clients use one volume more; its index.
    pub fn add_volume(&mut self, volume: ClientVolume) -> usize {
        let checker = Checker::new(volume.id, volume.pages * BLOCKS_PER_PAGE, volume.durability);
        self.volumes.push((volume, volume.check.then_some(checker)));
        self.volumes.len() - 1
    }

    /// Treats every error from now on as a broken promise (or no longer).
    pub fn set_errors_are_violations(&mut self, yes: bool) {
        self.errors_are_violations = yes;
    }

    /// Tells which gateways clients may try in turn for any volume.
    pub fn set_paths(&mut self, paths: Vec<usize>) {
        self.paths = paths;
    }

    /// Another gateway serves these volumes: what only the last one knew of unflushed writes is gone.
    pub fn lead_moved(&mut self, moved: &[VolumeId]) {
        let moved = self
            .volumes
            .iter_mut()
            .filter(|volume| moved.contains(&volume.0.id));
        for checker in moved.filter_map(|volume| volume.1.as_mut()) {
            checker.gateway_lost();
        }
    }

    /// A gateway is lost: its loads try the next one, if there is one. Returns those to [`wake`](Clients::wake).
    pub fn reroute(&mut self, gateway: usize) -> Vec<usize> {
        if self.paths.is_empty() {
            return Vec::new();
        }
        for at in 0..self.loads.len() {
            if self.loads[at].spec.gateway == gateway {
                self.try_next(at);
            }
        }
        (0..self.loads.len())
            .filter(|&at| !self.loads[at].paused)
            .collect()
    }

    /// The load tries the next gateway, if there is one.
    fn try_next(&mut self, at: usize) {
        let gateway = &mut self.loads[at].spec.gateway;
        if let Some(place) = self.paths.iter().position(|path| path == gateway) {
            *gateway = self.paths[(place + 1) % self.paths.len()];
        }
    }

    /// Makes the load's requests again that found no gateway; false if that must wait.
    fn make_again(&mut self, world: &mut impl Entry, at: usize) -> bool {
        while let Some(&Again {
            since,
            op,
            kind,
            range,
            fua,
        }) = self.loads[at].again.front()
        {
            if !world.is_up(self.loads[at].spec.gateway) {
                self.try_next(at);
                return false;
            }
            let now = world.now();
            self.made_first = Some(since);
            if !self.submit(world, at, now, op, kind, range, fua) {
                self.made_first = None;
                return false;
            }
            self.loads[at].again.pop_front();
        }
        true
    }

    /// Adds a load and says at which time its first wake is due.
    pub fn add(&mut self, spec: LoadSpec, seed: u64) -> (usize, Instant) {
        let volume = &self.volumes[spec.volume].0;
        self.loads.push(Load {
            spec,
            chooser: Chooser::new(spec.pattern, volume.pages),
            rng: Rng::new(seed),
            left: spec.requests,
            outstanding: 0,
            due: spec.start,
            steady_ns: 0,
            last: None,
            stream: None,
            upcoming: None,
            again: VecDeque::new(),
            paused: true,
        });
        (self.loads.len() - 1, spec.start)
    }

    /// Adds a load whose requests come from a stream, until it ends or [`LoadSpec::requests`] are drawn: an open loop
    /// at the stream's times, whatever the pace says of its rate, or a closed loop, which asks when it may.
    pub fn add_stream(&mut self, spec: LoadSpec, stream: Box<dyn Stream>, seed: u64) -> (usize, Instant) {
        let (index, start) = self.add(spec, seed);
        let load = &mut self.loads[index];
        load.stream = Some(stream);
        load.draw();
        (index, start)
    }

    /// Loads that were added.
    pub fn loads(&self) -> usize {
        self.loads.len()
    }

    /// Ends every load: nothing more is issued, what is outstanding may still be answered.
    pub fn stop(&mut self) {
        for load in &mut self.loads {
            load.left = 0;
            load.again.clear();
        }
    }

    /// True when every load has issued all it will, and all is answered or abandoned.
    pub fn are_done(&self) -> bool {
        self.outstanding == 0 && self.loads.iter().all(|l| l.left == 0 && l.again.is_empty())
    }

    /// Requests outstanding or to be made again, and when the oldest of them began.
    pub fn waiting(&self) -> (usize, Instant) {
        let again = || self.loads.iter().flat_map(|load| &load.again);
        let pending = self.pending.iter().filter(|p| p.active).map(|p| p.since);
        let oldest = pending.chain(again().map(|again| again.since)).min();
        let count = self.outstanding + again().count();
        (count, oldest.unwrap_or(Instant::FAR_FUTURE))
    }

    /// Latencies recorded so far.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Counters.
    pub fn stats(&self) -> ClientStats {
        self.stats
    }

    /// The checker of a volume, by index.
    pub fn checker(&mut self, volume: usize) -> Option<&mut Checker> {
        self.volumes[volume].1.as_mut()
    }

    /// Takes the violations found so far.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        core::mem::take(&mut self.violations)
    }

    /// Block reads that the checkers judged.
    pub fn reads_judged(&self) -> u64 {
        self.volumes
            .iter()
            .flat_map(|v| &v.1)
            .map(Checker::reads_judged)
            .sum()
    }

    /// A gateway is gone: what it was asked is never answered.
    pub fn gateway_lost(&mut self, gateway: usize) {
        for load in self.loads.iter().filter(|load| load.spec.gateway == gateway) {
            if let Some(checker) = &mut self.volumes[load.spec.volume].1 {
                checker.gateway_lost();
            }
        }
        for slot in 0..self.pending.len() {
            let pending = self.pending[slot];
            if !pending.active || pending.gateway != gateway {
                continue;
            }
            self.stats.abandoned += 1;
            if matches!(pending.kind, Kind::Read | Kind::ReadThenWrite) {
                self.forget_read(&pending);
            }
            self.release(slot as u32);
        }
    }

    /// A gateway is back: the loads to [`wake`](Clients::wake), which have no alarm set.
    pub fn gateway_back(&mut self, gateway: usize) -> Vec<usize> {
        let idle = |l: &Load| l.spec.gateway == gateway && !l.paused;
        (0..self.loads.len()).filter(|&i| idle(&self.loads[i])).collect()
    }

    /// Lets a load issue what is due. Call at its start time, when an alarm for it rings, and when its gateway is back.
    /// Returns when to call again.
    pub fn wake(&mut self, world: &mut impl Entry, load: usize) -> Option<Instant> {
        self.loads[load].paused = false;
        let again = self.advance(world, load);
        self.loads[load].paused = again.is_some();
        again
    }

    fn advance(&mut self, world: &mut impl Entry, at: usize) -> Option<Instant> {
        let now = world.now();
        if !self.make_again(world, at) {
            return Some(Instant::from_nanos(now.as_nanos() + PAUSE_NS));
        }
        match self.loads[at].spec.pace {
            Pace::Closed { depth } => {
                while self.loads[at].left > 0 && self.loads[at].outstanding < depth {
                    let issued = match self.loads[at].stream {
                        Some(_) => self.issue_upcoming(world, at, now),
                        None => self.issue(world, at, now),
                    };
                    if !issued {
                        return Some(Instant::from_nanos(now.as_nanos() + PAUSE_NS));
                    }
                }
                None
            }
            Pace::Open {
                per_second,
                outstanding_max,
            } => {
                if self.loads[at].stream.is_some() {
                    return self.advance_stream(world, at, outstanding_max);
                }
                while self.loads[at].left > 0 && self.loads[at].due <= now {
                    let due = self.loads[at].due;
                    if self.loads[at].outstanding >= outstanding_max || !self.issue(world, at, due) {
                        self.stats.shed += 1;
                        self.loads[at].left -= 1;
                    }
                    let load = &mut self.loads[at];
                    let gap = load.rng.exponential(1e9 / per_second);
                    load.steady_ns += gap as u64;
                    let placed = load.spec.burst.place(load.steady_ns);
                    load.due = Instant::from_nanos(load.spec.start.as_nanos() + placed);
                }
                (self.loads[at].left > 0).then(|| self.loads[at].due)
            }
        }
    }

    /// An open loop with the stream's own times.
    fn advance_stream(&mut self, world: &mut impl Entry, at: usize, outstanding_max: u32) -> Option<Instant> {
        while let (load @ Load { left: 1.., .. }, Some(request)) = (&self.loads[at], self.loads[at].upcoming)
        {
            let due = Instant::from_nanos(load.spec.start.as_nanos().saturating_add(request.due_ns));
            if due > world.now() {
                return Some(due);
            }
            if load.outstanding >= outstanding_max || !self.issue_upcoming(world, at, due) {
                self.stats.shed += 1;
                self.loads[at].take_upcoming();
            }
        }
        None
    }

    /// Issues the stream's next request; false if that must wait.
    fn issue_upcoming(&mut self, world: &mut impl Entry, at: usize, due: Instant) -> bool {
        let load = &self.loads[at];
        let Some(request) = load.upcoming.filter(|_| world.is_up(load.spec.gateway)) else {
            return false;
        };
        let (op, kind) = match request.write {
            true => (BlockOp::Write, Kind::Write),
            false => (BlockOp::Read, Kind::Read),
        };
        let issued = self.submit(world, at, due, op, kind, (request.block, request.blocks), false);
        if issued {
            self.loads[at].take_upcoming();
        }
        issued
    }

    /// Issues one request; false if that must wait.
    fn issue(&mut self, world: &mut impl Entry, at: usize, due: Instant) -> bool {
        if !world.is_up(self.loads[at].spec.gateway) {
            self.try_next(at);
            return false;
        }
        let pages = self.volumes[self.loads[at].spec.volume].0.pages;
        let load = &mut self.loads[at];
        let action = load.spec.burst.next(&load.spec.mix, load.last, &mut load.rng);
        load.last = Some(action);
        let (first, count) = range(load, action, pages);
        let fua = load.spec.fua > 0.0 && load.rng.chance(load.spec.fua);
        let issued = match action {
            Action::Read | Action::Scan => {
                self.submit(world, at, due, BlockOp::Read, Kind::Read, (first, count), fua)
            }
            Action::ReadModifyWrite => self.submit(
                world,
                at,
                due,
                BlockOp::Read,
                Kind::ReadThenWrite,
                (first, count),
                fua,
            ),
            Action::Write | Action::Insert => {
                self.submit(world, at, due, BlockOp::Write, Kind::Write, (first, count), fua)
            }
            Action::Trim => self.submit(world, at, due, BlockOp::Trim, Kind::Write, (first, count), fua),
            Action::Zeroes => self.submit(
                world,
                at,
                due,
                BlockOp::WriteZeroes,
                Kind::Write,
                (first, count),
                fua,
            ),
            Action::Flush => self.submit(world, at, due, BlockOp::Flush, Kind::Flush, (0, 0), false),
        };
        if issued {
            self.loads[at].left -= 1;
        }
        issued
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one request, once")]
    fn submit(
        &mut self,
        world: &mut impl Entry,
        at: usize,
        due: Instant,
        op: BlockOp,
        kind: Kind,
        (first, count): (u64, u64),
        fua: bool,
    ) -> bool {
        let id = self.write_id + 1;
        let pages = if op == BlockOp::Write {
            match stamped_pages(world, first, count, id) {
                Some(pages) => pages,
                None => {
                    self.stats.starved += 1;
                    return false;
                }
            }
        } else {
            Pages::new()
        };
        self.write_id += 1;
        let now = world.now();
        let spec = self.loads[at].spec;
        let durable = fua || self.volumes[spec.volume].0.durable_writes;
        let since = self.made_first.take().unwrap_or(now);
        let (slot, tag) = self.reserve(Pending {
            active: true,
            generation: 0,
            load: at as u32,
            gateway: spec.gateway,
            op,
            fua,
            kind,
            first,
            count,
            id,
            start: now,
            since,
            due,
        });
        if let Some(checker) = &mut self.volumes[spec.volume].1 {
            match kind {
                Kind::Read | Kind::ReadThenWrite => checker.read_started(now, first, count),
                Kind::Write => checker.write_started(now, first, count, id, op != BlockOp::Write, durable),
                Kind::Flush => {}
            }
        }
        let sector = SECTOR_BYTES as u64;
        let range = match op {
            BlockOp::Flush => Ok(SectorRange::EMPTY),
            _ => SectorRange::new(first * sector, count * sector, u64::MAX),
        };
        let request = BlockRequest {
            client: at as u32,
            tag,
            volume: self.volumes[spec.volume].0.id,
            op,
            range: range.expect("clients ask for sectors"),
            fua: fua && kind == Kind::Write,
            bulk: count > SECTORS_PER_PAGE as u64,
            pages,
        };
        self.stats.issued += 1;
        if world.request(spec.gateway, request).is_err() {
            panic!("the gateway was up a moment ago, slot {slot}");
        }
        true
    }

    fn reserve(&mut self, mut pending: Pending) -> (u32, u64) {
        self.outstanding += 1;
        self.loads[pending.load as usize].outstanding += 1;
        let slot = self.free.pop().unwrap_or(self.pending.len() as u32);
        match self.pending.get_mut(slot as usize) {
            Some(place) => {
                pending.generation = place.generation + 1;
                *place = pending;
            }
            None => self.pending.push(pending),
        }
        (slot, u64::from(pending.generation) << 32 | u64::from(slot))
    }

    fn release(&mut self, slot: u32) {
        let pending = &mut self.pending[slot as usize];
        pending.active = false;
        self.outstanding -= 1;
        self.loads[pending.load as usize].outstanding -= 1;
        self.free.push(slot);
    }

    /// A gateway's answer. Returns the load to wake, and when, if it must pause.
    pub fn reply(&mut self, world: &mut impl Entry, reply: BlockReply) -> Option<(usize, Instant)> {
        let slot = reply.tag as u32;
        let pending = self.pending[slot as usize];
        assert!(
            pending.active && pending.generation == (reply.tag >> 32) as u32 && pending.load == reply.client,
            "a request is answered once: {pending:?}"
        );
        self.release(slot);
        let now = world.now();
        let at = pending.load as usize;
        let failed = reply.result.is_err();
        match reply.result {
            Ok(pages) => {
                self.stats.answered += 1;
                self.accept(now, &pending, &pages);
            }
            Err(error) => {
                self.refuse(now, &pending, error);
                if error == BlockError::Elsewhere {
                    if self.loads[at].spec.gateway == pending.gateway {
                        self.try_next(at);
                    }
                    self.loads[at].again.push_back(Again {
                        since: pending.since,
                        op: pending.op,
                        kind: pending.kind,
                        range: (pending.first, pending.count),
                        fua: pending.fua,
                    });
                }
            }
        }
        if pending.kind == Kind::ReadThenWrite && !failed && world.is_up(self.loads[at].spec.gateway) {
            // Without a free page the write is not made: a client may change its mind.
            let range = (pending.first, pending.count);
            self.submit(world, at, now, BlockOp::Write, Kind::Write, range, false);
        }
        if self.loads[at].paused {
            return None;
        }
        let again = if failed {
            Some(Instant::from_nanos(now.as_nanos() + PAUSE_NS))
        } else {
            self.advance(world, at)
        };
        self.loads[at].paused = again.is_some();
        again.map(|when| (at, when))
    }

    fn accept(&mut self, now: Instant, pending: &Pending, pages: &Pages) {
        let spec = &self.loads[pending.load as usize].spec;
        if now >= spec.record_after {
            let latency = now.nanos_since(pending.due).clamp(1, LATENCY_NS_MAX);
            let histogram = match pending.kind {
                Kind::Read | Kind::ReadThenWrite => &mut self.latencies.read,
                Kind::Write => &mut self.latencies.write,
                Kind::Flush => &mut self.latencies.flush,
            };
            histogram.saturating_record(latency);
            if self.stats.recorded_from_ns == 0 {
                self.stats.recorded_from_ns = now.as_nanos();
            }
            self.stats.recorded_to_ns = now.as_nanos();
        }
        let Some(checker) = &mut self.volumes[spec.volume].1 else {
            return;
        };
        match pending.kind {
            Kind::Write => {
                checker.write_acked(now, pending.load, pending.first, pending.count, pending.id);
            }
            Kind::Flush => {
                let acked = checker.flush_acked(now, pending.load, pending.start);
                self.violations.extend(acked.err());
            }
            Kind::Read | Kind::ReadThenWrite => {
                let grid = pending.first / BLOCKS_PER_PAGE;
                let page_count = (pending.first + pending.count).div_ceil(BLOCKS_PER_PAGE) - grid;
                assert_eq!(pages.len() as u64, page_count, "an answered read has its pages");
                for block in pending.first..pending.first + pending.count {
                    let page = &pages[(block / BLOCKS_PER_PAGE - grid) as usize];
                    let sector = (block % BLOCKS_PER_PAGE) as usize * page.sector_bytes();
                    let stamp = page.with(|bytes| Stamp::parse(&bytes[sector..]));
                    if let Err(violation) = checker.block_read(now, pending.start, block, stamp) {
                        self.violations.push(violation);
                    }
                }
            }
        }
    }

    fn refuse(&mut self, now: Instant, pending: &Pending, error: BlockError) {
        self.stats.failed += 1;
        let volume = self.loads[pending.load as usize].spec.volume;
        let mut tells = false;
        // A gateway that does not serve the volume tells nobody of a loss: the client asks the next one.
        if let (Kind::Flush, Some(checker)) = (pending.kind, &mut self.volumes[volume].1)
            && error != BlockError::Elsewhere
        {
            tells = error == BlockError::Io && checker.may_tell(pending.load, pending.start);
            checker.flush_failed(now, pending.load);
        }
        if matches!(pending.kind, Kind::Read | Kind::ReadThenWrite) {
            self.forget_read(pending);
        }
        // These say that the request itself was wrong, which no fault excuses.
        let never = matches!(
            error,
            BlockError::Invalid | BlockError::NoVolume | BlockError::ReadOnly
        );
        if never || self.errors_are_violations && error != BlockError::Elsewhere && !tells {
            self.violations.push(Violation::Refused {
                error,
                client: pending.load,
                volume: self.volumes[volume].0.id,
                offset: pending.first * SECTOR_BYTES as u64,
                at_ns: now.as_nanos(),
            });
        }
    }

    fn forget_read(&mut self, pending: &Pending) {
        let volume = self.loads[pending.load as usize].spec.volume;
        if let Some(checker) = &mut self.volumes[volume].1 {
            checker.read_failed(pending.start, pending.first, pending.count);
        }
    }
}

impl Load {
    /// The stream's request was issued, or is not going to be.
    fn take_upcoming(&mut self) {
        self.left -= 1;
        self.draw();
    }

    /// Draws the next request of the stream; without one, nothing is left.
    fn draw(&mut self) {
        self.upcoming = match (&mut self.stream, self.left) {
            (Some(stream), 1..) => stream.next(&mut self.rng),
            _ => None,
        };
        if self.upcoming.is_none() {
            self.left = 0;
        }
    }
}

/// Draws the blocks of a request: first and count.
fn range(load: &mut Load, action: Action, pages: u64) -> (u64, u64) {
    let page = match action {
        Action::Insert => load.chooser.insert(),
        Action::Flush => return (0, 0),
        _ => load.chooser.draw(&mut load.rng),
    };
    let first = page * BLOCKS_PER_PAGE;
    if action == Action::Scan {
        let length = load.rng.between(1, SCAN_PAGES_MAX).min(pages - page);
        return (first, length * BLOCKS_PER_PAGE);
    }
    let shape = load.spec.shape;
    if shape.sub_page == 0.0 && shape.multi_page == 0.0 {
        return (first, BLOCKS_PER_PAGE);
    }
    let draw = load.rng.unit();
    if draw < shape.sub_page {
        let start = load.rng.below(BLOCKS_PER_PAGE);
        return (first + start, load.rng.between(1, BLOCKS_PER_PAGE - start));
    }
    if draw < shape.sub_page + shape.multi_page {
        let length = load.rng.between(1, shape.pages_max).min(pages - page);
        if load.spec.pattern == Pattern::Sequential {
            // Reading back: whole pages, none twice.
            let length = shape.pages_max.min(pages - page);
            load.chooser.skip(length - 1);
            return (first, length * BLOCKS_PER_PAGE);
        }
        let start = load.rng.below(BLOCKS_PER_PAGE);
        let end = length * BLOCKS_PER_PAGE - load.rng.below(BLOCKS_PER_PAGE);
        return (first + start, end.saturating_sub(start).max(1));
    }
    (first, BLOCKS_PER_PAGE)
}

/// The pages of a write, stamped inside its range and full of nonsense outside, which nobody may store.
fn stamped_pages(world: &impl Entry, first: u64, count: u64, id: u64) -> Option<Pages> {
    const NONSENSE: u8 = 0xee;
    let grid = first / BLOCKS_PER_PAGE;
    let wanted = ((first + count).div_ceil(BLOCKS_PER_PAGE) - grid) as usize;
    if world.pool().available() < wanted + world.pool().capacity() / RESERVE_PART {
        return None;
    }
    let mut pages = Pages::new();
    for index in grid..(first + count).div_ceil(BLOCKS_PER_PAGE) {
        let page = world.pool().alloc()?;
        let sector = page.sector_bytes();
        page.with_mut(|bytes| {
            for (i, chunk) in bytes.chunks_mut(sector).enumerate() {
                let block = index * BLOCKS_PER_PAGE + i as u64;
                if (first..first + count).contains(&block) {
                    Stamp { id, block }.emit(chunk);
                } else {
                    chunk.fill(NONSENSE);
                }
            }
        });
        pages.push(page);
    }
    Some(pages)
}

const _: () = assert!(PAGE_BYTES == SECTOR_BYTES * SECTORS_PER_PAGE);
