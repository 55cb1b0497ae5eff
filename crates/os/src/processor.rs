//! Which processor a thread is on.

/// The processor that this thread is on now: a hint, as the thread may be moved at any time.
#[inline]
pub fn processor() -> u32 {
    // SAFETY: no pointers. The C library reads the kernel's note in the thread's own memory (rseq(2)), so this costs no system call.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_may_use_one_processor_is_on_that() {
        let now = processor();
        // SAFETY: a set of zeros is valid, and the calls read and fill it.
        let moved = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(now as usize, &mut set);
            libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set)
        };
        assert_eq!(moved, 0, "a thread may choose among its own processors");
        assert_eq!(processor(), now);
    }
}
