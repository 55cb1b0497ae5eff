//! Closing: half, whole, and after everything (RFC 9293 §3.6, §3.10.4).

use super::state::State;
use crate::api::{End, Refused};
use crate::cold::Stage;
use crate::flow::Marks;
use crate::frame::Flags;
use crate::frame::segment::Segment;
use base::Instant;

/// The application sends no more.
pub fn shutdown(state: &mut State, now: Instant, slot: u32) -> Result<(), Refused> {
    let (flow, cold) = state.table.both(slot);
    if cold.stage != Stage::Open || flow.marks.any(Marks::FIN) {
        return Err(Refused::Ended);
    }
    cold.is_passive_close = flow.marks.any(Marks::FIN_RECEIVED);
    flow.marks.set(Marks::FIN);
    if !flow.marks.any(Marks::WATCHED) {
        state.watch(now, slot);
    }
    state.ready(slot);
    Ok(())
}

/// The application neither sends nor reads more.
pub fn close(state: &mut State, now: Instant, slot: u32) -> Result<(), Refused> {
    match state.table.stage(slot) {
        Stage::Open => {}
        Stage::TimeWait | Stage::Free => return Err(Refused::Ended),
        Stage::SynSent | Stage::SynReceived => {
            state.abort(now, slot, End::Aborted);
            return Ok(());
        }
    }
    let flow = state.table.flow(slot);
    if flow.marks.any(Marks::DEAF) {
        return Err(Refused::Ended);
    }
    if flow.readable() > 0 {
        // What the peer has sent is lost, and it should know (RFC 2525 §2.17).
        state.abort(now, slot, End::Aborted);
        return Ok(());
    }
    let is_half = flow.marks.any(Marks::FIN);
    flow.marks.set(Marks::DEAF);
    if is_half {
        limit_wait(state, now, slot);
        return Ok(());
    }
    shutdown(state, now, slot)
}

/// A FIN was received or acknowledged.
pub fn progress(state: &mut State, now: Instant, slot: u32) {
    let (flow, cold) = state.table.both(slot);
    if !flow.is_over() {
        return limit_wait(state, now, slot);
    }
    if cold.is_passive_close {
        return state.free(slot, Some(End::Done));
    }
    flow.marks.clear(Marks::OPEN.with(Marks::WATCHED));
    cold.stage = Stage::TimeWait;
    if flow.marks.any(Marks::ACK_NOW) {
        state.acknowledge(now, slot);
    }
    let time_wait = state.config.time_wait;
    state.timers.set(slot, now + time_wait);
    let id = state.table.id(slot);
    state.waiting.push_back(id);
    state.tell_end(slot, End::Done);
}

/// Starts the wait for the FIN of a peer to whom nobody listens any more.
fn limit_wait(state: &mut State, now: Instant, slot: u32) {
    let until = now + state.config.fin_wait;
    let (flow, cold) = state.table.both(slot);
    if flow.marks.all(Marks::DEAF.with(Marks::FIN_ACKED)) && cold.fin_until.is_none() {
        cold.fin_until = Some(until);
        state.timers.set(slot, until);
    }
}

/// Takes a segment of a flow in TIME-WAIT. True if it opens a connection anew (RFC 9293 §3.10.7.4, MAY-2).
pub fn time_wait(state: &mut State, now: Instant, slot: u32, segment: &Segment) -> bool {
    let flow = state.table.flow(slot);
    let stamps = segment.options.stamps.filter(|_| flow.marks.any(Marks::STAMPS));
    let is_younger = stamps.is_some_and(|stamps| stamps.value.wrapping_sub(flow.ts_recent) as i32 > 0);
    let only_syn = segment.flags.0 & (Flags::SYN.0 | Flags::ACK.0 | Flags::RST.0) == Flags::SYN.0;
    if only_syn && (is_younger || flow.rcv_nxt.before(segment.seq)) {
        state.free(slot, None);
        return true;
    }
    // Resets are ignored, or TIME-WAIT would be of no use (RFC 1337).
    if segment.length() > 0 && !segment.flags.any(Flags::RST) {
        // Our acknowledgement of the FIN was lost.
        let time_wait = state.config.time_wait;
        state.timers.set(slot, now + time_wait);
        state.challenge(now, slot);
    }
    false
}
