//! Several reads by one submission to a thread's ring.

use base::Duration;
use os::{Ring, now};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Entries of a thread's ring: reads that are under way at once. More of them gain little on any device, and each takes memory.
pub(crate) const BURST_MAX: usize = 64;
/// Longest time for which a thread stays awake.
const WATCH: Duration = Duration::from_micros(200);
/// Somebody else ran meanwhile, for longer than workers of the kernel do.
const LONG_YIELD: Duration = Duration::from_micros(50);

/// Bytes to be read, all of them, from an offset of the file.
pub(crate) struct Wanted<'a> {
    pub offset: u64,
    pub bytes: &'a mut [u8],
    /// The first of `bytes` that are still to be read.
    pub done: usize,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(offset: u64, bytes: &'a mut [u8]) -> Self {
        let done = 0;
        Self { offset, bytes, done }
    }

    /// All of it was read.
    pub(crate) fn is_done(&self) -> bool {
        self.done == self.bytes.len()
    }
}

/// Lets the ring read `burst`, of [`BURST_MAX`] at most, and waits until nothing of it is under way any more. False if the kernel
/// takes no more: the ring is of no use then.
#[must_use]
pub(crate) fn read(ring: &mut Ring, file: BorrowedFd<'_>, burst: &mut [Wanted<'_>]) -> bool {
    for (number, one) in (0..).zip(burst.iter_mut()) {
        // SAFETY: file and bytes are borrowed until all completions are here, which are waited for below whatever happens.
        unsafe { ring.push_read(file.as_raw_fd(), one.offset, one.bytes, number) };
    }
    let taken = submit(ring, burst.len());
    let mut ended = 0;
    while ended < taken {
        match burst.len() {
            1 => watch(ring),
            // One wake-up for all of them costs less than to look for each. However it ends, the completions are looked for.
            _ => _ = ring.wait_for(taken - ended),
        }
        while let Some((number, result)) = ring.next_end() {
            burst[number as usize].done = usize::try_from(result).unwrap_or(0);
            ended += 1;
        }
    }
    taken == burst.len()
}

/// Returns when an entry of the ring has ended. Stays awake for it while that pays.
pub(crate) fn watch(ring: &mut Ring) {
    let began = now();
    let mut last = began;
    let mut pays = true;
    while !ring.has_ended() {
        if pays {
            std::thread::yield_now();
            let now = now();
            pays = now.since(last) < LONG_YIELD && now.since(began) < WATCH;
            last = now;
        } else {
            // However it ends, the completion is looked for.
            let _ = ring.wait(None);
        }
    }
}

/// Hands `count` entries to the kernel; how many it took. Fewer means that it takes no more.
fn submit(ring: &mut Ring, count: usize) -> usize {
    let mut taken = 0;
    while taken < count {
        match ring.submit() {
            Ok(0) => break,
            Ok(more) => taken += more,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(_) => break,
        }
    }
    taken
}
