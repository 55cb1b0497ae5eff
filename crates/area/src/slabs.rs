//! Memory of the cache's pages: one region, mapped once, of which no more than the limit is ever resident.
//!
//! The heap of the process keeps what threads free for these very threads, and pages of many lengths leave holes: a third more than
//! all pages together was resident. So the region is divided into *slabs* of one size. A slab has slots of one length; a page takes a slot
//! of the shortest length that has room for it. A slab that is empty again serves any length. If no slot is left, the caller gets the
//! names of all pages of one slab, and drops them from the cache. Then that slab is empty, unless somebody still reads in it.
//!
//! The cache's tables lie elsewhere, and take [`ENTRY_BYTES`] a page of the limit. If they grow, slabs go back to the system.

use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, PoisonError};
use std::alloc::Layout;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Name of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageKey {
    /// Of the segment.
    pub generation: u64,
    /// Of the page in its segment.
    pub index: u32,
}

/// Memory beside a page: the cache's entry, its share of the table, and of the names of pages that made way (half as many). A test
/// measures that it is not more.
pub(crate) const ENTRY_BYTES: u64 = 96;

/// A slab's bytes: a sixty-fourth of the limit, within these bounds.
const SLAB_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;
/// Slots begin at multiples of it.
const ALIGN_BYTES: usize = 16;
const HEAD_BYTES: usize = size_of::<Head>();
/// One part in so many of the limit stays free, for slots of lengths that are asked for next.
const SPARE_SHARE: u64 = 32;
/// Slabs that are looked at for one to be emptied.
const LOOKS: usize = 16;
/// No slab.
const NONE: u32 = u32::MAX;

/// The beginning of a slot that is in use.
#[repr(C, align(16))]
struct Head {
    /// Pages that refer to it; 0 for a slot that is not in use.
    holders: AtomicU32,
    length: u32,
    generation: u64,
    index: u32,
    /// Bytes of the slot.
    slot_bytes: u32,
    /// A reference from [`Arc::into_raw`]; null for a page beside the region.
    home: *const Slabs,
}

impl Head {
    fn name(&self) -> PageKey {
        PageKey {
            generation: self.generation,
            index: self.index,
        }
    }
}

/// Bytes that stay as they are, and in memory as long as somebody has this or a clone of it.
pub(crate) struct Page(NonNull<Head>);

// SAFETY: the bytes are not written any more, the count of holders is atomic, and `Slabs` takes slots back from any thread.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// A page that is still to be filled: nobody else has it.
pub(crate) struct Draft(Page);

/// The region.
pub(crate) struct Slabs {
    base: NonNull<u8>,
    slab_bytes: usize,
    count: usize,
    bytes_max: u64,
    /// Lengths of slots, from the longest on.
    lengths: Vec<u32>,
    state: Mutex<State>,
    capacity: AtomicU64,
}

// SAFETY: `base` refers to memory that the value owns, and `state` tells who uses which part of it.
unsafe impl Send for Slabs {}
// SAFETY: as above.
unsafe impl Sync for Slabs {}

struct State {
    slabs: Vec<Slab>,
    /// Slabs of a length that have a free slot, by length.
    open: Vec<Vec<u32>>,
    /// Resident slabs without a page, and others, each the last one first.
    empty: Vec<u32>,
    absent: Vec<u32>,
    /// The next slab to be looked at.
    hand: usize,
    /// Pages, and how many there were at most.
    pages: u64,
    pages_max: u64,
}

#[derive(Clone, Copy)]
struct Slab {
    /// Index of the length of its slots, or [`NONE`].
    class: u32,
    used: u32,
    /// Slots from here on were never in use.
    fresh: u32,
    /// The first free slot below; each leads to the next.
    free: u32,
    /// Its place among those that are open.
    place: u32,
    /// It takes no more pages until it is empty, or is looked at again.
    is_leaving: bool,
}

impl Slab {
    const EMPTY: Self = Self {
        class: NONE,
        used: 0,
        fresh: 0,
        free: NONE,
        place: NONE,
        is_leaving: false,
    };
}

/// The outcome of [`Slabs::take`].
pub(crate) enum Room {
    Here(Draft),
    /// There will be room if these are dropped. They may have been dropped already.
    After(Vec<PageKey>),
    /// No slot is so long.
    Never,
}

impl Slabs {
    /// A region of which at most `bytes_max` become resident, with [`ENTRY_BYTES`] for each page. `None` if the system has no addresses
    /// left.
    pub(crate) fn new(bytes_max: u64) -> Option<Arc<Self>> {
        let (least, most) = SLAB_BYTES.into_inner();
        let part = usize::try_from(bytes_max / 64).unwrap_or(most);
        let slab_bytes = part.clamp(least, most).next_power_of_two().min(most);
        let count = usize::try_from(bytes_max).ok()? / slab_bytes;
        // SAFETY: a new mapping at any place.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count.max(1) * slab_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let lengths = lengths(slab_bytes);
        Some(Arc::new(Self {
            base: NonNull::new(base.cast())?,
            slab_bytes,
            count,
            bytes_max,
            state: Mutex::new(State {
                slabs: vec![Slab::EMPTY; count],
                open: vec![Vec::new(); lengths.len()],
                empty: Vec::new(),
                absent: (0..count as u32).rev().collect(),
                hand: 0,
                pages: 0,
                pages_max: 0,
            }),
            lengths,
            capacity: AtomicU64::new(bytes_max - bytes_max / SPARE_SHARE),
        }))
    }

    /// The weight ([`Page::weight`]) that all kept pages may have together now. It is less after there were more pages, as tables never shrink.
    pub(crate) fn capacity(&self) -> u64 {
        // A figure that stands for itself.
        self.capacity.load(Ordering::Relaxed)
    }

    /// The class of the shortest slots with room for a page.
    fn class_of(&self, length: usize) -> Option<u32> {
        let whole = length.checked_add(HEAD_BYTES)?;
        let longer = self.lengths.partition_point(|&slot| slot as usize >= whole);
        longer.checked_sub(1).map(|nth| nth as u32)
    }

    /// Room for a page.
    pub(crate) fn take(self: &Arc<Self>, name: PageKey, length: usize) -> Room {
        let Some(class) = self.class_of(length) else {
            return Room::Never;
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        while self.resident(state) > self.slabs_max(state) {
            if !self.give_back(state) {
                return Room::After(self.choose(state));
            }
        }
        if state.open[class as usize].is_empty() && !self.open(state, class) {
            return Room::After(self.choose(state));
        }
        let at = self.take_slot(state, class);
        let head = Head {
            holders: AtomicU32::new(1),
            length: length as u32,
            generation: name.generation,
            index: name.index,
            slot_bytes: self.lengths[class as usize],
            home: Arc::into_raw(Arc::clone(self)),
        };
        // SAFETY: the slot is aligned, has room, and is now ours.
        unsafe { at.write(head) };
        Room::Here(Draft(Page(at)))
    }

    /// Resident memory of slabs, and of the cache's tables.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (self.resident(&state) * self.slab_bytes) as u64 + state.pages_max * ENTRY_BYTES
    }

    /// The part of it that tables may have.
    #[cfg(test)]
    pub(crate) fn tables_bytes(&self) -> u64 {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pages_max
            * ENTRY_BYTES
    }

    fn resident(&self, state: &State) -> usize {
        self.count - state.absent.len()
    }

    /// Slabs that may be resident, with a page more.
    fn slabs_max(&self, state: &State) -> usize {
        let tables = state.pages_max.max(state.pages + 1) * ENTRY_BYTES;
        (self.bytes_max.saturating_sub(tables) / self.slab_bytes as u64) as usize
    }

    /// Gives an empty slab back to the system, if there is one.
    fn give_back(&self, state: &mut State) -> bool {
        let Some(slab) = state.empty.pop() else {
            return false;
        };
        // SAFETY: whole pages of the mapping, in which nobody has anything.
        unsafe {
            libc::madvise(
                self.slab(slab).as_ptr().cast(),
                self.slab_bytes,
                libc::MADV_DONTNEED,
            )
        };
        state.absent.push(slab);
        true
    }

    /// Makes one more slab serve a length; false if none is empty.
    fn open(&self, state: &mut State, class: u32) -> bool {
        let may_grow = self.resident(state) < self.slabs_max(state);
        let slab = match state.empty.pop() {
            None if may_grow => state.absent.pop(),
            empty => empty,
        };
        let Some(slab) = slab else { return false };
        state.slabs[slab as usize].class = class;
        state.list(slab);
        true
    }

    /// A slot of a slab that is open.
    fn take_slot(&self, state: &mut State, class: u32) -> NonNull<Head> {
        let slab = *state.open[class as usize].last().expect("one is open");
        let slots = self.slots(class);
        let it = &mut state.slabs[slab as usize];
        let slot = match it.free {
            NONE => {
                it.fresh += 1;
                it.fresh - 1
            }
            slot => slot,
        };
        let at = self.slot(slab, class, slot);
        if it.free != NONE {
            // SAFETY: a free slot has a number behind its count.
            it.free = unsafe { (*at.as_ptr()).length };
        }
        it.used += 1;
        if it.used == slots {
            state.unlist(slab);
        }
        state.pages += 1;
        state.pages_max = state.pages_max.max(state.pages);
        self.set_capacity(state);
        at
    }

    /// Sets what the cache may keep: [`Slabs::capacity`].
    fn set_capacity(&self, state: &State) {
        let unused = (state.pages_max - state.pages) * ENTRY_BYTES;
        let capacity = self
            .bytes_max
            .saturating_sub(self.bytes_max / SPARE_SHARE + unused);
        // Written under the lock only.
        let last = self.capacity.load(Ordering::Relaxed);
        if capacity.abs_diff(last) > self.bytes_max / SPARE_SHARE / 2 {
            self.capacity.store(capacity, Ordering::Relaxed);
        }
    }

    /// The names of what lies in one slab, which takes no more pages for now: the emptiest of some.
    fn choose(&self, state: &mut State) -> Vec<PageKey> {
        let mut chosen: Option<(u64, u32)> = None;
        for _ in 0..LOOKS.min(self.count) {
            let nth = state.hand;
            state.hand = (state.hand + 1) % self.count;
            self.stay(state, nth as u32);
            let it = &state.slabs[nth];
            if it.class != NONE {
                let full = u64::from(it.used) * u64::from(self.lengths[it.class as usize]);
                chosen = chosen.into_iter().chain([(full, nth as u32)]).min();
            }
        }
        let Some((_, slab)) = chosen else {
            return Vec::new();
        };
        if state.slabs[slab as usize].place != NONE {
            state.unlist(slab);
        }
        let it = &mut state.slabs[slab as usize];
        it.is_leaving = true;
        let (class, fresh) = (it.class, it.fresh);
        let heads = (0..fresh).map(|slot| {
            // SAFETY: slots below `fresh` have a head. Nobody writes one but under the lock, which we have.
            unsafe { self.slot(slab, class, slot).as_ref() }
        });
        // A count that becomes 0 now only makes a name too many.
        let used = heads.filter(|head| head.holders.load(Ordering::Relaxed) > 0);
        used.map(Head::name).collect()
    }

    /// A slab that was to be emptied and is not, as somebody reads in it, takes pages again.
    fn stay(&self, state: &mut State, slab: u32) {
        let it = &mut state.slabs[slab as usize];
        if core::mem::take(&mut it.is_leaving) && it.used < self.slots(it.class) {
            state.list(slab);
        }
    }

    /// Takes a slot back.
    fn free(&self, at: NonNull<Head>) {
        let within = at.as_ptr() as usize - self.base.as_ptr() as usize;
        let slab = (within / self.slab_bytes) as u32;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let it = &mut state.slabs[slab as usize];
        let slots = self.slots(it.class);
        let slot = (within % self.slab_bytes) / self.lengths[it.class as usize] as usize;
        // SAFETY: nobody else has the slot any more: its count is 0.
        unsafe { (*at.as_ptr()).length = it.free };
        it.free = slot as u32;
        it.used -= 1;
        state.pages -= 1;
        let (is_empty, was_full) = (it.used == 0, it.used + 1 == slots);
        match (is_empty, it.is_leaving) {
            (true, _) => {
                if it.place != NONE {
                    state.unlist(slab);
                }
                state.slabs[slab as usize] = Slab::EMPTY;
                state.empty.push(slab);
            }
            (false, false) if was_full => state.list(slab),
            _ => {}
        }
    }

    fn slots(&self, class: u32) -> u32 {
        self.slab_bytes as u32 / self.lengths[class as usize]
    }

    fn slab(&self, slab: u32) -> NonNull<u8> {
        // SAFETY: slabs lie within the mapping.
        unsafe { self.base.add(slab as usize * self.slab_bytes) }
    }

    fn slot(&self, slab: u32, class: u32, slot: u32) -> NonNull<Head> {
        let within = slot as usize * self.lengths[class as usize] as usize;
        // SAFETY: slots lie within their slab.
        unsafe { self.slab(slab).add(within).cast() }
    }
}

impl State {
    /// The slab has a free slot.
    fn list(&mut self, slab: u32) {
        let it = &mut self.slabs[slab as usize];
        let open = &mut self.open[it.class as usize];
        it.place = open.len() as u32;
        open.push(slab);
    }

    /// The slab has no slot for anybody.
    fn unlist(&mut self, slab: u32) {
        let it = &mut self.slabs[slab as usize];
        let place = std::mem::replace(&mut it.place, NONE);
        let open = &mut self.open[it.class as usize];
        open.swap_remove(place as usize);
        if let Some(&moved) = open.get(place as usize) {
            self.slabs[moved as usize].place = place;
        }
    }
}

/// Lengths of slots, each of which wastes little of a slab: a sixteenth less from one to the next.
fn lengths(slab_bytes: usize) -> Vec<u32> {
    let mut lengths = vec![slab_bytes as u32];
    let mut slots = 2;
    loop {
        let length = (slab_bytes / slots) / ALIGN_BYTES * ALIGN_BYTES;
        if length < HEAD_BYTES + ALIGN_BYTES {
            return lengths;
        }
        lengths.push(length as u32);
        // All slots of this length that there is room for.
        slots = (slab_bytes / length).max(slots) + (slots / 16).max(1);
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`. Each page keeps the value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.count.max(1) * self.slab_bytes) };
    }
}

impl Draft {
    /// Memory of its own, which is not the cache's.
    pub(crate) fn beside(length: usize) -> Self {
        let layout = layout_beside(length);
        // SAFETY: not of size zero.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at.cast::<Head>()) else {
            std::alloc::handle_alloc_error(layout);
        };
        let head = Head {
            holders: AtomicU32::new(1),
            length: u32::try_from(length).expect("no page is so long"),
            generation: 0,
            index: 0,
            slot_bytes: 0,
            home: std::ptr::null(),
        };
        // SAFETY: aligned, with room for it.
        unsafe { at.write(head) };
        Self(Page(at))
    }

    /// It is filled.
    pub(crate) fn finish(self) -> Page {
        self.0
    }
}

fn layout_beside(length: usize) -> Layout {
    Layout::from_size_align(HEAD_BYTES + length, align_of::<Head>()).expect("no page is so long")
}

impl Page {
    fn head(&self) -> &Head {
        // SAFETY: the slot is in use as long as somebody refers to it.
        unsafe { self.0.as_ref() }
    }

    /// The bytes of the region that it takes, and those of the cache's tables. `None` for one beside the region.
    pub(crate) fn weight(&self) -> Option<u64> {
        let slot = u64::from(self.head().slot_bytes);
        (slot > 0).then_some(slot + ENTRY_BYTES)
    }

    fn bytes(&self) -> *mut u8 {
        // SAFETY: they follow the head.
        unsafe { self.0.cast::<u8>().add(HEAD_BYTES).as_ptr() }
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes follow the head. A slab's memory was zeros or an earlier page; that of one beside is written by
        // whoever made it before anybody reads.
        unsafe { std::slice::from_raw_parts(self.bytes(), self.head().length as usize) }
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Page> for bytes::Bytes {
    fn from(page: Page) -> Self {
        Self::from_owner(page)
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        // Whoever clones is a holder, so the count does not become 0 meanwhile.
        self.head().holders.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let head = self.head();
        // What each holder did comes before the slot is another page's.
        if head.holders.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (home, length) = (head.home, head.length as usize);
        if home.is_null() {
            // SAFETY: as `Draft::beside` asked for it.
            unsafe { std::alloc::dealloc(self.0.as_ptr().cast(), layout_beside(length)) };
        } else {
            // SAFETY: from `Arc::into_raw` in `take`; this was the last page that had it.
            let home = unsafe { Arc::from_raw(home) };
            home.free(self.0);
        }
    }
}

impl Deref for Draft {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.0.head().length as usize;
        // SAFETY: as for a page; nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.0.bytes(), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: u64 = 4 << 20;

    fn key(index: u32) -> PageKey {
        PageKey { generation: 7, index }
    }

    /// A page whose bytes tell its name.
    fn page(slabs: &Arc<Slabs>, index: u32, length: usize) -> Option<Page> {
        match slabs.take(key(index), length) {
            Room::Here(mut draft) => {
                draft.fill(index as u8);
                Some(draft.finish())
            }
            Room::After(_) | Room::Never => None,
        }
    }

    #[test]
    fn slots_waste_little() {
        for slab_bytes in [16 << 10, 64 << 10, 256 << 10] {
            let lengths = lengths(slab_bytes);
            assert!(lengths.is_sorted_by(|a, b| a > b), "{lengths:?}");
            for pair in lengths.windows(2) {
                let (longer, shorter) = (pair[0] as usize, pair[1] as usize);
                let slots = slab_bytes / shorter;
                assert!(slab_bytes - slots * shorter < slab_bytes / 16 + ALIGN_BYTES * slots);
                assert!(
                    longer - shorter <= longer / slots.min(12) + ALIGN_BYTES,
                    "{longer} {shorter}"
                );
            }
        }
    }

    #[test]
    fn pages_keep_what_they_have_until_nobody_has_them() {
        let slabs = Slabs::new(BYTES_MAX).unwrap();
        let mut random = base::rng::Rng::new(3);
        let mut held: Vec<(u32, usize, Page)> = Vec::new();
        for index in 0..200_000 {
            let length = [40, 130, 1060, 4032, 8064][random.below(5) as usize] + random.below(16) as usize;
            match page(&slabs, index, length) {
                Some(page) => held.push((index, length, page)),
                None => drop(held.swap_remove(random.below(held.len() as u64) as usize)),
            }
            if held.len() > 2_000 {
                held.swap_remove(random.below(held.len() as u64) as usize);
            }
            let (index, length, page) = &held[random.below(held.len() as u64) as usize];
            assert_eq!(page.len(), *length);
            assert!(page.iter().all(|byte| *byte == *index as u8));
            assert!(slabs.bytes() <= BYTES_MAX);
        }
        drop(held);
        let state = slabs.state.lock().unwrap();
        assert_eq!(state.pages, 0);
        assert_eq!(state.empty.len() + state.absent.len(), slabs.count);
        assert!(state.open.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_page_outlives_whoever_made_its_slab() {
        let slabs = Slabs::new(BYTES_MAX).unwrap();
        let page = page(&slabs, 5, 100).unwrap();
        drop(slabs);
        let other = page.clone();
        drop(page);
        assert_eq!(&*bytes::Bytes::from(other), [5; 100]);
    }

    #[test]
    fn what_is_dropped_makes_room_for_another_length() {
        let slabs = Slabs::new(BYTES_MAX).unwrap();
        let mut held: Vec<Page> = (0..).map_while(|index| page(&slabs, index, 1000)).collect();
        let Room::After(names) = slabs.take(key(0), 8000) else {
            panic!("all slabs are taken")
        };
        assert!(!names.is_empty());
        held.retain(|page| !names.contains(&page.head().name()));
        assert!(page(&slabs, 1, 8000).is_some());
        assert!(matches!(slabs.take(key(0), 1 << 20), Room::Never));
    }

    #[test]
    fn slabs_in_which_somebody_reads_serve_on() {
        let slabs = Slabs::new(BYTES_MAX).unwrap();
        let mut held: Vec<Page> = (0..).map_while(|index| page(&slabs, index, 1000)).collect();
        let count = held.len();
        // One page of each slab stays.
        let mut seen = std::collections::BTreeSet::new();
        held.retain(|page| {
            let within = page.head() as *const Head as usize - slabs.base.as_ptr() as usize;
            seen.insert(within / slabs.slab_bytes)
        });
        for index in 0..10_000 {
            assert!(
                page(&slabs, index, 8000).is_none(),
                "each slab has a page of 1000 bytes"
            );
        }
        let again = (0..)
            .map_while(|index| page(&slabs, index, 1000))
            .collect::<Vec<_>>();
        assert!(
            again.len() + held.len() > count / 10 * 9,
            "{} of {count}",
            again.len()
        );
    }

    #[test]
    fn tables_that_grow_take_memory_from_slabs() {
        let slabs = Slabs::new(BYTES_MAX).unwrap();
        let pages: Vec<Page> = (0..).map_while(|index| page(&slabs, index, 4000)).collect();
        let before = slabs.state.lock().unwrap().absent.len();
        drop(pages);
        let rows: Vec<Page> = (0..).map_while(|index| page(&slabs, index, 30)).collect();
        assert!(slabs.state.lock().unwrap().absent.len() > before);
        assert!(slabs.bytes() <= BYTES_MAX);
        assert!(rows.len() > 20_000, "{}", rows.len());
    }
}
