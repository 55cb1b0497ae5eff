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

/// Marks that change what a segment does.
const UNUSUAL: Marks = Marks::OPEN
    .with(Marks::STAMPS)
    .with(Marks::ECN)
    .with(Marks::DEAF)
    .with(Marks::FIN_SENT)
    .with(Marks::FIN_RECEIVED);
/// Those of them that are usual.
const USUAL: Marks = Marks::OPEN.with(Marks::STAMPS);

/// Takes a segment. `ack_delay_ticks` is how long an acknowledgement may wait for payload, in ticks of 2¹⁶ ns.
#[inline]
pub fn receive(flow: &mut Flow, now: Instant, segment: &Segment, ack_delay_ticks: u32) -> Received {
    match receive_next(flow, now, segment, ack_delay_ticks) {
        Some(received) => received,
        None => receive_any(flow, now, segment, ack_delay_ticks),
    }
}

/// Takes the segment that comes most often: the next payload in order, or an acknowledgement, of a flow without anything unusual
/// (V. Jacobson's header prediction). It does what [`receive_any`] does. None if it is another segment; nothing was
/// changed then.
#[inline(always)]
pub fn receive_next(
    flow: &mut Flow,
    now: Instant,
    segment: &Segment,
    ack_delay_ticks: u32,
) -> Option<Received> {
    let bytes = segment.payload_bytes;
    let stamps = segment.options.stamps?;
    let acked = segment.ack.since(flow.snd_una);
    let is_next = flow.marks.0 & UNUSUAL.0 == USUAL.0
        && segment.flags.0 & !Flags::PSH.0 == Flags::ACK.0
        && segment.plain
        && segment.seq == flow.rcv_nxt
        && (bytes > 0 || acked > 0)
        && bytes <= (1u32 << flow.rcv_ring) - flow.rcv_nxt.since(flow.rcv_read)
        && acked <= flow.in_flight()
        && flow.early_bytes == 0
        && stamps.value.wrapping_sub(flow.ts_recent) as i32 >= 0;
    if !is_next {
        return None;
    }
    let mut received = Received {
        bytes,
        ..Received::default()
    };
    flow.heard_ms = (now.as_nanos() / 1_000_000) as u32;
    if segment.seq.offset_from(flow.rcv_acked) <= 0 {
        flow.ts_recent = stamps.value;
    }
    acknowledge(flow, now, segment, acked as i32, &mut received);
    if bytes > 0 {
        received.place = segment.seq;
        received.actions.add(Actions::NEWS);
        flow.rcv_nxt += bytes;
        if flow.rcv_nxt.since(flow.rcv_acked) >= 2 * u32::from(flow.mss) {
            flow.marks.set(Marks::ACK_NOW);
        }
        settle(flow, now, ack_delay_ticks, &mut received);
    }
    Some(received)
}

/// Has payload acknowledged now, or later.
#[inline(always)]
fn settle(flow: &mut Flow, now: Instant, ack_delay_ticks: u32, received: &mut Received) {
    if flow.marks.any(Marks::ACK_NOW) {
        received.actions.add(Actions::SEND);
        return;
    }
    flow.marks.set(Marks::ACK_LATER);
    flow.ack_due = ((now.as_nanos() >> 16) as u32).wrapping_add(ack_delay_ticks);
    received.actions.add(Actions::LATER);
}

/// Takes any segment, in the order of the RFC.
#[inline(never)]
fn receive_any(flow: &mut Flow, now: Instant, segment: &Segment, ack_delay_ticks: u32) -> Received {
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
        settle(flow, now, ack_delay_ticks, &mut received);
    }
    received
}

/// Whether a segment has payload that was not seen before. The FIN behind payload of before is none.
#[inline]
pub fn brings_payload(offset: i32, segment: &Segment) -> bool {
    segment.payload_bytes > 0 && offset.wrapping_add(segment.payload_bytes as i32) > 0
}

/// Takes the acknowledgement and the window of a segment.
#[inline(always)]
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
fn accept(flow: &mut Flow, segment: &Segment, received: &mut Received, offer: Offer) {
    if flow.marks.any(Marks::ECN) {
        echo(flow, segment.ecn == Ecn::Congested, segment.flags, received);
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
fn echo(flow: &mut Flow, is_marked: bool, flags: Flags, received: &mut Received) {
    if !flow.marks.any(Marks::ACCURATE) {
        // RFC 3168 §6.1.3: until the sender says that it has slowed down.
        if flags.any(Flags::CWR) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Tuple;
    use crate::frame::{Options, Stamps};
    use base::Rng;

    /// A flow that is mostly usual: each field is now and then something else.
    fn flow(rng: &mut Rng) -> Flow {
        let near = |rng: &mut Rng, at: Seq| at + rng.below(300) as u32;
        let mut flow = Flow {
            rcv_read: Seq(rng.next_u64() as u32),
            rcv_ring: 12,
            snd_ring: 12,
            mss: 100,
            ts_recent: rng.next_u64() as u32,
            snd_una: Seq(rng.next_u64() as u32),
            snd_wnd: rng.below(2) as u32 * 4000,
            snd_scale: rng.below(3) as u8,
            rtt_ns: 5,
            ..Flow::default()
        };
        flow.rcv_nxt = near(rng, flow.rcv_read);
        flow.rcv_acked = flow.rcv_nxt - rng.below(250) as u32;
        flow.rcv_edge = flow.rcv_nxt + 3000;
        flow.snd_max = near(rng, flow.snd_una);
        flow.snd_nxt = if rng.chance(0.9) {
            flow.snd_max
        } else {
            flow.snd_una
        };
        flow.snd_end = near(rng, flow.snd_max);
        flow.recover = flow.snd_una - rng.below(50) as u32;
        flow.timed_seq = flow.snd_max;
        flow.marks = USUAL;
        for mark in 0..23 {
            if rng.chance(0.06) {
                flow.marks.0 ^= 1 << mark;
            }
        }
        if rng.chance(0.1) {
            (flow.early, flow.early_bytes) = (flow.rcv_nxt + 700, 50);
        }
        flow
    }

    fn segment(rng: &mut Rng, flow: &Flow) -> Segment {
        let seq = flow.rcv_nxt + rng.below(3) as u32 / 2 * 40;
        let ack = flow.snd_una + rng.below(u64::from(flow.in_flight()) + 2) as u32;
        let mut segment = Segment::new(Tuple::default(), seq, ack, Flags::ACK);
        segment.flags.0 |= [0, Flags::PSH.0, Flags::FIN.0, Flags::ECE.0][rng.below(4) as usize];
        segment.payload_bytes = [0, 64, 150, 5000][rng.below(4) as usize];
        segment.window = 4000;
        segment.plain = rng.chance(0.95);
        segment.options = Options {
            stamps: rng.chance(0.9).then_some(Stamps {
                value: flow.ts_recent.wrapping_add(2).wrapping_sub(rng.below(4) as u32),
                echo: 0,
            }),
            ..Options::default()
        };
        segment
    }

    #[test]
    fn the_next_segment_does_what_any_segment_does() {
        let mut rng = Rng::new(11);
        let mut next = [0, 0];
        for _ in 0..200_000 {
            let before = flow(&mut rng);
            let segment = segment(&mut rng, &before);
            let now = Instant::from_nanos(rng.below(1 << 40));
            let (mut one, mut other) = (before.clone(), before.clone());
            match receive_next(&mut one, now, &segment, 7) {
                None => assert_eq!(format!("{one:?}"), format!("{before:?}"), "nothing has changed"),
                Some(received) => {
                    let mut any = receive_any(&mut other, now, &segment, 7);
                    // The place of nothing does not count.
                    if any.bytes == 0 {
                        any.place = received.place;
                    }
                    assert_eq!(received, any, "{before:?} {segment:?}");
                    assert_eq!(format!("{one:?}"), format!("{other:?}"), "{before:?} {segment:?}");
                    next[usize::from(segment.payload_bytes > 0)] += 1;
                }
            }
        }
        assert!(next.iter().all(|count| *count > 5000), "{next:?} were not many");
    }
}
