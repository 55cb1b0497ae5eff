//! A replica that serves compares with its peers ([`crate::compare`]), and resolves what differs.

use super::{Effect, Fetch, Replica};
use crate::compare::{Ask, Difference};
use base::Lpn;
use core::cmp::Ordering;
use wire::rack::{Code, Header, Op, Packet, flags};

impl Replica {
    /// The number of peers. They keep their places while the members do not change.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// True if it serves, and the newest version of a page is decided.
    pub fn vouches_for(&self, lpn: Lpn) -> bool {
        self.serving && self.is_decided(lpn)
    }

    /// True if a message of a peer belongs to this epoch.
    pub fn shares_epoch(&self, peer: usize, header: &Header) -> bool {
        self.epoch == Some(header.epoch) && self.peers[peer].boot == Some(header.session)
    }

    /// Asks a peer what differs there from this digest.
    pub fn compare(&mut self, ask: &Ask, digest: Vec<u8>) {
        self.send_compared(ask.peer, ask.first, digest, 0);
    }

    /// Answers a peer what differs here, from page `first` on.
    pub fn answer_compared(&mut self, peer: usize, first: Lpn, answer: Vec<u8>) {
        self.send_compared(peer, first, answer, flags::REPLY);
    }

    fn send_compared(&mut self, peer: usize, first: Lpn, record: Vec<u8>, flags: u8) {
        let mut header = self.to_peer(Op::Digest, &self.peers[peer].member, first);
        header.code = Code::Background;
        header.flags |= flags;
        let packet = Packet::with_record(header, record);
        self.effects.push_back(Effect::Send(packet));
    }

    /// Both ends vouch for a page that they have otherwise. The later version counts; of two pages of one version, this member's. Only
    /// the member that orders the writes resolves that: the version that it gives must not be later than a client's write.
    pub fn resolve(&mut self, difference: &Difference) {
        let Difference {
            peer,
            lpn,
            ours,
            theirs,
        } = *difference;
        match ours.version.cmp(&theirs.version) {
            Ordering::Less => self.pull(peer, lpn),
            Ordering::Greater => self.effects.push_back(Effect::Fetch(lpn, Fetch::Replay)),
            Ordering::Equal => {
                let why = Fetch::Resolve(peer, theirs.version);
                self.effects.push_back(Effect::Fetch(lpn, why));
            }
        }
    }
}
