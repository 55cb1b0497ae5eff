//! One vSSD on a node: replication, write cache, I/O scheduling, garbage-collection agent and flash, composed.
//!
//! A client's read: duplicate-free by nature → is its page decided (Hermes)? → write cache → scheduler → flash.
//! A client's write: epoch → duplicates → is its page decided? → room in the cache → replication. Programming it is
//! the write-back's business; a flush waits for the write-back of everything before it and then for the medium.

mod backlog;
mod copies;
mod facts;
mod grouped;
mod idle;
mod members;
mod scrubbing;
mod servers;
mod waits;

pub use facts::{Identity, UnitConfig, UnitStats};

use crate::Output;
use crate::buffered::{Buffered, Event, Limits, Marks};
use crate::node::collector::{Collector, Report};
use crate::node::held::Held;
use crate::node::stages::Stages;
use backlog::Backlog;
use base::event;
use base::{Addr, Duration, Instant, Lpn, MediaDone, NodeId, Page, Slab, Version, VssdId, time::earliest};
use copies::Copies;
use flash::{Vssd, VssdError};
use rack::bucket::Bucket;
use rack::cache::{Cached, Store, lpn_of};
use rack::compare::{self, Content};
use rack::control::{Config, Copying};
use rack::dedup::{Admit, Dedup};
use rack::gc::{Action, Agent, Coordination};
use rack::lease::Leases;
use rack::membership::Incarnation;
use rack::part;
use rack::predictor::Predictor;
use rack::promise::Promise;
use rack::replica::{Effect, Fetch, Persist, Readiness, Replica};
use rack::sched::{self, Kind, Room, Scheduler};
use scrubbing::Scrubbing;
use smallvec::SmallVec;
use std::collections::VecDeque;
use waits::{Reading, Then};
use wire::rack::{Code, Header, Op, Packet, flags};

/// One vSSD, served.
pub struct Unit {
    identity: Identity,
    config: UnitConfig,
    held: Held<Then>,
    replica: Replica,
    leases: Leases,
    /// The replica served when its leases heard of it last.
    serves: bool,
    dedup: Dedup,
    agent: Collector,
    /// The ToR that it asks.
    promise: Promise,
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
    /// Requests of members that join.
    pub(super) copies: Copies,
    pub(super) scrubbing: Scrubbing,
    /// How long other members took to acknowledge clients' writes, since the node asked.
    pub(super) acknowledged: SmallVec<[(NodeId, Duration); 4]>,
    /// Clients' reads that the flash has.
    reads_in_flight: usize,
    stats: UnitStats,
    stages: Stages,
}

/// True for a packet whose version field names the set that it is for.
fn names_set(header: &Header) -> bool {
    let is_request = matches!(header.op, Op::Read | Op::Write | Op::Zero | Op::Ask | Op::Flush);
    header.op == Op::Hello || is_request && !header.has(flags::REPLY)
}

impl Unit {
    /// Serves `flash`, which is fresh or recovered. The ids of its media operations carry `media_tag`.
    pub fn new(now: Instant, identity: Identity, config: UnitConfig, flash: Vssd, media_tag: u64) -> Self {
        let me = Incarnation {
            vssd: identity.vssd,
            node: identity.node,
            boot: identity.boot,
        };
        let (leases, replica) = members::start(now, me, &identity.config);
        let limits = Limits {
            cache_pages: config.cache_pages,
            write_depth: config.write_depth,
            dirty_ratio_low: config.dirty_ratio_low,
        };
        Self {
            agent: Collector::Alone(Agent::new(config.gc)),
            promise: Promise::new(now, identity.is_new, identity.tors.len()),
            share: None,
            gc_asked: 0,
            away: None,
            scheduler: Scheduler::new(config.policy, 1024),
            readings: Slab::new(),
            predict_read: Predictor::default(),
            predict_write: Predictor::default(),
            backlog: Backlog::default(),
            copies: Copies::default(),
            acknowledged: SmallVec::new(),
            scrubbing: Scrubbing::new(identity.vssd, identity.boot, flash.logical_pages()),
            reads_in_flight: 0,
            stats: UnitStats::default(),
            stages: Stages::new(),
            dedup: Dedup::after(identity.config.lead.map(|lead| (lead.addr, lead.session))),
            held: Held::new(Buffered::new(now, flash, limits, media_tag)),
            identity,
            config,
            serves: replica.is_serving(),
            replica,
            leases,
        }
    }

    /// The flash, to look at.
    pub fn flash(&self) -> &Vssd {
        self.held.buffered.flash()
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
        self.held.buffered.media_in_flight()
    }

    /// Pages in the write cache.
    pub fn dirty_pages(&self) -> usize {
        self.held.buffered.cache().len()
    }

    /// True when clients may be served.
    pub fn is_serving(&self) -> bool {
        self.replica.is_serving()
    }

    /// How far it is with taking a copy of what its peers have, while it does not serve.
    pub fn copying(&self, now: Instant) -> Option<Copying> {
        let pages = self.flash().logical_pages();
        let (pages_done, since) = self.replica.copying(pages)?;
        Some(Copying {
            vssd: self.identity.vssd.0,
            pages_done,
            pages,
            ms: now.since(since).as_millis() as u64,
        })
    }

    /// True when garbage is being collected.
    pub fn is_collecting(&self) -> bool {
        self.agent.is_collecting()
    }

    /// True after a media failure: writes and flushes are refused.
    pub fn is_latched(&self) -> bool {
        self.held.is_latched()
    }

    /// Stops cleanly: writes everything back, flushes, and ends with a checkpoint. [`is_quiet`](Unit::is_quiet) tells when
    /// the stop is done. Reads and flushes are still served, and writes are not taken any more.
    pub fn drain(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        self.held.buffered.stop();
        self.pump(now, out);
    }

    /// True when a clean stop is complete. A latched vSSD can do no more and is quiet when nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        (self.is_latched() || self.backlog.is_empty()) && self.held.buffered.is_quiet()
    }

    /// Takes a packet for this vSSD. Its payload's checksum is right.
    pub fn packet(&mut self, now: Instant, packet: Packet, out: &mut VecDeque<Output>) {
        let header = packet.header;
        if self.held.buffered.is_stopping() && matches!(header.op, Op::Write | Op::Zero | Op::Ask | Op::Inv) {
            // To its senders a stopping node is one that is gone: else their writes would follow the checkpoint.
            return;
        }
        if names_set(&header)
            && let Some(code) = self.identity.config.refusal(header.version)
        {
            // Other data of the same number, or of the past: it is not what was asked for, and whoever greets is no peer.
            return match header.op {
                Op::Hello => {}
                _ => self.answer(&header, code, out),
            };
        }
        match header.op {
            Op::Read => {
                self.note_request(now);
                self.predict_read.observe(header.lat_ns);
                self.read(now, packet, now, out);
            }
            Op::Ask => self.mutate(now, packet, out),
            Op::Write | Op::Zero => {
                self.note_request(now);
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
            Op::Lease => self.leases.receive(now, &header),
            Op::Pull if copies::can_wait(&header) => self.copies.push(packet),
            Op::Digest if header.code == Code::Background => self.compared(now, &packet, out),
            Op::Inv | Op::Ack | Op::Val | Op::Held | Op::Hello | Op::Digest | Op::Pull => {
                if header.op == Op::Inv {
                    // A follower sees no other sign of its clients.
                    self.note_request(now);
                    self.predict_write.observe(header.lat_ns);
                }
                if let Some(peer) = self.replica.peer_of(&header) {
                    if header.op == Op::Ack {
                        let acknowledged = self.replica.acknowledged(now, peer, &header);
                        self.acknowledged.extend(acknowledged);
                    }
                    self.peer_packet(now, peer, packet, out);
                }
            }
            _ => {}
        }
        self.pump(now, out);
    }

    /// The content here of a page that this member vouches for.
    fn content(&self, lpn: Lpn) -> Option<Content> {
        let content = self.held.content(lpn);
        content.filter(|_| self.replica.vouches_for(lpn))
    }

    /// A peer asks what differs here, or has answered that.
    fn compared(&mut self, now: Instant, packet: &Packet, out: &mut VecDeque<Output>) {
        let header = &packet.header;
        let peer = self.replica.peer_of(header);
        let Some(peer) = peer.filter(|&peer| self.replica.shares_epoch(peer, header)) else {
            return;
        };
        let (first, record) = (lpn_of(header), packet.record());
        if !header.has(flags::REPLY) {
            let answer = compare::answer(first, record, |lpn| self.content(lpn));
            return self.replica.answer_compared(peer, first, answer);
        }
        let mut comparison = core::mem::take(&mut self.scrubbing.comparison);
        let difference = comparison.answered(now, (peer, first), record, |lpn| self.content(lpn));
        self.scrubbing.comparison = comparison;
        self.scrubbing.answered();
        if let Some(difference) = difference {
            self.stats.differed += 1;
            let kind = event::Kind::ReplicasDiffer {
                vssd: self.identity.vssd,
                peer: VssdId(header.request as u32),
                page: difference.lpn.0,
                ours: difference.ours.version.0,
                theirs: difference.theirs.version.0,
            };
            out.push_back(Output::Event(kind));
            self.replica.resolve(&difference);
        }
    }

    /// A client has asked for something.
    fn note_request(&mut self, now: Instant) {
        self.agent.note_request(now);
        self.scrubbing.note_client();
    }

    /// A peer has sent something, before which the newest data of the page was `lost`.
    fn tell_repair(&mut self, header: &Header, lost: Option<Version>, out: &mut VecDeque<Output>) {
        let lpn = lpn_of(header);
        if lost != Some(header.version) || self.held.is_damaged(lpn) {
            return;
        }
        self.stats.repaired += 1;
        let kind = event::Kind::PageRepaired {
            vssd: self.identity.vssd,
            page: lpn.0,
            peer: VssdId(header.request as u32),
            found: self.scrubbing.repairs.repaired(lpn).unwrap_or(event::Look::Read),
        };
        out.push_back(Output::Event(kind));
    }

    fn peer_packet(&mut self, now: Instant, peer: usize, packet: Packet, out: &mut VecDeque<Output>) {
        let header = packet.header;
        let lost = self.held.lost(lpn_of(&header));
        let back = self.replica.receive(now, peer, packet, &mut self.held);
        self.tell_repair(&header, lost, out);
        if let Some(packet) = back
            && self.push_backlog(now, Some(peer), packet)
        {
            self.replica.tell_held(peer, &header);
        }
    }

    /// Lets a write wait for room, coordinated in order of end-to-end time. False if too many wait.
    fn push_backlog(&mut self, now: Instant, peer: Option<usize>, packet: Packet) -> bool {
        // The client's copies were suppressed before.
        if peer.is_some_and(|peer| self.backlog.has(peer, &packet)) {
            return true;
        }
        let header = packet.header;
        let network_ns = if self.config.policy.is_coordinated() {
            u64::from(header.lat_ns) + self.predict_write.predict_ns(header.lat_ns)
        } else {
            0
        };
        let waits = self.backlog.push(now, network_ns, peer, packet);
        if !waits {
            self.stats.dropped += 1;
            if peer.is_none() {
                self.dedup.forget(header.source, header.session, header.request);
            }
        }
        waits
    }

    fn read(&mut self, now: Instant, packet: Packet, arrived: Instant, out: &mut VecDeque<Output>) {
        let header = packet.header;
        let lpn = lpn_of(&header);
        if self.replica.has_missed() || self.is_latched() && !self.replica.is_serving() {
            return self.answer(&header, Code::Damaged, out);
        }
        if !self.may_read(now) {
            return self.answer(&header, Code::Busy, out);
        }
        if lpn.0 >= self.held.pages() {
            return self.answer(&header, Code::OutOfRange, out);
        }
        if self.replica.readiness(lpn) == Readiness::Undecided {
            return self.replica.wait(lpn, packet);
        }
        if let Some(cached) = self.held.buffered.cache().get(lpn) {
            let cached = cached.clone();
            self.stats.cache_hits += 1;
            self.stages.record_hit(&header, now.since(arrived));
            self.copies.note(now, arrived, &header);
            return self.answer_read(&header, cached.page, cached.crc, out);
        }
        if self.held.is_lost(lpn) {
            return self.read_failed(now, &header, out);
        }
        let version = self.flash().version(lpn);
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
            let code = if self.is_latched() {
                Code::Latched
            } else {
                Code::Busy
            };
            return self.answer(&header, code, out);
        }
        if header.epoch != self.replica.epoch() {
            return self.answer(&header, Code::Stale, out);
        }
        if lpn_of(&header).0 >= self.held.pages() {
            return self.answer(&header, Code::OutOfRange, out);
        }
        let floor = header.request.saturating_sub(u64::from(header.floor));
        match self
            .dedup
            .admit(header.source, header.session, header.request, floor)
        {
            Admit::New if header.op == Op::Ask => {
                self.dedup.forget(header.source, header.session, header.request);
                self.answer(&header, Code::Absent, out);
            }
            Admit::New if self.is_latched() => {
                self.dedup.forget(header.source, header.session, header.request);
                self.answer(&header, Code::Latched, out);
            }
            Admit::New => self.start_write(now, packet, out),
            Admit::Done(code) => {
                self.stats.duplicates += 1;
                self.answer(&header, code, out);
            }
            Admit::Superseded => self.answer(&header, Code::Superseded, out),
            Admit::InProgress => {
                self.stats.duplicates += 1;
                self.replica.asked_again(&header);
            }
            Admit::Old => self.stats.duplicates += 1,
        }
    }

    /// Begins an admitted write, or lets it wait for its page or for room.
    fn start_write(&mut self, now: Instant, packet: Packet, out: &mut VecDeque<Output>) {
        let header = packet.header;
        let lpn = lpn_of(&header);
        if self.is_superseded(&header) {
            // A gateway has started or taken over meanwhile, and may have read the page already to change a part of it.
            return;
        }
        if !self.replica.is_serving() || header.epoch != self.replica.epoch() {
            // It has waited, and the members have changed: who sent it asks again.
            self.dedup.forget(header.source, header.session, header.request);
            return self.answer(&header, Code::Stale, out);
        }
        if self.replica.readiness(lpn) == Readiness::Undecided {
            return self.replica.wait(lpn, packet);
        }
        if !self.held.has_room(lpn) {
            self.push_backlog(now, None, packet);
            return;
        }
        let page = packet.page().cloned();
        self.scrubbing.note_order();
        self.replica
            .write(now, header, page, header.payload_crc, &mut self.held);
    }

    fn flush(&mut self, header: &Header, out: &mut VecDeque<Output>) {
        if self.is_latched() {
            return self.answer(header, Code::Latched, out);
        }
        if !self.replica.is_serving() {
            return self.answer(header, Code::Busy, out);
        }
        if self.is_superseded(header) {
            // It may not know of writes that another gateway has had acknowledged.
            return self.answer(header, Code::Superseded, out);
        }
        let name = |header: &Header| (header.source, header.session, header.request);
        let is_copy = |job: &Then| matches!(job, Then::Flushed(known) if name(known) == name(header));
        if self.held.buffered.jobs().any(is_copy) {
            self.stats.duplicates += 1;
            return;
        }
        self.held.buffered.flush(Then::Flushed(*header));
    }

    fn persist(&mut self, what: Persist) {
        let (Persist::Own { lpn, .. } | Persist::Acknowledge { lpn, .. }) = what;
        if self.is_latched() {
            return self.replica.persisted(&what, Code::Latched);
        }
        if self.is_persisting(&what) {
            return;
        }
        let mark = self.held.buffered.expedite(lpn);
        self.held
            .buffered
            .persist(Marks::from_iter(mark), Then::Persisted(what));
    }

    /// True if this is waited for already: an invalidation was sent again.
    fn is_persisting(&self, what: &Persist) -> bool {
        let Persist::Acknowledge { lpn, peer, header } = what else {
            return false;
        };
        self.held.buffered.jobs().any(|job| match job {
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
        self.held.buffered.media_done(now, done);
        self.pump(now, out);
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        self.held.buffered.tick(now);
        self.agent.tick(now);
        self.share_allows(now);
        self.scheduler.tick(now);
        self.replica.tick(now, &self.held);
        self.leases.tick(now);
        while let Some(lpn) = self.scrubbing.repairs.due(now, |lpn| self.held.is_damaged(lpn)) {
            self.replica.pull_from_all(lpn);
        }
        self.pump(now, out);
    }

    /// When to [`tick`](Unit::tick).
    pub fn deadline(&self) -> Option<Instant> {
        let mut deadline = earliest(self.held.buffered.deadline(), self.replica.deadline());
        deadline = earliest(deadline, self.leases.deadline());
        deadline = earliest(deadline, self.agent.deadline());
        if let Some(timer) = self.scheduler.deadline() {
            deadline = earliest(deadline, Some(timer));
        }
        deadline = earliest(deadline, self.share_deadline());
        deadline = earliest(deadline, self.scrubbing.repairs.deadline());
        if self.wants_gc_check() {
            deadline = earliest(deadline, self.agent.check_deadline());
        }
        deadline
    }

    /// Carries everything on that can go on now.
    fn pump(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        loop {
            self.issue(now);
            let mut progress = self.held.buffered.has_news() && self.drain_flash(now, out);
            progress |= self.drain_replica(now, out);
            progress |= self.drain_backlog(now, out);
            progress |= self.held.buffered.step_stop(now, !self.backlog.is_empty());
            if !progress {
                break;
            }
        }
        // A stop begins no collection: what it moved would follow the checkpoint.
        if self.was_written_since_gc() && !self.is_stopping() {
            self.agent.check(now, self.flash().free_ratio(), true);
        }
        while let Some(action) = self.agent.poll() {
            match action {
                Action::Tell(code) => self.speak_of_collection(now, code, out),
                Action::Start(collection, grant) => {
                    if collection == event::Collection::Soft && self.identity.tors.len() > 1 {
                        // One ToR has accepted. The other one is to lead reads away, too.
                        self.speak_of_collection(now, Code::Regular, out);
                    }
                    self.tell_begin(collection, grant, out);
                    self.held.buffered.start_gc(now, self.config.gc.restore_ratio);
                    self.drain_flash(now, out);
                }
            }
        }
    }

    /// Issues waiting reads, write-backs and flushes to the flash.
    fn issue(&mut self, now: Instant) {
        let urgent = !self.backlog.is_empty();
        while let Some((lpn, zero)) = self.held.buffered.next_write(now, urgent) {
            let request = sched::Request {
                kind: if zero { Kind::Zero } else { Kind::Write },
                page: lpn.0,
                net_ns: 0,
                predicted_ns: 0,
                item: lpn.0,
            };
            self.scheduler.push(now, request);
        }
        while !self.scheduler.is_empty() && self.has_place() && self.share_allows(now) {
            let room = Room {
                read: self.reads_in_flight < self.config.read_depth,
                write: !self.is_latched(),
            };
            match self.scheduler.pop(now, room) {
                Some((Kind::Read, slot)) => self.issue_read(now, slot),
                Some((Kind::Write | Kind::Zero, lpn)) => {
                    self.take_share();
                    self.held.buffered.write(now, Lpn(lpn));
                }
                None => break,
            }
        }
        self.held.buffered.start_flush(now);
    }

    /// True if the flash takes one more of those that the scheduler orders.
    fn has_place(&self) -> bool {
        self.reads_in_flight + self.held.buffered.writes_in_flight() < self.config.device_depth
    }

    fn issue_read(&mut self, now: Instant, slot: u32) {
        let Reading::Client { packet, issued, .. } = &mut self.readings[slot] else {
            unreachable!("only clients' reads wait");
        };
        *issued = now;
        let lpn = lpn_of(&packet.header);
        self.take_share();
        self.reads_in_flight += 1;
        self.held.buffered.read(now, u64::from(slot), lpn);
    }

    fn drain_flash(&mut self, now: Instant, out: &mut VecDeque<Output>) -> bool {
        let mut progress = false;
        while let Some(event) = self.held.buffered.poll(now) {
            match event {
                Event::Media(op) => out.push_back(Output::Media(op)),
                Event::Flash(event) => self.flash_event(now, &event, out),
                event => {
                    progress = true;
                    self.take_news(now, event, out);
                }
            }
        }
        progress
    }

    // Not inlined: most turns bring no news.
    #[inline(never)]
    fn take_news(&mut self, now: Instant, event: Event<Then>, out: &mut VecDeque<Output>) {
        match event {
            Event::Read { key, result } => self.read_done(now, key as u32, result, out),
            Event::Written(lpn) => self.scheduler.done(now, Kind::Write, lpn.0),
            Event::Ended(then, result) => {
                let code = result.map_or(Code::Latched, |()| Code::SoftOrOk);
                match then {
                    Then::Flushed(header) => self.answer(&header, code, out),
                    Then::Persisted(what) => self.replica.persisted(&what, code),
                }
            }
            Event::Latched(operation) => {
                let vssd = self.identity.vssd;
                out.push_back(Output::Event(event::Kind::MediumLatched { vssd, operation }));
            }
            Event::Stopping | Event::Media(_) | Event::Flash(_) => {}
        }
    }

    /// Collection begins.
    fn tell_begin(&self, collection: event::Collection, grant: event::Grant, out: &mut VecDeque<Output>) {
        let vssd = self.identity.vssd;
        if grant == event::Grant::Unanswered {
            let asked = self.config.gc.retries;
            out.push_back(Output::Event(event::Kind::SwitchSilent { vssd, asked }));
        }
        if !self.held.buffered.is_collecting() {
            out.push_back(Output::Event(event::Kind::CollectionBegun {
                vssd,
                collection,
                grant,
            }));
        }
    }

    fn flash_event(&mut self, now: Instant, event: &flash::Event, out: &mut VecDeque<Output>) {
        match event {
            flash::Event::GcDone => {
                let ended = self.held.buffered.end_gc(now, self.identity.vssd);
                out.extend(ended.map(Output::Event));
                self.away = None;
                self.agent.finished(now);
            }
            flash::Event::GcForced => self.agent.forced(now),
            flash::Event::Borrow => self.agent.exchange(Report::Borrow),
            flash::Event::Return => self.agent.exchange(Report::Return),
            flash::Event::Checked { damaged } => {
                self.scrubbing.answered();
                let part = event::Metadata::Checkpoint;
                let damaged = damaged.map(|offset| event::Kind::MetadataDamaged { part, offset });
                out.extend(damaged.map(Output::Event));
            }
            flash::Event::Media(_) | flash::Event::Done { .. } => unreachable!("the buffer keeps these"),
        }
    }

    fn read_done(
        &mut self,
        now: Instant,
        slot: u32,
        data: Result<Cached, VssdError>,
        out: &mut VecDeque<Output>,
    ) {
        let reading = self.readings.remove(slot);
        match reading {
            Reading::Fetch { lpn, why, version } => {
                let newest = self.held.newest(lpn);
                if newest != version {
                    // Written meanwhile.
                    return self.fetch(now, lpn, why);
                }
                // What the flash has may be older than what was lost.
                let data = data.ok().filter(|data| data.version == newest).ok_or(newest);
                self.replica.fetched(now, lpn, why, data, &mut self.held);
            }
            Reading::Client {
                packet,
                version,
                arrived,
                issued,
                predicted_ns,
            } => {
                self.reads_in_flight -= 1;
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
                        self.copies.note(now, arrived, &header);
                        self.answer_read(&header, data.page, data.crc, out);
                    }
                    Err(_) => self.read_failed(now, &header, out),
                }
            }
            Reading::Scrub { lpn, version } => {
                self.scrubbing.read_ended();
                if data.is_err() && self.held.newest(lpn) == version {
                    self.note_damage(now, lpn, event::Look::Scrub, out);
                }
            }
        }
    }

    /// The page is damaged here: fetch it from a peer, and let the client ask there.
    #[cold]
    fn read_failed(&mut self, now: Instant, header: &Header, out: &mut VecDeque<Output>) {
        self.note_damage(now, lpn_of(header), event::Look::Read, out);
        self.answer(header, Code::Damaged, out);
    }

    #[cold]
    fn note_damage(&mut self, now: Instant, lpn: Lpn, found: event::Look, out: &mut VecDeque<Output>) {
        if self.held.note_damage(lpn) {
            self.stats.damaged += 1;
            let (vssd, page) = (self.identity.vssd, lpn.0);
            out.push_back(Output::Event(event::Kind::PageDamaged { vssd, page, found }));
        }
        if self.held.is_damaged(lpn) && !self.identity.config.membership.peers.is_empty() {
            self.scrubbing.repairs.found(now, lpn, found);
            self.replica.pull_from_all(lpn);
        }
    }

    fn drain_replica(&mut self, now: Instant, out: &mut VecDeque<Output>) -> bool {
        let mut progress = false;
        if !self.replica.is_serving() {
            self.replica.catch_up_step(&self.held);
        }
        self.drain_leases(now, out);
        while let Some(effect) = self.replica.poll() {
            progress = true;
            match effect {
                Effect::Send(mut packet) => {
                    if packet.header.op == Op::Hello {
                        packet.header.version = part::marked(self.identity.config.mark(), 0);
                    }
                    self.send(packet, out);
                }
                Effect::Complete { header, code, since } => {
                    self.stats.writes += 1;
                    self.copies.note(now, since, &header);
                    self.dedup
                        .finish(header.source, header.session, header.request, code);
                    self.answer(&header, code, out);
                }
                Effect::Resume(packet) if packet.header.op == Op::Read => self.read(now, packet, now, out),
                Effect::Resume(packet) => self.start_write(now, packet, out),
                Effect::Persist(what) => self.persist(what),
                Effect::Fetch(lpn, why) => self.fetch(now, lpn, why),
                Effect::Event(kind) => out.push_back(Output::Event(kind)),
            }
        }
        progress
    }

    #[cold]
    fn fetch(&mut self, now: Instant, lpn: Lpn, why: Fetch) {
        if let Some(cached) = self.held.buffered.cache().get(lpn) {
            let cached = cached.clone();
            return self.replica.fetched(now, lpn, why, Ok(cached), &mut self.held);
        }
        // A joining peer asks again for what it has not got yet: a slow medium is asked once.
        let is_same = |reading: &Reading| matches!(reading, Reading::Fetch { lpn: of, why: by, .. } if (*of, *by) == (lpn, why));
        if self.readings.iter().any(|(_, reading)| is_same(reading)) {
            return;
        }
        let version = self.held.newest(lpn);
        let slot = self.readings.insert(Reading::Fetch { lpn, why, version });
        self.held.buffered.read(now, u64::from(slot), lpn);
    }

    /// Takes requests that waited for room, in order, while there is some.
    fn drain_backlog(&mut self, now: Instant, out: &mut VecDeque<Output>) -> bool {
        let mut progress = false;
        while let Some(packet) = self.backlog.front() {
            if !self.is_latched() && !self.held.has_room(lpn_of(&packet.header)) {
                break;
            }
            let (peer, packet) = self.backlog.pop().expect("there is a front");
            progress = true;
            match peer {
                Some(peer) => self.peer_packet(now, peer, packet, out),
                None if self.is_latched() => {
                    let header = packet.header;
                    self.dedup.forget(header.source, header.session, header.request);
                    self.answer(&header, Code::Latched, out);
                }
                None => self.start_write(now, packet, out),
            }
        }
        progress
    }

    /// Sends a packet; the node knows by which ToR.
    fn send(&self, packet: Packet, out: &mut VecDeque<Output>) {
        self.send_by(Addr::NONE, packet, out);
    }

    fn send_by(&self, to: Addr, mut packet: Packet, out: &mut VecDeque<Output>) {
        packet.header.source = self.identity.addr;
        out.push_back(Output::Send { to, packet });
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
        self.held.newest(lpn)
    }

    /// The checksum of the page's newest data, 0 for zeros, for probes; none if they are damaged.
    pub fn crc(&self, lpn: Lpn) -> Option<u32> {
        self.held.content(lpn).map(|content| content.crc)
    }
}

/// The vSSD knows of other servers: its replicas', and who decides about collection. [`servers`] has what its node asks and tells.
impl Unit {
    /// Asks whether it may collect, or tells that it does or does not. Before a soft collection it asks one ToR alone.
    #[cold]
    fn speak_of_collection(&mut self, now: Instant, code: Code, out: &mut VecDeque<Output>) {
        self.gc_asked += 1;
        let header = Header {
            code,
            request: self.gc_asked,
            session: self.identity.boot,
            target: self.arbiter().unwrap_or(Addr::NONE),
            ..Header::new(Op::GcOp, self.identity.vssd)
        };
        if !header.target.is_none() {
            return self.send(Packet::bare(header), out);
        }
        let asked = self.promise.asks(now);
        for (nth, &tor) in self.identity.tors.iter().enumerate() {
            if code != Code::SoftOrOk || asked == Some(nth) {
                self.send_by(tor, Packet::bare(header), out);
            }
        }
    }

    /// Decider of collection instead of the ToR.
    fn arbiter(&self) -> Option<Addr> {
        let decides = self.config.gc.coordination == Coordination::Controller;
        self.identity.controller.filter(|_| decides)
    }

    fn wants_gc_check(&self) -> bool {
        self.was_written_since_gc()
            && !self.is_stopping()
            && self.flash().free_ratio() < self.config.gc.background_ratio
    }

    /// True if a client may be answered what is here.
    fn may_read(&self, now: Instant) -> bool {
        self.replica.is_serving() && self.leases.are_held(now)
    }

    fn drain_leases(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        if core::mem::replace(&mut self.serves, self.replica.is_serving()) != self.serves && self.serves {
            self.leases.serve(now);
        }
        while let Some(packet) = self.leases.poll() {
            self.send(packet, out);
        }
    }

    /// True if another gateway has the vSSD.
    pub fn is_superseded(&self, header: &Header) -> bool {
        !self.dedup.is_current(header.source, header.session)
    }

    /// The facts that the superblock is to have of it.
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.identity.config
    }
}

/// As a member of a channel group; [`grouped`] has what its node asks.
impl Unit {
    /// True if something was written since its last collection began.
    pub(super) fn was_written_since_gc(&self) -> bool {
        self.held.buffered.was_written_since_gc()
    }

    /// True from [`drain`](Unit::drain) on.
    pub(super) fn is_stopping(&self) -> bool {
        self.held.buffered.is_stopping()
    }

    /// True if its share of the channels allows one more page; what has gathered since is counted.
    fn share_allows(&mut self, now: Instant) -> bool {
        self.share.as_mut().is_none_or(|share| share.has_token(now))
    }

    /// A page was asked of the channels.
    fn take_share(&mut self) {
        if let Some(share) = self.share.as_mut() {
            share.take();
        }
    }

    /// When its share allows a page that waits for it.
    fn share_deadline(&self) -> Option<Instant> {
        let share = self.share.as_ref()?;
        let waits = !self.scheduler.is_empty() && self.has_place();
        (waits && share.is_empty()).then(|| share.ready_at())
    }
}
