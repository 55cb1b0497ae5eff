//! The stack of one core: flows, fast path, slow path. `sockets` drives it in a program's thread.
//!
//! It is a machine whose inputs and outputs borrow: a frame is read where it lies and written where it is to lie, so that
//! payload is copied once, between the frame and the ring, by the ring's owner ([`Buffers`]). After each
//! [`Stack::receive`], [`Stack::request`], [`Stack::bump`] and [`Stack::tick`] the world calls [`Stack::transmit`] and
//! [`Stack::event`] until there is nothing more, and [`Stack::tick`] no later than [`Stack::deadline`].
//!
//! Flows that may send take turns, one segment each. Nothing here allocates after start, as long as the world drains the
//! queues.

use crate::addr::{Mac, Tuple};
use crate::api::{Event, FlowId, Refused, Request};
use crate::cold::{Cold, Stage};
use crate::config::{AppLimits, Config, Segmentation};
use crate::fast::{self, Actions, Next, Plan, Received};
use crate::flow::{Flow, Marks};
use crate::frame::segment::Segment;
use crate::frame::{self, Flags, Hop, Packet};
use crate::seq::Seq;
use crate::slow::{self, Counters, Input, Reply, Slow, State};
use crate::timers::Timers;
use base::{Instant, Machine, time};
use std::collections::VecDeque;

/// The longest payload that IP can tell, with the longest headers.
const PAYLOAD_MAX: u16 = u16::MAX - 60;

/// The rings of flows. Byte `at` of a stream lies at `at mod length` of its ring ([`copy_in`], [`copy_out`]).
pub trait Buffers {
    /// Copies received bytes into a flow's receive ring.
    fn place(&mut self, flow: FlowId, at: Seq, bytes: &[u8]);
    /// Copies bytes to be sent out of a flow's transmit ring.
    fn fetch(&mut self, flow: FlowId, at: Seq, bytes: &mut [u8]);
}

/// Copies `bytes` to place `at` of a ring of a power of two of bytes.
pub fn copy_in(ring: &mut [u8], at: Seq, bytes: &[u8]) {
    let start = at.0 as usize & (ring.len() - 1);
    let (first, rest) = bytes.split_at(bytes.len().min(ring.len() - start));
    ring[start..start + first.len()].copy_from_slice(first);
    ring[..rest.len()].copy_from_slice(rest);
}

/// Copies `bytes` from place `at` of a ring of a power of two of bytes.
pub fn copy_out(ring: &[u8], at: Seq, bytes: &mut [u8]) {
    let start = at.0 as usize & (ring.len() - 1);
    let (first, rest) = bytes.split_at_mut(bytes.len().min(ring.len() - start));
    first.copy_from_slice(&ring[start..start + first.len()]);
    rest.copy_from_slice(&ring[..rest.len()]);
}

/// A frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of the frame.
    pub bytes: usize,
    /// Payload of each segment into which the link cuts the frame; 0 if the frame goes as it is.
    pub segment_bytes: u16,
}

/// A flow between two stacks. Its rings have to move along.
#[derive(Clone, Debug)]
pub struct Moving {
    flow: Flow,
    cold: Cold,
}

impl Moving {
    /// Both ends.
    pub fn tuple(&self) -> Tuple {
        self.cold.tuple
    }
}

/// The stack of one core.
#[derive(Debug)]
pub struct Stack {
    slow: Slow,
    /// Flows whose rate lets them wait.
    paced: Timers,
    /// Flows that put an acknowledgement off, each with the time to look.
    delayed: VecDeque<(Instant, u32)>,
    /// Flows with news for their application.
    news: VecDeque<u32>,
    ack_delay_ticks: u32,
    segment_bytes_max: u32,
    checks: bool,
}

impl Stack {
    /// A stack without flows.
    pub fn new(config: Config) -> Self {
        let flows = config.flows_max as usize;
        let segment_bytes_max = match config.segmentation {
            Segmentation::None => 0,
            Segmentation::Link { payload_bytes_max } => u32::from(payload_bytes_max.min(PAYLOAD_MAX)),
        };
        Self {
            paced: Timers::new(flows),
            delayed: VecDeque::with_capacity(2 * flows),
            news: VecDeque::with_capacity(2 * flows),
            ack_delay_ticks: (config.ack_delay.as_nanos() >> 16) as u32,
            segment_bytes_max,
            checks: config.checksums,
            slow: Slow::new(State::new(config)),
        }
    }

    /// Takes a frame. Payload goes to `rings` before this returns.
    #[inline]
    pub fn receive(&mut self, now: Instant, frame: &[u8], rings: &mut impl Buffers) {
        let Ok((ether, packet)) = frame::parse(frame, self.checks) else {
            return self.drop_frame();
        };
        let hop = Hop {
            source: ether.source,
            target: ether.target,
        };
        match packet {
            Packet::Tcp(segment, payload) => {
                if ether.target != self.slow.state.config.mac {
                    return self.drop_frame();
                }
                if !self.fast(now, &segment, payload, rings) {
                    self.slow_segment(now, hop, &segment, payload, rings);
                }
            }
            Packet::Arp(packet) => self.slow.handle(now, Input::Arp(packet)),
            Packet::Neighbour(packet) => self.slow.handle(now, Input::Neighbour(packet)),
            Packet::Report(report) => self.slow.handle(now, Input::Report(report)),
        }
    }

    fn drop_frame(&mut self) {
        self.slow.state.counters.dropped += 1;
    }

    /// Has the fast path take a segment. False if it does not.
    #[inline]
    fn fast(&mut self, now: Instant, segment: &Segment, payload: &[u8], rings: &mut impl Buffers) -> bool {
        let table = &mut self.slow.state.table;
        let Some(slot) = table.find(&segment.tuple()) else {
            return false;
        };
        let received = fast::receive(table.flow(slot), now, segment, self.ack_delay_ticks);
        if received.actions.any(Actions::SLOW) {
            return false;
        }
        if received.bytes > 0 {
            let start = received.skip as usize;
            let bytes = &payload[start..start + received.bytes as usize];
            rings.place(table.id(slot), received.place, bytes);
        }
        self.act(now, slot, &received);
        true
    }

    /// Has the slow path take a segment, and then perhaps the fast path.
    #[cold]
    fn slow_segment(
        &mut self,
        now: Instant,
        hop: Hop,
        segment: &Segment,
        payload: &[u8],
        rings: &mut impl Buffers,
    ) {
        let is_ours = self.slow.state.config.is_own(segment.target.ip);
        if !is_ours || !segment.source.ip.is_unicast() || hop.source.is_group() {
            return self.drop_frame();
        }
        self.slow.handle(now, Input::Segment(hop, *segment));
        if let Some(again) = self.slow.state.again.take() {
            self.fast(now, &again, payload, rings);
        }
    }

    /// Does what a segment asks for.
    #[inline]
    fn act(&mut self, now: Instant, slot: u32, received: &Received) {
        let actions = received.actions;
        if actions.any(Actions::NEWS) {
            let marks = &mut self.slow.state.table.flow(slot).marks;
            if !marks.any(Marks::NEWS) {
                marks.set(Marks::NEWS);
                self.news.push_back(slot);
            }
        }
        if actions.any(Actions::SEND) {
            self.slow.state.ready(slot);
        }
        if actions.any(Actions::LATER) {
            self.delay(now, slot);
        }
        if actions.any(Actions(Actions::LOSS.0 | Actions::FIN.0 | Actions::FIRST.0)) {
            self.act_rarely(now, slot, received);
        }
    }

    #[cold]
    fn act_rarely(&mut self, now: Instant, slot: u32, received: &Received) {
        if received.actions.any(Actions::FIRST) {
            self.acknowledge_first(now, slot, received.first);
        }
        if received.actions.any(Actions::LOSS) {
            self.slow.handle(now, Input::Loss(slot));
        }
        if received.actions.any(Actions::FIN) {
            self.slow.handle(now, Input::Fin(slot));
        }
    }

    /// Acknowledges what came before the mark of congestion changed, with the mark that it had.
    fn acknowledge_first(&mut self, now: Instant, slot: u32, first: Seq) {
        let state = &mut self.slow.state;
        let is_marked = state.table.flow(slot).marks.any(Marks::ECHO);
        let flow = state.table.flow(slot);
        let plan = Plan {
            seq: flow.snd_nxt,
            bytes: 0,
            flags: Flags::ACK | Flags::ECE.when(!is_marked),
            window: (flow.rcv_edge.offset_from(first).max(0) as u32 >> flow.rcv_scale).min(0xffff) as u16,
            is_markable: false,
        };
        let path = flow.path;
        let mut segment = state.segment(now, slot, &plan);
        segment.ack = first;
        if let Some(target) = state.table.paths.path(path).mac {
            state.reply(Reply::Segment(state.hop(target), segment));
        }
    }

    #[inline]
    fn delay(&mut self, now: Instant, slot: u32) {
        let marks = &mut self.slow.state.table.flow(slot).marks;
        if !marks.any(Marks::DELAYED) {
            marks.set(Marks::DELAYED);
            let due = now + self.slow.state.config.ack_delay;
            self.delayed.push_back((due, slot));
        }
    }

    /// Takes a request.
    pub fn request(&mut self, now: Instant, request: &Request) {
        self.slow.handle(now, Input::Request(*request));
    }

    /// Takes an application's word that it has read and written so many bytes. Nothing is changed by a wrong word: the rings
    /// of others, and what the peer is told, do not depend on applications being right.
    #[inline]
    pub fn bump(&mut self, app: u16, id: FlowId, bump: Bump) -> Result<(), Refused> {
        let state = &mut self.slow.state;
        let slot = state.table.open_of_app(app, id).ok_or(Refused::Flow)?;
        let flow = state.table.flow(slot);
        let ended = Marks::DEAF.with(Marks::FIN);
        if !flow.marks.any(Marks::OPEN) || bump.written > 0 && flow.marks.any(ended) {
            return Err(Refused::Ended);
        }
        if bump.read > flow.readable() || bump.written > 0 && bump.written > flow.writable() {
            return Err(Refused::Bytes);
        }
        flow.rcv_read += bump.read;
        flow.snd_end += bump.written;
        let told = flow.rcv_edge.offset_from(flow.rcv_nxt);
        let is_low = told < 1i32 << flow.rcv_ring >> 1;
        let is_update = bump.read > 0 && is_low && fast::transmit::offers_more(flow);
        if is_update {
            flow.marks.set(Marks::ACK_NOW);
        }
        if is_update || bump.written > 0 {
            state.ready(slot);
        }
        Ok(())
    }

    /// Writes the next frame to be sent into `frame`, which has room for the longest.
    #[inline]
    pub fn transmit(&mut self, now: Instant, frame: &mut [u8], rings: &mut impl Buffers) -> Option<Sent> {
        if let Some(reply) = self.slow.state.replies.pop_front() {
            return Some(self.emit_reply(&reply, frame));
        }
        while let Some(slot) = self.slow.state.ready.pop_front() {
            let table = &mut self.slow.state.table;
            let flow = table.flow(slot);
            if !flow.marks.any(Marks::READY) {
                continue;
            }
            flow.marks.clear(Marks::READY);
            let (path, marks) = (flow.path, flow.marks);
            // Without a card it waits: the answer of the neighbour puts it here again.
            let Some(target) = table.paths.path(path).mac else {
                continue;
            };
            if !marks.any(Marks::OPEN) || marks.any(Marks::ASK) {
                match self.rare(now, slot) {
                    Some(segment) => return Some(self.emit(now, slot, &segment, frame, target)),
                    None => continue,
                }
            }
            match fast::transmit(table.flow(slot), now, self.segment_bytes_max) {
                Next::Idle => {}
                Next::Blocked => self.watch(now, slot),
                Next::Later(at) => self.paced.set(slot, at),
                Next::Segment(plan) => {
                    let segment = self.slow.state.segment(now, slot, &plan);
                    let start = frame::headers_bytes(&segment);
                    let id = self.slow.state.table.id(slot);
                    if plan.bytes > 0 {
                        rings.fetch(id, plan.seq, &mut frame[start..start + plan.bytes as usize]);
                    }
                    return Some(self.emit(now, slot, &segment, frame, target));
                }
            }
        }
        None
    }

    /// The SYN of a flow, or the question whether its peer is there.
    #[cold]
    fn rare(&mut self, now: Instant, slot: u32) -> Option<Segment> {
        let marks = &mut self.slow.state.table.flow(slot).marks;
        if marks.any(Marks::OPEN) {
            marks.clear(Marks::ASK);
            return Some(self.slow.question(now, slot));
        }
        if !marks.any(Marks::SYN) {
            return None;
        }
        marks.clear(Marks::SYN);
        Some(slow::handshake(&mut self.slow.state, now, slot))
    }

    fn watch(&mut self, now: Instant, slot: u32) {
        if !self.slow.state.table.flow(slot).marks.any(Marks::WATCHED) {
            self.slow.handle(now, Input::Watch(slot));
        }
    }

    /// Writes a flow's segment, whose payload lies in the frame already.
    #[inline]
    fn emit(&mut self, now: Instant, slot: u32, segment: &Segment, frame: &mut [u8], target: Mac) -> Sent {
        let flow = self.slow.state.table.flow(slot);
        let mss = flow.mss;
        if flow.has_unsent() || flow.marks.any(Marks::ACK_NOW) {
            self.slow.state.ready(slot);
        }
        if segment.length() > 0 && segment.flags.any(Flags::ACK) && !segment.flags.any(Flags::SYN) {
            self.watch(now, slot);
        }
        let bytes = frame::emit(self.slow.state.hop(target), segment, frame, self.checks);
        let is_cut = segment.payload_bytes > u32::from(mss);
        let segment_bytes = if is_cut { mss } else { 0 };
        Sent { bytes, segment_bytes }
    }

    #[cold]
    fn emit_reply(&mut self, reply: &Reply, frame: &mut [u8]) -> Sent {
        let bytes = match reply {
            Reply::Segment(hop, segment) => frame::emit(*hop, segment, frame, self.checks),
            Reply::Arp(hop, arp) => frame::emit_arp(*hop, arp, frame),
            Reply::Neighbour(hop, packet, target) => frame::emit_neighbour(*hop, packet, *target, frame),
        };
        Sent {
            bytes,
            segment_bytes: 0,
        }
    }

    /// What an application is to be told next.
    #[inline]
    pub fn event(&mut self) -> Option<Event> {
        let state = &mut self.slow.state;
        if let Some(event) = state.events.pop_front() {
            return Some(event);
        }
        while let Some(slot) = self.news.pop_front() {
            if state.table.flow(slot).marks.any(Marks::NEWS) {
                return Some(state.moved(slot));
            }
        }
        None
    }

    /// When to tick. Flows that are ready to send have no deadline: [`Stack::transmit`] answers until there are none.
    pub fn deadline(&self) -> Option<Instant> {
        let delayed = self.delayed.front().map(|(due, _)| *due);
        time::earliest(self.slow.deadline(), time::earliest(self.paced.first(), delayed))
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.slow.tick(now);
        while let Some(slot) = self.paced.expired(now) {
            self.slow.state.ready(slot);
        }
        while let Some((due, slot)) = self.delayed.front().copied() {
            if due > now {
                break;
            }
            self.delayed.pop_front();
            self.delay_over(now, slot);
        }
    }

    /// Sends an acknowledgement that was put off, unless it went with payload.
    fn delay_over(&mut self, now: Instant, slot: u32) {
        let flow = self.slow.state.table.flow(slot);
        if !flow.marks.any(Marks::DELAYED) {
            return;
        }
        flow.marks.clear(Marks::DELAYED);
        if !flow.marks.any(Marks::ACK_LATER) {
            return;
        }
        let ticks = flow.ack_due.wrapping_sub((now.as_nanos() >> 16) as u32) as i32;
        if ticks > 0 {
            // It is another one, put off later.
            flow.marks.set(Marks::DELAYED);
            let due = now + base::Duration::from_nanos((ticks as u64) << 16);
            self.delayed.push_back((due, slot));
        } else {
            flow.marks.set(Marks::ACK_NOW);
            self.slow.state.ready(slot);
        }
    }

    /// Changes the limits of an application.
    pub fn limit(&mut self, app: u16, limits: AppLimits) {
        self.slow.state.access.limit(app, limits);
    }

    /// What was counted since start.
    pub fn counters(&self) -> &Counters {
        &self.slow.state.counters
    }

    /// Flows that there are, those in TIME-WAIT included.
    pub fn flows(&self) -> usize {
        self.slow.state.table.used().count()
    }

    /// Checks the invariants of all flows: for tests.
    pub fn check(&mut self) {
        let table = &mut self.slow.state.table;
        let slots: Vec<u32> = table.used().collect();
        for slot in slots {
            if table.stage(slot) == Stage::Open {
                table.flow(slot).check();
            }
        }
    }

    /// Takes an open flow out, so that it can go on in another stack of this host with the same seed. None if it is not open.
    pub fn export(&mut self, app: u16, id: FlowId) -> Option<Moving> {
        let state = &mut self.slow.state;
        let slot = state.table.of_app(app, id)?;
        if state.table.stage(slot) != Stage::Open {
            return None;
        }
        self.paced.clear(slot);
        let (flow, cold) = state.take_out(slot);
        Some(Moving { flow, cold })
    }

    /// Takes a flow in, and answers its new id. The flow is given back if there is no room.
    pub fn import(&mut self, now: Instant, moving: Moving) -> Result<FlowId, Box<Moving>> {
        let state = &mut self.slow.state;
        let Moving { mut flow, cold } = moving;
        let tuple = cold.tuple;
        let hop = state
            .config
            .next_hop(tuple.remote.ip)
            .filter(|_| state.table.has_room());
        let path = hop.and_then(|hop| {
            state
                .table
                .paths
                .acquire(now, tuple.local.ip, tuple.remote.ip, hop)
        });
        let Some(path) = path else {
            return Err(Box::new(Moving { flow, cold }));
        };
        flow.path = path;
        let queues = Marks::READY.with(Marks::DELAYED).with(Marks::NEWS);
        flow.marks.clear(queues);
        let is_owed = flow.marks.any(Marks::ACK_LATER);
        flow.marks
            .put(Marks::ACK_NOW, is_owed || flow.marks.any(Marks::ACK_NOW));
        flow.marks.set(Marks::NEWS);
        state.access.take_in(flow.app);
        let slot = state.table.insert(flow, cold).expect("there is room");
        self.news.push_back(slot);
        state.ready(slot);
        state.timers.set(slot, now);
        Ok(state.table.id(slot))
    }
}

/// How far an application has come in a flow's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bump {
    /// Bytes that it has read.
    pub read: u32,
    /// Bytes that it has written.
    pub written: u32,
}
