//! The transmit side of the fast path: which segment a flow sends next.

use crate::flow::{Flow, Marks};
use crate::frame::Flags;
use crate::seq::Seq;
use base::{Duration, Instant};

/// What a flow does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It has nothing to send, or waits for an acknowledgement.
    Idle,
    /// It has something to send, nothing in flight, and the peer has no room: the slow path has to ask.
    Blocked,
    /// Its rate allows more then.
    Later(Instant),
    /// It sends a segment.
    Segment(Plan),
}

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first byte.
    pub seq: Seq,
    /// Bytes of payload, from the transmit ring.
    pub bytes: u32,
    /// Control bits.
    pub flags: Flags,
    /// The window as the header has it.
    pub window: u16,
    /// Whether routers may mark it.
    pub is_markable: bool,
}

/// Marks that change what a flow sends.
const UNUSUAL: Marks = Marks::OPEN
    .with(Marks::ECN)
    .with(Marks::ECHO)
    .with(Marks::FIN)
    .with(Marks::FIN_ACKED)
    .with(Marks::FIN_RECEIVED)
    .with(Marks::PROBE)
    .with(Marks::SYN)
    .with(Marks::ASK);

/// Plans the segment that is sent most often: everything that there is to send, of a flow without anything unusual. It does what
/// [`transmit`] does. None if it is another segment, or none; nothing was changed then.
#[inline(always)]
pub fn transmit_next(flow: &mut Flow, now: Instant, bytes_max: u32) -> Option<Plan> {
    let bytes = flow.snd_end.since(flow.snd_nxt);
    let out = flow.snd_nxt.since(flow.snd_una);
    let mss = u32::from(flow.mss);
    let waits = out > 0 && bytes < mss && !flow.marks.any(Marks::NO_DELAY);
    let is_usual = flow.marks.0 & UNUSUAL.0 == Marks::OPEN.0
        && flow.rate == 0
        && flow.snd_nxt == flow.snd_max
        && bytes > 0
        && bytes <= bytes_max.max(mss)
        && bytes <= flow.snd_wnd.min(flow.window).saturating_sub(out)
        && !waits;
    if !is_usual {
        return None;
    }
    let seq = flow.snd_nxt;
    flow.snd_nxt = flow.snd_end;
    flow.snd_max = flow.snd_end;
    time(flow, now);
    Some(Plan {
        seq,
        bytes,
        flags: Flags::ACK | Flags::PSH,
        window: told(flow),
        is_markable: false,
    })
}

/// Times what was sent last, unless something else is being timed, or the slow path has not taken the last round trip yet.
#[inline]
fn time(flow: &mut Flow, now: Instant) {
    if flow.rtt_ns == 0 && !flow.marks.any(Marks::TIMED) {
        flow.marks.set(Marks::TIMED);
        flow.timed_seq = flow.snd_nxt;
        flow.timed_at = now;
    }
}

/// Plans the next segment of an open flow and counts it as sent. A segment has at most `bytes_max` of payload, or
/// `mss` if that is more.
#[inline]
pub fn transmit(flow: &mut Flow, now: Instant, bytes_max: u32) -> Next {
    let mut next = Next::Idle;
    if flow.has_unsent() {
        next = payload(flow, now, bytes_max);
    }
    if matches!(next, Next::Segment(_)) || !flow.marks.any(Marks::ACK_NOW) {
        return next;
    }
    Next::Segment(acknowledgement(flow))
}

/// Plans an acknowledgement without payload.
#[inline]
pub fn acknowledgement(flow: &mut Flow) -> Plan {
    // Not beyond the peer's window, or the peer would not look at it.
    let edge = flow.snd_una + flow.snd_wnd;
    Plan {
        seq: if edge.before(flow.snd_max) {
            edge
        } else {
            flow.snd_max
        },
        bytes: 0,
        flags: Flags::ACK | echo(flow),
        window: told(flow),
        is_markable: false,
    }
}

/// Plans a segment with payload or FIN, as much as windows, rate and Nagle's rule allow.
#[inline]
fn payload(flow: &mut Flow, now: Instant, bytes_max: u32) -> Next {
    let unsent = flow.snd_end.since(flow.snd_nxt);
    let out = flow.snd_nxt.since(flow.snd_una);
    let is_probe = flow.marks.any(Marks::PROBE) && out == 0;
    let peer = flow.snd_wnd.max(u32::from(is_probe));
    let window = peer.min(flow.window).saturating_sub(out);
    let mss = u32::from(flow.mss);
    let mut bytes = unsent.min(window).min(bytes_max.max(mss));
    if bytes > mss && bytes < unsent {
        // What is not the end of the data is whole segments.
        bytes -= bytes % mss;
    }
    // The FIN takes a number of the window, too.
    let is_last = bytes == unsent && flow.marks.any(Marks::FIN) && bytes < window;
    if bytes == 0 && !is_last {
        return if out == 0 { Next::Blocked } else { Next::Idle };
    }
    if bytes < mss && out > 0 && !is_last {
        // A window that is nearly full waits for more room (RFC 9293 §3.8.6.2.1), and Nagle's rule for an acknowledgement.
        if bytes < unsent || !flow.marks.any(Marks::NO_DELAY) {
            return Next::Idle;
        }
    }
    if flow.rate > 0 {
        if now < flow.paced_at {
            return Next::Later(flow.paced_at);
        }
        let nanos = u64::from(bytes) * 1_000_000 / u64::from(flow.rate);
        flow.paced_at = flow.paced_at.max(now) + Duration::from_nanos(nanos);
    }
    Next::Segment(send(flow, now, bytes, is_last))
}

/// Counts a segment as sent.
#[inline]
fn send(flow: &mut Flow, now: Instant, bytes: u32, is_last: bool) -> Plan {
    let seq = flow.snd_nxt;
    let end = seq + bytes + u32::from(is_last);
    let is_new = !seq.before(flow.snd_max);
    flow.snd_nxt = end;
    flow.snd_max = flow.snd_max.max(end);
    flow.marks.clear(Marks::PROBE);
    if is_last {
        flow.marks.set(Marks::FIN_SENT);
    }
    // A segment that is sent again is never timed: its acknowledgement may be the first one's (RFC 6298 §3).
    if is_new {
        time(flow, now);
    }
    let is_pushed = bytes > 0 && seq + bytes == flow.snd_end;
    let is_markable = is_new && bytes > 0 && flow.marks.any(Marks::ECN);
    let is_reduced = is_markable && flow.marks.any(Marks::REDUCED);
    if is_reduced {
        flow.marks.clear(Marks::REDUCED);
    }
    let flags =
        Flags::ACK | Flags::PSH.when(is_pushed) | Flags::FIN.when(is_last) | Flags::CWR.when(is_reduced);
    Plan {
        seq,
        bytes,
        flags: flags | echo(flow),
        window: told(flow),
        is_markable,
    }
}

#[inline]
fn echo(flow: &Flow) -> Flags {
    Flags::ECE.when(flow.marks.any(Marks::ECHO))
}

/// The window to tell with the acknowledgement of everything received. It is settled thereby.
#[inline]
fn told(flow: &mut Flow) -> u16 {
    flow.marks.clear(Marks::ACK_NOW.with(Marks::ACK_LATER));
    flow.rcv_acked = flow.rcv_nxt;
    if offers_more(flow) {
        flow.rcv_edge = best_edge(flow);
    }
    let window = flow.rcv_edge.offset_from(flow.rcv_nxt).max(0) as u32 >> flow.rcv_scale;
    window.min(u32::from(u16::MAX)) as u16
}

/// Where the window could end at most.
#[inline]
fn best_edge(flow: &Flow) -> Seq {
    let limit = u32::from(u16::MAX) << flow.rcv_scale;
    flow.rcv_nxt + flow.rcv_room().min(limit)
}

/// Whether the window can grow by so much that the peer should know (RFC 9293 §3.8.6.2.2).
#[inline]
pub fn offers_more(flow: &Flow) -> bool {
    let more = best_edge(flow).offset_from(flow.rcv_edge);
    more > 0 && more as u32 >= u32::from(flow.mss).min(1 << flow.rcv_ring >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    #[test]
    fn the_usual_segment_is_what_any_segment_is() {
        let mut rng = Rng::new(12);
        let mut usual = 0;
        for _ in 0..200_000 {
            let mut before = Flow {
                rcv_nxt: Seq(rng.next_u64() as u32),
                rcv_ring: 12,
                snd_ring: 12,
                rcv_scale: rng.below(3) as u8,
                mss: 100,
                snd_una: Seq(rng.next_u64() as u32),
                snd_wnd: rng.below(3) as u32 * 400,
                window: rng.below(3) as u32 * 400,
                rate: u32::from(rng.chance(0.05)) * 1000,
                rtt_ns: u32::from(rng.chance(0.5)),
                marks: Marks::OPEN,
                ..Flow::default()
            };
            before.rcv_read = before.rcv_nxt - rng.below(2000) as u32;
            before.rcv_edge = before.rcv_nxt + rng.below(3000) as u32;
            before.snd_max = before.snd_una + [0, 0, 50, 100][rng.below(4) as usize];
            before.snd_nxt = if rng.chance(0.9) {
                before.snd_max
            } else {
                before.snd_una
            };
            before.snd_end = before.snd_max + [0, 64, 100, 250][rng.below(4) as usize];
            for mark in 0..23 {
                if rng.chance(0.06) {
                    before.marks.0 ^= 1 << mark;
                }
            }
            let now = Instant::from_nanos(rng.below(1 << 40));
            let bytes_max = rng.below(2) as u32 * 1000;
            let (mut one, mut other) = (before.clone(), before.clone());
            match transmit_next(&mut one, now, bytes_max) {
                None => assert_eq!(format!("{one:?}"), format!("{before:?}"), "nothing has changed"),
                Some(plan) => {
                    let any = transmit(&mut other, now, bytes_max);
                    assert_eq!(any, Next::Segment(plan), "{before:?}");
                    assert_eq!(format!("{one:?}"), format!("{other:?}"), "{before:?}");
                    assert!(!one.has_unsent(), "that was all");
                    usual += 1;
                }
            }
        }
        assert!(usual > 5000, "{usual} were not many");
    }
}
