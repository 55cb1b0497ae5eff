//! The unanswered work of a gateway: operations of one page or one replica, and control work. Operations are numbered,
//! bounded, and sent again until they are answered ([`set`](super::set)). This file does not know the requests behind
//! them.

use super::control::{Control, Owner};
use super::locks::Locks;
use super::losses::Losses;
use super::operations::{Kind, Operation, Operations, names_slot, slot_of};
use super::readers::Reads;
use super::refusal::{EXPELLED_WITHIN, GIVEN_UP_PAUSE, GO_WITH_ANSWER, LATCHED_PAUSE_MIN, Refusals};
use super::requests::Request;
use super::set::{READS_MAX, Set, sooner};
use super::shape::{Shaper, Shaping};
use super::slowness::{self, Slowness};
use super::tors::Tors;
use crate::Output;
use base::event;
use base::{
    Addr, BlockError, BlockOp, Duration, Instant, Map, NodeId, Slab, VolumeId, VssdId, limits, time::earliest,
};
use core::ops::Range;
use hdrhistogram::Histogram;
use rack::control::Intent;
use rack::part::{Part, marked};
use rack::registry::VolumeRecord;
use rack::slow::{self, Verdict};
use rack::uplink::{Act, Uplink};
use smallvec::SmallVec;
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, Packet, flags};

/// A write is asked about so often before its page is sent again.
const ASKED_MAX: u8 = 2;
/// The gateway looks through its unanswered work at most this often.
pub(super) const SCAN_EVERY: Duration = Duration::from_millis(2);

/// What a request waits for an answer, if nothing else is configured: longer than the healing takes
/// ([`rack::heal::Rules::writes_wait`]).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How a gateway is set up.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The gateway's own address, for answers.
    pub addr: Addr,
    /// The ToRs, the preferred one first ([`rack::uplink`]).
    pub tors: Vec<Addr>,
    /// Larger after each start of this gateway.
    pub session: u32,
    /// The nodes.
    pub nodes: Vec<(NodeId, Addr)>,
    /// A request that is unanswered this long fails with an I/O error.
    pub request_timeout: Duration,
    /// Hold flows to what a central controller allocates.
    pub shaping: Option<Shaping>,
    /// Which replica pages are read from.
    pub reads: Reads,
    /// When a node counts as slow.
    pub slow: slow::Rules,
    /// Other gateways may serve the same volumes: while this one is cut off, clients are sent there.
    pub shared: bool,
}

/// Counters of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayStats {
    /// Client requests answered.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Answers that came from the redirected-to replica.
    pub redirected: u64,
    /// Parts of pages that went out together with others.
    pub merged: u64,
    /// Payloads that did not match their checksum; they were dropped.
    pub corrupt_packets: u64,
}

/// An open volume.
#[derive(Debug)]
pub(super) struct Volume {
    pub record: VolumeRecord,
    /// In which this gateway has it.
    pub session: u32,
    pub sets: Vec<Set>,
    pub locks: Locks,
    pub losses: Losses,
    pub latency: [Histogram<u64>; 3],
    pub closing: bool,
}

impl Volume {
    /// Times that these sets have lost acknowledged data.
    pub fn losses_of(&self, sets: &Range<usize>) -> u64 {
        self.sets[sets.clone()].iter().map(|set| set.losses).sum()
    }

    /// True if a request that ends well has to fail. A set has lost its memory while a mutation was under way, and pages of the mutation may
    /// be lost. Or a flush has to tell its client of a loss.
    pub fn has_lost(&mut self, request: &Request) -> bool {
        match (request.op, request.before) {
            (BlockOp::Flush, Some(acked)) => self.losses.tell(request.client, acked, request.shown),
            (_, Some(losses)) => self.losses_of(&request.sets) != losses,
            (_, None) => false,
        }
    }
}

/// How an operation ended.
pub(super) enum End {
    /// With an answer, or an error.
    Answered(Option<BlockError>),
    /// Refused in each sending, and the ground of its parts may be gone: every replica may have lost its memory. Their
    /// page is read and merged again.
    Stale,
}

/// Operations and control work in flight, and the sets that they are for.
pub(super) struct Flight {
    pub config: GatewayConfig,
    pub uplink: Uplink,
    pub control: Control,
    /// A volume stays while operations name it.
    pub volumes: Slab<Volume>,
    /// Volume and set of each primary vSSD.
    pub primaries: Map<u32, (u32, usize)>,
    pub operations: Operations,
    pub shaper: Option<Shaper>,
    pub slowness: Slowness,
    pub tors: Tors,
    pub scan_at: Option<Instant>,
    pub out: VecDeque<Output>,
    pub stats: GatewayStats,
}

impl Flight {
    pub fn new(config: GatewayConfig) -> Self {
        let mut control = Control::new(config.nodes.iter().copied());
        control.session = config.session;
        Self {
            control,
            shaper: config.shaping.map(Shaper::new),
            uplink: Uplink::new(config.addr, &config.tors),
            slowness: Slowness::new(config.slow),
            tors: Tors::new(&config.tors),
            config,
            volumes: Slab::new(),
            primaries: Map::new(),
            operations: Operations::default(),
            scan_at: None,
            out: VecDeque::new(),
            stats: GatewayStats::default(),
        }
    }

    pub fn find(&self, id: VolumeId) -> Option<u32> {
        let mut volumes = self.volumes.iter();
        let found = volumes.find(|(_, volume)| volume.record.id == id.0);
        found.map(|(index, _)| index)
    }

    pub fn set(&mut self, volume: u32, set: usize) -> &mut Set {
        &mut self.volumes[volume].sets[set]
    }

    pub fn deadline(&self) -> Option<Instant> {
        let shaper = self.shaper.as_ref().and_then(Shaper::deadline);
        let own = earliest(earliest(self.scan_at, self.control.deadline()), shaper);
        earliest(own, self.uplink.deadline())
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        Some(match self.uplink.poll()? {
            Act::Tell(kind) => Output::Event(kind),
            Act::Ask(to, mut header) => {
                header.session = self.config.session;
                let packet = Packet::bare(header);
                Output::Send { to, packet }
            }
        })
    }

    pub fn tell(&mut self, kind: event::Kind) {
        self.out.push_back(Output::Event(kind));
    }

    /// Sends a packet of this gateway's session, which was sent so many times before.
    pub fn post(&mut self, now: Instant, mut packet: Packet, attempts: u32) {
        packet.header.session = self.config.session;
        self.post_as(now, packet, attempts);
    }

    /// Sends a packet of whichever session.
    fn post_as(&mut self, now: Instant, mut packet: Packet, attempts: u32) {
        packet.header.source = self.config.addr;
        let to = self.uplink.send_again(now, attempts, &mut packet.header);
        self.out.push_back(Output::Send { to, packet });
    }

    #[cold]
    pub fn send_control(&mut self, now: Instant) {
        for (packet, attempts) in self.control.due(now) {
            self.post_as(now, packet, attempts);
        }
    }

    /// Asks the ToRs for their programs, if it is time.
    #[cold]
    pub fn ask_tors(&mut self, now: Instant) {
        let (source, session) = (self.config.addr, self.config.session);
        for (to, header) in self.tors.due(now, self.control.level) {
            let mut header = Header {
                source,
                session,
                ..header
            };
            self.uplink.send_by(now, to, &mut header);
            let packet = Packet::bare(header);
            self.out.push_back(Output::Send { to, packet });
        }
    }

    /// Adds an operation and sends it if its set has a place in flight.
    pub fn start(&mut self, now: Instant, volume: u32, set: usize, lpn: u32, kind: Kind) {
        let copy = match &kind {
            Kind::Flush { replica, .. } => *replica,
            _ => 0,
        };
        let vssd = self.set(volume, set).copies().nth(copy);
        let vssd = vssd.expect("a set has copies");
        // What is to be changed is read where changes are ordered: elsewhere one under way might not be seen.
        let pinned = matches!(kind, Kind::ReadForMerge { .. });
        let operation = Operation {
            volume,
            set,
            lpn,
            kind,
            number: 0,
            vssd,
            reader: None,
            pinned,
            damaged: 0,
            attempts: 0,
            asked: 0,
            epoch: 0,
            numbered_in: 0,
            refusals: Refusals::default(),
            sent_at: now,
            again_at: now,
        };
        let slot = self.operations.insert(operation);
        if self.is_admitted(now, slot) {
            self.launch(now, slot);
        }
    }

    /// Numbers and sends an operation, or queues it.
    fn launch(&mut self, now: Instant, slot: u32) {
        let slot_number = self.operations.number(slot);
        let operation = &mut self.operations[slot];
        let set = &mut self.volumes[operation.volume].sets[operation.set];
        let number = match operation.kind {
            Kind::Flush { .. } => Some(slot_number),
            Kind::ReadForMerge { .. } | Kind::Mutate { .. } if !set.takes_mutations() => None,
            Kind::Read { .. } | Kind::ReadForMerge { .. } => (set.reads_in_flight < READS_MAX).then(|| {
                set.reads_in_flight += 1;
                slot_number
            }),
            Kind::Mutate { .. } => set.number_mutation(slot),
        };
        match number {
            Some(number) => {
                if matches!(operation.kind, Kind::Read { .. }) {
                    // Nobody leads it to one that is avoided.
                    (operation.vssd, operation.pinned) =
                        set.readers.choose(now, self.config.reads, &self.slowness.slow);
                    operation.reader = Some(operation.vssd);
                }
                let epoch = match operation.kind {
                    Kind::Mutate { base_epoch, .. } => base_epoch.unwrap_or(set.epoch),
                    _ => set.epoch,
                };
                (operation.number, operation.numbered_in) = (number, epoch);
                operation.epoch = epoch;
                self.send(now, slot);
            }
            None => set.line(&operation.kind).push(slot, operation.kind.is_bulk()),
        }
    }

    /// Sends an operation, with its page if it writes one.
    fn send(&mut self, now: Instant, slot: u32) {
        self.send_as(now, slot, false);
    }

    /// Sends an operation; with `asks` a write goes without its page.
    fn send_as(&mut self, now: Instant, slot: u32, asks: bool) {
        let operation = &mut self.operations[slot];
        let volume = &self.volumes[operation.volume];
        let set = &volume.sets[operation.set];
        let mut header = Header {
            session: volume.session,
            request: operation.number,
            lba: u64::from(operation.lpn) * limits::SECTORS_PER_PAGE as u64,
            epoch: operation.epoch,
            version: marked(set.mark, 0),
            ..Header::new(Op::Read, operation.vssd)
        };
        let packet = match &operation.kind {
            Kind::Read { .. } | Kind::ReadForMerge { .. } => {
                header.flags |= if operation.pinned { flags::PINNED } else { 0 };
                Packet::bare(header)
            }
            Kind::Flush { .. } => Packet::bare(Header {
                op: Op::Flush,
                ..header
            }),
            Kind::Mutate {
                data, crc, durable, ..
            } => {
                header.op = if data.is_some() { Op::Write } else { Op::Zero };
                header.floor = set.floor(operation.number);
                // The answer returns it, and so tells which sending it answers.
                header.version = marked(set.mark, operation.epoch);
                header.flags |= if *durable { flags::DURABLE } else { 0 };
                match data {
                    Some(_) if asks => Packet::bare(Header {
                        op: Op::Ask,
                        ..header
                    }),
                    Some(page) => Packet::with_page(header, Some(page.clone()), *crc),
                    None => Packet::bare(header),
                }
            }
        };
        operation.sent_at = now;
        // One that was refused was not lost.
        let unanswered = operation.attempts.saturating_sub(operation.refusals.count);
        operation.again_at = now + set.wait(&operation.kind, unanswered);
        operation.refusals.pauses = false;
        let attempts = operation.attempts + u32::from(set.detours(now));
        operation.attempts += 1;
        operation.asked = if asks { operation.asked + 1 } else { 0 };
        sooner(&mut self.scan_at, operation.again_at);
        self.post_as(now, packet, attempts);
    }

    /// The operation that an answer is for. An answer to an earlier session may carry a number that is in use again.
    pub fn answered_slot(&self, header: &Header) -> Option<u32> {
        let slot = if names_slot(header.request) {
            slot_of(header.request)
        } else {
            // A mutation: its number is its set's, and the vSSD tells the set.
            let &(volume, set) = self.primaries.get(&header.vssd.0)?;
            self.volumes.get(volume)?.sets[set].mutation(header.request)?
        };
        let operation = self.operations.get(slot)?;
        let session = self.volumes.get(operation.volume)?.session;
        ((operation.number, session) == (header.request, header.session)).then_some(slot)
    }

    /// Takes an answer; returns the operation if that is its end.
    pub fn answered(&mut self, now: Instant, slot: u32, header: &Header) -> Option<(Operation, End)> {
        let operation = &mut self.operations[slot];
        let set = &mut self.volumes[operation.volume].sets[operation.set];
        set.readers.heard(header.vssd);
        if operation.attempts > 1 {
            // What is sent next, perhaps for this very operation, goes the way that works.
            set.answered_again(now, self.uplink.is_detour(header));
        }
        // Only an answer to the last sending counts: a copy sent in a newer epoch than the one that was answered could
        // still be executed, after a later write of the same page, by a server that has forgotten it.
        let mutates = matches!(operation.kind, Kind::Mutate { .. });
        if mutates && header.version != marked(set.mark, operation.epoch) {
            return None;
        }
        match header.code {
            Code::Stale => {
                (operation.epoch, set.epoch) = (header.epoch, header.epoch);
                let has_base =
                    |kind: &Kind| matches!(kind, Kind::Mutate { base_epoch, .. } if base_epoch.is_some());
                if has_base(&operation.kind) {
                    return Some((self.end(now, slot), End::Stale));
                }
                self.send(now, slot);
                return None;
            }
            Code::Absent => {
                self.send(now, slot);
                return None;
            }
            // Of a medium from elsewhere the healing hears by the node's status, and the switch by this very answer.
            Code::Busy | Code::NoVssd | Code::OtherSet | Code::Past => {
                self.open_past(now, slot, header);
                self.refused(now, slot);
                return None;
            }
            Code::Latched if self.awaits_expulsion(now, slot) => return None,
            Code::Damaged if self.try_elsewhere(now, slot, header.vssd) => return None,
            Code::Elsewhere => {
                self.follow(now, slot, header);
                return None;
            }
            _ => {}
        }
        let operation = &self.operations[slot];
        if operation.attempts == 1 {
            let set = &mut self.volumes[operation.volume].sets[operation.set];
            let took = now.since(operation.sent_at);
            if let Some(times) = set.times(&operation.kind) {
                times.observe(took);
            }
            if operation.reader.is_some() {
                let node = self.control.node_at(header.source);
                set.readers.answered(header.vssd, node, took);
                self.note_read(now, node, took);
            }
        }
        self.stats.redirected += u64::from(header.has(flags::REDIRECTED));
        let error = match header.code {
            Code::SoftOrOk => None,
            Code::OutOfRange => Some(BlockError::Invalid),
            Code::NoSpace => Some(BlockError::NoSpace),
            _ => Some(BlockError::Io),
        };
        let ended = self.end(now, slot);
        if error.is_none() {
            self.go_on(now, &ended, header.vssd);
        }
        Some((ended, End::Answered(error)))
    }

    /// A node has taken so long with a read.
    fn note_read(&mut self, now: Instant, node: Option<NodeId>, took: Duration) {
        if let Some(verdict) = node.and_then(|node| self.slowness.read(now, node, took)) {
            self.tell_slow(&verdict);
        }
    }

    /// A node is slow, or well again.
    #[cold]
    pub fn tell_slow(&mut self, verdict: &Verdict) {
        let mut nodes = self.control.nodes.iter_mut();
        if let Some(known) = nodes.find(|known| known.node == verdict.node) {
            known.slow = verdict.slow;
        }
        self.tell(slowness::event_of(verdict));
    }

    /// A primary answered the opening of its vSSD: what waited for that may go out.
    #[cold]
    pub fn fenced(&mut self, now: Instant, header: &Header) {
        let place = self.primaries.get(&header.vssd.0).copied();
        // Without a medium the node cannot keep who has the vSSD.
        let is_kept = header.op == Op::Open && header.code != Code::Latched;
        if let Some((volume, set)) = place.filter(|_| is_kept)
            && !core::mem::replace(&mut self.set(volume, set).fenced, true)
        {
            self.launch_waiting(now, volume, set);
        }
    }

    /// Operations that waited for the set may go out.
    pub fn launch_waiting(&mut self, now: Instant, volume: u32, set: usize) {
        let set = self.set(volume, set);
        let lines = [&mut set.waiting_reads, &mut set.waiting_mutations];
        for mut line in lines.map(core::mem::take) {
            while let Some(slot) = line.pop() {
                self.launch(now, slot);
            }
        }
    }

    /// Opens a member that has answered as an image of the past. It refuses that as well. So the volume tells of it, and the gateway asks
    /// the node again after its next start.
    #[cold]
    fn open_past(&mut self, now: Instant, slot: u32, answer: &Header) {
        if answer.code != Code::Past {
            return;
        }
        let (operation, vssd) = (&self.operations[slot], answer.vssd);
        let (volume, number) = (operation.volume, operation.set);
        let record = &self.volumes[volume].record;
        let (owner, set) = (Owner::Volume(record.volume()), &record.sets[number]);
        let member = set.vssds().find(|(member, _)| *member == vssd);
        if let Some(member) = member.filter(|_| !self.control.was_asked(owner, vssd)) {
            let part = Part::of(record, number, set, vssd);
            self.control.open(now, owner, set, member, Intent::Serve, part);
        }
    }

    /// An operation is overdue. A read is asked of the next replica: this one may be gone.
    fn send_overdue(&mut self, now: Instant, slot: u32) {
        let operation = &mut self.operations[slot];
        let set = &mut self.volumes[operation.volume].sets[operation.set];
        if let Some(times) = set.times(&operation.kind) {
            times.missed(now, operation.attempts);
        }
        if operation.reader.is_some() {
            let waited = now.since(operation.sent_at);
            let node = set.readers.missed(now, operation.vssd, waited);
            self.note_read(now, node, waited);
        }
        if !self.turn_to_next(now, slot) {
            self.send_or_ask(now, slot);
        }
    }

    /// Sends an operation again, or asks about it: most overdue writes wait at their node. A node of an earlier version does not know the
    /// question.
    fn send_or_ask(&mut self, now: Instant, slot: u32) {
        let asks = self.operations[slot].asked < ASKED_MAX;
        self.send_as(now, slot, asks);
    }

    /// A damaged page is read from each other replica before it is given up.
    #[cold]
    fn try_elsewhere(&mut self, now: Instant, slot: u32, by: VssdId) -> bool {
        let operation = &mut self.operations[slot];
        if !operation.kind.is_read() {
            return false;
        }
        if operation.damaged > 0 && by != operation.vssd {
            // It was asked more than once before: only the one that is asked now says something new.
            return true;
        }
        operation.damaged += 1;
        operation.pinned = true;
        let (replicas, damaged) = (
            &self.volumes[operation.volume].sets[operation.set].replicas,
            usize::from(operation.damaged),
        );
        // Twice around: the damaged replica repairs itself from the others meanwhile.
        if damaged >= 2 * replicas.len() {
            return false;
        }
        operation.vssd = replicas[damaged % replicas.len()];
        self.send(now, slot);
        true
    }

    /// A server that collects has named a replica: the page is read there. An operation whose answer names none is sent again in its time.
    fn follow(&mut self, now: Instant, slot: u32, header: &Header) {
        let operation = &mut self.operations[slot];
        let replica = u32::try_from(header.lba).ok().filter(|&vssd| vssd != 0);
        let Some(named) = replica.map(VssdId).filter(|_| operation.kind.is_read()) else {
            return;
        };
        // One that is just joining the set is not asked: who named it answers then.
        if self.volumes[operation.volume].sets[operation.set]
            .replicas
            .contains(&named)
        {
            operation.vssd = named;
        }
        operation.pinned = true;
        self.stats.redirected += 1;
        self.send(now, slot);
    }

    /// Takes an operation out of flight and lets the next one in.
    fn end(&mut self, now: Instant, slot: u32) -> Operation {
        let operation = self.operations.remove(slot);
        let set = self.set(operation.volume, operation.set);
        let next = match operation.kind {
            Kind::Flush { .. } => None,
            Kind::Mutate { .. } => {
                set.end_mutation(operation.number);
                set.waiting_mutations.pop()
            }
            _ => {
                set.end_read(operation.reader);
                set.waiting_reads.pop()
            }
        };
        if let Some(next) = next {
            self.launch(now, next);
        }
        operation
    }

    /// A replica does not serve: another one is asked, or this one later.
    fn refused(&mut self, now: Instant, slot: u32) {
        let operation = &mut self.operations[slot];
        if operation.refusals.pauses {
            // It answers an earlier sending.
            return;
        }
        operation.refusals.count += 1;
        let replicas = &self.volumes[operation.volume].sets[operation.set].replicas;
        let first_time_around = (operation.refusals.count as usize) < replicas.len();
        if !first_time_around || !self.turn_to_heard(now, slot) {
            self.pause(now, slot, Duration::ZERO);
        }
    }

    /// Lets an operation wait after a refusal.
    fn pause(&mut self, now: Instant, slot: u32, least: Duration) {
        let operation = &mut self.operations[slot];
        let pause = match operation.is_given_up() {
            true => GIVEN_UP_PAUSE,
            false => operation.refusals.pause().max(least),
        };
        operation.refusals.pauses = true;
        operation.again_at = now + pause;
        sooner(&mut self.scan_at, operation.again_at);
        let set = &mut self.volumes[operation.volume].sets[operation.set];
        set.refused.insert(&operation.kind);
    }

    /// The pause of an operation is over.
    fn end_pause(&mut self, now: Instant, slot: u32) {
        if !self.turn_to_heard(now, slot) {
            self.send_or_ask(now, slot);
        }
    }

    /// A read is sent to the next replica that is not silent. False if there is none.
    fn turn_to_heard(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &self.operations[slot];
        let set = &self.volumes[operation.volume].sets[operation.set];
        self.turn(now, slot, set.next_heard(now, operation.vssd))
    }

    /// A read is sent to the next replica. False if there is none.
    fn turn_to_next(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &self.operations[slot];
        let set = &self.volumes[operation.volume].sets[operation.set];
        self.turn(now, slot, set.next_of(operation.vssd))
    }

    fn turn(&mut self, now: Instant, slot: u32, next: VssdId) -> bool {
        let operation = &mut self.operations[slot];
        if !operation.turns() || next == operation.vssd {
            return false;
        }
        operation.pinned = true;
        operation.vssd = next;
        self.send(now, slot);
        true
    }

    /// A replica has answered an operation that has ended: it may answer others that were refused.
    fn go_on(&mut self, now: Instant, ended: &Operation, vssd: VssdId) {
        let set = &mut self.volumes[ended.volume].sets[ended.set];
        if !set.refused.contains(&ended.kind) || !set.replicas.contains(&vssd) {
            return;
        }
        let mut going: SmallVec<[u32; GO_WITH_ANSWER]> = SmallVec::new();
        let mut others = self
            .operations
            .iter()
            .filter(|(_, other)| other.is_refused_with(ended));
        let mut is_last = true;
        while let Some((slot, other)) = others.next().filter(|_| going.len() < GO_WITH_ANSWER) {
            is_last = false;
            if other.goes_to(vssd) {
                going.push(slot);
            }
        }
        drop(others);
        if is_last {
            set.refused.remove(&ended.kind);
        }
        for slot in going {
            self.operations[slot].vssd = vssd;
            self.send(now, slot);
        }
    }

    /// True while the replica whose medium has failed may be expelled: the primary is asked again.
    ///
    /// It answers what a number has ended with once for ever. So a mutation that failed with members of before is done with those
    /// of now under another number. Its page is locked all the while: no other change comes between.
    #[cold]
    fn awaits_expulsion(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &mut self.operations[slot];
        let since = *operation.refusals.latched.get_or_insert(now);
        let (volume, number) = (operation.volume, operation.set);
        let set = &mut self.volumes[volume].sets[number];
        if matches!(operation.kind, Kind::Mutate { .. }) && operation.epoch != operation.numbered_in {
            set.end_mutation(core::mem::take(&mut operation.number));
            (operation.attempts, operation.refusals) = (0, Refusals::default());
            set.waiting_mutations.push(slot, operation.kind.is_bulk());
            self.launch_waiting(now, volume, number);
            return true;
        }
        if set.is_lone() || now.since(since) >= EXPELLED_WITHIN {
            return false;
        }
        if !operation.refusals.pauses {
            operation.refusals.count += 1;
            self.pause(now, slot, LATCHED_PAUSE_MIN);
        }
        true
    }

    /// Takes out an operation, in flight or waiting.
    #[cold]
    pub fn abandon(&mut self, now: Instant, slot: u32) {
        let operation = &self.operations[slot];
        if operation.number != 0 {
            self.end(now, slot);
            return;
        }
        let set = &mut self.volumes[operation.volume].sets[operation.set];
        set.line(&operation.kind).remove(slot);
        self.forget(slot);
    }

    fn forget(&mut self, slot: u32) {
        if let Some(shaper) = &mut self.shaper {
            shaper.forget(slot);
        }
        self.operations.remove(slot);
    }

    /// Takes out a volume of which nothing is asked any more. Its last operations were given up, and nobody needs their
    /// answers.
    #[cold]
    pub fn drop_volume(&mut self, volume: u32) {
        for slot in 0..self.operations.bound() {
            let left = self.operations.get(slot);
            if left.is_some_and(|operation| operation.volume == volume) {
                self.forget(slot);
            }
        }
        for set in self.volumes.remove(volume).sets {
            self.primaries.remove(&set.replicas[0].0);
        }
    }

    /// Sends again what is unanswered; returns when the next operation is due.
    pub fn send_again(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for slot in 0..self.operations.bound() {
            let sent = |operation: &&mut Operation| operation.number != 0;
            let Some(operation) = self.operations.get_mut(slot).filter(sent) else {
                continue;
            };
            if now >= operation.again_at {
                let pauses = operation.refusals.pauses;
                self.stats.retransmissions += 1;
                match pauses {
                    true => self.end_pause(now, slot),
                    false => self.send_overdue(now, slot),
                }
            }
            sooner(&mut next, self.operations[slot].again_at);
        }
        next
    }

    /// Other vSSDs are a set's replicas: what is under way to those that are `gone` goes to others, and to the next
    /// primary if it was for the last one.
    pub fn replace(&mut self, now: Instant, volume: u32, number: usize, gone: &[VssdId], new: Vec<VssdId>) {
        let set = self.set(volume, number);
        set.joined = None;
        set.has_changed = true;
        let old = core::mem::replace(&mut set.replicas, new.clone());
        set.readers.replace(&new);
        let place = |vssd: VssdId| {
            // After an undone change it was none of them, and any will do.
            let place = old.iter().position(|&known| known == vssd).unwrap_or(0);
            place.min(new.len() - 1)
        };
        self.primaries.remove(&old[0].0);
        self.primaries.insert(new[0].0, (volume, number));
        for slot in 0..self.operations.bound() {
            let Some(operation) = self.operations.get_mut(slot) else {
                continue;
            };
            let is_here = (operation.volume, operation.set) == (volume, number);
            if !is_here || !gone.contains(&operation.vssd) {
                continue;
            }
            operation.vssd = new[place(operation.vssd)];
            (operation.attempts, operation.refusals) = (0, Refusals::default());
            operation.again_at = now;
            sooner(&mut self.scan_at, now);
            let sent = core::mem::take(&mut operation.number);
            if sent == 0 {
                continue;
            }
            // Numbered anew: an answer of the one that is gone is not taken for one of its successor.
            let set = &mut self.volumes[volume].sets[number];
            match operation.kind {
                Kind::Mutate { .. } => {
                    set.end_mutation(sent);
                    set.waiting_mutations.push(slot, operation.kind.is_bulk());
                }
                Kind::ReadForMerge { .. } | Kind::Read { .. } => {
                    set.end_read(operation.reader.take());
                    set.waiting_reads.push(slot, operation.kind.is_bulk());
                    self.operations.renumber(slot);
                }
                Kind::Flush { .. } => {
                    self.operations.renumber(slot);
                    self.launch(now, slot);
                }
            }
        }
        self.launch_waiting(now, volume, number);
    }

    /// Notes that acknowledged writes of a set are lost, if they are.
    pub fn note_loss(&mut self, now: Instant, volume: u32, set: usize, is_lost: bool) {
        if is_lost {
            self.volumes[volume].losses.note(now);
            let vssd = self.set(volume, set).replicas[0];
            let volume = self.volumes[volume].record.volume();
            self.tell(event::Kind::WritesLost { volume, vssd });
        }
    }

    /// True if an operation may go at once; else it waits for the tokens of its flow. Flushes are not shaped.
    fn is_admitted(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &self.operations[slot];
        let (Some(shaper), false) = (&mut self.shaper, matches!(operation.kind, Kind::Flush { .. })) else {
            return true;
        };
        let set = &self.volumes[operation.volume].sets[operation.set];
        let mutates = matches!(operation.kind, Kind::Mutate { .. });
        shaper.admits(now, slot, &set.replicas, mutates)
    }

    /// Sends the operations that have their tokens, and reports to the controller when it is time.
    pub fn shape(&mut self, now: Instant) {
        let Some(shaper) = &mut self.shaper else { return };
        let released = shaper.release(now);
        for packet in shaper.reports(now) {
            self.post(now, packet, 0);
        }
        for slot in released {
            self.launch(now, slot);
        }
    }
}
