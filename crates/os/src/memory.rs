//! Memory that a program has freed.

/// Freed memory stays the program's, up to so many bytes of each arena. A thread that frees some MiB and needs them again soon would otherwise have
/// the kernel clear each page again. Of the GNU C library; other allocators do as they do.
pub fn keep_freed(bytes: usize) {
    #[cfg(target_env = "gnu")]
    {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: it sets numbers of the allocator.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, bytes);
            // Said once, the library does not guess either of the two any more.
            libc::mallopt(libc::M_MMAP_THRESHOLD, bytes.min(MMAP_BYTES_MAX));
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// `HEAP_MAX_SIZE / 2` of the GNU C library, which refuses more.
#[cfg(target_env = "gnu")]
const MMAP_BYTES_MAX: libc::c_int = 32 << 20;
