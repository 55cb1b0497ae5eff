//! Pages of an area's segments in memory, up to a limit that the user sets.
//!
//! A page is named by its segment's generation and by its index in the segment. A generation is never given out again, and a
//! page is kept only if it can never change ([`Cache::keep`]). So nothing in the cache is ever out of date, and a removal is
//! never needed: what nobody asks for any more makes way for the rest.
//!
//! `quick_cache` decides what stays: an entry that was asked for once makes way before one that was asked for again
//! (S3-FIFO), so a scan does not drive out what is hot. It is sharded, and a hit takes a shard's lock for reading. Nobody
//! holds a lock while a page is read. Two threads that miss the same page at once both read it, as nobody waits for anybody
//! here.
//!
//! # Memory
//! Pages are places of one mapping, made once, whose memory the kernel gives as places are used for the first time. They
//! are aligned as O_DIRECT asks, so the device writes into them. The heap has no such pages: each would take two. The limit
//! counts the pages and [`ENTRY_BYTES`] for each, so resident memory stays below it. A reader keeps a page by holding it
//! ([`Page`]): a place is used anew when nobody holds it. If readers hold more pages than are left beside those of the cache
//! ([`IN_HAND_PART`]), others get pages of the heap, which are not kept.

use crate::sync::{Arc, Mutex, PoisonError};
use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, UnitWeighter};
use std::alloc::Layout;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::{io, ptr};

/// Memory beside a page: the entry and its share of the table, of the names of pages that made way (half as many), and the
/// count of holders. A test measures that it is not more.
const ENTRY_BYTES: u64 = 192;
/// One page in so many is for readers that read at the moment.
const IN_HAND_PART: u64 = 32;
/// And at least so many.
const IN_HAND_MIN: u64 = 8;
/// Fewer pages are no cache.
const PAGES_MIN: u64 = 4 * IN_HAND_MIN;
/// The alignment that every direct-I/O device takes.
const ALIGN_BYTES: usize = 4096;

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

/// Name of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageKey {
    /// Of the segment.
    pub generation: u64,
    /// Of the page in its segment.
    pub index: u32,
}

/// A page for everybody to read. Its bytes stay as they are while anybody holds it.
#[derive(Clone)]
pub(crate) struct Page(Arc<Frame>);

/// A page to be filled, which one thread has for itself.
pub(crate) struct Blank(Frame);

/// Pages by their names.
pub(crate) struct Cache {
    /// `None` with too little memory to be of use.
    kept: Option<Kept>,
    page_bytes: usize,
    bytes_max: u64,
}

struct Kept {
    pages: quick_cache::sync::Cache<PageKey, Page, UnitWeighter, Spread>,
    arena: Arc<Arena>,
}

impl Cache {
    /// A cache that takes `bytes_max` at most, of pages of `page_bytes`. Less than some dozens of pages are none.
    ///
    /// # Errors
    /// Where the system refuses the mapping.
    pub(crate) fn new(bytes_max: u64, page_bytes: usize) -> io::Result<Self> {
        let all = bytes_max / (page_bytes as u64 + ENTRY_BYTES);
        let all = all.min(u64::from(u32::MAX));
        let mut cache = Self {
            kept: None,
            page_bytes,
            bytes_max,
        };
        if all < PAGES_MIN {
            return Ok(cache);
        }
        let capacity = all - (all / IN_HAND_PART).max(IN_HAND_MIN);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(capacity as usize)
            .weight_capacity(capacity)
            .build()
            .expect("both capacities are given");
        let pages = quick_cache::sync::Cache::with_options(
            options,
            UnitWeighter,
            Spread,
            DefaultLifecycle::default(),
        );
        let arena = Arc::new(Arena::new(all as u32, page_bytes)?);
        cache.kept = Some(Kept { pages, arena });
        Ok(cache)
    }

    /// Bytes of each page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The page, if it is here.
    pub(crate) fn get(&self, key: PageKey) -> Option<Page> {
        self.kept.as_ref()?.pages.get(&key)
    }

    /// Memory for a page that is to be read, with any bytes in it.
    pub(crate) fn blank(&self) -> Blank {
        let place = self.kept.as_ref().and_then(|kept| kept.arena.take());
        Blank(place.unwrap_or_else(|| Frame::heap(self.page_bytes)))
    }

    /// Keeps a page that never changes any more, for whoever asks for it next.
    pub(crate) fn keep(&self, key: PageKey, page: &Page) {
        if let (Some(kept), Some(_)) = (&self.kept, &page.0.arena) {
            kept.pages.insert(key, page.clone());
        }
    }

    /// Counts and memory.
    pub(crate) fn stats(&self) -> CacheStats {
        let Some(Kept { pages, arena }) = &self.kept else {
            return CacheStats::default();
        };
        let places = u64::from(arena.free().fresh) * self.page_bytes as u64;
        let holders = pages.len() * size_of::<(Frame, [usize; 4])>();
        CacheStats {
            hits: pages.hits(),
            misses: pages.misses(),
            bytes: places + (pages.memory_used().total() + holders) as u64,
            bytes_max: self.bytes_max,
        }
    }
}

impl Blank {
    /// The page, filled.
    pub(crate) fn fill(self) -> Page {
        Page(Arc::new(self.0))
    }
}

impl Deref for Blank {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Blank {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the place is this frame's alone, and the frame is borrowed mutably. Its bytes are initialised: zeros at first.
        unsafe { std::slice::from_raw_parts_mut(self.0.memory, self.0.page_bytes) }
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Memory of one page, which nobody else has.
struct Frame {
    memory: *mut u8,
    page_bytes: usize,
    /// `None` if it is of the heap.
    arena: Option<Arc<Arena>>,
}

// SAFETY: the memory is the frame's alone. It is written through a mutable borrow only.
unsafe impl Send for Frame {}
// SAFETY: as above.
unsafe impl Sync for Frame {}

impl Frame {
    fn heap(page_bytes: usize) -> Self {
        // SAFETY: a layout of at least a byte.
        let memory = unsafe { std::alloc::alloc_zeroed(layout(page_bytes)) };
        if memory.is_null() {
            std::alloc::handle_alloc_error(layout(page_bytes));
        }
        Self {
            memory,
            page_bytes,
            arena: None,
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the place is this frame's alone, and nobody writes it while the frame is borrowed. It is initialised.
        unsafe { std::slice::from_raw_parts(self.memory, self.page_bytes) }
    }
}

fn layout(page_bytes: usize) -> Layout {
    Layout::from_size_align(page_bytes.max(1), ALIGN_BYTES).expect("a page is of some KiB")
}

impl Drop for Frame {
    fn drop(&mut self) {
        match &self.arena {
            Some(arena) => arena.give_back(self.memory),
            // SAFETY: from `heap`, with this layout, and nobody else's.
            None => unsafe { std::alloc::dealloc(self.memory, layout(self.page_bytes)) },
        }
    }
}

/// A mapping of equal places.
struct Arena {
    base: *mut u8,
    page_bytes: usize,
    places: u32,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Places that were used. The last one first: its memory is in the processor's cache.
    used: Vec<u32>,
    /// Places from here on were never used, and have no memory yet.
    fresh: u32,
}

// SAFETY: the mapping is reached through frames only, each of which has its place for itself.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    fn new(places: u32, page_bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (bytes, protection) = (places as usize * page_bytes, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base: base.cast(),
            page_bytes,
            places,
            free: Mutex::default(),
        })
    }

    fn free(&self) -> crate::sync::MutexGuard<'_, Free> {
        // Nothing panics while it is held.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>) -> Option<Frame> {
        let mut free = self.free();
        let place = match free.used.pop() {
            Some(place) => place,
            None if free.fresh < self.places => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => return None,
        };
        drop(free);
        Some(Frame {
            // SAFETY: inside the mapping.
            memory: unsafe { self.base.add(place as usize * self.page_bytes) },
            page_bytes: self.page_bytes,
            arena: Some(Arc::clone(self)),
        })
    }

    fn give_back(&self, memory: *mut u8) {
        let place = (memory as usize - self.base as usize) / self.page_bytes;
        self.free().used.push(place as u32);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`. Every frame in it has held the arena, so none is left.
        unsafe { libc::munmap(self.base.cast(), self.places as usize * self.page_bytes) };
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
        let mut blank = cache.blank();
        blank[..4].copy_from_slice(&index.to_le_bytes());
        cache.keep(key(index), &blank.fill());
        false
    }

    #[test]
    fn memory_stays_below_the_limit() {
        let bytes_max = 64 << 20;
        let cache = Cache::new(bytes_max, PAGE_BYTES).expect("memory");
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
    fn a_scan_leaves_what_is_hot() {
        let cache = Cache::new(8 << 20, PAGE_BYTES).expect("memory");
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
    fn pages_in_hand_stay_as_they_are() {
        let cache = Cache::new(1 << 20, PAGE_BYTES).expect("memory");
        read(&cache, 0);
        let held = cache.get(key(0)).expect("it was kept");
        let blanks: Vec<Blank> = (0..1000).map(|_| cache.blank()).collect();
        for (index, mut blank) in (1..).zip(blanks) {
            assert_eq!(blank.as_ptr() as usize % ALIGN_BYTES, 0);
            blank.fill_with(u8::default);
            cache.keep(key(index), &blank.fill());
        }
        assert_eq!(held[..4], 0_u32.to_le_bytes());
        let stats = cache.stats();
        assert!(stats.bytes <= stats.bytes_max, "{stats:?}");
    }

    #[test]
    fn threads_find_what_they_look_for() {
        let cache = Cache::new(2 << 20, PAGE_BYTES).expect("memory");
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
        let cache = Cache::new(4096, PAGE_BYTES).expect("nothing is asked for");
        assert!(!read(&cache, 3) && !read(&cache, 3));
        assert_eq!(cache.stats(), CacheStats::default());
    }
}
