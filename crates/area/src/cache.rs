//! Pages of an area's segments in memory, up to a limit that the user sets.
//!
//! A page is named by its segment's generation and by its place in the segment. A generation is never given out again, and a
//! page is kept only if it can never change ([`Cache::keep`]). So nothing in the cache is ever out of date, and a removal is
//! never needed: what nobody asks for any more makes way for the rest.
//!
//! `quick_cache` decides what stays: an entry that was asked for once makes way before one that was asked for again
//! (S3-FIFO), so a scan does not drive out what is hot. It is sharded, and a hit takes a shard's lock for reading. Nobody
//! holds a lock while a page is read. Two threads that miss the same page at once both read it, as nobody waits for anybody
//! here.
//!
//! # Rows
//! Keys that are asked for often seldom share a page. So the cache also has *rows*: the newest entry of a key in tables, by the hash of
//! the key. A lookup whose page was in the cache already leaves its row there: then the page is no longer asked for, and goes, while
//! the row stays. A row does go out of date. When a newer entry of its key leaves memory, [`Cache::renew`] replaces it; until then memory
//! has that entry, and nobody asks for the row.
//!
//! # Memory
//! Pages lie in [`Slabs`], so resident memory stays below the limit. A reader keeps a page, and its place, by holding it.

pub(crate) use crate::slabs::{Draft, Page, PageKey};

use crate::slabs::{Room, Slabs};
use crate::sync::{Arc, AtomicU64, Ordering};
use foldhash::fast::RandomState;
use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, Weighter};
use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::ops::{Deref, DerefMut, Range};

/// Bytes of a usual page, to size the tables.
const PAGE_BYTES: u64 = 4096;
/// Times that slabs are emptied for one page.
const ROOMS_MAX: usize = 4;
/// Less memory is no cache.
const BYTES_MIN: u64 = 32 * PAGE_BYTES;
/// The alignment that every direct-I/O device takes.
const ALIGN_BYTES: usize = 4096;

/// A thread keeps no longer blank.
const SPARE_BYTES_MAX: usize = 128 << 10;

/// Counts since the opening, and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Pages that were there.
    pub hits: u64,
    /// Pages that were not.
    pub misses: u64,
    /// Memory of pages and their entries, in bytes.
    pub bytes: u64,
    /// The limit.
    pub bytes_max: u64,
}

/// Memory into which a device writes.
pub(crate) struct Blank {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

/// The index of rows: no segment has so many pages.
const ROW: u32 = u32::MAX;
/// Longer entries are left to their pages.
const ROW_BYTES_MAX: usize = 2048;

/// The entry of a key: the bytes of the key's length, the key, the value.
pub(crate) struct Row(Page);

impl Row {
    const LENGTH_BYTES: usize = 4;

    fn key_end(&self) -> usize {
        let (length, _) = self.0.split_first_chunk().expect("a row has its key's length");
        Self::LENGTH_BYTES + u32::from_le_bytes(*length) as usize
    }

    fn key(&self) -> &[u8] {
        &self.0[Self::LENGTH_BYTES..self.key_end()]
    }

    /// Bytes, and the place of the value in them.
    pub(crate) fn into_value(self) -> (Page, Range<usize>) {
        let range = self.key_end()..self.0.len();
        (self.0, range)
    }
}

/// Pages by their names, and rows by their keys.
pub(crate) struct Cache {
    /// `None` with too little memory to be of use.
    pages: Option<Pages>,
    /// Of the names of rows.
    seed: RandomState,
    bytes_max: u64,
}

struct Pages {
    map: quick_cache::sync::Cache<PageKey, Page, Bytes, Spread>,
    slabs: Arc<Slabs>,
    /// The capacity that the map has.
    capacity: AtomicU64,
}

/// A page weighs what it takes.
#[derive(Clone, Copy, Debug)]
struct Bytes;

impl Weighter<PageKey, Page> for Bytes {
    fn weight(&self, _: &PageKey, page: &Page) -> u64 {
        page.weight().expect("pages beside the slabs are not kept")
    }
}

impl Cache {
    /// A cache that takes `bytes_max` at most. Less than some dozens of pages are none.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let map = |capacity| {
            let options = OptionsBuilder::new()
                .estimated_items_capacity((bytes_max / PAGE_BYTES) as usize)
                .weight_capacity(capacity)
                .build()
                .expect("both capacities are given");
            let lifecycle = DefaultLifecycle::default();
            quick_cache::sync::Cache::with_options(options, Bytes, Spread, lifecycle)
        };
        let slabs = (bytes_max >= BYTES_MIN).then(|| Slabs::new(bytes_max)).flatten();
        Self {
            pages: slabs.map(|slabs| Pages {
                map: map(slabs.capacity()),
                capacity: slabs.capacity().into(),
                slabs,
            }),
            seed: RandomState::default(),
            bytes_max,
        }
    }

    /// False if it never has any page.
    pub(crate) fn is_there(&self) -> bool {
        self.pages.is_some()
    }

    /// The page, if it is here.
    pub(crate) fn get(&self, key: PageKey) -> Option<Page> {
        self.pages.as_ref()?.map.get(&key)
    }

    /// Room for a page, which may be kept if there is room in the cache.
    pub(crate) fn draft(&self, key: PageKey, length: usize) -> Draft {
        let kept = self.pages.as_ref().and_then(|pages| pages.draft(key, length));
        kept.unwrap_or_else(|| Draft::beside(length))
    }

    /// Keeps a page that never changes any more, for whoever asks for it next. It was drafted with this name.
    pub(crate) fn keep(&self, key: PageKey, page: &Page) {
        if let Some(pages) = &self.pages
            && page.weight().is_some()
        {
            pages.map.insert(key, page.clone());
        }
    }

    fn row_name(&self, key: &[u8]) -> PageKey {
        PageKey {
            generation: self.seed.hash_one(key),
            index: ROW,
        }
    }

    /// The row of a key of tables, if it is here.
    pub(crate) fn row(&self, key: &[u8]) -> Option<Row> {
        let row = Row(self.pages.as_ref()?.map.get(&self.row_name(key))?);
        (row.key() == key).then_some(row)
    }

    /// Keeps a row. It must be of the newest entry that the key has in tables, and stay that until the next call of
    /// [`Cache::renew`] with the key.
    pub(crate) fn keep_row(&self, key: &[u8], value: &[u8]) {
        if key.len() + value.len() > ROW_BYTES_MAX {
            return;
        }
        let name = self.row_name(key);
        let length = (key.len() as u32).to_le_bytes();
        let parts = [&length, key, value];
        let draft = self.pages.as_ref().and_then(|pages| {
            let bytes = parts.iter().map(|part| part.len()).sum();
            pages.draft(name, bytes)
        });
        if let Some(mut draft) = draft {
            let mut rest = &mut draft[..];
            for part in parts {
                let (now, later) = rest.split_at_mut(part.len());
                now.copy_from_slice(part);
                rest = later;
            }
            self.keep(name, &draft.finish());
        }
    }

    /// The newest entry of a key is leaving memory: its row follows, if there is one.
    pub(crate) fn renew(&self, key: &[u8], value: Option<&[u8]>) {
        let Some(pages) = &self.pages else { return };
        let name = self.row_name(key);
        let row = pages.map.peek(&name).map(Row);
        if row.is_some_and(|row| row.key() == key) {
            // Whatever becomes of the new one, the old one is wrong.
            pages.map.remove(&name);
            if let Some(value) = value {
                self.keep_row(key, value);
            }
        }
    }

    /// Counts and memory.
    pub(crate) fn stats(&self) -> CacheStats {
        let Some(pages) = &self.pages else {
            return CacheStats::default();
        };
        CacheStats {
            hits: pages.map.hits(),
            misses: pages.map.misses(),
            bytes: pages.slabs.bytes(),
            bytes_max: self.bytes_max,
        }
    }
}

impl Pages {
    fn follow_capacity(&self) {
        // A hint: whoever sees an old one is told again.
        let capacity = self.slabs.capacity();
        let is_new = self.capacity.load(Ordering::Relaxed) != capacity;
        if is_new && self.capacity.swap(capacity, Ordering::Relaxed) != capacity {
            self.map.set_capacity(capacity);
        }
    }

    fn draft(&self, key: PageKey, length: usize) -> Option<Draft> {
        for _ in 0..ROOMS_MAX {
            match self.slabs.take(key, length) {
                Room::Here(draft) => {
                    self.follow_capacity();
                    return Some(draft);
                }
                Room::After(names) => names.iter().for_each(|name| _ = self.map.remove(name)),
                Room::Never => break,
            }
        }
        None
    }
}

thread_local! {
    /// Memory of a blank that is no longer in use: the next one takes it.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Blank {
    /// The bytes are those of any earlier blank.
    pub(crate) fn new(length: usize) -> Self {
        let spare = SPARE.try_with(Cell::take).unwrap_or_default();
        let memory = match spare.len() >= length + ALIGN_BYTES {
            true => spare,
            false => vec![0; length + ALIGN_BYTES],
        };
        // The heap memory stays where it is when the vector moves.
        let start = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        Self {
            memory,
            start,
            length,
        }
    }
}

impl Drop for Blank {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if memory.len() <= SPARE_BYTES_MAX {
            // A thread that ends has no use for it.
            let _ = SPARE.try_with(|spare| spare.set(memory));
        }
    }
}

impl Deref for Blank {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }
}

impl DerefMut for Blank {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

/// Spreads names of pages: `Hash` hands over a generation and an index, both small numbers. Nobody outside chooses them.
#[derive(Clone, Copy, Debug, Default)]
struct Spread;

struct Spreading(u64);

impl BuildHasher for Spread {
    type Hasher = Spreading;

    fn build_hasher(&self) -> Spreading {
        Spreading(0)
    }
}

impl Hasher for Spreading {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        // The golden ratio, odd; both halves of the product, as the table takes low bits and the shard high ones.
        let product =
            u128::from(self.0.rotate_left(32) ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: usize = 4096;

    fn key(index: u32) -> PageKey {
        PageKey {
            generation: 1 + u64::from(index / 1000),
            index: index % 1000,
        }
    }

    fn read(cache: &Cache, index: u32) -> bool {
        if let Some(page) = cache.get(key(index)) {
            assert_eq!(page[..4], index.to_le_bytes(), "another page");
            return true;
        }
        let mut page = cache.draft(key(index), PAGE_BYTES);
        page[..4].copy_from_slice(&index.to_le_bytes());
        cache.keep(key(index), &page.finish());
        false
    }

    #[test]
    fn memory_stays_below_the_limit() {
        let bytes_max = 64 << 20;
        let cache = Cache::new(bytes_max);
        let mut random = base::rng::Rng::new(1);
        for _ in 0..200_000 {
            read(&cache, random.below(60_000) as u32);
        }
        let stats = cache.stats();
        assert!(stats.bytes <= bytes_max, "{stats:?}");
        assert!(stats.bytes > bytes_max / 10 * 9, "{stats:?}");
        assert_eq!(stats.hits + stats.misses, 200_000);
    }

    #[test]
    fn memory_stays_below_the_limit_when_lengths_change() {
        let bytes_max = 16 << 20;
        let cache = Cache::new(bytes_max);
        let tables = |cache: &Cache| {
            cache
                .pages
                .as_ref()
                .map(|pages| pages.map.memory_used().total())
                .unwrap()
        };
        let tables_at_first = tables(&cache);
        let mut random = base::rng::Rng::new(2);
        let mut held = std::collections::VecDeque::new();
        for (phase, length) in [4032, 120, 8064, 1060, 30, 16_000].into_iter().enumerate() {
            for _ in 0..200_000 {
                let key = key(random.below(300_000) as u32);
                let found = cache.get(key).unwrap_or_else(|| {
                    let mut draft = cache.draft(key, length);
                    draft.fill(key.index as u8);
                    let page = draft.finish();
                    cache.keep(key, &page);
                    page
                });
                assert!(found.iter().all(|byte| *byte == key.index as u8));
                held.push_back(found);
                if held.len() > 32 {
                    held.pop_front();
                }
            }
            let stats = cache.stats();
            assert!(stats.bytes <= bytes_max, "{phase}: {stats:?}");
            assert!(stats.bytes > bytes_max / 10 * 9, "{phase}: {stats:?}");
            let pages = cache.pages.as_ref().unwrap();
            let most = pages.slabs.tables_bytes() as usize;
            let weight = pages.map.weight() - pages.map.len() as u64 * crate::slabs::ENTRY_BYTES;
            // All but a few of the region's slabs have what is asked for now.
            assert!(
                weight > (bytes_max - most as u64) / 20 * 17,
                "{phase}: {weight} {most}"
            );
            assert!(
                tables(&cache) - tables_at_first <= most,
                "{phase}: {} {most}",
                tables(&cache)
            );
        }
    }

    #[test]
    fn a_scan_leaves_what_is_hot() {
        let cache = Cache::new(8 << 20);
        for _ in 0..4 {
            (0..500).for_each(|index| _ = read(&cache, index));
        }
        assert!(
            !(10_000..60_000).any(|index| read(&cache, index)),
            "each is read once"
        );
        let left = (0..500).filter(|&index| read(&cache, index)).count();
        assert!(left > 400, "{left} of 500");
    }

    #[test]
    fn memory_for_a_device_is_aligned_wherever_it_moves() {
        let blanks: Vec<Blank> = (1..20).map(|i| Blank::new(i * 512)).collect();
        for (i, blank) in blanks.into_iter().enumerate() {
            assert_eq!(blank.as_ptr() as usize % ALIGN_BYTES, 0);
            assert_eq!(blank.len(), (i + 1) * 512);
        }
    }

    #[test]
    fn threads_find_what_they_look_for() {
        let cache = Cache::new(2 << 20);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = base::rng::Rng::new(thread);
                    for _ in 0..20_000 {
                        read(cache, random.below(2_000) as u32);
                    }
                });
            }
        });
    }

    #[test]
    fn too_little_memory_is_no_cache() {
        let cache = Cache::new(4096);
        assert!(!read(&cache, 3) && !read(&cache, 3));
        assert_eq!(cache.stats(), CacheStats::default());
    }
}
