//! How a starting replica catches up with its peers before it serves.
//!
//! For each peer, range by range, it sends the versions it has (a digest). The peer answers with the pages that differ
//! or are undecided there. Those that are newer at the peer are pulled; those that are newer here, or equal but
//! undecided, are replayed to all (Hermes rule 7). A range is done when none of its differences is left; the replica
//! serves when all ranges of all peers are done in one epoch. The peer keeps no state for this.
//!
//! Digest record: per page its version (8 bytes, big endian). Answer: pages covered (2 bytes), then per difference the
//! page's offset in the range (2 bytes), its version (8 bytes) and 1 if it is decided there, else 0.

use crate::replica::{Effect, Fetch, Replica, Store, lpn_of};
use base::{Lpn, Version};
use wire::rack::{Op, PAYLOAD_BYTES_MAX, Packet, flags};

/// Pages of one digest.
const RANGE_PAGES: u32 = (PAYLOAD_BYTES_MAX / 8) as u32 - 12;
const DIFFERENCE_BYTES: usize = 11;
/// Differences of one answer; when there are more, the answer covers fewer pages.
const DIFFERENCES_MAX: usize = (PAYLOAD_BYTES_MAX - 2) / DIFFERENCE_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// At least this version.
    Pulled(Version),
    /// Replayed and decided; `started` once the replay is under way.
    Replayed { started: bool },
}

#[derive(Debug, Default)]
struct Progress {
    /// First page of the range in hand.
    next: u32,
    /// The range was asked for and not answered.
    asked: bool,
    /// Pages of the range that the answer covered.
    covered: u32,
    wanted: Vec<(Lpn, Wanted)>,
    done: bool,
}

/// Progress with each peer.
#[derive(Debug)]
pub(crate) struct Sync {
    peers: Vec<Progress>,
}

impl Sync {
    pub(crate) fn new(peers: usize) -> Self {
        Self {
            peers: (0..peers).map(|_| Progress::default()).collect(),
        }
    }

    /// A new epoch: whatever was learnt may be out of date.
    pub(crate) fn restart(&mut self) {
        self.peers.fill_with(Progress::default);
    }

    /// A page is being replayed, or cannot be read here and so cannot be replayed.
    pub(crate) fn replay_started(&mut self, lpn: Lpn) {
        let all = self.peers.iter_mut().flat_map(|progress| &mut progress.wanted);
        for (_, wanted) in all.filter(|(page, _)| *page == lpn) {
            if let Wanted::Replayed { started } = wanted {
                *started = true;
            }
        }
    }
}

impl Replica {
    /// Takes whatever step of catching up is due. The host calls it after each input while not serving.
    pub fn sync_step(&mut self, store: &impl Store) {
        if self.is_serving() || self.epoch.is_none() {
            return;
        }
        for peer in 0..self.peers.len() {
            self.drop_satisfied(peer, store);
            let progress = &mut self.sync.peers[peer];
            if progress.done || progress.asked || !progress.wanted.is_empty() {
                continue;
            }
            progress.next += core::mem::take(&mut progress.covered);
            if progress.next >= store.pages() {
                progress.done = true;
            } else {
                progress.asked = true;
                self.ask(peer, store);
            }
        }
        if self.sync.peers.iter().all(|progress| progress.done) {
            self.start_serving();
        }
    }

    /// Sends again what was not answered.
    pub(crate) fn sync_resend(&mut self, store: &impl Store) {
        if self.is_serving() || self.epoch.is_none() {
            return;
        }
        for peer in 0..self.peers.len() {
            if self.sync.peers[peer].asked {
                self.ask(peer, store);
            }
            for index in 0..self.sync.peers[peer].wanted.len() {
                if let (lpn, Wanted::Pulled(_)) = self.sync.peers[peer].wanted[index] {
                    self.pull(peer, lpn);
                }
            }
        }
    }

    fn drop_satisfied(&mut self, peer: usize, store: &impl Store) {
        let mut wanted = core::mem::take(&mut self.sync.peers[peer].wanted);
        wanted.retain(|&(lpn, wanted)| {
            let (version, decided) = self.standing(lpn, store);
            match wanted {
                Wanted::Pulled(least) => version < least,
                Wanted::Replayed { started } => !(started && decided),
            }
        });
        self.sync.peers[peer].wanted = wanted;
    }

    fn ask(&mut self, peer: usize, store: &impl Store) {
        let first = self.sync.peers[peer].next;
        let end = store.pages().min(first + RANGE_PAGES);
        let mut record = Vec::with_capacity((end - first) as usize * 8);
        for lpn in first..end {
            record.extend_from_slice(&store.newest(Lpn(lpn)).0.to_be_bytes());
        }
        let header = self.to_peer(Op::Digest, &self.peers[peer].member, Lpn(first));
        self.effects
            .push_back(Effect::Send(Packet::with_record(header, record)));
    }

    /// A starting peer tells what it has: answer with what differs.
    pub(crate) fn receive_digest(&mut self, peer: usize, packet: &Packet, store: &impl Store) {
        let first = lpn_of(&packet.header).0;
        let mut covered = 0u16;
        let mut answer = vec![0; 2];
        let mut differences = 0;
        for (offset, bytes) in packet.record().chunks_exact(8).enumerate() {
            let lpn = Lpn(first.saturating_add(offset as u32));
            if lpn.0 >= store.pages() || differences == DIFFERENCES_MAX {
                break;
            }
            covered += 1;
            let theirs = Version(u64::from_be_bytes(*bytes.first_chunk().expect("chunks of 8")));
            let (ours, decided) = self.standing(lpn, store);
            if theirs != ours || !decided {
                answer.extend_from_slice(&(offset as u16).to_be_bytes());
                answer.extend_from_slice(&ours.0.to_be_bytes());
                answer.push(u8::from(decided));
                differences += 1;
            }
        }
        answer[..2].copy_from_slice(&covered.to_be_bytes());
        let mut header = self.to_peer(Op::Digest, &self.peers[peer].member, Lpn(first));
        header.flags |= flags::REPLY;
        // Nobody serves without an answer of every peer in its epoch: so all learn of it if one kept its memory, and
        // all tell gateways the same continuity. A greeting could be late or lost.
        self.tell_continuity(&mut header);
        self.effects
            .push_back(Effect::Send(Packet::with_record(header, answer)));
    }

    /// The answer to a digest: pull what is newer there, replay what is newer here or undecided there.
    pub(crate) fn receive_digest_reply(&mut self, peer: usize, packet: &Packet, store: &impl Store) {
        let first = lpn_of(&packet.header).0;
        let Some((covered, differences)) = packet.record().split_first_chunk::<2>() else {
            return;
        };
        let progress = &mut self.sync.peers[peer];
        if !progress.asked || progress.next != first {
            return;
        }
        progress.asked = false;
        progress.covered = u32::from(u16::from_be_bytes(*covered));
        self.hear_continuity(peer, &packet.header);
        for difference in differences.chunks_exact(DIFFERENCE_BYTES) {
            let offset = u16::from_be_bytes([difference[0], difference[1]]);
            let theirs = Version(u64::from_be_bytes(
                *difference[2..].first_chunk().expect("11 bytes"),
            ));
            let lpn = Lpn(first + u32::from(offset));
            let ours = if lpn.0 < store.pages() {
                store.newest(lpn)
            } else {
                continue;
            };
            if theirs > ours {
                self.sync.peers[peer].wanted.push((lpn, Wanted::Pulled(theirs)));
                self.pull(peer, lpn);
            } else if ours > Version::NONE {
                self.sync.peers[peer]
                    .wanted
                    .push((lpn, Wanted::Replayed { started: false }));
                self.effects.push_back(Effect::Fetch(lpn, Fetch::Replay));
            }
        }
    }

    /// Asks a peer for a page: to catch up, or because ours is damaged.
    pub fn pull(&mut self, peer: usize, lpn: Lpn) {
        let header = self.to_peer(Op::Pull, &self.peers[peer].member, lpn);
        self.effects.push_back(Effect::Send(Packet::bare(header)));
    }
}
