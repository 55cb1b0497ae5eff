//! Another member of a replica's set, as the replica sees it.

use crate::membership::Member;
use base::Instant;

#[derive(Debug)]
pub(super) struct Peer {
    pub member: Member,
    pub boot: Option<u32>,
    pub serving: Option<u32>,
    /// When it answered something last.
    pub heard_at: Instant,
    /// It was told that the peer answers nothing.
    pub lost: bool,
}

impl Peer {
    pub fn new(member: Member) -> Self {
        Self {
            member,
            boot: None,
            serving: None,
            heard_at: Instant::ZERO,
            lost: false,
        }
    }
}

/// These are the members from now on. Those that stay keep their order, so that what is under way to them finds them.
pub(super) fn replace(peers: &mut Vec<Peer>, members: &[Member]) {
    peers.retain(|peer| members.iter().any(|member| member.vssd == peer.member.vssd));
    let known = peers.len();
    for &member in members {
        let mut stay = peers[..known].iter_mut();
        match stay.find(|peer| peer.member.vssd == member.vssd) {
            Some(peer) => peer.member = member,
            None => peers.push(Peer::new(member)),
        }
    }
}
