//! A replica's part of its vSSD: the buffered flash, and the pages with lost newest data.

use crate::buffered::Buffered;
use base::{Instant, Lpn, Version};
use rack::cache::{Cached, Store};
use rack::compare::Content;
use std::collections::BTreeMap;

/// The store that replication sees. `J` is what waits for the medium.
pub(super) struct Held<J> {
    pub buffered: Buffered<J>,
    /// Pages whose newest data, of this version, is damaged here. The flash may have older data of them.
    damaged: BTreeMap<u32, Version>,
}

impl<J> Held<J> {
    pub(super) fn new(buffered: Buffered<J>) -> Self {
        Self {
            buffered,
            damaged: BTreeMap::new(),
        }
    }

    /// True if the flash has older data of the page than was lost.
    pub(super) fn is_lost(&self, lpn: Lpn) -> bool {
        let lost = self.damaged.get(&lpn.0);
        lost.is_some_and(|&lost| lost > self.buffered.flash().version(lpn))
    }

    /// The version of the page's newest data, if that is damaged here.
    pub(super) fn lost(&self, lpn: Lpn) -> Option<Version> {
        self.is_damaged(lpn).then(|| self.newest(lpn))
    }

    /// The newest data of a page, as far as it is compared; none if they are damaged.
    pub(super) fn content(&self, lpn: Lpn) -> Option<Content> {
        if lpn.0 >= self.pages() || self.is_damaged(lpn) {
            return None;
        }
        Some(match self.buffered.cache().get(lpn) {
            Some(cached) => Content {
                version: cached.version,
                crc: cached.page.as_ref().map_or(0, |_| cached.crc),
            },
            None => Content {
                version: self.buffered.flash().version(lpn),
                crc: self.buffered.flash().crc(lpn),
            },
        })
    }

    /// The flash could not read a page; true if that is news.
    pub(super) fn note_damage(&mut self, lpn: Lpn) -> bool {
        let is_news = self.buffered.cache().get(lpn).is_none() && !self.is_damaged(lpn);
        if is_news {
            self.lose(lpn, self.buffered.flash().version(lpn));
        }
        is_news
    }
}

impl<J> Store for Held<J> {
    /// Be its data here or lost.
    fn newest(&self, lpn: Lpn) -> Version {
        if lpn.0 >= self.pages() {
            return Version::NONE;
        }
        let here = self.buffered.version(lpn);
        match self.damaged.get(&lpn.0) {
            Some(&lost) if self.buffered.cache().get(lpn).is_none() => lost.max(here),
            _ => here,
        }
    }

    fn has_room(&self, lpn: Lpn) -> bool {
        self.buffered.cache().has_room(lpn)
    }

    fn put(&mut self, now: Instant, lpn: Lpn, data: Cached) {
        self.damaged.remove(&lpn.0);
        self.buffered.put(now, lpn, data);
    }

    fn lose(&mut self, lpn: Lpn, version: Version) {
        self.damaged.insert(lpn.0, version);
    }

    fn is_latched(&self) -> bool {
        self.buffered.is_latched()
    }

    fn is_damaged(&self, lpn: Lpn) -> bool {
        self.damaged.contains_key(&lpn.0)
    }

    fn pages(&self) -> u32 {
        self.buffered.flash().logical_pages()
    }
}
