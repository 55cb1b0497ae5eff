//! Pages of payload by handle (rule 3: payload does not pass through policy).
//!
//! A [`Pool`] owns all payload memory of one core, and is as large as it is at start. A [`Page`] is a counted handle to one page of
//! it: cloning shares the bytes, dropping the last handle returns the page. A page that is shared cannot be written.
//!
//! The world chooses the size of a pool's page: 4096 bytes (eight sectors of 512) in production, and as little as eight
//! sectors of 16 bytes in the simulator. A simulated sector holds a stamp instead of data, so a run moves a hundredth of
//! the bytes through the very same code.

use core::cell::{Cell, RefCell};
use core::fmt;
use smallvec::SmallVec;
use std::rc::Rc;

use crate::limits::{PAGE_BYTES, SECTORS_PER_PAGE};

/// Memory outside the pools to which pages can be handles: a medium in memory, whose pages are sent from where they are.
/// Others may write it meanwhile, so nobody borrows its bytes.
pub trait Window {
    /// Start of the memory: aligned to a page, and there as long as the window.
    fn base(&self) -> *mut u8;
    /// Copies from the byte `offset` on.
    fn copy_to(&self, offset: usize, bytes: &mut [u8]);
}

enum Memory {
    Own(RefCell<Box<[u8]>>),
    Window(Box<dyn Window>),
}

struct Inner {
    page_bytes: usize,
    memory: Memory,
    /// The first page's byte in `memory`: pages are aligned as O_DIRECT may ask for.
    first: usize,
    base: *mut u8,
    counts: Box<[Cell<u32>]>,
    free: RefCell<Vec<u32>>,
    /// Pages that were asked to be kept back.
    kept: Cell<usize>,
}

impl Inner {
    /// Free pages that are not for everybody.
    fn kept(&self) -> usize {
        self.kept.get().min(self.counts.len() / KEPT_SHARE)
    }
}

/// Alignment of the first page.
const ALIGN_BYTES: usize = 4096;
/// At most this part of a pool is kept back.
const KEPT_SHARE: usize = 8;

/// The payload memory of one core.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

/// The right to a pool's last pages: of one whose work brings pages back. Others have to wait before, so they can wait for it.
#[derive(Debug)]
pub struct Reserve {
    pool: Pool,
    pages: usize,
}

/// A counted handle to one page. Not `Send`: pages do not leave their core.
pub struct Page {
    index: u32,
    pool: Rc<Inner>,
}

/// The pages of a request, in order; one page is kept inline.
pub type Pages = SmallVec<[Page; 1]>;

impl Pool {
    /// Reserves `pages` pages of eight sectors of `sector_bytes` (512 in production). The kernel gives a page's memory when the page is first
    /// used, and the pages that were used last are used first. So a process has as much as it ever needed at once.
    ///
    /// # Panics
    /// If `sector_bytes` is not a power of two between 8 and 512.
    pub fn new(pages: usize, sector_bytes: usize) -> Self {
        assert!(sector_bytes.is_power_of_two() && (8..=512).contains(&sector_bytes));
        let page_bytes = sector_bytes * SECTORS_PER_PAGE;
        let mut memory = vec![0; pages * page_bytes + ALIGN_BYTES].into_boxed_slice();
        let first = memory.as_ptr().align_offset(ALIGN_BYTES);
        let base = memory.as_mut_ptr().wrapping_add(first);
        Self(Rc::new(Inner {
            page_bytes,
            memory: Memory::Own(RefCell::new(memory)),
            first,
            base,
            counts: (0..pages).map(|_| Cell::new(0)).collect(),
            free: RefCell::new((0..pages as u32).rev().collect()),
            kept: Cell::new(0),
        }))
    }

    /// Handles to `pages` pages of memory that is not this pool's: [`Pool::page`] gives them, none can be allocated, and
    /// none is written through its handle.
    pub fn window(window: Box<dyn Window>, pages: usize) -> Self {
        Self(Rc::new(Inner {
            page_bytes: PAGE_BYTES,
            base: window.base(),
            memory: Memory::Window(window),
            first: 0,
            counts: (0..pages).map(|_| Cell::new(0)).collect(),
            free: RefCell::new(Vec::new()),
            kept: Cell::new(0),
        }))
    }

    /// A handle to a page of a window.
    ///
    /// # Panics
    /// If this is no window, or it has no such page.
    pub fn page(&self, index: u32) -> Page {
        assert!(
            matches!(self.0.memory, Memory::Window(_)),
            "a pool's own pages are allocated"
        );
        let count = &self.0.counts[index as usize];
        count.set(count.get() + 1);
        Page {
            index,
            pool: Rc::clone(&self.0),
        }
    }

    /// A page of its own with unspecified bytes, or `None` when the pool is empty: the caller pushes back.
    pub fn alloc(&self) -> Option<Page> {
        self.take(self.0.kept())
    }

    /// A page, if more than so many are free.
    fn take(&self, kept: usize) -> Option<Page> {
        let mut free = self.0.free.borrow_mut();
        let index = if free.len() > kept {
            free.pop()?
        } else {
            return None;
        };
        self.0.counts[index as usize].set(1);
        Some(Page {
            index,
            pool: Rc::clone(&self.0),
        })
    }

    /// A page of zeros, or `None` when the pool is empty.
    pub fn alloc_zeroed(&self) -> Option<Page> {
        self.alloc().map(Page::zeroed)
    }

    /// Keeps back so many pages more, as long as the reserve lives; of all reserves together an eighth of the pool at most.
    pub fn reserve(&self, pages: usize) -> Reserve {
        self.0.kept.set(self.0.kept.get() + pages);
        Reserve {
            pool: self.clone(),
            pages,
        }
    }

    /// Pages that can still be taken.
    pub fn available(&self) -> usize {
        self.0.free.borrow().len().saturating_sub(self.0.kept())
    }

    /// Pages that somebody holds.
    pub fn used(&self) -> usize {
        self.capacity() - self.0.free.borrow().len()
    }

    /// Pages in total.
    pub fn capacity(&self) -> usize {
        self.0.counts.len()
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    /// Start and length in bytes of the pool's memory, for registering it with the kernel.
    pub fn region(&self) -> (*mut u8, usize) {
        (self.0.base, self.0.counts.len() * self.0.page_bytes)
    }
}

impl Reserve {
    /// A page of its own with unspecified bytes, or `None` when not one is left.
    pub fn alloc(&self) -> Option<Page> {
        self.pool.take(0)
    }

    /// A page of zeros, or `None` when not one is left.
    pub fn alloc_zeroed(&self) -> Option<Page> {
        self.alloc().map(Page::zeroed)
    }

    /// Pages that can still be taken.
    pub fn available(&self) -> usize {
        self.pool.0.free.borrow().len()
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let kept = &self.pool.0.kept;
        kept.set(kept.get() - self.pages);
    }
}

impl Page {
    /// The page, which is the caller's alone, with zeros.
    fn zeroed(self) -> Self {
        self.with_mut(|bytes| bytes.fill(0));
        self
    }

    fn range(&self) -> core::ops::Range<usize> {
        let start = self.index as usize * self.pool.page_bytes;
        start..start + self.pool.page_bytes
    }

    /// Its bytes in the pool's own memory.
    fn place(&self) -> core::ops::Range<usize> {
        let range = self.range();
        self.pool.first + range.start..self.pool.first + range.end
    }

    /// Bytes of a page of this pool.
    pub fn len(&self) -> usize {
        self.pool.page_bytes
    }

    /// Never: a page has bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes of one sector of this page.
    pub fn sector_bytes(&self) -> usize {
        self.pool.page_bytes / SECTORS_PER_PAGE
    }

    /// True when no other handle shares the bytes.
    pub fn is_unique(&self) -> bool {
        self.pool.counts[self.index as usize].get() == 1
    }

    /// Reads the bytes. `f` must not touch another page of the pool mutably.
    pub fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match &self.pool.memory {
            Memory::Own(memory) => f(&memory.borrow()[self.place()]),
            Memory::Window(window) => {
                let mut copy = [0; PAGE_BYTES];
                window.copy_to(self.range().start, &mut copy);
                f(&copy)
            }
        }
    }

    /// Writes the bytes.
    ///
    /// # Panics
    /// If the page is shared: somebody else relies on its bytes. Or if it belongs to a window.
    pub fn with_mut<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.own_memory().borrow_mut()[self.place()])
    }

    fn own_memory(&self) -> &RefCell<Box<[u8]>> {
        assert!(self.is_unique(), "a shared page is not written");
        match &self.pool.memory {
            Memory::Own(memory) => memory,
            Memory::Window(_) => panic!("a window is not written through its pages"),
        }
    }

    /// Copies `count` sectors, starting at `first`, from the same place of `source`.
    ///
    /// # Panics
    /// If the page is shared, the pools differ or the range leaves the page.
    pub fn copy_sectors(&self, source: &Page, first: usize, count: usize) {
        assert!(Rc::ptr_eq(&self.pool, &source.pool), "pages of one pool");
        assert!(self.is_unique(), "a shared page is not written");
        assert!(first + count <= SECTORS_PER_PAGE);
        let (start, bytes) = (first * self.sector_bytes(), count * self.sector_bytes());
        let from = source.place().start + start;
        let to = self.place().start + start;
        self.own_memory().borrow_mut().copy_within(from..from + bytes, to);
    }

    /// Zeroes `count` sectors starting at `first`.
    pub fn zero_sectors(&self, first: usize, count: usize) {
        let sector = self.sector_bytes();
        self.with_mut(|bytes| bytes[first * sector..(first + count) * sector].fill(0));
    }

    /// CRC32C of the bytes.
    pub fn crc(&self) -> u32 {
        self.with(crc32c::crc32c)
    }

    /// True when every byte is zero.
    pub fn is_zero(&self) -> bool {
        self.with(|bytes| bytes.iter().all(|&b| b == 0))
    }

    /// Address of the bytes, for the kernel to read or fill while a handle is held. Only the runtime dereferences it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pool.base.wrapping_add(self.range().start)
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        let count = &self.pool.counts[self.index as usize];
        count.set(count.get() + 1);
        Self {
            index: self.index,
            pool: Rc::clone(&self.pool),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let count = &self.pool.counts[self.index as usize];
        count.set(count.get() - 1);
        if count.get() == 0 && matches!(self.pool.memory, Memory::Own(_)) {
            self.pool.free.borrow_mut().push(self.index);
        }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({})", self.index)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} free)", self.available(), self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_last_handle_returns_the_page() {
        let pool = Pool::new(2, 512);
        let a = pool.alloc().unwrap();
        let b = a.clone();
        assert!(!a.is_unique());
        drop(a);
        assert_eq!(pool.available(), 1);
        drop(b);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn the_last_pages_are_for_who_keeps_them_back() {
        let pool = Pool::new(32, 16);
        let (reserve, other) = (pool.reserve(3), pool.reserve(9));
        assert_eq!(pool.available(), 28, "an eighth of all at most");
        drop(other);
        let held: Vec<Page> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!((held.len(), pool.available(), pool.used()), (29, 0, 29));
        let last = [(); 3].map(|()| reserve.alloc());
        assert!(last.iter().all(Option::is_some) && reserve.alloc().is_none());
        drop((last, held));
        drop(reserve);
        assert_eq!((pool.available(), pool.used()), (32, 0));
    }

    #[test]
    fn an_empty_pool_says_so() {
        let pool = Pool::new(1, 16);
        let held = pool.alloc();
        assert!(held.is_some() && pool.alloc().is_none());
    }

    #[test]
    fn pages_are_aligned_for_the_kernel_and_the_one_used_last_is_used_first() {
        let pool = Pool::new(8, 512);
        let first = pool.alloc().expect("a pool of eight");
        assert!(first.as_ptr().addr().is_multiple_of(ALIGN_BYTES));
        first.with_mut(|bytes| bytes.fill(7));
        let place = first.as_ptr();
        drop(first);
        let again = pool.alloc().expect("a pool of eight");
        assert_eq!(again.as_ptr(), place);
        assert!(again.with(|bytes| bytes.iter().all(|&byte| byte == 7)));
    }

    #[test]
    #[should_panic(expected = "a shared page is not written")]
    fn a_shared_page_is_not_written() {
        let pool = Pool::new(1, 512);
        let a = pool.alloc_zeroed().unwrap();
        let _b = a.clone();
        a.with_mut(|bytes| bytes[0] = 1);
    }

    struct Counting(Box<[u8]>);

    impl Window for Counting {
        fn base(&self) -> *mut u8 {
            self.0.as_ptr().cast_mut()
        }
        fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0[offset..][..bytes.len()]);
        }
    }

    #[test]
    fn a_window_gives_handles_to_memory_that_is_not_its_own() {
        let memory = Counting(Box::new([7; PAGE_BYTES]));
        let base = memory.base();
        let window = Pool::window(Box::new(memory), 1);
        assert!(window.alloc().is_none());
        let page = window.page(0);
        let again = window.page(0);
        assert_eq!(page.as_ptr(), base);
        assert!(page.with(|bytes| bytes.iter().all(|&byte| byte == 7)));
        drop((page, again));
        assert!(window.alloc().is_none(), "its pages are nobody's to take");
    }

    #[test]
    fn sectors_are_copied_between_pages_of_any_size() {
        for sector_bytes in [8, 16, 512] {
            let pool = Pool::new(64, sector_bytes);
            let a = pool.alloc_zeroed().unwrap();
            let b = pool.alloc().unwrap();
            b.with_mut(|bytes| bytes.fill(7));
            a.copy_sectors(&b, 2, 3);
            a.with(|bytes| {
                for (i, &byte) in bytes.iter().enumerate() {
                    assert_eq!(byte == 7, (2..5).contains(&(i / sector_bytes)));
                }
            });
            a.zero_sectors(0, 8);
            assert!(a.is_zero());
        }
    }
}
