//! What routers and hosts say of our segments. It is believed only about a segment in flight (RFC 5927 §4.1).

use super::state::{State, fit};
use crate::api::End;
use crate::cold::Stage;
use crate::flow::Marks;
use crate::frame::icmp::{Report, Trouble};
use base::Instant;

/// Takes a report.
pub fn take(state: &mut State, now: Instant, report: &Report) {
    let Some(slot) = state.table.find(&report.tuple) else {
        return;
    };
    let stage = state.table.stage(slot);
    let flow = state.table.flow(slot);
    if report.seq.before(flow.snd_una) || !report.seq.before(flow.snd_max) {
        return;
    }
    match (report.trouble, stage) {
        (Trouble::TooBig { mtu }, _) => shorten(state, now, slot, mtu),
        // An open connection ends for no such report (RFC 5927 §5.2).
        (Trouble::Hard, Stage::SynSent) => state.free(slot, Some(End::Refused)),
        (Trouble::Hard | Trouble::Soft, _) => {}
    }
}

/// Path MTU discovery (RFC 1191, RFC 8201): what was too long is sent again, shorter.
fn shorten(state: &mut State, now: Instant, slot: u32, mtu: u32) {
    let path = state.table.flow(slot).path;
    state.table.paths.shorten(now, path, mtu);
    let path = *state.table.paths.path(path);
    let flow = state.table.flow(slot);
    // Another flow of the way may have heard of it before.
    if fit(flow, &path) && flow.marks.any(Marks::OPEN) {
        flow.go_back();
        state.ready(slot);
    }
}
