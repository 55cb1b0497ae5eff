//! Whether the members of a set hold the same, though every page of theirs is intact.
//!
//! A pure policy. The member that orders a set's writes compares with each peer, range by range, while its node is idle. It sends the
//! version and the checksum of each page. The peer answers with the pages that differ. A page whose write is under way differs
//! for a moment. So a page is *doubted* at first, and asked for again after [`DOUBT_FOR`]; only what differs in the same way then is a
//! [`Difference`]. The peer keeps no state for this.
//!
//! A replica that starts compares versions with its peers before it serves ([`crate::catchup`]). A difference that is found here has come
//! about since.
//!
//! Digest record: per page its version (8 bytes, big endian) and its checksum (4 bytes). Answer: pages covered (2 bytes), then per
//! difference the page's offset in the range (2 bytes), its version and its checksum.

use base::{Duration, Instant, Lpn, Version};
use std::collections::VecDeque;
use wire::rack::PAYLOAD_BYTES_MAX;

const CONTENT_BYTES: usize = 12;
const DIFFERENCE_BYTES: usize = 2 + CONTENT_BYTES;
/// Pages of one digest.
const RANGE_PAGES: u32 = (PAYLOAD_BYTES_MAX / CONTENT_BYTES) as u32 - 8;
/// Differences of one answer; when there are more, the answer covers fewer pages.
const DIFFERENCES_MAX: usize = (PAYLOAD_BYTES_MAX - 2) / DIFFERENCE_BYTES;
/// Longer than a write is under way, unless a member is lost.
const DOUBT_FOR: Duration = Duration::from_secs(1);
/// Pages that are doubted at once. Others are left to the next pass.
const DOUBTS_MAX: usize = 64;
/// A question that is not answered is asked again after this,
const ASK_EVERY: Duration = Duration::from_secs(1);
/// so often. Then the peer, or the page, is left to the next pass.
const ASKS_MAX: u8 = 3;

/// The newest data of a page, as far as it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Their version.
    pub version: Version,
    /// CRC32C of the page, 0 for zeros.
    pub crc: u32,
}

impl Content {
    /// Nobody vouches for the page just now.
    const NONE: Self = Self {
        version: Version(u64::MAX),
        crc: 0,
    };

    fn emit(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.version.0.to_be_bytes());
        bytes.extend(self.crc.to_be_bytes());
    }

    fn parse(bytes: &[u8]) -> Self {
        let (version, crc) = bytes.split_first_chunk().expect("the caller cut 12 bytes");
        Self {
            version: Version(u64::from_be_bytes(*version)),
            crc: u32::from_be_bytes(*crc.first_chunk().expect("the caller cut 12 bytes")),
        }
    }
}

/// A page that a peer has otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The peer, by its index.
    pub peer: usize,
    /// The page.
    pub lpn: Lpn,
    /// Our copy.
    pub ours: Content,
    /// The peer's.
    pub theirs: Content,
}

/// A question to a peer: what of these pages differs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The peer, by its index.
    pub peer: usize,
    /// The first page.
    pub first: Lpn,
    /// How many.
    pub pages: u32,
}

/// A question that is not answered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ask: Ask,
    /// It is about a doubted page.
    doubts: bool,
    at: Instant,
    asks: u8,
}

/// The comparison of a vSSD with its peers.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pages: u32,
    peers: usize,
    /// The peer and the first page of the next range.
    peer: usize,
    next: u32,
    asked: Option<Asked>,
    doubts: VecDeque<(Difference, Instant)>,
}

impl Comparison {
    /// A comparison of so many pages with so many peers.
    pub fn new(pages: u32, peers: usize) -> Self {
        Self {
            pages,
            peers,
            ..Self::default()
        }
    }

    /// True if every peer was compared with, or did not answer.
    pub fn is_over(&self) -> bool {
        self.peer == self.peers && self.asked.is_none() && self.doubts.is_empty()
    }

    /// True if there is something to ask now.
    pub fn wants(&self, now: Instant) -> bool {
        match self.asked {
            Some(asked) => now >= asked.at + ASK_EVERY,
            None => self.peer < self.peers || self.doubt(now).is_some(),
        }
    }

    /// The first doubted page, if its time has come.
    fn doubt(&self, now: Instant) -> Option<Difference> {
        let (doubt, at) = *self.doubts.front()?;
        (now >= at).then_some(doubt)
    }

    /// The next question.
    pub fn step(&mut self, now: Instant) -> Option<Ask> {
        if let Some(asked) = &mut self.asked {
            if now < asked.at + ASK_EVERY {
                return None;
            }
            if asked.asks < ASKS_MAX {
                (asked.asks, asked.at) = (asked.asks + 1, now);
                return Some(asked.ask);
            }
            match asked.doubts {
                true => _ = self.doubts.pop_front(),
                false => (self.peer, self.next) = (self.peer + 1, 0),
            }
            self.asked = None;
        }
        let doubt = self.doubt(now);
        let range = || {
            (self.peer < self.peers).then(|| Ask {
                peer: self.peer,
                first: Lpn(self.next),
                pages: RANGE_PAGES.min(self.pages - self.next),
            })
        };
        let one = doubt.map(|doubt| Ask {
            peer: doubt.peer,
            first: doubt.lpn,
            pages: 1,
        });
        let ask = one.or_else(range)?;
        self.asked = Some(Asked {
            ask,
            doubts: doubt.is_some(),
            at: now,
            asks: 1,
        });
        Some(ask)
    }

    /// A peer answered a question about pages from `first` on. The page that differs for good, if it was doubted. `ours` is what is
    /// here, of pages that this member vouches for.
    pub fn answered(
        &mut self,
        now: Instant,
        (peer, first): (usize, Lpn),
        answer: &[u8],
        ours: impl Fn(Lpn) -> Option<Content>,
    ) -> Option<Difference> {
        let is_it = |asked: &mut Asked| (asked.ask.peer, asked.ask.first) == (peer, first);
        let (covered, differences) = answer.split_first_chunk::<2>()?;
        let asked = self.asked.take_if(is_it)?;
        let differences = differences.chunks_exact(DIFFERENCE_BYTES).filter_map(|chunk| {
            let lpn = Lpn(first.0 + u32::from(u16::from_be_bytes([chunk[0], chunk[1]])));
            let theirs = Content::parse(&chunk[2..]);
            let ours = ours(lpn).filter(|ours| *ours != theirs)?;
            let is_plausible = lpn.0 < self.pages && theirs.version <= Version::PLAUSIBLE_MAX;
            is_plausible.then_some(Difference {
                peer,
                lpn,
                ours,
                theirs,
            })
        });
        if asked.doubts {
            let doubted = self.doubts.pop_front().map(|(doubt, _)| doubt);
            let mut differences = differences;
            return doubted.filter(|doubt| differences.any(|difference| difference == *doubt));
        }
        let room = DOUBTS_MAX - self.doubts.len();
        let doubts = differences
            .take(room)
            .map(|difference| (difference, now + DOUBT_FOR));
        self.doubts.extend(doubts);
        let covered = u32::from(u16::from_be_bytes(*covered)).min(asked.ask.pages);
        self.next += covered;
        if covered == 0 || self.next == self.pages {
            (self.peer, self.next) = (self.peer + 1, 0);
        }
        None
    }
}

/// The record of a question.
pub fn digest(ask: &Ask, ours: impl Fn(Lpn) -> Option<Content>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ask.pages as usize * CONTENT_BYTES);
    for lpn in ask.first.0..ask.first.0 + ask.pages {
        ours(Lpn(lpn)).unwrap_or(Content::NONE).emit(&mut bytes);
    }
    bytes
}

/// A member's answer to a digest from page `first` on. `ours` is what is here, of pages that this member vouches for.
pub fn answer(first: Lpn, digest: &[u8], ours: impl Fn(Lpn) -> Option<Content>) -> Vec<u8> {
    let (mut answer, mut covered, mut differences) = (vec![0; 2], 0u16, 0);
    for (offset, bytes) in digest.chunks_exact(CONTENT_BYTES).enumerate() {
        if differences == DIFFERENCES_MAX {
            break;
        }
        covered += 1;
        let theirs = Content::parse(bytes);
        let ours = ours(Lpn(first.0.saturating_add(offset as u32)));
        if let Some(ours) = ours.filter(|ours| theirs != Content::NONE && *ours != theirs) {
            answer.extend((offset as u16).to_be_bytes());
            ours.emit(&mut answer);
            differences += 1;
        }
    }
    answer[..2].copy_from_slice(&covered.to_be_bytes());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 1_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn content(version: u64, crc: u32) -> Option<Content> {
        let version = Version(version);
        Some(Content { version, crc })
    }

    /// Compares with peers that answer at once; the differences, and how many questions that took.
    fn compare(
        peers: usize,
        ours: impl Fn(Lpn) -> Option<Content>,
        theirs: impl Fn(u64, usize, Lpn) -> Option<Content>,
    ) -> (Vec<Difference>, u32) {
        let (mut comparison, mut found, mut asks) = (Comparison::new(PAGES, peers), Vec::new(), 0);
        for ms in (0..10_000).step_by(50) {
            while comparison.wants(at(ms)) {
                let ask = comparison.step(at(ms)).expect("it wants to ask");
                let answer = answer(ask.first, &digest(&ask, &ours), |lpn| theirs(ms, ask.peer, lpn));
                found.extend(comparison.answered(at(ms), (ask.peer, ask.first), &answer, &ours));
                asks += 1;
            }
        }
        assert!(comparison.is_over());
        (found, asks)
    }

    #[test]
    fn what_differs_for_good_is_found_and_what_differs_for_a_moment_is_not() {
        let ours = |lpn: Lpn| content(7, lpn.0);
        let (found, asks) = compare(2, ours, |_, _, lpn| content(7, lpn.0));
        assert_eq!((found.len(), asks), (0, 2 * PAGES.div_ceil(RANGE_PAGES)));
        let (found, _) = compare(2, ours, |ms, peer, lpn| match (peer, lpn.0) {
            (0, 5) => content(7, 99),
            (1, 999) => content(6, 999),
            (1, 998) if ms < 500 => content(6, 998),
            (1, 997) => content(8 + ms, 0),
            _ => content(7, lpn.0),
        });
        let pages: Vec<(usize, u32)> = found.iter().map(|found| (found.peer, found.lpn.0)).collect();
        assert_eq!(pages, [(0, 5), (1, 999)]);
        assert_eq!(found[1].theirs, content(6, 999).unwrap());
    }

    #[test]
    fn pages_that_nobody_vouches_for_are_passed() {
        let some = |lpn: Lpn| content(7, 0).filter(|_| lpn.0.is_multiple_of(2));
        let (found, _) = compare(1, some, |_, _, _| content(6, 0));
        assert_eq!(found.len(), DOUBTS_MAX, "the rest is left to the next pass");
        assert!(found.iter().all(|found| found.lpn.0.is_multiple_of(2)));
        let (found, _) = compare(1, |_| content(7, 0), |_, _, _| None);
        assert_eq!(found, []);
    }

    #[test]
    fn a_peer_that_does_not_answer_is_left_to_the_next_pass() {
        let mut comparison = Comparison::new(PAGES, 2);
        let mut asked = Vec::new();
        for ms in (0..20_000).step_by(50) {
            if comparison.wants(at(ms)) {
                asked.extend(comparison.step(at(ms)).map(|ask| ask.peer));
            }
            let late = comparison.answered(at(ms), (5, Lpn(0)), &[0, 1], |_| None);
            assert_eq!(late, None);
        }
        assert_eq!(asked, [0, 0, 0, 1, 1, 1]);
        assert!(comparison.is_over());
        let mut comparison = Comparison::new(PAGES, 1);
        comparison.step(at(0));
        assert_eq!(comparison.answered(at(1), (0, Lpn(0)), &[0, 0], |_| None), None);
        assert!(comparison.is_over(), "it has no such pages");
        assert!(Comparison::default().is_over());
    }
}
