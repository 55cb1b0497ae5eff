//! The receive side of the fast path (RFC 9293 §3.10.7.4, in its order).

use crate::flow::{Flow, Marks};
use crate::frame::segment::Segment;
use crate::frame::{Ecn, Flags};
use crate::seq::Seq;
use base::Instant;

/// Flags of a segment that the fast path takes.
const COMMON: Flags = Flags(Flags::ACK.0 | Flags::PSH.0 | Flags::ECE.0 | Flags::CWR.0 | Flags::FIN.0);
/// Duplicate acknowledgements that mean a loss (RFC 5681 §3.2).
pub const DUP_ACKS: u8 = 3;

/// What there is to do: bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(pub u8);

impl Actions {
    /// The slow path has to look at the segment. Nothing was changed.
    pub const SLOW: Self = Self(1);
    /// Positions have moved, or the stream has ended: the application wants to know.
    pub const NEWS: Self = Self(1 << 1);
    /// The flow may have something to send.
    pub const SEND: Self = Self(1 << 2);
    /// An acknowledgement was put off.
    pub const LATER: Self = Self(1 << 3);
    /// Something was lost; `snd_nxt` went back.
    pub const LOSS: Self = Self(1 << 4);
    /// A FIN was received or acknowledged.
    pub const FIN: Self = Self(1 << 5);
    /// [`Received::first`] is to be acknowledged with the mark that was echoed before, at once (RFC 8257 §3.2).
    pub const FIRST: Self = Self(1 << 6);

    /// Whether any of `actions` is to be done.
    #[inline]
    pub const fn any(self, actions: Self) -> bool {
        self.0 & actions.0 != 0
    }

    /// Adds `actions`.
    #[inline]
    pub const fn add(&mut self, actions: Self) {
        self.0 |= actions.0;
    }

    const fn add_if(&mut self, on: bool, actions: Self) {
        if on {
            self.add(actions);
        }
    }
}

/// What a segment has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// What there is to do.
    pub actions: Actions,
    /// Where the payload belongs in the receive ring.
    pub place: Seq,
    /// Bytes of the segment's payload before those that are placed.
    pub skip: u32,
    /// Bytes to be placed.
    pub bytes: u32,
    /// See [`Actions::FIRST`].
    pub first: Seq,
}

/// Takes a segment. `ack_delay_ticks` is how long an acknowledgement may wait for payload, in ticks of 2¹⁶ ns.
#[inline]
pub fn receive(flow: &mut Flow, now: Instant, segment: &Segment, ack_delay_ticks: u32) -> Received {
    let mut received = Received::default();
    let room = flow.rcv_room();
    let offset = segment.seq.offset_from(flow.rcv_nxt);
    let length = segment.length();
    let stamps = flow.marks.any(Marks::STAMPS);
    if stamps && segment.options.stamps.is_none() {
        // RFC 7323 §3.2: dropped in silence, unless it is a reset.
        received
            .actions
            .add_if(segment.flags.any(Flags::RST), Actions::SLOW);
        return received;
    }
    let value = segment.options.stamps.map_or(0, |stamps| stamps.value);
    let acked = segment.ack.offset_from(flow.snd_una);
    let is_new = offset.wrapping_add(length as i32) > 0;
    let is_common = segment.flags.0 & !COMMON.0 == 0
        && segment.flags.any(Flags::ACK)
        && segment.plain
        && flow.marks.any(Marks::OPEN)
        // RFC 7323 §5.3: an older timestamp is of an old segment.
        && !(stamps && (value.wrapping_sub(flow.ts_recent) as i32) < 0)
        && offset <= room as i32
        // A bare acknowledgement may be overtaken by payload, but not by our acknowledgement of it.
        && (length > 0 || !segment.seq.before(flow.rcv_acked))
        // RFC 5961 §5.2: what was never sent, or is older than any window.
        && acked <= flow.in_flight() as i32
        && acked >= -(1i32 << flow.snd_ring)
        && !(flow.marks.any(Marks::DEAF) && brings_payload(offset, segment));
    if !is_common {
        received.actions.add(Actions::SLOW);
        return received;
    }
    flow.heard_ms = (now.as_nanos() / 1_000_000) as u32;
    if !is_new && length > 0 {
        // Seen before: the acknowledgement was lost.
        flow.marks.set(Marks::ACK_NOW);
        received.actions.add(Actions::SEND);
        return received;
    }
    // RFC 7323 §4.3 (2).
    if stamps && segment.seq.offset_from(flow.rcv_acked) <= 0 {
        flow.ts_recent = value;
    }
    acknowledge(flow, now, segment, acked, &mut received);
    if length > 0 {
        accept(flow, segment, &mut received, Offer { offset, room });
        if !flow.marks.any(Marks::ACK_NOW) {
            flow.marks.set(Marks::ACK_LATER);
            flow.ack_due = ((now.as_nanos() >> 16) as u32).wrapping_add(ack_delay_ticks);
            received.actions.add(Actions::LATER);
        } else {
            received.actions.add(Actions::SEND);
        }
    }
    received
}

/// Whether a segment has payload that was not seen before. The FIN behind payload of before is none.
#[inline]
pub fn brings_payload(offset: i32, segment: &Segment) -> bool {
    segment.payload_bytes > 0 && offset.wrapping_add(segment.payload_bytes as i32) > 0
}

/// Takes the acknowledgement and the window of a segment.
#[inline]
fn acknowledge(flow: &mut Flow, now: Instant, segment: &Segment, acked: i32, received: &mut Received) {
    let window = u32::from(segment.window) << flow.snd_scale;
    if acked > 0 {
        flow.snd_una = segment.ack;
        if flow.snd_nxt.before(segment.ack) {
            flow.snd_nxt = segment.ack;
        }
        if flow.recover.before(segment.ack) {
            flow.recover = segment.ack - 1;
        }
        flow.dup_acks = 0;
        flow.acked_bytes = flow.acked_bytes.wrapping_add(acked as u32);
        if segment.flags.any(Flags::ECE) && flow.marks.any(Marks::ECN) {
            flow.marked_bytes = flow.marked_bytes.wrapping_add(acked as u32);
        }
        if flow.marks.any(Marks::TIMED) && !segment.ack.before(flow.timed_seq) {
            flow.marks.clear(Marks::TIMED);
            flow.rtt_ns = now.nanos_since(flow.timed_at).clamp(1, u64::from(u32::MAX)) as u32;
        }
        received.actions.add(Actions::NEWS);
        if flow.marks.any(Marks::FIN_SENT) && segment.ack == flow.snd_end + 1 {
            flow.marks.set(Marks::FIN_ACKED);
            received.actions.add(Actions::FIN);
        }
    } else if acked == 0 && segment.length() == 0 && window == flow.snd_wnd && flow.in_flight() > 0 {
        duplicate(flow, received);
    }
    let is_later = segment.seq.offset_from(flow.snd_wl1);
    // Of two acknowledgements alike the larger window counts, as they may have overtaken each other; but a closed one always.
    let is_newer = is_later > 0 || is_later == 0 && (window > flow.snd_wnd || window == 0);
    if acked > 0 || acked == 0 && is_newer {
        if flow.snd_wnd == 0 && window > 0 {
            // What was sent to ask for the window has not been taken.
            flow.snd_nxt = flow.snd_una;
            flow.marks.clear(Marks::TIMED);
        }
        flow.snd_wnd = window;
        flow.snd_wl1 = segment.seq;
    }
    received.actions.add_if(flow.has_unsent(), Actions::SEND);
}

/// Counts a duplicate acknowledgement. The third one of a window means a loss.
#[cold]
fn duplicate(flow: &mut Flow, received: &mut Received) {
    flow.dup_acks = flow.dup_acks.saturating_add(1);
    // Not for what was sent again itself (RFC 6582 §3.2).
    if flow.dup_acks == DUP_ACKS && flow.recover.before(flow.snd_una) {
        flow.go_back();
        received.actions.add(Actions::LOSS);
    }
}

/// Where a segment lies: its distance from `rcv_nxt`, and the room behind `rcv_nxt`.
struct Offer {
    offset: i32,
    room: u32,
}

/// Takes the payload and the FIN of a segment of which something is new.
#[inline]
fn accept(flow: &mut Flow, segment: &Segment, received: &mut Received, offer: Offer) {
    if flow.marks.any(Marks::ECN) {
        echo(flow, segment, received);
    }
    let skip = (-offer.offset).max(0) as u32;
    let ahead = offer.offset.max(0) as u32;
    let skip = skip.min(segment.payload_bytes);
    let bytes = (segment.payload_bytes - skip).min(offer.room - ahead);
    let start = flow.rcv_nxt + ahead;
    *received = Received {
        place: start,
        skip,
        bytes,
        ..*received
    };
    if ahead > 0 {
        // RFC 5681 §4.2: an acknowledgement for each segment out of order.
        flow.marks.set(Marks::ACK_NOW);
        if !keep_early(flow, start, bytes) {
            received.bytes = 0;
        }
        return;
    }
    flow.rcv_nxt += bytes;
    received.actions.add_if(bytes > 0, Actions::NEWS);
    let mut is_now = flow.rcv_nxt.since(flow.rcv_acked) >= 2 * u32::from(flow.mss) || bytes == 0;
    if flow.early_bytes > 0 {
        is_now = true;
        close_gap(flow);
    }
    let end = segment.seq + segment.payload_bytes;
    let is_ended = flow.marks.any(Marks::FIN_RECEIVED);
    if segment.flags.any(Flags::FIN) && !is_ended && flow.rcv_nxt == end && flow.early_bytes == 0 {
        flow.rcv_nxt += 1;
        flow.marks.set(Marks::FIN_RECEIVED);
        is_now = true;
        received.actions.add(Actions::FIN);
        received.actions.add(Actions::NEWS);
    }
    if is_now {
        flow.marks.set(Marks::ACK_NOW);
    }
}

/// Keeps `bytes` that came before what lies ahead of them. False if there is another interval already.
#[cold]
fn keep_early(flow: &mut Flow, start: Seq, bytes: u32) -> bool {
    if bytes == 0 {
        return false;
    }
    let end = start + bytes;
    let early_end = flow.early + flow.early_bytes;
    if flow.early_bytes == 0 {
        (flow.early, flow.early_bytes) = (start, bytes);
        return true;
    }
    // Nothing may be missing between the two.
    if early_end.before(start) || end.before(flow.early) {
        return false;
    }
    let first = if start.before(flow.early) {
        start
    } else {
        flow.early
    };
    flow.early = first;
    flow.early_bytes = end.max(early_end).since(first);
    true
}

/// Joins the early interval if nothing is missing before it.
#[cold]
fn close_gap(flow: &mut Flow) {
    if flow.rcv_nxt.before(flow.early) {
        return;
    }
    flow.rcv_nxt = flow.rcv_nxt.max(flow.early + flow.early_bytes);
    flow.early_bytes = 0;
}

/// Notes whether the way was congested.
fn echo(flow: &mut Flow, segment: &Segment, received: &mut Received) {
    let is_marked = segment.ecn == Ecn::Congested;
    if !flow.marks.any(Marks::ACCURATE) {
        // RFC 3168 §6.1.3: until the sender says that it has slowed down.
        if segment.flags.any(Flags::CWR) {
            flow.marks.clear(Marks::ECHO);
        }
        if is_marked {
            flow.marks.set(Marks::ECHO);
        }
        return;
    }
    if flow.marks.any(Marks::ECHO) != is_marked {
        if flow.marks.any(Marks::ACK_LATER) {
            received.first = flow.rcv_nxt;
            received.actions.add(Actions::FIRST);
        }
        flow.marks.put(Marks::ECHO, is_marked);
        flow.marks.set(Marks::ACK_NOW);
    }
}
