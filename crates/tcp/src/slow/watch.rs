//! What time does to flows: congestion control each round trip, retransmission (RFC 6298 §5), questions for a closed window
//! (RFC 9293 §3.8.6.1), keep-alive (§3.8.4), and giving up (§3.8.3).
//!
//! A flow that waits for its peer is *watched*: looked at once per round trip. Nothing on the fast path sets a timer.

use super::state::{State, millis};
use crate::api::End;
use crate::cold::{Cold, Stage};
use crate::congestion::{Congestion, Loss, Pace, Sample};
use crate::flow::{Flow, Marks};
use base::{Duration, Instant};

/// Doublings after which the timeout is at its maximum anyway.
const BACKOFF_MAX: u8 = 16;

/// Looks at a flow whose time has come.
pub fn look(state: &mut State, now: Instant, slot: u32) {
    match state.table.stage(slot) {
        Stage::Free => {}
        Stage::SynSent | Stage::SynReceived => resend_syn(state, now, slot),
        Stage::TimeWait => state.free(slot, None),
        Stage::Open => look_open(state, now, slot),
    }
}

/// Sends a SYN or its answer again, or gives up.
fn resend_syn(state: &mut State, now: Instant, slot: u32) {
    let (retries, initial, max) = (
        state.config.syn_retries,
        state.config.rto_initial,
        state.config.rto_max,
    );
    let (flow, cold) = state.table.both(slot);
    if cold.backoff >= retries {
        let end = if cold.is_accepted {
            None
        } else {
            Some(End::TimedOut)
        };
        return state.free(slot, end);
    }
    cold.backoff += 1;
    flow.marks.set(Marks::SYN);
    let at = now + (initial * (1 << cold.backoff.min(BACKOFF_MAX))).min(max);
    state.timers.set(slot, at);
    state.ready(slot);
}

fn look_open(state: &mut State, now: Instant, slot: u32) {
    let (flow, cold) = state.table.both(slot);
    if cold.fin_until.is_some_and(|until| until <= now) {
        return state.free(slot, Some(End::Done));
    }
    if flow.marks.any(Marks::WATCHED) {
        if let Some(end) = progress(state, now, slot) {
            return state.abort(now, slot, end);
        }
    } else if keep_alive(state, now, slot) {
        return state.abort(now, slot, End::TimedOut);
    }
    arm(state, now, slot);
}

/// The timeout of a flow, doubled as often as it has run out.
fn timeout(cold: &Cold, limits: (Duration, Duration, Duration)) -> Duration {
    let (initial, min, max) = limits;
    let timeout = cold.rtt.timeout(initial, min);
    timeout
        .saturating_mul(1 << cold.backoff.min(BACKOFF_MAX))
        .min(max)
}

/// Looks at what a watched flow waits for. Answers how it ends if the peer is given up.
fn progress(state: &mut State, now: Instant, slot: u32) -> Option<End> {
    let config = &state.config;
    let limits = (config.rto_initial, config.rto_min, config.rto_max);
    let (flow, cold) = state.table.both(slot);
    if let Some(rtt) = take_rtt(flow) {
        cold.rtt.sample(rtt);
    }
    if flow.snd_una != cold.seen_una {
        cold.seen_una = flow.snd_una;
        cold.progress_at = now;
        cold.backoff = 0;
        cold.resend_at = now + timeout(cold, limits);
    }
    if now >= cold.control_at {
        control(state, now, slot);
    }
    let (flow, cold) = state.table.both(slot);
    let is_closed = flow.snd_wnd == 0;
    if flow.in_flight() == 0 && !(flow.has_unsent() && is_closed) {
        cold.progress_at = now;
        cold.resend_at = now + timeout(cold, limits);
        return None;
    }
    // A peer that answers and takes nothing may do so for ever (RFC 1122 §4.2.2.17).
    let silent = Duration::from_millis(u64::from(millis(now).wrapping_sub(flow.heard_ms)));
    if is_closed && silent < cold.user_timeout {
        cold.progress_at = now;
    }
    if now.since(cold.progress_at) >= cold.user_timeout {
        return Some(End::TimedOut);
    }
    if now < cold.resend_at {
        return None;
    }
    let is_first = cold.backoff == 0;
    cold.backoff = (cold.backoff + 1).min(BACKOFF_MAX);
    cold.resend_at = now + timeout(cold, limits);
    if is_closed {
        flow.snd_nxt = flow.snd_una;
        flow.marks.clear(Marks::TIMED);
        flow.marks.set(Marks::PROBE);
        state.counters.probes += 1;
    } else {
        state.counters.timeouts += 1;
        let in_flight = flow.in_flight();
        flow.go_back();
        if is_first {
            lose(state, now, slot, Loss::Timeout, in_flight);
        }
    }
    state.ready(slot);
    None
}

/// The round trip that was timed, if one was.
fn take_rtt(flow: &mut Flow) -> Option<Duration> {
    let nanos = core::mem::take(&mut flow.rtt_ns);
    (nanos > 0).then(|| Duration::from_nanos(u64::from(nanos)))
}

/// What the flow's control is told.
fn sample(flow: &Flow, cold: &Cold, now: Instant, rtt: Option<Duration>, initial: Duration) -> Sample {
    let out = flow.snd_nxt.since(flow.snd_una);
    let mss = u32::from(flow.mss);
    Sample {
        now,
        elapsed: now.since(cold.controlled_at),
        acked_bytes: flow.acked_bytes,
        marked_bytes: flow.marked_bytes,
        rtt,
        srtt: cold.rtt.smoothed().unwrap_or(initial),
        mss,
        in_flight: flow.in_flight(),
        is_limited: flow.has_unsent() && (flow.rate > 0 || flow.window <= out + mss),
    }
}

/// Asks the congestion control, once per round trip.
fn control(state: &mut State, now: Instant, slot: u32) {
    let (initial, interval_min) = (state.config.rto_initial, state.config.control_interval_min);
    let (flow, cold) = state.table.both(slot);
    let rtt = cold.rtt.last();
    let sample = sample(flow, cold, now, rtt, initial);
    if sample.acked_bytes > 0 {
        let pace = cold.control.control(&sample);
        apply(flow, pace);
        if sample.marked_bytes > 0 {
            flow.marks.set(Marks::REDUCED);
        }
        (flow.acked_bytes, flow.marked_bytes) = (0, 0);
        cold.controlled_at = now;
    }
    cold.control_at = now + sample.srtt.max(interval_min);
    if flow.has_unsent() {
        state.ready(slot);
    }
}

fn apply(flow: &mut Flow, pace: Pace) {
    flow.window = pace.window.max(u32::from(flow.mss));
    flow.rate = pace.rate;
}

/// Something was lost. `in_flight` bytes were out.
fn lose(state: &mut State, now: Instant, slot: u32, loss: Loss, in_flight: u32) {
    let initial = state.config.rto_initial;
    let (flow, cold) = state.table.both(slot);
    let mut sample = sample(flow, cold, now, None, initial);
    sample.in_flight = in_flight;
    let pace = cold.control.lost(now, loss, &sample);
    apply(flow, pace);
    (flow.acked_bytes, flow.marked_bytes) = (0, 0);
    cold.controlled_at = now;
    if flow.marks.any(Marks::ECN) {
        flow.marks.set(Marks::REDUCED);
    }
}

/// Duplicate acknowledgements have shown a loss.
pub fn lost(state: &mut State, now: Instant, slot: u32) {
    state.counters.losses += 1;
    let in_flight = state.table.flow(slot).in_flight();
    lose(state, now, slot, Loss::Fast, in_flight);
    state.ready(slot);
}

/// Asks a silent peer whether it is there. True if it has not answered often enough.
fn keep_alive(state: &mut State, now: Instant, slot: u32) -> bool {
    let (flow, cold) = state.table.both(slot);
    let Some(rule) = cold.keep_alive else {
        return false;
    };
    let silent = Duration::from_millis(u64::from(millis(now).wrapping_sub(flow.heard_ms)));
    if silent < rule.idle {
        cold.asked = 0;
        return false;
    }
    if silent < rule.idle + rule.interval * u32::from(cold.asked) {
        return false;
    }
    if cold.asked >= rule.probes {
        return true;
    }
    cold.asked += 1;
    flow.marks.set(Marks::ASK);
    state.ready(slot);
    false
}

/// Sets the time of the next look.
pub fn arm(state: &mut State, now: Instant, slot: u32) {
    let (flow, cold) = state.table.both(slot);
    if flow.in_flight() == 0 && !flow.has_unsent() {
        flow.marks.clear(Marks::WATCHED);
    }
    let mut at = cold.fin_until;
    if flow.marks.any(Marks::WATCHED) {
        // A closed window is asked for, and nothing else happens.
        let is_asking = flow.snd_wnd == 0 && flow.in_flight() == 0;
        let next = if is_asking {
            cold.resend_at
        } else {
            cold.control_at.min(cold.resend_at)
        };
        at = base::time::earliest(at, Some(next));
    } else if let Some(rule) = cold.keep_alive {
        let silent = Duration::from_millis(u64::from(millis(now).wrapping_sub(flow.heard_ms)));
        let due = rule.idle + rule.interval * u32::from(cold.asked);
        let wait = due.saturating_sub(silent).max(Duration::from_millis(1));
        at = base::time::earliest(at, Some(now + wait));
    }
    match at {
        Some(at) => state.timers.set(slot, at),
        None => state.timers.clear(slot),
    }
}
