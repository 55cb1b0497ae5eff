//! The requests of a session of any protocol: a tag and a payload for each, the connection's share, and the line to the
//! volumes.
//!
//! Invariants: a tag is not used again before 2^32 more requests had one, so an answer ends the request that was asked. The
//! pages of a write are taken all at once or not at all, so two half-received writes never wait for each other.

use std::collections::VecDeque;

use base::limits::PAGE_BYTES;
use base::{BlockRequest, Page, Pages, Pool, SectorRange, Slab};

/// Requests under way, each with the session's own work `W`.
pub(crate) struct Ledger<W> {
    pub client: u32,
    pub pool: Pool,
    /// With the number of the request.
    works: Slab<(u32, W)>,
    /// Requests that no volume has got yet.
    pub requests: VecDeque<BlockRequest>,
    /// Of the next request.
    number: u32,
    /// Payload under way.
    pub bytes: u64,
    pub share_bytes: u64,
    share_wanted: u64,
}

impl<W> Ledger<W> {
    /// Nothing under way; memory for so many requests is reserved now.
    ///
    /// # Panics
    /// If the pool's pages are not 4096 bytes.
    pub fn new(client: u32, pool: Pool, requests_max: usize) -> Self {
        assert_eq!(
            pool.page_bytes(),
            PAGE_BYTES,
            "sessions carry sectors of 512 bytes"
        );
        Self {
            client,
            pool,
            works: Slab::with_capacity(requests_max),
            requests: VecDeque::with_capacity(requests_max),
            number: 0,
            bytes: 0,
            share_bytes: u64::MAX,
            share_wanted: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// Gives work its tag; from here on it is under way.
    #[inline]
    pub fn insert(&mut self, work: W) -> u64 {
        let number = self.number;
        self.number = number.wrapping_add(1);
        tag(self.works.insert((number, work)), number)
    }

    /// # Panics
    /// If nothing of this tag is under way.
    #[inline]
    pub fn work(&mut self, tag: u64) -> &mut W {
        let found = self.works.get_mut(tag as u32);
        let (number, work) = found.expect("a request is answered once");
        assert_eq!(u64::from(*number), tag >> 32, "a request is answered once");
        work
    }

    /// # Panics
    /// If nothing of this tag is under way.
    #[inline]
    pub fn remove(&mut self, tag: u64) -> W {
        self.work(tag);
        self.works.remove(tag as u32).1
    }

    /// The work in a place, and its tag.
    pub fn at(&self, index: u32) -> Option<(u64, &W)> {
        let (number, work) = self.works.get(index)?;
        Some((tag(index, *number), work))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        let works = self.works.iter();
        works.map(|(index, (number, work))| (tag(index, *number), work))
    }

    /// Every place of [`Ledger::at`] is below this.
    pub fn bound(&self) -> u32 {
        self.works.bound()
    }

    /// True if there is room for so much payload more: within `bytes_max`, unless there is none yet, and, unless `is_exempt`,
    /// within the share. A request without payload needs no share, and tells nothing of requests that wait for one.
    #[inline]
    pub fn admits(&mut self, payload_bytes: u64, bytes_max: u64, is_exempt: bool) -> bool {
        let wanted = self.bytes + payload_bytes;
        if payload_bytes > 0 {
            let is_over = !is_exempt && wanted > self.share_bytes;
            self.share_wanted = if is_over { wanted } else { 0 };
            if is_over {
                return false;
            }
        }
        wanted <= bytes_max || self.bytes == 0
    }

    /// The share with which the request would go on that was held up last for want of it, or 0.
    pub fn share_wanted(&self) -> u64 {
        self.share_wanted
    }

    /// One page, if the pool keeps `reserve` of them.
    pub fn take_page(&self, reserve: usize) -> Option<Page> {
        (self.pool.available() > reserve)
            .then(|| self.pool.alloc())
            .flatten()
    }

    /// Every page that a range touches, or none if the pool would keep fewer than `reserve`.
    pub fn take_pages(&self, range: SectorRange, reserve: usize) -> Option<Pages> {
        let touched = range.pages();
        let count = (touched.end - touched.start) as usize;
        if self.pool.available() < count + reserve {
            return None;
        }
        let mut pages = Pages::with_capacity(count);
        pages.extend((0..count).map(|_| self.pool.alloc().expect("enough pages are available")));
        Some(pages)
    }
}

const fn tag(index: u32, number: u32) -> u64 {
    (number as u64) << 32 | index as u64
}
