//! Memory as a medium, shared by all cores of a target. It answers at once.
//!
//! Bytes are copied in and out and never borrowed, since other cores may write them at any time. Requests that overlap
//! while they are under way may see or leave a mixture, as block devices allow; each sees and leaves whole what does not
//! overlap.
//!
//! A bit for each page says whether it was written since it was zeroed: what was not is a hole. A write sets the bits after
//! its bytes, and a zeroing clears them before its own. With a fence in between on both sides, a page under both at once
//! either keeps its bit or ends as zeros.

use crate::sync::Arc;
use base::device::{Device, execute};
use base::limits::PAGE_BYTES;
use base::sync::{AtomicU64, Ordering, fence};
use base::{Extent, Instant, MediaDone, MediaError, MediaKind, MediaOp, Pages, Pool, Queue, Window};
use std::collections::VecDeque;
use std::{io, ptr};

/// Pages of a word of marks.
const WORD_BITS: usize = u64::BITS as usize;
/// Zeros are given back to the system from this size on.
const RELEASE_BYTES_MIN: usize = 2 << 20;

/// Anonymous memory, zero at first, that takes no room before it is written.
#[derive(Debug)]
struct Region {
    base: *mut u8,
    bytes: usize,
    /// A bit for each page that may hold something else than zeros.
    written: Box<[AtomicU64]>,
    /// How many these are.
    written_pages: AtomicU64,
}

// SAFETY: the region is only reached by copies through raw pointers (`copy_to`, `write_at`, `zero`) and by the kernel, none
// of which assumes that nobody else writes meanwhile.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` is a multiple of the page size.
    fn new(bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a medium has at least one page",
            ));
        }
        // SAFETY: a new anonymous mapping; nothing is replaced.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping just made. A kernel without huge pages refuses, and nothing is lost.
        unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        Ok(Self {
            base: base.cast(),
            bytes,
            written: (0..(bytes / PAGE_BYTES).div_ceil(WORD_BITS))
                .map(|_| AtomicU64::new(0))
                .collect(),
            written_pages: AtomicU64::new(0),
        })
    }

    /// Bytes were written there.
    fn mark(&self, offset: usize, length: usize) {
        fence(Ordering::SeqCst);
        for (word, mask) in words(offset / PAGE_BYTES, (offset + length).div_ceil(PAGE_BYTES)) {
            if self.written[word].load(Ordering::Relaxed) & mask != mask {
                let before = self.written[word].fetch_or(mask, Ordering::SeqCst);
                let pages = (mask & !before).count_ones();
                self.written_pages.fetch_add(pages.into(), Ordering::Relaxed);
            }
        }
    }

    /// The pages that lie there as a whole are to be zeroed.
    fn unmark(&self, offset: usize, length: usize) {
        for (word, mask) in words(offset.div_ceil(PAGE_BYTES), (offset + length) / PAGE_BYTES) {
            if self.written[word].load(Ordering::Relaxed) & mask != 0 {
                let before = self.written[word].fetch_and(!mask, Ordering::SeqCst);
                let pages = (mask & before).count_ones();
                self.written_pages.fetch_sub(pages.into(), Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
    }

    fn extent_at(&self, offset: usize, length: usize) -> Extent {
        let (first, end) = (offset / PAGE_BYTES, offset + length);
        let load = |word: usize| self.written[word].load(Ordering::Relaxed);
        // Read once: other cores may change it.
        let (first_word, first_bits) = (first / WORD_BITS, load(first / WORD_BITS));
        let is_written = first_bits >> (first % WORD_BITS) & 1 != 0;
        let mut stop = end;
        for (word, mask) in words(first, end.div_ceil(PAGE_BYTES)) {
            let bits = if word == first_word {
                first_bits
            } else {
                load(word)
            };
            let others = mask & if is_written { !bits } else { bits };
            if others != 0 {
                stop = (word * WORD_BITS + others.trailing_zeros() as usize) * PAGE_BYTES;
                break;
            }
        }
        Extent {
            length: (stop - offset) as u64,
            is_hole: !is_written,
        }
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && length <= self.bytes - offset,
            "inside the region"
        );
        self.base.wrapping_add(offset)
    }

    /// Zeroes `length` bytes from `offset`; large ranges are given back to the system.
    fn zero(&self, offset: usize, length: usize) {
        let to = self.at(offset, length);
        self.unmark(offset, length);
        let first = to as usize;
        let (start, end) = (
            first.next_multiple_of(PAGE_BYTES),
            (first + length) / PAGE_BYTES * PAGE_BYTES,
        );
        if end.saturating_sub(start) < RELEASE_BYTES_MIN {
            // SAFETY: inside the mapping.
            return unsafe { ptr::write_bytes(to, 0, length) };
        }
        let whole = to.wrapping_add(start - first);
        // SAFETY: whole pages inside the mapping, which is private and anonymous: they read as zeros afterwards.
        let released = unsafe { libc::madvise(whole.cast(), end - start, libc::MADV_DONTNEED) } == 0;
        // SAFETY: inside the mapping: what lies before, what lies after, and the middle if it was not released.
        unsafe {
            ptr::write_bytes(to, 0, start - first);
            ptr::write_bytes(to.wrapping_add(end - first), 0, first + length - end);
            if !released {
                ptr::write_bytes(whole, 0, end - start);
            }
        }
    }
}

/// The words of the marks of the pages from `first` to `end`, each with the bits of these pages.
fn words(first: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, skip) = (at / WORD_BITS, at % WORD_BITS);
        let count = (end - at).min(WORD_BITS - skip);
        at += count;
        Some((word, u64::MAX >> (WORD_BITS - count) << skip))
    })
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every window holds the region.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

impl Window for Memory {
    fn base(&self) -> *mut u8 {
        self.0.base
    }

    fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.0.at(offset, bytes.len());
        // SAFETY: the source is inside the mapping, the target is the caller's own.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

/// Memory of a process as a medium: cheap to clone, the same bytes.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Region>);

impl Memory {
    /// Zeros, rounded down to whole pages.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let page = PAGE_BYTES as u64;
        Region::new(bytes / page * page).map(|region| Self(Arc::new(region)))
    }

    /// Where `length` bytes from `offset` begin.
    fn check(&self, offset: u64, length: u64) -> Result<usize, MediaError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.0.bytes as u64 => Ok(offset as usize),
            _ => Err(MediaError::OutOfRange),
        }
    }
}

impl Device for Memory {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let at = self.check(offset, bytes.len() as u64)?;
        self.copy_to(at, bytes);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let at = self.check(offset, bytes.len() as u64)?;
        let to = self.0.at(at, bytes.len());
        // SAFETY: the target is inside the mapping, the source is the caller's own, which never lies in a region.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        self.0.mark(at, bytes.len());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        Ok(())
    }

    fn write_through(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.write_at(offset, bytes)
    }

    fn discard(&mut self, offset: u64, length: u64) -> Result<(), MediaError> {
        let at = self.check(offset, length)?;
        self.0.zero(at, length as usize);
        Ok(())
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.bytes as u64
    }

    fn extent_at(&self, offset: u64, length: u64) -> Extent {
        match self.check(offset, length) {
            Ok(at) => self.0.extent_at(at, length as usize),
            Err(_) => Extent::data(length),
        }
    }

    fn data_bytes(&self) -> u64 {
        // A page may be counted out before it is counted in.
        let pages = self.0.written_pages.load(Ordering::Relaxed) as i64;
        (pages.max(0) as u64 * PAGE_BYTES as u64).min(self.capacity_bytes())
    }

    fn has_cache(&self) -> bool {
        false
    }
}

/// One core's queue to memory. A read without pages gets handles to the memory itself.
pub(crate) struct MemoryQueue {
    memory: Memory,
    window: Pool,
    done: VecDeque<MediaDone>,
}

impl MemoryQueue {
    pub fn new(memory: &Memory) -> Self {
        let pages = memory.0.bytes / PAGE_BYTES;
        Self {
            memory: memory.clone(),
            window: Pool::window(Box::new(memory.clone()), pages),
            done: VecDeque::with_capacity(1024),
        }
    }

    /// Carries an operation out.
    pub fn execute(&mut self, mut op: MediaOp) -> MediaDone {
        if op.kind == MediaKind::Read && op.pages.is_empty() {
            let page = PAGE_BYTES as u64;
            let end = match self.memory.check(op.offset, u64::from(op.length)) {
                Ok(_) => op.offset + u64::from(op.length),
                Err(error) => return op.done(Err(error)),
            };
            let numbers = op.offset / page..end.div_ceil(page);
            op.pages = numbers
                .map(|number| self.window.page(number as u32))
                .collect::<Pages>();
            return op.done(Ok(()));
        }
        execute(&mut self.memory, op)
    }
}

impl Queue for MemoryQueue {
    fn submit(&mut self, _now: Instant, op: MediaOp) {
        let done = self.execute(op);
        self.done.push_back(done);
    }

    fn poll(&mut self, _now: Instant) -> Option<MediaDone> {
        self.done.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.done.is_empty()).then_some(Instant::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::device::suite;
    use base::limits::SECTOR_BYTES;

    #[test]
    fn memory_is_a_medium() {
        let bytes = suite::PAGES * PAGE_BYTES as u64;
        suite::device(&mut Memory::new(bytes).expect("memory"));
        let mut queue = MemoryQueue::new(&Memory::new(bytes).expect("memory"));
        suite::queue(&mut queue, SECTOR_BYTES, |_| Instant::ZERO);
    }

    fn extents(memory: &Memory) -> Vec<Extent> {
        let mut at = 0;
        let found: Vec<Extent> = std::iter::from_fn(|| {
            let left = memory.capacity_bytes() - at;
            (left > 0).then(|| {
                let extent = memory.extent_at(at, left);
                at += extent.length;
                extent
            })
        })
        .collect();
        let data = found.iter().filter(|extent| !extent.is_hole);
        assert_eq!(memory.data_bytes(), data.map(|extent| extent.length).sum::<u64>());
        found
    }

    #[test]
    fn pages_that_were_not_written_since_they_were_zeroed_are_holes() {
        let page = PAGE_BYTES as u64;
        let mut memory = Memory::new(200 * page).expect("memory");
        assert_eq!(extents(&memory), [Extent::hole(200 * page)]);
        memory.write_at(63 * page + 512, &[0; 512]).expect("inside");
        memory.write_at(64 * page, &[1; PAGE_BYTES]).expect("inside");
        memory.write_at(130 * page - 512, &[1; 1024]).expect("inside");
        let (hole, data) = (Extent::hole, Extent::data);
        let written = [
            hole(63 * page),
            data(2 * page),
            hole(64 * page),
            data(2 * page),
            hole(69 * page),
        ];
        assert_eq!(extents(&memory), written);
        memory.discard(63 * page + 512, 2 * page - 512).expect("inside");
        memory.discard(129 * page, page + 1024).expect("inside");
        let trimmed = [
            hole(63 * page),
            data(page),
            hole(66 * page),
            data(page),
            hole(69 * page),
        ];
        assert_eq!(
            extents(&memory),
            trimmed,
            "a page is a hole when all of it is zeroed"
        );
        assert_eq!(memory.extent_at(63 * page + 1024, 1024), data(1024));
        assert_eq!(memory.extent_at(63 * page - 512, 4096), hole(512));
        assert_eq!(memory.extent_at(64 * page, 512), hole(512));
    }

    // Bug: a status ended its core while another core wrote or trimmed the page at which it began. Cause: whether the page
    // is a hole was read twice, and the extent was empty if the answers differed. Fix: it is read once.
    #[test]
    fn an_extent_has_its_first_page_while_others_write_and_zero_it() {
        let page = PAGE_BYTES as u64;
        let memory = Memory::new(64 * page).expect("memory");
        let end = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (mut other, end) = (memory.clone(), &end);
            scope.spawn(move || {
                while end.load(Ordering::Relaxed) == 0 {
                    other.write_at(page, &[1; 512]).expect("inside");
                    other.discard(page, page).expect("inside");
                }
            });
            let lengths: Vec<u64> = (0..2_000_000)
                .map(|_| memory.extent_at(page, 4 * page).length)
                .collect();
            end.store(1, Ordering::Relaxed);
            assert!(lengths.iter().all(|length| (page..=4 * page).contains(length)));
        });
    }

    /// Writers and zeroings of the same pages at once leave no data in a hole.
    #[test]
    fn a_page_under_a_write_and_a_zeroing_at_once_is_no_hole_with_data_in_it() {
        let page = PAGE_BYTES as u64;
        let memory = Memory::new(64 * page).expect("memory");
        for round in 0..200 {
            std::thread::scope(|scope| {
                let mut writer = memory.clone();
                scope.spawn(move || {
                    for at in 0..64 {
                        writer
                            .write_at(at * page, &[1 + round as u8; 512])
                            .expect("inside");
                    }
                });
                let mut zeroer = memory.clone();
                scope.spawn(move || {
                    for at in 0..64 {
                        zeroer.discard(at * page, page).expect("inside");
                    }
                });
            });
            for at in 0..64 {
                let mut bytes = [0; 512];
                memory.read_at(at * page, &mut bytes).expect("inside");
                let is_hole = memory.extent_at(at * page, page).is_hole;
                assert!(!is_hole || bytes == [0; 512], "page {at} of round {round}");
            }
            extents(&memory);
        }
    }

    #[test]
    fn what_is_written_is_seen_through_a_window_and_zeroed_to_the_byte() {
        let bytes = 4 * RELEASE_BYTES_MIN;
        let mut memory = Memory::new(bytes as u64).expect("memory");
        let window = MemoryQueue::new(&memory).window;
        memory.write_at(0, &vec![0xab; bytes]).expect("inside");
        for (first, length) in [(512, 1024), (PAGE_BYTES * 3 + 512, 3 * RELEASE_BYTES_MIN)] {
            memory.discard(first as u64, length as u64).expect("inside");
            for number in [0, first / PAGE_BYTES, (first + length) / PAGE_BYTES] {
                window.page(number as u32).with(|bytes| {
                    for (index, &byte) in bytes.iter().enumerate() {
                        let at = number * PAGE_BYTES + index;
                        let zero = (512..1536).contains(&at) || (first..first + length).contains(&at);
                        assert_eq!(byte == 0, zero, "byte {at}");
                    }
                });
            }
        }
    }
}
