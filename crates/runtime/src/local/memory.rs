//! A volume's memory, shared by all cores of a target.
//!
//! Bytes are copied in and out and never borrowed, since other cores may write them at any time. Requests that overlap
//! while they are under way may see or leave a mixture, as block devices allow; each sees and leaves whole what does not
//! overlap.

use base::limits::PAGE_BYTES;
use base::{Page, Pool, Window};
use std::ops::Range;
use std::sync::Arc;
use std::{io, ptr};

/// Zeros are given back to the system from this size on.
const RELEASE_BYTES_MIN: usize = 2 << 20;

/// Anonymous memory, zero at first, that takes no room before it is written.
#[derive(Debug)]
pub(super) struct Region {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the region is only reached by copies through raw pointers (`copy_to`, `write`, `zero`) and by the kernel, none
// of which assumes that nobody else writes meanwhile.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` is a multiple of the page size.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a volume has at least one page",
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
        })
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Handles to the region's pages, for one core.
    pub fn window(region: &Arc<Self>) -> Pool {
        Pool::window(
            Box::new(RegionWindow(Arc::clone(region))),
            region.bytes / PAGE_BYTES,
        )
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && length <= self.bytes - offset,
            "inside the region"
        );
        self.base.wrapping_add(offset)
    }

    /// Copies bytes `range` of `page` to `offset`.
    pub fn write(&self, offset: usize, page: &Page, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= page.len());
        let to = self.at(offset, range.len());
        // SAFETY: the source is inside a page that the caller holds, the target inside the mapping; a page of a pool
        // never lies in a region.
        unsafe { ptr::copy_nonoverlapping(page.as_ptr().add(range.start), to, range.len()) };
    }

    /// Zeroes `length` bytes from `offset`; large ranges are given back to the system.
    pub fn zero(&self, offset: usize, length: usize) {
        let to = self.at(offset, length);
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

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every window holds the region.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

struct RegionWindow(Arc<Region>);

impl Window for RegionWindow {
    fn base(&self) -> *mut u8 {
        self.0.base
    }

    fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.0.at(offset, bytes.len());
        // SAFETY: the source is inside the mapping, the target is the caller's own.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::limits::SECTOR_BYTES;

    #[test]
    fn what_is_written_is_seen_through_a_window_and_zeroed_to_the_byte() {
        let bytes = 4 * RELEASE_BYTES_MIN;
        let region = Arc::new(Region::new(bytes as u64).expect("memory"));
        let window = Region::window(&region);
        let pool = Pool::new(1, SECTOR_BYTES);
        let page = pool.alloc().expect("a page");
        page.with_mut(|bytes| bytes.fill(0xab));
        for number in 0..bytes / PAGE_BYTES {
            region.write(number * PAGE_BYTES, &page, 0..PAGE_BYTES);
        }
        for (first, length) in [(512, 1024), (PAGE_BYTES * 3 + 512, 3 * RELEASE_BYTES_MIN)] {
            region.zero(first, length);
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
