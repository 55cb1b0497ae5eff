//! One vSSD on a node: replication, write cache, I/O scheduling, garbage-collection agent and flash, composed.
//!
//! A client's read: duplicate-free by nature → is its page decided (Hermes)? → write cache → scheduler → flash.
//! A client's write: epoch → duplicates → is its page decided? → room in the cache → replication. Programming it is
//! the write-back's business; a flush waits for the write-back of everything before it and then for the medium.

mod backlog;
mod member;
mod peers;
mod stop;

use crate::Output;
use crate::node::collector::{Collector, Report};
use crate::node::stages::Stages;
use crate::node::view::{View, newest};
use backlog::Backlog;
use base::{Addr, Duration, Instant, Lpn, MediaDone, NodeId, Page, Slab, Version, VssdId, time::earliest};
use flash::{Data, Event, Request, Vssd, VssdError};
use rack::bucket::Bucket;
use rack::cache::{Cache, Cached};
use rack::control::Lead;
use rack::dedup::{Admit, Dedup};
use rack::gc::{Action, Agent};
use rack::predictor::Predictor;
use rack::replica::{Effect, Fetch, Incarnation, Membership, Persist, Readiness, Replica, lpn_of};
use rack::sched::{self, Kind, Policy, Room, Scheduler};
use std::collections::{BTreeMap, VecDeque};
use stop::Stop;
use wire::rack::{Code, Header, Op, Packet};

/// Data that nobody adds to any more is written back after this, so that little is lost and flushes are quick.
const WRITE_BACK_IDLE: Duration = Duration::from_millis(200);

/// How a vSSD is served.
#[derive(Clone, Debug)]
pub struct UnitConfig {
    /// Order of waiting reads and write-backs.
    pub policy: Policy,
    /// Pages of the write cache.
    pub cache_pages: usize,
    /// Reads in the flash at once.
    pub read_depth: usize,
    /// Write-backs in the flash or waiting for it at once.
    pub write_depth: usize,
    /// Reads and write-backs in the flash at once: the rest compete for it in the scheduler.
    pub device_depth: usize,
    /// Write-back starts when the cache is fuller than this.
    pub dirty_ratio_low: f64,
    /// When to collect garbage.
    pub gc: rack::gc::Config,
}

/// Who a unit is and whom it talks to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The vSSD.
    pub vssd: VssdId,
    /// Its node.
    pub node: NodeId,
    /// The node's address.
    pub addr: Addr,
    /// The ToR.
    pub tor: Addr,
    /// A central controller, if there is one.
    pub controller: Option<Addr>,
    /// The node's incarnation.
    pub boot: u32,
    /// The other replicas.
    pub membership: Membership,
    /// The gateway that has it, as the superblock knows it.
    pub lead: Option<Lead>,
}

#[derive(Debug)]
enum Reading {
    Client {
        packet: Packet,
        version: Version,
        arrived: Instant,
        issued: Instant,
        predicted_ns: u64,
    },
    Fetch {
        lpn: Lpn,
        why: Fetch,
        version: Version,
    },
}

#[derive(Debug)]
enum Then {
    Flushed(Header),
    Persisted(Persist),
}

/// Something that waits for the medium.
#[derive(Debug)]
struct Job {
    /// Everything below is to be written back first.
    below: Option<u64>,
    /// This is to be written back first.
    at: Option<u64>,
    then: Then,
}

/// Counters of a vSSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitStats {
    /// Reads answered.
    pub reads: u64,
    /// Writes and zeroings answered as coordinator.
    pub writes: u64,
    /// Reads answered from the write cache.
    pub cache_hits: u64,
    /// Copies of requests suppressed.
    pub duplicates: u64,
    /// Requests dropped because the backlog was full.
    pub dropped: u64,
    /// Pages found damaged by reads.
    pub damaged: u64,
}

const TAG_KIND_SHIFT: u32 = 32;
const TAG_READ: u64 = 1 << TAG_KIND_SHIFT;
const TAG_WRITE: u64 = 2 << TAG_KIND_SHIFT;
const TAG_FLUSH: u64 = 3 << TAG_KIND_SHIFT;
const TAG_STOP_FLUSH: u64 = 4 << TAG_KIND_SHIFT;
const TAG_STOP_CHECKPOINT: u64 = 5 << TAG_KIND_SHIFT;
const TAG_VALUE: u64 = (1 << TAG_KIND_SHIFT) - 1;

/// One vSSD, served.
pub struct Unit {
    identity: Identity,
    config: UnitConfig,
    flash: Vssd,
    cache: Cache,
    replica: Replica,
    dedup: Dedup,
    agent: Collector,
    /// Keeps a software-isolated vSSD to its share of its channels.
    share: Option<Bucket>,
    /// Number of the last packet to the ToR about collection.
    gc_asked: u64,
    /// Under a controller, the replica that it named when it let this one collect.
    away: Option<VssdId>,
    scheduler: Scheduler,
    readings: Slab<Reading>,
    predict_read: Predictor,
    predict_write: Predictor,
    /// Writes that wait for room in the cache; more are dropped and come again.
    backlog: Backlog,
    jobs_waiting: Vec<Job>,
    jobs_ready: Vec<Job>,
    jobs_flushing: Vec<Job>,
    flush_in_flight: bool,
    reads_in_flight: usize,
    /// Write-backs that wait in the scheduler or are in flight.
    writes_out: usize,
    /// Reads and write-backs that the scheduler has let go.
    in_flight: usize,
    /// What the ids of its media operations carry above the flash's own, and how many the medium has.
    media_tag: u64,
    media_in_flight: u32,
    /// Pages in the cache above which write-back starts.
    dirty_low: usize,
    written_at: Instant,
    written_since_gc: bool,
    latched: bool,
    stop: Stop,
    /// Pages whose newest data, of this version, is damaged here. What the flash has of them may be older.
    damaged: BTreeMap<u32, Version>,
    stats: UnitStats,
    stages: Stages,
}

macro_rules! view {
    ($unit:ident, $put:ident) => {
        View {
            cache: &mut $unit.cache,
            flash: &$unit.flash,
            damaged: &mut $unit.damaged,
            latched: $unit.latched,
            put: &mut $put,
        }
    };
}

impl Unit {
    /// Serves `flash`, which is fresh or recovered. The ids of its media operations carry `media_tag`.
    pub fn new(now: Instant, identity: Identity, config: UnitConfig, flash: Vssd, media_tag: u64) -> Self {
        let me = Incarnation {
            vssd: identity.vssd,
            node: identity.node,
            boot: identity.boot,
        };
        let replica = Replica::new(now, me, &identity.membership);
        Self {
            cache: Cache::new(config.cache_pages),
            agent: Collector::Alone(Agent::new(config.gc)),
            share: None,
            gc_asked: 0,
            away: None,
            scheduler: Scheduler::new(config.policy, 1024),
            readings: Slab::new(),
            predict_read: Predictor::default(),
            predict_write: Predictor::default(),
            backlog: Backlog::default(),
            jobs_waiting: Vec::new(),
            jobs_ready: Vec::new(),
            jobs_flushing: Vec::new(),
            flush_in_flight: false,
            reads_in_flight: 0,
            writes_out: 0,
            in_flight: 0,
            media_tag,
            media_in_flight: 0,
            dirty_low: (config.dirty_ratio_low * config.cache_pages as f64) as usize,
            written_at: now,
            written_since_gc: false,
            latched: false,
            stop: Stop::No,
            damaged: BTreeMap::new(),
            stats: UnitStats::default(),
            stages: Stages::new(),
            dedup: Dedup::after(identity.lead.map_or(0, |lead| lead.session)),
            identity,
            config,
            flash,
            replica,
        }
    }

    /// The flash, to look at.
    pub fn flash(&self) -> &Vssd {
        &self.flash
    }

    /// The identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Counters.
    pub fn stats(&self) -> UnitStats {
        self.stats
    }

    /// Where reads spent their time.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Operations that the medium has.
    pub fn media_in_flight(&self) -> u32 {
        self.media_in_flight
    }

    /// Pages in the write cache.
    pub fn dirty_pages(&self) -> usize {
        self.cache.len()
    }

    /// True when clients may be served.
    pub fn is_serving(&self) -> bool {
        self.replica.is_serving()
    }

    /// True when garbage is being collected.
    pub fn is_collecting(&self) -> bool {
        self.agent.is_collecting()
    }

    /// True after a media failure: writes and flushes are refused.
    pub fn is_latched(&self) -> bool {
        self.latched
    }

    /// Takes a packet for this vSSD. Its payload's checksum is right.
    pub fn packet(&mut self, now: Instant, packet: Packet, out: &mut VecDeque<Output>) {
        let header = packet.header;
        if self.stop != Stop::No && matches!(header.op, Op::Write | Op::Zero | Op::Inv) {
            // To its senders a stopping node is one that is gone: else their writes would follow the checkpoint.
            return;
        }
        match header.op {
            Op::Read => {
                self.agent.note_request(now);
                self.predict_read.observe(header.lat_ns);
                self.read(now, packet, now, out);
            }
            Op::Write | Op::Zero => {
                self.agent.note_request(now);
                self.predict_write.observe(header.lat_ns);
                self.mutate(now, packet, out);
            }
            Op::Flush => self.flush(&header, out),
            // A late answer to an earlier request, or to an earlier start of the node, says nothing any more.
            Op::GcOp if (header.session, header.request) == (self.identity.boot, self.gc_asked) => {
                if header.code == Code::Accept && self.arbiter() == Some(header.source) {
                    self.away = u32::try_from(header.lba).ok().filter(|&id| id != 0).map(VssdId);
                }
                self.agent.answered(now, header.code);
            }
            Op::Inv | Op::Ack | Op::Val | Op::Hello | Op::Digest | Op::Pull => {
                if header.op == Op::Inv {
                    // A follower sees no other sign of its clients.
                    self.agent.note_request(now);
                    self.predict_write.observe(header.lat_ns);
                }
                if let Some(peer) = self.replica.peer_of(&header) {
                    self.peer_packet(now, peer, packet);
                }
            }
            _ => {}
        }
        self.pump(now, out);
    }

    fn peer_packet(&mut self, now: Instant, peer: usize, packet: Packet) {
        let mut put = false;
        let refused = self.replica.receive(now, peer, packet, &mut view!(self, put));
        if put {
            self.note_put(now);
        }
        if let Some(packet) = refused {
            self.push_backlog(now, Some(peer), packet);
        }
    }

    fn note_put(&mut self, now: Instant) {
        self.written_at = now;
        self.written_since_gc = true;
    }

    /// Lets a write wait for room, coordinated in order of end-to-end time.
    fn push_backlog(&mut self, now: Instant, peer: Option<usize>, packet: Packet) {
        // The client's copies were suppressed before.
        if peer.is_some_and(|peer| self.backlog.has(peer, &packet)) {
            return;
        }
        let header = packet.header;
        let network_ns = if self.config.policy.is_coordinated() {
            u64::from(header.lat_ns) + self.predict_write.predict_ns(header.lat_ns)
        } else {
            0
        };
        if self.backlog.push(now, network_ns, peer, packet) {
            return;
        }
        self.stats.dropped += 1;
        if peer.is_none() {
            self.dedup.forget(header.source, header.session, header.request);
        }
    }

    fn newest(&self, lpn: Lpn) -> Version {
        newest(&self.cache, &self.flash, &self.damaged, lpn)
    }

    fn read(&mut self, now: Instant, packet: Packet, arrived: Instant, out: &mut VecDeque<Output>) {
        let header = packet.header;
        let lpn = lpn_of(&header);
        if self.replica.has_missed() || self.latched && !self.replica.is_serving() {
            return self.answer(&header, Code::Damaged, out);
        }
        if !self.replica.is_serving() {
            return self.answer(&header, Code::Busy, out);
        }
        if lpn.0 >= self.flash.logical_pages() {
            return self.answer(&header, Code::OutOfRange, out);
        }
        if self.replica.readiness(lpn) == Readiness::Undecided {
            return self.replica.wait(lpn, packet);
        }
        if let Some(cached) = self.cache.get(lpn) {
            let cached = cached.clone();
            self.stats.cache_hits += 1;
            self.stages.record_hit(&header, now.since(arrived));
            return self.answer_read(&header, cached.page, cached.crc, out);
        }
        let version = self.flash.version(lpn);
        if self.damaged.get(&lpn.0).is_some_and(|&lost| lost > version) {
            return self.read_failed(&header, out);
        }
        let predicted_ns = self.predict_read.predict_ns(header.lat_ns);
        let slot = self.readings.insert(Reading::Client {
            packet,
            version,
            arrived,
            issued: now,
            predicted_ns,
        });
        let request = sched::Request {
            kind: Kind::Read,
            page: lpn.0,
            net_ns: u64::from(header.lat_ns),
            predicted_ns,
            item: slot,
        };
        self.scheduler.push(now, request);
    }

    fn mutate(&mut self, now: Instant, packet: Packet, out: &mut VecDeque<Output>) {
        let header = packet.header;
        if !self.replica.is_serving() {
            let code = if self.latched { Code::Latched } else { Code::Busy };
            return self.answer(&header, code, out);
        }
        if header.epoch != self.replica.epoch() {
            return self.answer(&header, Code::Stale, out);
        }
        if lpn_of(&header).0 >= self.flash.logical_pages() {
            return self.answer(&header, Code::OutOfRange, out);
        }
        let floor = header.request.saturating_sub(u64::from(header.floor));
        match self
            .dedup
            .admit(header.source, header.session, header.request, floor)
        {
            Admit::New if self.latched => {
                self.dedup.forget(header.source, header.session, header.request);
                self.answer(&header, Code::Latched, out);
            }
            Admit::New => self.start_write(now, packet),
            Admit::Done(code) => {
                self.stats.duplicates += 1;
                self.answer(&header, code, out);
            }
            Admit::Superseded => self.answer(&header, Code::Superseded, out),
            Admit::InProgress | Admit::Old => self.stats.duplicates += 1,
        }
    }

    /// Begins an admitted write, or lets it wait for its page or for room.
    fn start_write(&mut self, now: Instant, packet: Packet) {
        let header = packet.header;
        let lpn = lpn_of(&header);
        if !self.dedup.is_current(header.session) {
            // A gateway has started or taken over meanwhile, and may have read the page already to change a part of it.
            return;
        }
        if self.replica.readiness(lpn) == Readiness::Undecided {
            return self.replica.wait(lpn, packet);
        }
        if !self.cache.has_room(lpn) {
            return self.push_backlog(now, None, packet);
        }
        let mut put = false;
        let page = packet.page().cloned();
        self.replica
            .write(now, header, page, header.payload_crc, &mut view!(self, put));
        self.note_put(now);
    }

    fn flush(&mut self, header: &Header, out: &mut VecDeque<Output>) {
        if self.latched {
            return self.answer(header, Code::Latched, out);
        }
        if !self.replica.is_serving() {
            return self.answer(header, Code::Busy, out);
        }
        let same = |job: &Job| {
            matches!(&job.then, Then::Flushed(known)
            if known.source == header.source && known.session == header.session && known.request == header.request)
        };
        if [&self.jobs_waiting, &self.jobs_ready, &self.jobs_flushing]
            .into_iter()
            .flatten()
            .any(same)
        {
            self.stats.duplicates += 1;
            return;
        }
        let job = Job {
            below: Some(self.cache.mark()),
            at: None,
            then: Then::Flushed(*header),
        };
        self.add_job(job);
    }

    fn add_job(&mut self, job: Job) {
        if self.is_due(&job) {
            self.jobs_ready.push(job)
        } else {
            self.jobs_waiting.push(job)
        }
    }

    fn is_due(&self, job: &Job) -> bool {
        job.below.is_none_or(|mark| self.cache.is_written_below(mark))
            && job.at.is_none_or(|mark| self.cache.is_written_at(mark))
    }

    fn persist(&mut self, what: Persist) {
        let (Persist::Own { lpn, .. } | Persist::Acknowledge { lpn, .. }) = what;
        if self.latched {
            return self.replica.persisted(&what, Code::Latched);
        }
        if self.is_persisting(&what) {
            return;
        }
        let at = self.cache.mark_of(lpn);
        self.cache.expedite(lpn);
        self.add_job(Job {
            below: None,
            at,
            then: Then::Persisted(what),
        });
    }

    /// True if this is waited for already: an invalidation was sent again.
    fn is_persisting(&self, what: &Persist) -> bool {
        let Persist::Acknowledge { lpn, peer, header } = what else {
            return false;
        };
        let mut jobs = [&self.jobs_waiting, &self.jobs_ready, &self.jobs_flushing]
            .into_iter()
            .flatten();
        jobs.any(|job| match &job.then {
            Then::Persisted(Persist::Acknowledge {
                lpn: page,
                peer: from,
                header: known,
            }) => (page, from, known.version, known.epoch) == (lpn, peer, header.version, header.epoch),
            _ => false,
        })
    }

    /// The medium is done with an operation of this vSSD.
    pub fn media_done(&mut self, now: Instant, done: MediaDone, out: &mut VecDeque<Output>) {
        self.media_in_flight -= 1;
        self.flash.media_done(now, done);
        self.pump(now, out);
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        self.flash.tick(now);
        self.agent.tick(now);
        self.share_allows(now);
        self.scheduler.tick(now);
        let mut put = false;
        self.replica.tick(now, &view!(self, put));
        self.pump(now, out);
    }

    /// When to [`tick`](Unit::tick).
    pub fn deadline(&self) -> Option<Instant> {
        let mut deadline = earliest(self.flash.deadline(), self.replica.deadline());
        deadline = earliest(deadline, self.agent.deadline());
        if let Some(timer) = self.scheduler.deadline() {
            deadline = earliest(deadline, Some(timer));
        }
        if !self.cache.is_empty() && self.writes_out == 0 && !self.latched {
            deadline = earliest(deadline, Some(self.written_at + WRITE_BACK_IDLE));
        }
        deadline = earliest(deadline, self.share_deadline());
        if self.wants_gc_check() {
            deadline = earliest(deadline, self.agent.check_deadline());
        }
        deadline
    }

    /// Carries everything on that can go on now.
    fn pump(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        loop {
            self.issue(now);
            let mut progress = self.drain_flash(now, out);
            progress |= self.drain_replica(now, out);
            progress |= self.drain_backlog(now, out);
            progress |= self.step_stop(now);
            if !progress {
                break;
            }
        }
        // A stop begins no collection: what it moved would follow the checkpoint.
        if self.written_since_gc && self.stop == Stop::No {
            self.agent
                .check(now, self.flash.free_ratio(), self.written_since_gc);
        }
        while let Some(action) = self.agent.poll() {
            match action {
                Action::Tell(code) => {
                    self.gc_asked += 1;
                    let header = Header {
                        code,
                        request: self.gc_asked,
                        session: self.identity.boot,
                        target: self.arbiter().unwrap_or(Addr::NONE),
                        ..Header::new(Op::GcOp, self.identity.vssd)
                    };
                    self.send(Packet::bare(header), out);
                }
                Action::Start => {
                    self.written_since_gc = false;
                    self.flash.start_gc(now, self.config.gc.restore_ratio);
                    self.drain_flash(now, out);
                }
            }
        }
    }

    fn wants_write_back(&self, now: Instant) -> bool {
        !self.latched
            && (self.stop != Stop::No
                || !self.jobs_waiting.is_empty()
                || !self.backlog.is_empty()
                || self.cache.len() > self.dirty_low
                || now >= self.written_at + WRITE_BACK_IDLE)
    }

    /// Issues waiting reads, write-backs and flushes to the flash.
    fn issue(&mut self, now: Instant) {
        while self.writes_out < self.config.write_depth
            && self.wants_write_back(now)
            && let Some((lpn, zero)) = self.cache.next_write()
        {
            let request = sched::Request {
                kind: if zero { Kind::Zero } else { Kind::Write },
                page: lpn.0,
                net_ns: 0,
                predicted_ns: 0,
                item: lpn.0,
            };
            self.writes_out += 1;
            self.scheduler.push(now, request);
        }
        while !self.scheduler.is_empty()
            && self.in_flight < self.config.device_depth
            && self.share_allows(now)
        {
            let room = Room {
                read: self.reads_in_flight < self.config.read_depth,
                write: !self.latched,
            };
            match self.scheduler.pop(now, room) {
                Some((Kind::Read, slot)) => self.issue_read(now, slot),
                Some((Kind::Write | Kind::Zero, lpn)) => self.issue_write(now, Lpn(lpn)),
                None => break,
            }
        }
        if !self.flush_in_flight && !self.jobs_ready.is_empty() {
            self.flush_in_flight = true;
            core::mem::swap(&mut self.jobs_flushing, &mut self.jobs_ready);
            self.flash.submit(now, Request::Flush { tag: TAG_FLUSH });
        }
    }

    fn issue_read(&mut self, now: Instant, slot: u32) {
        let Reading::Client { packet, issued, .. } = &mut self.readings[slot] else {
            unreachable!("only clients' reads wait");
        };
        *issued = now;
        let lpn = lpn_of(&packet.header);
        let tag = TAG_READ | u64::from(slot);
        self.take_share();
        self.reads_in_flight += 1;
        self.in_flight += 1;
        self.flash.submit(now, Request::Read { tag, lpn });
    }

    fn issue_write(&mut self, now: Instant, lpn: Lpn) {
        let Cached { version, crc, page } = self.cache.begin(lpn);
        let tag = TAG_WRITE | u64::from(lpn.0);
        self.take_share();
        self.in_flight += 1;
        let request = match page {
            Some(page) => Request::Write {
                tag,
                lpn,
                version,
                crc,
                page,
            },
            None => Request::Zero { tag, lpn, version },
        };
        self.flash.submit(now, request);
    }

    fn drain_flash(&mut self, now: Instant, out: &mut VecDeque<Output>) -> bool {
        let mut progress = false;
        while let Some(event) = self.flash.poll() {
            match event {
                Event::Media(mut op) => {
                    op.id |= self.media_tag;
                    self.media_in_flight += 1;
                    out.push_back(Output::Media(op));
                }
                Event::GcDone => {
                    self.away = None;
                    self.agent.finished(now);
                }
                Event::GcForced => self.agent.forced(now),
                Event::Borrow => self.agent.exchange(Report::Borrow),
                Event::Return => self.agent.exchange(Report::Return),
                Event::Done { tag, result } => {
                    progress = true;
                    match tag & !TAG_VALUE {
                        TAG_READ => self.read_done(now, (tag & TAG_VALUE) as u32, result, out),
                        TAG_WRITE => self.write_done(now, Lpn((tag & TAG_VALUE) as u32), result, out),
                        TAG_FLUSH => self.flush_done(result, out),
                        TAG_STOP_FLUSH | TAG_STOP_CHECKPOINT => self.stop_done(now, result, out),
                        _ => unreachable!("the flash echoes tags"),
                    }
                }
            }
        }
        progress
    }

    fn read_done(
        &mut self,
        now: Instant,
        slot: u32,
        result: Result<Data, VssdError>,
        out: &mut VecDeque<Output>,
    ) {
        let reading = self.readings.remove(slot);
        let data = match result {
            Ok(Data::Page { page, crc, version }) => Ok(Cached {
                version,
                crc,
                page: Some(page),
            }),
            Ok(Data::Zero { version }) => Ok(Cached {
                version,
                crc: 0,
                page: None,
            }),
            Ok(Data::None) => Ok(Cached {
                version: Version::NONE,
                crc: 0,
                page: None,
            }),
            Err(error) => Err(error),
        };
        match reading {
            Reading::Fetch { lpn, why, version } => {
                let newest = self.newest(lpn);
                if newest != version {
                    // Written meanwhile.
                    return self.fetch(now, lpn, why);
                }
                // What the flash has may be older than what was lost.
                let data = data.ok().filter(|data| data.version == newest).ok_or(newest);
                self.replica.fetched(now, lpn, why, data);
            }
            Reading::Client {
                packet,
                version,
                arrived,
                issued,
                predicted_ns,
            } => {
                self.reads_in_flight -= 1;
                self.in_flight -= 1;
                self.scheduler.done(now, Kind::Read, slot);
                let header = packet.header;
                match data {
                    // Written meanwhile: it may not be decided yet, so look again.
                    Ok(data) if data.version > version => self.read(now, packet, arrived, out),
                    Ok(data) => {
                        self.stages.record(
                            &header,
                            arrived,
                            issued,
                            now,
                            predicted_ns,
                            self.agent.is_collecting(),
                        );
                        self.answer_read(&header, data.page, data.crc, out);
                    }
                    Err(_) => self.read_failed(&header, out),
                }
            }
        }
    }

    /// The page is damaged here: fetch it from a peer, and let the client ask there.
    #[cold]
    fn read_failed(&mut self, header: &Header, out: &mut VecDeque<Output>) {
        let lpn = lpn_of(header);
        if self.cache.get(lpn).is_none() && !self.damaged.contains_key(&lpn.0) {
            self.damaged.insert(lpn.0, self.flash.version(lpn));
            self.stats.damaged += 1;
        }
        for peer in 0..self.identity.membership.peers.len() {
            self.replica.pull(peer, lpn);
        }
        self.answer(header, Code::Damaged, out);
    }

    fn write_done(
        &mut self,
        now: Instant,
        lpn: Lpn,
        result: Result<Data, VssdError>,
        out: &mut VecDeque<Output>,
    ) {
        self.writes_out -= 1;
        self.in_flight -= 1;
        self.scheduler.done(now, Kind::Write, lpn.0);
        if result.is_err() {
            return self.latch(out);
        }
        self.cache.wrote(lpn);
        let mut index = 0;
        while index < self.jobs_waiting.len() {
            if self.is_due(&self.jobs_waiting[index]) {
                let job = self.jobs_waiting.swap_remove(index);
                self.jobs_ready.push(job);
            } else {
                index += 1;
            }
        }
    }

    fn flush_done(&mut self, result: Result<Data, VssdError>, out: &mut VecDeque<Output>) {
        self.flush_in_flight = false;
        if result.is_err() {
            return self.latch(out);
        }
        let mut jobs = core::mem::take(&mut self.jobs_flushing);
        for job in jobs.drain(..) {
            self.finish_job(job, Code::SoftOrOk, out);
        }
        self.jobs_flushing = jobs;
    }

    fn finish_job(&mut self, job: Job, code: Code, out: &mut VecDeque<Output>) {
        match job.then {
            Then::Flushed(header) => self.answer(&header, code, out),
            Then::Persisted(what) => self.replica.persisted(&what, code),
        }
    }

    /// The medium failed: nothing more can be promised, so everything that waits for it fails, once and for all.
    #[cold]
    fn latch(&mut self, out: &mut VecDeque<Output>) {
        self.latched = true;
        let mut jobs = core::mem::take(&mut self.jobs_waiting);
        jobs.append(&mut self.jobs_ready);
        jobs.append(&mut self.jobs_flushing);
        for job in jobs {
            self.finish_job(job, Code::Latched, out);
        }
    }

    fn drain_replica(&mut self, now: Instant, out: &mut VecDeque<Output>) -> bool {
        let mut progress = false;
        if !self.replica.is_serving() {
            let mut put = false;
            self.replica.sync_step(&view!(self, put));
        }
        while let Some(effect) = self.replica.poll() {
            progress = true;
            match effect {
                Effect::Send(packet) => self.send(packet, out),
                Effect::Complete { header, code } => {
                    self.stats.writes += 1;
                    self.dedup
                        .finish(header.source, header.session, header.request, code);
                    self.answer(&header, code, out);
                }
                Effect::Resume(packet) if packet.header.op == Op::Read => self.read(now, packet, now, out),
                Effect::Resume(packet) => self.start_write(now, packet),
                Effect::Persist(what) => self.persist(what),
                Effect::Fetch(lpn, why) => self.fetch(now, lpn, why),
            }
        }
        progress
    }

    #[cold]
    fn fetch(&mut self, now: Instant, lpn: Lpn, why: Fetch) {
        if let Some(cached) = self.cache.get(lpn) {
            let cached = cached.clone();
            return self.replica.fetched(now, lpn, why, Ok(cached));
        }
        // A joining peer asks again for what it has not got yet: a slow medium is asked once.
        let is_same = |reading: &Reading| matches!(reading, Reading::Fetch { lpn: of, why: by, .. } if (*of, *by) == (lpn, why));
        if self.readings.iter().any(|(_, reading)| is_same(reading)) {
            return;
        }
        let version = self.newest(lpn);
        let slot = self.readings.insert(Reading::Fetch { lpn, why, version });
        self.flash.submit(
            now,
            Request::Read {
                tag: TAG_READ | u64::from(slot),
                lpn,
            },
        );
    }

    /// Takes requests that waited for room, in order, while there is some.
    fn drain_backlog(&mut self, now: Instant, out: &mut VecDeque<Output>) -> bool {
        let mut progress = false;
        while let Some(packet) = self.backlog.front() {
            if !self.latched && !self.cache.has_room(lpn_of(&packet.header)) {
                break;
            }
            let (peer, packet) = self.backlog.pop().expect("there is a front");
            progress = true;
            match peer {
                Some(peer) => self.peer_packet(now, peer, packet),
                None if self.latched => {
                    let header = packet.header;
                    self.dedup.forget(header.source, header.session, header.request);
                    self.answer(&header, Code::Latched, out);
                }
                None => self.start_write(now, packet),
            }
        }
        progress
    }

    fn send(&self, mut packet: Packet, out: &mut VecDeque<Output>) {
        packet.header.source = self.identity.addr;
        out.push_back(Output::Send {
            to: self.identity.tor,
            packet,
        });
    }

    fn reply_header(&self, request: &Header, code: Code) -> Header {
        Header {
            vssd: self.identity.vssd,
            epoch: self.replica.epoch(),
            floor: self.replica.continuity(),
            lat_ns: 0,
            ..request.reply(code)
        }
    }

    fn answer(&self, request: &Header, code: Code, out: &mut VecDeque<Output>) {
        self.send(Packet::bare(self.reply_header(request, code)), out);
    }

    fn answer_read(&mut self, request: &Header, page: Option<Page>, crc: u32, out: &mut VecDeque<Output>) {
        self.stats.reads += 1;
        let header = self.reply_header(request, Code::SoftOrOk);
        self.send(Packet::with_page(header, page, crc), out);
    }

    /// Newest version of a page, for probes.
    pub fn version(&self, lpn: Lpn) -> Version {
        self.newest(lpn)
    }
}
