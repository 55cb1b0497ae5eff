//! Which process memory belongs to: a forked child has a copy of an area's memory, but neither its threads nor its medium.

use crate::sync::{AtomicU32, AtomicU64, Once, Ordering};
use std::ptr;

/// Address of a word that the kernel makes zero in a forked child (MADV_WIPEONFORK).
static WORD: AtomicU64 = AtomicU64::new(0);
/// The last number that a process of this memory had.
static LAST: AtomicU32 = AtomicU32::new(0);
/// The word, where the kernel does not wipe (before Linux 4.14).
static UNWIPED: AtomicU32 = AtomicU32::new(0);

extern "C" fn after_fork() {
    UNWIPED.store(0, Ordering::Relaxed);
}

/// The word. It is made once, before any area, and stays.
fn word() -> &'static AtomicU32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| WORD.store(make() as u64, Ordering::Release));
    // SAFETY: made above, aligned to a page, and never unmapped; zeros are an `AtomicU32`.
    unsafe { &*(WORD.load(Ordering::Acquire) as *const AtomicU32) }
}

fn make() -> *const AtomicU32 {
    let (bytes, anonymous) = (size_of::<AtomicU32>(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, of which only this word is used.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), bytes, protection, anonymous, -1, 0);
        if page != libc::MAP_FAILED && libc::madvise(page, bytes, libc::MADV_WIPEONFORK) == 0 {
            return page.cast();
        }
        libc::pthread_atfork(None, None, Some(after_fork));
    }
    &UNWIPED
}

/// The number of this process among those that its memory was copied from. It is not 0.
pub(crate) fn generation() -> u32 {
    let word = word();
    match word.load(Ordering::Relaxed) {
        0 => {
            // Of threads that come here at once, one gives the number.
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            let given = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
            given.map_or_else(|given| given, |_| next)
        }
        generation => generation,
    }
}

/// True in the process that had this number.
pub(crate) fn is_present(generation: u32) -> bool {
    word().load(Ordering::Relaxed) == generation
}
