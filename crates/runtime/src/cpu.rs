//! Processors: how many this process may use, and pinning a thread to one.

use std::{io, mem};

/// Processors that this process may run on, in ascending order of their numbers.
pub fn allowed() -> Vec<usize> {
    // SAFETY: a `cpu_set_t` is a bit array; all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is valid for writes of its own size.
    let result = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) };
    if result != 0 {
        // More processors than a cpu_set_t has bits (1024): the set is unknown, processor 0 exists.
        return vec![0];
    }
    // SAFETY: every index is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

/// How many processors this process may run on, at least 1.
pub fn count() -> usize {
    allowed().len().max(1)
}

/// Binds the calling thread to processor `cpu`. Fails with `EINVAL` when the process may not run there.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: all zeros is the empty set, and `cpu` is below CPU_SETSIZE.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: `set` is valid for reads of its own size; thread 0 is the caller.
    match unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts the calling thread before all ordinary ones (SCHED_RR), as a latency-bound application's thread is; needs
/// CAP_SYS_NICE.
pub fn realtime() -> io::Result<()> {
    schedule(libc::SCHED_RR, 1)
}

/// Lets the calling thread run only when nobody else wants its processor, the kernel's own threads included.
pub fn background() -> io::Result<()> {
    schedule(libc::SCHED_IDLE, 0)
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `param` is valid for reads; thread 0 is the caller.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_its_processor_only() {
        let last = *allowed().last().expect("this thread runs somewhere");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                pin(last).expect("an allowed processor");
                assert_eq!(allowed(), [last]);
            });
        });
    }

    #[test]
    fn a_processor_that_does_not_exist_is_refused() {
        assert!(pin(usize::MAX).is_err());
        assert!(pin(libc::CPU_SETSIZE as usize - 1).is_err());
    }
}
