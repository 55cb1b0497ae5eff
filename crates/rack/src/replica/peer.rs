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
