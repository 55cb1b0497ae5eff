//! How a starting replica catches up with its peers before it serves.
//!
//! For each peer, range by range, the replica sends the versions it has (a digest). The peer answers with the pages that
//! differ or are undecided there. Pages that are newer at the peer are pulled. Pages that are newer here, or equal but
//! undecided, are replayed to all (Hermes rule 7). A range is done when none of its differences is left; the replica
//! serves when all ranges of all peers are done in one epoch. The peer keeps no state for this.
//!
//! A replica that was expelled and comes back *yields*. Nobody acknowledged what it has beyond its peers, or clients were told
//! that it is lost. So it asks the coordinator to overrule that.
//!
//! Digest record: per page its version (8 bytes, big endian). Answer: pages covered (2 bytes), then per difference the
//! page's offset in the range (2 bytes), its version (8 bytes) and 1 if it is decided there, else 0.

use crate::cache::Store;
use base::{Lpn, Version};
use std::collections::VecDeque;
use wire::rack::PAYLOAD_BYTES_MAX;

/// Pages of one digest.
const RANGE_PAGES: u32 = (PAYLOAD_BYTES_MAX / 8) as u32 - 12;
const DIFFERENCE_BYTES: usize = 11;
/// Pages of one that yields that are asked for and have not come: enough for a node's wire and medium, and few enough that
/// clients' requests wait for little.
const PULLS_MAX: usize = 64;
/// Differences of one answer; when there are more, the answer covers fewer pages.
const DIFFERENCES_MAX: usize = (PAYLOAD_BYTES_MAX - 2) / DIFFERENCE_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// At least this version.
    Pulled(Version, Pulling),
    /// Replayed and decided; `started` once the replay is under way.
    Replayed { started: bool },
    /// A later version than ours.
    Overruled(Version),
}

impl Wanted {
    fn is_pulled(self, how: Pulling) -> bool {
        matches!(self, Self::Pulled(_, pulling) if pulling == how)
    }
}

/// How a page is had that is newer at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulling {
    /// The peer has still to be asked.
    Left,
    /// It was asked.
    Asked,
    /// Another peer has it, too, and is asked.
    Elsewhere,
}

/// The differences of a range that are left.
#[derive(Debug, Default)]
struct Differences {
    /// In the order of their pages.
    list: Vec<(Lpn, Wanted)>,
    /// Pages that are to be asked for.
    left: usize,
    /// Pages that were asked for.
    out: usize,
}

impl Differences {
    /// A page differs. Of two differences of a page the first one counts.
    fn push(&mut self, lpn: Lpn, wanted: Wanted) {
        if let Err(place) = self.find(lpn) {
            self.left += usize::from(wanted.is_pulled(Pulling::Left));
            self.list.insert(place, (lpn, wanted));
        }
    }

    /// The place of a page, or where it would be.
    fn find(&self, lpn: Lpn) -> Result<usize, usize> {
        self.list.binary_search_by_key(&lpn, |(of, _)| *of)
    }

    fn get(&self, lpn: Lpn) -> Option<Wanted> {
        let place = self.find(lpn).ok()?;
        Some(self.list[place].1)
    }

    /// A page is being replayed.
    fn replay_started(&mut self, lpn: Lpn) {
        if let Ok(place) = self.find(lpn)
            && let (_, Wanted::Replayed { started }) = &mut self.list[place]
        {
            *started = true;
        }
    }

    /// The next page to ask for; it is asked for.
    fn next_pull(&mut self) -> Option<Lpn> {
        if self.left == 0 {
            return None;
        }
        let (lpn, wanted) = self
            .list
            .iter_mut()
            .find(|(_, wanted)| wanted.is_pulled(Pulling::Left))?;
        if let Wanted::Pulled(_, pulling) = wanted {
            *pulling = Pulling::Asked;
        }
        (self.left, self.out) = (self.left - 1, self.out + 1);
        Some(*lpn)
    }

    /// Forgets a page's difference if it is none any more. True if so.
    fn settle(&mut self, lpn: Lpn, is_left: impl Fn(Lpn, Wanted) -> bool) -> bool {
        let Ok(place) = self.find(lpn) else {
            return false;
        };
        let (_, wanted) = self.list[place];
        let is_settled = !is_left(lpn, wanted);
        if is_settled {
            self.list.remove(place);
            self.left -= usize::from(wanted.is_pulled(Pulling::Left));
            self.out -= usize::from(wanted.is_pulled(Pulling::Asked));
        }
        is_settled
    }

    /// The same for all. True if it forgets some.
    fn settle_all(&mut self, is_left: impl Fn(Lpn, Wanted) -> bool) -> bool {
        let before = self.list.len();
        self.list.retain(|&(lpn, wanted)| is_left(lpn, wanted));
        let count = |pulling| {
            self.list
                .iter()
                .filter(|(_, wanted)| wanted.is_pulled(pulling))
                .count()
        };
        (self.left, self.out) = (count(Pulling::Left), count(Pulling::Asked));
        self.list.len() < before
    }
}

#[derive(Debug, Default)]
struct Progress {
    /// First page of the range in hand.
    next: u32,
    /// The range was asked for and not answered.
    asked: bool,
    /// Pages of the range that the answer covered.
    covered: u32,
    wanted: Differences,
    done: bool,
}

/// A request of catching up, to a peer by its index.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Compare these versions, from a page on.
    Digest(usize, Lpn, Vec<u8>),
    /// Send a page.
    Pull(usize, Lpn),
    /// Replay a page to all peers.
    Replay(Lpn),
    /// Ask the coordinator for a later version of a page than ours.
    Overrule(Lpn, Version),
}

/// Progress with each peer.
#[derive(Debug, Default)]
pub(crate) struct CatchUp {
    peers: Vec<Progress>,
    asks: VecDeque<Ask>,
    /// Something came since it was asked last.
    advanced: bool,
    /// Pages that something has happened to since the last step. The others differ as they did.
    touched: Vec<Lpn>,
    /// The next step looks at all differences.
    looks_at_all: bool,
}

impl CatchUp {
    pub(crate) fn new(peers: usize) -> Self {
        Self {
            peers: (0..peers).map(|_| Progress::default()).collect(),
            ..Self::default()
        }
    }

    /// A page has another version, or is decided or undecided now.
    pub(crate) fn touch(&mut self, lpn: Lpn) {
        if self.peers.iter().any(|progress| !progress.wanted.list.is_empty()) {
            self.touched.push(lpn);
        }
    }

    /// A new epoch: everything learnt may be out of date.
    pub(crate) fn restart(&mut self) {
        self.peers.fill_with(Progress::default);
        self.touched.clear();
    }

    /// Of so many pages those that are as the peers have them: the mean over the peers.
    pub(crate) fn pages_done(&self, pages: u32) -> u32 {
        let done = self
            .peers
            .iter()
            .map(|progress| u64::from(progress.next.min(pages)));
        done.sum::<u64>()
            .checked_div(self.peers.len() as u64)
            .unwrap_or(0) as u32
    }

    /// The next thing to ask; pages are left to [`next_pull`](CatchUp::next_pull) if they can `wait`.
    pub(crate) fn poll(&mut self, wait: bool) -> Option<Ask> {
        let ask = self.asks.pop_front();
        ask.or_else(|| if wait { None } else { self.next_pull() })
    }

    /// True if there is a page to be asked for, and not many are on their way.
    pub(crate) fn wants_pull(&self) -> bool {
        let all = || self.peers.iter().map(|progress| &progress.wanted);
        all().any(|wanted| wanted.left > 0) && all().map(|wanted| wanted.out).sum::<usize>() < PULLS_MAX
    }

    /// The next page to ask for.
    pub(crate) fn next_pull(&mut self) -> Option<Ask> {
        let mut peers = self.peers.iter_mut().enumerate();
        peers.find_map(|(peer, progress)| Some(Ask::Pull(peer, progress.wanted.next_pull()?)))
    }

    /// A page is being replayed, or cannot be read here and so cannot be replayed.
    pub(crate) fn replay_started(&mut self, lpn: Lpn) {
        for progress in &mut self.peers {
            progress.wanted.replay_started(lpn);
        }
    }

    /// Goes on with every peer; true when nothing is left to catch up with. `is_decided` tells whether a page is decided
    /// here.
    pub(crate) fn step(&mut self, store: &impl Store, is_decided: impl Fn(Lpn) -> bool) -> bool {
        let is_left = |lpn: Lpn, wanted: Wanted| match wanted {
            Wanted::Pulled(least, _) => store.newest(lpn) < least,
            Wanted::Replayed { started } => !(started && is_decided(lpn)),
            Wanted::Overruled(ours) => store.newest(lpn) <= ours,
        };
        let (touched, looks_at_all) = (
            core::mem::take(&mut self.touched),
            core::mem::take(&mut self.looks_at_all),
        );
        for peer in 0..self.peers.len() {
            let progress = &mut self.peers[peer];
            if looks_at_all {
                self.advanced |= progress.wanted.settle_all(is_left);
            }
            for &lpn in &touched {
                self.advanced |= progress.wanted.settle(lpn, is_left);
            }
            if progress.done || progress.asked || !progress.wanted.list.is_empty() {
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
        self.peers.iter().all(|progress| progress.done)
    }

    /// Asks again for everything that was not answered. Not while answers come: then peers are at it, and copies of what they are at
    /// would only delay them. Of pages that cannot `wait` each peer is asked that has them. True if it asks.
    pub(crate) fn resend(&mut self, store: &impl Store, wait: bool) -> bool {
        self.looks_at_all = true;
        if core::mem::take(&mut self.advanced) {
            return false;
        }
        for peer in 0..self.peers.len() {
            if self.peers[peer].asked {
                self.ask(peer, store);
            }
            let wanted = self.peers[peer].wanted.list.iter();
            self.asks.extend(wanted.filter_map(|&(lpn, wanted)| match wanted {
                Wanted::Pulled(_, Pulling::Asked) => Some(Ask::Pull(peer, lpn)),
                Wanted::Pulled(_, Pulling::Elsewhere) if !wait => Some(Ask::Pull(peer, lpn)),
                Wanted::Pulled(..) => None,
                Wanted::Overruled(ours) => Some(Ask::Overrule(lpn, ours)),
                Wanted::Replayed { .. } => None,
            }));
        }
        true
    }

    /// True if a page of at least this version is to be had from a peer.
    fn is_wanted(&self, lpn: Lpn, version: Version) -> bool {
        let mut all = self.peers.iter().filter_map(|progress| progress.wanted.get(lpn));
        all.any(|wanted| matches!(wanted, Wanted::Pulled(least, _) if least >= version))
    }

    fn ask(&mut self, peer: usize, store: &impl Store) {
        let first = self.peers[peer].next;
        let end = store.pages().min(first + RANGE_PAGES);
        let versions = (first..end).flat_map(|lpn| store.newest(Lpn(lpn)).0.to_be_bytes());
        self.asks
            .push_back(Ask::Digest(peer, Lpn(first), versions.collect()));
    }

    /// A peer answered a digest from page `first` on: pull the pages that are newer there, replay those that are newer
    /// here or undecided there; one that `yields` has those overruled that are newer here. False if nobody asked.
    pub(crate) fn answered(
        &mut self,
        peer: usize,
        first: Lpn,
        answer: &[u8],
        store: &impl Store,
        yields: bool,
    ) -> bool {
        let progress = &mut self.peers[peer];
        let Some((covered, differences)) = answer.split_first_chunk::<2>() else {
            return false;
        };
        if !progress.asked || progress.next != first.0 {
            return false;
        }
        progress.asked = false;
        self.advanced = true;
        self.looks_at_all = true;
        progress.covered = u32::from(u16::from_be_bytes(*covered));
        for difference in differences.chunks_exact(DIFFERENCE_BYTES) {
            let offset = u16::from_be_bytes([difference[0], difference[1]]);
            let theirs = Version(u64::from_be_bytes(
                *difference[2..].first_chunk().expect("11 bytes"),
            ));
            let lpn = Lpn(first.0 + u32::from(offset));
            if lpn.0 >= store.pages() {
                continue;
            }
            let ours = store.newest(lpn);
            if theirs > ours {
                let pulling = match self.is_wanted(lpn, theirs) {
                    true => Pulling::Elsewhere,
                    false => Pulling::Left,
                };
                self.peers[peer].wanted.push(lpn, Wanted::Pulled(theirs, pulling));
                continue;
            }
            let progress = &mut self.peers[peer];
            if ours > theirs && yields {
                progress.wanted.push(lpn, Wanted::Overruled(ours));
                self.asks.push_back(Ask::Overrule(lpn, ours));
            } else if ours > Version::NONE {
                progress.wanted.push(lpn, Wanted::Replayed { started: false });
                self.asks.push_back(Ask::Replay(lpn));
            }
        }
        true
    }
}

/// A member's answer to a digest from page `first` on: the pages that differ. Of one that `yields` no page counts.
pub(crate) fn answer(
    first: Lpn,
    digest: &[u8],
    store: &impl Store,
    is_decided: impl Fn(Lpn) -> bool,
    yields: bool,
) -> Vec<u8> {
    let mut covered = 0u16;
    let mut answer = vec![0; 2];
    let mut differences = 0;
    for (offset, bytes) in digest.chunks_exact(8).enumerate() {
        let lpn = Lpn(first.0.saturating_add(offset as u32));
        if lpn.0 >= store.pages() || differences == DIFFERENCES_MAX {
            break;
        }
        covered += 1;
        let theirs = Version(u64::from_be_bytes(*bytes.first_chunk().expect("chunks of 8")));
        let (ours, is_decided) = (store.newest(lpn), is_decided(lpn));
        if !yields && (theirs != ours || !is_decided) {
            answer.extend_from_slice(&(offset as u16).to_be_bytes());
            answer.extend_from_slice(&ours.0.to_be_bytes());
            answer.push(u8::from(is_decided));
            differences += 1;
        }
    }
    answer[..2].copy_from_slice(&covered.to_be_bytes());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cached;
    use base::Instant;

    /// A replica that has nothing.
    struct Nothing;

    impl Store for Nothing {
        fn newest(&self, _: Lpn) -> Version {
            Version::NONE
        }
        fn has_room(&self, _: Lpn) -> bool {
            true
        }
        fn put(&mut self, _: Instant, _: Lpn, _: Cached) {}
        fn lose(&mut self, _: Lpn, _: Version) {}
        fn is_latched(&self) -> bool {
            false
        }
        fn is_damaged(&self, _: Lpn) -> bool {
            false
        }
        fn pages(&self) -> u32 {
            200
        }
    }

    /// An answer of a peer that has these many pages.
    fn all(pages: u16) -> Vec<u8> {
        let mut answer = pages.to_be_bytes().to_vec();
        for page in 0..pages {
            answer.extend(page.to_be_bytes());
            answer.extend(7u64.to_be_bytes());
            answer.push(1);
        }
        answer
    }

    /// Bug: a page that two peers have came from both, and all pages of a range at once.
    #[test]
    fn a_page_is_asked_of_one_peer_and_few_are_on_their_way() {
        let mut catch_up = CatchUp::new(2);
        assert!(!catch_up.step(&Nothing, |_| true));
        while catch_up.poll(true).is_some() {}
        for peer in 0..2 {
            assert!(catch_up.answered(peer, Lpn(0), &all(200), &Nothing, true));
        }
        assert!(catch_up.poll(true).is_none(), "pages can wait");
        let mut asked = Vec::new();
        while catch_up.wants_pull() {
            let Some(Ask::Pull(_, lpn)) = catch_up.next_pull() else {
                panic!("a page is left")
            };
            asked.push(lpn.0);
        }
        assert_eq!(asked, (0..PULLS_MAX as u32).collect::<Vec<_>>());
        let rest = core::iter::from_fn(|| catch_up.poll(false)).count();
        assert_eq!(rest, 200 - PULLS_MAX, "each once");
    }
}
