//! What all parts of the slow path work on, and what they all do: answer, tell, free.

use super::access::Access;
use super::cookie;
use super::listen::Listeners;
use crate::addr::{Ip, Mac, Tuple};
use crate::api::{End, Event, FlowId, Moved, News};
use crate::cold::{Cold, Stage};
use crate::config::Config;
use crate::fast::{Plan, transmit::acknowledgement};
use crate::flow::{Flow, Marks};
use crate::frame::arp::Arp;
use crate::frame::icmp::Neighbour;
use crate::frame::segment::{BYTES, STAMPS_BYTES, Segment, Stamps};
use crate::frame::{Ecn, Flags, Hop, ip};
use crate::paths::{Path, Paths};
use crate::seq::Seq;
use crate::siphash::Key;
use crate::table::Table;
use crate::timers::Timers;
use base::{Fifo, Instant, Rng};
use std::collections::VecDeque;

/// Frames without a flow that wait to be sent. What comes when there are so many is dropped, as a network would.
const REPLIES_MAX: usize = 256;

/// A frame of the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A segment without payload.
    Segment(Hop, Segment),
    /// ARP.
    Arp(Hop, Arp),
    /// Neighbour discovery, to an address.
    Neighbour(Hop, Neighbour, Ip),
}

/// What was counted since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were dropped as malformed or not for us.
    pub dropped: u64,
    /// Segments that went the slow path.
    pub slow: u64,
    /// Losses that duplicate acknowledgements have shown.
    pub losses: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Questions for a closed window.
    pub probes: u64,
    /// SYNs that were answered with a cookie.
    pub cookies: u64,
    /// Frames of the slow path for which there was no room.
    pub replies_dropped: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// The state of the slow path.
#[derive(Debug)]
pub struct State {
    /// The configuration.
    pub config: Config,
    /// The flows.
    pub table: Table,
    /// When each flow is looked at.
    pub timers: Timers,
    /// The listeners.
    pub listeners: Listeners,
    /// Access control.
    pub access: Access,
    /// For numbers that are not to be guessed.
    pub key: Key,
    /// For ports.
    pub rng: Rng,
    /// Flows that may have something to send; one whose mark is gone is passed over.
    pub ready: Fifo<u32>,
    /// Frames to be sent.
    pub replies: VecDeque<Reply>,
    /// What applications are to be told.
    pub events: VecDeque<Event>,
    /// Flows in TIME-WAIT, the oldest first; some of them may be gone.
    pub waiting: VecDeque<FlowId>,
    /// A segment that the fast path may take now.
    pub again: Option<Segment>,
    /// What was counted.
    pub counters: Counters,
    stamp_base: u32,
}

impl State {
    /// The state at start.
    pub fn new(config: Config) -> Self {
        let mut rng = Rng::new(config.seed);
        let key = Key([rng.next_u64(), rng.next_u64()]);
        let paths = Paths::new(config.paths_max, config.mtu);
        let flows = config.flows_max as usize;
        Self {
            table: Table::new(config.flows_max, rng.next_u64(), paths),
            timers: Timers::new(flows),
            listeners: Listeners::new(config.listeners_max),
            access: Access::new(config.rules.clone(), config.apps_max, config.app_limits),
            stamp_base: key.hash(&[]) as u32,
            key,
            rng,
            ready: Fifo::with_capacity(2 * flows),
            replies: VecDeque::with_capacity(REPLIES_MAX),
            events: VecDeque::with_capacity(2 * flows),
            waiting: VecDeque::with_capacity(flows),
            again: None,
            counters: Counters::default(),
            config,
        }
    }

    /// Our timestamp. It is the same for all stacks of a seed, so that flows can move.
    #[inline]
    pub fn stamp(&self, now: Instant) -> u32 {
        self.stamp_base.wrapping_add(millis(now))
    }

    /// Puts a flow into the queue of those that may send.
    #[inline(always)]
    pub fn ready(&mut self, slot: u32) {
        let marks = &mut self.table.flow(slot).marks;
        if !marks.any(Marks::READY) {
            marks.set(Marks::READY);
            self.ready.push(slot);
        }
    }

    /// Tells a flow's application something.
    pub fn tell(&mut self, slot: u32, news: News) {
        let app = self.table.flow(slot).app;
        let opaque = self.table.cold(slot).opaque;
        self.events.push_back(Event { app, opaque, news });
    }

    /// Queues a frame.
    pub fn reply(&mut self, reply: Reply) {
        if self.replies.len() == REPLIES_MAX {
            self.counters.replies_dropped += 1;
            return;
        }
        self.replies.push_back(reply);
    }

    /// Answers a segment that belongs nowhere with a reset (RFC 9293 §3.10.7.1).
    pub fn reject(&mut self, hop: Hop, segment: &Segment) {
        if segment.flags.any(Flags::RST) {
            return;
        }
        let tuple = segment.tuple();
        let reset = match segment.flags.any(Flags::ACK) {
            true => Segment::new(tuple, segment.ack, Seq(0), Flags::RST),
            false => {
                let ack = segment.seq + segment.length();
                Segment::new(tuple, Seq(0), ack, Flags::RST | Flags::ACK)
            }
        };
        self.reply(Reply::Segment(self.back(hop), reset));
    }

    /// The way back of a frame.
    pub fn back(&self, hop: Hop) -> Hop {
        Hop {
            source: self.config.mac,
            target: hop.source,
        }
    }

    /// A number to begin with (RFC 6528): the clock, and what nobody else knows of the connection.
    pub fn first_seq(&self, now: Instant, tuple: &Tuple) -> Seq {
        let clock = (now.as_nanos() >> 12) as u32;
        Seq(clock.wrapping_add(cookie::hash(self.key, tuple, 1 << 63) as u32))
    }

    /// The segment of a plan.
    #[inline]
    pub fn segment(&mut self, now: Instant, slot: u32, plan: &Plan) -> Segment {
        let stamp = self.stamp(now);
        let (flow, path, _) = self.table.way(slot);
        segment_of(flow, path, stamp, plan)
    }

    /// Sends an acknowledgement of a flow at once, if its way is known.
    pub fn acknowledge(&mut self, now: Instant, slot: u32) {
        let plan = acknowledgement(self.table.flow(slot));
        self.reply_plan(now, slot, &plan);
    }

    /// Sends a planned segment without payload at once, if its way is known.
    pub fn reply_plan(&mut self, now: Instant, slot: u32, plan: &Plan) {
        let segment = self.segment(now, slot, plan);
        let path = self.table.flow(slot).path;
        if let Some(target) = self.table.paths.path(path).mac {
            self.reply(Reply::Segment(self.hop(target), segment));
        }
    }

    /// A frame's cards.
    #[inline]
    pub fn hop(&self, target: Mac) -> Hop {
        Hop {
            source: self.config.mac,
            target,
        }
    }

    /// Answers a strange segment of a flow with an acknowledgement, not too often (RFC 5961 §7). The peer, if it is the
    /// peer, then does what is right.
    pub fn challenge(&mut self, now: Instant, slot: u32) {
        let gap = self.config.challenge_gap;
        let cold = self.table.cold(slot);
        if cold.challenged_at.is_some_and(|at| now < at + gap) {
            return;
        }
        cold.challenged_at = Some(now);
        self.acknowledge(now, slot);
    }

    /// Has the slow path look at a flow that has begun to wait for its peer.
    pub fn watch(&mut self, now: Instant, slot: u32) {
        let (initial, min) = (self.config.rto_initial, self.config.rto_min);
        let interval_min = self.config.control_interval_min;
        let (flow, cold) = self.table.both(slot);
        flow.marks.set(Marks::WATCHED);
        cold.seen_una = flow.snd_una;
        cold.progress_at = now;
        cold.backoff = 0;
        cold.resend_at = now + cold.rtt.timeout(initial, min);
        cold.controlled_at = now;
        let smoothed = cold.rtt.smoothed().unwrap_or(initial);
        cold.control_at = now + smoothed.max(interval_min);
        let at = cold.control_at.min(cold.resend_at);
        self.timers.set(slot, at);
    }

    /// The news of a flow. They are told thereby.
    #[inline]
    pub fn moved(&mut self, slot: u32) -> Moved {
        let id = self.table.id(slot);
        let flow = self.table.flow(slot);
        flow.marks.clear(Marks::NEWS);
        let is_ended = flow.marks.any(Marks::FIN_RECEIVED);
        let freed_to = if flow.marks.any(Marks::FIN_ACKED) {
            flow.snd_end
        } else {
            flow.snd_una
        };
        Moved {
            flow: id,
            readable_to: flow.rcv_read + flow.readable(),
            freed_to,
            is_ended,
        }
    }

    /// Tells the end of a flow, after what is to be told before.
    pub fn tell_end(&mut self, slot: u32, end: End) {
        if self.table.flow(slot).marks.any(Marks::NEWS) {
            let moved = self.moved(slot);
            self.tell(slot, News::Moved(moved));
        }
        let flow = self.table.id(slot);
        self.tell(slot, News::Closed { flow, end });
    }

    /// Ends a flow and frees its slot. The application learns `end`, unless it has learnt its flow's end before.
    pub fn free(&mut self, slot: u32, end: Option<End>) {
        if let Some(end) = end {
            self.tell_end(slot, end);
        }
        self.take_out(slot);
    }

    /// Takes a flow out of its slot.
    pub fn take_out(&mut self, slot: u32) -> (Flow, Cold) {
        let (flow, mut cold) = self.table.remove(slot);
        self.timers.clear(slot);
        self.table.paths.release(flow.path);
        self.access.close(flow.app);
        if let Some(listener) = cold.listener.take() {
            self.listeners.at(listener).half_open -= 1;
        }
        (flow, cold)
    }

    /// Ends a flow, and tells the peer by a reset if it knows of it.
    pub fn abort(&mut self, now: Instant, slot: u32, end: End) {
        self.reset(now, slot);
        self.free(slot, Some(end));
    }

    /// Ends a handshake of which the application does not know.
    pub fn reset_quietly(&mut self, now: Instant, slot: u32) {
        self.reset(now, slot);
        self.free(slot, None);
    }

    fn reset(&mut self, now: Instant, slot: u32) {
        if matches!(self.table.stage(slot), Stage::Open | Stage::SynReceived) {
            let mut plan = acknowledgement(self.table.flow(slot));
            plan.flags = Flags::RST | Flags::ACK;
            self.reply_plan(now, slot, &plan);
        }
    }
}

/// The segment of a plan of a flow, which goes a way with our timestamp.
#[inline(always)]
pub fn segment_of(flow: &Flow, path: &Path, stamp: u32, plan: &Plan) -> Segment {
    let tuple = path.tuple(flow.local_port, flow.remote_port);
    let mut segment = Segment::new(tuple, plan.seq, flow.rcv_nxt, plan.flags);
    segment.window = plan.window;
    segment.options.stamps = flow.marks.any(Marks::STAMPS).then_some(Stamps {
        value: stamp,
        echo: flow.ts_recent,
    });
    segment.payload_bytes = plan.bytes;
    segment.ecn = if plan.is_markable { Ecn::Able } else { Ecn::Not };
    segment
}

/// Milliseconds of the stack's clock.
#[inline]
pub fn millis(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

/// Payload of the longest segment on a way, without options.
pub fn payload_max(path: &Path) -> u16 {
    let header = if path.local.is_v4() {
        ip::BYTES4
    } else {
        ip::BYTES6
    };
    path.mtu - (header + BYTES) as u16
}

/// Makes a flow's segments as short as its way wants them. False if they are already.
pub fn fit(flow: &mut Flow, path: &Path) -> bool {
    let options = if flow.marks.any(Marks::STAMPS) {
        STAMPS_BYTES
    } else {
        0
    };
    let most = payload_max(path) - options as u16;
    let is_longer = flow.mss > most;
    flow.mss = flow.mss.min(most);
    is_longer
}
