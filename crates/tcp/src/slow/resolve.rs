//! Neighbours: questions, answers, and the flows that wait for them.

use super::state::{Reply, State};
use crate::addr::{Ip, Mac};
use crate::api::End;
use crate::cold::Stage;
use crate::frame::arp::Arp;
use crate::frame::icmp::Neighbour;
use crate::paths::Due;
use base::Instant;

/// Takes an ARP packet (RFC 826, RFC 5227).
pub fn arp(state: &mut State, now: Instant, arp: &Arp) {
    if !arp.sender.is_unicast() {
        return;
    }
    learn(state, now, arp.sender, arp.sender_mac);
    if !arp.is_reply && state.config.is_own(arp.target) {
        let answer = Arp {
            is_reply: true,
            sender_mac: state.config.mac,
            sender: arp.target,
            target_mac: arp.sender_mac,
            target: arp.sender,
        };
        state.reply(Reply::Arp(state.hop(arp.sender_mac), answer));
    }
}

/// Takes a packet of IPv6 neighbour discovery (RFC 4861 §7.2).
pub fn neighbour(state: &mut State, now: Instant, packet: &Neighbour) {
    let about = if packet.is_reply {
        packet.target
    } else {
        packet.sender
    };
    if let Some(mac) = packet.mac.filter(|_| about.is_unicast()) {
        learn(state, now, about, mac);
    }
    let is_asked = !packet.is_reply && state.config.is_own(packet.target);
    let Some(mac) = packet
        .mac
        .filter(|mac| is_asked && packet.sender.is_unicast() && !mac.is_group())
    else {
        return;
    };
    let answer = Neighbour {
        is_reply: true,
        target: packet.target,
        mac: Some(state.config.mac),
        sender: packet.target,
    };
    state.reply(Reply::Neighbour(state.hop(mac), answer, packet.sender));
}

/// The host with a card has ended, and with it what it had of flows. Each of them ends as if the peer had reset it. The next
/// flow to one of its addresses asks who has that now.
pub fn gone(state: &mut State, now: Instant, mac: Mac) {
    for slot in 0..state.config.flows_max {
        let stage = state.table.stage(slot);
        if stage == Stage::Free {
            continue;
        }
        let path = state.table.flow(slot).path;
        if state.table.paths.path(path).mac != Some(mac) {
            continue;
        }
        let end = match stage {
            Stage::Free | Stage::TimeWait => None,
            Stage::SynSent => Some(End::Refused),
            // The application does not know of a listener's handshake.
            Stage::SynReceived if state.table.cold(slot).is_accepted => None,
            Stage::SynReceived => Some(End::Refused),
            Stage::Open => Some(End::Reset),
        };
        state.free(slot, end);
    }
    state.table.paths.forget(now, mac);
}

fn learn(state: &mut State, now: Instant, ip: Ip, mac: Mac) {
    if !state.config.is_own(ip) && state.table.paths.learn(now, ip, mac) {
        wake(state);
    }
}

/// Lets the flows go on whose way is known now.
fn wake(state: &mut State) {
    for slot in 0..state.config.flows_max {
        if !matches!(state.table.stage(slot), Stage::Free | Stage::TimeWait) {
            state.ready(slot);
        }
    }
}

/// Asks for neighbours whose time has come, and gives up flows that wait for one that is away.
pub fn due(state: &mut State, now: Instant) {
    while let Some(due) = state.table.paths.due(now) {
        match due {
            Due::Ask { neighbour, from } => ask(state, neighbour, from),
            Due::Away => give_up(state),
        }
    }
}

fn ask(state: &mut State, neighbour: Ip, from: Ip) {
    if neighbour.is_v4() {
        let question = Arp {
            is_reply: false,
            sender_mac: state.config.mac,
            sender: from,
            target_mac: Mac::default(),
            target: neighbour,
        };
        return state.reply(Reply::Arp(state.hop(Mac::BROADCAST), question));
    }
    let group = neighbour.solicited();
    let question = Neighbour {
        is_reply: false,
        target: neighbour,
        mac: Some(state.config.mac),
        sender: from,
    };
    state.reply(Reply::Neighbour(state.hop(Mac::of_group(group)), question, group));
}

/// Ends what has not begun; open connections wait for their own timeout.
fn give_up(state: &mut State) {
    for slot in 0..state.config.flows_max {
        if state.table.stage(slot) == Stage::SynSent {
            let path = state.table.flow(slot).path;
            if state.table.paths.is_away(path) {
                state.free(slot, Some(End::Unreachable));
            }
        }
    }
}
