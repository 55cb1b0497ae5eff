//! Read leases between the members of a replica set: a member that was expelled does not know it, and must read no more.
//!
//! A member reads only while it holds a lease of each other member. It asks for one with the time on its own clock, the
//! other echoes that time, and the lease lasts [`LEASE`] from then on. A member may learn a membership
//! without a peer. Then it completes no write before [`LAPSES_AFTER`] has passed since it last lent that peer anything. By
//! then the peer has no lease of it, so nobody reads what the write has made old.
//!
//! Why this is enough. A completed write needs the acknowledgement of every member of its generation. The members of a
//! generation that expels X are members of the one before, so each of them has lent to X, and X needs all of their
//! leases. The one that completes the write has waited until its own has lapsed. The next change of the members begins
//! when all of them have waited ([`crate::registry`]), so a newcomer, which has lent nothing, meets no such X.
//!
//! The assumption: clocks of members *run* alike, within [`DRIFT_PERCENT`]. Their readings do not matter: no message
//! carries a time that another clock reads. A machine whose clock stands still while others go on (a paused virtual
//! machine) breaks the assumption; a process that is stopped does not, as its clock runs.

use crate::membership::{Incarnation, Member, Membership};
use base::{Addr, Duration, Instant, Version, VssdId};
use std::collections::VecDeque;
use wire::rack::{Header, Op, Packet, flags};

/// How long a lease lasts on the clock of the member that holds it, from when it asked.
pub const LEASE: Duration = Duration::from_millis(2_500);
/// Of the rates of two clocks, the faster is less than so much faster.
pub const DRIFT_PERCENT: u32 = 5;
/// A lease has lapsed so long after it was given, on the clock of the member that gave it.
pub const LAPSES_AFTER: Duration = Duration::from_millis(2_500 * (100 + DRIFT_PERCENT as u64) / 100);
/// A peer that has not renewed a lease for so long is not heard.
const SILENT_AFTER: Duration = Duration::from_millis(1_000);
/// A lease is asked for this often.
const RENEW_EVERY: Duration = Duration::from_millis(300);
/// A lease that was not renewed in time is asked for this often.
const ASK_EVERY: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
struct Peer {
    member: Member,
    /// When it may last have got a lease of us.
    lent: Instant,
    /// It has lent us until then.
    held_until: Instant,
}

/// The leases of one member.
#[derive(Debug)]
pub struct Leases {
    me: Incarnation,
    began: Instant,
    peers: Vec<Peer>,
    ask_at: Option<Instant>,
    out: VecDeque<Packet>,
}

impl Leases {
    /// Of a member that starts: it holds none, and may have lent to all just before.
    pub fn new(now: Instant, me: Incarnation, membership: &Membership) -> Self {
        let peer = |&member: &Member| Peer {
            member,
            lent: now,
            held_until: Instant::ZERO,
        };
        let peers: Vec<Peer> = membership.peers.iter().map(peer).collect();
        Self {
            me,
            began: now,
            ask_at: (!peers.is_empty()).then_some(now),
            peers,
            out: VecDeque::new(),
        }
    }

    /// True while it may read: it holds a lease of every other member.
    pub fn are_held(&self, now: Instant) -> bool {
        self.peers.iter().all(|peer| now < peer.held_until)
    }

    /// The peers that are not heard.
    pub fn unheard(&self, now: Instant) -> impl Iterator<Item = VssdId> {
        let silent = move |peer: &&Peer| now + (LEASE - SILENT_AFTER) >= peer.held_until;
        self.peers.iter().filter(silent).map(|peer| peer.member.vssd)
    }

    /// The member serves from now on. Others have known it since before, so their leases of it count from now at the latest.
    pub fn serve(&mut self, now: Instant) {
        for peer in &mut self.peers {
            peer.lent = now;
        }
    }

    /// The members are others. Returns when those that are gone have no lease any more. A newcomer does not serve yet:
    /// until it could expel anybody it lends as if asked now.
    pub fn change(&mut self, now: Instant, membership: &Membership) -> Instant {
        let stays = |peer: &&Peer| {
            let mut members = membership.peers.iter();
            members.any(|member| member.vssd == peer.member.vssd)
        };
        let gone = self.peers.iter().filter(|peer| !stays(peer));
        let lapsed = gone.map(|peer| peer.lent + LAPSES_AFTER).max();
        let peer = |&member: &Member| {
            let known = self.peers.iter().find(|peer| peer.member.vssd == member.vssd);
            match known {
                Some(peer) => Peer { member, ..*peer },
                None => Peer {
                    member,
                    lent: now,
                    held_until: now + LEASE,
                },
            }
        };
        self.peers = membership.peers.iter().map(peer).collect();
        self.ask_at = (!self.peers.is_empty()).then_some(now);
        lapsed.unwrap_or(now)
    }

    /// The same members are at other addresses.
    pub fn move_peers(&mut self, members: &[Member]) {
        for peer in &mut self.peers {
            let known = members.iter().find(|member| member.vssd == peer.member.vssd);
            peer.member = known.copied().unwrap_or(peer.member);
        }
    }

    /// Takes a peer's request, or its answer.
    pub fn receive(&mut self, now: Instant, header: &Header) {
        let me = self.me;
        let Some(peer) = self.peers.iter_mut().find(|peer| is_from(peer, header)) else {
            return;
        };
        if !header.has(flags::REPLY) {
            peer.lent = now;
            let mut answer = message(me, peer.member.vssd, peer.member.addr);
            answer.flags |= flags::REPLY;
            (answer.version, answer.session) = (header.version, header.session);
            return self.out.push_back(Packet::bare(answer));
        }
        let asked = Instant::from_nanos(header.version.0);
        // What an earlier start has asked says nothing.
        if header.session == me.boot && (self.began..=now).contains(&asked) {
            peer.held_until = peer.held_until.max(asked + LEASE);
        }
    }

    /// The next message.
    pub fn poll(&mut self) -> Option<Packet> {
        self.out.pop_front()
    }

    /// When to [`tick`](Leases::tick).
    pub fn deadline(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Asks for leases when it is time.
    pub fn tick(&mut self, now: Instant) {
        if self.ask_at.is_none_or(|at| now < at) {
            return;
        }
        let is_late = |peer: &Peer| now + (LEASE - 2 * RENEW_EVERY) >= peer.held_until;
        let pause = match self.peers.iter().any(is_late) {
            true => ASK_EVERY,
            false => RENEW_EVERY,
        };
        self.ask_at = Some(now + pause);
        for peer in &self.peers {
            let mut ask = message(self.me, peer.member.vssd, peer.member.addr);
            (ask.version, ask.session) = (Version(now.as_nanos()), self.me.boot);
            self.out.push_back(Packet::bare(ask));
        }
    }
}

fn is_from(peer: &Peer, header: &Header) -> bool {
    u64::from(peer.member.vssd.0) == header.request && peer.member.addr == header.source
}

fn message(me: Incarnation, vssd: VssdId, target: Addr) -> Header {
    Header {
        request: u64::from(me.vssd.0),
        target,
        ..Header::new(Op::Lease, vssd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::NodeId;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn member(index: u8) -> Member {
        Member {
            vssd: VssdId(u32::from(index)),
            node: NodeId(index),
            addr: Addr::new([10, 0, 0, index], 1),
        }
    }

    fn leases(now: Instant, index: u8, boot: u32, peers: &[u8]) -> Leases {
        let Member { vssd, node, .. } = member(index);
        Leases::new(now, Incarnation { vssd, node, boot }, &membership(peers))
    }

    fn membership(peers: &[u8]) -> Membership {
        Membership {
            generation: 1,
            peers: peers.iter().map(|&index| member(index)).collect(),
        }
    }

    /// Carries every message of `from` to `to`.
    fn carry(now: Instant, from: &mut Leases, to: &mut Leases) {
        while let Some(packet) = from.poll() {
            let source = member(from.me.vssd.0 as u8).addr;
            to.receive(
                now,
                &Header {
                    source,
                    ..packet.header
                },
            );
        }
    }

    fn renew(now: Instant, holder: &mut Leases, lender: &mut Leases) {
        holder.tick(now);
        carry(now, holder, lender);
        carry(now, lender, holder);
    }

    #[test]
    fn a_lease_is_held_from_the_time_of_asking_and_lapses_before_the_lender_goes_on() {
        let (mut a, mut b) = (leases(at(0), 1, 1, &[2]), leases(at(0), 2, 1, &[1]));
        assert!(!a.are_held(at(0)));
        a.tick(at(10));
        carry(at(500), &mut a, &mut b);
        carry(at(900), &mut b, &mut a);
        assert!(a.are_held(at(2_509)) && !a.are_held(at(2_510)));
        assert_eq!(b.change(at(1_000), &membership(&[])), at(500) + LAPSES_AFTER);
        assert!(b.are_held(at(1_000)), "alone it needs nobody's");
    }

    #[test]
    fn who_is_no_member_gets_none_and_who_has_started_again_holds_none() {
        let (mut a, mut b) = (leases(at(0), 1, 1, &[2]), leases(at(0), 2, 1, &[1]));
        a.tick(at(0));
        carry(at(0), &mut a, &mut b);
        // Its answer comes when it has started anew, on a machine whose clock has begun anew, too.
        let mut again = leases(at(0), 1, 2, &[2]);
        carry(at(5), &mut b, &mut again);
        assert!(!again.are_held(at(5)));
        b.change(at(10), &membership(&[3]));
        renew(at(20), &mut again, &mut b);
        assert!(!again.are_held(at(20)));
    }

    #[test]
    fn a_newcomer_interrupts_nobody_and_lends_from_when_it_serves() {
        let mut a = leases(at(0), 1, 1, &[]);
        a.change(at(100), &membership(&[2]));
        assert!(a.are_held(at(100)) && a.are_held(at(2_599)) && !a.are_held(at(2_600)));
        let mut b = leases(at(50), 2, 1, &[1]);
        b.serve(at(120));
        assert!(b.change(at(130), &membership(&[])) >= at(120) + LAPSES_AFTER);
    }
}
