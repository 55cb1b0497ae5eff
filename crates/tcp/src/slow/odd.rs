//! Segments of open flows that the fast path did not take (RFC 9293 §3.10.7.4; RFC 5961; RFC 7323 §5).

use super::state::{State, millis};
use crate::api::End;
use crate::fast::receive::brings_payload;
use crate::flow::Marks;
use crate::frame::Flags;
use crate::frame::segment::Segment;
use base::Instant;

/// After so long a silence old timestamps say nothing (RFC 7323 §5.5): 24 days, in milliseconds.
const STAMPS_LIFE_MS: u32 = 24 * 24 * 3600 * 1000;

/// Takes the segment, in the order of the RFC.
pub fn take(state: &mut State, now: Instant, slot: u32, segment: &Segment) {
    let flow = state.table.flow(slot);
    let is_reset = segment.flags.any(Flags::RST);
    if let Some(stamps) = segment.options.stamps.filter(|_| flow.marks.any(Marks::STAMPS)) {
        let is_old = (stamps.value.wrapping_sub(flow.ts_recent) as i32) < 0;
        if is_old && !is_reset {
            if millis(now).wrapping_sub(flow.heard_ms) < STAMPS_LIFE_MS {
                return state.challenge(now, slot);
            }
            flow.ts_recent = stamps.value;
        }
    }
    let room = flow.rcv_room() as i32;
    let offset = segment.seq.offset_from(flow.rcv_nxt);
    let end = offset.wrapping_add(segment.length() as i32);
    let is_acceptable = match segment.length() {
        0 => offset >= 0 && offset <= room,
        _ => end > 0 && offset <= room,
    };
    if !is_acceptable {
        if !is_reset {
            state.challenge(now, slot);
        }
        return;
    }
    if is_reset {
        // RFC 5961 §3.2: only the exact number resets.
        return match offset {
            0 => state.free(slot, Some(End::Reset)),
            _ => state.challenge(now, slot),
        };
    }
    // RFC 5961 §4.2.
    if segment.flags.any(Flags::SYN) {
        return state.challenge(now, slot);
    }
    if !segment.flags.any(Flags::ACK) {
        return;
    }
    let acked = segment.ack.offset_from(flow.snd_una);
    if acked > flow.in_flight() as i32 || acked < -(1 << flow.snd_ring) {
        return state.challenge(now, slot);
    }
    if flow.marks.any(Marks::DEAF) && brings_payload(offset, segment) {
        return state.abort(now, slot, End::Aborted);
    }
    // Options that we do not know, and urgent data, which we take as any other (RFC 6093 §6).
    state.again = Some(Segment {
        plain: true,
        flags: Flags(segment.flags.0 & !Flags::URG.0),
        ..*segment
    });
}
