//! The library's own memory. The program's `malloc` may be held by the very thread that a signal has interrupted, or by a thread that a
//! forked child does not have.
//!
//! Blocks have sizes of powers of two, and large ones also of five fourths of these, each with a list of free ones. Nobody waits for a list: if it is held for too long, a block comes
//! from the kernel, and a block that goes is lost. Each step of a list is one store. So a list is whole whenever its holder is gone.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread;

/// The smallest block, and that of a page: every block of at least a page begins at a page.
const BLOCK_BYTES_MIN: usize = 16;
const PAGE_BYTES: usize = 4096;
/// Sizes: 16 bytes to 256 KiB. A larger block comes from the kernel, and goes back.
const SIZES: usize = 15;
const BLOCK_BYTES_MAX: usize = BLOCK_BYTES_MIN << (SIZES - 1);
/// Five fourths of 1 KiB to 128 KiB. A page of a file and what counts its users is a little more than a power of two.
const BETWEEN_BYTES_MIN: usize = 1280;
const SIZES_BETWEEN: usize = 8;
/// Blocks between powers of two are aligned so.
const BETWEEN_ALIGN_MAX: usize = 16;
/// Of the kernel the lists take so much at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Looks at a list that somebody holds. A holder needs some nanoseconds.
const LOOKS_MAX: u32 = 1000;

/// Free blocks of one size. The first word of a free block is the next one.
struct List {
    is_held: AtomicBool,
    free: AtomicPtr<u8>,
    /// The rest of a chunk: where it begins, and its bytes.
    rest: AtomicPtr<u8>,
    rest_bytes: AtomicUsize,
}

impl List {
    const fn new() -> Self {
        Self {
            is_held: AtomicBool::new(false),
            free: AtomicPtr::new(ptr::null_mut()),
            rest: AtomicPtr::new(ptr::null_mut()),
            rest_bytes: AtomicUsize::new(0),
        }
    }

    /// Runs `f` while nobody else has the list; `None` if somebody has it for too long.
    fn hold<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        for look in 0..LOOKS_MAX {
            if !self.is_held.swap(true, Ordering::Acquire) {
                let result = f();
                self.is_held.store(false, Ordering::Release);
                return Some(result);
            }
            if look % 16 == 15 {
                thread::yield_now();
            }
        }
        None
    }

    /// A block of this size; null without memory.
    fn take(&self, bytes: usize) -> *mut u8 {
        let taken = self.hold(|| {
            let block = self.free.load(Ordering::Relaxed);
            if !block.is_null() {
                // SAFETY: a free block, which nobody else has; its first word is the next one.
                let next = unsafe { block.cast::<*mut u8>().read() };
                self.free.store(next, Ordering::Release);
                return block;
            }
            let mut left = self.rest_bytes.load(Ordering::Relaxed);
            if left == 0 {
                left = (CHUNK_BYTES / bytes).max(1) * bytes;
                let chunk = map(left);
                if chunk.is_null() {
                    return chunk;
                }
                self.rest.store(chunk, Ordering::Relaxed);
                // A child that is forked between the two sees none left.
                self.rest_bytes.store(left, Ordering::Release);
            }
            self.rest_bytes.store(left - bytes, Ordering::Release);
            // SAFETY: inside the chunk.
            unsafe { self.rest.load(Ordering::Relaxed).add(left - bytes) }
        });
        taken.unwrap_or_else(|| map(bytes))
    }

    /// The block is free.
    fn give(&self, block: *mut u8) {
        self.hold(|| {
            let next = self.free.load(Ordering::Relaxed);
            // SAFETY: it is nobody's, and has room for a word.
            unsafe { block.cast::<*mut u8>().write(next) };
            self.free.store(block, Ordering::Release);
        });
    }
}

static LISTS: [List; SIZES] = [const { List::new() }; SIZES];
static LISTS_BETWEEN: [List; SIZES_BETWEEN] = [const { List::new() }; SIZES_BETWEEN];

/// Zeroed memory of the kernel's; null if there is none.
fn map(bytes: usize) -> *mut u8 {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: new memory.
    match unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) } {
        libc::MAP_FAILED => ptr::null_mut(),
        memory => memory.cast(),
    }
}

/// The list for a layout, and its blocks' size; `None` if the kernel has it.
fn list(layout: Layout) -> Option<(&'static List, usize)> {
    let wanted = layout.size().max(layout.align()).max(BLOCK_BYTES_MIN);
    let bytes = wanted.next_power_of_two();
    let between = bytes / 8 * 5;
    if between >= BETWEEN_BYTES_MIN && wanted <= between && layout.align() <= BETWEEN_ALIGN_MAX {
        let index = (between / BETWEEN_BYTES_MIN).trailing_zeros() as usize;
        if let Some(list) = LISTS_BETWEEN.get(index) {
            return Some((list, between));
        }
    }
    let index = (bytes / BLOCK_BYTES_MIN).trailing_zeros() as usize;
    (bytes <= BLOCK_BYTES_MAX && layout.align() <= PAGE_BYTES).then(|| (&LISTS[index], bytes))
}

/// In a forked child: nobody has a list.
pub(crate) fn forked() {
    LISTS
        .iter()
        .chain(&LISTS_BETWEEN)
        .for_each(|list| list.is_held.store(false, Ordering::Relaxed));
}

pub(crate) struct Memory;

// SAFETY: blocks are as large and as aligned as asked for, and nobody else's until they are given back.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match list(layout) {
            Some((list, bytes)) => list.take(bytes),
            None if layout.align() > PAGE_BYTES => ptr::null_mut(),
            None => map(layout.size()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match list(layout) {
            Some((list, _)) => list.give(block),
            // SAFETY: it was mapped so.
            None => drop(unsafe { libc::munmap(block.cast(), layout.size()) }),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && list(layout).is_some() {
            // SAFETY: it is so large.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else {
            return ptr::null_mut();
        };
        match (list(layout), list(wanted)) {
            (Some((_, before)), Some((_, after))) if before == after => return block,
            (None, None) if layout.align() <= PAGE_BYTES => {
                // SAFETY: it was mapped so.
                let moved = unsafe { libc::mremap(block.cast(), layout.size(), bytes, libc::MREMAP_MAYMOVE) };
                return if moved == libc::MAP_FAILED {
                    ptr::null_mut()
                } else {
                    moved.cast()
                };
            }
            _ => {}
        }
        // SAFETY: the caller's block and layout; the new one is another block.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size().min(bytes));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn blocks_keep_what_is_written_to_them() {
        let mut blocks = BTreeMap::new();
        let mut seed = 1_u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for round in 0..20_000 {
            let bits = 1 + draw(20);
            let bytes = 1 + draw(1 << bits);
            let layout = Layout::from_size_align(bytes, 1 << draw(13)).expect("sound");
            // SAFETY: each block is used as it was asked for, and given back once.
            unsafe {
                let block = if draw(2) == 0 {
                    Memory.alloc(layout)
                } else {
                    Memory.alloc_zeroed(layout)
                };
                assert!(!block.is_null() && (block as usize).is_multiple_of(layout.align()));
                block.write_bytes(round as u8, bytes);
                blocks.insert(block as usize, (layout, round as u8));
                if blocks.len() > 100 {
                    let at = *blocks.keys().nth(draw(100)).expect("as many");
                    let (layout, byte) = blocks.remove(&at).expect("there");
                    let block = at as *mut u8;
                    let is_whole = |block: *mut u8, bytes| {
                        std::slice::from_raw_parts(block, bytes)
                            .iter()
                            .all(|&it| it == byte)
                    };
                    assert!(is_whole(block, layout.size()));
                    let bytes = 1 + draw(2 * layout.size());
                    let moved = Memory.realloc(block, layout, bytes);
                    assert!(is_whole(moved, bytes.min(layout.size())));
                    Memory.dealloc(
                        moved,
                        Layout::from_size_align(bytes, layout.align()).expect("sound"),
                    );
                }
            }
        }
    }

    #[test]
    fn a_list_that_is_held_for_ever_stops_nobody() {
        let list = List::new();
        list.is_held.store(true, Ordering::Relaxed);
        let block = list.take(64);
        assert!(!block.is_null());
        list.give(block);
        list.is_held.store(false, Ordering::Relaxed);
        let other = list.take(64);
        assert_ne!(block, other);
        list.give(block);
        assert_eq!(list.take(64), block);
    }
}
