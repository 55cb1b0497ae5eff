//! The DRAM write cache of a vSSD (RackBlox §3.5.1, Algorithm 2 lines 2–4): newest data first, written back in order
//! of age, with a mark ([`Cache::mark`]) by which a flush knows when everything accepted before it is written.
//!
//! Bounded: [`Cache::has_room`] is asked before [`Cache::put`]; without room the caller waits.

use base::limits::SECTORS_PER_PAGE;
use base::{Instant, Lpn, Map, Page, Version};
use std::collections::VecDeque;
use wire::rack::Header;

/// The cache's part of one page.
#[derive(Clone, Debug)]
pub struct Cached {
    /// Version of the data.
    pub version: Version,
    /// CRC32C of the page, 0 for zeros.
    pub crc: u32,
    /// The page; `None` is all zeros.
    pub page: Option<Page>,
}

#[derive(Debug)]
struct Entry {
    data: Cached,
    /// Mark of the oldest data in here that is not being written.
    dirty: Option<u64>,
    /// Mark of the data that is being written, or is about to be.
    writing: Option<u64>,
    /// That write has begun: newer data needs another one.
    begun: bool,
}

/// A write cache.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    entries: Map<u32, Entry>,
    /// Pages to write back, oldest first; an entry that is no longer dirty is skipped.
    queue: VecDeque<Lpn>,
    /// For each mark from `oldest` on, whether its data is written.
    written: VecDeque<bool>,
    oldest: u64,
}

impl Cache {
    /// A cache of `capacity` pages.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Map::with_capacity(capacity),
            queue: VecDeque::with_capacity(capacity),
            written: VecDeque::with_capacity(capacity),
            oldest: 0,
        }
    }

    /// True if [`put`](Cache::put) of this page is allowed.
    pub fn has_room(&self, lpn: Lpn) -> bool {
        self.entries.len() < self.capacity || self.entries.contains_key(&lpn.0)
    }

    /// The newest data of a page, if it is here.
    pub fn get(&self, lpn: Lpn) -> Option<&Cached> {
        self.entries.get(&lpn.0).map(|entry| &entry.data)
    }

    /// Takes newer data of a page.
    ///
    /// # Panics
    /// If there is no room, or if the version is lower than what is here.
    pub fn put(&mut self, lpn: Lpn, data: Cached) {
        assert!(self.has_room(lpn), "the caller asked for room");
        let mark = self.mark();
        match self.entries.get_mut(&lpn.0) {
            Some(entry) => {
                assert!(data.version >= entry.data.version, "versions of a page only grow");
                entry.data = data;
                if entry.dirty.is_some() || entry.writing.is_some() && !entry.begun {
                    return;
                }
                entry.dirty = Some(mark);
            }
            None => {
                self.entries.insert(
                    lpn.0,
                    Entry {
                        data,
                        dirty: Some(mark),
                        writing: None,
                        begun: false,
                    },
                );
                self.queue.push_back(lpn);
            }
        }
        self.written.push_back(false);
    }

    /// The mark of the next data: everything accepted so far has a lower one.
    pub fn mark(&self) -> u64 {
        self.oldest + self.written.len() as u64
    }

    /// True when everything below `mark` is written back.
    pub fn is_written_below(&self, mark: u64) -> bool {
        self.oldest >= mark
    }

    /// The mark under which the page's newest data is written back, `None` if it already is.
    pub fn mark_of(&self, lpn: Lpn) -> Option<u64> {
        self.entries
            .get(&lpn.0)
            .and_then(|entry| entry.dirty.or(entry.writing))
    }

    /// True when the data of `mark` is written back.
    pub fn is_written_at(&self, mark: u64) -> bool {
        mark < self.oldest
            || self
                .written
                .get((mark - self.oldest) as usize)
                .copied()
                .unwrap_or(false)
    }

    /// Moves a page to the head of the queue: somebody waits for it.
    pub fn expedite(&mut self, lpn: Lpn) {
        if self
            .entries
            .get(&lpn.0)
            .is_some_and(|entry| entry.dirty.is_some() && entry.writing.is_none())
        {
            self.queue.push_front(lpn);
        }
    }

    /// The next page to write back, and whether it is all zeros so far. It waits for [`begin`](Cache::begin).
    pub fn next_write(&mut self) -> Option<(Lpn, bool)> {
        while let Some(lpn) = self.queue.pop_front() {
            if let Some(entry) = self.entries.get_mut(&lpn.0)
                && entry.writing.is_none()
                && entry.dirty.is_some()
            {
                entry.writing = entry.dirty.take();
                entry.begun = false;
                return Some((lpn, entry.data.page.is_none()));
            }
        }
        None
    }

    /// What to write of a page that [`next_write`](Cache::next_write) named; [`wrote`](Cache::wrote) ends it.
    pub fn begin(&mut self, lpn: Lpn) -> Cached {
        let entry = self
            .entries
            .get_mut(&lpn.0)
            .expect("a page to be written stays in the cache");
        entry.begun = true;
        entry.data.clone()
    }

    /// A page whose write [`begin`](Cache::begin) began is written.
    pub fn wrote(&mut self, lpn: Lpn) {
        let entry = self
            .entries
            .get_mut(&lpn.0)
            .expect("a page being written stays in the cache");
        let mark = entry.writing.take().expect("wrote follows begin");
        if entry.dirty.is_some() {
            self.queue.push_back(lpn);
        } else {
            self.entries.remove(&lpn.0);
        }
        self.written[(mark - self.oldest) as usize] = true;
        while self.written.front() == Some(&true) {
            self.written.pop_front();
            self.oldest += 1;
        }
    }

    /// Pages held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when nothing is held: everything accepted is written back.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The place of the data: the write cache in front of the vSSD.
pub trait Store {
    /// The newest version of a page.
    fn newest(&self, lpn: Lpn) -> Version;
    /// True if [`put`](Store::put) would be taken now.
    fn has_room(&self, lpn: Lpn) -> bool;
    /// Takes a newer value.
    fn put(&mut self, now: Instant, lpn: Lpn, data: Cached);
    /// Remembers that the page's newest version is this one and that its data is lost: what is here is out of date.
    fn lose(&mut self, lpn: Lpn, version: Version);
    /// True after a media failure: there will be no more room than there is.
    fn is_latched(&self) -> bool;
    /// True if the page's data here is known to be damaged, so that the same version is welcome.
    fn is_damaged(&self, lpn: Lpn) -> bool;
    /// Pages of the vSSD.
    fn pages(&self) -> u32;
}

/// The page that a header names.
pub fn lpn_of(header: &Header) -> Lpn {
    Lpn(u32::try_from(header.lba / SECTORS_PER_PAGE as u64).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(counter: u64) -> Cached {
        Cached {
            version: Version(counter << 8),
            crc: 0,
            page: None,
        }
    }

    /// Begins the next write, which is of this version.
    fn write_next(cache: &mut Cache, counter: u64) -> Lpn {
        let lpn = cache.next_write().unwrap().0;
        assert_eq!(cache.begin(lpn).version, Version(counter << 8));
        lpn
    }

    #[test]
    fn an_overwrite_is_written_once() {
        let mut cache = Cache::new(2);
        cache.put(Lpn(1), data(1));
        cache.put(Lpn(1), data(2));
        let lpn = write_next(&mut cache, 2);
        assert_eq!(lpn, Lpn(1));
        assert!(cache.next_write().is_none());
        cache.wrote(lpn);
        assert!(cache.is_empty() && cache.is_written_below(cache.mark()));
    }

    #[test]
    fn a_page_changed_while_it_is_written_is_written_again() {
        let mut cache = Cache::new(2);
        cache.put(Lpn(1), data(1));
        let lpn = write_next(&mut cache, 1);
        let before = cache.mark();
        cache.put(Lpn(1), data(2));
        assert!(cache.next_write().is_none(), "one write of a page at a time");
        cache.wrote(lpn);
        assert!(cache.is_written_below(before) && cache.mark_of(Lpn(1)) == Some(before));
        write_next(&mut cache, 2);
    }

    #[test]
    fn a_page_changed_before_its_write_begins_is_written_once() {
        let mut cache = Cache::new(2);
        cache.put(Lpn(1), data(1));
        let lpn = cache.next_write().unwrap().0;
        cache.put(Lpn(1), data(2));
        let mark = cache.mark();
        assert_eq!(cache.begin(lpn).version, Version(2 << 8));
        assert!(!cache.is_written_below(mark) && cache.next_write().is_none());
        cache.wrote(lpn);
        assert!(cache.is_written_below(mark) && cache.is_empty());
    }

    #[test]
    fn a_full_cache_has_room_for_what_it_holds_only() {
        let mut cache = Cache::new(1);
        cache.put(Lpn(1), data(1));
        assert!(cache.has_room(Lpn(1)) && !cache.has_room(Lpn(2)));
    }

    #[test]
    fn an_expedited_page_goes_first_and_a_mark_waits_for_all_before_it() {
        let mut cache = Cache::new(4);
        for lpn in 1..4 {
            cache.put(Lpn(lpn), data(1));
        }
        let mark = cache.mark();
        cache.expedite(Lpn(3));
        let third = write_next(&mut cache, 1);
        assert_eq!(third, Lpn(3));
        cache.wrote(third);
        assert!(cache.is_written_at(2) && cache.mark_of(Lpn(3)).is_none() && !cache.is_written_below(mark));
        for lpn in [Lpn(1), Lpn(2)] {
            assert_eq!(write_next(&mut cache, 1), lpn);
            cache.wrote(lpn);
        }
        assert!(cache.is_written_below(mark) && cache.next_write().is_none());
    }
}
