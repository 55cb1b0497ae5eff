//! Opening: from both sides, and from both at once (RFC 9293 §3.5, §3.10.7.2, §3.10.7.3).

use super::access::Opening;
use super::cookie::{self, Cookies};
use super::listen::Listener;
use super::state::{State, payload_max};
use crate::addr::{Endpoint, Tuple};
use crate::api::{End, News, RING_MAX, RING_MIN, Refused, Rings};
use crate::cold::{Cold, Stage};
use crate::config::EcnMode;
use crate::congestion::{Congestion, Control, Pace, Sample};
use crate::flow::{Flow, Marks};
use crate::frame::segment::{Options, SCALE_MAX, STAMPS_BYTES, Segment, Stamps};
use crate::frame::{Flags, Hop};
use base::{Duration, Instant};

/// Ports that are tried before none is said to be free.
const PORTS_TRIED: u32 = 1000;
/// Segments' length if a SYN does not say (RFC 9293 §3.7.1, RFC 8200 §5).
const MSS_V4: u16 = 536;
const MSS_V6: u16 = 1220;
/// Shorter segments are not asked for in earnest: they only make work.
const MSS_MIN: u16 = 64;

/// What a flow begins with.
struct Begin {
    tuple: Tuple,
    rings: Rings,
    app: u16,
    opaque: u64,
}

/// Whether rings may be of such sizes.
pub fn is_ring(rings: Rings) -> bool {
    let sizes = RING_MIN..=RING_MAX;
    sizes.contains(&rings.receive) && sizes.contains(&rings.transmit)
}

/// Opens a connection. `port` 0 is any.
pub fn connect(
    state: &mut State,
    now: Instant,
    app: u16,
    opaque: u64,
    call: (Endpoint, u16, Rings),
) -> Result<(), Refused> {
    let (remote, port, rings) = call;
    if !is_ring(rings) {
        return Err(Refused::Ring);
    }
    if !remote.ip.is_unicast() || remote.port == 0 || state.config.is_own(remote.ip) {
        return Err(Refused::Address);
    }
    let ip = state.config.source_for(remote.ip).ok_or(Refused::Unreachable)?;
    let tuple = choose(state, Endpoint { ip, port }, remote).ok_or(Refused::InUse)?;
    let opening = Opening {
        app,
        remote: remote.ip,
        port: remote.port,
    };
    let begin = Begin {
        tuple,
        rings,
        app,
        opaque,
    };
    let slot = begin_flow(state, now, &opening, begin, None)?;
    let flow = state.table.id(slot);
    state.tell(slot, News::Connecting { flow });
    state.ready(slot);
    Ok(())
}

/// Both ends, with a free port if none is asked for. Random ports are hard to guess (RFC 6056 §3.3.2).
fn choose(state: &mut State, local: Endpoint, remote: Endpoint) -> Option<Tuple> {
    if local.port != 0 {
        let tuple = Tuple { local, remote };
        return state.table.find(&tuple).is_none().then_some(tuple);
    }
    let (first, last) = state.config.ephemeral;
    (0..PORTS_TRIED).find_map(|_| {
        let port = state.rng.between(u64::from(first), u64::from(last)) as u16;
        let tuple = Tuple {
            local: Endpoint { port, ..local },
            remote,
        };
        let is_free = state.table.find(&tuple).is_none() && !state.listeners.has_port(local.ip, port);
        is_free.then_some(tuple)
    })
}

/// Makes the flow of a SYN to be sent, or to be answered if it is a listener's.
fn begin_flow(
    state: &mut State,
    now: Instant,
    opening: &Opening,
    begin: Begin,
    listener: Option<u32>,
) -> Result<u32, Refused> {
    let Tuple { local, remote } = begin.tuple;
    let hop = state.config.next_hop(remote.ip).ok_or(Refused::Unreachable)?;
    if !state.table.has_room() && !forget_one(state) {
        return Err(Refused::Full);
    }
    state.access.open(now, opening)?;
    let Some(path) = state.table.paths.acquire(now, local.ip, remote.ip, hop) else {
        state.access.close(begin.app);
        return Err(Refused::Full);
    };
    let iss = state.first_seq(now, &begin.tuple);
    let mut flow = Flow {
        snd_una: iss,
        snd_nxt: iss + 1,
        snd_max: iss + 1,
        snd_end: iss + 1,
        recover: iss,
        mss: payload_max(state.table.paths.path(path)),
        path,
        app: begin.app,
        rcv_ring: begin.rings.receive,
        snd_ring: begin.rings.transmit,
        rcv_scale: scale_for(begin.rings.receive),
        ..Flow::default()
    };
    flow.marks.set(Marks::SYN);
    let mut cold = Cold::new(begin.tuple, iss, now, Control::new(state.config.congestion));
    if listener.is_some() {
        cold.stage = Stage::SynReceived;
    }
    (cold.opaque, cold.listener) = (begin.opaque, listener);
    cold.resend_at = now + state.config.rto_initial;
    cold.user_timeout = state.config.user_timeout;
    let resend_at = cold.resend_at;
    let slot = state
        .table
        .insert(flow, cold)
        .expect("there is room, and no such flow");
    if let Some(listener) = listener {
        state.listeners.at(listener).half_open += 1;
    }
    state.timers.set(slot, resend_at);
    Ok(slot)
}

/// Frees the flow that has been in TIME-WAIT for longest. False if there is none.
fn forget_one(state: &mut State) -> bool {
    while let Some(id) = state.waiting.pop_front() {
        if state.table.id(id.index) == id && state.table.stage(id.index) == Stage::TimeWait {
            state.free(id.index, None);
            return true;
        }
    }
    false
}

/// The least window scale that can tell the whole ring.
fn scale_for(ring: u8) -> u8 {
    ring.saturating_sub(15).min(SCALE_MAX)
}

/// The SYN of a flow, or its answer, to be sent now.
pub fn handshake(state: &mut State, now: Instant, slot: u32) -> Segment {
    let (has_stamps, has_ecn) = (state.config.timestamps, state.config.ecn != EcnMode::Off);
    let stamp = state.stamp(now);
    let (flow, cold) = state.table.both(slot);
    let is_answer = cold.stage == Stage::SynReceived;
    // The first one is timed, unless it is sent again (RFC 6298 §3).
    let is_first = flow.timed_seq != cold.iss + 1;
    flow.marks.put(Marks::TIMED, is_first);
    (flow.timed_seq, flow.timed_at) = (cold.iss + 1, now);
    let has_ecn = if is_answer {
        flow.marks.any(Marks::ECN)
    } else {
        has_ecn && cold.backoff == 0
    };
    let has_stamps = if is_answer {
        flow.marks.any(Marks::STAMPS)
    } else {
        has_stamps
    };
    let flags = match is_answer {
        true => Flags::SYN | Flags::ACK | Flags::ECE.when(has_ecn),
        false => Flags::SYN | (Flags::ECE | Flags::CWR).when(has_ecn),
    };
    let is_scaled = !is_answer || flow.marks.any(Marks::SCALED);
    let path = flow.path;
    let mss = payload_max(state.table.paths.path(path));
    let (flow, cold) = state.table.both(slot);
    let mut segment = Segment::new(cold.tuple, cold.iss, flow.rcv_nxt, flags);
    segment.window = syn_window(flow.rcv_ring);
    segment.options = Options {
        mss: Some(mss),
        stamps: has_stamps.then_some(Stamps {
            value: stamp,
            echo: flow.ts_recent,
        }),
        scale: is_scaled.then_some(flow.rcv_scale),
    };
    segment
}

/// The window of a SYN, which is never scaled (RFC 7323 §2.2).
fn syn_window(ring: u8) -> u16 {
    (1u32 << ring).min(u32::from(u16::MAX)) as u16
}

/// Takes what the peer's SYN says.
fn adopt(state: &mut State, now: Instant, slot: u32, segment: &Segment) {
    let config = &state.config;
    let (has_stamps, ecn) = (config.timestamps, config.ecn);
    let flow = state.table.flow(slot);
    let options = segment.options;
    flow.rcv_nxt = segment.seq + 1;
    flow.rcv_read = flow.rcv_nxt;
    flow.rcv_acked = flow.rcv_nxt;
    flow.rcv_edge = flow.rcv_nxt + u32::from(syn_window(flow.rcv_ring));
    flow.snd_wnd = u32::from(segment.window);
    flow.snd_wl1 = segment.seq;
    flow.heard_ms = super::state::millis(now);
    let stamps = options.stamps.filter(|_| has_stamps);
    flow.marks.put(Marks::STAMPS, stamps.is_some());
    flow.ts_recent = stamps.map_or(0, |stamps| stamps.value);
    flow.marks.put(Marks::SCALED, options.scale.is_some());
    flow.snd_scale = options.scale.unwrap_or(0);
    if options.scale.is_none() {
        flow.rcv_scale = 0;
    }
    // RFC 3168 §6.1.1: both flags ask, ECE alone agrees.
    let expected = Flags::ECE | Flags::CWR.when(!segment.flags.any(Flags::ACK));
    let both = segment.flags.0 & (Flags::ECE.0 | Flags::CWR.0);
    let has_ecn = ecn != EcnMode::Off && both == expected.0;
    flow.marks.put(Marks::ECN, has_ecn);
    flow.marks
        .put(Marks::ACCURATE, has_ecn && ecn == EcnMode::Accurate);
    let default = if segment.source.ip.is_v4() { MSS_V4 } else { MSS_V6 };
    let told = options.mss.unwrap_or(default).max(MSS_MIN);
    // The options' bytes go from the payload (RFC 6691 §3.1).
    let bytes = if stamps.is_some() { STAMPS_BYTES as u16 } else { 0 };
    flow.mss = flow.mss.min(told) - bytes;
    state.table.cold(slot).irs = segment.seq;
}

/// A handshake is done: the fast path takes over.
fn establish(state: &mut State, now: Instant, slot: u32) {
    let (flow, cold) = state.table.both(slot);
    cold.stage = Stage::Open;
    cold.backoff = 0;
    flow.snd_una = cold.iss + 1;
    if flow.marks.any(Marks::TIMED) {
        cold.rtt
            .sample(now.since(flow.timed_at).max(Duration::from_nanos(1)));
    }
    flow.marks.clear(Marks::SYN.with(Marks::TIMED));
    flow.marks.set(Marks::OPEN);
    let mss = u32::from(flow.mss);
    let srtt = cold.rtt.smoothed().unwrap_or(state.config.rto_initial);
    let sample = Sample {
        now,
        elapsed: srtt,
        acked_bytes: 0,
        marked_bytes: 0,
        rtt: None,
        srtt,
        mss,
        in_flight: 0,
        is_limited: false,
    };
    let Pace { window, rate } = cold.control.start(&sample);
    (flow.window, flow.rate) = (window, rate);
    let listener = cold.listener.take();
    let tuple = cold.tuple;
    let (read_from, write_from) = (flow.rcv_nxt, flow.snd_end);
    state.timers.clear(slot);
    if let Some(listener) = listener {
        state.listeners.at(listener).half_open -= 1;
    }
    let flow = state.table.id(slot);
    let is_accepted = state.table.cold(slot).is_accepted;
    let open = News::Open {
        flow,
        tuple,
        is_accepted,
        read_from,
        write_from,
    };
    state.tell(slot, open);
}

/// Takes a segment to an address without a flow.
pub fn listen(state: &mut State, now: Instant, hop: Hop, segment: &Segment) {
    let Some(slot) = state.listeners.find(segment.target) else {
        return state.reject(hop, segment);
    };
    let listener = *state.listeners.at(slot);
    if segment.flags.any(Flags::RST) {
        return;
    }
    if segment.flags.any(Flags::ACK) {
        return cookie_back(state, now, hop, segment, &listener);
    }
    if !segment.flags.any(Flags::SYN) {
        return;
    }
    let opening = opening(&listener, segment);
    if !state.access.is_allowed(&opening) {
        return state.reject(hop, segment);
    }
    if listener.half_open >= listener.backlog {
        return send_cookie(state, now, hop, segment, slot);
    }
    let begin = begin(&listener, segment);
    // If there is no room, the peer sends its SYN again.
    if let Ok(flow) = begin_flow(state, now, &opening, begin, Some(slot)) {
        adopt(state, now, flow, segment);
        state.table.cold(flow).is_accepted = true;
        state.ready(flow);
    }
}

fn opening(listener: &Listener, segment: &Segment) -> Opening {
    Opening {
        app: listener.app,
        remote: segment.source.ip,
        port: segment.target.port,
    }
}

fn begin(listener: &Listener, segment: &Segment) -> Begin {
    Begin {
        tuple: segment.tuple(),
        rings: listener.rings,
        app: listener.app,
        opaque: listener.opaque,
    }
}

/// Answers a SYN, and keeps nothing.
fn send_cookie(state: &mut State, now: Instant, hop: Hop, segment: &Segment, listener: u32) {
    let listener = state.listeners.at(listener);
    listener.cookie_at = Some(now);
    let window = syn_window(listener.rings.receive);
    let default = if segment.source.ip.is_v4() { MSS_V4 } else { MSS_V6 };
    let mss = segment.options.mss.unwrap_or(default);
    let tuple = segment.tuple();
    let iss = Cookies(state.key).make(now, &tuple, segment.seq, mss);
    let mut answer = Segment::new(tuple, iss, segment.seq + 1, Flags::SYN | Flags::ACK);
    answer.window = window;
    let headers = if segment.source.ip.is_v4() { 40 } else { 60 };
    answer.options.mss = Some(state.config.mtu - headers);
    state.counters.cookies += 1;
    state.reply(super::state::Reply::Segment(state.back(hop), answer));
}

/// Takes the acknowledgement of a cookie, or answers that of nothing.
fn cookie_back(state: &mut State, now: Instant, hop: Hop, segment: &Segment, listener: &Listener) {
    let is_fresh = listener.cookie_at.is_some_and(|at| now < at + cookie::LIFE);
    let tuple = segment.tuple();
    let (irs, iss) = (segment.seq - 1, segment.ack - 1);
    let mss = Cookies(state.key).check(now, &tuple, irs, iss);
    if !is_fresh || segment.flags.any(Flags::SYN) {
        return state.reject(hop, segment);
    }
    // Later data of a connection whose first data are lost is no cookie, and must not end it: nothing is answered. So dead
    // connections of peers learn of their end some minutes later.
    let Some(mss) = mss else {
        return;
    };
    let begin = begin(listener, segment);
    // If there is no room, the peer sends what it has again, or learns of the loss by a reset when the cookie is too old.
    let Ok(slot) = begin_flow(state, now, &opening(listener, segment), begin, None) else {
        return;
    };
    let syn = Segment {
        seq: irs,
        options: Options {
            mss: Some(mss),
            ..Options::default()
        },
        flags: Flags::SYN,
        ..*segment
    };
    adopt(state, now, slot, &syn);
    let (flow, cold) = state.table.both(slot);
    cold.iss = iss;
    cold.is_accepted = true;
    (flow.snd_una, flow.snd_nxt) = (iss, iss + 1);
    (flow.snd_max, flow.snd_end, flow.recover) = (iss + 1, iss + 1, iss);
    establish(state, now, slot);
    state.again = Some(*segment);
}

/// Takes a segment of a flow whose SYN is sent (RFC 9293 §3.10.7.3).
pub fn syn_sent(state: &mut State, now: Instant, hop: Hop, slot: u32, segment: &Segment) {
    let cold = state.table.cold(slot);
    let has_ack = segment.flags.any(Flags::ACK);
    if has_ack && segment.ack != cold.iss + 1 {
        return state.reject(hop, segment);
    }
    if segment.flags.any(Flags::RST) {
        if has_ack {
            state.free(slot, Some(End::Refused));
        }
        return;
    }
    if !segment.flags.any(Flags::SYN) {
        return;
    }
    adopt(state, now, slot, segment);
    if has_ack {
        establish(state, now, slot);
        state.table.flow(slot).marks.set(Marks::ACK_NOW);
    } else {
        // Both have opened at once: the SYN is answered with the number that ours had.
        state.table.cold(slot).stage = Stage::SynReceived;
        state.table.flow(slot).marks.set(Marks::SYN);
    }
    state.ready(slot);
}

/// Takes a segment of a flow whose peer's SYN is answered.
pub fn syn_received(state: &mut State, now: Instant, hop: Hop, slot: u32, segment: &Segment) {
    let (flow, cold) = state.table.both(slot);
    let is_syn_again = segment.flags.any(Flags::SYN) && segment.seq == cold.irs;
    let room = flow.rcv_room() as i32;
    let offset = segment.seq.offset_from(flow.rcv_nxt);
    if !is_syn_again && !(0..=room).contains(&offset) {
        if !segment.flags.any(Flags::RST) {
            state.challenge(now, slot);
        }
        return;
    }
    if segment.flags.any(Flags::RST) {
        // A listener's handshake goes without a word (§3.10.7.4).
        let end = if cold.is_accepted {
            None
        } else {
            Some(End::Refused)
        };
        return match offset {
            0 => state.free(slot, end),
            _ => state.challenge(now, slot),
        };
    }
    if !segment.flags.any(Flags::ACK) {
        if is_syn_again {
            flow.marks.set(Marks::SYN);
            state.ready(slot);
        } else if segment.flags.any(Flags::SYN) {
            state.challenge(now, slot);
        }
        return;
    }
    if segment.ack != cold.iss + 1 {
        return state.reject(hop, segment);
    }
    if flow.marks.any(Marks::STAMPS) && segment.options.stamps.is_none() {
        return;
    }
    establish(state, now, slot);
    if is_syn_again {
        // The answer to our answer when both have opened at once.
        state.table.flow(slot).marks.set(Marks::ACK_NOW);
        state.ready(slot);
    } else {
        state.again = Some(*segment);
    }
}
