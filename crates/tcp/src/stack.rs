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
use crate::api::{Event, FlowId, Moved, News, Refused, Request};
use crate::cold::{Cold, Stage};
use crate::config::{AppLimits, Config, Segmentation};
use crate::fast::{self, Actions, Next, Plan, Received};
use crate::flow::{Flow, Marks};
use crate::frame::segment::Segment;
use crate::frame::{self, Flags, Hop, Packet};
use crate::seq::Seq;
use crate::slow::{self, Counters, Input, Reply, Slow, State};
use crate::table::Ends4;
use crate::timers::Timers;
use base::{Fifo, Instant, Machine, time};
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
#[inline]
pub fn copy_in(ring: &mut [u8], at: Seq, bytes: &[u8]) {
    let start = at.0 as usize & (ring.len() - 1);
    match ring.get_mut(start..start + bytes.len()) {
        Some(place) => place.copy_from_slice(bytes),
        None => copy_in_around(ring, start, bytes),
    }
}

#[cold]
fn copy_in_around(ring: &mut [u8], start: usize, bytes: &[u8]) {
    let (first, rest) = bytes.split_at(bytes.len().min(ring.len() - start));
    ring[start..start + first.len()].copy_from_slice(first);
    ring[..rest.len()].copy_from_slice(rest);
}

/// Copies `bytes` from place `at` of a ring of a power of two of bytes.
#[inline]
pub fn copy_out(ring: &[u8], at: Seq, bytes: &mut [u8]) {
    let start = at.0 as usize & (ring.len() - 1);
    match ring.get(start..start + bytes.len()) {
        Some(place) => bytes.copy_from_slice(place),
        None => copy_out_around(ring, start, bytes),
    }
}

#[cold]
fn copy_out_around(ring: &[u8], start: usize, bytes: &mut [u8]) {
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
    news: Fifo<u32>,
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
            news: Fifo::with_capacity(2 * flows),
            ack_delay_ticks: (config.ack_delay.as_nanos() >> 16) as u32,
            segment_bytes_max,
            checks: config.checksums,
            slow: Slow::new(State::new(config)),
        }
    }

    /// Takes a frame. Payload goes to `rings` before this returns.
    #[inline]
    pub fn receive(&mut self, now: Instant, frame: &[u8], rings: &mut impl Buffers) {
        if self.receive_next(now, frame, rings).is_none() {
            self.receive_any(now, frame, rings);
        }
    }

    /// Takes a common frame whose segment is the next one of its flow. None if it is another frame; nothing was changed then.
    #[inline(always)]
    fn receive_next(&mut self, now: Instant, frame: &[u8], rings: &mut impl Buffers) -> Option<()> {
        let (target, segment, payload) = frame::common::parse(frame, self.checks)?;
        let state = &mut self.slow.state;
        if target != state.config.mac {
            return None;
        }
        let slot = state.table.find4(Ends4 {
            remote: segment.source.ip.number4(),
            local: segment.target.ip.number4(),
            remote_port: segment.source.port,
            local_port: segment.target.port,
        })?;
        let (flow, id) = state.table.flow_and_id(slot);
        let received = fast::receive_next(flow, now, &segment, self.ack_delay_ticks)?;
        if received.actions.any(Actions::NEWS) && !flow.marks.any(Marks::NEWS) {
            flow.marks.set(Marks::NEWS);
            self.news.push(slot);
        }
        let is_delayed = flow.marks.any(Marks::DELAYED);
        if received.bytes > 0 {
            rings.place(id, received.place, payload);
        }
        if received.actions.any(Actions::SEND) {
            state.ready(slot);
        }
        if received.actions.any(Actions::LATER) && !is_delayed {
            self.delay(now, slot);
        }
        Some(())
    }

    /// Takes a frame that is not common, or that the fast path does not take.
    #[inline(never)]
    fn receive_any(&mut self, now: Instant, frame: &[u8], rings: &mut impl Buffers) {
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
                self.news.push(slot);
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

    /// Takes the link's word that nobody has a card any more: the peers behind it have ended.
    pub fn gone(&mut self, now: Instant, mac: Mac) {
        self.slow.handle(now, Input::Gone(mac));
    }

    /// Takes a request.
    pub fn request(&mut self, now: Instant, request: &Request) {
        self.slow.handle(now, Input::Request(*request));
    }

    /// Takes an application's word that it has read and written so many bytes. Nothing is changed by a wrong word: the rings
    /// of others, and what the peer is told, do not depend on applications being right.
    #[inline(always)]
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

    /// Whether [`Stack::transmit`] may have something. If not, it has nothing.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.slow.state.ready.is_empty() || !self.slow.state.replies.is_empty()
    }

    /// Writes the next frame to be sent into `frame`, which has room for the longest.
    #[inline]
    pub fn transmit(&mut self, now: Instant, frame: &mut [u8], rings: &mut impl Buffers) -> Option<Sent> {
        if !self.slow.state.replies.is_empty() {
            return self.transmit_reply(frame);
        }
        while let Some(slot) = self.slow.state.ready.pop() {
            let source = self.slow.state.config.mac;
            let stamp = self.slow.state.stamp(now);
            let table = &mut self.slow.state.table;
            let (flow, path, id) = table.way(slot);
            if !flow.marks.any(Marks::READY) {
                continue;
            }
            flow.marks.clear(Marks::READY);
            // Without a card it waits: the answer of the neighbour puts it here again.
            let Some(target) = path.mac else {
                continue;
            };
            if let Some(plan) = fast::transmit_next(flow, now, self.segment_bytes_max) {
                let segment = slow::segment_of(flow, path, stamp, &plan);
                let start = frame::headers_bytes(&segment);
                rings.fetch(id, plan.seq, &mut frame[start..start + plan.bytes as usize]);
                let sent = Sent {
                    bytes: frame::emit(Hop { source, target }, &segment, frame, self.checks),
                    segment_bytes: flow.cut(plan.bytes),
                };
                if !flow.marks.any(Marks::WATCHED) {
                    self.watch(now, slot);
                }
                return Some(sent);
            }
            let marks = flow.marks;
            if !marks.any(Marks::OPEN) || marks.any(Marks::ASK) {
                match self.transmit_rare(now, slot, frame, target) {
                    Some(sent) => return Some(sent),
                    None => continue,
                }
            }
            match fast::transmit(table.flow(slot), now, self.segment_bytes_max) {
                Next::Idle => {}
                Next::Blocked => self.watch(now, slot),
                Next::Later(at) => self.paced.set(slot, at),
                Next::Segment(plan) => return Some(self.write(now, slot, plan, frame, rings, target)),
            }
        }
        None
    }

    /// Writes a planned segment that is not the usual one, and its payload.
    #[inline(never)]
    fn write(
        &mut self,
        now: Instant,
        slot: u32,
        plan: Plan,
        frame: &mut [u8],
        rings: &mut impl Buffers,
        target: Mac,
    ) -> Sent {
        let segment = self.slow.state.segment(now, slot, &plan);
        if plan.bytes > 0 {
            let start = frame::headers_bytes(&segment);
            let id = self.slow.state.table.id(slot);
            rings.fetch(id, plan.seq, &mut frame[start..start + plan.bytes as usize]);
        }
        self.emit(now, slot, &segment, frame, target)
    }

    #[cold]
    fn transmit_rare(&mut self, now: Instant, slot: u32, frame: &mut [u8], target: Mac) -> Option<Sent> {
        let segment = self.rare(now, slot)?;
        Some(self.emit(now, slot, &segment, frame, target))
    }

    /// The SYN of a flow, or the question whether its peer is there.
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

    #[inline]
    fn watch(&mut self, now: Instant, slot: u32) {
        if !self.slow.state.table.flow(slot).marks.any(Marks::WATCHED) {
            self.slow.handle(now, Input::Watch(slot));
        }
    }

    /// Writes a flow's segment, whose payload lies in the frame already.
    fn emit(&mut self, now: Instant, slot: u32, segment: &Segment, frame: &mut [u8], target: Mac) -> Sent {
        let flow = self.slow.state.table.flow(slot);
        let segment_bytes = flow.cut(segment.payload_bytes);
        if flow.has_unsent() || flow.marks.any(Marks::ACK_NOW) {
            self.slow.state.ready(slot);
        }
        if segment.length() > 0 && segment.flags.any(Flags::ACK) && !segment.flags.any(Flags::SYN) {
            self.watch(now, slot);
        }
        let bytes = frame::emit(self.slow.state.hop(target), segment, frame, self.checks);
        Sent { bytes, segment_bytes }
    }

    #[cold]
    fn transmit_reply(&mut self, frame: &mut [u8]) -> Option<Sent> {
        let bytes = match self.slow.state.replies.pop_front()? {
            Reply::Segment(hop, segment) => frame::emit(hop, &segment, frame, self.checks),
            Reply::Arp(hop, arp) => frame::emit_arp(hop, &arp, frame),
            Reply::Neighbour(hop, packet, target) => frame::emit_neighbour(hop, &packet, target, frame),
        };
        Some(Sent {
            bytes,
            segment_bytes: 0,
        })
    }

    /// What an application is to be told next.
    pub fn event(&mut self) -> Option<Event> {
        if let Some(event) = self.told() {
            return Some(event);
        }
        let moved = self.moved()?;
        let slot = moved.flow.index;
        let app = self.slow.state.table.flow(slot).app;
        let opaque = self.slow.state.table.cold(slot).opaque;
        let news = News::Moved(moved);
        Some(Event { app, opaque, news })
    }

    /// The next event of [`Stack::event`] that is not about a flow that has come further; there may be one of these behind it.
    #[inline]
    pub fn told(&mut self) -> Option<Event> {
        if self.slow.state.events.is_empty() {
            return None;
        }
        self.slow.state.events.pop_front()
    }

    /// The next flow that has come further, once there is nothing more of [`Stack::told`]: the other part of [`Stack::event`].
    #[inline]
    pub fn moved(&mut self) -> Option<Moved> {
        let state = &mut self.slow.state;
        while let Some(slot) = self.news.pop() {
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

    /// Whether [`Stack::deadline`] has come.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        is_over(self.slow.state.timers.first())
            || is_over(self.slow.state.table.paths.deadline())
            || is_over(self.paced.first())
            || is_over(self.delayed.front().map(|(due, _)| *due))
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
        self.news.push(slot);
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
