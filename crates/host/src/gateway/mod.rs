//! Where clients enter: volumes over replica sets.
//!
//! A request is split into operations of one page. Reads go out at once. Mutations of a page go out one at a time. While
//! one is in flight, others to the same page wait and then go out merged ([`merge`]). Parts of a page are laid over its
//! content. Everything in flight is numbered, bounded and sent again until it is answered ([`set`]).
//!
//! One gateway serves a volume at a time: the order of mutations of a page is its own ([`lead`]).

mod change;
mod control;
mod growth;
mod lead;
mod locks;
pub(crate) mod merge;
mod operations;
mod overdue;
mod requests;
mod set;
mod shape;
mod step;
mod volumes;

pub use control::NodeAnswer;
pub use shape::Shaping;
pub use volumes::VolumeState;

use crate::{Input, Output};
use base::event::Lead;
use base::{
    Addr, BlockError, BlockOp, BlockReply, BlockRequest, Duration, Instant, Machine, Map, NodeId, Page,
    Pages, Pool, Version, VolumeId, limits, time::earliest,
};
use control::{CONTROL_BIT, Control};
use hdrhistogram::Histogram;
use locks::Locks;
use merge::{Merged, Part, merge};
use operations::{Kind, Operation, Operations};
use rack::registry::{Durability, VolumeRecord};
use requests::{Flushing, Request, Requests};
use set::{READS_MAX, Set, locate, sooner};
use shape::Shaper;
use std::collections::VecDeque;
use step::Change;
use wire::rack::{Code, Header, Op, Packet, flags};

/// A replica that cannot serve yet is asked again after this.
const BUSY_AGAIN: Duration = Duration::from_millis(2);
/// What is unanswered is looked through at most this often.
const SCAN_EVERY: Duration = Duration::from_millis(2);

/// How a gateway is set up.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where it listens for answers.
    pub addr: Addr,
    /// The ToR.
    pub tor: Addr,
    /// Larger after each start of this gateway.
    pub session: u32,
    /// The nodes.
    pub nodes: Vec<(NodeId, Addr)>,
    /// A request that is unanswered this long fails with an I/O error.
    pub request_timeout: Duration,
    /// Hold flows to what a central controller allocates.
    pub shaping: Option<Shaping>,
    /// Other gateways may serve the same volumes: while this one is cut off, clients are sent there.
    pub shared: bool,
}

#[derive(Debug)]
struct Volume {
    record: VolumeRecord,
    sets: Vec<Set>,
    locks: Locks,
    latency: [Histogram<u64>; 3],
    closing: bool,
}

/// What a page holds, and the epoch in which that was read.
#[derive(Debug)]
struct Base {
    page: Option<Page>,
    epoch: u32,
}

/// A page whose merge waits for memory: its volume and number, the parts, and what it holds if that was read.
type Starved = (usize, u64, Vec<Part>, Option<Base>);

/// A gateway.
pub struct Gateway {
    config: GatewayConfig,
    pool: Pool,
    zero: Page,
    control: Control,
    volumes: Vec<Option<Volume>>,
    /// Volume and set of each primary vSSD.
    primaries: Map<u32, (usize, usize)>,
    requests: Requests,
    operations: Operations,
    /// Pages whose merge waits for memory.
    starved: Vec<Starved>,
    /// Changes of sets' members.
    changes: Vec<Change>,
    /// Volumes are served here, unless this gateway stands by.
    leads: bool,
    /// When anybody answered last.
    heard_at: Option<Instant>,
    /// Another gateway was asked, and when it answered last.
    peer: Option<(Addr, Option<Instant>)>,
    shaper: Option<Shaper>,
    scan_at: Option<Instant>,
    /// When overdue requests were told of last.
    told_at: Option<Instant>,
    out: VecDeque<Output>,
    stats: GatewayStats,
}

/// Counters of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayStats {
    /// Client requests answered.
    pub requests: u64,
    /// Of these with an error.
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

impl Gateway {
    /// A gateway without volumes.
    ///
    /// # Panics
    /// If the pool is empty.
    pub fn new(config: GatewayConfig, pool: Pool) -> Self {
        Self {
            zero: pool.alloc_zeroed().expect("a pool has pages at start"),
            control: Control::new(config.nodes.iter().copied()),
            pool,
            shaper: config.shaping.map(Shaper::new),
            config,
            volumes: Vec::new(),
            primaries: Map::new(),
            requests: Requests::default(),
            operations: Operations::default(),
            starved: Vec::new(),
            changes: Vec::new(),
            leads: true,
            heard_at: None,
            peer: None,
            scan_at: None,
            told_at: None,
            out: VecDeque::new(),
            stats: GatewayStats::default(),
        }
    }

    /// Asks every node for its status; [`nodes`](Gateway::nodes) tells what came.
    pub fn ask_status(&mut self, now: Instant) {
        self.control.ask_status(now);
        self.send_control(now);
    }

    /// The nodes and their last answers.
    pub fn nodes(&self) -> &[NodeAnswer] {
        &self.control.nodes
    }

    /// Counters.
    pub fn stats(&self) -> GatewayStats {
        self.stats
    }

    /// Latencies of an open volume in ns: reads, writes (with trims and zeroings), flushes.
    pub fn latency(&self, id: VolumeId) -> Option<&[Histogram<u64>; 3]> {
        self.find(id)
            .and_then(|index| self.volumes[index].as_ref())
            .map(|volume| &volume.latency)
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    fn find(&self, id: VolumeId) -> Option<usize> {
        self.volumes
            .iter()
            .position(|volume| volume.as_ref().is_some_and(|volume| volume.record.id == id.0))
    }

    fn volume(&mut self, index: usize) -> &mut Volume {
        self.volumes[index]
            .as_mut()
            .expect("a volume stays while operations name it")
    }

    fn set(&mut self, volume: usize, set: usize) -> &mut Set {
        &mut self.volume(volume).sets[set]
    }

    #[cold]
    fn refuse(&mut self, request: &BlockRequest, error: BlockError) {
        self.stats.requests += 1;
        self.stats.errors += 1;
        self.out.push_back(Output::Reply(BlockReply {
            client: request.client,
            tag: request.tag,
            result: Err(error),
        }));
    }

    fn request(&mut self, now: Instant, request: BlockRequest) {
        let index = match self.find(request.volume) {
            Some(index) if !self.volume(index).closing => index,
            _ if self.config.shared || !self.leads => return self.refuse(&request, BlockError::Elsewhere),
            _ => return self.refuse(&request, BlockError::NoVolume),
        };
        let volume = self.volume(index);
        let (offset, length) = (request.offset, u64::from(request.length));
        let sector = limits::SECTOR_BYTES as u64;
        let aligned = offset.is_multiple_of(sector) && length.is_multiple_of(sector);
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= volume.record.size_bytes);
        let is_flush = request.op == BlockOp::Flush;
        let mutates = !matches!(request.op, BlockOp::Read | BlockOp::Flush);
        if !is_flush && (!aligned || !inside || length == 0) {
            return self.refuse(&request, BlockError::Invalid);
        }
        if mutates && volume.record.read_only {
            return self.refuse(&request, BlockError::ReadOnly);
        }
        let durable = request.fua || volume.record.durability == Durability::Media;
        let page_bytes = limits::PAGE_BYTES as u64;
        let first = offset / page_bytes;
        let count = if is_flush {
            0
        } else {
            (offset + length - 1) / page_bytes - first + 1
        };
        let slot = self.add_request(now, index, &request, count);
        if is_flush {
            return self.flush(now, slot, index);
        }
        let mut pages = request.pages.into_iter();
        for place in 0..count {
            let page = first + place;
            let from = offset.max(page * page_bytes) - page * page_bytes;
            let to = (offset + length).min((page + 1) * page_bytes) - page * page_bytes;
            if !mutates {
                let (set, lpn) = locate(&self.volume(index).sets, page);
                let kind = Kind::Read {
                    request: slot,
                    place: place as usize,
                };
                self.start(now, index, set, lpn, kind);
                continue;
            }
            let (first, end) = ((from / sector) as usize, (to / sector) as usize);
            let data = if request.op == BlockOp::Write {
                pages.next()
            } else {
                None
            };
            let part = Part {
                request: slot,
                page: data,
                first,
                count: end - first,
                durable,
            };
            self.mutate(now, index, page, part);
        }
    }

    fn add_request(&mut self, now: Instant, volume: usize, request: &BlockRequest, count: u64) -> u32 {
        sooner(&mut self.scan_at, now + self.config.request_timeout);
        let pages = if request.op == BlockOp::Read {
            count as usize
        } else {
            0
        };
        let entry = Request {
            client: request.client,
            tag: request.tag,
            volume,
            op: request.op,
            left: count as u32,
            error: None,
            pages: smallvec::smallvec![None; pages],
            arrived: now,
        };
        self.requests.insert(entry)
    }

    /// A part of a page to change: now, or with others when the page is free.
    fn mutate(&mut self, now: Instant, volume: usize, page: u64, part: Part) {
        if let Some(part) = self.volume(volume).locks.lock(page, part) {
            self.mutate_locked(now, volume, page, vec![part], None);
        }
    }

    /// Changes a page whose lock is held; `old` is what it holds, if that was read.
    fn mutate_locked(&mut self, now: Instant, volume: usize, page: u64, parts: Vec<Part>, old: Option<Base>) {
        let (set, lpn) = locate(&self.volume(volume).sets, page);
        let known = old.as_ref().map(|base| base.page.as_ref());
        let data = match merge(&parts, known, &self.pool) {
            Merged::NeedsRead => {
                return self.start(now, volume, set, lpn, Kind::ReadForMerge { page, parts });
            }
            Merged::NoMemory => {
                self.starved.push((volume, page, parts, old));
                return sooner(&mut self.scan_at, now + SCAN_EVERY);
            }
            Merged::Zero => None,
            Merged::Page(data) => Some(data),
        };
        let crc = data.as_ref().map_or(0, Page::crc);
        let durable = parts.iter().any(|part| part.durable);
        self.stats.merged += parts.len() as u64 - 1;
        self.start(
            now,
            volume,
            set,
            lpn,
            Kind::Mutate {
                page,
                parts,
                data,
                crc,
                durable,
                base_epoch: old.map(|base| base.epoch),
            },
        );
    }

    /// Sends a flush to every replica of every set that has something to flush.
    fn flush(&mut self, now: Instant, request: u32, volume: usize) {
        let dirty: Vec<(usize, usize, u64)> = self.volumes[volume]
            .iter()
            .flat_map(|volume| volume.sets.iter().enumerate())
            .filter(|(_, set)| set.is_dirty())
            .map(|(index, set)| (index, set.copies().count(), set.acked))
            .collect();
        let count = dirty.iter().map(|(_, replicas, _)| *replicas as u32).sum();
        let entry = &mut self.requests[request];
        entry.left = count;
        if count == 0 {
            return self.finish_request(now, request);
        }
        let pending = dirty
            .iter()
            .map(|&(set, replicas, _)| Flushing {
                set,
                left: replicas as u32,
                failed: false,
                losses: None,
            })
            .collect();
        self.requests.flush(request, pending);
        for (set, replicas, acked) in dirty {
            for replica in 0..replicas {
                self.start(
                    now,
                    volume,
                    set,
                    0,
                    Kind::Flush {
                        request,
                        replica,
                        acked,
                    },
                );
            }
        }
    }

    /// Adds an operation and sends it if its set has a place in flight.
    fn start(&mut self, now: Instant, volume: usize, set: usize, lpn: u32, kind: Kind) {
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
            pinned,
            damaged: 0,
            attempts: 0,
            epoch: 0,
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
        let operation = &self.operations[slot];
        let (volume, set) = (operation.volume, operation.set);
        let slot_number = self.operations.number(slot);
        let takes_mutations = self.volumes[volume]
            .as_ref()
            .is_some_and(|volume| volume.sets[set].takes_mutations());
        let number = match operation.kind {
            Kind::Flush { .. } => Some(slot_number),
            Kind::ReadForMerge { .. } | Kind::Mutate { .. } if !takes_mutations => None,
            Kind::Read { .. } | Kind::ReadForMerge { .. } => {
                let set = self.set(volume, set);
                (set.reads_in_flight < READS_MAX).then(|| {
                    set.reads_in_flight += 1;
                    slot_number
                })
            }
            Kind::Mutate { .. } => self.set(volume, set).number_mutation(slot),
        };
        match number {
            Some(number) => {
                let known = self.set(volume, set).epoch;
                let operation = &mut self.operations[slot];
                let epoch = match operation.kind {
                    Kind::Mutate { base_epoch, .. } => base_epoch.unwrap_or(known),
                    _ => known,
                };
                (operation.number, operation.epoch) = (number, epoch);
                self.send(now, slot);
            }
            None => {
                let mutates = matches!(self.operations[slot].kind, Kind::Mutate { .. });
                let set = self.set(volume, set);
                if mutates {
                    set.waiting_mutations.push_back(slot)
                } else {
                    set.waiting_reads.push_back(slot)
                }
            }
        }
    }

    fn send(&mut self, now: Instant, slot: u32) {
        let operation = &mut self.operations[slot];
        let volume = self.volumes[operation.volume]
            .as_ref()
            .expect("a volume stays while operations name it");
        let set = &volume.sets[operation.set];
        let mut header = Header {
            request: operation.number,
            lba: u64::from(operation.lpn) * limits::SECTORS_PER_PAGE as u64,
            epoch: operation.epoch,
            session: self.config.session,
            source: self.config.addr,
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
                header.version = Version(u64::from(operation.epoch));
                header.flags |= if *durable { flags::DURABLE } else { 0 };
                match data {
                    Some(page) => Packet::with_page(header, Some(page.clone()), *crc),
                    None => Packet::bare(header),
                }
            }
        };
        operation.sent_at = now;
        operation.again_at = now + set.resend_after(operation.attempts);
        operation.attempts += 1;
        sooner(&mut self.scan_at, operation.again_at);
        self.out.push_back(Output::Send {
            to: self.config.tor,
            packet,
        });
    }

    fn packet(&mut self, now: Instant, packet: Packet) {
        let header = packet.header;
        if header.op == Op::Status && !header.has(flags::REPLY) {
            return self.answer_peer(&header);
        }
        // An answer to an earlier start of this gateway may carry a number that is in use again.
        if !header.has(flags::REPLY) || header.session != self.config.session {
            return;
        }
        if !packet.payload_is_intact() {
            self.stats.corrupt_packets += 1;
            return;
        }
        if header.op == Op::Demand {
            if let Some(shaper) = &mut self.shaper {
                shaper.allocated(now, &packet);
            }
            return self.shape(now);
        }
        self.heard_at = Some(now);
        if header.code == Code::Superseded {
            return self.leave(now, Lead::Superseded);
        }
        if !operations::names_slot(header.request) && header.request & CONTROL_BIT != 0 {
            self.peer_answered(now, &header);
            self.control.answered(now, &packet);
            self.fenced(now, &header);
            return self.advance_changes(now);
        }
        let slot = if operations::names_slot(header.request) {
            Some(operations::slot_of(header.request))
        } else {
            // A mutation: its number is its set's, and the vSSD tells the set.
            self.primaries
                .get(&header.vssd.0)
                .copied()
                .and_then(|(volume, set)| {
                    self.volumes[volume]
                        .as_ref()
                        .and_then(|volume| volume.sets[set].mutation(header.request))
                })
        };
        let Some(slot) = slot else { return };
        let operation = self.operations.get(slot);
        if operation.is_some_and(|operation| operation.number == header.request) {
            self.answered(now, slot, packet);
        }
    }

    fn answered(&mut self, now: Instant, slot: u32, packet: Packet) {
        let header = packet.header;
        let operation = &mut self.operations[slot];
        let (volume, set) = (operation.volume, operation.set);
        let round_trip = (operation.attempts == 1).then(|| now.since(operation.sent_at));
        // Only an answer to the last sending counts: a copy sent in a newer epoch than the one that was answered could
        // still be executed, after a later write of the same page, by a server that has forgotten it.
        let mutates = matches!(operation.kind, Kind::Mutate { .. });
        if mutates && header.version != Version(u64::from(operation.epoch)) {
            return;
        }
        match header.code {
            Code::Stale => {
                operation.epoch = header.epoch;
                self.set(volume, set).epoch = header.epoch;
                return self.send_in_new_epoch(now, slot);
            }
            Code::Busy | Code::NoVssd => {
                operation.again_at = now + BUSY_AGAIN * operation.attempts.min(16);
                let again_at = operation.again_at;
                return sooner(&mut self.scan_at, again_at);
            }
            Code::Damaged if self.try_elsewhere(now, slot) => return,
            Code::Elsewhere => return self.follow(now, slot, &header),
            _ => {}
        }
        if let Some(round_trip) = round_trip {
            self.set(volume, set).observe_round_trip(round_trip);
        }
        self.stats.redirected += u64::from(header.has(flags::REDIRECTED));
        let error = match header.code {
            Code::SoftOrOk => None,
            Code::OutOfRange => Some(BlockError::Invalid),
            Code::NoSpace => Some(BlockError::NoSpace),
            _ => Some(BlockError::Io),
        };
        let operation = self.end(now, slot);
        self.complete(now, operation, packet, error);
    }

    /// A mutation was refused, and so was every earlier sending of it. What its parts were laid over may be gone, if
    /// every replica has lost its memory: then the page is read and merged again.
    #[cold]
    fn send_in_new_epoch(&mut self, now: Instant, slot: u32) {
        if !matches!(
            self.operations[slot].kind,
            Kind::Mutate {
                base_epoch: Some(_),
                ..
            }
        ) {
            return self.send(now, slot);
        }
        let operation = self.end(now, slot);
        let Kind::Mutate { page, parts, .. } = operation.kind else {
            unreachable!("checked above");
        };
        if parts.is_empty() {
            self.finish_page(now, operation.volume, page, parts, None);
        } else {
            self.mutate_locked(now, operation.volume, page, parts, None);
        }
    }

    /// A primary answered the opening of its vSSD: what waited for that may go out.
    #[cold]
    fn fenced(&mut self, now: Instant, header: &Header) {
        let place = self.primaries.get(&header.vssd.0).copied();
        // Without a medium the node cannot keep who has the vSSD.
        let is_kept = header.op == Op::Open && header.code != Code::Latched;
        let Some((volume, set_index)) = place.filter(|_| is_kept) else {
            return;
        };
        let Some(volume_entry) = self.volumes[volume].as_mut() else {
            return;
        };
        let set = &mut volume_entry.sets[set_index];
        if !core::mem::replace(&mut set.fenced, true) {
            self.launch_waiting(now, volume, set_index);
        }
    }

    /// What waited for the set may go out.
    fn launch_waiting(&mut self, now: Instant, volume: usize, set: usize) {
        let set = self.set(volume, set);
        let mut waiting = core::mem::take(&mut set.waiting_reads);
        waiting.append(&mut set.waiting_mutations);
        for slot in waiting {
            self.launch(now, slot);
        }
    }

    /// A damaged page is read from each other replica before it is given up.
    #[cold]
    fn try_elsewhere(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &mut self.operations[slot];
        if !matches!(operation.kind, Kind::Read { .. } | Kind::ReadForMerge { .. }) {
            return false;
        }
        operation.damaged += 1;
        operation.pinned = true;
        let (volume, set, damaged) = (operation.volume, operation.set, usize::from(operation.damaged));
        let replicas = &self.set(volume, set).replicas;
        // Twice around: the damaged replica repairs itself from the others meanwhile.
        if damaged >= 2 * replicas.len() {
            return false;
        }
        let next = replicas[damaged % replicas.len()];
        self.operations[slot].vssd = next;
        self.send(now, slot);
        true
    }

    /// Takes an operation out of flight and lets the next one in.
    fn end(&mut self, now: Instant, slot: u32) -> Operation {
        let operation = self.operations.remove(slot);
        let set = self.set(operation.volume, operation.set);
        let next = match operation.kind {
            Kind::Flush { .. } => None,
            Kind::Mutate { .. } => {
                set.end_mutation(operation.number);
                set.waiting_mutations.pop_front()
            }
            _ => {
                set.reads_in_flight -= 1;
                set.waiting_reads.pop_front()
            }
        };
        if let Some(next) = next {
            self.launch(now, next);
        }
        operation
    }

    fn complete(&mut self, now: Instant, operation: Operation, packet: Packet, error: Option<BlockError>) {
        let (volume, set) = (operation.volume, operation.set);
        let page = packet.page().cloned();
        match operation.kind {
            Kind::Read { request, place } => {
                let zero = self.zero.clone();
                let entry = &mut self.requests[request];
                entry.pages[place] = Some(page.unwrap_or(zero));
                self.finish_part(now, request, error);
            }
            Kind::ReadForMerge { page: number, parts } => match error {
                None => {
                    let epoch = packet.header.epoch;
                    self.mutate_locked(now, volume, number, parts, Some(Base { page, epoch }));
                }
                Some(_) => self.finish_page(now, volume, number, parts, error),
            },
            Kind::Mutate {
                page: number,
                parts,
                durable,
                ..
            } => {
                if error.is_none() && !durable {
                    let is_lost = self.set(volume, set).acknowledge(packet.header.floor);
                    self.tell_loss(volume, set, is_lost);
                }
                self.finish_page(now, volume, number, parts, error);
            }
            Kind::Flush { request, acked, .. } => {
                if error.is_none() {
                    let is_lost = self.set(volume, set).check_continuity(packet.header.floor);
                    self.tell_loss(volume, set, is_lost);
                }
                self.finish_flush(now, request, volume, set, acked, error);
            }
        }
    }

    /// One replica of a set is flushed; with the last one the set is.
    fn finish_flush(
        &mut self,
        now: Instant,
        request: u32,
        volume: usize,
        set: usize,
        acked: u64,
        error: Option<BlockError>,
    ) {
        let entry = self.requests.flushing(request, set);
        entry.left -= 1;
        entry.failed |= error.is_some();
        let mut error = error;
        if entry.left == 0 && !entry.failed {
            let volume = self.volumes[volume].as_mut().expect("its flush is under way");
            entry.losses = volume.sets[set].complete_flush(acked);
            error = entry.losses.map(|_| BlockError::Io);
        }
        self.finish_part(now, request, error);
    }

    /// A page was changed, or not: answer, and let in what waits for it.
    fn finish_page(
        &mut self,
        now: Instant,
        volume: usize,
        page: u64,
        parts: Vec<Part>,
        error: Option<BlockError>,
    ) {
        for part in parts {
            self.finish_part(now, part.request, error);
        }
        let Some(entry) = self.volumes[volume].as_mut() else {
            return;
        };
        if let Some(parts) = entry.locks.next(page) {
            self.mutate_locked(now, volume, page, parts, None);
        }
    }

    fn finish_part(&mut self, now: Instant, request: u32, error: Option<BlockError>) {
        if self.requests.end_part(request, error) {
            self.finish_request(now, request);
        }
    }

    fn finish_request(&mut self, now: Instant, slot: u32) {
        let (request, flushed) = self.requests.remove(slot);
        for flushed in flushed {
            if let Some(losses) = flushed.losses {
                self.set(request.volume, flushed.set).tell(losses);
            }
        }
        self.stats.requests += 1;
        let result = match request.error {
            None => Ok(request
                .pages
                .into_iter()
                .map(|page| page.expect("every page was answered"))
                .collect::<Pages>()),
            Some(error) => {
                self.stats.errors += 1;
                Err(error)
            }
        };
        let stage = match request.op {
            BlockOp::Read => 0,
            BlockOp::Flush => 2,
            _ => 1,
        };
        self.volume(request.volume).latency[stage].saturating_record(now.nanos_since(request.arrived));
        self.out.push_back(Output::Reply(BlockReply {
            client: request.client,
            tag: request.tag,
            result,
        }));
        if self.volume(request.volume).closing {
            self.drop_if_closed(request.volume);
        }
    }

    /// True if an operation may go at once; else it waits for the tokens of its flow. Flushes are not shaped.
    fn is_admitted(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &self.operations[slot];
        let (Some(shaper), false) = (&mut self.shaper, matches!(operation.kind, Kind::Flush { .. })) else {
            return true;
        };
        let volume = self.volumes[operation.volume]
            .as_ref()
            .expect("a volume stays while operations name it");
        let mutates = matches!(operation.kind, Kind::Mutate { .. });
        shaper.admits(now, slot, &volume.sets[operation.set].replicas, mutates)
    }

    /// Sends the operations that have their tokens, and reports to the controller when it is time.
    fn shape(&mut self, now: Instant) {
        let Some(shaper) = &mut self.shaper else { return };
        let released = shaper.release(now);
        for mut packet in shaper.reports(now) {
            packet.header.session = self.config.session;
            packet.header.source = self.config.addr;
            self.out.push_back(Output::Send {
                to: self.config.tor,
                packet,
            });
        }
        for slot in released {
            self.launch(now, slot);
        }
    }

    #[cold]
    fn send_control(&mut self, now: Instant) {
        for mut packet in self.control.due(now) {
            packet.header.source = self.config.addr;
            packet.header.session = self.config.session;
            self.out.push_back(Output::Send {
                to: self.config.tor,
                packet,
            });
        }
    }
}

impl Machine for Gateway {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Packet(packet) => self.packet(now, packet),
            Input::Request(request) => self.request(now, request),
            Input::Media(_) => unreachable!("a gateway has no medium"),
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let shaper = self.shaper.as_ref().and_then(Shaper::deadline);
        earliest(earliest(self.scan_at, self.control.deadline()), shaper)
    }

    fn tick(&mut self, now: Instant) {
        if self.control.deadline().is_some_and(|at| now >= at) {
            self.send_control(now);
        }
        if self.scan_at.is_some_and(|at| now >= at) {
            self.scan(now);
        }
        self.shape(now);
    }
}
